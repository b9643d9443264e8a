"""Memory accesses of one warp, which the code of regions calls.

Addresses and values of its 32 lanes lie side by side. All functions return 0, or
`code << 32 | lane` for the first lane whose access fails a check.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.interpreter.core.native import peek32, peek64, poke64
from tensorcore_dsl.interpreter.core.shadow import ALL_WRITTEN
from tensorcore_dsl.interpreter.memory.accesses import (
    COLUMNS,
    SPACE_BITS,
    WRITABLE,
    copy_begun,
    global_word,
    locate,
    matrix_row,
    shared_word,
)
from tensorcore_dsl.interpreter.sanitizer.access_history import (
    CHECK,
    EARLIER,
    END,
    FOUNDS,
    GLOBAL,
    ITEMS,
    LENGTH,
    LOAD,
    LOGGED,
    NEXT,
    NOTE,
    OWN,
    SINCE,
    STORE,
    has_nodes,
)
from tensorcore_dsl.interpreter.sanitizer.races import ALWAYS
from tensorcore_dsl.interpreter.sanitizer.word_accesses import (
    Where,
    logs_load,
    new_serial,
    note_loads,
    touch_warp,
    touches_row,
)
from tensorcore_dsl.isa.lanes import LOAD_TRANSPOSED, STORE_GLOBAL, STORE_SHARED

# Words of the record of a chunk's memories: addresses of arrays, and their sizes.
(
    TABLE,
    ARRAYS,
    DATA,
    STATES,
    PAGES,
    CTAS,
    LIMIT,
    PAGES_OF_CTA,
    GROUP,
    CHECKED,
    STAMPS,
    STAMP_WORDS,
    READERS,
    CHUNKS,
    EPOCHS,
    EPOCHS_SIZE,
    BOOK,
    OWN_PLACES,
    GLOBAL_PLACES,
    PEERS,
    WITNESS,
    SHOW,
    WORDS,
) = range(23)
EVERY_LANE = 0xFFFFFFFF


def record(ctx: Any) -> np.ndarray:
    """The memories of a chunk, for `global_access` and so on; its arrays must outlive it."""
    storage, proxies, table = ctx.shared.storage, ctx.proxies, ctx.globals.table
    record_words = np.zeros(WORDS, np.int64)
    for place, array in (
        (TABLE, table),
        (DATA, storage.data),
        (STATES, storage.states),
        (PAGES, storage.pages),
        (STAMPS, proxies.stamps),
        (READERS, proxies.readers),
        (EPOCHS, proxies.epochs),
    ):
        record_words[place] = address_of(array)
    for place, number in (
        (ARRAYS, len(table)),
        (CTAS, len(storage.data)),
        (LIMIT, storage.size),
        (PAGES_OF_CTA, storage.pages.shape[1]),
        (GROUP, ctx.group),
        (CHECKED, storage.checks),
        (STAMP_WORDS, proxies.stamps.shape[1]),
        (CHUNKS, proxies.readers.shape[1]),
        (EPOCHS_SIZE, proxies.epochs.size),
    ):
        record_words[place] = number
    detector = ctx.sanitizer.detector
    if detector is not None:
        record_words[BOOK], record_words[PEERS] = address_of(detector.book), detector.peers
        record_words[OWN_PLACES] = address_of(detector.places[OWN])
        record_words[GLOBAL_PLACES] = address_of(detector.places[GLOBAL])
        shown: Any = show
        record_words[SHOW] = shown.address()
    return record_words


@native.inlined
def shared_of(memories: Any) -> Any:
    """The arrays of shared memory in a record. `judged`, which nothing here uses, are the epochs."""
    ctas, limit = memories[CTAS], memories[LIMIT]
    epochs = native.array_at(memories[EPOCHS], (memories[EPOCHS_SIZE],), np.uint32)
    return shadow.Shared(
        native.array_at(memories[DATA], (ctas, limit), np.uint8),
        native.array_at(memories[STATES], (ctas, limit), np.uint8),
        native.array_at(memories[PAGES], (ctas, memories[PAGES_OF_CTA]), np.uint8),
        memories[CHECKED] != 0,
        native.array_at(memories[STAMPS], (ctas, memories[STAMP_WORDS]), np.uint32),
        native.array_at(memories[READERS], (ctas, memories[CHUNKS]), np.uint16),
        epochs,
        epochs,
    )


@native.inlined
def disclose(memories: Any, cta: int, forget: bool) -> None:
    """Let the states of a CTA speak for all pages, if there are checks."""
    if memories[CHECKED]:
        shadow.disclose(
            memories[STATES] + cta * memories[LIMIT],
            memories[PAGES] + cta * memories[PAGES_OF_CTA],
            memories[PAGES_OF_CTA],
            forget,
        )


def address_of(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@native.compiled
def show(
    memory: int,
    which: int,
    stores: int,
    addresses: int,
    lanes: int,
    words: int,
    width: int,
    count: int,
    step: int,
    first: int,
) -> None:
    """Show an access to the detector of races. Without one, this is not even compiled."""
    quiet = _is_quiet(
        memory, which, stores != 0, addresses, which == GLOBAL, lanes, width * count, step, first
    )
    if not quiet:
        witness = int(peek64(memory + 8 * WITNESS))
        native.call(witness, step, which == GLOBAL, stores, addresses, lanes, words, width, count, first)


@native.compiled
def _is_quiet(
    memory: int,
    which: int,
    stores: bool,
    addresses: int,
    wide: bool,
    lanes: int,
    size: int,
    step: int,
    first: int,
) -> bool:
    """Note an access of a warp in the history; False where something may be in conflict with it.

    which: OWN or GLOBAL memory, by addresses that are `wide`.
    """
    memories = native.array_at(memory, (WORDS,), np.int64)
    h = native.array_at(memories[BOOK], (LENGTH,), np.int64)
    if h[NEXT] >= h[END] or (which == GLOBAL and h[EARLIER] != 0):
        return False
    at, count = memories[OWN_PLACES], memories[CTAS]
    if which == GLOBAL:
        at, count = memories[GLOBAL_PLACES], memories[ARRAYS]
    places = native.array_at(at, (count, ITEMS), np.int64)
    table = native.array_at(memories[TABLE], (memories[ARRAYS], COLUMNS), np.int64)
    kind, where = STORE if stores else LOAD, Where(which, places, table, memories[PEERS], memories[GROUP])
    h[SINCE] = ALWAYS
    if which == OWN:
        if not stores and logs_load(h, where, step, addresses, lanes, first, size):
            return True
        note_loads(h, where)
    if not has_nodes(h) or (which == OWN and h[LOGGED] != 0):
        return False
    words, at = np.empty(32, np.uint64), addresses
    if not wide:
        at = words.ctypes.data
        for lane in range(32):
            words[lane] = np.uint64(peek32(addresses + 4 * lane))
    # Stores are noted by the detector itself where it has something to report: first, all are
    # checked. To have noted some loads does no harm.
    serial = new_serial(h, step, first)
    if touches_row(h, where, kind, serial, at, lanes, first, size):
        return True
    quiet, todo = True, CHECK if stores else CHECK | NOTE
    while quiet and todo != 0:
        conflict = touch_warp(h, where, kind, todo, serial, at, lanes, first, size)
        quiet = conflict == 0 and h[FOUNDS] == 0
        todo = CHECK | NOTE if todo == CHECK else 0
    h[FOUNDS] = 0
    return quiet


@native.compiled
def global_access(
    memory: int,
    addresses: int,
    lanes: int,
    words: int,
    width: int,
    count: int,
    kind: int,
    first: int,
    step: int,
) -> int:
    """Load or store `count` words of `width` bytes each.

    first: the thread that is lane 0; step: the position.
    """
    memories = native.array_at(memory, (WORDS,), np.int64)
    table = native.array_at(memories[TABLE], (memories[ARRAYS], COLUMNS), np.int64)
    checked, stores = memories[CHECKED] != 0, kind == STORE_GLOBAL
    size, address = width * count, int(peek64(addresses))
    if memories[SHOW]:
        native.call(
            memories[SHOW], memory, GLOBAL, stores, addresses, lanes, words, width, count, step, first
        )
    if lanes == EVERY_LANE:
        step = int(peek64(addresses + 8)) - address
        aside = checked and address & (size - 1) != 0
        even = (step == size or (step == 0 and not stores)) and not aside
        if even and native.has_stride64(addresses, step):
            real = locate(address, step * 31 + size, table)
            if real != 0 and stores and table[(address >> SPACE_BITS) - 1, WRITABLE] == 0:
                real = 0
            if real != 0:
                _move_row(words, real, step, width, count, stores)
                return 0
    for lane in range(32):
        if lanes >> lane & 1:
            wrong = global_word(
                int(peek64(addresses + 8 * lane)),
                words + lane * width,
                32 * width,
                table,
                width,
                count,
                checked,
                stores,
            )
            if wrong:
                return native.error_at(wrong, lane)
    return 0


@native.compiled
def shared_access(  # noqa: PLR0915
    memory: int,
    addresses: int,
    lanes: int,
    words: int,
    width: int,
    count: int,
    kind: int,
    first: int,
    step: int,
) -> int:
    """`global_access` for the memory of the threads' CTA; before stores the states must speak for
    all pages."""
    memories = native.array_at(memory, (WORDS,), np.int64)
    limit, cta = memories[LIMIT], first // memories[GROUP]
    checked, stores = memories[CHECKED] != 0, kind == STORE_SHARED
    states_of = memories[STATES] + cta * limit
    known = memories[PAGES] + cta * memories[PAGES_OF_CTA]
    size, address = width * count, int(peek32(addresses))
    if memories[SHOW]:
        native.call(memories[SHOW], memory, OWN, stores, addresses, lanes, words, width, count, step, first)
    if stores:
        disclose(memories, cta, False)
    if lanes == EVERY_LANE:
        step = int(peek32(addresses + 4)) - address
        good = step in (0, size)
        if stores:
            good = step == size and memories[EPOCHS_SIZE] == 0
        good = good and native.has_stride32(addresses, step)
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
        place = memories[DATA] + cta * limit
        if good:
            _move_row(words, place + address, step, width, count, stores)
            return 0
        plain = not stores and size >= 4
        if plain and _words_are_plain(addresses, size, limit, states_of, known, checked):
            _gather(words, addresses, place, width, count)
            return 0
    if not stores:
        disclose(memories, cta, False)
    shared = shared_of(memories)
    for lane in range(32):
        if lanes >> lane & 1:
            at, register = int(peek32(addresses + 4 * lane)), words + lane * width
            wrong = shared_word(at, first + lane, cta, register, 32 * width, shared, width, count, stores)
            if wrong:
                return native.error_at(wrong, lane)
    return 0


@native.compiled
def matrix_access(
    memory: int,
    addresses: int,
    lanes: int,
    words: int,
    width: int,
    count: int,
    kind: int,
    first: int,
    step: int,
) -> int:
    """Load four 8x8 matrices of 16-bit elements."""
    memories = native.array_at(memory, (WORDS,), np.int64)
    cta, shared = first // memories[GROUP], shared_of(memories)
    if memories[SHOW]:
        native.call(memories[SHOW], memory, OWN, False, addresses, lanes, words, 16, 1, step, first)
    disclose(memories, cta, False)
    for lane in range(32):
        address = int(peek32(addresses + 4 * lane))
        wrong = matrix_row(address, cta, lane, words, 128, shared, kind == LOAD_TRANSPOSED)
        if wrong:
            return native.error_at(wrong, lane)
    return 0


@native.compiled
def async_copy(
    memory: int,
    targets: int,
    sources: int,
    valid: int,
    lanes: int,
    size: int,
    all_targets: int,
    all_sources: int,
    all_valid: int,
    flags: int,
    first: int,
) -> int:
    """Begin asynchronous copies, and note those of each thread in the arrays of the chunk."""
    memories = native.array_at(memory, (WORDS,), np.int64)
    table = native.array_at(memories[TABLE], (memories[ARRAYS], COLUMNS), np.int64)
    cta, shared = first // memories[GROUP], shared_of(memories)
    disclose(memories, cta, True)
    for lane in range(32):
        if lanes >> lane & 1:
            to, of = int(peek32(targets + 4 * lane)), int(peek64(sources + 8 * lane))
            read = int(peek32(valid + 4 * lane))
            native.poke32(all_targets + 4 * (first + lane), to)
            poke64(all_sources + 8 * (first + lane), of)
            native.poke32(all_valid + 4 * (first + lane), read)
            native.poke8(flags + first + lane, 1)
            wrong = copy_begun(to, of, read, cta, table, shared, size)
            if wrong:
                return native.error_at(wrong, lane)
    return 0


@native.compiled
def merge(kept: int, warp: int, lanes: int, back: bool) -> None:
    """Copy the registers of a warp that a region keeps to a buffer, or those of the lanes that take
    no part in it `back`.

    kept: their number, and (address of the first warp's, bytes of a register) of each.
    """
    count = int(peek64(kept))
    for i in range(count):
        first, size = int(peek64(kept + 16 * i + 8)), int(peek64(kept + 16 * i + 16))
        at = first + 32 * warp * size
        copy = kept + 16 * count + 8 + 256 * i
        if not back:
            for byte in range(0, 32 * size, 8):
                poke64(copy + byte, peek64(at + byte))
        else:
            for lane in range(32):
                if lanes >> lane & 1 == 0:
                    native.move(at + lane * size, copy + lane * size, size)


@native.inlined
def _words_are_plain(addresses: int, size: int, limit: int, states: int, pages: int, checked: bool) -> bool:
    """Do `size` bytes at the 32-bit addresses of all lanes of a warp lie in a CTA, aligned and
    written?"""
    high = int(native.max32(addresses))
    if high + size > limit:
        return False
    wrong = np.uint64(0)
    filled = checked and shadow.are_filled(states, pages, int(native.min32(addresses)), high + size)
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
def _gather(words: int, addresses: int, place: int, width: int, count: int) -> None:
    """Load `count` words at the addresses of the lanes, from the CTA at `place` on."""
    if width == 8 and count == 1:
        for lane in range(32):
            poke64(words + 8 * lane, peek64(place + int(peek32(addresses + 4 * lane))))
    elif width == 4 and count == 1:
        for lane in range(32):
            native.poke32(words + 4 * lane, peek32(place + int(peek32(addresses + 4 * lane))))
    else:
        for lane in range(32):
            at = place + int(peek32(addresses + 4 * lane))
            for word in range(count):
                native.move(words + (word * 32 + lane) * width, at + word * width, width)


@native.inlined
def _move_row(words: int, place: int, step: int, width: int, count: int, stores: bool) -> None:
    """Load or store `count` words of all lanes, `step` bytes apart from `place` on."""
    if count == 1 and step == width:
        for byte in range(0, 32 * width, 8):
            if stores:
                poke64(place + byte, peek64(words + byte))
            else:
                poke64(words + byte, peek64(place + byte))
    else:
        for word in range(count):
            for lane in range(32):
                register = words + (word * 32 + lane) * width
                if stores:
                    native.move(place + lane * step + word * width, register, width)
                else:
                    native.move(register, place + lane * step + word * width, width)
