"""Objects around a kernel, which the kernel reads and cannot change.

A change would be one of the compilation, not of a launch: it would happen once for each
specialisation, and never where the kernel is found in the cache; and registers of one kernel would
get into the next.
"""

from __future__ import annotations

import types
from array import array
from collections import deque
from collections.abc import Set
from contextlib import suppress
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.origins import is_library
from tensorcore_dsl.values.values import RuntimeValue, Struct

_UNCHANGEABLE = frozenset(
    (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        range,
        slice,
        type(...),
        types.ModuleType,
        types.FunctionType,
        types.BuiltinFunctionType,
        types.MethodType,
        DType,
        type,
    )
)
MAX_ITEMS = 4096  # items of a container; of larger ones, only the length is compared
MAX_BYTES = 1 << 16  # larger arrays are not compared


class Surroundings:
    """The changeable objects around a kernel that it has read, by identity, as they were then."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any, str]] = {}  # object, contents, name

    def enter(self, value: Any, name: str) -> None:
        """Note a value that the kernel reads from around it, and what is inside."""
        if type(value) in _UNCHANGEABLE or id(value) in self._known:
            return
        if isinstance(value, (type, np.generic, RuntimeValue, Struct)):
            return
        if isinstance(value, (tuple, frozenset)):
            self._enter_items(value, name)
            return
        if is_library(type(value).__module__):
            return
        contents = contents_of(value)
        self._known[id(value)] = value, contents, name
        if isinstance(contents, dict):
            self._enter_items(contents.values(), name)
        elif isinstance(contents, list):
            self._enter_items(contents, name)

    def _enter_items(self, items: Any, name: str) -> None:
        for item in items:
            self.enter(item, name)

    def enter_scope(self, function: types.FunctionType, name: str) -> None:
        """Note the values that a function of Python finds by the names of its code."""
        code = function.__code__
        for used in code.co_names:
            self.enter(function.__globals__.get(used), used)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # not bound yet
                self.enter(cell.cell_contents, name)

    def enter_class(self, kind: type) -> None:
        """Note objects that the constructor of a class may change: the class's containers, and globals."""
        for base in kind.__mro__:
            if is_library(base.__module__) or base.__module__ == "builtins":
                continue
            for name, value in vars(base).items():
                if isinstance(value, types.FunctionType):
                    if name in ("__init__", "__new__", "__post_init__"):
                        self.enter_scope(value, name)
                elif not name.startswith("__"):
                    self.enter(value, f"{base.__name__}.{name}")

    def name_of(self, value: Any) -> str | None:
        """The name by which the kernel has read an object, or what contains it; None: its own."""
        known = self._known.get(id(value))
        return known[2] if known is not None else None

    def check(self, value: Any) -> None:
        """OperandError if the object belongs to the code around the kernel."""
        name = self.name_of(value)
        if name is not None:
            self._refuse(name)

    def check_all(self) -> None:
        """OperandError if an object has changed; it gets its contents back."""
        for value, contents, name in self._known.values():
            if differs(value, contents):
                _restore(value, contents)
                self._refuse(name)

    def _refuse(self, name: str) -> None:
        raise OperandError(
            f"{name!r} belongs to the code around the kernel and cannot be changed by it; copy it first"
        )


def contents_of(value: Any) -> Any:
    """A copy of the contents of a changeable object: a list, dict or set; bytes of an array."""
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= MAX_BYTES and not value.dtype.hasobject else None
    if isinstance(value, (list, deque, bytearray, array, dict, Set)):
        if len(value) > MAX_ITEMS:
            return len(value)
        if isinstance(value, dict):
            return dict(value)
        return set(value) if isinstance(value, Set) else list(value)
    attributes = getattr(value, "__dict__", None)
    return dict(attributes) if isinstance(attributes, dict) else None


def differs(value: Any, contents: Any) -> bool:
    """True if an object holds other objects than `contents`. Registers are compared by identity."""
    if isinstance(contents, int):
        return len(value) != contents
    now = contents_of(value)
    if isinstance(contents, dict):
        return _differ([*now, *now.values()], [*contents, *contents.values()])
    if isinstance(contents, set):
        return set(map(id, now)) != set(map(id, contents))
    return _differ(now, contents) if isinstance(contents, list) else now != contents


def _differ(now: list[Any], then: list[Any]) -> bool:
    return len(now) != len(then) or any(
        x is not y and not (type(x) is type(y) is int and x == y) for x, y in zip(now, then, strict=True)
    )


def _restore(value: Any, contents: Any) -> None:
    """The contents from before, where Python lets them be set."""
    if isinstance(contents, bytes):
        value[...] = np.frombuffer(contents, value.dtype).reshape(value.shape)
    elif isinstance(contents, list):
        while value:
            value.pop()
        value.extend(contents)
    elif isinstance(contents, (dict, set)):
        target: Any = value if isinstance(value, (dict, Set)) else vars(value)
        target.clear()
        target.update(contents)
