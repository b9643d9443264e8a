"""D = epilogue(alpha A B + beta C) in s8 or u8 (D: s32) with `wgmma`, for sm_90a.

bf16_gemm.py describes the parts.
"""

from dataclasses import replace

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.mainloop import select_wgmma
from tensorcore_dsl.kernels.hopper.warp_specialization import warp_specialized_gemm


@tc.kernel
def s8_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.s32, beta: tc.s32,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N, both with K contiguous. Grid: at most one CTA per SM."""
    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    warp_specialized_gemm(mma, a, b, c, d, alpha, beta, config, traits)


@tc.kernel
def requantised_s8_gemm(
    a: tc.Array, b: tc.Array, d: tc.Array, scale, zero: tc.f32,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """D = A B scale + zero in s8: rounded to nearest even, and saturated.

    scale is an f32, or an array with one for each column.
    """

    def requantise(value, row, col):
        factor = scale[min(col, scale.shape[0] - 1)] if hasattr(scale, "shape") else scale
        return tc.fma(value.to(tc.f32), factor, zero).to(tc.s8, rounding="rni")

    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    traits = replace(traits, epilogue=requantise)
    warp_specialized_gemm(mma, a, b, None, d, 1, 0, config, traits)
