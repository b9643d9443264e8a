"""Races between the warps of a block in shared memory."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Race, RaceWarning
from tests.planted.harness import Planted, mapped, race

planted = Planted(Race)


NO_BARRIER = "nothing", "a vote", "a fence", "an arrival"


@planted(
    1,
    64,
    mapped(64, lambda x: x[::-1]),
    {
        **dict.fromkeys(NO_BARRIER, race("tile[t] = #1", "out[t] =")),
        "warp 1 stores behind the barrier": race("tile[t] = #2", "out[t] ="),
    },
)
def exchange_between_warps(x, out, mistake: tc.Const):
    """A reducing barrier makes the warps wait for each other; a vote, a fence or an arrival does not."""
    tile = tc.shared(64, tc.s32)
    t, late = tc.threadIdx.x, mistake == "warp 1 stores behind the barrier"
    if not late or t < 32:
        tile[t] = x[t]
    if mistake == "a vote":
        tc.vote("any", x[t] > 0)
    elif mistake == "a fence":
        tc.emit("fence.sc.cta")
    elif mistake == "an arrival":
        if t < 32:
            tc.barrier_arrive(1, 64)
        else:
            tc.barrier(1, 64)
    elif mistake != "nothing":
        tc.emit("bar.red.or.pred", 0, x[t] > 0)
    if late and t >= 32:
        tile[t] = x[t]
    out[t] = tile[63 - t]


@planted(
    1, 64, mapped((5, 64), lambda x: x[:, ::-1].sum(axis=0).astype(np.int32)), race("tile[t] =", "total +=")
)
def overwrites_in_the_next_turn(x, out, mistake: tc.Const):
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    total = 0
    for i in tc.range(x.shape[0]):
        tile[t] = x[i, t]
        tc.barrier()
        total += tile[63 - t]
        if not mistake:
            tc.barrier()
    out[t] = total


@planted(1, 128, mapped(128, lambda x: np.roll(x, -32)), race("tile[t] =", "out[t] ="))
def named_barrier_of_half_the_warps(x, out, mistake: tc.Const):
    """Pairs of warps have barriers of their own, but the data go around all four warps."""
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    if mistake:
        tc.barrier(1 + tc.warp_id() // 2, 64)
    else:
        tc.barrier(1, 128)
    out[t] = tile[(t + 32) % 128]


@planted(
    1,
    64,
    mapped((6, 32), lambda x: (x[:, ::-1] * np.arange(1, 7)[:, None]).sum(axis=0).astype(np.int32)),
    {
        "freed before it is read": race("total +=", "slots[i % 2, lane]"),
        "reported before the store": race("slots[i % 2, lane]", "total +="),
    },
)
def ring_of_named_barriers(x, out, mistake: tc.Const):
    """Two slots; barriers 1 and 2 say that one is full, 3 and 4 that it is empty."""
    slots = tc.shared((2, 32), tc.s32)
    lane, turns = tc.lane_id(), x.shape[0]
    if tc.warp_id() == 0:
        for i in tc.range(turns):
            if i >= 2:
                tc.barrier(3 + i % 2, 64)
            if mistake == "reported before the store":
                tc.barrier_arrive(1 + i % 2, 64)
            slots[i % 2, lane] = x[i, lane]
            if mistake != "reported before the store":
                tc.barrier_arrive(1 + i % 2, 64)
    else:
        total = 0
        for i in tc.range(turns):
            tc.barrier(1 + i % 2, 64)
            if mistake == "freed before it is read":
                if i + 2 < turns:
                    tc.barrier_arrive(3 + i % 2, 64)
            total += slots[i % 2, 31 - lane] * (i + 1)
            if mistake != "freed before it is read":
                if i + 2 < turns:
                    tc.barrier_arrive(3 + i % 2, 64)
        out[lane] = total


@planted(
    1, 64, mapped(64, lambda x: np.bincount(x % 16, minlength=16).astype(np.int32)), race("bins[x[t] % 16]")
)
def histogram_without_atomics(x, out, mistake: tc.Const):
    bins = tc.shared(16, tc.s32)
    t = tc.threadIdx.x
    if t < 16:
        bins[t] = 0
    tc.barrier()
    if mistake:
        bins[x[t] % 16] += 1
    else:
        tc.reduce("add", bins.at(x[t] % 16), 1)
    tc.barrier()
    if t < 16:
        out[t] = bins[t]


@planted(
    1,
    64,
    mapped(64, lambda x: np.full(64, (x % 2).sum(), np.int32)),
    {
        "no barrier behind the zero": race("count[0] =", "tc.reduce"),
        "no barrier before the load": race("tc.reduce", "out[t] ="),
    },
)
def counter_without_barriers(x, out, mistake: tc.Const):
    """A counter that is zeroed by a plain store, raised by atomics and read by a plain load."""
    count = tc.shared(1, tc.s32)
    t = tc.threadIdx.x
    if t == 0:
        count[0] = 0
    if mistake != "no barrier behind the zero":
        tc.barrier()
    if x[t] % 2 == 1:
        tc.reduce("add", count.at(0), 1)
    if mistake != "no barrier before the load":
        tc.barrier()
    out[t] = count[0]


_reverse32 = mapped(32, lambda x: x[::-1])


@planted(
    1,
    64,
    _reverse32,
    dict.fromkeys(
        ("relaxed store", "relaxed load", "volatile", "other lanes not ordered"),
        race("data[lane]", "out[lane]"),
    ),
)
def flag_without_release(x, out, mistake: tc.Const):
    data, flag = tc.shared(32, tc.s32), tc.shared(1, tc.u32)
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        flag[0] = 0
    tc.barrier()
    store = {"relaxed store": "st.relaxed.cta", "volatile": "st.volatile"}.get(mistake, "st.release.cta")
    load = {"relaxed load": "ld.relaxed.cta", "volatile": "ld.volatile"}.get(mistake, "ld.acquire.cta")
    if tc.warp_id() == 0:
        data[lane] = x[lane]
        if mistake != "other lanes not ordered":
            tc.syncwarp()
        if lane == 0:
            tc.emit(f"{store}.shared.b32", flag.at(0), tc.u32(1))
    else:
        while tc.emit(f"{load}.shared.b32", flag.at(0)).bits(tc.u32) == 0:
            tc.emit("nanosleep.u32", 20)
        out[lane] = data[31 - lane]


@planted(
    1,
    64,
    _reverse32,
    {
        "none before the store": race("data[lane]", "out[lane]"),
        "none after the load": race("data[lane]", "out[lane]"),
    },
)
def flag_without_fence(x, out, mistake: tc.Const):
    """A volatile flag with fences."""
    data, flag = tc.shared(32, tc.s32), tc.shared(1, tc.u32)
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        flag[0] = 0
    tc.barrier()
    if tc.warp_id() == 0:
        data[lane] = x[lane]
        tc.syncwarp()
        if mistake != "none before the store":
            tc.emit("membar.cta")
        if lane == 0:
            tc.emit("st.volatile.shared.b32", flag.at(0), tc.u32(1))
    else:
        while tc.emit("ld.volatile.shared.b32", flag.at(0)).bits(tc.u32) == 0:
            tc.emit("nanosleep.u32", 20)
        if mistake != "none after the load":
            tc.emit("membar.cta")
        out[lane] = data[31 - lane]


@planted(1, 64, mapped(32, lambda x: np.full(32, x[0], np.int32)), race("flag[0] = x", "seen = tc.emit"))
def plain_flag(x, out, mistake: tc.Const):
    """The flag itself is stored without `volatile`, which races with the loop that polls it."""
    flag = tc.shared(1, tc.u32)
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        flag[0] = 0
    tc.barrier()
    if tc.warp_id() == 0:
        if lane == 0:
            if mistake:
                flag[0] = x[0].to(tc.u32)
            else:
                tc.emit("st.relaxed.cta.shared.b32", flag.at(0), x[0].bits(tc.u32))
    else:
        seen = tc.u32(0)
        while seen == 0:
            seen = tc.emit("ld.relaxed.cta.shared.b32", flag.at(0)).bits(tc.u32)
        out[lane] = seen.bits(tc.s32)


@planted(
    1,
    128,
    mapped(128, lambda x: np.full(128, x[::32].sum(), np.int32)),
    {"taken relaxed": race("total[0] +="), "given back relaxed": race("total[0] +=")},
)
def spin_lock(x, out, mistake: tc.Const):
    lock, total = tc.shared(1, tc.u32), tc.shared(1, tc.s32)
    if tc.threadIdx.x == 0:
        lock[0] = 0
        total[0] = 0
    tc.barrier()
    take = "atom.relaxed.cta" if mistake == "taken relaxed" else "atom.acquire.cta"
    give = "atom.relaxed.cta" if mistake == "given back relaxed" else "atom.release.cta"
    if tc.lane_id() == 0:
        taken = tc.u32(1)
        while taken != 0:
            taken = tc.emit(f"{take}.shared.cas.b32", lock.at(0), tc.u32(0), tc.u32(1)).bits(tc.u32)
        total[0] += x[tc.threadIdx.x]
        tc.emit(f"{give}.shared.exch.b32", lock.at(0), tc.u32(0))
    tc.barrier()
    out[tc.threadIdx.x] = total[0]


@planted(1, 128, mapped(128, lambda x: np.full(128, x.sum(), np.int32)), race("sums[0 if"))
def writes_of_different_values(x, out, mistake: tc.Const):
    """One thread of each warp stores the warp's sum, into one word or into one for each warp."""
    sums = tc.shared(4, tc.s32)
    total = tc.redux("add", x[tc.threadIdx.x])
    if tc.threadIdx.x < 4:
        sums[tc.threadIdx.x] = 0
    tc.barrier()
    if tc.lane_id() == 0:
        sums[0 if mistake else tc.warp_id()] = total
    tc.barrier()
    out[tc.threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3]


@planted(1, 128, mapped(128, lambda x: x), race("flags[0 if"), RaceWarning)
def writes_of_the_same_value(x, out, mistake: tc.Const):
    """One thread of each warp writes that it was there."""
    flags = tc.shared(4, tc.s32)
    if tc.threadIdx.x < 4:
        flags[tc.threadIdx.x] = 0
    tc.barrier()
    if tc.lane_id() == 0:
        flags[0 if mistake else tc.warp_id()] = 1
    tc.barrier()
    out[tc.threadIdx.x] = x[tc.threadIdx.x] * (flags[0] | flags[1] | flags[2] | flags[3])


@planted(1, 128, mapped(128, lambda x: x % 256), race("place.as_type"))
def bytes_beside_each_other(x, out, mistake: tc.Const):
    """Each thread stores a byte; the mistake stores two, and so the neighbour's, too."""
    bytes = tc.shared(128, tc.u8)
    t = tc.threadIdx.x
    place = bytes.at(t if not mistake else 2 * (t // 2))
    value = (x[t] % 256).to(tc.u32)
    if mistake:
        place.as_type(tc.u16).store(value.to(tc.u16))
    else:
        place.store(value.to(tc.u8))
    tc.barrier()
    out[t] = bytes[t].to(tc.s32)


def _overlapped(x):
    tile = x.copy()
    tile[3::4] = 7
    return tile


@planted(1, 64, mapped(128, _overlapped), race("tile.at(4", "tile[4 * lane + 3]"))
def vectors_overlap_in_part(x, out, mistake: tc.Const):
    """Warp 0 stores vectors of four; warp 1 corrects one element, which may be part of one."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    if tc.warp_id() == 0:
        tile.at(4 * lane).store(x.at(4 * lane).load(4))
    if not mistake:
        tc.barrier()
    if tc.warp_id() == 1:
        tile[4 * lane + 3] = 7
    tc.barrier()
    out.at(2 * tc.threadIdx.x).store(tile.at(2 * tc.threadIdx.x).load(2))


@planted(
    1, (16, 8), mapped((8, 16), lambda x: np.roll(x, -1, axis=0)), race("tile[row, col]", "out[row, col]")
)
def neighbour_rows_of_a_plane(x, out, mistake: tc.Const):
    """A block of 16 x 8 threads, of which a warp has two rows: half of the reads stay in it."""
    tile = tc.shared((8, 16), tc.s32)
    row, col = tc.threadIdx.y, tc.threadIdx.x
    tile[row, col] = x[row, col]
    if mistake:
        tc.syncwarp()
    else:
        tc.barrier()
    out[row, col] = tile[(row + 1) % 8, col]


@planted(
    1,
    64,
    mapped(64, lambda x: np.where(np.arange(64) < 32, 0, 5).astype(np.int32)),
    race("tile.at(t)", "out[t] ="),
)
def predicated_store(x, out, mistake: tc.Const):
    """Only warp 1 stores, by predicate; the barrier is missing all the same."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    tc.barrier()
    tile.at(t).store(0, pred=t >= 32)
    if not mistake:
        tc.barrier()
    out[t] = tile.at(63 - t).load(pred=t < 32, otherwise=5)


@planted(1, 128, mapped(32, lambda x: np.tile(x[::-1], (3, 1))), race("tile[lane]", "out[warp"))
def specialised_warps(x, out, mistake: tc.Const):
    """Warps 1 to 3 wait for warp 0 at a barrier of 128; the mistake lets warp 3 wait for nothing."""
    tile = tc.shared(32, tc.s32)
    lane, warp = tc.lane_id(), tc.warp_id()
    if warp == 0:
        tile[lane] = x[lane]
        tc.barrier_arrive(2, 96 if mistake else 128)
    else:
        if mistake:
            if warp < 3:
                tc.barrier(2, 96)
        else:
            tc.barrier(2, 128)
        out[warp - 1, lane] = tile[31 - lane]


@planted(1, 64, _reverse32, race("halves[0]", "out[lane]"))
def wide_values_in_halves(x, out, mistake: tc.Const):
    """Warp 0 writes a 64-bit value as two words with nothing to say when; warp 1 reads it whole."""
    pairs = tc.shared(32, tc.s64)
    lane = tc.lane_id()
    if tc.warp_id() == 0:
        halves = pairs.at(lane).as_type(tc.s32)
        halves[0] = x[lane]
        halves[1] = 0
    if not mistake:
        tc.barrier()
    if tc.warp_id() == 1:
        out[lane] = pairs[31 - lane].to(tc.s32)
