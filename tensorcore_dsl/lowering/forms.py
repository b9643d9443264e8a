"""The compiled forms of a function, one for each combination of kinds of arguments.

Machine code lies in the directory of all caches (see TENSORCORE_DSL_CACHE; it is read once, as the
package is imported). An entry is found by the function, the kinds and the values that it refers to,
and valid while no source file that it is compiled from has changed, nor LLVM. A directory that
cannot be written, a full disk and damaged entries cost a compilation, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.environment.cache_directory import chosen_directory, is_trusted
from tensorcore_dsl.environment.compile_notice import CompileNotice
from tensorcore_dsl.environment.compiled_sources import FunctionKey
from tensorcore_dsl.environment.processors import without_collections
from tensorcore_dsl.lowering import machine
from tensorcore_dsl.lowering.entry import Entry, canonical, emit_part, kind_of, objects, words_of
from tensorcore_dsl.lowering.values import COUNT

_DIRECTORY = chosen_directory()
_LOOPS = None if _DIRECTORY is None else _DIRECTORY / "loops"
_NOTICE = CompileNotice(_LOOPS)
_SOURCES = tuple(map(str, sorted(Path(__file__).parent.glob("*.py"))))
BODY = ".body"  # behind the name of a form: of the function that its entry calls
PART = ".part"  # the same of `entry.emit_part`
COMPILED: list[tuple[str, float]] = []  # what this process has compiled, in how many seconds
COMPILING = RLock()  # emulated blocks run in threads, each of which may compile a loop


@dataclass(frozen=True)
class Part:
    """A compiled function with arguments, but for `low` and `high`, for the code of others.

    function: the address of what `entry.emit_part` makes; words: what it takes, and places: by
    parameter, where in these it begins. The arrays among the arguments must outlive it.
    """

    function: int
    words: np.ndarray
    places: dict[str, int]


class Compiled:
    """A function that is compiled, or loaded, when it is first called with arguments of a kind.

    lowered: the `functions.Lowered`. level: see `machine.object_code`.
    """

    def __init__(self, lowered: Any, level: int) -> None:
        self.lowered, self.level = lowered, level
        self.py_func = self.__wrapped__ = lowered.py_func
        self.__doc__, self.__name__ = lowered.py_func.__doc__, lowered.py_func.__name__
        self.key = FunctionKey(lowered.py_func, *_SOURCES)
        self.forms: tuple[Callable[..., Any], ...] = ()
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._bodies: dict[tuple[Any, ...], int] = {}
        self._parts: dict[tuple[Any, ...], int] = {}  # addresses, which take long to find

    def __call__(self, *arguments: Any) -> Any:
        for form in self.forms:
            result = form(*arguments)
            if result is not NotImplemented:
                return result
        return self._first(arguments)

    def _first(self, arguments: Sequence[Any]) -> Any:
        """A call with arguments that no form takes as they are."""
        annotated = self.lowered.parameter_kinds
        if len(arguments) != len(annotated):
            raise TypeError(f"{self.__name__} takes {len(annotated)} arguments")
        kinds = self._kinds(arguments)
        form = self._made(kinds)
        result = form(*map(canonical, kinds, arguments))
        if result is NotImplemented:
            raise TypeError(f"{self.__name__} is given numbers beyond 64 bits")
        return result

    def address(self, kinds: tuple[Any, ...] | None = None) -> int:
        """Where the machine code for arguments of these kinds is, to be called from others.

        It takes their parts (see `values.llvm_types`). Without kinds: of a function of numbers alone.
        """
        kinds = tuple(self.lowered.parameter_kinds) if kinds is None else kinds
        found = self._bodies.get(kinds)
        if found is None:
            with COMPILING:
                self._made(kinds)
                found = self._bodies[kinds] = machine.address_of(self._symbol(kinds) + BODY)
        return found

    def part(self, *arguments: Any) -> Part:
        """The function with these arguments, in place of whose `low` and `high` others come."""
        kinds = self._kinds(arguments)
        self._made(kinds)
        words: list[int] = []
        places = {}
        for name, kind, x in zip(self.lowered.parameters, kinds, arguments, strict=True):
            places[name] = len(words)
            words += words_of(kind, x)
        function = self._parts.get(kinds)
        if function is None:
            function = self._parts[kinds] = machine.address_of(self._symbol(kinds) + PART)
        return Part(function, np.array(words, np.int64), places)

    def _kinds(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        annotated = self.lowered.parameter_kinds
        return tuple(kind_of(x) if kind is None else kind for kind, x in zip(annotated, arguments))

    def _made(self, kinds: tuple[Any, ...]) -> Callable[..., Any]:
        """The form for arguments of these kinds, which others with the same then use, too."""
        with COMPILING:
            form = self._known.get(kinds)
            if form is None:
                form = self._known[kinds] = self._form(kinds)
                self.forms = (*self.forms, form)
        return form

    def _symbol(self, kinds: tuple[Any, ...]) -> str:
        parts = self.key.name(), "|".join(map(str, kinds)), machine.processor()
        return disk_cache.entry_name("loop", self.level, *parts)

    def _form(self, kinds: tuple[Any, ...]) -> Any:
        name, place = self._symbol(kinds), directory()
        entry = disk_cache.load(name, place) if place else None
        own = objects(kinds)
        if entry is not None and entry[1] == self.key.sources():
            try:
                return machine.loaded(entry[0], name, own)
            except RuntimeError:  # no object file
                pass
        with compiling(f"{self.py_func.__module__}.{self.__name__}"):
            code = machine.object_code(self._module(kinds, name), self.level)
        if place:
            disk_cache.store(name, code, self.key.sources(), place)
        return machine.loaded(code, name, own)

    @without_collections()
    def _module(self, kinds: tuple[Any, ...], symbol: str) -> str:
        """In LLVM's language."""
        module = ir.Module()
        called = self.lowered.function(module, kinds)
        called.linkage, called.name = "external", symbol + BODY
        Entry(called, kinds, self.lowered.result, symbol)
        if {"low", "high"} <= {*self.lowered.parameters} and self.lowered.result == COUNT:
            emit_part(called, kinds, self.lowered.parameters, symbol + PART)
        return str(module)


def directory() -> Path | None:
    """Directory of the machine code, if there is a cache."""
    usable = _DIRECTORY is not None and is_trusted(_DIRECTORY) and is_trusted(_DIRECTORY / "loops")
    return _LOOPS if usable else None


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Tells users that code is being compiled, where that takes long, and notes it."""
    _NOTICE.begins()
    began = time.perf_counter()
    try:
        yield
    finally:
        _NOTICE.ends()
    COMPILED.append((what, time.perf_counter() - began))
