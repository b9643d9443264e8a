"""Run a kernel over a grid: chunks of CTAs, spread over the cores."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from math import prod
from threading import Event
from typing import Any

import numpy as np

from tensorcore_dsl import arch as archs
from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.environment.processors import cache_bytes, cores
from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.interpreter import processes
from tensorcore_dsl.interpreter.arena import Arena
from tensorcore_dsl.interpreter.core import memory_pool, policy
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.geometry import Dim3, Geometry, PerRank
from tensorcore_dsl.interpreter.core.program import Program, word
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.core.residency import resident
from tensorcore_dsl.interpreter.core.shadow import SharedStorage
from tensorcore_dsl.interpreter.core.team import ALONE, Team
from tensorcore_dsl.interpreter.execution.compiler import compile_program
from tensorcore_dsl.interpreter.execution.context import ExecutionContext
from tensorcore_dsl.interpreter.execution.machine import Machine, Observer
from tensorcore_dsl.interpreter.memory.global_memory import (
    MAP_BASE,
    MAP_SHIFT,
    Arguments,
    GlobalPointer,
    TensorMapArgument,
)
from tensorcore_dsl.interpreter.progress import ProgressLine
from tensorcore_dsl.interpreter.sanitizer.launch_history import LaunchHistory
from tensorcore_dsl.interpreter.sanitizer.stream_order import Queued
from tensorcore_dsl.interpreter.sanitizer.stream_order import launched as stream_launch
from tensorcore_dsl.interpreter.scheduling.orders import Order, Schedule, Scheduler, is_unusual
from tensorcore_dsl.interpreter.scheduling.random_schedule import RandomSchedule
from tensorcore_dsl.interpreter.scheduling.switched import SwitchedSchedule
from tensorcore_dsl.interpreter.sync.grids import Overlap
from tensorcore_dsl.interpreter.timeline.recorder import Recorder
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.ir.nodes import Const, Kernel, Param
from tensorcore_dsl.ir.verify import MAX_CLUSTER
from tensorcore_dsl.lowering.forms import COMPILED

# Threads of a chunk: enough to share the cost of a step, few enough for the caches. In a kernel whose
# warps have roles, few warps are at one step.
CHUNK, ROLES_CHUNK = 4096, 1 << 15
# Below these sizes the cost of each step outweighs another worker.
MIN_CHUNK, MIN_ROLES_CHUNK = 2048, 8192
WAITING_CHUNK = 1 << 18  # threads of a chunk whose CTAs may wait for each other, or all resident CTAs
# Bytes of registers of a chunk. Kernels that multiply matrices keep the registers in memory.
REGISTERS, MATRIX_REGISTERS = 1 << 25, 1 << 21
SUM_CACHES = 1.5  # second-level caches that hold the accumulators of all warps of a chunk
# Bytes of shared memory of a chunk, and of a chunk whose CTAs may wait for each other.
SHARED, WAITING_SHARED = 1 << 26, 1 << 29
MAX_WORKERS = 1024
# Seconds of one core from which worker processes are started, and from which idle workers are used.
MIN_SECONDS_NEW_WORKERS, MIN_SECONDS_IDLE_WORKERS = 0.3, 0.05
COPY_RATE = 1e9  # bytes of arrays that are copied to shared memory, and back, in a second
MIN_LONG_THREADS = 1 << 15  # A first launch of at least these threads counts as long.
STEP_COST = 0.25  # fixed cost of the steps of a chunk, in times of the largest chunk
QUEUED_CHUNKS = 4  # chunks for each worker that run or wait to run


@dataclass
class EmulatedLaunch(EagerDict):
    """A launch: what it runs, and the data that its chunks share.

    `run` writes the arrays of `GlobalPointer`s among the arguments in place. A worker process makes
    `memory` anew, from the arrays that processes share, and has one thread.

    Attributes
    ----------
    arguments : sequence
        A value for each parameter of the kernel, a `TensorMapArgument` for a tensor map. Arrays may
        stand before these; kernels reach them by addresses that are numbers.
    checks : bool
        False leaves only the checks of bounds.
    program : Program or None
        The result of `compile_program`. None: the kernel is compiled here.
    workers : int or None
        Chunks that run at a time. None: one for each core.
    cluster : Dim3 or None
        CTAs of a cluster, where the kernel does not fix them.
    order : Order or None
        The schedule, or its seed. None: the default order.
    observers : sequence of Observer
        The debugger and the recorder of a debug build; chunks then run one after the other.
    races : bool
        Whether to look for accesses that nothing orders.
    limit : int or None
        Maximal iterations of a loop in a chunk, summed over groups of threads that run it apart.
        None: a loop ends when about 2**18 iterations have changed registers only.
    cooperative : bool
        LaunchError unless the device holds all CTAs at a time.
    recorder : Recorder or None
        Records the first CTAs for a timeline.
    queued : Queued or None
        The position in a stream, for races with launches that may run at the same time.
    overlap : Overlap or None
        Runs the launch together with others. The machine asks it before each step.
    devices : int
        Each one runs the grid, with its own values of the `PerRank` arguments.
    static : int
        Bytes of static shared memory of a CTA. `run` sets this field and the following ones.
    ordered : bool
        CTAs see what others write.
    resident : int or None
        CTAs that run at a time, if CTAs wait for others.
    """

    kernel: Kernel
    grid: Dim3
    block: Dim3
    arguments: Sequence[Any]
    _: KW_ONLY
    arch: str
    dynamic_shared: int = 0
    checks: bool = True
    program: Program | None = None
    workers: int | None = None
    profile: bool = False
    cluster: Dim3 | None = None
    order: Order | None = None
    observers: Sequence[Observer] = ()
    races: bool = False
    limit: int | None = None
    cooperative: bool = False
    recorder: Recorder | None = None
    queued: Queued | None = None
    overlap: Overlap | None = None
    devices: int = 1
    static: int = field(default=0, init=False)
    ordered: bool = field(default=False, init=False)
    resident: int | None = field(default=None, init=False)
    team: Team = field(default=ALONE, init=False)
    history: LaunchHistory | None = field(default=None, init=False)

    def run(self) -> Report:
        """Run all CTAs. An error in one chunk ends the others at once, and so does Ctrl-C.

        Memory does not grow with the grid.
        """
        kernel, grid, devices = self.kernel, self.grid, self.devices
        program = self.program = self.program or compile_program(kernel, varying(self.arguments))
        target = archs.arch(self.arch)
        self.arch = target.name
        _check_launch(kernel, grid, self.block, self.dynamic_shared)
        shared = kernel.shared_bytes + self.dynamic_shared
        target.check_shared(kernel.name, shared)
        self.cluster = _cluster(kernel, grid, self.cluster)
        most = resident(target, prod(self.block), shared)
        if self.cooperative and prod(grid) > most:
            raise LaunchError(
                f"a cooperative launch of {prod(grid)} CTAs: {target} holds at most {most} CTAs of "
                f"{prod(self.block)} threads and {shared} bytes of shared memory at a time"
            )
        if 0 in grid:
            return Report()
        launched, earlier = stream_launch(kernel.name, self.queued) if self.queued else (None, [])
        align = kernel.dynamic if self.dynamic_shared else 1
        self.static = -(-kernel.shared_bytes // align) * align
        # The clocks of several devices cover all CTAs, so chunks run one after the other.
        polls = devices > 1 or any(loop.polls_global_memory for loop in program.loops.values())
        coupled, waits = program.couplings
        self.ordered = coupled or polls
        self.resident = most * devices if polls or waits else None
        most_workers = 1 if self.observers or self.overlap else _workers(self.workers)
        races = self.races and self.checks
        with ExitStack() as stack:
            stack.enter_context(processes.launching())
            stack.callback(memory_pool.forget, memory_pool.MAX_IDLE_BYTES)
            chunks = self.divide(stack, most_workers, most * devices, polls, races or self.in_one_process)
            memory, _ = self.memory
            if races:
                self.history = LaunchHistory(
                    program,
                    memory.spans(),
                    coupled or devices > 1,
                    memory.element,
                    launched,
                    earlier,
                    devices,
                )
            progress = ProgressLine(kernel.name, self.ctas, quiet=bool(self.observers))
            total = self.run_chunks(*chunks, stack.enter_context(progress))
            if launched and self.history:
                launched.waits, launched.triggers = self.history.waits, self.history.triggers
                launched.footprint = self.history.footprint(memory.arrays())
                launched.known = self.history.known
            return total

    def __getstate__(self) -> dict[str, Any]:
        kept_here = ("memory", "kernel", "queued")
        return {k: v for k, v in vars(self).items() if k not in kept_here}

    @cached_property
    def memory(self) -> tuple[Arguments, list[Any]]:
        """The arrays, and the values of the kernel's parameters."""
        return _parameters(self._program.kernel, self.arguments)

    @property
    def _program(self) -> Program:
        assert self.program is not None, "`run` sets it"
        return self.program

    @property
    def ctas(self) -> int:
        """CTAs of all devices."""
        return prod(self.grid) * self.devices

    @property
    def in_one_process(self) -> bool:
        """True if chunks depend on each other, or on an object of this process."""
        tied = self.ordered or self.resident is not None
        return tied or self.order is not None or self.recorder is not None

    def divide(
        self, stack: ExitStack, workers: int, most: int, polls: bool, alone: bool
    ) -> tuple[processes.ProcessPool | None, int, int]:
        """Choose processes (None: threads), the CTAs of a chunk, and how many chunks run at a time.

        stack: receives the contexts of processes and threads. Other arguments as for `_chunks`;
        alone: there are no processes.
        """
        program, pool = self._program, None
        threads = -(-prod(self.block) // program.unit) * program.unit
        # A process has one thread: fewer CTAs than cores run in threads, which share the steps.
        is_spread = not alone and 1 < workers <= self.ctas
        if is_spread and _is_long(program, self.ctas, threads, self.arguments):
            pool, self.arguments = stack.enter_context(processes.pool(self.arguments))
        clusters = prod(self.cluster or (1,)) * self.devices
        shared, apart = self.static + self.dynamic_shared, pool is not None
        size, at_once = _chunks(program, self.ctas, threads, workers, clusters, shared, most, polls, apart)
        self.team = stack.enter_context(Team(1 if pool else workers - at_once + 1))
        return pool, size, at_once

    def run_chunks(
        self, pool: processes.ProcessPool | None, size: int, at_once: int, progress: ProgressLine
    ) -> Report:
        """Run all chunks as `divide` chose."""
        began, first, total, stop, program = _seconds(), 0, Report(), Event(), self._program
        if pool and program.seconds is None:  # Otherwise each worker would load the loops.
            first = min(prod(self.cluster or (1,)), self.ctas)
            total += self(0, first, stop)
            progress.advance(first)
        at_once = min(at_once, max(-(-(self.ctas - first) // size), 1))
        run = pool.run if pool and at_once > 1 else _run_chunks
        jobs = ((at, min(size, self.ctas - at)) for at in range(first, self.ctas, size))
        total += run(self, jobs, at_once, stop, progress.advance)
        program.seconds = (_seconds() - began) * at_once / self.ctas
        return total

    def __call__(self, first: int, ctas: int, stop: Event) -> Report:
        """Run a chunk of CTAs, from the first one on, until an event is set."""
        (memory, parameters), recorder, program = self.memory, self.recorder, self._program
        geometry = Geometry(
            self.grid,
            self.block,
            first,
            ctas,
            self.static,
            self.dynamic_shared,
            program.unit,
            self.cluster,
            program.ranked,
            self.devices,
        )
        # With checks nobody reads what has not been written.
        memory_of = memory_pool.empty if self.checks else memory_pool.zeros
        shared = memory_of((ctas, self.static + self.dynamic_shared))
        ctx = ExecutionContext(
            program,
            geometry,
            memory,
            SharedStorage(shared, self.checks),
            self.arch,
            self.profile,
            self.history,
            self.team,
            self.ordered,
        )
        ctx.unusual = is_unusual(self.order)
        scheduler = _scheduler(self.order, ctx)
        machine = Machine(ctx, parameters, scheduler, self.observers, self.limit, self.resident)
        machine.stop = self.overlap or stop
        if self.overlap is not None:
            ctx.dependency.overlap, self.overlap.chunk = self.overlap, ctx
        if recorder is not None and first == 0:
            recorder.attach(machine, prod(self.grid) * self.devices)
        report = machine.run()
        if self.overlap is not None:
            self.overlap.launch_dependents(np.arange(first, first + ctas))
        if self.history is not None and ctx.sanitizer.detector is not None:
            self.history.retire(ctx.sanitizer.detector)
        if not (recorder or scheduler):
            # These refer to each other: clearing them frees their memory at once.
            for component in (ctx.special, ctx.sanitizer.in_flight, ctx.shared.mbarriers, ctx, machine):
                vars(component).clear()
        return report


def _run_chunks(
    chunk: processes.Chunk,
    jobs: Iterable[processes.Job],
    workers: int,
    stop: Event,
    advance: Callable[[int], None],
) -> Report:
    """Run `chunk` for each job in threads, and add up the reports in the order of their CTAs.

    If chunks fail, the error of the first one is raised. advance(ctas): called when CTAs have ended.
    """
    total, pending = Report(), deque[Future[Report]]()

    def run(first: int, ctas: int) -> Report:
        report = chunk(first, ctas, stop)
        advance(ctas)
        return report

    if workers == 1:
        for job in jobs:
            total += run(*job)
        return total
    with ThreadPoolExecutor(workers) as pool:
        try:
            for job in jobs:
                pending.append(pool.submit(run, *job))
                if len(pending) == QUEUED_CHUNKS * workers:
                    total += pending[0].result()
                    pending.popleft()
            for future in pending:
                total += future.result()
        except BaseException as error:
            stop.set()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                _note_places(error, pending)
            raise
    return total


def _note_places(error: KeyboardInterrupt, pending: Iterable[Future[Report]]) -> None:
    """Say in `error` where the first chunk stood that the interrupt has ended."""
    for future in pending:
        stopped = None if future.cancelled() else future.exception()
        if isinstance(stopped, KeyboardInterrupt):
            error.args = stopped.args
            return


def _workers(requested: int | None) -> int:
    if requested is None:
        return min(policy.current.cores or cores(), MAX_WORKERS)
    is_int = isinstance(requested, int) and not isinstance(requested, bool)
    if not is_int or not 1 <= requested <= MAX_WORKERS:
        raise ArgumentError(f"workers is {requested!r}; 1 to {MAX_WORKERS} are allowed")
    return requested


def _scheduler(order: Order | None, chunk: Chunk) -> Scheduler | None:
    if order is None:
        return None
    kind: Any = SwitchedSchedule if isinstance(order, Schedule) else RandomSchedule
    scheduler: Scheduler = kind(order, chunk)
    return scheduler


def _check_launch(kernel: Kernel, grid: Dim3, block: Dim3, dynamic_shared: int) -> None:
    for what, size in (("grid", grid), ("block", block)):
        if len(size) != 3 or min(size) < (what == "block"):
            raise ArgumentError(f"{what} {size} is not a size: three positive numbers are needed")
    threads = prod(block)
    if threads > 1024:
        raise ArgumentError(f"block {block} has {threads} threads; 1024 is the most")
    if kernel.threads is not None and threads != kernel.threads:
        raise ArgumentError(f"block {block} has {threads} threads; {kernel.name} needs {kernel.threads}")
    if dynamic_shared and not kernel.dynamic:
        raise ArgumentError(f"{kernel.name} uses no dynamic shared memory; {dynamic_shared} bytes given")


def _cluster(kernel: Kernel, grid: Dim3, cluster: Dim3 | None) -> Dim3 | None:
    """The clusters of a launch, as the kernel or the caller declares them."""
    if kernel.cluster is not None and cluster not in (None, kernel.cluster):
        raise ArgumentError(f"cluster {cluster}: {kernel.name} is made for {kernel.cluster}")
    cluster = kernel.cluster or cluster
    if cluster is None:
        return None
    if len(cluster) != 3 or min(cluster) < 1 or prod(cluster) > MAX_CLUSTER:
        raise ArgumentError(
            f"cluster {cluster} is not a size: three positive numbers, together at most "
            f"{MAX_CLUSTER} CTAs, are needed"
        )
    if any(n % c for n, c in zip(grid, cluster, strict=True)):
        raise ArgumentError(f"grid {grid} is not made of whole clusters of {cluster}")
    return cluster


def _parameters(kernel: Kernel, arguments: Sequence[Any]) -> tuple[Arguments, list[Any]]:
    before = len(arguments) - len(kernel.params)
    if before < 0 or not all(isinstance(a, GlobalPointer) for a in arguments[:before]):
        names = ", ".join(p.name for p in kernel.params)
        raise ArgumentError(
            f"{kernel.name} has {len(kernel.params)} parameters ({names}), {len(arguments)} values given"
        )
    memory = Arguments(arguments)
    arrays, maps = count(before), count()
    pairs = zip(kernel.params, arguments[before:], strict=True)
    return memory, [_value(param, argument, memory, arrays, maps) for param, argument in pairs]


def _value(param: Param, argument: Any, memory: Arguments, arrays: Iterator[int], maps: Iterator[int]) -> Any:
    """The value of a parameter; `PerRank` where the devices differ."""
    if isinstance(argument, PerRank):
        each = PerRank(_value(param, one, memory, arrays, maps) for one in argument)
        return each if len({*each}) > 1 else each[0]
    if isinstance(argument, GlobalPointer):
        return np.uint64(memory.address(next(arrays)))
    if isinstance(argument, TensorMapArgument):
        return np.uint64((MAP_BASE + next(maps)) << MAP_SHIFT)
    return _bits(param, argument)


def varying(arguments: Sequence[Any]) -> frozenset[int]:
    """The positions of arguments that may differ between the devices of a launch."""

    def differs(of_ranks: PerRank) -> bool:
        return not all(isinstance(one, (int, float)) and one == of_ranks[0] for one in of_ranks)

    return frozenset(i for i, a in enumerate(arguments) if isinstance(a, PerRank) and differs(a))


def _bits(param: Param, argument: Any) -> Any:
    dtype = param.value.type.dtype
    item = argument.item() if isinstance(argument, np.generic) else argument
    if not isinstance(item, (int, float)):
        item = float(argument)  # scalars of ml_dtypes
    return word(param.value.type.register_bits)(const_bits(Const(item, dtype)))


def _chunks(
    program: Program,
    ctas: int,
    threads: int,
    workers: int,
    cluster: int,
    shared: int,
    most: int = 1,
    polls: bool = False,
    apart: bool = False,
) -> tuple[int, int]:
    """CTAs of a chunk, each with `shared` bytes, and how many chunks run at a time.

    threads: of a CTA, rounded up to whole warps or warpgroups, as they take room.
    most: CTAs that the device holds at a time. polls: a loop waits for what others write.
    apart: each worker is a process, which runs a chunk of its own; threads share the steps of few chunks.
    """
    at_once = workers if apart else policy.current.threaded_chunks
    order_matters, waits = program.couplings
    if order_matters or polls:
        workers = 1
    if waits or polls:
        size = max(min(WAITING_CHUNK // threads, WAITING_SHARED // max(shared, 1)), most)
    else:
        usual, least = CHUNK, MIN_CHUNK
        if program.has_roles:
            usual, least = ROLES_CHUNK, MIN_ROLES_CHUNK
        if program.sum_bytes:
            usual = min(usual, max(int(SUM_CACHES * cache_bytes()) // program.sum_bytes, MIN_CHUNK))
        usual *= max(workers // at_once, 1)  # Several processors share each step.
        room = MATRIX_REGISTERS if program.sum_bytes else REGISTERS
        wanted = min(max(usual, room // max(program.register_bytes, 1)), policy.current.chunk_threads)
        largest = max(min(wanted // threads, SHARED // max(shared, 1)), 1)
        smallest, workers = 0 if apart else least // threads, min(workers, at_once)
        each = max(-(-ctas // workers), smallest)
        size = _even(ctas, workers, smallest, min(each + cluster - 1, largest), cluster)
    size = -(-max(size, 1) // cluster) * cluster
    return size, min(workers, at_once, -(-ctas // size))


@lru_cache(256)
def _even(ctas: int, workers: int, smallest: int, largest: int, cluster: int) -> int:
    """CTAs of a chunk that let the busiest worker finish first, or within 0.2% of that time.

    The size lies between `largest` and the larger of `smallest` and half of `largest`.
    """

    def longest(size: int) -> float:
        """Time of the busiest worker, in times of a CTA."""
        whole, remaining = divmod(ctas, size)
        rounds, more = divmod(whole, workers)
        last = size if more else remaining
        return rounds * (size + STEP_COST * largest) + last + STEP_COST * largest * (last > 0)

    most = max(largest // cluster, 1)
    fewest = min(max((most + 1) // 2, smallest // cluster), most)
    sizes = [cluster * count for count in range(most, fewest - 1, -1)]
    times = {size: longest(size) for size in sizes}
    least = min(times.values())
    return next(size for size, time in times.items() if time <= 1.002 * least)


def _seconds() -> float:
    """A clock that stands still while loops are compiled."""
    return time.perf_counter() - sum(seconds for _, seconds in COMPILED)


def _is_long(program: Program, ctas: int, threads: int, arguments: Sequence[Any]) -> bool:
    """True if a launch takes so long that worker processes pay. threads: of a CTA.

    The program's last launch gives the time of a CTA. A first launch is long if it has many threads that
    multiply matrices in loops.
    """
    if policy.current.processes is not None:
        return policy.current.processes
    if program.seconds is not None:
        least = MIN_SECONDS_IDLE_WORKERS if processes.has_idle_workers(program) else MIN_SECONDS_NEW_WORKERS
        return program.seconds * ctas >= least + Arena.room(arguments) / COPY_RATE
    return ctas * threads >= MIN_LONG_THREADS and program.multiplies_in_loops
