"""What a launch in machine code (`native`) reads: kinds of arguments, and words of memory.

Memory that the code reads, all of it 64-bit words:

    table   first plan; the function for arguments that no plan fits
    plan    next plan; in use; stream's place; whether to ask for the stream; config, function,
            parameters and extra of cuLaunchKernelEx; what to call with its error; for each
            argument ARGUMENT_WORDS, and for arrays their extents and strides
    images  the pointer whose maps are in place; how many pointers are known; how many maps each
            has, and their places; then each pointer with the addresses of its maps
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

WORD = 8
FIRST, OTHERWISE = 0, 1  # of a table
NEXT, BUSY, STREAM_PLACE, ASK_STREAM, CONFIG, FUNCTION, PARAMETERS, EXTRA, FAILED = range(9)
PLAN_WORDS = 9
PLACE, IDENTITY, DEVICE, DTYPE, ALIGN, IMAGES = range(6)  # of an argument
ARGUMENT_WORDS = 6
LAST, COUNT = 0, 1  # of images
IMAGES_WORDS = 2
ALIGN_MASK = 15
CUDA = 2  # DLDeviceType
MOST_AXES = 8  # of a tensor in a key

# DLTensor and DLPackExchangeAPI (https://dmlc.github.io/dlpack), by bytes.
DL_DATA, DL_DEVICE, DL_NDIM, DL_DTYPE, DL_SHAPE, DL_STRIDES, DL_BYTE_OFFSET, DL_BYTES = (
    0, 8, 16, 20, 24, 32, 40, 48,
)  # fmt: skip
_MAJOR, _API_TENSOR, _API_STREAM = 0, 40, 48


# What can be read.


class Exchange(NamedTuple):
    """Functions of a library's DLPack exchange API: PyObject* to DLTensor, and the stream."""

    tensor: int
    stream: int


class Tensor(NamedTuple):
    """An array of a class that has an exchange API."""

    cls: type
    ndim: int
    exchange: Exchange


class NumbaArray(NamedTuple):
    """A device array of Numba's class: read by its attributes."""

    cls: type
    ndim: int


class Integer(NamedTuple):
    """A Python int from `low` to `high`, written as `code` of `struct`."""

    code: str
    low: int
    high: int


class Real(NamedTuple):
    """A Python float; as f32, if it fits ("f"), or f64 ("d")."""

    code: str


class Same(NamedTuple):
    """The very object that a plan was made with."""


Kind = Tensor | NumbaArray | Integer | Real | Same


@cache
def exchange_of(cls: type) -> Exchange | None:
    """The exchange API of a class of arrays, if it has one that is complete."""
    capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    try:
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
        api = get(capsule, b"dlpack_exchange_api")
    except (ValueError, TypeError, AttributeError):
        return None
    if not api or ctypes.c_uint32.from_address(api + _MAJOR).value != 1:
        return None
    tensor, stream = (
        ctypes.c_uint64.from_address(api + at).value for at in (_API_TENSOR, _API_STREAM)
    )
    return Exchange(tensor, stream) if tensor and stream else None


class Facts(NamedTuple):
    """An array as the machine code sees it.

    `device` and `dtype` are DLPack's, as integers, or 0 and where NumPy's object lies; strides
    are in elements, or in bytes.
    """

    pointer: int
    device: int
    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def facts_of(kind: Kind, argument: Any) -> Facts | None:
    """What the machine code sees of an argument; None where it is no array that it reads."""
    if isinstance(kind, Tensor):
        return tensor_facts(argument, kind.exchange)
    return numba_facts(argument) if isinstance(kind, NumbaArray) else None


HELD = ("gpu_data", "dtype", "shape", "strides")  # attributes that Numba's arrays hold themselves


def numba_facts(array: Any) -> Facts | None:
    """A device array of Numba as its attributes tell it; None if they are not as they were."""
    if not all(name in vars(array) for name in HELD):
        return None
    pointer = array.device_ctypes_pointer.value
    numbers = (*array.shape, *array.strides)
    if not pointer or any(type(number) is not int for number in numbers):
        return None
    return Facts(pointer, 0, id(array.dtype), array.shape, array.strides)


def tensor_facts(array: Any, exchange: Exchange) -> Facts | None:
    """A tensor as its library's exchange API tells it; None where it does not."""
    buffer = (ctypes.c_uint64 * (DL_BYTES // WORD))()
    read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(exchange.tensor)
    at = ctypes.addressof(buffer)
    try:
        failed = read(array, at)
    except Exception:  # whatever the library raises
        return None
    ndim = ctypes.c_int32.from_address(at + DL_NDIM).value
    shape, strides = buffer[DL_SHAPE // WORD], buffer[DL_STRIDES // WORD]
    if failed or (ndim and not (shape and strides)):
        return None
    return Facts(
        buffer[DL_DATA // WORD] + buffer[DL_BYTE_OFFSET // WORD],
        buffer[DL_DEVICE // WORD],
        ctypes.c_uint32.from_address(at + DL_DTYPE).value,
        tuple((ctypes.c_int64 * ndim).from_address(shape)) if ndim else (),
        tuple((ctypes.c_int64 * ndim).from_address(strides)) if ndim else (),
    )


def argument_at(kinds: Sequence[Kind], i: int) -> int:
    """The word of a plan where argument `i` begins."""
    before = (2 * kind.ndim for kind in kinds[:i] if isinstance(kind, (Tensor, NumbaArray)))
    return PLAN_WORDS + ARGUMENT_WORDS * i + sum(before)
