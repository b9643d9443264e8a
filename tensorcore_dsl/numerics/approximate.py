"""The approximate instructions: one table of functions.

For f16 and bf16 the results are those of sm_90, for every input. For f32 and f64 they are not
bit-exact: each is the correctly rounded one, which lies within the manual's error bound of what the
hardware gives, and the special cases are those of the manual. An H200 gives the same bits for 87%
of all f32 significands in [1, 2) of rcp, 83% of sqrt, 78% of rsqrt, 61% of ex2, and otherwise
neighbouring ones (rsqrt: two away at most); lg2 near 1, sin, cos and tanh are coarser. A measured
table can take a function's place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .approximate_sm90 import lower
from .number_formats import FLOATS, Bits, find, register_dtype, values

Function = Callable[..., Any]


def _rsqrt(x: Any) -> Any:
    return 1.0 / np.sqrt(x)


def _lg2(x: Any) -> Any:
    return np.log2(np.where(x == 0, 0.0, x))


def _sin(x: Any) -> Any:
    y = np.sin(_turns(x))
    return np.where(y == 0, np.copysign(0.0, x), y)


def _cos(x: Any) -> Any:
    return np.cos(_turns(x))


_PER_TURN = float(np.float32(0.5 / np.pi))


def _turns(x: Any) -> Any:
    """sin and cos count turns in a float32 cut off, which leaves nothing of a large argument."""
    turns = x * _PER_TURN
    kept = (turns.view(np.uint64) & ~np.uint64((1 << 29) - 1)).view(np.float64)
    return (kept - np.trunc(kept)) * (2 * np.pi)


def _approx_quotient(a: Any, b: Any) -> Any:
    """a * (1 / b), where a reciprocal that would be subnormal counts as zero."""
    return a * np.where(np.abs(b) > 2.0**126, np.copysign(0.0, b), 1 / b)


@dataclass(frozen=True)
class Approximation:
    """``function`` of float64 arrays; ``bound`` is the manual's maximum error of the hardware."""

    op: str
    types: str
    function: Function
    bound: str
    arity: int = 1


TABLE = {
    row.op: row
    for row in (
        #             op          types           function          bound
        Approximation("rcp",      "f32 f64",      np.reciprocal,    "1 ulp; f64 20 bits"),
        Approximation("sqrt",     "f32",          np.sqrt,          "relative 2**-23"),
        Approximation("rsqrt",    "f32 f64",      _rsqrt,           "relative 2**-22.9"),
        Approximation("div",      "f32",          _approx_quotient, "2 ulp for |b| <= 2**126", 2),
        Approximation("div.full", "f32",          np.divide,        "2 ulp", 2),
        Approximation("ex2",      "f32 f16 bf16", np.exp2,          "2 ulp; 2**-9.9; 2**-7"),
        Approximation("lg2",      "f32",          _lg2,             "2**-22"),
        Approximation("sin",      "f32",          _sin,             "absolute 2**-20.5"),
        Approximation("cos",      "f32",          _cos,             "absolute 2**-20.5"),
        Approximation("tanh",     "f32 f16 bf16", np.tanh,          "2**-11; 2**-10.987; 2**-8"),
    )
}  # fmt: skip
ONLY = frozenset(op for op in TABLE if op not in ("rcp", "sqrt", "div", "div.full"))


@cache
def _table16(op: str, type: str) -> Bits:
    """Results for all 2**16 inputs of f16 or bf16."""
    from .convert import convert

    f = FLOATS[type]
    with np.errstate(all="ignore"):
        exact = TABLE[op].function(values(type))
    nearest = np.where(np.isnan(exact), f.nan, convert(exact.view(np.uint64), "f64", type, "rn"))
    if (op, type) == ("ex2", "bf16"):  # it exists with .ftz only
        nearest = np.where(nearest < 1 << f.mantissa, 0, nearest)
    return nearest.astype(np.uint16) - lower(op, type)


def _flushed(x: Any, ftz: bool, least: float) -> Any:
    return np.where(np.abs(x) < least, np.copysign(0.0, x), x) if ftz else x


def instruction(op: str, type: str, full: bool, ftz: bool) -> tuple[int, Function]:
    """Number of operands and function of registers of ``op.approx`` (``full``: div.full)."""
    row = find(TABLE, f"{op}.full" if full else op, "approximate operation")
    if type not in row.types.split():
        raise ValueError(f"{op}.approx is for {row.types}, not {type}")
    if type in ("f16", "bf16"):
        return 1, lambda a: _table16(op, type)[a]
    if type == "f64" and ftz:
        return 1, lambda a: _upper_half(row.function, a)
    dtype, bits = np.dtype(f"f{FLOATS[type].bits // 8}"), register_dtype(FLOATS[type].bits)
    least = float(np.finfo(dtype).tiny)
    nan = bits.type(FLOATS[type].nan)

    def run(*x: Bits) -> Bits:
        with np.errstate(all="ignore"):
            inputs = (_flushed(v.view(dtype).astype(np.float64), ftz, least) for v in x)
            d = _flushed(row.function(*inputs).astype(dtype), ftz, dtype.type(least))
        return np.where(np.isnan(d), nan, np.asarray(d).view(bits))

    return row.arity, run


def _upper_half(function: Function, a: Bits) -> Bits:
    """rcp and rsqrt.approx.ftz.f64: upper 32 bits, computed from upper 32 bits (9.7.3.14)."""
    half = np.uint64(0xFFFFFFFF)
    least = float(np.finfo(np.float64).tiny)
    with np.errstate(all="ignore"):
        d = function(_flushed((a & ~half).view(np.float64), True, least))
    bits = np.asarray(_flushed(d, True, least)).view(np.uint64)
    rounded = (bits + np.uint64(1 << 31)) & ~half
    return np.where(np.isnan(d), np.uint64(0x7FFFFFFF << 32), rounded)
