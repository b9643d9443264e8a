"""Python's own functions on run-time values: min, len, math.sqrt and similar ones."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang import math as device_math
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.debugging import breakpoint
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.printing import printed, printf
from tensorcore_dsl.lang.ranges import RuntimeRange
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.operands import has_runtime as has_runtime
from tensorcore_dsl.values.values import Mask, RegisterGroup, RuntimeValue, Scalar


def _several(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """min or max of several values, or of the items of one."""

    def reduced(*items: Any) -> Any:
        values = _items(function.__name__[:3], items[0]) if len(items) == 1 else list(items)
        return functools.reduce(function, values)

    return reduced


def _items(name: str, values: Any) -> list[Any]:
    """The items to reduce; OperandError for a fragment, of which a thread holds only a part."""
    group = values.group if isinstance(values, Mask) else values
    if isinstance(group, RegisterGroup) and group.layout is not None:
        own = "list(x)" if isinstance(values, Mask) else "x.elements()"
        whole = f"tc.row_{name}(x) or tc.reduce_rows(x, f) reduces each row"
        if isinstance(values, Mask) or name in ("any", "all"):
            whole = f'tc.vote("{name}", {name}({own})) asks the whole warp'
            if name == "sum":
                whole = "tc.row_sum(tc.select(x, 1, 0)) counts in each row"
        elif 1 in (group.layout.rows, group.layout.cols):
            whole = "shuffles, tc.shfl_xor, combine those of a warp"
        raise OperandError(
            f"{name}() of {values.described} would reduce only what this thread holds: {whole}; "
            f"{name}({own}) is about this thread's own"
        )
    return list(values)


def _int(value: Any) -> Any:
    """int(x): integers keep their type, floats are truncated (f64 to s64, others to s32)."""
    if isinstance(value, Scalar) and value.dtype.is_integer:
        return value
    wide = isinstance(value, Scalar) and value.dtype == dtypes.f64
    return builder().convert(value, dtypes.s64 if wide else dtypes.s32)


def _to_float(value: Any) -> Any:
    """float(x): f64 keeps its type, anything else becomes f32."""
    if isinstance(value, Scalar) and value.dtype == dtypes.f64:
        return value
    return builder().convert(value, dtypes.f32)


def _to_integer(mode: str) -> Callable[[Any], Any]:
    """math.floor and similar functions, which return integers."""
    return lambda value: _int(arithmetic.rounded(builder(), value, mode))


def _round(value: Any, digits: Any = None) -> Any:
    if digits is not None:
        raise OperandError("round(x, digits) is not defined for run-time values; round(x) is")
    return _int(arithmetic.rounded(builder(), value, "rni"))


def _sum(items: Any, start: Any = 0) -> Any:
    values = _items("sum", items)
    if values and isinstance(start, int) and start == 0:
        return functools.reduce(operator.add, values)
    return functools.reduce(operator.add, values, start)


def _combined(operator: str, items: Any) -> Any:
    """all(items) by the operator "and", any(items) by "or"."""
    every = _items("all" if operator == "and" else "any", items)
    tests = [arithmetic.truth(builder(), item) for item in every]
    logic = functools.partial(arithmetic.logic, builder(), operator)
    return functools.reduce(logic, tests, operator == "and")


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Array) else len(value)


def _test(property: str) -> Callable[[Any], Any]:
    """math.isnan and similar functions."""

    def test(value: Any) -> Any:
        wide = value if value.dtype.bits >= 32 else builder().convert(value, dtypes.f32)
        return emit(names.test_float(property, wide.dtype), wide)

    return test


def _copysign(value: Any, sign: Any) -> Any:
    value, sign = (_to_float(v) for v in (value, sign))
    return emit(names.copy_sign(value.dtype), sign, value)


def _hypot(*values: Any) -> Any:
    return device_math.sqrt(_sum([v * v for v in values]))


RUNTIME: dict[Any, Callable[..., Any]] = {
    range: RuntimeRange, len: _length, sum: _sum,
    any: functools.partial(_combined, "or"), all: functools.partial(_combined, "and"),
    min: _several(device_math.minimum), max: _several(device_math.maximum),
    int: _int, float: _to_float, bool: lambda value: arithmetic.truth(builder(), value),
    str: printed, repr: printed,
    round: _round, pow: operator.pow, divmod: lambda x, y: (x // y, x % y),
    math.floor: _to_integer("rmi"), math.ceil: _to_integer("rpi"), math.trunc: _to_integer("rzi"),
    math.fabs: lambda value: abs(_to_float(value)), math.copysign: _copysign,
    math.isnan: _test("notanumber"), math.isinf: _test("infinite"), math.isfinite: _test("finite"),
    math.sqrt: device_math.sqrt, math.hypot: _hypot, math.pow: operator.pow,
    math.exp: device_math.exp, math.log: device_math.log, math.log2: device_math.log2,
    math.sin: device_math.sin, math.cos: device_math.cos, math.tanh: device_math.tanh,
    np.minimum: device_math.minimum, np.maximum: device_math.maximum,
    np.sqrt: device_math.sqrt, np.exp: device_math.exp, np.abs: operator.abs,
}  # fmt: skip
if hasattr(math, "exp2"):  # Python 3.11
    RUNTIME[math.exp2] = device_math.exp2


_TEXTS = (str, repr, ascii, format)


def _refuse_host_functions(function: Any, args: list[Any]) -> None:
    """OperandError for functions of NumPy and `math`, which take no run-time values."""
    module = str(getattr(function, "__module__", None) or "").partition(".")[0]
    name = getattr(function, "__name__", "")
    if function in _TEXTS:
        raise OperandError(
            f"{name}() makes text at compile time, when {describe(_first(args))} has no value yet; "
            'print(f"{x}") prints one'
        )
    if isinstance(function, type) and issubclass(function, np.generic):
        raise OperandError(
            f"{name} takes values known at compile time; x.to({dtypes.from_numpy(function)}) "
            "converts run-time values"
        )
    if module == "math" or isinstance(function, np.ufunc) or module == "numpy":
        module = "math" if module == "math" else "np"
        same = name if module == "np" and hasattr(device_math, name) else ""
        of_math = [f.__name__ for f in RUNTIME if getattr(f, "__module__", "") == "math"]
        instead = f"of math, kernels have {listing(sorted(of_math))}"
        if module == "np":
            instead = "kernels compute element by element, with operators, tc.exp and the like"
        if same:
            instead = f"use math.{same}" if same == "log" else f"use tc.{same}"
        raise OperandError(
            f"{module}.{name} computes at compile time, when {describe(_first(args))} has no value "
            f"yet; {instead}"
        )


def _first(args: list[Any]) -> Any:
    return next(arg for arg in args if has_runtime(arg))


def replacement(function: Any, args: list[Any]) -> Any:
    """The replacement of a Python function for these arguments; None if Python may call it."""
    if function is print:
        return printf
    if function is builtins.breakpoint:
        return breakpoint
    if isinstance(getattr(function, "__self__", None), str) and has_runtime(args):
        raise OperandError(f"str.{function.__name__} takes no run-time values; use an f-string")
    try:
        replaced = RUNTIME.get(function)
    except TypeError:  # not hashable
        return None
    if not has_runtime(args):
        return None
    if replaced is None:
        _refuse_host_functions(function, args)
        return None
    if function in (len, sum, any, all) and len(args) >= 1 and isinstance(args[0], Scalar):
        raise OperandError(f"{function.__name__}() takes several values, not {describe(args[0])}")
    if function is len and not isinstance(args[0], Array):
        return None
    if function is range and not any(isinstance(a, RuntimeValue) for a in args):
        return None
    return replaced
