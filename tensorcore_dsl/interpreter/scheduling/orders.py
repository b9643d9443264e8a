"""The argument `order` of a launch: a seed, or a schedule as `kernel.explore` prints it.

A schedule runs warps one after the other, each until it must wait. It stops some warps on the way,
so that all others overtake them. Its text is `up b0w2@17 b1w0l0-15@4`: the order of warps, then one
switch for each stop. `b0w2@17`: warp 2 of CTA 0 stops before the 17th instruction, counted from
1, by which it accesses memory or synchronises. `l0-15`: only these lanes of the warp stop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk, Cohort
from tensorcore_dsl.interpreter.core.program import Step
from tensorcore_dsl.isa import classify
from tensorcore_dsl.isa.effects import CONVERGENT_EFFECTS

READY = -1
_BASE = re.compile(r"up|down|drawn\d{1,9}")
_SWITCH = re.compile(r"b(\d{1,9})w(\d{1,2})(?:l(\d{1,2})(?:-(\d{1,2}))?)?@(\d{1,9})")


@dataclass(frozen=True)
class Switch:
    """A warp, or its lanes from the first to the last, stops before its `point`th point.

    Attributes
    ----------
    cta : int
        The number of the CTA in the launch, x fastest.
    point : int
        Counted from 1.
    """

    cta: int
    warp: int
    point: int
    lanes: tuple[int, int] = (0, WARP - 1)

    @property
    def whole(self) -> bool:
        return self.lanes == (0, WARP - 1)

    def __str__(self) -> str:
        first, last = self.lanes
        lanes = "" if self.whole else f"l{first}" if first == last else f"l{first}-{last}"
        return f"b{self.cta}w{self.warp}{lanes}@{self.point}"


class Event(NamedTuple):
    """Something that happened under a schedule.

    Attributes
    ----------
    kind : str
        "point": the warp of `thread` starts `step`, its `number`th point. "stop", "go": threads from
        `thread` on stop before `step`, or go on there, at the `number`th stop.
    chunk : int
        Its first CTA.
    lanes : str
        Those that stop, if they are not the whole warp.
    """

    kind: str
    chunk: int
    thread: int
    number: int
    step: int
    lanes: str = ""


@dataclass
class Journal:
    """Record of a run under a schedule. chunks: by their first CTA."""

    events: list[Event] = field(default_factory=list)
    chunks: dict[int, Chunk] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """Warps run in the order `base`, each until it must wait or a switch stops it.

    base: "up" (of the warps that can run, the one with the lowest number), "down" (the highest) or
    "drawn7" (numbers drawn from the seed 7).
    """

    base: str = "up"
    switches: tuple[Switch, ...] = ()
    journal: Journal | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return " ".join((self.base, *map(str, self.switches)))

    @classmethod
    def parse(cls, text: str) -> Schedule | None:
        """The schedule that is written as `text`; None if it is none."""
        base, *words = text.split() or [""]
        matches = [_SWITCH.fullmatch(word) for word in words]
        if not _BASE.fullmatch(base):
            return None
        switches = []
        for match in matches:
            if match is None:
                return None
            cta, warp, point = int(match[1]), int(match[2]), int(match[5])
            first = int(match[3] or 0)
            last = int(match[4] or match[3] or WARP - 1)
            if not (warp < 1024 // WARP and first <= last < WARP and point):
                return None
            switches.append(Switch(cta, warp, point, (first, last)))
        return cls(base, tuple(switches))


Order = int | Schedule


def order_of(order: Any) -> Order | None:
    """The argument `order` of a launch: a seed, a schedule or its text; None for none.

    True and False are refused: they would be the seeds 1 and 0, while False reads like "no order".
    """
    if order is None or isinstance(order, Schedule):
        return order
    schedule = Schedule.parse(order) if isinstance(order, str) else None
    if schedule is not None:
        return schedule
    if isinstance(order, bool) or not isinstance(order, (int, np.integer)) or order < 0:
        raise ArgumentError(
            f"order {order!r} is not a seed: a whole number, 0 or more, is needed, a schedule as "
            "kernel.explore prints it, such as 'up b0w2@17', or None for the emulator's own order"
        )
    return int(order)


def is_unusual(order: Order | None) -> bool:
    """True if an order decides what PTX leaves open in another way than the default order."""
    if isinstance(order, Schedule):
        return order.base != "up"
    return order is not None and order % 2 == 1


class Scheduler(Protocol):
    """Chooses which threads of a chunk run next."""

    def wait(self, mask: np.ndarray, progress: int) -> None:
        """These threads may not go on before some other thread has."""

    def limit(self, at: int) -> int:
        """The position at which a cohort that is at `at` lets others run."""

    def end_slice(self, mask: np.ndarray) -> None:
        """These threads have run, and do not wait."""

    def select(self, chunk: Chunk) -> tuple[int, Cohort] | None:
        """The position to run and the threads there; the rest of that cohort stays.

        None: all wait.
        """


def is_point(step: Step) -> bool:
    """True if a step accesses memory or synchronises, so that others can tell when it runs."""
    instr = step.instr
    return instr is not None and (classify.accesses_memory(instr) or classify.is_synchronisation(instr))


def is_divisible(step: Step) -> bool:
    """True if the lanes of a warp may execute a point at different times."""
    if step.instr is None or classify.is_aligned(step.instr):
        return False
    return is_point(step) and not step.instr.effects & CONVERGENT_EFFECTS


def distances(flags: list[bool]) -> np.ndarray:
    """By position, the first position from there on where a flag is set; the end if none is."""
    nearest_flags, nearest = np.empty(len(flags) + 1, np.int64), len(flags)
    nearest_flags[-1] = nearest
    for at in range(len(flags) - 1, -1, -1):
        nearest = at if flags[at] else nearest
        nearest_flags[at] = nearest
    return nearest_flags


def take(chunk: Chunk, at: int, taken: np.ndarray) -> Cohort:
    """Remove threads from the cohort at a position; returns them as a cohort."""
    cohort = chunk.cohorts.pop(at)
    left = cohort.mask & ~taken
    if left.any():
        chunk.cohorts[at] = replace(cohort, mask=left)
    return replace(cohort, mask=taken)


def warps_of(mask: np.ndarray) -> np.ndarray:
    """(T // 32,) bool of the warps that have threads in a mask."""
    return np.asarray(mask.reshape(-1, WARP).any(axis=1))
