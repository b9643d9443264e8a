"""Conversions among element types, and packing of narrow elements into 32-bit registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.ir.nodes import Const
from tensorcore_dsl.values.operands import constant, describe, is_number
from tensorcore_dsl.values.values import Group, Scalar

if TYPE_CHECKING:
    from tensorcore_dsl.values.builder import Builder

_BYTES_LOW = 0x3340  # prmt selector: two low bytes side by side, below zeros
_HALVES_LOW = 0x5410  # prmt selector: two low halves side by side


def literal(value: Any, dtype: DType) -> Const:
    """A number as a constant of `dtype`: floats are cut to integers, pairs hold it twice."""
    if dtype.lanes == 2:
        half = const_bits(constant(value, dtypes.named(dtype.name.removesuffix("x2"))))
        return Const(half << 16 | half, dtype)
    if dtype.is_integer and isinstance(value, float):
        value = int(value)
    return constant(value, dtype)


def convert(
    builder: Builder,
    value: Any,
    dtype: DType,
    *,
    rounding: str | None = None,
    relu: bool = False,
    satfinite: bool = False,
) -> Any:
    """`value` as `dtype`: float to integer truncates, to a narrower float rounds to nearest."""
    if isinstance(value, Group):
        return value.to(dtype, rounding=rounding, relu=relu, satfinite=satfinite)
    if is_number(value):
        return builder.literal(value, dtype)
    if not isinstance(value, Scalar):
        raise OperandError(f"cannot convert {describe(value)} to {dtype}")
    source = value.dtype
    if source == dtype:
        return value
    if dtype.kind == "p":
        return builder.apply("ne", value, 0)
    if source.kind == "p":
        return _from_predicate(builder, value, dtype)
    if source.kind == "b" or dtype.kind == "b":
        return _reinterpreted(value, dtype)
    options = ("." + rounding if rounding else "") + (".relu" if relu else "")
    return _cvt(builder, value, dtype, options + (".satfinite" if satfinite else ""))


def _from_predicate(builder: Builder, value: Scalar, dtype: DType) -> Scalar:
    one, zero = (const_bits(constant(n, dtype)) for n in (1, 0))
    found = builder.named(f"selp.b{dtype.register_bits}", one, zero, value)
    return Scalar(found.value, dtype)


def _reinterpreted(value: Scalar, dtype: DType) -> Scalar:
    if value.dtype.register_bits == dtype.register_bits:
        return Scalar(value.value, dtype)
    raise OperandError(
        f"{value.dtype} and {dtype} differ in size, and plain bits have no value to convert: give "
        "them a type first, .bits(type)"
    )


def _cvt(builder: Builder, value: Scalar, dtype: DType, options: str) -> Any:
    """cvt, by way of f32 or f64 where the table has no direct form."""
    source = value.dtype
    if source.lanes == 2 or dtype.lanes == 2:
        raise OperandError(f"{source} cannot be converted to {dtype}: unpack the pair first")
    if source.is_integer and dtype.is_integer and source.bits == dtype.bits:
        return Scalar(value.value, dtype)
    if source.name == "tf32":
        plain = Scalar(value.value, dtypes.f32)
        return plain if dtype == dtypes.f32 else _cvt(builder, plain, dtype, options)
    for through in _detours(builder, source, dtype):
        return _cvt(builder, through(builder, value), dtype, options)
    if dtype.is_float and dtype.bits <= 8:
        return _to_narrow(builder, value, dtype, options)
    if not options.startswith((".rn", ".rz", ".rm", ".rp", ".rna")):
        options = _default_rounding(source, dtype) + options
    return builder.named(f"cvt{options}.{dtype}.{source}", value)


def _detours(builder: Builder, source: DType, dtype: DType) -> list[Any]:
    """The exact step before a conversion that the target has not in one."""
    if source.is_float and source.bits <= 8:
        return [_widened]
    if source.name == "bf16" and dtype != dtypes.f32:
        return [lambda b, v: _cvt(b, v, dtypes.f32, "")]
    narrow = dtype.name == "bf16" or (dtype.is_float and dtype.bits <= 8) or dtype.name == "tf32"
    if narrow and source != dtypes.f32:
        return [_rounded_to_odd]
    return []


def _widened(builder: Builder, value: Scalar) -> Scalar:
    """An f16 that holds a number of at most 8 bits: the low half of its pair's conversion."""
    bits = Scalar(value.value, dtypes.b16)
    pair = builder.named(f"cvt.rn.f16x2.{value.dtype}x2", bits)
    return unpack(builder, pair, dtypes.f16)[0]


def _rounded_to_odd(builder: Builder, value: Scalar) -> Scalar:
    """`value` as f32 such that rounding it once more is as good as rounding it once.

    It is cut, and its last bit set where that lost something.
    """
    source = value.dtype
    if source.name == "f16" or (source.is_integer and source.bits < 32):
        return _cvt(builder, value, dtypes.f32, "")  # type: ignore[no-any-return]
    cut = builder.named(f"cvt.rz.f32.{source}", value)
    back = builder.named(f"cvt{_default_rounding(dtypes.f32, source)}.{source}.f32", cut)
    sticky = builder.apply("or", Scalar(cut.value, dtypes.u32), 1)
    inexact = builder.apply("ne", back, value)
    if source.is_float:  # infinities and NaN keep their bits
        finite = builder.named("testp.finite.f32", cut)
        inexact = builder.apply("and", inexact, finite)
    chosen = builder.named("selp.b32", sticky, Scalar(cut.value, dtypes.b32), inexact)
    return Scalar(chosen.value, dtypes.f32)


def _default_rounding(source: DType, dtype: DType) -> str:
    if dtype.name == "tf32":
        return ".rna"
    if dtype.is_float:
        return "" if source.is_float and source.bits < dtype.bits else ".rn"
    return ".rzi" if source.is_float else ""


def _to_narrow(builder: Builder, value: Scalar, dtype: DType, options: str) -> Scalar:
    """One fp8, fp6 or fp4 number: the pair's conversion with a zero above, its low part kept."""
    mode = options.removesuffix(".satfinite").removesuffix(".relu") or ".rn"
    relu = ".relu" if ".relu" in options else ""
    zero = builder.literal(0.0, dtypes.f32)
    pair = builder.named(f"cvt{mode}.satfinite{relu}.{dtype}x2.f32", zero, value)
    return Scalar(pair.value, dtype)


# -- packing ---------------------------------------------------------------------------------


def pack(builder: Builder, elements: list[Any], dtype: DType) -> Scalar:
    """Elements of 8 or 16 bits in one 32-bit register, low to high."""
    scalars = [builder.scalar(e, dtype) for e in elements]
    if dtype.bits == 16:
        result = builder.named("mov.b32.pack", *scalars)
        return Scalar(result.value, dtypes.ALL.get(f"{dtype.name}x2", dtypes.b32))
    if dtype.bits != 8:
        raise OperandError(f"elements of type {dtype} cannot be packed one by one")
    zero = builder.literal(0, dtypes.b16)
    words = [builder.named("mov.b32.pack", s, zero) for s in scalars]
    low, high = (builder.named("prmt.b32", words[i], words[i + 1], _BYTES_LOW) for i in (0, 2))
    return builder.named("prmt.b32", low, high, _HALVES_LOW)  # type: ignore[no-any-return]


def unpack(builder: Builder, register: Scalar, dtype: DType) -> list[Scalar]:
    """The elements of one 32-bit register, low to high."""
    if dtype.bits == 16:
        halves = builder.named("mov.b32.unpack", register)
        return [Scalar(half.value, dtype) for half in halves]
    if dtype.bits != 8:
        raise OperandError(f"elements of type {dtype} cannot be taken out of a register")
    word = dtypes.s32 if dtype.kind == "s" else dtypes.u32
    bytes_ = [
        builder.named(f"bfe.{word}", Scalar(register.value, word), 8 * i, 8) for i in range(4)
    ]
    return [Scalar(builder.named("mov.b32.unpack", b)[0].value, dtype) for b in bytes_]
