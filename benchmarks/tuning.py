"""Which configuration of a GEMM kernel is fastest: `kernels.tune` on given problems."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from typing import Any

import tensorcore_dsl as tc
from benchmarks import gemm_cases
from benchmarks.console import duration, number, table
from benchmarks.gemm import torch_with_gpu
from benchmarks.gemm_cases import COMMON, DTYPES, Case
from benchmarks.gemm_gpu import tile
from benchmarks.gemm_tables import rate
from benchmarks.harness import Report
from benchmarks.operands import draw, torch_type
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.families import family_of
from tensorcore_dsl.kernels.host.tuning import Trial, Tuning

SIZES = ((4096, 4096, 4096), (8192, 8192, 8192))
SHOWN = 5
# Fields of kernels.HopperConfig that can be listed, with gemm's usual values.
LISTS = {"BM": (128,), "BN": (256,), "stages": (0,), "cluster_m": (1,), "group_m": (8,), "mma_in_flight": (1,)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--sizes", type=gemm_cases.sizes_of, default=SIZES, metavar="MxNxK,...", help="problems")
    add("--dtypes", "--dtype", type=gemm_cases.dtypes_of, default=("bf16",), metavar="T,...",
        help=f"element types, of {', '.join(DTYPES)} (default: bf16)")  # fmt: skip
    add("--layouts", type=gemm_cases.layouts_of, default=(COMMON,), metavar="L,...",
        help=f"how A and B are stored (default: {COMMON})")  # fmt: skip
    for name in LISTS:
        add(f"--{name}", type=_numbers, metavar="N,...",
            help="0: as many as fit" if name == "stages" else "values to try")  # fmt: skip
    add("--seconds", type=float, default=240.0, metavar="S",
        help="start no further problem after this long (default: 240)")  # fmt: skip
    add("--no-remember", dest="remember", action="store_false", help="leave gemm's choices alone")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers") from None


def candidates(options: argparse.Namespace) -> list[HopperConfig] | None:
    """Every combination of the given lists; None where none is given."""
    if all(getattr(options, name) is None for name in LISTS):
        return None
    lists = [getattr(options, name) or usual for name, usual in LISTS.items()]
    found = [dict(zip(LISTS, values, strict=True)) for values in product(*lists)]
    configs = [HopperConfig(**values) for values in found]
    return [config if config.stages else config.with_stages() for config in configs]


def run(options: argparse.Namespace) -> Report:
    names = ("sizes", "dtypes", "layouts", "remember", "seconds", *LISTS)
    report = Report("tune", {name: getattr(options, name) for name in names}, {
        "clock": "events around launches on the same operands; finalists in turn",
        "operands": "standard normal, s8 uniform over all values",
    }, summary={"target": "cuda"})  # fmt: skip
    begin = time.perf_counter()
    with tc.target("cuda"):
        measure = measurer(torch_with_gpu(), candidates(options), options.remember)
        for size, layout, dtype in product(options.sizes, options.layouts, options.dtypes):
            case = Case(dtype, *size, layout)
            found: dict[str, Any] = asdict(case) | {"operations": case.operations}
            if time.perf_counter() - begin > options.seconds:
                found["left_out"] = f"{options.seconds:g} s are over; --seconds allows more"
            else:
                found |= attempt(measure, case)
            report.results.append(found)
            report.save(options.out)
            show(case, found)
    print(f"Written to {report.save(options.out)}")
    return report


def attempt(measure: Callable[[Case], dict[str, Any]], case: Case) -> dict[str, Any]:
    try:
        return measure(case)
    except Exception as error:  # of a problem; the others go on
        return {"failure": f"{type(error).__name__}: {error}"}


def measurer(torch: Any, given: Any, remember: bool, **how: Any) -> Callable[[Case], Any]:
    def measure(case: Case) -> dict[str, Any]:
        a, b = draw(torch, case, 0)
        out = torch.empty(
            (case.M, case.N), dtype=torch_type(torch, case.out), device=a.device
        )  # fmt: skip
        before = kernels.plan(a, b, None, out).config
        found = kernels.tune(a, b, out=out, candidates=given, remember=remember, **how)
        return {"key": found.key, "before": described(before), "trials": trials(found)}

    return measure


def trials(found: Tuning) -> list[dict[str, Any]]:
    return [described(trial.config) | outcome(trial) for trial in found.trials]


def described(config: Any) -> dict[str, Any]:
    return {"family": family_of(config), "tile": tile(config), "config": asdict(config)}


def outcome(trial: Trial) -> dict[str, Any]:
    return {"failure": trial.failure} if trial.failure else {"seconds": trial.seconds}


def show(case: Case, found: dict[str, Any]) -> None:
    """The fastest configurations, and where gemm's own was."""
    said = found.get("failure") or found.get("left_out")
    if said:
        print(f"{case}: {said}\n")
        return
    rows = [
        row(place, trial, found)
        for place, trial in enumerate(found["trials"], 1)
        if place <= SHOWN or trial["config"] == found["before"]["config"]
    ]
    columns = ["", "family", "tile", "cluster_m", "group_m", "mma_in_flight", "time", "TFLOP/s", "remarks"]
    failed = sum("failure" in trial for trial in found["trials"])
    table(f"{case}: {len(found['trials'])} tried, {failed} failed", columns, rows)


def row(place: int, trial: dict[str, Any], found: dict[str, Any]) -> list[str]:
    seconds, config = trial.get("seconds"), trial["config"]
    mine = "gemm's choice until now" if config == found["before"]["config"] else ""
    return [
        str(place), trial["family"], trial["tile"],
        *(number(config.get(name), "d") for name in ("cluster_m", "group_m", "mma_in_flight")),
        duration(seconds) if seconds else "-",
        rate(found["operations"] / seconds / 1e12) if seconds else "-",
        trial.get("failure") or mine,
    ]  # fmt: skip
