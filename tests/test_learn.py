"""How `gemm` learns to choose: the table of timings, the trees, the menu, and how good choices are."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

from benchmarks.choices import learn
from benchmarks.choices.regret import chosen
from benchmarks.products.gemm_cases import Case
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig, VectorConfig
from tensorcore_dsl.kernels.choosing import trees
from tensorcore_dsl.kernels.choosing.menu import (
    F64,
    FRAGMENTS,
    KINDS,
    MMA,
    SPLIT_F32,
    VECTORS,
    WGMMA,
    config_of,
    menu,
)
from tensorcore_dsl.kernels.choosing.trees import Trees, stored_trees

TILES = [HopperConfig(BM=64, BN=n).with_stages() for n in (64, 128, 256)]
SIZES = [(64, 512, 512), (500, 1000, 1504), (1000, 4000, 304), (2048, 2048, 8192)]


@pytest.fixture(scope="module")
def recorded():
    if not learn.TIMINGS.exists():
        pytest.skip("an sdist has no recorded timings")
    return learn.unpack(np.load(learn.TIMINGS))


def document(**others: Any) -> dict[str, Any]:
    """A file of `regret`; all times are powers of two, which the table stores exactly."""
    results = [
        vars(Case("bf16", 64, 512, 512)) | {"trials": [
            {"config": vars(TILES[0]), "seconds": 2.0**-16},
            {"config": {"BM": 64, "BN": 64}, "seconds": 2.0**-15, "family": "sm80"},
            {"config": {"BM": 64, "BN": 64}, "seconds": 1.0, "family": "sm80"},
            {"config": {"BM": 1, "BN": 8, "unroll": 2}, "seconds": 2.0**-14, "family": "sm80"},
        ]},
        vars(Case("f64", 10, 20, 30)) | {"trials": [{"config": {"stages": 4}, "seconds": 2.0**-10}]},
        vars(Case("s8", 1, 1, 1)) | {"failure": "out of memory"},
    ]  # fmt: skip
    machine = {"gpu": {"name": "NVIDIA H200"}}
    return {"options": {}, "method": {}, "machine": machine, "results": results} | others


def test_the_table_holds_what_was_recorded():
    """A time that is twenty times the fastest is a mistake of the measurement, and left out."""
    recorded = [*learn.recorded(document()), *learn.recorded(document(options={"held_out": True}))]
    assert [[type(c) for c, _ in r["trials"]] for r in recorded[:2]] == [
        [HopperConfig, AmpereConfig, VectorConfig],
        [AmpereConfig],
    ]
    assert [r["held_out"] for r in recorded] == [False, False, True, True]
    assert [r["short"] for r in recorded] == [False, True] * 2
    assert not any(r["short"] for r in learn.recorded(document(method={"order": "random"})))
    again = learn.unpack(learn.pack(recorded))
    assert again == [{key: r[key] for key in again[0]} for r in recorded]


def test_stored_trees_answer_as_those_that_were_grown():
    leaf = lambda value: {"leaf_value": value}
    low = {"split_feature": 0, "threshold": 1.5, "left_child": leaf(0.25), "right_child": leaf(-0.375)}
    tree = {"split_feature": 1, "threshold": 0.5, "left_child": low, "right_child": leaf(0.4375)}
    thresholds = {"thresholds": np.array([0.1, 0.5, 3.0], np.float32), "counts": np.array([2, 1])}
    grown = Trees.of(thresholds | learn.stored([tree, leaf(0.125), low]))
    rows = np.array([[0.5, 3.0], [0.75, 3.0], [0.5, 4.0], [0.75, 4.0]], np.float32)
    sums = [0.25 + 0.125 + 0.25, -0.375 + 0.125 - 0.375, 0.4375 + 0.125 + 0.25, 0.4375 + 0.125 - 0.375]
    assert np.allclose(np.log(grown(rows)), sums, rtol=0.01)


def test_thresholds_part_all_values_of_a_feature():
    assert learn.thresholds_of(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [1.5, 2.5]
    many = np.random.default_rng(0).random(5000)
    actual = learn.thresholds_of(many)
    assert 200 < len(actual) <= 255 and np.all(np.diff(actual) > 0)
    assert np.bincount(np.searchsorted(actual, many)).max() < 40


def made_up(slow: dict[Any, float]) -> learn.Timings:
    """Timings that are the roofline times, and for some configurations longer by a factor."""
    sizes = [(M, N, K) for M in (100, 500, 900) for N in (512, 1000, 3000) for K in (256, 2048, 4096)]
    results = [
        vars(Case("bf16", *size))
        | {"gpu": "NVIDIA H200", "held_out": False, "short": False, "trials": [(c, 1.0) for c in TILES]}
        for size in sizes
    ]
    roofline = iter(learn.Timings(results).roofline)
    for result in results:
        result["trials"] = [(c, next(roofline) * slow.get(c, 1.0)) for c in TILES]
    return learn.Timings(results)


def test_trees_learn_what_the_roofline_leaves_out(monkeypatch):
    """Also for a problem that they never saw."""
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(learn, "TREES", 300)
    monkeypatch.setattr(learn, "MIN_TIMINGS", 2)
    monkeypatch.setattr(learn, "RIDGE", 0.01)
    timings = made_up({TILES[0]: 1.2})
    seen = timings.index % 5 > 0
    factors = learn.expected(timings, learn.grown(timings, seen)) / timings.roofline
    slow = np.array([config == TILES[0] for config in timings.configs])
    for part in (seen, ~seen):
        assert factors[part & slow].mean() / factors[part & ~slow].mean() == pytest.approx(1.2, rel=0.03)


def test_timings_are_expected_of_the_gpu_that_was_measured():
    """Its memory decides how long a product takes that is limited by it, and no other."""
    rooflines = {}
    for gpu in learn.MEMORY:
        results = [
            vars(Case("bf16", *size))
            | {"gpu": gpu, "held_out": False, "short": False, "trials": [(TILES[0], 1.0)]}
            for size in ((64, 8192, 8192), SIZES[3])
        ]
        rooflines[gpu] = learn.Timings(results).roofline
    by_memory, by_products = rooflines["NVIDIA H100 80GB HBM3"] / rooflines["NVIDIA H200"]
    assert 1.2 < by_memory < 1 / 0.7 and 1 <= by_products < 1.05


def test_regrets():
    """Of problems with several timings: here those of the first and the last."""
    timings = made_up({})
    timings.index, timings.seconds = np.array([0, 0, 1, 2, 2]), np.array([1.0, 2.0, 5.0, 4.0, 3.0])
    every, guess = np.ones(5, bool), np.array([9.0, 3.0, 1.0, 7.0, 2.0])
    assert timings.regrets(guess, every).tolist() == [1.0, 0.0]
    assert timings.regrets(guess, np.array([True, False, True, True, True])).tolist() == [0.0]


def test_the_menu_has_what_was_nearly_the_fastest(monkeypatch):
    monkeypatch.setattr(learn, "MIN_KIND_TIMINGS", 1)
    timings = made_up({TILES[2]: 2.0})
    timings.seconds[timings.index < 3] *= np.tile([1.0, 1.0, 0.1], 3)  # too seldom
    rows = learn.selected(timings)["hopper"].tolist()
    configs = {config_of(HopperConfig, row) for kind, *row in rows if kind == WGMMA}
    assert TILES[2] not in configs and configs & {*TILES}


def test_the_menu_of_the_package_has_all_kinds():
    """And for each, a tile that any alignment, and few registers, allow."""
    every = menu()
    assert set(every.kind.tolist()) == set(KINDS) and len(set(every.configs)) > 1000
    for kind in (MMA, F64):
        parts = set(every.split_k[every.kind == kind].tolist())
        assert parts >= {1, 2, 4, 8, 16}
    small = (every.kind == MMA) & (every.WM * every.WN <= 1024)
    assert set(every.split_k[small].tolist()) >= {1, 2, 4, 8, 16}
    parts, fragments = (set(every.split_k[every.kind == k].tolist()) for k in (SPLIT_F32, FRAGMENTS))
    assert parts >= fragments
    assert all(
        isinstance(config, VectorConfig) == (kind == VECTORS)
        for config, kind in zip(every.configs, every.kind)
    )


def test_choices_are_good_where_nothing_was_learned(recorded):
    """Random problems that an H200 has measured, and that the trees and the menu never saw."""
    held_out = [result for result in recorded if result["held_out"]]
    timings = learn.Timings(held_out)
    expected = timings.roofline * stored_trees()(timings.rows)
    every = np.ones(len(timings.seconds), bool)
    losses = timings.regrets(expected, every)
    assert len(losses) > 500 and losses.mean() < 0.018 and np.quantile(losses, 0.95) < 0.07
    assert losses.mean() < timings.regrets(timings.roofline, every).mean() / 2


def test_choices_are_mostly_among_what_was_measured(recorded):
    held_out = [result for result in recorded if result["held_out"]][::6]
    measured = [chosen(Case.of(r)) in dict(r["trials"]) for r in held_out]
    assert np.mean(measured) > MEASURED


MEASURED = 0.5  # part of the choices, at least


def test_the_report(monkeypatch, tmp_path):
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(learn, "TREES", 3)
    monkeypatch.setattr(trees, "STORED", tmp_path / "choices.npz")
    files = []
    for name, options in (("a", {}), ("b", {"held_out": True})):
        results = [
            vars(Case("bf16", *size))
            | {
                "trials": [
                    {"config": vars(config), "seconds": 1e-5 * place} for place, config in enumerate(TILES, 1)
                ]
            }
            for size in SIZES * 5
        ]
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(learn.json.dumps(document(options=options, results=results)), "utf-8")
    options = argparse.Namespace(add=files, timings=tmp_path / "timings.npz", cross_validate=True, write=True)
    report = learn.run(options)
    (table,) = learn.tables(report.json())
    assert {row[""] for row in table.rows} == {
        "learned",
        "held out",
        "roofline",
        "held out, roofline",
        "cross-validated",
    }
    assert len(learn.unpack(np.load(options.timings))) == 2 * 5 * len(SIZES)
    assert {*np.load(tmp_path / "choices.npz")} == {*trees.stored()}
