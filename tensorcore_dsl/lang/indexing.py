"""Indices and slices of arrays, tiles and local arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.lang.bounds import Bounded, check_index
from tensorcore_dsl.lang.pointer import one_element
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, is_number
from tensorcore_dsl.values.values import Scalar

if TYPE_CHECKING:
    from tensorcore_dsl._typing import AnyDType


class Indexed(Bounded):
    """An array of elements in memory, indexed as in NumPy: `_view` gives a pointer or a view."""

    shape: tuple[Any, ...]
    dtype: AnyDType

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        """The number of elements, a run-time value where the shape is."""
        return prod(self.shape)

    def __len__(self) -> int:
        if isinstance(self.shape[0], Scalar):
            raise OperandError(
                f"the length of {self.described} is known at run time: use shape[0], and "
                "`for i in range(x.shape[0])`"
            )
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @property
    def described(self) -> str:
        raise NotImplementedError

    def _view(self, index: Any) -> Any:
        raise NotImplementedError

    def at(self, *index: Any) -> Any:
        raise NotImplementedError

    def check_lines(self, lines: int, bytes_: int, stride: Any, pred: Any = None) -> None:
        self.at(*[0] * self.ndim).check_lines(lines, bytes_, stride, pred)

    def check_run(self, bytes_: Any, pred: Any = None) -> None:
        self.at(*[0] * self.ndim).check_run(bytes_, pred)

    def __getitem__(self, index: Any) -> Any:
        view = self._view(index)
        return view if isinstance(view, Indexed) else view.load()

    def __bool__(self) -> bool:
        raise OperandError(f"{self.described} is neither true nor false: test an element, or `is not None`")

    def __setitem__(self, index: Any, value: Any) -> None:
        view = self._view(index)
        if isinstance(view, Indexed):
            raise OperandError(
                f"{view.described} cannot be stored at once: store elements, or vectors with "
                f"{type(view).__name__.lower()}.at(...).store(values)"
            )
        view.store(one_element(value))

    def __repr__(self) -> str:
        return f"<{self.described}>"


def full_index(index: tuple[Any, ...], owner: Any) -> tuple[Any, ...]:
    """The indices of one element: an integer for each dimension of `owner`."""
    if len(index) == 1 and isinstance(index[0], tuple):
        index = index[0]
    if len(index) != owner.ndim:
        raise OperandError(
            f"{owner.described} takes {owner.ndim} {'index' if owner.ndim == 1 else 'indices'}, "
            f"{len(index)} {'was' if len(index) == 1 else 'were'} given"
        )
    for i in index:
        _check_index(i, owner)
    return index


def _check_index(index: Any, owner: Any) -> None:
    integer = index.dtype.is_integer if isinstance(index, Scalar) else is_number(index)
    if not integer or isinstance(index, (bool, float)):
        raise OperandError(f"{owner.described} is indexed by integers, not by {describe(index)}")


def normal_index(index: Any, owner: Any) -> tuple[Any, ...]:
    """An integer or a slice for each dimension; `...` and missing indices select everything."""
    index = index if isinstance(index, tuple) else (index,)
    gaps = [position for position, i in enumerate(index) if i is Ellipsis]
    if len(gaps) > 1:
        raise OperandError("an index has at most one `...`")
    fill = owner.ndim - (len(index) - len(gaps))
    if fill < 0:
        raise OperandError(
            f"{owner.described} takes {owner.ndim} {'index' if owner.ndim == 1 else 'indices'}, "
            f"{len(index) - len(gaps)} were given"
        )
    position = gaps[0] if gaps else len(index)
    full = (*index[:position], *[slice(None)] * fill, *index[position + 1 :])
    for i in full:
        if not isinstance(i, slice):
            _check_index(i, owner)
    return full


def slice_bounds(part: slice, extent: Any) -> tuple[Any, Any, int]:
    """(start, length, step) of a slice; the bounds are not checked against the extent.

    A slice that starts in the array does not end before its start. One that starts past the array
    may, as at a ragged edge, where nobody accesses it.
    """
    step = 1 if part.step is None else part.step
    if not isinstance(step, int) or step < 1:
        raise OperandError(
            f"slices of arrays and tiles have steps of 1 or more known at compile time, not {describe(step)}"
        )
    start = 0 if part.start is None else part.start
    if isinstance(start, int) and start < 0:
        start = extent + start
    stop = extent if part.stop is None else part.stop
    if isinstance(stop, int) and stop < 0:
        stop = extent + stop
    length = static_difference(stop, start)
    if is_number(length) and length < 0:
        raise OperandError(f"the slice {describe(part.start)}:{describe(part.stop)} has {length} elements")
    if isinstance(length, Scalar) and part.stop is not None and builder().checks:
        short = (length < 0) & (start <= extent)
        text = "the slice from index %lld on ends before it, at %lld"
        check_index(start, stop, text, pred=short)
    return start, length if step == 1 else (length + (step - 1)) // step, step


def static_difference(stop: Any, start: Any) -> Any:
    """stop - start, a Python integer when the two differ by a constant."""
    if isinstance(stop, Scalar) and isinstance(start, Scalar):
        build = builder()
        (b1, c1), (b0, c0) = build.split_constant(stop), build.split_constant(start)
        if b1 is not None and b0 is not None and b1.value is b0.value:
            return c1 - c0
    return stop - start


def integer_operand(value: Any, dtype: DType, what: str) -> Any:
    """An integer as an operand of `dtype`: a register, or a Python number; OperandError else."""
    if isinstance(value, Scalar) and (value.dtype.is_integer or value.dtype.kind in "pb"):
        return builder().convert(value, dtype)
    if isinstance(value, Scalar) or not isinstance(value, (int, np.integer)):
        raise OperandError(f"{what} must be an integer, not {describe(value)}")
    return int(value)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense array, the last index running fastest."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def static_shape(extents: int | Sequence[int], what: str) -> tuple[int, ...]:
    """A shape of positive integers known at compile time; `what` names its owner in errors."""
    shape = tuple(extents) if isinstance(extents, (tuple, list)) else (extents,)
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise OperandError(
            f"the shape of {what} is positive integers known at compile time, not "
            f"{', '.join(map(describe, shape)) or 'empty'}"
        )
    return shape  # type: ignore[return-value]
