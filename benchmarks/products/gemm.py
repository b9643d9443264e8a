"""GEMMs: `kernels.gemm` and related functions, compared with cuBLAS on a GPU, else in emulation."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.gpu import COLD, SAMPLE, WARM_UP, Monitor
from benchmarks.harness import GPU_STATE, Report, ask_gpu, attempt, time_on_host
from benchmarks.products import ceiling, gemm_cases, gemm_summary, landscape, suites
from benchmarks.products.accuracy import CHECKED, ROWS, allowed_error, relative_error
from benchmarks.products.baselines import available
from benchmarks.products.gemm_cases import DTYPES, PORTABLE, Case
from benchmarks.products.gemm_gpu import GpuBench, planned
from benchmarks.products.gemm_summary import derive, notes, tables  # noqa: F401  # tables of a report
from benchmarks.tables import duration, number, progress
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.choosing import tuning_cache
from tensorcore_dsl.runtime.driver import cuda_available
from tensorcore_dsl.runtime.targets import current_target, emulated_arch

NO_GPU = "NO GPU HERE: these GEMMs are emulated on the CPU, and not compared with cuBLAS."
MAX_EMULATED = 10**10  # operations of an emulated suite: some seconds
REPEATS, QUICK_REPEATS, SUITE_REPEATS = 11, 5, 7
SECONDS, QUICK_SECONDS, SUITE_SECONDS = 165, 30, 480
OPTIONS = ("dtypes", "layouts", "suite", "groups", "count", "repeats", "seconds", "seed", "hot", "quick")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    gemm_cases.add_problem_arguments(
        parser,
        dtypes=((), f"the suite's, else {', '.join(PORTABLE)}"),
        sizes=((), "squares, odd sizes, models' shapes"),
        layouts=((), "row.col, and all of them at 4096 on a GPU"),
    )
    add(
        "--repeats", type=int, metavar="N", help=f"samples (default: {REPEATS}, {QUICK_REPEATS} with --quick)"
    )
    add(
        "--target",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="where to run; cpu is the emulator (default: the GPU if there is one)",
    )
    add("--arch", metavar="sm_XX", help=f"architecture to emulate (default: {emulated_arch()})")
    add("--hot", action="store_true", help="no rotating buffers: operands stay in the L2 cache")
    add(
        "--suite",
        choices=(*suites.SUITES, landscape.NAME),
        help="a fixed list of problems in groups; --sizes replaces all of its sizes; "
        f"{landscape.NAME}: random problems",
    )
    add(
        "--count",
        type=int,
        default=landscape.COUNT,
        metavar="N",
        help=f"problems of the {landscape.NAME} (default: {landscape.COUNT})",
    )
    add(
        "--groups",
        type=lambda text: tuple(part.strip() for part in text.split(",")),
        default=(),
        metavar="G,...",
        help="only groups of the suite that contain one of these",
    )
    add(
        "--seconds",
        "--budget",
        type=float,
        metavar="S",
        help=f"start no further case after this long (default: {SECONDS}, {QUICK_SECONDS} with "
        f"--quick, {SUITE_SECONDS} with --suite)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help=f"of the random operands and of the {landscape.NAME} (default: 0)",
    )


def run(options: argparse.Namespace) -> Report:
    target = current_target() if options.target == "auto" else options.target
    options.repeats = options.repeats or (
        QUICK_REPEATS if options.quick else SUITE_REPEATS if options.suite else REPEATS
    )
    options.seconds = options.seconds or (
        SUITE_SECONDS if options.suite else QUICK_SECONDS if options.quick else SECONDS
    )
    chosen = chosen_cases(options, target)
    name = f"gemm-{options.suite}" if options.suite else "gemm"
    recorded = {option: getattr(options, option) for option in OPTIONS}
    recorded["sizes"] = ["x".join(map(str, size)) for size in options.sizes]
    report = Report(
        name if target == "cuda" else f"{name}-emulated",
        recorded,
        {},
        summary={"target": target, "suite": options.suite},
    )
    with Monitor(target == "cuda") as monitor, tc.target(target, options.arch):
        measure = prepare(target, options, monitor, report, chosen)
        sweep(report, suites.round_robin(chosen), measure, options)
        if target == "cuda":
            report.machine["gpu_after"] = ask_gpu(GPU_STATE)
    report.results.sort(key=lambda r: chosen.index(Case.of(r)))
    gemm_summary.conclude(report)
    return report


def chosen_cases(options: argparse.Namespace, target: str) -> list[Case]:
    """Cases that the options select, in the order in which they are shown."""
    if options.suite == landscape.NAME:
        if target == "cpu":
            raise ValueError(f"the suite {landscape.NAME} is for a GPU: emulation would take hours")
        return landscape.problems(options.seed, options.count, options.dtypes)
    if options.suite:
        chosen = suites.cases(options.suite, options.groups, options.dtypes, options.sizes)
        operations = sum(case.operations for case in chosen)
        if target == "cpu" and not options.sizes and operations > MAX_EMULATED:
            raise ValueError(
                f"the suite {options.suite} is for a GPU: its {len(chosen)} GEMMs are "
                f"{operations:.1e} operations, hours of emulation on the CPU. Ask for small ones "
                f"(--suite {options.suite} --groups square --sizes 256), or leave out --suite"
            )
        return chosen
    sizes = options.sizes or gemm_cases.DEFAULT_SIZES[target, options.quick]
    layouts = options.layouts or ((gemm_cases.COMMON,) if options.quick else ())
    chosen = list(gemm_cases.cases(options.dtypes or PORTABLE, sizes, layouts))
    return sorted(chosen, key=lambda case: list(DTYPES).index(case.dtype))


def prepare(
    target: str, options: argparse.Namespace, monitor: Monitor, report: Report, chosen: Sequence[Case]
) -> Callable[[Case], dict[str, Any]]:
    """The function that measures a case; the report gets the method."""
    if target == "cpu":
        print("" if cuda_available() else NO_GPU)
        print(f"Emulated architecture: {emulated_arch()}; --arch chooses another.\n")
        report.summary["arch"] = emulated_arch()
        report.method |= CPU_METHOD
        return lambda case: on_cpu(case, options.repeats, options.seed)
    report.summary["tuned"] = len(tuning_cache.entries())
    report.machine["gpu_before"] = ask_gpu(GPU_STATE)
    torch = torch_with_gpu()
    baselines = available(torch)
    if options.suite == landscape.NAME:  # torch calls cuBLASLt, too
        baselines = [b for b in baselines if b.name == gemm_summary.USUAL[0]]
    versions = [getattr(baseline, "version", baseline.name) for baseline in baselines]
    print(f"Baselines: {', '.join(versions)}\n", flush=True)
    if options.suite:
        dtypes = list(dict.fromkeys(case.dtype for case in chosen))
        report.summary["ceilings"] = ceiling.measured(torch, dtypes)
    bench = GpuBench(torch, baselines, monitor, options.repeats, options.seed, options.hot)
    about = {"reference": versions[0], "baselines": versions, "l2_bytes": bench.cache}
    report.method |= GPU_METHOD | about
    return bench


def torch_with_gpu() -> Any:
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise RuntimeError(f"benchmarks on a GPU need torch: {error}") from error
    if not torch.cuda.is_available():
        raise RuntimeError(f"benchmarks on a GPU need torch with CUDA, not {torch.__version__}")
    return torch


ERROR = "largest difference from a float64 GEMM over the largest result"
CORRECT = "every element's error is within the bound that rounding explains; integers are exact"
GPU_METHOD = {
    "operands": "standard normal, s8 uniform over all values; the same for all baselines",
    "clock": "CUDA events around graphs of launches, without host time",
    "order": "interleaved: ours, baselines, baselines backwards, ours, ...; a sample of each a round",
    "warm_up_s": WARM_UP,
    "sample_s": SAMPLE,
    "buffers": f"rotating sets of A, B, D, together {COLD} times the L2 cache, unless hot",
    "reference_algorithm": "the fastest of all that the heuristic offers, by timing; "
    "256 MiB of workspace; split-K reductions in the accumulator's type, as in ours",
    "reference_chosen": "the fastest library that implements the whole operation",
    "ratio": "median over rounds of the reference's time over ours; above 1 ours is faster",
    "share": "least possible time over ours; the ceilings are a loop of wgmma on operands in "
    "shared memory (or the best rate seen) and memory traffic of each byte once",
    "error": ERROR,
    "correct": f"{CORRECT}; above {CHECKED:.2g} operations, {ROWS} rows are checked",
    "state": "medians of nvidia-smi every 100 ms during the timing",
}
CPU_METHOD = {
    "operands": "standard normal, s8 uniform over all values",
    "clock": "time.perf_counter around kernels.gemm on NumPy arrays, after one call that compiles",
    "error": ERROR,
    "correct": CORRECT,
}


def sweep(
    report: Report,
    chosen: Sequence[Case],
    measure: Callable[[Case], dict[str, Any]],
    options: argparse.Namespace,
) -> None:
    """Measure case by case; an error is a result. The file is written after each case."""
    begin = time.perf_counter()
    alive: Callable[[], bool] = getattr(measure, "alive", lambda: True)
    left_out = ""
    for case in progress(chosen, "gemm"):
        result = {**asdict(case), "out": str(case.out), "operations": case.operations}
        if time.perf_counter() - begin > options.seconds:
            left_out = left_out or f"{options.seconds:g} s are over; --seconds allows more"
        if left_out:
            result["left_out"] = left_out
        else:
            result |= attempt(measure, case)
            if "failure" in result and not alive():
                left_out = f"{case} destroyed the CUDA context"
        report.results.append(derive(result))
        report.save(options.out)
        if options.suite and not sys.stderr.isatty():
            took = duration(result.get("ours", {}).get("median"))
            ratio = number(result.get("ratio"), ".3f")
            line = f"{case.group}: {case}: {took}, ratio {ratio} {notes(result)}"
            print(line.rstrip(), file=sys.stderr, flush=True)


def on_cpu(case: Case, repeats: int, seed: int) -> dict[str, Any]:
    """One case in the emulator."""
    if case.kind != "plain":
        raise ValueError(f"{case.kind} GEMMs are measured on a GPU only")
    rng = np.random.default_rng(seed)

    def matrix(rows: int, cols: int, order: str) -> Any:
        if case.dtype == "s8":
            values = rng.integers(-128, 128, (rows, cols))
        else:
            values = rng.standard_normal((rows, cols))
        return np.array(values.astype(case.element.numpy), order="C" if order == "row" else "F")

    a, b = matrix(case.M, case.K, case.orders[0]), matrix(case.K, case.N, case.orders[1])
    d = np.zeros((case.M, case.N), case.out.numpy)
    family = case.family or None
    options = {"family": family, "precision": case.precision}
    timing = time_on_host(lambda: kernels.gemm(a, b, out=d, **options), repeats)
    wide = a.astype(np.float64), b.astype(np.float64)
    exact = wide[0] @ wide[1]
    error = np.abs(d.astype(np.float64) - exact)
    allowed = allowed_error(case, abs(wide[0]) @ abs(wide[1]), exact)
    worst = float(np.nan_to_num(error, nan=np.inf).max())
    return {
        **planned(a, b, d, **options),
        "ours": timing.json(),
        "error": relative_error(worst, float(abs(exact).max())),
        "correct": bool(np.all(error <= allowed)),
    }
