"""The steps of docs/hopper_tutorial.md compared with `kernels.gemm` and cuBLAS, on an H100 or H200."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.gpu import WARM_UP, Launch, TimedLaunch, cache_bytes, sets_beyond_cache
from benchmarks.harness import Report, Timing
from benchmarks.products.accuracy import check
from benchmarks.products.baselines import CublasLt
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.products.gemm_cases import Case
from benchmarks.products.gemm_gpu import plain
from benchmarks.products.operands import Operands, draw, operands
from benchmarks.tables import Table, duration
from tensorcore_dsl.kernels import tutorial

SIZES = (4096, 8192)
ROUNDS, QUICK_ROUNDS = 21, 5
SETTLE = 0.03  # seconds that a kernel runs untimed before each of its samples
SEED = 0  # seed of the orders within rounds
REFERENCE, LIBRARY = "cuBLASLt", "kernels.gemm"
METHOD = {
    "operands": "standard normal bf16; B is stored as N x K",
    "clock": "CUDA events around CUDA graphs of launches, without host time",
    "order": f"one sample of each kernel a round, in random order (seed {SEED})",
    "settle_s": SETTLE,
    "settling": "before each sample the same kernel runs untimed: clocks settle to its own power",
    "buffers": "rotating sets of A, B and D that together exceed the L2 cache",
    "reference": "cuBLASLt with the fastest algorithm of its heuristic",
    "share": "median over rounds of the reference's time over the kernel's",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=SIZES,
        metavar="N",
        help=f"N of N x N x N problems (default: {' '.join(map(str, SIZES))})",
    )
    add_rounds(parser)


def add_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="R",
        help=f"samples of each kernel (default: {ROUNDS}, {QUICK_ROUNDS} with --quick)",
    )


def rounds_of(options: argparse.Namespace) -> int:
    return options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)


def run(options: argparse.Namespace) -> Report:
    torch = torch_with_gpu()
    rounds = rounds_of(options)
    report = Report("tutorial", {"sizes": list(options.sizes), "rounds": rounds}, dict(METHOD))
    cublas = CublasLt(torch)  # owns the workspace, so it lives as long as its launches
    for size in options.sizes:
        report.results += measure(torch, cublas, Case("bf16", size, size, size), rounds)
        report.save(options.out)
    return report


def measure(torch: Any, cublas: CublasLt, case: Case, rounds: int) -> list[dict[str, Any]]:
    """One result for each kernel, the reference last."""
    sets = sets_beyond_cache(case.bytes, cache_bytes(torch))
    buffers = operands(torch, case, *draw(torch, case, 0), sets)
    results, launches = [], []
    for name, launch in compared(cublas, case, buffers):
        for d in buffers.d:
            d.zero_()  # all write to the same results
        launches.append(TimedLaunch(torch, launch, buffers.sets))
        error, correct = check(torch, buffers, buffers.d[0])
        results.append({"name": name, "size": case.M, "error": error, "correct": correct})
    add_timings(results, launches, rounds, case.operations)
    return results


def add_timings(
    results: list[dict[str, Any]], launches: Sequence[TimedLaunch], rounds: int, operations: float
) -> None:
    """Time the launches; add the time, the rate and the share of the last one's rate to the results."""
    timings = time_settled(launches, rounds)
    for result, timing in zip(results, timings, strict=True):
        pairs = zip(timings[-1].samples, timing.samples, strict=True)
        shares = sorted(theirs / ours for theirs, ours in pairs)
        rate, share = operations / timing.median / 1e12, shares[len(shares) // 2]
        result |= {"timing": timing.json(), "tflops": rate, "share": share}


def time_settled(launches: Sequence[TimedLaunch], rounds: int) -> list[Timing]:
    """One sample of each launch a round, in random order, after a common warm-up.

    Before each sample the same launch runs untimed. Otherwise, a kernel that follows one of low
    power would run at higher clocks than its own power permits.
    """
    samples: list[list[float]] = [[] for _ in launches]
    generator = random.Random(SEED)
    run_for(WARM_UP, launches[0])
    for _ in range(rounds):
        for place in generator.sample(range(len(launches)), len(launches)):
            run_for(SETTLE, launches[place])
            samples[place].append(launches[place].sample())
    return [Timing(tuple(each)) for each in samples]


def run_for(seconds: float, launch: TimedLaunch) -> None:
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        launch.sample()


def compared(cublas: CublasLt, case: Case, buffers: Operands) -> Iterator[tuple[str, Launch]]:
    for number, name in enumerate(tutorial.NAMES, 1):
        yield name, partial(launch_step, tutorial.load_step(number).gemm, buffers)
    yield LIBRARY, plain(buffers)
    yield REFERENCE, cublas.prepare(case, buffers).launch


def launch_step(gemm: Any, buffers: Operands, i: int) -> None:
    """The steps take B as N x K; here it is a K x N view of the same memory."""
    gemm(buffers.a[i], buffers.b[i].mT, buffers.d[i])


def tables(document: dict[str, Any]) -> Iterator[Table]:
    for size in document["options"]["sizes"]:
        results = [r for r in document["results"] if r["size"] == size]
        yield table_of(f"bf16, {size} x {size} x {size}", results, REFERENCE)


def table_of(title: str, results: Sequence[dict[str, Any]], reference: str) -> Table:
    rows = [
        {
            "kernel": r["name"],
            "TFLOP/s": f"{r['tflops']:.0f}",
            f"of {reference}": f"{r['share']:.1%}",
            "time": duration(r["timing"]["median"]),
            "notes": "" if r["correct"] else "WRONG RESULT",
        }
        for r in results
    ]
    return Table(title, rows)
