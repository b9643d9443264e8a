"""D = epilogue(A B) in block-scaled e4m3 or e5m2 (D: bf16, f16 or f32) with `wgmma`, for sm_90a.

Every 128 of K of a row of A have one scale, and every 128 x 128 block of B. A stage is 128 of K
deep; its products are scaled when they are added to the f32 accumulators (promotion.py). A second
producer warp loads the scales of each stage. wgmma_gemm.py describes the other parts.
"""

from dataclasses import replace
from functools import partial
from math import gcd

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import (
    SMEM_BYTES,
    SMEM_RESERVED,
    SWIZZLE_BYTES,
    HopperConfig,
    HopperTraits,
    promotion_registers,
)
from tensorcore_dsl.kernels.hopper.epilogue_layouts import make_epilogue
from tensorcore_dsl.kernels.hopper.epilogue_op import make_epilogue_op
from tensorcore_dsl.kernels.hopper.promotion import consume_promoted
from tensorcore_dsl.kernels.hopper.tile_scheduler import make_tile_scheduler
from tensorcore_dsl.kernels.hopper.wgmma_gemm import (
    GemmParts,
    gemm_pipeline,
    launch,
    run_warpgroups,
    select_wgmma,
)

BLOCK = 128  # elements of K, and columns of B, that share a scale
PREFETCH = 4  # stages whose scales are in flight


def with_scales(config: HopperConfig) -> HopperConfig:
    """A copy of the configuration with as many of its stages as fit together with their scales."""
    scale_bytes = 4 * (config.BM + config.BN // gcd(config.BN, BLOCK))
    free = SMEM_BYTES - config.epilogue_bytes() - 2 * SMEM_RESERVED
    stages = free // ((config.BM + config.BN) * SWIZZLE_BYTES + scale_bytes)
    return replace(config, stages=min(config.stages, stages))


@tc.kernel
def block_fp8_gemm(
    a: tc.Array,
    b: tc.Array,
    a_scales: tc.Array,
    b_scales: tc.Array,
    d: tc.Array,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """A is M x K, B is K x N, both with K contiguous. Grid: at most one CTA per SM.

    a_scales is M x K/128, b_scales K/128 x N/128 (rounded up), f32.
    """
    launch(config)
    epilogue = make_epilogue(d, config, traits)
    pipeline = gemm_pipeline(a, b, config, traits, extra_producers=1)
    width = gcd(config.BN, BLOCK)  # columns of a tile that have one scale
    rows, parts = config.BM, config.BN // width
    smem = tc.shared((config.stages, rows + parts), tc.f32)

    def load_scales(tile, k_tile):
        """A lane's scales in registers: of rows 32 apart, and of the columns of one part."""
        lane = tc.lane_id()
        a_rows = [min(tile.m + lane + i, a_scales.shape[0] - 1) for i in range(0, rows, 32)]
        col = min((tile.n + width * (lane % parts)) // BLOCK, b_scales.shape[1] - 1)
        return [a_scales[row, k_tile] for row in a_rows] + [b_scales[k_tile, col]]

    def write_scales(stage, loaded):
        """Write a lane's scales to the stage."""
        lane = tc.lane_id()
        for i in tc.static_range(rows // 32):
            smem[stage, lane + 32 * i] = loaded[i]
        smem.at(stage, rows + lane % parts).store(loaded[-1], pred=lane < parts)

    def scales(stage, row):
        """Factors of rows `row` and `row` + 8, for each part of the columns."""
        left = [smem[stage, row], smem[stage, row + 8]]
        return [[x * smem[stage, rows + i] for x in left] for i in range(parts)]

    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    run_warpgroups(
        pipeline,
        mma,
        make_tile_scheduler(d.shape, config),
        epilogue,
        make_epilogue_op(traits),
        GemmParts(
            consume=partial(consume_promoted, width=width, scales=scales),
            extra_producer=partial(produce_scales, load_scales=load_scales, write_scales=write_scales),
            registers=promotion_registers(config, width, 1),
        ),
    )


def produce_scales(pipeline, scheduler, load_scales, write_scales):
    """Fill the scales of every stage. One warp runs this, with PREFETCH stages' loads in flight.

    `full` expects two arrivals: that of the TMA producer and that of this warp. No proxy fence is
    needed: threads write the scales and threads read them, both through the generic proxy, and the
    mbarrier orders the two (arrive releases, wait acquires).
    """
    state = pipeline.producer_state()
    for index in scheduler.tile_indices():
        tile = scheduler.tile_at(index)
        for first in tc.range(pipeline.first_k_tile, pipeline.end_k_tile, PREFETCH):
            loaded = [load_scales(tile, min(first + i, pipeline.end_k_tile - 1)) for i in range(PREFETCH)]
            for i in tc.static_range(PREFETCH):
                if first + i < pipeline.end_k_tile:
                    pipeline.producer_acquire(state)
                    write_scales(state.stage, loaded[i])
                    tc.syncwarp()  # all lanes have written before lane 0 arrives for the warp
                    pipeline.full[state.stage].arrive(pred=tc.lane_id() == 0)
                    state.advance()
