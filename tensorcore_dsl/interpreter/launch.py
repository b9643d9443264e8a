"""Run a kernel over a grid: chunks of CTAs, spread over the cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from threading import Event
from typing import Any

import numpy as np

from tensorcore_dsl import arch as archs
from tensorcore_dsl.environment.processors import cores
from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.geometry import Dim3, Geometry
from tensorcore_dsl.interpreter.core.program import Program, word
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.core.residency import resident
from tensorcore_dsl.interpreter.core.shadow import SharedStorage
from tensorcore_dsl.interpreter.core.team import Team
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
from tensorcore_dsl.interpreter.scheduling.drawn import DrawnSchedule
from tensorcore_dsl.interpreter.scheduling.orders import Order, Schedule, Scheduler
from tensorcore_dsl.interpreter.scheduling.switched import SwitchedSchedule
from tensorcore_dsl.interpreter.timeline.recorder import Recorder
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.ir.nodes import Const, Kernel, Op, Param, While, walk

CHUNK = 4096  # threads of a chunk: enough to share the cost of a step, few enough for the caches
WIDE_CHUNK = 1 << 15  # the same of a kernel of warpgroups, few of which are at one step
LEAST_CHUNK = 2048  # with fewer, the cost of steps grows more than other workers save
LEAST_WIDE_CHUNK = 8192  # the same of a kernel of warpgroups
MOST_THREADS = 1 << 15  # of a chunk of threads that have few registers
REGISTERS = 1 << 21  # bytes of the registers of these
MOST_CLUSTER = 16
LARGE_CHUNK = 1 << 18  # threads of a chunk whose CTAs may wait for each other; or all resident ones
SHARED = 1 << 26  # bytes of shared memory of a chunk
LARGE_SHARED = 1 << 29  # the same of a chunk whose CTAs may wait for each other
MOST_WORKERS = 1024
AT_ONCE = 2  # chunks that run at a time: their steps in Python wait for each other
AHEAD = 4  # chunks for each worker that run or wait to run


def run(
    kernel: Kernel,
    grid: Dim3,
    block: Dim3,
    arguments: Sequence[Any],
    *,
    arch: str,
    dynamic_shared: int = 0,
    checks: bool = True,
    program: Program | None = None,
    workers: int | None = None,
    profile: bool = False,
    cluster: Dim3 | None = None,
    order: Order | None = None,
    observers: Sequence[Observer] = (),
    races: bool = False,
    limit: int | None = None,
    cooperative: bool = False,
    recorder: Recorder | None = None,
) -> Report:
    """Run `kernel`; the arrays of `GlobalPointer`s among `arguments` are written in place.

    `arguments` has a value for each parameter of the kernel; for tensor maps it is a
    `TensorMapArgument`. `cluster`: CTAs of a cluster, where the kernel does not fix them.
    `program`: the result of `compile_program`, if there is one already. `checks=False` switches off
    all checks but bounds: alignment, the state of shared memory, and what asynchronous operations
    in flight still use. `order`: the schedule or its seed, None for the default one. `observers`:
    the debugger and the recorder of a debug build, in which chunks run one after the other.
    `races`: look for accesses that nothing orders. `recorder`: records the first blocks for a
    timeline. `limit`: the most turns of any loop in a chunk, summed over groups of threads that run
    it separately; None: no loop may go on for very long in which only registers change.
    `cooperative`: the device must hold all CTAs at a time, else LaunchError. `workers`: chunks that
    run at a time, as many as there are cores if None. Memory does not grow with the grid. An error
    in one chunk ends the others at once, and so does Ctrl-C.
    """
    program = program or compile_program(kernel)
    target = archs.arch(arch)
    _check_launch(kernel, grid, block, dynamic_shared)
    target.check_shared(kernel.name, kernel.shared_bytes + dynamic_shared)
    cluster = _cluster(kernel, grid, cluster)
    memory, parameters = _parameters(kernel, arguments)
    shared = kernel.shared_bytes + dynamic_shared
    most = resident(target, prod(block), shared)
    if cooperative and prod(grid) > most:
        raise LaunchError(
            f"a cooperative launch of {prod(grid)} blocks: {target} holds at most {most} blocks of "
            f"{prod(block)} threads and {shared} bytes of shared memory at a time"
        )
    static = -(-kernel.shared_bytes // 16) * 16 if dynamic_shared else kernel.shared_bytes

    coupled = _couplings(kernel)[0]
    history = None
    if races and checks:
        history = LaunchHistory(program, memory.spans(), coupled, memory.element)
    stop = Event()

    def chunk(first: int, ctas: int) -> Report:
        geometry = Geometry(
            grid, block, first, ctas, static, dynamic_shared, program.unit, cluster, program.ranked
        )
        storage = SharedStorage(np.zeros((ctas, static + dynamic_shared), np.uint8), checks)
        ctx = ExecutionContext(
            program, geometry, memory, storage, target.name, profile, history, team,
            coupled or polls,
        )  # fmt: skip
        scheduler, resident = _scheduler(order, ctx), most if waits else None
        machine = Machine(ctx, parameters, scheduler, observers, limit, resident)
        machine.stop = stop
        if recorder is not None and first == 0:
            recorder.attach(machine, prod(grid))
        report = machine.run()
        if history is not None and ctx.sanitizer.detector is not None:
            history.retire(ctx.sanitizer.detector)
        parts = ctx.special, ctx.sanitizer.in_flight, ctx
        for part in () if recorder or scheduler else parts:
            vars(part).clear()  # parts refer to each other: this frees their memory at once
        progress.advance(ctas)
        return report

    polls = any(loop.polls_global_memory for loop in program.loops.values())
    waits, ctas = polls or _couplings(kernel)[1], prod(grid)
    most_workers, group = _workers(workers), -(-prod(block) // program.unit) * program.unit
    size, workers = _chunks(
        kernel, ctas, group, 1 if observers else most_workers, prod(cluster or (1,)),
        static + dynamic_shared, most, polls, program.register_bytes,
    )  # fmt: skip
    team = Team(1 if observers else most_workers - workers + 1)
    with ProgressLine(kernel.name, ctas, quiet=bool(observers)) as progress, team:
        return _run_chunks(chunk, ctas, size, workers, stop)


def _run_chunks(
    chunk: Callable[[int, int], Report], ctas: int, size: int, workers: int, stop: Event
) -> Report:
    """The sum of the reports of `chunk(first CTA, CTAs)`, for chunks of `size` CTAs.

    Of the chunks that fail, the first one's error is raised.
    """
    total, pending = Report(), deque[Future[Report]]()
    jobs = ((first, min(size, ctas - first)) for first in range(0, ctas, size))
    if workers == 1:
        for job in jobs:
            total += chunk(*job)
        return total
    with ThreadPoolExecutor(workers) as pool:
        try:
            for job in jobs:
                pending.append(pool.submit(chunk, *job))
                if len(pending) == AHEAD * workers:
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
    """Add where the first chunk stood that the interrupt has ended."""
    for future in pending:
        stopped = None if future.cancelled() else future.exception()
        if isinstance(stopped, KeyboardInterrupt) and hasattr(error, "add_note"):
            error.add_note(str(stopped))
            return


def _workers(given: int | None) -> int:
    if given is None:
        return min(cores(), MOST_WORKERS)
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MOST_WORKERS:
        raise ArgumentError(f"workers is {given!r}; 1 to {MOST_WORKERS} are allowed")
    return given


def _scheduler(order: Order | None, chunk: Chunk) -> Scheduler | None:
    if order is None:
        return None
    kind: Any = SwitchedSchedule if isinstance(order, Schedule) else DrawnSchedule
    scheduler: Scheduler = kind(order, chunk)
    return scheduler


def _check_launch(kernel: Kernel, grid: Dim3, block: Dim3, dynamic_shared: int) -> None:
    for what, size in (("grid", grid), ("block", block)):
        if len(size) != 3 or min(size) < 1:
            raise ArgumentError(f"{what} {size} is no size: three positive numbers are needed")
    threads = prod(block)
    if threads > 1024:
        raise ArgumentError(f"block {block} has {threads} threads; 1024 is the most")
    if kernel.threads is not None and threads != kernel.threads:
        raise ArgumentError(
            f"block {block} has {threads} threads; {kernel.name} needs {kernel.threads}"
        )
    if dynamic_shared and not kernel.dynamic:
        raise ArgumentError(
            f"{kernel.name} uses no dynamic shared memory; {dynamic_shared} bytes given"
        )


def _cluster(kernel: Kernel, grid: Dim3, cluster: Dim3 | None) -> Dim3 | None:
    """The clusters of a launch: those of the kernel, or those asked for."""
    if kernel.cluster is not None and cluster not in (None, kernel.cluster):
        raise ArgumentError(f"cluster {cluster}: {kernel.name} is made for {kernel.cluster}")
    cluster = kernel.cluster or cluster
    if cluster is None:
        return None
    if len(cluster) != 3 or min(cluster) < 1 or prod(cluster) > MOST_CLUSTER:
        raise ArgumentError(
            f"cluster {cluster} is no size: three positive numbers, together at most "
            f"{MOST_CLUSTER} CTAs, are needed"
        )
    if any(n % c for n, c in zip(grid, cluster, strict=True)):
        raise ArgumentError(f"grid {grid} is not made of whole clusters of {cluster}")
    return cluster


def _parameters(kernel: Kernel, arguments: Sequence[Any]) -> tuple[Arguments, list[Any]]:
    if len(arguments) != len(kernel.params):
        names = ", ".join(p.name for p in kernel.params)
        raise ArgumentError(
            f"{kernel.name} has {len(kernel.params)} parameters ({names}), "
            f"{len(arguments)} values given"
        )
    memory = Arguments(arguments)
    arrays, maps, bits = 0, 0, []
    for param, argument in zip(kernel.params, arguments, strict=True):
        if isinstance(argument, GlobalPointer):
            bits.append(np.uint64(memory.address(arrays)))
            arrays += 1
        elif isinstance(argument, TensorMapArgument):
            bits.append(np.uint64((MAP_BASE + maps) << MAP_SHIFT))
            maps += 1
        else:
            bits.append(_bits(param, argument))
    return memory, bits


def _bits(param: Param, argument: Any) -> Any:
    dtype = param.value.type.dtype
    item = argument.item() if isinstance(argument, np.generic) else argument
    if not isinstance(item, (int, float)):
        item = float(argument)  # scalars of ml_dtypes
    return word(param.value.type.register_bits)(const_bits(Const(item, dtype)))


def _chunks(
    kernel: Kernel, ctas: int, threads: int, workers: int, cluster: int, shared: int,
    most: int = 1, polls: bool = False, registers: int = REGISTERS,
) -> tuple[int, int]:  # fmt: skip
    """CTAs of a chunk, each with `shared` bytes, and how many chunks run at a time.

    threads: of a CTA, rounded up to whole warps or warpgroups, as they take room.
    most: CTAs that the device holds at a time. polls: a loop waits for what others write.
    registers: bytes of the registers of a thread.
    """
    order_matters, waits = _couplings(kernel)
    if order_matters or polls:
        workers = 1
    if waits or polls:
        size = max(min(LARGE_CHUNK // threads, LARGE_SHARED // max(shared, 1)), most)
    else:
        usual, least = CHUNK, LEAST_CHUNK
        if _has_warpgroups(kernel):
            usual, least = WIDE_CHUNK, LEAST_WIDE_CHUNK
        usual *= max(workers // AT_ONCE, 1)  # each step is shared by so many
        wanted = min(max(usual, REGISTERS // max(registers, 1)), MOST_THREADS)
        size = min(wanted // threads, SHARED // max(shared, 1))
        size = min(size, max(-(-ctas // min(workers, AT_ONCE)), least // threads))
    size = -(-max(size, 1) // cluster) * cluster
    return size, min(workers, AT_ONCE, -(-ctas // size))


def _has_warpgroups(kernel: Kernel) -> bool:
    """Has the kernel instructions of whole warpgroups?"""
    return any(isinstance(node, Op) and node.instr.threads > 32 for node in walk(kernel.body))


def _couplings(kernel: Kernel) -> tuple[bool, bool]:
    """Can a kernel observe the order in which its CTAs run? May a CTA wait for another one?"""
    ordered = any(_couples(node) for node in walk(kernel.body))
    loops = [node for node in walk(kernel.body) if isinstance(node, While)]
    waits = any(_couples(n) for loop in loops for b in (loop.test, loop.body) for n in walk(b))
    return ordered, waits


def _couples(node: Any) -> bool:
    """Does the node show in which order CTAs run: strong or atomic global accesses, and prints?

    Accesses to shared memory do not count: a chunk has whole clusters.
    """
    if not isinstance(node, Op):
        return False
    instr = node.instr
    if "bulk" in instr.effects:
        return "op" in instr.params  # a reduction
    strong = {"load", "volatile"} <= instr.effects and any(o.kind == "addr" for o in instr.operands)
    return "print" in instr.effects or (strong and not instr.space.startswith("shared"))
