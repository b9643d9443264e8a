"""Bits of constants, shared by the printer and the interpreter."""

from __future__ import annotations

import math

import numpy as np

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.ir.nodes import Const, For
from tensorcore_dsl.isa.spec import Operand

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def const_bits(const: Const) -> int:
    """The bits of `const` as an unsigned integer of its type's width.

    Floats are rounded to nearest even and integers wrap. Packed pairs such as f16x2, and `.b`
    types, are given as bits.
    """
    dtype = const.dtype
    if dtype.kind == "f" and dtype.lanes == 1:
        return _float_bits(const.value, dtype)
    if isinstance(const.value, float) and not (math.isfinite(const.value) and const.value.is_integer()):
        raise OperandError(f"{const.value!r} is no {dtype.name} constant: an integer is needed")
    return int(const.value) & ((1 << dtype.bits) - 1)


def constant_trips(node: For) -> int | None:
    """Trip count of a loop with constant bounds, else None."""
    bounds, dtype = (node.start, node.stop, node.step), node.index.type.dtype
    known = [const_int(Const(const_bits(b), dtype)) for b in bounds if isinstance(b, Const)]
    return len(range(*known)) if len(known) == 3 else None


def const_int(const: Const) -> int:
    """The value of `const` as an integer of its type, negative if signed."""
    bits, dtype = const_bits(const), const.dtype
    return bits - (1 << dtype.bits) if dtype.kind == "s" and bits >> (dtype.bits - 1) else bits


def immediate_complaint(value: int | float | bool, operand: Operand) -> str | None:
    """Why `value` cannot be this immediate, for messages; None if it can."""
    if isinstance(value, float) and not value.is_integer():
        return f"{shortened(value)} was given, where an integer known at compile time is needed"
    if operand.values is not None and value not in operand.values:
        return f"{value!r} was given; allowed are {listing(operand.values)}"
    bits, signed = operand.dtype.bits, operand.dtype.kind == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        return f"{shortened(value)} was given; {low} to {high} are allowed"
    return None


def shortened(value: int | float | bool) -> str:
    """A constant for messages; integers of many digits by their size."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def _float_bits(value: int | float | bool, dtype: DType) -> int:
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        number = math.copysign(math.inf, value > 0 or -1)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = np.asarray(number).astype(dtype.numpy)
    word = stored.view(_WORDS[stored.dtype.itemsize])
    return int(word) & ((1 << dtype.bits) - 1)
