"""The checks of one chunk of CTAs, as memories and barriers use them."""

from __future__ import annotations

from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.shadow import SharedStorage
from tensorcore_dsl.interpreter.sanitizer.async_proxy import CopiesInFlight, ProxyFences
from tensorcore_dsl.interpreter.sanitizer.happens_before import ClusterRaces, HappensBefore
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import MmaHazards
from tensorcore_dsl.interpreter.sanitizer.races import Races


class Sanitizer:
    """All checks; `races` is None where no kernel instruction accesses another CTA's memory.

    detector: finds races of all kinds; None where the launch goes without.
    """

    detector: Races | None = None

    def __init__(self, chunk: Chunk, storage: SharedStorage) -> None:
        self.order = HappensBefore(chunk)
        self.proxies = ProxyFences(chunk, storage.size)
        self.in_flight = CopiesInFlight(chunk, storage, self.proxies)
        self.mma = MmaHazards(chunk, self.proxies)
        self.races: ClusterRaces | None = None
        if self.order.remote:
            self.races = ClusterRaces(chunk, self.order, storage.data.shape)

    def leave(self, cta: int) -> None:
        """A CTA ends: no operation may still use its shared memory."""
        self.in_flight.leave(cta)
        self.proxies.leave(cta)
        if self.races is not None:
            self.races.leave(cta)
