"""Row reductions on the host: the result's array, and the partial results that kernels write."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.row_reduction import THREADS, RowReduction, combine_parts
from tensorcore_dsl.kernels.host.arrays import empty_like, on_stream
from tensorcore_dsl.runtime.arguments import describe


@dataclass(frozen=True)
class RowReductionResult:
    """The array that a caller receives, (reduction, [matrix,] row), and the launch that fills it."""

    reductions: tuple[RowReduction, ...]
    shape: tuple[int, ...]
    dtype: Any
    kernel: Any = combine_parts

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Without transforms, which the GEMM has applied already: so few kernels serve all."""
        return (("reductions", tuple(replace(s, transform=None) for s in self.reductions)),)

    def configured(self, stream: Any = None) -> Any:
        grid = (-(-math.prod(self.shape[1:]) // THREADS), len(self.reductions))
        return self.kernel.configured(grid, THREADS, stream=stream, pdl=True)

    def array(self, like: Any) -> Any:
        """Uninitialised, where `like` lives."""
        return empty_like(like, self.shape, self.dtype)

    def fill(self, out: Any) -> None:
        """Fill with identity elements, for a product without columns."""
        for i, reduction in enumerate(self.reductions):
            out[i] = reduction.identity(self.dtype)

    def check(self, out: Any) -> None:
        """Can `out` receive this?"""
        found = describe(out, "row_out")
        if (found.shape, found.type.dtype) != (self.shape, self.dtype):
            raise tc.ArgumentError(
                f"row_out holds {found.type.dtype} and has shape {found.shape}; needed are "
                f"{self.dtype} and {self.shape}: reductions, matrices if these are many, rows"
            )
        if not found.type.writable:
            raise tc.ArgumentError("row_out is read-only")


def row_reductions_of(rows: Any, out: Any, product: tuple[int, ...], dtype: Any) -> RowReductionResult | None:
    """What `rows` asks for of a product of some shape, if anything; refuses what cannot be."""
    if not isinstance(rows, (tuple, list)) or not all(isinstance(s, RowReduction) for s in rows):
        raise tc.ArgumentError(f"row_reductions is {rows!r}; a tuple of kernels.RowReduction is needed")
    if not rows:
        if out is not None:
            raise tc.ArgumentError("row_out is given without row_reductions, which say what it is to hold")
        return None
    found = RowReductionResult(tuple(rows), (len(rows), *product[:-1]), dtype)
    if out is not None:
        found.check(out)
    return found


def parts_array(like: Any, shape: tuple[int, ...], dtype: Any, stream: Any) -> Any:
    """Room for parts; once freed, only work behind a launch on `stream` is given its memory."""
    with on_stream(like, stream):
        return empty_like(like, shape, dtype)
