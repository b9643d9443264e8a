"""D = finish(alpha A B + beta C) in bf16 or f16 with `wgmma`, for sm_90a.

Persistent and warp-specialised: one warpgroup brings tiles by TMA, the others multiply 64 rows
each, and send results out through shared memory while the next tiles come in. kernels/ring.py
has the parts.
"""

import tensorcore_dsl as tc
from kernels.ring import Config, Variant, multiply


@tc.kernel
def bf16_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = Config(), variant: tc.Const = Variant(),
):  # fmt: skip
    """A is M x K, B is K x N, each contiguous along either axis; the grid is a block an SM."""
    mma = getattr(tc.wgmma, f"m64n{config.BN}k16")(a.dtype, b.dtype, variant.sums or tc.f32)
    multiply(mma, a, b, c, d, alpha, beta, config, variant)
