"""Correctly rounded arithmetic of f16, bf16, f32 and f64 in all modes, with and without .ftz.

`ieee` returns functions of arrays of register bits. Round to nearest uses the processor's
operations for f32 and f64, and float32 for f16 and bf16. Everything else uses float64 rounded to
odd, except f64, which uses integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl.lowering import inlined

from .elementwise import compile_elementwise
from .number_formats import FLOATS, find, register_dtype
from .softfloat import (
    RN,
    ROUNDINGS,
    add64,
    as_bits,
    as_float,
    cut32,
    div64,
    fma64,
    fused,
    is_nan64,
    jam32,
    mul64,
    nan64,
    odd_add,
    odd_div,
    odd_sqrt,
    pack16,
    pack32,
    sqrt64,
)

Ufunc = Callable[..., Any]

_ZERO64 = np.uint64(0)
_NAN32 = np.uint32(0x7FFFFFFF)


# --- f32 and f64, to nearest: the processor's own operations ----------------------------------


@inlined
def _result(x: Any, a: Any, b: Any, c: Any, double: Any) -> Any:
    """The bits of a result; a NaN is canonical in f32 and comes from the operands in f64."""
    if x == x:
        return as_bits(x)
    return nan64(a, b, c) if double else _NAN32


def _native(double: bool) -> dict[str, Ufunc]:
    """Scalar functions of register bits, to be compiled to loops."""

    def add(a: Any, b: Any) -> Any:
        return _result(as_float(a) + as_float(b), a, b, _ZERO64, double)

    def mul(a: Any, b: Any) -> Any:
        return _result(as_float(a) * as_float(b), a, b, _ZERO64, double)

    def div(a: Any, b: Any) -> Any:
        return _result(as_float(a) / as_float(b), b, a, _ZERO64, double)

    def fma(a: Any, b: Any, c: Any) -> Any:
        return _result(fused(as_float(a), as_float(b), as_float(c)), a, b, c, double)

    def sqrt(a: Any) -> Any:
        return _result(math.sqrt(as_float(a)), a, a, _ZERO64, double)

    return {"add": add, "mul": mul, "div": div, "fma": fma, "sqrt": sqrt}


# --- f64 in the other rounding modes -----------------------------------------------------------


def _directed64(mode: int) -> dict[str, Ufunc]:
    def add(a: Any, b: Any) -> Any:
        return add64(a, b, mode)

    def mul(a: Any, b: Any) -> Any:
        return mul64(a, b, mode)

    def fma(a: Any, b: Any, c: Any) -> Any:
        return fma64(a, b, c, mode)

    def div(a: Any, b: Any) -> Any:
        return div64(a, b, mode)

    def sqrt(a: Any) -> Any:
        return sqrt64(a, mode)

    return {"add": add, "mul": mul, "fma": fma, "div": div, "sqrt": sqrt}


# --- f32 with flushing, to nearest -------------------------------------------------------------

# The smallest number that rounds to 2**-126 with an unbounded exponent.
_TINY32 = 2.0**-126 * (1 - 2.0**-25)


@inlined
def _flushed(bits: Any) -> Any:
    x = np.uint32(bits)
    sign = np.uint32(x & np.uint32(0x80000000))
    return as_float(np.uint32(sign if np.uint32(x - sign) < np.uint32(0x800000) else x))


@inlined
def _flush32(d: Any, exact: Any) -> Any:
    bits = np.uint32(_result(d, 0, 0, 0, False))
    return np.uint32(bits & np.uint32(0x80000000) if abs(exact) < _TINY32 else bits)


def _flushing() -> dict[str, Ufunc]:
    def add(a: Any, b: Any) -> Any:
        d = _flushed(a) + _flushed(b)
        return _flush32(d, np.float64(d))

    def mul(a: Any, b: Any) -> Any:
        x, y = _flushed(a), _flushed(b)
        return _flush32(x * y, np.float64(x) * np.float64(y))

    def fma(a: Any, b: Any, c: Any) -> Any:
        x, y, z = _flushed(a), _flushed(b), _flushed(c)
        exact = odd_add(np.float64(x) * np.float64(y), np.float64(z), RN)
        return _flush32(fused(x, y, z), exact)

    return {"add": add, "mul": mul, "fma": fma}


# --- f16 and bf16 ------------------------------------------------------------------------------


@inlined
def _value16(bits: Any, mantissa: Any, ftz: Any) -> Any:
    """The value of a bf16 (7 bits of ``mantissa``) or f16 (10) as float32."""
    x = np.uint32(bits)
    sign = np.uint32(x & np.uint32(0x8000)) << np.uint32(16)
    m = np.uint32(x & np.uint32(0x7FFF))
    if ftz:
        m = np.uint32(0) if m < np.uint32(1 << mantissa) else m
    if mantissa == 7:
        return as_float(np.uint32(np.uint32(m << np.uint32(16)) | sign))
    scaled = as_float(np.uint32(m << np.uint32(13))) * np.float32(2.0**112)
    special = np.uint32(0x7F800000) if m >= np.uint32(0x7C00) else np.uint32(0)
    return as_float(np.uint32(as_bits(np.float32(scaled)) | special | sign))


def _half(mantissa: int, ftz: bool) -> dict[str, Ufunc]:
    """f16 and bf16: float32 holds sums safely; products are exact there, or rounded to odd.

    The fma of f16 is exact in float64 below 32; above, its rounding never hits a midpoint of f16.
    """

    def add(a: Any, b: Any) -> Any:
        d = _value16(a, mantissa, ftz) + _value16(b, mantissa, ftz)
        return pack16(d, mantissa, ftz)

    def mul(a: Any, b: Any) -> Any:
        x, y = _value16(a, mantissa, ftz), _value16(b, mantissa, ftz)
        d = cut32(np.float64(x) * np.float64(y)) if mantissa == 7 else x * y
        return pack16(d, mantissa, ftz)

    def fma(a: Any, b: Any, c: Any) -> Any:
        x, y, z = _value16(a, mantissa, ftz), _value16(b, mantissa, ftz), _value16(c, mantissa, ftz)
        product = np.float64(x) * np.float64(y)
        if mantissa == 7:
            return pack16(cut32(odd_add(product, np.float64(z), RN)), mantissa, ftz)
        return pack16(jam32(product + np.float64(z)), mantissa, ftz)

    return {"add": add, "mul": mul, "fma": fma}


# --- f32 in the other modes, and quotients with flushing: through float64 rounded to odd ---------


@inlined
def _value32(bits: Any, ftz: Any) -> Any:
    return np.float64(_flushed(bits) if ftz else as_float(np.uint32(bits)))


def _directed32(mode: int, ftz: bool) -> dict[str, Ufunc]:
    def add(a: Any, b: Any) -> Any:
        return pack32(odd_add(_value32(a, ftz), _value32(b, ftz), mode), mode, ftz)

    def mul(a: Any, b: Any) -> Any:
        return pack32(_value32(a, ftz) * _value32(b, ftz), mode, ftz)

    def fma(a: Any, b: Any, c: Any) -> Any:
        product = _value32(a, ftz) * _value32(b, ftz)
        return pack32(odd_add(product, _value32(c, ftz), mode), mode, ftz)

    def div(a: Any, b: Any) -> Any:
        return pack32(odd_div(_value32(a, ftz), _value32(b, ftz)), mode, ftz)

    def sqrt(a: Any) -> Any:
        return pack32(odd_sqrt(_value32(a, ftz)), mode, ftz)

    return {"add": add, "mul": mul, "fma": fma, "div": div, "sqrt": sqrt}


ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1}
_IEEE = {
    **{(op, t): "rn rz rm rp" for op in ARITY for t in ("f32", "f64")},
    **{(op, t): "rn" for op in ("add", "sub", "mul", "fma") for t in ("f16", "bf16")},
}


def signature(type: str, arity: int) -> str:
    name = register_dtype(FLOATS[type].bits).name
    return f"{name}({','.join([name] * arity)})"


@cache
def ieee(op: str, type: str, rounding: str, ftz: bool) -> Ufunc:
    """The function of a correctly rounded operation, compiled (or loaded) at first use."""
    if rounding not in find(_IEEE, (op, type), "operation").split():
        raise ValueError(f"{op}.{type} rounds {_IEEE[op, type]}, not {rounding!r}")
    kernel = _kernel(op, type, ROUNDINGS[rounding], ftz)
    return compile_elementwise(kernel, signature(type, ARITY[op]))


def _kernel(op: str, type: str, mode: int, ftz: bool) -> Callable[..., Any]:
    """The function of one element."""
    if op == "sub":
        return _difference(type, inlined(_kernel("add", type, mode, ftz)))
    if FLOATS[type].bits == 16:
        return _half(FLOATS[type].mantissa, ftz)[op]
    if mode == RN and not ftz:
        return _native(type == "f64")[op]
    if type == "f64":
        return _directed64(mode)[op]
    return _flushing()[op] if mode == RN and op in _flushing() else _directed32(mode, ftz)[op]


def _difference(type: str, add: Callable[..., Any]) -> Callable[..., Any]:
    """a - b as a + -b; the NaN of a f64 keeps its sign."""
    word, double = register_dtype(FLOATS[type].bits).type, type == "f64"
    sign = word(1 << FLOATS[type].sign_shift)

    def sub(a: Any, b: Any) -> Any:
        return add(a, b if double and is_nan64(b) else word(b ^ sign))

    return sub
