"""The approximate instructions (`.approx`, `.full`).

f32, f16 and bf16 give the bits of sm_90 on every target: `function_unit` computes f32 as the
hardware does, and 16-bit inputs have tables. rcp and rsqrt of f64 are not bit-exact: each is the
correctly rounded result, truncated to its upper 32 bits (9.7.3.14), within the manual's error
bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from . import function_unit
from .approximate_sm90 import lower
from .convert import convert
from .number_formats import FLOATS, Bits, find, values

Function = Callable[..., Any]


def _rsqrt(x: Any) -> Any:
    return 1.0 / np.sqrt(x)


EXACT: dict[str, Function] = {  # functions of float64 arrays, for types other than f32
    "rcp": np.reciprocal,
    "rsqrt": _rsqrt,
    "ex2": np.exp2,
    "tanh": np.tanh,
}
TYPES = {
    **dict.fromkeys(("sqrt", "div", "div.full", "lg2", "sin", "cos"), "f32"),
    **dict.fromkeys(("rcp", "rsqrt"), "f32 f64"),
    **dict.fromkeys(("ex2", "tanh"), "f32 f16 bf16"),
}
ONLY = frozenset(TYPES) - {"rcp", "sqrt", "div", "div.full"}


@cache
def _table16(op: str, type: str) -> Bits:
    """Results for all 2**16 inputs of f16 or bf16."""
    f = FLOATS[type]
    with np.errstate(all="ignore"):
        exact = EXACT[op](values(type))
    nearest = np.where(np.isnan(exact), f.nan, convert(exact.view(np.uint64), "f64", type, "rn"))
    if (op, type) == ("ex2", "bf16"):  # the manual has only the .ftz variant
        nearest = np.where(nearest < 1 << f.mantissa, 0, nearest)
    return nearest.astype(np.uint16) - lower(op, type)


def instruction(op: str, type: str, full: bool, ftz: bool) -> tuple[int, Function]:
    """Number of operands of ``op.approx`` (``full``: div.full), and its function of registers."""
    name = f"{op}.full" if full else op
    types = find(TYPES, name, "approximate operation")
    if type not in types.split():
        raise ValueError(f"{op}.approx is for {types}, not {type}")
    if type == "f32":
        return 2 if op == "div" else 1, function_unit.function(name, ftz)
    if type == "f64":
        return 1, lambda a: _of_double(EXACT[op], a, ftz)
    return 1, lambda a: _table16(op, type)[a]


def _of_double(function: Function, a: Bits, ftz: bool) -> Bits:
    """rcp and rsqrt of f64; .ftz reads and writes only the upper 32 bits (9.7.3.14)."""
    with np.errstate(all="ignore"):
        d = function(_upper_half(a, 0) if ftz else a.view(np.float64))
    bits = np.asarray(d).view(np.uint64)
    if ftz:
        bits = _upper_half(bits, 1 << 31).view(np.uint64)
    return np.where(np.isnan(d), np.uint64(0x7FFFFFFF << 32 if ftz else FLOATS["f64"].nan), bits)


def _upper_half(bits: Bits, rounding: int) -> Any:
    """The upper 32 bits as float64, with subnormal numbers flushed to zero."""
    x = bits.view(np.float64)
    x = np.where(np.abs(x) < np.finfo(np.float64).tiny, np.copysign(0.0, x), x)
    kept = (x.view(np.uint64) + np.uint64(rounding)) & ~np.uint64(0xFFFFFFFF)
    return kept.view(np.float64)
