"""Step 3: wgmma reads both operands from swizzled shared memory.

The four warps of a warpgroup issue `wgmma` together. It multiplies 64 rows of A by N columns of B in
shared memory, without ldmatrix and operand registers, and runs asynchronously. Only `wgmma` reaches
the full rate of Hopper's tensor cores; mma.sync reaches about three quarters of it. Step 2 explains
the copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BN, BK = 128, 128, 64
STAGES = 3
WARPGROUPS = BM // 64  # each multiplies 64 rows by all BN columns
THREADS = 128 * WARPGROUPS
VECTOR = 8


@tc.kernel(threads=THREADS, min_blocks=2)
def matmul(a: tc.Array, b: tc.Array, d: tc.Array):
    # m64n128k16: a thread holds 64 * 128 / 128 = 64 accumulators.
    mma = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)
    # The 128-byte swizzle is one of the layouts that a wgmma descriptor can name. The descriptor
    # holds address, swizzle and the distance of 1024 bytes between groups of eight rows.
    tile_a = tc.shared((STAGES, WARPGROUPS, 64, BK), tc.bf16, swizzle=128)
    tile_b = tc.shared((STAGES, BN, BK), tc.bf16, swizzle=128)
    m, n = tc.blockIdx.y * BM, tc.blockIdx.x * BN
    warpgroup = tc.warpgroup_id()
    acc = mma.d.zeros()
    k_tiles = a.shape[1] // BK

    def load_stage(k_tile):
        """Start the copies of one slice of K, and close them as one group."""
        if k_tile < k_tiles:
            stage = k_tile % STAGES
            for i in tc.static_range(WARPGROUPS):
                load_tile(tile_a[stage, i], a, m + 64 * i, k_tile * BK)
            load_tile(tile_b[stage], b, n, k_tile * BK)
        tc.cp_async_commit()

    for k_tile in tc.static_range(STAGES - 1):
        load_stage(k_tile)
    for k_tile in range(k_tiles):
        tc.cp_async_wait(STAGES - 2)
        # cp.async writes by the generic proxy, wgmma reads by the asynchronous proxy. A barrier
        # orders accesses of one proxy only; this fence, in every thread that copied, makes the
        # writes visible to the other proxy. It stands after the wait and before the barrier.
        tc.fence_proxy_async()
        tc.barrier()
        load_stage(k_tile + STAGES - 1)
        stage = k_tile % STAGES
        # wgmma.fence orders earlier accesses to the accumulators before the wgmma. BK / 16 = 4
        # instructions of K = 16 follow; their descriptors differ by 32 bytes of the swizzled row.
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a[stage, warpgroup], tile_b[stage])
        tc.wgmma_commit()
        # All of this warpgroup's wgmma have finished before it reaches the next barrier, which is
        # what permits the copies after that barrier to overwrite this stage.
        tc.wgmma_wait(0)
    store_tile(acc, d, m + 64 * warpgroup, n)


def load_tile(tile, array, first_row, k):
    """Copy rows of 128 bytes; eight neighbouring threads copy one row, 16 bytes each."""
    chunks = BK // VECTOR
    for i in tc.static_range(tile.shape[0] * chunks // THREADS):
        chunk = i * THREADS + tc.threadIdx.x
        row, col = chunk // chunks, chunk % chunks * VECTOR
        tc.cp_async(tile.at(row, col), array.at(first_row + row, k + col), 16)


def store_tile(acc, d, m, n):
    """Warp w of the warpgroup holds rows 16 w to 16 w + 15, laid out as by m16n8 of mma.sync."""
    for slot in tc.static_range(0, len(acc), 2):
        row, col = acc.coordinates(slot)
        d.at(m + row, n + col).store([acc[slot].to(d.dtype), acc[slot + 1].to(d.dtype)])


def gemm(a: Any, b: Any, d: Any, kernel: Any = matmul) -> Any:
    """Launch D = A B; `kernel` may also be `matmul.emulator(profile=True)`, which reports."""
    (M, K), N = a.shape, b.shape[0]
    if M % BM or N % BN or K % BK:
        raise tc.ArgumentError(
            f"M, N and K must be multiples of {BM}, {BN} and {BK}; they are {M}, {N} and {K}"
        )
    return kernel[(N // BN, M // BM), THREADS](a, b, d)


def main() -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((256, 320)).astype(tc.bf16.numpy) for _ in range(2))
    d = np.zeros((256, 256), tc.bf16.numpy)
    gemm(a, b, d)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    right = np.allclose(d.astype(np.float64), exact, rtol=2**-8, atol=1e-3)
    print("D agrees with NumPy" if right else "D DIFFERS from NumPy")


if __name__ == "__main__":
    main()
