"""Atomic operations on elements of global and shared memory."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.pointer import Pointer, element_size
from tensorcore_dsl.lang.warp import check_choice
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import Element, Scalar

ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas")


def atomic(operation: str, pointer: Pointer, *values: Any) -> Element:
    """add, min, max, and, or, xor, exch, inc, dec or cas on one element; returns the old value."""
    check_choice("an atomic operation", operation, ATOMICS)
    _check_pointer("tc.atomic", pointer)
    dtype = pointer.dtype
    given = [_operand(operation, v, dtype) for v in values]
    name = names.atomic(pointer.space, operation, dtype)
    return Scalar(emit(name, pointer.accessed(element_size(dtype)), *given).value, dtype)


def reduce(operation: str, pointer: Pointer, value: Any) -> None:
    """`atomic` without the old value: add, min, max, and, or, xor, inc or dec."""
    check_choice("a reduction", operation, (*ATOMICS[:6], "inc", "dec"))
    _check_pointer("tc.reduce", pointer)
    name = names.reduction(pointer.space, operation, pointer.dtype)
    given = _operand(operation, value, pointer.dtype)
    emit(name, pointer.accessed(element_size(pointer.dtype)), given)


def _operand(operation: str, value: Any, dtype: DType) -> Any:
    """The value as the type of the element; OperandError where its fraction would be lost."""
    if operation in ("and", "or", "xor") and dtype.is_float:
        raise OperandError(f"{operation} works on integers and bits, not on {dtype}")
    kind = value.dtype if isinstance(value, Scalar) else None
    fraction = kind.is_float if kind else isinstance(value, float) and not value.is_integer()
    if dtype.is_integer and fraction:
        raise OperandError(
            f"{operation} of {dtype} elements takes integers, not {describe(value)}; convert it "
            f"first, with {dtype}(...)"
        )
    return builder().convert(value, dtype)


def _check_pointer(what: str, pointer: Any) -> None:
    if not isinstance(pointer, Pointer):
        raise OperandError(f"{what} takes a pointer, array.at(...), not {describe(pointer)}")
