# mypy: disable-error-code="no-any-return"
"""Number formats of PTX as data, and the register types that hold them.

An array of registers holds raw bits: ``bool`` for predicates, ``uint16`` for registers of 16 bits
and less (an 8-bit value is in the low byte), ``uint32`` and ``uint64``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[Any]
_V = TypeVar("_V")


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format; ``bits`` is the width of one value.

    ``inf`` is the code of infinity, None if the format has none. ``nan`` is the NaN that operations
    produce (positive MAX_NORM for formats without NaN, manual 9.7.9.21). ``pad`` is the number of
    zero bits below the value in its register (tf32).
    """

    name: str
    bits: int
    exponent: int
    mantissa: int
    inf: int | None
    nan: int
    max_finite: int
    pad: int = 0
    signed: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def sign_shift(self) -> int:
        return self.exponent + self.mantissa + self.pad

    @property
    def magnitude(self) -> int:
        """Mask of all bits but the sign."""
        return (1 << self.sign_shift) - 1


@dataclass(frozen=True)
class IntFormat:
    """A two's complement or unsigned integer of ``bits`` bits."""

    name: str
    bits: int
    signed: bool

    @property
    def low(self) -> int:
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << (self.bits - self.signed)) - 1


FLOATS: Mapping[str, FloatFormat] = {
    f.name: f
    for f in (
        #           name   bits  e   m  inf          nan          max finite
        FloatFormat("f64", 64, 11, 52, 0x7FF << 52, 0xFFF8 << 48, (0x7FF << 52) - 1),
        FloatFormat("f32", 32, 8, 23, 0x7F800000, 0x7FFFFFFF, 0x7F7FFFFF),
        FloatFormat("tf32", 32, 8, 10, 0x3FC00, 0x7FFFE000, 0x3FBFF, pad=13),
        FloatFormat("f16", 16, 5, 10, 0x7C00, 0x7FFF, 0x7BFF),
        FloatFormat("bf16", 16, 8, 7, 0x7F80, 0x7FFF, 0x7F7F),
        FloatFormat("e5m2", 8, 5, 2, 0x7C, 0x7F, 0x7B),
        FloatFormat("e4m3", 8, 4, 3, None, 0x7F, 0x7E),
        FloatFormat("e3m2", 6, 3, 2, None, 0x1F, 0x1F),
        FloatFormat("e2m3", 6, 2, 3, None, 0x1F, 0x1F),
        FloatFormat("e2m1", 4, 2, 1, None, 0x07, 0x07),
        FloatFormat("ue8m0", 8, 8, 0, None, 0xFF, 0xFE, signed=False),
    )
}

INTS: Mapping[str, IntFormat] = {
    f"{kind}{bits}": IntFormat(f"{kind}{bits}", bits, kind == "s")
    for kind in "usb"
    for bits in (2, 4, 8, 16, 32, 64)
}


def register_dtype(bits: int) -> np.dtype[Any]:
    """The dtype of a register for ``bits`` bits; at least 16 bits, as in PTX."""
    return np.dtype(np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64)


@cache
def packed(name: str) -> tuple[str, int]:
    """Element type and count: ``e4m3x2`` -> ``("e4m3", 2)``, ``f32`` -> ``("f32", 1)``."""
    element, x, count = name.rpartition("x")
    return (element, int(count)) if x and count.isdigit() else (name, 1)


def find(table: Mapping[Any, _V], key: object, what: str) -> _V:
    """Look up ``key``; ValueError names the key and the allowed keys."""
    try:
        return table[key]
    except KeyError:
        allowed = ", ".join(" ".join(k) if isinstance(k, tuple) else str(k) for k in table)
        shown = " ".join(map(str, key)) if isinstance(key, tuple) else repr(key)
        raise ValueError(f"{what} {shown} is not supported; there are: {allowed}") from None


@cache
def values(name: str) -> npt.NDArray[np.float64]:
    """The value of every code of a format of at most 16 bits, as float64 indexed by the code.

    Register bits above the format are ignored. NaN keeps its sign and payload and becomes quiet, as
    in the hardware's widening conversions.
    """
    f = FLOATS[name]
    codes = np.arange(1 << (8 if f.bits <= 8 else 16), dtype=np.int64) & ((1 << f.bits) - 1)
    if not f.signed:
        table = np.ldexp(1.0, codes - f.bias)
        table[codes == f.nan] = np.nan
        return table
    field = (codes >> f.mantissa) & ((1 << f.exponent) - 1)
    fraction = codes & ((1 << f.mantissa) - 1)
    significand = fraction + np.where(field > 0, 1 << f.mantissa, 0)
    table = np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - f.bias - f.mantissa)
    magnitude = codes & f.magnitude
    bits = table.view(np.int64)
    if f.inf is not None:
        special = (magnitude >= f.inf).nonzero()
        bits[special] = (0x7FF << 52) | (fraction[special] << (52 - f.mantissa))
        bits[(magnitude > f.inf).nonzero()] |= 1 << 51
    elif f.nan != f.max_finite:
        bits[(magnitude == f.nan).nonzero()] = 0x7FF8 << 48
    bits |= (codes >> f.sign_shift) << 63
    return table
