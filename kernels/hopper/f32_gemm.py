"""D = epilogue(alpha A B + beta C) in f32 with `wgmma`, for sm_90a: three tf32 products each.

split_f32.py shows how two tf32 stand for an f32. Its kernel has written A and B as pairs of slabs:
32 elements `high`, then their 32 `low`. A stage of the pipeline, two slabs, holds both for 32 of K.
Tensor cores truncate their sums (docs/fidelity.md), which would drift over a long K. So they sum no
more than one stage, and f32 additions, which round to nearest, accumulate them (promotion.py).
bf16_gemm.py describes the parts that the kernels share.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.pipeline import in_row_blocks
from tensorcore_dsl.kernels.hopper.promotion import promoted_gemm

HIGH, LOW = 0, 1  # slabs of a stage


@tc.kernel
def f32_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = HopperConfig(k_slabs=2, stages=2), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x 2K', B is 2K' x N, the parts of the operands. Grid: at most one CTA per SM."""
    promoted_gemm(a, b, c, d, alpha, beta, config, traits, multiply=multiply_parts, slabs=2)


def multiply_parts(pipeline, mma, products, consumer, pair, part: int):
    """A B of 64 rows and one part of the columns of two slabs, complete: small terms first."""
    a_blocks = in_row_blocks(pipeline.a.smem, 64)
    b_blocks = in_row_blocks(pipeline.b.smem, mma.shape[1])
    terms = ((LOW, HIGH), (HIGH, LOW), (HIGH, HIGH))
    tc.wgmma_fence()
    for i, (of_a, of_b) in enumerate(terms):
        products = tc.wgmma_async(
            mma, products, a_blocks[2 * pair + of_a, consumer], b_blocks[2 * pair + of_b, part],
            accumulate=i > 0,
        )  # fmt: skip
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    return products
