"""Residual add and RMS norm in one pass: s = x + residual, y = s / rms(s) * weight.

Arrays   x, residual, s and y (rows, columns), weight (columns,), row-major; rms(s) is the square
         root of the mean of s² + epsilon along a row.
Types    all arrays f16, bf16 or f32; arithmetic is f32. s is rounded to its type, and the norm is
         that of the rounded values, as if the two steps were two kernels.
Sizes    any number of rows and columns; the widest vectors that rows consist of are loaded, 16
         bytes where the length of a row is a multiple of that.

A block of 256 threads has one row, whose vectors its threads take in turns. Each thread first sums
the squares of its part of s and stores that part, and later loads it again, from the caches: so x
and residual are read once, and rows have any length. Sums go through a warp by shuffles, and
between the eight warps through shared memory.

    python examples/fused_norm.py --rows 100 --columns 4100 --dtype bf16

runs on the GPU if there is one, else in emulation, and prints the largest error.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import tensorcore_dsl as tc

THREADS = 256
WARPS = THREADS // 32
DTYPES = {"f16": tc.f16, "bf16": tc.bf16, "f32": tc.f32}
ROUNDOFF = {
    np.dtype(DTYPES[name].numpy): 2.0**power for name, power in (("f16", -11), ("bf16", -8), ("f32", -24))
}


@tc.kernel(threads=THREADS)
def norm_kernel(
    x: tc.Array,
    residual: tc.Array,
    weight: tc.Array,
    s: tc.Array,
    y: tc.Array,
    epsilon: tc.f32,
    width: tc.Const = 1,
):
    """One block a row; `width` elements are a vector, and rows consist of whole vectors."""
    partial = tc.shared(WARPS, tc.f32)
    row, columns = tc.blockIdx.x, x.shape[1]
    first, step = tc.threadIdx.x * width, THREADS * width

    squares = tc.f32(0)
    for col in tc.range(first, columns, step):
        left = load_vector(x.at(row, col), width)
        right = load_vector(residual.at(row, col), width)
        # What is stored is what the norm sees.
        rounded = [(left[j].to(tc.f32) + right[j].to(tc.f32)).to(s.dtype) for j in range(width)]
        s.at(row, col).store(rounded)
        for value in rounded:
            squares = tc.fma(value.to(tc.f32), value.to(tc.f32), squares)

    # After five exchanges every lane has the sum of its warp: the lanes add the same pairs, so they
    # have the same bits.
    for distance in (16, 8, 4, 2, 1):
        squares = squares + tc.shfl_xor(squares, distance)
    if tc.lane_id() == 0:
        partial[tc.warp_id()] = squares
    # Read after write: every thread reads what lane 0 of each warp has stored. `partial` is written
    # once, so no second barrier is needed.
    tc.barrier()
    total = sum([partial[i] for i in range(WARPS)])
    factor = 1 / tc.sqrt(total / columns.to(tc.f32) + epsilon)

    for col in tc.range(first, columns, step):
        # The elements that this same thread has stored above: program order is enough.
        values = load_vector(s.at(row, col), width)
        gain = load_vector(weight.at(col), width)
        y.at(row, col).store(
            [(values[j].to(tc.f32) * factor * gain[j].to(tc.f32)).to(y.dtype) for j in range(width)]
        )


def load_vector(pointer, width):
    """The elements of a vector; a load of one element is a number."""
    return pointer.load(width) if width > 1 else [pointer.load()]


def fused_norm(
    x: Any, residual: Any, weight: Any, epsilon: float = 1e-6, kernel: Any = norm_kernel
) -> tuple[Any, Any]:
    """(y, s) of NumPy arrays x and residual (rows, columns) and weight (columns,), of one type.

    `kernel` may also be an emulator of it, `norm_kernel.emulator("sm_90a")`.
    Raises tc.ArgumentError for shapes and types that do not fit each other.
    """
    if x.ndim != 2 or residual.shape != x.shape or weight.shape != x.shape[1:]:
        raise tc.ArgumentError(
            f"x and residual are (rows, columns) and weight is (columns,); "
            f"they are {x.shape}, {residual.shape} and {weight.shape}"
        )
    if not x.dtype == residual.dtype == weight.dtype or x.dtype not in ROUNDOFF:
        raise tc.ArgumentError(
            f"x, residual and weight must be of one type, {', '.join(map(str, ROUNDOFF))}; "
            f"they are {x.dtype}, {residual.dtype} and {weight.dtype}"
        )
    x, residual, weight = map(aligned, (x, residual, weight))
    s, y = np.empty_like(x), np.empty_like(x)
    if x.size:
        width = vector_width(x)
        kernel[x.shape[0], THREADS](x, residual, weight, s, y, epsilon, width=width)
    return y, s


def aligned(array: Any) -> Any:
    """The array, or a copy that is contiguous and starts at a multiple of 16 bytes."""
    array = np.ascontiguousarray(array)
    return array if array.ctypes.data % 16 == 0 else array.copy()


def vector_width(x: Any) -> int:
    """Elements of the widest vectors, of 16 bytes at most, that rows of x consist of."""
    return math.gcd(x.shape[1], 16 // x.itemsize)


def reference(x: Any, residual: Any, weight: Any, epsilon: float = 1e-6) -> tuple[Any, Any, Any]:
    """y in float64, the bits of s, and a bound of the error of each y.

    s is a sum in f32, rounded: the same in NumPy. A thread adds as many squares as it has elements,
    then come 5 exchanges and 8 warps; each addition has a relative error of 2⁻²⁴ at most, as no
    square is negative, and the root halves what they sum to. Mean, epsilon, root, reciprocal and
    two products add less than 8 · 2⁻²⁴. The result is rounded once: u,
    or 2⁻²⁵ where f16 is subnormal, or the smallest normal number of the other types.
    """
    s = (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)
    wide = s.astype(np.float64)
    factor = 1 / np.sqrt((wide**2).mean(1, keepdims=True) + np.float64(np.float32(epsilon)))
    exact = wide * factor * weight.astype(np.float64)
    width = vector_width(x)
    additions = -(-x.shape[1] // (THREADS * width)) * width + 5 + WARPS
    smallest = 2.0**-25 if x.dtype == np.float16 else 2.0**-126
    relative = ROUNDOFF[x.dtype] + (additions / 2 + 8) * 2.0**-24
    return exact, s, 1.01 * relative * abs(exact) + smallest


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Residual add and RMS norm, compared with NumPy.")
    parser.add_argument("--rows", type=int, default=20, help="rows of x (default: %(default)s)")
    parser.add_argument("--columns", type=int, default=1000, help="of a row (default: %(default)s)")
    parser.add_argument("--dtype", default="f16", choices=DTYPES, help="of all arrays")
    options = parser.parse_args(arguments)

    draw = np.random.default_rng(0)
    shapes = (options.rows, options.columns), (options.rows, options.columns), options.columns
    x, residual, weight = (
        draw.standard_normal(shape).astype(DTYPES[options.dtype].numpy) for shape in shapes
    )
    y, s = fused_norm(x, residual, weight)
    exact, exact_s, bound = reference(x, residual, weight)
    error = abs(y.astype(np.float64) - exact)
    where = "the GPU" if tc.current_target() == "cuda" else "the CPU, emulated"
    share = (error / bound).max()
    print(f"ran on {where}; largest error {error.max():.2e}, {share:.2f} of its bound")
    if not ((error <= bound).all() and np.array_equal(s, exact_s)):
        raise SystemExit("y or s DIFFERS from NumPy")


if __name__ == "__main__":
    main()
