"""A dependent launch that never waits.

The backward pass of FlashAttention starts with a small kernel that sums O * dO along each row. On sm_90 and
later it is launched as a programmatic dependent launch, so that its prologue overlaps with the kernel in
front. It never waited for that kernel, which may be the one that writes dO. dQ and dK became silently wrong,
dV stayed right. On a GB200 the mistake showed within the first steps of training; on Hopper it was seen once,
after more than 3000 steps.

The emulator runs the two launches one after the other, and still knows that nothing orders them. Only
`griddep_wait` makes the writes of the launch in front visible. The report names the read, the write in the
other launch, and the rule. The cure is one line before the first read.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "Dao-AILab/flash-attention#2481"
KIND = "dependent launch"


@tc.kernel
def projection_backward(d_out: tc.Array):
    d_out[tc.blockIdx.x, tc.threadIdx.x] = tc.threadIdx.x.to(tc.f32)  # race: first
    tc.griddep_launch_dependents()


@tc.kernel
def preprocess(out: tc.Array, d_out: tc.Array, row_sums: tc.Array, fixed: tc.Const):
    row, t = tc.blockIdx.x, tc.threadIdx.x
    if fixed:
        tc.griddep_wait()
    product = out[row, t] * d_out[row, t]  # race: second
    for step in (16, 8, 4, 2, 1):
        product += tc.shfl_xor(product, step)
    if t == 0:
        row_sums[row] = product


def launches(fixed):
    out, d_out = np.ones((4, 32), np.float32), np.zeros((4, 32), np.float32)
    row_sums = np.zeros(4, np.float32)
    projection_backward[4, 32](d_out)
    preprocess.configured(4, 32, pdl=True)(out, d_out, row_sums, fixed=fixed)
