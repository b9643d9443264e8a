"""Products: `kernels.gemm` beside cuBLAS on the GPU, or in emulation on the CPU."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks import ceiling, gemm_cases, suites
from benchmarks.console import duration, number, progress
from benchmarks.gemm_cases import DTYPES, PORTABLE, Case, Size, relative_error
from benchmarks.gemm_gpu import GpuBench, planned
from benchmarks.gemm_tables import finish, remarks
from benchmarks.gpu import COLD, SAMPLE, WARM_UP, Monitor
from benchmarks.harness import GPU_STATE, Report, ask_gpu, time_on_host
from benchmarks.kinds import CHECKED, ROWS
from benchmarks.rivals import rivals
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.host import tuning_cache
from tensorcore_dsl.runtime.driver import cuda_available
from tensorcore_dsl.runtime.targets import current_target, emulated_arch

NO_GPU = (
    "NO GPU HERE: these are products in emulation on the CPU, and nothing is compared with cuBLAS."
)
MOST_EMULATED = 10**10  # operations of a suite in emulation: a pass takes some seconds
REPEATS, QUICK_REPEATS, SUITE_REPEATS = 11, 5, 7
SECONDS, QUICK_SECONDS, SUITE_SECONDS = 165, 30, 480


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dtypes",
        type=gemm_cases.dtypes_of,
        default=(),
        metavar="T,...",
        help=f"element types of A and B, of {', '.join(DTYPES)} (default: the suite's, "
        f"else {', '.join(PORTABLE)})",
    )
    add(
        "--sizes",
        type=gemm_cases.sizes_of,
        default=(),
        metavar="MxNxK,...",
        help="sizes; N is NxNxN (default: squares, odd sizes, models' shapes)",
    )
    add(
        "--layouts",
        type=gemm_cases.layouts_of,
        default=(),
        metavar="L,...",
        help="how A and B are stored: row.col, row.row, col.row, col.col, or cuBLAS' names TN, "
        "TT, NT, NN for the same (default: row.col, and all of them at 4096 on a GPU)",
    )
    add(
        "--repeats",
        type=int,
        metavar="N",
        help=f"samples of each case (default: {REPEATS}, {QUICK_REPEATS} with --quick)",
    )
    add(
        "--target",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="where to run; cpu is the emulator (default: the GPU if there is one)",
    )
    add(
        "--arch",
        metavar="sm_XX",
        help=f"emulated architecture (default: {emulated_arch()})",
    )
    add(
        "--hot",
        action="store_true",
        help="leave operands in the L2 cache; else buffers beyond it take turns",
    )
    add(
        "--suite",
        choices=tuple(suites.SUITES),
        help="a fixed list of problems in groups; --sizes replaces the sizes of all of them",
    )
    add(
        "--groups",
        type=lambda text: tuple(part.strip() for part in text.split(",")),
        default=(),
        metavar="G,...",
        help="only groups of the suite whose names contain one of these",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the random operands (default: 0)")
    add(
        "--seconds",
        "--budget",
        type=float,
        metavar="S",
        help="start no further case after this long; pieces are put together by merge "
        f"(default: {SECONDS}, {QUICK_SECONDS} with --quick, {SUITE_SECONDS} for a suite)",
    )
    add("--verbose", action="store_true", help="print where errors come from to stderr")


def run(options: argparse.Namespace) -> Report:
    target = current_target() if options.target == "auto" else options.target
    options.repeats = options.repeats or (
        QUICK_REPEATS if options.quick else SUITE_REPEATS if options.suite else REPEATS
    )
    options.seconds = options.seconds or (
        SUITE_SECONDS if options.suite else QUICK_SECONDS if options.quick else SECONDS
    )
    chosen = _cases(options, target)
    report = Report(_benchmark(options, target), _options(options), {})
    report.summary["target"] = target
    report.summary["suite"] = options.suite
    with Monitor(target == "cuda") as monitor, tc.target(target, options.arch):
        measure = _measure(target, options, monitor, report, chosen)
        sweep(report, suites.in_turn(chosen), measure, options)
        if target == "cuda":
            report.machine["gpu_after"] = ask_gpu(GPU_STATE)
    report.results.sort(key=lambda r: chosen.index(Case.of(r)))
    finish(report, options)
    return report


def _benchmark(options: argparse.Namespace, target: str) -> str:
    name = f"gemm-{options.suite}" if options.suite else "gemm"
    return name if target == "cuda" else f"{name}-emulated"


def _cases(options: argparse.Namespace, target: str) -> list[Case]:
    """What to measure, in the order in which it is shown."""
    if options.suite:
        found = suites.cases(options.suite, options.groups, options.dtypes, options.sizes)
        if target == "cpu" and not options.sizes:
            _check_emulated(options.suite, found)
        return found
    sizes = options.sizes or _sizes(target, options.quick)
    layouts = options.layouts or ((gemm_cases.COMMON,) if options.quick else ())
    found = list(gemm_cases.cases(options.dtypes or PORTABLE, sizes, layouts))
    return sorted(found, key=lambda case: list(DTYPES).index(case.dtype))


def _check_emulated(suite: str, chosen: Sequence[Case]) -> None:
    """Refuse what the emulator would be busy with for hours, unless sizes were asked for."""
    operations = sum(case.operations for case in chosen)
    if operations > MOST_EMULATED:
        raise ValueError(
            f"the suite {suite} is for a GPU: its {len(chosen)} products are {operations:.1e} "
            "operations, hours of emulation on the CPU. Ask for small ones (--suite "
            f"{suite} --groups square --sizes 256), or leave out --suite"
        )


def _sizes(target: str, quick: bool) -> Sequence[Size]:
    if target == "cuda":
        return gemm_cases.GPU_QUICK if quick else gemm_cases.GPU_SIZES
    return gemm_cases.CPU_QUICK if quick else gemm_cases.CPU_SIZES


def _options(options: argparse.Namespace) -> dict[str, Any]:
    names = (
        "dtypes", "layouts", "suite", "groups", "repeats", "seconds", "seed", "hot", "quick",
    )  # fmt: skip
    sizes = ["x".join(map(str, size)) for size in options.sizes or ()]
    return {name: getattr(options, name) for name in names} | {"sizes": sizes}


def _measure(
    target: str, options: argparse.Namespace, monitor: Monitor, report: Report,
    chosen: Sequence[Case],
) -> Callable[[Case], dict[str, Any]]:  # fmt: skip
    """What measures one case; says in the report how."""
    if target == "cpu":
        print("" if cuda_available() else NO_GPU)
        print(f"The bits are those of {emulated_arch()}; --arch chooses another architecture.\n")
        report.summary["arch"] = emulated_arch()
        report.method |= CPU_METHOD
        return lambda case: on_cpu(case, options.repeats, options.seed)
    report.summary["tuned"] = len(tuning_cache.entries())
    report.machine["gpu_before"] = ask_gpu(GPU_STATE)
    torch = torch_with_gpu()
    beside = rivals(torch)
    versions = [getattr(rival, "version", rival.name) for rival in beside]
    print(f"Beside {', '.join(versions)}\n", flush=True)
    if options.suite:
        dtypes = list(dict.fromkeys(case.dtype for case in chosen))
        report.summary["ceilings"] = ceiling.measured(torch, dtypes)
    bench = GpuBench(torch, beside, monitor, options.repeats, options.seed, options.hot)
    about = {"reference": versions[0], "rivals": versions, "l2_bytes": bench.cache}
    report.method |= GPU_METHOD | about
    return bench


def torch_with_gpu() -> Any:
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise RuntimeError(f"on the GPU, operands and events are torch's: {error}") from error
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"on the GPU, operands and events are torch's; {torch.__version__} has none"
        )
    return torch


GPU_METHOD = {
    "operands": "standard normal, s8 uniform over all values; ours and the rivals read the same",
    "clock": "CUDA events around graphs of launches, no host time",
    "order": "ours, rivals, rivals backwards, ours, ...; a sample of each in every round",
    "warm_up_s": WARM_UP,
    "sample_s": SAMPLE,
    "buffers": f"sets of A, B, D in turn, together {COLD} times the L2 cache, unless hot",
    "reference_algorithm": "each that the heuristic offers is timed, the fastest competes; "
    "256 MiB of workspace, partial sums are added in the type of the sum as ours are",
    "reference_chosen": "the fastest rival of a library that does all of the product",
    "ratio": "median over rounds of the reference's time over ours; above 1 ours is faster",
    "share": "of the ceiling: of a loop of wgmma on operands at hand or of the best product seen, "
    "or of reading and writing each byte once, whichever binds",
    "error": "largest difference from a float64 product over the largest result",
    "correct": "every element's error is below what rounding explains; integers are exact; of "
    f"products over {CHECKED:.2g} operations, {ROWS} rows are looked at",
    "state": "medians of nvidia-smi every 100 ms while both took turns",
}
CPU_METHOD = {
    "operands": "standard normal, s8 uniform over all values",
    "clock": "time.perf_counter around kernels.gemm on NumPy arrays, after one call that compiles",
    "error": GPU_METHOD["error"],
    "correct": "every element's error is below what rounding explains; integers are exact",
}


# Measuring


def sweep(
    report: Report,
    chosen: Sequence[Case],
    measure: Callable[[Case], dict[str, Any]],
    options: argparse.Namespace,
) -> None:
    """Measure case by case; an error is a result too. The file is written after each."""
    begin = time.perf_counter()
    usable: Callable[[], bool] = getattr(measure, "alive", lambda: True)
    left_out = ""
    for case in progress(chosen, "gemm"):
        found = {**asdict(case), "out": str(case.out), "operations": case.operations}
        if time.perf_counter() - begin > options.seconds:
            left_out = left_out or f"{options.seconds:g} s are over; --seconds allows more"
        if left_out:
            found["left_out"] = left_out
        else:
            try:
                found |= measure(case)
            except Exception as error:
                found["failure"] = f"{type(error).__name__}: {error}"
                if options.verbose:
                    traceback.print_exc()
            if "failure" in found and not usable():
                left_out = f"{case} took the GPU's context with it"
        report.results.append(derived(found))
        report.save(options.out)
        if options.suite and not sys.stderr.isatty():
            print(_line(found), file=sys.stderr, flush=True)


def _line(found: dict[str, Any]) -> str:
    """How a case went, for who watches a log."""
    ratio = number(found.get("ratio"), ".3f")
    took = duration(found["ours"]["median"]) if "ours" in found else "-"
    return f"{found['group']}: {Case.of(found)}: {took}, ratio {ratio} {remarks(found)}".rstrip()


def on_cpu(case: Case, repeats: int, seed: int) -> dict[str, Any]:
    """One case in the emulator."""
    if case.kind != "plain":
        raise ValueError(f"{case.kind} products are measured on a GPU only")
    draw = np.random.default_rng(seed)

    def matrix(rows: int, cols: int, order: str) -> Any:
        if case.dtype == "s8":
            found = draw.integers(-128, 128, (rows, cols))
        else:
            found = draw.standard_normal((rows, cols))
        return np.array(found.astype(case.element.numpy), order="C" if order == "row" else "F")

    a, b = matrix(case.M, case.K, case.orders[0]), matrix(case.K, case.N, case.orders[1])
    d = np.zeros((case.M, case.N), case.out.numpy)
    family = case.family or None
    timing = time_on_host(lambda: kernels.gemm(a, b, out=d, family=family), repeats)
    wide = a.astype(np.float64), b.astype(np.float64)
    exact = wide[0] @ wide[1]
    error = np.abs(d.astype(np.float64) - exact)
    good = bool(np.all(error <= case.allowed_error(abs(wide[0]) @ abs(wide[1]), exact)))
    worst = float(np.nan_to_num(error, nan=np.inf).max())
    return {
        **planned(a, b, d, family),
        "ours": timing.json(),
        "error": relative_error(worst, float(abs(exact).max())),
        "correct": good,
    }


def derived(found: dict[str, Any]) -> dict[str, Any]:
    """Adds rates in FLOP/s and the ratio."""
    timings = [found.get("ours"), found.get("reference"), *found.get("rivals", {}).values()]
    for timing in timings:
        if timing and "median" in timing:
            timing["flops"] = found["operations"] / timing["median"]
    if "ours" in found and "reference" in found:
        pairs = zip(found["reference"]["samples"], found["ours"]["samples"], strict=True)
        found["ratio"] = float(np.median([theirs / mine for theirs, mine in pairs]))
    return found
