"""Functions of numbers for compiled loops: casts, and functions of NumPy and `math`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.lowering.arrays import declared
from tensorcore_dsl.lowering.values import BOOLEAN, COUNT, DOUBLE, SINGLE, Number, cast, is_float, number

_SCALARS = (
    np.bool_,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.float32,
    np.float64,
)
CASTS: dict[Any, np.dtype[Any]] = {kind: np.dtype(kind) for kind in _SCALARS} | {
    bool: BOOLEAN,
    int: COUNT,
    float: DOUBLE,
}


def intrinsic(builder: ir.IRBuilder, name: str, *operands: Number) -> Number:
    """Call the LLVM intrinsic `name` on operands of one floating-point kind."""
    kind = operands[0].type
    operand_values = [x.value for x in operands]
    signature = ir.FunctionType(operand_values[0].type, [x.type for x in operand_values])
    function = declared(builder, signature, f"llvm.{name}.f{8 * kind.itemsize}")
    return Number(kind, builder.call(function, operand_values))


def _of_floats(name: str) -> Callable[..., Number]:
    """Return a floating-point function. It computes in binary32 if all operands are binary32."""

    def call(builder: ir.IRBuilder, *operands: Any) -> Number:
        single = all(number(x).type == SINGLE for x in operands)
        kind = SINGLE if single else DOUBLE
        return intrinsic(builder, name, *(cast(builder, kind, x) for x in operands))

    return call


def _absolute(builder: ir.IRBuilder, x: Any) -> Number:
    value = number(x)
    if is_float(value):
        return intrinsic(builder, "fabs", value)
    wide = cast(builder, COUNT, value).value
    zero = ir.Constant(wide.type, 0)
    negative = builder.icmp_signed("<", wide, zero)
    return Number(COUNT, builder.select(negative, builder.sub(zero, wide), wide))


NUMERIC: dict[Any, Callable[..., Any]] = {
    abs: _absolute, math.sqrt: _of_floats("sqrt"), np.sqrt: _of_floats("sqrt"),
    np.rint: _of_floats("rint"), np.trunc: _of_floats("trunc"), np.floor: _of_floats("floor"),
    np.ceil: _of_floats("ceil"), np.copysign: _of_floats(np.copysign.__name__),
}  # fmt: skip


def fused(builder: ir.IRBuilder, x: Any, y: Any, z: Any) -> Number:
    """x * y + z, rounded once."""
    return _of_floats("fma")(builder, x, y, z)


def as_float(builder: ir.IRBuilder, x: Any) -> Number:
    """Reinterpret the bits of a 32- or 64-bit integer as a floating-point number."""
    operand = number(x)
    kind = SINGLE if operand.type.itemsize == 4 else DOUBLE
    to = ir.FloatType() if kind == SINGLE else ir.DoubleType()
    return Number(kind, builder.bitcast(operand.value, to))


def as_bits(builder: ir.IRBuilder, x: Any) -> Number:
    """Reinterpret a floating-point number as an integer."""
    operand = number(x)
    kind = np.dtype(f"u{operand.type.itemsize}")
    return Number(kind, builder.bitcast(operand.value, ir.IntType(8 * kind.itemsize)))


def clz(builder: ir.IRBuilder, x: Any) -> Number:
    """Count leading zeros; the width for 0."""
    operand = number(x)
    return Number(operand.type, builder.ctlz(operand.value, ir.Constant(ir.IntType(1), 0)))


def bit_reverse(builder: ir.IRBuilder, x: Any) -> Number:
    operand = number(x)
    return Number(operand.type, builder.bitreverse(operand.value))


def high_product(builder: ir.IRBuilder, x: Any, y: Any) -> Number:
    """The upper half of the product of two unsigned or two signed integers of one width."""
    a, b = number(x), number(y)
    bits = 8 * a.type.itemsize
    wide = ir.IntType(2 * bits)
    extend = builder.sext if a.type.kind == "i" else builder.zext
    product = builder.mul(extend(a.value, wide), extend(b.value, wide))
    upper = builder.lshr(product, ir.Constant(wide, bits))
    return Number(a.type, builder.trunc(upper, ir.IntType(bits)))
