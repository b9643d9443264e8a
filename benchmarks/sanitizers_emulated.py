"""The planted bugs of a result file in the emulator, and what its checks cost."""

from __future__ import annotations

import inspect
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.sanitizers_case import kernel_of, named_arguments, planted

LIMIT = 60.0  # seconds of a run
REPEATS = 3


def emulate(document: dict[str, Any], jobs: int) -> list[dict[str, Any]]:
    """The results of a document, each with what the emulator with all checks says of it."""
    results = document["results"]
    attribute(document)
    parts = [results[i::jobs] for i in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        emulated = [result for part in pool.map(emulate_part, parts) for result in part]
    places = {(r["class"], r["name"], r["twin"]): r for r in emulated}
    for cost in document["summary"]["costs"]:
        cost["seconds"] |= emulated_seconds(cost)
    return [places[r["class"], r["name"], r["twin"]] for r in results]


def attribute(document: dict[str, Any]) -> None:
    """Count the reports that name helpers instead of a kernel, as the tools do with inlined code.

    Such a report belongs to the run of its process whose kernel is in the report's file and calls
    the helpers; where several could have it, none of them gets it.
    """
    by_id = {result["id"]: result for result in document["results"]}
    for batch in document["summary"]["unnamed"]:
        for report in batch["reports"]:
            fit = [by_id[name] for name in batch["runs"] if may_have(by_id[name], report)]
            if len(fit) == 1:
                runs = fit[0]["runs"][batch["tool"]]
                runs["reports"] += 1
                runs.setdefault("report", report)


def may_have(run: dict[str, Any], report: str) -> bool:
    """Whether a report's accesses, `helper+0x10 in file:line`, can be those of a run's kernel."""
    case = next(c for c in planted().cases(run["class"]) if c.name == run["name"])
    function = kernel_of(case, run["twin"]).function
    called, file_of_kernel = names_called(function), Path(function.__code__.co_filename).name
    accesses = re.findall(r"(\w+)\+0x[0-9a-f]+ in (.+):\d+(?: |$)", report, re.MULTILINE)
    return bool(accesses) and all(file == file_of_kernel and name in called for name, file in accesses)


def names_called(function: Any) -> set[str]:
    """The global names that a function uses, and those that the functions among them use."""
    names: set[str] = set()
    waiting = [(function.__code__, function.__globals__)]
    while waiting:
        code, scope = waiting.pop()
        waiting += [(part, scope) for part in code.co_consts if inspect.iscode(part)]
        for name in set(code.co_names) - names:
            names.add(name)
            used = scope.get(name)
            if inspect.isfunction(used):
                waiting.append((used.__code__, used.__globals__))
    return names


def emulate_part(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    harness = planted()
    worker = harness.Worker(LIMIT)
    emulated = []
    try:
        for result in results:
            outcome = worker.run(result["class"], result["name"], result["twin"], None)
            emulated.append(
                result | {"emulator": {"verdict": outcome.verdict, "report": outcome.report[:600]}}
            )
    finally:
        worker.stop()
    return emulated


def emulated_seconds(cost: dict[str, Any]) -> dict[str, float]:
    """Median seconds of emulated launches of a twin, with and without checks."""
    case = next(c for c in planted().cases(cost["class"]) if c.name == cost["name"])
    kernel = kernel_of(case, True)

    def samples(checks: bool) -> Iterator[float]:
        launch = kernel.emulator(case.arch, checks=checks)
        for _ in range(1 + REPEATS):
            arguments, _ = named_arguments(case, True)
            start = time.perf_counter()
            launch[case.grid, case.block, None, case.shared_bytes](**arguments)
            yield time.perf_counter() - start

    timed = {"checked": list(samples(True)), "unchecked": list(samples(False))}
    return {name: statistics.median(each[1:]) for name, each in timed.items()}
