"""New arrays in the library and on the device of an existing array."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, describe, stream_handle
from tensorcore_dsl.kernels.problem.padding import COLUMNS, ROWS, VECTOR_BYTES
from tensorcore_dsl.kernels.sizes import cdiv

ZERO_TERMS = 16  # K of zeros for an empty K: rows of 16 bytes or more, as TMA reads them


def library_of(array: Any) -> str:
    """Name of the top-level package of an array's class, or of its base, such as "torch"."""
    cls: Any = type(array)
    return _library(cls)


@lru_cache(maxsize=256)
def _library(cls: type) -> str:
    names = [base.__module__.partition(".")[0] for base in cls.__mro__]
    return next((name for name in names if name in ("torch", "cupy")), names[0])


def namespace_of(array: Any) -> Any:
    """Namespace of the array's library by the array API standard, or None."""
    if library_of(array) == "cupy":  # CuPy arrays have __array_namespace__ from version 14 on
        return sys.modules["cupy"]
    return array.__array_namespace__() if hasattr(array, "__array_namespace__") else None


def empty_like(like: Any, shape: tuple[int, ...], dtype: tc.DType) -> Any:
    """Make an uninitialised array in the library and on the device of `like`.

    The array is NumPy's if the library lacks the element type, or has no writable arrays.
    """
    library = library_of(like)
    if library == "torch":
        torch = sys.modules["torch"]  # its types have the names of NumPy or ml_dtypes
        return like.new_empty(shape, dtype=getattr(torch, dtype.numpy.name))
    if library == "cupy":
        return sys.modules["cupy"].empty(shape, dtype.numpy)
    if hasattr(like, "copy_to_host"):
        return import_module("numba.cuda").device_array(shape, dtype.numpy)
    namespace: Any = None if isinstance(like, np.ndarray) else namespace_of(like)
    element = getattr(namespace, dtype.numpy.name, None)
    if element is not None:
        array = namespace.empty(shape, dtype=element, device=like.device)
        if describe(array, "the result").type.writable:
            return array
    return np.empty(shape, dtype.numpy)


def empty_similar(x: Any, dtype: tc.DType) -> Any:
    """Make an uninitialised array of x's shape. torch keeps the order of x's axes in memory."""
    if library_of(x) == "torch":
        return sys.modules["torch"].empty_like(x, dtype=getattr(sys.modules["torch"], dtype.numpy.name))
    return empty_like(x, x.shape, dtype)


def zero_terms(like: Any, axis: int, count: int = ZERO_TERMS) -> Any:
    """Zeros in place of matrices that have no elements along `axis`, K: `count` terms, which are
    contiguous."""
    shape, dtype = list(like.shape), describe(like).type.dtype
    del shape[axis]
    zeros = empty_like(like, (*shape, count), dtype)
    zeros[:] = 0
    return zeros if axis == -1 else transposed(zeros)


def zero_factors(a: Any, *others: Any) -> tuple[Any, ...]:
    """Zeros in place of operands with K = 0: K is the last axis of A, and the last but one of others."""
    return zero_terms(a, -1), *(zero_terms(x, -2) for x in others)


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    """View `x` as an array of this shape, broadcast as in NumPy."""
    if library_of(x) == "torch":
        return x.expand(shape)
    namespace = namespace_of(x)
    if namespace is not None:
        return namespace.broadcast_to(x, shape)
    raise tc.ArgumentError(
        f"c is a {type(x).__name__}, which has no views that are broadcast to {shape}: pass an "
        f"array of NumPy, torch or CuPy, or a copy of that shape"
    )


def transposed(x: Any) -> Any:
    """View with the last two axes exchanged; Numba's own transpose would copy."""
    if not hasattr(x, "copy_to_host"):
        return x.swapaxes(-1, -2) if hasattr(x, "swapaxes") else x.mT
    exchanged = lambda axes: (*axes[:-2], axes[-1], axes[-2])
    return _view_of_numba(x, exchanged(x.shape), exchanged(x.strides))


def restrided(x: Any, strides: tuple[int, ...]) -> Any:
    """View with other strides, in elements; `x` itself if its library has no such views."""
    if hasattr(x, "as_strided"):  # torch
        return x.as_strided(x.shape, strides)
    in_bytes = tuple(stride * x.dtype.itemsize for stride in strides)
    if hasattr(x, "copy_to_host"):
        return _view_of_numba(x, x.shape, in_bytes)
    if library_of(x) == "cupy":
        return sys.modules["cupy"].lib.stride_tricks.as_strided(x, x.shape, in_bytes)
    if isinstance(x, np.ndarray):
        bits = x.view(f"u{x.itemsize}")  # as_strided does not know all types of ml_dtypes
        return np.lib.stride_tricks.as_strided(bits, x.shape, in_bytes).view(x.dtype)
    return x


def _view_of_numba(x: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return type(x)(shape=shape, strides=strides, dtype=x.dtype, gpu_data=x.gpu_data)


def astype(x: Any, dtype: tc.DType) -> Any:
    """Copy with elements of another type."""
    if library_of(x) == "torch":
        return x.to(getattr(sys.modules["torch"], dtype.numpy.name))
    if hasattr(x, "astype"):
        return x.astype(dtype.numpy)
    namespace = namespace_of(x)
    return namespace.astype(x, getattr(namespace, dtype.numpy.name))


def on_stream(like: Any, stream: Any) -> AbstractContextManager[Any]:
    """Context in which torch or CuPy works on `stream` and allocates memory for it.

    The context is empty for None and for arrays of other libraries.
    """
    library = library_of(like)
    if stream is None or library not in ("torch", "cupy") or not getattr(like, "is_cuda", True):
        return nullcontext()
    cuda = sys.modules[library].cuda
    if library == "cupy":
        return cuda.ExternalStream(stream_handle(stream))  # type: ignore[no-any-return]
    return cuda.stream(cuda.ExternalStream(stream_handle(stream), like.device))  # type: ignore[no-any-return]


def with_line_stride(x: Any, description: Description, axis: int) -> Any:
    """Give the axis of one element of a single row or column a larger stride than 1.

    No access uses this stride, but kernels take an axis of stride 1 for the contiguous one. axis: the
    axis (-1 or -2) to call contiguous if both have one element. Other arrays are returned unchanged.
    """
    if 0 in description.shape or not all(description.type.unit[-2:]):
        return x
    single = -3 - axis
    if description.shape[single] != 1:
        axis, single = single, axis
    if description.shape[single] != 1:
        return x
    strides = list(description.strides)
    strides[single] = cdiv(description.shape[axis], VECTOR_BYTES) * VECTOR_BYTES
    return restrided(x, tuple(strides))


def with_line_strides(a: Any, b: Any, in_a: Description, in_b: Description) -> tuple[Any, Any]:
    """Apply `with_line_stride` to A and B, with K as the contiguous axis."""
    return with_line_stride(a, in_a, ROWS), with_line_stride(b, in_b, COLUMNS)
