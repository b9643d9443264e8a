"""A product with tensor cores in a kernel of numba-cuda: c = a bᵀ under @cuda.jit, for Hopper.

Arrays   a (M, K), b (N, K), c (M, N), row-major, f16; sums are f32.
Sizes    M and N are multiples of 128, K of 32.

Numba compiles the kernel; tensorcore_dsl.numba adds the instructions that Numba lacks, as inline
PTX. A block has two warpgroups and 128 x 128 elements of c, of which each warpgroup has 64 rows in
registers. Tiles of 128 x 32 of a and b go to shared memory by cp.async, through a ring of three
stages: 48 KiB, all that a kernel of Numba can have. wgmma multiplies them where they lie.

Without a swizzle wgmma reads core matrices, of 8 rows by 16 bytes: 128 bytes in one piece. A tile
is an array (rows / 8, K / 8, 8, 8) of them; core matrices are 128 bytes apart along K and 512 along
the rows. docs/numba.md leads here from one warp and one instruction.

    python examples/numba_matmul.py --m 256 --n 384 --k 160

runs on a Hopper GPU and prints the largest error; elsewhere it only compiles, as kernels of Numba
are not emulated.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types

from tensorcore_dsl import ArgumentError, f16, f32

from tensorcore_dsl.numba import (  # isort: skip
    cp_async,
    cp_async_commit,
    cp_async_wait,
    fence_proxy_async,
    store_elements,
    wgmma,
    wgmma_commit,
    wgmma_descriptor,
    wgmma_fence,
    wgmma_wait,
    zeros,
)

TILE, DEPTH = 128, 32  # rows of a tile of a, of b; elements along K
STAGES = 3
PENDING = STAGES - 2  # groups of copies that may be under way when a step begins
THREADS = 256
BOUNDS = THREADS, 2  # two blocks on a multiprocessor: at most 128 registers
CHUNK = 8  # elements of 16 bytes, the widest copy
ROWS = THREADS * CHUNK // DEPTH  # of a tile, that all threads copy at once
RING = STAGES, TILE // 8, DEPTH // 8, 8, 8  # tiles as core matrices
ALONG_K, ALONG_ROWS = 128, 128 * DEPTH // 8  # bytes from one core matrix to the next
ARGUMENTS = types.float16[:, ::1], types.float16[:, ::1], types.float16[:, ::1]

product = wgmma.m64n128k16(f16, f16, f32)
store_c, ZERO = store_elements(product.d), zeros(product.c)


@cuda.jit(launch_bounds=BOUNDS)
def matmul(a, b, c):
    """Grid: (M / 128, N / 128), 256 threads."""
    tile_a = cuda.shared.array(RING, np.float16, 128)
    tile_b = cuda.shared.array(RING, np.float16, 128)
    thread = cuda.threadIdx.x
    group = thread // 128
    # A warp copies 8 rows of 64 bytes: eight lanes fill a core matrix, so no banks conflict.
    r, j = thread // 32 * 8 + thread % 8, thread % 32 // 8
    row, col = TILE * cuda.blockIdx.x, TILE * cuda.blockIdx.y
    steps = a.shape[1] // DEPTH
    acc = ZERO
    # Copies run STAGES - 1 steps ahead of products; the first rounds only copy.
    for ahead in range(steps + STAGES - 1):
        step = ahead - (STAGES - 1)
        # Of the groups of copies under way all but the newest have arrived: this thread's copies.
        cp_async_wait(PENDING)
        # cp.async writes by the generic proxy, wgmma reads by the asynchronous one.
        fence_proxy_async()
        # The copies of all threads have arrived, so the stage of this step can be read. All have
        # waited for the products of the step before, so the stage of that one can be overwritten.
        cuda.syncthreads()
        if step >= 0:
            acc = wgmma_fence(acc)
            stage = step % STAGES
            for k in range(0, DEPTH // 8, 2):  # two core matrices: 16 along K
                place_a, place_b = (stage, 8 * group, k, 0, 0), (stage, 0, k, 0, 0)
                rows_a = wgmma_descriptor((tile_a, place_a), ALONG_K, ALONG_ROWS)
                rows_b = wgmma_descriptor((tile_b, place_b), ALONG_K, ALONG_ROWS)
                acc = product(acc, rows_a, rows_b, True)
            wgmma_commit()
        # While the tensor cores work, into the stage that the step before has read:
        if ahead < steps:
            k = ahead * DEPTH + CHUNK * j
            for part in range(0, TILE, ROWS):
                core = ahead % STAGES, (part + r) // 8, j, r % 8, 0
                cp_async(tile_a, core, a, (row + part + r, k), 16)
                cp_async(tile_b, core, b, (col + part + r, k), 16)
        cp_async_commit()  # one group a round, be it empty
        acc = wgmma_wait(0, acc)
    store_c(c, row + 64 * group, col, thread % 128, acc)


def check(a: Any, b: Any) -> None:
    """Raises ArgumentError for shapes and types that the kernel does not have."""
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[1]:
        raise ArgumentError(f"a is (M, K) and b (N, K); they are {a.shape} and {b.shape}")
    (m, k), n = a.shape, b.shape[0]
    if m % TILE or n % TILE or k % DEPTH or not m * n * k:
        raise ArgumentError(
            f"M and N must be multiples of {TILE} and K of {DEPTH}; they are {m}, {n} and {k}"
        )
    if a.dtype != np.float16 or b.dtype != np.float16:
        raise ArgumentError(f"a and b must be float16; they are {a.dtype} and {b.dtype}")


def product_of(a: Any, b: Any) -> Any:
    """c = a bᵀ of NumPy arrays, on the current GPU, which must be a Hopper one."""
    check(a, b)
    c = cuda.device_array((a.shape[0], b.shape[0]), np.float16)
    grid = a.shape[0] // TILE, b.shape[0] // TILE
    matmul[grid, THREADS](*(cuda.to_device(np.ascontiguousarray(x)) for x in (a, b)), c)
    return c.copy_to_host()


def reference(a: Any, b: Any) -> tuple[Any, Any]:
    """Compute the result in float64, and a bound of the error of each element.

    Tensor cores truncate the terms of a sum 2⁻²² below the largest, so a sum of K products is off
    by K 2⁻²² times that of their magnitudes; the result is rounded once, by 2⁻¹¹, or 2⁻²⁵ where
    it is subnormal.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    exact = a @ b.T
    bound = a.shape[1] * 2.0**-22 * (abs(a) @ abs(b).T) + 2.0**-11 * abs(exact) + 2.0**-25
    return exact, 1.01 * bound


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A product under @cuda.jit, beside NumPy.")
    parser.add_argument("--m", type=int, default=256, help="rows of a (default: %(default)s)")
    parser.add_argument("--n", type=int, default=384, help="rows of b (default: %(default)s)")
    parser.add_argument("--k", type=int, default=160, help="columns (default: %(default)s)")
    options = parser.parse_args(arguments)

    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((n, options.k)).astype(np.float16) for n in (options.m, options.n))
    check(a, b)
    if not cuda.is_available() or cuda.get_current_device().compute_capability != (9, 0):
        ptx, _ = cuda.compile_ptx(matmul.py_func, ARGUMENTS, cc=(9, 0, "a"))
        print(f"compiled for sm_90a, {ptx.count('wgmma.mma_async')} wgmma; there is no Hopper GPU")
        return
    exact, bound = reference(a, b)
    error = abs(product_of(a, b).astype(np.float64) - exact)
    share = (error / bound).max()
    print(f"ran on the GPU; largest error {error.max():.2e}, {share:.2f} of its bound")
    if not (error <= bound).all():
        raise SystemExit("c DIFFERS from NumPy")


if __name__ == "__main__":
    main()
