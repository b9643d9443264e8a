"""Step 8: ping-pong consumers with reallocated registers: the design that `kernels.gemm` runs.

Each consumer computes whole tiles of 128 rows, alternately: one stores its tile while the other
multiplies, so the tensor cores never wait for an epilogue. An order barrier lets one mainloop run
at a time. The producer releases registers (setmaxnreg), because a consumer's thread holds up to 192
accumulators. Programmatic dependent launch hides the setup behind the previous kernel's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BK = 128, 64
WIDE = 8192 * 8192  # from so many elements of D on, tiles of 192 columns pay
GROUP_M = 8  # rows of clusters' tiles that go through the columns of D together
CLUSTER = 2  # CTAs, one below the other
MULTICAST_MASK = (1 << CLUSTER) - 1  # bit r: the CTA of rank r receives the box
CONSUMERS = 2
THREADS = 128 * (1 + CONSUMERS)
# Registers per thread of the producer and of a consumer: 24 + 2 * 240 is 3 * 168, what the CTA is
# launched with (65536 / 384, rounded down to a multiple of 8).
REGISTERS = (24, 240)
EPI_N = 64  # columns of a staging buffer: rows of 128 bytes, one swizzle wide


@tc.kernel(threads=THREADS, min_blocks=1)
def matmul(a: tc.Array, b: tc.Array, d: tc.Array, BN: tc.Const = 128, STAGES: tc.Const = 6):
    tc.cluster_size(CLUSTER)
    rank = tc.cluster_rank()
    mma = getattr(tc.wgmma, f"m64n{BN}k16")(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((STAGES, BM // 64, 64, BK), tc.bf16, swizzle=128)
    tile_b = tc.shared((STAGES, BN, BK), tc.bf16, swizzle=128)
    staging = tc.shared((CONSUMERS, 2, 64, EPI_N), tc.bf16, swizzle=128)
    map_a = tc.tensor_map(a, (BM, BK), swizzle=128)
    map_b = tc.tensor_map(b, (BN // CLUSTER, BK), swizzle=128)
    map_d = tc.tensor_map(d, (64, EPI_N), swizzle=128)
    full, empty, order = tc.mbarriers(STAGES), tc.mbarriers(STAGES), tc.mbarriers(CONSUMERS)
    (M, N), k_tiles = d.shape, (a.shape[1] + BK - 1) // BK
    # In units of what a cluster computes: 256 x BN.
    tiles_m, tiles_n = (M + CLUSTER * BM - 1) // (CLUSTER * BM), (N + BN - 1) // BN

    if tc.threadIdx.x == 0:
        for stage in tc.static_range(STAGES):
            full[stage].init(1)
            empty[stage].init(CLUSTER)  # one consumer of each CTA reads a stage
        for consumer in tc.static_range(CONSUMERS):
            order[consumer].init(1)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    # Programmatic dependent launch: all above may run while the previous kernel of the stream ends.
    # Its results are visible after this wait; the next kernel may start its setup from here on.
    tc.griddep_wait()
    tc.griddep_launch_dependents()

    def tiles(first=0, every=1):
        """Static schedule of step 7: tiles `first`, `first + every`, ... of the cluster."""
        clusters = tc.gridDim.x // CLUSTER
        start = tc.blockIdx.x // CLUSTER + first * clusters
        return tc.range(start, tiles_m * tiles_n, every * clusters)

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
                for k_tile in range(k_tiles):
                    k = k_tile * BK
                    empty[stage].wait(phase)
                    full[stage].arrive_expect_tx((BM + BN) * BK * 2)
                    tc.tma_load(tile_a[stage], map_a, (m, k), full[stage])
                    part = tile_b[stage, half : half + BN // CLUSTER]
                    tc.tma_load(part, map_b, (n + half, k), full[stage], multicast=MULTICAST_MASK)
                    stage, phase = advance(stage, phase, STAGES)

    def consume(consumer):
        acc = [mma.d.zeros() for _ in range(BM // 64)]  # 64 x BN each
        thread = tc.threadIdx.x % 128
        # Consumer 1 starts with the second tile, whose stages are `k_tiles` further on.
        stage, phase = advance_by(tc.u32(0), tc.u32(0), consumer * k_tiles, STAGES)
        # Consumer 0 waits for parity 1, which a new barrier grants at once; consumer 1 for parity
        # 0, which consumer 0's first arrival completes. Then they alternate.
        turn = tc.u32(1 - consumer)
        for tile in tiles(consumer, CONSUMERS):
            m, n = tile_coord(tile)
            # A wait sees the parity of a phase, not its number: a full barrier two fillings behind
            # looks like the right one. So a consumer must not wait a revolution of stages ahead.
            # The order barrier prevents it: this mainloop starts when the other one has ended.
            order[consumer].wait(turn)
            previous = stage
            for k_tile in range(k_tiles):
                full[stage].wait(phase)
                tc.wgmma_fence()
                for i in tc.static_range(BM // 64):
                    acc[i] = tc.wgmma_async(
                        mma, acc[i], tile_a[stage, i], tile_b[stage], accumulate=k_tile > 0
                    )
                tc.wgmma_commit()
                tc.wgmma_wait(1)
                release(empty[previous], (thread < CLUSTER) & (k_tile > 0))
                previous = stage
                stage, phase = advance(stage, phase, STAGES)
            # All waits for full stages are done, the last wgmma still runs: the other may start.
            order[1 - consumer].arrive(pred=thread == 0)
            tc.wgmma_wait(0)
            release(empty[previous], thread < CLUSTER)
            for i in tc.static_range(BM // 64):
                store_tile(acc[i], staging, consumer, map_d, m + 64 * i, n)
            stage, phase = advance_by(stage, phase, k_tiles, STAGES)  # over the other's tile
            turn = turn ^ 1
        tc.tma_store_wait(0, read=True)

    tc.warp_specialize((1, produce), (CONSUMERS, consume), registers=REGISTERS)
    # A CTA that has ended must not be multicast to, nor be arrived at: both wait for each other.
    tc.cluster_sync()


def release(empty, pred):
    """Thread r of a consumer arrives at the empty barrier of the CTA of rank r, its own or not."""
    empty.remote(tc.threadIdx.x % 128).arrive(pred=pred)


def advance(stage, phase, stages):
    """Advance to the next stage; the parity flips after the last one."""
    last = stage == stages - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)


def advance_by(stage, phase, k_tiles, stages):
    """Advance by `k_tiles` stages: the parity flips once for each revolution."""
    position = stage + tc.u32(k_tiles)
    return position % stages, phase ^ (position // stages & 1)


def store_tile(acc, staging, consumer, map_d, m, n):
    """Epilogue of 64 rows, as in step 6."""
    thread, elements = tc.threadIdx.x % 128, acc.elements()
    row, col = tc.warp_id() % 4 * 16 + tc.lane_id() % 16, tc.lane_id() // 16 * 8
    parts = 2 * len(elements) // EPI_N
    for part in tc.static_range(parts):
        buffer = staging[consumer, part % 2]
        if thread == 0:  # an odd number of parts ends in the buffer that the next rows start with
            tc.tma_store_wait(0 if part == 0 and parts % 2 else 1, read=True)
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


def gemm(a: Any, b: Any, d: Any, kernel: Any = matmul, ctas: int = 132, wide: Any = None) -> Any:
    """Launch D = A B on `ctas` CTAs; wide: tiles of 192 columns (default: if D is large)."""
    (M, K), N = a.shape, b.shape[0]
    if K % 8 or N % 8:
        raise tc.ArgumentError(f"K and N must be multiples of 8 (16 bytes); they are {K} and {N}")
    BN, STAGES = (192, 4) if (M * N >= WIDE if wide is None else wide) else (128, 6)
    grid = CLUSTER * min(ctas // CLUSTER, -(-M // (CLUSTER * BM)) * -(-N // BN))
    launch = kernel[grid, THREADS]
    if kernel is matmul:
        launch = matmul.configured(grid, THREADS, pdl=True)
    return launch(a, b, d, BN=BN, STAGES=STAGES)


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
