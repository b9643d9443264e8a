"""What compiling costs: Python to IR, to PTX, to machine code, from the cache, for the emulator.

New processes, which have parsed nothing and loaded no assembler yet, take what the first launch
of a program takes, imports left out; with a GPU, loading is part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.console import duration, progress, table
from benchmarks.gemm_cases import COMMON, DTYPES, PORTABLE, Case
from benchmarks.harness import Report, Timing, elapsed
from tensorcore_dsl import kernels
from tensorcore_dsl.kernel import Specialisation
from tensorcore_dsl.kernels.host.families import SM90
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.targets import DEFAULT_ARCH, current_target, device_arch

SIZE = (4096, 4096, 4096)
STAGES = {
    "ir": "Python to IR",
    "ptx": "IR to PTX",
    "cubin": "PTX to cubin",
    "cached": "cached cubin",
    "program": "emulator",
    "lookup": "known types",
    "cold": "new process",
    "warm": "new process, cached",
}
FLAGSHIPS = ("bf16",)  # whose kernels for wgmma new processes compile
CACHE = "TENSORCORE_DSL_CACHE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arch",
        default=None,
        metavar="sm_XX",
        help=f"architecture (default: the GPU's, else {DEFAULT_ARCH})",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=None,
        metavar="N",
        help="samples (default: 3, 1 with --quick)",
    )


def run(options: argparse.Namespace) -> Report:
    arch = options.arch or _arch()
    repeats = options.repeats or (1 if options.quick else 3)
    report = Report("compile", {"arch": arch, "repeats": repeats}, {
        "clock": "time.perf_counter; every sample starts from a new specialisation",
        "warm_up": "one specialisation from beginning to end before the first sample",
        "stages": STAGES,
    })  # fmt: skip
    for case in progress(cases(arch), "compile"):
        found: dict[str, Any] = {
            "dtype": case.dtype, "layout": case.layout, "family": case.family, "arch": arch,
        }  # fmt: skip
        try:
            found |= measure(case, arch, repeats)
        except Exception as error:
            found["failure"] = f"{type(error).__name__}: {error}"
        report.results.append(found)
    columns = [
        "A, B",
        "kernel",
        "family",
        *STAGES.values(),
        "PTX lines",
        "registers",
        "spilled",
        "remarks",
    ]
    table(f"Compiling gemm kernels for {arch}", columns, [_row(found) for found in report.results])
    print(f"Written to {report.save(options.out)}")
    return report


def _arch() -> str:
    return device_arch().name if current_target() == "cuda" else DEFAULT_ARCH


def cases(arch: str) -> list[Case]:
    """The mma.sync kernels, and those of wgmma where the architecture has it."""
    wgmma = [name for name, dtype in DTYPES.items() if dtype in SM90] if arch == "sm_90a" else []
    return [
        Case(dtype, *SIZE, COMMON, family)
        for family, dtypes in (("sm80", PORTABLE), ("sm90", wgmma))
        for dtype in dtypes
    ]


def measure(case: Case, arch: str, repeats: int) -> dict[str, Any]:
    """Samples of every stage that works on this machine, and what came out."""
    known, fresh = specialisations(case, arch)
    found: dict[str, Any] = {"kernel": known.kernel.__name__, "ptx_lines": known.ptx.count("\n")}
    samples: dict[str, list[float]] = {}
    for number in range(repeats + 1):
        try:
            times = stages(fresh)
        except tc.AssemblyError as error:
            found["no_cubin"] = str(error)
            times = stages(fresh, assemble=False)
        times["lookup"] = elapsed(lambda: specialisations(case, arch, make=False))
        if case.family == "sm90" and case.dtype in FLAGSHIPS and "no_cubin" not in found:
            times["cold"], times["warm"] = new_processes(case, arch)
        for stage, seconds in times.items():
            if number:
                samples.setdefault(stage, []).append(seconds)
    found |= {stage: Timing(tuple(times)).json() for stage, times in samples.items()}
    if "cubin" in samples:
        used = known.cubin.resources
        found |= {"registers": used.registers, "spilled": used.spill_stores + used.spill_loads}
    return found


def stages(fresh: Callable[[], Specialisation], assemble: bool = True) -> dict[str, float]:
    """Seconds of each stage for specialisations that have not been through it."""
    made = fresh()
    times = {"ir": elapsed(lambda: made.ir), "ptx": elapsed(lambda: made.ptx)}
    if assemble:
        with cache("off"):
            times["cubin"] = elapsed(lambda: made.cubin)
        with tempfile.TemporaryDirectory() as directory, cache(directory):
            _ = fresh().cubin
            again = fresh()
            times["cached"] = elapsed(lambda: again.cubin)
    times["program"] = elapsed(lambda: made.program)
    return times


def new_processes(case: Case, arch: str) -> list[float]:
    """Seconds from Python to a loaded cubin in a new process, and in the next one."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.compile_time", case.dtype, case.family, arch]
        root = Path(__file__).parents[1]
        return [
            json.loads(
                subprocess.run(
                    command, check=True, capture_output=True, text=True, cwd=root,
                    env={**os.environ, CACHE: directory},
                ).stdout.splitlines()[-1]
            )
            for _ in range(2)
        ]  # fmt: skip


def _in_this_process(dtype: str, family: str, arch: str) -> float:
    case = Case(dtype, *SIZE, COMMON, family)
    on_gpu = driver.cuda_available() and device_arch().name == arch
    target = driver.cuda_driver() if on_gpu else None
    known, _ = specialisations(case, arch)
    begin = time.perf_counter()
    cubin = known.cubin
    if target is not None:
        target.load(cubin)
    return time.perf_counter() - begin


@contextmanager
def cache(place: str) -> Iterator[None]:
    """Cubins are kept in `place` inside."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = place
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE]
        else:
            os.environ[CACHE] = before


def specialisations(
    case: Case, arch: str, make: bool = True
) -> tuple[Specialisation, Callable[[], Specialisation]]:
    """The specialisation that gemm would run for a case, and what makes new ones like it.

    The arrays are never touched, so they take address space alone.
    """
    a_shape, b_shape = (case.M, case.K), (case.K, case.N)
    a, b = (
        np.empty(shape, case.element.numpy, order="C" if order == "row" else "F")
        for shape, order in zip((a_shape, b_shape), case.orders, strict=True)
    )
    d = np.empty((case.M, case.N), case.out.numpy)
    with tc.target("cpu", arch):
        plan = kernels.plan(a, b, None, d, family=case.family)
    given = {"a": a, "b": b, "c": d, "d": d, "alpha": 1, "beta": 0}
    arguments = [given[name] for name in plan.kernel.runtime_names]
    known = plan.kernel.specialise(arguments, dict(plan.options), arch)
    return known, lambda: Specialisation(known.kernel, known.types, known.constants, known.arch)


def _row(found: dict[str, Any]) -> list[str]:
    cells = [found["dtype"], found.get("kernel", "-"), found["family"]]
    cells += [duration(found[s]["median"]) if s in found else "-" for s in STAGES]
    cells += [str(found.get(name, "-")) for name in ("ptx_lines", "registers", "spilled")]
    return [*cells, (found.get("failure") or found.get("no_cubin") or "").replace("\n", " ")[:120]]


if __name__ == "__main__":
    print(json.dumps(_in_this_process(*sys.argv[1:])))
