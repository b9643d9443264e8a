"""Small whole numbers, whose products and sums are exact in any order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
E5M2, F16 = np.dtype(ml_dtypes.float8_e5m2), np.dtype(np.float16)
RNG = np.random.default_rng(17)
START = RNG.bit_generator.state  # each test starts here (see conftest.py)


def whole(*shape: int, dtype: Any = BF16, order: str = "C", most: int = 3) -> np.ndarray:
    """Numbers from -most to most; order "F": the last axis but one is contiguous."""
    numbers = RNG.integers(-most, most + 1, shape).astype(dtype)
    return np.ascontiguousarray(numbers.swapaxes(-1, -2)).swapaxes(-1, -2) if order == "F" else numbers


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)
