"""Threads that share the work of one step of a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core import policy

OPERATION_COST, ACCESS_COST = 0.5, 8.0  # nanoseconds of a thread, estimated


class _Job:
    """Work of a helper. It runs once, even if it is handed over several times."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work: Callable[[], Any] | None = work
        self.found: Any = None
        self.error: BaseException | None = None
        self._ended, self._end = False, Lock()
        self._end.acquire()

    def do(self) -> None:
        if self.work is None:
            return
        work, self.work = self.work, None
        try:
            self.found = work()
        except BaseException as error:
            self.error = error
        self._ended = True
        self._end.release()

    def wait(self) -> None:
        if not self._ended:
            self._end.acquire()


class _Helper:
    """A worker thread. Executors of `concurrent.futures` take several times as long to hand over a job,
    and hold the interpreter's lock meanwhile."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        for job in iter(self._jobs.get, None):
            job.do()
            del job  # Its result may be large.

    def begin(self, job: _Job | None) -> None:
        """Hand over a job, or none to end."""
        self._jobs.put(job)


def _settle(helpers: Sequence[_Helper], jobs: Sequence[_Job]) -> None:
    """Wait until no helper works, after an error or an interrupt, also through further interrupts.

    An interrupt may come before or after a job is handed over, so the job is handed over again.
    """
    while True:
        try:
            for helper, job in zip(helpers, jobs, strict=True):
                helper.begin(job)
                job.wait()
            return
        except KeyboardInterrupt:
            continue  # the first one is raised


class Team:
    """A fork-join pool of up to `size` threads, the caller's among them. They start when they are
    first needed and end with the `with` block.

    Their work is compiled loops, which release the interpreter's lock. One chunk uses the pool at a
    time; the others execute their loops alone meanwhile.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._helpers: list[_Helper] = []
        self._used = Lock()

    @property
    def size(self) -> int:
        """Threads that may work now."""
        return self._size

    def share(self, count: int, cost: float, work: Callable[[int, int, int], Any]) -> list[Any]:
        """Share `count` units among cores: results of `work(first, stop, number)`, in their order.

        cost: nanoseconds of a unit, roughly. number: that of the part, below their number.
        """
        parts = min(self.size, count, int(count * cost / policy.current.shared_work))
        if parts < 2 or not self._used.acquire(blocking=False):
            return [work(0, count, 0)]
        try:
            return self._divided(count, parts, work)
        finally:
            self._used.release()

    def _divided(self, count: int, parts: int, work: Callable[[int, int, int], Any]) -> list[Any]:
        try:
            while len(self._helpers) < parts - 1:
                self._helpers.append(_Helper())
        except RuntimeError:  # the system refuses another thread
            parts = len(self._helpers) + 1
        edges = [count * i // parts for i in range(parts + 1)]
        helpers = self._helpers[: parts - 1]
        jobs = [_Job(partial(work, edges[i], edges[i + 1], i)) for i in range(1, parts)]
        try:
            for helper, job in zip(helpers, jobs, strict=True):
                helper.begin(job)
            results = [work(0, edges[1], 0)]
            for job in jobs:
                job.wait()
        except BaseException:
            # The caller frees the memory that all of them use.
            _settle(helpers, jobs)
            raise
        for job in jobs:
            if job.error is not None:
                raise job.error
            results.append(job.found)
        return results

    def share_mask(self, mask: np.ndarray, cost: float, work: Callable[[np.ndarray, int], Any]) -> list[Any]:
        """Share the threads of a mask among cores: results of `work(part of the mask, number)`."""
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

    def share_ctas(
        self, threads: int, group: int, cost: float, work: Callable[[int, int, int], Any]
    ) -> list[Any]:
        """Share CTAs of `group` threads among cores: `work(first thread, last thread, number)`.

        cost: that of a thread.
        """
        if self.size == 1:
            return [work(0, threads, 0)]

        def some(first: int, last: int, number: int) -> Any:
            return work(first * group, last * group, number)

        return self.share(threads // group, group * cost, some)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: Any) -> None:
        for helper in self._helpers:
            helper.begin(None)


ALONE = Team(1)
