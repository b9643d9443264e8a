"""Find bytes that are written through one swizzle and read through another one.

Only kernels whose tiles of different swizzles share bytes are followed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.shadow import OFFSET, SharedStorage
from tensorcore_dsl.isa.context import CLUSTER_SHIFT
from tensorcore_dsl.isa.descriptor import swizzled

UNKNOWN = 255


class Swizzles:
    """The swizzle through which each granule of shared memory was last written.

    written: (CTAs, granules), bytes of the swizzle; UNKNOWN before the first write, and where a
    write names no tile.
    """

    def __init__(self, chunk: Chunk, storage: SharedStorage, shift: int) -> None:
        self.chunk, self.storage, self.shift = chunk, storage, shift
        ctas = chunk.geometry.ctas
        self.written = np.full((ctas, (storage.size >> shift) + 1), UNKNOWN, np.uint8)

    def words(
        self, verb: str, addresses: np.ndarray, mask: np.ndarray, size: int, step: int, peers: int
    ) -> None:
        """Accesses of `size` bytes by the threads of `mask`, at addresses of shared::cluster."""
        threads = np.flatnonzero(mask)
        ranks = (addresses[threads] >> np.uint64(CLUSTER_SHIFT)).astype(np.int64)
        ctas = threads // self.chunk.group
        ctas = np.where(ranks > 0, ctas // peers * peers + ranks - 1, ctas)
        starts = addresses[threads].astype(np.int64) & OFFSET
        inside = (starts + size <= self.storage.size) & (ranks <= peers)
        self.access(verb, ctas[inside], starts[inside], size, step, threads[inside])

    def access(
        self,
        verb: str,
        ctas: np.ndarray,
        starts: np.ndarray,
        size: int,
        step: int,
        threads: np.ndarray,
        swizzle: int | None = None,
    ) -> None:
        """Accesses of `size` bytes at `starts` of `ctas`; swizzle None: that of the step's tile."""
        swizzle = self.chunk.program.steps[step].swizzle if swizzle is None else swizzle
        granules = np.arange(0, size, 1 << self.shift) + starts[:, None] >> self.shift
        if verb == "store":
            self.written[ctas[:, None], granules] = UNKNOWN if swizzle is None else swizzle
            return
        if swizzle is None:
            return
        before = self.written[ctas[:, None], granules]
        for other in np.unique(before).tolist():
            if other not in (UNKNOWN, swizzle):
                wrong = (before == other) & self._differ(ctas, granules, swizzle, other)
                if wrong.any():
                    row, column = np.argwhere(wrong)[0]
                    offset = int(granules[row, column]) << self.shift
                    self._refuse(int(threads[row]), step, offset, _name(swizzle), _name(other))

    def _differ(self, ctas: np.ndarray, granules: np.ndarray, swizzle: int, other: int) -> Any:
        """True if a granule holds other bytes than where `other` has put the element."""
        here = (granules << self.shift)[..., None] + np.arange(1 << self.shift)
        none = np.array(0)
        there = swizzled(swizzled(here, swizzle, none), other, none)
        data, last = self.storage.data, self.storage.size - 1
        rows = ctas[:, None, None]
        return (data[rows, here] != data[rows, np.minimum(there, last)]).any(axis=-1)

    def _refuse(self, thread: int, step: int, offset: int, swizzle: str, other: str) -> None:
        raise EmulationError(
            f"{self.chunk.describe(thread)} reads shared {offset:#x} through {swizzle}, but it was "
            f"written through {other}, which puts other elements there: read it through a tile of "
            "the swizzle of its last write, or write it anew first",
            self.chunk.loc(step),
        )


def _name(swizzle: int) -> str:
    return f"a {swizzle}-byte swizzle" if swizzle else "no swizzle"
