"""Cases of planted bugs, and how one is run and judged.

A case is a kernel, its launch and its arguments. The parameter `mistake` (a tc.Const) of the kernel
names the bug, and "" is the correct twin. A twin that differs in more is a kernel of its own.
Comments in the kernel's source mark what a report must name:

    # race: first      one access of a race; the other one is marked
    # race: second     (either may be reported first)
    # race: both       both accesses are on this line
    # error            the line to blame, for all other errors
    # race 2: first    only for the kernel's second mistake; `# error 1,3; race 2: both` marks a
                       line for several mistakes

Where several lines are marked alike, a report of any of them is right.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import multiprocessing
import re
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race, RaceWarning, TensorCoreError
from tests.planted import CLASSES

RIGHT, WRONG_LINE, OTHER = "right line", "wrong line", "other error"
WRONG_RESULT, SILENT, HUNG = "wrong result", "silent", "hung"
VERDICTS = (RIGHT, WRONG_LINE, OTHER, WRONG_RESULT, SILENT, HUNG)
FINE = "fine"  # of a twin
# Most bugs of asynchronous code break a rule and race at the same time. The order of threads decides
# which one is reported, and the lines decide whether that is right.
ANY = (EmulationError, RaceWarning)
FIRST_LIMIT = 180.0  # seconds; the first run of a process may compile the emulator's loops
_MARK = re.compile(r"(race|error)(?: ([\d,]+))?(?:: (first|second|both))?")
_PLACE = re.compile(r":(\d+)")

Arguments = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A planted bug and its twin.

    make: from a seeded generator, the arguments by name and the arrays that a correct run leaves,
    by name. errors: the classes that are right, with their subclasses; EmulationError takes any
    report. mistake: the value of the kernel's parameter of this name; number: its place in the
    kernel's list, from 1 on. The twin is the same kernel without a mistake, or `twin`. devices: 0 for
    one GPU. launches: one after the other; a parameter `launch` gets the number of each, from 1 on.
    """

    name: str
    kernel: Any
    grid: Any
    block: Any
    make: Callable[[np.random.Generator], Arguments]
    errors: tuple[type[Exception], ...]
    mistake: str = ""
    number: int = 0
    twin: Any = None
    arch: str = "sm_90a"
    shared_bytes: int = 0
    devices: int = 0
    launches: int = 1


def variants(
    kernel: Any,
    grid: Any,
    block: Any,
    make: Callable[[np.random.Generator], Arguments],
    *errors: type[Exception],
    mistakes: Sequence[str] = ("planted",),
    **more: Any,
) -> list[Case]:
    """A case for each mistake of a kernel; without `errors`, any report of one is right."""
    name = kernel.__name__
    names = [name if mistakes == ("planted",) else f"{name}: {mistake}" for mistake in mistakes]
    return [
        Case(names[n], kernel, grid, block, make, errors or ANY, mistake, n + 1, **more)
        for n, mistake in enumerate(mistakes)
    ]


def mapped(shape: Any, result: Callable[[np.ndarray], np.ndarray], **more: Any) -> Any:
    """`make` of kernels (x, out): x holds random s32 from 1 to 999, out must become result(x)."""

    def make(draw: np.random.Generator) -> Arguments:
        x = draw.integers(1, 1000, shape).astype(np.int32)
        right = np.array(result(x))
        return {"x": x, "out": np.zeros_like(right), **more}, {"out": right}

    return make


@dataclass(frozen=True)
class Marks:
    """Lines of the source file that a report may name."""

    first: frozenset[int] = frozenset()
    second: frozenset[int] = frozenset()
    error: frozenset[int] = frozenset()

    def right(self, error: Any) -> bool:
        """Does the error, or the warning, name the marked lines?"""
        places = _lines(getattr(error, "loc", None))
        if not isinstance(error, (Race, RaceWarning)):
            return bool(places & (self.error or self.first | self.second))
        others = _lines(getattr(error, "first", None))
        if not places:  # a warning has a text and a line
            places = others = {error.line, *map(int, _PLACE.findall(str(error)))}
        if not self.first:
            return bool((places | others) & self.error)
        return bool(
            (places & self.first and others & self.second) or (places & self.second and others & self.first)
        )


@dataclass
class Outcome:
    """What a run of a case gave: a verdict, the text of the report, seconds."""

    verdict: str
    report: str = ""
    seconds: float = 0.0


@dataclass
class Result:
    """Outcomes of a case: of the bug, and of the twin under several orders."""

    case: Case
    bug: Outcome
    twins: list[Outcome] = field(default_factory=list)

    @property
    def missed(self) -> bool:
        return self.bug.verdict != RIGHT

    @property
    def complaints(self) -> list[Outcome]:
        """Runs of the twin that were not fine."""
        return [outcome for outcome in self.twins if outcome.verdict != FINE]


def _lines(loc: Any) -> set[int]:
    return set() if loc is None else {place.line for place in loc.chain()}


def marks(kernel: Any, mistake: int) -> Marks:
    """The lines that are marked for the mistake of this number in the source of a kernel."""
    found: dict[str, set[int]] = {"first": set(), "second": set(), "error": set()}
    lines, start = inspect.getsourcelines(kernel.function)
    whole = _statements(lines, start)
    for number, line in enumerate(lines, start):
        comment = line.partition("#")[2]
        for what, mistakes, which in _MARK.findall(comment):
            if mistakes and mistake not in map(int, mistakes.split(",")):
                continue
            if what == "error":
                found["error"] |= whole.get(number, {number})
            elif which:
                for each in ("first", "second") if which == "both" else (which,):
                    found[each] |= whole.get(number, {number})
    return Marks(**{key: frozenset(value) for key, value in found.items()})


def _statements(lines: Sequence[str], start: int) -> dict[int, set[int]]:
    """By line, the lines of the statement there, or of its head: a mark is for all of them."""
    found = {}
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            inside = set(range(start + node.lineno - 1, start + end))
            found |= dict.fromkeys(inside, inside)
    return found


def cases(kind: str) -> list[Case]:
    """All cases of a class."""
    return list(importlib.import_module(f"tests.planted.{kind}").CASES)


def run_bug(case: Case, order: int | None = None) -> Outcome:
    """Run the kernel with its bug."""
    error, caught, wrong = _run(case, case.kernel, case.mistake, order)
    where = marks(case.kernel, case.number)
    given = [error] if error is not None else caught
    if not given:
        return Outcome(WRONG_RESULT if wrong else SILENT, wrong)
    expected = [e for e in given if isinstance(e, case.errors)]
    if not expected:
        return Outcome(OTHER, _text(given[0]))
    right = [e for e in expected if where.right(e)]
    return Outcome(RIGHT, _text(right[0])) if right else Outcome(WRONG_LINE, _text(expected[0]))


def run_twin(case: Case, order: int | None = None) -> Outcome:
    """Run the correct twin."""
    error, caught, wrong = _run(case, case.twin or case.kernel, "", order)
    given = [error] if error is not None else caught
    if given:
        return Outcome(OTHER, _text(given[0]))
    return Outcome(WRONG_RESULT, wrong) if wrong else Outcome(FINE)


def _text(error: Any) -> str:
    first = getattr(error, "first", None)
    return f"{type(error).__name__}: {error}" + (f"\n  first: {first}" if first else "")


def _run(case: Case, kernel: Any, mistake: str, order: int | None) -> tuple[Any, list[Any], str]:
    """The error, the warnings of races, and which result differs ("" if none does)."""
    arguments, expected = case.make(np.random.default_rng(0))
    named = dict(arguments)
    if "mistake" in inspect.signature(kernel.function).parameters:
        named["mistake"] = mistake
    launch = kernel.emulator(case.arch, order=order)[case.grid, case.block, None, case.shared_bytes]
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with tc.devices(case.devices) if case.devices else nullcontext():
                for number in range(1, case.launches + 1):
                    launch(**named, **({"launch": number} if case.launches > 1 else {}))
        except (EmulationError, *case.errors) as raised:
            error = raised
        except TensorCoreError as raised:  # the case itself is wrong
            raise AssertionError(f"{case.name} cannot be run: {raised}") from raised
    found = []
    for warning in caught:
        if isinstance(warning.message, RaceWarning):
            here = warning.filename == inspect.getsourcefile(kernel.function)
            warning.message.line = warning.lineno if here else 0  # type: ignore[attr-defined]
            found.append(warning.message)
    wrong = [
        f"{name} is\n{arguments[name]}\nand not\n{value}"
        for name, value in expected.items()
        if not np.array_equal(arguments[name], value, equal_nan=np.asarray(value).dtype.kind == "f")
    ]
    return error, found, "\n".join(wrong)


# -- processes that may hang ---------------------------------------------------------------------


class Worker:
    """A process that runs cases one by one, and is replaced when one takes too long."""

    def __init__(self, limit: float) -> None:
        self.limit, self.process = limit, None

    def run(self, kind: str, name: str, twin: bool, order: int | None) -> Outcome:
        """Run a bug or a twin; HUNG after `limit` seconds."""
        limit = self.limit
        if self.process is None:
            self._start()
            limit = FIRST_LIMIT
        start = time.perf_counter()
        self.pipe.send((kind, name, twin, order))
        try:
            outcome: Any = self.pipe.recv() if self.pipe.poll(limit) else Outcome(HUNG)
        except (EOFError, ConnectionResetError):
            outcome = Outcome(OTHER, "the process died")
        if outcome.verdict == HUNG or outcome.report == "the process died":
            self.stop()
        if isinstance(outcome, Outcome):
            outcome.seconds = time.perf_counter() - start
        return outcome

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def _serve(pipe: Connection) -> None:
    while True:
        try:
            kind, name, twin, order = pipe.recv()
        except EOFError:
            return
        case = next(c for c in cases(kind) if c.name == name)
        try:
            outcome = (run_twin if twin else run_bug)(case, order)
        except Exception as error:  # anything else than a report is a finding, too
            outcome = Outcome(OTHER, f"{type(error).__name__}: {error}")
        pipe.send(outcome)


def examine(
    kinds: Sequence[str] = CLASSES,
    only: Sequence[str] = (),
    orders: int = 2,
    limit: float = 20.0,
    progress: Callable[[str, Result], None] = lambda kind, result: None,
    hung: Set[str] = frozenset(),
    every: int = 1,
) -> dict[str, list[Result]]:
    """Results of the cases of classes: each bug in the default order, each twin in 1 + `orders`.

    every: only one of so many twins runs in the drawn orders, the others in the default one alone.
    hung: cases, as "class/name", of which that is known; only their twins run.
    """
    worker = Worker(limit)
    found: dict[str, list[Result]] = {}
    try:
        for kind in kinds:
            found[kind] = []
            for number, case in enumerate(cases(kind)):
                if only and not any(text in case.name for text in only):
                    continue
                known = f"{kind}/{case.name}" in hung
                bug = Outcome(HUNG) if known else worker.run(kind, case.name, False, None)
                result = Result(case, bug)
                for order in (None, *range(orders if number % every == 0 else 0)):
                    result.twins.append(worker.run(kind, case.name, True, order))
                found[kind].append(result)
                progress(kind, result)
    finally:
        worker.stop()
    return found
