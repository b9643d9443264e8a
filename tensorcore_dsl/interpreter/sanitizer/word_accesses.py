"""Check the accesses of the threads of a chunk, warp by warp, and note them in `access_history`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.interpreter.core import native
from tensorcore_dsl.interpreter.core.native import (
    compiled,
    compiled_once,
    inlined,
    lowest_bit,
    peek32,
    peek64,
    poke32,
    poke64,
)
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.isa.context import CLUSTER_SHIFT
from tensorcore_dsl.isa.lanes import ALL_LANES


class Where(NamedTuple):
    """The memory of an access, for compiled functions.

    Attributes
    ----------
    memory : int
        OWN, CLUSTER or GLOBAL.
    areas : pointer
        To the `Area` of each CTA or allocation.
    length : int
        CTAs or allocations.
    table : array
        The allocations.
    peers, group : int
        CTAs of a cluster, and threads of a CTA.
    """

    memory: int
    areas: Any
    length: int
    table: Any
    peers: int
    group: int


@compiled
def touch_words(
    book: Any, where: Any, kind: int, todo: int, step: int, addresses: Any, active: Any, size: int
) -> int:
    """The accesses of `size` bytes by the active threads; 1 after a conflict.

    addresses: 64 bits each, contiguous. Addresses outside are left out; the memories refuse them.
    """
    for first in range(0, addresses.size, 32):
        lanes, at, flags = 0, addresses.ctypes.data + 8 * first, active.ctypes.data + first
        if peek64(flags) | peek64(flags + 8) | peek64(flags + 16) | peek64(flags + 24) == 0:
            continue
        for lane in range(32):
            lanes |= int(active[first + lane]) << lane
        serial = new_serial(book, step, first)
        if todo & history.CHECK and touches_row(book, where, kind, todo, serial, at, lanes, first, size):
            continue
        if touch_warp(book, where, kind, todo, serial, at, lanes, first, size):
            return 1
    return 0


@inlined
def new_serial(book: Any, step: int, first: int) -> int:
    """The serial number of an access by the warp that begins with thread `first`."""
    serial = book.next
    book.next += 1
    book.who[serial] = step << history.WARP_BITS | first // 32
    number: int = serial
    return number


@inlined
def _strength(book: Any, serial: int) -> int:
    """The strength of the instruction of an access."""
    strong: int = int(book.strong[int(book.who[serial]) >> history.WARP_BITS])
    return strong


@compiled
def logs_load(book: Any, where: Any, step: int, addresses: int, lanes: int, first: int, size: int) -> bool:
    """Log a load by a warp from the memory of its CTA, whose writes all threads know, instead of noting it.

    Most loads are never noted, as the CTA meets before it stores there. addresses: 32 bits each.
    """
    if book.logged == history.LOG_ROOM or int(book.strong[step]) != 0 or not _know_the_same(book, first):
        return False
    area, low, high, bits = where.areas[first // where.group], ALL_LANES, 0, 0
    if lanes == ALL_LANES:
        low, high, bits = native.min32(addresses), native.max32(addresses), native.or32(addresses)
    for lane in range(0 if lanes == ALL_LANES else 32):
        if lanes >> lane & 1:
            address = int(peek32(addresses + 4 * lane))
            low, high, bits = min(low, address), max(high, address), bits | address
    if bits & (size - 1) != 0 or high + size > area.limit:
        return False
    floor, known = int(book.floor[int(book.row_of[first])]), True
    granules = area.shift + history.LINE_BITS
    for line in range(low >> granules, (high + size - 1 >> granules) + 1):
        code = int(peek32(area.lines + 8 * line))
        if code == history.APART:
            known = known and native.is_below32(
                area.writes + 128 * line, floor + 1 << history.LANE_BITS, history.ALL
            )
        else:
            kind = code & history.KIND
            known = (
                known and code >> history.LANE_BITS <= floor and (kind <= history.ALL or kind >= history.ROW)
            )
    if not known:
        return False
    count = 1 if native.has_stride32(addresses, 0) else 32
    load = book.log[book.logged]
    load.addresses[0] = peek32(addresses)
    for lane in range(0, 32 if count == 32 else 0, 4):
        native.copy16(native.address_of(load.addresses, lane), addresses + 4 * lane)
    load.serial, load.lanes, load.size, load.count = new_serial(book, step, first), lanes, size, count
    book.logged += 1
    return True


@compiled
def note_loads(book: Any, where: Any) -> None:
    """Note the loads of the log while there are nodes for them."""
    words = np.empty(32, np.uint64)
    while book.noted < book.logged and history.has_nodes(book):
        load = book.log[book.noted]
        serial, lanes, size = int(load.serial), int(load.lanes), int(load.size)
        for lane in range(32):
            words[lane] = np.uint64(load.addresses[lane % int(load.count)])
        addresses, first = words.ctypes.data, (int(book.who[serial]) & history.WARP_MASK) * 32
        if not touches_row(
            book, where, history.LOAD, history.CHECK | history.NOTE, serial, addresses, lanes, first, size
        ):
            touch_warp(
                book, where, history.LOAD, history.CHECK | history.NOTE, serial, addresses, lanes, first, size
            )
        book.noted += 1
    if book.noted == book.logged:
        book.noted = book.logged = 0


@compiled_once
def touches_row(
    book: Any,
    where: Any,
    kind: int,
    todo: int,
    serial: int,
    addresses: int,
    active: int,
    first: int,
    size: int,
) -> bool:
    """Check or note, as `todo` says, the access of a whole warp to adjacent words or to one word.

    Return False and change no access if lanes must be checked one by one.
    """
    memory = where.memory
    weak = _strength(book, serial) == 0 and kind in (history.LOAD, history.STORE)
    alike = kind == history.LOAD and native.has_stride64(addresses, 0)
    even = (
        active == ALL_LANES and memory != history.CLUSTER and (alike or native.has_stride64(addresses, size))
    )
    if not even or not weak or not _know_the_same(book, first):
        return False
    which, offset = _located(where, int(peek64(addresses)), first)
    if which < 0 or offset < 0:
        return False
    area = where.areas[which]
    shift = area.shift
    if (size | offset) & (1 << shift) - 1 != 0 or offset + (size if alike else 32 * size) > area.limit:
        return False
    if alike:  # often a parameter, which nobody writes and many read
        for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
            unwritten = history.code_of(area, granule, 0) == 0
            alike = alike and unwritten and history.code_of(area, granule, 1) & history.KIND == history.MANY
        return alike
    granule, each, local = offset >> shift, size >> shift, memory != history.GLOBAL
    at = area.lines + 8 * (granule >> history.LINE_BITS)
    done = granule & 31 == 0 and each <= 8 and _touch_lines(book, kind, todo, at, each, serial, first, local)
    if not done:
        history.open_lines(area, granule, granule + 32 * each - 1)
        writes = area.writes + 4 * granule
        reads = area.reads + 4 * granule
        done = _touch_row(book, kind, todo, writes, reads, each, serial, first, local)
    return done


@compiled_once
def touch_warp(
    book: Any,
    where: Any,
    kind: int,
    todo: int,
    serial: int,
    addresses: int,
    active: int,
    first: int,
    size: int,
) -> int:
    """`touch_words` of the warp that begins with thread `first`, whose access has a serial number.

    addresses: pointer to the lanes' addresses. active: bits of the active lanes.
    """
    local, strong = where.memory != history.GLOBAL, _strength(book, serial)
    if strong == history.NON_COHERENT:  # Every write is in conflict.
        strong, book.since = 0, 0
    plain = strong == 0 and kind in (history.LOAD, history.STORE) and todo & history.CHECK != 0
    notes = todo & history.NOTE != 0
    lanes_of, slots = np.empty(32, np.int64), np.empty(64, np.int64)
    left = _together(book, addresses, active, first, lanes_of, slots)
    while left != 0:
        lane = lowest_bit(left)
        left &= left - 1
        lanes, thread = lanes_of[lane], first + lane
        which, offset = _located(where, int(peek64(addresses + 8 * lane)), first)
        if which < 0 or offset < 0:
            continue
        area = where.areas[which]
        if offset + size > area.limit:
            continue
        if kind == history.STORE and lanes & (lanes - 1) != 0 and todo & history.CHECK:
            history.report(book, history.TOGETHER, thread, offset, serial, lanes)
        shift, here = area.shift, int(book.row_of[thread])
        start, end = offset >> shift, offset + size - 1 >> shift
        writes, reads = area.writes, area.reads
        history.open_lines(area, start, end)
        by = history.Actor(lanes, thread, here, strong, local, False)
        alone = plain and (kind == history.LOAD or lanes == 1 << lane)
        if alone and _touch_known(book, by, kind, notes, writes, reads, start, end, serial):
            continue
        atomic = strong & history.ATOMIC != 0 and start == end and todo == history.CHECK | history.NOTE
        if atomic and _touch_atomic(book, by, writes + 4 * start, reads + 4 * start, serial):
            continue
        if history.touch(book, by, kind, todo, area, start, end, serial, lanes, 0):
            return 1
    return 0


@inlined
def _located(where: Any, address: int, first: int) -> tuple[int, int]:
    """The memory (-1: none) and the offset in it of an address, for the warp from thread `first` on."""
    which, offset = first // where.group, address
    if where.memory == history.CLUSTER:
        rank, offset = address >> CLUSTER_SHIFT, address & ((1 << CLUSTER_SHIFT) - 1)
        if rank > 0:
            which = which // where.peers * where.peers + rank - 1
    elif where.memory == history.GLOBAL:
        which = (address >> 40) - 1
        if which >= 0 and which < where.length:
            offset = address - where.table[which, 0] + where.areas[which].origin
    if which >= where.length:
        which = -1
    return which, offset


@inlined
def _know_the_same(book: Any, first: int) -> bool:
    """True if the lanes of a warp have seen equal accesses."""
    same: bool = native.has_stride64(native.address_of(book.row_of, first), 0)
    return same


@compiled
def _touch_lines(
    book: Any, kind: int, todo: int, lines: int, each: int, serial: int, first: int, local: bool
) -> bool:
    """`_touch_known` for all lanes of a warp, which access `each` whole lines.

    lines: address of their codes, which are of the same kind, or known to all threads.
    """
    row, good, floor = int(book.row_of[first]), True, 0
    if local:
        floor = min(int(book.floor[row]), book.since)
    for part in range(each):
        wrote, read = int(peek32(lines + 8 * part)), int(peek32(lines + 8 * part + 4))
        good = good and _line_is_known(book, wrote, history.ROW + each - 1 + part, floor, first, local)
        if kind == history.STORE or read & history.KIND != history.MANY:
            good = good and _line_is_known(book, read, history.ROW + each - 1 + part, floor, first, local)
        if kind == history.STORE and good and read >> history.LANE_BITS > floor:
            step = int(book.who[read >> history.LANE_BITS]) >> history.WARP_BITS
            good = int(book.strong[step]) != history.NON_COHERENT
    for part in range(each if good and todo & history.NOTE else 0):
        at, code = lines + 8 * part, serial << history.LANE_BITS | history.ROW + each - 1 + part
        if kind == history.STORE:
            poke64(at, np.uint64(code))
        elif int(peek32(at + 4)) & history.KIND != history.MANY:
            poke32(at + 4, np.uint32(code))
    return good


@inlined
def _line_is_known(book: Any, code: int, row: int, floor: int, first: int, local: bool) -> bool:
    """True if all lanes of a warp know of all accesses of a line.

    row: the kind of the line's code if these lanes accessed the same granules. floor: all threads
    know of all accesses up to this serial number.
    """
    serial, kind = code >> history.LANE_BITS, code & history.KIND
    if serial <= floor and (kind <= history.ALL or (kind >= history.ROW and kind != history.APART)):
        return True
    return kind == row and _warp_knows(book, serial << history.LANE_BITS, first, local)


@compiled
def _touch_row(
    book: Any, kind: int, todo: int, writes: int, reads: int, each: int, serial: int, first: int, local: bool
) -> bool:
    """`_touch_known` for all lanes of a warp, which access `each` granules, one after the other.

    writes, reads: addresses of their codes, which are 0, or of one access in the same way, or MANY.
    """
    wrote, read = int(peek32(writes)), int(peek32(reads))
    if not _alike(writes, each, wrote, wrote != 0):
        return False
    if wrote != 0 and not _warp_knows(book, wrote, first, local):
        return False
    many = read & history.KIND == history.MANY
    if (many and kind == history.STORE) or not _alike(reads, each, read, read != 0 and not many):
        return False
    if many:
        return True
    if read != 0:
        if not _warp_knows(book, read, first, local):
            return False
        step = int(book.who[read >> history.LANE_BITS]) >> history.WARP_BITS
        if kind == history.STORE and int(book.strong[step]) == history.NON_COHERENT:
            return False
    code = serial << history.LANE_BITS
    if todo & history.NOTE == 0:
        return True
    if kind == history.STORE:
        _fill(writes, each, code)
        for granule in range(each):
            native.fill32(reads + 128 * granule, 0, 0)
    else:
        _fill(reads, each, code)
    return True


@inlined
def _alike(codes: int, each: int, code: int, moves: bool) -> bool:
    """True if the codes of 32 lanes, `each` of a lane, are equal, or have the lane added."""
    if each == 1 or not moves:
        alike = True
        for some in range(each):
            at = codes + 128 * some
            alike = alike and int(peek32(at)) == code
            alike = alike and native.has_stride32(at, 1 if moves else 0)
        return alike
    other = 0
    for lane in range(32):
        for granule in range(lane * each, lane * each + each):
            other |= int(peek32(codes + 4 * granule)) - code - lane
    return other == 0


@inlined
def _fill(codes: int, each: int, code: int) -> None:
    """Set the codes of 32 lanes, `each` of a lane."""
    if each == 1:
        native.fill32(codes, code, 1)
        return
    for lane in range(32):
        for granule in range(lane * each, lane * each + each):
            poke32(codes + 4 * granule, np.uint32(code + lane))


@inlined
def _warp_knows(book: Any, code: int, first: int, local: bool) -> bool:
    """True for the code of lane 0 of a warp whose accesses this warp knows, lane by lane."""
    serial, row = code >> history.LANE_BITS, int(book.row_of[first])
    if code & history.KIND != 0 or serial > book.since:
        return False
    if local and serial <= int(book.floor[row]):
        return True
    warp, warps = int(book.who[serial]) & history.WARP_MASK, book.warps
    if not local and int(book.owner[serial >> history.PAGE_BITS]) != book.chunk:
        return False
    if warp == first // 32:
        return True
    if warp // warps != first // 32 // warps:
        return False
    known = book.known + row * book.row_bytes + 4 * (warp % warps * 32)
    knows: bool = native.min32(known) >= serial
    return knows


@inlined
def _together(book: Any, addresses: int, active: int, first: int, lanes_of: Any, slots: Any) -> int:
    """For each group of active lanes with equal addresses and knowledge, store its lanes at its first lane.

    The result has a bit for the first lane of each group.
    """
    if active == ALL_LANES and native.has_stride64(addresses, 0) and _know_the_same(book, first):
        lanes_of[0] = ALL_LANES
        return 1
    ascending, before = True, (-1)
    for lane in range(32):
        lanes_of[lane] = 1 << lane
        if active >> lane & 1:
            address = int(peek64(addresses + 8 * lane))
            ascending = ascending and address > before
            before = address
    if ascending:
        return active
    slots[:] = -1
    leaders = 0
    for lane in range(32):
        if active >> lane & 1 == 0:
            continue
        address = int(peek64(addresses + 8 * lane))
        row = int(book.row_of[first + lane])
        slot = (address * 0x9E3779B1 >> 12) & 63
        found = False
        while slots[slot] >= 0 and not found:
            other = slots[slot]
            same = int(peek64(addresses + 8 * other)) == address
            found = same and int(book.row_of[first + other]) == row
            if found:
                lanes_of[other] |= 1 << lane
            else:
                slot = (slot + 1) & 63
        if not found:
            slots[slot] = lane
            leaders |= 1 << lane
    return leaders


@inlined
def _touch_atomic(book: Any, by: Any, write: int, read: int, serial: int) -> bool:
    """`touch` of one granule by an atomic access, if nobody has accessed it but one atomic access.

    write, read: addresses of its codes.
    """
    wrote = int(peek32(write))
    done = wrote & history.KIND <= history.ALL and int(peek32(read)) == 0
    done = done and (wrote == 0 or history.compatible(book, by, wrote >> history.LANE_BITS))
    if done:
        lanes = by.mine
        while lanes & (lanes - 1) != 0:
            lanes &= lanes - 1
        poke32(write, np.uint32(serial << history.LANE_BITS | lowest_bit(lanes)))
    return done


@inlined
def _touch_known(
    book: Any, by: Any, kind: int, notes: bool, writes: int, reads: int, first: int, last: int, serial: int
) -> bool:
    """`touch` for a weak store by a lane or load by lanes that know of all accesses in conflict with it.

    It mostly does; where it does not, nothing is changed.
    """
    stores, seen_write, seen_read, known = kind == history.STORE, 0, 0, True
    floor = min(int(book.floor[by.row]), book.since) if by.local else 0
    for granule in range(first, last + 1):
        wrote, read = int(peek32(writes + 4 * granule)), int(peek32(reads + 4 * granule))
        if wrote != seen_write and not _is_below(wrote, floor):
            known = known and _knows(book, by, wrote, False)
        if stores and read != seen_read and not _is_below(read, floor):
            known = known and _knows(book, by, read, True)
        seen_write, seen_read = wrote, read
    if not known or not notes:
        return known
    code = serial << history.LANE_BITS | by.thread & 31
    if by.mine & (by.mine - 1) != 0:
        code = int(history.prepend(book, serial, by.mine, 0))
    old, new = 0, code
    for granule in range(first, last + 1):
        if stores:
            poke32(writes + 4 * granule, np.uint32(code))
            poke32(reads + 4 * granule, 0)
        else:
            read = int(peek32(reads + 4 * granule))
            if read & history.KIND == history.MANY:
                continue
            if read != old:
                old, new = read, code
                if by.local and history.joins_chain(book, read, serial):
                    new = history.linked(book, serial, by.mine, read)
                elif not _is_below(read, floor) and not _knows(book, by, read, False):
                    new = int(history.added(book, by, read, serial, by.mine))
            poke32(reads + 4 * granule, np.uint32(new))
    return True


@inlined
def _is_below(code: int, floor: int) -> bool:
    """True if a code is empty, or one access of threads with a serial number up to `floor`."""
    below: bool = code >> history.LANE_BITS <= floor and code & history.KIND <= history.ALL
    return below


@compiled
def _knows(book: Any, by: Any, code: int, overwrites: bool) -> bool:
    """True if a lane knows of all accesses of a code. overwrites: they are reads before a store."""
    while code != 0:
        if code & history.KIND in (history.ASYNC, history.MANY):
            return False
        serial, lanes, code = history.first_of(book, code)
        if serial > book.since or lanes == 0:
            return False
        if history.order_of(book, by, serial, lanes, 0) != 1:
            return False
        step = int(book.who[serial]) >> history.WARP_BITS
        if overwrites and int(book.strong[step]) == history.NON_COHERENT:
            return False
    return True
