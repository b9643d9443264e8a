"""`print` in a kernel: strings and run-time values become one format string and its operands."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend import arithmetic
from tensorcore_dsl.frontend.values import Group, Scalar
from tensorcore_dsl.isa.printing import CONVERSIONS


def emit_print(builder: Any, values: tuple[Any, ...]) -> None:
    """Print `values`, separated by blanks."""
    parts: list[str] = []
    operands: list[Scalar] = []
    for value in values:
        for item in value.elements() if isinstance(value, Group) else [value]:
            if isinstance(item, Scalar):
                operand = promoted(builder, item)
                operands.append(operand)
                parts.append(CONVERSIONS[operand.dtype.name][0])
            else:
                parts.append(str(item).replace("%", "%%"))
    text = " ".join(parts) + "\n"
    strings = builder.kernel.strings
    if text not in strings:
        strings.append(text)
    name = ".".join(["vprintf", *(o.dtype.name for o in operands)])
    builder.named(name, strings.index(text), *operands)


def promoted(builder: Any, value: Scalar) -> Scalar:
    """As C's variable arguments: integers of at least 32 bits, floats as f64."""
    dtype = value.dtype
    if dtype.kind == "p" or (dtype.is_integer and dtype.bits < 32):
        return arithmetic.convert(builder, value, dtypes.s32)  # type: ignore[no-any-return]
    if dtype.is_integer:
        return value
    if dtype.kind == "b" and dtype.bits in (32, 64):
        return Scalar(value.value, dtypes.named(f"u{dtype.bits}"))
    if dtype.is_float and dtype.lanes == 1:
        narrow = value if dtype.bits >= 32 else arithmetic.convert(builder, value, dtypes.f32)
        return arithmetic.convert(builder, narrow, dtypes.f64)  # type: ignore[no-any-return]
    raise OperandError(f"a value of type {dtype} cannot be printed; convert it first")
