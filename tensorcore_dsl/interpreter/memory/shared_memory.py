"""Shared memory of a CTA: words, 8x8 matrices, and what the async proxy reads."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds, Uninitialised
from tensorcore_dsl.interpreter.core import shadow
from tensorcore_dsl.interpreter.core.chunk import WARPGROUP, Chunk
from tensorcore_dsl.interpreter.core.shadow import SharedStorage
from tensorcore_dsl.interpreter.memory import access_loops
from tensorcore_dsl.interpreter.memory.word_memory import WORDS, WordMemory
from tensorcore_dsl.interpreter.sanitizer.async_proxy import CHUNK, PRODUCT, Read
from tensorcore_dsl.interpreter.sanitizer.happens_before import Access
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer
from tensorcore_dsl.interpreter.sync.mbarriers import Mbarriers
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, Context
from tensorcore_dsl.isa.spec import Instruction

NOT_MET = "a bulk load brought these bytes; its mbarrier must be waited for first"


class SharedMemory(WordMemory):
    """Shared memory of a chunk of CTAs; every thread accesses that of its own CTA."""

    space = "shared"

    def __init__(
        self, chunk: Chunk, storage: SharedStorage, sanitizer: Sanitizer, mbarriers: Mbarriers
    ) -> None:
        super().__init__(chunk)
        self.storage = storage
        self.sanitizer = sanitizer
        self.mbarriers = mbarriers

    def load_words(
        self, mask: np.ndarray, addresses: np.ndarray, width: int, count: int
    ) -> np.ndarray:
        out = np.empty((count, addresses.size), WORDS[width])
        self.chunk.account(self.space, "load", addresses, mask, width * count)
        storage, sanitizer = self.storage, self.sanitizer
        wrong = access_loops.shared_load(
            addresses, mask, storage.data, storage.shadow, out.view(np.uint8), width, count,
            storage.checks, sanitizer.proxies.landed, sanitizer.order.synced,
        )  # fmt: skip
        if wrong:
            self.refuse(wrong, addresses, width * count, "load")
        self._check_races(mask, addresses, width * count, "load")
        return out

    def load_matrices(
        self, ctx: Context, addresses: np.ndarray, matrices: int, transposed: bool
    ) -> np.ndarray:
        """(matrices, T) words of 8x8 matrices of 16-bit elements; lanes give row addresses."""
        out = np.empty((matrices, addresses.size), np.uint32)
        mask = self.active(ctx)
        self.chunk.account(self.space, "load", addresses, mask, 16)
        storage, sanitizer = self.storage, self.sanitizer
        wrong = access_loops.matrix_load(
            addresses, mask, storage.data, storage.shadow, out, matrices, transposed,
            storage.checks, sanitizer.proxies.landed, sanitizer.order.synced,
        )  # fmt: skip
        if wrong:
            self.refuse(wrong, addresses, 16, "load")
        self._check_races(mask, addresses, 16, "load")
        return out

    def store_words(self, mask: np.ndarray, addresses: np.ndarray, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        count, width = values.shape[0], values.dtype.itemsize
        self.chunk.account(self.space, "store", addresses, mask, width * count)
        storage, proxies = self.storage, self.sanitizer.proxies
        wrong = access_loops.shared_store(
            addresses, mask, storage.data, storage.shadow, values.view(np.uint8), width, count,
            storage.checks, proxies.stamps, proxies.readers, proxies.epochs,
        )  # fmt: skip
        if wrong:
            self.refuse(wrong, addresses, width * count, "store")
        self._check_races(mask, addresses, width * count, "store")

    def location(self, addresses: np.ndarray) -> np.ndarray:
        ctas = np.arange(addresses.size, dtype=np.uint64) // self.chunk.group
        return np.asarray(addresses + (ctas << np.uint64(32)))

    def read_chunks(
        self, instr: Instruction, addresses: np.ndarray, whole: np.ndarray
    ) -> np.ndarray:
        """(warpgroups, chunks, 16) bytes at (warpgroups, chunks) addresses, which the product
        `instr` reads through the async proxy for the warpgroups `whole`."""
        chunk, storage, sanitizer = self.chunk, self.storage, self.sanitizer
        proxies = sanitizer.proxies
        out = np.zeros((*addresses.shape, CHUNK), np.uint8)
        wrong = access_loops.async_load(
            addresses, whole, storage.data, storage.shadow, storage.checks, proxies.stamps,
            proxies.epochs, proxies.landed, sanitizer.order.synced, chunk.geometry.cluster_ctas,
            out,
        )  # fmt: skip
        if wrong:
            self._refuse_chunk(instr, wrong >> 32, wrong & 0xFFFFFFFF, addresses)
        chunk.tally.bytes[self.space, "load"] += int(whole.sum()) * addresses.shape[1] * CHUNK
        if proxies.tracked:
            owners = np.flatnonzero(whole)
            ctas, chunks = owners * WARPGROUP // chunk.group, addresses[owners] // CHUNK
            groups = sanitizer.mma.commits[owners]
            proxies.add(Read(PRODUCT, chunk.at_step, owners, groups, ctas, chunks))
        return out

    def _check_races(self, mask: np.ndarray, addresses: np.ndarray, size: int, verb: str) -> None:
        races = self.sanitizer.races
        if races is not None:
            check = races.load if verb == "load" else races.store
            check(Access.own(self.chunk, addresses, mask, size, verb), races.ordered)

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
            raise OutOfBounds(f"out of bounds: {what}: the CTA has {extent}")
        if code == shadow.MISALIGNED:
            raise Misaligned(f"misaligned: {what}, which is no multiple of {size}")
        if code == shadow.STILL_READ:
            reader = self.sanitizer.proxies.reader(cta, address)
            raise EmulationError(f"{what}: these bytes are still read by {reader}")
        if code == shadow.NOT_MET:
            raise Uninitialised(f"{what}: {NOT_MET}")
        states = self.storage.shadow[cta, address : address + size]
        bad = states != shadow.WRITTEN
        if code == shadow.IN_FLIGHT:
            bad &= states != shadow.NEVER
            raise Uninitialised(f"{what}: " + self.owner(cta, address + int(np.argmax(bad))))
        byte = address + int(np.argmax(bad))
        raise Uninitialised(f"uninitialised: {what}: nothing has written byte {byte:#x}")

    def _refuse_chunk(
        self, instr: Instruction, code: int, index: int, addresses: np.ndarray
    ) -> NoReturn:
        group, chunk = divmod(index, addresses.shape[1])
        cta, address = group * WARPGROUP // self.chunk.group, int(addresses[group, chunk])
        name = self.chunk.warpgroup_name(group)
        what = f"a {instr.opcode} of {name} reads shared {address:#x}"
        if code == shadow.UNFENCED:
            cause = self.sanitizer.proxies.unfenced_store(cta, address)
            raise EmulationError(f"{what}, {cause}")
        self.refuse_access(code, cta, address, CHUNK, what)

    def owner(self, cta: int, byte: int) -> str:
        """The mbarrier or the copy that owns a byte, for messages."""
        if self.storage.shadow[cta, byte] == shadow.BARRIER:
            return f"byte {byte:#x} belongs to the " + self.mbarriers.name(cta, byte // 8)
        return self.sanitizer.in_flight.owner(cta, byte)
