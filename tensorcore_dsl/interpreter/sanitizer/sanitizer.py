"""Checks of one chunk of CTAs, which memories and barriers call."""

from __future__ import annotations

from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.shadow import Shared, SharedStorage
from tensorcore_dsl.interpreter.sanitizer.async_proxy import CopiesInFlight, ProxyFences
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import MmaHazards
from tensorcore_dsl.interpreter.sanitizer.races import Races


class Sanitizer:
    """Make all checks. detector: None where the launch goes without. follows: whether it will be set."""

    detector: Races | None = None

    def __init__(self, chunk: Chunk, storage: SharedStorage, follows: bool) -> None:
        proxies = self.proxies = ProxyFences(chunk, storage.size, follows)
        storage.arrays = Shared(
            storage.data,
            storage.states,
            storage.pages,
            storage.checks,
            proxies.stamps,
            proxies.readers,
            proxies.epochs,
            proxies.judged,
        )
        self.in_flight = CopiesInFlight(chunk, storage, self.proxies)
        self.mma = MmaHazards(chunk, self.proxies)

    def leave(self, cta: int) -> None:
        """A CTA ends: no operation may still use its shared memory."""
        self.in_flight.leave(cta)
        self.proxies.leave(cta)
        if self.detector is not None:
            self.detector.leave(cta)
