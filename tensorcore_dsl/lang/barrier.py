"""Barriers of a CTA and of the lanes of a warp, and the fence between proxies."""

from __future__ import annotations

from typing import SupportsIndex

from tensorcore_dsl.errors import OperandError, listing
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.lanes import ALL_LANES
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values.operands import describe


def barrier(id: SupportsIndex = 0, threads: SupportsIndex | None = None) -> None:
    """Wait for all threads of the CTA, or for `threads` of them, at barrier `id`.

    Writes to shared memory before it are visible after it to the threads that waited.

    Parameters
    ----------
    id : integer
        0 to 15, the barrier; 0 is the one that all threads of the CTA use.
    threads : integer, optional
        How many threads arrive, a multiple of 32; None: all of the CTA.

    Raises
    ------
    OperandError
        Operands that are no integers.
    Divergence, Deadlock
        In emulation: threads that do not arrive.

    Notes
    -----
    `bar.sync`, section 9.7.13.1 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def reverse(x: tc.Array):
    ...     tile, i = tc.shared(64, x.dtype), tc.threadIdx.x
    ...     tile[i] = x[i]
    ...     tc.barrier()
    ...     x[i] = tile[63 - i]
    >>> x = np.arange(64, dtype=np.float32)
    >>> reverse[1, 64](x)
    >>> x[:3]
    array([63., 62., 61.], dtype=float32)
    """
    if threads is None:
        emit(names.BAR_SYNC, id)
    else:
        emit(names.BAR_SYNC_COUNT, id, threads)


def barrier_arrive(id: SupportsIndex, threads: SupportsIndex) -> None:
    """Arrive at barrier `id` of `threads` threads without waiting.

    Parameters
    ----------
    id : integer
        0 to 15, the barrier; others call `barrier(id, threads)` to wait there.
    threads : integer
        Number of threads that arrive or wait: a multiple of 32.

    Raises
    ------
    OperandError
        Operands that are no integers.

    Notes
    -----
    `bar.arrive`, section 9.7.13.1 of the PTX manual.

    Examples
    --------
    The first warp produces, the second one consumes:

    >>> @tc.kernel(threads=64)
    ... def hand_over(x: tc.Array):
    ...     tile = tc.shared(32, x.dtype)
    ...     if tc.warp_id() == 0:
    ...         tile[tc.lane_id()] = x[tc.lane_id()]
    ...         tc.barrier_arrive(1, 64)
    ...     else:
    ...         tc.barrier(1, 64)
    ...         x[tc.lane_id()] = 10 * tile[tc.lane_id()]
    >>> x = np.arange(32, dtype=np.float32)
    >>> hand_over[1, 64](x)
    >>> x[:3]
    array([ 0., 10., 20.], dtype=float32)
    """
    emit(names.BAR_ARRIVE, id, threads)


def syncwarp(mask: SupportsIndex = ALL_LANES) -> None:
    """Wait for the lanes of `mask` in this warp.

    What they wrote to memory before it is visible to them after it.

    Parameters
    ----------
    mask : integer
        A bit for each lane; all of them must execute this.

    Raises
    ------
    OperandError
        A mask that is not an integer.
    Divergence
        In emulation: lanes of the mask that do not execute it.

    Notes
    -----
    `bar.warp.sync`, section 9.7.13.2 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def rotate(x: tc.Array):
    ...     tile, i = tc.shared(32, x.dtype), tc.lane_id()
    ...     tile[i] = x[i]
    ...     tc.syncwarp()
    ...     x[i] = tile[(i + 1) % 32]
    >>> x = np.arange(32, dtype=np.float32)
    >>> rotate[1, 32](x)
    >>> x[:3], x[31]
    (array([1., 2., 3.], dtype=float32), np.float32(0.0))
    """
    emit(names.WARP_SYNC, mask)


def fence_proxy_async(space: str = "shared") -> None:
    """Order ordinary accesses before those of the async proxy: TMA and wgmma.

    Threads that stored what the async proxy reads call it, and threads that loaded what TMA
    overwrites; then they synchronise with the thread that issues the copy or the product. That
    thread may call it instead, after they have synchronised.

    Parameters
    ----------
    space : str
        The memory: "shared", this CTA's, or "global", for example where threads load an array
        whose elements a `tma_store` of the same launch replaces.

    Raises
    ------
    OperandError
        Another memory.
    ArchError
        A target before sm_90.

    See Also
    --------
    tma_store : With an example.

    Notes
    -----
    `fence.proxy.async`, section 9.7.13.4 of the PTX manual; proxies are explained in 8.6.
    """
    fences = {"shared": names.FENCE_PROXY_ASYNC, "global": names.FENCE_PROXY_ASYNC_GLOBAL}
    if not isinstance(space, str) or space not in fences:
        raise OperandError(f"a fence orders accesses to {listing(fences)}, not {describe(space)}")
    emit(fences[space])
