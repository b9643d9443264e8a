"""Products: `kernels.gemm` beside cuBLAS on the GPU, or in emulation on the CPU."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from typing import Any

import numpy as np

import kernels
import tensorcore_dsl as tc
from benchmarks import gemm_cases, suites
from benchmarks.console import duration, number, progress, table
from benchmarks.gemm_cases import DTYPES, PORTABLE, Case, Size, relative_error
from benchmarks.gemm_gpu import CHECKED, ROWS, GpuBench, choose_reference, described
from benchmarks.gpu import COLD, SAMPLE, WARM_UP, Monitor
from benchmarks.harness import GPU_STATE, Report, ask_gpu, geometric_mean, time_on_host
from kernels import choices
from tensorcore_dsl.numba_target import cuda_available
from tensorcore_dsl.targets import current_target, emulated_arch

NO_GPU = (
    "NO GPU HERE: these are products in emulation on the CPU, and nothing is compared with cuBLAS."
)
UNITS = {"cuda": ("TFLOP/s", 1e12), "cpu": ("GFLOP/s", 1e9)}
REPEATS, QUICK_REPEATS, SUITE_REPEATS = 11, 5, 7
SECONDS, QUICK_SECONDS, SUITE_SECONDS = 165, 30, 240


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
        help=f"architecture that the emulator imitates (default: {emulated_arch()})",
    )
    add(
        "--hot",
        action="store_true",
        help="leave operands in the L2 cache; else buffers beyond it take turns",
    )
    add(
        "--suite",
        choices=tuple(suites.SUITES),
        help="a fixed list of problems in groups, instead of --sizes and --layouts",
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
        type=float,
        metavar="S",
        help="start no further case after this long "
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
    with Monitor(target == "cuda") as monitor, tc.target(target, options.arch):
        measure = _measure(target, options, monitor, report)
        sweep(report, suites.in_turn(chosen), measure, options)
        if target == "cuda":
            report.machine["gpu_after"] = ask_gpu(GPU_STATE)
    report.results.sort(key=lambda r: chosen.index(_case(r)))
    finish(report, options)
    return report


def _benchmark(options: argparse.Namespace, target: str) -> str:
    name = f"gemm-{options.suite}" if options.suite else "gemm"
    return name if target == "cuda" else f"{name}-emulated"


def _cases(options: argparse.Namespace, target: str) -> list[Case]:
    """What to measure, in the order in which it is shown."""
    if options.suite:
        return suites.cases(options.suite, options.groups, options.dtypes)
    sizes = options.sizes or _sizes(target, options.quick)
    layouts = options.layouts or ((gemm_cases.COMMON,) if options.quick else ())
    found = list(gemm_cases.cases(options.dtypes or PORTABLE, sizes, layouts))
    return sorted(found, key=lambda case: list(DTYPES).index(case.dtype))


def _sizes(target: str, quick: bool) -> Sequence[Size]:
    if target == "cuda":
        return gemm_cases.GPU_QUICK if quick else gemm_cases.GPU_SIZES
    return gemm_cases.CPU_QUICK if quick else gemm_cases.CPU_SIZES


def _options(options: argparse.Namespace) -> dict[str, Any]:
    names = (
        "dtypes", "layouts", "suite", "groups", "repeats", "seconds", "seed", "hot", "quick",
    )  # fmt: skip
    sizes = ["x".join(map(str, size)) for size in options.sizes]
    return {name: getattr(options, name) for name in names} | {"sizes": sizes}


def _measure(
    target: str, options: argparse.Namespace, monitor: Monitor, report: Report
) -> Callable[[Case], dict[str, Any]]:
    """What measures one case; says in the report how."""
    if target == "cpu":
        print("" if cuda_available() else NO_GPU)
        print(f"The bits are those of {emulated_arch()}; --arch chooses another architecture.\n")
        report.summary["arch"] = emulated_arch()
        report.method |= CPU_METHOD
        return lambda case: on_cpu(case, options.repeats, options.seed)
    report.summary["tuned"] = len(choices.entries())
    report.machine["gpu_before"] = ask_gpu(GPU_STATE)
    torch = torch_with_gpu()
    reference = choose_reference(torch)
    print(f"Reference: {reference.name}\n", flush=True)
    bench = GpuBench(torch, reference, monitor, options.repeats, options.seed, options.hot)
    report.method |= {**GPU_METHOD, "reference": reference.name, "l2_bytes": bench.cache}
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
    "operands": "standard normal, s8 uniform over all values; ours and the reference read the same",
    "clock": "CUDA events around graphs of launches, no host time",
    "order": "ours, reference, reference, ours, ...; a sample of each in every round",
    "warm_up_s": WARM_UP,
    "sample_s": SAMPLE,
    "buffers": f"sets of A, B, D in turn, together {COLD} times the L2 cache, unless hot",
    "reference_algorithm": "each that the heuristic offers is timed, the fastest competes; "
    "256 MiB of workspace, partial sums are added in the type of the sum as ours are",
    "ratio": "median over rounds of the reference's time over ours; above 1 ours is faster",
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
                if not usable():
                    left_out = f"{case} took the GPU's context with it"
        report.results.append(derived(found))
        report.save(options.out)
        if options.suite and not sys.stderr.isatty():
            print(_line(found), file=sys.stderr, flush=True)


def _line(found: dict[str, Any]) -> str:
    """How a case went, for who watches a log."""
    ratio = number(found.get("ratio"), ".3f")
    took = duration(found["ours"]["median"]) if "ours" in found else "-"
    return f"{found['group']}: {_case(found)}: {took}, ratio {ratio} {remarks(found)}".rstrip()


def on_cpu(case: Case, repeats: int, seed: int) -> dict[str, Any]:
    """One case in the emulator."""
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
        **described(a, b, d, family),
        "ours": timing.json(),
        "error": relative_error(worst, float(abs(exact).max())),
        "correct": good,
    }


def derived(found: dict[str, Any]) -> dict[str, Any]:
    """Adds rates in FLOP/s and the ratio."""
    for name in ("ours", "reference"):
        if name in found:
            found[name]["flops"] = found["operations"] / found[name]["median"]
    if "ours" in found and "reference" in found:
        pairs = zip(found["reference"]["samples"], found["ours"]["samples"], strict=True)
        found["ratio"] = float(np.median([theirs / mine for theirs, mine in pairs]))
    return found


# What is printed


def finish(report: Report, options: argparse.Namespace) -> None:
    """Summary, tables, files."""
    report.summary["dtypes"] = summarise(report.results, "dtype")
    grouped = any(r.get("group") for r in report.results)
    if grouped:
        report.summary["groups"] = summarise(report.results, "group")
    path = report.save(options.out)
    unit, scale = UNITS[report.summary["target"]]
    on_gpu = report.summary["target"] == "cuda"
    first = ["group"] if grouped else []
    rows = [[*(r[name] for name in first), *_row(r, scale, on_gpu)] for r in report.results]
    table(_title(report), [*first, *_columns(unit, on_gpu)], rows)
    by = "groups" if grouped else "dtypes"
    table(f"Geometric means ({unit})", *_means(report.summary[by], scale, on_gpu))
    print(f"Written to {path}")
    if options.plot:
        from benchmarks.gemm_plot import draw

        print(draw(report, report.path(options.out, "png"), unit, scale))


def summarise(results: Sequence[dict[str, Any]], by: str) -> dict[str, dict[str, Any]]:
    """By element type or group: cases, how many failed or are wrong, geometric means."""
    found = {}
    for name in dict.fromkeys(r[by] for r in results):
        mine = [r for r in results if r[by] == name]
        ratios = [r["ratio"] for r in mine if "ratio" in r]
        found[name] = {
            "cases": len(mine),
            "failed": sum("failure" in r for r in mine),
            "left out": sum("left_out" in r for r in mine),
            "wrong": sum(r.get("correct") is False for r in mine),
            "flops": geometric_mean(r["ours"]["flops"] for r in mine if "ours" in r),
            "reference_flops": geometric_mean(
                r["reference"]["flops"] for r in mine if "reference" in r
            ),
            "ratio": geometric_mean(ratios),
            "worst": min(ratios, default=None),
            "faster": sum(ratio > 1 for ratio in ratios),
            "compared": len(ratios),
        }
    return found


def _title(report: Report) -> str:
    if report.summary["target"] == "cuda":
        gpu = report.machine.get("gpu") or {}
        return f"gemm on {gpu.get('name', 'the GPU')}, against {report.method['reference']}"
    return f"gemm in emulation of {report.summary['arch']}, {report.machine['cores']} cores"


def _columns(unit: str, on_gpu: bool) -> list[str]:
    shared = ["A, B", "M", "N", "K", "layout", "kernel", "family", "tile", "time", "+-", unit]
    return [*shared, *(["cuBLAS", "ratio", "MHz", "W"] if on_gpu else []), "error", "remarks"]


def _row(found: dict[str, Any], scale: float, on_gpu: bool) -> list[str]:
    mine, theirs, state = (found.get(name, {}) for name in ("ours", "reference", "state"))
    cells = [
        found["dtype"], *(str(found[name]) for name in "MNK"), found["layout"],
        found.get("kernel", "-"), found.get("chosen_family", "-"),
        found.get("tile", "-"),
        duration(mine["median"]) if mine else "-",
        f"{mine['spread']:.1%}" if mine else "-", _rate(mine, scale),
    ]  # fmt: skip
    if on_gpu:
        cells += [
            _rate(theirs, scale), number(found.get("ratio"), ".3f"),
            number(state.get("clock_sm_mhz"), ".0f"), number(state.get("power_w"), ".0f"),
        ]  # fmt: skip
    error = found.get("error")
    return [*cells, "0" if error == 0 else number(error, ".1e"), remarks(found)]


def _rate(timing: dict[str, Any], scale: float) -> str:
    return rate(timing["flops"] / scale) if timing else "-"


def rate(value: float | None) -> str:
    """Three digits, and no exponent."""
    return number(value, ".0f" if value and value >= 100 else ".3g")


def remarks(found: dict[str, Any]) -> str:
    """What the reader must know of a row, the worst first."""
    said = []
    if "failure" in found:
        said.append(found["failure"])
    if "left_out" in found:
        said.append(f"left out: {found['left_out']}")
    if found.get("correct") is False:
        said.append("WRONG RESULT")
    if found.get("reference_correct") is False:
        said.append("the reference's result is wrong")
    if "reference_failure" in found:
        said.append(f"no reference: {found['reference_failure']}")
    if found.get("through_copies"):
        said.append("through padded copies")
    if found.get("note"):
        said.append(found["note"])
    for name in ("ours", "reference"):
        if found.get(name, {}).get("launched_as", "CUDA graph") != "CUDA graph":
            said.append(f"{name} in {found[name]['launched_as']}")
    return "; ".join(said).replace("\n", " ")[:200]


def _means(
    summary: dict[str, dict[str, Any]], scale: float, on_gpu: bool
) -> tuple[list[str], list[list[str]]]:
    compared = ["cuBLAS", "ratio", "worst", "faster"] if on_gpu else []
    columns = ["", "cases", "ours", *compared, "remarks"]
    rows = []
    for name, found in summary.items():
        cells = [name, str(found["cases"]), _mean(found["flops"], scale)]
        if on_gpu:
            cells += [
                _mean(found["reference_flops"], scale), number(found["ratio"], ".3f"),
                number(found["worst"], ".3f"), f"{found['faster']} of {found['compared']}",
            ]  # fmt: skip
        said = [f"{found[what]} {what}" for what in ("failed", "wrong", "left out") if found[what]]
        rows.append([*cells, ", ".join(said)])
    return columns, rows


def _mean(flops: float | None, scale: float) -> str:
    return rate(flops / scale if flops else None)


def _case(found: dict[str, Any]) -> Case:
    return Case(**{each.name: found[each.name] for each in fields(Case)})
