"""Shared memory of a CTA, and of the other CTAs of its cluster.

Addresses of shared::cluster hold a rank. They pass the same checks as addresses of the
CTA's own shared memory, in the memory of the named CTA: bounds, alignment, unwritten bytes, bytes
owned by a copy in flight, asynchronous readers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds, Uninitialised
from tensorcore_dsl.interpreter.core import shadow
from tensorcore_dsl.interpreter.core.chunk import WARPGROUP, Chunk
from tensorcore_dsl.interpreter.core.shadow import OFFSET, SharedStorage
from tensorcore_dsl.interpreter.core.team import ALONE, Team
from tensorcore_dsl.interpreter.memory import accesses
from tensorcore_dsl.interpreter.memory.async_reads import async_load
from tensorcore_dsl.interpreter.sanitizer.async_proxy import CHUNK, PRODUCT, Read
from tensorcore_dsl.interpreter.sanitizer.races import Spans
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer
from tensorcore_dsl.interpreter.sync.clusters import Clusters
from tensorcore_dsl.interpreter.sync.mbarriers import Mbarriers
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, Context
from tensorcore_dsl.isa.descriptor import Chunks
from tensorcore_dsl.isa.spec import Instruction


class SharedMemory(accesses.WordMemory):
    """Shared memory of a chunk of CTAs; every thread accesses the memory of its own CTA."""

    space = "shared"
    cluster = 0, np.empty(0, np.bool_)  # arguments of `accesses.shared_move`

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

    def move(self, mask: np.ndarray, addresses: np.ndarray, words: np.ndarray, stores: bool) -> int:
        count, width = words.shape[0], words.dtype.itemsize
        shared, data = self.storage.disclosed(), words.view(np.uint8)
        cluster, gone = self.cluster
        return accesses.shared_move(addresses, mask, shared, data, width, count, stores, cluster, gone)

    def load_matrices(
        self, ctx: Context, addresses: np.ndarray, matrices: int, transposed: bool
    ) -> np.ndarray:
        """(matrices, T) words of 8x8 matrices of 16-bit elements; lanes give row addresses."""
        out = np.empty((matrices, addresses.size), np.uint32)
        mask = self.active(ctx)
        self.chunk.account(self.space, "load", addresses, mask, 16)
        tell_race = self.note("load", addresses, mask, 16)
        wrong = accesses.matrix_load(addresses, mask, self.storage.disclosed(), out, transposed)
        self.check(wrong, mask, addresses, 16, "load", tell_race)
        return out

    def location(self, addresses: np.ndarray) -> np.ndarray:
        ctas = np.arange(addresses.size, dtype=np.uint64) // self.chunk.group
        return np.asarray(addresses + (ctas << np.uint64(32)))

    def real_addresses(self, addresses: np.ndarray, mask: np.ndarray, size: int) -> np.ndarray | None:
        if self.sanitizer.proxies.epochs.size:  # Each store leaves a stamp.
            return None
        ctas = np.arange(addresses.size) // self.chunk.group
        first = self.storage.data.ctypes.data
        return np.asarray(addresses.astype(np.int64) + (first + ctas * self.storage.size))

    def read_chunks(
        self, instr: Instruction, chunks: Chunks, whole: np.ndarray, out: np.ndarray, size: int, across: bool
    ) -> None:
        """Read elements through the async proxy, as `isa.context` says."""
        addresses, own = chunks.addresses, chunks.rows
        if size not in (1, 2, 4) or out[0].size * size != addresses.shape[1] * CHUNK:
            raise ValueError(f"{out.shape} elements of {size} bytes in {addresses.shape} chunks")
        cluster = self.chunk.geometry.cluster_ctas
        wrong: int = async_load(addresses, own, whole, self.storage.arrays, cluster, out, size, across)
        if wrong:
            self._refuse_chunk(instr, wrong >> 32, wrong & 0xFFFFFFFF, chunks)

    def note_chunks(self, instr: Instruction, chunks: Chunks, whole: np.ndarray) -> None:
        """Show a read through the async proxy to the checks, as `isa.context` says."""
        addresses, own = chunks.addresses, chunks.rows
        chunk, sanitizer = self.chunk, self.sanitizer
        proxies = sanitizer.proxies
        owners, ctas, groups = sanitizer.mma.owners(whole)
        chunk.tally.bytes[self.space, "load"] += len(owners) * addresses.shape[1] * CHUNK
        detector = sanitizer.detector
        reads = chunks.numbers, own[owners], chunks.spans
        if detector is not None:
            columns = detector.columns_of("products", ctas, owners)
            operations = detector.operations(owners * WARPGROUP, columns)
            detector.issued("products", owners, groups, operations.serials)
            swizzles = None if chunks.swizzles is None else chunks.swizzles[own[owners]]
            spans = Spans(chunks.spans, own[owners], CHUNK)
            conflict = detector.shared_spans("load", operations, ctas, spans, whole=True, swizzles=swizzles)
            if conflict is not None:
                conflict.tell()
        if proxies.tracked:
            proxies.add(Read(PRODUCT, chunk.at_step, owners, groups, ctas, *reads))

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
            tile_text = self.chunk.program.tiles.misaligned(address, size)
            raise Misaligned(f"{what}, which is not a multiple of {size}{tile_text}")
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
        address = int(chunks.addresses[chunks.rows[group], number])
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


class ClusterMemory(SharedMemory):
    """The shared memory of a chunk's clusters, by addresses of shared::cluster."""

    space = "shared::cluster"

    def __init__(self, shared: SharedMemory, clusters: Clusters) -> None:
        super().__init__(shared.chunk, shared.storage, shared.sanitizer, shared.mbarriers)
        self.clusters, self.cluster = clusters, (clusters.size, clusters.gone)

    def note(
        self, verb: str, addresses: np.ndarray, mask: np.ndarray, size: int, values: np.ndarray | None = None
    ) -> Callable[[], None] | None:
        detector, clusters = self.sanitizer.detector, self.clusters
        if detector is not None and not self.quiet:
            threads = np.flatnonzero(mask & (addresses >> CLUSTER_SHIFT <= clusters.size))
            ctas = clusters.ctas(threads, addresses[threads])
            there = ~clusters.gone[ctas]
            detector.reach(threads[there], ctas[there], addresses, flies=False)
        return super().note(verb, addresses, mask, size, values)

    def location(self, addresses: np.ndarray) -> np.ndarray:
        ctas = self.clusters.ctas(np.arange(addresses.size), addresses)
        offsets = (addresses & np.uint32(OFFSET)).astype(np.int64)
        return np.asarray(offsets + (ctas << 32))

    def real_addresses(self, addresses: np.ndarray, mask: np.ndarray, size: int) -> None:
        return None

    def refuse(self, wrong: int, addresses: np.ndarray, size: int, verb: str) -> NoReturn:
        code, thread = wrong >> 32, wrong & 0xFFFFFFFF
        who, address, own = self.chunk.describe(thread), int(addresses[thread]), thread // self.chunk.group
        cta, start = self.clusters.peer(own, address >> CLUSTER_SHIFT, who), address & OFFSET
        if code == shadow.NO_CTA:
            self.clusters.refuse_gone(cta, f"shared {start:#x}", who)
        what = f"{verb} of {size} bytes at {start:#x}"
        if cta != own:
            what = f"::cluster {what} of CTA {self.chunk.cta_name(cta)}"
        self.refuse_access(code, cta, start, size, f"shared{'' if cta != own else ' '}{what} by {who}")
