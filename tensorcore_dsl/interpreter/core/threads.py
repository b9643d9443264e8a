"""Operands of threads, and properties of thread masks."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.lowering import compiled

_WORD = np.dtype(np.uint32)


def scalar(value: Any, thread: Any) -> int:
    """A thread's element of an operand: an array with one for each thread, or one constant."""
    return int(value[thread]) if np.ndim(value) else int(value)


def taken(values: Any, threads: np.ndarray) -> np.ndarray:
    """The elements of some threads, as int64."""
    if np.ndim(values):
        return np.asarray(values[threads].astype(np.int64))
    return np.full(len(threads), values, np.int64)


def words(values: Any, threads: int) -> np.ndarray:
    """An operand as (T,) uint32, which nobody changes."""
    if isinstance(values, np.ndarray) and values.dtype == _WORD and values.shape == (threads,):
        return values if values.flags.c_contiguous else values.copy()
    if isinstance(values, (int, np.integer)):
        return _alike(int(values), threads)
    return np.ascontiguousarray(np.broadcast_to(values, (threads,)), dtype=np.uint32)


@lru_cache(32)
def _alike(word: int, threads: int) -> np.ndarray:
    return np.full(threads, word, np.uint32)


class PerThread:
    """An attribute of a part of a chunk: an int64 for each thread, made when first asked for."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, part: Any, owner: type) -> np.ndarray:
        threads = part.chunk.threads
        numbers = np.full(threads, self.first) if self.first else np.zeros(threads, np.int64)
        vars(part)[self.name] = numbers
        return numbers


MAX_KEPT = 512  # masks of a chunk, and answers about them


class BoundedCache(dict[Any, Any]):
    """Cache that drops all entries when it holds more than `most`."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: Any, value: Any) -> Any:
        """Set an entry; returns the value."""
        if len(self) >= self.most:
            self.clear()
        self[key] = value
        return value


class Mask(EagerDict):
    """A mask over whole warps, with what follows from it.

    Attributes
    ----------
    threads
        (T,) bool.
    warps, lanes
        How many are set. Nobody changes its arrays.
    """

    def __init__(self, threads: np.ndarray) -> None:
        self.threads = threads
        self.warps, self.lanes = divmod(census(threads), 1 << 32)
        self._units: dict[int, tuple[np.ndarray, int | None]] = {}

    @cached_property
    def numbers(self) -> np.ndarray:
        """Numbers of the threads, in order."""
        return np.flatnonzero(self.threads)

    def units(self, size: int) -> tuple[np.ndarray, int | None]:
        """Find the units of `size` threads with a thread in the mask: (T // size,) bool.

        Also return the first of these units that has a thread outside of the mask, or None.
        """
        known = self._units.get(size)
        if known is None:
            lanes = self.threads.reshape(-1, size)
            some: np.ndarray = np.any(lanes, axis=1)
            broken = np.flatnonzero(some != lanes.all(axis=1))
            known = self._units[size] = some, int(broken[0]) if len(broken) else None
        return known


class Masks:
    """Masks of the threads of a chunk. Equal masks are one array, which nobody changes.

    A program in a loop meets few different masks, so questions about two of them are answered once.
    """

    def __init__(self) -> None:
        self._known = BoundedCache()
        # With the arrays, so that their numbers are not given to others.
        self._unions, self._covers = BoundedCache(), BoundedCache()

    def find(self, threads: np.ndarray) -> Mask:
        """The mask that is equal to `threads`."""
        mask: Mask | None = self._known.get(id(threads))
        if mask is None:
            key = np.packbits(threads).tobytes()
            mask = self._known.get(key)
            if mask is None:
                mask = self._known.keep(key, Mask(threads))
                self._known.keep(id(threads), mask)
        return mask

    def union(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The threads of either mask."""
        known = self._unions.get((id(a), id(b)))
        if known is None:
            known = self._unions.keep((id(a), id(b)), (a, b, self.find(a | b).threads))
        union: np.ndarray = known[2]
        return union

    def covers(self, a: np.ndarray, b: np.ndarray) -> bool:
        """True if all threads of `b` are in `a`."""
        if a is b:
            return True
        known = self._covers.get((id(a), id(b)))
        if known is None:
            known = self._covers.keep((id(a), id(b)), (a, b, not (b & ~a).any()))
        return bool(known[2])


@compiled
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


@compiled
def among(flags: Any, active: Any) -> int:
    """How many active threads have a flag set."""
    count = 0
    for thread in range(active.size):
        count += flags[thread] & active[thread]
    return count


@compiled
def divided(active: Any, unit: int, out: Any) -> None:
    """out: active threads whose unit of `unit` threads is not active as a whole."""
    for first in range(0, active.size, unit):
        count = 0
        for thread in range(first, first + unit):
            count += active[thread]
        for thread in range(first, first + unit):
            out[thread] = active[thread] and count != unit


@compiled
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
