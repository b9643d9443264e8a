"""`breakpoint()`: stops in the emulator."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.ir.nodes import Mark
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import Scalar


def breakpoint(condition: Any = True) -> None:
    """Stop here in emulation, in the threads where the condition holds, and show a prompt.

    On the GPU it does nothing.
    """
    build = builder()
    build.kernel.stops = True
    if build.scopes is None:
        return
    condition = arithmetic.truth(build, condition)
    if isinstance(condition, Scalar):
        build.branch(condition, _stop, lambda: None)
    elif condition:
        _stop()


def _stop() -> None:
    build = builder()
    assert build.scopes is not None
    build.append(Mark("stop", build.scopes()))
