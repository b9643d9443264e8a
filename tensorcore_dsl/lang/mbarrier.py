"""mbarriers: phases that wait for arrivals and for bytes of asynchronous copies."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.ir.nodes import Block, While
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.pointer import peer_address
from tensorcore_dsl.lang.tiles import Tile, shared
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import Element, Scalar, Struct


def mbarriers(count: int) -> MbarrierArray:
    """`count` mbarriers in shared memory, not yet initialised."""
    return MbarrierArray(shared(count, dtypes.u64, align=8))


class Mbarrier(Struct):
    """An mbarrier in the shared memory of this CTA, or (`remote`) of another CTA of the cluster."""

    parts = ("address",)

    def __init__(self, address: Scalar, in_cluster: bool = False) -> None:
        self.address, self.in_cluster = address, in_cluster

    def init(self, count: Any) -> None:
        """Set the arrivals that end a phase. One thread initialises, then the CTA synchronises."""
        emit(names.MBARRIER_INIT, self.address, count)

    def arrive(self, count: Any = None, *, pred: Any = None) -> None:
        """Arrive once, or `count` times."""
        name = names.mbarrier_arrive(self.in_cluster, counted=count is not None)
        operands = [self.address] if count is None else [self.address, count]
        emit(name, *operands, pred=pred)

    def arrive_expect_tx(self, bytes: Any, *, pred: Any = None) -> None:
        """Arrive once, and add `bytes` of asynchronous copies to what the phase waits for."""
        emit(names.MBARRIER_ARRIVE_EXPECT_TX, self.address, bytes, pred=pred)

    def test(self, parity: Any) -> Element:
        """Has the phase of this parity ended? A predicate, without waiting."""
        return emit(names.MBARRIER_TEST_WAIT, self.address, _parity(parity))  # type: ignore[no-any-return]

    def wait(self, parity: Any) -> None:
        """Wait while the barrier is in a phase of this parity.

        Phases alternate between parity 0 and 1. A new barrier is in phase 0, so a wait for parity 1
        returns at once. A wait cannot tell a phase from the one two later.
        """
        build = builder()
        parity = _parity(parity)
        loop = While(Block(), build.scalar(True).value, Block())
        build.append(loop)
        with build.inside(loop.test):
            over = emit(names.MBARRIER_TRY_WAIT, self.address, parity)
            loop.condition = arithmetic.logical_not(build, over).value

    def remote(self, rank: Any) -> Mbarrier:
        """The same barrier in CTA `rank` of the cluster."""
        return Mbarrier(peer_address(self.address, rank), True)


class MbarrierArray(Struct):
    """Several mbarriers: `barriers[i]`."""

    parts = ("tile",)

    def __init__(self, tile: Tile) -> None:
        self.tile = tile

    def __len__(self) -> int:
        return self.tile.shape[0]

    def __getitem__(self, index: Any) -> Mbarrier:
        return Mbarrier(self.tile.at(index).address)


def _parity(value: Any) -> Any:
    return builder().convert(value, dtypes.u32) if isinstance(value, Scalar) else int(value)


def fence_mbarrier_init() -> None:
    """Make initialised mbarriers visible to the cluster and to asynchronous copies."""
    emit(names.FENCE_MBARRIER_INIT)
