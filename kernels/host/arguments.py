"""Single arguments of the host functions: arrays, numbers, element types, streams."""

from __future__ import annotations

import math
from contextlib import suppress
from reprlib import repr as brief
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import CURRENT_DEVICE, Description, as_dtype, current_target, describe, from_numpy
from tensorcore_dsl.kernels.host.arrays import library_of

F32_MAX = float(np.finfo(np.float32).max)


def present(**arrays: Any) -> dict[str, Any]:
    """Select the optional arrays that are not None."""
    return {name: x for name, x in arrays.items() if x is not None}


def described(**arrays: Any) -> dict[str, Description]:
    """Describe arrays by name; refuse other objects.

    All arrays must lie where kernels run. NumPy arrays are copied there.
    """
    descriptions = {name: describe_array(x, name) for name, x in arrays.items()}
    for name, x in descriptions.items():
        _check_reachable(name, x, arrays[name])
    unnamed = (None, CURRENT_DEVICE)
    devices = {x.device: name for name, x in descriptions.items() if x.device not in unnamed}
    if len(devices) > 1:
        places = ", ".join(f"{name} on GPU {device}" for device, name in devices.items())
        raise tc.ArgumentError(f"the arrays lie on several GPUs: {places}")
    return descriptions


def vector_bytes(x: Description, otherwise: int = 1) -> int:
    """Bytes of the widest vectors of a row-major array; `otherwise` of other arrays."""
    return x.type.align if x.type.unit[-1] else otherwise


def describe_array(x: Any, name: str) -> Description:
    """Describe an array; refuse numbers, None, lists and other objects."""
    if is_array(x):
        return describe(x, name)
    as_list = "; np.asarray(x, dtype) makes one of a list" if isinstance(x, (list, tuple)) else ""
    raise tc.ArgumentError(
        f"{name} is {shown(x)}; it must be an array of NumPy, Numba, torch or "
        f"CuPy, or another one with __cuda_array_interface__ or __dlpack__{as_list}"
    )


def is_array(x: Any) -> bool:
    """Whether an object offers elements in memory by one of the protocols."""
    if isinstance(x, (np.ndarray, np.generic)) or hasattr(type(x), "__dlpack__"):
        return not isinstance(x, np.generic)
    return hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__")


def shown(x: Any) -> str:
    """Show an object and its class, for messages."""
    return f"{brief(x)} ({_class_name(x)})"


def _class_name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def _check_reachable(name: str, x: Description, array: Any) -> None:
    """Refuse an array that kernels of the current target do not reach."""
    if current_target() == "cpu":
        if not x.on_host and not hasattr(array, "copy_to_host"):
            raise tc.ArgumentError(
                f"{name} is a {_class_name(array)} on a GPU, and the target is the CPU: copy it "
                f"to the host, or choose the target 'cuda'"
            )
    elif x.on_host and not isinstance(array, np.ndarray):
        raise tc.ArgumentError(
            f"{name} is a {_class_name(array)} in host memory, and the kernel runs on the GPU: "
            f"move it there, or pass a NumPy array, which is copied"
        )


def element_type(dtype: Any) -> Any:
    """Convert a tc.DType, a dtype of NumPy or torch, or the name of one, to an element type.

    Other objects are returned as they are.
    """
    if isinstance(dtype, tc.DType) or dtype is None:
        return dtype
    if isinstance(dtype, str) or library_of(dtype) == "torch":
        with suppress(tc.OperandError):
            return as_dtype(dtype)
    with suppress(TypeError, ValueError):  # also ArgumentError, which is a TypeError
        return from_numpy(dtype)
    return dtype


def number(name: str, value: Any, otherwise: str = "") -> float:
    """Convert a number to a float; refuse text, bool and arrays, which Python's float() takes."""
    scalar = isinstance(value, (int, float, np.generic)) and not isinstance(value, (bool, np.bool_))
    if scalar and not np.iscomplexobj(value):
        with suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise tc.ArgumentError(f"{name} is {shown(value)}; it must be a number{otherwise}")


def f32_number(name: str, value: Any, what: str = "the product") -> float:
    """Convert a number that f32 holds; refuse larger finite ones. Infinities and NaN pass."""
    converted = number(name, value)
    if math.isfinite(converted) and abs(converted) > F32_MAX:
        raise tc.ArgumentError(f"{name} is {converted}, beyond the range of f32, which scales {what}")
    return converted


def on_host(array: Any) -> np.ndarray:
    """An array in host memory, as one of NumPy."""
    return np.asarray(array) if hasattr(array, "__array__") else np.from_dlpack(array)


def check_ascends(name: str, offsets: np.ndarray) -> None:
    """Refuse offsets that fall."""
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        g = int(falls[0])
        raise tc.ArgumentError(
            f"{name} must ascend; {name}[{g}] is {offsets[g]} and {name}[{g + 1}] {offsets[g + 1]}"
        )
