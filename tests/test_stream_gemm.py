"""Stream-K: every step of K summed once, in one order, and the room that workers exchange sums in."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.choosing.ranking import ranking
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.streamk_gemm import Workspace, streamk_gemm
from tensorcore_dsl.kernels.host import tuning_cache
from tensorcore_dsl.kernels.host.problem_shape import SMS, ProblemShape
from tensorcore_dsl.kernels.host.streamk_workspace import streamk_workspace
from tensorcore_dsl.kernels.host.tuning import hopper_candidates

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def integers(shape: tuple[int, ...], dtype: Any, order: str = "C") -> np.ndarray:
    drawn = np.random.default_rng(sum(shape)).integers(-4, 5, shape)
    return np.asarray(drawn.astype(dtype), order=order)


def small(**changes: Any) -> HopperConfig:
    return HopperConfig(**{"BM": 64, "BN": 64, "stages": 3, "streamk_units": 3, **changes})


class Room:
    """Sums that nobody has written, and flags, for direct launches; the same for each of them."""

    def __init__(self, config: HopperConfig, dtype: Any = np.float32) -> None:
        self.grid = config.streamk_units * config.cluster_size
        rows = self.grid * config.consumers
        self.sums = np.full((rows, 64 * config.BN), np.nan if dtype == np.float32 else 77, dtype)
        self.flags = np.zeros(rows, np.int32)
        self.config = config

    def multiply(self, a: np.ndarray, b: np.ndarray, order: int | None = None) -> np.ndarray:
        d = np.full((a.shape[0], b.shape[1]), 99, np.float32)
        launch = streamk_gemm.emulator("sm_90a", order=order)[self.grid, self.config.threads]
        launch(a, b, d, d, 1.0, 0.0, self.sums, self.flags, config=self.config, traits=HopperTraits())
        return d


# (M, N, K) and configuration: what is divided, in how many workers' parts.
DIVIDED = {
    "two tiles by three": ((128, 64, 512), {}),
    "one tile by five, of two steps": ((64, 64, 128), {"streamk_units": 5}),
    "one tile by twelve": ((64, 64, 4096), {"streamk_units": 12}),
    "nothing": ((192, 64, 128), {}),
    "one tile over": ((256, 64, 320), {}),
    "ends inside tiles": ((300, 200, 304), {"streamk_units": 7}),
    "clusters below": ((300, 200, 304), {"BM": 128, "streamk_units": 2, "cluster_m": 2}),
    "clusters beside": ((256, 320, 256), {"cluster_n": 2}),
    "two consumers": ((256, 128, 256), {"BM": 128}),
    "no products in flight": ((128, 64, 320), {"mma_in_flight": 0}),
    "slots of two lines": ((128, 64, 320), {"k_slabs": 2}),
}


@pytest.mark.tensorcore_check
@pytest.mark.parametrize(("size", "changes"), DIVIDED.values(), ids=DIVIDED)
def test_every_step_is_summed_once(size: tuple[int, int, int], changes: dict[str, Any]) -> None:
    M, N, K = size
    a, b = integers((M, K), BF16), integers((K, N), BF16, "F")
    room = Room(small(**changes))
    assert np.array_equal(room.multiply(a, b), a.astype(float) @ b.astype(float))
    assert not room.flags.any()


def test_room_serves_launch_after_launch() -> None:
    """Flags are lowered by those who wait for them; sums of an earlier launch are not taken."""
    room = Room(small(streamk_units=5))
    for size in ((128, 64, 512), (192, 128, 256), (64, 64, 640), (128, 64, 512)):
        M, N, K = size
        a, b = integers((M, K), BF16), integers((K, N), BF16, "F")
        assert np.array_equal(room.multiply(a, b), a.astype(float) @ b.astype(float))
        assert not room.flags.any()


def test_sums_are_added_in_the_order_of_k() -> None:
    """Each worker's sum is what a product of its steps alone gives; they are added as f32."""
    draw = np.random.default_rng(5).standard_normal
    a, b = draw((64, 64 * 8)).astype(BF16), np.asfortranarray(draw((64 * 8, 64)).astype(BF16))
    config = small()
    d = Room(config).multiply(a, b)
    parts = [slice(0, 3 * 64), slice(3 * 64, 6 * 64), slice(6 * 64, 8 * 64)]
    alone = HopperConfig(BM=64, BN=64, stages=3)
    first, *others = (
        kernels.gemm(a[:, p].copy(), b[p].copy(order="F"), out_dtype=tc.f32, config=alone)
        for p in parts
    )
    for other in others:
        first = first + other
    assert np.array_equal(d.view(np.uint32), first.view(np.uint32))
    assert np.array_equal(d, Room(config).multiply(a, b))
    assert not np.array_equal(d, Room(small(streamk_units=2)).multiply(a, b))  # else this shows nothing


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_order_in_which_blocks_run_is_not_seen(order: int) -> None:
    draw = np.random.default_rng(6).standard_normal
    a, b = draw((128, 640)).astype(BF16), np.asfortranarray(draw((640, 64)).astype(BF16))
    room = Room(small())
    d = room.multiply(a, b)
    assert np.array_equal(d, room.multiply(a, b, order))


TYPES = [(np.float16, np.float16, {}), (np.float32, np.float32, {"precision": "tf32"}), (np.int8, np.int32, {}),
         (E4M3, np.float32, {"accumulate": "fast"})]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "out", "options"), TYPES, ids=lambda t: str(getattr(t, "__name__", ""))
)
def test_gemm_divides_products_of_all_types(dtype: Any, out: Any, options: dict[str, Any]) -> None:
    a, b = integers((128, 512), dtype), integers((512, 72), dtype, "F")
    d = kernels.gemm(a, b, out_dtype=out, config=small(), **options)
    want = a.astype(float) @ b.astype(float)
    assert d.dtype == out
    assert np.array_equal(d, want.astype(out))


def test_gemm_finishes_what_is_divided() -> None:
    a, b, c = (integers(shape, BF16) for shape in ((100, 320), (320, 72), (100, 72)))
    finish = lambda value, row, col: value + row.to(tc.f32)  # noqa: E731
    d = kernels.gemm(a, b, c, alpha=2, epilogue=finish, out_dtype=tc.f32, config=small())
    want = 2 * (a.astype(float) @ b.astype(float)) + c.astype(float) + np.arange(100)[:, None]
    assert np.array_equal(d, want)


def test_gemm_divides_batches() -> None:
    a, b = integers((3, 64, 320), BF16), integers((3, 320, 64), BF16)
    d = kernels.gemm(a, b, out_dtype=tc.f32, config=small(streamk_units=2))
    assert np.array_equal(d, a.astype(float) @ b.astype(float))


def keep_to_yourself(self: Any, acc: Any, worker: Any, consumer: Any) -> None:
    """Hand nothing over."""


def test_who_waits_for_sums_that_never_come_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workspace, "publish_partials", keep_to_yourself)
    a, b = integers((64, 256), BF16), integers((256, 64), BF16, "F")
    with pytest.raises(tc.Deadlock, match="endless loop: nothing") as caught:
        Room(small(streamk_units=2, group_m=7)).multiply(a, b)  # a configuration not compiled before
    assert "while load_acquire(self.flags.at(row)) == 0" in str(caught.value)


# The room.


def test_numpy_arrays_get_room_of_their_own() -> None:
    a, config = np.empty((4, 4), BF16), small(BM=128, cluster_m=2)
    (sums, flags), (others, _) = (streamk_workspace(config, tc.s32, a) for _ in range(2))
    assert sums.shape == (3 * 2 * 2, 64 * 64)
    assert sums.dtype == np.int32
    assert flags.shape == (12,)
    assert not flags.any()
    assert sums is not others


REFUSED = [
    (dict(pingpong=True), "stream-K takes neither pingpong, nor split_k"),
    (dict(split_k=2), "stream-K takes neither pingpong, nor split_k"),
    (dict(valid_m=16), "nor valid_m"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[str(c) for c, _ in REFUSED])
def test_what_is_not_divided(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(tc.ArgumentError, match=message):
        small(**changes)


def test_promoted_sums_are_not_divided() -> None:
    a, b = integers((64, 64), E4M3), integers((64, 64), E4M3, "F")
    with pytest.raises(tc.ArgumentError, match="accumulate='fast'"):
        kernels.gemm(a, b, config=small())


# The assembler.

ASSEMBLED = [
    (BF16, BF16, {}, {}), (BF16, np.float32, {}, {"BN": 192}), (BF16, BF16, {}, {"BN": 128}),
    (BF16, BF16, {"a_k_major": False, "b_k_major": False, "scaled": True, "has_c": True}, {}),
    (BF16, BF16, {"store_by_threads": True}, {}), (BF16, BF16, {}, {"streamk_units": 66, "cluster_m": 2}),
    (np.int8, np.int32, {}, {}), (np.float32, np.float32, {}, {}), (E4M3, BF16, {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "out", "variant", "changes"), ASSEMBLED)
def test_neither_spills_nor_serialises(
    dtype: Any, out: Any, variant: dict[str, Any], changes: dict[str, Any]
) -> None:
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    config = HopperConfig(**{"streamk_units": 132, **changes}).with_stages()
    a = np.empty((512, 512), dtype, "F" if variant.get("a_k_major") is False else "C")
    b = np.empty((512, 512), dtype, "C" if variant.get("b_k_major") is False else "F")
    d, sums = np.empty((512, 512), out), tc.s32 if dtype == np.int8 else tc.f32
    scalars = (1, 0) if dtype == np.int8 else (1.0, 0.0)
    found = streamk_gemm.resources(
        a, b, d, d, *scalars, *streamk_workspace(config, sums, a),
        arch="sm_90a", config=config, traits=HopperTraits(**variant),
    )  # fmt: skip
    assert not found.warnings
    assert found.spill_stores == found.spill_loads == 0


# What it is for.

# Tiles leave a part of a wave empty; of whole tiles, there are some that leave little of it.
AS_GOOD = [(4096, 7424, 21504), (7936, 8192, 8192), (256, 5376, 29184)]
FASTER = [(272, 8576, 11712), (320, 8704, 12288)]
NOT_WORTH = [(1024, 1024, 1024), (8192, 8192, 512), (4096, 4096, 1024)]


def streamk_ranking(shape: ProblemShape) -> list[tuple[float, HopperConfig]]:
    return [entry for entry in ranking(shape) if entry[1].streamk_units]


def gain(M: int, N: int, K: int) -> float:
    """Expected gain over whole tiles."""
    shape = ProblemShape(M, N, K)
    whole = min(seconds for seconds, config in ranking(shape) if not config.streamk_units)
    return whole / streamk_ranking(shape)[0][0]


def test_incomplete_waves_with_a_long_k_are_shared() -> None:
    assert all(ranking(ProblemShape(*size))[0][1].streamk_units for size in FASTER)
    assert all(0.95 < gain(*size) < 1.02 for size in AS_GOOD)
    assert all(gain(*size) < 1 for size in NOT_WORTH)


def test_sums_in_f16_get_tiles_that_are_not_divided() -> None:
    """Although others are faster: workers add up in f32."""
    M, N, K = FASTER[0]
    a, b = np.empty((M, K), np.float16), np.empty((K, N), np.float16, "F")
    d = np.empty((M, N), np.float16)
    with tc.target("cpu", "sm_90a"):
        assert kernels.plan(a, b, None, d, family="sm90").config.streamk_units
        found = kernels.plan(a, b, None, d, family="sm90", accumulate=tc.f16)
    assert not found.config.streamk_units


@pytest.mark.parametrize("b_k_major", [True, False])
def test_divided_tiles_fit_shared_memory(b_k_major: bool) -> None:
    found = streamk_ranking(ProblemShape(1024, 1024, 16384, b_k_major=b_k_major))
    assert found
    assert all(config.stages > 2 for _, config in found)
    assert all(config.streamk_units * config.cluster_size <= SMS for _, config in found)


def test_tuning_tries_divided_tiles() -> None:
    configs = hopper_candidates(ProblemShape(512, 512, 32768))
    assert any(config.streamk_units for config in configs)
    assert any(not config.streamk_units for config in configs)


def test_what_was_tuned_is_divided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration goes through the tuning cache and comes out as the same plan."""
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    tuning_cache.remember("a problem", small(), 1.0)
    assert tuning_cache.recall("a problem") == small()
    a, b = np.empty((64, 256), BF16), np.empty((256, 64), BF16)
    found = kernels.plan(a, b, None, np.empty((64, 64), BF16), config=tuning_cache.recall("a problem"))
    assert found.kernel is streamk_gemm
    assert found.grid == 3
    assert [x.shape for x in found.workspace(a)] == [(3, 64 * 64), (3,)]
