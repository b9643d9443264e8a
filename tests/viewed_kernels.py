"""A script for tests of the viewer: a kernel with conflicts, spread over two functions, and one with a race."""

import sys

import numpy as np

import tensorcore_dsl as tc


def load(tile, x, row):
    tile[row, tc.threadIdx.x] = x[tc.threadIdx.x, row]


@tc.kernel
def columns(x: tc.Array, y: tc.Array, scale: tc.f32, swizzle: tc.Const = 0):
    tile = tc.shared((32, 32), x.dtype, swizzle=swizzle)
    for row in tc.static_range(32):
        load(tile, x, row)
    tc.barrier()
    total = 0.0
    for row in tc.static_range(32):
        total += tile[tc.threadIdx.x, row] * scale
    y[tc.threadIdx.x] = total


@tc.kernel
def reverse(x: tc.Array, y: tc.Array):
    tile = tc.shared(64, x.dtype)
    tile[tc.threadIdx.x] = x[tc.threadIdx.x]
    y[tc.threadIdx.x] = tile[63 - tc.threadIdx.x]


@tc.kernel
def outside(x: tc.Array):
    x[tc.threadIdx.x + 1] = 1.0


def main():
    x, y = np.ones((32, 32), np.float32), np.zeros(64, np.float32)
    columns[1, 32](x, y, 2.0)
    assert (y[:32] == 64).all()
    reverse[1, 64](x.reshape(-1), y)
    outside[1, 64](y)
    print("rows:", *sys.argv[1:])


if __name__ == "__main__":
    main()
