"""Sum of an array in two stages, with the same bits in every run.

Arrays   x of f32, any shape, n elements; the result is a number of f32.

Stage 1: each of `blocks` blocks of 256 threads sums a part of x. A thread takes vectors of four
elements, a grid apart from each other, and has one sum for each of the four, so that no addition
waits for the one before. The sums of a thread, of a warp (by shuffles) and of the block's eight
warps (through shared memory) give one number, which the block stores. Stage 2: one block sums those
numbers by the same kernel; a second launch starts when the first has stored all of them. No
atomics: the order of additions follows from n and the number of blocks alone.

    python examples/reduction.py --size 100001

runs on the GPU if there is one, else in emulation, and prints the error.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tensorcore_dsl as tc

THREADS = 256
WARPS = THREADS // 32
VECTOR = 4  # f32 of 16 bytes, the widest load
BLOCKS = 4 * 132  # at most: a few for each multiprocessor of an H200


@tc.kernel(threads=THREADS)
def sum_kernel(x: tc.Array, sums: tc.Array):
    """sums[block] = the block's part of the sum; x starts at a multiple of 16 bytes."""
    partial = tc.shared(WARPS, tc.f32)
    vectors = x.shape[0] // VECTOR
    thread, threads = tc.blockIdx.x * THREADS + tc.threadIdx.x, tc.gridDim.x * THREADS

    columns = [tc.f32(0) for _ in range(VECTOR)]
    for i in tc.range(thread, vectors, threads):
        loaded = x.at(i * VECTOR).load(VECTOR)
        columns = [columns[j] + loaded[j] for j in range(VECTOR)]
    # What no whole vector covers, fewer than 4 elements: one each for threads of the first block.
    rest = vectors * VECTOR + thread
    if rest < x.shape[0]:
        columns[0] = columns[0] + x[rest]
    total = (columns[0] + columns[1]) + (columns[2] + columns[3])

    # Lane 0 has the sum of its warp after five steps.
    for distance in (16, 8, 4, 2, 1):
        total = total + tc.shfl_xor(total, distance)
    if tc.lane_id() == 0:
        partial[tc.warp_id()] = total
    # Read after write: thread 0 reads what lane 0 of every warp has stored.
    tc.barrier()
    if tc.threadIdx.x == 0:
        sums[tc.blockIdx.x] = sum([partial[i] for i in range(WARPS)])


def blocks_for(size: int) -> int:
    """Blocks of stage 1: each thread has a vector, until there are BLOCKS blocks."""
    return min(BLOCKS, -(-size // (THREADS * VECTOR)))


def array_sum(x: Any, kernel: Any = sum_kernel) -> Any:
    """The sum of a NumPy array of float32 of any shape, as np.float32; 0 if it has no elements.

    `kernel` may also be an emulator of it, `sum_kernel.emulator("sm_90a")`.
    Raises tc.ArgumentError for other types, and for sizes from 2³¹ on.
    """
    if x.dtype != np.float32 or x.size >= 2**31:
        raise tc.ArgumentError(
            f"x must be of float32 and have fewer than 2^31 elements; it is {x.dtype} {x.shape}"
        )
    x = np.ascontiguousarray(x).reshape(-1)
    if x.ctypes.data % 16:
        x = x.copy()
    result = np.zeros(1, np.float32)
    if x.size:
        partial = np.empty(blocks_for(x.size), np.float32)
        kernel[len(partial), THREADS](x, partial)
        kernel[1, THREADS](partial, result)
    return result[0]


def reference(x: Any) -> tuple[float, float]:
    """The sum in float64, and a bound of the error of `array_sum`.

    An element goes through at most `additions` additions, each of which has a relative error of
    2⁻²⁴: in each stage one for each vector of a thread, one for the rest, 2 for the four sums of a
    thread, 5 for its warp, and 8 for the warps of its block. 1.01: products of errors.
    """
    additions, size = 0, x.size
    for blocks in (blocks_for(size), 1):
        additions += -(-size // (THREADS * VECTOR * max(blocks, 1))) + 1 + 2 + 5 + WARPS
        size = blocks
    wide = x.astype(np.float64)
    return wide.sum(), 1.01 * additions * 2.0**-24 * abs(wide).sum()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A sum in two stages, compared with NumPy.")
    parser.add_argument("--size", type=int, default=50001, help="elements (default: %(default)s)")
    options = parser.parse_args(arguments)

    x = np.random.default_rng(0).standard_normal(options.size).astype(np.float32)
    exact, bound = reference(x)
    error = abs(float(array_sum(x)) - exact)
    where = "the GPU" if tc.current_target() == "cuda" else "the CPU, emulated"
    print(f"ran on {where}; largest error {error:.2e}, of at most {bound:.2e}")
    if not error <= bound:
        raise SystemExit("the sum DIFFERS from NumPy")


if __name__ == "__main__":
    main()
