"""Tile scheduler: which tiles of D a persistent CTA computes, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc


@dataclass
class WorkTile:
    """Coordinates of a tile of D.

    m, n: first row and column. batch_a, batch_b, batch_d: leading index into A, B and D, () where
    there is one matrix.
    """

    m: Any
    n: Any
    batch_a: Any = ()
    batch_b: Any = ()
    batch_d: Any = ()


def strided_tiles(count: Any, config: Any, consumer: Any = None) -> Any:
    """Of `count` tiles those of this CTA (or cluster): i, i + n, i + 2n, ... for CTA i of n.

    consumer: with the ping-pong schedule, the tiles of one of the two consumers, which alternate.
    """
    first, step = tc.blockIdx.x // config.cluster_size, tc.gridDim.x // config.cluster_size
    if consumer is None:
        return tc.range(first, count, step)
    return tc.range(first + consumer * step, count, 2 * step)


def covered_shape(d: Any, config: Any) -> tuple[Any, ...]:
    """What the tiles of a configuration cover: D, or its transpose where A and B are swapped."""
    *batch, M, N = d.shape
    return (*batch, N, M) if config.swapped else d.shape


@dataclass
class TileScheduler:
    """Static persistent scheduler over the tiles of D, or of every matrix of a batch.

    The CTAs of a cluster take neighbouring tiles (cluster_m below each other, cluster_n beside
    each other), and the same tiles for each part of K (split_k).

    shape: of D. rows, cols: of cluster tiles of one matrix. group_rows: of rows in a group, see
    `tile_at`. All three are u32, whose divisions take half as long as those of s32.
    """

    shape: Any
    config: Any
    rows: Any
    cols: Any
    group_rows: Any

    def tile_indices(self, consumer: Any = None) -> Any:
        """Indices of this CTA's tiles; with `consumer`, of one consumer of the ping-pong pair."""
        return strided_tiles(self.count(), self.config, consumer)

    def count(self) -> Any:
        """Cluster tiles of all matrices."""
        count = (self.rows * self.cols).to(tc.s32)
        for matrices in self.shape[:-2]:
            count = count * matrices
        return count

    def tile_at(self, index: Any) -> WorkTile:
        """Coordinates of this CTA's tile of a cluster tile.

        Rasterisation: a group of rows of tiles advances together, column by column, and then the
        next group. CTAs that run at the same time therefore read few rows of A and columns of B.
        Groups have group_m rows or more, less than two times as many, and almost the same number:
        a low one would read all of B for little work.
        """
        config, index = self.config, tc.u32(index)
        batch: tuple[Any, ...] = ()
        if len(self.shape) == 3:
            matrix = index // (self.rows * self.cols)
            batch = (matrix.to(tc.s32),)
            index = index - matrix * (self.rows * self.cols)
        tiles_of_group = self.cols * self.group_rows
        group = index // tiles_of_group
        first_row, inside = group * self.group_rows, index - group * tiles_of_group
        height = min(self.rows - first_row, self.group_rows)  # the last group may be lower
        col = inside // height
        row = (first_row + (inside - col * height)).to(tc.s32) * config.cluster_m
        col = col.to(tc.s32) * config.cluster_n
        ctas = config.cluster_m * config.cluster_n
        if ctas > 1:
            place = tc.cluster_rank() if config.split_k == 1 else tc.cluster_rank() % ctas
            row = row + place % config.cluster_m
            col = col + place // config.cluster_m
        return WorkTile(row * config.BM, col * config.BN, batch, batch, batch)


def make_tile_scheduler(shape: Any, config: Any) -> TileScheduler:
    """The scheduler over the tiles of D, or of its transpose.

    Kernels make it before they wait for the previous kernel of the stream, so that its divisions
    overlap with that one's end.
    """
    high, wide = config.BM * config.cluster_m, config.BN * config.cluster_n
    M, N = shape[-2:]
    rows, cols = (tc.u32(M) + (high - 1)) // high, (tc.u32(N) + (wide - 1)) // wide
    groups = max(rows // config.group_m, 1)
    return TileScheduler(shape, config, rows, cols, (rows + (groups - 1)) // groups)
