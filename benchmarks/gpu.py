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

from benchmarks.harness import GPU_STATE, Timing, parse_smi, smi_device, smi_query

WARM_UP = 0.3  # seconds
SAMPLE = 0.01  # seconds that one sample lasts at least
SHORTEST = 1e-7  # seconds of a launch; events tell no less
MOST_LAUNCHES = 200  # in one graph
GRAPH_TIME = 0.002  # seconds that one graph lasts about
L2_BYTES = 50 * 2**20  # where torch does not tell
COLD = 2  # buffers in turn hold this many times the L2 cache
HEAD_START = 2_000_000  # cycles for which the GPU waits while launches queue up

Launch = Callable[[int], None]


def sets_beyond_cache(bytes_of_set: int, cache: int) -> int:
    """How many copies of a problem, used in turn, find nothing of theirs in the cache."""
    return max(1, math.ceil(COLD * cache / max(bytes_of_set, 1)))


def launches_of(seconds: float, sets: int) -> int:
    """Launches in one graph: whole turns over the sets, longer for shorter kernels."""
    wanted = min(MOST_LAUNCHES, GRAPH_TIME / seconds)
    return sets * max(1, round(wanted / sets))


class Loop:
    """`count` launches over `sets` buffers in turn, as one CUDA graph if they can be captured."""

    def __init__(self, torch: Any, launch: Launch, sets: int, count: int) -> None:
        self._torch, self.count, self.error = torch, count, ""
        order = [i % sets for i in range(count)]

        def eager() -> None:
            for i in order:
                launch(i)

        self.graph = None
        try:
            self._run = self._captured(eager)
        except Exception as error:  # whatever the library that launches raises
            self.error = f"{type(error).__name__}: {error}"
            torch.cuda.synchronize()
            self._run = eager

    def _captured(self, eager: Callable[[], None]) -> Callable[[], None]:
        """torch.cuda.graph would collect garbage first, which takes longer than the rest."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.stream(self._torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                eager()
            except BaseException:
                with suppress(Exception):  # the capture is lost, only its cause matters
                    graph.capture_end()
                raise
            graph.capture_end()
        self.graph = graph
        replay: Callable[[], None] = graph.replay
        return replay

    def seconds(self, replays: int = 1) -> float:
        """Seconds of one launch, on the GPU's own clock."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self.graph is None:  # the host may be slower than the GPU: let it run ahead
            self._torch.cuda._sleep(HEAD_START)
        start.record()
        for _ in range(replays):
            self._run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / (replays * self.count)


class Contestant:
    """Something that is timed: `launch(i)` starts it on buffers `i` and torch's stream."""

    def __init__(self, torch: Any, launch: Launch, sets: int) -> None:
        self._launch = launch  # a graph does not keep the buffers that it uses
        begin = time.perf_counter()
        launch(0)
        torch.cuda.synchronize()
        self.first_call = time.perf_counter() - begin  # seconds; ours compiles
        first = Loop(torch, launch, sets, sets)
        first.seconds()
        once = max(first.seconds(), SHORTEST)
        count = launches_of(once, sets)
        self.loop = first if count == sets else Loop(torch, launch, sets, count)
        self.replays = max(1, math.ceil(SAMPLE / (once * count)))
        self.captured = self.loop.graph is not None

    def sample(self) -> float:
        return self.loop.seconds(self.replays)


def compete(
    contestants: Sequence[Contestant], rounds: int, warm_up: float = WARM_UP
) -> list[Timing]:
    """Samples of all in turn, after a common warm-up; every other round goes backwards."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < warm_up:
        for contestant in contestants:
            contestant.sample()
    found: list[list[float]] = [[] for _ in contestants]
    for number in range(rounds):
        order = list(enumerate(contestants))
        for place, contestant in order if number % 2 == 0 else order[::-1]:
            found[place].append(contestant.sample())
    return [Timing(tuple(samples)) for samples in found]


def seconds_once(torch: Any, launch: Launch) -> float:
    """Of one launch alone, the driver's part included."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    launch(0)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def cache_bytes(torch: Any) -> int:
    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or L2_BYTES)


class Monitor:
    """Clock, power and temperature of the GPU while this is entered, read every 100 ms."""

    PERIOD = 100  # milliseconds

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self.readings: list[tuple[float, dict[str, Any]]] = []
        self._process: Any = None

    def __enter__(self) -> Monitor:
        if not self._wanted:
            return self
        command = [*smi_query(GPU_STATE), *smi_device(), "-lms", str(self.PERIOD)]
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
        """Medians of what was read between two times of time.perf_counter()."""
        found = [state for at, state in list(self.readings) if begin <= at <= end]
        numbers = {
            name: [s[name] for s in found if isinstance(s.get(name), float)] for name in GPU_STATE
        }
        return {name: statistics.median(values) for name, values in numbers.items() if values}
