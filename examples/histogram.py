"""Histogram of bytes: counts[v] = how many elements of x equal v.

Arrays   x (n,) of u8, any n; counts (256,) of u32.

Each block of 256 threads counts its part of x in shared memory, by atomic additions of its threads,
and then adds its 256 counts to the result, by atomic additions in global memory: 256 of them for
each block, instead of one for each element. A thread loads 16 elements at a time; a grid of a fixed
number of blocks strides over x. Counts are whole numbers, so the order of additions does not matter
and the result is exact.

    python examples/histogram.py --size 100001

runs on the GPU if there is one, else in emulation, and prints the largest error, which must be 0.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tensorcore_dsl as tc

BINS = 256
THREADS = 256
VECTOR = 16  # bytes of the widest load
BLOCKS = 4 * 132  # at most: a few for each multiprocessor of an H200


@tc.kernel(threads=THREADS)
def histogram_kernel(x: tc.Array, counts: tc.Array):
    """Any number of blocks; `counts` starts as zeros, and x at a multiple of 16 bytes."""
    local = tc.shared(BINS, tc.u32)
    for i in tc.static_range(0, BINS, THREADS):
        local[i + tc.threadIdx.x] = 0
    # Nobody counts before all counters are zero.
    tc.barrier()

    vectors = x.shape[0] // VECTOR
    thread, threads = tc.blockIdx.x * THREADS + tc.threadIdx.x, tc.gridDim.x * THREADS
    for i in tc.range(thread, vectors, threads):
        # Atomics of the threads of a block on one counter do not race; none needs the old count.
        for value in x.at(i * VECTOR).load(VECTOR):
            tc.reduce("add", local.at(value.to(tc.s32)), 1)
    # What no whole vector covers, fewer than 16 elements: one each for threads of the first block.
    rest = vectors * VECTOR + thread
    if rest < x.shape[0]:
        tc.reduce("add", local.at(x[rest].to(tc.s32)), 1)

    # Read after write: all threads of the block have counted.
    tc.barrier()
    for i in tc.static_range(0, BINS, THREADS):
        count = local[i + tc.threadIdx.x]
        # Many counters of a block may be zero; the addition of nothing is left out.
        if count > 0:
            tc.reduce("add", counts.at(i + tc.threadIdx.x), count)


def histogram(x: Any, kernel: Any = histogram_kernel) -> Any:
    """Counts of the 256 values in a NumPy array of uint8 of any shape, as uint32.

    `kernel` may also be an emulator of it, `histogram_kernel.emulator("sm_90a")`.
    Raises tc.ArgumentError for other types, and for sizes from 2³¹ on.
    """
    if x.dtype != np.uint8 or x.size >= 2**31:
        raise tc.ArgumentError(
            f"x must be of uint8 and have fewer than 2^31 elements; it is {x.dtype} {x.shape}"
        )
    x = np.ascontiguousarray(x).reshape(-1)
    if x.ctypes.data % VECTOR:
        x = x.copy()
    counts = np.zeros(BINS, np.uint32)
    if x.size:
        blocks = min(BLOCKS, -(-x.size // (THREADS * VECTOR)))
        kernel[blocks, THREADS](x, counts)
    return counts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A histogram of bytes, compared with NumPy.")
    parser.add_argument("--size", type=int, default=50001, help="elements (default: %(default)s)")
    options = parser.parse_args(arguments)

    x = np.random.default_rng(0).binomial(255, 0.3, options.size).astype(np.uint8)
    error = abs(histogram(x).astype(np.int64) - np.bincount(x, minlength=BINS)).max()
    where = "the GPU" if tc.current_target() == "cuda" else "the CPU, emulated"
    print(f"ran on {where}; largest error {error}")
    if error:
        raise SystemExit("counts DIFFER from NumPy")


if __name__ == "__main__":
    main()
