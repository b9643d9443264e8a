"""Descriptions of variables' types, for the debugger's `locals`."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from tensorcore_dsl.ir import views

_MATRIX = re.compile(r"a ((?:shared )?\w* ?(?:fragment|mask|tile))\b")


def matrices(view: views.Container) -> str:
    """`4 f32 fragments of 16x8` for a list (`2 x 2` for lists in a list) of such; else ""."""
    counts: list[int] = []
    items: list[Any] = [view]
    while items and all(isinstance(item, views.Container) for item in items):
        counts.append(len(items[0].items))
        items = [part for item in items for part in item.items.values()]
    kinds = {kind_of(item) for item in items}
    if len(kinds) > 1 or len(items) != prod(counts) or not _MATRIX.match(kind := kinds.pop()):
        return ""
    many = _MATRIX.sub(r"\1s", kind, 1)
    return f"{' x '.join(map(str, counts))} {many}"


def kind_of(view: Any) -> str:
    """The type of a variable, for `locals`."""
    if isinstance(view, views.Register):
        return str(view.dtype)
    if isinstance(view, views.Group):
        layout = view.layout
        if layout is None:
            return f"a vector of {view.dtype}"
        return f"a {view.dtype} fragment of {layout.rows}x{layout.cols}"
    if isinstance(view, views.Matrix):
        return f"a mask of {view.layout.rows}x{view.layout.cols}"
    if isinstance(view, views.TileView):
        swizzle = f", {view.swizzle}-byte swizzle" if view.swizzle else ""
        return f"a shared {view.dtype} tile of {'x'.join(map(str, view.shape))}{swizzle}"
    if isinstance(view, views.ArrayView):
        return f"a {len(view.shape)}-dimensional {view.dtype} array"
    if isinstance(view, views.LocalView):
        return f"a local {view.dtype} array of {'x'.join(map(str, view.shape))}"
    return ""
