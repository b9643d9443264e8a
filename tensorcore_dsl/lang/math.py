"""Mathematical functions: fma, minimum, select, exp, sqrt, erf and the approximate functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce, wraps
from typing import Any, SupportsFloat

from tensorcore_dsl import dtypes, isa
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, is_number
from tensorcore_dsl.values.values import RegisterGroup, Scalar


def fma(a: SupportsFloat, b: SupportsFloat, c: SupportsFloat, rounding: str = "rn") -> Any:
    """a * b + c: floats are rounded once, integers give the low half of the product plus c.

    Parameters
    ----------
    a, b, c : number, scalar or fragment
        Numbers, run-time scalars, or fragments of one layout, element by element. The result has
        their common type.
    rounding : str
        Of floats: "rn" (to nearest, ties to even), "rz" (towards zero), "rm" (down), "rp" (up).

    Returns
    -------
    scalar or fragment
        As wide as the widest operand.

    Raises
    ------
    OperandError
        Operands of types that do not combine, fragments of other layouts.
    UnknownInstruction
        A rounding that the type does not have.

    Notes
    -----
    `fma`, section 9.7.3.6 of the PTX manual (f16, bf16: 9.7.4.4); integers: `mad.lo`, 9.7.1.4.

    Examples
    --------
    >>> @tc.kernel
    ... def axpy(x: tc.Array, y: tc.Array):
    ...     i = tc.threadIdx.x
    ...     y[i] = tc.fma(2.0, x[i], y[i])
    >>> x, y = np.arange(32, dtype=np.float32), np.ones(32, np.float32)
    >>> axpy[1, 32](x, y)
    >>> y[:3]
    array([1., 3., 5.], dtype=float32)
    """
    return arithmetic.fma(builder(), a, b, c, rounding)


def minimum(a: SupportsFloat, b: SupportsFloat, *, nan: bool = False) -> Any:
    """The smaller of two values; if one is NaN, the other one, or NaN with `nan=True`.

    Parameters
    ----------
    a, b : number, scalar or fragment
        Numbers, run-time scalars, or fragments of one layout, element by element.
    nan : bool
        True: NaN if one of them is NaN, as numpy.minimum; False: as numpy.fmin.

    Returns
    -------
    scalar or fragment
        Of the common type of both.

    Raises
    ------
    OperandError
        Operands of types that do not combine, fragments of other layouts.

    See Also
    --------
    maximum : The larger one, with an example.

    Notes
    -----
    `min`, sections 9.7.1.12 (integers) and 9.7.3.11 (floats) of the PTX manual; `min.NaN`, and a
    comparison and a selection for f64 and before sm_80.
    """
    return arithmetic.extreme(builder(), "min", a, b, nan)


def maximum(a: SupportsFloat, b: SupportsFloat, *, nan: bool = False) -> Any:
    """The larger of two values; if one is NaN, the other one, or NaN with `nan=True`.

    Parameters
    ----------
    a, b : number, scalar or fragment
        Numbers, run-time scalars, or fragments of one layout, element by element.
    nan : bool
        True: NaN if one of them is NaN, as numpy.maximum; False: as numpy.fmax.

    Returns
    -------
    scalar or fragment
        Of the common type of both.

    Raises
    ------
    OperandError
        Operands of types that do not combine, fragments of other layouts.

    Notes
    -----
    `max`, sections 9.7.1.13 (integers) and 9.7.3.12 (floats) of the PTX manual; `max.NaN`, and a
    comparison and a selection for f64 and before sm_80.

    Examples
    --------
    >>> @tc.kernel
    ... def relu(x: tc.Array):
    ...     x[tc.threadIdx.x] = tc.maximum(x[tc.threadIdx.x], 0)
    >>> x = np.arange(-16, 16, dtype=np.float32)
    >>> relu[1, 32](x)
    >>> x[14:19]
    array([0., 0., 0., 1., 2.], dtype=float32)
    """
    return arithmetic.extreme(builder(), "max", a, b, nan)


def select(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition` holds, else `no`, without a branch.

    Parameters
    ----------
    condition : bool, predicate or mask
        A comparison of scalars, or the mask that a comparison of fragments gives. What is known
        when compiling chooses then.
    yes, no : number, scalar or fragment
        Both are evaluated. With a mask, fragments that have its layout or broadcast to it.

    Returns
    -------
    scalar or fragment
        Of the common type of `yes` and `no`.

    Raises
    ------
    OperandError
        Values of types that do not combine, a condition that is neither true nor false.

    Notes
    -----
    `selp`, section 9.7.6.3 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def clip(x: tc.Array):
    ...     value = x[tc.threadIdx.x]
    ...     x[tc.threadIdx.x] = tc.select(value > 3, 3, value)
    >>> x = np.arange(32, dtype=np.int32)
    >>> clip[1, 32](x)
    >>> x[:6]
    array([0, 1, 2, 3, 3, 3], dtype=int32)
    """
    return arithmetic.select(builder(), condition, yes, no)


def _of_floats(function: Callable[[Any], Any], widest: int = 64) -> Callable[[SupportsFloat], Any]:
    """The function of f32 and f64 for all numbers; narrower floats are converted and back.

    widest: 32 of functions without a form for f64.
    """

    @wraps(function)
    def converted(value: Any) -> Any:
        if isinstance(value, RegisterGroup):
            return value.map(converted)
        value = _float(value, function.__name__)
        if value.dtype.bits > widest:
            raise OperandError(f"{function.__name__} has no f64 form; convert x.to(tc.f32) first")
        wide = value if value.dtype.bits >= 32 else builder().convert(value, dtypes.f32)
        return builder().convert(function(wide), value.dtype)

    return converted


_of_f32 = partial(_of_floats, widest=32)


_SECTIONS = """{what}, approximately; narrower floats are converted to f32 and back.

Parameters
----------
value : number, scalar or fragment
    Integers and numbers become f32.

Returns
-------
scalar or fragment
    Of the type of `value`, f32 of integers.

Raises
------
OperandError
    f64, or neither a number, a scalar nor a fragment.

Notes
-----
`{instruction}`, section {section} of the PTX manual, which bounds the error.

Examples
--------
>>> @tc.kernel
... def each(x: tc.Array):
...     x[tc.threadIdx.x] = tc.{name}(x[tc.threadIdx.x])
>>> x = np.full(32, {argument}, np.float32)
>>> each[1, 32](x)
>>> bool(np.isclose(x[0], {exact}))
True
"""


def _approximate(name: str, instruction: str, what: str, argument: float, exact: float) -> Any:
    """The function `name`, an instruction of f32; its example has the result `exact` of `argument`."""

    def function(value: Any) -> Any:
        return emit(instruction, builder().convert(value, dtypes.f32))

    function.__name__ = name
    section = isa.instruction(instruction).section
    function.__doc__ = _SECTIONS.format(
        what=what, instruction=instruction, section=section, name=name, argument=argument, exact=exact
    )
    return _of_f32(function)


def exp2(value: SupportsFloat, *, ftz: bool = False) -> Any:
    """2**x, approximately; narrower floats are converted to f32 and back.

    Parameters
    ----------
    value : number, scalar or fragment
        Integers and numbers become f32.
    ftz : bool
        Flush subnormal operands and results to zero. The GPU computes this with one instruction;
        subnormal numbers cost it three more.

    Returns
    -------
    scalar or fragment
        Of the type of `value`, f32 of integers.

    Raises
    ------
    OperandError
        f64, or neither a number, a scalar nor a fragment.

    Notes
    -----
    `ex2.approx`, section 9.7.3.21 of the PTX manual, which bounds the error.

    Examples
    --------
    >>> @tc.kernel
    ... def each(x: tc.Array):
    ...     i = tc.threadIdx.x
    ...     x[i] = tc.exp2(x[i], ftz=True)
    >>> x = np.full(32, -140, np.float32)
    >>> x[0] = 3
    >>> each[1, 32](x)
    >>> x[:2]
    array([8., 0.], dtype=float32)
    """
    return _flushed_exp2(value) if ftz else _exp2(value)


_exp2 = _approximate("exp2", names.EXP2, "2**x", 3, 8.0)
_flushed_exp2 = _approximate("exp2", names.EXP2_FTZ, "2**x", 3, 8.0)
log2: Callable[[SupportsFloat], Any] = _approximate("log2", names.LOG2, "The logarithm to base 2", 8, 3.0)
rcp: Callable[[SupportsFloat], Any] = _approximate("rcp", names.RECIPROCAL, "1 / x", 4, 0.25)
rsqrt: Callable[[SupportsFloat], Any] = _approximate("rsqrt", names.RECIPROCAL_SQRT, "1 / sqrt(x)", 4, 0.5)
sin: Callable[[SupportsFloat], Any] = _approximate("sin", names.SIN, "The sine of radians", 0, 0.0)
cos: Callable[[SupportsFloat], Any] = _approximate("cos", names.COS, "The cosine of radians", 0, 1.0)
tanh: Callable[[SupportsFloat], Any] = _approximate("tanh", names.TANH, "The hyperbolic tangent", 0, 0.0)


@_of_floats
def sqrt(value: Any) -> Any:
    """Square root, rounded to nearest.

    Parameters
    ----------
    value : number, scalar or fragment
        Integers and numbers become f32; f16 and bf16 are computed in f32.

    Returns
    -------
    scalar or fragment
        Of the type of `value`, f32 of integers; NaN of negative values.

    Raises
    ------
    OperandError
        Neither a number, a scalar nor a fragment.

    Notes
    -----
    `sqrt.rn`, section 9.7.3.15 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def roots(x: tc.Array):
    ...     x[tc.threadIdx.x] = tc.sqrt(x[tc.threadIdx.x])
    >>> x = np.arange(32, dtype=np.float32)
    >>> roots[1, 32](x)
    >>> float(x[16])
    4.0
    """
    return emit(names.square_root(value.dtype), value)


@_of_f32
def exp(value: Any) -> Any:
    """e**x as exp2(x * log2(e)); narrower floats are converted to f32 and back.

    Parameters
    ----------
    value : number, scalar or fragment
        Integers and numbers become f32.

    Returns
    -------
    scalar or fragment
        Of the type of `value`, f32 of integers.

    Raises
    ------
    OperandError
        f64, or neither a number, a scalar nor a fragment.

    See Also
    --------
    exp2 : The instruction, which is all that a softmax needs.

    Notes
    -----
    The product with log2(e) is rounded in f32, then `ex2.approx` (section 9.7.3.21 of the PTX
    manual) approximates; the relative error grows with the magnitude of x.

    Examples
    --------
    >>> @tc.kernel
    ... def exponentials(x: tc.Array):
    ...     x[tc.threadIdx.x] = tc.exp(x[tc.threadIdx.x])
    >>> x = np.zeros(32, np.float32)
    >>> exponentials[1, 32](x)
    >>> float(x[0])
    1.0
    """
    return exp2(value * math.log2(math.e))


@_of_f32
def log(value: Any) -> Any:
    """The natural logarithm as log2(x) * ln(2); narrower floats are converted to f32 and back.

    Parameters
    ----------
    value : number, scalar or fragment
        Integers and numbers become f32.

    Returns
    -------
    scalar or fragment
        Of the type of `value`, f32 of integers; NaN of negative values.

    Raises
    ------
    OperandError
        f64, or neither a number, a scalar nor a fragment.

    Notes
    -----
    `lg2.approx`, section 9.7.3.20 of the PTX manual, and a product that is rounded in f32.

    Examples
    --------
    >>> @tc.kernel
    ... def logarithms(x: tc.Array):
    ...     x[tc.threadIdx.x] = tc.log(x[tc.threadIdx.x])
    >>> x = np.full(32, 8, np.float32)
    >>> logarithms[1, 32](x)
    >>> bool(np.isclose(x[0], np.log(8)))
    True
    """
    return log2(value) * math.log(2)


# Polynomials, the highest power first: of x**2, (erf(x) / x - 1) for |x| <= 1; and of x,
# log2(1 - erf(x)) for 1 <= x <= 4. Both have the least greatest error in units of erf's last place.
_ERF_NEAR = (
    7.85388402e-5,
    -8.01020128e-4,
    5.18832868e-3,
    -2.68538129e-2,
    0.112835854,
    -0.37612626,
    0.128379166,
)
_ERF_FAR = (
    2.6888834e-4,
    -4.25257208e-3,
    3.15056667e-2,
    -0.148751602,
    -0.920648396,
    -1.62604594,
    -4.92713589e-4,
)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    return reduce(lambda value, coefficient: fma(value, x, coefficient), coefficients)


@_of_f32
def erf(value: Any) -> Any:
    """The error function; narrower floats are converted to f32 and back.

    Parameters
    ----------
    value : number, scalar or fragment
        Integers and numbers become f32.

    Returns
    -------
    scalar or fragment
        Of the type of `value`, f32 of integers.

    Raises
    ------
    OperandError
        f64, or neither a number, a scalar nor a fragment.

    Notes
    -----
    Two polynomials, and `ex2.approx` (section 9.7.3.21 of the PTX manual) for values beyond 1. The
    greatest error of 4,194,304 random f32 of all binades up to 16, compared with `math.erf` in
    emulation, is 1.23 ulp.

    Examples
    --------
    >>> @tc.kernel
    ... def gelu(x: tc.Array):
    ...     value = x[tc.threadIdx.x]
    ...     x[tc.threadIdx.x] = value / 2 * (1 + tc.erf(value * 2**-0.5))
    >>> x = np.array([-1, 0, 1, 2], np.float32)
    >>> gelu[1, 4](x)
    >>> x.round(4)
    array([-0.1587,  0.    ,  0.8413,  1.9545], dtype=float32)
    """
    size = abs(value)
    near = fma(value, _polynomial(value * value, _ERF_NEAR), value)
    complement = exp2(_polynomial(minimum(size, 4), _ERF_FAR))  # 1 - complement is 1 from x = 4 on
    return select(size > 1, emit(names.copy_sign(dtypes.f32), value, 1 - complement), near)


def _float(value: Any, what: str) -> Scalar:
    """The value as a float in a register: integers and numbers become f32."""
    if not isinstance(value, Scalar) and not is_number(value):
        each = f"; [tc.{what}(x) for x in values]" if isinstance(value, (list, tuple)) else ""
        raise OperandError(f"{what} takes numbers and fragments, not {describe(value)}{each}")
    if not isinstance(value, Scalar):
        return builder().literal(value, dtypes.f32)
    return value if value.dtype.is_float else builder().convert(value, dtypes.f32)  # type: ignore[no-any-return]
