"""Inputs of matrix instructions that find mistakes: compiled, the same on every machine.

Each element is drawn from a hash of its place, so that any part of a form's inputs can be made
alone. The owners of elements (warps, warpgroups) go through the REGIMES, one after the other.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from tensorcore_dsl.dtypes import DType

# exponent bits, mantissa bits, bias
FLOATS = {
    "f64": (11, 52, 1023),
    "f32": (8, 23, 127),
    "tf32": (8, 23, 127),
    "f16": (5, 10, 15),
    "bf16": (8, 7, 127),
    "e4m3": (4, 3, 7),
    "e5m2": (5, 2, 15),
    "e3m2": (3, 2, 3),
    "e2m3": (2, 3, 1),
    "e2m1": (2, 1, 1),
}
# Every owner of elements is in one of these; the numbers are known to `_band` and `_float`.
REGIMES = (
    "random bits",
    "exponents near each other",
    "coarse mantissas: near ties",
    "a third of the exponent range",
    "subnormals, times the whole exponent range",
    "NaN, infinity, zero and extremes among ordinary numbers",
    "near overflow",
    "few values with signs: cancellation",
    "the whole exponent range, finite",
    "an accumulator far above the products",
    "cancellation, and an accumulator of zeros",
    "mostly zeros of both signs",
    "products around the least exponent that sums are aligned to, no accumulator",
    "a rare special value",
    "powers of two: ties",
    "exponents far from each other",
)
A, B, C = range(3)  # roles
RAW, COARSE, POWER, POOL, FLOOR = range(5)  # how mantissas are drawn
MASKS = (0x4, 0x8, 0xC, 0x9, 0xD, 0xE)  # legal nibbles of sparse metadata
TF32_MASKS = (0x4, 0xE)


@dataclass(frozen=True)
class Kind:
    """How an element type lies in words: bits of an element, bits it takes, its lowest bit."""

    name: str
    bits: int
    storage: int
    low: int = 0

    @classmethod
    def of(cls, dtype: DType, storage: int) -> Kind:
        if dtype.name == "b1":  # whole words of bits
            return cls("b1", 32, 32)
        low = storage // 4 if dtype.name == "e2m1" and storage == 8 else 0
        return cls(dtype.name, dtype.bits // dtype.lanes, storage, low)


def seed_of(*names: Any) -> int:
    return zlib.crc32("/".join(map(str, names)).encode())


def words(kind: Kind, seed: int, role: int, first: int, owners: int, group: int, count: int) -> np.ndarray:
    """(owners, count) words of elements; owners from number `first` on, `group` to a regime."""
    wide = kind.storage == 64
    out = np.empty((owners, count), np.uint64 if wide else np.uint32)
    exponent, mantissa, bias = FLOATS.get(kind.name, (0, 0, 0))
    per = 1 if wide else 32 // kind.storage
    _fill(out, seed, first, group, role, per, kind.storage, kind.low, kind.bits, exponent, mantissa, bias)
    return out


def metadata(seed: int, legal: tuple[int, ...], first: int, owners: int) -> np.ndarray:
    """(owners, 1) words of nibbles that name two different places in order."""
    out = np.empty((owners, 1), np.uint32)
    _metadata(out, seed, first, np.array(legal, np.uint64))
    return out


def numbers(seed: int, first: int, count: int) -> np.ndarray:
    """(count,) random words of 64 bits."""
    out = np.empty(count, np.uint64)
    _numbers(out, seed, first)
    return out


@njit(inline="always")
def _mix(x):
    """SplitMix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(inline="always")
def _place(seed, owner, index):
    return _mix(_mix(np.uint64(seed) << np.uint64(32) | np.uint64(owner)) + np.uint64(index))


@njit(cache=True, nogil=True)
def _numbers(out, seed, first):
    for i in range(len(out)):
        out[i] = _place(seed, first + i, 0)


@njit(cache=True, nogil=True)
def _metadata(out, seed, first, legal):
    for i in range(len(out)):
        h = _place(seed, first + i, 0)
        word = np.uint64(0)
        for nibble in range(8):
            one = legal[(h >> np.uint64(8 * nibble) & np.uint64(255)) % np.uint64(len(legal))]
            word |= one << np.uint64(4 * nibble)
        out[i, 0] = word


@njit(cache=True, nogil=True)
def _fill(out, seed, first, group, role, per, storage, low, bits, exponent, mantissa, bias):
    owners, count = out.shape
    for i in range(owners):
        owner = first + i
        regime = owner // group % 16
        if exponent:
            least, most, draw, special, zero = _band(regime, role, exponent, mantissa, bias)
        for j in range(count):
            word = np.uint64(0)
            for e in range(per):
                h = _place(seed, owner, j * per + e)
                if exponent == 0:
                    element = _integer(h, regime % 4, role, bits, owner // group)
                elif regime == 0:
                    element = h >> np.uint64(64 - bits)
                else:
                    if draw == POOL:  # the value is one of six, the sign is free
                        sign = h & np.uint64(1 << 63)
                        pick = (h >> np.uint64(8)) % np.uint64(6)
                        h = _place(seed, owner // group, pick + np.uint64(1 << 40))
                        h = h & np.uint64((1 << 63) - 1) | sign
                    element = _float(h, least, most, draw, special, zero, exponent, mantissa, bits)
                word |= element << np.uint64(e * storage + low)
            out[i, j] = word


@njit(inline="always")
def _integer(h, regime, role, bits, owner):
    mask = np.uint64((1 << bits) - 1)
    raw, top = h & mask, np.uint64(1 << (bits - 1))
    if regime == 1 and h >> np.uint64(40) & np.uint64(255) < 80:  # corners
        choice = h >> np.uint64(56) & np.uint64(3)
        raw = (np.uint64(0), mask, top, top - np.uint64(1))[choice]
    if regime == 2:  # extremes: saturation
        turn = np.uint64(owner // 4 & 3)
        if role == C:
            raw = (top if turn & np.uint64(1) else top - np.uint64(256)) + (raw & np.uint64(255))
        elif bits == 32:
            raw = mask if turn & np.uint64(1) else raw | h >> np.uint64(32)
        else:
            near = h >> np.uint64(40) & np.uint64(3)
            raw = (
                (top + near if turn & np.uint64(2) else top - np.uint64(1) - near)
                if turn & np.uint64(1)
                else mask - near
            ) & mask
    if regime == 3 and role == C:
        raw = np.uint64(np.int64(h) >> 46) & mask
    return raw


@njit(inline="always")
def _float(h, least, most, draw, special, zero, exponent, mantissa, bits):
    g = _mix(h)
    signed = bits > exponent + mantissa
    sign = (h >> np.uint64(63)) << np.uint64(bits - 1) if signed else np.uint64(0)
    one = np.uint64(1)
    if (g & np.uint64(255)) < np.uint64(zero):
        return sign
    top = np.uint64((1 << exponent) - 1) << np.uint64(mantissa)
    if (g >> np.uint64(8) & np.uint64(255)) < np.uint64(special):
        codes = (
            np.uint64(0),
            one,
            top,
            top | one,
            top - one,
            top | np.uint64((1 << mantissa) - 1),
            np.uint64((1 << mantissa) - 1),
            np.uint64(1 << mantissa),
        )
        return sign | codes[g >> np.uint64(16) & np.uint64(7)]
    field = np.uint64(least) + (g >> np.uint64(32)) % np.uint64(most - least + 1)
    tail = h & np.uint64((1 << mantissa) - 1)
    if draw == COARSE:
        shift = np.uint64(max(mantissa - 2, 0))
        tail = tail >> shift << shift
    if draw == POWER:
        tail = np.uint64(0)
    if draw == FLOOR:  # halves of the least number of f16, and products far below
        if g >> np.uint64(24) & one:
            field, tail = np.uint64(2) + (g >> np.uint64(25) & one), np.uint64(0)
        else:
            field, tail = np.uint64(0), one + (h & np.uint64(3)) % np.uint64(3)
    return sign | field << np.uint64(mantissa) | tail


@njit(inline="always")
def _band(regime, role, exponent, mantissa, bias):
    """Least and most exponent field, how to draw mantissas, specials and zeros of 256."""
    low, high, draw, special, zero = -3, 3, RAW, 0, 0
    if regime == 2:
        low, high, draw = (0, 1, COARSE) if role != C else (-1, 12, RAW)
    elif regime == 3:
        low, high = -bias // 3, bias // 3
    elif regime == 4:
        low, high = (-bias, bias) if role == B else (-bias, -bias + 2)
    elif regime == 5:
        special = 16
    elif regime == 6:
        low, high = (bias // 2 - 1, bias // 2 + 1) if role != C else (bias - 3, bias)
    elif regime == 7 or regime == 10:
        low, high, draw = -2, 2, POOL
        if role == C and regime == 10:
            zero = 256
    elif regime == 8:
        low, high = -bias, bias + 1
    elif regime == 9 and role == C:
        low, high = 6, 27
    elif regime == 11:
        zero = 180
    elif regime == 12:
        low, high, zero = -75, -71, 256 if role == C else 0  # f32's floor, of bf16 and tf32
        if exponent <= 5:
            draw, zero = FLOOR, 256 if role == C else 205
    elif regime == 13:
        special = 1
    elif regime == 14:
        low, high, draw = -7, 7, POWER
    elif regime == 15:
        low, high = -14, 13
    last = (1 << exponent) - (1 if exponent == 4 or exponent < 4 else 2)
    return min(max(low + bias, 0), last), min(max(high + bias, 0), last), draw, special, zero
