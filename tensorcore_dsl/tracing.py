"""What every stage must know while a kernel is traced: the emitter, and whose code is whose.

Types and instructions are called inside kernels (`tc.f32(x)`, `mma(a, b, c)`). They hand the call
to the emitter in charge, which the frontend installs; so nothing here imports the frontend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from tensorcore_dsl.errors import OperandError

PACKAGE = __name__.partition(".")[0]


class Emitter(Protocol):
    """What a kernel under construction does with an instruction; `values.builder` implements it."""

    def emit(self, form: Any, operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Append the instruction `form` to the kernel and return its results."""

    def convert(self, value: Any, dtype: Any) -> Any:
        """`value` as `dtype`."""

    def zeros(self, operand: Any) -> Any:
        """A fragment of zeros for `operand`."""


_emitter: ContextVar[Emitter | None] = ContextVar("emitter", default=None)


def emitter() -> Emitter:
    """The kernel under construction."""
    current = _emitter.get()
    if current is None:
        raise OperandError(
            "instructions can be called only inside a @tc.kernel; "
            "outside, run one on the CPU with tc.emulate(form.ptx, ...)"
        )
    return current


def set_emitter(value: Emitter | None) -> Any:
    """Install `value`; returns the token that restores what was there."""
    return _emitter.set(value)


def reset_emitter(token: Any) -> None:
    _emitter.reset(token)


def is_library(module: str) -> bool:
    """Is a module the library's own? `tensorcore_dsl.kernels` counts as a user's: its functions
    are kernel code, and errors point at their lines."""
    return module.split(".")[0] == PACKAGE and not f"{module}.".startswith(f"{PACKAGE}.kernels.")
