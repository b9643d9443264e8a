"""Bounds of indices, axis by axis.

An index belongs to an access: `x.at(i, j)` and `x[i:j]` only record it, and the load or store
through them checks it, under its own predicate. What both sides know at compile time is checked
then. Checks at run time are instructions of checked builds (`isa.bounds`); other builds have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import both, is_number
from tensorcore_dsl.values.values import CheckedAddress, Scalar, Struct

MORE = 2**31 - 1  # numbers that no stride leaves room for: a check of so many fails


def frozen(index: Any) -> Any:
    """A copy of a run-time index for a check that comes later: registers of loops change."""
    if not isinstance(index, Scalar) or not builder().checks:
        return index
    return Scalar(builder().copy(index.value), index.dtype)


def check_index(index: Any, extent: Any, message: str, *, count: int = 1, pred: Any = None) -> None:
    """Check that `count` indices from `index` on lie in [0, extent), where `pred` holds.

    message: a format for the index and the extent. Raises OperandError for an index that is known
    to be outside, unless a predicate guards it.
    """
    build = builder()
    if is_number(index) and is_number(extent):
        if 0 <= index <= extent - count:
            return
        if pred is None:
            raise OperandError(message.replace("%lld", "{}").format(index, extent))
    if not build.checks or (is_number(pred) and not pred):
        return
    dtype = _common_type(index, extent)
    index, extent = _as_type(index, dtype), _as_type(extent, dtype)
    build.check(dtype, index, extent, count, message, pred)


def _common_type(index: Any, extent: Any) -> dtypes.DType:
    """The type of a comparison: 32 bits where both fit; u32 for an index that prints as such."""
    for value in (index, extent):
        wide = value.dtype.bits > 32 if isinstance(value, Scalar) else abs(value) >= 1 << 31
        if wide:
            return dtypes.s64
    unsigned = isinstance(index, Scalar) and index.dtype == dtypes.u32
    return dtypes.u32 if unsigned else dtypes.s32


def _as_type(value: Any, dtype: dtypes.DType) -> Any:
    if not isinstance(value, Scalar):
        return value
    if value.dtype.bits == dtype.bits:
        return value.bits(dtype)
    return builder().convert(value, dtype)


@dataclass(frozen=True)
class Bound:
    """`length` indices along an axis, to be checked where the element is accessed.

    Attributes
    ----------
    axis : str
        The axis, for messages.
    size : int
        Bytes of an element if consecutive elements of memory run along the axis, else 0.
    stride
        Elements of memory from one index to the next; None: unknown.
    outer : bool
        No axis of the view, but one that the view was cut from.
    """

    index: Any
    extent: Any
    axis: str
    size: int = 0
    length: int = 1
    stride: Any = None
    outer: bool = False

    def check(self, bytes_: int, pred: Any = None) -> None:
        """Check an access of so many bytes from the element on."""
        count = max(self.length, -(-bytes_ // self.size) if self.size else 1)
        check_index(self.index, self.extent, self.message(count), count=count, pred=pred)

    def check_lines(self, lines: int, stride: Any, pred: Any = None) -> None:
        """Check that so many lines, `stride` elements apart, stay inside if they run along the
        axis."""
        if self.size or self.stride is None:
            return
        alike: Any = True
        if isinstance(stride, Scalar) or isinstance(self.stride, Scalar):
            alike = both(pred, builder().apply("eq", stride, self.stride))
        elif stride == self.stride:
            alike = pred
        if alike is not True:
            check_index(self.index, self.extent, self.message(lines), count=lines, pred=alike)

    def check_stride(self, stride: Any, pred: Any = None) -> None:
        """Check that lines `stride` elements apart are lines of the only axis that has some."""
        if is_number(stride) and is_number(self.stride) and stride % self.stride == 0:
            return
        wide = dtypes.s64
        actual, expected = (builder().convert(v, wide) for v in (stride, self.stride))
        differ = both(pred, actual != expected)
        text = f"lines %lld elements apart are no lines of {self.axis}, which are %lld apart"
        builder().check(wide, actual, expected, MORE, text, differ)

    def message(self, count: int) -> str:
        what = "index %lld leaves" if count == 1 else f"{count} elements from index %lld on leave"
        return f"{what} {self.axis}, which has extent %lld"

    def moved(self, elements: Any) -> Bound:
        """The bound of the element so many further along the axis."""
        return replace(self, index=self.index + elements)


@dataclass(frozen=True)
class AreaBound(Bound):
    """A byte of the memory of a tile, which pointers that have moved stay in."""

    def message(self, count: int) -> str:
        what = "byte %lld leaves" if count == 1 else f"{count} bytes from byte %lld on leave"
        return f"{what} {self.axis}, which has %lld bytes"


@dataclass(frozen=True)
class RunBound(Bound):
    """An element in the memory of an array of several axes, counted from its first one."""

    def message(self, count: int) -> str:
        what = "element %lld leaves" if count == 1 else f"{count} elements from %lld on leave"
        return f"{what} {self.axis}, which spans %lld elements of memory"


@dataclass(frozen=True)
class StepBound(Bound):
    """A view that has not all elements along the axis: only single ones are accessed.

    Attributes
    ----------
    axis
        The view.
    length
        Its step.
    """

    def check(self, bytes_: int, pred: Any = None) -> None:
        if bytes_ > self.size:
            raise OperandError(
                f"a vector of {bytes_ // self.size} elements leaves {self.axis}, whose step is "
                f"{self.length}: access its elements one by one, or take the vector from the whole"
            )


@dataclass(frozen=True)
class RankBound(Bound):
    """The rank of a CTA in a cluster of `extent` CTAs."""

    def message(self, count: int) -> str:
        return f"rank %lld leaves {self.axis}, which has %lld CTAs"


@dataclass(frozen=True)
class ProductBound(Bound):
    """The step of a pointer, a sum of products that must not wrap in 32 bits."""

    def check(self, bytes_: int, pred: Any = None) -> None:
        builder().check_products(self.index, pred)


def step_bounds(elements: Any) -> tuple[Bound, ...]:
    """The bound of a pointer's step, if it is a sum of products of s32."""
    return (ProductBound(frozen(elements), 0, ""),) if builder().products(elements) else ()


def check_all(bounds: Sequence[Bound], bytes_: Any, pred: Any = None) -> None:
    """Check an access of so many bytes, if any, from the element on, where `pred` holds.

    bytes_: known at compile time, or a u32 at run time: then the first and the last are checked.
    """
    if not isinstance(bytes_, Scalar):
        for bound in bounds:
            bound.check(bytes_, pred)
        return
    build = builder()
    if not build.checks or not bounds:
        return
    some = both(pred, bytes_ != 0)
    last = build.convert(bytes_ - 1, dtypes.s32)
    for bound in bounds:
        bound.check(1, some)
        if bound.size:
            bound.moved(last // bound.size).check(1, some)


class Bounded(Struct):
    """Something in memory with bounds that every access must stay in.

    Attributes
    ----------
    bounds : tuple
        Known until it moves, or until control flow joins it with another one.
    area : tuple
        In checked builds, the address and the bytes of the tile that it was made from; () where there is
        none.
    owner
        That tile, for messages.
    moved_away
        Only the area is known.
    """

    bounds: tuple[Bound, ...] = ()
    area: tuple[Any, ...] = ()
    owner = "the tile that it was made from"
    moved_away = False
    address: Any

    def fixed(self) -> dict[str, Any]:
        variable = ("bounds", "owner", "moved_away")
        return {k: v for k, v in super().fixed().items() if k not in variable}

    def joined(self, parts: list[Any]) -> Any:
        return super().joined(parts).with_parts(bounds=(), owner=Bounded.owner, moved_away=True)

    def check_bounds(self, bytes_: Any = 1, pred: Any = None) -> None:
        """Check an access of so many bytes from the first element on, where `pred` holds."""
        check_all((*self.bounds, *self.area_bounds()), bytes_, pred)

    def check_run(self, bytes_: Any, pred: Any = None) -> None:
        """Check a bulk copy of consecutive bytes, which runs on from one row to the next."""
        strided = [b for b in self.bounds if b.stride is not None and not b.outer]
        size = max((b.size for b in strided), default=0)
        whole: Bound
        if self.area:
            whole = self._area_bound()
        elif len(strided) > 1 and size:
            origin = sum(b.index * b.stride for b in strided)
            extent = sum((b.extent - 1) * b.stride for b in strided) + 1
            whole = RunBound(origin, extent, self.owner, size)
        else:
            self.check_bounds(bytes_, pred)
            return
        self.check_bounds(1, pred)
        check_all([whole], bytes_, pred)

    def check_lines(self, lines: int, bytes_: int, stride: Any, pred: Any = None) -> None:
        """Check an access of `lines` times so many bytes, `stride` elements apart."""
        self.check_bounds(bytes_, pred)
        for bound in self.bounds:
            bound.check_lines(lines, stride, pred)
        rows = [b for b in self.bounds if not b.size and b.stride is not None]
        if len(rows) == 1 and len(self.bounds) == 2:
            rows[0].check_stride(stride, pred)

    def area_bounds(self) -> tuple[Bound, ...]:
        """The bound of the first byte in the area, where nothing else is known."""
        return (self._area_bound(),) if self.moved_away and self.area else ()

    def _area_bound(self) -> AreaBound:
        """The bound of the first byte in the area."""
        start, size = self.area
        return AreaBound((self.address - start).bits(dtypes.s32), size, self.owner, 1)

    def accessed(self, bytes_: int = 1, pred: Any = None) -> Any:
        """The address, for an access of so many bytes where `pred` holds."""
        self.check_bounds(bytes_, pred)
        swizzle = getattr(self, "swizzle", None)  # of tiles, and of pointers into them
        if not builder().checks:
            return self.address
        address = CheckedAddress(self.address.value, self.address.dtype)
        if swizzle is not None:
            address.swizzle = swizzle
        return address


@dataclass(frozen=True)
class Axis:
    """An axis of an array: its number in `owner`, and the axes that contain it.

    Attributes
    ----------
    size : int
        As in `Bound`.
    outer : tuple
        (start, step, extent, axis) of each axis that it was cut from; index i is there index start + i *
        step.
    """

    number: int
    owner: str
    size: int = 0
    outer: tuple[tuple[Any, Any, Any, Axis], ...] = ()

    def bounds(self, index: Any, extent: Any, stride: Any) -> Iterator[Bound]:
        """The bounds of an index of this axis, whose elements are `stride` elements apart."""
        yield Bound(index, extent, self.axis, self.size, stride=stride)
        for start, step, whole, axis in self.outer:
            apart = stride if step == 1 else None
            at = start + index * step
            yield Bound(at, whole, axis.axis, axis.size, stride=apart, outer=True)

    @property
    def axis(self) -> str:
        return f"axis {self.number} of {self.owner}"

    def cut(self, start: Any, step: int, extent: Any, part: Axis) -> Axis:
        """`part` as the axis of a view from `start` on, of this axis of `extent`."""
        if not builder().checks:
            return part
        start, extent = frozen(start), frozen(extent)
        outer = [(start, step, extent, self)]
        outer += [(s + start * t, t * step, whole, axis) for s, t, whole, axis in self.outer]
        return replace(part, outer=tuple(outer))


def plain_axes(owner: str, strides: Sequence[Any], size: int) -> tuple[Axis, ...]:
    """The axes of an array that is no view; memory runs along the only one of stride 1."""
    unit = [is_number(stride) and stride == 1 for stride in strides]
    along = unit.index(True) if unit.count(True) == 1 else None
    return tuple(Axis(number, owner, size if number == along else 0) for number in range(len(unit)))
