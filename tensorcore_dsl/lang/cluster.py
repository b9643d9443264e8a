"""Thread block clusters: their size and their barrier."""

from __future__ import annotations

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import Scalar


def cluster_size(*size: int) -> None:
    """Fix the number of CTAs of a cluster, in up to three axes.

    The launch needs no `cluster=` then, and ranks are checked when compiling.

    Parameters
    ----------
    *size : int
        One to three numbers known at compile time: CTAs along x, y and z.

    Raises
    ------
    OperandError
        Another number of values, run-time values, or a size other than an earlier one.

    Notes
    -----
    `.reqnctapercluster`, section 11.7.1 of the PTX manual; sm_90 or later.

    Examples
    --------
    >>> @tc.kernel
    ... def ranks(out: tc.Array):
    ...     tc.cluster_size(2)
    ...     out[tc.blockIdx.x] = tc.cluster_rank()
    >>> out = np.zeros(4, np.int32)
    >>> ranks[4, 1](out)
    >>> out
    array([0, 1, 0, 1], dtype=int32)
    """
    if not 1 <= len(size) <= 3 or not all(type(n) is int for n in size):
        shown = ", ".join(n.described if isinstance(n, Scalar) else repr(n) for n in size)
        raise OperandError(
            f"tc.cluster_size takes one to three compile-time integers, not ({shown}); a tc.Const "
            f"parameter is one"
        )
    x, y, z = [*size, 1, 1][:3]
    kernel = builder().kernel
    if kernel.cluster not in (None, (x, y, z)):
        raise OperandError(f"the cluster has {kernel.cluster} CTAs already; {(x, y, z)} were given")
    kernel.cluster = (x, y, z)


def cluster_arrive() -> None:
    """Arrive at the cluster's barrier; what was written before is released to the cluster.

    Raises
    ------
    ArchError
        A target before sm_90.

    See Also
    --------
    cluster_sync : Arrive and wait, with an example.

    Notes
    -----
    `barrier.cluster.arrive.release`, section 9.7.13.3 of the PTX manual.
    """
    emit(names.CLUSTER_ARRIVE)


def cluster_wait() -> None:
    """Wait until every thread of the cluster has arrived.

    Raises
    ------
    ArchError
        A target before sm_90.
    Deadlock
        In emulation: threads that do not arrive.

    See Also
    --------
    cluster_sync : Arrive and wait, with an example.

    Notes
    -----
    `barrier.cluster.wait.acquire`, section 9.7.13.3 of the PTX manual.
    """
    emit(names.CLUSTER_WAIT)


def cluster_sync() -> None:
    """Barrier of all threads of the cluster: arrive and wait.

    Raises
    ------
    ArchError
        A target before sm_90.
    Deadlock
        In emulation: threads that do not arrive.

    Notes
    -----
    `barrier.cluster`, section 9.7.13.3 of the PTX manual.

    Examples
    --------
    Each CTA of a pair reads what the other one has written to its shared memory:

    >>> @tc.kernel
    ... def exchange(out: tc.Array):
    ...     tc.cluster_size(2)
    ...     cell = tc.shared(1, tc.s32)
    ...     cell[0] = tc.cluster_rank() + 10
    ...     tc.cluster_sync()
    ...     out[tc.blockIdx.x] = cell.remote(1 - tc.cluster_rank())[0]
    ...     tc.cluster_sync()
    >>> out = np.zeros(2, np.int32)
    >>> exchange[2, 1](out)
    >>> out
    array([11, 10], dtype=int32)
    """
    cluster_arrive()
    cluster_wait()
