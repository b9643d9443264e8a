"""Progress line on the terminal for long emulations."""

from __future__ import annotations

import sys
from threading import Lock, Timer
from types import TracebackType
from typing import Any

PATIENCE_SECONDS = 2.0  # seconds after which a launch counts as long


class ProgressLine:
    """Shows how many CTAs of a launch have ended, once it has lasted for PATIENCE_SECONDS.

    Nothing is shown where stderr is no terminal, or if `quiet`.
    """

    def __init__(self, name: str, ctas: int, quiet: bool = False) -> None:
        self.name, self.ctas, self.ended = name, ctas, 0
        self._bar: Any = None
        self._task: Any = None
        self._lock = Lock()
        self._timer = None if quiet or not sys.stderr.isatty() else Timer(PATIENCE_SECONDS, self._show)

    def __enter__(self) -> ProgressLine:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._timer = None
            if self._bar is not None:
                self._bar.stop()

    def advance(self, ctas: int) -> None:
        """So many more CTAs have ended."""
        with self._lock:
            self.ended += ctas
            if self._bar is not None:
                self._bar.update(self._task, completed=self.ended)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._timer is None:  # the launch has ended meanwhile
                return
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            self._bar = Progress(
                *columns,
                TextColumn("CTAs"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
                refresh_per_second=2,
            )
            self._task = self._bar.add_task(f"emulating {self.name}", total=self.ctas)
            self._bar.update(self._task, completed=self.ended)
            self._bar.start()
