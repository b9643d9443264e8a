"""Entry points for Python: read arguments, run compiled code without the GIL, pack the result.

Objects are read in memory as CPython and NumPy lay them out: PyObject ends with its type, then come
the fields of PyTupleObject, of PyArrayObject (numpy/ndarraytypes.h) and of CDataObject (ctypes.h). The
entry point returns NotImplemented for arguments of other kinds than the compiled kinds.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.lowering import values
from tensorcore_dsl.lowering.values import COUNT, POINTER, WORD, ArrayKind, CObjectKind, Number, RecordKind

POINTERS = POINTER.as_pointer()
INT = ir.IntType(32)
TYPE = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
ITEMS = tuple.__basicsize__  # offset of a tuple's items
_AT = object.__basicsize__
DATA, NDIM, SHAPE, STRIDES, DTYPE, FLAGS = _AT, _AT + 8, _AT + 16, _AT + 24, _AT + 40, _AT + 48
C_DATA = _AT  # offset of the address of an object of ctypes
CONTIGUOUS = 1  # NPY_ARRAY_C_CONTIGUOUS, a bit of the flags

# The functions of CPython that the code calls: result and parameters.
FUNCTIONS = {
    "Py_IncRef": (ir.VoidType(), [POINTER]),
    "PyEval_SaveThread": (POINTER, []),
    "PyEval_RestoreThread": (ir.VoidType(), [POINTER]),
    "PyErr_Occurred": (POINTER, []),
    "PyErr_Clear": (ir.VoidType(), []),
    "PyObject_IsTrue": (INT, [POINTER]),
    "PyLong_AsLongLong": (WORD, [POINTER]),
    "PyLong_AsUnsignedLongLongMask": (WORD, [POINTER]),
    "PyFloat_AsDouble": (ir.DoubleType(), [POINTER]),
    "PyLong_FromLongLong": (POINTER, [WORD]),
    "PyBool_FromLong": (POINTER, [WORD]),
    "PyFloat_FromDouble": (POINTER, [ir.DoubleType()]),
    "PyTuple_New": (POINTER, [WORD]),
    "PyTuple_SetItem": (INT, [POINTER, WORD, POINTER]),
}


def kind_of(x: Any) -> Any:
    """Return the kind of an argument without annotation."""
    if isinstance(x, np.ndarray):
        if x.dtype.kind in "biuf" and x.dtype.isnative:
            dtype = np.dtype(f"{x.dtype.kind}{x.dtype.itemsize}")
            return ArrayKind(dtype, x.ndim, x.flags.c_contiguous)
    elif isinstance(x, tuple) and hasattr(x, "_fields"):
        return RecordKind(type(x), tuple(map(kind_of, x)))
    elif isinstance(x, (ctypes.Structure, ctypes.Array, ctypes._Pointer)):
        return CObjectKind(type(x))
    elif isinstance(x, values.KNOWN):
        return values.number(x).type
    kind = getattr(x, "dtype", type(x).__name__)
    raise TypeError(f"{kind} in a call of a compiled loop: numbers and arrays of them are allowed")


def canonical(kind: Any, x: Any) -> Any:
    """Convert an argument to an object that code for this kind can read."""
    if isinstance(kind, ArrayKind):
        return np.asarray(x).view(kind.dtype)
    if isinstance(kind, RecordKind):
        return x._make(map(canonical, kind.kinds, x))
    if isinstance(kind, CObjectKind):
        return x
    if kind.kind == "f":
        return float(x)
    if kind == values.BOOLEAN:
        return bool(x)
    return int(x) if isinstance(x, np.bool_) else operator.index(x)


def objects(kinds: Sequence[Any]) -> tuple[Any, ...]:
    """Return the objects that the code compares with and returns. Its entry point gets them as a tuple."""
    by_identity: dict[int, Any] = {id(x): x for x in (NotImplemented, None, np.ndarray)}
    for kind in _all(kinds):
        used = getattr(kind, "named", None) or getattr(kind, "ctype", None)
        used = kind.dtype if isinstance(kind, ArrayKind) else used
        by_identity.setdefault(id(used), used)
    return tuple(by_identity.values())


def _all(kinds: Sequence[Any]) -> Iterator[Any]:
    for kind in kinds:
        yield kind
        if isinstance(kind, RecordKind):
            yield from _all(kind.kinds)


def words_of(kind: Any, x: Any) -> list[int]:
    """Return the words of an argument for the code of `emit_part`; it has no floating-point numbers."""
    if isinstance(kind, RecordKind):
        return [word for pair in zip(kind.kinds, x, strict=True) for word in words_of(*pair)]
    if isinstance(kind, ArrayKind):
        strides = () if kind.contiguous else x.strides
        return [x.__array_interface__["data"][0], *x.shape, *strides]
    if isinstance(kind, CObjectKind):
        return [ctypes.addressof(x)]
    assert kind.kind != "f"
    return [int(x)]


def emit_part(called: ir.Function, kinds: Sequence[Any], parameters: Sequence[str], name: str) -> None:
    """Emit `int64_t name(const int64_t *words, int64_t low, int64_t high)`.

    It calls `called`, whose parameters include `low` and `high`. `words` are the words of all arguments
    (see `words_of`).
    """
    function = ir.Function(called.module, ir.FunctionType(WORD, [WORD.as_pointer(), WORD, WORD]), name)
    words, low, high = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    operands: list[ir.Value] = []
    for parameter, kind in zip(parameters, kinds, strict=True):
        for wanted in values.llvm_types(kind):
            word = builder.load(builder.gep(words, [ir.Constant(WORD, len(operands))]))
            if parameter in ("low", "high"):
                word = low if parameter == "low" else high
            operands.append(values.of_word(builder, wanted, word))
    builder.ret(builder.call(called, operands))


class Entry:
    """Emits `PyObject *name(PyObject *objects, PyObject *const *given, ssize_t count)`."""

    def __init__(self, called: ir.Function, kinds: Sequence[Any], result: Any, name: str) -> None:
        self.module = called.module
        kind = ir.FunctionType(POINTER, [POINTER, POINTERS, WORD])
        self.function = ir.Function(self.module, kind, name)
        self.objects, self.arguments, count = self.function.args
        self.numbers = {id(x): i for i, x in enumerate(objects(kinds))}
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.refused = self.function.append_basic_block()
        right = self.builder.icmp_unsigned("==", count, ir.Constant(WORD, len(kinds)))
        self.expect(right)
        words: list[ir.Value] = []
        for i, wanted in enumerate(kinds):
            at = self.builder.gep(self.arguments, [ir.Constant(WORD, i)])
            words += self.read(wanted, self.builder.load(at))
        state = self.call("PyEval_SaveThread")
        returned = self.builder.call(called, words)
        self.call("PyEval_RestoreThread", state)
        self.builder.ret(self.packed(result, returned))
        self.builder.position_at_end(self.refused)
        self.builder.ret(self.shared(NotImplemented))

    def call(self, name: str, *arguments: ir.Value) -> ir.Value:
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(*FUNCTIONS[name]), name)
        return self.builder.call(function, arguments)

    def expect(self, right: ir.Value) -> None:
        """Continue if `right` holds; otherwise return NotImplemented."""
        block = self.builder.append_basic_block()
        self.builder.cbranch(right, block, self.refused)
        self.builder.position_at_end(block)

    def field(self, x: ir.Value, offset: int, kind: ir.Type = POINTER) -> ir.Value:
        pointer = self.builder.gep(x, [ir.Constant(WORD, offset)])
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()))

    def object(self, x: Any) -> ir.Value:
        return self.field(self.objects, ITEMS + 8 * self.numbers[id(x)])

    def shared(self, x: Any) -> ir.Value:
        """Return an object with a new reference."""
        pointer = self.object(x)
        self.call("Py_IncRef", pointer)
        return pointer

    def same(self, x: ir.Value, expected: Any) -> None:
        self.expect(self.builder.icmp_unsigned("==", x, self.object(expected)))

    def read(self, kind: Any, x: ir.Value) -> list[ir.Value]:
        """Read the LLVM values of an argument."""
        if isinstance(kind, ArrayKind):
            return self.array(kind, x)
        if isinstance(kind, RecordKind):
            self.same(self.field(x, TYPE), kind.named)
            fields = [self.field(x, ITEMS + 8 * i) for i in range(len(kind.kinds))]
            parts = [self.read(*pair) for pair in zip(kind.kinds, fields)]
            return [part for field in parts for part in field]
        if isinstance(kind, CObjectKind):
            self.same(self.field(x, TYPE), kind.ctype)
            return [self.field(x, C_DATA)]
        return [self.number(kind, x)]

    def array(self, kind: ArrayKind, x: ir.Value) -> list[ir.Value]:
        self.same(self.field(x, TYPE), np.ndarray)
        self.same(self.field(x, DTYPE), kind.dtype)
        ndim = self.field(x, NDIM, INT)
        self.expect(self.builder.icmp_unsigned("==", ndim, ir.Constant(INT, kind.ndim)))
        lists = [SHAPE, STRIDES]
        if kind.contiguous:
            flag = self.builder.and_(self.field(x, FLAGS, INT), ir.Constant(INT, CONTIGUOUS))
            self.expect(self.builder.icmp_unsigned("!=", flag, ir.Constant(INT, 0)))
            lists = [SHAPE]
        fields = [self.field(x, DATA)]
        for at in lists if kind.ndim else []:
            numbers = self.field(x, at)
            fields += [self.field(numbers, 8 * i, WORD) for i in range(kind.ndim)]
        return fields

    def number(self, kind: Any, x: ir.Value) -> ir.Value:
        builder = self.builder
        if kind.kind == "f":
            converted = self.call("PyFloat_AsDouble", x)
            failed = builder.fcmp_ordered("==", converted, ir.Constant(converted.type, -1.0))
        else:
            name = "PyLong_AsLongLong" if kind == COUNT else "PyLong_AsUnsignedLongLongMask"
            converted = self.call("PyObject_IsTrue" if kind == values.BOOLEAN else name, x)
            failed = builder.icmp_signed("==", converted, ir.Constant(converted.type, -1))
        with builder.if_then(failed, likely=False):
            raised = builder.icmp_unsigned("!=", self.call("PyErr_Occurred"), POINTER(None))
            with builder.if_then(raised):
                self.call("PyErr_Clear")
                builder.branch(self.refused)
                builder.position_at_end(builder.append_basic_block())
        if kind.kind == "f":
            return converted if kind == values.DOUBLE else builder.fptrunc(converted, ir.FloatType())
        narrow = values.llvm_type(kind)
        return converted if narrow == converted.type else builder.trunc(converted, narrow)

    def packed(self, kind: Any, result: ir.Value) -> ir.Value:
        """Return the result as a new Python object."""
        builder = self.builder
        if kind is None:
            return self.shared(None)
        if isinstance(kind, tuple):
            made = self.call("PyTuple_New", ir.Constant(WORD, len(kind)))
            for i, item in enumerate(kind):
                value = self.packed(item, builder.extract_value(result, i))
                self.call("PyTuple_SetItem", made, ir.Constant(WORD, i), value)
            return made
        if kind.kind == "f":
            return self.call("PyFloat_FromDouble", result)
        name = "PyBool_FromLong" if kind == values.BOOLEAN else "PyLong_FromLongLong"
        return self.call(name, values.cast(builder, COUNT, Number(kind, result)).value)
