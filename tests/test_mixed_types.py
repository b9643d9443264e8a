"""Products of two element types, and of fp8 where the GPU has no kernels of it: the bits of whole numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.choosing import choice, tuning_cache
from tensorcore_dsl.kernels.host import copies, warming
from tensorcore_dsl.kernels.problem import families

pytestmark = pytest.mark.thorough

E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
S8, U8 = np.int8, np.uint8
FLOATS = [(E4M3, E5M2), (E5M2, E4M3), (E4M3, E4M3), (E5M2, E5M2)]
INTEGERS = [(U8, S8), (S8, U8), (U8, U8), (S8, S8)]
ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"]


def operand(rows: int, cols: int, dtype: Any) -> np.ndarray:
    """All values of integers; of fp8 small ones, whose sums no rounding changes, halves among them."""
    draw = np.random.default_rng(rows + 3 * cols + np.dtype(dtype).num)
    if dtype in (S8, U8):
        limits = np.iinfo(dtype)
        return draw.integers(limits.min, limits.max, (rows, cols), dtype, endpoint=True)
    return (draw.integers(-6, 7, (rows, cols)) / 2).astype(dtype)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    whole = np.int64 if a.dtype in (S8, U8) else np.float64
    return np.asarray(a.astype(whole) @ b.astype(whole))


@pytest.mark.quick(1)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("left", "right"), INTEGERS)
def test_mixed_integers_are_exact(left, right, arch):
    a, b = operand(65, 80, left), operand(40, 80, right).T
    c = operand(65, 40, left)
    with tc.target("cpu", arch):
        d = kernels.gemm(a, b, c, alpha=-3, beta=2)
        assert d.dtype == np.int32 and np.array_equal(d, -3 * exact(a, b) + 2 * c.astype(np.int64))
        with pytest.raises(tc.ArgumentError, match="integer alpha"):
            kernels.gemm(a, b, alpha=0.5)


@pytest.mark.quick(1)
@pytest.mark.filterwarnings("ignore:each product copies")
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("left", "right"), FLOATS)
def test_mixed_fp8_is_exact(left, right, arch):
    a, b = operand(65, 80, left), operand(40, 80, right).T
    with tc.target("cpu", arch):
        for dtype, name in ((BF16, None), (np.float16, tc.f16), (np.float32, tc.f32)):
            d = kernels.gemm(a, b, out_dtype=name, alpha=0.5)
            assert d.dtype == dtype
            assert np.array_equal(d, (exact(a, b) / 2).astype(np.float32).astype(dtype))
        fast = kernels.gemm(a, b, out_dtype=tc.f32, accumulate="fast", epilogue=lambda v, row, col: v + col)
        assert np.array_equal(fast, exact(a, b) + np.arange(40))


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_all_values_of_fp8_are_converted(arch):
    for dtype in (E4M3, E5M2):
        a = np.arange(256, dtype=np.uint8).view(dtype)[:, None]
        with (
            tc.target("cpu", arch),
            pytest.warns(tc.PerformanceWarning, match=rf"{arch} has no kernels of fp8, .* exact"),
        ):
            d = kernels.gemm(a, np.ones((1, 8), E5M2), out_dtype=tc.f32)
        with np.errstate(invalid="ignore"):
            wanted = np.repeat(a.astype(np.float32), 8, 1)
        assert np.array_equal(d, wanted, equal_nan=True) and np.isnan(d).any()


LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "every second": lambda x: x[::2, ::2],
    "reversed": lambda x: x[::-1],
    "one row": lambda x: x[:1, :64],
}


@pytest.mark.filterwarnings("ignore:each product copies")
@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
def test_fp8_is_planned_as_it_is_multiplied(of_a, of_b):
    a, b = LAYOUTS[of_a](operand(66, 64, E4M3)), LAYOUTS[of_b](operand(40, 64, E5M2)).T
    a, b = a[:, : b.shape[0]], b[: a.shape[1]]
    with tc.target("cpu", "sm_89"):
        d = kernels.gemm(a, b, out_dtype=tc.f32)
        assert np.array_equal(d, exact(a, b))
        plan = kernels.plan(a, b, None, d, accumulate="fast")
        assert plan.kernel is families.MMA_KERNELS[tc.f16] or plan.kernel is families.VECTOR_KERNELS[tc.f16]
        assert kernels.explain_bits(plan).startswith("products:   f16 by f16")
        with warming.recorded() as launches:
            kernels.gemm(a, b, out=d)
            kernels.gemm(np.asarray(a, np.float16), np.asarray(b, np.float16), out=d)
    assert launches[0].kernel is launches[-1].kernel is plan.kernel


@pytest.mark.filterwarnings("ignore:each product copies")
@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
@pytest.mark.parametrize("dtype", [E4M3, np.float16, np.float64])
def test_fp8_is_added(dtype, arch):
    a, b = operand(32, 48, dtype), operand(40, 48, dtype).T
    wide = operand(64, 80, E5M2)
    with tc.target("cpu", arch):
        for c in (wide[:32, :40], wide[::2, ::2], wide[0, :40], wide[:32, :1], wide.T[:32, :40]):
            d = kernels.gemm(
                a,
                b,
                c,
                alpha=2,
                beta=-1,
                out_dtype=None if dtype is np.float64 else tc.f16 if dtype is E4M3 else tc.f32,
            )
            assert np.array_equal(d, 2 * exact(a, b) - c.astype(np.float64))
            assert kernels.plan(a, b, c, d, beta=1).traits.has_c


@pytest.mark.filterwarnings("ignore:each product copies")
def test_fp8_is_tuned_as_it_is_multiplied(monkeypatch):
    a, b = operand(64, 64, E4M3), operand(64, 64, E4M3).T
    config = kernels.AmpereConfig(BM=64, BN=32, WM=32, WN=32)
    second = lambda launch: 2.0 - (launch.keywords["config"] == config)
    with tc.target("cpu", "sm_89"):
        other = kernels.plan(a, b, None, None).config
        tuning = kernels.tune(a, b, timer=second, device="mine", candidates=[other, config], remember=False)
        assert tuning.best == config != other
        assert kernels.tune(a, b, timer=lambda launch: 1.0, device="mine", remember=False).trials
        monkeypatch.setattr(choice, "current_target", lambda: "cuda")
        monkeypatch.setattr(tuning_cache, "device_name", lambda: "mine")
        monkeypatch.setattr(tuning_cache, "entries", lambda: [tuning.key])
        monkeypatch.setattr(tuning_cache, "recall", {tuning.key: config}.get)
        assert kernels.plan(a, b, None, None).config == config


@pytest.mark.filterwarnings("ignore:each product copies")
def test_operands_are_not_converted_to_warm_up(monkeypatch):
    monkeypatch.setattr(copies, "_assign", None)
    (bound,) = warming.kernels_of(warming._products([tc.e4m3], [(256, 256, 256)], ["row.col"], None), "sm_89")
    assert bound.kernel is families.MMA_KERNELS[tc.f16] and bound.types[0].dtype == tc.f16


@pytest.mark.parametrize(
    ("arch", "text"),
    [
        ("sm_75", "nor can the mma.sync kernels: they run on sm_80 or later"),
        ("sm_89", "single matrices, no batches; call gemm for each matrix"),
    ],
)
def test_products_without_kernels_say_what_has_them(arch, text):
    a, b = np.ones((2, 16, 32), E4M3), np.ones((32, 16), E4M3)
    with tc.target("cpu", arch):
        for call in (kernels.gemm, lambda a, b: kernels.plan(a, b, None, None)):
            with pytest.raises(tc.ArgumentError, match=text):
                call(a[0] if arch == "sm_75" else a, b)


CONFIGS = [
    (FLOATS[0], kernels.HopperConfig(BM=64, BN=64, stages=3, swap_ab=True), {}),
    (FLOATS[0], kernels.HopperConfig(BM=64, BN=64, stages=3, swap_ab=True), {"accumulate": "fast"}),
    (FLOATS[1], kernels.HopperConfig(BM=128, BN=96, stages=3), {}),
    (FLOATS[1], kernels.HopperConfig(BM=128, BN=64, stages=3, split_k=2), {"accumulate": "fast"}),
    (INTEGERS[0], kernels.HopperConfig(BM=128, BN=64, stages=3, split_k=2), {}),
    (INTEGERS[1], kernels.AmpereConfig(BM=64, BN=64, BK=64, WM=32, WN=32, split_k=2), {}),
]


@pytest.mark.parametrize(("types", "config", "options"), CONFIGS)
def test_configurations(types, config, options):
    a, b = operand(136, 272, types[0]), operand(144, 272, types[1]).T
    with tc.target("cpu", "sm_90a"):
        d = kernels.gemm(a, b, config=config, **options)
    assert np.array_equal(d, exact(a, b).astype(np.float32).astype(d.dtype))


def test_other_products():
    """Scales, requantisation, batches and row reductions take mixed types as well."""
    with tc.target("cpu", "sm_90a"):
        a, b = operand(40, 128, E4M3), operand(48, 128, E5M2).T
        scales = np.full((40, 1), 0.5, np.float32), np.full((1, 1), 4, np.float32)
        d = kernels.scaled_gemm(a, b, *scales, out_dtype=tc.f32)
        assert np.array_equal(d, 2 * exact(a, b))
        d, sums = kernels.gemm(a[None], b, out_dtype=tc.f32, row_reductions=(kernels.RowReduction("sum"),))
        assert np.array_equal(d[0], exact(a, b)) and np.array_equal(sums[0, 0], exact(a, b).sum(1))
        sparse = np.where(np.arange(128) % 4 < 2, a.astype(np.float32), 0).astype(E4M3)
        d = kernels.gemm(kernels.compress(sparse), b, out_dtype=tc.f32)
        assert np.array_equal(d, exact(sparse, b))
        a, b = operand(40, 128, U8), operand(48, 128, S8).T
        d = kernels.requantised_gemm(a, b, 1 / 4096, zero=3)
        assert np.array_equal(d, np.rint(exact(a, b) / 4096 + 3).clip(-128, 127))
        text = kernels.explain_bits(kernels.plan(a, b, None, np.empty((40, 48), np.int32)))
        assert "u8 by s8, 32 of K in an instruction" in text


@pytest.mark.quick
def test_other_pairs_are_refused():
    message = "a holds f16 but b holds s8; convert one: types that differ are multiplied only as e4m3 with e5m2, s8 with u8"
    with pytest.raises(tc.ArgumentError) as error:
        kernels.gemm(np.ones((8, 8), np.float16), np.ones((8, 8), S8))
    assert message in str(error.value)
