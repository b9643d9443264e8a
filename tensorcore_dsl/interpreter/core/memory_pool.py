"""Pool of chunk memory, which later chunks use again.

New memory is slow: the system clears each page at its first touch, which takes longer than writing
zeros to memory in use. The pool keeps blocks for the chunks of a launch. It keeps some of them for
later launches; worker processes keep all. Nothing may depend on the old contents of a block.
"""

from __future__ import annotations

import sys
from math import prod
from threading import Lock
from typing import Any

import numpy as np

MIN_BLOCK_BYTES = 1 << 20  # smaller blocks are kept by NumPy
MAX_BYTES = 1 << 28  # size of all kept blocks during launches
MAX_IDLE_BYTES = 1 << 27  # size of all kept blocks between launches
MAX_OVERSIZE = 2  # a block serves requests of at least 1 / MAX_OVERSIZE of its size

_blocks: list[np.ndarray] = []
_changing = Lock()


def _references(blocks: list[np.ndarray], number: int) -> int:
    return sys.getrefcount(blocks[number])


_ALONE = _references([np.empty(0)], 0)  # references to a block that no array is a view of


def zeros(shape: int | tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """An array of zeros. Its memory is used again when no view of it is left."""
    array = empty(shape, dtype)
    array.fill(0)
    return array


def empty(shape: int | tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """Take an array from the pool without clearing it."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    size = prod(shape) * np.dtype(dtype).itemsize
    if size < MIN_BLOCK_BYTES:
        return np.empty(shape, dtype)
    array: np.ndarray = _taken(size)[:size].view(dtype).reshape(shape)
    return array


def _taken(size: int) -> np.ndarray:
    """The smallest free block of `size` bytes or a little more, or a new one, which is kept if there
    is room."""
    with _changing:
        free = [i for i in range(len(_blocks)) if _references(_blocks, i) == _ALONE]
        fits = [i for i in free if size <= _blocks[i].size <= MAX_OVERSIZE * size]
        if fits:
            return _blocks[min(fits, key=lambda i: _blocks[i].size)]
        for deleted, i in enumerate(free):
            if size + kept() > MAX_BYTES:
                del _blocks[i - deleted]
        block = np.empty(size, np.uint8)
        if size + kept() <= MAX_BYTES:
            _blocks.append(block)
        return block


def kept() -> int:
    """Bytes of all blocks, in use or free."""
    return sum(block.size for block in _blocks)


def forget(most: int = 0) -> None:
    """Keep at most so many bytes, of the newest blocks; blocks in use are freed with their last view."""
    with _changing:
        while kept() > most:
            del _blocks[0]
