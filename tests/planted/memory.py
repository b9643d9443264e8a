"""Accesses outside of arrays and tiles, misaligned ones, and uninitialised memory."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds, Uninitialised
from tests.planted.harness import Planted, error, mapped

planted = Planted(OutOfBounds, EmulationError)


def last_rows(draw):
    x = draw.integers(-4, 5, (32, 16)).astype(np.float16)
    right = x[16:, :8].astype(np.float32)
    return {"x": x, "out": np.zeros_like(right)}, {"out": right}


# -- shared memory ------------------------------------------------------------------------------


@planted(
    1,
    32,
    last_rows,
    {
        "view": error("fragment ="),
        "address": error("tile.at(n - 4 + lane % 8, 0)"),
        "alignment": error("tile.at(lane % 8, n // 8)"),
        "uninitialised": error("fragment ="),
    },
)
def matrix_beyond_the_tile(x, out, mistake: tc.Const):
    """ldmatrix of rows that the tile does not have, or has not been given."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile, behind = tc.shared((32, 16), tc.f16), tc.shared((32, 16), tc.f16)
    lane, n = tc.lane_id(), x.shape[0]
    for col in tc.static_range(16):
        if mistake != "uninitialised":
            tile[lane, col] = x[lane, col]
        else:
            if lane < 30:
                tile[lane, col] = x[lane, col]
        behind[lane, col] = 0
    tc.syncwarp()
    if mistake == "address":
        word = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(n - 4 + lane % 8, 0))
        out[lane // 4, lane % 4] = word.bits(tc.s32).to(tc.f32)
    elif mistake == "alignment":
        word = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(lane % 8, n // 8))
        out[lane // 4, lane % 4] = word.bits(tc.s32).to(tc.f32)
    else:
        start = n - 8 if mistake == "view" else n - 16
        fragment = tc.ldmatrix(tile[start : start + 16], mma.a)
        one = tc.fragment(mma.b, lambda row, col: tc.select(row == col, tc.f16(1), tc.f16(0)))
        tc.store_elements(out, mma(fragment, one, mma.d.zeros()))


def _halo(x):
    padded = np.concatenate([[0], x, [0]])
    return (padded[:-2] + padded[1:-1] + padded[2:]).astype(np.int32)


@planted(
    1,
    64,
    mapped(64, _halo),
    {
        "nothing": error("out[t] =", says="by thread 1 of CTA 0: nothing has written byte 0x4"),
        "one warp": error("out[t] ="),
        "half of each word": error("out[t] ="),
        "sum": error("tc.reduce"),
    },
    Uninitialised,
)
def never_written(x, out, mistake: tc.Const):
    tile = tc.shared(66, tc.s32)
    t = tc.threadIdx.x
    if mistake == "one warp":
        if t < 32:
            tile[t + 1] = x[t]
    elif mistake == "half of each word":
        tile.at(t + 1).as_type(tc.u16).store(x[t].to(tc.u16))
    elif mistake != "nothing":
        tile[t + 1] = x[t]
    if t == 0:
        tile[0] = 0
    if t == 0:
        if mistake != "sum":
            tile[65] = 0
    tc.barrier()
    if mistake == "sum":
        tc.reduce("add", tile.at(65), x[t])
        tc.barrier()
    out[t] = tile[t] + tile[t + 1] + tile[t + 2]


# -- alignment ----------------------------------------------------------------------------------


@planted(
    1,
    32,
    mapped(64, lambda x: x[:32]),
    {
        "global vector": error("value = x.at"),
        "shared vector": error("tile.at(t).store"),
        "odd half": error("value = (x.at"),
        "atomic": error("tc.reduce"),
        "copy": error("tc.cp_async"),
    },
    Misaligned,
)
def misaligned(x, out, mistake: tc.Const):
    tile = tc.shared(80, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    tile[32 + t] = 0
    tc.syncwarp()
    value = x[t]
    if mistake == "global vector":
        value = x.at(t).load(4)[0]
    elif mistake == "shared vector":
        tile.at(t).store([value, value])
    elif mistake == "odd half":
        value = (x.at(0).as_type(tc.u16) + t).as_type(tc.s32).load()
    elif mistake == "atomic":
        tc.reduce("add", tile.at(t).as_type(tc.u64), 1)
    elif mistake == "copy":
        tc.cp_async(tile.at(32 + t), x.at(t), 16)
    out[t] = value
