"""Find the fastest configurations of the GEMM kernels: `kernels.tune` on chosen problems."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

import tensorcore_dsl as tc
from benchmarks.harness import Report, add_seconds, attempt
from benchmarks.products import gemm_cases
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.products.gemm_cases import COMMON, Case
from benchmarks.products.gemm_gpu import tile
from benchmarks.products.operands import draw, torch_type
from benchmarks.tables import Table, duration, number, one_line, rate
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.problem.families import family_of

SIZES = gemm_cases.squares(4096, 8192)
SHOWN = 5  # configurations of each problem
FIELDS = ("cluster_m", "group_m", "mma_in_flight")  # fields of configurations that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gemm_cases.add_problem_arguments(
        parser, dtypes=(("bf16",), "bf16"), sizes=(SIZES, "4096,8192"), layouts=((COMMON,), COMMON)
    )
    add_seconds(parser, 240.0, "problem")
    parser.add_argument(
        "--no-remember", dest="remember", action="store_false", help="do not write to gemm's tuning cache"
    )


def run(options: argparse.Namespace) -> Report:
    names = ("sizes", "dtypes", "layouts", "remember", "seconds")
    report = Report(
        "tune",
        {name: getattr(options, name) for name in names},
        {
            "clock": "events around launches on the same operands; finalists are interleaved",
            "operands": "standard normal, s8 uniform over all values",
        },
        summary={"target": "cuda"},
    )
    begin = time.perf_counter()
    with tc.target("cuda"):
        torch = torch_with_gpu()
        for size, layout, dtype in product(options.sizes, options.layouts, options.dtypes):
            case = Case(dtype, *size, layout)
            result: dict[str, Any] = asdict(case) | {"operations": case.operations}
            if time.perf_counter() - begin > options.seconds:
                result["left_out"] = f"{options.seconds:g} s are over; --seconds allows more"
            else:
                result |= attempt(measure, torch, case, options.remember)
            report.results.append(result)
            report.save(options.out)
    return report


def measure(torch: Any, case: Case, remember: bool) -> dict[str, Any]:
    a, b = draw(torch, case, 0)
    out = torch.empty((case.M, case.N), dtype=torch_type(torch, case.out), device=a.device)
    before = kernels.plan(a, b, None, out).config
    tuned = kernels.tune(a, b, out=out, remember=remember)
    trials = [
        described(trial.config)
        | ({"failure": trial.failure} if trial.failure else {"seconds": trial.seconds})
        for trial in tuned.trials
    ]
    return {"key": tuned.key, "before": described(before), "trials": trials}


def described(config: Any) -> dict[str, Any]:
    return {"family": family_of(config), "tile": tile(config), "config": asdict(config)}


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """The fastest configurations of each problem, and gemm's earlier choice."""
    for result in document["results"]:
        title = str(Case.of(result))
        if "trials" not in result:
            problem = result.get("failure") or result["left_out"]
            yield Table(title, [{"notes": one_line(problem)}])
            continue
        failed = sum("failure" in trial for trial in result["trials"])
        yield Table(
            f"{title}: {len(result['trials'])} tried, {failed} failed",
            [
                trial_row(place, trial, result)
                for place, trial in enumerate(result["trials"], 1)
                if place <= SHOWN or trial["config"] == result["before"]["config"]
            ],
        )


def trial_row(place: int, trial: dict[str, Any], result: dict[str, Any]) -> dict[str, str]:
    seconds, config = trial.get("seconds"), trial["config"]
    before = "gemm's choice before" if config == result["before"]["config"] else ""
    return {
        "place": str(place),
        "family": trial["family"],
        "tile": trial["tile"],
        **{name: number(config.get(name), "d") for name in FIELDS},
        "time": duration(seconds),
        "TFLOP/s": rate(result["operations"] / seconds if seconds else None, 1e12),
        "notes": one_line(trial.get("failure") or before),
    }
