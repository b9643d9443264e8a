"""Views for the debugger and `print`: a user's value as registers, addresses and sizes.

A view is made of the value of a variable while the kernel is evaluated, and read while it runs. Its
leaves are `Register`s. An `Extent` is such a register or a number known at compile time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Union

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.layout import Layout


@dataclass(frozen=True)
class Register:
    """A scalar of each thread: an IR value, or the number of an operand of `print`."""

    value: Any
    dtype: DType


Extent = Union[Register, int]


@dataclass(frozen=True)
class Group:
    """A vector, or (`layout`) a fragment, in the registers of one IR value."""

    value: Any
    dtype: DType
    layout: Layout | None


@dataclass(frozen=True)
class Matrix:
    """A fragment with a register for each slot of its layout."""

    slots: tuple[Register, ...]
    layout: Layout


@dataclass(frozen=True)
class Printed:
    """A matrix, tile or array that `print` shows; spec: the format of its elements, or ""."""

    view: Any
    spec: str


@dataclass(frozen=True)
class TileView:
    """A tile of shared memory: see `lang.tiles.Tile`; strides are in elements."""

    origin: Extent
    offset: Extent
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class ArrayView:
    """An array in global memory; strides are in elements."""

    address: Register
    dtype: DType
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]


@dataclass(frozen=True)
class PointerView:
    address: Register
    dtype: DType
    space: str


@dataclass(frozen=True)
class BarrierView:
    """`count` mbarriers in shared memory from `address` on; None: one that is not an array."""

    address: Extent
    count: int | None


@dataclass(frozen=True)
class LocalView:
    """A local array: element `index` is `items[offset + index . strides]`."""

    items: tuple[Any, ...]
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, eq=False)
class Container:
    """A list, tuple, dict or record: `kind` and its items by key."""

    kind: str
    items: Mapping[Any, Any]


@dataclass(frozen=True, eq=False)
class Plain:
    """A value known at compile time."""

    value: Any


@dataclass(frozen=True)
class Missing:
    """A variable without a value; `reason` completes "it cannot be shown: ..."."""

    reason: str


@dataclass(eq=False)
class Scope:
    """The variables of one function at a point of its code: views by name.

    outside: mappings in which names are looked up that the function does not have.
    """

    function: str
    variables: dict[str, Any]
    outside: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


def values_of(view: Any) -> Iterator[Any]:
    """The IR values of a view."""
    if isinstance(view, (Register, Group)):
        yield view.value
    elif isinstance(view, Container):
        for item in view.items.values():
            yield from values_of(item)
    elif isinstance(view, tuple):
        for item in view:
            yield from values_of(item)
    elif not isinstance(view, (Plain, Missing)) and hasattr(view, "__dataclass_fields__"):
        for part in fields(view):
            yield from values_of(getattr(view, part.name))
