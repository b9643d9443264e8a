"""Global arrays and shared tiles of a kernel: indexing, views, swizzles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import LayoutError, OperandError
from tensorcore_dsl.lang.pointer import PEERS, byte_offset, element_size, peer_address
from tensorcore_dsl.lang.pointer import Pointer as Pointer
from tensorcore_dsl.values.operands import describe, is_number
from tensorcore_dsl.values.values import Scalar, Struct, builder

SWIZZLES = (0, 32, 64, 128)
_FLIPPED = {32: 0x10, 64: 0x30, 128: 0x70}  # bits of an offset that its bits above flip


class Array(Struct):
    """A global array: pointer, shape and strides (in elements), known at run time.

    A stride that is statically 1 is the number 1. `align` is the power of two in bytes that
    divides the pointer and every other stride of the argument. `argument` numbers the kernel's
    argument that this is, and is None for a part of one.
    """

    parts = ("address", "shape", "strides")
    space = "global"

    def __init__(
        self,
        address: Any,
        dtype: DType,
        shape: tuple[Any, ...],
        strides: tuple[Any, ...],
        align: int,
        argument: int | None = None,
    ) -> None:
        self.address, self.dtype, self.shape, self.strides = address, dtype, shape, strides
        self.align, self.argument = align, argument

    def fixed(self) -> dict[str, Any]:
        return {"dtype": self.dtype}

    def joined(self, parts: list[Any]) -> Array:
        """Some array of this type: which argument it is is known no more."""
        address, shape, strides = parts
        align = element_size(self.dtype)
        return Array(address, self.dtype, shape, strides, align)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def T(self) -> Array:
        """The transpose, without a copy."""
        return self.with_parts(shape=self.shape[::-1], strides=self.strides[::-1], argument=None)

    def at(self, *index: Any) -> Pointer:
        """Pointer to an element."""
        address = self.address
        for i, extent, stride in zip(
            _full_index(index, self), self.shape, self.strides, strict=True
        ):
            i = extent + i if isinstance(i, int) and i < 0 else i
            address = self._step(address, i, stride)
        return Pointer(address, self.dtype, self.space)

    def _step(self, address: Any, index: Any, stride: Any) -> Any:
        size = element_size(self.dtype)
        if not isinstance(stride, Scalar):
            return byte_offset(address, index, int(stride) * size)
        if not isinstance(index, Scalar):
            return byte_offset(address, stride * int(index), size) if index else address
        return byte_offset(address, index.to(stride.dtype) * stride, size)

    def __getitem__(self, index: Any) -> Any:
        view = self._view(index)
        return view if isinstance(view, Array) else view.load()

    def __setitem__(self, index: Any, value: Any) -> None:
        view = self._view(index)
        if isinstance(view, Array):
            raise OperandError(
                f"{view.described} cannot be stored at once: store elements, or vectors with "
                "array.at(...).store(values)"
            )
        view.store(value)

    def _view(self, index: Any) -> Any:
        index = normal_index(index, self)
        if not any(isinstance(i, slice) for i in index):
            return self.at(*index)
        address = self.address
        shape: list[Any] = []
        strides: list[Any] = []
        for i, extent, stride in zip(index, self.shape, self.strides, strict=True):
            start = extent + i if isinstance(i, int) and i < 0 else i
            if isinstance(i, slice):
                start, length, step = slice_bounds(i, extent)
                shape.append(length)
                strides.append(stride if step == 1 else stride * step)
            address = self._step(address, start, stride)
        return self.with_parts(
            address=address, shape=tuple(shape), strides=tuple(strides), argument=None
        )

    @property
    def described(self) -> str:
        return f"a {self.ndim}-dimensional {self.dtype} array"

    def __repr__(self) -> str:
        return f"<{self.described}>"


# -- indices ---------------------------------------------------------------------------------


def _full_index(index: tuple[Any, ...], owner: Any) -> tuple[Any, ...]:
    """One checked integer for each dimension."""
    if len(index) == 1 and isinstance(index[0], tuple):
        index = index[0]
    if len(index) != owner.ndim:
        raise OperandError(
            f"{owner.described} takes {owner.ndim} {'index' if owner.ndim == 1 else 'indices'}, "
            f"{len(index)} {'was' if len(index) == 1 else 'were'} given"
        )
    for i in index:
        _check_index(i, owner)
    return index


def _check_index(index: Any, owner: Any) -> None:
    integer = index.dtype.is_integer if isinstance(index, Scalar) else is_number(index)
    if not integer or isinstance(index, (bool, float)):
        raise OperandError(f"{owner.described} is indexed by integers, not by {describe(index)}")


def normal_index(index: Any, owner: Any) -> tuple[Any, ...]:
    """A full tuple of integers and slices; `...` and missing indices take everything."""
    index = index if isinstance(index, tuple) else (index,)
    gaps = [place for place, i in enumerate(index) if i is Ellipsis]
    if len(gaps) > 1:
        raise OperandError("an index has at most one `...`")
    fill = owner.ndim - (len(index) - len(gaps))
    if fill < 0:
        raise OperandError(
            f"{owner.described} takes {owner.ndim} {'index' if owner.ndim == 1 else 'indices'}, "
            f"{len(index) - len(gaps)} were given"
        )
    place = gaps[0] if gaps else len(index)
    full = (*index[:place], *[slice(None)] * fill, *index[place + 1 :])
    for i in full:
        if not isinstance(i, slice):
            _check_index(i, owner)
    return full


def slice_bounds(part: slice, extent: Any) -> tuple[Any, Any, int]:
    """(start, length, step) of a slice; bounds inside the extent are the user's business."""
    step = 1 if part.step is None else part.step
    if not isinstance(step, int) or step < 1:
        raise OperandError(
            f"slices of arrays and tiles have steps of 1 or more known at compile time, not "
            f"{describe(step)}"
        )
    start = 0 if part.start is None else part.start
    if isinstance(start, int) and start < 0:
        start = extent + start
    stop = extent if part.stop is None else part.stop
    if isinstance(stop, int) and stop < 0:
        stop = extent + stop
    length = static_difference(stop, start)
    return start, length if step == 1 else (length + (step - 1)) // step, step


def static_difference(stop: Any, start: Any) -> Any:
    """stop - start, as a Python integer when only a constant lies between them."""
    if isinstance(stop, Scalar) and isinstance(start, Scalar):
        build = builder()
        (b1, c1), (b0, c0) = build.split_constant(stop), build.split_constant(start)
        if b1 is not None and b0 is not None and b1.value is b0.value:
            return c1 - c0
    return stop - start


# -- shared memory ---------------------------------------------------------------------------


class Tile(Struct):
    """A view of shared memory with a static shape and strides, possibly swizzled.

    The byte address of an element is origin + swizzle(offset): `origin` a multiple of the
    swizzle's period (8 rows of `swizzle` bytes), `offset` the rest. swizzle(x) flips bits 4.. of
    x with bits 7.., one bit for 32 bytes, two for 64, three for 128, as the hardware does.
    """

    parts = ("origin", "offset")
    space = "shared"

    def __init__(
        self,
        origin: Any,
        offset: Any,
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        swizzle: int = 0,
    ) -> None:
        self.origin, self.offset, self.dtype = origin, offset, dtype
        self.shape, self.strides, self.swizzle = shape, strides, swizzle

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def period(self) -> int:
        """Bytes after which the swizzle repeats."""
        return 8 * self.swizzle or 16

    @property
    def bytes(self) -> int:
        """Of its elements."""
        return prod(self.shape) * element_size(self.dtype)

    @property
    def copied_as(self) -> tuple[Any, ...]:
        """What two tiles must have in common for a copy of the bytes to be one of the elements;
        no other tile has it in common with one that is not dense."""
        started = not self.swizzle or (is_number(self.offset) and self.offset == 0)
        dense = started and self.strides == row_major(self.shape)
        return self.dtype, self.shape, self.swizzle, dense or id(self)

    @property
    def T(self) -> Tile:
        """The transpose, without a copy."""
        return self.with_parts(shape=self.shape[::-1], strides=self.strides[::-1])

    def remote(self, rank: Any) -> Tile:
        """The same tile in CTA `rank` of the cluster: its elements can be loaded and stored there
        between two meetings of the cluster (`cluster_sync`)."""
        if self.space == PEERS:
            raise OperandError(f"{self.described} is another CTA's already")
        return self.with_parts(origin=peer_address(self.origin, rank), space=PEERS)

    def moved(self, index: Sequence[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> Tile:
        """The view that starts at `index`."""
        origin, offset = self.origin, self.offset
        size = element_size(self.dtype)
        for i, stride in zip(index, self.strides, strict=True):
            whole, rest = self._split(i, stride * size)
            origin, offset = _plus(origin, whole), _plus(offset, rest)
        constant, carried = self._carry(offset)
        return self.with_parts(
            origin=_plus(origin, carried), offset=constant, shape=shape, strides=strides
        )

    def _split(self, index: Any, size: int) -> tuple[Any, Any]:
        """index * size as (multiple of the period, rest)."""
        if isinstance(index, Scalar):
            scaled = _u32(index) * size
            return (scaled, 0) if size % self.period == 0 else (0, scaled)
        return 0, int(index) * size

    def _carry(self, offset: Any) -> tuple[Any, int]:
        """Whole periods of the constant part of an offset belong to the origin."""
        base, constant = builder().split_constant(offset)
        carried = constant // self.period * self.period
        rest = constant - carried
        return (rest if base is None else _plus(base, rest)), carried

    def at(self, *index: Any) -> Pointer:
        """Pointer to an element."""
        full = tuple(
            _inside(i, 1, extent, self)
            for i, extent in zip(_full_index(index, self), self.shape, strict=True)
        )
        return Pointer(self.moved(full, (), ()).address, self.dtype, self.space)

    @property
    def address(self) -> Any:
        """The shared address of the first element."""
        if not self.swizzle:
            return _plus(self.origin, self.offset)
        flipped = (self.offset >> 3) & _FLIPPED[self.swizzle]
        return _plus(self.origin, self.offset ^ flipped)

    def __getitem__(self, index: Any) -> Any:
        view = self._view(index)
        return view if isinstance(view, Tile) else view.load()

    def __setitem__(self, index: Any, value: Any) -> None:
        view = self._view(index)
        if isinstance(view, Tile):
            raise OperandError(
                f"{view.described} cannot be stored at once: store elements, or vectors with "
                "tile.at(...).store(values)"
            )
        view.store(value)

    def _view(self, index: Any) -> Any:
        index = normal_index(index, self)
        if not any(isinstance(i, slice) for i in index):
            return self.at(*index)
        starts: list[Any] = []
        shape: list[int] = []
        strides: list[int] = []
        for i, extent, stride in zip(index, self.shape, self.strides, strict=True):
            if not isinstance(i, slice):
                starts.append(_inside(i, 1, extent, self))
                continue
            start, length, step = slice_bounds(i, extent)
            if not isinstance(length, int):
                raise OperandError("the size of a shared view must be known at compile time")
            starts.append(_inside(start, (length - 1) * step + 1 if length else 0, extent, self))
            shape.append(length)
            strides.append(stride * step)
        return self.moved(starts, tuple(shape), tuple(strides))

    @property
    def described(self) -> str:
        swizzle = f", {self.swizzle}-byte swizzle" if self.swizzle else ""
        where = "remote shared" if self.space == PEERS else "shared"
        return f"a {where} {self.dtype} tile of {'x'.join(map(str, self.shape))}{swizzle}"

    def __repr__(self) -> str:
        return f"<{self.described}>"


def _inside(start: Any, length: int, extent: int, tile: Tile) -> Any:
    """A start that is known not to leave the tile, counted from its beginning."""
    if isinstance(start, Scalar):
        return start
    first = start + extent if start < 0 and length == 1 else start
    if length < 0 or first < 0 or first + length > extent:
        asked = f"index {start}" if length == 1 else f"the slice {start}:{start + length}"
        raise OperandError(f"{asked} leaves a dimension of {extent} of {tile.described}")
    return first


def _plus(left: Any, right: Any) -> Any:
    if not isinstance(right, Scalar) and int(right) == 0:
        return left
    if not isinstance(left, Scalar) and not isinstance(right, Scalar):
        return left + right
    return _u32(left) + _u32(right)


def _u32(value: Any) -> Any:
    """Shared addresses are u32; an index of another width is converted."""
    if not isinstance(value, Scalar) or value.dtype == dtypes.u32:
        return value
    return value.bits(dtypes.u32) if value.dtype.bits == 32 else value.to(dtypes.u32)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense array, the last index running fastest."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def check_swizzle(shape: Sequence[int], strides: Sequence[int], dtype: DType, swizzle: int) -> None:
    """Rows of a swizzled tile are whole multiples of its span."""
    if swizzle not in SWIZZLES:
        raise LayoutError(f"swizzle may be 32, 64 or 128 bytes (0 for none), not {swizzle}")
    if not swizzle:
        return
    row = shape[-1] * dtype.itemsize
    if row % swizzle or strides[-1] != 1:
        raise LayoutError(
            f"a {swizzle}-byte swizzle needs rows of a multiple of {swizzle} bytes; "
            f"rows of {shape[-1]} {dtype} have {row}"
        )
