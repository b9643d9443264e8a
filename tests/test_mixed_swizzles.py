"""Tiles of different swizzles that share bytes: what was written through one is read through it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError

BYTES = 1024  # 8 rows of 128


@tc.kernel
def two_views(x: tc.Array, out: tc.Array, swizzles: tc.Const, how: tc.Const = "", late: tc.Const = 0):
    """Write 8 rows of 64 f16 through the first view, and read them through the second one."""
    first = tc.dynamic_shared((8, 64), tc.f16, swizzle=swizzles[0])
    second = first
    if not late:
        second = tc.dynamic_shared((8, 64), tc.f16, swizzle=swizzles[1])
    t = tc.lane_id()
    for row in tc.static_range(8):
        first[row, 2 * t] = x[row, 2 * t]
        first[row, 2 * t + 1] = x[row, 2 * t + 1]
    if late:
        second = tc.dynamic_shared((8, 64), tc.f16, swizzle=swizzles[1])
    tc.syncwarp()
    if how in ("part", "anew"):
        for row in tc.static_range(8 if how == "anew" else 3):
            second.at(row, 2 * t).store([x[row, 2 * t], x[row, 2 * t + 1]])
        tc.syncwarp()
    if how == "ldmatrix":
        values = tc.ldmatrix(second[:, :16].T, tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).b)
        out[0, t] = values[0]
    elif how == "first":
        out[0, t] = first[3, t]
    elif how == "row 0":
        out[0, t] = second[0, t]
    else:
        for row in tc.static_range(8):
            out[row, t] = second[row, t]


@tc.kernel
def loaded_by_tma(x: tc.Array, out: tc.Array, stores: tc.Const = False):
    """TMA loads a tile of 128-byte rows; a view with another swizzle reads it, or TMA stores it."""
    tc.launch_bounds(32)
    tile = tc.dynamic_shared((8, 64), tc.f16, swizzle=128)
    view = tc.dynamic_shared((16, 32), tc.f16, swizzle=64)
    source, target = tc.tensor_map(x, (8, 64), swizzle=128), tc.tensor_map(out, (16, 32), swizzle=64)
    bar, t = tc.mbarriers(1)[0], tc.lane_id()
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(source.bytes)
        tc.tma_load(tile, source, (0, 0), bar)
    tc.syncwarp()
    bar.wait(0)
    if stores:
        if t == 0:
            tc.tma_store(target, (0, 0), view)
            tc.tma_store_commit()
            tc.tma_store_wait(0)
    else:
        out[0, t] = tile[5, t]
        out[1, t] = view[9, t]


@tc.kernel
def multiplied(x: tc.Array, d: tc.Array, swizzle: tc.Const):
    """A is written through a 128-byte swizzle; the product reads it through `swizzle`."""
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n16k16(tc.f16, tc.f16, tc.f32)
    written = tc.dynamic_shared((64, 64), tc.f16, swizzle=128)
    whole = tc.dynamic_shared((64 * 128 // swizzle, swizzle // 2), tc.f16, swizzle=swizzle)
    b = tc.dynamic_shared((16, 64), tc.f16, offset=8192, swizzle=128)
    t = tc.threadIdx.x
    for i in tc.static_range(64):
        if t < 64:
            written[i, t] = x[i, t]
            b[i % 16, t] = x[i % 16, t]
    tc.fence_proxy_async()
    tc.barrier()
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = tc.wgmma_async(mma, acc, whole[:64, :16], b[:, :16])
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    tc.store_elements(d, acc)


def run(swizzles: Any, how: str = "", late: int = 0, x: Any = None) -> np.ndarray:
    x = np.arange(512, dtype=np.float16).reshape(8, 64) if x is None else x
    out = np.zeros((8, 32), np.float16)
    two_views.emulator("sm_90a")[1, 32, None, BYTES](x, out, swizzles, how, late)
    return out


PAIRS = [(128, 64), (64, 128), (128, 32), (0, 128), (128, 0)]


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("how", ["", "part", "ldmatrix"])
@pytest.mark.parametrize("swizzles", PAIRS, ids=str)
def test_read_through_another_swizzle(swizzles, how, late):
    names = [f"a {s}-byte swizzle" if s else "no swizzle" for s in swizzles]
    words = f"reads shared 0x.* through {names[1]}, but it was written through {names[0]}, which puts"
    with pytest.raises(EmulationError, match=words) as error:
        run(swizzles, how, late)
    assert "second[" in str(error.value)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("swizzles", PAIRS, ids=str)
def test_written_anew(swizzles, late):
    wanted = np.arange(512, dtype=np.float16).reshape(8, 64)[:, :32]
    assert np.array_equal(run(swizzles, "anew", late), wanted)


@pytest.mark.parametrize("how", ["first", "row 0"])
def test_what_no_swizzle_changes(how):
    """The tile that was written, and a row whose elements lie where they always do."""
    assert run((128, 64), how)[0, 1] == (1 if how == "row 0" else 193)


def test_equal_values_have_no_order():
    assert not run((0, 128), x=np.zeros((8, 64), np.float16)).any()


@pytest.mark.parametrize("swizzle", [0, 128])
def test_views_of_one_swizzle(swizzle):
    assert run((swizzle, swizzle))[7, 31] == 7 * 64 + 31


def test_a_tile_that_tma_has_loaded():
    x = np.arange(512, dtype=np.float16).reshape(8, 64)
    for stores, who in (False, "out[1, t] = view[9, t]"), (True, "tc.tma_store(target, (0, 0), view)"):
        words = "reads shared 0x.* through a 64-byte swizzle, but it was written through a 128-byte swi"
        with pytest.raises(EmulationError, match=words) as error:
            launch = loaded_by_tma.emulator("sm_90a")[1, 32, None, BYTES]
            launch(x, np.zeros((16, 32), np.float16), stores)
        assert who in str(error.value)


def test_a_product_of_a_tile():
    x = np.random.default_rng(3).integers(-4, 5, (64, 64)).astype(np.float16)
    launch = multiplied.emulator("sm_90a")[1, 128, None, 8192 + 2048]
    d = np.zeros((64, 16), np.float32)
    launch(x, d, 128)
    assert np.array_equal(d, x[:, :16].astype(np.float32) @ x[:16, :16].T.astype(np.float32))
    with pytest.raises(EmulationError, match="through a 64-byte swizzle, but it was written through"):
        launch(x, d, 64)
