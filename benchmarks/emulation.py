"""Whole emulated kernels: GEMMs of every type, and kernels whose threads work alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import tensorcore_dsl as tc
from benchmarks.emulate import values
from benchmarks.harness import Report, attempt, time_on_host
from benchmarks.tables import Table, duration, one_line, progress, rate
from tensorcore_dsl import kernels
from tensorcore_dsl.environment.processors import cores
from tensorcore_dsl.interpreter import launch

# Name -> element type of A and B, and the architecture, which chooses the kernel.
GEMMS = {
    "f16 mma.sync": (tc.f16, "sm_80"), "bf16 mma.sync": (tc.bf16, "sm_80"),
    "tf32 mma.sync": (tc.tf32, "sm_80"), "s8 mma.sync": (tc.s8, "sm_80"),
    "f64 mma.sync": (tc.f64, "sm_80"), "f16 wgmma": (tc.f16, "sm_90a"),
    "bf16 wgmma": (tc.bf16, "sm_90a"), "e4m3 wgmma": (tc.e4m3, "sm_90a"),
}  # fmt: skip
SIZE, QUICK = 1024, 512
COLUMNS, ROWS, THREADS = 1024, 512, 128  # of the kernels without products


@tc.kernel
def saxpy(x: tc.Array, y: tc.Array, out: tc.Array, n: tc.s32):
    """One element a thread."""
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if i < n:
        out[i] = 2.0 * x[i] + y[i]


@tc.kernel
def softmax(x: tc.Array, out: tc.Array, columns: tc.Const = COLUMNS):
    """One row a warp: its largest element, the sum of the exponentials, the quotients."""
    row = tc.blockIdx.x * (THREADS // 32) + tc.warp_id()
    lane = tc.threadIdx.x % 32
    mine = [x[row, lane + 32 * i] for i in tc.static_range(columns // 32)]
    largest = mine[0]
    for value in mine[1:]:
        largest = max(largest, value)
    for step in (16, 8, 4, 2, 1):
        largest = max(largest, tc.shfl_xor(largest, step))
    powers = [tc.exp(value - largest) for value in mine]
    total = powers[0]
    for value in powers[1:]:
        total = total + value
    for step in (16, 8, 4, 2, 1):
        total = total + tc.shfl_xor(total, step)
    for i in tc.static_range(columns // 32):
        out[row, lane + 32 * i] = powers[i] / total


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--size", type=int, metavar="N",
        help=f"M, N and K of the GEMMs (default: {SIZE}, {QUICK} with --quick)")  # fmt: skip
    add("--workers", type=int, default=min(2, cores()), metavar="N",
        help="cores that are used beside one alone (default: 2)")  # fmt: skip
    add("--only", metavar="TEXT", default="", help="cases whose name has this text")


def run(options: argparse.Namespace) -> Report:
    size = options.size or (QUICK if options.quick else SIZE)
    report = Report("emulation", {"size": size, "workers": options.workers}, {
        "clock": "time.perf_counter around a launch, after one that compiles",
        "checks": "those of a plain launch of a library kernel, unless named",
    })  # fmt: skip
    cases = {**_gemms(size), **_alone()}
    chosen = {name: case for name, case in cases.items() if options.only in name}
    for name in progress(list(chosen), "emulation"):
        kind, make = chosen[name]
        report.results.append(
            {"case": name, "kind": kind} | attempt(_measure, make, options.workers)
        )
    return report


Case = tuple[str, Callable[[], tuple[Callable[[], Any], float]]]


def _gemms(size: int) -> dict[str, Case]:
    """By name: what makes a GEMM, as a function and its operations."""

    def case(dtype: tc.DType, arch: str) -> Callable[[], tuple[Callable[[], Any], float]]:
        def make() -> tuple[Callable[[], Any], float]:
            rng = np.random.default_rng(0)
            a, b = (values(rng, dtype, (size, size)) for _ in range(2))
            out = tc.s32 if dtype == tc.s8 else None
            precision = "tf32" if dtype == tc.tf32 else None

            def multiply() -> None:
                with tc.target("cpu", arch):
                    kernels.gemm(a, b.T, out_dtype=out, precision=precision)

            return multiply, 2.0 * size**3

        return make

    found: dict[str, Case] = {
        f"{name} GEMM": ("GEMM", case(*chosen)) for name, chosen in GEMMS.items()
    }
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), np.float32) for _ in range(2))
    found["NumPy float32 @"] = ("GEMM", lambda: (lambda: a @ b, 2.0 * size**3))
    return found


def _alone() -> dict[str, Case]:
    """By name: what makes a launch of a kernel, and the instructions of all its threads."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, COLUMNS), np.float32)
    y = np.zeros_like(x)

    def case(kernel: Any, checks: bool, grid: int, *arguments: Any) -> Case:
        def make() -> tuple[Callable[[], Any], float]:
            launch = kernel.emulator("sm_90a", checks=checks)[grid, THREADS]
            return lambda: launch(*arguments), 32.0 * launch(*arguments).instructions.total()

        return "alone", make

    flat, found = (x.ravel(), x.ravel()[::-1].copy(), y.ravel()), {}
    for checks, name in ((True, "all checks"), (False, "bounds alone")):
        found[f"saxpy, {name}"] = case(saxpy, checks, x.size // THREADS, *flat, x.size)
        found[f"softmax, {name}"] = case(softmax, checks, ROWS * 32 // THREADS, x, y)
    return found


def _measure(
    make: Callable[[], tuple[Callable[[], Any], float]], workers: int
) -> dict[str, Any]:
    function, amount = make()
    times = {}
    for count in sorted({1, workers}):
        with _cores(count):
            times[count] = time_on_host(function, 5).best
    gain = times[1] / times[workers]
    serial = (workers / gain - 1) / (workers - 1) if workers > 1 else 0.0
    return {
        "seconds": times, "amount": amount, "per_second": amount / times[workers],
        "serial": min(max(serial, 0.0), 1.0),
    }  # fmt: skip


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Let launches use so many cores."""
    with patch.object(launch, "cores", lambda: count):
        yield


def tables(document: dict[str, Any]) -> Iterator[Table]:
    results = document["results"]
    workers = document["options"]["workers"]
    heads = {
        "GEMM": f"Emulated GEMMs, {document['options']['size']}^3, {workers} cores",
        "alone": f"Emulated kernels of single threads, {workers} cores",
    }
    for kind, title in heads.items():
        rows = [_row(result, kind, workers) for result in results if result["kind"] == kind]
        if rows:
            yield Table(title, rows)


def _row(result: dict[str, Any], kind: str, workers: int) -> dict[str, str]:
    seconds = {int(count): value for count, value in result.get("seconds", {}).items()}
    row = {"case": result["case"], "time": duration(seconds.get(workers))}
    if kind == "GEMM":
        row["GFLOP/s"] = rate(result.get("per_second"), 1e9)
    else:
        pace = result.get("per_second")
        row["ns for an instruction of a thread"] = f"{1e9 / pace:.3f}" if pace else "-"
    serial = result.get("serial")
    row["share that one core at a time does"] = "-" if serial is None else f"{serial:.0%}"
    return row | {"notes": one_line(result.get("failure", ""))}
