"""Mistakes with cp.async: groups, waits, barriers, rings of stages.

A copy that is still in flight may be reported as a race of the copy with the access, or as an
access to bytes that it still owns.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race, Uninitialised
from tests.planted.harness import case, mapped

IN_FLIGHT = (Race, Uninitialised, EmulationError)


@tc.kernel
def one_tile(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: no wait, 2: no commit, 3: it waits for all but one group, 4: no barrier behind the
    wait, 5: the barrier comes before the wait, 6: the commit comes after the wait."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16)  # race: first
    if bug not in (2, 6):
        tc.cp_async_commit()
    if bug == 5:
        tc.barrier()
    if bug != 1:
        tc.cp_async_wait(1 if bug == 3 else 0)
    if bug == 6:
        tc.cp_async_commit()
    if bug not in (4, 5):
        tc.barrier()
    for part in tc.static_range(4):
        out[64 * part + t] = tile[255 - (64 * part + t)]  # race: second; error


@tc.kernel
def own_copies(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """What a thread has copied itself it may read behind its wait; the neighbour's it may not."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    tc.cp_async(tile.at(4 * lane), x.at(4 * lane), 16)  # race: first
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    source = lane ^ 1 if bug else lane
    out.at(4 * source).store(tile.at(4 * source).load(4))  # race: second; error


@tc.kernel
def two_groups(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Two tiles in two groups. Bug 1: the second one is read when the first one is complete,
    2: no commit between them, so that the wait for all but one group waits for nothing."""
    tile = tc.shared((2, 256), tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(0, 4 * t), x.at(0, 4 * t), 16)  # race 2: first
    if bug != 2:
        tc.cp_async_commit()
    tc.cp_async(tile.at(1, 4 * t), x.at(1, 4 * t), 16)  # race 1: first
    tc.cp_async_commit()
    tc.cp_async_wait(1)
    tc.barrier()
    out[0, t] = tile[1 if bug == 1 else 0, 255 - t]  # race: second; error
    tc.cp_async_wait(0)
    tc.barrier()
    out[1, t] = tile[1, 255 - t]


@tc.kernel
def ring(x: tc.Array, out: tc.Array, bug: tc.Const = 1, stages: tc.Const = 3):
    """A ring of three stages: wait, barrier, use stage i, prefetch into the stage used before.

    Bug 1: waits for one group too few, 2: no barrier, 3: prefetches before the barrier, 4: into
    the stage in use, 5: commits only where it copies, 6: one group for the whole prologue, 7: uses
    the next stage.
    """
    tile = tc.shared((stages, 256), tc.s32)
    t, rows = tc.threadIdx.x, x.shape[0]
    for i in range(stages - 1):
        tc.cp_async(tile.at(i, 4 * t), x.at(i, 4 * t), 16)  # race 1,2,6,7: first
        if bug != 6:
            tc.cp_async_commit()
    if bug == 6:
        tc.cp_async_commit()
    total = 0
    for i in tc.range(rows):
        ahead = i + stages - 1
        if bug == 3:
            if ahead < rows:
                tc.cp_async(tile.at(ahead % stages, 4 * t), x.at(ahead, 4 * t), 16)  # race 3: first; error 3
            tc.cp_async_commit()
            tc.cp_async_wait(stages - 1)
        else:
            tc.cp_async_wait(stages - 1 if bug == 1 else stages - 2)
        if bug != 2:
            tc.barrier()
        total += tile[(i + 1 if bug == 7 else i) % stages, 255 - t]  # race: second; error
        if bug != 3:
            if ahead < rows:
                slot = (i if bug == 4 else ahead) % stages
                tc.cp_async(  # race 1,2,4,5,6,7: first; error 2,4
                    tile.at(slot, 4 * t), x.at(ahead, 4 * t), 16
                )
            if bug == 5:
                if ahead < rows:
                    tc.cp_async_commit()
            else:
                tc.cp_async_commit()
    out[t] = total


@tc.kernel
def two_buffers(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Copy the next tile, wait for this one, barrier, use it, barrier.

    Bug 1: no second barrier, 2: waits before the next copy is issued, 3: one buffer only.
    """
    tile = tc.shared((2, 256), tc.s32)
    t, rows = tc.threadIdx.x, x.shape[0]
    tc.cp_async(tile.at(0, 4 * t), x.at(0, 4 * t), 16)  # race 2,3: first
    tc.cp_async_commit()
    total = 0
    for i in tc.range(rows):
        if bug == 2:
            tc.cp_async_wait(1)
        if i + 1 < rows:
            slot = 0 if bug == 3 else (i + 1) % 2
            tc.cp_async(tile.at(slot, 4 * t), x.at(i + 1, 4 * t), 16)  # race: first; race 3: second; error
        tc.cp_async_commit()
        if bug != 2:
            tc.cp_async_wait(1)
        tc.barrier()
        total += tile[0 if bug == 3 else i % 2, 255 - t]  # race: second; error
        if bug != 1:
            tc.barrier()
    out[t] = total


@tc.kernel
def copies_run_into_the_epilogue(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The loop prefetches beyond its end; the epilogue uses the stage without waiting."""
    tile = tc.shared((2, 256), tc.s32)
    t, rows = tc.threadIdx.x, x.shape[0]
    tc.cp_async(tile.at(0, 4 * t), x.at(0, 4 * t), 16)
    tc.cp_async_commit()
    total = 0
    for i in tc.range(rows):
        tc.cp_async(tile.at((i + 1) % 2, 4 * t), x.at(min(i + 1, rows - 1), 4 * t), 16)  # race: first; error
        tc.cp_async_commit()
        tc.cp_async_wait(1)
        tc.barrier()
        total += tile[i % 2, 255 - t]
        tc.barrier()
    if not bug:
        tc.cp_async_wait(0)
        tc.barrier()
    tile[1, t] = total  # race: second; error
    tc.barrier()
    out[t] = tile[1, 63 - t]


@tc.kernel
def producer_warp(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Warp 0 copies, warp 1 reads. Groups belong to threads: the reader cannot wait for them."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    if tc.warp_id() == 0:
        tc.cp_async(tile.at(4 * lane), x.at(4 * lane), 16)  # race: first
        tc.cp_async_commit()
        if not bug:
            tc.cp_async_wait(0)
    tc.barrier()
    if tc.warp_id() == 1:
        tc.cp_async_wait(0)
        out.at(4 * lane).store(tile.at(4 * lane).load(4))  # race: second; error


@tc.kernel
def only_some_wait(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """All copy. Bug 1: only one warp waits, 2: some threads have committed one group more."""
    tile = tc.shared((2, 256), tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(0, 4 * t), x.at(4 * t), 16)  # race: first
    tc.cp_async_commit()
    if bug == 1:
        if t < 32:
            tc.cp_async_wait(0)
    elif bug == 2:
        if t < 48:
            tc.cp_async_commit()
        tc.cp_async_wait(1)
    else:
        tc.cp_async_wait(0)
    tc.barrier()
    for part in tc.static_range(4):
        out[64 * part + t] = tile[0, 255 - (64 * part + t)]  # race: second; error


@tc.kernel
def source_is_overwritten(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The array is cleared for the next launch. Bug 1: by the thread that copies, before it
    waits, 2: by others, behind a barrier, but again before the wait."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16)  # race: first; error
    tc.cp_async_commit()
    if bug == 1:
        x.at(4 * t).store([0, 0, 0, 0])  # race: second; error
    if bug != 1:
        if bug == 0:
            tc.cp_async_wait(0)
        tc.barrier()
        x.at(4 * (63 - t)).store([0, 0, 0, 0])  # race: second; error
    tc.cp_async_wait(0)
    tc.barrier()
    for part in tc.static_range(4):
        out[64 * part + t] = tile[64 * part + t]


def cleared(draw):
    x = draw.integers(1, 1000, 256).astype(np.int32)
    return {"x": x, "out": np.zeros_like(x)}, {"x": np.zeros_like(x), "out": x.copy()}


@tc.kernel
def target_is_written(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The last element is set to a constant. Bug 1: after the copy is issued, before the wait,
    2: by another thread, before the copy, with no barrier between."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    if bug == 2:
        tile[4 * (t ^ 32)] = 1  # race: second
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16)  # race: first; error
    tc.cp_async_commit()
    if bug == 1:
        tile[4 * t] = 1  # race: second; error
    tc.cp_async_wait(0)
    if bug != 2:
        tile[4 * t + 1] = 2
    tc.barrier()
    out[t] = tile[4 * (t ^ 32) + 1]


@tc.kernel
def target_is_still_read(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A thread reads the old tile after it has issued the copy of the new one."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    tile.at(4 * lane).store(x.at(0, 4 * lane).load(4))
    if not bug:
        old = tile.at(4 * lane).load(4)
    tc.cp_async(tile.at(4 * lane), x.at(1, 4 * lane), 16)  # race: first; error
    tc.cp_async_commit()
    if bug:
        old = tile.at(4 * lane).load(4)  # race: second; error
    tc.cp_async_wait(0)
    new = tile.at(4 * lane).load(4)
    for j in tc.static_range(4):
        out[4 * lane + j] = 1000 * old[j] + new[j]


@tc.kernel
def target_of_two_threads(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Two threads copy to the same 16 bytes."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    tc.cp_async(tile.at(4 * (t % 32 if bug else t)), x.at(4 * t), 16)  # race: both; error
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    tc.barrier()
    out[t] = tile[t]


@tc.kernel
def source_is_not_ready(x: tc.Array, out: tc.Array, data: tc.Array, bug: tc.Const = 1):
    """The block itself writes the array that it copies; no barrier lies between."""
    tile = tc.shared(256, tc.s32)
    t = tc.threadIdx.x
    data.at(4 * t).store(x.at(4 * t).load(4))  # race: first
    if not bug:
        tc.barrier()
    tc.cp_async(tile.at(4 * t), data.at(4 * (63 - t)), 16)  # race: second; error
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    out[t] = tile[4 * t]


def through_data(draw):
    x = draw.integers(1, 1000, 256).astype(np.int32)
    return {"x": x, "out": np.zeros(64, np.int32), "data": np.zeros_like(x)}, {"out": x[::4][::-1].copy()}


@tc.kernel
def fewer_bytes_than_are_read(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Copies of 8 bytes into places of 16, of which the rest is never written."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    tc.cp_async(tile.at(4 * lane), x.at(4 * lane), 8 if bug else 16)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    out.at(4 * lane).store(tile.at(4 * lane).load(4))  # error


@tc.kernel
def matrix_in_flight(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Two steps of K: the fragments of the second one are loaded while only the first is there."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((2, 16, 16), tc.f16)
    lane = tc.lane_id()
    for k in range(2):
        tc.cp_async(tile.at(k, lane // 2, lane % 2 * 8), x.at(k, lane // 2, lane % 2 * 8), 16)  # race: first
        tc.cp_async_commit()
    acc = mma.d.zeros()
    one = tc.fragment(mma.b, lambda row, col: tc.select(row == col, tc.f16(1), tc.f16(0)))
    for k in range(2):
        if k == 0:
            tc.cp_async_wait(1)
            tc.syncwarp()
        elif not bug:
            tc.cp_async_wait(0)
            tc.syncwarp()
        acc = mma(tc.ldmatrix(tile[k], mma.a), one, acc)  # race: second; error
    tc.store_elements(out, acc)


def sum_of_two(draw):
    x = draw.integers(-4, 5, (2, 16, 16)).astype(np.float16)
    right = x.sum(axis=0)[:, :8].astype(np.float32)
    return {"x": x, "out": np.zeros_like(right)}, {"out": right}


@tc.kernel
def arrives_at_an_mbarrier(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """An arrival does not wait for the copies of its thread."""
    tile, bar = tc.shared(256, tc.s32), tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(64)
        tc.fence_mbarrier_init()
    tc.barrier()
    tc.cp_async(tile.at(4 * t), x.at(4 * t), 16)  # race: first
    tc.cp_async_commit()
    if not bug:
        tc.cp_async_wait(0)
    bar.arrive()
    bar.wait(0)
    for part in tc.static_range(4):
        out[64 * part + t] = tile[255 - (64 * part + t)]  # race: second; error


@tc.kernel
def copies_of_tiles(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """tc.copy_tile. Bug 1: no wait, 2: no barrier behind the wait, 3: the next turn's copy comes
    before all have read."""
    tc.launch_bounds(64)
    tile = tc.shared((16, 16), tc.s32)
    t = tc.threadIdx.x
    total = 0
    for i in tc.range(x.shape[0]):
        tc.copy_tile(tile, x, (i, 0, 0))  # race: first; error
        tc.cp_async_commit()
        if bug != 1:
            tc.cp_async_wait(0)
        if bug != 2:
            tc.barrier()
        total += tile[15 - t // 16, t % 16]  # race: second; error
        if bug != 3:
            tc.barrier()
    out[t] = total


_reverse = mapped(256, lambda x: x[::-1])
_rows = mapped((5, 256), lambda x: x[:, :191:-1].sum(axis=0).astype(np.int32))
CASES = [
    *(case(one_tile, 1, 64, _reverse, *IN_FLIGHT, bug=bug) for bug in range(1, 7)),
    case(own_copies, 1, 32, mapped(128, lambda x: x), *IN_FLIGHT),
    *(
        case(two_groups, 1, 64, mapped((2, 256), lambda x: x[:, :191:-1]), *IN_FLIGHT, bug=bug)
        for bug in (1, 2)
    ),
    *(case(ring, 1, 64, _rows, *IN_FLIGHT, bug=bug) for bug in (1, 2, 3, 4, 5, 6, 7)),
    *(case(two_buffers, 1, 64, _rows, *IN_FLIGHT, bug=bug) for bug in (1, 2, 3)),
    case(
        copies_run_into_the_epilogue,
        1,
        64,
        mapped((5, 256), lambda x: x[:, 192:].sum(axis=0).astype(np.int32)),
        *IN_FLIGHT,
    ),
    case(producer_warp, 1, 64, mapped(128, lambda x: x), *IN_FLIGHT),
    *(case(only_some_wait, 1, 64, _reverse, *IN_FLIGHT, bug=bug) for bug in (1, 2)),
    *(case(source_is_overwritten, 1, 64, cleared, *IN_FLIGHT, bug=bug) for bug in (1, 2)),
    *(
        case(target_is_written, 1, 64, mapped(256, lambda x: np.full(64, 2, np.int32)), *IN_FLIGHT, bug=bug)
        for bug in (1, 2)
    ),
    case(target_is_still_read, 1, 32, mapped((2, 128), lambda x: 1000 * x[0] + x[1]), *IN_FLIGHT),
    case(target_of_two_threads, 1, 64, mapped(256, lambda x: x[:64]), *IN_FLIGHT),
    case(source_is_not_ready, 1, 64, through_data, *IN_FLIGHT),
    case(fewer_bytes_than_are_read, 1, 32, mapped(128, lambda x: x), *IN_FLIGHT),
    case(matrix_in_flight, 1, 32, sum_of_two, *IN_FLIGHT),
    case(arrives_at_an_mbarrier, 1, 64, _reverse, *IN_FLIGHT),
    *(
        case(
            copies_of_tiles,
            1,
            64,
            mapped((3, 16, 16), lambda x: x[:, 15:11:-1].sum(axis=0).ravel().astype(np.int32)),
            *IN_FLIGHT,
            bug=bug,
        )
        for bug in (1, 2, 3)
    ),
]
