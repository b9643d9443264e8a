"""Findings of checked launches: errors of the emulator and warnings, as text and as JSON."""

from __future__ import annotations

import json
import linecache
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from tensorcore_dsl.viz.html import html_table

SCHEMA_VERSION = 1  # of `CheckResult.as_dict`; docs/static/check.schema.json describes it

# as Chunk.describe and Chunk.unit_name name who made a mistake, and as checks of indices do
_INDEX = r"(?:\d+|\([\d, ]+\))"
_WHO = re.compile(rf"(?:thread|warp|warpgroup) {_INDEX} of CTA {_INDEX}|CTA {_INDEX}, thread {_INDEX}")
_BYTES = re.compile(r"(?:global|shared) [\w. ]+ of \d+ bytes at 0x[0-9a-f]+")
_WARNINGS = (RaceWarning, PerformanceWarning)


@dataclass(frozen=True)
class Place:
    """Where something happens: a place in the user's source, and who does it.

    Attributes
    ----------
    kernel : str
        Its name.
    file, line, column : str and int, or None
        In the source; None if unknown. Lines and columns count from 1, columns in characters.
    who : str
        "thread 3 of CTA 0"; "" if the message names nobody.
    """

    kernel: str
    file: str | None
    line: int | None
    column: int | None
    who: str

    @classmethod
    def of(cls, kernel: str, loc: Loc | None, who: str = "") -> Place:
        """The place of a location, whose column counts bytes from 0."""
        if loc is None:
            return cls(kernel, None, None, None, who)
        column = None
        if loc.end_column > loc.column:
            line = linecache.getline(loc.filename, loc.line).encode()
            column = 1 + len(line[: loc.column].decode(errors="ignore"))
        return cls(kernel, loc.filename, loc.line, column, who)

    @property
    def cta(self) -> list[int] | None:
        """The index (x, y, z) of the CTA; None if the message names none."""
        return self._index("CTA")

    @property
    def thread(self) -> list[int] | None:
        """The index (x, y, z) of the thread in its CTA; None if the message names none."""
        return self._index("thread")

    def _index(self, what: str) -> list[int] | None:
        match = re.search(rf"\b{what} ({_INDEX})", self.who)
        numbers = re.findall(r"\d+", match[1]) if match else []
        return [int(n) for n in [*numbers, 0, 0][:3]] if numbers else None

    def as_dict(self) -> dict[str, Any]:
        """The attributes, the CTA and the thread."""
        return {**vars(self), "cta": self.cta, "thread": self.thread}


@dataclass
class Finding:
    """One error of the emulator, or one warning.

    Attributes
    ----------
    kind : str
        The name of its class, such as "Race".
    message : str
        Its text, without the place.
    place : Place
        Where it was found. The finding has its `kernel`, `file`, `line` and `who`, too.
    other : Place or None
        The other access of a race.
    calls : list of Place
        The call sites of an inlined function, the innermost one first.
    memory : str
        The bytes; "" if the message names none.
    cure : str
        What would order the accesses of a race; "" for other kinds.
    error : Exception
        What was raised, or the warning.
    launch : int
        The number of the first launch that found it; 1 is the first launch of the result.
    times : int
        Launches that found the same.

    See Also
    --------
    CheckResult : Holds them, with an example.
    """

    kind: str
    message: str
    place: Place
    other: Place | None
    calls: list[Place]
    memory: str
    cure: str
    error: Exception = field(repr=False)
    launch: int = 1
    times: int = 1

    @classmethod
    def of(cls, error: Exception, kernel: str, issued_at: Loc | None = None, launch: int = 1) -> Finding:
        """issued_at: the location at which a warning without a location of its own was issued."""
        message = str(getattr(error, "message", "") or error)
        loc, first = getattr(error, "loc", None) or issued_at, getattr(error, "first", None)
        sentence = message.split("\n")[0] if first is not None else message
        who, other_who = [*_WHO.findall(sentence), "", ""][:2]
        other_kernel = getattr(error, "other_kernel", "") or kernel
        access = _BYTES.search(message)
        return cls(
            type(error).__name__,
            message,
            Place.of(kernel, loc, who),
            None if first is None else Place.of(other_kernel, first, other_who),
            [Place.of(kernel, call) for call in loc.chain()[1:]] if loc is not None else [],
            getattr(error, "memory", "") or (access[0] if access else ""),
            getattr(error, "cure", ""),
            error,
            launch,
        )

    @property
    def kernel(self) -> str:
        return self.place.kernel

    @property
    def file(self) -> str | None:
        return self.place.file

    @property
    def line(self) -> int | None:
        return self.place.line

    @property
    def who(self) -> str:
        return self.place.who

    @property
    def severity(self) -> str:
        """The word "error" or "warning"."""
        return "warning" if isinstance(self.error, Warning) else "error"

    @property
    def key(self) -> tuple[Any, ...]:
        """Return a key that is equal for findings at equal lines of a kernel."""
        places = [(p.kernel, p.file, p.line) for p in (self.place, self.other) if p is not None]
        return self.kind, *places, self.message if self.line is None else ""

    def __str__(self) -> str:
        again = f" (found in {self.times} launches)" if self.times > 1 else ""
        text, at = str(self.error), f"{self.file}:{self.line}"
        if self.file is not None and not isinstance(self.error, TensorCoreError) and at not in text:
            text += f"\n  at {at}"
        return f"{self.kind} in kernel {self.kernel}{again}: {text}"

    def as_dict(self) -> dict[str, Any]:
        """The attributes in plain values, as `CheckResult.as_dict` has them."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            **self.place.as_dict(),
            "bytes": self.memory,
            "other": None if self.other is None else self.other.as_dict(),
            "calls": [call.as_dict() for call in self.calls],
            "cure": self.cure,
            "launch": self.launch,
            "times": self.times,
        }


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
    failure : str
        Of a script, what ended it early: the name of an exception, or "exit status 3"; else "".
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
    failure: str = ""
    report: Report | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if there is no finding."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        texts = [str(finding) for finding in (*self.findings, *self.warnings)]
        text = "\n\n".join([*texts, self.summary()])
        if self.failure:
            text += f"\nthe script failed ({self.failure}): what comes after that was not checked"
        return text

    __repr__ = __str__  # shown by a failed assertion

    def _repr_html_(self) -> str:
        rows = [(one.kind, str(one)) for one in (*self.findings, *self.warnings)]
        return html_table(self.summary(), [], rows, bad=0)

    def summary(self) -> str:
        """One line: `2 launches checked: 1 finding, no warnings`."""
        if not self.launches:
            return "no launch was made, so nothing was checked"
        counts = len(self.findings), len(self.warnings)
        findings, warned = (_count(n, what) for n, what in zip(counts, ("finding", "warning")))
        return f"{_count(self.launches, 'launch')} checked: {findings}, {warned}"

    def as_dict(self) -> dict[str, Any]:
        """All but `report` and `arguments`, in plain values, as the JSON schema of check describes."""
        return {
            "version": SCHEMA_VERSION,
            "ok": self.ok,
            "launches": self.launches,
            "failure": self.failure,
            "findings": [finding.as_dict() for finding in self.findings],
            "warnings": [finding.as_dict() for finding in self.warnings],
        }

    def json(self) -> str:
        """`as_dict` as JSON, indented."""
        return json.dumps(self.as_dict(), indent=2)

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
            _add(self.findings, Finding.of(error, kernel, None, self.launches))
            return None

    def add(self, result: CheckResult) -> None:
        """Append the launches of another result, with their findings and warnings."""
        pairs = (self.findings, result.findings), (self.warnings, result.warnings)
        for known, new in pairs:
            for finding in new:
                _add(known, replace(finding, launch=self.launches + finding.launch))
        self.launches += result.launches

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
                    message = one.message
                    warning = message if isinstance(message, Exception) else one.category(message)
                    issued_at = Loc(one.filename, one.lineno)
                    _add(self.warnings, Finding.of(warning, kernel, issued_at, self.launches))
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
