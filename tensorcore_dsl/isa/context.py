"""What the meaning of a row may ask of the machine that runs it.

`execute(ctx, form, *operands)` gets register arrays of raw bits and returns the results:

* a scalar operand is `(T,)`, T being all threads that run together; a fragment or vector is
  `(registers, T)`; elements are bool for predicates and uint16, uint32 or uint64 otherwise;
* constants come as NumPy scalars of the same width, immediates as Python ints, an address as
  a `(T,)` array of uint32 (shared) or uint64 (global) with its offset added;
* T is a multiple of 32; thread t is lane t % 32 of warp t // 32;
* `ctx.active` is a bool array of the threads that execute (None: all do). Results of other
  threads are ignored, but memory must not be touched for them;
* forms with the effect "blocking" return the bool array of threads that may go on (threads
  that may not are asked again later), or (array, *results) where they have results.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Memory(Protocol):
    """Byte-addressed memory of one state space, checked by the machine."""

    def load(self, ctx: Context, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        """(count, T) of `width`-byte unsigned words at consecutive addresses."""

    def store(self, ctx: Context, addresses: np.ndarray, values: np.ndarray) -> None:
        """Store (count, T) words."""

    def atomic(
        self, ctx: Context, addresses: np.ndarray, width: int, update: Any, *operands: np.ndarray
    ) -> np.ndarray:
        """In thread order: old = word; word = update(old, *operands); returns all old words.

        `update` works on arrays of bits; threads with distinct addresses are done together.
        """

    def load_matrices(
        self, ctx: Context, addresses: np.ndarray, matrices: int, transposed: bool
    ) -> np.ndarray:
        """(matrices, T) of 32-bit words as ldmatrix gives them, of 8x8 matrices of 16 bits; lane
        8 m + r names row r of matrix m."""

    def copy_async(
        self, ctx: Context, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> None:
        """cp.async: `size` bytes to shared `target` from global `source`, of which `valid` (T,)
        are read and the rest is zero. Takes effect at the wait."""


class Context(Protocol):
    """The machine as one instruction sees it."""

    arch: str
    threads: int
    active: np.ndarray | None
    exited: np.ndarray | None  # threads that left the kernel; None: nobody did
    shared: Memory
    cluster: Memory  # shared memory of the CTAs of the cluster, by addresses with a rank (below)
    globals: Memory

    def special(self, register: str) -> np.ndarray:
        """(T,) uint32 contents of a special register, for example "tid.x" or "laneid"."""

    def whole_warps(self) -> np.ndarray | None:
        """(T // 32,) bool of active warps, None when all are; raises Divergence when a warp is
        active in part."""

    def commit_async(self) -> None:
        """cp.async.commit_group."""

    def wait_async(self, pending: int) -> None:
        """cp.async.wait_group."""

    def arrive(self, barrier: np.ndarray, count: np.ndarray | None, wait: bool) -> np.ndarray:
        """Arrive at a named barrier of the CTA: (T,) ids, thread count (None: all of the CTA).

        Returns who may go on: everybody at once for `wait=False` (bar.arrive)."""

    def arrive_counting(
        self, barrier: np.ndarray, count: np.ndarray | None, predicate: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Like `arrive` with a wait, also counting: (who may go on, (T,) how many of those who
        met had a true predicate, (T,) how many met)."""

    def print(self, text: str, values: list[np.ndarray]) -> None:
        """Device-side print, one line a thread."""

    # mbarriers: (T,) shared addresses; addresses of shared::cluster have the CTA's rank in the bits
    # from CLUSTER_SHIFT on, plus one (0 there: the thread's own CTA).

    def mbarrier_init(self, bar: np.ndarray, count: Any) -> None:
        """Expect `count` arrivals a phase; None: not a barrier any more."""

    def mbarrier_arrive(self, bar: np.ndarray, count: Any, expected: Any) -> None:
        """Add `expected` bytes to what the phase waits for, then `count` arrivals."""

    def mbarrier_done(self, bar: np.ndarray, parity: Any) -> np.ndarray:
        """(T,) bool: is the phase of this parity over?"""

    # Bulk copies. `tensor` is a (T,) generic address of a tensor map; coordinates are arrays or
    # scalars, innermost first; `mask` names the CTAs of the cluster that receive a copy each,
    # with their own barrier at the same offset. They take effect when their bytes are counted.

    def tensor_load(
        self, dst: np.ndarray, tensor: np.ndarray, coordinates: tuple[Any, ...], bar: np.ndarray,
        mask: Any,
    ) -> None: ...  # fmt: skip

    def tensor_store(
        self, tensor: np.ndarray, coordinates: tuple[Any, ...], src: np.ndarray, op: str | None
    ) -> None: ...

    def bulk_load(
        self, dst: np.ndarray, src: np.ndarray, size: Any, bar: np.ndarray, mask: Any
    ) -> None: ...

    def bulk_store(
        self, dst: np.ndarray, src: np.ndarray, size: Any, op: str | None, dtype: str | None
    ) -> None: ...

    def bulk_share(self, dst: np.ndarray, src: np.ndarray, size: Any, bar: np.ndarray) -> None:
        """From the own shared memory to that of another CTA, whose `bar` counts the bytes."""

    def bulk_commit(self) -> None: ...
    def bulk_wait(self, pending: int, reading: bool) -> None:
        """Wait for this thread's groups of bulk stores; `reading`: until their source is free."""

    # wgmma, and what lies between ordinary accesses to shared memory and asynchronous ones.

    def fetch_chunks(self, addresses: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """(warpgroups, chunks, 16) bytes at (warpgroups, chunks) shared addresses, read by the
        async proxy for the warpgroups that are `whole`."""

    def fence_proxy_async(self) -> None:
        """fence.proxy.async: what the active threads wrote before is seen by the async proxy."""

    def wgmma_fence(self) -> None: ...
    def wgmma_commit(self) -> None: ...
    def wgmma_wait(self, pending: int) -> None: ...

    # Clusters.

    def cluster_address(self, address: Any, rank: Any) -> np.ndarray:
        """mapa: the address in the shared memory of CTA `rank` of the cluster."""

    def cluster_arrive(self) -> None: ...
    def cluster_done(self) -> np.ndarray:
        """(T,) bool: has every thread of the cluster arrived?"""

    def set_registers(self, count: int, grow: bool) -> None:
        """setmaxnreg: a warpgroup gives back registers, or waits for them."""


CLUSTER_SHIFT = 24
OWN = 0xFF  # where the rank would be, in addresses of a CTA's own memory; see `Program.ranked`
