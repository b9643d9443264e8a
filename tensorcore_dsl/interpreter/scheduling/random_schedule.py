"""Schedules drawn from a seed, to find races that the default schedule never shows.

By default the machine runs the cohort that is furthest behind, the same way each time. Here warps
have random priorities, drawn for single warps or for groups of four. The ready warps with the
highest priority run, sometimes only for a random number of steps. Priorities change
from time to time, so that a warp that was overtaken may overtake others later. Every fourth seed
(3, 7, 11, ...) also splits warps: at accesses to memory some lanes run ahead of the others, as the
GPU may run them, up to the next instruction that the lanes execute together.
"""

from __future__ import annotations

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk, Cohort
from tensorcore_dsl.interpreter.scheduling.orders import READY, distances, is_divisible, take, warps_of

MAX_SHORT_STEPS = 32  # steps of the longest short time slice
UNLIMITED = 1 << 30
SPLITTING_SEEDS = 4  # one of this many seeds splits warps into lanes


class RandomSchedule:
    """Chooses who runs next.

    Attributes
    ----------
    blocked
        (T,) the chunk's progress when a thread began to wait, READY if it does not wait.
    group
        Warps that share a priority.
    retries
        The running cohort is only asked whether it may go on.
    lanes
        Draws which lanes run ahead; None: warps stay whole.
    """

    def __init__(self, seed: int, chunk: Chunk) -> None:
        drawn = seed, chunk.geometry.first
        self.random = np.random.default_rng(drawn)
        self.lanes = None
        if seed % SPLITTING_SEEDS == SPLITTING_SEEDS - 1:
            self.lanes = np.random.default_rng((*drawn, 1))
            self.divisible = [is_divisible(step) for step in chunk.program.steps]
            self.next_divisible = distances(self.divisible)
        self.blocked = np.full(chunk.threads, READY)
        self.warps = chunk.threads // WARP
        self.group = int(self.random.choice((1, 4)))
        # On several devices, some seeds let one of them run ahead of the others.
        g = chunk.geometry
        ahead = g.devices > 1 and self.random.random() < 0.5
        self.device = g.device(np.arange(self.warps) * WARP // g.group) if ahead else None
        self.levels = int(self.random.choice((2, 4, UNLIMITED)))
        self.priority = self._draw()
        self.retries = False

    def _draw(self) -> np.ndarray:
        drawn = self.random.integers(0, self.levels, -(-self.warps // self.group))
        if self.device is not None:
            return np.asarray(drawn[self.device % len(drawn)])
        return np.repeat(drawn, self.group)[: self.warps]

    def wait(self, mask: np.ndarray, progress: int) -> None:
        """These threads may not go on before some other thread has."""
        self.blocked[mask] = progress

    def limit(self, at: int) -> int:
        """The position at which a cohort that is at `at` lets others run."""
        if self.retries:
            self.retries = False
            return at
        short = self.random.random() < 0.25
        limit = at + (int(self.random.integers(1, MAX_SHORT_STEPS)) if short else UNLIMITED)
        if self.lanes is not None and self.lanes.random() < 0.5:
            limit = min(limit, int(self.next_divisible[at]))
        return limit

    def end_slice(self, mask: np.ndarray) -> None:
        """Sometimes draw new priorities after a time slice of these threads."""
        chance = self.random.random()
        if chance < 0.25:
            warps, drawn = warps_of(mask), self._draw()
            # Redrawing all of them helps warps that starve after a polling one.
            everybody = chance < 0.03
            self.priority = np.where(warps | everybody, drawn, self.priority)

    def select(self, chunk: Chunk) -> tuple[int, Cohort] | None:
        """The position to run and the threads there; the rest of that cohort stays.

        None: all wait. Threads that wait are retried from time to time, all at one position.
        """
        waiting = (self.blocked != READY) & (self.blocked < chunk.progress)
        retry = waiting.any() and self.random.random() < 0.125
        choice = None if retry else self._highest(chunk)
        if choice is None and waiting.any():
            return self._retry(chunk, waiting)
        return choice

    def _highest(self, chunk: Chunk) -> tuple[int, Cohort] | None:
        """Select the ready warps of the highest priority at one position."""
        candidates = []
        for at, cohort in chunk.cohorts.items():
            ready = warps_of(cohort.mask & (self.blocked == READY))
            if ready.any():
                candidates.append((int(self.priority[ready].max()), at, ready))
        if not candidates:
            return None
        top = max(priority for priority, _, _ in candidates)
        best = [(at, ready) for priority, at, ready in candidates if priority == top]
        at, ready = best[int(self.random.integers(len(best)))]
        return at, self._take(chunk, at, ready & (self.priority == top))

    def _retry(self, chunk: Chunk, waiting: np.ndarray) -> tuple[int, Cohort]:
        """Waiting threads at one position, for one step."""
        positions = [at for at, cohort in chunk.cohorts.items() if (cohort.mask & waiting).any()]
        at = positions[int(self.random.integers(len(positions)))]
        self.retries = True
        return at, self._take(chunk, at, warps_of(chunk.cohorts[at].mask & waiting))

    def _take(self, chunk: Chunk, at: int, warps: np.ndarray) -> Cohort:
        """Remove the threads of some warps from a cohort, whole warpgroups where it needs them."""
        cohort = chunk.cohorts[at]
        unit = max(cohort.unit // WARP, 1)
        units = np.asarray(warps.reshape(-1, unit).any(axis=1))
        taken = cohort.mask & np.repeat(units, unit * WARP)
        if self.lanes is not None and self.divisible[at] and not self.retries:
            taken = self._some_lanes(self.lanes, taken)
        self.blocked[taken] = READY
        return take(chunk, at, taken)

    def _some_lanes(self, random: np.random.Generator, taken: np.ndarray) -> np.ndarray:
        """Half of the time, the threads in a random part of each warp; else all."""
        if random.random() < 0.5:
            return taken
        first, last = np.sort(random.integers(0, WARP, 2))
        part = np.zeros(WARP, np.bool_)
        part[first : last + 1] = True
        lanes = taken.reshape(-1, WARP)
        inside = lanes & part
        there: np.ndarray = np.any(inside, axis=1, keepdims=True)
        return np.where(there, inside, lanes).reshape(-1)
