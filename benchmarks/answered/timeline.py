"""Measure the configurations of `timeline_cases` on a GPU. The emulator's timeline was fitted to them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from benchmarks.answered.timeline_cases import DTYPE, SIZES, Candidate, candidates
from benchmarks.gpu import Monitor, TimedLaunch, cache_bytes, sets_beyond_cache, time_interleaved
from benchmarks.harness import GPU_STATE, Report, ask_gpu, failure
from benchmarks.products import gemm_cases
from benchmarks.products.accuracy import check
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.products.gemm_cases import Case, Size
from benchmarks.products.operands import Operands, draw, operands
from benchmarks.tables import Table, duration, one_line, progress, rate
from tensorcore_dsl import kernels

ROUNDS, QUICK_ROUNDS = 7, 3
METHOD = {
    "operands": "standard normal, bf16, A by rows and B by columns",
    "clock": "CUDA events around graphs of launches, without host time",
    "order": "a sample of each configuration a round; odd rounds go backwards",
    "buffers": "rotating sets of A, B, D, together twice the L2 cache",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=gemm_cases.sizes_of,
        default=SIZES,
        metavar="MxNxK,...",
        help=f"problems (default: {','.join('x'.join(map(str, s)) for s in SIZES)})",
    )


def run(options: argparse.Namespace) -> Report:
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
    buffers = operands(torch, case, a, b, sets_beyond_cache(case.bytes, cache_bytes(torch)))
    results, launches = [], []
    for candidate in progress(candidates((size,)), str(case)):
        result = described(candidate)
        try:
            launch = TimedLaunch(torch, partial(launch_on, buffers, candidate), buffers.sets)
            result["error"], result["correct"] = check(torch, buffers, buffers.d[0])
            result |= resources(buffers, candidate)
            launches.append((result, launch))
        except Exception as error:  # a failure is a result, and the others are still measured
            result |= failure(error)
        results.append(result)
    timings = time_interleaved([launch for _, launch in launches], rounds) if launches else []
    for (result, _), timing in zip(launches, timings, strict=True):
        result |= timing.json()
    return results


def launch_on(buffers: Operands, candidate: Candidate, i: int) -> None:
    kernels.gemm(
        buffers.a[i], buffers.b[i], out=buffers.d[i], family=candidate.family, config=candidate.config
    )


def resources(buffers: Operands, candidate: Candidate) -> dict[str, Any]:
    """Registers of a thread and bytes of shared memory of a block, which limit resident blocks."""
    a, b, d = buffers.a[0], buffers.b[0], buffers.d[0]
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
    """The times of each size, the fastest first."""
    results = document["results"]
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
