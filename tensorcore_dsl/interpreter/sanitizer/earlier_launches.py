"""Find accesses that conflict with earlier launches that may still run.

`EarlierLaunches` belongs to the detector of one chunk (`races.Races`). A column of the vector
clocks says which threads know that the launch has waited for the one in front of it: a thread that
has waited itself, and all threads that have met it since. What a thread has acquired from an earlier
launch is in its clock, as that of another cluster (`strong_accesses.foreign_key`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.errors import Loc
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk
from tensorcore_dsl.interpreter.sanitizer import access_history as history
from tensorcore_dsl.interpreter.sanitizer.footprint import Footprint, Hit
from tensorcore_dsl.interpreter.sanitizer.race_report import (
    Detector,
    RaceFinding,
    RunningDetector,
    expression_text,
)
from tensorcore_dsl.interpreter.sanitizer.stream_order import Earlier
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import FENCED_GLOBAL, ORDER, VectorClocks
from tensorcore_dsl.isa import advice

VIRTUAL, REAL = 0, 2  # columns of the table of allocations


class ClockedDetector(RunningDetector, Protocol):
    """Interface of `races.Races` for this module."""

    chunk: Chunk
    clocks: VectorClocks
    table: np.ndarray
    book: history.Book
    width: int
    early: EarlierLaunches

    def columns_of(self, kind: Any, ctas: np.ndarray, keys: np.ndarray) -> np.ndarray: ...
    def observe(self, threads: np.ndarray, columns: Any, serials: Any) -> None: ...
    def mark(self, mask: np.ndarray) -> None: ...


class EarlierLaunches:
    """The earlier launches that a chunk may meet.

    Attributes
    ----------
    waited : tuple or None
        A step and a warp that have waited for the launch in front.
    informed : set
        By cluster, the columns of asynchronous operations that were issued after a wait.
    ignorant
        A thread that did not know that the launch in front has ended when it was last asked.
    """

    def __init__(self, races: ClockedDetector) -> None:
        self.races = races
        self.waited: tuple[int, int] | None = None
        self.informed: set[tuple[int, int]] = set()
        self.ignorant = np.zeros(1, np.int64)
        self.over = not races.launch.earlier
        if not self.over:
            races.book.earlier = 1
            first = np.arange(0, races.chunk.geometry.ctas, races.peers)
            races.columns_of("waited", first, first)  # the first column after those of threads

    def wait(self) -> None:
        """The active threads wait for the launch in front."""
        races, mask = self.races, self.races.chunk.mask
        races.launch.waits = True
        if not self.over:
            races.mark(mask)
            races.observe(np.flatnonzero(mask), races.width, races.now)
            self.waited = races.chunk.at_step, int(np.argmax(mask)) // WARP

    def issued(self, threads: np.ndarray, columns: np.ndarray) -> None:
        """Threads issue asynchronous operations of columns."""
        if not self.over:
            known = self._know(threads)
            clusters = threads[known] // self.races.width
            self.informed.update(zip(clusters.tolist(), columns[known].tolist(), strict=True))

    def completed(self, messages: np.ndarray, clusters: np.ndarray, columns: np.ndarray) -> None:
        """Messages tell that operations of columns are complete."""
        told = zip(messages.tolist(), clusters.tolist(), columns.tolist(), strict=True)
        for message, *operation in told if self.informed else ():
            if tuple(operation) in self.informed:
                self.races.clocks.rows.known[ORDER, message, self.races.width] = 1

    def end(self) -> None:
        """Look no more."""
        self.over, self.races.book.earlier = True, 0

    def _know(self, threads: np.ndarray) -> np.ndarray:
        """Find the threads that know that the launch in front has ended."""
        clocks, column = self.races.clocks, self.races.width
        rows = clocks.rows.row_of[threads]
        known = np.asarray(clocks.rows.known[ORDER, rows, column] > 0)
        foreign = np.where(known, 0, clocks.rows.foreign[rows])
        for number in np.unique(foreign[foreign > 0]).tolist() if foreign.any() else ():
            others = clocks.sets[number].values()
            if any(v.shape[1] > column and v[ORDER, column] > 0 for v in others):
                known |= foreign == number
        return known

    def words(
        self, stores: bool, addresses: np.ndarray, mask: np.ndarray, size: int, step: int
    ) -> RaceFinding | None:
        """Accesses of `size` bytes at virtual addresses by the threads of `mask`."""
        races = self.races
        threads = np.flatnonzero(mask)
        which = (addresses[threads] >> np.uint64(40)).astype(np.int64) - 1
        inside = (which >= 0) & (which < len(races.table))  # the memories refuse the others
        threads, rows = threads[inside], races.table[which[inside]]
        starts = addresses[threads].astype(np.int64) - rows[:, VIRTUAL] + rows[:, REAL]
        strong = int(races.launch.strong[step])
        return self._search(threads, starts, size, stores, strong, step, ORDER)

    def spans(
        self, stores: bool, threads: np.ndarray, bounds: np.ndarray, strong: int, step: int
    ) -> RaceFinding | None:
        """Operations that `threads` issue access (n, spans, 2) first and past-the-end real addresses."""
        if all(earlier.awaited for earlier in self.races.launch.earlier):
            asked = ~self._know(threads)
            threads, bounds = threads[asked], bounds[asked]
        if not len(threads):
            self._end_if_known()
        sizes, finding = bounds[..., 1] - bounds[..., 0], None
        for size in np.unique(sizes[sizes > 0]).tolist():
            own, span = np.nonzero(sizes == size)
            accesses = threads[own], bounds[own, span, 0], size
            finding = finding or self._search(*accesses, stores, strong, step, FENCED_GLOBAL)
        return finding

    def _search(
        self,
        threads: np.ndarray,
        starts: np.ndarray,
        size: int,
        stores: bool,
        strong: int,
        step: int,
        vector: int,
    ) -> RaceFinding | None:
        races, rows = self.races, self.races.clocks.rows
        knows = self._know(threads)
        acquired = rows.foreign[rows.row_of[threads]]
        count = races.launch.devices
        keys = acquired * count + (races.first_cluster + threads // races.width) % count
        for earlier in races.launch.earlier:
            asked = ~knows if earlier.awaited else np.ones_like(knows)
            footprint = earlier.launch.footprint
            if not asked.any() or footprint is None:
                continue
            reads = stores and earlier.may_read
            # Threads of a device that have acquired the same.
            for key in np.unique(keys[asked]).tolist():
                (number, device), which = divmod(key, count), np.flatnonzero(asked & (keys == key))
                known = races.clocks.sets[number]
                hit = footprint.find(starts[which], size, reads, strong, known, vector, device)
                if hit is not None:
                    thread = int(threads[which[hit.which]])
                    return EarlierFinding.of(races, earlier, hit, stores, step, thread)
        self._end_if_known()
        return None

    def _end_if_known(self) -> None:
        """Look no more if all threads know that the launch in front has ended, and none is asked for."""
        races = self.races
        awaited = all(one.awaited for one in races.launch.earlier)
        if awaited and (self._know(self.ignorant).all() or not races.chunk.alive[self.ignorant].all()):
            alive = np.flatnonzero(races.chunk.alive)
            self.ignorant = alive[~self._know(alive)][:1]
            if not len(self.ignorant):
                self.end()


class EarlierFinding(RaceFinding):
    """An access in conflict with one of an earlier launch. base: the real address of the bytes."""

    races: ClockedDetector

    def __init__(self, earlier: Earlier, footprint: Footprint, *fields: Any) -> None:
        self.earlier, self.footprint = earlier, footprint
        super().__init__(*fields)

    @classmethod
    def of(
        cls, races: ClockedDetector, earlier: Earlier, hit: Hit, stores: bool, step: int, thread: int
    ) -> EarlierFinding:
        """The finding of an access of `thread` in `step`."""
        footprint = earlier.launch.footprint
        assert footprint is not None
        what = history.WROTE if hit.wrote else history.READ
        if hit.unfenced:
            what = history.UNFENCED_WRITE if hit.wrote else history.UNFENCED_READ
        kind = history.STORE if stores else history.LOAD
        access = what, history.GLOBAL, kind, step, thread, 0, hit.serial, hit.lanes, hit.real, 0, False
        return cls(earlier, footprint, races, *access)

    @property
    def _owner(self) -> Detector:
        detector: Detector = self.footprint.detector(self.serial)
        return detector

    @property
    def _who(self) -> int:
        return int(self.footprint.who[self.serial])

    @property
    def _other_kernel(self) -> str:
        return str(self.earlier.launch.kernel)

    def _text(self, here: Loc | None, there: Loc | None) -> str:
        earlier, launch = self.earlier, self.races.launch
        first, second = earlier.launch.kernel, launch.launched.kernel
        done, did = self._verbs()
        where = f"in the launch of {first} in front of it"
        if earlier.distance > 1:
            where = f"in the launch of {first} that lies {earlier.distance} launches before it"
        elif not earlier.distance:
            where = f"in the launch of {first} in stream {earlier.launch.queue.stream}"
        name = self.footprint.name(self.base)
        lines = [
            f"{self._name(here)} is {done} here by {self._me()} in the launch of {second}; "
            f"{self._other()} {did} at {expression_text(there, here)} {where}; nothing orders the two "
            "accesses",
            f"they meet at {self._bytes()}, in argument {name!r} of {first}",
            *self._why(first, second, here),
        ]
        return "\n  ".join(lines)

    def _why(self, first: str, second: str, here: Loc | None) -> list[str]:
        """Why nothing orders the accesses, and what would."""
        earlier, launched = self.earlier, self.races.launch.launched
        if launched.queue.devices > 1:
            return [
                f"each rank runs its launches at its own time: {first} may still run on one rank when "
                f"{second} starts on another one",
                "let the one rank signal after its access (tc.signal), and the other one wait "
                "(tc.wait_signal)",
            ]
        wait = advice.GRIDDEP_WAIT
        if not earlier.distance:
            return [
                f"{second} is launched in stream {launched.queue.stream}, which does not wait for "
                f"stream {earlier.launch.queue.stream}",
                f"launch both in one stream, or let the stream of {second} wait for an event that "
                f"is recorded after {first}",
            ]
        if not earlier.awaited:
            return [
                f"{second} waits at most for the launch in front of it; {earlier.between} lies "
                f"between the two and never calls {wait}, so that it may end before {first} has "
                "ended",
                f"call tc.griddep_wait() in {earlier.between}, or launch {second} without pdl=True",
            ]
        why = (
            f"{second} is launched with pdl=True: it starts when all CTAs of {first} have called "
            "tc.griddep_launch_dependents() or ended"
        )
        if earlier.distance > 1:
            why = f"{second} and the launches in front of it are launched with pdl=True"
        why += f"; what {first} does is over only after {wait} (PTX manual, 9.7.13.13)"
        waited = self.races.early.waited
        if waited is None:
            return [why, "call tc.griddep_wait() before this access"]
        step, warp = waited
        names = self.races.names
        return [
            why,
            f"{names.unit_name(warp * WARP, WARP)} has waited at "
            f"{expression_text(names.loc(step), here)}, which does not order this access: let each "
            "thread wait, or let the threads meet after the wait (tc.barrier())",
        ]
