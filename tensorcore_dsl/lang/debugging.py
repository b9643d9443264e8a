"""`breakpoint()`, which stops in the emulator, and assertions, which stop a kernel."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import CompileError, OperandError
from tensorcore_dsl.ir.nodes import Mark
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, has_runtime
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
    CTA 0, warp 0, lanes 4-7
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


def assert_(condition: Any, message: str = "the condition does not hold") -> None:
    """Stop the kernel with a message unless the condition holds; `assert` calls it.

    On the GPU, each thread in which it does not hold prints the message with the file, the line,
    its block and its thread, and traps, so that the launch fails. `@tc.kernel(checks=False)` leaves
    assertions out, and so does `kernel.emulator(checks=False)`. In a kernel with `wgmma`, printing
    is a call, for which the assembler serialises the products (C7509).

    Parameters
    ----------
    condition : bool, predicate or scalar
        Numbers are true unless zero. What is known when compiling is checked then.
    message : str
        Known when compiling; other objects are shown as `str` shows them.

    Raises
    ------
    CompileError
        The condition is known not to hold.
    AssertionFailed
        In emulation: it does not hold in a thread.
    OperandError
        A condition without a truth value, a message with run-time values.

    See Also
    --------
    trap : Without a message.

    Examples
    --------
    >>> @tc.kernel
    ... def roots(x: tc.Array):
    ...     value = x[tc.threadIdx.x]
    ...     assert value >= 0, "roots of negative numbers"
    ...     x[tc.threadIdx.x] = tc.sqrt(value)
    >>> try:
    ...     roots[1, 4](np.array([1, 4, -9, 16], np.float32))
    ... except tc.AssertionFailed as error:
    ...     print(error.message)
    assertion failed: roots of negative numbers (CTA (0,0,0), thread (2,0,0))
    """
    build = builder()
    if has_runtime(message) or hasattr(message, "described"):
        raise OperandError(
            "the message of an assertion is known when compiling, not "
            f"{describe(message)}; `if` with print and tc.trap() shows values"
        )
    condition = arithmetic.truth(build, condition)
    if condition is True:
        return
    text = f"assertion failed: {message}"
    if condition is False:
        raise CompileError(text)
    # The check fails with 0 and 0. The format prints nothing for a 0.
    holds = arithmetic.select(build, condition, 1, 0)
    shown = text.replace("%", "%%") + "%.0lld%.0lld"
    build.check(dtypes.s32, 0, holds, 1, shown, error="AssertionFailed")
