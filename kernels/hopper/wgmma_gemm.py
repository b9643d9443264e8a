"""D = epilogue(alpha A B + beta C) in bf16 or f16 with `wgmma`, for sm_90a.

The CTAs are persistent, at most one per SM; each computes a list of tiles of D (with split-K, a
cluster computes one tile). Inside a CTA

    the producer    warpgroup 0: one thread waits until a stage is empty, and lets TMA fill it with
                    the next k_tile of A and B, 128 bytes of K or more (produce)
    the consumers   the other warpgroups: wait until a stage is full, multiply it by wgmma, release
                    it; after the last k_tile they run the epilogue and store D (consume)

so that loads, products and stores of different tiles overlap. A kernel with K-major operands is

    wgmma_gemm.py        the kernel's body and the mainloops
    pipeline.py          stages, mbarriers, TMA loads
    epilogue.py          from accumulators to D
    tile_scheduler.py    which tiles a CTA computes

config.py has the configuration. Other modules implement options of configurations and problems:
clusters (cluster.py), MN-major operands (operand_layouts.py), a D that TMA cannot write and swap AB
(epilogue_layouts.py), split-K (split_k.py), alpha, C and functions of users (epilogue_op.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, WARPGROUP, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import same_row, store_rows
from tensorcore_dsl.kernels.hopper.epilogue_layouts import make_epilogue
from tensorcore_dsl.kernels.hopper.epilogue_op import make_epilogue_op
from tensorcore_dsl.kernels.hopper.operand_layouts import make_operands
from tensorcore_dsl.kernels.hopper.pipeline import make_pipeline
from tensorcore_dsl.kernels.hopper.split_k import make_store_shares
from tensorcore_dsl.kernels.hopper.tile_scheduler import covered_shape, make_tile_scheduler


@tc.kernel
def half_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """A is M x K, B is K x N, each contiguous along either axis.

    Grid: at most one CTA per SM; with split-K a cluster for each tile.
    """
    mma = select_wgmma(a.dtype, b.dtype, config.BN, traits.acc_dtype)
    warp_specialized_gemm(mma, a, b, d, config, traits, c=c, alpha=alpha, beta=beta)


def select_wgmma(a, b, columns: int, acc=None, source=None, swap_ab: bool = False):
    """The wgmma instruction for element types a and b: 64 rows, `columns` columns, 32 bytes of K.

    acc: type of the accumulators; f32, or s32 for integers, if None. source: of A, "registers";
    shared memory if None. swap_ab: the instruction multiplies elements of b by those of a.
    """
    if swap_ab:
        a, b = b, a
    shape = getattr(tc.wgmma, f"m64n{columns}k{32 // a.itemsize}")
    if a == tc.f32:  # f32 operands are multiplied as tf32
        a = b = tc.tf32
    return shape(a, b, acc or (tc.f32 if a.is_float else tc.s32), source=source)


# -- producer ---------------------------------------------------------------------------------


def load_stage(pipeline, tile, stage, k, full):
    """Load a stage's tiles of A and B, from element `k` of K on.

    `full` expects the bytes of the whole stage, also the bytes that other CTAs multicast into it:
    each barrier counts what arrives in its own CTA. A peer's bytes may arrive before this
    expect_tx. The count of pending bytes is then negative, and the phase cannot complete, because
    the arrival that comes with expect_tx is still missing. Elements outside of A and B count too:
    TMA writes zeros for them.
    """
    config = pipeline.config
    rows = pipeline.a.rows + pipeline.b.rows
    full.arrive_expect_tx(rows * SWIZZLE_BYTES * config.k_slabs)
    for i in tc.static_range(config.k_slabs):
        slab, k_slab = stage * config.k_slabs + i, k + i * (pipeline.k_per_stage // config.k_slabs)
        pipeline.a.load(slab, tile.batch_a, tile.m, k_slab, full)
        pipeline.b.load(slab, tile.batch_b, tile.n, k_slab, full)


def produce(pipeline, scheduler, load_stage=load_stage):
    """Load the tiles of all of this CTA's work, one after the other. One thread runs this."""
    state = pipeline.producer_state()
    waited = tc.s32(0)
    for index in scheduler.tile_indices():
        tile = scheduler.tile_at(index)
        if waited == 0:  # a branch: the assembler would move the wait ahead of these divisions
            tc.griddep_wait()
            waited = tc.s32(1)
        load_k_tiles(pipeline, tile, state, load_stage)


def load_k_tiles(pipeline, tile, state, load_stage):
    """Load every k_tile of one tile.

    A tile that reaches beyond A or B is loaded in smaller boxes. Each case has a loop of its own: a
    branch for each stage makes tiles of 64x64 take up to 1.25 times as long.
    """

    def load(pipeline):
        for k_tile in tc.range(pipeline.first_k_tile, pipeline.end_k_tile):
            pipeline.producer_acquire(state)
            k = k_tile * pipeline.k_per_stage
            load_stage(pipeline, tile, state.stage, k, pipeline.full[state.stage])
            state.advance()

    columns = pipeline.column_tiles
    if pipeline.a.holds(tile.m):
        if columns.holds(tile.n):
            load(pipeline)
        else:
            load(pipeline.with_edge_columns())
    elif columns.holds(tile.n):
        load(pipeline.with_edge_rows())
    else:
        load(pipeline.with_edge_rows().with_edge_columns())


# -- consumers --------------------------------------------------------------------------------


def mma_stage(pipeline, mma, acc, block, stage, accumulate):
    """Issue acc[i] += A B for one stage; acc[i] is 64 rows, row block `block` + i of the tile."""
    a, b, k_slabs = pipeline.a, pipeline.b, pipeline.config.k_slabs
    a_blocks = a.row_blocks
    # Orders earlier accesses to the accumulators' registers before wgmma writes them.
    tc.wgmma_fence()
    for i in tc.static_range(len(acc)):
        for j in tc.static_range(k_slabs):
            slab = stage * k_slabs + j
            acc[i] = tc.wgmma_async(
                mma,
                acc[i],
                a_blocks[slab, block + i],
                b.smem[slab],
                accumulate=accumulate if j == 0 else True,
                a_major=a.major,
                b_major=b.major,
            )


def consume(pipeline, mma, consumer, scheduler, store_tile, mma_stage=mma_stage):
    """Multiply this warpgroup's part of each tile, and pass 64 rows at a time to `store_tile`.

    Cooperative: every consumer takes 64 rows of each tile. Ping-pong: consumer 0 takes the first
    tile, consumer 1 the second, and so on. An mbarrier wait sees only the parity of a phase, so a
    consumer must never wait a full round of the stages ahead. The order barriers prevent it: a
    mainloop starts only when the mainloop of the other consumer has ended. Each consumer then
    skips the stages of the other's tile. The consumer that waits for phase 1 of its order barrier
    starts at once (the phase before the first counts as complete); that is consumer 0.
    """
    config, k_tiles = pipeline.config, pipeline.end_k_tile - pipeline.first_k_tile
    # Zeros matter only to a split-K CTA without k_tiles: else the first k_tile overwrites.
    acc = [mma.d.zeros() for _ in range(config.rows_per_consumer // 64)]
    state, block, order_phase = pipeline.consumer_state(), consumer, tc.u32(0)
    if config.pingpong:
        state.advance_by(consumer * k_tiles)
        block, order_phase = 0, tc.u32(1 - consumer)
    for index in scheduler.tile_indices(consumer if config.pingpong else None):
        tile = scheduler.tile_at(index)
        if config.pingpong:
            pipeline.order[consumer].wait(order_phase)
        last = mma_mainloop(pipeline, mma, acc, block, state, mma_stage)
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
            state.advance_by(k_tiles)
            order_phase = order_phase ^ 1


def mma_mainloop(pipeline, mma, acc, block, state, mma_stage):
    """acc = A B over all k_tiles; `mma_in_flight` groups stay pending. Returns the last stage.

    A stage is released when the wgmma that read it are complete: with one group left in flight that
    is the previous stage. The first k_tile overwrites the accumulators.
    """
    previous = replace(state)
    for k_tile in tc.range(pipeline.first_k_tile, pipeline.end_k_tile, pipeline.stages_at_once):
        for part in tc.static_range(pipeline.stages_at_once):
            pipeline.consumer_wait(state)
            accumulate = part > 0 or k_tile != pipeline.first_k_tile
            mma_stage(pipeline, mma, acc, block, state.stage, accumulate)
            tc.wgmma_commit()
            tc.wgmma_wait(pipeline.mma_in_flight)
            if pipeline.mma_in_flight == 0:
                pipeline.consumer_release(state.stage)
            elif part > 0:
                pipeline.consumer_release(previous.stage)
            else:
                if k_tile > pipeline.first_k_tile:
                    pipeline.consumer_release(previous.stage)
            previous.stage = state.stage
            state.advance()
    return previous.stage


# -- the kernel -----------------------------------------------------------------------------------


def gemm_pipeline(a, b, config: HopperConfig, traits: HopperTraits, extra_producers: int = 0):
    """The pipeline of A and B in either layout. extra_producers: see make_pipeline."""
    a_tiles, b_tiles = make_operands(a, b, config, traits)
    return make_pipeline(a_tiles, b_tiles, a.shape[-1], config, extra_producers)


def tile_scheduler(d, config: HopperConfig):
    """The scheduler over the tiles of D, or of its transpose with swap AB."""
    return make_tile_scheduler(covered_shape(d, config), config)


@dataclass(frozen=True)
class GemmParts:
    """The parts that kernels with other operands, tiles or mainloops replace.

    Attributes
    ----------
    pipeline_of, scheduler_of : function
        pipeline_of(a, b, config, traits) makes the pipeline, scheduler_of(d, config) the tile scheduler.
    produce, consume : function
        Mainloops of the producer and of a consumer. `produce` calls griddep_wait itself.
    store : function
        Writes 64 rows of accumulators.
    row_of : function
        See Epilogue.
    extra_producer : function or None
        extra_producer(pipeline, scheduler): what the next `extra_warps` warps of the producer run.
    buffers : int
        Staging buffers of a consumer. 0: two, or one if two cost a stage.
    registers : tuple of int, optional
        Per thread of producer and consumer; () for equal shares. None: `HopperConfig.registers_for`
        for the traits and the types.
    """

    pipeline_of: Callable[..., Any] = gemm_pipeline
    scheduler_of: Callable[..., Any] = tile_scheduler
    produce: Callable[..., Any] = produce
    consume: Callable[..., Any] = consume
    store: Callable[..., Any] = store_rows
    row_of: Callable[[Any], Any] = same_row
    extra_producer: Callable[..., Any] | None = None
    extra_warps: int = 1
    buffers: int = 0
    registers: tuple[int, ...] | None = None


def run_warpgroups(pipeline, mma, scheduler, epilogue, epilogue_op, parts: GemmParts = GemmParts()):
    """Divide the warpgroups of the CTA: warpgroup 0 produces, the others consume and store D.

    epilogue_op: function of elements, see make_epilogue_op.
    """
    config, store = pipeline.config, parts.store
    if config.split_k > 1:
        store = make_store_shares(pipeline, mma.d.dtype)
    # Programmatic dependent launch: the set-up above may overlap the end of the previous kernel of
    # the stream. Its results may be read, and its operands written, only after griddep_wait.
    tc.griddep_launch_dependents()

    def producer():
        if tc.threadIdx.x == 0:
            parts.produce(pipeline, scheduler)  # it waits before its first load
        if parts.extra_producer is not None and 1 <= tc.warp_id() <= parts.extra_warps:
            tc.griddep_wait()
            parts.extra_producer(pipeline, scheduler)
        if config.split_k > 1:
            # Matches the consumers' one in split_k.write_partials: a CTA has one tile.
            tc.cluster_sync()

    def consumers(consumer):
        tc.griddep_wait()

        def store_tile(acc, tile, row):
            store(acc, consumer, epilogue, tile, row, epilogue_op, config)

        parts.consume(pipeline, mma, consumer, scheduler, store_tile)
        tc.tma_store_wait(0, read=True)  # shared memory must outlive the TMA stores that read it

    tc.warp_specialize((1, producer), (config.consumers, consumers), registers=parts.registers or None)
    # No CTA may exit while a peer still multicasts into its tiles or arrives on its barriers.
    tc.cluster_sync()


def launch(config: HopperConfig):
    """Declare the threads of a CTA, one CTA per SM, and the size of a cluster."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)


def warp_specialized_gemm(
    mma,
    a,
    b,
    d,
    config: HopperConfig,
    traits: HopperTraits,
    parts: GemmParts = GemmParts(),
    c: Any = None,
    alpha: Any = 1,
    beta: Any = 0,
):
    """D = epilogue(alpha A B + beta C), multiplied by the wgmma instruction `mma`."""
    launch(config)
    buffers = parts.buffers or traits.staging_buffers(config, a.dtype.itemsize)
    epilogue = replace(make_epilogue(d, config, traits, buffers), row_of=parts.row_of)
    pipeline = parts.pipeline_of(a, b, config, traits)
    scheduler = parts.scheduler_of(d, config)
    if parts.registers is None:
        registers = config.registers_for(traits, a.dtype.itemsize, d.dtype.itemsize)
        parts = replace(parts, registers=registers)
    epilogue_op = make_epilogue_op(traits, c, alpha, beta)
    run_warpgroups(pipeline, mma, scheduler, epilogue, epilogue_op, parts)
