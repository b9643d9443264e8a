"""An arrival at a CTA that has ended.

In kernels of TLX, Meta's extension of Triton, CTA 0 fetches work for its cluster. CTA 1 reads it and arrives
at a barrier of CTA 0, which may then fetch more. When the work is at an end there is no further fetch. CTA 1
arrived all the same, at a barrier in the shared memory of a CTA that could have returned by then. A unit test
and synccheck confirmed it; the last arrival is now left out.

CTA 0 waits for no answer to its last message, so nothing keeps it alive. The emulator reports the arrival
that nothing orders before the end of the CTA that it reaches.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "facebookexperimental/triton#1108"
KIND = "cluster"


@tc.kernel(threads=32)
def persistent(tiles: tc.s32, out: tc.Array, fixed: tc.Const):
    tc.cluster_size(2)
    lane, rank = tc.lane_id(), tc.cluster_rank()
    full, empty, message = tc.mbarriers(1)[0], tc.mbarriers(1)[0], tc.shared(1, tc.s32)
    if lane == 0:
        full.init(1)
        empty.init(1)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    if lane == 0:
        if rank == 0:
            for i in range(tiles + 1):
                if i > 0:
                    empty.wait(i - 1 & 1)
                message.remote(1)[0] = tc.select(i < tiles, i, -1)
                full.remote(1).arrive()
        else:
            tile, phase = tc.s32(0), tc.s32(0)
            while tile >= 0:
                full.wait(phase & 1)
                tile, phase = message[0], phase + 1
                if tile >= 0:
                    out[tile] = tile
                    empty.remote(0).arrive()
                elif not fixed:
                    empty.remote(0).arrive()  # error


def launches(fixed):
    persistent[2, 32](3, np.zeros(3, np.int32), fixed=fixed)
