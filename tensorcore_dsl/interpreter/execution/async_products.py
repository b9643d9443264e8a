"""Products of warpgroups as steps of a program, and chains of them that execute at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tensorcore_dsl.interpreter.core.program import STOP, Fused, Program, Run
from tensorcore_dsl.interpreter.execution.fused import executed
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.execution.steps import Fetch
from tensorcore_dsl.interpreter.lanes.runs import uses_of
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import ProductUse
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.isa.wgmma import Buffers, Multiplication, multiply_all


@dataclass(frozen=True)
class AsyncProduct:
    """A product of warpgroups, which writes to the registers of its result.

    place: these registers. at: its position. loc: its line in the source. use: the registers that
    it uses, for the checks.
    """

    instr: Instruction
    fetch: Fetch
    place: int
    at: int
    loc: Any
    use: ProductUse

    def multiplication(self, machine: Machine) -> Multiplication:
        """The product of what the registers hold now."""
        registers, ctx = machine.registers, cast(Any, machine.ctx)
        operands = self.fetch(registers.values)
        buffers = machine.buffers.setdefault(self.at, Buffers())
        home = registers.home(self.place)
        return Multiplication(
            ctx, self.instr, *operands, out=home, buffers=buffers, loc=self.loc
        )

    def run(self, machine: Machine) -> None:
        """Execute it alone."""
        self.multiplication(machine).run()
        machine.registers.wrote_all(frozenset({self.place}))


def chain(
    program: Program, products: Sequence[AsyncProduct], heads: Collection[int]
) -> None:
    """Let `products` that only steps of single threads part execute at once.

    products: those without a guard, in order. heads: positions where jumps may lead.
    """
    parts = {part.start: part for part in program.fused if not part.accesses and not part.whole}
    found: list[AsyncProduct] = []
    for product in products:
        if found and not _follows(program, found, product, parts, heads):
            _execute_at_once(program, found, parts)
            found = []
        found.append(product)
    _execute_at_once(program, found, parts)


def _follows(
    program: Program, before: Sequence[AsyncProduct], product: AsyncProduct,
    parts: dict[int, Fused], heads: Collection[int],
) -> bool:  # fmt: skip
    """May a product execute at once with those before it?"""
    last = before[-1]
    after, at = last.at + 1, product.at
    if product.instr is not last.instr or product.place != last.place:
        return False
    if any(head in heads for head in range(after, at + 1)):
        return False
    if after == at:
        return True
    part = parts.get(after)
    if part is None or part.end != at:
        return False
    used = {place for p in before for place in program.steps[p.at].reads}
    return part.writes.isdisjoint(used)


def _execute_at_once(
    program: Program, products: Sequence[AsyncProduct], parts: dict[int, Fused]
) -> None:
    """Let the step of the first product execute all of them."""
    if len(products) < 2:
        return
    start, end = products[0].at, products[-1].at + 1
    between = [parts[p.at + 1] for p in products[:-1] if p.at + 1 in parts]
    first = program.steps[start]
    first.run = _chained(first.run, products, between, *uses_of(program.steps[start:end]))


def _chained(
    alone: Run, products: Sequence[AsyncProduct], between: Sequence[Fused],
    reads: frozenset[int], writes: frozenset[int],
) -> Run:  # fmt: skip
    """Products that follow each other, and the steps `between` them, none of which writes what a
    product before it reads.

    reads, writes: places that must have been written, and that are written. `alone` executes the
    first product, where the others cannot follow at once.
    """
    start, end, unit = products[0].at, products[-1].at + 1, products[0].instr.threads
    others = [executed(part) for part in between]

    def run(machine: Machine) -> int | None:
        ctx, registers = machine.ctx, machine.registers
        if (
            ctx.limit < end or machine.forms.level < 0 or ctx.sanitizer.detector is not None
            or registers.lacks(reads)
        ):  # fmt: skip
            return alone(machine)
        if ctx.active is not None and machine.park(start, unit):
            return STOP
        for execute in others:
            execute(machine)
        if ctx.proxies.tracked:
            for product in products:
                ctx.async_mma.issue(product.use, product.at)
        registers.wrote_all(writes)
        steps = [product.multiplication(machine) for product in products]
        at_once = all([step.in_place for step in steps])
        if at_once:
            multiply_all(steps)
        for product, step in zip(products, steps, strict=True):
            ctx.at_step = product.at
            if at_once:
                step.note()
            else:
                product.run(machine)
        ctx.tally.counts[start + 1 : end] += ctx.warps
        return end

    return run
