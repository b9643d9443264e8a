"""Deadlocks: who waits for what, who is missing, and more blocks than a device holds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.arch import arch
from tensorcore_dsl.interpreter.core.residency import resident
from tests.hang_cases import ORDERS, message, publish, strong
from tests.running import line_of


@tc.kernel
def producer_and_consumer(x, wrong: tc.Const = True):
    """The consumer does not give its only slot back."""
    full, empty = tc.mbarriers(1)[0], tc.mbarriers(1)[0]
    tile = tc.shared(32, tc.s32)
    if tc.threadIdx.x == 0:
        full.init(32)
        empty.init(32)
    tc.barrier()
    if tc.warp_id() == 0:
        for k in range(3):
            empty.wait((k & 1) ^ 1)  # the producer waits
            tile[tc.lane_id()] = k
            full.arrive()
    elif tc.warp_id() == 1:
        for k in range(3):
            full.wait(k & 1)  # the consumer waits
            x[tc.lane_id()] += tile[tc.lane_id()]
            if not wrong:
                empty.arrive()


@tc.kernel
def different_barriers(x, wrong: tc.Const = True):
    if tc.warp_id() == 0:
        tc.barrier(1)
    else:
        tc.barrier(2 if wrong else 1)
    x[tc.threadIdx.x] = 1


@tc.kernel
def one_returns_before_it_arrives(x, wrong: tc.Const = True):
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(32 if wrong else 64)
    tc.barrier()
    if tc.warp_id() == 0:
        bar.wait(0)
    elif not wrong:
        bar.arrive()
    x[tc.threadIdx.x] = 1


@tc.kernel
def one_block_leaves_out_the_cluster(x, wrong: tc.Const = True):
    tc.cluster_size(2)
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if not wrong or tc.cluster_rank() == 0:
        tc.cluster_sync()
    else:
        bar.wait(0)
    x[tc.threadIdx.x + 32 * tc.blockIdx.x] = 1


DEADLOCKS: list[tuple[Any, int, int]] = [
    (producer_and_consumer, 1, 96),
    (different_barriers, 1, 64),
    (one_returns_before_it_arrives, 1, 96),
    (one_block_leaves_out_the_cluster, 2, 32),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel, grid, block", DEADLOCKS, ids=[k[0].__name__ for k in DEADLOCKS])
def test_deadlocks_are_reported(kernel, grid, block, order):
    run = kernel.emulator("sm_90a", order=order)[grid, block]
    with pytest.raises(tc.Deadlock, match="every thread that is left waits"):
        run(np.zeros(256, np.int32))
    x = np.zeros(256, np.int32)
    run(x, wrong=False)
    assert x.any()


def test_a_cycle_of_waits_is_shown():
    text = message(producer_and_consumer, 1, 96, np.zeros(256, np.int32))
    producer = line_of(producer_and_consumer, "# the producer waits")
    consumer = line_of(producer_and_consumer, "# the consumer waits")
    wait = f"`empty.wait((k & 1) ^ 1)` at {__file__}:{producer} (mbarrier.try_wait.parity.shared::cta.b64)"
    assert f"CTA 0 warps 0: {wait}" in text
    assert "32 of 32 arrivals are missing" in text
    ends = f"CTA 0 warps 0 (:{producer})", f"CTA 0 warps 1 (:{consumer})"
    assert " -> ".join((*ends, ends[0])) in text
    arrives = line_of(producer_and_consumer, "full.arrive")
    assert f"the arrivals so far are from {__file__}:{arrives} (CTA 0 warps 0)" in text
    assert f"nobody has arrived there; {__file__}:{arrives} arrived at other mbarriers" in text
    assert "CTA 0 warps 2: ended" in text


def test_blocks_that_wait_alike_are_named_together():
    text = message(waits_in_each_block, 12, 64, np.zeros(256, np.int32))
    assert text.count("32 of 32 arrivals are missing") == 1
    assert "CTAs 0 to 11 warps 0: `bar.wait(0)` at" in text
    assert "it waits in CTAs 0 to 11 for phase 0 (parity 0) of bar (initialised at" in text
    text = message(different_barriers, (2, 3), 64, np.zeros(256, np.int32))
    barrier = "barrier 1 of CTAs (0, 0) to (1, 2): 32 of 64 threads have arrived"
    assert f"{barrier}; missing are CTAs (0, 0) to (1, 2) warps 1" in text
    text = message(blocks_of_two_kinds, 12, 96, np.zeros(256, np.int32))
    assert "barrier 1 of CTAs 0, 2, 4, 6, ... (2 more): 32 of 96 threads have arrived" in text
    assert "barrier 1 of CTAs 1, 3, 5, 7, ... (2 more): 64 of 96 threads have arrived" in text


@tc.kernel
def waits_in_each_block(x):
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(32)
    tc.barrier()
    if tc.warp_id() == 0:
        bar.wait(0)


@tc.kernel
def arrivals_of_another_block(x):
    """CTA 0 lacks one arrival at `bar`, CTA 1 both."""
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(2)
        tc.fence_mbarrier_init()
    tc.barrier()
    if tc.blockIdx.x == 0:
        if tc.threadIdx.x == 0:
            bar.arrive()  # arrives
        bar.wait(0)
    else:
        bar.wait(0)
        bar.arrive()


def test_arrivals_are_those_of_the_block_that_waits():
    text = message(arrivals_of_another_block, 2, 32, np.zeros(1, np.int32))
    line = line_of(arrivals_of_another_block, "# arrives")
    assert re.search(rf"the arrivals so far are from \S+:{line} \(CTA 0 warps 0\)", text)
    assert text.count("the arrivals so far") == 1
    assert re.search(rf"nobody has arrived there; not reached yet: \S+:{line}, \S+:{line + 4}\n", text)


@tc.kernel
def blocks_of_two_kinds(x):
    if tc.warp_id() == 0 or (tc.blockIdx.x % 2 == 1 and tc.warp_id() == 1):
        tc.barrier(1)
    else:
        tc.barrier(2)


def made_elsewhere():
    inner = tc.mbarriers(2)
    return inner


@tc.kernel
def named_barriers(x, which: tc.Const):
    full, outer, single = tc.mbarriers(2), made_elsewhere(), tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        for stage in tc.static_range(2):
            for ring in (full, outer):
                bar = ring[stage]  # not how a user calls it
                bar.init(1)
        single.init(1)
    tc.barrier()
    stage = x[0]
    if which == "array":
        full[stage + 1].wait(0)
    elif which == "returned":
        outer[stage + 1].wait(0)
    elif which == "one":
        single.wait(0)
    else:
        outer[1].arrive(2)


def test_mbarriers_are_called_as_in_the_kernel():
    """Hang reports name variables, not addresses."""
    for which, name in (("array", "full[1]"), ("returned", "outer[1]"), ("one", "single")):
        text = message(named_barriers, 1, 32, np.zeros(32, np.int32), which)
        assert f"phase 0 (parity 0) of {name} (initialised at {__file__}:" in text
    with pytest.raises(tc.EmulationError, match=r"^outer\[1\] \(initialised at .* arrives 2 times"):
        named_barriers.emulate[1, 32](np.zeros(32, np.int32), "arrives")


def test_who_is_missing_at_a_named_barrier():
    text = message(different_barriers, 1, 64, np.zeros(256, np.int32))
    assert "barrier 1 of CTA 0: 32 of 64 threads have arrived; missing are CTA 0 warps 1" in text
    assert "barrier 2 of CTA 0: 32 of 64 threads have arrived; missing are CTA 0 warps 0" in text
    assert "a cycle: CTA 0 warps 0 " in text
    text = message(one_returns_before_it_arrives, 1, 96, np.zeros(256, np.int32))
    assert "32 of 32 arrivals are missing" in text and "CTA 0 warps 1-2: ended" in text
    assert "nobody has arrived there, and no line of the kernel arrives" in text
    assert "-> nobody is left who could bring it on" in text


@tc.kernel
def grid_barrier(x):
    """All blocks wait for all blocks."""
    if tc.threadIdx.x == 0:
        tc.atomic("add", x.at(0), 1)
        while strong(x.at(0)) < tc.gridDim.x:
            pass
    tc.barrier()
    if tc.threadIdx.x == 0:
        x[1 + tc.blockIdx.x] = 1


@tc.kernel
def in_the_order_of_blocks(x):
    """Each block waits for the one before it. 132 times 4 blocks have room."""
    tile = tc.shared(12000, tc.s32)
    tile[tc.threadIdx.x] = 1
    if tc.threadIdx.x == 0:
        while strong(x.at(tc.blockIdx.x)) == 0:
            pass
        publish(x.at(tc.blockIdx.x + 1), 1)


@tc.kernel
def neighbours(x):
    """CTA 0 waits for one that has room only when others have ended."""
    tile = tc.shared(12000, tc.s32)
    tile[tc.threadIdx.x] = 1
    if tc.threadIdx.x == 0:
        if tc.blockIdx.x == 0:
            while strong(x.at(530)) == 0:
                pass
        publish(x.at(tc.blockIdx.x), 1)


@tc.kernel
def all_wait_for_the_last(x):
    tile = tc.shared(12000, tc.s32)
    tile[tc.threadIdx.x] = 1
    if tc.threadIdx.x == 0:
        if tc.blockIdx.x == tc.gridDim.x - 1:
            publish(x.at(0), 1)
        while strong(x.at(0)) == 0:
            pass
    if tc.threadIdx.x == 0:
        x[1 + tc.blockIdx.x] = 1


@pytest.mark.parametrize("blocks, ends", [(264, True), (265, False)])
def test_a_barrier_of_the_grid(blocks, ends):
    """An H100 holds 132 times 2 blocks of 1024 threads."""
    x = np.zeros(300, np.int32)
    if ends:
        grid_barrier.emulator("sm_90a")[blocks, 1024](x)
        assert x[1 : 1 + blocks].all()
        return
    text = message(grid_barrier, blocks, 1024, x)
    assert "CTA 264 has not started: sm_90a holds at most 264 of these CTAs" in text


@pytest.mark.thorough
def test_blocks_that_wait_for_those_that_will_be_there():
    x = np.zeros(700, np.int32)
    x[0] = 1
    in_the_order_of_blocks.emulator("sm_90a")[540, 32](x)
    assert x[:541].all()
    for order in (None, 0):
        x = np.zeros(700, np.int32)
        neighbours.emulator("sm_90a", order=order)[540, 32](x)
        assert x[:540].all()


def test_blocks_that_wait_for_one_that_has_no_room():
    x = np.zeros(700, np.int32)
    all_wait_for_the_last.emulator("sm_90a")[528, 32](x)
    assert x[:529].all()
    text = message(all_wait_for_the_last, 529, 32, np.zeros(700, np.int32))
    assert "CTA 528 has not started: sm_90a holds at most 528 of these CTAs" in text


@tc.kernel
def plain_loads(x):
    """The first block waits for the last; the compiler may keep x[0], the emulator does not."""
    if tc.blockIdx.x == 0:
        while x[0] == 0:
            pass
    if tc.blockIdx.x == tc.gridDim.x - 1:
        x[0] = 1
    if tc.threadIdx.x == 0:
        x[1 + tc.blockIdx.x] = 1


def test_blocks_that_poll_with_plain_loads():
    x = np.zeros(300, np.int32)
    plain_loads.emulator("sm_90a", checks=False)[256, 128](x)
    assert x[:257].all()


def test_resident_ctas_are_counted():
    hopper = arch("sm_90a")
    assert resident(hopper, 1, 0) == 132 * 32
    assert resident(hopper, 1024, 0) == 132 * 2
    assert resident(hopper, 384, 227 * 1024) == 132
    assert resident(hopper, 128, 48 * 1024) == 132 * 4


def test_cooperative_launches():
    x = np.zeros(600, np.int32)
    with tc.target("cpu"):
        grid_barrier.configured(200, 1024, cooperative=True)(x)
        assert x[1:201].all()
        with pytest.raises(tc.LaunchError, match="holds at most 264 CTAs of 1024 threads"):
            grid_barrier.configured(265, 1024, cooperative=True)(x)


@tc.kernel
def polls_beside_a_wait(x):
    """Warp 0 waits for ever, warp 1 polls for ever, once warp 2 has let it go on."""
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
    tc.barrier()
    if tc.warp_id() == 0:
        bar.wait(0)
    elif tc.warp_id() == 1:
        tc.barrier(1, 64)
        while strong(x.at(0)) == 0:
            pass
    else:
        tc.barrier(1, 64)


def test_threads_that_wait_count_as_asked_when_nothing_they_wait_for_has_changed():
    """The moment of a report, which names iterations, does not depend on who is really asked."""
    with pytest.raises(tc.errors.Deadlock, match="147 iterations so far"):
        polls_beside_a_wait.emulator("sm_90a")[1, 96](np.zeros(1, np.int32))


@tc.kernel
def polls_beside_lanes_that_wait(x):
    """A lane polls for ever, while those beside it have gone on to the barrier."""
    if tc.threadIdx.x == 0:
        while strong(x.at(0)) == 0:
            tc.emit("nanosleep.u32", 20)
    tc.barrier()


@pytest.mark.parametrize("order", [*ORDERS, "up"])
def test_lanes_that_wait_outside_of_loops(order):
    """In some orders they stay one by one, and nobody marks them as waiting."""
    emulator = polls_beside_lanes_that_wait.emulator("sm_90a", order=order)
    with pytest.raises(tc.errors.Deadlock, match=r"\(bar\.sync\)(.*\n)+  who waits for whom"):
        emulator[1, 64](np.zeros(1, np.int32))


@tc.kernel
def waits_for_one_parity(x, turns: tc.s32, how: tc.Const = "parameter"):
    bar, parity = tc.mbarriers(1)[0], tc.u32(0)
    if tc.threadIdx.x == 0:
        bar.init(32)
    tc.barrier()
    if how == "unrolled":
        for _ in tc.static_range(3):
            bar.arrive()
            bar.wait(0)
    else:
        for turn in tc.range(turns):
            bar.arrive()
            bar.wait(parity)
            if how == "late":
                parity ^= turn < 3
    x[tc.threadIdx.x] = 1


@pytest.mark.parametrize("how", ["parameter", "unrolled", "late"])
def test_a_parity_that_stays(how):
    with pytest.raises(tc.Deadlock) as error:
        waits_for_one_parity.emulator("sm_90a")[1, 32](np.zeros(32, np.int32), 9, how)
    stays = "this wait asks for parity 0 each time, but phases alternate between parity 0 and 1"
    assert (stays in str(error.value)) == (how != "late")
    assert "parity 1) is over: was it meant?" in str(error.value) or how == "late"


@tc.kernel
def waits_for_a_signal(pads, goal: tc.s32, how: tc.Const):
    if tc.threadIdx.x == 0 and tc.blockIdx.x == 0:
        tc.signal(pads.at(3), 2, scope="gpu")
        tc.wait_signal(pads.at(3), 5 if how == "constant" else goal, scope="gpu")


@pytest.mark.parametrize("how", ["constant", "parameter"])
def test_a_signal_that_never_comes(how):
    text = message(waits_for_a_signal, 1, 32, np.zeros(4, np.int32), 5, how)
    assert "\n    waits for pads[3] to reach 5, and it is 2\n" in text and "decides by" not in text
