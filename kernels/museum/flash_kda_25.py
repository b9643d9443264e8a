"""An mbarrier that TMA has not seen.

The audit of FlashKDA found three mbarriers that bulk copies used without the fence that makes the
initialisation visible to the async proxy. `mbarrier.init` is an ordinary write; the copy that counts its
bytes there updates the barrier through the other proxy. It can hang, or count into garbage. The pull request
adds the fence in three places.

The emulator knows which mbarriers were fenced since their initialisation, and reports the first copy that
counts bytes on one that was not. The cure is `tc.fence_mbarrier_init()` after `init`, by the same thread,
before the others learn of the barrier.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "MoonshotAI/FlashKDA#25"
KIND = "proxy fence"


@tc.kernel
def load_tile(x: tc.Array, out: tc.Array, fixed: tc.Const):
    box = tc.tensor_map(x, (4, 32))
    tile, full = tc.shared((4, 32), tc.f32, align=128), tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        full.init(1)
        if fixed:
            tc.fence_mbarrier_init()
    tc.barrier()
    if t == 0:
        full.arrive_expect_tx(box.bytes)
        tc.tma_load(tile, box, (0, 0), full)  # error
    full.wait(0)
    out[t] = tile[t // 32, t % 32]


def launches(fixed):
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    load_tile[1, 128](x, np.zeros(128, np.float32), fixed=fixed)
