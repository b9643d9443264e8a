"""Steps of warpgroup products, and chains of products that execute at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any, cast

import numpy as np

from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter.core import native
from tensorcore_dsl.interpreter.core.chunk import WARPGROUP
from tensorcore_dsl.interpreter.core.program import STOP, Program, Run
from tensorcore_dsl.interpreter.core.threads import BoundedCache
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.execution.steps import Fetch
from tensorcore_dsl.interpreter.regions.code import Code
from tensorcore_dsl.interpreter.regions.plan import NONE, Flow, Region, needs_warps, straight, uses_of
from tensorcore_dsl.interpreter.regions.run import cost_of, execute
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import ProductUse
from tensorcore_dsl.isa.descriptor import Chunks, SharedTiles
from tensorcore_dsl.isa.joined_products import Together
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.isa.wgmma import Buffers, Lines, Multiplication, multiply_all, whole_groups


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
        return Multiplication(ctx, self.instr, *operands, out=home, buffers=buffers)

    def run(self, machine: Machine) -> None:
        """Execute it alone."""
        machine.ctx.at_step = self.at
        try:
            self.multiplication(machine).run()
        except TensorCoreError as error:
            error.loc = error.loc or self.loc
            raise
        machine.registers.wrote_all(frozenset({self.place}))


MAX_CHAINS = 64  # of a position, which are kept


Reads = Sequence[tuple[Chunks, list[tuple[int, np.ndarray]]]]


class Chain:
    """Products that follow each other at once, for descriptors that do not change.

    in_place: may they be computed so? make: makes the products. of_results: for each result, which
    of them it takes. together: those that stand for all, which keep C, and reads: what they read of
    shared memory; without them, both are made when needed.
    """

    def __init__(
        self,
        make: Callable[[], list[Multiplication]],
        of_results: Sequence[Sequence[int]],
        positions: Sequence[int],
        together: Together | None = None,
        reads: Reads = (),
    ) -> None:
        self.of_results, self.positions, self.reads = of_results, positions, reads
        self._make, self._together = make, together
        self._steps: list[Multiplication] = []
        self._keeps = self._joined = self.in_place = self._in_one = together is not None
        if together is None:
            self._look()

    @property
    def steps(self) -> list[Multiplication]:
        self._steps = self._steps or self._make()
        return self._steps

    def _look(self) -> None:
        later = [self.steps[i] for _, *others in self.of_results for i in others]
        self.in_place = all([step.in_place for step in self.steps])
        self._in_one = all([step.dropped is None for step in later])

    def ask(self, keeps: bool) -> None:
        """Find out who keeps C now; keeps: all do."""
        if keeps and self._keeps:
            return
        for step in self.steps:
            step.ask()
        self._keeps = keeps
        self._look()
        if self._together is not None:
            self._together.ask([self.steps[first] for first, *_ in self.of_results])

    @property
    def together(self) -> Together | None:
        """One product for all steps; None unless such a product exists and only first steps lack C."""
        if not self._in_one:
            return None
        if not self._joined:
            groups = [[self.steps[i] for i in some] for some in self.of_results]
            self._together, self._joined = Together.joined(groups), True
            if self._together is not None:
                self.reads = self._joined_reads(self._together.lines)
        return self._together

    def run(self) -> None:
        """Compute all, in place."""
        together = self.together
        if together is None:
            multiply_all(self.steps)
        else:
            together.run()

    def note(self, ctx: Any) -> None:
        """Let the checks know what the products read."""
        together = self.together
        if together is None:
            for at, step in zip(self.positions, self.steps, strict=True):
                ctx.at_step = at
                step.note()
            return
        ctx.at_step, first = self.positions[0], together.steps[0]
        for chunks, parts in self.reads:
            ctx.shared.note_chunks(first.instr, chunks, first.whole, parts)

    def _joined_reads(self, wholes: Sequence[dict[str, Lines]]) -> Reads:
        """Reads of all steps, and the part of each step; one entry for equal operands."""
        found = []
        for whole, some in zip(wholes, self.of_results, strict=True):
            for name, lines in whole.items():
                pairs = [(self.positions[i], self.steps[i]) for i in some]
                parts = [(at, step.lines[name][0].chunks.numbers) for at, step in pairs]
                found.append((lines.chunks, parts))
        (first, _), *others = found
        if any(not np.array_equal(chunks.own, first.own) for chunks, _ in others):
            return found
        addresses = np.concatenate([chunks.addresses for chunks, _ in found], axis=1)
        every = sorted((part for _, parts in found for part in parts), key=itemgetter(0))
        return [(Chunks(addresses, first.own), every)]


class Chains:
    """The chains of products at some positions of a program, by the descriptors of their
    warpgroups."""

    def __init__(self, machine: Machine, products: Sequence[AsyncProduct]) -> None:
        self.products = products
        self.positions = [product.at for product in products]
        self._known = BoundedCache(MAX_CHAINS)
        self._first: Together | None = None  # what stands for a chain
        places = [product.place for product in products]
        self.of_results = [
            [i for i, own in enumerate(places) if own == place] for place in dict.fromkeys(places)
        ]
        values, threads = machine.registers.values, machine.ctx.threads
        given, again = ([product.fetch(values) for product in products] for _ in range(2))
        names = [o.name for o in products[0].instr.operands]
        words = [x for own in given for x, name in zip(own, names) if name.startswith("desc_")]
        keeps = [own[names.index("scale_d")] for own in given]
        self._some_drop = not all(np.ndim(x) or x for x in keeps)
        # Constants stay as they are, and registers where they are.
        words, keeps = ([x for x in some if np.ndim(x)] for some in (words, keeps))
        self._stay = all(map(_are, given, again)) and all(
            np.shape(x) == (threads,) and x.flags.c_contiguous for x in (*words, *keeps)
        )
        self._words, self._flags = (
            np.array([x.ctypes.data if self._stay else 0 for x in some], np.int64) for some in (words, keeps)
        )

    def run(self, machine: Machine) -> bool:
        """Compute the products, if they may be computed in place; may they?"""
        found = self.find(machine)
        if found.in_place:
            found.run()
            found.note(machine.ctx)
        return found.in_place

    def find(self, machine: Machine) -> Chain:
        """The chain of the products of what the registers hold now."""
        make = partial(_multiplications, machine, self.products)
        if not self._stay:
            return self._new(make)
        whole = whole_groups(cast(Any, machine.ctx), self.products[0].instr)
        words = np.empty((len(self._words), len(whole)), np.uint64)
        found = _held(self._words, self._flags, whole, words)
        if not found:
            return self._new(make)
        key, keeps = (words.tobytes(), whole.tobytes()), found == ALL_KEEP and not self._some_drop
        known: Chain | None = self._known.get(key)
        if known is None:
            kept = (self.positions[0], *key)
            known = self._known.keep(key, self._kept(make, kept, whole, keeps, machine.ctx.tiles))
        known.ask(keeps)
        return known

    def _new(self, make: Callable[[], list[Multiplication]], *known: Any) -> Chain:
        return Chain(make, self.of_results, self.positions, *known)

    def _kept(
        self,
        make: Callable[[], list[Multiplication]],
        key: Any,
        whole: np.ndarray,
        keeps: bool,
        tiles: SharedTiles,
    ) -> Chain:
        """A chain; with what is kept of it from other launches, if all products keep C."""
        kept = tiles.kept(key)
        if self._first is not None and keeps and kept is not None:
            lines, reads = kept
            return self._new(make, self._first.moved(lines, whole), reads)
        new = self._new(make)
        if new.in_place and new.together is not None:
            self._first = new.together
            if kept is not None:
                _, new.reads = kept  # whose spans are known
                return new
            lines = new.together.lines
            tables = [x.chunks for own in lines for x in own.values()]
            tiles.keep(key, (lines, new.reads), tables + [chunks for chunks, _ in new.reads])
        return new


def _multiplications(machine: Machine, products: Sequence[AsyncProduct]) -> list[Multiplication]:
    return [product.multiplication(machine) for product in products]


def _are(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(map(operator.is_, some, others))


ALIKE, ALL_KEEP = 1, 2


@native.compiled
def _held(descriptors: Any, flags: Any, whole: Any, words: Any) -> int:
    """Have the warpgroups that are `whole` one word each in all registers of `descriptors`, which
    `words` (registers, warpgroups) receives? ALL_KEEP: all `flags` of theirs are set, too.

    descriptors, flags: addresses of registers.
    """
    for i in range(descriptors.size):
        held = native.array_at(descriptors[i], (whole.size, WARPGROUP), np.uint64)
        for group in range(whole.size):
            words[i, group] = np.uint64(0)
            if whole[group]:
                word, wrong = held[group, 0], np.uint64(0)
                for lane in range(WARPGROUP):
                    wrong |= held[group, lane] ^ word
                if wrong != 0:
                    return 0
                words[i, group] = word
    for i in range(flags.size):
        kept = native.array_at(flags[i], (whole.size, WARPGROUP), np.bool_)
        for group in range(whole.size):
            if whole[group]:
                for lane in range(WARPGROUP):
                    if not kept[group, lane]:
                        return ALIKE
    return ALL_KEEP


def chain(program: Program, flow: Flow, products: Sequence[AsyncProduct], heads: Collection[int]) -> None:
    """Let `products` that only steps of single threads part execute at once.

    products: those without a guard, in order. heads: positions where jumps may lead.
    """
    found: list[AsyncProduct] = []
    for product in products:
        if found and not _follows(program, found, product, heads):
            _execute_at_once(program, flow, found)
            found = []
        found.append(product)
    _execute_at_once(program, flow, found)


def _follows(
    program: Program, before: Sequence[AsyncProduct], product: AsyncProduct, heads: Collection[int]
) -> bool:
    """May a product execute at once with those before it?"""
    last = before[-1]
    between = range(last.at + 1, product.at)
    some = [*before, product]
    inputs = {place for p in some for place in p.use.inputs}
    if product.instr is not last.instr or not inputs.isdisjoint(p.place for p in some):
        return False
    if any(head in heads for head in (*between, product.at)):
        return False
    if not all(map(partial(_is_alone, program), between)):
        return False
    used = {place for p in before for place in program.steps[p.at].reads}
    return used.isdisjoint(place for at in between for place in program.steps[at].writes)


def _is_alone(program: Program, at: int) -> bool:
    """Has a step rows, none of which accesses memory or needs whole warps?"""
    rows = program.rows.get(at, ())
    alone = bool(rows) and all(row.access is None for row in rows)
    return alone and not needs_warps(program.steps[at])


def _execute_at_once(program: Program, flow: Flow, products: Sequence[AsyncProduct]) -> None:
    """Let the step of the first product execute all of them."""
    if len(products) < 2:
        return
    start, end = products[0].at, products[-1].at + 1
    stretches = [range(p.at + 1, q.at) for p, q in pairwise(products)]
    between = [stretch for stretch in stretches if stretch]
    region = straight(program, flow, between) if between else None
    first = program.steps[start]
    first.run = _chained(
        first.run,
        products,
        region,
        Code(program, [region] if region else []),
        *uses_of(program.steps[start:end]),
    )


def _chained(
    alone: Run,
    products: Sequence[AsyncProduct],
    between: Region | None,
    code: Code,
    reads: frozenset[int],
    writes: frozenset[int],
) -> Run:
    """Products that follow each other, and the steps `between` them, none of which writes what a
    product before it reads.

    reads, writes: places that must have been written, and that are written. `alone` executes the
    first product, where the others cannot follow at once.
    """
    start, end, unit = products[0].at, products[-1].at + 1, products[0].instr.threads
    parts = [(product.use, product.at) for product in products]
    use = ProductUse.joined([own for own, _ in parts])

    def one_by_one(machine: Machine) -> None:
        for product in products:
            product.run(machine)

    def run(machine: Machine) -> int | None:
        ctx, registers = machine.ctx, machine.registers
        if (
            ctx.limit < end
            or machine.level == NONE
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
        chains = machine.chains.get(start)
        if chains is None:
            chains = machine.chains[start] = Chains(machine, products)
        try:
            at_once = chains.run(machine)
        except TensorCoreError:
            one_by_one(machine)  # one of them has the error
            raise
        if not at_once:
            one_by_one(machine)
        ctx.tally.behind[start + 1, end] += ctx.warps
        return end

    return run
