"""D = epilogue(alpha A B + beta C) in tf32 with `wgmma`, for sm_90a.

Operands are f32; the hardware reads their upper 19 bits. wgmma_gemm.py describes the parts.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.transposition import transposed_gemm
from tensorcore_dsl.kernels.hopper.wgmma_gemm import select_wgmma, warp_specialized_gemm


@tc.kernel
def tf32_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """A is M x K, B is K x N, each contiguous along either axis. Grid: at most one CTA per SM."""
    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    k_major = traits.a_k_major and traits.b_k_major
    gemm = warp_specialized_gemm if k_major else transposed_gemm
    gemm(mma, a, b, d, config, traits, c=c, alpha=alpha, beta=beta)
