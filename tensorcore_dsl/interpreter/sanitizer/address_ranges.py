"""The stretches of global memory that a launch may access, and the granules of all memory.

What a granule is, and its codes: `access_history`.
"""

from __future__ import annotations

import numpy as np

from tensorcore_dsl.interpreter.core import memory_pool
from tensorcore_dsl.interpreter.core.program import Program
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.isa import classify

GRANULE = 4  # bytes, at most
CHUNK = 16  # bytes; no asynchronous operation accesses less


class Codes:
    """The codes of the granules of `count` memories of `size` bytes.

    Attributes
    ----------
    lines
        (memories, lines, 2), codes of writes and reads.
    granules
        (2, memories, granules), whose lines say which of them hold anything.
    areas
        (memories,), an `access_history.Area` each: where all these are.
    """

    def __init__(self, count: int, size: int, shift: int) -> None:
        self.size, self.shift = size, shift
        lines = (-(-size >> shift) >> history.LINE_BITS) + 1
        self.lines = memory_pool.zeros((count, lines, 2), np.uint32)
        self.granules = memory_pool.empty((2, count, lines << history.LINE_BITS), np.uint32)
        self.areas = np.zeros(count, history.AREA)
        for name, codes in zip(("writes", "reads", "lines"), (*self.granules, self.lines), strict=True):
            self.areas[name] = codes.ctypes.data + codes.strides[0] * np.arange(count)
        self.areas["shift"], self.areas["limit"] = shift, size

    def codes(self, granules: np.ndarray, item: int, memory: int = 0) -> np.ndarray:
        """The codes of granules of a memory: of writes (item 0) or reads (1)."""
        codes = np.empty(len(granules), np.int64)
        history.look_up(history.areas_at(self.areas), memory, item, np.asarray(granules, np.int64), codes)
        return codes

    def clear(self) -> None:
        """Forget all accesses."""
        self.lines.fill(0)


class AddressRange(Codes):
    """A stretch of global memory: real addresses from `low` on, and the codes of its granules."""

    def __init__(self, low: int, high: int, shift: int) -> None:
        super().__init__(1, high - low, shift)
        self.low = low


def granule_bits(program: Program, shared: bool) -> int:
    """log2 of the bytes of a granule."""
    least = GRANULE
    for word in (classify.word_access(instr) for instr in program.instructions):
        if word is not None and word.space.startswith("shared") == shared:
            least = min(least, int(word.bytes))
    return least.bit_length() - 1


def address_ranges_of(spans: list[tuple[int, int]], shift: int) -> list[AddressRange]:
    """Make ranges of (first, past-the-end) addresses; overlapping ones share a range."""
    joined: list[list[int]] = []
    for low, high in sorted((low & -CHUNK, high) for low, high in spans if high > low):
        if joined and low < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return [AddressRange(low, high, shift) for low, high in joined]
