"""Map operands of the table to Numba types, and Numba values to registers (LLVM values).

    f32, f64, s32, u64, ...     float32, float64, int32, uint64, ...
    f16, bf16                   float16, bfloat16
    b16, b32, b64, f16x2, ...   uint16, uint32, uint64, uint32: bits
    pred                        boolean
    fragments                   tuples of float32, float64, int32, or uint32 with packed elements

Integer and bit registers accept any integer, truncated to their width as in Numba's array stores,
since arithmetic on them gives int64. Addresses accept an integer, an array (the address of its
first element) or a pair (array, index).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.numba.compat import TypingError, cgutils, types

SHARED, GLOBAL = 3, 1  # address spaces of LLVM
INDEX = types.intp
_NAMED = {
    "f32": types.float32,
    "f64": types.float64,
    "f16": types.float16,
    "bf16": types.bfloat16,
    "pred": types.boolean,
}
_CONSTRAINTS = {"float32": "f", "float64": "d", 1: "r", 16: "h", 32: "r", 64: "l"}


def element_type(operand: Operand) -> Any:
    """Return the Numba type of one register; OperandError for 128-bit registers."""
    bits = operand.register_bits
    if bits > 64:
        raise OperandError(f"operand {operand.name} has registers of {bits} bits; Numba has none")
    name = operand.dtype.name
    if operand.is_fragment and name not in ("f32", "f64", "s32"):
        return types.uint32
    if name in _NAMED:
        return _NAMED[name]
    return getattr(types, f"int{bits}" if operand.dtype.kind == "s" else f"uint{bits}")


def is_tuple(operand: Operand) -> bool:
    """Return whether PTX writes the operand's registers in braces: a fragment or a vector."""
    return operand.is_fragment or operand.registers > 1


def numba_type(operand: Operand) -> Any:
    """Return the Numba type of a result."""
    register_type = element_type(operand)
    return types.UniTuple(register_type, operand.registers) if is_tuple(operand) else register_type


def zeros(operand: Operand) -> tuple[np.generic, ...]:
    """Zeros for the registers of an operand, used as a constant in kernels.

    Parameters
    ----------
    operand : Operand
        A fragment: `product.d`.

    Returns
    -------
    tuple
        A number for each register.

    Raises
    ------
    OperandError
        A register of a type that no fragment has.

    Examples
    --------
    >>> from tensorcore_dsl.numba import mma, zeros
    >>> zeros(mma.m16n8k16(tc.f16, tc.f16, tc.f32).d)
    (np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0))
    """
    register_type = element_type(operand)
    if register_type in (types.float16, types.bfloat16, types.boolean):
        raise OperandError(f"zeros are for fragments; operand {operand.name} is {register_type}")
    return (np.dtype(str(register_type)).type(0),) * operand.registers


@dataclass(frozen=True)
class Slot:
    """Numba type, width and constraint of one register in inline assembly."""

    numba: Any
    bits: int
    constraint: str

    @property
    def llvm(self) -> Any:
        """LLVM type: floats keep their type, other registers are integers, predicates have 32 bits."""
        if self.constraint in ("f", "d"):
            return ir.FloatType() if self.bits == 32 else ir.DoubleType()
        return ir.IntType(max(self.bits, 32) if self.bits == 1 else self.bits)


def slot(operand: Operand) -> Slot:
    """Return the register slot of an operand."""
    register_type = element_type(operand)
    bits = operand.register_bits
    return Slot(register_type, bits, _CONSTRAINTS.get(str(register_type)) or _CONSTRAINTS[bits])


def parts(kind: Any) -> tuple[Any, ...]:
    """Return the types of a tuple's elements; a one-element tuple for another type."""
    return tuple(kind.types) if isinstance(kind, types.BaseTuple) else (kind,)


def check(what: str, operand: Operand, kind: Any) -> None:
    """Raise TypingError unless an argument of type `kind` is allowed for `operand`."""
    if operand.kind == "addr":
        fits = isinstance(kind, types.Integer) or is_place(kind)
    else:
        fits = len(parts(kind)) == operand.registers
        fits = fits and all(_fits(operand, part) for part in parts(kind))
        fits = fits and (is_tuple(operand) or not isinstance(kind, types.BaseTuple))
    if not fits:
        raise TypingError(f"{what}: {operand.name} is {kind}; allowed is {allowed(operand)}")


def _fits(operand: Operand, kind: Any) -> bool:
    wanted = element_type(operand)
    if isinstance(wanted, types.Integer):
        floats = operand.is_fragment and operand.dtype.name == "tf32" and kind == types.float32
        return isinstance(kind, types.Integer) or floats
    if wanted == types.boolean:
        return isinstance(kind, (types.Boolean, types.Integer))
    raw = wanted in (types.float16, types.bfloat16) and kind in (types.uint16, types.int16)
    return kind == wanted or raw


def allowed(operand: Operand) -> str:
    """Describe the types that `check` accepts."""
    if operand.kind == "addr":
        return "an address: an integer, an array, or a pair (array, index)"
    text = str(element_type(operand))
    if operand.is_fragment and operand.dtype.name == "tf32":
        text = "float32 or uint32"
    elif text in ("float16", "__nv_bfloat16"):
        text = f"{text.removeprefix('__nv_')} or uint16"
    elif isinstance(element_type(operand), types.Integer):
        text = f"{text} or another integer"
    if not is_tuple(operand):
        return text
    layout = f", fragment {operand.layout.name}" if operand.layout else ""
    return f"a tuple of {operand.registers} x {text}{layout}"


def is_place(kind: Any) -> bool:
    """Return whether a type is an array, or a pair of an array and an index of it."""
    if isinstance(kind, types.Array):
        return True
    if not isinstance(kind, types.BaseTuple) or len(kind) != 2:
        return False
    array, index = kind.types
    return isinstance(array, types.Array) and is_index(array, index)


def is_index(array: Any, index: Any) -> bool:
    integers = parts(index)
    return len(integers) == array.ndim and all(isinstance(i, types.Integer) for i in integers)


def registers(context: Any, builder: Any, operand: Operand, numba_type: Any, value: Any) -> list[Any]:
    """Convert an argument to LLVM values, one per register of the operand."""
    if operand.kind == "addr":
        return [address(context, builder, numba_type, value, operand.register_bits)]
    wanted, elements = slot(operand), _elements(builder, numba_type, value)
    return [_register(context, builder, wanted, kind, v) for kind, v in elements]


def _elements(builder: Any, numba_type: Any, value: Any) -> list[tuple[Any, Any]]:
    """Return type and value of each element of a tuple, or of the value itself."""
    if not isinstance(numba_type, types.BaseTuple):
        return [(numba_type, value)]
    return [(kind, builder.extract_value(value, i)) for i, kind in enumerate(numba_type.types)]


def _register(context: Any, builder: Any, wanted: Slot, kind: Any, value: Any) -> Any:
    if isinstance(wanted.numba, (types.Integer, types.Boolean)) and kind != types.float32:
        value = context.cast(builder, value, kind, wanted.numba)
    if wanted.numba == types.boolean:
        return builder.zext(value, wanted.llvm)
    return value if value.type == wanted.llvm else builder.bitcast(value, wanted.llvm)


def result(context: Any, builder: Any, operand: Operand, values: Sequence[Any]) -> Any:
    """Build the value of a result from its registers."""
    wanted = slot(operand)
    converted = [_value(context, builder, wanted, value) for value in values]
    if is_tuple(operand):
        return context.make_tuple(builder, numba_type(operand), converted)
    return converted[0]


def _value(context: Any, builder: Any, wanted: Slot, value: Any) -> Any:
    if wanted.numba == types.boolean:
        return builder.icmp_unsigned("!=", value, ir.Constant(value.type, 0))
    target = context.get_value_type(wanted.numba)
    return value if value.type == target else builder.bitcast(value, target)


def address(context: Any, builder: Any, kind: Any, value: Any, bits: int) -> Any:
    """Convert an argument to an address: 32 bits for shared memory, 64 bits for global memory."""
    if isinstance(kind, types.Integer):
        return context.cast(builder, value, kind, types.uint32 if bits == 32 else types.uint64)
    if isinstance(kind, types.BaseTuple):
        (array, array_value), (kinds, index) = _elements(builder, kind, value)
        pointer = element(context, builder, array, array_value, _indices(context, builder, kinds, index))
    else:
        pointer = context.make_array(kind)(context, builder, value).data
    space = SHARED if bits == 32 else GLOBAL
    pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, space))
    return builder.ptrtoint(pointer, ir.IntType(bits))


def element_address(context: Any, builder: Any, kinds: Any, values: Any, bits: int) -> Any:
    """Return the address of an element, from the types and values of an array and an index."""
    pair = types.Tuple(kinds)
    return address(context, builder, pair, context.make_tuple(builder, pair, values), bits)


def _indices(context: Any, builder: Any, numba_type: Any, value: Any) -> list[Any]:
    """Convert an index, an integer or a tuple, to LLVM values."""
    elements = _elements(builder, numba_type, value)
    return [context.cast(builder, v, kind, INDEX) for kind, v in elements]


def element(context: Any, builder: Any, kind: Any, value: Any, index: Sequence[Any]) -> Any:
    """Return a pointer to an element of an array."""
    array = context.make_array(kind)(context, builder, value)
    return cgutils.get_item_pointer(context, builder, kind, array, index)
