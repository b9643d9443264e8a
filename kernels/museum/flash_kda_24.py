"""A barrier where a proxy fence is needed.

FlashKDA converts its state to f32 in shared memory with ordinary stores; the threads meet, and one thread
stores the tile by TMA. TMA reads through the async proxy, and `__syncthreads` orders threads, not proxies: a
proxy fence was missing. It had mostly worked. An audit of the kernels against the memory model found it, and
the same gap on a second path, which only empty sequences take.

The emulator notes through which proxy each byte was written, and whether a proxy fence stands on the path to
the reader. The report names the ordinary store and the TMA store. The cure: each writing thread fences after
its last store, before the threads meet.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "MoonshotAI/FlashKDA#24"
KIND = "proxy fence"


@tc.kernel
def store_state(state: tc.Array, out: tc.Array, fixed: tc.Const):
    box = tc.tensor_map(out, (4, 32))
    buffer, t = tc.shared((4, 32), tc.f32, align=128), tc.threadIdx.x
    buffer[t // 32, t % 32] = state[t // 32, t % 32].to(tc.f32)
    if fixed:
        tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        tc.tma_store(box, (0, 0), buffer)  # error
        tc.tma_store_commit()
        tc.tma_store_wait(0)


def launches(fixed):
    state = np.arange(128).reshape(4, 32).astype(tc.bf16.numpy)
    store_state[1, 128](state, np.zeros((4, 32), np.float32), fixed=fixed)
