"""D = epilogue(alpha A B + beta C) in s8 or u8 (D: s32) with `wgmma`, for sm_90a.

wgmma_gemm.py describes the parts.
"""

from dataclasses import replace

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.wgmma_gemm import select_wgmma, warp_specialized_gemm


@tc.kernel
def s8_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.s32,
    beta: tc.s32,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """A is M x K, B is K x N, both with K contiguous. Grid: at most one CTA per SM."""
    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    warp_specialized_gemm(mma, a, b, d, config, traits, c=c, alpha=alpha, beta=beta)


@tc.kernel
def requantised_s8_gemm(
    a: tc.Array,
    b: tc.Array,
    d: tc.Array,
    scale,
    zero: tc.f64,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """D = A B scale + zero in s8: the exact value rounded once, to nearest even, and saturated.

    scale is an f64, or an array of f32 with one for each column.
    """

    def requantise(value, row, col):
        factor = scale[min(col, scale.shape[0] - 1)] if hasattr(scale, "shape") else scale
        # Round the exact value to an odd f64: `low` or `high`, whichever has a last bit of 1. An
        # odd f64 is no half, and lies on the same side of each half as the exact value. So the
        # second rounding gives the correct s8.
        terms = value.to(tc.f64), factor.to(tc.f64), zero
        low, high = tc.fma(*terms, rounding="rm"), tc.fma(*terms, rounding="rp")
        odd = tc.select(low.bits(tc.u64) & 1 == 1, low, high)
        return odd.to(tc.s8, rounding="rni")

    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    traits = replace(traits, epilogue=requantise)
    warp_specialized_gemm(mma, a, b, d, config, traits)
