"""D = epilogue(alpha A B + beta C) in bf16 or f16 with `wgmma`, for sm_90a.

The CTAs are persistent, at most one per SM; each computes a list of tiles of D (with split-K, a
cluster computes one tile). Inside a CTA

    the producer    warpgroup 0: one thread waits until a stage is empty, and lets TMA fill it with
                    the next k_tile of A and B, 128 bytes of K or more (mainloop.py: produce)
    the consumers   the other warpgroups: wait until a stage is full, multiply it by wgmma, release
                    it; after the last k_tile they run the epilogue and store D
                                                                     (mainloop.py: consume)

so that loads, products and stores of different tiles overlap. In the order of a call:

    config.py               what can be chosen: tile, stages, cluster, schedule
    warp_specialization.py  the kernel's body, which divides the warpgroups
    tile_scheduler.py       which tiles a CTA computes
    pipeline.py             stages, mbarriers, TMA loads, multicast
    mainloop.py             the two mainloops
    epilogue.py             from accumulators to D
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.mainloop import select_wgmma
from tensorcore_dsl.kernels.hopper.warp_specialization import warp_specialized_gemm


@tc.kernel
def bf16_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f32, beta: tc.f32,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N, each contiguous along either axis. Grid: at most one CTA per SM."""
    mma = select_wgmma(a.dtype, b.dtype, config.BN, traits.acc_dtype)
    warp_specialized_gemm(mma, a, b, c, d, alpha, beta, config, traits)
