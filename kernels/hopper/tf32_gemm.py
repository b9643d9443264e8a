"""D = finish(alpha A B + beta C) in tf32 with `wgmma`, for sm_90a.

Operands are f32, which the hardware cuts to 19 bits.

Persistent and warp-specialised: one warpgroup brings tiles by TMA, the others multiply 64 rows
each, and send results out through shared memory while the next tiles come in. kernels/roles.py
has the parts.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.warp_specialization import multiply


@tc.kernel
def tf32_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N, both with K contiguous; the grid is a block an SM."""
    mma = getattr(tc.wgmma, f"m64n{config.BN}k8")(tc.tf32, tc.tf32, tc.f32)
    multiply(mma, a, b, c, d, alpha, beta, config, traits)
