"""What all benchmarks share: statistics of samples, facts about the machine, result files."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from tensorcore_dsl.codegen import assemble
from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.runtime import driver

RESULTS = Path(__file__).parent / "results"
SCHEMA = 1
PACKAGES = (
    "tensorcore-dsl", "numpy", "numba", "llvmlite", "ml_dtypes", "numba-cuda", "cuda-bindings",
    "cuda-core", "torch", "triton", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cusparselt-cu13",
)  # fmt: skip


# Statistics


@dataclass(frozen=True)
class Timing:
    """Seconds of one thing, measured several times."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def spread(self) -> float:
        return spread(self.samples)

    def json(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "best": self.best,
            "spread": self.spread,
            "samples": list(self.samples),
        }


def spread(samples: Sequence[float]) -> float:
    """The interquartile range over the median; 0 for one sample."""
    if len(samples) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def geometric_mean(values: Iterable[float]) -> float | None:
    """None when there are no values."""
    found = list(values)
    return statistics.geometric_mean(found) if found else None


def elapsed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def time_on_host(
    function: Callable[[], Any], repeats: int, least: float = 0.0, most: float = 3.0
) -> Timing:
    """`repeats` samples, each of as many calls as take `least` seconds, after one to warm up.

    No further sample starts when they have taken `most` seconds.
    """
    function()
    samples = [elapsed(function)]
    calls = max(1, math.ceil(least / max(samples[0], 1e-9)))

    def batch() -> None:
        for _ in range(calls):
            function()

    if calls > 1:  # the first sample was too short
        samples = [elapsed(batch) / calls]
    begin = time.perf_counter()
    while len(samples) < repeats and time.perf_counter() - begin < most:
        samples.append(elapsed(batch) / calls)
    return Timing(tuple(samples))


# The machine


def machine() -> dict[str, Any]:
    """What the figures depend on. Nothing in it names the machine or its user."""
    return {
        "processor": processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "toolchain": _toolchain(),
        "commit": commit(),
        "gpu": gpu(),
    }


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line for line in file if "model name" in line).partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _toolchain() -> str | None:
    try:
        return assemble.toolchain()
    except TensorCoreError:
        return None


def commit() -> str | None:
    """The commit that was measured, with a + when files differ from it."""
    here = Path(__file__).parent
    text = _output(["git", "-C", str(here), "describe", "--always", "--abbrev=12", "--dirty=+"])
    return text.strip() if text else None


GPU_FACTS = {
    "name": "name",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "power_limit_w": "power.limit",
    "clock_sm_max_mhz": "clocks.max.sm",
    "clock_memory_max_mhz": "clocks.max.memory",
    "persistence": "persistence_mode",
}
GPU_STATE = {
    "clock_sm_mhz": "clocks.sm",
    "clock_memory_mhz": "clocks.mem",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "utilisation_percent": "utilization.gpu",
}


def gpu() -> dict[str, Any] | None:
    """Name, driver and limits of the GPU that kernels run on; None without one."""
    return ask_gpu(GPU_FACTS) if driver.cuda_available() else None


def ask_gpu(fields: dict[str, str]) -> dict[str, Any] | None:
    """`fields` (name -> nvidia-smi's name) of the GPU; read only. None where nothing answers."""
    text = _output([*smi_query(fields), *smi_device()])
    return parse_smi(fields, text.splitlines()[0]) if text and text.strip() else None


def smi_query(fields: dict[str, str]) -> list[str]:
    columns = ",".join(fields.values())
    return ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"]


def smi_device() -> list[str]:
    """Chooses the first GPU that this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return ["-i", visible or "0"]


def parse_smi(fields: dict[str, str], line: str) -> dict[str, Any]:
    """One line of nvidia-smi's CSV; numbers as numbers, what it does not know as None."""
    return dict(zip(fields, (_value(cell.strip()) for cell in line.split(",")), strict=False))


def _value(cell: str) -> Any:
    if cell.startswith("[") or cell in ("N/A", ""):
        return None
    try:
        return float(cell) if re.fullmatch(r"-?\d+(\.\d+)?", cell) else cell
    except ValueError:
        return cell


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


# Result files


@dataclass
class Report:
    """One benchmark's outcome, as it is written to a file."""

    benchmark: str
    options: dict[str, Any]
    method: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=machine)
    results: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    date: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "benchmark": self.benchmark,
            "date": self.date.isoformat(timespec="seconds"),
            "options": self.options,
            "machine": self.machine,
            "method": self.method,
            "summary": self.summary,
            "results": self.results,
        }

    def path(self, directory: Path, suffix: str = "json") -> Path:
        gpu = self.machine.get("gpu") if self.summary.get("target") != "cpu" else None
        where = gpu["name"] if gpu else "cpu"
        name = re.sub(r"[^a-z0-9]+", "-", where.lower()).strip("-")
        return directory / f"{self.benchmark}-{name}-{self.date:%Y%m%d-%H%M%S}.{suffix}"

    def save(self, directory: Path) -> Path:
        """Write the JSON file, in one step; saving again replaces it."""
        directory.mkdir(parents=True, exist_ok=True)
        path = self.path(directory)
        partial = path.with_suffix(".partial")
        partial.write_text(dumps(self.json()) + "\n", encoding="utf-8")
        partial.replace(path)
        return path


def dumps(document: Any) -> str:
    """JSON without NaN; lists of numbers on one line."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\s+([-\d.e+,\s]+?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)
