"""What checked launches have found: errors of the emulator and warnings, as text and as JSON."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tensorcore_dsl.errors import (
    DebuggerQuit,
    EmulationError,
    Loc,
    PerformanceWarning,
    RaceWarning,
    TensorCoreError,
)
from tensorcore_dsl.interpreter import Report

# as Chunk.describe and Chunk.unit_name name who made a mistake, and as checks of indices do
_INDEX = r"(?:\d+|\([\d, ]+\))"
_WHO = re.compile(rf"(?:thread|warp|warpgroup) {_INDEX} of block {_INDEX}|block {_INDEX}, thread {_INDEX}")
_WARNINGS = (RaceWarning, PerformanceWarning)


@dataclass
class Finding:
    """One error of the emulator, or one warning.

    Attributes
    ----------
    kind : str
        The name of its class, such as "Race".
    message : str
        Its text, without the place.
    file, line : str and int, or None
        In the user's source; None if unknown.
    other_file, other_line : str and int, or None
        Of the other access of a race.
    who, other_who : str
        "thread 3 of block 0", and who made the other access; "" if the message names nobody.
    kernel : str
        Its name.
    error : Exception
        What was raised, or the warning.
    times : int
        Launches that found the same.

    See Also
    --------
    CheckResult : Holds them, with an example.
    """

    kind: str
    message: str
    file: str | None
    line: int | None
    other_file: str | None
    other_line: int | None
    who: str
    other_who: str
    kernel: str
    error: Exception = field(repr=False)
    times: int = 1

    @classmethod
    def of(cls, error: Exception, kernel: str, place: Loc | None = None) -> Finding:
        """place: where a warning was issued that has no location of its own."""
        message = str(getattr(error, "message", error))
        loc, first = getattr(error, "loc", None) or place, getattr(error, "first", None)
        sentence = message.split("\n")[0] if first is not None else message
        who, other = [*_WHO.findall(sentence), "", ""][:2]
        other = other if first is not None else ""
        kind = type(error).__name__
        return cls(kind, message, *_place(loc), *_place(first), who, other, kernel, error)

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for findings at the same lines of a kernel."""
        places = self.file, self.line, self.other_file, self.other_line
        return self.kind, self.kernel, places, self.message if self.line is None else ""

    def __str__(self) -> str:
        again = f" (found in {self.times} launches)" if self.times > 1 else ""
        shown = self.file is None or isinstance(self.error, TensorCoreError)
        place = (
            "" if shown or f"{self.file}:{self.line}" in self.message else (f"\n  at {self.file}:{self.line}")
        )
        return f"{self.kind} in kernel {self.kernel}{again}: {self.error}{place}"

    def as_dict(self) -> dict[str, Any]:
        """As `json` writes it."""
        names = "kind message file line other_file other_line who other_who kernel times"
        return {name: getattr(self, name) for name in names.split()}


def _place(loc: Loc | None) -> tuple[str | None, int | None]:
    return (None, None) if loc is None else (loc.filename, loc.line)


@dataclass
class CheckResult:
    """The findings of checked launches; true if there is none.

    Attributes
    ----------
    findings : list of Finding
        Errors of the emulator.
    warnings : list of Finding
        RaceWarning and PerformanceWarning; they do not make the result false.
    launches : int
        How many there were.
    report : Report or None
        Of `kernel.check`, the counts of the launch; None if it did not come to its end.
    arguments : dict
        Of `kernel.check`, the arrays by name as the launch left them.

    Examples
    --------
    >>> @tc.kernel
    ... def shift(x: tc.Array):
    ...     x[tc.threadIdx.x] = x[tc.threadIdx.x + 1]
    >>> result = shift.check(1, 32)(np.zeros(32, np.float32))
    >>> bool(result), [finding.kind for finding in result.findings]
    (False, ['OutOfBounds'])
    """

    findings: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    launches: int = 0
    report: Report | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Is there no finding?"""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        parts = [str(found) for found in (*self.findings, *self.warnings)]
        return "\n\n".join([*parts, self.summary()])

    __repr__ = __str__  # what a failed assertion shows

    def summary(self) -> str:
        """One line: `2 launches checked: 1 finding, no warnings`."""
        counts = len(self.findings), len(self.warnings)
        found, warned = (_count(n, what) for n, what in zip(counts, ("finding", "warning")))
        return f"{_count(self.launches, 'launch')} checked: {found}, {warned}"

    def json(self) -> str:
        """{"ok", "launches", "findings": [...], "warnings": [...]}, indented."""
        lists = {
            "findings": [found.as_dict() for found in self.findings],
            "warnings": [found.as_dict() for found in self.warnings],
        }
        return json.dumps({"ok": self.ok, "launches": self.launches, **lists}, indent=2)

    def raise_first(self) -> None:
        """Raise the error of the first finding, if there is one."""
        if self.findings:
            raise self.findings[0].error

    def collect(self, kernel: str, launch: Callable[[], Report]) -> Report | None:
        """The report of a launch, None after an error of the emulator; notes what it finds."""
        self.launches += 1
        try:
            with self._warnings(kernel):
                return launch()
        except DebuggerQuit:
            raise
        except EmulationError as error:
            _add(self.findings, Finding.of(error, kernel))
            return None

    @contextmanager
    def _warnings(self, kernel: str) -> Iterator[None]:
        """Note the warnings of the library inside; others are issued afterwards."""
        with warnings.catch_warnings(record=True) as caught:
            for category in _WARNINGS:
                warnings.simplefilter("always", category)
            try:
                yield
            finally:
                noted = [one for one in caught if issubclass(one.category, _WARNINGS)]
                for one in noted:
                    given = one.message
                    warning = given if isinstance(given, Exception) else one.category(given)
                    place = Loc(one.filename, one.lineno)
                    _add(self.warnings, Finding.of(warning, kernel, place))
        for one in caught:
            if one not in noted:
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _add(findings: list[Finding], new: Finding) -> None:
    """Append a finding, or count one more of its kind."""
    for known in findings:
        if known.key == new.key:
            known.times += 1
            return
    findings.append(new)


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("h") else "s"
    return f"{number or 'no'} {what}{plural * (number != 1)}"
