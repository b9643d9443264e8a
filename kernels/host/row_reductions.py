"""Row results of `gemm(..., row_reductions=...)`: array, partials, second kernel.

The GEMM kernel writes one partial result for each tile of a row. `combine_parts` then combines the
partials of a row from the left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from reprlib import repr as brief
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.row_reduction import THREADS, RowReduction, combine_parts
from tensorcore_dsl.kernels.host.arguments import described
from tensorcore_dsl.kernels.host.arrays import empty_like, on_stream
from tensorcore_dsl.kernels.host.launch import bind
from tensorcore_dsl.kernels.sizes import cdiv


@dataclass(frozen=True)
class RowReductionResult:
    """Row results: an array (reduction, [matrix of a batch,] row)."""

    reductions: tuple[RowReduction, ...]
    shape: tuple[int, ...]
    dtype: tc.DType

    def allocate(self, like: Any) -> Any:
        """Make an uninitialised array in the library of `like`."""
        return empty_like(like, self.shape, self.dtype)

    def fill_identity(self, out: Any) -> None:
        """Fill the results of rows without elements."""
        for i, reduction in enumerate(self.reductions):
            out[i] = reduction.identity(self.dtype)

    def bind(self, partials: Any, out: Any, stream: Any) -> Callable[..., None]:
        """Bind a function that combines arrays like `partials` into arrays like `out`."""
        out = self.allocate(partials) if out is None else out
        grid = (cdiv(math.prod(self.shape[1:]), THREADS), len(self.reductions))
        # Transforms are applied already; without them, one kernel serves all reductions by `op`.
        ops = tuple(replace(reduction, transform=None) for reduction in self.reductions)
        options, arrays = {"reductions": ops}, (partials, out)
        return bind(combine_parts, grid, THREADS, options, arrays, stream=stream, pdl=True)


def make_row_reduction_result(
    row_reductions: Any, row_out: Any, product_shape: tuple[int, ...], dtype: tc.DType
) -> RowReductionResult | None:
    """Describe the result of `row_reductions`, None without any; refuse an unfit `row_out`."""
    check_row_reductions(row_reductions)
    if not row_reductions:
        if row_out is not None:
            raise tc.ArgumentError("row_out is given without row_reductions, which it could hold")
        return None
    shape = (len(row_reductions), *product_shape[:-1])
    if row_out is not None:
        description = described(row_out=row_out)["row_out"]
        if (description.shape, description.type.dtype) != (shape, dtype):
            raise tc.ArgumentError(
                f"row_out holds {description.type.dtype} and has shape {description.shape}; they must be "
                f"{dtype} and {shape}: reductions, matrices if these are many, rows"
            )
        if not description.type.writable:
            raise tc.ArgumentError("row_out is read-only")
    return RowReductionResult(tuple(row_reductions), shape, dtype)


def check_row_reductions(reductions: Any) -> None:
    """Refuse an object that is no sequence of row reductions."""
    if isinstance(reductions, (tuple, list)) and all(isinstance(r, RowReduction) for r in reductions):
        return
    raise tc.ArgumentError(
        f"row_reductions is {brief(reductions)}; a tuple of kernels.RowReduction is needed"
    )


def allocate_partials(like: Any, shape: tuple[int, ...], dtype: tc.DType, stream: Any) -> Any:
    """Workspace (reduction, part, row of all matrices).

    It belongs to `stream`: once freed, only later work on that stream gets its memory.
    """
    with on_stream(like, stream):
        return empty_like(like, shape, dtype)
