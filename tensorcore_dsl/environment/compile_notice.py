"""Notice on stderr when a process must wait for the compilation of loops."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from tensorcore_dsl.environment.cache_directory import VARIABLE as CACHE
from tensorcore_dsl.environment.switches import is_off

VARIABLE = "TENSORCORE_DSL_NOTICE"
AFTER_SECONDS = 1.0  # seconds of compilation without a notice
USUAL = "1 to 4 s"


class CompileNotice:
    """Counts the seconds that compilations take; they may be nested.

    kept_in: the directory of the compiled loops, which is there once one has been kept.
    """

    def __init__(self, kept_in: Path | None) -> None:
        self._kept_in, self._said = kept_in, False
        self._running, self._since, self._seconds = 0, 0.0, 0.0

    def begins(self) -> None:
        """A compilation begins; the line is printed before the first one that comes late."""
        self._count(1)
        if self._seconds > AFTER_SECONDS and not self._said:
            self._said = True
            if not is_off(VARIABLE):
                _print(self._line())

    def ends(self) -> None:
        self._count(-1)

    def _count(self, change: int) -> None:
        now = time.monotonic()
        if self._running:
            self._seconds += now - self._since
        self._running, self._since = self._running + change, now

    def _line(self) -> str:
        kept = f"in each process, as they cannot be kept on disk: {CACHE} may name a directory"
        if self._kept_in is not None and os.access(self._kept_in, os.R_OK | os.W_OK):
            kept = f"later processes find them in {self._kept_in}"
        return (
            f"tensorcore_dsl: loops of the emulator are compiled, which usually takes {USUAL}; "
            f"{kept} ({VARIABLE}=off hides this line)"
        )


def _print(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # a closed pipe, or a closed file
            print(line, file=sys.stderr, flush=True)
