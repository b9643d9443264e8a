"""Fences between the generic and the async proxy: they may stand anywhere on the path that orders two
accesses, within a block and between blocks, for shared and for global memory."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core.policy import executing

WRITER, ISSUER = "writers", "issuer"  # who fences, rightly


def new() -> tuple[np.ndarray, ...]:
    """x, d, flag and out of the kernels."""
    x = np.arange(1, 33, dtype=np.int32)
    return x, np.zeros((1, 32), np.int32), np.zeros(1, np.int32), np.zeros(32, np.int32)


def run(kernel: Any, blocks: int, *arguments: Any, order: int | None = None) -> None:
    kernel.emulator("sm_90a", order=order)[blocks, 32](*arguments)


def signal(flag):
    tc.emit("st.release.gpu.global.b32", flag.at(0).address, tc.s32(1))


def wait_for(flag):
    while tc.emit("ld.acquire.gpu.global.b32", flag.at(0).address).bits(tc.s32) == 0:
        pass


@tc.kernel
def store_then_load(x, d, flag, out, fence: tc.Const, peers: tc.Const = 1):
    """CTA 0 stores a line by ordinary stores; the first block of the next cluster loads it by TMA."""
    tc.launch_bounds(32)
    if peers > 1:
        tc.cluster_size(peers)
    tile, bar, t = tc.shared((1, 32), tc.s32, align=128), tc.mbarriers(1)[0], tc.threadIdx.x
    line = tc.tensor_map(d, (1, 32))
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.syncwarp()
    if tc.blockIdx.x == 0:
        if fence == "before the stores":
            tc.fence_proxy_async("global")
        d[0, t] = x[t]
        if fence == "writers":
            tc.fence_proxy_async("global")
        if (fence == "one writer") & (t == 0):
            tc.fence_proxy_async("global")
        tc.syncwarp()
        if (fence == "the signalling lane") & (t == 0):
            tc.fence_proxy_async("global")
        if t == 0:
            signal(flag)
    if tc.blockIdx.x == peers:
        if t == 0:
            if fence == "before the acquire":
                tc.fence_proxy_async("global")
            wait_for(flag)
            if fence == "issuer":
                tc.fence_proxy_async("global")
            if fence == "shared":
                tc.fence_proxy_async()
            bar.arrive_expect_tx(128)
            tc.tma_load(tile, line, (0, 0), bar)
        if (fence == "another lane") & (t == 1):
            tc.fence_proxy_async("global")
        tc.syncwarp()
        bar.wait(0)
        out[t] = tile[0, t]


@tc.kernel
def load_then_store(x, d, flag, out, fence: tc.Const):
    """CTA 0 loads a line by ordinary loads; CTA 1 overwrites it by TMA."""
    tc.launch_bounds(32)
    tile, t = tc.shared((1, 32), tc.s32, align=128), tc.threadIdx.x
    line = tc.tensor_map(d, (1, 32))
    if tc.blockIdx.x == 0:
        out[t] = d[0, t]
        if fence == "writers":
            tc.fence_proxy_async("global")
        tc.syncwarp()
        if t == 0:
            signal(flag)
    else:
        tile[0, t] = x[t]
        tc.fence_proxy_async()
        tc.syncwarp()
        if t == 0:
            wait_for(flag)
            if fence == "issuer":
                tc.fence_proxy_async("global")
            tc.tma_store(line, (0, 0), tile)
            tc.tma_store_commit()
            tc.tma_store_wait(0)


@tc.kernel
def handed_on(x, d, flag, out, fence: tc.Const):
    """CTA 0 stores, CTA 1 hands the line on, CTA 2 loads it by TMA; CTA 1 may fence."""
    tc.launch_bounds(32)
    tile, bar, t = tc.shared((1, 32), tc.s32, align=128), tc.mbarriers(1)[0], tc.threadIdx.x
    line = tc.tensor_map(d, (1, 32))
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.syncwarp()
    if tc.blockIdx.x == 0:
        d[0, t] = x[t]
        tc.syncwarp()
        if t == 0:
            signal(flag)
    if (tc.blockIdx.x == 1) & (t == 0):
        wait_for(flag)
        if fence:
            tc.fence_proxy_async("global")
        tc.emit("st.release.gpu.global.b32", out.at(0).address, tc.s32(1))
    if tc.blockIdx.x == 2:
        if t == 0:
            wait_for(out)
            bar.arrive_expect_tx(128)
            tc.tma_load(tile, line, (0, 0), bar)
        tc.syncwarp()
        bar.wait(0)
        x[t] = -tile[0, t]


@tc.kernel
def store_of_a_tile(x, d, flag, out, fence: tc.Const):
    """A tile of shared memory that ordinary stores write, and that one lane stores by TMA."""
    tc.launch_bounds(32)
    tile, t = tc.shared((1, 32), tc.s32, align=128), tc.threadIdx.x
    line = tc.tensor_map(d, (1, 32))
    tile[0, t] = x[t]
    if fence == "writers":
        tc.fence_proxy_async()
    if (fence == "one writer") & (t == 0):
        tc.fence_proxy_async()
    tc.syncwarp()
    if (fence == "another lane") & (t == 1):
        tc.fence_proxy_async()
    if t == 0:
        if fence == "issuer":
            tc.fence_proxy_async()
        if fence == "global":
            tc.fence_proxy_async("global")
        tc.tma_store(line, (0, 0), tile)
        tc.tma_store_commit()
        tc.tma_store_wait(0)


@pytest.mark.parametrize("order", [None, 1, 3])
@pytest.mark.parametrize("fence", [WRITER, ISSUER, "the signalling lane"])
def test_a_fence_between_blocks(fence, order):
    x, d, flag, out = new()
    run(store_then_load, 2, x, d, flag, out, fence, order=order)
    assert np.array_equal(out, x)


NO_FENCES = ["none", "before the stores", "one writer", "before the acquire", "shared", "another lane"]


@pytest.mark.parametrize("peers", [1, 2])
@pytest.mark.parametrize("fence", NO_FENCES)
def test_no_fence_between_blocks(fence, peers):
    with pytest.raises(EmulationError) as error:
        run(store_then_load, 2 * peers, *new(), fence, peers)
    text, lane = str(error.value), 1 if fence == "one writer" else 0
    assert f"the cp.async.bulk.tensor of warp 0 of CTA {peers} reads through the async proxy" in text
    assert f"what thread {lane} of CTA 0 (warp 0, lane {lane}) wrote by an ordinary store at" in text
    assert "(`d[0, t] = x[t]`), without a proxy fence\n" in text
    assert (
        '\n  tc.fence_proxy_async("global") (fence.proxy.async.global) must come between, best by the writer'
        in text
    )
    assert "(PTX manual, 8.6 and 9.7.13.4)" in text
    assert "tc.tma_load(tile, line, (0, 0), bar)" in text


@pytest.mark.parametrize("fence", [WRITER, ISSUER])
def test_loads_that_are_fenced_before_another_block_stores(fence):
    x, d, flag, out = new()
    run(load_then_store, 2, x, d, flag, out, fence)
    assert np.array_equal(d[0], x) and not out.any()


def test_loads_that_are_not_fenced_before_another_block_stores():
    words = r"of CTA 1 writes through the async proxy what .* of CTA 0 .* read by an ordinary load(.*\n)+.*best by the reader"
    with pytest.raises(EmulationError, match=words):
        run(load_then_store, 2, *new(), "none")


def test_a_block_in_between_fences():
    x, d, flag, out = new()
    run(handed_on, 3, x, d, flag, out, True)
    assert np.array_equal(x, -np.arange(1, 33))
    with pytest.raises(EmulationError, match="of CTA 2 reads .* of CTA 0 .* wrote by an ordinary"):
        run(handed_on, 3, *new(), False)


@pytest.mark.parametrize("fence", [WRITER, ISSUER])
def test_a_fence_of_shared_memory(fence):
    """It may stand behind the meeting, as it may for global memory."""
    x, d, flag, out = new()
    run(store_of_a_tile, 1, x, d, flag, out, fence)
    assert np.array_equal(d[0], x)


@pytest.mark.parametrize("fence", ["none", "one writer", "another lane", "global"])
def test_no_fence_of_shared_memory(fence):
    lane = 1 if fence == "one writer" else 0
    words = f"reads through the async proxy what thread {lane} of CTA 0 .* wrote by an ordinary"
    with pytest.raises(EmulationError, match=words):
        run(store_of_a_tile, 1, *new(), fence)


@pytest.mark.parametrize("fence", ["none", "one writer"])
def test_without_a_search_for_races(fence, monkeypatch):
    """Kernels of the library run so; there the writers themselves must have fenced."""
    launch = store_of_a_tile.emulator("sm_90a")
    monkeypatch.setattr(type(launch), "_checks_indices", lambda self: False)
    x, d, flag, out = new()
    run(store_of_a_tile, 1, x, d, flag, out, WRITER)
    assert np.array_equal(d[0], x)
    with pytest.raises(EmulationError, match="by an ordinary store or cp.async and did not fence"):
        run(store_of_a_tile, 1, *new(), fence)


@tc.kernel(threads=64)
def loads_then_copy(x, out, fence: tc.Const):
    """All threads read a tile in a loop and meet, then TMA overwrites it."""
    tile, bar, t = tc.shared((1, 64), tc.s32, align=128), tc.mbarriers(1)[0], tc.threadIdx.x
    line = tc.tensor_map(x, (1, 64))
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tile[0, t] = t
    tc.fence_proxy_async("shared")
    tc.barrier()
    total = tc.s32(0)
    for i in tc.range(20):
        total = total + tile[0, (t + i) % 64]
    if fence:
        tc.fence_proxy_async("shared")
    tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(line.bytes)
        tc.tma_load(tile, line, (0, 0), bar)
    bar.wait(0)
    out[t] = total + tile[0, t]


@pytest.mark.parametrize("fence", [False, True])
def test_loads_in_a_loop_before_a_bulk_copy_overwrites_them(fence):
    x, out = np.ones((1, 64), np.int32), np.zeros(64, np.int32)
    refused = nullcontext() if fence else pytest.raises(EmulationError, match="fence")
    with (
        refused,
        executing(compile_cost=0, regions_on_disk=False),
    ):  # the loop is compiled before its first round
        loads_then_copy.emulator("sm_90a")[1, 64](x, out, fence=fence)
    assert not fence or out[0] == sum(range(20)) + 1
