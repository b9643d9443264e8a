"""Element types of the matrix products: bit fields, and decode tables of the small types."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

LOW = -(1 << 20)  # exponent of a zero: never the largest of an alignment

Table = npt.NDArray[Any]


@dataclass(frozen=True)
class Format:
    """An element type; `width` is the number of exponent bits, 0 for integers."""

    name: str
    bits: int
    fraction: int = 0
    width: int = 0
    special: str = "finite"  # highest codes: "ieee", "nan" (only all ones), "finite" (numbers)
    signed: bool = True

    @property
    def least(self) -> int:
        """The exponent of subnormals and of the smallest normals."""
        return 2 - (1 << (self.width - 1)) if self.width else LOW

    def value(self, code: int) -> float:
        """The number that a code represents."""
        if not self.width:
            negative = self.signed and code >> (self.bits - 1)
            return float(code - (1 << self.bits) if negative else code)
        field, tail = self._field(code), code & ((1 << self.fraction) - 1)
        magnitude = code & ((1 << self.fraction + self.width) - 1)
        sign = -1.0 if code != magnitude else 1.0
        if self.special == "ieee" and field == (1 << self.width) - 1:
            return math.nan if tail else sign * math.inf
        if self.special == "nan" and magnitude == (1 << self.fraction + self.width) - 1:
            return math.nan
        significand = tail + (1 << self.fraction if field else 0)
        return sign * math.ldexp(significand, self.exponent(code) - self.fraction)

    def exponent(self, code: int) -> int:
        """The unbiased encoded exponent; subnormal numbers are not normalised."""
        return max(self._field(code), 1) - 1 + self.least if self.width else LOW

    def _field(self, code: int) -> int:
        return code >> self.fraction & ((1 << self.width) - 1)


FORMATS = {
    row.name: row
    for row in (
        Format("f64", 64, 52, 11, "ieee"),
        Format("f32", 32, 23, 8, "ieee"),
        Format("tf32", 19, 10, 8, "ieee"),
        Format("f16", 16, 10, 5, "ieee"),
        Format("bf16", 16, 7, 8, "ieee"),
        Format("e5m2", 8, 2, 5, "ieee"),
        Format("e4m3", 8, 3, 4, "nan"),
        Format("e3m2", 6, 2, 3),
        Format("e2m3", 6, 3, 2),
        Format("e2m1", 4, 1, 2),
        Format("s32", 32),
        Format("s8", 8),
        Format("u8", 8, signed=False),
        Format("s4", 4),
        Format("u4", 4, signed=False),
        Format("b1", 1, signed=False),
    )
}


@cache
def table(name: str, least: int | None = None) -> Table:
    """Values and exponents (2, 256) of a type of at most 8 bits.

    `least` gives the exponents in a type with that smallest exponent, in which subnormal numbers of
    the original type may be normal.
    """
    instr = FORMATS[name]
    result = np.zeros((2, 256))
    for code in range(1 << instr.bits):
        value, exponent = instr.value(code), instr.exponent(code)
        if least is not None and math.isfinite(value):
            exponent = max(math.frexp(value)[1] - 1, least)
        result[:, code] = value, exponent if value else LOW
    return result


@cache
def bit_table(operation: str, operand: int) -> Table:
    """Values (2, 256) of single bits of A (operand 0) or B (operand 1).

    A product of two values is the result of `and`, or the result of `xor` minus one half.
    """
    values = {"and": ((0.0, 1.0), (0.0, 1.0)), "xor": ((1.0, -1.0), (-0.5, 0.5))}
    result = np.full((2, 256), float(LOW))
    result[0, :2] = values[operation][operand]
    return result


@cache
def scale_table(name: str | None) -> Table:
    """Significands and exponents (2, 256) of the bytes of block scales."""
    result = np.zeros((2, 256))
    for code in range(256):
        if name == "ue8m0":
            result[:, code] = (math.nan, 0) if code == 255 else (1, code - 127)
        elif name == "ue4m3":
            field, tail = code >> 3 & 15, code & 7
            significand = math.nan if code & 127 == 127 else (field > 0) + tail / 8
            result[:, code] = significand, max(field, 1) - 7
    return result
