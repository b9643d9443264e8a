"""Join consecutive `wgmma` products, so that the emulator reads and decodes shared operands once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl.isa.descriptor import Chunks
from tensorcore_dsl.isa.wgmma import Buffers, Lines, Multiplication, prepared, share


class Together:
    """Products of the same warpgroups with different results, computed in place.

    Operands A and B of each product are lines. Lines that several products share are read once.
    """

    def __init__(self, steps: Sequence[Multiplication]) -> None:
        self.steps = steps
        self._loads: list[tuple[Multiplication, list[str]]] = []  # products, and the lines that each reads
        outputs: dict[int, np.ndarray] = {}
        for step in steps:
            new = [name for name, (_, out) in step.lines.items() if id(out) not in outputs]
            self._loads.append((step, new))
            outputs.update((id(out), out) for _, out in step.lines.values())

    @classmethod
    def joined(cls, groups: Sequence[Sequence[Multiplication]]) -> Together | None:
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
        product = prepared(self.steps)

        def some(whole: np.ndarray, number: int) -> None:
            for step, names in self._loads:
                step.load(whole, names)
                step.clear(whole)
            product.run(whole, number=number)

        share(self.steps, some)


def _placed(steps: Sequence[Multiplication], lines: Sequence[dict[str, Lines]]) -> list[Multiplication]:
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
