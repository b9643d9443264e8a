"""The problem that a call of `gemm` states: descriptions of its operands, and its options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, describe
from tensorcore_dsl.kernels.hopper.row_reduction import RowReduction
from tensorcore_dsl.kernels.user_functions import EpilogueCall

FAST = "fast"  # fp8 accumulation that stays in the tensor cores

# Accepted orders of summation: any, or one for all M.
ANY, BATCH_INVARIANT = BITS = ("any", "batch_invariant")


def accumulator_dtype(dtype: tc.DType) -> tc.DType:
    """Default type of the sums of products of `dtype`, and of the epilogue's accumulators."""
    return tc.s32 if not dtype.is_float else tc.f64 if dtype == tc.f64 else tc.f32


@dataclass(frozen=True)
class GemmProblem:
    """D = epilogue(alpha A B + beta C): descriptions of the operands, and the options.

    A is [batch x] M x K, B is [batch x] K x N, C and D are [batch x] M x N. Pointers in the
    descriptions are those of the arrays that the call was prepared with.
    """

    a: Description
    b: Description
    c: Description | None
    d: Description
    alpha: float = 1
    beta: float = 0
    accumulate: Any = None
    epilogue: Callable[..., Any] | EpilogueCall | None = None
    row_reductions: tuple[RowReduction, ...] = ()
    precision: str | None = None
    bits: str = ANY

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, d: Any, **options: Any) -> GemmProblem:
        """Make the problem of these arrays, described but not checked."""
        in_c = None if c is None else describe(c, "c")
        return cls(describe(a, "a"), describe(b, "b"), in_c, describe(d, "d"), **options)

    @property
    def dtype(self) -> tc.DType:
        """Element type of A. B has the same type, or one of the same row of TYPE_PAIRS."""
        return self.a.type.dtype

    @property
    def multiplied_as(self) -> tc.DType:
        """Element type of the kernel: tf32 for f32 with precision "tf32", s8 for u8, else A's type."""
        return tc.tf32 if self.precision == "tf32" else tc.s8 if self.dtype == tc.u8 else self.dtype

    @property
    def M(self) -> int:
        return self.a.shape[-2]

    @property
    def N(self) -> int:
        return self.b.shape[-1]

    @property
    def K(self) -> int:
        return self.a.shape[-1]

    @property
    def contiguous(self) -> GemmProblem:
        """Replace the operands by operands without gaps, and D by a row-major one.

        K is contiguous in an operand of a single row or column.
        """
        a, b = (contiguous(x, axis, x.type.unit[-2]) for x, axis in ((self.a, -1), (self.b, -2)))
        return replace(self, a=a, b=b, d=contiguous(self.d, -1, by_columns=False))

    @property
    def batch(self) -> int | None:
        """Matrices of the batch; None for a single product."""
        return self.d.shape[0] if len(self.d.shape) == 3 else None

    @property
    def a_k_major(self) -> bool:
        """Whether K is contiguous in A."""
        return self.a.type.unit[-1]

    @property
    def b_k_major(self) -> bool:
        """Whether K is contiguous in B."""
        return self.b.type.unit[-2]

    @property
    def reads_c(self) -> bool:
        return self.c is not None and self.beta != 0


def contiguous(x: Description, axis: int, by_columns: bool) -> Description:
    """Describe the operand without gaps, at an aligned address.

    by_columns: whether columns are contiguous instead of rows. axis: the contiguous axis, -1 or -2,
    of a single row or column, and of an operand whose axes both have stride 1.
    """
    *batch, rows, cols = x.shape
    by_columns = by_columns and (axis == -2 or not x.type.unit[-1])
    if 1 in (rows, cols):
        by_columns = axis == -2
    line = rows if by_columns else cols
    strides = (rows * cols,) * len(batch) + ((1, line) if by_columns else (line, 1))
    align = math.gcd(16, line * x.type.dtype.itemsize)
    unit = tuple(stride == 1 for stride in strides)
    return x._replace(type=replace(x.type, align=align, unit=unit), strides=strides)
