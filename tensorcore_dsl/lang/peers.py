"""Memory of several GPUs: arrays of peers, and signals between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import ArgumentError, OperandError, listing
from tensorcore_dsl.ir.nodes import Block, While
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.arrays import Array
from tensorcore_dsl.lang.atomics import SCOPES, reduce
from tensorcore_dsl.lang.debugging import assert_
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.pointer import Pointer, element_size
from tensorcore_dsl.lang.warp import check_choice
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import Scalar, Struct

COUNTERS = ("s32", "u32", "s64", "u64")


class PeerArray(Struct):
    """One array on each of several GPUs, which all of them read and write: symmetric memory.

    As an annotation it says that a parameter of a kernel is such an array. `peers[rank]` is the array
    of a rank, as any other array; the rank may be known at run time only.

    Parameters
    ----------
    arrays : sequence of arrays
        The array of each rank, all of one shape and type. In emulation, NumPy arrays. On a GPU,
        what `torch.distributed._symmetric_memory.rendezvous(...).get_buffer(rank, ...)` gives for
        each rank.
    rank : int, optional
        The rank of this process. None under `tc.devices`, where one call launches all ranks.
    multicast : int or True, optional
        For `multicast()`. On a GPU, the `multicast_ptr` that the rendezvous gives; under `tc.devices`, True.

    Attributes
    ----------
    arrays : tuple of Array
        By rank.
    rank : integer
        The rank that runs the kernel, known at run time.
    world : int
        The number of ranks, known when compiling.

    Raises
    ------
    ArgumentError
        No arrays, arrays of different shapes or that share memory, a rank that does not exist.

    See Also
    --------
    signal, wait_signal : Order accesses of different ranks.

    Notes
    -----
    A tensor map of `peers[rank]` is one of the maps of all ranks. The launch encodes them all.

    Examples
    --------
    Each rank copies the array of its right neighbour:

    >>> @tc.kernel
    ... def pull(peers: tc.PeerArray, out: tc.Array):
    ...     neighbour = (peers.rank + 1) % peers.world
    ...     out[tc.threadIdx.x] = peers[neighbour][tc.threadIdx.x]
    >>> x = [np.full(32, 10 * rank, np.int32) for rank in range(3)]
    >>> out = [np.zeros(32, np.int32) for rank in range(3)]
    >>> with tc.devices(3):
    ...     pull[1, 32](tc.PeerArray(x), out)
    >>> [int(of_rank[0]) for of_rank in out]
    [10, 20, 0]
    """

    parts = ("rank",)

    def __init__(self, arrays: Sequence[Any], rank: Any = None, multicast: Any = None) -> None:
        self.arrays, self.rank, self.beside = tuple(arrays), rank, multicast
        if isinstance(rank, Scalar):  # inside a kernel
            return
        shapes = {(tuple(getattr(a, "shape", ())), str(getattr(a, "dtype", ""))) for a in self.arrays}
        if len(shapes) != 1:
            raise ArgumentError(
                "a PeerArray has one array for each rank, all of one shape and type; got "
                f"{listing(sorted(f'{dtype} {shape}' for shape, dtype in shapes)) or 'none'}"
            )
        for (first, one), (second, other) in combinations(enumerate(self.arrays), 2):
            if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and np.shares_memory(one, other):
                raise ArgumentError(
                    f"the arrays of ranks {first} and {second} of a PeerArray share memory; each rank "
                    "needs its own"
                )
        if isinstance(rank, int) and not 0 <= rank < self.world:
            raise ArgumentError(f"rank {rank} of a PeerArray of {self.world} ranks does not exist")

    @property
    def world(self) -> int:
        return len(self.arrays)

    def multicast(self) -> Array:
        """The arrays of all ranks at one multimem address, for `multimem` instructions.

        Returns
        -------
        Array
            Pointers to its elements are operands of `tc.emit("multimem...")`; it is not indexed.

        Raises
        ------
        OperandError
            The launch's PeerArray has no `multicast`.

        Notes
        -----
        Sections 8.2.3 and 9.7.9.14 of the PTX manual.

        Examples
        --------
        Each rank gets the sum of the arrays of all ranks:

        >>> @tc.kernel
        ... def all_reduce(peers: tc.PeerArray, out: tc.Array):
        ...     i = tc.threadIdx.x
        ...     out[i] = tc.emit("multimem.ld_reduce.global.add.s32", peers.multicast().at(i))
        >>> x = [np.full(32, 10 ** rank, np.int32) for rank in range(3)]
        >>> out = [np.zeros(32, np.int32) for rank in range(3)]
        >>> with tc.devices(3):
        ...     all_reduce[1, 32](tc.PeerArray(x, multicast=True), out)
        >>> [int(of_rank[0]) for of_rank in out]
        [111, 111, 111]
        """
        if self.beside is None:
            raise OperandError(
                "this PeerArray has no multimem address: launch with tc.PeerArray(arrays, multicast=True) "
                "under tc.devices, and on a GPU with "
                "tc.PeerArray(arrays, rank, multicast=handle.multicast_ptr)"
            )
        first = self.arrays[0]
        address = builder().named(names.binary("add", dtypes.u64), first.address, self.beside)
        everywhere: Array = first.with_parts(address=address, argument=None)
        return everywhere

    def __getitem__(self, rank: Any) -> Any:
        if isinstance(rank, int) and not isinstance(rank, bool):
            if not 0 <= rank < self.world:
                raise OperandError(f"rank {rank} does not exist: ranks are 0 to {self.world - 1}")
            return self.arrays[rank]
        if not isinstance(rank, Scalar) or not rank.dtype.is_integer:
            raise OperandError(f"a rank is an integer, not {describe(rank)}")
        if builder().checks:
            assert_((rank >= 0) & (rank < self.world), f"a rank from 0 to {self.world - 1}")
        address = self.choose(rank, [array.address for array in self.arrays])
        array = self.arrays[0].with_parts(address=address, argument=None)
        array.peers = self, rank  # for tensor maps
        return array

    def choose(self, rank: Scalar, addresses: Sequence[Any]) -> Any:
        """The address of a rank."""
        chosen = addresses[0]
        for number, address in enumerate(addresses[1:], 1):
            chosen = arithmetic.select(builder(), rank == number, address, chosen)
        return chosen


def _check_counter(what: str, pointer: Any) -> Pointer:
    if not isinstance(pointer, Pointer) or pointer.space != "global":
        raise OperandError(f"{what} takes a pointer, peers[rank].at(...), not {describe(pointer)}")
    if pointer.dtype.name not in COUNTERS:
        raise OperandError(f"{what}: a counter is {listing(COUNTERS)}, not {pointer.dtype}")
    return pointer


def signal(pointer: Pointer, value: Any = 1, *, scope: str = "sys") -> None:
    """Add to a counter, and hand on what this thread has done so far to a thread that waits for it.

    Parameters
    ----------
    pointer : Pointer
        `peers[rank].at(...)`: an element of 32 or 64 bits in global memory of any rank.
    value : integer
        What is added.
    scope : {"sys", "gpu", "cluster", "cta"}
        The threads that may learn of it. Other ranks need "sys".

    Raises
    ------
    OperandError
        No pointer to integers of 32 or 64 bits, another scope.

    See Also
    --------
    wait_signal : With an example.

    Notes
    -----
    `red.release.sys.global.add`, sections 9.7.13.6 and 8.5 of the PTX manual. Only one thread signals
    for many: they meet first (`tc.barrier()`). A bulk copy must be complete before (`tma_store_wait`).
    """
    _check_counter("tc.signal", pointer)
    reduce("add", pointer, value, order="release", scope=scope)


def wait_signal(pointer: Pointer, value: Any, *, scope: str = "sys") -> None:
    """Wait until a counter has reached a value; learn what was done before the signals that it counts.

    Parameters
    ----------
    pointer : Pointer
        An element of 32 or 64 bits in global memory.
    value : integer
        The least value. The counter may wrap around: it has reached values up to half its range
        before its own.
    scope : {"sys", "gpu", "cluster", "cta"}
        The threads that signal. Other ranks need "sys".

    Raises
    ------
    OperandError
        No pointer to integers of 32 or 64 bits, another scope.
    Deadlock
        In emulation: no rank will ever signal.

    Notes
    -----
    A loop of `ld.acquire.sys`, sections 9.7.9.8 and 8.5 of the PTX manual. A counter is never reset: a
    launch waits for the value that all launches so far have signalled, which the host counts.

    Examples
    --------
    Each rank writes into the memory of its right neighbour, and signals:

    >>> @tc.kernel
    ... def push(x: tc.Array, inbox: tc.PeerArray, pads: tc.PeerArray, launches: tc.s32):
    ...     i, right = tc.threadIdx.x, (inbox.rank + 1) % inbox.world
    ...     inbox[right][i] = x[i]
    ...     tc.barrier()
    ...     if i == 0:
    ...         tc.signal(pads[right].at(0))
    ...         tc.wait_signal(pads[pads.rank].at(0), launches)
    ...     tc.barrier()
    ...     x[i] = inbox[inbox.rank][i]
    >>> x = [np.full(32, rank, np.int32) for rank in range(3)]
    >>> inbox = tc.PeerArray([np.zeros(32, np.int32) for rank in range(3)])
    >>> pads = tc.PeerArray([np.zeros(1, np.int32) for rank in range(3)])
    >>> with tc.devices(3):
    ...     push[1, 32](x, inbox, pads, 1)
    >>> [int(of_rank[0]) for of_rank in x]
    [2, 0, 1]
    """
    _check_counter("tc.wait_signal", pointer)
    check_choice("the scope of a wait", scope, SCOPES)
    build, dtype = builder(), pointer.dtype
    signed = dtypes.named(f"s{dtype.bits}")
    target = Scalar(build.convert(value, dtype).value, signed) if isinstance(value, Scalar) else value
    address = pointer.accessed(element_size(dtype))
    loop = While(Block(), build.scalar(True).value, Block())
    build.append(loop)
    with build.inside(loop.test):
        current = emit(names.acquire(dtype.bits, scope), address)
        loop.condition = (Scalar(current.value, signed) - target < 0).value
