"""Asynchronous copies of single threads to shared memory: cp.async (PTX manual 9.7.9.25.3).

A copy takes effect when a thread waits for its group, or has seen the end of the mbarrier phase at
which the copy arrives (9.7.13.15.15). The arrival itself comes at once.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, OutOfBounds
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.team import ACCESS_COST
from tensorcore_dsl.interpreter.core.threads import PerThread, words
from tensorcore_dsl.interpreter.memory.accesses import GLOBAL_SIDE, TOO_MANY, copies_finish, copy_check
from tensorcore_dsl.interpreter.memory.global_memory import GlobalMemory
from tensorcore_dsl.interpreter.memory.shared_memory import SharedMemory
from tensorcore_dsl.interpreter.sanitizer.access_history import CHECK, GLOBAL, NOTE, OWN
from tensorcore_dsl.interpreter.sanitizer.async_proxy import LastWaits
from tensorcore_dsl.interpreter.sanitizer.races import ALWAYS
from tensorcore_dsl.isa import advice
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, Context


class _Copy:
    """A copy of the threads of `mask` that step `step` has issued.

    Attributes
    ----------
    group
        How many groups each thread had committed before.
    since
        The serial number of the issue.
    target, source, valid
        (T,), addresses and the bytes that are read, which are still to be filled in.
    addresses
        The real ones of these arrays.
    noted
        The threads whose copy the detector of races has seen complete, at an mbarrier.
    """

    since = 0
    noted: np.ndarray | np.bool_ = np.False_

    def __init__(self, mask: np.ndarray, group: np.ndarray, size: int, step: int) -> None:
        self.mask, self.group, self.size, self.step = mask, group, size, step
        threads = mask.size
        memory = np.empty(2 * threads, np.uint64)
        self.source, words = memory[:threads], memory[threads:].view(np.uint32)
        self.target, self.valid = words[:threads], words[threads:]
        start = memory.__array_interface__["data"][0]
        self.addresses = start + 8 * threads, start, start + 12 * threads

    @property
    def kind(self) -> tuple[int, int, int]:
        """Key that copies share if the same threads have issued them in the same groups."""
        return id(self.mask), id(self.group), self.size


class AsyncCopies:
    """Copies in flight; `groups` counts the groups that each thread has committed.

    behind: copies that arrive at mbarriers, the threads, and the CTA, slot and phase of each.
    """

    groups = PerThread()

    def __init__(self, chunk: Chunk, shared: SharedMemory, memory: GlobalMemory) -> None:
        self.chunk = chunk
        self.shared = shared
        self.globals = memory
        self.queue: list[_Copy] = []
        self.waits = LastWaits(chunk)
        self.behind: list[tuple[list[_Copy], np.ndarray, np.ndarray, np.ndarray]] = []
        shared.mbarriers.settle = self.settle
        shared.sanitizer.in_flight.of_threads = self.owner

    def issue(
        self, ctx: Context, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> None:
        """Copy `size` bytes to shared `target`: `valid` ones from global `source`, then zeros."""
        mask = self.shared.active(ctx)
        self.chunk.account("global", "load", source, mask, size)
        self.chunk.account("shared", "store", target, mask, size)
        copy = self.blank(mask, size, self.chunk.at_step)
        copy.target[:], copy.source[:], copy.valid[:] = target, source, valid
        failure = copy_check(
            copy.target,
            copy.source,
            copy.valid,
            mask,
            self.globals.table,
            self.shared.storage.disclosed(forget=True),
            size,
        )
        if failure:
            self.refuse(failure, copy)
        self._note(copy, mask, CHECK)
        self.queue.append(copy)

    def blank(self, mask: np.ndarray, size: int, step: int) -> _Copy:
        """A copy of the threads of `mask` whose addresses are still to be filled in."""
        return _Copy(mask, self.groups, size, step)

    def refuse(self, failure: int, copy: _Copy) -> NoReturn:
        """Raise the error of a copy that failed a check."""
        target, source, size, valid = copy.target, copy.source, copy.size, copy.valid
        if failure >> 32 == TOO_MANY:
            thread = failure & 0xFFFFFFFF
            raise OutOfBounds(
                f"an asynchronous copy of {size} bytes to shared {int(target[thread]):#x} by "
                f"{self.chunk.describe(thread)} is to read {valid[thread]} bytes: 0 to {size} "
                "are allowed"
            )
        if failure >> 32 > GLOBAL_SIDE:
            self.globals.refuse(failure - (GLOBAL_SIDE << 32), source, size, "asynchronous copy")
        self.shared.refuse(failure, target, size, "asynchronous copy")

    def owner(self, cta: int, byte: int) -> str:
        """The copy that owns a byte of a CTA, and what to do about it, for messages."""
        element = self.chunk.program.tiles.element(byte)
        where = f"byte {byte:#x}" + (f" ({element})" if element else "")
        threads = slice(cta * self.chunk.group, (cta + 1) * self.chunk.group)
        for copy in self.queue:
            target = copy.target[threads].astype(np.int64)
            owners = copy.mask[threads] & (target <= byte) & (byte < target + copy.size)
            if not owners.any():
                continue
            thread = cta * self.chunk.group + int(np.argmax(owners))
            what = f"the asynchronous copy at {self.chunk.loc(copy.step)} (by "
            what += f"{self.chunk.describe(thread)}) still owns {where}"
            for copies, mask, units, phases in self.behind:
                if mask[thread] and copy in copies:
                    name = self.shared.mbarriers.name(*divmod(int(units[thread]), 1 << 20))
                    return f"{what}: nobody has waited for phase {phases[thread]} of {name}"
            if copy.group[thread] < self.groups[thread]:
                too_few = self.waits.too_few(thread, int(copy.group[thread]))
                return f"{what}; {too_few or 'wait for the copy first'}"
            return (
                f"{what}: it is in no group yet, so no wait awaits it; {advice.CP_ASYNC_COMMIT} "
                "comes before the wait"
            )
        return f"an asynchronous copy still owns {where}; wait for the copy first"

    def _note(self, copy: _Copy, mask: np.ndarray, todo: int) -> None:
        """Show a copy to the detector of races: at the issue, and as done at the wait."""
        detector = self.shared.sanitizer.detector
        if detector is None:
            return
        whole = mask & (copy.valid >= copy.size)
        options: Any = {"todo": todo, "step": copy.step}
        if todo == CHECK:
            copy.since = detector.now
        since = copy.since if todo & NOTE else ALWAYS
        tells = [
            detector.words(GLOBAL, "load", copy.source, whole, copy.size, since=since, **options),
            detector.words(OWN, "store", copy.target, mask, copy.size, **options),
        ]
        for tell in tells:
            if tell is not None:
                tell()

    def commit(self) -> None:
        """Close the group of each active thread."""
        self.groups = self.groups + self.chunk.mask

    def wait(self, pending: int) -> None:
        """Finish all but the last `pending` groups of each active thread."""
        due_groups = self.groups - pending
        self.waits.note(self.chunk.mask, due_groups, pending)
        self._end(self.queue, self.chunk.mask, due_groups)

    def arrive(self, bar: Any, counted: bool) -> None:
        """The copies so far arrive at mbarriers. counted: the barriers expect these arrivals."""
        chunk, mbarriers = self.chunk, self.shared.mbarriers
        addresses = words(bar, chunk.threads)
        abroad = chunk.mask & (addresses >> CLUSTER_SHIFT != 0)
        if abroad.any():
            raise EmulationError(
                f"copies of {chunk.describe(int(np.argmax(abroad)))} are to arrive at an mbarrier "
                "of another CTA; they can only arrive at mbarriers of their own CTA"
            )
        for copy in self.queue if self.shared.sanitizer.detector is not None else ():
            due = copy.mask & chunk.mask & ~copy.noted
            if due.any():
                self._note(copy, due, CHECK | NOTE)
                copy.noted = copy.noted | due
        units, phases = mbarriers.phases(addresses, chunk.mask)
        # Otherwise one arrival more is expected, and comes; some later arrival ends the phase.
        mbarriers.arrive(bar, np.uint32(counted), np.uint32(0))
        self.behind.append(([*self.queue], chunk.mask, units, phases))
        self.groups = self.groups.copy()  # later copies are of another kind

    def settle(self) -> None:
        """End the copies that arrived in phases whose end some thread has seen."""
        left = []
        for copies, mask, units, phases in self.behind:
            over = mask & (self.shared.mbarriers.seen(units) > phases)
            if over.any():
                self._end(copies, over)
                mask = mask & ~over
            if mask.any():
                left.append((copies, mask, units, phases))
        self.behind = left

    def _end(self, copies: list[_Copy], mask: np.ndarray, before: Any = np.inf) -> None:
        """Carry out the copies of the threads of `mask` in groups `before`."""
        over = set[_Copy]()
        for _, some in groupby(copies, lambda copy: copy.kind):
            alike = list(some)
            due = alike[0].mask & mask & (alike[0].group < before)
            if due.any():
                self._finish(alike, due)
                left = alike[0].mask & ~due
                for copy in alike:
                    copy.mask = left
                if not left.any():
                    over.update(alike)
        self.queue = [copy for copy in self.queue if copy not in over]

    def _finish(self, copies: list[_Copy], due: np.ndarray) -> None:
        """Carry out copies of one kind for the threads of `due`."""
        self.chunk.writes += len(copies)
        shared, size = self.shared.storage.disclosed(), copies[0].size
        addresses = np.array([copy.addresses for copy in copies], np.int64)

        def finish(first: int, last: int, _: int) -> None:
            copies_finish(addresses, due, self.globals.table, shared, size, first, last)

        cost = ACCESS_COST * len(copies)
        self.shared.team.share_ctas(due.size, self.chunk.group, cost, finish)
        for copy in copies:
            self._note(copy, due & ~copy.noted, CHECK | NOTE)
