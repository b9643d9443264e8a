"""Compiles the machine code of the fast launch path to functions that Python calls directly.

There are none without a GIL, outside 64-bit CPython, or where Python lacks a function that the
code calls: `launch_function` and `key_function` then return None.
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

from tensorcore_dsl.lowering.machine import builtin
from tensorcore_dsl.runtime.fast_launch import function_code, machine_code
from tensorcore_dsl.runtime.fast_launch.argument_kinds import Kind
from tensorcore_dsl.runtime.fast_launch.memory_layout import WORD, Table

_CTYPES_FUNCTION: Any = ctypes.CFUNCTYPE(None).__base__  # base class of all functions of ctypes
_OPTIMISED = 1  # LLVM's level of code generation


class FunctionTable(bytearray):
    """A `Table` that a function reads. `keep` owns the objects that the table and the code point to."""

    def __init__(self, fallback: Callable[..., Any], keep: Any = None) -> None:
        super().__init__(ctypes.sizeof(Table))
        self.fields = Table.from_buffer(self)
        self.fields.fallback = id(fallback)
        self.keep: tuple[Any, ...] = fallback, keep


@cache
def available() -> bool:
    """True if this Python can call the generated machine code."""
    return (
        platform.python_implementation() == "CPython"
        and ctypes.sizeof(ctypes.c_void_p) == WORD
        and object.__basicsize__ == machine_code.HEAD_BYTES
        and ctypes.c_uint64.from_address(id(object) + machine_code.TYPE_OFFSET).value == id(type)
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and all(hasattr(ctypes.pythonapi, name) for name in function_code.PYTHON_FUNCTIONS)
    )


def launch_function(
    kinds: Sequence[Kind], own_stream: bool, driver: Any, table: FunctionTable
) -> Callable[..., None] | None:
    """A function that launches arguments of these kinds by the plans of `table`.

    `driver` is cuLaunchKernelEx as a function of ctypes.
    """
    if not isinstance(driver, _CTYPES_FUNCTION):
        return None
    address = function_code.address_of(driver)
    return _native(table, _OPTIMISED, machine_code.Launch, tuple(kinds), own_stream, address)


def key_function(
    kinds: Sequence[Kind], fallback: Callable[..., Any], optimise: bool = True, written: int = 0
) -> Callable[..., Any] | None:
    """A function that returns the key of arguments of these kinds as bytes.

    It returns what `fallback` returns for arguments that machine code cannot read. Code that is
    not optimised is compiled in a fifth of the time. written: see plans.key_function.
    """
    level = _OPTIMISED if optimise else 0
    return _native(FunctionTable(fallback), level, machine_code.Key, tuple(kinds), written)


def _native(table: FunctionTable, *code: Any) -> Callable[..., Any] | None:
    if not available():
        return None
    table.keep = table.keep, code  # The code compares with the addresses of these classes.
    try:
        return _builtin(_compiled(*code), table)
    except RuntimeError:  # LLVM cannot generate code for this processor
        return None


def _builtin(address: int, table: FunctionTable) -> Callable[..., Any]:
    launcher: Callable[..., Any] = builtin(address, table, b"launch", b"Launch a prepared kernel.")
    return launcher


_numbers = count()
_engines: list[Any] = []  # own the machine code


@lru_cache(maxsize=256)
def _compiled(level: int, code: Callable[..., machine_code.Reader], *parts: Any) -> int:
    """The address of the function `code(*parts)`: compiled once, never freed."""
    name = f"launch_{next(_numbers)}"
    module = code(*parts, name).module
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=level)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(name))
