"""D = alpha A B + beta C in bf16, summed in f32, with `mma.sync`, for sm_80 and later."""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.pipeline import (
    AmpereConfig,
    AmpereTraits,
    block_tile,
    epilogue,
    mainloop,
)


@tc.kernel
def bf16_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = AmpereConfig(), traits: tc.Const = AmpereTraits(),
):  # fmt: skip
    """One block computes a tile of D; the grid has one block a tile."""
    tc.launch_bounds(config.threads)
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    m0, n0 = block_tile(a.shape[0], b.shape[1], config.BM, config.BN, config.group_m)
    acc, m, n = mainloop(a, b, mma, m0, n0, config, traits)
    epilogue(acc, m, n, c, d, alpha, beta, mma, traits)
