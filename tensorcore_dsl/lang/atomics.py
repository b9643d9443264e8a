"""Atomic operations on elements of global and shared memory."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.pointer import Pointer
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
    given = [builder().convert(v, dtype) for v in values]
    name = names.atomic(pointer.space, operation, dtype)
    return Scalar(emit(name, pointer.address, *given).value, dtype)


def reduce(operation: str, pointer: Pointer, value: Any) -> None:
    """`atomic` without the old value: add, min, max, and, or, xor, inc or dec."""
    check_choice("a reduction", operation, (*ATOMICS[:6], "inc", "dec"))
    _check_pointer("tc.reduce", pointer)
    name = names.reduction(pointer.space, operation, pointer.dtype)
    emit(name, pointer.address, builder().convert(value, pointer.dtype))


def _check_pointer(what: str, pointer: Any) -> None:
    if not isinstance(pointer, Pointer):
        raise OperandError(f"{what} takes a pointer, array.at(...), not {describe(pointer)}")
