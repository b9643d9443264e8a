"""A CTA ends while its peers read its shared memory.

Kernels that Triton compiles for several CTAs exchange values through each other's shared memory. When one CTA
has returned, its shared memory may be given to another one, while its peers still read there. Triton 3.8.0
emitted no barrier of the cluster at the end. On an sm_120 a launch failed with an unspecified error that
stuck to the process (#11731). The change inserts a barrier before every return of such a kernel.

The emulator knows which CTAs have ended. It reports an access to a CTA that is gone, or that may be gone
because nothing orders the access before its end. The second is a mistake also where the access comes in time.
The cure is one `tc.cluster_sync()` at the end.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "triton-lang/triton#10656"
KIND = "cluster"


@tc.kernel(threads=32)
def broadcast(x: tc.Array, out: tc.Array, fixed: tc.Const):
    tc.cluster_size(2)
    value, lane, rank = tc.shared(32, tc.s32), tc.lane_id(), tc.cluster_rank()
    if rank == 0:
        value[lane] = x[lane]
    tc.cluster_sync()
    if rank == 1:
        out[lane] = value.remote(0)[31 - lane]  # error
    if fixed:
        tc.cluster_sync()


def launches(fixed):
    broadcast[2, 32](np.arange(32, dtype=np.int32), np.zeros(32, np.int32), fixed=fixed)
