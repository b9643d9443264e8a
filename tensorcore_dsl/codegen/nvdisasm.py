"""Machine code as text: NVIDIA's nvdisasm, with source lines and live registers."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.codegen.line_table import SourceLine
from tensorcore_dsl.codegen.programs import installed
from tensorcore_dsl.errors import AssemblyError

INSTALL_HINT = "pip install 'tensorcore-dsl[view]' brings nvdisasm (no GPU is needed for it)"
_SECONDS = 120
_PLACE = re.compile(r'\s*//## File "(.*?)", line (\d+)')
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s*(.*?)\s*(?://.*)?$")
_LIVE = re.compile(r".*// \|\s*(\d*)\s*\|")


class SassLine(NamedTuple):
    """A label or an instruction. live: general registers that hold a value after it."""

    text: str
    source: SourceLine | None
    live: int | None


def disassemble(cubin: Cubin, files: Mapping[str, str]) -> list[SassLine]:
    """The labels and instructions of a kernel, each with its line of Python.

    files: the user's name of each file that the machine code names. Raises AssemblyError without
    nvdisasm.
    """
    program = next((path for path in installed("nvdisasm") if path.is_file()), None)
    if program is None:
        raise AssemblyError(f"there is no nvdisasm; {INSTALL_HINT}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin.code)
        placed = _run(program, path, cubin.name, "-gi")
        counted = _run(program, path, cubin.name, "-plr", "-lrm", "count")
    live = {m[1]: n[1] for line in counted if (m := _INSTRUCTION.match(line)) and (n := _LIVE.match(line))}
    return list(_lines(placed, live, files))


def _run(program: Path, path: Path, kernel: str, *options: str) -> list[str]:
    """The lines of the kernel's section."""
    command = [str(program), "-c", *options, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AssemblyError(f"nvdisasm cannot be run: {error}") from None
    if done.returncode:
        raise AssemblyError(f"nvdisasm refuses the machine code: {done.stderr.strip()}")
    section = re.split(r"^//-+ (\S+) +-+$", done.stdout, flags=re.MULTILINE)
    return section[section.index(f".text.{kernel}") + 1].splitlines()


def _lines(text: list[str], live: Mapping[str, str], files: Mapping[str, str]) -> Iterator[SassLine]:
    source, fresh = None, True
    for line in text:
        if match := _PLACE.match(line):
            if fresh:  # An inlined function has its own line first, then the lines of the calls.
                source = files.get(match[1], match[1]), int(match[2])
            fresh = False
        elif match := _INSTRUCTION.match(line):
            count = live.get(match[1], "")
            yield SassLine(f"{match[1]}  {match[2]}", source, int(count) if count else None)
            fresh = True
        elif re.match(r"\.L\w*:", line):
            yield SassLine(line.split()[0], None, None)
            fresh = True
