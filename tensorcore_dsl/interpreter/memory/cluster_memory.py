"""Shared memory of the other CTAs of a cluster, accessed by addresses that hold a rank.

The checks are those of a CTA's own shared memory, made in the memory of the named CTA: bounds,
alignment, unwritten bytes, bytes owned by a copy in flight, asynchronous readers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.errors import OutOfBounds
from tensorcore_dsl.interpreter.core import shadow
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.shadow import OFFSET
from tensorcore_dsl.interpreter.memory.shared_memory import SharedMemory
from tensorcore_dsl.interpreter.memory.word_memory import WordMemory
from tensorcore_dsl.interpreter.sanitizer.happens_before import Access
from tensorcore_dsl.interpreter.sync.clusters import Clusters
from tensorcore_dsl.isa.context import CLUSTER_SHIFT


class ClusterMemory(WordMemory):
    """The shared memory of a chunk's clusters, by addresses of shared::cluster."""

    space = "shared::cluster"

    def __init__(self, chunk: Chunk, shared: SharedMemory, clusters: Clusters) -> None:
        super().__init__(chunk)
        self.shared = shared
        self.storage = shared.storage
        self.sanitizer = shared.sanitizer
        self.clusters = clusters

    def load_words(
        self, mask: np.ndarray, addresses: np.ndarray, width: int, count: int
    ) -> np.ndarray:
        access = self._access(mask, addresses, width * count, "load")
        states = self.storage.shadow[access.places]
        self._check_states(access, states == shadow.WRITTEN, states != shadow.NEVER)
        self._check_landed(access)
        races = self.sanitizer.races
        if races is not None:
            races.load(access, races.ordered)
        data = np.ascontiguousarray(self.storage.data[access.places])
        out = np.zeros((count, addresses.size), f"u{width}")
        out[:, access.threads] = data.view(out.dtype).T
        return out

    def store_words(self, mask: np.ndarray, addresses: np.ndarray, values: np.ndarray) -> None:
        """Where several threads store to one place, the last one wins."""
        count, width = values.shape[0], values.dtype.itemsize
        access = self._access(mask, addresses, width * count, "store")
        storage, proxies, places = self.storage, self.sanitizer.proxies, access.places
        free = storage.shadow[places] < shadow.PENDING
        self._check_states(access, free, ~free)
        if proxies.tracked:
            busy = proxies.readers[access.ctas, access.starts // 16] > 0
            self._refuse_any(access, busy, shadow.STILL_READ)
            stamps = proxies.stamp(access.threads)[:, None]
            proxies.stamps[places[0], places[1] // 4] = stamps
        races = self.sanitizer.races
        if races is not None:
            races.store(access, races.ordered)
        words = np.ascontiguousarray(values[:, access.threads].T)
        storage.data[places] = words.view(np.uint8)
        if storage.checks:
            storage.shadow[places] = shadow.WRITTEN

    def location(self, addresses: np.ndarray) -> np.ndarray:
        ctas = self._ctas(np.arange(addresses.size), addresses)
        offsets = (addresses & np.uint32(OFFSET)).astype(np.int64)
        return np.asarray(offsets + (ctas << CLUSTER_SHIFT))

    def _ctas(self, threads: np.ndarray, addresses: np.ndarray) -> np.ndarray:
        """The CTA of the chunk that each thread's address names; not checked."""
        own, peers = threads // self.chunk.group, self.clusters.size
        ranks = addresses[threads].astype(np.int64) >> CLUSTER_SHIFT
        return np.where(ranks > 0, own // peers * peers + ranks - 1, own)

    def _access(self, mask: np.ndarray, addresses: np.ndarray, size: int, verb: str) -> Access:
        """The access of the threads of `mask`, after checks of CTA, bounds and alignment."""
        self.chunk.account(self.space, verb, addresses, mask, size)
        threads = np.flatnonzero(mask)
        full = addresses[threads].astype(np.int64)
        wrong = full >> CLUSTER_SHIFT > self.clusters.size
        if wrong.any():
            row = int(np.argmax(wrong))
            rank = int(full[row]) >> CLUSTER_SHIFT
            self.clusters.refuse_rank(rank - 1, self.chunk.describe(int(threads[row])))
        access = Access(threads, self._ctas(threads, addresses), full & OFFSET, size, verb)
        self._check(access)
        return access

    def _check(self, access: Access) -> None:
        gone = self.clusters.gone[access.ctas]
        if gone.any():
            row = int(np.argmax(gone))
            what = f"shared {int(access.starts[row]):#x}"
            who = self.chunk.describe(int(access.threads[row]))
            self.clusters.refuse_gone(int(access.ctas[row]), what, who)
        outside = access.starts + access.size > self.storage.size
        if outside.any():
            what = access.describe(self.chunk, int(np.argmax(outside)))
            raise OutOfBounds(f"out of bounds: {what}: the CTA has {self.storage.extent}")
        if self.storage.checks:
            self._refuse_any(access, access.starts % access.size != 0, shadow.MISALIGNED)
        if self.sanitizer.races is not None:
            self.sanitizer.races.check_started(access)

    def _check_states(self, access: Access, good: np.ndarray, owned: np.ndarray) -> None:
        """Refuse bytes (a row a thread) that are not `good`; a copy may own (`owned`) them."""
        if not self.storage.checks or good.all():
            return
        bad = ~good
        row = int(np.argmax(bad.any(axis=1)))
        in_flight = owned[row, np.argmax(bad[row])]
        code = shadow.IN_FLIGHT if in_flight else shadow.UNWRITTEN
        self._refuse_any(access, bad.any(axis=1), code)

    def _check_landed(self, access: Access) -> None:
        """A thread must know that the bulk load that wrote these bytes is complete."""
        landed, order = self.sanitizer.proxies.landed, self.sanitizer.order
        if order.remote and landed.shape[1]:
            since = landed[access.ctas, access.starts // 16]
            self._refuse_any(access, since > order.known[access.threads], shadow.NOT_MET)

    def _refuse_any(self, access: Access, bad: Any, code: int) -> None:
        """Raise the error for the first thread of an access that is `bad`."""
        if bad.any():
            row = int(np.argmax(bad))
            self.shared.refuse_access(
                code, int(access.ctas[row]), int(access.starts[row]), access.size,
                access.describe(self.chunk, row),
            )  # fmt: skip
