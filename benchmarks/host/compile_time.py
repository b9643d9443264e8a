"""Compile time: Python to IR, to PTX, to machine code, from the cache, and for the emulator.

A new process, which has parsed no source and loaded no assembler, takes as long as the first launch
of a program without imports; with a GPU, the cubin is loaded too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import tensorcore_dsl as tc
from benchmarks.harness import Report, Timing, attempt, elapsed
from benchmarks.products.gemm_cases import COMMON, DTYPES, PORTABLE, Case
from benchmarks.tables import Table, duration, one_line, progress
from tensorcore_dsl import kernels
from tensorcore_dsl.kernel import Specialisation
from tensorcore_dsl.kernels.problem.families import WGMMA_KERNELS
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.targets import DEFAULT_ARCH, current_target, device_arch

SIZE = (4096, 4096, 4096)
STAGES = {
    "ir": "Python to IR",
    "ptx": "IR to PTX",
    "cubin": "PTX to cubin",
    "cached": "cached cubin",
    "program": "emulator",
    "lookup": "lookup of known types",
    "cold": "new process",
    "warm": "new process, cached",
}
FLAGSHIP = "bf16"  # type whose wgmma kernel is also compiled in new processes
CACHE = "TENSORCORE_DSL_CACHE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arch", metavar="sm_XX", help=f"architecture (default: the GPU's, else {DEFAULT_ARCH})"
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="samples (default: 3, 1 with --quick)")


def run(options: argparse.Namespace) -> Report:
    arch = options.arch or (device_arch().name if current_target() == "cuda" else DEFAULT_ARCH)
    repeats = options.repeats or (1 if options.quick else 3)
    report = Report("compile", {"arch": arch, "repeats": repeats}, {
        "clock": "time.perf_counter; every sample starts from a new specialisation",
        "warm_up": "one complete compilation before the first sample",
        "stages": STAGES,
    })  # fmt: skip
    for case in progress(cases(arch), "compile"):
        about = {"dtype": case.dtype, "layout": case.layout, "family": case.family, "arch": arch}
        report.results.append(about | attempt(measure, case, arch, repeats))
    return report


def tables(document: dict[str, Any]) -> Iterator[Table]:
    stages = document["method"]["stages"]
    yield Table(
        "GEMM kernels",
        [
            {
                "A, B": result["dtype"],
                "family": result["family"],
                **{title: duration(result.get(s, {}).get("median")) for s, title in stages.items()},
                **{
                    name: str(result.get(name.replace(" ", "_"), "-"))
                    for name in ("ptx lines", "registers", "spilled")
                },
                "notes": one_line(result.get("failure") or result.get("no_cubin") or ""),
            }
            for result in document["results"]
        ],
    )


def cases(arch: str) -> list[Case]:
    """The mma.sync kernels, and the wgmma kernels where the architecture has wgmma."""
    wgmma = [name for name, dtype in DTYPES.items() if dtype in WGMMA_KERNELS] if arch == "sm_90a" else []
    return [
        Case(dtype, *SIZE, COMMON, family)
        for family, dtypes in (("sm80", PORTABLE), ("sm90", wgmma))
        for dtype in dtypes
    ]


def measure(case: Case, arch: str, repeats: int) -> dict[str, Any]:
    """Samples of every stage that works on this machine, and properties of the kernel."""
    known, fresh = specialisations(case, arch)
    result: dict[str, Any] = {"kernel": known.kernel.__name__, "ptx_lines": known.ptx.count("\n")}
    with suppress(tc.AssemblyError):
        used = known.cubin.resources
        result["registers"] = used.registers
        if used.spill_stores is not None and used.spill_loads is not None:
            result["spilled"] = used.spill_stores + used.spill_loads
    samples: dict[str, list[float]] = {}
    for number in range(repeats + 1):
        try:
            times = stages(fresh)
        except tc.AssemblyError as error:
            result["no_cubin"] = str(error)
            times = stages(fresh, assemble=False)
        times["lookup"] = elapsed(lambda: specialisations(case, arch))
        if case.family == "sm90" and case.dtype == FLAGSHIP and "no_cubin" not in result:
            times["cold"], times["warm"] = new_processes(case, arch)
        for stage, seconds in times.items():
            if number:  # the first is the warm-up
                samples.setdefault(stage, []).append(seconds)
    result |= {stage: Timing(tuple(times)).json() for stage, times in samples.items()}
    return result


def stages(fresh: Callable[[], Specialisation], assemble: bool = True) -> dict[str, float]:
    """Seconds of each stage, of a new specialisation."""
    new = fresh()
    times = {"ir": elapsed(lambda: new.ir), "ptx": elapsed(lambda: new.ptx)}
    if assemble:
        with patch.dict(os.environ, {CACHE: "off"}):
            times["cubin"] = elapsed(lambda: new.cubin)
        with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {CACHE: folder}):
            _ = fresh().cubin
            again = fresh()
            times["cached"] = elapsed(lambda: again.cubin)
    times["program"] = elapsed(lambda: new.program)
    return times


def new_processes(case: Case, arch: str) -> list[float]:
    """Seconds from Python to a loaded cubin in a new process, and in the next one."""
    command = [sys.executable, "-m", "benchmarks.host.compile_time", case.dtype, case.family, arch]
    with tempfile.TemporaryDirectory() as directory:

        def seconds() -> float:
            done = subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[2],
                env={**os.environ, CACHE: directory},
            )
            return float(done.stdout.splitlines()[-1])

        return [seconds(), seconds()]


def _in_this_process(dtype: str, family: str, arch: str) -> float:
    case = Case(dtype, *SIZE, COMMON, family)
    on_gpu = driver.cuda_available() and device_arch().name == arch
    load = driver.cuda_driver().load if on_gpu else lambda cubin: None
    known, _ = specialisations(case, arch)
    return elapsed(lambda: load(known.cubin))


def specialisations(case: Case, arch: str) -> tuple[Specialisation, Callable[[], Specialisation]]:
    """The specialisation that gemm runs for a case, and a function that makes new copies of it.

    The arrays are never accessed, so they take address space but no memory.
    """
    a, b = (
        np.empty(shape, case.element.numpy, order="C" if order == "row" else "F")
        for shape, order in zip(((case.M, case.K), (case.K, case.N)), case.orders, strict=True)
    )
    d = np.empty((case.M, case.N), case.out.numpy)
    with tc.target("cpu", arch):
        plan = kernels.plan(a, b, None, d, family=case.family, precision=case.precision)
    passed = {"a": a, "b": b, "c": d, "d": d, "alpha": 1, "beta": 0}
    arguments = [passed[name] for name in plan.kernel.runtime_names]
    known = plan.kernel.specialise(arguments, dict(plan.options), arch)
    return known, lambda: Specialisation(known.kernel, known.types, known.constants, known.arch)


if __name__ == "__main__":
    print(_in_this_process(*sys.argv[1:]))
