"""A barrier for a part of the warps.

racecheck had found two races in llama.cpp's FlashAttention kernels, and #13438 added the missing barriers.
For some configurations one of them stands in a branch that only a part of the warps takes. The next barrier
of the others then counts as theirs: from there on the warps meet at different places. Users saw assertions
fail on long contexts, two days after the change.

On the GPU a barrier is a number and a count, not a line of the source. The emulator lets different warps meet
at different lines, as PTX does, and finds what follows. Here the next row is written under a warp that still
reads. The cure: every warp takes every barrier.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "ggml-org/llama.cpp#13469"
KIND = "shared memory"


@tc.kernel
def attention(x: tc.Array, out: tc.Array, fixed: tc.Const):
    tile, t = tc.shared(128, tc.s32), tc.threadIdx.x
    total = tc.s32(0)
    for row in range(x.shape[0]):
        tile[t] = x[row, t]  # race: first
        tc.barrier()
        total += tile[127 - t]  # race: second
        if fixed or tc.warp_id() < 2:  # those that combine partial results
            tc.barrier()
    out[t] = total


def launches(fixed):
    x = np.arange(512, dtype=np.int32).reshape(4, 128)
    attention[1, 128](x, np.zeros(128, np.int32), fixed=fixed)
