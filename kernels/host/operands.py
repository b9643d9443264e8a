"""Operands of a call: describe each one once, and refuse operands that do not fit together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, describe, from_numpy
from tensorcore_dsl.kernels.hopper.row_reduction import RowReduction
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix

FAST = "fast"  # fp8 accumulation that stays in the tensor cores
PRECISIONS = ("f32", "tf32")  # of f32 products, the default first
# Element type of A and B -> element types that D may have, the default first.
OUTPUTS = {
    tc.f16: (tc.f16, tc.f32),
    tc.bf16: (tc.bf16, tc.f32),
    tc.f32: (tc.f32,),
    tc.s8: (tc.s32,),
    tc.f64: (tc.f64,),
    tc.e4m3: (tc.bf16, tc.f16, tc.f32),
    tc.e5m2: (tc.bf16, tc.f16, tc.f32),
}


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
    epilogue: Callable[..., Any] | None = None
    row_reductions: tuple[RowReduction, ...] = ()
    precision: str | None = None

    @classmethod
    def of(cls, a: Any, b: Any, c: Any, d: Any, **options: Any) -> GemmProblem:
        """The problem of these arrays, which are described but not checked."""
        in_c = None if c is None else describe(c, "c")
        return cls(describe(a, "a"), describe(b, "b"), in_c, describe(d, "d"), **options)

    @property
    def dtype(self) -> Any:
        """Element type of A and B."""
        return self.a.type.dtype

    @property
    def multiplied_as(self) -> Any:
        """Element type of the products: tf32 for f32 operands of precision "tf32", else theirs."""
        return tc.tf32 if self.precision == "tf32" else self.dtype

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


def describe_operands(
    a: Any, b: Any, c: Any = None, beta: float = 0
) -> tuple[Description, Description, Description | None]:
    """Descriptions of A, B and C; refuses operands that cannot be multiplied and added."""
    if isinstance(b, SparseMatrix):
        raise tc.ArgumentError("b is a SparseMatrix; only a may be one")
    operands = describe(a, "a"), describe(b, "b"), None if c is None else describe(c, "c")
    check_operands(*operands, beta)
    return operands


def check_operands(a: Description, b: Description, c: Description | None, beta: float) -> None:
    """Refuse operands whose ranks, types or shapes do not fit together."""
    for name, x in (("a", a), ("b", b), ("c", c)):
        if x is not None and len(x.shape) not in (2, 3):
            raise tc.ArgumentError(f"{name} has shape {x.shape}; a matrix is needed, or a batch")
    dtype = a.type.dtype
    if dtype not in OUTPUTS:
        allowed = ", ".join(map(str, OUTPUTS))
        raise tc.ArgumentError(f"a has elements of type {dtype}; gemm multiplies {allowed}")
    if b.type.dtype != dtype:
        raise tc.ArgumentError(f"a holds {dtype} but b holds {b.type.dtype}; convert one")
    if a.shape[-1] != b.shape[-2]:
        raise tc.ArgumentError(
            f"a is {_size(a)} and b is {_size(b)}: a's columns must be as many as b's rows"
        )
    shape = product_shape(a, b)
    if c is not None and c.shape != shape:
        raise tc.ArgumentError(f"c has shape {c.shape}; the product has {shape}")
    if c is None and beta != 0:
        raise tc.ArgumentError(f"beta is {beta}, but there is no C")


def _size(x: Description) -> str:
    return "x".join(map(str, x.shape))


def product_shape(a: Description, b: Description) -> tuple[int, ...]:
    """[batch,] M, N; refuses batches of different lengths."""
    batches = {x.shape[0] for x in (a, b) if len(x.shape) == 3}
    if len(batches) > 1:
        raise tc.ArgumentError(f"a is {_size(a)} and b is {_size(b)}: the batches differ")
    return (*batches, a.shape[-2], b.shape[-1])


def check_half_precision(**operands: Description) -> Any:
    """The element type of the operands; refuses any but bf16 for all, or f16 for all."""
    types = {name: x.type.dtype for name, x in operands.items()}
    dtype, *others = set(types.values())
    if others or dtype not in (tc.bf16, tc.f16):
        given = ", ".join(f"{name} {dtype}" for name, dtype in types.items())
        raise tc.ArgumentError(f"operands are all bf16 or all f16, not {given}")
    return dtype


def check_rank(name: str, x: Description, axes: int) -> tuple[int, ...]:
    """The shape of an operand; refuses another number of axes."""
    if len(x.shape) != axes:
        raise tc.ArgumentError(f"{name} has shape {x.shape}; {axes} axes are needed")
    return x.shape


def output_dtype(dtype: Any, out_dtype: Any) -> Any:
    """The element type of D that the caller asks for, or the default for A's and B's `dtype`."""
    if out_dtype is None:
        return OUTPUTS[dtype][0]
    if not isinstance(out_dtype, tc.DType):
        with suppress(TypeError):  # no name of a type, such as "f32": refused below
            out_dtype = from_numpy(out_dtype)
    if out_dtype not in OUTPUTS[dtype]:
        allowed = " or ".join(map(str, OUTPUTS[dtype]))
        raise tc.ArgumentError(f"a product of {dtype} gives {allowed}, not {out_dtype!r}")
    return out_dtype


def result_array(
    like: Any, out: Any, dtype: Any, shape: tuple[int, ...], out_dtype: Any = None
) -> tuple[Any, Description]:
    """`out`, or a new array of `out_dtype` beside `like`, and its description.

    Refuses an `out` that cannot receive a product of `dtype` of this shape.
    """
    out_dtype = output_dtype(dtype, out_dtype)
    if out is None:
        out = empty_like(like, shape, out_dtype)
    given = describe(out, "out")
    if given.shape != shape:
        raise tc.ArgumentError(f"out has shape {given.shape}; the product has {shape}")
    if given.type.dtype not in OUTPUTS[dtype]:
        allowed = " or ".join(map(str, OUTPUTS[dtype]))
        raise tc.ArgumentError(
            f"out holds {given.type.dtype}; a product of {dtype} gives {allowed}"
        )
    if not given.type.writable:
        raise tc.ArgumentError("out is read-only")
    return out, given


def result_array_of_type(
    like: Any, out: Any, shape: tuple[int, ...], dtype: Any
) -> tuple[Any, Description]:
    """The same for a result that can have only one type."""
    if out is None:
        out = empty_like(like, shape, dtype)
    given = describe(out, "out")
    if given.shape != shape or given.type.dtype != dtype or not given.type.writable:
        raise tc.ArgumentError(
            f"out is {given.type} of shape {given.shape}; needed is writable {dtype} of {shape}"
        )
    return out, given


def accumulator_dtype(dtype: Any) -> Any:
    """The type in which the epilogue gets accumulators of products of `dtype`."""
    return tc.f32 if dtype.is_float else tc.s32


def check_accumulate(dtype: Any, accumulate: Any) -> None:
    """Accumulators are f32 (s32 of s8); f16 products also have f16, and fp8 products FAST."""
    if accumulate is None or accumulate == tc.f32 or (dtype, accumulate) == (tc.f16, tc.f16):
        return
    if accumulate not in (FAST, tc.f16):
        raise tc.ArgumentError(
            f"accumulate is {accumulate!r}; allowed are tc.f32, tc.f16 (f16 products) and {FAST!r} "
            f"(fp8 products)"
        )
    if accumulate != FAST:
        raise tc.ArgumentError(f"only f16 products can be summed in {accumulate}, not {dtype}")
    if not (dtype.is_float and dtype.bits == 8):
        raise tc.ArgumentError(f"only fp8 products have fast accumulation, not {dtype}")


def check_precision(dtype: Any, precision: Any) -> None:
    """Only f32 products have a choice of precision."""
    if precision is not None and dtype != tc.f32:
        raise tc.ArgumentError(
            f"precision is {precision!r}, and a has elements of type {dtype}; only f32 products "
            "have a choice of precision"
        )
    if precision not in (None, *PRECISIONS):
        allowed = " or ".join(map(repr, PRECISIONS))
        raise tc.ArgumentError(f"precision is {precision!r}; allowed is {allowed}")


def convert_scalars(dtype: Any, alpha: float, beta: float) -> tuple[Any, Any]:
    """alpha and beta as kernels for `dtype` take them: integers for s8, else floats."""
    if dtype != tc.s8:
        return float(alpha), float(beta)
    if int(alpha) != alpha or int(beta) != beta:
        raise tc.ArgumentError(f"integer products take integer alpha and beta, not {alpha}, {beta}")
    return int(alpha), int(beta)
