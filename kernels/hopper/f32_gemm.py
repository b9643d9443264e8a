"""D = epilogue(alpha A B + beta C) in f32 with `wgmma`, for sm_90a: three tf32 products each.

An f32 is the sum of two tf32 (split_f32.py), `high` and `low`. Tensor cores truncate their sums
(docs/fidelity.md), which would drift over a long K. So they sum no more than 32 of K, and f32
additions, which round to nearest, accumulate these sums (promotion.py). wgmma_gemm.py describes the
parts that the kernels share.

Two kernels give the same bits:

    f32_gemm            split_f32.py has written the operands in parts, as pairs of slabs: 32
                        elements `high`, then their 32 `low`. A stage has both slabs.
    f32_fragments_gemm  reads f32 operands. Consumers read fragments of the left operand and split
                        them in registers, from which wgmma takes them. Warps of the producer split
                        tiles of the right operand in shared memory, between the barriers `full` and
                        `ready`. Each operand is read once and no parts are written. This is fast if
                        one operand is large and the other one small.

The left operand is A, with swap AB it is B.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import (
    SWIZZLE_BYTES,
    HopperConfig,
    HopperTraits,
    fragments_registers,
)
from tensorcore_dsl.kernels.hopper.epilogue import same_row
from tensorcore_dsl.kernels.hopper.operand_layouts import MNMajorTiles
from tensorcore_dsl.kernels.hopper.pipeline import PipelineState, in_row_blocks
from tensorcore_dsl.kernels.hopper.promotion import promoted_gemm
from tensorcore_dsl.kernels.hopper.transposition import (
    PART,
    TRANSPOSERS,
    make_ready,
    make_tiles,
    make_transposing_pipeline,
    parts_of_block,
    row_fragments,
    row_of_fragment,
)
from tensorcore_dsl.kernels.hopper.wgmma_gemm import GemmParts, produce, select_wgmma, warp_specialized_gemm
from tensorcore_dsl.kernels.split_f32 import SLAB, split, split_all

HIGH, LOW = 0, 1  # slabs of a stage
TERMS = ((LOW, HIGH), (HIGH, LOW), (HIGH, HIGH))  # parts of A and of B: small products first
MAX_AT_ONCE = 4  # vectors that a thread reads before it splits them
# Consumers -> columns whose accumulators and products fit the registers with fragments of A.
MAX_COLUMNS = {1: 128, 2: 96, 3: 32}


@tc.kernel
def f32_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = HopperConfig(k_slabs=2, stages=2),
    traits: tc.Const = HopperTraits(),
):
    """A is M x 2K', B is 2K' x N, the parts of the operands. Grid: at most one CTA per SM."""
    promoted_gemm(a, b, c, d, alpha, beta, config, traits, multiply=multiply_parts, slabs=2)


def multiply_parts(pipeline, mma, products, consumer, pair, part: int):
    """Issue A B for 64 rows and one part of the columns of two slabs: small terms first."""
    a_blocks = pipeline.a.row_blocks
    b_blocks = in_row_blocks(pipeline.b.smem, mma.shape[1])
    for i, (a_part, b_part) in enumerate(TERMS):
        products = tc.wgmma_async(
            mma,
            products,
            a_blocks[2 * pair + a_part, consumer],
            b_blocks[2 * pair + b_part, part],
            accumulate=i > 0,
        )
    return products


# -- f32 operands -----------------------------------------------------------------------------


@tc.kernel
def f32_fragments_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = HopperConfig(BM=64, BN=64),
    traits: tc.Const = HopperTraits(),
):
    """A is M x K, B is K x N, each contiguous along either axis. Grid: at most one CTA per SM."""
    in_fragments = traits.in_fragments(config, a.dtype.itemsize)
    warp_specialized_gemm(
        select_wgmma(a.dtype, b.dtype, config.BN, source="registers"),
        a,
        b,
        d,
        config,
        traits,
        GemmParts(
            pipeline_of=make_fragments_pipeline,
            produce=partial(produce, load_stage=load_stage),
            consume=consume_fragments,
            row_of=row_of_fragment if in_fragments else same_row,
            extra_producer=split_stages,
            extra_warps=TRANSPOSERS,
            buffers=config.staging_buffers(2 * config.BN),
            registers=fragments_registers(config),
        ),
        c=c,
        alpha=alpha,
        beta=beta,
    )


def make_fragments_pipeline(a, b, config: HopperConfig, traits: HopperTraits):
    """The pipeline: a stage has a slab of the left operand, and two of the right one for its parts."""
    operands = (a, 0, traits.a_k_major), (b, 1, traits.b_k_major)
    left, right = operands[::-1] if config.swap_ab else operands
    tiles_a = make_tiles(*left, 0, config.BM, SLAB, config)
    tiles_b = make_tiles(*right, 1, config.BN, SLAB, replace(config, k_slabs=2))
    ready = make_ready(config)
    return make_transposing_pipeline(tiles_a, tiles_b, ready, a.shape[-1], config, by_warp=True, depth=SLAB)


def load_stage(pipeline, tile, stage, k, full):
    """Load a stage, from element `k` of K on, see wgmma_gemm.load_stage.

    The right tile goes into the slab of its `high` part.
    """
    full.arrive_expect_tx((pipeline.a.rows + pipeline.b.rows) * SWIZZLE_BYTES)
    pipeline.a.load(stage, tile.batch_a, tile.m, k, full)
    pipeline.b.load(2 * stage + HIGH, tile.batch_b, tile.n, k, full)


def split_stages(pipeline, scheduler):
    """Split the right tile of every stage. Warps 1 to TRANSPOSERS of the producer run this.

    `high` replaces the loaded elements. MN-major tiles are transposed at the same time. The order
    of accesses is that of transposition.transpose_stages.
    """
    state = pipeline.consumer_state()
    for _ in scheduler.tile_indices():
        for _ in tc.range(pipeline.first_k_tile, pipeline.end_k_tile):
            stage = state.stage
            pipeline.full[stage].wait(state.phase)
            if not isinstance(pipeline.b, MNMajorTiles):
                split_rows(pipeline.b.smem[2 * stage + HIGH], pipeline.b.smem[2 * stage + LOW])
            else:
                blocks = [pipeline.b.landing[2 * stage + part] for part in (HIGH, LOW)]
                for block in tc.range(tc.warp_id() - 1, pipeline.b.boxes, TRANSPOSERS):
                    split_block(blocks[HIGH][block], blocks[LOW][block])
            tc.fence_proxy_async()
            tc.syncwarp()
            pipeline.ready[stage].arrive(pred=tc.lane_id() == 0)
            state.advance()


def split_rows(high, low):
    """Split a K-major tile, 16 bytes at a time: eight lanes access a row, without conflicts."""
    rows, depth = high.shape
    threads, vectors_per_row = 32 * TRANSPOSERS, depth // PART
    for begin in tc.static_range(0, rows * vectors_per_row, MAX_AT_ONCE * threads):
        vectors = []
        for first in range(begin, min(begin + MAX_AT_ONCE * threads, rows * vectors_per_row), threads):
            vector = first + tc.threadIdx.x - 32
            inside = None if first + threads <= rows * vectors_per_row else vector < rows * vectors_per_row
            index = vector // vectors_per_row, vector % vectors_per_row * PART
            vectors.append((index, inside, high.at(*index).load(PART, pred=inside).elements()))
        parts = split_all([x for _, _, elements in vectors for x in elements])
        for i, (index, inside, _) in enumerate(vectors):
            for target, part in zip((high, low), parts, strict=True):
                target.at(*index).store(part[PART * i : PART * i + PART], pred=inside)


def split_block(high, low):
    """Split and transpose 32 x 32 elements by one warp; see transposition.transpose_block."""
    for (k, n), block in parts_of_block(high):
        for j in tc.static_range(PART):
            parts = [split(row[j]) for row in block]
            for target, part in ((high, HIGH), (low, LOW)):
                target.at(n + j, k).store([x[part] for x in parts])


def consume_fragments(pipeline, mma, consumer, scheduler, store_tile):
    """Consumer's mainloop: 64 rows of each tile.

    While wgmma sums the products of a stage, the consumer reads and splits the fragments of the
    next stage. It reads the last stage of a tile twice, so that there is no branch. A stage is
    refilled through the async proxy: the fence orders the reads of this warp's lanes before its
    arrival.
    """
    state = pipeline.consumer_state()
    first, end = pipeline.first_k_tile, pipeline.end_k_tile
    products = mma.d.zeros()
    for index in scheduler.tile_indices():
        tile = scheduler.tile_at(index)
        acc = [tc.f32(0)] * len(products)
        if first < end:  # a part of K may have no k_tile
            pipeline.consumer_wait(state)
            parts = read_parts(pipeline, mma, state.stage, consumer)
            for k_tile in tc.range(first, end):
                tc.wgmma_fence()
                products = multiply_fragments(pipeline, mma, products, parts, state.stage)
                tc.wgmma_commit()
                more = k_tile + 1 < end
                following = state.next()
                read = tc.select(more, following.stage, state.stage)
                read_phase = tc.select(more, following.phase, state.phase)
                pipeline.consumer_wait(PipelineState(state.stages, read, read_phase))
                next_parts = read_parts(pipeline, mma, read, consumer)
                tc.wgmma_wait(0)
                tc.fence_proxy_async()
                pipeline.consumer_release(state.stage)
                acc = [old + term for old, term in zip(acc, products.elements(), strict=True)]
                parts = next_parts
                state = following
        store_tile(tc.fragment(mma.d, acc), tile, 64 * consumer)


def read_parts(pipeline, mma, stage, consumer):
    """Fragments of the `high` and the `low` parts of 64 rows of a stage, for each step of K."""
    left, size = pipeline.a, len(mma.a.zeros())

    def read():
        if isinstance(left, MNMajorTiles):
            fragments = row_fragments(left.landing, mma, stage, consumer)
        else:
            fragments = k_major_fragments(left.smem[stage], mma, 64 * consumer)
        return [x.bits(tc.f32) for fragment in fragments for x in fragment]

    parts = split_all(read(), again=read)
    return [
        [tc.fragment(mma.a, [x.bits(tc.b32) for x in part[i : i + size]]) for i in range(0, len(part), size)]
        for part in parts
    ]


def k_major_fragments(tile, mma, row):
    """Fragments of 64 rows of a tile, from row `row` on, for each step of K.

    A warp's 16 rows have the layout of an mma.sync fragment, which `ldmatrix` loads.
    """
    operand = tc.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32).a
    first, depth = row + tc.warp_id() % 4 * 16, mma.shape[2]
    rows = tile[first : first + 16]
    loaded = [tc.ldmatrix(rows[:, k : k + depth], operand) for k in range(0, SLAB, depth)]
    return [tc.fragment(mma.a, [x.bits(tc.b32) for x in fragment]) for fragment in loaded]


def multiply_fragments(pipeline, mma, products, parts, stage):
    """Issue the products of a stage. The terms have the order of A and B, also with swap AB."""
    for i, (a_part, b_part) in enumerate(TERMS):
        left_part, right_part = (b_part, a_part) if pipeline.config.swap_ab else (a_part, b_part)
        products = tc.wgmma_async(
            mma, products, parts[left_part], pipeline.b.smem[2 * stage + right_part], accumulate=i > 0
        )
    return products
