"""Orders that `kernel.explore` tries: from seeds, and systematic variations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.scheduling.orders import Journal, Order, Schedule, Switch, is_divisible

MAX_CTAS = 4  # CTAs whose warps stop; the CTAs of a launch are alike
STOPPED_LANES = ((16, WARP - 1), (1, WARP - 1), (0, 0))  # parts of a warp that stop, in systematic orders
MAX_SWITCHES = 3  # stops of a random schedule


def check_count(n: Any) -> None:
    """ArgumentError unless `n` is a number of orders."""
    if isinstance(n, bool) or not isinstance(n, SupportsIndex) or index(n) < 1:
        raise ArgumentError(f"explore takes the number of orders, 1 or more, not {n!r}")


def variations(journal: Journal) -> Iterator[Order]:
    """In turn a seed, a schedule with one switch (with two, once all are through) and a drawn one.

    journal: of the schedule `up`, whose points are those at which warps may stop.
    """
    sources: list[Iterator[Order]] = [_systematic(journal), count(), _drawn(journal)]
    while True:
        for source in sources:
            yield from islice(source, 1)


def one_switch(journal: Journal) -> Iterator[Schedule]:
    """Every schedule with one switch: each warp stops when it first, and last, comes to a step."""
    switches = _switches(journal)
    for i in _shuffled(len(switches)):
        yield Schedule("up", (switches[i],))
        yield Schedule("down", (switches[i],))


def _systematic(journal: Journal) -> Iterator[Schedule]:
    yield from one_switch(journal)
    switches = _switches(journal)
    number = len(switches)
    for i in _shuffled(number * number):
        first, second = switches[i // number], switches[i % number]
        if first != second:
            yield Schedule("up", (first, second))


def _drawn(journal: Journal) -> Iterator[Schedule]:
    """Warps in a drawn order, with one to three switches at drawn points."""
    points = _points(journal)
    if not points:
        return
    for seed in count():
        random = np.random.default_rng((seed, len(points)))
        switches = []
        for _ in range(random.integers(1, MAX_SWITCHES + 1)):
            cta, warp, point, divisible = points[int(random.integers(len(points)))]
            lanes = (0, WARP - 1)
            if divisible and random.random() < 0.5:
                first, last = np.sort(random.integers(0, WARP, 2))
                lanes = int(first), int(last)
            switches.append(Switch(cta, warp, point, lanes))
        yield Schedule(f"drawn{seed}", tuple(switches))


def _points(journal: Journal) -> list[tuple[int, int, int, bool]]:
    """(cta, warp, point, may its lanes be apart there) of every point."""
    return [(cta, warp, point, divisible) for cta, warp, point, _, divisible in _all(journal)]


def _all(journal: Journal) -> Iterator[tuple[int, int, int, int, bool]]:
    """(cta, warp, point, step, divisible) of every point of the first CTAs and the last one."""
    last = max((first + chunk.geometry.ctas - 1 for first, chunk in journal.chunks.items()), default=0)
    for event in journal.events:
        chunk, at = journal.chunks[event.chunk], event.step
        cta = event.chunk + event.thread // chunk.group
        if event.kind == "point" and (cta < MAX_CTAS - 1 or cta == last):
            warp = event.thread % chunk.group // WARP
            yield cta, warp, event.number, at, is_divisible(chunk.program.steps[at])


def _switches(journal: Journal) -> list[Switch]:
    """A switch for each warp where it first, and last, comes to a step, and for parts of it."""
    first: dict[tuple[int, int, int], int] = {}
    last: dict[tuple[int, int, int], int] = {}
    apart: dict[int, bool] = {}
    for cta, warp, point, at, divisible in _all(journal):
        first.setdefault((cta, warp, at), point)
        last[cta, warp, at] = point
        apart[at] = divisible
    switches: dict[Switch, None] = {}
    for key, point in (*first.items(), *last.items()):
        cta, warp, at = key
        for lanes in ((0, WARP - 1), *(STOPPED_LANES if apart[at] else ())):
            switches[Switch(cta, warp, point, lanes)] = None
    return list(switches)


def _shuffled(number: int) -> Iterator[int]:
    """0 to number - 1, each once, far apart from one to the next."""
    step = max(1, int(number * 0.618))
    while np.gcd(step, number) > 1:
        step += 1
    for i in range(number):
        yield (i * step + number // 2) % number
