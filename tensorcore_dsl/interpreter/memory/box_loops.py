"""Compiled loops that copy boxes between global and shared memory, and check every chunk.

Both return 0, or `code << 32 | address` for the first shared address that fails a check. The
arrays `stamps`, `readers`, `epochs` and `landed` are those of `ProxyFences`, for one CTA.
"""

from __future__ import annotations

from typing import Any

from numba import types

from tensorcore_dsl.interpreter.core.compiled import (
    compiled,
    mistake,
    peek8,
    peek64,
    poke8,
    poke64,
)
from tensorcore_dsl.interpreter.core.shadow import (
    IN_FLIGHT,
    NOT_MET,
    OUTSIDE,
    PENDING,
    STILL_READ,
    UNFENCED,
    in_flight,
    mark,
    shadow_error,
)
from tensorcore_dsl.interpreter.memory.tensor_box import BOX, CHUNK, EXTENT, RANK, START, STRIDE
from tensorcore_dsl.interpreter.sanitizer.proxy_fences import unfenced


@compiled
def load_box(
    real: int, plan: Any, element: int, mask: int, pitch: int, target: int, data: Any, shadow: Any,
    checked: bool, stamps: Any, readers: Any, landed: Any, clock: int,
) -> int:  # fmt: skip
    """Copy a box to shared `target`, zeros outside of the array, and mark it as in flight."""
    rows = plan[BOX, 1] * plan[BOX, 2] * plan[BOX, 3] * plan[BOX, 4]
    length, first = plan[BOX, 0] * element, plan[START, 0]
    low = max(0, -first) * element
    high = min(plan[BOX, 0], plan[EXTENT, 0] - first) * element
    for row in range(rows):
        rest, source, inside = row, real + first * element, True
        for axis in range(1, RANK):
            place = plan[START, axis] + rest % plan[BOX, axis]
            rest //= plan[BOX, axis]
            inside = inside and place >= 0 and place < plan[EXTENT, axis]
            source += place * plan[STRIDE, axis]
        for byte in range(0, length, CHUNK):
            at = target + row * pitch + byte
            at ^= at >> 3 & mask
            if at + CHUNK > data.size:
                return mistake(OUTSIDE, at)
            if readers.size and readers[at // CHUNK]:
                return mistake(STILL_READ, at)
            if checked:
                if in_flight(shadow.ctypes.data + at, CHUNK):
                    return mistake(IN_FLIGHT, at)
                mark(shadow.ctypes.data + at, CHUNK, PENDING)
            if landed.size:
                landed[at // CHUNK] = clock
            if stamps.size:
                stamps[at // 4 : at // 4 + 4] = 0
            to = data.ctypes.data + at
            if inside and low <= byte and byte + CHUNK <= high:
                poke64(to, peek64(source + byte))
                poke64(to + 8, peek64(source + byte + 8))
            else:
                for i in range(CHUNK):
                    there = inside and low <= byte + i and byte + i < high
                    poke8(to + i, peek8(source + byte + i) if there else types.uint8(0))
    return 0


@compiled
def store_box(
    real: int, plan: Any, element: int, mask: int, pitch: int, source: int, data: Any, shadow: Any,
    checked: bool, stamps: Any, epochs: Any, first_thread: int, landed: Any, synced: int,
    copies: bool,
) -> int:  # fmt: skip
    """Copy the part of a box inside the array from shared `source`; without `copies` only check."""
    rows = plan[BOX, 1] * plan[BOX, 2] * plan[BOX, 3] * plan[BOX, 4]
    length, first = plan[BOX, 0] * element, plan[START, 0]
    low = max(0, -first) * element
    high = min(plan[BOX, 0], plan[EXTENT, 0] - first) * element
    for row in range(rows):
        rest, target, inside = row, real + first * element, copies
        for axis in range(1, RANK):
            place = plan[START, axis] + rest % plan[BOX, axis]
            rest //= plan[BOX, axis]
            inside = inside and place >= 0 and place < plan[EXTENT, axis]
            target += place * plan[STRIDE, axis]
        for byte in range(0, length, CHUNK):
            at = source + row * pitch + byte
            at ^= at >> 3 & mask
            if at + CHUNK > data.size:
                return mistake(OUTSIDE, at)
            if checked:
                state = shadow_error(shadow.ctypes.data + at, CHUNK)
                if state:
                    return mistake(state, at)
            if landed.size and landed[at // CHUNK] > synced:
                return mistake(NOT_MET, at)
            if stamps.size and unfenced(stamps, epochs, first_thread, at):
                return mistake(UNFENCED, at)
            if inside:
                for i in range(max(low - byte, 0), min(high - byte, CHUNK)):
                    poke8(target + byte + i, peek8(data.ctypes.data + at + i))
    return 0
