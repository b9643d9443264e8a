"""Compiled loops that encode and decode numbers of any format in any rounding mode.

Numbers are passed as the bits of a float64, which represents all values of the narrower formats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl.lowering import inlined, vectorised

from .elementwise import compile_elementwise
from .number_formats import FLOATS, Bits, FloatFormat, register_dtype, values
from .softfloat import (
    RN,
    RP,
    RS,
    RZ,
    as_bits,
    as_float,
    clz,
    flushed_code,
    overflows_to_inf,
    round_code,
    stochastic_code,
    unpack64,
)
from .symbols import OUT, Symbol, as_array, look_up

_SIGN = np.uint64(1 << 63)
_MAGNITUDE = np.uint64((1 << 63) - 1)
_INF = np.uint64(0x7FF << 52)
_ONE = np.uint64(0x3FF << 52)
NO_RANDOM = np.zeros(1, np.uint64)

# Fields of the parameter vector of the encoding loops, and the flags in its last field.
MANTISSA, EMIN, LARGEST, INFINITE, NAN, SIGN_SHIFT, PAD, MODE, EXTRA, FLAGS = range(10)
SAT, SATFINITE, RELU, KEEP_NAN, FTZ = 1, 2, 4, 8, 16


@inlined
def _finish(sign: Any, code: Any, exact_inf: Any, p: Any) -> Any:
    """Apply overflow and sign to the rounded magnitude ``code``."""
    if code > np.uint64(p[LARGEST]) or exact_inf:
        to_inf = exact_inf or overflows_to_inf(sign, p[MODE])
        finite = p[FLAGS] & SATFINITE or p[INFINITE] < 0 or not to_inf
        code = np.uint64(p[LARGEST] if finite else p[INFINITE])
    code <<= np.uint64(p[PAD])
    return code | np.uint64(sign) << np.uint64(p[SIGN_SHIFT])


@inlined
def _nan(x: Any, p: Any) -> Any:
    if p[FLAGS] & SAT:
        return np.uint64(0)
    if p[FLAGS] & KEEP_NAN and not p[FLAGS] & RELU:
        drop = np.uint64(52 - p[MANTISSA])
        fraction = (x & np.uint64((1 << 52) - 1) | np.uint64(1 << 51)) >> drop
        return np.uint64(p[INFINITE]) | fraction | (x >> np.uint64(63)) << np.uint64(p[SIGN_SHIFT])
    return np.uint64(p[NAN])


@inlined
def _encode_one(x: Any, random: Any, p: Any) -> Any:
    """Code of a float64 (as bits) in the format and rounding mode of ``p``."""
    sign = x >= _SIGN
    magnitude = x & _MAGNITUDE
    if magnitude > _INF:
        return _nan(x, p)
    if sign and p[FLAGS] & (SAT | RELU):
        return np.uint64(0)
    if p[FLAGS] & SAT and magnitude > _ONE:
        magnitude = _ONE
    if magnitude == _INF:
        return _finish(sign, np.uint64(0), True, p)
    e, sig = unpack64(magnitude)
    if p[MODE] == RS:
        code = stochastic_code(e, sig, p[MANTISSA], p[EMIN], random, p[EXTRA])
    else:
        code = flushed_code(sign, e, sig, p[MANTISSA], p[EMIN], p[MODE], p[FLAGS] & FTZ)
    return _finish(sign, code, False, p)


@inlined
def _integral_one(x: Any, mode: Any) -> Any:
    if mode == RN:
        return np.rint(x)
    if mode == RZ:
        return np.trunc(x)
    return np.ceil(x) if mode == RP else np.floor(x)


@vectorised
def encode_floats(x: Any, random: Any, p: Any, out: Any) -> None:
    """Floats; ``random`` has one element per number, or one for all (EXTRA: random bits used)."""
    step = 1 if random.size == x.size else 0
    for i in range(x.size):
        out[i] = _encode_one(x[i], random[i * step], p)


@vectorised
def encode_integral(x: Any, p: Any, out: Any) -> None:
    """Floats, first rounded to integral values in mode p[EXTRA]."""
    for i in range(x.size):
        value = _integral_one(as_float(x[i]), p[EXTRA])
        out[i] = _encode_one(as_bits(value), np.uint64(0), p)


@vectorised
def encode_integers(x: Any, p: Any, out: Any) -> None:
    """Integers; two's complement if p[EXTRA] is set."""
    for i in range(x.size):
        sign = p[EXTRA] != 0 and x[i] >= _SIGN
        magnitude = np.uint64(0) - x[i] if sign else x[i]
        if magnitude == 0 or (sign and p[FLAGS] & SAT):
            out[i] = np.uint64(0)
            continue
        zeros = clz(magnitude)
        e, sig = 63 - np.int64(zeros), magnitude << zeros
        if p[FLAGS] & SAT:
            e, sig = np.int64(0), _SIGN
        code = round_code(sign, e, sig, p[MANTISSA], p[EMIN], p[MODE])
        out[i] = _finish(sign, code, False, p)


@inlined
def _to_int_one(x: Any, bits: Any, signed: Any, mode: Any, nan: Any) -> Any:
    """Float to integer, clamped to its range."""
    if x & _MAGNITUDE > _INF:
        return np.uint64(nan)
    value = _integral_one(as_float(x), mode)
    limit = as_float(np.uint64(1023 + bits - signed) << np.uint64(52))  # 2.0**(bits - signed)
    if value >= limit:
        return ~np.uint64(0) >> np.uint64(64 - bits + signed)
    if value < 0:
        return np.uint64(np.int64(max(value, -limit * signed)))
    if value >= 2.0**63:
        return np.uint64(np.int64(value - 2.0**63)) | _SIGN
    return np.uint64(np.int64(value))


@vectorised
def to_integers(x: Any, p: Any, out: Any) -> None:
    """p: bits of the integer, signedness, rounding mode, result of a NaN."""
    for i in range(x.size):
        out[i] = _to_int_one(x[i], p[0], p[1], p[2], p[3])


def run(loop: Callable[..., None], x: Bits, p: Bits, *random: Bits) -> Bits:
    """Run a loop of this module over an array of any shape."""
    if isinstance(x, Symbol):
        return x.call(loop, x, *random, p, OUT, dtype=np.uint64)
    out = np.empty(x.shape, np.uint64)
    more = [r if r is NO_RANDOM else np.broadcast_to(r, x.shape) for r in random]
    flat = [np.require(v, requirements=["C", "W"]).reshape(-1) for v in (x, *more)]
    loop(*flat, p, out.reshape(-1))
    return out


def parameters(f: FloatFormat, mode: int, extra: int, flags: int) -> Bits:
    """The parameter vector of the encoding loops; INFINITE is -1 for formats without infinity."""
    nan = f.nan - (1 << 64) if f.nan >> 63 else f.nan
    infinite = -1 if f.inf is None else f.inf
    fields = [f.mantissa, f.emin, f.max_finite, infinite, nan, f.sign_shift, f.pad]
    return np.array([*fields, mode, extra, flags], np.int64)


@cache
def nearest(f: FloatFormat, top: int, relu: bool) -> Callable[..., Any]:
    """cvt.rn from f32 in one loop; magnitudes are limited to the code ``top``."""
    mantissa, emin, shift = f.mantissa, f.emin, np.uint64(f.sign_shift)
    largest, nan = np.uint64(top), np.uint64(f.nan)

    def narrow(x: Any) -> Any:
        bits = as_bits(np.float64(as_float(x)))
        magnitude = bits & _MAGNITUDE
        sign = bits >> np.uint64(63)
        e, sig = unpack64(magnitude)
        code = min(round_code(False, e, sig, mantissa, emin, RN), largest)
        if relu:
            code = np.uint64(0) if sign else code
        else:
            code |= sign << shift
        return nan if magnitude > _INF else code

    return compile_elementwise(narrow, f"{register_dtype(f.bits).name}(uint32)")


def _widen32(x: Any) -> Any:
    """f32 bits to f64 bits; a NaN keeps its payload and becomes quiet."""
    magnitude = np.uint64(x & np.uint32(0x7FFFFFFF))
    sign = np.uint64(x >> np.uint32(31)) << np.uint64(63)
    payload = (magnitude << np.uint64(29)) & np.uint64((1 << 52) - 1)
    nan = _INF | np.uint64(1 << 51) | payload
    value = as_bits(np.float64(as_float(np.uint32(magnitude))))
    return sign | (nan if magnitude > np.uint64(0x7F800000) else value)


@cache
def _widen_loop() -> Callable[..., Any]:
    return compile_elementwise(_widen32, "uint64(uint32)")


def to_f64(bits: Any, source: str) -> Any:
    """Register bits of a float type to the bits of its value in float64."""
    if source == "f64":
        return bits
    if FLOATS[source].bits == 32:
        return as_array(_widen_loop()(bits))
    table = values(source).view(np.uint64)
    return as_array(look_up(table, bits & np.uint16(len(table) - 1)))
