"""Vector clocks: the accesses that happened before the next access of each thread.

Every access gets a *serial number*, which grows with time (`access_history`). The clock of a
thread is a vector with one column for each thread of its cluster: all accesses of that thread up to
this serial number happened before. Further columns stand for asynchronous operations: one for each
mbarrier that counts bytes, for each warpgroup (its matrix products), and two for each thread that
issues bulk stores (their reads, and their writes).

Vectors are rows of one array. Lanes with equal knowledge share a row, as the lanes of a warp mostly
do. A lane that learns something alone gets a row of its own, until its warp meets again. The column
of a thread in its own row only says what the other owners of the row know of it.

A row has up to three vectors. ORDER has the accesses that happened before. The other two have those
accesses that a path with a proxy fence (generic to async) connects, for shared and for global memory.

Barriers hand clocks on as messages, which are rows too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tensorcore_dsl.interpreter.core import memory_pool, native
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.native import compiled, inlined

ORDER, FENCED_SHARED, FENCED_GLOBAL = range(3)
SPARE_COLUMNS = 32  # initial columns for asynchronous operations
ROW_THREADS = 4  # threads of a chunk for each initial row: new memory takes long
FREE, MERGES = range(2)  # items of `counts`


class Rows(NamedTuple):
    """The arrays of `VectorClocks`, for compiled functions.

    Attributes
    ----------
    known : array
        (vectors, rows, columns).
    floor : array
        (rows,), a serial number up to which every access of the cluster is known.
    users : array
        (rows,), threads that share a row, 1 for a message.
    foreign : array
        (rows,), the number of a set of vectors of other clusters, 0 for none.
    row_of : array
        (T,).
    free : array
        Unused rows; the first counts[FREE] entries are valid.
    merges : array
        (n, 2), a row and the set that it must still learn; counts[MERGES] are valid.
    """

    known: np.ndarray
    floor: np.ndarray
    users: np.ndarray
    foreign: np.ndarray
    row_of: np.ndarray
    free: np.ndarray
    merges: np.ndarray
    counts: np.ndarray


class VectorClocks:
    """The vector clocks of all threads of a chunk.

    Attributes
    ----------
    width
        Threads of a cluster, which are the first columns.
    full
        Those that exist.
    vectors
        1, or 3 where the async proxy is used.
    devices
        Their clusters take turns; the threads of each begin with one row.
    columns
        By cluster, how many columns are in use.
    phases
        By row, the phase of a message.
    """

    def __init__(self, threads: int, width: int, full: int, vectors: int, devices: int) -> None:
        self.threads, self.width, self.full = threads, width, full
        clusters, rows = threads // width, devices + 64 + threads // ROW_THREADS
        known = memory_pool.empty((vectors, rows, width + SPARE_COLUMNS * (vectors > 1)), np.uint32)
        known[:, :devices] = 0
        self.rows = Rows(
            known,
            np.zeros(rows, np.uint32),
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
            np.repeat(np.arange(clusters) % devices, width),
            np.arange(rows)[::-1].copy(),
            np.empty((threads + 64, 2), np.int64),
            np.array([rows - devices, 0]),
        )
        self.rows.users[:devices] = threads // devices
        self.columns = np.full(clusters, width)
        self.phases = np.full(rows, -1)
        self.sets: list[dict[int, np.ndarray]] = [{}]
        self.kept = 0  # how many of them were in use when they were last counted

    def reserve(self, count: int) -> None:
        """Make room for `count` more rows."""
        rows = self.rows
        free = int(rows.counts[FREE])
        if free >= count:
            return
        old = len(rows.floor)
        more = max(old, count)
        known = memory_pool.empty((rows.known.shape[0], old + more, rows.known.shape[2]), np.uint32)
        known[:, :old] = rows.known
        grown = [np.concatenate((a, np.zeros(more, a.dtype))) for a in rows[1:4]]
        stack = np.zeros(old + more, np.int64)
        stack[:free] = rows.free[:free]
        stack[free : free + more] = np.arange(old, old + more)[::-1]
        rows.counts[FREE] = free + more
        floor, users, foreign = grown
        self.rows = Rows(known, floor, users, foreign, rows.row_of, stack, rows.merges, rows.counts)
        self.phases = np.concatenate((self.phases, np.full(more, -1)))

    def _with_room(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a compiled function of the rows, again with more rows whenever these run out."""
        self.reserve(64)
        while function(self.rows, *arguments):
            self.reserve(2 * int(self.rows.counts[FREE]) + 64)

    def column(self, cluster: int) -> int:
        """A new column of a cluster."""
        column = int(self.columns[cluster])
        known = self.rows.known
        if column == known.shape[2]:
            wider = memory_pool.zeros((*known.shape[:2], column + max(SPARE_COLUMNS, column // 4)), np.uint32)
            wider[..., :column] = known
            self.rows = self.rows._replace(known=wider)
        self.columns[cluster] += 1
        return column

    def messages(self, count: int) -> np.ndarray:
        """Rows for messages, of no phase yet."""
        self.reserve(count)
        rows = self.rows
        left = int(rows.counts[FREE]) - count
        messages = rows.free[left : left + count].copy()
        rows.counts[FREE], rows.users[messages] = left, 1
        return messages

    def begin(self, messages: np.ndarray, phases: np.ndarray) -> None:
        """Clear those messages that are of other phases."""
        _begin(self.rows, messages, phases, self.phases)

    def meet(self, keys: np.ndarray, span: int, now: int) -> None:
        """Threads of a span with the same key (not negative) learn what each of them knows and did.

        keys: (T,). span: threads that a group may come from, such as a warp.
        """
        self.reserve(self.threads // span + 1 if span > WARP else self.threads // WARP * 2 + 64)
        self._with_room(_meet, keys, span, now, self.width, self.full)
        self._settle()

    def release(self, messages: np.ndarray, now: int) -> None:
        """Each thread adds to its message (-1: none) what it knows and what it did."""
        _release(self.rows, messages, now, self.width)
        self._settle()

    def acquire(self, messages: np.ndarray) -> None:
        """Each thread learns its message (-1: none)."""
        self._with_room(_acquire, messages)
        self._settle()

    def fence(self, mask: np.ndarray, shared: bool, everywhere: bool, now: int) -> None:
        """The threads of `mask` fence all accesses that they know, for shared memory, global or both."""
        first = FENCED_SHARED if shared else FENCED_GLOBAL
        last = FENCED_GLOBAL if everywhere or not shared else FENCED_SHARED
        self._with_room(_fence, mask, first, last, now, self.width)
        of = np.unique(self.rows.row_of[mask])
        for row in of[self.rows.foreign[of] > 0].tolist():
            self._fence_foreign(row, slice(first, last + 1))

    def _fence_foreign(self, row: int, fenced: slice) -> None:
        """Fence what a row knows of other clusters."""
        vectors = self.sets[int(self.rows.foreign[row])]
        late = {c: item for c, item in vectors.items() if (item[fenced] < item[ORDER]).any()}
        for cluster, item in late.items():
            late[cluster] = item = item.copy()
            np.maximum(item[fenced], item[ORDER], out=item[fenced])
        if late:
            self.rows.foreign[row] = self._number({**vectors, **late})

    def observe(self, mask: np.ndarray, columns: np.ndarray, serials: np.ndarray) -> None:
        """The threads of `mask` learn that asynchronous operations are over.

        columns: (T,), -1 for none. serials: (T,), the last operation of that column that is over.
        """
        self._with_room(_observe, mask, columns, serials)

    def snapshot(self, thread: int, now: int) -> np.ndarray:
        """(vectors, columns): the accesses that a thread knows or made."""
        vectors = self.rows.known[:, self.rows.row_of[thread]].copy()
        vectors[ORDER, thread % self.width] = now
        return vectors

    def foreign(self, thread: int) -> dict[int, np.ndarray]:
        """Vectors of a thread for other clusters, by their number."""
        return self.sets[int(self.rows.foreign[self.rows.row_of[thread]])]

    def learn(self, thread: int, own: int, vectors: dict[int, np.ndarray]) -> None:
        """A thread learns `vectors` of clusters; `own` is the number of its own."""
        self.reserve(1)
        row = int(self.rows.row_of[thread])
        self.rows.row_of[thread] = target = int(_own(self.rows, row, 1))
        self.add(target, own, vectors)

    def add(self, target: int, own: int, vectors: dict[int, np.ndarray]) -> None:
        """Add `vectors` of clusters to a row of cluster `own`."""
        mine = vectors.get(own)
        if mine is not None:
            known = self.rows.known[:, target, : mine.shape[1]]
            np.maximum(known, mine, out=known)
        others = {cluster: item for cluster, item in vectors.items() if cluster != own}
        if others:
            foreign = self.sets[int(self.rows.foreign[target])]
            self.rows.foreign[target] = self._number(merged(foreign, others))

    def start(self, device: int, vectors: dict[int, np.ndarray]) -> None:
        """The threads of a device know vectors before they start."""
        self.rows.foreign[device] = self._number(vectors)

    def reset(self) -> None:
        """Forget everything."""
        self.rows.known[:] = 0
        self.rows.floor[:] = 0
        self.rows.foreign[:] = 0
        self.sets, self.kept = [{}], 0

    def _number(self, vectors: dict[int, np.ndarray]) -> int:
        if not vectors:
            return 0
        if len(self.sets) > 2 * self.kept + 1024:
            self._compact()
        self.sets.append(vectors)
        return len(self.sets) - 1

    def _compact(self) -> None:
        """Leave out the sets of vectors that no row names any more."""
        rows = self.rows
        named = [rows.foreign, rows.merges[: int(rows.counts[MERGES]), 1]]
        used = np.unique(np.concatenate(([0], *named)))
        new_numbers = np.zeros(len(self.sets), np.int64)
        new_numbers[used] = np.arange(len(used))
        for numbers in named:
            numbers[:] = new_numbers[numbers]
        self.sets = [self.sets[number] for number in used]
        self.kept = len(used)

    def _settle(self) -> None:
        """Merge the clocks of other clusters where rows have met that differ in it."""
        rows = self.rows
        for merge in range(int(rows.counts[MERGES])):
            row, other = rows.merges[merge].tolist()
            mine = self.sets[int(rows.foreign[row])]
            rows.foreign[row] = self._number(merged(mine, self.sets[other]))
        rows.counts[MERGES] = 0


def merged(first: dict[int, np.ndarray], second: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Merge the vectors of two threads, by cluster."""
    result = dict(first)
    for cluster, vectors in second.items():
        mine = result.get(cluster)
        if mine is None:
            result[cluster] = vectors
        elif mine is not vectors:
            narrow, wide = sorted((mine, vectors), key=lambda v: v.shape[1])
            wide = wide.copy()
            part = wide[:, : narrow.shape[1]]
            np.maximum(part, narrow, out=part)
            result[cluster] = wide
    return result


@compiled
def _take(k: Any) -> int:
    k.counts[0] -= 1
    row: int = k.free[k.counts[0]]
    return row


@compiled
def _drop(k: Any, row: int, count: int) -> None:
    k.users[row] -= count
    if k.users[row] == 0:
        k.foreign[row] = 0
        k.free[k.counts[0]] = row
        k.counts[0] += 1


@compiled
def _own(k: Any, row: int, count: int) -> int:
    """Row for the sole use of `count` threads, which use `row` now: the same row or a copy."""
    if k.users[row] == count:
        return row
    new = _take(k)
    k.known[:, new, :] = k.known[:, row, :]
    k.floor[new] = k.floor[row]
    k.foreign[new] = k.foreign[row]
    k.users[new] = count
    k.users[row] -= count
    return new


@compiled
def _join(k: Any, target: int, source: int) -> None:
    """Row `target` learns row `source`."""
    for vector in range(k.known.shape[0]):
        for column in range(k.known.shape[2]):
            there = k.known[vector, source, column]
            if there > k.known[vector, target, column]:
                k.known[vector, target, column] = there
    k.floor[target] = max(k.floor[target], k.floor[source])
    if k.foreign[source] != k.foreign[target] and k.foreign[source] != 0:
        if k.foreign[target] == 0:
            k.foreign[target] = k.foreign[source]
        else:
            k.merges[k.counts[1], 0] = target
            k.merges[k.counts[1], 1] = k.foreign[source]
            k.counts[1] += 1


@compiled
def _dominates(k: Any, row: int, message: int) -> bool:
    """True if a row knows a message already."""
    if k.foreign[message] != 0 and k.foreign[message] != k.foreign[row]:
        return False
    for vector in range(k.known.shape[0]):
        for column in range(k.known.shape[2]):
            if k.known[vector, message, column] > k.known[vector, row, column]:
                return False
    return True


@inlined
def _is_uniform(k: Any, keys: Any, first: int, span: int) -> bool:
    """True if all threads of a span have one key and one row."""
    same = True
    for thread in range(first, first + span, 32):
        same = same and keys[thread] == keys[first] and k.row_of[thread] == k.row_of[first]
        same = same and native.has_stride64(keys.ctypes.data + 8 * thread, 0)
        same = same and native.has_stride64(k.row_of.ctypes.data + 8 * thread, 0)
    return same


@compiled
def _meet(k: Any, keys: Any, span: int, now: int, width: int, full: int) -> int:
    """1 when rows ran out: call it again with the keys that are left."""
    members = np.empty(span, np.int64)
    for first in range(0, keys.size, span):
        done = first
        if keys[first] >= 0 and k.counts[0] > 0 and _is_uniform(k, keys, first, span):
            target = _own(k, k.row_of[first], span)
            for thread in range(first, first + span, 32):
                native.fill64(k.row_of.ctypes.data + 8 * thread, target, 0)
                native.fill64(keys.ctypes.data + 8 * thread, -1, 0)
                at = k.known.ctypes.data + 4 * (target * k.known.shape[2] + thread % width)
                native.fill32(at, now, 0)
            if span == full:
                k.floor[target] = now
            continue
        while done < first + span:
            while done < first + span and keys[done] < 0:
                done += 1
            if done == first + span:
                break
            key, count = keys[done], 0
            for thread in range(done, first + span):
                if keys[thread] == key:
                    members[count] = thread
                    count += 1
            if k.counts[0] < 1:
                return 1
            if count > 1:
                row, same = k.row_of[members[0]], 0
                for i in range(count):
                    same += k.row_of[members[i]] == row
                target, last = _own(k, row, same), -1
                for i in range(count):
                    if k.row_of[members[i]] == row:
                        k.row_of[members[i]] = target
                for i in range(count):
                    other = k.row_of[members[i]]
                    if other != target:
                        if other != last:
                            _join(k, target, other)
                        last = other
                        k.users[target] += 1
                        k.row_of[members[i]] = target
                        _drop(k, other, 1)
                for i in range(count):
                    k.known[0, target, members[i] % width] = now
                if count == full:
                    k.floor[target] = now
            for i in range(count):
                keys[members[i]] = -1
    return 0


@compiled
def _begin(k: Any, messages: Any, phases: Any, known: Any) -> None:
    for i in range(messages.size):
        row = messages[i]
        if known[row] != phases[i]:
            known[row] = phases[i]
            k.floor[row], k.foreign[row] = 0, 0
            k.known[:, row, :] = 0


@compiled
def _release(k: Any, messages: Any, now: int, width: int) -> None:
    last_row, last_message = -1, -1
    for thread in range(messages.size):
        message = messages[thread]
        if message < 0:
            continue
        row = k.row_of[thread]
        if row != last_row or message != last_message:
            _join(k, message, row)
            last_row, last_message = row, message
        k.known[0, message, thread % width] = now


@compiled
def arrive(k: Any, messages: Any, before: Any, alive: Any, now: int, width: int) -> int:
    """Threads arrive at a phase of a barrier: each notes it in its message (-1: none).

    before: (T,), the messages of the phase before, -1 for none and for threads that are not asked.
    alive: threads without which a warp has not arrived. Returns a << 32 | b if warp a has arrived but may not
    know that warp b arrived in the phase before; else -1. A lane that knows, or is known, stands for its
    warp.
    """
    for first in range(0, messages.size, 32):
        last, whole = -1, True
        for thread in range(first, first + 32):
            if messages[thread] >= 0:
                last = thread if before[thread] >= 0 else last
                k.known[0, messages[thread], thread % width] = now
        for thread in range(first, first + 32 if last >= 0 else first):
            here = k.known[0, messages[last], thread % width] > 0
            whole = whole and (here or not alive[thread])
        if not whole or last < 0:
            continue
        for other in range(0, width, 32):
            late, thread = 0, first
            for column in range(other, other + 32):
                late = max(late, int(k.known[0, before[last], column]))
            while other != first % width and late > 0 and thread < first + 32:
                for column in range(other, other + 32):
                    if k.known[0, k.row_of[thread], column] >= late:
                        late = 0
                thread += 1
            if other != first % width and late > 0:
                return first // 32 << 32 | (first // width * width + other) // 32
    return -1


@compiled
def _acquire(k: Any, messages: Any) -> int:
    """1 when rows ran out: call it again with the messages that are left."""
    for first in range(0, messages.size, 32):
        for leader in range(first, first + 32):
            message = messages[leader]
            if message < 0:
                continue
            row, count = k.row_of[leader], 0
            for thread in range(leader, first + 32):
                count += messages[thread] == message and k.row_of[thread] == row
            target = row
            if not _dominates(k, row, message):
                if k.counts[0] < 1:
                    return 1
                target = _own(k, row, count)
                _join(k, target, message)
            for thread in range(leader, first + 32):
                if messages[thread] == message and k.row_of[thread] == row:
                    k.row_of[thread] = target
                    messages[thread] = -1
    return 0


@compiled
def _fence(k: Any, mask: Any, low: int, high: int, now: int, width: int) -> int:
    """1 when rows ran out; doing a warp twice is harmless."""
    left = np.empty(32, np.bool_)
    for first in range(0, mask.size, 32):
        left[:] = mask[first : first + 32]
        for leader in range(32):
            if not left[leader]:
                continue
            if k.counts[0] < 1:
                return 1
            row, count = k.row_of[first + leader], 0
            for lane in range(leader, 32):
                count += left[lane] and k.row_of[first + lane] == row
            target = _own(k, row, count)
            for vector in range(low, high + 1):
                for column in range(k.known.shape[2]):
                    if k.known[0, target, column] > k.known[vector, target, column]:
                        k.known[vector, target, column] = k.known[0, target, column]
            for lane in range(leader, 32):
                if left[lane] and k.row_of[first + lane] == row:
                    for vector in range(low, high + 1):
                        k.known[vector, target, (first + lane) % width] = now
                    k.row_of[first + lane] = target
                    left[lane] = False
    return 0


@compiled
def _observe(k: Any, mask: Any, columns: Any, serials: Any) -> int:
    """1 when rows ran out; doing a thread twice is harmless."""
    for first in range(0, mask.size, 32):
        for leader in range(first, first + 32):
            column = columns[leader]
            if not mask[leader] or column < 0:
                continue
            row, serial = k.row_of[leader], serials[leader]
            if k.known[0, row, column] >= serial:
                continue
            if k.counts[0] < 1:
                return 1
            count = 0
            for thread in range(leader, first + 32):
                alike = mask[thread] and columns[thread] == column and serials[thread] == serial
                count += alike and k.row_of[thread] == row
            target = _own(k, row, count)
            for thread in range(leader, first + 32):
                alike = mask[thread] and columns[thread] == column and serials[thread] == serial
                if alike and k.row_of[thread] == row:
                    k.row_of[thread] = target
            k.known[0, target, column] = serial
    return 0
