"""Shared memory of a chunk, and its shadow: one byte of state for each byte.

The stamps of the proxy checks (one word for each 4 bytes) are written here too, because every
store writes both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.interpreter.core import memory_pool, native
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

# States of a byte. PENDING: an asynchronous copy in flight owns it; BARRIER: part of an mbarrier.
NEVER, WRITTEN, PENDING, BARRIER = range(4)
ALL_WRITTEN, ALL_PENDING = (state * 0x0101010101010101 for state in (WRITTEN, PENDING))
BUSY = 0x0202020202020202  # the bits that PENDING and BARRIER have in common, of 8 bytes
# Codes of failed checks of memory accesses.
OUTSIDE, MISALIGNED, UNWRITTEN, IN_FLIGHT, READ_ONLY, STILL_READ, UNFENCED, NO_CTA = range(1, 9)

# Stamps of a CTA: one word for each 4 bytes of whole pages, then one word for each page, which is
# set from the first stamp in the page on: the words of pages without any mean nothing.
PAGE = 1024  # bytes
PAGE_WORDS = PAGE // 4 + 1

# What is known of a page as a whole. FILLED: all its bytes are WRITTEN. FLYING: a bulk load in
# flight fills it, and its bytes are PENDING, though their states say WRITTEN until `disclose`.
UNKNOWN, FILLED, FLYING = range(3)
ANY_FLYING = FLYING * 0x0101010101010101  # FLYING for 8 pages

STAMP_BITS = 14  # bits of a stamp that hold the thread; a cluster has at most 16 * 1024 threads
STAMP_MASK = (1 << STAMP_BITS) - 1
OFFSET = (1 << CLUSTER_SHIFT) - 1  # mask of a shared address: the offset within its CTA


class Shared(NamedTuple):
    """Arrays of the shared memory of a chunk, for compiled functions.

    Attributes
    ----------
    data, states, pages, checked
        See `SharedStorage`.
    stamps, readers, epochs, judged
        See `ProxyFences`.
    """

    data: Any
    states: Any
    pages: Any
    checked: Any
    stamps: Any
    readers: Any
    epochs: Any
    judged: Any


class SharedStorage:
    """Shared memory of a chunk. `data` and `states`, the state of each byte, are (CTAs, bytes).

    Attributes
    ----------
    pages
        (CTAs, pages and more): the known state of each page. Empty without checks.
    checks
        True if alignment and states are checked.
    written
        Bytes count as written from the start.
    arrays : Shared
        The arrays of `ProxyFences`, too. Their states need not cover all pages.
    """

    arrays: Shared

    def __init__(self, data: np.ndarray, checks: bool, written: bool = False) -> None:
        self.data = np.ascontiguousarray(data)
        self.states = memory_pool.zeros(data.shape)  # NEVER
        if written:
            self.states.fill(WRITTEN)
        self.checks = checks
        width = (self.size // PAGE // 8 + 1) * 8 * checks
        self.pages = np.zeros((len(self.data), width), np.uint8)

    def disclosed(self, forget: bool = False) -> Shared:
        """The arrays, whose states speak for all pages now.

        Bytes may become WRITTEN in them; with `forget`, anything.
        """
        _disclose_all(self.states, self.pages, forget)
        return self.arrays

    @property
    def shadow(self) -> np.ndarray:
        """The states, which speak for all pages now; bytes may become WRITTEN in it."""
        self.disclosed()
        return self.states

    @property
    def size(self) -> int:
        """Bytes of one CTA."""
        return int(self.data.shape[1])

    @property
    def extent(self) -> str:
        """The bytes that a CTA has, for messages."""
        return f"bytes 0 to {self.size - 1:#x}" if self.size else "no shared memory"


@native.inlined
def shadow_error(shadow: int, size: int) -> int:
    """0 when all bytes are written, else the error code of the first byte that is not."""
    for byte in range(size):
        state = native.peek8(shadow + byte)
        if state == NEVER:
            return UNWRITTEN
        if state != WRITTEN:
            return IN_FLIGHT
    return 0


@native.inlined
def all_written(shadow: int, size: int) -> bool:
    """True if all bytes are written. It compares up to 8 bytes at a time."""
    good = True
    if size >= 8:
        for start in range(0, size, 8):
            good = good and native.peek64(shadow + start) == ALL_WRITTEN
        return good
    if size == 4:
        word: int = native.peek32(shadow)
        return word == 0x01010101
    return shadow_error(shadow, size) == 0


@native.inlined
def in_flight(shadow: int, size: int) -> bool:
    """True if an asynchronous copy or an mbarrier owns any of the bytes."""
    states = np.uint64(0)
    if size >= 8:
        for start in range(0, size, 8):
            states |= native.peek64(shadow + start)
    elif size == 4:
        states = native.peek32(shadow)
    else:
        for byte in range(size):
            states |= native.peek8(shadow + byte)
    busy: bool = states & BUSY != 0
    return busy


@native.inlined
def mark(shadow: int, size: int, state: int) -> None:
    """Write `state` to the shadow of `size` bytes."""
    if size >= 8:
        for start in range(0, size, 8):
            native.poke64(shadow + start, state * 0x0101010101010101)
    elif size == 4:
        native.poke32(shadow, state * 0x01010101)
    else:
        for byte in range(size):
            native.poke8(shadow + byte, state)


@native.inlined
def disclose(states: int, pages: int, count: int, forget: bool) -> None:
    """Let the states of a CTA speak for the first `count` pages, a multiple of 8.

    states, pages: real addresses. forget: nothing is known of these pages any more.
    """
    for eight in range(0, count, 8):
        known = native.peek64(pages + eight)
        if known & ANY_FLYING:
            for page in range(eight, eight + 8):
                if native.peek8(pages + page) == FLYING:
                    _disclose_page(states, pages, page)
        if forget and known != 0:
            native.poke64(pages + eight, np.uint64(0))


@native.inlined
def _disclose_page(states: int, pages: int, page: int) -> None:
    for byte in range(0, PAGE, 8):
        native.poke64(states + page * PAGE + byte, ALL_PENDING)
    native.poke8(pages + page, np.uint8(UNKNOWN))


@native.compiled
def _disclose_all(states: Any, pages: Any, forget: bool) -> None:
    """`disclose` for all CTAs."""
    for cta in range(pages.shape[0]):
        own = pages.ctypes.data + cta * pages.shape[1]
        disclose(states.ctypes.data + cta * states.shape[1], own, pages.shape[1], forget)


@native.inlined
def are_filled(states: int, pages: int, low: int, high: int) -> bool:
    """True if all pages with bytes from `low` to before `high` of a CTA are known to be written.

    Afterwards the states speak for them.
    """
    filled = True
    for page in range(low // PAGE, (high - 1) // PAGE + 1):
        known = native.peek8(pages + page)
        filled = filled and known == FILLED
        if known == FLYING:
            _disclose_page(states, pages, page)
    return filled


@native.inlined
def is_stamped(stamps: Any, address: int) -> bool:
    """True if the page of an address in a CTA may hold stamps. stamps: (words,), those of the CTA."""
    pages = stamps.size // PAGE_WORDS
    stamped: bool = stamps.size > 0 and stamps[stamps.size - pages + address // PAGE] != 0
    return stamped


@native.inlined
def stamp_words(shared: Any, cta: int, address: int, size: int, thread: int) -> None:
    """Stamp the words of `size` bytes from `address` on with a thread and its epoch."""
    stamp = int(shared.epochs[thread]) << STAMP_BITS | thread & STAMP_MASK
    words = shared.stamps.shape[1]
    first, page = shared.stamps.ctypes.data + cta * words * 4, address // PAGE
    begun = first + 4 * (words - words // PAGE_WORDS + page)
    if native.peek32(begun) == 0:
        native.poke32(begun, 1)
        for byte in range(page * PAGE, (page + 1) * PAGE, 8):
            native.poke64(first + byte, np.uint64(0))
    if size >= 8:
        for start in range(0, size, 8):
            native.poke64(first + address + start, stamp << 32 | stamp)
    else:
        native.poke32(first + (address & -4), stamp)
