"""Common parts of the benchmarks: statistics of samples, facts about the machine, result files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from tensorcore_dsl.codegen import assemble
from tensorcore_dsl.environment.processors import cores
from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.runtime import driver

RECORDED = Path(__file__).parent / "results"  # in the repository
SCHEMA = 2
MAX_SECONDS = 3.0  # length of the samples that `time_on_host` starts
FRAMES = 4  # frames of a traceback that a result keeps
PACKAGES = (
    "tensorcore-dsl",
    "numpy",
    "numba",
    "llvmlite",
    "ml_dtypes",
    "numba-cuda",
    "cuda-bindings",
    "cuda-core",
    "torch",
    "triton",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "nvidia-cusparselt-cu13",
)


@dataclass(frozen=True)
class Timing:
    """Samples of a duration, in seconds."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def spread(self) -> float:
        """The interquartile range over the median; 0 for one sample."""
        if len(self.samples) < 2:
            return 0.0
        low, middle, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / middle if middle else 0.0

    def json(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "best": self.best,
            "spread": self.spread,
            "samples": list(self.samples),
        }


def geometric_mean(values: Iterable[float]) -> float | None:
    """Compute the geometric mean; None without values."""
    numbers = list(values)
    return statistics.geometric_mean(numbers) if numbers else None


def attempt(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return `measure()`, or its failure."""
    try:
        return measure(*arguments)
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> dict[str, Any]:
    """The error's text and the last frames of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return {"failure": f"{type(error).__name__}: {error}", "raised_at": places}


def comma_list(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """The type of an option that takes several values."""
    return lambda text: tuple(parse(part.strip()) for part in text.split(",") if part.strip())


def extents(text: str) -> tuple[int, ...]:
    """The numbers of `MxNxK`."""
    return tuple(map(int, text.split("x")))


def add_seconds(parser: argparse.ArgumentParser, default: float, started: str) -> None:
    """Add --seconds, after which no further `started` is started."""
    about = f"start no further {started} after this long (default: {default:g})"
    parser.add_argument("--seconds", type=float, default=default, metavar="S", help=about)


def elapsed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def time_on_host(function: Callable[[], Any], repeats: int) -> Timing:
    """Time a function on the host: `repeats` samples after one warm-up call, none after MAX_SECONDS."""
    function()
    samples, begin = [elapsed(function)], time.perf_counter()
    while len(samples) < repeats and time.perf_counter() - begin < MAX_SECONDS:
        samples.append(elapsed(function))
    return Timing(tuple(samples))


def machine() -> dict[str, Any]:
    """Hardware and software that the figures depend on, without names of hosts or users."""
    versions = {name: _value_or_none(metadata.version, name) for name in PACKAGES}
    return {
        "processor": processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name, version in versions.items() if version},
        "toolchain": _value_or_none(assemble.toolchain),
        "commit": commit(Path(__file__).parent),
        "gpu": gpu(),
    }


def commit(folder: Path) -> str | None:
    """The commit of a checkout, with a + when files differ from it; None without git."""
    describe = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty=+"]
    return _output(describe) or None


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line for line in file if "model name" in line).partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor()


def _value_or_none(function: Callable[..., str], *arguments: str) -> str | None:
    """Return the function's value; None if a package or an assembler is missing."""
    try:
        return function(*arguments)
    except (metadata.PackageNotFoundError, TensorCoreError):
        return None


GPU_FACTS = {
    "name": "name", "driver": "driver_version", "memory_mib": "memory.total",
    "power_limit_w": "power.limit", "clock_sm_max_mhz": "clocks.max.sm",
    "clock_memory_max_mhz": "clocks.max.memory", "persistence": "persistence_mode",
}  # fmt: skip
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
    """Ask nvidia-smi for `fields` (name -> nvidia-smi's name) of the GPU; None without nvidia-smi."""
    text = _output(smi_query(fields))
    return parse_smi(fields, text.splitlines()[0]) if text else None


def smi_query(fields: dict[str, str]) -> list[str]:
    """Command that prints the fields of the first GPU that this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    columns = f"--query-gpu={','.join(fields.values())}"
    return ["nvidia-smi", columns, "--format=csv,noheader,nounits", "-i", visible or "0"]


def parse_smi(fields: dict[str, str], line: str) -> dict[str, Any]:
    """Parse one line of nvidia-smi's CSV; unknown values become None."""
    return dict(zip(fields, (_value(cell.strip()) for cell in line.split(",")), strict=False))


def _value(cell: str) -> Any:
    if cell.startswith("[") or cell in ("N/A", ""):
        return None
    return float(cell) if re.fullmatch(r"-?\d+(\.\d+)?", cell) else cell


def _output(command: list[str]) -> str:
    """Output of a command; empty when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


@dataclass
class Report:
    """Results of one benchmark, the content of a result file."""

    benchmark: str
    options: dict[str, Any]
    method: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=machine)
    results: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    date: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def json(self) -> dict[str, Any]:
        date = self.date.isoformat(timespec="seconds")
        return {"schema": SCHEMA, **vars(self), "date": date}

    def path(self, directory: Path, suffix: str = "json") -> Path:
        gpu = self.machine.get("gpu") if self.summary.get("target") != "cpu" else None
        where = gpu["name"] if gpu else "cpu"
        name = re.sub(r"[^a-z0-9]+", "-", where.lower()).strip("-")
        return directory / f"{self.benchmark}-{name}-{self.date:%Y%m%d-%H%M%S}.{suffix}"

    def save(self, directory: Path) -> Path:
        """Write the JSON file atomically; saving again replaces it."""
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
