"""`ldmatrix` of signed 4-bit elements, which it extends to 8 bits (PTX 9.4)."""

from __future__ import annotations

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.errors import ArchError, Misaligned

ARRAY = tc.ArrayType(tc.u8, 1, (True,), 16)
WORDS = tc.ArrayType(tc.u32, 2, (True, True), 16)


@tc.kernel
def load(packed: tc.Array, out: tc.Array, matrices: tc.Const, space: tc.Const = ".shared", at: tc.Const = 0):
    """out: (matrices, 32), the registers of each lane."""
    tile = tc.shared(320, tc.u8, align=16)
    lane = tc.lane_id()
    for i in tc.static_range(8 * matrices):
        if lane < 8:
            tile[at + 8 * i + lane] = packed[8 * i + lane]
    tc.syncwarp()
    row = tile.at(at + lane % (8 * matrices) * 8).address
    if not space:
        row = tc.emit("cvta.shared.u64", tc.u64(row))
    found = tc.emit(f"ldmatrix.sync.aligned.m8n16.x{matrices}{space}.s8.s4", row)
    for i in tc.static_range(matrices):
        out[i, lane] = (found if matrices == 1 else found[i]).bits(tc.u32)


def registers(values: np.ndarray) -> np.ndarray:
    """(matrices, 32) words for (matrices, 8, 16) values: byte c % 4 of lane 4 * row + c // 4."""
    words = np.zeros((len(values), 32), np.uint32)
    for m, row, column in np.ndindex(values.shape):
        byte = int(values[m, row, column]) & 0xFF
        words[m, 4 * row + column // 4] |= np.uint32(byte << 8 * (column % 4))
    return words


@pytest.mark.parametrize("matrices", [1, 2, 4])
@pytest.mark.parametrize("space", [".shared", ""])
def test_elements_and_lanes(matrices, space):
    values = np.random.default_rng(matrices).integers(-8, 8, (matrices, 8, 16))
    low, high = values[..., ::2] & 15, values[..., 1::2] & 15
    out = np.zeros((matrices, 32), np.uint32)
    load.emulator("sm_90a")[1, 32]((low | high << 4).astype(np.uint8).ravel(), out, matrices, space)
    assert np.array_equal(out, registers(values))


def test_rows_are_aligned_to_their_8_bytes():
    packed, out = np.full(256, 0x78, np.uint8), np.zeros((4, 32), np.uint32)
    load.emulator("sm_90a")[1, 32](packed, out, 4, at=8)
    assert (out == 0x07F807F8).all()
    with pytest.raises(Misaligned):
        load.emulator("sm_90a")[1, 32](packed, out, 4, at=4)


def test_targets():
    with pytest.raises(ArchError):
        load.ptx(ARRAY, WORDS, 1, arch="sm_90")
    assert isa.instruction("ldmatrix.sync.aligned.m8n16.x4.shared.s8.s4").version == (9, 4)
    pytest.importorskip("cuda.core", reason="the assembler")
    for arch in ("sm_90a", "sm_100a", "sm_120a"):
        for matrices in (1, 2, 4):
            assert load.resources(ARRAY, WORDS, matrices, arch=arch).registers > 0
