"""Tensor maps (PTX 5.5.8): descriptions of arrays for TMA, encoded on the host.

`tiled` checks an array against a kernel's `TensorMap`. The driver (`launch.Driver.encode_tiled`)
encodes the result and a pointer into 128 bytes, which are a kernel parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import ArgumentError, listing
from tensorcore_dsl.ir.nodes import Im2col, TensorMap
from tensorcore_dsl.ir.verify import complaints_about_map
from tensorcore_dsl.runtime.arguments import ArrayType, Description, array_element_bits

MAP_BYTES = 128
MAP_ALIGN = 64
ADDRESS_ALIGN = 16  # of the array's first element, and of its strides
MAX_STRIDE = 2**40  # exclusive, bytes

# CUtensorMapDataType. Copies move bits: TMA needs the type for reductions, and 8 bits have none.
DATA_TYPES = {
    **dict.fromkeys(("u8", "s8", "b8", "pred", "e4m3", "e5m2", "e3m2", "e2m3"), 0),
    **dict.fromkeys(("ue8m0", "ue4m3"), 0),
    **dict.fromkeys(("u16", "s16", "b16"), 1),
    **{"u32": 2, "b32": 2, "s32": 3, "u64": 4, "b64": 4, "s64": 5},
    **{"f16": 6, "f32": 7, "tf32": 7, "f64": 8, "bf16": 9},
}
TENSOR_MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: CUtensorMapSwizzle
L2_PROMOTION = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B: 256 bytes read few rows 4 % slower


class Tiled(NamedTuple):
    """Arguments of the driver's tensor-map encoder, without the array's address.

    `extents` and `box` count elements, the innermost axis first. `strides` are in bytes, without the
    innermost axis. In im2col mode `box` counts channels and pixels.
    """

    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    im2col: Im2col | None = None
    nan_fill: bool = False


def tiled(array: Description, tensor_map: TensorMap, name: str) -> Tiled:
    """Describe `array` for the driver's encoder; ArgumentError if TMA cannot read it as `tensor_map`."""
    for complaint in _complaints(array, tensor_map):
        raise ArgumentError(f"{name}: {complaint}", tensor_map.loc)
    size = array_element_bits(array.type.dtype) // 8
    extents = tuple(array.shape[axis] for axis in tensor_map.axes)
    strides: list[int] = []
    reach = extents[0] * size
    for axis, extent in zip(tensor_map.axes[1:], extents[1:], strict=True):
        used = array.strides[axis] * size if extent > 1 else _rounded(reach)
        strides.append(used)
        reach = used * extent
    m = tensor_map
    return Tiled(array.type.dtype, extents, tuple(strides), m.box, m.swizzle, m.im2col, m.nan_fill)


def _rounded(size: int) -> int:
    """Round up to a valid stride, for an axis of one element, whose stride has no effect."""
    return min(-(-size // ADDRESS_ALIGN) * ADDRESS_ALIGN, MAX_STRIDE - ADDRESS_ALIGN)


def _complaints(array: Description, tensor_map: TensorMap) -> Iterator[str]:
    kind = array.type
    yield from complaints_about_map(tensor_map)
    if not isinstance(kind, ArrayType):
        yield f"a tensor map is made of an array, not of a {kind} scalar"
        return
    if kind.dtype.name not in DATA_TYPES:
        yield f"a tensor map of {kind.dtype} elements; allowed are {listing(DATA_TYPES)}"
    if any(axis >= kind.ndim for axis in tensor_map.axes):
        yield f"a tensor map of axes {tensor_map.axes}; the array has {kind.ndim}"
    yield from _box_complaints(kind.dtype, tensor_map)
    yield from _memory_complaints(array, tensor_map)
    if tensor_map.im2col is not None:
        yield from _corner_complaints(array, tensor_map.axes, tensor_map.im2col)


def _box_complaints(dtype: DType, tensor_map: TensorMap) -> Iterator[str]:
    size = array_element_bits(dtype) // 8
    row = tensor_map.box[0] * size
    rows = f"rows of {tensor_map.box[0]} {dtype} elements, {row} bytes, are copied by TMA"
    if row % ADDRESS_ALIGN:
        yield f"{rows}; multiples of {ADDRESS_ALIGN} bytes are allowed"
    if tensor_map.swizzle and row > tensor_map.swizzle:
        yield f"{rows} with a swizzle of {tensor_map.swizzle} bytes; rows of at most so many are allowed"


def _corner_complaints(array: Description, axes: tuple[int, ...], im2col: Im2col) -> Iterator[str]:
    for axis, lower, upper in zip(axes[1:], im2col.lower, im2col.upper, strict=False):
        extent = array.shape[axis]
        if extent + upper - lower < 1:
            yield (
                f"the pixel box has no pixels along axis {axis} of {extent} elements, from lower corner "
                f"{lower} to before {extent} plus upper corner {upper}"
            )


def _memory_complaints(array: Description, tensor_map: TensorMap) -> Iterator[str]:
    size = array_element_bits(array.type.dtype) // 8
    inner, *outer = tensor_map.axes
    if 0 in array.shape:
        yield f"shape {array.shape} has no elements; TMA needs at least one along each axis"
    if array.pointer % ADDRESS_ALIGN:
        yield (
            f"it starts at address {array.pointer:#x}; TMA reads arrays from multiples of "
            f"{ADDRESS_ALIGN} bytes: pass a copy, or a view that starts at one"
        )
    if array.strides[inner] != 1 and array.shape[inner] > 1:
        yield (
            f"axis {inner} has a stride of {array.strides[inner]} elements; TMA needs the "
            f"elements of its innermost axis side by side: pass a contiguous copy"
        )
    for axis in outer:
        stride = array.strides[axis] * size
        good = stride % ADDRESS_ALIGN == 0 and 0 <= stride < MAX_STRIDE
        if not good and array.shape[axis] > 1:
            yield (
                f"axis {axis} of shape {array.shape} has a stride of {stride} bytes; TMA "
                f"allows multiples of {ADDRESS_ALIGN} from 0 to 2**40: pad the rows, or pass a "
                f"contiguous copy"
            )
