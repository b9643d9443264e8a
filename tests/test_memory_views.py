"""Views of arrays, shared tiles, dynamic and local memory, vectors."""

from __future__ import annotations

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import bf16, f16, f32, s8, s16, s32, u8
from tests.running import ASSEMBLES, compare_with_python, launch

pytestmark = pytest.mark.usefixtures("fresh_ir")

N = 64


@tc.kernel
def array_views(x, out):
    i = tc.threadIdx.x % 4
    row = x[i]
    part = x[1:, 2:6]
    steps = x[::2, 1::3]
    block = x[i : i + 2, 1:-1]
    last = x[-1, ...]
    results = [
        row[3],
        x.T[3, i],
        part[0, 1],
        part.T[1, 0],
        steps[1, 1],
        steps.shape[0],
        steps.shape[1],
        block[1, 0],
        block.shape[1],
        last[-2],
        x[..., 2][i],
        x[i, -1],
        part.shape[0],
        x[-1, i],
        x[i, 1:3].shape[0],
    ]
    for k, r in enumerate(results):
        out[k, tc.threadIdx.x] = r


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_views_of_arrays(order):
    base = np.arange(5 * 8, dtype=np.int32).reshape(5, 8)
    x = np.asfortranarray(base) if order == "F" else base
    if order == "strided":
        x = np.zeros((10, 16), np.int32)[::2, ::2]
        x[:] = base
    compare_with_python(array_views, x, np.zeros((15, 8), np.int32), block=8)


@tc.kernel
def tiles(x, out, swizzle: tc.Const = 0, padded: tc.Const = False):
    t = tc.threadIdx.x
    tile = tc.shared((8, 64), tc.f16, swizzle=swizzle, strides=(72, 1) if padded else None)
    for k in tc.static_range(8):
        tile[k, t] = x[k, t]
    tc.barrier()
    half = tile[2:6, 16:48]
    column = tile.T[t % 64]
    every = tile[::2, 1::2]
    out[0, t] = tile[t % 8, t]
    out[1, t] = half[t % 4, t % 32]
    out[2, t] = half.T[t % 32, 3]
    out[3, t] = column[5]
    out[4, t] = every[t % 4, t % 32]
    out[5, t] = tile[-1, -2]
    corner = tile.at(t % 8, 8 * (t // 8))
    vector = corner.load(8)
    out[6, t] = vector[3] + 0 * len(half)
    tc.barrier()
    corner.store([v + 1 for v in vector])
    tc.barrier()
    out[7, t] = tile[t // 8, t % 8]


@pytest.mark.parametrize("swizzle, padded", [(0, False), (32, False), (64, False), (128, False), (0, True)])
def test_shared_tiles_hold_what_is_stored(swizzle, padded):
    x = np.arange(8 * 64).reshape(8, 64).astype(np.float16)
    out = np.zeros((8, 64), np.float16)
    launch(tiles, x, out, swizzle=swizzle, padded=padded)
    for t in range(64):
        half = x[2:6, 16:48]
        expected = [
            x[t % 8, t],
            half[t % 4, t % 32],
            half[3, t % 32],
            x[5, t],
            x[::2, 1::2][t % 4, t % 32],
            x[-1, -2],
            x[t % 8, 8 * (t // 8) + 3],
            x[t // 8, t % 8] + 1,
        ]
        assert out[:, t].tolist() == expected


@tc.kernel
def dynamic(x, out, big: tc.Const = 0):
    t = tc.threadIdx.x
    fixed = tc.shared(64, tc.s32)
    large = tc.shared((big, 64), tc.s32) if big else fixed
    first = tc.dynamic_shared(64, tc.s32)
    second = tc.dynamic_shared((2, 64), tc.s16, offset=256, swizzle=32)
    fixed[t], first[t], second[0, t], second[1, t] = x[t], x[t] * 2, x[t] * 3, 7
    if big:
        large[big - 1, t] = x[t] * 5
    tc.barrier()
    other = 63 - t
    out[0, t], out[1, t], out[2, t], out[3, t] = (
        fixed[other],
        first[other],
        second[0, other],
        second[1, other],
    )
    out[4, t] = large[big - 1, other] if big else 0


@pytest.mark.parametrize("big", [0, 4, 250])
def test_dynamic_shared_memory_behind_static(big):
    x, out = np.arange(N, dtype=np.int32), np.zeros((5, N), np.int32)
    dynamic.emulator("sm_80")[1, N, None, 512](x, out, big=big)
    back = x[::-1]
    assert np.array_equal(out, [back, 2 * back, 3 * back, 7 + 0 * back, (5 if big else 0) * back])
    assert not ASSEMBLES or dynamic.cubin(x, out, arch="sm_80", big=big)


@tc.kernel
def swizzled_behind_static(x, out, swizzle: tc.Const):
    """TMA permutes by address, so a swizzled tile starts where the swizzle does."""
    tc.launch_bounds(32)
    bar, t = tc.mbarriers(1)[0], tc.lane_id()
    tile = tc.dynamic_shared((8, swizzle // 4), f32, swizzle=swizzle)
    source = tc.tensor_map(x, tile.shape, swizzle=swizzle)
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(source.bytes)
        tc.tma_load(tile, source, (0, 0), bar)
    tc.syncwarp()
    bar.wait(0)
    for i in tc.range(t, 2 * swizzle, 32):
        out[0, i] = tile[i // tile.shape[1], i % tile.shape[1]]
        out[1, i] = tile.at(0, 0)[i]


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzled_dynamic_memory_behind_static(swizzle):
    x = np.arange(2 * swizzle, dtype=np.float32).reshape(8, -1)
    out = np.zeros((2, x.size), np.float32)
    swizzled_behind_static.emulator("sm_90a")[1, 32, None, x.nbytes](x, out, swizzle)
    assert np.array_equal(out, [x.ravel()] * 2)
    ptx = swizzled_behind_static.ptx(x, out, swizzle, arch="sm_90a")
    assert f".extern .shared .align {8 * swizzle} .b8 dynamic_shared_memory[];" in ptx


@tc.kernel
def local_arrays(x, out):
    i = tc.threadIdx.x
    line = tc.local(5, f32, fill=1.5)
    grid = tc.local((3, 4), s32)
    for k in tc.static_range(3):
        for j in tc.static_range(4):
            grid[k, j] = k * 10 + j
    line[x[i]] = 9
    line[-1] += 2
    grid[1][2] = i
    grid.T[3, x[i] % 3] = -5
    grid[x[i] % 3, x[i] % 4] += 100
    for k in range(x[i]):
        line[k] += 1
    results = [
        line[x[i]],
        line[0],
        line[4],
        grid[0, 3],
        grid[1, 2],
        grid[2, x[i] % 4],
        sum(grid[1]),
        sum(grid[:, 1]),
        len(grid),
        grid[1:, ::2][1, 1],
    ]
    for k, r in enumerate(results):
        out[k, i] = r


def test_local_arrays_belong_to_their_thread():
    compare_with_python(
        local_arrays, (np.arange(N) % 5).astype(np.int32), np.zeros((10, N), np.float32), block=N
    )


@tc.kernel
def vectors(x, out):
    i = tc.threadIdx.x
    v = x.at(4 * i).load(4)
    w = v * 2 + 1
    u = w.map(lambda e: -e)
    total = sum(v)
    out.at(0, 4 * i).store(w)
    out.at(1, 4 * i).store(tc.vector([total, v[1], v[-1], len(v)]))
    out.at(2, 4 * i).store(u - v, pred=i % 2 == 0)
    out.at(3, 4 * i).store((1, 2, v[2], 4))
    a, b, c, d = v
    out[4, 4 * i + 3] = a + b * c - d
    chosen = v if i > 7 else w
    out.at(5, 4 * i).store(chosen)
    out.at(6, 4 * i).store(tc.fma(v, w, 1))
    guarded = x.at(4 * i).load(pred=i < 4, otherwise=-3)
    out[7, 4 * i] = guarded
    out.at(8, 4 * i).store(v.to(out.dtype))
    flags = v > 5
    out[9, 4 * i] = tc.select(flags[0], 1, 0) + tc.select(flags[3], 10, 0)


@pytest.mark.parametrize("dtype", [s32, f32, f16, s8, s16, u8], ids=str)
def test_vectors_are_loaded_and_stored(dtype):
    M = 16
    x = (np.arange(4 * M) % 30).astype(dtype.numpy)
    out = np.zeros((10, 4 * M), dtype.numpy)
    if dtype.bits <= 16 and dtype.is_integer:
        with pytest.raises(tc.TensorCoreError):
            launch(vectors, x, out.astype(np.float64), block=M)
        return
    launch(vectors, x, out, block=M)
    v = x.reshape(M, 4).astype(np.float64)
    w = v * 2 + 1
    expected = np.zeros((10, M, 4))
    expected[0] = w
    expected[1] = np.stack([v.sum(1), v[:, 1], v[:, 3], 0 * v[:, 0] + 4], 1)
    expected[2, ::2] = (-w - v)[::2]
    expected[3] = np.stack([0 * v[:, 0] + 1, 0 * v[:, 0] + 2, v[:, 2], 0 * v[:, 0] + 4], 1)
    expected[4, :, 3] = v[:, 0] + v[:, 1] * v[:, 2] - v[:, 3]
    expected[5] = np.where(np.arange(M)[:, None] > 7, v, w)
    expected[6] = v * w + 1
    expected[7, :, 0] = np.where(np.arange(M) < 4, v[:, 0], -3)
    expected[8] = v
    expected[9, :, 0] = (v[:, 0] > 5) + 10 * (v[:, 3] > 5)
    assert np.array_equal(out.astype(np.float64), expected.reshape(10, -1))


@tc.kernel
def narrow_vectors(x, out):
    i = tc.threadIdx.x
    v = x.at(8 * i).load(8)
    out.at(8 * i).store([v[7 - k] for k in range(8)])


@pytest.mark.parametrize("dtype", [s8, u8, f16, bf16, s16], ids=str)
def test_vectors_of_narrow_elements(dtype):
    x = np.arange(8 * N).astype(np.int8).astype(dtype.numpy)
    out = np.zeros(8 * N, dtype.numpy)
    launch(narrow_vectors, x, out)
    assert np.array_equal(out.reshape(N, 8), x.reshape(N, 8)[:, ::-1])
