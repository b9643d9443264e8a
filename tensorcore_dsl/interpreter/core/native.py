"""Compiled functions that read and write real addresses, so that one serves every word size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tensorcore_dsl.environment.compiled_loops import compiled as compiled

Function = TypeVar("Function", bound=Callable[..., Any])


def inlined(function: Function) -> Function:
    """Inline into the compiled functions that call it."""
    inline: Any = njit(inline="always")
    return inline(function)  # type: ignore[no-any-return]


def _peek(bits: int) -> Any:
    @intrinsic  # type: ignore[misc]
    def peek(context: Any, address: Any) -> Any:
        """The word at a real address."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return getattr(types, f"uint{bits}")(types.int64), generate

    return peek


def _poke(bits: int) -> Any:
    @intrinsic  # type: ignore[misc]
    def poke(context: Any, address: Any, value: Any) -> Any:
        """Store a word at a real address."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(args[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, getattr(types, f"uint{bits}")), generate

    return poke


@intrinsic  # type: ignore[misc]
def _pointer(context: Any, address: Any) -> Any:
    """The memory at a real address, for `numba.carray`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


pointer: Any = _pointer
peek8, peek16, peek32, peek64 = _peek(8), _peek(16), _peek(32), _peek(64)
poke8, poke16, poke32, poke64 = _poke(8), _poke(16), _poke(32), _poke(64)


@intrinsic  # type: ignore[misc]
def _lowest_bit(context: Any, word: Any) -> Any:
    """The number of the lowest bit that is set; 64 for 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


lowest_bit: Any = _lowest_bit


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
