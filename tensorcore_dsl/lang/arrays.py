"""Global arrays: elements, views and pointers."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.lang.indexing import Indexed, full_index, normal_index, slice_bounds
from tensorcore_dsl.lang.pointer import Pointer, byte_offset, element_size
from tensorcore_dsl.values.values import Scalar


class Array(Indexed):
    """A global array: pointer, shape and strides (in elements), known at run time.

    A stride known to be 1 is the Python number 1. `align` is the power of two in bytes that
    divides the pointer and every other stride of the argument. `argument` is the position of the
    kernel's argument, and None for a view of one.
    """

    parts = ("address", "shape", "strides")
    space = "global"

    def __init__(
        self, address: Any, dtype: DType, shape: tuple[Any, ...], strides: tuple[Any, ...],
        align: int, argument: int | None = None,
    ) -> None:  # fmt: skip
        self.address, self.shape, self.strides = address, shape, strides
        self.dtype = dtype  # type: ignore[assignment]
        self.align, self.argument = align, argument

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
        return self.with_parts(shape=self.shape[::-1], strides=self.strides[::-1], argument=None)

    def at(self, *index: Any) -> Pointer:
        """Pointer to an element."""
        address = self.address
        for i, extent, stride in zip(
            full_index(index, self), self.shape, self.strides, strict=True
        ):
            i = extent + i if isinstance(i, int) and i < 0 else i
            address = self._step(address, i, stride)
        return Pointer(address, self.dtype, self.space)

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
            return self.at(*index)
        address = self.address
        shape: list[Any] = []
        strides: list[Any] = []
        for i, extent, stride in zip(index, self.shape, self.strides, strict=True):
            start = extent + i if isinstance(i, int) and i < 0 else i
            if isinstance(i, slice):
                start, length, step = slice_bounds(i, extent)
                shape.append(length)
                strides.append(stride if step == 1 else stride * step)
            address = self._step(address, start, stride)
        return self.with_parts(
            address=address, shape=tuple(shape), strides=tuple(strides), argument=None
        )

    @property
    def described(self) -> str:
        return f"a {self.ndim}-dimensional {self.dtype} array"
