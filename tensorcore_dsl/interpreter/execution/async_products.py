"""Products of warpgroups as steps of a program, and chains of them that execute at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import WARPGROUP
from tensorcore_dsl.interpreter.core.program import STOP, Fused, Program, Run
from tensorcore_dsl.interpreter.core.threads import BoundedCache
from tensorcore_dsl.interpreter.execution.fused import executed
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.execution.steps import Fetch
from tensorcore_dsl.interpreter.lanes.runs import uses_of
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import ProductUse
from tensorcore_dsl.isa.descriptor import alike
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.isa.wgmma import Buffers, Multiplication, joined, multiply_all, whole_groups


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


MAX_CHAINS = 64  # of a position, which are kept


class Chain:
    """Products that follow each other at once, for descriptors that do not change."""

    def __init__(self, operands: Sequence[Sequence[Any]], steps: list[Multiplication]) -> None:
        self.operands, self.steps = operands, steps
        self._joined: list[Multiplication | None] = []

    @property
    def in_place(self) -> bool:
        return all([step.in_place for step in self.steps])

    def run(self) -> None:
        """Compute all, in place."""
        first, *others = self.steps
        whole: Multiplication | None = None
        if all(step.dropped is None for step in others):
            self._joined = self._joined or [joined(self.steps)]
            (whole,) = self._joined
        if whole is None:
            multiply_all(self.steps)
            return
        whole.c, whole.dropped = first.c, first.dropped
        multiply_all([whole])


class Chains:
    """The chains that begin at a position of a program, by the descriptors of their warpgroups."""

    def __init__(self) -> None:
        self._known = BoundedCache(MAX_CHAINS)

    def find(
        self, ctx: Any, instr: Instruction, operands: Sequence[Sequence[Any]],
        make: Callable[[], list[Multiplication]],
    ) -> Chain:  # fmt: skip
        """The chain of products with these operands, which `make` returns if they are new.

        Arrays among the operands are the registers themselves: of those that hold no descriptors,
        what they hold now is looked at when it is needed.
        """
        whole = whole_groups(ctx, instr)
        places = [i for i, o in enumerate(instr.operands) if o.name.startswith("desc_")]
        words = [given[i] for given in operands for i in places]
        first = np.empty((len(words), len(whole)), np.uint64)
        for own, descriptors in zip(first, words, strict=True):
            if np.shape(descriptors) != (ctx.threads,) or not alike(
                descriptors.reshape(-1, WARPGROUP), whole, own
            ):
                return Chain(operands, make())
        key = first.tobytes(), whole.tobytes()
        found: Chain | None = self._known.get(key)
        if found is not None and all(map(_are, found.operands, operands)):
            for step in found.steps:
                step.ask()
            return found
        new: Chain = self._known.keep(key, Chain(operands, make()))
        return new


def _are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(map(operator.is_, some, others))


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
    others = [(executed(part), part.number) for part in between]

    def run(machine: Machine) -> int | None:
        ctx, registers = machine.ctx, machine.registers
        if (
            ctx.limit < end or machine.forms.level < 0 or ctx.sanitizer.detector is not None
            or registers.lacks(reads)
        ):  # fmt: skip
            return alone(machine)
        if ctx.active is not None and machine.park(start, unit):
            return STOP
        for execute, number in others:
            execute(machine, machine.forms.tables[number])
        if ctx.proxies.tracked:
            for product in products:
                ctx.async_mma.issue(product.use, product.at)
        registers.wrote_all(writes)
        given = [product.fetch(registers.values) for product in products]
        found = machine.chains.setdefault(start, Chains()).find(
            ctx, products[0].instr, given,
            lambda: [product.multiplication(machine) for product in products],
        )  # fmt: skip
        at_once = found.in_place
        if at_once:
            found.run()
        for product, step in zip(products, found.steps, strict=True):
            ctx.at_step = product.at
            if at_once:
                step.note()
            else:
                product.run(machine)
        ctx.tally.counts[start + 1 : end] += ctx.warps
        return end

    return run
