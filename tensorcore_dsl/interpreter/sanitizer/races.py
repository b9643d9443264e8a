"""Race detector: vector clocks of threads, and the last accesses of memory, from one run.

`Races` belongs to a chunk: the codes of its shared memory, the vector clocks of its threads, and
the messages of its barriers. What chunks share is in `launch_history`. Memories call it before they
move words, barriers when threads arrive and pass, and asynchronous operations when they are issued
and awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core import memory_pool
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk, Positions
from tensorcore_dsl.interpreter.core.shadow import SharedStorage
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.interpreter.sanitizer import race_report
from tensorcore_dsl.interpreter.sanitizer.address_ranges import Codes
from tensorcore_dsl.interpreter.sanitizer.earlier_launches import EarlierLaunches
from tensorcore_dsl.interpreter.sanitizer.happens_before import HappensBefore
from tensorcore_dsl.interpreter.sanitizer.launch_history import PAGE, LaunchHistory
from tensorcore_dsl.interpreter.sanitizer.swizzles import Swizzles
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import (
    FENCED_GLOBAL,
    FENCED_SHARED,
    ORDER,
    VectorClocks,
)
from tensorcore_dsl.interpreter.sanitizer.word_accesses import Where, note_loads, touch_words
from tensorcore_dsl.isa import advice, classify
from tensorcore_dsl.isa.context import CLUSTER_SHIFT
from tensorcore_dsl.isa.descriptor import SharedTiles

Spans = history.Spans
Operations = history.Operations
ALWAYS = 1 << 62
LIFE = 4  # bytes of the granule that stands for the life of a CTA: accesses from others read it


class Conflict(NamedTuple):
    """An asynchronous operation, by its number in a step, in conflict with an access; `tell` raises that."""

    which: int
    tell: Callable[..., None]

    @classmethod
    def of(cls, finding: race_report.RaceFinding, operations: Operations) -> Conflict:
        """The conflict of the last of `operations`, or of the first one of another thread."""
        threads = operations.threads
        last = len(threads) - 1
        which = last if threads[last] == finding.thread else int(np.argmax(threads == finding.thread))
        return cls(which, finding.tell)


class Races(HappensBefore):
    """The detector of one chunk.

    Attributes
    ----------
    registers
        Of the machine.
    areas
        By memory, the rows that say where the codes are: by CTA, or by allocation.
    booked
        The rows of clocks whose addresses are in the book.
    drawn
        The turn of the last asynchronous operation's serial number.
    """

    booked: Any = None
    registers: Any = None

    def __init__(
        self, chunk: Chunk, storage: SharedStorage, launch: LaunchHistory, table: np.ndarray
    ) -> None:
        self.chunk, self.storage, self.launch, self.table = chunk, storage, launch, table
        geometry, program = chunk.geometry, chunk.program
        warps, most = chunk.threads // WARP, history.WARP_MASK + 1
        if warps > most:
            raise EmulationError(
                f"{program.kernel.name} runs {warps} warps at a time on {launch.devices} devices, and races "
                f"are found among {most}: launch fewer CTAs, or on fewer devices"
            )
        steps = len(program.instructions)
        if steps > history.STEPS:
            raise EmulationError(
                f"{program.kernel.name} has {steps} instructions, and races are found among {history.STEPS}: "
                f"unroll fewer loops"
            )
        self.names = Positions(program, geometry)  # reports need it after this chunk has ended
        self.peers = geometry.cluster_ctas
        width = self.width = chunk.group * self.peers
        fences = any(classify.is_proxy_fence(instr) for instr in program.instructions)
        asynchronous = program.asynchronous or program.reads_shared or fences
        full = chunk.threads_per_cta * self.peers
        super().__init__(VectorClocks(chunk.threads, width, full, 3 if asynchronous else 1, launch.devices))
        with launch.lock:
            self.number = len(launch.chunks)
            launch.chunks.append(self)
            self.turn = launch.turn
        shift, ctas = launch.shared_shift, geometry.ctas
        self.codes, self.life = Codes(ctas, storage.size, shift), Codes(ctas, LIFE, 2)
        self.tiles = SharedTiles(program.kernel.tiles)
        self.swizzles = Swizzles(chunk, storage, shift) if program.kernel.mixed_swizzles else None
        self.conflicts = np.empty(history.ROOM, history.CONFLICT)
        self.memo = np.zeros(history.MEMO, np.uint32)
        self.log = memory_pool.empty(history.LOG_ROOM, history.LOGGED_LOAD)
        self.book = self._book(width)
        self.early = EarlierLaunches(self)
        self.areas = {history.OWN: self.codes.areas, history.GLOBAL: self._arrays()}
        self.areas[history.CLUSTER] = self.areas[history.OWN]
        self.where = {memory: self._where(memory, areas) for memory, areas in self.areas.items()}
        self.first_cluster = geometry.first // self.peers
        for device, known in enumerate(launch.earlier_known):
            self.clocks.start(device, known)
        # mbarriers that nobody has fenced yet: the thread that has initialised them
        self.unfenced: dict[tuple[int, int], int] = {}
        self.met_cluster = np.zeros(chunk.threads, np.bool_)  # threads that have passed its barrier

    # -- serial numbers ---------------------------------------------------------------------------

    def _book(self, width: int) -> history.Book:
        launch, book = self.launch, history.Book()
        history.point(book, who=launch.who, owner=launch.owner, nodes=launch.nodes, strong=launch.strong)
        history.point(book, memo=self.memo, conflicts=self.conflicts, log=self.log)
        history.point(book, row_of=self.clocks.rows.row_of)
        book.chunk, book.coupled = self.number, launch.coupled
        book.devices = launch.devices
        book.warps, book.cta_warps = width // WARP, self.chunk.group // WARP
        return book

    def _arrays(self) -> np.ndarray:
        areas = np.zeros(len(self.table), history.AREA)
        for which, (_, size, real, _, _) in enumerate(self.table):
            stretch = self.launch.range_of(int(real)) if size else None
            if stretch is not None:
                areas[which] = stretch.areas[0]
                areas[which]["origin"] = int(real) - stretch.low
        return areas

    def _prepare(self, count: int) -> history.Book:
        """The book for compiled functions, with room for `count` serial numbers and without a log."""
        book = self._reserve(count)
        while book.logged:
            note_loads(book, self.where[history.OWN])
            self._reserve(0)
        book.conflict_count = 0
        return book

    def _where(self, memory: int, areas: np.ndarray) -> Where:
        table, peers, group = self.table, self.peers, self.chunk.group
        return Where(memory, history.areas_at(areas), len(areas), table, peers, group)

    def _reserve(self, count: int) -> history.Book:
        """The book, with room for `count` serial numbers and some nodes."""
        book, launch = self.book, self.launch
        while self.turn != launch.turn or book.next + count > book.end:
            if self.turn != launch.turn:
                self._forget()
            stretch = launch.pages_for(self.number, max(count, PAGE))
            book.next, book.end = stretch
        rows = self.clocks.rows
        if book.next_node + 4096 > book.end_node:
            book.next_node, book.end_node = launch.nodes_for()
        if rows is not self.booked:
            self.booked = rows
            book.known = rows.known.ctypes.data
            book.row_bytes = 4 * rows.known.shape[2]
            book.vector_bytes = 4 * rows.known.shape[1] * rows.known.shape[2]
            history.point(book, floor=rows.floor)
        book.since = ALWAYS
        return book

    def _forget(self) -> None:
        """All serial numbers were used up: begin again, without what was accessed before."""
        self.turn = self.launch.turn
        self.codes.clear()
        self.life.clear()
        self.memo.fill(0)
        self.clocks.reset()
        self.early.end()
        self.inits.clear()
        self.fenced_inits.clear()
        self.awaited.clear()
        book = self.book
        book.next_node = book.end_node = book.logged = book.noted = 0

    def warp_of(self, serial: int) -> int:
        """The warp of an access, in its chunk."""
        return int(self.launch.who[serial]) & history.WARP_MASK

    @property
    def now(self) -> int:
        """The last serial number that was given."""
        return max(int(self.book.next) - 1, 0)

    # -- accesses ---------------------------------------------------------------------------------

    def words(
        self,
        memory: int,
        verb: str,
        addresses: np.ndarray,
        mask: np.ndarray,
        size: int,
        equality: Callable[[], history.StoreEquality] | None = None,
        *,
        strong: bool = False,
        todo: int = history.CHECK | history.NOTE,
        step: int | None = None,
        since: int = ALWAYS,
    ) -> Callable[[], None] | None:
        """Accesses of `size` bytes by the threads of `mask`; the result raises what was found.

        equality: compares what a store writes. step: the step of the accesses, if not the running one.
        since: the accesses have gone on since this serial number.
        """
        kind = (history.STORE if verb == "store" else history.LOAD) + 2 * strong
        equality = equality and cache(equality)
        at = self.chunk.at_step if step is None else step
        if self.swizzles is not None and memory != history.GLOBAL and todo & history.NOTE:
            self.swizzles.words(verb, addresses, mask, size, at, self.peers)
        # One compiled form serves all memories; it reads addresses in memory.
        addresses = np.ascontiguousarray(addresses, np.uint64)
        if not self.early.over and memory == history.GLOBAL and todo & history.CHECK:
            early = self.early.words(verb == "store", addresses, mask, size, at)
            if early is not None:
                return early.tell
        start = int(self.book.next)

        def touch(todo: int, mask: np.ndarray, since: int = ALWAYS) -> bool:
            with self.launch.access if memory == history.GLOBAL else nullcontext():
                book = self._prepare(self.chunk.threads // WARP + 2)
                book.since = since
                touch_words(book, self.where[memory], kind, todo, at, addresses, mask, size)
            return bool(book.conflict_count)

        def judge() -> race_report.RaceFinding | None:
            return self._judge(memory, kind, at, equality, origin_of, start, since)

        def origin_of(thread: int) -> tuple[int, np.ndarray]:
            return self._base(memory, thread, int(addresses[thread])), mask & (addresses == addresses[thread])

        if not touch(todo, mask, since):
            return None
        finding = judge()
        if finding is not None and finding.mild and equality is not None:
            # The search has stopped at the first conflict. Look among the threads that store different
            # values, then among the threads that change a value in memory.
            agree, unchanged, repeated = equality()
            for differ in (mask & ~repeated & ~agree, mask & ~repeated & ~(agree & unchanged)):
                second = judge() if finding.mild and touch(todo, differ, since) else None
                finding = finding if second is None or second.mild else second
        if todo & history.NOTE and (finding is None or finding.mild):
            touch(history.NOTE, mask)
        return None if finding is None else finding.tell

    @contextmanager
    def following(self, count: int, is_global: bool) -> Iterator[None]:
        """While compiled code notes about `count` accesses of warps in the history."""
        with self.launch.access if is_global else nullcontext():
            self._reserve(min(count, history.SERIALS >> 8))
            yield

    def _base(self, memory: int, thread: int, address: int) -> int:
        """The CTA of the chunk, or the real address, from which offsets of an access count."""
        if memory == history.GLOBAL:
            which = (address >> 40) - 1
            origin = int(self.areas[memory][which]["origin"])
            return int(self.table[which][2]) - origin
        cta, rank = thread // self.chunk.group, address >> CLUSTER_SHIFT
        remote = memory == history.CLUSTER and rank > 0
        return cta // self.peers * self.peers + rank - 1 if remote else cta

    def _judge(
        self,
        memory: int,
        kind: int,
        step: int,
        equality: Callable[[], history.StoreEquality] | None,
        origin_of: Callable[[int], tuple[int, np.ndarray | None]],
        start: int = history.SERIALS,
        since: int = ALWAYS,
        vector: int = ORDER,
    ) -> race_report.RaceFinding | None:
        """The first conflict that is a race; the step began with serial number `start`.

        origin_of: by thread, where offsets count from, and the threads that access the same bytes.
        vector: what must know of accesses through the generic proxy.
        """
        mild = None
        conflicts = self.conflicts[: self.book.conflict_count]
        for conflict in conflicts[~self._known_abroad(conflicts, vector)].tolist():
            what, thread, at, serial, lanes = conflict
            what &= ~history.ASK
            if serial in self.inits:
                lanes = 1 << self.inits[serial] % WARP
            equal = False
            base, together = origin_of(thread)
            if equality is not None and what == history.WROTE:
                agree, unchanged, _ = equality()
                ours = int(self.launch.owner[serial // PAGE]) == self.number
                equal = bool(agree[thread] and (unchanged[thread] or (ours and serial >= start)))
            if equality is not None and together is not None and what == history.TOGETHER:
                warp = slice(thread // WARP * WARP, (thread // WARP + 1) * WARP)
                equal = np.count_nonzero(together[warp] & ~equality().repeated[warp]) == 1
            last = WARP * self.warp_of(serial) + lanes.bit_length() - 1
            if together is not None and last == thread:  # name another one of those
                thread = int(np.flatnonzero(together[: thread // WARP * WARP + WARP])[-1])
            finding = race_report.RaceFinding(
                self, what, memory, kind, step, thread, at, serial, lanes, base, since, equal
            )
            if not finding.mild:
                return finding
            mild = mild or finding
        return mild

    def _known_abroad(self, conflicts: np.ndarray, vector: int) -> np.ndarray:
        """Find the conflicts with accesses by other clusters that their threads know of.

        Conflicts that only lack a fence of proxies become UNFENCED_WRITE or UNFENCED_READ.
        """
        known = np.zeros(len(conflicts), np.bool_)
        asked = np.flatnonzero(conflicts["what"] & history.ASK)
        if not len(asked):
            return known
        launch, rows, width = self.launch, self.clocks.rows, self.clocks.width
        thread, serial = conflicts["thread"][asked], conflicts["serial"][asked]
        owner = launch.owner[serial // PAGE]
        firsts = np.array([0 if races is None else races.first_cluster for races in launch.chunks])
        first = (launch.who[serial] & history.WARP_MASK).astype(np.int64) * WARP
        cluster = firsts[owner] + first // width
        sets = rows.foreign[rows.row_of[thread]]
        lanes = conflicts["lanes"][asked]
        alone = lanes == 0  # an asynchronous operation
        columns = (first % width)[:, None] + np.arange(WARP)
        columns[alone] = launch.who[serial[alone] + 1][:, None]
        matter = (lanes[:, None] >> np.arange(WARP) & 1 > 0) | alone[:, None]
        keys, which = np.unique(sets << 32 | cluster, return_inverse=True)
        by_key = np.argsort(which, kind="stable")
        parts = np.split(by_key, np.cumsum(np.bincount(which))[:-1])
        for key, here in zip(keys, parts, strict=True):
            vectors = self.clocks.sets[int(key) >> 32].get(int(key) & 0xFFFFFFFF)
            if vectors is None:
                continue
            where, rows_here = columns[here], asked[here]
            knows = vectors[:, np.minimum(where, vectors.shape[1] - 1)] >= serial[here, None]
            knows = ((knows & (where < vectors.shape[1])) | ~matter[here]).all(axis=2)
            fenced = knows[vector] | alone[here]
            known[rows_here] = knows[ORDER] & fenced
            wrote = conflicts["what"][rows_here] == history.WROTE | history.ASK
            unfenced = np.where(wrote, history.UNFENCED_WRITE, history.UNFENCED_READ)
            lacking = knows[ORDER] & ~fenced
            conflicts["what"][rows_here[lacking]] = unfenced[lacking]
        return known

    def counter_goal(self, thread: int) -> int | None:
        """The value of a counter for which a thread waits at the running step, or None."""
        at = self.chunk.at_step
        return self.registers.goal(at, thread) if at in self.chunk.program.awaited else None

    def last_writers(self, address: int) -> list[str]:
        """Who wrote last at a virtual address of global memory, each with the line."""
        which = (address >> 40) - 1
        area = self.areas[history.GLOBAL][which]
        offset = address - int(self.table[which][0]) + int(area["origin"])
        code = np.empty(1, np.int64)
        granule = np.array([offset >> int(area["shift"])])
        history.look_up(history.areas_at(self.areas[history.GLOBAL]), which, 0, granule, code)
        found: dict[str, None] = {}
        for serial, _ in history.entries(self.book, int(code[0])):
            names = self.launch.chunks[int(self.launch.owner[serial // PAGE])].names
            step = int(self.launch.who[serial]) >> history.WARP_BITS
            cta = names.cta_name(self.warp_of(serial) * WARP // names.group)
            found[f"CTA {cta} at {names.loc(step)}"] = None
        return list(found)

    def operations(self, threads: np.ndarray, columns: np.ndarray) -> Operations:
        """Asynchronous operations that `threads` issue, which end in these columns of the clocks."""
        book, who = self._prepare(2 * len(threads)), self.launch.who
        self.drawn, serials = self.turn, int(book.next) + 2 * np.arange(len(threads))
        who[serials] = self.chunk.at_step << history.WARP_BITS | threads // WARP
        who[serials + 1] = columns
        book.next += 2 * len(threads)
        self.early.issued(threads, columns)
        return Operations(threads, serials)

    def shared_spans(
        self,
        verb: str,
        operations: Operations,
        ctas: np.ndarray,
        spans: Spans,
        whole: bool = False,
        swizzles: np.ndarray | None = None,
        vector: int = FENCED_SHARED,
        strong: int = 0,
    ) -> Conflict | None:
        """Check and note accesses of asynchronous operations to shared memory of `ctas`, one of each.

        whole: all warps of the warpgroup of each thread issue it. swizzles: of the accesses, if they
        differ from the swizzle of the step's tile. vector: what must know of accesses through the generic
        proxy. strong: as `strong_accesses.strength` says.
        """
        if self.swizzles is not None:
            for i, thread in enumerate(operations.threads.tolist()):
                swizzle = None if swizzles is None else int(swizzles[i])
                low, high = spans.bounds[spans.rows[i]].T
                starts = np.concatenate([np.arange(*span) for span in zip(low, high, strict=True)])
                cta, by = (np.full(len(starts), x) for x in (ctas[i], thread))
                at = self.chunk.at_step
                self.swizzles.access(verb, cta, starts * spans.unit, spans.unit, at, by, swizzle)
        areas = self.areas[history.OWN]
        return self._spans(history.OWN, verb, operations, spans, areas, ctas, strong, vector, whole=whole)

    def global_spans(
        self,
        verb: str,
        operations: Operations,
        bounds: np.ndarray,
        reduces: bool = False,
        vector: int = FENCED_GLOBAL,
        check: bool = True,
    ) -> Conflict | None:
        """Check, unless that is done, and note accesses of asynchronous operations to global memory.

        bounds: (n, spans, 2), real addresses of the first byte and of the byte past the last one. vector:
        ORDER for a tensor map; what earlier launches did to it is asked where it is decoded.
        """
        stretch = self.launch.range_of(int(bounds[..., 1].max(initial=0)) - 1)  # empty spans end at 0
        if stretch is None:
            return None
        step = self.chunk.at_step
        strong = int(self.launch.strong[step]) if reduces else 0
        if check and not self.early.over and vector == FENCED_GLOBAL:
            early = self.early.spans(verb == "store", operations.threads, bounds, strong, step)
            if early is not None:
                return Conflict.of(early, operations)
        where = stretch.areas, np.zeros(len(bounds), np.int64)
        spans = Spans(bounds - stretch.low, np.arange(len(bounds)))
        return self._spans(
            history.GLOBAL, verb, operations, spans, *where, strong, vector, stretch.low, check=check
        )

    def _spans(
        self,
        memory: int,
        verb: str,
        operations: Operations,
        spans: Spans,
        areas: np.ndarray,
        which: np.ndarray,
        strong: int,
        vector: int,
        low: int = 0,
        whole: bool = False,
        check: bool = True,
    ) -> Conflict | None:
        """areas, which: see `touch_spans`. low: the real address where offsets in global memory begin."""
        kind = (history.STORE if verb == "store" else history.LOAD) + 2 * (strong > 0)
        local, done = memory == history.OWN, 0
        while done < len(operations.serials):
            with self.launch.access if memory == history.GLOBAL else nullcontext():
                book = self._prepare(0)
                if self.drawn != self.turn:  # another chunk has used up all numbers since
                    return None
                how = kind, history.CHECK * check | history.NOTE, strong, local, whole, vector
                done = history.touch_spans(
                    book, *how, operations, spans, history.areas_at(areas), which, done
                )
            if book.conflict_count:
                origin, step = (low + int(which[done - 1]), None), self.chunk.at_step
                finding = self._judge(memory, kind, step, None, lambda _: origin, vector=vector)  # noqa: B023
                if finding is not None:
                    return Conflict.of(finding, operations.first(done))
        return None

    # -- other CTAs, mbarriers --------------------------------------------------------------------

    def reach(self, threads: np.ndarray, ctas: np.ndarray, addresses: np.ndarray, flies: bool) -> None:
        """`threads` access the memory of `ctas`, which must exist.

        addresses: (T,) addresses of shared::cluster. flies: a copy does, which `CopiesInFlight` knows
        until it has landed.
        """
        away = ctas != threads // self.chunk.group
        if not away.any():
            return
        rows, known = self.clocks.rows.row_of[threads], self.clocks.rows.known
        early = away & ~self.met_cluster[threads]
        pairs = dict.fromkeys(zip(ctas[early].tolist(), rows[early].tolist(), strict=True))
        for cta, row in pairs if flies else sorted(pairs):
            first = cta % self.peers * self.chunk.group
            if not known[ORDER, row, first : first + self.chunk.group].any():
                raise EmulationError(
                    f"an access to the memory of CTA {self.chunk.cta_name(cta)} before the "
                    f"cluster has met by {advice.CLUSTER_BARRIER}: CTA "
                    f"{self.chunk.cta_name(cta)} may not have started"
                )
        if flies:
            return
        others = np.zeros(self.chunk.threads, np.bool_)
        others[threads[away]] = True
        ranks = (addresses & np.uint32(-1 << CLUSTER_SHIFT & 0xFFFFFFFF)).astype(np.uint64)
        where = self._where(history.CLUSTER, self.life.areas)
        book, at = self._prepare(self.chunk.threads // WARP + 2), self.chunk.at_step
        touch_words(book, where, history.LOAD, history.NOTE, at, ranks, others, LIFE)

    def leave(self, cta: int) -> None:
        """A CTA ends: it must know of all accesses of other CTAs to its shared memory."""
        group = self.chunk.group
        rows = np.unique(self.clocks.rows.row_of[cta * group : (cta + 1) * group])
        known = self.clocks.rows.known[ORDER, rows].max(axis=0)
        for serial, lanes in history.entries(self.book, int(self.life.codes(np.zeros(1), 1, cta)[0])):
            warp = self.warp_of(serial)
            columns = [warp * WARP % self.width + i for i in range(WARP) if lanes >> i & 1]
            if (known[columns] < serial).any():
                step = int(self.launch.who[serial]) >> history.WARP_BITS
                raise EmulationError(
                    f"CTA {self.chunk.cta_name(cta)} may end before "
                    f"CTA {self.chunk.cta_name(warp * WARP // group)} accesses its shared "
                    "memory here: "
                    f"let the cluster meet by {advice.CLUSTER_BARRIER} before a CTA ends",
                    self.chunk.loc(step),
                )

    def initialise(self, threads: np.ndarray, slots: np.ndarray, size: int) -> Callable[[], None] | None:
        """Threads initialise mbarriers of `size` bytes.

        Each write has a column of its own, so that it can be handed on without what comes before it.
        """
        ctas = threads // self.chunk.group
        columns = self.columns_of("inits", ctas, threads)
        operations = self.operations(threads, columns)
        self.inits.update(zip(operations.serials.tolist(), threads.tolist(), strict=True))
        self.unfenced.update(zip(zip(ctas.tolist(), slots.tolist()), threads.tolist(), strict=True))
        bounds = np.stack((slots, slots + 1), axis=-1)[:, None]
        spans = Spans(bounds, np.arange(len(slots)), size)
        areas = self.areas[history.OWN]
        found = self._spans(history.OWN, "store", operations, spans, areas, ctas, 0, ORDER)
        if self.drawn == self.turn:
            self.observe(threads, columns, operations.serials)
        return None if found is None else found.tell

    def fence_init(self, releases: bool) -> None:
        """The active threads fence the mbarriers that they have initialised.

        releases: does it also let relaxed arrivals hand them on?
        """
        mask = self.chunk.mask
        self.unfenced = {k: thread for k, thread in self.unfenced.items() if not mask[thread]}
        if releases:
            self.fenced_inits |= {t: serial for serial, t in self.inits.items() if mask[t]}

    def check_init(self, cta: int, slot: int, name: str, what: str) -> None:
        """An operation that others than the own threads make uses an mbarrier.

        Triton and libcu++ leave the fence out in kernels without clusters.
        """
        lenient = self.chunk.program.kernel.foreign and self.chunk.geometry.cluster is None
        if (cta, slot) in self.unfenced and not lenient:
            thread = self.unfenced[cta, slot]
            raise EmulationError(
                f"{what} uses {name}, which {self.chunk.describe(thread)} did not fence after "
                f"it was initialised: {advice.FENCE_MBARRIER_INIT}, or {advice.FENCE_PROXY_ASYNC}, "
                "by the same thread must come before the threads meet"
            )
