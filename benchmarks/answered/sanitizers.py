"""Launch the planted bugs of tests/planted and their correct twins with the tools of compute-sanitizer.

Each is launched on a GPU without a tool and with each tool. docs/checking.md has the result.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import pickle
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.answered.sanitizers_case import REFUSED, SEED, kernel_of, planted
from benchmarks.answered.sanitizers_process import (
    COMMAND,
    HUNG,
    LOST,
    PLAIN,
    TOOLS,
    Batch,
    Runner,
    Sanitizer,
    available,
)
from benchmarks.harness import Report
from benchmarks.tables import Table

DEADLOCKS = "deadlocks"  # the class of bugs that never end
WAVE = 14  # cases of each class in a wave; a wave ends before the next one starts
MAX_RUNS = 24  # launches of one process, at most
PLAIN_TIMEOUT = 8.0  # seconds of a launch without a tool
RESERVE = 6.0  # seconds to end processes and to write the file
METHOD = {
    "bugs": "tests/planted; a launch of each on the GPU, with NumPy arrays that start allocations",
    "found": "a report of the tool that names the kernel, or the last one before a fault",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--per-class", type=int, default=WAVE, metavar="N", help="bugs of each class (0: all)")
    add("--jobs", type=int, default=14, metavar="N", help="processes side by side")
    add("--seconds", type=float, default=480.0, help="time for all of it")
    add("--timeout", type=float, default=20.0, help="seconds for each launch with a tool")
    add(
        "--deadlocks",
        action="store_true",
        help="also the class deadlocks, and tools on what hangs without them",
    )
    add("--target", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial without a GPU")


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """Tables of the bugs and twins that each tool reports, by class."""
    results = document["results"]
    rows = []
    for kind in dict.fromkeys(r["class"] for r in results):
        of_class = [r for r in results if r["class"] == kind]
        counts = {
            f"{tool}, {who}": sum(
                bool(r["runs"].get(tool, {}).get("reports")) for r in of_class if r["twin"] == twin
            )
            for who, twin in (("bugs", False), ("twins", True))
            for tool in TOOLS
        }
        rows.append({"class": kind, **{name: str(count) for name, count in counts.items()}})
    yield Table("Reported by compute-sanitizer", rows)


# -- runs -----------------------------------------------------------------------------------


def chosen(per_class: int, deadlocks: bool) -> list[list[dict[str, Any]]]:
    """Choose runs of bugs and distinct twins, in waves. Early waves have as many kernels as possible.

    Bugs with equal kernel, launch and arguments share a twin.
    """
    harness, numbers = planted(), iter(range(10**6))
    waves: list[list[dict[str, Any]]] = []
    for kind in (k for k in harness.CLASSES if deadlocks or k != DEADLOCKS):
        twins: dict[Any, dict[str, Any]] = {}
        cases = spread(harness.cases(kind), kind)
        for place, case in enumerate(cases[: per_class or None]):
            wave = place // WAVE
            waves += [[] for _ in range(wave + 1 - len(waves))]
            bug = {"class": kind, "name": case.name, "twin": False}
            waves[wave].append({"id": f"san_{next(numbers)}_bug", **bug})
            key = identity(case)
            if key not in twins:
                twin = {"id": f"san_{next(numbers)}_twin", **bug, "twin": True, "bugs": []}
                twins[key] = twin
                waves[wave].append(twin)
            twins[key]["bugs"].append(case.name)
    return waves


def spread(cases: Sequence[Any], seed: str) -> list[Any]:
    """The cases in a seeded order in which all kernels come before the second bug of any."""
    draw = random.Random(seed)
    drawn = draw.sample(list(cases), len(cases))
    seen: dict[str, int] = {}
    turns = []
    for case in drawn:
        name = case.kernel.function.__name__
        seen[name] = seen.get(name, -1) + 1
        turns.append(seen[name])
    order = sorted(range(len(drawn)), key=lambda i: turns[i])
    return [drawn[i] for i in order]


def identity(case: Any) -> Any:
    """Return a key that distinguishes launches of twins."""
    arguments, _ = case.make(np.random.default_rng(SEED))
    values = [
        (name, str(value.dtype), value.shape, value.strides, value.tobytes())
        if isinstance(value, np.ndarray)
        else (name, repr(value))
        for name, value in arguments.items()
    ]
    kernel = kernel_of(case, True)
    launched = repr((case.grid, case.block, case.shared_bytes))
    return id(kernel), launched, hashlib.sha256(pickle.dumps(values)).hexdigest()


# -- on the GPU ------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> Report:
    """Run waves until the time is over."""
    begin = time.monotonic()
    path = available()
    if path is None:
        raise ValueError(f"{COMMAND} is not found; it is part of the CUDA toolkit")
    sanitizer = Sanitizer(path)
    report = Report("sanitizers", {**vars(options), "out": ""}, METHOD, summary={"target": options.target})
    report.machine["sanitizer"] = sanitizer.version
    print(f"{sanitizer.version}; options: {' '.join(sanitizer.options)}", flush=True)
    waves = chosen(options.per_class, options.deadlocks)
    with tempfile.TemporaryDirectory() as folder:
        deadline = begin + options.seconds - RESERVE
        runner = Runner(Path(folder), sanitizer, options.target, deadline)
        for wave in waves:
            measure_wave(runner, wave, options, begin)
            report.results += [run | {"runs": runs_of(runner, run)} for run in wave]
            report.summary["unnamed"] = runner.unnamed
            report.save(options.out)
            if time.monotonic() > deadline:
                break
    return report


def measure_wave(
    runner: Runner, wave: list[dict[str, Any]], options: argparse.Namespace, begin: float
) -> None:
    """Launch each run without a tool, then the runs that ended with every tool."""
    plain_timeout = min(PLAIN_TIMEOUT, options.timeout) if options.target == "cuda" else 90.0
    in_pool(runner, [(PLAIN, wave)], options, plain_timeout)
    results = {run["id"]: runner.records.get((run["id"], PLAIN), {}).get("result") for run in wave}
    said(begin, f"plain: {counted(results.values())}")
    left_out = (None, REFUSED, LOST) if options.deadlocks else (None, REFUSED, LOST, HUNG)
    fit = [run for run in wave if results[run["id"]] not in left_out]
    in_pool(runner, [(tool, fit) for tool in TOOLS], options, options.timeout)
    for tool in TOOLS:
        bugs, twins = (
            [runner.records.get((run["id"], tool), {}) for run in fit if run["twin"] == twin]
            for twin in (False, True)
        )
        said(
            begin,
            f"{tool}: {reported(bugs)} bugs and {reported(twins)} twins reported; "
            f"{counted(f.get('result') for f in bugs + twins)}",
        )


def reported(runs: list[dict[str, Any]]) -> str:
    return f"{sum(bool(f.get('reports')) for f in runs)} of {len(runs)}"


def counted(results: Any) -> str:
    listed = list(results)
    return ", ".join(f"{listed.count(r)} {r or 'without time'}" for r in dict.fromkeys(listed))


def said(begin: float, text: str) -> None:
    print(f"{time.monotonic() - begin:4.0f} s  {text}", flush=True)


def in_pool(
    runner: Runner, work: list[tuple[str, list[dict[str, Any]]]], options: argparse.Namespace, timeout: float
) -> None:
    """Run the batches of tools side by side; bugs and twins share no process."""
    runs = sum(len(some) for _, some in work)
    most = min(MAX_RUNS, max(4, math.ceil(runs / (2 * options.jobs))))
    batches = []
    for tool, some in work:
        for twin in (False, True):
            part = [run for run in some if run["twin"] == twin]
            pieces = math.ceil(len(part) / most)
            batches += [Batch(tool, part[i::pieces], timeout=timeout) for i in range(pieces)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for batch, done in [(batch, pool.submit(runner.run, batch)) for batch in batches]:
            try:
                done.result()
            except Exception as error:  # the others still run
                print(f"{batch.tool}: {type(error).__name__}: {error}", flush=True)


def runs_of(runner: Runner, run: dict[str, Any]) -> dict[str, Any]:
    results_by_tool = {tool: runner.records.get((run["id"], tool)) for tool in (PLAIN, *TOOLS)}
    return {tool: result for tool, result in results_by_tool.items() if result is not None}
