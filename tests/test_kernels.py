"""The GEMM library as its users meet it: results, choices, refusals."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.codegen import ptxas
from tensorcore_dsl.kernels.choosing.choice import choose, choose_promoted, choose_swiglu
from tensorcore_dsl.kernels.choosing.menu import MIN_SPLIT_SLABS, WGMMA, candidates
from tensorcore_dsl.kernels.choosing.ranking import ranking
from tensorcore_dsl.kernels.hopper.config import (
    SWIZZLE_BYTES,
    HopperConfig,
    HopperTraits,
    promoted_columns,
    promotion_registers,
)
from tensorcore_dsl.kernels.hopper.wgmma_gemm import select_wgmma
from tensorcore_dsl.kernels.host.planning import plan
from tensorcore_dsl.kernels.host.scaled_gemm import is_plain
from tensorcore_dsl.kernels.problem import families
from tensorcore_dsl.kernels.problem.families import is_assembled, sm90_obstacle
from tensorcore_dsl.kernels.problem.problem_shape import (
    ProblemShape,
    active_clusters,
    cluster_tiles,
    grid_size,
)
from tests.assembler import assert_clean
from tests.whole_numbers import BF16, E4M3, exact, whole


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.int8, np.float64], ids=str)
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_all_layouts(dtype, orders):
    a, b = whole(40, 24, dtype=dtype, order=orders[0]), whole(24, 72, dtype=dtype, order=orders[1])
    assert np.array_equal(kernels.gemm(a, b).astype(np.float64), exact(a, b))


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.float64], ids=str)
def test_alpha_beta_c(dtype):
    a, b = whole(33, 16, dtype=dtype), whole(16, 20, dtype=dtype)
    c = whole(33, 20, dtype=np.int32 if dtype == np.int8 else dtype)
    actual = kernels.gemm(a, b, c, alpha=2, beta=-3)
    assert np.array_equal(actual.astype(np.float64), 2 * exact(a, b) - 3 * c.astype(np.float64))
    assert np.array_equal(kernels.gemm(a, b, c), (exact(a, b) + c.astype(np.float64)))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.float64], ids=str)
def test_long_k_of_small_results_is_split(dtype):
    """Few tiles and many steps: CTAs share the tiles; their sums are added up, then scaled."""
    a, b = whole(20, 3000, dtype=dtype), whole(3000, 36, dtype=dtype)
    c = whole(20, 36, dtype=np.int32 if dtype == np.int8 else dtype)
    d = np.zeros_like(c)
    with tc.target("cpu", "sm_80"):
        chosen = plan(a, b, c, d, alpha=2, beta=-1)
        kernels.gemm(a, b, c, alpha=2, beta=-1, out=d)
    assert chosen.config.split_k > 1
    assert np.array_equal(d.astype(np.float64), (2 * exact(a, b) - c).astype(d.dtype))


def test_tiles_and_parts_of_mma_sync_suit_the_shape():
    """Small tiles for few rows, parts of K for few tiles, wide tiles for many; f16 sums are whole."""

    def config(M: int, N: int, K: int, **options: Any) -> Any:
        a, b, d = (np.zeros(shape, np.float16) for shape in ((M, K), (K, N), (M, N)))
        with tc.target("cpu", "sm_80"):
            return plan(a, b, None, d, **options).config

    assert config(16, 2560, 9728).BM == 16 and config(16, 2560, 9728).split_k > 2
    assert config(4096, 4096, 4096).BM * config(4096, 4096, 4096).BN >= 128 * 128
    assert config(64, 640, 16384).split_k >= 8
    assert config(64, 640, 16384, accumulate=tc.f16).split_k == 1


def test_out_is_written_and_returned():
    a, b = whole(16, 16, dtype=np.float16), whole(16, 16, dtype=np.float16)
    out = np.full((16, 16), np.nan, np.float32)
    assert kernels.gemm(a, b, out=out) is out
    assert np.array_equal(out, exact(a, b))


def test_default_kernels_sum_in_f16():
    a, b = np.full((16, 64), 1, np.float16), np.full((64, 8), 0.25, np.float16)
    assert (kernels.gemm(a, b, accumulate=tc.f16) == 16).all()


def plus_one(value, row, col):
    return value + 1


EMPTY_SHAPES = pytest.mark.parametrize(("M", "N", "K"), [(0, 4, 4), (4, 0, 4), (4, 4, 0)])


def ones(M: int, N: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((M, K), np.float16), np.ones((K, N), np.float16)


@EMPTY_SHAPES
def test_empty_products_are_zeros(M, N, K):
    assert np.array_equal(kernels.gemm(*ones(M, N, K)), np.zeros((M, N)))


@EMPTY_SHAPES
def test_empty_products_run_no_kernel(M, N, K):
    plan = kernels.plan(*ones(M, N, K), None, None)
    assert (plan.kernel, plan.config, plan.traits, plan.grid) == (None, None, None, 0)
    assert kernels.explain_bits(plan).startswith("no kernel runs")


@EMPTY_SHAPES
def test_empty_products_have_their_arguments_checked(M, N, K):
    with pytest.raises(tc.ArgumentError, match="precision"):
        kernels.plan(*ones(M, N, K), None, None, precision="tf32")


@EMPTY_SHAPES
def test_an_epilogue_applies_to_sums_of_no_products(M, N, K):
    plan = kernels.plan(*ones(M, N, K), None, None, epilogue=plus_one)
    assert (plan.kernel is None) == (K != 0)


def test_no_products_leave_beta_c():
    c = np.ones((4, 4), np.float16)
    a, b = np.ones((4, 0), np.float16), np.ones((0, 4), np.float16)
    assert np.array_equal(kernels.gemm(a, b, c, beta=2), 2 * c)


F32 = np.float32
SUM = (kernels.RowReduction("sum"),)


def _with_scales(a: np.ndarray, b: np.ndarray, **options: Any) -> Any:
    blocks = -(-a.shape[1] // 128)
    scales = np.ones((len(a), blocks), F32), np.ones((blocks, -(-b.shape[1] // 128)), F32)
    return kernels.scaled_gemm(a, b, *scales, **options)


def _grouped(a: np.ndarray, b: np.ndarray, **options: Any) -> Any:
    offsets = np.array([0, 0, len(a)], np.int32)
    return kernels.grouped_gemm(a, np.stack([b, b]), offsets, **options)


def _k_grouped(a: np.ndarray, b: np.ndarray) -> Any:
    return kernels.k_grouped_gemm(a, b, np.array([0, 0, len(b)], np.int32)).sum(0)


def _sparse(a: np.ndarray, b: np.ndarray, *c: np.ndarray, **options: Any) -> Any:
    assert np.array_equal(kernels.decompress(kernels.compress(a)), a)
    return kernels.gemm(kernels.compress(a), b, *c, **options)


def _with_c(multiply: Any, a: np.ndarray, b: np.ndarray, **options: Any) -> Any:
    return multiply(a, b, np.ones((len(a), b.shape[1]), F32), alpha=-np.inf, beta=2, **options)


def _rows(a: np.ndarray, b: np.ndarray) -> Any:
    d, sums = kernels.gemm(a, b, epilogue=plus_one, row_reductions=SUM)
    assert np.array_equal(sums, d.sum(1, dtype=F32)[None])
    return d


# What multiplies, the element type, and each element of D where K is 0.
EMPTY: dict[str, tuple[Any, Any, float]] = {
    "epilogue": (partial(kernels.gemm, epilogue=plus_one), np.float16, 1),
    "epilogue and C": (partial(_with_c, kernels.gemm, epilogue=plus_one), np.float16, 3),
    "epilogue of a batch": (
        lambda a, b: kernels.gemm(a[None], b, epilogue=plus_one)[0], np.float16, 1,
    ),
    "epilogue of f32": (partial(kernels.gemm, epilogue=plus_one), F32, 1),
    "epilogue of s8": (partial(kernels.gemm, epilogue=plus_one), np.int8, 1),
    "epilogue of f64": (partial(kernels.gemm, epilogue=plus_one), np.float64, 1),
    "row reductions": (_rows, np.float16, 1),
    "scaled": (_with_scales, E4M3, 0),
    "scaled, epilogue": (partial(_with_scales, epilogue=plus_one), E4M3, 1),
    "requantised": (partial(kernels.requantised_gemm, scale=2, zero=3), np.int8, 3),
    "sparse": (_sparse, np.float16, 0),
    "sparse and C": (partial(_with_c, _sparse, epilogue=plus_one), np.float16, 3),
    "sparse f32": (partial(_sparse, precision="tf32"), F32, 0),
    "grouped": (_grouped, np.float16, 0),
    "grouped, epilogue": (partial(_grouped, epilogue=plus_one), np.float16, 1),
    "grouped along K": (_k_grouped, np.float16, 0),
    "swiglu": (lambda a, b: kernels.swiglu(a, b, b), np.float16, 0),
    "swiglu, epilogue": (lambda a, b: kernels.swiglu(a, b, b, epilogue=plus_one), np.float16, 1),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", EMPTY)
def test_epilogues_and_c_of_empty_products(name):
    """No rows, no columns or no terms: whatever follows the sums is still computed."""
    multiply, dtype, value = EMPTY[name]
    with tc.target("cpu", "sm_90a"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for M, N, K in ((0, 24, 32), (40, 0, 32), (40, 24, 0), (0, 0, 0)):
            a, b = np.zeros((M, K), dtype), np.zeros((N, K), dtype).T
            if name == "grouped along K":
                a, b = np.zeros((K, M), dtype).T, np.zeros((K, N), dtype)
            for _ in range(2):  # the second call finds the first one's launch
                d = multiply(a, b)
                assert d.shape == (M, N) and (d.astype(np.float64) == value).all()


def test_obstacles_of_wgmma_are_named():
    assert sm90_obstacle(tc.f16) == sm90_obstacle(tc.s8, tc.s32) == ""
    assert "no f64" in sm90_obstacle(tc.f64)
    assert "do not sum in f64" in sm90_obstacle(tc.f16, tc.f64)
    with tc.target("cpu", "sm_80"):
        assert "they run on sm_90a, and the CPU emulates sm_80" in sm90_obstacle(tc.f16)


@pytest.mark.parametrize("M", [1, 16, 64, 128, 1000, 4096])
@pytest.mark.parametrize("N", [8, 128, 4096, 28672])
@pytest.mark.parametrize("b_k_major", [True, False])
def test_stages_of_choices_fit_shared_memory(M, N, b_k_major):
    for _, config in ranking(ProblemShape(M, N, 4096, b_k_major=b_k_major)):
        slots = config.stages * config.k_slabs * (config.BM + config.BN) * SWIZZLE_BYTES
        assert config.stages >= 3
        staging = config.staging_buffers(config.BN) * config.consumers * 64 * SWIZZLE_BYTES
        assert slots + staging <= 227 * 1024


@pytest.mark.parametrize(
    "config",
    [
        HopperConfig(),
        HopperConfig(cluster_m=2),
        HopperConfig(cluster_m=2, cluster_n=2),
        HopperConfig(BM=64, BN=64, cluster_n=8),
    ],
    ids=str,
)
def test_a_grid_has_no_more_blocks_than_its_waves_need(config):
    most = active_clusters(config)
    for M in range(1, 9000, 731):
        tiles = cluster_tiles(config, M, 4096)
        clusters, left = divmod(grid_size(config, M, 4096), config.cluster_size)
        waves = -(-tiles // most)
        assert left == 0 and clusters <= most and -(-tiles // clusters) == waves
        assert clusters == 1 or -(-tiles // (clusters - 1)) > waves


@pytest.mark.parametrize(
    ("dtype", "out"), [(tc.f16, tc.f16), (tc.e4m3, tc.bf16), (tc.s8, tc.s32), (tc.s8, tc.s8)]
)
def test_all_candidates_have_an_instruction(dtype, out):
    shape = ProblemShape(4096, 4096, 4096, dtype.itemsize, out_bytes=out.itemsize)
    widths = {config.BN for config in candidates(shape, (WGMMA,)).configs}
    assert len(widths) >= 12
    for width in widths:
        assert select_wgmma(dtype, dtype, width).shape[1] == width


@pytest.mark.parametrize("M", [16, 256])
def test_blocks_that_share_a_tile_have_steps_of_K_each(M):
    for parts in (2, 4, 8):
        enough = 64 * (parts * MIN_SPLIT_SLABS - 1) + 1  # the last slab of bf16 has one element
        splits = [
            max(config.split_k for _, config in ranking(ProblemShape(M, 256, K)))
            for K in (enough - 1, enough)
        ]
        assert splits[0] < parts == splits[1]


def test_choices_follow_the_problem():
    large, few, small = (
        choose(ProblemShape(M, N, 4096)) for M, N in ((8192, 8192), (16, 28672), (1000, 1000))
    )
    assert (large.BM, large.pingpong) == (128, True)
    assert few.swap_ab and 16 <= few.BN <= 32
    assert small.BM * small.BN <= 128 * 128
    assert not choose(ProblemShape(8192, 8192, 4096), is_plain).pingpong


def test_small_problems_have_tiles_for_every_multiprocessor():
    for M, N, K in ((1000, 1000, 1000), (24, 5120, 5120), (640, 640, 8192), (128, 8192, 8192)):
        chosen = choose(ProblemShape(M, N, K))
        assert grid_size(chosen, M, N) >= 80, chosen
    assert choose(ProblemShape(640, 640, 8192)).split_k > 1


def test_results_of_small_matrices_of_a_batch_lie_side_by_side():
    assert choose(ProblemShape(512, 512, 512, batch=64)).group_m == 1
    assert choose(ProblemShape(4096, 4096, 4096, batch=4)).group_m > 1


@pytest.mark.filterwarnings("ignore::tensorcore_dsl.PerformanceWarning")
@pytest.mark.parametrize("found", [(), ("ptxas",)])
def test_wide_tiles_want_an_assembler_that_honours_their_registers(monkeypatch, found):
    """On a GPU; see test_choices.py for emulation."""
    monkeypatch.setattr(families, "current_target", lambda: "cuda")
    monkeypatch.setattr(ptxas, "candidates", lambda: found)
    for shape in (ProblemShape(8192, 8192, 8192), ProblemShape(3072, 3072, 3072)):
        assert bool(choose(shape, is_assembled).registers) == bool(found)
    assert bool(choose_swiglu(4096, 8192, 4096).registers) == bool(found)
    widest = choose_promoted(ProblemShape(8192, 8192, 8192, 1))
    assert bool(promotion_registers(widest, promoted_columns(widest))) == bool(found)


# Variants that `plan` does not choose for the arrays of test_kernels_assembled.py.
SM90 = [
    ("bf16 with C", BF16, np.float32, {"has_c": True, "scaled": True}),
    ("tf32 MN-major", np.float32, np.float32, {"a_k_major": False, "b_k_major": False}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "dtype", "out", "variant"), SM90, ids=[n for n, *_ in SM90])
@pytest.mark.parametrize("cluster_m", [1, 2])
def test_wgmma_kernels_neither_spill_nor_serialise(name, dtype, out, variant, cluster_m):
    a = np.zeros((512, 512), dtype, order="F" if variant.get("a_k_major") is False else "C")
    b = np.zeros((512, 512), dtype, order="C" if variant.get("b_k_major") is False else "F")
    d = np.zeros((512, 512), out)
    precision = "tf32" if name.startswith("tf32") else None
    chosen = plan(a, b, None, d, precision=precision, config=HopperConfig(cluster_m=cluster_m))
    resources = chosen.kernel.resources(
        a, b, d, d, 1.0, 0.0, arch="sm_90a", config=chosen.config, traits=HopperTraits(**variant)
    )
    assert_clean(resources)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_120a"])
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32, np.int8, np.float64], ids=str)
def test_tiles_fit_the_architecture(dtype, arch):
    """Of products that fill any chip; f16's tile for an A100 is too large for an RTX 4090."""
    a, b = np.zeros((4096, 64), dtype), np.zeros((64, 4096), dtype, order="F")
    d = np.zeros((4096, 4096), np.int32 if dtype == np.int8 else dtype)
    with tc.target("cpu", arch):
        chosen = plan(a, b, None, d, family="sm80")
    scalars = (1, 0) if dtype == np.int8 else (1.0, 0.0)
    assert chosen.kernel.ir(a, b, d, d, *scalars, arch=arch, **dict(chosen.options))


@pytest.mark.thorough
def test_no_bank_conflicts_in_the_main_loop():
    a, b = whole(128, 64, dtype=np.float16), whole(64, 128, dtype=np.float16, order="F")
    d = np.zeros((128, 128), np.float16)
    chosen = plan(a, b, None, d, family="sm80")
    report = chosen.kernel.emulator("sm_80", profile=True)[chosen.grid, chosen.config.threads](
        a, b, d, d, 1.0, 0.0, **dict(chosen.options)
    )
    shared = [t for (_, space, verb), t in report.lines.items() if space == "shared" and verb == "load"]
    assert shared
    assert sum(t.excess for t in shared) == 0
