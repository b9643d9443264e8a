"""Checks between the generic proxy (ordinary accesses) and the async proxy (mma, bulk copies).

An ordinary store stamps each word with its thread and with the number of `fence.proxy.async` that
this thread has executed. A word that the async proxy reads must have been fenced since. Each chunk
of 16 bytes counts the asynchronous operations in flight that still read it. Nobody may touch the
bytes of a bulk load before some thread has waited for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core import memory_pool, native
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.native import compiled, inlined
from tensorcore_dsl.interpreter.core.shadow import (
    ALL_PENDING,
    FILLED,
    FLYING,
    PAGE,
    PAGE_WORDS,
    PENDING,
    STAMP_BITS,
    STAMP_MASK,
    WRITTEN,
    SharedStorage,
    is_stamped,
    mark,
)
from tensorcore_dsl.interpreter.sanitizer.race_report import expression, line_text
from tensorcore_dsl.isa import advice
from tensorcore_dsl.isa.descriptor import CHUNK as CHUNK
from tensorcore_dsl.isa.effects import Effect

STORE, PRODUCT, SHARE = range(3)  # kinds of reads


@dataclass
class Read:
    """An asynchronous operation that reads shared memory, one row for each owner.

    Attributes
    ----------
    kind : int
        PRODUCT, STORE or SHARE.
    step : int
        Position where the operation was issued.
    owners : array
        Threads that wait for the operation, or the warpgroups of a matrix product.
    groups : array
        Groups that each owner had committed before.
    ctas : array
        CTA of the shared memory that each owner reads.
    chunks : array
        (different reads, chunks) numbers of 16-byte chunks.
    rows : array
        Row of `chunks` of each owner.
    spans : array
        `Chunks.spans` of the chunks.
    """

    kind: int
    step: int
    owners: np.ndarray
    groups: np.ndarray
    ctas: np.ndarray
    chunks: np.ndarray
    rows: np.ndarray
    spans: np.ndarray

    def part(self, some: np.ndarray) -> Read:
        """The operation for some of its owners."""
        return replace(
            self,
            owners=self.owners[some],
            groups=self.groups[some],
            ctas=self.ctas[some],
            rows=self.rows[some],
        )

    def readers_of(self, address: int, cta: int) -> np.ndarray:
        """(owners,) bool: it reads the byte at this address of a CTA for this owner."""
        there = (self.chunks == address // CHUNK).any(axis=1)
        return np.asarray(there[self.rows] & (self.ctas == cta))


class LastWaits:
    """The last waits for groups of asynchronous operations, for messages.

    Attributes
    ----------
    waits
        The owners in a mask, up to which group each has waited, the groups left pending, and the step.
    commits : array or None
        The groups that each owner has committed, None before the first one.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.commits: np.ndarray | None = None
        self.waits = deque[tuple[np.ndarray, np.ndarray, int, int]](maxlen=16)

    def note(self, mask: np.ndarray, due: np.ndarray, pending: int) -> None:
        self.waits.appendleft((mask, due, pending, self.chunk.at_step))

    def too_few(self, owner: int, group: int) -> str:
        """Which wait of an owner came after the end of a group and left it in flight, or ""."""
        for mask, due, pending, step in self.waits:
            if mask[owner]:
                needed = due[owner] + pending - group - 1
                loc, here = map(self.chunk.loc, (step, self.chunk.at_step))
                text = expression(loc)
                wait = f"`{text}`" if text else "the wait"
                wait += f" at {line_text(loc, here)}"
                return f"{wait} leaves it in flight; {needed} is needed" if needed >= 0 else ""
        return ""


class ProxyFences:
    """Stamps of words, readers of chunks and fences of threads; empty arrays track nothing.

    Attributes
    ----------
    stamps
        (CTAs, words), 0 where no ordinary store wrote since the last asynchronous write, and then whether a
        page has had any, without which its words mean nothing (see `core.shadow`).
    readers
        (CTAs, chunks).
    epochs
        (T,), 1 + the fences of each thread.
    judged
        What stamps are compared with, zeros where a detector of races follows fences instead.
    landed
        (CTAs, chunks), the clock when a bulk load wrote the chunk; its readers must have synchronised
        since.
    waits
        For stores and products.
    """

    def __init__(self, chunk: Chunk, shared_bytes: int, follows: bool) -> None:
        self.chunk = chunk
        self.tracked = chunk.checks and chunk.program.reads_shared
        ctas, size = chunk.geometry.ctas, shared_bytes * self.tracked
        pages = -(-size // PAGE)
        self.stamps = memory_pool.empty((ctas, pages * PAGE_WORDS), np.uint32)
        self.stamps[:, pages * (PAGE_WORDS - 1) :] = 0
        self.readers = memory_pool.zeros((ctas, -(-size // CHUNK)), np.uint16)
        self.epochs = np.ones(chunk.threads * self.tracked, np.uint32)
        self.judged = np.zeros_like(self.epochs) if follows else self.epochs
        self.reads: list[Read] = []
        self.waits = LastWaits(chunk), LastWaits(chunk)

    def fence(self) -> None:
        """The active threads fence their writes."""
        if self.tracked:
            self.epochs += self.chunk.mask

    def add(self, read: Read) -> None:
        """An operation starts to read."""
        if self.tracked:
            self._count(read, 1)
            self.reads.append(read)

    def _count(self, read: Read, change: int) -> None:
        _count(self.readers, read.ctas, read.spans, read.rows, change)

    def finish(self, kind: int, mask: np.ndarray, due: np.ndarray, pending: int) -> None:
        """The owners of `mask` have waited for all groups before number `due`, but `pending`."""
        self.waits[kind].note(mask, due, pending)
        left = []
        # Reads that were issued together end together.
        known: dict[tuple[int, int], tuple[np.ndarray, bool, bool]] = {}
        for read in self.reads:
            if read.kind != kind:
                left.append(read)
                continue
            key = id(read.owners), id(read.groups)
            if key not in known:
                over = mask[read.owners] & (read.groups < due[read.owners])
                count = int(np.count_nonzero(over))
                known[key] = over, count > 0, count == len(over)
            over, some, whole = known[key]
            if not some:
                left.append(read)
                continue
            done = read if whole else read.part(over)
            self._count(done, -1)
            if not whole:
                left.append(read.part(~over))
        self.reads = left

    def end(self, read: Read) -> None:
        """An operation is over for all of its owners."""
        self._count(read, -1)
        self.reads = [other for other in self.reads if other is not read]

    def leave(self, cta: int) -> None:
        """A CTA ends: nothing may still read its shared memory."""
        for read in self.reads:
            if (read.ctas == cta).any():
                row = int(np.argmax(read.ctas == cta))
                what = self._describe(read, row, read.step)
                raise EmulationError(
                    f"CTA {self.chunk.cta_name(cta)} ends while {what} may still read its "
                    f"shared memory: {self._advice(read, row)}",
                    self.chunk.loc(read.step),
                )

    def reader(self, cta: int, address: int) -> str:
        """The operation that still reads the bytes at `address`, and what to do about it."""
        for read in self.reads:
            reads = read.readers_of(address, cta)
            if reads.any():
                row = int(np.argmax(reads))
                what = self._describe(read, row, read.step)
                return f"{what}: {self._advice(read, row)}"
        return "an asynchronous operation"

    def unfenced_store(self, cta: int, address: int) -> str:
        """Who stored to the chunk at `address` without a fence, and what to do about it."""
        words = self.stamps[cta, address // 4 : address // 4 + CHUNK // 4]
        first = self.chunk.geometry.first_thread(cta)
        writer = _stamped_thread(next(int(w) for w in words if w), first)
        return (
            f"which {self.chunk.describe(writer)} wrote by an ordinary store or "
            f"{advice.CP_ASYNC} and did not fence: the writer needs {advice.FENCE_PROXY_ASYNC} "
            "before it synchronises"
        )

    def _describe(self, read: Read, row: int, step: int) -> str:
        owner, loc = int(read.owners[row]), self.chunk.loc(step)
        if read.kind == PRODUCT:
            product = self.chunk.instruction(step)
            assert product is not None
            return f"a {product.opcode} of {self.chunk.warpgroup_name(owner)} at {loc}"
        name = "store" if read.kind == STORE else "copy to another CTA"
        return f"a bulk {name} of {self.chunk.describe(owner)} at {loc}"

    def _advice(self, read: Read, row: int) -> str:
        if read.kind == SHARE:
            return "the CTA that it goes to must have waited for its mbarrier, and met this one, first"
        owner, group, waits = int(read.owners[row]), int(read.groups[row]), self.waits[read.kind]
        instr = self.chunk.instruction(read.step)
        commit, wait = advice.BULK_COMMIT, advice.BULK_WAIT_READ
        if instr and instr.ordering:
            commit, wait = map(advice.called, (instr.ordering.commit, instr.ordering.wait))
        if waits.commits is None or waits.commits[owner] == group:
            return f"never committed: {commit} is missing before {wait}"
        return waits.too_few(owner, group) or f"wait for its group first: {wait}"


# Columns of a load in flight, to bytes START to STOP of a CTA, which PHASE of the mbarrier in SLOT
# counts. STEP, THREAD: its issue. SOURCE: the read of another CTA's shared memory that ends
# with it, 0 for none.
CTA, START, STOP, SLOT, PHASE, STEP, THREAD, SOURCE, COLUMNS = range(9)


LINE = 128  # bytes


class CopiesInFlight:
    """The loads of a chunk of CTAs that are in flight.

    Attributes
    ----------
    name : function
        That of an mbarrier, for messages.
    of_threads : function
        The copy of a single thread that owns a byte of a CTA.
    """

    name: Callable[[int, int], str]
    of_threads: Callable[[int, int], str]

    def __init__(self, chunk: Chunk, storage: SharedStorage, proxies: ProxyFences) -> None:
        self.chunk = chunk
        self.storage = storage
        self.proxies = proxies
        self.count = 0
        self._rows = np.zeros((64, COLUMNS), np.int64)
        self._sources: dict[int, Read] = {}

    @property
    def rows(self) -> np.ndarray:
        """(loads in flight, COLUMNS)."""
        return self._rows[: self.count]

    def add(
        self,
        threads: np.ndarray,
        step: int,
        size: int,
        ctas: np.ndarray,
        targets: np.ndarray,
        slots: np.ndarray,
        phases: np.ndarray,
    ) -> None:
        """Note loads of `size` bytes, of whole lines; the arrays have one item for each."""
        count = self.count + len(threads)
        while len(self._rows) < count:
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        ends = targets & -LINE, targets + size + LINE - 1 & -LINE
        columns = ctas, *ends, slots, phases, np.full_like(ctas, step), threads, np.zeros_like(ctas)
        self._rows[self.count : count] = np.stack(columns, axis=1)
        self.count = count

    def attach(self, source: Read) -> None:
        """The last load ends the read of another CTA's shared memory, too."""
        number = max(self._sources, default=0) + 1
        self._sources[number] = source
        self.rows[-1, SOURCE] = number

    def settle(self, index: np.ndarray, seen: np.ndarray) -> None:
        """End the loads whose phase is over.

        seen: (CTAs, barriers), how many phases have been seen to end; index: (CTAs, slots), the
        number of the barrier in each slot.
        """
        if not self.count:
            return
        ended = np.empty_like(self.rows)
        self.count = _take_ended(self.rows, index, seen, ended)
        ended = ended[: len(ended) - self.count]
        _land(self.storage.states, self.storage.pages, ended)
        for number in ended[:, SOURCE].tolist() if self._sources else ():
            if number:
                self.proxies.end(self._sources.pop(number))

    def leave(self, cta: int) -> None:
        """A CTA ends: no load to it may be in flight."""
        for flight in self.rows[self.rows[:, CTA] == cta]:
            text = f"CTA {self.chunk.cta_name(cta)} ends while {self._describe(flight)}"
            raise EmulationError(text, self.chunk.loc(int(flight[STEP])))

    def owner(self, cta: int, address: int) -> str:
        """The copy that owns a byte in flight, for messages."""
        for flight in self.rows[self.rows[:, CTA] == cta]:
            if flight[START] <= address < flight[STOP]:
                return f"byte {address:#x}: " + self._describe(flight)
        return self.of_threads(cta, address)

    def _describe(self, flight: np.ndarray) -> str:
        cta, slot, phase, step, thread = flight[[CTA, SLOT, PHASE, STEP, THREAD]].tolist()
        instr = self.chunk.instruction(step)
        what = instr.summary if instr and Effect.BULK not in instr.effects else "bulk load"
        return (
            f"the {what} at {self.chunk.loc(step)} (by {self.chunk.describe(thread)}) is in "
            f"flight: nobody has waited for phase {phase} (parity {phase & 1}) of " + self.name(cta, slot)
        )


@compiled
def _take_ended(rows: Any, index: Any, seen: Any, ended: Any) -> int:
    """Move the loads whose phase has been seen to end to `ended`; how many are left in `rows`."""
    left, gone = 0, 0
    for row in range(rows.shape[0]):
        cta = rows[row, CTA]
        if seen[cta, index[cta, rows[row, SLOT]]] > rows[row, PHASE]:
            for column in range(COLUMNS):
                ended[gone, column] = rows[row, column]
            gone += 1
        else:
            for column in range(COLUMNS):
                rows[left, column] = rows[row, column]
            left += 1
    return left


@compiled
def _land(states: Any, pages: Any, rows: Any) -> None:
    """Loads are over."""
    for row in range(rows.shape[0]):
        cta = rows[row, CTA]
        base = states.ctypes.data + cta * states.shape[1]
        word, stop = rows[row, START], min(rows[row, STOP], states.shape[1])
        while word < stop:
            whole = word % PAGE == 0 and word + PAGE <= stop and pages.shape[1] > 0
            if whole and pages[cta, word // PAGE] == FLYING:
                pages[cta, word // PAGE] = FILLED
                word += PAGE
                continue
            if word + 8 <= stop and native.peek64(base + word) == ALL_PENDING:
                mark(base + word, 8, WRITTEN)
            else:
                for byte in range(word, min(word + 8, stop)):
                    if native.peek8(base + byte) == PENDING:
                        native.poke8(base + byte, WRITTEN)
            word += 8


@compiled
def _count(readers: Any, ctas: Any, spans: Any, rows: Any, change: int) -> None:
    """Add `change` to the readers of chunks in `ctas`: of one of the rows of `spans` for each."""
    for i in range(ctas.size):
        there, row = readers[ctas[i]], rows[i]
        for span in range(spans.shape[1]):
            for number in range(spans[row, span, 0], spans[row, span, 1]):
                there[number] += change


@inlined
def _stamped_thread(stamp: Any, first: int) -> int:
    """The thread in a stamp; `first` is the first thread of its cluster."""
    thread: int = first + (stamp - first & STAMP_MASK)
    return thread


@inlined
def unfenced(stamps: Any, epochs: Any, first: int, at: int) -> bool:
    """True if the chunk at `at` has a word whose thread has not fenced since it stored there.

    first: the first thread of the cluster.
    """
    stamp = stamps.ctypes.data + at
    if not is_stamped(stamps, at) or native.peek64(stamp) | native.peek64(stamp + 8) == 0:
        return False
    missing = False
    for word in range(at // 4, at // 4 + CHUNK // 4):
        stamp = int(stamps[word])
        thread = _stamped_thread(stamp, first)
        missing = missing or (stamp != 0 and epochs[thread] == stamp >> STAMP_BITS)
    return missing
