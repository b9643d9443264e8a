"""What scalar instructions mean, in Python's integers and fractions: an oracle for tests; operands for it.

Shares nothing with the package: formats are written down again, and rounding works on exact
numbers. A value is a Fraction, or one of "nan", "+inf", "-inf", "-0".
"""

from __future__ import annotations

import math
import zlib
from fractions import Fraction
from typing import Any

import numpy as np

# exponent bits, fraction bits, has infinity, the NaN of results, largest finite code
FORMATS = {
    "f64": (11, 52, True, 0xFFF8000000000000, 0x7FEFFFFFFFFFFFFF),
    "f32": (8, 23, True, 0x7FFFFFFF, 0x7F7FFFFF),
    "f16": (5, 10, True, 0x7FFF, 0x7BFF),
    "bf16": (8, 7, True, 0x7FFF, 0x7F7F),
    "e5m2": (5, 2, True, 0x7F, 0x7B),
    "e4m3": (4, 3, False, 0x7F, 0x7E),
    "e3m2": (3, 2, False, 0x1F, 0x1F),
    "e2m3": (2, 3, False, 0x1F, 0x1F),
    "e2m1": (2, 1, False, 0x7, 0x7),
}
Number = Fraction | str


def register_type(kind: str) -> Any:
    """The type of NumPy that holds a register of PTX type `kind`; bytes lie in 16 bits."""
    return {8: np.uint16, 16: np.uint16, 32: np.uint32, 64: np.uint64}[int(kind.lstrip("bfsu"))]


def columns(kinds: tuple[str, ...], count: int, seed: str) -> list[np.ndarray]:
    """Return `count` random operands of each type; evenly spaced ones for one type of up to 16 bits."""
    width = int(kinds[0].lstrip("bfsu"))
    if len(kinds) == 1 and width <= 16:
        step = max(1, (1 << width) // count)
        return [np.arange(0, 1 << width, step).astype(np.uint16)]
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    return [
        (random_floats if kind in FORMATS else random_integers)(kind, count, rng).astype(register_type(kind))
        for kind in kinds
    ]


def random_integers(kind: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Bits of any length, their complements, and the extremes of the type."""
    width = int(kind[1:])
    full = (1 << width) - 1
    extremes = np.array([0, 1, full, full >> 1, full >> 1 ^ full], np.uint64)
    short = rng.integers(0, 2**64, count, np.uint64) >> rng.integers(64 - width, 64, count, np.uint64)
    choice = rng.integers(0, 5, count)
    return np.select([choice == 0, choice < 3], [rng.choice(extremes, count), short], short ^ np.uint64(full))


def random_floats(kind: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers near one, special values, and any bits: a third each. Near one, mantissas have few bits.

    Such numbers cancel, and their sums and products lie on midpoints.
    """
    exponent_bits, fraction_bits, *_ = FORMATS[kind]
    sign = 1 << exponent_bits + fraction_bits
    one, infinity = ((1 << exponent_bits - 1) - 1) << fraction_bits, sign - (1 << fraction_bits)
    least = 1 << fraction_bits  # the least normal number
    special = [
        0,
        1,
        least - 1,
        least,
        least + 1,
        one,
        one + 1,
        infinity - 1,
        infinity,
        infinity + 1,
        sign - 1,
    ]
    any_bits = rng.integers(0, 2 * sign - 1, count, np.uint64, endpoint=True)
    exponent = rng.integers(-3, 4, count) * least + one
    few_bits = 1 << rng.integers(0, fraction_bits, count) ^ rng.integers(0, 4, count)
    near_one = (exponent + few_bits).astype(np.uint64) | any_bits & np.uint64(sign)
    choice = rng.integers(0, 3, count)
    signed = rng.choice(np.array(special, np.uint64), count) | any_bits & np.uint64(sign)
    return np.select([choice == 0, choice == 1], [near_one, signed], any_bits)


def decode(code: int, name: str) -> Number:
    e, m, infinite, nan, _ = FORMATS[name]
    magnitude = code & ((1 << (e + m)) - 1)
    negative = code >> (e + m) & 1
    if infinite and magnitude >= ((1 << e) - 1) << m:
        return "nan" if magnitude & ((1 << m) - 1) else "-inf" if negative else "+inf"
    if name == "e4m3" and magnitude == nan:
        return "nan"
    field, fraction = magnitude >> m, magnitude & ((1 << m) - 1)
    significand = fraction + (1 << m if field else 0)
    value = significand * Fraction(2) ** (max(field, 1) - (1 << (e - 1)) + 1 - m)
    if value == 0 and negative:
        return "-0"
    return -value if negative else value


def integral(value: Fraction, rounding: str, negative: bool) -> int:
    """A magnitude rounded to an integer."""
    floor = math.floor(value)
    rest = value - floor
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1),
        "rna": rest >= Fraction(1, 2),
        "rz": False,
        "rm": rest > 0 and negative,
        "rp": rest > 0 and not negative,
    }[rounding]
    return floor + up


def logarithm(value: Fraction) -> int:
    """The greatest e with 2**e <= value."""
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e if Fraction(2) ** e <= value else e - 1


def encode(
    value: Number, name: str, rounding: str = "rn", *, ftz: bool = False, satfinite: bool = False
) -> int:
    """Code of an exact number; NaN gives the canonical one."""
    e, m, infinite, nan, largest = FORMATS[name]
    if value == "nan":
        return nan
    sign = 1 << (e + m)
    if value == "-0":
        return sign
    if isinstance(value, str):
        top = largest if satfinite or not infinite else ((1 << e) - 1) << m
        return top | (sign if value == "-inf" else 0)
    negative, magnitude = value < 0, abs(value)
    code = 0
    if magnitude:
        least = 2 - (1 << (e - 1))
        exponent = logarithm(magnitude)
        step = Fraction(2) ** (max(exponent, least) - m)
        code = integral(magnitude / step, rounding, negative) + (max(exponent - least, 0) << m)
        if ftz and exponent < least:
            step = Fraction(2) ** (exponent - m)
            tiny = integral(magnitude / step, rounding, negative) * step < Fraction(2) ** least
            code = 0 if tiny else 1 << m
    if code > largest:
        to_inf = rounding in ("rn", "rna") or (rounding == ("rm" if negative else "rp"))
        code = ((1 << e) - 1) << m if infinite and to_inf and not satfinite else largest
    return code | (sign if negative else 0)


def negative(x: Number) -> bool:
    return x.startswith("-") if isinstance(x, str) else x < 0


def real(x: Number) -> Fraction:
    assert not isinstance(x, str) or x == "-0"
    return Fraction(0) if x == "-0" else Fraction(x)


def signed(magnitude: Number, minus: bool) -> Number:
    """ "inf" or a number >= 0 with a sign."""
    if isinstance(magnitude, str):
        return "-inf" if minus else "+inf"
    return "-0" if magnitude == 0 and minus else -magnitude if minus else magnitude


def add(x: Number, y: Number, rounding: str) -> Number:
    if "nan" in (x, y):
        return "nan"
    infinities = {v for v in (x, y) if isinstance(v, str) and v.endswith("inf")}
    if infinities:
        return infinities.pop() if len(infinities) == 1 else "nan"
    total = real(x) + real(y)
    if total == 0:
        both = (negative(x) and real(x) == 0) and (negative(y) and real(y) == 0)
        opposite = negative(x) != negative(y)
        return "-0" if both or (opposite and rounding == "rm") else Fraction(0)
    return total


def mul(x: Number, y: Number) -> Number:
    if "nan" in (x, y):
        return "nan"
    minus = negative(x) != negative(y)
    if any(isinstance(v, str) and v.endswith("inf") for v in (x, y)):
        zero = any(not isinstance(v, str) and v == 0 or v == "-0" for v in (x, y))
        return "nan" if zero else signed("inf", minus)
    return signed(abs(real(x) * real(y)), minus)


def div(x: Number, y: Number) -> Number:
    if "nan" in (x, y):
        return "nan"
    minus = negative(x) != negative(y)
    x_inf, y_inf = (isinstance(v, str) and v.endswith("inf") for v in (x, y))
    if x_inf or y_inf:
        return "nan" if x_inf and y_inf else signed("inf" if x_inf else Fraction(0), minus)
    if real(y) == 0:
        return "nan" if real(x) == 0 else signed("inf", minus)
    return signed(abs(real(x) / real(y)), minus)


def sqrt(x: Number) -> Number:
    """Exact, or with 80 more bits than any format and a last bit that stands for the rest."""
    if x in ("nan", "-inf") or (x != "-0" and negative(x)):
        return "nan"
    if isinstance(x, str) or x == 0:
        return x
    shift = 2 * (160 - logarithm(x) // 2)
    scaled = x * Fraction(2) ** shift
    root = math.isqrt(math.floor(scaled))
    root = 2 * root + (root * root != scaled)
    return Fraction(root) / Fraction(2) ** (shift // 2 + 1)


def arith(op: str, x: list[Number], rounding: str) -> Number:
    if op == "fma":
        return add(mul(x[0], x[1]), x[2], rounding)
    if op == "sub":
        y = x[1]
        opposite = {"-0": Fraction(0), "+inf": "-inf", "-inf": "+inf", "nan": "nan"}
        flipped = opposite[y] if isinstance(y, str) else "-0" if y == 0 else -y
        return add(x[0], flipped, rounding)
    if op == "add":
        return add(x[0], x[1], rounding)
    return {"mul": mul, "div": div, "sqrt": sqrt}[op](*x)


def flushed(code: int, kind: str) -> int:
    e, m, *_ = FORMATS[kind]
    return code & 1 << (e + m) if code >> m & ((1 << e) - 1) == 0 else code


def expected(op: str, kind: str, codes: list[int], rounding: str, ftz: bool) -> int:
    codes = [flushed(c, kind) for c in codes] if ftz else codes
    x = [decode(c, kind) for c in codes]
    d = encode(arith(op, x, rounding), kind, rounding, ftz=ftz)
    if kind != "f64" or "nan" not in x:
        return d
    order = {"fma": (1, 2, 0), "div": (0, 1)}.get(op, (1, 0))[-len(x) :]
    first = next(codes[i] for i in order if x[i] == "nan")
    return first | 1 << 51
