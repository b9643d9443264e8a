"""TMA: tensor maps, and asynchronous copies of boxes of arrays and of tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import LayoutError, OperandError, listing
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.ir.verify import complaints_about_map
from tensorcore_dsl.isa import names, reductions
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.async_copy import check_pending
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.indexing import integer_operand, row_major
from tensorcore_dsl.lang.mbarrier import Mbarrier
from tensorcore_dsl.lang.pointer import CLUSTER_SPACE, MAX_CLUSTER_CTAS, own_address
from tensorcore_dsl.lang.tiles import Tile, same_elements
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, is_number
from tensorcore_dsl.values.values import Scalar, Struct


class TensorMap(Struct):
    """A tensor map: describes the copies between boxes of an array and tiles of shared memory.

    Attributes
    ----------
    array : Array
        The argument that it describes.
    box : tuple of int
        In the order of the array; in im2col mode pixels and channels.
    axes : tuple of int
        The axes of the array, the innermost first.
    swizzle : int
        Of the tiles, in bytes.
    im2col : bool
        Whether it is of im2col mode.
    dtype : dtype
        Of the elements.

    See Also
    --------
    tensorcore_dsl.tma_load : With an example.
    """

    parts = ("address",)

    def __init__(self, address: Scalar, array: Array, described: nodes.TensorMap) -> None:
        m = described
        self.address, self.array, self.axes, self.swizzle = address, array, m.axes, m.swizzle
        self.im2col, self.dtype = m.im2col is not None, array.dtype
        self.box = m.box[::-1] if self.im2col else tuple(n for _, n in sorted(zip(m.axes, m.box)))
        self.described = described
        builder().tensor_maps[address.value] = self

    @property
    def bytes(self) -> int:
        """Bytes that one copy counts at an mbarrier, parts outside the array included."""
        return self.dtype.itemsize * prod(self.box)

    def coordinates(self, index: Sequence[Any]) -> list[Any]:
        """The index of a box as operands: s32, the innermost axis first."""
        if not hasattr(type(index), "__len__"):
            wanted = f"a tuple of {len(self.axes)} coordinates"
            raise OperandError(f"the index of a box is {wanted}, not {describe(index)}")
        if len(index) != len(self.axes):
            raise OperandError(f"{len(self.axes)} coordinates are needed, {len(index)} were given")
        return [_s32(index[axis]) for axis in self.axes]

    def shifts(self, offsets: Sequence[Any] | None) -> list[Any]:
        """The offsets of a copy in im2col mode as operands: b16, the innermost axis first."""
        count = len(self.axes) - 2 if self.im2col else 0
        offsets = [0] * count if offsets is None else offsets
        if len(offsets) != count:
            what = "this map is of tile mode" if not count else f"{count} axes of pixels have one each"
            raise OperandError(f"{len(offsets)} offsets were given; {what}")
        return [_u16(offset, "an offset of im2col mode") for offset in reversed(offsets)]

    def prefetch(self, index: Sequence[Any] | None = None, offsets: Sequence[Any] | None = None) -> None:
        """Prefetch the map itself, by one thread at the start, or a box into the L2 cache.

        Parameters
        ----------
        index : sequence of integers, optional
            The first element of the box; None: the map.
        offsets : sequence of integers, optional
            In im2col mode, as of `tma_load`.

        Raises
        ------
        OperandError
            Another number of coordinates.
        ArchError
            A target before sm_90.
        """
        if index is None:
            emit(names.PREFETCH_TENSOR_MAP, self.address)
            return
        name = names.tensor_prefetch(len(self.axes), self.im2col)
        emit(name, self.address, *self.coordinates(index), *self.shifts(offsets))


def tensor_map(
    array: Array,
    box: Sequence[int],
    swizzle: int = 0,
    *,
    im2col: Sequence[Sequence[int]] | None = None,
    element_strides: Sequence[int] | None = None,
    nan_fill: bool = False,
) -> TensorMap:
    """The tensor map of an array argument, which the launch encodes.

    Parameters
    ----------
    array : Array
        An argument of the kernel, no view of one. One axis, any of them, is contiguous, and along
        it the tiles are contiguous too; the other strides and the address are multiples of 16 bytes.
    box : sequence of int
        The shape of a copy, an extent for each axis in the order of the array, known at compile
        time.
    swizzle : int
        Of the tiles, in bytes: 0, 32, 64 or 128; the box is no wider along the contiguous axis.
    im2col : sequence, optional
        The lower and the upper corner of the pixel box, for a map of im2col mode. The array has the
        axes (N, W, C), (N, H, W, C) or (N, D, H, W, C), and the box is (pixels, channels). A corner
        has an int for each axis of pixels. Filter bases run from `lower` to before extent + `upper`.
    element_strides : sequence of int, optional
        In im2col mode, the step from one filter base to the next along each axis of pixels, 1 to 8;
        None: 1.
    nan_fill : bool, optional
        Elements outside the array are the NaN `OOB-NaN`, not zeros; of f16, bf16, f32 and f64. Every
        16 bits of them are 0x7FF7. `fma.rn.oob`, of f16 and bf16, makes products with this NaN 0.

    Returns
    -------
    TensorMap
        For `tma_load` and `tma_store`. `.bytes` is what one copy counts at an mbarrier, parts
        outside the array included; `.prefetch()` fetches the map, `.prefetch(index)` a box into L2.

    Raises
    ------
    OperandError
        A view, a box of another rank or of run-time extents, no contiguous axis.
    LayoutError
        A box wider than its swizzle, an extent above 256, more than five axes, another swizzle.
    ArgumentError
        At the launch: an address or strides that are no multiples of 16 bytes.

    See Also
    --------
    tma_load : With an example.

    Notes
    -----
    Section 5.5 of the PTX manual. Elements outside the array are not stored.
    A convolution of R x S taps with padding P and dilation L has the corners (-P, -P) and
    (P - (R - 1) * L, P - (S - 1) * L), its stride is `element_strides`, and tap (r, s) is loaded with
    the offsets (r * L, s * L).
    """
    peers, rank = getattr(array, "peers", (None, None))
    if peers is not None:
        maps = [
            tensor_map(one, box, swizzle, im2col=im2col, element_strides=element_strides, nan_fill=nan_fill)
            for one in peers.arrays
        ]
        address = peers.choose(rank, [one.address for one in maps])
        return TensorMap(address, maps[0].array, maps[0].described)
    argument = getattr(array, "argument", None)
    if argument is None:
        raise OperandError("a tensor map describes an array argument as it was passed, not a view")
    inner = [d for d, stride in enumerate(array.strides) if not isinstance(stride, Scalar)]
    if not all(isinstance(extent, int) and extent > 0 for extent in box):
        raise OperandError(
            "the box of a tensor map has positive extents known at compile time, not "
            f"{', '.join(map(describe, box))}"
        )
    if nan_fill and not (array.dtype.is_float and array.dtype.itemsize > 1):
        raise OperandError(f"nan_fill is of f16, bf16, f32 and f64; argument {array.name} has {array.dtype}")
    if im2col is not None:
        described = _pixel_map(array, argument, box, swizzle, im2col, element_strides)
        return _parameter(array, replace(described, nan_fill=nan_fill))
    if element_strides is not None:
        raise OperandError(
            "element strides are of im2col mode: write tc.tensor_map(..., im2col=(lower, upper))"
        )
    if len(box) != array.ndim:
        raise OperandError(
            f"the box of a tensor map has an extent for each axis of the array: {array.ndim} of "
            f"argument {array.name}; the box is {tuple(box)}"
        )
    if not inner:
        raise OperandError(
            f"a tensor map needs a contiguous axis, of stride 1; the strides of argument "
            f"{array.name} are {_strides(array)}: pass a contiguous copy"
        )
    first = inner[-1]
    axes = (first, *[d for d in reversed(range(array.ndim)) if d != first])
    if swizzle and box[first] * array.dtype.itemsize > swizzle:
        raise LayoutError(
            f"a box of {box[first]} {array.dtype} is wider than its {swizzle}-byte swizzle: "
            f"argument {array.name} is contiguous along axis {first} (its strides are "
            f"{_strides(array)}), where the box {tuple(box)} has {box[first]}"
        )
    of_axes = tuple(box[d] for d in axes)
    described = nodes.TensorMap(argument, axes, of_axes, swizzle, builder().locate(), nan_fill=nan_fill)
    return _parameter(array, described)


def _pixel_map(
    array: Array,
    argument: int,
    box: Sequence[int],
    swizzle: int,
    corners: Sequence[Sequence[int]],
    steps: Sequence[int] | None,
) -> nodes.TensorMap:
    """The tensor map of im2col mode of an array argument."""
    steps = [1] * (array.ndim - 2) if steps is None else steps
    numbers = [*corners, steps]
    if len(numbers) != 3 or not all(isinstance(n, int) for of in numbers for n in of):
        raise OperandError(
            "im2col= is a lower and an upper corner; these and element_strides= are ints known at compile "
            f"time; given were {', '.join(map(describe, numbers))}"
        )
    if isinstance(array.strides[-1], Scalar):
        raise OperandError(
            f"im2col mode needs the channels last, with stride 1; the strides of argument {array.name} are "
            f"{_strides(array)}: pass a contiguous copy with the axes (N, ..., C)"
        )
    if swizzle and box[-1] * array.dtype.itemsize > swizzle:
        raise LayoutError(f"{box[-1]} {array.dtype} channels are wider than their {swizzle}-byte swizzle")
    axes, inner_first = tuple(reversed(range(array.ndim))), [tuple(reversed(of)) for of in numbers]
    im2col = nodes.Im2col(*inner_first)
    loc = builder().locate()
    return nodes.TensorMap(argument, axes, tuple(reversed(box)), swizzle, loc, im2col)


def _parameter(array: Array, wanted: nodes.TensorMap) -> TensorMap:
    """The parameter of the kernel for a tensor map; maps that are equal share one."""
    kernel = builder().kernel
    for complaint in complaints_about_map(wanted):
        raise LayoutError(f"a tensor map of argument {array.name}: {complaint}")
    for param in kernel.params:
        if param.tensor_map == wanted:
            return TensorMap(Scalar(param.value), array, wanted)
    value = builder().new_value(nodes.Type(dtypes.u64))
    name = f"map{sum(p.tensor_map is not None for p in kernel.params)}"
    kernel.params.append(nodes.Param(name, value, wanted))
    return TensorMap(Scalar(value), array, wanted)


def tma_load(
    tile: Tile,
    source: TensorMap,
    index: Sequence[Any],
    barrier: Mbarrier,
    *,
    offsets: Sequence[Any] | None = None,
    multicast: Any = None,
    policy: Any = None,
    pred: Any = None,
) -> None:
    """Load the box at `index` into `tile`; `barrier` counts its bytes. One thread issues it.

    Parameters
    ----------
    tile : Tile
        Shared memory of the box's shape, element type and swizzle, dense, contiguous along the axis
        along which the array is: row-major, or `tile.T` for a column-major array.
    source : TensorMap
        What `tensor_map` made.
    index : sequence of integers
        The first element of the box, an s32 for each axis in the order of the array; it may lie
        outside. In im2col mode, image, filter base and first channel.
    barrier : Mbarrier
        Of this CTA: its phase waits for `source.bytes`, see `arrive_expect_tx`.
    offsets : sequence of integers, optional
        In im2col mode, how far each pixel lies behind its filter base along the axes of pixels.
    multicast : integer, optional
        A 16-bit mask of the CTAs of the cluster that receive the box, at the same offset in their
        shared memory; each one's own barrier counts the bytes.
    policy : scalar, optional
        An L2 cache policy, b64.
    pred : predicate, optional
        Load only where it holds.

    Raises
    ------
    OperandError
        A tile that is no box of the map, a remote barrier, a mask of CTAs that the cluster lacks.
    ArchError
        A target before sm_90.

    See Also
    --------
    copy_tile : The same with `barrier=`, which makes map and byte count itself.

    Notes
    -----
    `cp.async.bulk.tensor`, section 9.7.9.25.5.2 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel(threads=32)
    ... def corner(x: tc.Array, out: tc.Array):
    ...     boxes = tc.tensor_map(x, (8, 32))
    ...     tile, bar = tc.shared((8, 32), x.dtype, align=128), tc.mbarriers(1)[0]
    ...     if tc.threadIdx.x == 0:
    ...         bar.init(1)
    ...         tc.fence_mbarrier_init()
    ...         bar.arrive_expect_tx(boxes.bytes)
    ...         tc.tma_load(tile, boxes, (4, 0), bar)
    ...     tc.barrier()
    ...     bar.wait(0)
    ...     for row in tc.static_range(8):
    ...         out[row, tc.threadIdx.x] = tile[row, tc.threadIdx.x]
    >>> x = np.arange(16 * 64, dtype=np.float32).reshape(16, 64)
    >>> out = np.zeros((8, 32), np.float32)
    >>> corner[1, 32](x, out)
    >>> bool((out == x[4:12, :32]).all())
    True
    """
    _check_tile(tile, source)
    _check_barrier(barrier)
    if barrier.in_cluster:
        raise OperandError("the mbarrier of a tensor load is one of its own CTA, no remote one")
    if multicast is not None:
        _check_mask(multicast)
    name = names.tensor_load(len(source.axes), source.im2col, multicast is not None, policy is not None)
    options = source.shifts(offsets)
    options += [] if multicast is None else [_u16(multicast, "a multicast mask")]
    options += [] if policy is None else [policy]
    where = source.coordinates(index)
    address, bar = tile.accessed(pred=pred), barrier.accessed(pred=pred)
    emit(name, address, source.address, *where, bar, *options, pred=pred)


def tma_store(
    target: TensorMap, index: Sequence[Any], tile: Tile, *, reduce: str | None = None, pred: Any = None
) -> None:
    """Store `tile` to the box at `index`, or combine it there. One thread issues it.

    The writers of the tile must fence (`fence_proxy_async`) and synchronise before.

    Parameters
    ----------
    target : TensorMap
        What `tensor_map` made.
    index : sequence of integers
        The first element of the box, in the order of the array; what lies outside is not stored.
    tile : Tile
        Shared memory of the box's shape, element type and swizzle, as of `tma_load`.
    reduce : str, optional
        "add", "min", "max", "inc", "dec", "and", "or" or "xor": combine with what is there,
        atomically.
    pred : predicate, optional
        Store only where it holds.

    Raises
    ------
    OperandError
        A tile that is no box of the map, a type that the reduction does not have, a pixel box that
        reaches beyond the image.
    ArchError
        A target before sm_90.

    Notes
    -----
    `cp.async.bulk.tensor`, section 9.7.9.25.5.2 of the PTX manual; with `reduce`,
    `cp.reduce.async.bulk.tensor`, 9.7.9.25.5.3.

    Examples
    --------
    >>> @tc.kernel(threads=32)
    ... def fill(out: tc.Array):
    ...     boxes = tc.tensor_map(out, (8, 32))
    ...     tile = tc.shared((8, 32), out.dtype, align=128)
    ...     for row in tc.static_range(8):
    ...         tile[row, tc.threadIdx.x] = 10 * row
    ...     tc.fence_proxy_async()
    ...     tc.barrier()
    ...     if tc.threadIdx.x == 0:
    ...         tc.tma_store(boxes, (8, 0), tile)
    ...         tc.tma_store_commit()
    ...         tc.tma_store_wait(0)
    >>> out = np.zeros((16, 32), np.float32)
    >>> fill[1, 32](out)
    >>> out[7:11, 0]
    array([ 0.,  0., 10., 20.], dtype=float32)
    """
    _check_tile(tile, target)
    _check_stores(target)
    allowed = reductions.ALLOWED.get(reduce or "", (target.dtype.name,))
    if target.dtype.name not in allowed:
        raise OperandError(f"TMA reduces no {target.dtype} by {reduce}; allowed are {listing(allowed)}")
    name = names.tensor_store(len(target.axes), target.im2col, reduce)
    emit(name, target.address, *target.coordinates(index), tile.accessed(pred=pred), pred=pred)


def _check_stores(target: TensorMap) -> None:
    """Refuse a map of im2col mode by which a GPU does not store."""
    im2col = target.described.im2col
    if im2col is not None and im2col.refuses_stores:
        raise OperandError(im2col.refuses_stores)


def tma_store_commit() -> None:
    """Close the group of this thread's bulk stores since the last commit.

    Raises
    ------
    ArchError
        A target before sm_90.

    See Also
    --------
    tma_store : With an example.

    Notes
    -----
    `cp.async.bulk.commit_group`, section 9.7.9.25.3.1 of the PTX manual.
    """
    emit(names.BULK_COMMIT)


def tma_store_wait(pending: int = 0, *, read: bool = False) -> None:
    """Wait until at most `pending` groups of this thread's bulk stores are in flight.

    Parameters
    ----------
    pending : int
        Groups, 0 or more, known at compile time.
    read : bool
        Wait only until the tiles have been read and may be reused, not until the stores are
        visible.

    Raises
    ------
    OperandError
        A negative number.
    ArchError
        A target before sm_90.

    See Also
    --------
    tma_store : With an example.

    Notes
    -----
    `cp.async.bulk.wait_group`, section 9.7.9.25.3.2 of the PTX manual.
    """
    check_pending(pending)
    emit(names.bulk_wait(read), pending)


def bulk_copy(target: Tile, source: Tile, barrier: Mbarrier, *, pred: Any = None) -> None:
    """Copy a tile asynchronously to a tile of the same type in another CTA of the cluster.

    One thread issues the copy, after the writers of `source` have fenced (`fence_proxy_async`) and
    synchronised.

    Parameters
    ----------
    target : Tile
        In the other CTA: `tile.remote(rank)`.
    source : Tile
        In this CTA, of the same shape, type and swizzle; dense, a multiple of 16 bytes.
    barrier : Mbarrier
        Of the other CTA, `barrier.remote(rank)`, which counts `source.bytes`.
    pred : predicate, optional
        Copy only where it holds.

    Raises
    ------
    OperandError
        A target or barrier of this CTA, tiles that differ, another number of bytes.
    ArchError
        A target before sm_90.

    Notes
    -----
    `cp.async.bulk`, section 9.7.9.25.4.1 of the PTX manual.

    Examples
    --------
    CTA 0 sends 32 numbers to CTA 1:

    >>> @tc.kernel(threads=32)
    ... def send(x: tc.Array):
    ...     tc.cluster_size(2)
    ...     tile, bar = tc.shared(32, x.dtype), tc.mbarriers(1)[0]
    ...     if tc.threadIdx.x == 0:
    ...         bar.init(1)
    ...         tc.fence_mbarrier_init()
    ...         bar.arrive_expect_tx(tile.bytes, pred=tc.cluster_rank() == 1)
    ...     if tc.cluster_rank() == 0:
    ...         tile[tc.threadIdx.x] = x[tc.threadIdx.x]
    ...     tc.fence_proxy_async()
    ...     tc.cluster_sync()
    ...     if (tc.cluster_rank() == 0) & (tc.threadIdx.x == 0):
    ...         tc.bulk_copy(tile.remote(1), tile, bar.remote(1))
    ...     if tc.cluster_rank() == 1:
    ...         bar.wait(0)
    ...         x[tc.threadIdx.x] = tile[tc.threadIdx.x] + 100
    ...     tc.cluster_sync()
    >>> x = np.arange(32, dtype=np.float32)
    >>> send[2, 32](x)
    >>> x[:3]
    array([100., 101., 102.], dtype=float32)
    """
    for tile in (target, source):
        if not isinstance(tile, Tile):
            raise OperandError(f"a bulk copy moves shared tiles, not {describe(tile)}")
    _check_barrier(barrier)
    start = own_address(source, "the source of a bulk copy")
    if target.space != CLUSTER_SPACE or not barrier.in_cluster:
        raise OperandError(
            "a bulk copy goes to another CTA: its target is tile.remote(rank), and its barrier is "
            "barrier.remote(rank)"
        )
    if source.copy_key != target.copy_key or source.bytes % 16:
        raise OperandError(
            f"a bulk copy moves tiles of one kind, dense, from one swizzle's period on, and by "
            f"multiples of 16 bytes; it was given {source.described} and {target.described}"
        )
    source.check_bounds(pred=pred)
    address, bar = target.accessed(pred=pred), barrier.accessed(pred=pred)
    emit(names.BULK_COPY_TO_CLUSTER, address, start, source.bytes, bar, pred=pred)


def _strides(array: Array) -> str:
    """The strides as messages show them: "(?, 1)", where only the launch knows the first."""
    strides = ["?" if isinstance(stride, Scalar) else str(stride) for stride in array.strides]
    return f"({', '.join(strides)}{',' * (len(strides) == 1)})"


def _check_tile(tile: Tile, tensor: TensorMap) -> None:
    """OperandError unless a tile is a box of the map in memory: shape, element type, swizzle."""
    if not isinstance(tile, Tile):
        raise OperandError(f"a tensor copy moves a shared tile, not {describe(tile)}")
    own_address(tile, "a tensor copy")
    memory = tensor.described.box[::-1]
    box = tuple(extent for extent in memory if extent != 1)
    order = sorted(range(tile.ndim), key=lambda axis: -tile.strides[axis])
    shape = tuple(tile.shape[axis] for axis in order if tile.shape[axis] != 1)
    inner, parts = set(row_major(shape)), set(row_major(box))  # axes may be split or joined
    fits = prod(shape) == prod(box) and shape[-1:] == box[-1:]
    fits = fits and (inner <= parts or parts <= inner)
    of_axes = dict(sorted(zip(tensor.axes, zip(memory[::-1], row_major(memory)[::-1]))))
    in_order = _joined(zip(tile.shape, tile.strides)) == _joined(of_axes.values())
    fits = fits and in_order and tile.swizzle == tensor.swizzle
    if not fits or not same_elements(tile.dtype, tensor.dtype):
        swizzle = f" with a {tensor.swizzle}-byte swizzle" if tensor.swizzle else ""
        in_memory = cure = ""
        if tensor.axes[0] != len(tensor.axes) - 1:
            in_memory = f" (in memory {_times(memory)})"
        if in_memory and not in_order:
            strides = tuple(stride for _, stride in of_axes.values())
            wanted = f"tile.T of a tile of {_times(memory)}" if len(memory) == 2 else f"the strides {strides}"
            cure = f"; argument {tensor.array.name} is contiguous along axis {tensor.axes[0]}: give {wanted}"
        raise OperandError(
            f"the map copies boxes of {_times(tensor.box)} {tensor.dtype}{in_memory} to dense "
            f"tiles{swizzle}; {tile.described}, strides {tuple(tile.strides)}, was given{cure}"
        )
    if tile.swizzle and is_number(tile.offset) and tile.offset:
        raise OperandError(
            f"a tensor copy starts where the swizzle does, at a multiple of {tile.period} bytes; "
            f"the view starts {tile.offset} bytes behind one"
        )


def _joined(axes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Extents and strides of axes, in order; neighbours that lie as one axis are joined."""
    joined: list[tuple[int, int]] = []
    for extent, stride in axes:
        if joined and joined[-1][1] == extent * stride:
            joined[-1] = joined[-1][0] * extent, stride
        elif extent != 1:
            joined.append((extent, stride))
    return joined


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _check_barrier(barrier: Any) -> None:
    if not isinstance(barrier, Mbarrier):
        raise OperandError(f"an mbarrier counts the bytes of a copy, not {describe(barrier)}")


def _check_mask(mask: Any) -> None:
    """OperandError for a mask of CTAs that the cluster does not have."""
    ctas = prod(builder().kernel.cluster or (MAX_CLUSTER_CTAS,))
    if not isinstance(mask, Scalar) and not 0 < mask < 1 << ctas:
        raise OperandError(
            f"a multicast mask has a bit for each CTA that receives the box, of {ctas} CTAs; {mask} was given"
        )


def _s32(value: Any) -> Any:
    return integer_operand(value, dtypes.s32, "a coordinate of a box")


def _u16(value: Any, what: str) -> Any:
    value = integer_operand(value, dtypes.u16, what)
    return value if isinstance(value, Scalar) else builder().convert(value, dtypes.u16)
