"""What compiled functions do with real addresses, so that one serves every word size."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.lowering import compiled as compiled
from tensorcore_dsl.lowering import inlined as inlined
from tensorcore_dsl.lowering import primitive
from tensorcore_dsl.lowering.arrays import at_address, load, pointer, store
from tensorcore_dsl.lowering.values import COUNT, Number, cast


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
