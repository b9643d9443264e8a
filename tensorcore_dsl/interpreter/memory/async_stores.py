"""Stores and reductions of single threads in a cluster, counted by mbarriers: st.async, red.async.

Both happen when they are issued (PTX manual 9.7.9.12 and 9.7.13.7). What a store has written is in
flight until some thread has seen the phase end that counts its bytes. Reductions are relaxed, so
others may reduce and read in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core import shadow
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.shadow import OFFSET
from tensorcore_dsl.interpreter.core.threads import taken, words
from tensorcore_dsl.interpreter.memory.shared_memory import ClusterMemory
from tensorcore_dsl.interpreter.sanitizer.async_proxy import START, STOP
from tensorcore_dsl.interpreter.sanitizer.happens_before import PHASES
from tensorcore_dsl.interpreter.sanitizer.races import Spans
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import ORDER
from tensorcore_dsl.interpreter.sync.barrier_phases import BYTES
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, Context


class AsyncStores:
    """The asynchronous stores of a chunk of CTAs."""

    def __init__(self, chunk: Chunk, cluster: ClusterMemory) -> None:
        self.chunk = chunk
        self.cluster = cluster
        self.sanitizer = cluster.sanitizer

    def store(self, address: Any, values: np.ndarray, bar: Any) -> None:
        """Store (count, T) words."""
        chunk, storage = self.chunk, self.cluster.storage
        addresses, threads = words(address, chunk.threads), chunk.here.numbers
        size = values.shape[0] * values.dtype.itemsize
        ctas = self._ctas(addresses, bar, others=False)
        self._quietly(lambda: self.cluster.store_words(chunk.mask, addresses, values))
        starts = addresses[threads].astype(np.int64) & OFFSET
        indices = ctas[:, None], starts[:, None] + np.arange(size)
        slots, phases = self._count(ctas, starts, size, bar)
        if self.sanitizer.proxies.tracked:  # No thread can fence an access of the async proxy.
            self.sanitizer.proxies.stamps[indices[0], indices[1] // 4] = 0
        if storage.checks:
            storage.disclosed(forget=True).states[indices] = shadow.PENDING
        flights = self.sanitizer.in_flight
        flights.add(threads, chunk.at_step, size, ctas, starts, slots, phases)
        flights.rows[-len(threads) :, [START, STOP]] = np.stack((starts, starts + size), axis=1)

    def update(self, ctx: Context, address: Any, value: Any, bar: Any, update: Any) -> None:
        """word = update(word, value), atomically, in another CTA."""
        addresses, value = words(address, self.chunk.threads), np.asarray(value)
        ctas, width = self._ctas(addresses, bar, others=True), value.dtype.itemsize
        self._quietly(lambda: self.cluster.atomic(ctx, addresses, width, update, value))
        starts = addresses[self.chunk.here.numbers].astype(np.int64) & OFFSET
        detector = self.sanitizer.detector
        strong = 0 if detector is None else int(detector.launch.strong[self.chunk.at_step])
        self._count(ctas, starts, width, bar, strong)

    def _quietly(self, access: Callable[[], Any]) -> None:
        """Access memory with all checks except race detection."""
        self.cluster.quiet = True
        access()
        self.cluster.quiet = False

    def _ctas(self, addresses: np.ndarray, bar: Any, others: bool) -> np.ndarray:
        """The CTAs that the active threads write to. Their mbarriers must be there, too.

        others: the CTAs must not be the threads' own.
        """
        chunk, clusters, threads = self.chunk, self.cluster.clusters, self.chunk.here.numbers
        ctas = []
        for thread in threads.tolist():
            own_cta, who = thread // chunk.group, chunk.describe(thread)
            address, at = int(addresses[thread]), int(words(bar, chunk.threads)[thread])
            target, barrier = (clusters.peer(own_cta, a >> CLUSTER_SHIFT, who) for a in (address, at))
            what = f"an asynchronous write of {who} to shared {address & OFFSET:#x}"
            if barrier != target:
                receiver, there = chunk.cta_name(target), chunk.cta_name(barrier)
                raise EmulationError(f"{what} of CTA {receiver}: its mbarrier is in CTA {there}")
            if clusters.size == 1 or (others and target == own_cta):
                needed = "another CTA" if others else "a cluster of more than one CTA"
                raise EmulationError(f"{what} stays in its CTA: it needs {needed}")
            ctas.append(target)
        return np.array(ctas)

    def _count(
        self, ctas: np.ndarray, starts: np.ndarray, size: int, bar: Any, strong: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Let mbarriers count the bytes; slot and phase of each active thread.

        strong: of a reduction, which is not in flight.
        """
        chunk, mbarriers = self.chunk, self.cluster.mbarriers
        detector, conflict = self.sanitizer.detector, None
        threads = chunk.here.numbers
        bars = taken(bar, threads) & OFFSET
        if detector is not None:
            operations = detector.operations(threads, detector.columns_of(PHASES, ctas, bars // BYTES))
            spans = Spans(np.stack((starts, starts + size), axis=-1)[:, None], np.arange(len(starts)))
            conflict = detector.shared_spans("store", operations, ctas, spans, vector=ORDER, strong=strong)
        phases = mbarriers.complete(threads, ctas, bars, size, flies=not strong)
        if conflict is not None:
            conflict.tell()
        return bars // BYTES, phases
