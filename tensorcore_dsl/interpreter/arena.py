"""Shared memory that holds the arrays of a launch while worker processes run it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.memory.global_memory import ALIGNMENT, owner_of, span

MIN_BYTES = 1 << 28  # size of the arena; untouched pages cost nothing
KEPT_BYTES = 1 << 26  # memory that stays occupied between launches
HEADER_BYTES = mmap.PAGESIZE  # size of the header in front of the arrays
# Offset in the arena, shape, dtype, strides, and whether the array may be written.
ArenaView = tuple[int, tuple[int, ...], "np.dtype[Any]", tuple[int, ...], bool]


@dataclass
class _Stretch:
    """Memory from `low` to `high`, and the arrays in it as `views`.

    Attributes
    ----------
    offset : int
        In the arena.
    written : list
        Where a kernel may write, from and to real addresses, ascending and disjoint, though arguments often
        name an array more than once.
    """

    low: int
    high: int
    owner: int  # address of the array that the others are views of
    written: list[tuple[int, int]]
    offset: int = 0

    def may_be_written(self, low: int, high: int) -> None:
        """Add memory to `written`; the calls come in ascending order of `low`."""
        if self.written and low <= self.written[-1][1]:
            low, last = self.written.pop()
            high = max(high, last)
        self.written.append((low, high))


def _stretches(arguments: Sequence[Any]) -> list[_Stretch]:
    """List the memory of all arrays in order; arrays that overlap share a stretch.

    Distances from the base array are kept modulo ALIGNMENT, so that checks of alignment find the
    same as without processes.
    """
    stretches: list[_Stretch] = []
    pointers = [a for a in arguments if isinstance(getattr(a, "array", None), np.ndarray)]
    for argument in sorted(pointers, key=lambda a: span(a.array)[0]):
        (low, high), array = span(argument.array), argument.array
        if low == high:
            continue
        if stretches and low < stretches[-1].high:
            stretches[-1].high = max(stretches[-1].high, high)
        else:
            stretches.append(_Stretch(low, high, owner_of(array), []))
        if argument.writable and array.flags.writeable:
            stretches[-1].may_be_written(low, high)
    end = 0
    for stretch in stretches:
        shift = (stretch.low - stretch.owner) % ALIGNMENT
        stretch.offset = -(-end // ALIGNMENT) * ALIGNMENT + shift
        end = stretch.offset + stretch.high - stretch.low
    return stretches


class Arena:
    """Shared memory with room for arrays of `size` bytes."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, HEADER_BYTES + max(size, MIN_BYTES), flags=flags)
        self._clock = memoryview(self._memory)[:8].cast("d")
        self.bytes = np.frombuffer(self._memory, np.uint8)[HEADER_BYTES:]
        self._start = span(self.bytes)[0]
        self._stretches: list[_Stretch] = []

    @property
    def used(self) -> float:
        """When arrays were last here, by a clock that is the same in all processes."""
        return self._clock[0]

    @used.setter
    def used(self, when: float) -> None:
        self._clock[0] = when

    @staticmethod
    def room(arguments: Sequence[Any]) -> int:
        """Bytes that the arrays of a launch take."""
        return max((r.offset + r.high - r.low for r in _stretches(arguments)), default=0)

    def take(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of a launch, with copies of their arrays in this memory."""
        stretches = _stretches(arguments)
        for stretch in stretches:
            ctypes.memmove(self._start + stretch.offset, stretch.low, stretch.high - stretch.low)

        def moved(argument: Any) -> Any:
            array = getattr(argument, "array", None)
            if not isinstance(array, np.ndarray) or not array.size:
                return argument
            first, low = array.__array_interface__["data"][0], span(array)[0]
            home = next(r for r in stretches if r.low <= low < r.high)
            offset, writable = home.offset + first - home.low, array.flags.writeable
            view = offset, array.shape, array.dtype, array.strides, writable
            more = {"home": low} if hasattr(argument, "home") else {}
            return replace(argument, array=self.array(view), **more)

        moved_arguments = [moved(argument) for argument in arguments]
        self._stretches = stretches  # not before: an interrupt may have ended the copies
        return moved_arguments

    def give_back(self) -> None:
        """Write what a kernel may have changed to the arrays that were taken."""
        for stretch in self._stretches:
            for low, high in stretch.written:
                ctypes.memmove(low, self._start + stretch.offset + low - stretch.low, high - low)
        if any(stretch.offset + stretch.high - stretch.low > KEPT_BYTES for stretch in self._stretches):
            self._memory.madvise(mmap.MADV_REMOVE, HEADER_BYTES)
        self._stretches = []

    def view(self, array: np.ndarray) -> ArenaView | None:
        """Describe an array in this memory; None if it lies elsewhere."""
        offset = array.__array_interface__["data"][0] - self._start
        if not 0 <= offset < self.bytes.size or not array.size:
            return None
        return offset, array.shape, array.dtype, array.strides, array.flags.writeable

    def array(self, view: ArenaView) -> np.ndarray:
        """The array that `view` has described, in any process."""
        offset, shape, dtype, strides, writable = view
        buffer: Any = self.bytes
        array = np.ndarray(shape, dtype, buffer, offset, strides)
        array.flags.writeable = writable
        return array
