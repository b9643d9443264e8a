"""Does the emulator's timeline rank configurations of the GEMM as a GPU does?

`measure` times the configurations of `timeline_cases` on a GPU and writes a result file.
`compare FILE` estimates the same configurations from emulated runs and prints rank correlations.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks import gemm_cases
from benchmarks.accuracy import check
from benchmarks.gemm import torch_with_gpu
from benchmarks.gemm_cases import Case, Size
from benchmarks.gpu import Monitor, TimedLaunch, cache_bytes, sets_beyond_cache, time_interleaved
from benchmarks.harness import GPU_STATE, Report, ask_gpu, failure
from benchmarks.operands import Operands, draw, operands
from benchmarks.tables import Table, duration, number, one_line, progress, rate
from benchmarks.timeline_cases import DTYPE, SIZES, Candidate, candidates, config_of
from benchmarks.timeline_estimate import estimate
from tensorcore_dsl import kernels

ROUNDS, QUICK_ROUNDS = 7, 3
WORST = 12  # estimates of a comparison that are shown
ESTIMATE = "from emulated runs of one cluster; the cost table was fitted to every second result"
METHOD = {
    "operands": "standard normal, bf16, A by rows and B by columns",
    "clock": "CUDA events around graphs of launches, without host time",
    "order": "a sample of each configuration a round; odd rounds go backwards",
    "buffers": "rotating sets of A, B, D, together twice the L2 cache",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("measure", "compare"), help="measure on a GPU, or compare estimates")
    add("file", nargs="?", type=Path, help="compare: a result file of `measure`")
    add(
        "--sizes",
        type=gemm_cases.sizes_of,
        default=SIZES,
        metavar="MxNxK,...",
        help=f"problems (default: {','.join('x'.join(map(str, s)) for s in SIZES)})",
    )


def run(options: argparse.Namespace) -> Report:
    if options.action == "measure":
        return measure(options)
    if options.file is None:
        raise ValueError("compare needs a result file of `measure`: timeline compare FILE")
    return compare(json.loads(options.file.read_text(encoding="utf-8")), options)


def compare(measured: dict[str, Any], options: argparse.Namespace) -> Report:
    """The measured configurations with their estimates; --quick takes those held out alone."""
    report = Report("timeline-compared", {}, {"estimate": ESTIMATE}, summary={"target": "cpu"})
    for place, result in enumerate(progress(measured["results"], "timeline")):
        held_out = place % 2 == 1
        if "median" not in result or (options.quick and not held_out):
            continue
        config = config_of(result["family"], result["config"])
        candidate = Candidate(config, (result["M"], result["N"], result["K"]))
        estimated = estimate(candidate, result)
        report.results.append(result | {"estimate": estimated, "held_out": held_out})
    report.summary["correlations"] = correlations(report.results)
    return report


def correlations(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Spearman's rank correlation of estimates and times, for each family and size and over all.

    Over several sizes it ranks the rates of operations.
    """
    pairs = []
    sizes = list(dict.fromkeys((r["M"], r["N"], r["K"]) for r in results))
    groups: list[tuple[str, Any]] = [
        (family, size) for family in ("sm90", "sm80", "") for size in (*sizes, None)
    ]
    for (family, size), held_out in product(groups, (False, True)):
        chosen = [
            r
            for r in results
            if r["family"] == (family or r["family"])
            and r["held_out"] >= held_out
            and (r["M"], r["N"], r["K"]) == (size or (r["M"], r["N"], r["K"]))
        ]
        if len(chosen) > 2:
            ranks = [(r["estimate"] / r["operations"], r["median"] / r["operations"]) for r in chosen]
            pairs.append(
                {
                    "family": family,
                    "size": list(size or ()),
                    "held_out": held_out,
                    "count": len(chosen),
                    "correlation": spearman(*zip(*ranks, strict=True)),
                }
            )
    return pairs


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rank correlation; equal numbers share their mean rank."""
    places = [
        np.searchsorted(np.sort(x), x) + np.searchsorted(np.sort(x), x, "right")
        for x in (np.asarray(left), np.asarray(right))
    ]
    return float(np.corrcoef(*places)[0, 1])


def measure(options: argparse.Namespace) -> Report:
    """Seconds of every configuration for every size."""
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    report = Report(
        "timeline", {"rounds": rounds, "sizes": list(options.sizes)}, METHOD, summary={"target": "cuda"}
    )
    torch = torch_with_gpu()
    with tc.target("cuda"), Monitor() as monitor:
        report.machine["gpu_before"] = ask_gpu(GPU_STATE)
        for size in options.sizes:
            begin = time.perf_counter()
            results = measure_size(torch, size, rounds)
            state = monitor.between(begin, time.perf_counter())
            report.results += [result | {"state": state} for result in results]
            report.save(options.out)
        report.machine["gpu_after"] = ask_gpu(GPU_STATE)
    return report


def measure_size(torch: Any, size: Size, rounds: int) -> list[dict[str, Any]]:
    """The results of all configurations for one size, timed in turn on the same operands."""
    case = Case(DTYPE, *size)
    a, b = draw(torch, case, 0)
    data = operands(torch, case, a, b, sets_beyond_cache(case.bytes, cache_bytes(torch)))
    results, launches = [], []
    for candidate in progress(candidates((size,)), str(case)):
        result = described(candidate)
        try:
            launch = TimedLaunch(torch, partial(launch_on, data, candidate), data.sets)
            result["error"], result["correct"] = check(torch, data, data.d[0])
            result |= resources(data, candidate)
            launches.append((result, launch))
        except Exception as error:  # a failure is a result, and the others are still measured
            result |= failure(error)
        results.append(result)
    timings = time_interleaved([launch for _, launch in launches], rounds) if launches else []
    for (result, _), timing in zip(launches, timings, strict=True):
        result |= timing.json()
    return results


def launch_on(data: Operands, candidate: Candidate, i: int) -> None:
    kernels.gemm(data.a[i], data.b[i], out=data.d[i], family=candidate.family, config=candidate.config)


def resources(data: Operands, candidate: Candidate) -> dict[str, Any]:
    """Registers of a thread and bytes of shared memory of a block, which limit resident blocks."""
    a, b, d = data.a[0], data.b[0], data.d[0]
    plan = kernels.plan(a, b, None, d, family=candidate.family, config=candidate.config)
    used = plan.kernel.resources(a, b, d, d, 1.0, 0.0, arch="sm_90a", **dict(plan.options))
    return {"registers": used.registers, "shared_bytes": used.shared_bytes}


def described(candidate: Candidate) -> dict[str, Any]:
    M, N, K = candidate.size
    return {
        "family": candidate.family,
        "tile": candidate.name,
        "M": M,
        "N": N,
        "K": K,
        "operations": 2 * M * N * K,
        "config": asdict(candidate.config),
    }


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """The times of each size, the fastest first; of a comparison, how well estimates rank them."""
    results = document["results"]
    if "correlations" in document["summary"]:
        yield from comparison(document)
        return
    for size in dict.fromkeys((r["M"], r["N"], r["K"]) for r in results):
        rows = [r for r in results if (r["M"], r["N"], r["K"]) == size]
        rows.sort(key=lambda r: r.get("median", float("inf")))
        yield Table(
            " x ".join(map(str, size)),
            [
                {
                    "tile": r["tile"],
                    "family": r["family"],
                    "time": duration(r.get("median")),
                    "TFLOP/s": rate(r["operations"] / r["median"] if "median" in r else None, 1e12),
                    "notes": one_line(r.get("failure") or ("" if r["correct"] else "wrong result")),
                }
                for r in rows
            ],
        )


def comparison(document: dict[str, Any]) -> Iterator[Table]:
    """The rank correlations, and where the estimates are worst."""
    yield Table(
        "Rank correlation of estimated and measured times",
        [
            {
                "family": row["family"] or "both",
                "size": " x ".join(map(str, row["size"])) or "all",
                "configurations": "held out" if row["held_out"] else "all",
                "number": str(row["count"]),
                "Spearman": number(row["correlation"], ".3f"),
            }
            for row in document["summary"]["correlations"]
        ],
    )
    off = lambda r: abs(math.log(r["estimate"] / r["median"]))
    worst = sorted(document["results"], key=off, reverse=True)
    yield Table(
        "The worst estimates",
        [
            {
                "tile": r["tile"],
                "size": f"{r['M']} x {r['N']} x {r['K']}",
                "estimated": duration(r["estimate"]),
                "measured": duration(r["median"]),
                "ratio": number(r["estimate"] / r["median"], ".2f"),
            }
            for r in worst[:WORST]
        ],
    )
