# mypy: disable-error-code="no-any-return"
"""Arrays of register bits: conversion of operands, packed halves, .ftz, .sat and .relu."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .number_formats import FLOATS, Bits, register_dtype
from .symbols import Symbol, as_array, flat


def registers(x: Any, dtype: np.dtype[Any]) -> Bits:
    """An operand as an array of registers; Python integers are taken modulo the width."""
    if isinstance(x, (np.ndarray, Symbol)) and x.dtype == dtype:
        return x  # type: ignore[return-value]
    if isinstance(x, int):
        x &= (1 << 8 * dtype.itemsize) - 1
    return as_array(x).astype(dtype)


def halves(function: Callable[..., Any], element_bits: int, *operands: Any) -> Bits:
    """Apply a function of registers to the parts of packed registers, all at once."""
    whole = register_dtype(2 * element_bits)
    part = register_dtype(element_bits)
    arrays = [registers(x, whole) for x in operands]
    if any(x.shape != arrays[0].shape for x in arrays):
        arrays = list(np.broadcast_arrays(*arrays))
    packed = [flat(x).view(part) for x in arrays]
    return as_array(function(*packed)).view(whole).reshape(arrays[0].shape)


@cache
def register_constants(type: str) -> dict[str, Any]:
    """Constants of a format as scalars of its registers."""
    f, dtype = FLOATS[type], register_dtype(FLOATS[type].bits).type
    one = f.bias << f.mantissa
    bits = {"sign": 1 << f.sign_shift, "magnitude": f.magnitude, "inf": f.inf or 0, "nan": f.nan}
    bits |= {"least": 1 << f.mantissa, "one": one, "zero": 0}
    return {name: dtype(value) for name, value in bits.items()}


def is_nan(bits: Bits, type: str) -> Bits:
    k = register_constants(type)
    return np.greater(bits & k["magnitude"], k["inf"])


def flush(bits: Bits, type: str) -> Bits:
    """Subnormal numbers to zero of the same sign (.ftz)."""
    k = register_constants(type)
    return np.where(bits & k["magnitude"] < k["least"], bits & k["sign"], bits)


def saturate(bits: Bits, type: str) -> Bits:
    """.sat: clamp to [0, 1]; NaN and -0.0 give +0.0."""
    k = register_constants(type)
    zero = (bits > k["inf"]) | (bits >= k["sign"])
    return np.where(zero, k["zero"], np.minimum(bits, k["one"]))


def relu(bits: Bits, type: str) -> Bits:
    """.relu: negative numbers to +0.0; NaN to the canonical NaN."""
    k = register_constants(type)
    return np.where(is_nan(bits, type), k["nan"], np.where(bits >= k["sign"], k["zero"], bits))
