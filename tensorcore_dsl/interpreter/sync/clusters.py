"""Clusters: ranks in addresses, the barrier (PTX manual 9.7.13.3), registers of warpgroups."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.arch import SM_REGISTERS
from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core.chunk import WARP, WARPGROUP, Chunk
from tensorcore_dsl.interpreter.core.threads import PerThread
from tensorcore_dsl.interpreter.sanitizer.happens_before import CLUSTERS
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer
from tensorcore_dsl.isa import advice, classify
from tensorcore_dsl.isa.context import CLUSTER_SHIFT
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.lowering import compiled


class Clusters:
    """The clusters of a chunk; `gone` are the CTAs that have ended.

    Threads that have exited are not waited for, and release nothing: the manual promises order only for
    accesses before an arrival.

    Attributes
    ----------
    arrivals, waits
        (T,), how many times each thread has arrived at its cluster's barrier and passed it.
    phase
        How many times each barrier has completed.
    met
        Steps that arrived.
    registers
        (warps,), registers of a thread; 0: the number at the launch.
    changes : dict
        (step, registers) of each warp, in order.
    wanted : dict
        What a CTA would own with the registers for which a warp waits.
    """

    arrivals, waits = PerThread(), PerThread()

    def __init__(self, chunk: Chunk, sanitizer: Sanitizer) -> None:
        self.chunk = chunk
        self.detector = sanitizer.detector
        self.size = chunk.geometry.cluster_ctas
        self.gone = np.zeros(chunk.geometry.ctas, np.bool_)
        clusters = chunk.geometry.ctas // self.size
        self.phase = np.zeros(clusters, np.int64)
        self.met = 0
        self._nobody: Any = None  # the state in which a wait last let nobody pass
        self.registers = np.zeros(chunk.threads // WARP, np.int64)
        self.changes: dict[int, list[tuple[int, int]]] = {}
        self.wanted: dict[int, int] = {}

    def cta(self, own: int, rank: int) -> int:
        """The CTA that a rank field of an address names (0: the thread's own)."""
        return own // self.size * self.size + rank - 1 if rank else own

    def ctas(self, threads: np.ndarray, addresses: np.ndarray) -> np.ndarray:
        """CTAs of addresses, one for each of the threads; ranks are not checked."""
        own = threads // self.chunk.group
        ranks = addresses.astype(np.int64) >> CLUSTER_SHIFT
        return np.where(ranks > 0, own // self.size * self.size + ranks - 1, own)

    def peer(self, own: int, rank: int, who: str) -> int:
        """The CTA that a rank field of an address names; the rank must exist."""
        if rank > self.size:
            self.refuse_rank(rank - 1, who)
        return self.cta(own, rank)

    def refuse_rank(self, rank: int, who: str) -> NoReturn:
        raise EmulationError(f"CTA {rank} of the cluster does not exist: the cluster has {self.size} ({who})")

    def refuse_gone(self, cta: int, what: str, who: str) -> NoReturn:
        raise EmulationError(
            f"peer CTA gone: {who} reaches for {what} of CTA {self.chunk.cta_name(cta)}, "
            f"which has ended: let the cluster meet by {advice.CLUSTER_BARRIER} before a CTA ends"
        )

    def arrive(self) -> None:
        """The active threads arrive at the cluster's barrier."""
        mask = self.chunk.mask
        twice = mask & (self.arrivals > self.waits)
        if twice.any():
            who = self.chunk.describe(int(np.argmax(twice)))
            raise EmulationError(f"{who} arrives at the cluster's barrier twice without waiting")
        if self.detector is not None:
            instr = self.chunk.instruction(self.chunk.at_step)
            relaxed = instr is not None and classify.is_relaxed(instr)
            release = self.detector.release_fenced if relaxed else self.detector.release
            release(CLUSTERS, mask, self._units(), self.arrivals)
        self.arrivals += mask
        self.met += 1
        self.chunk.progress += 1

    def _units(self) -> np.ndarray:
        """(T,) the cluster of each thread."""
        return np.arange(self.chunk.threads) // (self.size * self.chunk.group)

    def done(self) -> np.ndarray:
        """Return (T,) bool: whether every thread of the cluster has arrived."""
        chunk = self.chunk
        asked = chunk.here, self.met, chunk.exits
        if asked == self._nobody:
            return np.zeros(chunk.threads, np.bool_)
        go = np.empty(chunk.threads, np.bool_)
        early = _pass(chunk.mask, chunk.gone, self.arrivals, self.waits, self.phase, go)
        if early >= 0:
            who = chunk.describe(early)
            raise EmulationError(f"{who} waits at the cluster's barrier without having arrived")
        if not go.any():
            self._nobody = asked
        elif self.detector is not None:
            self.detector.acquire(CLUSTERS, go, self._units(), self.waits - 1)
            self.detector.met_cluster |= go
        return go

    def lacking(self, mask: np.ndarray) -> list[str]:
        """The threads that the barriers where `mask` waits lack, as lines of text."""
        chunk, per = self.chunk, self.size * self.chunk.group
        away = (self.arrivals <= np.repeat(self.phase, per)) & ~chunk.gone
        waiting = np.asarray(mask.reshape(-1, per).any(axis=1))
        away &= np.repeat(waiting, per)
        return [f"the cluster waits for {chunk.warps_text(away)}"] if away.any() else []

    def set_registers(self, instr: Instruction, count: int, grow: bool) -> np.ndarray:
        """Set the registers of each thread of the active warps (9.7.19.5).

        The threads that go on are returned. Others wait until their CTA has given back enough registers.
        """
        chunk, go = self.chunk, self.chunk.mask.copy()
        chunk.whole_warps()
        warps, per = np.flatnonzero(chunk.mask.reshape(-1, WARP)[:, 0]), chunk.group // WARP
        for warp in warps:
            now = int(self.registers[warp])
            if now and (now > count) == grow and now != count:
                raise EmulationError(
                    f"{instr.opcode}.{'inc' if grow else 'dec'} to {count} by a warp that has {now}"
                )
            first = warp // per * per
            owned = WARP * (int(self.registers[first : first + per].sum()) - now + count)
            if grow and owned > SM_REGISTERS and chunk.threads_per_cta % WARPGROUP == 0:
                self.wanted[int(warp)] = owned
                go[WARP * warp : WARP * (warp + 1)] = False
                continue
            self.registers[warp] = count
            self.changes.setdefault(int(warp), []).append((chunk.at_step, count))
            self.wanted.pop(int(warp), None)
        self.chunk.progress += not grow
        return go

    def lacking_registers(self, mask: np.ndarray) -> list[str]:
        """The registers for which the threads of `mask` wait, as lines of text."""
        warps = np.flatnonzero(mask.reshape(-1, WARP)[:, 0]).tolist()
        most = max((self.wanted[warp] for warp in warps if warp in self.wanted), default=0)
        text = f"the CTA's warps would own {most} registers; a multiprocessor has {SM_REGISTERS}"
        return [text] if most else []

    def leave(self, cta: int) -> None:
        """A CTA ends: the warps of each of its warpgroups must have done the same."""
        per = self.chunk.group // WARP
        for first in range(cta * per, (cta + 1) * per, 4):
            done = [self.changes.get(w, []) for w in range(first, min(first + 4, (cta + 1) * per))]
            for change in done[0] + done[-1]:
                if any(change not in other for other in done):
                    instr, loc = self.chunk.instruction(change[0]), self.chunk.loc(change[0])
                    raise EmulationError(
                        f"{instr.opcode if instr else ''} at {loc} was executed by a part of a "
                        "warpgroup: all of its four warps must",
                        loc,
                    )


@compiled
def _pass(active: Any, gone: Any, arrivals: Any, waits: Any, phase: Any, go: Any) -> int:
    """Let the active threads whose clusters have met pass, `go`; -1, or a thread that has not
    arrived, and nothing done."""
    early = 0
    for thread in range(active.size):
        early += active[thread] & (arrivals[thread] == waits[thread])
    if early:
        for thread in range(active.size):
            if active[thread] and arrivals[thread] == waits[thread]:
                return thread
    per = active.size // phase.size
    for cluster in range(phase.size):
        away = 0
        for thread in range(cluster * per, (cluster + 1) * per):
            away += (arrivals[thread] <= phase[cluster]) & ~gone[thread]
        phase[cluster] += away == 0
        for thread in range(cluster * per, (cluster + 1) * per):
            passes = active[thread] & (phase[cluster] > waits[thread])
            go[thread] = passes
            waits[thread] += passes
    return -1
