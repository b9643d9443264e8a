"""Python variables of a kernel under evaluation: frames, containers, snapshots.

The evaluator evaluates a block of run-time control flow once, although it may run many times or
never. So it must find every variable that the block changed: names, items of lists and
dictionaries, attributes of dataclasses. Containers of the same structure are compared and joined
item by item.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import numpy as np

from tensorcore_dsl.errors import Loc
from tensorcore_dsl.frontend.source import Source
from tensorcore_dsl.lang.local import Local
from tensorcore_dsl.origins import is_library
from tensorcore_dsl.values.values import Mask, RuntimeValue, Struct, Undefined

_SIMPLE = (bool, int, float, str, bytes, type(None), np.generic)
MISSING = Undefined("it was never assigned")
Container = Any  # a list, or a dict


@dataclass
class Frame:
    """The variables of one function under evaluation.

    Attributes
    ----------
    enclosing
        The frame or the cells in which free names are looked up.
    nonlocals : set
        Names that assignments bind there.
    conditions : int
        The number of enclosing run-time `if`s in this function.
    """

    function: str
    source: Source
    variables: dict[str, Any]
    enclosing: Any
    globals: dict[str, Any]
    caller: Loc | None = None
    is_kernel: bool = False
    nonlocals: set[str] = field(default_factory=set)
    conditions: int = 0
    locs: dict[ast.AST, Loc] = field(default_factory=dict)

    @property
    def cells(self) -> dict[str, Any]:
        """The variables of the Python functions around this function."""
        enclosing = self.enclosing
        while isinstance(enclosing, Frame):
            enclosing = enclosing.enclosing
        return enclosing  # type: ignore[no-any-return]

    def owner(self, name: str) -> Frame | None:
        """Find the innermost frame, from this one outwards, that has the variable `name`."""
        frame: Any = self
        while isinstance(frame, Frame):
            if name in frame.variables:
                return frame
            frame = frame.enclosing
        return None


# -- containers ------------------------------------------------------------------------------


def is_record(value: Any) -> bool:
    """An instance of a user's dataclass."""
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and hasattr(value, "__dict__")
        and not is_library(type(value).__module__)
    )


def is_frozen(record: Any) -> bool:
    return bool(type(record).__dataclass_params__.frozen)


def storage(value: Any) -> Container | None:
    """The list or dictionary that changes when `value` is changed in place."""
    if isinstance(value, (list, dict)):
        return value
    if isinstance(value, Local):
        return value.items
    if is_record(value) and not is_frozen(value):
        return value.__dict__
    return None


def children(value: Any) -> list[Any] | None:
    """The items of a container, in order; None for any other value."""
    kind = type(value)
    if kind is list or isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Struct):
        return [getattr(value, name) for name in value.parts]
    if isinstance(value, Local):
        return value.items
    if is_record(value):
        return list(value.__dict__.values())
    return None


def rebuilt(like: Any, items: list[Any]) -> Any:
    """A container of the structure of `like` with these items; `like` itself if none differs."""
    if storage(like) is None and all(map(is_, items, children(like) or ())):
        return like
    if isinstance(like, Mask):
        return Mask(items, like.group)
    if isinstance(like, list):
        return items
    if isinstance(like, tuple):
        return type(like)(*items) if hasattr(like, "_fields") else tuple(items)
    if isinstance(like, dict):
        twin = copy.copy(like)  # with the factory of a defaultdict
        twin.update(zip(like, items, strict=True))
        return twin
    if isinstance(like, Struct):
        return like.joined(items)
    if isinstance(like, Local):
        return Local(items, like.dtype, like.shape, like.strides, like.offset)
    return _record(type(like), dict(zip(like.__dict__, items, strict=True)))


def _record(kind: type, attributes: dict[str, Any]) -> Any:
    """An instance of a dataclass, made without its __init__."""
    record: Any = object.__new__(kind)
    record.__dict__.update(attributes)
    return record


def structure(value: Any) -> Any:
    """A key that is equal for containers with corresponding items; None for other values."""
    if isinstance(value, (list, tuple)):
        return type(value), len(value)
    if isinstance(value, dict):
        return type(value), tuple(value)
    if isinstance(value, Struct):
        return type(value), tuple(value.fixed().items())
    if isinstance(value, Local):
        return Local, value.dtype, value.shape, value.strides, value.offset, len(value.items)
    if is_record(value):
        return type(value), tuple(value.__dict__)
    return None


def columns(values: list[Any]) -> list[list[Any]] | None:
    """The corresponding items of containers; None unless all have the same structure."""
    wanted = structure(values[0])
    if wanted is None or any(structure(v) != wanted for v in values[1:]):
        return None
    rows = [children(v) or [] for v in values]
    lengths = {len(row) for row in rows}
    return [list(c) for c in zip(*rows, strict=True)] if len(lengths) == 1 else None


def own_copy(value: Any) -> Any:
    """A copy of a Const argument, whose containers the kernel may change."""
    items = children(value)
    if items is None or isinstance(value, Struct):
        return value
    copies = [own_copy(item) for item in items]
    if storage(value) is None and all(map(is_, copies, items)):
        return value
    return rebuilt(value, copies)


def same(left: Any, right: Any) -> bool:
    """True if two values are the same object, register or constant."""
    if left is right:
        return True
    if isinstance(left, RuntimeValue) and isinstance(right, RuntimeValue):
        return left.value is right.value and left.dtype == right.dtype  # type: ignore[attr-defined]
    if isinstance(left, _SIMPLE) and type(left) is type(right):
        return repr(left) == repr(right)  # 0.0 differs from -0.0, NaN equals NaN
    return False


# -- snapshots -------------------------------------------------------------------------------

Contents = list[Container]  # copies of all containers of a snapshot, at one time


class Snapshot:
    """The contents of all containers that the frames reach, to compare with and to restore.

    A container's number is its index in `containers`; a *slot* is a number and a key.
    """

    def __init__(self, frames: list[Frame]) -> None:
        self.containers: list[Container] = []
        self.copies: Contents = []
        self._numbers: dict[int, int] = {}
        for frame in frames:
            self._save(frame.variables)
            self._enter(frame.variables)

    def _save(self, container: Container) -> bool:
        if id(container) in self._numbers:
            return False
        self._numbers[id(container)] = len(self.containers)
        self.containers.append(container)
        self.copies.append(container.copy())
        return True

    def _enter(self, value: Any) -> None:
        for item in children(value) or ():
            if isinstance(item, (RuntimeValue, *_SIMPLE)):
                continue
            container = storage(item)
            if container is None or self._save(container):
                self._enter(item)

    def number(self, container: Container) -> int | None:
        """The number of a container; None if it is newer than the snapshot."""
        return self._numbers.get(id(container))

    def holds(self, value: Any) -> bool:
        """True if any container held this object."""
        return any(
            item is value
            for copied in self.copies
            for item in (copied.values() if isinstance(copied, dict) else copied)
        )

    def contents(self) -> Contents:
        """The current contents of the containers."""
        return [container.copy() for container in self.containers]

    def frozen(self) -> Contents:
        """The current contents, with copies of newer containers, which may still change."""
        contents = self.contents()
        for copied, old in zip(contents, self.copies, strict=True):
            for key in keys_of(copied):
                value = copied[key]
                if isinstance(value, (RuntimeValue, *_SIMPLE)) or _item(old, key) is value:
                    continue
                if self.number(storage(value)) is None:
                    copied[key] = own_copy(value)
        return contents

    def resolved(self, value: Any, contents: Contents) -> Any:
        """A copy of `value` in which all containers have the contents of `contents`."""
        number = self.number(storage(value))
        if number is None:
            items = children(value)
            if items is None:
                return value
            return rebuilt(value, [self.resolved(item, contents) for item in items])
        then = contents[number]
        if isinstance(then, dict):
            filled = copy.copy(then)
            filled.update((key, self.resolved(item, contents)) for key, item in then.items())
            return filled if isinstance(value, dict) else _record(type(value), filled)
        return rebuilt(value, [self.resolved(item, contents) for item in then])

    def changed(self) -> bool:
        """True if any container holds other objects than at the snapshot."""
        return any(map(_differs, self.containers, self.copies))

    def restore(self) -> None:
        """Restore the contents of the snapshot."""
        self.put(self.copies)

    def put(self, contents: Contents) -> None:
        """Set the contents of all containers."""
        for container, wanted in zip(self.containers, contents, strict=True):
            if isinstance(container, list):
                container[:] = wanted
            else:
                container.clear()
                container.update(wanted)


def _item(container: Container, key: Any) -> Any:
    if isinstance(container, list):
        return container[key] if key < len(container) else MISSING
    return container.get(key, MISSING)


def _differs(now: Container, then: Container) -> bool:
    if len(now) != len(then):
        return True
    if isinstance(now, list):
        return not all(map(is_, now, then))
    return now.keys() != then.keys() or not all(map(is_, now.values(), then.values()))


def keys_of(container: Container) -> Iterator[Any]:
    """The indices of a list, or the keys of a dictionary."""
    return iter(range(len(container))) if isinstance(container, list) else iter(container)


def name_of(frames: list[Frame], container: Container) -> str:
    """The expression by which the user reaches a container, for messages."""

    def search(value: Any, name: str, depth: int) -> str | None:
        if storage(value) is container:
            return name
        items = children(value) if depth else None
        keys = value if isinstance(value, dict) else range(len(items or ()))
        for key, item in zip(keys, items or (), strict=False):
            expression = search(item, f"{name}[{key!r}]", depth - 1)
            if expression:
                return expression
        return None

    for frame in reversed(frames):
        for name, value in frame.variables.items():
            expression = search(value, name, 4)
            if expression:
                return expression
    return "a container"
