"""Step 7: clusters of two CTAs that share B by multicast.

The two CTAs of a cluster compute tiles below each other, so both need the same tile of B. Each CTA
loads one half of it, and TMA writes that half into the shared memory of both. A CTA then reads
32 KiB instead of 48 KiB per stage from the L2 cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BN, BK = 128, 256, 64
STAGES = 4
GROUP_M = 8  # rows of clusters' tiles that go through the columns of D together
CLUSTER = 2  # CTAs, one below the other
MULTICAST_MASK = (1 << CLUSTER) - 1  # bit r: the CTA of rank r receives the box
CONSUMERS = BM // 64
THREADS = 128 * (1 + CONSUMERS)
STAGE_BYTES = (BM + BN) * BK * 2  # bytes that land in one CTA, from both producers
EPI_N = 64  # columns of a staging buffer: rows of 128 bytes, one swizzle wide


@tc.kernel(threads=THREADS, min_blocks=1)
def matmul(a: tc.Array, b: tc.Array, d: tc.Array):
    tc.cluster_size(CLUSTER)
    rank = tc.cluster_rank()
    mma = tc.wgmma.m64n256k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((STAGES, CONSUMERS, 64, BK), tc.bf16, swizzle=128)
    tile_b = tc.shared((STAGES, BN, BK), tc.bf16, swizzle=128)
    staging = tc.shared((CONSUMERS, 2, 64, EPI_N), tc.bf16, swizzle=128)
    map_a = tc.tensor_map(a, (BM, BK), swizzle=128)
    map_b = tc.tensor_map(b, (BN // CLUSTER, BK), swizzle=128)
    map_d = tc.tensor_map(d, (64, EPI_N), swizzle=128)
    full, empty = tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    (M, N), K = d.shape, a.shape[1]
    # In units of what a cluster computes: 256 x 256.
    tiles_m, tiles_n = (M + CLUSTER * BM - 1) // (CLUSTER * BM), (N + BN - 1) // BN

    if tc.threadIdx.x == 0:
        for stage in tc.static_range(STAGES):
            full[stage].init(1)
            # A stage is empty when the consumers of both CTAs have read it, because this CTA's
            # half of B goes into both.
            empty[stage].init(CONSUMERS * CLUSTER)
        tc.fence_mbarrier_init()
    # No CTA may multicast or arrive before its peer has initialised the barriers.
    tc.cluster_sync()

    def tiles():
        """Static schedule: cluster i of n takes tiles i, i + n, i + 2 n, ..."""
        return tc.range(tc.blockIdx.x // CLUSTER, tiles_m * tiles_n, tc.gridDim.x // CLUSTER)

    def tile_coord(tile):
        """First row and column of this CTA's part of a cluster's tile, rasterised as in step 6."""
        group = tile // (GROUP_M * tiles_n)
        height = min(tiles_m - group * GROUP_M, GROUP_M)  # the last group may be lower
        inside = tile % (GROUP_M * tiles_n)
        row = group * GROUP_M + inside % height
        return (row * CLUSTER + rank) * BM, inside // height * BN

    def produce():
        half = rank * (BN // CLUSTER)  # the rows of this CTA's half in the tile of B
        if tc.threadIdx.x == 0:
            stage, phase = tc.u32(0), tc.u32(1)
            for tile in tiles():
                m, n = tile_coord(tile)
                for k in range(0, K, BK):
                    empty[stage].wait(phase)
                    full[stage].arrive_expect_tx(STAGE_BYTES)
                    tc.tma_load(tile_a[stage], map_a, (m, k), full[stage])
                    # The box lands at the same offset in both CTAs, and the full barrier of each
                    # counts its bytes. They may land in the peer before that has announced them:
                    # its phase cannot end without its own arrival, so nothing is lost.
                    part = tile_b[stage, half : half + BN // CLUSTER]
                    tc.tma_load(part, map_b, (n + half, k), full[stage], multicast=MULTICAST_MASK)
                    stage, phase = advance(stage, phase)

    def consume(consumer):
        acc = mma.d.zeros()
        thread = tc.threadIdx.x % 128
        stage, phase = tc.u32(0), tc.u32(0)
        previous = stage
        for tile in tiles():
            m, n = tile_coord(tile)
            for k in range(0, K, BK):
                full[stage].wait(phase)
                tc.wgmma_fence()
                acc = tc.wgmma_async(mma, acc, tile_a[stage, consumer], tile_b[stage], accumulate=k > 0)
                tc.wgmma_commit()
                tc.wgmma_wait(1)
                release(empty[previous], (thread < CLUSTER) & (k > 0))
                previous = stage
                stage, phase = advance(stage, phase)
            tc.wgmma_wait(0)
            release(empty[previous], thread < CLUSTER)
            store_tile(acc, staging, consumer, map_d, m + 64 * consumer, n)
        # Shared memory must live until TMA has read the last buffers.
        tc.tma_store_wait(0, read=True)

    tc.warp_specialize((1, produce), (CONSUMERS, consume))
    # A CTA that has ended must not be multicast to, nor be arrived at: both wait for each other.
    tc.cluster_sync()


def release(empty, pred):
    """Thread r of a consumer arrives at the empty barrier of the CTA of rank r, its own or not."""
    empty.remote(tc.threadIdx.x % 128).arrive(pred=pred)


def advance(stage, phase):
    """Advance to the next stage; the parity flips after the last one."""
    last = stage == STAGES - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)


def store_tile(acc, staging, consumer, map_d, m, n):
    """Epilogue of 64 rows, as in step 6."""
    thread, elements = tc.threadIdx.x % 128, acc.elements()
    row, col = tc.warp_id() % 4 * 16 + tc.lane_id() % 16, tc.lane_id() // 16 * 8
    for part in tc.static_range(BN // EPI_N):
        buffer = staging[consumer, part % 2]
        if thread == 0:
            tc.tma_store_wait(1, read=True)
        tc.barrier(consumer + 1, 128)
        for i in tc.static_range(0, EPI_N, 16):
            first = (part * EPI_N + i) // 2
            words = [
                tc.emit("cvt.rn.bf16x2.f32", elements[first + j + 1], elements[first + j])
                for j in range(0, 8, 2)
            ]
            address = buffer.at(row, i + col).address
            tc.emit("stmatrix.sync.aligned.m8n8.x4.shared.b16", address, words)
        tc.fence_proxy_async()
        tc.barrier(consumer + 1, 128)
        if thread == 0:
            tc.tma_store(map_d, (m, n + part * EPI_N), buffer)
            tc.tma_store_commit()


def gemm(a: Any, b: Any, d: Any, kernel: Any = matmul, ctas: int = 132) -> Any:
    """Launch D = A B on `ctas` CTAs, one per SM of an H200."""
    (M, K), N = a.shape, b.shape[0]
    if K % 8 or N % 8:
        raise tc.ArgumentError(f"K and N must be multiples of 8 (16 bytes); they are {K} and {N}")
    tiles = -(-M // (CLUSTER * BM)) * -(-N // BN)
    return kernel[CLUSTER * min(ctas // CLUSTER, tiles), THREADS](a, b, d)


def main() -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((rows, 392)).astype(tc.bf16.numpy) for rows in (400, 400))
    d = np.zeros((400, 400), tc.bf16.numpy)
    gemm(a, b, d, ctas=2)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    right = np.allclose(d.astype(np.float64), exact, rtol=2**-8, atol=1e-3)
    print("D agrees with NumPy" if right else "D DIFFERS from NumPy")


if __name__ == "__main__":
    main()
