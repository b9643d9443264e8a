"""Grouped GEMM in bf16 or f16 with `wgmma`, for sm_90a: one matrix for each group of rows.

The tiles of all groups form one list that the persistent CTAs share, so that small groups fill the
chip too. A tile at the end of a group also multiplies rows of the next group, and does not store
them. wgmma_gemm.py describes the parts.
"""

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import WARPGROUP, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import Epilogue, store_rows
from tensorcore_dsl.kernels.hopper.epilogue_layouts import store_vectors
from tensorcore_dsl.kernels.hopper.tile_scheduler import WorkTile, strided_tiles
from tensorcore_dsl.kernels.hopper.wgmma_gemm import GemmParts, select_wgmma, warp_specialized_gemm

MAX_GROUPS = 512  # groups of a launch: each has a count of tiles, 4 bytes, in shared memory


@tc.kernel
def grouped_gemm_kernel(
    a: tc.Array,
    b: tc.Array,
    offsets: tc.Array,
    d: tc.Array,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """A is rows x K, B groups x K x N, D rows x N; group g starts at row offsets[g]."""

    def scheduler_of(d, config):
        tc.griddep_wait()  # the previous kernel of the stream may write the offsets
        return make_group_scheduler(offsets, d.shape[1], config)

    warp_specialized_gemm(
        select_wgmma(a.dtype, b.dtype, config.BN),
        a,
        b,
        d,
        config,
        traits,
        GemmParts(scheduler_of=scheduler_of, store=store_group_rows, registers=config.registers),
    )


@dataclass
class GroupTile(WorkTile):
    """A tile of a group. m_end: one past the group's last row."""

    m_end: Any = None


@dataclass
class GroupEpilogue(Epilogue):
    """Epilogue that stores no rows of the next group. m_end: see GroupTile."""

    m_end: Any = None

    def store(self, origin, buffer):
        """A TMA store of rows of one group, else a store by threads."""
        m = origin[-2]
        if m + 64 <= self.m_end:
            Epilogue.store(self, origin, buffer)
        else:
            store_vectors(buffer, self.d, origin, self.m_end, 16 // buffer.dtype.itemsize)
            if tc.threadIdx.x % WARPGROUP == 0:
                # An empty group: the wait of store_elements counts one group a part.
                tc.tma_store_commit()


def store_group_rows(acc, consumer, epilogue, tile, row, epilogue_op, config):
    """Store 64 rows of a tile, without rows of the next group."""
    group_epilogue = GroupEpilogue(epilogue.d, epilogue.maps, epilogue.staging, m_end=tile.m_end)
    store_rows(acc, consumer, group_epilogue, tile, row, epilogue_op, config)


@dataclass
class GroupScheduler:
    """Scheduler over the tiles of all groups: group after group, column by column in each.

    offsets: first row of each group. tiles_before: tiles of all earlier groups. count: all tiles.
    cols: columns of tiles. group: the group of the last tile asked for. Tiles are asked for in
    ascending order, so the search continues from there. `group` is a register of each thread:
    the producer and the consumers search on their own.
    """

    offsets: Any
    tiles_before: Any
    count: Any
    cols: Any
    group: Any
    config: HopperConfig

    def tile_indices(self, consumer=None):
        return strided_tiles(self.count, self.config, consumer)

    def tile_at(self, index):
        while self.tiles_before[self.group + 1] <= index:
            self.group = self.group + 1
        first, end = self.offsets[self.group], self.offsets[self.group + 1]
        height, inside = row_tiles(end - first, self.config), index - self.tiles_before[self.group]
        row, col = inside % height, inside // height * self.config.cluster_n
        if self.config.cluster_n > 1:
            col = col + tc.cluster_rank()
        m = first + row * self.config.BM
        return GroupTile(m, col * self.config.BN, batch_b=(self.group,), m_end=end)


def make_group_scheduler(offsets, N, config: HopperConfig):
    """Prefix sums of the groups' tiles in shared memory; every thread of the CTA calls it."""
    groups = offsets.shape[0] - 1
    tiles = tc.shared(MAX_GROUPS + 1, tc.s32)
    for group in tc.range(tc.threadIdx.x, groups, config.threads):
        tiles[group] = row_tiles(offsets[group + 1] - offsets[group], config)
    tc.barrier()
    wide = config.BN * config.cluster_n
    cols = (N + (wide - 1)) // wide
    before = [tc.s32(0) for _ in range(-(-(MAX_GROUPS + 1) // config.threads))]
    for i in tc.static_range(len(before)):
        for earlier in tc.range(min(tc.threadIdx.x + i * config.threads, groups)):
            before[i] += tiles[earlier] * cols
    tc.barrier()  # all have read the counts before the sums replace them
    for i in tc.static_range(len(before)):
        group = tc.threadIdx.x + i * config.threads
        if group <= groups:
            tiles[group] = before[i]
    tc.barrier()
    return GroupScheduler(offsets, tiles, tiles[groups], cols, tc.s32(0), config)


def row_tiles(rows, config: HopperConfig):
    """Number of tiles that cover `rows` rows."""
    return (rows + (config.BM - 1)) // config.BM
