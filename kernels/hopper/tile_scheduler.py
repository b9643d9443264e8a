"""Which tiles of D a block computes, and in which order. Helpers in the kernel language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc


@dataclass
class Place:
    """A tile of D: its first row and column, and which matrices of batches it belongs to.

    of_a, of_b, of_d: the leading index into A, B and D; empty where there is one matrix. end: the
    row of D that the tile must not reach, where that is not D's end.
    """

    m: Any
    n: Any
    of_a: Any = ()
    of_b: Any = ()
    of_d: Any = ()
    end: Any = None


def every_nth(count: Any, config: Any, turn: Any = None) -> Any:
    """Of `count` tiles, those of this block; of two consumers that take turns, those of one."""
    first, step = tc.blockIdx.x // config.cluster_size, tc.gridDim.x // config.cluster_size
    if turn is None:
        return tc.range(first, count, step)
    return tc.range(first + turn * step, count, 2 * step)


@dataclass
class Tiles:
    """The tiles of D, or of each matrix of a batch: block i of n takes every n-th.

    A cluster's blocks take tiles below (config.cluster) and beside each other (config.across), or
    the same (config.split).
    """

    shape: Any
    config: Any

    def numbers(self, turn: Any = None) -> Any:
        """The tiles of this block; of two consumers that take turns, those of one."""
        return every_nth(self.count(), self.config, turn)

    def count(self) -> Any:
        """Tiles (or clusters of tiles) of all matrices."""
        rows, cols = self.extent()
        count = rows * cols
        for matrices in self.shape[:-2]:
            count = count * matrices
        return count

    def extent(self) -> Any:
        """Rows and columns of tiles (or of clusters of tiles)."""
        high, wide = self.config.BM * self.config.cluster_m, self.config.BN * self.config.cluster_n
        M, N = self.shape[-2:]
        return (M + (high - 1)) // high, (N + (wide - 1)) // wide

    def place(self, number: Any) -> Place:
        """`group` rows of tiles go column by column, then the next."""
        config = self.config
        rows, cols = self.extent()
        batch = ()
        if len(self.shape) == 3:
            batch = (number // (rows * cols),)
            number = number % (rows * cols)
        span = cols * config.group_m
        first = number // span * config.group_m
        height = min(rows - first, config.group_m)
        inside = number % span
        row, col = (first + inside % height) * config.cluster_m, inside // height * config.cluster_n
        if config.split_k == 1 and config.cluster_size > 1:
            row = row + tc.cluster_rank() % config.cluster_m
            col = col + tc.cluster_rank() // config.cluster_m
        return Place(row * config.BM, col * config.BN, batch, batch, batch)
