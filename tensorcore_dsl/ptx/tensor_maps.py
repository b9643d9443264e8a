"""Tensor maps as arguments of PTX kernels, alone or in a struct."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.interpreter.memory.map_objects import TYPES
from tensorcore_dsl.ir.verify import SWIZZLES
from tensorcore_dsl.isa.tensormap import OBJECT, VIRTUAL
from tensorcore_dsl.runtime.arguments import describe

MAX_BOX = 256  # elements along an axis, of cuTensorMapEncodeTiled


@dataclass(frozen=True)
class TensorMap:
    """The tensor map (CUtensorMap) of an array with a contiguous last axis.

    Attributes
    ----------
    array : array
        In global memory.
    box : tuple of int
        The elements of one copy along each axis of the array.
    swizzle : int
        Bytes: 0, 32, 64 or 128.
    nan_fill : bool
        Elements outside of the array are NaN, not zeros.
    """

    array: Any
    box: tuple[int, ...]
    swizzle: int = 0
    nan_fill: bool = False

    def on_host(self, view: Callable[[Any], Any]) -> TensorMap:
        """Return the map of a NumPy view of the array."""
        return replace(self, array=view(self.array))

    def argument(self, name: str) -> TensorMapArgument:
        """Return the emulator's argument for parameter `name`."""
        array = self.array
        axes = tuple(reversed(range(array.ndim)))
        box, writable = self.box[::-1], array.flags.writeable
        return TensorMapArgument(array, name, axes, box, self.swizzle, writable, nan_fill=self.nan_fill)

    def object(self, address: int) -> np.ndarray:
        """Return the map's 128 bytes in the emulator's format. `address`: of the array in this launch."""
        array = self.array
        tensor_map, rank = np.zeros(1, OBJECT), array.ndim
        tensor_map["global_address"] = VIRTUAL | address
        tensor_map["rank"], tensor_map["swizzle_mode"] = rank - 1, SWIZZLES.index(self.swizzle)
        tensor_map["elemtype"] = TYPES.index(f"{'uf'[self.nan_fill]}{8 * array.itemsize}")
        tensor_map["global_dim"][0, :rank], tensor_map["box_dim"][0, :rank] = (
            array.shape[::-1],
            np.array(self.box[::-1]) - 1,
        )
        tensor_map["global_stride"][0, : rank - 1] = np.array(array.strides[-2::-1]) // 16
        tensor_map["element_stride"], tensor_map["fill_mode"] = 1, self.nan_fill
        return tensor_map.view(np.uint8)


@public
def tensor_map(array: Any, box: Sequence[int], swizzle: int = 0, nan_fill: bool = False) -> TensorMap:
    """Make a tensor map that a PTX kernel takes as an argument.

    Parameters
    ----------
    array : array
        In global memory; its last axis is contiguous.
    box : sequence of int
        The elements of one copy along each axis of the array.
    swizzle : int
        Bytes: 0, 32, 64 or 128.
    nan_fill : bool
        Elements outside of the array are NaN, not zeros; of f16, bf16, f32 and f64.

    Returns
    -------
    TensorMap
        The argument for a parameter of 128 bytes, or for a field of a struct.

    Raises
    ------
    ArgumentError
        The swizzle, the box or a stride is not allowed, box and array differ in their number of axes, or
        the array's type has no NaN to fill with.

    Examples
    --------
    >>> tc.ptx.tensor_map(np.zeros((256, 64), np.float16), (128, 64), 128).box
    (128, 64)
    """
    if swizzle not in SWIZZLES:
        raise ArgumentError(f"a swizzle of {swizzle} bytes; allowed are 0, 32, 64 and 128")
    if len(box) != len(array.shape):
        raise ArgumentError(f"a box of {len(box)} axes for an array of {len(array.shape)}")
    described = describe(array)
    dtype = described.type.dtype
    if not all(1 <= elements <= MAX_BOX for elements in box):
        raise ArgumentError(f"a box of {tuple(box)}; it has 1 to {MAX_BOX} elements along each axis")
    outer = zip(described.shape[:-1], described.strides[:-1], strict=True)
    if any(extent > 1 and stride * dtype.itemsize % 16 for extent, stride in outer):
        raise ArgumentError(
            f"the array has strides of {described.strides} elements; a tensor map takes multiples of 16 bytes"
        )
    if nan_fill and not (dtype.is_float and dtype.itemsize > 1):
        raise ArgumentError(f"nan_fill is of f16, bf16, f32 and f64; the array holds {dtype}")
    return TensorMap(array, tuple(map(int, box)), swizzle, nan_fill)
