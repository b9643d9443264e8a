"""Local arrays: elements in registers, private to the thread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from tensorcore_dsl.dtypes import DType, DTypeLike, as_dtype
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.lang.bounds import check_index
from tensorcore_dsl.lang.indexing import normal_index, row_major, static_shape
from tensorcore_dsl.lang.pointer import check_holds
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import RegisterGroup, Scalar


class Local:
    """A small array in registers; views share its elements.

    A compile-time index costs nothing; a run-time index selects among all elements. Element
    `index` is `items[offset + index . strides]`.

    Attributes
    ----------
    shape, strides : tuple of int
        Strides in elements.
    dtype : dtype
        Of the elements.

    See Also
    --------
    tensorcore_dsl.local : Makes one, with an example.
    """

    def __init__(
        self,
        items: list[Any],
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None:
        self.items, self.dtype, self.shape, self.offset = items, dtype, shape, offset
        self.strides = row_major(shape) if strides is None else strides

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> Local:
        """The transpose, without a copy."""
        return self._with(self.shape[::-1], self.strides[::-1], self.offset)

    def _with(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Local:
        return Local(self.items, self.dtype, shape, strides, offset)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        view, chosen = self._select(index)
        if view.shape:
            if chosen:
                raise OperandError("a run-time index takes one element of a local array, no view")
            return view
        if not chosen:
            return self.items[view.offset]
        *_, result = (self.items[item] for item, _ in view._candidates(chosen))
        for item, here in view._candidates(chosen):
            result = arithmetic.select(builder(), here, self.items[item], result)
        return result

    def __setitem__(self, index: Any, value: Any) -> None:
        view, chosen = self._select(index)
        if view.shape:
            raise OperandError(f"a view of {view.described} cannot be assigned: assign its elements")
        if isinstance(value, RegisterGroup):
            raise OperandError(
                f"{self.described} has elements of one register, not {value.described}: a list "
                "holds fragments and vectors"
            )
        check_holds(value, self.dtype)
        value = builder().convert(value, self.dtype)
        if not chosen:
            self.items[view.offset] = value
            return
        for item, here in view._candidates(chosen):
            self.items[item] = arithmetic.select(builder(), here, value, self.items[item])

    def _select(self, index: Any) -> tuple[Local, list[tuple[Scalar, int, int]]]:
        """The view by compile-time indices, and (index, extent, stride) of run-time indices."""
        shape: list[int] = []
        strides: list[int] = []
        offset, chosen = self.offset, []
        full = normal_index(index, self)
        for axis, (i, extent, stride) in enumerate(zip(full, self.shape, self.strides, strict=True)):
            if isinstance(i, Scalar):
                text = f"index %lld leaves axis {axis} of {self.described}, which has extent %lld"
                check_index(i, extent, text)
                chosen.append((i, extent, stride))
            elif isinstance(i, slice):
                part = range(*i.indices(extent))
                shape.append(len(part))
                strides.append(stride * part.step)
                offset += stride * part.start
            elif not -extent <= i < extent:
                raise OperandError(f"index {i} leaves a dimension of {extent} of {self.described}")
            else:
                offset += stride * (i % extent)
        return self._with(tuple(shape), tuple(strides), offset), chosen

    def _candidates(self, chosen: list[tuple[Scalar, int, int]]) -> Iterator[tuple[int, Any]]:
        """The positions in `items` that run-time indices can select, each with its condition."""
        for digits in itertools.product(*(range(extent) for _, extent, _ in chosen)):
            item, here = self.offset, True
            for digit, (index, _, stride) in zip(digits, chosen, strict=True):
                item += digit * stride
                here = here & (index == digit)
            yield item, here

    @property
    def described(self) -> str:
        return f"a local {self.dtype} array of {'x'.join(map(str, self.shape))}"

    def __repr__(self) -> str:
        return f"<{self.described}>"


def local(shape: int | tuple[int, ...], dtype: DTypeLike, fill: Any = 0) -> Local:
    """An array in the registers of the thread.

    Parameters
    ----------
    shape : int or tuple of int
        Known at compile time.
    dtype : dtype
        Of the elements, each of which takes a register.
    fill : number or scalar
        The first value of each element, converted to `dtype`.

    Returns
    -------
    Local
        An array with NumPy's indices and views. A compile-time index costs nothing; a run-time
        index selects among all elements.

    Raises
    ------
    OperandError
        A shape that is not known at compile time; a value that is not a scalar.

    Examples
    --------
    >>> @tc.kernel
    ... def digits(x: tc.Array):
    ...     count = tc.local(3, tc.s32)
    ...     for i in tc.range(x.shape[0]):
    ...         count[x[i] % 3] += 1
    ...     for k in tc.static_range(3):
    ...         x[k] = count[k]
    >>> x = np.arange(10, dtype=np.int32)
    >>> digits[1, 1](x)
    >>> x[:3]
    array([4, 3, 3], dtype=int32)
    """
    shape, dtype = static_shape(shape, "a local array"), as_dtype(dtype)
    start = builder().convert(fill, dtype)
    return Local([start] * math.prod(shape), dtype, shape)
