"""One path of the kernel has no wait.

The backward kernel of FlashAttention for Hopper is a dependent launch. Its dense path waits for the
preprocessing kernel in front, which writes the row sums and zeroes the buffer that dQ is added to. The
block-sparse path loads the same arrays without the wait. With block sparsity, dQ, dK and dV got NaN from time
to time.

A branch that is not taken has no races, so the emulator has to run the sparse path. One run of a test with
block sparsity is enough. The report names the load of the sparse path and the store of the kernel in front.
The cure is the wait, before the loop of loads.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "Dao-AILab/flash-attention#2643"
KIND = "dependent launch"


@tc.kernel
def preprocess(row_sums: tc.Array):
    tc.griddep_launch_dependents()
    row_sums[32 * tc.blockIdx.x + tc.threadIdx.x] = 1.0  # race: first


@tc.kernel
def backward(row_sums: tc.Array, block_ids: tc.Array, d_q: tc.Array, sparse: tc.Const, fixed: tc.Const):
    t, total = tc.threadIdx.x, tc.f32(0)
    if sparse:
        if fixed:
            tc.griddep_wait()
        for i in range(block_ids.shape[0]):  # these come from the host, and need no wait
            total += row_sums[32 * block_ids[i] + t]  # race: second
    else:
        tc.griddep_wait()
        for block in range(row_sums.shape[0] // 32):
            total += row_sums[32 * block + t]
    d_q[t] = total


def launches(fixed):
    row_sums, d_q = np.zeros(128, np.float32), np.zeros(32, np.float32)
    preprocess[4, 32](row_sums)
    block_ids = np.array([0, 2], np.int32)
    backward.configured(1, 32, pdl=True)(row_sums, block_ids, d_q, sparse=True, fixed=fixed)
