"""Run a program for a chunk of CTAs: registers, and the scheduler of cohorts.

If the threads of a cohort disagree on a branch, the cohort splits. The scheduler considers the
cohorts with the fewest time slices, and runs the one furthest behind. Cohorts that meet merge, so
that structured code reconverges.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.interpreter.core import policy
from tensorcore_dsl.interpreter.core.chunk import WARP, Cohort
from tensorcore_dsl.interpreter.core.program import AFTER, STOP, Program, Run, Step
from tensorcore_dsl.interpreter.core.registers import RegisterFile
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.core.threads import BoundedCache, Mask, absent, divided, words
from tensorcore_dsl.interpreter.execution import failures
from tensorcore_dsl.interpreter.execution.context import ExecutionContext
from tensorcore_dsl.interpreter.execution.hang_report import Group
from tensorcore_dsl.interpreter.execution.warpgroup_products import Buffers
from tensorcore_dsl.interpreter.execution.watchdog import Stop, Watchdog
from tensorcore_dsl.interpreter.regions import memory
from tensorcore_dsl.interpreter.regions.frame import ProductFallback, RegionFrame, Witness
from tensorcore_dsl.interpreter.regions.plan import (
    ALL_REGIONS,
    NO_REGIONS,
    REGISTER_REGIONS,
    WITNESSED_REGIONS,
)
from tensorcore_dsl.interpreter.regions.run import with_regions
from tensorcore_dsl.interpreter.scheduling.orders import Scheduler
from tensorcore_dsl.ir.nodes import Mark
from tensorcore_dsl.isa.fragments import RegisterProducts

POLLING_JUMPS = 64  # backward jumps before a cohort that only polls lets others run
MAX_GRID = 1 << 31  # CTAs of a launch
MAX_JUMPS = 4096  # backward jumps before any other cohort lets others run


class Observer(Protocol):
    """Follows a debug build while it runs."""

    def visit(self, machine: Machine, mark: Mark, at: int) -> None:
        """The active threads stand at a mark, which is the step `at`."""


class Machine:
    """A machine that runs one chunk of a launch.

    Attributes
    ----------
    ctx : ExecutionContext
        State that instructions see.
    registers : RegisterFile
        Registers of all threads of the chunk.
    level : int
        Level of the regions that the machine may execute (`regions.plan`).
    frames : dict
        By region, the frames of the threads that execute it.
    memory, held : array, Memories
        Words of the chunk's memories for the code of regions (`regions.memory.record`), and the memories.
    witness : Witness
        Shows accesses of regions to the race detector.
    products, buffers : dict
        By step, the prepared products of warps and the buffers of products of warpgroups.
    rest : ProductFallback
        Finishes products of warps that regions cannot compute.
    watchdog : Watchdog
        Notices loops without an end.
    rounds, budget : int
        Time slices that the running cohort has used up, and backward jumps left in its slice.
    marked : tuple of int
        Reads and writes of the chunk at the last count.
    asked : int
        Step whose waiting threads are asked again; -1 for none.
    yields : bool
        The running cohort lets others run after its step.
    started, resident : int
        CTAs that have started, and CTAs that the device holds at a time.
    observers : sequence of Observer
        Debugger and recorders of a debug build.
    stop : Stop or None
        Request to end. The machine then raises KeyboardInterrupt.
    """

    stop: Stop | None = None

    def __init__(
        self,
        ctx: ExecutionContext,
        parameters: list[Any],
        scheduler: Scheduler | None = None,
        observers: Sequence[Observer] = (),
        limit: int | None = None,
        resident: int | None = None,
    ) -> None:
        self.ctx = ctx
        self.registers = RegisterFile(ctx, parameters)
        self.frames: dict[Any, dict[int, RegionFrame]] = {}
        detector = ctx.sanitizer.detector
        if detector is not None:
            detector.registers = self.registers
        self.witness, self.rest = Witness(ctx), ProductFallback(ctx.threads // WARP)
        self.memory, self.held = memory.record(ctx, self.witness.function)
        self.watchdog = Watchdog(ctx, self.registers.values, limit)
        self.products: dict[int, RegisterProducts] = {}
        self.buffers: dict[int, Buffers] = {}
        self.asked = -1
        self.yields = False
        self.started, self.resident = 0, resident or MAX_GRID
        self.scheduler, self.observers = scheduler, observers
        # Orders other than the default one may part threads between two accesses.
        alone = ctx.tally.profile or scheduler is not None or (detector and detector.swizzles)
        level = REGISTER_REGIONS if alone else ALL_REGIONS if detector is None else WITNESSED_REGIONS
        self.execute_at(level if policy.current.regions else NO_REGIONS)
        self._missing = BoundedCache()  # keeps the masks, so that no id() is reused
        self.rounds = self.budget = 0
        self.marked = (0, 0)

    def execute_at(self, level: int) -> None:
        """Execute the regions of a level from now on."""
        ctx = self.ctx
        self.level = level
        follows = ctx.tally.profile or ctx.sanitizer.detector is not None
        self.runs = _runs(ctx.program, follows, level)
        if self.observers or ctx.program.fills[level]:
            self.registers.fill()

    def split(self, mask: np.ndarray, target: int) -> None:
        """Let threads of the running cohort jump ahead on their own."""
        self._put(target, Cohort(mask, self.rounds, budget=self.budget))
        self.ctx.limit = min(self.ctx.limit, target)

    def suspend(self, mask: np.ndarray, at: int, unit: int = 0) -> None:
        """Make threads wait at a position."""
        if self.scheduler is not None:
            self.scheduler.wait(mask, self.ctx.progress)
        self.watchdog.blocked(mask)
        self._put(at, Cohort(mask, self.rounds, True, self.ctx.progress, unit, blocked=True))

    def missing(self, mask: np.ndarray, unit: int, named: Any = None, aligned: bool = False) -> Mask:
        """The threads of `mask` that wait for lanes of their `named` (T,) masks, or of their unit.

        Lanes that have returned may be missing from a mask and at an `aligned` instruction, but not
        from a unit. Lanes that ran to the end of the kernel without meeting the instruction are missed.
        """
        ctx = self.ctx
        key = id(mask), unit, aligned, ctx.exits
        if named is None and key in self._missing:
            known: Mask = self._missing[key][1]
            return known
        away = np.empty(ctx.threads, np.bool_)
        if named is None and not aligned:
            divided(mask, unit, away)
        else:
            lanes = ctx.every_lane if aligned else words(named, ctx.threads)
            absent(mask, lanes, ctx.gone & ~ctx.finished, away)
        lacking = ctx.masks.find(away)
        if named is None:
            self._missing.keep(key, (mask, lacking))
        return lacking

    def park(self, at: int, unit: int, named: Any = None, aligned: bool = False) -> bool:
        """The active threads that lack others (`missing`) wait; True when no thread can go on."""
        ctx = self.ctx
        away = self.missing(ctx.mask, unit, named, aligned)
        if not away.lanes:
            return False
        self.suspend(away.threads, at, unit)
        if away.lanes == ctx.lanes:
            return True
        ctx.narrow(ctx.mask & ~away.threads)
        return False

    def exchange_apart(self, at: int, orders: bool) -> bool:
        """Execute an exchange with lanes that wait at another position; return whether there are any.

        That position has equal qualifiers and names the same lanes (PTX manual 9.7.9.6).
        orders: it also orders their accesses.
        """
        ctx, steps, values = self.ctx, self.ctx.program.steps, self.registers.values
        instr, mask = steps[at].instr, ctx.mask
        positions = [p for p, c in ctx.cohorts.items() if c.unit and steps[p].instr is instr]
        parties = {p: ctx.cohorts[p].mask if p != at else mask for p in (*positions, at)}
        if not positions or instr is None or not all(steps[position].fetch for position in parties):
            return False
        operands: list[Any] = [0] * len(instr.operands)
        for position, lanes in parties.items():
            theirs = zip(steps[position].fetch(values), operands, strict=True)  # type: ignore[misc]
            operands = [np.where(lanes, new, old) for new, old in theirs]
        masks = operands[-1].reshape(-1, WARP)
        alike = (masks[:, :, None] == masks[:, None]) & mask.reshape(-1, 1, WARP)
        everybody = reduce(np.logical_or, parties.values()) & alike.any(axis=2).ravel()
        ready = everybody & ~self.missing(everybody, WARP, operands[-1]).threads
        if not (ready & mask).any() or not (ready & ~mask).any():
            return False
        ctx.narrow(ready)
        answer = instr.execute(ctx, instr, *operands)
        if orders and ctx.sanitizer.detector is not None:
            ctx.sanitizer.detector.converge(operands[-1])
        results = answer if isinstance(answer, tuple) else (answer,)
        for position, lanes in parties.items():
            ctx.narrow(lanes & ready)
            for target, value in zip(steps[position].writes, results, strict=False):
                self.registers.write(target, value, value.dtype)
            if position == at:
                rest = lanes & ~ready
                if rest.any():
                    self.suspend(rest, at, WARP)
            elif ctx.lanes:
                ctx.cohorts[position].mask = lanes & ~ready
                if not ctx.cohorts[position].mask.any():
                    del ctx.cohorts[position]
                self.split(ctx.mask, position + 1)
        return True

    def run_guarded(self, inner: np.ndarray, run: Run) -> int | None:
        """Run a step for the threads of `inner` only. Threads that it stops stay behind."""
        ctx = self.ctx
        outer = ctx.mask
        ctx.narrow(inner)
        inside = ctx.mask
        stopped = run(self) == STOP
        if stopped or ctx.mask is not inside:
            left = outer & ~inside
            if not stopped:
                left |= ctx.mask
            if not left.any():
                return STOP
            outer = left
        ctx.narrow(outer)
        return None

    def run(self) -> Report:
        """Run all threads to their end."""
        ctx = self.ctx
        try:
            with np.errstate(all="ignore"):
                while ctx.cohorts or self._start_ctas():
                    at, cohort = self._select()
                    self.rounds, self.budget = cohort.rounds, cohort.budget
                    self.asked = at if cohort.blocked else -1
                    ctx.narrow(cohort.mask)
                    self._run_cohort(at)
        except KeyboardInterrupt as error:  # between cohorts there is no picture yet
            raise error if error.args else KeyboardInterrupt(failures.interrupted(self)) from None
        if ctx.sanitizer.detector is not None and ctx.sanitizer.detector.doubt is not None:
            raise ctx.sanitizer.detector.doubt
        return ctx.tally.report(ctx.program.steps)

    def _start_ctas(self) -> bool:
        """Start CTAs until the device has no more room; return whether one started."""
        ctx, size = self.ctx, self.ctx.clusters.size
        if self.started == ctx.geometry.ctas:
            return False
        room = (self.resident - self.running_ctas()) // size * size
        first, self.started = self.started, min(self.started + max(room, 0), ctx.geometry.ctas)
        if self.started == first:
            return False
        mask = ctx.alive.copy()
        mask[: first * ctx.group] = mask[self.started * ctx.group :] = False
        rounds = min((cohort.rounds for cohort in ctx.cohorts.values()), default=0)
        self._put(0, Cohort(mask, rounds))
        return True

    def running_ctas(self) -> int:
        """CTAs that have started and not ended."""
        ended = np.all(self.ctx.gone.reshape(-1, self.ctx.group), axis=1)
        return self.started - int(np.count_nonzero(ended[: self.started]))

    def _put(self, at: int, cohort: Cohort) -> None:
        """Place a cohort; it merges with the one at this position."""
        there = self.ctx.cohorts.get(at)
        if there is not None:
            cohort.mask = cohort.mask | there.mask
            cohort.rounds = min(cohort.rounds, there.rounds)
            cohort.waiting = cohort.waiting and there.waiting
            cohort.progress = min(cohort.progress, there.progress)
            cohort.unit = max(cohort.unit, there.unit)
            cohort.blocked = cohort.blocked and there.blocked
            cohort.budget = min(cohort.budget or there.budget, there.budget or cohort.budget)
        self.ctx.cohorts[at] = cohort

    def _select(self) -> tuple[int, Cohort]:
        """The cohort to run: fewest rounds, then furthest behind; waiting ones come last."""
        ctx = self.ctx
        if self.scheduler is not None:
            chosen = self.scheduler.select(ctx)
            if chosen is None and self._start_ctas():
                chosen = self.scheduler.select(ctx)
            return chosen or failures.refuse_deadlock(self)
        cohorts = ctx.cohorts.items()
        ready = [(c.rounds, at) for at, c in cohorts if not c.waiting]
        if not ready:
            ready = [(c.rounds, at) for at, c in cohorts if c.progress < ctx.progress]
        if not ready and self._start_ctas():
            ready = [(self.ctx.cohorts[0].rounds, 0)]
        if not ready:
            failures.refuse_deadlock(self)
        at = min(ready)[1]
        return at, ctx.cohorts.pop(at)

    def _run_cohort(self, start: int) -> None:  # noqa: PLR0915
        """Run the cohort until it ends, waits, meets another one or has used up its slice."""
        ctx, registers, runs, at = self.ctx, self.registers, self.runs, start
        counts, steps, loops = ctx.tally.counts, ctx.program.steps, ctx.program.loops
        stop, partly_written = self.stop, registers.partly_written
        self._look_ahead(at + 1)
        if not self.budget:  # Otherwise the slice began before cohorts met or parted.
            self.budget, self.marked = MAX_JUMPS, (ctx.reads, ctx.writes)
        moved, ctx.aside = False, 0
        try:
            while at < ctx.limit:
                if stop is not None and stop.is_set():
                    raise KeyboardInterrupt
                counts[at] += ctx.warps
                if partly_written and (at, id(ctx.mask)) not in registers.checks_passed:
                    registers.check_reads(at, steps[at])
                target = runs[at](self)
                if target is None:
                    at += 1
                elif target == STOP:
                    ctx.progress += moved
                    return
                elif target < STOP:
                    at = AFTER - target
                else:
                    leave, self.yields = self.yields, False
                    if target > at:
                        leave = leave or self._overtakes(target)
                    elif target in loops:
                        leave = self._slice_ends(target)
                    at = target
                    if leave:
                        break
                    self._look_ahead(at)
                moved = True
        except Exception as error:
            failures.explain(self, error, steps[at])
        except KeyboardInterrupt:
            here = Group(at, ctx.mask, "waits" if at == self.asked else "runs")
            raise KeyboardInterrupt(failures.interrupted(self, here)) from None
        if self.scheduler is not None:
            self.scheduler.end_slice(ctx.mask)
        ctx.progress += 1
        # A cohort that steps aside waits, but for progress that has already been made.
        waits, rounds = ctx.aside > 0, self.rounds + ctx.aside
        self._put(at, Cohort(ctx.mask, rounds, waits, ctx.progress - 1, budget=self.budget))

    def _look_ahead(self, at: int) -> None:
        ctx, limit = self.ctx, len(self.runs)
        for position in ctx.cohorts:
            if at <= position < limit:
                limit = position
        ctx.limit = limit
        if self.scheduler is not None:
            ctx.limit = min(ctx.limit, self.scheduler.limit(at))

    def _overtakes(self, at: int) -> bool:
        """True if a jump ahead passes cohorts that should run first."""
        for position, cohort in self.ctx.cohorts.items():
            if position < at and not cohort.waiting and cohort.rounds <= self.rounds:
                return True
        return False

    def _slice_ends(self, head: int) -> bool:
        """Count a backward jump; return whether it is time to let others run."""
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt
        self.budget -= 1
        why = self.watchdog.count_iteration(head)
        if why and not self._start_ctas():
            failures.refuse_loop(self, head, why)
        if self.budget % POLLING_JUMPS and not why:
            return False
        ctx, (reads, writes) = self.ctx, self.marked
        self.marked = (ctx.reads, ctx.writes)
        polls = ctx.reads > reads and ctx.writes == writes
        polls = polls or self.watchdog.repeats_all(ctx.mask)
        if polls:
            self._start_ctas()
        if not ctx.cohorts or not (polls or self.budget <= 0):
            return bool(why)
        self.rounds, self.budget = self.rounds + 1, 0
        for cohort in ctx.cohorts.values():
            cohort.waiting = cohort.waiting and cohort.progress == ctx.progress
        return True

    def turned(self, head: int, count: int, start: int, target: int) -> None:
        """Note backward jumps of the running cohort to the head of a loop in a region.

        start, target: where the cohort came from, and where it goes.
        """
        inside = head <= target < self.ctx.program.loops[head].end
        if inside:  # The cohort has used up a slice.
            self.budget -= (self.budget - 1) % POLLING_JUMPS
        why = self.watchdog.add_iterations(head, count - inside)
        if why:
            failures.refuse_loop(self, head, why)
        if inside and not head == target <= start:  # Otherwise this jump is still to come.
            self.yields = self._slice_ends(head)


def _runs(program: Program, follows: bool, level: int) -> list[Run]:
    """The functions of a program's steps, with what the machine does before and after some.

    follows: each step is noted before it runs. level: of the regions that it executes.
    """
    runs = program.runs.get((follows, level))
    if runs is None:
        runs = [_run_of(at, s, follows) for at, s in enumerate(program.steps)]
        runs = program.runs[follows, level] = with_regions(program, runs, level)
    return runs


def _run_of(at: int, step: Step, follows: bool) -> Run:
    if step.changes:
        return _changing(at, step.run)
    return _tracked(at, step.run) if follows or step.tracked else step.run


def _tracked(at: int, run: Run) -> Run:
    """A step that notes which one it is before it runs."""

    def tracked(machine: Machine) -> int | None:
        machine.ctx.at_step = at
        return run(machine)

    return tracked


def _changing(at: int, run: Run) -> Run:
    """A step that changes what the accesses of memory do not show, with a note which one it is."""

    def changing(machine: Machine) -> int | None:
        machine.ctx.at_step = at
        target = run(machine)
        machine.watchdog.changes += target != STOP or machine.asked != at
        machine.asked = -1
        return target

    return changing
