"""Whole-program assembly by an installed ptxas.

nvJitLink compiles a text as part of a program and therefore ignores `setmaxnreg` (C7504). The
order of search is TENSORCORE_DSL_PTXAS, then that of `programs.installed`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tensorcore_dsl.codegen.programs import installed
from tensorcore_dsl.environment.switches import is_off

VARIABLE = "TENSORCORE_DSL_PTXAS"  # a path, or "off"
_SECONDS = 600


class Refusal(Exception):
    """ptxas refused the text; the message is its output."""


def find(version: tuple[int, int]) -> Path | None:
    """The first ptxas that supports a PTX version, such as (8, 0), or None."""
    return next((path for path in candidates() if supports(path, version)), None)


def candidates() -> tuple[Path, ...]:
    """All ptxas of this machine, in the order of search."""
    return () if is_off(VARIABLE) else _found(os.environ.get(VARIABLE))


@cache
def _found(chosen: str | None) -> tuple[Path, ...]:
    candidates = [Path(chosen)] if chosen else list(installed("ptxas"))
    return tuple(dict.fromkeys(path for path in candidates if path.is_file()))


def identity(path: Path) -> str:
    """Path, size and time of a ptxas, which differ between versions."""
    status = path.resolve().stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"


@cache
def supports(path: Path, version: tuple[int, int]) -> bool:
    """Whether a ptxas runs and supports this PTX version."""
    major, minor = version
    head = f".version {major}.{minor}\n.target sm_90\n.address_size 64\n"
    try:
        assemble(path, head + ".visible .entry k() { ret; }\n", "sm_90")
    except (Refusal, OSError):
        return False
    return True


def assemble(path: Path, ptx: str, arch: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    """Machine code and log of a text. Raises Refusal with the output of ptxas."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        command = [str(path), *options, f"-arch={arch}", str(source), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise Refusal(f"{path} took more than {_SECONDS} s") from None
        output = (done.stdout + done.stderr).replace(str(source), "kernel.ptx")
        if done.returncode or not target.is_file():
            raise Refusal(output or f"{path} ended with status {done.returncode}")
        return target.read_bytes(), output


def version_of(ptx: str) -> tuple[int, int]:
    """The PTX version that a text declares, or (0, 0)."""
    match = re.search(r"^\s*\.version\s+(\d+)\.(\d+)", ptx, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else (0, 0)
