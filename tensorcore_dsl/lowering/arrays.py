"""Memory in compiled loops: words at host addresses, parts of arrays and of objects of ctypes."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.lowering.values import (
    BOOL,
    BOOLEAN,
    BYTE,
    COUNT,
    POINTER,
    WORD,
    Array,
    ArrayKind,
    CObject,
    CObjectKind,
    Kind,
    Number,
    Record,
    RecordKind,
    cast,
    is_simple,
    llvm_type,
    llvm_types,
    of_parts,
    of_word,
    strides_of,
)

ALIGNED = 16  # bytes: alignment of memory that a call allocates


def variable(builder: ir.IRBuilder, kind: ir.Type) -> ir.Value:
    """Allocate a stack slot at the function's entry.

    It comes before all calls: LLVM splits blocks at calls that it inlines, and keeps slots of later blocks
    in memory.
    """
    with builder.goto_entry_block():
        builder.position_at_start(builder.block)
        return builder.alloca(kind)


def declared(builder: ir.IRBuilder, kind: ir.FunctionType, name: str) -> ir.Function:
    """Declare an LLVM intrinsic, such as `llvm.fma.v16f32`."""
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


def splat(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """Broadcast a number to all lanes of a vector."""
    kind, index = ir.VectorType(value.type, lanes), ir.IntType(32)
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(index, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(index, lanes), [0] * lanes))


def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line at a host address, which need not be valid."""
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [POINTER, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [POINTER], kind)
    read, keep, data_cache = (ir.Constant(number, x) for x in (0, 3, 1))
    builder.call(function, [pointer(builder, address), read, keep, data_cache])


def pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Convert a host address to a pointer."""
    return builder.inttoptr(address, POINTER)


def load(builder: ir.IRBuilder, kind: Kind, address: ir.Value) -> Number:
    """Load the element at a pointer. A truth value takes a byte."""
    stored = BYTE if kind == BOOLEAN else llvm_type(kind)
    loaded = builder.load(builder.bitcast(address, stored.as_pointer()), align=1, typ=stored)
    if kind == BOOLEAN:
        return Number(kind, builder.icmp_unsigned("!=", loaded, ir.Constant(stored, 0)))
    return Number(kind, loaded)


def store(builder: ir.IRBuilder, kind: Kind, address: ir.Value, x: Any) -> None:
    stored = BYTE if kind == BOOLEAN else llvm_type(kind)
    value = cast(builder, kind, x).value
    if kind == BOOLEAN:
        value = builder.zext(value, stored)
    builder.store(value, builder.bitcast(address, stored.as_pointer()), align=1)


def view(builder: ir.IRBuilder, array: Array, items: Sequence[Any]) -> Array:
    """Index an array with numbers and slices, one for each of its first axes.

    Slices have no step, and their bounds are not negative.
    """
    address, shape, strides = array.address, list(array.shape), list(array.strides)
    left: list[tuple[ir.Value, ir.Value]] = []
    for extent, stride, item in zip(shape, strides, items):
        start = item
        if isinstance(item, slice):
            start = 0 if item.start is None else item.start
            stop = extent if item.stop is None else _least(builder, item.stop, extent)
            left.append((builder.sub(stop, _least(builder, start, stop)), stride))
        first = cast(builder, COUNT, start).value
        address = builder.gep(address, [builder.mul(first, stride)])
    left += zip(shape[len(items) :], strides[len(items) :])
    stays_contiguous = not any(isinstance(item, slice) for item in items[:-1])
    kind = ArrayKind(array.type.dtype, len(left), array.type.contiguous and stays_contiguous)
    return Array(kind, address, tuple(n for n, _ in left), tuple(s for _, s in left))


def field(builder: ir.IRBuilder, owner: CObject, name: str) -> Array | CObject:
    """Return a field of a structure; a number is an array without axes."""
    ctype = owner.type.ctype
    offset = ir.Constant(WORD, getattr(ctype, name).offset)
    kinds = {field: kind for field, kind, *_ in ctype._fields_}
    return located(builder.gep(owner.address, [offset]), kinds[name])


def item(builder: ir.IRBuilder, owner: CObject, index: Any) -> Array | CObject:
    """Return an item of an array, or after a pointer; a number is an array without axes."""
    ctype, start = owner.type.ctype, owner.address
    if issubclass(ctype, ctypes._Pointer):
        start = builder.load(builder.bitcast(start, POINTER.as_pointer()), align=1)
    size = ir.Constant(WORD, ctypes.sizeof(ctype._type_))
    offset = builder.mul(cast(builder, COUNT, index).value, size)
    return located(builder.gep(start, [offset]), ctype._type_)


def located(address: ir.Value, ctype: type[Any]) -> Array | CObject:
    """Return the object of a ctypes type at a pointer; a number is an array without axes."""
    if is_simple(ctype):
        return Array(ArrayKind(np.dtype(ctype), 0, contiguous=True), address, (), ())
    return CObject(CObjectKind(ctype), address)


def _least(builder: ir.IRBuilder, x: Any, limit: ir.Value) -> ir.Value:
    value = cast(builder, COUNT, x).value
    return builder.select(builder.icmp_signed("<", value, limit), value, limit)


def constant(builder: ir.IRBuilder, table: np.ndarray) -> Array:
    """Embed a table in the code."""
    array_type = ir.ArrayType(BYTE, table.nbytes)
    content = np.ascontiguousarray(table).tobytes()
    name = f"table.{hashlib.sha256(content).hexdigest()}"
    if name not in builder.module.globals:
        variable = ir.GlobalVariable(builder.module, array_type, name)
        variable.linkage, variable.global_constant = "internal", True
        variable.initializer = ir.Constant(array_type, bytearray(content))
    address = builder.bitcast(builder.module.globals[name], POINTER)
    shape = tuple(ir.Constant(WORD, n) for n in table.shape)
    kind = ArrayKind(table.dtype, table.ndim, contiguous=True)
    return Array(kind, address, shape, strides_of(builder, table.dtype, shape))


@dataclass(frozen=True)
class Loop:
    """A loop that is being emitted.

    `index` is the iteration. `continue` jumps to the block `again`, `break` to `end`.
    """

    index: Number
    again: ir.Block
    end: ir.Block


@contextmanager
def counted(builder: ir.IRBuilder, start: Any, stop: Any, step: Any = 1) -> Iterator[Loop]:
    """Emit a loop over a range. Code that is emitted inside `with` is its body."""
    first, last, by = (cast(builder, COUNT, x).value for x in (start, stop, step))
    slot = variable(builder, WORD)
    builder.store(first, slot)
    top, inside, again, end = (builder.append_basic_block() for _ in range(4))
    builder.branch(top)
    builder.position_at_end(top)
    index = builder.load(slot)
    down = isinstance(step, int) and step < 0
    builder.cbranch(builder.icmp_signed(">" if down else "<", index, last), inside, end)
    builder.position_at_end(inside)
    yield Loop(Number(COUNT, index), again, end)
    jump(builder, again)
    builder.position_at_end(again)
    builder.store(builder.add(builder.load(slot), by), slot)
    builder.branch(top)
    builder.position_at_end(end)


def jump(builder: ir.IRBuilder, block: ir.Block) -> None:
    """Jump to a block, unless the current block has already ended."""
    if not builder.block.is_terminated:
        builder.branch(block)


def fill(builder: ir.IRBuilder, target: Array, value: Any) -> None:
    """Store a number in all elements of a view, or an array of its shape."""
    if not target.shape:
        number = element(builder, value) if isinstance(value, Array) else value
        store(builder, target.type.dtype, target.address, number)
        return
    with counted(builder, 0, Number(COUNT, target.shape[0])) as loop:
        part = view(builder, value, [loop.index]) if isinstance(value, Array) else value
        fill(builder, view(builder, target, [loop.index]), part)


def element(builder: ir.IRBuilder, array: Array) -> Number:
    """Load the value of a view with one element."""
    return load(builder, array.type.dtype, array.address)


def any_of(builder: ir.IRBuilder, array: Array) -> Number:
    """Return whether any element of a vector is nonzero."""
    slot = variable(builder, BOOL)
    builder.store(ir.Constant(BOOL, 0), slot)
    with counted(builder, 0, Number(COUNT, array.shape[0])) as loop:
        value = element(builder, view(builder, array, [loop.index]))
        nonzero = cast(builder, BOOLEAN, value).value
        builder.store(builder.or_(builder.load(slot), nonzero), slot)
    return Number(BOOLEAN, builder.load(slot))


def at_address(builder: ir.IRBuilder, address: Any, shape: Any, dtype: Any) -> Array:
    """Return the array at a host address; `None` allocates memory for the duration of the call."""
    kind = np.dtype(dtype)
    extents = shape if isinstance(shape, tuple) else (shape,)
    counts = tuple(cast(builder, COUNT, extent).value for extent in extents)
    if address is None:
        size: ir.Value = ir.Constant(WORD, kind.itemsize)
        for count in counts:
            size = builder.mul(size, count)
        first = builder.alloca(BYTE, size)
        first.align = ALIGNED
    else:
        first = pointer(builder, cast(builder, COUNT, address).value)
    kind_of_array = ArrayKind(kind, len(counts), contiguous=True)
    return Array(kind_of_array, first, counts, strides_of(builder, kind, counts))


def record_at(builder: ir.IRBuilder, address: Any, kind: RecordKind) -> Record:
    """Return the named tuple whose words (`entry.words_of`) lie at a host address."""
    words = builder.inttoptr(cast(builder, COUNT, address).value, WORD.as_pointer())
    loaded = (builder.load(builder.gep(words, [ir.Constant(WORD, i)])) for i in count())
    parts = [of_word(builder, part, word) for part, word in zip(llvm_types(kind), loaded)]
    record: Record = of_parts(builder, kind, iter(parts))
    return record


def memory(builder: ir.IRBuilder, cleared: bool, shape: Any, dtype: Any) -> Array:
    """Allocate an array for the duration of the call."""
    array = at_address(builder, None, shape, dtype)
    if cleared:
        fill(builder, array, 0)
    return array
