"""New arrays beside given ones: of the same library, on the same device."""

from __future__ import annotations

from typing import Any

import numpy as np

TORCH_NAMES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "s8": "int8",
    "s32": "int32",
}


def empty_like(a: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array of the library and device that `a` belongs to."""
    library = type(a).__module__.partition(".")[0]
    if library == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, TORCH_NAMES[dtype.name]), device=a.device)
    if library == "cupy":
        import cupy

        return cupy.empty(shape, dtype.numpy)
    if hasattr(a, "copy_to_host"):
        from numba import cuda

        return cuda.device_array(shape, dtype.numpy)
    return np.empty(shape, dtype.numpy)
