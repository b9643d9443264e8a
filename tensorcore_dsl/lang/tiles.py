"""Tiles of shared memory: allocation, views, swizzles, tiles of other CTAs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType, DTypeLike, as_dtype
from tensorcore_dsl.errors import LayoutError, OperandError, OutOfBounds
from tensorcore_dsl.ir.nodes import DYNAMIC_ALIGN
from tensorcore_dsl.ir.verify import SWIZZLES
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.descriptor import SharedTile
from tensorcore_dsl.lang.bounds import Axis, Bound, StepBound, check_index, frozen, plain_axes
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import is_number
from tensorcore_dsl.values.values import Scalar

from tensorcore_dsl.lang.pointer import (  # isort: skip
    CLUSTER_SPACE,
    Pointer,
    element_size,
    peer_address,
    peer_area,
    rank_bounds,
    swizzled,
)
from tensorcore_dsl.lang.indexing import (  # isort: skip
    Indexed,
    full_index,
    normal_index,
    row_major,
    slice_bounds,
    static_shape,
)


def shared(
    shape: int | Sequence[int],
    dtype: DTypeLike,
    *,
    swizzle: int = 0,
    strides: Sequence[int] | None = None,
    align: int | None = None,
) -> Tile:
    """A tile of shared memory with a compile-time shape.

    Tiles of more than 48 KiB in total become dynamic shared memory automatically.

    Parameters
    ----------
    shape : int or sequence of int
        Known at compile time.
    dtype : dtype
        Of the elements, 8 bits or more.
    swizzle : int
        0, 32, 64 or 128 bytes: permutes the 16-byte chunks of a row so that a column of chunks
        spreads over all banks.
    strides : sequence of int, optional
        In elements; None: row-major.
    align : int, optional
        Bytes, a power of two; with a swizzle a multiple of its period of 8 rows. None: 16, or the
        period.

    Returns
    -------
    Tile
        Not initialised.

    Raises
    ------
    OperandError
        A shape that is not known at compile time.
    LayoutError
        Strides of another number, rows that the swizzle does not divide, another swizzle or
        alignment.
    ArgumentError
        Elements smaller than a byte; at the launch: more shared memory than a block can have.

    Notes
    -----
    `.shared`, section 5.1 of the PTX manual. `tensorcore_dsl.viz.plot.draw_swizzle` shows the
    banks.

    Examples
    --------
    >>> @tc.kernel
    ... def transpose(x: tc.Array):
    ...     tile, i = tc.shared((32, 32), x.dtype, strides=(33, 1)), tc.lane_id()
    ...     for row in tc.static_range(32):
    ...         tile[row, i] = x[row, i]
    ...     tc.syncwarp()
    ...     for row in tc.static_range(32):
    ...         x[row, i] = tile[i, row]
    >>> x = np.arange(1024, dtype=np.float32).reshape(32, 32)
    >>> transpose[1, 32](x)
    >>> x[0, :3]
    array([ 0., 32., 64.], dtype=float32)
    """
    shape, dtype = static_shape(shape, "a shared tile"), as_dtype(dtype)
    steps = tuple(strides) if strides is not None else row_major(shape)
    if len(steps) != len(shape):
        raise LayoutError(f"{len(steps)} strides were given for {len(shape)} dimensions")
    check_swizzle(shape, steps, dtype, swizzle)
    least = max(16, 8 * swizzle)
    align = align or least
    if align & (align - 1) or (swizzle and align % least):
        raise LayoutError(
            f"a tile cannot be aligned to align={align} bytes: powers of two are allowed"
            + (f", and a {swizzle}-byte swizzle needs a multiple of {least}" if swizzle else "")
        )
    elements = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + 1
    kernel = builder().kernel
    start = -(-kernel.shared_bytes // align) * align
    kernel.shared_bytes = start + elements * element_size(dtype)
    if kernel.shared_bytes > builder().arch.shared_kib * 1024:
        builder().overflow = builder().overflow or builder().locate()
    kernel.shared_align = max(kernel.shared_align, align)
    origin = emit(names.STATIC_SHARED) + start
    tile = _whole(Tile(origin, 0, dtype, shape, steps, swizzle))
    if builder().checks:
        size = element_size(dtype)
        plane, pitch = ((0, 0, *steps[:-1])[i] * size for i in (-2, -1))
        within, strides = (pitch, plane, swizzle), [step * size for step in steps]
        whole = SharedTile(start, elements * size, *within, tile.described, shape, tuple(strides))
        kernel.tiles.append(whole)
        builder().tiles_of[origin.value] = frozenset([whole])
    return tile


def dynamic_shared(
    shape: int | Sequence[int], dtype: DTypeLike, *, offset: int = 0, swizzle: int = 0, overlap: bool = False
) -> Tile:
    """A tile `offset` bytes into the dynamic shared memory of the launch.

    The launch gives its size: `kernel[grid, block, stream, bytes](...)`.

    Parameters
    ----------
    shape : int or sequence of int
        Known at compile time; row-major.
    dtype : dtype
        Of the elements, 8 bits or more.
    offset : int
        Bytes, a multiple of the element size, and of 8 rows of the swizzle.
    swizzle : int
        0, 32, 64 or 128 bytes, as for `shared`. Tiles of different swizzles may share bytes: what
        was written through one must be written anew before another one reads it.
    overlap : bool
        Checked builds refuse a tile that begins inside another one and ends outside of it; this
        allows it.

    Returns
    -------
    Tile
        Not initialised.

    Raises
    ------
    OperandError
        A shape that is not known at compile time.
    LayoutError
        An offset that is not a multiple, rows that the swizzle does not divide.
    OutOfBounds
        In checked builds: tiles that overlap, or leave the memory of the launch.

    Examples
    --------
    >>> @tc.kernel
    ... def reverse(x: tc.Array):
    ...     tile, i = tc.dynamic_shared(32, x.dtype), tc.lane_id()
    ...     tile[i] = x[i]
    ...     tc.syncwarp()
    ...     x[i] = tile[31 - i]
    >>> x = np.arange(32, dtype=np.float32)
    >>> reverse.configured(1, 32, shared_bytes=128)(x)
    >>> x[:3]
    array([31., 30., 29.], dtype=float32)
    """
    shape, dtype = static_shape(shape, "a shared tile"), as_dtype(dtype)
    steps = row_major(shape)
    check_swizzle(shape, steps, dtype, swizzle)
    least = max(element_size(dtype), 8 * swizzle)
    if offset < 0 or offset % least:
        raise LayoutError(f"offset {offset} of {dtype} elements is not a multiple of {least} bytes")
    kernel = builder().kernel
    kernel.dynamic = max(kernel.dynamic, DYNAMIC_ALIGN, 8 * swizzle)
    origin = emit(names.DYNAMIC_SHARED) + offset
    tile = _whole(Tile(origin, 0, dtype, shape, steps, swizzle))
    if builder().checks:
        _check_dynamic(tile, offset, overlap)
    return tile


def _whole(tile: Tile) -> Tile:
    """A new tile; in a checked build it is an area of its own."""
    if not builder().checks:
        return tile
    return tile.with_parts(area=tile.span(), owner=tile.described)


def _check_dynamic(tile: Tile, offset: int, overlap: bool) -> None:
    """Check that the launch has the memory, and that earlier tiles do not lie across the borders of
    this one; a tile may be a part of another one."""
    build = builder()
    text = f"{tile.described} of {tile.bytes} bytes from byte %lld on leaves the dynamic shared "
    text += "memory of the launch, which has %lld bytes"
    check_index(offset, build.special("dynamic_smem_size"), text, count=tile.bytes)
    first, last = offset, offset + tile.bytes
    for start, stop, neighbour, swizzle in build.dynamic_tiles:
        apart = last <= start or stop <= first
        build.kernel.mixed_swizzles |= not apart and swizzle != tile.swizzle
        nested = (start <= first and last <= stop) or (first <= start and stop <= last)
        if not apart and not nested and not overlap:
            raise OutOfBounds(
                f"{tile.described} at bytes {first} to {last - 1} of the dynamic shared memory "
                f"overlaps {neighbour} at bytes {start} to {stop - 1}; overlap=True allows it, where "
                "one is no longer used"
            )
    build.dynamic_tiles.append((first, last, tile.described, tile.swizzle))


class Tile(Indexed):
    """A view of shared memory with a static shape and strides, possibly swizzled.

    `tile[i, j]` is an element, `tile[1:5]` a view; run-time indices are checked in emulation.

    Attributes
    ----------
    shape, strides : tuple of int
        Known at compile time, strides in elements.
    dtype : dtype
        Of the elements.
    swizzle : int
        0, 32, 64 or 128 bytes.
    offset : integer
        Bytes from `origin` to the first element, before the swizzle.
    origin : integer
        A shared address, a multiple of the swizzle's period (8 rows of `swizzle` bytes).

    See Also
    --------
    shared : Makes one, with an example.

    Notes
    -----
    The byte address of an element is origin + swizzle(offset). swizzle(x) XORs the bits from 4 on
    with the bits from 7 on: one bit for 32 bytes, two for 64, three for 128, as the hardware does.
    """

    parts = ("origin", "offset", "area")
    space = "shared"
    shape: tuple[int, ...]

    def __init__(
        self,
        origin: Any,
        offset: Any,
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        swizzle: int = 0,
    ) -> None:
        self.origin, self.offset = origin, offset
        self.dtype = dtype  # type: ignore[assignment]
        self.shape, self.strides, self.swizzle = shape, strides, swizzle

    @property
    def period(self) -> int:
        """Bytes after which the swizzle repeats."""
        return 8 * self.swizzle or 16

    @property
    def bytes(self) -> int:
        """The size of its elements."""
        return prod(self.shape) * element_size(self.dtype)

    @property
    def copy_key(self) -> tuple[Any, ...]:
        """A key that is equal for two tiles if copying the bytes copies the elements.

        A tile that is not dense equals only itself.
        """
        started = not self.swizzle or (is_number(self.offset) and self.offset == 0)
        dense = started and self.strides == row_major(self.shape)
        return self.dtype, self.shape, self.swizzle, dense or id(self)

    @property
    def T(self) -> Tile:
        """The transpose, without a copy."""
        return self.with_parts(shape=self.shape[::-1], strides=self.strides[::-1])

    def remote(self, rank: Any) -> Tile:
        """Return this tile of CTA `rank` of the cluster, to load from and store to.

        The cluster must synchronise (`cluster_sync`) before the first and after the last access.

        Parameters
        ----------
        rank : integer
            Of the CTA in the cluster.

        Returns
        -------
        Tile
            In the other CTA's shared memory.

        Raises
        ------
        OperandError
            The tile is another CTA's already; no such rank.
        """
        if self.space == CLUSTER_SPACE:
            raise OperandError(f"{self.described} is another CTA's already")
        return self.with_parts(
            origin=peer_address(self.origin, rank),
            space=CLUSTER_SPACE,
            bounds=(*self.bounds, *rank_bounds(rank)),
            area=peer_area(self.area, rank),
        )

    def moved(self, index: Sequence[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> Tile:
        """The view that starts at `index`."""
        origin, offset = self.origin, self.offset
        size = element_size(self.dtype)
        for i, stride in zip(index, self.strides, strict=True):
            whole, within_period = self._split(i, stride * size)
            origin, offset = _plus(origin, whole), _plus(offset, within_period)
        constant, carried = self._carry(offset)
        return self.with_parts(origin=_plus(origin, carried), offset=constant, shape=shape, strides=strides)

    def _split(self, index: Any, size: int) -> tuple[Any, Any]:
        """index * size as (multiple of the period, rest)."""
        if isinstance(index, Scalar):
            scaled = _u32(index) * size
            whole = size * builder().divisor(index) % self.period == 0
            return (scaled, 0) if whole else (0, scaled)
        return 0, int(index) * size

    def _carry(self, offset: Any) -> tuple[Any, int]:
        """Whole periods of the constant part of an offset move to the origin."""
        base, constant = builder().split_constant(offset)
        carried = constant // self.period * self.period
        within_period = constant - carried
        return (within_period if base is None else _plus(base, within_period)), carried

    def at(self, *index: Any) -> Pointer:
        """Pointer to an element; loads and stores through it check run-time indices.

        Parameters
        ----------
        *index : integer
            One for each axis.

        Returns
        -------
        Pointer
            In shared memory.

        Raises
        ------
        OperandError
            Another number of indices, or one that is known to be outside.
        OutOfBounds
            In emulation, and in checked builds, where it is loaded or stored.
        """
        return self._pointer(full_index(index, self), frozen)

    def _pointer(self, index: tuple[Any, ...], keep: Callable[[Any], Any]) -> Pointer:
        """Pointer to an element; `keep` copies what its checks need, if they come later."""
        indices = [_inside(i, 1, axis, self) for axis, i in enumerate(index)]
        bounds = [*self.bounds, *self.area_bounds()]
        for i, extent, stride, axis in zip(indices, self.shape, self.strides, self._axes(), strict=True):
            bounds += axis.bounds(keep(i), extent, stride)
        address = self.moved(indices, (), ()).address
        pointer = Pointer(address, self.dtype, self.space, tuple(bounds), self.swizzle)
        if keep is not frozen or not builder().checks:
            return pointer
        start, size = self.span()
        return pointer.with_parts(area=(frozen(start), size), owner=self.described)

    def span(self) -> tuple[Any, int]:
        """The address of the first byte of its elements, and how many bytes they span.

        With a swizzle, elements are permuted within as many bytes as the swizzle is wide.
        """
        size, unit = element_size(self.dtype), max(self.swizzle, 1)
        span = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) * size + size
        if not isinstance(self.offset, Scalar):
            low = self.offset // unit * unit
            return _plus(self.origin, low), -(-(self.offset + span) // unit) * unit - low
        low = self.offset & -unit if unit > 1 else self.offset
        return _plus(self.origin, low), -(-span // unit) * unit + unit - 1

    @property
    def address(self) -> Any:
        """The shared address of the first element."""
        return _plus(self.origin, swizzled(self.offset, self.swizzle))

    def _view(self, index: Any) -> Any:
        index = normal_index(index, self)
        if not any(isinstance(i, slice) for i in index):
            return self._pointer(index, lambda value: value)
        starts: list[Any] = []
        shape: list[int] = []
        strides: list[int] = []
        bounds = list(self.bounds)
        for axis, i, extent, stride in zip(self._axes(), index, self.shape, self.strides, strict=True):
            if not isinstance(i, slice):
                starts.append(_inside(i, 1, axis.number, self))
                bounds += axis.bounds(frozen(starts[-1]), extent, stride)
                continue
            start, length, step = slice_bounds(i, extent)
            if not isinstance(length, int):
                raise OperandError("the size of a shared view must be known at compile time")
            span = (length - 1) * step + 1 if length else 0
            starts.append(_inside(start, span, axis.number, self))
            if step > 1 and stride == 1 and length > 1:
                owner, size = f"a view of {self.described}", element_size(self.dtype)
                bounds.append(StepBound(0, 0, owner, size, step))
            if isinstance(start, Scalar):
                bounds.append(Bound(frozen(start), extent, axis.axis, length=span))
            shape.append(length)
            strides.append(stride * step)
        view = self.moved(starts, tuple(shape), tuple(strides))
        return view.with_parts(bounds=tuple(bounds))

    def _axes(self) -> tuple[Axis, ...]:
        return plain_axes(self.described, self.strides, element_size(self.dtype))

    @property
    def described(self) -> str:
        swizzle = f", {self.swizzle}-byte swizzle" if self.swizzle else ""
        where = "remote shared" if self.space == CLUSTER_SPACE else "shared"
        return f"a {where} {self.dtype} tile of {'x'.join(map(str, self.shape))}{swizzle}"


def same_elements(have: DType, want: DType) -> bool:
    """True if memory of `have` is memory of `want`: equal types, f32 for tf32, or plain bits."""
    if have == want or {have.name, want.name} == {"f32", "tf32"}:
        return True
    return have.bits == want.bits and "b" in (have.kind, want.kind)


def _inside(start: Any, length: int, axis: int, tile: Tile) -> Any:
    """A start within the tile, counted from its beginning; a run-time start is not checked."""
    if isinstance(start, Scalar):
        return start
    extent = tile.shape[axis]
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


def check_swizzle(shape: Sequence[int], strides: Sequence[int], dtype: DType, swizzle: int) -> None:
    """LayoutError unless the rows of a swizzled tile are multiples of the swizzle."""
    if swizzle not in SWIZZLES:
        wide = "; longer rows take 128, or padding: strides=(cols + 8, 1), in elements"
        raise LayoutError(
            f"swizzle may be 32, 64 or 128 bytes (0 for none), not {swizzle}"
            + (wide if swizzle > SWIZZLES[-1] else "")
        )
    if not swizzle:
        return
    row = shape[-1] * dtype.itemsize
    if row % swizzle or strides[-1] != 1:
        raise LayoutError(
            f"a {swizzle}-byte swizzle needs rows of a multiple of {swizzle} bytes; "
            f"rows of {shape[-1]} {dtype} have {row}"
        )
