"""Python's operators on run-time values: type promotion, constant folding, instructions.

`//` and `%` round toward minus infinity as Python's do, `/` of integers gives f32 (f64 from 64
bits). Products and sums of floats are never contracted into fma, so results are reproducible.
"""

from __future__ import annotations

import math
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.isa import names
from tensorcore_dsl.origins import is_library
from tensorcore_dsl.values.conversion import convert
from tensorcore_dsl.values.elementwise import GROUPS, on_groups
from tensorcore_dsl.values.instructions import InstructionBuilder
from tensorcore_dsl.values.operands import constant, describe, integer, is_number, is_simple
from tensorcore_dsl.values.promotion import common_type, promote, promote_types, weak
from tensorcore_dsl.values.values import Mask, RegisterGroup, Scalar

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_LOGIC = {"eq": "xor", "ne": "xor"}  # of predicates; eq is inverted afterwards
_ORDERED = ("lt", "le", "gt", "ge", "floordiv", "mod")  # depend on more than a number's bits
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "and": "&",
    "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "invert": "~", "neg": "-", "abs": "abs",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip


def coerce(builder: InstructionBuilder, value: Any, dtype: DType) -> Any:
    """`value` as `dtype`; a number stays a number."""
    if isinstance(value, Scalar):
        return value if value.dtype == dtype else convert(builder, value, dtype)
    if not is_number(value):
        raise OperandError(f"a number or a run-time value is needed, not {describe(value)}")
    return float(value) if dtype.is_float else value


# -- operators -------------------------------------------------------------------------------


def apply(builder: InstructionBuilder, name: str, *operands: Any) -> Any:
    """One operator; on groups element by element."""
    if any(isinstance(o, GROUPS) for o in operands):
        return on_groups(builder, lambda *each: apply(builder, name, *each), name, operands)
    if not all(map(is_simple, operands)):
        return NotImplemented
    if len(operands) == 1:
        return _unary(builder, name, operands[0])
    left, right = operands
    if name in ("and", "or", "xor", "eq", "ne") and _are_predicates(left, right):
        differ = logic(builder, _LOGIC.get(name, name), left, right)
        return logical_not(builder, differ) if name == "eq" else differ
    if name in ("lshift", "rshift"):
        return _shift(builder, name, left, right)
    dtype = promote(left, right)
    if dtype.kind == "p":  # True is 1
        dtype = dtypes.s32
    if name == "truediv" and not dtype.is_float:
        dtype = dtypes.f64 if dtype.bits == 64 else dtypes.f32
    left, right = coerce(builder, left, dtype), coerce(builder, right, dtype)
    if name in _ORDERED:
        _check_numbers(SIGNS[name], left, right, dtype)
    if name in COMPARISONS:
        return _compare(builder, name, left, right, dtype)
    result = _BINARY[name](builder, left, right, dtype)
    if builder.tiles_of and name in ("add", "sub"):
        builder.note_sum(result, left, right if name == "add" else None)
    return result


def _check_numbers(sign: str, left: Any, right: Any, dtype: DType) -> None:
    """OperandError for an integer that `dtype` holds only as the bits of another number."""
    for number in (left, right):
        if dtype.is_integer and not isinstance(number, Scalar):
            low = -(1 << dtype.bits - 1) if dtype.kind == "s" else 0
            if not low <= int(number) < low + (1 << dtype.bits):
                wide = "s64" if dtype.bits < 64 else "f64"
                raise OperandError(
                    f"{sign} of a value of type {dtype} and {number}, which {dtype} does not hold: "
                    f"convert the value to a type that does, such as {wide}"
                )


def _are_predicates(left: Any, right: Any) -> bool:
    return all(
        v.dtype.kind == "p" if isinstance(v, Scalar) else isinstance(v, (bool, np.bool_))
        for v in (left, right)
    )


def logic(builder: InstructionBuilder, name: str, left: Any, right: Any) -> Any:
    """and, or, xor of predicates and bools."""
    for this, other in ((left, right), (right, left)):
        if isinstance(this, Scalar):
            continue
        if name == "and":
            return other if this else False
        if name == "or":
            return True if this else other
        return logical_not(builder, other) if this else other
    return builder.named(names.bitwise(name, dtypes.pred), left, right)


def _constant_last(left: Any, right: Any) -> tuple[Any, Any]:
    """Commutative operands with a number last."""
    return (left, right) if isinstance(left, Scalar) else (right, left)


def _scalars(builder: InstructionBuilder, left: Any, right: Any, dtype: DType) -> tuple[Any, Any]:
    """A number on the left goes into a register; on the right it may stay a constant."""
    return (left if isinstance(left, Scalar) else builder.literal(left, dtype)), right


def _needs_integers(name: str, dtype: DType) -> None:
    if dtype.is_float:
        bits = f".bits(tc.u{dtype.bits})"
        raise OperandError(f"{SIGNS[name]} needs integers, not {dtype}; {bits} reads its bits")


def _add(builder: InstructionBuilder, left: Any, right: Any, dtype: DType) -> Any:
    left, right = _constant_last(left, right)
    if dtype.is_float:
        return _float(builder, "add", left, right, dtype)
    if not isinstance(right, Scalar):
        base, offset = builder.split_constant(left)
        total = _wrap(offset + integer(right, dtype), dtype)
        return _as(base, dtype) if total == 0 else builder.named(names.binary("add", dtype), base, total)
    left_base, left_offset = builder.split_constant(left)
    right_base, right_offset = builder.split_constant(right)
    total = builder.named(names.binary("add", dtype), left_base, right_base)
    return _add(builder, total, _wrap(left_offset + right_offset, dtype), dtype)


def _sub(builder: InstructionBuilder, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.is_float:
        return _float(builder, "sub", left, right, dtype)
    if not isinstance(right, Scalar):
        return _add(builder, left, _wrap(-integer(right, dtype), dtype), dtype)
    return builder.named(names.binary("sub", dtype), *_scalars(builder, left, right, dtype))


def _mul(builder: InstructionBuilder, left: Any, right: Any, dtype: DType) -> Any:
    left, right = _constant_last(left, right)
    if dtype.is_float:
        return _float(builder, "mul", left, right, dtype)
    if isinstance(right, Scalar):
        return builder.named(names.binary("mul", dtype), left, right)
    factor = integer(right, dtype)
    if factor in (0, 1):
        return left if factor else builder.literal(0, dtype)
    base, offset = builder.split_constant(left)
    product = builder.named(names.binary("mul", dtype), base, _wrap(factor, dtype))
    return _add(builder, product, _wrap(offset * factor, dtype), dtype)


def _wrap(number: int, dtype: DType) -> int:
    number &= (1 << dtype.bits) - 1
    if dtype.kind == "s" and number >> (dtype.bits - 1):
        number -= 1 << dtype.bits
    return number


def _as(value: Any, dtype: DType) -> Scalar:
    return Scalar(value.value, dtype)


def _truediv(builder: InstructionBuilder, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.lanes == 2:
        raise OperandError(f"/ is not defined for pairs ({dtype}): unpack them first")
    if dtype.bits == 16:
        wide = [coerce(builder, v, dtypes.f32) for v in (left, right)]
        quotient = _truediv(builder, wide[0], wide[1], dtypes.f32)
        return convert(builder, quotient, dtype)
    return builder.named(names.binary("div", dtype), *_scalars(builder, left, right, dtype))


def _float(builder: InstructionBuilder, name: str, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.bits == 16 or dtype.lanes == 2:
        left, right = (builder.scalar(v, dtype) for v in (left, right))
        if dtype.name.startswith("bf16") and builder.arch.number < 90:
            return _bf16(builder, name, left, right, dtype)
        return builder.named(names.binary(name, dtype), left, right)
    return builder.named(names.binary(name, dtype), *_scalars(builder, left, right, dtype))


def _bf16(builder: InstructionBuilder, name: str, left: Any, right: Any, dtype: DType) -> Any:
    """sm_80 has only fma in bf16: a*1+b, b*(-1)+a, a*b+(-0), each rounded once."""
    fma = names.multiply_add(dtype)
    if name == "add":
        return builder.named(fma, left, builder.literal(1.0, dtype), right)
    if name == "sub":
        return builder.named(fma, right, builder.literal(-1.0, dtype), left)
    return builder.named(fma, left, right, builder.literal(-0.0, dtype))


def _floordiv(builder: InstructionBuilder, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.is_float:
        return rounded(builder, _truediv(builder, left, right, dtype), "rmi")
    if not isinstance(right, Scalar):
        divisor = _divisor(right, dtype)
        if divisor == 1:
            return left
        if divisor > 0 and divisor & (divisor - 1) == 0:
            return builder.named(names.shift_right(dtype), left, divisor.bit_length() - 1)
    left, right = _scalars(builder, left, right, dtype)
    quotient = builder.named(names.binary("div", dtype), left, right)
    if dtype.kind == "u":
        return quotient
    adjust = _needs_floor(builder, left, right, dtype)
    return select(builder, adjust, _add(builder, quotient, -1, dtype), quotient)


def _divisor(number: Any, dtype: DType) -> int:
    divisor = integer(number, dtype)
    if divisor == 0:
        raise OperandError("division by zero")
    return divisor


def _needs_floor(builder: InstructionBuilder, left: Scalar, right: Any, dtype: DType) -> Any:
    """A predicate: the remainder is not zero, and its sign differs from the divisor's."""
    remainder = builder.named(names.binary("rem", dtype), left, right)
    nonzero = _compare(builder, "ne", remainder, 0, dtype)
    signs = _as(builder.named(names.bitwise("xor", dtype), remainder, right), dtype)
    return logic(builder, "and", nonzero, _compare(builder, "lt", signs, 0, dtype))


def _mod(builder: InstructionBuilder, left: Any, right: Any, dtype: DType) -> Any:
    if dtype.is_float:
        raise OperandError(f"% needs integers, not {dtype}; use x - y * (x // y)")
    if not isinstance(right, Scalar):
        divisor = _divisor(right, dtype)
        if divisor > 0 and divisor & (divisor - 1) == 0:
            return _and_constant(builder, left, divisor - 1, dtype)
    left, right = _scalars(builder, left, right, dtype)
    remainder = builder.named(names.binary("rem", dtype), left, right)
    if dtype.kind == "u":
        return remainder
    adjust = _needs_floor(builder, left, right, dtype)
    return select(builder, adjust, _add(builder, remainder, right, dtype), remainder)


def _bitwise(name: str) -> Any:
    def emit(builder: InstructionBuilder, left: Any, right: Any, dtype: DType) -> Any:
        _needs_integers(name, dtype)
        left, right = _constant_last(left, right)
        if not isinstance(right, Scalar):
            number = integer(right, dtype)
            if name == "and":
                return _and_constant(builder, left, number, dtype)
            if number == 0:
                return left
        return _as(builder.named(names.bitwise(name, dtype), left, right), dtype)

    return emit


def _and_constant(builder: InstructionBuilder, left: Any, mask: int, dtype: DType) -> Any:
    """x & mask; a constant added to x is dropped if no bit of it is within a mask of low bits."""
    if mask == 0:
        return builder.literal(0, dtype)
    base, offset = builder.split_constant(left)
    if mask & (mask + 1) == 0 and offset and offset % (mask + 1) == 0:
        left = base
    return _as(builder.named(names.bitwise("and", dtype), left, mask), dtype)


_BINARY: dict[str, Any] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "truediv": _truediv,
    "floordiv": _floordiv,
    "mod": _mod,
    "and": _bitwise("and"),
    "or": _bitwise("or"),
    "xor": _bitwise("xor"),
}


def _shift(builder: InstructionBuilder, name: str, left: Any, right: Any) -> Any:
    """A shift in the type of the left operand; counts beyond its width shift all bits out."""
    dtype = promote(left, left if isinstance(left, Scalar) else right)
    _needs_integers(name, dtype)
    left = coerce(builder, left, dtype)
    if isinstance(right, Scalar):
        _needs_integers(name, right.dtype)
        if builder.checks and right.dtype.kind == "s":
            low = _compare(builder, "lt", right, 0, right.dtype)
            wide = dtypes.s64 if right.dtype.bits == 64 else dtypes.s32
            message = "shift by %lld: counts are %lld or more"
            builder.check(wide, convert(builder, right, wide), 0, 1, message, low, "InvalidArithmetic")
        count = convert(builder, right, dtypes.u32)
    else:
        count = int(right)
        if count < 0:
            raise OperandError(f"shift by {count}: counts are not negative")
        if count == 0:
            return left
    shift = names.shift_left(dtype) if name == "lshift" else names.shift_right(dtype)
    return _as(builder.named(shift, builder.scalar(left, dtype), count), dtype)


def _compare(builder: InstructionBuilder, name: str, left: Any, right: Any, dtype: DType) -> Any:
    if not isinstance(left, Scalar):
        left, right, name = right, left, MIRRORED[name]
    if dtype.lanes == 2:
        raise OperandError(f"{SIGNS[name]} is not defined for pairs ({dtype}): unpack them first")
    if dtype.name == "bf16" and builder.arch.number < 90:
        left, right = (coerce(builder, v, dtypes.f32) for v in (left, right))
        dtype = dtypes.f32
    if dtype.is_float and name == "ne":
        name = "neu"  # Python: nan != nan
    return builder.named(names.compare(name, dtype), left, right)


def _unary(builder: InstructionBuilder, name: str, value: Scalar) -> Any:
    dtype = value.dtype
    if name == "invert" and dtype.kind == "p":
        return builder.named(names.bitwise("not", dtype), value)
    if dtype.kind in "bp":
        raise OperandError(f"{SIGNS[name]} needs a number, not {describe(value)}")
    dtype = dtype if dtype.lanes == 2 else promote_types(dtype, dtype)
    value = coerce(builder, value, dtype)
    if name == "invert":
        _needs_integers(name, dtype)
        return _as(builder.named(names.bitwise("not", dtype), value), dtype)
    if dtype.kind == "u":
        return value if name == "abs" else _sub(builder, 0, value, dtype)
    return builder.named(names.unary(name, dtype), value)


# -- conditions and selection ------------------------------------------------------------------


def truth(builder: InstructionBuilder, value: Any) -> Any:
    """Python's truth of a value: a predicate, or a bool if known at compile time."""
    if isinstance(value, Scalar):
        if value.dtype.kind == "p":
            return value
        return apply(builder, "ne", value, 0)
    if isinstance(value, RegisterGroup):
        raise OperandError(f"{value.described} has no truth value; reduce its elements first")
    if isinstance(value, FunctionType) and is_library(value.__module__):
        raise OperandError(f"tc.{value.__name__} is a function: test tc.{value.__name__}()")
    if isinstance(value, Mask):
        raise OperandError(
            f"{value.described} have no one truth value: tc.select(condition, yes, no) chooses "
            "element by element"
        )
    return bool(value)


def logical_not(builder: InstructionBuilder, value: Any) -> Any:
    """`not value`."""
    known = truth(builder, value)
    return builder.named(names.bitwise("not", dtypes.pred), known) if isinstance(known, Scalar) else not known


def select(builder: InstructionBuilder, condition: Any, yes: Any, no: Any) -> Any:
    """`yes if condition else no` without a branch; both values are already computed.

    Where the condition compares fragments, each element is selected by itself.
    """
    if isinstance(condition, Mask):
        return on_groups(builder, partial(select, builder), "select", (condition, yes, no))
    if isinstance(condition, (list, tuple)):
        raise OperandError(f"a condition is a predicate, or compares fragments; not {describe(condition)}")
    condition = truth(builder, condition)
    if not isinstance(condition, Scalar):
        return yes if condition else no
    if yes is no:
        return yes
    if isinstance(yes, RegisterGroup) or isinstance(no, RegisterGroup):
        return _select_groups(builder, condition, yes, no)
    if not is_simple(yes) or not is_simple(no):
        raise OperandError(
            f"a run-time condition cannot choose between {describe(yes)} and {describe(no)}: only "
            "numbers, predicates and fragments are known at run time"
        )
    dtype = common_type(yes, no)
    yes, no = coerce(builder, yes, dtype), coerce(builder, no, dtype)
    if dtype.kind == "p":
        return _select_predicate(builder, condition, yes, no)
    yes, no = (v if isinstance(v, Scalar) else constant(v, dtype) for v in (yes, no))
    bits = dtypes.named(f"b{dtype.register_bits}")
    return _as(builder.named(names.select(bits.bits), _plain(yes, bits), _plain(no, bits), condition), dtype)


def _plain(value: Any, bits: DType) -> Any:
    """A constant as its bits."""
    return value if isinstance(value, Scalar) else const_bits(value)


def _select_predicate(builder: InstructionBuilder, condition: Scalar, yes: Any, no: Any) -> Any:
    left = logic(builder, "and", condition, yes)
    right = logic(builder, "and", logical_not(builder, condition), no)
    return logic(builder, "or", left, right)


def _select_groups(builder: InstructionBuilder, condition: Scalar, yes: Any, no: Any) -> Any:
    groups = isinstance(yes, RegisterGroup) and isinstance(no, RegisterGroup)
    if not groups or yes.value.type != no.value.type:
        raise OperandError(f"a run-time condition cannot choose between {describe(yes)} and {describe(no)}")
    pairs = zip(yes.registers, no.registers, strict=True)
    chosen = [select(builder, condition, y, n) for y, n in pairs]
    return builder.pack(chosen, yes.value.type, yes.operand)


# -- functions of numbers --------------------------------------------------------------------


def extreme(builder: InstructionBuilder, name: str, left: Any, right: Any, nan: bool = False) -> Any:
    """min or max; if one operand is NaN, the other one, as in PTX, or NaN."""
    if isinstance(left, RegisterGroup) or isinstance(right, RegisterGroup):
        function = partial(extreme, builder, name, nan=nan)
        return on_groups(builder, function, name, (left, right))
    if is_number(left) and is_number(right):
        if nan and (left != left or right != right):
            return math.nan
        return min(left, right) if name == "min" else max(left, right)
    dtype = promote(left, right)
    left, right = (coerce(builder, v, dtype) for v in _constant_last(left, right))
    _check_numbers(name, left, right, dtype)
    if dtype.kind == "p":
        return logic(builder, "and" if name == "min" else "or", left, right)
    number = builder.named(names.extreme(name, dtype), left, right)
    if not nan or not dtype.is_float:
        return number
    if dtype.bits < 64 and builder.arch.number >= 80:
        return builder.named(names.extreme(name, dtype, ".NaN"), left, right)
    unordered = builder.named(names.compare("nan", dtype), left, right)
    return select(builder, unordered, _float(builder, "add", left, right, dtype), number)


def fma(builder: InstructionBuilder, a: Any, b: Any, c: Any, rounding: str = "rn") -> Any:
    """a * b + c: floats are rounded once, integers give the low half."""
    if any(isinstance(v, RegisterGroup) for v in (a, b, c)):
        function = partial(fma, builder, rounding=rounding)
        return on_groups(builder, function, "fma", (a, b, c))
    known = [v for v in (a, b, c) if isinstance(v, Scalar)]
    if not known:
        return a * b + c
    dtype = known[0].dtype
    for other in (a, b, c):
        dtype = promote_types(dtype, other.dtype) if isinstance(other, Scalar) else dtype
    for other in (a, b, c):
        dtype = dtype if isinstance(other, Scalar) else weak(other, dtype)
    a, b, c = (builder.scalar(coerce(builder, v, dtype), dtype) for v in (a, b, c))
    return builder.named(names.multiply_add(dtype, rounding), a, b, c)


def rounded(builder: InstructionBuilder, value: Any, mode: str) -> Any:
    """A float rounded to an integer, still a float: rmi down, rpi up, rzi to zero, rni to even."""
    if isinstance(value, RegisterGroup):
        return value.map(lambda element: rounded(builder, element, mode))
    if is_number(value):
        function: Any = {"rmi": math.floor, "rpi": math.ceil, "rzi": math.trunc, "rni": round}[mode]
        return float(function(value))
    if not value.dtype.is_float:
        return value
    if value.dtype.name == "bf16" and builder.arch.number < 90:
        wide = rounded(builder, convert(builder, value, dtypes.f32), mode)
        return convert(builder, wide, value.dtype)
    return builder.named(names.convert(value.dtype, value.dtype, f".{mode}"), value)
