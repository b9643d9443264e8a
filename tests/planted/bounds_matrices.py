"""Rows of ldmatrix, lines of wmma, descriptors of wgmma, boxes of tensor copies, sizes of cp.async."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, OperandError, OutOfBounds
from tests.planted.harness import Planted

planted = Planted()
HALF = dict(dtype=np.float16, arch="sm_80")

# -- ldmatrix, stmatrix -----------------------------------------------------------------------------


@planted.marked(
    OutOfBounds, "16 bytes from byte 512 on leave a shared bf16 tile of 16x16, which has 512 bytes"
)
def stored_rows(mistake: tc.Const):
    tile, other = tc.shared((16, 16), tc.bf16), tc.shared((16, 16), tc.bf16)
    other[0, tc.threadIdx.x % 16] = 1.0
    row = tile.at(0, 0) + (tc.lane_id() % 16 + (1 if mistake else 0)) * 16
    tc.emit("stmatrix.sync.aligned.m8n8.x2.shared.b16", row, [tc.u32(0)] * 2)  # here


@planted.marked(
    OutOfBounds, "16 bytes from byte 512 on leave a shared bf16 tile of 16x16, which has 512 bytes"
)
def loaded_rows(mistake: tc.Const):
    both = tc.shared((16, 16), tc.bf16), tc.shared((16, 16), tc.bf16)
    for row in range(16):
        for tile in both:
            tile[row, tc.threadIdx.x % 16] = 1.0
    tc.syncwarp()
    row = both[0].at(0, 0) + (tc.lane_id() % 16 + (1 if mistake else 0)) * 16
    tc.emit("ldmatrix.sync.aligned.m8n8.x2.shared.b16", row)  # here


# -- wmma -------------------------------------------------------------------------------------------

LOAD, STORE = "wmma.load.a.sync.aligned", "wmma.store.d.sync.aligned"


@planted.marked(
    OutOfBounds, "16 elements from index 16 on leave axis 1 of 'x', which has extent 24", (32, 24), 8, **HALF
)
def wmma_columns(x, i, mistake: tc.Const):
    tc.emit(f"{LOAD}.row.m16n16k16.global.f16", x.at(0, i + (8 if mistake else 0)), 24)  # here


@planted.marked(
    OutOfBounds, "16 elements from index 17 on leave axis 0 of 'x', which has extent 32", (32, 24), 16, **HALF
)
def wmma_rows(x, i, mistake: tc.Const):
    pitch = x.strides[0].to(tc.u32)
    tc.emit(f"{LOAD}.row.m16n16k16.global.f16", x.at(i + (1 if mistake else 0), 0), pitch)  # here


@planted.marked(
    OutOfBounds, "16 elements from index 8 on leave axis 0 of 'x', which has extent 16", (16, 24), 8, **HALF
)
def wmma_down(x, i, mistake: tc.Const):
    tc.emit(
        f"{LOAD}.col.m16n16k16.global.f16", x.T.at(0 if not mistake else 0, i if mistake else 0), 24
    )  # here


@planted.marked(
    OutOfBounds, "16 elements from index 1 on leave axis 0 of a shared f32 tile of 16x24", 0, arch="sm_80"
)
def wmma_store(i, mistake: tc.Const):
    tile, other = tc.shared((16, 24), tc.f32), tc.shared((16, 24), tc.f32)
    other[0, 0] = 1.0
    acc = tc.instruction("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32").d.zeros()
    place = tile.at(i + (1 if mistake else 0), 0)
    tc.emit(f"{STORE}.row.m16n16k16.shared.f32", place, acc, 24)  # here


@planted.marked(
    OutOfBounds,
    "lines 16 elements apart are no lines of axis 0 of 'x', which are 24 apart",
    (16, 24),
    24,
    **HALF,
)
def wmma_stride(x, n, mistake: tc.Const):
    pitch = (n - (8 if mistake else 0)).to(tc.u32)
    tc.emit(f"{LOAD}.row.m16n16k16.global.f16", x.at(0, 0), pitch)  # here


@planted.marked(
    OutOfBounds, "lines 16 elements apart are no lines of axis 0 of a shared f16 tile of 16x24", arch="sm_80"
)
def wmma_stride_of_a_tile(mistake: tc.Const):
    tile = tc.shared((16, 24), tc.f16)
    for i in range(16):
        tile[i, tc.threadIdx.x % 24] = 1.0
    tc.syncwarp()
    tc.emit(f"{LOAD}.row.m16n16k16.shared.f16", tile.at(0, 0), 16 if mistake else 24)  # here


# -- wgmma ------------------------------------------------------------------------------------------

WARPGROUP = dict(block=128)


def filled(*shape: int, swizzle: int = 128) -> Any:
    """Two tiles of ones, which the async proxy may read."""
    tiles = [tc.shared(shape, tc.bf16, swizzle=swizzle, align=1024) for _ in range(2)]
    for tile in tiles:
        for line in tc.range(shape[-2]):
            for plane in tc.static_range(shape[0] if len(shape) == 3 else 1):
                view = tile[plane] if len(shape) == 3 else tile
                column, inside = tc.threadIdx.x % shape[-1], tc.threadIdx.x < shape[-1]
                view.at(line, column).store(1.0, pred=inside)
    tc.fence_proxy_async()
    tc.barrier()
    return tiles


def multiply(mma: Any, desc_a: Any, desc_b: Any, trans_a: int = 0, trans_b: int = 0) -> None:
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = mma(acc, desc_a, desc_b, True, 1, 1, trans_a, trans_b)
    tc.wgmma_commit()
    tc.wgmma_wait(0)


@planted.marked(
    OperandError,
    "reads 64 rows and 16 of K of bf16 at the descriptor of a; it describes a view of 32 rows and 16 of K",
    **WARPGROUP,
)
def view_of_few_rows(mistake: tc.Const):
    mma, (a, b) = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32), filled(64, 64)
    multiply(mma, tc.wgmma_descriptor(a[32 if mistake else 0 :, :16]), tc.wgmma_descriptor(b[:, :16]))  # here


@planted.marked(OperandError, "it describes a view of 64 columns and 8 of K of bf16", **WARPGROUP)
def view_of_little_depth(mistake: tc.Const):
    mma, (a, b) = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32), filled(64, 64)
    multiply(mma, tc.wgmma_descriptor(a[:, :16]), tc.wgmma_descriptor(b[:, : 8 if mistake else 16]))  # here


@planted.marked(
    OperandError, "reads a with major 'mn' (trans_a is 1); the descriptor has major 'k'", **WARPGROUP
)
def other_major(mistake: tc.Const):
    mma, (a, b) = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32), filled(64, 64)
    multiply(mma, tc.wgmma_descriptor(a[:, :16]), tc.wgmma_descriptor(b[:, :16]), 1 if mistake else 0)  # here


def changed(descriptor: Any, amount: int) -> Any:
    return (descriptor.bits(tc.u64) + amount).bits(tc.b64)


@planted.marked(
    OutOfBounds,
    "desc_a reads shared bytes 0x80 to 0x201f, outside of a shared bf16 tile of 64x64, 128-byte swizzle at bytes 0x0 to 0x1fff",
    **WARPGROUP,
)
def step_too_many(mistake: tc.Const):
    mma, (a, b) = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32), filled(64, 64)
    step = changed(tc.wgmma_descriptor(a[:, 32:48]), 4 if mistake else 2)
    multiply(mma, step, tc.wgmma_descriptor(b[:, :16]))  # here


@planted.marked(
    EmulationError,
    "desc_a has a 64-byte swizzle; it points into a shared bf16 tile of 64x64, 128-byte swizzle",
    **WARPGROUP,
)
def other_swizzle(mistake: tc.Const):
    mma, (a, b) = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32), filled(64, 64)
    descriptor = changed(tc.wgmma_descriptor(a[:, :16]), 1 << 62 if mistake else 0)
    multiply(mma, descriptor, tc.wgmma_descriptor(b[:, :16]))  # here


@planted.marked(
    EmulationError,
    "desc_a has a stride of 512 bytes from 8 rows to the next 8; it points into a shared bf16 tile of 64x64, 128-byte swizzle at bytes 0x0 to 0x1fff, where these are 1024",
    **WARPGROUP,
)
def other_stride(mistake: tc.Const):
    mma, (a, b) = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32), filled(64, 64)
    descriptor = changed(tc.wgmma_descriptor(a[:, :16]), -(32 << 32) if mistake else 0)
    multiply(mma, descriptor, tc.wgmma_descriptor(b[:, :16]))  # here


@planted.marked(
    EmulationError,
    "desc_b has a leading offset of 2048 bytes from one atom to the next; it points into a shared bf16 tile of 2x32x64, 128-byte swizzle at bytes 0x2000 to 0x3fff, where these are 4096",
    **WARPGROUP,
)
def other_leading_offset(mistake: tc.Const):
    mma, (a, b) = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32), filled(2, 32, 64)
    first, acc = tc.wgmma_descriptor(a[:1, :16], "mn"), mma.d.zeros()
    tc.wgmma_fence()
    second = changed(tc.wgmma_descriptor(b[:, :16], "mn"), -(128 << 16) if mistake else 0)
    acc = mma(acc, first, second, True, 1, 1, 1, 1)  # here
    tc.wgmma_commit()
    tc.wgmma_wait(0)


def plain(b: Any, leading: int, stride: int) -> Any:
    """A descriptor of a tile without swizzle: bytes to the next 8 values of k, and to the next 8 columns."""
    low = (b.address >> 4 & 0x3FFF) + (leading // 16 << 16)
    return tc.emit("mov.b64.pack", low.bits(tc.b32), tc.u32(stride // 16))


@planted.marked(
    EmulationError,
    "desc_b reads shared bytes 0x4080 to 0x408f twice, with a leading offset of 128 and a stride of 128 bytes; it points into a shared bf16 tile of 8x16x8",
    **WARPGROUP,
)
def overlapping_blocks(mistake: tc.Const):
    mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    a, b = filled(64, 64)[0], filled(8, 16, 8, swizzle=0)[0]
    multiply(mma, tc.wgmma_descriptor(a[:, :16]), plain(b, 128, 128 if mistake else 256), trans_b=1)  # here


@planted.marked(
    EmulationError,
    "desc_b has no swizzle and reads rows of 16 bytes side by side; it points into a shared bf16 tile of 16x72 at bytes 0x4000 to 0x48ff, whose rows are 144 bytes apart",
    **WARPGROUP,
)
def rows_apart(mistake: tc.Const):
    mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    a, b = filled(64, 64)[0], filled(*((16, 72) if mistake else (8, 2, 72)), swizzle=0)[0]
    leading, stride = (128, 256) if mistake else (144, 288)  # core matrices of 128 bytes, 16 bytes apart
    multiply(mma, tc.wgmma_descriptor(a[:, :16]), plain(b, leading, stride), trans_b=1)  # here


# -- boxes of tensor copies -------------------------------------------------------------------------

BF16 = dict(dtype=tc.bf16.numpy)


def load(x: Any, row: Any, col: Any) -> None:
    """The 128 rows from `row` on, as two boxes."""
    tile, bars = tc.shared((2, 64, 64), tc.bf16, swizzle=128), tc.mbarriers(1)
    box = tc.tensor_map(x, (64, 64), swizzle=128)
    if tc.threadIdx.x == 0:
        bars[0].init(1)
        tc.fence_mbarrier_init()
        bars[0].arrive_expect_tx(tile.bytes)
        for part in tc.static_range(2):
            tc.tma_load(tile[part], box, (row + 64 * part, col), bars[0])
    tc.barrier()
    bars[0].wait(0)


@planted.marked(
    OutOfBounds,
    "the tensor load from argument 'x' by thread 0 of CTA 0 moves nothing: a box of (64, 64) elements at coordinates (0, 128) lies outside of the array of (64, 100) (innermost axis first)",
    (100, 64),
    64,
    **BF16,
)
def box_behind(x, i, mistake: tc.Const):
    load(x, i + (64 if mistake else 0), 0)  # here


@planted.marked(OutOfBounds, "at coordinates (-64, 0) lies outside", (200, 64), 0, **BF16)
def box_before(x, i, mistake: tc.Const):
    load(x, i, i - (64 if mistake else 8))  # here


@planted.marked(
    OutOfBounds, "the tensor store to argument 'x' by thread 0 of CTA 1", (100, 64), 64, grid=2, **BF16
)
def stored_box_behind(x, n, mistake: tc.Const):
    tile = tc.shared((64, 64), tc.bf16, swizzle=128)
    for i in range(64):
        tile.at(i, 2 * tc.threadIdx.x).store([1.0, 1.0])
    box = tc.tensor_map(x, (64, 64), swizzle=128)
    tc.fence_proxy_async()
    tc.barrier()
    if tc.threadIdx.x == 0:
        tc.tma_store(box, (tc.blockIdx.x * (n + 64 if mistake else n), 0), tile)  # here
        tc.tma_store_commit()
        tc.tma_store_wait(0)


# -- cp.async ---------------------------------------------------------------------------------------


@planted.marked(OutOfBounds, "valid= is 17 for a copy of 16 bytes", (8, 64), 17)
def too_many_valid(x, n, mistake: tc.Const):
    tile = tc.shared((32, 4), tc.f32)
    tc.cp_async(tile.at(tc.threadIdx.x, 0), x.at(0, 0), 16, valid=n if mistake else n - 1)  # here


@planted.marked(OutOfBounds, "valid= is -1 for a copy of 8 bytes", (8, 64), -1)
def negative_valid(x, n, mistake: tc.Const):
    tile = tc.shared((32, 4), tc.f32)
    tc.cp_async(tile.at(tc.threadIdx.x, 0), x.at(0, 0), 8, valid=n if mistake else n + 1)  # here
