"""Clusters: whose shared memory an address names, and `barrier.cluster` (PTX manual 9.7.13.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, OWN

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

REGISTERS = 1 << 16  # of a multiprocessor, and so of a CTA
WARPGROUP = 128
NOBODY = OWN - 2  # the greatest rank that an address has room for


class Clusters:
    """The clusters of a chunk; `gone` are the CTAs that have ended.

    arrivals, waits: how many times each thread has arrived at its cluster's barrier and passed
    it; phase: how many times each barrier has completed; arrived_at, completed_at: the machine's
    clock at the last arrival, and at the one that completed the last phase.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.size = machine.geometry.cluster_ctas
        self.gone = np.zeros(machine.geometry.ctas, np.bool_)
        self.arrivals = np.zeros(machine.threads, np.int64)
        self.waits = np.zeros(machine.threads, np.int64)
        self.phase = np.zeros(machine.geometry.ctas // self.size, np.int64)
        self.arrived_at, self.completed_at = np.zeros_like(self.phase), np.zeros_like(self.phase)
        self.registers = np.zeros(machine.threads // 32, np.int64)  # of each warp; 0: as launched
        self.changes: dict[int, list[tuple[int, int]]] = {}  # warp: (step, registers) in order

    # --- addresses --------------------------------------------------------------------------

    def cta(self, own: int, rank: int) -> int:
        """The CTA that a rank field of an address names (0: the thread's own)."""
        return own // self.size * self.size + rank - 1 if rank else own

    def first(self, cta: int) -> int:
        """The first thread of the cluster of a CTA."""
        return cta // self.size * self.size * self.machine.group

    def peer(self, own: int, rank: int, who: str) -> int:
        """The same, checked."""
        if rank > self.size:
            self.refuse_rank(rank - 1, who)
        return self.cta(own, rank)

    def address(self, address: Any, rank: Any) -> np.ndarray:
        """mapa: addresses of the same place in the CTAs of these ranks.

        A rank that does not exist makes an address that nothing may be done with.
        """
        ranks = np.broadcast_to(np.asarray(rank, np.uint32), (self.machine.threads,))
        ranks = np.minimum(ranks, np.uint32(NOBODY))
        low = np.asarray(address, np.uint32) & np.uint32((1 << CLUSTER_SHIFT) - 1)
        return np.asarray(low | (ranks + np.uint32(1)) << np.uint32(CLUSTER_SHIFT))

    def refuse_rank(self, rank: int, who: str) -> NoReturn:
        raise EmulationError(
            f"CTA {rank} of the cluster does not exist: the cluster has {self.size} ({who})"
        )

    def refuse_gone(self, cta: int, what: str, who: str) -> NoReturn:
        raise EmulationError(
            f"peer CTA gone: {who} reaches for {what} of block {self.machine.block_name(cta)}, "
            "which has ended: let the cluster meet (barrier.cluster) before a CTA ends"
        )

    # --- the barrier ------------------------------------------------------------------------

    def arrive(self) -> None:
        mask = self.machine.mask
        twice = mask & (self.arrivals > self.waits)
        if twice.any():
            who = self.machine.describe(int(np.argmax(twice)))
            raise EmulationError(f"{who} arrives at the cluster's barrier twice without waiting")
        self.arrivals += mask
        self.machine.progress += 1
        self.note_arrival()

    def note_arrival(self) -> None:
        """The active threads arrive, or exit, which counts as arriving."""
        machine = self.machine
        machine.clock += 1
        here = machine.mask.reshape(-1, self.size * machine.group).any(axis=1)
        self.arrived_at[here] = machine.clock

    def done(self) -> np.ndarray:
        """(T,) bool: has every thread of the cluster arrived?"""
        machine = self.machine
        early = machine.mask & (self.arrivals == self.waits)
        if early.any():
            who = machine.describe(int(np.argmax(early)))
            raise EmulationError(f"{who} waits at the cluster's barrier without having arrived")
        per = self.size * machine.group
        here = (self.arrivals > np.repeat(self.phase, per)) | machine.gone
        over = here.reshape(-1, per).all(axis=1)
        self.phase += over
        self.completed_at[over] = self.arrived_at[over]
        go: np.ndarray = np.repeat(self.phase, per) > self.waits
        self.waits += go & machine.mask
        return go

    def completed(self) -> np.ndarray:
        """(T,) the clock when the last phase of each thread's cluster was completed."""
        return np.repeat(self.completed_at, self.size * self.machine.group)

    def lacking(self, mask: np.ndarray) -> list[str]:
        """Who has not arrived at the barriers that `mask` waits at."""
        machine, per = self.machine, self.size * self.machine.group
        away = (self.arrivals <= np.repeat(self.phase, per)) & ~machine.gone
        waiting = np.asarray(mask.reshape(-1, per).any(axis=1))
        away &= np.repeat(waiting, per)
        return [f"the cluster waits for {machine.threads_text(away)}"] if away.any() else []

    # --- registers --------------------------------------------------------------------------

    def set_registers(self, count: int, grow: bool) -> None:
        """setmaxnreg (9.7.19.5)."""
        machine = self.machine
        machine.whole_warps()
        warps = np.flatnonzero(machine.mask.reshape(-1, 32)[:, 0])
        for warp in warps:
            now = int(self.registers[warp])
            if now and (now > count) == grow and now != count:
                raise EmulationError(
                    f"setmaxnreg.{'inc' if grow else 'dec'} to {count} by a warp that has {now}"
                )
            self.registers[warp] = count
            self.changes.setdefault(int(warp), []).append((machine.at_step, count))
        per = machine.group // 32
        used = 32 * self.registers.reshape(-1, per).sum(axis=1)
        if machine.threads_per_cta % WARPGROUP == 0 and (used > REGISTERS).any():
            raise EmulationError(
                f"setmaxnreg {count}: the block's warps would own {int(used.max())} registers; a "
                f"multiprocessor has {REGISTERS}"
            )

    def leave(self, cta: int) -> None:
        """A CTA ends: the warps of each of its warpgroups must have done the same."""
        per = self.machine.group // 32
        for first in range(cta * per, (cta + 1) * per, 4):
            done = [self.changes.get(w, []) for w in range(first, min(first + 4, (cta + 1) * per))]
            for change in done[0] + done[-1]:
                if any(change not in other for other in done):
                    loc = self.machine.program.steps[change[0]].loc
                    raise EmulationError(
                        f"setmaxnreg at {loc} was executed by a part of a warpgroup: all of its "
                        "four warps must", loc,
                    )  # fmt: skip
