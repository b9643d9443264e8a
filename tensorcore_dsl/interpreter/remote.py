"""Shared memory of the other CTAs of a cluster: words at addresses that name a rank.

What holds for a CTA's own shared memory holds here too, in the memory of the CTA that is named:
bounds, alignment, bytes that nobody wrote or that a copy in flight owns, asynchronous readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import OutOfBounds
from tensorcore_dsl.interpreter import gather
from tensorcore_dsl.interpreter.memory import active_threads, atomically
from tensorcore_dsl.interpreter.traces import Access
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

OFFSET = (1 << CLUSTER_SHIFT) - 1  # of an address: what lies within its CTA


class ClusterMemory:
    """The memory of a chunk's clusters, by addresses of shared::cluster."""

    space = "shared::cluster"

    def load(self, ctx: Machine, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        """(count, T) words."""
        access = self._access(ctx, addresses, width * count, "load")
        state = ctx.shared.shadow[access.places]
        self._demand(ctx, access, state == gather.WRITTEN, state != gather.NEVER)
        self._demand_landed(ctx, access)
        if ctx.traces is not None:
            ctx.traces.load(access)
        found = np.ascontiguousarray(ctx.shared.data[access.places])
        out = np.zeros((count, addresses.size), f"u{width}")
        out[:, access.threads] = found.view(out.dtype).T
        return out

    def store(self, ctx: Machine, addresses: np.ndarray, values: np.ndarray) -> None:
        """values: (count, T) words; where several threads store to one place, the last one wins."""
        count, width = values.shape[0], values.dtype.itemsize
        access = self._access(ctx, addresses, width * count, "store")
        shared, proxies, places = ctx.shared, ctx.proxies, access.places
        free = shared.shadow[places] < gather.PENDING
        self._demand(ctx, access, free, ~free)
        if proxies.tracked:
            busy = proxies.readers[access.ctas, access.starts // 16] > 0
            self._refuse(ctx, access, busy, gather.STILL_READ)
            stamps = proxies.stamp(access.threads)[:, None]
            proxies.stamps[places[0], places[1] // 4] = stamps
        if ctx.traces is not None:
            ctx.traces.store(access)
        words = np.ascontiguousarray(values[:, access.threads].T)
        shared.data[places] = words.view(np.uint8)
        if shared.checks:
            shared.shadow[places] = gather.WRITTEN

    def atomic(
        self, ctx: Machine, addresses: np.ndarray, width: int, update: Any, *operands: Any
    ) -> np.ndarray:
        """In thread order: old = word; word = update(old, *operands); (T,) old words."""
        ctas = self._ctas(ctx, np.arange(addresses.size), addresses)
        keys = (addresses & np.uint32(OFFSET)).astype(np.int64) + (ctas << CLUSTER_SHIFT)
        return atomically(self, ctx, addresses, keys, width, update, operands)

    # --- where ------------------------------------------------------------------------------

    def _ctas(self, ctx: Machine, threads: np.ndarray, addresses: np.ndarray) -> np.ndarray:
        """The CTA of the chunk that each thread's address names; not checked."""
        own, peers = threads // ctx.group, ctx.geometry.cluster_ctas
        ranks = addresses[threads].astype(np.int64) >> CLUSTER_SHIFT
        return np.where(ranks > 0, own // peers * peers + ranks - 1, own)

    def _access(self, ctx: Machine, addresses: np.ndarray, size: int, verb: str) -> Access:
        """What the active threads access; the CTAs exist, are there, and have these bytes."""
        mask = active_threads(ctx)
        ctx.account(self.space, verb, addresses, mask, size)
        threads = np.flatnonzero(mask)
        full = addresses[threads].astype(np.int64)
        wrong = full >> CLUSTER_SHIFT > ctx.geometry.cluster_ctas
        if wrong.any():
            row = int(np.argmax(wrong))
            rank = int(full[row]) >> CLUSTER_SHIFT
            ctx.clusters.refuse_rank(rank - 1, ctx.describe(int(threads[row])))
        ctas = self._ctas(ctx, threads, addresses)
        access = Access(threads, ctas, full & OFFSET, size, verb)
        self._check(ctx, access)
        return access

    def _check(self, ctx: Machine, access: Access) -> None:
        gone = ctx.clusters.gone[access.ctas]
        if gone.any():
            row = int(np.argmax(gone))
            what = f"shared {int(access.starts[row]):#x}"
            who = ctx.describe(int(access.threads[row]))
            ctx.clusters.refuse_gone(int(access.ctas[row]), what, who)
        total = ctx.shared.data.shape[1]
        outside = access.starts + access.size > total
        if outside.any():
            what = access.describe(ctx, int(np.argmax(outside)))
            has = f"bytes 0 to {total - 1:#x}" if total else "no shared memory"
            raise OutOfBounds(f"out of bounds: {what}: the CTA has {has}")
        if ctx.shared.checks:
            self._refuse(ctx, access, access.starts % access.size != 0, gather.MISALIGNED)
        if ctx.traces is not None:
            ctx.traces.check_started(access)

    # --- mistakes ---------------------------------------------------------------------------

    def _demand(self, ctx: Machine, access: Access, good: np.ndarray, owned: np.ndarray) -> None:
        """All bytes (a row a thread) must be good; those that are not may be `owned` by a copy."""
        if not ctx.shared.checks or good.all():
            return
        bad = ~good
        row = int(np.argmax(bad.any(axis=1)))
        taken = owned[row, np.argmax(bad[row])]
        code = gather.IN_FLIGHT if taken else gather.UNWRITTEN
        self._refuse(ctx, access, bad.any(axis=1), code)

    def _demand_landed(self, ctx: Machine, access: Access) -> None:
        """What a bulk load brought must be known to have come."""
        landed = ctx.proxies.landed
        if ctx.traces is not None and landed.shape[1]:
            since = landed[access.ctas, access.starts // 16]
            self._refuse(ctx, access, since > ctx.traces.known[access.threads], gather.NOT_MET)

    def _refuse(self, ctx: Machine, access: Access, bad: Any, code: int) -> None:
        if bad.any():
            self._raise(ctx, access, int(np.argmax(bad)), code)

    def _raise(self, ctx: Machine, access: Access, row: int, code: int) -> NoReturn:
        ctx.shared.refuse_at(
            ctx, code, int(access.ctas[row]), int(access.starts[row]), access.size,
            access.describe(ctx, row),
        )  # fmt: skip
