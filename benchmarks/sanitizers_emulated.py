"""The planted bugs of a result file in the emulator, and what its checks cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.sanitizers_case import kernel_of, named_arguments, planted

LIMIT = 60.0  # seconds of a run
REPEATS = 3


def emulate(document: dict[str, Any], jobs: int) -> list[dict[str, Any]]:
    """The results of a document, each with what the emulator with all checks says of it."""
    results = document["results"]
    parts = [results[i::jobs] for i in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        emulated = [found for part in pool.map(emulate_part, parts) for found in part]
    places = {(r["class"], r["name"], r["twin"]): r for r in emulated}
    for cost in document["summary"]["costs"]:
        cost["seconds"] |= emulated_seconds(cost)
    return [places[r["class"], r["name"], r["twin"]] for r in results]


def emulate_part(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    harness = planted()
    worker = harness.Worker(LIMIT)
    found = []
    try:
        for result in results:
            outcome = worker.run(result["class"], result["name"], result["twin"], None)
            found.append(result | {"emulator": {
                "verdict": outcome.verdict, "report": outcome.report[:600],
            }})  # fmt: skip
    finally:
        worker.stop()
    return found


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
