"""What the CTAs of a cluster did to each other's shared memory, and which of it they know of.

For kernels with loads and stores of shared::cluster: each byte remembers the last CTA that wrote
it, and the last that read it. A CTA that then reads what another one wrote, or overwrites what it
read, must have met it in between: by the cluster's barrier, by an mbarrier that other CTAs arrive
at, or by a load with an order of its own (acquire, volatile, atom).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, Loc

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

RANK_BITS = 4  # a cluster has at most 16 CTAs
MEET = "the cluster must meet in between (barrier.cluster, or an mbarrier of the one that waits)"


@dataclass(frozen=True)
class Access:
    """Accesses of `size` bytes, one each of `threads`, from byte `starts` of `ctas` on."""

    threads: np.ndarray
    ctas: np.ndarray
    starts: np.ndarray
    size: int
    verb: str

    @classmethod
    def own(
        cls, machine: Machine, addresses: np.ndarray, mask: np.ndarray, size: int, verb: str
    ) -> Access:
        """The threads of `mask`, in their own CTA."""
        threads = np.flatnonzero(mask)
        return cls(threads, threads // machine.group, addresses[threads].astype(int), size, verb)

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """CTA and byte of all that is accessed, as an index of (CTAs, bytes): a row a thread."""
        return self.ctas[:, None], self.starts[:, None] + np.arange(self.size)

    def describe(self, machine: Machine, row: int) -> str:
        """One thread's access, for messages."""
        thread, start = int(self.threads[row]), int(self.starts[row])
        there, where = int(self.ctas[row]), "shared"
        text = f"{self.verb} of {self.size} bytes at {start:#x}"
        if there != thread // machine.group:
            where, text = "shared::cluster", f"{text} of block {machine.block_name(there)}"
        return f"{where} {text} by {machine.describe(thread)}"


class Traces:
    """wrote, read: (CTAs, bytes), an event and the rank of its CTA, 0 for none; known: (T,) the
    machine's clock up to which a thread knows what other CTAs did; reached: (CTAs,) the last
    event by which another CTA accessed this one."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.peers = machine.geometry.cluster_ctas
        self.wrote, self.read = (np.zeros(machine.shared.data.shape, np.int32) for _ in range(2))
        self.known = np.zeros(machine.threads, np.int64)
        self.reached = np.zeros(machine.geometry.ctas, np.int32)
        self.clocks = np.zeros(1024, np.int64)  # of each event
        self.steps = np.zeros(1024, np.int32)
        self.events = 0

    # --- accesses ---------------------------------------------------------------------------

    def load(self, access: Access) -> None:
        if not self._ordered:
            self._check(self.wrote, access)
            self._note(self.read, access)

    def store(self, access: Access) -> None:
        if not self._ordered:
            self._check(self.read, access)
        self._note(self.wrote, access)

    @property
    def _ordered(self) -> bool:
        """Does the running step bring an order of its own?"""
        form = self.machine.program.steps[self.machine.at_step].form
        return form is not None and form.opcode != "cp" and "volatile" in form.effects

    def _check(self, table: np.ndarray, access: Access) -> None:
        found = table[access.places]
        others = (found != 0) & (found % (1 << RANK_BITS) != self._ranks(access)[:, None])
        if others.any():
            late = self.clocks[found >> RANK_BITS] >= self.known[access.threads][:, None]
            if (others & late).any():
                row, byte = divmod(int(np.argmax(others & late)), access.size)
                self._refuse(access, row, byte, int(found[row, byte]))

    def _note(self, table: np.ndarray, access: Access) -> None:
        codes = (self._event() << RANK_BITS) + self._ranks(access)
        table[access.places] = codes[:, None]
        away = access.ctas != access.threads // self.machine.group
        self.reached[access.ctas[away]] = codes[away]

    def _ranks(self, access: Access) -> np.ndarray:
        ranks: np.ndarray = access.threads // self.machine.group % self.peers
        return ranks.astype(np.int32)

    def _event(self) -> int:
        self.events += 1
        if self.events == len(self.clocks):
            self.clocks = np.concatenate((self.clocks, np.zeros_like(self.clocks)))
            self.steps = np.concatenate((self.steps, np.zeros_like(self.steps)))
        self.clocks[self.events] = self.machine.clock
        self.steps[self.events] = self.machine.at_step
        return self.events

    # --- who knows --------------------------------------------------------------------------

    def meet_block(self, go: np.ndarray) -> None:
        """Threads passed a barrier of their CTA: they know what any of it knows."""
        known = self.known.reshape(-1, self.machine.group)
        self.learn(go, np.repeat(known.max(axis=1), self.machine.group))

    def learn(self, go: np.ndarray, clock: np.ndarray | int) -> None:
        """The warps of threads `go` know what happened before the clock showed `clock`."""
        warps = np.repeat((go & self.machine.mask).reshape(-1, 32).any(axis=1), 32)
        self.known = np.where(warps, np.maximum(self.known, clock), self.known)

    def check_started(self, access: Access) -> None:
        """Nobody may access another CTA before it is known to have started."""
        group = self.machine.group
        early = (access.ctas != access.threads // group) & (self.known[access.threads] == 0)
        if early.any():
            row = int(np.argmax(early))
            there = self.machine.block_name(int(access.ctas[row]))
            raise EmulationError(
                f"{access.describe(self.machine, row)} before the cluster has met "
                f"(barrier.cluster): block {there} may not have started, or not have written it"
            )

    def leave(self, cta: int) -> None:
        """A CTA ends: it must know of all that other CTAs did to its shared memory."""
        code, group = int(self.reached[cta]), self.machine.group
        event = code >> RANK_BITS
        if code and self.known[cta * group : (cta + 1) * group].max() <= self.clocks[event]:
            block = self.machine.block_name(cta)
            raise EmulationError(
                f"block {block} may end before block {self._peer(cta, code)} accesses its shared "
                "memory here: let the cluster meet (barrier.cluster) before a CTA ends",
                self._loc(event),
            )

    # --- messages ---------------------------------------------------------------------------

    def _refuse(self, access: Access, row: int, byte: int, code: int) -> NoReturn:
        machine, place = self.machine, int(access.starts[row]) + byte
        peer, where = self._peer(int(access.ctas[row]), code), self._loc(code >> RANK_BITS)
        did = f"block {peer} {'wrote' if access.verb == 'load' else 'reads'} byte {place:#x}"
        raise EmulationError(f"{access.describe(machine, row)}: {did} at {where}; {MEET}")

    def _peer(self, cta: int, code: int) -> str:
        first = cta // self.peers * self.peers
        return self.machine.block_name(first + code % (1 << RANK_BITS))

    def _loc(self, event: int) -> Loc | None:
        return self.machine.program.steps[int(self.steps[event])].loc
