"""Products of warpgroups (`wgmma`), computed in the registers of their results.

Consecutive products of the same warpgroups join, so that shared operands are read and decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.descriptor import Chunks
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.isa.wgmma import THREADS, Lines, Multiplication
from tensorcore_dsl.numerics import products


class Buffers:
    """Memory for the operands of a product and its prepared form.

    One instruction of a program uses it for all of its executions.
    """

    def __init__(self) -> None:
        self.lines: dict[str, np.ndarray] = {}
        self.prepared: Any = None
        self.arrays: Sequence[np.ndarray | None] = ()  # arrays of the prepared form
        self.chain: Buffers | None = None  # buffers of the joined product that starts here

    def of(self, name: str, groups: int, lines: Lines) -> np.ndarray:
        """Buffer for the lines of an operand."""
        shape = groups, *lines.shape
        buffer = self.lines.get(name)
        if buffer is None or buffer.shape != shape:
            buffer = self.lines[name] = np.empty(shape, np.uint32)
        return buffer


class InPlace(Multiplication):
    """A product whose result is `out`.

    Attributes
    ----------
    out : array
        Registers that receive d, contiguous.
    buffers : Buffers
        Its memory.
    dropped : array or None
        (warpgroups,) bool: warpgroups that set C to zero in place, because `scale_d` is false.
    """

    def __init__(
        self, ctx: Context, instr: Instruction, c: Any, *operands: Any, out: np.ndarray, buffers: Buffers
    ) -> None:
        self.out, self.buffers = out, buffers
        self.dropped: np.ndarray | None = None
        super().__init__(ctx, instr, c, *operands)

    def room(self, name: str, lines: Lines) -> np.ndarray:
        return self.buffers.of(name, len(self.whole), lines)

    def image(self, c: Any) -> np.ndarray:
        return self.out if c is self.out else super().image(c)

    def drop(self, keep: np.ndarray) -> None:
        kept = keep.reshape(-1, THREADS)
        dropped = self.whole & ~kept.all(axis=1)
        if self.c is not self.out or kept[dropped].any():  # the threads of a warpgroup differ
            super().drop(keep)
        else:
            self.dropped = dropped

    @property
    def possible(self) -> bool:
        """True if parts of the warpgroups may be loaded and computed one after the other, directly to
        `out`, with the prepared form."""
        signs = {self.by_name.get(f"scale_{name}", 1) for name in "ab"}
        plain = signs <= {1} and not self.product.sparse
        return plain and self.c is self.out and bool(self.c.flags.c_contiguous)

    def clear(self, some: np.ndarray) -> None:
        """Set C, which is stored in D, to zero for warpgroups of `some` that do not keep it."""
        if self.dropped is not None:
            for group in np.flatnonzero(self.dropped & some).tolist():
                self.c[:, group * THREADS : (group + 1) * THREADS] = 0

    def run(self, out: np.ndarray | None = None) -> np.ndarray:
        if self.possible:
            multiply_all([self])
            self.note()
            return self.out
        self.clear(self.whole)
        return super().run(self.out)


def multiply_all(steps: list[InPlace]) -> None:
    """Compute products of the same warpgroups in place, in this order; each may use the result of the
    product before."""
    uses = [_prepared([step]) for step in steps]

    def do(some: np.ndarray, number: int) -> None:
        for step, product in zip(steps, uses, strict=True):
            step.load(some)
            step.clear(some)
            product.run(some, number=number)

    _share(steps, do)


def _prepared(steps: Sequence[InPlace]) -> Any:
    """Prepare the products of `steps`, whose arrays stay at their addresses."""
    first = steps[0]
    arrays = [x for s in steps for x in (s.operand("a"), s.operand("b"), s.c, s.out)]
    buffers = first.buffers
    if list(map(id, arrays)) != list(map(id, buffers.arrays)):
        buffers.arrays = arrays
        uses: Any = [arrays[i : i + 4] for i in range(0, len(arrays), 4)]
        buffers.prepared = products.in_place(first.product, first.ctx.arch, first.maps, uses)
    return buffers.prepared


def _share(steps: Sequence[InPlace], do: Callable[[np.ndarray, int], None]) -> None:
    """Compute products of the same warpgroups by `do(some, number)`, in the threads of the team."""
    first = steps[0]
    product = first.product
    cost = products.COST * product.m * product.n * product.k * len(steps)
    first.ctx.team.share_mask(first.whole, cost, do)


class Together:
    """Products of the same warpgroups with different results, computed in place.

    Operands A and B of each product are lines. Lines that several products share are read once.
    """

    def __init__(self, steps: Sequence[InPlace]) -> None:
        self.steps = steps
        self._loads: list[tuple[InPlace, list[str]]] = []  # products, and the lines that each reads
        outputs: dict[int, np.ndarray] = {}
        for step in steps:
            new = [name for name, (_, out) in step.lines.items() if id(out) not in outputs]
            self._loads.append((step, new))
            outputs.update((id(out), out) for _, out in step.lines.values())

    @classmethod
    def joined(cls, groups: Sequence[Sequence[InPlace]]) -> Together | None:
        """Join each group of accumulating products into one product along K; None if this is impossible.

        The joined product has more of the equal steps along K.
        """
        firsts, every = [steps[0] for steps in groups], [step for steps in groups for step in steps]
        kinds = {(step.product, id(step.maps)) for step in every}
        if len(kinds) > 1 or len({*map(len, groups)}) > 1 or firsts[0].product.satfinite:
            return None
        if any(step.lines.keys() != {"a", "b"} for step in every):
            return None
        all_lines: list[dict[str, Lines]] = []
        for steps in groups:
            lines_by_name = {}
            for name in firsts[0].lines:
                lines = _joined([step.lines[name][0] for step in steps])
                if lines is None:
                    return None
                lines_by_name[name] = next((x[name] for x in all_lines if _equal(x[name], lines)), lines)
            all_lines.append(lines_by_name)
        wholes = []
        for first in firsts:
            deep = copy(first)
            deep.buffers = first.buffers.chain = first.buffers.chain or Buffers()
            deep.product = _deeper(first.product, len(groups[0]))
            wholes.append(deep)
        return cls(_placed(wholes, all_lines))

    def run(self) -> None:
        """Compute the products."""
        product = _prepared(self.steps)

        def some(whole: np.ndarray, number: int) -> None:
            for step, names in self._loads:
                step.load(whole, names)
                step.clear(whole)
            product.run(whole, number=number)

        _share(self.steps, some)


def _placed(steps: Sequence[InPlace], lines: Sequence[dict[str, Lines]]) -> list[InPlace]:
    """Place products at other lines."""
    buffers: dict[int, tuple[Lines, np.ndarray]] = {}
    placed = []
    for step, named in zip(steps, lines, strict=True):
        product = copy(step)
        for name, operand in named.items():
            if id(operand) not in buffers:
                buffers[id(operand)] = operand, product.buffers.of(name, len(product.whole), operand)
        product.lines = {name: buffers[id(operand)] for name, operand in named.items()}
        placed.append(product)
    return placed


def _joined(operands: Sequence[Lines]) -> Lines | None:
    """Join the lines of `operands` along K; None if their layouts differ."""
    first, *others = operands
    alike = (first.shape, first.size, first.across)
    rows, tables = first.chunks.rows, [operand.chunks.addresses for operand in operands]
    for operand in others:
        if (operand.shape, operand.size, operand.across) != alike:
            return None
        if operand.chunks.rows is not rows and not np.array_equal(operand.chunks.rows, rows):
            return None
    if len({table.shape for table in tables}) > 1:
        return None
    lines, width = first.shape
    if first.size == 4:
        shape = lines, width * len(operands)
        tables = [table.reshape(len(table), lines, -1) for table in tables]
    else:
        shape = (lines, width * len(operands)) if first.across else (lines * len(operands), width)
    addresses = np.concatenate(tables, axis=-1).reshape(len(tables[0]), -1)
    return replace(first, chunks=Chunks(addresses, rows), shape=shape)


def _equal(a: Lines, b: Lines) -> bool:
    """Return whether two operands read equal chunks in all warpgroups."""
    chunks_a, chunks_b = a.chunks, b.chunks
    alike = (a.shape, a.size, a.across) == (b.shape, b.size, b.across)
    pairs = (chunks_a.rows, chunks_b.rows), (chunks_a.addresses, chunks_b.addresses)
    return alike and all(np.array_equal(a, b) for a, b in pairs)


@cache
def _deeper(product: Any, times: int) -> Any:
    """Product with a multiple of K."""
    return replace(product, k=product.k * times)
