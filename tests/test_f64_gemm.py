"""f64 on Hopper: the bits of a chain of fused multiply-adds, whatever loads the operands."""

from __future__ import annotations

import ctypes
from ctypes.util import find_library
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import AmpereConfig
from tensorcore_dsl.kernels.ampere import gemm as ampere
from tensorcore_dsl.kernels.choosing.menu import F64, candidates
from tensorcore_dsl.kernels.hopper import f64_gemm as hopper
from tensorcore_dsl.kernels.hopper.f64_operands import line_of
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tests.arrays import normal

pytestmark = pytest.mark.thorough

ORDERS = "CC", "CF", "FC", "FF"
# Lines of both operands at multiples of 16 bytes, of one, of none; whole tiles and parts of them.
SHAPES = (64, 64, 48), (70, 34, 100), (33, 66, 18), (65, 35, 51), (66, 35, 50), (1, 100, 33)
CONFIGS = {
    "small": AmpereConfig(32, 32, 16, 16, 16, 3),
    "tall": AmpereConfig(64, 32, 16, 32, 16, 2),
    "flat, deep": AmpereConfig(16, 64, 32, 16, 16, 3),
    "three fragments": AmpereConfig(48, 64, 16, 48, 16, 4),
    "wide, deep": AmpereConfig(32, 96, 48, 32, 48, 2),
    "eight warps": AmpereConfig(128, 64, 16, 32, 32, 2),
    "one warp": AmpereConfig(16, 16, 16, 16, 16, 2),
}

libm = ctypes.CDLL(find_library("m") or "libm.so.6")
libm.fma.restype, libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
fma = np.frompyfunc(libm.fma, 3, 1)
matrix = partial(normal, dtype=np.float64)


def sums(a: np.ndarray, b: np.ndarray, starts: tuple[int, ...] = (0,)) -> np.ndarray:
    """A B: of each part of K a chain of fused multiply-adds from zero, added up from the left."""
    parts = []
    for start, end in zip(starts, (*starts[1:], a.shape[1]), strict=True):
        part = np.zeros((a.shape[0], b.shape[1]))
        for k in range(start, end):
            part = fma(a[:, k : k + 1], b[k : k + 1], part).astype(float)
        parts.append(part)
    return sum(parts[1:], parts[0])  # type: ignore[no-any-return]


@cache
def chain(M: int, N: int, K: int) -> np.ndarray:
    """The product of `matrix(M, K)` and `matrix(K, N)`, whose values no order changes."""
    return sums(matrix(M, K), matrix(K, N))


@pytest.mark.parametrize(
    "name, orders",
    [(name, orders) for n, name in enumerate(CONFIGS) for orders in (("CC", "FF"), ("CF", "FC"))[n % 2]],
)
def test_every_tile_and_layout(name, orders):
    """Through TMA, and by threads, 16 and 8 bytes at a time; the loads of A and of B do not depend on each other."""
    config = CONFIGS[name]
    for M, N, K in SHAPES:
        a, b = matrix(M, K, order=orders[0]), matrix(K, N, order=orders[1])
        plan = kernels.plan(a, b, None, np.zeros((M, N)), config=config)
        assert plan.kernel is hopper.f64_gemm
        assert np.array_equal(kernels.gemm(a, b, config=config), chain(M, N, K)), (M, N, K)


@pytest.mark.parametrize("orders", ORDERS)
def test_lines_at_multiples_of_16_bytes_of_odd_matrices(orders):
    """Views whose last vector is half outside."""
    a, b = matrix(36, 52, order=orders[0])[:35, :51], matrix(52, 38, order=orders[1])[:51, :37]
    out = np.full((35, 38), -1.0)[:, :37]
    traits = kernels.plan(a, b, None, out).traits
    assert traits.tma_a and traits.tma_b
    assert np.array_equal(kernels.gemm(a, b, out=out), sums(a, b))
    by_threads = kernels.plan(a, b, None, out, config=CONFIGS["tall"])
    by_threads = replace(by_threads, traits=replace(by_threads.traits, tma_a=False, tma_b=False))
    assert by_threads.traits.vec_a == by_threads.traits.vec_b == 16
    by_threads.bind((a, b, out, out, 1.0, 0.0))(a, b, out, out, 1.0, 0.0)
    assert np.array_equal(out, sums(a, b)) and (out.base[:, 37] == -1).all()


@pytest.mark.quick
@pytest.mark.parametrize("step", [-1, 0, 2])
def test_lines_that_descend_repeat_or_have_gaps(step):
    """TMA reads ascending lines alone; those that descend are copied first."""
    rows = matrix(40, 48)
    a = rows[::-1] if step < 0 else np.broadcast_to(rows[:1], (40, 48)) if step == 0 else rows[::2]
    b = matrix(48, 32)
    assert kernels.plan(a, b, None, np.zeros((len(a), 32))).traits.tma_a == (step != 0)
    assert np.array_equal(kernels.gemm(a, b), sums(a, b))


@pytest.mark.parametrize("split_k", [2, 3, 8, 12])
@pytest.mark.parametrize("shape", [(40, 40, 400), (33, 35, 391)], ids=str)
def test_parts_of_k(split_k, shape):
    """Each is a chain from zero; another kernel adds them up."""
    M, N, K = shape
    a, b, c = matrix(M, K), matrix(K, N, order="F"), matrix(M, N)
    config = AmpereConfig(32, 32, 16, 16, 32, 4, split_k=split_k)
    plan = kernels.plan(a, b, c, c.copy(), config=config)
    assert plan.kernel is hopper.f64_gemm
    assert plan.partial_sums is not None
    steps = -(-K // 16)
    starts = tuple(part * steps // split_k * 16 for part in range(split_k))
    assert np.array_equal(kernels.gemm(a, b, config=config), sums(a, b, starts))
    actual = kernels.gemm(a, b, c, alpha=0.75, beta=3, config=config)
    expected = fma(3.0, c, 0.75 * sums(a, b, starts)).astype(float)
    assert np.array_equal(actual, expected)


def shared_sums(a: np.ndarray, b: np.ndarray, config: AmpereConfig) -> np.ndarray:
    """A B by stream-K: the parts of each tile begin where the units' equal parts of all steps do."""
    d = np.zeros((a.shape[0], b.shape[1]))
    corners = [(m, n) for m in range(0, d.shape[0], config.BM) for n in range(0, d.shape[1], config.BN)]
    steps = -(-a.shape[1] // config.BK)
    units = min(config.streamk_units, len(corners) * steps)
    left = len(corners) % units
    shared = min(left + units, len(corners)) if left else 0
    firsts = [u * (shared * steps // units) + min(u, shared * steps % units) for u in range(units)]
    for tile, (m, n) in enumerate(corners):
        inside = [first - tile * steps for first in firsts if tile < shared]
        starts = sorted({0, *(i * config.BK for i in inside if 0 < i < steps)})
        rows, cols = slice(m, m + config.BM), slice(n, n + config.BN)
        d[rows, cols] = sums(a[rows], b[:, cols], tuple(starts))
    return d


@pytest.mark.parametrize("units", [1, 2, 3, 5, 7, 40])
@pytest.mark.parametrize("shape", [(70, 34, 100), (33, 35, 51), (96, 64, 16)], ids=str)
def test_stream_k(units, shape):
    """Units share the steps of the tiles that fill no whole wave; more units than steps idle."""
    M, N, K = shape
    a, b, c = matrix(M, K), matrix(K, N, order="F"), matrix(M, N)
    config = AmpereConfig(32, 32, 16, 16, 16, 4, group_m=1, streamk_units=units)
    plan = kernels.plan(a, b, c, c.copy(), config=config)
    assert plan.kernel is hopper.f64_streamk_gemm and plan.grid <= units
    expected = shared_sums(a, b, config)
    assert np.array_equal(kernels.gemm(a, b, config=config), expected)
    actual = kernels.gemm(a, b, c, beta=3, config=config, epilogue=lambda value, row, col: -value)
    assert np.array_equal(actual, -fma(3.0, c, expected).astype(float))
    text = kernels.explain_bits(plan)
    assert f"{units} units share the tiles" in text and "in steps of 16" in text


def test_stream_k_without_races():
    a, b, d = matrix(70, 90), matrix(90, 66), np.zeros((70, 66))
    config = AmpereConfig(32, 32, 16, 16, 32, 4, group_m=1, streamk_units=5)
    plan = kernels.plan(a, b, None, d, config=config)
    arguments, options = (a, b, d, d, 1.0, 0.0, *plan.workspace(a)), dict(plan.options)
    assert not plan.kernel.check(plan.grid, config.threads)(*arguments, **options).findings
    assert plan.kernel.explore(4)[plan.grid, config.threads](*arguments, **options).ok


def test_few_ctas_compute_many_tiles():
    """The ring runs on from tile to tile, also where one has fewer steps than there are stages."""
    for M, N, K in SHAPES:
        a, b, d = matrix(M, K), matrix(K, N, order="F"), np.zeros((M, N))
        for config in (AmpereConfig(16, 32, 16, 16, 16, 5), AmpereConfig(32, 16, 16, 16, 16, 2)):
            plan = kernels.plan(a, b, None, d, config=config)
            launch = replace(plan, grid=2).bind((a, b, d, d, 1.0, 0.0))
            d[:] = 0
            launch(a, b, d, d, 1.0, 0.0)
            assert np.array_equal(d, chain(M, N, K)), (M, N, K, config)


def test_bits_of_other_kernels():
    """sm_80's instruction and kernel give the same."""
    a, b, c = matrix(70, 90), matrix(90, 46), matrix(70, 46)
    config = AmpereConfig(64, 64, 16, 32, 32, 3, split_k=2)
    actual = kernels.gemm(a, b, c, alpha=0.3, beta=0.7, config=config)
    with tc.target("cpu", "sm_80"):
        assert kernels.plan(a, b, c, c.copy(), config=config).kernel is ampere.f64_gemm
        assert np.array_equal(actual, kernels.gemm(a, b, c, alpha=0.3, beta=0.7, config=config))


@pytest.mark.parametrize(
    "config", [AmpereConfig(64, 64, 16, 32, 8, 3), AmpereConfig(32, 32, 64, 16, 8, 2)], ids=str
)
def test_the_kernel_of_sm_80_runs_other_tiles(config):
    a, b = matrix(20, 40), matrix(40, 24)
    plan = kernels.plan(a, b, None, np.zeros((20, 24)), config=config)
    assert plan.kernel is ampere.f64_gemm


@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("N", [40, 35])
def test_epilogues(split_k, N):
    """Epilogues of elements, with C in rows and in columns, and with arrays as large as D."""
    a, b, c, bias = matrix(33, 80), matrix(80, N), matrix(33, N, order="F"), matrix(1, N)[0]
    config = AmpereConfig(32, 32, 16, 16, 32, 3, split_k=split_k)
    starts = (0,) if split_k == 1 else (0, 32)
    product = fma(0.5, c, sums(a, b, starts)).astype(float)
    actual = kernels.gemm(
        a,
        b,
        c,
        beta=0.5,
        config=config,
        epilogue_args={"bias": bias},
        epilogue=lambda value, row, col, bias: value * 2.0 + bias[col] + row.to(tc.f64),
    )
    rows = np.arange(33.0)[:, None]
    assert np.array_equal(actual, product * 2.0 + bias + rows)


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("shape", [(66, 34, 100), (65, 33, 99)], ids=str)
def test_neither_races_nor_bank_conflicts(orders, shape):
    M, N, K = shape
    a, b, d = matrix(M, K, order=orders[0]), matrix(K, N, order=orders[1]), np.zeros((M, N))
    config = AmpereConfig(64, 32, 16, 32, 16, 3)
    plan = kernels.plan(a, b, None, d, config=config)
    arguments, options = (a, b, d, d, 1.0, 0.0), dict(plan.options)
    result = plan.kernel.check(plan.grid, config.threads)(*arguments, **options)
    assert not result.findings
    emulator = plan.kernel.emulator("sm_90a", profile=True)
    report = emulator[plan.grid, config.threads](*arguments, **options)
    shared = [t for (_, space, _), t in report.lines.items() if space == "shared"]
    assert shared and sum(t.excess for t in shared) == 0


def test_orders_of_threads():
    """The result does not depend on which thread runs first."""
    a, b, d = matrix(40, 70), matrix(70, 34), np.zeros((40, 34))
    config = AmpereConfig(32, 32, 16, 16, 32, 2)
    plan = kernels.plan(a, b, None, d, config=config)
    explored = plan.kernel.explore(6)[plan.grid, config.threads]
    assert explored(a, b, d, d, 1.0, 0.0, **dict(plan.options)).ok


def test_lines_of_fragments():
    """The table of f64_operands.py, and what it says of chunks."""
    lines = [line_of(g) for g in range(8)]
    assert lines == [0, 6, 1, 7, 4, 2, 5, 3]
    for half in (lines[:4], lines[4:]):
        assert {2 * line % 8 for line in half} == {0, 2, 4, 6}
    assert all((lines[i] ^ lines[i + 1]) & 4 for i in range(0, 8, 2))


def config(M: int, N: int, K: int) -> AmpereConfig:
    return kernels.plan(np.empty((M, K)), np.empty((K, N)), None, np.empty((M, N))).config  # type: ignore[no-any-return]


@pytest.mark.quick
def test_choices_of_f64():
    """Flat tiles for few rows, tall ones for few columns, parts of K for few tiles."""
    assert config(8, 8192, 8192).BM == 16 and config(16384, 8, 8192).BN == 16
    assert config(64, 64, 8192).split_k >= 8
    assert config(512, 7296, 7162).streamk_units and not config(8192, 8192, 512).split_k > 1
    large = config(8192, 8192, 8192)
    assert large.BM * large.BN >= 128 * 64


def f64_candidates(M: int, N: int, K: int) -> tuple[AmpereConfig, ...]:
    return candidates(ProblemShape(M, N, K, 8, out_bytes=8), (F64,)).configs


@pytest.mark.quick
def test_candidates_are_for_the_kernel():
    """It runs each of them, and their stages fit into shared memory."""
    for shape in ((512, 512, 16), (40, 3000, 100), (1000, 1000, 10_000)):
        for candidate in f64_candidates(*shape):
            assert candidate.split_k == 1 or candidate.split_k * candidate.BK * 3 <= shape[2]
            stage = (candidate.BM + candidate.BN) * candidate.BK * 8
            assert hopper.resident_ctas(candidate) * candidate.stages * stage < 227 * 1024
            assert candidate.stages >= 2 and candidate.streamk_units % 132 == 0
    assert any(candidate.streamk_units for candidate in f64_candidates(1000, 1000, 10_000))
    assert len(f64_candidates(512, 512, 512)) > 50


def test_four_lanes_have_elements_that_lie_side_by_side():
    """Where rows are not aligned for pairs: each store of a warp writes 32 bytes of eight rows."""

    @tc.kernel
    def spread(pairs: tc.Array, out: tc.Array):
        lane = tc.lane_id()
        groups = hopper.side_by_side((pairs[lane, 0], pairs[lane, 1]))
        for group in tc.static_range(2):
            out[lane // 4, group, lane % 4] = groups[group]

    pairs, out = np.arange(64.0).reshape(32, 2), np.zeros((8, 2, 4))
    spread[1, 32](pairs, out)
    assert np.array_equal(out, pairs.reshape(8, 2, 4))
