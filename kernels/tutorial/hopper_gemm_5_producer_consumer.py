"""Step 5: a producer warpgroup and a pipeline of stages with full and empty barriers.

One warpgroup only loads (the producer), two only multiply (the consumers), each at its own pace.
A stage has two mbarriers: `full` tells the consumers that its tiles have landed, `empty` tells the
producer that both consumers have read them. The loop has no barrier of the whole CTA. The tile grows
to 128 x 256, so that fewer bytes per product come from the L2 cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BN, BK = 128, 256, 64
STAGES = 4  # 4 * 48 KiB: one CTA per SM
CONSUMERS = BM // 64
THREADS = 128 * (1 + CONSUMERS)
STAGE_BYTES = (BM + BN) * BK * 2


@tc.kernel(threads=THREADS, min_blocks=1)
def matmul(a: tc.Array, b: tc.Array, d: tc.Array):
    mma = tc.wgmma.m64n256k16(tc.bf16, tc.bf16, tc.f32)  # 128 accumulators per thread
    tile_a = tc.shared((STAGES, CONSUMERS, 64, BK), tc.bf16, swizzle=128)
    tile_b = tc.shared((STAGES, BN, BK), tc.bf16, swizzle=128)
    map_a = tc.tensor_map(a, (BM, BK), swizzle=128)
    map_b = tc.tensor_map(b, (BN, BK), swizzle=128)
    full, empty = tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    m, n = tc.blockIdx.y * BM, tc.blockIdx.x * BN
    K = a.shape[1]

    if tc.threadIdx.x == 0:
        for stage in tc.static_range(STAGES):
            full[stage].init(1)  # the producer's arrival, and the bytes that it announces
            empty[stage].init(CONSUMERS)  # one arrival per consumer warpgroup
        tc.fence_mbarrier_init()
    tc.barrier()

    def produce():
        if tc.threadIdx.x == 0:
            # A wait for parity p returns unless the barrier is in a phase of parity p. A new
            # barrier is in phase 0, so a wait for parity 1 returns at once: all stages start out
            # empty. In the next round the producer waits for parity 0, the consumers' first
            # release, and so on.
            stage, phase = tc.u32(0), tc.u32(1)
            for k in range(0, K, BK):
                empty[stage].wait(phase)
                full[stage].arrive_expect_tx(STAGE_BYTES)
                tc.tma_load(tile_a[stage], map_a, (m, k), full[stage])
                tc.tma_load(tile_b[stage], map_b, (n, k), full[stage])
                stage, phase = advance(stage, phase)

    def consume(consumer):
        acc = mma.d.zeros()
        # The first filling of a stage is phase 0 of its full barrier.
        stage, phase = tc.u32(0), tc.u32(0)
        previous = stage
        for k in range(0, K, BK):
            full[stage].wait(phase)
            tc.wgmma_fence()
            # accumulate=False in the first k_tile computes A B instead of acc + A B, so that nobody
            # has to set 128 registers to zero.
            acc = tc.wgmma_async(mma, acc, tile_a[stage, consumer], tile_b[stage], accumulate=k > 0)
            tc.wgmma_commit()
            # One group stays in flight, so the tensor cores have work while this warpgroup waits
            # for the next stage. The wait proves that the group before has finished. Therefore the
            # stage of the previous k_tile is released, never this one.
            tc.wgmma_wait(1)
            empty[previous].arrive(pred=(tc.threadIdx.x % 128 == 0) & (k > 0))
            previous = stage
            stage, phase = advance(stage, phase)
        tc.wgmma_wait(0)
        store_tile(acc, d, m + 64 * consumer, n)

    tc.warp_specialize((1, produce), (CONSUMERS, consume))


def advance(stage, phase):
    """Advance to the next stage; the parity flips after the last one."""
    last = stage == STAGES - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)


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
    a, b = (draw.standard_normal((rows, 392)).astype(tc.bf16.numpy) for rows in (200, 400))
    d = np.zeros((200, 400), tc.bf16.numpy)
    gemm(a, b, d)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    right = np.allclose(d.astype(np.float64), exact, rtol=2**-8, atol=1e-3)
    print("D agrees with NumPy" if right else "D DIFFERS from NumPy")


if __name__ == "__main__":
    main()
