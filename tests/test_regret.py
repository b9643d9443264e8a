"""The benchmarks of gemm's choices: what they measure, and what they make of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from benchmarks.choices import regret
from benchmarks.products.gemm_cases import Case
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig, VectorConfig

pytestmark = pytest.mark.thorough

FEW_ROWS = Case("bf16", 16, 4096, 4096)
PROMOTED = Case("e4m3", 512, 2048, 4096, precise=True)


@pytest.mark.parametrize("case", [FEW_ROWS, PROMOTED, Case("tf32", 300, 300, 300)], ids=str)
def test_plausible_configurations_are_measured(case):
    """The choice comes first; the others are of many kinds, and differ."""
    configs = regret.configurations(case, 8)
    assert configs[0] == regret.chosen(case)
    assert len(configs) == len(set(configs)) >= 8
    assert len({regret.kind_of(config) for config in configs}) >= 4


def test_both_families_are_measured_where_either_may_be_faster():
    """Lines of 1001 elements need copies for wgmma; rows of a single vector have own kernels."""
    for case in (Case("tf32", 46, 1000, 1001), Case("bf16", 46, 1000, 1001)):
        configs = regret.configurations(case, 4)
        assert {type(config) for config in configs} == {HopperConfig, AmpereConfig}
    assert any(isinstance(c, VectorConfig) for c in regret.configurations(Case("tf32", 1, 4096, 4097), 4))
    many = Case("bf16", 46, 4096, 4096)
    assert all(isinstance(c, HopperConfig) for c in regret.configurations(many, 4))


def test_configurations_compile_ahead(tmp_path, monkeypatch):
    pytest.importorskip("numba.cuda.cudadrv.driver", reason="needs numba-cuda")
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    assert regret.compile_ahead(FEW_ROWS, HopperConfig(BM=64, BN=32).with_stages()) == ""
    assert any(tmp_path.rglob("*.cubin"))
    failure = regret.compile_ahead(FEW_ROWS, HopperConfig(stages=50))
    assert "bytes of shared memory" in failure


def result(case: Case, *seconds: float, reference: float = 2.0) -> dict[str, Any]:
    trials = [
        {"tile": f"tile {i}", "seconds": s, "samples": [s], "config": {}} for i, s in enumerate(seconds)
    ]
    return {**asdict(case), "trials": trials, "reference": reference}


def test_the_regret():
    results = [
        result(FEW_ROWS, 1.1, 1.0, 4.0),
        result(FEW_ROWS, 1.0, 1.0),
        result(PROMOTED, 3.0, 2.0),
        {**asdict(PROMOTED), "left_out": "time is over"},
    ]
    groups = regret.summarise(results)["groups"]
    assert list(groups) == ["bf16", "e4m3 promoted", "all"]
    assert groups["bf16"]["median"] == pytest.approx(0.05)
    assert groups["all"]["worst"] == pytest.approx(0.5) and groups["all"]["problems"] == 3
    assert groups["e4m3 promoted"]["ratio"] == pytest.approx(2 / 3)
    assert groups["e4m3 promoted"]["ratio_of_best"] == pytest.approx(1.0)
    document = {"summary": {"groups": groups}, "results": results}
    summary, worst = regret.tables(document)
    assert summary.rows[0]["median"] == "5.0%"
    assert worst.rows[0]["regret"] == "50.0%" and worst.rows[0]["best"] == "tile 1"


@pytest.mark.parametrize("slow_at", [2, 3])  # samples: the warm-up, then one a round
def test_slow_configurations_are_measured_twice(slow_at):
    """Those that were slow once go on: the power of the GPU may have been the reason."""

    def launch(seconds: float, slow_once: bool = False) -> Any:
        def sample() -> float:
            calls.append(seconds)
            return seconds * (9 if slow_once and calls.count(seconds) == slow_at else 1)

        return sample

    calls: list[float] = []
    samples = regret.sampled([launch(1.0), launch(1.2, slow_once=True), launch(9.0)])
    taken = [sum(which == i for which, _ in samples) for i in range(3)]
    assert taken == [regret.ROUNDS, regret.ROUNDS, 2]
    assert calls.count(9.0) == 3  # and the warm-up


def test_a_gpu_that_changes_its_speed_gives_no_launch_an_advantage():
    """The first round is faster by a third, as of a GPU that has not yet used up its power."""
    rng, calls = np.random.default_rng(0), 0
    usual = 1 + np.arange(30) / 100

    def launch(seconds: float) -> Any:
        def sample() -> float:
            nonlocal calls
            calls += 1
            speed = 0.75 if calls <= 2 * 30 else 1 + 0.2 * np.sin(calls / 40)
            return seconds * speed * rng.normal(1, 0.002)

        return sample

    times = regret.at_one_speed(regret.sampled([launch(seconds) for seconds in usual]))
    np.testing.assert_allclose(times / np.mean(times), usual / usual.mean(), rtol=0.01)
