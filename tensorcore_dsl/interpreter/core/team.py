"""Threads that share the work of one step of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock, Thread
from typing import Any

import numpy as np

PART = 300_000  # nanoseconds of work that are worth another thread
OPERATION_COST, ACCESS_COST = 0.5, 8.0  # nanoseconds of a thread, roughly

Job = Callable[[], Any]


class _Helper:
    """A thread that does one job after the other. Two locks hand them over: a pool of futures takes
    several times as long, all of it with the interpreter's lock held."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.found: Any = None
        self.error: BaseException | None = None
        self._start, self._end = Lock(), Lock()
        self._start.acquire()
        self._end.acquire()
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while self._start.acquire() and self.job is not None:
            try:
                self.found = self.job()
            except BaseException as error:
                self.error = error
            self._end.release()

    def begin(self, job: Job | None) -> None:
        """Hand over a job, or none to end."""
        self.job = job
        self._start.release()

    def result(self) -> Any:
        """Wait for the end of the job."""
        self._end.acquire()
        self.job = None
        found, error, self.found, self.error = self.found, self.error, None, None
        if error is not None:
            raise error
        return found


class Team:
    """Up to `size` threads, which start when they are first needed and end with the block.

    What they share are compiled loops, which run without the interpreter's lock. One chunk uses
    them at a time; the others work alone meanwhile.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._helpers: list[_Helper] = []
        self._used = Lock()

    def share(self, count: int, cost: float, work: Callable[[int, int, int], Any]) -> list[Any]:
        """What `work(first, stop, number)` returns for ranges of `count` units, in their order.

        cost: nanoseconds of a unit, roughly. number: that of the part, below `size`.
        """
        parts = min(self.size, count, int(count * cost / PART))
        if parts < 2 or not self._used.acquire(blocking=False):
            return [work(0, count, 0)]
        try:
            return self._divided(count, parts, work)
        finally:
            self._used.release()

    def _divided(
        self, count: int, parts: int, work: Callable[[int, int, int], Any]
    ) -> list[Any]:
        while len(self._helpers) < parts - 1:
            self._helpers.append(_Helper())
        edges = [count * i // parts for i in range(parts + 1)]
        helpers = self._helpers[: parts - 1]
        for number, helper in enumerate(helpers, 1):
            helper.begin(partial(work, edges[number], edges[number + 1], number))
        found: list[Any] = []
        errors: list[BaseException] = []
        results: list[Job] = [partial(work, 0, edges[1], 0)]
        results += [helper.result for helper in helpers]
        for result in results:
            try:
                found.append(result())
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return found

    def share_mask(
        self, mask: np.ndarray, cost: float, work: Callable[[np.ndarray, int], Any]
    ) -> list[Any]:
        """The same for `work(part of the mask, number)`."""
        if self.size == 1:
            return [work(mask, 0)]
        units = np.flatnonzero(mask)

        def some(first: int, stop: int, number: int) -> Any:
            part = mask
            if stop - first < len(units):
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
        for helper in self._helpers:
            helper.begin(None)


ALONE = Team(1)
