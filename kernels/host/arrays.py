"""New arrays beside given ones: of the same library, on the same device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.runtime.arguments import describe
from tensorcore_dsl.runtime.array_interop import stream_handle

LINE = 16  # elements, of at least a byte each: where lines may start so that TMA reads them
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


def on_stream(like: Any, stream: Any) -> AbstractContextManager[Any]:
    """In it, torch and CuPy work on `stream`, with memory that belongs to it; None: no change."""
    library = type(like).__module__.partition(".")[0]
    if stream is None or library not in ("torch", "cupy") or not getattr(like, "is_cuda", True):
        return nullcontext()
    cuda = import_module(library).cuda
    if library == "cupy":
        return cuda.ExternalStream(stream_handle(stream))  # type: ignore[no-any-return]
    theirs = cuda.ExternalStream(stream_handle(stream), like.device)
    return cuda.stream(theirs)  # type: ignore[no-any-return]


def runs_backwards(x: Any) -> bool:
    """Is an axis of a view reversed?"""
    found = describe(x)
    return any(n > 1 and s < 0 for n, s in zip(found.shape, found.strides, strict=True))


def with_lines(x: Any, along: int) -> Any:
    """`x`, its rows or columns contiguous and none reversed: itself, a view, or else a copy.

    along: the axis (-1 or -2) to call contiguous where both could be.
    """
    if 0 in x.shape:
        return x
    unit = describe(x).type.unit[-2:]
    if not any(unit) or runs_backwards(x):
        return _copied(x)
    return _told_apart(x, along) if all(unit) else x


def _copied(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x)
    if hasattr(x, "contiguous"):
        return x.contiguous()
    if hasattr(x, "copy"):
        return x.copy(order="C")
    raise tc.ArgumentError("neither rows nor columns of an operand are contiguous; copy it first")


def _told_apart(x: Any, along: int) -> Any:
    """A row or a column whose axes both have stride 1, with a line's stride for the axis of one
    element: nothing goes along it, but kernels take an axis of stride 1 for a contiguous one."""
    found, across = describe(x), -3 - along
    if found.shape[across] != 1:
        along, across = across, along
    if found.shape[across] != 1:
        return x
    strides = list(found.strides)
    strides[across] = -(-found.shape[along] // LINE) * LINE
    if isinstance(x, np.ndarray):
        bits = x.view(f"u{x.itemsize}")  # as_strided does not know all of ml_dtypes
        steps = [stride * x.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(bits, x.shape, steps).view(x.dtype)
    if hasattr(x, "as_strided"):
        return x.as_strided(x.shape, strides)
    return x
