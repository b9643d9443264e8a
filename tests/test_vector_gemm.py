"""Products of few rows or columns without tensor cores: bits, layouts, the choice."""

from __future__ import annotations

import ctypes
from ctypes.util import find_library
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import VectorConfig
from tensorcore_dsl.kernels.choosing.menu import VECTORS
from tensorcore_dsl.kernels.choosing.ranking import ranking
from tensorcore_dsl.kernels.host.warming import kernels_of
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tests.arrays import normal

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("on_hopper")]

F32, F64 = np.float32, np.float64
TYPES = {tc.f16: tc.f16.numpy, tc.bf16: tc.bf16.numpy, tc.f32: np.dtype(F32), tc.f64: np.dtype(F64)}
# Rows, columns, K, the tile. K contiguous in the larger operand, and lines beside each other.
ALONG_K = [
    (1, 37, 300, (1, 2)),
    (2, 19, 1000, (2, 4)),
    (3, 21, 257, (4, 8)),
    (33, 1, 515, (8, 1)),
    (70, 4, 64, (8, 4)),
    (5, 11, 256, (4, 8)),
]
BESIDE = [
    (1, 37, 300, (1, 32)),
    (2, 70, 99, (2, 64)),
    (3, 21, 57, (4, 8)),
    (33, 1, 515, (16, 1)),
    (70, 4, 7, (32, 4)),
    (5, 11, 33, (4, 16)),
]

libm = ctypes.CDLL(find_library("m") or "libm.so.6")
libm.fmaf.restype, libm.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
libm.fma.restype, libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
FMA = {F32: np.frompyfunc(libm.fmaf, 3, 1), F64: np.frompyfunc(libm.fma, 3, 1)}
fma = FMA[F32]
matrix = partial(normal, dtype=F32)


def problem(M: int, N: int, K: int, along_k: bool, dtype: Any = F32) -> tuple[np.ndarray, np.ndarray]:
    """A and B, of which the larger one has K contiguous, or its lines beside each other."""
    a_order = "C" if along_k or M < N else "F"
    b_order = "F" if along_k or M >= N else "C"
    return matrix(M, K, order=a_order, dtype=dtype), matrix(K, N, order=b_order, dtype=dtype)


def tile(sizes: tuple[int, int], along_k: bool, unroll: int = 2, warps: int = 8) -> VectorConfig:
    return VectorConfig(*sizes, warps, unroll, along_k)


def sums(a: np.ndarray, b: np.ndarray, config: VectorConfig) -> np.ndarray:
    """A B as the kernels' description says: chains, pairs of lanes, warps."""
    chains, warps, kind = config.chains, config.warps, F64 if a.dtype == F64 else F32
    K, a, b = a.shape[1], a.astype(kind), b.astype(kind)
    product = np.zeros((chains, a.shape[0], b.shape[1]), kind)
    for k in range(K):
        chain = product[k % chains]
        chain[...] = FMA[kind](a[:, k : k + 1], b[k : k + 1], chain).astype(kind)
    of_warps = product.reshape(warps, chains // warps, *product.shape[1:])
    while of_warps.shape[1] > 1:
        half = of_warps.shape[1] // 2
        of_warps = of_warps[:, :half] + of_warps[:, half:]
    total = of_warps[0, 0]
    for warp in of_warps[1:]:
        total = total + warp[0]
    return total


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("unroll", "warps"), [(1, 8), (2, 16), (4, 8)])
@pytest.mark.parametrize("along_k", [True, False])
def test_products_of_vectors_have_the_bits_of_their_order(along_k, unroll, warps, dtype):
    for M, N, K, sizes in ALONG_K if along_k else BESIDE:
        a, b = problem(M, N, K, along_k, TYPES[dtype])
        config = tile(sizes, along_k, unroll, 8 if along_k else warps)
        product = kernels.gemm(a, b, config=config, out_dtype=tc.f64 if dtype == tc.f64 else tc.f32)
        assert np.array_equal(product, sums(a, b, config)), (M, N, K, config)
        rounded = kernels.gemm(a, b, config=config)
        assert np.array_equal(rounded, product.astype(TYPES[dtype]))


@pytest.mark.parametrize("along_k", [True, False])
def test_tf32_drops_what_tensor_cores_do_not_read(along_k):
    for M, N, K, sizes in ALONG_K if along_k else BESIDE:
        a, b = problem(M, N, K, along_k)
        config = tile(sizes, along_k)
        product = kernels.gemm(a, b, config=config, precision="tf32")
        cut = lambda x: (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(F32)
        assert np.array_equal(product, sums(cut(a), cut(b), config)), (M, N, K, config)


@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize("sizes", [(1, 8), (8, 1)], ids=str)
def test_sums_are_scaled_and_added_to_c(along_k, sizes):
    """alpha, C and an epilogue; operands with gaps between lines, at any address."""
    M, N, K = (1, 45, 300) if sizes[0] == 1 else (45, 1, 300)
    a, b = problem(M, N, K, along_k)
    wide_a, wide_b = (
        np.zeros((x.shape[0] + 1, x.shape[1] + 3), F32, "CF"[x.flags.f_contiguous]) for x in (a, b)
    )
    wide_a[1:, 3:], wide_b[1:, 3:] = a, b
    config = tile(sizes, along_k)
    total = sums(a, b, config)
    c = matrix(M, N)
    product = kernels.gemm(
        wide_a[1:, 3:],
        wide_b[1:, 3:],
        c,
        config=config,
        alpha=0.5,
        beta=-2,
        epilogue=lambda value, row, col: value + col.to(tc.f32),
    )
    scaled = fma(c, F32(-2), total * F32(0.5)).astype(F32)
    assert np.array_equal(product, scaled + np.arange(N, dtype=F32))


def test_values_that_are_no_numbers():
    """An infinity times nothing but zeros beyond K gives no NaN."""
    a, b = problem(1, 64, 300, True)
    a[0, 299] = np.inf
    b[299] = np.abs(b[299])
    product = kernels.gemm(a, b, config=tile((1, 4), True))
    assert np.all(product == np.inf)


@pytest.mark.parametrize("along_k", [True, False])
def test_nan_of_f64_is_canonical(along_k):
    """Which factor of a fused multiply-add comes first, the assembler decides."""
    a, b = problem(1, 64, 300, along_k, F64)
    a.view(np.uint64)[0, 7], b.view(np.uint64)[7, :32] = 0x7FF8000000000001, 0xFFF8000000000002
    product = kernels.gemm(a, b, config=tile((1, 8), along_k))
    assert np.all(product.view(np.uint64) == 0x7FF8000000000000)


@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize("sizes", [(1, 8), (8, 2)], ids=str)
def test_neither_races_nor_bank_conflicts(along_k, sizes):
    M, N, K = (1, 21, 300) if sizes[0] == 1 else (21, 2, 300)
    (a, b), d = problem(M, N, K, along_k), np.zeros((M, N), F32)
    plan = kernels.plan(a, b, None, d, config=tile(sizes, along_k))
    arguments, options = (a, b, d, d, 1.0, 0.0), dict(plan.options)
    product = plan.kernel.check(plan.grid, plan.config.threads)(*arguments, **options)
    assert not product.findings
    emulator = plan.kernel.emulator("sm_90a", profile=True)
    report = emulator[plan.grid, plan.config.threads](*arguments, **options)
    shared = [t for (_, space, _), t in report.lines.items() if space == "shared"]
    assert shared and sum(t.excess for t in shared) == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("along_k", [True, False])
def test_kernels_of_vectors_assemble(along_k, arch, monkeypatch, tmp_path):
    pytest.importorskip("numba.cuda.cudadrv.driver", reason="needs numba-cuda")
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    (a, b), d = problem(3, 64, 300, along_k), np.zeros((3, 64), F32)
    of_f64 = [x.astype(F64, order="K") for x in (a, b, d)]
    for precision in ("f32", "tf32", None):
        x, y, out = (a, b, d) if precision else of_f64
        options = {"out": out, "config": tile((4, 8), along_k), "precision": precision}
        for bound in kernels_of([(x, y, options)], arch):
            bound.compile()
    assert any(tmp_path.rglob("*.cubin"))


def planned(M: int, N: int, K: int, **options: Any) -> Any:
    a, b = np.empty((M, K), F32), np.empty((K, N), F32, "F")
    return kernels.plan(a, b, None, np.empty((M, N), F32), **options)


def test_choices_of_vector_kernels():
    """Few rows or columns of a product that fills the GPU; other kernels where sums have to be
    those of other rows, or in f16, or where there are few lines or a short K."""
    assert isinstance(planned(1, 28672, 4096).config, VectorConfig)
    assert isinstance(planned(9000, 2, 4099).config, VectorConfig)
    assert isinstance(planned(1, 4096, 4097, precision="tf32").config, VectorConfig)
    assert isinstance(planned(1, 4096, 4097, family="sm80").config, VectorConfig)
    for config in (
        planned(8, 4096, 4097).config,
        planned(1, 32, 4096).config,
        planned(1, 4096, 128).config,
        planned(1, 4096, 4096, bits="batch_invariant").config,
        planned(1, 4096, 4096, family="sm90").config,
    ):
        assert not isinstance(config, VectorConfig)
    for dtype, others in ((tc.f16, {"accumulate": tc.f16}), (tc.bf16, {"bits": "batch_invariant"})):
        a, b = np.empty((1, 6583), TYPES[dtype]), np.empty((6583, 1000), TYPES[dtype], "F")
        assert isinstance(kernels.plan(a, b, None, None).config, VectorConfig)
        config = kernels.plan(a, b, None, None, **others).config
        assert not isinstance(config, VectorConfig)


def vector_ranking(M: int, N: int, K: int, k_major: bool) -> Any:
    shape = ProblemShape(M, N, K, 4, 1, k_major, k_major, out_bytes=4, products=3)
    return ranking(shape, (VECTORS,))


def test_candidates():
    for sizes in ((1, 4096, 4096), (4096, 3, 1000), (4, 100, 300)):
        for k_major in (True, False):
            ranked = vector_ranking(*sizes, k_major)
            assert ranked and len({config for _, config in ranked}) == len(ranked)
            assert all(time > 0 and config.along_k == k_major for time, config in ranked)
    assert not vector_ranking(5, 4096, 4096, True)


def test_gaps_do_not_change_the_choice():
    """Rows at multiples of 16 bytes could be read by other kernels."""
    a, b = np.empty((1, 4097), F32), np.empty((4097, 4096), F32, "F")
    wide = np.empty((4100, 4096), F32, "F")[:4097]
    assert kernels.explain_bits(kernels.plan(a, b, None, None)) == kernels.explain_bits(
        kernels.plan(a, wide, None, None)
    )


def test_lines_that_share_elements():
    """Both strides of B are 1: it counts as one with K contiguous."""
    values = np.arange(3000, dtype=F32) % 17
    b = np.lib.stride_tricks.sliding_window_view(values, 1000)[:512]
    a = np.ones((1, 512), F32)
    for precision in ("f32", "tf32"):
        assert np.array_equal(kernels.gemm(a, b, precision=precision), a @ b)


def test_rows_of_one_order_stay_with_wgmma():
    """Vectors sum in another order, so that they are no reason to leave it."""
    options = {"precision": "tf32", "bits": "batch_invariant"}
    assert isinstance(planned(1, 4096, 4096, **options).config, kernels.HopperConfig)


def test_the_bits_are_explained():
    plan = planned(1, 4096, 4097)
    text = kernels.explain_bits(plan)
    assert "upwards in 256 chains, each of one element in 256;" in text
    assert "lanes 16, then 8, then 4, then 2, then 1 apart" in text
    assert "one fused multiply-add of f32 for each product" in text
    a, b = problem(1, 64, 300, False)
    beside = kernels.explain_bits(kernels.plan(a, b, None, None, config=tile((1, 16), False)))
    assert "in 16 chains" in beside and "lanes 16 apart" in beside
    whole = kernels.explain_bits(kernels.plan(a, b, None, None, config=tile((1, 32), False)))
    assert "in 8 chains" in whole and "lanes" not in whole


@pytest.mark.quick
@pytest.mark.parametrize(
    ("dtype", "config", "message"),
    [
        (np.int8, VectorConfig(), "for f16, bf16, f32, tf32, f64, not for s8"),
        (F32, VectorConfig(1, 8, along_k=False), "along_k must be True"),
        (F32, VectorConfig(8, 1, along_k=False), "along_k must be True"),
    ],
)
def test_refuses_wrong_configurations(dtype, config, message):
    a, b = np.empty((1, 512), dtype), np.empty((512, 64), dtype, "F")
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.plan(a, b, None, None, config=config)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"BM": 3, "BN": 8}, "one of BM and BN is 1, 2 or 4"),
        ({"BM": 8, "BN": 8}, "one of BM and BN is 1, 2 or 4"),
        ({"BN": 64}, "the other one 2, 4, 8, and warps 8"),
        ({"BM": 16, "BN": 4}, "the other one 2, 4, 8, and warps 8"),
        ({"BN": 128, "along_k": False}, "the other one 8, 16, 32, 64, and warps 8 or 16"),
        ({"BN": 4, "along_k": False}, "the other one 8, 16, 32, 64, and warps 8 or 16"),
        ({"warps": 16}, "and warps 8: "),
        ({"BN": 8, "along_k": False, "warps": 4}, "and warps 8 or 16"),
        ({"unroll": 0}, "1 or more"),
        ({"group_m": 0}, "1 or more"),
    ],
)
def test_configurations_that_are_refused(fields, message):
    with pytest.raises(tc.ArgumentError, match=message):
        VectorConfig(**fields)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["f32", "tf32", "f64", None])
@pytest.mark.parametrize("along_k", [True, False])
def test_the_gpu_gives_the_same_bits(along_k, precision):
    """precision: None for f16, "f64" for that, of values with NaN of several payloads."""
    torch = pytest.importorskip("torch")
    dtype = {"f64": F64, None: np.float16}.get(precision, F32)
    precision = None if precision == "f64" else precision
    for M, N, K, sizes in ALONG_K if along_k else BESIDE:
        a, b = problem(M, N, K, along_k, dtype)
        if dtype == F64:
            for x, first in ((a, 0x7FF8000000000001), (b, 0xFFF8000000001000)):
                places = np.random.default_rng(K).integers(x.size, size=4)
                x.view(np.uint64).flat[places] = first + np.arange(4, dtype=np.uint64)
        config = tile(sizes, along_k, warps=8 if along_k else 16)
        wanted = kernels.gemm(a, b, config=config, precision=precision)
        with tc.target("cuda"):
            of_gpu = [
                torch.from_numpy(x).cuda() if x.flags.c_contiguous else torch.from_numpy(x.T).cuda().T
                for x in (a, b)
            ]
            product = kernels.gemm(*of_gpu, config=config, precision=precision)
        assert np.array_equal(product.cpu().numpy().view(np.uint8), wanted.view(np.uint8))
