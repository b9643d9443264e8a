"""Orders of threads drawn from seeds: they show races that the emulator's own order hides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, EmulationError
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.swiglu_gemm import swiglu_kernel
from tensorcore_dsl.kernels.hopper.wgmma_gemm import half_gemm
from tests.arrays import normal
from tests.whole_numbers import BF16

SEEDS = range(8)


def run(
    kernel: Any,
    grid: int,
    block: int,
    *args: Any,
    order: int | None,
    checks: bool | None = None,
    **constants: Any,
) -> Any:
    emulated = kernel.emulator("sm_90a", order=order, checks=checks)
    return emulated[grid, block](*args, **constants)


def outcome(kernel: Any, grid: int, block: int, *args: Any, **options: Any) -> str:
    """What becomes of the last argument, or the report of a mistake."""
    try:
        run(kernel, grid, block, *args, **options)
    except EmulationError as error:
        return type(error).__name__
    return str(args[-1].tolist())


# -- mistakes that the default order hides --------------------------------------------------------


@tc.kernel
def in_turn(x: tc.Array, sums: tc.Array, turns: tc.Const = True, slots: tc.Const = 4):
    """Two warps sum half of the words each, one after the other, through a ring of few slots.

    Without turns the second one waits, by parity, for slots that are phases of the ring ahead.
    """
    tc.launch_bounds(96)
    ring = tc.shared(slots, tc.s32)
    full, empty, turn = tc.mbarriers(slots), tc.mbarriers(slots), tc.mbarriers(1)[0]
    warp, first = tc.warp_id(), tc.lane_id() == 0
    if tc.threadIdx.x == 0:
        turn.init(1)
        for slot in tc.static_range(slots):
            full[slot].init(1)
            empty[slot].init(1)
            ring[slot] = -1
        tc.fence_mbarrier_init()
    tc.barrier()
    if warp == 0:
        for step in range(x.shape[0]):
            slot, phase = step % slots, step // slots & 1
            empty[slot].wait(phase ^ 1)
            if first:
                ring[slot] = x[step]
            full[slot].arrive(pred=first)
    else:
        steps, total = x.shape[0] // 2, tc.s32(0)
        if turns & (warp == 2):
            turn.wait(0)
        for i in range(steps):
            step = (warp - 1) * steps + i
            slot, phase = step % slots, step // slots & 1
            full[slot].wait(phase)
            total += ring[slot]
            tc.syncwarp()
            empty[slot].arrive(pred=first)
        turn.arrive(pred=first & (warp == 1))
        if first:
            sums[warp - 1] = total


@tc.kernel
def handed_on(x: tc.Array, out: tc.Array, meets: tc.Const = True):
    """Each warp reads what the warp behind it, of the other warpgroup, has written."""
    tc.launch_bounds(256)
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    tile[t] = 0
    tc.barrier()
    tile[t] = x[t]
    if meets:
        tc.barrier()
    out[t] = tile[(t + 128) % 256]


def of_turns(order: int | None, turns: bool, checks: bool | None = None) -> str:
    x, sums = np.arange(12, dtype=np.int32), np.zeros(2, np.int32)
    return outcome(in_turn, 1, 96, x, sums, order=order, checks=checks, turns=turns)


def of_hands(order: int | None, meets: bool, checks: bool | None = None) -> str:
    x, out = np.arange(1, 257, dtype=np.int32), np.zeros(256, np.int32)
    return outcome(handed_on, 1, 256, x, out, order=order, checks=checks, meets=meets)


@pytest.mark.parametrize("find", [of_turns, of_hands])
def test_races_show_in_some_orders(find):
    right = find(None, True)
    with executing(regions=False):  # whose own order hides the mistake
        assert find(None, False, checks=False) == right
    assert {find(seed, True) for seed in SEEDS} == {right}
    results = [find(seed, False) for seed in SEEDS]
    assert sum(result != right for result in results) >= 2


def test_one_order_is_enough_for_the_detector():
    assert of_hands(None, False) == "Race"


def test_a_seed_is_an_order():
    for seed in SEEDS:
        assert of_turns(seed, False) == of_turns(seed, False)


def test_right_sums():
    assert of_turns(None, True) == "[15, 51]"


@pytest.mark.parametrize("order", [-1, 1.5, "x", True, False])
def test_seeds_are_whole_numbers(order):
    """True would be the seed 1: nothing says that it asks for an order like any other."""
    with pytest.raises(tc.ArgumentError, match=f"order {order!r} is not a seed: a whole number, 0 or"):
        of_turns(order, True)


def test_seeds_may_come_from_numpy():
    assert of_turns(np.int64(3), False) == of_turns(3, False)


# -- what must not depend on the order ------------------------------------------------------------


@tc.kernel
def spinning(out: tc.Array):
    """Warps that poll must let the one run that they wait for."""
    tc.launch_bounds(128)
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(32)
    tc.barrier()
    if tc.warp_id() == 2:
        bar.arrive()
    else:
        while bar.test(0) == False:  # noqa: E712
            tc.emit("nanosleep.u32", 10)
    out[tc.threadIdx.x] = 1


@tc.kernel
def waiting(out: tc.Array):
    tc.launch_bounds(64)
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(33)
    tc.barrier()
    if tc.warp_id() == 0:
        bar.arrive()
    bar.wait(0)
    out[tc.threadIdx.x] = 1


@pytest.mark.parametrize("seed", SEEDS)
def test_polls_and_deadlocks(seed):
    out = np.zeros(128, np.int32)
    run(spinning, 1, 128, out, order=seed)
    assert out.all()
    with pytest.raises(Deadlock, match="1 of 33 arrivals are missing"):
        run(waiting, 1, 64, out, order=seed)


GEMMS = [
    HopperConfig(BM=64, BN=32, stages=2, pingpong=True),
    HopperConfig(BM=64, BN=32, stages=3, pingpong=True, cluster_n=2),
    HopperConfig(BM=64, BN=32, stages=2, cluster_m=2, cluster_n=2),
    HopperConfig(BM=64, BN=32, stages=2, split_k=2),
]


@pytest.mark.thorough
@pytest.mark.parametrize("config", GEMMS, ids=["pingpong", "pingpong, cluster_n", "cluster", "split"])
def test_products_are_the_same_in_every_order(config):
    """Tiles for each block: two at least, and three steps of K, more than there are slots."""
    a, b, d = normal(128, 192), normal(96, 192).T, np.zeros((128, 96), BF16)
    constants = {"config": config, "traits": HopperTraits()}

    def bits(order: int | None) -> bytes:
        d.fill(0)
        tiles = 2 * 3 if config.split_k > 1 else 1
        grid = config.cluster_size * tiles
        run(half_gemm, grid, config.threads, a, b, d, d, 1.0, 0.0, order=order, **constants)
        return d.tobytes()

    assert {bits(seed) for seed in range(3)} == {bits(None)}
    assert np.allclose(d.astype(float), a.astype(float) @ b.astype(float), atol=0.3)


@pytest.mark.thorough
def test_gates_are_the_same_in_every_order():
    config = HopperConfig(BM=64, BN=64, stages=2, pingpong=True, cluster_n=2)
    x, gate, up = normal(128, 192), normal(96, 192).T, normal(96, 192, seed=1).T
    gates = []
    for order in (None, 0, 1):
        gates.append(np.zeros((128, 96), BF16))
        run(
            swiglu_kernel,
            2,
            config.threads,
            x,
            gate,
            up,
            gates[-1],
            order=order,
            config=config,
            traits=HopperTraits(),
        )
    assert gates[0].any()
    assert len({d.tobytes() for d in gates}) == 1
