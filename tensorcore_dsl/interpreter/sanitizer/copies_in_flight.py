"""Bulk loads whose bytes nobody may touch yet, because no thread has waited for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.shadow import PENDING, WRITTEN
from tensorcore_dsl.interpreter.core.shared_storage import SharedStorage
from tensorcore_dsl.interpreter.sanitizer.proxy_fences import ProxyFences, Read


@dataclass
class Flight:
    """A load to bytes `start` to `stop` of a CTA, counted by `phase` of the mbarrier in `slot`.

    barrier: the mbarrier's name for messages. step, thread: who issued it. source: the read of
    another CTA's shared memory that ends with it.
    """

    cta: int
    start: int
    stop: int
    slot: int
    phase: int
    barrier: str
    step: int
    thread: int
    source: Read | None = None


class CopiesInFlight:
    """The loads of a chunk of CTAs that are in flight."""

    def __init__(self, chunk: Chunk, storage: SharedStorage, proxies: ProxyFences) -> None:
        self.chunk = chunk
        self.storage = storage
        self.proxies = proxies
        self.flights: list[Flight] = []

    def settle(self, seen: Callable[[int, int], int]) -> None:
        """End the loads whose phase is over; `seen(cta, slot)` counts the phases seen to end."""
        left = []
        for flight in self.flights:
            if seen(flight.cta, flight.slot) > flight.phase:
                shadow = self.storage.shadow[flight.cta, flight.start : flight.stop]
                shadow[shadow == PENDING] = WRITTEN
                if flight.source is not None:
                    self.proxies.end(flight.source)
            else:
                left.append(flight)
        self.flights = left

    def leave(self, cta: int) -> None:
        """A CTA ends: no load to it may be in flight."""
        for flight in self.flights:
            if flight.cta == cta:
                block = self.chunk.block_name(cta)
                raise EmulationError(f"block {block} ends while {self._describe(flight)}")

    def owner(self, cta: int, address: int) -> str:
        """The copy that owns a byte in flight, for messages."""
        for flight in self.flights:
            if flight.cta == cta and flight.start <= address < flight.stop:
                return f"byte {address:#x}: " + self._describe(flight)
        return f"an asynchronous copy still owns byte {address:#x}; wait for the copy first"

    def _describe(self, flight: Flight) -> str:
        return (
            f"the bulk load at {self.chunk.loc(flight.step)} (by "
            f"{self.chunk.describe(flight.thread)}) is in flight: nobody has waited for phase "
            f"{flight.phase} (parity {flight.phase & 1}) of the {flight.barrier}"
        )
