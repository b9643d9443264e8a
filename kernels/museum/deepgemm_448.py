"""A product still reads the registers that are loaded anew.

DeepGEMM's tf32 GEMM for Hopper takes A from registers. Each iteration loaded its fragment of A before it
waited for the product of the iteration before, which reads the same registers while it runs. Equal inputs
gave unequal results. The report (#449) and its fix were open in September 2026. The fix waits directly after
the commit, which costs speed.

`wgmma` with A in registers reads them asynchronously, until somebody waits for its group. The emulator
reports the instruction that writes such a register, and the product that still reads it. The cure in this
small form is the earlier wait.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "deepseek-ai/DeepGEMM#448"
KIND = "wgmma"


@tc.kernel
def gemm(a: tc.Array, b: tc.Array, d: tc.Array, fixed: tc.Const):
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n16k8(tc.tf32, tc.tf32, tc.f32, source="registers")
    tile_b, t = tc.shared((2, 16, 8), tc.tf32, swizzle=32), tc.threadIdx.x
    for k in tc.static_range(2):
        tile_b[k, t // 8, t % 8] = b[t // 8, 8 * k + t % 8]
    tc.fence_proxy_async()
    tc.barrier()
    acc = mma.d.zeros()
    for k in range(a.shape[1] // 8):
        left = tc.load_elements(a, mma.a, origin=(0, 8 * k))  # error
        if not fixed:
            tc.wgmma_wait(0)  # for the product of the iteration before
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, [left], tile_b[k])
        tc.wgmma_commit()
        if fixed:
            tc.wgmma_wait(0)
    tc.wgmma_wait(0)
    tc.store_elements(d, acc)


def launches(fixed):
    a, b = np.ones((64, 16), np.float32), np.ones((16, 16), np.float32)
    gemm[1, 128](a, b, np.zeros((64, 16), np.float32), fixed=fixed)
