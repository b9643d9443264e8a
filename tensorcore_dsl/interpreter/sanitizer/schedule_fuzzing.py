"""Schedules drawn from a seed, to find races that the default schedule never shows.

By default the machine runs the cohort that is furthest behind, the same way each time. Here warps
have random priorities, drawn for single warps or for groups of four. Of the warps that are ready,
those with the highest priority run, sometimes only for a random number of steps. Priorities change
from time to time, so that a warp that was overtaken may overtake others later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk, Cohort

SHORT = 32  # steps of the longest short time slice
UNLIMITED = 1 << 30
READY = -1


def seed_of(order: Any) -> int | None:
    """The seed in the argument `order` of a launch: a whole number, 0 or more; None for none.

    True and False are refused: they would be the seeds 1 and 0, while False reads like "no order".
    """
    if order is None:
        return None
    if isinstance(order, bool) or not isinstance(order, (int, np.integer)) or order < 0:
        raise ArgumentError(
            f"order {order!r} is no seed: a whole number, 0 or more, is needed, or None for the "
            "emulator's own order"
        )
    return int(order)


class ScheduleFuzzer:
    """Chooses who runs next.

    blocked: (T,) the chunk's progress when a thread began to wait, READY if it does not wait.
    group: warps that share a priority. retries: the running cohort is only asked whether it may
    go on.
    """

    def __init__(self, seed: tuple[int, int], threads: int) -> None:
        self.random = np.random.default_rng(seed)
        self.blocked = np.full(threads, READY)
        self.warps = threads // WARP
        self.group = int(self.random.choice((1, 4)))
        self.levels = int(self.random.choice((2, 4, UNLIMITED)))
        self.priority = self._draw()
        self.retries = False

    def _draw(self) -> np.ndarray:
        drawn = self.random.integers(0, self.levels, -(-self.warps // self.group))
        return np.repeat(drawn, self.group)[: self.warps]

    def wait(self, mask: np.ndarray, progress: int) -> None:
        """These threads may not go on before some other thread has."""
        self.blocked[mask] = progress

    def slice_length(self) -> int:
        """Steps that a cohort runs before others may."""
        if self.retries:
            self.retries = False
            return 0
        return int(self.random.integers(1, SHORT)) if self.random.random() < 0.25 else UNLIMITED

    def end_slice(self, mask: np.ndarray) -> None:
        """Sometimes draw new priorities after a time slice of these threads."""
        chance = self.random.random()
        if chance < 0.25:
            warps, drawn = _warps(mask), self._draw()
            # Redrawing all of them helps warps that starve behind a polling one.
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
        """Of the ready warps, those of the highest priority at one position."""
        candidates = []
        for at, cohort in chunk.cohorts.items():
            ready = _warps(cohort.mask & (self.blocked == READY))
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
        places = [at for at, cohort in chunk.cohorts.items() if (cohort.mask & waiting).any()]
        at = places[int(self.random.integers(len(places)))]
        self.retries = True
        return at, self._take(chunk, at, _warps(chunk.cohorts[at].mask & waiting))

    def _take(self, chunk: Chunk, at: int, warps: np.ndarray) -> Cohort:
        """Remove the threads of some warps from a cohort, whole warpgroups where it needs them."""
        cohort = chunk.cohorts.pop(at)
        unit = max(cohort.unit // WARP, 1)
        units = np.asarray(warps.reshape(-1, unit).any(axis=1))
        taken = cohort.mask & np.repeat(units, unit * WARP)
        self.blocked[taken] = READY
        left = cohort.mask & ~taken
        if left.any():
            chunk.cohorts[at] = replace(cohort, mask=left)
        return replace(cohort, mask=taken)


def _warps(mask: np.ndarray) -> np.ndarray:
    return np.asarray(mask.reshape(-1, WARP).any(axis=1))
