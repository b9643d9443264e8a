"""Planted bugs are reported at their lines, and their correct twins are not complained of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorcore_dsl.errors import Misaligned
from tests.planted import CLASSES, harness
from tests.planted.harness import FINE, OTHER, RIGHT, SILENT, WRONG_LINE, Case, Marks
from tests.planted.known import HUNG, MISSES


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", CLASSES)
def test_bugs_are_found_and_twins_are_not_blamed(kind):
    """What is missed is listed in known.py; an entry that is found by now must leave the list."""
    results = harness.examine([kind], orders=1, limit=60, hung=HUNG, every=8)[kind]
    blamed = {r.case.name: r.complaints[0].report for r in results if r.complaints}
    assert not blamed
    missed = {f"{kind}/{r.case.name}": f"{r.bug.verdict} {r.bug.report}" for r in results if r.missed}
    assert not {name: text for name, text in missed.items() if name not in MISSES | HUNG}
    listed = {name for name in MISSES | HUNG if name.startswith(f"{kind}/")}
    assert listed == set(missed), "these are found by now: take them from known.py"


@pytest.mark.parametrize("kind", CLASSES)
def test_names_are_unique_and_bugs_marked(kind):
    cases = harness.cases(kind)
    assert len(cases) == len({case.name for case in cases})
    for case in cases:
        found = harness.marks(case.kernel, case.number)
        assert found.error or (found.first and found.second), case.name


def test_verdicts(monkeypatch):
    """On a bug that is reported: of another class, without the bug, at another line."""
    case: Case = next(c for c in harness.cases("memory") if c.name == "off_by_one: behind the end")
    assert harness.run_bug(case).verdict == RIGHT
    assert harness.run_bug(replace(case, errors=(Misaligned,))).verdict == OTHER
    assert harness.run_bug(replace(case, mistake="")).verdict == SILENT
    assert harness.run_twin(case).verdict == FINE
    monkeypatch.setattr(harness, "marks", lambda kernel, bug: Marks(error=frozenset({1})))
    assert harness.run_bug(case).verdict == WRONG_LINE
