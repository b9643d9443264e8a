"""Arguments of a launch as the interpreter takes them, and where their arrays lie in memory.

Array i of a launch becomes allocation i, in the middle of the virtual addresses from
`(i + 1) << 40` on; its bytes are those of the array itself. Allocations are far apart, so an access
that leaves one of them is always caught.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.memory.access_loops import COLUMNS, REAL, SIZE, SPACE_BITS, VIRTUAL

MAP_SHIFT, MAP_BASE = 40, 0xF000  # tensor map i has the address (MAP_BASE + i) << MAP_SHIFT
_ALIGNMENT = 256  # bytes; alignment of an allocation on a device


@dataclass(frozen=True)
class GlobalPointer:
    """An argument of a launch: the data pointer of an array."""

    array: np.ndarray
    name: str
    writable: bool = True


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map of an array: its `axes`, the innermost first, and the `box` of one copy."""

    array: np.ndarray
    name: str
    axes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    writable: bool = True


class Arguments:
    """The arrays of a launch as allocations of global memory."""

    def __init__(
        self, pointers: Sequence[GlobalPointer], maps: Sequence[TensorMapArgument] = ()
    ) -> None:
        self.pointers, self.maps = list(pointers), list(maps)
        self.table = np.zeros((max(len(self.pointers), 1), COLUMNS), np.int64)
        for i, pointer in enumerate(self.pointers):
            self.table[i] = _allocation(i, pointer)

    def address(self, index: int) -> int:
        """The virtual address of element 0 of array `index`."""
        start = self.pointers[index].array.__array_interface__["data"][0]
        row = self.table[index]
        return int(row[VIRTUAL] + start - row[REAL])

    def describe(self, address: int) -> str:
        """What lies at or near a virtual address, for messages."""
        index = (address >> SPACE_BITS) - 1
        if not 0 <= index < len(self.pointers):
            return "it belongs to no argument of the launch"
        pointer, row = self.pointers[index], self.table[index]
        offset, size = address - int(row[VIRTUAL]), int(row[SIZE])
        array = pointer.array
        return (
            f"byte {offset} of argument {pointer.name!r}, which has bytes 0 to {size - 1} "
            f"(shape {array.shape}, dtype {array.dtype})"
        )


def _allocation(index: int, pointer: GlobalPointer) -> tuple[int, int, int, int]:
    """(virtual start, bytes, real start, writable); keeps the alignment within the base array."""
    array = pointer.array
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"argument {pointer.name!r} is a {type(array).__name__}, not a NumPy array"
        )
    low, high = _span(array)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    shift = (low - _span(owner)[0]) % _ALIGNMENT
    writable = pointer.writable and array.flags.writeable
    start = ((2 * index + 3) << (SPACE_BITS - 1)) + shift
    return start, high - low, low, int(writable)


def _span(array: np.ndarray) -> tuple[int, int]:
    """First and past-the-end real address of an array's elements."""
    start = array.__array_interface__["data"][0]
    if array.size == 0:
        return start, start
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = start + sum(s for s in steps if s < 0)
    return low, start + sum(s for s in steps if s > 0) + array.itemsize
