"""Order that goes through several steps or other threads, and lacks one link.

The twins are correct only because order is transitive: a detector that forgets what came before a
step blames them.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Race
from tests.planted.harness import Planted, mapped, race

planted = Planted(Race)


def load(semantics, pointer):
    """ld with semantics such as ".acquire.gpu", of 32 bits."""
    return tc.emit(f"ld{semantics}.{pointer.space}.b32", pointer).bits(tc.s32)


def store(semantics, pointer, value):
    tc.emit(f"st{semantics}.{pointer.space}.b32", pointer, value)


def wait_until(semantics, pointer, value):
    while load(semantics, pointer) != value:
        tc.emit("nanosleep.u32", 20)


# -- barriers -----------------------------------------------------------------------------------


@planted(1, 32, mapped(32, lambda x: x[:1]), race("tile[0] =", "out[0] ="))
def masks_in_a_chain(x, out, mistake: tc.Const):
    """Lanes 0 and 1 synchronise, then 1 and 2; the mistake has the two in the other order."""
    tile = tc.shared(4, tc.s32)
    lane = tc.lane_id()
    if lane == 0:
        tile[0] = x[0]
    if mistake:
        if (lane == 1) | (lane == 2):
            tc.syncwarp(0b110)
    if lane < 2:
        tc.syncwarp(0b011)
    if not mistake:
        if (lane == 1) | (lane == 2):
            tc.syncwarp(0b110)
    if lane == 2:
        out[0] = tile[0]


@planted(1, 128, mapped(128, lambda x: x[:32]), race("tile[t] =", "out[tc.lane_id()] #1"))
def barrier_of_others(x, out, mistake: tc.Const):
    """Four warps; 0 and 1 meet, 2 and 3 meet, then 1 and 2. Warp 3 may not read warp 0's data."""
    tile = tc.shared(128, tc.s32)
    t, warp = tc.threadIdx.x, tc.warp_id()
    tile[t] = x[t]
    tc.barrier(1 + warp // 2, 64)
    if (warp == 1) | (warp == 2):
        tc.barrier(3, 64)
    if mistake:
        if warp == 3:
            out[tc.lane_id()] = tile[tc.lane_id()]
    else:
        if warp == 2:
            out[tc.lane_id()] = tile[tc.lane_id()]


def relayed(draw):
    x = draw.integers(1, 1000, 64).astype(np.int32)
    arrays = {"x": x, "out": np.zeros_like(x), "data": np.zeros_like(x), "flags": np.zeros(4, np.int32)}
    return arrays, {"out": 3 * x[np.arange(64) ^ 32]}


# -- flags, atomics and fences ------------------------------------------------------------------


@planted(
    3,
    64,
    relayed,
    {
        "relaxed load": race("data[t] =", "out[t] ="),
        "relaxed store": race("data[t] =", "out[t] ="),
        "load of cta scope": race('store(".release.gpu"', "wait_until({"),
        "no barrier between": race("data[t] =", "out[t] ="),
    },
)
def relay_of_flags(x, out, data, flags, mistake: tc.Const):
    """CTA 0 to CTA 1 to CTA 2. In CTA 1."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    if b == 0:
        data[t] = 3 * x[t]
        tc.barrier()
        if t == 0:
            store(".release.gpu", flags.at(0), 1)
    elif b == 1:
        if t == 0:
            wait_until(
                {"relaxed load": ".relaxed.gpu", "load of cta scope": ".acquire.cta"}.get(
                    mistake, ".acquire.gpu"
                ),
                flags.at(0),
                1,
            )
            store(".relaxed.cta", flags.at(2), 1)
        if mistake != "no barrier between":
            tc.barrier()
        else:
            wait_until(".relaxed.cta", flags.at(2), 1)
        if t == 32:
            store(".relaxed.gpu" if mistake == "relaxed store" else ".release.gpu", flags.at(1), 1)
    else:
        wait_until(".acquire.gpu", flags.at(1), 1)
        out[t] = data[t ^ 32]


@planted(3, 64, relayed, race("data[t] =", "out[t] ="))
def atomics_continue_a_release(x, out, data, flags, mistake: tc.Const):
    """CTA 1 adds to the flag that CTA 0 has released, by a relaxed atomic: whoever acquires
    the sum is behind CTA 0, too. A store in its place ends that."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    if b == 0:
        data[t] = 3 * x[t]
        tc.barrier()
        if t == 0:
            tc.emit("atom.release.gpu.global.add.s32", flags.at(0), 1)
    elif b == 1:
        if t == 0:
            wait_until(".relaxed.gpu", flags.at(0), 1)
            if mistake:
                store(".relaxed.gpu", flags.at(0), 2)
            else:
                tc.emit("atom.relaxed.gpu.global.add.s32", flags.at(0), 1)
    else:
        wait_until(".acquire.gpu", flags.at(0), 2)
        out[t] = data[t ^ 32]


@planted(
    1,
    128,
    mapped((4, 32), lambda x: x[:, ::-1].sum(axis=0).astype(np.int32)),
    {
        "relaxed count": race("rows[warp, lane]", "out[lane]"),
        "no syncwarp": race("rows[warp, lane]", "out[lane]"),
    },
)
def last_warp_adds(x, out, mistake: tc.Const):
    """Each warp leaves a row; the last one to count adds them."""
    rows, count = tc.shared((4, 32), tc.s32), tc.shared(1, tc.s32)
    lane, warp = tc.lane_id(), tc.warp_id()
    if tc.threadIdx.x == 0:
        count[0] = 0
    tc.barrier()
    rows[warp, lane] = x[warp, lane]
    if mistake != "no syncwarp":
        tc.syncwarp()
    before = tc.s32(0)
    if lane == 0:
        before = tc.emit(
            f"atom.{'relaxed' if mistake == 'relaxed count' else 'acq_rel'}.cta.shared.add.s32",
            count.at(0),
            1,
        )
    tc.syncwarp()
    before = tc.shfl(before, 0)
    if before == 3:
        out[lane] = rows[0, 31 - lane] + rows[1, 31 - lane] + rows[2, 31 - lane] + rows[3, 31 - lane]


_reverse32 = mapped(32, lambda x: x[::-1])


@planted(
    1,
    64,
    _reverse32,
    dict.fromkeys(
        ("fence before the data", "fence before the last look", "fence behind the access"),
        race("data[lane]", "out[lane]"),
    ),
)
def fences_around_atomics(x, out, mistake: tc.Const):
    """Relaxed accesses between fences."""
    data, flag = tc.shared(32, tc.s32), tc.shared(1, tc.s32)
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        flag[0] = 0
    tc.barrier()
    if tc.warp_id() == 0:
        if mistake == "fence before the data":
            tc.emit("fence.acq_rel.cta")
        data[lane] = x[lane]
        if mistake != "fence before the data":
            tc.emit("fence.acq_rel.cta")
        tc.emit("atom.relaxed.cta.shared.add.s32", flag.at(0), 1)
    else:
        if mistake == "fence before the last look":
            tc.emit("fence.acq_rel.cta")
        wait_until(".relaxed.cta", flag.at(0), 32)
        if mistake not in ("fence before the last look", "fence behind the access"):
            tc.emit("fence.acq_rel.cta")
        out[lane] = data[31 - lane]
        if mistake == "fence behind the access":
            tc.emit("fence.acq_rel.cta")


def mailed(draw):
    x = draw.integers(1, 1000, 32).astype(np.int32)
    arrays = {
        "x": x,
        "out": np.zeros_like(x),
        "data": np.zeros((3, 32), np.int32),
        "flags": np.zeros(1, np.int32),
    }
    return arrays, {"out": x[::-1].copy()}


@planted(
    2,
    32,
    mailed,
    {"put relaxed": race("data[row, t]", "out[t] ="), "taken relaxed": race("data[row, t]", "out[t] =")},
)
def mailbox(x, out, data, flags, mistake: tc.Const):
    """The number of a filled row goes through an exchange."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    if b == 0:
        row = 1 + x[0] % 2
        data[row, t] = x[t]
        tc.barrier()
        if t == 0:
            tc.emit(
                f"atom.{'relaxed' if mistake == 'put relaxed' else 'release'}.gpu.global.exch.b32",
                flags.at(0),
                row,
            )
    else:
        got = tc.shared(1, tc.s32)
        if t == 0:
            taken = tc.s32(0)
            while taken == 0:
                taken = tc.emit(
                    f"atom.{'relaxed' if mistake == 'taken relaxed' else 'acquire'}.gpu.global.exch.b32",
                    flags.at(0),
                    0,
                ).bits(tc.s32)
            got[0] = taken
        tc.barrier()
        out[t] = data[got[0], 31 - t]


@planted(1, 64, _reverse32, race("data[lane]", "out[lane]"))
def one_lane_waits(x, out, mistake: tc.Const):
    """Lane 0 of the reader acquires the flag for its warp. The mistake lacks the syncwarp behind."""
    data, flag = tc.shared(32, tc.s32), tc.shared(1, tc.s32)
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        flag[0] = 0
    tc.barrier()
    if tc.warp_id() == 0:
        data[lane] = x[lane]
        tc.syncwarp()
        if lane == 0:
            store(".release.cta", flag.at(0), 1)
    else:
        if lane == 0:
            wait_until(".acquire.cta", flag.at(0), 1)
        if not mistake:
            tc.syncwarp()
        out[lane] = data[31 - lane]


def recorded(draw):
    x = draw.integers(1, 1000, 1).astype(np.int32)
    arrays = {
        "x": x,
        "out": np.zeros(1, np.int32),
        "data": np.zeros(2, np.int32),
        "flags": np.zeros(2, np.int32),
    }
    return arrays, {"out": x.copy()}


@planted(2, 32, recorded, race("store(kind, data.at(0), x[0])", "low = load"))
def versions_of_a_record(x, out, data, flags, mistake: tc.Const):
    """A sequence lock: readers may see a record in the making, and try again. The record must
    then be accessed by relaxed loads and stores; plain ones race."""
    kind = "" if mistake else ".relaxed.gpu"
    if tc.blockIdx.x == 0:
        if tc.threadIdx.x == 0:
            wait_until(".relaxed.gpu", flags.at(1), 1)  # a reader is at it
            store(".relaxed.gpu", flags.at(0), 1)
            tc.emit("fence.acq_rel.gpu")
            store(kind, data.at(0), x[0])
            store(kind, data.at(1), 2 * x[0])
            store(".release.gpu", flags.at(0), 2)
    else:
        going = tc.threadIdx.x == 0
        while going:
            store(".relaxed.gpu", flags.at(1), 1)
            version = load(".acquire.gpu", flags.at(0))
            low = load(kind, data.at(0))
            high = load(kind, data.at(1))
            tc.emit("fence.acq_rel.gpu")
            going = (version != 2) | (load(".relaxed.gpu", flags.at(0)) != version)
            if not going:
                out[0] = high - low
