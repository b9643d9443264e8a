"""Machine code of the fast launch path, generated as LLVM IR; function_code.py has its parts."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from tensorcore_dsl.runtime.arguments import F32_MAX
from tensorcore_dsl.runtime.array_interop import DLTensor, forward_mode
from tensorcore_dsl.runtime.fast_launch import argument_kinds
from tensorcore_dsl.runtime.fast_launch import memory_layout as layout
from tensorcore_dsl.runtime.fast_launch.function_code import I32, I64, VOID, Code

TYPE_OFFSET = 8  # of the type in a Python object
HEAD_BYTES = 16  # of a Python object
MAX_ELEMENT_BYTES = 16
_CUDA = 2  # DLDeviceType
_BITS = {"b": 8, "B": 8, "h": 16, "H": 16, "i": 32, "I": 32, "q": 64, "Q": 64, "f": 32, "d": 64}
_DOUBLE, _FLOAT = ir.DoubleType(), ir.FloatType()


_names: dict[int, str] = {}  # by address: machine code, which is never freed, refers to them


def address_of_name(name: str) -> int:
    """The address of the interned name of an attribute, which is valid to the end of the process."""
    name = sys.intern(name)
    _names[id(name)] = name
    return id(name)


class Reader(Code):
    """Reads arguments of known kinds and writes their key: all properties but pointers and numbers.

    The key of an array is its device, dtype, alignment, extents and strides. `key` is its
    address, `end` the address past it. written: see plans.key_function.
    """

    def __init__(self, kinds: Sequence[argument_kinds.Kind], name: str, written: int = 0) -> None:
        super().__init__(name)
        self.kinds = kinds
        self.tensor = self._alloca(ctypes.sizeof(DLTensor))
        self.spans: list[tuple[Any, Any]] | None = [] if written else None
        words = len(kinds) * (5 + 2 * layout.MAX_AXES + written) or 1
        self.key = self.end = self._alloca(layout.WORD * words)
        self.devices: dict[int, Any] = {}  # of tensors, by argument
        self._require(self._equal(self.nargs, len(kinds)))
        forward = forward_mode()
        if forward is not None and any(getattr(kind, "grad_mode", None) for kind in kinds):
            self._require_no_level(vars(forward))
        self.values = [self._read(i, kind) for i, kind in enumerate(kinds)]
        for i in range(written):
            for j in range(i + 1, len(kinds)):
                self._append(self._distance(i, j))

    @property
    def key_bytes(self) -> Any:
        return self.builder.sub(self.end, self.key)

    def _append(self, *words: Any) -> None:
        for word in words:
            self._store_at(self.end, word)
            self.end = self.builder.add(self.end, I64(layout.WORD))

    def _append_all(self, count: Any, word: Callable[[Any], Any]) -> None:
        start = self.end
        self._repeat(count, lambda i: self._store_at(self._element(start, i), word(i)))
        self.end = self._element(start, count)

    def _read(self, i: int, kind: argument_kinds.Kind) -> Any:
        """The value to store into the parameter: a pointer or a number."""
        argument = self._load_at(self.args, layout.WORD * i)
        if isinstance(kind, argument_kinds.Same):
            self._append(argument)
            return None
        self._require(self._equal(self._load_at(argument, TYPE_OFFSET), id(kind.cls)))
        if isinstance(kind, argument_kinds.Array) and kind.grad_mode is not None:
            self._require_no_gradient(argument, kind)
        if isinstance(kind, argument_kinds.Tensor):
            return self._tensor(i, argument, kind)
        if isinstance(kind, argument_kinds.AttributeArray):
            return self._attribute_array(argument, kind)
        if isinstance(kind, argument_kinds.Integer):
            return self._integer(argument, kind)
        if isinstance(kind, argument_kinds.Real):
            return self._real(argument, kind)
        if isinstance(kind, argument_kinds.Bool):
            return self.builder.zext(self._equal(argument, id(True)), I32)
        return self._numpy_scalar(argument, kind)

    def _require_no_level(self, forward: dict[str, Any]) -> None:
        """Go to `miss` inside a level of forward mode, where a tensor may have a tangent.

        CPython has one object for each small integer, so for -1 too.
        """
        level = self._python("PyDict_GetItem", id(forward), address_of_name("_current_level"))
        self._require(self._equal(level, id(-1)))

    def _require_no_gradient(self, argument: Any, kind: argument_kinds.Array) -> None:
        """Go to `miss` if the array requires a gradient, and its library records gradients."""
        getter = layout.getter_of(kind.cls, "requires_grad")
        if getter is None:
            required = self._get(argument, ("requires_grad",))
        else:  # without Python's look-up of the attribute, which takes longer than reading it
            required = self._call(getter.get, argument, getter.closure, returns=I64)
            self._require_success(self.builder.not_(self._equal(required, 0)))
        with self.builder.if_then(self._is_true(required), likely=False):
            recording = self._python("PyObject_Vectorcall", id(kind.grad_mode), 0, 0, 0)
            self._require_success(self.builder.not_(self._equal(recording, 0)))
            self._require(self.builder.not_(self._is_true(recording)))

    def _is_true(self, owned: Any) -> Any:
        """True if an object is Python's True. It is released."""
        self._release(owned)
        return self._equal(owned, id(True))

    def _add_span(self, pointer: Any, shape: Any, strides: Any, ndim: Any, unit: Any) -> None:
        """Note the span of an array in bytes, if overlaps matter.

        shape, strides: addresses of `ndim` words; unit: bytes that a stride counts. The span may
        be a few bytes too long: the greatest element is added after the last one.
        """
        if self.spans is None:
            return
        low, high = self._alloca(layout.WORD), self._alloca(layout.WORD)
        self._store_at(low, pointer)
        self._store_at(high, self.builder.add(pointer, I64(MAX_ELEMENT_BYTES)))

        def widen(axis: Any) -> None:
            steps = self.builder.sub(self._load_element(shape, axis), I64(1))
            reach = self.builder.mul(self._load_element(strides, axis), steps)
            reach = self.builder.mul(reach, unit)
            negative = self.builder.icmp_signed("<", reach, I64(0))
            end = self.builder.select(negative, low, high)
            self._store_at(end, self.builder.add(self._load_at(end), reach))

        self._repeat(ndim, widen)
        self.spans.append((self._load_at(low), self._load_at(high)))

    def _distance(self, i: int, j: int) -> Any:
        """Bytes from array i to array j; a number that is none where their spans lie apart."""
        assert self.spans is not None
        (low, high), (other_low, other_high) = self.spans[i], self.spans[j]
        near = self.builder.and_(
            self.builder.icmp_unsigned("<", low, other_high), self.builder.icmp_unsigned("<", other_low, high)
        )
        distance = self.builder.sub(self.values[j], self.values[i])
        return self.builder.select(near, distance, I64(1 << 63))

    def _append_array(self, device: Any, dtype: Any, pointer: Any) -> None:
        self._append(device, dtype, self.builder.and_(pointer, I64(layout.ALIGNMENT_MASK)))

    def _tensor(self, i: int, argument: Any, kind: argument_kinds.Tensor) -> Any:
        tensor = self.tensor
        failed = self._call(kind.tensor_from_object, argument, tensor)
        self._require_success(self._equal(failed, 0))
        ndim = self._load(tensor, DLTensor.ndim)
        self._require(self.builder.icmp_unsigned("<=", ndim, I64(layout.MAX_AXES)))
        pointer = self.builder.add(
            self._load(tensor, DLTensor.data), self._load(tensor, DLTensor.byte_offset)
        )
        self.devices[i] = self._load_at(tensor, DLTensor.device_id.offset, I32)
        device = self._load_at(tensor, DLTensor.device_type.offset)  # and device_id
        dtype = self._load_at(tensor, DLTensor.code.offset, I32)  # and bits, lanes
        self._append_array(device, self.builder.zext(dtype, I64), pointer)
        self._append(ndim)
        numbers_of = [self._load(tensor, field) for field in (DLTensor.shape, DLTensor.strides)]
        for numbers in numbers_of:
            known = self.builder.not_(self._equal(numbers, 0))
            self._require(self.builder.or_(known, self._equal(ndim, 0)))
            self._append_all(ndim, partial(self._load_element, numbers))
        bits = self._load_at(tensor, DLTensor.bits.offset, ir.IntType(8))
        size = self.builder.lshr(self.builder.zext(bits, I64), I64(3))
        self._add_span(pointer, numbers_of[0], numbers_of[1], ndim, size)
        return pointer

    def _attribute_array(self, argument: Any, kind: argument_kinds.AttributeArray) -> Any:
        pointer = self._number(argument, kind.pointer)
        device = self._number(argument, kind.device) if kind.device else I64(0)
        dtype = self._get(argument, ("dtype",))
        self._release(dtype)  # the array, and the plan that this identity is compared with, hold it
        self._append_array(device, dtype, pointer)
        shape, ndim = self._append_tuple(argument, "shape")
        strides, _ = self._append_tuple(argument, kind.strides)
        if self.spans is not None:
            unit = self._number(argument, kind.stride_unit) if kind.stride_unit else I64(1)
            self._add_span(pointer, shape, strides, ndim, unit)
        return pointer

    def _get(self, owner: Any, path: Sequence[str]) -> Any:
        """An attribute of an attribute ..., or a method's result; the caller releases it."""
        value = owner
        for name in path:
            interned = address_of_name(name.removesuffix("()"))
            if name.endswith("()"):
                self._store_at(self.scratch, value)
                arguments = (interned, self.scratch, 1, 0)
                attribute = self._python("PyObject_VectorcallMethod", *arguments)
            else:
                attribute = self._python("PyObject_GetAttr", value, interned)
            if value is not owner:
                self._release(value)
            self._require_success(self.builder.not_(self._equal(attribute, 0)))
            value = attribute
        return value

    def _number(self, owner: Any, path: Sequence[str]) -> Any:
        return self._unsigned(self._get(owner, path))

    def _unsigned(self, number: Any) -> Any:
        """The value of a Python integer, which is released."""
        value = self._python("PyLong_AsUnsignedLongLong", number)
        self._release(number)
        self._require_success(self._no_error())
        return value

    def _append_tuple(self, owner: Any, name: str) -> tuple[Any, Any]:
        """Append the length of a tuple of integers, and its elements; their address and count."""
        values = self._get(owner, (name,))
        count = self._python("PyTuple_Size", values)
        fits = self.builder.icmp_unsigned("<=", count, I64(layout.MAX_AXES))
        count = self.builder.select(fits, count, I64(0))
        self._append(count)

        def element(number: Any) -> Any:
            item = self._python("PyTuple_GetItem", values, number)
            return self._python("PyLong_AsLongLongAndOverflow", item, self.scratch)

        start = self.end
        self._append_all(count, element)
        self._release(values)
        self._require_success(self.builder.and_(fits, self._no_error()))
        return start, count

    def _integer(self, argument: Any, kind: argument_kinds.Integer) -> Any:
        value = self._python("PyLong_AsLongLongAndOverflow", argument, self.scratch)
        overflow = self._load_at(self.scratch, 0, I32)
        self._require(self._equal(overflow, 0))
        self._require(self.builder.icmp_signed(">=", value, I64(kind.low)))
        self._require(self.builder.icmp_signed("<=", value, I64(kind.high)))
        bits = _BITS[kind.code]
        return value if bits == 64 else self.builder.trunc(value, ir.IntType(bits))

    def _real(self, argument: Any, kind: argument_kinds.Real) -> Any:
        value = self._python("PyFloat_AsDouble", argument, returns=_DOUBLE)
        self._require_success(self._no_error())
        if kind.code == "d":
            return value
        low = self.builder.fcmp_ordered(">=", value, _DOUBLE(-F32_MAX))
        high = self.builder.fcmp_ordered("<=", value, _DOUBLE(F32_MAX))
        difference = self.builder.fsub(value, value)  # NaN for infinities and NaN
        special = self.builder.fcmp_unordered("uno", difference, difference)
        self._require(self.builder.or_(self.builder.and_(low, high), special))
        return self.builder.fptrunc(value, _FLOAT)

    def _numpy_scalar(self, argument: Any, kind: argument_kinds.NumpyScalar) -> Any:
        value = self._load_at(argument, HEAD_BYTES, ir.IntType(8 * kind.size))
        bits = _BITS[kind.code]
        return value if bits == 8 * kind.size else self.builder.zext(value, ir.IntType(bits))


class Key(Reader):
    """Returns the key of the arguments as bytes."""

    def __init__(self, kinds: Sequence[argument_kinds.Kind], written: int, name: str) -> None:
        super().__init__(kinds, name, written)
        self.builder.ret(self._python("PyBytes_FromStringAndSize", self.key, self.key_bytes))
        self._return_fallback()


class Launch(Reader):
    """Launches the plan whose key equals that of the arguments.

    own_stream: launches join the current stream of the first array's library; else the stream
    is fixed. The plan is marked as busy before other Python code can run, so it stays alive.
    """

    def __init__(
        self, kinds: Sequence[argument_kinds.Kind], own_stream: bool, driver: int, name: str
    ) -> None:
        super().__init__(kinds, name)
        plan = self._find_plan()
        self._require(self._equal(self._load(plan, layout.Plan.busy), 0))
        self._store(plan, layout.Plan.busy, 1)
        miss, self.miss = self.miss, self.builder.append_basic_block("release")
        if own_stream:
            self._store_at(self._load(plan, layout.Plan.stream_at), self._current_stream(plan))
        arrays = [i for i, kind in enumerate(kinds) if isinstance(kind, argument_kinds.Array)]
        maps = {i: self._load_at(plan, _argument(i, layout.Argument.maps)) for i in arrays}
        entries = {i: self._find_entry(maps[i], self.values[i]) for i in arrays}
        for i, value in enumerate(self.values):
            if value is not None:
                self._store_at(self._load_at(plan, _argument(i, layout.Argument.value_at)), value)
        for i in arrays:
            self._place_maps(maps[i], entries[i], self.values[i])
        self._launch(plan, driver)
        self.builder.position_at_end(self.miss)
        self._store(plan, layout.Plan.busy, 0)
        self.builder.branch(miss)
        self.miss = miss
        self._return_fallback()

    def _find_plan(self) -> Any:
        """The plan with the key of the arguments; `miss` if there is none."""
        first, key_bytes = self._load(self.table, layout.Table.first_plan), self.key_bytes
        before = self.builder.block
        plans, size, words, word, following, fits = (self.builder.append_basic_block() for _ in range(6))
        self.builder.branch(plans)
        self.builder.position_at_end(plans)
        plan = self.builder.phi(I64)
        plan.add_incoming(first, before)
        self.builder.cbranch(self._equal(plan, 0), self.miss, size)
        self.builder.position_at_end(size)
        same = self._equal(self._load(plan, layout.Plan.key_bytes), key_bytes)
        key = self._load(plan, layout.Plan.key)
        self.builder.cbranch(same, words, following)
        self.builder.position_at_end(words)
        offset = self.builder.phi(I64)
        offset.add_incoming(I64(0), size)
        self.builder.cbranch(self._equal(offset, key_bytes), fits, word)
        self.builder.position_at_end(word)
        mine, its = (self._load_at(self.builder.add(base, offset)) for base in (self.key, key))
        offset.add_incoming(self.builder.add(offset, I64(layout.WORD)), word)
        self.builder.cbranch(self._equal(mine, its), words, following)
        self.builder.position_at_end(following)
        plan.add_incoming(self._load(plan, layout.Plan.next_plan), following)
        self.builder.branch(plans)
        self.builder.position_at_end(fits)
        return plan

    def _current_stream(self, plan: Any) -> Any:
        """The current stream of the first array's library."""
        numbered = enumerate(self.kinds)
        i, kind = next((i, kind) for i, kind in numbered if argument_kinds.has_stream(kind))
        if isinstance(kind, argument_kinds.Tensor):
            failed = self._call(kind.current_stream, I32(_CUDA), self.devices[i], self.scratch)
            self._require_success(self._equal(failed, 0))
            return self._load_at(self.scratch)
        function = self._load(plan, layout.Plan.stream_function)
        number = self._python("PyObject_Vectorcall", function, 0, 0, 0)
        self._require_success(self.builder.not_(self._equal(number, 0)))
        return self._unsigned(number)

    def _find_entry(self, maps: Any, pointer: Any) -> Any:
        """The entry of an array's tensor maps, or 0 where nothing has to be placed.

        `miss` if the maps are not encoded yet.
        """
        start = self.builder.block
        check, search, test, done = (self.builder.append_basic_block() for _ in range(4))
        self.builder.cbranch(self._equal(maps, 0), done, check)
        self.builder.position_at_end(check)
        first = self._load(maps, layout.Maps.entries)
        end = self._load(maps, layout.Maps.entries_end)
        size = self._element(I64(layout.WORD), self._load(maps, layout.Maps.count))
        placed = self._equal(self._load(maps, layout.Maps.pointer), pointer)
        self.builder.cbranch(placed, done, search)
        self.builder.position_at_end(search)
        entry = self.builder.phi(I64)
        entry.add_incoming(first, check)
        self.builder.cbranch(self._equal(entry, end), self.miss, test)
        self.builder.position_at_end(test)
        entry.add_incoming(self.builder.add(entry, size), test)
        self.builder.cbranch(self._equal(self._load_at(entry), pointer), done, search)
        self.builder.position_at_end(done)
        result = self.builder.phi(I64)
        for value, block in ((I64(0), start), (I64(0), check), (entry, test)):
            result.add_incoming(value, block)
        return result

    def _place_maps(self, maps: Any, entry: Any, pointer: Any) -> None:
        """Let the driver read the tensor maps of an entry."""
        with self.builder.if_then(self.builder.not_(self._equal(entry, 0)), likely=False):
            places = self._load(maps, layout.Maps.places)

            def place_map(number: Any) -> None:
                address = self._load_at(self._element(entry, number), layout.WORD)
                self._store_at(self._load_element(places, number), address)

            self._repeat(self._load(maps, layout.Maps.count), place_map)
            self._store(maps, layout.Maps.pointer, pointer)

    def _launch(self, plan: Any, driver: int) -> None:
        """cuLaunchKernelEx without the GIL: it may wait for space in the driver's queue."""
        names = ("config", "function", "parameters", "extra")
        arguments = [self._load(plan, getattr(layout.Plan, name)) for name in names]
        state = self._python("PyEval_SaveThread")
        code = self._call(driver, *arguments)
        self._python("PyEval_RestoreThread", state, returns=VOID)
        with self.builder.if_then(self.builder.not_(self._equal(code, 0)), likely=False):
            number = self._python("PyLong_FromLongLong", self.builder.zext(code, I64))
            self._store_at(self.scratch, number)
            on_error = self._load(plan, layout.Plan.on_error)
            result = self._python("PyObject_Vectorcall", on_error, self.scratch, 1, 0)
            self._release(number)
            self._store(plan, layout.Plan.busy, 0)
            self.builder.ret(result)
        self._store(plan, layout.Plan.busy, 0)
        self._python("Py_IncRef", id(None), returns=VOID)
        self.builder.ret(I64(id(None)))


def _argument(i: int, field: Any) -> int:
    """The offset of a field of argument `i` after a plan."""
    return ctypes.sizeof(layout.Plan) + i * ctypes.sizeof(layout.Argument) + int(field.offset)
