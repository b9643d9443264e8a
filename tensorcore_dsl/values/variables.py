"""Variables: registers that are assigned more than once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.nodes import Assign, Const, Type, Value
from tensorcore_dsl.values.arithmetic import coerce
from tensorcore_dsl.values.builder import Builder
from tensorcore_dsl.values.operands import is_number, is_simple, literal
from tensorcore_dsl.values.promotion import common_type
from tensorcore_dsl.values.values import UNSET, RegisterGroup, RuntimeValue, Scalar

Copies = list[tuple[Any, Any]]  # (variable, value)
_BITS_TYPES = {bits: dtypes.named(f"b{bits}") for bits in (16, 32, 64, 128)}


def register_for(builder: Builder, values: Sequence[Any]) -> Any:
    """A new register that can hold each of the values, or None."""
    first = values[0]
    if isinstance(first, RegisterGroup):
        if all(isinstance(v, RegisterGroup) and v.value.type == first.value.type for v in values):
            return RegisterGroup(builder.new_value(first.value.type), first.operand)
        return None
    dtype = holding_type(values)
    if dtype is None:
        return None
    variable = Scalar(builder.new_value(Type(dtype)), dtype)
    builder.follow(variable, values)
    return variable


def holding_type(values: Sequence[Any]) -> DType | None:
    """The type of a variable that can hold each of these scalars and numbers, or None."""
    if not all(map(is_simple, values)):
        return None
    strongest_first = sorted(values, key=is_number)
    try:
        return reduce(common_type, strongest_first, strongest_first[0])  # type: ignore[no-any-return]
    except OperandError:  # no common type
        return None


def new_variable(builder: Builder, value: Any, dtype: DType | None = None, later: Sequence[Any] = ()) -> Any:
    """A fresh register that starts as `value`. later: values that it follows (`follow`)."""
    if isinstance(value, RegisterGroup):
        variable: Any = RegisterGroup(builder.new_value(value.value.type), value.operand)
    else:
        variable = Scalar(builder.new_value(Type(dtype or value.dtype)))
    builder.follow(variable, [value, *later])
    write(builder, [(variable, value)])
    return variable


def write(builder: Builder, copies: Copies) -> None:
    """Assign all values to their variables at once: a value that is overwritten here is saved."""
    followed = [(to, value) for to, value in copies if to.value in builder.carried]
    copies = copies + [(builder.carried[to.value], builder.product(value)) for to, value in followed]
    targets = {variable.value for variable, _ in copies}
    ready: Copies = []
    for variable, value in copies:
        if isinstance(variable, Scalar) and value is not UNSET:
            value = coerce(builder, value, variable.dtype)
        if isinstance(value, RuntimeValue) and value.value in targets:
            if value.value is variable.value:
                continue
            value = new_variable(builder, value)
        ready.append((variable, value))
    for variable, value in ready:
        builder.append(Assign(variable.value, (_source(value, variable),)))


def _source(value: Any, variable: RuntimeValue) -> Value | Const:
    if isinstance(value, RuntimeValue):
        return value.value
    type = variable.value.type
    if value is UNSET:
        return Const(0, dtypes.pred if type.register_bits == 1 else _BITS_TYPES[type.register_bits])
    return literal(value, type.dtype)
