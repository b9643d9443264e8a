"""Compiled reads of shared memory by products of warpgroups, through the async proxy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.interpreter.sanitizer.async_proxy import CHUNK, unfenced
from tensorcore_dsl.lowering import vectorised


@native.inlined
def _are_plain(
    chunks: int, count: int, limit: int, states: int, pages: int, checked: bool, stamps: Any
) -> bool:
    """True if the chunks, whose addresses begin at `chunks`, lie in the CTA, written and without stamps.

    False also if a page has a stamp of any thread.
    """
    low, high = limit, 0
    for i in range(count):
        at = int(native.peek64(chunks + 8 * i))
        low, high = min(low, at), max(high, at)
    if high + CHUNK > limit:
        return False
    for page in range(low // shadow.PAGE, high // shadow.PAGE + 1):
        if shadow.is_stamped(stamps, page * shadow.PAGE):
            return False
    failure = np.uint64(0)
    if checked and not shadow.are_filled(states, pages, low, high + CHUNK):
        for i in range(count):
            state = states + int(native.peek64(chunks + 8 * i))
            failure |= native.peek64(state) ^ np.uint64(shadow.ALL_WRITTEN)
            failure |= native.peek64(state + 8) ^ np.uint64(shadow.ALL_WRITTEN)
    plain: bool = failure == 0
    return plain


@native.inlined
def _chunk_error(
    at: int, limit: int, states: int, pages: int, checked: bool, stamps: Any, epochs: Any, first: int
) -> int:
    """The code of the check that a read of a chunk through the async proxy fails, or 0."""
    if at + CHUNK > limit:
        return shadow.OUTSIDE
    written = not checked or shadow.are_filled(states, pages, at, at + CHUNK)
    if not written and not shadow.all_written(states + at, CHUNK):
        return int(shadow.shadow_error(states + at, CHUNK))
    if epochs.size > 0 and unfenced(stamps, epochs, first, at):
        return shadow.UNFENCED
    return 0


@native.inlined
def _chunk_loaded(source: int, to: int, size: int, step: int) -> None:
    """Elements of `size` bytes of a chunk to words that are `step` bytes apart."""
    if size == 2:
        for j in range(8):
            native.poke32(to + step * j, np.uint32(native.peek16(source + 2 * j)))
    elif size == 1:
        for j in range(16):
            native.poke32(to + step * j, np.uint32(native.peek8(source + j)))
    else:
        for j in range(4):
            native.poke32(to + step * j, native.peek32(source + 4 * j))


@vectorised
def async_load(
    addresses: Any, own: Any, whole: Any, shared: Any, cluster: int, out: Any, size: int, across: bool
) -> int:
    """Load elements of `size` bytes in 16-byte chunks of shared memory through the async proxy.

    addresses, own: see `isa.descriptor.Chunks`; out: see `isa.context`; whole: (warpgroups,), those
    that take part; cluster: CTAs of a cluster. Failed checks name `warpgroup * chunks + chunk`.
    """
    groups, count = own.size, addresses.shape[1]
    ctas, limit = shared.data.shape
    checked, epochs = shared.checked, shared.judged
    per, threads = groups // ctas, epochs.size // ctas
    lines = out.shape[2] if across else out.shape[1]
    per_line = out.shape[1] if across else out.shape[2]
    for group in range(groups):
        if not whole[group]:
            continue
        cta = group // per
        chunks = addresses.ctypes.data + 8 * count * own[group]
        states, source = shared.states.ctypes.data + cta * limit, shared.data.ctypes.data + cta * limit
        pages, stamps = shared.pages.ctypes.data + cta * shared.pages.shape[1], shared.stamps[cta]
        if not _are_plain(chunks, count, limit, states, pages, checked, stamps):
            first = cta // cluster * cluster * threads
            for i in range(count):
                at = int(native.peek64(chunks + 8 * i))
                code = _chunk_error(at, limit, states, pages, checked, stamps, epochs, first)
                if code:
                    return native.error_at(code, group * count + i)
        to = out.ctypes.data + 4 * (group * lines * per_line)
        if size == 4 and not across:
            for i in range(count):
                native.copy16(to + 16 * i, source + int(native.peek64(chunks + 8 * i)))
            continue
        for i in range(count):
            at, element = source + int(native.peek64(chunks + 8 * i)), i * (CHUNK // size)
            if across:
                line, first = element // per_line, element % per_line
                _chunk_loaded(at, to + 4 * (first * lines + line), size, 4 * lines)
            else:
                _chunk_loaded(at, to + 4 * element, size, 4)
    return 0
