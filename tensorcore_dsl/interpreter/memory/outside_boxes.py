"""Boxes of tensor copies outside of their array: an error if no box of the copy touches the array."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tensorcore_dsl.errors import OutOfBounds
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.memory.tensor_box import TensorBox
from tensorcore_dsl.interpreter.sync.clusters import Clusters

LOADS, STORES = "load from", "store to"


class OutsideBoxes:
    """Boxes of a chunk that lie outside of their array.

    Attributes
    ----------
    useful
        By direction and array, the clusters with a box that touches the array.
    idle : dict
        By cluster, direction and array, a message and the step of their first box that does not.
    """

    def __init__(self, chunk: Chunk, clusters: Clusters) -> None:
        self.chunk, self.clusters = chunk, clusters
        none = np.zeros(len(clusters.gone) // clusters.size, np.bool_)
        self.useful: defaultdict[tuple[str, str], np.ndarray] = defaultdict(none.copy)
        self.idle: dict[tuple[int, str, str], tuple[str, int]] = {}

    def note(
        self,
        what: str,
        box: TensorBox,
        threads: np.ndarray,
        starts: np.ndarray,
        rank: int,
        touching: np.ndarray,
    ) -> None:
        """Boxes of an array at coordinates `starts`, of `rank` axes, each of a thread."""
        clusters = threads // self.chunk.group // self.clusters.size
        self.useful[what, box.name][clusters[touching]] = True
        for i in np.flatnonzero(~touching).tolist():
            key = int(clusters[i]), what, box.name
            if key not in self.idle:
                text = self._message(what, box, int(threads[i]), starts[i, :rank].tolist())
                self.idle[key] = text, self.chunk.at_step

    def _message(self, what: str, box: TensorBox, thread: int, start: list[int]) -> str:
        who = self.chunk.describe(thread)
        return f"the tensor {what} {box.name} by {who} moves nothing: {box.outside(start)}"

    def note_one(self, what: str, box: TensorBox, thread: int, rank: int) -> None:
        """The box that a thread names."""
        touching = np.array([box.inside > 0])
        self.note(what, box, np.array([thread]), np.array([box.start]), rank, touching)

    def leave(self, cta: int) -> None:
        """A CTA has ended. Raise OutOfBounds if no box of its cluster, now ended, touched the array.

        Single boxes may lie outside: a tile may hang over the end of an axis.
        """
        size = self.clusters.size
        cluster = cta // size
        if not self.clusters.gone[cluster * size : (cluster + 1) * size].all():
            return
        for (there, *what), (text, step) in self.idle.items():
            if there == cluster and not self.useful[what[0], what[1]][cluster]:
                raise OutOfBounds(text, self.chunk.loc(step))
