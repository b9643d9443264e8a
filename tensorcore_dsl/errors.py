"""Source locations and the errors that users see.

    TensorCoreError
    ├── CompileError              the kernel's Python cannot be compiled
    │   ├── UnsupportedSyntax     Python outside the kernel language
    │   ├── OperandError          wrong type, shape or number of operands
    │   └── VerifyError           IR that violates a rule of its instruction or target
    ├── UnknownName               a name of the library that does not exist
    ├── UnknownInstruction        the table has no such instruction
    ├── ArchError                 the target does not have the instruction
    ├── LayoutError               an invalid layout formula or tile
    ├── ArgumentError             an invalid argument of a launch
    ├── AssemblyError             the assembler rejected the PTX text
    ├── LaunchError               the driver rejected a launch
    └── EmulationError            the interpreter detected a mistake at run time
        ├── OutOfBounds, Misaligned, Uninitialised
        ├── InvalidArithmetic     a division by zero, a negative shift, an index's product wraps
        ├── AssertionFailed       the condition of an `assert` does not hold
        ├── Divergence            a warp-wide instruction executed by part of a warp
        ├── Race                  two accesses that nothing orders
        ├── Deadlock
        └── DebuggerQuit          the debugger was left with `quit`

Code that runs correctly but slowly raises a PerformanceWarning. Threads that write the same value
to the same bytes without an order raise a RaceWarning.

Errors leave the library through functions under `@public`, which remove the frames of the library
from their traceback.
"""

from __future__ import annotations

import difflib
import inspect
import linecache
import os
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from types import FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

from tensorcore_dsl.origins import is_installed, is_of_package, is_pythons, shown_name


@dataclass(frozen=True)
class Loc:
    """A span of the user's source.

    Attributes
    ----------
    filename : str
        The file.
    line, column, end_column : int
        Lines count from 1, columns from 0.
    function : str
        The function around it.
    caller : Loc or None
        The call site of an inlined function.
    """

    filename: str
    line: int
    column: int = 0
    end_column: int = 0
    function: str = ""
    caller: Loc | None = None

    @classmethod
    def of_function(cls, function: Any) -> Loc:
        """The first line of a Python function."""
        code = function.__code__
        return cls(code.co_filename, code.co_firstlineno, function=function.__name__)

    def chain(self) -> list[Loc]:
        """List the location and its call sites, innermost first."""
        locs, loc = [], self
        while loc is not None:
            locs.append(loc)
            loc = loc.caller  # type: ignore[assignment]
        return locs

    def __str__(self) -> str:
        return f"{shown_name(self.filename)}:{self.line}"

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


def place_of_error(error: Exception, caller: Loc | None) -> Loc | None:
    """Location at which Python raised an error in functions of the user that `caller` has called."""
    trace = error.__traceback__
    while trace is not None:
        filename = _file(trace.tb_frame)
        installed = is_installed(filename) or filename.startswith("<")
        if not installed and not _is_passed_through(trace.tb_frame):
            caller = _place_of_entry(trace, caller)
        trace = trace.tb_next
    return caller


def _place_of_entry(trace: TracebackType, caller: Loc | None) -> Loc:
    code, columns = trace.tb_frame.f_code, (0, 0)
    if sys.version_info >= (3, 11):
        line, end, *offsets = next(islice(code.co_positions(), trace.tb_lasti // 2, None))
        columns = (offsets[0] or 0, offsets[1] or 0 if line == end else 0)
    return Loc(code.co_filename, trace.tb_lineno, *columns, code.co_name, caller)


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
        innermost, *calls = self.loc.chain()
        if not _is_library_file(innermost.filename):  # as an epilogue that a kernel of ours calls
            calls = [call for call in calls if not _is_library_file(call.filename)]
        times = Counter(replace(loc, caller=None) for loc in calls)  # a recursion repeats its sites
        for loc in (innermost, *times):
            where = f" in {loc.function}" if loc.function else ""
            again = f", {times[loc]} times" if times[loc] > 1 and loc is not innermost else ""
            lines.append(f"  {'at' if loc is innermost else 'called from'} {loc}{where}{again}")
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


class Meeting:
    """What a report of two accesses to the same bytes says.

    message: the text without the places. first: where the other access is. memory: the bytes. cure:
    what would order the accesses. other_kernel: the kernel of the other access, if an earlier launch
    has made it.
    """

    first: Loc | None = None
    message = memory = cure = other_kernel = ""


class EmulationError(TensorCoreError, Meeting):
    """The interpreter detected a mistake of the kernel at run time."""


class OutOfBounds(EmulationError):
    """An access outside every allocation."""


class Misaligned(EmulationError):
    """An address that is not a multiple of the access size."""


class Uninitialised(EmulationError):
    """A read of bytes that were never written, or that an asynchronous copy still owns."""


class InvalidArithmetic(EmulationError):
    """An integer division by zero, a shift by a negative count, a range that does not end.

    The step of such a range is zero, or its index leaves its type before the end. Also an index, an
    address or a bound of a range with a product in it that wraps in 32 bits.
    """


class AssertionFailed(EmulationError):
    """The condition of an `assert` does not hold in a thread."""


class Divergence(EmulationError):
    """A warp-wide instruction executed by part of a warp."""


class Race(EmulationError):
    """Two threads access the same bytes, at least one writes, and nothing orders the accesses.

    loc: the access that was found second.
    """


class Deadlock(EmulationError):
    """All remaining warps wait for events that cannot happen."""


class DebuggerQuit(EmulationError):
    """The debugger was left with `quit`, or its input ended."""


class UnknownName(TensorCoreError, AttributeError):
    """A module or an object has no attribute of this name."""


class PerformanceWarning(UserWarning):
    """The assembler spilled registers, serialised `wgmma`, or ignored `setmaxnreg`."""


class RaceWarning(UserWarning, Meeting):
    """Threads write the same value to the same bytes, and nothing orders them; see Race."""

    def __init__(self, message: str, loc: Loc | None = None) -> None:
        super().__init__(message)
        self.loc = loc


def listing(items: object, limit: int = 24) -> str:
    """`a, b, c, ...` for messages; long lists are truncated."""
    texts = [str(item) for item in items]  # type: ignore[attr-defined]
    if len(texts) > limit:
        return ", ".join(texts[:limit]) + f", ... ({len(texts) - limit} more)"
    return ", ".join(texts)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` may be a slip of; "" if there is none."""
    plain = {k.lower().replace("_", ""): k for k in known if not k.startswith("_")}
    matches = difflib.get_close_matches(name.lower().replace("_", ""), plain, n=1, cutoff=0.66)
    return plain[matches[0]] if matches else ""


# -- tracebacks ------------------------------------------------------------------------------

Function = TypeVar("Function", bound=Callable[..., Any])


def public(function: Function) -> Function:
    """`function` for users: the traceback of an error that leaves it has no frames of the library.

    Inside a kernel, the function itself is called. TENSORCORE_DSL_TRACEBACK=full keeps the frames.
    """

    @wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        try:
            try:
                return function(*args, **keywords)
            except (TypeError, AttributeError, LookupError, ValueError) as error:
                if isinstance(error, TensorCoreError) or _is_raised_by_user(error):
                    raise
                name = function.__qualname__.removesuffix(".__init__")
                check_call(function, name, args, keywords, ArgumentError)
                complaint = misfit(function, name, args, keywords, repr)
                if not complaint:
                    raise
                raise ArgumentError(complaint) from None
        except TensorCoreError as error:
            hide_library(error)
            raise
        except Exception as error:
            if _is_raised_by_user(error):
                _hide_frames(error)
            raise

    called.__kernel_function__ = function  # type: ignore[attr-defined]
    return called  # type: ignore[return-value]


_KEYWORDS = {"mask": "pred", "predicate": "pred", "other": "otherwise", "offset": "origin"}


def check_call(
    function: Any, name: str, args: Iterable[Any], keywords: dict[str, Any], kind: type[TensorCoreError]
) -> None:
    """Raise an error of this kind if the arguments do not fit the signature of a function.

    "f(a, b=1): missing a required argument: 'a'"; "...; did you mean 'b'?".
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it has none
        return
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        unknown = [key for key in keywords if key not in signature.parameters]
        meant = _KEYWORDS.get(unknown[0], "") if unknown else ""
        if meant not in signature.parameters:
            meant = nearest(unknown[0], signature.parameters) if unknown else ""
        text = f"got an unexpected keyword argument {unknown[0]!r}" if unknown else str(error)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise kind(f"{name}{plain_signature(signature)}: {text}{hint}") from None


def plain_signature(signature: inspect.Signature) -> inspect.Signature:
    """The signature without annotations and without self, as messages show it."""
    parameters = signature.parameters.values()
    plain = [p.replace(annotation=p.empty) for p in parameters if p.name not in ("self", "cls")]
    return signature.replace(parameters=plain, return_annotation=signature.empty)


def misfit(
    function: Any, name: str, args: Iterable[Any], keywords: dict[str, Any], describe: Callable[[Any], str]
) -> str:
    """Which argument is not what its annotation says, for messages; "" if all of them may be.

    For calls that have failed: annotations are narrower than what a function takes.
    """
    try:
        bound = inspect.signature(function).bind(*args, **keywords)
    except (TypeError, ValueError):
        return ""
    names = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__globals__", {})
    for key, value in bound.arguments.items():
        parameter = bound.signature.parameters[key]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kinds = _kinds(parameter.annotation, names)
        if kinds and not any(_is_of_kind(value, kind) for kind in kinds):
            words = " or ".join(dict.fromkeys(map(_kind_in_words, kinds)))
            return f"the argument {key!r} of {name} must be {words}, not {describe(value)}"
    return ""


def _kinds(annotation: Any, names: dict[str, Any]) -> list[Any]:
    """The classes of a union; none if it allows anything, or if something else than classes."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, names)
        except (NameError, TypeError):  # imported for checkers alone
            return []
    kinds = []
    for item in typing.get_args(annotation) if _is_union(annotation) else (annotation,):
        kind = typing.get_origin(item) or item
        if not isinstance(kind, type) or kind in (Any, inspect.Parameter.empty, object):
            return []
        kinds.append(kind)
    return kinds


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_of_kind(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, (int, float)) or hasattr(value, "dtype")
    if kind in (list, tuple, Sequence, Iterable):
        return hasattr(type(value), "__iter__") and not isinstance(value, (str, dict))
    return isinstance(value, kind)


_IN_WORDS = {
    "NoneType": "None", "int": "an integer", "float": "a number", "str": "a string",
    "bool": "True or False", "list": "a list", "tuple": "a tuple", "Sequence": "a list",
    "Iterable": "a list", "Callable": "a function", "Tile": "a shared tile", "Array": "an array",
    "DType": "an element type", "RegisterGroup": "a fragment or vector",
    "Scalar": "a run-time value", "Operand": "an operand of an instruction",
    "Instruction": "an instruction, such as tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)",
}  # fmt: skip


def _kind_in_words(kind: type) -> str:
    name = kind.__name__
    return _IN_WORDS.get(name, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def publish(names: dict[str, Any]) -> None:
    """Make the functions among the names of a module public: their errors show no frames of the
    library.

    Parameters
    ----------
    names : dict
        `globals()` of the module; changed in place.
    """
    for name, value in names.items():
        new = isinstance(value, FunctionType) and not hasattr(value, "__kernel_function__")
        if new and is_of_package(value.__module__):
            names[name] = public(value)


def hide_library(error: TensorCoreError) -> None:
    """Keep only the frames of users in a traceback, and no error that the library has handled.

    A bare `raise` must follow in the function that has caught the error: it adds no frame. In
    Python 3.10 the frame of that function stays.
    """
    if _shows_all():
        error.__suppress_context__ = False
        return
    _hide_frames(error)
    context = error.__context__
    while context is not None and not _is_of_user(context.__traceback__):
        context = context.__context__
    cause = error.__cause__  # shown instead of the context
    if isinstance(cause, TensorCoreError):  # meant for users, as that of a failed search
        cause.__traceback__ = _of_users(cause.__traceback__)
        return
    error.__cause__ = None
    if context is not None:
        error.__context__, error.__suppress_context__ = context, False


def _shows_all() -> bool:
    return os.environ.get("TENSORCORE_DSL_TRACEBACK") == "full"


def _hide_frames(error: BaseException) -> None:
    """Keep only the frames of users in a traceback."""
    if _shows_all():
        return
    head = error.__traceback__
    error.__traceback__ = trace = _of_users(head)
    if sys.version_info < (3, 11) and head is not None:
        head.tb_next = trace


def _is_raised_by_user(error: BaseException) -> bool:
    """True if an error comes from a function of the user that the library has called."""
    trace, inside, user = error.__traceback__, False, False
    while trace is not None:
        library = is_of_package(_module(trace.tb_frame))
        inside |= library
        user = not library and (user or not _is_passed_through(trace.tb_frame))
        trace = trace.tb_next
    return inside and user


def _of_users(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without frames of the library, and without those that it passed through."""
    kept, inside = [], False
    while trace is not None:
        inside |= is_of_package(_module(trace.tb_frame))
        if not (inside and _is_passed_through(trace.tb_frame)):
            kept.append(trace)
        trace = trace.tb_next
    for entry in reversed(kept):
        trace = TracebackType(trace, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return trace


def _is_of_user(trace: TracebackType | None) -> bool:
    """True if an error was caught in a function of the user."""
    return trace is not None and not _is_passed_through(trace.tb_frame)


def _is_passed_through(frame: FrameType) -> bool:
    """True if a frame below one of the library belongs to the library, Python or NumPy."""
    module = _module(frame)
    return is_of_package(module) or is_pythons(module, _file(frame)) or module.partition(".")[0] == "numpy"


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_library_file(filename: str) -> bool:
    """True if it is a file of this package, whose calls messages leave out."""
    kernels = getattr(sys.modules.get("tensorcore_dsl.kernels"), "__path__", ())
    folders = tuple(f"{folder}{os.sep}" for folder in (os.path.dirname(__file__), *kernels))
    return not _shows_all() and filename.startswith(folders)
