"""Run a kernel over a grid: chunks of CTAs, spread over the cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from math import prod
from operator import add
from typing import Any

import numpy as np

from tensorcore_dsl import arch as archs
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.core.geometry import Dim3, Geometry
from tensorcore_dsl.interpreter.core.program import Program, word
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.core.shadow import SharedStorage
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
from tensorcore_dsl.interpreter.sanitizer.races import LaunchHistory
from tensorcore_dsl.interpreter.sanitizer.schedule_fuzzing import ScheduleFuzzer
from tensorcore_dsl.interpreter.timeline.recorder import Recorder
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.ir.nodes import Const, Kernel, Op, Param, While, walk

CHUNK = 4096  # threads of a chunk: enough to share the cost of a step, few enough for the caches
MOST_CLUSTER = 16
LARGE_CHUNK = 1 << 18  # threads of a chunk whose CTAs may wait for each other


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
    order: int | None = None,
    observers: Sequence[Observer] = (),
    races: bool = False,
    recorder: Recorder | None = None,
) -> Report:
    """Run `kernel`; the arrays of `GlobalPointer`s among `arguments` are written in place.

    `arguments` has a value for each parameter of the kernel; for tensor maps it is a
    `TensorMapArgument`. `cluster`: CTAs of a cluster, where the kernel does not fix them.
    `program`: the result of `compile_program`, if there is one already. `checks=False` switches off
    all checks but bounds: alignment, the state of shared memory, and what asynchronous operations
    in flight still use. `order`: the seed of the schedule, None for the default one. `observers`:
    the debugger and the recorder of a debug build, in which chunks run one after the other.
    `races`: look for accesses that nothing orders. `recorder`: records the first blocks for a
    timeline.
    """
    program = program or compile_program(kernel)
    target = archs.arch(arch)
    _check_launch(kernel, grid, block, dynamic_shared)
    target.check_shared(kernel.name, kernel.shared_bytes + dynamic_shared)
    cluster = _cluster(kernel, grid, cluster)
    memory, parameters = _parameters(kernel, arguments)
    static = -(-kernel.shared_bytes // 16) * 16 if dynamic_shared else kernel.shared_bytes

    coupled = _couplings(kernel)[0]
    history = LaunchHistory(program, memory.spans(), coupled) if (races or __import__("os").environ.get("RACES")) and checks else None

    def chunk(first: int, ctas: int) -> Report:
        geometry = Geometry(
            grid, block, first, ctas, static, dynamic_shared, program.unit, cluster, program.ranked
        )
        storage = SharedStorage(np.zeros((ctas, static + dynamic_shared), np.uint8), checks)
        ctx = ExecutionContext(program, geometry, memory, storage, target.name, profile, history)
        fuzzer = None if order is None else ScheduleFuzzer((order, first), geometry.threads)
        machine = Machine(ctx, parameters, fuzzer, observers)
        if recorder is not None and first == 0:
            recorder.attach(machine, prod(grid))
        return machine.run()

    workers = 1 if observers else workers
    chunks, workers = _chunks(kernel, prod(grid), prod(block), workers, prod(cluster or (1,)))
    if workers == 1:
        return reduce(add, [chunk(*c) for c in chunks], Report())
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(chunk, *c) for c in chunks]
        try:
            return reduce(add, [f.result() for f in futures], Report())
        finally:
            pool.shutdown(cancel_futures=True)  # after an error the rest need not run


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
    kernel: Kernel, ctas: int, threads: int, workers: int | None, cluster: int = 1
) -> tuple[list[tuple[int, int]], int]:
    """(first CTA, CTAs) of each chunk, and how many chunks run at a time."""
    workers = workers or os.cpu_count() or 1
    order_matters, waits = _couplings(kernel)
    if order_matters:
        workers = 1
    size = max(1, (LARGE_CHUNK if waits else CHUNK) // threads)
    if not waits:
        size = min(size, -(-ctas // workers))
    size = -(-size // cluster) * cluster
    starts = range(0, ctas, size)
    return [(s, min(size, ctas - s)) for s in starts], min(workers, len(starts))


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
