"""A release whose scope is one CTA.

A mixed kernel of CUTLASS loads one operand by TMA and the other one by `cp.async`. A product reads the shared
memory of both CTAs of a pair. So the second CTA arrives at a barrier of the first one, once its `cp.async` is
over. The arrival counted there, but its release had the scope of one CTA. Now and then the product read old
data.

An arrival counts wherever its barrier is. What it makes visible is another question: a release of cta scope
hands on nothing to another CTA (PTX manual, 9.7.13.15). The emulator follows the scope, and reports the read.
The cure: `.release.cluster`, here by `arrive()` of the remote barrier.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "NVIDIA/cutlass#3324"
KIND = "cluster"


@tc.kernel(threads=32)
def pair(x: tc.Array, out: tc.Array, fixed: tc.Const):
    tc.cluster_size(2)
    half, loaded = tc.shared(128, tc.f32, align=16), tc.mbarriers(1)[0]
    lane, rank = tc.lane_id(), tc.cluster_rank()
    if lane == 0:
        loaded.init(2 * 32)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    tc.cp_async(half.at(4 * lane), x.at(rank, 4 * lane), 16)  # race: first
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    if fixed:
        loaded.remote(0).arrive()
    else:
        tc.emit("mbarrier.arrive.release.cta.shared::cluster.b64", loaded.remote(0))
    if rank == 0:
        loaded.wait(0)
        out[lane] = half[lane] + half.remote(1)[lane]  # race: second
    tc.cluster_sync()


def launches(fixed):
    x = np.arange(256, dtype=np.float32).reshape(2, 128)
    pair[2, 32](x, np.zeros(32, np.float32), fixed=fixed)
