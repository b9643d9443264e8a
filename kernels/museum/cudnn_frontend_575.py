"""Two phases ahead, a parity says nothing.

In an attention kernel of cuDNN's open-source front end, storing warps arrive at a gate, and the loading warp
waits there before it reuses the memory. For a tile without keys nothing is loaded, and the storing warps
depend on nobody. They arrived twice before the loading warp had looked once. A wait asks for a parity, which
two phases later is the same again: the warp waited for ever. The hang came and went with the order of the
tests, until memory dumps of a stuck CTA explained it.

An mbarrier may be at most one phase ahead of those who wait for it. The emulator reports an arrival for the
next phase that comes before any thread has seen the last one end. In this small form the cure lets empty
tiles take the handshake of the others.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "NVIDIA/cudnn-frontend#575"
KIND = "mbarrier"


@tc.kernel
def attention(keys: tc.Array, out: tc.Array, fixed: tc.Const):
    tc.launch_bounds(64)
    gate, loaded = tc.mbarriers(1)[0], tc.mbarriers(1)[0]
    slot, tiles = tc.shared(1, tc.s32), keys.shape[0]
    if tc.threadIdx.x == 0:
        gate.init(1)
        loaded.init(1)
    tc.barrier()
    if tc.threadIdx.x == 0:  # loads
        for tile in range(tiles):
            gate.wait(tile & 1 ^ 1)
            if keys[tile] > 0:
                slot[0] = keys[tile]
                loaded.arrive()
            elif fixed:
                loaded.arrive()
    elif tc.threadIdx.x == 32:  # stores
        phase = tc.s32(0)
        for tile in range(tiles):
            if keys[tile] > 0:
                loaded.wait(phase & 1)
                out[tile] = slot[0]
                phase += 1
            elif fixed:
                loaded.wait(phase & 1)
                phase += 1
            gate.arrive()  # error


def launches(fixed):
    keys = np.array([0, 0, 5, 0], np.int32)
    attention[1, 64](keys, np.zeros(4, np.int32), fixed=fixed)
