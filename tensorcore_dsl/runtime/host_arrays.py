"""View the arguments of an emulated launch as NumPy arrays, without copies for host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.core.geometry import PerRank
from tensorcore_dsl.runtime.array_interop import Raw, read_array

# Types that torch passes to NumPy only as bits.
_BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


@contextmanager
def on_host(args: Sequence[Any]) -> Iterator[list[Any]]:
    """NumPy views of the arguments. Arrays on the GPU are copied to the host and back."""
    back: list[tuple[Any, np.ndarray[Any, Any]]] = []
    yield [_view(arg, back) for arg in args]
    for device, array in back:
        device.copy_to_device(array)


def _view(arg: Any, back: list[tuple[Any, np.ndarray[Any, Any]]]) -> Any:
    if isinstance(arg, PerRank):
        return PerRank(_view(one, back) for one in arg)
    if isinstance(arg, (np.ndarray, np.generic, bool, int, float, bytes, type(None))):
        return arg
    if hasattr(arg, "on_host"):  # a struct or a tensor map of a PTX kernel
        return arg.on_host(partial(_view, back=back))
    if type(arg).__module__.partition(".")[0] == "torch":
        return _torch_view(arg)
    if hasattr(arg, "copy_to_host") and hasattr(arg, "copy_to_device"):  # Numba's arrays
        array = arg.copy_to_host()
        back.append((arg, array))
        return array
    raw = read_array(arg)
    if raw is not None and raw.device is None:  # another array on the host, by DLPack
        return _memory_of(raw)
    raise ArgumentError(
        f"a {type(arg).__name__} cannot be read by the CPU: pass a NumPy array or a CPU tensor"
    )


def _memory_of(raw: Raw) -> Any:
    """Return a NumPy array over the memory of another array, which must outlive it."""
    interface = {
        "data": (raw.pointer, raw.readonly), "shape": tuple(raw.shape), "version": 3,
        "strides": None if raw.strides is None else tuple(raw.strides),
        "typestr": f"|V{raw.dtype.itemsize}",
    }  # fmt: skip
    memory = np.asarray(type("Memory", (), {"__array_interface__": interface})())
    return memory.view(raw.dtype)


def _torch_view(tensor: Any) -> Any:
    if tensor.is_cuda:
        raise ArgumentError("a CUDA tensor cannot be read by the CPU: pass tensor.cpu()")
    tensor = tensor.detach()
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _BITS:
        return tensor.numpy()
    import torch

    return tensor.view(getattr(torch, _BITS[name])).numpy().view(getattr(ml_dtypes, name))
