"""Consecutive products of warpgroups, computed as one."""

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

    Both operands of each are lines. Lines that several products share are read and decoded once.
    """

    def __init__(self, steps: Sequence[Multiplication]) -> None:
        self.steps = steps
        self._loads: list[tuple[Multiplication, list[str]]] = []  # products, and the lines that each reads
        places: dict[int, np.ndarray] = {}
        for step in steps:
            new = [name for name, (_, out) in step.lines.items() if id(out) not in places]
            self._loads.append((step, new))
            places.update((id(out), out) for _, out in step.lines.values())

    @classmethod
    def joined(cls, groups: Sequence[Sequence[Multiplication]]) -> Together | None:
        """Join each group of accumulating products into one product along K; None if this is impossible.

        The joined product takes more of the same steps along K, and D can hold their results.
        """
        firsts, every = [steps[0] for steps in groups], [step for steps in groups for step in steps]
        kinds = {(step.product, id(step.maps)) for step in every}
        if len(kinds) > 1 or len({*map(len, groups)}) > 1 or firsts[0].product.satfinite:
            return None
        if any(step.lines.keys() != {"a", "b"} for step in every):
            return None
        all_lines: list[dict[str, Lines]] = []
        for steps in groups:
            own = {}
            for name in firsts[0].lines:
                lines = _joined([step.lines[name][0] for step in steps])
                if lines is None:
                    return None
                own[name] = next((x[name] for x in all_lines if _equal(x[name], lines)), lines)
            all_lines.append(own)
        wholes = []
        for first in firsts:
            whole = copy(first)
            whole.buffers = first.buffers.chain = first.buffers.chain or Buffers()
            whole.product = _deeper(first.product, len(groups[0]))
            wholes.append(whole)
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
    places: dict[int, tuple[Lines, np.ndarray]] = {}
    placed = []
    for step, named in zip(steps, lines, strict=True):
        other = copy(step)
        for name, own in named.items():
            if id(own) not in places:
                places[id(own)] = own, other.buffers.of(name, len(other.whole), own)
        other.lines = {name: places[id(own)] for name, own in named.items()}
        placed.append(other)
    return placed


def _joined(parts: Sequence[Lines]) -> Lines | None:
    """Join the lines of `parts` along K; None for unlike ones."""
    first, *others = parts
    alike = (first.shape, first.size, first.across)
    own, tables = first.chunks.own, [part.chunks.addresses for part in parts]
    for part in others:
        if (part.shape, part.size, part.across) != alike:
            return None
        if part.chunks.own is not own and not np.array_equal(part.chunks.own, own):
            return None
    if len({table.shape for table in tables}) > 1:
        return None
    lines, width = first.shape
    if first.size == 4:
        shape = lines, width * len(parts)
        tables = [table.reshape(len(table), lines, -1) for table in tables]
    else:
        shape = (lines, width * len(parts)) if first.across else (lines * len(parts), width)
    addresses = np.concatenate(tables, axis=-1).reshape(len(tables[0]), -1)
    return replace(first, chunks=Chunks(addresses, own), shape=shape)


def _equal(some: Lines, other: Lines) -> bool:
    """Whether both read the same chunks for all warpgroups."""
    mine, its = some.chunks, other.chunks
    alike = (some.shape, some.size, some.across) == (other.shape, other.size, other.across)
    pairs = (mine.own, its.own), (mine.addresses, its.addresses)
    return alike and all(np.array_equal(a, b) for a, b in pairs)


@cache
def _deeper(product: Any, times: int) -> Any:
    """Product with a multiple of K."""
    return replace(product, k=product.k * times)
