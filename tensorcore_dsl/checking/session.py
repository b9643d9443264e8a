"""Session of checks, inside which every launch is emulated with all checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tensorcore_dsl.checking.findings import CheckResult
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.scheduling.orders import Order
from tensorcore_dsl.runtime.targets import emulating


class Stopped(BaseException):
    """Ends a script at its first finding; scripts that catch Exception do not hold it up."""


class Session:
    """Findings of the launches of a script or of a test.

    Attributes
    ----------
    collect
        Errors of the emulator are noted, and the script goes on; else they are raised.
    first
        Stopped is raised at the first one.
    order
        Of launches that ask for none.
    checks : bool or None
        As `kernel.emulator` takes them.
    """

    checks: bool | None = True

    def __init__(self, *, collect: bool = True, first: bool = False, order: Order | None = None) -> None:
        self.collect, self.first, self.order = collect, first, order
        self.result = CheckResult()
        self._lock = threading.RLock()  # launches of several threads run one after the other

    def run(self, kernel: str, launch: Callable[[], Report]) -> Report:
        """The report of one launch; an empty one after an error that is noted."""
        if not self.collect:
            self.result.launches += 1
            return launch()
        with self._lock:
            report = self.result.collect(kernel, launch)
        if report is None and self.first:
            raise Stopped
        return Report() if report is None else report

    def sees(self, kernel: str, launch: Callable[[], Report]) -> bool:
        """Run a launch that does not run in this session, on copies, if the session observes it."""
        return False

    def note(self, result: CheckResult) -> None:
        """Count the launches and findings of a call that returns its findings, as `kernel.check` does.

        Only a session that collects findings does so. A test asserts the result by itself.
        """
        if not self.collect:
            return
        with self._lock:
            self.result.add(result)
        if self.first and not result.ok:
            raise Stopped


AnySession = TypeVar("AnySession", bound="Session")
_sessions: list[Session] = []  # of this process, for all of its threads; the last one counts


def current_session() -> Session | None:
    """The session in which launches run now."""
    return _sessions[-1] if _sessions else None


@contextmanager
def checking(arch: str | None = None, **options: Any) -> Iterator[Session]:
    """Inside, every launch is emulated with all checks; the options are those of Session.

    arch: the emulated architecture of launches that name none.
    """
    with launching_in(Session(**options), arch) as session:
        yield session


@contextmanager
def launching_in(session: AnySession, arch: str | None) -> Iterator[AnySession]:
    """Inside, every launch runs in a session; arch: as for `checking`."""
    with emulating(arch):
        _sessions.append(session)
        try:
            yield session
        finally:
            _sessions.remove(session)
