"""Functions that Numba compiles, kept on disk for later processes.

An entry lies in the directory of all caches (see TENSORCORE_DSL_CACHE; it is read once, as the
package is imported). It is found by the function, its types and the values that it refers to, and
valid while no source file that it is compiled from has changed, nor Numba. A directory that cannot
be written, a full disk and damaged entries cost a compilation, and nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import binding
from numba import njit
from numba.core import compiler, runtime, serialize

from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.environment.cache_directory import chosen_directory, is_trusted
from tensorcore_dsl.environment.compile_notice import CompileNotice
from tensorcore_dsl.environment.compiled_sources import FunctionKey

_numba: Any = compiler  # without types
_dumps: Any = serialize.dumps
_runtime: Any = runtime
_symbol: Any = binding.address_of_symbol
_DIRECTORY = chosen_directory()
_LOOPS = None if _DIRECTORY is None else _DIRECTORY / "loops"
_NOTICE = CompileNotice(_LOOPS)

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile with Numba for the types of each call; runs without the GIL."""
    return _compiled(function, error_model="numpy")


def _compiled(function: Function, **options: Any) -> Function:
    make: Any = njit(nogil=True, **options)
    dispatcher = make(function)
    dispatcher._cache = LoopCache(function)
    return dispatcher  # type: ignore[no-any-return]


class LoopCache:
    """What Numba asks for the compiled forms of one function: its class `_Cache` names it so."""

    def __init__(self, function: Callable[..., Any], *files: str) -> None:
        self._key = FunctionKey(function, *files)

    @property
    def cache_path(self) -> str | None:
        """Where the entries are, for Numba's statistics."""
        return None if _LOOPS is None else str(_LOOPS)

    def load_overload(self, types: Any, target: Any) -> Any:
        """The compiled form for these types; None if it is missing, old, or damaged."""
        _runtime.rtsys.initialize(target)
        found = self._load(types, target)
        if found is None:
            _NOTICE.begins()
        return found

    def _load(self, types: Any, target: Any) -> Any:
        entry = None if not _usable() else disk_cache.load(self._name(types, target), _LOOPS)
        if entry is None or entry[1] != self._key.sources():
            return None
        try:
            symbols, parts = pickle.loads(entry[0])
            if not all(map(_symbol, symbols)):
                target.refresh()
            return _numba.CompileResult._rebuild(target, *parts)
        except Exception:  # whatever a damaged pickle may raise
            return None

    def save_overload(self, types: Any, result: Any) -> None:
        """Store a compiled form, unless it holds addresses of this process."""
        _NOTICE.ends()
        movable = not result.library.has_dynamic_globals
        if movable and all(loop.can_cache for loop in result.lifted) and _usable():
            name = self._name(types, result.target_context)
            kept = _dumps((_symbols(result.library), result._reduce()))
            disk_cache.store(name, kept, self._key.sources(), _LOOPS)

    def _name(self, types: Any, target: Any) -> str:
        machine = target.codegen().magic_tuple()
        return disk_cache.entry_name("loop", self._key.name(), types, machine)

    def enable(self) -> None:
        """Nothing: the cache is on."""

    def disable(self) -> None:
        """Nothing: TENSORCORE_DSL_CACHE switches it off."""

    def flush(self) -> None:
        """Nothing: old entries are overwritten."""


def _symbols(library: Any) -> list[str]:
    """What a compiled form calls outside of it.

    Numba defines all that compiled code may call when it refreshes its tables, which takes as long
    as hundreds of loads: a form that calls only what is there needs no tables.
    """
    module = library._final_module
    names = [x.name for x in (*module.functions, *module.global_variables) if x.is_declaration]
    return [name for name in names if not name.startswith("llvm.")]


def _usable() -> bool:
    return _DIRECTORY is not None and is_trusted(_DIRECTORY) and is_trusted(_DIRECTORY / "loops")
