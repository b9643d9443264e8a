"""Addresses that are right in any tile, pointers that join, and bytes of copies in builds without checks."""

from __future__ import annotations

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import OutOfBounds

STORE = "st.shared.b32"


@tc.kernel
def reaches_other_tiles(i, n, how: tc.Const):
    """Addresses that do not stay in a tile of which they are made, and are right."""
    small, tile, other = tc.shared((8, 4), tc.s32), tc.shared(32, tc.s32), tc.shared(32, tc.s32)
    apart, place, t = i * 0, small.address, 4 * tc.threadIdx.x
    if how == "dynamic":
        pool = tc.dynamic_shared((2, 32), tc.s32)
        tc.emit(STORE, pool[0].address + 128 * i + t, 0)
        tc.dynamic_shared(32, tc.s32)
        tc.emit(STORE, pool[1].address + 128 * i + t, 0)
        if n > 1:
            place = pool.address
        tc.emit(STORE, place + t, 0)
    elif how == "difference":
        tc.emit(STORE, small.address + (tile.address - small.address) * n + t, 0)
    elif how == "emitted":
        tc.emit(STORE, small.address + tc.emit("sub.u32", tile.address, small.address) + t, 0)
    elif how == "carried difference":
        for _ in range(n):
            apart = tile.address.bits(tc.s32) - small.address.bits(tc.s32)
        tc.emit(STORE, small.address + apart + t, 0)
    elif how == "ring":
        for turn in range(n + 1):
            tc.emit(STORE, place + t, 0)
            tc.syncwarp()
            place = tile.address if turn == 0 else other.address
    elif how == "xor":
        tc.emit(STORE, (small.address ^ 128) + t, 0)
    elif how == "from the end":
        tc.emit(STORE, tile.address + 128 - t - 4 * i, 0)
    else:
        start, end = tile.address + t, small.address + 128 + t  # in the same register
        tc.emit(STORE, start, 0)
        tc.emit(STORE, end - 8 * tc.threadIdx.x - 4 * i, 0)


WAYS = "dynamic", "difference", "emitted", "carried difference", "ring", "xor", "from the end", "two ends"


@pytest.mark.parametrize("how", WAYS)
def test_addresses_of_several_tiles(how):
    reaches_other_tiles.emulator("sm_90a")[1, 32, None, 512 if how == "dynamic" else 0](1, 2, how)


def test_pointers_to_different_arrays_still_join():
    @tc.kernel
    def choose(x: tc.Array, y: tc.Array, i):
        place = x.at(0, 1)
        if i > 0:
            place = y.at(i)
        for _ in range(i):
            place = place + 1
        place.store(5.0)

    x, y = np.zeros((4, 4), np.float32), np.zeros(8, np.float32)
    choose.emulate[1, 1](x, y, 0)
    choose.emulate[1, 1](x, y, 3)
    assert x[0, 1] == 5 and y[6] == 5


def test_builds_without_checks_carry_no_areas():
    @tc.kernel
    def walk(n):
        tile = tc.shared(32, tc.f32)
        place = tile.at(0)
        for _ in range(n):
            place.store(1.0)
            place = place + 1

    text = walk.ir(3, arch="sm_90a")
    loop = text[text.index("for") :]
    assert "check.index" not in text and loop.count("add.u32") == 1 and loop.count("<-") <= 2


@pytest.mark.parametrize("valid", [17, 5000, 100_000, 2**31, 2**32 - 1])
def test_valid_bytes_never_corrupt_memory(valid):
    @tc.kernel
    def copy(x, n: tc.u32):
        tile = tc.shared((32, 4), tc.f32)
        tc.cp_async(tile.at(tc.threadIdx.x, 0), x.at(0), 16, valid=n)
        tc.cp_async_commit()
        tc.cp_async_wait(0)

    text = f"an asynchronous copy of 16 bytes to shared 0x0 by thread 0 of CTA 0 is to read {valid} bytes: 0 to 16"
    with pytest.raises(OutOfBounds, match=text):
        copy.emulator(checks=False)[1, 32](np.zeros(1 << 20, np.float32), np.uint32(valid))
