"""Counts of a run: instructions, bytes of each state space, bank conflicts of each source line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core.native import compiled
from tensorcore_dsl.interpreter.core.program import Step
from tensorcore_dsl.viz.html import html_table

SECTOR = 32  # bytes of a global transaction
BANKS = 32


@dataclass
class Traffic:
    """Memory accesses of one source line.

    Attributes
    ----------
    accesses : int
        Instructions of warps.
    bytes : int
        Of all lanes.
    units : int
        32-byte sectors (global) or passes over the banks (shared) that the accesses took.
    ideal : int
        The units that its different bytes need at least.
    """

    accesses: int = 0
    bytes: int = 0
    units: int = 0
    ideal: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*map(add, astuple(self), astuple(other)))

    @property
    def excess(self) -> int:
        """Bank conflicts (shared), or sectors that better coalescing would save (global)."""
        return self.units - self.ideal


@dataclass(repr=False)
class Report:
    """Counts of an emulated launch.

    Attributes
    ----------
    instructions : Counter
        Warps that executed each instruction, without the checks of indices.
    bytes : Counter
        By (space, verb): "global", "shared" or "shared::cluster", and "load" or "store".
    lines : dict
        Traffic by (file:line, space, verb), filled only if the launch has `profile`.
    executed : Counter
        Instructions of warps by file:line, filled only if the launch has `profile`.
    trace : Trace or None
        The variables that the emulator was asked to record.
    timeline : Timeline or None
        The estimate of its time, if it was asked for.
    """

    instructions: Counter[str] = field(default_factory=Counter)
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    lines: dict[tuple[str, str, str], Traffic] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter)
    trace: Any = None
    timeline: Any = None

    def __add__(self, other: Report) -> Report:
        lines = dict(self.lines)
        for key, traffic in other.lines.items():
            lines[key] = lines.get(key, Traffic()) + traffic
        counts = (self.instructions + other.instructions, self.bytes + other.bytes)
        return Report(*counts, lines, self.executed + other.executed)

    def _repr_html_(self) -> str:
        """Traffic by line, bytes, instructions, and the timeline."""
        about = ("accesses", "bytes", "units", "ideal", "excess")
        lines = [
            (Path(line).name, f"{space} {verb}", *astuple(traffic), traffic.excess)
            for (line, space, verb), traffic in sorted(self.lines.items())
        ]
        traffic = html_table("accesses by line", ["line", "of", *about], lines, bad=6) if lines else ""
        moved = [(" ".join(key), number) for key, number in sorted(self.bytes.items())]
        counts = html_table("bytes", ["of", "bytes"], moved)
        counts += html_table("instructions", ["instruction", "warps"], self.instructions.most_common())
        timeline = "" if self.timeline is None else self.timeline._repr_html_()
        return f"{timeline}{traffic}<details><summary>counts</summary>{counts}</details>"

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        out = ["instructions (warps):"]
        out += [f"  {n:>12,}  {instr}" for instr, n in self.instructions.most_common()]
        out += ["bytes:"]
        out += [f"  {n:>12,}  {space} {verb}" for (space, verb), n in sorted(self.bytes.items())]
        for (line, space, verb), traffic in sorted(self.lines.items()):
            unit = "sectors" if space == "global" else "bank passes"
            out.append(f"{line}: {space} {verb}: {traffic.units:,} {unit}, {traffic.ideal:,} ideal")
        return "\n".join(out)


class Tally:
    """The counters of one chunk.

    Attributes
    ----------
    counts
        By step, how many warps executed it alone, and as the first of several.
    behind
        By the first and the end of the others of these, how many warps executed them.
    """

    def __init__(self, steps: int, profile: bool) -> None:
        self.counts = [0] * steps
        self.behind: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.profile = profile
        self.traffic: dict[tuple[int, str, str], Traffic] = {}

    def access(
        self, at: int, space: str, verb: str, addresses: np.ndarray, mask: np.ndarray, size: int
    ) -> None:
        """Count an access of `size` bytes by each thread of `mask` in step `at`."""
        lanes = int(np.count_nonzero(mask))
        self.bytes[space, verb] += lanes * size
        if self.profile:
            measure = sectors if space == "global" else bank_passes
            units, ideal = divmod(int(measure(addresses.astype(np.uint64), mask, size)), 1 << 32)
            traffic = Traffic(lanes, lanes * size, units, ideal)
            key = (at, space, verb)
            self.traffic[key] = self.traffic.get(key, Traffic()) + traffic

    def executed(self) -> list[int]:
        """By step, how many warps executed it."""
        counts = np.array(self.counts)
        for (start, end), warps in self.behind.items():
            counts[start:end] += warps
        executions: list[int] = counts.tolist()
        return executions

    def report(self, steps: Sequence[Step]) -> Report:
        instructions, executed = Counter[str](), Counter[str]()
        for step, count in zip(steps, self.executed(), strict=True):
            if count and step.counted:
                instructions[step.counted] += count
                if self.profile:
                    executed[str(step.loc)] += count
        lines: dict[tuple[str, str, str], Traffic] = {}
        for (at, space, verb), traffic in self.traffic.items():
            key = (str(steps[at].loc), space, verb)
            lines[key] = lines.get(key, Traffic()) + traffic
        return Report(instructions, self.bytes, lines, executed)


@compiled
def sectors(addresses: Any, active: Any, size: int) -> int:
    """`sectors << 32 | ideal`, summed over warps."""
    units, ideal = 0, 0
    seen = np.empty(32 * 2, np.uint64)
    for warp in range(addresses.size // 32):
        count, lanes = 0, 0
        for thread in range(warp * 32, warp * 32 + 32):
            if not active[thread]:
                continue
            known = False
            for other in range(warp * 32, thread):
                known = known or (active[other] and addresses[other] == addresses[thread])
            if not known:  # lanes that access the same word need one
                lanes += 1
            sector = addresses[thread] // np.uint64(SECTOR)
            last = (addresses[thread] + np.uint64(size - 1)) // np.uint64(SECTOR)
            while sector <= last and count < 64:
                known = False
                for i in range(count):
                    known = known or seen[i] == sector
                if not known:
                    seen[count] = sector
                    count += 1
                sector += np.uint64(1)
        units += count
        ideal += (lanes * size + SECTOR - 1) // SECTOR
    return units << 32 | ideal


@compiled
def bank_passes(addresses: Any, active: Any, size: int) -> int:
    """Count the passes of an access: return `passes << 32 | ideal`.

    32, 16 or 8 lanes access up to 128 bytes at a time. Each such group takes one pass for each different
    word of its busiest bank.
    """
    units, ideal = 0, 0
    group = 32 if size <= 4 else 128 // size
    words = (size + 3) // 4
    bank_words = np.empty((BANKS, 64), np.uint64)
    used = np.empty(BANKS, np.int64)
    for start in range(0, addresses.size, group):
        used[:] = 0
        lanes = 0
        for thread in range(start, start + group):
            if not active[thread]:
                continue
            lanes += 1
            for i in range(words):
                word = addresses[thread] // np.uint64(4) + np.uint64(i)
                bank = int(word % np.uint64(BANKS))
                known = False
                for j in range(used[bank]):
                    known = known or bank_words[bank, j] == word
                if not known:
                    bank_words[bank, used[bank]] = word
                    used[bank] += 1
        most = 0
        for bank in range(BANKS):
            most = max(most, used[bank])
        units += most
        ideal += 1 if lanes else 0
    return units << 32 | ideal
