"""Planted bugs are reported at their lines, and their correct twins are not complained of."""

from __future__ import annotations

import signal
from importlib import import_module
from typing import Any

import pytest

from tensorcore_dsl.interpreter.core.policy import executing
from tests.planted import CLASSES
from tests.planted.harness import error, race

CASES = [(kind, case) for kind in CLASSES for case in import_module(f"tests.planted.{kind}").planted]
# Mistakes of one kernel share a twin.
TWINS = {(case.twin or case.kernel, case.make): (kind, case) for kind, case in CASES}.values()
# By single steps, as in a first launch, and by compiled regions, which later processes find on disk. Those
# of tests are not kept: other tests quote reports of single steps.
POLICIES: dict[str, dict[str, Any]] = {
    "steps": {"regions": False},
    "regions": {"compile_cost": 0, "regions_on_disk": False},
}
LIMIT = 60  # seconds; a case takes up to 3, and the first one of a process may compile loops


@pytest.fixture(autouse=True)
def limit():
    """Fail a case on which the emulator hangs, and go on with the next one."""

    def stop(*_):
        pytest.fail(f"the case has not ended within {LIMIT} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def named(cases):
    return [pytest.param(kind, case, id=f"{kind}: {case.name}") for kind, case in cases]


@pytest.mark.quick(lambda kind, case: (kind, case.report.says))
@pytest.mark.parametrize("regions", POLICIES)
@pytest.mark.parametrize(("kind", "case"), named(CASES))
def test_bug_is_reported_at_its_line(kind, case, regions):
    with executing(**POLICIES[regions]):
        reports = [report for report in case.run_bug() if isinstance(report, case.errors)]
    assert any(case.report.fits(report, case.kernel) for report in reports), reports


@pytest.mark.quick(lambda kind: kind)
@pytest.mark.parametrize(("order", "regions"), [(None, "steps"), (0, "steps"), (None, "regions")])
@pytest.mark.parametrize(("kind", "case"), named(TWINS))
def test_correct_twin_is_not_blamed(kind, case, order, regions):
    with executing(**POLICIES[regions]):
        assert case.run_twin(order) == ([], "")


def test_names_are_unique():
    names = [(kind, case.name) for kind, case in CASES]
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def overlap():
    """A race of two lines, and its kernel."""
    case = next(case for _, case in CASES if case.name == "exchange_between_warps: nothing")
    (report,) = case.run_bug()
    return report, case.kernel


@pytest.mark.parametrize("lines", [race("tile[t] #1", "out[t]"), race("out[t]", "tile[t] #1")])
def test_lines_of_a_race_fit_in_either_order(overlap, lines):
    assert lines.fits(*overlap)


@pytest.mark.parametrize("lines", [race("out[t]"), race("tile[t] #1", "tc.shared"), error("tc.shared")])
def test_other_lines_do_not_fit(overlap, lines):
    assert not lines.fits(*overlap)
