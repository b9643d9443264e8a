"""numba-cuda's tests in emulation: `python -m tests.numba_suite [tests of pytest and its options]`.

Without tests: all of numba.cuda.tests.cudapy, in a random order, so that a part of a run is a sample. They
need the packages cffi and filecheck. Every process of Python that a test starts launches in emulation, too.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

SITE = """
import sys
import numba.cuda.tests
from tensorcore_dsl import ptx
sys.modules["cuda.tests"] = numba.cuda.tests  # pytest calls the tests' modules so
on_cpu = ptx.numba_on_cpu()
on_cpu.__enter__()
"""
OPTIONS = (
    "--import-mode=importlib", "-p", "tests.numba_suite", "-p", "no:cacheprovider",
    "-q", "--tb=short", "-rf", "--pyargs",
)  # fmt: skip


@pytest.fixture
def initialize_from_pytest_config(request: Any) -> None:
    """A fixture that numba-cuda defines outside of its wheel."""
    request.cls._dump_failed_filechecks = False


def pytest_collection_modifyitems(items: list[Any]) -> None:
    random.Random(0).shuffle(items)


def main(arguments: list[str]) -> int:
    chosen = [] if any(name.startswith("numba.") for name in arguments) else ["numba.cuda.tests.cudapy"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(SITE)
        path = [folder, os.getcwd(), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        command = [sys.executable, "-m", "pytest", *OPTIONS, *chosen, *arguments]
        return subprocess.run(command, env=environment, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
