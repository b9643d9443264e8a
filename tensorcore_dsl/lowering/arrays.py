"""Memory in compiled loops: words at real addresses, elements and parts of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np import numpy_support

from tensorcore_dsl.lowering.values import BOOL, COUNT, WORD, Array, Number, cast, llvm_type

_utilities: Any = cgutils  # without types
_numpy: Any = numpy_support

# Functions that convert numbers: types of Numba and of NumPy.
WIDTHS = (8, 16, 32, 64)
INTEGERS = [getattr(types, f"{kind}{n}") for kind in ("int", "uint") for n in WIDTHS]
CASTS = {f: kind for kind in INTEGERS for f in (kind, _numpy.as_dtype(kind).type)}


def variable(builder: ir.IRBuilder, kind: ir.Type) -> ir.Value:
    """Room for a value, made once where the function begins."""
    return _utilities.alloca_once(builder, kind)


def load(builder: ir.IRBuilder, kind: Any, address: ir.Value) -> Number:
    """The element at a real address; truth values take a byte."""
    stored = ir.IntType(8) if kind is types.boolean else llvm_type(kind)
    found = builder.load(builder.inttoptr(address, stored.as_pointer()), align=1, typ=stored)
    if kind is types.boolean:
        return Number(kind, builder.icmp_unsigned("!=", found, ir.Constant(stored, 0)))
    return Number(kind, found)


def store(builder: ir.IRBuilder, kind: Any, address: ir.Value, x: Any) -> None:
    stored = ir.IntType(8) if kind is types.boolean else llvm_type(kind)
    value = cast(builder, kind, x).value
    if kind is types.boolean:
        value = builder.zext(value, stored)
    builder.store(value, builder.inttoptr(address, stored.as_pointer()), align=1)


def view(builder: ir.IRBuilder, array: Array, items: Sequence[Any]) -> Array:
    """The part of an array at numbers and slices, one for each of its first axes.

    Slices have no steps, and bounds that are not negative.
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
        address = builder.add(address, builder.mul(first, stride))
    left += zip(shape[len(items) :], strides[len(items) :])
    kind = types.Array(array.type.dtype, len(left), "A")
    return Array(kind, address, tuple(n for n, _ in left), tuple(s for _, s in left))


def _least(builder: ir.IRBuilder, x: Any, limit: ir.Value) -> ir.Value:
    value = cast(builder, COUNT, x).value
    return builder.select(builder.icmp_signed("<", value, limit), value, limit)


def constant(builder: ir.IRBuilder, table: np.ndarray) -> Array:
    """A table that the code contains."""
    kind, data = _numpy.from_dtype(table.dtype), ir.ArrayType(ir.IntType(8), table.nbytes)
    name = f"table.{hashlib.sha256(table.tobytes()).hexdigest()}"
    if name not in builder.module.globals:
        kept = ir.GlobalVariable(builder.module, data, name)
        kept.linkage, kept.global_constant = "internal", True
        kept.initializer = ir.Constant(data, bytearray(np.ascontiguousarray(table).tobytes()))
    address = builder.ptrtoint(builder.module.globals[name], WORD)
    shape, strides = (
        tuple(ir.Constant(WORD, n) for n in numbers)
        for numbers in (table.shape, np.ascontiguousarray(table).strides)
    )
    return Array(types.Array(kind, table.ndim, "C"), address, shape, strides)


@dataclass(frozen=True)
class Loop:
    """index: the number of the turn; again, end: where `continue` and `break` go."""

    index: Number
    again: ir.Block
    end: ir.Block


@contextmanager
def counted(builder: ir.IRBuilder, start: Any, stop: Any, step: Any = 1) -> Iterator[Loop]:
    """A loop over a range; what is added to the code inside `with` is its body."""
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
    """Go on there, where the code has not gone elsewhere."""
    if not builder.block.is_terminated:
        builder.branch(block)


def fill(builder: ir.IRBuilder, place: Array, value: Any) -> None:
    """Store a number in all elements of a part, or an array of its shape."""
    if not place.shape:
        whole = isinstance(value, Array)
        store(builder, place.type.dtype, place.address, element(builder, value) if whole else value)
        return
    with counted(builder, 0, Number(COUNT, place.shape[0])) as loop:
        part = view(builder, value, [loop.index]) if isinstance(value, Array) else value
        fill(builder, view(builder, place, [loop.index]), part)


def element(builder: ir.IRBuilder, place: Array) -> Number:
    """The value of a part of one element."""
    return load(builder, place.type.dtype, place.address)


def any_of(builder: ir.IRBuilder, array: Array) -> Number:
    """Is one of the elements of a vector not 0?"""
    slot = variable(builder, BOOL)
    builder.store(ir.Constant(BOOL, 0), slot)
    with counted(builder, 0, Number(COUNT, array.shape[0])) as loop:
        found = element(builder, view(builder, array, [loop.index]))
        one = cast(builder, types.boolean, found).value
        builder.store(builder.or_(builder.load(slot), one), slot)
    return Number(types.boolean, builder.load(slot))


def at_address(builder: ir.IRBuilder, address: Any, shape: Any, dtype: Any) -> Array:
    """The array at a real address; `None` stands for memory that lasts as long as the call."""
    kind = _numpy.from_dtype(np.dtype(dtype))
    extents = shape if isinstance(shape, tuple) else (shape,)
    counts = tuple(cast(builder, COUNT, extent).value for extent in extents)
    size: ir.Value = ir.Constant(WORD, np.dtype(dtype).itemsize)
    strides: list[ir.Value] = []
    for count in reversed(counts):
        strides.insert(0, size)
        size = builder.mul(size, count)
    if address is None:
        address = Number(COUNT, builder.ptrtoint(builder.alloca(ir.IntType(8), size), WORD))
    first = cast(builder, COUNT, address).value
    return Array(types.Array(kind, len(counts), "C"), first, counts, tuple(strides))


def memory(builder: ir.IRBuilder, cleared: bool, shape: Any, dtype: Any) -> Array:
    """An array that lasts as long as the call."""
    made = at_address(builder, None, shape, dtype)
    if cleared:
        fill(builder, made, 0)
    return made
