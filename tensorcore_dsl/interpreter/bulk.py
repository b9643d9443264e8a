"""Bulk and tensor copies to and from shared memory (PTX manual 9.7.9.25.4 and .5).

A load happens when it is issued; its bytes stay in flight until some thread has seen the phase
of the mbarrier that counts them end. A store, or a reduction, happens when it is issued too, but
its source counts as being read until the thread that issued it has waited for its group. A copy
to another CTA is a load there, and reads its source until the phase that counts it is seen to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numba import types

from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds, Uninitialised
from tensorcore_dsl.interpreter import gather
from tensorcore_dsl.interpreter.gather import (
    compiled,
    in_flight,
    mark,
    mistake,
    peek8,
    peek64,
    poke8,
    poke64,
    shadow_says,
)
from tensorcore_dsl.interpreter.mbarrier import OFFSET, SEEN, scalar
from tensorcore_dsl.interpreter.memory import MAP_BASE, MAP_SHIFT, NOT_MET
from tensorcore_dsl.interpreter.proxies import COPY, SHARE, Read, unfenced
from tensorcore_dsl.interpreter.reduction import combine
from tensorcore_dsl.interpreter.tensor import BOX, CHUNK, EXTENT, RANK, START, STRIDE, Tensor
from tensorcore_dsl.interpreter.traces import Access
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

TENSOR_ALIGN, BULK_ALIGN = 128, 16


@dataclass
class Flight:
    """A load whose phase nobody has seen end."""

    cta: int
    start: int
    stop: int
    slot: int
    phase: int
    step: int
    thread: int
    source: Read | None = None  # of a copy from another CTA's shared memory


class Bulk:
    """The copies of a chunk of CTAs; `commits` counts each thread's groups."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.flights: list[Flight] = []
        self.commits = np.zeros(machine.threads, np.int64)
        self.tensors = [Tensor.of(m) for m in machine.globals.arguments.maps]

    # --- what rows ask ----------------------------------------------------------------------

    def tensor_load(self, dst: Any, tensor: Any, coordinates: Any, bar: Any, mask: Any) -> None:
        for thread in np.flatnonzero(self.machine.mask):
            box = self._box(thread, tensor, coordinates)
            self._load(int(thread), box, dst, bar, mask, TENSOR_ALIGN)

    def tensor_store(self, tensor: Any, coordinates: Any, src: Any, op: str | None) -> None:
        for thread in np.flatnonzero(self.machine.mask):
            box = self._box(thread, tensor, coordinates)
            if not box.writable:
                raise EmulationError(
                    f"{box.name} is read-only; a tensor copy of "
                    f"{self.machine.describe(int(thread))} writes it"
                )
            if (box.plan[START] < 0).any():
                where = tuple(int(c) for c in box.plan[START, : len(coordinates)])
                raise OutOfBounds(
                    f"a tensor store to {box.name} by {self.machine.describe(int(thread))} starts "
                    f"at coordinates {where}: stores may hang over the far end of an axis, not "
                    "over its start"
                )
            self._store(int(thread), box, scalar(src, thread), op, TENSOR_ALIGN)

    def bulk_load(self, dst: Any, src: Any, size: Any, bar: Any, mask: Any) -> None:
        for thread in np.flatnonzero(self.machine.mask):
            line = self._line(int(thread), src, scalar(size, thread), "bulk load")
            if line is not None:
                self._load(int(thread), line, dst, bar, mask, BULK_ALIGN)

    def bulk_store(self, dst: Any, src: Any, size: Any, op: str | None, dtype: Any) -> None:
        for thread in np.flatnonzero(self.machine.mask):
            line = self._line(int(thread), dst, scalar(size, thread), "bulk store", dtype)
            if line is not None:
                self._store(int(thread), line, scalar(src, thread), op, BULK_ALIGN)

    def bulk_share(self, dst: Any, src: Any, size: Any, bar: Any) -> None:
        machine = self.machine
        for thread in map(int, np.flatnonzero(machine.mask)):
            start, count = scalar(src, thread), scalar(size, thread)
            self._aligned(count, BULK_ALIGN, thread, "a size of")
            if start >> CLUSTER_SHIFT:
                raise EmulationError(
                    f"a bulk copy of {machine.describe(thread)} reads shared {start & OFFSET:#x} "
                    "of another CTA: it copies from the own CTA to another one"
                )
            if count:
                self._share(thread, dst, start, count, bar)

    def _share(self, thread: int, dst: Any, start: int, size: int, bar: Any) -> None:
        """Copy `size` bytes from `start` on to another CTA."""
        machine, cta = self.machine, thread // self.machine.group
        there, target, _ = self._targets(thread, dst, bar, None)[0]
        if there == cta:
            raise EmulationError(
                f"a bulk copy from shared {start:#x} to shared {target:#x} by "
                f"{machine.describe(thread)} stays in its CTA: another one is needed"
            )
        real = machine.shared.data.ctypes.data + cta * machine.shared.data.shape[1] + start
        line = Tensor.line(f"shared memory of block {machine.block_name(cta)}", real, size)
        self._read(thread, line, start, BULK_ALIGN, copies=False)
        self._load(thread, line, dst, bar, None, BULK_ALIGN)
        if machine.proxies.tracked:
            owner, chunks = np.array([thread]), line.chunks(start)[None]
            read = Read(SHARE, machine.at_step, owner, owner * 0, owner // machine.group, chunks)
            machine.proxies.add(read)
            self.flights[-1].source = read

    def commit(self) -> None:
        self.commits += self.machine.mask

    def wait(self, pending: int) -> None:
        """All but the last `pending` groups of each active thread are over."""
        self.machine.proxies.finish(COPY, self.machine.mask, self.commits - pending)

    def settle(self) -> None:
        """Bytes have come where a thread has seen the end of the phase that counts them."""
        left = []
        for flight in self.flights:
            if self.machine.mbarriers.at(flight.cta, flight.slot)[SEEN] > flight.phase:
                shadow = self.machine.shared.shadow[flight.cta, flight.start : flight.stop]
                shadow[shadow == gather.PENDING] = gather.WRITTEN
                if flight.source is not None:
                    self.machine.proxies.end(flight.source)
            else:
                left.append(flight)
        self.flights = left

    # --- copies -----------------------------------------------------------------------------

    def _box(self, thread: Any, tensor: Any, coordinates: Any) -> Tensor:
        handle = scalar(tensor, thread)
        index, offset = (handle >> MAP_SHIFT) - MAP_BASE, handle & ((1 << MAP_SHIFT) - 1)
        if offset or not 0 <= index < len(self.tensors):
            raise EmulationError(
                f"{handle:#x} is no address of a tensor map of this launch "
                f"({self.machine.describe(int(thread))})"
            )
        places = tuple((scalar(c, thread) ^ 1 << 31) - (1 << 31) for c in coordinates)
        box = self.tensors[index].at(places)
        if places[0] * box.element % CHUNK:
            raise Misaligned(
                f"a tensor copy of {box.name} by {self.machine.describe(int(thread))} starts at "
                f"innermost coordinate {places[0]}, byte {places[0] * box.element} of a row; "
                f"multiples of {CHUNK} bytes are allowed"
            )
        return box

    def _line(
        self, thread: int, address: Any, size: int, verb: str, dtype: Any = None
    ) -> Tensor | None:
        """`size` bytes of global memory at the thread's `address`."""
        machine, start = self.machine, scalar(address, thread)
        if size % BULK_ALIGN or start % BULK_ALIGN:
            raise Misaligned(
                f"a {verb} of {size} bytes at global {start:#x} by {machine.describe(thread)}: the "
                f"size and both addresses must be multiples of {BULK_ALIGN}"
            )
        if not size:
            return None
        name, real = machine.globals.place(machine, start, size, verb, thread)
        return Tensor.line(name, real, size, dtype)

    def _load(self, thread: int, box: Tensor, dst: Any, bar: Any, mask: Any, align: int) -> None:
        machine = self.machine
        machine.writes += 1
        machine.clock += 1
        shared, proxies, size = machine.shared, machine.proxies, box.size
        for cta, target, barrier in self._targets(thread, dst, bar, mask):
            self._aligned(target, align, thread)
            wrong = load_box(
                box.real, box.plan, box.element, box.mask, box.pitch, target, shared.data[cta],
                shared.shadow[cta], shared.checks, proxies.stamps[cta], proxies.readers[cta],
                proxies.landed[cta], machine.clock,
            )  # fmt: skip
            if wrong:
                self._refuse(wrong >> 32, wrong & 0xFFFFFFFF, cta, thread, box, "load")
            slot, phase = machine.mbarriers.complete(cta, barrier, size, thread)
            low, high = target & -128, -(-(target + box.reach) // 128) * 128
            self.flights.append(Flight(cta, low, high, slot, phase, machine.at_step, thread))
            machine.tally.bytes["shared", "store"] += size
        machine.tally.bytes["global", "load"] += box.inside

    def _targets(self, thread: int, dst: Any, bar: Any, mask: Any) -> list[tuple[int, int, int]]:
        """(CTA, address there, address of its barrier) for each CTA that receives a copy."""
        clusters, own = self.machine.clusters, thread // self.machine.group
        target, barrier = scalar(dst, thread), scalar(bar, thread)
        who = self.machine.describe(thread)
        if mask is None:
            ranks = [target >> CLUSTER_SHIFT]
            there = clusters.peer(own, ranks[0], who)
            if clusters.peer(own, barrier >> CLUSTER_SHIFT, who) != there:
                raise EmulationError(
                    f"a bulk load goes to shared {target & OFFSET:#x} of block "
                    f"{self.machine.block_name(there)}, its mbarrier is not there ({who})"
                )
        else:
            bits = scalar(mask, thread)
            ranks = [rank + 1 for rank in range(16) if bits >> rank & 1]
        ctas = [clusters.peer(own, rank, who) for rank in ranks]
        for cta in ctas:
            if clusters.gone[cta]:
                clusters.refuse_gone(cta, f"a bulk load to shared {target & OFFSET:#x}", who)
        return [(cta, target & OFFSET, barrier & OFFSET) for cta in ctas]

    def _store(self, thread: int, box: Tensor, src: int, op: str | None, align: int) -> None:
        machine, group = self.machine, self.machine.group
        machine.writes += 1
        self._read(thread, box, src, align, copies=op is None)
        if op is not None:
            combine(box, machine.shared.data[thread // group], src, op)
        if machine.proxies.tracked:
            owner, chunks = np.array([thread]), box.chunks(src)[None]
            machine.proxies.add(
                Read(COPY, machine.at_step, owner, self.commits[owner], owner // group, chunks)
            )
        machine.tally.bytes["shared", "load"] += box.size
        machine.tally.bytes["global", "store"] += box.inside

    def _read(self, thread: int, box: Tensor, src: int, align: int, *, copies: bool) -> None:
        """Check the source of a copy in the thread's CTA, and copy it to the box if `copies`."""
        machine = self.machine
        self._aligned(src, align, thread)
        cta, shared, proxies = thread // machine.group, machine.shared, machine.proxies
        wrong = store_box(
            box.real, box.plan, box.element, box.mask, box.pitch, src, shared.data[cta],
            shared.shadow[cta], shared.checks, proxies.stamps[cta], proxies.epochs,
            machine.clusters.first(cta), proxies.landed[cta], machine.met[thread], copies,
        )  # fmt: skip
        if wrong:
            self._refuse(wrong >> 32, wrong & 0xFFFFFFFF, cta, thread, box, "store")
        if machine.traces is not None:
            starts = box.chunks(src) * CHUNK
            who = np.full(starts.size, thread)
            machine.traces.load(Access(who, who // machine.group, starts, CHUNK, "load"))

    # --- the end of a CTA -------------------------------------------------------------------

    def leave(self, cta: int) -> None:
        """A CTA ends: nothing may be on its way to it."""
        for flight in self.flights:
            if flight.cta == cta:
                raise EmulationError(
                    f"block {self.machine.block_name(cta)} ends while {self._flight(flight)}"
                )

    # --- messages ---------------------------------------------------------------------------

    def owner(self, cta: int, address: int) -> str:
        """Which copy owns a byte in flight."""
        for flight in self.flights:
            if flight.cta == cta and flight.start <= address < flight.stop:
                return f"byte {address:#x}: " + self._flight(flight)
        return f"an asynchronous copy still owns byte {address:#x}; wait for the copy first"

    def _flight(self, flight: Flight) -> str:
        machine = self.machine
        return (
            f"the bulk load at {machine.program.steps[flight.step].loc} (by "
            f"{machine.describe(flight.thread)}) is in flight: nobody has waited for phase "
            f"{flight.phase} (parity {flight.phase & 1}) of the "
            + machine.mbarriers.name(flight.cta, flight.slot)
        )

    def _aligned(self, number: int, align: int, thread: int, what: str = "shared") -> None:
        if number % align:
            raise Misaligned(
                f"a bulk copy of {self.machine.describe(thread)} names {what} {number:#x}, which "
                f"is no multiple of {align}"
            )

    def _refuse(
        self, code: int, address: int, cta: int, thread: int, box: Tensor, verb: str
    ) -> NoReturn:
        machine, proxies = self.machine, self.machine.proxies
        what = f"a bulk {verb} of {box.name} by {machine.describe(thread)}"
        if code == gather.OUTSIDE:
            raise OutOfBounds(
                f"out of bounds: {what} reaches shared {address:#x}; block "
                f"{machine.block_name(cta)} has {machine.shared.data.shape[1]:#x} bytes"
            )
        if code == gather.UNFENCED:
            writer = machine.describe(proxies.writer(machine, cta, address))
            raise EmulationError(
                f"{what} reads shared {address:#x}, which {writer} wrote by an ordinary store and "
                "did not fence: the writer needs fence.proxy.async before it synchronises"
            )
        if code == gather.STILL_READ:
            raise EmulationError(
                f"{what} overwrites shared {address:#x}, which is still read by "
                + proxies.reader(machine, cta, address)
            )
        if code == gather.NOT_MET:
            raise Uninitialised(f"{what}: at shared {address:#x} {NOT_MET}")
        if code == gather.UNWRITTEN:
            raise Uninitialised(f"{what} reads shared {address:#x}, which nothing has written")
        state = machine.shared.shadow[cta, address : address + CHUNK]
        if (state == gather.BARRIER).any():
            place = address + int(np.argmax(state == gather.BARRIER))
            name = machine.mbarriers.name(cta, place // 8)
            raise EmulationError(f"{what} touches shared {place:#x}: the {name} lives there")
        place = address + int(np.argmax(state == gather.PENDING))
        error = EmulationError if verb == "load" else Uninitialised
        raise error(f"{what}: " + self.owner(cta, place))


@compiled
def load_box(
    real: int, plan: Any, element: int, mask: int, pitch: int, target: int, data: Any, shadow: Any,
    checked: bool, stamps: Any, readers: Any, landed: Any, clock: int,
) -> int:  # fmt: skip
    """Copy a box to shared `target`, zeros where it leaves the array; marks it as in flight."""
    rows = plan[BOX, 1] * plan[BOX, 2] * plan[BOX, 3] * plan[BOX, 4]
    length, first = plan[BOX, 0] * element, plan[START, 0]
    low = max(0, -first) * element
    high = min(plan[BOX, 0], plan[EXTENT, 0] - first) * element
    for row in range(rows):
        rest, source, inside = row, real + first * element, True
        for axis in range(1, RANK):
            place = plan[START, axis] + rest % plan[BOX, axis]
            rest //= plan[BOX, axis]
            inside = inside and place >= 0 and place < plan[EXTENT, axis]
            source += place * plan[STRIDE, axis]
        for byte in range(0, length, CHUNK):
            at = target + row * pitch + byte
            at ^= at >> 3 & mask
            if at + CHUNK > data.size:
                return mistake(gather.OUTSIDE, at)
            if readers.size and readers[at // CHUNK]:
                return mistake(gather.STILL_READ, at)
            if checked:
                if in_flight(shadow.ctypes.data + at, CHUNK):
                    return mistake(gather.IN_FLIGHT, at)
                mark(shadow.ctypes.data + at, CHUNK, gather.PENDING)
            if landed.size:
                landed[at // CHUNK] = clock
            if stamps.size:
                stamps[at // 4 : at // 4 + 4] = 0
            to = data.ctypes.data + at
            if inside and low <= byte and byte + CHUNK <= high:
                poke64(to, peek64(source + byte))
                poke64(to + 8, peek64(source + byte + 8))
            else:
                for i in range(CHUNK):
                    there = inside and low <= byte + i and byte + i < high
                    poke8(to + i, peek8(source + byte + i) if there else types.uint8(0))
    return 0


@compiled
def store_box(
    real: int, plan: Any, element: int, mask: int, pitch: int, source: int, data: Any, shadow: Any,
    checked: bool, stamps: Any, epochs: Any, first_thread: int, landed: Any, met: int, copies: bool,
) -> int:  # fmt: skip
    """Copy a box from shared `source` to the array, without what leaves it; or only check it."""
    rows = plan[BOX, 1] * plan[BOX, 2] * plan[BOX, 3] * plan[BOX, 4]
    length, first = plan[BOX, 0] * element, plan[START, 0]
    low = max(0, -first) * element
    high = min(plan[BOX, 0], plan[EXTENT, 0] - first) * element
    for row in range(rows):
        rest, target, inside = row, real + first * element, copies
        for axis in range(1, RANK):
            place = plan[START, axis] + rest % plan[BOX, axis]
            rest //= plan[BOX, axis]
            inside = inside and place >= 0 and place < plan[EXTENT, axis]
            target += place * plan[STRIDE, axis]
        for byte in range(0, length, CHUNK):
            at = source + row * pitch + byte
            at ^= at >> 3 & mask
            if at + CHUNK > data.size:
                return mistake(gather.OUTSIDE, at)
            if checked:
                state = shadow_says(shadow.ctypes.data + at, CHUNK)
                if state:
                    return mistake(state, at)
            if landed.size and landed[at // CHUNK] > met:
                return mistake(gather.NOT_MET, at)
            if stamps.size and unfenced(stamps, epochs, first_thread, at):
                return mistake(gather.UNFENCED, at)
            if inside:
                for i in range(max(low - byte, 0), min(high - byte, CHUNK)):
                    poke8(target + byte + i, peek8(data.ctypes.data + at + i))
    return 0
