"""Replay a recording through the cost table: issues, stalls and waits of each warp.

A discrete-event simulation in cycles. A warp issues its steps in order; a step waits for the
registers that it reads, for the barriers and groups that the recorded step waited for, and for the
units that it needs. Units serve one request after the other, in the order of time.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tensorcore_dsl.interpreter.timeline.costs import Figure
from tensorcore_dsl.interpreter.timeline.recording import (
    CLUSTER,
    MBARRIER,
    NAMED,
    Arrive,
    BulkLoad,
    Bytes,
    Commit,
    Detail,
    GroupWait,
    Phase,
    Recording,
    Wait,
    WarpAccess,
)
from tensorcore_dsl.interpreter.timeline.steps import (
    COPY,
    IDLE,
    JUMP,
    MMA,
    PRODUCT,
    WARPGROUP_WARPS,
    step_costs,
)
from tensorcore_dsl.interpreter.timeline.units import Completion, Groups, Multiprocessor, TimedProduct

PIECE = 2048  # bytes of a bulk copy that are written to shared memory at a time
QUEUE = 64  # cycles of requests to shared memory that may wait before a warp stalls
GLOBAL_QUEUE = 1024  # cycles of requests to global memory that may wait before a warp stalls
# The cost of going on after a phase of each kind of barrier.
WAKING = {MBARRIER: "mbarrier_latency", NAMED: "barrier_latency", CLUSTER: "remote_latency"}
SHORT_STALL_CYCLES = 12  # shorter stalls are part of an issuing segment


class Segment(NamedTuple):
    """A warp's state from `start` to `end`, at the step `at`.

    It is "issue", "wait" (for a phase), "groups" (of asynchronous operations), "registers" (waiting for
    an operand) or "unit" (waiting for a busy unit).
    """

    start: float
    end: float
    state: str
    at: int
    phase: Phase | None = None


class Transfer(NamedTuple):
    """A copy in flight: from its issue until its bytes have arrived. kind: "load" or "store"."""

    start: float
    end: float
    cta: int
    warp: int
    at: int
    bytes: int
    kind: str
    phase: Phase | None


class TensorCoreSpan(NamedTuple):
    """Tensor cores of an SM multiply for a warpgroup, or the one of a scheduler for a warp."""

    start: float
    end: float
    cta: int
    at: int
    scheduler: int | None = None


@dataclass
class Track:
    """A warp of the replay.

    Attributes
    ----------
    position : int
        The next step.
    ready : dict
        By register, when it can be read.
    """

    number: int  # over all CTAs
    cta: int
    scheduler: int
    steps: list[tuple[int, list[Detail]]]
    time: float = 0.0
    position: int = 0
    parked: float = -1.0  # since when it waits for something that has no time yet
    ready: dict[int, float] = field(default_factory=dict)
    groups: dict[str, Groups] = field(default_factory=lambda: defaultdict(Groups))
    products: Counter[int] = field(default_factory=Counter)  # issued so far, by step
    segments: list[Segment] = field(default_factory=list)
    spent: dict[tuple[str, int, Phase | None], float] = field(default_factory=lambda: defaultdict(float))


class Replay:
    """The replay of the recorded CTAs, each on an SM with `resident` - 1 more like it.

    Attributes
    ----------
    sms
        SMs that share L2 and DRAM.
    from_dram
        The part of loaded bytes that DRAM delivers.
    cold
        The part that is not in the L2 cache when it is asked for, although another CTA may have asked
        for it just before.
    """

    def __init__(
        self,
        recording: Recording,
        costs: dict[str, Figure],
        *,
        resident: int = 1,
        sms: int | None = None,
        from_dram: float = 1.0,
        cold: float = 1.0,
    ) -> None:
        self.recording = recording
        self.costs = {name: figure.value for name, figure in costs.items()}
        self.from_dram = from_dram
        c = self.costs
        self.l2_rate = c["l2_rate"]
        self.dram_rate = c["dram_rate"] / (sms or c["sms"])
        self.global_latency = c["dram_latency"] * cold + c["l2_latency"] * (1 - cold)
        self.global_latency += c["loaded_latency"] * (sms or c["sms"]) / c["sms"]
        self.static = step_costs(recording.steps, costs)
        self.sms = [Multiprocessor(int(c["schedulers"])) for _ in range(recording.ctas)]
        self.queue: list[tuple[float, int, Callable[[float], None]]] = []
        self.count = 0
        self.phases: dict[Phase, Completion] = defaultdict(Completion)
        self.gathering: dict[tuple[int, int, int], TimedProduct] = defaultdict(TimedProduct)
        self.transfers: list[Transfer] = []
        self.multiplications: list[TensorCoreSpan] = []
        self.arriving: dict[tuple[str, int, int], str] | None = None  # see summary.py
        self.warps: list[Track] = []
        traces = recording.of_warps()
        for copy in range(resident):
            for number, steps in enumerate(traces):
                cta = number // recording.warps + copy * recording.ctas
                scheduler = (number + copy * recording.warps) % int(c["schedulers"])
                total = number + copy * len(traces)
                self.warps.append(Track(total, cta, scheduler, steps))
        for warp in self.warps:
            for _, details in warp.steps:
                for detail in details:
                    if isinstance(detail, (Arrive, BulkLoad)):
                        self.phases[self._own(warp, detail.phase)].pending += 1
        for warp in self.warps:
            self._later(0.0, partial(self._run, warp))
        self._simulate()

    def _own(self, warp: Track, phase: Phase) -> Phase:
        """The phase of the warp's own resident copy of the recorded CTAs."""
        copy = warp.cta // self.recording.ctas
        if not copy:
            return phase
        kind, owner, number, count = phase
        per = self.recording.cluster if kind == CLUSTER else 1
        return kind, owner + copy * self.recording.ctas // per, number, count

    def _later(self, at: float, run: Callable[[float], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (at, self.count, run))

    def _simulate(self) -> None:
        while self.queue:
            at, _, run = heapq.heappop(self.queue)
            run(at)
        self.end = max((w.time for w in self.warps), default=0.0)

    def sm(self, cta: int) -> Multiprocessor:
        return self.sms[cta % self.recording.ctas]

    # -- warps -----------------------------------------------------------------------------------

    def _run(self, warp: Track, now: float) -> None:
        """Let a warp issue until it waits, or until something else happens before its next step."""
        warp.time = max(warp.time, now)
        while warp.position < len(warp.steps):
            at, details = warp.steps[warp.position]
            cost = self.static[at]
            if cost.kind == COPY:
                times = [warp.ready.get(vreg, 0.0) for vreg in cost.reads]
                for vreg in cost.writes:
                    warp.ready[vreg] = max(times, default=0.0)
                warp.position += 1
                continue
            if cost.kind == IDLE:
                warp.position += 1
                continue
            start, state, phase = self._start(warp, at, details)
            if start is None:
                return
            if start > warp.time:
                self._spend(warp, start, state, at, phase)
            if self.queue and start > self.queue[0][0]:
                self._later(start, partial(self._run, warp))
                return
            self._issue(warp, at, details)
            warp.position += 1

    def _start(self, warp: Track, at: int, details: list[Detail]) -> tuple[float | None, str, Phase | None]:
        """When the step can issue, and what it waits for; None: that has no time yet."""
        cost = self.static[at]
        best, state = warp.time, "issue"
        why: Phase | None = None
        for vreg in cost.reads:
            if warp.ready.get(vreg, 0.0) > best:
                best, state = warp.ready[vreg], "registers"
        for completion, delay, kind, phase in self._awaited(warp, details):
            if completion.pending:
                warp.parked = warp.time
                completion.waiters.append(partial(self._resume, warp))
                return None, kind, phase
            passed = completion.time + delay
            if warp.parked < 0 and completion.time <= warp.time:
                passed = warp.time
            if passed > best:
                best, state, why = passed, kind, phase
        scheduler = self.sm(warp.cta).schedulers[warp.scheduler]
        if scheduler.free > best:
            best, state = scheduler.free, "unit" if state == "issue" else state
        sm = self.sm(warp.cta)
        for detail in details:
            if isinstance(detail, WarpAccess):
                shared = detail.space.startswith("shared")
                free = sm.shared.free - QUEUE if shared else sm.l2.free - GLOBAL_QUEUE
                if free > best:
                    best, state = free, "unit"
        if cost.kind == MMA and sm.tensor[warp.scheduler].free > best:
            best, state = sm.tensor[warp.scheduler].free, "tensor"
        return best, state, why

    def _awaited(
        self, warp: Track, details: list[Detail]
    ) -> Iterator[tuple[Completion, float, str, Phase | None]]:
        """Describe the wait of a step: object, cycles from its end until the warp goes on, state."""
        for detail in details:
            if isinstance(detail, Wait) and detail.phase[3] >= 0:
                delay = self.costs[WAKING[detail.phase[0]]]
                yield self.phases[self._own(warp, detail.phase)], delay, "wait", detail.phase
            elif isinstance(detail, GroupWait):
                for group in warp.groups[detail.queue].due(detail.pending):
                    yield group, 0.0, "groups", None

    def _resume(self, warp: Track) -> None:
        self._later(warp.parked, partial(self._run, warp))

    def _spend(self, warp: Track, until: float, state: str, at: int, phase: Phase | None) -> None:
        """The warp is in a state until then."""
        length = until - warp.time
        warp.spent[state, at, phase] += length
        last = warp.segments[-1] if warp.segments else None
        shown = state if length > SHORT_STALL_CYCLES or state in ("wait", "groups") else "issue"
        same = last is not None and last.state == shown
        if last is not None and same and (shown == "issue" or last[3:] == (at, phase)):
            warp.segments[-1] = last._replace(end=until)
        else:
            warp.segments.append(Segment(warp.time, until, shown, at, phase))
        warp.time = until
        warp.parked = -1.0

    def _issue(self, warp: Track, at: int, details: list[Detail]) -> None:
        """Issue the step now, at the warp's time."""
        cost, now, sm, c = self.static[at], warp.time, self.sm(warp.cta), self.costs
        warp.parked = -1.0
        sm.schedulers[warp.scheduler].serve(now, cost.slots)
        ready = now + cost.latency
        if cost.kind == MMA:
            begin = max(now, sm.tensor[warp.scheduler].free)
            end = sm.tensor[warp.scheduler].serve(now, cost.tensor)
            product = TensorCoreSpan(begin, end, warp.cta, at, warp.scheduler)
            self.multiplications.append(product)
            ready = begin + cost.latency
        elif cost.kind == PRODUCT:
            self._product(warp, at, details, now)
        copies = [d for d in details if isinstance(d, BulkLoad)]
        if copies:
            self._load(warp, at, copies, now)
        for detail in details:
            if isinstance(detail, WarpAccess):
                ended = self._access(warp, detail, now, cost.asynchronous)
                if cost.asynchronous:
                    self._copied(warp, at, detail, now, ended)
                else:
                    ready = max(ready, ended)
            elif isinstance(detail, Bytes):
                if cost.bulk and not copies and detail.space == "shared":
                    self._store(warp, at, detail, now)
            elif isinstance(detail, Arrive):
                self._arrive(warp, detail, now)
            elif isinstance(detail, Commit):
                warp.groups[detail.queue].close()
            elif isinstance(detail, GroupWait):
                warp.groups[detail.queue].end(detail.pending)
        for vreg in cost.writes:
            warp.ready[vreg] = ready
        polls = any(isinstance(d, Wait) and d.phase[0] == MBARRIER for d in details)
        until = now + cost.slots
        until += c["jump"] * (cost.kind == JUMP) + c["mbarrier_poll"] * polls
        self._spend(warp, until, "issue", at, None)

    # -- memory ----------------------------------------------------------------------------------

    def _access(self, warp: Track, access: WarpAccess, now: float, copies: bool) -> float:
        """When the words of a warp have arrived; `copies`: in shared memory."""
        sm, c = self.sm(warp.cta), self.costs
        if access.space.startswith("shared"):
            latency = c["remote_latency" if "cluster" in access.space else "shared_latency"]
            return sm.shared.serve(now, access.passes) + latency
        moved = access.passes * c["sector"]
        if not copies:
            sm.shared.serve(now, moved / c["shared_rate"])  # the L1 cache is the same memory
        ended = sm.l2.serve(now, moved / self.l2_rate)
        if access.verb == "store":
            sm.dram.serve(now, moved / self.dram_rate)
            return ended
        ended = max(ended, sm.dram.serve(now, moved * self.from_dram / self.dram_rate))
        return ended + self.global_latency

    def _copied(self, warp: Track, at: int, access: WarpAccess, now: float, ended: float) -> None:
        """The open group of a warp's own copies gets another one."""
        group = warp.groups["copies"].open
        group.time = max(group.time, ended)
        if access.space == "global":
            about = warp.cta, warp.number, at, access.bytes, "load", None
            self.transfers.append(Transfer(now, ended, *about))

    def _load(self, warp: Track, at: int, copies: list[BulkLoad], now: float) -> None:
        """A bulk copy to shared memory of one or several CTAs arrives piece by piece."""
        sm, c = self.sm(warp.cta), self.costs
        begin = sm.tma.serve(now, c["tma_issue"])
        delay, size = self.global_latency + c["tma_latency"], copies[0].bytes
        left = size
        while left > 0:
            piece = min(PIECE, left)
            left -= piece
            ended = sm.l2.serve(begin, piece / self.l2_rate)
            ended = max(ended, sm.dram.serve(begin, piece * self.from_dram / self.dram_rate))
            for copy in copies:
                landed = partial(self._land, warp, at, copy, piece, now if not left else None)
                self._later(ended + delay, landed)

    def _land(
        self, warp: Track, at: int, copy: BulkLoad, piece: int, issued: float | None, now: float
    ) -> None:
        """A piece of a copy arrives at the SM; with `issued`, the last one."""
        first_cta = warp.cta - warp.cta % self.recording.ctas  # the resident copy
        cta = copy.cta + first_cta
        ended = self.sm(cta).shared.serve(now, piece / self.costs["landing_rate"])
        if issued is None:
            return
        phase = self._own(warp, copy.phase)
        self.transfers.append(Transfer(issued, ended, cta, warp.number, at, copy.bytes, "load", phase))
        self.phases[phase].part_ends(ended)

    def _store(self, warp: Track, at: int, moved: Bytes, now: float) -> None:
        """A bulk store; its group ends when shared memory has been read."""
        sm, c = self.sm(warp.cta), self.costs
        begin = sm.tma.serve(now, c["tma_issue"])
        read = sm.shared.serve(begin, moved.bytes / c["shared_rate"])
        ended = max(read, sm.l2.serve(begin, moved.bytes / self.l2_rate)) + c["shared_latency"]
        sm.dram.serve(begin, moved.bytes / self.dram_rate)
        group = warp.groups["bulk"].open
        group.time = max(group.time, ended)
        self.transfers.append(Transfer(now, ended, warp.cta, warp.number, at, moved.bytes, "store", None))

    def _arrive(self, warp: Track, arrive: Arrive, now: float) -> None:
        kind, owner, *_ = arrive.phase
        remote = kind == CLUSTER and self.recording.cluster > 1
        remote = remote or (kind != CLUSTER and owner != warp.cta % self.recording.ctas)
        delay = self.costs["remote_latency" if remote else "arrive_latency"]
        self.phases[self._own(warp, arrive.phase)].part_ends(now + delay)

    # -- products of warpgroups ------------------------------------------------------------------

    def _product(self, warp: Track, at: int, details: list[Detail], now: float) -> None:
        """A warp issues its part; with the last part, the product waits for the tensor cores."""
        group = warp.groups["products"].open
        group.pending += 1
        warp.products[at] += 1
        key = warp.number // WARPGROUP_WARPS, at, warp.products[at]
        together = self.gathering[key]
        together.groups.append(group)
        together.bytes += sum(d.bytes for d in details if isinstance(d, Bytes))
        if len(together.groups) < WARPGROUP_WARPS:
            return
        del self.gathering[key]
        sm = self.sm(warp.cta)
        together.cycles, together.cta, together.at = self.static[at].tensor, warp.cta, at
        sm.products.append(together)
        if not sm.multiplying:
            sm.multiplying = True
            self._later(now, partial(self._multiply, sm))

    def _multiply(self, sm: Multiprocessor, now: float) -> None:
        """The tensor cores of an SM begin the next product."""
        if not sm.products:
            sm.multiplying = False
            return
        product, c = sm.products.pop(0), self.costs
        cycles = max(product.cycles, product.bytes / c["operand_rate"])
        read = sm.shared.serve(now, product.bytes / c["shared_rate"])
        ended = max(now + cycles, read)
        sm.product_cycles += product.cycles
        self.multiplications.append(TensorCoreSpan(now, ended, product.cta, product.at))
        for group in product.groups:
            group.part_ends(ended + c["wgmma_latency"])
        self._later(ended, partial(self._multiply, sm))
