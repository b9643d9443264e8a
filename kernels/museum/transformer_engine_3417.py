"""Only the thread that stored can wait.

Quantisation kernels of TransformerEngine write tiles to a ring in shared memory. One thread stores each tile
by TMA and waits until the store has read its source. Groups of bulk copies belong to the thread that commits
them: the same wait in any other thread returns at once. The other threads went on to overwrite the slot,
because nothing told them that the leader had waited. The pull request, opened in August 2026, adds the
missing meeting in 13 files.

The emulator keeps bulk groups by thread, and the bytes that a copy still reads. It reports the ordinary store
over such bytes, with the copy that reads them. The cure: the leader waits, then all threads meet, then they
write.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "NVIDIA/TransformerEngine#3417"
KIND = "asynchronous store"


@tc.kernel
def quantise(x: tc.Array, out: tc.Array, fixed: tc.Const):
    box = tc.tensor_map(out, (4, 32))
    tile, t = tc.shared((4, 32), tc.s32, align=128), tc.threadIdx.x
    for i in range(x.shape[0] // 4):
        if fixed:
            tc.barrier()  # after the leader's wait below
        tile[t // 32, t % 32] = 2 * x[4 * i + t // 32, t % 32]  # race: first
        tc.fence_proxy_async()
        tc.barrier()
        if t == 0:
            tc.tma_store(box, (4 * i, 0), tile)  # race: second
            tc.tma_store_commit()
            tc.tma_store_wait(0, read=True)
    tc.tma_store_wait(0)


def launches(fixed):
    x = np.arange(512, dtype=np.int32).reshape(16, 32)
    quantise[1, 128](x, np.zeros_like(x), fixed=fixed)
