"""Whole emulated kernels: GEMMs of every type, and kernels of users without and with checks.

The launches run in this process, first launches in new ones. With `--against`, processes with this
package and processes with the package of another checkout take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.emulated_kernels import CHECKED, Problem, products
from benchmarks.emulation_process import ROOT, first_launches, in_turns, package_of
from benchmarks.harness import Report, attempt, commit, geometric_mean, time_on_host
from benchmarks.tables import Table, duration, number, one_line, progress, rate
from tensorcore_dsl.environment.processors import cores
from tensorcore_dsl.interpreter.core.policy import executing

SIZE, QUICK = 1024, 512
SAMPLES = 9
FIRST = ("vector add", "flash_attention", "hopper_attention")  # their first launches are measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--size",
        type=int,
        metavar="N",
        help=f"M, N and K of the GEMMs (default: {SIZE}, {QUICK} with --quick)",
    )
    add(
        "--workers",
        type=int,
        default=min(2, cores()),
        metavar="N",
        help="cores of the second measurement; the first one takes one core (default: 2)",
    )
    add("--only", metavar="TEXT", default="", help="cases whose name has this text")
    add("--against", type=Path, metavar="PATH", help="compare with the package of another checkout")
    add("--rounds", type=int, metavar="N", help="new processes of each case (default: 3, 1 with --quick)")


def run(options: argparse.Namespace) -> Report:
    size = options.size or (QUICK if options.quick else SIZE)
    rounds = options.rounds or (1 if options.quick else 3)
    used = {"size": size, "workers": options.workers, "rounds": rounds}
    if options.against:
        used["against"] = commit(options.against) or options.against.name
    report = Report("emulation", used, {
        "clock": "time.perf_counter around a launch: the least, after one that compiles, whose "
                 "result is compared with NumPy's",
        "checked": "kernels of users: with all checks, races among them; else bounds alone",
        "first": "in new processes, with all checks, without imports",
        "turns": "in new processes; with one worker these and first launches are CPU time",
    })  # fmt: skip
    cases = {**products(size), **CHECKED}
    names = [name for name in cases if options.only in name]
    for name in progress([] if options.against else names, "emulation"):
        result = {"case": name, "kind": "checked" if name in CHECKED else "product"}
        report.results.append(result | attempt(_measure, cases[name], options.workers))
    report.results += _in_processes(names, options.against, rounds, (size, options.workers))
    return report


def _in_processes(
    names: list[str], against: Path | None, rounds: int, more: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Compare launches by both packages if there is another one, and measure first launches."""
    with ExitStack() as stack:
        packages = {"this": stack.enter_context(package_of(ROOT))}
        if against:
            packages["other"] = stack.enter_context(package_of(against))
        for name in progress(names if against else [], "in turns"):
            for checks in (False, True)[: 1 + (name in CHECKED)]:
                answers = in_turns(packages, (name, checks, *more), rounds)
                yield {"case": name + ", all checks" * checks, "kind": "turns"} | answers
        for name in progress([name for name in FIRST if name in names], "first launches"):
            for state, answers in first_launches(packages, (name, True, *more), rounds).items():
                yield {"case": f"{name}, {state} cache", "kind": "first"} | answers


def _measure(make: Callable[[], Problem], workers: int) -> dict[str, Any]:
    problem = make()
    least = {count: _seconds(problem, False, count) for count in {1, workers}}
    result = {
        "seconds": least[workers],
        "amount": problem.amount,
        "unit": problem.unit,
        "per_second": problem.amount / least[workers],
    }
    if workers > 1:
        serial = (workers * least[workers] / least[1] - 1) / (workers - 1)
        result["serial"] = min(max(serial, 0.0), 1.0)
    if problem.kernel:
        result["checked"] = _seconds(problem, True, workers)
        result["ratio"] = result["checked"] / least[workers]
    return result


def _seconds(problem: Problem, checks: bool, workers: int) -> float:
    run = problem.runner(checks)
    with executing(cores=workers):
        problem.compare(run())
        return time_on_host(run, SAMPLES).best


def tables(document: dict[str, Any]) -> Iterator[Table]:
    options, results = document["options"], document["results"]
    workers = f"{options['workers']} cores"
    titles = {
        "product": f"Emulated GEMMs, {options['size']}^3, {workers}",
        "checked": f"Emulated kernels of users, {workers}",
        "turns": f"Launches by this checkout and by {options.get('against')}, {workers}",
        "first": f"First launches in new processes, {workers}",
    }
    for kind, title in titles.items():
        chosen = [result for result in results if result["kind"] == kind]
        row = _row if kind in ("product", "checked") else _comparison
        if chosen:
            yield Table(title, [row(result) for result in [*chosen, *_mean(chosen)]])


def _mean(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A result with the geometric mean of all ratios, if there are some."""
    ratios = [result["ratio"] for result in results if "ratio" in result]
    return [{"case": "geometric mean", "ratio": geometric_mean(ratios)}] if ratios else []


def _row(result: dict[str, Any]) -> dict[str, str]:
    pace = result.get("per_second", 0.0)
    scale, prefix = (1e9, "G") if pace >= 1e9 else (1e6, "M")
    return {
        "case": result["case"],
        "time": duration(result.get("seconds")),
        "rate": f"{rate(pace, scale)} {prefix} {result['unit']}/s" if pace else "-",
        "with all checks": duration(result.get("checked")),
        "checked / unchecked": number(result.get("ratio"), ".2f"),
        "share that one core at a time does": number(result.get("serial"), ".0%"),
        "notes": one_line(result.get("failure", "")),
    }


def _comparison(result: dict[str, Any]) -> dict[str, str]:
    seconds = result.get("seconds", {})
    return {
        "case": result["case"],
        "this": duration(seconds.get("this")),
        "other": duration(seconds.get("other")),
        "this / other": number(result.get("ratio"), ".3f"),
        "notes": one_line(result.get("failure") or result.get("failure_of_other", "")),
    }
