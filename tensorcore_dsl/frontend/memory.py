"""Pointers, global arrays and shared tiles of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import LayoutError, OperandError
from tensorcore_dsl.frontend import arithmetic
from tensorcore_dsl.frontend.values import Group, Scalar, Struct
from tensorcore_dsl.ir.nodes import Type
from tensorcore_dsl.isa.spec import emitter

SPACES = {"global": dtypes.u64, "shared": dtypes.u32}


class Pointer(Struct):
    """The address of an element: `pointer + n` steps by elements."""

    parts = ("address",)

    def __init__(self, address: Any, dtype: DType, space: str) -> None:
        self.address, self.dtype, self.space = address, dtype, space

    def __add__(self, elements: Any) -> Pointer:
        return self.with_parts(address=byte_offset(self.address, elements, self.dtype.itemsize))

    def __sub__(self, elements: Any) -> Pointer:
        return self + (-elements)

    def as_type(self, dtype: DType) -> Pointer:
        """The same address, read as another type."""
        return self.with_parts(dtype=dtype)

    def load(self, count: int = 1, *, pred: Any = None, otherwise: Any = 0, cache: str = "") -> Any:
        """One element, or a vector of `count` from consecutive addresses.

        pred: load only where it holds, else `otherwise`. cache: modifiers of `ld` such as
        ".nc", ".cg", ".L1::evict_last".
        """
        return load(self, count, pred, otherwise, cache)

    def store(self, value: Any, *, pred: Any = None, cache: str = "") -> None:
        """Store an element or a vector."""
        store(self, value, pred, cache)


def byte_offset(address: Any, elements: Any, size: int) -> Any:
    """address + elements * size in the width of the address."""
    builder: Any = emitter()
    wide = address.dtype
    if not isinstance(elements, Scalar):
        return arithmetic.apply(builder, "add", address, int(elements) * size)
    base, offset = builder.split_constant(elements)
    scaled = _scaled(builder, base, size, wide)
    return arithmetic.apply(
        builder, "add", arithmetic.apply(builder, "add", address, scaled), offset * size
    )


def _scaled(builder: Any, index: Scalar, size: int, wide: DType) -> Scalar:
    """index * size as the address's type."""
    if wide.bits == 64 and index.dtype.bits == 32:
        product = builder.named(f"mul.wide.{index.dtype}", index, size)
        return Scalar(product.value, wide)
    if index.dtype.bits != wide.bits:
        index = arithmetic.convert(builder, index, wide)
    product = arithmetic.apply(builder, "mul", Scalar(index.value, wide), size)
    return product if isinstance(product, Scalar) else builder.literal(product, wide)


def _width(dtype: DType, count: int) -> str:
    if dtype.bits < 8 or count not in (1, 2, 4) or dtype.bits * count > 128:
        raise OperandError(
            f"a load or store moves 1, 2 or 4 elements and at most 16 bytes, not {count} {dtype}"
        )
    return f"{'' if count == 1 else f'.v{count}'}.b{dtype.bits}"


def load(pointer: Pointer, count: int, pred: Any, otherwise: Any, cache: str) -> Any:
    builder: Any = emitter()
    dtype = pointer.dtype
    split = _byte_split(dtype, count)
    if split is not None:
        words = load(pointer.as_type(split[0]), split[1], pred, 0, cache)
        return _from_words(builder, words, dtype, count)
    name = f"ld.{pointer.space}{cache}{_width(dtype, count)}"
    fill = otherwise if isinstance(otherwise, (int, Scalar)) else 0
    result = builder.named(name, pointer.address, pred=pred, otherwise=fill)
    if count == 1:
        return _typed(builder, result, dtype, pred, otherwise, fill)
    return Group(_retype(builder, result, Type(dtype, count)))


def _byte_split(dtype: DType, count: int) -> tuple[DType, int] | None:
    """Vectors of more than 4 narrow elements travel as 32-bit words."""
    total = dtype.bits * count
    if count > 4 and total in (64, 128):
        return dtypes.b32, total // 32
    if count > 1 and total == 32:
        return dtypes.b32, 1
    return None


def _from_words(builder: Any, words: Any, dtype: DType, count: int) -> Any:
    registers = [words] if isinstance(words, Scalar) else words.registers
    elements = [e for r in registers for e in arithmetic.unpack(builder, r, dtype)]
    return builder.pack(elements, Type(dtype, count))


def _typed(
    builder: Any, result: Scalar, dtype: DType, pred: Any, otherwise: Any, fill: Any
) -> Scalar:
    del fill
    typed = Scalar(result.value, dtype)
    if pred is not None and isinstance(otherwise, float) and otherwise:
        return arithmetic.select(builder, pred, typed, builder.literal(otherwise, dtype))
    return typed


def _retype(builder: Any, group: Group, type: Type) -> Any:
    parts = [Scalar(p.value, type.dtype) for p in group.registers]
    return builder.pack(parts, type).value


def store(pointer: Pointer, value: Any, pred: Any, cache: str) -> None:
    builder: Any = emitter()
    dtype = pointer.dtype
    prefix = f"st.{pointer.space}{cache}"
    if isinstance(value, (list, tuple)):
        value = builder.pack([builder.scalar(v, dtype) for v in value], Type(dtype, len(value)))
    if not isinstance(value, Group):
        value = arithmetic.convert(builder, value, dtype)
        builder.named(f"{prefix}{_width(dtype, 1)}", pointer.address, value, pred=pred)
        return
    if value.dtype != dtype:
        value = value.to(dtype)
    _store_group(builder, pointer, value, prefix, pred)


def _store_group(builder: Any, pointer: Pointer, value: Group, prefix: str, pred: Any) -> None:
    dtype = pointer.dtype
    if dtype.storage_bits < 32:
        step = 32 // dtype.bits
        if value.per_register == 1:
            elements = value.elements()
            if len(elements) % step:
                for i, element in enumerate(elements):
                    (pointer + i).store(element, pred=pred)
                return
            words = [
                arithmetic.pack(builder, elements[i : i + step], dtype)
                for i in range(0, len(elements), step)
            ]
        else:
            words = value.registers
        words = [Scalar(w.value, dtypes.b32) for w in words]
        pointer, registers = pointer.as_type(dtypes.b32), words
    else:
        registers = [Scalar(r.value, dtypes.named(f"b{dtype.bits}")) for r in value.registers]
        pointer = pointer.as_type(dtypes.named(f"b{dtype.bits}"))
    count = len(registers)
    suffix = _width(pointer.dtype, count)
    packed = registers[0] if count == 1 else builder.pack(registers, Type(pointer.dtype, count))
    builder.named(f"{prefix}{suffix}", pointer.address, packed, pred=pred)


class Array(Struct):
    """A global array: pointer, shape and strides (in elements), known at run time.

    `unit[d]` says that stride d is 1; `align` is the power of two in bytes that divides the
    pointer and every other stride; `argument` is the kernel's run-time argument that it is as it
    was passed (None for views).
    """

    parts = ("address", "shape", "strides")
    space = "global"

    def __init__(
        self, address: Any, dtype: DType, shape: tuple[Any, ...], strides: tuple[Any, ...],
        align: int, argument: int | None = None,
    ) -> None:  # fmt: skip
        self.address, self.dtype, self.shape, self.strides = address, dtype, shape, strides
        self.align, self.argument = align, argument

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def T(self) -> Array:
        """The transpose, without a copy."""
        return self.with_parts(
            shape=self.shape[::-1], strides=self.strides[::-1], argument=None
        )

    def at(self, *index: Any) -> Pointer:
        """Pointer to an element."""
        if len(index) == 1 and isinstance(index[0], tuple):
            index = index[0]
        _check_rank(index, self.ndim)
        address = self.address
        for i, stride in zip(index, self.strides, strict=True):
            address = self._step(address, i, stride)
        return Pointer(address, self.dtype, self.space)

    def _step(self, address: Any, index: Any, stride: Any) -> Any:
        builder: Any = emitter()
        size = self.dtype.itemsize
        if not isinstance(stride, Scalar):
            if not isinstance(index, Scalar):
                return arithmetic.apply(builder, "add", address, int(index) * int(stride) * size)
            return byte_offset(address, index, int(stride) * size)
        if not isinstance(index, Scalar):
            if int(index) == 0:
                return address
            steps = arithmetic.apply(builder, "mul", stride, int(index))
        else:
            steps = arithmetic.apply(builder, "mul", arithmetic.convert(builder, index, stride.dtype), stride)
        return byte_offset(address, steps, size)

    def __getitem__(self, index: Any) -> Any:
        view = self._view(index)
        return view if isinstance(view, Array) else view.load()

    def __setitem__(self, index: Any, value: Any) -> None:
        view = self._view(index)
        if isinstance(view, Array):
            raise OperandError("store single elements, or vectors with array.at(...).store(values)")
        view.store(value)

    def _view(self, index: Any) -> Any:
        index = normal_index(index, self.ndim)
        if not any(isinstance(i, slice) for i in index):
            return self.at(*index)
        address, shape, strides = self.address, [], []
        for i, extent, stride in zip(index, self.shape, self.strides, strict=True):
            if isinstance(i, slice):
                start, extent = slice_bounds(i, extent)
                shape.append(extent)
                strides.append(stride)
            else:
                start = i
            address = self._step(address, start, stride)
        return self.with_parts(
            address=address, shape=tuple(shape), strides=tuple(strides), argument=None
        )


def _check_rank(index: Sequence[Any], ndim: int) -> None:
    if len(index) != ndim:
        raise OperandError(f"{ndim} indices are needed, {len(index)} were given")


def normal_index(index: Any, ndim: int) -> tuple[Any, ...]:
    """A full tuple of integers and slices; `...` and missing indices take everything."""
    index = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [i for i in index if not isinstance(i, (Scalar, slice))]:
        place = next(p for p, i in enumerate(index) if i is Ellipsis)
        fill = ndim - len(index) + 1
        index = (*index[:place], *[slice(None)] * fill, *index[place + 1 :])
    if len(index) > ndim:
        raise OperandError(f"{len(index)} indices for {ndim} dimensions")
    return (*index, *[slice(None)] * (ndim - len(index)))


def slice_bounds(part: slice, extent: Any) -> tuple[Any, Any]:
    """(start, length) of a slice without step."""
    if part.step not in (None, 1):
        raise OperandError("slices of arrays have step 1")
    start = 0 if part.start is None else part.start
    if isinstance(start, int) and start < 0:
        start = extent + start
    stop = extent if part.stop is None else part.stop
    if isinstance(stop, int) and stop < 0:
        stop = extent + stop
    return start, static_difference(stop, start)


def static_difference(stop: Any, start: Any) -> Any:
    """stop - start, as a Python integer when only a constant lies between them."""
    if isinstance(stop, Scalar) and isinstance(start, Scalar):
        builder: Any = emitter()
        (b1, c1), (b0, c0) = builder.split_constant(stop), builder.split_constant(start)
        if b1 is not None and b0 is not None and b1.value is b0.value:
            return c1 - c0
    return stop - start


SWIZZLES = (0, 32, 64, 128)


class Tile(Struct):
    """A view of shared memory with a static shape and strides, possibly swizzled.

    The byte address of an element is origin + swizzle(offset): `origin` a multiple of the
    swizzle's period (8 rows of `swizzle` bytes), `offset` the rest. swizzle(x) flips bits 4.. of
    x with bits 7.., one bit for 32 bytes, two for 64, three for 128, as the hardware does.
    """

    parts = ("origin", "offset")
    space = "shared"

    def __init__(
        self, origin: Any, offset: Any, dtype: DType, shape: tuple[int, ...],
        strides: tuple[int, ...], swizzle: int = 0,
    ) -> None:
        self.origin, self.offset, self.dtype = origin, offset, dtype
        self.shape, self.strides, self.swizzle = shape, strides, swizzle

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def period(self) -> int:
        """Bytes after which the swizzle repeats."""
        return 8 * self.swizzle or 16

    @property
    def T(self) -> Tile:
        """The transpose of a two-dimensional tile."""
        return self.with_parts(shape=self.shape[::-1], strides=self.strides[::-1])

    def moved(self, index: Sequence[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> Tile:
        """The view that starts at `index`."""
        origin, offset = self.origin, self.offset
        for i, stride in zip(index, self.strides, strict=True):
            whole, rest = self._split(i, stride * self.dtype.itemsize)
            origin, offset = _plus(origin, whole), _plus(offset, rest)
        constant, carried = self._carry(offset)
        return self.with_parts(
            origin=_plus(origin, carried), offset=constant, shape=shape, strides=strides
        )

    def _split(self, index: Any, size: int) -> tuple[Any, Any]:
        """index * size as (multiple of the period, rest)."""
        if isinstance(index, Scalar):
            scaled = _times(index, size)
            return (scaled, 0) if size % self.period == 0 else (0, scaled)
        return 0, int(index) * size

    def _carry(self, offset: Any) -> tuple[Any, int]:
        """Whole periods of the constant part of an offset belong to the origin."""
        builder: Any = emitter()
        base, constant = builder.split_constant(offset)
        carried = constant // self.period * self.period
        rest = constant - carried
        return (rest if base is None else _plus(base, rest)), carried

    def at(self, *index: Any) -> Pointer:
        """Pointer to an element."""
        if len(index) == 1 and isinstance(index[0], tuple):
            index = index[0]
        _check_rank(index, self.ndim)
        here = self.moved(index, (), ())
        return Pointer(_plus(here.origin, here._swizzled()), self.dtype, self.space)

    def _swizzled(self) -> Any:
        """The offset with its bits flipped."""
        if not self.swizzle:
            return self.offset
        mask = {32: 0x10, 64: 0x30, 128: 0x70}[self.swizzle]
        return self.offset ^ ((self.offset >> 3) & mask)

    @property
    def address(self) -> Any:
        """The shared address of the first element."""
        return _plus(self.origin, self._swizzled())

    def __getitem__(self, index: Any) -> Any:
        view = self._view(index)
        return view if isinstance(view, Tile) else view.load()

    def __setitem__(self, index: Any, value: Any) -> None:
        view = self._view(index)
        if isinstance(view, Tile):
            raise OperandError("store single elements, or vectors with tile.at(...).store(values)")
        view.store(value)

    def _view(self, index: Any) -> Any:
        index = normal_index(index, self.ndim)
        if not any(isinstance(i, slice) for i in index):
            return self.at(*index)
        starts, shape, strides = [], [], []
        for i, extent, stride in zip(index, self.shape, self.strides, strict=True):
            start = i
            if isinstance(i, slice):
                start, extent = slice_bounds(i, extent)
                if not isinstance(extent, int):
                    raise OperandError("the size of a shared view must be known at compile time")
                shape.append(extent)
                strides.append(stride)
            _check_inside(start, extent if isinstance(i, slice) else 1, i, self.shape[len(starts)])
            starts.append(start)
        return self.moved(starts, tuple(shape), tuple(strides))

    def __repr__(self) -> str:
        return f"<shared {self.dtype}{list(self.shape)} swizzle={self.swizzle}>"


def _check_inside(start: Any, length: int, given: Any, extent: int) -> None:
    if isinstance(start, int) and not (0 <= start and start + length <= extent):
        raise OperandError(f"index {given} leaves a shared dimension of {extent}")


def _plus(left: Any, right: Any) -> Any:
    if not isinstance(right, Scalar) and int(right) == 0:
        return left
    if not isinstance(left, Scalar) and not isinstance(right, Scalar):
        return left + right
    builder: Any = emitter()
    return arithmetic.apply(builder, "add", _u32(left), _u32(right))


def _u32(value: Any) -> Any:
    if isinstance(value, Scalar) and value.dtype != dtypes.u32:
        if value.dtype.bits == 32:
            return Scalar(value.value, dtypes.u32)
        return arithmetic.convert(emitter(), value, dtypes.u32)
    return value


def _times(index: Scalar, size: int) -> Any:
    return arithmetic.apply(emitter(), "mul", _u32(index), size)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def check_swizzle(shape: Sequence[int], strides: Sequence[int], dtype: DType, swizzle: int) -> None:
    """Rows of a swizzled tile are whole multiples of its span."""
    if swizzle not in SWIZZLES:
        raise LayoutError(f"swizzle may be 32, 64 or 128 bytes (0 for none), not {swizzle}")
    if not swizzle:
        return
    row = shape[-1] * dtype.itemsize
    if row % swizzle or strides[-1] != 1:
        raise LayoutError(
            f"a {swizzle}-byte swizzle needs rows of a multiple of {swizzle} bytes; "
            f"rows of {shape[-1]} {dtype} have {row}"
        )
