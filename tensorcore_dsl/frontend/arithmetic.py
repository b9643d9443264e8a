"""What Python's operators mean on run-time scalars: promotion, folding, rows.

Promotion is C's, with Python numbers weak: integers narrower than 32 bits become s32, the
wider type wins, unsigned wins among equals, a float wins over an integer, f16 with bf16 gives
f32. `//` and `%` round toward minus infinity as Python's do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend.values import Group, Scalar
from tensorcore_dsl.ir.nodes import Const, Op, Value

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BITWISE = ("and", "or", "xor", "shl", "shr", "not")


def is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.generic))


def promote(left: Any, right: Any) -> DType:
    """The type in which two operands meet."""
    if not isinstance(left, Scalar):
        return _weak(left, right.dtype)
    if not isinstance(right, Scalar):
        return _weak(right, left.dtype)
    return promote_types(left.dtype, right.dtype)


def promote_types(a: DType, b: DType) -> DType:
    for t in (a, b):
        if t.kind == "b" or (t.is_float and t.bits < 16):
            raise OperandError(f"{t} has no arithmetic; convert it first, for example with .to(f32)")
    if a == b and (a.is_float or a.bits >= 32) and a.kind != "p":
        return a
    if a.is_float or b.is_float:
        return _promote_floats(a, b)
    a, b = _at_least_32(a), _at_least_32(b)
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind == "u" else b


def _promote_floats(a: DType, b: DType) -> DType:
    if not a.is_float:
        return b
    if not b.is_float:
        return a
    if a.lanes != b.lanes:
        raise OperandError(f"{a} and {b} do not combine")
    if a.bits == b.bits:
        return dtypes.f32 if a.bits <= 32 else a
    return a if a.bits > b.bits else b


def _at_least_32(t: DType) -> DType:
    return dtypes.s32 if t.bits < 32 else t


def _weak(number: Any, dtype: DType) -> DType:
    if isinstance(number, np.generic):
        return promote_types(dtypes.from_numpy(number.dtype), dtype)
    if dtype.kind == "p" and isinstance(number, bool):
        return dtype
    if isinstance(number, float) and not dtype.is_float:
        return dtypes.f32
    return promote_types(dtype, dtype) if dtype.kind != "p" else dtypes.s32


def apply(builder: Any, name: str, *operands: Any) -> Any:
    """One operator on scalars and Python numbers."""
    if len(operands) == 1:
        return _unary(builder, name, operands[0])
    left, right = operands
    if name in ("and", "or", "xor") and _predicates(left, right):
        return _logic(builder, name, left, right)
    if name in ("shl", "shr"):
        return _shift(builder, name, left, right)
    dtype = promote(left, right)
    if name == "truediv" and not dtype.is_float:
        dtype = dtypes.f32
    if name in BITWISE and dtype.is_float:
        raise OperandError(f"{_SIGNS[name]} needs integers, not {dtype}; see .bits()")
    left, right = coerce(builder, left, dtype), coerce(builder, right, dtype)
    if name in COMPARISONS:
        return _compare(builder, name, left, right, dtype)
    return _BINARY[name](builder, left, right, dtype)


_SIGNS = {"and": "&", "or": "|", "xor": "^", "not": "~"}


def coerce(builder: Any, value: Any, dtype: DType) -> Any:
    """`value` in `dtype`; Python numbers stay numbers."""
    if isinstance(value, Scalar):
        return value if value.dtype == dtype else convert(builder, value, dtype)
    return float(value) if dtype.is_float else value


def _predicates(left: Any, right: Any) -> bool:
    kinds = [v.dtype.kind if isinstance(v, Scalar) else ("p" if isinstance(v, bool) else "") for v in (left, right)]
    return kinds == ["p", "p"]


def _logic(builder: Any, name: str, left: Any, right: Any) -> Any:
    for this, other in ((left, right), (right, left)):
        if isinstance(this, bool):
            if name == "and":
                return other if this else False
            if name == "or":
                return True if this else other
            return builder.named("not.pred", other) if this else other
    return builder.named(f"{name}.pred", left, right)


def _operand_order(builder: Any, left: Any, right: Any, dtype: DType) -> tuple[Any, Any]:
    """Commutative operands with a constant last."""
    if not isinstance(left, Scalar):
        left, right = right, left
    return left, right


# -- integers and floats ---------------------------------------------------------------------


def _add(builder: Any, left: Any, right: Any, dtype: DType) -> Any:
    left, right = _operand_order(builder, left, right, dtype)
    if dtype.is_float:
        return _float(builder, "add", left, right, dtype)
    if not isinstance(right, Scalar):
        base, offset = builder.split_constant(left)
        total = _wrap(offset + int(right), dtype)
        return base if total == 0 else builder.named(f"add.{dtype}", base, total)
    left_base, left_offset = builder.split_constant(left)
    right_base, right_offset = builder.split_constant(right)
    total = builder.named(f"add.{dtype}", left_base, right_base)
    return _add(builder, total, left_offset + right_offset, dtype)


def _sub(builder: Any, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.is_float:
        return _float(builder, "sub", left, right, dtype)
    if not isinstance(right, Scalar):
        return _add(builder, left, -int(right), dtype)
    return builder.named(f"sub.{dtype}", builder.scalar(left, dtype), right)


def _mul(builder: Any, left: Any, right: Any, dtype: DType) -> Any:
    left, right = _operand_order(builder, left, right, dtype)
    if dtype.is_float:
        return _float(builder, "mul", left, right, dtype)
    if isinstance(right, Scalar):
        return builder.named(f"mul.lo.{dtype}", left, right)
    factor = int(right)
    if factor in (0, 1):
        return left if factor else 0
    base, offset = builder.split_constant(left)
    product = builder.named(f"mul.lo.{dtype}", base, _wrap(factor, dtype))
    return _add(builder, product, offset * factor, dtype)


def _wrap(number: int, dtype: DType) -> int:
    number &= (1 << dtype.bits) - 1
    if dtype.kind == "s" and number >> (dtype.bits - 1):
        number -= 1 << dtype.bits
    return number


def _truediv(builder: Any, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.bits == 16:
        wide = [coerce(builder, v, dtypes.f32) for v in (left, right)]
        return convert(builder, _truediv(builder, *wide, dtypes.f32), dtype)
    return builder.named(f"div.rn.{dtype}", *_scalars(builder, left, right, dtype))


def _scalars(builder: Any, left: Any, right: Any, dtype: DType) -> tuple[Any, Any]:
    """A constant may stand on the right; on the left it goes into a register."""
    return (left if isinstance(left, Scalar) else builder.literal(left, dtype)), right


def _float(builder: Any, name: str, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.bits == 16 or dtype.lanes == 2:
        left, right = (builder.scalar(v, dtype) for v in (left, right))
        if dtype.name.startswith("bf16") and builder.arch.number < 90:
            return _bf16(builder, name, left, right, dtype)
        return builder.named(f"{name}.{dtype}", left, right)
    mnemonic = f"{name}.rn.{dtype}"  # .rn is never contracted into an fma: the bits are fixed
    return builder.named(mnemonic, *_scalars(builder, left, right, dtype))


def _bf16(builder: Any, name: str, left: Any, right: Any, dtype: DType) -> Any:
    """sm_80 has only fma in bf16: a*1+b, a*b+(-0), b*(-1)+a. All round once."""
    one = packed_constant(1.0, dtype)
    if name == "add":
        return builder.named(f"fma.rn.{dtype}", left, builder.literal(one, dtype), right)
    if name == "sub":
        minus = builder.literal(packed_constant(-1.0, dtype), dtype)
        return builder.named(f"fma.rn.{dtype}", right, minus, left)
    zero = builder.literal(packed_constant(-0.0, dtype), dtype)
    return builder.named(f"fma.rn.{dtype}", left, right, zero)


def packed_constant(value: float, dtype: DType) -> float:
    return value


def _floordiv(builder: Any, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.is_float:
        return floor(builder, _truediv(builder, left, right, dtype))
    if not isinstance(right, Scalar):
        if int(right) == 1:
            return left
        if int(right) > 0 and int(right) & (int(right) - 1) == 0:
            return builder.named(f"shr.{dtype}", left, int(right).bit_length() - 1)
    left, right = _scalars(builder, left, right, dtype)
    quotient = builder.named(f"div.{dtype}", left, right)
    if dtype.kind == "u":
        return quotient
    adjust = _needs_floor(builder, left, right, dtype)
    return select(builder, adjust, _add(builder, quotient, -1, dtype), quotient)


def _needs_floor(builder: Any, left: Scalar, right: Any, dtype: DType) -> Any:
    """The remainder is not zero and its sign is not the divisor's."""
    remainder = builder.named(f"rem.{dtype}", left, right)
    nonzero = _compare(builder, "ne", remainder, 0, dtype)
    signs = builder.named(f"xor.b{dtype.bits}", remainder, right)
    signs = Scalar(signs.value, dtype)
    return _logic(builder, "and", nonzero, _compare(builder, "lt", signs, 0, dtype))


def _mod(builder: Any, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.is_float:
        raise OperandError("% needs integers; use x - y * floor(x / y)")
    if not isinstance(right, Scalar) and int(right) > 0 and int(right) & (int(right) - 1) == 0:
        return _and_constant(builder, left, int(right) - 1, dtype)
    left, right = _scalars(builder, left, right, dtype)
    remainder = builder.named(f"rem.{dtype}", left, right)
    if dtype.kind == "u":
        return remainder
    adjust = _needs_floor(builder, left, right, dtype)
    fixed = _add(builder, remainder, right, dtype)
    return select(builder, adjust, fixed, remainder)


def _bits(name: str) -> Any:
    def emit(builder: Any, left: Any, right: Any, dtype: DType) -> Any:
        left, right = _operand_order(builder, left, right, dtype)
        if not isinstance(right, Scalar):
            if name == "and":
                return _and_constant(builder, left, int(right), dtype)
            if int(right) == 0:
                return left
        return _as(builder.named(f"{name}.b{dtype.bits}", left, right), dtype)

    return emit


def _and_constant(builder: Any, left: Any, mask: int, dtype: DType) -> Any:
    """x & mask; multiples of mask + 1 that were added to x do not matter for a low mask."""
    if mask == 0:
        return 0
    base, offset = builder.split_constant(left)
    if mask & (mask + 1) == 0 and offset and offset % (mask + 1) == 0:
        left = base
    return _as(builder.named(f"and.b{dtype.bits}", left, mask), dtype)


def _as(value: Scalar, dtype: DType) -> Scalar:
    return Scalar(value.value, dtype)


_BINARY: dict[str, Any] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "truediv": _truediv,
    "floordiv": _floordiv,
    "mod": _mod,
    "and": _bits("and"),
    "or": _bits("or"),
    "xor": _bits("xor"),
}


def _shift(builder: Any, name: str, left: Any, right: Any) -> Any:
    dtype = promote(left, left) if isinstance(left, Scalar) else promote(left, right)
    if dtype.is_float:
        raise OperandError(f"shifts need integers, not {dtype}")
    left = coerce(builder, left, dtype)
    if not isinstance(right, Scalar) and int(right) == 0:
        return left
    count = coerce(builder, right, dtypes.u32) if isinstance(right, Scalar) else int(right)
    left = builder.scalar(left, dtype)
    suffix = f"b{dtype.bits}" if name == "shl" else dtype.name
    return _as(builder.named(f"{name}.{suffix}", left, count), dtype)


def _compare(builder: Any, name: str, left: Any, right: Any, dtype: DType) -> Any:
    if not isinstance(left, Scalar):
        left, right = right, left
        name = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(name, name)
    if dtype.kind == "p":
        return _compare_predicates(builder, name, left, right)
    if dtype.is_float and name == "ne":
        name = "neu"  # Python: nan != nan
    if dtype.bits == 16 and dtype.is_float and not isinstance(right, Scalar):
        right = builder.literal(right, dtype)
    if dtype.name == "bf16" and builder.arch.number < 90:
        left, right = (convert(builder, v, dtypes.f32) for v in (left, right))
        dtype = dtypes.f32
    return builder.named(f"setp.{name}.{dtype}", left, right)


def _compare_predicates(builder: Any, name: str, left: Any, right: Any) -> Any:
    if name not in ("eq", "ne"):
        raise OperandError("predicates can be compared only with == and !=")
    differ = _logic(builder, "xor", left, right)
    if name == "ne":
        return differ
    return builder.named("not.pred", differ) if isinstance(differ, Scalar) else not differ


def _unary(builder: Any, name: str, value: Scalar) -> Any:
    dtype = value.dtype
    if name == "not":
        if dtype.is_float:
            raise OperandError(f"~ needs an integer, not {dtype}")
        suffix = "pred" if dtype.kind == "p" else f"b{dtype.bits}"
        return _as(builder.named(f"not.{suffix}", value), dtype)
    if dtype.kind == "u":
        return value if name == "abs" else _sub(builder, 0, value, dtype)
    if dtype.kind in "bp":
        raise OperandError(f"{name} needs a number, not {dtype}")
    if dtype.is_integer and dtype.bits < 32:
        value, dtype = convert(builder, value, dtypes.s32), dtypes.s32
    return builder.named(f"{name}.{dtype}", value)


# -- choices ---------------------------------------------------------------------------------


def truth(builder: Any, value: Any) -> Any:
    """Python's truth of a value as a predicate; numbers give bool."""
    if isinstance(value, Scalar):
        if value.dtype.kind == "p":
            return value
        return apply(builder, "ne", value, 0.0 if value.dtype.is_float else 0)
    if isinstance(value, Group):
        raise OperandError("a fragment has no truth value; reduce it first")
    return bool(value)


def logical_not(builder: Any, value: Any) -> Any:
    known = truth(builder, value)
    return builder.named("not.pred", known) if isinstance(known, Scalar) else not known


def select(builder: Any, condition: Any, yes: Any, no: Any) -> Any:
    """`yes if condition else no` without a branch; both sides are already computed."""
    condition = truth(builder, condition)
    if not isinstance(condition, Scalar):
        return yes if condition else no
    if yes is no:
        return yes
    if isinstance(yes, Group) or isinstance(no, Group):
        return _select_groups(builder, condition, yes, no)
    if not isinstance(yes, Scalar) and not isinstance(no, Scalar):
        yes = builder.scalar(yes)
        if yes.dtype.kind == "p" or isinstance(no, float):
            yes = yes if yes.dtype.kind == "p" else builder.literal(float(_value(builder, yes)), dtypes.f32)
    same = isinstance(yes, Scalar) and isinstance(no, Scalar) and yes.dtype == no.dtype
    dtype = yes.dtype if same else promote(yes, no)
    yes, no = coerce(builder, yes, dtype), coerce(builder, no, dtype)
    if dtype.kind == "p":
        return _select_predicate(builder, condition, yes, no)
    yes, no = builder.scalar(yes, dtype), builder.scalar(no, dtype)
    return _as(builder.named(f"selp.b{dtype.register_bits}", yes, no, condition), dtype)


def _value(builder: Any, literal: Scalar) -> Any:
    node = builder.block.nodes[-1]
    return node.sources[0].value


def _select_predicate(builder: Any, condition: Scalar, yes: Any, no: Any) -> Any:
    left = _logic(builder, "and", condition, yes)
    right = _logic(builder, "and", builder.named("not.pred", condition), no)
    return _logic(builder, "or", left, right)


def _select_groups(builder: Any, condition: Scalar, yes: Any, no: Any) -> Any:
    group = yes if isinstance(yes, Group) else no
    for side in (yes, no):
        if not isinstance(side, Group) or side.value.type != group.value.type:
            raise OperandError("both sides of a conditional expression must be the same kind of fragment")
    chosen = [select(builder, condition, y, n) for y, n in zip(yes.registers, no.registers, strict=True)]
    return builder.pack(chosen, group.value.type, group.operand)


def extreme(builder: Any, name: str, left: Any, right: Any) -> Any:
    """min or max."""
    if not isinstance(left, Scalar) and not isinstance(right, Scalar):
        return min(left, right) if name == "min" else max(left, right)
    dtype = promote(left, right)
    left, right = coerce(builder, left, dtype), coerce(builder, right, dtype)
    left, right = _operand_order(builder, left, right, dtype)
    if dtype.is_float and dtype.bits == 16:
        right = builder.scalar(right, dtype)
    return builder.named(f"{name}.{dtype}", left, right)


def fma(builder: Any, a: Any, b: Any, c: Any, rounding: str = "rn") -> Any:
    """a * b + c, rounded once; integers use mad.lo."""
    known = [v for v in (a, b, c) if isinstance(v, Scalar)]
    if not known:
        return a * b + c
    dtype = known[0].dtype
    for other in known[1:]:
        dtype = promote_types(dtype, other.dtype)
    a, b, c = (builder.scalar(coerce(builder, v, dtype), dtype) for v in (a, b, c))
    return builder.named(f"fma.{rounding}.{dtype}" if dtype.is_float else f"mad.lo.{dtype}", a, b, c)


def floor(builder: Any, value: Scalar) -> Any:
    return builder.named(f"cvt.rmi.{value.dtype}.{value.dtype}", value)


# -- conversions -----------------------------------------------------------------------------


def convert(
    builder: Any,
    value: Any,
    dtype: DType,
    rounding: str | None = None,
    relu: bool = False,
    satfinite: bool = False,
) -> Any:
    """`value` as `dtype`: float to integer truncates, to a narrower float rounds to nearest."""
    if isinstance(value, Group):
        return value.to(dtype, rounding=rounding, relu=relu, satfinite=satfinite)
    if is_number(value):
        return builder.literal(value if dtype.kind != "p" else bool(value), dtype)
    if not isinstance(value, Scalar):
        from tensorcore_dsl.frontend.builder import describe

        raise OperandError(f"cannot convert {describe(value)} to {dtype}")
    source = value.dtype
    if source == dtype:
        return value
    if dtype.kind == "p":
        return truth(builder, value)
    if source.kind == "p":
        one, zero = (builder.literal(n, dtype) for n in (1, 0))
        return select(builder, value, one, zero)
    if source.kind == "b" or dtype.kind == "b":
        return _reinterpret(builder, value, dtype)
    return _cvt(builder, value, dtype, rounding, relu, satfinite)


def _reinterpret(builder: Any, value: Scalar, dtype: DType) -> Any:
    if value.dtype.register_bits == dtype.register_bits:
        return Scalar(value.value, dtype)
    raise OperandError(f"{value.dtype} are plain bits: read them with .bits(type) before converting")


def _cvt(
    builder: Any, value: Scalar, dtype: DType, rounding: str | None, relu: bool, satfinite: bool
) -> Any:
    source = value.dtype
    if source.is_integer and dtype.is_integer and rounding is None:
        if source.register_bits == dtype.register_bits and source.bits == dtype.bits:
            return Scalar(value.value, dtype)
    narrow = {8: "16"}
    if dtype.is_float and dtype.bits <= 8:
        return _to_narrow(builder, value, dtype, relu)
    if source.is_float and source.bits <= 8:
        return _from_narrow(builder, value, dtype)
    if source.name == "tf32":
        return _cvt(builder, Scalar(value.value, dtypes.f32), dtype, rounding, relu, satfinite) \
            if dtype != dtypes.f32 else Scalar(value.value, dtypes.f32)
    if "bf16" in (source.name, dtype.name) and dtypes.f32 not in (source, dtype):
        wide = _cvt(builder, value, dtypes.f32, None, False, False)
        return _cvt(builder, wide, dtype, rounding, relu, satfinite)
    if source.name == "bf16":
        zero = builder.literal(0, dtypes.b16)
        return _as(builder.named("mov.b32.pack", zero, value), dtypes.f32)
    del narrow
    mode = rounding or _default_rounding(source, dtype)
    name = f"cvt{'.' + mode if mode else ''}{'.relu' if relu else ''}{'.satfinite' if satfinite else ''}"
    return builder.named(f"{name}.{dtype}.{source}", value)


def _default_rounding(source: DType, dtype: DType) -> str:
    if dtype.name == "tf32":
        return "rna"
    if dtype.is_float:
        widening = source.is_float and source.bits < dtype.bits
        return "" if widening else "rn"
    return "rzi" if source.is_float else ""


def _to_narrow(builder: Any, value: Scalar, dtype: DType, relu: bool) -> Any:
    """One fp8 value: the pair conversion with a zero above, low byte kept."""
    wide = convert(builder, value, dtypes.f32)
    zero = builder.literal(0.0, dtypes.f32)
    name = f"cvt.rn.satfinite{'.relu' if relu else ''}.{dtype}x2.f32"
    return _as(builder.named(name, zero, wide), dtype)


def _from_narrow(builder: Any, value: Scalar, dtype: DType) -> Any:
    pair = builder.named(f"cvt.rn.f16x2.{value.dtype}x2", Scalar(value.value, dtypes.b16))
    low, _ = unpack(builder, pair, dtypes.f16)
    return convert(builder, low, dtype)


def pack(builder: Any, elements: list[Any], dtype: DType) -> Scalar:
    """Elements into one 32-bit register, low to high."""
    scalars = [builder.scalar(e, dtype) for e in elements]
    if dtype.bits == 16:
        result = builder.named("mov.b32.pack", scalars[0], scalars[1])
        return _as(result, dtypes.ALL.get(f"{dtype.name}x2", dtypes.b32))
    words = [builder.named("mov.b32.pack", s, builder.literal(0, dtypes.b16)) for s in scalars]
    low = builder.named("prmt.b32", words[0], words[1], 0x3340 & 0xFFFF)
    high = builder.named("prmt.b32", words[2], words[3], 0x3340 & 0xFFFF)
    return builder.named("prmt.b32", low, high, 0x5410)


def unpack(builder: Any, register: Scalar, dtype: DType) -> list[Scalar]:
    """The elements of one 32-bit register, low to high."""
    if dtype.bits == 16:
        return [_as(half, dtype) for half in builder.named("mov.b32.unpack", register)]
    if dtype.bits == 8:
        kind = "s" if dtype.kind == "s" else "u"
        word = Scalar(register.value, dtypes.u32)
        bytes_ = [builder.named(f"bfe.{kind}32", _as(word, dtypes.named(f"{kind}32")), 8 * i, 8) for i in range(4)]
        halves = [builder.named("mov.b32.unpack", b)[0] for b in bytes_]
        return [_as(h, dtype) for h in halves]
    raise OperandError(f"elements of type {dtype} cannot be taken out of a register")


def defining_op(builder: Any, value: Value) -> Op | None:
    return builder.definitions.get(value)  # type: ignore[no-any-return]


__all__ = ["Const", "apply", "convert", "extreme", "fma", "logical_not", "promote", "select", "truth"]
