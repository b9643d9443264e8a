"""One named barrier for two tiles in flight.

In FlashInfer's prefill kernel of sparse MLA, math warps arrive at named barrier 1 and go on, and I/O warps
wait there. The math warps may finish the next tile first and arrive again. The surplus arrival completes a
phase without the I/O warps; a later phase starves. On a GB10 the tests timed out now and then. A debugger
showed I/O warps at the barrier after the math warps had ended.

At most one arrival may be outstanding at a barrier. The emulator reports the arrival that nothing orders
after the phase before. The cure alternates between two barriers by the parity of the tile. A warp that runs
ahead lands at the other one, and it cannot run two tiles ahead.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#4732"
KIND = "named barrier"


@tc.kernel
def prefill(x: tc.Array, out: tc.Array, fixed: tc.Const):
    tc.launch_bounds(64)
    slots, free, lane = tc.shared((2, 32), tc.s32), tc.mbarriers(2), tc.lane_id()
    if tc.threadIdx.x == 0:
        free[0].init(32)
        free[1].init(32)
    tc.barrier()
    for tile in tc.static_range(4):
        slot = tile % 2
        ready = 1 + slot if fixed else 1
        if tc.warp_id() == 0:  # math
            free[slot].wait(tile // 2 & 1 ^ 1)  # at most two tiles ahead
            slots[slot, lane] = 2 * x[tile, lane]
            tc.barrier_arrive(ready, 64)  # error
        else:  # I/O
            tc.barrier(ready, 64)
            out[tile, lane] = slots[slot, lane]
            free[slot].arrive()


def launches(fixed):
    x = np.arange(128, dtype=np.int32).reshape(4, 32)
    prefill[1, 64](x, np.zeros_like(x), fixed=fixed)
