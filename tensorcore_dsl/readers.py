"""Reading arguments fast: from an argument to (key, value), by a function for its class.

Arguments with equal keys have equal types, shapes and strides, so all that was prepared for one
fits the other; the value, a pointer or a number, is what may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from tensorcore_dsl.arguments import checked_f32, describe, integer_type, number_bits
from tensorcore_dsl.protocols import is_torch

Reader = Callable[[Any], tuple[Hashable, Any]]


def _read_torch(tensor: Any) -> tuple[Hashable, Any]:
    pointer = tensor.data_ptr()
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device(), pointer & 15), pointer


def _read_numba(array: Any) -> tuple[Hashable, Any]:
    pointer = array.device_ctypes_pointer.value or 0
    return (array.dtype, array.shape, array.strides, pointer & 15), pointer


def _read_int(value: int) -> tuple[Hashable, Any]:
    if -2147483648 <= value < 2147483648:
        return "s32", value
    return integer_type(value).name, value


def _read_float(value: float) -> tuple[Hashable, Any]:
    return "f32", checked_f32(value)


def _read_bool(value: bool) -> tuple[Hashable, Any]:
    return "pred", value


def _read_number(value: np.generic) -> tuple[Hashable, Any]:
    return value.dtype, number_bits(value)


def _read_any(tag: object, obj: Any) -> tuple[Hashable, Any]:
    found = describe(obj)
    return (tag, found.type, found.shape, found.strides, found.device, found.stream), found.value


class _Readers(dict[type, Reader]):
    """The reader of each class met so far."""

    def __missing__(self, cls: type) -> Reader:
        reader: Reader
        if cls in (bool, np.bool_):
            reader = _read_bool
        elif cls is int:
            reader = _read_int
        elif cls is float:
            reader = _read_float
        elif issubclass(cls, np.generic):
            reader = _read_number
        elif (
            is_torch(cls)
            and cls.__module__.startswith("torch.")
            and cls.__name__ in ("Tensor", "Parameter")
        ):
            reader = _read_torch
        elif cls.__module__.startswith("numba.cuda") and cls.__name__ == "DeviceNDArray":
            reader = _read_numba
        else:
            reader = partial(_read_any, cls)
        self[cls] = reader
        return reader


READERS = _Readers()
