"""The next group's map under the last group's store.

A grouped GEMM of CUTLASS for Hopper ran twice on the same inputs, and very rarely a patch of 128 x 32 results
differed. The suspicion: the storing warps change the tensor map of D for the next group. They do not wait
until the TMA stores of the last group have read it. The warp that loads has such a wait. The issue is closed;
the situation is worth a kernel either way.

The emulator counts the map among what a store reads, until the thread that issued it has waited for its
group. The wait for the reads is enough (`read=True`): it covers the map and the source (PTX manual,
9.7.9.25.3.2).
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "NVIDIA/cutlass#2162"
KIND = "tensor map"
FIELD = "tensormap.replace.tile.{}.shared::cta.b1024.b{}"
PUBLISH = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu"
STORE = "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group"


@tc.kernel(threads=32)
def groups(d: tc.Array, maps: tc.Array, fixed: tc.Const):
    staged, tiles, lane = (
        tc.shared(16, tc.u64, align=128),
        tc.shared((2, 32), tc.f32, align=128),
        tc.lane_id(),
    )
    place, words = maps.at(0).address, staged.at(0).address
    tiles[0, lane], tiles[1, lane] = 1.0, 2.0
    tc.fence_proxy_async()
    if lane < 16:
        staged[lane] = 0
    tc.syncwarp()
    if lane == 0:
        tc.emit(FIELD.format("rank", 32), words, 0)
        tc.emit(FIELD.format("global_dim", 32), words, 0, tc.u32(32))
        tc.emit(FIELD.format("box_dim", 32), words, 0, 32)
        tc.emit(FIELD.format("element_stride", 32), words, 0, 1)
        tc.emit(FIELD.format("elemtype", 32), words, 7)
    for group in tc.static_range(2):
        if fixed:
            tc.tma_store_wait(0, read=True)
        if lane == 0:
            tc.emit(FIELD.format("global_address", 64), words, d.at(group, 0).address)
        tc.syncwarp()
        tc.emit(PUBLISH, place, words, 128)  # race: first
        tc.emit(ACQUIRE, place, 128)
        if lane == 0:
            tc.emit(STORE, place, 0, tiles.at(group, 0).address)  # race: second
            tc.tma_store_commit()
    tc.tma_store_wait(0)


def launches(fixed):
    groups[1, 32](np.zeros((2, 32), np.float32), np.zeros(16, np.uint64), fixed=fixed)
