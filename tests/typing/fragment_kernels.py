"""Kernels that compute with fragments, as users write them; type checkers find nothing wrong here."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tensorcore_dsl as tc

mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
Activation = Callable[[Any], Any]


def relu(value: tc.f32) -> Any:
    return tc.maximum(value, 0)


def gelu(value: tc.f32) -> Any:
    inner = math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)
    return 0.5 * value * (1 + tc.tanh(inner))


def layer(activation: Activation, tile: int = 64) -> tc.Kernel:
    """D = activation(A B + bias), for matrices of any size; four warps for a tile."""

    @tc.kernel(threads=128, name=f"layer_{tile}")
    def product(a: tc.Array, b: tc.Array, bias: tc.Array, d: tc.Array) -> None:
        tile_a = tc.shared((2, tile, 32), a.dtype, swizzle=64)
        tile_b = tc.shared((2, 32, tile), b.dtype, swizzle=128)
        m, n = tc.blockIdx.x * tile, tc.blockIdx.y * tile
        warp_m, warp_n = tc.warp_id() // 2 * 32, tc.warp_id() % 2 * 32

        def load(k: Any, stage: Any) -> None:
            tc.copy_tile(tile_a[stage, ...], a, (m, k), bounded=True)
            tc.copy_tile(tile_b[stage, ...], b, (k, n), bounded=True)
            tc.cp_async_commit()

        acc = [[mma.d.zeros() for _ in range(4)] for _ in range(2)]
        load(0, 0)
        for k in range(0, a.shape[1], 32):
            stage = k // 32 % 2
            load(k + 32, 1 - stage)
            tc.cp_async_wait(1)
            tc.barrier()
            fa = tc.ldmatrix(tile_a[stage, warp_m : warp_m + 32, :], mma.a)
            fb = tc.ldmatrix(tile_b[stage, :, warp_n : warp_n + 32], mma.b)
            acc = tc.tiled_mma(mma, acc, fa, fb)
            tc.barrier()
        for i, row in enumerate(acc):
            for j, fragment in enumerate(row):
                place = m + warp_m + 16 * i, n + warp_n + 8 * j
                columns = tc.load_columns(bias, mma.d, origin=place[1], bounded=True, convert=True)
                result = (fragment + columns).map(activation).to(d.dtype)
                tc.store_elements(d, result, origin=place, bounded=True)

    return product


@tc.kernel(threads=128)
def w4a16(a: tc.Array, packed: tc.Array, scales: tc.Array, d: tc.Array, group: tc.Const[int] = 64) -> None:
    """D = A W for w[k, n] = scales[k // group, n] (q[k, n] - 8), two q along K in a byte."""
    tile_a = tc.shared((2, 64, 64), tc.f16, swizzle=128)
    tile_w = tc.shared((2, 64, 32), tc.u8)
    m, n, warp_n = tc.blockIdx.x * 64, tc.blockIdx.y * 64, tc.warp_id() * 16

    def load(k: tc.s32, stage: int) -> None:
        tc.copy_tile(tile_a[stage, ...], a, (m, k), bounded=True)
        tc.copy_tile(tile_w[stage, ...], packed, (n, k // 2), bounded=True)
        tc.cp_async_commit()

    def weights(stage: int, k0: int, j: int, scale: Any) -> Any:
        def pair(k: tc.s32, n: tc.s32) -> list[tc.f16]:
            byte: tc.u8 = tile_w[stage, warp_n + 8 * j + n, (k0 + k) // 2]
            return [(q - 8).to(tc.f16) for q in tc.unpack(byte, tc.u4)]

        return tc.fragment(mma.b, pair) * scale

    acc = [[mma.d.zeros() for _ in range(2)] for _ in range(4)]
    load(tc.s32(0), 0)
    for k0 in range(0, a.shape[1], 64):
        stage = k0 // 64 % 2
        load(tc.s32(k0 + 64), 1 - stage)
        tc.cp_async_wait(1)
        tc.barrier()
        scale = [
            tc.load_columns(scales[k0 // group, :], mma.b, origin=n + warp_n + 8 * j, bounded=True)
            for j in range(2)
        ]
        for k in tc.static_range(0, 64, 16):
            fb = [weights(stage, k, j, scale[j]) for j in range(2)]
            acc = tc.tiled_mma(mma, acc, tc.ldmatrix(tile_a[stage, :, k : k + 16], mma.a), fb)
        tc.barrier()
    for i, row in enumerate(acc):
        for j, fragment in enumerate(row):
            origin = (m + 16 * i, n + warp_n + 8 * j)
            tc.store_elements(d, fragment, origin=origin, bounded=True)


@tc.kernel
def pieces(x: tc.Array, y: tc.Array, sums: tc.Array) -> None:
    """Assigned elements, masks, statistics and registers of fragments."""
    acc = tc.load_elements(x, mma.d, convert=True)
    old = acc
    acc[0] = 5
    acc[1:3] = [1.0, tc.f32(2)]
    for slot in range(len(acc)):
        row, column = acc.coordinates(slot)
        if row == column:
            acc[slot] = -acc[slot]
    positive = (acc > 0) & ~(acc > 4)
    acc = tc.select(positive, acc, old)
    least, mean = tc.row_min(acc), tc.row_sum([acc]) / 8
    scaled = (acc - mean) * tc.rcp(1 + abs(least))
    squares = tc.reduce_rows(scaled * scaled, lambda a, b: a + b)
    tc.store_rows(sums, tc.sqrt(squares))
    low, high = tc.unpack(tc.pack(scaled[0].to(tc.f16), scaled[1].to(tc.f16)), tc.f16)
    pair = tc.vector([low, high]).to(tc.f32)
    halves = acc.to(tc.f16, satfinite=False)
    assert halves.dtype == tc.f16 and len(halves.registers) == 2 and halves.slots == 4
    first, *_, last = scaled
    tc.store_elements(y, scaled + (first + last + pair[0] - pair[1]) * 0)


def main() -> None:
    """Run them against NumPy."""
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal(s).astype(np.float16) for s in ((64, 40), (40, 30)))
    bias, d = draw.standard_normal(30).astype(np.float32), np.zeros((64, 30), np.float32)
    layer(relu)[(1, 1), 128](a, b, bias, d)
    exact = a.astype(np.float64) @ b.astype(np.float64) + bias
    assert np.allclose(d, np.maximum(exact, 0), atol=1e-2)
    assert "tanh" in layer(gelu).ptx(a, b, bias, d)

    codes = draw.integers(0, 16, (32, 64)).astype(np.uint8)
    a = draw.standard_normal((20, 64)).astype(np.float16)
    scales = (draw.random((1, 32)) + 0.5).astype(np.float16)
    d = np.zeros((20, 32), np.float32)
    w4a16[(1, 1), 128](a, codes[:, ::2] | codes[:, 1::2] << 4, scales, d)
    w = (codes.T.astype(np.float16) - 8) * np.repeat(scales, 64, axis=0)
    assert np.allclose(d, a.astype(np.float64) @ w.astype(np.float64), atol=1e-3)

    x, y = draw.standard_normal((16, 8)).astype(np.float32), np.zeros((16, 8), np.float32)
    pieces[1, 32](x, y, sums := np.zeros(16, np.float32))
    assert np.isfinite(y).all() and np.allclose(sums**2, (y**2).sum(1), atol=1e-3)


if __name__ == "__main__":
    main()
