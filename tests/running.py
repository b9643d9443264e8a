"""Runs kernels in emulation; what was run must also assemble, where there is an assembler."""

from __future__ import annotations

import copy
import inspect
import linecache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import tensorcore_dsl as tc

try:
    import cuda.core  # noqa: F401

    ASSEMBLES = True
except ImportError:
    ASSEMBLES = False


def execute_text(source: str, file: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute Python source as if it were in `file`, so that its kernels find their lines."""
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), names)
    return names


def line_of(kernel: Any, text: str) -> int:
    """The line of the file where the source of a kernel, or of a function, first has `text`."""
    lines, first = inspect.getsourcelines(getattr(kernel, "function", kernel))
    return first + next(i for i, line in enumerate(lines) if text in line)


def marked_lines(file: str, *comments: str) -> set[int]:
    """The lines of a file that end in one of the comments."""
    lines = enumerate(linecache.getlines(file), 1)
    return {number for number, line in lines if line.rstrip().endswith(comments)}


def launch(
    kernel: Any, *args: Any, grid: Any = 1, block: Any = 64, arch: str = "sm_80", **constants: Any
) -> None:
    """Arrays among `args` are written in place."""
    kernel.emulator(arch)[grid, block](*args, **constants)
    if ASSEMBLES:
        assert kernel.cubin(*args, arch=arch, **constants)


def run(kernel: Any, grid: Any, block: int, *args: Any, order: Any = None, **constants: Any) -> Any:
    """Emulate a launch on sm_90a."""
    with tc.target("cpu", "sm_90a"):
        return kernel.emulator("sm_90a", order=order)[grid, block](*args, **constants)


def caught(error: type[Exception], words: str, kernel: Any, *args: Any, **constants: Any) -> str:
    """The message of the mistake that the kernel makes."""
    with pytest.raises(error, match=words) as raised:
        run(kernel, *args, **constants)
    return str(raised.value)


def compare_with_python(kernel: Any, *args: Any, block: int, **constants: Any) -> None:
    """Emulate `kernel`; its function, called by Python for each thread, must write the same."""
    expected = copy.deepcopy(args)
    for thread in range(block):
        language = SimpleNamespace(threadIdx=SimpleNamespace(x=thread), range=range, static_range=range)
        language.u64 = int
        language.local = lambda shape, dtype, fill=0: np.full(shape, fill, dtype.numpy)
        with mock.patch.dict(kernel.function.__globals__, tc=language):
            kernel.function(*expected, **copy.deepcopy(constants))
    before = copy.deepcopy(constants)
    launch(kernel, *args, block=block, **constants)
    for written, wanted in zip(args, expected, strict=True):
        assert np.array_equal(written, wanted), (written, wanted)
    assert constants == before, "the caller's objects are not touched"


def checked(kernel: Any, args: Any, arch: str = "sm_90a") -> Any:
    """The specialisation of a build with checks for these arguments."""
    runtime, constants = kernel.split(args, {})
    return kernel.specialised(kernel.types_of(runtime), constants, arch, True)
