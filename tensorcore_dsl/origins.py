"""Origin of code: this package, Python, an installed package, or the user."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

PACKAGE = __name__.partition(".")[0]
_KERNELS = f"{PACKAGE}.kernels."
_STDLIB = os.path.dirname(os.__file__) + os.sep


def is_of_package(module: str) -> bool:
    """True if the module is part of this package, its kernels included."""
    return module.partition(".")[0] == PACKAGE


@cache
def is_library(module: str) -> bool:
    """True for modules of the library. False for `tensorcore_dsl.kernels`, at whose lines errors point."""
    return is_of_package(module) and not is_library_kernel(module)


def is_library_kernel(module: str) -> bool:
    """True if the module is part of `tensorcore_dsl.kernels`."""
    return f"{module}.".startswith(_KERNELS)


def shown_name(filename: str) -> str:
    """The name of a file in messages: of a notebook's cell "Cell In[3]", as IPython has it."""
    running = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = running() if running is not None else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    cell = named(filename) if named is not None else None
    return " ".join(cell) if cell else filename


def is_pythons(module: str, filename: str | None) -> bool:
    """True for modules of Python's library, which users' modules of the same names are not."""
    if module.partition(".")[0] not in sys.stdlib_module_names:
        return False
    if filename is None or filename.startswith("<frozen"):
        return True
    return filename.startswith(_STDLIB) and not is_installed(filename)


def is_installed(filename: str | None) -> bool:
    """True if a package manager has installed a file."""
    if not filename or "site-packages" in filename or "dist-packages" in filename:
        return bool(filename)
    for folder in sys.path:
        root = os.path.join(folder, "")
        if folder and filename.startswith(root):
            name = filename[len(root) :].partition(os.sep)[0]
            if name in _installed_into(folder):
                return True
    return False


@cache
def _installed_into(folder: str) -> frozenset[str]:
    """Names that pip has put directly into a folder, as `pip install --target` does."""
    with suppress(OSError):
        if any(name.endswith(".dist-info") for name in os.listdir(folder)):
            distributions = import_module("importlib.metadata").distributions(path=[folder])
            return frozenset(file.parts[0] for one in distributions for file in one.files or ())
    return frozenset()


def is_foreign(module: str, filename: str | None, scope: Mapping[str, Any]) -> bool:
    """True if a module is of this library or Python, or is installed and does not use this package.

    scope: the module's variables. Functions of other modules may be kernel code.
    """
    if is_library(module) or is_pythons(module, filename):
        return True
    return is_installed(filename) and not _uses_package(module, scope)


_verdicts: dict[str, bool] = {}


def _uses_package(module: str, scope: Mapping[str, Any]) -> bool:
    if module not in _verdicts:
        _verdicts[module] = any(map(_comes_from_package, list(scope.values())))
    return _verdicts[module]


def _comes_from_package(value: Any) -> bool:
    """True if the value is a module of this package, or defined in one."""
    name = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
    owner = getattr(value, "__module__", None)
    return any(isinstance(n, str) and is_of_package(n) for n in (name, owner))
