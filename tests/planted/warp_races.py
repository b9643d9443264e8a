"""Races between the lanes of one warp in shared memory: lanes do not run in lockstep."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Race, RaceWarning
from tests.planted.harness import Planted, mapped, race

planted = Planted(Race)


@planted(
    1,
    32,
    mapped((2, 32), lambda x: (x[0] - x[1])[np.arange(32) ^ 1]),
    race("value =", "tile[lane] = x[1, lane]"),
)
def overwritten_before_the_neighbour_has_read(x, out, mistake: tc.Const):
    tile = tc.shared(32, tc.s32)
    lane = tc.lane_id()
    tile[lane] = x[0, lane]
    tc.syncwarp()
    value = tile[lane ^ 1]
    if not mistake:
        tc.syncwarp()
    tile[lane] = x[1, lane]
    tc.syncwarp()
    out[lane] = value - tile[lane ^ 1]


@planted(
    1,
    32,
    mapped(32, lambda x: np.roll(x, -1)),
    dict.fromkeys(("nothing", "shfl", "vote", "redux", "match", "mma"), race("tile[lane]", "out[lane]")),
)
def neighbour_after_a_collective(x, out, mistake: tc.Const):
    """Lanes execute one instruction together, which orders no memory: 1 to 5, one of each kind."""
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tile = tc.shared(32, tc.s32)
    lane = tc.lane_id()
    a, b, acc = mma.a.zeros(), mma.b.zeros(), mma.d.zeros()
    tile[lane] = x[lane]
    extra = tc.s32(0)
    if mistake == "shfl":
        extra = tc.shfl_xor(lane, 1) & 0
    elif mistake == "vote":
        extra = tc.vote("ballot", lane < 40).bits(tc.s32) & 0
    elif mistake == "redux":
        extra = tc.redux("add", lane) & 0
    elif mistake == "match":
        extra = tc.match_any(lane).bits(tc.s32) & 0
    elif mistake == "mma":
        acc = mma(a, b, acc)
        extra = acc[0].to(tc.s32)
    elif mistake != "nothing":
        tc.syncwarp()
    out[lane] = tile[(lane + 1) % 32] + extra


@planted(1, 32, mapped(32, lambda x: x), race("tile[lane // 2"))
def two_lanes_write_one_place(x, out, mistake: tc.Const):
    """In one instruction: which value stays is not defined."""
    tile = tc.shared(32, tc.s32)
    lane = tc.lane_id()
    tile[lane] = 0
    tc.syncwarp()
    tile[lane // 2 if mistake else lane] = x[lane]
    tc.syncwarp()
    out[lane] = tile[lane]


@planted(1, 32, mapped(32, lambda x: x + 3), race("tile[lane // 2 if mistake else lane] = 3"), RaceWarning)
def two_lanes_write_one_value(x, out, mistake: tc.Const):
    tile = tc.shared(32, tc.s32)
    lane = tc.lane_id()
    tile[lane // 2 if mistake else lane] = 3
    tc.syncwarp()
    out[lane] = x[lane] + tile[lane // 2]


@planted(1, 32, mapped(32, lambda x: x[np.arange(32) ^ 16]), race("tile[lane]", "out[lane]"))
def mask_of_half_the_lanes(x, out, mistake: tc.Const):
    """Each half synchronises by itself, but the data cross between the halves."""
    tile = tc.shared(32, tc.s32)
    lane = tc.lane_id()
    tile[lane] = x[lane]
    if mistake:
        if lane < 16:
            tc.syncwarp(0x0000FFFF)
        else:
            tc.syncwarp(0xFFFF0000)
    else:
        tc.syncwarp()
    out[lane] = tile[lane ^ 16]


@planted(1, 32, mapped(32, lambda x: x[15::-1]), race("tile[lane] #1", "out[lane - 16] #1"))
def arms_of_a_branch(x, out, mistake: tc.Const):
    """Lower lanes write, upper lanes read in the other arm."""
    tile = tc.shared(16, tc.s32)
    lane = tc.lane_id()
    if mistake:
        if lane < 16:
            tile[lane] = x[lane]
        else:
            out[lane - 16] = tile[31 - lane]
    else:
        if lane < 16:
            tile[lane] = x[lane]
        tc.syncwarp()
        if lane >= 16:
            out[lane - 16] = tile[31 - lane]


def _signed_pairs(x):
    swapped = np.where(x % 2 == 0, x, -x)[np.arange(32) ^ 1]
    return swapped.astype(np.int32)


@planted(1, 32, mapped(32, _signed_pairs), race("tile[lane] = -x", "out[lane]"))
def after_a_branch(x, out, mistake: tc.Const):
    """Lanes meet again after the branch, but meeting orders nothing."""
    tile = tc.shared(32, tc.s32)
    lane = tc.lane_id()
    if x[lane] % 2 == 0:
        tile[lane] = x[lane]
    else:
        tile[lane] = -x[lane]
    if not mistake:
        tc.syncwarp()
    out[lane] = tile[lane ^ 1]


@planted(1, 32, mapped(32, lambda x: np.full(32, x[3] + x[20], np.int32)), race("tile[0] =", "tile[0 if"))
def arms_write_one_place(x, out, mistake: tc.Const):
    tile = tc.shared(2, tc.s32)
    lane = tc.lane_id()
    if lane < 2:
        tile[lane] = 0
    tc.syncwarp()
    if lane < 16:
        if lane == 3:
            tile[0] = x[lane]
    else:
        if lane == 20:
            tile[0 if mistake else 1] = x[lane]
    tc.syncwarp()
    out[lane] = tile[0] + tile[1]


_sum = mapped(64, lambda x: x.sum(keepdims=True).astype(np.int32))


@planted(1, 64, _sum, race("tile[t] +="))
def last_steps_of_a_tree(x, out, mistake: tc.Const):
    """The warp that is left adds without synchronising, as was usual before Volta."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    tc.barrier()
    if t < 32:
        for step in (32, 16, 8, 4, 2, 1):
            if mistake:
                tile[t] += tile[t + step]
            else:
                value = tile[t] + tile[t + step]
                tc.syncwarp()
                tile[t] = value
                tc.syncwarp()
        if t == 0:
            out[0] = tile[0]


_matrix = mapped(32, lambda x: x.reshape(8, 4)[::-1].ravel())


@planted(1, 32, _matrix, race("tile.at(lane // 4", "word ="))
def matrix_after_plain_stores(x, out, mistake: tc.Const):
    """ldmatrix reads rows for other lanes, and orders no stores."""
    tile = tc.shared((8, 8), tc.u16)
    lane = tc.lane_id()
    tile.at(lane // 4, lane % 4 * 2).as_type(tc.s32).store(x[lane])
    if not mistake:
        tc.syncwarp()
    word = tc.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(7 - lane % 8, 0))
    out[lane] = word.bits(tc.s32)


@planted(1, 32, mapped(32, lambda x: np.full(32, x.sum(), np.int32)), race("tc.reduce", "out[lane]"))
def atomic_and_a_plain_load(x, out, mistake: tc.Const):
    """All lanes add to one word and look at it at once."""
    word = tc.shared(1, tc.s32)
    lane = tc.lane_id()
    if lane == 0:
        word[0] = 0
    tc.syncwarp()
    tc.reduce("add", word.at(0), x[lane])
    if not mistake:
        tc.syncwarp()
    out[lane] = word[0]
