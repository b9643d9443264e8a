"""D = epilogue(alpha A B + beta C) in tf32 with `wgmma`, for sm_90a.

Operands are f32, of which the hardware reads the upper 19 bits. bf16_gemm.py describes the parts.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.mainloop import select_wgmma
from tensorcore_dsl.kernels.hopper.warp_specialization import warp_specialized_gemm


@tc.kernel
def tf32_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N; tiles of which not K is contiguous are transposed (transposition.py).

    Grid: at most one CTA per SM.
    """
    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    warp_specialized_gemm(mma, a, b, c, d, alpha, beta, config, traits)
