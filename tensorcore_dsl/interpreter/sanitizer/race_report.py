"""Report of a race: both accesses, the bytes, what would order them, what came closest."""

from __future__ import annotations

import ast
import linecache
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.errors import EmulationError, Loc, Meeting, Race, RaceWarning
from tensorcore_dsl.interpreter.core.chunk import WARP, WARPGROUP, Positions
from tensorcore_dsl.interpreter.core.geometry import ranges
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import ORDER, VectorClocks
from tensorcore_dsl.isa import advice, classify, names
from tensorcore_dsl.isa.access import SCOPES
from tensorcore_dsl.isa.descriptor import SharedTiles
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction

MAX_EXCERPT = 52  # characters of source that a sentence quotes


class Detector(Protocol):
    """Interface of `races.Races`, and of its remainder `launch_history.PastChunk`, for this module."""

    @property
    def names(self) -> Positions: ...
    @property
    def number(self) -> int: ...
    @property
    def peers(self) -> int: ...
    @property
    def now(self) -> int: ...
    @property
    def first_cluster(self) -> int: ...


class RunningDetector(Detector, Protocol):
    """Interface of the detector of a running chunk."""

    launch: Any
    clocks: VectorClocks
    width: int
    areas: dict[int, np.ndarray]
    tiles: SharedTiles

    def columns_of(self, kind: Any, ctas: np.ndarray, keys: np.ndarray) -> np.ndarray: ...


@dataclass
class RaceFinding:
    """An access of `thread` in `step`, in conflict with the access that has a serial number.

    Attributes
    ----------
    what, offset, serial, lanes : int
        The fields of an `access_history.Conflict`.
    base : int
        The CTA of the chunk whose shared memory it is, or the real address that `offset` of global memory
        counts from.
    since : int
        It was in flight from this serial number on.
    mild : bool
        Both write the same value.
    """

    races: RunningDetector
    what: int
    memory: int
    kind: int
    step: int
    thread: int
    offset: int
    serial: int
    lanes: int
    base: int
    since: int
    mild: bool

    def tell(self, mild: bool = False) -> None:
        """Raise or warn. mild: both are known to write the same value."""
        chunk = self.races.names
        self.mild |= mild
        here, there = chunk.loc(self.step), self._owner.names.loc(self._step)
        unfenced = self.what in (history.UNFENCED_WRITE, history.UNFENCED_READ)
        text = self._unfenced(here, there) if unfenced else self._text(here, there)
        text = advice.translated(text, chunk.program.kernel.foreign)
        error = (EmulationError if unfenced else Race)(text, here)
        self._complete(error, text, there)
        if not self.mild:
            raise error
        key = str(here), str(there)
        if key not in self.races.launch.told:
            self.races.launch.told.add(key)
            warning = RaceWarning(str(error), here)
            self._complete(warning, text, there)
            if here is None:
                warnings.warn(warning, stacklevel=2)
            else:
                warnings.warn_explicit(warning, None, here.filename, here.line)  # type: ignore[arg-type]

    def _complete(self, report: Meeting, text: str, there: Loc | None) -> None:
        """Give a report the parts of its text, whose last line is the cure."""
        report.first, report.memory, report.other_kernel = there, self._bytes(), self._other_kernel
        report.message, report.cure = text, text.rsplit("\n  ", 1)[-1]

    # -- the other access -------------------------------------------------------------------------

    @property
    def _other_kernel(self) -> str:
        return ""

    @property
    def _owner(self) -> Detector:
        """The chunk of the other access."""
        launch = self.races.launch
        owner: Detector | None = launch.chunks[int(launch.owner[self.serial >> history.PAGE_BITS])]
        assert owner is not None
        return owner

    @property
    def _who(self) -> int:
        return int(self.races.launch.who[self.serial])

    @property
    def _step(self) -> int:
        return self._who >> history.WARP_BITS

    @property
    def _warp(self) -> int:
        return self._who & history.WARP_MASK

    @property
    def _many(self) -> bool:
        """True for a read by one of several CTAs if the history no longer has their last reads."""
        instr = self._owner.names.instruction(self._step)
        return self.lanes == 0 and (instr is None or not classify.is_async_operation(instr))

    def _other(self) -> str:
        """Who made the other access."""
        owner, lanes = self._owner, self.lanes
        if self._many:
            cta = owner.names.cta_name(self._warp * WARP // owner.names.group)
            return f"several CTAs, CTA {cta} among them,"
        if lanes == 0:
            return _operation(owner, self._step, self._warp * WARP)
        mine = 1 << self.thread % WARP
        if owner is self.races and self._warp == self.thread // WARP and lanes != mine:
            lanes &= ~mine
        numbers = np.array([i for i in range(WARP) if lanes >> i & 1])
        if len(numbers) == 1:
            return _thread_name(owner, self._step, self._warp * WARP + int(numbers[0]))
        warp = _warp_name(owner, self._warp)
        return f"lanes {ranges(numbers)} of {warp}" if 0 < len(numbers) < WARP else warp

    def _me(self) -> str:
        """Who makes this access."""
        operation = _operation(self.races, self.step, self.thread)
        return operation or _thread_name(self.races, self.step, self.thread)

    # -- the text ---------------------------------------------------------------------------------

    def _text(self, here: Loc | None, there: Loc | None) -> str:
        if self.what == history.TOGETHER:
            return self._together(here)
        races, owner = self.races, self._owner
        turns = (
            _turn(races, races.launch, self.step, self.thread // WARP, races.now),
            _turn(owner, races.launch, self._step, self._warp, self.serial),
        )
        turn, their_turn = turns if max(turns) > 1 and not self._many else (0, 0)
        done, did = self._verbs()
        end = "nothing orders the two accesses"
        if self.mild:
            end = "nothing orders the two, but both write the same value"
        lines = [
            f"{self._name(here)} is {done} here{_time(turn)} by {self._me()}; {self._other()} {did}"
            f"{_time(their_turn)} at {expression_text(there, here)}; {end}",
            f"they meet at {self._bytes()}",
            self._closest(here),
            self._advice(here, there),
        ]
        return "\n  ".join(line for line in lines if line)

    def _verbs(self) -> tuple[str, str]:
        """Verbs of the access here, and of the other access."""
        mine = self.races.names.instruction(self.step)
        theirs = self._owner.names.instruction(self._step)
        stores = self.kind in (history.STORE, history.STRONG_STORE)
        return _verb(mine, stores)[0], _verb(theirs, self.what != history.READ)[1]

    def _name(self, here: Loc | None) -> str:
        """Name of the accessed memory in the source."""
        text = _target(here)
        return f"`{text}`" if text else "global memory" if self._is_global else "shared memory"

    @property
    def _is_global(self) -> bool:
        return self.memory == history.GLOBAL

    def _bytes(self) -> str:
        """The bytes, and the element that they are of."""
        races = self.races
        size = 1 << int(races.areas[history.GLOBAL if self._is_global else history.OWN][0]["shift"])
        if self._is_global:
            return str(races.launch.element(self.base + self.offset, size))
        text = f"shared bytes {self.offset:#x} to {self.offset + size - 1:#x}"
        if self.base != self.thread // races.names.group or self._owner is not races:
            text += f" of CTA {races.names.cta_name(self.base)}"
        element = races.tiles.element(self.offset)
        return f"{element} ({text})" if element else text

    def _together(self, here: Loc | None) -> str:
        first = self.thread // WARP * WARP
        lanes = np.array([i for i in range(WARP) if self.lanes >> i & 1 or first + i == self.thread])
        warp = _warp_name(self.races, self.thread // WARP)
        kind = "the same value" if self.mild else "different values, any of which may stay"
        return (
            f"{self._name(here)} is written here by lanes {ranges(lanes)} of {warp} at once, with "
            f"{kind}\n  they meet at {self._bytes()}\n  let one lane write, or give each lane an "
            "element of its own"
        )

    def _closest(self, here: Loc | None) -> str:
        """The synchronisations next to both accesses, which do not order them."""
        races, owner, who = self.races, self._owner, self.races.launch.who
        if self._many:
            return ""
        warp = self.thread // WARP
        last = self._synchronisation(races, warp, 1, races.now, last=True)
        earlier = owner is races and last is not None and last < self.serial
        mine = "" if last is None else _named(races, int(who[last]), here)
        if self._is_same_warp:
            if not mine or earlier:
                return f"the closest synchronisation, {mine}, lies before both" if mine else ""
            return f"the warp has passed {mine} in between, which does not connect the two"
        start = self.serial + 1
        first = self._synchronisation(owner, self._warp, start, owner.now, last=False)
        me, other = _warp_name(races, warp), _warp_name(owner, self._warp)
        if first is None:
            if not mine:
                return "neither of the two warps has passed a synchronisation in between"
            where = "lies before both" if earlier else f"is what {me} has passed"
            return f"the closest synchronisation, {mine}, {where}; {other} has passed none since its access"
        theirs = _named(owner, int(who[first]), here)
        if not mine:
            return f"{other} has passed {theirs} since its access, but {me} none before its own"
        if theirs == mine:
            return f"both warps have passed {mine}, which does not connect the two accesses"
        when = "before that access" if earlier else "before its own"
        return f"{other} has passed {theirs} since its access, and {me} {mine} {when}; these do not connect"

    def _synchronisation(self, races: Detector, warp: int, start: int, end: int, last: bool) -> int | None:
        who = self.races.launch.who[start : end + 1]
        mine = np.flatnonzero((who & history.WARP_MASK) == warp)
        steps = who[mine] >> history.WARP_BITS
        kinds: dict[int, list[int]] = {0: []}
        for step in np.unique(steps).tolist():
            if step not in (self.step, self._step):
                kinds.setdefault(_rank(races, step, last), []).append(step)
        good = kinds[max(kinds)] if max(kinds) else []
        passed = mine[np.isin(steps, good)] + start
        passed = passed[self.races.launch.owner[passed >> history.PAGE_BITS] == races.number]
        if not len(passed):
            return None
        return int(passed[-1] if last else passed[0])

    def _advice(self, here: Loc | None, there: Loc | None) -> str:
        owner, races = self._owner, self.races
        theirs, mine = owner.names.instruction(self._step), races.names.instruction(self.step)
        if self.lanes == 0 and theirs is not None:
            if theirs.ordering is not None:
                wait = advice.called(theirs.ordering.wait)
                return f"first wait for the product's group: {wait}; then the threads must meet"
            if classify.completes_on_mbarrier(theirs):
                return self._advice_after_load()
            if classify.is_async_operation(theirs):
                return self._advice_after_store(here, there)
        if any(i is not None and classify.is_read_only_load(i) for i in (theirs, mine)):
            return "a read-only load is for memory that nobody writes during the launch; use an ordinary load"
        if self.serial > self.since:
            return (
                "the copy is in flight until the thread that issued it waits for its group: the "
                "other access must come before the issue or after the wait"
            )
        return self._advice_of_scope(here, there)

    def _advice_after_load(self) -> str:
        """Advice: how to order an access after a copy whose bytes an mbarrier counts."""
        races, first = self.races, self.thread // WARP * WARP
        text = "first wait for the phase of the mbarrier that counts the copy's bytes"
        if self._owner is not races or self._warp * WARP // races.width != first // races.width:
            return text
        known = races.clocks.rows.known[ORDER, races.clocks.rows.row_of[first : first + WARP]]
        waited = np.flatnonzero(known[:, races.launch.who[self.serial + 1]] >= self.serial)
        if not len(waited):
            return text
        return f"{text}, as lane {ranges(waited)} did, or call tc.syncwarp() behind that wait"

    def _advice_after_store(self, here: Loc | None, there: Loc | None) -> str:
        """Advice: how to order an access after a bulk store, which a group counts."""
        mine, wait = self.races.names.instruction(self.step), advice.BULK_WAIT_READ
        if self.what != history.READ:
            reads = any(i.mnemonic == names.bulk_wait(True) for i in self.races.names.program.instructions)
            wait = f"{advice.BULK_WAIT}{', without read=True' * reads}"
        text = f"first the thread that issued it must wait for its group: {wait}"
        if self._is_same_warp and mine is not None and classify.is_async_operation(mine):
            if self._is_same_issuer:
                return text
            if self.step == self._step:
                return "let one lane of the warp store, or let each store write a box of its own"
        return f"{text}; after that wait, {self._advice_of_scope(here, there)}"

    @property
    def _is_same_issuer(self) -> bool:
        """True if the thread itself has issued the bulk store of the other access."""
        races, kind = self.races, f"bulk {'loads' if self.what == history.READ else 'stores'}"
        cta, thread = np.array([[self.thread // races.names.group], [self.thread]])
        return bool(races.columns_of(kind, cta, thread) == races.launch.who[self.serial + 1])

    @property
    def _is_same_warp(self) -> bool:
        return self._owner is self.races and self._warp == self.thread // WARP

    def _advice_of_scope(self, here: Loc | None, there: Loc | None) -> str:
        """Advice for the two accesses, by the least scope that includes both threads."""
        owner, races = self._owner, self.races
        theirs, mine = owner.names.instruction(self._step), races.names.instruction(self.step)
        strong = [i is not None and classify.is_strong(i) for i in (theirs, mine)]
        group, first, devices = races.names.group, races.names.geometry.first, races.names.geometry.devices
        cta = first + self.thread // group
        other = owner.names.geometry.first + self._warp * WARP // group
        abroad = cta // races.peers % devices != other // races.peers % devices
        least = "sys" if abroad else "gpu" if cta // races.peers != other // races.peers else "cluster"
        scopes = [classify.scope(i) for i in (theirs, mine) if i is not None]
        narrow = [scope for scope in scopes if scope and SCOPES.index(scope) < SCOPES.index(least)]
        if all(strong) and cta != other and narrow:
            return (
                f"both are atomic or volatile, but the scope {narrow[0]} has no other "
                f"{'ranks' if abroad else 'CTAs'}: it must be {least}"
            )
        if all(strong):
            return "both are atomic or volatile, but their sizes do not fit"
        end = "; an atomic or volatile access alone orders no others" if any(strong) else ""
        if here is not None and str(here) == str(there) and not end:
            end = "; or make the update one atomic operation"
            if self.what == history.WROTE and self.kind == history.STORE:
                behind = mine is not None and classify.is_async_operation(mine)
                end = (
                    f"; or let each {'store write a box' if behind else 'thread write an element'} of its own"
                )
        if alone := self._advice_for_lanes(here):
            return f"{alone}{end}"
        if cta != other and not self._many and cta // races.peers == other // races.peers:
            barrier = advice.CLUSTER_BARRIER
            meets = f"{barrier}, or an mbarrier, by an arrival and a wait of cluster scope"
            return f"the cluster must meet between the two: {meets}{end}"
        if cta != other or self._many:
            lacking = "CTAs run in any order: only a release and an acquire of gpu scope, or another launch,"
            if abroad:
                lacking = (
                    "ranks run at their own time: only a release and an acquire of sys scope (tc.signal "
                )
                lacking += "and tc.wait_signal)"
            return f"{self._advice_for_ctas(abroad, here) or f'{lacking} would order the two'}{end}"
        if mine is not None and mine.ordering is not None:
            return f"all threads of the warpgroup must meet before the product (tc.barrier()){end}"
        if self._is_same_warp:
            others = ", or tc.barrier() where other warps use it too" if group > WARP else ""
            return (
                "lanes of a warp run independently: tc.syncwarp() between the two would order them"
                f"{others}{end}"
            )
        barriers = "tc.barrier()"
        if any(i.instr is not None and classify.uses_mbarrier(i.instr) for i in races.names.program.steps):
            barriers += ", or an arrival at an mbarrier and a wait for that phase,"
        return f"{barriers} between the two would order them{end}"

    def _advice_for_lanes(self, here: Loc | None) -> str:
        """Say where warps must meet if not the accessing lanes but others have synchronised. Else ""."""
        races, lanes = self.races, [i for i in range(WARP) if self.lanes >> i & 1]
        theirs, mine, width = self._warp * WARP, self.thread // WARP * WARP, races.width
        if self._owner is not races or theirs == mine or theirs // width != mine // width or not lanes:
            return ""
        rows = races.clocks.rows.row_of[mine : mine + WARP]
        columns = theirs % width + np.arange(WARP)
        knows = races.clocks.rows.known[ORDER, rows][:, columns] >= self.serial  # my lanes, their lanes
        arrival = self._synchronisation(races, self._warp, self.serial + 1, races.now, last=False)
        wait = self._synchronisation(races, mine // WARP, 1, races.now, last=True)
        if not knows.any() or arrival is None or wait is None:
            return ""
        points, reasons, who = [], [], races.launch.who
        if not knows[:, lanes].all(axis=1).any():
            points.append(f"before {_named(races, int(who[arrival]), here)}")
            reasons.append(f"which hands on what lane {ranges(np.flatnonzero(knows.any(axis=0)))} did")
        if not knows[self.thread % WARP].any():
            points.append(f"after {_named(races, int(who[wait]), here)}")
            reasons.append(f"where lane {ranges(np.flatnonzero(knows.any(axis=1)))} alone has waited")
        parts = ", and ".join(map(", ".join, zip(points, reasons, strict=True)))
        return parts and f"tc.syncwarp() would order the two: {parts}"

    def _advice_for_ctas(self, abroad: bool, here: Loc | None) -> str:
        """Say where CTAs must meet if not the accessing threads but others have signalled or waited.

        Or which signal comes after the other access. Else "". abroad: the CTAs are of two ranks.
        """
        races, owner, lanes = self.races, self._owner, [i for i in range(WARP) if self.lanes >> i & 1]
        group, width, start = races.names.group, races.width, self._warp * WARP
        if self._many or not lanes:
            return ""
        cluster, columns = owner.first_cluster + start // width, start % width + np.array(lanes)
        first, cta = self.thread // group * group, start // group * group
        foreign = [races.clocks.foreign(thread).get(cluster) for thread in range(first, first + group)]
        known = np.array([np.zeros(width) if v is None else v[ORDER, :width] for v in foreign])
        learned = (known >= self.serial)[:, columns].all(axis=1).any()
        if not learned and (signal := self._signal_behind(abroad, cluster, columns)):
            return signal
        known = known[:, cta % width : cta % width + group]  # (threads of my CTA, threads of the other CTA)
        knows, points = known >= self.serial, []
        if not learned and knows.any():
            signaller = cta + int(known.max(axis=0).argmax())
            signal = self._strong(owner, signaller, int(known.max()), Effect.STORE, here)
            points.append(f"before {signal}, which hands on what {owner.names.describe(signaller)} did")
        if not knows[self.thread - first].any() and knows.any():
            waiter = first + int(knows.any(axis=1).argmax())
            wait = self._strong(races, waiter, races.now, Effect.LOAD, here)
            points.append(f"after {wait}, where {races.names.describe(waiter)} has waited")
        return f"tc.barrier() would order the two: {', and '.join(points)}" if points else ""

    def _signal_behind(self, abroad: bool, cluster: int, columns: np.ndarray) -> str:
        """Which signal to other CTAs hands on the other access, in these columns of a cluster; or ""."""
        least = history.SYSTEM_SCOPE if abroad else history.GPU_SCOPE
        for (memory, address), message in self.races.launch.signals.locations.items():
            vectors = message.vectors.get(cluster)
            if memory != 0 or message.scope < least or vectors is None:
                continue
            if (vectors[ORDER, columns] >= self.serial).all():
                element = self.races.launch.element(address, 1).rsplit(" (", 1)[0]
                return (
                    f"a signal to {element} comes behind that access: first wait for it "
                    "(tc.wait_signal), with a value that counts it"
                )
        return ""

    def _strong(self, races: Detector, thread: int, end: int, effect: Effect, here: Loc | None) -> str:
        """The last strong access by the warp of a thread up to a serial number."""
        launch = self.races.launch
        mine = np.flatnonzero((launch.who[: end + 1] & history.WARP_MASK) == thread // WARP)
        mine = mine[launch.owner[mine >> history.PAGE_BITS] == races.number]
        for who in launch.who[mine][::-1].tolist():
            instr = races.names.instruction(who >> history.WARP_BITS)
            if instr is not None and classify.is_strong(instr) and effect in instr.effects:
                return _named(races, who, here)
        return f"the {'signal' if effect is Effect.STORE else 'wait'}"

    def _unfenced(self, here: Loc | None, there: Loc | None) -> str:
        does = "writes" if self.kind == history.STORE else "reads"
        theirs = self._owner.names.instruction(self._step)
        late = theirs is not None and classify.is_cp_async(theirs)
        did, who = "wrote" if late else "wrote by an ordinary store", "writer"
        if self.what == history.UNFENCED_READ:
            did, who = "read" if late else "read by an ordinary load", "reader"
        fence = advice.FENCE_PROXY_ASYNC
        if self._is_global:
            fence = advice.FENCE_PROXY_ASYNC_GLOBAL
        return (
            f"{self._name(here)}: {self._me()} {does} through the async proxy what {self._other()} "
            f"{did} at {expression_text(there, here)}, without a proxy fence\n"
            f"  they meet at {self._bytes()}\n"
            f"  {fence} must come between, best by the {who} before it synchronises (PTX manual, "
            "8.6 and 9.7.13.4)"
        )


def _operation(races: Detector, step: int, thread: int) -> str:
    """An asynchronous operation of a warp or a warpgroup; "" for other instructions."""
    instr = races.names.instruction(step)
    if instr is None or not classify.is_async_operation(instr):
        return ""
    unit = WARPGROUP if instr.ordering is not None else WARP
    return f"the {instr.summary} of {races.names.unit_name(thread // unit * unit, unit)}"


def _warp_name(races: Detector, warp: int) -> str:
    return races.names.unit_name(warp * WARP, WARP)


def _thread_name(races: Detector, step: int, thread: int) -> str:
    chunk, instr = races.names, races.names.instruction(step)
    warp = thread % chunk.group // WARP
    name = f"{chunk.describe(thread)} (warp {warp}, lane {thread % WARP})"
    return f"the {instr.summary} of {name}" if instr is not None and classify.is_cp_async(instr) else name


def _turn(races: Detector, launch: Any, step: int, warp: int, end: int) -> int:
    """How often the warp has executed a step of a loop, up to a serial number; else 0."""
    instr = races.names.instruction(step)
    loops = races.names.program.loops.values()
    behind = instr is None or classify.is_async_operation(instr) or classify.is_cp_async(instr)
    if behind or not any(loop.head <= step < loop.end for loop in loops):
        return 0
    same = np.flatnonzero(launch.who[: end + 1] == (step << history.WARP_BITS | warp))
    return int(np.count_nonzero(launch.owner[same >> history.PAGE_BITS] == races.number))


def _time(turn: int) -> str:
    """` for the 3rd time`; "" for 0."""
    digit = 0 if turn % 10 > 3 or 10 < turn % 100 < 14 else turn % 10
    ending = "thstndrd"[2 * digit : 2 * digit + 2]
    return f" for the {turn}{ending} time" if turn else ""


def _verb(instr: Instruction | None, stores: bool) -> tuple[str, str]:
    """An access: (what is done to the bytes, what somebody did)."""
    if instr is not None and classify.is_strong(instr) and (Effect.LOAD | Effect.STORE) in instr.effects:
        return "changed atomically", "changed it atomically"
    return ("written", "wrote it") if stores else ("read", "read it")


def _rank(races: Detector, step: int, reads: bool) -> int:
    """How far a step orders: 3 warps, 2 lanes, 1 perhaps, as a signal in memory; 0 not at all.

    reads: the side that is told, else the one that tells.
    """
    instr = races.names.instruction(step)
    if instr is not None and classify.is_synchronisation(instr):
        return 2 if Effect.CONVERGENT in instr.effects and not classify.uses_mbarrier(instr) else 3
    if instr is None or not classify.is_strong(instr):
        return 0
    return int(Effect.LOAD in instr.effects if reads else Effect.STORE in instr.effects)


def _named(races: Detector, who: int, here: Loc | None) -> str:
    step = who >> history.WARP_BITS
    instr = races.names.instruction(step)
    return call_text(instr.summary if instr else "one", races.names.loc(step), here)


def call_text(what: str, loc: Loc | None, here: Loc | None = None) -> str:
    """A call in the source, its line and the instruction; without source the instruction and its line."""
    text, line = expression(loc), line_text(loc, here)
    return f"`{text}` at {line} ({what})" if text else f"{what} at {line}"


def expression_text(loc: Loc | None, here: Loc | None) -> str:
    """An expression in the source: its line and its text."""
    text, line = expression(loc), line_text(loc, here)
    return f"{line} (`{text}`)" if text else line


def line_text(loc: Loc | None, here: Loc | None) -> str:
    """A line; its file is omitted if the report is about the same file."""
    same = loc is not None and here is not None and loc.filename == here.filename
    return f"line {loc.line}" if loc is not None and same else str(loc)


def expression(loc: Loc | None) -> str:
    """The source of an expression on one line, "" if there is none; `...` ends a long one."""
    if loc is None:
        return ""
    line = linecache.getline(loc.filename, loc.line)
    if loc.end_column <= loc.column:  # another compiler knows only the line
        loc = replace(loc, column=0, end_column=len(line.encode()))
    text = line.encode()[loc.column : loc.end_column].decode(errors="ignore").strip()
    return text if len(text) <= MAX_EXCERPT else f"{text[: MAX_EXCERPT - 4]} ..."


def _target(loc: Loc | None) -> str:
    """The element that an expression or an assignment names; "" for calls."""
    text = expression(loc) if loc and loc.end_column else ""
    with suppress(SyntaxError, IndexError):
        statement = ast.parse(text).body[0]
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            return ast.unparse(statement.targets[0])
        if isinstance(statement, ast.AugAssign):
            return ast.unparse(statement.target)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Subscript):
            return text
    return ""
