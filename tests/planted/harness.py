"""Cases of planted bugs, and how one is run.

A case is a kernel, its launch, its arguments, and what must be reported. The parameter `mistake` (a
tc.Const) of the kernel names the bug, and "" is the correct twin. A twin that differs in more is a
kernel of its own.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race, RaceWarning, TensorCoreError

# Most bugs of asynchronous code break a rule and race at the same time. The order of threads decides
# which one is reported, and the lines decide whether that is right.
ANY = (EmulationError, RaceWarning)
_PLACE = re.compile(r":(\d+)")

Arguments = tuple[dict[str, Any], dict[str, Any]]
Lines = str | tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The lines of a kernel that must be reported, each by a part of its text.

    A part names one statement. "bar.init(1) #2" is the second one from the top that has this text.
    first, second: the accesses of a race; either may be reported first. error: the lines to blame for
    all other errors. Of several lines any one is right. says: a regular expression of the message.
    """

    first: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    says: str = ""

    def fits(self, raised: Any, kernel: Any) -> bool:
        """Tell whether the error, or the warning, names these lines of the kernel, and says what it must."""
        if not re.search(self.says, str(raised)):
            return False
        first, second, error = (_numbers(kernel, parts) for parts in (self.first, self.second, self.error))
        places = _chain(getattr(raised, "loc", None))
        if not isinstance(raised, (Race, RaceWarning)):
            return bool(places & (error or first | second))
        others = _chain(getattr(raised, "first", None))
        if not places:  # a warning has a text and a line
            places = others = {raised.line, *map(int, _PLACE.findall(str(raised)))}
        if not first:
            return bool((places | others) & error)
        return bool((places & first and others & second) or (places & second and others & first))


def race(first: Lines, second: Lines | None = None, error: Lines = (), says: str = "") -> Report:
    """A race between two lines, or of a line with itself; or another error at the lines `error`."""
    return Report(_tuple(first), _tuple(first if second is None else second), _tuple(error), says)


def error(*lines: str, says: str = "") -> Report:
    """An error at one of these lines."""
    return Report(error=lines, says=says)


def _tuple(lines: Lines) -> tuple[str, ...]:
    return (lines,) if isinstance(lines, str) else lines


def _chain(loc: Any) -> set[int]:
    return set() if loc is None else {place.line for place in loc.chain()}


def _numbers(kernel: Any, parts: tuple[str, ...]) -> set[int]:
    """The numbers of the lines of each statement that the parts name."""
    heads = sorted(_heads(kernel), key=lambda head: head[0].start) if parts else []
    numbers: set[int] = set()
    for part in parts:
        text, _, place = part.partition(" #")
        places = [lines for lines, head in heads if _without_spaces(text) in head]
        if not place:
            assert len(places) == 1, f"{kernel.__name__} has {len(places)} statements with {text}: say which"
        numbers.update(places[int(place or 1) - 1])
    return numbers


def _heads(kernel: Any) -> Iterator[tuple[range, str]]:
    """Each statement of a kernel, or its head: its lines and its text."""
    lines, start = inspect.getsourcelines(kernel.function)
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines))).body[0]):
        if isinstance(node, ast.stmt) and not _is_text(node):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            text = _without_spaces("".join(lines[node.lineno - 1 : end]))
            yield range(start + node.lineno - 1, start + end), text


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _without_spaces(text: str) -> str:
    return "".join(text.split())


@dataclass(frozen=True)
class Case:
    """A planted bug and its twin.

    make: from a seeded generator, the arguments by name and the arrays that a correct run leaves,
    by name. errors: the classes that are right, with their subclasses; EmulationError takes any
    report. mistake: the value of the kernel's parameter of this name. The twin is the same kernel
    without a mistake, or `twin`. devices: 0 for one GPU. launches: one after the other; a parameter
    `launch` gets the number of each, from 1 on. warned: warnings of races are reports, too.
    """

    name: str
    kernel: Any
    grid: Any
    block: Any
    make: Callable[[np.random.Generator], Arguments]
    errors: tuple[type[Exception], ...]
    report: Report
    mistake: str = ""
    twin: Any = None
    arch: str = "sm_90a"
    shared_bytes: int = 0
    devices: int = 0
    launches: int = 1
    warned: bool = True

    def run_bug(self) -> list[Any]:
        """What is reported of the bug."""
        return self._run(self.kernel, self.mistake, None)[0]

    def run_twin(self, order: int | None) -> tuple[list[Any], str]:
        """What is reported of the twin, and which result is wrong."""
        return self._run(self.twin or self.kernel, "", order)

    def _run(self, kernel: Any, mistake: str, order: int | None) -> tuple[list[Any], str]:
        """The error, or else the warnings of races, and the results that differ."""
        arguments, expected = self.make(np.random.default_rng(0))
        named = dict(arguments)
        if "mistake" in inspect.signature(kernel.function).parameters:
            named["mistake"] = mistake
        launch = kernel.emulator(self.arch, order=order)[self.grid, self.block, None, self.shared_bytes]
        reports: list[Any] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with tc.devices(self.devices) if self.devices else nullcontext():
                    for number in range(1, self.launches + 1):
                        launch(**named, **({"launch": number} if self.launches > 1 else {}))
            except (EmulationError, *self.errors) as raised:
                reports.append(raised)
            except TensorCoreError as raised:  # the case itself is wrong
                raise AssertionError(f"{self.name} cannot be run: {raised}") from raised
        for warning in caught if self.warned and not reports else []:
            if isinstance(warning.message, RaceWarning):
                here = warning.filename == inspect.getsourcefile(kernel.function)
                warning.message.line = warning.lineno if here else 0  # type: ignore[attr-defined]
                reports.append(warning.message)
        mismatches = [
            f"{name} is\n{arguments[name]}\nand not\n{value}"
            for name, value in expected.items()
            if not np.array_equal(arguments[name], value, equal_nan=np.asarray(value).dtype.kind == "f")
        ]
        return reports, "\n".join(mismatches)


class Planted(list[Case]):
    """The cases of a module, each noted by the decorator of its kernel.

    Without `errors`, any class is right. The options are those of `Case`.
    """

    def __init__(self, *errors: type[Exception], **options: Any) -> None:
        super().__init__()
        self.errors, self.options = errors or ANY, options

    def __call__(
        self,
        grid: Any,
        block: Any,
        make: Callable[[np.random.Generator], Arguments],
        reports: Report | Mapping[str, Report],
        *errors: type[Exception],
        **options: Any,
    ) -> Callable[[Any], Any]:
        """A case for each mistake of the kernel; a single mistake is called "planted"."""

        def note(function: Any) -> Any:
            kernel = tc.kernel(function)
            named = {"planted": reports} if isinstance(reports, Report) else reports
            for mistake, report in named.items():
                name = kernel.__name__ + (f": {mistake}" if named is reports else "")
                case = Case(name, kernel, grid, block, make, errors or self.errors, report, mistake)
                self.append(replace(case, **{**self.options, **options}))
            return kernel

        return note

    def marked(
        self, raised: type[Exception], message: str, *args: Any, dtype: Any = np.float32, **options: Any
    ) -> Callable[[Any], Any]:
        """A case of one mistake, told with this message at the line that ends in `# here`.

        A tuple among the arguments is the shape of an array of ones. What the kernel computes is not
        looked at, and all threads may write one place.
        """

        def note(function: Any) -> Any:
            def make(_: np.random.Generator) -> Arguments:
                values = (np.ones(a, dtype) if isinstance(a, tuple) else a for a in args)
                return dict(zip(inspect.signature(function).parameters, values, strict=False)), {}

            grid, block = options.pop("grid", 1), options.pop("block", 32)
            report = error("# here", says=re.escape(message))
            return self(grid, block, make, report, raised, warned=False, **options)(function)

        return note


def mapped(shape: Any, result: Callable[[np.ndarray], np.ndarray], **more: Any) -> Any:
    """`make` of kernels (x, out): x holds random s32 from 1 to 999, out must become result(x)."""

    def make(draw: np.random.Generator) -> Arguments:
        x = draw.integers(1, 1000, shape).astype(np.int32)
        right = np.array(result(x))
        return {"x": x, "out": np.zeros_like(right), **more}, {"out": right}

    return make
