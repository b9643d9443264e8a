"""The wait stands after the first read.

cub::DeviceMergeSort launches its merge as a dependent launch of the kernel that computes where each tile's
partition begins and ends. The merge waited before it loaded keys, but after it had loaded the two bounds.
Stale bounds lead to indices outside of shared memory: users saw cudaErrorIllegalAddress from time to time. An
earlier issue (#3131) had suspected a race in this overlap; the fix came eight months later.

The emulator reports the load of the bounds itself, not the wild access that it leads to on a bad day. An
explicit trigger in the kernel in front is not needed for the race; it only makes it more likely. The cure
moves the wait up by two lines.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "NVIDIA/cccl#5456"
KIND = "dependent launch"


@tc.kernel
def partition(bounds: tc.Array, tile_size: tc.Const = 32):
    t = tc.threadIdx.x
    bounds[t] = tile_size * t  # race: first


@tc.kernel
def merge(keys: tc.Array, bounds: tc.Array, out: tc.Array, fixed: tc.Const):
    tile, t = tc.blockIdx.x, tc.threadIdx.x
    if fixed:
        tc.griddep_wait()
    begin, end = bounds[tile], bounds[tile + 1]  # race: second
    if not fixed:
        tc.griddep_wait()
    if begin + t < end:
        out[begin + t] = keys[begin + t]


def launches(fixed):
    keys, bounds, out = np.arange(64, dtype=np.int32), np.zeros(3, np.int32), np.zeros(64, np.int32)
    partition[1, 3](bounds)
    merge.configured(2, 32, pdl=True)(keys, bounds, out, fixed=fixed)
