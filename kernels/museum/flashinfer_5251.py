"""Thread 0 releases only what it knows.

FlashInfer's top-k for long rows lets several CTAs add to one histogram in global memory and then meet at a
counter. Thread 0 of each CTA arrives there with a release. The release covers what thread 0 has done and what
it knows of. The other threads had just made their additions, and no `__syncthreads` stood between. A peer
could read a histogram that lacked some of them, and top-k sampling was silently wrong. Scheduling delays at
single instructions made it show.

The emulator follows what thread 0 knows. The additions of the other threads are not among it, so the peer's
read races with one of them, whatever the counter says. The cure: the CTA meets before thread 0 arrives.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#5251"
KIND = "global flag"


@tc.kernel
def top_k(keys: tc.Array, histogram: tc.Array, counter: tc.Array, out: tc.Array, fixed: tc.Const):
    block, t = tc.blockIdx.x, tc.threadIdx.x
    tc.reduce("add", histogram.at(keys[block, t] % 16), 1)  # race: first
    if fixed:
        tc.barrier()
    if t == 0:
        tc.emit("red.release.gpu.global.add.u32", counter.at(0), 1)
        while tc.emit("ld.acquire.gpu.global.b32", counter.at(0)).bits(tc.u32) < tc.gridDim.x:
            pass
    tc.barrier()
    if t < 16:
        out[block, t] = histogram[t]  # race: second


def launches(fixed):
    keys = np.arange(128, dtype=np.int32).reshape(2, 64) * 7
    histogram, counter, out = np.zeros(16, np.int32), np.zeros(1, np.uint32), np.zeros((2, 16), np.int32)
    top_k[2, 64](keys, histogram, counter, out, fixed=fixed)
