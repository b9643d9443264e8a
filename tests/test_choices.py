"""Which kernel is chosen, and its configuration, do not depend on where it runs."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.codegen import ptxas
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels.choosing import features, menu
from tensorcore_dsl.kernels.host.plan import Plan, make_plan
from tensorcore_dsl.kernels.problem import families
from tensorcore_dsl.kernels.problem.families import family_of
from tensorcore_dsl.kernels.problem.gemm_problem import GemmProblem
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tests.fake_gpu import FakeGpu, OnGpu
from tests.fuzz import product_cases

SEED, CASES = 5, 1000


@pytest.fixture
def gpu(monkeypatch):
    """The target "cuda" is an H200 that does nothing, on a machine with an assembler."""
    monkeypatch.setattr(ptxas, "candidates", lambda: ("ptxas",))
    return FakeGpu().of_the_machine(monkeypatch)


def choices(monkeypatch: pytest.MonkeyPatch, *places: tuple[str, ...]) -> list[list[str]]:
    """What each place chooses for the cases of the fuzzer; nothing is launched."""

    class Chosen(Exception):
        pass

    def stop(plan: Plan, arguments: Any, *_: Any, **options: Any) -> None:
        kernel = plan.kernel.__name__
        raise Chosen(f"{kernel} {plan.config} {plan.traits} {plan.grid} {plan.streamk}")

    def zeros(draw: Any, shape: tuple[int, ...], dtype: str, style: str) -> Any:
        return np.zeros(shape, product_cases.NUMPY[dtype])

    monkeypatch.setattr(Plan, "bind", stop)
    monkeypatch.setattr(product_cases, "values", zeros)
    texts_by_place: list[list[str]] = [[] for _ in places]
    for index in range(CASES):
        case = product_cases.product(SEED, index)
        for texts, place in zip(texts_by_place, places, strict=True):
            try:
                with tc.target(*place), np.errstate(all="ignore"):
                    product_cases.run(case, SEED, index)
            except (Chosen, tc.ArgumentError) as answer:
                texts.append(f"{case}: {answer}")
    return texts_by_place


KERNELS = (("half_gemm", 160), ("f32_gemm", 40), ("f32_fragments_gemm", 8))


@pytest.mark.thorough
def test_emulation_chooses_as_a_gpu_does(gpu, monkeypatch):
    on_gpu, on_cpu = choices(monkeypatch, ("cuda",), ("cpu", "sm_90a"))
    assert on_gpu == on_cpu and len(on_gpu) == CASES
    for kernel, least in KERNELS:
        assert sum(f": {kernel} " in text for text in on_cpu) >= least
    assert not gpu.records


@pytest.mark.thorough
def test_emulation_chooses_as_a_gpu_does_for_large_products(gpu):
    draw, choices_made = product_cases.Draw(SEED), []
    for _ in range(400):
        dtype = draw.choice(("f16", "bf16", "tf32", "f32", "s8", "f64", "e4m3"))
        kind = product_cases.NUMPY[dtype]
        M, N, K = (draw.log_uniform(1 << 14) for _ in "MNK")
        if draw.chance(50):
            N, K = -(-N // 64) * 64, -(-K // 64) * 64
        orders = draw.choice("CF"), draw.choice("CF")
        a, b = (np.empty(s, kind, order=o) for s, o in zip(((M, K), (K, N)), orders, strict=True))
        d = np.empty((M, N), product_cases.NUMPY[product_cases.OUTPUTS[dtype][0]])
        precision = "tf32" if dtype == "tf32" else None
        answers = []
        for place in (("cuda",), ("cpu", "sm_90a")):
            with tc.target(*place):
                answers.append(kernels.plan(a, b, None, d, precision=precision))
        choices_made.append(answers[0])
        assert answers[0] == answers[1], (dtype, M, N, K, orders)
    families = {(bool(plan.copies), family_of(plan.config)) for plan in choices_made}
    assert families == {(False, "sm80"), (False, "sm90"), (True, "sm90")}
    assert len({plan.config for plan in choices_made}) > 50


@pytest.mark.parametrize("dtype", ["f2", "f4", "i1"])
def test_copies_do_not_depend_on_the_library_of_the_arrays(gpu, dtype):
    """Copies for TMA are made of every library's arrays, or of none."""
    a, b = np.zeros((1500, 1001), dtype), np.zeros((1001, 1500), dtype)
    d = np.zeros((1500, 1500), "i4" if dtype == "i1" else dtype)
    with tc.target("cuda"):
        of_numpy, others = (
            make_plan(GemmProblem.of(*arrays)).copies
            for arrays in ((a, b, None, d), (OnGpu(a), OnGpu(b), None, OnGpu(d)))
        )
    assert of_numpy == others and bool(others) == (dtype != "f4")


def test_a_missing_assembler_is_reported_once(gpu, monkeypatch):
    """On a GPU other configurations are chosen then; emulation needs no assembler."""
    a, b = np.empty((8192, 8192), np.float16), np.empty((8192, 8192), np.float16, order="F")
    d = np.empty((8192, 8192), np.float16)
    with tc.target("cuda"):
        usual = kernels.plan(a, b, None, d)
    assert usual.config.registers
    monkeypatch.setattr(ptxas, "candidates", lambda: ())
    families._warn_of_missing_assembler.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tc.target("cpu", "sm_90a"):
            assert kernels.plan(a, b, None, d) == usual
        with tc.target("cuda"):
            kernels.plan(a[:64], b[:, :64], None, d[:64, :64])
            assert not caught  # the choice is the same without
            for _ in range(2):
                assert not kernels.plan(a, b, None, d).config.registers
    (warning,) = caught
    assert warning.category is tc.PerformanceWarning and "pip install" in str(warning.message)


@pytest.mark.parametrize(("dtype", "width", "pitch"), [("f16", 15, 16), ("f32", 107, 108)])
def test_threads_store_rows_that_end_within_a_unit_of_tma(dtype, width, pitch):
    """TMA would write the 16 bytes in which a row ends, on a GPU; an H200 showed it."""
    memory = np.zeros((8, pitch), product_cases.NUMPY[dtype])
    for d, by_threads in ((memory[:, :width], True), (memory, False), (memory[:, : pitch - 16], False)):
        if d.size:
            assert families.stores_without_tma(describe(d)) == by_threads
            assert families.stores_without_tma(describe(d.T)) == by_threads


def laid_out(
    shape: tuple[int, int], kind: Any, by_rows: bool, gap: int, skipped: int, step: int
) -> np.ndarray:
    """A matrix that has no memory of its own: of lines with a gap behind each, from an element on.

    step: of lines; -1 takes them from the last one on.
    """
    memory = np.zeros(16 + skipped, kind)
    memory = memory[-memory.ctypes.data % 16 // kind.itemsize + skipped :]
    lines, length = shape if by_rows else shape[::-1]
    strides = (length + gap) * kind.itemsize, kind.itemsize
    view = np.lib.stride_tricks.as_strided(memory, (lines, length), strides)[::step]
    return view if by_rows else view.T


@pytest.mark.thorough
def test_neither_gaps_nor_addresses_change_the_order_of_summation():
    """Nor which kernels can read the operands: here few of them need no copies."""
    draw, families_chosen = product_cases.Draw(SEED), set()
    for _ in range(400):
        dtype = draw.choice(("f16", "f16", "bf16", "tf32", "tf32", "f32", "f64", "e4m3"))
        M, N, K = (1 if draw.chance(10) else draw.log_uniform(1 << 12) for _ in "MNK")
        reduced = dtype != "f64" and draw.chance(20)
        options: dict[str, Any] = {"precision": "tf32" if dtype == "tf32" else None}
        options["row_reductions"] = (kernels.RowReduction("sum"),) if reduced else ()
        orders, out = (draw.chance(50), draw.chance(50), True), product_cases.OUTPUTS[dtype][0]
        shapes, types = ((M, K), (K, N), (M, N)), (dtype, dtype, out)
        texts = []
        for most in (0, 24, 24):
            gaps = [draw.below(most + 1) for _ in "abd"]
            steps = [-1 if most and draw.chance(10) else 1 for _ in "ab"] + [1]
            a, b, d = (
                laid_out(shape, product_cases.NUMPY[kind], order, gap, min(gap, draw.below(3)), step)
                for shape, kind, order, gap, step in zip(shapes, types, orders, gaps, steps, strict=True)
            )
            with tc.target("cpu", "sm_90a"):
                plan = kernels.plan(a, b, None, d, **options)
                texts.append(kernels.explain_bits(plan))
            families_chosen.add((family_of(plan.config), bool(plan.copies)))
        assert len({*texts}) == 1, (dtype, M, N, K, orders, options, texts)
    assert families_chosen == {("sm80", False), ("sm80", True), ("sm90", False), ("sm90", True)}


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_a_problem_has_the_features_of_its_row_in_a_table(kind, itemsize):
    """The trees learn from tables of problems, and rank the configurations of one."""
    shape = ProblemShape(1000, 800, 600, itemsize, out_bytes=itemsize, a_k_major=False, has_epilogue=True)
    configs = menu.menu_of((kind,), itemsize)
    columns = {name: np.full(len(configs.configs), value) for name, value in asdict(shape).items()}
    single = features.rows_of(features.features(configs, shape), len(configs.configs))
    table = features.rows_of(features.features(configs, ProblemShape(**columns)), len(configs.configs))
    np.testing.assert_array_equal(single, table)
