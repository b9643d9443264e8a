"""Planted bugs of wgmma: its fences, groups, registers, descriptors and operands in shared memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tests.planted.harness import Arguments
from tests.planted.hopper import numbered

BF16 = np.dtype(ml_dtypes.bfloat16)
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


@tc.kernel
def product(a: tc.Array, b: tc.Array, d: tc.Array, bug: tc.Const = ()):
    """D = A B^T in two halves of K; A (64 x 128) and B (16 x 128) come by ordinary stores."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((2, 64, 64), tc.bf16, swizzle=128)
    tile_b = tc.shared((2, 16, 64), tc.bf16, swizzle=128)
    t = tc.threadIdx.x
    if bug == 2:
        tc.fence_proxy_async()
    for half in tc.static_range(2):
        for i in tc.static_range(4):
            row, col = i * 16 + t // 8, t % 8 * 8
            tile_a.at(half, row, col).store(a.at(row, 64 * half + col).load(8))  # race 1,2,3,4,5,6: first
        row, col = t // 8, t % 8 * 8
        tile_b.at(half, row, col).store(b.at(row, 64 * half + col).load(8))  # race 1,2,3,4,5,6: first
    if bug == 3:
        if t == 0:
            tc.fence_proxy_async()
    elif bug == 4:
        if t < 32:
            tc.fence_proxy_async()
    elif bug not in (1, 2):
        tc.fence_proxy_async()
    if bug == 7:
        tile_b[1, t // 8, t % 8 * 8] = b[t // 8, 64 + t % 8 * 8]  # race 7: first
    if bug == 6:
        tc.barrier(1 + t // 64, 64)
    elif bug != 5:
        tc.barrier()
    if bug == 8:
        tile_a[0, t // 2, t % 2] = a[t // 2, t % 2]  # race 8: first
    acc = mma.d.zeros()
    if bug not in (13, 14):
        tc.wgmma_fence()
    if bug == 9:
        acc = mma.d.zeros()  # error 9; race 9: first
    if bug == 10:
        if t < 96:
            acc = tc.wgmma_async(mma, acc, tile_a[0], tile_b[0])  # error 10
    elif bug == 11:
        if tc.elect():
            acc = tc.wgmma_async(mma, acc, tile_a[0], tile_b[0])  # error 11
    else:
        acc = tc.wgmma_async(mma, acc, tile_a[0], tile_b[0])  # race 1,2,3,4,5,6,8,9,12: second; error 9,13,14
    if bug == 14:
        tc.wgmma_fence()
    if bug not in (22, 24):
        tc.wgmma_commit()
    if bug == 12:
        tile_a[0, t // 2, t % 2] = 0.0  # race 12: first
    if bug == 15:
        acc = acc.map(lambda x: x * 1.0)  # error 15
    acc = tc.wgmma_async(mma, acc, tile_a[1], tile_b[1])  # race 1,2,3,4,5,6,7,16,17: second; error 10,11
    if bug == 23:
        pass
    elif bug not in (22, 25):
        tc.wgmma_commit()
    if bug == 16:
        tile_b[1, t // 8, t % 8 * 8] = 0.0  # race 16: first
    if bug == 18:
        d[0, t % 16] = acc[0]  # error 18
    if bug == 19:
        acc[3] = 0.0  # error 19
    if bug in (21, 24, 17):
        tc.wgmma_wait(1)
    elif bug != 20:
        tc.wgmma_wait(0)
    if bug == 17:
        if t < 32:
            tile_b[1, t // 8, t % 8 * 8] = 0.0  # race 17: first
        tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]  # error 20,21,22,23,24,25
    if bug == 25:
        tc.wgmma_commit()
    if bug in (22, 23, 20, 21):
        tc.wgmma_commit()
        tc.wgmma_wait(0)


PRODUCT = (
    "no proxy fence",  # 1
    "proxy fence before the stores",  # 2
    "proxy fence by one thread",  # 3
    "proxy fence by one warp",  # 4
    "no barrier behind the proxy fence",  # 5
    "warps meet in pairs",  # 6
    "a store behind the proxy fence",  # 7
    "a store behind the barrier",  # 8
    "accumulators set behind the fence",  # 9
    "part of the warpgroup",  # 10
    "one lane of each warp",  # 11
    "A stored to in flight",  # 12
    "no wgmma fence",  # 13
    "wgmma fence behind the product",  # 14
    "accumulators changed between the products",  # 15
    "B stored to in flight",  # 16
    "B stored to by one warp behind its wait of one",  # 17
    "one accumulator read in flight",  # 18
    "an accumulator set in flight",  # 19
    "no wait",  # 20
    "waits for one",  # 21
    "no commit",  # 22
    "no commit of the second",  # 23
    "one commit for both, wait for one",  # 24
    "commit behind the wait",  # 25
)


@tc.kernel
def described(a: tc.Array, b: tc.Array, d: tc.Array, bug: tc.Const = ()):
    """D = A B of 64 x 16 x 16 with descriptors by hand: A K-major, B MN-major in atoms of 64."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)
    below = tc.shared((8, 64), tc.bf16, swizzle=128)
    tile_a = tc.shared((64, 64), tc.bf16, swizzle=128)
    tile_b = tc.shared((2, 16, 64), tc.bf16, swizzle=128)
    t = tc.threadIdx.x
    for i in tc.range(t, 64 * 64, 128):
        tile_a[i // 64, i % 64] = a[i // 64, i % 64]
    for i in tc.range(t, 2 * 16 * 64, 128):
        tile_b[i // 1024, i // 64 % 16, i % 64] = b[i // 64 % 16, i // 1024 * 64 + i % 64]
    tc.fence_proxy_async()
    tc.barrier()
    start, stride, swizzle, base = tile_a.address, 1024, 1, 0
    if bug == 1:
        stride = 2048
    if bug == 2:
        stride = 512
    if bug == 3:
        swizzle = 0
    if bug == 4:
        swizzle = 2
    if bug == 5:
        start = start + 1024
    if bug == 6:
        start = below.address
    if bug == 7:
        start = start + 16 * 7
    if bug == 8:
        start = start + 200 * 1024
    if bug == 9:
        base = 3
    start = (start >> 4 & 0x3FFF).bits(tc.b32)
    left = tc.emit("mov.b64.pack", start, tc.u32(stride // 16 | base << 17 | swizzle << 30))
    start, leading, stride, swizzle = tile_b.address, 2048, 1024, 1
    if bug == 10:
        leading = 4096
    if bug == 11:
        leading = 1024
    if bug == 12:
        leading, stride = 1024, 2048
    if bug == 13:
        start = start + 2048
    if bug == 14:
        swizzle = 0
    low = (start >> 4 & 0x3FFF) + (leading // 16 << 16)
    right = tc.emit("mov.b64.pack", low.bits(tc.b32), tc.u32(stride // 16 | swizzle << 30))
    if bug == 15:
        right = tc.emit(
            "mov.b64.pack", (low + tc.u32(t // 64)).bits(tc.b32), tc.u32(stride // 16 | swizzle << 30)
        )
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = mma(  # error 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16
        acc, left, right, True, 1, 1, 0, 0 if bug == 16 else 1
    )
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


DESCRIBED = (
    "stride of A too large",  # 1
    "stride of A too small",  # 2
    "A not swizzled",  # 3
    "A of another swizzle",  # 4
    "A from eight rows on",  # 5
    "A from another tile",  # 6
    "A from the middle of a row of chunks",  # 7
    "A beyond shared memory",  # 8
    "base offset of A",  # 9
    "leading offset of B too large",  # 10
    "leading offset of B too small",  # 11
    "leading offset and stride of B swapped",  # 12
    "B from its second atom on",  # 13
    "B not swizzled",  # 14
    "descriptors differ in a warp",  # 15
    "B not transposed",  # 16
)


@tc.kernel
def pipeline(a: tc.Array, b: tc.Array, scales: tc.Array, d: tc.Array, bug: tc.Const = ()):
    """D = sum over k of scale[k] A_k B_k^T: a producer warp, two consumer warpgroups, two stages.

    The scales of the 16 columns come with each stage, and the consumers read them by ordinary
    loads. A stage is released by every warp.
    """
    tc.launch_bounds(288)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32)
    map_a, map_b = tc.tensor_map(a, (128, 64), swizzle=128), tc.tensor_map(b, (16, 64), swizzle=128)
    tile_a = tc.shared((2, 2, 64, 64), tc.bf16, swizzle=128)
    tile_b = tc.shared((2, 16, 64), tc.bf16, swizzle=128)
    tile_s = tc.shared((2, 16), tc.f32, align=128)
    full, empty = tc.mbarriers(2), tc.mbarriers(2)
    t, depth = tc.threadIdx.x, a.shape[1] // 64
    if t == 0:
        for slot in tc.static_range(2):
            full[slot].init(1)
            empty[slot].init({1: 4, 8: 2}.get(bug, 8))  # error 1
        tc.fence_mbarrier_init()
    tc.barrier()
    if t >= 256:
        if t == 256:
            for k in range(depth):
                slot, phase = k % 2, k // 2 & 1
                empty[slot].wait(phase ^ 1)
                size = map_a.bytes + map_b.bytes + 64
                if bug == 2:
                    size = map_a.bytes
                if bug == 3:
                    size = map_a.bytes + map_b.bytes
                full[slot].arrive_expect_tx(size)  # error 2,3
                tc.tma_load(tile_a[slot], map_a, (0, 64 * k), full[slot])  # race 1,4,5,6: first; error 2
                tc.tma_load(tile_b[slot], map_b, (0, 64 * k), full[slot])  # race 1,4,5,6: first; error 2,3
                tc.emit(  # race 1,4,7,8: first; error 2,3,16
                    BULK_LOAD, tile_s.at(slot, 0).address, scales.at(k, 0).address, 64, full[slot].address
                )
    else:
        group, lane = t // 128, t % 32
        total, acc = mma.d.zeros(), mma.d.zeros()
        for k in range(depth):
            slot, phase = k % 2, k // 2 & 1
            if bug == 11:
                if group == 0:
                    full[slot].wait(phase)
            elif bug == 12:
                if t % 128 == 0:
                    full[slot].wait(phase)
            elif bug not in (13, 9):
                full[slot].wait(phase)  # error 2,3
            if bug == 9:
                tc.wgmma_fence()
                acc = tc.wgmma_async(mma, acc, tile_a[slot, group], tile_b[slot], accumulate=False)  # error 9
                full[slot].wait(phase)
            if bug not in (10, 9):
                tc.wgmma_fence()
            if bug != 9:
                left = tile_a[1 - slot, group] if bug == 14 else tile_a[slot, group]
                acc = tc.wgmma_async(  # race 1,4,5,6: second; error 2,3,10,11,12,13,14
                    mma, acc, left, tile_b[slot], accumulate=False
                )
            if bug == 4:
                empty[slot].arrive(pred=lane == 0)
            tc.wgmma_commit()
            if bug == 6:
                empty[slot].arrive(pred=(lane == 0) & (group == 1))
            if bug == 5:
                tc.wgmma_wait(1)
                empty[slot].arrive(pred=lane == 0)
            if bug == 15:
                total = total + acc  # error 15
            tc.wgmma_wait(0)
            if bug == 7:
                tc.syncwarp()
                empty[slot].arrive(pred=lane == 0)
            for i in tc.static_range(len(acc)):
                total[i] = (
                    total[i] + acc[i] * tile_s[slot, acc.coordinates(i)[1]]
                )  # race 1,4,7,8: second; error 3,9,11,12,13
            if bug != 16:
                tc.fence_proxy_async()
            tc.syncwarp()
            if bug == 1:
                empty[slot].arrive(pred=(lane == 0) & (group == 0))
            elif bug == 8:
                empty[slot].arrive(pred=t % 128 == 0)
            elif bug == 6:
                empty[slot].arrive(pred=(lane == 0) & (group == 0))
            elif bug not in (4, 7, 5):
                empty[slot].arrive(pred=lane == 0)
        for i in tc.static_range(len(total)):
            row, col = total.coordinates(i)
            d[64 * group + row, col] = total[i]


PIPELINE = (
    "released by one warpgroup for both",  # 1
    "bytes of A alone",  # 2
    "bytes of A and B alone",  # 3
    "released before the wait",  # 4
    "released with one in flight",  # 5
    "one warpgroup releases at once",  # 6
    "scales read behind the release",  # 7
    "one thread releases for a warpgroup",  # 8
    "waits behind the product",  # 9
    "no fence in the loop",  # 10
    "one warpgroup waits",  # 11
    "one thread waits",  # 12
    "no wait for the stage",  # 13
    "A of the other stage",  # 14
    "scaled in flight",  # 15
    "scales not fenced before the release",  # 16
)


@tc.kernel
def shared_by_groups(a: tc.Array, b: tc.Array, d: tc.Array, bug: tc.Const = ()):
    """Two warpgroups share B, whose next half overwrites the first one; D goes out by way of A."""
    tc.launch_bounds(256)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((2, 64, 64), tc.bf16, swizzle=128)
    tile_b = tc.shared((16, 64), tc.bf16, swizzle=128)
    out = tc.shared((64, 16), tc.f32)
    t, group = tc.threadIdx.x, tc.threadIdx.x // 128
    u = t % 128
    acc = mma.d.zeros()
    for half in tc.static_range(2):
        for i in tc.static_range(4):
            row, col = i * 16 + u // 8, u % 8 * 8
            tile_a.at(group, row, col).store(  # race 1,2: first
                a.at(64 * group + row, 64 * half + col).load(8)
            )
        if group == 0:
            tile_b.at(u // 8, u % 8 * 8).store(  # race 1,2,3,4: first
                b.at(u // 8, 64 * half + u % 8 * 8).load(8)
            )
        tc.fence_proxy_async()
        if bug == 4:
            tc.barrier(1 + group, 128)
        else:
            tc.barrier()
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a[group], tile_b)  # race 1,2,3,4: second
        tc.wgmma_commit()
        if bug == 2:
            tc.barrier()
        tc.wgmma_wait(0)
        if bug == 3:
            tc.barrier(1 + group, 128)
        elif bug not in (1, 2):
            tc.barrier()
    for turn in tc.static_range(2):
        if group == turn:
            for i in tc.static_range(len(acc)):
                row, col = acc.coordinates(i)
                out[row, col] = acc[i]  # race 5,6: first
        if bug != 5:
            tc.barrier()
        for i in tc.static_range(4):
            place = t + 256 * i
            d[64 * turn + place // 16, place % 16] = out[place // 16, place % 16]  # race 5,6: second
        if bug != 6:
            tc.barrier()


SHARED_BY_GROUPS = (
    "groups do not meet",  # 1
    "meets before its own wait",  # 2
    "each group meets alone",  # 3
    "no barrier behind the stores",  # 4
    "staged without a barrier",  # 5
    "staged over what others read",  # 6
)


@tc.kernel
def in_place(a: tc.Array, b: tc.Array, d: tc.Array, bug: tc.Const = ()):
    """TMA brings A and B; the warpgroup doubles A in place by ordinary accesses, then multiplies."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32)
    map_a, map_b = tc.tensor_map(a, (64, 64), swizzle=128), tc.tensor_map(b, (16, 64), swizzle=128)
    tile_a = tc.shared((64, 64), tc.bf16, swizzle=128)
    tile_b = tc.shared((16, 64), tc.bf16, swizzle=128)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    acc = mma.d.zeros()
    for k in range(a.shape[1] // 64):
        if t == 0:
            bar.arrive_expect_tx(map_a.bytes + map_b.bytes)
            tc.tma_load(tile_a, map_a, (0, 64 * k), bar)  # race 1: first; error 1,2
            tc.tma_load(tile_b, map_b, (0, 64 * k), bar)  # error 2
        if bug != 1:
            bar.wait(k & 1)
        for i in tc.static_range(4):
            place = tile_a.at(i * 16 + t // 8, t % 8 * 8)
            values = place.load(8)  # race 1: second; error 1
            place.store([x + x for x in values])  # race 3,4,5,6: first; error 1
            if bug == 6:
                tc.fence_proxy_async()
                place.store([x + x for x in values])  # race 6: first
        if bug == 1:
            bar.wait(k & 1)
        if bug == 4:
            if t == 0:
                tc.fence_proxy_async()
        elif bug not in (3, 6):
            tc.fence_proxy_async()
        if bug != 5:
            tc.barrier()
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a, tile_b)  # race 3,4,5,6: second; error 2
        tc.wgmma_commit()
        if bug == 2:
            tc.wgmma_wait(1)
        else:
            tc.wgmma_wait(0)
        tc.barrier()
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


IN_PLACE = (
    "not waited for before it is doubled",  # 1
    "products in flight at the end of a turn",  # 2
    "not fenced when doubled",  # 3
    "fenced by a thread that waited",  # 4
    "no barrier when doubled",  # 5
    "fenced before it is doubled",  # 6
)


@tc.kernel
def from_registers(a: tc.Array, b: tc.Array, d: tc.Array, turns: tc.s32, bug: tc.Const = ()):
    """D = A B^T in steps of 16 of K, A from registers."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32, source="registers")
    tile_b = tc.shared((4, 16, 16), tc.bf16, swizzle=32)
    t = tc.threadIdx.x
    for i in tc.static_range(8):
        place = t + 128 * i
        tile_b[place // 256, place // 16 % 16, place % 16] = b[
            place // 16 % 16, place // 256 * 16 + place % 16
        ]
    tc.fence_proxy_async()
    tc.barrier()
    acc = mma.d.zeros()
    left = tc.load_elements(a, mma.a, origin=(0, 0))
    for k in range(turns):
        if bug != 1:
            tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, [left], tile_b[k])  # error 1,2,3,4,5; race 2,3,4: second
        if bug == 4:
            left = left.map(lambda x: x + x)  # error 4; race 4: first
        if bug == 5:
            left[0] = tc.bf16(0.0)  # error 5; race 5: first
        tc.wgmma_commit()
        if bug == 3:
            tc.wgmma_wait(1)
        elif bug not in (2, 6):
            tc.wgmma_wait(0)
        if bug == 6:
            d[t % 64, 0] = acc[0]  # error 6
            tc.wgmma_wait(0)
        following = min(k + 1, turns - 1)
        if bug not in (4, 5):
            left = tc.load_elements(a, mma.a, origin=(0, 16 * following))  # error 2,3; race 2,3: first
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


FROM_REGISTERS = (
    "no fence behind the loads of A",  # 1
    "next A in flight",  # 2
    "next A behind a wait for one",  # 3
    "A scaled in flight",  # 4
    "A set in part in flight",  # 5
    "accumulators read in the loop",  # 6
)


@tc.kernel
def sparse(out: tc.Array, turns: tc.s32, bug: tc.Const = ()):
    """Products of a sparse A of ones, with metadata that change from turn to turn."""
    tc.launch_bounds(128)
    mma = tc.wgmma.sp.m64n64k32(tc.f16, tc.f16, tc.f32)
    tile_a, tile_b = tc.shared((64, 32), tc.f16, swizzle=64), tc.shared((64, 64), tc.f16, swizzle=128)
    t = tc.threadIdx.x
    for i in tc.static_range(16):
        tile_a[t // 2, t % 2 * 16 + i] = tc.f16(1)  # race 1: first
    for i in tc.static_range(32):
        tile_b[t // 2, t % 2 * 32 + i] = tc.f16(1)  # race 1: first
    if bug != 1:
        tc.fence_proxy_async()
    tc.barrier()
    acc, word = mma.d.zeros(), tc.u32(0x44444444)
    for _ in range(turns):
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a, tile_b, metadata=[word])  # error 2,3; race 1,2,3,4: second
        tc.wgmma_commit()
        if bug == 3:
            tc.wgmma_wait(1)
        elif bug not in (2, 4):
            tc.wgmma_wait(0)
        if bug == 4:
            tile_b[t // 2, t % 2] = tc.f16(1)  # race 4: first
            tc.wgmma_wait(0)
        word = word ^ 0x88888888  # error 2,3; race 2,3: first
    tc.wgmma_wait(0)
    out[t] = acc[0]


SPARSE = (
    "no proxy fence",  # 1
    "metadata changed in flight",  # 2
    "metadata changed behind a wait for one",  # 3
    "B changed in flight",  # 4
)


# -- launches -------------------------------------------------------------------------------------


def whole(draw: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Whole numbers, so that sums are exact in any order."""
    return draw.integers(-4, 5, (rows, cols)).astype(BF16)


def operands(rows: int, depth: int, factor: int = 1, **more: Any) -> Any:
    """D = factor A B^T with 16 columns."""

    def make(draw: np.random.Generator) -> Arguments:
        a, b = whole(draw, rows, depth), whole(draw, 16, depth)
        d = np.zeros((rows, 16), np.float32)
        expected = factor * a.astype(np.float32) @ b.astype(np.float32).T
        return {"a": a, "b": b, "d": d, **more}, {"d": expected}

    return make


def by_hand(draw: np.random.Generator) -> Arguments:
    a, b = whole(draw, 64, 64), whole(draw, 16, 128)
    expected = a[:, :16].astype(np.float32) @ b.astype(np.float32)
    return {"a": a, "b": b, "d": np.zeros((64, 128), np.float32)}, {"d": expected}


def scaled(draw: np.random.Generator) -> Arguments:
    a, b = whole(draw, 128, 320), whole(draw, 16, 320)
    scales = draw.integers(1, 5, (5, 16)).astype(np.float32)
    expected = np.zeros((128, 16), np.float32)
    for k in range(5):
        part = slice(64 * k, 64 * k + 64)
        expected += scales[k] * (a[:, part].astype(np.float32) @ b[:, part].astype(np.float32).T)
    arguments = {"a": a, "b": b, "scales": scales, "d": np.zeros((128, 16), np.float32)}
    return arguments, {"d": expected}


def ones(draw: np.random.Generator) -> Arguments:
    return {"out": np.zeros(128, np.float32), "turns": 3}, {"out": np.full(128, 96, np.float32)}


CASES = [
    *numbered(PRODUCT, product, 1, 128, operands(64, 128)),
    *numbered(DESCRIBED, described, 1, 128, by_hand),
    *numbered(PIPELINE, pipeline, 1, 288, scaled),
    *numbered(SHARED_BY_GROUPS, shared_by_groups, 1, 256, operands(128, 128)),
    *numbered(IN_PLACE, in_place, 1, 128, operands(64, 192, factor=2)),
    *numbered(FROM_REGISTERS, from_registers, 1, 128, operands(64, 64, turns=4)),
    *numbered(SPARSE, sparse, 1, 128, ones),
]
