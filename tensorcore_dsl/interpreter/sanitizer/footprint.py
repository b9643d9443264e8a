"""What a launch has accessed, kept for the launches that may run at the same time.

A footprint holds the last accesses of every granule, as `access_history` has them at the end of the
launch. It does not keep arrays alive. The accesses of an array are dropped with the array's memory,
because what is allocated there later is another array.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.interpreter.memory.named_arrays import NamedArray
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.interpreter.sanitizer.regions import Region
from tensorcore_dsl.interpreter.sanitizer.strong_accesses import compatible_abroad

Owner = Callable[[], Any]


class Hit(NamedTuple):
    """A conflict. which: the access that was looked up; real: the address of the granule.

    serial, lanes: of the earlier access; wrote: it is a write.
    """

    which: int
    real: int
    serial: int
    lanes: int
    wrote: bool


@dataclass(frozen=True)
class Footprint:
    """The accesses of a launch that has ended.

    who, owner, nodes, strong, chunks: those of `LaunchHistory`. arrays: the arguments, each with
    its region and with what tells whether its memory is still there.
    """

    who: np.ndarray
    owner: np.ndarray
    nodes: np.ndarray
    strong: np.ndarray
    chunks: list[Any]
    arrays: list[tuple[NamedArray, Region, Owner]]

    def find(self, starts: np.ndarray, size: int, reads: bool, strong: int) -> Hit | None:
        """An earlier write, or read if `reads` count, of the `size` bytes at real addresses.

        strong: the strength of the later access (`strong_accesses.strength`).
        """
        for named, region, owner in self.arrays:
            inside = (starts + size > named.low) & (starts < named.high)
            if not inside.any() or owner() is None:
                continue
            shift, which = region.shift, np.flatnonzero(inside)
            low = np.maximum(starts[which], named.low) - region.low
            last = np.minimum(starts[which] + size, named.high) - 1 - region.low >> shift
            for step in range(int((last - (low >> shift)).max()) + 1):
                granules = np.minimum((low >> shift) + step, last)
                for codes, wrote in ((region.writes, True), (region.reads, False)):
                    if not (wrote or reads):
                        continue
                    for i, serial, lanes in self._conflicts(codes[granules], strong):
                        real = region.low + (int(granules[i]) << shift)
                        return Hit(int(which[i]), real, serial, lanes, wrote)
        return None

    def _conflicts(self, codes: np.ndarray, strong: int) -> Iterator[tuple[int, int, int]]:
        """The position, serial number and lanes of accesses that are not compatible."""
        book = np.zeros(history.LENGTH, np.int64)  # what reads chains of accesses
        book[history.NODES] = self.nodes.ctypes.data
        for code in np.unique(codes[codes != 0]).tolist():
            many = code & history.KIND == history.MANY
            for serial, lanes in history.entries(book, code):
                step = int(self.who[serial]) >> history.WARP_BITS
                if not compatible_abroad(strong, int(self.strong[step])):
                    yield int(np.argmax(codes == code)), serial, 0 if many else lanes

    def detector(self, serial: int) -> Any:
        """What is left of the detector of the chunk that made an access."""
        return self.chunks[int(self.owner[serial >> history.PAGE_BITS])]

    def name(self, real: int) -> str:
        """The argument of the launch that has a real address."""
        return next(named.name for named, *_ in self.arrays if named.low <= real < named.high)


def owner_of(array: np.ndarray) -> Owner:
    """What gives the owner of an array's memory, and None once that is free."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    storage = getattr(array.base, "untyped_storage", None)
    if storage is not None:  # a tensor of torch
        return weakref.ref(storage())
    if array.base is not None:  # memory of another library, whose life nothing tells
        return lambda: array
    return weakref.ref(array)
