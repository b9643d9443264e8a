"""The result of a check as text, as JSON, as annotations of GitHub workflows and as SARIF 2.1.0."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tensorcore_dsl.checking.findings import CheckResult, Finding, Place

PROGRAM = "tensorcore-dsl"
# The section of docs/errors.md for a kind of finding, where it is not "errors-in-emulation".
SECTIONS = {
    "Race": "races",
    "RaceWarning": "races",
    "Divergence": "divergence-and-deadlocks",
    "Deadlock": "hangs",
    "PerformanceWarning": "performance-warnings",
}


def github(result: CheckResult) -> str:
    """A workflow command for each finding: `::error file=a.py,line=7,title=Race in kernel k::text`."""
    lines = []
    for finding in (*result.findings, *result.warnings):
        place = finding.place
        properties = {
            "file": None if place.file is None else _relative(place.file)[0],
            "line": place.line,
            "col": place.column,
            "title": _title(finding),
        }
        named = ",".join(f"{k}={_escaped(str(v), ':,')}" for k, v in properties.items() if v is not None)
        lines.append(f"::{finding.severity} {named}::{_escaped(finding.message)}")
    if result.failure:
        lines.append(f"::error title=The script failed::{_escaped(result.failure)}")
    elif not result.launches:
        lines.append(f"::error title=No launch::{result.summary()}")
    return "\n".join(lines)


def _escaped(text: str, more: str = "") -> str:
    """Percent signs, ends of lines and the characters `more` as GitHub's commands need them."""
    for character in f"%\r\n{more}":  # % first
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def sarif(result: CheckResult) -> str:
    """The result as a log of SARIF 2.1.0, with a rule for each kind of finding."""
    findings = [*result.findings, *result.warnings]
    classes = {finding.kind: type(finding.error) for finding in findings}
    kinds = list(classes)
    invocation: dict[str, Any] = {"executionSuccessful": not result.failure and result.launches > 0}
    text = ""
    if result.failure:
        text = f"the script failed: {result.failure}"
    elif not result.launches:
        text = result.summary()
    if text:
        invocation["toolExecutionNotifications"] = [{"level": "error", "message": {"text": text}}]
    run = {
        "tool": {"driver": {"name": PROGRAM, "rules": [_rule(*item) for item in classes.items()]}},
        "originalUriBaseIds": {"%SRCROOT%": {"uri": Path.cwd().as_uri() + "/"}},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": [_sarif_result(finding, kinds.index(finding.kind)) for finding in findings],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2)


def _rule(kind: str, error: type[Exception]) -> dict[str, Any]:
    """The rule of a kind of finding, described by the docstring of the class."""
    about = (inspect.getdoc(error) or "").split("\n\n")[0].replace("\n", " ")
    section = SECTIONS.get(kind, "errors-in-emulation")
    return {
        "id": kind,
        "shortDescription": {"text": about},
        "help": {"text": f"docs/errors.md#{section} of {PROGRAM}"},
    }


def _sarif_result(finding: Finding, rule: int) -> dict[str, Any]:
    others = [(finding.other, "the other access")] if finding.other is not None else []
    others += [(call, "called from here") for call in finding.calls]
    related = [
        {"id": number, "message": {"text": f"{text} in kernel {place.kernel}"}, **location}
        for number, (place, text) in enumerate(others, 1)
        if (location := _location(place))
    ]
    location = _location(finding.place)
    return {
        "ruleId": finding.kind,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": f"{_title(finding)}: {finding.message}"},
        "locations": [location] if location else [],
        "relatedLocations": related,
        "occurrenceCount": finding.times,
    }


def _location(place: Place) -> dict[str, Any]:
    """The location of a place; an empty one without a file, as of code that `exec` has run."""
    if place.file is None or place.line is None or place.file.startswith("<"):
        return {}
    path, inside = _relative(place.file)
    artifact = {"uri": quote(path), "uriBaseId": "%SRCROOT%"} if inside else {"uri": Path(path).as_uri()}
    region = {"startLine": place.line}
    if place.column is not None:
        region["startColumn"] = place.column
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}


def _relative(file: str) -> tuple[str, bool]:
    """Make a path relative to the working directory, with `/`, if it lies inside; return whether it does."""
    path = Path(os.path.abspath(file))
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix(), True
    return str(path), False


def _title(finding: Finding) -> str:
    return f"{finding.kind} in kernel {finding.kernel}"


FORMATS: dict[str, Callable[[CheckResult], str]] = {
    "text": str,
    "json": CheckResult.json,
    "github": github,
    "sarif": sarif,
}
