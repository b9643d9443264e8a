"""Run a `Schedule`: warps one after the other, each until it must wait, except for its switches.

The running warp goes on until it waits, ends, polls in vain or stops at a switch. Then the first of
the others, by the base order, that can go on does. Threads that have stopped at a switch go on when
nobody else can.
"""

from __future__ import annotations

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk, Cohort
from tensorcore_dsl.interpreter.core.geometry import ranges
from tensorcore_dsl.interpreter.scheduling.orders import (
    READY,
    Event,
    Schedule,
    Switch,
    distances,
    is_point,
    take,
    warps_of,
)

POLLING_POINTS = 64  # points in a row without a write, after which a warp counts as polling
MAX_POINTS = 1 << 14  # points in a row after which a warp lets others run, whatever it does
MAX_IDLE_TURNS = 32  # rounds of all warps without a write, after which none will go on


class SwitchedSchedule:
    """Chooses who runs next in one chunk.

    By thread: blocked: the chunk's progress when it began to wait, READY if it does not;

    Attributes
    ----------
    counts
        Points that it has started.
    stopped
        The number of the switch at which it stands, 0 for none.
    polling
        It has given way to others.
    rank
        By warp, its position in the base order.
    length, still
        Slices of the running warp, and its last slices without a write.
    turns
        How often everybody has polled since the last write.
    """

    def __init__(self, schedule: Schedule, chunk: Chunk) -> None:
        self.chunk, self.journal = chunk, schedule.journal
        if self.journal is not None:
            self.journal.chunks[chunk.geometry.first] = chunk
        self.points = [is_point(step) for step in chunk.program.steps]
        self.next_point = distances(self.points)
        self.blocked = np.full(chunk.threads, READY)
        self.counts, self.stopped = np.zeros((2, chunk.threads), np.int64)
        self.polling = np.zeros(chunk.threads, np.bool_)
        self.rank = self._ranks(schedule.base)
        self.pending = [s for s in map(self._start_of, schedule.switches) if s is not None]
        self.current = -1  # the warp that runs
        self.stops = 0  # switches that have been reached
        self.still = self.turns = self.length = 0
        self.writes = -1

    def _ranks(self, base: str) -> np.ndarray:
        warps = self.chunk.threads // WARP
        if base.startswith("drawn"):
            seed = int(base.removeprefix("drawn")), self.chunk.geometry.first
            return np.random.default_rng(seed).permutation(warps)
        # The devices one after the other.
        g = self.chunk.geometry
        order = np.argsort(g.device(np.arange(warps) * WARP // g.group), kind="stable")
        ranks = np.argsort(order)
        return ranks[::-1] if base == "down" else ranks

    def _start_of(self, switch: Switch) -> tuple[int, np.ndarray] | None:
        """The point and the threads of a switch; None if they are in another chunk."""
        geometry = self.chunk.geometry
        cta = switch.cta - geometry.first
        if not 0 <= cta < geometry.ctas or switch.warp * WARP >= geometry.group:
            return None
        start = cta * geometry.group + switch.warp * WARP
        threads = np.arange(start + switch.lanes[0], start + switch.lanes[1] + 1)
        return switch.point, threads

    def wait(self, mask: np.ndarray, progress: int) -> None:
        self.blocked[mask] = progress

    def limit(self, at: int) -> int:
        return int(self.next_point[at])

    def end_slice(self, mask: np.ndarray) -> None:
        writes = self.chunk.writes
        self.still = self.still + 1 if writes == self.writes else 0
        if writes != self.writes:
            self.turns, self.writes = 0, writes
        self.length += 1
        if self.still > POLLING_POINTS or self.length > MAX_POINTS:
            self.still, self.current = 0, -1
            self.polling |= mask

    def select(self, chunk: Chunk) -> tuple[int, Cohort] | None:
        while True:
            choice = self._choose(chunk)
            if choice is None:
                if not self._relent():
                    return None
                continue
            at, warp = choice
            taken = self._members(chunk.cohorts[at], warp)
            if self.points[at] and self._start_point(at, taken):
                continue
            if warp != self.current:
                self.current, self.length, self.still = warp, 0, 0
            self.blocked[taken] = READY
            return at, take(chunk, at, taken)

    def _choose(self, chunk: Chunk) -> tuple[int, int] | None:
        """A position and a warp that may go on there: the running one, else the first by rank.

        The first position of a warp's threads that do not wait.
        """
        best: tuple[bool, int, bool, int, int] | None = None
        free = ~(self.polling | (self.stopped > 0))
        ready = free & (self.blocked == READY)
        retried = free & ~ready & (self.blocked < chunk.progress)
        for at, cohort in chunk.cohorts.items():
            for waits, threads in ((False, ready), (True, retried)):
                for warp in np.flatnonzero(warps_of(cohort.mask & threads)):
                    is_switch = waits or warp != self.current
                    key = (is_switch, int(self.rank[warp]), waits, at, int(warp))
                    best = key if best is None else min(best, key)
        return None if best is None else best[3:]

    def _members(self, cohort: Cohort, warp: int) -> np.ndarray:
        """The threads of a warp in a cohort; of its warpgroup, where the cohort needs one."""
        unit = max(cohort.unit, WARP)
        first = warp * WARP // unit * unit
        taken = np.zeros_like(cohort.mask)
        part = slice(first, first + unit)
        taken[part] = cohort.mask[part] & (self.stopped[part] == 0)
        return taken

    def _start_point(self, at: int, taken: np.ndarray) -> bool:
        """Count a point that these threads come to; True if some of them stop there instead."""
        new = taken & (self.blocked == READY)
        for number, (point, threads) in enumerate(self.pending):
            if (new[threads] & (self.counts[threads] + 1 == point)).any():
                del self.pending[number]
                self.stops += 1
                self.stopped[threads] = self.stops
                lanes = "" if len(threads) == WARP else ranges(threads % WARP)
                self._note("stop", int(threads[0]), self.stops, at, lanes)
                return True
        self.counts[new] += 1
        if self.journal is not None:
            for warp in np.flatnonzero(warps_of(new)):
                thread = int(warp) * WARP + int(np.argmax(new[warp * WARP : warp * WARP + WARP]))
                self._note("point", thread, int(self.counts[thread]), at)
        return False

    def _relent(self) -> bool:
        """Only polling warps can go on: end the first stop, or let them poll for a while if none stops."""
        held = self.stopped > 0
        if not held.any():
            self.turns += 1
            again = self.turns < MAX_IDLE_TURNS and bool(self.polling.any())
            self.polling[:] = False
            return again
        number = int(self.stopped[held].min())
        first = self.stopped == number
        self.stopped[first] = 0
        at = next((at for at, c in self.chunk.cohorts.items() if (c.mask & first).any()), 0)
        self._note("go", int(np.argmax(first)), number, at)
        return True

    def _note(self, kind: str, thread: int, number: int, at: int, lanes: str = "") -> None:
        if self.journal is not None:
            event = Event(kind, self.chunk.geometry.first, thread, number, at, lanes)
            self.journal.events.append(event)
