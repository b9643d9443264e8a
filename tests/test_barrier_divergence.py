"""Barriers that only a part of a warp reaches are errors at the user's line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, Divergence
from tests.running import line_of


@tc.kernel
def half_reaches(x):
    if tc.lane_id() < 16:
        tc.barrier()  # here
    x[tc.threadIdx.x] = 1


@tc.kernel
def half_reaches_and_others_wait(x):
    if tc.lane_id() < 16:
        tc.barrier()  # here
    x[tc.threadIdx.x] = 1
    tc.barrier()


@tc.kernel
def both_arms(x):
    if tc.lane_id() < 16:
        tc.barrier()  # here
    else:
        x[0] = 1
        tc.barrier()


@tc.kernel
def one_warp_of_two(x):
    if tc.threadIdx.x < 48:
        tc.barrier()  # here
    x[tc.threadIdx.x] = 1


@tc.kernel
def different_rounds(x):
    for i in range(1 + tc.lane_id() // 16):
        tc.barrier()  # here
    x[tc.threadIdx.x] = 1


@tc.kernel
def left_by_break(x):
    for i in range(4):
        if tc.lane_id() >= 8 + i:
            break
        tc.barrier()  # here
    x[tc.threadIdx.x] = 1
    return


@tc.kernel
def arrives_in_part(x):
    if tc.lane_id() == 0:
        tc.barrier_arrive(1, 64)  # here
    x[tc.threadIdx.x] = 1


@tc.kernel
def votes_in_part(x):
    if tc.lane_id() < 4:
        tc.emit("barrier.red.popc.aligned.u32", 0, tc.lane_id() < 2)  # here
    x[tc.threadIdx.x] = 1


@tc.kernel
def guarded_in_part(x):
    tc.emit("bar.sync", 0, pred=tc.lane_id() < 16)  # here
    x[tc.threadIdx.x] = 1


@tc.kernel
def cluster_in_part(x):
    if tc.lane_id() < 16:
        tc.cluster_arrive()  # here
    x[tc.threadIdx.x] = 1


@tc.kernel
def registers_in_part(x):
    if tc.lane_id() < 16:
        tc.setmaxnreg(40, grow=False)  # here
    x[tc.threadIdx.x] = 1


BROKEN: dict[Any, tuple[str, str]] = {
    half_reaches: ("lanes 0-15 of warp 0 of CTA 0", "lanes 16-31 have run to the end"),
    half_reaches_and_others_wait: ("lanes 0-15 of warp 0", "lanes 16-31 wait at "),
    both_arms: ("lanes 0-15 of warp 0", "lanes 16-31 wait at "),
    one_warp_of_two: ("lanes 0-15 of warp 1", "lanes 16-31 have run to the end"),
    different_rounds: ("lanes 16-31 of warp 0", "lanes 0-15 have run to the end"),
    left_by_break: ("lanes 0-7 of warp 0", "lanes 8-31 have run to the end"),
    arrives_in_part: ("lanes 0 of warp 0", "lanes 1-31 have run to the end"),
    votes_in_part: ("lanes 0-3 of warp 0", "lanes 4-31 have run to the end"),
    guarded_in_part: ("lanes 0-15 of warp 0", "lanes 16-31 skip it, their guard is false"),
    cluster_in_part: ("lanes 0-15 of warp 0", "lanes 16-31 have run to the end"),
    registers_in_part: ("lanes 0-15 of warp 0", "lanes 16-31 have run to the end"),
}


@pytest.mark.parametrize("kernel", BROKEN, ids=lambda k: k.__name__)
@pytest.mark.parametrize("order", [None, 0, 1])
@pytest.mark.parametrize("checks", [True, False])
def test_a_part_of_a_warp_at_a_barrier(kernel, order, checks):
    x = np.zeros(64, np.float32)
    with pytest.raises(Divergence) as error:
        kernel.emulator("sm_90a", order=order, checks=checks)[1, 64](x)
    assert error.value.loc is not None and error.value.loc.line == line_of(kernel, "# here")
    here, away = BROKEN[kernel]
    lanes = here.split(" of warp")[0]  # another order may find another warp first
    assert lanes in error.value.message and away in error.value.message
    if order is None:
        assert here in error.value.message


# -- what is allowed -------------------------------------------------------------------------


@tc.kernel
def early_return(x, n):
    """Threads that have returned are not waited for (PTX manual 9.7.13.1)."""
    i = tc.threadIdx.x
    if i >= n:
        return
    x[i] = 1
    tc.barrier()
    value = x[n - 1 - i] + 1
    tc.barrier()
    x[i] = value


@tc.kernel
def return_in_the_other_arm(x, n):
    """The machine code is that of an early return."""
    i = tc.threadIdx.x
    if i < n:
        x[i] = 1
        tc.barrier()
        value = x[n - 1 - i] + 1
        tc.barrier()
        x[i] = value
    else:
        return


def test_machine_code_does_not_tell_where_a_return_stands():
    """So the check cannot tell it either: lanes that have returned are excused anywhere."""
    codes = []
    for function in (early_return.function, return_in_the_other_arm.function):
        kernel = tc.kernel(name="same", lineinfo=False)(function)
        codes.append(kernel.cubin(np.zeros(64, np.float32), 20, arch="sm_90a"))
    assert codes[0] == codes[1]


@tc.kernel
def return_in_a_loop(x, n):
    for i in range(4):
        tc.barrier()
        if tc.threadIdx.x >= n * (4 - i):
            return
        x[tc.threadIdx.x] += 1


@tc.kernel
def warps_at_their_own_barriers(x, n):
    if tc.warp_id() == 0:
        tc.barrier(1, 32)
        x[tc.threadIdx.x] = 1
    else:
        tc.barrier(2, 32)
        x[tc.threadIdx.x] = 2


@tc.kernel
def producer_and_consumer(x, n):
    tile = tc.shared(32, tc.f32)
    if tc.warp_id() == 0:
        if tc.lane_id() < 16:  # lanes of a warp may diverge before the barrier
            tile[tc.lane_id()] = 1.0
        else:
            tile[tc.lane_id()] = 2.0
        tc.barrier_arrive(1, 64)
    else:
        tc.barrier(1, 64)
        x[tc.threadIdx.x] = tile[tc.lane_id()]


@tc.kernel
def arms_meet_before(x, n):
    i = tc.threadIdx.x
    value = 0.0
    for step in range(i % 7):
        value += 1.0
        if value > 3.0:
            break
    tc.barrier()
    x[i] = value


@tc.kernel
def whole_warps_under_a_guard(x, n):
    tc.emit("bar.sync.count", 1, 32, pred=tc.warp_id() == 1)
    x[tc.threadIdx.x] = 1


@tc.kernel
def not_aligned(x, n):
    """`barrier.sync` without `.aligned` may be executed apart from sm_70 on."""
    if tc.lane_id() < 16:
        tc.emit("barrier.sync", 0)
    else:
        tc.emit("barrier.sync", 0)
    x[tc.threadIdx.x] = 1


ALLOWED = (
    early_return,
    return_in_the_other_arm,
    return_in_a_loop,
    warps_at_their_own_barriers,
    producer_and_consumer,
    arms_meet_before,
    whole_warps_under_a_guard,
    not_aligned,
)


@pytest.mark.parametrize("kernel", ALLOWED, ids=lambda k: k.__name__)
@pytest.mark.parametrize("order", [None, 0, 1])
def test_correct_barriers_pass(kernel, order):
    x = np.zeros(64, np.float32)
    kernel.emulator("sm_90a", order=order)[1, 64](x, 20)
    assert x.any()


@tc.kernel
def a_short_block(x):
    """Lanes that the block does not have are not waited for."""
    x[tc.threadIdx.x] = 1
    tc.barrier()
    value = x[39 - tc.threadIdx.x]
    tc.barrier()
    x[tc.threadIdx.x] += value


def test_a_block_of_a_broken_warp():
    x = np.zeros(40, np.float32)
    a_short_block.emulate[1, 40](x)
    assert (x == 2).all()


@tc.kernel
def one_lane_waits_forever(x):
    """The deadlock is at the mbarrier, not where its warp waits for the lane."""
    barriers = tc.mbarriers(1)
    if tc.threadIdx.x == 0:
        barriers[0].init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if tc.threadIdx.x == 0:
        barriers[0].wait(0)  # here
    tc.barrier()
    x[tc.threadIdx.x] = 1


def test_a_lane_that_waits_elsewhere_is_a_deadlock():
    with pytest.raises(Deadlock) as error:
        one_lane_waits_forever.emulator("sm_90a")[1, 64](np.zeros(64, np.float32))
    assert error.value.loc is not None
    assert error.value.loc.line == line_of(one_lane_waits_forever, "# here")


@tc.kernel
def exchanges_in_the_arms(x, out):
    """Three arms have a shuffle, two a vote and a barrier of the whole warp (PTX manual 9.7.9.6)."""
    lane = tc.lane_id()
    tile = tc.shared(64, tc.s32)
    warp = tc.warp_id() * 32
    value, votes = x[warp + lane], tc.u32(0)
    tile[warp + lane] = value
    if lane < 8:
        value = tc.shfl_xor(value, 31)
    elif lane < 20:
        twice = value * 2
        value += tc.shfl_xor(twice, 31)
    else:
        votes = votes + 1
        value = tc.shfl_xor(value, 31)
    if lane % 2 == 0:
        tc.syncwarp()
        votes = tc.vote("ballot", lane < 3)
        value += tile[warp + (lane ^ 1)]
    else:
        for i in tc.range(lane):
            value += 0
        tc.syncwarp()
        votes = tc.vote("ballot", lane == 5)
        value += tile[warp + (lane ^ 1)]
    out[warp + lane] = value
    out[64 + warp + lane] = votes.bits(tc.s32)


@pytest.mark.parametrize("order", [None, 0, 1, 2, 3, "up", "down", "down b0w1l3-20@4"])
def test_lanes_exchange_from_different_places(order):
    x, out = np.arange(100, 164, dtype=np.int32).reshape(2, 32), np.zeros((2, 2, 32), np.int32)
    exchanges_in_the_arms.emulator("sm_90a", order=order)[1, 64](x.ravel(), out.ravel())
    middle = (np.arange(32) >= 8) & (np.arange(32) < 20)
    shuffled = np.where(middle, 2 * x, x)[:, ::-1] + np.where(middle, x, 0)
    assert (out[0] == shuffled + x[:, np.arange(32) ^ 1]).all()
    assert (out[1] == 0b100101).all()


@tc.kernel
def masks_in_turn(out):
    """Lanes 8 to 15 meet in one arm before they meet lanes 0 to 7, which wait in the other."""
    lane = tc.lane_id()
    if lane < 8:
        out[lane] = tc.vote("ballot", True, 0xFFFF).bits(tc.s32)
    elif lane < 16:
        out[16 + lane] = tc.vote("ballot", True, 0xFF00).bits(tc.s32)
        out[lane] = tc.vote("ballot", lane < 12, 0xFFFF).bits(tc.s32)


@pytest.mark.parametrize("order", [None, 3, "up", "down"])
def test_lanes_that_meet_with_different_masks_in_turn(order):
    out = np.zeros(32, np.int32)
    masks_in_turn.emulator("sm_90a", order=order)[1, 32](out)
    assert (out[:16] == 0x0FFF).all() and (out[24:] == 0xFF00).all()
