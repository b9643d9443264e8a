"""mbarriers: phases that wait for arrivals and for bytes of asynchronous copies."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, SupportsIndex

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.nodes import Block, While
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.bounds import Bound, Bounded
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.indexing import integer_operand
from tensorcore_dsl.lang.pointer import peer_address, rank_bounds
from tensorcore_dsl.lang.tiles import Tile, shared
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.values import Element, Scalar, Struct

MAX_COUNT = (1 << 20) - 1  # arrivals and pending bytes of one phase


def mbarriers(count: int) -> MbarrierArray:
    """Mbarriers in shared memory, not yet initialised.

    One thread initialises each with `init(arrivals)`; `fence_mbarrier_init` and a barrier of the
    CTA follow before others use it.

    Parameters
    ----------
    count : int
        Known at compile time; 8 bytes each.

    Returns
    -------
    MbarrierArray
        `barriers[i]` has `init(count)`, `arrive(count=None)`, `arrive_drop(count=None)`,
        `arrive_expect_tx(bytes)`, `arrive_cp_async()`, `complete_tx(bytes)`, `test(parity)`,
        `wait(parity)` and `remote(rank)`. A new barrier is in phase 0, so that a
        wait for parity 1 returns at once.

    Raises
    ------
    OperandError
        A count that is not known at compile time.

    See Also
    --------
    tma_load : With an example.

    Notes
    -----
    Section 9.7.13.15 of the PTX manual.
    """
    return MbarrierArray(shared(count, dtypes.u64, align=8))


class Mbarrier(Bounded):
    """An mbarrier in the shared memory of this CTA, or (`remote`) of another CTA of the cluster.

    A phase ends when its arrivals are complete and the bytes that it waits for have arrived; then
    the next phase begins, and expects as many arrivals.

    See Also
    --------
    tensorcore_dsl.tma_load : With an example.
    """

    parts, described = ("address",), "an mbarrier"

    def __init__(self, address: Scalar, in_cluster: bool = False, bounds: tuple[Bound, ...] = ()) -> None:
        self.address, self.in_cluster, self.bounds = address, in_cluster, bounds

    def init(self, count: SupportsIndex) -> None:
        """Set the arrivals that end a phase. One thread initialises, then the CTA synchronises.

        Parameters
        ----------
        count : integer
            1 to 2**20 - 1.

        Raises
        ------
        OperandError
            Another count, or a remote barrier.
        """
        self._check_own("init")
        count = _count(count, "the arrivals of a phase")
        emit(names.MBARRIER_INIT, self.accessed(), count)

    def arrive(self, count: SupportsIndex | None = None, *, pred: Any = None) -> None:
        """Arrive once, or `count` times.

        Parameters
        ----------
        count : integer, optional
            None: once.
        pred : predicate, optional
            Arrive only where it holds.

        Raises
        ------
        OperandError
            A count below 1.
        EmulationError
            In emulation: more arrivals than a phase expects.
        """
        self._arrive(count, pred, drops=False)

    def arrive_drop(self, count: SupportsIndex | None = None, *, pred: Any = None) -> None:
        """Arrive once, or `count` times, for the last time: later phases expect fewer arrivals.

        Parameters
        ----------
        count : integer, optional
            None: once. The phases after this one expect at least one arrival still.
        pred : predicate, optional
            Arrive only where it holds.

        Raises
        ------
        OperandError
            A count below 1.
        EmulationError
            In emulation: more arrivals than a phase expects, or all of them.
        """
        self._arrive(count, pred, drops=True)

    def _arrive(self, count: SupportsIndex | None, pred: Any, drops: bool) -> None:
        count = None if count is None else _count(count, "the arrivals")
        name = names.mbarrier_arrive(self.in_cluster, count is not None, drops)
        address = self.accessed(pred=pred)
        operands = [address] if count is None else [address, count]
        emit(name, *operands, pred=pred)

    def arrive_cp_async(self, *, noinc: bool = False, pred: Any = None) -> None:
        """Arrive once, when all `tc.cp_async` copies so far of this thread are complete.

        The thread goes on at once. Whoever waits for the phase sees what the copies wrote.

        Parameters
        ----------
        noinc : bool
            True: `init` has counted the arrival. False: the phase expects one arrival more.
        pred : predicate, optional
            Arrive only where it holds.

        Raises
        ------
        OperandError
            A remote barrier.
        """
        self._check_own("arrive_cp_async")
        emit(names.cp_async_arrive(noinc), self.accessed(pred=pred), pred=pred)

    def complete_tx(self, bytes: SupportsIndex, *, pred: Any = None) -> None:
        """Count `bytes` as come, without a copy: they will not come, or came in another way.

        Parameters
        ----------
        bytes : integer
            0 to 2**20 - 1, which the phase waits for.
        pred : predicate, optional
            Count only where it holds.

        Raises
        ------
        OperandError
            Another number of bytes.
        """
        bytes = _count(bytes, "the bytes that have come", least=0)
        name = names.mbarrier_complete_tx(self.in_cluster)
        emit(name, self.accessed(pred=pred), bytes, pred=pred)

    def arrive_expect_tx(self, bytes: SupportsIndex, *, pred: Any = None) -> None:
        """Arrive once, and add `bytes` of asynchronous copies to the bytes that the phase waits for.

        Parameters
        ----------
        bytes : integer
            0 to 2**20 - 1.
        pred : predicate, optional
            Arrive only where it holds.

        Raises
        ------
        OperandError
            Another number of bytes, or a remote barrier.
        """
        self._check_own("arrive_expect_tx")
        bytes = _count(bytes, "the bytes that a phase waits for", least=0)
        emit(names.MBARRIER_ARRIVE_EXPECT_TX, self.accessed(pred=pred), bytes, pred=pred)

    def test(self, parity: SupportsIndex) -> Element:
        """True if the phase of this parity has ended. The call does not wait.

        Parameters
        ----------
        parity : integer
            0 or 1.

        Returns
        -------
        predicate
            True if it has.

        Raises
        ------
        OperandError
            Another parity, or a remote barrier.
        """
        self._check_own("test")
        return emit(names.MBARRIER_TEST_WAIT, self.accessed(), _parity(parity))  # type: ignore[no-any-return]

    def wait(self, parity: SupportsIndex) -> None:
        """Wait while the barrier is in a phase of this parity.

        Phases alternate between parity 0 and 1. A new barrier is in phase 0, so a wait for parity 1
        returns at once. A wait cannot tell a phase from the one two later.

        Parameters
        ----------
        parity : integer
            0 or 1.

        Raises
        ------
        OperandError
            Another parity, or a remote barrier.
        Deadlock
            In emulation: the phase never ends.
        """
        self._check_own("wait")
        build = builder()
        parity, address = _parity(parity), self.accessed()
        loop = While(Block(), build.scalar(True).value, Block())
        build.append(loop)
        with build.inside(loop.test):
            over = emit(names.MBARRIER_TRY_WAIT, address, parity)
            loop.condition = arithmetic.logical_not(build, over).value

    def remote(self, rank: SupportsIndex) -> Mbarrier:
        """Return this barrier of CTA `rank` of the cluster, to arrive at.

        Parameters
        ----------
        rank : integer
            Of the CTA in the cluster.

        Returns
        -------
        Mbarrier
            It has `arrive`, `arrive_drop` and `complete_tx` only.

        Raises
        ------
        OperandError
            The barrier is another CTA's already; no such rank.
        """
        if self.in_cluster:
            raise OperandError("the mbarrier is another CTA's already")
        bounds = (*self.bounds, *rank_bounds(rank))
        return Mbarrier(peer_address(self.address, rank), True, bounds)

    def _check_own(self, method: str) -> None:
        if self.in_cluster:
            raise OperandError(
                f"{method}() works on the CTA's own mbarriers; a remote one has only arrive(), "
                "arrive_drop() and complete_tx()"
            )


class MbarrierArray(Struct):
    """Several mbarriers: `barriers[i]`."""

    parts, described = ("tile",), "an array of mbarriers (barriers[0] is one)"

    def __init__(self, tile: Tile) -> None:
        self.tile = tile

    def __repr__(self) -> str:
        return self.described

    def __len__(self) -> int:
        return self.tile.shape[0]

    def __getitem__(self, index: SupportsIndex) -> Mbarrier:
        element = self.tile.at(index)
        return Mbarrier(element.address, bounds=element.bounds)


def name_barriers(value: Any, name: str, depth: int) -> None:
    """Call mbarriers by the variable that they are assigned to, in the emulator's messages.

    value: a `Mbarrier` or `MbarrierArray`. depth: calls around the assignment. The first name of
    the least depth counts.
    """
    known, single = builder().kernel.barriers, isinstance(value, Mbarrier)
    start = builder().static_offset(value.address if single else value.tile.origin)
    if start is None:
        return
    for i, label in enumerate([name] if single else [f"{name}[{i}]" for i in range(len(value))]):
        new = depth, label
        known[start + 8 * i] = min(known.get(start + 8 * i, new), new, key=itemgetter(0))


def _parity(value: Any) -> Any:
    value = integer_operand(value, dtypes.u32, "the parity of a phase")
    if not isinstance(value, Scalar) and value not in (0, 1):
        raise OperandError(f"the parity of a phase is 0 or 1, not {value}")
    return value


def _count(value: Any, what: str, least: int = 1) -> Any:
    value = integer_operand(value, dtypes.u32, what)
    if not isinstance(value, Scalar) and not least <= value <= MAX_COUNT:
        raise OperandError(f"{what} are {least} to {MAX_COUNT}, not {value}")
    return value


def fence_mbarrier_init() -> None:
    """Make initialised mbarriers visible to the cluster and to asynchronous copies.

    Raises
    ------
    ArchError
        A target before sm_90.

    See Also
    --------
    tma_load : With an example.

    Notes
    -----
    `fence.mbarrier_init.release.cluster`, section 9.7.13.4 of the PTX manual.
    """
    emit(names.FENCE_MBARRIER_INIT)
