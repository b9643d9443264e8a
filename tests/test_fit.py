"""The fit of the cost model: recorded timings, made-up ones, and the menu."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import fit, fit_mma, trees
from benchmarks.gemm_cases import Case
from benchmarks.harness import RECORDED
from benchmarks.regret import chosen
from tensorcore_dsl.kernels import HopperConfig
from tensorcore_dsl.kernels.host import corrections
from tensorcore_dsl.kernels.host.candidates import MENU, Menu, configuration
from tensorcore_dsl.kernels.host.cost_model import CLOCK, COSTS, terms
from tensorcore_dsl.kernels.host.problem_shape import ProblemShape

TEXTS = ["64x64", "64x128", "128x64", "128x128", "128x256", "128x128 pp", "64x64 k2", "64x32 d2"]
SIZES = [(64, 512, 512), (500, 1000, 1504), (1000, 4000, 304), (2048, 2048, 8192)]


def made_up(costs: Any, sizes: Any = SIZES) -> fit.Timings:
    """Timings by the model itself, with these costs."""
    results = []
    for size in sizes:
        case = Case("bf16", *size, group="landscape bf16")
        trials = [
            {"config": vars(configuration(text)), "seconds": 1.0} for text in TEXTS
        ]
        results.append({**vars(case), "trials": trials})
    timings = fit.Timings(results)
    for trial, seconds in zip(
        (t for r in results for t in r["trials"]), timings.expected(costs), strict=True
    ):
        trial["seconds"] = float(seconds)
    return fit.Timings(results)


def test_the_recorded_choices_are_those_of_the_model() -> None:
    """The constants of the model, and the trees that correct it, are fitted to what is recorded."""
    timings = fit.Timings(trees.measured(RECORDED))
    assert len(timings.cases) > 200 and len(timings.seconds) > 2000
    regret = timings.regret(timings.expected(COSTS))
    whole = timings.menu.slices == 1
    of_whole = trees.regrets(*(x[whole] for x in (timings.index, timings.seconds, timings.expected(COSTS))))
    assert np.median(of_whole) < 0.019 and of_whole.mean() < 0.04
    corrected = timings.regret(fit.corrected(timings, COSTS))
    assert np.median(corrected) < 0.001 and corrected.mean() < regret.mean() / 2


def test_choices_are_good_where_nothing_was_learned() -> None:
    """Random problems that an H200 has measured, and that the trees and the menu never saw."""
    losses = []
    results = trees.measured(RECORDED, held_out=True)
    for result in results:
        seconds = {HopperConfig(**trial["config"]): trial["seconds"] for trial in result["trials"]}
        choice = chosen(Case.of(result))
        if choice in seconds:
            losses.append(seconds[choice] / min(seconds.values()) - 1)
    assert len(losses) > 0.9 * len(results) > 500
    assert np.median(losses) < 0.01 and np.quantile(losses, 0.95) < 0.05


def test_which_timings_a_model_learns(tmp_path: Path) -> None:
    """Those of its family; of large launches that were measured shortly, with less weight."""
    trial = lambda family, seconds: {"config": {}, "seconds": seconds, "family": family}
    both = [trial("sm90", 1e-3), trial("sm80", 2e-3)]
    results = [
        {"dtype": "bf16", "trials": both}, {"dtype": "bf16", "trials": [trial("sm90", 1e-5)]},
        {"dtype": "f64", "trials": both}, {"dtype": "f32", "trials": both}, {"dtype": "s8"},
        {"dtype": "tf32", "family": "sm80", "trials": [{"config": {}, "seconds": 1e-3}]},
    ]  # fmt: skip
    for name, method, options in (
        ("a", {}, {}), ("b", {"order": "random"}, {}), ("c", {}, {"held_out": True}),
    ):  # fmt: skip
        machine = {"gpu": {"name": f"NVIDIA {name}"}}
        document = {"options": options, "method": method, "machine": machine, "results": results}
        (tmp_path / f"regret-{name}.json").write_text(json.dumps(document), "utf-8")
    found = {
        model: [(len(r["trials"]), r["weight"]) for r in trees.measured(tmp_path, model)]
        for model in corrections.MODELS
    }
    less = trees.SHORTLY_MEASURED
    assert found["wgmma"] == [(1, less), (1, 1.0), (1, 1.0), (1, 1.0)]
    assert found["mma"] == [(1, less), (1, less), (1, 1.0), (1, 1.0)]
    assert found["f64"] == [(2, less), (2, 1.0)]
    assert found["f32"] == [(1, less), (1, 1.0)]
    gpus = [r["gpu"] for r in trees.measured(tmp_path)]
    assert gpus == ["NVIDIA a"] * 2 + ["NVIDIA b"] * 2
    assert [r["gpu"] for r in trees.measured(tmp_path, held_out=True)] == ["NVIDIA c"] * 2


def test_timings_are_expected_of_the_gpu_that_was_measured() -> None:
    """Its memory decides how long a product takes that is limited by it, and no other."""
    results = [
        vars(Case("bf16", *size, group="landscape bf16"))
        | {"trials": [{"config": vars(configuration(text)), "seconds": 1.0}]}
        for size, text in (((64, 8192, 8192), "64x64"), (SIZES[3], "128x256"))
    ]
    expected = {
        gpu: fit.Timings([r | {"gpu": gpu} for r in results]).expected(COSTS) for gpu in fit.MEMORY
    }
    by_memory, by_products = expected["NVIDIA H100 80GB HBM3"] / expected[fit.H200]
    assert 1.2 < by_memory < 1 / 0.7 and 1 <= by_products < 1.05
    with pytest.raises(ValueError, match="timings of 'GPU': .* not known, only that of NVIDIA H200, "):
        fit.Timings([results[0] | {"gpu": "GPU"}])


@pytest.mark.parametrize(
    ("name", "part", "least"), [("f64", 1 / 4, 1000), ("mma", 1 / 10, 1000), ("f32", 1 / 4, 700)]
)
def test_the_recorded_choices_of_mma_sync_are_those_of_its_trees(
    name: str, part: float, least: int
) -> None:
    timings = fit_mma.Timings(fit_mma.MODELS[name], trees.measured(RECORDED, name))
    assert len(timings.seconds) > least
    regret = timings.regret(timings.corrected(corrections.stored_trees(name)))
    assert np.median(regret) == 0
    assert regret.mean() < part * timings.regret(timings.expected).mean()


def test_the_fit_finds_what_times_were_made_with() -> None:
    costs = replace(COSTS, step=300.0, drain=2500.0)
    timings = made_up(costs)
    found = fit.fitted(timings)
    assert timings.objective(costs) < timings.objective(found) < timings.objective(COSTS) / 3
    assert found.step == pytest.approx(300, rel=0.3)


def test_a_problem_has_the_shape_that_gemm_sees() -> None:
    timings = made_up(COSTS)
    in_two_lines = 1 - math.gcd(2 * SIZES[1][2], 128) / 128
    shape = ProblemShape(*SIZES[1], misaligned=in_two_lines)
    expected = terms(Menu.of(tuple(map(configuration, TEXTS))), shape)["cycles"] / CLOCK
    assert np.allclose(timings.seconds[timings.index == 1], expected)


def test_trees_learn_what_the_model_leaves_out() -> None:
    """Here that tiles of 64 rows take 1.2 times as long, also of a problem that they never saw."""
    pytest.importorskip("lightgbm")
    sizes = [(M, N, K) for M in (100, 500, 900) for N in (512, 1000, 3000) for K in (256, 2048)]
    timings = made_up(COSTS, sizes)
    flat = np.where(timings.menu.BM == 64, 1.2, 1.0)
    timings.seconds = timings.seconds * flat
    seen = timings.index % 5 > 0
    found = fit.grown(timings, COSTS, seen)
    factors = fit.corrected(timings, COSTS, found) / timings.expected(COSTS)
    for part in (seen, ~seen):
        low, high = (factors[part & (flat == x)].mean() for x in (1.2, 1.0))
        assert low / high == pytest.approx(1.2, rel=0.03)


def test_stored_trees_answer_as_those_that_were_grown() -> None:
    leaf = lambda value: {"leaf_value": value}
    low = {"split_feature": 0, "threshold": 0.5, "left_child": leaf(0.25), "right_child": leaf(-0.375)}
    tree = {"split_feature": 1, "threshold": 3.0, "left_child": low, "right_child": leaf(0.4375)}
    arrays = trees.stored([tree, leaf(0.125), low])
    assert arrays["nodes"].tolist() == [5, 1, 3] and arrays["depth"] == 2
    rows = np.array([[0.5, 3.0], [0.75, 3.0], [0.5, 4.0], [0.75, 4.0]])
    sums = corrections.Trees.of(arrays)(rows) * corrections.UNIT
    assert sums.tolist() == [0.625, -0.625, 0.8125, 0.1875]


def test_the_menu_is_part_of_the_space() -> None:
    menu = MENU.read_text("ascii").splitlines()
    assert set(menu) <= set(fit.space()) and len(set(menu)) == len(menu) > 100


def test_useful_configurations_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "ALWAYS", ("a",))
    losses = np.array([[0.5, 0.0, 0.4, np.inf], [0.2, np.inf, 0.0, 0.1], [0.0, 0.3, 0.3, 0.3]])
    texts = ["a", "b", "c", "d"]
    assert fit.chosen(texts, losses, np.ones(3), 3) == ["a", "b", "c"]
    assert fit.chosen(texts, losses, np.array([1.0, 9.0, 1.0]), 2) == ["a", "c"]


def test_slices_speak_for_the_configuration_they_are_made_of() -> None:
    case = Case("bf16", 64, 512, 8192)
    whole = [configuration(text) for text in ("64x64", "64x128")]
    trials = [
        {"config": vars(config), "seconds": seconds}
        for config, seconds in zip((*whole, replace(whole[1], slices=4)), (2.0, 4.0, 1.0))
    ]
    losses, _ = fit.measured_losses(TEXTS, fit.Timings([vars(case) | {"trials": trials}]))
    assert losses[0, :2].tolist() == [1, 0] and np.all(np.isinf(losses[0, 2:]))


def test_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(fit, "PROBLEMS", 12)
    monkeypatch.setattr(trees, "TREES", 5)
    options = {"size": 20, "seed": 0, "keep": True, "write": False}
    report = fit.run(argparse.Namespace(results=RECORDED, **options))
    choices, costs, menu = fit.tables(report.json())
    assert [row[""] for row in choices.rows] == [
        "regret, before", "regret, fitted", "regret, corrected", "regret, unseen",
        "regret, held out",
        "regret of f64, model", "regret of f64, corrected", "regret of f64, unseen",
        "regret of mma, model", "regret of mma, corrected", "regret of mma, unseen",
        "regret of f32, model", "regret of f32, corrected", "regret of f32, unseen",
        "expected loss by the menu",
    ]  # fmt: skip
    assert len(costs.rows) == len(vars(COSTS)) and menu.rows[0][""].count(",") == 19
