"""Copies of boxes between global arrays and shared tiles, by all threads of a block or by TMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.async_copy import cp_async
from tensorcore_dsl.lang.math import maximum, minimum, select
from tensorcore_dsl.lang.mbarrier import Mbarrier
from tensorcore_dsl.lang.pointer import Pointer, element_size
from tensorcore_dsl.lang.special_registers import threadIdx
from tensorcore_dsl.lang.tiles import Tile, same_elements
from tensorcore_dsl.lang.tma import tensor_map, tma_load
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import Scalar

from tensorcore_dsl.lang.fragments import (  # isort: skip
    inside_of,
    known_alignment,
    unchecked_pointer,
)

Index = tuple[Any, ...]


def copy_tile(
    target: Tile | Array,
    source: Tile | Array,
    origin: Sequence[Any],
    *,
    bounded: bool = False,
    threads: int | None = None,
    thread: Any = None,
    vector: int | None = None,
    barrier: Mbarrier | None = None,
) -> None:
    """Copy the box of an array that begins at `origin` to a shared tile of its shape, or back.

    To a tile it copies by `cp.async`, or by plain loads and stores where accesses are narrower than
    4 bytes: call `cp_async_commit`, `cp_async_wait` and `barrier` before the tile is read.

    Parameters
    ----------
    target, source : Tile and Array
        A shared tile and an array of the same element type, in either order. The array may have
        more dimensions than the tile: its first coordinates then select a part.
    origin : sequence of integers
        The first element of the box, a coordinate for each dimension of the array.
    bounded : bool
        Elements outside the array read as zero, and are not stored.
    threads : int, optional
        How many threads copy; None: all of the block, whose size is then fixed (`launch_bounds`).
    thread : integer, optional
        The number of this thread among `threads`; the two go together.
    vector : int, optional
        Elements of an access, at most 16 bytes, where you know more than the alignment that is
        known of the array, of `origin` and of the tile.
    barrier : Mbarrier, optional
        Copy by TMA (sm_90), and zero what lies outside the array. Exactly one thread calls it; the
        barrier's phase then waits for one arrival and for the bytes of the tile.

    Raises
    ------
    OperandError
        No tile and array, other element types, an origin of another rank, a box that is known to be
        outside, vectors that do not fit, an unknown number of threads.
    OutOfBounds
        In emulation, and in checked builds: a box outside the array that is not `bounded`.
    ArchError
        A target before sm_80; with `barrier`, before sm_90.

    See Also
    --------
    tma_load : TMA with a map of one's own.

    Examples
    --------
    >>> @tc.kernel(threads=64)
    ... def shift(x: tc.Array, out: tc.Array):
    ...     tile = tc.shared((16, 16), x.dtype)
    ...     tc.copy_tile(tile, x, (8, 0), bounded=True)
    ...     tc.cp_async_commit()
    ...     tc.cp_async_wait(0)
    ...     tc.barrier()
    ...     tc.copy_tile(out, tile, (0, 0))
    >>> x = np.arange(256, dtype=np.float32).reshape(16, 16)
    >>> out = np.empty_like(x)
    >>> shift[1, 64](x, out)
    >>> bool((out[:8] == x[8:]).all()), float(out[8:].sum())
    (True, 0.0)
    """
    tile: Any = target if isinstance(target, Tile) else source
    array: Any = source if isinstance(target, Tile) else target
    if not isinstance(tile, Tile) or not isinstance(array, Array) or tile.ndim > array.ndim:
        raise OperandError(
            "a copy has a shared tile and an array of as many dimensions or more, not "
            f"{describe(target)} and {describe(source)}"
        )
    if not same_elements(tile.dtype, array.dtype):
        raise OperandError(
            f"{describe(source)} is copied to memory of its element type, not to {describe(target)}"
            f": make the tile of the array's type, {array.dtype}: tc.shared(shape, x.dtype)"
        )
    if not isinstance(origin, (tuple, list)) or len(origin) != array.ndim:
        raise OperandError(f"origin has {array.ndim} coordinates, not {describe(origin)}")
    if barrier is not None:
        _copy_by_tma(tile, array, tuple(origin), barrier, target is tile)
        return
    leading = array.ndim - tile.ndim
    if leading:
        array, origin = array[tuple(origin[:leading])], origin[leading:]
    if not bounded:
        _check_inside(tile, array, origin)
    plan = _plan(tile, array, origin, threads, thread, vector, bounded)
    copy = _to_shared if target is tile else _to_global
    for tile_index, exists in plan.tile_indices():
        copy(plan, tile_index, tuple(a + b for a, b in zip(origin, tile_index, strict=True)), exists)


def _copy_by_tma(tile: Tile, array: Array, origin: Index, barrier: Mbarrier, to_shared: bool) -> None:
    if not to_shared:
        raise OperandError("a copy from shared memory has no barrier: use tc.tma_store")
    shape = (1,) * (array.ndim - tile.ndim) + tile.shape
    box = tensor_map(array, shape, swizzle=tile.swizzle)
    barrier.arrive_expect_tx(box.bytes)
    tma_load(tile, box, origin, barrier)


def _is_one(stride: Any) -> bool:
    return not isinstance(stride, Scalar) and stride == 1


def _check_inside(tile: Tile, array: Array, origin: Sequence[Any]) -> None:
    for extent, start, size in zip(array.shape, origin, tile.shape, strict=True):
        known = not isinstance(extent, Scalar) and not isinstance(start, Scalar)
        if known and not 0 <= start <= extent - size:
            raise OperandError(
                f"a box of {'x'.join(map(str, tile.shape))} at {tuple(origin)} leaves "
                f"{array.described} of shape {tuple(array.shape)}; bounded=True allows it"
            )


@dataclass
class _Plan:
    """Which elements each thread copies: vectors along `axis`, `threads` of them at a time."""

    tile: Tile
    array: Array
    axis: int
    width: int  # elements of a vector
    threads: int
    thread: Any
    bounded: bool

    @property
    def bytes(self) -> int:
        """Bytes of a vector."""
        return self.width * element_size(self.tile.dtype)

    def tile_indices(self) -> Iterator[tuple[Index, Any]]:
        """The tile's index of each vector of this thread, and whether there is one (or True)."""
        shape = list(self.tile.shape)
        shape[self.axis] //= self.width
        order = [a for a in range(len(shape)) if a != self.axis] + [self.axis]
        count = prod(shape)
        for first in range(0, count, self.threads):
            remaining, index = self.thread + first, [0] * len(shape)
            exists = True if first + self.threads <= count else remaining < count
            if exists is not True:
                remaining = select(exists, remaining, 0)
            for axis in reversed(order[1:]):
                index[axis], remaining = remaining % shape[axis], remaining // shape[axis]
            index[order[0]] = remaining
            index[self.axis] = index[self.axis] * self.width
            yield tuple(index), exists


def _plan(
    tile: Tile,
    array: Array,
    origin: Sequence[Any],
    threads: int | None,
    thread: Any,
    vector: int | None,
    bounded: bool,
) -> _Plan:
    if (threads is None) != (thread is None):
        raise OperandError("threads, how many copy, and thread, the number of this one, go together")
    threads = builder().kernel.threads if threads is None else threads
    if threads is None:
        raise OperandError(
            "the number of threads that copy must be known: @tc.kernel(threads=128), "
            "tc.launch_bounds(128), or threads=128 with thread=..."
        )
    both = [axis for axis in range(tile.ndim) if tile.strides[axis] == 1 and _is_one(array.strides[axis])]
    axis = both[-1] if both else tile.ndim - 1
    size, build = element_size(tile.dtype), builder()
    if vector is None:
        widest = min(known_alignment(tile), known_alignment(array))
        aligned = min(build.divisor(origin[axis]), build.divisor(tile.shape[axis]))
        widest = min(widest, aligned * size)
        vector = max(min(widest, 16) // size, 1) if both else 1
    elif vector < 1 or tile.shape[axis] % vector or vector * size > 16 or (vector > 1 and not both):
        raise OperandError(
            f"vectors of {vector} {tile.dtype} cannot copy {tile.described}: they have at most 16 "
            "bytes, divide its rows, and run along an axis that is contiguous in both"
        )
    return _Plan(tile, array, axis, vector, threads, threadIdx.x if thread is None else thread, bounded)


def _to_shared(plan: _Plan, tile_index: Index, index: Index, exists: Any) -> None:
    target = plan.tile.at(*tile_index)
    source, valid = _source(plan, index)
    guard = None if exists is True else exists
    if plan.bytes in (4, 8, 16):
        bytes = None if valid is None else valid * element_size(plan.tile.dtype)
        cp_async(target, source, plan.bytes, valid=bytes, pred=guard)
        return
    words = [
        (source + e).load(pred=_both(guard, None if valid is None else valid > e)) for e in range(plan.width)
    ]
    target.store(words if len(words) > 1 else words[0], pred=guard)


def _source(plan: _Plan, index: Index) -> tuple[Pointer, Any]:
    """The pointer to a vector of the array, and how many of its elements exist; None: all do."""
    if not plan.bounded:
        return plan.array.at(*index), None
    count = _existing(plan, index)
    pointer = unchecked_pointer(plan.array, index)
    # Outside, strides of axes of extent 1 may misalign the address: take the array's address.
    address = select(count > 0, pointer.address, plan.array.address)
    return pointer.with_parts(address=address), count


def _existing(plan: _Plan, index: Index) -> Any:
    """How many elements of the vector at `index` the array has, from the first one on."""
    along = index[plan.axis]
    left = maximum(minimum(plan.array.shape[plan.axis] - along, plan.width), 0)
    inside = inside_of(plan.array, index)  # of the first: aligned vectors do not straddle index 0
    return select(inside, left, 0)


def _to_global(plan: _Plan, tile_index: Index, index: Index, exists: Any) -> None:
    vector = plan.tile.at(*tile_index).load(plan.width)
    guard = None if exists is True else exists
    if not plan.bounded:
        plan.array.at(*index).store(vector, pred=guard)
        return
    pointer, count = unchecked_pointer(plan.array, index), _existing(plan, index)
    pointer.store(vector, pred=_both(guard, count == plan.width))
    if plan.width > 1:
        for e, element in enumerate(vector.elements()):
            alone = (count > e) & (count < plan.width)
            (pointer + e).store(element, pred=_both(guard, alone))


def _both(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    return left & right
