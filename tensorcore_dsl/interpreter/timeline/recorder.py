"""Record a running machine: wrap its steps, and their calls of memories and barriers.

A machine without a recorder has no hook and pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.program import Run, Step
from tensorcore_dsl.interpreter.core.report import Tally, bank_passes, sectors
from tensorcore_dsl.interpreter.core.threads import scalar, words
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.memory.accesses import REAL, SIZE
from tensorcore_dsl.interpreter.memory.global_memory import Arguments
from tensorcore_dsl.interpreter.regions.plan import NO_REGIONS
from tensorcore_dsl.interpreter.sync.barrier_phases import BYTES, PHASE
from tensorcore_dsl.interpreter.timeline.recording import (
    CLUSTER,
    MBARRIER,
    NAMED,
    Arrive,
    BulkLoad,
    Bytes,
    Commit,
    Detail,
    Entry,
    GroupWait,
    Phase,
    Recording,
    Wait,
    WarpAccess,
)
from tensorcore_dsl.isa.context import CLUSTER_SHIFT
from tensorcore_dsl.isa.effects import Effect

SLOT = 8  # bytes of an mbarrier


class Recorder:
    """Records the first `ctas` CTAs of a launch, rounded up to whole clusters."""

    def __init__(self, ctas: int = 1) -> None:
        self.wanted = ctas
        self.recording: Recording | None = None

    def attach(self, machine: Machine, grid: int) -> None:
        """Record what `machine` runs, in a launch of `grid` CTAs."""
        self.recording = _Hooks(machine, self.wanted, grid).recording


class _Tally(Tally):
    """The counters of the chunk. They also pass each access to the hooks."""

    def __init__(self, inner: Tally, hooks: _Hooks) -> None:
        self.__dict__.update(inner.__dict__)
        self._hooks = hooks

    def access(
        self, at: int, space: str, verb: str, addresses: np.ndarray, mask: np.ndarray, size: int
    ) -> None:
        super().access(at, space, verb, addresses, mask, size)
        self._hooks.access(space, verb, addresses, mask, size)


class _Hooks:
    """The hooks of one machine.

    active: recorded warps that execute the running step; details: what it has done so far.
    """

    def __init__(self, machine: Machine, wanted: int, grid: int) -> None:
        self.machine = machine
        ctx = self.ctx = machine.ctx
        geometry = ctx.geometry
        cluster = geometry.cluster_ctas
        several = cluster * geometry.devices  # CTAs of one cluster of each device
        ctas = min(-(-wanted // several) * several, geometry.ctas)
        self.per_cta = geometry.group // WARP
        self.warps = ctas * self.per_cta
        self.threads = self.warps * WARP
        self.recording = Recording(
            ctx.program.steps,
            ctas,
            self.per_cta,
            cluster,
            grid,
            ctx.program.kernel.shared_bytes + geometry.dynamic_shared,
            _argument_bytes(ctx.globals.arguments),
            [ctx.cta_name(cta) for cta in range(ctas)],
        )
        self.details: list[Detail] = []
        self.counted: dict[tuple[str, str], int] = {}  # bytes that `access` has seen in this step
        self._mask: Any = None  # the mask whose bits were computed last
        self._bits = 0
        self.at_barrier = np.full(ctx.threads, -1, np.int64)  # the phase that a thread waits for
        self.phases: dict[tuple[int, int], list[int]] = {}  # (CTA, number): phase, arrivals
        self.met = np.zeros((2, ctx.threads), np.int64)  # cluster arrivals and waits of a thread
        self._install()
        machine.execute_at(NO_REGIONS)  # Each step is recorded.
        steps = ctx.program.steps
        machine.runs = [self._recorded(at, step, machine.runs[at]) for at, step in enumerate(steps)]

    def _install(self) -> None:
        ctx = self.ctx
        ctx.tally = _Tally(ctx.tally, self)
        for owner, name, hook in (
            (ctx.mbarriers, "arrive", self.arrive),
            (ctx.mbarriers, "done", self.done),
            (ctx.mbarriers, "complete", self.complete),
            (ctx.barriers, "arrive", self.meet),
            (ctx.clusters, "arrive", self.cluster_arrive),
            (ctx.clusters, "done", self.cluster_done),
            (ctx.async_copies, "commit", partial(self.commit, "copies")),
            (ctx.async_copies, "wait", partial(self.group_wait, "copies")),
            (ctx.bulk, "commit", partial(self.commit, "bulk")),
            (ctx.bulk, "wait", partial(self.group_wait, "bulk")),
            (ctx.async_mma, "commit", partial(self.commit, "products")),
            (ctx.async_mma, "wait", partial(self.group_wait, "products")),
        ):
            setattr(owner, name, partial(hook, getattr(owner, name)))

    # -- steps ---------------------------------------------------------------------------------

    def _recorded(self, at: int, step: Step, run: Run) -> Run:
        instr = step.instr
        moves = instr is not None and (instr.ordering is not None or Effect.BULK in instr.effects)
        append, recording = self.recording.entries.append, self.recording

        def recorded(machine: Machine) -> int | None:
            ctx = machine.ctx
            before = self.bits(ctx.mask)
            if not before:
                return run(machine)
            mask = ctx.mask
            self.details = []
            self.counted = {}
            moved = dict(ctx.tally.bytes) if moves else {}
            target = run(machine)
            there = ctx.cohorts.get(at)
            if there is not None and (there.mask & mask).any():
                mask = mask & ~there.mask  # the others are asked again later
                before = self.bits(mask)
                if not before and not self.details:
                    return target
            if moves:
                self._moved(moved, mask)
            last = target if instr is not None and target is not None and target > at else at + 1
            append(Entry(at, last, before, tuple(self.details)))
            for detail in self.details:
                if isinstance(detail, (WarpAccess, Bytes)):
                    recording.bytes[detail.space, detail.verb] += detail.bytes
            self.details = []
            return target

        return recorded

    def bits(self, mask: np.ndarray) -> int:
        """The recorded warps with a thread in `mask`, as bits."""
        if mask is not self._mask:
            some = np.any(mask[: self.threads].reshape(-1, WARP), axis=1)
            self._bits = int.from_bytes(np.packbits(some, bitorder="little").tobytes(), "little")
            self._mask = mask
        return self._bits

    def warps_of(self, mask: np.ndarray) -> list[int]:
        some = np.any(mask[: self.threads].reshape(-1, WARP), axis=1)
        return [int(warp) for warp in np.flatnonzero(some)]

    def _moved(self, before: dict[tuple[str, str], int], mask: np.ndarray) -> None:
        """Share among the warps the bytes that asynchronous units have moved in this step."""
        threads = np.flatnonzero(mask)
        for key, total in self.ctx.tally.bytes.items():
            extra = total - before.get(key, 0) - self.counted.get(key, 0)
            if extra:
                share, remainder = divmod(extra, len(threads))
                recorded = threads[threads < self.threads]
                for i, (warp, count) in enumerate(zip(*np.unique(recorded // WARP, return_counts=True))):
                    amount = share * int(count) + (remainder if i == 0 else 0)
                    self.details.append(Bytes(int(warp), *key, amount))

    # -- what steps ask for ----------------------------------------------------------------------

    def access(self, space: str, verb: str, addresses: np.ndarray, mask: np.ndarray, size: int) -> None:
        measure = sectors if space == "global" else bank_passes
        addresses = np.broadcast_to(addresses, mask.shape).astype(np.uint64)
        key = space, verb
        self.counted[key] = self.counted.get(key, 0) + int(np.count_nonzero(mask)) * size
        for warp in self.warps_of(mask):
            part = slice(warp * WARP, warp * WARP + WARP)
            units, ideal = divmod(int(measure(addresses[part], mask[part], size)), 1 << 32)
            total = int(np.count_nonzero(mask[part])) * size
            self.details.append(WarpAccess(warp, space, verb, total, units, ideal))

    def arrive(
        self,
        inner: Callable[..., None],
        bar: Any,
        count: Any,
        expected: Any,
        drops: bool = False,
        ends: bool = True,
    ) -> None:
        mask, mbarriers, ctx = self.ctx.mask, self.ctx.mbarriers, self.ctx
        counts = words(count, ctx.threads)
        arrivals: dict[tuple[int, Phase], None] = {}
        for thread in np.flatnonzero(mask[: self.threads] & (counts[: self.threads] > 0)):
            address = scalar(bar, thread)
            own_cta = int(thread) // ctx.group
            cta = ctx.clusters.cta(own_cta, address >> CLUSTER_SHIFT)
            slot = (address & (1 << CLUSTER_SHIFT) - 1) // SLOT
            if cta < ctx.geometry.ctas and slot < mbarriers.index.shape[1]:
                phase = int(mbarriers.at(cta, slot)[PHASE])
                arrivals[int(thread) // WARP, (MBARRIER, cta, slot, phase)] = None
        inner(bar, count, expected, drops, ends)
        self.details += [Arrive(warp, phase) for warp, phase in arrivals]

    def done(self, inner: Callable[..., np.ndarray], bar: Any, parity: Any) -> np.ndarray:
        go = inner(bar, parity)
        waits: dict[tuple[int, Phase], None] = {}
        for thread in np.flatnonzero(go[: self.threads] & self.ctx.mask[: self.threads]):
            cta, slot = int(thread) // self.ctx.group, scalar(bar, thread) // SLOT
            phase = int(self.ctx.mbarriers.at(cta, slot)[PHASE]) - 1
            waits[int(thread) // WARP, (MBARRIER, cta, slot, phase)] = None
            made = self.ctx.mbarriers.made_at(cta, slot)
            if made is not None:
                self.recording.barriers[MBARRIER, cta, slot] = made
        self.details += [Wait(warp, phase) for warp, phase in waits]
        return go

    def complete(
        self,
        inner: Callable[..., np.ndarray],
        threads: np.ndarray,
        ctas: np.ndarray,
        addresses: np.ndarray,
        size: int,
        **more: Any,
    ) -> np.ndarray:
        """Bytes of copies have come to mbarriers."""
        phases = inner(threads, ctas, addresses, size, **more)
        slots = addresses // BYTES
        for thread, cta, slot, phase in np.stack((threads, ctas, slots, phases), axis=1).tolist():
            if thread < self.threads and cta < self.recording.ctas:
                self.details.append(BulkLoad(thread // WARP, cta, size, (MBARRIER, cta, slot, phase)))
        return phases

    def meet(
        self, inner: Callable[..., np.ndarray], barrier: Any, count: Any, wait: bool, *vote: Any
    ) -> np.ndarray:
        """Arrivals at named barriers, and those who go on."""
        ctx = self.ctx
        numbers = np.broadcast_to(np.asarray(barrier), (ctx.threads,))
        mask = ctx.mask[: self.threads]
        new = np.flatnonzero(mask & (self.at_barrier[: self.threads] < 0))
        details: dict[Detail, None] = {}
        for thread in map(int, new):
            key = thread // ctx.group, int(numbers[thread])
            now = self.phases.setdefault(key, [0, 0])
            details[Arrive(thread // WARP, (NAMED, *key, now[0]))] = None
            if wait:
                self.at_barrier[thread] = now[0]
        if count is not None:
            self._count(new, numbers, words(count, ctx.threads))
        go = inner(barrier, count, wait, *vote)
        if wait:
            for thread in map(int, np.flatnonzero(mask & go[: self.threads])):
                key = thread // ctx.group, int(numbers[thread])
                phase = int(self.at_barrier[thread])
                details[Wait(thread // WARP, (NAMED, *key, phase))] = None
                self.at_barrier[thread] = -1
                if count is None:
                    self.phases[key][0] = max(self.phases[key][0], phase + 1)
        self.details += details
        return go

    def _count(self, new: np.ndarray, numbers: np.ndarray, counts: np.ndarray) -> None:
        """Count arrivals at barriers with a count: the last one of a phase begins the next."""
        for thread in map(int, new):
            now = self.phases[thread // self.ctx.group, int(numbers[thread])]
            now[1] += 1
            if now[1] >= counts[thread]:
                now[:] = now[0] + 1, 0

    def cluster_arrive(self, inner: Callable[[], None]) -> None:
        inner()
        self._cluster(self.ctx.mask, 0, Arrive)

    def cluster_done(self, inner: Callable[[], np.ndarray]) -> np.ndarray:
        go = inner()
        self._cluster(go & self.ctx.mask, 1, Wait)
        return go

    def _cluster(self, mask: np.ndarray, row: int, kind: type[Arrive] | type[Wait]) -> None:
        details: dict[Detail, None] = {}
        for thread in map(int, np.flatnonzero(mask[: self.threads])):
            cluster = thread // self.ctx.group // self.recording.cluster
            details[kind(thread // WARP, (CLUSTER, cluster, 0, int(self.met[row, thread])))] = None
        self.met[row] += mask
        self.details += details

    def commit(self, queue: str, inner: Callable[[], None]) -> None:
        inner()
        self.details += [Commit(warp, queue) for warp in self.warps_of(self.ctx.mask)]

    def group_wait(self, queue: str, inner: Callable[..., None], pending: int, **how: Any) -> None:
        inner(pending, **how)
        self.details += [GroupWait(w, queue, pending) for w in self.warps_of(self.ctx.mask)]


def _argument_bytes(arguments: Arguments) -> int:
    """Bytes of the arrays of a launch; an array that is passed twice counts once."""
    return sum({int(row[REAL]): int(row[SIZE]) for row in arguments.table}.values())


def recorder_of(timeline: bool | int) -> Recorder | None:
    """The recorder that `kernel.emulator(timeline=...)` asks for."""
    if timeline is False:
        return None
    if not isinstance(timeline, int) or timeline < 1:
        raise ArgumentError(f"timeline is {timeline!r}; True or a number of CTAs is needed")
    return Recorder(int(timeline))
