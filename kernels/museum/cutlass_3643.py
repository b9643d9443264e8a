"""Nobody waits for the other CTA's half.

An example of CuTe's own primitives multiplies with two CTAs. Each loads its half of the scales by TMA and
counts the bytes at a barrier of its own. Only the leader multiplies, and it waits only for its own barrier
before it reads both halves. Results were wrong for large problems, and synccheck said that a wait was
missing. In the same example, arrivals across CTAs had been narrowed to the scope of one CTA by hand.

In emulation, the bytes of a bulk load are in flight until somebody has waited for the phase that counts them.
It reports the leader's read of its peer's shared memory. The cure: the peer waits for its own half, and
arrives at a barrier of the leader.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "NVIDIA/cutlass#3643"
KIND = "mbarrier"


@tc.kernel(threads=32)
def scales_of_both(scales: tc.Array, out: tc.Array, fixed: tc.Const):
    tc.cluster_size(2)
    box, half = tc.tensor_map(scales, (1, 32)), tc.shared((1, 32), tc.f32, align=128)
    loaded, peer_loaded = tc.mbarriers(1)[0], tc.mbarriers(1)[0]
    lane, rank = tc.lane_id(), tc.cluster_rank()
    if lane == 0:
        loaded.init(1)
        peer_loaded.init(32)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    if lane == 0:
        loaded.arrive_expect_tx(box.bytes)
        tc.tma_load(half, box, (rank, 0), loaded)
    if rank == 0:
        loaded.wait(0)
        if fixed:
            peer_loaded.wait(0)
        out[lane] = half[0, lane] + half.remote(1)[0, lane]  # error
    else:
        if fixed:
            loaded.wait(0)
            peer_loaded.remote(0).arrive()
    tc.cluster_sync()


def launches(fixed):
    scales = np.arange(64, dtype=np.float32).reshape(2, 32)
    scales_of_both[2, 32](scales, np.zeros(32, np.float32), fixed=fixed)
