"""Threads that share the work of one step of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

PART = 200_000  # nanoseconds of work that are worth another thread
OPERATION_COST, ACCESS_COST = 0.5, 8.0  # nanoseconds of a thread, roughly


class Team:
    """Up to `size` threads, which start when they are first needed and end with the block.

    What they share are compiled loops, which run without the interpreter's lock.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool: ThreadPoolExecutor | None = None

    def share(self, count: int, cost: float, work: Callable[[int, int, int], Any]) -> list[Any]:
        """What `work(first, stop, number)` returns for ranges of `count` units, in their order.

        cost: nanoseconds of a unit, roughly. number: that of the part, below `size`.
        """
        parts = max(min(self.size, count, int(count * cost / PART)), 1)
        edges = [count * i // parts for i in range(parts + 1)]
        if parts == 1:
            return [work(0, count, 0)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.size - 1)
        others = [
            self._pool.submit(work, edges[i], edges[i + 1], i) for i in range(1, parts)
        ]
        try:
            own = work(0, edges[1], 0)
        finally:
            found = [other.result() for other in others]
        return [own, *found]

    def share_mask(
        self, mask: np.ndarray, cost: float, work: Callable[[np.ndarray, int], Any]
    ) -> list[Any]:
        """The same for `work(part of the mask, number)`."""
        units = np.flatnonzero(mask)
        if self.size == 1:
            return [work(mask, 0)]

        def some(first: int, stop: int, number: int) -> Any:
            part = np.zeros_like(mask)
            part[units[first:stop]] = True
            return work(part, number)

        return self.share(len(units), cost, some)

    def share_blocks(
        self, threads: int, group: int, cost: float, work: Callable[[int, int, int], Any]
    ) -> list[Any]:
        """The same for `work(first thread, last thread, number)`, for CTAs of `group` threads.

        cost: that of a thread.
        """

        def some(first: int, last: int, number: int) -> Any:
            return work(first * group, last * group, number)

        return self.share(threads // group, group * cost, some)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown()


ALONE = Team(1)
