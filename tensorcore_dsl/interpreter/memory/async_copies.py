"""Asynchronous copies of single threads to shared memory: cp.async (PTX manual 9.7.9.25.3).

A copy happens when its group is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import OutOfBounds
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.team import ACCESS_COST
from tensorcore_dsl.interpreter.memory.accesses import (
    GLOBAL_SIDE,
    TOO_MANY,
    copy_check,
    copy_finish,
)
from tensorcore_dsl.interpreter.memory.global_memory import GlobalMemory
from tensorcore_dsl.interpreter.memory.shared_memory import SharedMemory
from tensorcore_dsl.interpreter.sanitizer.access_history import CHECK, GLOBAL, NOTE, OWN
from tensorcore_dsl.interpreter.sanitizer.races import ALWAYS
from tensorcore_dsl.isa import advice
from tensorcore_dsl.isa.context import Context


@dataclass
class _Copy:
    """A copy of the threads of `mask` that step `step` has issued.

    group: how many groups each thread had committed before. since: the serial number of the issue.
    """

    mask: np.ndarray
    group: np.ndarray
    target: np.ndarray
    source: np.ndarray
    size: int
    valid: np.ndarray
    step: int
    since: int = 0

    @property
    def addresses(self) -> list[int]:
        """The real addresses of the arrays of targets, of sources and of bytes to read."""
        arrays = self.target, self.source, self.valid
        return [array.__array_interface__["data"][0] for array in arrays]


class AsyncCopies:
    """Copies in flight; `groups` counts the groups that each thread has committed."""

    def __init__(self, chunk: Chunk, shared: SharedMemory, memory: GlobalMemory) -> None:
        self.chunk = chunk
        self.shared = shared
        self.globals = memory
        self.groups = np.zeros(chunk.threads, np.int64)
        self.queue: list[_Copy] = []
        shared.sanitizer.in_flight.of_threads = self.owner

    def issue(
        self, ctx: Context, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> None:
        """Copy `size` bytes to shared `target`: `valid` ones from global `source`, then zeros."""
        storage, table = self.shared.storage, self.globals.table
        valid = np.array(np.broadcast_to(valid, target.shape), np.uint32, order="C")
        mask = self.shared.active(ctx)
        self.chunk.account("global", "load", source, mask, size)
        self.chunk.account("shared", "store", target, mask, size)
        wrong = copy_check(
            target, source, valid, mask, table, storage.data, storage.changing_shadow, size,
            storage.checks, self.shared.sanitizer.proxies.readers, 0, mask.size,
        )  # fmt: skip
        if wrong:
            self.refuse(wrong, target, source, size, valid)
        copy = _Copy(
            mask, self.groups, target.copy(), source.copy(), size, valid, self.chunk.at_step
        )
        self._note(copy, mask, CHECK)
        self.queue.append(copy)

    def blank(self, mask: np.ndarray, size: int, step: int) -> _Copy:
        """A copy of the threads of `mask` whose addresses are still to be filled in."""
        threads = self.chunk.threads
        target, valid = np.empty((2, threads), np.uint32)
        source = np.empty(threads, np.uint64)
        return _Copy(mask, self.groups, target, source, size, valid, step)

    def refuse(
        self, wrong: int, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> NoReturn:
        """Raise the error of a copy that failed a check."""
        if wrong >> 32 == TOO_MANY:
            thread = wrong & 0xFFFFFFFF
            raise OutOfBounds(
                f"an asynchronous copy of {size} bytes to shared {int(target[thread]):#x} by "
                f"{self.chunk.describe(thread)} is to read {valid[thread]} bytes: 0 to {size} "
                "are allowed"
            )
        if wrong >> 32 > GLOBAL_SIDE:
            self.globals.refuse(wrong - (GLOBAL_SIDE << 32), source, size, "asynchronous copy")
        self.shared.refuse(wrong, target, size, "asynchronous copy")

    def owner(self, cta: int, byte: int) -> str:
        """The copy that owns a byte of a CTA, and what to do about it, for messages."""
        element = self.chunk.program.tiles.element(byte)
        where = f"byte {byte:#x}" + (f" ({element})" if element else "")
        threads = slice(cta * self.chunk.group, (cta + 1) * self.chunk.group)
        for copy in self.queue:
            target = copy.target[threads].astype(np.int64)
            found = copy.mask[threads] & (target <= byte) & (byte < target + copy.size)
            if not found.any():
                continue
            thread = cta * self.chunk.group + int(np.argmax(found))
            what = f"the asynchronous copy at {self.chunk.loc(copy.step)} (by "
            what += f"{self.chunk.describe(thread)}) still owns {where}"
            if copy.group[thread] < self.groups[thread]:
                return f"{what}; wait for the copy first"
            return (
                f"{what}: it is in no group yet, so no wait awaits it; {advice.CP_ASYNC_COMMIT} "
                "comes before the wait"
            )
        return f"an asynchronous copy still owns {where}; wait for the copy first"

    def _note(self, copy: _Copy, mask: np.ndarray, todo: int) -> None:
        """Show a copy to the detector of races: at the issue, and as done at the wait."""
        detector = self.shared.sanitizer.detector
        if detector is None:
            return
        whole = mask & (copy.valid >= copy.size)
        options: Any = {"todo": todo, "step": copy.step}
        if todo == CHECK:
            copy.since = detector.now
        since = copy.since if todo & NOTE else ALWAYS
        found = [
            detector.words(
                GLOBAL, "load", copy.source, whole, copy.size, since=since, **options
            ),
            detector.words(OWN, "store", copy.target, mask, copy.size, **options),
        ]
        for tell in found:
            if tell is not None:
                tell()

    def commit(self) -> None:
        """Close the group of each active thread."""
        self.groups = self.groups + self.chunk.mask

    def wait(self, pending: int) -> None:
        """Finish all but the last `pending` groups of each active thread."""
        due_groups = self.groups - pending
        left = []
        for copy in self.queue:
            due = copy.mask & self.chunk.mask & (copy.group < due_groups)
            if due.any():
                self._finish(copy, due)
                copy.mask = copy.mask & ~due
                if not copy.mask.any():
                    continue
            left.append(copy)
        self.queue = left

    def _finish(self, copy: _Copy, due: np.ndarray) -> None:
        storage, sanitizer = self.shared.storage, self.shared.sanitizer
        self.chunk.writes += 1

        def finish(first: int, last: int, _: int) -> None:
            copy_finish(
                copy.target, copy.source, copy.valid, due, self.globals.table, storage.data,
                storage.shadow, copy.size, storage.checks, sanitizer.proxies.stamps,
                sanitizer.proxies.epochs, first, last,
            )  # fmt: skip

        self.shared.team.share_blocks(due.size, self.chunk.group, ACCESS_COST, finish)
        self._note(copy, due, CHECK | NOTE)
