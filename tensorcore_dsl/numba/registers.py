"""Numba types of the table's operands, and their registers as LLVM values.

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
    """The Numba type of one register; OperandError for 128-bit ones."""
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
    """Whether its registers are in braces: a fragment or a vector."""
    return operand.is_fragment or operand.registers > 1


def numba_type(operand: Operand) -> Any:
    """The type of a result in the kernel."""
    one = element_type(operand)
    return types.UniTuple(one, operand.registers) if is_tuple(operand) else one


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
    one = element_type(operand)
    if one in (types.float16, types.bfloat16, types.boolean):
        raise OperandError(f"zeros are for fragments; operand {operand.name} is {one}")
    return (np.dtype(str(one)).type(0),) * operand.registers


@dataclass(frozen=True)
class Slot:
    """Type and constraint of one register of an operand in inline assembly."""

    numba: Any
    bits: int
    constraint: str

    @property
    def llvm(self) -> Any:
        """Floats keep their type; other registers are integers, predicates of 32 bits."""
        if self.constraint in ("f", "d"):
            return ir.FloatType() if self.bits == 32 else ir.DoubleType()
        return ir.IntType(max(self.bits, 32) if self.bits == 1 else self.bits)


def slot(operand: Operand) -> Slot:
    """The register class of an operand."""
    one = element_type(operand)
    bits = operand.register_bits
    return Slot(one, bits, _CONSTRAINTS.get(str(one)) or _CONSTRAINTS[bits])


def parts(given: Any) -> tuple[Any, ...]:
    """The types of a tuple's elements, or the type itself."""
    return tuple(given.types) if isinstance(given, types.BaseTuple) else (given,)


def check(what: str, operand: Operand, given: Any) -> None:
    """TypingError unless an argument of type `given` is allowed for `operand`."""
    if operand.kind == "addr":
        fits = isinstance(given, types.Integer) or is_place(given)
    else:
        fits = len(parts(given)) == operand.registers
        fits = fits and all(_fits(operand, part) for part in parts(given))
        fits = fits and (is_tuple(operand) or not isinstance(given, types.BaseTuple))
    if not fits:
        raise TypingError(f"{what}: {operand.name} is {given}; allowed is {allowed(operand)}")


def _fits(operand: Operand, given: Any) -> bool:
    wanted = element_type(operand)
    if isinstance(wanted, types.Integer):
        floats = operand.is_fragment and operand.dtype.name == "tf32" and given == types.float32
        return isinstance(given, types.Integer) or floats
    if wanted == types.boolean:
        return isinstance(given, (types.Boolean, types.Integer))
    raw = wanted in (types.float16, types.bfloat16) and given in (types.uint16, types.int16)
    return given == wanted or raw


def allowed(operand: Operand) -> str:
    """The types that `check` accepts, in words."""
    if operand.kind == "addr":
        return "an address: an integer, an array, or a pair (array, index)"
    one = str(element_type(operand))
    if operand.is_fragment and operand.dtype.name == "tf32":
        one = "float32 or uint32"
    elif one in ("float16", "__nv_bfloat16"):
        one = f"{one.removeprefix('__nv_')} or uint16"
    elif isinstance(element_type(operand), types.Integer):
        one = f"{one} or another integer"
    if not is_tuple(operand):
        return one
    layout = f", fragment {operand.layout.name}" if operand.layout else ""
    return f"a tuple of {operand.registers} x {one}{layout}"


def is_place(given: Any) -> bool:
    """Whether it is an array, or a pair of an array and an index with one integer per dimension."""
    if isinstance(given, types.Array):
        return True
    if not isinstance(given, types.BaseTuple) or len(given) != 2:
        return False
    array, index = given.types
    return isinstance(array, types.Array) and is_index(array, index)


def is_index(array: Any, index: Any) -> bool:
    integers = parts(index)
    return len(integers) == array.ndim and all(isinstance(i, types.Integer) for i in integers)


def registers(context: Any, builder: Any, operand: Operand, given: Any, value: Any) -> list[Any]:
    """The LLVM values of an argument, one per register of the operand."""
    if operand.kind == "addr":
        return [address(context, builder, given, value, operand.register_bits)]
    wanted, elements = slot(operand), _elements(builder, given, value)
    return [_register(context, builder, wanted, kind, v) for kind, v in elements]


def _elements(builder: Any, given: Any, value: Any) -> list[tuple[Any, Any]]:
    """Type and value of each element of a tuple, or of the value itself."""
    if not isinstance(given, types.BaseTuple):
        return [(given, value)]
    return [(kind, builder.extract_value(value, i)) for i, kind in enumerate(given.types)]


def _register(context: Any, builder: Any, wanted: Slot, given: Any, value: Any) -> Any:
    if isinstance(wanted.numba, (types.Integer, types.Boolean)) and given != types.float32:
        value = context.cast(builder, value, given, wanted.numba)
    if wanted.numba == types.boolean:
        return builder.zext(value, wanted.llvm)
    return value if value.type == wanted.llvm else builder.bitcast(value, wanted.llvm)


def result(context: Any, builder: Any, operand: Operand, values: Sequence[Any]) -> Any:
    """The value of a result from its registers."""
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


def address(context: Any, builder: Any, given: Any, value: Any, bits: int) -> Any:
    """A 32-bit address in shared memory, or a 64-bit address in global memory."""
    if isinstance(given, types.Integer):
        return context.cast(builder, value, given, types.uint32 if bits == 32 else types.uint64)
    if isinstance(given, types.BaseTuple):
        (array, whole), (index, place) = _elements(builder, given, value)
        pointer = element(context, builder, array, whole, _indices(context, builder, index, place))
    else:
        pointer = context.make_array(given)(context, builder, value).data
    space = SHARED if bits == 32 else GLOBAL
    pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, space))
    return builder.ptrtoint(pointer, ir.IntType(bits))


def element_address(context: Any, builder: Any, kinds: Any, values: Any, bits: int) -> Any:
    """The address of an element, from the types and values of an array and an index."""
    place = types.Tuple(kinds)
    return address(context, builder, place, context.make_tuple(builder, place, values), bits)


def _indices(context: Any, builder: Any, given: Any, value: Any) -> list[Any]:
    """An index, integer or tuple, as LLVM values."""
    elements = _elements(builder, given, value)
    return [context.cast(builder, v, kind, INDEX) for kind, v in elements]


def element(context: Any, builder: Any, given: Any, value: Any, index: Sequence[Any]) -> Any:
    """A pointer to an element of an array."""
    array = context.make_array(given)(context, builder, value)
    return cgutils.get_item_pointer(context, builder, given, array, index)
