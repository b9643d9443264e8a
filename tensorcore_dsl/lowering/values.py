"""Values in compiled loops: whole numbers, arrays and records of arrays, as LLVM sees them.

Whole numbers have Numba's types and follow its rules: operations give 64 bits, signed if one
operand is signed; what is known when the loop is compiled is a plain `int` or `bool` of Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types

BOOL, WORD, COUNT = ir.IntType(1), ir.IntType(64), types.int64


@dataclass(frozen=True)
class Number:
    """A whole number or truth value. type: types.boolean, int8 to uint64."""

    type: Any
    value: ir.Value

    @property
    def parts(self) -> list[ir.Value]:
        return [self.value]


@dataclass(frozen=True)
class Array:
    """An array: its real address, and its shape and strides in bytes."""

    type: types.Array
    address: ir.Value
    shape: tuple[ir.Value, ...]
    strides: tuple[ir.Value, ...]

    @property
    def parts(self) -> list[ir.Value]:
        return [self.address, *self.shape, *self.strides]

    def size(self, builder: ir.IRBuilder) -> Number:
        count = ir.Constant(WORD, 1)
        for extent in self.shape:
            count = builder.mul(count, extent)
        return Number(COUNT, count)


@dataclass(frozen=True)
class Record:
    """The fields of a named tuple."""

    type: types.NamedTuple
    fields: tuple[Any, ...]

    @property
    def parts(self) -> list[ir.Value]:
        return [part for field in self.fields for part in field.parts]


def of_parts(kind: Any, parts: Iterator[ir.Value]) -> Any:
    """The value of a type from its `parts`."""
    if isinstance(kind, types.Array):
        address = next(parts)
        shape = tuple(next(parts) for _ in range(kind.ndim))
        return Array(kind, address, shape, tuple(next(parts) for _ in range(kind.ndim)))
    if isinstance(kind, types.NamedTuple):
        return Record(kind, tuple(of_parts(field, parts) for field in kind.types))
    return Number(kind, next(parts))


def llvm_types(kind: Any) -> list[ir.Type]:
    """The types of the parts of a value."""
    if isinstance(kind, types.Array):
        return [WORD] * (1 + 2 * kind.ndim)
    if isinstance(kind, types.NamedTuple):
        return [part for field in kind.types for part in llvm_types(field)]
    return [llvm_type(kind)]


def llvm_type(kind: Any) -> ir.IntType:
    return BOOL if kind is types.boolean else ir.IntType(kind.bitwidth)


def result_type(kind: Any) -> ir.Type:
    if isinstance(kind, types.UniTuple):
        return ir.LiteralStructType([WORD] * kind.count)
    return ir.VoidType() if kind is types.none else llvm_type(kind)


def of_numba(context: Any, builder: ir.IRBuilder, kind: Any, value: ir.Value) -> Any:
    """An argument of a function that Numba compiles."""
    if isinstance(kind, types.Array):
        struct = context.make_array(kind)(context, builder, value)
        unpack: Callable[[Any], tuple[Any, ...]] = lambda packed: tuple(
            builder.extract_value(packed, i) for i in range(kind.ndim)
        )
        address = builder.ptrtoint(struct.data, WORD)
        return Array(kind, address, unpack(struct.shape), unpack(struct.strides))
    if isinstance(kind, types.NamedTuple):
        return Record(kind, tuple(
            of_numba(context, builder, field, builder.extract_value(value, i))
            for i, field in enumerate(kind.types)
        ))  # fmt: skip
    return Number(kind, value)


def number(x: Any) -> Number:
    """A number, also from one of Python, which is of 64 bits."""
    if isinstance(x, Number):
        return x
    if isinstance(x, bool):
        return Number(types.boolean, ir.Constant(BOOL, int(x)))
    if isinstance(x, int):
        return Number(COUNT if x < 1 << 63 else types.uint64, ir.Constant(WORD, x))
    raise NotImplementedError(f"{type(x).__name__} where a whole number is needed")


def cast(builder: ir.IRBuilder, kind: Any, x: Any) -> Number:
    """A number converted as in C; truth values ask whether it is not 0."""
    given = number(x)
    to = llvm_type(kind)
    if given.type is kind or given.value.type == to:
        return Number(kind, given.value)
    if kind is types.boolean:
        zero = ir.Constant(given.value.type, 0)
        return Number(kind, builder.icmp_unsigned("!=", given.value, zero))
    if to.width < given.value.type.width:
        return Number(kind, builder.trunc(given.value, to))
    signed = given.type is not types.boolean and given.type.signed
    return Number(kind, (builder.sext if signed else builder.zext)(given.value, to))


def truth(builder: ir.IRBuilder, x: Any) -> Any:
    """`bool` where it is known, else a value of one bit."""
    return cast(builder, types.boolean, x).value if isinstance(x, Number) else bool(x)


PLAIN = {operator.add: "add", operator.sub: "sub", operator.mul: "mul"}
LOGICAL = {operator.and_: "and_", operator.or_: "or_", operator.xor: "xor"}
COMPARISONS = {
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=",
}  # fmt: skip


def _unsigned(x: Number) -> bool:
    return x.type is not types.boolean and not x.type.signed


def binary(builder: ir.IRBuilder, function: Callable[..., Any], left: Any, right: Any) -> Any:
    """The result of an operator."""
    if not isinstance(left, Number) and not isinstance(right, Number):
        return function(left, right)
    a, b = number(left), number(right)
    if function in COMPARISONS:
        return _compared(builder, COMPARISONS[function], a, b)
    if function in LOGICAL and a.type is types.boolean and b.type is types.boolean:
        return Number(types.boolean, getattr(builder, LOGICAL[function])(a.value, b.value))
    shifts = function in (operator.lshift, operator.rshift)
    unsigned = _unsigned(a) and (shifts or _unsigned(b))
    kind = types.uint64 if unsigned else COUNT
    x, y = cast(builder, kind, a).value, cast(builder, kind, b).value
    if name := {**PLAIN, **LOGICAL}.get(function):
        return Number(kind, getattr(builder, name)(x, y))
    if function is operator.lshift:
        return Number(kind, builder.shl(x, y))
    if function is operator.rshift:
        return Number(kind, (builder.lshr if unsigned else builder.ashr)(x, y))
    if function in (operator.floordiv, operator.mod):
        return Number(kind, _divided(builder, function is operator.mod, x, y, unsigned))
    raise NotImplementedError(f"operator {function.__name__}")


def _compared(builder: ir.IRBuilder, sign: str, a: Number, b: Number) -> Number:
    unsigned = [_unsigned(a), _unsigned(b)]
    kind = types.uint64 if all(unsigned) else COUNT
    if kind is COUNT and types.uint64 in (a.type, b.type) and sign not in ("==", "!="):
        raise NotImplementedError(f"{a.type} {sign} {b.type}: convert one of them")
    compare = builder.icmp_unsigned if kind is types.uint64 else builder.icmp_signed
    x, y = cast(builder, kind, a).value, cast(builder, kind, b).value
    return Number(types.boolean, compare(sign, x, y))


def _divided(
    builder: ir.IRBuilder, modulo: bool, x: ir.Value, y: ir.Value, unsigned: bool
) -> ir.Value:
    """Rounded down, as in Python; 0 where the divisor is 0."""
    zero, one = ir.Constant(WORD, 0), ir.Constant(WORD, 1)
    if not isinstance(y, ir.Constant):
        none = builder.icmp_unsigned("==", y, zero)
        result = _divided_by(builder, modulo, x, builder.select(none, one, y), unsigned)
        return builder.select(none, zero, result)
    return _divided_by(builder, modulo, x, y, unsigned)


def _divided_by(
    builder: ir.IRBuilder, modulo: bool, x: ir.Value, y: ir.Value, unsigned: bool
) -> ir.Value:
    if unsigned:
        return builder.urem(x, y) if modulo else builder.udiv(x, y)
    rest, zero = builder.srem(x, y), ir.Constant(WORD, 0)
    wrong = builder.and_(
        builder.icmp_signed("!=", rest, zero),
        builder.icmp_signed("<", builder.xor(rest, y), zero),
    )
    if modulo:
        return builder.select(wrong, builder.add(rest, y), rest)
    return builder.sub(builder.sdiv(x, y), builder.zext(wrong, WORD))
