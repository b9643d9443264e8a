"""Cache key of a kernel: a hash of all code that it depends on, equal in every process.

The walk starts at a function. It hashes the text of the function's file, its code, defaults and
closure, and the values of the global names that the code mentions; then, recursively, functions,
classes and modules among these values. Objects of installed packages are hashed by name, with the
versions of their package and of those that it requires, unless their module uses this package.
Other packages do not count. Values that cannot be hashed by their contents raise `Unhashable`;
their kernels are not cached.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import linecache
import os
import struct
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from dis import opmap
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import ml_dtypes
import numpy as np

from tensorcore_dsl.environment.distributions import versions_behind
from tensorcore_dsl.origins import PACKAGE, is_foreign, is_library
from tensorcore_dsl.origins import is_installed as is_installed_file

_PLAIN = (type(None), bool, int, str, bytes, float, complex, type(...), type(NotImplemented))
_CONTAINERS = (list, tuple, dict, set, frozenset)
_UNNAMED = frozenset((*_PLAIN, *_CONTAINERS, types.ModuleType))
_DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)
_IMPORT = opmap["IMPORT_NAME"]
_BY_TEXT = frozenset(("getattr", "vars", "globals", "eval", "exec", "__dict__", "hasattr"))
# Modules through which code reads values that differ between processes.
_OUTSIDE_MODULES = frozenset(
    (
        "datetime",
        "io",
        "os",
        "pathlib",
        "random",
        "secrets",
        "socket",
        "subprocess",
        "sys",
        "tempfile",
        "time",
        "uuid",
    )
)
_OUTSIDE_NAMES = frozenset(("open", "input", "environ", "getenv", "random"))
# Their versions are in every key.
_KNOWN = frozenset(("", PACKAGE, "numpy", "ml_dtypes", *sys.stdlib_module_names))
# Files and folders of this package that only run IR. The evaluator of kernels imports none of them.
OUTSIDE_IR = frozenset(
    (
        "__main__.py",
        "checking",
        "export",
        "interpreter",
        "jax",
        "lowering",
        "numba",
        "numerics",
        "testing.py",
        "torch",
        "tuning",
        "viewer",
        "viz",
    )
)
_CLASS_CLUTTER = frozenset(
    ("__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate_func__",
     "__qualname__", "__abstractmethods__", "_abc_impl", "__annotations_cache__", "__firstlineno__",
     "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__match_args__",
     "__repr__", "__replace__", "__slotnames__"),
)  # fmt: skip


class Unhashable(Exception):
    """A value that cannot be hashed by its contents."""


def cache_key(*values: Any, paths: bool = False, of_ir: bool = False) -> str:
    """Hash the values and all code that they depend on. Raises Unhashable.

    paths: also of the paths of their files. of_ir: the hash names IR, so that the parts of this
    package that run it do not count.
    """
    walk = _Walk(_library_names(tuple(filter(is_library, list(sys.modules)))))
    # This package computes constants with NumPy's types and with those of ml_dtypes.
    versions = sys.version, np.__version__, ml_dtypes.__version__
    walk.visit((*versions, package_state(of_ir)))
    for value in values:
        walk.visit(value)
    if paths:
        walk.put(*map(os.path.abspath, walk.texts))
    return str(walk.digest.hexdigest())


def package_state(of_ir: bool = False) -> str:
    """A hash of the names, sizes and times that this package's files had as it was imported.

    of_ir: only of the files that IR depends on.
    """
    return _IR_STATE if of_ir else _OWN_STATE


@cache
def _state(path: str) -> str:
    """State of a top-level module in a file."""
    folder, name = os.path.split(path)
    if name.startswith("__init__."):
        return _hash(_files(folder))
    return _hash([(path, os.stat(path).st_size, os.stat(path).st_mtime_ns)])


def _hash(files: Iterable[tuple[str, int, int]]) -> str:
    return hashlib.sha256(repr(sorted(files)).encode()).hexdigest()


def _files(folder: str, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of each source file, but for files and folders named in `without`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in without:
                continue
            if entry.name.endswith(".py"):
                facts = entry.stat()
                yield entry.path, facts.st_size, facts.st_mtime_ns
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path)


# Computed at import: later edits of a file, and later installations, do not change the code that this
# process has imported.
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(__file__))
_OWN_STATE = _hash(_files(_PACKAGE_FOLDER))
_IR_STATE = _hash(_files(_PACKAGE_FOLDER, OUTSIDE_IR))


@dataclass
class _Walk:
    """`digest` hashes what is visited. `seen` numbers the visited objects, by identity.

    `library` names this package's objects, by identity, and keeps them alive.
    """

    library: dict[int, tuple[str, Any]]
    digest: Any = field(default_factory=hashlib.sha256)
    seen: dict[int, tuple[int, Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)

    def put(self, *words: object) -> None:
        for word in words:
            encoded = str(word).encode(errors="surrogatepass")
            self.digest.update(struct.pack("<Q", len(encoded)) + encoded)

    def visit(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self.put(type(value).__name__, repr(value))
            return
        if id(value) in self.seen:
            self.put("again", self.seen[id(value)][0])
            return
        self.seen[id(value)] = len(self.seen), value  # alive, so no other object gets its id
        if id(value) in self.library:
            self.put("library", _home(value) or self.library[id(value)][0])
            self.package(getattr(value, "__module__", None))
            return
        for kind, visit in _VISITS:
            if isinstance(value, kind):
                self.put(type(value).__name__)
                visit(self, value)
                return
        self.instance(value)

    def package(self, module: Any) -> None:
        """The versions of an installed module's package, and of those that it requires."""
        package = module.partition(".")[0] if isinstance(module, str) else ""
        if package in self.packages or package in _KNOWN or package not in sys.modules:
            return
        self.packages.add(package)
        versions = versions_behind(package)
        path = getattr(sys.modules[package], "__file__", None)
        if versions is None and path and is_installed_file(path):  # copied there by hand
            versions = (_state(path),)
        self.put("package", package, *(versions or ()))

    def visit_all(self, *values: Any) -> None:
        for value in values:
            self.visit(value)

    def container(self, value: Any) -> None:
        self.visit(type(value))
        self.put(len(value))
        if isinstance(value, dict):
            self.visit_all(*(part for item in value.items() for part in item))
        elif isinstance(value, (set, frozenset)):
            if not all(type(item) in _PLAIN for item in value):
                raise Unhashable(f"a set of {value}")
            self.put(*sorted(map(repr, value)))
        else:
            self.visit_all(*value)
        self.attributes(value)

    def plain_subclass(self, value: Any) -> None:
        """An instance of a subclass of int, str, ..., such as an enumeration."""
        base: Any = next(kind for kind in _PLAIN if isinstance(value, kind))
        self.visit(type(value))
        self.put(base.__repr__(value))
        self.attributes(value)

    def numbers(self, value: Any) -> None:
        if value.dtype.hasobject:
            raise Unhashable("an array of objects")
        self.put(value.dtype, np.shape(value), value.tobytes().hex())

    def instance(self, value: Any) -> None:
        if (function := getattr(value, "__kernel_function__", None)) is not None:
            self.put("kernel", value.threads, value.max_registers, value.min_blocks)
            self.visit(function)
            return
        self.visit(type(value))
        self.put(getattr(value, "__qualname__", ""), getattr(value, "__name__", ""))
        if _hides(type(value)):
            self.pickled(value)
        self.attributes(value)

    def pickled(self, value: Any) -> None:
        """Hash an object of a class in C by its reduction for pickle."""
        try:
            reduced = copyreg.dispatch_table.get(type(value))
            reduction = reduced(value) if reduced else value.__reduce_ex__(2)
        except Exception as error:  # any error of objects that cannot be pickled
            raise Unhashable(f"a {type(value).__qualname__} of hidden contents") from error
        if isinstance(reduction, str):
            self.put(reduction)
            return
        constructor, constructor_arguments, *state = reduction
        self.visit_all(constructor, constructor_arguments, *state[:1])
        for items in state[1:]:
            self.visit(list(items) if items is not None else None)

    def attributes(self, value: Any) -> None:
        if hasattr(value, "__dict__"):
            self.visit(dict(vars(value)))
        for base in type(value).__mro__:
            for name in _slots(base):
                if hasattr(value, name):
                    self.put(name)
                    self.visit(getattr(value, name))

    def module(self, module: types.ModuleType) -> None:
        if not is_opaque(module):
            raise Unhashable(f"{module} not used by its name, so any part of it may be read")
        self.put(module.__name__)
        self.package(module.__name__)

    def function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self.put(function.__module__, function.__qualname__)
        self.visit_all(function.__defaults__, function.__kwdefaults__, function.__dict__)
        cells = dict(bound_cells(function))
        self.put(*cells)
        self.code(code)
        if is_installed(function):
            self.package(function.__module__)
            self.visit_all(*cells.values())
        else:
            self.put(self.text(code.co_filename, function.__globals__))
            self.names(code, {**function.__globals__, **cells})

    def code(self, code: types.CodeType) -> None:
        self.put(code.co_name, code.co_firstlineno, code.co_code.hex(), code.co_names)
        self.put(code.co_varnames, code.co_freevars, code.co_flags)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.code(constant)
            else:
                self.visit(constant)

    def names(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """Global names that the code mentions, and the names that it uses of modules among them."""
        names = sorted(set(code_names(code)))
        if _imports(code) or not _OUTSIDE_NAMES.isdisjoint(code.co_names):
            raise Unhashable(f"{code.co_name}, which imports modules or reads its environment")
        whole = not _BY_TEXT.isdisjoint(names)
        modules = [value for name in names if name in scope for value in [self.named(name, scope)]]
        done: set[int] = set()
        while modules:
            module = modules.pop()
            if isinstance(module, types.ModuleType) and id(module) not in done:
                done.add(id(module))
                inside = vars(module)
                wanted = [n for n in inside if not n.startswith("__")] if whole else names
                if not is_opaque(module):
                    modules += [self.named(n, inside) for n in sorted(wanted) if n in inside]

    def named(self, name: str, scope: dict[str, Any]) -> Any:
        """Hash the value of a name, and return it. The caller hashes what is used of modules."""
        value = scope[name]
        self.put(name)
        is_module = isinstance(value, types.ModuleType)
        origin = value.__name__ if is_module else getattr(value, "__module__", "")
        if origin in _OUTSIDE_MODULES and not isinstance(value, type):
            raise Unhashable(f"{value} gives values that can differ between processes")
        if is_module:
            self.put(value.__name__)
            if is_opaque(value):
                self.package(value.__name__)
        else:
            self.visit(value)
        return value

    def cls(self, cls: type) -> None:
        self.put(cls.__module__, cls.__qualname__)
        if is_installed(cls):
            self.package(cls.__module__)
            return
        module = sys.modules.get(cls.__module__)
        if filename := getattr(module, "__file__", None):
            self.put(self.text(filename, vars(module)))
        self.visit_all(*cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            if name not in _CLASS_CLUTTER:
                self.put(name)
                self.visit(value)

    def text(self, filename: str, scope: dict[str, Any]) -> str:
        """The digest of a source file, as the frontend reads it."""
        if filename not in self.texts:
            linecache.checkcache(filename)
            lines = linecache.getlines(filename, scope)
            self.texts[filename] = hashlib.sha256("".join(lines).encode()).hexdigest()
        return self.texts[filename]

    def builtin(self, function: Any) -> None:
        self.put(function.__module__, function.__qualname__)
        self.package(function.__module__)
        if not isinstance(function.__self__, (types.ModuleType, type(None))):
            self.visit(function.__self__)

    def ufunc(self, ufunc: np.ufunc) -> None:
        """One of NumPy, or of an extension module that holds it."""
        name = ufunc.__name__
        self.put(name)
        if getattr(np, name, None) is not ufunc:
            modules = list(sys.modules.items())
            homes = (n for n, m in modules if is_extension(m) and vars(m).get(name) is ufunc)
            home = next(homes, None)
            if home is None:
                raise Unhashable(f"the ufunc {name} that no extension module holds")
            self.package(home)


_VISITS: list[tuple[Any, Any]] = [
    (types.ModuleType, _Walk.module),
    (types.FunctionType, _Walk.function),
    (types.CodeType, _Walk.code),
    (type, _Walk.cls),
    (types.BuiltinFunctionType, _Walk.builtin),
    (types.MethodType, lambda walk, v: walk.visit_all(v.__func__, v.__self__)),
    (functools.partial, lambda walk, v: walk.visit_all(v.func, v.args, v.keywords)),
    (functools._lru_cache_wrapper, lambda walk, v: walk.visit(v.__wrapped__)),
    (functools.cached_property, lambda walk, v: walk.visit(v.func)),
    ((staticmethod, classmethod), lambda walk, v: walk.visit(v.__func__)),
    (property, lambda walk, v: walk.visit_all(v.fget, v.fset, v.fdel)),
    (types.MappingProxyType, lambda walk, v: walk.visit(dict(v))),
    ((types.GenericAlias, types.UnionType, range, np.dtype), lambda walk, v: walk.put(repr(v))),
    (slice, lambda walk, v: walk.visit_all(v.start, v.stop, v.step)),
    ((np.ndarray, np.generic), _Walk.numbers),
    (np.ufunc, _Walk.ufunc),
    (_CONTAINERS, _Walk.container),
    (_PLAIN, _Walk.plain_subclass),
    (_DESCRIPTORS, lambda walk, v: walk.put(v.__qualname__)),
]


def bound_cells(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Bound variables of enclosing functions."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with suppress(ValueError):
            yield name, cell.cell_contents


def code_names(code: types.CodeType) -> Iterator[str]:
    """Names that code and the code inside it look up, and constants that may be names."""
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _imports(code: types.CodeType) -> bool:
    inside = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return _IMPORT in code.co_code[::2] or any(map(_imports, inside))


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def is_opaque(module: types.ModuleType) -> bool:
    return is_foreign(module.__name__, getattr(module, "__file__", None), vars(module))


def is_extension(module: Any) -> bool:
    """Whether a module is machine code."""
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and path.endswith(tuple(EXTENSION_SUFFIXES))


def is_installed(value: Any) -> bool:
    """Whether the name and the package's version identify a function or class."""
    name = value.__module__ or ""
    if isinstance(value, types.FunctionType):
        return is_foreign(name, value.__code__.co_filename, value.__globals__)
    module = sys.modules.get(name)
    return is_foreign(name, getattr(module, "__file__", None), vars(module or types))


def _hides(cls: type) -> bool:
    """Whether instances hold data outside their attributes, like those of classes in C."""
    known = object.__basicsize__ + 8 * sum(len(_slots(base)) for base in cls.__mro__)
    known += 8 * (cls.__dictoffset__ > 0) + 8 * (cls.__weakrefoffset__ > 0)
    return cls.__basicsize__ > known or cls.__itemsize__ != 0


@functools.lru_cache(maxsize=1)
def _library_names(modules: tuple[str, ...]) -> dict[int, tuple[str, Any]]:
    """Objects that this package's modules name, by identity: the first name, and the object.

    `modules` are in the order of their import: in every process those come first that `import
    tensorcore_dsl` brings, so what is imported later renames nothing. Functions and classes go by
    their homes instead: some of Python's are first named by a module that is imported later.
    """
    names: dict[int, tuple[str, Any]] = {}
    for name in modules:
        module = sys.modules[name]
        for attribute, value in vars(module).items() if module is not None else ():
            if type(value) not in _UNNAMED and id(value) not in names:
                names[id(value)] = f"{name}.{attribute}", value
    return names


def _home(value: Any) -> str | None:
    """`module.name` of a function or class, if it is found there."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    loaded: Any = sys.modules.get(module)
    for part in name.split("."):
        loaded = getattr(loaded, part, None)
    return f"{module}.{name}" if loaded is value else None
