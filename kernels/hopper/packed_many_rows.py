"""D = epilogue(alpha X B + beta C) for weights B of 4 or 8 bits and many rows of 16-bit X, for sm_90a.

As in packed_few_rows.py, dᵀ = bᵀ xᵀ: weights become 16-bit A operands in registers, and X is the B operand,
in shared memory. Here the numbers are multiplied by the scale of their group as soon as they are 16-bit
numbers, and rounded to 16 bits once. So one set of accumulators has the sums of all groups, and a
consumer multiplies up to 256 rows of X. A single scale for the whole of K multiplies the sums in f32.

A stage is 64 elements of K deep. Products of one stage run while the weights of the next one become
operands, in other registers. wgmma_gemm.py describes the other parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.packed_gemm import (
    CHUNK,
    Dequantiser,
    WeightFormat,
    load_words,
    make_dequantiser,
)
from tensorcore_dsl.kernels.hopper.config import (
    SMEM_BYTES,
    SMEM_RESERVED,
    SWIZZLE_BYTES,
    HopperConfig,
    HopperTraits,
)
from tensorcore_dsl.kernels.hopper.packed_few_rows import BULK_ALIGN, SLAB, vector_pointers
from tensorcore_dsl.kernels.hopper.pipeline import Pipeline, k_tile_range, make_barriers, make_k_major_tiles
from tensorcore_dsl.kernels.hopper.wgmma_gemm import (
    GemmParts,
    consume,
    produce,
    select_wgmma,
    warp_specialized_gemm,
)

CHUNK_STAGES = CHUNK // SLAB
REGISTERS = (40, 232)  # registers of a thread of the producer, and of each of two consumers


@tc.kernel
def packed_many_rows_gemm(
    x: tc.Array,
    words: tc.Array,
    scales: tc.Array,
    zeros: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    format: tc.Const = WeightFormat(tc.s4),
    config: tc.Const = HopperConfig(swap_ab=True),
    traits: tc.Const = HopperTraits(),
):
    """Operands as for ampere/packed_gemm.py. Scales of groups have X's type. Grid: at most one CTA per SM."""
    warp_specialized_gemm(
        select_wgmma(x.dtype, x.dtype, config.BN, source="registers"),
        x,
        words,
        d,
        config,
        traits,
        GemmParts(
            pipeline_of=partial(make_packed_pipeline, scales=scales, zeros=zeros, format=format),
            produce=partial(produce, load_stage=load_packed_stage),
            consume=partial(consume_packed, scales=scales),
            buffers=2 if packed_stages(config, format, buffers=2) >= config.stages else 1,
            registers=config.shares_if(True, REGISTERS),
        ),
        c=c,
        alpha=alpha,
        beta=beta,
    )


def packed_stages(config: HopperConfig, format: WeightFormat, buffers: int = 1) -> int:
    """Stages that fit into shared memory with so many staging buffers of each consumer."""
    words = config.BM * SLAB * format.dtype.bits // 8
    group_bytes = slab_groups(format) * 3 * config.BM + 2 * BULK_ALIGN
    bytes_per_stage = config.BN * SWIZZLE_BYTES + words + group_bytes
    staging = config.consumers * buffers * 64 * SWIZZLE_BYTES
    return (SMEM_BYTES - SMEM_RESERVED - staging) // bytes_per_stage


def slab_groups(format: WeightFormat) -> int:
    """Groups of a stage."""
    return max(SLAB // format.period, 1)


@dataclass
class GroupTiles:
    """Scales or zero points of the stages, (stages, groups, columns), and their tensor map."""

    smem: Any
    map: Any


def make_group_tiles(array, config: HopperConfig, format: WeightFormat):
    """Allocate the tiles of an array (groups, N)."""
    groups = slab_groups(format)
    unit = BULK_ALIGN // array.dtype.itemsize
    stage = -(-groups * config.BM // unit) * unit
    smem = tc.shared(
        (config.stages, groups, config.BM), array.dtype, strides=(stage, config.BM, 1), align=BULK_ALIGN
    )
    return GroupTiles(smem, tc.tensor_map(array, (groups, config.BM)))


@dataclass
class PackedTiles:
    """Packed weights in shared memory: (stages, 1, rows of 16 columns, words), and their tensor map."""

    smem: Any
    map: Any

    def holds(self, origin):
        """TMA fills in zeros for columns beyond N."""
        return True


@dataclass
class PackedPipeline(Pipeline):
    """A pipeline whose left operand are packed weights.

    Attributes
    ----------
    a : PackedTiles
        The weights.
    scales, zeros : GroupTiles or None
        Scales and zero points of groups.
    weights : Dequantiser
        Makes fragments of words.
    """

    a: Any
    scales: Any = field(kw_only=True)
    zeros: Any = field(kw_only=True)
    weights: Dequantiser = field(kw_only=True)

    @property
    def groups(self):
        """The GroupTiles that there are."""
        return [tiles for tiles in (self.scales, self.zeros) if tiles is not None]

    stages_at_once: ClassVar[int] = CHUNK_STAGES


def make_packed_pipeline(x, words, config: HopperConfig, traits: HopperTraits, scales, zeros, format):
    """Shared tiles, tensor maps and barriers. Every thread of the cluster calls it."""
    rows, row_words = config.BM // 16, format.chunk_words // CHUNK_STAGES
    tiles_x = make_k_major_tiles(x, 1, config.BN, SLAB, config, axis=0)
    smem = tc.shared((config.stages, 1, rows, row_words), tc.s32, align=BULK_ALIGN)
    tiles = PackedTiles(smem, tc.tensor_map(words, (rows, row_words)))
    scale_tiles = make_group_tiles(scales, config, format) if format.group else None
    zero_tiles = make_group_tiles(zeros, config, format) if format.has_zeros else None
    full, empty, order = make_barriers((*tiles_x.maps, tiles.map), config, by_warp=True)
    first, end = (chunk * CHUNK_STAGES for chunk in k_tile_range(x.shape[1], CHUNK, config))
    mma = select_wgmma(x.dtype, x.dtype, config.BN, source="registers")
    weights = make_dequantiser(mma.a, format, x)
    barriers = full, empty, order, SLAB, first, end, config
    return PackedPipeline(
        tiles, tiles_x, *barriers, by_warp=True, scales=scale_tiles, zeros=zero_tiles, weights=weights
    )


def load_packed_stage(pipeline, tile, stage, k, full):
    """Load a stage's words, scales, zero points and rows of X, from element `k` of K on."""
    format, words = pipeline.weights.format, pipeline.a
    group_bytes = sum(tile.map.bytes for tile in pipeline.groups)
    full.arrive_expect_tx(pipeline.b.rows * SWIZZLE_BYTES + words.map.bytes + group_bytes)
    index = tile.m // 16, k // SLAB * words.map.box[1]
    tc.tma_load(words.smem[stage, 0], words.map, index, full)
    pipeline.b.load(stage, (), tile.n, k, full)
    for tiles in pipeline.groups:
        group = k // format.group if format.group else 0
        tc.tma_load(tiles.smem[stage], tiles.map, (group, tile.m), full)


def consume_packed(pipeline, mma, consumer, scheduler, store_tile, scales):
    """Consumer's mainloop; one scale for the whole of K multiplies the sums."""

    def store_scaled(acc, tile, row):
        factors = tc.load_rows(scales[0, :], acc, origin=tile.m + row, bounded=True).to(tc.f32)
        store_tile(acc * factors, tile, row)

    store = store_tile if pipeline.weights.format.group else store_scaled
    consume(pipeline, mma, consumer, scheduler, store, packed_mma_stage)


def packed_mma_stage(pipeline, mma, acc, block, stage, accumulate):
    """Issue acc[i] += A B for one stage; acc[i] is 64 columns of B, block `block` + i of the tile."""
    blocks = [block + i for i in range(len(acc))]
    fragments = [stage_fragments(pipeline, mma, stage, number) for number in blocks]
    # Orders the writes of fragments and accumulators before wgmma reads them.
    tc.wgmma_fence()
    for i in range(len(acc)):
        acc[i] = tc.wgmma_async(mma, acc[i], fragments[i], pipeline.b.smem[stage], accumulate=accumulate)
    # TMA overwrites words and scales through the async proxy when all warps have released the
    # stage: the fence orders this thread's reads before. The products run meanwhile.
    tc.fence_proxy_async()


def stage_fragments(pipeline, mma, stage, block):
    """A operands of a block of 64 columns: for each 16 of K of a stage, weights times scales."""
    weights, scales, zero_tiles = pipeline.weights, pipeline.scales, pipeline.zeros
    format, depth = weights.format, min(weights.format.period, SLAB)
    warp = tc.warp_id() % 4
    pointers = vector_pointers(pipeline.a.smem[stage], 4 * block + warp, format.vectors // CHUNK_STAGES)
    words, fragments = load_words(pointers), []
    for g in range(SLAB // depth):
        tile = zero_tiles.smem[stage] if format.has_zeros else None
        zeros = weights.zero_points(tile, g, 64 * block + 16 * warp)
        group_fragments = [weights.fragment(words, k, zeros) for k in range(g * depth, (g + 1) * depth, 16)]
        if format.group:
            factors = tc.load_rows(scales.smem[stage, g, :], mma.a, origin=64 * block)
            group_fragments = [fragment * factors for fragment in group_fragments]
        fragments += group_fragments
    return fragments
