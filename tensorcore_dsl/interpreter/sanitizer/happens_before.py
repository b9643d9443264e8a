"""A logical clock: which events of other threads a thread must know of when it goes on.

Barriers advance the clock. Whoever passes one knows of everything that happened before.
"""

from __future__ import annotations

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk


class HappensBefore:
    """Knowledge of each thread of a chunk, kept for whole warps.

    clock: the time of the last event. synced: (T,) the clock when a warp last passed a barrier of
    any kind, or read a word by which others may signal. known: (T,) the clock up to which a thread
    knows what the other CTAs of its cluster did; it only counts where `remote` is true.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.clock = 0
        self.synced = np.zeros(chunk.threads, np.int64)
        self.known = np.zeros(chunk.threads, np.int64)
        self.remote = chunk.program.remote and chunk.checks

    def tick(self) -> int:
        """The time of a new event."""
        self.clock += 1
        return self.clock

    def synchronise(self, go: np.ndarray) -> None:
        """The active threads of `go` pass a barrier of their CTA: they know what it knows."""
        if self.chunk.program.asynchronous:
            self.synced.reshape(-1, WARP)[self._warps(go)] = self.tick()
        if self.remote:
            known = self.known.reshape(-1, self.chunk.group)
            self.learn(go, np.repeat(known.max(axis=1), self.chunk.group))

    def learn(self, go: np.ndarray, clock: np.ndarray | int) -> None:
        """The active threads of `go` know what all CTAs did up to time `clock`."""
        if self.remote:
            warps = np.repeat(self._warps(go), WARP)
            self.known = np.where(warps, np.maximum(self.known, clock), self.known)

    def _warps(self, go: np.ndarray) -> np.ndarray:
        return np.asarray((go & self.chunk.mask).reshape(-1, WARP).any(axis=1))
