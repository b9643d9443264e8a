"""Pytest plugin: emulate the launches of tests with all checks.

`@pytest.mark.tensorcore_check` marks a test; `--tensorcore-check`, or `tensorcore_check = true` in
the configuration of pytest, stands for a mark on every test. What a launch finds it raises. A race
whose accesses write the same value is only a warning: `-W error::tensorcore_dsl.RaceWarning`
makes it an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tensorcore_dsl.checking.findings import Finding
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.errors import DebuggerQuit, EmulationError
from tensorcore_dsl.interpreter.scheduling.orders import order_of

MARKER = "tensorcore_check"


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "emulate every launch of a tensorcore_dsl kernel with all checks, in every test"
    group = parser.getgroup("tensorcore_dsl")
    group.addoption("--tensorcore-check", action="store_true", default=None, help=text)
    parser.addini(MARKER, text, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(enabled=True, *, order=None, arch=None): emulate every launch of a "
        "tensorcore_dsl kernel in the test with all checks, in an order and of an architecture "
        "as kernel.emulator takes them",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    options = _options(item)
    if options is None:
        yield
        return
    with checking(collect=False, **options):
        outcome: Any = yield
    error = outcome.excinfo and outcome.excinfo[1]
    if isinstance(error, EmulationError) and not isinstance(error, DebuggerQuit):
        finding = Finding.of(error, "")
        item.user_properties.append((MARKER, finding.as_dict()))


def _options(item: pytest.Item) -> dict[str, Any] | None:
    """The options of `checking` for a test; None if it is not checked."""
    mark = item.get_closest_marker(MARKER)
    if mark is None:
        config = item.config
        return {} if config.getoption("--tensorcore-check") or config.getini(MARKER) else None
    return _of_mark(*mark.args, **mark.kwargs)


def _of_mark(enabled: bool = True, *, order: Any = None, arch: str | None = None) -> dict[str, Any] | None:
    return {"order": order_of(order), "arch": arch} if enabled else None
