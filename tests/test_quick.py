"""The choice of cases for the short run."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_product(dtype, size): pass

@pytest.mark.parametrize("row", ["add", "sub", [1]])
def test_rows(row): pass

@pytest.mark.thorough
@pytest.mark.parametrize("row", ["add", "sub"])
def test_long(row): pass

@pytest.mark.quick(lambda row: row[0])
@pytest.mark.parametrize("row", ["add", "and", "sub"])
def test_keyed(row): pass

@pytest.mark.thorough
class TestLong:
    def test_left(self): pass

    @pytest.mark.quick(1)
    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_once(self, size): pass

    @pytest.mark.quick
    def test_taken(self): pass

def test_plain(): pass
"""
SHORT = [
    "test_product[f16-1]", "test_product[f16-3]", "test_product[f32-2]", "test_rows[add]",
    "test_rows[sub]", "test_rows[row2]", "test_keyed[add]", "test_keyed[sub]", "TestLong::test_once[1]",
    "TestLong::test_taken", "test_plain",
]  # fmt: skip


@pytest.fixture
def names(pytester):
    """The names of the tests that a run with some arguments has."""
    pytester.makeini("[pytest]\nmarkers =\n    quick: see quick.py\n    thorough: see quick.py")
    pytester.makepyfile(test_cases=CASES)

    def run(*arguments: str) -> list[str]:
        done = pytester.runpytest("-p", "tests.quick", "--collect-only", "-q", *arguments)
        return [line.partition("::")[2] for line in done.outlines if "::" in line]

    return run


def test_the_short_run_has_each_value_once(names):
    assert names() == SHORT


def test_all_cases(names):
    assert len(names("--all")) == 6 + 3 + 2 + 3 + 5 + 1


def test_a_test_that_is_named_has_all_cases(names):
    assert len(names("test_cases.py::test_product", "test_cases.py::test_long")) == 6 + 2
