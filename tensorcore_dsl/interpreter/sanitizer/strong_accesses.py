"""Order by memory itself: atomics, volatile accesses, fences (PTX manual, chapter 8).

A release hands on what a thread knows, through the location that it writes; an acquire that reads
the location learns it. A fence makes a release of the strong writes after it, and an acquire of the
strong reads before it. Both scopes must include the other thread. Atomics that change the location
in between carry a release on. A release also holds for later strong writes of its thread to its
location, and a strong read takes effect at a later acquire of its location, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.sanitizer.access_history import (
    ATOMIC,
    CLUSTER_SCOPE,
    CTA_SCOPE,
    GPU_SCOPE,
    NON_COHERENT,
    SIZE_BITS,
    SYSTEM_SCOPE,
)
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import FENCED_GLOBAL, ORDER, VectorClocks, merged
from tensorcore_dsl.isa import classify
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction


class Detector(Protocol):
    """Interface of `races.Races` for this module."""

    chunk: Chunk
    clocks: VectorClocks
    launch: Any
    number: int
    first_cluster: int

    @property
    def now(self) -> int: ...
    def counter_goal(self, thread: int) -> int | None: ...


_SCOPES = {"cta": CTA_SCOPE, "cluster": CLUSTER_SCOPE, "gpu": GPU_SCOPE, "sys": SYSTEM_SCOPE}
MBARRIER = 8  # bytes of an mbarrier
LAUNCH_BITS = 32  # low bits of a cluster's key; the launch's number is above them
NOWHERE = -1
MAX_COUNTED = 256  # kept messages of a counter


def strength(instr: Instruction) -> int:
    """0 for a weak access, else bytes of its scalars, whether it is atomic, and its scope.

    NON_COHERENT for `ld.nc`.
    """
    if classify.is_read_only_load(instr):
        return NON_COHERENT
    if not (
        classify.is_strong(instr)
        or classify.is_bulk_reduction(instr)
        or classify.completes_on_mbarrier(instr)
    ):
        return 0
    access = instr.accesses[0]
    if classify.uses_mbarrier(instr) or (classify.completes_on_mbarrier(instr) and not access.order):
        return MBARRIER | SYSTEM_SCOPE << SIZE_BITS
    size = access.scalar | ATOMIC * (access.verb == "update" and not access.completion)
    return size | _SCOPES[classify.scope(instr)] << SIZE_BITS


def compatible_abroad(strong: int, other: int, same_device: bool) -> bool:
    """True if accesses of these strengths are no race, though different launches make them."""
    same_size = (strong ^ other) & (ATOMIC - 1) == 0
    least = GPU_SCOPE if same_device else SYSTEM_SCOPE
    return strong != 0 and same_size and min(strong, other) >> SIZE_BITS >= least


@dataclass
class Message:
    """Content of a release: vectors by cluster, its scope, and the CTA that made it, on a device.

    Attributes
    ----------
    chain : int
        Number that a message keeps when atomics carry it on and add to it.
    value : int
        Of a counter, after the release.
    """

    vectors: dict[int, np.ndarray]
    scope: int
    cta: int
    cluster: int
    device: int
    chain: int = field(default_factory=count().__next__)
    value: int = 0


@dataclass
class Signals:
    """Messages by location, and the messages that threads have fenced or will fence.

    Attributes
    ----------
    counted : dict
        By location, the messages of a counter that only grows, in the order of its values.
    released : dict
        By thread and location, what the thread's releases of it have handed on.
    waiting : dict
        By thread and location.
    observed : dict
        The same, also of what has been learned since, with the serial number of the last such read.
    learned : dict
        By thread, location and scope, the message that the thread has learned there last.
    sequential : dict
        By chunk and thread, what was fenced by fences of the one order of all fences, which also serve
        threads that know of them.
    """

    locations: dict[tuple[int, int], Message] = field(default_factory=dict)
    fenced: dict[tuple[int, int], tuple[np.ndarray, int, dict[int, np.ndarray], int]] = field(
        default_factory=dict
    )
    sequential: dict[int, dict[int, tuple[np.ndarray, int, dict[int, np.ndarray], int]]] = field(
        default_factory=dict
    )
    observed: dict[tuple[Any, ...], tuple[int, list[Message]]] = field(default_factory=dict)
    released: dict[tuple[Any, ...], Message] = field(default_factory=dict)
    learned: dict[tuple[Any, ...], Message] = field(default_factory=dict)
    waiting: dict[tuple[int, int], dict[Any, list[Message]]] = field(default_factory=dict)
    counted: dict[tuple[int, int], list[Message]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counted = {key: [message] for key, message in self.locations.items()}

    def count(self, key: tuple[int, int], message: Message, bits: int, old: int | None, new: int) -> Message:
        """Note the message of a thread that has changed a location from `old` (None: unknown) to `new`.

        Before the first message of a location stands its old value, which has no message to learn.
        """
        messages, first = self.counted.setdefault(key, []), key not in self.locations
        message = replace(message, value=new)
        if old == new:  # A cas failed: nobody waits for this message.
            return message
        if messages and not _reached(new, messages[-1].value + 1, bits):
            messages.clear()  # The counter was set.
        if not messages and first and old is not None:
            messages.append(replace(message, vectors={}, value=old))
        messages.append(message)
        del messages[:-MAX_COUNTED]
        return message

    def reached(self, key: tuple[int, int], value: int, bits: int) -> Message | None:
        """The message of a counter when it reached a value: later signals may come after the wait."""
        messages = self.counted.get(key, [])
        return next((message for message in messages if _reached(message.value, value, bits)), None)


def _reached(value: int, least: int, bits: int) -> bool:
    """True if a counter, which may have wrapped around, has reached a value."""
    return (value - least) % (1 << bits) < 1 << bits - 1


def foreign_key(launch: int, cluster: int) -> int:
    """The number that stands for a cluster of an earlier launch among the clusters of a launch."""
    return cluster if cluster >> LAUNCH_BITS else launch << LAUNCH_BITS | cluster


def for_later_launches(signals: Signals, launch: int) -> dict[int, Message]:
    """Messages that a launch has released in global memory, by address, for overlapping launches.

    Only the gpu scope includes the threads of other grids (PTX manual, 8.5): no CTA or cluster of a
    later launch has made the messages.
    """
    return {
        location: Message(
            {foreign_key(launch, key): of_all_proxies(item) for key, item in message.vectors.items()},
            message.scope,
            NOWHERE,
            NOWHERE,
            message.device,
            value=message.value,
        )
        for (memory, location), message in signals.locations.items()
        if memory == 0 and message.vectors
    }


def of_all_proxies(vectors: np.ndarray) -> np.ndarray:
    """The vectors of a thread. The vectors of the async proxy are 0 in kernels without it."""
    return np.pad(vectors, ((0, FENCED_GLOBAL + 1 - len(vectors)), (0, 0)))


def fence(races: Detector, instr: Instruction) -> None:
    """A fence or membar of the active threads."""
    signals, clocks, now = races.launch.signals, races.clocks, races.now
    scope = _SCOPES[classify.scope(instr)]
    copies: dict[int, np.ndarray] = {}
    threads = np.flatnonzero(races.chunk.mask)
    if classify.is_acquire(instr):
        for thread in map(int, threads):
            for messages in signals.waiting.pop((races.number, thread), {}).values():
                _learn(races, thread, scope, messages)
    if classify.is_release(instr):
        for thread in map(int, threads):
            row = int(clocks.rows.row_of[thread])
            if row not in copies:
                copies[row] = clocks.rows.known[:, row].copy()
            entry = copies[row], now, clocks.foreign(thread), scope
            signals.fenced[races.number, thread] = entry
            if classify.is_sequential_fence(instr):
                signals.sequential.setdefault(races.number, {})[thread] = entry
    if classify.is_sequential_fence(instr) and signals.observed:
        _learn_from_others(races, threads, scope)


def access(
    races: Detector,
    instr: Instruction,
    locations: np.ndarray,
    mask: np.ndarray,
    old: np.ndarray | None = None,
) -> None:
    """A strong access of the threads of `mask`, one after the other.

    locations: (T,), equal where threads of the chunk name the same bytes. old: (T,) words that the
    threads have changed, of atomics.
    """
    reads, writes = Effect.LOAD in instr.effects, Effect.STORE in instr.effects
    signals, number = races.launch.signals, races.number
    if not (signals.locations or (writes and (classify.is_release(instr) or signals.fenced))):
        return
    for thread in map(int, np.flatnonzero(mask)):
        key = (number if instr.space.startswith("shared") else 0), int(locations[thread])
        message = signals.locations.get(key)
        if reads and message is not None and instr.results:
            _read(races, instr, thread, key, message)
        if not writes:
            continue
        handed = _handed_on(races, instr, thread, key, message if reads else None)
        if handed is not None:
            bits = 8 * instr.accesses[0].scalar
            if key[0] == 0 and bits in (32, 64):
                again = np.flatnonzero(mask & (locations == key[1]))
                later = again[again > thread]
                word = (ctypes.c_uint32 if bits == 32 else ctypes.c_uint64).from_address(key[1])
                new = word.value if old is None or not len(later) else int(old[later[0]])
                handed = signals.count(key, handed, bits, None if old is None else int(old[thread]), new)
            signals.locations[key] = handed
        elif not reads:
            signals.locations.pop(key, None)


def _read(races: Detector, instr: Instruction, thread: int, key: tuple[int, int], message: Message) -> None:
    """A thread reads a location with a message: it learns the message now or at its next fence."""
    signals, scope, number = races.launch.signals, _SCOPES[classify.scope(instr)], races.number
    if classify.is_acquire(instr):
        goal = races.counter_goal(thread)
        if goal is not None:
            reached = signals.reached(key, goal, 8 * instr.accesses[0].scalar)
            if reached is None:  # The thread will read again.
                return
            message = reached
        read = signals.waiting.get((number, thread), {}).pop(key, [])
        again = signals.learned.get((number, thread, key, scope)) is message
        if read or not again:  # Otherwise a poll has read the same value again.
            signals.learned[number, thread, key, scope] = message
            _learn(races, thread, scope, [*read, message])
        return
    read = signals.waiting.setdefault((number, thread), {}).setdefault(key, [])
    if read and read[-1].chain == message.chain:
        read.pop()  # the newer one says all that the older one does
    read.append(message)
    signals.observed[number, thread, key] = races.now, read


def _handed_on(
    races: Detector, instr: Instruction, thread: int, key: tuple[int, int], message: Message | None
) -> Message | None:
    """The message of a location that a thread has written; `message`: what it has read there."""
    signals, number = races.launch.signals, races.number
    handed: Message | None = signals.released.get((number, thread, key))
    if classify.is_release(instr):
        vectors = races.clocks.snapshot(thread, races.now)
        known = {**races.clocks.foreign(thread), _cluster(races, thread): vectors}
        handed = _message(races, thread, known, _SCOPES[classify.scope(instr)])
        signals.released[number, thread, key] = handed
    elif (fenced := fenced_by(races, thread)) is not None:
        handed = fenced if handed is None else _joined(fenced, handed)
    if not classify.is_release(instr):
        for fenced in _fenced_by_others(races, thread):
            handed = fenced if handed is None else _joined(fenced, handed)
    if handed is not None and message is not None:
        handed = replace(_joined(handed, message), chain=message.chain)
    return handed


def fenced_by(races: Detector, thread: int) -> Message | None:
    """Vectors that the last fence of a thread adds to its later strong writes and relaxed arrivals."""
    if (races.number, thread) not in races.launch.signals.fenced:
        return None
    known, then, foreign, scope = races.launch.signals.fenced[races.number, thread]
    vectors = known.copy()
    vectors[ORDER, thread % races.clocks.width] = then
    cluster = _cluster(races, thread)
    return _message(races, thread, {**foreign, cluster: vectors}, scope)


def _fenced_by_others(races: Detector, thread: int) -> list[Message]:
    """Messages of other threads' sequential fences that `thread` has seen before it writes."""
    width, clocks = races.clocks.width, races.clocks
    entries = races.launch.signals.sequential.get(races.number, {})
    known = clocks.rows.known[ORDER, clocks.rows.row_of[thread]]
    first = thread // width * width
    messages: dict[tuple[int, int], Message] = {}
    for other, (vectors, then, foreign, scope) in entries.items():
        column = other - first
        if other == thread or not 0 <= column < width or known[column] < then:
            continue
        key = id(vectors), scope
        if key not in messages:
            all_of = {**foreign, _cluster(races, thread): vectors.copy()}
            messages[key] = _message(races, thread, all_of, scope)
        messages[key].vectors[_cluster(races, thread)][ORDER, column] = then
    return list(messages.values())


def _learn_from_others(races: Detector, threads: np.ndarray, scope: int) -> None:
    """Threads at a sequential fence learn the messages in reads of others that they know of."""
    clocks, width = races.clocks, races.clocks.width
    for (number, other, _), (at, messages) in races.launch.signals.observed.items():
        if number != races.number:
            continue
        for thread in map(int, threads[threads // width == other // width]):
            known = clocks.rows.known[ORDER, clocks.rows.row_of[thread], other % width]
            if known >= at and thread != other:
                _learn(races, thread, scope, messages)


def _joined(message: Message, other: Message) -> Message:
    """A message by the maker of `message` that hands on both."""
    vectors, scope = merged(message.vectors, other.vectors), max(message.scope, other.scope)
    return replace(message, vectors=vectors, scope=scope)


def _learn(races: Detector, thread: int, scope: int, messages: Iterable[Message]) -> None:
    """A thread learns the messages whose scope and its own include each other's thread."""
    for message in messages:
        if _includes(races, thread, scope, message):
            races.clocks.learn(thread, _cluster(races, thread), message.vectors)


def _message(races: Detector, thread: int, vectors: dict[int, np.ndarray], scope: int) -> Message:
    cluster = _cluster(races, thread)
    return Message(vectors, scope, _cta(races, thread), cluster, cluster % races.launch.devices)


def _cta(races: Detector, thread: int) -> int:
    return races.chunk.geometry.first + thread // races.chunk.group


def _cluster(races: Detector, thread: int) -> int:
    return races.first_cluster + thread // races.clocks.width


def _includes(races: Detector, thread: int, scope: int, message: Message) -> bool:
    """True if the scopes of both sides include the other thread."""
    if _cta(races, thread) == message.cta:
        return True
    if _cluster(races, thread) % races.launch.devices != message.device:
        return min(scope, message.scope) == SYSTEM_SCOPE
    same = _cluster(races, thread) == message.cluster
    return min(scope, message.scope) >= (CLUSTER_SCOPE if same else GPU_SCOPE)
