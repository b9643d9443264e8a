"""Half of a cluster expects a multicast.

DeepGEMM's k-grouped GEMM lays the tiles of all groups one after the other, and pairs of neighbouring CTAs
form a cluster. A group with an odd number of tiles leaves a pair whose two CTAs work on different groups. One
of them concludes that the multicast is not valid and loads for itself alone. The other one waits for bytes
that only its neighbour would send. The kernel hangs; where it does not, it multiplies the wrong tile. Two
pull requests of August and September 2026 mend it.

A hang in emulation ends with a picture of who waits for which phase of which mbarrier. It says how many bytes
are missing, and where the arrivals so far came from. The cure: both CTAs decide by the same number, that of
the cluster.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "deepseek-ai/DeepGEMM#415"
KIND = "mbarrier"


@tc.kernel(threads=32)
def grouped(b: tc.Array, out: tc.Array, tiles_per_group: tc.Const, fixed: tc.Const):
    tc.cluster_size(2)
    box, tile = tc.tensor_map(b, (1, 32)), tc.shared((1, 32), tc.f32, align=128)
    full, lane, rank = tc.mbarriers(1)[0], tc.lane_id(), tc.cluster_rank()
    block = tc.blockIdx.x
    if lane == 0:
        full.init(1)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    if fixed:
        pair = block - rank
        multicast = pair // tiles_per_group == (pair + 1) // tiles_per_group
    else:  # "my neighbour's tile is of my group": the last tile of a group has none after it
        multicast = block % tiles_per_group != tiles_per_group - 1
    if lane == 0:
        full.arrive_expect_tx(box.bytes)
        if multicast:
            if rank == 0:
                tc.tma_load(tile, box, (block // tiles_per_group, 0), full, multicast=0b11)
        else:
            tc.tma_load(tile, box, (block // tiles_per_group, 0), full)
    full.wait(0)  # error
    out[block, lane] = tile[0, lane]
    tc.cluster_sync()


def launches(fixed):
    b, out = np.arange(64, dtype=np.float32).reshape(2, 32), np.zeros((4, 32), np.float32)
    grouped[4, 32](b, out, tiles_per_group=3, fixed=fixed)
