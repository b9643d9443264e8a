"""Operands of threads, and questions about masks of threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.lowering import vectorised


def scalar(value: Any, thread: Any) -> int:
    """A thread's element of an operand: an array with one for each thread, or one constant."""
    return int(value[thread]) if np.ndim(value) else int(value)


def words(values: Any, threads: int) -> np.ndarray:
    """An operand as (T,) uint32."""
    return np.ascontiguousarray(np.broadcast_to(values, (threads,)), dtype=np.uint32)


MOST_MASKS = 512  # that are kept, and answers about them


class Mask(NamedTuple):
    """A mask over whole warps. threads: (T,) bool; warps, lanes: how many are set."""

    threads: np.ndarray
    warps: int
    lanes: int


class Masks:
    """Masks of the threads of a chunk, so that equal ones are one array, which nobody changes.

    A program in a loop meets few different masks, so questions about two of them are answered once.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Mask] = {}
        # With the arrays, so that their numbers are not given to others.
        self._unions: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._covers: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, bool]] = {}

    def find(self, threads: np.ndarray) -> Mask:
        """The mask that is equal to `threads`."""
        key = np.packbits(threads).tobytes()
        found = self._known.get(key)
        if found is None:
            if len(self._known) == MOST_MASKS:
                self._known.clear()
            found = self._known[key] = Mask(threads, *divmod(census(threads), 1 << 32))
        return found

    def union(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The threads of either mask."""
        found = self._unions.get((id(a), id(b)))
        if found is None:
            if len(self._unions) == MOST_MASKS:
                self._unions.clear()
            found = self._unions[id(a), id(b)] = a, b, self.find(a | b).threads
        return found[2]

    def covers(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Are all threads of `b` in `a`?"""
        if a is b:
            return True
        found = self._covers.get((id(a), id(b)))
        if found is None:
            if len(self._covers) == MOST_MASKS:
                self._covers.clear()
            found = self._covers[id(a), id(b)] = a, b, not (b & ~a).any()
        return found[2]


@vectorised
def census(active: Any) -> int:
    """`warps << 32 | lanes` of a mask over whole warps."""
    warps, lanes = 0, 0
    for warp in range(active.size // 32):
        count = 0
        for lane in range(warp * 32, warp * 32 + 32):
            count += active[lane]
        lanes += count
        warps += count > 0
    return warps << 32 | lanes


@vectorised
def among(flags: Any, active: Any) -> int:
    """How many active threads have a flag set."""
    count = 0
    for thread in range(active.size):
        count += flags[thread] and active[thread]
    return count


@vectorised
def divided(active: Any, unit: int, out: Any) -> None:
    """out: active threads whose unit of `unit` threads is not active as a whole."""
    for first in range(0, active.size, unit):
        count = 0
        for thread in range(first, first + unit):
            count += active[thread]
        for thread in range(first, first + unit):
            out[thread] = active[thread] and count != unit


@vectorised
def absent(active: Any, named: Any, excused: Any, out: Any) -> None:
    """out: active lanes whose `named` mask has a lane of their warp that is neither active nor
    `excused`."""
    for warp in range(active.size // 32):
        here = np.uint32(0)
        for lane in range(32):
            if active[warp * 32 + lane] or excused[warp * 32 + lane]:
                here |= np.uint32(1) << np.uint32(lane)
        for thread in range(warp * 32, warp * 32 + 32):
            out[thread] = active[thread] and (np.uint32(named[thread]) & ~here) != 0
