"""Pipelines of mbarriers, tensor copies and wgmma in the interpreter, and what it catches there."""

from __future__ import annotations

import inspect
import re

import ml_dtypes
import numpy as np
import pytest
from running import caught, line_of, run

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, EmulationError, OutOfBounds, Race, Uninitialised

BF16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(5)
FENCE_ASYNC = "fence.proxy.async.shared::cta"


# -- a pipeline -----------------------------------------------------------------------------------


@tc.kernel
def pipeline(
    a: tc.Array,
    b: tc.Array,
    d: tc.Array,
    BM: tc.Const = 64,
    BN: tc.Const = 64,
    stages: tc.Const = 2,
    mistake: tc.Const = "",
):
    """D = A B^T: a warpgroup brings tiles, one for each 64 rows multiplies. `mistake` plants one."""
    consumers = BM // 64
    tc.launch_bounds(128 * (1 + consumers))
    mma = getattr(tc.wgmma, f"m64n{BN}k16")(tc.bf16, tc.bf16, tc.f32)
    map_a, map_b = tc.tensor_map(a, (BM, 64), swizzle=128), tc.tensor_map(b, (BN, 64), swizzle=128)
    tile_a = tc.shared((stages, consumers, 64, 64), tc.bf16, swizzle=128)
    tile_b = tc.shared((stages, BN, 64), tc.bf16, swizzle=128)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    if tc.threadIdx.x == 0:
        for slot in tc.static_range(stages):
            full[slot].init(1)
            empty[slot].init(consumers)
        tc.fence_mbarrier_init()
    tc.barrier()
    m, n, depth = tc.blockIdx.y * BM, tc.blockIdx.x * BN, a.shape[1] // 64
    role = tc.threadIdx.x // 128
    if role == 0:
        tc.setmaxnreg(40, grow=False)
        if tc.threadIdx.x == 0:
            phase = tc.u32(0 if mistake == "producer's parity" else 1)
            for k in range(depth):
                slot = k % stages
                if mistake != "no wait for the slot":
                    empty[slot].wait(phase)
                more = {"too few bytes": -4096, "too many bytes": 4096}.get(mistake, 0)
                full[slot].arrive_expect_tx(map_a.bytes + map_b.bytes + more)
                tc.tma_load(tile_a[slot], map_a, (m, k * 64), full[slot])
                tc.tma_load(tile_b[slot], map_b, (n, k * 64), full[slot])
                phase = tc.select(slot == stages - 1, phase ^ 1, phase)
    else:
        tc.setmaxnreg(232, grow=True)
        consumer = role - 1
        phase = tc.u32(1 if mistake == "consumer's parity" else 0)
        acc = mma.d.zeros()
        for k in range(depth):
            slot = k % stages
            if mistake == "one waits":
                if consumer == 0:
                    full[slot].wait(phase)
            elif mistake != "no wait for the tile":
                full[slot].wait(phase)
            if mistake != "no wgmma fence":
                tc.wgmma_fence()
            acc = tc.wgmma_async(mma, acc, tile_a[slot, consumer], tile_b[slot])
            if mistake == "released too early":
                empty[slot].arrive(pred=tc.threadIdx.x % 128 == 0)
            tc.wgmma_commit()
            tc.wgmma_wait(1 if mistake == "waited too little" else 0)
            if mistake == "released by all":
                empty[slot].arrive()
            elif mistake not in ("never released", "released too early"):
                empty[slot].arrive(pred=tc.threadIdx.x % 128 == 0)
            phase = tc.select(slot == stages - 1, phase ^ 1, phase)
        for i in tc.static_range(0, len(acc), 2):
            row, col = acc.coordinates(i)
            d.at(m + consumer * 64 + row, n + col).store([acc[i], acc[i + 1]])


def operands(M: int, N: int, K: int) -> list[np.ndarray]:
    """Whole numbers, so that sums are exact in any order; and room for the result."""
    a, b = (RNG.integers(-4, 5, (rows, K)).astype(BF16) for rows in (M, N))
    return [a, b, np.zeros((M, N), np.float32)]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) @ b.astype(np.float32).T


class TestPipeline:
    @pytest.mark.parametrize("K", [64, 128, 448])
    @pytest.mark.parametrize("stages", [1, 2, 3])
    def test_products(self, K, stages):
        a, b, d = operands(128, 128, K)
        report = run(pipeline, (2, 2), 256, a, b, d, stages=stages)
        assert np.array_equal(d, product(a, b))
        assert report.bytes["global", "load"] == 2 * (a.nbytes + b.nbytes)
        assert report.instructions["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"] == K

    def test_three_warpgroups(self):
        """Four stages, 128 x 128 x 64 tiles."""
        a, b, d = operands(256, 256, 256)
        run(pipeline, (2, 2), 384, a, b, d, BM=128, BN=128, stages=4)
        assert np.array_equal(d, product(a, b))

    def test_without_checks(self):
        a, b, d = operands(64, 64, 256)
        emulator = pipeline.emulator("sm_90a", checks=False)
        emulator[(1, 1), 256](a, b, d, mistake="waited too little")
        assert np.array_equal(d, product(a, b))

    MISTAKES = [
        ("producer's parity", Deadlock, "phase 0 .parity 0. of empty.0. .initialised"),
        ("consumer's parity", Deadlock, "phase 0 .parity 0. is over: was it meant"),
        ("too many bytes", Deadlock, "4096 bytes are missing"),
        ("too few bytes", Deadlock, "4096 bytes more have come than were expected"),
        ("never released", Deadlock, "1 of 1 arrivals are missing"),
        ("no wait for the tile", Uninitialised, "is in flight: nobody has waited for phase 0"),
        ("one waits", Race, "read here by the wgmma.* of warpgroup 2 .*bulk.tensor .*nothing orders"),
        ("no wait for the slot", EmulationError, "arrives for phase 1 before any thread has seen"),
        ("no wgmma fence", EmulationError, "did not fence: tc.wgmma_fence.. .wgmma.fence. comes first"),
        (
            "released too early",
            EmulationError,
            "shared bf16 tile .*which is still read by a wgmma of warpgroup 1",
        ),
        ("released by all", EmulationError, "arrives for phase 1 before any thread has seen"),
        ("waited too little", EmulationError, "which is still read by a wgmma of warpgroup 1"),
    ]

    @pytest.mark.parametrize("mistake, error, words", MISTAKES, ids=[m[0] for m in MISTAKES])
    def test_mistakes(self, mistake, error, words):
        size = 128 if mistake == "one waits" else 64
        text = caught(
            error, words, pipeline, 1, 128 + 2 * size, *operands(size, 64, 512), BM=size, mistake=mistake
        )
        assert f"{__file__}:" in text

    def test_a_deadlock_says_what_the_producer_should_wait_for_and_announced(self):
        for mistake, words in (
            ("producer's parity", "a producer's first wait takes parity 1"),
            ("too few bytes", r"\(block 0 warps 0, announcing 12288 bytes\)"),
        ):
            arguments = operands(64, 64, 512)
            text = caught(Deadlock, words, pipeline, 1, 256, *arguments, mistake=mistake)
            assert ("first wait" in text) == (mistake == "producer's parity")

    def test_a_deadlock_names_everybody(self):
        text = caught(
            Deadlock,
            "every thread that is left waits",
            pipeline,
            1,
            256,
            *operands(64, 64, 512),
            mistake="too many bytes",
        )
        lines = text.splitlines()
        who = [line.strip() for line in lines if "(mbarrier.try_wait" in line]
        assert [line.split(":")[0] for line in who] == ["block 0 warps 0", "block 0 warps 4-7"]
        assert "phase 0 (parity 0) of full[0] (initialised at" in text
        assert text.count("4096 bytes are missing") == 1
        assert "empty[0] (initialised at" in text and "1 of 1 arrivals are missing" in text


# -- the async proxy ------------------------------------------------------------------------------


@tc.kernel
def by_hand(a: tc.Array, d: tc.Array, fence: tc.Const = "writer", wait: tc.Const = ""):
    """A (64 x 16) B with a unit matrix B that ordinary stores write to shared memory."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((64, 16), tc.bf16, swizzle=32)
    tile_b = tc.shared((16, 16), tc.bf16, swizzle=32)
    t = tc.threadIdx.x
    for i in tc.static_range(8):
        place = t * 8 + i
        tile_a[place // 16, place % 16] = a[place // 16, place % 16]
    for i in tc.static_range(2):
        place = t * 2 + i
        tile_b[place // 16, place % 16] = tc.select(place // 16 == place % 16, 1.0, 0.0).to(tc.bf16)
    if fence == "writer":
        tc.fence_proxy_async()
    elif fence == "one thread":
        tc.emit(FENCE_ASYNC, pred=t == 0)
    tc.barrier()
    if fence == "late write":
        tc.fence_proxy_async()
        tile_a[t % 64, 3] = tc.bf16(1.0)
        tc.barrier()
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = tc.wgmma_async(mma, acc, tile_a, tile_b)
    if wait != "no commit":
        tc.wgmma_commit()
    if wait == "store first":
        tile_a[t % 64, 3] = tc.bf16(0.0)
    if wait == "write first":
        acc = mma.d.zeros()
    if wait != "never":
        tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[row, col] = acc[i]


@tc.kernel
def stored(d: tc.Array, mistake: tc.Const = ""):
    """Each warp stores lines of its own, one after the other, through two buffers."""
    tc.launch_bounds(64)
    out = tc.tensor_map(d, (1, 32))
    tile = tc.shared((2, 2, 1, 32), tc.u32, align=128)
    lane, warp = tc.lane_id(), tc.warp_id()
    for i in tc.static_range(4):
        buffer = tile[warp, i % 2]
        if mistake != "no wait":
            tc.tma_store_wait(2 if mistake == "wait too short" else 1, read=True)
        tc.emit("bar.warp.sync", 0xFFFFFFFF)
        buffer[0, lane] = lane + 100 * i
        if mistake != "no fence":
            tc.fence_proxy_async()
        tc.emit("bar.warp.sync", 0xFFFFFFFF)
        if lane == 0:
            tc.tma_store(out, (warp * 4 + i, 0), buffer)
            if mistake != "no commit":
                tc.tma_store_commit()
    if mistake != "no last wait":
        tc.tma_store_wait(0)


@tc.kernel
def read_by_all(a: tc.Array, out: tc.Array, matrices: tc.Const = False, how: tc.Const = "barrier"):
    """Warp 0 waits for a load; the others learn of it in some way, or not at all."""
    tc.launch_bounds(128)
    map = tc.tensor_map(a, (8, 8))
    tile, flag = tc.shared((8, 8), tc.f16, align=128), tc.shared(1, tc.u32)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        flag[0] = 0
    tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(map.bytes)
        tc.tma_load(tile, map, (0, 0), bar)
        bar.wait(0)
        tc.emit("st.release.cta.shared.b32", flag.address, 1)
    if how == "barrier":
        tc.barrier()
    elif how == "flag":
        while tc.emit("ld.acquire.cta.shared.b32", flag.address).bits(tc.u32) == 0:
            tc.emit("nanosleep.u32", 10)
    if matrices:
        row = tile.at(t % 8, 0)
        out[t] = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", row.address)
    else:
        out[t] = tc.emit("ld.shared.b32", tile.at(t // 4 % 8, t % 4 * 2).address)


@tc.kernel
def overwritten(a: tc.Array, out: tc.Array, matrices: tc.Const = False, fence: tc.Const = "readers"):
    """Boxes come to one tile in turn; warps 1 to 3 read each, and release it by an mbarrier."""
    tc.launch_bounds(128)
    map, tile = tc.tensor_map(a, (8, 8)), tc.shared((8, 8), tc.f16, align=128)
    full, empty = tc.mbarriers(1)[0], tc.mbarriers(1)[0]
    t, lane = tc.threadIdx.x, tc.lane_id()
    if t == 0:
        full.init(1)
        empty.init(3)
        tc.fence_mbarrier_init()
    tc.barrier()
    for i in tc.range(a.shape[0] // 8):
        if t == 0:
            empty.wait(i & 1 ^ 1)
            if fence == "producer":
                tc.fence_proxy_async()
            full.arrive_expect_tx(map.bytes)
            tc.tma_load(tile, map, (8 * i, 0), full)  # writes
        elif t >= 32:
            full.wait(i & 1)
            if fence == "before the loads":
                tc.fence_proxy_async()
            if matrices:
                row = tile.at(t % 8, 0)
                word = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", row.address)  # reads
            else:
                word = tc.emit("ld.shared.b32", tile.at(lane // 4, lane % 4 * 2).address)  # reads
            if (fence == "readers") | ((fence == "two warps") & (t >= 64)):
                tc.fence_proxy_async()
            if fence == "global":
                tc.emit("fence.proxy.async.global")
            tc.syncwarp()
            if lane == 0:
                if fence == "lane 0":
                    tc.fence_proxy_async()
                empty.arrive()
            out[i, t - 32] = word.bits(tc.u32)


@tc.kernel
def doubled(a: tc.Array, fenced: tc.Const = True):
    """Threads load a box from global memory, and TMA stores the double of it to the same place."""
    tc.launch_bounds(64)
    map, tile, t = tc.tensor_map(a, (8, 8)), tc.shared((8, 8), a.dtype, align=128), tc.threadIdx.x
    tile[t // 8, t % 8] = 2 * a[t // 8, t % 8]
    if fenced:
        tc.fence_proxy_async("global")
    tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        tc.tma_store(map, (0, 0), tile)
        tc.tma_store_commit()
        tc.tma_store_wait(0)


class TestProxies:
    def test_stores_to_what_was_loaded(self):
        a = np.arange(64, dtype=np.float32).reshape(8, 8)
        words = r'tc.fence_proxy_async\("global"\) \(fence.proxy.async.global\) must come between, best by the reader'
        caught(EmulationError, words, doubled, 1, 64, a, fenced=False)
        a = np.arange(64, dtype=np.float32).reshape(8, 8)
        run(doubled, 1, 64, a)
        assert np.array_equal(a, 2 * np.arange(64).reshape(8, 8))

    @pytest.mark.parametrize("matrices", [False, True])
    @pytest.mark.parametrize("fence", ["readers", "lane 0", "producer"])
    def test_copies_to_what_was_loaded_and_fenced(self, matrices, fence):
        a, out = np.arange(192, dtype=np.float16).reshape(24, 8), np.zeros((3, 96), np.uint32)
        run(overwritten, 1, 128, a, out, matrices=matrices, fence=fence)
        assert np.array_equal(out, np.tile(a.view(np.uint32).reshape(3, 32), 3))

    @pytest.mark.parametrize("matrices", [False, True])
    @pytest.mark.parametrize("fence", ["none", "before the loads", "global", "two warps"])
    def test_copies_to_what_was_loaded(self, matrices, fence):
        """The mbarrier orders them, but not across proxies: both places are named."""
        a, out = np.zeros((24, 8), np.float16), np.zeros((3, 96), np.uint32)
        words = "the cp.async.bulk.tensor of warp 0 of block 0 writes through the async proxy what"
        text = caught(EmulationError, words, overwritten, 1, 128, a, out, matrices=matrices, fence=fence)
        source, first = inspect.getsourcelines(overwritten.function)
        at = {
            mark: [first + i for i, line in enumerate(source) if f"# {mark}" in line]
            for mark in ("reads", "writes")
        }
        assert f"read by an ordinary load at line {at['reads'][not matrices]} (" in text
        assert f"{at['writes'][0]} in overwritten" in text
        assert "without a proxy fence" in text and "best by the reader before it sync" in text

    @pytest.mark.parametrize("matrices", [False, True])
    @pytest.mark.parametrize("how", ["barrier", "flag", "not at all"])
    def test_ordinary_loads_of_what_a_copy_brought(self, matrices, how):
        a, out = np.arange(64, dtype=np.float16).reshape(8, 8), np.zeros(128, np.uint32)
        if how == "not at all":
            words = "is read here by .*bulk.tensor of warp 0 of block 0 wrote it .*nothing orders"
            caught(Race, words, read_by_all, 1, 128, a, out, matrices=matrices, how=how)
        else:
            run(read_by_all, 1, 128, a, out, matrices=matrices, how=how)
            assert np.array_equal(out, np.tile(a.view(np.uint32).ravel(), 4))

    def test_ordinary_stores_with_a_fence(self):
        a, d = operands(64, 1, 16)[0], np.zeros((64, 16), np.float32)
        run(by_hand, 1, 128, a, d)
        assert np.array_equal(d, a.astype(np.float32))

    @pytest.mark.parametrize("fence", ["none", "one thread", "late write"])
    def test_missing_fences(self, fence):
        a, d = operands(64, 1, 16)[0], np.zeros((64, 16), np.float32)
        text = caught(EmulationError, "without a proxy fence", by_hand, 1, 128, a, d, fence=fence)
        assert (
            "tc.fence_proxy_async() (fence.proxy.async) must come between, best by the writer before it sync"
            in text
        )
        assert "the wgmma.mma_async of warpgroup 0 of block 0 reads through the async proxy" in text
        who = {"none": "thread 0 of", "one thread": "thread 1 of", "late write": "thread 64 of"}
        assert who[fence] in text

    def test_a_store_to_what_wgmma_reads(self):
        a, d = operands(64, 1, 16)[0], np.zeros((64, 16), np.float32)
        text = caught(EmulationError, "still read by a wgmma", by_hand, 1, 128, a, d, wait="store first")
        assert "wgmma.wait_group" in text

    @pytest.mark.parametrize("wait", ["never", "no commit"])
    def test_accumulators_read_too_early(self, wait):
        a, d = operands(64, 1, 16)[0], np.zeros((64, 16), np.float32)
        text = caught(EmulationError, "that the wgmma at .* still owns", by_hand, 1, 128, a, d, wait=wait)
        assert ("tc.wgmma_commit() (wgmma.commit_group) and" in text) == (wait == "no commit")
        assert "row, col]= acc[i]".replace("]=", "] =") in text

    def test_bulk_stores(self):
        d = np.zeros((8, 32), np.uint32)
        run(stored, 1, 64, d)
        assert np.array_equal(d, np.arange(32) + 100 * (np.arange(8)[:, None] % 4))

    MISTAKES = [
        ("no fence", "without a proxy fence\n.*\n.*fence.proxy.async. must come between"),
        ("no wait", "still read by a bulk store of thread 0 of block 0"),
        ("wait too short", "still read by a bulk store of thread 0 of block 0"),
        ("no commit", "still read by a bulk store of thread 0 of block 0"),
        ("no last wait", "ends while a bulk store of thread .* of block 0 at .* may still read"),
    ]

    @pytest.mark.parametrize("mistake, words", MISTAKES, ids=[m[0] for m in MISTAKES])
    def test_mistakes_of_stores(self, mistake, words):
        caught(EmulationError, words, stored, 1, 64, np.zeros((8, 32), np.uint32), mistake=mistake)


# -- mbarriers ------------------------------------------------------------------------------------


@tc.kernel
def barriers(out: tc.Array, mistake: tc.Const = ""):
    """Warp 1 waits for three arrivals of each lane of warp 0; then the barrier makes room."""
    tc.launch_bounds(64)
    bar = tc.mbarriers(1)[0]
    t, warp = tc.threadIdx.x, tc.warp_id()
    if (t == 0) & (mistake != "not initialised"):
        bar.init(t if mistake == "no arrivals" else 96)
        if mistake == "twice":
            bar.init(96)
    if mistake != "no barrier":
        tc.barrier()
    if mistake == "overlap":
        tc.emit("st.shared.b64", bar.address, tc.u64(1))
    if warp == 0:
        bar.arrive(2)
        out[t] = tc.select(bar.test(0), 1, 0)
        bar.arrive(3 if mistake == "too many" else 1)
    else:
        if mistake == "parity":
            bar.wait(t)
        bar.wait(0)
        out[t] = tc.select(bar.test(1), 10, 20)
    tc.barrier()
    if t == 0:
        tc.emit("mbarrier.inval.shared::cta.b64", bar.address)
        tc.emit("st.shared.b64", bar.address, tc.u64(1))
        if mistake == "gone":
            bar.arrive()


@tc.kernel
def meeting(out: tc.Array, mistake: tc.Const = ""):
    """Two CTAs of a cluster; CTA 1 arrives at the barrier of CTA 0."""
    tc.launch_bounds(64)
    tc.cluster_size(2)
    bar = tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    if mistake == "not open":
        tc.barrier()
    else:
        tc.cluster_arrive()
        if mistake == "arrive twice":
            tc.cluster_arrive()
        tc.cluster_wait()
    if mistake == "wait alone":
        tc.cluster_wait()
    if rank == 1:
        if mistake == "peer gone":
            while tc.atomic("or", out.at(63), 0) == 0:
                tc.emit("nanosleep.u32", 10)
        if mistake in ("local arrive", "local bytes"):
            operation = "arrive" if mistake == "local arrive" else "expect_tx"
            emit_own(operation, bar.remote(0).address)
        if t == 0:
            bar.remote(rank + 1 if mistake == "no such rank" else 0).arrive()
    else:
        if mistake not in ("peer gone", "may be gone"):
            bar.wait(0)
    if (mistake == "remote wait") & (t == 0):
        emit_wait(bar.remote(0).address)
    if mistake not in ("peer gone", "may be gone"):
        tc.cluster_sync()
    tc.atomic("exch", out.at(t), 1)


def emit_own(operation, address):
    """By the instruction for barriers of the own CTA."""
    bytes = [16] if operation == "expect_tx" else []
    tc.emit(f"mbarrier.{operation}.shared::cta.b64", address, *bytes)


def emit_wait(address):
    tc.emit("mbarrier.test_wait.parity.shared::cta.b64", address, 0)


@tc.kernel
def initialised(every: tc.Const):
    bar = tc.mbarriers(1)[0]
    if every:
        bar.init(1)
    elif tc.threadIdx.x == 0:
        bar.init(1)
        bar.init(1)


@tc.kernel
def announced():
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
    tc.barrier()
    bar.arrive_expect_tx(64)


class TestBarriers:
    def test_counts_and_parities(self):
        out = np.zeros(64, np.int32)
        run(barriers, 1, 64, out)
        assert not out[:32].any() and (out[32:] == 20).all()

    MISTAKES = [
        ("not initialised", EmulationError, "bar is not initialised .thread 0"),
        ("no arrivals", EmulationError, "is to expect 0 arrivals; 1 to 1048575 are allowed"),
        ("twice", EmulationError, "initialised a second time"),
        ("overlap", Uninitialised, "byte 0x0 belongs to bar .initialised"),
        ("too many", EmulationError, "arrives 3 times when 2 of 96 arrivals .* or let fewer"),
        ("parity", EmulationError, "waits for parity 32; parities are 0 and 1"),
        ("no barrier", Race, "thread 0 of block 0 .* wrote it at line .*init.*nothing orders"),
        ("gone", EmulationError, "bar is not initialised"),
    ]

    @pytest.mark.parametrize("mistake, error, words", MISTAKES, ids=[m[0] for m in MISTAKES])
    def test_mistakes(self, mistake, error, words):
        caught(error, words, barriers, 1, 64, np.zeros(64, np.int32), mistake=mistake)

    def test_bytes_that_each_thread_announces(self):
        caught(
            EmulationError,
            r"thread 1 of block 0 arrives 1 times when 0 of 1 arrivals and 128 bytes are pending in phase 0: "
            r"initialise it .*; one thread announces bytes, as under `if tc.elect\(\)` in one warp",
            announced,
            1,
            64,
        )

    def test_who_initialises_a_second_time(self):
        caught(
            EmulationError,
            r"a second time, by thread 1 of block 0 \(first at .*, by thread 0 of block 0 in the "
            r"same step\); its phase is 0: one thread initialises a barrier, as under `if tc",
            initialised,
            1,
            64,
            every=True,
        )
        caught(
            EmulationError,
            r"a second time, by thread 0 of block 0 \(first at [^,]*\); its phase is 0: "
            "mbarrier.inval comes first",
            initialised,
            1,
            64,
            every=False,
        )

    def test_a_cluster_meets(self):
        out = np.zeros(64, np.int32)
        run(meeting, 4, 64, out)
        assert out.all()

    CLUSTERS = [
        ("peer gone", EmulationError, "peer CTA gone: thread 0 of block 1 .* of block 0"),
        ("may be gone", EmulationError, "block 0 may end before block 1 accesses its shared memory here"),
        ("not open", EmulationError, "before the cluster has met .* block 0 may not have started"),
        ("local arrive", EmulationError, "mbarrier.arrive to shared::cta was given .* another CTA"),
        ("local bytes", EmulationError, "mbarrier.expect_tx to shared::cta was given .* another CTA"),
        ("no such rank", OutOfBounds, "rank 2 leaves the cluster, which has 2 CTAs"),
        ("remote wait", EmulationError, "only arrivals and bytes reach the barriers of other CTAs"),
        ("arrive twice", EmulationError, "arrives at the cluster's barrier twice"),
        ("wait alone", EmulationError, "waits at the cluster's barrier without having arrived"),
    ]

    @pytest.mark.parametrize("mistake, error, words", CLUSTERS, ids=[m[0] for m in CLUSTERS])
    def test_mistakes_of_clusters(self, mistake, error, words):
        caught(error, words, meeting, 2, 64, np.zeros(64, np.int32), mistake=mistake)


# -- the rest -------------------------------------------------------------------------------------


@tc.kernel
def registers(out: tc.Array, first: tc.Const = 24, then: tc.Const = 40, whole: tc.Const = True):
    """Warpgroups change how many registers they own."""
    t = tc.threadIdx.x
    if whole | (t >= 32):
        tc.emit("setmaxnreg.dec.sync.aligned.u32", first)
    tc.barrier()
    tc.emit("setmaxnreg.inc.sync.aligned.u32", then)
    tc.griddep_wait()
    out[t] = 1
    tc.griddep_launch_dependents()


@tc.kernel
def traded(out: tc.Array):
    """A warpgroup waits for the registers that the two others give back, as in Triton's warp specialisation."""
    t = tc.threadIdx.x
    tc.emit("setmaxnreg.dec.sync.aligned.u32", 160)
    tc.barrier()
    if t < 128:
        tc.emit("setmaxnreg.inc.sync.aligned.u32", 256)
    else:
        tc.emit("setmaxnreg.dec.sync.aligned.u32", 120)
    out[t] = 1


@tc.kernel
def kept(out: tc.Array):
    """A warpgroup waits for registers of the others, which wait for it."""
    bar, t = tc.mbarriers(1)[0], tc.threadIdx.x
    if t == 0:
        bar.init(128)
    tc.emit("setmaxnreg.dec.sync.aligned.u32", 160)
    tc.barrier()
    if t < 128:
        tc.emit("setmaxnreg.inc.sync.aligned.u32", 256)
        bar.arrive()
    else:
        bar.wait(0)
        tc.emit("setmaxnreg.dec.sync.aligned.u32", 80)


class TestRegisters:
    @pytest.mark.parametrize("order", [None, 0, 1])
    def test_wait_for_registers(self, order):
        out = np.zeros(384, np.int32)
        traded.emulator("sm_90a", order=order)[1, 384](out)
        assert out.all()

    def test_cycle(self):
        increase, wait = line_of(kept, "256"), line_of(kept, "bar.wait")
        first, others = f"block 0 warps 1-3 (:{increase})", f"block 0 warps 4-11 (:{wait})"
        words = re.escape(f"a cycle: {first} -> {others} -> {first}")
        caught(EmulationError, words, kept, 1, 384, np.zeros(384, np.int32))

    def test_shrink_and_grow(self):
        out = np.zeros(256, np.int32)
        run(registers, 1, 256, out)
        assert out.all()

    MISTAKES = [
        (dict(first=48), "setmaxnreg.inc to 40 by a warp that has 48"),
        (
            dict(then=240),
            "every thread that is left waits(.|\n)*would own 71424 registers; a multiprocessor has 65536",
        ),
        (dict(whole=False), "executed by a part of a warpgroup"),
    ]

    @pytest.mark.parametrize("constants, words", MISTAKES)
    def test_mistakes(self, constants, words):
        caught(EmulationError, words, registers, 1, 384, np.zeros(384, np.int32), **constants)


@tc.kernel
def polling(out: tc.Array, arrivals: tc.Const = 1):
    """A loop of test_wait, which does not block, until another warp has arrived."""
    tc.launch_bounds(64)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(32)
    tc.barrier()
    if t >= 32:
        while bar.test(0) == False:  # noqa: E712
            tc.emit("nanosleep.u32", 10)
        out[t] = 1
    else:
        for _ in range(1000):
            tc.emit("nanosleep.u32", 10)
        bar.arrive(arrivals)


def test_polling_lets_others_run():
    out = np.zeros(64, np.int32)
    run(polling, 1, 64, out)
    assert out[32:].all()


@tc.kernel
def passing(out: tc.Array, rounds: tc.Const = 1):
    """Warp 1 ends two phases while warp 0 waits for the first."""
    tc.launch_bounds(96)
    bar = tc.mbarriers(1)[0]
    t, warp = tc.threadIdx.x, tc.warp_id()
    if t == 0:
        bar.init(32)
    tc.barrier()
    if warp == 0:
        bar.wait(0)
        out[t] = 1
    elif warp == 1:
        bar.arrive()
        for turn in tc.static_range(rounds - 1):
            bar.wait(turn % 2)
            bar.arrive()


def test_a_waiter_that_two_phases_pass():
    out = np.zeros(96, np.int32)
    run(passing, 1, 96, out)
    assert out[:32].all()
    caught(Deadlock, "waits for phase 0, which came to its end together with", passing, 1, 96, out, rounds=2)
