"""Step 1: one tile of D per CTA, synchronous loads, mma.sync.

D = A B with A as M x K and B as N x K, both row-major (K contiguous), bf16 with f32 accumulation.
The CTA walks along K. All threads copy a slice of A and of B through registers into shared memory, wait
for each other, multiply, and wait again. Nothing overlaps: tensor cores idle during copies, and no
copy runs during products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BN, BK = 128, 128, 32  # tile of D per CTA, and its depth along K
WM, WN = 64, 64  # part of the tile that one warp computes
THREADS = 32 * (BM // WM) * (BN // WN)
VECTOR = 8  # bf16 elements in 16 bytes, the widest load of a thread


@tc.kernel(threads=THREADS)
def matmul(a: tc.Array, b: tc.Array, d: tc.Array):
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tile_a = tc.shared((BM, BK), tc.bf16)
    tile_b = tc.shared((BN, BK), tc.bf16)
    m, n = tc.blockIdx.y * BM, tc.blockIdx.x * BN
    warp_m, warp_n = tc.warp_id() // (BN // WN) * WM, tc.warp_id() % (BN // WN) * WN

    # 4 x 8 fragments of 16 x 8 accumulators. One fragment is 4 registers in each of 32 threads, so
    # a thread holds 4 * 8 * 4 = 128 accumulators. The lists exist at compile time only.
    acc = [[mma.d.zeros() for _ in range(WN // 8)] for _ in range(WM // 16)]

    for k in range(0, a.shape[1], BK):
        load_tile(tile_a, a, m, k)
        load_tile(tile_b, b, n, k)
        # Read after write: a warp reads rows that other warps have stored.
        tc.barrier()
        mma_tile(mma, acc, tile_a[warp_m : warp_m + WM, :], tile_b[warp_n : warp_n + WN, :])
        # Write after read: nobody overwrites the tiles while a slower warp still reads them.
        tc.barrier()
    store_tile(acc, d, m + warp_m, n + warp_n)


def load_tile(tile, array, first_row, k):
    """Copy rows of 64 bytes; four neighbouring threads copy one row, 16 bytes each."""
    chunks = BK // VECTOR
    for i in tc.static_range(tile.shape[0] * chunks // THREADS):
        chunk = i * THREADS + tc.threadIdx.x
        row, col = chunk // chunks, chunk % chunks * VECTOR
        tile.at(row, col).store(array.at(first_row + row, k + col).load(VECTOR))


def mma_tile(mma, acc, tile_a, tile_b):
    """acc += A B for one slice of K. The tile of B is N x K; its transpose is the operand."""
    for k in tc.static_range(0, BK, 16):
        # ldmatrix reads eight rows of 16 bytes at a time. Rows of 64 bytes put rows 0, 2, 4 and 6
        # into the same banks, so eight rows take four passes. Step 2 removes these conflicts.
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
    a, b = (draw.standard_normal((256, 128)).astype(tc.bf16.numpy) for _ in range(2))
    d = np.zeros((256, 256), tc.bf16.numpy)
    gemm(a, b, d)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    right = np.allclose(d.astype(np.float64), exact, rtol=2**-8, atol=1e-3)
    print("D agrees with NumPy" if right else "D DIFFERS from NumPy")


if __name__ == "__main__":
    main()
