"""What compiled functions do with real addresses, so that one serves every word size."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.lowering import compiled as compiled
from tensorcore_dsl.lowering import inlined as inlined
from tensorcore_dsl.lowering import primitive
from tensorcore_dsl.lowering.arrays import at_address, load, pointer, store
from tensorcore_dsl.lowering.values import BOOLEAN, COUNT, Number, cast


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
def _lowest_bit(builder: Any, word: Any) -> Number:
    """The number of the lowest bit that is set; 64 for 0."""
    whole = cast(builder, COUNT, word).value
    return Number(COUNT, builder.cttz(whole, ir.Constant(ir.IntType(1), 0)))


lowest_bit: Any = _lowest_bit
array_at: Any = primitive(at_address)  # of an address, a shape and a dtype


def _vector(builder: Any, bits: int, address: Any) -> Any:
    """A pointer to a word of each lane of a warp."""
    whole = cast(builder, COUNT, address).value
    return builder.inttoptr(whole, ir.VectorType(ir.IntType(bits), LANES).as_pointer())


def _splat(builder: Any, bits: int, x: Any) -> Any:
    word = builder.trunc(cast(builder, COUNT, x).value, ir.IntType(bits)) if bits < 64 else (
        cast(builder, COUNT, x).value
    )
    kind = ir.VectorType(word.type, LANES)
    nothing, index = ir.Constant(kind, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(nothing, word, ir.Constant(index, 0))
    order = ir.Constant(ir.VectorType(index, LANES), [0] * LANES)
    return builder.shuffle_vector(first, nothing, order)


def _shifted(bits: int) -> Any:
    @primitive
    def shifted(builder: Any, target: Any, source: Any, offset: Any) -> None:
        """Copy the words of a warp's lanes, plus a number, from one real address to another."""
        words = builder.load(_vector(builder, bits, source), align=bits // 8)
        words = builder.add(words, _splat(builder, bits, offset))
        builder.store(words, _vector(builder, bits, target), align=bits // 8)

    return shifted


def _apart(bits: int) -> Any:
    @primitive
    def apart(builder: Any, address: Any, step: Any) -> Number:
        """Is each word of a warp's lanes, at a real address, `step` more than the one before?"""
        words = builder.load(_vector(builder, bits, address), align=bits // 8)
        lanes = ir.Constant(words.type, list(range(LANES)))
        first = builder.extract_element(words, ir.Constant(ir.IntType(32), 0))
        first = builder.zext(first, ir.IntType(64)) if bits < 64 else first
        wanted = builder.add(
            _splat(builder, bits, Number(COUNT, first)),
            builder.mul(lanes, _splat(builder, bits, step)),
        )
        same = builder.icmp_unsigned("==", words, wanted)
        every = builder.bitcast(same, ir.IntType(LANES))
        return Number(BOOLEAN, builder.icmp_unsigned("==", every, ir.Constant(every.type, -1)))

    return apart


LANES = 32
shifted32, shifted64 = map(_shifted, (32, 64))
apart32, apart64 = map(_apart, (32, 64))


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
def mistake(code: int, index: int) -> int:
    """What a compiled function returns when element `index` (mostly a thread) fails a check."""
    return code << 32 | index
