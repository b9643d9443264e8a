"""What Python's own functions mean on run-time values: min, len, math.sqrt and their like."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.lang import language
from tensorcore_dsl.lang.memory import Array
from tensorcore_dsl.lang.printing import printf
from tensorcore_dsl.lang.ranges import RuntimeRange
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import Runtime, Scalar, Struct, builder


def has_runtime(value: Any, depth: int = 4) -> bool:
    """Does a value carry something known only at run time?"""
    if isinstance(value, (Runtime, Struct)):
        return True
    if not depth:
        return False
    if isinstance(value, (list, tuple)):
        return any(has_runtime(v, depth - 1) for v in value)
    if isinstance(value, dict):
        return any(has_runtime(v, depth - 1) for v in value.values())
    return hasattr(value, "__dataclass_fields__") and has_runtime(vars(value), depth - 1)


def _several(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """min or max of several values, or of the items of one."""

    def reduced(*items: Any) -> Any:
        values = list(items[0]) if len(items) == 1 else list(items)
        return functools.reduce(function, values)

    return reduced


def _int(value: Any) -> Any:
    """int(x): integers stay as they are, floats are cut (f64 to s64, others to s32)."""
    if isinstance(value, Scalar) and value.dtype.is_integer:
        return value
    wide = isinstance(value, Scalar) and value.dtype == dtypes.f64
    return builder().convert(value, dtypes.s64 if wide else dtypes.s32)


def _to_float(value: Any) -> Any:
    """float(x): f64 stays, anything else becomes f32."""
    if isinstance(value, Scalar) and value.dtype == dtypes.f64:
        return value
    return builder().convert(value, dtypes.f32)


def _to_integer(mode: str) -> Callable[[Any], Any]:
    """math.floor and its like give integers."""
    return lambda value: _int(arithmetic.rounded(builder(), value, mode))


def _round(value: Any, digits: Any = None) -> Any:
    if digits is not None:
        raise OperandError("round(x, digits) is not defined for run-time values; round(x) is")
    return _int(arithmetic.rounded(builder(), value, "rni"))


def _sum(items: Any, start: Any = 0) -> Any:
    values = list(items)
    if values and isinstance(start, int) and start == 0:
        return functools.reduce(operator.add, values)
    return functools.reduce(operator.add, values, start)


def _every(items: Any) -> Any:
    tests = [arithmetic.truth(builder(), item) for item in items]
    return functools.reduce(lambda a, b: arithmetic.logic(builder(), "and", a, b), tests, True)


def _some(items: Any) -> Any:
    tests = [arithmetic.truth(builder(), item) for item in items]
    return functools.reduce(lambda a, b: arithmetic.logic(builder(), "or", a, b), tests, False)


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Array) else len(value)


def _test(name: str) -> Callable[[Any], Any]:
    """math.isnan and its like."""

    def test(value: Any) -> Any:
        wide = value if value.dtype.bits >= 32 else builder().convert(value, dtypes.f32)
        return language.emit(f"testp.{name}.{wide.dtype}", wide)

    return test


def _copysign(value: Any, sign: Any) -> Any:
    value, sign = (_to_float(v) for v in (value, sign))
    return language.emit(f"copysign.{value.dtype}", sign, value)


def _hypot(*values: Any) -> Any:
    return language.sqrt(_sum([v * v for v in values]))


RUNTIME: dict[Any, Callable[..., Any]] = {
    range: RuntimeRange,
    min: _several(language.minimum),
    max: _several(language.maximum),
    sum: _sum,
    any: _some,
    all: _every,
    len: _length,
    int: _int,
    float: _to_float,
    bool: lambda value: arithmetic.truth(builder(), value),
    round: _round,
    pow: operator.pow,
    divmod: lambda x, y: (x // y, x % y),
    math.floor: _to_integer("rmi"),
    math.ceil: _to_integer("rpi"),
    math.trunc: _to_integer("rzi"),
    math.fabs: lambda value: abs(_to_float(value)),
    math.sqrt: language.sqrt,
    math.exp: language.exp,
    math.log: language.log,
    math.log2: language.log2,
    math.sin: language.sin,
    math.cos: language.cos,
    math.tanh: language.tanh,
    math.isnan: _test("notanumber"),
    math.isinf: _test("infinite"),
    math.isfinite: _test("finite"),
    math.copysign: _copysign,
    math.hypot: _hypot,
    math.pow: operator.pow,
    np.minimum: language.minimum,
    np.maximum: language.maximum,
    np.sqrt: language.sqrt,
    np.exp: language.exp,
    np.abs: operator.abs,
}
if hasattr(math, "exp2"):  # Python 3.11
    RUNTIME[math.exp2] = language.exp2


def replacement(function: Any, args: list[Any]) -> Any:
    """What stands for a function of Python on these arguments, or None for itself."""
    if function is print:
        return printf
    try:
        found = RUNTIME.get(function)
    except TypeError:  # it cannot be hashed
        return None
    if found is None or not has_runtime(args):
        return None
    if function in (len, sum, any, all) and len(args) >= 1 and isinstance(args[0], Scalar):
        raise OperandError(f"{function.__name__}() takes several values, not {describe(args[0])}")
    if function is len and not isinstance(args[0], Array):
        return None
    if function is range and not any(isinstance(a, Runtime) for a in args):
        return None
    return found
