"""Runs kernels in emulation; what was run must also assemble, where there is an assembler."""

from __future__ import annotations

from typing import Any

try:
    import cuda.core  # noqa: F401

    ASSEMBLES = True
except ImportError:
    ASSEMBLES = False


def launch(
    kernel: Any, *args: Any, grid: Any = 1, block: Any = 64, arch: str = "sm_80", **constants: Any
) -> None:
    """Arrays among `args` are written in place."""
    kernel.emulator(arch)[grid, block](*args, **constants)
    if ASSEMBLES:
        assert kernel.cubin(*args, arch=arch, **constants)
