"""The wgmma kernels in emulation: what `HopperConfig` offers, batches, results of any width.

Operands are small whole numbers, so that each sum is exact in any order. Grids are smaller than on
a GPU, so that each block has several tiles.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.tf32_gemm import tf32_gemm
from tensorcore_dsl.kernels.hopper.wgmma_gemm import half_gemm
from tensorcore_dsl.kernels.host.planning import plan
from tensorcore_dsl.kernels.problem.gemm_problem import FAST
from tests.whole_numbers import BF16, E4M3, E5M2, F16, exact, whole

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("on_hopper")]


def run_few_ctas(kernel: Any, config: HopperConfig, a: Any, b: Any, out: Any, **variant: Any) -> np.ndarray:
    """Multiply in one cluster. With split-K: in one cluster for each tile."""
    d = np.full((a.shape[0], b.shape[1]), 77, out)
    high, wide = config.BM * config.cluster_m, config.BN * config.cluster_n
    clusters = math.prod(-(-n // t) for n, t in zip(d.shape, (high, wide), strict=True))
    grid = config.cluster_size * (clusters if config.split_k > 1 else 1)
    scalars = (1, 0) if a.dtype.kind == "i" else (1.0, 0.0)
    launch = kernel.emulator("sm_90a")[grid, config.threads]
    launch(a, b, d, d, *scalars, config=config, traits=HopperTraits(**variant))
    return d


# -- what a configuration may have ----------------------------------------------------------------

FEATURES = {
    "BM=128": dict(BM=128, BN=64, stages=3),
    "mma_in_flight=0": dict(BM=64, BN=64, stages=2, mma_in_flight=0),
    "group_m=2": dict(BM=64, BN=64, stages=2, group_m=2),
    "cluster_m=2": dict(BM=64, BN=64, stages=2, cluster_m=2),
    "cluster_n=2": dict(BM=64, BN=64, stages=2, cluster_n=2),
    "cluster_m=2, cluster_n=2": dict(BM=64, BN=32, stages=3, cluster_m=2, cluster_n=2),
    "pingpong": dict(BM=64, BN=64, stages=3, pingpong=True),
    "pingpong, BM=128": dict(BM=128, BN=32, stages=2, pingpong=True),
    "pingpong, cluster_m=2": dict(BM=64, BN=64, stages=2, pingpong=True, cluster_m=2),
    "pingpong, cluster_n=2": dict(BM=64, BN=64, stages=5, pingpong=True, cluster_n=2),
    "pingpong, mma_in_flight=0": dict(BM=64, BN=64, stages=2, pingpong=True, mma_in_flight=0),
    "split_k=2": dict(BM=64, BN=64, stages=2, split_k=2),
    "split_k=4": dict(BM=128, BN=128, stages=2, split_k=4),
    "split_k=2, cluster_m=2": dict(BM=64, BN=64, stages=2, split_k=2, cluster_m=2),
    "split_k=3, cluster_n=2": dict(BM=64, BN=96, stages=2, split_k=3, cluster_n=2),
    "split_k=2, cluster_m=2, cluster_n=2": dict(BM=64, BN=32, stages=3, split_k=2, cluster_m=2, cluster_n=2),
    "split_k=5": dict(BM=64, BN=48, stages=2, split_k=5),
    "split_k=8": dict(BM=64, BN=16, stages=3, split_k=8),
    "k_slabs=2": dict(BM=64, BN=64, stages=2, k_slabs=2),
    "k_slabs=3, pingpong": dict(BM=64, BN=64, stages=2, k_slabs=3, pingpong=True),
    "k_slabs=2, cluster_n=2": dict(BM=64, BN=64, stages=2, k_slabs=2, cluster_n=2),
}


@pytest.mark.tensorcore_check
@pytest.mark.parametrize("name", FEATURES)
def test_every_feature(name):
    """Three tiles by three, or more, none of the last ones full; K is part of a stage, or has a tail."""
    config = HopperConfig(**FEATURES[name])
    for K in (8, 328):
        a, b = whole(136, K), whole(K, 168, order="F")
        assert np.array_equal(run_few_ctas(half_gemm, config, a, b, np.float32), exact(a, b)), K


TYPES = [(BF16, BF16), (F16, F16), (E4M3, BF16), (np.int8, np.int32), (np.float32, np.float32)]


@pytest.mark.quick
@pytest.mark.parametrize(("dtype", "out"), TYPES, ids=[str(np.dtype(t)) for t, _ in TYPES])
def test_every_type_with_pingpong(dtype, out):
    a, b = whole(136, 336, dtype=dtype, most=1), whole(336, 168, dtype=dtype, most=1, order="F")
    config = HopperConfig(BM=64, BN=32, stages=3, pingpong=True, cluster_n=2)
    d = np.empty((136, 168), out)
    accumulate = FAST if dtype == E4M3 else None
    precision = "tf32" if dtype == np.float32 else None
    kernel = plan(a, b, None, d, accumulate=accumulate, precision=precision, config=config).kernel
    assert np.array_equal(run_few_ctas(kernel, config, a, b, out).astype(float), exact(a, b))


@pytest.mark.parametrize("name", ["pingpong, cluster_n=2", "split_k=2"])
def test_sums_in_f16(name):
    a, b = whole(136, 328, dtype=F16), whole(328, 168, dtype=F16, order="F")
    product = run_few_ctas(half_gemm, HopperConfig(**FEATURES[name]), a, b, F16, acc_dtype=tc.f16)
    assert np.array_equal(product.astype(float), exact(a, b))


def test_sums_in_f16_are_rounded():
    """2048 + 1 is 2048 in f16; an instruction has 16 of K."""
    a, b = np.zeros((8, 80), F16), np.ones((80, 8), F16, order="F")
    a[:, ::16], a[:, 0] = 1, 2048
    config = HopperConfig(BM=64, BN=16, stages=2)
    sums = [kernels.gemm(a, b, accumulate=x, config=config) for x in (tc.f16, None)]
    assert (sums[0] == 2048).all() and (sums[1] == 2052).all()


MN_MAJOR = {
    "plain, FF": dict(stages=2),
    "pingpong, FC": dict(stages=3, pingpong=True),
    "pingpong, CC": dict(stages=2, pingpong=True, BM=64),
    "cluster_m, FC": dict(stages=2, cluster_m=2),
    "cluster_n, FC": dict(stages=2, cluster_n=2, pingpong=True, BN=64),
    "k_slabs=2, FC": dict(stages=2, k_slabs=2, BM=64, BN=64),
    "split, CC": dict(stages=2, split_k=2, BM=64, BN=64),
}


@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["bf16", "tf32"])
@pytest.mark.parametrize("name", MN_MAJOR)
def test_other_layouts(name, dtype):
    """Orders of A and B, where K is contiguous in one of them, or in none.

    Fragments are read of tf32 in A, tiles of B are transposed.
    """
    of_a, of_b = name[-2:]
    a, b = whole(136, 200, dtype=dtype, order=of_a), whole(200, 264, dtype=dtype, order=of_b)
    config = HopperConfig(**{"BM": 128, "BN": 128, **MN_MAJOR[name]})
    majors = {"a_k_major": of_a == "C", "b_k_major": of_b == "F"}
    kernel = tf32_gemm if dtype == np.float32 else half_gemm
    product = run_few_ctas(kernel, config, a, b, np.float32, **majors)
    assert np.array_equal(product, exact(a, b))


SWAP_AB_TF32 = {
    "fragments of B, CC": dict(BM=64, BN=80, stages=3),
    "deep, CC": dict(BM=64, BN=64, stages=2, k_slabs=2),
    "cluster_m, CC": dict(BN=64, stages=3, cluster_m=2),
    "pingpong, CC": dict(BN=96, stages=3, pingpong=True),
    "split, CC": dict(BM=64, BN=64, stages=2, split_k=2),
    "neither, CF": dict(BN=48, stages=3, cluster_n=2),
    "A transposed, FF": dict(BM=64, BN=64, stages=3),
    "both, FC": dict(BM=64, BN=64, stages=3),
}


@pytest.mark.tensorcore_check
@pytest.mark.parametrize("name", SWAP_AB_TF32)
def test_swapped_tf32(name):
    """A transposed result of 32 bits; its lines are stored by TMA, or by threads."""
    of_a, of_b = name[-2:]
    config = HopperConfig(**SWAP_AB_TF32[name], swap_ab=True)
    for N in (136, 135):
        a, b = whole(100, 200, dtype=np.float32, order=of_a), whole(200, 136, dtype=np.float32, order=of_b)
        d = np.full((100, N), 77, np.float32)
        kernels.gemm(a, b[:, :N], out=d, precision="tf32", config=config)
        assert np.array_equal(d, exact(a, b[:, :N]))


@pytest.mark.parametrize("orders", ["FC", "CC", "FF"])
def test_transposed_tiles_have_the_bits_of_others(orders):
    """A batch, with row reductions, and tiles that reach beyond A, B and K."""
    draw = np.random.default_rng(4)
    a, b = (draw.standard_normal(s).astype(np.float32) for s in ((2, 72, 104), (104, 40)))
    laid_out = a if orders[0] == "C" else a.swapaxes(1, 2).copy().swapaxes(1, 2), np.array(b, order=orders[1])
    config, rows = HopperConfig(BM=64, BN=64, stages=2), (kernels.RowReduction("sum"),)
    product, usual = (
        kernels.gemm(*operands, precision="tf32", config=config, row_reductions=rows)
        for operands in (laid_out, (a, np.asfortranarray(b)))
    )
    assert all(x.tobytes() == y.tobytes() for x, y in zip(product, usual, strict=True))
    d = np.empty((2, 72, 40), np.float32)
    assert not kernels.plan(*laid_out, None, d, precision="tf32", config=config).copies


def test_tiles_that_are_not_transposed():
    """Configurations that transpose none, or not in whole blocks, get copies."""
    a, b, d = (whole(*s, dtype=np.float32) for s in ((136, 64), (64, 256), (136, 256)))
    for config, copied in (
        (HopperConfig(BN=192, pingpong=True, stages=3), True),
        (HopperConfig(BN=48, stages=3), True),
        (HopperConfig(BN=64, stages=3), False),
    ):
        planned = kernels.plan(a, b, None, d, precision="tf32", config=config)
        assert [copy.argument for copy in planned.copies] == [1] * copied


FEW_ROWS = [{}, {"split_k": 2}, {"k_slabs": 4, "stages": 2}]


@pytest.mark.parametrize("more", FEW_ROWS, ids=str)
def test_few_rows(more):
    """Rows of a tile beyond A are loaded as zeros, or not at all."""
    config = HopperConfig(**{"BM": 64, "BN": 32, "stages": 5, **more})
    for M in (1, 7, 16):
        a, b = whole(M, 584), whole(584, 104, order="F")
        assert np.array_equal(run_few_ctas(half_gemm, config, a, b, np.float32), exact(a, b))


REFUSED = [
    (dict(group_m=0), "k_slabs and group_m are 1 or more"),
    (dict(k_slabs=0), "k_slabs and group_m are 1 or more"),
    (dict(BM=96), "BM is 64, 128, ..., 448, and BN 16 to 256"),
    (dict(BN=264), "BM is 64, 128, ..., 448, and BN 16 to 256"),
    (dict(BN=8), "BM is 64, 128, ..., 448, and BN 16 to 256"),
    (dict(BM=512), "BM is 64, 128, ..., 448, and BN 16 to 256"),
    (dict(split_k=17), r"cluster_m \* cluster_n \* split_k, the CTAs of a cluster, is at most 16"),
    (
        dict(cluster_m=4, cluster_n=8),
        r"cluster_m \* cluster_n \* split_k, the CTAs of a cluster, is at most 16",
    ),
    (dict(k_slabs=40), r"a stage, \(BM \+ BN\) \* k_slabs \* 128 bytes, exceeds shared memory"),
    (dict(BN=100), "BN is a multiple of 8"),
    (dict(stages=1), "the pipeline needs more stages than mma_in_flight"),
    (dict(mma_in_flight=2), "mma_in_flight is 0 or 1"),
    (dict(pingpong=True, split_k=2), "the ping-pong schedule has no split-K"),
]


def test_columns_of_s8():
    a, b = np.zeros((64, 128), np.int8), np.zeros((128, 64), np.int8, "F")
    with tc.target("cpu", "sm_90a"):
        with pytest.raises(tc.ArgumentError, match="s8 products take BN = 24 or a multiple of 16"):
            kernels.plan(a, b, None, None, config=HopperConfig(BM=64, BN=40).with_stages(4))
        assert kernels.plan(a, b, None, None, config=HopperConfig(BM=64, BN=24).with_stages(4))


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_configurations_that_cannot_be(changes, message):
    with pytest.raises(tc.ArgumentError, match=message) as error:
        HopperConfig(**changes)
    assert all(f"{name}={value}" in str(error.value) for name, value in changes.items())


# Boxes of TMA that do not come out even among the CTAs that share a tile: one that is cut along K,
# fewer than CTAs, and none of 8 lines for the last CTA.
SHARES = [
    ("FF", dict(cluster_n=2)), ("CC", dict(cluster_m=2)), ("FC", dict(cluster_m=2, cluster_n=4)),
    ("CF", dict(BN=16, cluster_m=4)), ("CF", dict(BN=112, cluster_m=4)), ("CC", dict(cluster_n=3)),
    ("CC", dict(BN=176, cluster_m=2)), ("FC", dict(BN=136, cluster_m=3)),
]  # fmt: skip


@pytest.mark.parametrize(("orders", "changes"), SHARES, ids=str)
@pytest.mark.parametrize("dtype", [F16, np.float32])
def test_ctas_that_share_few_boxes(orders, changes, dtype):
    a = whole(200, 200, dtype=dtype, order=orders[0])
    b = whole(200, 336, dtype=dtype, order=orders[1])
    if dtype == np.float32 and orders[1] == "C":  # transposed in blocks of 32 columns
        changes = changes | {"BN": 64}
    config = HopperConfig(**{"BM": 64, "BN": 64, "stages": 2, **changes})
    precision = "tf32" if dtype == np.float32 else None
    product = kernels.gemm(a, b, config=config, precision=precision)
    assert np.array_equal(product, exact(a, b).astype(dtype))


@pytest.mark.parametrize("BN", [216, 232, 240, 256])
def test_wide_promoted_tiles_are_multiplied_in_equal_parts(BN):
    a, b = whole(70, 256, dtype=E4M3), whole(256, 480, dtype=E4M3, order="F")
    product = kernels.gemm(a, b, config=HopperConfig(BM=64, BN=BN, stages=2))
    assert np.array_equal(product, exact(a, b).astype(product.dtype))


def test_eight_columns_of_one_byte():
    """TMA stores no rows of 8 bytes: threads do."""
    a, b = whole(100, 64, dtype=np.int8), whole(64, 208, dtype=np.int8, order="F")
    product = kernels.requantised_gemm(a, b, scale=1.0, config=HopperConfig(BM=64, BN=24, stages=2))
    assert np.array_equal(product, exact(a, b).clip(-128, 127).astype(np.int8))


EIGHTS = [
    dict(BN=24),
    dict(BN=88),
    dict(BN=136, pingpong=True),
    dict(BN=88, split_k=2),
    dict(BN=200, BM=128),
    dict(BN=72, cluster_m=2),
    dict(BN=120, cluster_n=2),
]


@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("changes", EIGHTS, ids=str)
def test_tiles_of_an_odd_number_of_eight_columns(changes, swap_ab):
    """Stored by TMA, by vectors and by elements, to 16 and to 32 bits."""
    config = HopperConfig(**{"BM": 64, "stages": 2, "swap_ab": swap_ab, **changes})
    for N, out in ((336, F16), (332, F16), (337, F16), (336, np.float32))[: 3 if swap_ab else 4]:
        a, b = whole(201, 200, dtype=F16), whole(200, N, dtype=F16, order="F")
        d = np.zeros((201, N), out)
        kernels.gemm(a, b, out=d, config=config)
        assert np.array_equal(d, exact(a, b).astype(out))


AT_EDGES = [
    dict(BM=128, BN=128), dict(BM=128, BN=64, cluster_m=2), dict(BM=64, BN=128, cluster_n=2),
    dict(BM=128, BN=64, swap_ab=True, cluster_m=2),
    dict(BM=320, BN=32), dict(BM=384, BN=32, pingpong=True),
]  # fmt: skip


@pytest.mark.parametrize("changes", AT_EDGES, ids=str)
def test_tiles_at_the_edge_are_loaded_in_smaller_boxes(changes):
    """Beside tiles inside of the operands; those of more lines than a box has in smaller ones, too."""
    config = HopperConfig(**{"stages": 2, **changes})
    M = config.BM * config.cluster_m + 40
    for batch in ((), (2,)):
        a, b = whole(*batch, M, 72, dtype=F16), whole(*batch, 300, 72, dtype=F16).swapaxes(-1, -2)
        product = kernels.gemm(a, b, config=config)
        assert np.array_equal(product, exact(a, b).astype(F16))


@pytest.mark.parametrize("name", FEATURES)
def test_stages_fill_shared_memory(name):
    config = HopperConfig(**FEATURES[name]).with_stages(99)
    slot = (config.BM + config.BN) * 128 * config.k_slabs
    buffers = config.staging_buffers(config.BN)
    free = 227 * 1024 - 1024 - config.stages * slot
    assert 0 <= free - config.epilogue_bytes(1) < slot
    assert (buffers == 2) == (config.epilogue_bytes(2) <= free)
    assert HopperConfig(**FEATURES[name]).with_stages(2).stages == 2


# -- operands of gemm -----------------------------------------------------------------------------


@pytest.mark.parametrize("N", [77, 81], ids=["less than a box", "more"])
@pytest.mark.parametrize("pingpong", [False, True])
def test_results_whose_rows_tma_cannot_write(N, pingpong):
    a, b = whole(136, 72), whole(72, N, order="F")
    config = HopperConfig(BM=64, BN=32, stages=2, pingpong=pingpong)
    room = np.full((136, N + 2), 99, BF16)
    product = kernels.gemm(a, b, out=room[:, :N], config=config)
    assert np.array_equal(product.astype(float), exact(a, b))
    assert (room[:, N:] == 99).all()


BATCHES = {"both": (3, 3), "one A": (0, 3), "one B": (3, 0)}


@pytest.mark.parametrize("which", BATCHES)
def test_batches(which):
    of_a, of_b = BATCHES[which]
    N = 77 if which == "one B" else 72
    a, b = whole(*[of_a][: of_a > 0], 72, 136), whole(*[of_b][: of_b > 0], 136, N, order="F")
    c = whole(3, 72, N, most=9)
    config = HopperConfig(BM=64, BN=32, stages=3, pingpong=N == 72)
    product = kernels.gemm(a, b, c, alpha=2, beta=-3, config=config, out_dtype=tc.f32)
    assert np.array_equal(product, 2 * exact(a, b) - 3 * c.astype(float))


@pytest.mark.parametrize("name", ["pingpong, cluster_n=2", "split_k=2", "k_slabs=2"])
def test_batches_with_every_division_of_work(name):
    a, b = whole(3, 72, 136), whole(3, 136, 72)
    product = kernels.gemm(a, b, config=HopperConfig(**FEATURES[name]), out_dtype=tc.f32)
    assert np.array_equal(product, exact(a, b))


def test_batches_choose_a_kernel():
    a, b = whole(2, 16, 64, dtype=F16), whole(2, 64, 24, dtype=F16, order="F")
    assert np.array_equal(kernels.gemm(a, b).astype(float), exact(a, b))
    assert kernels.gemm(a[:, :, :0], b[:, :0]).shape == (2, 16, 24)


COLUMNS = [(5, 1, 40), (1, 1, 17), (1, 1, 1), (9, 1, 1)]


@pytest.mark.parametrize("dtype", [BF16, E5M2], ids=str)
@pytest.mark.parametrize("shape", COLUMNS, ids=str)
def test_rows_and_columns_of_one_element(shape, dtype):
    """Both strides of a column are 1, as a matrix's lines are not."""
    M, N, K = shape
    a, b = np.zeros((M, 48), dtype)[:, :K], whole(K, N, dtype=dtype, most=2)
    a[:] = whole(M, K, dtype=dtype, most=2)
    assert np.array_equal(kernels.gemm(a, b, family="sm90").astype(float), exact(a, b))


def test_reversed_views():
    """TMA goes forward only: operands are copied, results are written by threads."""
    a, b, room = whole(72, 64), whole(64, 24), np.full((72, 24), 77, np.float32)
    product = kernels.gemm(a[::-1], b[:, ::-1], out=room[::-1], family="sm90")
    assert np.array_equal(product, exact(a[::-1], b[:, ::-1]))
    assert np.array_equal(room, exact(a, b[:, ::-1]))


def checkered(value, row, col):
    """The place of an element, to tell rows from columns."""
    return tc.select((row + col) % 2 == 0, value + 100 * row.to(tc.f32), value - col.to(tc.f32))


@pytest.mark.parametrize(("name", "N"), [("group_m=2", 77), ("pingpong, cluster_n=2", 72), ("split_k=2", 72)])
def test_finished_results(name, N):
    a, b, c = whole(136, 72), whole(72, N, order="F"), whole(136, N)
    product = kernels.gemm(
        a, b, c, beta=2, epilogue=checkered, out_dtype=tc.f32, config=HopperConfig(**FEATURES[name])
    )
    row, col = np.indices(product.shape)
    wanted = exact(a, b) + 2 * c.astype(float)
    assert np.array_equal(product, np.where((row + col) % 2 == 0, wanted + 100 * row, wanted - col))


ONLY_SM90: list[Any] = [
    (dict(a=whole(2, 16, 64)), "cannot take this product: they multiply single matrices, no batches"),
    (dict(a=whole(16, 64, dtype=E4M3), b=whole(64, 16, dtype=E4M3)), "cannot take this product: they have no e4m3"),
    (dict(config=HopperConfig()), "must be a kernels.AmpereConfig or VectorConfig for sm80, or a kernels.HopperConfig for sm90, and sm80 was"),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), ONLY_SM90, ids=[m for _, m in ONLY_SM90])
def test_products_that_mma_kernels_refuse(changes, message):
    arguments = {"a": whole(16, 64), "b": whole(64, 16), **changes}
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.gemm(**arguments, family="sm80")
