"""Accesses outside of arrays, tiles and views, misaligned, uninitialised or at wrong addresses."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import ArgumentError, EmulationError, Misaligned, OutOfBounds, Uninitialised
from tests.planted.harness import mapped, variants

OUTSIDE = (OutOfBounds, EmulationError)

# -- arrays -------------------------------------------------------------------------------------


@tc.kernel
def off_by_one(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    t = tc.threadIdx.x
    if mistake == "behind the end":
        value = x[t + 1]  # error
    elif mistake == "before the start":
        value = x[t - 1]  # error
    else:
        value = x[(t + 1) % x.shape[0]]
    out[t] = value


@tc.kernel
def column_runs_into_the_next_row(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """Inside of the array as a whole, outside of the row."""
    row, col = tc.warp_id(), tc.lane_id()
    out[row, col] = x[row, col + 1 if mistake else (col + 1) % 32]  # error


@tc.kernel
def view_is_left(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """A view of 16 elements in an array of 64; the block has 32 threads."""
    part = x[16 * tc.blockIdx.x : 16 * tc.blockIdx.x + 16]
    t = tc.threadIdx.x
    if mistake:
        out[tc.blockIdx.x, t % 16] = part[t]  # error
    else:
        if t < 16:
            out[tc.blockIdx.x, t] = part[t]


@tc.kernel
def pointer_walks_away(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    t = tc.threadIdx.x
    step = 9 if mistake == "step too large" else 8
    if mistake == "backwards":
        out[t] = (x.at(t // 8, 0) - (t % 8 + 1)).load()  # error
    else:
        out[t] = (x.at(0, 0) + (step * (t // 8) + t % 8)).load()  # error


@tc.kernel
def vector_over_the_end(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """30 elements in vectors of four: the last vector has two of them."""
    i = 4 * tc.threadIdx.x
    if mistake:
        if i < x.shape[0]:
            vector = x.at(i).load(4)  # error
            for j in tc.static_range(4):
                out.at(i + j).store(vector[j], pred=i + j < x.shape[0])
    else:
        for j in tc.static_range(4):
            out.at(i + j).store(x.at(i + j).load(pred=i + j < x.shape[0]), pred=i + j < x.shape[0])


@tc.kernel
def vector_over_the_end_of_a_row(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """Rows of 18 elements: a vector of four at column 16 is half in the next row."""
    row = 2 * tc.threadIdx.x
    if mistake:
        vector = x.at(row, 16).load(4)  # error
    else:
        vector = x.at(row, 16).load(2)
    out[tc.threadIdx.x] = vector[0] + vector[1]


@tc.kernel
def wider_type(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """As 64-bit words an array has half as many elements."""
    t = tc.threadIdx.x
    words = x.at(0).as_type(tc.s64)
    value = (words + (t if mistake else t // 2)).load()  # error
    out[t] = (value if mistake else value >> 32 * (t % 2).to(tc.u32)).to(tc.s32)


@tc.kernel
def empty_array(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    first = x.at(0).load(pred=(x.shape[0] > 0) | bool(mistake), otherwise=7)  # error
    out[tc.threadIdx.x] = first


def nothing(draw):
    return {"x": np.zeros(0, np.int32), "out": np.zeros(32, np.int32)}, {"out": np.full(32, 7, np.int32)}


@tc.kernel
def read_only_array(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    if mistake:
        x[tc.threadIdx.x] = 0  # error
    out[tc.threadIdx.x] = x[tc.threadIdx.x]


def fixed(draw):
    x = draw.integers(1, 1000, 32).astype(np.int32)
    x.flags.writeable = False
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.copy()}


@tc.kernel
def fragment_hangs_over(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """An array of 12 x 8, a fragment of 16 x 8."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    values = tc.load_elements(x, mma.c, bounded=mistake != "loaded")  # error 2
    tc.store_elements(out, values, bounded=mistake != "stored")  # error 1


def twelve_rows(draw):
    x = draw.integers(-9, 9, (12, 8)).astype(np.float32)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.copy()}


@tc.kernel
def tile_hangs_over(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """A box of 8 x 32 at a run-time column of an array of 8 x 40."""
    tc.launch_bounds(32)
    tile = tc.shared((8, 32), tc.s32)
    col = 32 * tc.blockIdx.x
    tc.copy_tile(tile, x, (0, col), bounded=mistake != "load")  # error 1
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    tc.syncwarp()
    tc.copy_tile(out, tile, (0, col), bounded=mistake != "store")  # error 2


# -- shared memory ------------------------------------------------------------------------------


@tc.kernel
def tile_axis_is_left(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    tile, other = tc.shared((2, 32), tc.s32), tc.shared((2, 32), tc.s32)
    t, n = tc.lane_id(), x.shape[0]
    for row in range(2):
        tile[row, t] = x[row, t]
        other[row, t] = 0
    tc.syncwarp()
    if mistake == "column":
        value = tile[0, t + 1]  # error
    elif mistake == "row":
        value = tile[n, t]  # error
    elif mistake == "negative":
        value = tile[1, t - 1]  # error
    else:
        value = tile[n - 1, t]
    out[t] = value + other[0, t]


@tc.kernel
def histogram_bin_outside(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """Values from 0 to 16 in 16 bins; the atomic adds to what lies behind."""
    bins, behind = tc.shared(16, tc.s32), tc.shared(16, tc.s32)
    t = tc.threadIdx.x
    if t < 16:
        bins[t] = 0
        behind[t] = 0
    tc.syncwarp()
    tc.reduce("add", bins.at(x[t] % 17 if mistake else x[t] % 16), 1)  # error
    tc.syncwarp()
    if t < 16:
        out[t] = bins[t] + behind[t]


def seventeens(draw):
    x = np.arange(32, dtype=np.int32)
    return {"x": x, "out": np.zeros(16, np.int32)}, {
        "out": np.bincount(x % 16, minlength=16).astype(np.int32)
    }


@tc.kernel
def view_of_a_tile_is_left(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    tile = tc.shared((4, 32), tc.s32)
    t, n = tc.lane_id(), x.shape[0]
    for row in range(4):
        tile[row, t] = x[row, t]
    tc.syncwarp()
    if mistake == "start":
        part = tile[n - 1 : n + 1]
    else:
        part = tile[1:3]
    out[t] = part[n - 2 if mistake == "index" else 1, t]  # error


@tc.kernel
def matrix_beyond_the_tile(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """ldmatrix."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile, behind = tc.shared((32, 16), tc.f16), tc.shared((32, 16), tc.f16)
    lane, n = tc.lane_id(), x.shape[0]
    for col in tc.static_range(16):
        if mistake != "uninitialised":
            tile[lane, col] = x[lane, col]
        else:
            if lane < 30:
                tile[lane, col] = x[lane, col]
        behind[lane, col] = 0
    tc.syncwarp()
    if mistake == "address":
        word = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(n - 4 + lane % 8, 0))  # error
        out[lane // 4, lane % 4] = word.bits(tc.s32).to(tc.f32)
    elif mistake == "alignment":
        word = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(lane % 8, n // 8))  # error
        out[lane // 4, lane % 4] = word.bits(tc.s32).to(tc.f32)
    else:
        start = n - 8 if mistake == "view" else n - 16
        fragment = tc.ldmatrix(tile[start : start + 16], mma.a)  # error
        one = tc.fragment(mma.b, lambda row, col: tc.select(row == col, tc.f16(1), tc.f16(0)))
        tc.store_elements(out, mma(fragment, one, mma.d.zeros()))


def last_rows(draw):
    x = draw.integers(-4, 5, (32, 16)).astype(np.float16)
    right = x[16:, :8].astype(np.float32)
    return {"x": x, "out": np.zeros_like(right)}, {"out": right}


@tc.kernel
def wmma_with_a_wrong_stride(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """wmma.load and wmma.store."""
    tile, behind = tc.shared((16, 16), tc.f32), tc.shared((16, 16), tc.f32)
    lane = tc.lane_id()
    for part in tc.static_range(8):
        tile[2 * part + lane // 16, lane % 16] = x[2 * part + lane // 16, lane % 16]
        behind[2 * part + lane // 16, lane % 16] = 0
    tc.syncwarp()
    stride = {"tile": 24, "alignment": 15}.get(mistake, 16)
    values = tc.emit("wmma.load.c.sync.aligned.row.m16n16k16.shared.f32", tile.at(0, 0), stride)  # error 1,3
    tc.emit(  # error 2
        "wmma.store.d.sync.aligned.row.m16n16k16.global.f32",
        out.at(0, 0),
        values,
        24 if mistake == "array" else 16,
    )


def square(draw):
    x = draw.integers(-9, 9, (16, 16)).astype(np.float32)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.copy()}


@tc.kernel
def dynamic_tile_is_too_large(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """The launch gives 512 bytes."""
    first = tc.dynamic_shared(64, tc.s32)
    second = tc.dynamic_shared(
        96 if mistake == "too long" else 64, tc.s32, offset=512 if mistake == "behind the end" else 256
    )  # error
    t = tc.threadIdx.x
    first[t] = x[t]
    second[(t + 32) if mistake == "too long" else t] = -x[t]  # error
    out[t] = first[t] + second[(t + 32) if mistake == "too long" else t] + 1


@tc.kernel
def dynamic_tiles_overlap(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """Offsets are in bytes; the mistake counts elements, so that the second tile begins in the first."""
    first = tc.dynamic_shared(64, tc.s32)  # error
    second = tc.dynamic_shared(64, tc.s32, offset=64 if mistake else 256)  # error
    t = tc.threadIdx.x
    first[t] = x[t]
    tc.barrier()
    second[t] = 1  # error
    tc.barrier()
    out[t] = first[63 - t] * second[t]  # error


@tc.kernel
def never_written(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    tile = tc.shared(66, tc.s32)
    t = tc.threadIdx.x
    if mistake == "one warp":
        if t < 32:
            tile[t + 1] = x[t]
    elif mistake == "half of each word":
        tile.at(t + 1).as_type(tc.u16).store(x[t].to(tc.u16))
    elif mistake != "nothing":
        tile[t + 1] = x[t]
    if t == 0:
        tile[0] = 0
    if t == 0:
        if mistake != "sum":
            tile[65] = 0
    tc.barrier()
    if mistake == "sum":
        tc.reduce("add", tile.at(65), x[t])  # error
        tc.barrier()
    out[t] = tile[t] + tile[t + 1] + tile[t + 2]  # error


@tc.kernel
def barrier_array_is_left(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """The third of two mbarriers."""
    bars = tc.mbarriers(2)
    tile = tc.shared(64, tc.s32)
    t, stage = tc.threadIdx.x, x.shape[0] // 32
    if t == 0:
        bars[0].init(64)
        bars[1].init(64)
        tc.fence_mbarrier_init()
    tile[t] = x[t]
    tc.barrier()
    bars[stage if mistake else stage - 1].arrive()  # error
    bars[stage if mistake else stage - 1].wait(0)  # error
    out[t] = tile[63 - t]


# -- alignment ----------------------------------------------------------------------------------


@tc.kernel
def misaligned(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    tile = tc.shared(80, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    tile[32 + t] = 0
    tc.syncwarp()
    value = x[t]
    if mistake == "global vector":
        value = x.at(t).load(4)[0]  # error
    elif mistake == "shared vector":
        tile.at(t).store([value, value])  # error
    elif mistake == "odd half":
        value = (x.at(0).as_type(tc.u16) + t).as_type(tc.s32).load()  # error
    elif mistake == "atomic":
        tc.reduce("add", tile.at(t).as_type(tc.u64), 1)  # error
    elif mistake == "copy":
        tc.cp_async(tile.at(32 + t), x.at(t), 16)  # error
    out[t] = value


# -- registers and arithmetic -------------------------------------------------------------------


@tc.kernel
def local_array_is_left(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    values = tc.local((2, 4), tc.s32)
    t = tc.threadIdx.x
    for i in tc.static_range(4):
        values[0, i] = x[t]
        values[1, i] = 2 * x[t]
    place = t % 5
    if mistake == "read":
        out[t] = values[0, place]  # error
    elif mistake == "write":
        values[1, place] = 3  # error
        out[t] = values[1, 0]
    elif mistake == "row":
        out[t] = values[place, 0]  # error
    elif mistake == "negative":
        out[t] = values[1, place - 1]  # error
    else:
        out[t] = values[1, t % 4] - values[t % 2, 0] + values[t % 2, 0]


@tc.kernel
def division_by_zero(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    t = tc.threadIdx.x
    divisor = x[t] % 4
    if not mistake:
        divisor = max(divisor, 1)
    if mistake == "remainder":
        out[t] = 1000 % divisor  # error
    elif mistake == "unsigned":
        out[t] = (tc.u32(1000) // tc.lane_id().to(tc.u32)).to(tc.s32)  # error
    else:
        out[t] = 1000 // divisor  # error


@tc.kernel
def copy_reads_more_than_its_size(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """cp.async of 16 bytes of which 20 are to be valid."""
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    valid = min(4 * (x.shape[0] - 4 * t), 20 if mistake else 16)
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16, valid=valid)  # error
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    out.at(4 * t).store(tile.at(4 * t).load(4))


@tc.kernel
def copy_outside(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """cp.async."""
    tile, _ = tc.shared(128, tc.s32), tc.shared(32, tc.s32)
    t = tc.threadIdx.x
    target, source = (
        4 * (t + 2) if mistake == "target" else 4 * t,
        4 * (t + 1) if mistake == "source" else 4 * t,
    )
    tc.cp_async(tile.at(target), x.at(source), 16)  # error
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    if not mistake:
        out.at(4 * t).store(tile.at(4 * t).load(4))


def _halo(x):
    padded = np.concatenate([[0], x, [0]])
    return (padded[:-2] + padded[1:-1] + padded[2:]).astype(np.int32)


_same = mapped(32, lambda x: x)

CASES = [
    *variants(
        off_by_one,
        1,
        32,
        mapped(32, lambda x: np.roll(x, -1)),
        OutOfBounds,
        mistakes=("behind the end", "before the start"),
    ),
    *variants(
        column_runs_into_the_next_row, 1, 64, mapped((2, 32), lambda x: np.roll(x, -1, axis=1)), OutOfBounds
    ),
    *variants(view_is_left, 4, 32, mapped(64, lambda x: x.reshape(4, 16)), OutOfBounds),
    *variants(
        pointer_walks_away,
        1,
        64,
        mapped((8, 8), lambda x: x.ravel()),
        OutOfBounds,
        mistakes=("step too large", "backwards"),
    ),
    *variants(vector_over_the_end, 1, 32, mapped(30, lambda x: x), OutOfBounds),
    *variants(
        vector_over_the_end_of_a_row,
        1,
        4,
        mapped((8, 18), lambda x: (x[::2, 16] + x[::2, 17]).astype(np.int32)),
        OutOfBounds,
    ),
    *variants(wider_type, 1, 32, _same, OutOfBounds),
    *variants(empty_array, 1, 32, nothing, OutOfBounds),
    *variants(read_only_array, 1, 32, fixed, ArgumentError),
    *variants(fragment_hangs_over, 1, 32, twelve_rows, OutOfBounds, mistakes=("stored", "loaded")),
    *variants(tile_hangs_over, 2, 32, mapped((8, 40), lambda x: x), OutOfBounds, mistakes=("load", "store")),
    *variants(
        tile_axis_is_left,
        1,
        32,
        mapped((2, 32), lambda x: x[1]),
        OutOfBounds,
        mistakes=("column", "row", "negative"),
    ),
    *variants(histogram_bin_outside, 1, 32, seventeens, OutOfBounds),
    *variants(
        view_of_a_tile_is_left,
        1,
        32,
        mapped((4, 32), lambda x: x[2]),
        OutOfBounds,
        mistakes=("index", "start"),
    ),
    *variants(
        matrix_beyond_the_tile,
        1,
        32,
        last_rows,
        *OUTSIDE,
        mistakes=("view", "address", "alignment", "uninitialised"),
    ),
    *variants(wmma_with_a_wrong_stride, 1, 32, square, *OUTSIDE, mistakes=("tile", "array", "alignment")),
    *variants(
        dynamic_tile_is_too_large,
        1,
        64,
        mapped(64, np.ones_like),
        *OUTSIDE,
        shared_bytes=512,
        mistakes=("too long", "behind the end"),
    ),
    *variants(dynamic_tiles_overlap, 1, 64, mapped(64, lambda x: x[::-1]), EmulationError, shared_bytes=512),
    *variants(
        never_written,
        1,
        64,
        mapped(64, _halo),
        Uninitialised,
        mistakes=("nothing", "one warp", "half of each word", "sum"),
    ),
    *variants(barrier_array_is_left, 1, 64, mapped(64, lambda x: x[::-1]), *OUTSIDE),
    *variants(
        misaligned,
        1,
        32,
        mapped(64, lambda x: x[:32]),
        Misaligned,
        mistakes=("global vector", "shared vector", "odd half", "atomic", "copy"),
    ),
    *variants(
        local_array_is_left,
        1,
        32,
        mapped(32, lambda x: 2 * x),
        OutOfBounds,
        mistakes=("read", "write", "row", "negative"),
    ),
    *variants(
        division_by_zero,
        1,
        32,
        mapped(32, lambda x: (1000 // np.maximum(x % 4, 1)).astype(np.int32)),
        EmulationError,
        mistakes=("quotient", "remainder", "unsigned"),
    ),
    *variants(copy_reads_more_than_its_size, 1, 32, mapped(128, lambda x: x), *OUTSIDE),
    *variants(copy_outside, 1, 32, mapped(128, lambda x: x), *OUTSIDE, mistakes=("source", "target")),
]
