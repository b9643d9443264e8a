"""D = finish(alpha A B + beta C) in bf16 or f16 with `wgmma`, for sm_90a.

Blocks are persistent: one an SM, each with a list of tiles of D (kernels/tiles.py). In a block

    one warpgroup   waits until a slot of the ring is empty, and has TMA fill it with the next 128
                    bytes of K of A and B                              (`produce`, kernels/roles.py)
    the others      wait until it is full, multiply it by `wgmma`, give it back; after the last
                    step of K they finish their sums and send them out (`consume`, kernels/roles.py)

so that copies, products and results of different tiles overlap. kernels/ring.py has the slots and
their barriers, kernels/results.py the way out, kernels/config.py what can be chosen: consumers
that share tiles or take them in turn, clusters that share what they read.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.warp_specialization import multiply


@tc.kernel
def bf16_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N, each contiguous along either axis; the grid is a block an SM."""
    mma = getattr(tc.wgmma, f"m64n{config.BN}k16")(a.dtype, b.dtype, traits.accumulate or tc.f32)
    multiply(mma, a, b, c, d, alpha, beta, config, traits)
