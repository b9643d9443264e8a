"""Thread block clusters: their size and their barrier."""

from __future__ import annotations

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import Scalar


def cluster_size(*size: int) -> None:
    """Fix the number of CTAs of a cluster, in up to three axes (`.reqnctapercluster`)."""
    if not 1 <= len(size) <= 3 or not all(type(n) is int for n in size):
        given = ", ".join(n.described if isinstance(n, Scalar) else repr(n) for n in size)
        raise OperandError(
            f"tc.cluster_size takes one to three compile-time integers, not ({given}); a tc.Const "
            f"parameter is one"
        )
    x, y, z = [*size, 1, 1][:3]
    kernel = builder().kernel
    if kernel.cluster not in (None, (x, y, z)):
        raise OperandError(f"the cluster has {kernel.cluster} CTAs already; {(x, y, z)} were given")
    kernel.cluster = (x, y, z)


def cluster_arrive() -> None:
    """Arrive at the cluster's barrier."""
    emit(names.CLUSTER_ARRIVE)


def cluster_wait() -> None:
    """Wait until every thread of the cluster has arrived."""
    emit(names.CLUSTER_WAIT)


def cluster_sync() -> None:
    """Barrier of all threads of the cluster: arrive and wait."""
    cluster_arrive()
    cluster_wait()
