"""NVIDIA's programs that are installed on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

_WHEELS = ("nvidia/cu*/bin", "nvidia/cuda_nvcc/bin", "triton/backends/nvidia/bin")


def installed(program: str) -> Iterator[Path]:
    """Paths of `program`: NVIDIA's wheels, CUDA_HOME and CUDA_PATH, PATH, the toolkit's default
    directory, Triton's copy. A path may lack the file."""
    name = f"{program}.exe" if sys.platform == "win32" else program
    *wheels, triton = _WHEELS
    roots = [Path(entry) for entry in sys.path if entry]
    for root in roots:
        for pattern in wheels:
            yield from (folder / name for folder in sorted(root.glob(pattern)))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "bin" / name
    if on_path := shutil.which(program):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin") / name
    for root in roots:
        yield from (folder / name for folder in root.glob(triton))
