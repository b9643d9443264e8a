"""Ranges: loops of the kernel with run-time bounds, and loops unrolled at compile time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any, SupportsIndex

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError, public
from tensorcore_dsl.ir.nodes import Const, Value
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import constant, describe
from tensorcore_dsl.values.promotion import promote_types
from tensorcore_dsl.values.values import Scalar
from tensorcore_dsl.values.variables import new_variable


class RuntimeRange:
    """`tc.range(...)`, or `range(...)` of run-time bounds: a loop that the kernel runs.

    Parameters
    ----------
    *given : integer
        Stop; or start and stop; or start, stop and step. Run-time integers too.

    Raises
    ------
    OperandError
        Bounds that are no integers, a step of zero, counting down in an unsigned type.

    Examples
    --------
    >>> @tc.kernel
    ... def total(x: tc.Array, out: tc.Array):
    ...     value = 0.0
    ...     for i in tc.range(x.shape[0]):
    ...         value += x[i]
    ...     out[0] = value
    >>> out = np.zeros(1, np.float32)
    >>> total[1, 1](np.ones(10, np.float32), out)
    >>> float(out[0])
    10.0
    """

    def __init__(self, *arguments: SupportsIndex) -> None:
        bounds: tuple[Any, ...] = arguments
        if not 1 <= len(bounds) <= 3:
            raise OperandError(f"range takes 1 to 3 bounds, {len(bounds)} were given")
        for bound in bounds:
            number = isinstance(bound, int) and not isinstance(bound, bool)
            if not (number or (isinstance(bound, Scalar) and bound.dtype.is_integer)):
                raise OperandError(f"the bounds of a range are integers, not {describe(bound)}")
        self.start, self.stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
        self.step = bounds[2] if len(bounds) == 3 else 1
        if isinstance(self.step, int) and self.step == 0:
            raise OperandError("the step of a range must not be zero")
        down = isinstance(self.step, int) and self.step < 0
        if down and not self.dtype.is_signed:
            raise OperandError(
                f"a range over {self.dtype} cannot count down: convert its bounds to a signed type"
            )

    @property
    def dtype(self) -> DType:
        """The type of the index: s32 unless a bound is wider or unsigned."""
        bounds = (self.start, self.stop, self.step)
        types = [b.dtype for b in bounds if isinstance(b, Scalar)]
        return reduce(promote_types, types, types[0] if types else dtypes.s32)

    def bounds(self) -> tuple[Value | Const, Value | Const, Value | Const]:
        """start, stop and step as sources of the IR's loop."""

        def source(bound: Any) -> Value | Const:
            if not isinstance(bound, Scalar):
                return constant(bound, self.dtype)
            value: Value = builder().convert(bound, self.dtype).value
            if value.type.dtype == self.dtype:
                return value
            return new_variable(builder(), Scalar(value, self.dtype)).value  # type: ignore[no-any-return]

        return source(self.start), source(self.stop), source(self.step)

    def holds(self, value: Any) -> Any:
        """`value in range(...)`, a predicate, for ranges of step 1."""
        if not isinstance(self.step, int) or self.step != 1:
            raise OperandError("`in` a run-time range needs a step of 1")
        return (value >= self.start) & (value < self.stop)

    @public
    def __iter__(self) -> Iterator[Any]:
        raise OperandError(
            "a run-time range can only be looped over with `for`: a comprehension, an unrolled "
            "loop or a function of Python needs a range known at compile time"
        )

    __len__ = __getitem__ = __iter__  # type: ignore[assignment]


def static_range(*bounds: SupportsIndex) -> range:
    """A range known at compile time, over which `for` is unrolled.

    Parameters
    ----------
    *bounds : int
        Stop; or start and stop; or start, stop and step, all known at compile time.

    Returns
    -------
    range
        Python's.

    Raises
    ------
    OperandError
        Run-time bounds, which `range` takes, or another number of them.

    Examples
    --------
    >>> @tc.kernel
    ... def powers(x: tc.Array):
    ...     value = x[tc.threadIdx.x]
    ...     for _ in tc.static_range(3):
    ...         value *= value
    ...     x[tc.threadIdx.x] = value
    >>> x = np.full(32, 2, np.float32)
    >>> powers[1, 32](x)
    >>> float(x[0])
    256.0
    """
    if not 1 <= len(bounds) <= 3:
        raise OperandError(f"static_range takes 1 to 3 bounds, {len(bounds)} were given")
    for bound in bounds:
        if not isinstance(bound, int):
            raise OperandError(
                f"static_range is unrolled, so its bounds are integers known at compile time, not "
                f"{describe(bound)}; tc.range makes a run-time loop"
            )
    return range(*bounds)
