"""Run many orders of threads until one shows a mistake, and shrink that order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcore_dsl.checking.copies import copied
from tensorcore_dsl.checking.exploration import Difference, Exploration, difference
from tensorcore_dsl.checking.narration import switch_texts
from tensorcore_dsl.checking.session import current_session
from tensorcore_dsl.checking.variations import check_count, one_switch, variations
from tensorcore_dsl.errors import DebuggerQuit, EmulationError, RaceWarning, public
from tensorcore_dsl.interpreter.scheduling.orders import Journal, Order, Schedule
from tensorcore_dsl.kernel.emulation import Emulator, PreparedLaunch
from tensorcore_dsl.runtime.devices import by_rank, flat
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch_config import LaunchConfig, LaunchKey, configuration, refuse_call


def launch_config(name: str, key: LaunchKey) -> Any:
    """The grid and the block in the brackets of a launch."""
    return configuration(name, key)[0]


@dataclass(frozen=True)
class Explorer:
    """`kernel.explore(n)`: takes a grid and a block, then arguments.

    Attributes
    ----------
    search : function
        Takes n, the launch's configuration and its arguments.
    configure : function
        Gives the configuration, from a name for messages and what stands in brackets.
    """

    name: str
    n: int
    search: Callable[..., Exploration] = field(repr=False)
    configure: Callable[[str, Any], Any] = field(default=launch_config, repr=False)

    @public
    def __getitem__(self, key: Any) -> Callable[..., Exploration]:
        return partial(self.run, self.configure(f"{self.name}.explore", key))

    if not TYPE_CHECKING:  # checkers say it themselves

        @public
        def __call__(self, /, *args: Any, **named: Any) -> None:
            refuse_call(self.name, f"{self.name}.explore({self.n})")

    @public
    def run(self, config: Any, /, *args: Any, **named: Any) -> Exploration:
        """Emulate the orders, on copies of the arrays."""
        return self.search(self.n, config, *args, **named)


def explorer_of_emulator(emulator: Emulator, n: Any) -> Explorer:
    """`explore` of a kernel of @tc.kernel."""
    check_count(n)

    def search(n: int, config: LaunchConfig, /, *args: Any, **named: Any) -> Exploration:
        kernel, args, named = emulator.kernel.with_peers(args, named)
        runtime, constants = kernel.split(args, named)
        session = current_session()
        chosen_emulator = replace(emulator, kernel=kernel)
        if session is not None and session.collect:
            chosen_emulator = replace(chosen_emulator, checks=session.checks)
        with on_host(runtime) as arrays:
            chosen = chosen_emulator.compiled(copied(arrays), constants)
            if session is not None:
                session.sees(kernel.__name__, PreparedLaunch(chosen_emulator, config, copied(arrays), chosen))

            def launch(arrays: Sequence[Any], order: Order | None) -> None:
                replace(chosen_emulator, order=order).launch(config, arrays, chosen)

            return Search(kernel.__name__, kernel.runtime_names, launch, arrays).explore(n).noted()

    return Explorer(emulator.kernel.__name__, index(n), search)


@dataclass
class _Outcome:
    """Outcome of one order: an error, or the bits of the arrays."""

    order: Order | None
    error: EmulationError | None
    arrays: list[Any]
    differences: list[Difference] = field(default_factory=list)

    @property
    def kind(self) -> Any:
        """None: as it should be; else which mistake it shows."""
        if self.error is not None:
            return type(self.error)
        return "differs" if self.differences else None


@dataclass
class Search:
    """One exploration: the arguments, the bits of the first order, and how many orders ran.

    launch: takes arguments, and the order of threads.
    """

    name: str
    names: Sequence[str]
    launch: Callable[[Sequence[Any], Order | None], None]
    arrays: Sequence[Any]
    expected: list[Any] | None = None
    ran: int = 0

    def explore(self, n: int) -> Exploration:
        exploration = Exploration(self.name)
        seen: _Outcome | None = None
        for seen in map(self.attempt, islice(self._orders(), n)):
            exploration.orders = self.ran
            if seen.kind is not None:
                break
        else:
            return exploration
        assert seen is not None
        if seen.order is not None:
            seen = self._shrunk(seen, n)
            if isinstance(seen.order, Schedule):
                journal = Journal()
                seen = self.attempt(replace(seen.order, journal=journal))
                exploration.switches = switch_texts(journal)
            exploration.order = seen.order if isinstance(seen.order, int) else str(seen.order)
        exploration.error, exploration.differences = seen.error, seen.differences
        return exploration

    def _orders(self) -> Iterator[Order | None]:
        """The emulator's own order, whose result is what others should have, then variations."""
        yield None
        self.journal = Journal()
        yield Schedule("up", journal=self.journal)
        yield Schedule("down")
        yield from variations(self.journal)

    def attempt(self, order: Order | None) -> _Outcome:
        """Run one order on copies of the arrays."""
        self.ran += 1
        arrays = copied(self.arrays)
        outcome = _Outcome(order, None, arrays)
        with warnings.catch_warnings():
            if order is not None:  # the first order has said it
                warnings.simplefilter("ignore", RaceWarning)
            try:
                self.launch(arrays, order)
            except DebuggerQuit:
                raise
            except EmulationError as error:
                outcome.error = error
                return outcome
        if self.expected is None:
            self.expected = arrays
        else:
            named = by_rank(self.names, self.expected)
            every = [(*one, contents) for one, contents in zip(named, flat(arrays), strict=True)]
            differences = [difference(*each) for each in every if isinstance(each[1], np.ndarray)]
            outcome.differences = [d for d in differences if d is not None]
        return outcome

    def _shrunk(self, seen: _Outcome, n: int) -> _Outcome:
        """An outcome like `seen` of an order with as few switches as can be found.

        Of a drawn order it is one with a single switch, if n of them show such a mistake.
        """

        def like(order: Schedule) -> _Outcome | None:
            outcome = self.attempt(order)
            return outcome if outcome.kind == seen.kind else None

        while isinstance(seen.order, Schedule):
            smaller = next(filter(None, map(like, _simpler(seen.order))), None)
            if smaller is None:
                break
            seen = smaller
        if isinstance(seen.order, Schedule) and len(seen.order.switches) < 2:
            return seen
        singles = islice(one_switch(self.journal), n)
        return next(filter(None, map(like, singles)), None) or seen


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules with one switch less, a plain base, or whole warps in place of lanes."""
    switches = schedule.switches
    for i in range(len(switches)):
        yield replace(schedule, switches=switches[:i] + switches[i + 1 :])
    if schedule.base.startswith("drawn"):
        yield replace(schedule, base="up")
        yield replace(schedule, base="down")
    for i, switch in enumerate(switches):
        if not switch.whole:
            whole = replace(switch, lanes=(0, 31))
            yield replace(schedule, switches=(*switches[:i], whole, *switches[i + 1 :]))
