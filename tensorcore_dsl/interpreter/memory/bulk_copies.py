"""Bulk and tensor copies to and from shared memory (PTX manual 9.7.9.25.4 and .5).

A load writes its bytes when it is issued. They stay in flight until a thread has seen the end of the
mbarrier phase that counts them. A store or a reduction also happens when it is issued, but its
source counts as being read until the thread has waited for its group. A copy to another CTA is a
load there. It reads its source until a thread has seen the end of the phase that counts its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds, Uninitialised
from tensorcore_dsl.interpreter.core import shadow
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk
from tensorcore_dsl.interpreter.core.native import compiled
from tensorcore_dsl.interpreter.core.shadow import OFFSET
from tensorcore_dsl.interpreter.core.threads import PerThread, scalar, taken, words
from tensorcore_dsl.interpreter.memory.global_memory import MAP_BASE, MAP_SHIFT, GlobalMemory
from tensorcore_dsl.interpreter.memory.map_objects import MapObjects
from tensorcore_dsl.interpreter.memory.outside_boxes import LOADS, STORES, OutsideBoxes
from tensorcore_dsl.interpreter.memory.pixel_columns import PixelColumn
from tensorcore_dsl.interpreter.memory.shared_memory import SharedMemory
from tensorcore_dsl.interpreter.memory.tensor_box import (
    RANK,
    START,
    Coordinates,
    TensorBox,
    load_box,
    load_boxes,
    place_boxes,
    store_box,
    store_boxes,
)
from tensorcore_dsl.interpreter.sanitizer.async_proxy import CHUNK, SHARE, STORE, Read
from tensorcore_dsl.interpreter.sanitizer.happens_before import PHASES
from tensorcore_dsl.interpreter.sanitizer.races import Conflict, Spans
from tensorcore_dsl.interpreter.sync.clusters import Clusters
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

TENSOR_ALIGN, BULK_ALIGN = 128, 16  # bytes; alignment of shared addresses
MBARRIER = 8  # bytes
RESULTS = 3  # numbers that `_load_all` returns in an array


class BulkCopies:
    """The bulk copies of a chunk of CTAs.

    Attributes
    ----------
    commits
        The number of groups of each thread.
    repeats
        The store of a lane repeats the store of another lane.
    """

    commits = PerThread()
    repeats = False

    def __init__(self, chunk: Chunk, shared: SharedMemory, memory: GlobalMemory, clusters: Clusters) -> None:
        self.chunk, self.shared, self.storage = chunk, shared, shared.storage
        self.sanitizer = shared.sanitizer
        self.mbarriers = shared.mbarriers
        self.globals = memory
        self.clusters = clusters
        self.maps = MapObjects(chunk, memory)
        self.boxes = self.maps.boxes
        self.outside = OutsideBoxes(chunk, clusters)

    def tensor_load(self, dst: Any, tensor: Any, coordinates: Any, offsets: Any, bar: Any, mask: Any) -> None:
        if offsets is None and self._load_alike(dst, tensor, coordinates, bar, mask):
            return
        for thread in np.flatnonzero(self.chunk.mask):
            box = self._box(thread, tensor, coordinates, offsets, "load")
            self.outside.note_one(LOADS, box, int(thread), len(coordinates))
            self._load(int(thread), box, dst, bar, mask, TENSOR_ALIGN)

    def _load_alike(self, dst: Any, tensor: Any, coordinates: Any, bar: Any, mask: Any) -> bool:
        """Load boxes of one array, to the own CTA or the CTAs of the mask, in one compiled call.

        Do nothing and return False for other loads, and for loads that a check will refuse.
        """
        chunk, clusters, threads = self.chunk, self.clusters, self.chunk.here.numbers
        request = self._named(tensor, coordinates)
        if request is None:
            return False
        box, named, starts, touching = request
        total, most = chunk.threads, len(threads) * clusters.size
        dst, bar = words(dst, total), words(bar, total)
        masks = bar if mask is None else mask if np.ndim(mask) else words(mask, total)
        result, copies = np.empty(RESULTS, np.int64), np.empty((4, most), np.int64)
        useful = self.outside.useful[LOADS, box.name]
        done = _load_all(
            threads,
            named,
            starts,
            touching,
            useful,
            Aims(dst, bar, masks, mask is not None),
            Peers(chunk.group, clusters.size, clusters.gone),
            copies,
            box.shape,
            self.storage.arrays,
            result,
        )
        if done < 0:
            return False
        failure, inside, idle = result.tolist()
        chunk.writes += len(threads)
        if idle and not failure:
            self.outside.note(LOADS, box, threads, starts, len(coordinates), touching)
        own, *there = copies[:, :done]
        if done:
            self._land(threads[own], box, starts[own], *there)
        chunk.tally.bytes["global", "load"] += inside
        if failure:
            where = int(copies[1, done]), int(threads[copies[0, done]])
            self._refuse(failure >> 32, failure & 0xFFFFFFFF, *where, box, "load")
        return True

    def _named(
        self, tensor: Any, coordinates: Any
    ) -> tuple[TensorBox, Coordinates, np.ndarray, np.ndarray] | None:
        """Prepare the arguments of `place_boxes`, or return None where a copy is refused.

        They are the box that the first active thread names, the handles and coordinates, and two arrays
        for results: the starts of boxes, and which boxes touch the array.
        """
        threads, total = self.chunk.here.numbers, self.chunk.threads
        handles = tensor if np.ndim(tensor) else np.full(total, tensor)
        index, rest = divmod(int(handles[threads[0]]), 1 << MAP_SHIFT)
        index -= MAP_BASE
        if rest or not 0 <= index < len(self.boxes):
            return None
        if isinstance(self.boxes[index], PixelColumn):
            return None
        axes = (*coordinates, *[0] * (RANK - len(coordinates)))
        named = Coordinates(handles, *(words(axis, total) for axis in axes))
        starts = np.empty((len(threads), RANK), np.int64)
        return self.boxes[index], named, starts, np.empty(len(threads), np.bool_)

    def _alike(self, tensor: Any, coordinates: Any) -> tuple[TensorBox, np.ndarray, np.ndarray, int] | None:
        """The box that all active threads name, their coordinates, which of them touch the array,
        and all bytes inside it; None where a copy is refused."""
        request = self._named(tensor, coordinates)
        if request is None:
            return None
        box, named, starts, touching = request
        threads = self.chunk.here.numbers
        inside = place_boxes(threads, named, box.shape, starts, touching)
        return None if inside < 0 else (box, starts, touching, inside)

    def _store_alike(self, tensor: Any, coordinates: Any, src: Any) -> bool:
        """Store boxes of one array in one compiled call; False, and nothing done, for others."""
        chunk, proxies = self.chunk, self.sanitizer.proxies
        alike = self._alike(tensor, coordinates)
        if alike is None:
            return False
        (box, starts, touching, inside), threads = alike, chunk.here.numbers
        sources = taken(src, threads)
        if not box.writable or (starts < 0).any() or (sources % TENSOR_ALIGN).any():
            return False
        ctas, failed = threads // chunk.group, np.zeros(1, np.int64)
        first = ctas // self.clusters.size * self.clusters.size * chunk.group
        failure = store_boxes(box.shape, starts, ctas, sources, self.storage.disclosed(), first, failed)
        if failure:
            where = int(ctas[failed[0]]), int(threads[failed[0]])
            self._refuse(failure >> 32, failure & 0xFFFFFFFF, *where, box, "store")
        chunk.writes += len(threads)
        self.outside.note(STORES, box, threads, starts, len(coordinates), touching)
        self._note_stores(threads, box, starts, ctas, sources, False)
        if proxies.tracked:
            groups = self.commits[threads]
            proxies.add(Read(STORE, chunk.at_step, threads, groups, ctas, *box.chunks_at(sources)))
        chunk.tally.bytes["shared", "load"] += box.size * len(threads)
        chunk.tally.bytes["global", "store"] += inside
        return True

    def _turns(self, op: str | None, *operands: Any) -> Iterator[None]:
        """Narrow the active threads to those whose stores differ, then to one that repeats a lane's store.

        CUTLASS's epilogues store a box with a whole warp: each lane the same bytes to the same address.
        """
        chunk, threads, active = self.chunk, self.chunk.here.numbers, self.chunk.mask
        turns = [threads]
        if op is None and len(threads) > 1:
            each = [np.broadcast_to(x, active.shape)[threads].astype(np.int64) for x in operands]
            _, first = np.unique(np.stack([threads // WARP, *each]), axis=1, return_index=True)
            turns = [threads[first], np.delete(threads, first)[:1]]
        for turn in filter(len, turns):
            self.repeats = turn is not turns[0]
            mask = np.zeros_like(active)
            mask[turn] = True
            chunk.narrow(mask)
            yield
        chunk.narrow(active)

    def tensor_store(self, tensor: Any, coordinates: Any, offsets: Any, src: Any, op: str | None) -> None:
        for _ in self._turns(op, tensor, src, *coordinates):
            self._tensor_store(tensor, coordinates, offsets, src, op)

    def _tensor_store(self, tensor: Any, coordinates: Any, offsets: Any, src: Any, op: str | None) -> None:
        if op is None and offsets is None and self._store_alike(tensor, coordinates, src):
            return
        for thread in np.flatnonzero(self.chunk.mask):
            box = self._box(thread, tensor, coordinates, offsets, "store")
            if not box.writable:
                raise EmulationError(
                    f"{box.name} is read-only; a tensor copy of {self.chunk.describe(int(thread))} writes it"
                )
            if (box.plan[START] < 0).any():
                where = tuple(int(c) for c in box.plan[START, : len(coordinates)])
                raise OutOfBounds(
                    f"a tensor store to {box.name} by {self.chunk.describe(int(thread))} starts "
                    f"at coordinates {where}: stores may hang over the far end of an axis, not "
                    "over its start"
                )
            self.outside.note_one(STORES, box, int(thread), len(coordinates))
            self._store(int(thread), box, scalar(src, thread), op, TENSOR_ALIGN)

    def leave(self, cta: int) -> None:
        """A CTA has ended."""
        if self.storage.checks:
            self.outside.leave(cta)

    def load(self, dst: Any, src: Any, size: Any, bar: Any, mask: Any) -> None:
        for thread in np.flatnonzero(self.chunk.mask):
            box = self._global_bytes(int(thread), src, scalar(size, thread), "bulk load")
            if box is not None:
                self._load(int(thread), box, dst, bar, mask, BULK_ALIGN)

    def store(self, dst: Any, src: Any, size: Any, op: str | None, dtype: Any) -> None:
        for _ in self._turns(op, dst, src, size):
            for thread in np.flatnonzero(self.chunk.mask):
                box = self._global_bytes(int(thread), dst, scalar(size, thread), "bulk store", dtype)
                if box is not None:
                    self._store(int(thread), box, scalar(src, thread), op, BULK_ALIGN)

    def copy_to_cta(self, dst: Any, src: Any, size: Any, bar: Any) -> None:
        chunk = self.chunk
        for thread in map(int, np.flatnonzero(chunk.mask)):
            start, count = scalar(src, thread), scalar(size, thread)
            self._aligned(count, BULK_ALIGN, thread, "a size of")
            if start >> CLUSTER_SHIFT:
                raise EmulationError(
                    f"a bulk copy of {chunk.describe(thread)} reads shared {start & OFFSET:#x} "
                    "of another CTA: it copies from the own CTA to another one"
                )
            if count:
                self._share(thread, dst, start, count, bar)

    def _share(self, thread: int, dst: Any, start: int, size: int, bar: Any) -> None:
        """Copy `size` bytes from `start` on to another CTA."""
        chunk, cta = self.chunk, thread // self.chunk.group
        there, target, _ = self._targets(thread, dst, bar, None)[0]
        if there == cta:
            raise EmulationError(
                f"a bulk copy from shared {start:#x} to shared {target:#x} by "
                f"{chunk.describe(thread)} stays in its CTA: another one is needed"
            )
        real = self.storage.data.ctypes.data + cta * self.storage.size + start
        box = TensorBox.contiguous(f"shared memory of CTA {chunk.cta_name(cta)}", real, size)
        self._read(thread, box, start, BULK_ALIGN, copies=False)
        self._load(thread, box, dst, bar, None, BULK_ALIGN, start)
        if self.sanitizer.proxies.tracked:
            self.sanitizer.in_flight.attach(self._begin_read(SHARE, thread, 0, box, start))

    def commit(self) -> None:
        """Close the group of each active thread."""
        self.commits += self.chunk.mask
        self.sanitizer.proxies.waits[STORE].commits = self.commits

    def wait(self, pending: int, reading: bool) -> None:
        """End all but the last `pending` groups of each active thread.

        A store happens when it is issued, so waiting for the reads of its source is the same.
        """
        self.sanitizer.proxies.finish(STORE, self.chunk.mask, self.commits - pending, pending)
        detector = self.sanitizer.detector
        if detector is None:
            return
        for kind in ("bulk loads",) if reading else ("bulk loads", "bulk stores"):
            detector.waited(kind, self.chunk.mask, self.commits - pending)

    def _box(self, thread: Any, tensor: Any, coordinates: Any, offsets: Any, verb: str) -> TensorBox:
        origin = tuple((scalar(c, thread) ^ 1 << 31) - (1 << 31) for c in coordinates)
        box = self.maps.box(int(thread), scalar(tensor, thread), len(origin), verb)
        modes = "im2col" if isinstance(box, PixelColumn) else "tile", "tile" if offsets is None else "im2col"
        if modes[0] != modes[1]:
            raise EmulationError(
                f"a tensor copy of {self.chunk.describe(int(thread))} in {modes[1]} mode uses a tensor map "
                f"of {modes[0]} mode, of {box.name}: map and instruction are of one mode"
            )
        if verb == "store" and isinstance(box, PixelColumn) and box.im2col.refuses_stores:
            raise EmulationError(
                f"a tensor copy of {box.name} by {self.chunk.describe(int(thread))}: "
                f"{box.im2col.refuses_stores}"
            )
        box = box.at(origin, [scalar(offset, thread) for offset in offsets or ()])
        if origin[0] * box.element % CHUNK:
            raise Misaligned(
                f"a tensor copy of {box.name} by {self.chunk.describe(int(thread))} starts at "
                f"innermost coordinate {origin[0]}, byte {origin[0] * box.element} of a row; "
                f"multiples of {CHUNK} bytes are allowed"
            )
        return box

    def _global_bytes(
        self, thread: int, address: Any, size: int, verb: str, dtype: Any = None
    ) -> TensorBox | None:
        """`size` bytes of global memory at the thread's `address`; None for none."""
        chunk, start = self.chunk, scalar(address, thread)
        if size % BULK_ALIGN or start % BULK_ALIGN:
            raise Misaligned(
                f"a {verb} of {size} bytes at global {start:#x} by {chunk.describe(thread)}: the "
                f"size and both addresses must be multiples of {BULK_ALIGN}"
            )
        if not size:
            return None
        name, real = self.globals.locate(start, size, verb, thread)
        return TensorBox.contiguous(name, real, size, dtype)

    def _load(
        self,
        thread: int,
        box: TensorBox,
        dst: Any,
        bar: Any,
        mask: Any,
        align: int,
        source: int | None = None,
    ) -> None:
        """Carry out a load; `source` is where it reads shared memory, if it does."""
        chunk = self.chunk
        chunk.writes += 1
        for cta, target, barrier in self._targets(thread, dst, bar, mask):
            self._aligned(target, align, thread)
            failure = load_box(box.shape, box.plan[START], self.storage.arrays, cta, target)
            if failure:
                self._refuse(failure >> 32, failure & 0xFFFFFFFF, cta, thread, box, "load")
            by, there, offsets, barriers = np.array([[thread], [cta], [target], [barrier]])
            self._land(by, box, box.plan[START:], there, offsets, barriers, source)
        chunk.tally.bytes["global", "load"] += box.inside

    def _land(
        self,
        threads: np.ndarray,
        box: TensorBox,
        starts: np.ndarray,
        ctas: np.ndarray,
        targets: np.ndarray,
        barriers: np.ndarray,
        source: int | None = None,
    ) -> None:
        """Count the bytes of boxes that have come to CTAs; they are in flight until seen.

        starts: (boxes, RANK) coordinates. source: where a single copy reads shared memory, if it does.
        """
        conflict = self._note_loads(threads, box, starts, ctas, targets, barriers, source)
        if conflict is not None:
            some = slice(conflict.which + 1)
            threads, ctas, targets, barriers = (x[some] for x in (threads, ctas, targets, barriers))
        phases = self.mbarriers.complete(threads, ctas, barriers, box.size)
        if conflict is not None:
            conflict.tell()
        destinations = ctas, targets, barriers // MBARRIER, phases
        self.sanitizer.in_flight.add(threads, self.chunk.at_step, box.reach, *destinations)
        self.chunk.tally.bytes["shared", "store"] += box.size * len(threads)

    def _note_loads(
        self,
        threads: np.ndarray,
        box: TensorBox,
        starts: np.ndarray,
        ctas: np.ndarray,
        targets: np.ndarray,
        barriers: np.ndarray,
        source: int | None,
    ) -> Conflict | None:
        """Show loads to the detector of races: what they read, and their writes to CTAs."""
        detector = self.sanitizer.detector
        if detector is None:
            return None
        columns = detector.columns_of(PHASES, ctas, barriers // MBARRIER)
        operations = detector.operations(threads, columns)
        if (changed := self.maps.read(box, operations)) is not None:
            return changed
        if source is None:
            conflict = detector.global_spans("load", operations, box.rows_inside(starts))
        else:
            read = Spans(np.array([[[source, source + box.size]]]), np.zeros(1, np.int64))
            conflict = detector.shared_spans("load", operations, threads // self.chunk.group, read)
        before = operations.first(None if conflict is None else conflict.which)
        spans = self._spans(box, targets)
        return detector.shared_spans("store", before, ctas, spans) or conflict

    @staticmethod
    def _spans(box: TensorBox, addresses: np.ndarray) -> Spans:
        """The shared memory that a box occupies at each address."""
        _, rows, bounds = box.chunks_at(addresses)
        return Spans(bounds, rows, CHUNK)

    def _targets(self, thread: int, dst: Any, bar: Any, mask: Any) -> list[tuple[int, int, int]]:
        """(CTA, address there, address of its barrier) for each CTA that receives a copy."""
        clusters, own = self.clusters, thread // self.chunk.group
        target, barrier = scalar(dst, thread), scalar(bar, thread)
        who = self.chunk.describe(thread)
        if mask is None:
            ranks = [target >> CLUSTER_SHIFT]
            there = clusters.peer(own, ranks[0], who)
            if clusters.peer(own, barrier >> CLUSTER_SHIFT, who) != there:
                raise EmulationError(
                    f"a bulk load goes to shared {target & OFFSET:#x} of CTA "
                    f"{self.chunk.cta_name(there)}, its mbarrier is not there ({who})"
                )
        else:
            bits = scalar(mask, thread)
            ranks = [rank + 1 for rank in range(16) if bits >> rank & 1]
        ctas = [clusters.peer(own, rank, who) for rank in ranks]
        for cta in ctas:
            if clusters.gone[cta]:
                clusters.refuse_gone(cta, f"a bulk load to shared {target & OFFSET:#x}", who)
        return [(cta, target & OFFSET, barrier & OFFSET) for cta in ctas]

    def _store(self, thread: int, box: TensorBox, src: int, op: str | None, align: int) -> None:
        chunk, group = self.chunk, self.chunk.group
        chunk.writes += 1
        self._read(thread, box, src, align, copies=op is None)
        if op is not None:
            box.reduce(self.storage.data[thread // group], src, op)
        box.write_back()
        by, cta, source = np.array([[thread], [thread // group], [src]])
        self._note_stores(by, box, box.plan[START:], cta, source, op is not None)
        if self.sanitizer.proxies.tracked:
            self._begin_read(STORE, thread, int(self.commits[thread]), box, src)
        chunk.tally.bytes["shared", "load"] += box.size
        chunk.tally.bytes["global", "store"] += box.inside

    def _begin_read(self, kind: int, thread: int, group: int, box: TensorBox, address: int) -> Read:
        """Note that an operation of a thread in one of its groups reads a box of its CTA."""
        owners, groups, ctas, offsets = np.array([[thread], [group], [thread // self.chunk.group], [address]])
        read = Read(kind, self.chunk.at_step, owners, groups, ctas, *box.chunks_at(offsets))
        self.sanitizer.proxies.add(read)
        return read

    def _note_stores(
        self,
        threads: np.ndarray,
        box: TensorBox,
        starts: np.ndarray,
        ctas: np.ndarray,
        sources: np.ndarray,
        reduces: bool,
    ) -> None:
        """Show stores to the detector of races: they are over for their sources and targets apart."""
        detector = self.sanitizer.detector
        if detector is None:
            return
        conflicts = []
        for verb in ("load", "store"):
            kind = f"bulk {verb}s"
            operations = detector.operations(threads, detector.columns_of(kind, ctas, threads))
            detector.issued(kind, threads, self.commits[threads], operations.serials)
            if verb == "load":
                conflicts.append(self.maps.read(box, operations))
                conflicts.append(detector.shared_spans(verb, operations, ctas, self._spans(box, sources)))
            else:
                rows = box.rows_inside(starts)
                conflicts.append(detector.global_spans(verb, operations, rows, reduces))
        made = [conflict for conflict in conflicts if conflict is not None]
        if made:
            first = min(made, key=lambda conflict: conflict.which)
            first.tell(
                self.repeats and first is conflicts[-1]
            )  # A conflict at the target is mild: the values are equal.
            # It was a warning. The history has the stores up to that one; later accesses must meet all.
            detector.global_spans("store", operations, rows, reduces, check=False)

    def _read(self, thread: int, box: TensorBox, src: int, align: int, *, copies: bool) -> None:
        """Check the source of a copy in the thread's CTA, and copy it to the box if `copies`."""
        chunk = self.chunk
        self._aligned(src, align, thread)
        cta, shared = thread // chunk.group, self.storage.disclosed()
        first = chunk.geometry.first_thread(cta)
        failure = store_box(box.shape, box.plan[START], shared, cta, src, first, copies)
        if failure:
            self._refuse(failure >> 32, failure & 0xFFFFFFFF, cta, thread, box, "store")

    def _aligned(self, number: int, align: int, thread: int, what: str = "shared") -> None:
        if number % align:
            static = number < self.chunk.program.kernel.shared_bytes
            advised = f"tc.shared(..., align={align})" if static else "offset= of tc.dynamic_shared"
            advised = f" ({advised})" if what == "shared" else ""
            raise Misaligned(
                f"a bulk copy of {self.chunk.describe(thread)} names {what} {number:#x}, which "
                f"is not a multiple of {align}{advised}"
            )

    def _refuse(self, code: int, address: int, cta: int, thread: int, box: TensorBox, verb: str) -> NoReturn:
        chunk, proxies = self.chunk, self.sanitizer.proxies
        what = f"a bulk {verb} of {box.name} by {chunk.describe(thread)}"
        if code == shadow.OUTSIDE:
            raise OutOfBounds(
                f"{what} reaches shared {address:#x}; CTA "
                f"{chunk.cta_name(cta)} has {self.storage.size:#x} bytes"
            )
        if code == shadow.UNFENCED:
            raise EmulationError(f"{what} reads shared {address:#x}, " + proxies.unfenced_store(cta, address))
        if code == shadow.STILL_READ:
            element = chunk.program.tiles.element(address)
            target = f"{element} (shared {address:#x})" if element else f"shared {address:#x}"
            raise EmulationError(
                f"{what} overwrites {target}, which is still read by " + proxies.reader(cta, address)
            )
        if code == shadow.UNWRITTEN:
            raise Uninitialised(f"{what} reads shared {address:#x}, which nothing has written")
        state = self.storage.shadow[cta, address : address + CHUNK]
        if (state == shadow.BARRIER).any():
            byte = address + int(np.argmax(state == shadow.BARRIER))
            name = self.mbarriers.name(cta, byte // 8)
            raise EmulationError(f"{what} touches shared {byte:#x}: {name} lives there")
        byte = address + int(np.argmax(state == shadow.PENDING))
        error = EmulationError if verb == "load" else Uninitialised
        raise error(f"{what}: " + self.sanitizer.in_flight.owner(cta, byte))


class Peers(NamedTuple):
    """CTAs of a chunk, for compiled functions.

    Attributes
    ----------
    group : int
        Threads of a CTA.
    cluster : int
        CTAs of a cluster.
    gone : array
        (CTAs,) bool: which CTAs have ended.
    """

    group: int
    cluster: int
    gone: Any


class Aims(NamedTuple):
    """Targets of the tensor loads of all threads, for compiled functions.

    Attributes
    ----------
    targets, barriers : array
        (T,) shared addresses.
    masks : array
        (T,) CTAs of the cluster that receive a `multicast`. Without it, the own CTA receives.
    """

    targets: Any
    barriers: Any
    masks: Any
    multicast: bool


@compiled
def _copies(threads: Any, aims: Any, peers: Any, copies: Any) -> int:
    """The copies of a tensor load to CTAs, for some threads; how many, -1 where one is refused.

    copies: becomes the index of the thread, the CTA, and the target and the barrier there of each
    copy.
    """
    group, size = peers.group, peers.cluster
    count = 0
    for i in range(threads.size):
        thread = threads[i]
        first, bits = thread // group, 1
        target, barrier = int(aims.targets[thread]), int(aims.barriers[thread])
        if aims.multicast:
            first, bits = first // size * size, int(aims.masks[thread])
            target, barrier = target & OFFSET, barrier & OFFSET
        if bits >> size or target % TENSOR_ALIGN or (target | barrier) >> CLUSTER_SHIFT:
            return -1
        for rank in range(size):
            if bits >> rank & 1:
                if peers.gone[first + rank]:
                    return -1
                copies[0, count], copies[1, count] = i, first + rank
                copies[2, count], copies[3, count] = target, barrier
                count += 1
    return count


@compiled
def _load_all(
    threads: Any,
    named: Any,
    starts: Any,
    touching: Any,
    useful: Any,
    aims: Any,
    peers: Any,
    copies: Any,
    box: Any,
    shared: Any,
    result: Any,
) -> int:
    """Carry out tensor loads of one array. Return the number of copies, or -1 if a check fails first.

    See `place_boxes`, `_copies` and `load_boxes`. result: the error of the
    first copy that was not made, the bytes inside the array, and the number of boxes without any.
    """
    inside, count = place_boxes(threads, named, box, starts, touching), -1
    if inside >= 0:
        count = _copies(threads, aims, peers, copies)
    if count < 0:
        return -1
    failed = np.zeros(1, np.int64)
    own, ctas, offsets = copies[0, :count], copies[1, :count], copies[2, :count]
    failure = load_boxes(box, starts, own, ctas, offsets, shared, failed)
    result[0], result[1], result[2] = failure, inside, 0
    if failure:
        count = failed[0]
    else:
        for i in range(threads.size):
            if touching[i]:
                useful[threads[i] // peers.group // peers.cluster] = True
            else:
                result[2] += 1
    return count
