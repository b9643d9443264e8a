"""Planted bugs of wgmma: its fences, groups, registers, descriptors and operands in shared memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tests.planted.harness import Arguments, Planted, error, race

planted = Planted()

BF16 = np.dtype(ml_dtypes.bfloat16)
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
NO_PROXY_FENCE = (
    r"the wgmma.mma_async of warpgroup 0 of CTA 0 reads through the async proxy what thread {} of CTA 0 .*, "
    r"without a proxy fence\n.*\n  tc.fence_proxy_async\(\) \(fence.proxy.async\) must come between, best by the writer"
)


def operands(rows: int, depth: int, factor: int = 1, **more: Any) -> Any:
    """D = factor A B^T with 16 columns."""

    def make(draw: np.random.Generator) -> Arguments:
        a, b = whole(draw, rows, depth), whole(draw, 16, depth)
        d = np.zeros((rows, 16), np.float32)
        expected = factor * a.astype(np.float32) @ b.astype(np.float32).T
        return {"a": a, "b": b, "d": d, **more}, {"d": expected}

    return make


@planted(
    1,
    128,
    operands(64, 128),
    {
        "no proxy fence": error("tc.wgmma_async(mma, acc, tile_a[0] #2", says=NO_PROXY_FENCE.format(0)),
        "proxy fence by one thread": error(
            "tc.wgmma_async(mma, acc, tile_a[0] #2", says=NO_PROXY_FENCE.format(1)
        ),
        "no barrier behind the proxy fence": race("tile_a.at", "tc.wgmma_async(mma, acc, tile_a[0] #2"),
        "a store behind the proxy fence": error(
            "tc.wgmma_async(mma, acc, tile_a[1]", says=NO_PROXY_FENCE.format(0)
        ),
        "accumulators set behind the fence": error("tc.wgmma_async(mma, acc, tile_a[0] #2"),
        "part of the warpgroup": error("tc.wgmma_async(mma, acc, tile_a[0] #1"),
        "A stored to in flight": error("tile_a[0, t", says="still read by a wgmma.*wgmma.wait_group"),
        "no wgmma fence": error(
            "tc.wgmma_async(mma, acc, tile_a[0] #2",
            says="did not fence: tc.wgmma_fence.. .wgmma.fence. comes first",
        ),
        "accumulators changed between the products": error("acc = acc.map"),
        "B stored to by one warp behind its wait of one": error("tile_b[1, t // 8, t % 8 * 8] = 0.0"),
        "one accumulator read in flight": error("d[0, t % 16]"),
        "an accumulator set in flight": error("acc[3] ="),
        "no wait": error(
            "d[row, col]",
            says=r"`d\[row, col\] = acc\[i\]`: .* that the wgmma at .* still owns: tc.wgmma_wait",
        ),
        "waits for one": error("d[row, col]"),
        "no commit": error(
            "d[row, col]",
            says=r"that the wgmma at .* still owns: tc.wgmma_commit\(\) \(wgmma.commit_group\) and",
        ),
        "one commit for both, wait for one": error("d[row, col]"),
        "commit behind the wait": error("d[row, col]"),
    },
)
def product(a, b, d, mistake: tc.Const):
    """D = A B^T in two halves of K; A (64 x 128) and B (16 x 128) come by ordinary stores."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((2, 64, 64), tc.bf16, swizzle=128)
    tile_b = tc.shared((2, 16, 64), tc.bf16, swizzle=128)
    t = tc.threadIdx.x
    for half in tc.static_range(2):
        for i in tc.static_range(4):
            row, col = i * 16 + t // 8, t % 8 * 8
            tile_a.at(half, row, col).store(a.at(row, 64 * half + col).load(8))
        row, col = t // 8, t % 8 * 8
        tile_b.at(half, row, col).store(b.at(row, 64 * half + col).load(8))
    if mistake == "proxy fence by one thread":
        if t == 0:
            tc.fence_proxy_async()
    elif mistake != "no proxy fence":
        tc.fence_proxy_async()
    if mistake == "a store behind the proxy fence":
        tile_b[1, t // 8, t % 8 * 8] = b[t // 8, 64 + t % 8 * 8]
    if mistake != "no barrier behind the proxy fence":
        tc.barrier()
    acc = mma.d.zeros()
    if mistake != "no wgmma fence":
        tc.wgmma_fence()
    if mistake == "accumulators set behind the fence":
        acc = mma.d.zeros()
    if mistake == "part of the warpgroup":
        if t < 96:
            acc = tc.wgmma_async(mma, acc, tile_a[0], tile_b[0])
    else:
        acc = tc.wgmma_async(mma, acc, tile_a[0], tile_b[0])
    if mistake not in ("no commit", "one commit for both, wait for one"):
        tc.wgmma_commit()
    if mistake == "A stored to in flight":
        tile_a[0, t // 2, t % 2] = 0.0
    if mistake == "accumulators changed between the products":
        acc = acc.map(lambda x: x * 1.0)
    acc = tc.wgmma_async(mma, acc, tile_a[1], tile_b[1])
    if mistake not in ("no commit", "commit behind the wait"):
        tc.wgmma_commit()
    if mistake == "one accumulator read in flight":
        d[0, t % 16] = acc[0]
    if mistake == "an accumulator set in flight":
        acc[3] = 0.0
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
            tile_b[1, t // 8, t % 8 * 8] = 0.0
        tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]
    if mistake == "commit behind the wait":
        tc.wgmma_commit()
    if mistake in ("no commit", "no wait", "waits for one"):
        tc.wgmma_commit()
        tc.wgmma_wait(0)


def by_hand(draw: np.random.Generator) -> Arguments:
    a, b = whole(draw, 64, 64), whole(draw, 16, 128)
    expected = a[:, :16].astype(np.float32) @ b.astype(np.float32)
    return {"a": a, "b": b, "d": np.zeros((64, 128), np.float32)}, {"d": expected}


@planted(
    1,
    128,
    by_hand,
    dict.fromkeys(
        (
            "stride of A too large",
            "A not swizzled",
            "A from eight rows on",
            "A from the middle of a row of chunks",
            "A beyond shared memory",
            "base offset of A",
            "leading offset of B too large",
            "leading offset and stride of B swapped",
            "descriptors differ in a warp",
            "B not transposed",
        ),
        error("acc = mma(acc, left, right"),
    ),
)
def described(a, b, d, mistake: tc.Const):
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
    acc = mma(acc, left, right, True, 1, 1, 0, 0 if mistake == "B not transposed" else 1)
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


def scaled(draw: np.random.Generator) -> Arguments:
    a, b = whole(draw, 128, 320), whole(draw, 16, 320)
    scales = draw.integers(1, 5, (5, 16)).astype(np.float32)
    expected = np.zeros((128, 16), np.float32)
    for k in range(5):
        part = slice(64 * k, 64 * k + 64)
        expected += scales[k] * (a[:, part].astype(np.float32) @ b[:, part].astype(np.float32).T)
    arguments = {"a": a, "b": b, "scales": scales, "d": np.zeros((128, 16), np.float32)}
    return arguments, {"d": expected}


@planted(
    1,
    288,
    scaled,
    {
        "released by one warpgroup for both": race("tc.tma_load(tile_a", "acc = tc"),
        "bytes of A and B alone": error("tc.emit"),
        "released before the wait": race(
            "tc.tma_load(tile_a",
            "acc = tc",
            says="shared bf16 tile .*which is still read by a wgmma of warpgroup 0",
        ),
        "released with one in flight": race(
            "tc.tma_load(tile_a", "acc = tc", says="which is still read by a wgmma of warpgroup 0"
        ),
        "scales read behind the release": race("tc.emit", "total[i] ="),
        "one thread waits": error(
            "acc = tc", says="read here by the wgmma.* of warpgroup 0 .*bulk.tensor .*nothing orders"
        ),
        "no wait for the stage": error("acc = tc", says="is in flight: nobody has waited for phase 0"),
        "scaled in flight": error("total ="),
        "scales not fenced before the release": error("tc.emit"),
    },
)
def pipeline(a, b, scales, d, mistake: tc.Const):
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
            empty[slot].init(4 if mistake == "released by one warpgroup for both" else 8)
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
                full[slot].arrive_expect_tx(size)
                tc.tma_load(tile_a[slot], map_a, (0, 64 * k), full[slot])
                tc.tma_load(tile_b[slot], map_b, (0, 64 * k), full[slot])
                tc.emit(
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
                full[slot].wait(phase)
            tc.wgmma_fence()
            left = tile_a[slot, group]
            acc = tc.wgmma_async(mma, acc, left, tile_b[slot], accumulate=False)
            if mistake == "released before the wait":
                empty[slot].arrive(pred=lane == 0)
            tc.wgmma_commit()
            if mistake == "released with one in flight":
                tc.wgmma_wait(1)
                empty[slot].arrive(pred=lane == 0)
            if mistake == "scaled in flight":
                total = total + acc
            tc.wgmma_wait(0)
            if mistake == "scales read behind the release":
                tc.syncwarp()
                empty[slot].arrive(pred=lane == 0)
            for i in tc.static_range(len(acc)):
                total[i] = total[i] + acc[i] * tile_s[slot, acc.coordinates(i)[1]]
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


@planted(
    1,
    256,
    operands(128, 128),
    {
        "meets before its own wait": race("tile_b.at", "acc = tc"),
        "each group meets alone": race("tile_b.at", "acc = tc"),
        "staged without a barrier": race("out[row, col]", "d[64 * turn"),
    },
)
def shared_by_groups(a, b, d, mistake: tc.Const):
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
            tile_a.at(group, row, col).store(a.at(64 * group + row, 64 * half + col).load(8))
        if group == 0:
            tile_b.at(u // 8, u % 8 * 8).store(b.at(u // 8, 64 * half + u % 8 * 8).load(8))
        tc.fence_proxy_async()
        tc.barrier()
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a[group], tile_b)
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
                out[row, col] = acc[i]
        if mistake != "staged without a barrier":
            tc.barrier()
        for i in tc.static_range(4):
            place = t + 256 * i
            d[64 * turn + place // 16, place % 16] = out[place // 16, place % 16]
        tc.barrier()


@planted(
    1,
    128,
    operands(64, 192, factor=2),
    {
        "not waited for before it is doubled": error("values ="),
        "not fenced when doubled": error("acc = tc"),
        "fenced by a thread that waited": error("acc = tc"),
        "fenced before it is doubled": error("acc = tc"),
    },
)
def in_place(a, b, d, mistake: tc.Const):
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
            tc.tma_load(tile_a, map_a, (0, 64 * k), bar)
            tc.tma_load(tile_b, map_b, (0, 64 * k), bar)
        if mistake != "not waited for before it is doubled":
            bar.wait(k & 1)
        for i in tc.static_range(4):
            place = tile_a.at(i * 16 + t // 8, t % 8 * 8)
            values = place.load(8)
            place.store([x + x for x in values])
            if mistake == "fenced before it is doubled":
                tc.fence_proxy_async()
                place.store([x + x for x in values])
        if mistake == "not waited for before it is doubled":
            bar.wait(k & 1)
        if mistake == "fenced by a thread that waited":
            if t == 0:
                tc.fence_proxy_async()
        elif mistake not in ("not fenced when doubled", "fenced before it is doubled"):
            tc.fence_proxy_async()
        tc.barrier()
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a, tile_b)
        tc.wgmma_commit()
        tc.wgmma_wait(0)
        tc.barrier()
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


@planted(
    1,
    128,
    operands(64, 64, turns=4),
    {
        "no fence behind the loads of A": error("acc = tc"),
        "next A in flight": error("origin=(0, 16 * following)"),
        "next A behind a wait for one": error("origin=(0, 16 * following)"),
        "A set in part in flight": error("left[0] ="),
        "accumulators read in the loop": error("d[t % 64, 0]"),
    },
)
def from_registers(a, b, d, turns: tc.s32, mistake: tc.Const):
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
        acc = tc.wgmma_async(mma, acc, [left], tile_b[k])
        if mistake == "A set in part in flight":
            left[0] = tc.bf16(0.0)
        tc.wgmma_commit()
        if mistake == "next A behind a wait for one":
            tc.wgmma_wait(1)
        elif mistake not in ("next A in flight", "accumulators read in the loop"):
            tc.wgmma_wait(0)
        if mistake == "accumulators read in the loop":
            d[t % 64, 0] = acc[0]
            tc.wgmma_wait(0)
        following = min(k + 1, turns - 1)
        if mistake != "A set in part in flight":
            left = tc.load_elements(a, mma.a, origin=(0, 16 * following))
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


def ones(draw: np.random.Generator) -> Arguments:
    return {"out": np.zeros(128, np.float32), "turns": 3}, {"out": np.full(128, 96, np.float32)}


@planted(
    1,
    128,
    ones,
    {
        "no proxy fence": error("acc ="),
        "metadata changed in flight": error("word = word"),
        "metadata changed behind a wait for one": error("word = word"),
        "B changed in flight": error("tile_b[t // 2, t % 2]"),
    },
)
def sparse(out, turns: tc.s32, mistake: tc.Const):
    """Products of a sparse A of ones, with metadata that change from turn to turn."""
    tc.launch_bounds(128)
    mma = tc.wgmma.sp.m64n64k32(tc.f16, tc.f16, tc.f32)
    tile_a, tile_b = tc.shared((64, 32), tc.f16, swizzle=64), tc.shared((64, 64), tc.f16, swizzle=128)
    t = tc.threadIdx.x
    for i in tc.static_range(16):
        tile_a[t // 2, t % 2 * 16 + i] = tc.f16(1)
    for i in tc.static_range(32):
        tile_b[t // 2, t % 2 * 32 + i] = tc.f16(1)
    if mistake != "no proxy fence":
        tc.fence_proxy_async()
    tc.barrier()
    acc, word = mma.d.zeros(), tc.u32(0x44444444)
    for _ in range(turns):
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a, tile_b, metadata=[word])
        tc.wgmma_commit()
        if mistake == "metadata changed behind a wait for one":
            tc.wgmma_wait(1)
        elif mistake not in ("metadata changed in flight", "B changed in flight"):
            tc.wgmma_wait(0)
        if mistake == "B changed in flight":
            tile_b[t // 2, t % 2] = tc.f16(1)
            tc.wgmma_wait(0)
        word = word ^ 0x88888888
    tc.wgmma_wait(0)
    out[t] = acc[0]


def whole(draw: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Whole numbers, so that sums are exact in any order."""
    return draw.integers(-4, 5, (rows, cols)).astype(BF16)
