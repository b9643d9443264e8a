"""Which tests `make test` runs: few of each long parametrisation. `make test-all` runs all (`--all`).

A parametrised test runs once for each value of each of its parameters, not for each combination.
`@pytest.mark.thorough` leaves a test to `make test-all`. `@pytest.mark.thorough(key)` runs it once for
each result of `key`, which takes parameters of the test by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run all cases of each test (tests/quick.py)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the cases of the short run. A test that is named on the command line has all cases."""
    if config.option.all or any("::" in argument for argument in config.args):
        return
    kept = selected(items)
    config.hook.pytest_deselected(items=[*{*items} - {*kept}])
    items[:] = kept


def selected(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of `items` that the short run has, in their order."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [item for cases in functions.values() for item in _covering(cases)]


def _covering(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Few cases of one test that have every value of every one: greedily, the first of equals."""
    values = [_values(case) for case in cases]
    if all(each is not None and len(each) < 2 for each in values):  # one parameter: the first of each
        firsts = {next(iter(each or ()), None): n for n, each in reversed([*enumerate(values)])}
        return [cases[n] for n in sorted(firsts.values())]
    missing = {value for each in values for value in each or ()}
    kept = []
    while missing:
        best = max(range(len(cases)), key=lambda n: (len(missing & (values[n] or set())), -n))
        kept.append(best)
        missing -= values[best] or set()
    return [cases[n] for n in sorted(kept)]


def _values(case: pytest.Item) -> set[Hashable] | None:
    """What of a case the short run must have once; None: nothing."""
    callspec = getattr(case, "callspec", None)
    parameters = callspec.params if callspec else {}
    values: set[Hashable] = {(name, _hashable(value)) for name, value in parameters.items()}
    for mark in case.iter_markers("thorough"):
        if not mark.args:
            return None
        (key,) = mark.args
        named = inspect.signature(key).parameters
        values = {_hashable(key(**{name: parameters[name] for name in named}))}
    return values


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
