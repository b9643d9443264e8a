"""D = finish(alpha A B + beta C) in e4m3 or e5m2 (D: bf16, f16 or f32) with `wgmma`, for sm_90a.

Persistent and warp-specialised: one warpgroup brings tiles by TMA, the others multiply 64 rows
each, and send results out through shared memory while the next tiles come in. kernels/roles.py
has the parts, kernels/promotion.py sums that do not drift.
"""

from functools import partial

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import finisher, open_way_out
from tensorcore_dsl.kernels.hopper.pipeline import open_ring
from tensorcore_dsl.kernels.hopper.promotion import (
    consume_promoted,
    instruction,
    part_width,
    registers_of,
)
from tensorcore_dsl.kernels.hopper.tile_scheduler import Tiles
from tensorcore_dsl.kernels.hopper.warp_specialization import multiply, share_work


@tc.kernel
def fp8_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N, both with K contiguous; the grid is a block an SM.

    Sums stay in the tensor cores ("fast accumulation").
    """
    multiply(instruction(a.dtype, config.BN), a, b, c, d, alpha, beta, config, traits)


@tc.kernel
def promoted_fp8_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """As fp8_gemm, with sums in f32 registers, where products go every 128 of K."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    way_out = open_way_out(d, tc.f32, config, traits.store_by_threads, traits.row_reductions)
    ring, width = open_ring(a, b, config, traits), part_width(config)
    share_work(
        ring, instruction(a.dtype, config.BN), Tiles(d.shape, config), way_out,
        finisher(c, alpha, beta, traits),
        consume=partial(consume_promoted, width=width), registers=registers_of(config, width),
    )  # fmt: skip
