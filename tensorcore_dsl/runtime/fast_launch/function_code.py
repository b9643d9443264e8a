"""LLVM IR of a function that Python calls: loads and stores, branches, calls of Python's C API.

A generated function has CPython's METH_FASTCALL signature `(self, args, nargs)`, where `self` is
a bytearray that holds a `Table`. The GIL is held except during cuLaunchKernelEx. Pointers are
64-bit integers in the IR.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from tensorcore_dsl.runtime.fast_launch import memory_layout as layout

I64, I32, VOID = ir.IntType(64), ir.IntType(32), ir.VoidType()

# Functions of Python that the code calls.
PYTHON_FUNCTIONS = (
    "PyByteArray_AsString", "PyBytes_FromStringAndSize", "PyDict_GetItem", "PyErr_Clear",
    "PyErr_Occurred", "PyEval_RestoreThread", "PyEval_SaveThread", "PyFloat_AsDouble",
    "PyLong_AsLongLongAndOverflow", "PyLong_AsUnsignedLongLong", "PyLong_FromLongLong",
    "PyObject_GetAttr", "PyObject_Vectorcall", "PyObject_VectorcallMethod", "PyTuple_GetItem",
    "PyTuple_Size", "Py_DecRef", "Py_IncRef",
)  # fmt: skip


def address_of(function: Any) -> int:
    """The address of a ctypes function."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class Code:
    """One METH_FASTCALL function under construction. Block `miss` calls the fallback."""

    def __init__(self, name: str) -> None:
        self.module = ir.Module(name)
        function = ir.Function(self.module, ir.FunctionType(I64, [I64] * 3), name)
        table, self.args, self.nargs = function.args
        self.builder = ir.IRBuilder(function.append_basic_block())
        self.miss = function.append_basic_block("miss")
        self.scratch = self._alloca(layout.WORD)
        self.table = self._python("PyByteArray_AsString", table)

    def _return_fallback(self) -> None:
        """Return the result of the table's fallback for the same arguments."""
        self.builder.position_at_end(self.miss)
        fallback = self._load(self.table, layout.Table.fallback)
        self.builder.ret(self._python("PyObject_Vectorcall", fallback, self.args, self.nargs, 0))

    def _alloca(self, size: int) -> Any:
        words = self.builder.alloca(I64, size=I32(-(-size // layout.WORD)))
        return self.builder.ptrtoint(words, I64)

    def _load(self, base: Any, field: Any) -> Any:
        """A field of a ctypes structure, widened to a word."""
        value = self._load_at(base, field.offset, ir.IntType(8 * field.size))
        return value if field.size == layout.WORD else self.builder.zext(value, I64)

    def _load_at(self, base: Any, offset: int = 0, kind: Any = I64) -> Any:
        return self.builder.load(self._pointer(base, offset, kind))

    def _store(self, base: Any, field: Any, value: Any) -> None:
        self._store_at(base, I64(value) if isinstance(value, int) else value, field.offset)

    def _store_at(self, base: Any, value: Any, offset: int = 0) -> None:
        self.builder.store(value, self._pointer(base, offset, value.type))

    def _pointer(self, base: Any, offset: int, kind: Any) -> Any:
        return self.builder.inttoptr(self.builder.add(base, I64(offset)), kind.as_pointer())

    def _element(self, base: Any, index: Any) -> Any:
        """The address of a word of an array."""
        return self.builder.add(base, self.builder.mul(index, I64(layout.WORD)))

    def _load_element(self, base: Any, index: Any) -> Any:
        return self._load_at(self._element(base, index))

    def _equal(self, value: Any, other: Any) -> Any:
        other = value.type(other) if isinstance(other, int) else other
        return self.builder.icmp_unsigned("==", value, other)

    def _require(self, condition: Any) -> None:
        """Go to `miss` unless the condition holds."""
        holds = self.builder.append_basic_block()
        self.builder.cbranch(condition, holds, self.miss)
        self.builder.position_at_end(holds)

    def _require_success(self, condition: Any) -> None:
        """Clear Python's error and go to `miss` unless the condition holds."""
        with self.builder.if_then(self.builder.not_(condition), likely=False):
            self._python("PyErr_Clear", returns=VOID)
            self.builder.branch(self.miss)

    def _no_error(self) -> Any:
        return self._equal(self._python("PyErr_Occurred"), 0)

    def _repeat(self, times: Any, body: Callable[[Any], None]) -> None:
        """`body(number)` for numbers from 0 to `times`, exclusive."""
        before = self.builder.block
        test, again, end = (self.builder.append_basic_block() for _ in range(3))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        number = self.builder.phi(I64)
        number.add_incoming(I64(0), before)
        self.builder.cbranch(self.builder.icmp_unsigned("<", number, times), again, end)
        self.builder.position_at_end(again)
        body(number)
        number.add_incoming(self.builder.add(number, I64(1)), self.builder.block)
        self.builder.branch(test)
        self.builder.position_at_end(end)

    def _python(self, name: str, *arguments: Any, returns: Any = I64) -> Any:
        return self._call(address_of(getattr(ctypes.pythonapi, name)), *arguments, returns=returns)

    def _call(self, address: int, *arguments: Any, returns: Any = I32) -> Any:
        values = [I64(a) if isinstance(a, int) else a for a in arguments]
        kind = ir.FunctionType(returns, [a.type for a in values])
        target = self.builder.inttoptr(I64(address), kind.as_pointer())
        return self.builder.call(target, values)

    def _release(self, owned: Any) -> None:
        self._python("Py_DecRef", owned, returns=VOID)
