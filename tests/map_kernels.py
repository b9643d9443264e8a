"""Kernels that make tensor maps in memory, for the emulator's tests and for a GPU."""

from __future__ import annotations

from mmap import mmap

import numpy as np

import tensorcore_dsl as tc

REPLACE = "tensormap.replace.tile.{}.{}.b1024.b{}"
LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
COPY = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
CASES = [
    ((40, 64), np.float32, (8, 32), [(0, 0), (32, 32), (16, 8)], 128),
    ((40, 64), np.float16, (16, 32), [(30, 40), (3, 0)], 64),
    ((100,), np.int32, (64,), [(64,), (0,)], 0),
    ((5, 6, 16), np.uint8, (2, 3, 16), [(4, 1, 0), (1, 4, 0)], 0),
    ((3, 4, 6, 8), np.float64, (2, 2, 4, 4), [(1, 2, 3, 4)], 32),
    ((2, 3, 4, 3, 64), np.uint16, (2, 2, 2, 2, 64), [(0, 1, 3, 2, 0)], 128),
]  # shape, element type, box, corners, swizzle
ELEMENT = {"uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "float16": 6, "float32": 7, "float64": 9}


def room_for_maps(blocks: int) -> np.ndarray:
    """Zeros for two maps a block, from a page on: on a GPU, arrays start as they do modulo 256 bytes."""
    return np.frombuffer(mmap(-1, 256 * blocks), np.uint64).reshape(blocks, 2, 16)


def describe(place, space, array, box, swizzle, element, fill):
    """Set all fields of the map at `place`; all axes of the array are contiguous."""
    rank, size = len(box), array.dtype.itemsize
    tc.emit(REPLACE.format("global_address", space, 64), place, array.at(*[0] * rank).address)
    tc.emit(REPLACE.format("rank", space, 32), place, rank - 1)
    stride = tc.u64(size)
    for axis in range(rank):
        extent = array.shape[rank - 1 - axis]
        tc.emit(REPLACE.format("global_dim", space, 32), place, axis, tc.u32(extent))
        tc.emit(REPLACE.format("box_dim", space, 32), place, axis, box[rank - 1 - axis])
        tc.emit(REPLACE.format("element_stride", space, 32), place, axis, 1)
        if axis < rank - 1:
            stride = stride * tc.u64(extent)
            tc.emit(REPLACE.format("global_stride", space, 64), place, axis, stride)
    tc.emit(REPLACE.format("elemtype", space, 32), place, element)
    tc.emit(REPLACE.format("interleave_layout", space, 32), place, 0)
    tc.emit(REPLACE.format("swizzle_mode", space, 32), place, {0: 0, 32: 1, 64: 2, 128: 3}[swizzle])
    tc.emit(REPLACE.format("fill_mode", space, 32), place, fill)


@tc.kernel
def boxes_by_maps(
    y,
    maps,
    corner,
    x,
    box: tc.Const,
    element: tc.Const,
    swizzle: tc.Const = 0,
    through: tc.Const = "shared",
    mistake: tc.Const = "",
    fill: tc.Const = 0,
):
    """Each block copies a box of x to the same place of y, by maps that it makes of both.

    maps: (blocks, 2, 16) words of 64 bits. through: where the fields are set.
    """
    tc.launch_bounds(32)
    rank, block, t = len(box), tc.blockIdx.x, tc.threadIdx.x
    size = x.dtype.itemsize
    for extent in box:
        size = size * extent
    tile, bar = tc.shared(size, tc.u8, align=1024), tc.mbarriers(1)[0]
    parts = tc.shared((2, 16), tc.u64, align=128)
    for i, array in enumerate((x, y)):
        place, words = maps.at(block, i, 0), parts
        if t < 16:
            if through == "shared":
                parts[i, t] = 0
            else:
                maps[block, i, t] = 0
        tc.syncwarp()
        if t == 0:
            target = place.address if through == "global" else words.at(i, 0).address
            space = "global" if through == "global" else "shared::cta"
            describe(target, space, array, box, swizzle, element, fill)
            if mistake == "rank":
                tc.emit(REPLACE.format("rank", space, 32), target, rank)
            if mistake == "larger":
                extent = tc.u32(array.shape[0]) + 1
                tc.emit(REPLACE.format("global_dim", space, 32), target, rank - 1, extent)
            if mistake == "interleaved":
                tc.emit(REPLACE.format("interleave_layout", space, 32), target, 1)
            if (through == "global") & (mistake != "no release"):
                tc.emit("fence.proxy.tensormap::generic.release.gpu")
        tc.syncwarp()
        if through == "shared":
            tc.emit(COPY, place.address, words.at(i, 0).address, 128)
        tc.syncwarp()
        if mistake != "no acquire":
            tc.emit("fence.proxy.tensormap::generic.acquire.gpu", place.address, 128)
    if t == 0:
        if mistake == "changed":
            tc.emit(REPLACE.format("rank", "global", 32), maps.at(block, 0, 0).address, rank - 1)
            maps[block, 0, 15] = 1
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(size)
        where = [tc.s32(corner[block, rank - 1 - axis]) for axis in range(rank)]
        source, target = maps.at(block, 0, 0).address, maps.at(block, 1, 0).address
        tc.emit(LOAD.format(rank), tile.at(0).address, source, *where, bar.address)  # load
        if mistake == "loading":
            maps[block, 0, 15] = 1  # too early for the load
        bar.wait(0)
        maps[block, 0, 15] = 1
        tc.emit(STORE.format(rank), target, *where, tile.at(0).address)  # store
        tc.tma_store_commit()
        if mistake == "storing":
            maps[block, 1, 15] = 1  # too early for the store
        tc.tma_store_wait(0, read=True)
        maps[block, 1, 15] = 1
        tc.tma_store_wait(0)


@tc.kernel
def map_with(maps: tc.Array, x: tc.Array, box: tc.Const, stride: tc.Const):
    """A map of x with a box and, if not 0, a stride of rows."""
    tc.launch_bounds(32)
    if tc.threadIdx.x == 0:
        place = maps.at(0, 0, 0).address
        describe(place, "global", x, box, 0, ELEMENT["float32"], 0)
        if stride:
            tc.emit(REPLACE.format("global_stride", "global", 64), place, 0, stride)
        tc.emit("fence.proxy.tensormap::generic.release.gpu")


@tc.kernel
def maps_of_rows(maps: tc.Array, x: tc.Array):
    """Block i makes a map of row i of x, in memory."""
    tc.launch_bounds(32)
    block = tc.blockIdx.x
    if tc.threadIdx.x == 0:
        place = maps.at(block, 0, 0).address
        describe(place, "global", x, (1, 32), 0, ELEMENT["float32"], 0)
        tc.emit("fence.proxy.tensormap::generic.release.gpu")


@tc.kernel
def rows_by_maps(y: tc.Array, maps: tc.Array, x: tc.Array):
    """Block i copies row i of x by map i."""
    tc.launch_bounds(32)
    block, tile, bar = tc.blockIdx.x, tc.shared((1, 32), tc.f32, align=128), tc.mbarriers(1)[0]
    place = maps.at(block, 0, 0).address
    if tc.threadIdx.x == 0:
        tc.emit("fence.proxy.tensormap::generic.acquire.gpu", place, 128)
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(tile.bytes)
        tc.emit(LOAD.format(2), tile.at(0, 0).address, place, 0, block, bar.address)
    tc.barrier()
    bar.wait(0)
    y[block, tc.threadIdx.x] = tile[0, tc.threadIdx.x]
