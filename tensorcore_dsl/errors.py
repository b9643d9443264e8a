"""Source locations and the errors a user meets.

    TensorCoreError
    ├── CompileError              a kernel's Python cannot become IR
    │   ├── UnsupportedSyntax     Python the kernel language does not have
    │   ├── OperandError          wrong type, shape or number of operands
    │   └── VerifyError           IR that breaks a rule of its row or target
    ├── UnknownInstruction        no row of the table has this form
    ├── ArchError                 the form exists, the target lacks it
    ├── LayoutError               a layout formula or a tile that cannot be
    ├── ArgumentError             what was passed to a launch does not fit
    ├── AssemblyError             ptxas refused the text we printed
    ├── LaunchError               the driver refused the launch
    └── EmulationError            the interpreter caught a mistake at run time
        ├── OutOfBounds, Misaligned, Uninitialised
        ├── Divergence            a warp-wide instruction without its whole warp
        └── Deadlock

Code that runs, but slower than it could, is a PerformanceWarning.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Loc:
    """A span of the user's source; `caller` is where an inlined helper was called from."""

    filename: str
    line: int
    column: int = 0
    end_column: int = 0
    function: str = ""
    caller: Loc | None = None

    def chain(self) -> list[Loc]:
        """This location and the calls that led to it, innermost first."""
        locs, loc = [], self
        while loc is not None:
            locs.append(loc)
            loc = loc.caller  # type: ignore[assignment]
        return locs

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"

    def excerpt(self) -> str:
        """The source line with a caret line under the expression."""
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
    """Everything raised or emitted inside belongs to `loc`."""
    token = _current.set(loc)
    try:
        yield
    finally:
        _current.reset(token)


def current_loc() -> Loc | None:
    """The location of the Python node being evaluated, if any."""
    return _current.get()


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
    """A kernel's Python cannot become IR."""


class UnsupportedSyntax(CompileError):
    """Python that the kernel language does not have."""


class OperandError(CompileError):
    """Wrong type, shape or number of operands."""


class VerifyError(CompileError):
    """IR that breaks a rule of its row or of its target."""


class UnknownInstruction(TensorCoreError, LookupError):
    """No row of the table has this form."""


class ArchError(TensorCoreError):
    """The form exists, but the target architecture lacks it."""


class LayoutError(TensorCoreError, ValueError):
    """A layout formula that is no bijection, or a tile that cannot be."""


class ArgumentError(TensorCoreError, TypeError):
    """What was passed to a launch does not fit the kernel."""


class AssemblyError(TensorCoreError):
    """The assembler refused the PTX text."""


class LaunchError(TensorCoreError):
    """The driver refused a launch."""


class EmulationError(TensorCoreError):
    """The interpreter caught a mistake that only running can show."""


class OutOfBounds(EmulationError):
    """An access outside every allocation."""


class Misaligned(EmulationError):
    """An address that is no multiple of the access size."""


class Uninitialised(EmulationError):
    """A read of bytes that nothing wrote, or that an asynchronous copy still owns."""


class Divergence(EmulationError):
    """A warp-wide instruction reached by part of a warp."""


class Deadlock(EmulationError):
    """Every warp that is left waits for something that cannot happen."""


class PerformanceWarning(UserWarning):
    """The assembler spilled registers, serialised `wgmma`, or ignored `setmaxnreg`."""


def listing(items: object, limit: int = 24) -> str:
    """`a, b, c, ...` for messages; long lists are cut."""
    texts = [str(item) for item in items]  # type: ignore[attr-defined]
    if len(texts) > limit:
        return ", ".join(texts[:limit]) + f", ... ({len(texts) - limit} more)"
    return ", ".join(texts)
