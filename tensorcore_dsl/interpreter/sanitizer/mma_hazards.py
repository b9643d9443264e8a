"""Hazard checks for asynchronous matrix products in flight: their registers (PTX manual 9.7.15.7).

The interpreter computes a product when it is issued. On hardware it runs until its group is waited
for: until then the warpgroup must touch neither the accumulators nor the registers of A. It must
not write the registers of the metadata of a sparse product either: the manual does not say so, but
an H200 reads them as late as those of A. Copies of all registers of A are the
compiler's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import EmulationError, Loc
from tensorcore_dsl.interpreter.core.chunk import WARPGROUP, Chunk
from tensorcore_dsl.interpreter.sanitizer.async_proxy import PRODUCT, ProxyFences
from tensorcore_dsl.interpreter.sanitizer.race_report import expression
from tensorcore_dsl.interpreter.sanitizer.races import Races
from tensorcore_dsl.ir.nodes import Address, Kernel, Op, Part, Source, walk
from tensorcore_dsl.isa import advice
from tensorcore_dsl.isa.spec import Instruction, MmaOrdering

Registers = Iterable[tuple[int, Any]]  # vregs and the values that they hold


@dataclass(frozen=True)
class RegisterUse:
    """A step that uses registers of products without being one; by vreg.

    Attributes
    ----------
    reads, writes : tuple
        Places that are accumulators or late inputs of some product.
    copies : bool
        It copies all registers of a group.
    loc : Loc or None
        The location in the source, if it differs from the location of the step.
    moves : bool
        It only moves registers.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    copies: bool = False
    loc: Loc | None = None
    moves: bool = False


@dataclass(frozen=True)
class ProductUse(EagerDict):
    """A product and its registers, by vreg.

    Attributes
    ----------
    inputs : frozenset
        Registers that it reads until it is waited for. `a` has the registers of A.
    shape
        Shape and type of D; products of one shape may share accumulators while in flight. Several products
        of one instruction that are issued at once are one (`joined`).
    """

    instr: Instruction
    ordering: MmaOrdering
    accumulators: frozenset[int]
    a: frozenset[int]
    inputs: frozenset[int]

    @cached_property
    def shape(self) -> str:
        return f"{self.instr.params['shape']}.{self.instr.params['d']}"

    @classmethod
    def joined(cls, uses: Sequence[ProductUse]) -> ProductUse:
        """Join the accesses of products of the same instruction."""
        accumulators, a, inputs = (
            frozenset[int]().union(*every)
            for every in zip(*[(use.accumulators, use.a, use.inputs) for use in uses], strict=True)
        )
        return replace(uses[0], accumulators=accumulators, a=a, inputs=inputs)

    def meets(self, use: RegisterUse) -> bool:
        """True if a step may not use its registers while it is in flight."""
        return not (
            self.accumulators.isdisjoint(use.reads + use.writes)
            and self.inputs.isdisjoint(use.writes)
            and (use.copies or self.a.isdisjoint(use.reads))
        )

    def excludes(self, use: ProductUse) -> bool:
        """True if a product may not be issued while it is in flight."""
        shared = use.inputs if self.shape == use.shape else use.inputs | use.accumulators
        return not self.accumulators.isdisjoint(shared)


@dataclass
class ProductsInFlight:
    """Products in flight that were issued at once.

    parts: use and step of each product. groups: the warpgroups that issued the products and have not
    waited for them. committed: groups that each warpgroup had committed before.
    """

    use: ProductUse
    parts: Sequence[tuple[ProductUse, int]]
    groups: np.ndarray
    committed: np.ndarray


class MmaHazards:
    """The products in flight of a chunk of CTAs.

    Attributes
    ----------
    commits
        (warpgroups,), groups committed; nobody changes the array.
    fenced
        (warpgroups,), have they fenced at all?
    touched : dict
        By vreg, the warpgroups that used the register since their last fence.
    """

    def __init__(self, chunk: Chunk, proxies: ProxyFences) -> None:
        self.chunk = chunk
        self.proxies = proxies
        count = chunk.threads // WARPGROUP
        self.commits = np.zeros(count, np.int64)
        self.fenced = np.zeros(count, np.bool_)
        self.queue: list[ProductsInFlight] = []
        none = np.empty(0, np.int64)
        self._owners = none, none, (none, none, none)
        self.touched: dict[int, np.ndarray] = {}
        self.detector: Races | None = None

    def fence(self) -> None:
        groups, _ = self.chunk.units(WARPGROUP)
        self.fenced |= groups
        others = ~groups if self.touched else groups
        for vreg, users in list(self.touched.items()):
            left = self.touched[vreg] = users & others
            if not np.count_nonzero(left):
                del self.touched[vreg]

    def commit(self) -> None:
        self.commits = self.commits + self.chunk.units(WARPGROUP)[0]
        self.proxies.waits[PRODUCT].commits = self.commits

    def owners(self, whole: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers and CTAs of the warpgroups in a mask, and the groups that each has committed.

        Callers may not change the arrays.
        """
        before, commits, found = self._owners
        if before is not whole or commits is not self.commits:
            numbers, ctas, _ = found
            if before is not whole:
                numbers = np.flatnonzero(whole)
                ctas = numbers * WARPGROUP // self.chunk.group
            found = numbers, ctas, self.commits[numbers]
            self._owners = whole, self.commits, found
        return found

    def wait(self, pending: int) -> None:
        (groups, _), due = self.chunk.units(WARPGROUP), self.commits - pending
        # Products that were issued together end together.
        after: dict[tuple[int, int], tuple[np.ndarray, bool]] = {}
        for product in self.queue:
            issued = id(product.groups), id(product.committed)
            if issued not in after:
                rest = product.groups & ~(groups & (product.committed < due))
                after[issued] = rest, bool(np.count_nonzero(rest))
        left = []
        for product in self.queue:
            rest, some = after[id(product.groups), id(product.committed)]
            product.groups = rest
            if some:
                left.append(product)
        self.queue = left
        self.proxies.finish(PRODUCT, groups, due, pending)
        if self.detector is not None:
            self.detector.waited("products", groups, due, WARPGROUP)

    def issue(self, use: ProductUse, step: int) -> None:
        """Check the registers of a product before it runs, and add it to the products in flight."""
        groups, _ = self.chunk.units(WARPGROUP)
        unfenced = self._unfenced(use, groups)
        if np.count_nonzero(unfenced):
            group, fence = int(np.argmax(unfenced)), advice.called(use.ordering.fence)
            why = f"and did not fence: {fence} comes first"
            if self.fenced[group]:
                why = (
                    f"and did not fence since: {fence} comes between, and the result of a product "
                    "replaces the accumulators that it takes"
                )
            raise EmulationError(
                f"{use.instr.mnemonic}: {self.chunk.warpgroup_name(group)} used its accumulators "
                f"or A's registers {why}"
            )
        for product in self._owners_of(use, groups):
            owner = next(step for part, step in product.parts if part.excludes(use))
            self._refuse(product, owner, use.instr.mnemonic, groups)
        self.add(use, ((use, step),))

    def allows(self, use: ProductUse) -> bool:
        """True if the registers of products pass the checks of `issue`."""
        groups, _ = self.chunk.units(WARPGROUP)
        unfenced = np.count_nonzero(self._unfenced(use, groups))
        return not unfenced and not any(self._owners_of(use, groups))

    def add(self, use: ProductUse, parts: Sequence[tuple[ProductUse, int]]) -> None:
        """Note products in flight. parts: registers and step of each product; use: registers of all."""
        groups, _ = self.chunk.units(WARPGROUP)
        self.queue.append(ProductsInFlight(use, parts, groups, self.commits))

    def _unfenced(self, use: ProductUse, groups: np.ndarray) -> np.ndarray:
        """Select the warpgroups that must fence before they issue a product."""
        unfenced = groups & ~self.fenced
        for vreg in use.accumulators | use.a if self.touched else ():
            if vreg in self.touched:
                unfenced = unfenced | groups & self.touched[vreg]
        return unfenced

    def _owners_of(self, use: ProductUse, groups: np.ndarray) -> Iterator[ProductsInFlight]:
        """The products in flight that must be waited for before `groups` issue another one."""
        for product in self.queue:
            if product.use.excludes(use) and (product.groups & groups).any():
                yield product

    def access(self, uses: Sequence[RegisterUse]) -> None:
        """Check ordinary steps that use registers of products.

        Compilers of PTX move registers across a fence, and the assembler orders these.
        """
        groups, _ = self.chunk.units(WARPGROUP)
        for use, product in itertools.product(uses, self.queue):
            if product.use.meets(use) and (product.groups & groups).any():
                step = next(step for part, step in product.parts if part.meets(use))
                text = expression(use.loc)
                self._refuse(product, step, f"`{text}`" if text else use.name, groups, use.loc)
        if self.chunk.program.kernel.foreign:
            uses = [use for use in uses if not use.moves]
        for vreg in {vreg for use in uses for vreg in use.reads + use.writes}:
            before = self.touched.get(vreg, groups)
            self.touched[vreg] = groups if before is groups else before | groups

    def _refuse(
        self, product: ProductsInFlight, step: int, what: str, groups: np.ndarray, loc: Loc | None = None
    ) -> NoReturn:
        group, ordering = int(np.argmax(product.groups & groups)), product.use.ordering
        uncommitted = product.committed[group] == self.commits[group]
        needed = " and ".join(map(advice.called, (*[ordering.commit] * bool(uncommitted), ordering.wait)))
        too_few = self.proxies.waits[PRODUCT].too_few(group, int(product.committed[group]))
        raise EmulationError(
            f"{what}: {self.chunk.warpgroup_name(group)} uses registers that the "
            f"{product.use.instr.opcode} at {self.chunk.loc(step)} still owns: "
            + (too_few or f"{needed} must come between"),
            loc,
        )


def product_use(instr: Instruction, reads: tuple[int, ...]) -> ProductUse | None:
    """The registers of an instruction that is an asynchronous product and reads these vregs."""
    if instr.ordering is None:
        return None
    vregs = dict(zip((o.name for o in instr.operands), reads, strict=True))
    assert instr.tied is not None
    named = {instr.tied}, {"a"}, {*instr.ordering.late_inputs}
    uses = [frozenset(vregs[name] for name in names if name in vregs) for names in named]
    return ProductUse(instr, instr.ordering, *uses)


def register_use(
    name: str, reads: Registers, writes: Registers, watched: set[Any], **more: Any
) -> RegisterUse | None:
    """The use of `watched` registers by a step, from its vregs and what they hold; or None.

    more: `copies`, `loc` and `moves` of the use.
    """
    read = tuple(vreg for vreg, source in reads if _base(source) in watched)
    written = tuple(vreg for vreg, value in writes if value in watched)
    return RegisterUse(name, read, written, **more) if read or written else None


def product_registers(kernel: Kernel) -> set[Any]:
    """The values that are accumulators or late inputs of asynchronous products."""
    values: set[Any] = set()
    for node in walk(kernel.body):
        if isinstance(node, Op) and node.instr.ordering is not None:
            names = (node.instr.tied, *node.instr.ordering.late_inputs)
            for source, operand in zip(node.operands, node.instr.operands, strict=True):
                if operand.name in names:
                    values.add(_base(source))
            values |= set(node.results)
    return values


def _base(source: Source) -> Any:
    return source.base if isinstance(source, (Address, Part)) else source
