"""Element types of the matrix products, and the values of bits and of block scales."""

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


# Values of the bits 0 and 1 of A and B. Their product is the result of `and`, or the
# result of `xor` minus one half.
BIT_VALUES = {"and": ((0.0, 1.0), (0.0, 1.0)), "xor": ((1.0, -1.0), (-0.5, 0.5))}


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
