"""Two reductions, one number.

In a block-sparse attention kernel of FlashInfer, two pairs of warps reduce at the same time, each pair with a
named barrier. Both used the same number. As long as the pairs come one after the other, each barrier collects
the right two warps; when they interleave, a warp of one pair is released by a warp of the other. A server
hung about once in 25 requests. The cause was found on the second attempt; the first version of the fix had
left it open.

The hardware has 16 barriers for each block and no idea which warps belong together. The emulator reports the
arrival that is not ordered behind the phase before, or the data that were read too early. The cure: a number
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
