"""`tc.explore(function)`: launches of a stream that overlap, in many orders.

The function runs once, as it is, and its launches are recorded. Launches that may overlap are then
run again together, on copies of their arrays as they were, and must leave the same bits. The host
code between launches does not run again. Where it has changed what a launch uses, it has waited for
the launches in front, so that these do not overlap with later ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import index
from typing import Any

import numpy as np

from tensorcore_dsl.checking.copies import copied
from tensorcore_dsl.checking.exploration import Exploration, difference
from tensorcore_dsl.checking.session import Session, SessionLaunch, launching_in
from tensorcore_dsl.checking.variations import check_count
from tensorcore_dsl.errors import DebuggerQuit, EmulationError, RaceWarning, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.scheduling.interleaving import Interleaving, Launching
from tensorcore_dsl.interpreter.scheduling.orders import Order, Schedule
from tensorcore_dsl.runtime.host_arrays import on_host


@dataclass
class _Group:
    """Launches that may overlap, one behind the other in a stream.

    arguments: of each launch, arrays as NumPy sees them; before: copies from before it. after:
    copies from behind the last launch.
    """

    launches: list[SessionLaunch] = field(default_factory=list)
    arguments: list[Sequence[Any]] = field(default_factory=list)
    before: list[Sequence[Any]] = field(default_factory=list)
    after: list[Sequence[Any]] = field(default_factory=list)

    def is_unchanged(self) -> bool:
        """Has the host left the arrays as the last launch has left them?"""
        pairs = zip(self.arguments, self.after, strict=True)
        return all(_is_same(now, then) for each in pairs for now, then in zip(*each, strict=True))

    def run(self, launch: SessionLaunch) -> Report:
        with on_host(launch.arguments) as arguments:
            self.launches.append(launch)
            self.arguments.append(arguments)
            self.before.append(_copies(arguments))
            report = launch()
        self.after = [_copies(each) for each in self.arguments]
        return report

    def attempt(self, seed: int, found: Exploration) -> None:
        """Run the launches together in one order; note an error, or results that differ."""
        flat = copied([given for each in self.arguments for given in each])
        now = [[flat.pop(0) for _ in each] for each in self.arguments]
        for arrays, before in zip(reversed(now), reversed(self.before), strict=True):
            for array, content in zip(arrays, before, strict=True):
                if isinstance(array, np.ndarray):
                    _write(array, content)
        orders = (None, Schedule("down"), seed)  # of threads: each launch gets another one
        jobs = [
            partial(_again, launch, arguments, orders[(seed + i) % len(orders)])
            for i, (launch, arguments) in enumerate(zip(self.launches, now, strict=True))
        ]
        interleaving = Interleaving([launch.blocks for launch in self.launches], seed)
        error = interleaving.run(jobs)
        if error is not None and (
            isinstance(error, DebuggerQuit) or not isinstance(error, EmulationError)
        ):
            raise error
        found.error = error
        if error is None and not interleaving.unfinished:
            for launch, arrays, after in zip(self.launches, now, self.after, strict=True):
                for name, array, right in zip(launch.names, arrays, after, strict=True):
                    if isinstance(array, np.ndarray):
                        different = difference(f"{name} of {launch.kernel}", right, array)
                        found.differences += [different] if different else []
        if not found.ok:
            found.order, found.switches = seed, self._switches(interleaving)

    def _switches(self, interleaving: Interleaving) -> list[str]:
        names = [launch.kernel for launch in self.launches]
        return [
            f"{names[stopped]} {'has ended' if loc is None else f'stops at {loc}'}; {names[next_]} "
            "runs"
            for stopped, loc, next_ in interleaving.switches
        ]


def _again(
    launch: SessionLaunch, arguments: Sequence[Any], order: Order | None, overlap: Launching
) -> None:
    launch.again(arguments, order, overlap)


class _Recording(Session):
    """Runs launches as usual, and keeps those that may overlap together."""

    def __init__(self, checks: bool | None) -> None:
        super().__init__(collect=False)
        self.checks, self.groups = checks, list[_Group]()

    def run(self, launch: SessionLaunch) -> Report:
        with self._lock:
            last = self.groups[-1] if self.groups else None
            follows = last is not None and launch.place.pdl and last.is_unchanged()
            same = follows and last is not None and (
                last.launches[-1].place.stream == launch.place.stream
            )
            if last is None or not same:
                last = _Group()
                self.groups.append(last)
            return last.run(launch)


@public
def explore(
    function: Callable[..., Any], n: int = 100, *, arch: str | None = None,
    checks: bool | None = None,
) -> Callable[..., Exploration]:  # fmt: skip
    """`tc.explore(function, n)(...)` emulates n orders of the launches that a function makes.

    Launches with `pdl=True` run at the same time as the one in front, as far as that allows. The
    host code between launches is as it is, and runs once.

    Parameters
    ----------
    function : function
        Makes launches, of one stream.
    n : int
        How many orders, 1 or more.
    arch, checks : optional
        As `Kernel.emulator` takes them.

    Returns
    -------
    function
        Takes the arguments of `function`, calls it with copies of NumPy arrays, and returns an
        Exploration. It stops at the first error, or order with other results than the first one.

    Raises
    ------
    ArgumentError
        Another number of orders.

    See Also
    --------
    griddep_wait : Orders what launches access.

    Examples
    --------
    >>> @tc.kernel
    ... def fill(x: tc.Array):
    ...     tc.griddep_launch_dependents()
    ...     x[tc.threadIdx.x] = 1
    >>> @tc.kernel
    ... def double(x: tc.Array):
    ...     tc.griddep_wait()
    ...     x[tc.threadIdx.x] *= 2
    >>> def both(x):
    ...     fill[1, 32](x)
    ...     double.configured(1, 32, pdl=True)(x)
    >>> tc.explore(both, 10)(np.zeros(32, np.float32))
    10 orders of both: the same bits in all, no error
    """
    check_count(n)
    return partial(_explore, function, index(n), arch, checks)


@public
def _explore(
    function: Callable[..., Any], n: int, arch: str | None, checks: bool | None, /, *args: Any,
    **named: Any,
) -> Exploration:  # fmt: skip
    found = Exploration(getattr(function, "__name__", repr(function)), 1, launches=True)
    recording = _Recording(checks)
    try:
        with launching_in(recording, arch):
            function(*copied(args), **dict(zip(named, copied([*named.values()]), strict=True)))
    except DebuggerQuit:
        raise
    except EmulationError as error:
        found.error = error
        return found
    groups = [group for group in recording.groups if len(group.launches) > 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RaceWarning)  # the first run has said it
        for seed in range(n - 1):
            found.orders += 1
            for group in groups:
                group.attempt(seed, found)
                if not found.ok:
                    return found
    return found


def _copies(arguments: Sequence[Any]) -> list[Any]:
    return [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]


def _is_same(now: Any, then: Any) -> bool:
    return not isinstance(now, np.ndarray) or now.tobytes() == then.tobytes()


def _write(array: np.ndarray, content: np.ndarray) -> None:
    writeable, array.flags.writeable = array.flags.writeable, True
    array[...] = content
    array.flags.writeable = writeable
