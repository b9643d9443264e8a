"""Slices of K whose sums lie in memory until a second kernel adds them up, with wgmma."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import HopperConfig
from tensorcore_dsl.kernels.choosing.features import DRAM, NEXT_LAUNCH, features
from tensorcore_dsl.kernels.choosing.menu import WGMMA, Menu
from tensorcore_dsl.kernels.host.problem_shape import ProblemShape

BF16 = np.dtype(ml_dtypes.bfloat16)
# Element type, options of gemm, and the type of sums.
TYPES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "f16": (np.float16, {}, np.float32), "bf16": (BF16, {}, np.float32),
    "tf32": (np.float32, {"precision": "tf32"}, np.float32), "s8": (np.int8, {}, np.int32),
    "e4m3": (tc.e4m3.numpy, {"accumulate": "fast"}, np.float32),
}  # fmt: skip
SHAPES = [(88, 200, 1192), (130, 72, 640), (64, 37, 1032)]
CONFIGS = [
    HopperConfig(BM=128, BN=64, slices=3).with_stages(4),
    HopperConfig(BM=64, BN=64, cluster_m=2, slices=5).with_stages(4),
    HopperConfig(BM=64, BN=32, cluster_n=2, k_slabs=2, slices=3).with_stages(3),
]


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with tc.target("cpu", "sm_90a"):
        yield


def operands(M: int, N: int, K: int, dtype: Any, b_order: Any = "F") -> tuple[Any, Any]:
    draw = np.random.default_rng([M, N, K])
    a, b = 3 * draw.standard_normal((M, K)), 3 * draw.standard_normal((K, N))
    return a.astype(dtype), np.asarray(b.astype(dtype), order=b_order)


def sums(a: Any, b: Any, config: HopperConfig, kind: str) -> Any:
    """The products of slices, each by a kernel that knows of none, added from the left."""
    _, options, of_sums = TYPES[kind]
    depth = 128 * config.k_slabs // a.itemsize
    k_tiles = -(-a.shape[1] // depth)
    cuts = [i * k_tiles // config.slices * depth for i in range(config.slices)] + [a.shape[1]]
    whole = HopperConfig(BM=64, BN=64).with_stages(4)
    total: Any = None
    for start, end in zip(cuts, cuts[1:]):
        part = kernels.gemm(
            np.ascontiguousarray(a[:, start:end]), np.asfortranarray(b[start:end]),
            config=whole, out_dtype=of_sums, **options,
        )  # fmt: skip
        total = part if total is None else total + part
    return total


@pytest.mark.filterwarnings("ignore::tensorcore_dsl.PerformanceWarning")
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("kind", TYPES)
def test_the_bits(kind: str, config: HopperConfig) -> None:
    dtype, options, _ = TYPES[kind]
    for M, N, K in SHAPES:
        a, b = operands(M, N, K, dtype)
        found = kernels.gemm(a, b, config=config, **options)
        wanted = sums(a, b, config, kind).astype(found.dtype)
        assert np.array_equal(found.view(np.uint8), wanted.view(np.uint8)), (M, N, K)


def test_what_becomes_of_the_sums() -> None:
    """alpha, C and an epilogue are those of the whole sum; B with N contiguous."""
    config = CONFIGS[0]
    a, b = operands(88, 200, 1192, np.float16, "C")
    c = np.random.default_rng(1).standard_normal((88, 200)).astype(np.float16)
    found = kernels.gemm(
        a, b, c, config=config, alpha=0.5, beta=-2, out_dtype=tc.f32,
        epilogue=lambda value, row, col: value + row.to(tc.f32),
    )  # fmt: skip
    total = sums(a, b, config, "f16") * np.float32(0.5)
    scaled = (total.astype(np.float64) - 2 * c.astype(np.float64)).astype(np.float32)
    assert np.array_equal(found, scaled + np.arange(88, dtype=np.float32)[:, None])


def test_the_bits_are_explained() -> None:
    a, b = operands(88, 200, 1192, np.float16)
    of_slices = kernels.plan(a, b, None, None, config=CONFIGS[0])
    assert of_slices.grid == 12 and of_slices.parts == 3
    text = kernels.explain_bits(of_slices)
    assert "parts that begin at 0, 384, 768 are summed from zero, then added from the left" in text
    in_a_cluster = HopperConfig(BM=64, BN=64, split_k=3).with_stages(4)
    assert text == kernels.explain_bits(kernels.plan(a, b, None, None, config=in_a_cluster))


def test_no_races() -> None:
    a, b = operands(88, 104, 520, np.float16)
    plan = kernels.plan(a, b, None, None, config=CONFIGS[1])
    partials = np.zeros((5, 88, 104), np.float32)
    found = plan.kernel.check(plan.grid, plan.config.threads)(
        a, b, partials, partials, 1.0, 0.0, **dict(plan.options)
    )
    assert not found.findings


@pytest.mark.parametrize(
    ("dtype", "options", "message"),
    [
        (np.float16, {"accumulate": tc.f16}, "slices are not for sums in f16"),
        (np.float32, {}, "slices are not for products of f32"),
        (np.float16, {"row_reductions": (kernels.RowReduction("sum"),)}, "not for row_reductions"),
        (tc.e4m3.numpy, {}, "not for products of e4m3 with sums in f32"),
    ],
)
def test_what_is_refused(dtype: Any, options: Any, message: str) -> None:
    a, b = np.zeros((64, 512), dtype), np.zeros((512, 64), dtype, "F")
    config = HopperConfig(BM=64, BN=64, slices=2, k_slabs=1).with_stages(4)
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.plan(a, b, None, None, config=config, **options)
    batch = np.zeros((2, 64, 512), np.float16)
    with pytest.raises(tc.ArgumentError, match="slices are not for batches"):
        kernels.plan(batch, batch.transpose(0, 2, 1), None, None, config=config)
    few = np.zeros((64, 64), np.float16)
    with pytest.raises(tc.ArgumentError, match="K is 64, 1 k_tiles: not every slice has one"):
        kernels.plan(few, few.T, None, None, config=config)


@pytest.mark.parametrize("other", [{"pingpong": True}, {"split_k": 2}, {"swapped": True}])
def test_they_go_alone(other: Any) -> None:
    with pytest.raises(tc.ArgumentError, match="slices go with neither pingpong"):
        HopperConfig(BM=64, BN=64, slices=2, **other)


def test_other_products_have_none() -> None:
    config = HopperConfig(BM=64, BN=64, slices=2).with_stages(4)
    x, w = np.ones((64, 512), np.float16), np.ones((512, 64), np.float16)
    groups = np.ones((1, 512, 64), np.float16)
    with pytest.raises(tc.ArgumentError, match="products with a gate takes no slices=2"):
        kernels.swiglu(x, w, w, config=config)
    with pytest.raises(tc.ArgumentError, match="groups of rows takes no slices=2"):
        kernels.grouped_gemm(x, groups, np.array([0, 64], np.int32), config=config)


def test_what_they_are_expected_to_cost() -> None:
    """The time of a kernel of a part of K, and of one that reads the sums and writes D."""
    shape, slices = ProblemShape(100, 200, 4096), 4
    whole = HopperConfig(BM=64, BN=64).with_stages()
    sliced = replace(whole, slices=slices)
    found = features(Menu.of((whole, sliced), (WGMMA, WGMMA)), shape)
    part = features(Menu.of((whole,), (WGMMA,)), replace(shape, K=shape.K // slices))
    sums = NEXT_LAUNCH + (slices + 1) * shape.M * shape.N * 4 / DRAM
    (alone,), (of_part,) = found["sums"][:1], part["compute"] * part["time"]
    assert alone == 0 and found["sums"][1] * found["time"][1] == pytest.approx(sums)
    # More SMs load at a time, which takes a little longer.
    assert found["compute"][1] * found["time"][1] == pytest.approx(of_part, rel=0.01)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::tensorcore_dsl.PerformanceWarning")
@pytest.mark.parametrize("kind", TYPES)
def test_the_gpu_gives_the_same_bits(kind: str) -> None:
    torch = pytest.importorskip("torch")
    dtype, options, _ = TYPES[kind]
    for config in CONFIGS:
        for M, N, K in SHAPES:
            a, b = operands(M, N, K, dtype)
            of_torch = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}.get(kind)
            x, y = (torch.from_numpy(z.view(f"i{z.itemsize}" if of_torch else z.dtype)).cuda()
                    for z in (a, np.ascontiguousarray(b.T)))  # fmt: skip
            if of_torch:
                x, y = x.view(of_torch), y.view(of_torch)
            wanted = kernels.gemm(a, b, config=config, **options)
            with tc.target("cuda"):
                found = kernels.gemm(x, y.T, config=config, **options)
            bits = found.cpu().view(torch.uint8).numpy()
            assert np.array_equal(bits, wanted.view(np.uint8)), (M, N, K, config)
