"""Interface of the machine that runs instructions, as their semantics see it.

`execute(ctx, instr, *operands)` gets register arrays of raw bits and returns the results:

* a scalar operand is `(T,)`, T being all threads that run together; a fragment or vector is
  `(registers, T)`; elements are bool for predicates and uint16, uint32 or uint64 otherwise;
* constants come as NumPy scalars of the same width, immediates as Python ints, an address as
  a `(T,)` array of uint32 (shared) or uint64 (global) with its offset added;
* T is a multiple of 32; thread t is lane t % 32 of warp t // 32;
* `ctx.active` is a bool array of the threads that execute (None: all do). Results of other
  threads are ignored, but memory must not be touched for them;
* instructions with the effect "blocking" return the bool array of the active threads that may go on
  (those that may not are asked again later), or (array, *results) where they have results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.isa.descriptor import Chunks, SharedTiles
from tensorcore_dsl.isa.spec import Instruction


class Memory(Protocol):
    """Byte-addressed memory of one state space; every access is checked."""

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


class GlobalMemory(Memory, Protocol):
    """The arrays of a launch."""

    def home(self, addresses: np.ndarray) -> np.ndarray:
        """(T,) addresses on the host, which are the same in all launches."""

    def each_rank(self, ctx: Context, instr: Instruction, addresses: Any) -> list[np.ndarray]:
        """The memory of each rank, as (T,) addresses, that multimem addresses stand for."""


class SharedMemory(Memory, Protocol):
    """Shared memory of the thread's own CTA."""

    def load_matrices(
        self, ctx: Context, addresses: np.ndarray, matrices: int, transposed: bool
    ) -> np.ndarray:
        """(matrices, T) of 32-bit words as ldmatrix returns them, of 8x8 matrices of 16 bits; lane
        8 m + r gives the address of row r of matrix m."""

    def read_chunks(
        self, instr: Instruction, chunks: Chunks, whole: np.ndarray, out: np.ndarray, size: int, across: bool
    ) -> None:
        """Read elements of `size` bytes from chunks, through the async proxy.

        whole: (warpgroups,) bool of the warpgroups that execute `instr`.

        out: (warpgroups, lines, elements of a line in memory) words, or with `across` these axes
        exchanged.
        """

    def note_chunks(self, instr: Instruction, chunks: Chunks, whole: np.ndarray) -> None:
        """Report the reads of `read_chunks` to the checks. They last until the products are waited for."""


class AsyncCopies(Protocol):
    """cp.async and its groups."""

    def issue(
        self, ctx: Context, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> None:
        """Copy `size` bytes to shared `target` from global `source`; it takes effect at the wait.

        valid: (T,) bytes that are read; the rest is zero.
        """

    def commit(self) -> None: ...
    def wait(self, pending: int) -> None: ...
    def arrive(self, bar: np.ndarray, counted: bool) -> None:
        """Arrive at the mbarriers `bar` when the threads' copies so far are complete.

        counted: the phase expects this arrival; otherwise it expects one more first.
        """


class AsyncStores(Protocol):
    """Asynchronous stores and reductions to a CTA of the cluster.

    The mbarrier `bar` of the target CTA counts their bytes. They take effect at this moment.
    """

    def store(self, address: np.ndarray, values: np.ndarray, bar: np.ndarray) -> None:
        """Store (count, T) words."""

    def update(self, ctx: Context, address: np.ndarray, value: Any, bar: np.ndarray, update: Any) -> None:
        """word = update(word, value), atomically, in another CTA."""


class NamedBarriers(Protocol):
    """Named barriers of the CTA: (T,) numbers and thread counts (None: all of the CTA)."""

    def arrive(self, barrier: np.ndarray, count: np.ndarray | None, wait: bool) -> np.ndarray:
        """Arrive. Return (T,) bool of the threads that may go on: all active ones without `wait`."""

    def arrive_counting(
        self, barrier: np.ndarray, count: np.ndarray | None, predicate: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrive, wait and count. Return three arrays (T,).

        They hold the threads that may go on, the participants with a true predicate, and all participants.
        """


class Mbarriers(Protocol):
    """mbarriers by (T,) shared addresses.

    An address of shared::cluster holds the CTA's rank plus one in the bits from CLUSTER_SHIFT on; 0 is
    the thread's CTA. `early`, (T,) bool, marks threads that wait only for copies under way, as of the last
    `done`.
    """

    early: np.ndarray

    def init(self, bar: np.ndarray, count: Any) -> None:
        """Expect `count` arrivals a phase; None: invalidate the barrier."""

    def arrive(
        self, bar: np.ndarray, count: Any, expected: Any, drops: bool = False, ends: bool = True
    ) -> None:
        """Let the phase expect `expected` more bytes, then arrive `count` times.

        drops: later phases expect `count` fewer arrivals. ends: the arrivals may end the phase.
        """

    def complete_tx(self, bar: np.ndarray, size: Any) -> None:
        """Count `size` bytes as arrived, without a copy."""

    def done(self, bar: np.ndarray, parity: Any) -> np.ndarray:
        """Return (T,) bool: whether the phase of this parity is over."""


class BulkCopies(Protocol):
    """Bulk copies.

    `tensor` is a (T,) generic address of a tensor map. Coordinates are arrays or scalars, innermost first,
    and so are the offsets of im2col mode, which are None in tile mode.
    Each CTA of the multicast `mask` receives a copy and counts it at its barrier of the same offset. Loads
    take effect when their bytes are counted.
    """

    def tensor_load(
        self, dst: Any, tensor: Any, coordinates: Sequence[Any], offsets: Any, bar: Any, mask: Any
    ) -> None: ...

    def tensor_store(
        self, tensor: Any, coordinates: Sequence[Any], offsets: Any, src: Any, op: str | None
    ) -> None: ...

    def load(self, dst: np.ndarray, src: np.ndarray, size: Any, bar: np.ndarray, mask: Any) -> None: ...

    def store(
        self, dst: np.ndarray, src: np.ndarray, size: Any, op: str | None, dtype: str | None
    ) -> None: ...

    def copy_to_cta(self, dst: np.ndarray, src: np.ndarray, size: Any, bar: np.ndarray) -> None:
        """Copy from the CTA's shared memory to another CTA, whose `bar` counts the bytes."""

    def commit(self) -> None: ...
    def wait(self, pending: int, reading: bool) -> None:
        """Wait for this thread's groups of bulk stores; `reading`: until their source is free."""


class TensorMaps(Protocol):
    """Tensor maps in global memory, by (T,) addresses, with the fences of the tensormap proxy."""

    def replaced(self, ctx: Context, addresses: np.ndarray) -> None:
        """Note that threads have changed a field."""

    def released(self, ctx: Context, addresses: np.ndarray | None = None) -> None:
        """Release these maps; None: all that the threads have changed."""

    def acquired(self, ctx: Context, addresses: np.ndarray) -> None:
        """Acquire these maps: the CTA's tensor copies may read them as they are now."""


class AsyncMma(Protocol):
    """Order and groups of asynchronous matrix products."""

    def fence(self) -> None: ...
    def commit(self) -> None: ...
    def wait(self, pending: int) -> None: ...


class Dependency(Protocol):
    """The preceding and the dependent launch (programmatic dependent launch)."""

    def wait(self) -> None:
        """Let the active threads wait until the preceding launch has ended."""

    def launch_dependents(self) -> None:
        """Allow the dependent launch to start, for the CTAs of the active threads."""


class Clusters(Protocol):
    """The CTAs of the thread's cluster."""

    def arrive(self) -> None: ...
    def done(self) -> np.ndarray:
        """Return (T,) bool: whether every thread of the cluster has arrived."""

    def set_registers(self, instr: Instruction, count: int, grow: bool) -> np.ndarray:
        """Let a warpgroup release registers, or wait for more: (T,) bool of the threads that go on."""


class Team(Protocol):
    """Threads that share the work of one step."""

    def share_mask(self, mask: np.ndarray, cost: float, work: Callable[[np.ndarray, int], Any]) -> list[Any]:
        """Share a mask among threads: results of `work(part of the mask, number)`, in order.

        cost: nanoseconds of one unit that is True in the mask, roughly.
        """


class Context(Protocol):
    """The machine as one instruction sees it."""

    arch: str
    threads: int
    active: np.ndarray | None
    exited: np.ndarray | None  # threads that left the kernel; None: no thread did
    unusual: bool  # make the unusual choice where PTX leaves one open
    carry: np.ndarray  # (T,) uint8, the carry of each thread; `semantics.UNSET` before the first
    shared: SharedMemory
    cluster: Memory  # shared memory of the CTAs of the cluster, by addresses with a rank
    globals: GlobalMemory
    tiles: SharedTiles
    async_copies: AsyncCopies
    async_stores: AsyncStores
    barriers: NamedBarriers
    mbarriers: Mbarriers
    bulk: BulkCopies
    maps: TensorMaps
    async_mma: AsyncMma
    clusters: Clusters
    dependency: Dependency
    team: Team

    def special(self, register: str) -> np.ndarray:
        """(T,) uint32 contents of a special register, for example "tid.x" or "laneid"."""

    def whole_warps(self) -> np.ndarray | None:
        """(T // 32,) bool of active warps, None when all are; raises Divergence when a warp is
        active in part."""

    def units(self, size: int) -> tuple[np.ndarray, int | None]:
        """Return (T // size,) bool of the units of `size` threads with an active thread.

        The second result is the first unit that is active only in part, None if there is none.
        """

    def fence(self, instr: Instruction) -> None:
        """Execute a fence of the active threads, between their accesses or between proxies."""

    def print(self, text: int, values: list[np.ndarray]) -> None:
        """Print one line for each thread; `text` is the index of a format string."""

    def refuse_index(self, text: int, outside: np.ndarray, index: Any, extent: Any) -> None:
        """Raise a check's error for the first thread of `outside`, with its index and the extent.

        `text` is the index of a format string (see `isa.bounds`).
        """


CLUSTER_SHIFT = 24
# A multimem address in emulation: the address in the array of rank 0, and the number of ranks above.
MULTIMEM_SHIFT = 57
FARTHEST = 0xFD  # the greatest rank that fits into an address, which holds the rank plus one
OWN = 0xFF  # marks the CTA's memory in place of a rank; see `Program.ranked`


def active_threads(ctx: Context) -> np.ndarray:
    """(T,) bool: the threads that execute the instruction."""
    return np.ones(ctx.threads, bool) if ctx.active is None else ctx.active
