"""Kernels with names imported by `*`; Pyright warns of every `*` of a library."""

# ruff: noqa: F403, F405

import numpy as np

from tensorcore_dsl import *  # pyright: ignore[reportWildcardImportFromLibrary]


@kernel(threads=128)
def rms_norm(x: Array, weight: Array, y: Array, eps: float = 1e-6, columns: Const[int] = 256) -> None:
    """Four rows a block, a warp for each; values stay in registers."""
    row = blockIdx.x * 4 + warp_id()
    if row < x.shape[0]:
        values = local(columns // 32, f32)
        total = f32(0)
        for i in static_range(columns // 32):
            values[i] = x[row, lane_id() + 32 * i].to(f32)
            total = fma(values[i], values[i], total)
        for step in (16, 8, 4, 2, 1):
            total += shfl_xor(total, step)
        scale = rsqrt(total / columns + eps)
        for i in static_range(columns // 32):
            column = lane_id() + 32 * i
            y[row, column] = (values[i] * scale * weight[column]).to(y.dtype)


@kernel
def transpose(x: Array, y: Array) -> None:
    tile = shared((32, 32), x.dtype, strides=(33, 1))
    m, n = blockIdx.x * 32, blockIdx.y * 32
    for i in range(threadIdx.y, 32, blockDim.y):
        if m + i < x.shape[0] and n + threadIdx.x < x.shape[1]:
            tile[i, threadIdx.x] = x[m + i, n + threadIdx.x]
    barrier()
    for i in range(threadIdx.y, 32, blockDim.y):
        if n + i < y.shape[0] and m + threadIdx.x < y.shape[1]:
            y[n + i, m + threadIdx.x] = tile[threadIdx.x, i]


def main() -> None:
    """Run them against NumPy."""
    x = np.random.default_rng(0).standard_normal((10, 256)).astype(np.float32)
    weight, y = np.ones(256, np.float32), np.zeros_like(x)
    rms_norm[3, 128](x, weight, y)
    assert np.allclose(y, x / np.sqrt((x**2).mean(1, keepdims=True)), atol=1e-4)
    z = np.zeros((256, 10), np.float32)
    transpose[(1, 8), (32, 8)](x, z)
    assert np.array_equal(z, x.T)


if __name__ == "__main__":
    main()
