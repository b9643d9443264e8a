"""Overlap with the launches in front and behind: griddepcontrol."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer


class Overlap(Protocol):
    """Interface to the launches in front and behind, which may run at the same time.

    chunk: the one that runs.
    """

    chunk: Chunk | None

    def is_set(self) -> bool:
        """Called before each step: let other launches run. True: end."""

    def wait(self) -> None:
        """Return when the launch in front has ended."""

    def launch_dependents(self, ctas: np.ndarray) -> None:
        """These CTAs of the grid let the next launch start."""


class Grids:
    """griddepcontrol, as the threads of a chunk execute it.

    overlap: None where the launch in front has ended already.
    """

    overlap: Overlap | None = None

    def __init__(self, chunk: Chunk, sanitizer: Sanitizer) -> None:
        self.chunk, self.sanitizer = chunk, sanitizer

    def wait(self) -> None:
        if self.overlap is not None:
            self.overlap.wait()
        if self.sanitizer.detector is not None:
            self.sanitizer.detector.early.wait()

    def launch_dependents(self) -> None:
        if self.sanitizer.detector is not None:
            self.sanitizer.detector.launch.triggers = True
        if self.overlap is not None:
            ready = self.chunk.mask.reshape(-1, self.chunk.group).any(axis=1)
            ready |= self.chunk.gone.reshape(-1, self.chunk.group).all(axis=1)
            self.overlap.launch_dependents(self.chunk.geometry.first + np.flatnonzero(ready))
