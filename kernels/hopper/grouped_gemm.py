"""Rows in groups, each times a matrix of its own, in bf16 or f16 with `wgmma`, for sm_90a.

The tiles of all groups form one list that persistent blocks share, so that small groups fill the
chip too. A tile that reaches into the next group's rows reads them, and leaves them out when it
stores. kernels/roles.py has the parts.
"""

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import finisher, open_way_out
from tensorcore_dsl.kernels.hopper.pipeline import open_ring
from tensorcore_dsl.kernels.hopper.tile_scheduler import Place, every_nth
from tensorcore_dsl.kernels.hopper.warp_specialization import share_work

MOST_GROUPS = 512


@tc.kernel
def grouped_gemm_kernel(
    a: tc.Array, b: tc.Array, offsets: tc.Array, d: tc.Array,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is rows x K, B groups x K x N, D rows x N; group g begins at row offsets[g]."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    mma = getattr(tc.wgmma, f"m64n{config.BN}k16")(a.dtype, b.dtype, tc.f32)
    way_out = open_way_out(d, mma.d.dtype, config)
    ring = open_ring(a, b, config, traits)
    tc.griddep_wait()
    tiles = open_groups(offsets, d.shape[1], config)
    share_work(ring, mma, tiles, way_out, finisher(None, 1, 0, traits))


@dataclass
class GroupedTiles:
    """The tiles of all groups, one group after the other, each column by column.

    offsets: where each group starts; tiles: how many tiles come before it; group: the one that
    the last tile asked for belongs to. Blocks ask for tiles in ascending order.
    """

    offsets: Any
    tiles: Any
    count: Any
    cols: Any
    group: Any
    config: HopperConfig

    def numbers(self, turn=None):
        """The tiles of this block; of two consumers that take turns, those of one."""
        return every_nth(self.count, self.config, turn)

    def place(self, number):
        while self.tiles[self.group + 1] <= number:
            self.group = self.group + 1
        first, end = self.offsets[self.group], self.offsets[self.group + 1]
        high, inside = row_tiles(end - first, self.config), number - self.tiles[self.group]
        row, col = inside % high, inside // high * self.config.cluster_n
        if self.config.cluster_n > 1:
            col = col + tc.cluster_rank()
        m = first + row * self.config.BM
        return Place(m, col * self.config.BN, of_b=(self.group,), end=end)


def open_groups(offsets, N, config: HopperConfig):
    """Count the tiles of each group, once, into shared memory; every thread calls it."""
    groups = offsets.shape[0] - 1
    tiles = tc.shared(MOST_GROUPS + 1, tc.s32)
    for group in tc.range(tc.threadIdx.x, groups, config.threads):
        tiles[group] = row_tiles(offsets[group + 1] - offsets[group], config)
    tc.barrier()
    wide = config.BN * config.cluster_n
    cols = (N + (wide - 1)) // wide
    before = [tc.s32(0) for _ in range(-(-(MOST_GROUPS + 1) // config.threads))]
    for i in tc.static_range(len(before)):
        for other in tc.range(min(tc.threadIdx.x + i * config.threads, groups)):
            before[i] += tiles[other] * cols
    tc.barrier()
    for i in tc.static_range(len(before)):
        group = tc.threadIdx.x + i * config.threads
        if group <= groups:
            tiles[group] = before[i]
    tc.barrier()
    return GroupedTiles(offsets, tiles, tiles[groups], cols, tc.s32(0), config)


def row_tiles(rows, config: HopperConfig):
    return (rows + (config.BM - 1)) // config.BM
