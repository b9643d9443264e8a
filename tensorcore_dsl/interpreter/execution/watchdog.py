"""Watchdog of endless launches, and of limits on the iterations of loops.

A thread is stuck when it comes back to the head of a loop and nothing has changed since: neither
the registers that decide what the loop does (`LoopAnalysis.deciding`) nor memory, barriers or exits of
other threads. It will repeat this iteration for ever, in any order of threads. The launch is stuck
when every thread is, or waits and has been asked again since the last change.

Words that loops write and no loop polls, such as counters of turns, may change meanwhile.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.threads import MAX_KEPT
from tensorcore_dsl.interpreter.execution.context import ExecutionContext
from tensorcore_dsl.interpreter.sync import barrier_phases as mbarriers
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.ir.constants import const_bits
from tensorcore_dsl.isa import classify
from tensorcore_dsl.isa.effects import Effect

VARIABLE = "TENSORCORE_DSL_LIMIT"  # the most iterations of a loop
COMPARED_ITERATIONS = 48  # iterations between two comparisons
MAX_IDLE_ITERATIONS = 1 << 18  # iterations without a change of memory or of barriers, where no limit is given
DEEP_AFTER_SECONDS = 1.0  # seconds after which memory is compared too
DEEP_SHARE = 50  # comparing memory takes at most 1 / DEEP_SHARE of the time
BATCH_ITERATIONS = 4096  # iterations of a warp that compiled code makes at a time
SAMPLE_ITERATIONS = 127  # iterations between two looks at the numbers that a loop compares; prime, so that
# each of the cohorts that take turns is looked at
SAMPLES = 16  # looks at which they have moved apart, until that counts as endless
MAX_BYTES = 1 << 28  # bytes of memory that are compared


class Stop(Protocol):
    """A request to end, such as a `threading.Event`."""

    def is_set(self) -> bool: ...


def limit_of(given: Any) -> int | None:
    """Iterations that a loop may take: argument `limit` of a launch, else TENSORCORE_DSL_LIMIT."""
    text = os.environ.get(VARIABLE, "")
    if given is None and text:
        if not text.isdecimal() or int(text) < 1:
            raise ArgumentError(f"{VARIABLE}={text!r}: a whole number, 1 or more, is needed")
        return int(text)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 1:
        raise ArgumentError(
            f"limit {given!r}: the most iterations that a loop may take is needed, a whole number "
            "from 1 on, or None"
        )
    return int(given)


# Hashes of what others may notice: with all words of memory, and, instead of these, with how often
# steps have written words that may be polled. None where that is not known.
_Digest = tuple[int | None, int | None]
_UNKNOWN: _Digest = None, None
_WRITING = Effect.STORE | Effect.ASYNC | Effect.BULK | Effect.PRINT


@dataclass
class _Probe:
    """A moment at the head of a loop: who was there, the registers and the version of the rest."""

    head: int
    mask: np.ndarray
    vregs: list[int]
    registers: list[Any]
    version: int
    digest: _Digest


class Watchdog(EagerDict):
    """Follows one machine.

    Attributes
    ----------
    iterations
        By the head of a loop, backward jumps of all cohorts.
    changes
        What changed apart from memory.
    repeats
        (T,) the version at which a thread was last found to be stuck or to wait.
    asked : dict
        Newer entries of it, a mask and a version each, oldest first.
    since
        The version from which on the rest of the state has been the same, with `digest` if versions were
        passed that changed nothing in the end.
    apart : dict
        By the head of a loop, the iterations of the loops around it and, by thread, how far the numbers
        that it compares are apart, as parts of all numbers, and for how many looks that has grown.
    """

    def __init__(self, ctx: ExecutionContext, values: list[Any], limit: int | None) -> None:
        self.ctx, self.values = ctx, values
        self.limit, self.patient = limit or sys.maxsize, limit is None
        self.iterations = dict.fromkeys(ctx.program.loops, 0)
        self.endless = {at for at, loop in ctx.program.loops.items() if not loop.counted}
        self.changes = 0
        self.asked: dict[int, tuple[np.ndarray, int]] = {}
        self.since, self.latest = 0, -1
        self.digest = _UNKNOWN
        self.probe: _Probe | None = None
        self.left = COMPARED_ITERATIONS
        self.random, self.jitter = random.Random(0), random.Random(0)
        self.quiet: dict[int, tuple[list[int], int]] = {}
        self.apart: dict[int, Any] = {}
        self.looked: dict[int, int] = {}
        self.due = time.perf_counter() + DEEP_AFTER_SECONDS

    @cached_property
    def repeats(self) -> np.ndarray:
        return np.full(self.ctx.threads, -1, np.int64)

    @property
    def version(self) -> int:
        """Grows when memory, a barrier or anything else changes that other threads may notice."""
        return self.ctx.writes + self.changes

    @property
    def budget(self) -> int:
        """Backward jumps that compiled code may make until this is asked again: of a warp."""
        most = max(self.iterations.values(), default=0)
        return max(min(BATCH_ITERATIONS - self.jitter.randrange(8), self.limit + 1 - most), 1)

    def add_iterations(self, head: int, count: int) -> str:
        """Count backward jumps; says that they are more than the limit, or ""."""
        self.iterations[head] += count
        if self.iterations[head] <= self.limit:
            return ""
        return f"endless loop? It has taken more iterations than the limit of {self.limit:,}"

    def count_iteration(self, head: int) -> str:
        """Count a backward jump of the running cohort; says why it should be the last, or ""."""
        too_many = self.add_iterations(head, 1)
        if too_many:
            return too_many
        if head not in self.endless:
            return ""
        if self.patient and self._is_due(head) and self._moves_apart(head):
            return (
                "endless loop? The numbers that it compares move further and further apart "
                f"(kernel.emulator(limit=...) or {VARIABLE} allows more)"
            )
        self.left -= 1
        probe = self.probe
        if probe is None:
            return self._start(head) if self.left <= 0 else ""
        if probe.head == head and self._recurs(probe):
            self.probe, self.left = None, COMPARED_ITERATIONS
            return self._confirm(probe)
        if self.left <= 0:
            self.probe, self.left = None, COMPARED_ITERATIONS + self.random.randrange(COMPARED_ITERATIONS)
        return ""

    def _is_due(self, head: int) -> bool:
        """True if it is time to look at the numbers that a loop compares."""
        due = self.iterations[head] - self.looked.get(head, 0) >= SAMPLE_ITERATIONS
        if due:
            # Steps that almost wrap around between two looks at a fixed distance would seem short.
            self.looked[head] = self.iterations[head] + self.jitter.randrange(8)
        return due

    def _moves_apart(self, head: int) -> bool:
        """True if the numbers that must become equal have moved apart at each of the last looks."""
        ctx, loop, differences = self.ctx, self.ctx.program.loops[head], []
        for op in loop.equalities:
            a, b = (
                const_bits(source)
                if isinstance(source, nodes.Const)
                else self.values[ctx.program.values[source]]
                for source in op.operands
            )
            if a is None or b is None:
                return False
            apart = np.asarray(a - b)
            parts = np.abs(apart.view(f"i{apart.itemsize}") / 2.0**loop.bits)
            differences.append(np.broadcast_to(parts, ctx.mask.shape))
        if not differences:
            return False
        now, key, outer = np.array(differences), [], loop.outer
        while outer is not None:
            key.append(self.iterations[outer.head])
            outer = outer.outer
        last, then, looks = self.apart.get(head, (None, now, 0))
        # By so small a part of all numbers that they do not wrap around and meet within MAX_IDLE_ITERATIONS.
        further = ((then < now) & (now < then + SAMPLE_ITERATIONS / MAX_IDLE_ITERATIONS / 2)).all(axis=0)
        looks = np.where(ctx.mask, (looks + 1) * further, looks) * (key == last)
        self.apart[head] = key, np.where(ctx.mask, now, then), looks
        far, here = looks >= SAMPLES, ctx.mask
        if loop.counts_in:  # others may write these words
            if loop.counts_in - {"shared"} and ctx.geometry.ctas < math.prod(ctx.geometry.grid):
                return False
            warps = np.repeat(far.reshape(-1, WARP).any(axis=1), WARP)
            far = far | (ctx.barriers.waits_at >= 0)
            for at, cohort in ctx.cohorts.items():
                instr = ctx.program.steps[at].instr
                if instr is not None and classify.is_aligned(
                    instr
                ):  # The instruction needs the lanes in the loop.
                    far |= cohort.mask & warps
            here = self._present(ctx.mask)
        return bool(far[here].all())

    def _present(self, mask: np.ndarray) -> np.ndarray:
        """`mask` and all other threads that run or wait, without CTAs that have not started."""
        here = mask.copy()
        for cohort in self.ctx.cohorts.values():
            here |= cohort.mask
        return here

    def blocked(self, mask: np.ndarray) -> None:
        """These threads have been asked, and wait."""
        self.asked.pop(id(mask), None)
        self.asked[id(mask)] = mask, self.version
        if len(self.asked) > MAX_KEPT:
            self._note_asked()

    def _note_asked(self) -> None:
        for mask, version in self.asked.values():
            self.repeats[mask] = version
        self.asked.clear()

    def _start(self, head: int) -> str:
        """Remember this moment for some iterations: mostly for few, seldom for many."""
        ctx, version = self.ctx, self.version
        values, loop = ctx.program.values, ctx.program.loops[head]
        if self.patient and self._quiet_iterations(head) > MAX_IDLE_ITERATIONS * (1 + len(ctx.cohorts)):
            return (
                f"endless loop? In the last {self._quiet_iterations(head):,} iterations nothing "
                f"but registers has changed (kernel.emulator(limit=...) or {VARIABLE} allows more)"
            )
        vregs = [values[value] for value in loop.outermost.deciding]
        now = [self.values[vreg] for vreg in vregs]
        registers = [None if value is None else value.copy() for value in now]
        digest = _UNKNOWN
        if time.perf_counter() >= self.due:
            digest = self._digest(head)
        self.probe = _Probe(head, ctx.mask, vregs, registers, version, digest)
        self.left = 1
        while self.left < 1 << 20 and self.random.random() < 0.5:
            self.left *= 2
        return ""

    def _quiet_iterations(self, head: int) -> int:
        """Iterations of a loop since memory, barriers or loops around it have moved on."""
        outer, iterations = self.ctx.program.loops[head].outer, self.iterations
        key = [self.version]
        while outer is not None:
            key.append(iterations[outer.head])
            outer = outer.outer
        before, first = self.quiet.get(head, ([], 0))
        if before != key:
            self.quiet[head], first = (key, iterations[head]), iterations[head]
        return iterations[head] - first

    def _recurs(self, probe: _Probe) -> bool:
        """True if these threads stand here with equal registers, and all else is equal."""
        ctx = self.ctx
        changed = self.version != probe.version
        if changed and probe.digest == _UNKNOWN:
            return False
        if ctx.mask is not probe.mask and not np.array_equal(ctx.mask, probe.mask):
            return False
        for vreg, before in zip(probe.vregs, probe.registers, strict=True):
            now = self.values[vreg]
            if now is None or before is None:
                if now is before:
                    continue
                return False
            differ = now != before
            if (differ & probe.mask if np.ndim(differ) else differ).any():
                return False
        return not changed or _alike(self._digest(probe.head), probe.digest)

    def _confirm(self, probe: _Probe) -> str:
        """Note that the threads of `probe` repeat themselves; return whether all do."""
        version = self.version
        if version == probe.version:
            if version != self.latest:
                self.since, self.digest = version, _UNKNOWN
        elif not _alike(probe.digest, self.digest):
            self.since, self.digest = probe.version, probe.digest
        self.latest = version
        self._note_asked()
        self.repeats[probe.mask] = version
        if self.repeats_all(self._present(probe.mask)):
            return "endless loop: nothing that it depends on changes any more"
        return ""

    def repeats_all(self, mask: np.ndarray) -> bool:
        """True if all threads of `mask` are known to repeat themselves, or to wait."""
        self._note_asked()
        return bool((self.repeats[mask] >= self.since).all())

    def _digest(self, head: int) -> _Digest:
        """The hashes, while the active threads are at the head of a loop."""
        start = time.perf_counter()
        given = self.ctx.globals.arguments
        arrays = [a.array for a in given.pointers] + [a.array for a in given.maps]
        shared = self.ctx.shared.storage.data
        counts, unpolled = self.ctx.tally.executed(), self._unpolled(head)
        steps = [(i, s.instr.effects) for i, s in enumerate(self.ctx.program.steps) if s.instr]
        barriers = tuple(array.tobytes() for array in _barriers(self.ctx))
        digest = news = None
        if sum(array.nbytes for array in (*arrays, shared)) <= MAX_BYTES:
            prints = sum(counts[i] for i, effects in steps if Effect.PRINT in effects)
            digest = hash((prints, barriers, *(array.tobytes() for array in (*arrays, shared))))
        if unpolled is not None:
            writing = (i for i, effects in steps if effects & _WRITING)
            news = hash((barriers, *(counts[i] for i in writing if i not in unpolled)))
        now = time.perf_counter()
        self.due = now + DEEP_SHARE * (now - start)
        return digest, news

    def _unpolled(self, head: int) -> set[int] | None:
        """The steps of the loops with threads that write words on which no loop depends.

        None where a loop depends on such a word, or where the words are not known.
        """
        ctx, program = self.ctx, self.ctx.program
        polled, written, undecided = set[int](), set[int](), set[int]()
        cohorts = [(at, cohort.mask) for at, cohort in ctx.cohorts.items()]
        for at, mask in [(head, ctx.mask), *cohorts]:
            start = max((h for h, loop in program.loops.items() if h <= at < loop.end), default=-1)
            if start < 0:
                continue
            loop = program.loops[start]
            deciding = set(loop.outermost.deciding)
            for step in range(start, loop.end):
                if step > start and step in program.loops:
                    return None  # its accesses may go from word to word
                op = program.ops.get(step)
                decides = op is not None and not deciding.isdisjoint(op.results)
                if op is None or not (decides or Effect.STORE in op.instr.effects):
                    continue
                words = self._words(op, mask)
                if words is None:
                    return None
                (polled if decides else written).update(words)
                undecided |= set() if decides else {step}
        return undecided if polled.isdisjoint(written) else None

    def _words(self, op: nodes.Op, mask: np.ndarray) -> set[int] | None:
        """The bytes that threads access by an op whose registers are as they were; None where they
        are not known."""
        word, address = classify.word_access(op.instr), op.operands[0]
        assert word is not None
        shared = word.space in ("shared", "shared::cta")
        if not (shared or word.space == "global") or not isinstance(word.bytes, int):
            return None
        vreg = self.ctx.program.values.get(getattr(address, "base", None))
        value = None if vreg is None else self.values[vreg]
        if value is None or not isinstance(address, nodes.Address):
            return None
        first = np.broadcast_to(value, mask.shape).astype(np.int64) + address.offset
        if shared:  # below zero, by CTA
            first -= (np.arange(mask.size) // self.ctx.group + 1) << 32
        return {int(byte) + i for byte in np.unique(first[mask]) for i in range(word.bytes)}


def _alike(one: _Digest, other: _Digest) -> bool:
    """True if one of the hashes is known and equal."""
    return any(a is not None and a == b for a, b in zip(one, other, strict=True))


def _barriers(ctx: ExecutionContext) -> list[np.ndarray]:
    """The state of all barriers, without how often they have been passed."""
    b, m, c = ctx.barriers, ctx.mbarriers, ctx.clusters
    phases = np.repeat(b.phase, ctx.group, axis=0)
    waits = np.where(b.waits_at < 0, 0, b.waits_for)
    behind = phases[np.arange(ctx.threads), np.maximum(b.waits_at, 0)] - waits
    phase, seen = m.state[..., mbarriers.PHASE], m.state[..., mbarriers.SEEN]
    return [
        b.arrived,
        b.expected,
        b.lanes,
        b.counted,
        b.votes,
        b.waits_at,
        np.where(b.waits_at < 0, 0, behind),
        m.index,
        m.state[..., [mbarriers.COUNT, mbarriers.PENDING, mbarriers.MISSING]],
        phase & 1,
        phase - seen,
        phase == m.state[..., mbarriers.LANDED],
        c.arrivals - c.waits,
        np.repeat(c.phase, c.size * ctx.group) - c.waits,
        ctx.alive,
    ]
