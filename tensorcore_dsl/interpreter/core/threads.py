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


MOST_KEPT = 512  # masks of a chunk, and answers about them


class Kept(dict[Any, Any]):
    """What is kept to be found again; all is forgotten when there is too much of it."""

    def keep(self, key: Any, value: Any) -> Any:
        """Set an entry; returns the value."""
        if len(self) >= MOST_KEPT:
            self.clear()
        self[key] = value
        return value


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
        self._known = Kept()
        # With the arrays, so that their numbers are not given to others.
        self._unions, self._covers = Kept(), Kept()

    def find(self, threads: np.ndarray) -> Mask:
        """The mask that is equal to `threads`."""
        key = np.packbits(threads).tobytes()
        found: Mask | None = self._known.get(key)
        if found is None:
            found = Mask(threads, *divmod(census(threads), 1 << 32))
            self._known.keep(key, found)
        return found

    def union(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The threads of either mask."""
        found = self._unions.get((id(a), id(b)))
        if found is None:
            found = self._unions.keep((id(a), id(b)), (a, b, self.find(a | b).threads))
        union: np.ndarray = found[2]
        return union

    def covers(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Are all threads of `b` in `a`?"""
        if a is b:
            return True
        found = self._covers.get((id(a), id(b)))
        if found is None:
            found = self._covers.keep((id(a), id(b)), (a, b, not (b & ~a).any()))
        return bool(found[2])


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
