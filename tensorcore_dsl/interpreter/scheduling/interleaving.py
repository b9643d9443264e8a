"""Run launches of one stream at the same time, as programmatic dependent launch allows.

Each launch runs in a thread of its own, and only one of them runs at a time. A launch may begin
when all CTAs of the launch in front have executed griddepcontrol.launch_dependents or ended. It
stops at griddepcontrol.wait until that launch has ended. In between, a seed draws who runs for how
many steps.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorcore_dsl.errors import Deadlock, Loc
from tensorcore_dsl.interpreter.core.chunk import Chunk

EAGER_SEED = 0  # this seed always runs the last launch that is ready
MAX_LOG2_STEPS = 10  # log2 of the longest turn, in steps
MAX_START_STEPS = 4  # the next launch begins within this many steps


class Launching:
    """One of the launches: its overlap (`sync.grids`), and the event that ends it.

    Attributes
    ----------
    ctas
        Of its grid.
    free : set
        Those that let the next launch start.
    chunk : Chunk or None
        The one that runs.
    error : BaseException or None
        What it raised.
    """

    chunk: Chunk | None = None
    error: BaseException | None = None
    waits = ended = False

    def __init__(self, among: Interleaving, number: int, ctas: int) -> None:
        self.among, self.number, self.ctas = among, number, ctas
        self.free: set[int] = set()

    def is_set(self) -> bool:
        """Called before each step: let others run, if it is their turn. True: end."""
        self.among.step(self)
        return self.among.stopped

    def wait(self) -> None:
        """Return when the launch in front has ended."""
        self.waits = True
        self.among.change(self)
        self.waits = False

    def launch_dependents(self, ctas: np.ndarray) -> None:
        """These CTAs of the grid let the next launch start."""
        before = len(self.free)
        self.free.update(ctas.tolist())
        if before < len(self.free) == self.ctas:
            self.among.steps = self.among.draw(MAX_START_STEPS)

    @property
    def loc(self) -> Loc | None:
        """Location of the step."""
        return self.chunk.loc(self.chunk.at_step) if self.chunk is not None else None


class Interleaving:
    """One order of launches.

    Attributes
    ----------
    switches : list
        In turn, the number of a launch that stopped, its location (None: it has ended), and the number of the
        launch that runs next.
    unfinished
        Not all launches have come to their end.
    """

    def __init__(self, ctas: Sequence[int], seed: int) -> None:
        self.launches = [Launching(self, *each) for each in enumerate(ctas)]
        self.seed, self.random = seed, np.random.default_rng(seed)
        self.running, self.steps = 0, 0
        self.stopped = self.unfinished = False
        self.switches: list[tuple[int, Loc | None, int]] = []
        self._turn = threading.Condition()

    def run(self, jobs: Sequence[Callable[[Launching], Any]]) -> BaseException | None:
        """Run a job for each launch; the first error, None if there is none.

        A launch may poll what the one in front has not done yet. That is no error, but the end.
        """
        threads = [
            threading.Thread(
                target=contextvars.copy_context().run, args=(self._run, launch, job), daemon=True
            )
            for launch, job in zip(self.launches, jobs, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [launch.error for launch in self.launches if launch.error is not None]
        return errors[0] if errors else None

    def texts(self, names: Sequence[str]) -> list[str]:
        """The switches in words. names: of the launches."""
        return [
            f"{names[stopped]} {'has ended' if loc is None else f'stops at {loc}'}; {names[next_]} runs"
            for stopped, loc, next_ in self.switches
        ]

    def _run(self, launch: Launching, job: Callable[[Launching], Any]) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self.stopped or self.running == launch.number)
        try:
            if not self.stopped:
                job(launch)
        except KeyboardInterrupt:
            pass  # another launch has failed
        except BaseException as error:
            early = isinstance(error, Deadlock) and not self._is_over(launch.number - 1)
            launch.error = None if early else error
            self.stopped = self.unfinished = True
        launch.ended = True
        with self._turn:
            self._pass_on()

    def _is_over(self, number: int) -> bool:
        return number < 0 or self.launches[number].ended

    def draw(self, end: int) -> int:
        """A number of steps below `end`."""
        return 0 if self.seed == EAGER_SEED else int(self.random.integers(end))

    def step(self, launch: Launching) -> None:
        """A launch is about to execute a step."""
        self.steps -= 1
        if self.steps < 0 and not self.stopped:
            self.change(launch)

    def change(self, launch: Launching) -> None:
        """Let another launch run, if one is drawn; return when it is the turn of this one."""
        with self._turn:
            self._pass_on()
            self._turn.wait_for(lambda: self.stopped or self.running == launch.number)

    def _pass_on(self) -> None:
        """Draw who runs next."""
        ready = [launch.number for launch in self.launches if self._is_ready(launch)]
        if not ready:
            return
        others = [number for number in ready if number != self.running] or ready
        following = ready[-1] if self.seed == EAGER_SEED else int(self.random.choice(others))
        self.steps = self.draw(1 << int(self.random.integers(MAX_LOG2_STEPS)))
        if following != self.running:
            before = self.launches[self.running]
            loc = None if before.ended else before.loc
            self.switches.append((before.number, loc, following))
        self.running = following
        self._turn.notify_all()

    def _is_ready(self, launch: Launching) -> bool:
        if launch.ended or launch.number == 0:
            return not launch.ended
        front = self.launches[launch.number - 1]
        return front.ended or (len(front.free) == front.ctas and not launch.waits)
