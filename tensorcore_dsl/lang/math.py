"""Mathematical functions: fma, minimum, select, exp, sqrt and the approximate functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, SupportsFloat

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, is_number
from tensorcore_dsl.values.values import RegisterGroup, Scalar


def fma(a: SupportsFloat, b: SupportsFloat, c: SupportsFloat, rounding: str = "rn") -> Any:
    """a * b + c: floats are rounded once, integers give the low half of the product plus c."""
    return arithmetic.fma(builder(), a, b, c, rounding)


def minimum(a: SupportsFloat, b: SupportsFloat) -> Any:
    """The smaller of two values; if one is NaN, the other one."""
    return arithmetic.extreme(builder(), "min", a, b)


def maximum(a: SupportsFloat, b: SupportsFloat) -> Any:
    """The larger of two values; if one is NaN, the other one."""
    return arithmetic.extreme(builder(), "max", a, b)


def select(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition` holds, else `no`, without a branch."""
    return arithmetic.select(builder(), condition, yes, no)


def _of_floats(function: Callable[[Any], Any]) -> Callable[[SupportsFloat], Any]:
    """The function of f32 and f64 for all numbers; narrower floats are converted and back."""

    @wraps(function)
    def converted(value: Any) -> Any:
        if isinstance(value, RegisterGroup):
            return value.map(converted)
        value = _float(value, function.__name__)
        wide = value if value.dtype.bits >= 32 else builder().convert(value, dtypes.f32)
        return builder().convert(function(wide), value.dtype)

    return converted


def _approximate(name: str, instruction: str) -> Any:
    """The function `name`, which emits an instruction of f32."""

    def function(value: Any) -> Any:
        if value.dtype.bits == 64:
            raise OperandError(f"{name} has no f64 form; convert to f32 first")
        return emit(instruction, builder().convert(value, dtypes.f32))

    function.__name__ = name
    function.__doc__ = f"{name}: {instruction}; narrower floats are converted to f32 and back."
    return _of_floats(function)


exp2: Callable[[SupportsFloat], Any] = _approximate("exp2", names.EXP2)
log2: Callable[[SupportsFloat], Any] = _approximate("log2", names.LOG2)
rcp: Callable[[SupportsFloat], Any] = _approximate("rcp", names.RECIPROCAL)
rsqrt: Callable[[SupportsFloat], Any] = _approximate("rsqrt", names.RECIPROCAL_SQRT)
sin: Callable[[SupportsFloat], Any] = _approximate("sin", names.SIN)
cos: Callable[[SupportsFloat], Any] = _approximate("cos", names.COS)
tanh: Callable[[SupportsFloat], Any] = _approximate("tanh", names.TANH)


@_of_floats
def sqrt(value: Any) -> Any:
    """Square root, rounded to nearest."""
    return emit(names.square_root(value.dtype), value)


@_of_floats
def exp(value: Any) -> Any:
    """e**x as exp2(x * log2(e)); narrower floats are converted to f32 and back."""
    return exp2(value * math.log2(math.e))


@_of_floats
def log(value: Any) -> Any:
    """The natural logarithm as log2(x) * ln(2); narrower floats are converted to f32 and back."""
    return log2(value) * math.log(2)


def _float(value: Any, what: str) -> Scalar:
    """The value as a float in a register: integers and numbers become f32."""
    if not isinstance(value, Scalar) and not is_number(value):
        raise OperandError(f"{what} takes numbers, not {describe(value)}")
    if not isinstance(value, Scalar):
        return builder().literal(value, dtypes.f32)
    return value if value.dtype.is_float else builder().convert(value, dtypes.f32)  # type: ignore[no-any-return]
