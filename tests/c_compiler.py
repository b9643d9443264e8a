"""The C compiler and the headers of CUDA with which tests compile launchers, and the stub of the driver."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).parent / "driver_stub.c"


def include_folder() -> Path | None:
    """The folder of cuda.h, of a wheel or of a toolkit."""
    roots = [Path(p) / "nvidia" for p in sys.path if p] + [Path("/usr/local/cuda"), Path("/usr/local")]
    return next((h.parent for root in roots for h in root.glob("**/include/cuda.h")), None)


INCLUDE, GCC = include_folder(), shutil.which("gcc")
needs_compiler = pytest.mark.skipif(not (INCLUDE and GCC), reason="needs gcc and cuda.h")
