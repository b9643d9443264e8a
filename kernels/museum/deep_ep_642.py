"""A slot that was waited for, and not fenced.

In the low-latency combine of DeepEP, consumers read a slot of shared memory with ordinary loads and arrive at
an mbarrier. The producer waits for it and lets TMA overwrite the slot. Repeated runs with more than 256
tokens gave different results on an NVL72. A first fix (#632) fenced all memory and cost speed. The one that
was merged puts a proxy fence for shared memory between the producer's wait and its TMA load.

An arrival says that a load was issued before it, not that the async proxy comes after it. The emulator
reports the TMA load and the ordinary load whose bytes it overwrites. One fence on the path is enough: here it
is the thread that issues the copy that fences, after its wait.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "deepseek-ai/DeepEP#642"
KIND = "proxy fence"


@tc.kernel
def combine(x: tc.Array, out: tc.Array, fixed: tc.Const):
    tc.launch_bounds(64)
    box, slot = tc.tensor_map(x, (1, 32)), tc.shared((1, 32), tc.f32, align=128)
    full, empty = tc.mbarriers(1)[0], tc.mbarriers(1)[0]
    lane, total = tc.lane_id(), tc.f32(0)
    if tc.threadIdx.x == 0:
        full.init(1)
        empty.init(32)
        tc.fence_mbarrier_init()
    tc.barrier()
    if tc.warp_id() == 0:
        if lane == 0:
            for token in range(x.shape[0]):
                empty.wait(token & 1 ^ 1)
                if fixed:
                    tc.fence_proxy_async()
                full.arrive_expect_tx(box.bytes)
                tc.tma_load(slot, box, (token, 0), full)  # error
    else:
        for token in range(x.shape[0]):
            full.wait(token & 1)
            total += slot[0, lane]
            empty.arrive()
        out[lane] = total


def launches(fixed):
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    combine[1, 64](x, np.zeros(32, np.float32), fixed=fixed)
