"""What a race is told as: both accesses, the bytes, what would order them, what came closest."""

from __future__ import annotations

import linecache
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.errors import EmulationError, Loc, Race, RaceWarning
from tensorcore_dsl.interpreter.core.chunk import WARP, Positions
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.isa import advice

_VERBS = {"store": ("writes", "wrote", "written"), "load": ("reads", "read", "read")}


class Detector(Protocol):
    """What this module needs of `races.Races`, and of what is left of it (`races.PastChunk`)."""

    @property
    def names(self) -> Positions: ...
    @property
    def number(self) -> int: ...
    @property
    def peers(self) -> int: ...
    @property
    def now(self) -> int: ...


class RunningDetector(Detector, Protocol):
    """The same of a chunk that runs."""

    launch: Any
    places: dict[int, np.ndarray]


@dataclass
class Finding:
    """An access of `thread` in `step`, in conflict with the one of a serial number.

    what, place, serial, lanes: a row of `access_history.found`. mild: both write the same value.
    """

    races: RunningDetector
    what: int
    memory: int
    kind: int
    step: int
    thread: int
    place: int
    serial: int
    lanes: int
    mild: bool

    def tell(self) -> None:
        """Raise or warn."""
        chunk = self.races.names
        here, there = chunk.loc(self.step), self._owner.names.loc(self._step)
        if self.what == history.UNFENCED:
            raise EmulationError(self._unfenced(there), here)
        text = self._text(here, there)
        if not self.mild:
            raise Race(text, here, there)
        key = str(here), str(there)
        if key not in self.races.launch.told:
            self.races.launch.told.add(key)
            text = str(Race(text, here, there))
            warnings.warn(RaceWarning(text, here, there), stacklevel=2)

    # -- the other access -------------------------------------------------------------------------

    @property
    def _owner(self) -> Detector:
        """The chunk of the other access."""
        launch = self.races.launch
        owner: Detector | None = launch.chunks[int(launch.owner[self.serial >> history.PAGE_BITS])]
        assert owner is not None
        return owner

    @property
    def _step(self) -> int:
        return int(self.races.launch.who[self.serial]) >> history.WARP_BITS

    @property
    def _warp(self) -> int:
        return int(self.races.launch.who[self.serial]) & ((1 << history.WARP_BITS) - 1)

    def _other(self) -> str:
        """Who made the other access."""
        chunk = self._owner.names
        instr = chunk.instruction(self._step)
        if self.lanes == 0 and instr is not None and instr.runs_behind:
            unit = f"the {instr.summary} of {self._warp_name(self._owner, self._warp)}"
            return unit
        if self.lanes and self.lanes & (self.lanes - 1) == 0:
            return self._thread_name(self._owner, self._warp * WARP + self.lanes.bit_length() - 1)
        return self._warp_name(self._owner, self._warp)

    @staticmethod
    def _warp_name(races: Detector, warp: int) -> str:
        return races.names.unit_name(warp * WARP, WARP)

    def _thread_name(self, races: Detector, thread: int) -> str:
        chunk = races.names
        warp = thread % chunk.group // WARP
        return f"{chunk.describe(thread)} (warp {warp}, lane {thread % WARP})"

    # -- the text ---------------------------------------------------------------------------------

    def _text(self, here: Loc | None, there: Loc | None) -> str:
        chunk = self.races.names
        mine = "store" if self.kind in (history.STORE, history.STRONG_STORE) else "load"
        theirs = "load" if self.what == history.READ else "store"
        if self.what == history.TOGETHER:
            return self._together(here)
        times = self._times()
        me = self._thread_name(self.races, self.thread)
        instr = chunk.instruction(self.step)
        if instr is not None and instr.runs_behind:
            warp = self._warp_name(self.races, self.thread // WARP)
            me = f"the {instr.summary} of {warp}"
        lines = [
            f"{'race' if not self.mild else 'race of equal values'}: {self._bytes(here)} "
            f"{_VERBS[theirs][2]} by {self._other()} at {there}{_source(there)}{times}, "
            f"{_VERBS[mine][2]} here by {me}; nothing orders the two",
            *(f"  {line}" for line in (self._closest(), self._advice()) if line),
        ]
        return "\n".join(lines)

    def _bytes(self, here: Loc | None) -> str:
        name = _expression(here)
        start = self.place
        size = 1 << int(self.races.places[history.OWN][0][history.SHIFT])
        text = f"shared bytes {start:#x} to {start + size - 1:#x}"
        if self.memory == history.CLUSTER:
            text = f"shared::cluster bytes {start:#x} to {start + size - 1:#x}"
        if self.memory == history.GLOBAL:
            text = "global memory"
        return f"`{name}` ({text})" if name else text

    def _times(self) -> str:
        """How often the other warp had made that access, if it is in a loop."""
        owner = self._owner
        who = self.races.launch.who
        mine = np.flatnonzero(
            who[: self.serial + 1] == (self._step << history.WARP_BITS | self._warp)
        )
        pages = self.races.launch.owner[mine >> history.PAGE_BITS]
        count = int(np.count_nonzero(pages == owner.number))
        return f" (time {count})" if count > 1 else ""

    def _together(self, here: Loc | None) -> str:
        chunk = self.races.names
        first = self.thread // WARP * WARP
        lanes = [i for i in range(WARP) if self.lanes >> i & 1 or first + i == self.thread]
        names = ", ".join(map(str, lanes[:4])) + (", ..." if len(lanes) > 4 else "")
        warp = self._warp_name(self.races, self.thread // WARP)
        kind = "the same value" if self.mild else "different values"
        return (
            f"{'race of equal values' if self.mild else 'race'}: {self._bytes(here)} written by "
            f"lanes {names} of {warp} in one instruction, {kind}: it is not defined which one "
            f"stays\n  let one lane write (block {chunk.block_name(self.thread // chunk.group)})"
        )

    def _closest(self) -> str:
        """The synchronisations next to both accesses, which do not order them."""
        races, owner = self.races, self._owner
        who = races.launch.who
        mine = self._synchronisation(races, self.thread // WARP, 1, races.now, last=True)
        start = self.serial + 1
        theirs = self._synchronisation(owner, self._warp, start, owner.now, last=False)
        same = owner is races and self._warp == self.thread // WARP
        if same:
            return ""
        me, other = (
            self._warp_name(races, self.thread // WARP), self._warp_name(owner, self._warp),
        )  # fmt: skip
        after = f"{other} passes no synchronisation after its access"
        if theirs is not None:
            after = f"{other} passes {_named(owner, int(who[theirs]))} after its access"
        before = f"{me} has passed none before"
        if mine is not None:
            before = f"the last one that {me} passed is {_named(races, int(who[mine]))}"
        return f"{after}; {before}"

    def _synchronisation(
        self, races: Detector, warp: int, start: int, end: int, last: bool
    ) -> int | None:
        who = self.races.launch.who[start : end + 1]
        mine = np.flatnonzero((who & ((1 << history.WARP_BITS) - 1)) == warp)
        steps = who[mine] >> history.WARP_BITS
        good = [s for s in np.unique(steps).tolist() if _synchronises(races, s)]
        found = mine[np.isin(steps, good)] + start
        found = found[self.races.launch.owner[found >> history.PAGE_BITS] == races.number]
        if not len(found):
            return None
        return int(found[-1] if last else found[0])

    def _advice(self) -> str:
        owner, races = self._owner, self.races
        instr = owner.names.instruction(self._step)
        if self.lanes == 0 and instr is not None:
            if instr.ordering is not None:
                wait = instr.ordering.wait
                return f"wait for the product's group ({wait}), then let the threads meet"
            if instr.counts_bytes:
                return "wait for the phase of the mbarrier that counts the copy's bytes"
            if instr.runs_behind:
                read = advice.BULK_WAIT_READ
                wait = read if self.what == history.READ else read.replace(".read", "")
                return f"the thread that issued it must wait for its group ({wait}), then meet"
        mine = races.names.instruction(self.step)
        if any(i is not None and i.read_only for i in (instr, mine)):
            return "the read-only path is for memory that nobody writes during the launch"
        if mine is not None and mine.runs_late:
            return "the copy goes on until its group is waited for, by the thread that issued it"
        if owner is races and self._warp == self.thread // WARP:
            return "lanes of a warp run on their own: tc.syncwarp() must come between"
        if (instr is not None and instr.strong) or (mine is not None and mine.strong):
            return "strong accesses order nothing by themselves: a release and an acquire do"
        group, first = races.names.group, races.names.geometry.first
        here = first + self.thread // group
        there = owner.names.geometry.first + self._warp * WARP // group
        if here == there:
            return "a barrier of the block (tc.barrier()) must come between"
        if here // races.peers == there // races.peers:
            return f"the cluster must meet in between ({advice.CLUSTER_BARRIER}, or an mbarrier)"
        return "blocks run in any order: only a release and an acquire at gpu scope order them"

    def _unfenced(self, there: Loc | None) -> str:
        me = self._warp_name(self.races, self.thread // WARP)
        instr = self.races.names.instruction(self.step)
        operation = instr.summary if instr is not None else "operation"
        return (
            f"the {operation} of {me} reads {self._bytes(None)} through the async proxy, which "
            f"{self._other()} wrote by an ordinary store at {there}{_source(there)} and did not "
            f"fence: {advice.FENCE_PROXY_ASYNC} must come between, mostly by the writer before it "
            "synchronises"
        )


def _synchronises(races: Detector, step: int) -> bool:
    instr = races.names.instruction(step)
    return instr is not None and instr.synchronises


def _named(races: Detector, who: int) -> str:
    step = who >> history.WARP_BITS
    instr = races.names.instruction(step)
    loc = races.names.loc(step)
    return f"{instr.summary if instr else 'one'} at {loc}{_source(loc)}"


def _expression(loc: Loc | None) -> str:
    """The source of an expression on one line."""
    if loc is None or loc.end_column <= loc.column:
        return ""
    line = linecache.getline(loc.filename, loc.line)
    text = line.encode()[loc.column : loc.end_column].decode(errors="ignore").strip()
    return text if 0 < len(text) <= 60 else ""


def _source(loc: Loc | None) -> str:
    text = _expression(loc)
    return f" (`{text}`)" if text else ""
