"""What threads know of each other, and race checks between the CTAs of a cluster.

Barriers advance a logical clock. Whoever passes one knows of everything that happened before.

Each byte remembers the last CTA that wrote it and the last CTA that read it. A CTA that reads what
another one wrote, or overwrites what another one read, must have synchronised with it in between:
by the cluster's barrier, by an mbarrier at which other CTAs arrive, or by a load that orders by
itself (acquire, volatile, atomic).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, Loc
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk
from tensorcore_dsl.isa import advice

RANK_BITS = 4  # a cluster has at most 16 CTAs
_ADVICE = (
    f"the cluster must meet in between ({advice.CLUSTER_BARRIER}, or an mbarrier of the one that "
    "waits)"
)


class HappensBefore:
    """Knowledge of each thread of a chunk, kept for whole warps.

    clock: the time of the last event. synced: (T,) the clock when a warp last passed a barrier of
    any kind, or read a word by which others may signal. known: (T,) the clock up to which a thread
    knows what the other CTAs of its cluster did; it only counts where `remote` is true.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.clock = 0
        self.synced, self.known = np.zeros((2, chunk.threads), np.int64)
        self.remote = chunk.program.remote and chunk.checks

    def tick(self) -> int:
        """The time of a new event."""
        self.clock += 1
        return self.clock

    def synchronise(self, go: np.ndarray) -> None:
        """The active threads of `go` pass a barrier of their CTA: they know what it knows."""
        if self.chunk.program.asynchronous:
            self.synced.reshape(-1, WARP)[self._warps(go)] = self.tick()
        if self.remote:
            known = self.known.reshape(-1, self.chunk.group)
            self.learn(go, np.repeat(known.max(axis=1), self.chunk.group))

    def learn(self, go: np.ndarray, clock: np.ndarray | int) -> None:
        """The active threads of `go` know what all CTAs did up to time `clock`."""
        if self.remote:
            warps = np.repeat(self._warps(go), WARP)
            self.known = np.where(warps, np.maximum(self.known, clock), self.known)

    def _warps(self, go: np.ndarray) -> np.ndarray:
        return np.asarray((go & self.chunk.mask).reshape(-1, WARP).any(axis=1))


@dataclass(frozen=True)
class Access:
    """Accesses of `size` bytes each: one of each of `threads`, at bytes `starts` of `ctas`."""

    threads: np.ndarray
    ctas: np.ndarray
    starts: np.ndarray
    size: int
    verb: str

    @classmethod
    def own(
        cls, chunk: Chunk, addresses: np.ndarray, mask: np.ndarray, size: int, verb: str
    ) -> Access:
        """Accesses of the threads of `mask` to their own CTA."""
        threads = np.flatnonzero(mask)
        return cls(threads, threads // chunk.group, addresses[threads].astype(int), size, verb)

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Index of all bytes in arrays of (CTAs, bytes): (threads, 1) and (threads, size)."""
        return self.ctas[:, None], self.starts[:, None] + np.arange(self.size)

    def describe(self, chunk: Chunk, row: int) -> str:
        """One thread's access, for messages."""
        thread, start = int(self.threads[row]), int(self.starts[row])
        cta, space = int(self.ctas[row]), "shared"
        text = f"{self.verb} of {self.size} bytes at {start:#x}"
        if cta != thread // chunk.group:
            space, text = "shared::cluster", f"{text} of block {chunk.block_name(cta)}"
        return f"{space} {text} by {chunk.describe(thread)}"


class ClusterRaces:
    """Last writer and last reader of each byte of shared memory.

    wrote, read: (CTAs, bytes), `event << RANK_BITS | rank` of the CTA, 0 for none. reached: (CTAs,)
    the same for the last access by another CTA. times: (events, 2), clock and step of each event.
    """

    def __init__(self, chunk: Chunk, order: HappensBefore, shape: tuple[int, ...]) -> None:
        self.chunk = chunk
        self.order = order
        self.peers = chunk.geometry.cluster_ctas
        self.wrote, self.read = (np.zeros(shape, np.int32) for _ in range(2))
        self.reached = np.zeros(chunk.geometry.ctas, np.int32)
        self.times = np.zeros((1024, 2), np.int64)
        self.events = 0

    def access(self, access: Access, ordered: bool) -> None:
        """Check and note an access; not the loads of an instruction that orders by itself
        (`ordered`), whose stores are only noted."""
        checked, noted = self.wrote, self.read
        if access.verb == "store":
            checked, noted = noted, checked
        if not ordered:
            self._check(checked, access)
        if not ordered or access.verb == "store":
            self._note(noted, access)

    @property
    def ordered(self) -> bool:
        """Does the running instruction order by itself?"""
        instr = self.chunk.instruction(self.chunk.at_step)
        return instr is not None and "volatile" in instr.effects

    def _check(self, table: np.ndarray, access: Access) -> None:
        codes = table[access.places]
        others = (codes != 0) & (codes % (1 << RANK_BITS) != self._ranks(access)[:, None])
        if others.any():
            known = self.order.known[access.threads]
            unknown = others & (self.times[codes >> RANK_BITS, 0] >= known[:, None])
            if unknown.any():
                row, byte = divmod(int(np.argmax(unknown)), access.size)
                self._refuse(access, row, byte, int(codes[row, byte]))

    def _note(self, table: np.ndarray, access: Access) -> None:
        codes = (self._event() << RANK_BITS) + self._ranks(access)
        table[access.places] = codes[:, None]
        away = access.ctas != access.threads // self.chunk.group
        self.reached[access.ctas[away]] = codes[away]

    def _ranks(self, access: Access) -> np.ndarray:
        ranks: np.ndarray = access.threads // self.chunk.group % self.peers
        return ranks.astype(np.int32)

    def _event(self) -> int:
        self.events += 1
        if self.events == len(self.times):
            self.times = np.concatenate((self.times, np.zeros_like(self.times)))
        self.times[self.events] = self.order.clock, self.chunk.at_step
        return self.events

    def check_started(self, access: Access) -> None:
        """A CTA may access another one only when it must know that the other one has started."""
        early = access.ctas != access.threads // self.chunk.group
        early &= self.order.known[access.threads] == 0
        if early.any():
            row = int(np.argmax(early))
            block = self.chunk.block_name(int(access.ctas[row]))
            raise EmulationError(
                f"{access.describe(self.chunk, row)} before the cluster has met "
                f"({advice.CLUSTER_BARRIER}): block {block} may not have started, or not have "
                "written it"
            )

    def leave(self, cta: int) -> None:
        """A CTA ends: it must know of all that other CTAs did to its shared memory."""
        code, group = int(self.reached[cta]), self.chunk.group
        known = self.order.known[cta * group : (cta + 1) * group].max()
        if code and known <= self.times[code >> RANK_BITS, 0]:
            block = self.chunk.block_name(cta)
            raise EmulationError(
                f"block {block} may end before block {self._peer(cta, code)} accesses its shared "
                f"memory here: let the cluster meet ({advice.CLUSTER_BARRIER}) before a CTA ends",
                self._loc(code),
            )

    def _refuse(self, access: Access, row: int, byte: int, code: int) -> NoReturn:
        place = int(access.starts[row]) + byte
        peer, loc = self._peer(int(access.ctas[row]), code), self._loc(code)
        did = f"block {peer} {'wrote' if access.verb == 'load' else 'reads'} byte {place:#x}"
        raise EmulationError(f"{access.describe(self.chunk, row)}: {did} at {loc}; {_ADVICE}")

    def _peer(self, cta: int, code: int) -> str:
        first = cta // self.peers * self.peers
        return self.chunk.block_name(first + code % (1 << RANK_BITS))

    def _loc(self, code: int) -> Loc | None:
        return self.chunk.loc(int(self.times[code >> RANK_BITS, 1]))
