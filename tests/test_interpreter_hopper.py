"""Proxies, barriers of other CTAs and registers of warpgroups in the interpreter."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, EmulationError, Race
from tests.planted import wgmma
from tests.running import caught, line_of, run


def test_a_pipeline_with_a_mistake_runs_without_checks():
    arguments, expected = wgmma.scaled(np.random.default_rng(0))
    emulator = wgmma.pipeline.emulator("sm_90a", checks=False)
    report = emulator[1, 288](**arguments, mistake="released with one in flight")
    assert np.array_equal(arguments["d"], expected["d"])
    loaded = sum(arguments[name].nbytes for name in ("a", "b", "scales"))
    assert report.bytes["global", "load"] == loaded
    # Eight warps, five stages of 64 of K, steps of 16.
    assert report.instructions["wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16"] == 8 * 5 * 4


# -- the async proxy ------------------------------------------------------------------------------


@tc.kernel
def read_by_all(a, out, matrices: tc.Const = False, how: tc.Const = "barrier"):
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
def overwritten(a, out, matrices: tc.Const = False, fence: tc.Const = "readers"):
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


class TestProxies:
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
        words = "the cp.async.bulk.tensor of warp 0 of CTA 0 writes through the async proxy what"
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
            words = "is read here by .*bulk.tensor of warp 0 of CTA 0 wrote it .*nothing orders"
            caught(Race, words, read_by_all, 1, 128, a, out, matrices=matrices, how=how)
        else:
            run(read_by_all, 1, 128, a, out, matrices=matrices, how=how)
            assert np.array_equal(out, np.tile(a.view(np.uint32).ravel(), 4))


# -- mbarriers of other CTAs -----------------------------------------------------------------------


@tc.kernel
def given_a_peers_barrier(instruction: tc.Const, operands: tc.Const):
    """CTA 1 gives the barrier of CTA 0 to an instruction for barriers of its own CTA."""
    tc.cluster_size(2)
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    if tc.cluster_rank() == 1:
        tc.emit(f"mbarrier.{instruction}.shared::cta.b64", bar.remote(0).address, *operands)
    tc.cluster_sync()


@pytest.mark.parametrize(
    "instruction, operands, words",
    [
        ("arrive", (), "mbarrier.arrive to shared::cta was given .* another CTA"),
        ("expect_tx", (16,), "mbarrier.expect_tx to shared::cta was given .* another CTA"),
        ("test_wait.parity", (0,), "only arrivals and bytes reach the barriers of other CTAs"),
    ],
)
def test_instructions_for_barriers_of_the_own_cta(instruction, operands, words):
    caught(EmulationError, words, given_a_peers_barrier, 2, 32, instruction, operands)


# -- the rest -------------------------------------------------------------------------------------


@tc.kernel
def registers(out, first: tc.Const = 24, then: tc.Const = 40, whole: tc.Const = True):
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
def traded(out):
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
def kept(out):
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
        first, others = f"CTA 0 warps 1-3 (:{increase})", f"CTA 0 warps 4-11 (:{wait})"
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
def passing(out, rounds: tc.Const = 1):
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
