"""Exact tests for overlap of arrays in memory, for views of any strides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description
from tensorcore_dsl.kernels.host.arguments import described, present

# Steps of NumPy's search for a common address. Beyond, arrays count as overlapping.
MAX_WORK: Any = 1 << 20


def check_written(read: Mapping[str, Description], in_place: str = "", **results: Any) -> None:
    """Refuse arrays for results that overlap themselves, each other or an operand.

    in_place: the operand that may be `out` itself: the kernel reads each element before it writes
    that element. results: arrays by name; None is a new array.
    """
    check_apart(described(**present(**results)), read, in_place)


def check_apart(
    written: Mapping[str, Description], read: Mapping[str, Description], in_place: str = ""
) -> None:
    """Refuse results, already described, as `check_written` does."""
    others = dict(read)
    for name, x in written.items():
        if overlaps_itself(_memory(x)):
            raise tc.ArgumentError(
                f"{name} has shape {x.shape} and strides {x.strides}: several of its elements lie "
                f"at one address, so they cannot hold different results; pass a copy"
            )
        for operand, y in others.items():
            if name == "out" and operand == in_place and is_same(x, y):
                continue
            if x.on_host == y.on_host and share_memory(_memory(x), _memory(y)):
                what = "is written too" if operand in written else f"is read while {name} is written"
                allowed = f"; only {in_place} may be out itself" if in_place else ""
                raise tc.ArgumentError(
                    f"{name} shares memory with {operand}, which {what}: pass another array, or a "
                    f"copy of {operand}{allowed}"
                )
        others[name] = x


def is_same(x: Description, y: Description) -> bool:
    """Whether two arrays are one: elements of one type at the same addresses, in one order."""
    kinds = x.type.dtype == y.type.dtype and x.on_host == y.on_host
    return kinds and (x.pointer, x.shape, x.strides) == (y.pointer, y.shape, y.strides)


def overlaps_itself(x: np.ndarray) -> bool:
    """Whether two elements of an array share bytes."""
    if x.ndim == 0 or x.size < 2:
        return False
    return share_memory(x[:1], x[1:]) or overlaps_itself(x[0, ...])  # x[0] may read an element


def share_memory(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether an element of one array shares bytes with one of the other."""
    try:
        return np.shares_memory(x, y, max_work=MAX_WORK)
    except np.exceptions.TooHardError:
        return True


def _memory(x: Description) -> np.ndarray:
    """NumPy array with the addresses of an array. No element is read, so a GPU's array is fine."""
    size = x.type.dtype.itemsize
    interface: dict[str, Any] = {
        "data": (x.pointer, True),
        "shape": x.shape,
        "typestr": f"|V{size}",
        "version": 3,
        "strides": tuple(stride * size for stride in x.strides),
    }
    return np.asarray(type("Memory", (), {"__array_interface__": interface})())
