"""rcp, rsqrt, sqrt, ex2, lg2, sin, cos, tanh and div.approx of f32, bit for bit as on sm_90.

The function unit divides the range of the significand (or of the fixed-point argument) into
segments and evaluates C0 + C1 dx + C2 dx² in each. The sum is exact, in units of 2**-40, and
truncated to 24 bits. Only dx² is approximate: the two lowest of the 17 bits of dx are ignored, and
so are the partial products of the other 15 bits below 2**15. Without .ftz, subnormal numbers are
scaled by powers of two before and after, as in the code that the assembler generates for sm_90.

Numbers are represented by their bits in 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorcore_dsl.lowering import inlined, vectorised

from .function_unit_sm90 import COEFFICIENTS, FIRST
from .softfloat import as_bits, as_float
from .symbols import OUT, Symbol

SIGN, INF, NAN, ONE = 1 << 31, 0x7F800000, 0x7FFFFFFF, 0x3F800000
LEAST = 1 << 23  # smallest normal number; also the hidden bit
FRACTION = LEAST - 1
BIAS = 127
UNIT = 40  # sums are in units of 2**-UNIT
WIDTH = 17  # bits of dx
SQUARED_BITS = 15  # upper bits of dx that are squared
RCP, RSQRT, EX2, SQRT, SIN, LG2, TANH = (FIRST[name] for name in FIRST)
TURN = 25  # sin and cos count turns in units of 2**-TURN
PER_TURN = 0xA2F983  # 2**26 / (2 pi), the factor applied before sin and cos
TANH_LOW, TANH_HIGH = BIAS - 8, BIAS + 3  # tanh(x) is x below the first, 1 from the second on
TANH_BITS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 3])  # log2 of the number of segments per binade
TANH_ROWS = TANH + np.cumsum(1 << TANH_BITS) - (1 << TANH_BITS)
UP, DOWN_RSQRT, DOWN_SQRT = 0x4B800000, 0x45800000, 0x39800000  # 2**24, 2**12, 2**-12
LARGE, QUARTER, HALF = 0x7E800000, 0x3E800000, 0x3F000000  # 2**126, 1/4, 1/2
LOW_EX2, MINUS_24 = 0xC2FC0000, 0xC1C00000  # -126.0, -24.0

_WORD = np.dtype(np.uint32)


def squares() -> npt.NDArray[np.uint16]:
    """The squares of all dx without their two lowest bits, as the unit computes them."""
    t = np.arange(1 << SQUARED_BITS, dtype=np.int64)
    total = np.zeros_like(t)
    for i in range(SQUARED_BITS):
        for j in range(i, SQUARED_BITS):
            weight = i + j + (i != j)
            if weight >= SQUARED_BITS:
                total += ((t >> i) & (t >> j) & 1) << (weight - SQUARED_BITS)
    return total.astype(np.uint16)


# --- interpolation and rounding ----------------------------------------------------------------


@inlined
def _sum(table: Any, square: Any, row: int, dx: int, dropped: int) -> int:
    """C0 + C1 dx + C2 dx²; the lowest `dropped` bits of dx are not squared."""
    square_of_dx = np.int64(square[dx >> dropped])
    value: int = table[row, 0] + table[row, 1] * dx + table[row, 2] * square_of_dx
    return value


@inlined
def _segment(table: Any, square: Any, first: int, fraction: int) -> int:
    """The sum for an argument with 23 fraction bits, of 64 segments."""
    dx = fraction & ((1 << WIDTH) - 1)
    return _sum(table, square, first + (fraction >> WIDTH), dx, WIDTH - SQUARED_BITS)


@inlined
def _packed(v: int, exponent: int) -> int:
    """The number v * 2**(exponent - UNIT), truncated to 24 bits; subnormal results become zero."""
    if v == 0:
        return 0
    exact = int(as_bits(np.float64(v)))
    r: int = (exact >> 29) + ((exponent - UNIT + BIAS - 1023) << 23)
    return 0 if r < LEAST else min(r, INF)


@inlined
def _float32(x: int) -> Any:
    return as_float(np.uint32(x))


@inlined
def _times(a: int, b: int) -> int:
    """a * b, rounded to nearest."""
    d = int(as_bits(_float32(a) * _float32(b)))
    return NAN if d & NAN > INF else d


@inlined
def _plus(a: int, b: int) -> int:
    d = int(as_bits(_float32(a) + _float32(b)))
    return NAN if d & NAN > INF else d


@inlined
def _flushed(x: int) -> int:
    return x & SIGN if x & NAN < LEAST else x


# --- the unit ----------------------------------------------------------------------------------


@inlined
def _rcp(table: Any, square: Any, x: int) -> int:
    a, sign = x & NAN, x & SIGN
    if a >= INF:
        return NAN if a > INF else sign
    if a < LEAST:
        return sign | INF
    dx = a & ((1 << (WIDTH - 1)) - 1)
    row = RCP + ((a & FRACTION) >> (WIDTH - 1))
    return sign | _packed(_sum(table, square, row, dx, WIDTH - 1 - SQUARED_BITS), BIAS - (a >> 23))


@inlined
def _rsqrt(table: Any, square: Any, x: int) -> int:
    a, sign = x & NAN, x & SIGN
    if a < LEAST:
        return sign | INF
    if a > INF or sign:
        return NAN
    if a == INF:
        return 0
    odd = ((a >> 23) - BIAS) & 1
    half = ((a >> 23) - BIAS - odd) >> 1
    if a & FRACTION == 0 and not odd:
        return (BIAS - half) << 23
    return _packed(_segment(table, square, RSQRT + (odd << 6), a & FRACTION), -half)


@inlined
def _sqrt(table: Any, square: Any, x: int) -> int:
    a, sign = x & NAN, x & SIGN
    if a < LEAST:
        return sign
    if a > INF or sign:
        return NAN
    if a == INF:
        return a
    odd = ((a >> 23) - BIAS) & 1
    half = ((a >> 23) - BIAS - odd) >> 1
    return _packed(_segment(table, square, SQRT + (odd << 6), a & FRACTION), half)


@inlined
def _ex2(table: Any, square: Any, x: int) -> int:
    """2**x in fixed point with 23 fraction bits.

    The fraction of a negative x is a one's complement, unless x is an integer.
    """
    a, sign = x & NAN, x & SIGN
    if a > INF:
        return NAN
    if a >= (BIAS + 8) << 23:
        return 0 if sign else INF
    shift = (a >> 23) - BIAS
    significand = (a & FRACTION) | LEAST
    fixed = significand << shift if shift >= 0 else significand >> min(-shift, 63)
    if sign:
        fixed = ~fixed if fixed & FRACTION else -fixed
    return _packed(_segment(table, square, EX2, fixed & FRACTION), fixed >> 23)


@inlined
def _lg2(table: Any, square: Any, x: int) -> int:
    """log2 x; a negative sum is truncated below 2**-36 and then one's-complemented."""
    a, sign = x & NAN, x & SIGN
    if a < LEAST:
        return SIGN | INF
    if a > INF or sign:
        return NAN
    if a in (INF, ONE):
        return a if a == INF else 0
    whole = ((a >> 23) - BIAS) << UNIT
    v = whole + _segment(table, square, LG2, a & FRACTION)
    return _packed(v, 0) if v >= 0 else SIGN | _packed(~(v >> 4) << 4, 0)


@inlined
def _sin(table: Any, square: Any, x: int, quarters: int) -> int:
    """sin of x radians plus `quarters` of a turn, in fixed point."""
    a, sign = x & NAN, x & SIGN
    if a >= INF:
        return NAN
    product = ((a & FRACTION) | LEAST) * PER_TURN
    dropped = 24 if product >> 47 else 23
    turns = product >> dropped  # 24 bits
    shift = (a >> 23) + dropped - (BIAS + 23 + 26 - TURN)
    if shift >= 0:
        turns = turns << shift if shift < TURN else 0
    else:
        turns >>= min(-shift, 63)
    turns += quarters << 23
    if turns & LEAST:
        turns ^= FRACTION
    half = ((turns >> 24) & 1) << 31
    magnitude = _packed(_segment(table, square, SIN, turns & FRACTION), 0)
    return magnitude | (half if quarters else half ^ sign)


@inlined
def _tanh(table: Any, square: Any, x: int) -> int:
    a, sign = x & NAN, x & SIGN
    binade = (a >> 23) - TANH_LOW
    if a > INF:
        return NAN
    if binade < 0:
        return x
    if binade >= TANH_HIGH - TANH_LOW:
        return sign | ONE
    bits = TANH_BITS[binade]
    row = TANH_ROWS[binade] + ((a & FRACTION) >> (23 - bits))
    dx = (a >> (23 - WIDTH - bits)) & ((1 << WIDTH) - 1)
    return sign | _packed(_sum(table, square, row, dx, WIDTH - SQUARED_BITS), 0)


# --- code that the assembler generates around the unit -------------------------------------------


@inlined
def _scaled_rcp(table: Any, square: Any, x: int) -> int:
    a = x & NAN
    scale = UP if a < LEAST else ONE
    if LARGE < a <= INF:
        scale = QUARTER
    return _times(_rcp(table, square, _times(x, scale)), scale)


@inlined
def _scaled_ex2(table: Any, square: Any, x: int) -> int:
    if not LOW_EX2 < x <= (SIGN | INF):
        return _ex2(table, square, x)
    d = _ex2(table, square, _times(x, HALF))
    return _times(d, d)


@inlined
def _divided(table: Any, square: Any, a: int, b: int, ftz: bool, full: bool) -> int:
    scale = ONE
    if full and LARGE < b & NAN <= INF:
        scale = QUARTER
    if not ftz and b & NAN < LEAST:
        scale = UP
    if ftz:
        a, b = _flushed(a), _flushed(b)
    if scale != ONE:
        a, b = _times(a, scale), _times(b, scale)
    if ftz:
        a = _flushed(a)
    d = _times(_rcp(table, square, b), a)
    return _flushed(d) if ftz else d


OPS = ("rcp", "rsqrt", "sqrt", "ex2", "lg2", "sin", "cos", "tanh", "div", "div.full")
(DO_RCP, DO_RSQRT, DO_SQRT, DO_EX2, DO_LG2, DO_SIN, DO_COS, DO_TANH, DO_DIV, DO_FULL) = range(len(OPS))


@inlined
def _roots_and_logarithm(op: int, table: Any, square: Any, x: int, ftz: bool) -> int:
    """Functions whose subnormal arguments are multiplied by 2**24."""
    small = not ftz and x & NAN < LEAST
    if small:
        x = _times(x, UP)
    if op == DO_RSQRT:
        d = _rsqrt(table, square, x)
        return _times(d, DOWN_RSQRT) if small else d
    if op == DO_SQRT:
        d = _sqrt(table, square, x)
        return _times(d, DOWN_SQRT) if small else d
    d = _lg2(table, square, x)
    return _plus(d, MINUS_24) if small else d


@inlined
def _one(op: int, table: Any, square: Any, x: int, y: int, ftz: bool) -> int:
    if op == DO_RCP:
        return _rcp(table, square, x) if ftz else _scaled_rcp(table, square, x)
    if op in (DO_RSQRT, DO_SQRT, DO_LG2):
        return _roots_and_logarithm(op, table, square, x, ftz)
    if op == DO_EX2:
        return _ex2(table, square, x) if ftz else _scaled_ex2(table, square, x)
    if op in (DO_SIN, DO_COS):
        return _sin(table, square, x, int(op == DO_COS))
    if op == DO_TANH:
        return _tanh(table, square, x)
    return _divided(table, square, x, y, ftz, op == DO_FULL)


@vectorised
def _evaluate(op: int, ftz: bool, x: Any, y: Any, out: Any, table: Any, square: Any) -> None:
    for i in range(out.size):
        out[i] = _one(op, table, square, x[i], y[i], ftz)


@cache
def _tables() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    return COEFFICIENTS, squares()


def _apply(op: int, ftz: bool, x: npt.NDArray[np.uint32], *more: npt.NDArray[np.uint32]) -> Any:
    y = more[0] if more else x
    if isinstance(x, Symbol):
        return x.call(_evaluate, op, ftz, x, y, OUT, *_tables(), dtype=_WORD)
    if x.shape != y.shape:
        x, y = np.broadcast_arrays(x, y)
    out = np.empty(x.size, np.uint32)
    flat_x, flat_y = (np.ascontiguousarray(v).reshape(-1) for v in (x, y))
    _evaluate(op, ftz, flat_x, flat_y, out, *_tables())
    return out.reshape(x.shape)


def function(op: str, ftz: bool) -> Callable[..., Any]:
    """The function of arrays of f32 bits for one of `OPS`."""
    return partial(_apply, OPS.index(op), ftz)
