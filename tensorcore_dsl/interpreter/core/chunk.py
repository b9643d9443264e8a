"""Threads of a chunk of CTAs: activity, positions, and names for messages.

All threads of the chunk are columns of the same arrays. A *cohort* is a set of threads at one
position of the program.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import Divergence, Loc, listing
from tensorcore_dsl.interpreter.core.geometry import Geometry, axes_text, ranges
from tensorcore_dsl.interpreter.core.program import Program
from tensorcore_dsl.interpreter.core.report import Tally
from tensorcore_dsl.interpreter.core.threads import Masks
from tensorcore_dsl.isa import advice, classify
from tensorcore_dsl.isa.spec import Instruction

WARP, WARPGROUP = 32, 128


@dataclass
class Cohort:
    """Threads at one position.

    Attributes
    ----------
    rounds : int
        Time slices used up.
    waiting : bool
        The threads must wait.
    progress : int
        The chunk's progress when they began to wait.
    unit : int
        Not 0 when they wait for the other threads of their units.
    blocked : bool
        They execute a waiting instruction that has not let them pass, and will execute it again.
    budget : int
        Backward jumps left in the time slice that they have begun, 0 for none begun.
    """

    mask: np.ndarray
    rounds: int = 0
    waiting: bool = False
    progress: int = 0
    unit: int = 0
    blocked: bool = False
    budget: int = 0


class Positions:
    """Names of a chunk's threads and steps, for messages."""

    def __init__(self, program: Program, geometry: Geometry) -> None:
        self.program = program
        self.geometry = geometry
        self.group = geometry.group

    def loc(self, step: int) -> Loc | None:
        """The source line of a step."""
        return self.program.steps[step].loc

    def instruction(self, step: int) -> Instruction | None:
        """The instruction of a step; None for branches and copies of registers."""
        return self.program.steps[step].instr

    def describe(self, thread: int) -> str:
        """A thread: `thread 3 of CTA (1, 0)`."""
        g = self.geometry
        cta = self.cta_name(thread // self.group)
        return f"thread {axes_text(g.thread(thread), g.block)} of CTA {cta}"

    def cta_name(self, cta: int) -> str:
        """The index of a CTA of the chunk in the grid."""
        g = self.geometry
        name = axes_text(g.cta(cta * self.group), g.grid)
        return f"{name} of rank {g.device(cta)}" if g.devices > 1 else name

    def folded(self, texts: Iterable[tuple[int, str]]) -> list[str]:
        """Each different text once; the names of its CTAs replace its `{}`."""
        ctas_of: dict[str, list[int]] = {}
        for cta, text in texts:
            ctas_of.setdefault(text, []).append(cta)
        return [text.replace("{}", self._cta_names(ctas)) for text, ctas in ctas_of.items()]

    def _cta_names(self, ctas: list[int]) -> str:
        """`CTA 3`, `CTAs 0 to 7` for CTAs in a row, or `CTAs 0, 2, 5`."""
        if self.geometry.devices > 1:
            return self._cta_names_of_devices(ctas)
        names = [self.cta_name(cta) for cta in ctas]
        if len(names) == 1:
            return f"CTA {names[0]}"
        if ctas[-1] - ctas[0] == len(ctas) - 1:
            return f"CTAs {names[0]} to {names[-1]}"
        return f"CTAs {listing(names, 4)}"

    def _cta_names_of_devices(self, ctas: list[int]) -> str:
        """`CTAs 0, 1 of rank 2`, the ranks with the same CTAs together."""
        g = self.geometry
        ctas_of_rank: dict[int, list[str]] = {}
        for cta in ctas:
            name = axes_text(g.cta(cta * self.group), g.grid)
            ctas_of_rank.setdefault(int(g.device(cta)), []).append(name)
        ranks: dict[str, list[int]] = {}
        for rank, names in sorted(ctas_of_rank.items()):
            ranks.setdefault(f"CTA{'s' * (len(names) > 1)} {listing(names, 4)}", []).append(rank)
        texts = (f"{text} of rank{'s' * (len(of) > 1)} {ranges(np.array(of))}" for text, of in ranks.items())
        return " and ".join(texts)

    def unit_name(self, first: int, unit: int) -> str:
        """The warp or warpgroup that starts at thread `first`."""
        name = "warp" if unit == WARP else "warpgroup"
        cta = self.cta_name(first // self.group)
        return f"{name} {first % self.group // unit} of CTA {cta}"

    def warpgroup_name(self, group: int) -> str:
        """Warpgroup number `group` of the chunk."""
        return self.unit_name(group * WARPGROUP, WARPGROUP)


class Chunk(Positions, EagerDict):
    """State that all parts of a machine share.

    Attributes
    ----------
    active : array or None
        (T,) bool of the threads that execute the running step, None for all.
    mask
        The same, always an array, one of `masks`.
    here
        What follows from it.
    every_lane
        (T,) masks of all lanes of a warp.
    gone
        Threads that have exited or never existed.
    exited
        The same, None for nobody.
    finished
        Those that ran to the end of the kernel.
    exits
        How often threads have exited.
    cohorts : dict
        By position, without the running one.
    at_step
        The running step, where it is tracked.
    limit
        The position where the running cohort stops.
    progress
        Grows when waiting threads may be able to go on.
    reads, writes
        Accesses so far, to tell polling from work.
    unusual
        What PTX leaves open is decided in another way than by default: see `Mbarriers.done` and `elect`.
    """

    unusual = False

    def __init__(self, program: Program, geometry: Geometry, checks: bool, profile: bool = False) -> None:
        super().__init__(program, geometry)
        self.checks = checks
        self.threads = geometry.threads
        self.threads_per_cta = geometry.threads_per_cta
        self.tally = Tally(len(program.steps), profile)
        self.masks = Masks()
        self.all_threads = np.ones(self.threads, np.bool_)
        self.exits = 0
        self.alive = np.ones(self.threads, np.bool_)
        self.alive.reshape(-1, self.group)[:, self.threads_per_cta :] = False
        self.gone = ~self.alive
        self.exited = self.gone if self.gone.any() else None
        self.finished = np.zeros_like(self.gone)
        self.cohorts: dict[int, Cohort] = {}
        self.at_step = 0
        self.limit = 0
        self.aside = 0  # 1: the running cohort lets others run
        self.progress = 0
        self.reads = self.writes = 0
        self.narrow(self.alive.copy())

    @cached_property
    def every_lane(self) -> np.ndarray:
        return np.full(self.threads, 0xFFFFFFFF, np.uint32)

    def narrow(self, mask: np.ndarray) -> None:
        """Make these threads active."""
        here = self.here = self.masks.find(mask)
        self.mask, self.warps, self.lanes = here.threads, here.warps, here.lanes
        self.active: np.ndarray | None = None if self.lanes == self.threads else self.mask

    def whole_warps(self) -> np.ndarray | None:
        """(T // 32,) bool of active warps, None when all are; Divergence for parts of one."""
        if self.active is None:
            return None
        some, broken = self.here.units(WARP)
        if broken is not None:
            self.refuse_divergence(WARP * broken, WARP, self.active)
        return some

    def units(self, size: int) -> tuple[np.ndarray, int | None]:
        """Find the units of `size` threads with an active thread: (T // size,) bool.

        Also return the first of these units that is active only in part, or None.
        """
        return self.here.units(size)

    def exit(self) -> None:
        """End the active threads."""
        self.alive = self.alive & ~self.mask
        self.gone = ~self.alive
        self.exited = self.gone
        self.exits += 1
        self.progress += 1

    def step_aside(self) -> None:
        """End the time slice of the running cohort, so that others see its last writes."""
        self.aside, self.limit = 1, 0

    def account(self, space: str, verb: str, addresses: np.ndarray, mask: np.ndarray, size: int) -> None:
        """Count an access of `size` bytes by each thread of `mask`."""
        self.reads += verb == "load"
        self.writes += verb == "store"
        self.tally.access(self.at_step, space, verb, addresses, mask, size)

    def warps_text(self, mask: np.ndarray) -> str:
        """The warps of some threads, by number; CTAs with the same warps are named together."""
        lanes = mask.reshape(self.geometry.ctas, self.group // WARP, WARP)
        per_cta: np.ndarray = np.any(lanes, axis=2)
        return listing(
            self.folded(
                (int(cta), f"{{}} warps {ranges(np.flatnonzero(per_cta[cta]))}")
                for cta in np.flatnonzero(per_cta.any(axis=1))
            ),
            4,
        )

    def refuse_divergence(self, first: int, unit: int, mask: np.ndarray, at: int | None = None) -> NoReturn:
        """Raise Divergence: only a part of the unit that starts at thread `first` is in `mask`.

        at: the step where they are, if it is not the running one.
        """
        part = slice(first, first + unit)
        lanes, name = mask[part], "lanes" if unit == WARP else "threads"
        lines = [f"{name} {ranges(np.flatnonzero(lanes))} of {self.unit_name(first, unit)} are here"]
        rest = self.alive[part] & ~lanes
        for ended, what in (
            (self.finished[part], "have run to the end of the kernel"),
            (~self.alive[part] & ~self.finished[part], "have exited or do not exist"),
        ):
            if ended.any():
                lines.append(f"{name} {ranges(np.flatnonzero(ended))} {what}")
        for step, cohort in sorted(self.cohorts.items()):
            others = cohort.mask[part] & rest
            if others.any():
                rest = rest & ~others
                lines.append(f"{name} {ranges(np.flatnonzero(others))} wait at {self.loc(step)}")
        if rest.any():
            lines.append(f"{name} {ranges(np.flatnonzero(rest))} skip it, their guard is false")
        what = "a warp-wide instruction needs all 32 lanes: "
        instr = None if at is None else self.instruction(at)
        if instr is not None and classify.is_aligned(instr):
            what = f"{advice.called(instr.mnemonic)} needs all lanes of a warp that have not returned: "
        elif unit != WARP:
            what = "an instruction of warpgroups needs all four warps: "
        raise Divergence(what + "; ".join(lines), None if at is None else self.loc(at))
