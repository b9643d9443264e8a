"""Thirty-two lanes store, one arrives.

In a backward kernel of cuDNN's open-source front end, a whole warp writes weights to shared memory. One
elected lane arrives at the mbarrier for which the compute warps wait. An arrival releases what its own thread
did. The other 31 lanes may still be storing. compute-sanitizer's racecheck pointed at the loads; the pull
request lets all lanes arrive and initialises the barrier with 32.

The proxy fence orders proxies, not threads. The emulator treats lanes as the independent threads that they
are, and names the store of a lane that did not arrive. Another cure would be `tc.syncwarp()` in front of the
arrival.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "NVIDIA/cudnn-frontend#426"
KIND = "mbarrier"


@tc.kernel
def backward(weights: tc.Array, out: tc.Array, fixed: tc.Const):
    shared, loaded = tc.shared(32, tc.f32), tc.mbarriers(1)[0]
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        loaded.init(32 if fixed else 1)
    tc.barrier()
    if tc.warp_id() == 0:
        shared[lane] = weights[lane]  # race: first
        tc.fence_proxy_async()
        if fixed:
            loaded.arrive()
        else:
            loaded.arrive(pred=lane == 0)
    else:
        loaded.wait(0)
        out[lane] = shared[31 - lane]  # race: second


def launches(fixed):
    backward[1, 64](np.arange(32, dtype=np.float32), np.zeros(32, np.float32), fixed=fixed)
