"""Which cases of a test `make test` runs; `make test-all` runs all of them (`--all`).

A parametrised test runs once for each value of each of its parameters, not for each combination.
`@pytest.mark.thorough` leaves a test, or those of a file, to `make test-all`. `@pytest.mark.quick`
takes a test of such a file back. `quick(1)` takes the first case alone, and `quick(key)` one case for
each result of the function `key`, whose parameters are some of the test's.
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
    return [item for cases in functions.values() for item in _chosen(cases)]


def _chosen(cases: list[pytest.Item]) -> list[pytest.Item]:
    """The cases of one test that the short run has."""
    quick = cases[0].get_closest_marker("quick")
    if quick is None:
        return [] if cases[0].get_closest_marker("thorough") else _covering(cases)
    if not quick.args:
        return _covering(cases)
    (key,) = quick.args
    return cases[:key] if isinstance(key, int) else _first_of_each(cases, key)


def _first_of_each(cases: list[pytest.Item], key: Any) -> list[pytest.Item]:
    names = inspect.signature(key).parameters
    keys = [key(**{name: _parameters(case)[name] for name in names}) for case in cases]
    return [case for n, case in enumerate(cases) if keys[n] not in keys[:n]]


def _covering(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Few cases that have every value of every parameter: greedily, the first of equals."""
    values = [{(k, _hashable(v)) for k, v in _parameters(case).items()} for case in cases]
    if len(values[0]) < 2:
        return [case for n, case in enumerate(cases) if values[n] not in values[:n] or not values[n]]
    missing = set[tuple[str, Hashable]]().union(*values)
    kept = []
    while missing:
        best = max(range(len(cases)), key=lambda n: (len(missing & values[n]), -n))
        kept.append(best)
        missing -= values[best]
    return [cases[n] for n in sorted(kept)]


def _parameters(case: pytest.Item) -> dict[str, Any]:
    callspec = getattr(case, "callspec", None)
    return callspec.params if callspec else {}


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
