"""One warp waits, another one reads.

In a GEMM for few tokens, one warp loads the activations by TMA and another warp loads the weights and their
scales. The epilogue reads a scale of the whole product. Only the warp of the activations waited for the
launch in front. A reviewer of the pull request saw it: the wait counts for the thread that calls it, and
nothing ordered the other warps after it.

The emulator keeps for each thread what it knows of the others, the launch in front included. The second warp
reads the scale without a wait of its own, and without a barrier after the wait of the first warp. The cure:
let every warp wait that reads what the launch in front writes, or let the warps meet after one wait.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#4685"
KIND = "dependent launch"


@tc.kernel
def quantise(x: tc.Array, scale: tc.Array):
    tc.griddep_launch_dependents()
    x[tc.threadIdx.x] = tc.threadIdx.x.to(tc.f32)
    if tc.threadIdx.x == 0:
        scale[0] = 0.5  # race: first


@tc.kernel
def gemm(x: tc.Array, weights: tc.Array, scale: tc.Array, out: tc.Array, fixed: tc.Const):
    tile, lane = tc.shared(32, tc.f32), tc.lane_id()
    if tc.warp_id() == 0:
        tc.griddep_wait()  # "only for the activations"
        tile[lane] = x[lane]
        tc.barrier()
    else:
        if fixed:
            tc.griddep_wait()
        weight = weights[lane] * scale[0]  # race: second
        tc.barrier()
        out[lane] = weight * tile[lane]


def launches(fixed):
    x, scale, out = np.zeros(32, np.float32), np.zeros(1, np.float32), np.zeros(32, np.float32)
    quantise[1, 32](x, scale)
    gemm.configured(1, 64, pdl=True)(x, np.ones(32, np.float32), scale, out, fixed=fixed)
