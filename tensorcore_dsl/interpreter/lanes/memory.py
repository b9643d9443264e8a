"""Loads and stores inside of runs, by the compiled loops of `memory.accesses`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.interpreter.core.native import peek32, peek64, poke64
from tensorcore_dsl.interpreter.core.shadow import ALL_WRITTEN
from tensorcore_dsl.interpreter.lanes.runner import (
    CODE,
    FIRST,
    LITERALS,
    is_idle,
    is_whole,
    rows_at,
)
from tensorcore_dsl.interpreter.memory.accesses import (
    SPACE_BITS,
    WRITABLE,
    copy_check,
    global_word,
    locate,
    matrix_load,
    shared_word_loaded,
    shared_word_stored,
)
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, OWN
from tensorcore_dsl.isa.lanes import (
    COPY,
    LOAD_GLOBAL,
    LOAD_SHARED,
    LOAD_TRANSPOSED,
    STORE_GLOBAL,
    STORE_SHARED,
)

ACCESS = 1 << 16  # the code of an access is its kind plus this
# Literals: what is added to the address, bytes of a word, words, and whether addresses of the own
# CTA may hold its rank; of a copy: what is added to its target and its source, its bytes, and the
# addresses where target, source and bytes to read go.
OFFSET, WIDTH, COUNT, RANKED = range(LITERALS, LITERALS + 4)
VALUES = FIRST + 4  # the column of the address of what a store writes
TO_OFFSET, FROM_OFFSET, SIZE, TARGETS, SOURCES, VALID = range(LITERALS, LITERALS + 6)


@native.compiled
def _addresses(
    row: Any, slot: int, offset: int, wide: bool, ranked: bool, target: int, low: int, high: int
) -> None:
    """Copy the words of an operand, plus a number, to `target`, for threads `low` to `high`.

    ranked: addresses of the own CTA become those without its rank.
    """
    first, step = row[FIRST + 2 * slot], row[FIRST + 2 * slot + 1]
    for warp in range(low // 32, high // 32):
        if wide:
            native.add_offset64(target + 256 * warp, first + warp * step, offset)
        else:
            native.add_offset32(target + 128 * warp, first + warp * step, offset)
            if ranked:
                native.unranked32(target + 128 * warp, CLUSTER_SHIFT, OWN)


@native.compiled
def addresses_of(row: Any, slot: int, offset: int, wide: bool, out: Any) -> None:
    """Store the addresses of an access but a copy in `out`, (T,) of 64 or 32 bits."""
    ranked = not wide and row[RANKED] != 0
    _addresses(row, slot, offset, wide, ranked, out.ctypes.data, 0, out.size)


@native.compiled
def _global_rows(
    addresses: Any, active: Any, table: Any, words: Any, width: int, count: int, aligned: bool,
    stores: bool, low: int, high: int,
) -> int:  # fmt: skip
    """`global_move`, at once for warps whose lanes access words side by side or load one word."""
    size = width * count
    for first in range(low, high, 32):
        flags = active.ctypes.data + first
        if is_idle(flags):
            continue
        at, address = addresses.ctypes.data + 8 * first, int(addresses[first])
        step = int(addresses[first + 1]) - address
        real, fits = 0, step == size or (step == 0 and not stores)
        aside = aligned and address & (size - 1) != 0
        if fits and not aside and is_whole(flags) and native.has_stride64(at, step):
            real = locate(address, step * 31 + size, table)
            if real != 0 and stores and table[(address >> SPACE_BITS) - 1, WRITABLE] == 0:
                real = 0
        if real != 0:
            _move_row(words, first, real, step, width, count, stores)
            continue
        for thread in range(first, first + 32):
            if active[thread]:
                wrong = global_word(addresses, thread, table, words, width, count, aligned, stores)
                if wrong:
                    return wrong
    return 0


@native.compiled
def _shared_rows(
    addresses: Any, active: Any, data: Any, states: Any, pages: Any, words: Any, width: int,
    count: int, checked: bool, stores: bool, stamps: Any, readers: Any, epochs: Any, low: int,
    high: int,
) -> int:  # fmt: skip
    """`shared_load` and `shared_store` in the same way; stores that leave stamps by lane.

    Before stores the states must speak for all pages.
    """
    size, limit = width * count, data.shape[1]
    group = addresses.size // data.shape[0]
    for first in range(low, high, 32):
        flags = active.ctypes.data + first
        if is_idle(flags):
            continue
        at, address = addresses.ctypes.data + 4 * first, int(addresses[first])
        step, cta = int(addresses[first + 1]) - address, first // group
        states_of = states.ctypes.data + cta * limit
        known = pages.ctypes.data + cta * pages.shape[1]
        place, fits = cta * limit + address, step in (0, size)
        if stores:
            fits = step == size and epochs.size == 0
        good = fits and is_whole(flags) and native.has_stride32(at, step)
        good = good and address + 31 * step + size <= limit
        if good and checked:
            state = states_of + address
            good = address & (size - 1) == 0
            if good and stores:
                good = not shadow.in_flight(state, 32 * size)
                if good:
                    shadow.mark(state, 32 * size, shadow.WRITTEN)
            elif good:
                good = shadow.are_filled(states_of, known, address, address + 31 * step + size)
                good = good or shadow.all_written(state, 31 * step + size)
        if good:
            _move_row(words, first, data.ctypes.data + place, step, width, count, stores)
            continue
        plain = not stores and size >= 4 and is_whole(flags)
        if plain and _words_are_plain(at, size, limit, states_of, known, checked):
            _gather(words, first, at, data.ctypes.data + cta * limit, width, count)
            continue
        if checked and not stores:
            shadow.disclose(states_of, known, pages.shape[1], False)
        for thread in range(first, first + 32):
            if active[thread]:
                wrong = 0
                if stores:
                    wrong = shared_word_stored(
                        addresses, thread, cta, data, states, words, width, count, checked,
                        stamps, readers, epochs,
                    )  # fmt: skip
                else:
                    wrong = shared_word_loaded(
                        addresses, thread, cta, data, states, words, width, count, checked
                    )
                if wrong:
                    return wrong
    return 0


@native.inlined
def _words_are_plain(
    addresses: int, size: int, limit: int, states: int, pages: int, checked: bool
) -> bool:
    """Do `size` bytes at the 32-bit addresses of all lanes of a warp lie in a CTA, aligned and
    written?"""
    high = int(native.max32(addresses))
    if high + size > limit:
        return False
    wrong = np.uint64(0)
    filled = checked and shadow.are_filled(
        states, pages, int(native.min32(addresses)), high + size
    )
    if filled:
        wrong |= np.uint64(native.or32(addresses) & (size - 1))
    elif checked and size == 4:
        for lane in range(32):
            at = int(peek32(addresses + 4 * lane))
            wrong |= np.uint64(at & 3) | np.uint64(peek32(states + at) ^ np.uint32(0x01010101))
    elif checked:
        for lane in range(32):
            at = int(peek32(addresses + 4 * lane))
            wrong |= np.uint64(at & (size - 1)) | (peek64(states + at) ^ np.uint64(ALL_WRITTEN))
            wrong |= peek64(states + at + size - 8) ^ np.uint64(ALL_WRITTEN)
    plain: bool = wrong == 0
    return plain


@native.inlined
def _gather(
    words: Any, first: int, addresses: int, place: int, width: int, count: int
) -> None:
    """Load `count` words at the addresses of the lanes of a warp, from the CTA at `place` on."""
    threads = words.shape[1] // width
    base = words.ctypes.data + first * width
    if width == 8 and count == 1:
        for lane in range(32):
            poke64(base + 8 * lane, peek64(place + int(peek32(addresses + 4 * lane))))
    elif width == 4 and count == 1:
        for lane in range(32):
            native.poke32(base + 4 * lane, peek32(place + int(peek32(addresses + 4 * lane))))
    else:
        for lane in range(32):
            at = place + int(peek32(addresses + 4 * lane))
            for word in range(count):
                register = base + (word * threads + lane) * width
                native.move(register, at + word * width, width)


@native.inlined
def _move_row(
    words: Any, first: int, place: int, step: int, width: int, count: int, stores: bool
) -> None:
    """Load or store `count` words of the lanes of a warp, `step` bytes apart from `place` on."""
    threads = words.shape[1] // width
    base = words.ctypes.data + first * width
    if count == 1 and step == width:
        for byte in range(0, 32 * width, 8):
            if stores:
                poke64(place + byte, peek64(base + byte))
            else:
                poke64(base + byte, peek64(place + byte))
    else:
        for word in range(count):
            for lane in range(32):
                register = base + (word * threads + lane) * width
                if stores:
                    native.move(place + lane * step + word * width, register, width)
                else:
                    native.move(register, place + lane * step + word * width, width)


@native.compiled
def _access(
    row: Any, active: Any, narrow: Any, wide: Any, table: Any, data: Any, states: Any, pages: Any,
    checked: bool, stamps: Any, readers: Any, epochs: Any, low: int, high: int,
) -> int:  # fmt: skip
    """Execute an access in the active threads from `low` to `high`; 0, or the error of one.

    narrow, wide: (T,) uint32 and uint64, for addresses.
    """
    kind, threads = row[CODE] - ACCESS, active.size
    by_page = kind in (LOAD_SHARED, LOAD_GLOBAL, STORE_GLOBAL)
    if checked and not by_page:
        group = threads // data.shape[0]
        for cta in range(low // group, (high - 1) // group + 1):
            shadow.disclose(
                states.ctypes.data + cta * data.shape[1], pages.ctypes.data + cta * pages.shape[1],
                pages.shape[1], kind == COPY,
            )  # fmt: skip
    if kind == COPY:
        _addresses(row, 1, row[TO_OFFSET], False, False, row[TARGETS], low, high)
        _addresses(row, 2, row[FROM_OFFSET], True, False, row[SOURCES], low, high)
        _addresses(row, 3, 0, False, False, row[VALID], low, high)
        targets = native.array_at(row[TARGETS], (threads,), np.uint32)
        sources = native.array_at(row[SOURCES], (threads,), np.uint64)
        valid = native.array_at(row[VALID], (threads,), np.uint32)
        return copy_check(
            targets, sources, valid, active, table, data, states, row[SIZE], checked, readers, low,
            high,
        )  # fmt: skip
    width, count = row[WIDTH], row[COUNT]
    stores = kind in (STORE_GLOBAL, STORE_SHARED)
    words = native.array_at(
        row[VALUES if stores else FIRST], (count, threads * width), np.uint8
    )
    if kind in (LOAD_GLOBAL, STORE_GLOBAL):
        _addresses(row, 1, row[OFFSET], True, False, wide.ctypes.data, low, high)
        return _global_rows(wide, active, table, words, width, count, checked, stores, low, high)
    _addresses(row, 1, row[OFFSET], False, row[RANKED] != 0, narrow.ctypes.data, low, high)
    if kind in (LOAD_SHARED, STORE_SHARED):
        return _shared_rows(
            narrow, active, data, states, pages, words, width, count, checked, stores, stamps,
            readers, epochs, low, high,
        )  # fmt: skip
    out = native.array_at(row[FIRST], (4, threads), np.uint32)
    return matrix_load(
        narrow, active, data, states, out, 4, kind == LOAD_TRANSPOSED, checked, low, high
    )


@native.compiled
def run_with_accesses(
    function: int, operations: Any, start: int, stop: int, active: Any, everybody: bool,
    table: Any, data: Any, states: Any, pages: Any, checked: bool, stamps: Any, readers: Any,
    epochs: Any, low: int, high: int, failed: Any, narrow: Any, wide: Any, together: int,
) -> int:  # fmt: skip
    """`perform_all` of operations some of which access memory; 0, or the error of a thread.

    function: the address of `runner`. failed: (1,), the row with the error, the first of all.
    narrow, wide: see `_access`. Each access is made for `together` threads before what follows it,
    and then for those behind them.
    """
    wrong = 0
    for first in range(low, high, together):
        found = _run_together(
            function, operations, start, stop, active, everybody, table, data, states, pages,
            checked, stamps, readers, epochs, first, min(first + together, high), failed, narrow,
            wide,
        )  # fmt: skip
        if found:
            wrong, stop = found, failed[0]
    return wrong


@native.compiled
def _run_together(
    function: int, operations: Any, start: int, stop: int, active: Any, everybody: bool,
    table: Any, data: Any, states: Any, pages: Any, checked: bool, stamps: Any, readers: Any,
    epochs: Any, low: int, high: int, failed: Any, narrow: Any, wide: Any,
) -> int:  # fmt: skip
    """`run_with_accesses` of threads that make each access before what follows it."""
    while start < stop:
        if operations[start, CODE] >= ACCESS:
            wrong = _access(
                operations[start], active, narrow, wide, table, data, states, pages, checked,
                stamps, readers, epochs, low, high,
            )  # fmt: skip
            if wrong:
                failed[0] = start
                return wrong
            start += 1
            continue
        end = start
        while end < stop and operations[end, CODE] < ACCESS:
            end += 1
        wrong = int(rows_at(
            function, operations.ctypes.data, start, end, active.ctypes.data, low, high, everybody,
            failed.ctypes.data,
        ))  # fmt: skip
        if wrong:
            return wrong
        start = end
    return 0
