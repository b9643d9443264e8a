"""A descriptor for rows that lie side by side.

TileLang's fuzzer found GEMMs for Hopper that are wrong in 97 of 100 elements, without an error, and in each
run alike. The width of B's tile was 24, 40 or 56. No swizzle fits such a width, so the compiler left the tile
as plain rows of K and gave `wgmma` a descriptor without swizzle. Such a descriptor reads blocks of 8 rows,
16 bytes apart. The rows of the tile lie 48 bytes apart.

Nothing races here, and a GPU has no error for it. The emulator compares what a descriptor reads with the tile
that it points into. The cure of this small form stores B as columns of blocks, three of 8 columns.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "tile-ai/tilelang#2593"
KIND = "layout"


@tc.kernel
def gemm(a: tc.Array, b: tc.Array, d: tc.Array, fixed: tc.Const):
    tc.launch_bounds(128)
    mma, t = tc.wgmma.m64n24k16(tc.f16, tc.f16, tc.f32), tc.threadIdx.x
    tile_a = tc.shared((64, 16), tc.f16, swizzle=32)
    tile_b = tc.shared((3, 16, 8) if fixed else (16, 24), tc.f16, align=128)
    for i in tc.static_range(8):
        tile_a[t // 2, 8 * (t % 2) + i] = a[t // 2, 8 * (t % 2) + i]
    row, column = t // 8, t % 8
    for i in tc.static_range(3):
        if fixed:
            tile_b[i, row, column] = b[row, 8 * i + column]
        else:
            tile_b[row, 8 * i + column] = b[row, 8 * i + column]
    tc.fence_proxy_async()
    tc.barrier()
    leading, stride = (128, 256) if fixed else (384, 16)  # to the next 8 rows, to the next 8 columns
    low = (tile_b.address >> 4 & 0x3FFF) + (leading // 16 << 16)
    words = tc.emit("mov.b64.pack", low.bits(tc.b32), tc.u32(stride // 16))
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = mma(acc, tc.wgmma_descriptor(tile_a), words, True, 1, 1, 0, 1)  # error
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    tc.store_elements(d, acc)


def launches(fixed):
    a = (np.arange(64 * 16) % 5).reshape(64, 16).astype(np.float16)
    b = (np.arange(16 * 24) % 7).reshape(16, 24).astype(np.float16)
    d = np.zeros((64, 24), np.float32)
    gemm[1, 128](a, b, d, fixed=fixed)
