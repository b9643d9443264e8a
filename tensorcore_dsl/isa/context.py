"""Interface of the machine that runs instructions, for their semantics.

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

from collections.abc import Callable
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

    def location(self, addresses: np.ndarray) -> np.ndarray:
        """(T,) addresses on the host, which are the same in all launches."""


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
        """The elements of `size` bytes in the chunks that `instr` reads through the async proxy for
        the warpgroups that are `whole`.

        out: (warpgroups, lines, elements of a line in memory) words, or with `across` these axes
        exchanged."""

    def note_chunks(self, instr: Instruction, chunks: Chunks, whole: np.ndarray) -> None:
        """Count what `read_chunks` has read, and show it to the checks: the products go on reading
        until they have been waited for."""


class AsyncCopies(Protocol):
    """cp.async and its groups."""

    def issue(
        self, ctx: Context, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> None:
        """Copy `size` bytes to shared `target` from global `source`, of which `valid` (T,) are
        read and the rest is zero. Takes effect at the wait."""

    def commit(self) -> None: ...
    def wait(self, pending: int) -> None: ...
    def arrive(self, bar: np.ndarray, counted: bool) -> None:
        """Arrive at the mbarriers `bar` when the threads' copies so far are complete.

        counted: the phase expects this arrival; otherwise it expects one more first.
        """


class AsyncStores(Protocol):
    """Stores and reductions in the cluster, whose bytes the mbarrier `bar` of the same CTA counts.
    They take effect when these are counted."""

    def store(self, address: np.ndarray, values: np.ndarray, bar: np.ndarray) -> None:
        """Store (count, T) words."""

    def update(self, ctx: Context, address: np.ndarray, value: Any, bar: np.ndarray, update: Any) -> None:
        """word = update(word, value), atomically, in another CTA."""


class NamedBarriers(Protocol):
    """Named barriers of the CTA: (T,) numbers and thread counts (None: all of the CTA)."""

    def arrive(self, barrier: np.ndarray, count: np.ndarray | None, wait: bool) -> np.ndarray:
        """Who may go on: all active threads at once for `wait=False` (bar.arrive)."""

    def arrive_counting(
        self, barrier: np.ndarray, count: np.ndarray | None, predicate: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Like `arrive` with a wait, also counting: (who may go on, (T,) how many of those who
        met had a true predicate, (T,) how many met)."""


class Mbarriers(Protocol):
    """mbarriers by (T,) shared addresses; an address of shared::cluster has the CTA's rank plus one
    in the bits from CLUSTER_SHIFT on (0 there: the thread's own CTA). early: (T,) bool, who was told
    by the last `done` that copies are under way, though no other thread can bring the phase on."""

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
        """Count `size` bytes as come, without a copy."""

    def done(self, bar: np.ndarray, parity: Any) -> np.ndarray:
        """(T,) bool: is the phase of this parity over?"""


class BulkCopies(Protocol):
    """Bulk copies. `tensor` is a (T,) generic address of a tensor map; coordinates are arrays or
    scalars, innermost first; `mask` names the CTAs of the cluster that receive a copy each, with
    their own barrier at the same offset. Loads take effect when their bytes are counted."""

    def tensor_load(
        self, dst: np.ndarray, tensor: np.ndarray, coordinates: tuple[Any, ...], bar: np.ndarray, mask: Any
    ) -> None: ...

    def tensor_store(
        self, tensor: np.ndarray, coordinates: tuple[Any, ...], src: np.ndarray, op: str | None
    ) -> None: ...

    def load(self, dst: np.ndarray, src: np.ndarray, size: Any, bar: np.ndarray, mask: Any) -> None: ...

    def store(
        self, dst: np.ndarray, src: np.ndarray, size: Any, op: str | None, dtype: str | None
    ) -> None: ...

    def copy_to_cta(self, dst: np.ndarray, src: np.ndarray, size: Any, bar: np.ndarray) -> None:
        """From the own shared memory to that of another CTA, whose `bar` counts the bytes."""

    def commit(self) -> None: ...
    def wait(self, pending: int, reading: bool) -> None:
        """Wait for this thread's groups of bulk stores; `reading`: until their source is free."""


class TensorMaps(Protocol):
    """Tensor maps in global memory, by (T,) addresses, and what fences of their proxy order."""

    def replaced(self, ctx: Context, addresses: np.ndarray) -> None:
        """Threads have changed a field."""

    def released(self, ctx: Context, addresses: np.ndarray | None = None) -> None:
        """Threads hand on these maps; None: those that they have changed."""

    def acquired(self, ctx: Context, addresses: np.ndarray) -> None:
        """Tensor copies of the block may read these maps as they are now."""


class AsyncMma(Protocol):
    """Order and groups of asynchronous matrix products."""

    def fence(self) -> None: ...
    def commit(self) -> None: ...
    def wait(self, pending: int) -> None: ...


class Dependency(Protocol):
    """The launch in front of this one, and the launch behind it (programmatic dependent launch)."""

    def wait(self) -> None:
        """The active threads wait until the launch in front has ended."""

    def launch_dependents(self) -> None:
        """The launch behind may start, as far as the CTAs of the active threads are concerned."""


class Clusters(Protocol):
    """The CTAs of the thread's cluster."""

    def arrive(self) -> None: ...
    def done(self) -> np.ndarray:
        """(T,) bool: has every thread of the cluster arrived?"""

    def set_registers(self, instr: Instruction, count: int, grow: bool) -> None:
        """A warpgroup releases registers, or waits for more."""


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
    exited: np.ndarray | None  # threads that left the kernel; None: nobody did
    unusual: bool  # choices that PTX leaves open are made in another way than by default
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
        """(T // size,) bool of the units of `size` threads that have an active one, and the first of
        these that is active only in part, if there is one."""

    def fence(self, instr: Instruction) -> None:
        """A fence of the active threads: between their accesses, or between proxies."""

    def print(self, text: int, values: list[np.ndarray]) -> None:
        """Device-side print, one line a thread; `text` is the number of a format string."""

    def refuse_index(self, text: int, outside: np.ndarray, index: Any, extent: Any) -> None:
        """Raise the error of a check for the first thread of `outside`, with its index and the
        extent; `text` is the number of a format string (see `isa.bounds`)."""


CLUSTER_SHIFT = 24
FARTHEST = 0xFD  # the greatest rank that fits into an address, which has the rank plus one
OWN = 0xFF  # where the rank would be, in addresses of a CTA's own memory; see `Program.ranked`
