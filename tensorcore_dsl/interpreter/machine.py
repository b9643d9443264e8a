"""Runs a program for a chunk of CTAs: cohorts of threads, who may go on, what a step may ask.

All threads of the chunk are columns of the same arrays. A *cohort* is a set of threads at one
position of the program. On a branch where threads disagree the cohort splits; the scheduler always
runs the cohort that is furthest behind, and cohorts that meet merge, so structured code reconverges
at its joins. Arrays in `registers` are never written in place: they may be shared.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import (
    Deadlock,
    Divergence,
    EmulationError,
    TensorCoreError,
    Uninitialised,
)
from tensorcore_dsl.interpreter import gather
from tensorcore_dsl.interpreter.asynchronous import Asynchronous, runs
from tensorcore_dsl.interpreter.barrier import Barriers
from tensorcore_dsl.interpreter.memory import Copies, GlobalMemory, SharedMemory
from tensorcore_dsl.interpreter.order import Order
from tensorcore_dsl.interpreter.program import Program, Step
from tensorcore_dsl.interpreter.proxies import Proxies
from tensorcore_dsl.interpreter.remote import ClusterMemory
from tensorcore_dsl.interpreter.report import Report, Tally
from tensorcore_dsl.interpreter.special import Geometry, SpecialRegisters, dim, ranges
from tensorcore_dsl.interpreter.steps import STOP, Run
from tensorcore_dsl.interpreter.traces import Traces

SLICE = 64  # backward jumps before a cohort that only polls lets others run
LONG_SLICE = 4096  # the same for one that does something else
_LENGTH = re.compile(r"(%[-+ 0]*\d*(?:\.\d+)?)ll")  # of a conversion: Python knows none
LIVELOCK = 1 << 16  # slices in a row in which everybody only polled


@dataclass
class Cohort:
    """Threads at one position. `asked` is the machine's progress when they last had to wait."""

    mask: np.ndarray
    rounds: int = 0
    waiting: bool = False
    asked: int = 0
    unit: int = 0  # not 0: waiting for the other threads of their units of so many


class Machine(Asynchronous):
    """One chunk of a launch; the `Context` that the rows' execute functions see."""

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        memory: GlobalMemory,
        shared: SharedMemory,
        arch: str,
        parameters: list[Any],
        profile: bool = False,
        order: Order | None = None,
    ) -> None:
        self.program = program
        self.geometry = geometry
        self.arch = arch
        self.order = order
        self.threads = geometry.threads
        self.group = geometry.group
        self.threads_per_cta = geometry.threads_per_cta
        self.globals = memory
        self.checks = memory.checks
        self.shared = shared
        size, tracked = shared.data.shape[1] * self.checks, self.checks and program.reads_shared
        self.proxies = Proxies(
            geometry.ctas, size * tracked, self.threads * tracked, size * program.asynchronous
        )
        self.special = SpecialRegisters(geometry)
        self.barriers = Barriers(geometry)
        self.copies = Copies(self.threads)
        self.cluster = ClusterMemory()
        self.traces = Traces(self) if program.remote and self.checks else None
        self.tally = Tally(len(program.steps), profile)
        self.all_threads = np.ones(self.threads, np.bool_)
        self.alive = np.arange(self.threads) % self.group < self.threads_per_cta
        self.gone = ~self.alive  # threads that have exited or never were
        self.exited = self.gone if self.gone.any() else None
        self.registers: list[Any] = [None] * program.places
        self.partial: dict[int, np.ndarray] = {}  # registers that some threads have not written
        self.cohorts: dict[int, Cohort] = {}
        self.runs = runs(program, profile)
        self.at_step = 0  # the step that runs, where it is noted
        self.limit = 0  # the next position ahead where somebody stands
        self.rounds = 0
        self.progress = 0
        self.aside = 0  # 1: the cohort lets others run
        self.reads = self.writes = 0
        self.quiet = 0
        self._fill(parameters)
        self.active: np.ndarray | None = None
        self.mask = self.all_threads  # the same as an array
        self.warps = 0
        self.narrow(self.alive.copy())

    def _fill(self, parameters: list[Any]) -> None:
        for place, item in self.program.constants:
            self.registers[place] = item
        for place, item, registers in self.program.fills:
            shape = (registers, self.threads) if registers else (self.threads,)
            self.registers[place] = np.full(shape, item)
        for (place, _), bits in zip(self.program.params, parameters, strict=True):
            self.registers[place] = np.full(self.threads, bits)

    # --- what rows ask ----------------------------------------------------------------------

    def whole_warps(self) -> np.ndarray | None:
        """(T // 32,) bool of active warps, None when all are."""
        if self.active is None:
            return None
        lanes = self.active.reshape(-1, 32)
        some: np.ndarray = np.any(lanes, axis=1)
        broken = some != lanes.all(axis=1)
        if broken.any():
            self._diverged(32 * int(np.argmax(broken)), 32, self.active)
        return some

    def commit_async(self) -> None:
        """cp.async.commit_group."""
        self.copies.commit(self)

    def wait_async(self, pending: int) -> None:
        """cp.async.wait_group."""
        self.copies.wait(self, pending)

    def arrive(self, barrier: np.ndarray, count: np.ndarray | None, wait: bool) -> np.ndarray:
        """Arrive at a named barrier; who may go on."""
        go = self.barriers.arrive(self, barrier, count, wait)
        self.meet(go)
        return go

    def arrive_counting(
        self, barrier: np.ndarray, count: np.ndarray | None, predicate: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrive and wait; (who may go on, true predicates, threads) of those who met."""
        go = self.barriers.arrive(self, barrier, count, True, predicate)
        self.meet(go)
        return go, self.barriers.true.copy(), self.barriers.met.copy()

    def print(self, text: int, values: list[np.ndarray]) -> None:
        """One line a thread; `text` is the number of the kernel's format string."""
        line = _LENGTH.sub(r"\1", self.program.kernel.strings[text])
        columns = [np.broadcast_to(v, (self.threads,)) for v in values]
        for thread in np.flatnonzero(self.mask):
            sys.stdout.write(line % tuple(c[thread].item() for c in columns))

    def describe(self, thread: int) -> str:
        """A thread of the chunk, as messages call it."""
        g = self.geometry
        block = self.block_name(thread // self.group)
        return f"thread {dim(g.thread(thread), g.block)} of block {block}"

    def block_name(self, cta: int) -> str:
        """The index of a CTA of the chunk in the grid."""
        return dim(self.geometry.cta(cta * self.group), self.geometry.grid)

    def warpgroup_name(self, group: int) -> str:
        """A warpgroup of the chunk, as messages call it."""
        return self._unit_name(group * 128, 128)

    # --- what steps ask ---------------------------------------------------------------------

    def write(self, place: int, found: Any, dtype: np.dtype[Any]) -> None:
        """Set a register in the active threads."""
        if found.dtype is not dtype and found.dtype != dtype:
            raise EmulationError(f"a result has type {found.dtype}, the register {dtype}")
        if found.ndim == 0:
            found = np.full(self.threads, found)
        if self.active is None:
            if self.partial:
                self.partial.pop(place, None)
        else:
            found = self._merge(place, found)
        self.registers[place] = found

    def _merge(self, place: int, found: Any) -> Any:
        """What a register holds after a write by the active threads; notes who has written it."""
        old, known = self.registers[place], self.partial.get(place)
        if old is not None:
            found = np.where(self.mask, found, old)
        if known is not self.active if known is not None else self.checks and old is None:
            wrote = self.mask if known is None else known | self.mask
            if (wrote | self.gone).all():
                self.partial.pop(place, None)
            else:
                self.partial[place] = wrote
        return found

    def copy(self, place: int, found: Any, dtype: np.dtype[Any], sources: tuple[int, ...]) -> None:
        """Set a register; where a thread has not written all `sources`, it has not written it."""
        known = [self.partial[s] for s in sources if s in self.partial]
        if not known:
            self.write(place, found, dtype)
            return
        mask = self.mask
        saved, good = self.active, np.logical_and.reduce([mask, *known])
        self.active = self.mask = good
        self.write(place, found, dtype)
        self.active, self.mask = saved, mask
        self.forget(place, mask & ~good)

    def forget(self, place: int, mask: np.ndarray) -> None:
        """Threads whose register counts as unwritten from now on."""
        if self.registers[place] is not None and mask.any():
            self.partial[place] = self.partial.get(place, self.all_threads) & ~mask

    def check_reads(self, step: Step) -> None:
        """The threads that execute `step` must have written what it reads."""
        for place in step.reads:
            known = self.partial.get(place)
            if known is None or known is self.active:
                continue
            lacking = self.mask & ~known
            if step.guard is not None:
                lacking = lacking & (self.registers[step.guard[0]] ^ step.guard[1])
            if lacking.any():
                raise Uninitialised(
                    f"{step.form or 'a branch'} reads a register that nothing has written in "
                    + self.describe(int(np.argmax(lacking)))
                )

    def split(self, mask: np.ndarray, target: int) -> None:
        """Threads that leave the running cohort for a position ahead."""
        self._put(target, Cohort(mask, self.rounds))
        self.limit = min(self.limit, target)

    def narrow(self, mask: np.ndarray) -> None:
        """Only these threads go on."""
        self.warps, lanes = divmod(gather.census(mask), 1 << 32)
        self.active = None if lanes == self.threads else mask
        self.mask = self.all_threads if self.active is None else mask

    def block(self, mask: np.ndarray | None, at: int, unit: int = 0) -> None:
        """Threads that must wait at a position."""
        mask = self.mask if mask is None else mask
        if self.order is not None:
            self.order.wait(mask, self.progress)
        self._put(at, Cohort(mask, self.rounds, True, self.progress, unit))

    def park(self, at: int, unit: int, named: Any = None) -> bool:
        """Threads wait here for the lanes that `named` (T,) masks name, or for their whole unit.

        Only lanes that have exited may be missing, and not from a whole unit. True when nobody
        can go on.
        """
        away = np.empty(self.threads, np.bool_)
        if named is None:
            gather.divided(self.mask, unit, away)
        else:
            named = np.full(self.threads, named, np.uint32)
            gather.absent(self.mask, named, self.gone, away)
        if not away.any():
            return False
        self.block(away, at, unit)
        left = self.mask & ~away
        if not left.any():
            return True
        self.narrow(left)
        return False

    def guarded(self, inner: np.ndarray, run: Run) -> int | None:
        """Run a step for `inner` alone; of those, the ones that it stops stay behind."""
        outer = self.mask
        self.narrow(inner)
        inside = self.mask
        stopped = run(self) == STOP
        outside = outer & ~inside
        kept = outside if stopped else outside | self.mask
        if not kept.any():
            return STOP
        self.narrow(kept)
        return None

    def exit(self) -> None:
        """The cohort's threads end."""
        self.alive &= ~self.mask
        self.gone = ~self.alive
        self.exited = self.gone
        self.progress += 1
        if self.program.asynchronous:
            self.leave()

    # --- accounts ---------------------------------------------------------------------------

    def account(
        self, space: str, verb: str, addresses: np.ndarray, mask: np.ndarray, size: int
    ) -> None:
        """An access of `size` bytes by each thread of `mask`."""
        if verb == "load":
            self.reads += 1
        else:
            self.writes += 1
        self.tally.access(self.at_step, space, verb, addresses, mask, size)

    def count(self, first: int, end: int) -> None:
        """The running step has done those of the positions from `first` to `end` too."""
        for at in range(first, end):
            self.tally.counts[at] += self.warps

    # --- the scheduler ----------------------------------------------------------------------

    def run(self) -> Report:
        """Run all threads to their end."""
        if self.alive.any():
            self._put(0, Cohort(self.mask))
        with np.errstate(all="ignore"):
            while self.cohorts:
                at, cohort = self._select()
                self.rounds = cohort.rounds
                self.narrow(cohort.mask)
                self._run(at)
        return self.tally.report(self.program)

    def _put(self, at: int, cohort: Cohort) -> None:
        """Place a cohort; it merges with the one that stands there."""
        there = self.cohorts.get(at)
        if there is not None:
            cohort.mask = cohort.mask | there.mask
            cohort.rounds = min(cohort.rounds, there.rounds)
            cohort.waiting = cohort.waiting and there.waiting
            cohort.asked = min(cohort.asked, there.asked)
            cohort.unit = max(cohort.unit, there.unit)
        self.cohorts[at] = cohort

    def _select(self) -> tuple[int, Cohort]:
        """The cohort to run: fewest rounds, then furthest behind; waiting ones come last."""
        if self.order is not None:
            return self.order.select(self) or self._stuck()
        ready = [(c.rounds, at) for at, c in self.cohorts.items() if not c.waiting]
        if not ready:
            ready = [(c.rounds, at) for at, c in self.cohorts.items() if c.asked < self.progress]
        if not ready:
            self._stuck()
        at = min(ready)[1]
        return at, self.cohorts.pop(at)

    def _run(self, start: int) -> None:
        """Run the cohort until it ends, waits, meets another one or has used up its slice."""
        runs, counts, steps, at = self.runs, self.tally.counts, self.program.steps, start
        self._look_ahead(at + 1)
        self.budget, self.marked = LONG_SLICE, (self.reads, self.writes)
        moved, self.aside = False, 0
        try:
            while at < self.limit:
                counts[at] += self.warps
                if self.partial:
                    self.check_reads(steps[at])
                target = runs[at](self)
                if target is None:
                    at += 1
                elif target == STOP:
                    self.progress += moved
                    return
                else:
                    leave = self._tired() if target <= at else self._overtakes(target)
                    at = target
                    if leave:
                        break
                    self._look_ahead(at)
                moved = True
        except Exception as error:
            self._explain(error, steps[at])
        if self.order is not None:
            self.order.step_back(self.mask)
        self.progress += 1
        asked = self.progress - 1  # of those who step aside, so that they are soon asked again
        self._put(at, Cohort(self.mask, self.rounds + self.aside, self.aside > 0, asked))

    def step_aside(self) -> None:
        """The cohort lets those run who wait for what the running step does."""
        self.aside, self.limit = 1, 0

    def _look_ahead(self, at: int) -> None:
        self.limit = min((p for p in self.cohorts if p >= at), default=len(self.runs))
        if self.order is not None:
            self.limit = min(self.limit, at + self.order.stretch())

    def _overtakes(self, at: int) -> bool:
        """Does a jump ahead pass others that should run first?"""
        return any(
            p < at and not c.waiting and c.rounds <= self.rounds for p, c in self.cohorts.items()
        )

    def _tired(self) -> bool:
        """Count a backward jump; is it time to let others run?"""
        self.budget -= 1
        if self.budget % SLICE:
            return False
        reads, writes = self.marked
        self.marked = (self.reads, self.writes)
        polls = self.reads > reads and self.writes == writes
        self.quiet = self.quiet + 1 if polls else 0
        if self.quiet > LIVELOCK:
            raise Deadlock(
                f"livelock: for {LIVELOCK * SLICE} loops memory was read and never written\n"
                + self._standings()
            )
        if not self.cohorts or not (polls or self.budget <= 0):
            return False
        self.rounds += 1
        for cohort in self.cohorts.values():
            cohort.waiting = cohort.waiting and cohort.asked == self.progress
        return True

    # --- mistakes ---------------------------------------------------------------------------

    def _explain(self, error: Exception, step: Step) -> NoReturn:
        """Raise `error` with the place in the user's source."""
        unset = [p for p in step.reads if self.registers[p] is None]
        what = step.form.mnemonic if step.form is not None else "an assignment or a branch"
        if unset and not isinstance(error, TensorCoreError):
            raise Uninitialised(
                f"{what} reads a register that nothing has written", step.loc
            ) from error
        if isinstance(error, TensorCoreError):
            error.loc = error.loc or step.loc
            raise error
        raise EmulationError(f"{what} failed: {type(error).__name__}: {error}", step.loc) from error

    def _stuck(self) -> NoReturn:
        broken = [at for at, c in self.cohorts.items() if c.unit]
        if broken:
            at = min(broken)
            cohort = self.cohorts[at]
            away = np.empty(self.threads, np.bool_)
            gather.divided(cohort.mask, cohort.unit, away)
            first = int(np.argmax(away)) // cohort.unit * cohort.unit
            try:
                self._diverged(first, cohort.unit, cohort.mask)
            except Divergence as error:
                self._explain(error, self.program.steps[at])
        first = min(self.cohorts)
        raise Deadlock(
            "deadlock: every thread that is left waits\n" + self._standings(),
            self.program.steps[first].loc,
        )

    def _diverged(self, first: int, unit: int, mask: np.ndarray) -> NoReturn:
        """Only part of the unit that starts at thread `first` is here."""
        part = slice(first, first + unit)
        lanes, name = mask[part], "lanes" if unit == 32 else "threads"
        lines = [
            f"{name} {ranges(np.flatnonzero(lanes))} of {self._unit_name(first, unit)} are here"
        ]
        ended = ~self.alive[part] & ~lanes
        if ended.any():
            lines.append(f"{name} {ranges(np.flatnonzero(ended))} have exited or do not exist")
        for at, cohort in sorted(self.cohorts.items()):
            others = cohort.mask[part] & ~lanes
            if others.any():
                where = self.program.steps[at].loc
                lines.append(f"{name} {ranges(np.flatnonzero(others))} wait at {where}")
        what = "a warp-wide instruction needs all 32 lanes: "
        if unit != 32:
            what = "an instruction of warpgroups needs all four warps: "
        raise Divergence(what + "; ".join(lines))

    def _unit_name(self, first: int, unit: int) -> str:
        name = "warp" if unit == 32 else "warpgroup"
        block = self.block_name(first // self.group)
        return f"{name} {first % self.group // unit} of block {block}"

    def _standings(self) -> str:
        """Where each group of threads stands, a line each."""
        lines = []
        for at, cohort in sorted(self.cohorts.items()):
            step = self.program.steps[at]
            what = step.form.mnemonic if step.form is not None else "a branch"
            lines.append(f"  {self.threads_text(cohort.mask)}: {what} at {step.loc}")
            lines += [f"    {text}" for text in self.waits(cohort.mask, step.form)]
        return "\n".join(lines)

    def threads_text(self, mask: np.ndarray) -> str:
        """Threads of the chunk by their warps, as messages call them."""
        lanes = mask.reshape(self.geometry.ctas, self.group // 32, 32)
        per_cta: np.ndarray = np.any(lanes, axis=2)
        texts = []
        for cta in np.flatnonzero(per_cta.any(axis=1))[:4]:
            block = self.block_name(int(cta))
            texts.append(f"block {block} warps {ranges(np.flatnonzero(per_cta[cta]))}")
        more = int(per_cta.any(axis=1).sum()) - len(texts)
        return ", ".join(texts) + (f" and {more} more blocks" if more else "")
