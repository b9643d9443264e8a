"""Planted bugs of wgmma: its fences, groups, registers, descriptors and operands in shared memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tests.planted.harness import Arguments, variants

BF16 = np.dtype(ml_dtypes.bfloat16)
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


@tc.kernel
def product(a: tc.Array, b: tc.Array, d: tc.Array, mistake: tc.Const = ""):
    """D = A B^T in two halves of K; A (64 x 128) and B (16 x 128) come by ordinary stores."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((2, 64, 64), tc.bf16, swizzle=128)
    tile_b = tc.shared((2, 16, 64), tc.bf16, swizzle=128)
    t = tc.threadIdx.x
    for half in tc.static_range(2):
        for i in tc.static_range(4):
            row, col = i * 16 + t // 8, t % 8 * 8
            tile_a.at(half, row, col).store(a.at(row, 64 * half + col).load(8))  # race 1,2,3: first
        row, col = t // 8, t % 8 * 8
        tile_b.at(half, row, col).store(b.at(row, 64 * half + col).load(8))  # race 1,2,3: first
    if mistake == "proxy fence by one thread":
        if t == 0:
            tc.fence_proxy_async()
    elif mistake != "no proxy fence":
        tc.fence_proxy_async()
    if mistake == "a store behind the proxy fence":
        tile_b[1, t // 8, t % 8 * 8] = b[t // 8, 64 + t % 8 * 8]  # race 4: first
    if mistake != "no barrier behind the proxy fence":
        tc.barrier()
    acc = mma.d.zeros()
    if mistake != "no wgmma fence":
        tc.wgmma_fence()
    if mistake == "accumulators set behind the fence":
        acc = mma.d.zeros()  # error 5; race 5: first
    if mistake == "part of the warpgroup":
        if t < 96:
            acc = tc.wgmma_async(mma, acc, tile_a[0], tile_b[0])  # error 6
    else:
        acc = tc.wgmma_async(mma, acc, tile_a[0], tile_b[0])  # race 1,2,3,5,7: second; error 5,8
    if mistake not in ("no commit", "one commit for both, wait for one"):
        tc.wgmma_commit()
    if mistake == "A stored to in flight":
        tile_a[0, t // 2, t % 2] = 0.0  # race 7: first
    if mistake == "accumulators changed between the products":
        acc = acc.map(lambda x: x * 1.0)  # error 9
    acc = tc.wgmma_async(mma, acc, tile_a[1], tile_b[1])  # race 1,2,3,4,10: second; error 6
    if mistake not in ("no commit", "commit behind the wait"):
        tc.wgmma_commit()
    if mistake == "one accumulator read in flight":
        d[0, t % 16] = acc[0]  # error 11
    if mistake == "an accumulator set in flight":
        acc[3] = 0.0  # error 12
    if mistake in (
        "waits for one",
        "one commit for both, wait for one",
        "B stored to by one warp behind its wait of one",
    ):
        tc.wgmma_wait(1)
    elif mistake != "no wait":
        tc.wgmma_wait(0)
    if mistake == "B stored to by one warp behind its wait of one":
        if t < 32:
            tile_b[1, t // 8, t % 8 * 8] = 0.0  # race 10: first
        tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]  # error 13,14,15,16,17
    if mistake == "commit behind the wait":
        tc.wgmma_commit()
    if mistake in ("no commit", "no wait", "waits for one"):
        tc.wgmma_commit()
        tc.wgmma_wait(0)


PRODUCT = (
    "no proxy fence",  # 1
    "proxy fence by one thread",  # 2
    "no barrier behind the proxy fence",  # 3
    "a store behind the proxy fence",  # 4
    "accumulators set behind the fence",  # 5
    "part of the warpgroup",  # 6
    "A stored to in flight",  # 7
    "no wgmma fence",  # 8
    "accumulators changed between the products",  # 9
    "B stored to by one warp behind its wait of one",  # 10
    "one accumulator read in flight",  # 11
    "an accumulator set in flight",  # 12
    "no wait",  # 13
    "waits for one",  # 14
    "no commit",  # 15
    "one commit for both, wait for one",  # 16
    "commit behind the wait",  # 17
)


@tc.kernel
def described(a: tc.Array, b: tc.Array, d: tc.Array, mistake: tc.Const = ""):
    """D = A B of 64 x 16 x 16 with descriptors by hand: A K-major, B MN-major in atoms of 64."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)
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
    if mistake == "stride of A too large":
        stride = 2048
    if mistake == "A not swizzled":
        swizzle = 0
    if mistake == "A from eight rows on":
        start = start + 1024
    if mistake == "A from the middle of a row of chunks":
        start = start + 16 * 7
    if mistake == "A beyond shared memory":
        start = start + 200 * 1024
    if mistake == "base offset of A":
        base = 3
    start = (start >> 4 & 0x3FFF).bits(tc.b32)
    left = tc.emit("mov.b64.pack", start, tc.u32(stride // 16 | base << 17 | swizzle << 30))
    start, leading, stride, swizzle = tile_b.address, 2048, 1024, 1
    if mistake == "leading offset of B too large":
        leading = 4096
    if mistake == "leading offset and stride of B swapped":
        leading, stride = 1024, 2048
    low = (start >> 4 & 0x3FFF) + (leading // 16 << 16)
    right = tc.emit("mov.b64.pack", low.bits(tc.b32), tc.u32(stride // 16 | swizzle << 30))
    if mistake == "descriptors differ in a warp":
        right = tc.emit(
            "mov.b64.pack", (low + tc.u32(t // 64)).bits(tc.b32), tc.u32(stride // 16 | swizzle << 30)
        )
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = mma(  # error
        acc, left, right, True, 1, 1, 0, 0 if mistake == "B not transposed" else 1
    )
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


DESCRIBED = (
    "stride of A too large",  # 1
    "A not swizzled",  # 2
    "A from eight rows on",  # 3
    "A from the middle of a row of chunks",  # 4
    "A beyond shared memory",  # 5
    "base offset of A",  # 6
    "leading offset of B too large",  # 7
    "leading offset and stride of B swapped",  # 8
    "descriptors differ in a warp",  # 9
    "B not transposed",  # 10
)


@tc.kernel
def pipeline(a: tc.Array, b: tc.Array, scales: tc.Array, d: tc.Array, mistake: tc.Const = ""):
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
            empty[slot].init(4 if mistake == "released by one warpgroup for both" else 8)  # error 1
        tc.fence_mbarrier_init()
    tc.barrier()
    if t >= 256:
        if t == 256:
            for k in range(depth):
                slot, phase = k % 2, k // 2 & 1
                empty[slot].wait(phase ^ 1)
                size = map_a.bytes + map_b.bytes + 64
                if mistake == "bytes of A and B alone":
                    size = map_a.bytes + map_b.bytes
                full[slot].arrive_expect_tx(size)  # error 2
                tc.tma_load(tile_a[slot], map_a, (0, 64 * k), full[slot])  # race 1,3,4: first
                tc.tma_load(tile_b[slot], map_b, (0, 64 * k), full[slot])  # race 1,3,4: first; error 2
                tc.emit(  # race 1,3,5: first; error 2,9
                    BULK_LOAD, tile_s.at(slot, 0).address, scales.at(k, 0).address, 64, full[slot].address
                )
    else:
        group, lane = t // 128, t % 32
        total, acc = mma.d.zeros(), mma.d.zeros()
        for k in range(depth):
            slot, phase = k % 2, k // 2 & 1
            if mistake == "one thread waits":
                if t % 128 == 0:
                    full[slot].wait(phase)
            elif mistake != "no wait for the stage":
                full[slot].wait(phase)  # error 2
            tc.wgmma_fence()
            left = tile_a[slot, group]
            acc = tc.wgmma_async(  # race 1,3,4: second; error 2,6,7
                mma, acc, left, tile_b[slot], accumulate=False
            )
            if mistake == "released before the wait":
                empty[slot].arrive(pred=lane == 0)
            tc.wgmma_commit()
            if mistake == "released with one in flight":
                tc.wgmma_wait(1)
                empty[slot].arrive(pred=lane == 0)
            if mistake == "scaled in flight":
                total = total + acc  # error 8
            tc.wgmma_wait(0)
            if mistake == "scales read behind the release":
                tc.syncwarp()
                empty[slot].arrive(pred=lane == 0)
            for i in tc.static_range(len(acc)):
                total[i] = (
                    total[i] + acc[i] * tile_s[slot, acc.coordinates(i)[1]]
                )  # race 1,3,5: second; error 2,6,7
            if mistake != "scales not fenced before the release":
                tc.fence_proxy_async()
            tc.syncwarp()
            if mistake == "released by one warpgroup for both":
                empty[slot].arrive(pred=(lane == 0) & (group == 0))
            elif mistake not in (
                "released before the wait",
                "scales read behind the release",
                "released with one in flight",
            ):
                empty[slot].arrive(pred=lane == 0)
        for i in tc.static_range(len(total)):
            row, col = total.coordinates(i)
            d[64 * group + row, col] = total[i]


PIPELINE = (
    "released by one warpgroup for both",  # 1
    "bytes of A and B alone",  # 2
    "released before the wait",  # 3
    "released with one in flight",  # 4
    "scales read behind the release",  # 5
    "one thread waits",  # 6
    "no wait for the stage",  # 7
    "scaled in flight",  # 8
    "scales not fenced before the release",  # 9
)


@tc.kernel
def shared_by_groups(a: tc.Array, b: tc.Array, d: tc.Array, mistake: tc.Const = ""):
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
            tile_a.at(group, row, col).store(  # race 1: first
                a.at(64 * group + row, 64 * half + col).load(8)
            )
        if group == 0:
            tile_b.at(u // 8, u % 8 * 8).store(  # race 1,2: first
                b.at(u // 8, 64 * half + u % 8 * 8).load(8)
            )
        tc.fence_proxy_async()
        tc.barrier()
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a[group], tile_b)  # race 1,2: second
        tc.wgmma_commit()
        if mistake == "meets before its own wait":
            tc.barrier()
        tc.wgmma_wait(0)
        if mistake == "each group meets alone":
            tc.barrier(1 + group, 128)
        elif mistake != "meets before its own wait":
            tc.barrier()
    for turn in tc.static_range(2):
        if group == turn:
            for i in tc.static_range(len(acc)):
                row, col = acc.coordinates(i)
                out[row, col] = acc[i]  # race 3: first
        if mistake != "staged without a barrier":
            tc.barrier()
        for i in tc.static_range(4):
            place = t + 256 * i
            d[64 * turn + place // 16, place % 16] = out[place // 16, place % 16]  # race 3: second
        tc.barrier()


SHARED_BY_GROUPS = (
    "meets before its own wait",  # 1
    "each group meets alone",  # 2
    "staged without a barrier",  # 3
)


@tc.kernel
def in_place(a: tc.Array, b: tc.Array, d: tc.Array, mistake: tc.Const = ""):
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
            tc.tma_load(tile_a, map_a, (0, 64 * k), bar)  # race 1: first; error 1
            tc.tma_load(tile_b, map_b, (0, 64 * k), bar)
        if mistake != "not waited for before it is doubled":
            bar.wait(k & 1)
        for i in tc.static_range(4):
            place = tile_a.at(i * 16 + t // 8, t % 8 * 8)
            values = place.load(8)  # race 1: second; error 1
            place.store([x + x for x in values])  # race 2,3,4: first; error 1
            if mistake == "fenced before it is doubled":
                tc.fence_proxy_async()
                place.store([x + x for x in values])  # race 4: first
        if mistake == "not waited for before it is doubled":
            bar.wait(k & 1)
        if mistake == "fenced by a thread that waited":
            if t == 0:
                tc.fence_proxy_async()
        elif mistake not in ("not fenced when doubled", "fenced before it is doubled"):
            tc.fence_proxy_async()
        tc.barrier()
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a, tile_b)  # race 2,3,4: second
        tc.wgmma_commit()
        tc.wgmma_wait(0)
        tc.barrier()
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


IN_PLACE = (
    "not waited for before it is doubled",  # 1
    "not fenced when doubled",  # 2
    "fenced by a thread that waited",  # 3
    "fenced before it is doubled",  # 4
)


@tc.kernel
def from_registers(a: tc.Array, b: tc.Array, d: tc.Array, turns: tc.s32, mistake: tc.Const = ""):
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
        if mistake != "no fence behind the loads of A":
            tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, [left], tile_b[k])  # error 1,2,3,4; race 2,3: second
        if mistake == "A set in part in flight":
            left[0] = tc.bf16(0.0)  # error 4; race 4: first
        tc.wgmma_commit()
        if mistake == "next A behind a wait for one":
            tc.wgmma_wait(1)
        elif mistake not in ("next A in flight", "accumulators read in the loop"):
            tc.wgmma_wait(0)
        if mistake == "accumulators read in the loop":
            d[t % 64, 0] = acc[0]  # error 5
            tc.wgmma_wait(0)
        following = min(k + 1, turns - 1)
        if mistake != "A set in part in flight":
            left = tc.load_elements(a, mma.a, origin=(0, 16 * following))  # error 2,3; race 2,3: first
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


FROM_REGISTERS = (
    "no fence behind the loads of A",  # 1
    "next A in flight",  # 2
    "next A behind a wait for one",  # 3
    "A set in part in flight",  # 4
    "accumulators read in the loop",  # 5
)


@tc.kernel
def sparse(out: tc.Array, turns: tc.s32, mistake: tc.Const = ""):
    """Products of a sparse A of ones, with metadata that change from turn to turn."""
    tc.launch_bounds(128)
    mma = tc.wgmma.sp.m64n64k32(tc.f16, tc.f16, tc.f32)
    tile_a, tile_b = tc.shared((64, 32), tc.f16, swizzle=64), tc.shared((64, 64), tc.f16, swizzle=128)
    t = tc.threadIdx.x
    for i in tc.static_range(16):
        tile_a[t // 2, t % 2 * 16 + i] = tc.f16(1)  # race 1: first
    for i in tc.static_range(32):
        tile_b[t // 2, t % 2 * 32 + i] = tc.f16(1)  # race 1: first
    if mistake != "no proxy fence":
        tc.fence_proxy_async()
    tc.barrier()
    acc, word = mma.d.zeros(), tc.u32(0x44444444)
    for _ in range(turns):
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a, tile_b, metadata=[word])  # error 2,3; race: second
        tc.wgmma_commit()
        if mistake == "metadata changed behind a wait for one":
            tc.wgmma_wait(1)
        elif mistake not in ("metadata changed in flight", "B changed in flight"):
            tc.wgmma_wait(0)
        if mistake == "B changed in flight":
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
    *variants(product, 1, 128, operands(64, 128), mistakes=PRODUCT),
    *variants(described, 1, 128, by_hand, mistakes=DESCRIBED),
    *variants(pipeline, 1, 288, scaled, mistakes=PIPELINE),
    *variants(shared_by_groups, 1, 256, operands(128, 128), mistakes=SHARED_BY_GROUPS),
    *variants(in_place, 1, 128, operands(64, 192, factor=2), mistakes=IN_PLACE),
    *variants(from_registers, 1, 128, operands(64, 64, turns=4), mistakes=FROM_REGISTERS),
    *variants(sparse, 1, 128, ones, mistakes=SPARSE),
]
