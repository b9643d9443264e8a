"""Source locations and the errors that users see.

    TensorCoreError
    ├── CompileError              the kernel's Python cannot be compiled
    │   ├── UnsupportedSyntax     Python outside the kernel language
    │   ├── OperandError          wrong type, shape or number of operands
    │   └── VerifyError           IR that violates a rule of its instruction or target
    ├── UnknownInstruction        the table has no such instruction
    ├── ArchError                 the target does not have the instruction
    ├── LayoutError               an invalid layout formula or tile
    ├── ArgumentError             an invalid argument of a launch
    ├── AssemblyError             the assembler rejected the PTX text
    ├── LaunchError               the driver rejected a launch
    └── EmulationError            the interpreter detected a mistake at run time
        ├── OutOfBounds, Misaligned, Uninitialised
        ├── Divergence            a warp-wide instruction executed by part of a warp
        ├── Deadlock
        └── DebuggerQuit          the debugger was left with `quit`

Code that runs correctly but slowly raises a PerformanceWarning.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Loc:
    """A span of the user's source; `caller` is the call site of an inlined function."""

    filename: str
    line: int
    column: int = 0
    end_column: int = 0
    function: str = ""
    caller: Loc | None = None

    def chain(self) -> list[Loc]:
        """This location and its call sites, innermost first."""
        locs, loc = [], self
        while loc is not None:
            locs.append(loc)
            loc = loc.caller  # type: ignore[assignment]
        return locs

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"

    def excerpt(self) -> str:
        """The source line, with carets under the expression."""
        text = linecache.getline(self.filename, self.line).rstrip("\n")
        if not text.strip():
            return ""
        indent = len(text) - len(text.lstrip())
        start = max(self.column, indent)
        end = self.end_column if self.end_column > start else start + 1
        carets = " " * (start - indent) + "^" * min(end - start, max(len(text) - start, 1))
        return f"    {text.strip()}\n    {carets}"


_current: ContextVar[Loc | None] = ContextVar("location", default=None)


@contextmanager
def located(loc: Loc | None) -> Iterator[None]:
    """Context in which `loc` is the location of everything raised or emitted."""
    token = _current.set(loc)
    try:
        yield
    finally:
        _current.reset(token)


class TensorCoreError(Exception):
    """Base of all errors; `str()` shows file, line, caret and the chain of calls."""

    def __init__(self, message: str, loc: Loc | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.loc = loc if loc is not None else _current.get()

    def __str__(self) -> str:
        if self.loc is None:
            return self.message
        lines = [self.message]
        for depth, loc in enumerate(self.loc.chain()):
            where = f" in {loc.function}" if loc.function else ""
            lines.append(f"  {'at' if depth == 0 else 'called from'} {loc}{where}")
            excerpt = loc.excerpt()
            if excerpt:
                lines.append(excerpt)
        return "\n".join(lines)


class CompileError(TensorCoreError):
    """The kernel's Python cannot be compiled."""


class UnsupportedSyntax(CompileError):
    """Python outside the kernel language."""


class OperandError(CompileError):
    """Wrong type, shape or number of operands."""


class VerifyError(CompileError):
    """IR that violates a rule of its instruction or target."""


class UnknownInstruction(TensorCoreError, LookupError):
    """The table has no such instruction."""


class ArchError(TensorCoreError):
    """The target architecture does not have the instruction."""


class LayoutError(TensorCoreError, ValueError):
    """A layout formula that is no bijection, or an invalid tile."""


class ArgumentError(TensorCoreError, TypeError):
    """An argument of a launch that the kernel cannot take."""


class AssemblyError(TensorCoreError):
    """The assembler rejected the PTX text."""


class LaunchError(TensorCoreError):
    """The driver rejected a launch."""


class EmulationError(TensorCoreError):
    """The interpreter detected a mistake of the kernel at run time."""


class OutOfBounds(EmulationError):
    """An access outside every allocation."""


class Misaligned(EmulationError):
    """An address that is not a multiple of the access size."""


class Uninitialised(EmulationError):
    """A read of bytes that were never written, or that an asynchronous copy still owns."""


class Divergence(EmulationError):
    """A warp-wide instruction executed by part of a warp."""


class Deadlock(EmulationError):
    """All remaining warps wait for events that cannot happen."""


class DebuggerQuit(EmulationError):
    """The debugger was left with `quit`, or its input ended."""


class PerformanceWarning(UserWarning):
    """The assembler spilled registers, serialised `wgmma`, or ignored `setmaxnreg`."""


def listing(items: object, limit: int = 24) -> str:
    """`a, b, c, ...` for messages; long lists are truncated."""
    texts = [str(item) for item in items]  # type: ignore[attr-defined]
    if len(texts) > limit:
        return ", ".join(texts[:limit]) + f", ... ({len(texts) - limit} more)"
    return ", ".join(texts)
