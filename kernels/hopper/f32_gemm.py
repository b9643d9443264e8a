"""D = epilogue(alpha A B + beta C) in f32 with `wgmma`, for sm_90a: three tf32 products each.

split_f32.py shows how two tf32 stand for an f32. Its kernel has written A and B as pairs of slabs:
32 elements `high`, then their 32 `low`. A stage of the pipeline, two slabs, holds both for 32 of K.
Tensor cores truncate their sums (docs/fidelity.md), which would drift over a long K. So they sum no
more than one stage, and f32 additions, which round to nearest, accumulate them (promotion.py).
bf16_gemm.py describes the parts that the kernels share.
"""

from functools import partial

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import make_epilogue_op, make_epilogue_storage
from tensorcore_dsl.kernels.hopper.mainloop import select_wgmma
from tensorcore_dsl.kernels.hopper.pipeline import in_row_blocks, make_pipeline
from tensorcore_dsl.kernels.hopper.promotion import (
    consume_promoted,
    part_width,
    promotion_registers,
)
from tensorcore_dsl.kernels.hopper.tile_scheduler import TileScheduler
from tensorcore_dsl.kernels.hopper.warp_specialization import run_warpgroups

HIGH, LOW = 0, 1  # slabs of a stage


@tc.kernel
def f32_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = HopperConfig(k_slabs=2, stages=2), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x 2K', B is 2K' x N, the parts of the operands. Grid: at most one CTA per SM."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    storage = make_epilogue_storage(
        d, tc.f32, config, traits.store_by_threads, traits.row_reductions
    )
    pipeline, width = make_pipeline(a, b, config, traits), part_width(config)
    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    run_warpgroups(
        pipeline, mma, TileScheduler(d.shape, config), storage,
        make_epilogue_op(c, alpha, beta, traits),
        consume=partial(consume_promoted, width=width, multiply=multiply_parts, k_slabs=2),
        registers=promotion_registers(config, width),
    )  # fmt: skip


def multiply_parts(pipeline, mma, products, consumer, stage, part: int):
    """A B of 64 rows and one part of the columns of a stage, complete: small terms first."""
    a_blocks = in_row_blocks(pipeline.a.smem, 64)
    b_blocks = in_row_blocks(pipeline.b.smem, mma.shape[1])
    terms = ((LOW, HIGH), (HIGH, LOW), (HIGH, HIGH))
    tc.wgmma_fence()
    for i, (of_a, of_b) in enumerate(terms):
        products = tc.wgmma_async(
            mma, products, a_blocks[2 * stage + of_a, consumer], b_blocks[2 * stage + of_b, part],
            accumulate=i > 0,
        )  # fmt: skip
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    return products
