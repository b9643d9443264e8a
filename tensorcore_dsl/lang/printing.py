"""`print` in a kernel: strings and run-time values become a format string with operands."""

from __future__ import annotations

import re
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir import views
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.printing import CONVERSIONS
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.inspection import memory_view
from tensorcore_dsl.lang.tiles import Tile
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, has_runtime
from tensorcore_dsl.values.values import Mask, RegisterGroup, RuntimeValue, Scalar, Struct

_INTEGERS, _FLOATS = "dxXou", "eEfFgG"


class _Separator(str):
    """Separator between the items of a list of matrices, which emulation prints one a line."""


_BETWEEN = _Separator(", ")


class Text:
    """An f-string with run-time values; `parts` are strings and pairs (value, format spec)."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    @property
    def described(self) -> str:
        return "an f-string of run-time values"

    def __add__(self, other: Any) -> Text:
        return Text([*self.parts, *parts_of(other)])

    def __radd__(self, other: Any) -> Text:
        return Text([*parts_of(other), *self.parts])

    def __str__(self, *_: Any) -> str:
        raise OperandError("an f-string of run-time values can only be printed, not made a string")

    __format__ = __mod__ = __str__  # type: ignore[assignment]


def printed(value: Any) -> Text:
    """str(value) and repr(value) of a run-time value."""
    return Text([(value, "")])


def parts_of(value: Any) -> list[Any]:
    """A string or a Text as the parts of a Text."""
    if not isinstance(value, (str, Text)):
        raise OperandError(f"{describe(value)} cannot be added to a string; use an f-string")
    return value.parts if isinstance(value, Text) else [value]


def printf(*values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False) -> None:
    """Print from each thread: any mixture of strings and run-time values.

    In emulation, fragments, tiles and arrays print their contents, once a warp. On the GPU,
    fragments print the elements of each thread, and tiles and arrays cannot be printed.
    """
    if file is not None:
        raise OperandError("print in a kernel writes to the standard output; it has no file=")
    sep, end = _ending("sep", sep, " "), _ending("end", end, "\n")
    pieces: list[Any] = []
    for position, value in enumerate(values):
        pieces += [sep] if position else []
        items = value.parts if isinstance(value, Text) else [(value, "")]
        for piece in items:
            pieces += [piece] if isinstance(piece, str) else _flat(*piece)
    pieces.append(end)
    operands: list[Scalar] = []
    texts: list[str] = []
    printed: list[Any] = []
    for piece in pieces:
        first = len(operands)
        texts.append(_piece(piece, operands))
        text = ",\n" if piece is _BETWEEN else texts[-1]
        printed.append(_matrix(piece, operands) or (text, first))
    whole = any(isinstance(part, views.Printed) for part in printed)
    name = names.printf([operand.dtype for operand in operands])
    builder().named(name, _string("".join(texts), tuple(printed) if whole else None), *operands)


def _string(text: str, matrices: tuple[Any, ...] | None) -> int:
    """Number of a format string of the kernel, and of the text that the emulator prints instead."""
    kernel = builder().kernel
    for number, known in enumerate(kernel.strings):
        if known == text and kernel.prints.get(number) == matrices:
            return number
    kernel.strings.append(text)
    if matrices is not None:
        kernel.prints[len(kernel.strings) - 1] = matrices
    return len(kernel.strings) - 1


def _layout(value: Any) -> Layout | None:
    """The layout of a fragment, or of a mask of run-time predicates."""
    if isinstance(value, Mask):
        return value.group.layout if all(isinstance(e, Scalar) for e in value) else None
    return value.operand.layout if isinstance(value, RegisterGroup) and value.operand else None


def _is_matrix(value: Any) -> bool:
    return isinstance(value, (Tile, Array)) or _layout(value) is not None


def _flat(value: Any, spec: str) -> list[Any]:
    """The pieces of a value: those of its items for lists and tuples of matrices."""
    if not _holds_matrices(value):
        return [(value, spec)]
    left, right = "[]" if isinstance(value, list) else ("(", ",)" if len(value) == 1 else ")")
    pieces: list[Any] = [left]
    for position, item in enumerate(value):
        pieces += [_BETWEEN] if position else []
        pieces += _flat(item, spec) if has_runtime(item) or _is_matrix(item) else [repr(item)]
    return [*pieces, right]


def _holds_matrices(value: Any) -> bool:
    """True if it is a list or tuple with matrices, at any depth."""
    if type(value) not in (list, tuple):
        return False
    return any(_is_matrix(item) or _holds_matrices(item) for item in value)


def _matrix(piece: Any, operands: list[Scalar]) -> Any:
    """The view of a value that the emulator prints as a whole; None for any other.

    The operands of a fragment are there already; those of tiles and arrays are appended.
    """
    if isinstance(piece, str):
        return None
    value, spec = piece
    if isinstance(value, (Tile, Array)):
        return views.Printed(memory_view(value, lambda scalar: _operand(scalar, operands)), spec)
    layout = _layout(value)
    if layout is None:
        return None
    first = len(operands) - layout.slots
    slots = tuple(views.Register(first + i, operands[first + i].dtype) for i in range(layout.slots))
    return views.Printed(views.Matrix(slots, layout), spec)


def _operand(scalar: Scalar, operands: list[Scalar]) -> views.Register:
    """The leaf of a view: an operand of the print."""
    operands.append(promoted(scalar))
    return views.Register(len(operands) - 1, operands[-1].dtype)


def _ending(name: str, text: Any, default: str) -> str:
    if not isinstance(text, (str, type(None))):
        raise OperandError(f"{name} of print must be a string, not {describe(text)}")
    return default if text is None else text


def _piece(piece: Any, operands: list[Scalar]) -> str:
    """The format of a string or a value; run-time values are appended to `operands`."""
    if isinstance(piece, str):
        return piece.replace("%", "%%")
    value, spec = piece
    if isinstance(value, (Tile, Array)):
        return f"({value.described})"
    if isinstance(value, RegisterGroup):
        elements = (_piece((element, spec), operands) for element in value.elements())
        return f"[{' '.join(elements)}]"
    if not isinstance(value, (RuntimeValue, Struct)) and has_runtime(value):
        return _container(value, spec, operands)
    if not isinstance(value, Scalar):
        return format(value, spec).replace("%", "%%")
    operand = promoted(value)
    operands.append(operand)
    return _conversion(operand, spec)


def _container(value: Any, spec: str, operands: list[Scalar]) -> str:
    """The format of what Python shows of a container; `spec` is for run-time values in it."""

    def shown(item: Any) -> str:
        if isinstance(item, RuntimeValue) or has_runtime(item):
            return _piece((item, spec), operands)
        return _piece(repr(item), operands)

    if isinstance(value, dict):
        items = [f"{_piece(repr(key), [])}: {shown(item)}" for key, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return f"({', '.join(map(shown, value))}{',' * (len(value) == 1)})"
    named: dict[str, Any] = vars(value) if not isinstance(value, tuple) else _asdict(value)
    fields = [f"{name}={shown(item)}" for name, item in named.items()]
    return f"{type(value).__name__}({', '.join(fields)})"


def _asdict(value: Any) -> dict[str, Any]:
    """The items of a named tuple."""
    return dict(zip(value._fields, value, strict=True))


def _conversion(operand: Scalar, spec: str) -> str:
    """C's conversion for Python's format specification."""
    conversion: str = CONVERSIONS[operand.dtype.name][0]
    if not spec:
        return conversion
    letters = _FLOATS if operand.dtype.is_float else _INTEGERS
    match = re.fullmatch(r"([<>]?)([-+ ]?)(0?)(\d*)(\.\d+)?([a-zA-Z]?)", spec)
    if not match or (match[6] and match[6] not in letters) or (match[1] == "<" and match[3]):
        raise OperandError(
            f"{spec!r} cannot format {describe(operand)}: allowed are an alignment (<, >), a sign "
            f"(-, +, blank), 0, a width, a precision and one of {', '.join(letters)}"
        )
    left = "-" * (match[1] == "<")  # in C; Python's sign "-" is what C does anyway
    length = "ll" if operand.dtype.is_integer and operand.dtype.bits == 64 else ""
    letter = match[6] or ("g" if operand.dtype.is_float else conversion[-1])
    flags = left + match[2].strip("-") + match[3]
    return f"%{flags}{match[4]}{match[5] or ''}{length}{letter}"


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
