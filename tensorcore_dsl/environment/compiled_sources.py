"""Dependencies of a compiled function: the functions and values that it refers to."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict

_IMPORTED = time.time_ns()
SIMPLE = (bool, int, float, complex, str, bytes, np.generic, type(None))


class FunctionKey(EagerDict):
    """The name and the sources of a function's compiled forms, found when they are first needed.

    files: source files that its code depends on, besides its own and those of what it refers to.
    """

    def __init__(self, function: Callable[..., Any], *files: str) -> None:
        self._function: Any = function
        self._files = files

    def name(self) -> str:
        """Key of this function: its file, all code, and the values in it."""
        return repr((self._function.__code__.co_filename, *self._reached[1]))

    def sources(self) -> str:
        """The version of Python, and all source files, by their content."""
        versions = f"python {sys.version_info[:2]}"
        return "\n".join([versions, *map(_content, sorted(self._reached[0]))])

    @cached_property
    def _reached(self) -> tuple[set[str], list[str]]:
        """Source files of the function and of those that it calls, their code and its values."""
        files = set(self._files)
        values: list[str] = []
        _visit(self._function, self._function.__module__.partition(".")[0], files, values, set())
        return files, values


def _visit(x: Any, package: str, files: set[str], values: list[str], seen: set[int]) -> None:
    """Add what `x` stands for: functions of the package, and those that compiled code contains,
    are followed, other ones are not."""
    contained = getattr(x, "py_func", None)
    x = contained or x
    if isinstance(x, SIMPLE):
        values.append(repr(x))
    elif isinstance(x, np.ndarray):
        content = hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()
        values.append(f"{x.dtype} {x.shape} {content}")
    elif isinstance(x, (tuple, list, dict)):
        for item in x.items() if isinstance(x, dict) else x:
            _visit(item, package, files, values, seen)
    elif isinstance(x, np.dtype):
        values.append(str(x))
    elif isinstance(x, FunctionType) and id(x) not in seen:
        seen.add(id(x))
        code = x.__code__
        values.append(repr((code.co_firstlineno, x.__qualname__, code.co_code)))
        if contained or (x.__module__ or "").partition(".")[0] == package:
            files.add(code.co_filename)
            for referred in _referred(x):
                _visit(referred, package, files, values, seen)
    elif isinstance(x, type) and id(x) not in seen:  # whose methods emit code
        seen.add(id(x))
        for base in x.__mro__:
            if base.__module__.partition(".")[0] == package:
                values.append(base.__qualname__)
                for attribute in vars(base).values():
                    if isinstance(attribute, FunctionType):
                        _visit(attribute, package, files, values, seen)


def _referred(function: FunctionType) -> Iterator[Any]:
    """The values of all names and constants in a function: global, of its modules, or enclosed."""
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    for code in _codes(function.__code__):
        yield from (x for x in code.co_consts if not isinstance(x, CodeType))
        values = [function.__globals__[n] for n in code.co_names if n in function.__globals__]
        yield from values
        for module in (x for x in values if isinstance(x, ModuleType)):
            yield from (getattr(module, n) for n in code.co_names if hasattr(module, n))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _content(path: str) -> str:
    """The hash of a file; '' where there is none, as in an archive.

    What is edited while this process runs is not what the process has read: it fits no other one.
    """
    try:
        status = os.stat(path)
        if status.st_mtime_ns > _IMPORTED:
            return f"read by process {os.getpid()} before {status.st_mtime_ns}"
        return _hash(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return ""


@cache
def _hash(path: str, edited: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
