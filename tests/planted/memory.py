"""Accesses outside of arrays, tiles and views, misaligned, uninitialised or at wrong addresses."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import ArgumentError, EmulationError, Misaligned, OutOfBounds, Uninitialised
from tests.planted.harness import case, mapped

OUTSIDE = (OutOfBounds, EmulationError)

# -- arrays -------------------------------------------------------------------------------------


@tc.kernel
def off_by_one(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: the last thread reads behind the end, 2: the first one before the start."""
    t = tc.threadIdx.x
    if bug == 1:
        value = x[t + 1]  # error
    elif bug == 2:
        value = x[t - 1]  # error
    else:
        value = x[(t + 1) % x.shape[0]]
    out[t] = value


@tc.kernel
def grid_larger_than_the_array(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """100 elements, 128 threads. Bug 1: no guard, 2: `<=` in place of `<`."""
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    inside = i <= x.shape[0] if bug == 2 else i < x.shape[0]
    if bug == 1:
        out[i] = x[i]  # error
    else:
        if inside:
            out[i] = x[i]  # error


@tc.kernel
def column_runs_into_the_next_row(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Inside of the array as a whole, outside of the row."""
    row, col = tc.warp_id(), tc.lane_id()
    out[row, col] = x[row, col + 1 if bug else (col + 1) % 32]  # error


@tc.kernel
def swapped_indices(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """An array of 8 x 16 that is read as 16 x 8."""
    row, col = tc.threadIdx.x // 16, tc.threadIdx.x % 16
    out[row, col] = x[col, row] if bug else x[row, col]  # error


@tc.kernel
def view_is_left(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A view of 16 elements in an array of 64; the block has 32 threads."""
    part = x[16 * tc.blockIdx.x : 16 * tc.blockIdx.x + 16]
    t = tc.threadIdx.x
    if bug:
        out[tc.blockIdx.x, t % 16] = part[t]  # error
    else:
        if t < 16:
            out[tc.blockIdx.x, t] = part[t]


@tc.kernel
def pointer_walks_away(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: a step too large, 2: backwards over the start, 3: a pitch of 12 for rows of 8."""
    t = tc.threadIdx.x
    step = {1: 9, 3: 12}.get(bug, 8)
    if bug == 2:
        out[t] = (x.at(t // 8, 0) - (t % 8 + 1)).load()  # error
    else:
        out[t] = (x.at(0, 0) + (step * (t // 8) + t % 8)).load()  # error


@tc.kernel
def vector_over_the_end(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """30 elements in vectors of four: the last vector has two of them."""
    i = 4 * tc.threadIdx.x
    if bug:
        if i < x.shape[0]:
            vector = x.at(i).load(4)  # error
            for j in tc.static_range(4):
                out.at(i + j).store(vector[j], pred=i + j < x.shape[0])
    else:
        for j in tc.static_range(4):
            out.at(i + j).store(x.at(i + j).load(pred=i + j < x.shape[0]), pred=i + j < x.shape[0])


@tc.kernel
def vector_over_the_end_of_a_row(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Rows of 18 elements: a vector of four at column 16 is half in the next row."""
    row = 2 * tc.threadIdx.x
    if bug:
        vector = x.at(row, 16).load(4)  # error
    else:
        vector = x.at(row, 16).load(2)
    out[tc.threadIdx.x] = vector[0] + vector[1]


@tc.kernel
def wider_type(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """As 64-bit words an array has half as many elements."""
    t = tc.threadIdx.x
    words = x.at(0).as_type(tc.s64)
    value = (words + (t if bug else t // 2)).load()  # error
    out[t] = (value if bug else value >> 32 * (t % 2).to(tc.u32)).to(tc.s32)


@tc.kernel
def product_wraps(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """An index that is a product in 32 bits: 65,536 squared is 0, and 46,341 squared is negative."""
    t = tc.threadIdx.x
    big = t + 46341
    if bug:
        out[t] = x[big * big // 67108864]  # error
    else:
        out[t] = x[(big.to(tc.s64) * big.to(tc.s64) // 67108864).to(tc.s32)]


@tc.kernel
def scan_without_a_sentinel(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Each lane looks for the next zero from its place; behind the last one there is none."""
    i = tc.threadIdx.x
    if bug:
        while x[i] != 0:  # error
            i += 1
    else:
        going = True & (i < x.shape[0])
        while going:
            going = x[i] != 0
            i += 1 if going else 0
            going = going & (i < x.shape[0])
    out[tc.threadIdx.x] = i


def zeros_among_ones(draw):
    x = np.ones(32, np.int32)
    x[[5, 17]] = 0
    right = np.array([5] * 6 + [17] * 12 + [32] * 14, np.int32)
    return {"x": x, "out": np.zeros_like(x)}, {"out": right}


@tc.kernel
def empty_array(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    first = x.at(0).load(pred=(x.shape[0] > 0) | (bug == 1), otherwise=7)  # error
    out[tc.threadIdx.x] = first


def nothing(draw):
    return {"x": np.zeros(0, np.int32), "out": np.zeros(32, np.int32)}, {"out": np.full(32, 7, np.int32)}


@tc.kernel
def read_only_array(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    if bug:
        x[tc.threadIdx.x] = 0  # error
    out[tc.threadIdx.x] = x[tc.threadIdx.x]


def fixed(draw):
    x = draw.integers(1, 1000, 32).astype(np.int32)
    x.flags.writeable = False
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.copy()}


@tc.kernel
def fragment_hangs_over(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """An array of 12 x 8, a fragment of 16 x 8. Bug 1: it is stored whole, 2: loaded whole."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    values = tc.load_elements(x, mma.c, bounded=bug != 2)  # error 2
    tc.store_elements(out, values, bounded=bug != 1)  # error 1


def twelve_rows(draw):
    x = draw.integers(-9, 9, (12, 8)).astype(np.float32)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.copy()}


@tc.kernel
def tile_hangs_over(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A box of 8 x 32 at a run-time column of an array of 8 x 40. Bug 1: load, 2: store."""
    tc.launch_bounds(32)
    tile = tc.shared((8, 32), tc.s32)
    col = 32 * tc.blockIdx.x
    tc.copy_tile(tile, x, (0, col), bounded=bug != 1)  # error 1
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    tc.syncwarp()
    tc.copy_tile(out, tile, (0, col), bounded=bug != 2)  # error 2


# -- shared memory ------------------------------------------------------------------------------


@tc.kernel
def tile_axis_is_left(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: the column runs into the next row, 2: the row into the next tile, 3: -1 is no
    index, 4: a stage that does not exist."""
    tile, other = tc.shared((2, 32), tc.s32), tc.shared((2, 32), tc.s32)
    t, n = tc.lane_id(), x.shape[0]
    for row in range(2):
        tile[row, t] = x[row, t]
        other[row, t] = 0
    tc.syncwarp()
    if bug == 1:
        value = tile[0, t + 1]  # error
    elif bug == 2:
        value = tile[n, t]  # error
    elif bug == 3:
        value = tile[1, t - 1]  # error
    elif bug == 4:
        value = other[(n + t) % 3, t]  # error
    else:
        value = tile[n - 1, t]
    out[t] = value + other[0, t]


@tc.kernel
def write_into_the_next_tile(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Two tiles lie one behind the other; 40 elements are written to the first one of 32."""
    first, second = tc.shared(32, tc.s32), tc.shared(32, tc.s32)
    t = tc.threadIdx.x
    if t < 32:
        second[t] = 1
    tc.barrier()
    if bug:
        if t < 40:
            first[t] = x[t]  # error
    else:
        if t < 32:
            first[t] = x[t]
    tc.barrier()
    if t < 32:
        out[t] = first[t] * second[t]


@tc.kernel
def histogram_bin_outside(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Values from 0 to 16 in 16 bins; the atomic adds to what lies behind."""
    bins, behind = tc.shared(16, tc.s32), tc.shared(16, tc.s32)
    t = tc.threadIdx.x
    if t < 16:
        bins[t] = 0
        behind[t] = 0
    tc.syncwarp()
    tc.reduce("add", bins.at(x[t] % 17 if bug else x[t] % 16), 1)  # error
    tc.syncwarp()
    if t < 16:
        out[t] = bins[t] + behind[t]


def seventeens(draw):
    x = np.arange(32, dtype=np.int32)
    return {"x": x, "out": np.zeros(16, np.int32)}, {
        "out": np.bincount(x % 16, minlength=16).astype(np.int32)
    }


@tc.kernel
def view_of_a_tile_is_left(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: an element behind the view, 2: the view itself starts too far on."""
    tile = tc.shared((4, 32), tc.s32)
    t, n = tc.lane_id(), x.shape[0]
    for row in range(4):
        tile[row, t] = x[row, t]
    tc.syncwarp()
    if bug == 2:
        part = tile[n - 1 : n + 1]
    else:
        part = tile[1:3]
    out[t] = part[n - 2 if bug == 1 else 1, t]  # error


@tc.kernel
def matrix_beyond_the_tile(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """ldmatrix. Bug 1: a view that starts at a run-time row beyond, 2: rows beyond by address,
    3: at a column that is not a multiple of eight, 4: nothing was stored in its last rows."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile, behind = tc.shared((32, 16), tc.f16), tc.shared((32, 16), tc.f16)
    lane, n = tc.lane_id(), x.shape[0]
    for col in tc.static_range(16):
        if bug != 4:
            tile[lane, col] = x[lane, col]
        else:
            if lane < 30:
                tile[lane, col] = x[lane, col]
        behind[lane, col] = 0
    tc.syncwarp()
    if bug == 2:
        word = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(n - 4 + lane % 8, 0))  # error
        out[lane // 4, lane % 4] = word.bits(tc.s32).to(tc.f32)
    elif bug == 3:
        word = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(lane % 8, n // 8))  # error
        out[lane // 4, lane % 4] = word.bits(tc.s32).to(tc.f32)
    else:
        start = n - 8 if bug == 1 else n - 16
        fragment = tc.ldmatrix(tile[start : start + 16], mma.a)  # error
        one = tc.fragment(mma.b, lambda row, col: tc.select(row == col, tc.f16(1), tc.f16(0)))
        tc.store_elements(out, mma(fragment, one, mma.d.zeros()))


def last_rows(draw):
    x = draw.integers(-4, 5, (32, 16)).astype(np.float16)
    right = x[16:, :8].astype(np.float32)
    return {"x": x, "out": np.zeros_like(right)}, {"out": right}


@tc.kernel
def wmma_with_a_wrong_stride(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """wmma.load and wmma.store. Bug 1: a stride of 24 in a tile with rows of 16, whose last rows
    are the next tile's, 2: the same of the result in global memory, 3: no multiple of 16 bytes."""
    tile, behind = tc.shared((16, 16), tc.f32), tc.shared((16, 16), tc.f32)
    lane = tc.lane_id()
    for part in tc.static_range(8):
        tile[2 * part + lane // 16, lane % 16] = x[2 * part + lane // 16, lane % 16]
        behind[2 * part + lane // 16, lane % 16] = 0
    tc.syncwarp()
    stride = {1: 24, 3: 15}.get(bug, 16)
    values = tc.emit("wmma.load.c.sync.aligned.row.m16n16k16.shared.f32", tile.at(0, 0), stride)  # error 1,3
    tc.emit(  # error 2
        "wmma.store.d.sync.aligned.row.m16n16k16.global.f32", out.at(0, 0), values, 24 if bug == 2 else 16
    )


def square(draw):
    x = draw.integers(-9, 9, (16, 16)).astype(np.float32)
    return {"x": x, "out": np.zeros_like(x)}, {"out": x.copy()}


@tc.kernel
def dynamic_tile_is_too_large(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The launch gives 512 bytes. Bug 1: the second tile needs 640, 2: it begins behind them."""
    first = tc.dynamic_shared(64, tc.s32)
    second = tc.dynamic_shared(96 if bug == 1 else 64, tc.s32, offset=512 if bug == 2 else 256)  # error
    t = tc.threadIdx.x
    first[t] = x[t]
    second[(t + 32) if bug == 1 else t] = -x[t]  # error
    out[t] = first[t] + second[(t + 32) if bug == 1 else t] + 1


@tc.kernel
def dynamic_tiles_overlap(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Offsets are in bytes; the bug counts elements, so that the second tile begins in the first."""
    first = tc.dynamic_shared(64, tc.s32)  # error
    second = tc.dynamic_shared(64, tc.s32, offset=64 if bug else 256)  # error
    t = tc.threadIdx.x
    first[t] = x[t]
    tc.barrier()
    second[t] = 1  # error
    tc.barrier()
    out[t] = first[63 - t] * second[t]  # error


@tc.kernel
def never_written(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: nothing is written, 2: only by the first warp, 3: the halo is not, 4: one half of
    each word, 5: the padding is read, 6: a sum that nobody has zeroed."""
    tile = tc.shared(66, tc.s32)
    t = tc.threadIdx.x
    if bug == 2:
        if t < 32:
            tile[t + 1] = x[t]
    elif bug == 4:
        tile.at(t + 1).as_type(tc.u16).store(x[t].to(tc.u16))
    elif bug != 1:
        tile[t + 1] = x[t]
    if bug != 3 and t == 0:
        tile[0] = 0
    if bug != 5 and t == 0:
        if bug != 6:
            tile[65] = 0
    tc.barrier()
    if bug == 6:
        tc.reduce("add", tile.at(65), x[t])  # error
        tc.barrier()
    out[t] = tile[t] + tile[t + 1] + tile[t + 2]  # error


@tc.kernel
def launched_with_fewer_threads(x: tc.Array, out: tc.Array, threads: tc.Const = 64, bug: tc.Const = 1):
    """The kernel is written for 128 threads; the bug fills only as much as the block has."""
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    if bug:
        tile[t] = x[t]
    else:
        for i in tc.range(t, 128, threads):
            tile[i] = x[i]
    tc.barrier()
    out[t] = tile[127 - t]  # error


@tc.kernel
def barrier_array_is_left(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
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
    bars[stage if bug else stage - 1].arrive()  # error
    bars[stage if bug else stage - 1].wait(0)  # error
    out[t] = tile[63 - t]


# -- alignment ----------------------------------------------------------------------------------


@tc.kernel
def misaligned(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: a vector at any element, 2: in shared memory, 3: words at odd halves, 4: an atomic
    of 64 bits at an odd word, 5: cp.async of 16 bytes."""
    tile = tc.shared(80, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    tile[32 + t] = 0
    tc.syncwarp()
    value = x[t]
    if bug == 1:
        value = x.at(t).load(4)[0]  # error
    elif bug == 2:
        tile.at(t).store([value, value])  # error
    elif bug == 3:
        value = (x.at(0).as_type(tc.u16) + t).as_type(tc.s32).load()  # error
    elif bug == 4:
        tc.reduce("add", tile.at(t).as_type(tc.u64), 1)  # error
    elif bug == 5:
        tc.cp_async(tile.at(32 + t), x.at(t), 16)  # error
    out[t] = value


@tc.kernel
def slice_moves_the_alignment(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Vectors of four are aligned in the array, and not in x[1:]."""
    part = x[1:] if bug else x[4:]
    vector = part.at(4 * tc.threadIdx.x).load(4)  # error
    out[tc.threadIdx.x] = vector[0]


@tc.kernel
def rows_of_odd_length(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Rows of 10 elements: in odd rows the start is a multiple of 8 bytes, not of 16."""
    row = tc.threadIdx.x
    vector = x.at(row, 0).load(4 if bug else 2)  # error
    out[row] = vector[1]


# -- registers and arithmetic -------------------------------------------------------------------


@tc.kernel
def local_array_is_left(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: a read behind the end, 2: a write, 3: a column of a matrix of registers, 4: -1."""
    values = tc.local((2, 4), tc.s32)
    t = tc.threadIdx.x
    for i in tc.static_range(4):
        values[0, i] = x[t]
        values[1, i] = 2 * x[t]
    place = t % 5
    if bug == 1:
        out[t] = values[0, place]  # error
    elif bug == 2:
        values[1, place] = 3  # error
        out[t] = values[1, 0]
    elif bug == 3:
        out[t] = values[place, 0]  # error
    elif bug == 4:
        out[t] = values[1, place - 1]  # error
    else:
        out[t] = values[1, t % 4] - values[t % 2, 0] + values[t % 2, 0]


@tc.kernel
def division_by_zero(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: //, 2: %, 3: by an index of the lane, unsigned."""
    t = tc.threadIdx.x
    divisor = x[t] % 4
    if bug == 0:
        divisor = max(divisor, 1)
    if bug == 2:
        out[t] = 1000 % divisor  # error
    elif bug == 3:
        out[t] = (tc.u32(1000) // tc.lane_id().to(tc.u32)).to(tc.s32)  # error
    else:
        out[t] = 1000 // divisor  # error


@tc.kernel
def copy_reads_more_than_its_size(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """cp.async of 16 bytes of which 20 are to be valid."""
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    valid = min(4 * (x.shape[0] - 4 * t), 20 if bug else 16)
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16, valid=valid)  # error
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    out.at(4 * t).store(tile.at(4 * t).load(4))


@tc.kernel
def copy_outside(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """cp.async. Bug 1: from behind the array, 2: to behind the tile."""
    tile, _ = tc.shared(128, tc.s32), tc.shared(32, tc.s32)
    t = tc.threadIdx.x
    target, source = 4 * (t + 2) if bug == 2 else 4 * t, 4 * (t + 1) if bug == 1 else 4 * t
    tc.cp_async(tile.at(target), x.at(source), 16)  # error
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    if not bug:
        out.at(4 * t).store(tile.at(4 * t).load(4))


def _wrapped(x):
    big = np.arange(32, dtype=np.int64) + 46341
    return x[big * big // 67108864]


def _halo(x):
    padded = np.concatenate([[0], x, [0]])
    return (padded[:-2] + padded[1:-1] + padded[2:]).astype(np.int32)


_same = mapped(32, lambda x: x)
CASES = [
    *(case(off_by_one, 1, 32, mapped(32, lambda x: np.roll(x, -1)), OutOfBounds, bug=bug) for bug in (1, 2)),
    *(
        case(grid_larger_than_the_array, 4, 32, mapped(100, lambda x: x), OutOfBounds, bug=bug)
        for bug in (1, 2)
    ),
    case(
        column_runs_into_the_next_row, 1, 64, mapped((2, 32), lambda x: np.roll(x, -1, axis=1)), OutOfBounds
    ),
    case(swapped_indices, 1, 128, mapped((8, 16), lambda x: x), OutOfBounds),
    case(view_is_left, 4, 32, mapped(64, lambda x: x.reshape(4, 16)), OutOfBounds),
    *(
        case(pointer_walks_away, 1, 64, mapped((8, 8), lambda x: x.ravel()), OutOfBounds, bug=bug)
        for bug in (1, 2, 3)
    ),
    case(vector_over_the_end, 1, 32, mapped(30, lambda x: x), OutOfBounds),
    case(
        vector_over_the_end_of_a_row,
        1,
        4,
        mapped((8, 18), lambda x: (x[::2, 16] + x[::2, 17]).astype(np.int32)),
        OutOfBounds,
    ),
    case(wider_type, 1, 32, _same, OutOfBounds),
    case(product_wraps, 1, 32, mapped(64, _wrapped), OutOfBounds),
    case(scan_without_a_sentinel, 1, 32, zeros_among_ones, OutOfBounds),
    case(empty_array, 1, 32, nothing, OutOfBounds),
    case(read_only_array, 1, 32, fixed, ArgumentError),
    *(case(fragment_hangs_over, 1, 32, twelve_rows, OutOfBounds, bug=bug) for bug in (1, 2)),
    *(case(tile_hangs_over, 2, 32, mapped((8, 40), lambda x: x), OutOfBounds, bug=bug) for bug in (1, 2)),
    *(
        case(tile_axis_is_left, 1, 32, mapped((2, 32), lambda x: x[1]), OutOfBounds, bug=bug)
        for bug in (1, 2, 3, 4)
    ),
    case(write_into_the_next_tile, 1, 64, mapped(64, lambda x: x[:32]), OutOfBounds),
    case(histogram_bin_outside, 1, 32, seventeens, OutOfBounds),
    *(
        case(view_of_a_tile_is_left, 1, 32, mapped((4, 32), lambda x: x[2]), OutOfBounds, bug=bug)
        for bug in (1, 2)
    ),
    *(
        case(matrix_beyond_the_tile, 1, 32, last_rows, *errors, bug=bug)
        for bug, errors in ((1, OUTSIDE), (2, OUTSIDE), (3, (Misaligned,)), (4, (Uninitialised,)))
    ),
    *(
        case(wmma_with_a_wrong_stride, 1, 32, square, *errors, bug=bug)
        for bug, errors in ((1, OUTSIDE), (2, OUTSIDE), (3, (EmulationError,)))
    ),
    *(
        case(dynamic_tile_is_too_large, 1, 64, mapped(64, np.ones_like), *OUTSIDE, bug=bug, shared_bytes=512)
        for bug in (1, 2)
    ),
    case(dynamic_tiles_overlap, 1, 64, mapped(64, lambda x: x[::-1]), EmulationError, shared_bytes=512),
    *(case(never_written, 1, 64, mapped(64, _halo), Uninitialised, bug=bug) for bug in range(1, 7)),
    case(launched_with_fewer_threads, 1, 64, mapped(128, lambda x: x[:63:-1]), Uninitialised),
    case(barrier_array_is_left, 1, 64, mapped(64, lambda x: x[::-1]), *OUTSIDE),
    *(case(misaligned, 1, 32, mapped(64, lambda x: x[:32]), Misaligned, bug=bug) for bug in range(1, 6)),
    case(slice_moves_the_alignment, 1, 32, mapped(140, lambda x: x[4:132:4]), Misaligned),
    case(rows_of_odd_length, 1, 8, mapped((8, 10), lambda x: x[:, 1]), Misaligned),
    *(
        case(local_array_is_left, 1, 32, mapped(32, lambda x: 2 * x), OutOfBounds, bug=bug)
        for bug in (1, 2, 3, 4)
    ),
    *(
        case(
            division_by_zero,
            1,
            32,
            mapped(32, lambda x: (1000 // np.maximum(x % 4, 1)).astype(np.int32)),
            EmulationError,
            bug=bug,
        )
        for bug in (1, 2, 3)
    ),
    case(copy_reads_more_than_its_size, 1, 32, mapped(128, lambda x: x), *OUTSIDE),
    *(case(copy_outside, 1, 32, mapped(128, lambda x: x), *OUTSIDE, bug=bug) for bug in (1, 2)),
]
