"""Matrix products in Python integers and fractions: slow, exact, and independent of the package."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

# name: exponent bits, fraction bits, meaning of the top exponent
FLOATS = {
    "f32": (8, 23, "ieee"), "tf32": (8, 10, "ieee"), "bf16": (8, 7, "ieee"), "f16": (5, 10, "ieee"),
    "e5m2": (5, 2, "ieee"), "e4m3": (4, 3, "nan"), "e3m2": (3, 2, ""), "e2m3": (2, 3, ""),
    "e2m1": (2, 1, ""),
}  # fmt: skip
WIDTHS = {"s32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}
AMPERE = ("sm_80", "sm_86", "sm_89")
HOPPER = ("sm_90a", "sm_100a", "sm_120a")


@dataclass(frozen=True)
class Number:
    """kind is "nan", "inf" or "finite"; exponent is the one that alignment sees."""

    kind: str
    value: Fraction
    exponent: int = 0

    @property
    def negative(self) -> bool:
        return self.value < 0


NAN = Number("nan", Fraction(0))


def two(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def decode(name: str, code: int) -> Number:
    if name in WIDTHS:
        width = WIDTHS[name]
        code &= (1 << width) - 1
        signed = name[0] == "s" and code >= 1 << (width - 1)
        return Number("finite", Fraction(code - (1 << width) * signed))
    width, fraction, top = FLOATS[name]
    if name == "tf32":
        code >>= 13
    sign = -1 if code >> (width + fraction) & 1 else 1
    field, tail = code >> fraction & ((1 << width) - 1), code & ((1 << fraction) - 1)
    if top == "ieee" and field == (1 << width) - 1:
        return NAN if tail else Number("inf", Fraction(sign))
    if top == "nan" and field == (1 << width) - 1 and tail == (1 << fraction) - 1:
        return NAN
    exponent = max(field, 1) - (1 << (width - 1)) + 1
    significand = Fraction(tail, 1 << fraction) + (1 if field else 0)
    return Number("finite", sign * significand * two(exponent), exponent)


def floor_log2(x: Fraction) -> int:
    guess = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return guess if abs(x) >= two(guess) else guess - 1


def truncated(x: Fraction) -> int:
    return (abs(x.numerator) // x.denominator) * (-1 if x < 0 else 1)


def nearest(x: Fraction) -> int:
    return round(x)  # of a Fraction: half to even, exact


def encode(name: str, x: Fraction, kept: int, to_nearest: bool, signed_zero: bool = False) -> int:
    """Bits of a number rounded to `kept` fraction bits, gradually below the least exponent."""
    width, fraction, _ = FLOATS[name]
    bias = (1 << (width - 1)) - 1
    sign = (1 << (width + fraction)) if x < 0 else 0
    if x == 0:
        return 0
    quantum = max(floor_log2(x), 1 - bias) - kept
    units = abs(nearest(x / two(quantum)) if to_nearest else truncated(x / two(quantum)))
    rounded = units * two(quantum)
    if rounded == 0:
        return sign if signed_zero else 0
    exponent = floor_log2(rounded)
    if exponent > bias:
        return sign | ((1 << width) - 1) << fraction
    if exponent < 1 - bias:
        return sign | int(rounded / two(1 - bias - fraction))
    return sign | exponent + bias << fraction | int((rounded / two(exponent) - 1) * (1 << fraction))


def not_finite(name: str, numbers: list[Number]) -> int | None:
    """The special result of a sum, if there is one."""
    width, fraction, _ = FLOATS[name]
    infinities = {n.negative for n in numbers if n.kind == "inf"}
    if any(n.kind == "nan" for n in numbers) or len(infinities) == 2:
        return (1 << (width + fraction)) - 1
    if infinities:
        return infinities.pop() << (width + fraction) | ((1 << width) - 1) << fraction
    return None


def times(x: Number, y: Number) -> Number:
    if x.kind == "nan" or y.kind == "nan":
        return NAN
    if "inf" in (x.kind, y.kind):
        if x.kind != "inf" and x.value == 0 or y.kind != "inf" and y.value == 0:
            return NAN
        return Number("inf", Fraction(-1 if x.negative != y.negative else 1))
    return Number("finite", x.value * y.value, x.exponent + y.exponent)


def fused(pairs: list[Number], c: int, d_type: str, fraction: int, floor: int, kept: int) -> int:
    """One truncated fused sum of products and the accumulator's bits c."""
    terms = [*pairs, decode(d_type, c)]
    special = not_finite(d_type, terms)
    if special is not None:
        return special
    largest = max([t.exponent for t in terms if t.value] + [floor])
    unit = two(largest - fraction)
    total = sum(truncated(t.value / unit) for t in terms)
    return encode(d_type, total * unit, kept, d_type == "f16")


def chain(pairs, c, d_type, length, fraction, floor, kept):
    for k in range(0, len(pairs), length):
        c = fused(pairs[k : k + length], c, d_type, fraction, floor, kept)
    return c


def plain(name: str, x: Number, y: Number) -> int:
    """IEEE addition, to nearest, of numbers of at most that type's precision."""
    special = not_finite(name, [x, y])
    return encode(name, x.value + y.value, FLOATS[name][1], True) if special is None else special


def constants(p: Any, arch: str) -> tuple[int, int, int, int]:
    """Length, fraction, floor, kept bits: section by section, as the evidence states them."""
    half = p.c == p.d == "f16"
    f8 = p.a not in ("f16", "bf16", "tf32")
    if arch == "sm_70" or (arch == "sm_75" and (p.m, p.n, p.k) == (8, 8, 4)):
        row = 4, 23, -19 if half else -131, 23
    elif arch == "sm_75":
        row = 8, 24, -20 if half else -132, 23
    elif arch in AMPERE:
        row = (16, 13, -132, 13) if f8 else (4 if p.a == "tf32" else 8, 24, -132, 23)
        row = (row[0], row[1], -20, 10) if half else row
    else:
        row = 8 if p.a == "tf32" else 16, 25, -133, 23
        if f8:
            row = (32, 13, -133, 13) if arch == "sm_90a" else (32, 25, -133, 23)
        row = (row[0], row[1], -21, 10) if half else row
    if p.family == "wmma" and p.a == "tf32":
        row = (4, *row[1:])
    return (*row[:3], 10) if half else row


def element(p: Any, arch: str, a: list[int], b: list[int], c: int, sa: Any, sb: Any) -> int:
    """One element of D from its row of A, its (selected) column of B, and its C."""
    if p.a == "b1":
        bits = [x & y if p.operation == "and" else x ^ y for x, y in zip(a, b, strict=True)]
        return c + sum(bits) & 0xFFFFFFFF
    x, y = [decode(p.a, v) for v in a], [decode(p.b, v) for v in b]
    if p.a in WIDTHS:
        dot = sum(u.value * v.value for u, v in zip(x, y, strict=True))
        total = int(dot + decode("s32", c).value)
        return (min(max(total, -(2**31)), 2**31 - 1) if p.satfinite else total) & 0xFFFFFFFF
    if p.scale_kind:
        return scaled(p, x, y, c, sa, sb)
    if (p.a, p.m, p.n, p.k) == ("f16", 8, 8, 4) and arch in AMPERE + HOPPER:
        minus_zero = c == 0x8000 and all((u ^ v) & 0x8000 for u, v in zip(a, b, strict=True))
        return scalar(p, x, y, decode(p.c, c), minus_zero)
    if p.family == "mma" and p.a in ("e4m3", "e5m2") and arch in ("sm_90a", "sm_100a"):
        return unpacked(p, x, y, c)
    pairs = [times(u, v) for u, v in zip(x, y, strict=True)]
    length, fraction, floor, kept = constants(p, arch)
    if p.c == p.d:
        return chain(pairs, c, p.d, length, fraction, floor, kept)
    if p.c == "f16":
        c = widened(c)
    d = chain(pairs, c, "f32", length, fraction, floor, kept)
    return d if p.d == "f32" else narrowed(d)


def widened(c: int) -> int:
    number = decode("f16", c)
    if number.kind == "finite":
        return encode("f32", number.value, 23, True) if number.value else (c >> 15) << 31
    special = not_finite("f32", [number])
    assert special is not None
    return special


def narrowed(d: int) -> int:
    number = decode("f32", d)
    if number.kind == "finite":
        return encode("f16", number.value, 10, True, signed_zero=True)
    special = not_finite("f16", [number])
    assert special is not None
    return special


def as_f16(x: Number) -> Number:
    """Unpack a number to f16, where it may become normal."""
    if x.kind != "finite" or not x.value:
        return x
    return Number("finite", x.value, max(floor_log2(x.value), -14))


def unpacked(p: Any, x: list[Number], y: list[Number], c: int) -> int:
    """8-bit floats by way of f16: two interleaved halves, then c."""
    pairs = [times(as_f16(u), as_f16(v)) for u, v in zip(x, y, strict=True)]
    halves = [[q for k, q in enumerate(pairs) if k % 4 // 2 == half] for half in range(2)]
    row = (25, -21, 10) if p.d == "f16" else (25, -133, 23)
    s = fused(halves[1], fused(halves[0], 0, p.d, *row), p.d, *row)
    return plain(p.d, decode(p.d, s), decode(p.d, c))


def scalar(p: Any, x: list[Number], y: list[Number], c: Number, minus_zero: bool) -> int:
    """m8n8k4 as binary32 instructions; a sum of nothing but -0 stays -0 in f16."""
    q = [times(u, v) for u, v in zip(x, y, strict=True)]
    special = not_finite(p.d, [*q, c])
    if special is not None:
        return special
    if p.d == "f16" and minus_zero and not any(n.value for n in q):
        return 0x8000

    def rn(value: Fraction) -> Fraction:
        return decode("f32", encode("f32", value, 23, True)).value

    v = [n.value for n in q]
    if p.d == "f32":
        total = Fraction(0)
        for product in v:
            total = rn(total + product)
        return encode("f32", rn(c.value + total), 23, True)
    total = rn(rn(c.value + rn(v[0] + v[1])) + rn(v[2] + v[3]))
    return encode("f16", total, 10, True, signed_zero=True)


def scale(name: str, code: int) -> Number:
    if name == "ue8m0":
        return NAN if code == 255 else Number("finite", Fraction(1), code - 127)
    field, tail = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return NAN
    return Number("finite", Fraction(tail, 8) + (1 if field else 0), max(field, 1) - 7)


def scaled(p: Any, x: list[Number], y: list[Number], c: int, sa: Any, sb: Any) -> int:
    sa, sb = [scale(p.scale_type, v) for v in sa], [scale(p.scale_type, v) for v in sb]
    if any(s.kind == "nan" for s in (*sa, *sb)):
        return 0x7FFFFFFF
    q = [times(u, v) for u, v in zip(x, y, strict=True)]
    block = len(q) // p.scale_vec
    if p.scale_kind == "mxf8f6f4":
        shift = [sa[k // block].exponent + sb[k // block].exponent for k in range(len(q))]
        moved = [
            Number("finite", n.value * two(e), n.exponent + e) if n.kind == "finite" else n
            for n, e in zip(q, shift, strict=True)
        ]
        return chain(moved, c, "f32", 32, 25, -133, 23)
    special = not_finite("f32", [decode("f32", c)])
    if special is not None:
        return special
    return groups(q, decode("f32", c), sa, sb, block)


def groups(q: list[Number], c: Number, sa: list[Number], sb: list[Number], block: int) -> int:
    """Sums of 16 products, exact; their exponents are those of the scales alone."""
    terms, exponents = [], [-139]
    if c.value:
        exponents.append(c.exponent)
    for first in range(0, len(q), 16):
        u, v = sa[first // block], sb[first // block]
        group = q[first : first + 16]
        exponent, significand = u.exponent + v.exponent, u.value * v.value
        terms.append(sum(n.value for n in group) * significand * two(exponent))
        if significand and any(n.value for n in group):
            exponents.append(exponent)
    unit = two(max(exponents) - 35)
    return encode("f32", sum(truncated(t / unit) for t in (*terms, c.value)) * unit, 23, False)


def matmul(p, arch, a, b, c, selection=None, scale_a=None, scale_b=None):
    """The counterpart of the package's matmul."""
    a, b, c = (np.asarray(v).view(f"u{v.itemsize}") for v in (a, b, c))
    d = np.zeros((*a.shape[:2], p.n), f"u{2 if p.d == 'f16' else 4}")
    for t, i, j in np.ndindex(d.shape):
        rows = range(p.k) if selection is None else selection[t, i]
        scales = (None, None)
        if scale_a is not None:
            scales = scale_a[t, i].tolist(), scale_b[t, :, j].tolist()
        column = [int(b[t, k, j]) for k in rows]
        d[t, i, j] = element(p, arch, a[t, i].tolist(), column, int(c[t, i, j]), *scales)
    return d
