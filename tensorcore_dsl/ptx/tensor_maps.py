"""Tensor maps as arguments of kernels in PTX, alone or in a struct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.interpreter.memory.map_objects import TYPES
from tensorcore_dsl.isa.tensormap import OBJECT

SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class TensorMap:
    """The tensor map (CUtensorMap) of an array, whose last axis is contiguous.

    Attributes
    ----------
    array : array
        In global memory.
    box : tuple of int
        The elements of one copy along each axis of the array.
    swizzle : int
        Bytes: 0, 32, 64 or 128.
    """

    array: Any
    box: tuple[int, ...]
    swizzle: int = 0

    def argument(self, array: np.ndarray, name: str) -> TensorMapArgument:
        """For the emulator; `array` is that of the map on the host."""
        axes = tuple(reversed(range(array.ndim)))
        return TensorMapArgument(array, name, axes, self.box[::-1], self.swizzle, array.flags.writeable)

    def object(self, array: np.ndarray) -> np.ndarray:
        """Its 128 bytes, as the emulator has them in memory."""
        found, dims = np.zeros(1, OBJECT), array.ndim
        found["global_address"] = array.__array_interface__["data"][0]
        found["rank"], found["swizzle_mode"] = dims - 1, SWIZZLES.index(self.swizzle)
        found["elemtype"] = TYPES.index(f"u{8 * array.itemsize}")
        found["global_dim"][0, :dims], found["box_dim"][0, :dims] = array.shape[::-1], self.box[::-1]
        found["global_stride"][0, : dims - 1] = array.strides[-2::-1]
        found["element_stride"] = 1
        return found.view(np.uint8)


@public
def tensor_map(array: Any, box: Sequence[int], swizzle: int = 0) -> TensorMap:
    """A tensor map as the argument of a kernel in PTX.

    Parameters
    ----------
    array : array
        In global memory; its last axis is contiguous.
    box : sequence of int
        The elements of one copy along each axis of the array.
    swizzle : int
        Bytes: 0, 32, 64 or 128.

    Returns
    -------
    TensorMap
        For a parameter of 128 bytes, or for a place in a struct.

    Raises
    ------
    ArgumentError
        Another swizzle, or a box with another number of axes.

    Examples
    --------
    >>> tc.ptx.tensor_map(np.zeros((256, 64), np.float16), (128, 64), 128).box
    (128, 64)
    """
    if swizzle not in SWIZZLES:
        raise ArgumentError(f"a swizzle of {swizzle} bytes; allowed are 0, 32, 64 and 128")
    if len(box) != len(array.shape):
        raise ArgumentError(f"a box of {len(box)} axes for an array of {len(array.shape)}")
    return TensorMap(array, tuple(map(int, box)), swizzle)


def on_arrays(values: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Values whose arrays, also those of tensor maps, are others in the same order."""
    return [
        replace(x, array=array) if isinstance(x, TensorMap) else array
        for x, array in zip(values, arrays, strict=True)
    ]
