"""Views of a user's values, for `print` and the debugger."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tensorcore_dsl.ir import views
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.local import Local
from tensorcore_dsl.lang.mbarrier import Mbarrier, MbarrierArray
from tensorcore_dsl.lang.pointer import Pointer
from tensorcore_dsl.lang.tiles import Tile
from tensorcore_dsl.values.values import Mask, RegisterGroup, Scalar, Struct, Undefined

Register = Callable[[Scalar], views.Register]
_DEPTH = 6  # of containers in containers


def kept_register(scalar: Scalar) -> views.Register:
    """The leaf of views that the debugger reads."""
    return views.Register(scalar.value, scalar.dtype)


def view_of(value: Any, depth: int = _DEPTH) -> Any:
    """The view of a variable's value."""
    if isinstance(value, Scalar):
        return kept_register(value)
    if isinstance(value, RegisterGroup):
        layout = value.operand.layout if value.operand is not None else None
        return views.Group(value.value, value.dtype, layout)
    layout = value.group.layout if isinstance(value, Mask) else None
    if layout is not None and all(isinstance(element, Scalar) for element in value):
        return views.Matrix(tuple(map(kept_register, value)), layout)
    if isinstance(value, Undefined):
        return views.Missing(value.reason)
    if isinstance(value, (Tile, Array)):
        return memory_view(value, kept_register)
    if isinstance(value, Pointer):
        return views.PointerView(kept_register(value.address), value.dtype, value.space)
    if isinstance(value, Mbarrier):
        return views.BarrierView(_extent(value.address, kept_register), None)
    if isinstance(value, MbarrierArray):
        return views.BarrierView(_extent(value.tile.origin, kept_register), len(value))
    if isinstance(value, Local):
        items = tuple(view_of(item, depth - 1) for item in value.items)
        return views.LocalView(items, value.dtype, value.shape, value.strides, value.offset)
    return _container(value, depth) if depth else views.Plain(value)


def _container(value: Any, depth: int) -> Any:
    """The view of a container, or of a value known at compile time."""
    items: dict[Any, Any]
    kind = type(value).__name__
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = dict(zip(value._fields, value, strict=True))
    elif isinstance(value, (list, tuple)):
        items, kind = dict(enumerate(value)), "list" if isinstance(value, list) else "tuple"
    elif isinstance(value, dict):
        items, kind = value, "dict"
    elif isinstance(value, Struct):
        items = {name: getattr(value, name) for name in value.parts}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = dict(getattr(value, "__dict__", {}))
    else:
        return views.Plain(value)
    views_by_key = {key: view_of(item, depth - 1) for key, item in items.items()}
    if all(isinstance(part, views.Plain) for part in views_by_key.values()):
        return views.Plain({"list": list, "dict": dict}.get(kind, _same)(value))  # it may change
    return views.Container(kind, views_by_key)


def _same(value: Any) -> Any:
    return value


def memory_view(value: Tile | Array, register: Register) -> Any:
    """The view of a tile or an array, whose addresses and sizes `register` makes leaves."""
    if isinstance(value, Tile):
        origin, offset = _extent(value.origin, register), _extent(value.offset, register)
        return views.TileView(origin, offset, value.dtype, value.shape, value.strides, value.swizzle)
    shape, strides = (tuple(_extent(x, register) for x in sizes) for sizes in (value.shape, value.strides))
    return views.ArrayView(register(value.address), value.dtype, shape, strides)


def _extent(value: Any, register: Register) -> Any:
    return register(value) if isinstance(value, Scalar) else int(value)
