"""The stretches of global memory that a launch may access, and the granules of all memory.

What a granule is, and its codes: `access_history`.
"""

from __future__ import annotations

import numpy as np

from tensorcore_dsl.interpreter.core import memory_pool
from tensorcore_dsl.interpreter.core.program import Program

GRANULE = 4  # bytes, at most
CHUNK = 16  # bytes; no asynchronous operation accesses less


class Region:
    """A stretch of global memory: real addresses from `low` on, and the codes of its granules."""

    def __init__(self, low: int, high: int, shift: int) -> None:
        self.low, self.size, self.shift = low, high - low, shift
        count = -(-self.size >> shift) + 1
        self.writes, self.reads = memory_pool.zeros((2, count), np.uint32)

    def place(self, origin: int) -> tuple[int, ...]:
        """A row of `places` for what starts at byte `origin`."""
        return (self.writes.ctypes.data, self.reads.ctypes.data, self.shift, self.size, origin)


def granule_bits(program: Program, shared: bool) -> int:
    """log2 of the bytes of a granule."""
    least = GRANULE
    for step in program.steps:
        word = step.instr.word if step.instr is not None else None
        if word is not None and word.space.startswith("shared") == shared:
            least = min(least, int(word.bytes))
    return least.bit_length() - 1


def regions_of(spans: list[tuple[int, int]], shift: int) -> list[Region]:
    """Regions that cover the (first, past-the-end) addresses; those that overlap are one."""
    joined: list[list[int]] = []
    for low, high in sorted((low & -CHUNK, high) for low, high in spans if high > low):
        if joined and low < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return [Region(low, high, shift) for low, high in joined]
