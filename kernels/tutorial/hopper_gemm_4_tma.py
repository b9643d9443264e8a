"""Step 4: TMA copies whole tiles, mbarriers count their bytes.

One thread asks the tensor memory accelerator (TMA) for a box of A and one of B. TMA computes
addresses, applies the swizzle and checks bounds. One mbarrier per stage, `full`, completes when the
bytes have landed. TMA fills elements outside an array with zeros, so M, N and K may be any numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BN, BK = 128, 128, 64
STAGES = 3
WARPGROUPS = BM // 64
THREADS = 128 * WARPGROUPS
STAGE_BYTES = (BM + BN) * BK * 2


@tc.kernel(threads=THREADS, min_blocks=2)
def matmul(a: tc.Array, b: tc.Array, d: tc.Array):
    mma = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((STAGES, WARPGROUPS, 64, BK), tc.bf16, swizzle=128)
    tile_b = tc.shared((STAGES, BN, BK), tc.bf16, swizzle=128)
    # The host encodes the two tensor maps (address, extents, strides, box, swizzle) at the launch.
    map_a = tc.tensor_map(a, (BM, BK), swizzle=128)
    map_b = tc.tensor_map(b, (BN, BK), swizzle=128)
    full = tc.mbarriers(STAGES)
    m, n = tc.blockIdx.y * BM, tc.blockIdx.x * BN
    warpgroup = tc.warpgroup_id()
    acc = mma.d.zeros()
    k_tiles = (a.shape[1] + BK - 1) // BK

    def load_stage(k_tile):
        """Ask for one slice of K; one thread does it."""
        barrier = full[k_tile % STAGES]
        # The barrier counts this arrival only. The arrival also announces the bytes to come: the
        # phase ends when the arrival and all bytes are there. Boxes that lie partly outside the
        # array count with their full size, because TMA writes zeros, too.
        barrier.arrive_expect_tx(STAGE_BYTES)
        tc.tma_load(tile_a[k_tile % STAGES], map_a, (m, k_tile * BK), barrier)
        tc.tma_load(tile_b[k_tile % STAGES], map_b, (n, k_tile * BK), barrier)

    if tc.threadIdx.x == 0:
        for stage in tc.static_range(STAGES):
            full[stage].init(1)
        # Initialised barriers must be visible to TMA (this fence) and to all threads (the barrier
        # below) before anybody uses them.
        tc.fence_mbarrier_init()
        for k_tile in tc.static_range(STAGES):
            if k_tile < k_tiles:
                load_stage(k_tile)
    tc.barrier()

    for k_tile in range(k_tiles):
        stage = k_tile % STAGES
        # A barrier's phases are numbered 0, 1, 2, ... and a wait names the parity of the phase that
        # must end. Filling r of a stage, counted from 0, is phase r, and r is k_tile // STAGES.
        full[stage].wait(k_tile // STAGES & 1)
        # No fence: TMA writes by the asynchronous proxy, by which wgmma reads, and the wait on the
        # mbarrier orders the two.
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, tile_a[stage, warpgroup], tile_b[stage])
        tc.wgmma_commit()
        tc.wgmma_wait(0)
        # The stage may be filled again when both warpgroups have read it.
        tc.barrier()
        if (tc.threadIdx.x == 0) & (k_tile + STAGES < k_tiles):
            load_stage(k_tile + STAGES)
    store_tile(acc, d, m + 64 * warpgroup, n)


def store_tile(acc, d, m, n):
    """Store pairs of accumulators that lie inside D."""
    M, N = d.shape
    for slot in tc.static_range(0, len(acc), 2):
        row, col = m + acc.coordinates(slot)[0], n + acc.coordinates(slot)[1]
        pair = [acc[slot].to(d.dtype), acc[slot + 1].to(d.dtype)]
        d.at(row, col).store(pair, pred=(row < M) & (col < N))


def gemm(a: Any, b: Any, d: Any, kernel: Any = matmul) -> Any:
    """Launch D = A B; `kernel` may also be `matmul.emulator(profile=True)`, which reports."""
    (M, K), N = a.shape, b.shape[0]
    if K % 8 or N % 2:
        raise tc.ArgumentError(
            f"K must be a multiple of 8 (TMA reads rows that start at multiples of 16 bytes), and "
            f"N of 2 (threads store pairs); they are {K} and {N}"
        )
    return kernel[(-(-N // BN), -(-M // BM)), THREADS](a, b, d)


def main() -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((200, 328)).astype(tc.bf16.numpy) for _ in range(2))
    d = np.zeros((200, 200), tc.bf16.numpy)
    gemm(a, b, d)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    right = np.allclose(d.astype(np.float64), exact, rtol=2**-8, atol=1e-3)
    print("D agrees with NumPy" if right else "D DIFFERS from NumPy")


if __name__ == "__main__":
    main()
