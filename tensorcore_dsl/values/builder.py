"""The builder of a kernel: instructions, operators and conversions on run-time values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.ir.views import Scope
from tensorcore_dsl.tracing import emitter
from tensorcore_dsl.values import arithmetic, conversion
from tensorcore_dsl.values.instructions import InstructionBuilder
from tensorcore_dsl.values.values import Scalar


class Builder(InstructionBuilder):
    """The emitter behind everything that a kernel calls; the evaluator makes one a kernel.

    The evaluator provides two functions for the parts of the language that take functions:
    `call(function, args, keywords)` evaluates a call, `branch(condition, then, orelse)` a run-time
    `if` with one function for each side.
    """

    call: Callable[[Any, list[Any], dict[str, Any]], Any]
    branch: Callable[[Scalar, Callable[[], None], Callable[[], None]], None]
    in_role = False  # of tc.warp_specialize
    scopes: Callable[[], tuple[Scope, ...]] | None = None  # the user's variables, in a debug build

    def apply(self, operator: str, *operands: Any) -> Any:
        """The result of one of Python's operators."""
        return arithmetic.apply(self, operator, *operands)

    def convert(self, value: Any, dtype: DType, **options: Any) -> Any:
        """`value` as `dtype`."""
        return conversion.convert(self, value, dtype, **options)

    def convert_pairs(self, elements: list[Any], dtype: DType, **options: Any) -> list[Scalar] | None:
        """32-bit registers of elements converted two at a time; None if no instruction does."""
        return conversion.convert_pairs(self, elements, dtype, **options)

    def pack_register(self, elements: list[Any], dtype: DType) -> Scalar:
        """Elements of 8 or 16 bits in one 32-bit register."""
        return conversion.pack(self, elements, dtype)

    def unpack(self, register: Scalar, dtype: DType) -> list[Scalar]:
        """The elements of one 32-bit register."""
        return conversion.unpack(self, register, dtype)


def builder() -> Builder:
    """The kernel under construction."""
    return cast(Builder, emitter())
