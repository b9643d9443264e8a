"""A launch in machine code: a function that Python calls like one of its own, made by LLVM.

It reads the arguments, finds the plan that they fit, writes what changes from launch to launch,
and calls the driver, the GIL released. What it does not know it leaves to a Python function.
Nothing is compiled where there is no GIL, no 64-bit CPython, or no function of Python that it
needs: `function` returns None there, and launches go the way of `readers`.
"""

from __future__ import annotations

import ctypes
import platform
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import count
from typing import Any

import llvmlite.binding as llvm

from tensorcore_dsl.runtime.native_code import PYTHON, TYPE_AT, Call, Code, Key, Launch, address_of
from tensorcore_dsl.runtime.native_layout import OTHERWISE, WORD, Kind, exchange_of

_FOREIGN: Any = ctypes.CFUNCTYPE(None).__base__  # of all functions of ctypes
_METH_FASTCALL = 0x80
_NOTHING = ctypes.CFUNCTYPE(None)()  # for code that calls no driver


class Table(bytearray):
    """Words that a function reads; `keep` holds what they point at."""

    keep: Any = None


@cache
def available() -> bool:
    """Whether this Python can be extended so."""
    return (
        platform.python_implementation() == "CPython"
        and ctypes.sizeof(ctypes.c_void_p) == WORD
        and object.__basicsize__ == 2 * WORD
        and ctypes.c_uint64.from_address(id(object) + TYPE_AT).value == id(type)
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and all(hasattr(ctypes.pythonapi, name) for name in PYTHON)
    )


def function(kinds: Sequence[Kind], launch: Any, table: Table) -> Callable[..., None] | None:
    """A function of arguments of these kinds that launches by `table`; None where there is none.

    `launch` is cuLaunchKernelEx as a function of `ctypes`.
    """
    found: Callable[..., None] | None = _made(Launch, tuple(kinds), launch, table)
    return found


def driver_call(launch: Any) -> Callable[..., int]:
    """cuLaunchKernelEx, cheaper to call than by `ctypes` where that can be had."""
    found: Callable[..., int] = _made(Call, launch, Table()) or launch
    return found


def key_function(
    classes: Sequence[type], otherwise: Callable[..., Any]
) -> Callable[..., Any] | None:
    """A function of tensors of these classes that tells them apart but for their pointers.

    It returns bytes, or what `otherwise` returns for arguments that it cannot read.
    """
    apis = [(cls, api) for cls in classes if (api := exchange_of(cls))]
    if len(apis) < len(classes):
        return None
    table = Table(2 * WORD)
    table.keep = otherwise
    memoryview(table).cast("Q")[OTHERWISE] = id(otherwise)
    found: Callable[..., Any] | None = _made(Key, tuple(apis), _NOTHING, table)
    return found


def _made(*parts: Any) -> Any:
    """A function of the code that `parts` but for the last describe; None where there is none."""
    *described, launch, table = parts
    if not available() or not isinstance(launch, _FOREIGN):
        return None
    try:
        return _builtin(_compiled(*described, address_of(launch)), table)
    except RuntimeError:  # LLVM knows no machine like this one
        return None


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def _definition(address: int) -> _MethodDef:
    """Lives as long as the process, as machine code does."""
    return _MethodDef(b"launch", address, _METH_FASTCALL, b"Launch a prepared kernel.")


def _builtin(address: int, table: Table) -> Callable[..., None]:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    make.restype = ctypes.py_object
    return make(ctypes.addressof(_definition(address)), table, None)  # type: ignore[no-any-return]


_numbers = count()
_engines: list[Any] = []  # own the machine code


@lru_cache(maxsize=256)
def _compiled(code: Callable[..., Code], *parts: Any) -> int:
    """The address of the function `code(*parts)`; compiled once, and never freed."""
    name = f"launch_{next(_numbers)}"
    module = code(*parts, name).module
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(name))
