"""Swap AB: tiles of D^T = B^T A^T have the bits of D = A B."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import HopperConfig
from tensorcore_dsl.kernels.choosing.menu import WGMMA, as_loaded, candidates, menu
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape, cluster_tiles
from tests.arrays import normal

pytestmark = pytest.mark.thorough

USUAL = HopperConfig(BM=64, BN=64, stages=3)
TILES = {
    "narrow": dict(BM=64, BN=16),
    "three parts of the epilogue": dict(BM=64, BN=144, stages=2),
    "two consumers": dict(BM=128, BN=80),
    "pingpong, cluster_n": dict(BM=64, BN=48, pingpong=True, cluster_n=2),
    "pingpong, cluster_m": dict(BM=128, BN=128, stages=2, pingpong=True, cluster_m=2),
    "k_slabs=2": dict(BM=64, BN=32, k_slabs=2, stages=2),
}
LAYOUTS = ["CC", "CF", "FC", "FF"]


operand = partial(normal, dtype=np.float16)


def bits(x: Any) -> list[int]:
    return x.view(np.uint16).tolist()  # type: ignore[no-any-return]


def both(a: Any, b: Any, *others: Any, usual: Any = USUAL, **options: Any) -> tuple[Any, Any]:
    """Multiply with the usual tile and with a tile of swap AB."""
    config = HopperConfig(**{"stages": 3, **options.pop("tile"), "swap_ab": True})
    return tuple(kernels.gemm(a, b, *others, config=config, **options) for config in (usual, config))


@pytest.mark.quick(1)
@pytest.mark.tensorcore_check
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_bits_are_those_of_the_usual_tile(tile, layout):
    """Two tiles by two or more, the last ones not full, K with a tail."""
    if layout[1] == "C" and tile.get("cluster_n"):  # whole boxes of 64 columns of B for each CTA
        tile = {**tile, "BM": 128}
    a, b = operand(136, 168, order=layout[0]), operand(168, 264, order=layout[1])
    usual, swap_ab = both(a, b, tile=tile)
    assert bits(usual) == bits(swap_ab)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("parts", [{"split_k": 2}, {"split_k": 2, "cluster_m": 2}, {"split_k": 4}], ids=str)
def test_parts_of_k(parts, dtype):
    a, b = operand(72, 520, dtype=dtype), operand(520, 200, dtype=dtype, order="F")
    usual = replace(USUAL, split_k=parts["split_k"], stages=2)
    actual = both(a, b, usual=usual, tile={"BM": 64, "BN": 32, **parts})
    assert bits(actual[0]) == bits(actual[1])


@pytest.mark.parametrize("N", [133, 132, 136], ids=["elements", "8 bytes", "TMA"])
def test_epilogues_and_lines_of_any_width(N):
    a, b, c = operand(72, 160), operand(160, N, order="F"), operand(72, N)
    bias = operand(1, N)[0]
    options: dict[str, Any] = {"alpha": 0.5, "beta": 2, "tile": {"BM": 64, "BN": 48}}
    addends: Any = (c, bias, operand(72, 1))
    for addend in addends:
        usual, swap_ab = both(a, b, addend, **options)
        assert bits(usual) == bits(swap_ab)
    options["epilogue"] = lambda value, row, col: value + row * 2 - col
    usual, swap_ab = both(a, b, c, **options)
    assert bits(usual) == bits(swap_ab)


def test_batches_and_sums_in_f16():
    a = np.stack([operand(72, 136, seed=i) for i in range(2)])
    for b in (operand(136, 80, order="F"), np.stack([operand(136, 80, seed=i) for i in range(2)])):
        usual, swap_ab = both(a, b, tile={"BM": 64, "BN": 80})
        assert bits(usual) == bits(swap_ab)
    usual, swap_ab = both(a[0], b[0], tile={"BM": 64, "BN": 80}, accumulate=tc.f16)
    assert bits(usual) == bits(swap_ab)


REFUSED = {
    "s8": (np.ones((64, 64), np.int8), {}, "not a product of s8"),
    "f32": (np.ones((64, 64), np.float32), {"config": replace(USUAL, k_slabs=2, stages=2, swap_ab=True)}, "not a product of f32"),
    "f32 result": (operand(64, 64), {"out_dtype": tc.f32}, "not D of f32"),
    "rows": (operand(64, 64), {"row_reductions": (kernels.RowReduction("max"),)}, "not row_reductions"),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("name", REFUSED)
def test_refuses_products_without_swap_ab(name):
    a, options, message = REFUSED[name]
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.gemm(a, a.T, **{"config": replace(USUAL, swap_ab=True), **options})


def test_boxes_of_columns_that_lie_side_by_side():
    """MN-major B, and with swap AB MN-major A, take widths that are no whole boxes."""
    a, b = operand(136, 168, order="F"), operand(168, 264, order="C")
    usual = kernels.gemm(a, b, config=USUAL)
    for changes in (
        {"BN": 80},
        {"BN": 208, "BM": 128},
        {"BN": 96, "pingpong": True},
        {"BN": 96, "swap_ab": True},
        {"BN": 112, "cluster_m": 2, "swap_ab": True},
        {"BN": 176, "cluster_m": 2},
    ):
        assert bits(kernels.gemm(a, b, config=replace(USUAL, **changes))) == bits(usual)


def test_stages_have_room_for_whole_boxes():
    config = HopperConfig(BM=128, BN=80).with_stages()
    along, across = ProblemShape(512, 512, 512), ProblemShape(512, 512, 512, b_k_major=False)
    assert as_loaded(config, along) == config
    assert as_loaded(config, across) == replace(config, stages=HopperConfig(BM=128, BN=128).max_stages)
    assert as_loaded(replace(config, swap_ab=True), across) == replace(config, swap_ab=True)


def test_choices_with_row_reductions_have_no_swap_ab():
    """Without row reductions some choices have it."""
    a, b, d = (np.empty(s, np.float16) for s in ((300, 4096), (4096, 4096), (300, 4096)))
    b, chosen = np.asfortranarray(b), []
    with tc.target("cpu", "sm_90a"):
        for M in range(16, 300, 16):
            operands = a[:M], b, None, d[:M]
            reduced = kernels.plan(*operands, row_reductions=(kernels.RowReduction("max"),)).config
            assert not reduced.swap_ab
            chosen.append(kernels.plan(*operands).config.swap_ab)
    assert any(chosen)


@pytest.mark.quick
def test_candidates():
    """Problems of tf32, or with a D of 16 bits, have candidates with swap AB if they have no epilogue."""
    shape = ProblemShape(300, 4096, 4096)
    assert any(c.swap_ab for c in menu().configs)
    assert any(c.swap_ab for c in candidates(shape, (WGMMA,)).configs)
    for changes in ({"itemsize": 1}, {"itemsize": 4, "out_bytes": 4}):
        assert any(c.swap_ab for c in candidates(replace(shape, **changes), (WGMMA,)).configs)
    for changes in ({"has_epilogue": True}, {"itemsize": 1, "out_bytes": 4}, {"out_bytes": 4}):
        assert not any(c.swap_ab for c in candidates(replace(shape, **changes), (WGMMA,)).configs)
    tall = HopperConfig(BM=128, BN=64)
    assert cluster_tiles(replace(tall, swap_ab=True), 64, 512) == cluster_tiles(tall, 512, 64) == 4
