"""Lanes of a warp do not run in step.

In a program of HeCBench, lane 0 of each warp allocates a buffer and stores its address in shared memory. The
other lanes read it on the next line. The `__syncwarp()` between the two had been commented out. Since Volta,
lanes of a warp run independently. The other lanes may read first, and follow a stale address.

In emulation, only `syncwarp` orders memory accesses of lanes of one warp, and the report says so. A barrier
of the block would do as well, and cost more.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "ORNL/HeCBench#221"
KIND = "shared memory"


@tc.kernel
def truth_tables(scratch: tc.Array, out: tc.Array, fixed: tc.Const):
    offsets, warp, lane = tc.shared(2, tc.s32), tc.warp_id(), tc.lane_id()
    if lane == 0:
        offsets[warp] = 32 * (1 - warp)  # race: first
    if fixed:
        tc.syncwarp()
    out[tc.threadIdx.x] = scratch[offsets[warp] + lane]  # race: second


def launches(fixed):
    truth_tables[1, 64](np.arange(64, dtype=np.int32), np.zeros(64, np.int32), fixed=fixed)
