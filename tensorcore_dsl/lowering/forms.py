"""Compiled forms of a function: one for each combination of argument kinds, cached on disk.

Machine code lies in the cache directory (TENSORCORE_DSL_CACHE, read once at import). The key of an entry
holds the function, the kinds, and the values that the function refers to. An entry is valid while its
source files and LLVM stay the same. A read-only directory, a full disk or a damaged entry only costs a
compilation.
"""

from __future__ import annotations

import re
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
BODY = ".body"  # suffix of a form's name: the function that its entry point calls
PART = ".part"  # suffix of a form's name: the function of `entry.emit_part`
# Finds the names of forms that a module calls.
_LINKS = re.compile(rf'^declare .*@"(\w+){re.escape(BODY)}"', re.MULTILINE)
_LOADED: set[str] = set()  # names of forms
COMPILED: list[tuple[str, float]] = []  # functions that this process has compiled, and seconds
COMPILING = RLock()  # emulated blocks run in threads, each of which may compile a loop


@dataclass(frozen=True)
class Part:
    """A compiled function with all arguments bound except `low` and `high`, for calls from compiled code.

    Attributes
    ----------
    function : int
        The address of the function of `entry.emit_part`.
    words : array
        The words that it takes.
    word_numbers : dict
        The first word of each parameter. Arrays among the arguments must outlive it.
    """

    function: int
    words: np.ndarray
    word_numbers: dict[str, int]


class Compiled:
    """A function that is compiled, or loaded, at its first call with each combination of kinds.

    Attributes
    ----------
    lowered
        The `functions.Lowered`.
    level
        See `machine.object_code`.
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
        """Call the function with arguments that no existing form accepts."""
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
        """Return the address of the machine code for these kinds, for calls from compiled code.

        The code takes the arguments' LLVM values (see `values.llvm_types`). None is allowed if all
        parameters are numbers.
        """
        kinds = tuple(self.lowered.parameter_kinds) if kinds is None else kinds
        address = self._bodies.get(kinds)
        if address is None:
            with COMPILING:
                self._made(kinds)
                address = self._bodies[kinds] = machine.address_of(self._symbol(kinds) + BODY)
        return address

    def part(self, *arguments: Any) -> Part:
        """Bind all arguments except `low` and `high`, which the caller passes later."""
        kinds = self._kinds(arguments)
        self._made(kinds)
        words: list[int] = []
        word_numbers = {}
        for name, kind, x in zip(self.lowered.parameters, kinds, arguments, strict=True):
            word_numbers[name] = len(words)
            words += words_of(kind, x)
        function = self._parts.get(kinds)
        if function is None:
            function = self._parts[kinds] = machine.address_of(self._symbol(kinds) + PART)
        return Part(function, np.array(words, np.int64), word_numbers)

    def _kinds(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        annotated = self.lowered.parameter_kinds
        return tuple(kind_of(x) if kind is None else kind for kind, x in zip(annotated, arguments))

    def _made(self, kinds: tuple[Any, ...]) -> Callable[..., Any]:
        """Make the form for these kinds, and keep it for equal functions."""
        with COMPILING:
            form = self._known.get(kinds)
            if form is None:
                form = self._known[kinds] = self._form(kinds)
                self.forms = (*self.forms, form)
        return form

    def _symbol(self, kinds: tuple[Any, ...]) -> str:
        key = self.key.name(), "|".join(map(str, kinds)), machine.processor()
        return disk_cache.entry_name("loop", self.level, *key)

    def _form(self, kinds: tuple[Any, ...]) -> Any:
        name, folder = self._symbol(kinds), directory()
        constants = objects(kinds)
        if _load(name, self.key.sources(), folder):
            return machine.entry(name, constants)
        with compiling(f"{self.py_func.__module__}.{self.__name__}"):
            text = self._module(kinds, name)
            code = machine.object_code(text, self.level)
        if folder:
            links = " ".join(_LINKS.findall(text))
            disk_cache.store(name, code, f"{links}\n{self.key.sources()}", folder)
        machine.load(code)
        _LOADED.add(name)
        return machine.entry(name, constants)

    def declared(self, module: ir.Module, kinds: tuple[Any, ...]) -> ir.Function:
        """Return the LLVM function by which another module calls this one, whose code is loaded."""
        name = self._symbol(kinds) + BODY
        if name not in module.globals:
            self._made(kinds)
            ir.Function(module, self.lowered.type(kinds), name)
        return module.globals[name]

    @without_collections()
    def _module(self, kinds: tuple[Any, ...], symbol: str) -> str:
        """Return the module as LLVM IR text."""
        module = ir.Module()
        called = self.lowered.translated(module, kinds)
        called.linkage, called.name = "external", symbol + BODY
        Entry(called, kinds, self.lowered.result, symbol)
        if {"low", "high"} <= {*self.lowered.parameters} and self.lowered.result == COUNT:
            emit_part(called, kinds, self.lowered.parameters, symbol + PART)
        return str(module)


def _load(name: str, sources: str, folder: Path | None) -> bool:
    """Load code from disk, after the code that it calls; return whether all of it is loaded now.

    sources: the sources of a function that contains or calls it (`FunctionKey.sources`).
    """
    if name in _LOADED:
        return True
    entry = disk_cache.load(name, folder) if folder else None
    links, _, known = entry[1].partition("\n") if entry else ("", "", "")
    if entry is None or not set(sources.splitlines()).issuperset(known.splitlines()):
        return False
    if not all(_load(link, sources, folder) for link in links.split()):
        return False
    try:
        machine.load(entry[0])
    except RuntimeError:  # no object file
        return False
    if not machine.address_of(name):  # the code of another form
        return False
    _LOADED.add(name)
    return True


def directory() -> Path | None:
    """Return the directory of the machine code; None without a cache."""
    usable = _DIRECTORY is not None and is_trusted(_DIRECTORY) and is_trusted(_DIRECTORY / "loops")
    return _LOOPS if usable else None


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Record a compilation, and notify the user if it takes long."""
    _NOTICE.begins()
    began = time.perf_counter()
    try:
        yield
    finally:
        _NOTICE.ends()
    COMPILED.append((what, time.perf_counter() - began))
