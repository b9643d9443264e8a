"""Boxes of arrays in global memory, as bulk copies and reductions move them.

In shared memory the rows of a box are contiguous; with a swizzle their distance is its span, as on
an H200. A box always has five axes, the innermost first; missing axes have one element.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.memory.arguments import TensorMapArgument

RANK = 5
EXTENT, STRIDE, BOX, START = range(4)  # rows of a plan: elements, bytes, elements, coordinates
CHUNK = 16  # bytes that a swizzle moves as a unit


@dataclass(frozen=True)
class TensorBox:
    """A box, and the array that it is cut from.

    real: real address of the array's first element. plan: (4, RANK). element: bytes of an element.
    mask: address bits that the swizzle changes, 0 for none. dtype: NumPy type of the elements; for
    contiguous bytes the name of an element type, or None.
    """

    name: str
    real: int
    plan: np.ndarray
    element: int
    mask: int
    writable: bool
    dtype: Any = None

    @classmethod
    def of(cls, argument: TensorMapArgument) -> TensorBox:
        """The box of a tensor map, at no coordinates yet."""
        array, rank = argument.array, len(argument.axes)
        plan = np.ones((4, RANK), np.int64)
        plan[EXTENT, :rank] = [array.shape[axis] for axis in argument.axes]
        plan[STRIDE, :rank] = [array.strides[axis] for axis in argument.axes]
        plan[BOX, :rank] = argument.box
        mask = argument.swizzle - 16 if argument.swizzle else 0
        real = array.__array_interface__["data"][0]
        name, writable = f"argument {argument.name!r}", argument.writable and array.flags.writeable
        return cls(name, real, plan, array.itemsize, mask, writable, array.dtype)

    @classmethod
    def contiguous(cls, name: str, real: int, size: int, dtype: Any = None) -> TensorBox:
        """`size` contiguous bytes."""
        plan = np.ones((4, RANK), np.int64)
        plan[EXTENT, 0] = plan[BOX, 0] = size
        plan[START] = 0
        return cls(name, real, plan, 1, 0, True, dtype)

    def at(self, coordinates: tuple[int, ...]) -> TensorBox:
        """The box that starts at these coordinates."""
        plan = self.plan.copy()
        plan[START] = 0
        plan[START, : len(coordinates)] = coordinates
        return replace(self, plan=plan)

    @property
    def size(self) -> int:
        """Bytes of the whole box, including the part outside of the array."""
        return int(self.plan[BOX].prod()) * self.element

    @property
    def row(self) -> int:
        """Bytes of a row of the box."""
        return int(self.plan[BOX, 0]) * self.element

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next in shared memory."""
        return self.mask + CHUNK if self.mask else self.row

    @property
    def reach(self) -> int:
        """Bytes of shared memory that the box spans."""
        return self.size // self.row * self.pitch

    @property
    def inside(self) -> int:
        """Bytes of the box that lie inside the array."""
        first, last = self.clipped()
        return int(np.maximum(last - first, 0).prod()) * self.element

    def clipped(self) -> tuple[np.ndarray, np.ndarray]:
        """First and past-the-end coordinates of the part inside the array."""
        start = self.plan[START]
        return np.maximum(start, 0), np.minimum(start + self.plan[BOX], self.plan[EXTENT])

    def chunks(self, address: int) -> np.ndarray:
        """The 16-byte chunks of shared memory that the box occupies at `address`, in box order."""
        rows, bytes = np.arange(0, self.reach, self.pitch), np.arange(0, self.row, CHUNK)
        places = (address + rows[:, None] + bytes).ravel()
        return np.asarray((places ^ (places >> 3 & self.mask)) // CHUNK)


def real_bytes(real: int, size: int) -> np.ndarray:
    """Real memory as an array of bytes."""
    memory: Any = (ctypes.c_uint8 * size).from_address(real)
    return np.frombuffer(memory, np.uint8)
