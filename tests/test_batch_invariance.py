"""Bits of a row: of "batch_invariant" products they depend on this row and B alone.

Operands have all exponents, so that another order of their sums has other bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.environment.json_store import read_again
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig, RowReduction
from tensorcore_dsl.kernels.choosing import choice, features, menu, tuning_cache
from tensorcore_dsl.kernels.choosing import ranking as rankings
from tensorcore_dsl.kernels.choosing.batch_invariance import ROW_PART
from tensorcore_dsl.kernels.host.plan import make_plan
from tensorcore_dsl.kernels.problem import families, problem_shape
from tensorcore_dsl.kernels.problem.gemm_problem import BITS, GemmProblem
from tensorcore_dsl.kernels.problem.summation import Summation, summation_of
from tests.whole_numbers import BF16, E4M3, E5M2, F16

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("on_hopper")]

INVARIANT = "batch_invariant"
F32, F64, S8 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int8)
N, K = 40, 336  # K ends inside every step of a mainloop


def numbers(*shape: int, dtype: Any = BF16, order: Any = "C", seed: int = 0) -> np.ndarray:
    """Numbers of either sign and of many magnitudes; for s8, all of them."""
    draw = np.random.default_rng((seed, *shape))
    if dtype == S8:
        return np.asarray(draw.integers(-128, 128, shape).astype(np.int8), order=order)
    spread = 2.0 ** draw.integers(-4, 5, shape)
    return np.asarray((draw.standard_normal(shape) * spread).astype(dtype), order=order)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def same(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and np.array_equal(bits(x), bits(y))


def invariant(a: np.ndarray, b: np.ndarray, *c: Any, **options: Any) -> Any:
    return kernels.gemm(a, b, *c, bits=INVARIANT, **options)


# -- rows keep their bits ---------------------------------------------------------------------------

TYPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bf16": (BF16, {}),
    "f16": (F16, {}),
    "f16 in f16": (F16, {"accumulate": tc.f16}),
    "bf16 to f32": (BF16, {"out_dtype": tc.f32}),
    "f32": (F32, {}),
    "tf32": (F32, {"precision": "tf32"}),
    "f64": (F64, {}),
    "s8": (S8, {}),
    "e4m3": (E4M3, {}),
    "e5m2": (E5M2, {"out_dtype": tc.f16}),
    "e4m3 fast": (E4M3, {"accumulate": "fast", "out_dtype": tc.f32}),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_row_has_its_bits_in_every_product(name):
    """Rows from anywhere among any others, in any number."""
    dtype, options = TYPES[name]
    a, b = numbers(70, K, dtype=dtype), numbers(K, N, dtype=dtype, order="F")
    whole, draw = invariant(a, b, **options), np.random.default_rng(5)
    for M in (3, 130):
        chosen = draw.integers(0, len(a), M)
        rows = np.where(draw.random((M, 1)) < 0.5, a[chosen], numbers(M, K, dtype=dtype, seed=M))
        kept = (rows == a[chosen]).all(1)
        actual = invariant(rows.astype(dtype), b, **options)
        assert same(actual[kept], whole[chosen[kept]]), M


@pytest.mark.parametrize("name", ["bf16", "f16 in f16", "f32", "e4m3", "e4m3 fast"])
def test_a_row_has_its_bits_in_every_batch(name):
    dtype, options = TYPES[name]
    a, b = numbers(3, 20, K, dtype=dtype), numbers(3, N, K, dtype=dtype).swapaxes(1, 2)
    together, shared = invariant(a, b, **options), invariant(a, b[1], **options)
    for i in range(3):
        assert same(together[i], invariant(a[i], b[i], **options))
        assert same(shared[i], invariant(a[i], b[1], **options))


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", ["sm80", None])
@pytest.mark.parametrize("name", ["bf16", "f16", "f16 in f16", "tf32", "s8"])
def test_layouts_and_families_change_no_bits(name, family):
    """A and D by rows or columns, at any address; both families of kernels."""
    dtype, options = TYPES[name]
    a, b = numbers(24, K, dtype=dtype), numbers(K, N, dtype=dtype, order="F")
    wanted = invariant(a, b, **options)
    assert same(invariant(a, b, family=family or "sm90", **options), wanted)
    shifted = np.zeros((24, K + 1), dtype)
    shifted[:, 1:] = a
    rows = np.zeros((N, 24), wanted.dtype).T
    for x in (np.asfortranarray(a), shifted[:, 1:]):
        assert same(invariant(x, np.ascontiguousarray(b), out=rows, family=family, **options), wanted)


CONFIGS = [
    HopperConfig(BM=64, BN=64, stages=3),
    HopperConfig(BM=64, BN=32, stages=3, k_slabs=2),
    HopperConfig(BM=128, BN=32, stages=3, pingpong=True, cluster_n=2),
    HopperConfig(BM=64, BN=32, stages=2, cluster_m=2, mma_in_flight=0),
    AmpereConfig(BM=64, BN=64, WM=32, WN=32), AmpereConfig(BM=64, BN=64, BK=64, WM=32, WN=32),
    HopperConfig(BM=64, BN=64, stages=3, split_k=2), AmpereConfig(BM=64, BN=64, WM=32, WN=32, split_k=2),
    HopperConfig(BM=64, BN=64, stages=2, split_k=4),
]  # fmt: skip


# How many orders of summation these are: of tf32, both families divide K in two at one place.
ORDERS = {"bf16 to f32": 4, "tf32": 3, "s8": 1, "f16 in f16": 3}


@pytest.mark.parametrize("name", ORDERS)
def test_equal_texts_have_equal_bits(name):
    """And here, other texts have other bits, where sums are rounded."""
    dtype, options = TYPES[name]
    a, b = numbers(24, K, dtype=dtype), numbers(K, N, dtype=dtype, order="F")
    d = invariant(a, b, **options)
    options = {key: value for key, value in options.items() if key != "out_dtype"}
    needed = kernels.explain_bits(kernels.plan(a, b, None, d, bits=INVARIANT, **options))
    products: dict[str, np.ndarray] = {}
    for config in CONFIGS:
        try:
            plan = kernels.plan(a, b, None, d, config=config, **options)
        except tc.ArgumentError:  # no kernel has it in this type
            continue
        product = kernels.gemm(a, b, out=np.empty_like(d), config=config, **options)
        text = kernels.explain_bits(plan)
        assert same(product, products.setdefault(text, product)), config
        assert same(product, d) == (text == needed), config
        if text == needed:
            assert same(invariant(a, b, out=np.empty_like(d), config=config, **options), d)
        else:
            with pytest.raises(tc.ArgumentError, match="(Hopper|Ampere)Config.* sums in another order than"):
                invariant(a, b, config=config, **options)
    assert len(products) == ORDERS[name]


def test_free_choices_differ():
    """Without the option, a row has other bits in other products."""
    a, b = numbers(256, 1024), numbers(1024, 256, order="F")
    named: dict[str, Any] = {"out_dtype": tc.f32, "family": "sm90"}
    whole, one = kernels.gemm(a, b, **named), kernels.gemm(a[7:8], b, **named)
    plans = [kernels.plan(x, b, None, d, family="sm90") for x, d in ((a, whole), (a[7:8], one))]
    assert len({*map(kernels.explain_bits, plans)}) == 2
    assert not same(whole[7:8], one)
    assert same(invariant(a, b, **named)[7:8], invariant(a[7:8], b, **named))


@pytest.mark.parametrize("family", ["sm80", "sm90"])
@pytest.mark.parametrize("name", ["bf16", "tf32", "f16 in f16"])
def test_operands_may_be_swapped(name, family):
    """Products commute, and a step sums them at once: B' A' has the bits of A B."""
    dtype, options = TYPES[name]
    a, b = numbers(24, K, dtype=dtype), numbers(K, N, dtype=dtype, order="F")
    assert same(invariant(b.T, a.T, family=family, **options).T, invariant(a, b, **options))


@pytest.mark.parametrize("family", ["sm80", "sm90"])
def test_values_without_a_sum(family):
    """Zeros of both signs, infinities, NaN and subnormals, in full tiles and at edges."""
    a, b = numbers(64, 128), numbers(128, 64, order="F")
    values = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38], np.float32).astype(BF16)
    for i, value in enumerate(values):
        a[i, :] = value if i < 2 else a[i, :]
        a[i, 5 * i] = value
        a[8 + i] = value
    b[:, 3], b[:, 4] = 0, -0.0
    whole = invariant(a, b, family=family)
    assert same(invariant(a, b), whole)
    for i in range(16):
        assert same(invariant(a[i : i + 1], b, family=family), whole[i : i + 1]), i


def halved(value: Any, row: Any, col: Any, bias: Any) -> Any:
    return value * 0.5 + bias[col] / 3.0


@pytest.mark.parametrize("family", ["sm80", "sm90"])
@pytest.mark.parametrize("name", ["bf16", "f16 in f16", "tf32", "bf16 to f32"])
def test_the_epilogue_has_one_arithmetic(name, family):
    """alpha, beta C and a function of elements, in full tiles and at edges."""
    dtype, options = TYPES[name]
    a, b = numbers(64, 128, dtype=dtype), numbers(128, 64, dtype=dtype, order="F")
    bias, c = numbers(64, dtype=F32), numbers(64, 64, dtype=dtype, seed=9)
    named = {"alpha": 0.7, "beta": 1.3, "epilogue": halved, "epilogue_args": {"bias": bias}, **options}
    whole = invariant(a, b, c, **named)
    for first, end in ((0, 64), (0, 1), (3, 20), (17, 64)):
        assert same(invariant(a[first:end], b, c[first:end], family=family, **named), whole[first:end])


@pytest.mark.parametrize("dtype", [BF16, F32, E4M3], ids=str)
def test_sums_of_rows(dtype):
    """The parts of a row that are added up have one width."""
    a, b = numbers(150, 64, dtype=dtype), numbers(64, 300, dtype=dtype, order="F")
    named: dict[str, Any] = {"row_reductions": (RowReduction("sum"), RowReduction("max"))}
    d, rows = invariant(a, b, **named)
    for first, end in ((0, 1), (3, 60), (40, 150)):
        part, sums = invariant(a[first:end], b, **named)
        assert same(part, d[first:end]) and same(sums, rows[:, first:end])
    parts, sums = invariant(a.reshape(3, 50, 64), b, **named)
    assert same(parts.reshape(150, 300), d) and same(sums.reshape(2, 150), rows)
    plan = kernels.plan(a, b, None, d, bits=INVARIANT, **named)
    assert f"row sums:   parts of {ROW_PART} columns" in kernels.explain_bits(plan)
    assert plan.config.BN == ROW_PART


# -- groups, gates, scales --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_groups_of_any_sizes(dtype):
    """Rows of a group have the bits that gemm gives them alone."""
    experts, draw = numbers(4, K, N, dtype=dtype), np.random.default_rng(3)
    for _ in range(2):
        offsets = np.array([0, *np.sort(draw.integers(0, 101, 3)), 100], np.int32)
        a = numbers(100, K, dtype=dtype, seed=int(offsets[1]))
        d = kernels.grouped_gemm(a, experts, offsets, bits=INVARIANT)
        for g, (first, end) in enumerate(zip(offsets, offsets[1:], strict=False)):
            if first < end:
                assert same(d[first:end], invariant(a[first:end], experts[g]))


def test_swiglu_has_the_bits_of_its_rows_alone():
    x, gate, up = numbers(90, K), numbers(K, N, order="F"), numbers(K, N, order="F", seed=1)
    whole = kernels.swiglu(x, gate, up, bits=INVARIANT)
    for first, end in ((0, 1), (3, 8), (20, 90)):
        assert same(kernels.swiglu(x[first:end], gate, up, bits=INVARIANT), whole[first:end])


def test_scaled_products_have_the_bits_of_their_rows_alone():
    a, b = numbers(90, 384, dtype=E4M3), numbers(384, 136, dtype=E4M3, order="F")
    left, right = abs(numbers(90, 3, dtype=F32)), abs(numbers(3, 2, dtype=F32))
    whole = kernels.scaled_gemm(a, b, left, right, bits=INVARIANT)
    for first, end in ((0, 1), (3, 8), (20, 90)):
        actual = kernels.scaled_gemm(a[first:end], b, left[first:end], right, bits=INVARIANT)
        assert same(actual, whole[first:end])


# -- the choice -------------------------------------------------------------------------------------


def forget_rankings() -> None:
    for function in (menu.menu, menu.menu_of, rankings.ranking, rankings.invariant_split):
        function.cache_clear()


DEVICES = [(132, True), (132, False), (78, True), (16, False)]  # multiprocessors, and is there ptxas


@pytest.fixture(params=DEVICES, ids=str)
def device(request, monkeypatch):
    """Another count of multiprocessors, with the assembler or without."""
    sms, assembler = request.param
    for module in (problem_shape, features, rankings):
        monkeypatch.setattr(module, "SMS", sms)
    monkeypatch.setattr(problem_shape, "ACTIVE_CLUSTERS", {size: sms // size // 2 or 1 for size in (4, 8)})
    monkeypatch.setattr(families, "gives_registers", lambda: assembler)
    forget_rankings()
    yield
    forget_rankings()


def empty(*shape: int, dtype: Any, by_rows: bool = True) -> np.ndarray:
    """Untouched memory, which takes no time."""
    return (
        np.empty(shape, dtype) if by_rows else np.empty((*shape[:-2], *shape[:-3:-1]), dtype).swapaxes(-1, -2)
    )


WEIGHTS = ((8, 8), (33, 77), (256, 7168), (1024, 8192), (4096, 4096), (14336, 512))  # N, K


def drawn_problem(draw: np.random.Generator, name: str) -> GemmProblem:
    """Any M, layouts, batches and alignments, for few N and K."""
    dtype, options = TYPES[name]
    options = {key: value for key, value in options.items() if key != "out_dtype"}
    out = {E4M3: BF16, E5M2: BF16, S8: np.dtype(np.int32)}.get(dtype, dtype)
    M, (n, k) = int(2 ** draw.uniform(0, 13)), WEIGHTS[draw.integers(len(WEIGHTS))]
    batch = (int(draw.integers(1, 6)),) if draw.random() < 0.3 and dtype != F64 else ()
    rows, columns = draw.random(2) < 0.5
    a, b = (
        empty(*batch, M, k, dtype=dtype, by_rows=bool(rows)),
        empty(k, n, dtype=dtype, by_rows=bool(columns)),
    )
    d = empty(*batch, M, n, dtype=out, by_rows=bool(draw.random() < 0.9))
    return GemmProblem.of(a, b, None, d, bits=INVARIANT, **options)


CHOICES = [(name, DEVICES[0]) for name in TYPES]
CHOICES += [(name, device) for name in ("bf16", "f32", "e4m3") for device in DEVICES[1:]]


@pytest.mark.parametrize("name, device", CHOICES, indirect=["device"], ids=str)
def test_the_choice_has_one_order(name, device):
    """For one N and K, of all M, layouts and batches; without the option there are several."""
    draw = np.random.default_rng(11)
    orders: dict[tuple[int, int], set[Summation]] = {}
    free: dict[tuple[int, int], set[Summation]] = {}
    for _ in range(40):
        problem = drawn_problem(draw, name)
        weights = problem.N, problem.K
        orders.setdefault(weights, set()).add(summation_of(problem, make_plan(problem).config))
        plan = make_plan(replace(problem, bits="any"))
        free.setdefault(weights, set()).add(summation_of(problem, plan.config))
    assert {len(found) for found in orders.values()} == {1}
    one = name != "f32" and [*orders.values()]
    assert not one or all(found == one[0] for found in one), "but for f32, N and K have no part in it"
    several = any(len(found) > 1 for found in free.values())
    assert several != (name == "s8")


def test_all_rows_of_models_have_a_configuration(device):
    """Every configuration that the cost model may choose for a skinny or tall A is in the order."""
    for M in (1, 2, 7, 8, 9, 16, 17, 24, 64, 72, 127, 128, 129, 136, 256, 1000, 4096, 16384):
        for n, k in ((4096, 14336), (512, 7168), (8, 65536)):
            a, b, d = (
                empty(*shape, dtype=BF16, by_rows=i != 1) for i, shape in enumerate(((M, k), (k, n), (M, n)))
            )
            plan = kernels.plan(a, b, None, d, bits=INVARIANT, family="sm90")
            assert plan.config.split_k == 1


@pytest.fixture
def tuning(monkeypatch, tmp_path):
    """Plans look for tuned configurations as on a GPU named X; the cache is new."""
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    monkeypatch.setattr(choice, "current_target", lambda: "cuda")
    monkeypatch.setattr(tuning_cache, "device_name", lambda: "X")
    read_again()
    yield
    read_again()


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_products_are_tuned_in_their_order(dtype, tuning):
    """Each kind of bits for itself, and among configurations of its order alone."""
    a, b, d = (
        empty(256, 2048, dtype=dtype),
        empty(2048, 64, dtype=dtype, by_rows=False),
        empty(256, 64, dtype=dtype),
    )
    of_parts = lambda launch: 1 / launch.keywords["config"].split_k  # the fastest divides K most
    tunings = {kind: kernels.tune(a, b, bits=kind, timer=of_parts) for kind in BITS}
    assert [kind in tuned.key for kind, tuned in tunings.items()] == [False, True]
    for kind, tuned in tunings.items():
        assert not any(trial.failure for trial in tuned.trials)
        assert kernels.plan(a, b, None, d, bits=kind).config == tuned.best
    orders = [
        {summation_of(GemmProblem.of(a, b, None, d), t.config) for t in tuned.trials}
        for tuned in tunings.values()
    ]
    assert len(orders[0]) > 1 == len(orders[1])


def test_tuned_configurations_of_another_order_are_left_out(tuning):
    """Also where the file has one."""
    a, b, d = (empty(256, 256, dtype=BF16, by_rows=i != 1) for i in range(3))
    problem = GemmProblem.of(a, b, None, d, bits=INVARIANT)
    tuned = HopperConfig(BN=64, stages=4)
    for config in (tuned, replace(tuned, split_k=2)):
        tuning_cache.remember(tuning_cache.key(problem, "X"), config, 1.0)
        assert (make_plan(problem).config == config) == (config == tuned)


# -- what it says -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_the_instruction_is_that_of_the_kernel(name):
    """Depth and type of the sums, by which plans are compared, are those of the kernels' IR."""
    dtype, options = TYPES[name]
    if "out_dtype" in options:
        options = {key: value for key, value in options.items() if key != "out_dtype"}
    a, b = numbers(64, 128, dtype=dtype), numbers(128, 64, dtype=dtype, order="F")
    d = invariant(a, b, **options)
    scalars = (1, 0) if dtype == S8 else (1.0, 0.0)
    seen = 0
    for config in (HopperConfig(BM=64, BN=64, stages=2, k_slabs=1 + (name == "f32")), AmpereConfig()):
        try:
            plan = kernels.plan(a, b, None, d, config=config, **options)
        except tc.ArgumentError:
            continue
        text = plan.kernel.ir(a, b, d, d, *scalars, arch="sm_90a", **dict(plan.options))
        actual = plan.summation()
        depth = "k" if actual.depth == 1 else f"k{actual.depth}."  # a chain: of any depth
        words = [line for line in text.splitlines() if depth in line and "mma" in line]
        assert words and not any(
            "mma" in line and "n8k" in line and depth not in line for line in text.splitlines()
        )
        assert all(f".{actual.arithmetic.accumulator}" in line for line in words)
        seen += 1
    assert seen


@pytest.mark.quick
def test_explain_bits():
    a, b = numbers(64, 512), numbers(512, 64, order="F")
    d = np.empty((64, 64), BF16)
    c = np.zeros(64, np.float32)
    plan = kernels.plan(
        a,
        b,
        c,
        d,
        alpha=2,
        beta=1,
        epilogue=halved,
        epilogue_args=["bias"],
        config=HopperConfig(BN=64, stages=2, split_k=2),
    )
    assert kernels.explain_bits(plan).splitlines() == [
        "products:   bf16 by bf16, 16 of K in an instruction",
        "sums:       16 products and the sum so far, each cut 25 bits below the largest one, are added, and the "
        "result is cut to 24 bits",
        "order of K: upwards; parts that begin at 0, 256 are summed from zero, then added from the left",
        "epilogue:   alpha * sum, then fma(beta, C, sum), then halved, then rounded to bf16",
    ]
    with tc.target("cpu", "sm_80"):
        assert "sums:       8 products" in kernels.explain_bits(kernels.plan(a, b, None, d))
    with pytest.raises(tc.ArgumentError, match="must be what kernels.plan or"):
        kernels.explain_bits("plan")


def test_refuses_wrong_arguments():
    a, b = numbers(64, 512, dtype=F32), numbers(512, 64, dtype=F32, order="F")
    with pytest.raises(tc.ArgumentError, match="'any' or 'batch_invariant'"):
        kernels.gemm(a, b, bits="free")
    with pytest.raises(tc.ArgumentError, match="products must be .*32 of K"):
        invariant(a, b, family="sm80")
    with pytest.warns(tc.PerformanceWarning, match="rows of the result are not contiguous"):
        assert same(invariant(a, b, out=np.empty((64, 64), F32, "F")), invariant(a, b))
    with tc.target("cpu", "sm_80"):
        assert same(invariant(a, b)[:1], invariant(a[:1], b))
