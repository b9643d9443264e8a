"""Kernels that must be refused: what users read then, the text, the place, the caret, the calls."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import ArrayType, OperandError, TensorCoreError

F32 = ArrayType(tc.f32, 1, (True,), 16)
MATRIX = ArrayType(tc.f32, 2, (False, True), 16)
HALF = ArrayType(tc.f16, 1, (True,), 16)
INTS = ArrayType(tc.s32, 1, (True,), 16)


@dataclass
class Case:
    """A kernel that is refused with `message`; `at` is the expression under the caret."""

    kernel: Any
    message: str
    at: str
    args: tuple[Any, ...]
    error: type[TensorCoreError]
    arch: str
    constants: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


class Refusals(list[Case]):
    """The cases of a file, each noted by a decorator: `@refused(message, at, *types of args)`."""

    def __call__(
        self,
        message: str,
        at: str,
        *args: Any,
        error: type[TensorCoreError] = OperandError,
        arch: str = "sm_80",
        **constants: Any,
    ) -> Callable[[Any], Any]:
        """The kernel is refused with this message, the caret under `at`."""

        def note(function: Any) -> Any:
            self.append(Case(tc.kernel(function), message, at, args, error, arch, constants))
            return function

        return note


def check(case: Case) -> TensorCoreError:
    """The error of compiling the kernel, once its text and its place have been looked at."""
    with pytest.raises(case.error) as raised:
        case.kernel.ptx(*case.args, arch=case.arch, **case.constants)
    error = raised.value
    line_of = lambda match: str(error.loc.line + int(match[1] or 0))  # type: ignore[union-attr]
    message = re.sub(r"{line([-+]\d+)?}", line_of, case.message)
    assert error.message == message
    loc = error.loc
    file = case.kernel.function.__code__.co_filename
    assert loc is not None and loc.filename == file
    line = linecache.getline(file, loc.line).rstrip("\n")
    if loc.end_column:
        assert line[loc.column : loc.end_column] == case.at
    else:  # an expression or a statement of several lines
        assert line[loc.column :].startswith(case.at)
    lines = str(error).splitlines()
    assert lines[0] == message.splitlines()[0]
    shown = lines[lines.index(f"    {line.strip()}") + 1]
    start = loc.column - (len(line) - len(line.lstrip())) + 4
    assert shown.index("^") == start and set(shown.strip()) == {"^"}
    return error
