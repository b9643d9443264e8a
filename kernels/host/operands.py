"""Operands of a call: describe each one once, and refuse operands that do not fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, describe
from tensorcore_dsl.kernels.hopper.row_reduction import RowReduction
from tensorcore_dsl.kernels.host.arguments import described, element_type, f32_number, number, present, shown
from tensorcore_dsl.kernels.host.arrays import empty_like
from tensorcore_dsl.kernels.host.sparsity import SparseMatrix
from tensorcore_dsl.kernels.problem.gemm_problem import BITS, FAST, GemmProblem, accumulator_dtype
from tensorcore_dsl.kernels.user_functions import Epilogue

PRECISIONS = ("f32", "tf32")  # precisions of f32 products, the default first
# Element type of A and B -> element types that D may have, the default first.
OUTPUTS: dict[tc.DType, tuple[tc.DType, ...]] = {
    tc.f16: (tc.f16, tc.f32),
    tc.bf16: (tc.bf16, tc.f32),
    tc.f32: (tc.f32,),
    tc.s8: (tc.s32,),
    tc.u8: (tc.s32,),
    tc.f64: (tc.f64,),
    tc.e4m3: (tc.bf16, tc.f16, tc.f32),
    tc.e5m2: (tc.bf16, tc.f16, tc.f32),
}
# Types that multiply each other. All other types multiply themselves only.
TYPE_PAIRS = ((tc.e4m3, tc.e5m2), (tc.s8, tc.u8))
# Element types of C, except for products of integers.
ADDENDS = (tc.f16, tc.bf16, tc.f32, tc.f64, tc.e4m3, tc.e5m2, tc.s64, tc.u32, tc.u64)
S32_ADDENDS = (tc.s32, tc.s16, tc.s8, tc.u16, tc.u8)


class GemmOptions(NamedTuple):
    """Options of a call of `gemm` that are no arrays; see there."""

    alpha: float
    beta: float
    out_dtype: Any
    accumulate: Any
    epilogue: Epilogue | None
    row_reductions: tuple[RowReduction, ...]
    precision: str | None
    bits: str
    family: str | None
    config: Any
    stream: Any

    def problem(self, a: Description, b: Description, c: Description | None, d: Description) -> GemmProblem:
        """Make the problem; without `accumulate`, row reductions and `bits`, which not all products take."""
        scalars = convert_scalars(a.type.dtype, self.alpha, self.beta)
        return GemmProblem(a, b, c, d, *scalars, epilogue=self.epilogue, precision=self.precision)


def describe_operands(
    a: Any, b: Any, c: Any = None, beta: float = 0
) -> tuple[Description, Description, Description | None]:
    """Describe A, B and C; refuse operands that cannot be multiplied and added."""
    if isinstance(b, SparseMatrix):
        raise tc.ArgumentError("b is a SparseMatrix; only a may be one")
    descriptions = described(a=a, b=b, **present(c=c))
    operands = descriptions["a"], descriptions["b"], descriptions.get("c")
    check_operands(*operands, beta)
    return operands


def check_operands(a: Description, b: Description, c: Description | None, beta: float) -> None:
    """Refuse operands whose ranks, types or shapes do not fit together."""
    for name, x in (("a", a), ("b", b)):
        if len(x.shape) not in (2, 3):
            as_matrix = f"; a vector is a matrix as {name}[None] or {name}[:, None]"
            raise tc.ArgumentError(
                f"{name} has shape {x.shape}; a matrix is needed, or a batch of them in a leading "
                f"axis{as_matrix if len(x.shape) == 1 else ''}"
            )
    dtype = a.type.dtype
    if dtype not in OUTPUTS:
        allowed = ", ".join(map(str, OUTPUTS))
        raise tc.ArgumentError(f"a has elements of type {dtype}; gemm multiplies {allowed}")
    if b.type.dtype != dtype and not any({dtype, b.type.dtype} == {*pair} for pair in TYPE_PAIRS):
        pairs = ", ".join(f"{x} with {y}" for x, y in TYPE_PAIRS)
        raise tc.ArgumentError(
            f"a holds {dtype} but b holds {b.type.dtype}; convert one: types that differ are "
            f"multiplied only as {pairs}"
        )
    if a.shape[-1] != b.shape[-2]:
        raise tc.ArgumentError(
            f"a is {_size(a)} and b is {_size(b)}: a's columns must be as many as b's rows"
        )
    if c is not None:
        _check_c(c, dtype, product_shape(a, b))
    elif number("beta", beta) != 0:
        raise tc.ArgumentError(f"beta is {beta}, but there is no C")


def _check_c(c: Description, dtype: tc.DType, shape: tuple[int, ...]) -> None:
    """Refuse a C that NumPy would not broadcast to the product, or of a type that cannot be added.

    All integers that are added to products of s8 fit the accumulators, s32.
    """
    extents = zip(reversed(c.shape), reversed(shape), strict=False)
    if len(c.shape) > len(shape) or any(n not in (1, extent) for n, extent in extents):
        raise tc.ArgumentError(
            f"c has shape {c.shape}; the product has {shape}, and c has the same, or one that "
            f"broadcasts to it as in NumPy, such as {shape[-1:]} or {(shape[-2], 1)}"
        )
    added = (*ADDENDS, *S32_ADDENDS) if dtype.is_float else S32_ADDENDS
    if c.type.dtype not in added:
        allowed = ", ".join(map(str, added))
        raise tc.ArgumentError(f"c holds {c.type.dtype}; gemm adds {allowed} to a product of {dtype}")


def broadcast(c: Description, shape: tuple[int, ...]) -> Description:
    """View C with this shape: strides are 0 along repeated axes."""
    missing = len(shape) - len(c.shape)
    extents, strides = (1,) * missing + c.shape, (0,) * missing + c.strides
    strides = tuple(s if n == wanted else 0 for n, wanted, s in zip(extents, shape, strides, strict=True))
    unit = tuple(stride == 1 for stride in strides)
    kind = replace(c.type, ndim=len(shape), unit=unit)
    return c._replace(type=kind, shape=shape, strides=strides)


def _size(x: Description) -> str:
    return "x".join(map(str, x.shape))


def product_shape(a: Description, b: Description) -> tuple[int, ...]:
    """[batch,] M, N; refuses batches of different lengths."""
    batches = {x.shape[0] for x in (a, b) if len(x.shape) == 3}
    if len(batches) > 1:
        raise tc.ArgumentError(f"a is {_size(a)} and b is {_size(b)}: the batches differ")
    return (*batches, a.shape[-2], b.shape[-1])


def check_half_precision(**operands: Description) -> tc.DType:
    """Element type of the operands; refuses all but bf16 for all, or f16 for all."""
    types = {name: x.type.dtype for name, x in operands.items()}
    dtype, *others = set(types.values())
    if others or dtype not in (tc.bf16, tc.f16):
        shown = ", ".join(f"{name} {dtype}" for name, dtype in types.items())
        raise tc.ArgumentError(f"operands are all bf16 or all f16, not {shown}")
    return dtype


def check_rank(name: str, x: Description, axes: int) -> tuple[int, ...]:
    """Shape of an operand; refuses another number of axes."""
    if len(x.shape) != axes:
        raise tc.ArgumentError(f"{name} has shape {x.shape}; {axes} axes are needed")
    return x.shape


def output_dtype(dtype: tc.DType, out_dtype: Any) -> tc.DType:
    """Element type of D: the caller's, or the default for operands of `dtype`."""
    if out_dtype is None:
        return OUTPUTS[dtype][0]
    asked = element_type(out_dtype)
    if not isinstance(asked, tc.DType) or asked not in OUTPUTS[dtype]:
        allowed = " or ".join(map(str, OUTPUTS[dtype]))
        raise tc.ArgumentError(f"out_dtype: a product of {dtype} gives {allowed}, not {out_dtype!r}")
    return asked


def result_array(
    like: Any, out: Any, dtype: tc.DType, shape: tuple[int, ...], out_dtype: Any = None
) -> tuple[Any, Description]:
    """`out`, or a new array of `out_dtype` on the device of `like`, and its description.

    Refuses an `out` that cannot receive a product of `dtype` of this shape, or whose elements are
    not of `out_dtype`.
    """
    asked = output_dtype(dtype, out_dtype)
    if out is None:
        return _new_result(like, shape, asked)
    description = _described_result(out, shape, OUTPUTS[dtype], f"a product of {dtype}")
    if out_dtype is not None and description.type.dtype != asked:
        raise tc.ArgumentError(f"out holds {description.type.dtype}, but out_dtype is {asked}")
    return out, description


def result_array_of_type(
    like: Any, out: Any, shape: tuple[int, ...], dtype: tc.DType
) -> tuple[Any, Description]:
    """Return `out`, or a new array, for a result that can have one type only; and its description."""
    if out is None:
        return _new_result(like, shape, dtype)
    return out, _described_result(out, shape, (dtype,), "the product")


def _new_result(like: Any, shape: tuple[int, ...], dtype: tc.DType) -> tuple[Any, Description]:
    out = empty_like(like, shape, dtype)
    return out, describe(out, "out")


def _described_result(
    out: Any, shape: tuple[int, ...], allowed: tuple[Any, ...], product: str
) -> Description:
    description = described(out=out)["out"]
    if description.shape != shape:
        raise tc.ArgumentError(f"out has shape {description.shape}; the product has {shape}")
    if description.type.dtype not in allowed:
        names = " or ".join(map(str, allowed))
        raise tc.ArgumentError(f"out holds {description.type.dtype}; {product} gives {names}")
    if not description.type.writable:
        raise tc.ArgumentError("out is read-only; pass an array that may be written")
    return description


def check_accumulate(dtype: tc.DType, accumulate: Any) -> None:
    """Refuse `accumulate` unless it is None, f32 (s32 of s8, f64 of f64), f16 of f16, or FAST of fp8."""
    default = accumulator_dtype(dtype)
    known = isinstance(accumulate, (tc.DType, str, type(None)))  # comparisons of arrays give arrays
    if known and (accumulate in (None, default) or (dtype, accumulate) == (tc.f16, tc.f16)):
        return
    if not known or accumulate not in (FAST, tc.f16, tc.f32):
        raise tc.ArgumentError(
            f"accumulate is {accumulate!r}; allowed are tc.f32, tc.f16 (f16 products) and {FAST!r} "
            f"(fp8 products)"
        )
    if accumulate == tc.f32:
        raise tc.ArgumentError(f"products of {dtype} are summed in {default}, not in f32")
    if accumulate != FAST:
        raise tc.ArgumentError(f"only f16 products can be summed in {accumulate}, not {dtype}")
    if not (dtype.is_float and dtype.bits == 8):
        raise tc.ArgumentError(f"only fp8 products have fast accumulation, not {dtype}")


def accumulation(name: str | None) -> tc.DType | str | None:
    """`accumulate` of `gemm` for its name in operators, whose options are text."""
    return tc.f16 if name == "f16" else name


def check_precision(dtype: tc.DType, precision: Any) -> None:
    """Refuse a precision unless the operands are f32."""
    if precision is not None and dtype != tc.f32:
        raise tc.ArgumentError(
            f"precision is {precision!r}, and a has elements of type {dtype}; only f32 products "
            "have a choice of precision"
        )
    if not isinstance(precision, (str, type(None))) or precision not in (None, *PRECISIONS):
        allowed = " or ".join(map(repr, PRECISIONS))
        raise tc.ArgumentError(f"precision is {precision!r}; allowed is {allowed}")


def check_bits(bits: Any) -> None:
    """Refuse a value outside of BITS."""
    if not isinstance(bits, str) or bits not in BITS:
        raise tc.ArgumentError(f"bits is {shown(bits)}; allowed is {' or '.join(map(repr, BITS))}")


def convert_scalars(dtype: tc.DType, alpha: float, beta: float) -> tuple[Any, Any]:
    """Convert alpha and beta to the type of the kernel: integers for s8, else floats."""
    return _scalar("alpha", alpha, dtype), _scalar("beta", beta, dtype)


def _scalar(name: str, scalar: Any, dtype: tc.DType) -> float | int:
    if not dtype.is_float:
        value = number(name, scalar)
        if not value.is_integer() or not -(2**31) <= value < 2**31:  # refuses NaN and infinities, too
            raise tc.ArgumentError(
                f"{name} is {scalar}; products of s8 take integer alpha and beta, of 32 bits"
            )
        return int(value)
    return number(name, scalar) if dtype == tc.f64 else f32_number(name, scalar)
