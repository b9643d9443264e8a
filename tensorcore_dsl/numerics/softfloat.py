"""Exact rounding in functions for compiled loops, the basis of `ieee` and `encode`.

A finite number is ``sig * 2**(e - 63)`` with a 64-bit ``sig`` whose lowest bit may be sticky, the
OR of all bits below. `round_code` rounds it to any format in any rounding mode. Formats narrower
than f64 are computed in float64 rounded to odd, so that the second rounding gives the correct
result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorcore_dsl.lowering import inlined, numeric, primitive

RN, RZ, RM, RP, RNA, RS = range(6)
ROUNDINGS = {"rn": RN, "rz": RZ, "rm": RM, "rp": RP, "rna": RNA, "rs": RS}
INTEGRAL = {"rni": RN, "rzi": RZ, "rmi": RM, "rpi": RP}

_U1 = np.uint64(1)
_FRACTION = np.uint64((1 << 52) - 1)
_HIDDEN = np.uint64(1 << 52)
_QUIET = np.uint64(1 << 51)
_SIGN = np.uint64(1 << 63)
_MAGNITUDE = np.uint64((1 << 63) - 1)
_INF = np.uint64(0x7FF << 52)
_INF32 = np.uint64(0xFF << 23)
_NAN32 = np.uint64((1 << 31) - 1)  # the canonical NaN of f32
_ONE = np.uint64(1023 << 52)
_INVALID = np.uint64(0xFFF8 << 48)


as_float = primitive(numeric.as_float)
as_bits = primitive(numeric.as_bits)
fused = primitive(numeric.fused)
clz = primitive(numeric.clz)
bit_reverse = primitive(numeric.bit_reverse)
high_product = primitive(numeric.high_product)


@inlined
def jam(sig: Any, shift: Any) -> Any:
    """``sig >> shift``, with the bits shifted out ORed into the lowest (sticky) bit."""
    if shift <= 0:
        return sig
    if shift > 63:
        return np.uint64(sig != 0)
    n = np.uint64(shift)
    lost = sig & ((_U1 << n) - _U1)
    return (sig >> n) | np.uint64(lost != 0)


@inlined
def rounds_up(sign: Any, odd: Any, remainder: Any, half: Any, mode: Any) -> Any:
    """Whether to increment the magnitude; ``remainder`` is the truncated part, ``half`` its midpoint."""
    if mode == RN:
        return remainder > half or (remainder == half and odd)
    if mode == RNA:
        return remainder >= half
    if mode == RZ:
        return False
    return remainder != 0 and sign == (mode == RM)


@inlined
def _cut(e: Any, sig: Any, mantissa: Any, emin: Any) -> Any:
    """The bits of a magnitude that a format keeps, those it truncates, and the number of these."""
    shift = 63 - mantissa + max(emin - e, 0)
    if shift > 63:
        sig = jam(sig, shift - 63)
        shift = 63
    n = np.uint64(shift)
    return sig >> n, sig & ((_U1 << n) - _U1), n


@inlined
def round_code(sign: Any, e: Any, sig: Any, mantissa: Any, emin: Any, mode: Any) -> Any:
    """Exponent and fraction of the rounded magnitude; above the largest code on overflow."""
    mantissa_bits, remainder, n = _cut(e, sig, mantissa, emin)
    mantissa_bits += np.uint64(rounds_up(sign, mantissa_bits & _U1 != 0, remainder, _U1 << (n - _U1), mode))
    return (np.uint64(max(e - emin, 0)) << np.uint64(mantissa)) + mantissa_bits


@inlined
def stochastic_code(e: Any, sig: Any, mantissa: Any, emin: Any, random: Any, width: Any) -> Any:
    """`round_code` for .rs: add ``width`` random bits to the highest truncated bits."""
    mantissa_bits, remainder, n = _cut(e, sig, mantissa, emin)
    shift = np.int64(n)
    remainder >>= np.uint64(max(shift - width, 0))
    carry = (remainder + (random >> np.uint64(max(width - shift, 0)))) >> np.uint64(min(shift, width))
    return (np.uint64(max(e - emin, 0)) << np.uint64(mantissa)) + mantissa_bits + carry


@inlined
def overflows_to_inf(sign: Any, mode: Any) -> Any:
    return mode in (RN, RNA) or (mode != RZ and sign == (mode == RM))


@inlined
def unpack64(magnitude: Any) -> Any:
    """Exponent and significand of a finite float64; subnormal numbers are not normalised."""
    field = np.int64(magnitude >> np.uint64(52))
    fraction = magnitude & _FRACTION
    if field == 0:
        return np.int64(-1022), fraction << np.uint64(11)
    return field - 1023, (fraction | _HIDDEN) << np.uint64(11)


@inlined
def normal64(magnitude: Any) -> Any:
    """`unpack64` of a nonzero number, with a normalised significand."""
    e, sig = unpack64(magnitude)
    zeros = clz(sig)
    return e - np.int64(zeros), sig << zeros


@inlined
def pack64(sign: Any, e: Any, sig: Any, mode: Any) -> Any:
    code = round_code(sign, e, sig, 52, -1022, mode)
    if code >= _INF:
        code = _INF if overflows_to_inf(sign, mode) else _INF - _U1
    return code | (np.uint64(sign) << np.uint64(63))


@inlined
def flushed_code(sign: Any, e: Any, sig: Any, mantissa: Any, emin: Any, mode: Any, ftz: Any) -> Any:
    """`round_code`; .ftz makes it zero if the result, rounded without exponent limit, is tiny."""
    if not ftz or e >= emin:
        return round_code(sign, e, sig, mantissa, emin, mode)
    if e < emin - 1 or round_code(sign, 0, sig, mantissa, 0, mode) >> np.uint64(mantissa) < 2:
        return np.uint64(0)
    return _U1 << np.uint64(mantissa)


@inlined
def pack32(x: Any, mode: Any, ftz: Any) -> Any:
    """Round a float64 to the bits of a float32; NaN gives the canonical NaN."""
    bits = as_bits(x)
    sign = bits >= _SIGN
    magnitude = bits & _MAGNITUDE
    e, sig = unpack64(magnitude)
    code = flushed_code(sign, e, sig, 23, -126, mode, ftz)
    if code >= _INF32:
        code = _INF32 if magnitude >= _INF or overflows_to_inf(sign, mode) else _INF32 - _U1
    return _NAN32 if magnitude > _INF else code | np.uint64(sign) << np.uint64(31)


# --- float64 rounded to odd ------------------------------------------------------------------


@inlined
def to_odd(x: Any, error: Any) -> Any:
    """Round to odd, given ``x`` rounded to nearest and its ``error`` (NaN: exact)."""
    bits = as_bits(x)
    if abs(error) > 0 and bits & _U1 == 0:
        bits = bits + _U1 if (error < 0) == (x < 0) else bits - _U1
    return as_float(bits)


@inlined
def odd_add(x: Any, y: Any, mode: Any) -> Any:
    s = x + y
    if mode == RM and s == 0 and (as_bits(x) ^ as_bits(y)) >= _SIGN:
        return -0.0
    t = s - x
    return to_odd(s, (x - (s - t)) + (y - t))


@inlined
def odd_div(x: Any, y: Any) -> Any:
    q = x / y
    remainder = fused(-q, y, x)
    return to_odd(q, remainder if y > 0 else -remainder)


@inlined
def odd_sqrt(x: Any) -> Any:
    s = math.sqrt(x)
    return to_odd(s, fused(-s, s, x))


# --- f16 and bf16 to nearest, through float32, so that the loops vectorise -----------------------


@inlined
def odd32(x: Any, error: Any) -> Any:
    """`to_odd` for float32."""
    bits = as_bits(np.float32(x))
    outwards = (error < 0) == (bits >= np.uint32(1 << 31))
    step = np.uint32(1) if outwards else np.uint32(0xFFFFFFFF)
    inexact = abs(error) > 0 and bits & np.uint32(1) == 0
    return as_float(np.uint32(bits + step if inexact else bits))


@inlined
def cut32(x: Any) -> Any:
    """A float64 rounded to odd in float32."""
    nearest = np.float32(x)
    return odd32(nearest, x - np.float64(nearest))


@inlined
def jam32(x: Any) -> Any:
    """`cut32` for numbers that are normal in float32: faster."""
    bits = as_bits(x)
    low = np.uint64((1 << 29) - 1)
    sticky = np.uint64(1 << 29) if bits & low != np.uint64(0) else np.uint64(0)
    return np.float32(as_float((bits & ~low) | sticky))


@inlined
def pack16(x: Any, mantissa: Any, ftz: Any) -> Any:
    """Round a float32 to nearest f16 (10 bits) or bf16 (7); .ftz as in `flushed_code`."""
    bits = as_bits(np.float32(x))
    sign = np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000)
    m = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if mantissa == 7:
        odd = m >> np.uint32(16) & np.uint32(1)
        code = np.uint32(m + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        tiny = np.float32(2.0**-126 * (1 - 2.0**-9))
    else:
        odd = m >> np.uint32(13) & np.uint32(1)
        normal = np.uint32(m - np.uint32(0x37FFF001) + odd)
        shifted = np.float32(as_float(np.uint32(m)) + np.float32(0.5))
        small = as_bits(shifted) - np.uint32(0x3F000000)
        code = normal >> np.uint32(13) if m >= np.uint32(0x38800000) else small
        code = np.uint32(0x7C00) if m >= np.uint32(0x47800000) else code
        tiny = np.float32(2.0**-14 * (1 - 2.0**-12))
    if ftz:
        code = np.uint32(0) if as_float(np.uint32(m)) < tiny else code
    return np.uint16(np.uint32(0x7FFF) if m > np.uint32(0x7F800000) else code | sign)


# --- f64 in every rounding mode ---------------------------------------------------------------


@inlined
def nan64(a: Any, b: Any, c: Any) -> Any:
    """The NaN of an f64 operation: the first NaN among b, c, a, made quiet; else "invalid"."""
    for x in (b, c, a):
        if x & _MAGNITUDE > _INF:
            return x | _QUIET
    return _INVALID


@inlined
def is_nan64(a: Any) -> Any:
    return a & _MAGNITUDE > _INF


@inlined
def align(high: Any, low: Any, shift: Any) -> Any:
    """Shift a 128-bit number right; the bits shifted out become the sticky bit."""
    if shift <= 0:
        return high, low
    if shift >= 64:
        return np.uint64(0), jam(high, shift - 64) | np.uint64(low != 0)
    n = np.uint64(shift)
    return high >> n, (high << (np.uint64(64) - n)) | jam(low, shift)


@inlined
def add128(negative: Any, xh: Any, xl: Any, yh: Any, yl: Any) -> Any:
    """x + y, or for ``negative`` |x - y| and whether x - y was negative."""
    if not negative:
        low = xl + yl
        return xh + yh + np.uint64(low < xl), low, False
    swap = xh < yh or (xh == yh and xl < yl)
    if swap:
        xh, xl, yh, yl = yh, yl, xh, xl
    return xh - yh - np.uint64(xl < yl), xl - yl, swap


@inlined
def sum64(sign: Any, e: Any, ph: Any, pl: Any, c: Any, mode: Any) -> Any:
    """Round ``±(ph:pl) * 2**(e - 125)`` plus the float64 ``c``; the first term is not zero."""
    csign = c >= _SIGN
    ch, cl, ec = np.uint64(0), np.uint64(0), e
    if c & _MAGNITUDE != 0:
        ec, ch = normal64(c & _MAGNITUDE)
        ch >>= np.uint64(2)
    top = max(e, ec)
    ph, pl = align(ph, pl, top - e)
    ch, cl = align(ch, cl, top - ec)
    high, low, swapped = add128(sign != csign, ph, pl, ch, cl)
    sign ^= swapped
    if high == 0 and low == 0:
        return _SIGN if mode == RM else np.uint64(0)
    if high == 0:
        high, low, top = low, np.uint64(0), top - 64
    zeros = clz(high)
    sig = high << zeros
    if zeros != 0:
        sig |= low >> (np.uint64(64) - zeros)
        low <<= zeros
    return pack64(sign, top + 2 - np.int64(zeros), sig | np.uint64(low != 0), mode)


@inlined
def fma64(a: Any, b: Any, c: Any, mode: Any) -> Any:
    """fma.f64 on bits, in any rounding mode."""
    product_sign = (a ^ b) & _SIGN
    am, bm, cm = a & _MAGNITUDE, b & _MAGNITUDE, c & _MAGNITUDE
    if am > _INF or bm > _INF or cm > _INF:
        return nan64(a, b, c)
    if am == _INF or bm == _INF:
        if am == 0 or bm == 0 or (cm == _INF and product_sign != c & _SIGN):
            return _INVALID
        return product_sign | _INF
    if cm == _INF:
        return c
    if am == 0 or bm == 0:
        if cm != 0:
            return c
        if product_sign == c & _SIGN:
            return product_sign
        return _SIGN if mode == RM else np.uint64(0)
    ea, ma = normal64(am)
    eb, mb = normal64(bm)
    ma >>= np.uint64(1)  # The product's highest bit is now 125 or 126 of 128.
    return sum64(product_sign != 0, ea + eb, high_product(ma, mb), ma * mb, c, mode)


@inlined
def mul64(a: Any, b: Any, mode: Any) -> Any:
    return fma64(a, b, (a ^ b) & _SIGN, mode)


@inlined
def add64(a: Any, b: Any, mode: Any) -> Any:
    return fma64(a, _ONE, b, mode)


@inlined
def _unit(sig: Any) -> Any:
    """A normalised significand as a float64 in [1, 2)."""
    return as_float(_ONE | (sig >> np.uint64(11) & _FRACTION))


@inlined
def scaled_residue(q: Any, remainder: Any) -> Any:
    """Exponent and significand of a quotient or root near [1/2, 2), by the sign of its residue."""
    e, sig = unpack64(as_bits(q))
    if remainder < 0:
        return e, sig - _U1
    return e, sig | np.uint64(remainder > 0)


@inlined
def div64(a: Any, b: Any, mode: Any) -> Any:
    """div.f64 on bits, in any rounding mode."""
    sign = (a ^ b) & _SIGN
    am, bm = a & _MAGNITUDE, b & _MAGNITUDE
    if am > _INF or bm > _INF or (am == bm and (am == 0 or am == _INF)):
        return nan64(b, a, np.uint64(0))
    if am == _INF or bm == 0:
        return sign | _INF
    if am == 0 or bm == _INF:
        return sign
    ea, ma = normal64(am)
    eb, mb = normal64(bm)
    x, y = _unit(ma), _unit(mb)
    q = x / y
    e, sig = scaled_residue(q, fused(-q, y, x))
    if sig < _SIGN:
        e, sig = e - 1, sig << _U1
    return pack64(sign != 0, e + ea - eb, sig, mode)


@inlined
def sqrt64(a: Any, mode: Any) -> Any:
    """sqrt.f64 on bits, in any rounding mode."""
    am = a & _MAGNITUDE
    if am > _INF:
        return a | _QUIET
    if am == 0 or a == _INF:
        return a
    if a >= _SIGN:
        return _INVALID
    ea, ma = normal64(am)
    half = ea >> 1
    x = _unit(ma) * (1 + (ea & 1))
    q = math.sqrt(x)
    e, sig = scaled_residue(q, fused(-q, q, x))
    if sig < _SIGN:
        e, sig = e - 1, sig << _U1
    return pack64(False, e + half, sig, mode)
