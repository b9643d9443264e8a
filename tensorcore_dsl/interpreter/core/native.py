"""Accesses of compiled functions to real addresses, with one function for every word size."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.lowering import arrays, primitive
from tensorcore_dsl.lowering import compiled as compiled
from tensorcore_dsl.lowering import compiled_once as compiled_once
from tensorcore_dsl.lowering import inlined as inlined
from tensorcore_dsl.lowering.arrays import at_address, load, pointer, record_at, store
from tensorcore_dsl.lowering.values import BOOLEAN, COUNT, WORD, Number, cast


def _peek(kind: Any) -> Any:
    @primitive
    def peek(builder: Any, address: Any) -> Any:
        """The word at a real address."""
        return load(builder, kind, pointer(builder, cast(builder, COUNT, address).value))

    return peek


def _poke(kind: Any) -> Any:
    @primitive
    def poke(builder: Any, address: Any, value: Any) -> None:
        """Store a word at a real address."""
        store(builder, kind, pointer(builder, cast(builder, COUNT, address).value), value)

    return poke


KINDS = [np.dtype(f"u{size}") for size in (1, 2, 4, 8)]
peek8, peek16, peek32, peek64 = map(_peek, KINDS)
poke8, poke16, poke32, poke64 = map(_poke, KINDS)


@primitive
def _copy16(builder: Any, target: Any, source: Any) -> None:
    """Copy 16 bytes from one real address to another."""
    kind = ir.VectorType(ir.IntType(64), 2).as_pointer()
    to, of = (builder.inttoptr(cast(builder, COUNT, x).value, kind) for x in (target, source))
    builder.store(builder.load(of, align=1), to, align=1)


copy16: Any = _copy16


@primitive
def _prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at a real address, which need not be valid."""
    arrays.prefetch(builder, cast(builder, COUNT, address).value)


prefetch: Any = _prefetch


@primitive
def _lowest_bit(builder: Any, word: Any) -> Number:
    """The number of the lowest bit that is set; 64 for 0."""
    whole = cast(builder, COUNT, word).value
    return Number(COUNT, builder.cttz(whole, ir.Constant(ir.IntType(1), 0)))


lowest_bit: Any = _lowest_bit


@primitive
def _call(builder: Any, function: Any, *numbers: Any) -> None:
    """Call a function of numbers at a real address."""
    given = [cast(builder, COUNT, x).value for x in numbers]
    kind = ir.FunctionType(ir.VoidType(), [x.type for x in given])
    address = cast(builder, COUNT, function).value
    builder.call(builder.inttoptr(address, kind.as_pointer()), given)


call: Any = _call


@primitive
def address_of(builder: Any, pointer: Any, index: Any) -> Number:
    """The real address of an item of an array of ctypes, or after a pointer."""
    return Number(COUNT, builder.ptrtoint(arrays.item(builder, pointer, index).address, WORD))


array_at: Any = primitive(at_address)  # (address, shape, dtype)
named_at: Any = primitive(record_at)  # (address, kind)


def _vector(builder: Any, bits: int, address: Any) -> Any:
    """A pointer to a word of each lane of a warp."""
    whole = cast(builder, COUNT, address).value
    return builder.inttoptr(whole, ir.VectorType(ir.IntType(bits), LANES).as_pointer())


def _splat(builder: Any, bits: int, x: Any) -> Any:
    return arrays.splat(builder, cast(builder, np.dtype(f"u{bits // 8}"), x).value, LANES)


def _all(builder: Any, lanes: Any) -> Number:
    every = builder.bitcast(lanes, ir.IntType(LANES))
    return Number(BOOLEAN, builder.icmp_unsigned("==", every, ir.Constant(every.type, -1)))


def _fill(bits: int) -> Any:
    @primitive
    def fill(builder: Any, address: Any, first: Any, step: Any) -> None:
        """Set the word of each of a warp's lanes, at a real address, to `first` + lane * `step`."""
        lanes = ir.Constant(ir.VectorType(ir.IntType(bits), LANES), list(range(LANES)))
        words = builder.add(_splat(builder, bits, first), builder.mul(lanes, _splat(builder, bits, step)))
        builder.store(words, _vector(builder, bits, address), align=bits // 8)

    return fill


def _has_stride(bits: int) -> Any:
    @primitive
    def has_stride(builder: Any, address: Any, step: Any) -> Number:
        """True if the words of a warp's lanes, at a real address, ascend by `step`."""
        words = builder.load(_vector(builder, bits, address), align=bits // 8)
        lanes = ir.Constant(words.type, list(range(LANES)))
        first = builder.extract_element(words, ir.Constant(ir.IntType(32), 0))
        distances = builder.mul(lanes, _splat(builder, bits, step))
        wanted = builder.add(arrays.splat(builder, first, LANES), distances)
        return _all(builder, builder.icmp_unsigned("==", words, wanted))

    return has_stride


def _are_granules(size: int) -> Any:
    @primitive
    def are_granules(builder: Any, address: Any) -> Number:
        """True if the words of a warp's lanes name runs of 16 bytes, at real addresses of lanes."""
        words = builder.load(_vector(builder, 32, address), align=4)
        heads = [lane * size // 16 * 16 // size for lane in range(LANES)]
        distances = [size * (lane - head) for lane, head in enumerate(heads)]
        first = builder.shuffle_vector(
            words, ir.Constant(words.type, ir.Undefined), ir.Constant(words.type, heads)
        )
        wanted = builder.add(first, ir.Constant(words.type, distances))
        return _all(builder, builder.icmp_unsigned("==", words, wanted))

    return are_granules


@primitive
def is_below32(builder: Any, address: Any, limit: Any, most: Any) -> Number:
    """True if each word of a warp's lanes is less than `limit`, and its lowest 6 bits at most `most`."""
    words = builder.load(_vector(builder, 32, address), align=4)
    low = builder.and_(words, ir.Constant(words.type, [63] * LANES))
    below = builder.icmp_unsigned("<", words, _splat(builder, 32, limit))
    return _all(builder, builder.and_(below, builder.icmp_unsigned("<=", low, _splat(builder, 32, most))))


def _of_lanes(name: str) -> Any:
    @primitive
    def of_lanes(builder: Any, address: Any) -> Number:
        """The least or the largest of the 32-bit words of a warp's lanes, or all their bits."""
        words = builder.load(_vector(builder, 32, address), align=4)
        kind = ir.FunctionType(words.type.element, [words.type])
        reduce = arrays.declared(builder, kind, f"llvm.{name}.v{LANES}i32")
        return Number(COUNT, builder.zext(builder.call(reduce, [words]), ir.IntType(64)))

    return of_lanes


LANES = 32
min32, max32, or32 = map(_of_lanes, ("vector.reduce.umin", "vector.reduce.umax", "vector.reduce.or"))
has_stride32, has_stride64 = map(_has_stride, (32, 64))
fill32, fill64 = map(_fill, (32, 64))
are_granules4, are_granules8 = map(_are_granules, (4, 8))


@inlined
def move(target: int, source: int, width: int) -> None:
    """Copy a word of `width` bytes."""
    if width == 4:
        poke32(target, peek32(source))
    elif width == 8:
        poke64(target, peek64(source))
    elif width == 2:
        poke16(target, peek16(source))
    else:
        poke8(target, peek8(source))


@inlined
def error_at(code: int, index: int) -> int:
    """Encode the failed check of element `index` (mostly a thread) as a compiled function's result."""
    return code << 32 | index
