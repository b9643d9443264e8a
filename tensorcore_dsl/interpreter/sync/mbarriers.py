"""mbarriers (PTX manual 9.7.13.15): arrivals and bytes that a phase waits for, compiled.

A barrier is identified by its CTA and its slot, which is its address divided by 8. A phase is over
when no arrival is pending and as many bytes have come as were expected. More arrivals than a phase
expects show as an arrival for the next phase before any thread has seen the last one end; this is
an error (9.7.13.15.4).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import Deadlock, EmulationError, Misaligned, OutOfBounds
from tensorcore_dsl.interpreter.core import memory_pool
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.shadow import OFFSET, SharedStorage
from tensorcore_dsl.interpreter.core.threads import scalar, taken, words
from tensorcore_dsl.interpreter.sanitizer.access_history import CLUSTER
from tensorcore_dsl.interpreter.sanitizer.happens_before import PHASES
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer
from tensorcore_dsl.interpreter.sync.barrier_phases import (
    BAD_COUNT,
    BAD_PARITY,
    BAD_PLACE,
    BAD_RANK,
    BYTES,
    CAME,
    COLUMNS,
    COUNT,
    DROPPED,
    ENDED,
    GONE,
    LIVE,
    LOST,
    MADE,
    MAX_PENDING,
    MIN_ROWS,
    MISSING,
    NOT_ANNOUNCED,
    NOT_OWN,
    OCCUPIED,
    OVERRUN,
    PHASE,
    SEEN,
    TOO_MUCH,
    UNALIGNED,
    UNINITIALISED,
    UNSEEN,
    arrive_all,
    ask_all,
    complete_all,
    init_all,
)
from tensorcore_dsl.interpreter.sync.clusters import Clusters
from tensorcore_dsl.isa import advice, classify
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

REMOTE = 1 << 40  # bit of a barrier number: messages of threads of other CTAs


class Mbarriers(EagerDict):
    """The mbarriers of a chunk of CTAs.

    Attributes
    ----------
    state
        (CTAs, rows, columns).
    index
        (CTAs, slots), the row of each slot; row 0 is no barrier.
    used
        (CTAs,), rows in use.
    asks_for
        (T, 2), slot and phase that a thread waits for, or -1.
    arrivers : dict
        By step and row, the threads that have arrived.
    early
        (T,), who was told by the last `done` that copies are under way, unusually.
    settle : function
        Ends the copies of single threads when threads have seen phases end.
    """

    settle: Callable[[], None]

    def __init__(
        self, chunk: Chunk, storage: SharedStorage, sanitizer: Sanitizer, clusters: Clusters
    ) -> None:
        self.chunk = chunk
        self.storage = storage
        self.sanitizer = sanitizer
        self.clusters = clusters
        ctas = chunk.geometry.ctas
        self.index = memory_pool.zeros((ctas, storage.size // BYTES), np.int16)
        self.state = np.zeros((ctas, MIN_ROWS, COLUMNS), np.int64)
        self.used = np.ones(ctas, np.int64)
        self.arrivers: dict[tuple[int, int], np.ndarray] = {}
        sanitizer.in_flight.name = self.name

    @cached_property
    def asks_for(self) -> np.ndarray:
        return np.full((self.chunk.threads, 2), -1, np.int64)

    def init(self, bar: Any, count: Any) -> None:
        """Initialise barriers; `count` None invalidates them."""
        chunk, detector = self.chunk, self.sanitizer.detector
        arrivals = 0 if count is None else count
        addresses, counts = words(bar, chunk.threads), words(arrivals, chunk.threads)
        tell_race = self._note(addresses, chunk.mask) if count is None else None
        most = int(self.used.max() + np.bincount(chunk.here.numbers // chunk.group).max())
        while self.state.shape[1] < most:
            self.state = np.concatenate((self.state, np.zeros_like(self.state)), axis=1)
        failure = init_all(
            addresses,
            counts,
            chunk.here.numbers,
            count is not None,
            chunk.at_step,
            self.index,
            self.state,
            self.used,
            self.storage.disclosed(forget=True).states,
        )
        if failure >> 32 == LIVE:
            self._refuse_second(failure & 0xFFFFFFFF, addresses)
        if failure:
            self._refuse(failure >> 32, failure & 0xFFFFFFFF, bar, arrivals)
        if detector is not None and count is not None:
            threads = np.flatnonzero(chunk.mask)
            tell_race = detector.initialise(threads, taken(addresses, threads) // BYTES, BYTES)
        if tell_race is not None:
            tell_race()

    def _note(
        self, addresses: np.ndarray, mask: np.ndarray, flies: bool = False
    ) -> Callable[[], None] | None:
        """Show a use of barriers to the detector of races, which reports races.

        flies: see `reach`.
        """
        detector = self.sanitizer.detector
        if detector is None or not mask.any():
            return None
        instr = self.chunk.instruction(self.chunk.at_step)
        strong = instr is not None and (classify.is_strong(instr) or classify.completes_on_mbarrier(instr))
        threads = np.flatnonzero(mask)
        ranks = addresses[threads] >> CLUSTER_SHIFT
        threads = threads[(ranks > 0) & (ranks <= self.clusters.size)]
        if len(threads) and not flies:
            detector.reach(threads, self.clusters.ctas(threads, addresses[threads]), addresses, flies=False)
        if instr is not None and classify.completes_on_mbarrier(instr) and instr.accesses[0].order:
            return None  # the strength of the instruction is that of its reduction
        return detector.words(CLUSTER, "store", addresses, mask, BYTES, strong=strong)

    def at(self, cta: int, slot: int) -> np.ndarray:
        """The columns of a barrier in `state`."""
        return np.asarray(self.state[cta, self.index[cta, slot]])

    def _slot(self, thread: int, address: int) -> int:
        """The slot at an offset in a CTA."""
        if address % BYTES:
            self._refuse(UNALIGNED, thread, address)
        if address // BYTES >= self.index.shape[1]:
            self._refuse(BAD_PLACE, thread, address)
        return address // BYTES

    def arrive(self, bar: Any, count: Any, expected: Any, drops: bool = False, ends: bool = True) -> None:
        """Let the phase expect `expected` more bytes, then arrive `count` times."""
        chunk, clusters = self.chunk, self.clusters
        chunk.writes += 1
        addresses, counts, sizes = (words(x, chunk.threads) for x in (bar, count, expected))
        tell_race = self._note(addresses, chunk.mask)
        self._release(addresses, counts)
        rows = np.zeros(self.state.shape[1], np.bool_)
        status = arrive_all(
            addresses,
            counts,
            sizes,
            chunk.here.numbers,
            self.index,
            self.state,
            clusters.size,
            clusters.gone,
            rows,
            drops,
            ends,
        )
        if status > 1:
            self._refuse(status >> 32, status & 0xFFFFFFFF, bar, count)
        for row in rows.nonzero()[0].tolist():
            before = self.arrivers.setdefault((chunk.at_step, row), chunk.mask)
            if before is not chunk.mask:
                self.arrivers[chunk.at_step, row] = chunk.masks.union(before, chunk.mask)
        if tell_race is not None:
            tell_race()
        if status and self.sanitizer.proxies.reads:
            chunk.step_aside()  # a thread released too early shall run at once

    def done(self, bar: Any, parity: Any) -> np.ndarray:
        """Return (T,) bool: whether the phase of this parity is over."""
        chunk, detector = self.chunk, self.sanitizer.detector
        chunk.reads += 1
        go, self.early = np.zeros((2, chunk.threads), np.bool_)
        addresses, parities = words(bar, chunk.threads), words(parity, chunk.threads)
        tell_race, unheard = self._note(addresses, chunk.mask), chunk.at_step in chunk.program.unheard
        status = ask_all(
            addresses,
            parities,
            chunk.here.numbers,
            self.index,
            self.state,
            go,
            self.asks_for,
            chunk.unusual or unheard,
            self.early,
        )
        if status > 1:
            self._refuse(status >> 32, status & 0xFFFFFFFF, bar, parity)
        chunk.writes += bool(self.early.any())
        if tell_race is not None:
            tell_race()
        if status:
            self.sanitizer.in_flight.settle(self.index, self.state[..., SEEN])
            self.settle()
        if detector is not None and unheard:
            detector.mark(go & chunk.mask)  # the wait may end before the phase does
        elif detector is not None and (go & chunk.mask).any():
            units, phases = self.phases(addresses, go & chunk.mask)
            detector.acquire(PHASES, go & chunk.mask, units, phases - 1)
            instr = chunk.instruction(chunk.at_step)
            narrow = instr is not None and classify.is_cta_acquire(instr)
            if self.clusters.size > 1 and not narrow:  # libraries that mean the cluster leave the scope out
                detector.acquire(PHASES, go & chunk.mask, units | REMOTE, phases - 1)
        return go

    def phases(self, addresses: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(T,) numbers of the barriers at the addresses of threads, and the phases that they are in."""
        threads, (units, phases) = np.flatnonzero(mask), np.zeros((2, mask.size), np.int64)
        ctas = np.clip(self.clusters.ctas(threads, addresses[threads]), 0, len(self.index) - 1)
        slots = np.minimum((addresses[threads] & OFFSET) // BYTES, self.index.shape[1] - 1)
        units[threads] = ctas << 20 | slots
        phases[threads] = self.state[ctas, self.index[ctas, slots], PHASE]
        return units, phases

    def seen(self, units: np.ndarray) -> np.ndarray:
        """(T,) how many phases of barriers, by their numbers, some thread has seen end."""
        ctas, slots = units >> 20, units & 0xFFFFF
        return np.asarray(self.state[ctas, self.index[ctas, slots], SEEN])

    def _release(self, addresses: np.ndarray, counts: np.ndarray) -> None:
        """The active threads that arrive hand on their clocks."""
        detector = self.sanitizer.detector
        if detector is None or not self.index.shape[1]:
            return
        mask = self.chunk.mask & (counts > 0)
        if not mask.any():
            return
        units, phases = self.phases(addresses, mask)
        abroad, active = np.zeros_like(mask), np.flatnonzero(mask)
        abroad[active] = units[active] >> 20 != active // self.chunk.group
        instr = self.chunk.instruction(self.chunk.at_step)
        if detector.unfenced:
            for unit in np.unique(units[abroad]).tolist():
                cta, slot = unit >> 20, unit & 0xFFFFF
                name = self.name(cta, slot)
                detector.check_init(cta, slot, name, "an arrival from another CTA")
        weak = np.zeros_like(mask)
        if instr is not None and classify.is_relaxed(instr):
            weak = mask
        elif instr is not None and classify.is_cta_release(instr):
            weak = abroad  # libraries that mean the cluster leave the scope out
        messages = np.where(abroad, units | REMOTE, units)
        # `count` takes the arrivals for as late as the last release.
        for threads, release in ((weak, detector.release_fenced), (mask & ~weak, detector.release)):
            if threads.any():
                release(PHASES, threads, messages, phases)
        # A thread of another CTA may know by a peer's bytes that the phase before is over.
        asked = mask & ~abroad
        detector.count(
            PHASES,
            mask,
            asked,
            units,
            phases,
            lambda thread: (
                f"{self.name(thread // self.chunk.group, int(units[thread]) & 0xFFFFF)} counts arrivals "
                "in the order in which they come",
                "the one here counts for that phase, which then ends without the other: wait for that "
                "phase first",
            ),
        )

    def complete_tx(self, bar: Any, size: Any) -> None:
        """Count `size` bytes as come, without a copy."""
        chunk, addresses = self.chunk, words(bar, self.chunk.threads)
        chunk.writes += 1
        tell_race = self._note(addresses, chunk.mask)
        for thread in chunk.here.numbers.tolist():
            address, own_cta = int(addresses[thread]), thread // chunk.group
            cta = self.clusters.peer(own_cta, address >> CLUSTER_SHIFT, chunk.describe(thread))
            if self.clusters.gone[cta]:
                self._refuse(GONE, thread, address)
            slot = self._slot(thread, address & OFFSET)
            if self.sanitizer.detector is not None and cta != own_cta:
                name = self.name(cta, slot)
                self.sanitizer.detector.check_init(cta, slot, name, "a count of bytes")
            by, there, offset = np.array([[thread], [cta], [address & OFFSET]])
            self._count(by, there, offset, scalar(size, thread), np.empty(1, np.int64))
        if tell_race is not None:
            tell_race()

    def complete(
        self, threads: np.ndarray, ctas: np.ndarray, addresses: np.ndarray, size: int, flies: bool = True
    ) -> np.ndarray:
        """Count `size` bytes that have come by an operation of each thread; returns the phases that
        count them.

        ctas, addresses: of the mbarriers. flies: `CopiesInFlight` knows the bytes.
        """
        slots = np.minimum(addresses // BYTES, self.index.shape[1] - 1)
        state = self.state[ctas, self.index[ctas, slots]]
        phases, good = np.asarray(state[:, PHASE]), (slots * BYTES == addresses) & (state[:, COUNT] > 0)
        if self.sanitizer.detector is not None and good.all():  # the others are refused below
            self._note_counts(threads, ctas, addresses, flies)
            for cta, slot in zip(ctas.tolist(), slots.tolist()) if self.sanitizer.detector.unfenced else ():
                name = self.name(cta, slot)
                self.sanitizer.detector.check_init(cta, slot, name, "a count of bytes")
            self.sanitizer.detector.completes(ctas, slots, phases)
        self._count(threads, ctas, addresses, size, phases)
        return phases

    def _count(
        self, threads: np.ndarray, ctas: np.ndarray, addresses: np.ndarray, size: int, phases: np.ndarray
    ) -> None:
        """Count bytes for threads. phases: receives the phases of the barriers."""
        failure = complete_all(ctas, addresses, size, self.index, self.state, phases)
        if failure:
            at = failure & 0xFFFFFFFF
            self._refuse(failure >> 32, int(threads[at]), int(addresses[at]), size, int(ctas[at]))

    def _note_counts(self, threads: np.ndarray, ctas: np.ndarray, addresses: np.ndarray, flies: bool) -> None:
        """Show counts of bytes to the detector of races, one of each thread at a time."""
        ranks, detector = ctas % self.clusters.size + 1 << CLUSTER_SHIFT, self.sanitizer.detector
        if flies and detector is not None:
            detector.reach(threads, ctas, addresses, flies)
        first = np.flatnonzero(np.diff(threads, prepend=-1))
        turns = np.arange(len(threads)) - np.repeat(first, np.diff(first, append=len(threads)))
        for turn in range(int(turns.max()) + 1):
            some, targets = turns == turn, np.zeros(self.chunk.threads, np.uint32)
            mask = np.zeros(self.chunk.threads, np.bool_)
            mask[threads[some]], targets[threads[some]] = True, (ranks | addresses)[some]
            tell_race = self._note(targets, mask, flies)
            if tell_race is not None:
                tell_race()

    def made_at(self, cta: int, slot: int) -> int | None:
        """The step that initialised a barrier; None where there is none."""
        state = self.at(cta, slot)
        return int(state[MADE]) if state[COUNT] else None

    def _made(self, cta: int, slot: int) -> str:
        at = self.made_at(cta, slot)
        return "" if at is None else f"at {self.chunk.loc(at)}"

    def label(self, address: int) -> str:
        """The name of the variable that holds the mbarrier at an address, or the address."""
        names = self.chunk.program.kernel.barriers
        return names[address][1] if address in names else f"the mbarrier at shared {address:#x}"

    def name(self, cta: int, slot: int) -> str:
        """An mbarrier, and where it was initialised."""
        made = self._made(cta, slot)
        return self.label(slot * BYTES) + (f" (initialised {made})" if made else "")

    def lacking(self, mask: np.ndarray) -> list[str]:
        """The phases for which threads of `mask` wait, with missing arrivals and bytes, as text."""
        wanted = self.waited_for(mask)
        lines = self.chunk.folded((slot[0], self.wait_text(*slot)) for slot in wanted)
        return lines[:8] + [f"... and {len(lines) - 8} more"] * (len(lines) > 8)

    def waited_for(self, mask: np.ndarray) -> list[tuple[int, int]]:
        """CTA and slot of the mbarriers that threads of `mask` wait for."""
        threads = np.flatnonzero(mask & (self.asks_for[:, 0] >= 0))
        return sorted({(int(t) // self.chunk.group, int(self.asks_for[t, 0])) for t in threads})

    def phase(self, cta: int, slot: int) -> int:
        return int(self.at(cta, slot)[PHASE])

    def surplus(self, mask: np.ndarray) -> bool:
        """True if threads of `mask` wait for a phase with more bytes than were expected."""
        return any(self.at(*slot)[MISSING] < 0 for slot in self.waited_for(mask))

    def wait_text(self, cta: int, slot: int) -> str:
        """The running phase of an mbarrier, and what it lacks; `{}` stands for the CTA."""
        count, pending, missing, phase = (int(n) for n in self.at(cta, slot)[:SEEN])
        text = f"it waits in {{}} for phase {phase} (parity {phase & 1}) of "
        lacks = [f"{pending} of {count} arrivals are missing"] if pending else []
        if missing > 0:
            lacks.append(f"{missing} bytes are missing")
        if missing < 0:
            lacks.append(f"{-missing} bytes more have come than were expected")
        if pending == count and not missing and phase:
            lacks.append(f"phase {phase - 1} (parity {phase - 1 & 1}) is over: was it meant?")
        return text + self.name(cta, slot) + ": " + ", ".join(lacks)

    def _refuse(self, code: int, thread: int, bar: Any, count: Any = 0, cta: int | None = None) -> NoReturn:
        """Raise the error of a thread whose operands failed a check."""
        address, operand = scalar(bar, thread), scalar(count, thread)
        who, at, rank = self.chunk.describe(thread), address & OFFSET, address >> CLUSTER_SHIFT
        if cta is None:
            cta = self.clusters.cta(thread // self.chunk.group, rank)
        if code == BAD_RANK:
            self.clusters.refuse_rank(rank - 1, who)
        if code == GONE:
            self.clusters.refuse_gone(cta, self.label(at), who)
        name = self.label(at)
        if code == BAD_PLACE:
            size = self.storage.size
            raise OutOfBounds(f"{name} ({who}): the CTA has {size} bytes of shared memory")
        if code == UNALIGNED:
            raise Misaligned(f"{name} ({who}): no multiple of {BYTES}")
        if code == UNINITIALISED:
            raise EmulationError(f"{name} is not initialised ({who}): it needs {advice.MBARRIER_INIT}")
        if code == NOT_OWN:
            raise EmulationError(
                f"{name} of CTA {rank - 1} of the cluster ({who}): only arrivals and bytes reach "
                "the barriers of other CTAs"
            )
        self._refuse_use(code, thread, cta, at // BYTES, operand)

    def _refuse_second(self, thread: int, addresses: np.ndarray) -> NoReturn:
        """Raise the error of a thread that initialises a barrier which lives."""
        cta, slot = thread // self.chunk.group, int(addresses[thread]) // BYTES
        numbers = self.chunk.here.numbers
        same = (numbers // self.chunk.group == cta) & (addresses[numbers] == addresses[thread])
        first = int(numbers[np.argmax(same)])
        made, advised = self._made(cta, slot), f"{advice.MBARRIER_INVAL} comes first"
        if first != thread and self.made_at(cta, slot) == self.chunk.at_step:
            made += f", by {self.chunk.describe(first)} in the same step"
            advised = "one thread initialises a barrier, as under `if tc.threadIdx.x == 0`"
        raise EmulationError(
            f"{self.label(slot * BYTES)} is initialised a second time, by "
            f"{self.chunk.describe(thread)} (first {made}); its phase is "
            f"{int(self.at(cta, slot)[PHASE])}: {advised}"
        )

    def _refuse_use(self, code: int, thread: int, cta: int, slot: int, operand: int) -> NoReturn:
        """Raise the error of a thread that uses an mbarrier wrongly; `operand`: count or parity."""
        who, at = self.chunk.describe(thread), slot * BYTES
        total, pending, missing, phase = (int(n) for n in self.at(cta, slot)[:SEEN])
        name, came = self.name(cta, slot), int(self.at(cta, slot)[CAME])
        if code == LOST:
            raise Deadlock(
                f"{name}: {who} waits for phase {self.asks_for[thread, 1]}, which came to its end "
                f"together with the one behind it: phases pass faster than the waiter sees them"
            )
        new, owner = f"{self.label(at)} is", ""
        advised = "initialise it with all arrivals of a phase, or let fewer threads arrive"
        if pending == 0:  # the phase lasts until its bytes have come
            advised += "; one thread announces bytes, as under `if tc.elect()` in one warp"
        if code == OCCUPIED:
            owner = self.sanitizer.in_flight.owner(cta, at)
        raise EmulationError(
            {
                BAD_COUNT: f"{new} to expect {operand} arrivals; 1 to {MAX_PENDING} are allowed",
                OCCUPIED: f"{new} initialised where a copy is in flight: {owner}",
                OVERRUN: f"{name}: {who} arrives {operand} times when {pending} of {total} arrivals "
                f"and {missing} bytes are pending in phase {phase}: {advised}",
                UNSEEN: f"{name}: {who} arrives for phase {phase} before any thread has seen phase "
                f"{phase - 1} end: more arrive than the {total} that a phase expects, or nobody waits: a "
                "wait for the other parity returns at once",
                ENDED: f"{name}: {who} ends phase {phase}, with {operand} of {total} arrivals, by an "
                f"arrival that must not complete it (PTX manual, 9.7.13.15.13)",
                DROPPED: f"{name}: {who} drops all {total} arrivals that a phase expects; one at least "
                f"must stay (PTX manual, 9.7.13.15.2); {advice.MBARRIER_INVAL} ends a barrier",
                TOO_MUCH: f"{name}: {who} brings its count of bytes to {missing} in phase {phase}; at "
                f"most {MAX_PENDING} can be counted",
                NOT_ANNOUNCED: f"{name}: phase {phase - 1} ended after {came - operand} of the {came} "
                f"bytes of its copies, without this copy of {who}: announce the bytes of all, or let a "
                "thread wait for the phase before more are copied",
                BAD_PARITY: f"{name}: {who} waits for parity {operand}; parities are 0 and 1, the "
                "phase modulo 2",
            }[code]
        )
