"""The line that shows the progress of a long emulation."""

from __future__ import annotations

import io
import sys
import time

import pytest

from tensorcore_dsl.interpreter import progress


class Screen(io.StringIO):
    """A terminal, or a pipe."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, quiet: bool, ends_at_once: bool) -> str:
    """What a launch of five blocks writes to stderr."""
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 60 if ends_at_once else 0)
    monkeypatch.setenv("TERM", "xterm")
    with progress.ProgressLine("saxpy", 5, quiet) as line:
        line.advance(2)
        until = time.monotonic() + (0 if ends_at_once or not terminal or quiet else 60)
        while "2/5" not in screen.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
        line.advance(3)
    return screen.getvalue()


def test_a_long_launch_shows_its_blocks(monkeypatch):
    text = shown(monkeypatch, terminal=True, quiet=False, ends_at_once=False)
    assert "emulating saxpy" in text and "2/5" in text


@pytest.mark.parametrize(
    "terminal, quiet, ends_at_once", [(False, False, False), (True, True, False), (True, False, True)]
)
def test_others_show_nothing(monkeypatch, terminal, quiet, ends_at_once):
    assert shown(monkeypatch, terminal, quiet, ends_at_once) == ""
