"""The Python variables of a kernel under evaluation, as control flow must see them.

Run-time control flow evaluates a block once although it may run many times or never. So the
evaluator must find every variable whose content the block changed: names, list items,
attributes of dataclasses, parts of tiles. A *leaf* is such a place, named by its path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.frontend.language import Local
from tensorcore_dsl.frontend.values import Runtime, Struct

Path = tuple[Any, ...]
Visit = Callable[[Path, Any], Any]


@dataclass
class Frame:
    """The variables of one function being evaluated; `cells` are those of enclosing functions."""

    function: str
    filename: str
    first_line: int
    variables: dict[str, Any] = field(default_factory=dict)
    enclosing: Any = None
    globals: dict[str, Any] = field(default_factory=dict)
    is_kernel: bool = False


@dataclass(frozen=True)
class Undefined:
    """A name that only some paths through run-time control flow have bound."""

    reason: str


def visit(frames: list[Frame], function: Visit) -> None:
    """Replace every leaf by `function(path, leaf)`, changing containers in place."""
    seen: set[int] = set()
    for depth, frame in enumerate(frames):
        _visit_items(frame.variables, (depth,), function, seen)


def _visit_items(items: Any, path: Path, function: Visit, seen: set[int]) -> None:
    """Dictionary or list, in place, each once."""
    if id(items) in seen:
        return
    seen.add(id(items))
    keys = list(items) if isinstance(items, dict) else range(len(items))
    for key in keys:
        old = items[key]
        new = _rewrite(old, (*path, key), function, seen)
        if new is not old:
            items[key] = new


def _rewrite(value: Any, path: Path, function: Visit, seen: set[int]) -> Any:
    if isinstance(value, Runtime):
        return function(path, value)
    if isinstance(value, (list, dict)):
        _visit_items(value, path, function, seen)
        return value
    if isinstance(value, Local):
        _visit_items(value.items, (*path, "items"), function, seen)
        return value
    if isinstance(value, tuple):
        return _rewrite_tuple(value, path, function, seen)
    if isinstance(value, Struct):
        return _rewrite_struct(value, path, function, seen)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        if not type(value).__module__.startswith("tensorcore_dsl."):
            _visit_items(value.__dict__, path, function, seen)
            return value
    return function(path, value)


def _rewrite_tuple(value: tuple[Any, ...], path: Path, function: Visit, seen: set[int]) -> Any:
    parts = [_rewrite(v, (*path, i), function, seen) for i, v in enumerate(value)]
    if all(new is old for new, old in zip(parts, value, strict=True)):
        return value
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _rewrite_struct(value: Struct, path: Path, function: Visit, seen: set[int]) -> Any:
    changed = {}
    for name in value.parts:
        old = getattr(value, name)
        new = _rewrite(old, (*path, name), function, seen)
        if new is not old:
            changed[name] = new
    return value.with_parts(**changed) if changed else value


def capture(frames: list[Frame]) -> dict[Path, Any]:
    """Every leaf by its path."""
    leaves: dict[Path, Any] = {}

    def note(path: Path, leaf: Any) -> Any:
        leaves[path] = leaf
        return leaf

    visit(frames, note)
    return leaves


class Snapshot:
    """The contents of all containers, to be put back in place."""

    def __init__(self, frames: list[Frame]) -> None:
        self._saved: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        for frame in frames:
            self._save(frame.variables)

    def _save(self, value: Any) -> None:
        if isinstance(value, Local):
            value = value.items
        if isinstance(value, tuple):
            for item in value:
                self._save(item)
            return
        items = value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            items = getattr(value, "__dict__", None)
        if not isinstance(items, (list, dict)) or id(items) in self._seen:
            return
        self._seen.add(id(items))
        self._saved.append((items, items.copy()))
        for item in items.values() if isinstance(items, dict) else items:
            self._save(item)

    def restore(self) -> None:
        for items, copy in self._saved:
            if isinstance(items, list):
                items[:] = copy
            else:
                items.clear()
                items.update(copy)


def same(left: Any, right: Any) -> bool:
    """Do two leaves hold the same thing?"""
    if isinstance(left, Runtime) or isinstance(right, Runtime):
        both = isinstance(left, Runtime) and isinstance(right, Runtime)
        return both and left.value is right.value
    if left is right:
        return True
    simple = (bool, int, float, str, bytes, type(None))
    if isinstance(left, simple) and type(left) is type(right):
        return bool(left == right) or (left != left and right != right)
    return False


def name_of(path: Path) -> str:
    """How a user would write the place."""
    text = str(path[1]) if len(path) > 1 else "?"
    for step in path[2:]:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text


def cannot_carry(path: Path, before: Any, after: Any, where: str) -> OperandError:
    return OperandError(
        f"{name_of(path)} changes from {before!r} to {after!r} in {where}; only numbers, "
        "predicates, fragments and pointers can change at run time"
    )
