"""Ranges whose bounds are known only at run time."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend.values import Runtime, Scalar


class RuntimeRange:
    """`tc.range(...)`, or `range(...)` of run-time bounds: a loop of the kernel itself."""

    def __init__(self, *bounds: Any) -> None:
        if not 1 <= len(bounds) <= 3:
            raise OperandError(f"range takes 1 to 3 bounds, {len(bounds)} were given")
        for bound in bounds:
            integer = isinstance(bound, int) or (isinstance(bound, Scalar) and bound.dtype.is_integer)
            if not integer:
                raise OperandError(f"the bounds of a range are integers, not {bound!r}")
        self.start, self.stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
        self.step = bounds[2] if len(bounds) == 3 else 1
        if not isinstance(self.step, Runtime) and self.step == 0:
            raise OperandError("the step of a range must not be zero")


static_range = range
