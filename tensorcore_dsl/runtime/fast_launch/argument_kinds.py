"""Kinds of arguments that the fast launch path reads. A launch function is compiled for kinds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.runtime.arguments import integer_range, parameter_code
from tensorcore_dsl.runtime.array_interop import capsule_pointer, grad_mode
from tensorcore_dsl.runtime.fast_launch.memory_layout import ExchangeAPI


class Tensor(NamedTuple):
    """Array of a class with a DLPack exchange API: addresses of two of its functions.

    grad_mode: see array_interop.grad_mode.
    """

    cls: type
    tensor_from_object: int
    current_stream: int
    grad_mode: Callable[[], bool] | None = None


class AttributeArray(NamedTuple):
    """Array that is read by its attributes: paths to the pointer, the strides and the device.

    A name that ends in "()" is a method.

    Attributes
    ----------
    own_stream : bool
        Its library has a current stream, which launches join.
    stride_unit : tuple
        Path to the bytes that a stride counts; () where it counts bytes.
    """

    cls: type
    pointer: tuple[str, ...]
    strides: str = "strides"
    device: tuple[str, ...] = ()
    own_stream: bool = False
    stride_unit: tuple[str, ...] = ()
    grad_mode: Callable[[], bool] | None = None


class Integer(NamedTuple):
    """A Python int from `low` to `high`, stored as `code` of `struct`."""

    code: str
    low: int
    high: int
    cls: type = int


class Real(NamedTuple):
    """A Python float or int, stored as f32 ("f") or f64 ("d")."""

    code: str
    cls: type = float


class Bool(NamedTuple):
    """True or False, stored as a 32-bit 1 or 0."""

    cls: type = bool


class NumpyScalar(NamedTuple):
    """A NumPy scalar of `size` bytes, stored as `code` of `struct`."""

    cls: type
    size: int
    code: str


class Same(NamedTuple):
    """The object that a plan was made with."""


Array = Tensor | AttributeArray
Kind = Array | Integer | Real | Bool | NumpyScalar | Same

_TORCH = (("data_ptr()",), "stride()", ("get_device()",), True, ("element_size()",))
_ATTRIBUTES: dict[str, tuple[Any, ...]] = {
    "torch.Tensor": _TORCH,
    "torch.nn.parameter.Parameter": _TORCH,
    "cupy.ndarray": (("data", "ptr"), "strides", ("data", "device_id"), True),
    "numba.cuda.cudadrv.devicearray.DeviceNDArray": (("gpu_data", "device_ctypes_pointer", "value"),),
}


def kinds_of(
    args: Sequence[Any], declared: Sequence[DType | None], alive: bool = False
) -> tuple[Kind, ...] | None:
    """Kinds of the arguments; None if the fast path cannot read one of them.

    alive: the arguments live as long as the plan, so identity tells arrays apart that never
    change.
    """
    kinds = [_kind(arg, dtype, alive) for arg, dtype in zip(args, declared, strict=True)]
    return None if None in kinds else tuple(kinds)  # type: ignore[arg-type]


def array_kind(cls: type) -> Array | None:
    """How machine code reads arrays of a class; None if it cannot."""
    attributes = _ATTRIBUTES.get(f"{cls.__module__}.{cls.__qualname__}")
    if attributes is None:
        return None
    kind = _exchange(cls) or AttributeArray(cls, *attributes)
    return kind._replace(grad_mode=grad_mode(cls))


def has_stream(kind: Kind) -> bool:
    """True if the library of an array has a current stream."""
    return isinstance(kind, Tensor) or (isinstance(kind, AttributeArray) and kind.own_stream)


def _kind(arg: Any, declared: DType | None, alive: bool) -> Kind | None:
    cls: Any = type(arg)
    if arg is None:
        return Same()
    if cls is bool:
        return Bool() if declared in (None, dtypes.pred) else None
    if cls is int and (declared is None or declared.is_integer):
        return _integer(arg, declared or dtypes.s32)
    if cls in (int, float):
        code = {"f32": "f", "f64": "d"}.get("f32" if declared is None else declared.name)
        return Real(code, cls) if code else None
    if isinstance(arg, np.generic):
        return _numpy_scalar(arg, declared)
    kind = array_kind(cls) if declared is None else None
    unchanging = isinstance(kind, AttributeArray) and not kind.own_stream
    return Same() if alive and unchanging else kind


def _integer(value: int, dtype: DType) -> Integer | None:
    low, high = integer_range(dtype)
    if not low <= value <= high:
        return None
    return Integer(parameter_code(dtype), max(low, -(2**63)), min(high, 2**63 - 1))


def _numpy_scalar(value: np.generic, declared: DType | None) -> NumpyScalar | None:
    """The bytes of a NumPy scalar follow the head of the object."""
    try:
        dtype = dtypes.from_numpy(value.dtype)
        code = parameter_code(dtype)
    except (ArgumentError, KeyError):
        return None
    size = value.dtype.itemsize
    held = ctypes.string_at(id(value) + object.__basicsize__, size)
    same = declared in (None, dtype) and held == value.tobytes()
    return NumpyScalar(type(value), size, code) if same else None


@cache
def _exchange(cls: type) -> Tensor | None:
    """The kind of a class that has a complete DLPack exchange API."""
    capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    try:
        address = capsule_pointer(capsule, b"dlpack_exchange_api")
    except (ValueError, TypeError, AttributeError):
        return None
    api = ExchangeAPI.from_address(address)
    if api.major != 1 or not (api.tensor_from_object and api.current_stream):
        return None
    return Tensor(cls, api.tensor_from_object, api.current_stream)
