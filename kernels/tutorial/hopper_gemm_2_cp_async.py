"""Step 2: a pipeline of cp.async copies into swizzled shared memory.

`cp.async` copies from global to shared memory without registers and without waiting, so copies of
later slices of K run while the tensor cores work on the current one. Shared memory holds STAGES
slices. Rows have 128 bytes now and a 128-byte swizzle, so that ldmatrix reads without bank
conflicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BN, BK = 128, 128, 64  # BK of 64 bf16 is one row of 128 bytes, as wide as the swizzle
STAGES = 3  # 3 * 32 KiB: two CTAs fit into the 227 KiB of a SM
WM, WN = 64, 64
THREADS = 32 * (BM // WM) * (BN // WN)
VECTOR = 8


@tc.kernel(threads=THREADS, min_blocks=2)
def matmul(a: tc.Array, b: tc.Array, d: tc.Array):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    # The swizzle XORs the number of a 16-byte chunk (address bits 4-6) with the number of its row
    # modulo 8 (bits 7-9). Eight rows of one column of chunks then lie in eight different groups of
    # four banks. Views apply it by themselves; the code below does not mention it again.
    tile_a = tc.shared((STAGES, BM, BK), tc.bf16, swizzle=128)
    tile_b = tc.shared((STAGES, BN, BK), tc.bf16, swizzle=128)
    m, n = tc.blockIdx.y * BM, tc.blockIdx.x * BN
    warp_m, warp_n = tc.warp_id() // (BN // WN) * WM, tc.warp_id() % (BN // WN) * WN
    acc = [[mma.d.zeros() for _ in range(WN // 8)] for _ in range(WM // 16)]
    k_tiles = a.shape[1] // BK

    def load_stage(k_tile):
        """Start the copies of one slice of K, and close them as one group."""
        if k_tile < k_tiles:
            load_tile(tile_a, k_tile % STAGES, a, m, k_tile * BK)
            load_tile(tile_b, k_tile % STAGES, b, n, k_tile * BK)
        # Past the end of K the group is empty. It is committed all the same: `cp_async_wait`
        # counts groups, so group number i must always be the one of k_tile i.
        tc.cp_async_commit()

    for k_tile in tc.static_range(STAGES - 1):  # prologue: all stages but one are on their way
        load_stage(k_tile)
    for k_tile in range(k_tiles):
        # k_tile + STAGES - 1 groups were committed. At most STAGES - 2 may be pending, so group
        # `k_tile` has landed. The wait covers this thread's own copies only ...
        tc.cp_async_wait(STAGES - 2)
        # ... the barrier makes those of the other threads visible. It also proves that all warps
        # have finished k_tile - 1, whose stage the next copies overwrite: one barrier does both.
        tc.barrier()
        load_stage(k_tile + STAGES - 1)
        stage = k_tile % STAGES
        mma_tile(mma, acc, tile_a[stage, warp_m : warp_m + WM, :], tile_b[stage, warp_n : warp_n + WN, :])
    store_tile(acc, d, m + warp_m, n + warp_n)


def load_tile(tile, stage, array, first_row, k):
    """Copy rows of 128 bytes; eight neighbouring threads copy one row, 16 bytes each."""
    chunks = BK // VECTOR
    for i in tc.static_range(tile.shape[1] * chunks // THREADS):
        chunk = i * THREADS + tc.threadIdx.x
        row, col = chunk // chunks, chunk % chunks * VECTOR
        tc.cp_async(tile.at(stage, row, col), array.at(first_row + row, k + col), 16)


def mma_tile(mma, acc, tile_a, tile_b):
    """acc += A B for one slice of K. The tile of B is N x K; its transpose is the operand."""
    for k in tc.static_range(0, BK, 16):
        a = tc.ldmatrix(tile_a[:, k : k + 16], mma.a)
        b = tc.ldmatrix(tile_b[:, k : k + 16].T, mma.b)
        for i in tc.static_range(WM // 16):
            for j in tc.static_range(WN // 8):
                acc[i][j] = mma(a[i], b[j], acc[i][j])


def store_tile(acc, d, m, n):
    """Two neighbouring accumulators of a thread make one 4-byte store."""
    for i in tc.static_range(WM // 16):
        for j in tc.static_range(WN // 8):
            for slot in tc.static_range(0, 4, 2):
                row, col = acc[i][j].coordinates(slot)
                pair = [acc[i][j][slot].to(d.dtype), acc[i][j][slot + 1].to(d.dtype)]
                d.at(m + 16 * i + row, n + 8 * j + col).store(pair)


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
