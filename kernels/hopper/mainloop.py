"""Mainloops of the Hopper GEMMs: the producer's, which loads stages, and the consumers', wgmma.

Both walk over the same tiles and the same stages in the same order; see pipeline.py for the
barriers between them.
"""

from __future__ import annotations

from itertools import product

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, WARPGROUP
from tensorcore_dsl.kernels.hopper.pipeline import in_row_blocks, load_operand
from tensorcore_dsl.kernels.hopper.transposition import row_fragments


def select_wgmma(a, b, columns: int, acc=None, source=None, swapped: bool = False):
    """The wgmma instruction for element types a and b: 64 rows, `columns` columns, 32 bytes of K.

    acc: type of the accumulators; f32, or s32 for integers, if None. source: of A, "registers";
    shared memory if None. swapped: the instruction multiplies elements of b by those of a.
    """
    if swapped:
        a, b = b, a
    shape = getattr(tc.wgmma, f"m64n{columns}k{32 // a.itemsize}")
    if a == tc.f32:  # f32 operands are multiplied as tf32
        a = b = tc.tf32
    return shape(a, b, acc or (tc.f32 if a.is_float else tc.s32), source=source)


# -- producer ---------------------------------------------------------------------------------


def load_stage(pipeline, tile, stage, k, full):
    """Load a stage's tiles of A and B, from element `k` of K on.

    `full` expects the bytes of the whole stage, also those that other CTAs multicast into it: each
    barrier counts what arrives in its own CTA. A peer's bytes may arrive before this expect_tx; the
    count of pending bytes is then negative, and the phase cannot complete, because the arrival
    that comes with expect_tx is still missing. Elements outside of A and B count too: TMA writes
    zeros for them.
    """
    config = pipeline.config
    rows = pipeline.a.lines + pipeline.b.lines
    full.arrive_expect_tx(rows * SWIZZLE_BYTES * config.k_slabs)
    for i in tc.static_range(config.k_slabs):
        slab, k_slab = stage * config.k_slabs + i, k + i * (pipeline.k_per_stage // config.k_slabs)
        load_operand(pipeline.a, slab, tile.batch_a, tile.m, k_slab, full)
        load_operand(pipeline.b, slab, tile.batch_b, tile.n, k_slab, full)


def produce(pipeline, scheduler, load_stage=load_stage):
    """Load the tiles of all of this CTA's work, one after the other. One thread runs this."""
    stage, phase = tc.u32(0), tc.u32(1)  # phase 1: all stages of a new pipeline are empty
    waited = tc.s32(0)
    for index in scheduler.tile_indices():
        tile = scheduler.tile_at(index)
        if waited == 0:  # a branch: the assembler would move the wait ahead of these divisions
            tc.griddep_wait()
            waited = tc.s32(1)
        stage, phase = load_k_tiles(pipeline, tile, stage, phase, load_stage)


def load_k_tiles(pipeline, tile, stage, phase, load_stage=load_stage):
    """Load every k_tile of one tile; returns the next stage and its phase.

    Where the tile reaches beyond A or B, in smaller boxes of it (load_operand). There is a loop for
    each case: a branch for each stage makes tiles of 64x64 take up to 1.25 times as long.
    """

    def load(pipeline, stage, phase):
        return load_boxes(pipeline, tile, stage, phase, load_stage)

    columns = getattr(pipeline, pipeline.of_columns[0])
    if pipeline.a.holds(tile.m):
        if columns.holds(tile.n):
            stage, phase = load(pipeline, stage, phase)
        else:
            stage, phase = load(pipeline.at_edge(False, True), stage, phase)
    elif columns.holds(tile.n):
        stage, phase = load(pipeline.at_edge(True, False), stage, phase)
    else:
        stage, phase = load(pipeline.at_edge(True, True), stage, phase)
    return stage, phase


def load_boxes(pipeline, tile, stage, phase, load_stage):
    """The same in the boxes of the pipeline's operands."""
    for k_tile in tc.range(pipeline.first_k_tile, pipeline.end_k_tile):
        pipeline.producer_acquire(stage, phase)
        load_stage(pipeline, tile, stage, k_tile * pipeline.k_per_stage, pipeline.full[stage])
        stage, phase = pipeline.advance(stage, phase)
    return stage, phase


# -- consumers --------------------------------------------------------------------------------


def mma_stage(pipeline, mma, acc, block, stage, accumulate):
    """Issue acc[i] += A B for one stage; acc[i] is 64 rows, row block `block` + i of the tile."""
    a, b, k_slabs = pipeline.a, pipeline.b, pipeline.config.k_slabs
    # The 64 rows of a wgmma: rows of a K-major tile, or one 128-byte block of an MN-major one.
    a_blocks = in_row_blocks(a.smem, 64 if a.k_major else 1)
    # Orders earlier accesses to the accumulators' registers before wgmma writes them.
    tc.wgmma_fence()
    for i in tc.static_range(len(acc)):
        for j in tc.static_range(k_slabs):
            slab = stage * k_slabs + j
            acc[i] = tc.wgmma_async(
                mma, acc[i], a_blocks[slab, block + i], b.smem[slab],
                accumulate=accumulate if j == 0 else True,
                a_major="k" if a.k_major else "mn", b_major="k" if b.k_major else "mn",
            )  # fmt: skip


def mma_stage_of_fragments(pipeline, mma, acc, block, stage, accumulate):
    """The same for tiles of A that are not K-major: consumers read its fragments.

    The products of a step of K are issued when its fragments are read, so that those of the next
    ones are read meanwhile; the fence before each orders the loads into the registers. The stage is
    refilled through the async proxy, which these reads have to precede: the fence at the end orders
    them, and each warp releases the stage for itself.
    """
    a, b, k_slabs = pipeline.a, pipeline.b, pipeline.config.k_slabs
    from_registers = select_wgmma(b.smem.dtype, b.smem.dtype, mma.shape[1], source="registers")
    depth = mma.shape[2]
    for i, j in product(range(len(acc)), range(k_slabs)):
        slab = stage * k_slabs + j
        for k, fragment in enumerate(row_fragments(a.landing, from_registers, slab, block + i)):
            tc.wgmma_fence()
            acc[i] = tc.wgmma_async(
                from_registers, acc[i], [fragment], b.smem[slab][:, k * depth : (k + 1) * depth],
                accumulate=accumulate if j == k == 0 else True,
            )  # fmt: skip
    tc.fence_proxy_async()


def consume(pipeline, mma, consumer, scheduler, store_tile, mma_stage=mma_stage):
    """Multiply this warpgroup's part of each tile, and pass 64 rows at a time to `store_tile`.

    Cooperative: every consumer takes 64 rows of each tile. Ping-pong: consumer 0 takes the first
    tile, consumer 1 the second, and so on. An mbarrier wait sees only the parity of a phase, so a
    consumer must never wait a full revolution of the ring ahead. The order barriers prevent it:
    a mainloop starts only when the mainloop of the other consumer has ended. Each consumer then
    skips the stages of the other's tile. The consumer that waits for phase 1 of its order barrier
    starts at once (the phase before the first counts as complete); that is consumer 0.
    """
    config, k_tiles = pipeline.config, pipeline.end_k_tile - pipeline.first_k_tile
    # Zeros matter only to a split-K CTA without k_tiles: else the first k_tile overwrites.
    acc = [mma.d.zeros() for _ in range(config.rows_per_consumer // 64)]
    stage, phase, block, order_phase = tc.u32(0), tc.u32(0), consumer, tc.u32(0)
    if config.pingpong:
        stage, phase = pipeline.advance_by(stage, phase, consumer * k_tiles)
        block, order_phase = 0, tc.u32(1 - consumer)
    for index in scheduler.tile_indices(consumer if config.pingpong else None):
        tile = scheduler.tile_at(index)
        if config.pingpong:
            pipeline.order[consumer].wait(order_phase)
        stage, phase, last = mma_mainloop(pipeline, mma, acc, block, stage, phase, mma_stage)
        # All waits for full stages are done, so the other consumer may start: its first wgmma then
        # overlap with the last ones of this tile.
        if config.pingpong:
            pipeline.order[1 - consumer].arrive(pred=tc.threadIdx.x % WARPGROUP == 0)
        tc.wgmma_wait(0)
        if pipeline.mma_in_flight > 0:
            pipeline.consumer_release(last)
        for i in tc.static_range(len(acc)):
            store_tile(acc[i], tile, (block + i) * 64)
        if config.pingpong:
            stage, phase = pipeline.advance_by(stage, phase, k_tiles)
            order_phase = order_phase ^ 1


def mma_mainloop(pipeline, mma, acc, block, stage, phase, mma_stage):
    """acc = A B over all k_tiles, starting at `stage`; `mma_in_flight` groups stay pending.

    Returns the next stage, its phase, and the last stage that was read. A stage is released when
    the wgmma that read it are complete: with one group left in flight that is the previous stage.
    The first k_tile overwrites the accumulators.
    """
    previous = stage
    in_fragments = pipeline.a.landing is not None
    if in_fragments:
        mma_stage = mma_stage_of_fragments
    for k_tile in tc.range(pipeline.first_k_tile, pipeline.end_k_tile):
        pipeline.consumer_wait(stage, phase)
        mma_stage(pipeline, mma, acc, block, stage, k_tile != pipeline.first_k_tile)
        tc.wgmma_commit()
        tc.wgmma_wait(pipeline.mma_in_flight)
        if pipeline.mma_in_flight == 0:
            pipeline.consumer_release(stage, by_warp=in_fragments)
        else:
            if k_tile > pipeline.first_k_tile:
                pipeline.consumer_release(previous)
        previous = stage
        stage, phase = pipeline.advance(stage, phase)
    return stage, phase, previous
