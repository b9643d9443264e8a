"""Kernels that synchronise by asynchronous stores, arrivals and copies, for the emulator's tests and
for a GPU."""

from __future__ import annotations

import tensorcore_dsl as tc


@tc.kernel
def drops(out, mistake: tc.Const = ""):
    """Warp 0 arrives once and leaves; warp 1 alone completes the phases after it."""
    tc.launch_bounds(64)
    bar, t = tc.mbarriers(1)[0], tc.threadIdx.x
    if t == 0:
        bar.init(96)
    tc.barrier()
    if t < 32:
        bar.arrive_drop(2)
    elif mistake == "everybody":
        bar.arrive_drop()
    else:
        bar.arrive()
    if (t >= 32) | (mistake == "arrives again"):
        bar.wait(0)
    if mistake == "arrives again":
        bar.arrive(2)
    if t >= 32:
        for phase in tc.static_range(1, 4):
            bar.arrive()
            bar.wait(phase & 1)
            out[phase - 1, t] = phase


@tc.kernel
def cancels(out, size: tc.Const = 512, mistake: tc.Const = ""):
    """CTA 0 counts the bytes of its own copy, and of CTA 1's, which do not come."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    bar, t, rank = tc.mbarriers(1)[0], tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        bar.init(1)
        if mistake != "no fence":
            tc.fence_mbarrier_init()
        bar.arrive_expect_tx(size)
    tc.cluster_sync()
    if (rank == 0) & (t == 1):
        bar.complete_tx(size if mistake != "too few" else size - 16)
        bar.remote(rank + (2 if mistake == "no such rank" else 1)).complete_tx(size)
    bar.wait(0)
    out[rank, t] = size
    tc.cluster_sync()


@tc.kernel
def copies(x, out, noinc: tc.Const = False, groups: tc.Const = False, mistake: tc.Const = ""):
    """Warp 0 copies four words a lane in each of three stages; warp 1 reads them in reverse."""
    tc.launch_bounds(64)
    tile, bars, t = tc.shared((3, 128), x.dtype), tc.mbarriers(3), tc.threadIdx.x
    if t == 0:
        for stage in tc.static_range(3):
            bars[stage].init(64 if noinc else 32)
    tc.barrier()
    if t < 32:
        for stage in tc.static_range(3):
            if mistake == "late copies":
                bars[stage].arrive_cp_async(noinc=noinc)
            tc.cp_async(tile.at(stage, 4 * t), x.at(stage, 4 * t), 16)
            if mistake not in ("late copies", "none"):
                bars[stage].arrive_cp_async(noinc=noinc)
            if groups:
                tc.cp_async_commit()
            bars[stage].arrive()
        if groups:
            tc.cp_async_wait(0)
            out[3, 4 * t] = tile[2, 4 * t]
        if mistake == "reads its own":
            out[3, 4 * t] = tile[2, 4 * t]
    else:
        for stage in tc.static_range(3):
            if mistake != "no wait":
                bars[stage].wait(0)
            for i in tc.static_range(4):
                place = 4 * (t - 32) + i
                out[stage, place] = tile[stage, 127 - place]


@tc.kernel
def sends(x, out, ctas: tc.Const = 2, width: tc.Const = 1, rounds: tc.Const = 1, mistake: tc.Const = ""):
    """Each CTA stores its row of x to the next CTA of its cluster, which adds 1 a round."""
    tc.launch_bounds(32)
    if mistake != "no cluster":
        tc.cluster_size(ctas)
    row, bar, free = tc.shared(32 * width, x.dtype), tc.mbarriers(1)[0], tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    peer, before = (rank + 1) % ctas, (rank + ctas - 1) % ctas
    if t == 0:
        bar.init(1)
        free.init(32)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    values = [x[tc.blockIdx.x, width * t + i] for i in range(width)]
    for turn in tc.static_range(rounds):
        if t == 0:
            bar.arrive_expect_tx(row.bytes + (4 if mistake == "too many bytes" else 0))
        if (turn > 0) & (mistake != "overwrites"):
            free.wait(turn + 1 & 1)
        if (mistake == "writes too") & (rank == 0):
            row[t] = x[0, t]
        counted = bar.remote(rank if mistake == "another barrier" else peer)
        value = values[0] if width == 1 else values
        tc.store(row.remote(peer).at(width * t), value, barrier=counted)
        if mistake != "no wait":
            bar.wait(turn & 1)
        values = [row[width * t + i] + 1 for i in range(width)]
        free.remote(before).arrive()
    for i in tc.static_range(width):
        out[tc.blockIdx.x, width * t + i] = values[i]
    tc.cluster_sync()


@tc.kernel
def collects(x, out, operation: tc.Const, ctas: tc.Const = 4, mistake: tc.Const = ""):
    """CTA 0 of each cluster reduces the rows of all its CTAs; its own by ordinary atomics."""
    tc.launch_bounds(32)
    tc.cluster_size(ctas)
    row, bar = tc.shared(32, x.dtype), tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    row[t] = x[tc.blockIdx.x, t]
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(row.bytes * (ctas - 1))
    if mistake != "no meeting":
        tc.cluster_sync()
    target, counted = row.remote(0).at(31 - t), bar.remote(0)
    if (rank > 0) | (mistake == "itself"):
        tc.reduce(operation, target, x[tc.blockIdx.x, 31 - t], barrier=counted)
    else:
        tc.reduce(operation, row.at(31 - t), x[tc.blockIdx.x, 31 - t])
        if mistake != "no wait":
            bar.wait(0)
        tc.barrier()
        out[tc.blockIdx.x, t] = row[t]
    tc.cluster_sync()
