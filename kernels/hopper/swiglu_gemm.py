"""silu(X G) * (X U) in bf16 or f16 with `wgmma`, for sm_90a: both products in one tile.

A stage holds columns of G, then as many of U, and one wgmma multiplies both. Each thread therefore
holds a gate and the element that it gates, and only the result is written. wgmma_gemm.py describes
the parts.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import store_elements
from tensorcore_dsl.kernels.hopper.epilogue_layouts import make_epilogue
from tensorcore_dsl.kernels.hopper.epilogue_op import make_epilogue_op
from tensorcore_dsl.kernels.hopper.pipeline import (
    OperandTiles,
    Pipeline,
    k_tile_range,
    make_barriers,
    make_k_major_tiles,
)
from tensorcore_dsl.kernels.hopper.tile_scheduler import make_tile_scheduler
from tensorcore_dsl.kernels.hopper.wgmma_gemm import GemmParts, launch, produce, run_warpgroups, select_wgmma


@tc.kernel
def swiglu_kernel(
    x: tc.Array,
    gate: tc.Array,
    up: tc.Array,
    d: tc.Array,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """X is M x K, G and U K x N, all with K contiguous; a tile of D is BM x BN / 2."""
    launch(config)
    mma = select_wgmma(x.dtype, gate.dtype, config.BN)
    halved = replace(config, BN=config.BN // 2)
    buffers = config.staging_buffers(config.BN)
    epilogue = make_epilogue(d, halved, traits, buffers)
    pipeline = make_gated_pipeline(x, gate, up, config)
    run_warpgroups(
        pipeline,
        mma,
        make_tile_scheduler(d.shape, halved),
        epilogue,
        make_epilogue_op(traits),
        GemmParts(
            produce=partial(produce, load_stage=load_gated_stage),
            store=store_gated_rows,
            registers=config.registers,
        ),
    )


@dataclass
class GatedPipeline(Pipeline):
    """gate, up: the two halves of B's tiles, each with a tensor map of its own."""

    gate: OperandTiles = field(kw_only=True)
    up: OperandTiles = field(kw_only=True)

    @property
    def column_tiles(self):
        return self.gate

    def with_edge_columns(self):
        return replace(self, gate=self.gate.edge_tiles, up=self.up.edge_tiles)


def make_gated_pipeline(x, gate, up, config: HopperConfig):
    """Shared tiles, tensor maps and barriers. Every thread of the cluster calls it."""
    depth, half = SWIZZLE_BYTES // x.dtype.itemsize, config.BN // 2
    tiles_x = make_k_major_tiles(x, 0, config.BM, depth, config)
    smem = tc.shared((config.stages, config.BN, depth), gate.dtype, swizzle=SWIZZLE_BYTES)
    left = make_k_major_tiles(gate, 1, half, depth, config, smem=smem[:, :half])
    right = make_k_major_tiles(up, 1, half, depth, config, smem=smem[:, half:])
    full, empty, order = make_barriers(tiles_x.maps + left.maps + right.maps, config)
    first, last = k_tile_range(x.shape[1], depth, config)
    both = OperandTiles(left.map, smem, left.boxes, left.multicast, left.axis)
    return GatedPipeline(tiles_x, both, full, empty, order, depth, first, last, config, gate=left, up=right)


def load_gated_stage(pipeline, tile, stage, k, full):
    """Load a stage's tiles of X, G and U, from element `k` of K on."""
    full.arrive_expect_tx((pipeline.config.BM + pipeline.config.BN) * SWIZZLE_BYTES)
    pipeline.a.load(stage, (), tile.m, k, full)
    pipeline.gate.load(stage, (), tile.n, k, full)
    pipeline.up.load(stage, (), tile.n, k, full)


def store_gated_rows(acc, consumer, epilogue, tile, row, epilogue_op, config):
    """Store 64 rows: the left half of the accumulators gates the right half.

    Gates are applied eight elements at a time, so that no register is spilled.
    """
    elements = acc.elements()
    half = len(elements) // 2
    pairs = [(elements[i], elements[half + i]) for i in range(half)]

    def gated_op(pairs, coords):
        return epilogue_op([silu(x) * y for x, y in pairs], coords)

    store_elements(acc.coordinates, pairs, consumer, epilogue, (), tile.m + row, tile.n, gated_op)


def silu(x):
    """x / (1 + exp(-x)), by the approximate instructions of the hardware."""
    return x * tc.rcp(tc.exp(-x) + 1)
