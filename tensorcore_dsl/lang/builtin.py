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
from tensorcore_dsl.values.elementwise import GROUPS, on_groups
from tensorcore_dsl.values.operands import describe, is_number, is_simple
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
        elements = "list(x)" if isinstance(values, Mask) else "x.elements()"
        whole = f"tc.row_{name}(x) or tc.reduce_rows(x, f) reduces each row"
        if isinstance(values, Mask) or name in ("any", "all"):
            whole = f'tc.vote("{name}", {name}({elements})) asks the whole warp'
            if name == "sum":
                whole = "tc.row_sum(tc.select(x, 1, 0)) counts in each row"
        elif 1 in (group.layout.rows, group.layout.cols):
            whole = "shuffles, tc.shfl_xor, combine values of a warp"
        raise OperandError(
            f"{name}() of {values.described} would reduce only what this thread holds: {whole}; "
            f"{name}({elements}) is about this thread's own"
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


def _of_floats(name: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function `name` of math, of arguments as floats, f64 if one is; of groups by element."""

    def applied(*values: Any) -> Any:
        for value in values:
            if not isinstance(value, GROUPS) and not is_simple(value):
                raise OperandError(f"math.{name.__name__} takes numbers, not {describe(value)}")
        if any(isinstance(value, GROUPS) for value in values):
            return on_groups(builder(), applied, name.__name__, values)
        dtype = dtypes.f32
        if any(isinstance(value, Scalar) and value.dtype == dtypes.f64 for value in values):
            dtype = dtypes.f64
        return function(*[builder().convert(value, dtype) for value in values])

    return applied


def _test(property: str) -> Callable[[Any], Any]:
    """math.isnan and similar functions."""
    return lambda value: emit(names.test_float(property, value.dtype), value)


def _copysign(value: Any, sign: Any) -> Any:
    return emit(names.copy_sign(value.dtype), sign, value)


def _hypot(*values: Any) -> Any:
    """The root of the sum of squares, each of the value divided by a power of two.

    The power is that of the greatest value, so that no square overflows, and none that counts
    underflows; it is clamped such that it and its reciprocal are normal numbers.
    """
    sizes = [abs(value) for value in values]
    greatest = functools.reduce(device_math.maximum, sizes)
    whole, fraction, most = _FORMATS[greatest.dtype]
    bits = greatest.bits(whole) >> fraction
    exponent = device_math.minimum(device_math.maximum(most - bits, 1), most - 1)
    down = (exponent << fraction).bits(greatest.dtype)
    up = ((most - exponent) << fraction).bits(greatest.dtype)
    scaled = [size * down for size in sizes]
    root = device_math.sqrt(_sum([size * size for size in scaled])) * up
    return device_math.select(greatest == math.inf, math.inf, root)


# The integer type of a float's bits, its bits of fraction, and twice its exponent's bias.
_FORMATS = {dtypes.f32: (dtypes.s32, 23, 254), dtypes.f64: (dtypes.s64, 52, 2046)}


def _power(base: Any, exponent: Any) -> Any:
    """math.pow: products of floats, where pow and ** keep integers."""
    known = not has_runtime(exponent) and is_number(exponent)
    if not known or exponent not in range(1, 17):
        raise OperandError(
            "math.pow takes a whole exponent from 1 to 16 that is known at compile time, not "
            f"{describe(exponent)}; of x > 0, tc.exp2(y * tc.log2(x)) approximates any power"
        )
    return functools.reduce(operator.mul, [_to_float(base)] * int(exponent))


RUNTIME: dict[Any, Callable[..., Any]] = {
    range: RuntimeRange, len: _length, sum: _sum,
    any: functools.partial(_combined, "or"), all: functools.partial(_combined, "and"),
    min: _several(device_math.minimum), max: _several(device_math.maximum),
    int: _int, float: _to_float, bool: lambda value: arithmetic.truth(builder(), value),
    str: printed, repr: printed,
    round: _round, pow: operator.pow, divmod: lambda x, y: (x // y, x % y),
    math.floor: _to_integer("rmi"), math.ceil: _to_integer("rpi"), math.trunc: _to_integer("rzi"),
    math.fabs: lambda value: abs(_to_float(value)), math.pow: _power,
    math.copysign: _of_floats(math.copysign, _copysign),
    math.hypot: _of_floats(math.hypot, _hypot), math.sqrt: device_math.sqrt,
    math.isnan: _of_floats(math.isnan, _test("notanumber")),
    math.isinf: _of_floats(math.isinf, _test("infinite")),
    math.isfinite: _of_floats(math.isfinite, _test("finite")),
    math.exp: device_math.exp, math.log: device_math.log, math.log2: device_math.log2,
    math.erf: device_math.erf,
    math.sin: device_math.sin, math.cos: device_math.cos, math.tanh: device_math.tanh,
    np.minimum: functools.partial(device_math.minimum, nan=True),
    np.maximum: functools.partial(device_math.maximum, nan=True),
    np.fmin: device_math.minimum, np.fmax: device_math.maximum,
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
            f"{name} takes values known at compile time; x.to(tc.{dtypes.from_numpy(function)}) "
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
