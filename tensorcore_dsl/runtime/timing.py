"""Time of launches: CUDA events on a GPU, the system's clock on the CPU.

`separately` times every launch by itself, by default with a cold L2 cache; `in_a_row` times
launches that follow each other at once. Times are in seconds.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tensorcore_dsl.runtime import array_interop, driver
from tensorcore_dsl.runtime.array_interop import CURRENT_DEVICE

Launch = Callable[[], Any]

SAMPLE = 2e-3  # approximate seconds of launches in a row
SHORTEST = 1e-7  # seconds: no launch counts as shorter
MAX_LAUNCHES = 200  # in a row
MAX_SAMPLES = 1000  # of separate launches
L2_TIMES = 2  # bytes written to flush the L2 cache, as a multiple of its size


class Clock(Protocol):
    """Measures the time between two moments of one stream's work."""

    def event(self) -> Any:
        """A new event, for one moment. Events are made beforehand, as that takes time."""

    def record(self, event: Any) -> None:
        """The event is the moment at which all that was launched so far has ended."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two events; waits for the second."""

    def flush(self) -> None:
        """Evict the L2 cache of a GPU."""


class DeviceClock:
    """A GPU's clock: events on a stream.

    Parameters
    ----------
    stream : int
        The handle.
    device : int
        The ordinal of the GPU; -1: the current one.
    """

    def __init__(self, stream: int = 0, device: int = CURRENT_DEVICE) -> None:
        self._driver, self._stream, self._device = driver.cuda_driver(), stream, device
        self._cache: tuple[int, Any, int] | None = None  # address, owner and size

    def event(self) -> Any:
        with self._driver.on_device(self._device):
            return self._driver.event()

    def record(self, event: Any) -> None:
        with self._driver.on_device(self._device):
            self._driver.record(event, self._stream)

    def seconds(self, start: Any, end: Any) -> float:
        with self._driver.on_device(self._device):
            return self._driver.seconds_between(start, end)

    def flush(self) -> None:
        with self._driver.on_device(self._device):
            memory = self._driver.memory(self._stream)
            if self._cache is None:
                size = L2_TIMES * self._driver.l2_bytes()
                self._cache = *memory.allocate(size), size
            address, _, size = self._cache
            memory.fill(address, 0, size)


class HostClock:
    """The system's clock, for work that has ended when its function returns."""

    def event(self) -> list[float]:
        return []

    def record(self, event: list[float]) -> None:
        event[:] = [time.perf_counter()]

    def seconds(self, start: list[float], end: list[float]) -> float:
        return end[0] - start[0]

    def flush(self) -> None:
        pass


def current_stream(args: Sequence[Any] = (), device: int = CURRENT_DEVICE) -> int:
    """The handle of the stream on which a launch with these arguments runs.

    Parameters
    ----------
    args : sequence
        Arguments of the launch. Without any: torch's current stream if torch uses the GPU, else the
        default stream.
    device : int
        The ordinal of the GPU.

    Returns
    -------
    int
        The handle, 0 for the default stream.
    """
    launched_on = array_interop.stream_of(args, device)
    if launched_on is None and not args:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            launched_on = array_interop.torch_stream(torch.cuda.current_device())
    return launched_on() if launched_on is not None else 0


def separately(
    launch: Launch,
    clock: Clock,
    warmup: float,
    least: float,
    *,
    setup: Callable[[], Any] | None = None,
    cold: bool = True,
) -> list[float]:
    """Measure the seconds of each of many launches.

    Parameters
    ----------
    launch : function
        Without parameters.
    clock : DeviceClock or HostClock
        What measures.
    warmup, least : float
        Seconds of launches before, and while measuring.
    setup : function, optional
        Runs before each launch and is not timed.
    cold : bool
        Empty the L2 cache before each.

    Returns
    -------
    list of float
        Seconds.
    """

    def times(count: int) -> list[float]:
        pairs = [(clock.event(), clock.event()) for _ in range(count)]
        for start, end in pairs:
            if setup is not None:
                setup()
            if cold:
                clock.flush()
            clock.record(start)
            launch()
            clock.record(end)
        return [clock.seconds(start, end) for start, end in pairs]

    times(1)  # compiles and loads
    estimate = max(sum(times(3)) / 3, SHORTEST)
    if warmup > 0:
        times(_count(warmup, estimate))
    return times(_count(least, estimate))


def _count(seconds: float, each: float) -> int:
    return max(1, min(MAX_SAMPLES, math.ceil(seconds / each)))


def in_a_row(launch: Launch, clock: Clock, least: float = SAMPLE) -> float:
    """Measure the mean seconds of launches in a row, after two warm-up launches.

    Parameters
    ----------
    launch : function
        Without parameters.
    clock : DeviceClock or HostClock
        What measures.
    least : float
        Seconds that all launches together take.

    Returns
    -------
    float
        The mean, in seconds.
    """

    def batch(count: int) -> float:
        start, end = clock.event(), clock.event()
        clock.record(start)
        for _ in range(count):
            launch()
        clock.record(end)
        return clock.seconds(start, end) / count

    launch()
    once = max(batch(1), SHORTEST)
    return batch(min(MAX_LAUNCHES, max(2, math.ceil(least / once))))
