"""Memory accesses of one warp, which the code of regions calls.

Addresses and values of its 32 lanes lie side by side. All functions return 0, or
`code << 32 | lane` for the first lane whose access fails a check.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.interpreter.core.native import peek32, peek64, poke64
from tensorcore_dsl.interpreter.core.shadow import ALL_WRITTEN
from tensorcore_dsl.interpreter.memory.accesses import (
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
    GLOBAL,
    LOAD,
    NOTE,
    OWN,
    STORE,
    Areas,
    Book,
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
from tensorcore_dsl.isa.lanes import ALL_LANES, LOAD_TRANSPOSED, STORE_GLOBAL, STORE_SHARED
from tensorcore_dsl.lowering.entry import words_of
from tensorcore_dsl.lowering.values import BOOLEAN, COUNT, ArrayKind, CObjectKind, RecordKind


class Memories(NamedTuple):
    """The memories of a chunk, for `global_access` and so on.

    Attributes
    ----------
    table : array
        The allocations.
    shared : Shared
        Arrays of shared memory.
    group, peers : int
        Threads of a CTA, and CTAs of a cluster.
    book : Book
        The book of the race detector; all zeros without a detector.
    areas : array
        By memory, the pointer to its areas.
    counts : array
        By memory, the number of its areas.
    witness, show : int
        Addresses of the functions that see what code of regions cannot judge, and all accesses. 0 for
        none.
    """

    table: Any
    shared: Any
    group: int
    peers: int
    book: Any
    areas: Any
    counts: Any
    witness: int
    show: int


def _array(dtype: Any, ndim: int) -> ArrayKind:
    return ArrayKind(np.dtype(dtype), ndim, contiguous=True)


_BYTES, _NUMBERS, _ROWS = _array(np.uint8, 2), _array(np.int64, 1), _array(np.int64, 2)
_EPOCHS = _array(np.uint32, 1)
_SHARED = RecordKind(
    shadow.Shared,
    (_BYTES, _BYTES, _BYTES, BOOLEAN, _array(np.uint32, 2), _array(np.uint16, 2), _EPOCHS, _EPOCHS),
)
_AREAS = Areas * 3
_OF_RACES = CObjectKind(Book), CObjectKind(_AREAS), _NUMBERS
KIND = RecordKind(Memories, (_ROWS, _SHARED, COUNT, COUNT, *_OF_RACES, COUNT, COUNT))


def record(ctx: Any, witness: int) -> tuple[np.ndarray, Memories]:
    """The words of the memories of a chunk, and the memories, which must outlive them."""
    detector, shown = ctx.sanitizer.detector, cast(Any, show)
    of_races = Book(), _AREAS(), np.zeros(3, np.int64)
    if detector is not None:
        where = [detector.where[memory] for memory in range(3)]
        lengths = np.array([one.length for one in where], np.int64)
        of_races = detector.book, _AREAS(*(one.areas for one in where)), lengths
    peers, seen = (0, 0) if detector is None else (detector.peers, shown.address())
    shared = ctx.shared.storage.arrays
    memories = Memories(ctx.globals.table, shared, ctx.group, peers, *of_races, witness, seen)
    return np.array(words_of(KIND, memories), np.int64), memories


@native.inlined
def disclose(shared: Any, cta: int, forget: bool) -> None:
    """Let the states of a CTA speak for all pages, if there are checks."""
    if shared.checked:
        count = shared.pages.shape[1]
        states = shared.states.ctypes.data + cta * shared.states.shape[1]
        shadow.disclose(states, shared.pages.ctypes.data + cta * count, count, forget)


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
        native.call(
            native.named_at(memory, KIND).witness,
            step,
            which == GLOBAL,
            stores,
            addresses,
            lanes,
            words,
            width,
            count,
            first,
        )


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
    memories = native.named_at(memory, KIND)
    book = memories.book
    if book.next >= book.end or (which == GLOBAL and book.earlier != 0):
        return False
    kind, areas, count = STORE if stores else LOAD, memories.areas[which], memories.counts[which]
    where = Where(which, areas, count, memories.table, memories.peers, memories.group)
    book.since = ALWAYS
    if which == OWN:
        if not stores and logs_load(book, where, step, addresses, lanes, first, size):
            return True
        note_loads(book, where)
    if not has_nodes(book) or (which == OWN and book.logged != 0):
        return False
    words, at = np.empty(32, np.uint64), addresses
    if not wide:
        at = words.ctypes.data
        for lane in range(32):
            words[lane] = np.uint64(peek32(addresses + 4 * lane))
    # Stores are noted by the detector itself where it has something to report: first, all are
    # checked. `touch_warp` notes no lanes whose loads the detector must judge.
    serial = new_serial(book, step, first)
    if touches_row(book, where, kind, CHECK | NOTE, serial, at, lanes, first, size):
        return True
    quiet, todo = True, CHECK if stores else CHECK | NOTE
    while quiet and todo != 0:
        conflict = touch_warp(book, where, kind, todo, serial, at, lanes, first, size)
        quiet = conflict == 0 and book.conflict_count == 0
        todo = CHECK | NOTE if todo == CHECK else 0
    book.conflict_count = 0
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
    memories = native.named_at(memory, KIND)
    table, checked, stores = memories.table, memories.shared.checked, kind == STORE_GLOBAL
    size, address = width * count, int(peek64(addresses))
    if memories.show:
        native.call(memories.show, memory, GLOBAL, stores, addresses, lanes, words, width, count, step, first)
    if lanes == ALL_LANES:
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
            failure = global_word(
                int(peek64(addresses + 8 * lane)),
                words + lane * width,
                32 * width,
                table,
                width,
                count,
                checked,
                stores,
            )
            if failure:
                return native.error_at(failure, lane)
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
    memories, stores = native.named_at(memory, KIND), kind == STORE_SHARED
    if memories.show:
        native.call(memories.show, memory, OWN, stores, addresses, lanes, words, width, count, step, first)
    shared = native.named_at(memory, KIND).shared  # read after the call, which would keep it on the stack
    limit, cta, checked = shared.data.shape[1], first // memories.group, shared.checked
    states_of = shared.states.ctypes.data + cta * limit
    known = shared.pages.ctypes.data + cta * shared.pages.shape[1]
    size, address = width * count, int(peek32(addresses))
    if stores:
        disclose(shared, cta, False)
    if lanes == ALL_LANES:
        step = int(peek32(addresses + 4)) - address
        good = step in (0, size)
        if stores:
            good = step == size and shared.epochs.size == 0
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
        base = shared.data.ctypes.data + cta * limit
        if good:
            _move_row(words, base + address, step, width, count, stores)
            return 0
        if not stores and size >= 4:
            states = states_of if checked else 0
            if _load_words(words, addresses, base, limit, states, known, width, count):
                return 0
    if not stores:
        disclose(shared, cta, False)
    arrays = native.named_at(memory, KIND).shared  # read anew: the way above needs few of them
    for lane in range(32):
        if lanes >> lane & 1:
            at, register = int(peek32(addresses + 4 * lane)), words + lane * width
            failure = shared_word(at, first + lane, cta, register, 32 * width, arrays, width, count, stores)
            if failure:
                return native.error_at(failure, lane)
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
    memories = native.named_at(memory, KIND)
    cta, shared = first // memories.group, memories.shared
    if memories.show:
        native.call(memories.show, memory, OWN, False, addresses, lanes, words, 16, 1, step, first)
    disclose(shared, cta, False)
    for lane in range(32):
        address = int(peek32(addresses + 4 * lane))
        failure = matrix_row(address, cta, lane, words, 128, shared, kind == LOAD_TRANSPOSED)
        if failure:
            return native.error_at(failure, lane)
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
    """Begin asynchronous copies, and note the copy of each thread in the arrays of the chunk."""
    memories = native.named_at(memory, KIND)
    table, cta, shared = memories.table, first // memories.group, memories.shared
    disclose(shared, cta, True)
    for lane in range(32):
        if lanes >> lane & 1:
            to, of = int(peek32(targets + 4 * lane)), int(peek64(sources + 8 * lane))
            read = int(peek32(valid + 4 * lane))
            native.poke32(all_targets + 4 * (first + lane), to)
            poke64(all_sources + 8 * (first + lane), of)
            native.poke32(all_valid + 4 * (first + lane), read)
            native.poke8(flags + first + lane, 1)
            failure = copy_begun(to, of, read, cta, table, shared, size)
            if failure:
                return native.error_at(failure, lane)
    return 0


@native.compiled
def merge(kept: int, warp: int, lanes: int, back: bool) -> None:
    """Copy the registers of a warp that a region keeps to a buffer.

    back: copy the registers of lanes that take no part in the region back from the buffer. kept: the
    number of registers, and (address for the first warp, bytes) of each.
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
def _load_words(
    words: int, addresses: int, base: int, limit: int, states: int, pages: int, width: int, count: int
) -> bool:
    """Load `count` words at the address of each lane, from the CTA at `base` on; False if a check fails.

    states: byte states of the CTA, 0 without checks. pages: what is known of its pages.
    """
    size, filled = width * count, states == 0
    high = int(native.max32(addresses)) + size
    if high > limit:
        return False
    if states:
        if native.or32(addresses) & (size - 1):
            return False
        filled = shadow.are_filled(states, pages, int(native.min32(addresses)), high)
    unknown = 0 if filled else states
    if count == 1 and size == 8 and native.are_granules8(addresses):
        return _load_granules(words, addresses, base, unknown, 8)
    if count == 1 and size == 4 and native.are_granules4(addresses):
        return _load_granules(words, addresses, base, unknown, 4)
    if unknown and not _are_written(addresses, size, unknown):
        return False
    _gather(words, addresses, base, width, count)
    return True


@native.inlined
def _are_written(addresses: int, size: int, states: int) -> bool:
    """True if `size` bytes at the 32-bit address of each lane are written, by the byte states of the CTA."""
    failure = np.uint64(0)
    if size == 4:
        for lane in range(32):
            at = int(peek32(addresses + 4 * lane))
            failure |= np.uint64(peek32(states + at) ^ np.uint32(0x01010101))
    else:
        for lane in range(32):
            at = int(peek32(addresses + 4 * lane))
            failure |= peek64(states + at) ^ np.uint64(ALL_WRITTEN)
            failure |= peek64(states + at + size - 8) ^ np.uint64(ALL_WRITTEN)
    good: bool = failure == 0
    return good


@native.inlined
def _load_granules(words: int, addresses: int, base: int, states: int, size: int) -> bool:
    """Load words of `size` bytes that lie in runs of 16 bytes, as the words of fragments do.

    states: byte states of the CTA at `base`; 0 if all bytes are known to be written, or without checks.
    Returns False if one is not written.
    """
    failure = np.uint64(0)
    for run in range(2 * size):
        at = int(peek32(addresses + 64 // size * run))
        native.copy16(words + 16 * run, base + at)
        if states:
            failure |= peek64(states + at) ^ np.uint64(ALL_WRITTEN)
            failure |= peek64(states + at + 8) ^ np.uint64(ALL_WRITTEN)
    good: bool = failure == 0
    return good


@native.inlined
def _gather(words: int, addresses: int, base: int, width: int, count: int) -> None:
    """Load `count` words at the addresses of the lanes, from the CTA at `base` on."""
    if width == 8 and count == 1:
        for lane in range(32):
            poke64(words + 8 * lane, peek64(base + int(peek32(addresses + 4 * lane))))
    elif width == 4 and count == 1:
        for lane in range(32):
            native.poke32(words + 4 * lane, peek32(base + int(peek32(addresses + 4 * lane))))
    else:
        for lane in range(32):
            at = base + int(peek32(addresses + 4 * lane))
            for word in range(count):
                native.move(words + (word * 32 + lane) * width, at + word * width, width)


@native.inlined
def _move_row(words: int, base: int, step: int, width: int, count: int, stores: bool) -> None:
    """Load or store `count` words of all lanes, `step` bytes apart from `base` on."""
    if count == 1 and step == width:
        for byte in range(0, 32 * width, 8):
            if stores:
                poke64(base + byte, peek64(words + byte))
            else:
                poke64(words + byte, peek64(base + byte))
    else:
        for word in range(count):
            for lane in range(32):
                register = words + (word * 32 + lane) * width
                if stores:
                    native.move(base + lane * step + word * width, register, width)
                else:
                    native.move(register, base + lane * step + word * width, width)
