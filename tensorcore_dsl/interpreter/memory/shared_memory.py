"""Shared memory of a CTA, and of the other CTAs of its cluster.

Addresses of shared::cluster hold a rank. The checks are those of a CTA's own shared memory, made in
the memory of the named CTA: bounds, alignment, unwritten bytes, bytes owned by a copy in flight,
asynchronous readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds, Uninitialised
from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.interpreter.core.chunk import WARPGROUP, Chunk
from tensorcore_dsl.interpreter.core.shadow import OFFSET, SharedStorage
from tensorcore_dsl.interpreter.core.team import ALONE, Team
from tensorcore_dsl.interpreter.memory import accesses
from tensorcore_dsl.interpreter.memory.async_reads import async_load
from tensorcore_dsl.interpreter.sanitizer.async_proxy import CHUNK, PRODUCT, Read
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer
from tensorcore_dsl.interpreter.sync.clusters import Clusters
from tensorcore_dsl.interpreter.sync.mbarriers import Mbarriers
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, Context
from tensorcore_dsl.isa.descriptor import Chunks
from tensorcore_dsl.isa.spec import Instruction


class SharedMemory(accesses.WordMemory):
    """Shared memory of a chunk of CTAs; every thread accesses that of its own CTA."""

    space = "shared"

    def __init__(
        self,
        chunk: Chunk,
        storage: SharedStorage,
        sanitizer: Sanitizer,
        mbarriers: Mbarriers,
        team: Team = ALONE,
    ) -> None:
        super().__init__(chunk, sanitizer)
        self.storage = storage
        self.mbarriers = mbarriers
        self.team = team

    def load_words(self, mask: np.ndarray, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        out = np.empty((count, addresses.size), f"u{width}")
        self.chunk.account(self.space, "load", addresses, mask, width * count)
        storage = self.storage
        tell_race = self.note("load", addresses, mask, width * count)
        wrong = accesses.shared_load(
            addresses,
            mask,
            storage.data,
            storage.shadow,
            out.view(np.uint8),
            width,
            count,
            storage.checks,
            0,
            mask.size,
        )
        self._check(wrong, mask, addresses, width * count, "load", tell_race)
        return out

    def load_matrices(
        self, ctx: Context, addresses: np.ndarray, matrices: int, transposed: bool
    ) -> np.ndarray:
        """(matrices, T) words of 8x8 matrices of 16-bit elements; lanes give row addresses."""
        out = np.empty((matrices, addresses.size), np.uint32)
        mask = self.active(ctx)
        self.chunk.account(self.space, "load", addresses, mask, 16)
        storage = self.storage
        tell_race = self.note("load", addresses, mask, 16)
        wrong = accesses.matrix_load(
            addresses,
            mask,
            storage.data,
            storage.shadow,
            out,
            matrices,
            transposed,
            storage.checks,
            0,
            mask.size,
        )
        self._check(wrong, mask, addresses, 16, "load", tell_race)
        return out

    def store_words(self, mask: np.ndarray, addresses: np.ndarray, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        count, width = values.shape[0], values.dtype.itemsize
        self.chunk.account(self.space, "store", addresses, mask, width * count)
        storage, proxies = self.storage, self.sanitizer.proxies
        tell_race = self.note("store", addresses, mask, width * count, values)
        wrong = accesses.shared_store(
            addresses,
            mask,
            storage.data,
            storage.shadow,
            values.view(np.uint8),
            width,
            count,
            storage.checks,
            proxies.stamps,
            proxies.readers,
            proxies.epochs,
            0,
            mask.size,
        )
        self._check(wrong, mask, addresses, width * count, "store", tell_race)

    def location(self, addresses: np.ndarray) -> np.ndarray:
        ctas = np.arange(addresses.size, dtype=np.uint64) // self.chunk.group
        return np.asarray(addresses + (ctas << np.uint64(32)))

    def real_addresses(self, addresses: np.ndarray, mask: np.ndarray, size: int) -> np.ndarray | None:
        if self.sanitizer.proxies.epochs.size:  # each store leaves a stamp
            return None
        ctas = np.arange(addresses.size) // self.chunk.group
        first = self.storage.data.ctypes.data
        return np.asarray(addresses.astype(np.int64) + (first + ctas * self.storage.size))

    def read_chunks(
        self, instr: Instruction, chunks: Chunks, whole: np.ndarray, out: np.ndarray, size: int, across: bool
    ) -> None:
        """Read elements through the async proxy, as `isa.context` says."""
        addresses, own = chunks.addresses, chunks.own
        if size not in (1, 2, 4) or out[0].size * size != addresses.shape[1] * CHUNK:
            raise ValueError(f"{out.shape} elements of {size} bytes in {addresses.shape} chunks")
        storage, proxies = self.storage, self.sanitizer.proxies
        wrong: int = async_load(
            addresses,
            own,
            whole,
            storage.data,
            storage.states,
            storage.pages,
            storage.checks,
            proxies.stamps,
            proxies.judged,
            self.chunk.geometry.cluster_ctas,
            out,
            size,
            across,
        )
        if wrong:
            self._refuse_chunk(instr, wrong >> 32, wrong & 0xFFFFFFFF, chunks)

    def note_chunks(self, instr: Instruction, chunks: Chunks, whole: np.ndarray) -> None:
        """Show a read through the async proxy to the checks, as `isa.context` says."""
        addresses, own = chunks.addresses, chunks.own
        chunk, sanitizer = self.chunk, self.sanitizer
        proxies = sanitizer.proxies
        owners, ctas, groups = sanitizer.mma.owners(whole)
        chunk.tally.bytes[self.space, "load"] += len(owners) * addresses.shape[1] * CHUNK
        detector = sanitizer.detector
        for group in owners.tolist() if detector is not None else ():
            assert detector is not None
            thread, cta = group * WARPGROUP, group * WARPGROUP // chunk.group
            serial = detector.operation(thread, detector.column(cta, "products", group))
            issued = int(sanitizer.mma.commits[group])
            detector.issued(("products", group), issued, serial)
            starts = addresses[own[group]]
            swizzle = None if chunks.swizzles is None else int(chunks.swizzles[own[group]])
            tell_race = detector.shared_ranges(
                "load", serial, thread, cta, starts, CHUNK, whole=True, swizzle=swizzle
            )
            if tell_race is not None:
                tell_race()
        if proxies.tracked:
            reads = chunks.numbers, own[owners], chunks.spans
            proxies.add(Read(PRODUCT, chunk.at_step, owners, groups, ctas, *reads))

    def _check(
        self,
        wrong: int,
        mask: np.ndarray,
        addresses: np.ndarray,
        size: int,
        verb: str,
        found: Callable[[], None] | None,
    ) -> None:
        """Raise the error of a failed check, or what the detector has `found`."""
        if wrong:
            self.refuse(wrong, addresses, size, verb)
        if found is not None:
            found()
        self.signal(addresses, mask)

    def refuse(self, wrong: int, addresses: np.ndarray, size: int, verb: str) -> NoReturn:
        """Raise the error of a failed check of a thread's access to its own CTA."""
        code, thread = wrong >> 32, wrong & 0xFFFFFFFF
        address = int(addresses[thread])
        what = f"shared {verb} of {size} bytes at {address:#x} by {self.chunk.describe(thread)}"
        self.refuse_access(code, thread // self.chunk.group, address, size, what)

    def refuse_access(self, code: int, cta: int, address: int, size: int, what: str) -> NoReturn:
        """Raise the error of a failed check of `what`, an access to `size` bytes of a CTA."""
        if code == shadow.OUTSIDE:
            extent = self.storage.extent
            if address >> CLUSTER_SHIFT:
                extent += "; this is an address in another CTA of the cluster"
            raise OutOfBounds(f"{what}: the CTA has {extent}")
        if code == shadow.MISALIGNED:
            place = self.chunk.program.tiles.misaligned(address, size)
            raise Misaligned(f"{what}, which is no multiple of {size}{place}")
        if code == shadow.STILL_READ:
            reader = self.sanitizer.proxies.reader(cta, address)
            raise EmulationError(f"{what}: these bytes are still read by {reader}")
        states = self.storage.shadow[cta, address : address + size]
        bad = states != shadow.WRITTEN
        if code == shadow.IN_FLIGHT:
            bad &= states != shadow.NEVER
            raise Uninitialised(f"{what}: " + self.owner(cta, address + int(np.argmax(bad))))
        byte = address + int(np.argmax(bad))
        raise Uninitialised(f"{what}: nothing has written byte {byte:#x}")

    def _refuse_chunk(self, instr: Instruction, code: int, index: int, chunks: Chunks) -> NoReturn:
        group, number = divmod(index, chunks.addresses.shape[1])
        address = int(chunks.addresses[chunks.own[group], number])
        cta = group * WARPGROUP // self.chunk.group
        name = self.chunk.warpgroup_name(group)
        what = f"a {instr.opcode} of {name} reads shared {address:#x}"
        if code == shadow.UNFENCED:
            cause = self.sanitizer.proxies.unfenced_store(cta, address)
            raise EmulationError(f"{what}, {cause}")
        self.refuse_access(code, cta, address, CHUNK, what)

    def owner(self, cta: int, byte: int) -> str:
        """The mbarrier or the copy that owns a byte, for messages."""
        if self.storage.shadow[cta, byte] == shadow.BARRIER:
            return f"byte {byte:#x} belongs to " + self.mbarriers.name(cta, byte // 8)
        return self.sanitizer.in_flight.owner(cta, byte)


@dataclass(frozen=True)
class Access:
    """Accesses of `size` bytes each: one of each of `threads`, at bytes `starts` of `ctas`."""

    threads: np.ndarray
    ctas: np.ndarray
    starts: np.ndarray
    size: int
    verb: str

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Index of all bytes in arrays of (CTAs, bytes): (threads, 1) and (threads, size)."""
        return self.ctas[:, None], self.starts[:, None] + np.arange(self.size)

    def describe(self, chunk: Chunk, row: int) -> str:
        """One thread's access, for messages."""
        thread, start = int(self.threads[row]), int(self.starts[row])
        cta, space = int(self.ctas[row]), "shared"
        text = f"{self.verb} of {self.size} bytes at {start:#x}"
        if cta != thread // chunk.group:
            space, text = "shared::cluster", f"{text} of block {chunk.block_name(cta)}"
        return f"{space} {text} by {chunk.describe(thread)}"


class ClusterMemory(accesses.WordMemory):
    """The shared memory of a chunk's clusters, by addresses of shared::cluster."""

    space = "shared::cluster"

    def __init__(self, chunk: Chunk, shared: SharedMemory, clusters: Clusters) -> None:
        super().__init__(chunk, shared.sanitizer)
        self.shared = shared
        self.storage = shared.storage
        self.clusters = clusters

    def load_words(self, mask: np.ndarray, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        storage, out = self.storage, np.zeros((count, addresses.size), f"u{width}")
        if self.sanitizer.detector is None and _load(
            addresses,
            mask,
            self.clusters.size,
            self.clusters.gone,
            storage.data,
            storage.shadow,
            storage.checks,
            out,
            width,
            count,
        ):
            self.chunk.account(self.space, "load", addresses, mask, width * count)
            return out
        access = self._access(mask, addresses, width * count, "load")
        tell_race = self.note("load", addresses, mask, width * count)
        states = storage.shadow[access.places]
        self._check_states(access, states == shadow.WRITTEN, states != shadow.NEVER)
        data = np.ascontiguousarray(storage.data[access.places])
        out[:, access.threads] = data.view(out.dtype).T
        if tell_race is not None:
            tell_race()
        self.signal(addresses, mask)
        return out

    def store_words(self, mask: np.ndarray, addresses: np.ndarray, values: np.ndarray) -> None:
        """Store words; if several threads store to one place, the last one wins."""
        count, width = values.shape[0], values.dtype.itemsize
        storage, proxies = self.storage, self.sanitizer.proxies
        if self.sanitizer.detector is None and _store(
            addresses,
            mask,
            self.clusters.size,
            self.clusters.gone,
            storage.data,
            storage.shadow,
            storage.checks,
            proxies.stamps,
            proxies.readers,
            proxies.epochs,
            np.ascontiguousarray(values),
            width,
            count,
        ):
            self.chunk.account(self.space, "store", addresses, mask, width * count)
            return
        access = self._access(mask, addresses, width * count, "store")
        tell_race = self.note("store", addresses, mask, width * count, values)
        places = access.places
        free = storage.shadow[places] < shadow.PENDING
        self._check_states(access, free, ~free)
        if proxies.tracked:
            busy = proxies.readers[access.ctas, access.starts // 16] > 0
            self._refuse_any(access, busy, shadow.STILL_READ)
            proxies.stamp(access.threads, *places)
        words = np.ascontiguousarray(values[:, access.threads].T)
        storage.data[places] = words.view(np.uint8)
        if storage.checks:
            storage.shadow[places] = shadow.WRITTEN
        if tell_race is not None:
            tell_race()
        self.signal(addresses, mask)

    def atomic(
        self, ctx: Context, addresses: np.ndarray, width: int, update: Any, *operands: Any
    ) -> np.ndarray:
        self._access(self.active(ctx), addresses, width, "store")
        return super().atomic(ctx, addresses, width, update, *operands)

    def location(self, addresses: np.ndarray) -> np.ndarray:
        ctas = self.clusters.ctas(addresses)
        offsets = (addresses & np.uint32(OFFSET)).astype(np.int64)
        return np.asarray(offsets + (ctas << 32))

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
        access = Access(threads, self.clusters.ctas(addresses)[threads], full & OFFSET, size, verb)
        gone = self.clusters.gone[access.ctas]
        if gone.any():
            row = int(np.argmax(gone))
            what = f"shared {int(access.starts[row]):#x}"
            who = self.chunk.describe(int(access.threads[row]))
            self.clusters.refuse_gone(int(access.ctas[row]), what, who)
        outside = access.starts + access.size > self.storage.size
        if outside.any():
            what = access.describe(self.chunk, int(np.argmax(outside)))
            raise OutOfBounds(f"{what}: the CTA has {self.storage.extent}")
        if self.storage.checks:
            self._refuse_any(access, access.starts % access.size != 0, shadow.MISALIGNED)
        detector = self.sanitizer.detector
        if detector is not None and not self.quiet:
            detector.reach(access.threads, access.ctas, addresses, flies=False)
        return access

    def _check_states(self, access: Access, good: np.ndarray, owned: np.ndarray) -> None:
        """Refuse bytes (a row a thread) that are not `good`; a copy may own (`owned`) them."""
        if not self.storage.checks or good.all():
            return
        bad = ~good
        row = int(np.argmax(bad.any(axis=1)))
        in_flight = owned[row, np.argmax(bad[row])]
        code = shadow.IN_FLIGHT if in_flight else shadow.UNWRITTEN
        self._refuse_any(access, bad.any(axis=1), code)

    def _refuse_any(self, access: Access, bad: Any, code: int) -> None:
        """Raise the error for the first thread of an access that is `bad`."""
        if bad.any():
            row = int(np.argmax(bad))
            self.shared.refuse_access(
                code,
                int(access.ctas[row]),
                int(access.starts[row]),
                access.size,
                access.describe(self.chunk, row),
            )


@native.inlined
def _place(
    addresses: Any, thread: int, group: int, cluster: int, gone: Any, limit: int, size: int, checked: bool
) -> int:
    """Where `size` bytes at the address of a thread lie in the memory of the CTAs, `limit` bytes of
    each; -1 where the access is refused whatever is there."""
    address = int(addresses[thread])
    rank, offset, cta = address >> CLUSTER_SHIFT, address & OFFSET, thread // group
    if rank > cluster or offset + size > limit or (checked and offset % size):
        return -1
    if rank > 0:
        cta = cta // cluster * cluster + rank - 1
    return -1 if gone[cta] else cta * limit + offset


@native.compiled
def _load(
    addresses: Any,
    active: Any,
    cluster: int,
    gone: Any,
    data: Any,
    states: Any,
    checked: bool,
    out: Any,
    width: int,
    count: int,
) -> bool:
    """Load `count` words of `width` bytes of a cluster's memory; False if a load is refused."""
    size, limit, threads = width * count, data.shape[1], addresses.size
    group = threads // data.shape[0]
    for thread in range(threads):
        if active[thread]:
            place = _place(addresses, thread, group, cluster, gone, limit, size, checked)
            if place < 0:
                return False
            if checked and not shadow.all_written(states.ctypes.data + place, size):
                return False
            for word in range(count):
                to = out.ctypes.data + (word * threads + thread) * width
                native.move(to, data.ctypes.data + place + word * width, width)
    return True


@native.compiled
def _store(  # noqa: PLR0913
    addresses: Any,
    active: Any,
    cluster: int,
    gone: Any,
    data: Any,
    states: Any,
    checked: bool,
    stamps: Any,
    readers: Any,
    epochs: Any,
    values: Any,
    width: int,
    count: int,
) -> bool:
    """Store words in the same way; False, and nothing stored, if a store is refused."""
    size, limit, threads = width * count, data.shape[1], addresses.size
    group = threads // data.shape[0]
    for thread in range(threads):
        if active[thread]:
            place = _place(addresses, thread, group, cluster, gone, limit, size, checked)
            if place < 0:
                return False
            if checked and shadow.in_flight(states.ctypes.data + place, size):
                return False
            if epochs.size > 0 and readers[place // limit, place % limit // 16]:
                return False
    for thread in range(threads):
        if active[thread]:
            place = _place(addresses, thread, group, cluster, gone, limit, size, checked)
            if checked:
                shadow.mark(states.ctypes.data + place, size, shadow.WRITTEN)
            if epochs.size > 0:
                cta, offset = place // limit, place % limit
                shadow.stamp_words(stamps, cta, offset, size, epochs, thread)
            for word in range(count):
                source = values.ctypes.data + (word * threads + thread) * width
                native.move(data.ctypes.data + place + word * width, source, width)
    return True
