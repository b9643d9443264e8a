"""Arrays of zeros and of normally distributed numbers, and arrays of other libraries, as DLPack exports them."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
new_capsule.restype = ctypes.py_object


class Dlpack:
    """What offers DLPack alone, as the library of `array` exports it; on another device, where one is named."""

    def __init__(self, array: Any, device: tuple[int, int] | None = None) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> Any:
        return self.device or self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def zeros(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    """Zeros of a shape; 64 of them without one."""
    return np.zeros(shape or 64, dtype)


def normal(*shape: int, dtype: Any = ml_dtypes.bfloat16, order: Any = "C", seed: int = 0) -> np.ndarray:
    """Normally distributed numbers, which depend on the shape and the seed alone."""
    draw = np.random.default_rng((*shape, seed))
    return np.asarray(draw.standard_normal(shape).astype(dtype), order=order)
