"""Runs a program for a chunk of CTAs: its registers, and the scheduler of its cohorts.

On a branch where threads disagree the running cohort splits. Of the cohorts that have used the
fewest time slices, the scheduler runs the one furthest behind, and cohorts that meet merge, so
structured code reconverges.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from threading import Event
from typing import Any, NoReturn, Protocol

import numpy as np

from tensorcore_dsl import errors
from tensorcore_dsl.interpreter.core.chunk import Chunk, Cohort
from tensorcore_dsl.interpreter.core.program import STOP, Run, Step
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.core.threads import absent, divided
from tensorcore_dsl.interpreter.execution.context import ExecutionContext
from tensorcore_dsl.interpreter.sanitizer.schedule_fuzzing import ScheduleFuzzer
from tensorcore_dsl.ir.nodes import Mark

SLICE = 64  # backward jumps before a cohort that only polls lets others run
LONG_SLICE = 4096  # the same for a cohort that does something else
ALL_LANES = 0xFFFFFFFF
LIVELOCK = 1 << 16  # slices in a row in which everybody only polled


class RegisterFile:
    """Registers by place. Arrays are never written in place: several places may share one.

    values: (T,) or (registers, T) arrays, or constants; None where nothing has been written.
    partial: (T,) bool of the threads that have written a register, where it is not all of them.
    """

    def __init__(self, chunk: Chunk, parameters: list[Any]) -> None:
        self.chunk = chunk
        program = chunk.program
        self.values: list[Any] = [None] * program.places
        self.partial: dict[int, np.ndarray] = {}
        for place, item, registers in program.constants:
            shape = (registers, chunk.threads) if registers else (chunk.threads,)
            self.values[place] = item if registers is None else np.full(shape, item)
        for place, bits in zip(program.params, parameters, strict=True):
            self.values[place] = np.full(chunk.threads, bits)

    def write(self, place: int, value: Any, dtype: np.dtype[Any]) -> None:
        """Set a register in the active threads."""
        if value.dtype is not dtype and value.dtype != dtype:
            raise errors.EmulationError(f"a result has type {value.dtype}, the register {dtype}")
        if value.ndim == 0:
            value = np.full(self.chunk.threads, value)
        if self.chunk.active is None:
            if self.partial:
                self.partial.pop(place, None)
        else:
            value = self._merge(place, value)
        self.values[place] = value

    def _merge(self, place: int, value: Any) -> Any:
        """The register after a write by the active threads; notes who has written it."""
        chunk = self.chunk
        old, written = self.values[place], self.partial.get(place)
        if old is not None:
            value = np.where(chunk.mask, value, old)
        if written is not chunk.active if written is not None else chunk.checks and old is None:
            written = chunk.mask if written is None else written | chunk.mask
            if (written | chunk.gone).all():
                self.partial.pop(place, None)
            else:
                self.partial[place] = written
        return value

    def copy(self, place: int, value: Any, dtype: np.dtype[Any], sources: tuple[int, ...]) -> None:
        """Set a register; it stays unwritten in threads that have not written all `sources`."""
        written = [self.partial[s] for s in sources if s in self.partial]
        if not written:
            self.write(place, value, dtype)
            return
        chunk, mask = self.chunk, self.chunk.mask
        active, good = chunk.active, np.logical_and.reduce([mask, *written])
        chunk.active = chunk.mask = good
        self.write(place, value, dtype)
        chunk.active, chunk.mask = active, mask
        self.forget(place, mask & ~good)

    def forget(self, place: int, mask: np.ndarray) -> None:
        """Make a register count as unwritten in these threads."""
        if self.values[place] is not None and mask.any():
            self.partial[place] = self.partial.get(place, self.chunk.all_threads) & ~mask

    def check_reads(self, step: Step) -> None:
        """Raise Uninitialised where a thread that executes `step` has not written what it reads."""
        chunk = self.chunk
        for place in step.reads:
            written = self.partial.get(place)
            if written is None or written is chunk.active:
                continue
            lacking = chunk.mask & ~written
            if step.guard is not None:
                lacking = lacking & (self.values[step.guard[0]] ^ step.guard[1])
            if lacking.any():
                raise errors.Uninitialised(
                    f"{step.instr or 'a branch'} reads a register that nothing has written in "
                    + chunk.describe(int(np.argmax(lacking)))
                )


class Observer(Protocol):
    """Follows a debug build while it runs."""

    def visit(self, machine: Machine, mark: Mark, at: int) -> None:
        """The active threads stand at a mark, which is the step `at`."""


class Machine:
    """One chunk of a launch.

    ctx: what instructions see. rounds: time slices that the running cohort has used up. budget:
    backward jumps left in its slice; marked: reads and writes at the last count. quiet: slices in a
    row in which everybody only polled. observers: see the marks of a debug build. stop: when it is
    set, the run ends with KeyboardInterrupt.
    """

    def __init__(
        self, ctx: ExecutionContext, parameters: list[Any], fuzzer: ScheduleFuzzer | None = None,
        observers: Sequence[Observer] = (), stop: Event | None = None,
    ) -> None:  # fmt: skip
        self.ctx = ctx
        self.stop = stop or Event()
        self.registers = RegisterFile(ctx, parameters)
        self.fuzzer, self.observers = fuzzer, observers
        self.runs = [self._run_of(at, step) for at, step in enumerate(ctx.program.steps)]
        self.rounds = self.budget = self.quiet = 0
        self.marked = (0, 0)

    def _run_of(self, at: int, step: Step) -> Run:
        """The function of a step, with what the machine does before and after some."""
        program, run = self.ctx.program, step.run
        follows = self.ctx.tally.profile or self.ctx.sanitizer.detector is not None
        if follows or program.remote or step.tracked:
            run = _tracked(at, run)
        return _synchronising(run) if program.asynchronous and step.synchronises else run

    def split(self, mask: np.ndarray, target: int) -> None:
        """Threads of the running cohort that jump ahead on their own."""
        self._put(target, Cohort(mask, self.rounds))
        self.ctx.limit = min(self.ctx.limit, target)

    def block(self, mask: np.ndarray, at: int, unit: int = 0) -> None:
        """Threads that must wait at a position."""
        if self.fuzzer is not None:
            self.fuzzer.wait(mask, self.ctx.progress)
        self._put(at, Cohort(mask, self.rounds, True, self.ctx.progress, unit))

    def missing(
        self, mask: np.ndarray, unit: int, named: Any = None, aligned: bool = False
    ) -> np.ndarray:
        """The threads of `mask` that lack others: those of their `named` (T,) masks, or of their
        unit.

        Lanes that have returned may be missing from a mask and at an `aligned` instruction, but
        not from a unit. Those that ran to the end of the kernel, and so around it, are missed.
        """
        ctx, away = self.ctx, np.empty(self.ctx.threads, np.bool_)
        if named is None and not aligned:
            divided(mask, unit, away)
        else:
            lanes = np.full(ctx.threads, ALL_LANES if aligned else named, np.uint32)
            absent(mask, lanes, ctx.gone & ~ctx.finished, away)
        return away

    def park(self, at: int, unit: int, named: Any = None, aligned: bool = False) -> bool:
        """The active threads that lack others (`missing`) wait; True when no thread can go on."""
        ctx = self.ctx
        away = self.missing(ctx.mask, unit, named, aligned)
        if not away.any():
            return False
        self.block(away, at, unit)
        left = ctx.mask & ~away
        if not left.any():
            return True
        ctx.narrow(left)
        return False

    def run_guarded(self, inner: np.ndarray, run: Run) -> int | None:
        """Run a step for the threads of `inner` only; those that it stops stay behind."""
        ctx = self.ctx
        outer = ctx.mask
        ctx.narrow(inner)
        inside = ctx.mask
        stopped = run(self) == STOP
        outside = outer & ~inside
        left = outside if stopped else outside | ctx.mask
        if not left.any():
            return STOP
        ctx.narrow(left)
        return None

    def run(self) -> Report:
        """Run all threads to their end."""
        ctx = self.ctx
        if ctx.alive.any():
            self._put(0, Cohort(ctx.mask))
        with np.errstate(all="ignore"):
            while ctx.cohorts:
                at, cohort = self._select()
                self.rounds = cohort.rounds
                ctx.narrow(cohort.mask)
                self._run_cohort(at)
        return ctx.tally.report(ctx.program.steps)

    def _put(self, at: int, cohort: Cohort) -> None:
        """Place a cohort; it merges with the one at this position."""
        there = self.ctx.cohorts.get(at)
        if there is not None:
            cohort.mask = cohort.mask | there.mask
            cohort.rounds = min(cohort.rounds, there.rounds)
            cohort.waiting = cohort.waiting and there.waiting
            cohort.progress = min(cohort.progress, there.progress)
            cohort.unit = max(cohort.unit, there.unit)
        self.ctx.cohorts[at] = cohort

    def _select(self) -> tuple[int, Cohort]:
        """The cohort to run: fewest rounds, then furthest behind; waiting ones come last."""
        ctx = self.ctx
        if self.fuzzer is not None:
            return self.fuzzer.select(ctx) or self._refuse_deadlock()
        cohorts = ctx.cohorts.items()
        ready = [(c.rounds, at) for at, c in cohorts if not c.waiting]
        if not ready:
            ready = [(c.rounds, at) for at, c in cohorts if c.progress < ctx.progress]
        if not ready:
            self._refuse_deadlock()
        at = min(ready)[1]
        return at, ctx.cohorts.pop(at)

    def _run_cohort(self, start: int) -> None:
        """Run the cohort until it ends, waits, meets another one or has used up its slice."""
        ctx, registers, runs, at = self.ctx, self.registers, self.runs, start
        counts, steps, stopped = ctx.tally.counts, ctx.program.steps, self.stop.is_set
        self._look_ahead(at + 1)
        self.budget, self.marked = LONG_SLICE, (ctx.reads, ctx.writes)
        moved, ctx.aside = False, 0
        try:
            while at < ctx.limit:
                if stopped():
                    raise KeyboardInterrupt
                counts[at] += ctx.warps
                if registers.partial:
                    registers.check_reads(steps[at])
                target = runs[at](self)
                if target is None:
                    at += 1
                elif target == STOP:
                    ctx.progress += moved
                    return
                else:
                    leave = self._slice_ends() if target <= at else self._overtakes(target)
                    at = target
                    if leave:
                        break
                    self._look_ahead(at)
                moved = True
        except Exception as error:
            self._explain(error, steps[at])
        except KeyboardInterrupt as error:
            if hasattr(error, "add_note"):  # since Python 3.11
                error.add_note(f"{ctx.warps_text(ctx.mask)}: interrupted at {steps[at].loc}")
            raise
        if self.fuzzer is not None:
            self.fuzzer.end_slice(ctx.mask)
        ctx.progress += 1
        # A cohort that steps aside waits, but for progress that has already been made.
        self._put(at, Cohort(ctx.mask, self.rounds + ctx.aside, ctx.aside > 0, ctx.progress - 1))

    def _look_ahead(self, at: int) -> None:
        ctx = self.ctx
        ctx.limit = min((p for p in ctx.cohorts if p >= at), default=len(self.runs))
        if self.fuzzer is not None:
            ctx.limit = min(ctx.limit, at + self.fuzzer.slice_length())

    def _overtakes(self, at: int) -> bool:
        """Does a jump ahead pass cohorts that should run first?"""
        return any(
            p < at and not c.waiting and c.rounds <= self.rounds
            for p, c in self.ctx.cohorts.items()
        )

    def _slice_ends(self) -> bool:
        """Count a backward jump; is it time to let others run?"""
        self.budget -= 1
        if self.budget % SLICE:
            return False
        ctx, (reads, writes) = self.ctx, self.marked
        self.marked = (ctx.reads, ctx.writes)
        polls = ctx.reads > reads and ctx.writes == writes
        self.quiet = self.quiet + 1 if polls else 0
        if self.quiet > LIVELOCK:
            raise errors.Deadlock(
                f"livelock: for {LIVELOCK * SLICE} loops memory was read and never written\n"
                + self._positions()
            )
        if not ctx.cohorts or not (polls or self.budget <= 0):
            return False
        self.rounds += 1
        for cohort in ctx.cohorts.values():
            cohort.waiting = cohort.waiting and cohort.progress == ctx.progress
        return True

    def _explain(self, error: Exception, step: Step) -> NoReturn:
        """Raise `error` with the place in the user's source."""
        unset = [p for p in step.reads if self.registers.values[p] is None]
        what = step.instr.mnemonic if step.instr is not None else "an assignment or a branch"
        if unset and not isinstance(error, errors.TensorCoreError):
            text = f"{what} reads a register that nothing has written"
            raise errors.Uninitialised(text, step.loc) from error
        if isinstance(error, errors.TensorCoreError):
            error.loc = error.loc or step.loc
            raise error
        text = f"{what} failed: {type(error).__name__}: {error}"
        raise errors.EmulationError(text, step.loc) from error

    def _refuse_deadlock(self) -> NoReturn:
        ctx = self.ctx
        parked = {at: self._parked(at, c) for at, c in sorted(ctx.cohorts.items()) if c.unit}
        lost = reduce(np.logical_or, parked.values(), ctx.gone)  # no event brings these on
        for at, away in parked.items():
            cohort = ctx.cohorts[at]
            units = away.reshape(-1, cohort.unit).any(axis=1)
            units &= (lost & ~cohort.mask).reshape(-1, cohort.unit).any(axis=1)
            if units.any():
                first = int(np.argmax(units)) * cohort.unit
                ctx.refuse_divergence(first, cohort.unit, cohort.mask, at)
        raise errors.Deadlock(
            "deadlock: every thread that is left waits\n" + self._positions(),
            ctx.loc(min(ctx.cohorts)),
        )

    def _parked(self, at: int, cohort: Cohort) -> np.ndarray:
        """The threads of a cohort that wait for others of their unit."""
        instr = self.ctx.instruction(at)
        return self.missing(cohort.mask, cohort.unit, aligned=instr is not None and instr.aligned)

    def _positions(self) -> str:
        """Where each cohort stands and what it waits for, as lines of text."""
        ctx, lines = self.ctx, []
        for at, cohort in sorted(ctx.cohorts.items()):
            instr = ctx.instruction(at)
            what = instr.mnemonic if instr is not None else "a branch"
            lines.append(f"  {ctx.warps_text(cohort.mask)}: {what} at {ctx.loc(at)}")
            lines += [f"    {text}" for text in ctx.lacking(cohort.mask, instr)]
        return "\n".join(lines)


def _tracked(at: int, run: Run) -> Run:
    """A step that notes which one it is before it runs."""

    def tracked(machine: Machine) -> int | None:
        machine.ctx.at_step = at
        return run(machine)

    return tracked


def _synchronising(run: Run) -> Run:
    """A step by which threads may learn what others did."""

    def synchronising(machine: Machine) -> int | None:
        target = run(machine)
        ctx, order = machine.ctx, machine.ctx.sanitizer.order
        order.synchronise(ctx.all_threads)
        order.learn(ctx.all_threads, order.clock)
        return target

    return synchronising
