"""Find operands that need copies because of their layout or alignment, and the bytes of the copies.

The wgmma kernels load operands by TMA, which reads rows or columns at ascending multiples of 16
bytes. Types of 8 bits must be K-major. The mma.sync kernels read rows or columns at any ascending
addresses. `copies.py` makes the copies.
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
from tensorcore_dsl.kernels.problem.families import has_negative_stride, has_wgmma, stores_without_tma
from tensorcore_dsl.kernels.problem.gemm_problem import FAST, GemmProblem
from tensorcore_dsl.kernels.sizes import cdiv

ROWS, COLUMNS = -1, -2  # the axis that is contiguous
VECTOR_BYTES = 16  # TMA reads rows that start at multiples of it.
LINE_BYTES = 128  # A line of the L2 cache. Rows of a copy start at multiples of it.
ARGUMENTS = {"a": 0, "b": 1, "c": 2, "d": 3}  # positions of the arguments of gemm's kernels
KERNELS = "tensorcore_dsl"  # the package; warnings point outside of its frames


@dataclass(frozen=True)
class Copy:
    """A copy of an argument of a kernel.

    Attributes
    ----------
    argument : int
        Position of the argument.
    axis : int
        The contiguous axis of the copy, ROWS or COLUMNS.
    why : str
        The layout that the kernels cannot take, and the one that they take.
    is_result : bool
        The copy receives the result, and is copied to the argument after the product.
    dtype : DType or None
        Element type of the copy. None: that of the argument.
    """

    argument: int
    axis: int
    why: str
    is_result: bool = False
    dtype: tc.DType | None = None

    def converted(self, x: Description) -> Description:
        """Describe the argument with elements of the copy's type."""
        return x._replace(type=replace(x.type, dtype=self.dtype)) if self.dtype else x


# -- necessary copies -----------------------------------------------------------------------------


def gemm_copies(problem: GemmProblem, family: str, k_major: Collection[int] = ()) -> tuple[Copy, ...]:
    """List the copies that the kernels of a family need for a problem of `gemm`.

    k_major: positions of operands that must be K-major.
    """
    if family == "sm80" or problem.multiplied_as == tc.f32:  # another kernel lays out the f32 parts
        needed = [strided_copy(0, "a", problem.a), strided_copy(1, "b", problem.b)]
    else:
        needed = [
            operand_copy(argument, name, getattr(problem, name), axis, argument in k_major or None)
            for argument, name, axis in ((0, "a", ROWS), (1, "b", COLUMNS))
        ]
    if family == "sm90":
        needed.append(result_copy(ARGUMENTS["d"], problem.d))
    return tuple(copy for copy in needed if copy)


def strided_copy(argument: int, name: str, x: Description) -> Copy | None:
    """Copy of an operand without contiguous rows or columns, or with reversed ones; else None."""
    by_columns, by_rows = x.type.unit[-2:]
    if (by_columns or by_rows) and not has_negative_stride(x):
        return None
    return Copy(
        argument,
        COLUMNS if by_columns and not by_rows else ROWS,
        f"neither rows nor columns of {name} are contiguous in ascending order; one of them has to be",
    )


def operand_copy(
    argument: int, name: str, x: Description, k_axis: int, k_only: bool | None = None, called: str = "K"
) -> Copy | None:
    """Copy of an operand that TMA or wgmma cannot read; else None.

    k_axis: the axis of K. k_only: the operand must be K-major. By default 8-bit types and single
    rows or columns must; wgmma reads MN-major 16-bit types, and tf32_gemm transposes tiles. called:
    name of the axis in messages.
    """
    dtype, unit = x.type.dtype, x.type.unit[-2:]
    k_only = dtype.bits == 8 or 1 in x.shape[-2:] if k_only is None else k_only
    axis = k_axis if k_only or unit[k_axis] or not any(unit) else ROWS + COLUMNS - k_axis
    elements = VECTOR_BYTES // dtype.itemsize
    lines = "rows" if axis == ROWS else "columns"
    at_multiples = f"{lines} that start at multiples of 16 bytes ({elements} elements)"
    strided = strided_copy(argument, name, x)
    if strided:
        return Copy(argument, axis, f"{strided.why}, by {at_multiples}")
    if not unit[axis]:
        contiguous = "columns" if axis == ROWS else "rows"
        return Copy(
            argument,
            axis,
            f"{name} has contiguous {contiguous}, and the kernels take {dtype} with {called} "
            f"contiguous: {at_multiples}",
        )
    if x.type.align < VECTOR_BYTES or all(unit):
        return Copy(argument, axis, f"the kernels take {name} with {at_multiples}")
    return None


def result_copy(argument: int, d: Description, by_tma: bool = False) -> Copy | None:
    """Array for a result that the wgmma kernels cannot store to its destination; else None.

    by_tma: the kernel stores by TMA only.
    """
    unit, why = d.type.unit[-2:], ""
    if not unit[-1]:
        why = "rows of the result are not contiguous, as the kernels store them"
    elif by_tma and stores_without_tma(d):
        elements = VECTOR_BYTES // d.type.dtype.itemsize
        why = (
            f"the kernel stores rows of the result that start and end at multiples of 16 bytes "
            f"({elements} elements)"
        )
    return Copy(argument, ROWS, why, is_result=True) if why else None


def conversions(problem: GemmProblem) -> tuple[Copy, ...]:
    """List the f16 copies of fp8 operands.

    A and B have copies on targets without fp8 kernels, and C on targets that cannot convert fp8.
    """
    where, copies = target_arch(), []
    product, adds = has_wgmma(), where.number >= 89 or not problem.reads_c
    for name, takes, axis in (("a", product, ROWS), ("b", product, COLUMNS), ("c", adds, ROWS)):
        x = getattr(problem, name)
        if not takes and x.type.dtype.is_float and x.type.dtype.bits == 8:
            as_it_lies = x.type.unit[axis] or not any(x.type.unit[-2:])
            why = f"{where} has no kernels of fp8, so {name} is converted to f16, which is exact"
            axis = axis if as_it_lies else ROWS + COLUMNS - axis
            copies.append(Copy(ARGUMENTS[name], axis, why, dtype=tc.f16))
    return tuple(copies)


def convert_operands(problem: GemmProblem) -> GemmProblem:
    """Replace operands of types without kernels on the target by their copies."""
    accumulate = None if problem.accumulate == FAST and not has_wgmma() else problem.accumulate
    return replace(with_copies(problem, conversions(problem)), accumulate=accumulate)


# -- copies as arguments, and their bytes -------------------------------------------------------------------


def with_copies(problem: GemmProblem, copies: tuple[Copy, ...]) -> GemmProblem:
    """Replace the arguments of a problem by their copies."""
    arguments: dict[str, Any] = {name: getattr(problem, name) for name in ARGUMENTS}
    for name, x in arguments.items():
        arguments[name] = x and kernel_argument(x, ARGUMENTS[name], copies)
    return replace(problem, **arguments)


def kernel_argument(x: Description, argument: int, copies: tuple[Copy, ...]) -> Description:
    """Describe the argument `argument` of a kernel: `x`, or its copy."""
    copy = next((copy for copy in copies if copy.argument == argument), None)
    if copy is None:
        return x
    x = copy.converted(x)
    *batch, lines, pitch = padded_shape(x, copy.axis)
    steps = (pitch, 1) if copy.axis == ROWS else (1, pitch)
    strides = (lines * pitch, *steps) if batch else steps
    unit = tuple(stride == 1 for stride in strides)
    kind = replace(x.type, align=VECTOR_BYTES, unit=unit, writable=True)
    return x._replace(type=kind, strides=strides)


def padded_shape(x: Description, axis: int) -> tuple[int, ...]:
    """Shape of a copy: matrices, lines, elements of a line padded to lines of the L2 cache."""
    *batch, rows, cols = x.shape
    lines, width = (rows, cols) if axis == ROWS else (cols, rows)
    per_line = LINE_BYTES // x.type.dtype.itemsize
    return (*batch, lines, cdiv(width, per_line) * per_line)


def copied_bytes(problem: GemmProblem, copies: Iterable[Copy]) -> int:
    """Bytes that the copies of a problem's operands and result read and write."""
    by_argument = {ARGUMENTS[name]: getattr(problem, name) for name in ARGUMENTS}
    operands = [by_argument[copy.argument] for copy in copies]
    return sum(2 * math.prod(x.shape) * x.type.dtype.itemsize for x in operands)


def warn_of_copies(copies: Iterable[Copy | None]) -> tuple[Copy, ...]:
    """Select the copies that are not None, and warn of each.

    A PerformanceWarning at the user's line says which copies each call makes, and which layout needs
    none. Python's default filter shows it once.
    """
    needed = tuple(copy for copy in copies if copy)
    for copy in needed:
        copied = "its result" if copy.is_result else "an operand"
        message = f"each product copies {copied}: {copy.why}"
        warnings.warn(message, tc.PerformanceWarning, stacklevel=_users_level())
    return needed


def _users_level() -> int:
    """Number of frames between `warn_of_copies` and the user's code that called the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _is_between(module: str) -> bool:
    """Whether the module belongs to this package, or to PyTorch, which calls its operators."""
    return module.partition(".")[0] in (KERNELS, "torch")
