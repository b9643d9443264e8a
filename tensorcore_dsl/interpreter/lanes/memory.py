"""Loads and stores inside of runs, by the compiled loops of `memory.accesses`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core import native
from tensorcore_dsl.interpreter.lanes.runner import (
    CODE,
    FIRST,
    LITERALS,
    perform_all,
)
from tensorcore_dsl.interpreter.memory.accesses import (
    copy_check,
    global_move,
    matrix_load,
    shared_load,
    shared_store,
)
from tensorcore_dsl.isa.lanes import (
    COPY,
    LOAD_GLOBAL,
    LOAD_SHARED,
    LOAD_TRANSPOSED,
    STORE_GLOBAL,
    STORE_SHARED,
)

ACCESS = 1 << 16  # the code of an access is its kind plus this
# Literals: what is added to the address, bytes of a word, words; of a copy: what is added to its
# target and its source, its bytes, and the addresses where target, source and bytes to read go.
OFFSET, WIDTH, COUNT = range(LITERALS, LITERALS + 3)
VALUES = FIRST + 4  # the column of the address of what a store writes
TO_OFFSET, FROM_OFFSET, SIZE, TARGETS, SOURCES, VALID = range(LITERALS, LITERALS + 6)


@native.compiled
def _addresses(row: Any, slot: int, offset: int, wide: bool, target: int, threads: int) -> None:
    """Copy the words of an operand, plus a number, to `target`."""
    first, step = row[FIRST + 2 * slot], row[FIRST + 2 * slot + 1]
    if wide:
        for thread in range(threads):
            at = first + thread // 32 * step + thread % 32 * 8
            native.poke64(target + 8 * thread, native.peek64(at) + np.uint64(offset))
    else:
        for thread in range(threads):
            at = first + thread // 32 * step + thread % 32 * 4
            word = native.peek32(at) + np.uint32(offset)
            native.poke32(target + 4 * thread, np.uint32(word))


@native.compiled
def addresses_of(row: Any, slot: int, offset: int, wide: bool, out: Any) -> None:
    """Store the words of an operand, plus a number, in `out`, (T,) of 64 or 32 bits."""
    _addresses(row, slot, offset, wide, out.ctypes.data, out.size)


@native.compiled
def _access(
    row: Any, active: Any, narrow: Any, wide: Any, table: Any, data: Any, states: Any,
    checked: bool, stamps: Any, readers: Any, epochs: Any,
) -> int:  # fmt: skip
    """Execute an access in the active threads; 0, or the mistake of a thread.

    narrow, wide: (T,) uint32 and uint64, for addresses.
    """
    kind, threads = row[CODE] - ACCESS, active.size
    if kind == COPY:
        _addresses(row, 1, row[TO_OFFSET], False, row[TARGETS], threads)
        _addresses(row, 2, row[FROM_OFFSET], True, row[SOURCES], threads)
        _addresses(row, 3, 0, False, row[VALID], threads)
        targets = native.array_at(row[TARGETS], (threads,), np.uint32)
        sources = native.array_at(row[SOURCES], (threads,), np.uint64)
        valid = native.array_at(row[VALID], (threads,), np.uint32)
        return copy_check(
            targets, sources, valid, active, table, data, states, row[SIZE], checked, readers
        )
    width, count = row[WIDTH], row[COUNT]
    stores = kind in (STORE_GLOBAL, STORE_SHARED)
    words = native.array_at(
        row[VALUES if stores else FIRST], (count, threads * width), np.uint8
    )
    if kind in (LOAD_GLOBAL, STORE_GLOBAL):
        _addresses(row, 1, row[OFFSET], True, wide.ctypes.data, threads)
        return global_move(wide, active, table, words, width, count, checked, stores)
    _addresses(row, 1, row[OFFSET], False, narrow.ctypes.data, threads)
    if kind == LOAD_SHARED:
        return shared_load(narrow, active, data, states, words, width, count, checked)
    if kind == STORE_SHARED:
        return shared_store(
            narrow, active, data, states, words, width, count, checked, stamps, readers, epochs
        )
    out = native.array_at(row[FIRST], (4, threads), np.uint32)
    return matrix_load(
        narrow, active, data, states, out, 4, kind == LOAD_TRANSPOSED, checked
    )


@native.compiled
def run_with_accesses(
    operations: Any, start: int, stop: int, active: Any, everybody: bool, table: Any, data: Any,
    states: Any, checked: bool, stamps: Any, readers: Any, epochs: Any, failed: Any,
) -> int:  # fmt: skip
    """`perform_all` of operations some of which access memory; 0, or the mistake of a thread.

    failed: (1,), the row with the mistake. Each access is made for all threads before what follows
    it.
    """
    narrow, wide = np.empty(active.size, np.uint32), np.empty(active.size, np.uint64)
    while start < stop:
        if operations[start, CODE] >= ACCESS:
            wrong = _access(
                operations[start], active, narrow, wide, table, data, states, checked, stamps,
                readers, epochs,
            )  # fmt: skip
            if wrong:
                failed[0] = start
                return wrong
            start += 1
            continue
        end = start
        while end < stop and operations[end, CODE] < ACCESS:
            end += 1
        wrong = perform_all(operations, start, end, active, everybody, failed)
        if wrong:
            return wrong
        start = end
    return 0
