"""Tile scheduler: the tiles of D that a persistent CTA computes, in their order."""

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
    """Tiles i, i + n, i + 2n, ... of `count` tiles, for CTA (or cluster) i of n.

    consumer: number of one of the two ping-pong consumers, which take tiles alternately.
    """
    first, step = tc.blockIdx.x // config.cluster_size, tc.gridDim.x // config.cluster_size
    if consumer is None:
        return tc.range(first, count, step)
    return tc.range(first + consumer * step, count, 2 * step)


def covered_shape(d: Any, config: Any) -> tuple[Any, ...]:
    """Shape of the matrix that tiles cover: of D, or of its transpose with swap AB."""
    *batch, M, N = d.shape
    return (*batch, N, M) if config.swap_ab else d.shape


@dataclass
class TileScheduler:
    """Static persistent scheduler over the tiles of D, or of every matrix of a batch.

    The CTAs of a cluster take neighbouring tiles, in cluster_m rows and cluster_n columns. With
    split-K, the CTAs of every part of K take the same tiles.

    Attributes
    ----------
    shape : tuple
        Shape of D, with swap AB of its transpose.
    config : HopperConfig or AmpereConfig
        The configuration.
    rows, cols : u32
        Rows and columns of cluster tiles in one matrix. A division of u32 takes half as long as one
        of s32.
    group_rows : u32
        Rows of cluster tiles in a group, see `tile_at`.
    """

    shape: Any
    config: Any
    rows: Any
    cols: Any
    group_rows: Any

    def tile_indices(self, consumer: Any = None) -> Any:
        """Indices of this CTA's tiles. consumer: see strided_tiles."""
        if self.config.split_k > 1:  # one tile: in a loop, accumulators would stay live in the epilogue
            return [tc.blockIdx.x // self.config.cluster_size]
        return strided_tiles(self.count(), self.config, consumer)

    def count(self) -> Any:
        """Cluster tiles of all matrices."""
        count = (self.rows * self.cols).to(tc.s32)
        for matrices in self.shape[:-2]:
            count = count * matrices
        return count

    def tile_at(self, index: Any) -> WorkTile:
        """Coordinates of this CTA's tile of cluster tile `index`.

        Rasterisation: a group of rows of tiles advances together, column by column, and then the
        next group. CTAs that run at the same time therefore read few rows of A and columns of B.
        Groups have group_m to 2 group_m - 1 rows, and almost equal heights: a group of few rows
        would read all of B for little work.
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
            rank = tc.cluster_rank() if config.split_k == 1 else tc.cluster_rank() % ctas
            row = row + rank % config.cluster_m
            col = col + rank // config.cluster_m
        return WorkTile(row * config.BM, col * config.BN, batch, batch, batch)


def make_tile_scheduler(shape: Any, config: Any) -> TileScheduler:
    """The scheduler over the tiles of a matrix, or of a batch.

    Kernels make it before they wait for the previous kernel of the stream, so that its divisions
    overlap with the end of that kernel.
    """
    high, wide = config.BM * config.cluster_m, config.BN * config.cluster_n
    M, N = shape[-2:]
    rows, cols = (tc.u32(M) + (high - 1)) // high, (tc.u32(N) + (wide - 1)) // wide
    groups = max(rows // config.group_m, 1)
    return TileScheduler(shape, config, rows, cols, (rows + (groups - 1)) // groups)
