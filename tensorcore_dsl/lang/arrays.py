"""Global arrays: elements, views and pointers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.lang.bounds import Axis, Bound, StepBound, frozen, plain_axes
from tensorcore_dsl.lang.indexing import Indexed, full_index, normal_index, slice_bounds
from tensorcore_dsl.lang.pointer import Pointer, byte_offset, element_size
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import is_number
from tensorcore_dsl.values.values import Scalar


class Array(Indexed):
    """A global array: pointer, shape and strides, known at run time.

    As an annotation it says that a parameter of a kernel is an array: of NumPy, Numba, torch, CuPy,
    JAX, or what else offers `__cuda_array_interface__`, `__array_interface__` or DLPack. In the
    kernel, `x[i, j]` is an element and `x[1:5]` a view.

    Attributes
    ----------
    shape, strides : tuple of integers
        Run-time integers, strides in elements; a stride known to be 1 is the Python number 1.
    dtype : dtype
        Of the elements.
    align : int
        The power of two in bytes that divides the pointer and every other stride of the argument.
    argument : int or None
        The position of the kernel's argument, and None for a view of one.
    name : str
        The argument's name, for errors.

    Notes
    -----
    `axes` say what an index of each axis must stay in, `bounds` is about the indices that a view
    has fixed. Neither outlives control flow that joins two arrays.

    Examples
    --------
    >>> @tc.kernel
    ... def row_total(x: tc.Array, out: tc.Array):
    ...     total = 0.0
    ...     for j in range(x.shape[1]):
    ...         total += x[tc.threadIdx.x, j]
    ...     out[tc.threadIdx.x] = total
    >>> out = np.zeros(4, np.float32)
    >>> row_total[1, 4](np.ones((4, 3), np.float32), out)
    >>> out
    array([3., 3., 3., 3.], dtype=float32)
    """

    parts = ("address", "shape", "strides")
    space = "global"

    def __init__(
        self,
        address: Any,
        dtype: DType,
        shape: tuple[Any, ...],
        strides: tuple[Any, ...],
        align: int,
        argument: int | None = None,
        name: str = "",
    ) -> None:
        self.address, self.shape, self.strides = address, shape, strides
        self.dtype = dtype  # type: ignore[assignment]
        self.align, self.argument = align, argument
        self.name = name or self.described
        self.axes = plain_axes(self.name, strides, element_size(dtype))

    def with_parts(self, **changed: Any) -> Array:
        """Copy the array with other attributes; new extents or another address drop its bounds."""
        twin: Array = super().with_parts(**changed)
        if "axes" not in changed and not changed.keys().isdisjoint({"address", "shape", "strides"}):
            twin.axes = plain_axes(twin.described, twin.strides, element_size(twin.dtype))
            twin.bounds = ()
        return twin

    def fixed(self) -> dict[str, Any]:
        return {"dtype": self.dtype}

    def joined(self, parts: list[Any]) -> Array:
        """An array of this type; it is no longer known to be one argument."""
        address, shape, strides = parts
        align = element_size(self.dtype)
        return Array(address, self.dtype, shape, strides, align)

    @property
    def T(self) -> Array:
        """The transpose, without a copy."""
        return self.with_parts(
            shape=self.shape[::-1], strides=self.strides[::-1], axes=self.axes[::-1], argument=None
        )

    def at(self, *index: Any) -> Pointer:
        """Pointer to an element; loads and stores through it check the indices.

        Parameters
        ----------
        *index : integer
            One for each axis; negative numbers count from the end.

        Returns
        -------
        Pointer
            In global memory.

        Raises
        ------
        OperandError
            Another number of indices.
        OutOfBounds
            In emulation, and in checked builds, where it is loaded or stored.
        """
        return self._pointer(full_index(index, self), frozen)

    def _pointer(self, index: tuple[Any, ...], keep: Callable[[Any], Any]) -> Pointer:
        """Pointer to an element; `keep` copies what its checks need, if they come later."""
        address, bounds = self.address, list(self.bounds)
        for i, extent, stride, axis in zip(index, self.shape, self.strides, self.axes, strict=True):
            start = extent + i if isinstance(i, int) and i < 0 else i
            address = self._step(address, start, stride)
            bounds += self._bounds(start, extent, stride, axis, keep)
        pointer = Pointer(address, self.dtype, self.space, tuple(bounds))
        pointer.owner = self.name  # for messages
        return pointer

    @staticmethod
    def _bounds(
        index: Any, extent: Any, stride: Any, axis: Axis, keep: Callable[[Any], Any]
    ) -> Iterable[Bound]:
        known = is_number(index) and is_number(extent)
        return axis.bounds(keep(index), keep(extent), stride) if known or builder().checks else ()

    def _step(self, address: Any, index: Any, stride: Any) -> Any:
        size = element_size(self.dtype)
        if not isinstance(stride, Scalar):
            return byte_offset(address, index, int(stride) * size)
        if not isinstance(index, Scalar):
            return byte_offset(address, stride * int(index), size) if index else address
        return byte_offset(address, index.to(stride.dtype) * stride, size)

    def _view(self, index: Any) -> Any:
        index = normal_index(index, self)
        if not any(isinstance(i, slice) for i in index):
            return self._pointer(index, lambda value: value)
        address = self.address
        shape: list[Any] = []
        strides: list[Any] = []
        axes: list[Axis] = []
        bounds = list(self.bounds)
        for i, extent, stride, axis in zip(index, self.shape, self.strides, self.axes, strict=True):
            start = extent + i if isinstance(i, int) and i < 0 else i
            if isinstance(i, slice):
                start, length, step = slice_bounds(i, extent)
                part = Axis(len(shape), f"a view of {self.name}", axis.size if step == 1 else 0)
                if step > 1 and axis.size:
                    bounds.append(StepBound(0, 0, part.owner, axis.size, step))
                whole = i.start is None and i.stop is None and step == 1
                axes.append(axis if whole else axis.cut(start, step, extent, part))
                shape.append(length)
                strides.append(stride if step == 1 else stride * step)
            else:
                fixed = self._bounds(start, extent, stride, axis, frozen)
                bounds += [replace(bound, outer=True) for bound in fixed]
            address = self._step(address, start, stride)
        return self.with_parts(
            address=address,
            shape=tuple(shape),
            strides=tuple(strides),
            argument=None,
            axes=tuple(axes),
            bounds=tuple(bounds),
        )

    @property
    def described(self) -> str:
        return f"a {self.ndim}-dimensional {self.dtype} array"
