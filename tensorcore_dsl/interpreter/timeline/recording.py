"""Recording of an emulated run: the steps of each warp, as input of the cost model.

The order of the run is one of many legal orders. Only its dependences count: arrivals at the phases
of barriers, waits for them, and copies that complete them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Union

from tensorcore_dsl import dtypes
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.program import Step
from tensorcore_dsl.isa.spec import Instruction

# What phases belong to: an mbarrier, a named barrier, or the barrier of a cluster.
MBARRIER, NAMED, CLUSTER = "an mbarrier", "a barrier", "the cluster's barrier"
# A barrier and one of its phases: (MBARRIER, CTA, slot, phase), (NAMED, CTA, number, phase) or
# (CLUSTER, cluster, 0, phase). CTAs and clusters count from the first one that is recorded.
Phase = tuple[str, int, int, int]


class WarpAccess(NamedTuple):
    """Words that a warp loads or stores.

    Attributes
    ----------
    passes : int
        Passes over the banks (shared memory) or 32-byte sectors (global memory).
    ideal : int
        As few as the same bytes can take.
    """

    warp: int
    space: str
    verb: str
    bytes: int
    passes: int
    ideal: int


class Arrive(NamedTuple):
    """A warp arrives at a phase."""

    warp: int
    phase: Phase


class Wait(NamedTuple):
    """A warp goes on because a phase is over."""

    warp: int
    phase: Phase


class BulkLoad(NamedTuple):
    """A bulk copy into shared memory of `cta`, whose bytes the phase counts."""

    warp: int
    cta: int
    bytes: int
    phase: Phase


class Bytes(NamedTuple):
    """Bytes that asynchronous units move for a warp: a bulk store, or the operands of a product."""

    warp: int
    space: str
    verb: str
    bytes: int


class Commit(NamedTuple):
    """A warp closes its group of asynchronous operations: "copies", "bulk" or "products"."""

    warp: int
    queue: str


class GroupWait(NamedTuple):
    """A warp waits until at most `pending` of its groups are incomplete."""

    warp: int
    queue: str
    pending: int


Detail = Union[WarpAccess, Arrive, Wait, BulkLoad, Bytes, Commit, GroupWait]


class Entry(NamedTuple):
    """Steps `first` to `last` - 1, executed by the warps whose bits are set in `warps`."""

    first: int
    last: int
    warps: int
    details: tuple[Detail, ...]


@dataclass
class Recording:
    """The first CTAs of a launch.

    Attributes
    ----------
    ctas : int
        Recorded CTAs, whole clusters.
    warps : int
        Of a CTA.
    cluster : int
        CTAs of a cluster.
    grid : int
        CTAs of the launch.
    shared_bytes : int
        Of a CTA.
    operands : int
        Bytes of the arrays of the launch.
    barriers : dict
        The step that initialised an mbarrier, by (kind, CTA, slot).
    """

    steps: list[Step]
    ctas: int
    warps: int
    cluster: int
    grid: int
    shared_bytes: int
    operands: int
    cta_names: list[str]
    entries: list[Entry] = field(default_factory=list)
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    barriers: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def of_warps(self) -> list[list[tuple[int, list[Detail]]]]:
        """For each warp of the recorded CTAs, its steps in order, with their details."""
        traces: list[list[tuple[int, list[Detail]]]] = [[] for _ in range(self.ctas * self.warps)]
        for entry in self.entries:
            by_warp: dict[int, list[Detail]] = {}
            for detail in entry.details:
                by_warp.setdefault(detail.warp, []).append(detail)
            executing = set(_bits(entry.warps))
            for warp in sorted(executing | set(by_warp)):  # others arrived at a barrier and wait
                details = by_warp.get(warp, [])
                for at in range(entry.first, entry.last):
                    traces[warp].append((at, details))
        return traces

    def multiplications(self) -> float:
        """Multiply-adds of the tensor cores, counted as if their operands had 16 bits."""
        total = 0.0
        for entry in self.entries:
            for at in range(entry.first, entry.last):
                instr = self.steps[at].instr
                if instr is not None and instr.shape is not None:
                    warps = bin(entry.warps).count("1")
                    total += warps * WARP / instr.threads * multiplications(instr)
        return total


def multiplications(instr: Instruction) -> float:
    """Multiply-adds of a product, counted as if its operands had 16 bits; 0 if it is none."""
    if instr.shape is None or "a" not in instr.params:
        return 0.0
    m, n, k = instr.shape
    return m * n * k * dtypes.named(instr.params["a"]).bits / 16


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
