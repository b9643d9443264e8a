"""Conversions among element types, and packing of narrow elements into 32-bit registers."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType, as_dtype
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.isa import names
from tensorcore_dsl.values.instructions import InstructionBuilder
from tensorcore_dsl.values.operands import constant, describe, is_number
from tensorcore_dsl.values.values import RegisterGroup, Scalar

_BYTES_LOW = 0x3340  # prmt selector: two low bytes side by side, below zeros
_HALVES_LOW = 0x5410  # prmt selector: two low halves side by side


def convert(
    builder: InstructionBuilder,
    value: Any,
    dtype: DType,
    *,
    rounding: str | None = None,
    relu: bool = False,
    satfinite: bool = False,
) -> Any:
    """`value` as `dtype`: float to integer truncates, to a narrower float rounds to nearest."""
    dtype = as_dtype(dtype)
    if isinstance(value, RegisterGroup):
        return value.to(dtype, rounding=rounding, relu=relu, satfinite=satfinite)
    if is_number(value):
        return builder.literal(value, dtype)
    if not isinstance(value, Scalar):
        raise OperandError(f"cannot convert {describe(value)} to {dtype}")
    source = value.dtype
    if source == dtype and not (relu or satfinite):
        return value
    if dtype.kind == "p":
        return value != 0
    if source.kind == "p":
        return _from_predicate(builder, value, dtype)
    if source.kind == "b" or dtype.kind == "b":
        return _reinterpreted(value, dtype)
    options = ("." + rounding if rounding else "") + (".relu" if relu else "")
    return _cvt(builder, value, dtype, options + (".satfinite" if satfinite else ""))


def convert_pairs(
    builder: InstructionBuilder, elements: list[Any], dtype: DType, **options: Any
) -> list[Scalar] | None:
    """32-bit registers of f32 elements converted to f16, bf16 or fp8, two with one instruction.

    None for other types and options.
    """
    halves, bytes = dtype in (dtypes.f16, dtypes.bf16), dtype in (dtypes.e4m3, dtypes.e5m2)
    if options or not (halves or bytes) or builder.arch.number < (80 if halves else 89):
        return None
    if any(e.dtype != dtypes.f32 for e in elements) or len(elements) % (2 if halves else 4):
        return None
    name = names.convert(f"{dtype}x2", dtypes.f32, ".rn" if halves else ".rn.satfinite")
    pairs = [builder.named(name, high, low) for low, high in zip(elements[::2], elements[1::2], strict=True)]
    if halves:
        return pairs
    words = zip(pairs[::2], pairs[1::2], strict=True)
    return [builder.named(names.pack(32), low, high) for low, high in words]


def _from_predicate(builder: InstructionBuilder, value: Scalar, dtype: DType) -> Scalar:
    if dtype.lanes == 2 or dtype == dtypes.ue8m0:
        raise OperandError(f"a predicate cannot be converted to {dtype}: write tc.select(condition, a, b)")
    one, zero = (const_bits(constant(n, dtype)) for n in (1, 0))
    chosen = builder.named(names.select(dtype.register_bits), one, zero, value)
    return Scalar(chosen.value, dtype)


def _reinterpreted(value: Scalar, dtype: DType) -> Scalar:
    if value.dtype.register_bits == dtype.register_bits:
        return Scalar(value.value, dtype)
    raise OperandError(
        f"{value.dtype} and {dtype} differ in size, and plain bits have no value to convert: give "
        "them a type first, .bits(type)"
    )


def _cvt(builder: InstructionBuilder, value: Scalar, dtype: DType, options: str) -> Any:
    """Convert with cvt, through f32 where no instruction converts directly."""
    source = value.dtype
    if source.lanes == 2 or dtype.lanes == 2:
        raise OperandError(f"{source} cannot be converted to {dtype}: unpack the pair first")
    if source == dtype and not options.endswith((".relu", ".satfinite")):
        return value
    if {source, dtype} & {dtypes.s4, dtypes.u4}:
        raise OperandError(
            f"{source} cannot be converted to {dtype}: no instruction converts integers of 4 bits; "
            "with eight of them in an s32 or u32 x, number i is x << (28 - 4 * i) >> 28"
        )
    if source.is_integer and dtype.is_integer and source.bits == dtype.bits and not options:
        return Scalar(value.value, dtype)
    if source.name == "tf32":
        return _cvt(builder, Scalar(value.value, dtypes.f32), dtype, options)
    for through in _detours(source, dtype):
        return _cvt(builder, through(builder, value), dtype, options)
    if dtype.is_float and dtype.bits <= 8:
        return _to_narrow(builder, value, dtype, options)
    if not options.startswith((".rn", ".rz", ".rm", ".rp", ".rna")):
        options = _default_rounding(source, dtype) + options
    return builder.named(names.convert(dtype, source, options), value)


def _detours(source: DType, dtype: DType) -> list[Any]:
    """The exact intermediate conversion, in a list, where no instruction converts directly."""
    if source.is_float and source.bits <= 8:
        return [_widened]
    if (source.name == "bf16" and dtype != dtypes.f32) or source == dtype == dtypes.f16:
        return [lambda b, v: _cvt(b, v, dtypes.f32, "")]
    narrow = dtype.name == "bf16" or (dtype.is_float and dtype.bits <= 8) or dtype.name == "tf32"
    if narrow and source != dtypes.f32:
        return [_rounded_to_odd]
    return []


def _widened(builder: InstructionBuilder, value: Scalar) -> Scalar:
    """A number of at most 8 bits as f16, or ue8m0 as bf16: the low half of a converted pair."""
    wide = dtypes.bf16 if value.dtype == dtypes.ue8m0 else dtypes.f16
    bits = Scalar(value.value, dtypes.b16)
    pair = builder.named(names.convert(f"{wide}x2", f"{_signed(value.dtype)}x2", ".rn"), bits)
    return unpack(builder, pair, wide)[0]


def _signed(dtype: DType) -> DType:
    """The type whose conversions serve `dtype`: ue4m3 is e4m3 whose sign is 0."""
    return dtypes.e4m3 if dtype == dtypes.ue4m3 else dtype


def _rounded_to_odd(builder: InstructionBuilder, value: Scalar) -> Scalar:
    """`value` as f32, rounded to odd: a second rounding then gives the correctly rounded result.

    The value is truncated, and the last bit is set where bits were lost.
    """
    source = value.dtype
    if source.name == "f16" or (source.is_integer and source.bits < 32):
        return _cvt(builder, value, dtypes.f32, "")  # type: ignore[no-any-return]
    cut = builder.named(names.convert(dtypes.f32, source, ".rz"), value)
    back = builder.named(names.convert(source, dtypes.f32, _default_rounding(dtypes.f32, source)), cut)
    sticky = Scalar(cut.value, dtypes.u32) | 1
    inexact = back != value
    if source.is_float:  # infinities and NaN keep their bits
        inexact = inexact & builder.named(names.test_float("finite", dtypes.f32), cut)
    chosen = builder.named(names.select(32), sticky, Scalar(cut.value, dtypes.b32), inexact)
    return Scalar(chosen.value, dtypes.f32)


def _default_rounding(source: DType, dtype: DType) -> str:
    if dtype.name == "tf32":
        return ".rna"
    if dtype.is_float:
        return "" if source.is_float and source.bits < dtype.bits else ".rn"
    return ".rzi" if source.is_float else ""


def _to_narrow(builder: InstructionBuilder, value: Scalar, dtype: DType, options: str) -> Scalar:
    """One number of at most 8 bits: the low part of a converted pair, whose high part is zero."""
    mode = options.removesuffix(".satfinite").removesuffix(".relu") or ".rn"
    finite = ".satfinite"
    if dtype == dtypes.ue8m0:
        if mode not in (".rz", ".rp"):
            raise OperandError(
                "a conversion to ue8m0 rounds towards zero or up, not to nearest: write "
                ".to(tc.ue8m0, rounding='rz') or rounding='rp'"
            )
        finite = finite if finite in options else ""
    relu = ".relu" if ".relu" in options or dtype == dtypes.ue4m3 else ""
    zero = builder.literal(0.0, dtypes.f32)
    name = names.convert(f"{_signed(dtype)}x2", dtypes.f32, f"{mode}{finite}{relu}")
    pair = builder.named(name, zero, value)
    return Scalar(pair.value, dtype)


# -- packing ---------------------------------------------------------------------------------


def pack(builder: InstructionBuilder, elements: list[Any], dtype: DType) -> Scalar:
    """Elements of 8 or 16 bits in one 32-bit register, low to high; or one in the low bits."""
    scalars = [builder.scalar(e, dtype) for e in elements]
    if dtype.bits == 16:
        scalars = scalars if len(scalars) == 2 else [*scalars, builder.literal(0, dtypes.b16)]
        result = builder.named(names.pack(32), *scalars)
        return Scalar(result.value, dtypes.ALL.get(f"{dtype.name}x2", dtypes.b32))
    if dtype.storage_bits != 8:
        raise OperandError(f"elements of type {dtype} cannot be packed one by one")
    zero = builder.literal(0, dtypes.b16)
    if len(scalars) == 1:
        return builder.named(names.pack(32), scalars[0], zero)  # type: ignore[no-any-return]
    words = [builder.named(names.pack(32), s, zero) for s in scalars]
    low, high = (builder.named(names.PERMUTE_BYTES, words[i], words[i + 1], _BYTES_LOW) for i in (0, 2))
    return builder.named(names.PERMUTE_BYTES, low, high, _HALVES_LOW)  # type: ignore[no-any-return]


def unpack(builder: InstructionBuilder, register: Scalar, dtype: DType) -> list[Scalar]:
    """The elements of one 32-bit register, low to high."""
    if dtype.bits == 16:
        halves = builder.named(names.unpack(32), register)
        return [Scalar(half.value, dtype) for half in halves]
    if dtype.storage_bits != 8:
        raise OperandError(f"elements of type {dtype} cannot be taken out of a register")
    word = dtypes.s32 if dtype.kind == "s" else dtypes.u32
    bytes_ = [
        builder.named(names.extract_field(word), Scalar(register.value, word), 8 * i, 8) for i in range(4)
    ]
    return [Scalar(builder.named(names.unpack(32), b)[0].value, dtype) for b in bytes_]
