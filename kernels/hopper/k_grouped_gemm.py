"""Grouped GEMM along K in bf16 or f16 with `wgmma`, for sm_90a: each group has a part of K.

D[g] is the product of the columns of A and the rows of B from offsets[g] to offsets[g + 1]: the
gradient of the matrices of `grouped_gemm`. Tiles of all D[g] form one list that the persistent CTAs
share. A group begins at any k. Its last stage may hold columns and rows of the next group, which
the consumers replace by zeros. wgmma_gemm.py describes the parts.
"""

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import WARPGROUP, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.tile_scheduler import make_tile_scheduler
from tensorcore_dsl.kernels.hopper.wgmma_gemm import (
    GemmParts,
    load_stage,
    mma_stage,
    select_wgmma,
    warp_specialized_gemm,
)

TRAITS = HopperTraits(a_k_major=False, b_k_major=False)


@tc.kernel
def k_grouped_gemm_kernel(
    a: tc.Array,
    b: tc.Array,
    offsets: tc.Array,
    d: tc.Array,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = TRAITS,
):
    """A is M x K with M contiguous, B K x N with N contiguous, D groups x M x N."""

    def scheduler_of(d, config):
        return KGroupScheduler(make_tile_scheduler(d.shape, config), offsets)

    warp_specialized_gemm(
        select_wgmma(a.dtype, b.dtype, config.BN),
        a,
        b,
        d,
        config,
        traits,
        GemmParts(
            scheduler_of=scheduler_of,
            produce=produce_groups,
            consume=consume_groups,
            registers=config.registers,
        ),
    )


@dataclass
class KGroupScheduler:
    """Scheduler over the tiles of all D[g], with the part of K that belongs to each."""

    tiles: Any
    offsets: Any

    def work(self):
        return self.tiles.tile_indices()

    def at(self, index):
        """The tile, its first k, and one past its last k."""
        tile = self.tiles.tile_at(index)
        (group,) = tile.batch_d
        return tile, self.offsets[group], self.offsets[group + 1]


def produce_groups(pipeline, scheduler):
    """Load the stages of all of this CTA's tiles. One thread runs this.

    Each tile has its own range of k. The last stage of a group also loads elements of the next
    group; past the last row TMA writes zeros.
    """
    tc.griddep_wait()  # the previous kernel of the stream may write the offsets
    state = pipeline.producer_state()
    for index in scheduler.work():
        tile, first, end = scheduler.at(index)
        for k in tc.range(first, end, pipeline.k_per_stage):
            pipeline.producer_acquire(state)
            load_stage(pipeline, tile, state.stage, k, pipeline.full[state.stage])
            state.advance()


def consume_groups(pipeline, mma, consumer, scheduler, store_tile):
    """Multiply 64 rows of each tile, and pass them to `store_tile`.

    Accumulators start as zeros, which is the result of a group without columns.
    """
    state = pipeline.consumer_state()
    for index in scheduler.work():
        tile, first, end = scheduler.at(index)
        acc = [mma.d.zeros()]
        for k in tc.range(first, end, pipeline.k_per_stage):
            pipeline.consumer_wait(state)
            if end - k < pipeline.k_per_stage:
                zero_behind(pipeline, state.stage, end - k)
            mma_stage(pipeline, mma, acc, consumer, state.stage, True)
            tc.wgmma_commit()
            # The stage is read: it may be released. The other consumer's wgmma keep the tensor
            # cores busy in the meantime.
            tc.wgmma_wait(0)
            pipeline.consumer_release(state.stage)
            state.advance()
        store_tile(acc[0], tile, consumer * 64)


def zero_behind(pipeline, stage, valid):
    """Zero the stage's columns of A and rows of B from `valid` on: they belong to the next group.

    Both operands need zeros, since a zero times an infinity of the next group is NaN. All consumers
    share the work: each has waited for the full stage before, and all meet at a named barrier
    after. TMA's writes are visible since the wait. Every thread that wrote zeros fences them for
    the async proxy ahead of the barrier, so the wgmma after the barrier read zeros. The release
    orders the next TMA load of the stage after these wgmma, and so after the zeros.
    """
    config = pipeline.config
    threads = config.consumers * WARPGROUP
    for operand in (pipeline.a, pipeline.b):
        _, boxes, depth, width = operand.smem.shape
        vector = 16 // operand.smem.dtype.itemsize
        chunks = width // vector  # 16 bytes each; a swizzle moves them inside of their row
        for box in tc.static_range(boxes):
            first = valid * chunks + tc.threadIdx.x - WARPGROUP
            for chunk in tc.range(first, depth * chunks, threads):
                words = operand.smem.at(stage, box, chunk // chunks, chunk % chunks * vector)
                words.as_type(tc.b32).store([0, 0, 0, 0])
    tc.fence_proxy_async()
    tc.barrier(config.consumers + 1, threads)  # barriers 1, ..., consumers belong to the epilogue
