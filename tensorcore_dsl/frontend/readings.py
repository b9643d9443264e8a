"""Values that a kernel reads from the code around it; a change compiles the kernel again.

The names that the code of a function mentions are looked up as they will be at compile time: in its
closure, among the globals, in modules, classes and objects; and so on in the functions found.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from operator import is_, itemgetter
from typing import Any

import numpy as np

from tensorcore_dsl.codegen.cache_key import bound_cells, code_names, is_installed, is_opaque
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.frontend.environment import children
from tensorcore_dsl.frontend.surroundings import contents_of, differs
from tensorcore_dsl.origins import is_library, is_of_package

_PLAIN = (bool, int, float, complex, str, bytes, type(None), DType, range, slice, np.dtype)
_MISSING = object()


class Readings:
    """The values that functions and objects read by name, as they are now.

    Code of this package, of Python and of installed packages that do not use this one is taken as
    unchangeable; of an object, the attributes that some function names.
    """

    def __init__(self, *values: Any) -> None:
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._seen: dict[int, Any] = {}  # by identity, kept alive
        self._mentioned: set[str] = set()
        self._owners: list[Any] = []  # objects and modules, whose attributes are read by name
        self._attributes: dict[int, Any] = {}  # of the owners, as one mapping each
        self._noted: set[tuple[int, str]] = set()
        self._scopes: Any = None  # of `changed`; None: to be made
        for value in values:
            self.enter(value)

    def changed(self) -> bool:
        """True if one of the values has changed."""
        if self._scopes is None:
            self._scopes = self._by_scope()
        try:  # the usual case, as fast as Python goes: all names still have the same objects
            for scope, values_of, then in self._scopes:
                if not all(map(is_, values_of(scope), then)):
                    return self._compared()
        except KeyError:
            return True
        return bool(self._cells or self._contents) and self._compared()

    def _by_scope(self) -> list[tuple[Mapping[str, Any], Callable[[Any], Any], tuple[Any, ...]]]:
        """The names of each scope together, with their values."""
        of_scope: dict[int, list[tuple[Mapping[str, Any], str, Any]]] = {}
        for entry in self._names:
            of_scope.setdefault(id(entry[0]), []).append(entry)
        by_scope: list[tuple[Mapping[str, Any], Callable[[Any], Any], tuple[Any, ...]]] = []
        for entries in of_scope.values():
            scopes, names, values = zip(*(entries * 2 if len(entries) == 1 else entries))
            by_scope.append((scopes[0], itemgetter(*names), values))  # of one name: no tuple
        return by_scope

    def _compared(self) -> bool:
        """True if a value is another object, or has other contents."""
        return (
            any(_other(scope.get(name, _MISSING), then) for scope, name, then in self._names)
            or any(_other(_content(cell), then) for cell, then in self._cells)
            or any(differs(value, then) for value, then in self._contents)
        )

    def enter(self, value: Any) -> None:
        """Note the values that a function, or a holder of functions, reads."""
        self._enter(value)
        before = -1
        while before != len(self._noted):  # functions that are found mention more names
            before = len(self._noted)
            for owner in list(self._owners):
                scope = self._attributes.setdefault(id(owner), vars(owner))
                for name in self._mentioned & scope.keys():
                    self._note(owner, scope, name)

    def enter_constant(self, value: Any) -> None:
        """Note what a Const value reads; its containers are told apart by their contents anyway."""
        items = children(value)
        for item in items or ():
            self.enter_constant(item)
        if items is None:
            self.enter(value)

    def _note(self, owner: Any, scope: Mapping[str, Any], name: str) -> None:
        if (id(owner), name) in self._noted:
            return
        self._noted.add((id(owner), name))
        self._scopes = None
        value = scope[name]
        if not isinstance(value, types.ModuleType):
            self._names.append((scope, name, value))
        self._enter(value)

    def _enter(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        function = getattr(value, "__kernel_function__", None)
        if function is not None:
            self._enter(function)
        elif isinstance(value, types.ModuleType):
            if not is_opaque(value):
                self._owners.append(value)
        elif isinstance(value, types.FunctionType):
            if not _is_fixed(value):
                self._function(value)
        elif isinstance(value, type):
            if not _is_fixed(value):
                self._owners.append(value)
                self._enter_all(value.__bases__)
        elif (parts := _parts(value)) is not None:
            self._enter_all(parts)
        else:
            self._object(value)

    def _enter_all(self, values: Any) -> None:
        for value in values:
            self._enter(value)

    def _function(self, function: types.FunctionType) -> None:
        names = set(code_names(function.__code__))
        self._mentioned |= names
        for name in names & function.__globals__.keys():
            self._note(function.__globals__, function.__globals__, name)
        for cell in function.__closure__ or ():
            self._cells.append((cell, _content(cell)))
        self._enter_all(value for _, value in bound_cells(function))
        self._enter_all((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))

    def _object(self, value: Any) -> None:
        if isinstance(getattr(value, "__dict__", None), dict):
            if not is_library(type(value).__module__):
                self._owners.append(value)
                self._enter(type(value))
            return
        contents = contents_of(value)
        if contents is not None:
            self._contents.append((value, contents))
        if isinstance(contents, dict):
            self._enter_all(contents.values())
        elif isinstance(contents, (list, set)):
            self._enter_all(contents)


_PARTS: list[tuple[Any, Callable[[Any], Any]]] = [
    ((tuple, frozenset), lambda v: v),
    (types.MethodType, lambda v: (v.__func__, v.__self__)),
    (functools.partial, lambda v: (v.func, v.args, v.keywords)),
    (functools._lru_cache_wrapper, lambda v: (v.__wrapped__,)),
    ((staticmethod, classmethod), lambda v: (v.__func__,)),
    (property, lambda v: (v.fget, v.fset)),
]


def _is_fixed(value: Any) -> bool:
    """True if a function or class is part of this package, or of another that does not use it."""
    return is_of_package(value.__module__ or "") or is_installed(value)


def _parts(value: Any) -> Any:
    """Parts of an unchangeable holder of other values; None for all other objects."""
    return next((parts(value) for kind, parts in _PARTS if isinstance(value, kind)), None)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _MISSING


def _other(now: Any, then: Any) -> bool:
    """True for another value. Numbers and text are compared, all else by identity."""
    if now is then:
        return False
    return type(now) is not type(then) or not isinstance(now, _PLAIN) or repr(now) != repr(then)
