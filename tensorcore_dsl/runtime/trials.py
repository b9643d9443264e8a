"""Trials of configurations: times, the fastest one, and a progress bar."""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Timer
from typing import Any

from tensorcore_dsl.errors import LaunchError, PerformanceWarning, TensorCoreError

FINALISTS = 4  # configurations that are measured again, one after another
ROUNDS = 7  # samples of each finalist
DELAY = 0.5  # seconds until a bar appears


class DeviceFailure(LaunchError):
    """The GPU failed in a way that ends its context: nothing more can be measured."""


@dataclass(frozen=True)
class Trial:
    """A configuration and the time of a launch.

    Attributes
    ----------
    config : Config, HopperConfig, AmpereConfig or VectorConfig
        What was measured.
    seconds : float
        Of a launch; infinite if it could not run.
    failure : str
        Why it could not run, else empty.
    """

    config: Any
    seconds: float = math.inf
    failure: str = ""


@dataclass(frozen=True)
class Tuning:
    """All trials, the fastest first.

    Attributes
    ----------
    key : str
        The problem, under which the best is remembered.
    trials : tuple of Trial
        The fastest first, failures last.
    """

    key: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Any:
        """The fastest configuration."""
        return self.trials[0].config

    @property
    def seconds(self) -> float:
        """Seconds of a launch with it."""
        return self.trials[0].seconds

    def __str__(self) -> str:
        return "\n".join([self.key, *map(_line, self.trials)])


def _line(trial: Trial) -> str:
    time = f"{trial.seconds * 1e6:10.2f} us" if not trial.failure else f"{'failed':>13}"
    return f"{time}  {trial.config}" + (f": {trial.failure}" if trial.failure else "")


@dataclass
class Bench:
    """Measures configurations: `trials(configs, title)` gives the fastest first.

    Attributes
    ----------
    measure : function
        `measure(config)` returns the seconds of a launch.
    again : function or None
        A quicker measurement, for the rounds in which finalists take turns.
    errors, warned : dict
        Errors and warnings, by configuration.
    """

    measure: Callable[[Any], float]
    again: Callable[[Any], float] | None = None
    errors: dict[Any, Exception] = field(default_factory=dict)
    warned: dict[Any, list[warnings.WarningMessage]] = field(default_factory=dict)

    def trial(self, config: Any) -> Trial:
        """Assemble, run and time a configuration once; a failure is recorded."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", PerformanceWarning)
            try:
                return Trial(config, self.measure(config))
            except DeviceFailure:
                raise
            except (TensorCoreError, ValueError, RuntimeError) as error:
                self.errors[config] = error
                return Trial(config, failure=f"{type(error).__name__}: {error}".splitlines()[0])
            finally:
                self.warned[config] = list(caught)

    def trials(self, configs: Iterable[Any], title: str) -> list[Trial]:
        """Trials of different configurations, the fastest first."""
        return fastest_first(map(self.trial, progress(list(dict.fromkeys(configs)), title)))

    def finals(self, trials: Sequence[Trial]) -> list[Trial]:
        """All trials, with the fastest ones measured again; the fastest first."""
        usable = [trial for trial in trials if not trial.failure][:FINALISTS]
        if len(usable) < 2:
            return list(trials)
        return [*fastest_first(self._compete(usable)), *trials[len(usable) :]]

    def _compete(self, trials: Sequence[Trial]) -> list[Trial]:
        """Medians of interleaved samples, as clocks change while candidates are measured."""
        samples: dict[Any, list[float]] = {trial.config: [] for trial in trials}
        for _ in progress(range(ROUNDS), "finalists"):
            for config, seconds in samples.items():
                seconds.append((self.again or self.measure)(config))
        return [Trial(config, statistics.median(seconds)) for config, seconds in samples.items()]

    def warn(self, config: Any) -> None:
        """Issue the warnings that came with a configuration, once it is chosen."""
        for warning in self.warned.get(config, ()):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def fastest_first(trials: Iterable[Trial]) -> list[Trial]:
    """The trials by their seconds; failures are last.

    Parameters
    ----------
    trials : iterable of Trial
        In any order.

    Returns
    -------
    list of Trial
        The fastest first.
    """
    return sorted(trials, key=lambda trial: trial.seconds)


def progress(items: Sequence[Any], title: str) -> Iterator[Any]:
    """The items; where stderr is a terminal, a bar shows their progress if they take a while."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=len(items))
    delayed = Timer(DELAY, bar.start)
    delayed.daemon = True
    if DELAY:
        delayed.start()
    else:
        bar.start()
    try:
        for item in items:
            yield item
            bar.advance(task)
    finally:
        delayed.cancel()
        if DELAY:
            delayed.join()
        bar.stop()
