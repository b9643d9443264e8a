"""The kernel being traced, and its emitter.

A kernel calls types, instructions and operators (`tc.f32(x)`, `mma(a, b, c)`, `a + b`). They
pass the call to the current emitter, which the frontend installs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.origins import is_library


class Emitter(Protocol):
    """The kernel under construction, as types, instructions and values call it.

    `values.builder.Builder` implements it.
    """

    def emit(self, instr: Any, operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Append the instruction `instr` to the kernel and return its results."""

    def named(self, mnemonic: str, *operands: Any, **options: Any) -> Any:
        """Append the instruction of this text and return its results."""

    def apply(self, operator: str, *operands: Any) -> Any:
        """The result of one of Python's operators on run-time values."""

    def convert(self, value: Any, dtype: Any, **options: Any) -> Any:
        """`value` as `dtype`."""

    def convert_pairs(self, elements: list[Any], dtype: Any, **options: Any) -> list[Any] | None:
        """32-bit registers of elements converted two at a time; None if no instruction does."""

    def call(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Evaluate a call of a user's function."""

    def special(self, register: str) -> Any:
        """A special register."""

    def zeros(self, operand: Any) -> Any:
        """A fragment of zeros for `operand`."""

    def pack(self, parts: Sequence[Any], type: Any, operand: Any = None) -> Any:
        """A group of registers made of one scalar each."""

    def part(self, group: Any, index: int) -> Any:
        """Register `index` of a group."""

    def pack_register(self, elements: list[Any], dtype: Any) -> Any:
        """Narrow elements in one 32-bit register."""

    def unpack(self, register: Any, dtype: Any) -> list[Any]:
        """The narrow elements of one 32-bit register."""


_emitter: ContextVar[Emitter | None] = ContextVar("emitter", default=None)


def emitter() -> Emitter:
    """The kernel under construction."""
    current = _emitter.get()
    if current is None:
        raise OperandError(
            f"{_called_name()} only inside a @tc.kernel; "
            "outside, tc.emulate(text, ...) runs one instruction on the CPU"
        )
    return current


def _called_name() -> str:
    """Name of the public function that the user has called: the outermost one on the stack."""
    frame: Any = sys._getframe(1)
    name = ""
    while frame is not None and is_library(frame.f_globals.get("__name__", "")):
        if frame.f_code.co_name == "called":
            name = getattr(frame.f_locals.get("function"), "__qualname__", "")
        frame = frame.f_back
    plain = name and "." not in name
    return f"tc.{name} can be called" if plain else "instructions, types and registers can be used"


def inside_kernel() -> bool:
    """True if a kernel is under construction."""
    return _emitter.get() is not None


def set_emitter(value: Emitter | None) -> Any:
    """Install `value`; returns the token for `reset_emitter`."""
    return _emitter.set(value)


def reset_emitter(token: Any) -> None:
    """Install the emitter that was there before `set_emitter`."""
    _emitter.reset(token)
