"""The approximate instructions (`.approx`, `.full`).

f32, f16 and bf16 give the bits of sm_90 on every target: `function_unit` computes f32 as the
hardware does, and 16-bit inputs have tables.
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
from .symbols import look_up

Function = Callable[..., Any]


# Functions that give the correctly rounded results of 16-bit types.
EXACT: dict[str, Function] = {"ex2": np.exp2, "tanh": np.tanh}
TYPES = {
    **dict.fromkeys(("rcp", "rsqrt", "sqrt", "div", "div.full", "lg2", "sin", "cos"), "f32"),
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
    return 1, lambda a: look_up(_table16(op, type), a)
