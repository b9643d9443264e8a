"""The ring of the sm_90a GEMM kernels: slots of shared memory between TMA and wgmma.

Helpers in the kernel language, inlined into each kernel. `full[slot]` tells that a tile has come,
`empty[slot]` that everybody has read it. kernels/roles.py says who does what with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import LINE, SHARED, HopperConfig, HopperTraits


@dataclass
class Sharers:
    """The blocks of a cluster that need the same tile: how many, which of them this is, and all
    of them as bits."""

    count: int
    place: Any
    mask: Any


@dataclass
class Side:
    """One operand: its map, its slots, the boxes that fill a slot, and who brings them."""

    map: Any
    tile: Any
    k_major: bool
    boxes: int
    sharers: Sharers


@dataclass
class Ring:
    """Slots and barriers between the producer and the consumers.

    turn: whose tile it is, of two consumers that take tiles in turn. first, last: the steps of K
    that this block sums; `depth` elements each.
    """

    a: Side
    b: Side
    full: Any
    empty: Any
    turn: Any
    depth: int
    first: Any
    last: Any
    config: HopperConfig


def open_ring(a, b, config: HopperConfig, traits: HopperTraits, helpers: int = 0):
    """Tiles, maps and barriers; every thread of the cluster calls it.

    helpers: warps that fill slots too; consumers' warps then release them one by one.
    """
    depth = LINE // a.dtype.itemsize
    side_a = open_side(a, 0, config.BM, depth, traits.a_k_major, config, config.valid_m)
    side_b = open_side(b, 1, config.BN, depth, traits.b_k_major, config)
    if 0 < config.valid_m < config.BM:
        clear(side_a.tile, config)
    full, empty, turn = open_barriers((side_a.map, side_b.map), config, helpers)
    first, last = steps_of_block(a.shape[-1], depth * config.k_slabs, config)
    return Ring(side_a, side_b, full, empty, turn, depth * config.k_slabs, first, last, config)


def open_barriers(maps, config: HopperConfig, helpers: int = 0):
    """`full` and `empty`, one a slot, and `turn`, ready for the cluster; the maps on their way."""
    full, empty, turn = (tc.mbarriers(count) for count in (config.stages, config.stages, 2))
    if tc.threadIdx.x == 0:
        for map in maps:
            map.prefetch()
        readers = 1 if config.pingpong else config.consumers * (4 if helpers else 1)
        for slot in tc.static_range(config.stages):
            full[slot].init(1 + helpers)
            empty[slot].init(readers * config.multicast_peers)
        for consumer in tc.static_range(2):
            turn[consumer].init(1)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    return full, empty, turn


def open_side(
    array, axis: int, extent: int, depth: int, k_major: bool, config, rows: int = 0, tile=None
):
    """Slots for `extent` rows of A (axis 0) or columns of B (axis 1), `rows` of them brought.

    K-major slots are lines of K, filled in a box by each sharer; others are blocks of K lines, a
    box each. tile: the slots, where they are a part of others.
    """
    stages, sharers = config.stages * config.k_slabs, sharers_of(axis, config)
    width = LINE // array.dtype.itemsize
    check_shares(axis, rows or extent, 8 if k_major else width, sharers.count, config)
    if k_major:
        line, boxes = depth * array.dtype.itemsize, sharers.count
        if tile is None:
            tile = tc.shared((stages, extent, depth), array.dtype, swizzle=line)
        box = as_indexed(axis, (rows or extent) // boxes, depth)
    else:
        line, boxes = LINE, extent // width
        tile = tc.shared((stages, boxes, depth, width), array.dtype, swizzle=line)
        box = as_indexed(axis, width, depth)
    map = tc.tensor_map(array, (1,) * (array.ndim - 2) + box, swizzle=line)
    return Side(map, tile, k_major, boxes, sharers)


def as_indexed(axis: int, along, k):
    """Rows of A (axis 0) come before K, columns of B (axis 1) behind it."""
    return (k, along) if axis else (along, k)


def check_shares(axis: int, lines: int, unit: int, sharers: int, config: HopperConfig):
    """Blocks that share a tile bring whole units of it."""
    if lines % (unit * sharers) and (sharers > 1 or unit > 8):
        what = "columns of B" if axis else "rows of A"
        raise tc.ArgumentError(
            f"{lines} {what} are no multiple of {unit * sharers}, {unit} for each block that "
            f"brings some: {config}"
        )


def sharers_of(axis: int, config: HopperConfig):
    """The blocks of the cluster that need the same rows of A (axis 0), or columns of B (1)."""
    count = (config.cluster_n, config.cluster_m)[axis]
    if count == 1:
        return Sharers(1, 0, None)
    row, col = tc.cluster_rank() % config.cluster_m, tc.cluster_rank() // config.cluster_m
    if axis == 1:
        return Sharers(count, row, tc.u32((1 << count) - 1) << col * config.cluster_m)
    return Sharers(count, col, tc.u32(sum(1 << config.cluster_m * i for i in range(count))) << row)


def clear(tile, config: HopperConfig):
    """Zeros in the lines that no copy reaches."""
    stages, lines, depth = tile.shape
    each = 16 // tile.dtype.itemsize
    chunks = (lines - config.valid_m) * (depth // each)
    for slot in tc.static_range(stages):
        for chunk in tc.range(tc.threadIdx.x, chunks, config.threads):
            line = config.valid_m + chunk // (depth // each)
            words = tile.at(slot, line, chunk % (depth // each) * each).as_type(tc.b32)
            words.store([0, 0, 0, 0])
    tc.fence_proxy_async()


def steps_of_block(K, depth: int, config: HopperConfig):
    """First and past-the-last step of K that this block sums."""
    steps = (K + (depth - 1)) // depth
    if config.split_k == 1:
        return 0, steps
    rank = tc.cluster_rank()
    return rank * steps // config.split_k, (rank + 1) * steps // config.split_k


def fill(side, axis: int, slot, batch, first, k, full):
    """Bring a tile, or this block's share of a tile that others need too."""
    batch = batch[: len(side.map.box) - 2]  # one matrix for all of a batch has no such index
    extent, sharers = side.map.box[len(batch) + axis], side.sharers
    share = side.boxes // sharers.count
    for i in tc.static_range(share):
        box = sharers.place * share + i
        if side.k_major:
            part = side.tile[slot, box * extent : box * extent + extent]
        else:
            part = side.tile[slot, box]
        index = (*batch, *as_indexed(axis, first + box * extent, k))
        tc.tma_load(part, side.map, index, full, multicast=sharers.mask)


def blocks(tile, extent: int):
    """The tile with its second axis cut into blocks of `extent`."""
    stages, length, *rest = tile.shape
    slot, line, *steps = tile.strides
    return tile.with_parts(
        shape=(stages, length // extent, extent, *rest), strides=(slot, line * extent, line, *steps)
    )


def release(empty, config: HopperConfig, by_warps: bool = False):
    """Tell every block that wrote into the slot that this warpgroup has read it; each warp for
    itself where these have read it themselves, not wgmma for all of them."""
    thread = tc.threadIdx.x % 128
    if by_warps:
        tc.syncwarp()
        thread = tc.lane_id()
    if config.multicast_peers == 1:
        empty.arrive(pred=thread == 0)
    else:
        empty.remote(peer(thread, config)).arrive(pred=thread < config.multicast_peers)


def peer(number, config: HopperConfig):
    """The rank of a block in this one's column of the cluster, or after these in its row."""
    if config.cluster_n == 1:
        return number
    row, col = tc.cluster_rank() % config.cluster_m, tc.cluster_rank() // config.cluster_m
    beside = number - config.cluster_m
    beside = beside + (beside >= col).to(tc.s32)
    above = number < config.cluster_m
    return tc.select(above, number + col * config.cluster_m, row + beside * config.cluster_m)


def following(slot, phase, stages: int):
    """The next slot of the ring; the phase turns when the ring is through."""
    last = slot == stages - 1
    return tc.select(last, tc.u32(0), slot + 1), tc.select(last, phase ^ 1, phase)


def skip(slot, phase, steps, stages: int):
    """The slot and phase `steps` further on."""
    place = slot + tc.u32(steps)
    return place % stages, phase ^ (place // stages & 1)


__all__ = ["LINE", "SHARED", "HopperConfig", "HopperTraits", "Ring", "Sharers", "Side"]
