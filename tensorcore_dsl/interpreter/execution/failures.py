"""Raise the errors of a run with what its reader needs: lines, and a picture of all threads."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any, NoReturn, Protocol

import numpy as np

from tensorcore_dsl import errors
from tensorcore_dsl.interpreter.core.chunk import Cohort
from tensorcore_dsl.interpreter.core.program import Step
from tensorcore_dsl.interpreter.core.registers import RegisterFile
from tensorcore_dsl.interpreter.core.threads import Mask
from tensorcore_dsl.interpreter.execution.context import ExecutionContext
from tensorcore_dsl.interpreter.execution.hang_report import Group, HangReport
from tensorcore_dsl.interpreter.execution.watchdog import Watchdog
from tensorcore_dsl.isa import classify


class MachineState(Protocol):
    """The attributes of `machine.Machine` that errors tell of."""

    ctx: ExecutionContext
    registers: RegisterFile
    watchdog: Watchdog
    started: int
    resident: int

    def missing(self, mask: np.ndarray, unit: int, named: Any = None, aligned: bool = False) -> Mask: ...

    def running_ctas(self) -> int: ...


def explain(machine: MachineState, error: Exception, step: Step) -> NoReturn:
    """Raise `error` with the line in the user's source.

    Warnings that are errors, and errors of the system, keep their types.
    """
    if isinstance(error, (Warning, OSError, MemoryError)):
        raise error
    unset = [p for p in step.reads if machine.registers.values[p] is None]
    what = step.instr.mnemonic if step.instr is not None else "an assignment or a branch"
    if unset and not isinstance(error, errors.TensorCoreError):
        text = f"{what} reads a register that nothing has written"
        raise errors.Uninitialised(text, step.loc) from error
    if isinstance(error, errors.TensorCoreError):
        error.loc = error.loc or step.loc
        raise error
    text = f"{what} failed: {type(error).__name__}: {error}"
    raise errors.EmulationError(text, step.loc) from error


def refuse_deadlock(machine: MachineState) -> NoReturn:
    """Raise Divergence if threads wait for lanes that cannot come, else Deadlock."""
    ctx = machine.ctx
    parked = {at: _parked(machine, at, c) for at, c in sorted(ctx.cohorts.items()) if c.unit}
    lost = reduce(np.logical_or, parked.values(), ctx.gone)  # no event lets these threads continue
    for at, away in parked.items():
        cohort = ctx.cohorts[at]
        units = away.reshape(-1, cohort.unit).any(axis=1)
        units &= (lost & ~cohort.mask).reshape(-1, cohort.unit).any(axis=1)
        if units.any():
            first = int(np.argmax(units)) * cohort.unit
            ctx.refuse_divergence(first, cohort.unit, cohort.mask, at)
    miscounted = (at for at in ctx.cohorts if _is_miscounted(machine, at))
    at = min(miscounted, default=min(ctx.cohorts))
    text = "every thread that is left waits\n" + _picture(machine)
    raise errors.Deadlock(text, ctx.loc(at))


def refuse_loop(machine: MachineState, head: int, why: str) -> NoReturn:
    """Raise Deadlock: the running cohort, at the head of a loop, would go on for ever."""
    loc, first = machine.ctx.program.loops[head].loc, machine.ctx.loc(head)
    if loc and first and (first.filename, first.line) == (loc.filename, loc.line):
        loc = first  # This location has the expression.
    picture = _picture(machine, Group(head, machine.ctx.mask, "repeats"))
    raise errors.Deadlock(f"{why}\n{picture}", loc)


def interrupted(machine: MachineState, here: Group | None = None) -> str:
    """The text of a KeyboardInterrupt; `here`: the running cohort."""
    return "interrupted\n" + _picture(machine, here)


def _picture(machine: MachineState, here: Group | None = None) -> str:
    """Describe where all threads stand, and who waits for whom; `here`: the running cohort."""
    ctx, watchdog = machine.ctx, machine.watchdog
    groups = [] if here is None else [here]
    for at, cohort in sorted(ctx.cohorts.items()):
        state = "waits" if cohort.blocked else "ready"
        if not cohort.blocked and watchdog.repeats_all(cohort.mask):  # outside of loops: waits
            inside = any(p <= at < loop.end for p, loop in ctx.program.loops.items())
            state = "repeats" if inside else "waits"
        groups.append(Group(at, cohort.mask, state))
    return HangReport(ctx, machine.registers, groups, watchdog.iterations, _pending(machine)).text()


def _pending(machine: MachineState) -> str:
    """Describe the CTAs that have not started."""
    ctx, g = machine.ctx, machine.ctx.geometry
    grid, here = prod(g.grid), (g.first + machine.started) // g.devices
    if here == grid:
        return ""
    last = grid - 1
    text = f"CTA {last} has not started" if here == last else f"CTAs {here} to {last} have not started"
    if machine.running_ctas() + ctx.clusters.size > machine.resident:
        return (
            f"{text}: {ctx.arch} holds at most {machine.resident // g.devices} of these CTAs at a "
            "time, and none of the running ones ends"
        )
    return f"{text}: the emulator starts CTAs when the CTAs before them have ended"


def _parked(machine: MachineState, at: int, cohort: Cohort) -> np.ndarray:
    """The threads of a cohort that wait for others of their unit."""
    instr = machine.ctx.instruction(at)
    aligned = instr is not None and classify.is_aligned(instr)
    return machine.missing(cohort.mask, cohort.unit, aligned=aligned).threads


def _is_miscounted(machine: MachineState, at: int) -> bool:
    """True if threads there wait for a barrier with too many bytes, or another count than before."""
    mask, barriers = machine.ctx.cohorts[at].mask, machine.ctx.barriers
    counts = (barriers.recounted(*barrier) for barrier in barriers.waited_for(mask))
    return any(counts) or machine.ctx.mbarriers.surplus(mask)
