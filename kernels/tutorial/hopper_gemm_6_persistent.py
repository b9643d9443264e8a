"""Step 6: persistent CTAs, a tile scheduler, and an epilogue by TMA stores.

One CTA per SM takes one tile of D after the other. The pipeline runs on from tile to tile: while
the consumers store a tile, the producer loads the next one. The scheduler orders tiles so that
resident CTAs read the same rows of A and B from the L2 cache. The epilogue stages results in shared
memory, so that TMA writes whole rows of 128 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BN, BK = 128, 256, 64
STAGES = 4
GROUP_M = 8  # rows of tiles that go through the columns of D together
CONSUMERS = BM // 64
THREADS = 128 * (1 + CONSUMERS)
STAGE_BYTES = (BM + BN) * BK * 2
EPI_N = 64  # columns of a staging buffer: rows of 128 bytes, one swizzle wide


@tc.kernel(threads=THREADS, min_blocks=1)
def matmul(a: tc.Array, b: tc.Array, d: tc.Array):
    mma = tc.wgmma.m64n256k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((STAGES, CONSUMERS, 64, BK), tc.bf16, swizzle=128)
    tile_b = tc.shared((STAGES, BN, BK), tc.bf16, swizzle=128)
    staging = tc.shared((CONSUMERS, 2, 64, EPI_N), tc.bf16, swizzle=128)
    map_a = tc.tensor_map(a, (BM, BK), swizzle=128)
    map_b = tc.tensor_map(b, (BN, BK), swizzle=128)
    map_d = tc.tensor_map(d, (64, EPI_N), swizzle=128)
    full, empty = tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    (M, N), K = d.shape, a.shape[1]
    tiles_m, tiles_n = (M + BM - 1) // BM, (N + BN - 1) // BN

    if tc.threadIdx.x == 0:
        for stage in tc.static_range(STAGES):
            full[stage].init(1)
            empty[stage].init(CONSUMERS)
        tc.fence_mbarrier_init()
    tc.barrier()

    def tiles():
        """Static schedule: CTA i of n takes tiles i, i + n, i + 2 n, ..."""
        return tc.range(tc.blockIdx.x, tiles_m * tiles_n, tc.gridDim.x)

    def tile_coord(tile):
        """First row and column of a tile. GROUP_M rows of tiles go column by column, then the next
        GROUP_M rows: 132 tiles in flight need about 8 tiles of A and 17 of B, not 1 and 132. Triton
        calls this GROUP_SIZE_M."""
        group = tile // (GROUP_M * tiles_n)
        height = min(tiles_m - group * GROUP_M, GROUP_M)  # the last group may be lower
        inside = tile % (GROUP_M * tiles_n)
        return (group * GROUP_M + inside % height) * BM, inside // height * BN

    def produce():
        if tc.threadIdx.x == 0:
            # Stage and phase live outside the loop over tiles: the pipeline never starts anew.
            stage, phase = tc.u32(0), tc.u32(1)
            for tile in tiles():
                m, n = tile_coord(tile)
                for k in range(0, K, BK):
                    empty[stage].wait(phase)
                    full[stage].arrive_expect_tx(STAGE_BYTES)
                    tc.tma_load(tile_a[stage], map_a, (m, k), full[stage])
                    tc.tma_load(tile_b[stage], map_b, (n, k), full[stage])
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
                empty[previous].arrive(pred=(thread == 0) & (k > 0))
                previous = stage
                stage, phase = advance(stage, phase)
            tc.wgmma_wait(0)
            # The last stage of the tile is released, too, before the epilogue: the producer needs
            # it for the next tile.
            empty[previous].arrive(pred=thread == 0)
            store_tile(acc, staging, consumer, map_d, m + 64 * consumer, n)
        # Shared memory must live until TMA has read the last buffers.
        tc.tma_store_wait(0, read=True)

    tc.warp_specialize((1, produce), (CONSUMERS, consume))


def advance(stage, phase):
    """Advance to the next stage; the parity flips after the last one."""
    last = stage == STAGES - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)


def store_tile(acc, staging, consumer, map_d, m, n):
    """Epilogue: 64 columns at a time through one of two buffers; TMA clips at the edges of D."""
    thread, elements = tc.threadIdx.x % 128, acc.elements()
    # One stmatrix stores four 8 x 8 matrices, here 16 columns of the warp's 16 rows. Lane l gives
    # the address of a row: matrices 0 and 1 are the left 8 columns, 2 and 3 the right ones.
    row, col = tc.warp_id() % 4 * 16 + tc.lane_id() % 16, tc.lane_id() // 16 * 8
    for part in tc.static_range(BN // EPI_N):
        buffer = staging[consumer, part % 2]
        if thread == 0:  # it has issued all stores; the one before last has read this buffer
            tc.tma_store_wait(1, read=True)
        tc.barrier(consumer + 1, 128)  # named barrier of this warpgroup; 0 belongs to the CTA
        for i in tc.static_range(0, EPI_N, 16):
            first = (part * EPI_N + i) // 2  # a thread holds 8 of the warp's 16 x 16 elements
            # cvt packs two values into a word; its first operand becomes the upper half.
            words = [
                tc.emit("cvt.rn.bf16x2.f32", elements[first + j + 1], elements[first + j])
                for j in range(0, 8, 2)
            ]
            address = buffer.at(row, i + col).address
            tc.emit("stmatrix.sync.aligned.m8n8.x4.shared.b16", address, words)
        tc.fence_proxy_async()  # stmatrix writes by the generic proxy, TMA reads by the other
        tc.barrier(consumer + 1, 128)
        if thread == 0:
            tc.tma_store(map_d, (m, n + part * EPI_N), buffer)
            tc.tma_store_commit()


def gemm(a: Any, b: Any, d: Any, kernel: Any = matmul, ctas: int = 132) -> Any:
    """Launch D = A B on `ctas` CTAs, one per SM of an H200."""
    (M, K), N = a.shape, b.shape[0]
    if K % 8 or N % 8:
        raise tc.ArgumentError(f"K and N must be multiples of 8 (16 bytes); they are {K} and {N}")
    return kernel[min(ctas, -(-M // BM) * -(-N // BN)), THREADS](a, b, d)


def main() -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((rows, 392)).astype(tc.bf16.numpy) for rows in (200, 400))
    d = np.zeros((200, 400), tc.bf16.numpy)
    gemm(a, b, d, ctas=2)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    right = np.allclose(d.astype(np.float64), exact, rtol=2**-8, atol=1e-3)
    print("D agrees with NumPy" if right else "D DIFFERS from NumPy")


if __name__ == "__main__":
    main()
