"""D = alpha A B + beta C in f64 with `mma.sync`, for sm_80 and later.

sm_90 has products of 16 rows; the bits are the same, since every sum is a chain of fused
multiply-adds in the order of k.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.pipeline import (
    AmpereConfig,
    AmpereTraits,
    block_tile,
    epilogue,
    mainloop,
)


@tc.kernel
def f64_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f64, beta: tc.f64,
    config: tc.Const = AmpereConfig(), traits: tc.Const = AmpereTraits(), depth: tc.Const = 4,
):  # fmt: skip
    """One block computes a tile of D; the grid has one block a tile.

    depth: K of one product on sm_90. 4 is the fastest: it leaves registers for a larger tile.
    """
    tc.launch_bounds(config.threads)
    if tc.arch_number() < 90:
        mma = tc.mma.m8n8k4(tc.f64, tc.f64, tc.f64)
    else:
        mma = getattr(tc.mma, f"m16n8k{depth}")(tc.f64, tc.f64, tc.f64)
    m0, n0 = block_tile(a.shape[0], b.shape[1], config.BM, config.BN, config.group_m)
    acc, m, n = mainloop(a, b, mma, m0, n0, config, traits)
    epilogue(acc, m, n, c, d, alpha, beta, mma, traits)
