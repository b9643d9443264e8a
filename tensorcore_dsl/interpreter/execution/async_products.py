"""Steps of warpgroup products, and chains of products that execute at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter.core.program import STOP, Program, Run
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.execution.steps import Fetch
from tensorcore_dsl.interpreter.execution.warpgroup_products import Buffers, InPlace, Together, multiply_all
from tensorcore_dsl.interpreter.regions.code import RegionCode
from tensorcore_dsl.interpreter.regions.plan import (
    NO_REGIONS,
    Region,
    RegionFlow,
    needs_warps,
    region_of_stretches,
    uses_of,
)
from tensorcore_dsl.interpreter.regions.run import cost_of, execute
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import ProductUse
from tensorcore_dsl.isa.spec import Instruction


@dataclass(frozen=True)
class AsyncProduct:
    """A product of warpgroups, which writes to the registers of its result.

    Attributes
    ----------
    vreg : int
        These registers.
    at : int
        Its position.
    loc
        Its line in the source.
    use : ProductUse
        The registers that it uses, for the checks.
    """

    instr: Instruction
    fetch: Fetch
    vreg: int
    at: int
    loc: Any
    use: ProductUse

    def multiplication(self, machine: Machine) -> InPlace:
        """The product of the registers' present values."""
        registers, ctx = machine.registers, cast(Any, machine.ctx)
        operands = self.fetch(registers.values)
        buffers = machine.buffers.setdefault(self.at, Buffers())
        home = registers.home(self.vreg)
        return InPlace(ctx, self.instr, *operands, out=home, buffers=buffers)

    def run(self, machine: Machine) -> None:
        """Execute it alone."""
        machine.ctx.at_step = self.at
        try:
            self.multiplication(machine).run()
        except TensorCoreError as error:
            error.loc = error.loc or self.loc
            raise
        machine.registers.wrote_all(frozenset({self.vreg}))


def _computed(machine: Machine, products: Sequence[AsyncProduct], results: Sequence[Sequence[int]]) -> bool:
    """Compute products that follow each other, if they may be computed in place; return whether they may.

    results: for each result, the numbers of the products that add to it.
    """
    steps = [product.multiplication(machine) for product in products]
    if not all([step.possible for step in steps]):
        return False
    joined = None
    if all(steps[i].dropped is None for _, *later in results for i in later):
        joined = Together.joined([[steps[i] for i in some] for some in results])
    if joined is None:
        multiply_all(steps)
    else:
        joined.run()
    for product, step in zip(products, steps, strict=True):
        machine.ctx.at_step = product.at
        step.note()
    return True


def chain(
    program: Program, flow: RegionFlow, products: Sequence[AsyncProduct], heads: Collection[int]
) -> None:
    """Let `products` that only steps of single threads part execute at once.

    products: those without a guard, in order. heads: positions where jumps may lead.
    """
    following: list[AsyncProduct] = []
    for product in products:
        if following and not _follows(program, following, product, heads):
            _execute_at_once(program, flow, following)
            following = []
        following.append(product)
    _execute_at_once(program, flow, following)


def _follows(
    program: Program, before: Sequence[AsyncProduct], product: AsyncProduct, heads: Collection[int]
) -> bool:
    """True if a product may execute at once with the products before it."""
    last = before[-1]
    between = range(last.at + 1, product.at)
    some = [*before, product]
    inputs = {vreg for p in some for vreg in p.use.inputs}
    if product.instr is not last.instr or not inputs.isdisjoint(p.vreg for p in some):
        return False
    if any(head in heads for head in (*between, product.at)):
        return False
    if not all(map(partial(_is_alone, program), between)):
        return False
    used = {vreg for p in before for vreg in program.steps[p.at].reads}
    return used.isdisjoint(vreg for at in between for vreg in program.steps[at].writes)


def _is_alone(program: Program, at: int) -> bool:
    """True if a step has micro-operations, and none accesses memory or needs whole warps."""
    micro_ops = program.micro_ops.get(at, ())
    alone = bool(micro_ops) and all(op.access is None for op in micro_ops)
    return alone and not needs_warps(program.steps[at])


def _execute_at_once(program: Program, flow: RegionFlow, products: Sequence[AsyncProduct]) -> None:
    """Let the step of the first product execute all of them."""
    if len(products) < 2:
        return
    start, end = products[0].at, products[-1].at + 1
    stretches = [range(p.at + 1, q.at) for p, q in pairwise(products)]
    between = [stretch for stretch in stretches if stretch]
    region = region_of_stretches(program, flow, between) if between else None
    first = program.steps[start]
    first.run = _chained(
        first.run,
        products,
        region,
        RegionCode(program, [region] if region else []),
        *uses_of(program.steps[start:end]),
    )


def _chained(
    alone: Run,
    products: Sequence[AsyncProduct],
    between: Region | None,
    code: RegionCode,
    reads: frozenset[int],
    writes: frozenset[int],
) -> Run:
    """Execute products that follow each other, and the steps `between` them.

    None of these steps writes a register that an earlier product reads. reads, writes: vregs that must
    have been written, and that are written. alone: executes the first product if the others cannot
    follow at once.
    """
    start, end, unit = products[0].at, products[-1].at + 1, products[0].instr.threads
    parts = [(product.use, product.at) for product in products]
    use = ProductUse.joined([own for own, _ in parts])
    vregs = [product.vreg for product in products]
    results = [[i for i, own in enumerate(vregs) if own == vreg] for vreg in dict.fromkeys(vregs)]

    def one_by_one(machine: Machine) -> None:
        for product in products:
            product.run(machine)

    def run(machine: Machine) -> int | None:
        ctx, registers = machine.ctx, machine.registers
        if (
            ctx.limit < end
            or machine.level == NO_REGIONS
            or ctx.sanitizer.detector is not None
            or registers.lacks(reads)
            or (ctx.proxies.tracked and not ctx.async_mma.allows(use))
        ):
            return alone(machine)
        if ctx.active is not None and machine.park(start, unit):
            return STOP
        if between is not None:
            frames = machine.frames.setdefault(between, {})
            execute(machine, frames, code, between, 0, cost_of(between))
        if ctx.proxies.tracked:
            ctx.async_mma.add(use, parts)
        registers.wrote_all(writes)
        try:
            at_once = _computed(machine, products, results)
        except TensorCoreError:
            one_by_one(machine)  # one of them has the error
            raise
        if not at_once:
            one_by_one(machine)
        ctx.tally.behind[start + 1, end] += ctx.warps
        return end

    return run
