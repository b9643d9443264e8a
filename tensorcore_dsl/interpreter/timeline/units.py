"""Units of an SM that warps share, and completion of asynchronous operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Unit:
    """A unit that serves one request after the other.

    Attributes
    ----------
    free : float
        When it is.
    busy : float
        Cycles in use.
    """

    free: float = 0.0
    busy: float = 0.0

    def serve(self, at: float, cycles: float) -> float:
        """Serve a request that comes at `at`; returns its end."""
        self.free = max(self.free, at) + cycles
        self.busy += cycles
        return self.free


@dataclass
class Completion:
    """Something that ends when its `pending` parts have ended; time: the end of the last so far."""

    pending: int = 0
    time: float = 0.0
    waiters: list[Callable[[], None]] = field(default_factory=list)

    def part_ends(self, at: float) -> None:
        """One of its parts ends at `at`."""
        self.pending -= 1
        self.time = max(self.time, at)
        if not self.pending:
            waiters, self.waiters = self.waiters, []
            for resume in waiters:
                resume()


@dataclass
class Groups:
    """The groups of asynchronous operations of a warp: closed groups, and the open one."""

    closed: list[Completion] = field(default_factory=list)
    open: Completion = field(default_factory=Completion)

    def close(self) -> None:
        self.closed.append(self.open)
        self.open = Completion()

    def due(self, pending: int) -> list[Completion]:
        """The groups that a wait for all but the last `pending` awaits."""
        return self.closed[: max(len(self.closed) - pending, 0)]

    def end(self, pending: int) -> None:
        """A wait for all but the last `pending` is over."""
        self.closed = self.closed[len(self.due(pending)) :]


@dataclass
class TimedProduct:
    """A product of a warpgroup: its warps' groups, tensor cycles and bytes of operands."""

    groups: list[Completion] = field(default_factory=list)
    cycles: float = 0.0
    bytes: float = 0.0
    cta: int = 0
    at: int = 0


class Multiprocessor:
    """The units of one SM."""

    def __init__(self, schedulers: int) -> None:
        self.schedulers = [Unit() for _ in range(schedulers)]
        self.tensor = [Unit() for _ in range(schedulers)]  # mma.sync, one beside each scheduler
        self.shared, self.l2, self.dram, self.tma = Unit(), Unit(), Unit(), Unit()
        self.products: list[TimedProduct] = []  # products of warpgroups that wait for the tensor cores
        self.multiplying = False
        self.product_cycles = 0.0

    def busy(self) -> dict[str, float]:
        """Cycles that each unit is in use; of several equal units the mean."""
        count = len(self.schedulers)
        mma = sum(unit.busy for unit in self.tensor) / count
        return {
            "tensor cores": self.product_cycles + mma,
            "shared memory": self.shared.busy,
            "L2 cache": self.l2.busy,
            "DRAM": self.dram.busy,
            "TMA": self.tma.busy,
            "issue": sum(unit.busy for unit in self.schedulers) / count,
        }
