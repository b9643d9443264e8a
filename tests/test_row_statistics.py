"""Sums, maxima and minima of rows that `gemm(..., row_reductions=...)` finds beside the product."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import RowReduction
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.hopper.row_reduction import combine_parts
from tensorcore_dsl.kernels.host.planning import plan
from tensorcore_dsl.kernels.host.row_reductions import allocate_partials
from tensorcore_dsl.kernels.problem import families
from tensorcore_dsl.kernels.problem.gemm_problem import FAST
from tensorcore_dsl.runtime import driver
from tests import whole_numbers
from tests.assembler import assert_clean
from tests.fake_gpu import fake_cupy

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("on_hopper")]

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
F16, F32, S8 = np.float16, np.float32, np.int8


def square(value: Any) -> Any:
    return value * value


SQUARES, SUM = RowReduction("sum", transform=square), RowReduction("sum")
MOST, LEAST = RowReduction("max"), RowReduction("min")


whole = partial(whole_numbers.whole, most=2)  # sums of squares are exact


def small(**changes: Any) -> HopperConfig:
    return HopperConfig(**{"BM": 64, "BN": 32, "stages": 3, **changes})


# -- values ---------------------------------------------------------------------------------------

ALL = (SQUARES, MOST, LEAST)


def check(a: np.ndarray, b: np.ndarray, config: HopperConfig, **options: Any) -> None:
    """D and ALL of its rows, against products in f64."""
    d, statistics = kernels.gemm(a, b, row_reductions=ALL, config=config, **options)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(d.astype(np.float64), exact.astype(d.dtype))
    assert statistics.dtype == (np.int32 if a.dtype == S8 else F32)
    assert np.array_equal(statistics, [(exact**2).sum(-1), exact.max(-1), exact.min(-1)])


KINDS = {
    "bf16": (BF16, {}),
    "f16": (F16, {}),
    "sums in f16": (F16, {"accumulate": tc.f16}),
    "tf32": (F32, {"precision": "tf32"}),
    "s8": (S8, {}),
    "fp8": (E4M3, {"out_dtype": tc.f16}),
    "fast fp8": (E5M2, {"accumulate": FAST, "out_dtype": tc.f32}),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", KINDS)
def test_every_type(name):
    """Two tiles by two, the last ones not full."""
    dtype, options = KINDS[name]
    check(whole(72, 80, dtype=dtype), whole(80, 56, dtype=dtype, order="F"), small(), **options)


FEATURES = {
    "two consumers": dict(BM=128, BN=48),
    "narrow tiles": dict(BN=16),
    "pingpong": dict(pingpong=True),
    "pingpong, BM=128": dict(BM=128, pingpong=True),
    "cluster_m, cluster_n": dict(cluster_m=2, cluster_n=2),
    "split_k=2": dict(BN=64, split_k=2),
    "split_k=4": dict(BN=64, split_k=4),
}


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature(name):
    check(whole(136, 264), whole(264, 88, order="F"), small(**FEATURES[name]), out_dtype=tc.f32)


@pytest.mark.parametrize("name", ["pingpong", "split_k=2"])
def test_other_types_of_features(name):
    a, b = whole(72, 144, dtype=S8), whole(144, 56, dtype=S8, order="F")
    check(a, b, small(**FEATURES[name]))


@pytest.mark.parametrize("orders", ["CC", "FC", "FF"])
def test_other_layouts(orders):
    a, b = whole(72, 80, order=orders[0]), whole(80, 104, order=orders[1])
    check(a, b, small(BN=64), out_dtype=tc.f32)


@pytest.mark.parametrize("columns", [1, 37, 65])
def test_results_that_threads_write(columns):
    """Rows of D start anywhere."""
    check(whole(70, 80), whole(80, columns, order="F"), small(), out_dtype=tc.f32)


@pytest.mark.parametrize(("of_a", "of_b"), [((3,), (3,)), ((3,), ()), ((), (3,))])
def test_batches(of_a, of_b):
    check(whole(*of_a, 72, 136), whole(*of_b, 136, 104), small(BN=64), out_dtype=tc.f32)


def test_the_tile_that_gemm_chooses():
    a, b = whole(130, 64), whole(64, 264, order="F")
    d, statistics = kernels.gemm(a, b, row_reductions=[MOST])
    assert np.array_equal(statistics[0], d.max(1).astype(F32))


def test_results_are_finished_but_not_rounded():
    """After alpha, C and the function; sums of what D in f16 rounds to infinity, and loses."""
    a, b, c = (
        whole(*shape, dtype=F16, order=o) for *shape, o in ((72, 80, "C"), (80, 56, "F"), (72, 56, "C"))
    )
    finish = lambda value, row, col: value * 4096 + (row + col).to(tc.f32)  # noqa: E731
    d, (total, most) = kernels.gemm(
        a, b, c, alpha=2, beta=3, epilogue=finish, row_reductions=(SUM, MOST), config=small()
    )
    exact = 2 * (a.astype(float) @ b.astype(float)) + 3 * c.astype(float)
    exact = exact * 4096 + np.add.outer(np.arange(72), np.arange(56))
    assert np.isinf(d).any()
    assert np.array_equal(total, exact.sum(1))
    assert np.array_equal(most, exact.max(1))


def test_a_function_of_s8_products_works_on_s32():
    a, b = whole(40, 64, dtype=S8), whole(64, 48, dtype=S8, order="F")
    odd = RowReduction("sum", transform=lambda v: v & 1)
    _, (statistics,) = kernels.gemm(a, b, row_reductions=(odd,), config=small())
    assert np.array_equal(statistics, (a.astype(int) @ b.astype(int) % 2).sum(1))


def test_columns_outside_do_not_count():
    """Not even where the function makes something of the zeros there."""
    a, b = whole(40, 64), whole(64, 72, order="F")
    finish = lambda value, row, col: value - 1000  # noqa: E731
    ones = RowReduction("sum", transform=lambda v: tc.f32(1))
    d, statistics = kernels.gemm(
        a, b, epilogue=finish, row_reductions=(MOST, ones), config=small(), out_dtype=tc.f32
    )
    assert np.array_equal(statistics, [d.max(1), np.full(40, 72)])


def test_extremes_pass_over_nan():
    a, b = whole(64, 64), whole(64, 72, order="F")
    nan = float("nan")
    finish = lambda v, row, col: tc.select((row == 5) | (col % 3 == 1), nan, v)  # noqa: E731
    d, statistics = kernels.gemm(
        a, b, epilogue=finish, row_reductions=(MOST, LEAST, SUM), config=small(), out_dtype=tc.f32
    )
    numbers = np.delete(np.arange(64), 5)
    assert np.array_equal(statistics[0, numbers], np.nanmax(d[numbers], 1))
    assert np.array_equal(statistics[1, numbers], np.nanmin(d[numbers], 1))
    assert (statistics[:2, 5] == [-np.inf, np.inf]).all()
    assert np.isnan(statistics[2]).all()


# -- the order of sums ----------------------------------------------------------------------------


def in_documented_order(values: np.ndarray, width: int) -> np.ndarray:
    """f32 sums of rows: threads, then quads, then parts of `width` columns."""
    total = None
    for first in range(0, values.shape[1], width):
        lanes = np.zeros((4, len(values)), F32)
        for col in range(first, min(first + width, values.shape[1])):
            lanes[col // 2 % 4] += values[:, col]
        part = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
        total = part if total is None else total + part
    return total


ORDERS = {
    "plain": (64, dict(BN=64)),
    "pingpong": (32, dict(pingpong=True)),
    "split": (32, dict(BN=64, split_k=2)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_sums_are_added_in_the_documented_order(name):
    width, changes = ORDERS[name]
    draw = np.random.default_rng(3).standard_normal
    a, b = draw((72, 200)).astype(BF16), np.asfortranarray(draw((200, 104)).astype(BF16))
    options: dict[str, Any] = dict(row_reductions=(SUM, SQUARES), config=small(**changes))
    d, statistics = kernels.gemm(a, b, out_dtype=tc.f32, **options)
    assert statistics[0].tobytes() == in_documented_order(d, width).tobytes()
    assert statistics[1].tobytes() == in_documented_order(d * d, width).tobytes()
    assert statistics[0].tobytes() != d.sum(1).tobytes()  # else this shows nothing
    rounded, again = kernels.gemm(a, b, **options)
    assert np.array_equal(rounded, d.astype(BF16))
    assert again.tobytes() == statistics.tobytes()


# -- calls ----------------------------------------------------------------------------------------


def test_arrays_for_both_results():
    a, b = whole(2, 40, 64), whole(64, 48, order="F")
    d, statistics = np.empty((2, 40, 48), F32), np.empty((40, 2, 2), F32).T
    actual = kernels.gemm(a, b, row_reductions=(SUM, MOST), out=d, row_out=statistics, config=small())
    assert actual[0] is d
    assert actual[1] is statistics
    assert np.array_equal(statistics, [d.sum(2), d.max(2)])


def test_prepared_launches_are_told_apart():
    """Calls that differ in `rows`, or in which array is which, by the same shapes and types."""
    a, b = whole(48, 64), whole(64, 48, order="F")
    d = a.astype(F32) @ b.astype(F32)
    room = np.empty((48, 48), F32)
    for _ in range(2):
        for rows, value in (((SUM,), d.sum(1)), ((MOST,), d.max(1)), ((LEAST,), d.min(1))):
            actual = kernels.gemm(a, b, row_reductions=rows, config=small(), out_dtype=tc.f32)[1]
            assert np.array_equal(actual[0], value)
        many = (SUM,) * 48
        statistics = kernels.gemm(
            a, b, row_reductions=many[:1], row_out=room[:1], config=small(), out_dtype=tc.f32
        )[1]
        assert np.array_equal(statistics, [d.sum(1)])
        assert kernels.gemm(a, b, out=room, family="sm90", config=small()) is room
        assert np.array_equal(room, d)


def test_products_without_statistics_are_as_before():
    a, b = whole(64, 64), whole(64, 64, order="F")
    d = np.empty((64, 64), BF16)
    without, beside = (plan(a, b, None, d, config=small(), row_reductions=r) for r in ((), (SUM,)))
    assert without.workspace(a) == ()
    assert [x.shape for x in beside.workspace(a)] == [(1, 2, 64)]
    assert "shfl.sync.bfly" not in without.kernel.ptx(a, b, d, d, 1.0, 0.0, **dict(without.options))
    assert np.array_equal(
        kernels.gemm(a, b, config=small()), kernels.gemm(a, b, config=small(), row_reductions=(SUM,))[0]
    )


def test_rows_without_elements():
    d, statistics = kernels.gemm(whole(5, 16), whole(16, 0), row_reductions=(SUM, MOST, LEAST))
    assert d.shape == (5, 0)
    assert np.array_equal(statistics, np.repeat([[0], [-np.inf], [np.inf]], 5, axis=1))
    d, statistics = kernels.gemm(whole(5, 16, dtype=S8), whole(16, 0, dtype=S8), row_reductions=(MOST, LEAST))
    assert np.array_equal(statistics, np.repeat([[-(2**31)], [2**31 - 1]], 5, axis=1))
    _, statistics = kernels.gemm(whole(3, 0, 16), whole(16, 8), row_reductions=(SUM, MOST))
    assert statistics.shape == (2, 3, 0)


# -- refusals -------------------------------------------------------------------------------------

SQUARE = np.ones((64, 64), F16)
REFUSED: list[tuple[dict[str, Any], str]] = [
    (dict(row_reductions=("sum",)), "row_reductions is ('sum',); a tuple of kernels.RowReduction is needed"),
    (dict(row_reductions=SUM), "a tuple of kernels.RowReduction is needed"),
    (dict(row_out=np.ones((1, 64), F32)), "row_out is given without row_reductions"),
    (dict(row_reductions=(SUM,), row_out=np.ones((1, 64))),
     "row_out holds f64 and has shape (1, 64); they must be f32 and (1, 64)"),
    (dict(row_reductions=(SUM, SUM), row_out=np.ones((1, 64), F32)), "must be f32 and (2, 64)"),
    (dict(row_reductions=(SUM,), row_out=np.broadcast_to(F32(0), (1, 64))), "row_out is read-only"),
    (dict(row_reductions=(SUM,), family="sm80"),
     "the mma.sync kernels cannot take this product: they have no row reductions"),
    (dict(row_reductions=(SUM,), config=kernels.AmpereConfig()), "they have no row reductions"),
    (dict(row_reductions=(SUM,), a=np.ones((64, 64)), b=np.ones((64, 64))),
     "they have no f64; nor can the mma.sync kernels: they have no row reductions"),
    (dict(row_reductions=(SUM,), a=kernels.compress(SQUARE, prune=True)), "a is a SparseMatrix; only dense products have"),
    (dict(row_reductions=SQUARE, a=kernels.compress(SQUARE, prune=True)), "only dense products have `row_reductions`"),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_wrong_reductions_are_refused(changes, message):
    with pytest.raises(tc.ArgumentError) as error:
        kernels.gemm(**{"a": SQUARE, "b": SQUARE, **changes})
    assert message in str(error.value)


@pytest.mark.quick
def test_statistics_that_there_are_not():
    with pytest.raises(tc.ArgumentError, match="op is 'mean'; allowed are sum, max, min"):
        RowReduction("mean")
    with pytest.raises(tc.ArgumentError, match="transform is 2; a function transform"):
        RowReduction("sum", transform=2)  # type: ignore[arg-type]
    with pytest.raises(
        tc.ArgumentError, match=r"transform is <lambda>\(v, w\); a function transform\(value\)"
    ):
        RowReduction("sum", transform=lambda v, w: v * w)  # type: ignore[misc]


# -- memory, and the assembler --------------------------------------------------------------------


def test_parts_come_from_the_memory_of_their_stream(monkeypatch):
    """Where else they lay, another stream could be given them before the launch has ended."""
    made: list[tuple[int, Any]] = []
    current = fake_cupy(monkeypatch, lambda shape, dtype: made.append((current[0], shape)))
    like = type("ndarray", (), {"__module__": "cupy"})()
    allocate_partials(like, (1, 2, 3), tc.f32, None)
    allocate_partials(like, (1, 2, 3), tc.f32, SimpleNamespace(ptr=77))
    assert made == [(0, (1, 2, 3)), (77, (1, 2, 3))]
    assert current == [0]


ASSEMBLED = [
    (BF16, BF16, None, (8192, 8192)),
    (F32, F32, None, (8192, 8184)),
    (E4M3, BF16, None, (8192, 8192)),
    (S8, np.int32, HopperConfig(BN=128), (1024, 1000)),
]


@pytest.mark.filterwarnings("error::tensorcore_dsl.PerformanceWarning")
@pytest.mark.parametrize(("dtype", "out", "config", "size"), ASSEMBLED)
def test_row_reductions_assemble_without_warnings(dtype, out, config, size):
    """With C and scalars, which take registers too; tiles as they are chosen."""
    check_assembled(dtype, out, config, size)


@pytest.mark.filterwarnings("error::tensorcore_dsl.PerformanceWarning")
def test_tiles_where_no_thread_has_more_registers(monkeypatch):
    """Without ptxas: tiles are chosen that an equal share is enough for."""
    monkeypatch.setenv("TENSORCORE_DSL_PTXAS", "off")
    monkeypatch.setattr(families, "gives_registers", lambda: False)
    check_assembled(F32, F32, None, (8192, 8192))


def check_assembled(dtype: Any, out: Any, config: Any, size: tuple[int, int]) -> None:
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    M, N = size
    a, b, d = np.empty((M, 1024), dtype), np.empty((1024, N), dtype, "F"), np.empty(size, out)
    rows = (SQUARES, MOST, LEAST)
    planned = plan(a, b, d, d, alpha=2, beta=1, family="sm90", row_reductions=rows, config=config)
    number = int if dtype == S8 else float
    used = planned.kernel.resources(
        a, b, d, d, number(2), number(1), *planned.workspace(a), arch="sm_90a", **dict(planned.options)
    )
    assert_clean(used)


def test_combining_is_assembled_too():
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    parts, statistics = np.empty((2, 3, 64), F32), np.empty((2, 64), F32)
    used = combine_parts.resources(parts, statistics, arch="sm_90a", reductions=(SUM, MOST))
    assert_clean(used)


# -- on a GPU -------------------------------------------------------------------------------------

HOPPER = pytest.mark.skipif(
    not driver.cuda_available() or driver.compute_capability() != 90, reason="needs sm_90a"
)


@HOPPER
@pytest.mark.gpu
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("kind", ["bf16", "tf32", "s8"])
def test_a_gpu_finds_the_bits_of_the_emulator(name, kind):
    dtype, precision = KINDS[kind]
    draw = np.random.default_rng(7).standard_normal
    a, b = (9 * draw((136, 272))).astype(dtype), (9 * draw((88, 272))).astype(dtype).T
    options: dict[str, Any] = dict(row_reductions=ALL, config=small(**FEATURES[name]), **precision)
    here = kernels.gemm(a, b, **options)
    with tc.target("cuda"):
        there = kernels.gemm(a, b, **options)
    assert [x.tobytes() for x in here] == [x.tobytes() for x in there]


@HOPPER
@pytest.mark.gpu
def test_streams_and_graphs_take_both_launches():
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(512, 512, device="cuda").bfloat16() for _ in range(2))
    options: dict[str, Any] = dict(row_reductions=(SUM, MOST), family="sm90")
    with tc.target("cuda"):
        want = kernels.gemm(a, b, **options)[1]
        torch.cuda.synchronize()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        statistics = kernels.gemm(a, b, stream=stream, **options)[1]
        stream.synchronize()
        assert torch.equal(statistics, want)
        with torch.cuda.graph(graph):
            statistics = kernels.gemm(a, b, **options)[1]
        statistics.zero_()
        graph.replay()
        assert torch.equal(statistics, want)
