"""Orders of threads other than the scheduler's own, drawn from a seed.

By itself the machine runs whoever is furthest behind, the same way each time: good for speed, but
a race may always come out well. Here warps have priorities, drawn alone or four at a time. Of the
warps that may go on, those of the highest priority run, at times only to a position drawn too;
priorities change now and then, so that a warp that others overtook may in turn fall behind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcore_dsl.errors import ArgumentError

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Cohort, Machine

WARP = 32
SHORT = 32  # positions of a stretch that is cut short
FAR = 1 << 30
READY = -1


def seed_of(order: Any) -> int | None:
    """The seed that a caller asks for: a whole number, 0 or more; None is the machine's own order.

    True and False are refused: they would be the seeds 1 and 0, and False not the own order.
    """
    if order is None:
        return None
    if isinstance(order, bool) or not isinstance(order, (int, np.integer)) or order < 0:
        raise ArgumentError(
            f"order {order!r} is no seed: a whole number, 0 or more, is needed, or None for the "
            "emulator's own order"
        )
    return int(order)


class Order:
    """Who runs next. Of T threads, `asked` (T,) is the machine's progress when one had to wait."""

    def __init__(self, seed: tuple[int, int], threads: int) -> None:
        self.random = np.random.default_rng(seed)
        self.asked = np.full(threads, READY)
        self.warps = threads // WARP
        self.together = int(self.random.choice((1, 4)))
        self.levels = int(self.random.choice((2, 4, FAR)))
        self.priority = self._draw()
        self.asks = False  # who runs is asked only whether it may go on

    def _draw(self) -> np.ndarray:
        drawn = self.random.integers(0, self.levels, -(-self.warps // self.together))
        return np.repeat(drawn, self.together)[: self.warps]

    def wait(self, mask: np.ndarray, progress: int) -> None:
        """Threads that may not go on before somebody else has."""
        self.asked[mask] = progress

    def stretch(self) -> int:
        """How many positions a cohort runs before others may."""
        if self.asks:
            self.asks = False
            return 0
        return int(self.random.integers(1, SHORT)) if self.random.random() < 0.25 else FAR

    def step_back(self, mask: np.ndarray) -> None:
        """Who has run for a while may get another priority, so that nobody waits for ever."""
        chance = self.random.random()
        if chance < 0.25:
            warps, drawn = _of_warps(mask), self._draw()
            everybody = chance < 0.03  # else who polls may keep those of the lowest waiting
            self.priority = np.where(warps | everybody, drawn, self.priority)

    def select(self, machine: Machine) -> tuple[int, Cohort] | None:
        """The position to run and threads there; the others of the cohort stay. None: all wait.

        Those who had to wait are asked again now and then, all that stand at one position.
        """
        waited = (self.asked != READY) & (self.asked < machine.progress)
        if waited.any() and self.random.random() < 0.125:
            return self._asked(machine, waited)
        found = self._highest(machine)
        if found is None and waited.any():
            return self._asked(machine, waited)
        return found

    def _highest(self, machine: Machine) -> tuple[int, Cohort] | None:
        """Of the warps that need not wait, those of the highest priority at one position."""
        found = []
        for at, cohort in machine.cohorts.items():
            ready = _of_warps(cohort.mask & (self.asked == READY))
            if ready.any():
                found.append((int(self.priority[ready].max()), at, ready))
        if not found:
            return None
        top = max(priority for priority, _, _ in found)
        best = [(at, ready) for priority, at, ready in found if priority == top]
        at, ready = best[int(self.random.integers(len(best)))]
        return at, self._taken(machine, at, ready & (self.priority == top))

    def _asked(self, machine: Machine, waited: np.ndarray) -> tuple[int, Cohort]:
        """Those at one position who had to wait, for one step."""
        places = [at for at, cohort in machine.cohorts.items() if (cohort.mask & waited).any()]
        at = places[int(self.random.integers(len(places)))]
        self.asks = True
        return at, self._taken(machine, at, _of_warps(machine.cohorts[at].mask & waited))

    def _taken(self, machine: Machine, at: int, warps: np.ndarray) -> Cohort:
        """The threads of some warps, and of their warpgroups where these must run together."""
        cohort = machine.cohorts.pop(at)
        unit = max(cohort.unit // WARP, 1)
        units = np.asarray(warps.reshape(-1, unit).any(axis=1))
        taken = cohort.mask & np.repeat(units, unit * WARP)
        self.asked[taken] = READY
        left = cohort.mask & ~taken
        if left.any():
            machine.cohorts[at] = replace(cohort, mask=left)
        return replace(cohort, mask=taken)


def _of_warps(mask: np.ndarray) -> np.ndarray:
    return np.asarray(mask.reshape(-1, WARP).any(axis=1))
