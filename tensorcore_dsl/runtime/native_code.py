"""The machine code of a launch, as LLVM's text: see `native` for what it does.

Pointers are words: Python's, the driver's, ours. The words' places are those of `native_layout`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tensorcore_dsl.runtime.arguments import F32_MAX
from tensorcore_dsl.runtime.native_layout import (
    ALIGN,
    ALIGN_MASK,
    ARGUMENT_WORDS,
    ASK_STREAM,
    BUSY,
    CONFIG,
    COUNT,
    CUDA,
    DEVICE,
    DL_BYTE_OFFSET,
    DL_BYTES,
    DL_DATA,
    DL_DEVICE,
    DL_DTYPE,
    DL_NDIM,
    DL_SHAPE,
    DL_STRIDES,
    DTYPE,
    EXTRA,
    FAILED,
    FIRST,
    FUNCTION,
    HELD,
    IDENTITY,
    IMAGES,
    IMAGES_WORDS,
    LAST,
    MOST_AXES,
    NEXT,
    OTHERWISE,
    PARAMETERS,
    PLACE,
    STREAM_PLACE,
    WORD,
    Exchange,
    Integer,
    Kind,
    NumbaArray,
    Real,
    Same,
    Tensor,
    argument_at,
)

TYPE_AT = 8  # of an object
_NAMES = {name: sys.intern(name) for name in (*HELD, "device_ctypes_pointer", "value")}
_BITS = {"b": 8, "B": 8, "h": 16, "H": 16, "i": 32, "I": 32, "q": 64, "Q": 64}
_WORD, _INT, _DOUBLE = ir.IntType(64), ir.IntType(32), ir.DoubleType()

# Functions of Python that the code calls.
PYTHON = (
    "PyByteArray_AsString", "PyBytes_FromStringAndSize", "PyErr_BadInternalCall", "PyErr_Clear",
    "PyEval_RestoreThread", "PyEval_SaveThread", "PyFloat_AsDouble", "PyLong_AsLongLongAndOverflow",
    "PyLong_AsUnsignedLongLong", "PyLong_FromLongLong", "PyObject_GetAttr", "PyObject_Vectorcall",
    "PyTuple_GetItem", "PyTuple_Size", "Py_DecRef", "Py_IncRef",
)  # fmt: skip


def address_of(function: Any) -> int:
    """Where a function of `ctypes` lies."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class Code:
    """One function of METH_FASTCALL, under construction."""

    def __init__(self, name: str) -> None:
        self.module = ir.Module(name)
        made = ir.Function(self.module, ir.FunctionType(_WORD, [_WORD] * 3), name)
        self.table_object, self.arguments, self.given = made.args
        self.builder = ir.IRBuilder(made.append_basic_block())
        self.miss = made.append_basic_block("miss")
        self.scratch = self._alloca(1)

    def _call_driver(self, launch: int, config: Sequence[Any]) -> Any:
        """cuLaunchKernelEx without the GIL: it may wait for room in the driver's queue."""
        state = self._python("PyEval_SaveThread")
        code = self._call(launch, *config, returns=_INT)
        self._python("PyEval_RestoreThread", state, returns=ir.VoidType())
        return code

    def _ret_otherwise(self, table: Any) -> None:
        """Return what the table's function makes of the arguments."""
        given = (self.arguments, self.given, 0)
        self.builder.ret(self._python("PyObject_Vectorcall", self._load(table, OTHERWISE), *given))

    def _alloca(self, words: int) -> Any:
        made = self.builder.alloca(_WORD, size=_INT(words))
        return self.builder.ptrtoint(made, _WORD)

    def _load(self, base: Any, word: int, more: int = 0, kind: Any = _WORD) -> Any:
        return self.builder.load(self._pointer(base, word * WORD + more, kind))

    def _store(self, base: Any, word: int, value: Any) -> None:
        value = _WORD(value) if isinstance(value, int) else value
        self.builder.store(value, self._pointer(base, word * WORD, value.type))

    def _pointer(self, base: Any, offset: int, kind: Any) -> Any:
        return self.builder.inttoptr(self.builder.add(base, _WORD(offset)), kind.as_pointer())

    def _is(self, value: Any, number: int) -> Any:
        return self.builder.icmp_unsigned("==", value, _WORD(number))

    def _require(self, condition: Any) -> None:
        further = self.builder.append_basic_block()
        self.builder.cbranch(condition, further, self.miss)
        self.builder.position_at_end(further)

    def _require_no_error(self, fine: Any) -> None:
        with self.builder.if_then(self.builder.not_(fine), likely=False):
            self._python("PyErr_Clear", returns=ir.VoidType())
            self.builder.branch(self.miss)

    def _repeat(self, times: Any, body: Callable[[Any], None]) -> None:
        """`body(number)` for numbers from 0 to `times`, which is not 0."""
        before = self.builder.block
        top, end = (self.builder.append_basic_block(n) for n in ("again", "after"))
        self.builder.branch(top)
        self.builder.position_at_end(top)
        number = self.builder.phi(_WORD)
        number.add_incoming(_WORD(0), before)
        body(number)
        following = self.builder.add(number, _WORD(1))
        number.add_incoming(following, self.builder.block)
        self.builder.cbranch(self.builder.icmp_unsigned("<", following, times), top, end)
        self.builder.position_at_end(end)

    def _python(self, name: str, *arguments: Any, returns: Any = _WORD) -> Any:
        return self._call(address_of(getattr(ctypes.pythonapi, name)), *arguments, returns=returns)

    def _call(self, address: int, *arguments: Any, returns: Any) -> Any:
        given = [_WORD(a) if isinstance(a, int) else a for a in arguments]
        kind = ir.FunctionType(returns, [a.type for a in given])
        target = self.builder.inttoptr(_WORD(address), kind.as_pointer())
        return self.builder.call(target, given)


class Call(Code):
    """`launch` as a function of four Python integers, or None for 0."""

    def __init__(self, launch: int, name: str) -> None:
        super().__init__(name)
        self._require(self._is(self.given, 4))
        code = self._call_driver(launch, [self._integer(i) for i in range(4)])
        self.builder.ret(self._python("PyLong_FromLongLong", self.builder.zext(code, _WORD)))
        self.builder.position_at_end(self.miss)
        self._python("PyErr_BadInternalCall", returns=ir.VoidType())
        self.builder.ret(_WORD(0))

    def _integer(self, i: int) -> Any:
        argument = self._load(self.arguments, i)
        none = self._is(argument, id(None))
        number = self.builder.select(none, _WORD(id(0)), argument)
        self._require(self._is(self._load(number, 0, TYPE_AT), id(int)))
        return self._python("PyLong_AsUnsignedLongLong", number)


class Key(Code):
    """What tells tensors apart but for their pointers, as bytes; `classes` with their APIs.

    The table's second function reads what this one cannot.

    For each tensor: device, type, alignment, number of axes, extents and strides.
    """

    def __init__(self, classes: tuple[tuple[type, Exchange], ...], _: int, name: str) -> None:
        super().__init__(name)
        self.tensor = self._alloca(DL_BYTES // WORD)
        self._require(self._is(self.given, len(classes)))
        first = self._alloca(len(classes) * (4 + 2 * MOST_AXES))
        end: Any = first
        for i, (cls, exchange) in enumerate(classes):
            argument = self._load(self.arguments, i)
            self._require(self._is(self._load(argument, 0, TYPE_AT), id(cls)))
            end = self._add(end, argument, exchange)
        size = self.builder.sub(end, first)
        self.builder.ret(self._python("PyBytes_FromStringAndSize", first, size))
        self.builder.position_at_end(self.miss)
        self._ret_otherwise(self._python("PyByteArray_AsString", self.table_object))

    def _add(self, end: Any, argument: Any, exchange: Exchange) -> Any:
        """Write one tensor's words from `end` on; where they end."""
        tensor = self.tensor
        failed = self._call(exchange.tensor, argument, tensor, returns=_INT)
        self._require_no_error(self.builder.icmp_signed("==", failed, _INT(0)))
        ndim = self.builder.zext(self._load(tensor, 0, DL_NDIM, _INT), _WORD)
        self._require(self.builder.icmp_unsigned("<=", ndim, _WORD(MOST_AXES)))
        data, offset = (self._load(tensor, 0, at) for at in (DL_DATA, DL_BYTE_OFFSET))
        align = self.builder.and_(self.builder.add(data, offset), _WORD(ALIGN_MASK))
        dtype = self.builder.zext(self._load(tensor, 0, DL_DTYPE, _INT), _WORD)
        for word, value in enumerate((self._load(tensor, 0, DL_DEVICE), dtype, align, ndim)):
            self._store(end, word, value)
        bytes_ = self.builder.mul(ndim, _WORD(WORD))
        extents = self.builder.add(end, _WORD(4 * WORD))
        strides = self.builder.add(extents, bytes_)
        with self.builder.if_then(self.builder.not_(self._is(ndim, 0))):
            for source, target in ((DL_SHAPE, extents), (DL_STRIDES, strides)):
                numbers = self._load(tensor, 0, source)
                self._require(self.builder.not_(self._is(numbers, 0)))
                self._copy(ndim, numbers, target)
        return self.builder.add(strides, bytes_)

    def _copy(self, words: Any, source: Any, target: Any) -> None:
        def one(number: Any) -> None:
            at = self.builder.mul(number, _WORD(WORD))
            value = self._load(self.builder.add(source, at), 0)
            self._store(self.builder.add(target, at), 0, value)

        self._repeat(words, one)


class Launch(Code):
    """A launch by a table, of arguments of the given kinds."""

    def __init__(self, kinds: tuple[Kind, ...], launch: int, name: str) -> None:
        super().__init__(name)
        self.kinds, self.launch = kinds, launch
        self.tensor = self._alloca(DL_BYTES // WORD)
        self.devices: dict[int, Any] = {}  # of tensors, by argument
        self.facts: dict[
            int, list[Any]
        ] = {}  # of arrays: what a plan has from DEVICE to ALIGN, ...
        self._body()

    def _body(self) -> None:
        table = self._python("PyByteArray_AsString", self.table_object)
        self._require(self._is(self.given, len(self.kinds)))
        values = [self._read(i, kind) for i, kind in enumerate(self.kinds)]
        plan = self._find(self._load(table, FIRST), values)
        self._require(self._is(self._load(plan, BUSY), 0))
        self._store(plan, BUSY, 1)
        for i, (kind, value) in enumerate(zip(self.kinds, values, strict=True)):
            self._write(plan, i, kind, value)
        self._ask_stream(plan)
        self._finish(plan)
        self.builder.position_at_end(self.miss)
        self._ret_otherwise(table)

    # reading

    def _read(self, i: int, kind: Kind) -> Any:
        """The value of an argument; of an array its pointer. Others go to `miss`."""
        argument = self._load(self.arguments, i)
        if isinstance(kind, Same):
            return argument
        cls = getattr(kind, "cls", int if isinstance(kind, Integer) else float)
        self._require(self._is(self._load(argument, 0, TYPE_AT), id(cls)))
        if isinstance(kind, Tensor):
            return self._read_tensor(i, argument, kind)
        if isinstance(kind, NumbaArray):
            return self._read_numba(i, argument, kind)
        if isinstance(kind, Integer):
            return self._read_integer(argument, kind)
        return self._read_real(argument, kind)

    def _read_tensor(self, i: int, argument: Any, kind: Tensor) -> Any:
        tensor = self.tensor
        failed = self._call(kind.exchange.tensor, argument, tensor, returns=_INT)
        self._require_no_error(self.builder.icmp_signed("==", failed, _INT(0)))
        ndim = self._load(tensor, 0, DL_NDIM, _INT)
        self._require(self.builder.icmp_signed("==", ndim, _INT(kind.ndim)))
        numbers = []
        for at in (DL_SHAPE, DL_STRIDES) if kind.ndim else ():
            where = self._load(tensor, 0, at)
            self._require(self.builder.not_(self._is(where, 0)))
            numbers += [self._load(where, axis) for axis in range(kind.ndim)]
        data, offset = (self._load(tensor, 0, at) for at in (DL_DATA, DL_BYTE_OFFSET))
        pointer = self.builder.add(data, offset)
        self.devices[i] = self._load(tensor, 0, DL_DEVICE + 4, _INT)
        dtype = self.builder.zext(self._load(tensor, 0, DL_DTYPE, _INT), _WORD)
        self.facts[i] = [self._load(tensor, 0, DL_DEVICE), dtype, self._align(pointer), *numbers]
        return pointer

    def _read_numba(self, i: int, argument: Any, kind: NumbaArray) -> Any:
        boxed = self._get(self._attribute(argument, "gpu_data"), "device_ctypes_pointer")
        number = self._get(boxed, "value")
        self._release(boxed)
        pointer = self._python("PyLong_AsUnsignedLongLong", number)
        self._release(number)
        self._require_no_error(self.builder.not_(self._is(pointer, 2**64 - 1)))
        self._require(self.builder.not_(self._is(pointer, 0)))
        dtype = self._attribute(argument, "dtype")
        numbers = []
        for name in ("shape", "strides"):
            values = self._attribute(argument, name)
            self._require(self._is(self._load(values, 0, TYPE_AT), id(tuple)))
            self._require(self._is(self._python("PyTuple_Size", values), kind.ndim))
            for axis in range(kind.ndim):
                value = self._python("PyTuple_GetItem", values, axis)
                self._require(self._is(self._load(value, 0, TYPE_AT), id(int)))
                numbers.append(self._python("PyLong_AsLongLongAndOverflow", value, self.scratch))
        self.facts[i] = [_WORD(0), dtype, self._align(pointer), *numbers]
        return pointer

    def _get(self, owner: Any, name: str) -> Any:
        """An attribute, for whoever asks to release."""
        found = self._python("PyObject_GetAttr", owner, id(_NAMES[name]))
        self._require_no_error(self.builder.not_(self._is(found, 0)))
        return found

    def _attribute(self, owner: Any, name: str) -> Any:
        """An attribute that its owner holds, so that it lives as long (`numba_facts` checks it)."""
        found = self._get(owner, name)
        self._release(found)
        return found

    def _release(self, found: Any) -> None:
        self._python("Py_DecRef", found, returns=ir.VoidType())

    def _align(self, pointer: Any) -> Any:
        return self.builder.and_(pointer, _WORD(ALIGN_MASK))

    def _read_integer(self, argument: Any, kind: Integer) -> Any:
        value = self._python("PyLong_AsLongLongAndOverflow", argument, self.scratch)
        overflow = self._load(self.scratch, 0, 0, _INT)
        low = self.builder.icmp_signed(">=", value, _WORD(max(kind.low, -(2**63))))
        high = self.builder.icmp_signed("<=", value, _WORD(min(kind.high, 2**63 - 1)))
        inside = self.builder.and_(low, high)
        fits = self.builder.icmp_signed("==", overflow, _INT(0))
        self._require(self.builder.and_(inside, fits))
        return value

    def _read_real(self, argument: Any, kind: Real) -> Any:
        value = self._python("PyFloat_AsDouble", argument, returns=_DOUBLE)
        if kind.code == "f":
            low = self.builder.fcmp_ordered(">=", value, _DOUBLE(-F32_MAX))
            high = self.builder.fcmp_ordered("<=", value, _DOUBLE(F32_MAX))
            zero = self.builder.fsub(value, value)  # NaN for what is not finite
            odd = self.builder.fcmp_unordered("uno", zero, zero)
            self._require(self.builder.or_(self.builder.and_(low, high), odd))
        return value

    # plans

    def _find(self, first: Any, values: list[Any]) -> Any:
        """The plan that the arguments fit; `miss` if there is none."""
        before = self.builder.block
        top = self.builder.append_basic_block("plan")
        test = self.builder.append_basic_block("fits")
        found = self.builder.append_basic_block("found")
        self.builder.branch(top)
        self.builder.position_at_end(top)
        plan = self.builder.phi(_WORD)
        plan.add_incoming(first, before)
        self.builder.cbranch(self._is(plan, 0), self.miss, test)
        self.builder.position_at_end(test)
        differs: Any = _WORD(0)
        for i, (kind, value) in enumerate(zip(self.kinds, values, strict=True)):
            given = [value] if isinstance(kind, Same) else self.facts.get(i, [])
            for fact, at in zip(given, self._places(i, kind), strict=True):
                unequal = self.builder.xor(fact, self._load(plan, at))
                differs = self.builder.or_(differs, unequal)
        following = self._load(plan, NEXT)
        plan.add_incoming(following, self.builder.block)
        self.builder.cbranch(self._is(differs, 0), found, top)
        self.builder.position_at_end(found)
        return plan

    def _places(self, i: int, kind: Kind) -> list[int]:
        """The words of a plan that the facts of argument `i` must be equal to."""
        at = argument_at(self.kinds, i)
        if isinstance(kind, Same):
            return [at + IDENTITY]
        if not isinstance(kind, (Tensor, NumbaArray)):
            return []
        numbers = range(at + ARGUMENT_WORDS, at + ARGUMENT_WORDS + 2 * kind.ndim)
        return [at + DEVICE, at + DTYPE, at + ALIGN, *numbers]

    # writing

    def _write(self, plan: Any, i: int, kind: Kind, value: Any) -> None:
        at = argument_at(self.kinds, i)
        if isinstance(kind, Same):
            return
        place = self._load(plan, at + PLACE)
        if isinstance(kind, Integer):
            value = self.builder.trunc(value, ir.IntType(_BITS[kind.code]))
        if isinstance(kind, Real) and kind.code == "f":
            value = self.builder.fptrunc(value, ir.FloatType())
        self._store(place, 0, value)
        if isinstance(kind, (Tensor, NumbaArray)):
            images = self._load(plan, at + IMAGES)
            with self.builder.if_then(self.builder.not_(self._is(images, 0))):
                self._place_maps(plan, images, value)

    def _place_maps(self, plan: Any, images: Any, pointer: Any) -> None:
        """Let the parameters' addresses be those of the maps of `pointer`."""
        last = self._load(images, LAST)
        new = self.builder.icmp_unsigned("!=", last, pointer)
        with self.builder.if_then(new, likely=False):
            maps = self._load(images, IMAGES_WORDS)
            places = self.builder.add(images, _WORD(WORD * (IMAGES_WORDS + 1)))
            entry = self._entry(plan, images, maps, pointer)

            def place(number: Any) -> None:
                offset = self.builder.mul(number, _WORD(WORD))
                image = self._load(self.builder.add(entry, offset), 1)
                self._store(self._load(self.builder.add(places, offset), 0), 0, image)

            self._repeat(maps, place)
            self._store(images, LAST, pointer)

    def _entry(self, plan: Any, images: Any, maps: Any, pointer: Any) -> Any:
        """The entry of `pointer` among the images; `miss` if there is none."""
        size = self.builder.mul(self.builder.add(maps, _WORD(1)), _WORD(WORD))
        first = self.builder.add(
            self.builder.add(images, _WORD(WORD * (IMAGES_WORDS + 1))),
            self.builder.mul(maps, _WORD(WORD)),
        )
        end = self.builder.add(first, self.builder.mul(size, self._load(images, COUNT)))
        before = self.builder.block
        top, test, found, none = (
            self.builder.append_basic_block(n) for n in ("entry", "known", "have", "new")
        )
        self.builder.branch(top)
        self.builder.position_at_end(top)
        entry = self.builder.phi(_WORD)
        entry.add_incoming(first, before)
        self.builder.cbranch(self.builder.icmp_unsigned("==", entry, end), none, test)
        self.builder.position_at_end(test)
        entry.add_incoming(self.builder.add(entry, size), test)
        same = self.builder.icmp_unsigned("==", self._load(entry, 0), pointer)
        self.builder.cbranch(same, found, top)
        self.builder.position_at_end(none)
        self._store(plan, BUSY, 0)
        self.builder.branch(self.miss)
        self.builder.position_at_end(found)
        return entry

    def _ask_stream(self, plan: Any) -> None:
        """Write the library's current stream, if the plan wants it."""
        asked = next((i for i, k in enumerate(self.kinds) if isinstance(k, Tensor)), None)
        if asked is None:
            return
        kind = self.kinds[asked]
        assert isinstance(kind, Tensor)
        with self.builder.if_then(self.builder.not_(self._is(self._load(plan, ASK_STREAM), 0))):
            given = (_INT(CUDA), self.devices[asked], self.scratch)
            failed = self._call(kind.exchange.stream, *given, returns=_INT)
            wrong = self.builder.icmp_signed("!=", failed, _INT(0))
            with self.builder.if_then(wrong, likely=False):
                self._python("PyErr_Clear", returns=ir.VoidType())
                self._store(plan, BUSY, 0)
                self.builder.branch(self.miss)
            self._store(self._load(plan, STREAM_PLACE), 0, self._load(self.scratch, 0))

    def _finish(self, plan: Any) -> None:
        config = [self._load(plan, word) for word in (CONFIG, FUNCTION, PARAMETERS, EXTRA)]
        code = self._call_driver(self.launch, config)
        with self.builder.if_then(self.builder.icmp_signed("!=", code, _INT(0)), likely=False):
            number = self._python("PyLong_FromLongLong", self.builder.zext(code, _WORD))
            self._store(self.scratch, 0, number)
            failed = self._load(plan, FAILED)
            result = self._python("PyObject_Vectorcall", failed, self.scratch, 1, 0)
            self._store(plan, BUSY, 0)
            self.builder.ret(result)
        self._store(plan, BUSY, 0)
        self._python("Py_IncRef", id(None), returns=ir.VoidType())
        self.builder.ret(_WORD(id(None)))
