"""TMA overwrites what ordinary loads have just read.

Kernels of TransformerEngine look for the largest value of a transformed tensor. They load a stage by TMA,
read it with ordinary loads, meet, and let TMA overwrite it. Between the loads and the copy a proxy fence was
missing. The barrier is there, and the values are read before it: a reviewer called it a tough bug.

A load that is late may return what TMA brings next, because a barrier orders only accesses through one proxy.
The emulator applies the rule to reads as well as to writes and names both. The cure: each reader fences
after its loads, before the threads meet.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "NVIDIA/TransformerEngine#2695"
KIND = "proxy fence"


@tc.kernel
def largest(x: tc.Array, out: tc.Array, fixed: tc.Const):
    box = tc.tensor_map(x, (4, 32))
    stage, full = tc.shared((4, 32), tc.f32, align=128), tc.mbarriers(1)[0]
    t, result = tc.threadIdx.x, tc.f32(0)
    if t == 0:
        full.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    for i in range(x.shape[0] // 4):
        if t == 0:
            full.arrive_expect_tx(box.bytes)
            tc.tma_load(stage, box, (4 * i, 0), full)  # error
        full.wait(i & 1)
        result = tc.maximum(result, stage[t // 32, t % 32])
        if fixed:
            tc.fence_proxy_async()
        tc.barrier()
    out[t] = result


def launches(fixed):
    x = np.arange(512, dtype=np.float32).reshape(16, 32)
    largest[1, 128](x, np.zeros(128, np.float32), fixed=fixed)
