"""`tc.explore(function)`: run overlapping launches of a stream in many orders.

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
from math import prod
from operator import index
from typing import Any

import numpy as np

from tensorcore_dsl.checking.copies import copied
from tensorcore_dsl.checking.exploration import Exploration, difference
from tensorcore_dsl.checking.session import Session, current_session, launching_in
from tensorcore_dsl.checking.variations import check_count
from tensorcore_dsl.errors import ArgumentError, DebuggerQuit, EmulationError, RaceWarning, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.scheduling.interleaving import Interleaving
from tensorcore_dsl.interpreter.scheduling.orders import Schedule
from tensorcore_dsl.kernel.emulation import PreparedLaunch
from tensorcore_dsl.runtime.host_arrays import on_host


@dataclass
class _Group:
    """Launches that may overlap, one after the other in a stream.

    Attributes
    ----------
    arguments : list
        Of each launch, arrays as NumPy sees them.
    before : list
        Copies from before it.
    after : list
        Copies made after the last launch.
    """

    launches: list[PreparedLaunch] = field(default_factory=list)
    arguments: list[Sequence[Any]] = field(default_factory=list)
    before: list[Sequence[Any]] = field(default_factory=list)
    after: list[Sequence[Any]] = field(default_factory=list)

    def takes(self, launch: PreparedLaunch) -> bool:
        """True if a launch may overlap with the last one. False if the host has changed arrays since."""
        queued, last = launch.queued, self.launches[-1].queued
        follows = queued is not None and last is not None and queued.pdl and queued.stream == last.stream
        pairs = zip(_flat(self.arguments), _flat(self.after), strict=True)
        return follows and all(
            now.tobytes() == then.tobytes() for now, then in pairs if isinstance(now, np.ndarray)
        )

    def run(self, launch: PreparedLaunch) -> Report:
        with on_host(launch.arguments) as arguments:
            self.launches.append(launch)
            self.arguments.append(arguments)
            self.before.append(_copies(arguments))
            report = launch()
        self.after = [_copies(each) for each in self.arguments]
        return report

    def attempt(self, seed: int, exploration: Exploration) -> None:
        """Run the launches together in one order; note an error, or results that differ."""
        kernels = [launch.emulator.kernel for launch in self.launches]
        flat = copied(_flat(self.arguments))
        # What an earlier launch has found in memory counts, so it is written last.
        for array, content in zip(reversed(flat), reversed(_flat(self.before)), strict=True):
            if isinstance(array, np.ndarray):
                writeable, array.flags.writeable = array.flags.writeable, True
                array[...] = content
                array.flags.writeable = writeable
        copies = iter(flat)
        orders = (None, Schedule("down"), seed)  # of threads: each launch gets another one
        jobs = [
            partial(launch.again, [next(copies) for _ in arguments], orders[(seed + i) % len(orders)])
            for i, (launch, arguments) in enumerate(zip(self.launches, self.arguments, strict=True))
        ]
        ctas = [prod(launch.config.grid) for launch in self.launches]
        interleaving = Interleaving(ctas, seed)
        error = interleaving.run(jobs)
        if isinstance(error, EmulationError) and not isinstance(error, DebuggerQuit):
            exploration.error = error
        elif error is not None:
            raise error
        elif not interleaving.unfinished:
            named = [f"{name} of {k.__name__}" for k in kernels for name in k.runtime_names]
            every = zip(named, _flat(self.after), flat, strict=True)
            pairs = [difference(*each) for each in every if isinstance(each[1], np.ndarray)]
            exploration.differences = [d for d in pairs if d is not None]
        if not exploration.ok:
            names = [kernel.__name__ for kernel in kernels]
            exploration.order, exploration.switches = seed, interleaving.texts(names)


class _Recording(Session):
    """Runs launches as usual, and keeps those that may overlap together."""

    def __init__(self, checks: bool | None) -> None:
        super().__init__(collect=False)
        self.checks, self.groups = checks, list[_Group]()

    def run(self, kernel: str, launch: Callable[[], Report]) -> Report:
        assert isinstance(launch, PreparedLaunch)
        with self._lock:
            if not (self.groups and self.groups[-1].takes(launch)):
                self.groups.append(_Group())
            return self.groups[-1].run(launch)


@public
def explore(
    function: Callable[..., Any], n: int = 100, *, arch: str | None = None, checks: bool | None = None
) -> Callable[..., Exploration]:
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
        Another number of orders, or no function.

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
    if not callable(function):
        raise ArgumentError(
            "tc.explore takes a function that makes launches, not an object of type "
            f"{type(function).__name__}: "
            "tc.explore(function, n)(arguments)"
        )
    return partial(_explore, function, index(n), arch, checks)


@public
def _explore(
    function: Callable[..., Any], n: int, arch: str | None, checks: bool | None, /, *args: Any, **named: Any
) -> Exploration:
    exploration = Exploration(getattr(function, "__name__", repr(function)), 1, launches=True)
    session = current_session()
    recording = _Recording(session.checks if session is not None and session.collect else checks)
    first_run = lambda: function(*copied(args), **dict(zip(named, copied([*named.values()]), strict=True)))
    _try_orders(exploration, recording, first_run, n, arch)
    return exploration.noted(sum(len(group.launches) for group in recording.groups))


def _try_orders(
    exploration: Exploration, recording: _Recording, first_run: Callable[[], Any], n: int, arch: str | None
) -> None:
    try:
        with launching_in(recording, arch):
            first_run()
    except DebuggerQuit:
        raise
    except EmulationError as error:
        exploration.error = error
        return
    groups = [group for group in recording.groups if len(group.launches) > 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RaceWarning)  # the first run has said it
        for seed in range(n - 1):
            exploration.orders += 1
            for group in groups:
                group.attempt(seed, exploration)
                if not exploration.ok:
                    return


def _copies(arguments: Sequence[Any]) -> list[Any]:
    return [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]


def _flat(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [item for each in lists for item in each]
