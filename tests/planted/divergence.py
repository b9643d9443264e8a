"""Instructions that need whole warps, or the lanes of a mask, executed by others."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, Divergence, EmulationError
from tests.planted.harness import Planted, error, mapped

planted = Planted(Divergence)

PARTIAL = (Divergence, EmulationError)


@planted(
    1,
    64,
    mapped(64, lambda x: x[::-1]),
    {
        "sync": error('tc.emit("bar.sync"'),
        "arrive": error('tc.emit("bar.arrive"'),
        "red": error('tc.emit("bar.red.popc.u32"'),
    },
)
def barrier_by_predicate(x, out, mistake: tc.Const):
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    if mistake == "arrive":
        tc.emit("bar.arrive", 1, 64, pred=tc.lane_id() == 0)
    elif mistake == "red":
        tc.emit("bar.red.popc.u32", 0, x[t] > 0, pred=tc.lane_id() < 20)
    else:
        tc.emit("bar.sync", 0, pred=tc.lane_id() < 31 if mistake else t < 64)
    if not mistake:
        out[t] = tile[63 - t]


@planted(
    1,
    32,
    mapped(32, lambda x: x[np.arange(16) ^ 1]),
    error("out[lane] = tc", says="lanes 0-15 of warp 0 of CTA 0 are here; lanes 16-31 have run to the end"),
)
def shuffle_of_half_a_warp(x, out, mistake: tc.Const):
    """The mask names all lanes, and half of them are here."""
    lane = tc.lane_id()
    if mistake:
        if lane < 16:
            out[lane] = tc.shfl_xor(x[lane], 1)
    else:
        value = tc.shfl_xor(x[lane], 1)
        if lane < 16:
            out[lane] = value


def _next_large(x):
    return ((x % 2 == 0) & (np.append(x[1:], x[-1]) > 500)).astype(np.int32)


@planted(1, 32, mapped(32, _next_large), error("and tc.shfl_down"))
def shuffle_behind_and(x, out, mistake: tc.Const):
    lane = tc.lane_id()
    if mistake:
        if x[lane] % 2 == 0 and tc.shfl_down(x[lane], 1) > 500:
            out[lane] = 1
    else:
        next = tc.shfl_down(x[lane], 1)
        if x[lane] % 2 == 0 and next > 500:
            out[lane] = 1


_arms = mapped(32, lambda x: np.concatenate([x[np.arange(16) ^ 3], x[np.arange(16, 32) ^ 5]]))


@planted(
    1,
    32,
    _arms,
    {
        "modes differ": error("tc.shfl_xor(x[lane], 3)", says="; lanes 16-31 wait at "),
        "masks differ": error("tc.shfl_xor(x[lane], 3)"),
    },
)
def shuffle_in_both_arms(x, out, mistake: tc.Const):
    """Each arm names the whole warp."""
    lane = tc.lane_id()
    if lane < 16:
        out[lane] = tc.shfl_xor(x[lane], 3)
    elif mistake == "modes differ":
        out[lane] = tc.shfl(x[lane], lane ^ 5)
    else:
        out[lane] = tc.shfl_xor(x[lane], 5, 0xFFFF0000 if mistake else 0xFFFFFFFF)


@planted(
    1,
    32,
    mapped(32, lambda x: x[np.arange(32) ^ 1]),
    error(
        "out[lane]",
        says="shfl.sync.bfly.b32: lanes of warp 0 that meet name different masks, lane 16 0xffffffff and lane 0 0x0000ffff",
    ),
    *PARTIAL,
)
def shuffle_with_masks_that_differ(x, out, mistake: tc.Const):
    """All lanes are here, with masks of their own."""
    lane = tc.lane_id()
    mask = tc.select(lane < 16, tc.u32(0x0000FFFF), tc.u32(0xFFFFFFFF if mistake else 0xFFFF0000))
    out[lane] = tc.shfl_xor(x[lane], 1, mask)


@planted(
    1,
    32,
    mapped(32, lambda x: x[np.arange(32) ^ 1]),
    error("out[lane]", says="lane 31 of warp 0 is not in its own mask"),
    *PARTIAL,
)
def shuffle_without_oneself(x, out, mistake: tc.Const):
    """The mask lacks lanes that execute the shuffle."""
    lane = tc.lane_id()
    out[lane] = tc.shfl_xor(x[lane], 1, 0x7FFFFFFF if mistake else 0xFFFFFFFF)


@planted(
    1,
    32,
    mapped(32, lambda x: x[15::-1]),
    error("out[lane]", says="lane 0 of warp 0 reads lane 16, which is not active"),
    *PARTIAL,
)
def shuffle_from_a_lane_outside(x, out, mistake: tc.Const):
    """Lanes 0 to 15 exchange; the mistake asks for a value of the upper half, which is not here."""
    lane = tc.lane_id()
    if lane < 16:
        out[lane] = tc.shfl(x[lane], lane + 16 if mistake else 15 - lane, 0x0000FFFF)


@planted(
    1,
    32,
    mapped(32, lambda x: np.full(32, 4 * x.sum(), np.int32)),
    {
        "redux": error("total += tc.redux"),
        "vote": error("total += tc.vote", says="have run to the end"),
        "match": error("total += tc.match_any"),
    },
)
def reduction_of_those_that_are_left(x, out, mistake: tc.Const):
    """Lanes leave a loop; those that stay ask the whole warp."""
    lane = tc.lane_id()
    i, total = 0, 0
    going = lane >= 0
    while going:
        if mistake:
            if i > lane % 4:
                break
        if mistake == "vote":
            total += tc.vote("ballot", x[lane] > 0).bits(tc.s32)
        elif mistake == "match":
            total += tc.match_any(x[lane]).bits(tc.s32)
        else:
            total += tc.redux("add", x[lane])
        i += 1
        going = i < 4
    out[lane] = total


@planted(
    1,
    32,
    mapped(32, lambda x: np.concatenate([x[15::-1], x[16:]])),
    dict.fromkeys(("full mask", "mask without oneself", "masks overlap"), error("tc.syncwarp({")),
    Deadlock,
    *PARTIAL,
)
def syncwarp_in_a_branch(x, out, mistake: tc.Const):
    tile = tc.shared(32, tc.s32)
    lane = tc.lane_id()
    tile[lane] = x[lane]
    if lane < 16:
        tc.syncwarp(
            {"full mask": 0xFFFFFFFF, "mask without oneself": 0x00FF, "masks overlap": 0x3FFFF}.get(
                mistake, 0xFFFF
            )
        )
        out[lane] = tile[15 - lane]
    else:
        if mistake == "masks overlap":
            tc.syncwarp(0xFFFF0000)
        out[lane] = tile[lane]


@planted(1, 32, mapped(32, lambda x: x[:1]), error("if tc.elect #1"))
def elect_in_half_a_warp(x, out, mistake: tc.Const):
    lane = tc.lane_id()
    if mistake:
        if lane >= 16:
            if tc.elect():
                out[0] = x[0]
    else:
        if tc.elect():
            out[0] = x[0]


def left_half(draw):
    x = draw.integers(-4, 5, (16, 16)).astype(np.float16)
    right = x[:, :8].astype(np.float32)
    return {"x": x, "out": np.zeros_like(right)}, {"out": right}


@planted(
    1,
    32,
    left_half,
    {
        "mma": error("acc = mma"),
        "ldmatrix": error("out[lane, 0] = tc"),
        "stmatrix": error("tc.stmatrix"),
        "movmatrix": error("moved ="),
    },
)
def product_of_half_a_warp(x, out, mistake: tc.Const):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((16, 16), tc.f16)
    lane = tc.lane_id()
    for row in tc.static_range(8):
        tile[2 * row + lane // 16, lane % 16] = x[2 * row + lane // 16, lane % 16]
    tc.syncwarp()
    half = lane < 16
    if mistake == "ldmatrix":
        if half:
            out[lane, 0] = tc.ldmatrix(tile, mma.a)[0].to(tc.f32)
    fragment = tc.ldmatrix(tile, mma.a)
    one = tc.fragment(mma.b, lambda row, col: tc.select(row == col, tc.f16(1), tc.f16(0)))
    if mistake == "mma":
        if half:
            acc = mma(fragment, one, mma.d.zeros())
            out[lane, 0] = acc[0]
    elif mistake == "stmatrix":
        if half:
            tc.stmatrix(tile, fragment)
    elif mistake == "movmatrix":
        if half:
            moved = tc.emit("movmatrix.sync.aligned.m8n8.trans.b16", fragment.registers[0])
            out[lane, 0] = moved.bits(tc.s32).to(tc.f32)
    else:
        tc.store_elements(out, mma(fragment, one, mma.d.zeros()))


@planted(1, 32, mapped(20, lambda x: np.full(20, x.sum(), np.int32)), error("value +="))
def shuffle_after_a_return(x, out, mistake: tc.Const):
    """Lanes beyond the end return; the others reduce with a full mask."""
    lane = tc.lane_id()
    if mistake:
        if lane >= x.shape[0]:
            return
    value = x.at(lane).load(pred=lane < x.shape[0])
    for step in (16, 8, 4, 2, 1):
        value += tc.shfl_xor(value, step)
    if lane < x.shape[0]:
        out[lane] = value
