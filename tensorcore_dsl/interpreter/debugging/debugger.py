"""Debugger of the emulator: stops at `breakpoint()` and at lines, and steps."""

from __future__ import annotations

import os

import numpy as np

from tensorcore_dsl.errors import DebuggerQuit
from tensorcore_dsl.interpreter.debugging.prompt import Prompt, Resumption, script
from tensorcore_dsl.interpreter.debugging.viewpoint import Viewpoint
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.ir.nodes import Mark


def enabled() -> bool:
    """True if `breakpoint()` stops. PYTHONBREAKPOINT=0 switches it off, as in Python.

    Returns
    -------
    bool
        True unless the environment says no.
    """
    return os.environ.get("PYTHONBREAKPOINT") != "0"


class Debugger:
    """Decides at each mark of a debug build whether to stop.

    Attributes
    ----------
    marks : ndarray
        By thread, the step of its last mark.
    focus : int
        The thread that `step` follows, -1 for none.
    """

    def __init__(self) -> None:
        self.machine: Machine | None = None
        self.marks = np.empty(0, np.int64)
        self.focus = -1
        self.whole_warp = True
        self.plan = Resumption()

    def visit(self, machine: Machine, mark: Mark, at: int) -> None:
        if machine is not self.machine:  # the next chunk of CTAs
            self.machine, self.focus, self.plan.wanted = machine, -1, ""
            self.marks = np.full(machine.ctx.threads, -1, np.int64)
        if mark.kind == "assigned":
            return
        mask = machine.ctx.mask
        focused = self.focus >= 0 and bool(mask[self.focus])
        again = focused and self._same_line(mark)
        self.marks[mask] = at
        if not again and self._stops(mark, focused):
            self._stop(machine, mark)

    def _same_line(self, mark: Mark) -> bool:
        """True if the focus has just stopped on the line of this `breakpoint()`."""
        before = self.plan.stopped
        if mark.kind != "stop" or before is None or before.kind != "line":
            return False
        here, there = mark.loc, before.loc
        return (
            here is not None
            and there is not None
            and ((here.filename, here.line) == (there.filename, there.line))
        )

    def _stops(self, mark: Mark, focused: bool) -> bool:
        if mark.kind == "stop":
            return enabled()
        loc, plan = mark.loc, self.plan
        if loc is not None and mark.kind == "line" and (loc.filename, loc.line) in plan.breaks:
            return True
        if not focused or loc is None:
            return False
        calls = len(loc.chain())
        return {
            "step": True,
            "next": calls <= plan.depth,
            "return": calls < plan.depth,
            "until": calls <= plan.depth and loc.line >= plan.until,
            "": False,
        }[plan.wanted]

    def _stop(self, machine: Machine, mark: Mark) -> None:
        mask = machine.ctx.mask
        if self.focus < 0 or not mask[self.focus]:
            self.focus, self.whole_warp = int(np.argmax(mask)), True
        self.plan.stopped = mark
        prompt = Prompt(self.plan, Viewpoint(machine, self.focus, self.marks, self.whole_warp))
        prompt.start()
        self.focus, self.whole_warp = prompt.view.thread, prompt.view.whole_warp


__all__ = ["Debugger", "DebuggerQuit", "enabled", "script"]
