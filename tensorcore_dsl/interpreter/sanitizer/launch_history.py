"""History that the chunks of a launch share: serial numbers, global memory, names."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core.named_arrays import NamedArray
from tensorcore_dsl.interpreter.core.program import Program
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.interpreter.sanitizer.address_ranges import AddressRange, address_ranges_of, granule_bits
from tensorcore_dsl.interpreter.sanitizer.footprint import Footprint, owner_of
from tensorcore_dsl.interpreter.sanitizer.stream_order import Earlier, Launched
from tensorcore_dsl.interpreter.sanitizer.strong_accesses import (
    LAUNCH_BITS,
    Message,
    Signals,
    for_later_launches,
    foreign_key,
    of_all_proxies,
    strength,
)
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import FENCED_GLOBAL, merged
from tensorcore_dsl.isa import classify
from tensorcore_dsl.isa.lanes import ALL_LANES

PAGE = 1 << history.PAGE_BITS
NODES_AT_ONCE = 1 << 14


class PastChunk:
    """Remainder of the detector of a finished chunk: names for reports."""

    def __init__(self, races: Any) -> None:
        self.names = races.names
        self.number, self.peers, self.now = races.number, races.peers, races.now
        self.first_cluster, self.width = races.first_cluster, races.width


class LaunchHistory:
    """History that the chunks of a launch share.

    Attributes
    ----------
    coupled
        May CTAs wait for each other? Then chunks run one after the other.
    element
        Names the bytes at a real address of global memory.
    chunks : list
        The chunk of each number from 1 on.
    turn
        How often all serial numbers were used up; a chunk that has some of an earlier turn drops them.
    earlier
        Launches that may run at the same time.
    waits
        Has a thread waited for the launch in front?
    triggers
        Has a thread let the next launch start?
    known, earlier_known
        By device, the vectors of all clusters that its threads know of at their end, and at their start.
    """

    waits = False

    def __init__(
        self,
        program: Program,
        spans: list[tuple[int, int]],
        coupled: bool,
        element: Callable[[int, int], str],
        launched: Launched | None = None,
        earlier: Sequence[Earlier] = (),
        devices: int = 1,
    ) -> None:
        self.launched, self.earlier, self.devices = launched, list(earlier), devices
        self.triggers = devices > 1  # a launch of one device does not wait for another device
        last: list[dict[int, np.ndarray]] = self.earlier[0].launch.known if self.earlier else []
        self.earlier_known = last or [{} for _ in range(devices)]
        self.known: list[dict[int, np.ndarray]] = [{} for _ in range(devices)]
        releases = (
            classify.is_release(i) and classify.scope(i) in ("gpu", "sys") for i in program.instructions
        )
        self.program, self.element = program, element
        self.coupled = coupled or any(releases)  # A later launch may have to know reads before a release.
        self.lock = threading.Lock()
        # Chunks that run at once access global memory one after the other, each with its codes.
        # A thread that needs both locks takes this one first.
        self.access = threading.RLock()
        self.who = np.zeros(history.SERIALS + 2, np.uint32)
        self.owner = np.zeros(history.SERIALS // PAGE + 1, np.uint32)
        self.nodes = np.zeros((history.NODE_ROOM, 3), np.uint32)
        self.pages, self.used_nodes, self.turn = 1, 1, 0
        self.chunks: list[Any] = [None]
        self.signals = Signals({(0, at): message for at, message in self._acquirable()})
        self.told: set[Any] = set()  # the warnings that were given
        self.shared_shift = granule_bits(program, shared=True)
        self.ranges = address_ranges_of(spans, granule_bits(program, shared=False))
        self.lows = [stretch.low for stretch in self.ranges]
        strengths = {id(None): 0} | {id(instr): strength(instr) for instr in program.instructions}
        self.strong = np.array([strengths[id(step.instr)] for step in program.steps], np.uint8)

    def _acquirable(self) -> Iterator[tuple[int, Message]]:
        """Messages that earlier launches have released, by real address; the last release comes last."""
        numbers = {one.launch.number for one in self.earlier}
        for one in reversed(self.earlier):
            released = one.launch.footprint.released() if one.launch.footprint is not None else ()
            for real, message in released:
                known = {key: v for key, v in message.vectors.items() if key >> LAUNCH_BITS in numbers}
                yield real, replace(message, vectors=known)

    def retire(self, races: Any) -> None:
        """A chunk has ended."""
        with self.lock:
            self.chunks[races.number] = PastChunk(races)
            for device in range(self.devices if self.devices > 1 else 0):
                self.known[device] = merged(self.known[device], self._known_at_end(races, device))
        vars(races.early).clear()  # the two refer to each other: this frees their memory at once

    def _known_at_end(self, races: Any, device: int) -> dict[int, np.ndarray]:
        """Knowledge of a device's threads at their end, for its next launch.

        They know all accesses of the device, and all that they have acquired from other devices.
        """
        clocks, number = races.clocks, 0 if self.launched is None else self.launched.number
        clusters = range(device, races.chunk.threads // clocks.width, self.devices)
        known: dict[int, np.ndarray] = {}
        rows = clocks.rows.row_of.reshape(-1, clocks.width)[clusters]
        for foreign in np.unique(clocks.rows.foreign[rows]).tolist():
            vectors = clocks.sets[foreign].items()
            known = merged(known, {foreign_key(number, key): of_all_proxies(v) for key, v in vectors})
        everything = np.full((FENCED_GLOBAL + 1, clocks.rows.known.shape[2]), ALL_LANES, np.uint32)
        return known | {foreign_key(number, races.first_cluster + c): everything for c in clusters}

    def footprint(self, arrays: Iterable[tuple[NamedArray, np.ndarray]]) -> Footprint:
        """Accesses of the launch, after its end."""
        rows = []
        for named, array in arrays:
            stretch = self.range_of(named.low)
            if stretch is not None:
                rows.append((named, stretch, owner_of(array)))
        number = 0 if self.launched is None else self.launched.number
        messages = for_later_launches(self.signals, number)
        return Footprint(number, self.who, self.owner, self.nodes, self.strong, self.chunks, rows, messages)

    def range_of(self, real: int) -> AddressRange | None:
        """Return the range that holds a real address."""
        index = bisect_right(self.lows, real) - 1
        if index < 0 or real >= self.ranges[index].low + self.ranges[index].size:
            return None
        return self.ranges[index]

    def pages_for(self, chunk: int, count: int) -> tuple[int, int]:
        """A stretch of `count` serial numbers or more, which no other chunk has.

        When all are used up, they are given anew, and what was accessed before is forgotten.
        """
        pages = -(-count // PAGE)
        with self.access, self.lock:
            if self.pages + pages > history.SERIALS // PAGE:
                self.turn += 1
                self.pages = self.used_nodes = 1
                self.signals = Signals()
                for stretch in self.ranges:
                    stretch.clear()
            first, end = self.pages, self.pages + pages
            self.owner[first:end] = chunk
            self.pages = end
        return first * PAGE, end * PAGE

    def nodes_for(self) -> tuple[int, int]:
        """A stretch of nodes, which no other chunk has; an empty one when all are used up."""
        with self.lock:
            first = self.used_nodes
            end = self.used_nodes = min(first + NODES_AT_ONCE, history.NODE_ROOM)
        return first, end
