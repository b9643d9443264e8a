"""Which operands need copies, as the kernels cannot read them as they lie, and what these cost.

TMA, by which the wgmma kernels load operands, reads rows or columns that ascend from multiples of
16 bytes, and types of 8 bits have to have K contiguous. mma.sync reads all rows or columns that
ascend. `copies.py` makes the copies.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, target_arch
from tensorcore_dsl.kernels.host.arrays import restrided
from tensorcore_dsl.kernels.host.families import has_negative_stride, has_wgmma, stores_without_tma
from tensorcore_dsl.kernels.host.operands import FAST, GemmProblem

ROWS, COLUMNS = -1, -2  # the axis that is contiguous
VECTOR = 16  # bytes, at whose multiples TMA reads
LINE = 128  # bytes of a line of the L2 cache, at which the rows of a copy start
PLACES = {"a": 0, "b": 1, "c": 2, "d": 3}  # of the arguments of gemm's kernels
KERNELS = "tensorcore_dsl"  # the package, whose own frames no warning is about


@dataclass(frozen=True)
class Copy:
    """A copy of the argument `place` of a kernel, of which `axis` is contiguous, ROWS or COLUMNS.

    is_result: it receives the result, and is copied to the argument behind the product. why: what
    the kernels cannot take, and what they can. dtype: of its elements; None: the argument's.
    """

    place: int
    axis: int
    why: str
    is_result: bool = False
    dtype: Any = None

    def converted(self, x: Description) -> Description:
        """The argument with elements of the copy's type."""
        return x._replace(type=replace(x.type, dtype=self.dtype)) if self.dtype else x


def with_line_stride(x: Any, description: Description, axis: int) -> Any:
    """A single row or column whose axes both have stride 1, with a larger stride for its axis of
    one element: no access uses it, but kernels take an axis of stride 1 for the contiguous one.

    axis: which one (-1 or -2) to call contiguous where both could be. Others are returned as such.
    """
    if 0 in description.shape or not all(description.type.unit[-2:]):
        return x
    single = -3 - axis
    if description.shape[single] != 1:
        axis, single = single, axis
    if description.shape[single] != 1:
        return x
    strides = list(description.strides)
    strides[single] = -(-description.shape[axis] // VECTOR) * VECTOR
    return restrided(x, tuple(strides))


def with_line_strides(a: Any, b: Any, in_a: Description, in_b: Description) -> tuple[Any, Any]:
    """A and B as the kernels of `gemm` get them: of each, K is the axis to call contiguous."""
    return with_line_stride(a, in_a, ROWS), with_line_stride(b, in_b, COLUMNS)


# -- what is needed -----------------------------------------------------------------------------


def gemm_copies(problem: GemmProblem, family: str, k_major: Collection[int] = ()) -> tuple[Copy, ...]:
    """The copies without which the kernels of a family cannot run a problem of `gemm`.

    k_major: places of operands that are to have K contiguous in any case.
    """
    if family == "sm80" or problem.multiplied_as == tc.f32:  # whose parts are laid out by a kernel
        found = [strided_copy(0, "a", problem.a), strided_copy(1, "b", problem.b)]
    else:
        found = [
            operand_copy(place, name, getattr(problem, name), axis, place in k_major or None)
            for place, name, axis in ((0, "a", ROWS), (1, "b", COLUMNS))
        ]
    if family == "sm90":
        found.append(result_copy(PLACES["d"], problem.d))
    return tuple(copy for copy in found if copy)


def strided_copy(place: int, name: str, x: Description) -> Copy | None:
    """The copy of an operand that has neither contiguous rows nor columns, or reversed ones."""
    by_columns, by_rows = x.type.unit[-2:]
    if (by_columns or by_rows) and not has_negative_stride(x):
        return None
    return Copy(
        place,
        COLUMNS if by_columns and not by_rows else ROWS,
        f"neither rows nor columns of {name} are contiguous in ascending order; one of them has to be",
    )


def operand_copy(
    place: int, name: str, x: Description, k_axis: int, k_only: bool | None = None, called: str = "K"
) -> Copy | None:
    """The copy of an operand for TMA and wgmma.

    k_axis: the axis of K. k_only: K is to be contiguous; default: of types of 8 bits, and of single
    rows or columns. wgmma takes types of 16 bits as they are, and tf32_gemm transposes its tiles.
    called: the name of that axis, where it is not K that is to be contiguous.
    """
    dtype, unit = x.type.dtype, x.type.unit[-2:]
    k_only = dtype.bits == 8 or 1 in x.shape[-2:] if k_only is None else k_only
    axis = k_axis if k_only or unit[k_axis] or not any(unit) else ROWS + COLUMNS - k_axis
    elements = VECTOR // dtype.itemsize
    lines = "rows" if axis == ROWS else "columns"
    at_multiples = f"{lines} that start at multiples of 16 bytes ({elements} elements)"
    strided = strided_copy(place, name, x)
    if strided:
        return Copy(place, axis, f"{strided.why}, by {at_multiples}")
    if not unit[axis]:
        other = "columns" if axis == ROWS else "rows"
        return Copy(
            place,
            axis,
            f"{name} has contiguous {other}, and the kernels take {dtype} with {called} "
            f"contiguous: {at_multiples}",
        )
    if x.type.align < VECTOR or all(unit):
        return Copy(place, axis, f"the kernels take {name} with {at_multiples}")
    return None


def result_copy(place: int, d: Description, by_tma: bool = False) -> Copy | None:
    """The array for a result that the wgmma kernels cannot store where it goes.

    by_tma: they store it by TMA alone.
    """
    unit, why = d.type.unit[-2:], ""
    if not unit[-1]:
        why = "rows of the result are not contiguous, as the kernels store them"
    elif by_tma and stores_without_tma(d):
        elements = VECTOR // d.type.dtype.itemsize
        why = (
            f"the kernel stores rows of the result that start and end at multiples of 16 bytes "
            f"({elements} elements)"
        )
    return Copy(place, ROWS, why, is_result=True) if why else None


def conversions(problem: GemmProblem) -> tuple[Copy, ...]:
    """The copies of fp8 operands in f16: A and B where the target has no kernels of fp8, and C
    where it has no instructions that convert fp8."""
    where, found = target_arch(), []
    product, adds = has_wgmma(), where.number >= 89 or not problem.reads_c
    for name, takes, axis in (("a", product, ROWS), ("b", product, COLUMNS), ("c", adds, ROWS)):
        x = getattr(problem, name)
        if not takes and x.type.dtype.is_float and x.type.dtype.bits == 8:
            as_it_lies = x.type.unit[axis] or not any(x.type.unit[-2:])
            why = f"{where} has no kernels of fp8, so {name} is converted to f16, which is exact"
            axis = axis if as_it_lies else ROWS + COLUMNS - axis
            found.append(Copy(PLACES[name], axis, why, dtype=tc.f16))
    return tuple(found)


def converted(problem: GemmProblem) -> GemmProblem:
    """The problem whose operands have types of which the target has kernels."""
    accumulate = None if problem.accumulate == FAST and not has_wgmma() else problem.accumulate
    return replace(with_copies(problem, conversions(problem)), accumulate=accumulate)


# -- what it gives, and costs -------------------------------------------------------------------


def with_copies(problem: GemmProblem, copies: tuple[Copy, ...]) -> GemmProblem:
    """The problem that the kernels get."""
    given: dict[str, Any] = {name: getattr(problem, name) for name in PLACES}
    for name, x in given.items():
        given[name] = x and seen(x, PLACES[name], copies)
    return replace(problem, **given)


def seen(x: Description, place: int, copies: tuple[Copy, ...]) -> Description:
    """The argument `place` as a kernel gets it: `x`, or its copy."""
    copy = next((copy for copy in copies if copy.place == place), None)
    if copy is None:
        return x
    x = copy.converted(x)
    *batch, lines, pitch = padded_shape(x, copy.axis)
    steps = (pitch, 1) if copy.axis == ROWS else (1, pitch)
    strides = (lines * pitch, *steps) if batch else steps
    unit = tuple(stride == 1 for stride in strides)
    kind = replace(x.type, align=VECTOR, unit=unit, writable=True)
    return x._replace(type=kind, strides=strides)


def padded_shape(x: Description, axis: int) -> tuple[int, ...]:
    """Matrices, lines and elements of a line of a copy: lines start at those of the L2 cache."""
    *batch, rows, cols = x.shape
    lines, width = (rows, cols) if axis == ROWS else (cols, rows)
    per_line = LINE // x.type.dtype.itemsize
    return (*batch, lines, -(-width // per_line) * per_line)


def copied_bytes(problem: GemmProblem, copies: Iterable[Copy]) -> int:
    """Bytes that the copies of a problem's operands and result read and write."""
    by_place = {PLACES[name]: getattr(problem, name) for name in PLACES}
    operands = [by_place[copy.place] for copy in copies]
    return sum(2 * math.prod(x.shape) * x.type.dtype.itemsize for x in operands)


def announced(copies: Iterable[Copy | None]) -> tuple[Copy, ...]:
    """Those that are needed, of which the user is told.

    A PerformanceWarning at the user's line, which Python's usual filter shows once, says which
    copies each call makes, and which layout needs none.
    """
    found = tuple(copy for copy in copies if copy)
    for copy in found:
        what = "its result" if copy.is_result else "an operand"
        message = f"each product copies {what}: {copy.why}"
        warnings.warn(message, tc.PerformanceWarning, stacklevel=_users_level())
    return found


def _users_level() -> int:
    """How many frames above `announced` the code lies that called this package, or an operator."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _is_between(module: str) -> bool:
    """Is the module of this package, or of PyTorch, which calls its operators?"""
    return module.partition(".")[0] in (KERNELS, "torch")
