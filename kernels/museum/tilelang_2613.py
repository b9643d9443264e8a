"""One warpgroup stages the next slice under the product of the other one.

A fuzzer of TileLang's compiler found a warp-specialised GEMM whose operand is staged by all threads and read
by the products of two warpgroups. The compiler put a barrier after the copy and none at the end of the loop.
The first warpgroup that has finished its product starts to copy the next slice, under the other one that
still multiplies. On a GPU with synchronous products the same code was right, and so is the pipelined form.

Each warpgroup has waited for its own product, not for that of the other one. The emulator reports the store
over bytes that a product in flight still reads, or the store and the product as a race. The cure: one barrier
after the waits.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "tile-ai/tilelang#2613"
KIND = "wgmma"


@tc.kernel
def gemm(a: tc.Array, b: tc.Array, d: tc.Array, fixed: tc.Const):
    tc.launch_bounds(256)
    mma = tc.wgmma.m64n16k16(tc.bf16, tc.bf16, tc.f32)
    tile_a, tile_b = tc.shared((64, 16), tc.bf16, swizzle=32), tc.shared((2, 16, 16), tc.bf16, swizzle=32)
    t, group = tc.threadIdx.x, tc.threadIdx.x // 128
    acc = mma.d.zeros()
    for k in range(a.shape[1] // 16):
        for i in tc.static_range(4):
            tile_a[16 * i + t // 16, t % 16] = a[16 * i + t // 16, 16 * k + t % 16]  # race: first
        for i in tc.static_range(2):
            tile_b[i, t // 16, t % 16] = b[16 * i + t // 16, 16 * k + t % 16]
        tc.fence_proxy_async()
        tc.barrier()
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a, tile_b[group])  # race: second
        tc.wgmma_commit()
        tc.wgmma_wait(0)
        if fixed:
            tc.barrier()
    tc.store_elements(d, acc, origin=(0, 16 * group))


def launches(fixed):
    a, b = np.ones((64, 48), tc.bf16.numpy), np.ones((32, 48), tc.bf16.numpy)
    gemm[1, 256](a, b, np.zeros((64, 32), np.float32), fixed=fixed)
