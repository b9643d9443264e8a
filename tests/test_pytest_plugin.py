"""The pytest plugin, as a project uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "tensorcore_dsl.checking.pytest_plugin"
TESTS = """
import numpy as np
import pytest
import tensorcore_dsl as tc

@tc.kernel(checks=False)
def fill(x: tc.Array):
    x[tc.threadIdx.x] = 1

def launch(threads):
    memory = np.zeros(64, np.int32)
    fill[1, threads](memory[:40])
    return memory

{mark}
def test_right():
    assert launch(40).sum() == 40

{mark}
def test_wrong():
    launch(64)

{mark}
def test_expected():
    with pytest.raises(tc.OutOfBounds, match="index 40 leaves axis 0"):
        launch(64)

def test_unmarked():
    with pytest.raises(tc.OutOfBounds) as error:  # the memory itself is always checked
        launch(64)
    assert {unmarked} in str(error.value)
"""
MARK = "@pytest.mark.tensorcore_check"
CHECKED, UNCHECKED = "'index 40 leaves'", "'which has bytes 0 to 159'"


@pytest.fixture
def run(pytester, monkeypatch):
    """Run tests in this process, with the plugin once, installed or not."""
    monkeypatch.setenv("TENSORCORE_DSL_TARGET", "cpu")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(tests: str, *options: str) -> Any:
        pytester.makepyfile(tests)
        return pytester.runpytest_inprocess("-p", PLUGIN, "--strict-markers", *options)

    return run


def test_a_marked_test_fails_with_the_finding(run):
    result = run(TESTS.format(mark=MARK, unmarked=UNCHECKED))
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*OutOfBounds: index 40 leaves axis 0 of 'x'*"])
    result.stdout.fnmatch_lines(["E*x[[]tc.threadIdx.x] = 1"])


@pytest.mark.parametrize("by", ["option", "ini"])
def test_all_tests_of_a_project(run, pytester, by):
    if by == "ini":
        pytester.makeini("[pytest]\ntensorcore_check = true\n")
    options = ["--tensorcore-check"] if by == "option" else []
    run(TESTS.format(mark="", unmarked=CHECKED), *options).assert_outcomes(passed=3, failed=1)


def test_a_mark_may_except_a_test(run):
    tests = TESTS.format(mark=MARK + "(False)", unmarked=CHECKED)
    run(tests, "--tensorcore-check").assert_outcomes(passed=2, failed=2)


def test_options_of_a_mark(run):
    run("""
        import numpy as np
        import pytest
        import tensorcore_dsl as tc
        from tensorcore_dsl.checking.session import current_session

        @tc.kernel
        def number(x: tc.Array):
            x[0] = tc.arch_number()

        @pytest.mark.tensorcore_check(order="down", arch="sm_80")
        def test_options():
            x = np.zeros(1, np.int32)
            number[1, 1](x)
            assert x[0] // 10 == 80 or x[0] == 80
            assert str(current_session().order) == "down"

        @pytest.mark.tensorcore_check(order="nonsense")
        def test_wrong():
            pass
    """).assert_outcomes(passed=1, failed=1)


def test_findings_are_in_the_report_for_machines(run, pytester):
    run(TESTS.format(mark=MARK, unmarked=UNCHECKED), "--junit-xml=found.xml")
    assert '<property name="tensorcore_check"' in (pytester.path / "found.xml").read_text()


def test_the_entry_point():
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert f'entry-points.pytest11]\ntensorcore_dsl = "{PLUGIN}"\n' in text
