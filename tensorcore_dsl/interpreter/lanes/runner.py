"""The compiled loop that executes a run of elementary operations, warp by warp.

A run is an array with a row for each operation; the columns are below. Addresses are those of the
registers of warp 0; a warp's registers lie `step` bytes behind those of the warp before it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.interpreter.core import native
from tensorcore_dsl.interpreter.core.native import compiled
from tensorcore_dsl.lowering import primitive
from tensorcore_dsl.lowering.values import BOOLEAN, COUNT, Number, cast
from tensorcore_dsl.numerics.lanes import CODES, OPERATIONS, lanes_of, vector

# Columns. The result and the operands each have an address and a step.
SLOTS = 4  # the result, then up to three operands
CODE, FIRST = 0, 1
LITERALS = FIRST + 2 * SLOTS  # numbers of operations, and of accesses: see `lanes.memory`
COLUMNS = LITERALS + 6
TOGETHER = 8  # warps that execute a row one after the other: few enough for the caches
EVERY = 0x0101010101010101  # flags of eight lanes that are active
CHECK = 63  # code of a failed check of an operation; accesses have other codes
_WORD = ir.IntType(64)


def _column(builder: Any, row: Any, number: int) -> Any:
    return builder.load(builder.gep(row, [ir.Constant(_WORD, number)]))


def _pointer(builder: Any, row: Any, warp: Any, slot: int, bits: int) -> Any:
    """The registers of the result (slot 0) or of an operand."""
    first = _column(builder, row, FIRST + 2 * slot)
    step = _column(builder, row, FIRST + 2 * slot + 1)
    address = builder.add(first, builder.mul(warp, step))
    return builder.inttoptr(address, vector(bits).as_pointer())


def _emit(builder: Any, row: Any, warp: Any, mask: Any, whole: Any) -> Any:
    """A switch over all operations, joined by a store for each width; the lanes that fail a check.

    mask: address of the warp's 32 flags, which are all set where `whole`.
    """
    row = builder.inttoptr(row, _WORD.as_pointer())
    done = builder.append_basic_block("done")
    none, failed = ir.Constant(_WORD, 0), [(ir.Constant(_WORD, 0), builder.block)]
    stores = {bits: builder.append_basic_block(f"store{bits}") for bits in (8, 16, 32, 64)}
    values: dict[int, list[Any]] = {bits: [] for bits in stores}
    choice = builder.switch(_column(builder, row, CODE), done)
    for key, (bits, operands, code, literals) in OPERATIONS.items():
        block = builder.append_basic_block("operation")
        choice.add_case(ir.Constant(_WORD, CODES[key]), block)
        builder.position_at_end(block)
        loaded = [
            builder.load(_pointer(builder, row, warp, slot, width), align=width // 8)
            for slot, width in enumerate(operands, 1)
        ]
        more = [_column(builder, row, LITERALS + i) for i in range(literals)]
        value = code(builder, *loaded, *more)
        if bits:
            values[bits].append((value, builder.block))
            builder.branch(stores[bits])
        else:
            wrong = builder.and_(value, _active(builder, mask))
            failed.append((builder.zext(lanes_of(builder, wrong), _WORD), builder.block))
            builder.branch(done)
    for bits, block in stores.items():
        builder.position_at_end(block)
        value = builder.phi(vector(bits))
        for incoming in values[bits]:
            value.add_incoming(*incoming)
        _store(builder, value, _pointer(builder, row, warp, 0, bits), bits, mask, whole)
        failed.append((none, builder.block))
        builder.branch(done)
    builder.position_at_end(done)
    found = builder.phi(_WORD)
    for incoming in failed:
        found.add_incoming(*incoming)
    return found


def _active(builder: Any, mask: Any) -> Any:
    flags = builder.load(builder.inttoptr(mask, vector(8).as_pointer()), align=1)
    return builder.icmp_unsigned("!=", flags, ir.Constant(vector(8), None))


def _store(builder: Any, value: Any, target: Any, bits: int, mask: Any, whole: Any) -> None:
    """Lanes that are not active keep what they have."""
    with builder.if_else(whole, likely=True) as (all_lanes, some):
        with all_lanes:
            builder.store(value, target, align=bits // 8)
        with some:
            old = builder.load(target, align=bits // 8)
            kept = builder.select(_active(builder, mask), value, old)
            builder.store(kept, target, align=bits // 8)


@primitive
def _perform(builder: Any, row: Any, warp: Any, mask: Any, whole: Any) -> Any:
    """Execute the operation in the row at an address for one warp; the lanes that fail a check."""
    return Number(COUNT, _emit(builder, row.value, warp.value, mask.value, whole.value))


@native.inlined
def is_whole(flags: int) -> bool:
    """Are all lanes of the warp active whose 32 flags lie at a real address?"""
    both = native.peek64(flags) & native.peek64(flags + 8)
    whole: bool = both & native.peek64(flags + 16) & native.peek64(flags + 24) == EVERY
    return whole


@native.inlined
def is_idle(flags: int) -> bool:
    """Is no lane of the warp active?"""
    both = native.peek64(flags) | native.peek64(flags + 8)
    idle: bool = both | native.peek64(flags + 16) | native.peek64(flags + 24) == 0
    return idle


@compiled
def _rows(
    operations: int, start: int, end: int, flags: int, low: int, high: int, everybody: bool,
    failed: int,
) -> int:  # fmt: skip
    """`perform_all`; operations, flags and failed are real addresses."""
    wrong = 0
    whole = np.zeros(TOGETHER, np.bool_)
    idle = np.zeros(TOGETHER, np.bool_)
    for first in range(low // 32, high // 32, TOGETHER):
        last = min(first + TOGETHER, high // 32)
        for warp in range(first, last):
            whole[warp - first] = everybody or is_whole(flags + 32 * warp)
            idle[warp - first] = not everybody and is_idle(flags + 32 * warp)
        i = start
        while i < end:
            warp = first
            while warp < last:
                if not idle[warp - first]:
                    row, mask = operations + 8 * COLUMNS * i, flags + 32 * warp
                    bad = _perform(row, warp, mask, whole[warp - first])
                    if bad != 0:
                        native.poke64(failed, i)
                        wrong = native.error_at(CHECK, 32 * warp + native.lowest_bit(bad))
                        end = i
                        warp = last
                warp += 1
            i += 1
    return wrong


@primitive
def rows_at(builder: Any, function: Any, *numbers: Any) -> Any:
    """Call `_rows` at its address, so that it is compiled once for all that use it."""
    kinds = [COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, BOOLEAN, COUNT]
    given = [cast(builder, kind, x).value for kind, x in zip(kinds, numbers, strict=True)]
    kind = ir.FunctionType(_WORD, [x.type for x in given])
    address = cast(builder, COUNT, function).value
    return Number(COUNT, builder.call(builder.inttoptr(address, kind.as_pointer()), given))


@cache
def address() -> int:
    """Where the machine code of `_rows` is."""
    function: Any = _rows
    return int(function.address())


@compiled
def _perform_all(
    function: int, operations: Any, start: int, end: int, active: Any, everybody: bool, low: int,
    high: int, failed: Any,
) -> int:  # fmt: skip
    return int(rows_at(
        function, operations.ctypes.data, start, end, active.ctypes.data, low, high, everybody,
        failed.ctypes.data,
    ))  # fmt: skip


def perform_all(
    operations: np.ndarray, start: int, end: int, active: np.ndarray, everybody: bool, low: int,
    high: int, failed: np.ndarray,
) -> int:  # fmt: skip
    """Execute the rows from `start` to `end` in the active threads of (T,), those from `low` to
    `high`, which are whole warps; 0, or an error.

    Of the checks that fail, the first row counts, and there the first thread: once a warp has
    failed, those behind it end before that row, unless they fail earlier. failed: (1,), the row.
    """
    return _perform_all(
        address(), operations, start, end, active, everybody, low, high, failed
    )
