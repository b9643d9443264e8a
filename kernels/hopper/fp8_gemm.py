"""D = epilogue(alpha A B + beta C) in e4m3 or e5m2 (D: bf16, f16 or f32) with `wgmma`, for sm_90a.

`fp8_gemm` accumulates in the tensor cores alone ("fast"). `promoted_fp8_gemm` adds up sums of 128
of K in f32 (promotion.py). wgmma_gemm.py describes the parts.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.promotion import promoted_gemm
from tensorcore_dsl.kernels.hopper.wgmma_gemm import select_wgmma, warp_specialized_gemm


@tc.kernel
def fp8_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """A is M x K, B is K x N, both with K contiguous. Grid: at most one CTA per SM."""
    mma = select_wgmma(a.dtype, b.dtype, config.BN, swap_ab=config.swap_ab)
    warp_specialized_gemm(mma, a, b, d, config, traits, c=c, alpha=alpha, beta=beta)


@tc.kernel
def promoted_fp8_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """D by two-level accumulation. A is M x K, B is K x N, both with K contiguous."""
    promoted_gemm(a, b, c, d, alpha, beta, config, traits)
