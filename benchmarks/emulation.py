"""Whole emulated kernels: GEMMs of every type, and kernels of users without and with checks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.emulated_kernels import CHECKED, Problem, products
from benchmarks.harness import Report, attempt, time_on_host
from benchmarks.tables import Table, duration, number, one_line, progress, rate
from tensorcore_dsl.environment.processors import cores
from tensorcore_dsl.interpreter import launch

SIZE, QUICK = 1024, 512
SAMPLES = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--size", type=int, metavar="N",
        help=f"M, N and K of the GEMMs (default: {SIZE}, {QUICK} with --quick)")  # fmt: skip
    add("--workers", type=int, default=min(2, cores()), metavar="N",
        help="cores that are used beside one alone (default: 2)")  # fmt: skip
    add("--only", metavar="TEXT", default="", help="cases whose name has this text")


def run(options: argparse.Namespace) -> Report:
    size = options.size or (QUICK if options.quick else SIZE)
    report = Report("emulation", {"size": size, "workers": options.workers}, {
        "clock": f"time.perf_counter around a launch: the least of {SAMPLES}, after one that "
                 "compiles, whose result is compared with NumPy's",
        "checked": "kernels of users: with all checks, races among them; else bounds alone",
    })  # fmt: skip
    cases = {**products(size), **CHECKED}
    for name in progress([name for name in cases if options.only in name], "emulation"):
        result = {"case": name, "kind": "checked" if name in CHECKED else "product"}
        report.results.append(result | attempt(_measure, cases[name], options.workers))
    return report


def _measure(make: Callable[[], Problem], workers: int) -> dict[str, Any]:
    problem = make()
    least = {count: _seconds(problem, False, count) for count in {1, workers}}
    result = {
        "seconds": least[workers], "amount": problem.amount, "unit": problem.unit,
        "per_second": problem.amount / least[workers],
    }  # fmt: skip
    if workers > 1:
        serial = (workers * least[workers] / least[1] - 1) / (workers - 1)
        result["serial"] = min(max(serial, 0.0), 1.0)
    if problem.kernel:
        result["checked"] = _seconds(problem, True, workers)
        result["ratio"] = result["checked"] / least[workers]
    return result


def _seconds(problem: Problem, checks: bool, workers: int) -> float:
    run = problem.runner(checks)
    with _cores(workers):
        problem.compare(run())
        return time_on_host(run, SAMPLES).best


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Let launches use so many cores."""
    with patch.object(launch, "cores", lambda: count):
        yield


def tables(document: dict[str, Any]) -> Iterator[Table]:
    size, workers = (document["options"][name] for name in ("size", "workers"))
    titles = {
        "product": f"Emulated GEMMs, {size}^3, {workers} cores",
        "checked": f"Emulated kernels of users, {workers} cores",
    }
    for kind, title in titles.items():
        if rows := [_row(result) for result in document["results"] if result["kind"] == kind]:
            yield Table(title, rows)


def _row(result: dict[str, Any]) -> dict[str, str]:
    unit, serial = result.get("unit", ""), result.get("serial")
    return {
        "case": result["case"],
        "time": duration(result.get("seconds")),
        "rate": f"{rate(result.get('per_second'), 1e6)} M {unit}/s",
        "with all checks": duration(result.get("checked")),
        "checked / unchecked": number(result.get("ratio"), ".2f"),
        "share that one core at a time does": number(serial, ".0%"),
        "notes": one_line(result.get("failure", "")),
    }
