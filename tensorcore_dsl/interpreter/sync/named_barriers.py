"""Named barriers of a CTA (PTX manual 9.7.13.1), compiled.

A warp arrives when all of its threads that have not exited have executed a barrier instruction on
the barrier. A barrier completes when the warps that arrived make up the expected count. Without a count all
warps of the CTA are expected, and exited warps count as arrived. As the manual promises, a barrier with a
count also completes when only exited threads could still arrive.

A warp that has arrived without waiting may arrive once more if it then waits, and counts twice: the
warpgroup that FlashAttention 3 lets go first gives itself the signal of another one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.native import compiled, error_at
from tensorcore_dsl.interpreter.core.threads import PerThread, words
from tensorcore_dsl.interpreter.sanitizer.happens_before import NAMED
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer

BARRIERS = 16
BAD_ID, BAD_COUNT, MISMATCH, OVERRUN, TWICE = range(1, 6)


class _State(NamedTuple):
    """Arrays of `NamedBarriers`, for compiled functions."""

    arrived: Any
    expected: Any
    phase: Any
    last: Any
    lanes: Any
    counted: Any
    waits_at: Any
    waits_for: Any
    votes: Any
    true: Any
    voters: Any


class NamedBarriers:
    """The sixteen barriers of each CTA of a chunk.

    Attributes
    ----------
    arrived
        By (CTA, barrier), the threads that have arrived, in whole warps.
    expected
        By (CTA, barrier), threads, 0 before the first arrival, -1 for all of the CTA.
    phase
        By (CTA, barrier), how often it completed.
    last
        By (CTA, barrier), the threads of the phase before.
    votes
        By (CTA, barrier), the true predicates and the threads of the running phase.
    lanes
        By (warp, barrier), the lanes that have arrived while others of the warp have not.
    counted
        By (warp, barrier), whether the warp has arrived in this phase.
    waits_at, waits_for
        By thread, the barrier (-1: none) and the phase that it waits for.
    true, voters
        By thread, the votes of the last barrier passed.
    """

    waits_at = PerThread(-1)
    waits_for, true, voters = PerThread(), PerThread(), PerThread()

    def __init__(self, chunk: Chunk, sanitizer: Sanitizer) -> None:
        self.chunk = chunk
        self.detector = sanitizer.detector
        ctas, threads = chunk.geometry.ctas, chunk.threads
        self.full = -(-chunk.threads_per_cta // 32) * 32  # threads of a CTA in whole warps
        self.arrived, self.expected, self.phase, self.last = np.zeros((4, ctas, BARRIERS), np.int64)
        self.lanes = np.zeros((threads // 32, BARRIERS), np.uint32)
        self.counted = np.zeros_like(self.lanes, np.bool_)
        self.votes = np.zeros((ctas, BARRIERS, 2), np.int64)
        self.idle = True  # True if no barrier is in use

    def arrive(self, barrier: Any, count: Any, wait: bool, predicate: np.ndarray | None = None) -> np.ndarray:
        """(T,) bool: who may go on after arriving at a barrier."""
        chunk, go = self.chunk, self.chunk.mask
        everybody = self.idle and wait and count is None and chunk.active is None
        is_uniform = everybody and np.min(barrier) == np.max(barrier) < BARRIERS
        if not is_uniform or predicate is not None:
            self.idle = False
            go = np.zeros(chunk.threads, np.bool_)
            counts = words(0 if count is None else count, chunk.threads)
            self._arrives(barrier)
            failure = _arrive(
                words(barrier, chunk.threads),
                counts,
                wait,
                chunk.mask,
                chunk.alive,
                chunk.mask if predicate is None else predicate,
                go,
                _State(*(getattr(self, name) for name in _State._fields)),
                self.full,
            )
            if failure:
                self._refuse(failure, barrier, counts)
            if self.detector is not None and wait and go.any():
                self.detector.acquire(NAMED, go, self._units(barrier), self.waits_for)
        elif self.detector is not None:
            self.detector.meet_ctas()
        return go

    def _units(self, barrier: Any) -> np.ndarray:
        """(T,) numbers of the barriers of all CTAs."""
        ctas = np.arange(self.chunk.threads) // self.chunk.group
        return np.asarray(ctas * BARRIERS + words(barrier, self.chunk.threads))

    def _arrives(self, barrier: Any) -> None:
        """The active threads that have not arrived yet hand on their clocks."""
        if self.detector is None:
            return
        new = self.chunk.mask & (self.waits_at == -1)
        which = np.minimum(words(barrier, self.chunk.threads), BARRIERS - 1)
        ctas = np.arange(self.chunk.threads) // self.chunk.group
        if not new.any():
            return
        units, phases = self._units(barrier), self.phase[ctas, which]
        self.detector.release(NAMED, new, units, phases)
        self.detector.count(
            NAMED,
            new,
            new,
            units,
            phases,
            lambda thread: (
                f"barrier {which[thread]} pairs warps in the order in which they come",
                "these warps meet, and others go on too early: give each group of warps a barrier of its own",
            ),
        )

    def waited_for(self, mask: np.ndarray) -> list[tuple[int, int]]:
        """CTA and number of the barriers that threads of `mask` wait at."""
        threads = np.flatnonzero(mask & (self.waits_at >= 0))
        return sorted({(int(t) // self.chunk.group, int(self.waits_at[t])) for t in threads})

    def recounted(self, cta: int, number: int) -> int:
        """Threads of the phase before, if the running phase expects another number; or 0."""
        last, wanted = int(self.last[cta, number]), int(self.expected[cta, number])
        return last if last != (self.full if wanted < 0 else wanted) else 0

    def arrive_counting(
        self, barrier: Any, count: Any, predicate: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrive and wait: who may go on, and the true predicates and threads of the barrier."""
        return self.arrive(barrier, count, True, predicate), self.true.copy(), self.voters.copy()

    def _refuse(self, failure: int, barrier: np.ndarray, counts: np.ndarray) -> NoReturn:
        code, thread = failure >> 32, failure & 0xFFFFFFFF
        if code == OVERRUN:
            raise EmulationError(self._overrun(thread // 32))
        which, count = int(np.broadcast_to(barrier, counts.shape)[thread]), int(counts[thread])
        who = self.chunk.describe(thread)
        raise EmulationError(
            {
                BAD_ID: f"barrier {which} does not exist: a CTA has barriers 0 to 15 ({who})",
                BAD_COUNT: f"barrier {which}: the thread count {count} is not a positive multiple of 32 "
                f"of at most {self.full} ({who})",
                MISMATCH: f"barrier {which}: {who} expects {count or 'all'} threads, those before it "
                "expected another number",
                TWICE: f"barrier {which}: {who} arrives a second time before the barrier completes",
            }[code]
        )

    def _overrun(self, warp: int) -> str:
        """Describe the barrier where more arrive than are expected, with `warp` the first too many."""
        cta = warp * 32 // self.chunk.group
        goals = self.expected[cta]
        which = int(np.argmax((goals > 0) & (self.arrived[cta] > goals)))
        wanted, first = int(goals[which]), cta * self.chunk.group // 32
        near = slice(first, first + self.full // 32)
        came = 32 * int(((self.lanes[near, which] > 0) | self.counted[near, which]).sum())
        thread = warp * 32 + int(np.argmax(self.chunk.alive[warp * 32 : warp * 32 + 32]))
        return (
            f"barrier {which}: {came} threads arrive, and {wanted} are expected: "
            f"{self.chunk.describe(thread)} is one too many; expect {came} if all are to meet, as "
            f"in `tc.barrier({which}, {came})`, or give each group of {wanted} a barrier of its own"
        )


@compiled
def _arrive(
    barrier: Any,
    counts: Any,
    wait: bool,
    active: Any,
    alive: Any,
    predicate: Any,
    go: Any,
    state: Any,
    full: int,
) -> int:
    """Let the active threads arrive; sets `go`. 0, or the error of a thread."""
    ctas = state.arrived.shape[0]
    group = active.size // ctas
    for thread in range(active.size):
        if not active[thread]:
            continue
        cta = thread // group
        which, count = int(barrier[thread]), int(counts[thread])
        if state.waits_at[thread] != -1:
            continue
        if which >= BARRIERS:
            return error_at(BAD_ID, thread)
        if count % 32 or count > full or (count == 0 and not wait):
            return error_at(BAD_COUNT, thread)
        goal = count if count else -1
        if state.expected[cta, which] == 0:
            state.expected[cta, which] = goal
        # A count of all threads of the CTA is the same as no count.
        elif state.expected[cta, which] != goal and state.expected[cta, which] + goal != full - 1:
            return error_at(MISMATCH, thread)
        bit = np.uint32(1) << np.uint32(thread % 32)
        if state.lanes[thread // 32, which] & bit or (state.counted[thread // 32, which] and not wait):
            return error_at(TWICE, thread)
        state.lanes[thread // 32, which] |= bit
        state.votes[cta, which, 0] += predicate[thread]
        state.votes[cta, which, 1] += 1
        if wait:
            state.waits_at[thread] = which
            state.waits_for[thread] = state.phase[cta, which]
        else:
            go[thread] = True
    for cta in range(ctas):
        for which in range(BARRIERS):
            if state.expected[cta, which]:
                failure = _settle(cta, which, alive, state, group, full)
                if failure:
                    return failure
    for thread in range(active.size):
        which = state.waits_at[thread]
        if active[thread] and which != -1 and state.phase[thread // group, which] > state.waits_for[thread]:
            state.waits_at[thread] = -1
            go[thread] = True
    return 0


@compiled
def _settle(cta: int, which: int, alive: Any, state: Any, group: int, full: int) -> int:
    """Count the warps whose threads have all arrived; complete the barrier when all warps have."""
    exited, elsewhere, expected = 0, False, state.expected[cta, which]
    goal = full if expected == -1 else expected
    for warp in range(cta * group // 32, (cta * group + full) // 32):
        living, stuck = np.uint32(0), True
        for lane in range(32):
            thread = warp * 32 + lane
            if alive[thread]:
                living |= np.uint32(1) << np.uint32(lane)
                waits = state.waits_at[thread] == which and state.waits_for[thread] == state.phase[cta, which]
                stuck = stuck and waits
        if living == 0:
            exited += 0 if state.counted[warp, which] else 32
        elif state.lanes[warp, which] != 0 and (state.lanes[warp, which] & living) == living:
            state.lanes[warp, which] = 0
            state.arrived[cta, which] += 32
            state.counted[warp, which] = True
            if state.arrived[cta, which] > goal:
                return error_at(OVERRUN, warp * 32)
        if living != 0 and not stuck:
            elsewhere = True
    here = state.arrived[cta, which]
    if expected == -1 or not elsewhere:
        here += exited
    if here >= goal:
        for thread in range(cta * group, (cta + 1) * group):
            if state.waits_at[thread] == which and state.waits_for[thread] == state.phase[cta, which]:
                state.true[thread], state.voters[thread] = (
                    state.votes[cta, which, 0],
                    state.votes[cta, which, 1],
                )
        state.votes[cta, which] = 0
        state.arrived[cta, which] = 0
        state.expected[cta, which] = 0
        state.phase[cta, which] += 1
        state.last[cta, which] = goal
        state.counted[cta * group // 32 : (cta + 1) * group // 32, which] = False
    return 0
