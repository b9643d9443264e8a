"""A tensor map changes while a copy uses it.

DeepGEMM's weight-gradient kernel for Hopper keeps one tensor map for A and one for B in global memory. For
the next group, one warp writes the group's address into them, with all the fences that a changed map needs.
TMA loads of the group before may not have read their map yet: they then load from the next group. On an H200
a new test shape showed it after a few runs, as errors just above the tolerance. Three months later the same
gap was found in the copy of the kernel for sm_120 (#430).

A tensor copy reads its map until the copy is over; changing the map before is undefined (PTX manual,
9.7.9.25). The emulator counts the 128 bytes of the map among what a copy reads, and reports the write. The
cure drains the loads before the map changes.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "deepseek-ai/DeepGEMM#343"
KIND = "tensor map"
FIELD = "tensormap.replace.tile.{}.shared::cta.b1024.b{}"
PUBLISH = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu"
LOAD = "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


@tc.kernel(threads=32)
def groups(x: tc.Array, maps: tc.Array, out: tc.Array, fixed: tc.Const):
    staged, tiles = tc.shared(16, tc.u64, align=128), tc.shared((4, 32), tc.f32, align=128)
    full, lane = tc.mbarriers(4), tc.lane_id()
    place, words = maps.at(0).address, staged.at(0).address
    if lane < 16:
        staged[lane] = 0
    tc.syncwarp()
    if lane == 0:
        tc.emit(FIELD.format("rank", 32), words, 0)
        tc.emit(FIELD.format("global_dim", 32), words, 0, tc.u32(32))
        tc.emit(FIELD.format("box_dim", 32), words, 0, 32)
        tc.emit(FIELD.format("element_stride", 32), words, 0, 1)
        tc.emit(FIELD.format("elemtype", 32), words, 7)
        for stage in tc.static_range(4):
            full[stage].init(1)
        tc.fence_mbarrier_init()
    for group in tc.static_range(4):
        if fixed and group > 0:
            full[group - 1].wait(0)
        if lane == 0:
            tc.emit(FIELD.format("global_address", 64), words, x.at(group, 0).address)
        tc.syncwarp()
        tc.emit(PUBLISH, place, words, 128)  # race: first
        tc.emit(ACQUIRE, place, 128)
        if lane == 0:
            full[group].arrive_expect_tx(128)
            tc.emit(LOAD, tiles.at(group, 0).address, place, 0, full[group].address)  # race: second
    for group in tc.static_range(4):
        full[group].wait(0)
        out[group, lane] = tiles[group, lane]


def launches(fixed):
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    groups[1, 32](x, np.zeros(16, np.uint64), np.zeros_like(x), fixed=fixed)
