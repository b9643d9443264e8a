"""Last accesses of every granule of memory, and the search for unordered ones.

Each access of a warp has a serial number, which says who made it, where in the program, and when.
Memory is cut into granules, as small as the smallest access of the kernel but at most 4 bytes. Each
granule has two codes of 32 bits: its last writes, and its reads since then. A code is

    serial << 6 | lane      one lane of a warp
    serial << 6 | ALL       all 32 lanes of a warp
    serial << 6 | ASYNC     an asynchronous operation; its column of `vector_clocks` is the item of
                            `who` after its own
    node << 6 | CHAIN       several accesses, none of which is ordered before another one
    serial << 6 | MANY      weak reads or strong writes by several clusters, in a kernel whose
                            clusters cannot wait for each other

A line is 32 granules. Its codes stand for those of its granules:

    a code as above         all granules have it
    serial << 6 | ROW + n   each granule was accessed by one lane of a warp, whose lanes access
                            adjacent words. A word has 2**s granules, where 2**s <= n + 1 < 2**(s + 1),
                            and the line is number n + 1 - 2**s of its access
    APART                   the granules have codes of their own

Chains are lists of immutable nodes, which granules share. An access is checked against the codes of
its granules: each access there must be known to the thread (`vector_clocks`), be its own, or not be
in conflict. Then it replaces them. Accesses that it does not know stay in the chain. Accesses
of strong instructions (atomics, volatile, relaxed and stronger) of one size are not in conflict.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_int64, c_uint8, c_uint32, sizeof
from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.interpreter.core import native
from tensorcore_dsl.interpreter.core.native import compiled, compiled_once, inlined, lowest_bit
from tensorcore_dsl.isa.lanes import ALL_LANES

peek8, peek32, peek64 = native.peek8, native.peek32, native.peek64
poke32, poke64 = native.poke32, native.poke64

LANE_BITS, ALL, ASYNC, CHAIN, MANY, ROW, APART = 6, 32, 33, 34, 35, 36, 63
KIND = (1 << LANE_BITS) - 1
PAGE_BITS = 12  # serial numbers are handed out to chunks in pages
WARP_BITS = 15  # bits of `who` that hold the warp of the chunk; the rest is the step
WARP_MASK = (1 << WARP_BITS) - 1
STEPS = 1 << 32 - WARP_BITS
SERIALS = 1 << 26
LINE_BITS = 5
NODE_ROOM = 1 << 23
NODES_OF_A_WARP = 1 << 10  # nodes that one access of a warp may take
MEMO = 1 << 12
SELDOM = 255  # mask of a hash of serial numbers: accesses whose masked hash is 0 shorten chains

LOAD, STORE, STRONG_LOAD, STRONG_STORE = range(4)  # kinds of accesses
OWN, CLUSTER, GLOBAL = range(3)  # memories that addresses name
CHECK, NOTE = 1, 2  # steps of an access
# Conflicts of an access: with a write, a read, another lane of the same instruction, a write or a
# read that no path with a proxy fence connects with it. ASK is added if another cluster made the
# other access: only messages tell whether it happened before.
WROTE, READ, TOGETHER, UNFENCED_WRITE, UNFENCED_READ, ASK = 1, 2, 3, 4, 5, 8
ROOM = 4096  # conflicts
LOG_ROOM = 1 << 16  # logged loads
SIZE_BITS, ATOMIC = 6, 1 << 5
NON_COHERENT = 255  # the strength of loads through the non-coherent cache
CTA_SCOPE, CLUSTER_SCOPE, GPU_SCOPE, SYSTEM_SCOPE = range(4)


class Area(Structure):
    """Where the codes of a memory lie, and its bounds."""

    _fields_ = [
        ("writes", c_int64),  # address of uint32 by granule
        ("reads", c_int64),  # address of uint32 by granule
        ("lines", c_int64),  # address of 2 uint32 by line: writes, reads
        ("shift", c_int64),  # log2 of the bytes of a granule
        ("limit", c_int64),  # bytes
        ("origin", c_int64),  # offset in the area of the first byte of an allocation
    ]


class Node(Structure):
    """An access of a chain."""

    _fields_ = [
        ("serial", c_uint32),
        ("lanes", c_uint32),  # 0: asynchronous
        ("rest", c_uint32),  # code of the accesses after it
    ]


class Conflict(Structure):
    """An access of a thread in conflict with an earlier one."""

    _fields_ = [
        ("what", c_int64),  # WROTE, READ, ...
        ("thread", c_int64),
        ("offset", c_int64),  # bytes in the area
        ("serial", c_int64),  # number of the earlier access
        ("lanes", c_int64),  # lanes of the earlier access
    ]


class LoggedLoad(Structure):
    """A load of a warp from shared memory that the granules do not have yet."""

    _fields_ = [
        ("serial", c_uint32),
        ("lanes", c_uint32),
        ("size", c_uint32),  # bytes of a lane
        ("count", c_uint32),  # 1 if all lanes have the first address, else 32
        ("addresses", c_uint32 * 32),
    ]


class Book(Structure):
    """The history as compiled functions see it."""

    _fields_ = [
        ("next", c_int64),  # the next serial number
        ("end", c_int64),  # the end of the page of serial numbers
        ("since", c_int64),  # writes with greater serial numbers are always in conflict
        ("who", POINTER(c_uint32)),  # by serial number: step << WARP_BITS | warp
        ("owner", POINTER(c_uint32)),  # by page: the chunk that has it
        ("strong", POINTER(c_uint8)),  # by step: 0 (weak), or bytes of a scalar | ATOMIC | scope << SIZE_BITS
        ("nodes", POINTER(Node)),
        ("next_node", c_int64),  # the next free node
        ("end_node", c_int64),  # the end of the nodes that the chunk may take
        ("memo", POINTER(c_uint32)),  # MEMO nodes by hash
        ("conflicts", POINTER(Conflict)),
        ("conflict_count", c_int64),
        ("log", POINTER(LoggedLoad)),
        ("logged", c_int64),  # loads in the log
        ("noted", c_int64),  # loads of the log, from the first on, that the granules have
        # The clocks: see `vector_clocks.Rows`.
        ("known", c_int64),  # address
        ("row_bytes", c_int64),  # size of a row of `known`
        ("vector_bytes", c_int64),  # size of a vector of `known`
        ("floor", POINTER(c_uint32)),
        ("row_of", POINTER(c_int64)),
        # The launch.
        ("chunk", c_int64),  # the number of the chunk
        ("warps", c_int64),  # warps of a cluster
        ("cta_warps", c_int64),  # warps of a CTA
        ("devices", c_int64),  # devices whose clusters take turns
        ("coupled", c_int64),  # 1 if clusters may wait for each other
        ("earlier", c_int64),  # not 0 while accesses to global memory may meet those of earlier launches
    ]


# The structures as NumPy sees them.
AREA, CONFLICT, LOGGED_LOAD = map(np.dtype, (Area, Conflict, LoggedLoad))
Areas = POINTER(Area)
_BOOK_WORDS = c_int64 * (sizeof(Book) // 8)


class StoreEquality(NamedTuple):
    """Comparison of the values that a store's threads write; (T,) bool each.

    Attributes
    ----------
    agree : array
        All threads that store to the same location store this thread's value.
    unchanged : array
        Memory holds this thread's value already.
    repeated : array
        A lower lane of the warp stores the same value to the same location.
    """

    agree: np.ndarray
    unchanged: np.ndarray
    repeated: np.ndarray


class Actor(NamedTuple):
    """Who accesses memory, for compiled functions.

    Attributes
    ----------
    mine : int
        Lanes of the warp of `thread` that make the access or have issued it.
    thread : int
        One of these lanes, as a thread of the chunk.
    row : int
        Row of the clocks of these lanes.
    strong : int
        Strength of the instruction.
    local : bool
        All accesses of this memory are known to be of this cluster.
    whole : bool
        The four warps from `thread` on act together: each must know an earlier access.
    """

    mine: int
    thread: int
    row: int
    strong: int
    local: bool
    whole: bool


def areas_at(areas: np.ndarray) -> Any:
    """The pointer to an array of `Area` that compiled functions take. The array must outlive it."""
    return Areas(Area.from_address(areas.ctypes.data))


def point(book: Book, **arrays: np.ndarray) -> None:
    """Let pointers of the book point to arrays, which must outlive it."""
    words = _BOOK_WORDS.from_buffer(book)  # faster than pointers of ctypes
    for name, array in arrays.items():
        words[getattr(Book, name).offset // 8] = array.ctypes.data


@inlined
def _who(book: Any, serial: int) -> int:
    return int(book.who[serial])


@inlined
def _ours(book: Any, serial: int) -> bool:
    """True if an access was made in this chunk."""
    ours: bool = int(book.owner[serial >> PAGE_BITS]) == book.chunk
    return ours


@inlined
def _known(book: Any, vector: int, row: int, column: int) -> int:
    at = book.known + vector * book.vector_bytes + row * book.row_bytes + 4 * column
    return int(peek32(at))


@compiled
def order_of(book: Any, by: Any, serial: int, lanes: int, vector: int) -> int:
    """1: the access happened before what is done now; 0: it did not; 2: ask `foreign`.

    by: the `Actor`. lanes: of the earlier access, 0 for an asynchronous operation. vector: ORDER,
    FENCED_SHARED or FENCED_GLOBAL.
    """
    order, before = int(_order_for(book, by, by.row, serial, lanes, vector)), by.row
    for warp in range(1, 4 if by.whole else 1):
        row = int(book.row_of[by.thread + 32 * warp])
        if order == 1 and row != before:
            order = int(_order_for(book, by, row, serial, lanes, vector))
        before = row
    return order


@compiled
def _order_for(book: Any, by: Any, row: int, serial: int, lanes: int, vector: int) -> int:
    """`order_of` for threads that know a row of the clocks."""
    thread = by.thread
    if by.local and lanes != 0 and vector == 0 and serial <= int(book.floor[row]):
        return 1
    if not by.local and not _ours(book, serial):
        return 2 if book.coupled else 0
    warp, warps = _who(book, serial) & WARP_MASK, book.warps
    if warp // warps != thread // 32 // warps:
        return 2 if book.coupled else 0
    if lanes == 0:
        return 1 if _known(book, 0, row, _who(book, serial + 1)) >= serial else 0
    alone = by.mine if warp == thread // 32 else 0
    column = warp % warps * 32
    while lanes != 0:
        lane = lowest_bit(lanes)
        if alone != 1 << lane and _known(book, 0, row, column + lane) < serial:
            return 0
        if vector != 0 and _known(book, vector, row, column + lane) < serial:
            return 0
        lanes &= lanes - 1
    return 1


@compiled
def report(book: Any, what: int, thread: int, offset: int, serial: int, lanes: int) -> None:
    """Add a conflict, while there is room."""
    if book.conflict_count < ROOM:
        conflict = book.conflicts[book.conflict_count]
        conflict.what, conflict.thread, conflict.offset = what, thread, offset
        conflict.serial, conflict.lanes = serial, lanes
        book.conflict_count += 1


@inlined
def first_of(book: Any, code: int) -> tuple[int, int, int]:
    """The first access of a code: its serial number and lanes, and the code of the rest."""
    kind, serial = code & KIND, code >> LANE_BITS
    if kind == CHAIN:
        node = book.nodes[serial]
        return int(node.serial), int(node.lanes), int(node.rest)
    lanes = ALL_LANES if kind == ALL else 0 if kind == ASYNC else 1 << (kind & 31)
    return serial, lanes, 0


@compiled
def compatible(book: Any, by: Any, serial: int) -> bool:
    """True if both accesses are strong, of one size, with scopes that include each other."""
    who = _who(book, serial)
    earlier = int(book.strong[who >> WARP_BITS])
    if by.strong == 0 or (by.strong ^ earlier) & (ATOMIC - 1):
        return False
    scope = min(by.strong, earlier) >> SIZE_BITS
    warp, here = who & WARP_MASK, by.thread // 32
    if (warp // book.warps - here // book.warps) % book.devices != 0:
        return bool(scope == SYSTEM_SCOPE)
    if not _ours(book, serial):
        return bool(scope >= GPU_SCOPE)
    if warp // book.cta_warps == here // book.cta_warps:
        return True
    return bool(scope >= (CLUSTER_SCOPE if warp // book.warps == here // book.warps else GPU_SCOPE))


@compiled
def examine(book: Any, by: Any, code: int, what: int, offset: int, vector: int, reads: int) -> int:
    """Check an access against a code; 1 when something is in conflict, which `book.conflicts` names.

    vector: what must know of accesses through the generic proxy. reads: the code of the reads of the
    granule.
    """
    newest, thread = True, by.thread
    while code != 0:
        kind = code & KIND
        serial, lanes, code = first_of(book, code)
        if kind == MANY:
            if by.strong >> SIZE_BITS >= GPU_SCOPE and compatible(book, by, serial):
                return 0
            report(book, what, thread, offset, serial, 0)
            return 1
        order = order_of(book, by, serial, lanes, 0)
        step = _who(book, serial) >> WARP_BITS
        nc = what == READ and int(book.strong[step]) == NON_COHERENT
        if serial > book.since or nc:
            report(book, what, thread, offset, serial, lanes)
            return 1
        if order != 1:
            observed = newest and what == WROTE and reads != 0 and _observed(book, by, serial, step, reads)
            if not observed and not compatible(book, by, serial):
                report(book, what + (ASK if order == 2 else 0), thread, offset, serial, lanes)
                if order == 0:
                    return 1
        elif vector != 0 and lanes != 0 and order_of(book, by, serial, lanes, vector) == 0:
            unfenced = UNFENCED_WRITE if what == WROTE else UNFENCED_READ
            report(book, unfenced, thread, offset, serial, lanes)
            return 1
        newest = False
    return 0


@compiled
def _observed(book: Any, by: Any, serial: int, step: int, reads: int) -> bool:
    """True if a read that happened before this access observed the last write, a strong one."""
    if int(book.strong[step]) == 0:
        return False
    while reads != 0:
        kind = reads & KIND
        read, lanes, reads = first_of(book, reads)
        if kind == MANY or lanes == 0 or read < serial:
            continue
        warp = _who(book, read) & WARP_MASK
        if warp == by.thread // 32 and lanes & by.mine and _ours(book, read):
            return True
        if order_of(book, by, read, lanes, 0) == 1:
            return True
    return False


@compiled
def prepend(book: Any, serial: int, lanes: int, rest: int) -> Any:
    """The code of a chain: an access in front of `rest`."""
    if rest != 0 or (lanes & (lanes - 1) != 0 and lanes != ALL_LANES):
        key = (serial * 0x9E3779B1 ^ lanes * 0x85EBCA6B ^ rest * 0xC2B2AE35) >> 7 & (MEMO - 1)
        number = int(book.memo[key])
        node = book.nodes[number]
        if number != 0 and node.serial == serial and node.lanes == lanes and node.rest == rest:
            return number << LANE_BITS | CHAIN
        if book.next_node < book.end_node:
            book.memo[key] = book.next_node
            return linked(book, serial, lanes, rest)
        lanes = lanes & -lanes  # Without room, only one of the accesses is kept.
    if lanes == 0:
        return serial << LANE_BITS | ASYNC
    if lanes == ALL_LANES:
        return serial << LANE_BITS | ALL
    return serial << LANE_BITS | lowest_bit(lanes)


@inlined
def has_nodes(book: Any) -> bool:
    """True if there are nodes for the accesses of a warp, or no more to be had."""
    enough: bool = book.next_node + NODES_OF_A_WARP <= book.end_node or book.end_node == NODE_ROOM
    return enough


@inlined
def joins_chain(book: Any, code: int, serial: int) -> bool:
    """True if a weak read of the own cluster joins a code without a look at it.

    If many threads read the same granules, chains are long, and mostly no read is ordered before
    another one. Therefore only one access in SELDOM + 1 drops the reads that it stands for. The
    others cost time, but change no result.
    """
    often: bool = serial * 0x9E3779B1 >> 20 & SELDOM != 0
    return often and code & KIND == CHAIN and book.next_node < book.end_node


@inlined
def linked(book: Any, serial: int, lanes: int, rest: int) -> int:
    """The code of a new node, for which there must be room."""
    number = book.next_node
    book.next_node += 1
    node = book.nodes[number]
    node.serial, node.lanes, node.rest = serial, lanes, rest
    code: int = number << LANE_BITS | CHAIN
    return code


@compiled
def added(book: Any, by: Any, code: int, serial: int, lanes: int) -> Any:
    """The code after an access. It omits earlier accesses for which the new access stands.

    A strong access stands for strong accesses, because the next strong access is not in conflict with it. It
    stands for a weak access only if all threads know of the weak access. An atomic access also stands for the
    last write if that write is strong: it has observed the write, so the write happened before everything
    after the atomic access.

    """
    first, kept, observes = code, 0, by.strong & ATOMIC != 0
    if by.strong == 0 and by.local and joins_chain(book, code, serial):
        return linked(book, serial, lanes, code)
    if observes:  # the last lane observes the others
        while lanes & (lanes - 1) != 0:
            lanes &= lanes - 1
    newest = True
    while code != 0:
        kind = code & KIND
        old, there, code = first_of(book, code)
        if kind == MANY:
            return first
        if old == serial and lanes != 0:
            lanes = max(lanes, there) if observes else lanes | there
            newest = False
            continue
        order = order_of(book, by, old, there, 0)
        weak = int(book.strong[_who(book, old) >> WARP_BITS]) == 0
        if by.strong and weak and not (by.local and there != 0 and old <= int(book.floor[by.row])):
            order = 2
        elif observes and newest:
            order = 1
        newest = False
        if order == 0 and not by.local and book.coupled == 0 and _elsewhere(book, old, by.thread):
            return old << LANE_BITS | MANY
        if order != 1:
            kept = prepend(book, old, there, kept)
    return prepend(book, serial, lanes, kept)


def entries(book: Book, code: int) -> list[tuple[int, int]]:
    """The serial numbers and lanes of the accesses of a code."""
    found = []
    while code:
        serial, lanes, code = _split(book, code)
        found.append((serial, lanes))
    return found


@compiled
def _split(book: Any, code: int) -> tuple[int, int, int]:
    """`first_of` for Python."""
    return first_of(book, code)


@compiled
def _elsewhere(book: Any, serial: int, thread: int) -> bool:
    """True if another cluster made an access."""
    if not _ours(book, serial):
        return True
    warp = _who(book, serial) & WARP_MASK
    different: bool = warp // book.warps != thread // 32 // book.warps
    return different


@inlined
def code_of(area: Any, granule: int, item: int) -> int:
    """The code of a granule: of its writes (item 0) or reads (1)."""
    code = int(peek32(area.lines + 8 * (granule >> LINE_BITS) + 4 * item))
    if code == APART:
        code = int(peek32((area.reads if item else area.writes) + 4 * granule))
    elif code & KIND >= ROW:
        code = _of_row(code, granule & 31)
    return code


@inlined
def _of_row(code: int, granule: int) -> int:
    """The code of a granule of a line that a row of lanes has accessed."""
    number, shift = (code & KIND) - ROW + 1, 0
    while number >> shift > 1:
        shift += 1
    lane = (number << LINE_BITS) + granule >> shift & 31
    single: int = code & ~KIND | lane
    return single


@compiled
def look_up(areas: Any, memory: int, item: int, granules: Any, codes: Any) -> None:
    """Set the `codes` of granules of a memory: of their writes (item 0) or reads (1)."""
    area = areas[memory]
    for i in range(granules.size):
        codes[i] = code_of(area, granules[i], item)


@inlined
def open_lines(area: Any, first: int, last: int) -> None:
    """Give the granules from `first` to `last` codes of their own."""
    for line in range(first >> LINE_BITS, (last >> LINE_BITS) + 1):
        at = area.lines + 8 * line
        if int(peek64(at)) != APART << 32 | APART:
            _open_line(at, area.writes + 128 * line)
            _open_line(at + 4, area.reads + 128 * line)


@compiled
def _open_line(line: int, codes: int) -> None:
    code = int(peek32(line))
    if code != APART and code & KIND < ROW:
        native.fill32(codes, code, 0)
    elif code != APART:
        for granule in range(32):
            poke32(codes + 4 * granule, np.uint32(_of_row(code, granule)))
    poke32(line, np.uint32(APART))


@compiled_once
def touch(
    book: Any,
    by: Any,
    kind: int,
    todo: int,
    area: Any,
    first: int,
    last: int,
    serial: int,
    lanes: int,
    vector: int,
) -> int:
    """Check and note an access to the granules `first` to `last`; 1 after a conflict.

    area: an `Area`. lanes: 0 for an asynchronous operation. vector: not
    ORDER if accesses through the generic proxy must have been fenced: writes before any access,
    reads before a write.
    """
    stores, found = kind in (STORE, STRONG_STORE), book.conflict_count
    seen_writes, seen_reads, new_writes, new_reads = -1, -1, 0, 0
    granule, writes, reads, lines = first, area.writes, area.reads, area.lines
    while granule <= last:
        line = lines + 8 * (granule >> LINE_BITS)
        at, at_reads, count = line, line + 4, 32
        even = max(int(peek32(line)) & KIND, int(peek32(line + 4)) & KIND) < ROW
        if granule & 31 != 0 or last - granule < 31 or not even:
            open_lines(area, granule, granule)
            at, at_reads, count = writes + 4 * granule, reads + 4 * granule, 1
        wrote = int(peek32(at))
        read = int(peek32(at_reads))
        if wrote != seen_writes or (read != seen_reads and stores):
            offset = granule << area.shift
            if todo & CHECK:
                if wrote != 0 and examine(book, by, wrote, WROTE, offset, vector, read):
                    return 1
                if stores and read != 0 and examine(book, by, read, READ, offset, vector, 0):
                    return 1
            if stores and todo & NOTE:
                new_reads = 0
                if kind == STRONG_STORE:
                    new_writes = added(book, by, wrote, serial, lanes)
                    new_reads = read
                elif wrote >> LANE_BITS == serial and wrote & KIND != CHAIN and lanes != 0 and todo & CHECK:
                    report(book, TOGETHER, by.thread, offset, serial, lanes)
                    return 1
                else:
                    new_writes = prepend(book, serial, lanes & -lanes, 0)
        if not stores and read != seen_reads and todo & NOTE:
            new_reads = added(book, by, read, serial, lanes)
        seen_writes, seen_reads = wrote, read
        # Accesses with ASK are checked a second time, and noted if they are in order. The second check must
        # not meet reads of the same lanes: a read that has seen a write counts as ordered after it.
        if todo & NOTE and (lanes == 0 or book.conflict_count == found):
            if stores:
                poke32(at, np.uint32(new_writes))
            poke32(at_reads, np.uint32(new_reads))
            if kind == STORE and granule & 31 == 31 and granule - 31 >= first:
                poke64(line, np.uint64(new_writes))  # the line has this one access now
        granule += count
    return 0


class Operations(NamedTuple):
    """Asynchronous operations of one step: (n,) the threads that issue them, and serial numbers."""

    threads: np.ndarray
    serials: np.ndarray

    def first(self, count: int | None) -> Operations:
        """The first `count` operations; None: all."""
        return Operations(self.threads[:count], self.serials[:count])


class Spans(NamedTuple):
    """The memory that operations access.

    Attributes
    ----------
    bounds : array
        (different, spans, 2): the first unit of each span, and the unit after its last one.
    rows : array
        (n,): the row of `bounds` of each operation.
    unit : int
        Bytes of a unit.
    """

    bounds: np.ndarray
    rows: np.ndarray
    unit: int = 1


@compiled
def touch_spans(
    book: Any,
    kind: int,
    todo: int,
    strong: int,
    local: bool,
    whole: bool,
    vector: int,
    operations: Any,
    spans: Any,
    areas: Any,
    which: Any,
    first: int,
) -> int:
    """Check and note asynchronous operations from number `first` on; the number after the last one.

    It stops after a conflict, and where room for conflicts or the nodes run short. strong, local, whole: see
    `Actor`. todo, vector: see `touch`. areas: pointer to each `Area`. which: (n,), the memory of each.
    """
    at, count = first, operations.serials.size
    while at < count and (at == first or (book.conflict_count < ROOM // 2 and has_nodes(book))):
        thread, area = operations.threads[at], areas[which[at]]
        mine = 0 if whole else 1 << thread % 32
        by = Actor(mine, thread, int(book.row_of[thread]), strong, local, whole)
        serial, bounds, shift = operations.serials[at], spans.bounds[spans.rows[at]], area.shift
        at += 1
        for span in range(bounds.shape[0]):
            low = max(bounds[span, 0] * spans.unit, 0)
            high = min(bounds[span, 1] * spans.unit, area.limit)
            if low < high and touch(
                book, by, kind, todo, area, low >> shift, high - 1 >> shift, serial, 0, vector
            ):
                return at
    return at


@compiled
def mark(book: Any, mask: Any, step: int) -> None:
    """Give a serial number to a synchronisation of each warp of `mask`."""
    for first in range(0, mask.size, 32):
        if mask[first : first + 32].any():
            who = step << WARP_BITS | first // 32
            book.who[book.next] = who
            book.next += 1
