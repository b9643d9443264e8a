"""`breakpoint()`: stops in the emulator."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.ir.nodes import Mark
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import Scalar


def breakpoint(condition: Any = True) -> None:
    """Stop here in emulation, in the threads where the condition holds, and show a prompt.

    On the GPU it does nothing. `PYTHONBREAKPOINT=0` switches it off, as in Python.

    Parameters
    ----------
    condition : bool, predicate or scalar
        Numbers are true unless zero.

    Raises
    ------
    DebuggerQuit
        The prompt was left with `quit`.

    Examples
    --------
    `tc.debugger.script` types the commands here:

    >>> @tc.kernel
    ... def squares(x: tc.Array):
    ...     y = x[tc.threadIdx.x] ** 2
    ...     tc.breakpoint(y > 9)
    ...     x[tc.threadIdx.x] = y
    >>> with tc.debugger.script("p y[4]", "c"):
    ...     squares[1, 8](np.arange(8, dtype=np.float32))  # doctest: +ELLIPSIS
    block 0, warp 0, lanes 4-7
    ...
    16.0
    (tcdb) c
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
