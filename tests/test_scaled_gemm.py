"""fp8 products promoted to f32 and scaled by blocks, and s8 products rounded back to s8."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.choosing.choice import choose_promoted
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.fp8_block_gemm import with_scales
from tensorcore_dsl.kernels.hopper.fp8_gemm import fp8_gemm, promoted_fp8_gemm
from tensorcore_dsl.kernels.host.planning import plan
from tensorcore_dsl.kernels.host.scaled_gemm import block_fp8_gemm, requantised_s8_gemm
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tests.arrays import normal
from tests.assembler import assert_clean
from tests.whole_numbers import BF16, E4M3, E5M2, RNG

pytestmark = pytest.mark.thorough

SLACK = 2.0**-11  # of the sum of magnitudes: what 128 terms lose in a tensor core


def run_on_hopper(function: Any, *operands: Any, **options: Any) -> Any:
    with tc.target("cpu", "sm_90a"):
        return function(*operands, **options)


# -- promotion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_promoted_sums_do_not_drift(dtype):
    """Terms of one sign, where each step of the tensor core truncates: the worst for fast sums."""
    a, b = abs(normal(64, 2048, dtype=dtype)), abs(normal(2048, 32, dtype=dtype, order="F"))
    wanted = a.astype(np.float64) @ b.astype(np.float64)

    def error(accumulate: Any) -> float:
        options = dict(out_dtype=tc.f32, config=HopperConfig(BN=32, stages=2))
        product = run_on_hopper(kernels.gemm, a, b, accumulate=accumulate, **options)
        return float(np.abs(product / wanted - 1).max())

    assert error(tc.f32) == error(None) < 2.0**-10 < 2.0**-7 < error("fast")


def test_the_default_is_accurate():
    a, b, d = np.zeros((64, 128), E4M3), np.zeros((128, 64), E4M3, "F"), np.zeros((64, 64), BF16)
    chosen = {how: plan(a, b, None, d, accumulate=how).kernel for how in (None, tc.f32, "fast")}
    assert chosen == {None: promoted_fp8_gemm, tc.f32: promoted_fp8_gemm, "fast": fp8_gemm}


def test_only_fp8_is_fast():
    a = np.zeros((64, 64), BF16)
    with pytest.raises(tc.ArgumentError, match="only fp8 products have fast accumulation, not bf16"):
        kernels.gemm(a, a, accumulate="fast")


@pytest.mark.tensorcore_check
@pytest.mark.parametrize(
    "config",
    [
        HopperConfig(BN=192, stages=2),
        HopperConfig(BN=64, stages=2, cluster_m=2),
        HopperConfig(BM=64, BN=32, stages=2),
        HopperConfig(BN=256, stages=2),
    ],
    ids=["parts of 96", "cluster", "narrow", "uneven registers"],
)
def test_promoted_tiles(config):
    """Whole numbers: exact in any order, in parts of any width."""
    a = RNG.integers(-3, 4, (300, 192)).astype(E4M3)
    b = np.asfortranarray(RNG.integers(-3, 4, (192, 271)).astype(E4M3))
    actual = run_on_hopper(kernels.gemm, a, b, out_dtype=tc.f32, config=config)
    assert np.array_equal(actual, a.astype(np.float64) @ b.astype(np.float64))


def test_tiles_that_cannot_be_promoted():
    a, b = np.zeros((64, 128), E4M3), np.zeros((128, 64), E4M3, "F")
    with pytest.raises(tc.TensorCoreError, match="takes no pingpong"):
        run_on_hopper(kernels.gemm, a, b, config=HopperConfig(BM=64, BN=128, pingpong=True))


DEEP_OR_SWAPPED = {
    "deep": dict(BM=64, BN=64, k_slabs=2, stages=2),
    "deep, in two parts": dict(BN=224, k_slabs=2, stages=2),
    "deep, three stages": dict(BM=64, BN=48, k_slabs=2, stages=3),
    "swap AB": dict(BN=80, stages=3, swap_ab=True, cluster_n=2),
    "swap AB, deep": dict(BM=64, BN=64, k_slabs=2, stages=3, swap_ab=True),
}


@pytest.mark.tensorcore_check
@pytest.mark.parametrize("name", DEEP_OR_SWAPPED)
@pytest.mark.parametrize("accumulate", [None, "fast"], ids=["promoted", "fast"])
def test_stages_and_places_do_not_change_bits(name, accumulate):
    """Every 128 of K are summed alone, however many a stage holds; a product commutes."""
    draw = np.random.default_rng(9)
    a = draw.standard_normal((56, 656)).astype(E4M3)
    b = np.asfortranarray(draw.standard_normal((656, 232)).astype(E4M3))
    usual, config = HopperConfig(BM=64, BN=64, stages=3), HopperConfig(**DEEP_OR_SWAPPED[name])
    with tc.target("cpu", "sm_90a"):
        plans = [kernels.plan(a, b, None, None, accumulate=accumulate, config=c) for c in (usual, config)]
        assert len({kernels.explain_bits(plan) for plan in plans}) == 1
    actual, wanted = (
        run_on_hopper(kernels.gemm, a, b, accumulate=accumulate, config=c) for c in (config, usual)
    )
    assert actual.tobytes() == wanted.tobytes()


@pytest.mark.tensorcore_check
@pytest.mark.parametrize("split_k", [1, 3])
@pytest.mark.parametrize("changes", [{}, dict(k_slabs=2), dict(cluster_m=2)], ids=str)
def test_sums_in_turns_have_the_same_bits(changes, split_k):
    """No sum at all, an odd and an even number of them, and more tiles than CTAs."""
    draw = np.random.default_rng(5)
    waiting = HopperConfig(BM=64, BN=16, stages=3, mma_in_flight=0, split_k=split_k, **changes)
    for slabs, rows in ((1, 128), (2, 128), (3, 1280), (4, 128), (9, 128)):
        a = draw.standard_normal((rows, 128 * slabs - 48)).astype(E4M3)
        b = np.asfortranarray(draw.standard_normal((128 * slabs - 48, 112)).astype(E4M3))
        actual, wanted = (
            run_on_hopper(kernels.gemm, a, b, out_dtype=tc.f32, config=replace(waiting, mma_in_flight=n))
            for n in (1, 0)
        )
        assert actual.tobytes() == wanted.tobytes()


# -- scales by blocks -----------------------------------------------------------------------------


def whole(scales: np.ndarray, shape: tuple[int, int], high: int) -> np.ndarray:
    """One scale an element, from one for `high` x 128 blocks."""
    return scales.repeat(high, 0).repeat(128, 1)[: shape[0], : shape[1]].astype(np.float64)


@pytest.mark.quick(1)
@pytest.mark.tensorcore_check
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("shape", [(64, 32, 128), (200, 203, 400)])
def test_scaled_products(dtype, shape):
    M, N, K = shape
    a, b = normal(M, K, dtype=dtype), normal(K, N, dtype=dtype, order="F")
    a_scales = RNG.uniform(0.5, 2, (M, -(-K // 128))).astype(np.float32)
    b_scales = RNG.uniform(0.5, 2, (-(-N // 128), -(-K // 128))).astype(np.float32).T
    actual = run_on_hopper(kernels.scaled_gemm, a, b, a_scales, b_scales, out_dtype=tc.f32)
    left = a.astype(np.float64) * whole(a_scales, (M, K), 1)
    right = b.astype(np.float64) * whole(b_scales, (K, N), 128)
    assert (np.abs(actual - left @ right) <= SLACK * (abs(left) @ abs(right))).all()


def test_scales_of_one_change_nothing():
    a, b = normal(100, 256, dtype=E4M3), normal(256, 144, dtype=E4M3, order="F")
    ones = np.ones((100, 2), np.float32), np.ones((2, 2), np.float32)
    actual = run_on_hopper(kernels.scaled_gemm, a, b, *ones, epilogue=lambda v, row, col: v + 1)
    wanted = run_on_hopper(kernels.gemm, a, b, epilogue=lambda v, row, col: v + 1)
    assert actual.dtype == BF16 and actual.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("width", [64, 128, 192, 256])
def test_each_block_has_its_scale(width):
    """Powers of two over whole numbers: a scale of the wrong block cannot go unseen."""
    a = RNG.integers(-1, 2, (130, 384)).astype(E4M3)
    b = np.asfortranarray(RNG.integers(-1, 2, (384, 400)).astype(E4M3))
    a_scales = np.exp2(RNG.integers(-2, 3, (130, 3))).astype(np.float32)
    b_scales = np.exp2(RNG.integers(-2, 3, (3, 4))).astype(np.float32)
    config = HopperConfig(BN=width, stages=2)
    actual = run_on_hopper(kernels.scaled_gemm, a, b, a_scales, b_scales, out_dtype=tc.f32, config=config)
    left = a.astype(np.float64) * whole(a_scales, a.shape, 1)
    assert np.array_equal(actual, left @ (b.astype(np.float64) * whole(b_scales, b.shape, 128)))


def scaled(**changes: Any) -> Any:
    arguments = {
        "a": np.zeros((64, 256), E4M3),
        "b": np.zeros((256, 64), E4M3, "F"),
        "a_scales": np.ones((64, 2), np.float32),
        "b_scales": np.ones((2, 1), np.float32),
    }
    return run_on_hopper(kernels.scaled_gemm, **{**arguments, **changes})


BAD_SCALED: list[Any] = [
    (dict(a_scales=np.ones((2, 64), np.float32)), "one f32 for a row and 128 of K: (64, 2)"),
    (dict(a_scales=np.ones((64, 2))), "a_scales are f64 of shape (64, 2)"),
    (dict(b_scales=np.ones((1, 2), np.float32)), "one f32 for 128 of K and of N: (2, 1)"),
    (dict(b=np.zeros((256, 64), BF16)), "a holds e4m3 but b holds bf16"),
    (dict(out_dtype=tc.s8), "a product of e4m3 gives bf16 or f16 or f32, not s8"),
    (dict(out=np.zeros((64, 32), BF16)), "out has shape (64, 32)"),
    (dict(a=np.zeros((64, 256), BF16), b=np.zeros((256, 64), BF16)), "are of e4m3 or e5m2"),
]


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), BAD_SCALED, ids=[m for _, m in BAD_SCALED])
def test_refused_scales(changes, message):
    with pytest.raises(tc.ArgumentError) as error:
        scaled(**changes)
    assert message in str(error.value)


# -- rounding back to s8 --------------------------------------------------------------------------


def bytes_(rows: int, cols: int, order: str = "C") -> np.ndarray:
    return np.asarray(RNG.integers(-128, 128, (rows, cols)).astype(np.int8), order=order)


def rounded(a: np.ndarray, b: np.ndarray, scale: Any, zero: float) -> np.ndarray:
    """The exact sum * scale + zero, rounded once, halves to even; then the ends of the range."""
    sums = a.astype(np.int64) @ b.astype(np.int64)
    factors = [Fraction(float(s)) for s in np.broadcast_to(scale, sums.shape[1])]
    zero = Fraction(zero)
    scaled = [[round(int(x) * f + zero) for x, f in zip(row, factors)] for row in sums]
    return np.clip(np.array(scaled, object), -128, 127).astype(np.int8)


@pytest.mark.quick(1)
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("shape", [(64, 32, 64), (200, 143, 336)])
def test_requantised_products_are_scaled_and_rounded(by_column, shape):
    M, N, K = shape
    a, b = bytes_(M, K), bytes_(K, N, "F")
    scale = RNG.uniform(1e-4, 1e-3, N).astype(np.float32) if by_column else 4e-4
    actual = run_on_hopper(kernels.requantised_gemm, a, b, scale, zero=-3)
    assert np.array_equal(actual, rounded(a, b, scale, -3))
    assert -128 < int(np.median(actual)) < 127


NEAR = 2.0**-52  # of a half: the next number of f64


@pytest.mark.parametrize("zero", [0.0, 0.5, -2.5, 1e9 + 0.5, -3.0e-308])
def test_each_value_is_rounded_once(zero):
    """Numbers that are a half in f32, or in f64, and exactly lie beside it."""
    a, b = np.zeros((16, 16), np.int8), np.zeros((16, 16), np.int8, "F")
    a[:, 0], b[0] = np.arange(-8, 8), [-128, -127, -85, -17, -9, -3, -1, 0, 1, 3, 5, 9, 17, 51, 99, 127]
    scales = [
        0.5,
        0.5 * (1 + NEAR),
        0.5 * (1 - NEAR / 2),
        0.1,
        0.1000000002353,
        8.50000002 / 17,
        1e-320,
        1e39,
    ]
    for scale in scales:
        actual = run_on_hopper(kernels.requantised_gemm, a, b, scale, zero=zero)
        assert np.array_equal(actual, rounded(a, b, scale, zero)), scale
    by_column = np.array([0.5, 1.5, 0.1, 0.05, 5e-4, 1e-42, 1e38, -0.5] * 2, np.float32)
    by_column[8:] = np.nextafter(by_column[8:], np.float32(np.inf))
    actual = run_on_hopper(kernels.requantised_gemm, a, b, by_column, zero=zero)
    assert np.array_equal(actual, rounded(a, b, by_column, zero))


def test_large_sums_are_rounded_once():
    """Sums beyond 2**24, which f32 does not hold: 8.5 and -8.5 with an excess of 1 part in 2**25."""
    a, b = np.full((16, 2080), 127, np.int8), np.full((2080, 16), 127, np.int8, "F")
    a[:, -16:], b[-16:, :] = 0, 0
    a[:, -1], b[-1] = 1, np.arange(-8, 8)
    total = 127 * 127 * 2064
    for scale in (8.5 / total, -8.5 / total, 0.5 / total, 126.5 / total):
        actual = run_on_hopper(kernels.requantised_gemm, a, b, scale)
        wanted = rounded(a, b, scale, 0.0)
        assert np.array_equal(actual, wanted) and len(np.unique(wanted)) == 2


def test_scale_and_zero_are_those_of_each_call():
    a, b = bytes_(32, 64), bytes_(64, 48, "F")
    vectors = [RNG.uniform(1e-4, 1e-3, 48).astype(np.float32) for _ in range(2)]
    for scale in (4e-4, 5e-4, 4e-4, *vectors):
        for zero in (1, 2):
            actual = run_on_hopper(kernels.requantised_gemm, a, b, scale, zero=zero)
            assert np.array_equal(actual, rounded(a, b, scale, zero))


def test_numbers_of_numpy():
    a, b = bytes_(32, 64), bytes_(64, 48, "F")
    for scale, zero in ((np.float32(4e-4), np.int8(-3)), (np.int64(1), np.float16(0.5))):
        actual = run_on_hopper(kernels.requantised_gemm, a, b, scale, zero=zero)
        assert np.array_equal(actual, rounded(a, b, scale, float(zero)))


def test_requantised_halves_go_to_even_and_large_values_to_the_ends():
    a, b = np.zeros((16, 16), np.int8), np.zeros((16, 16), np.int8, "F")
    a[:, 0], b[0, :6] = 1, [1, 3, 5, -1, 127, -128]
    actual = run_on_hopper(kernels.requantised_gemm, a, b, 0.5)
    assert actual[0, :6].tolist() == [0, 2, 2, 0, 64, -64]
    actual = run_on_hopper(kernels.requantised_gemm, a, b, 2, out=np.empty((16, 16), np.int8))
    assert actual[0, 4:6].tolist() == [127, -128]


BYTE = np.zeros((64, 64), np.int8)
BAD_BYTES: list[Any] = [
    (dict(a=np.zeros((64, 64), BF16), b=np.zeros((64, 64), BF16)), "a holds bf16"),
    (dict(scale=np.ones(63, np.float32)), "an f32 for each of the 64 columns"),
    (dict(scale=np.ones(64)), "scale holds f64"),
    (dict(out=np.zeros((64, 64), np.int32)), "out holds s32; the product gives s8"),
    (dict(scale="0.5"), "scale is '0.5' (str); it must be a number, or an f32 array: one a column"),
    (dict(scale=True), "scale is True (bool); it must be a number, or"),
    (dict(scale=None), "scale is None (NoneType); it must be a number, or"),
    (dict(scale=[0.5] * 64), "0.5, 0.5, ...] (list); it must be a number, or"),
    (dict(scale=1j), "scale is 1j (complex); it must be a number, or"),
    (dict(scale=np.array(0.5, np.float32)), "scale holds f32 of shape (); it must be a number, or"),
    (dict(zero="3"), "zero is '3' (str); it must be a number"),
    (dict(zero=True), "zero is True (bool); it must be a number"),
    (dict(zero=np.zeros(64, np.float32)), "(numpy.ndarray); it must be a number"),
]


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), BAD_BYTES, ids=[m for _, m in BAD_BYTES])
def test_requantised_gemm_refuses_wrong_arguments(changes, message):
    arguments = {"a": BYTE, "b": np.asfortranarray(BYTE), "scale": 1.0, **changes}
    with pytest.raises(tc.ArgumentError) as error:
        run_on_hopper(kernels.requantised_gemm, **arguments)
    assert message in str(error.value)


# -- machine code ---------------------------------------------------------------------------------

KERNELS = [
    ("promoted", promoted_fp8_gemm, choose_promoted(ProblemShape(8192, 8192, 8192, 1))),
    ("promoted, wide", promoted_fp8_gemm, HopperConfig(BN=192, stages=4)),
    ("promoted, cluster_m=3", promoted_fp8_gemm, HopperConfig(BM=64, BN=144, stages=4, cluster_m=3)),
    ("k_slabs=2, split_k=3", promoted_fp8_gemm, HopperConfig(BM=64, BN=96, stages=3, k_slabs=2, split_k=3)),
    ("block-scaled", block_fp8_gemm, with_scales(choose_promoted(ProblemShape(8192, 8192, 8192, 1)))),
    ("block-scaled, narrow", block_fp8_gemm, with_scales(HopperConfig(BN=128).with_stages())),
    ("requantised", requantised_s8_gemm, HopperConfig()),
]


@pytest.mark.parametrize(("name", "kernel", "config"), KERNELS, ids=[n for n, *_ in KERNELS])
def test_neither_spills_nor_serialises(name, kernel, config):
    byte = name == "requantised"
    a = np.zeros((512, 512), np.int8 if byte else E4M3)
    b, d = np.asfortranarray(a), np.zeros((512, 512), np.int8 if byte else BF16)
    scales = np.ones((512, 4), np.float32), np.ones((4, 4), np.float32)
    operands = {
        promoted_fp8_gemm: (a, b, d, d, 1.0, 0.0),
        block_fp8_gemm: (a, b, *scales, d),
        requantised_s8_gemm: (a, b, d, np.ones(512, np.float32), 0.0),
    }[kernel]
    resources = kernel.resources(*operands, arch="sm_90a", config=config, traits=HopperTraits())
    assert_clean(resources)
    assert resources.spills is False
    assert resources.shared_bytes <= SMEM_BYTES
