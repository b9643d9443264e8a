"""The steps that programs are made of: functions of the machine that do one thing for a cohort.

A step returns None to go on with the next one, the position that the whole cohort jumps to, or
STOP when nobody of the cohort can go on.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcore_dsl.ir.nodes import Part
from tensorcore_dsl.isa import fragments
from tensorcore_dsl.isa.spec import Instruction

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

Run = Callable[["Machine"], "int | None"]
Fetch = Callable[[list[Any]], tuple[Any, ...]]

STOP = -1


def fetch(operands: list[tuple[int, Callable[[Any], Any] | None]]) -> Fetch:
    """A function from the list of registers to the operands of one op."""
    places = [place for place, _ in operands]
    if any(change for _, change in operands):
        pairs = [(place, change or _same) for place, change in operands]
        return lambda registers: tuple([change(registers[place]) for place, change in pairs])
    if not places:
        return lambda registers: ()
    if len(places) == 1:
        (only,) = places
        return lambda registers: (registers[only],)
    return itemgetter(*places)


def _same(item: Any) -> Any:
    return item


def part(part: Part) -> Callable[[Any], Any] | None:
    if not part.base.type.is_group:
        return None
    return itemgetter(part.index)


def call(form: Instruction, fetch: Fetch) -> Callable[[Machine], Any]:
    execute = form.execute
    return lambda machine: execute(machine, form, *fetch(machine.registers))


def plain(call: Callable[[Machine], Any], results: list[tuple[int, Any]], at: int) -> Run:
    """A form that lets everybody go on."""
    if not results:

        def run(machine: Machine) -> None:
            call(machine)

    elif len(results) == 1:
        (place, kind) = results[0]

        def run(machine: Machine) -> None:
            machine.write(place, call(machine), kind)

    else:

        def run(machine: Machine) -> None:
            for (place, kind), found in zip(results, call(machine), strict=True):
                machine.write(place, found, kind)

    return run


# Forms that may be done several at a time: what does so, given a list of operands.
SEVERAL: dict[Any, Callable[..., Any]] = {fragments.multiply: fragments.multiply_several}


def together(
    alone: Run, form: Instruction, fetches: list[Fetch], results: list[tuple[int, Any]], at: int,
    reads: frozenset[int],
) -> Run:  # fmt: skip
    """Ops of one form, from position `at` on, none of which reads what another one writes.

    `alone` does the first of them. It is asked where someone waits at one of the next, and where
    some threads have not written what is read, so that mistakes are told as ever.
    """
    execute = SEVERAL[form.execute]
    end = at + len(fetches)

    def run(machine: Machine) -> int | None:
        registers = machine.registers
        unwritten = any(registers[place] is None for place in reads)
        if machine.limit < end or unwritten or not reads.isdisjoint(machine.partial):
            return alone(machine)
        if machine.active is not None and machine.park(at, 32):
            return STOP
        found = execute(machine, form, [fetch(registers) for fetch in fetches])
        for (place, kind), one in zip(results, found, strict=True):
            machine.write(place, one, kind)
        machine.count(at + 1, end)
        return end

    return run


def blocking(call: Callable[[Machine], Any], results: list[tuple[int, Any]], at: int) -> Run:
    """A form that says who may go on; the others are asked again."""

    def run(machine: Machine) -> int | None:
        answer = call(machine)
        go = answer[0] if isinstance(answer, tuple) else answer
        active = machine.active
        passed = go if active is None else go & active
        if not passed.any():
            machine.block(active, at)
            return STOP
        stuck = ~go if active is None else active & ~go
        if stuck.any():
            machine.block(stuck, at)
            machine.narrow(passed)
        if isinstance(answer, tuple):
            for (place, kind), found in zip(results, answer[1:], strict=True):
                machine.write(place, found, kind)
        return None

    return run


def member_mask(form: Instruction, reads: tuple[int, ...]) -> int | None:
    """The place of the mask of lanes that must meet, for forms such as shfl.sync."""
    if "convergent" not in form.effects:
        return None
    masks = [place for place, o in zip(reads, form.operands, strict=True) if o.name == "mask"]
    return masks[0] if masks else None


def gathered(run: Run, at: int, unit: int, mask: int | None) -> Run:
    """A form of whole warps or warpgroups: threads wait for those that must be here too."""

    def gathered(machine: Machine) -> int | None:
        named = None if mask is None else machine.registers[mask]
        if machine.active is not None and machine.park(at, unit, named):
            return STOP
        return run(machine)

    return gathered


def unbroken(run: Run) -> Run:
    """A warp-wide form under a guard: the guard may not split a warp."""

    def checked(machine: Machine) -> int | None:
        machine.whole_warps()
        return run(machine)

    return checked


def guarded(run: Run, guard: int, negated: bool) -> Run:
    """Done by the threads where the guard holds; the whole cohort goes on together."""

    def guarded(machine: Machine) -> int | None:
        flags = machine.registers[guard]
        outer = machine.active
        inner = ~flags if negated else flags
        if outer is not None:
            inner = inner & outer
        if not inner.any():
            return None
        if inner.all():
            return run(machine)
        return machine.guarded(inner, run)

    return guarded


def copy(place: int, source: int) -> Run:
    def run(machine: Machine) -> None:
        found = machine.registers[source]
        if found is None:
            machine.forget(place, machine.mask)
        else:
            machine.copy(place, found, found.dtype, (source,))

    return run


def gather(place: int, rows: list[tuple[int, int | None]], kind: Any, group: bool) -> Run:
    """Registers of a group from scalars and from registers of other groups."""
    dtype = np.dtype(kind)
    sources = tuple(p for p, _ in rows)

    def run(machine: Machine) -> None:
        registers = machine.registers
        if any(registers[p] is None for p in sources):
            machine.forget(place, machine.mask)
            return
        found = [registers[p] if r is None else registers[p][r] for p, r in rows]
        if group:
            out = np.empty((len(found), machine.threads), dtype)
            for row, source in zip(out, found, strict=True):
                row[:] = source
        else:
            out = found[0]
        machine.copy(place, out, dtype, sources)

    return run


def inside(place: int, index: int, stop: int, step: int, kind: Any) -> Run:
    """Does the loop go on: the index lies before `stop`, in the direction of the step."""
    signed = np.dtype(kind).kind == "i"

    def run(machine: Machine) -> None:
        registers = machine.registers
        at, last = registers[index].view(kind), registers[stop].view(kind)
        inside = at < last
        if signed:
            down = registers[step].view(kind) < 0
            if down.any():
                inside = np.where(down, at > last, inside)
        registers[place] = inside

    return run


def advance(index: int, step: int) -> Run:
    def run(machine: Machine) -> None:
        registers = machine.registers
        found = registers[index] + registers[step]
        machine.write(index, found, found.dtype)

    return run


def exit_(machine: Machine) -> int:
    machine.exit()
    return STOP
