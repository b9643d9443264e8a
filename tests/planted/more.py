"""Bugs in code as it is written from day to day: helpers of a library, views, blocks of odd shapes,
bytes and vectors, tiles of dynamic shared memory, the functions for whole tiles and fragments."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race, RaceWarning
from tests.planted import library
from tests.planted.harness import case, mapped

RACES = (Race, RaceWarning)
ANY = (EmulationError, RaceWarning)
MMA = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)


# -- helpers --------------------------------------------------------------------------------------


@tc.kernel
def sums_by_a_library(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: the tile is used again before all have read it, 2: a warp stays away from the barrier
    inside, 3: the tile is smaller than the block."""
    tile = tc.shared(32 if bug == 3 else 64, tc.s32)
    t = tc.threadIdx.x
    if bug == 2:
        if t < 32:
            total = library.block_sum(tile, x[0, t], 64)  # error 2; race 2: both
            out[0, t] = total
    else:
        out[0, t] = library.block_sum(tile, x[0, t], 64)  # race 1: first; error 3
    if bug != 1:
        tc.barrier()
    out[1, t] = library.block_sum(tile, x[1, t], 64)  # race 1,2: second; error 2


@tc.kernel
def helpers_of_its_own(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A function in the kernel. Bug 1: no barrier between the two calls, 2: an index too far."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x

    def put(place, value):
        tile[place] = value  # race 1: first; error 2

    def mirrored(place):
        return tile[63 - place]  # race 1: second

    put(t + 1 if bug == 2 else t, x[t])
    if bug != 1:
        tc.barrier()
    out[t] = mirrored(t)


@tc.kernel
def lane_of_a_library(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The helper shuffles with all lanes; the bug calls it in a branch."""
    t = tc.threadIdx.x
    value = x[t]
    if bug:
        if t < 16:
            value = library.lane_of(value, 3)  # error
    else:
        other = library.lane_of(value, 3)
        value = tc.select(t < 16, other, value)
    out[t] = value


@tc.kernel
def guarded_by_a_lock(x: tc.Array, out: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """Blocks add to one place under a lock. Bug 1: it is given back too early, 2: one block does
    not take it, 3: it is never given back."""
    if tc.threadIdx.x == 0:
        if bug != 2:
            library.lock(flags.at(0))  # error 3
        elif tc.blockIdx.x > 0:
            library.lock(flags.at(0))
        if bug == 1:
            library.unlock(flags.at(0))
        out[0] = out[0] + x[tc.blockIdx.x]  # race 1,2: both
        if bug in (0, 2):
            library.unlock(flags.at(0))


def locked(draw):
    x = draw.integers(1, 100, 3).astype(np.int32)
    return {"x": x, "out": np.zeros(1, np.int32), "flags": np.zeros(1, np.int32)}, {
        "out": x.sum(keepdims=True)
    }


# -- blocks ---------------------------------------------------------------------------------------


@tc.kernel
def square_block(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Blocks of 16 x 16 transpose a tile. Bug 1: no barrier, 2: rows and columns of 15, 3: a
    barrier for the rows below 8 alone, 4: y where x is meant, so that columns share a place."""
    tile = tc.shared((16, 15 if bug == 2 else 16), tc.s32)
    col, row = tc.threadIdx.x, tc.threadIdx.y
    tile[row, row if bug == 4 else col] = x[row, col]  # race 1,3: first; race 4: both; error 2
    if bug == 3:
        if row < 8:
            tc.barrier(1, 128)
    elif bug != 1:
        tc.barrier()
    out[row, col] = tile[col, row]  # race 1,3: second; error 4


@tc.kernel
def odd_block(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """48 threads, which count as 64 at a barrier. Bug 1: one of 96, 2: a shuffle with lanes that do not exist, 3: the
    second warp reads what the first has not published, 4: a stride of 64 leaves places unwritten."""
    tile = tc.shared(96, tc.s32)
    t = tc.threadIdx.x
    for i in tc.range(t, 96, 64 if bug == 4 else 48):
        tile[i] = x[i]  # race 3: first
    if bug == 1:
        tc.barrier(1, 96)  # error 1
    elif bug != 3:
        tc.barrier(1, 64)
    value = tile[t] + tile[95 - t]  # race 3: second; error 4
    if bug == 2:
        if t >= 32:
            value += 0 * tc.shfl(value, 31)  # error 2
    out[t] = value


@tc.kernel
def turns_known_at_compile_time(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Two buffers in unrolled turns. Bug 1: a barrier only in even turns, 2: one buffer."""
    tile = tc.shared((2, 64), tc.s32)
    t, total = tc.threadIdx.x, 0
    for i in tc.static_range(4):
        tile[0 if bug == 2 else i % 2, t] = x[i, t]  # race 1,2: first
        if bug != 1 or i % 2 == 0:
            tc.barrier()
        total += tile[0 if bug == 2 else i % 2, 63 - t]  # race 1,2: second
    out[t] = total


# -- bytes and vectors ----------------------------------------------------------------------------


@tc.kernel
def bytes_of_a_word(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Each thread has a byte of its own, which is no race. Bug 1: words over the neighbours' bytes,
    2: a byte for two threads, 3: words that begin at any byte."""
    tile = tc.shared(68, tc.s8, align=16)
    t = tc.threadIdx.x
    tile[t // 2 if bug == 2 else t] = x[t]  # race 2: both; race 1: first
    if bug == 1:
        if t % 4 == 1:
            tile.at(t - 1).as_type(tc.s32).store(tc.s32(0))  # race 1: second
    tc.barrier()
    if bug == 3:
        out[t] = tile.at(63 - t).as_type(tc.s32).load().to(tc.s8)  # error 3
    else:
        out[t] = tile[63 - t]  # error 2


def some_bytes(draw):
    x = draw.integers(-9, 9, 64).astype(np.int8)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x[::-1].copy()}


@tc.kernel
def small_floats(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """e4m3 in shared memory, four by four. Bug 1: no barrier, 2: vectors that overlap by half,
    3: the last vector lies outside."""
    tile = tc.shared(128, tc.e4m3, align=16)
    t = tc.threadIdx.x
    place = 4 * t + 4 if bug == 3 else 4 * t
    tile.at(place).store(x.at(4 * t).load(4))  # race 1,2: first; error 3
    if bug == 2:
        tile.at((4 * t + 6) % 128).store(x.at(4 * t).load(2))  # race 2: second
    if bug != 1:
        tc.barrier()
    out.at(4 * t).store(tile.at(124 - 4 * t).load(4))  # race 1: second


def small(draw):
    import ml_dtypes

    x = draw.integers(-8, 8, 128).astype(ml_dtypes.float8_e4m3fn)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.reshape(32, 4)[::-1].ravel().copy()}


@tc.kernel
def vectors_of_sixteen_bytes(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: a vector of two threads, 2: begins 8 bytes late, 3: another warp reads a part
    without a barrier, 4: vectors of 2 into a tile that is 4 bytes off."""
    tile = tc.shared(264, tc.s32, align=16)
    t = tc.threadIdx.x
    place = {1: 4 * (t // 2), 2: 4 * t + 2}.get(bug, 4 * t)
    values = x.at(4 * t).load(4)
    if bug == 4:
        tile.at(4 * t + 1).store([values[0], values[1]])  # error 4
    tile.at(place).store(values)  # race 1: both; race 3: first; error 2
    if bug != 3:
        tc.barrier()
    for i in tc.static_range(4):
        out[4 * t + i] = tile[255 - (4 * t + i)]  # race 3: second; error 1


# -- views ----------------------------------------------------------------------------------------


@tc.kernel
def views_of_views(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A row of a half of a matrix. Bug 1: a column outside of the half, 2: a row outside, inside of
    the array, 3: blocks whose halves overlap."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    half = x[4 * b : 4 * b + 4, :]
    part = half[:, 8:24]
    target = out[3 * b if bug == 3 else 4 * b :, :]
    row, col = t // 8, t % 8
    value = part[row + 1 if bug == 2 else row, col + 9 if bug == 1 else col]  # error 1,2
    target[row, col] = value  # race 3: both


@tc.kernel
def reversed_and_transposed(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """x is a transposed, reversed view of the caller's. Bug 1: an index as if it were not
    transposed, 2: one before the first, which lies inside of the caller's memory."""
    row, col = tc.threadIdx.x // 8, tc.threadIdx.x % 8
    if bug == 1:
        out[row, col] = x[col, row] if False else x[col + 4, row]  # error 1
    else:
        out[row, col] = x[row - 1 if bug == 2 else row, col]  # error 2


def turned(draw):
    base = draw.integers(1, 99, (8, 6)).astype(np.int32)
    x = base.T[4:0:-1]  # 4 x 8, negative strides
    return {"x": x, "out": np.zeros((4, 8), np.int32)}, {"out": x.copy()}


@tc.kernel
def the_same_memory_twice(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Both arguments are views of one array: out begins 32 elements behind x. The bug reads what
    another block writes."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    if bug:
        out[32 * b + t] = x[32 * b + t]  # race: both
    else:
        if b == 0:
            out[t] = x[t]
        else:
            out[32 + t] = x[t]


def shifted(draw):
    base = np.concatenate((draw.integers(1, 99, 32), np.zeros(64))).astype(np.int32)
    out = base[32:]
    return {"x": base[:64], "out": out}, {"out": np.concatenate((base[:32], base[:32]))}


@tc.kernel
def swizzled_tile(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Rows of 64 bf16 with a swizzle, half a row for each thread. Bug 1: no barrier, 2: a row
    too far."""
    tile = tc.shared((64, 64), tc.bf16, swizzle=128)
    t = tc.threadIdx.x
    row, col = t // 2, t % 2 * 32
    for i in tc.static_range(4):
        tile.at(row + 1 if bug == 2 else row, col + 8 * i).store(  # race 1: first; error 2
            x.at(row, col + 8 * i).load(8)
        )
    if bug != 1:
        tc.barrier()
    for i in tc.static_range(4):
        out.at(row, col + 8 * i).store(tile.at(63 - row, col + 8 * i).load(8))  # race 1: second


def halves(draw):
    import ml_dtypes

    x = draw.integers(-8, 8, (64, 64)).astype(ml_dtypes.bfloat16)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x[::-1].copy()}


@tc.kernel
def dynamic_tiles(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Three tiles of dynamic memory; the third takes the place of the first, on purpose. Bug 1: no
    barrier before it does, 2: read behind the last tile's end."""
    first = tc.dynamic_shared(64, tc.s32)
    second = tc.dynamic_shared(64, tc.s32, offset=256)
    third = tc.dynamic_shared((8, 8), tc.s32, overlap=True)
    t = tc.threadIdx.x
    first[t] = x[t]
    second[t] = -x[t]
    tc.barrier()
    value = first[63 - t] + second[t + 1 if bug == 2 else t]  # race 1: first; error 2
    if bug != 1:
        tc.barrier()
    third[t // 8, t % 8] = value  # race 1: second
    tc.barrier()
    out[t] = third[t % 8, t // 8]


def folded(x):
    return (x[::-1] - x).reshape(8, 8).T.ravel()


# -- whole tiles and fragments --------------------------------------------------------------------


@tc.kernel
def copied_tile(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """copy_tile to shared memory and back. Bug 1: no barrier behind it, 2: the box hangs over the
    end, 3: half of the threads copy, and all are waited for as if they had."""
    tc.launch_bounds(64)
    tile = tc.shared((16, 16), tc.s32)
    t = tc.threadIdx.x
    if bug == 3:
        if t < 32:
            tc.copy_tile(tile, x, (0, 0), threads=64, thread=t)
    else:
        tc.copy_tile(tile, x, (1 if bug == 2 else 0, 0))  # race 1: first; error 1,2
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    if bug != 1:
        tc.barrier()
    for i in tc.static_range(4):
        place = 64 * i + t
        out[place // 16, place % 16] = tile[15 - place // 16, place % 16]  # race 1: second; error 1,3


@tc.kernel
def stored_fragment(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A fragment by way of shared memory. Bug 1: no syncwarp behind stmatrix, 2: none behind
    store_elements, 3: the fragment lies outside of the array, 4: both warps use one tile."""
    tile = tc.shared((2, 16, 16), tc.f16)
    t, warp = tc.lane_id(), tc.warp_id()
    values = tc.load_elements(x, MMA.a, origin=(8 if bug == 3 else 0, 0))  # error 3
    mine = tile[0 if bug == 4 else warp]
    if bug == 2:
        tc.store_elements(mine, values)  # race 2: first
    else:
        tc.stmatrix(mine, values)  # race 1: first; race 4: both
    if bug not in (1, 2):
        tc.syncwarp()
    for i in tc.static_range(8):
        place = 32 * i + t
        out[warp, place // 16, place % 16] = mine[15 - place // 16, place % 16]  # race 1,2,4: second


def fragments(draw):
    x = draw.integers(-8, 8, (16, 16)).astype(np.float16)
    return {"x": x, "out": np.zeros((2, 16, 16), np.float16)}, {"out": np.stack([x[::-1]] * 2)}


@tc.kernel
def read_by_ldmatrix(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: no barrier before ldmatrix, 2: stored over behind it without one, 3: lanes missing."""
    tile = tc.shared((16, 16), tc.f16)
    t = tc.threadIdx.x
    for i in tc.static_range(4):
        place = 64 * i + t
        tile[place // 16, place % 16] = x[place // 16, place % 16]  # race 1: first
    if bug != 1:
        tc.barrier()
    if bug == 3:
        if t % 32 < 16:
            values = tc.ldmatrix(tile, MMA.a)  # error 3
            tc.store_elements(out, values)
    else:
        values = tc.ldmatrix(tile, MMA.a)  # race 1: second; race 2: first
        if bug == 2:
            tile[t // 4, t % 4] = 0.0  # race 2: second
        if t < 32:
            tc.store_elements(out, values)


def one_fragment(draw):
    x = draw.integers(-8, 8, (16, 16)).astype(np.float16)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.copy()}


# -- tensor maps ----------------------------------------------------------------------------------


@tc.kernel
def box_of_rank_three(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: too few bytes, 2: no wait, 3: read on another warp's word that it has come, 4: rank 3
    beyond the array in all of its boxes."""
    map = tc.tensor_map(x, (2, 4, 8))
    tile = tc.shared((2, 4, 8), tc.s32, align=128)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(128 if bug == 1 else map.bytes)  # error 1
        tc.tma_load(tile, map, (9 if bug == 4 else 1, 0, 0), bar)  # race 2,3: first; error 1,2,3,4
    if bug == 3:
        if t < 32:
            bar.wait(0)
    elif bug != 2:
        bar.wait(0)  # error 1
    out[t] = tile[1 - t // 32, t // 8 % 4, t % 8]  # race 2,3: second; error 1,2,3


def boxes(draw):
    x = draw.integers(1, 99, (4, 4, 8)).astype(np.int32)
    return {"x": x, "out": np.zeros(64, np.int32)}, {"out": x[2:0:-1].ravel()}


@tc.kernel
def line_of_rank_one(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Blocks add lines to `out` in bulk. Bug 1: no proxy fence, 2: a plain store of one of them,
    3: stores instead of sums, 4: no barrier, 5: the tile is used again before it has been read."""
    map = tc.tensor_map(out, (64,))
    tile = tc.shared(64, tc.s32, align=128)
    t = tc.threadIdx.x
    tile[t] = x[tc.blockIdx.x, t]  # race 1,4,5: first
    if bug != 1:
        tc.fence_proxy_async()
    if bug != 4:
        tc.barrier()
    if t == 0:
        tc.tma_store(  # race 1,4,5: second; race 3: both; race 2: first
            map, (0,), tile, reduce=None if bug == 3 else "add"
        )
        tc.tma_store_commit()
    if bug == 5:
        tile[63 - t] = 0  # race 5: first
    if bug == 2:
        if tc.blockIdx.x == 1:
            out[t] = 0  # race 2: second
    if t == 0:
        tc.tma_store_wait(0)


# -- warps ----------------------------------------------------------------------------------------


@tc.kernel
def elected_lane(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: elect in a branch of a part of the warp, 2: what it stored is read without syncwarp."""
    tile = tc.shared(2, tc.s32)
    t, warp = tc.lane_id(), tc.warp_id()
    if bug == 1:
        if t < 8:
            if tc.elect():  # error 1
                tile[warp] = x[warp, 0]  # error 1; race 1: first
    else:
        if tc.elect():
            tile[warp] = x[warp, 0]  # race 2: first
    if bug != 2:
        tc.syncwarp()
    out[warp, t] = x[warp, t] + tile[warp]  # race 2: second


@tc.kernel
def groups_of_equal_keys(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Lanes with equal keys meet. Bug 1: with the others' mask, 2: lane 0 shuffles for all of a
    group that is not there."""
    lane = tc.lane_id()
    mask = tc.match_any(x[lane] % 2)
    if x[lane] % 2 == 0:
        tc.syncwarp(~mask if bug == 1 else mask)  # error 1
        if bug == 2:
            out[lane] = tc.shfl(x[lane], 0)  # error 2
        else:
            out[lane] = x[lane]
    else:
        out[lane] = x[lane]


@tc.kernel
def registers_of_a_part(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """setmaxnreg. Bug 1: by one warp of a warpgroup, 2: by half of a warp."""
    tc.launch_bounds(128)
    t = tc.threadIdx.x
    if bug == 1:
        if t < 32:
            tc.setmaxnreg(40, grow=False)  # error 1
    elif bug == 2:
        if t % 32 < 16:
            tc.setmaxnreg(40, grow=False)  # error 2
    else:
        tc.setmaxnreg(40, grow=False)
    out[t] = x[t]


# -- atomics --------------------------------------------------------------------------------------


@tc.kernel
def counters(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Sums by atomics of all blocks. Bug 1: of the scope of a block, 2: a plain read of what others
    still add to, 3: as two halves of 16 bits by one of the threads, 4: set to zero by block 0."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    if bug == 4:
        if (b == 0) & (t == 0):
            out[0] = 0  # race 4: first
    if bug == 1:
        tc.emit("red.relaxed.cta.global.add.s32", out.at(0), x[32 * b + t])  # race 1: both
    elif bug == 3:
        if (b == 1) & (t == 1):
            out.at(0).as_type(tc.s16).store(tc.s16(0))  # race 3: first
        tc.reduce("add", out.at(0), x[32 * b + t])  # race 3: second
    else:
        tc.reduce("add", out.at(0), x[32 * b + t])  # race 2: first; race 4: second
    if bug == 2:
        if t == 0:
            out[1 + b] = 0 * out[0]  # race 2: second


@tc.kernel
def histogram(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """In shared memory, then in global memory. Bug 1: no barrier behind the zeroes, 2: none before
    it is read, 3: plain additions, 4: a bin too many."""
    bins = tc.shared(8, tc.u32)
    t = tc.threadIdx.x
    if t < 8:
        bins[t] = tc.u32(0)  # race 1: first
    if bug != 1:
        tc.barrier()
    which = x[t] % 8
    if bug == 3:
        bins[which] = bins[which] + 1  # race 3: both
    else:
        tc.reduce(  # race 1: second; race 2: first; error 4
            "inc", bins.at(which + 1 if bug == 4 else which), tc.u32(1000)
        )
    if bug != 2:
        tc.barrier()
    if t < 8:
        out[t] = bins[t].to(tc.s32)  # race 2: second


# -- loops ----------------------------------------------------------------------------------------


@tc.kernel
def loops_of_floats(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: a step that rounding swallows, 2: equality with a number that is never met, 3: a
    comparison with NaN that is always true."""
    t = tc.threadIdx.x
    value = x[t].to(tc.f32)
    count = 0
    if bug == 1:
        value = tc.f32(2.0**25) + 0.0 * value
        while value < 2.0**25 + 64:  # error 1
            value += 1.0  # error 1
    elif bug == 2:
        value = value - value
        while value != 1.0:  # error 2
            value += 0.3  # error 2
            value = tc.minimum(value, 10.0)  # error 2
    elif bug == 3:
        value = (value - value) / (value - value)
        while not (value > 3.0):  # error 3
            value += 1.0  # error 3
    else:
        while value > 1.0:
            value = value * 0.5
            count += 1
    out[t] = count


def halvings(x):
    return np.ceil(np.log2(x)).astype(np.int32)


@tc.kernel
def waits_for_a_word(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A warp waits for another's word in shared memory. Bug 1: which that warp writes behind a
    barrier of both, 2: to another place, 3: for one more than is counted."""
    flags = tc.shared(2, tc.s32)
    t = tc.threadIdx.x
    if t < 2:
        flags[t] = 0
    tc.barrier()
    if t < 32:
        if bug == 1:
            tc.barrier(1, 64)  # error 1
        tc.emit("red.release.cta.shared.add.s32", flags.at(1 if bug == 2 else 0), 1)
    else:
        while tc.emit("ld.acquire.cta.shared.b32", flags.at(0)).bits(tc.s32) < (
            33 if bug == 3 else 32
        ):  # error
            tc.emit("nanosleep.u32", 20)
        if bug == 1:
            tc.barrier(1, 64)  # error 1
    out[t] = x[t]


def numbered(kernel, bugs, block, make, errors=ANY, grid=1, **more):
    return [case(kernel, grid, block, make, *errors, bug=bug, **more) for bug in range(1, bugs + 1)]


same = lambda x: x.copy()  # noqa: E731

CASES = [
    *numbered(
        sums_by_a_library,
        3,
        64,
        mapped((2, 64), lambda x: np.repeat(x.sum(1, keepdims=True), 64, 1).astype(np.int32)),
    ),
    *numbered(helpers_of_its_own, 2, 64, mapped(64, lambda x: x[::-1].copy())),
    *numbered(
        lane_of_a_library, 1, 32, mapped(32, lambda x: np.concatenate((np.repeat(x[3:4], 16), x[16:])))
    ),
    *numbered(guarded_by_a_lock, 3, 32, locked, grid=3),
    *numbered(square_block, 4, (16, 16), mapped((16, 16), lambda x: x.T.copy())),
    *numbered(odd_block, 4, 48, mapped(96, lambda x: x[:48] + x[:47:-1])),
    *numbered(
        turns_known_at_compile_time, 2, 64, mapped((4, 64), lambda x: x[:, ::-1].sum(0).astype(np.int32))
    ),
    *numbered(bytes_of_a_word, 3, 64, some_bytes),
    *numbered(small_floats, 3, 32, small),
    *numbered(vectors_of_sixteen_bytes, 4, 64, mapped(256, lambda x: x[::-1].copy())),
    *numbered(views_of_views, 3, 32, mapped((8, 24), lambda x: x[:, 8:16].copy()), grid=2),
    *numbered(reversed_and_transposed, 2, 32, turned),
    *numbered(the_same_memory_twice, 1, 32, shifted, grid=2),
    *numbered(swizzled_tile, 2, 128, halves),
    *numbered(dynamic_tiles, 2, 64, mapped(64, folded), shared_bytes=512),
    *numbered(copied_tile, 3, 64, mapped((16, 16), lambda x: x[::-1].copy())),
    *numbered(stored_fragment, 4, 64, fragments),
    *numbered(read_by_ldmatrix, 3, 64, one_fragment),
    *numbered(box_of_rank_three, 4, 64, boxes),
    *numbered(line_of_rank_one, 5, 64, mapped((3, 64), lambda x: x.sum(0).astype(np.int32)), grid=3),
    *numbered(elected_lane, 2, 64, mapped((2, 32), lambda x: x + x[:, :1])),
    *numbered(groups_of_equal_keys, 2, 32, mapped(32, same)),
    *numbered(registers_of_a_part, 2, 128, mapped(128, same)),
    *numbered(counters, 4, 32, mapped(64, lambda x: np.array([x.sum(), 0, 0], np.int32)), grid=2),
    *numbered(histogram, 4, 64, mapped(64, lambda x: np.bincount(x % 8, minlength=8).astype(np.int32))),
    *numbered(loops_of_floats, 3, 32, mapped(32, halvings)),
    *numbered(waits_for_a_word, 3, 64, mapped(64, same)),
]
