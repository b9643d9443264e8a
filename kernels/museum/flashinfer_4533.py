"""Two groups of warps share one barrier number.

A warpgroup of a block-sparse attention kernel in FlashInfer reduces with named barriers, and one number
served two groups of warps at a time. As long as the groups come one after the other, each phase collects the
right warps. When they interleave, a warp is released by a warp of the other group. In the reported setup a
single CTA hung about once in 25 requests, and the first version of the pull request had left this open. The
small form has two pairs of warps.

The hardware has 16 barriers for each block and no idea which warps belong together. The emulator reports the
arrival that is not ordered after the phase before, or the data that were read too early. The cure: a number
for each pair.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#4533"
KIND = "named barrier"


@tc.kernel
def reduce_by_pairs(x: tc.Array, out: tc.Array, fixed: tc.Const):
    parts, t, warp = tc.shared(4, tc.s32), tc.threadIdx.x, tc.warp_id()
    total = tc.redux("add", x[t])
    if tc.lane_id() == 0:
        parts[warp] = total
    if fixed:
        tc.barrier(1 + warp // 2, 64)
    else:
        tc.barrier(1, 64)  # error
    out[t] = parts[warp] + parts[warp ^ 1]


def launches(fixed):
    reduce_by_pairs[1, 128](np.arange(128, dtype=np.int32), np.zeros(128, np.int32), fixed=fixed)
