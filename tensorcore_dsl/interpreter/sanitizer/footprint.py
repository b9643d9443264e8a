"""Accesses of a launch, kept for launches that may run at the same time.

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

from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.named_arrays import NamedArray
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.interpreter.sanitizer.address_ranges import AddressRange
from tensorcore_dsl.interpreter.sanitizer.strong_accesses import Message, compatible_abroad, foreign_key
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import ORDER

Owner = Callable[[], Any]


class Hit(NamedTuple):
    """A conflict.

    Attributes
    ----------
    which : int
        The access that was looked up.
    real : int
        The address of the granule.
    serial, lanes : int
        Of the earlier access.
    wrote : bool
        It is a write.
    unfenced : bool
        The later access, through the async proxy, is ordered after it, but without a fence of proxies.
    """

    which: int
    real: int
    serial: int
    lanes: int
    wrote: bool
    unfenced: bool


@dataclass(frozen=True)
class Footprint:
    """The accesses of a launch that has ended.

    Attributes
    ----------
    number : int
        Of the launch.
    who, owner, nodes, strong, chunks
        Those of `LaunchHistory`.
    arrays : list
        The arguments, each with its range and with what tells whether its memory is still there.
    messages : dict
        What was released, by real address.
    """

    number: int
    who: np.ndarray
    owner: np.ndarray
    nodes: np.ndarray
    strong: np.ndarray
    chunks: list[Any]
    arrays: list[tuple[NamedArray, AddressRange, Owner]]
    messages: dict[int, Message]

    def released(self) -> Iterator[tuple[int, Message]]:
        """The messages in memory that is still there."""
        alive = [named for named, _, owner in self.arrays if owner() is not None]
        for real, message in self.messages.items():
            if any(named.low <= real < named.high for named in alive):
                yield real, message

    def find(
        self,
        starts: np.ndarray,
        size: int,
        reads: bool,
        strong: int,
        acquired: dict[int, np.ndarray],
        vector: int,
        device: int,
    ) -> Hit | None:
        """An earlier write, or read if `reads` count, of the `size` bytes at real addresses.

        strong: the strength of the later access (`strong_accesses.strength`). acquired: what its
        thread knows by releases and acquires, by cluster. vector: what must know of the access. device: of
        the threads that make it.
        """
        for named, stretch, owner in self.arrays:
            inside = (starts + size > named.low) & (starts < named.high)
            if not inside.any() or owner() is None:
                continue
            shift, which = stretch.shift, np.flatnonzero(inside)
            low = np.maximum(starts[which], named.low) - stretch.low
            last = np.minimum(starts[which] + size, named.high) - 1 - stretch.low >> shift
            for step in range(int((last - (low >> shift)).max()) + 1):
                granules = np.minimum((low >> shift) + step, last)
                for item, wrote in enumerate((True, False)[: 1 + reads]):
                    codes = stretch.codes(granules, item)
                    for i, serial, lanes, unfenced in self._conflicts(
                        codes, strong, acquired, vector, device
                    ):
                        real = stretch.low + (int(granules[i]) << shift)
                        return Hit(int(which[i]), real, serial, lanes, wrote, unfenced)
        return None

    def _conflicts(
        self, codes: np.ndarray, strong: int, acquired: dict[int, np.ndarray], vector: int, device: int
    ) -> Iterator[tuple[int, int, int, bool]]:
        """The position, serial number and lanes of accesses that are not compatible and not known,
        and whether only a fence of proxies is missing."""
        book = history.Book()  # only chains of accesses are read
        history.point(book, nodes=self.nodes)
        for code in np.unique(codes[codes != 0]).tolist():
            many = code & history.KIND == history.MANY
            for serial, lanes in history.entries(book, code):
                step = int(self.who[serial]) >> history.WARP_BITS
                known = not many and acquired and self._known(serial, lanes, acquired, ORDER)
                if known and (lanes == 0 or self._known(serial, lanes, acquired, vector)):
                    continue
                # MANY does not name its threads: they count as threads of one device.
                same = many or self._device(serial) == device
                if known or not compatible_abroad(strong, int(self.strong[step]), same):
                    yield int(np.argmax(codes == code)), serial, 0 if many else lanes, bool(known)

    def _known(self, serial: int, lanes: int, acquired: dict[int, np.ndarray], vector: int) -> bool:
        """True if an access is known to a thread that has acquired these vectors.

        lanes: 0 for an asynchronous operation, which has a column of its own.
        """
        chunk, (cluster, first) = self.detector(serial), self._cluster(serial)
        vectors = acquired.get(foreign_key(self.number, chunk.first_cluster + cluster))
        columns = [first + lane for lane in range(WARP) if lanes >> lane & 1] or [int(self.who[serial + 1])]
        if vectors is None or columns[-1] >= vectors.shape[1]:
            return False
        return bool((vectors[vector, columns] >= serial).all())

    def _cluster(self, serial: int) -> tuple[int, int]:
        """The cluster in its chunk, and the first thread in it, of the warp that made an access."""
        width: int = self.detector(serial).width
        return divmod((int(self.who[serial]) & history.WARP_MASK) * WARP, width)

    def _device(self, serial: int) -> int:
        """The device that made an access."""
        chunk = self.detector(serial)
        return int((chunk.first_cluster + self._cluster(serial)[0]) % chunk.names.geometry.devices)

    def detector(self, serial: int) -> Any:
        """Remainder of the detector of the chunk that made an access."""
        return self.chunks[int(self.owner[serial >> history.PAGE_BITS])]

    def name(self, real: int) -> str:
        """The argument of the launch that has a real address."""
        return next(named.name for named, *_ in self.arrays if named.low <= real < named.high)


def owner_of(array: np.ndarray) -> Owner:
    """Make the function that returns the owner of an array's memory, or None once it is free."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    storage = getattr(array.base, "untyped_storage", None)
    if storage is not None:  # a tensor of torch
        return weakref.ref(storage())
    if array.base is not None:  # memory of another library, whose life nothing tells
        return lambda: array
    return weakref.ref(array)
