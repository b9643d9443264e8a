"""Products on several GPUs, emulated: bits, launches one after the other, races, and refused operands."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.kernels import HopperConfig, VirtualGroup
from tensorcore_dsl.kernels.hopper.distributed_gemm import BLOCK, PUSHED_ROWS, Exchange, ring_scheduler
from tensorcore_dsl.kernels.host import distributed
from tests.fake_gpu import FakeGpu, OnGpu

SMALL = HopperConfig(BM=64, BN=64, stages=3)
PAIRS = HopperConfig(BM=128, BN=64, stages=3, cluster_m=2)
bf16 = ml_dtypes.bfloat16


def operands(world: int, M: int, N: int, K: int, gathered: bool, dtype: Any = bf16, seed: int = 0) -> Any:
    """x and w of each rank; whole numbers, so that sums are exact in f32."""
    draw = np.random.default_rng(seed)
    rows = M // world if gathered else M
    x = [draw.integers(-4, 5, (rows, K)).astype(dtype) for _ in range(world)]
    w = [draw.integers(-4, 5, (N, K)).astype(dtype).T for _ in range(world)]
    return x, w


def reduced(x: Any, w: Any) -> list[np.ndarray]:
    """Sums in the order of the ring: a rank's own products in f32, those of the others rounded before."""
    world, rows = len(x), len(x[0]) // len(x)
    sums = []
    for rank in range(world):
        part = slice(rank * rows, rank * rows + rows)
        products = [np.float32(x[r][part]) @ np.float32(w[r]) for r in range(world)]
        total = products[rank]
        for hops in range(1, world):
            total = total + np.float32(products[(rank + hops) % world].astype(x[0].dtype))
        sums.append(total.astype(x[0].dtype))
    return sums


@pytest.mark.parametrize(
    ("world", "M", "N", "K", "config"),
    [(2, 256, 128, 320, SMALL), (3, 384, 72, 72, SMALL), (4, 1024, 64, 128, PAIRS), (2, 128, 264, 256, None)],
)
@pytest.mark.parametrize("dtype", [bf16, np.float16])
def test_the_group_gives_the_bits_of_one_product(world, M, N, K, config, dtype):
    """The group keeps its memory for a second launch. All-gather gives the bits of one product."""
    group = VirtualGroup(world)
    with tc.devices(world):
        for seed, layout in ((0, "F"), (1, "C")):  # w is contiguous along K, then along N
            x, w = operands(world, M, N, K, True, dtype, seed)
            w = [one.copy(layout) for one in w]
            actual = kernels.all_gather_gemm(x, w, group, config=config)
            expected = [np.float32(np.concatenate(x)) @ np.float32(one) for one in w]
            assert all(np.array_equal(d, e.astype(dtype)) for d, e in zip(actual, expected, strict=True))
            x, w = operands(world, M, N, K, False, dtype, seed)
            w = [one.copy(layout) for one in w]
            sums = reduced(x, w)
            actual = kernels.gemm_reduce_scatter(x, w, group, config=config)
            assert all(np.array_equal(d, e) for d, e in zip(actual, sums, strict=True))
            for everything in kernels.gemm_all_reduce(x, w, group, config=config):
                assert np.array_equal(everything, np.concatenate(sums))


@pytest.mark.parametrize("name", ["all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"])
def test_no_races_in_two_launches(name):
    group, product = VirtualGroup(2), getattr(kernels, name)
    x, w = operands(2, 256, 64, 128, name == "all_gather_gemm")
    with tc.devices(2), checking(collect=False):
        for _ in range(2):
            product(x, w, group, config=SMALL)


@pytest.mark.parametrize("launches", [0, 2**31 - 2])
@pytest.mark.parametrize("name", ["all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"])
def test_prepared_launches_repeat(name, launches):
    """A CUDA graph repeats a launch with the same arguments. Counters of 32 bits wrap around."""
    world, M, N, K, gathers = 2, 256, 64, 320, name == "all_gather_gemm"
    prepare = {
        "all_gather_gemm": distributed._prepare_gather,
        "gemm_reduce_scatter": distributed._prepare_reduce_scatter,
        "gemm_all_reduce": distributed._prepare_all_reduce,
    }[name]
    group, (x, w) = VirtualGroup(world), operands(world, M, N, K, gathers)
    rows = M // world if name == "gemm_reduce_scatter" else M
    out = group.local((rows, N), tc.bf16)
    with tc.devices(world):
        call = prepare(x, w, out, group, None, SMALL)
        pads, state = (
            next(pair[1] for key, pair in group.kept.items() if key[0] == kind) for kind in ("pads", "state")
        )
        signals = SMALL.BM // PUSHED_ROWS * 2 if gathers else world - 1  # 2 pieces of 256 cover K
        for counters, started in zip(pads, state, strict=True):
            blocks = M // BLOCK if gathers else M // BLOCK * (N // SMALL.BN)
            totals = (
                [launches] * world + [launches * blocks] + [launches * signals] * (len(counters) - world - 1)
            )
            counters[:] = np.array(totals).astype(np.int32)  # as after this number of launches
            started[0] = launches
        for seed in range(3):
            for old, new in zip((*x, *w), sum(operands(world, M, N, K, gathers, seed=seed), []), strict=True):
                old[:] = new
            call.launch(x, w, out)
            result = group.kept["result", M, N, tc.bf16][1] if name == "gemm_all_reduce" else out
            if gathers:
                full = np.float32(np.concatenate(x))
                expected = [(full @ np.float32(one)).astype(bf16) for one in w]
            else:
                expected = reduced(x, w)
                if rows == M:
                    expected = [np.concatenate(expected)] * world
            assert all(np.array_equal(d, e) for d, e in zip(result, expected, strict=True))


@tc.kernel(threads=32)
def list_tiles(
    first_rows: tc.Array, pads: tc.PeerArray, state: tc.Array, rows: tc.s32, config: tc.Const
) -> None:
    exchange = Exchange(pads, state, rows)
    scheduler = ring_scheduler((exchange.world * rows, 128), config, exchange, 1)
    for index in scheduler.tile_indices():
        if tc.threadIdx.x == 0:
            first_rows[index] = scheduler.tile_at(index).m


def test_tiles_of_a_rank_itself_come_last():
    """A rank has 17 rows of tiles, which groups of 8 do not divide."""
    group, rows = VirtualGroup(2), 17 * SMALL.BM
    order = group.local((2 * 17 * 2,), tc.s32)
    with tc.devices(2):
        list_tiles[1, 32](order, group.shared((3,), tc.s32)[0], group.local((2,), tc.s32), rows, config=SMALL)
    for rank, first_rows in enumerate(order):
        assert (first_rows[:34] // rows == 1 - rank).all() and (first_rows[34:] // rows == rank).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_bits_do_not_depend_on_the_order_of_ranks(seed):
    x, w = operands(3, 192, 64, 64, False)
    with tc.devices(3), checking(collect=False, order=seed) as session:
        session.checks = False
        actual = kernels.gemm_reduce_scatter(x, w, VirtualGroup(3), config=SMALL)
    assert all(np.array_equal(d, e) for d, e in zip(actual, reduced(x, w), strict=True))


def test_an_epilogue_gets_the_sums():
    def relu(value, row, col):
        return tc.maximum(value, 0.0)

    x, w = operands(2, 128, 64, 64, False)
    with tc.devices(2):
        actual = kernels.gemm_reduce_scatter(x, w, VirtualGroup(2), config=SMALL, epilogue=relu)
    expected = [np.maximum(np.float32(d), 0).astype(bf16) for d in reduced(x, w)]
    assert all(np.array_equal(d, e) for d, e in zip(actual, expected, strict=True))


@pytest.mark.parametrize(
    ("M", "N", "K", "change", "message"),
    [
        (96, 64, 64, {}, "whole tiles of 64 rows"),
        (128, 60, 64, {}, "K and N are multiples of 8"),
        (128, 64, 64, {"config": HopperConfig(BM=64, BN=64, stages=3, cluster_n=2)}, "take no cluster_n"),
        (
            128,
            64,
            64,
            {"x": lambda x: [np.asfortranarray(one) for one in x]},
            "K must be its contiguous axis",
        ),
        (128, 64, 64, {"x": lambda x: x[0]}, "is a list of 2 arrays"),
        (128, 64, 64, {"config": HopperConfig(BM=128, BN=64, stages=3)}, "pass another config, or pad the"),
        (128, 64, 64, {"x": lambda x: [one[:, :32] for one in x]}, "the shapes do not fit"),
    ],
)
def test_wrong_operands_are_refused(M, N, K, change, message):
    x, w = operands(2, M, N, K, True)
    x = change.get("x", lambda x: x)(x)
    with tc.devices(2), pytest.raises(tc.ArgumentError, match=message):
        kernels.all_gather_gemm(x, w, VirtualGroup(2), config=change.get("config"))


def test_refused_outside_of_devices_and_elsewhere():
    x, w = operands(2, 128, 64, 64, True)
    with pytest.raises(tc.ArgumentError, match=r"inside of `with tc.devices\(2\):`"):
        kernels.all_gather_gemm(x, w, VirtualGroup(2))
    refused = pytest.raises(tc.ArgumentError, match="on sm_90a, not on sm_80")
    with tc.target("cpu", "sm_80"), tc.devices(2), refused:
        kernels.all_gather_gemm(x, w, VirtualGroup(2))


class OneRank:
    """Rank 1 of 2, with memory of a GPU that is host memory."""

    world = 2

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}

    def shared(self, shape: Any, dtype: Any) -> Any:
        arrays = [self.local(shape, dtype) for _ in range(2)]
        return tc.PeerArray(arrays, 1), arrays[1]

    def local(self, shape: Any, dtype: Any) -> Any:
        return OnGpu(np.zeros(shape, dtype.numpy))

    def of_rank(self, argument: Any) -> Any:
        return argument


@pytest.mark.parametrize("name", ["all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"])
def test_launch_of_one_rank_on_a_gpu(name, monkeypatch):
    """Both launches, of which the second one is prepared; each rank's array has a tensor map."""
    fake, group = FakeGpu().of_the_machine(monkeypatch), OneRank()
    monkeypatch.delenv("TENSORCORE_DSL_TARGET", raising=False)
    x, w = operands(1, 256, 64, 128, False, np.float16)
    for _ in range(2):
        getattr(kernels, name)(OnGpu(x[0]), OnGpu(w[0]), group, config=SMALL)
    blocks = 8 if name == "all_gather_gemm" else 4  # x has the rows of one rank, or of both
    assert [(record.grid, record.block) for record in fake.records] == [((blocks, 1, 1), (256, 1, 1))] * 2
    kind = {"all_gather_gemm": "gathered", "gemm_reduce_scatter": "inbox", "gemm_all_reduce": "result"}[name]
    peers = next(v[0] for key, v in group.kept.items() if key[0] == kind)
    encoded = [pointer for pointer, *_ in fake.encoded]
    assert all(array.array.ctypes.data in encoded for array in peers.arrays)
