"""Structures that the machine code of a launch shares with Python.

All fields are 64-bit words. Python writes them by name, machine code uses their offsets.

A table belongs to one launch function. It points to a linked list of plans. An `Argument` for each
kernel argument follows each `Plan` in memory.
"""

from __future__ import annotations

import ctypes
import inspect
import types
from typing import Any

WORD = 8
MAX_AXES = 8  # of an array that machine code reads
ALIGNMENT_MASK = 15  # alignment beyond 16 bytes makes no difference to a kernel


def words(*names: str) -> Any:
    """A ctypes structure of 64-bit words."""
    fields = [(name, ctypes.c_uint64) for name in names]
    return type("Words", (ctypes.Structure,), {"_fields_": fields})


Table = words(
    "first_plan",
    "fallback",  # Python function that takes what no plan fits
)
Plan = words(
    "next_plan",
    "busy",  # a launch is writing its memory
    "key",  # address of the words that fitting arguments must equal
    "key_bytes",
    "stream_at",  # address of the stream in CUlaunchConfig
    "stream_function",  # Python function that returns the current stream
    "config",
    "function",
    "parameters",
    "extra",  # arguments of cuLaunchKernelEx
    "on_error",  # Python function that takes the driver's error code
)
Argument = words(
    "value_at",  # address of the parameter that holds the pointer or number
    "maps",  # address of a Maps structure, or 0
)
Maps = words(
    "pointer",  # array whose maps are in place
    "entries",  # address of entries: pointer of an array, then addresses of its maps
    "entries_end",
    "places",  # address of a list: where cuLaunchKernelEx reads the address of each map
    "count",  # maps of an entry
)


class ExchangeAPI(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.3 (https://dmlc.github.io/dlpack)."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_uint64),
        ("allocate", ctypes.c_uint64), ("managed_from_object", ctypes.c_uint64),
        ("object_from_managed", ctypes.c_uint64), ("tensor_from_object", ctypes.c_uint64),
        ("current_stream", ctypes.c_uint64),
    )  # fmt: skip


class Getter(ctypes.Structure):
    """CPython's PyGetSetDef: the C function get(object, closure) of an attribute."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("get", ctypes.c_uint64),
        ("set", ctypes.c_uint64),
        ("doc", ctypes.c_void_p),
        ("closure", ctypes.c_uint64),
    )


def getter_of(cls: type, name: str) -> Getter | None:
    """How C code computes an attribute of the instances of a class; None if it does not."""
    attribute = inspect.getattr_static(cls, name, None)
    if not isinstance(attribute, types.GetSetDescriptorType):
        return None
    # PyGetSetDescrObject: the head of an object, d_type, d_name, d_qualname, d_getset.
    address = ctypes.c_uint64.from_address(id(attribute) + object.__basicsize__ + 3 * WORD).value
    return Getter.from_address(address)
