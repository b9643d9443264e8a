"""Values in compiled loops: numbers, arrays, objects of ctypes, and records, as LLVM sees them.

A kind is the type of a value: a dtype of NumPy for a number, `ArrayKind`, `RecordKind` or `CObjectKind`.
Operations on integers give 64 bits, signed if one operand is signed. If one operand is floating-point, the
other is converted; the result has 64 bits unless both have 32. A constant is a Python number or a NumPy
scalar.
"""

from __future__ import annotations

import ctypes
import hashlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

BOOL, BYTE, WORD = ir.IntType(1), ir.IntType(8), ir.IntType(64)
POINTER = BYTE.as_pointer()
BOOLEAN, UNSIGNED, COUNT = np.dtype(np.bool_), np.dtype(np.uint64), np.dtype(np.int64)
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)

Kind = Any


@dataclass(frozen=True)
class ArrayKind:
    """The kind of an array. contiguous: elements are in C order without gaps."""

    dtype: np.dtype[Any]
    ndim: int
    contiguous: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}{self.ndim}{'c' * self.contiguous}"


@dataclass(frozen=True)
class RecordKind:
    """A class of named tuples, and the kinds of its fields."""

    named: type[Any]
    kinds: tuple[Kind, ...]

    def __str__(self) -> str:
        return f"{self.named.__name__}({','.join(map(str, self.kinds))})"


@dataclass(frozen=True)
class CObjectKind:
    """A structure, pointer or array type of ctypes."""

    ctype: type[Any]

    def __str__(self) -> str:
        layout = hashlib.sha256(_layout(self.ctype).encode()).hexdigest()
        return f"{self.ctype.__name__}:{layout[:16]}"


def _layout(ctype: type[Any]) -> str:
    """Return a text that differs for types of different layout."""
    if issubclass(ctype, ctypes.Structure):
        fields = (f"{name}:{_layout(kind)}" for name, kind, *_ in ctype._fields_)
        return f"{ctype.__name__}({','.join(fields)})"
    element = "" if is_simple(ctype) else _layout(ctype._type_)
    return f"{ctype.__name__}:{element}"


def is_simple(ctype: type[Any]) -> bool:
    """True for the numbers of ctypes."""
    return issubclass(ctype, ctypes._SimpleCData)


@dataclass(frozen=True)
class Number:
    """A number or truth value."""

    type: np.dtype[Any]
    value: ir.Value

    @property
    def parts(self) -> list[ir.Value]:
        return [self.value]


@dataclass(frozen=True)
class Array:
    """An array: the pointer to its first element, and its shape and strides in bytes."""

    type: ArrayKind
    address: ir.Value
    shape: tuple[ir.Value, ...]
    strides: tuple[ir.Value, ...]

    @property
    def parts(self) -> list[ir.Value]:
        return [self.address, *self.shape, *(() if self.type.contiguous else self.strides)]

    def size(self, builder: ir.IRBuilder) -> Number:
        count = ir.Constant(WORD, 1)
        for extent in self.shape:
            count = builder.mul(count, extent)
        return Number(COUNT, count)


@dataclass(frozen=True)
class Record:
    """The fields of a named tuple."""

    type: RecordKind
    fields: tuple[Any, ...]

    @property
    def parts(self) -> list[ir.Value]:
        return [part for field in self.fields for part in field.parts]


@dataclass(frozen=True)
class CObject:
    """A structure, pointer or array of ctypes at an address."""

    type: CObjectKind
    address: ir.Value

    @property
    def parts(self) -> list[ir.Value]:
        return [self.address]


def record(named: type[Any], fields: Sequence[Any]) -> Record:
    """The named tuple of some values."""
    made = tuple(number(x) if isinstance(x, KNOWN) else x for x in fields)
    return Record(RecordKind(named, tuple(x.type for x in made)), made)


def of_parts(builder: ir.IRBuilder, kind: Kind, parts: Iterator[ir.Value]) -> Any:
    """Build a value of a kind from its LLVM values."""
    if isinstance(kind, ArrayKind):
        address = next(parts)
        shape = tuple(next(parts) for _ in range(kind.ndim))
        if kind.contiguous:
            return Array(kind, address, shape, strides_of(builder, kind.dtype, shape))
        return Array(kind, address, shape, tuple(next(parts) for _ in range(kind.ndim)))
    if isinstance(kind, RecordKind):
        return Record(kind, tuple(of_parts(builder, field, parts) for field in kind.kinds))
    if isinstance(kind, CObjectKind):
        return CObject(kind, next(parts))
    return Number(kind, next(parts))


def of_word(builder: ir.IRBuilder, kind: ir.Type, word: ir.Value) -> ir.Value:
    """Convert a word in memory to a pointer, a truth value or an integer."""
    if isinstance(kind, ir.PointerType):
        return builder.inttoptr(word, kind)
    return word if kind == WORD else builder.trunc(word, kind)


def strides_of(
    builder: ir.IRBuilder, dtype: np.dtype[Any], shape: Sequence[ir.Value]
) -> tuple[ir.Value, ...]:
    """Return the strides in bytes of a contiguous array."""
    strides: list[ir.Value] = []
    size = ir.Constant(WORD, dtype.itemsize)
    for extent in reversed(shape):
        strides.insert(0, size)
        size = builder.mul(size, extent)
    return tuple(strides)


def llvm_types(kind: Kind) -> list[ir.Type]:
    """Return the LLVM types of a kind's values."""
    if isinstance(kind, ArrayKind):
        return [POINTER, *[WORD] * (kind.ndim * (1 if kind.contiguous else 2))]
    if isinstance(kind, RecordKind):
        return [part for field in kind.kinds for part in llvm_types(field)]
    if isinstance(kind, CObjectKind):
        return [POINTER]
    return [llvm_type(kind)]


@cache  # a type prints its text once
def llvm_type(kind: np.dtype[Any]) -> ir.Type:
    if kind.kind == "f":
        return ir.FloatType() if kind == SINGLE else ir.DoubleType()
    return BOOL if kind == BOOLEAN else ir.IntType(8 * kind.itemsize)


def result_type(kind: Any) -> ir.Type:
    """kind: of a number, a tuple of such kinds, or None."""
    if isinstance(kind, tuple):
        return ir.LiteralStructType(list(map(llvm_type, kind)))
    return ir.VoidType() if kind is None else llvm_type(kind)


KNOWN = (bool, int, float, np.generic)


def number(x: Any) -> Number:
    """Convert a Python number to a `Number` of 64 bits; a `Number` stays."""
    if isinstance(x, Number):
        return x
    if isinstance(x, np.generic):
        kind = np.dtype(x.dtype)
        return Number(kind, ir.Constant(llvm_type(kind), x.item()))
    if isinstance(x, bool):
        return Number(BOOLEAN, ir.Constant(BOOL, int(x)))
    if isinstance(x, int):
        return Number(COUNT if x < 1 << 63 else UNSIGNED, ir.Constant(WORD, x))
    if isinstance(x, float):
        return Number(DOUBLE, ir.Constant(ir.DoubleType(), x))
    raise NotImplementedError(f"{type(x).__name__} where a number is needed")


def is_float(x: Number) -> bool:
    return x.type.kind == "f"


def is_unsigned(x: Number) -> bool:
    return x.type.kind == "u"


def cast(builder: ir.IRBuilder, kind: np.dtype[Any], x: Any) -> Number:
    """Convert a number as in C. A truth value is True for nonzero numbers."""
    source = number(x)
    to = llvm_type(kind)
    if source.value.type == to:
        return Number(kind, source.value)
    if kind == BOOLEAN:
        return _compared(builder, "!=", source, cast(builder, source.type, 0))
    if kind.kind == "f":
        if is_float(source):
            way = builder.fpext if kind == DOUBLE else builder.fptrunc
        else:
            way = builder.sitofp if source.type.kind == "i" else builder.uitofp
    elif is_float(source):
        way = builder.fptosi if kind.kind == "i" else builder.fptoui
    elif to.width < source.value.type.width:
        way = builder.trunc
    else:
        way = builder.sext if source.type.kind == "i" else builder.zext
    return Number(kind, way(source.value, to))


def wide(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Return the kind of a variable for numbers of `kind`."""
    if kind == BOOLEAN or kind.kind == "f":
        return kind
    return COUNT if kind.kind == "i" else UNSIGNED


def joined(kinds: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the kind that holds values of all these kinds."""
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    if any(kind.kind == "f" for kind in kinds):
        return DOUBLE
    return UNSIGNED if all(kind.kind == "u" for kind in kinds) else COUNT


def truth(builder: ir.IRBuilder, x: Any) -> Any:
    """Convert to a truth value: a `bool` for a constant, else one bit."""
    return cast(builder, BOOLEAN, x).value if isinstance(x, Number) else bool(x)


def inverted(builder: ir.IRBuilder, x: Any) -> Number:
    """Invert all bits."""
    operand = number(x)
    kind = UNSIGNED if is_unsigned(operand) else COUNT
    return Number(kind, builder.not_(cast(builder, kind, operand).value))


PLAIN = {operator.add: "add", operator.sub: "sub", operator.mul: "mul"}
FLOATING = {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul", operator.truediv: "fdiv"}
LOGICAL = {operator.and_: "and_", operator.or_: "or_", operator.xor: "xor"}
COMPARISONS = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def binary(builder: ir.IRBuilder, function: Callable[..., Any], left: Any, right: Any) -> Any:
    """Apply a binary operator."""
    if isinstance(left, (int, float, str)) and isinstance(right, (int, float, str)):
        return function(left, right)
    a, b = number(left), number(right)
    if function in COMPARISONS:
        a, b = _as_unsigned(a, left, b), _as_unsigned(b, right, a)
        return _compared(builder, COMPARISONS[function], a, b)
    if function in LOGICAL and a.type == b.type == BOOLEAN:
        return Number(BOOLEAN, getattr(builder, LOGICAL[function])(a.value, b.value))
    if function is operator.truediv or is_float(a) or is_float(b):
        if function not in FLOATING:
            raise NotImplementedError(f"operator {function.__name__} of floats")
        kind = a.type if a.type == b.type and is_float(a) else DOUBLE
        x, y = cast(builder, kind, a).value, cast(builder, kind, b).value
        return Number(kind, getattr(builder, FLOATING[function])(x, y))
    shifts = function in (operator.lshift, operator.rshift)
    unsigned = is_unsigned(a) and (shifts or is_unsigned(b))
    kind = UNSIGNED if unsigned else COUNT
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


def _as_unsigned(a: Number, x: Any, b: Number) -> Number:
    """Make a constant unsigned if it is not negative and the other operand is unsigned."""
    plain = isinstance(x, int) and not isinstance(x, bool) and x >= 0
    return Number(UNSIGNED, a.value) if plain and is_unsigned(b) else a


def _compared(builder: ir.IRBuilder, sign: str, a: Number, b: Number) -> Number:
    if is_float(a) or is_float(b):
        kind = a.type if a.type == b.type else DOUBLE
        x, y = cast(builder, kind, a).value, cast(builder, kind, b).value
        test = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
        return Number(BOOLEAN, test(sign, x, y))
    kind = UNSIGNED if is_unsigned(a) and is_unsigned(b) else COUNT
    if kind == COUNT and UNSIGNED in (a.type, b.type) and sign not in ("==", "!="):
        raise NotImplementedError(f"{a.type} {sign} {b.type}: convert one of them")
    compare = builder.icmp_unsigned if kind == UNSIGNED else builder.icmp_signed
    x, y = cast(builder, kind, a).value, cast(builder, kind, b).value
    return Number(BOOLEAN, compare(sign, x, y))


def _divided(builder: ir.IRBuilder, modulo: bool, x: ir.Value, y: ir.Value, unsigned: bool) -> ir.Value:
    """Divide with rounding down, as in Python; 0 if the divisor is 0."""
    zero, one = ir.Constant(WORD, 0), ir.Constant(WORD, 1)
    if not isinstance(y, ir.Constant):
        none = builder.icmp_unsigned("==", y, zero)
        result = _divided_by(builder, modulo, x, builder.select(none, one, y), unsigned)
        return builder.select(none, zero, result)
    return _divided_by(builder, modulo, x, y, unsigned)


def _divided_by(builder: ir.IRBuilder, modulo: bool, x: ir.Value, y: ir.Value, unsigned: bool) -> ir.Value:
    if unsigned:
        return builder.urem(x, y) if modulo else builder.udiv(x, y)
    remainder, zero = builder.srem(x, y), ir.Constant(WORD, 0)
    wrong = builder.and_(
        builder.icmp_signed("!=", remainder, zero), builder.icmp_signed("<", builder.xor(remainder, y), zero)
    )
    if modulo:
        return builder.select(wrong, builder.add(remainder, y), remainder)
    return builder.sub(builder.sdiv(x, y), builder.zext(wrong, WORD))
