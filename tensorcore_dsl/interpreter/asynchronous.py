"""The part of a machine that Hopper's asynchronous kernels use: what rows ask for by name."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tensorcore_dsl.interpreter.bulk import Bulk
from tensorcore_dsl.interpreter.cluster import Clusters
from tensorcore_dsl.interpreter.mbarrier import Mbarriers
from tensorcore_dsl.interpreter.products import Products
from tensorcore_dsl.interpreter.proxies import Proxies
from tensorcore_dsl.interpreter.traces import Traces

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine
    from tensorcore_dsl.interpreter.program import Program
    from tensorcore_dsl.interpreter.steps import Run


def runs(program: Program, profile: bool) -> list[Run]:
    """The steps of a program, with what the machine notes of some."""
    found = []
    for at, step in enumerate(program.steps):
        noted = profile or program.remote or step.noted
        run = _noting(at, step.run) if noted else step.run
        found.append(_meeting(run) if program.asynchronous and step.meets else run)
    return found


def _noting(at: int, run: Run) -> Run:
    """A step that says first which one it is."""

    def noted(machine: Machine) -> int | None:
        machine.at_step = at
        return run(machine)

    return noted


def _meeting(run: Run) -> Run:
    """A step by which threads may learn of what others did."""

    def met(machine: Machine) -> int | None:
        target = run(machine)
        machine.meet(machine.all_threads)
        if machine.traces is not None:
            machine.traces.learn(machine.all_threads, machine.clock)
        return target

    return met


class Asynchronous:
    """mbarriers, bulk copies, products in flight and clusters, made when first used."""

    proxies: Proxies
    traces: Traces | None
    clock: int = 0

    @property
    def _machine(self) -> Machine:
        return cast("Machine", self)

    @cached_property
    def mbarriers(self) -> Mbarriers:
        return Mbarriers(self._machine)

    @cached_property
    def bulk(self) -> Bulk:
        return Bulk(self._machine)

    @cached_property
    def products(self) -> Products:
        return Products(self._machine)

    @cached_property
    def clusters(self) -> Clusters:
        return Clusters(self._machine)

    @cached_property
    def met(self) -> np.ndarray:
        """(T,) the clock when a thread of each one's warp last passed a barrier of any kind, or
        read a word that others may wait with (acquire, volatile, atom)."""
        return np.zeros(self._machine.threads, np.int64)

    def meet(self, go: np.ndarray) -> None:
        """The warps of threads that pass a barrier."""
        machine = self._machine
        if machine.program.asynchronous:
            machine.clock += 1
            warps = (go & machine.mask).reshape(-1, 32).any(axis=1)
            self.met.reshape(-1, 32)[warps] = machine.clock
        if machine.traces is not None:
            machine.traces.meet_block(go)

    # --- mbarriers --------------------------------------------------------------------------

    def mbarrier_init(self, bar: np.ndarray, count: Any) -> None:
        self.mbarriers.init(bar, count)

    def mbarrier_arrive(self, bar: np.ndarray, count: Any, expected: Any) -> None:
        self.mbarriers.arrive(bar, count, expected)

    def mbarrier_done(self, bar: np.ndarray, parity: Any) -> np.ndarray:
        return self.mbarriers.done(bar, parity)

    # --- bulk copies ------------------------------------------------------------------------

    def tensor_load(
        self, dst: np.ndarray, tensor: np.ndarray, coordinates: tuple[Any, ...], bar: np.ndarray,
        mask: Any,
    ) -> None:  # fmt: skip
        self.bulk.tensor_load(dst, tensor, coordinates, bar, mask)

    def tensor_store(
        self, tensor: np.ndarray, coordinates: tuple[Any, ...], src: np.ndarray, op: str | None
    ) -> None:
        self.bulk.tensor_store(tensor, coordinates, src, op)

    def bulk_load(
        self, dst: np.ndarray, src: np.ndarray, size: Any, bar: np.ndarray, mask: Any
    ) -> None:
        self.bulk.bulk_load(dst, src, size, bar, mask)

    def bulk_store(
        self, dst: np.ndarray, src: np.ndarray, size: Any, op: str | None, dtype: str | None
    ) -> None:
        self.bulk.bulk_store(dst, src, size, op, dtype)

    def bulk_share(self, dst: np.ndarray, src: np.ndarray, size: Any, bar: np.ndarray) -> None:
        self.bulk.bulk_share(dst, src, size, bar)

    def bulk_commit(self) -> None:
        self.bulk.commit()

    def bulk_wait(self, pending: int, reading: bool) -> None:
        """Stores are done when issued, so that both waits free their source alike."""
        self.bulk.wait(pending)

    # --- products and proxies ---------------------------------------------------------------

    def fence_proxy_async(self) -> None:
        self.proxies.fence(self._machine.mask)

    def wgmma_fence(self) -> None:
        self.products.fence()

    def wgmma_commit(self) -> None:
        self.products.commit()

    def wgmma_wait(self, pending: int) -> None:
        self.products.wait(pending)

    def fetch_chunks(self, addresses: np.ndarray, whole: np.ndarray) -> np.ndarray:
        return self.products.fetch(addresses, whole)

    # --- clusters ---------------------------------------------------------------------------

    def cluster_address(self, address: Any, rank: Any) -> np.ndarray:
        return self.clusters.address(address, rank)

    def cluster_arrive(self) -> None:
        self.clusters.arrive()

    def cluster_done(self) -> np.ndarray:
        go = self.clusters.done()
        self._machine.meet(go)
        if self.traces is not None:
            self.traces.learn(go, self.clusters.completed())
        return go

    def set_registers(self, count: int, grow: bool) -> None:
        self.clusters.set_registers(count, grow)

    # --- the machine asks -------------------------------------------------------------------

    def leave(self) -> None:
        """CTAs whose last thread has ended: nobody may still reach for them."""
        machine = self._machine
        ended = machine.gone.reshape(machine.geometry.ctas, -1).all(axis=1) & ~self.clusters.gone
        self.clusters.note_arrival()
        for cta in np.flatnonzero(ended):
            self.clusters.gone[cta] = True
            self.clusters.leave(int(cta))
            self.bulk.leave(int(cta))
            self.proxies.leave(machine, int(cta))
            if self.traces is not None:
                self.traces.leave(int(cta))
            if "mbarriers" in self.__dict__:
                self.mbarriers.leave(int(cta))

    def waits(self, mask: np.ndarray, form: Any) -> list[str]:
        """What threads wait for at an instruction, for the report of a deadlock."""
        if form is None:
            return []
        if form.opcode == "mbarrier":
            return self.mbarriers.waits(mask)
        return self.clusters.lacking(mask) if "cluster" in form.effects else []
