"""Named barriers of CTAs (PTX manual 9.7.13.1), compiled.

A warp arrives when all of its threads that have not exited have executed a barrier instruction on
the barrier. A barrier completes when the warps that arrived make up the expected count; without a
count all warps of the CTA are expected, and those that have exited count as arrived. A counted
barrier that only exited threads could still complete is released too, as the manual promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.gather import compiled

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine
    from tensorcore_dsl.interpreter.special import Geometry

BARRIERS = 16
BAD_ID, BAD_COUNT, MISMATCH, OVERRUN, TWICE = range(1, 6)
_FREE = -1


class Barriers:
    """The sixteen barriers of each CTA of a chunk."""

    def __init__(self, geometry: Geometry) -> None:
        ctas, group = geometry.ctas, geometry.group
        self.full = -(-geometry.threads_per_cta // 32) * 32  # threads of a CTA in whole warps
        self.arrived = np.zeros((ctas, BARRIERS), np.int64)  # threads, in whole warps
        self.expected = np.zeros((ctas, BARRIERS), np.int64)  # 0: nobody has arrived yet
        self.phase = np.zeros((ctas, BARRIERS), np.int64)
        self.lanes = np.zeros((ctas * group // 32, BARRIERS), np.uint32)  # of warps still arriving
        self.counted = np.zeros_like(self.lanes, np.bool_)  # warps that arrived in this phase
        self.waits_at = np.full(ctas * group, _FREE, np.int64)  # barrier a thread waits at
        self.waits_for = np.zeros(ctas * group, np.int64)  # the phase it waits to see completed
        self.votes = np.zeros((ctas, BARRIERS, 2), np.int64)  # true predicates, threads, so far
        self.true = np.zeros(ctas * group, np.int64)  # the same, of the barrier a thread passed
        self.met = np.zeros(ctas * group, np.int64)
        self.idle = True

    def arrive(
        self,
        ctx: Machine,
        barrier: Any,
        count: Any,
        wait: bool,
        predicate: np.ndarray | None = None,
    ) -> np.ndarray:
        """Who may go on. With a `predicate`, `true` and `met` hold the counts for them."""
        everybody = self.idle and wait and ctx.active is None
        if everybody and count is None and predicate is None and _one(barrier):
            return ctx.mask
        self.idle = False
        go = np.zeros(ctx.threads, np.bool_)
        counts = np.zeros(ctx.threads, np.uint32) if count is None else _all_threads(count, ctx)
        wrong = _arrive(
            _all_threads(barrier, ctx), counts, wait, ctx.mask, ctx.alive,
            ctx.mask if predicate is None else predicate, go, self.arrived, self.expected,
            self.phase, self.lanes, self.counted, self.waits_at, self.waits_for, self.votes,
            self.true, self.met, self.full,
        )  # fmt: skip
        if wrong:
            _refuse(ctx, wrong, barrier, counts)
        return go


def _one(barrier: Any) -> bool:
    """All threads name the same barrier, and it exists."""
    return bool(np.min(barrier) == np.max(barrier) < BARRIERS)


def _all_threads(values: Any, ctx: Machine) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(values, (ctx.threads,)), dtype=np.uint32)


def _refuse(ctx: Machine, wrong: int, barrier: np.ndarray, counts: np.ndarray) -> None:
    code, thread = wrong >> 32, wrong & 0xFFFFFFFF
    which, count = int(np.broadcast_to(barrier, counts.shape)[thread]), int(counts[thread])
    who = ctx.describe(thread)
    raise EmulationError({
        BAD_ID: f"barrier {which} does not exist: a CTA has barriers 0 to 15 ({who})",
        BAD_COUNT: f"barrier {which}: the thread count {count} is no positive multiple of 32 of "
        f"at most {-(-ctx.threads_per_cta // 32) * 32} ({who})",
        MISMATCH: f"barrier {which}: {who} expects {count or 'all'} threads, those before it "
        "expected another number",
        OVERRUN: f"barrier {which}: more threads arrive than were expected ({who})",
        TWICE: f"barrier {which}: {who} arrives a second time before the barrier completes",
    }[code])  # fmt: skip


@compiled
def _arrive(
    barrier: Any, counts: Any, wait: bool, active: Any, alive: Any, predicate: Any, go: Any,
    arrived: Any, expected: Any, phase: Any, lanes: Any, counted: Any, waits_at: Any,
    waits_for: Any, votes: Any, true: Any, met: Any, full: int,
) -> int:  # fmt: skip
    ctas = arrived.shape[0]
    group = active.size // ctas
    for thread in range(active.size):
        if not active[thread]:
            continue
        cta = thread // group
        which, count = types.int64(barrier[thread]), types.int64(counts[thread])
        if waits_at[thread] != -1:
            continue
        if which >= 16:
            return 1 << 32 | thread
        if count % 32 or count > full or (count == 0 and not wait):
            return 2 << 32 | thread
        goal = count if count else -1
        if expected[cta, which] == 0:
            expected[cta, which] = goal
        elif expected[cta, which] != goal and expected[cta, which] + goal != full - 1:
            return 3 << 32 | thread  # a count of all threads is as good as none
        bit = types.uint32(1) << types.uint32(thread % 32)
        if lanes[thread // 32, which] & bit:
            return 5 << 32 | thread
        lanes[thread // 32, which] |= bit
        votes[cta, which, 0] += predicate[thread]
        votes[cta, which, 1] += 1
        if wait:
            waits_at[thread] = which
            waits_for[thread] = phase[cta, which]
        else:
            go[thread] = True
    for cta in range(ctas):
        for which in range(16):
            if expected[cta, which]:
                wrong = _settle(
                    cta, which, alive, arrived, expected, phase, lanes, counted, waits_at,
                    waits_for, votes, true, met, group, full,
                )  # fmt: skip
                if wrong:
                    return wrong
    for thread in range(active.size):
        which = waits_at[thread]
        if active[thread] and which != -1 and phase[thread // group, which] > waits_for[thread]:
            waits_at[thread] = -1
            go[thread] = True
    return 0


@compiled
def _settle(
    cta: int, which: int, alive: Any, arrived: Any, expected: Any, phase: Any, lanes: Any,
    counted: Any, waits_at: Any, waits_for: Any, votes: Any, true: Any, met: Any, group: int,
    full: int,
) -> int:  # fmt: skip
    """Count the warps that are complete; complete the barrier when all are there."""
    exited, elsewhere = 0, False
    for warp in range(cta * group // 32, (cta * group + full) // 32):
        living, stuck = types.uint32(0), True
        for lane in range(32):
            thread = warp * 32 + lane
            if alive[thread]:
                living |= types.uint32(1) << types.uint32(lane)
                here = waits_at[thread] == which and waits_for[thread] == phase[cta, which]
                stuck = stuck and here
        if living == 0:
            exited += 0 if counted[warp, which] else 32
        elif lanes[warp, which] != 0 and (lanes[warp, which] & living) == living:
            lanes[warp, which] = 0
            arrived[cta, which] += 32
            counted[warp, which] = True
        if living != 0 and not stuck:
            elsewhere = True
    goal, here = expected[cta, which], arrived[cta, which]
    if goal == -1 or not elsewhere:
        here += exited
    if goal == -1:
        goal = full
    if arrived[cta, which] > goal:
        return 4 << 32 | (cta * group)
    if here >= goal:
        for thread in range(cta * group, (cta + 1) * group):
            if waits_at[thread] == which and waits_for[thread] == phase[cta, which]:
                true[thread], met[thread] = votes[cta, which, 0], votes[cta, which, 1]
        votes[cta, which] = 0
        arrived[cta, which] = 0
        expected[cta, which] = 0
        phase[cta, which] += 1
        counted[cta * group // 32 : (cta + 1) * group // 32, which] = False
    return 0
