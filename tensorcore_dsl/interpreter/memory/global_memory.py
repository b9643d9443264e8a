"""Global memory: the arrays of a launch."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.shadow import OUTSIDE, READ_ONLY
from tensorcore_dsl.interpreter.memory.access_loops import (
    COLUMNS,
    REAL,
    SIZE,
    SPACE_BITS,
    VIRTUAL,
    WRITABLE,
    global_load,
    global_store,
)
from tensorcore_dsl.interpreter.memory.arguments import Arguments
from tensorcore_dsl.interpreter.memory.word_memory import WORDS, WordMemory


class GlobalMemory(WordMemory):
    """The arrays of a launch, as one chunk of CTAs accesses them."""

    space = "global"

    def __init__(self, chunk: Chunk, arguments: Arguments) -> None:
        super().__init__(chunk)
        self.arguments = arguments
        self.table = arguments.table

    def load_words(
        self, mask: np.ndarray, addresses: np.ndarray, width: int, count: int
    ) -> np.ndarray:
        out = np.empty((count, addresses.size), WORDS[width])
        self.chunk.account(self.space, "load", addresses, mask, width * count)
        wrong = global_load(
            addresses, mask, self.table, out.view(np.uint8), width, count, self.chunk.checks
        )
        if wrong:
            self.refuse(wrong, addresses, width * count, "load")
        return out

    def store_words(self, mask: np.ndarray, addresses: np.ndarray, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        count, width = values.shape[0], values.dtype.itemsize
        self.chunk.account(self.space, "store", addresses, mask, width * count)
        wrong = global_store(
            addresses, mask, self.table, values.view(np.uint8), width, count, self.chunk.checks
        )
        if wrong:
            self.refuse(wrong, addresses, width * count, "store")

    def locate(self, address: int, size: int, verb: str, thread: int) -> tuple[str, int]:
        """The argument that `size` bytes at a virtual address belong to, and their real address."""
        index = (address >> SPACE_BITS) - 1
        inside = 0 <= index < len(self.arguments.pointers)
        row = self.table[index] if inside else np.zeros(COLUMNS, int)
        offset = address - int(row[VIRTUAL])
        wrong = 0 if 0 <= offset <= row[SIZE] - size else OUTSIDE
        if not wrong and "store" in verb and not row[WRITABLE]:
            wrong = READ_ONLY
        if wrong:
            addresses = np.full(thread + 1, address, np.uint64)
            self.refuse(wrong << 32 | thread, addresses, size, verb)
        return f"argument {self.arguments.pointers[index].name!r}", int(row[REAL]) + offset

    def refuse(self, wrong: int, addresses: np.ndarray, size: int, verb: str) -> NoReturn:
        """Raise the error of a failed check."""
        code, thread = wrong >> 32, wrong & 0xFFFFFFFF
        address = int(addresses[thread])
        what = f"global {verb} of {size} bytes at {address:#x} by {self.chunk.describe(thread)}"
        where = self.arguments.describe(address)
        if code == OUTSIDE:
            raise OutOfBounds(f"out of bounds: {what}: {where}")
        if code == READ_ONLY:
            raise EmulationError(f"read-only memory: {what}: {where}")
        raise Misaligned(f"misaligned: {what}, which is no multiple of {size}: {where}")
