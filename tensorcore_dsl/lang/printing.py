"""`print` in a kernel: strings and run-time values become a format string with operands."""

from __future__ import annotations

import re
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.printing import CONVERSIONS
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import RegisterGroup, RuntimeValue, Scalar

_INTEGERS, _FLOATS = "dxXou", "eEfFgG"


class Text:
    """An f-string with run-time values; `parts` are strings and pairs (value, format spec)."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    @property
    def described(self) -> str:
        return "an f-string of run-time values"

    def __str__(self, *_: Any) -> str:
        raise OperandError("an f-string of run-time values can only be printed, not made a string")

    __format__ = __add__ = __radd__ = __mod__ = __str__  # type: ignore[assignment]


def printf(*values: Any, sep: str = " ", end: str = "\n") -> None:
    """Print from each thread: any mixture of strings and run-time values."""
    parts: list[str] = []
    operands: list[Scalar] = []
    for value in values:
        pieces = value.parts if isinstance(value, Text) else [(value, "")]
        parts.append("".join(_piece(piece, operands) for piece in pieces))
    text = sep.join(parts) + end
    kernel = builder().kernel
    if text not in kernel.strings:
        kernel.strings.append(text)
    name = names.printf([operand.dtype for operand in operands])
    builder().named(name, kernel.strings.index(text), *operands)


def _piece(piece: Any, operands: list[Scalar]) -> str:
    """The format of a string or a value; run-time values are appended to `operands`."""
    if isinstance(piece, str):
        return piece.replace("%", "%%")
    value, spec = piece
    if isinstance(value, RegisterGroup):
        elements = (_piece((element, spec), operands) for element in value.elements())
        return f"[{' '.join(elements)}]"
    if isinstance(value, (list, tuple)) and any(isinstance(v, RuntimeValue) for v in value):
        left, right = "[]" if isinstance(value, list) else "()"
        return left + ", ".join(_piece((v, spec), operands) for v in value) + right
    if not isinstance(value, Scalar):
        return format(value, spec).replace("%", "%%")
    operand = promoted(value)
    operands.append(operand)
    return _conversion(operand, spec)


def _conversion(operand: Scalar, spec: str) -> str:
    """C's conversion for Python's format specification."""
    conversion: str = CONVERSIONS[operand.dtype.name][0]
    if not spec:
        return conversion
    letters = _FLOATS if operand.dtype.is_float else _INTEGERS
    match = re.fullmatch(r"([-+ 0]*)(\d*)(\.\d+)?([a-zA-Z]?)", spec)
    if not match or (match[4] and match[4] not in letters):
        raise OperandError(
            f"{spec!r} cannot format {describe(operand)}: allowed are flags (-, +, 0), a width, "
            f"a precision and one of {', '.join(letters)}"
        )
    length = "ll" if operand.dtype.is_integer and operand.dtype.bits == 64 else ""
    letter = match[4] or ("g" if operand.dtype.is_float else conversion[-1])
    return f"%{match[1]}{match[2]}{match[3] or ''}{length}{letter}"


def promoted(value: Scalar) -> Scalar:
    """The value promoted like a C variadic argument: integers of 32 bits or more, floats as f64."""
    dtype, build = value.dtype, builder()
    if dtype.kind == "p" or (dtype.is_integer and dtype.bits < 32):
        return build.convert(value, dtypes.s32)  # type: ignore[no-any-return]
    if dtype.is_integer:
        return value
    if dtype.kind == "b" and dtype.bits in (32, 64):
        return value.bits(dtypes.named(f"u{dtype.bits}"))
    if dtype.is_float and dtype.lanes == 1:
        narrow = value if dtype.bits >= 32 else build.convert(value, dtypes.f32)
        return build.convert(narrow, dtypes.f64)  # type: ignore[no-any-return]
    raise OperandError(f"a value of type {dtype} cannot be printed; convert it first")
