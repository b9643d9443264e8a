"""Shared memory between two proxies: ordinary stores, and what wgmma and bulk copies read.

Each word that an ordinary store writes is stamped with the thread and with how many times this
thread has fenced (`fence.proxy.async`); what the async proxy reads must have been fenced since.
Each 16 bytes count the asynchronous operations in flight that still read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.gather import STAMP_BITS, STAMP_MASK, compiled, inlined

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

CHUNK = 16
COPY, PRODUCT, SHARE = range(3)
_UNTIL = {
    COPY: "commit it and wait for its group (cp.async.bulk.wait_group.read) first",
    PRODUCT: "commit it and wait for its group (wgmma.wait_group) first",
    SHARE: "the CTA that it goes to must have waited for its mbarrier, and met this one, first",
}


@dataclass
class Read:
    """An asynchronous operation that reads shared memory, for several owners.

    owners, groups: the threads, or the warpgroups of a product, that wait for it, and how many
    groups each had committed before; ctas, chunks: what each reads, a line each. step: where it
    was issued.
    """

    kind: int
    step: int
    owners: np.ndarray
    groups: np.ndarray
    ctas: np.ndarray
    chunks: np.ndarray

    def describe(self, machine: Machine, line: int) -> str:
        """The operation and where it was issued, for messages."""
        owner = int(self.owners[line])
        if self.kind != PRODUCT:
            name = "store" if self.kind == COPY else "copy to another CTA"
            what = f"a bulk {name} of {machine.describe(owner)}"
        else:
            what = f"a wgmma of {machine.warpgroup_name(owner)}"
        return f"{what} at {machine.program.steps[self.step].loc}"

    def part(self, lines: np.ndarray) -> Read:
        """The operation of some of its owners."""
        return Read(
            self.kind, self.step, self.owners[lines], self.groups[lines], self.ctas[lines],
            self.chunks[lines],
        )  # fmt: skip


class Proxies:
    """Stamps of words, readers of chunks, fences of threads; empty arrays: nothing is tracked.

    stamps: (CTAs, words), 0 where no ordinary store wrote since an asynchronous one; readers:
    (CTAs, chunks); epochs: (T,), 1 + the fences of each thread; landed: (CTAs, chunks), the
    machine's clock when a bulk load came there, which its readers must have met somebody after.
    """

    def __init__(self, ctas: int, size: int, threads: int, loads: int) -> None:
        """size, threads: of what is tracked (0: nothing); loads: bytes that bulk loads may fill."""
        self.stamps = np.zeros((ctas, -(-size // 8) * 2), np.uint32)
        self.readers = np.zeros((ctas, -(-size // CHUNK)), np.uint16)
        self.epochs = np.ones(threads, np.uint32)
        self.landed = np.zeros((ctas, -(-loads // CHUNK)), np.int64)
        self.reads: list[Read] = []

    @property
    def tracked(self) -> bool:
        return self.epochs.size > 0

    def fence(self, mask: np.ndarray) -> None:
        if self.tracked:
            self.epochs += mask

    def add(self, read: Read) -> None:
        """An operation starts to read."""
        if self.tracked:
            counted(self.readers, read.ctas, read.chunks, 1)
            self.reads.append(read)

    def finish(self, kind: int, mask: np.ndarray, due: np.ndarray) -> None:
        """The owners of `mask` have waited for their groups before `due`."""
        left = []
        for read in self.reads:
            if read.kind != kind:
                left.append(read)
                continue
            over = mask[read.owners] & (read.groups < due[read.owners])
            if not over.any():
                left.append(read)
                continue
            done = read.part(over)
            counted(self.readers, done.ctas, done.chunks, -1)
            if not over.all():
                left.append(read.part(~over))
        self.reads = left

    def end(self, read: Read) -> None:
        """An operation is over for all of its owners."""
        counted(self.readers, read.ctas, read.chunks, -1)
        self.reads = [other for other in self.reads if other is not read]

    def reader(self, machine: Machine, cta: int, address: int) -> str:
        """Who still reads the bytes at `address`, for messages."""
        for read in self.reads:
            lines = (read.ctas == cta) & (read.chunks == address // CHUNK).any(axis=1)
            if lines.any():
                return f"{read.describe(machine, int(np.argmax(lines)))}: {_UNTIL[read.kind]}"
        return "an asynchronous operation"

    def leave(self, machine: Machine, cta: int) -> None:
        """A CTA ends: its shared memory may not be read any more."""
        for read in self.reads:
            if (read.ctas == cta).any():
                what = read.describe(machine, int(np.argmax(read.ctas == cta)))
                raise EmulationError(
                    f"block {machine.block_name(cta)} ends while {what} may still read its shared "
                    f"memory: {_UNTIL[read.kind]}"
                )

    def stamp(self, threads: np.ndarray) -> np.ndarray:
        """What ordinary stores of these threads leave behind now."""
        low = (threads & STAMP_MASK).astype(np.uint32)
        return np.asarray(self.epochs[threads] << np.uint32(STAMP_BITS) | low)

    def writer(self, machine: Machine, cta: int, address: int) -> int:
        """The thread of the chunk that last wrote one of the words of the chunk at `address`."""
        words = self.stamps[cta, address // 4 : address // 4 + CHUNK // 4]
        return stamped(next(int(w) for w in words if w), machine.clusters.first(cta))


@compiled
def counted(readers: Any, ctas: Any, chunks: Any, change: int) -> None:
    """Add to the readers of `chunks`, a line for each of `ctas`."""
    for line in range(ctas.size):
        for i in range(chunks.shape[1]):
            readers[ctas[line], chunks[line, i]] += change


def stamped(stamp: Any, first: int) -> int:
    """The thread that a stamp names, `first` being the first one of its cluster."""
    thread: int = first + (stamp - first & STAMP_MASK)
    return thread


_stamped: Any = inlined(stamped)


@inlined
def unfenced(stamps: Any, epochs: Any, first: int, at: int) -> bool:
    """Has a word of the chunk an ordinary store that its thread did not fence? `first`: of the
    threads of its cluster."""
    found = False
    for word in range(at // 4, at // 4 + CHUNK // 4):
        stamp = types.int64(stamps[word])
        found = found or (stamp != 0 and epochs[_stamped(stamp, first)] == stamp >> STAMP_BITS)
    return found
