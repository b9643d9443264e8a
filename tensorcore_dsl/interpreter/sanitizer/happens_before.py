"""Order of accesses by barriers, mbarriers, waits and fences, which hand on vector clocks.

`HappensBefore` is a part of the detector (`races.Races`). Barriers call it when threads arrive and
pass, asynchronous operations when they are issued and awaited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.interpreter.sanitizer import strong_accesses
from tensorcore_dsl.interpreter.sanitizer.earlier_launches import EarlierLaunches
from tensorcore_dsl.interpreter.sanitizer.launch_history import LaunchHistory
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import ORDER, VectorClocks, arrive
from tensorcore_dsl.isa.lanes import ALL_LANES

# Kinds of messages: of named barriers, mbarriers, clusters. ARRIVED + kind: the arrived threads.
NAMED, PHASES, CLUSTERS, ARRIVED = range(4)


class Numbers:
    """Numbers that are not negative, by key."""

    def __init__(self) -> None:
        self.keys, self.values = np.array([np.iinfo(np.int64).max]), np.array([-1])

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The number of each key, -1 for none."""
        at = self.keys.searchsorted(keys)
        return np.where(self.keys[at] == keys, self.values[at], -1)

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Add numbers of keys that have none."""
        keys, values = np.append(self.keys, keys), np.append(self.values, values)
        order = np.argsort(keys)
        self.keys, self.values = keys[order], values[order]


class HappensBefore:
    """The clocks of a chunk's threads, and the messages of its barriers.

    Attributes
    ----------
    messages : dict
        By kind, rows by barrier << 1 | phase & 1.
    columns : dict
        Of the clocks, by kind of asynchronous operation and by CTA << 32 | key.
    awaited : dict
        By kind, the operations that are awaited by groups: owners, groups and serial numbers.
    inits : dict
        The thread of each initialisation of an mbarrier, by serial number.
    fenced_inits : dict
        By thread, the last one that relaxed arrivals hand on, as a release fence for initialisations has
        come since.
    doubt : EmulationError or None
        What is raised at the end if nothing else is wrong: which phase of a barrier counts an arrival
        depends on the order of threads.
    """

    chunk: Chunk
    launch: LaunchHistory
    number: int
    first_cluster: int
    width: int
    peers: int
    early: EarlierLaunches
    doubt: EmulationError | None = None

    def __init__(self, clocks: VectorClocks) -> None:
        self.clocks = clocks
        self.messages: dict[int, Numbers] = defaultdict(Numbers)
        self.columns: dict[Any, Numbers] = defaultdict(Numbers)
        self.awaited: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self.inits: dict[int, int] = {}
        self.fenced_inits: dict[int, int] = {}
        self.met = -1

    @property
    def now(self) -> int:
        """The last serial number."""
        raise NotImplementedError

    def _prepare(self, count: int) -> history.Book:
        """The book for compiled functions, with room for `count` serial numbers and without a log."""
        raise NotImplementedError

    def _reserve(self, count: int) -> history.Book:
        """The book, with room for `count` serial numbers and some nodes."""
        raise NotImplementedError

    def counter_goal(self, thread: int) -> int | None:
        """The value of a counter for which a thread waits at the running step, or None."""
        raise NotImplementedError

    def mark(self, mask: np.ndarray) -> None:
        """Note a synchronisation of the warps of `mask`, for reports."""
        history.mark(self._prepare(self.chunk.threads // WARP + 2), mask, self.chunk.at_step)

    def converge(self, named: Any) -> None:
        """The active lanes of a warp have met, those with the same mask `named` (None: all)."""
        chunk = self.chunk
        everybody = named is None or (np.ndim(named) == 0 and int(named) == ALL_LANES)
        everybody, again = everybody and chunk.active is None, self.met == self.now
        if named is None and everybody and again:
            return
        self.mark(chunk.mask)
        if not (everybody and again):  # Otherwise nobody has accessed memory since they met.
            keys = np.full(chunk.threads, -1)
            keys[chunk.mask] = 0 if named is None else np.broadcast_to(named, keys.shape)[chunk.mask]
            self.clocks.meet(keys, WARP, self.now)
        if everybody:
            self.met = self.now

    def meet_ctas(self) -> None:
        """All threads of the chunk have passed a barrier of their CTA."""
        # Nothing after the barrier can conflict with the loads in the log, but a bulk copy without a
        # fence of proxies.
        alone = self.peers == 1 and len(self.clocks.rows.known) == 1
        if alone and not self.chunk.exits:
            book = self._reserve(0)
            book.logged = book.noted = 0
        keys = np.where(self.chunk.alive, 0, -1)
        self.mark(self.chunk.mask)
        self.clocks.meet(keys, self.chunk.group, self.now)

    def release(self, kind: int, mask: np.ndarray, units: np.ndarray, phases: np.ndarray) -> None:
        """The threads of `mask` arrive: at barrier `units` (T,) of this kind, in `phases` (T,)."""
        rows = self._messages(kind, mask, units, phases)
        self.mark(mask)
        self.clocks.release(rows, self.now)

    def _messages(self, kind: int, mask: np.ndarray, units: np.ndarray, phases: np.ndarray) -> np.ndarray:
        """(T,) rows of messages for the threads of `mask` that arrive, -1 for the others."""
        rows = np.full(self.chunk.threads, -1)
        rows[mask] = self._collecting(kind, units[mask], phases[mask])
        return rows

    def count(
        self,
        kind: int,
        mask: np.ndarray,
        asked: np.ndarray,
        units: np.ndarray,
        phases: np.ndarray,
        describe: Callable[[int], tuple[str, str]],
    ) -> None:
        """Note arrivals of the threads of `mask`, and doubt which phases count them.

        A doubt arises if a warp of `asked` does not know of all arrivals in the phase before. Then it
        may come before one of them in another order.

        describe: for a thread, the barrier with what it does, and what another order brings.
        Warps arrive as a whole at a named barrier, single lanes at an mbarrier.
        """
        arrived, chunk, clocks = ARRIVED + kind, self.chunk, self.clocks
        before = self._collected(arrived, asked, units, phases - 1)
        rows = self._messages(arrived, mask, units, phases)
        whole = chunk.alive if kind == NAMED else np.zeros_like(mask)
        found = arrive(clocks.rows, rows, before, whole, self.now, self.width)
        if found < 0 or self.doubt is not None:
            return
        here, there = found >> 32 << 5, (found & 0xFFFFFFFF) << 5
        column, row = there % self.width, before[here : here + WARP].max()
        serial = clocks.rows.known[ORDER, row, column : column + WARP].max()
        what, remedy = describe(here + int(np.argmax(asked[here : here + WARP])))
        self.doubt = EmulationError(
            f"{what}: {chunk.unit_name(here, WARP)} arrives here after "
            f"{chunk.unit_name(there, WARP)} arrived for the phase before, at "
            f"{chunk.loc(int(self.launch.who[serial]) >> history.WARP_BITS)}, but nothing orders "
            f"the two arrivals; in another order {remedy}, or order the two arrivals",
            chunk.loc(chunk.at_step),
        )

    def release_fenced(self, kind: int, mask: np.ndarray, units: np.ndarray, phases: np.ndarray) -> None:
        """The threads of `mask` arrive relaxed: they hand on what a fence has released before.

        Its scope must include those who wait, which are of the CTA of an mbarrier.
        """
        self.mark(mask)
        for thread in np.flatnonzero(mask).tolist():
            row = int(self._collecting(kind, units[[thread]], phases[[thread]])[0])
            fenced = strong_accesses.fenced_by(self, thread)
            own = kind == PHASES and int(units[thread]) >> 20 == thread // self.chunk.group
            least = history.CTA_SCOPE if own else history.CLUSTER_SCOPE
            if fenced is not None and fenced.scope >= least:
                self.clocks.add(row, fenced.cluster, fenced.vectors)
            if thread in self.fenced_inits:
                serial = self.fenced_inits[thread]
                self.clocks.rows.known[ORDER, row, int(self.launch.who[serial + 1])] = serial

    def acquire(self, kind: int, mask: np.ndarray, units: np.ndarray, phases: np.ndarray) -> None:
        """The threads of `mask` have waited for these phases of barriers."""
        rows = self._collected(kind, mask, units, phases)
        self.mark(mask)
        self.clocks.acquire(rows)

    def _collected(self, kind: int, mask: np.ndarray, units: np.ndarray, phases: np.ndarray) -> np.ndarray:
        """(T,) rows with the knowledge collected in these phases; -1 for none."""
        rows = np.full(self.chunk.threads, -1)
        rows[mask] = self.messages[kind].find(units[mask] << 1 | phases[mask] & 1)
        return rows

    def _collecting(self, kind: int, units: np.ndarray, phases: np.ndarray) -> np.ndarray:
        """Rows that collect what is known when threads arrive in phases of barriers."""
        messages, keys = self.messages[kind], units << 1 | phases & 1
        rows = messages.find(keys)
        if rows.min(initial=0) < 0:
            new = np.unique(keys[rows < 0])
            messages.add(new, self.clocks.messages(len(new)))
            rows = messages.find(keys)
        self.clocks.begin(rows, phases)
        return rows

    def columns_of(self, kind: Any, ctas: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The columns of operations of one kind, each of a CTA."""
        numbers, keys = self.columns[kind], ctas << 32 | keys
        columns = numbers.find(keys)
        if columns.min(initial=0) < 0:
            new = np.unique(keys[columns < 0])
            clusters = (new >> 32) // self.peers
            numbers.add(new, np.array([self.clocks.column(cluster) for cluster in clusters.tolist()]))
            columns = numbers.find(keys)
        return columns

    def completes(self, ctas: np.ndarray, slots: np.ndarray, phases: np.ndarray) -> None:
        """The bytes of operations are counted by phases of mbarriers."""
        columns = self.columns_of(PHASES, ctas, slots)
        rows = self._collecting(PHASES, ctas << 20 | slots, phases)
        self.clocks.rows.known[ORDER, rows, columns] = self.now
        self.early.completed(rows, ctas // self.peers, columns)

    def issued(self, kind: str, owners: np.ndarray, groups: np.ndarray, serials: np.ndarray) -> None:
        """Operations were issued that `owners` wait for by groups, with so many `groups` before."""
        self.awaited.setdefault(kind, []).append((owners, groups, serials))

    def waited(self, kind: str, waiting: np.ndarray, due: np.ndarray, unit: int = 1) -> None:
        """Active threads, owners of the mask `waiting`, have waited for operations in groups before `due`.

        unit: threads of an owner.
        """
        last, left = np.zeros(len(waiting), np.int64), []
        for owners, groups, serials in self.awaited.get(kind, ()):
            over = waiting[owners] & (groups < due[owners])
            last[owners[over]] = np.maximum(last[owners[over]], serials[over])
            if not over.all():
                left.append((owners[~over], groups[~over], serials[~over]))
        self.awaited[kind] = left
        owners = np.flatnonzero(last)
        columns = np.zeros_like(last)
        columns[owners] = self.columns_of(kind, owners * unit // self.chunk.group, owners)
        threads = np.flatnonzero(self.chunk.mask & np.repeat(last > 0, unit))
        self.observe(threads, columns[threads // unit], last[threads // unit])

    def observe(self, threads: np.ndarray, columns: Any, serials: Any) -> None:
        """Threads know that operations of a column up to a serial number are over; 0: of none."""
        self._prepare(0)
        every = np.zeros((2, self.chunk.threads), np.int64)
        every[0, threads], every[1, threads] = columns, serials
        self.clocks.observe(every[1] > 0, *every)

    def fence_proxies(self, space: str) -> None:
        """fence.proxy.async by the active threads, for a state space ("" for all)."""
        if len(self.clocks.rows.known) > 1:
            shared = space != ".global"
            self.clocks.fence(self.chunk.mask, shared, space == "", self.now)
