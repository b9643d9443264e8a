"""Find the fastest configurations of the GEMM kernels: `kernels.tune` on chosen problems."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
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
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.families import family_of

SIZES = gemm_cases.squares(4096, 8192)
SHOWN = 5  # configurations of each problem
# Fields of kernels.HopperConfig that have an option, and their usual values.
FIELDS = {
    "BM": (128,),
    "BN": (256,),
    "stages": (0,),
    "cluster_m": (1,),
    "group_m": (8,),
    "mma_in_flight": (1,),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    gemm_cases.add_problem_arguments(
        parser, dtypes=(("bf16",), "bf16"), sizes=(SIZES, "4096,8192"), layouts=((COMMON,), COMMON)
    )
    for name in FIELDS:
        add(
            f"--{name.replace('_', '-')}",
            type=_integers,
            metavar="N,...",
            help="0: as many as fit" if name == "stages" else "values to try",
        )
    add_seconds(parser, 240.0, "problem")
    add("--no-remember", dest="remember", action="store_false", help="do not write to gemm's tuning cache")


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers") from None


def candidates(options: argparse.Namespace) -> list[HopperConfig] | None:
    """Every combination of the given values; None where no option is given."""
    if all(getattr(options, name) is None for name in FIELDS):
        return None
    values = [getattr(options, name) or usual for name, usual in FIELDS.items()]
    configs = [HopperConfig(**dict(zip(FIELDS, each))) for each in product(*values)]
    return [config if config.stages else config.with_stages() for config in configs]


def run(options: argparse.Namespace) -> Report:
    names = ("sizes", "dtypes", "layouts", "remember", "seconds", *FIELDS)
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
        measure = measurer(torch_with_gpu(), candidates(options), options.remember)
        for size, layout, dtype in product(options.sizes, options.layouts, options.dtypes):
            case = Case(dtype, *size, layout)
            result: dict[str, Any] = asdict(case) | {"operations": case.operations}
            if time.perf_counter() - begin > options.seconds:
                result["left_out"] = f"{options.seconds:g} s are over; --seconds allows more"
            else:
                result |= attempt(measure, case)
            report.results.append(result)
            report.save(options.out)
    return report


def measurer(torch: Any, candidates: Any, remember: bool, **how: Any) -> Callable[[Case], Any]:
    def measure(case: Case) -> dict[str, Any]:
        a, b = draw(torch, case, 0)
        dtype = torch_type(torch, case.out)
        out = torch.empty((case.M, case.N), dtype=dtype, device=a.device)
        before = kernels.plan(a, b, None, out).config
        tuned = kernels.tune(a, b, out=out, candidates=candidates, remember=remember, **how)
        trials = [
            described(trial.config)
            | ({"failure": trial.failure} if trial.failure else {"seconds": trial.seconds})
            for trial in tuned.trials
        ]
        return {"key": tuned.key, "before": described(before), "trials": trials}

    return measure


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
        **{name: number(config.get(name), "d") for name in list(FIELDS)[3:]},
        "time": duration(seconds),
        "TFLOP/s": rate(result["operations"] / seconds if seconds else None, 1e12),
        "notes": one_line(trial.get("failure") or before),
    }
