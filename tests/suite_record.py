"""What a run of the tests gave, as a row of the table of machines in docs/fidelity.md.

`--record=FILE` of pytest (conftest.py) writes the row where the run ends, also on a machine that has
no repository; `python -m tests.suite_record FILE` puts it into the page, in place of that machine's.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tensorcore_dsl.runtime import driver

PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
HEADER = "| machine | versions | run | result |\n|---|---|---|---|\n"
PACKAGES = {
    "torch": "torch",
    "numpy": "NumPy",
    "numba": "Numba",
    "numba-cuda": "numba-cuda",
    "nvidia-nvjitlink": "nvJitLink",
    "nvidia-nvjitlink-cu12": "nvJitLink",
}
OUTCOMES = ("passed", "skipped", "xfailed", "xpassed", "failed", "error")


def row(outcomes: Mapping[str, int], seconds: float, arguments: str) -> str:
    """Machine, versions, date and command, and how many tests ended in which way."""
    counts = [f"{outcomes[name]:,} {name}" for name in OUTCOMES if outcomes.get(name)]
    count = sum(outcomes.get(name, 0) for name in OUTCOMES)
    cells = (
        _machine(),
        ", ".join(_versions()),
        f"{datetime.now(timezone.utc):%Y-%m-%d}, `{f'python -m pytest {arguments}'.strip()}`",
        f"{count:,} tests in {seconds:.0f} s: {', '.join(counts)}",
    )
    return f"| {' | '.join(cells)} |\n"


def _machine() -> str:
    if not driver.cuda_available():
        return f"{platform.machine()}, no GPU"
    gpu = driver.cuda_driver()
    major, minor = divmod(gpu.version() // 10, 100)
    return f"{gpu.device_count()} x {gpu.device_name()}, driver for CUDA {major}.{minor}"


def _versions() -> list[str]:
    versions = [f"Python {platform.python_version()}"]
    for package, name in PACKAGES.items():
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(package)}")
    return versions


def put(line: str, page: Path = PAGE) -> None:
    """Write a row into the table of a page, in place of the one of the same machine."""
    before, header, after = page.read_text("utf-8").partition(HEADER)
    if not header:
        raise SystemExit(f"{page} has no table that begins with {HEADER.splitlines()[0]}")
    rows = {}
    while after.startswith("|"):
        old, _, after = after.partition("\n")
        rows[old.split("|")[1]] = f"{old}\n"
    rows[line.split("|")[1]] = line
    page.write_text(before + header + "".join(rows.values()) + after, "utf-8")


if __name__ == "__main__":
    put(Path(sys.argv[1]).read_text("utf-8"))
