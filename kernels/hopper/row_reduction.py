"""Sums, maxima and minima of D's rows, which GEMM kernels find while they send their results out.

A tile's columns (of split tiles, a block's share of them) are one part of a row, of which each
thread of a quad has two in eight. It joins them from the left; what the four have found is joined
across lanes, (0, 1), (2, 3) and then these two, and one lane writes the part. `combine`, a second
kernel, joins parts from the left. The order depends on the tile alone: the same bits in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import integer_range
from tensorcore_dsl.kernels.user_functions import check_function

OPERATIONS = ("sum", "max", "min")
THREADS = 128  # of a block that combines


@dataclass(frozen=True)
class RowReduction:
    """The sum, max or min of of(v) over a row's finished results v; without `of`, of v itself.

    of: a function in the kernel language. max and min pass over NaN, as `max.f32` does: of nothing
    else they are -inf and inf, and sums are 0.
    """

    op: str
    transform: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.op not in OPERATIONS:
            raise tc.ArgumentError(f"op is {self.op!r}; allowed are {', '.join(OPERATIONS)}")
        if self.transform is not None:
            check_function("transform", self.transform, "value")

    def identity(self, dtype: Any) -> Any:
        """What it is of no elements, and what each thread starts from."""
        if self.op == "sum":
            return 0
        low, high = (-math.inf, math.inf) if dtype.is_float else integer_range(dtype)
        return low if self.op == "max" else high

    def combine(self, x: Any, y: Any) -> Any:
        if self.op == "sum":
            return x + y
        return tc.maximum(x, y) if self.op == "max" else tc.minimum(x, y)


@dataclass(frozen=True)
class Rows:
    """What a kernel finds of D's rows. Helpers in the kernel language.

    parts: in kernels, (statistic, part, row of all matrices).
    """

    statistics: tuple[RowReduction, ...]
    parts: Any = None

    def identity(self):
        """For each statistic, of a thread's row and of the one 8 below."""
        dtype = self.parts.dtype
        return [[dtype(s.identity(dtype))] * 2 for s in self.statistics]

    def accumulate(self, found, values, places, columns):
        """`found` with eight finished values of a thread, but for those outside of D's columns."""
        dtype = self.parts.dtype
        for s, pair in zip(self.statistics, found, strict=True):
            for i in tc.static_range(8):
                value = values[i].to(dtype)
                value = (value if s.transform is None else s.transform(value)).to(dtype)
                joined = s.combine(pair[i // 2 % 2], value)
                pair[i // 2 % 2] = tc.select(places[i][-1] < columns, joined, pair[i // 2 % 2])
        return found

    def write(self, found, d, batch, m, n, width: int):
        """One part of 64 rows from `m` on, of the `width` columns from `n` on."""
        rows, columns = d.shape[-2:]
        lane = tc.lane_id()
        row = m + tc.warp_id() % 4 * 16 + lane // 4
        for i in tc.static_range(len(found)):
            for half in tc.static_range(2):
                value, at = found[i][half], row + 8 * half
                for lanes in (1, 2):
                    value = self.statistics[i].combine(value, tc.shfl_xor(value, lanes))
                line = at if len(batch) == 0 else batch[0] * rows + at
                inside = (lane % 4 == 0) & (at < rows) & (n < columns)
                self.parts.at(i, n // width, line).store(value, pred=inside)


@tc.kernel
def gemm_with_rows(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha, beta, parts: tc.Array,
    gemm: tc.Const, config: tc.Const, traits: tc.Const,
):  # fmt: skip
    """`gemm`, one of the sm_90a kernels, which also finds what traits.row_reductions asks for."""
    rows = replace(traits.row_reductions, parts=parts)
    gemm(a, b, c, d, alpha, beta, config, replace(traits, row_reductions=rows))


@tc.kernel
def divided_gemm_with_rows(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha, beta, parts: tc.Array,
    sums: tc.Array, flags: tc.Array, gemm: tc.Const, config: tc.Const, traits: tc.Const,
):  # fmt: skip
    """The same of tiles that workers divide."""
    rows = replace(traits.row_reductions, parts=parts)
    gemm(a, b, c, d, alpha, beta, sums, flags, config, replace(traits, row_reductions=rows))


@tc.kernel
def combine_parts(parts: tc.Array, found: tc.Array, statistics: tc.Const):
    """found: (statistic, [matrix,] row), a thread for each; blockIdx.y tells the statistic."""
    tc.launch_bounds(THREADS)
    tc.griddep_wait()
    _, count, rows = parts.shape
    row = tc.blockIdx.x * THREADS + tc.threadIdx.x
    if row < rows:
        for i in tc.static_range(len(statistics)):
            if tc.blockIdx.y == i:
                value = parts[i, 0, row]
                for part in tc.range(1, count):
                    value = statistics[i].combine(value, parts[i, part, row])
                of_matrix = found.shape[-1]
                place = (row // of_matrix, row % of_matrix) if found.ndim == 3 else (row,)
                found.at(i, *place).store(value)
