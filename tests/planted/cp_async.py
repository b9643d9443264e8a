"""Mistakes with cp.async: groups, waits, barriers, rings of stages.

A copy that is still in flight may be reported as a race of the copy with the access, or as an
access to bytes that it still owns.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race, Uninitialised
from tests.planted.harness import Planted, error, mapped, race

IN_FLIGHT = (Race, Uninitialised, EmulationError)
planted = Planted(*IN_FLIGHT)


_reverse = mapped(256, lambda x: x[::-1])


@planted(
    1,
    64,
    _reverse,
    {
        "no wait": error(
            "out[64 * part + t]",
            says=r"copy at \S+ \(by thread 63 .* still owns byte .*; wait for the copy first",
        ),
        "no commit": error(
            "out[64 * part + t]", says="in no group yet, so no wait awaits it; tc.cp_async_commit"
        ),
        "waits for all but one": error(
            "out[64 * part + t]", says="`tc.cp_async_wait.* leaves it in flight; 0 is needed"
        ),
        "no barrier": race("tc.cp_async(", "out[64 * part + t]"),
        "barrier before the wait": race("tc.cp_async(", "out[64 * part + t]"),
        "commit after the wait": error("out[64 * part + t]"),
    },
)
def one_tile(x, out, mistake: tc.Const):
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16)
    if mistake not in ("no commit", "commit after the wait"):
        tc.cp_async_commit()
    if mistake == "barrier before the wait":
        tc.barrier()
    if mistake != "no wait":
        tc.cp_async_wait(1 if mistake == "waits for all but one" else 0)
    if mistake == "commit after the wait":
        tc.cp_async_commit()
    if mistake not in ("no barrier", "barrier before the wait"):
        tc.barrier()
    for part in tc.static_range(4):
        out[64 * part + t] = tile[255 - (64 * part + t)]


@planted(1, 32, mapped(128, lambda x: x), race("tc.cp_async(", "out.at"))
def own_copies(x, out, mistake: tc.Const):
    """What a thread has copied itself it may read behind its wait; the neighbour's it may not."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    tc.cp_async(tile.at(4 * lane), x.at(4 * lane), 16)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    source = lane ^ 1 if mistake else lane
    out.at(4 * source).store(tile.at(4 * source).load(4))


_rows = mapped((5, 256), lambda x: x[:, :191:-1].sum(axis=0).astype(np.int32))


@planted(
    1,
    64,
    _rows,
    {
        "one group too few": error("total +="),
        "no barrier": race("tc.cp_async(tile.at(i", "total +="),
        "copies before the barrier": race("tc.cp_async(tile.at(ahead", "total +="),
        "into the stage in use": race("tc.cp_async(tile.at(slot", "total +="),
        "commits only with copies": error("total +="),
    },
)
def ring(x, out, mistake: tc.Const, stages: tc.Const = 3):
    """A ring of three stages: wait, barrier, use stage i, prefetch into the stage used before."""
    tile = tc.shared((stages, 256), tc.s32)
    t, rows = tc.threadIdx.x, x.shape[0]
    for i in range(stages - 1):
        tc.cp_async(tile.at(i, 4 * t), x.at(i, 4 * t), 16)
        tc.cp_async_commit()
    total = 0
    for i in tc.range(rows):
        ahead = i + stages - 1
        if mistake == "copies before the barrier":
            if ahead < rows:
                tc.cp_async(tile.at(ahead % stages, 4 * t), x.at(ahead, 4 * t), 16)
            tc.cp_async_commit()
            tc.cp_async_wait(stages - 1)
        else:
            tc.cp_async_wait(stages - 1 if mistake == "one group too few" else stages - 2)
        if mistake != "no barrier":
            tc.barrier()
        total += tile[i % stages, 255 - t]
        if mistake != "copies before the barrier":
            if ahead < rows:
                slot = (i if mistake == "into the stage in use" else ahead) % stages
                tc.cp_async(tile.at(slot, 4 * t), x.at(ahead, 4 * t), 16)
            if mistake == "commits only with copies":
                if ahead < rows:
                    tc.cp_async_commit()
            else:
                tc.cp_async_commit()
    out[t] = total


@planted(1, 64, mapped(128, lambda x: x), error("out.at"))
def producer_warp(x, out, mistake: tc.Const):
    """Warp 0 copies, warp 1 reads. Groups belong to threads: the reader cannot wait for them."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    if tc.warp_id() == 0:
        tc.cp_async(tile.at(4 * lane), x.at(4 * lane), 16)
        tc.cp_async_commit()
        if not mistake:
            tc.cp_async_wait(0)
    tc.barrier()
    if tc.warp_id() == 1:
        tc.cp_async_wait(0)
        out.at(4 * lane).store(tile.at(4 * lane).load(4))


@planted(
    1,
    64,
    _reverse,
    {
        "one warp waits": error("out[64 * part + t]"),
        "groups differ": error("out[64 * part + t]", says="by thread 63 of CTA 0. still owns"),
    },
)
def only_some_wait(x, out, mistake: tc.Const):
    """All copy."""
    tile = tc.shared((2, 256), tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(0, 4 * t), x.at(4 * t), 16)
    tc.cp_async_commit()
    if mistake == "one warp waits":
        if t < 32:
            tc.cp_async_wait(0)
    elif mistake == "groups differ":
        if t < 48:
            tc.cp_async_commit()
        tc.cp_async_wait(1)
    else:
        tc.cp_async_wait(0)
    tc.barrier()
    for part in tc.static_range(4):
        out[64 * part + t] = tile[0, 255 - (64 * part + t)]


def cleared(draw):
    x = draw.integers(1, 1000, 256).astype(np.int32)
    return {"x": x, "out": np.zeros_like(x)}, {"x": np.zeros_like(x), "out": x.copy()}


@planted(
    1,
    64,
    cleared,
    {
        "by its thread": race("tc.cp_async(", "x.at(4 * t).store"),
        "by others": race("tc.cp_async(", "x.at(4 * (63"),
    },
)
def source_is_overwritten(x, out, mistake: tc.Const):
    """The array is cleared for the next launch."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16)
    tc.cp_async_commit()
    if mistake == "by its thread":
        x.at(4 * t).store([0, 0, 0, 0])
    if mistake != "by its thread":
        if not mistake:
            tc.cp_async_wait(0)
        tc.barrier()
        x.at(4 * (63 - t)).store([0, 0, 0, 0])
    tc.cp_async_wait(0)
    tc.barrier()
    for part in tc.static_range(4):
        out[64 * part + t] = tile[64 * part + t]


@planted(
    1,
    64,
    mapped(256, lambda x: np.full(64, 2, np.int32)),
    {"before the wait": error("tile[4 * t]"), "before the copy": race("tc.cp_async(", "tile[4 * (t ^ 32)]")},
)
def target_is_written(x, out, mistake: tc.Const):
    """The last element is set to a constant."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    if mistake == "before the copy":
        tile[4 * (t ^ 32)] = 1
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16)
    tc.cp_async_commit()
    if mistake == "before the wait":
        tile[4 * t] = 1
    tc.cp_async_wait(0)
    if mistake != "before the copy":
        tile[4 * t + 1] = 2
    tc.barrier()
    out[t] = tile[4 * (t ^ 32) + 1]


@planted(1, 32, mapped((2, 128), lambda x: 1000 * x[0] + x[1]), error("old = tile.at #2"))
def target_is_still_read(x, out, mistake: tc.Const):
    """A thread reads the old tile after it has issued the copy of the new one."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    tile.at(4 * lane).store(x.at(0, 4 * lane).load(4))
    if not mistake:
        old = tile.at(4 * lane).load(4)
    tc.cp_async(tile.at(4 * lane), x.at(1, 4 * lane), 16)
    tc.cp_async_commit()
    if mistake:
        old = tile.at(4 * lane).load(4)
    tc.cp_async_wait(0)
    new = tile.at(4 * lane).load(4)
    for j in tc.static_range(4):
        out[4 * lane + j] = 1000 * old[j] + new[j]


@planted(
    1,
    64,
    mapped(256, lambda x: x[:64]),
    error("tc.cp_async(", says="by thread 32 .* an asynchronous copy still owns"),
)
def target_of_two_threads(x, out, mistake: tc.Const):
    """Two threads copy to the same 16 bytes."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(4 * (t % 32 if mistake else t)), x.at(4 * t), 16)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    tc.barrier()
    out[t] = tile[t]


def through_data(draw):
    x = draw.integers(1, 1000, 256).astype(np.int32)
    return {"x": x, "out": np.zeros(64, np.int32), "data": np.zeros_like(x)}, {"out": x[::4][::-1].copy()}


@planted(1, 64, through_data, race("data.at(4 * t)", "tc.cp_async("))
def source_is_not_ready(x, out, data, mistake: tc.Const):
    """The block itself writes the array that it copies; no barrier lies between."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    data.at(4 * t).store(x.at(4 * t).load(4))
    if not mistake:
        tc.barrier()
    tc.cp_async(tile.at(4 * t), data.at(4 * (63 - t)), 16)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    out[t] = tile[4 * t]


@planted(1, 32, mapped(128, lambda x: x), error("out.at"))
def fewer_bytes_than_are_read(x, out, mistake: tc.Const):
    """Copies of 8 bytes into places of 16, of which the rest is never written."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    tc.cp_async(tile.at(4 * lane), x.at(4 * lane), 8 if mistake else 16)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    out.at(4 * lane).store(tile.at(4 * lane).load(4))


@planted(1, 64, _reverse, error("out[64 * part + t]"))
def arrives_at_an_mbarrier(x, out, mistake: tc.Const):
    """An arrival does not wait for the copies of its thread."""
    tile, bar = tc.shared(256, tc.s32), tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(64)
        tc.fence_mbarrier_init()
    tc.barrier()
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16)
    tc.cp_async_commit()
    if not mistake:
        tc.cp_async_wait(0)
    bar.arrive()
    bar.wait(0)
    for part in tc.static_range(4):
        out[64 * part + t] = tile[255 - (64 * part + t)]
