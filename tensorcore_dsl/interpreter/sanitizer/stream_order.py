"""Order of launches in streams: launches that have ended before another one starts.

Emulation runs launches one after the other. Here each launch gets what CUDA promises of the ones
before it, so that their accesses can be compared (`earlier_launches`).

* A launch starts when all work in front of it in its stream has ended.
* With `pdl=True` and a launch directly in front of it, it starts when all CTAs of that launch
  have executed griddepcontrol.launch_dependents or ended. Only griddepcontrol.wait waits for the
  end of that launch and makes its memory visible (PTX manual, 9.7.13.13).
* The end of a launch includes the end of the launches that it has waited for itself. A launch that
  never executes griddepcontrol.wait may end before the launch in front of it.
* The default stream waits for all blocking streams, and these wait for the default stream.
* Events carry the end of a stream's work to other streams and to the host.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from tensorcore_dsl.interpreter.sanitizer.footprint import Footprint

DEFAULT_STREAM, LEGACY_STREAM = 0, 1  # two handles of one stream
MAX_LAUNCHES = 8  # kept launches of a stream; the accesses of older ones are dropped


class Queued(NamedTuple):
    """Queue of a launch.

    Attributes
    ----------
    stream : int
        A handle.
    blocking : bool
        Whether the default stream waits for it.
    devices : int
        Each has a stream of its own, in which the launches have the same order.
    """

    stream: int = DEFAULT_STREAM
    blocking: bool = True
    pdl: bool = False
    devices: int = 1


@dataclass
class Launched:
    """One launch.

    Attributes
    ----------
    before : frozenset
        The numbers of launches that ended before it starts.
    behind_wait : frozenset
        Before its threads pass griddepcontrol.wait.
    waits, triggers : bool
        Some thread executes griddepcontrol.wait or .launch_dependents, or nobody has looked.
    footprint : Footprint or None
        Its accesses, None before its end and without checks.
    known : list
        By device, what its threads knew at their end (`launch_history`).
    """

    kernel: str
    queue: Queued
    number: int
    before: frozenset[int] = frozenset()
    behind_wait: frozenset[int] = frozenset()
    waits: bool = True
    triggers: bool = True
    footprint: Footprint | None = None
    known: list[dict[int, np.ndarray]] = field(default_factory=list)

    @property
    def ended(self) -> frozenset[int]:
        """The launches that have ended when this one has ended."""
        known = self.before | self.behind_wait if self.waits else self.before
        return known | {self.number}


class Earlier(NamedTuple):
    """A launch that may run at the same time as a later one.

    Attributes
    ----------
    awaited : bool
        Only until the later one waits.
    distance : int
        Of the two in their stream, 0 for different streams.
    between : str
        The kernel of a launch between them that does not wait, "" for none.
    """

    launch: Launched
    awaited: bool
    distance: int = 0
    between: str = ""

    @property
    def may_read(self) -> bool:
        """True if it may still read. False if only the end of its CTAs lets the next launch start."""
        return self.launch.triggers or not self.distance


@dataclass
class _Stream:
    """The launches of a stream so far.

    Attributes
    ----------
    launches : list
        In their order.
    known : frozenset
        What ended before the next one.
    direct : bool
        Is the last operation a launch?
    """

    launches: list[Launched] = field(default_factory=list)
    known: frozenset[int] = frozenset()
    direct: bool = False


_streams: dict[tuple[int, bool], _Stream] = {}
_numbers = count(1)
_host: set[int] = set()  # launches whose end the host has waited for
_lock = threading.Lock()


def launched(kernel: str, queue: Queued) -> tuple[Launched, list[Earlier]]:
    """Queue a launch; the earlier ones that have not ended when it starts, the last one first."""
    with _lock:
        stream = _stream(queue)
        new = Launched(kernel, queue, next(_numbers))
        front = stream.launches[-1] if stream.launches else None
        known = stream.known | _host | _of_other_streams(queue)
        if queue.devices > 1:  # the launches of other devices may still run
            pass
        elif queue.pdl and stream.direct and front is not None:
            new.before = front.before | known
            new.behind_wait = new.before | front.ended
        else:
            new.before = new.behind_wait = known | _ended(stream.launches)
        streams = [stream] if queue.devices > 1 else _streams.values()
        kept = {launch.number for other in _streams.values() for launch in other.launches}
        new.before, new.behind_wait = new.before & kept, new.behind_wait & kept
        _host.intersection_update(kept)
        earlier = [
            _earlier(launch, new, other is stream and other.launches)
            for other in streams
            for launch in other.launches
            if launch.number not in new.before and launch.footprint is not None
        ]
        _keep(stream, new)
        return new, sorted(earlier, key=lambda one: -one.launch.number)


def _earlier(launch: Launched, new: Launched, stream: list[Launched] | Literal[False]) -> Earlier:
    """A launch that may meet a new one. stream: the launches of both, False for two streams."""
    awaited = launch.number in new.behind_wait
    behind = [one for one in stream or () if one.number > launch.number]
    between = "" if awaited else next((one.kernel for one in behind if not one.waits), "")
    return Earlier(launch, awaited, len(behind) + 1 if stream else 0, between)


def _stream(queue: Queued) -> _Stream:
    return _streams.setdefault((queue.stream, queue.blocking), _Stream())


def _of_other_streams(queue: Queued) -> frozenset[int]:
    """Launches of other streams that are ordered with the default stream."""
    default = queue.stream == DEFAULT_STREAM
    streams = (
        [
            stream
            for (handle, blocking), stream in _streams.items()
            if blocking and queue.blocking and (default or handle == DEFAULT_STREAM)
        ]
        if len(_streams) > 1
        else []
    )
    return _ended(launch for stream in streams for launch in stream.launches)


def _ended(launches: Iterable[Launched]) -> frozenset[int]:
    return frozenset().union(*(launch.ended for launch in launches))


def _keep(stream: _Stream, new: Launched) -> None:
    """Append a launch; drop launches that no later one can meet, and the oldest above the limit."""
    only = len(_streams) == 1 and new.queue.stream == DEFAULT_STREAM
    kept = [launch for launch in stream.launches if not (only and launch.number in new.before)]
    stream.launches = [*kept, new][-MAX_LAUNCHES:]
    stream.direct = True


def ended(queue: Queued) -> frozenset[int]:
    """The launches that have ended when all work in a stream so far has ended."""
    with _lock:
        stream = _stream(queue)
        return stream.known | _of_other_streams(queue) | _ended(stream.launches)


def wait_for(queue: Queued, launches: frozenset[int]) -> None:
    """Later work of a stream waits for launches."""
    with _lock:
        stream = _stream(queue)
        stream.known |= launches
        stream.direct = False


def host_waits_for(launches: frozenset[int]) -> None:
    """The host waits for launches."""
    with _lock:
        _host.update(launches)


def leave(queue: Queued) -> None:
    """Forget the launches of a stream that no later launch can meet."""
    with _lock:
        _streams.pop((queue.stream, queue.blocking), None)


def forget() -> None:
    """Forget all launches."""
    with _lock:
        _streams.clear()
        _host.clear()
