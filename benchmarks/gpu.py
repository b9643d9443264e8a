"""Timing on a GPU with torch: launches in CUDA graphs, events around them, the GPU's state."""

from __future__ import annotations

import math
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.harness import GPU_STATE, Timing, parse_smi, smi_query

WARM_UP = 0.3  # seconds
SAMPLE = 0.01  # seconds: minimum duration of a sample
SHORTEST = 1e-7  # seconds of a launch: the resolution of events
MAX_LAUNCHES = 200  # in one graph
GRAPH_TIME = 0.002  # seconds: approximate duration of one graph
L2_BYTES = 50 * 2**20  # used if torch does not know the size
COLD = 2  # size of the rotating buffers, as a multiple of the L2 cache
HEAD_START = 2_000_000  # cycles for which the GPU waits while launches queue up

Launch = Callable[[int], None]


def sets_beyond_cache(bytes_of_set: int, cache: int) -> int:
    """Number of rotating buffer sets that evict each other from the cache."""
    return max(1, math.ceil(COLD * cache / max(bytes_of_set, 1)))


def launches_of(seconds: float, sets: int) -> int:
    """Launches in one graph: a multiple of `sets`, more for shorter kernels."""
    wanted = min(MAX_LAUNCHES, GRAPH_TIME / seconds)
    return sets * max(1, round(wanted / sets))


class Loop:
    """`count` launches that rotate over `sets` buffers, as a CUDA graph if capturing works."""

    def __init__(self, torch: Any, launch: Launch, sets: int, count: int) -> None:
        self._torch, self.count, self.error = torch, count, ""

        def eager() -> None:
            for i in range(count):
                launch(i % sets)

        self.graph = None
        try:
            self._run = self._captured(eager)
        except Exception as error:  # libraries have exceptions of their own
            self.error = f"{type(error).__name__}: {error}"
            torch.cuda.synchronize()
            self._run = eager

    def _captured(self, eager: Callable[[], None]) -> Callable[[], None]:
        """Capture without torch.cuda.graph, whose garbage collection takes longer than the rest."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.stream(self._torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                eager()
            except BaseException:
                with suppress(Exception):  # the first error is the one to report
                    graph.capture_end()
                raise
            graph.capture_end()
        self.graph = graph
        replay: Callable[[], None] = graph.replay
        return replay

    def seconds(self, replays: int = 1) -> float:
        """Seconds of one launch, by events."""
        if self.graph is None:  # the host may be slower than the GPU: let it run ahead
            self._torch.cuda._sleep(HEAD_START)

        def work() -> None:
            for _ in range(replays):
                self._run()

        return seconds_of(self._torch, work) / (replays * self.count)


class TimedLaunch:
    """A launch to be timed: `launch(i)` uses buffers `i` and torch's current stream."""

    def __init__(self, torch: Any, launch: Launch, sets: int) -> None:
        self._launch = launch  # keeps the buffers alive, which a graph does not
        begin = time.perf_counter()
        launch(0)
        torch.cuda.synchronize()
        self.first_call = time.perf_counter() - begin  # seconds, with compilation
        first = Loop(torch, launch, sets, sets)
        first.seconds()
        once = max(first.seconds(), SHORTEST)
        count = launches_of(once, sets)
        self.loop = first if count == sets else Loop(torch, launch, sets, count)
        self.replays = max(1, math.ceil(SAMPLE / (once * count)))
        self.captured = self.loop.graph is not None

    def sample(self) -> float:
        return self.loop.seconds(self.replays)


def time_interleaved(launches: Sequence[TimedLaunch], rounds: int, warm_up: float = WARM_UP) -> list[Timing]:
    """One sample of each launch a round, after a common warm-up; odd rounds go backwards."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < warm_up:
        for launch in launches:
            launch.sample()
    samples: list[list[float]] = [[] for _ in launches]
    order = list(zip(samples, launches, strict=True))
    for _ in range(rounds):
        for times, launch in order:
            times.append(launch.sample())
        order.reverse()
    return [Timing(tuple(times)) for times in samples]


def seconds_of(torch: Any, work: Callable[[], None]) -> float:
    """Seconds between events before and after the work."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def cache_bytes(torch: Any) -> int:
    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or L2_BYTES)


class Monitor:
    """Context in which clock, power and temperature of the GPU are read every 100 ms."""

    PERIOD = 100  # milliseconds

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self.readings: list[tuple[float, dict[str, Any]]] = []
        self._process: Any = None

    def __enter__(self) -> Monitor:
        if not self._wanted:
            return self
        command = [*smi_query(GPU_STATE), "-lms", str(self.PERIOD)]
        try:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            return self
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        for line in self._process.stdout:
            self.readings.append((time.perf_counter(), parse_smi(GPU_STATE, line)))

    def __exit__(self, *_: Any) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Medians of the readings between two times of time.perf_counter()."""
        states = [state for at, state in list(self.readings) if begin <= at <= end]
        medians = {}
        for name in GPU_STATE:
            if numbers := [s[name] for s in states if isinstance(s.get(name), float)]:
                medians[name] = statistics.median(numbers)
        return medians
