"""Step functions of programs: each executes one step for the active threads.

They return None to go on, a position to jump to, or STOP, as `core.program.Run` declares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import InvalidArithmetic
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.program import STOP, Run
from tensorcore_dsl.interpreter.core.registers import RegisterFile
from tensorcore_dsl.interpreter.core.shadow import OFFSET
from tensorcore_dsl.interpreter.core.threads import among
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import MmaHazards
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.ir.nodes import Mark
from tensorcore_dsl.isa import classify, fragments
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, OWN
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.lowering import compiled

Fetch = Callable[[list[Any]], tuple[Any, ...]]
Reader = tuple[int, "Callable[[Any], Any] | None"]  # a vreg, and a function to apply to its value


def fetch(operands: list[Reader]) -> Fetch:
    """A function from the values of all registers to the operands of one instruction."""
    vregs = [vreg for vreg, _ in operands]
    changed = [(i, change) for i, (_, change) in enumerate(operands) if change]
    if changed:

        def fetched(registers: list[Any]) -> tuple[Any, ...]:
            found = [registers[vreg] for vreg in vregs]
            for i, change in changed:
                found[i] = change(found[i])
            return tuple(found)

        return fetched
    if not vregs:
        return lambda registers: ()
    if len(vregs) == 1:
        (only,) = vregs
        return lambda registers: (registers[only],)
    return itemgetter(*vregs)


def call(instr: Instruction, fetch: Fetch) -> Callable[[Machine], Any]:
    """A function that executes an instruction and returns its results."""
    execute = instr.execute
    return lambda machine: execute(machine.ctx, instr, *fetch(machine.registers.values))


Registers = tuple[Reader, ...]  # registers of a, b, c and d


def own_memory(base: Any, offset: Any) -> Any:
    """base + offset; addresses of the thread's own CTA without the bits that hold the rank."""
    bases = base if isinstance(base, np.ndarray) else np.atleast_1d(base)
    addresses = np.empty(bases.shape, bases.dtype)
    _own_memory(bases, offset, addresses)
    return addresses if bases is base else addresses[0]


@compiled
def _own_memory(bases: Any, offset: int, addresses: Any) -> None:
    """`own_memory` of (T,) uint32 bases."""
    for thread in range(bases.size):
        address = int(bases[thread]) + offset & 0xFFFFFFFF
        addresses[thread] = address & OFFSET if address >> CLUSTER_SHIFT == OWN else address


def independent_runs(block: nodes.Block) -> list[list[Any]]:
    """The nodes of a block in order; products that may be computed together are in one list."""
    runs: list[list[Any]] = []
    for node in block:
        if runs and _joins(node, runs[-1]):
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def _joins(node: Any, run: list[Any]) -> bool:
    """True if `node` may join `run`: it has the instruction of `run`, and uses none of its results."""
    first = run[-1]
    if not (isinstance(node, nodes.Op) and isinstance(first, nodes.Op)):
        return False
    if node.instr is not first.instr or not classify.is_dense_product(node.instr):
        return False
    if node.guard is not None or first.guard is not None:
        return False
    written = {id(value) for op in run for value in op.results}
    touched = [s.base if isinstance(s, nodes.Part) else s for s in (*node.operands, *node.results)]
    return written.isdisjoint(map(id, touched))


@dataclass(frozen=True)
class Products:
    """Matrix products of warps from position `start` on, with operands in registers.

    None reads the result of another one. uses: the registers of each product.
    """

    start: int
    instr: Instruction
    uses: list[Registers]

    def prepared(self, machine: Machine) -> fragments.RegisterProducts:
        """Prepare the products of these steps on the registers of a machine."""
        prepared_products = machine.products.get(self.start)
        if prepared_products is None:
            images = [_memory(machine.registers, readers) for readers in self.uses]
            ctx: Any = machine.ctx
            prepared_products = machine.products[self.start] = fragments.in_place(ctx, self.instr, images)
        return prepared_products


def _memory(registers: RegisterFile, readers: Registers) -> list[np.ndarray]:
    homes = [(registers.memory(vreg), change) for vreg, change in readers]
    return [home if change is None else change(home) for home, change in homes]


def plain(call: Callable[[Machine], Any], results: list[tuple[int, Any]], at: int) -> Run:
    """An instruction after which all active threads go on."""
    if not results:

        def run(machine: Machine) -> None:
            call(machine)

    elif len(results) == 1:
        (vreg, kind) = results[0]

        def run(machine: Machine) -> None:
            machine.registers.write(vreg, call(machine), kind)

    else:

        def run(machine: Machine) -> None:
            for (vreg, kind), value in zip(results, call(machine), strict=True):
                machine.registers.write(vreg, value, kind)

    return run


def blocking(call: Callable[[Machine], Any], results: list[tuple[int, Any]], at: int) -> Run:
    """An instruction that returns who of the active threads may go on; the others execute it again
    later."""

    def run(machine: Machine) -> int | None:
        answer, ctx = call(machine), machine.ctx
        go = answer[0] if isinstance(answer, tuple) else answer
        passing = ctx.lanes if go is ctx.mask else np.count_nonzero(go)
        if not passing:
            machine.suspend(ctx.mask, at)
            return STOP
        if passing < ctx.lanes:
            machine.suspend(ctx.mask & ~go, at)
            ctx.narrow(go)
        if isinstance(answer, tuple):
            for (vreg, kind), value in zip(results, answer[1:], strict=True):
                machine.registers.write(vreg, value, kind)
        return None

    return run


def member_mask(instr: Instruction, reads: tuple[int, ...]) -> int | None:
    """The vreg of the mask of lanes that must meet, for instructions such as shfl.sync."""
    if Effect.CONVERGENT not in instr.effects:
        return None
    masks = [vreg for vreg, o in zip(reads, instr.operands, strict=True) if o.name == "mask"]
    return masks[0] if masks else None


def gathered(run: Run, at: int, unit: int, mask: int | None, orders: bool = True) -> Run:
    """An instruction whose threads wait for each other: a warp, a warpgroup, or the lanes of a mask.

    orders: it also orders their accesses.
    """

    def gathered(machine: Machine) -> int | None:
        named = None if mask is None else machine.registers.values[mask]
        if machine.ctx.active is not None:
            if machine.exchange_apart(at, orders):
                return None
            if machine.park(at, unit, named):
                return STOP
        target = run(machine)
        if orders and machine.ctx.sanitizer.detector is not None:
            machine.ctx.sanitizer.detector.converge(named)
        return target

    return gathered


def aligned(run: Run, at: int) -> Run:
    """An instruction that all lanes of a warp which have not returned execute together."""

    def gathered(machine: Machine) -> int | None:
        if machine.ctx.active is not None and machine.park(at, WARP, aligned=True):
            return STOP
        return run(machine)

    return gathered


def undivided(run: Run, at: int) -> Run:
    """An aligned instruction under a guard, which may not split a warp."""

    def checked(machine: Machine) -> int | None:
        ctx = machine.ctx
        away = machine.missing(ctx.mask, WARP, aligned=True)
        if away.lanes:
            ctx.refuse_divergence(int(away.numbers[0]) // WARP * WARP, WARP, ctx.mask, at)
        return run(machine)

    return checked


def unbroken(run: Run) -> Run:
    """A warp-wide instruction under a guard, which may not split a warp."""

    def checked(machine: Machine) -> int | None:
        machine.ctx.whole_warps()
        return run(machine)

    return checked


def guarded(run: Run, guard: int, negated: bool) -> Run:
    """A step of the threads where the guard holds; the others skip it."""

    def guarded(machine: Machine) -> int | None:
        flags, ctx = machine.registers.values[guard], machine.ctx
        inner = ctx.masks.find((~flags if negated else flags) & ctx.mask)
        if not inner.lanes:
            return None
        if inner.lanes == ctx.lanes:
            return run(machine)
        return machine.run_guarded(inner.threads, run)

    return guarded


def copy(vreg: int, source: int) -> Run:

    def run(machine: Machine) -> None:
        value = machine.registers.values[source]
        if value is None:
            machine.registers.forget(vreg, machine.ctx.mask)
        else:
            machine.registers.copy(vreg, value, value.dtype, (source,))

    return run


def gather(vreg: int, rows: list[tuple[int, int | None]], kind: Any, group: bool) -> Run:
    """Copy scalars and registers of groups to the registers of a group."""
    dtype = np.dtype(kind)
    sources = tuple(p for p, _ in rows)

    def run(machine: Machine) -> None:
        values = machine.registers.values
        if any(values[p] is None for p in sources):
            machine.registers.forget(vreg, machine.ctx.mask)
            return
        parts = [values[p] if r is None else values[p][r] for p, r in rows]
        if group:
            out = np.empty((len(parts), machine.ctx.threads), dtype)
            for row, part in zip(out, parts, strict=True):
                row[:] = part
        else:
            out = parts[0]
        machine.registers.copy(vreg, out, dtype, sources)

    return run


def entered(index: int, stop: int, step: int, kind: Any, to_end: bool) -> Run:
    """Check a counted loop where it is entered and `index` holds its start: the step is not zero.

    to_end: nothing leaves the loop before its end, so the index past the last iteration, with
    which the loop ends, must fit its type.
    """
    limits, vregs = np.iinfo(kind), (index, stop, step)

    def bounds(machine: Machine, thread: int) -> list[int]:
        each = (np.atleast_1d(machine.registers.values[vreg].view(kind)) for vreg in vregs)
        return [values[thread if values.size > 1 else 0].item() for values in each]

    def refuse(machine: Machine, thread: int, text: str) -> NoReturn:
        of, called = machine.ctx.geometry, ", ".join(map(str, bounds(machine, thread)))
        block, number = (",".join(map(str, index_of(thread))) for index_of in (of.cta, of.thread))
        raise InvalidArithmetic(f"range({called}): {text} (CTA ({block}), thread ({number}))")

    def run(machine: Machine) -> None:
        registers, mask = machine.registers.values, machine.ctx.mask
        start, last, by = (registers[vreg].view(kind) for vreg in vregs)
        zero = mask & (by == 0)
        if zero.any():
            refuse(machine, int(np.argmax(zero)), "the step is 0, with which no range ends")
        if not to_end:
            return
        with np.errstate(over="ignore"):  # The difference may overflow in threads that count the other way.
            far = (by > 0) & (start < last) & (last - 1 > limits.max - by)
            if limits.min:
                far |= (by < 0) & (start > last) & (last + 1 < limits.min - by)
        for thread in map(int, np.flatnonzero(mask & far)):
            counted = range(*bounds(machine, thread))
            behind = counted[-1] + counted.step
            if not limits.min <= behind <= limits.max:
                total = f"{counted[-1]} + {counted.step}"
                refuse(
                    machine,
                    thread,
                    f"the index has {limits.bits} bits, in which {total} wraps "
                    "around, so the range does not end there",
                )

    return run


def inside(vreg: int, index: int, stop: int, step: int, kind: Any) -> Run:
    """Set the condition of a counted loop: the index lies before `stop`, seen along the step."""
    signed = np.dtype(kind).kind == "i"

    def run(machine: Machine) -> None:
        registers = machine.registers.values
        at, last = registers[index].view(kind), registers[stop].view(kind)
        inside = at < last
        if signed:
            down = registers[step].view(kind) < 0
            if down.any():
                inside = np.where(down, at > last, inside)
        machine.registers.put(vreg, inside)

    return run


def advance(index: int, step: int) -> Run:
    """Add the step of a counted loop to its index."""

    def run(machine: Machine) -> None:
        registers = machine.registers.values
        value = registers[index] + registers[step]
        machine.registers.write(index, value, value.dtype)

    return run


def observed(mark: Mark, at: int) -> Run:
    """A mark of a debug build, which the machine's observers see."""

    def run(machine: Machine) -> None:
        for observer in machine.observers:
            observer.visit(machine, mark, at)

    return run


def exit_(machine: Machine) -> int:
    machine.ctx.exit()
    machine.watchdog.changes += 1
    return STOP


def finish(machine: Machine) -> int:
    """The end of the kernel, which threads reach without a `return`."""
    machine.ctx.finished |= machine.ctx.mask
    return exit_(machine)


def branch(condition: int, target: Callable[[], int]) -> Run:
    """Threads whose condition is false jump ahead to `target()`."""

    def run(machine: Machine) -> int | None:
        taken, ctx = machine.registers.values[condition], machine.ctx
        if np.ndim(taken):
            staying = among(taken, ctx.mask)
            if staying == 0:
                return target()
            if staying == ctx.lanes:
                return None
        stay, leave = taken & ctx.mask, ctx.mask & ~taken
        if not stay.any():
            return target()
        if leave.any():
            machine.split(leave, target())
            ctx.narrow(stay)
        return None

    return run


def watched(run: Run, check: Callable[[MmaHazards], None]) -> Run:
    """A step that uses registers of asynchronous products, with its check."""

    def checked(machine: Machine) -> int | None:
        if machine.ctx.proxies.tracked:
            check(machine.ctx.async_mma)
        return run(machine)

    return checked
