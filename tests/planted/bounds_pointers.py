"""Pointers that move or are joined, slices, vectors of views, and dynamic tiles."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import InvalidArithmetic, OperandError, OutOfBounds
from tests.planted.harness import Planted

planted = Planted()

# -- pointers to shared memory ----------------------------------------------------------------------


@planted.marked(
    OutOfBounds, "4 bytes from byte 128 on leave a shared f32 tile of 4x8, which has 128 bytes", 0
)
def moved(i, mistake: tc.Const):
    tile, other = tc.shared((4, 8), tc.f32), tc.shared((4, 8), tc.f32)
    if tc.threadIdx.x == 0:
        other[0, 0] = 1.0
        (tile.at(3, 0) + (i + (8 if mistake else 7))).store(1.0)  # here


@planted.marked(OutOfBounds, "4 bytes from byte -4 on leave a shared f32 tile of 4x8", 1)
def moved_back(i, mistake: tc.Const):
    other, tile = tc.shared((4, 8), tc.f32), tc.shared((4, 8), tc.f32)
    if tc.threadIdx.x == 0:
        other[0, 0] = 1.0
        (tile.at(0, 0 if mistake else 1) - i).store(1.0)  # here


@planted.marked(OutOfBounds, "4 bytes from byte 128 on leave a shared f32 tile of 32", 32)
def item(n, mistake: tc.Const):
    tile, other = tc.shared((2, 32), tc.f32), tc.shared(32, tc.f32)
    other[tc.threadIdx.x] = 1.0
    row = tile[0].at(0)
    row[n - 1] = 1.0
    row[n - (0 if mistake else 2)] = 1.0  # here


@planted.marked(
    OutOfBounds, "16 bytes from byte 116 on leave a shared f32 tile of 32, which has 128 bytes", 29
)
def vector(n, mistake: tc.Const):
    tile, other = tc.shared(32, tc.f32), tc.shared(32, tc.f32)
    other[0] = 1.0
    place = tile.at(0) + (n - (0 if mistake else 1))
    place.store([1.0] * 4)  # here


@planted.marked(
    OutOfBounds, "4 bytes from byte 128 on leave the tile that it was made from, which has 128", 32
)
def loop(n, mistake: tc.Const):
    tile, other = tc.shared(32, tc.f32), tc.shared(32, tc.f32)
    if tc.threadIdx.x == 0:
        other[0] = 1.0
        place = tile.at(0)
        for _ in range(n + 1 if mistake else n):
            place.store(1.0)  # here
            place += 1


@planted.marked(
    OutOfBounds, "4 bytes from byte 64 on leave the tile that it was made from, which has 64 bytes", 16
)
def joined(n, mistake: tc.Const):
    tile, small = tc.shared(32, tc.f32), tc.shared(16, tc.f32)
    if tc.threadIdx.x == 0:
        place = tile.at(0)
        if n > (3 if mistake else 99):
            place = small.at(0)
        place[n] = 1.0  # here
        tile[0] = 0.0


@planted.marked(
    OutOfBounds, "4 bytes from byte 512 on leave the tile that it was made from, which has 512 bytes", 4
)
def joined_view(stage, mistake: tc.Const):
    tile, other = tc.shared((4, 32), tc.f32), tc.shared(32, tc.f32)
    other[tc.threadIdx.x] = 1.0
    part = tile[0]
    if stage > 2:
        part = tile[stage - (0 if mistake else 1)]
    part[tc.threadIdx.x] = 1.0  # here


@planted.marked(OutOfBounds, "4 bytes from byte 1024 on leave a shared f32 tile of 8x32, 128-byte swizzle", 4)
def swizzled(n, mistake: tc.Const):
    tile, other = tc.shared((8, 32), tc.f32, swizzle=128), tc.shared(32, tc.f32)
    other[tc.threadIdx.x] = 1.0
    (tile.at(7, 28) + (n - (0 if mistake else 1))).store(1.0)  # here


@planted.marked(OutOfBounds, "leave the tile that it was made from, which has 128 bytes", 32, grid=2)
def remote(n, mistake: tc.Const):
    tc.cluster_size(2)
    tile, other = tc.shared(32, tc.f32), tc.shared(32, tc.f32)
    other[tc.threadIdx.x] = 1.0
    tc.cluster_sync()
    place = tile.at(0)
    if n > 0:
        place = place + (n - (0 if mistake else 1))
    if tc.threadIdx.x == 0:
        place.remote(1 - tc.cluster_rank()).store(1.0)  # here
    tc.cluster_sync()


# -- slices and views -------------------------------------------------------------------------------


@planted.marked(OutOfBounds, "the slice from index 5 on ends before it, at 3", (8,), 5)
def backward_slice(x: tc.Array, i, mistake: tc.Const):
    part = x[i : tc.minimum(i + 2, 3 if mistake else 8)]  # here
    x[0] = part.shape[0].to(tc.f32)


@planted.marked(OperandError, "the slice 5:3 has -2 elements", (8,))
def backward_constant(x: tc.Array, mistake: tc.Const):
    x[5 : 3 if mistake else 7].at(0).store(1.0)  # here


@planted.marked(OutOfBounds, "index 9 leaves axis 0 of", (8,), 12)
def behind_the_array(x: tc.Array, m, mistake: tc.Const):
    part = x[m : tc.minimum(m + 4, x.shape[0])]
    if m < (99 if mistake else 8):
        x.at(m - 3).store(part.shape[0].to(tc.f32))  # here


@planted.marked(OperandError, "a vector of 4 elements leaves a view of 'x', whose step is 2", (8, 8), 0)
def stepped_array(x: tc.Array, i, mistake: tc.Const):
    part = x[:, 0 : 8 : 2 if mistake else 1]
    part.at(0, i).load(4)  # here


@planted.marked(
    OperandError, "a vector of 2 elements leaves a view of a shared f32 tile of 4x8, whose step is 4", 0
)
def stepped_tile(i, mistake: tc.Const):
    part = tc.shared((4, 8), tc.f32)[:, 0 : 8 : 4 if mistake else 1]
    part.at(0, i).store([1.0] * (2 if mistake else 1))  # here


# -- dynamic tiles ----------------------------------------------------------------------------------


@planted.marked(
    OutOfBounds,
    "at bytes 512 to 1535 of the dynamic shared memory overlaps a shared f32 tile of 32x8 at bytes "
    "0 to 1023; overlap=True",
    shared_bytes=4096,
)
def overlapping(mistake: tc.Const):
    a = tc.dynamic_shared((32, 8), tc.f32)
    b = tc.dynamic_shared((32, 8), tc.f32, offset=512 if mistake else 1024)  # here
    a[tc.threadIdx.x, 0] = b.at(tc.threadIdx.x, 0).load(pred=False)


@planted.marked(OutOfBounds, "overlaps a shared u8 tile of 2048 at bytes 0 to 2047", shared_bytes=4096)
def parts_of_a_pool(mistake: tc.Const):
    tc.dynamic_shared(2048, tc.u8)
    tc.dynamic_shared((32, 8), tc.f32)
    tc.dynamic_shared((32, 8), tc.f32, offset=1040, overlap=not mistake)  # here


@planted.marked(
    OutOfBounds,
    "a shared f32 tile of 64x8 of 2048 bytes from byte 0 on leaves the dynamic shared memory of the "
    "launch, which has 1024 bytes",
    shared_bytes=1024,
)
def beyond_the_launch(mistake: tc.Const):
    tile = tc.dynamic_shared((64 if mistake else 32, 8), tc.f32)  # here
    tile[tc.threadIdx.x, 0] = 1.0


# -- instructions by name: all bytes of an access ---------------------------------------------------

BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"
BULK_ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"
BOX_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


def written_tile(elements):
    """A tile of ones that bulk copies may read; another tile lies behind it."""
    tile, other = tc.shared(elements, tc.f32, align=128), tc.shared(32, tc.f32)
    tile[tc.threadIdx.x % elements] = 1.0
    other[tc.threadIdx.x] = 7.0
    tc.fence_proxy_async()
    tc.barrier()
    return tile


def end_stores():
    tc.tma_store_commit()
    tc.tma_store_wait(0)


@planted.marked(
    OutOfBounds, "128 bytes from byte 0 on leave a shared f32 tile of 28, which has 112 bytes", (4, 32)
)
def bulk_load(x, mistake: tc.Const):
    tile, other, bar = tc.shared(28, tc.f32, align=128), tc.shared(32, tc.f32), tc.mbarriers(1)[0]
    other[tc.threadIdx.x] = 7.0
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(128 if mistake else 112)
        tc.emit(BULK_LOAD, tile.at(0), x.at(1, 0), 128 if mistake else 112, bar.address)  # here
    tc.barrier()
    bar.wait(0)


@planted.marked(
    OutOfBounds, "byte 127 leaves a shared f32 tile of 28, which has 112 bytes", (4, 32), np.uint32(112)
)
def bulk_load_of_a_run_time_size(x, n: tc.u32, mistake: tc.Const):
    tile, other, bar = tc.shared(28, tc.f32, align=128), tc.shared(32, tc.f32), tc.mbarriers(1)[0]
    other[tc.threadIdx.x] = 7.0
    if tc.threadIdx.x == 0:
        size = n + 16 if mistake else n
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(size)
        tc.emit(BULK_LOAD, tile.at(0), x.at(1, 0), size, bar.address)  # here
    tc.barrier()
    bar.wait(0)


@planted.marked(OutOfBounds, "32 elements from 104 on leave 'x', which spans 128 elements", (4, 32))
def bulk_load_past_the_array(x, mistake: tc.Const):
    tile, bar = tc.shared(64, tc.f32, align=128), tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(128)
        tc.emit(BULK_LOAD, tile.at(0), x.at(3 if mistake else 1, 8), 128, bar.address)  # here
    tc.barrier()
    bar.wait(0)


@planted.marked(
    OutOfBounds, "128 bytes from byte 64 on leave a shared f32 tile of 2x16, which has 128 bytes", (4, 32)
)
def bulk_store(x, mistake: tc.Const):
    tile, other = tc.shared((2, 16), tc.f32, align=128), tc.shared(32, tc.f32)
    tile[tc.threadIdx.x // 16, tc.threadIdx.x % 16] = 1.0
    other[tc.threadIdx.x] = 7.0
    tc.fence_proxy_async()
    tc.barrier()
    if tc.threadIdx.x == 0:
        tc.emit(BULK_STORE, x.at(2, 0), tile.at(1 if mistake else 0, 0), 128)  # here
        end_stores()


@planted.marked(
    OutOfBounds,
    "32 elements from index 0 on leave axis 1 of 'x', which has extent 16",
    (4, 16),
    dtype=np.uint32,
)
def bulk_reduction_past_a_row(x, mistake: tc.Const):
    tile = tc.shared(32, tc.u32, align=128)
    tile[tc.threadIdx.x] = 1
    tc.fence_proxy_async()
    tc.barrier()
    if tc.threadIdx.x == 0:
        row = x[1]
        tc.emit(BULK_ADD, row.at(0), tile.at(0), 128 if mistake else 64)  # here
        end_stores()


@planted.marked(
    OutOfBounds, "256 bytes from byte 0 on leave a shared f32 tile of 4x8, which has 128 bytes", (8, 32)
)
def tensor_load(x, mistake: tc.Const):
    boxes = tc.tensor_map(x, (8 if mistake else 4, 8))
    tile, other, bar = tc.shared((4, 8), tc.f32, align=128), tc.shared(32, tc.f32), tc.mbarriers(1)[0]
    other[tc.threadIdx.x] = 7.0
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(boxes.bytes)
        tc.emit(BOX_LOAD, tile.at(0, 0), boxes.address, 0, 0, bar.address)  # here
    tc.barrier()
    bar.wait(0)


@planted.marked(
    OutOfBounds, "4 elements from index 4 on leave axis 0 of 'x', which has extent 6", (6,), np.int32(4)
)
def store_with_a_policy(x, i, mistake: tc.Const):
    if tc.threadIdx.x == 0:
        policy = tc.emit("createpolicy.fractional.L2::evict_last.b64")
        values = [tc.f32(1).bits(tc.b32)] * 4
        tc.emit("st.global.L2::cache_hint.v4.b32", x.at(i if mistake else i - 4), values, policy)  # here


@planted.marked(
    OutOfBounds, "4 elements from index 4 on leave axis 0 of 'x', which has extent 6", (6,), np.int32(4)
)
def vector_reduction(x, i, mistake: tc.Const):
    if tc.threadIdx.x == 0:
        tc.emit("red.global.add.v4.f32", x.at(i if mistake else i - 4), [tc.f32(1)] * 4)  # here


@planted.marked(
    OutOfBounds, "16 bytes from byte 24 on leave a shared f32 tile of 8, which has 32 bytes", (64,)
)
def copy_by_name(x, mistake: tc.Const):
    tile, other = tc.shared(8, tc.f32), tc.shared(8, tc.f32)
    other[tc.threadIdx.x % 8] = 1.0
    if tc.threadIdx.x == 0:
        start = tile.at(0) + (6 if mistake else 4)
        tc.emit("cp.async.ca.shared.global", start, x.at(0), 16 if mistake else 8)  # here
        tc.cp_async_wait(0)


@planted.marked(
    OutOfBounds, "4 elements from index 64 on leave axis 0 of 'x', which has extent 64", (64,), np.int32(64)
)
def copy_that_skips(x, n, mistake: tc.Const):
    tile = tc.shared(8, tc.f32)
    if tc.threadIdx.x == 0:
        skip = n != 64 if mistake else n == 64
        tc.emit("cp.async.cg.shared.global.ignore", tile.at(0), x.at(n), 16, skip)  # here
        tc.cp_async_wait(0)


# -- guards: a check only where the instruction executes, whatever type the condition has --------------


@planted.marked(OutOfBounds, "index 8 leaves axis 0 of a shared f16 tile of 8x8, which has extent 8", (8,), 2)
def guarded_matrix_load(x, n, mistake: tc.Const):
    tile, other = tc.shared((8, 8), tc.f16), tc.shared((8, 8), tc.f16)
    lane = tc.threadIdx.x
    tile[lane // 4, lane % 4 * 2], tile[lane // 4, lane % 4 * 2 + 1] = 1.0, 1.0
    other[lane // 4, lane % 4 * 2], other[lane // 4, lane % 4 * 2 + 1] = 2.0, 2.0
    tc.syncwarp()
    for step in range(n):
        inside = step < (2 if mistake else 1)
        rows = tile.at(step * 8 + lane % 8, 0)
        tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", rows, pred=inside)  # here


@planted.marked(
    OutOfBounds, "index 8 leaves axis 0 of a shared f16 tile of 8x8, which has extent 8", np.int32(0)
)
def matrix_store_by_an_integer(count, mistake: tc.Const):
    tile, other = tc.shared((8, 8), tc.f16), tc.shared((8, 8), tc.f16)
    other[tc.threadIdx.x // 4, tc.threadIdx.x % 4] = 1.0
    rows = tile.at(8 + tc.threadIdx.x % 8, 0)
    wanted = count + (4 if mistake else 0)
    tc.emit("stmatrix.sync.aligned.m8n8.x1.shared.b16", rows, tc.u32(0), pred=wanted)  # here


@planted.marked(
    OutOfBounds, "4 elements from index 64 on leave axis 0 of 'x', which has extent 64", (64,), np.int32(2)
)
def copy_by_an_integer(x, n, mistake: tc.Const):
    tile = tc.shared(8, tc.f32)
    if tc.threadIdx.x == 0:
        skip = n != 2 if mistake else n == 2
        tc.emit("cp.async.cg.shared.global.ignore", tile.at(0), x.at(n + 62), 16, skip, pred=n)  # here
        tc.emit("cp.async.cg.shared.global", tile.at(0), x.at(n + 62), 16, pred=n - 2)
        tc.emit("cp.async.cg.shared.global", tile.at(0), x.at(n + 62), 16, pred=False)
        tc.cp_async_wait(0)


@planted.marked(
    OutOfBounds, "byte 127 leaves a shared f32 tile of 28, which has 112 bytes", (32,), np.uint32(128)
)
def bulk_store_by_an_integer(x, size: tc.u32, mistake: tc.Const):
    tile = written_tile(28)
    tc.emit(BULK_STORE, x.at(0), tile.at(0), size, pred=tc.threadIdx.x & (2 if mistake else 32))  # here
    end_stores()


@planted.marked(InvalidArithmetic, "division of 7 by 0", np.int32(0))
def division_by_an_integer(n, mistake: tc.Const):
    tc.emit("div.s32", 7, n, pred=n + (2 if mistake else 0))  # here


@planted.marked(
    InvalidArithmetic, "the product 4295032832 in an index is 65536", (8,), np.int32(65536), np.int32(65537)
)
def product_by_an_integer(x, i, j, mistake: tc.Const):
    x.at(i * j & 7 if not mistake else i * j - i).load(pred=j - 65535)  # here


# -- what a pointer's step and a box must be ----------------------------------------------------------


@planted.marked(
    InvalidArithmetic,
    "the product 4295032832 in an index is 65536",
    (70000,),
    np.int32(65536),
    np.int32(65537),
)
def step_that_wraps(x, i, j, mistake: tc.Const):
    place = x.at(0) + (i * j if mistake else i)
    if tc.threadIdx.x == 0:
        place[3] = 1.0  # here
        (x.at(0) + i * j).store(2.0, pred=False)


@planted.marked(
    InvalidArithmetic,
    "the product 4295032832 in an index is 65536",
    (70000,),
    np.int32(65536),
    np.int32(65537),
)
def step_that_wraps_in_a_loop(x, i, j, mistake: tc.Const):
    place = x.at(0)
    for n in range(1 - tc.minimum(tc.threadIdx.x, 1)):
        place += (i - n) * (j if mistake else 1)
        tc.emit("st.global.b32", place, 0)  # here


@planted.marked(
    InvalidArithmetic,
    "the product 4295032832 in an index is 65536",
    (70000,),
    np.int32(65536),
    np.int32(65537),
)
def product_converted_too_late(x, i, j, mistake: tc.Const):
    if tc.threadIdx.x == 0:
        x[(i * j if mistake else i).to(tc.s64) + 3] = 1.0  # here
        x[tc.s64(i) * j & 1023] = 2.0
        x[(i * j).to(tc.s64) & 1023] = 3.0


@planted.marked(
    InvalidArithmetic,
    "the product 4295032832 in an index is 65536",
    (70000,),
    np.int32(65536),
    np.int32(65537),
)
def difference_of_a_negative_product(x, i, j, mistake: tc.Const):
    if tc.threadIdx.x == 0:
        x[3 - -(i * j if mistake else i)] = 1.0  # here


@planted.marked(
    OperandError,
    "moves boxes of swizzle=0, which a shared pointer to f32, 128-byte swizzle does not have: "
    "write tc.tensor_map(..., swizzle=128)",
    (8, 32),
)
def box_of_another_swizzle(x, mistake: tc.Const):
    boxes = tc.tensor_map(x, (8, 32), swizzle=0 if mistake else 128)
    tile, pool, bar = (
        tc.shared((8, 32), tc.f32, swizzle=128),
        tc.shared(512, tc.f32, align=1024),
        tc.mbarriers(1)[0],
    )
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(2 * boxes.bytes)
        tc.emit(BOX_LOAD, pool.at(0), boxes.address, 0, 0, bar)
        tc.emit(BOX_LOAD, tile.at(0, 0), boxes.address, 0, 0, bar)  # here
    tc.barrier()
    bar.wait(0)


# -- plain addresses that are known at compile time --------------------------------------------------


@planted.marked(OutOfBounds, "byte 127 leaves a shared f32 tile of 28, which has 112 bytes", (32,))
def bulk_store_by_address(x, mistake: tc.Const):
    tile = written_tile(28)
    if tc.threadIdx.x == 0:
        tc.emit(BULK_STORE, x.address, tile.address + 16, 112 if mistake else 96)  # here
        end_stores()


@planted.marked(
    OutOfBounds, "byte 127 leaves a shared f32 tile of 28, which has 112 bytes", (32,), np.uint32(112)
)
def bulk_store_of_a_run_time_size_by_address(x, n: tc.u32, mistake: tc.Const):
    tile = written_tile(28)
    if tc.threadIdx.x == 0:
        tc.emit(BULK_STORE, x.address, tile.address, n - 112)
        tc.emit(BULK_STORE, x.address, tile.address, n + (16 if mistake else 0))  # here
        end_stores()


@planted.marked(OutOfBounds, "byte 255 leaves a shared f32 tile of 4x8, which has 128 bytes", (8, 32))
def box_by_address(x, mistake: tc.Const):
    boxes = tc.tensor_map(x, (8 if mistake else 4, 8))
    tile, other, bar = tc.shared((4, 8), tc.f32, align=128), tc.shared(32, tc.f32), tc.mbarriers(1)[0]
    other[tc.threadIdx.x] = 7.0
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(boxes.bytes)
        tc.emit(BOX_LOAD, tile.address, boxes.address, 0, 0, bar.address)  # here
    tc.barrier()
    bar.wait(0)


@planted.marked(OutOfBounds, "byte 127 leaves a shared f32 tile of 31, which has 124 bytes")
def vector_by_address(mistake: tc.Const):
    tile, other = tc.shared(31 if mistake else 32, tc.f32, align=16), tc.shared(4, tc.f32)
    tile[tc.threadIdx.x % (31 if mistake else 32)] = other.at(0).load(pred=False)
    tc.syncwarp()
    tc.emit("ld.shared.v4.b32", tile.address + 128, pred=False)
    tc.emit("ld.shared.v4.b32", tile.at(28).address)  # here


# -- plain addresses that are known at run time --------------------------------------------------------

STORE = "st.shared.b32"


@planted.marked(
    OutOfBounds, "4 bytes from byte 128 on leave a shared s32 tile of 4x8, which has 128 bytes", 1
)
def word_by_address(i, mistake: tc.Const):
    before, tile, other = (tc.shared(shape, tc.s32) for shape in (32, (4, 8), 32))
    t = tc.threadIdx.x
    before[t], other[t] = 0, 0
    tc.emit(STORE, tile.at(0, 1).address + 4 * (t - (0 if mistake else i)), 0)  # here


@planted.marked(OutOfBounds, "4 bytes from byte -4 on leave a shared s32 tile of 32, which has 128 bytes", 1)
def word_before_the_tile(i, mistake: tc.Const):
    before, tile = tc.shared((8, 8), tc.s32), tc.shared(32, tc.s32)
    before[0, tc.threadIdx.x % 8] = 0
    tc.emit(STORE, tile.address - 4 * (i if mistake else i - 1) + 4 * tc.threadIdx.x, 0)  # here


@planted.marked(
    OutOfBounds, "16 bytes from byte 116 on leave a shared s32 tile of 32, which has 128 bytes", 29
)
def vector_by_run_time_address(i, mistake: tc.Const):
    tile, other = tc.shared(32, tc.s32, align=16), tc.shared(32, tc.s32)
    other[tc.threadIdx.x] = 0
    if tc.threadIdx.x == 0:
        tc.emit("st.shared.v4.b32", tile.address + 4 * (i if mistake else i - 1), [tc.u32(0)] * 4)  # here


@planted.marked(
    OutOfBounds, "byte 143 leaves a shared f32 tile of 32, which has 128 bytes", (64,), 1, np.uint32(128)
)
def bulk_store_by_run_time_address(x, i, n: tc.u32, mistake: tc.Const):
    tile = written_tile(32)
    if tc.threadIdx.x == 0:
        tc.emit(BULK_STORE, x.address, tile.address + 16 * i, n - (0 if mistake else 16))  # here
        end_stores()


@planted.marked(
    OutOfBounds, "4 bytes from byte 128 on leave a shared s32 tile of 32, which has 128 bytes", 32
)
def address_in_a_loop(n, mistake: tc.Const):
    tile, other = tc.shared(32, tc.s32), tc.shared(32, tc.s32)
    other[tc.threadIdx.x] = 0
    if tc.threadIdx.x == 0:
        place = tile.address
        for _ in range(n + (1 if mistake else 0)):
            tc.emit(STORE, place, 0)  # here
            place += 4


@planted.marked(
    OutOfBounds, "leave a shared s32 tile of 16 and a shared s32 tile of 32, which has 192 bytes", 32
)
def one_of_two_addresses(n, mistake: tc.Const):
    """A register may hold either address; it stays in the bytes from the first tile to the last."""
    small, tile, other = tc.shared(16, tc.s32), tc.shared(32, tc.s32), tc.shared(32, tc.s32)
    other[tc.threadIdx.x] = 0
    if tc.threadIdx.x == 0:
        place = small.address
        if n > 3:
            place = tile.address
        tc.emit(STORE, place + 4 * (n if mistake else n - 1), 0)  # here
