"""f32 products with the accuracy of f32: three tf32 products, in both families of kernels."""

from __future__ import annotations

import itertools
from functools import cache, partial

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig
from tensorcore_dsl.kernels.choosing.menu import F64, KINDS, WGMMA, candidates
from tensorcore_dsl.kernels.choosing.ranking import RARE, ranking
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tensorcore_dsl.kernels.split_f32 import split
from tests.arrays import normal

pytestmark = pytest.mark.thorough

F32, U = np.float32, 2.0**-24  # unit roundoff of f32
FAMILIES = ("sm80", "sm90")
SMALL = {
    "sm80": AmpereConfig(BM=64, BN=64, WM=32, WN=32),
    "sm90": HopperConfig(BM=64, BN=64, k_slabs=2, stages=2),
    "fragments": HopperConfig(BM=64, BN=64, stages=2),
    "fragments of B": HopperConfig(BM=64, BN=64, stages=2, swap_ab=True),
}
matrix = partial(normal, dtype=F32)


def error(d: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error, in units of 2^-24 of the sum of |a| |b|."""
    wide = a.astype(float), b.astype(float)
    scale = np.abs(wide[0]) @ np.abs(wide[1])
    return float((np.abs(d - wide[0] @ wide[1]) / scale).max() / U)


def bound(K: int) -> float:
    """The bound that docs/kernels.md states, in the same unit."""
    return 34 + K / 8


@pytest.mark.quick(lambda family: family)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "orders, shape",
    [*itertools.product(("CC", "CF", "FC", "FF"), [(64, 96, 100), (65, 33, 7)]), ("CF", (1, 200, 64))],
)
def test_all_layouts_and_odd_sizes(family, orders, shape):
    M, N, K = shape
    a, b = matrix(M, K, order=orders[0]), matrix(K, N, order=orders[1])
    assert error(kernels.gemm(a, b, family=family), a, b) < 6


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("K, positive", [(32, False), (1000, False), (1000, True)])
def test_error_is_that_of_f32(family, K, positive):
    """No more than that of a chain of f32 multiply-adds, or of a few roundings where K is small."""
    a, b = matrix(64, K), matrix(K, 64)
    if positive:
        a, b = np.abs(a), np.abs(b)
    actual = error(kernels.gemm(a, b, config=SMALL[family]), a, b)
    assert actual < bound(K)
    chain = np.zeros((64, 64), F32)
    for k in range(K):
        chain += a[:, k : k + 1] * b[k : k + 1]
    assert actual < max(error(chain, a, b), 8)
    coarse = error(kernels.gemm(a, b, family="sm80", precision="tf32"), a, b)
    assert coarse > 100 * actual


@pytest.mark.parametrize("family", SMALL)
def test_operands_of_different_size(family):
    """Rows and columns scaled by powers of two far apart: the error scales with them."""
    rng = np.random.default_rng(3)
    a, b = matrix(64, 64), matrix(64, 64)
    a, b = (np.ldexp(x, rng.integers(-40, 40, x.shape)).astype(F32) for x in (a, b))
    assert error(kernels.gemm(a, b, config=SMALL[family]), a, b) < bound(64)


@pytest.mark.parametrize("family", SMALL)
def test_infinities_nan_and_the_largest_numbers(family):
    numbers = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 3.4028235e38, 1e-18, 2.5]
    a = np.repeat(np.array(numbers, F32)[:, None], 4, axis=1)[:, :1]  # rows that TMA reads
    d = kernels.gemm(a, a.T, config=SMALL[family])
    with np.errstate(all="ignore"):
        want = a * a.T
    finite = np.isfinite(want)
    assert np.array_equal(d[~finite], want[~finite], equal_nan=True)
    assert np.allclose(d[finite], want[finite], rtol=2**-21, atol=0)


def test_parts_add_up():
    """high + low is x but for the last bit, and both are tf32."""

    @tc.kernel
    def split_all(x: tc.Array, high: tc.Array, low: tc.Array):
        i = tc.blockIdx.x * 128 + tc.threadIdx.x
        high[i], low[i] = split(x[i])

    bits = np.random.default_rng(0).integers(30 << 23, 0x7F800000, 1 << 16, np.uint32)
    x = (bits | np.arange(bits.size, dtype=np.uint32) % 2 << 31).view(F32)
    high, low = np.empty_like(x), np.empty_like(x)
    split_all[x.size // 128, 128](x, high, low)
    assert not (high.view(np.uint32) & 0x1FFF).any()
    cut = (low.view(np.uint32) & np.uint32(0xFFFFE000)).view(F32).astype(float)
    assert (np.abs(x.astype(float) - high - cut) <= 2.0**-23 * np.abs(x.astype(float))).all()


@pytest.mark.parametrize("family", SMALL)
def test_alpha_beta_c(family):
    a, b, c = matrix(70, 100), matrix(100, 52), matrix(70, 52)
    d = kernels.gemm(a, b, c, alpha=2, beta=-0.5, config=SMALL[family])
    want = 2 * (a.astype(float) @ b.astype(float)) - 0.5 * c
    assert np.allclose(d, want, rtol=1e-5, atol=1e-5)


def test_batches():
    a, b = (np.stack([matrix(*shape, seed=i) for i in range(3)]) for shape in ((70, 100), (100, 40)))
    for x, y in ((a, b), (a, b[0]), (a[0], b), (a, np.asfortranarray(b))):
        assert error(kernels.gemm(x, y), x, y) < 6


@pytest.mark.parametrize(
    "config",
    [
        AmpereConfig(BM=64, BN=32, WM=32, WN=16, split_k=7),
        HopperConfig(BM=64, BN=64, k_slabs=2, stages=2, split_k=2),
        HopperConfig(BM=128, BN=128, k_slabs=2, stages=2, split_k=8),
        HopperConfig(BM=64, BN=64, k_slabs=2, stages=2, cluster_m=2),
    ],
    ids=lambda c: f"{type(c).__name__} {c.split_k}",
)
def test_split_k_and_clusters(config):
    a, b, c = matrix(70, 540), matrix(540, 66), matrix(70, 66)
    assert error(kernels.gemm(a, b, config=config), a, b) < 6
    d = kernels.gemm(a, b, c, alpha=2, beta=3, config=config)
    want = 2 * (a.astype(float) @ b.astype(float)) + 3 * c
    assert np.allclose(d, want, rtol=1e-5, atol=2e-4)


FRAGMENTS = {
    "narrow": dict(BM=64, BN=48), "of more rows": dict(BM=192, BN=32, stages=2),
    "two columns of tiles": dict(BM=128, BN=64), "wide": dict(BM=128, BN=96, stages=2), "parts": dict(BM=64, BN=64, split_k=3),
    "shared columns": dict(BM=64, BN=128, cluster_m=2, split_k=2, stages=2),
    "shared rows": dict(BM=128, BN=32, cluster_n=2),
}  # fmt: skip


def operands(shape: tuple[int, ...], orders: str) -> tuple[np.ndarray, np.ndarray]:
    M, N, K = shape
    return matrix(M, K, order=orders[0]), matrix(K, N, order=orders[1])


@cache
def of_parts_in_memory(shape: tuple[int, ...], orders: str, split_k: int) -> bytes:
    config = HopperConfig(BM=64, BN=96, k_slabs=2, stages=2, split_k=split_k)
    return kernels.gemm(*operands(shape, orders), config=config).tobytes()


@pytest.mark.tensorcore_check
@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments_that_are_split_have_the_bits_of_parts_in_memory(name, swap_ab):
    """Operands whose lines TMA reads, in all layouts, beyond the edges of tiles and of K.

    Two layouts for each configuration: they differ in the loads of either operand alone.
    """
    config = HopperConfig(**{"stages": 3, "swap_ab": swap_ab, **FRAGMENTS[name]})
    for orders in (("CC", "FF"), ("CF", "FC"))[swap_ab]:
        if config.BN % 32 and orders[not swap_ab] == ("F" if swap_ab else "C"):
            continue  # K is not contiguous in the operand whose tile has BN columns
        shape = (72, 196, 260) if swap_ab else (196, 72, 260)
        d = kernels.gemm(*operands(shape, orders), config=config)
        assert d.tobytes() == of_parts_in_memory(shape, orders, config.split_k)


def test_fragments_in_batches_and_with_row_reductions():
    a, b = (np.stack([matrix(*s, seed=i) for i in range(2)]) for s in ((70, 100), (100, 40)))
    config = HopperConfig(BM=64, BN=64, k_slabs=2, stages=2)
    rows = (kernels.RowReduction("sum"),)
    for x, y in ((a, b), (a, b[0])):
        want, of_rows = kernels.gemm(x, y, config=config, row_reductions=rows)
        for swap_ab in (False, True):
            split = HopperConfig(BM=64, BN=64, stages=2, swap_ab=swap_ab)
            assert kernels.gemm(x, y, config=split).tobytes() == want.tobytes()
        actual = kernels.gemm(x, y, config=HopperConfig(BM=64, BN=64, stages=2), row_reductions=rows)
        assert [z.tobytes() for z in actual] == [want.tobytes(), of_rows.tobytes()]


def test_lines_that_tma_cannot_read_are_split_in_memory():
    """The choice divides K as for other operands; a configuration that reads them is refused."""
    a, wide = np.empty((64, 8192), F32), np.empty((8192, 4097), F32)
    b = wide[:, :4096]
    with tc.target("cpu", "sm_90a"):
        usual = kernels.plan(a, np.ascontiguousarray(b), None, None).config
        plan = kernels.plan(a, b, None, None).config
    assert usual.k_slabs == 1 and usual.swap_ab
    assert plan.k_slabs == 2 and plan.split_k == usual.split_k
    with pytest.raises(tc.ArgumentError, match="without a copy, and b has neither rows nor columns"):
        kernels.gemm(a, b, config=usual)


def test_the_cpu_chooses_as_the_gpu_does():
    """Both families are candidates on either; small products take mma.sync, large ones wgmma."""
    chosen = {}
    for M, N, K in ((32, 32, 32), (16, 128, 512), (1024, 1024, 1024)):
        a, b, d = np.zeros((M, K), F32), np.zeros((K, N), F32), np.zeros((M, N), F32)
        with tc.target("cpu", "sm_90a"):
            chosen[M] = kernels.plan(a, b, None, d).config
        with tc.target("cpu", "sm_80"):
            assert isinstance(kernels.plan(a, b, None, d).config, AmpereConfig)
    assert {n: type(c) for n, c in chosen.items()} == {32: AmpereConfig, 16: HopperConfig, 1024: HopperConfig}


def test_all_kernels_are_ranked_together():
    kinds = tuple(kind for kind in KINDS if kind not in (WGMMA, F64))
    for M, N, K in itertools.product((1, 100, 4096), repeat=3):
        shape = ProblemShape(M, N, K, 4, out_bytes=4, products=3)
        times, configs = zip(*ranking(shape, kinds), strict=True)
        assert all(x < (1 + RARE) * y for x, y in itertools.pairwise(times))
        assert len(configs) == len({*configs})
        of_kinds = (candidates(shape, (kind,)).configs for kind in kinds)
        assert {*configs} == {config for found in of_kinds for config in found}
        assert any(isinstance(config, AmpereConfig) for config in configs)
        assert any(isinstance(config, HopperConfig) for config in configs)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        (np.float16, {"precision": "tf32"}, "a has elements of type f16; only f32 products"),
        (F32, {"precision": "f16"}, "precision is 'f16'; allowed is 'f32' or 'tf32'"),
        (F32, {"precision": tc.tf32}, "precision is .*; allowed is 'f32' or 'tf32'"),
        (F32, {"config": HopperConfig(BM=64, BN=64, k_slabs=4)}, "f32 products take k_slabs=2"),
        (F32, {"config": HopperConfig(BM=192, BN=64)}, "64, 96 with BM=128 and 32 with BM=192"),
        (F32, {"config": HopperConfig(BM=64, BN=48)}, "BN must be a multiple of 32 for an MN-major operand"),
        (F32, {"config": HopperConfig(BM=64, BN=64, pingpong=True)}, "two stages or more, and no pingpong"),
        (F32, {"config": HopperConfig(BM=64, BN=64, stages=1, mma_in_flight=0)}, "two stages or more"),
        (
            F32,
            {"config": HopperConfig(BM=64, BN=64, k_slabs=2, stages=2, swap_ab=True)},
            "of f32 with k_slabs=1",
        ),
        (F32, {"config": AmpereConfig(split_k=4)}, "K is 64: not every part of K has a tile"),
        (
            np.float16,
            {"config": AmpereConfig(BK=32, split_k=2), "accumulate": tc.f16},
            "split-K adds up f32 partial sums, and not those of f16",
        ),
    ],
)
def test_wrong_options_are_refused(dtype, options, message):
    a = np.zeros((64, 64), dtype)
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.gemm(a, a, **options)
