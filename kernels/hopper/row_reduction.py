"""Reductions over the rows of D (sum, max, min), fused into the epilogue.

A CTA's tile (with split-K its share of the columns) is one part of a row. The threads of a quad
hold two of eight columns each: every thread reduces its columns from left to right, two shuffles
combine the quad as ((0, 1), (2, 3)), and one lane writes the part. `combine_parts`, a second
kernel, combines the parts from left to right. The order depends on the tile alone, so every run
gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.user_functions import check_function

OPERATIONS = ("sum", "max", "min")
THREADS = 128  # threads of a CTA of combine_parts


@dataclass(frozen=True)
class RowReduction:
    """op over transform(v) of a row's results v.

    Parameters
    ----------
    op : {"sum", "max", "min"}
        max and min ignore NaN, as `max.f32` does. An empty row has the sum 0, the max -inf and the
        min inf.
    transform : function, optional
        Function of one value, in the kernel language. None: the value itself.

    Examples
    --------
    >>> a, b = np.ones((32, 64), np.float16), np.ones((64, 48), np.float16)
    >>> d, rows = kernels.gemm(a, b, row_reductions=(kernels.RowReduction("sum"),), family="sm90")
    >>> rows.shape, float(rows[0, 0])
    ((1, 32), 3072.0)
    """

    op: str
    transform: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.op, str) or self.op not in OPERATIONS:
            raise tc.ArgumentError(f"op is {self.op!r}; allowed are {', '.join(OPERATIONS)}")
        if self.transform is not None:
            check_function("transform", self.transform, "value")

    def identity(self, dtype: Any) -> Any:
        """Identity element of the operation."""
        if self.op == "sum":
            return 0
        if dtype.is_float:
            low, high = -math.inf, math.inf
        else:
            low, high = int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)
        return low if self.op == "max" else high

    def combine(self, x: Any, y: Any) -> Any:
        """x op y, of run-time values."""
        if self.op == "sum":
            return x + y
        return tc.maximum(x, y) if self.op == "max" else tc.minimum(x, y)


@dataclass(frozen=True)
class RowReductions:
    """The reductions that a kernel's epilogue computes. Methods are inlined into kernels.

    parts: the array that receives one value for each (reduction, part, row of all matrices).
    """

    reductions: tuple[RowReduction, ...]
    parts: Any = None

    def identity(self):
        """Initial values of a thread's rows r and r + 8, for each reduction."""
        dtype = self.parts.dtype
        return [[dtype(r.identity(dtype))] * 2 for r in self.reductions]

    def accumulate(self, reduced, values, coords, columns):
        """Reduce results of a thread into its rows, except those right of D's columns."""
        dtype = self.parts.dtype
        for r, pair in zip(self.reductions, reduced, strict=True):
            for i in tc.static_range(len(values)):
                value = values[i].to(dtype)
                value = (value if r.transform is None else r.transform(value)).to(dtype)
                combined = r.combine(pair[i // 2 % 2], value)
                inside = coords[i][-1] < columns
                pair[i // 2 % 2] = tc.select(inside, combined, pair[i // 2 % 2])
        return reduced

    def write(self, reduced, storage, batch, m, n, width: int):
        """Combine each quad and write the part of rows m to m + 63 and columns n to n + width."""
        d = storage.d
        rows, columns = d.shape[-2:]
        lane = tc.lane_id()
        row = tc.warp_id() % 4 * 16 + lane // 4
        for i in tc.static_range(len(reduced)):
            for half in tc.static_range(2):
                value, at = reduced[i][half], m + storage.row_of(row + 8 * half)
                for lanes in (1, 2):
                    value = self.reductions[i].combine(value, tc.shfl_xor(value, lanes))
                row_index = at if len(batch) == 0 else batch[0] * rows + at
                inside = (lane % 4 == 0) & (at < rows) & (n < columns)
                self.parts.at(i, n // width, row_index).store(value, pred=inside)


@tc.kernel
def gemm_with_rows(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha,
    beta,
    parts: tc.Array,
    gemm: tc.Const,
    config: tc.Const,
    traits: tc.Const,
):
    """`gemm`, one of the Hopper kernels, with the row reductions of traits.row_reductions."""
    reductions = replace(traits.row_reductions, parts=parts)
    gemm(a, b, c, d, alpha, beta, config, replace(traits, row_reductions=reductions))


@tc.kernel
def combine_parts(parts: tc.Array, reduced: tc.Array, reductions: tc.Const):
    """reduced: (reduction, [matrix,] row). Grid: (rows / 128, reductions), one thread per row."""
    tc.launch_bounds(THREADS)
    tc.griddep_wait()  # the previous kernel of the stream writes the parts
    _, count, rows = parts.shape
    row = tc.blockIdx.x * THREADS + tc.threadIdx.x
    if row < rows:
        for i in tc.static_range(len(reductions)):
            if tc.blockIdx.y == i:
                value = parts[i, 0, row]
                for part in tc.range(1, count):
                    value = reductions[i].combine(value, parts[i, part, row])
                rows_per_matrix = reduced.shape[-1]
                index = (row // rows_per_matrix, row % rows_per_matrix) if reduced.ndim == 3 else (row,)
                reduced.at(i, *index).store(value)
