"""Waits for what never comes, and loops that never end."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Deadlock, EmulationError
from tests.planted.harness import mapped, variants

ENDLESS = (EmulationError,)  # whatever class says so


def poll(pointer):
    """A load that other threads' stores are ordered before."""
    return tc.emit("ld.acquire.gpu.global.b32", pointer).bits(tc.s32)


def signal(pointer, value):
    tc.emit("st.release.gpu.global.b32", pointer, value)


# -- barriers -----------------------------------------------------------------------------------


@tc.kernel
def barriers_of_different_names(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    if t < 32:
        tc.barrier(1, 64)  # error
    else:
        tc.barrier(2 if mistake else 1, 64)  # error
    out[t] = tile[63 - t]


@tc.kernel
def barrier_for_too_many(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    if t >= 32 and mistake == "other name":
        tc.barrier_arrive(2, 64)
    elif t >= 32 and mistake == "does not arrive":
        if x[0] < 0:
            tc.barrier_arrive(1, 64)
    elif t < 32 or mistake != "goes past":
        tc.barrier(1, 96 if mistake == "count" else 64)  # error
    if t < 32 or not mistake:
        out[t] = tile[63 - t]
    tc.barrier()  # error


@tc.kernel
def rings_that_turn_unevenly(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """A producer and a consumer with two slots."""
    slots = tc.shared((2, 32), tc.s32)
    lane, turns = tc.lane_id(), x.shape[0]
    if tc.warp_id() == 0:
        for i in tc.range(turns - 1 if mistake == "a turn less" else turns):
            if i >= 2:
                tc.barrier(3 + i % 2, 64)  # error
            slots[i % 2, lane] = x[i, lane]
            tc.barrier_arrive(1 + i % 2, 64)
    else:
        total = 0
        for i in tc.range(turns):
            tc.barrier(1 + i % 2, 64)  # error
            total += slots[i % 2, 31 - lane]
            if i + 2 < turns and (mistake != "slot kept" or i % 2 == 0):
                tc.barrier_arrive(3 + i % 2, 64)
        out[lane] = total
    tc.barrier()  # error


@tc.kernel
def mbarrier_is_not_completed(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    tile, bar = tc.shared(64, tc.s32), tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(65 if mistake == "count" else 64)
        tc.fence_mbarrier_init()
    tc.barrier()
    tile[t] = x[t]
    if mistake == "bytes" and t == 0:
        bar.arrive_expect_tx(16)
    elif mistake == "a warp forgets":
        if t < 32:
            bar.arrive()
    else:
        bar.arrive()
    if mistake == "parity":
        bar.wait(0)
        bar.wait(1)  # error
    else:
        bar.wait(0)  # error
    out[t] = tile[63 - t]


# -- flags and locks ----------------------------------------------------------------------------


@tc.kernel
def flag_that_nobody_raises(x: tc.Array, out: tc.Array, flags: tc.Array, mistake: tc.Const = ""):
    t, b = tc.threadIdx.x, tc.blockIdx.x
    if mistake == "next block":
        if t == 0:
            signal(flags.at(b), 1)
            while poll(flags.at(b + 1)) != 1:  # error
                tc.emit("nanosleep.u32", 20)  # error
    elif b == 0:
        if t == 0:
            if mistake == "both wait":
                while poll(flags.at(1)) == 0:  # error
                    tc.emit("nanosleep.u32", 20)  # error
            signal(flags.at(2 if mistake == "other flag" else 0), 1)
    else:
        if t == 0:
            while poll(flags.at(0)) != (2 if mistake == "other value" else 1):  # error
                tc.emit("nanosleep.u32", 20)  # error
            signal(flags.at(1), 1)
    tc.barrier()
    out[b, t] = x[b, t]


def rows_and_flags(draw):
    x = draw.integers(1, 1000, (2, 32)).astype(np.int32)
    return {"x": x, "out": np.zeros_like(x), "flags": np.zeros(4, np.int32)}, {"out": x.copy()}


def three_rows(draw):
    x = draw.integers(1, 1000, (3, 32)).astype(np.int32)
    return {"x": x, "out": np.zeros_like(x), "flags": np.zeros(4, np.int32)}, {"out": x.copy()}


@tc.kernel
def grid_barrier_never_opens(x: tc.Array, out: tc.Array, flags: tc.Array, mistake: tc.Const = ""):
    t, b, blocks = tc.threadIdx.x, tc.blockIdx.x, tc.gridDim.x
    if mistake == "a block returns":
        if b == 1:
            return
    if mistake == "every thread counts":
        tc.emit("atom.release.gpu.global.add.s32", flags.at(0), 1)
        tc.barrier()
    elif t == 0:
        tc.emit("atom.release.gpu.global.add.s32", flags.at(0), 1)
    if t == 0:
        while poll(flags.at(0)) != (2 * blocks if mistake == "second barrier" else blocks):  # error
            tc.emit("nanosleep.u32", 20)  # error
    tc.barrier()
    out[b, t] = x[b, t]


@tc.kernel
def lock_is_kept(x: tc.Array, out: tc.Array, flags: tc.Array, mistake: tc.Const = ""):
    lock = flags.at(0)
    if tc.threadIdx.x == 0:
        taken = tc.s32(1)
        while taken != 0:  # error
            taken = tc.emit("atom.acquire.gpu.global.cas.b32", lock, 0, 1).bits(tc.s32)  # error
        if mistake == "taken twice":
            taken = tc.s32(1)
            while taken != 0:  # error
                taken = tc.emit("atom.acquire.gpu.global.cas.b32", lock, 0, 1).bits(tc.s32)  # error
        out[0] += x[tc.blockIdx.x]
        if mistake == "branch":
            if x[tc.blockIdx.x] < 0:
                signal(lock, 0)
        else:
            signal(lock, 0)


def locked(draw):
    x = draw.integers(1, 1000, 4).astype(np.int32)
    return {"x": x, "out": np.zeros(1, np.int32), "flags": np.zeros(1, np.int32)}, {
        "out": x.sum(keepdims=True).astype(np.int32)
    }


@tc.kernel
def two_locks_in_two_orders(x: tc.Array, out: tc.Array, flags: tc.Array, mistake: tc.Const = ""):
    """Block 0 takes lock 0 and then 1, block 1 the other way round; each waits until both hold one."""
    if tc.threadIdx.x == 0:
        first = tc.blockIdx.x if mistake else tc.s32(0)
        taken = tc.s32(1)
        while taken != 0:
            taken = tc.emit("atom.acquire.gpu.global.cas.b32", flags.at(first), 0, 1).bits(tc.s32)
        if mistake:
            tc.emit("atom.relaxed.gpu.global.add.s32", flags.at(2), 1)
            while poll(flags.at(2)) < 2:
                tc.emit("nanosleep.u32", 20)
        taken = tc.s32(1)
        while taken != 0:  # error
            taken = tc.emit("atom.acquire.gpu.global.cas.b32", flags.at(1 - first), 0, 1).bits(  # error
                tc.s32
            )
        out[0] += x[tc.blockIdx.x]
        signal(flags.at(1 - first), 0)
        signal(flags.at(first), 0)


def two_locks(draw):
    x = draw.integers(1, 1000, 2).astype(np.int32)
    return {"x": x, "out": np.zeros(1, np.int32), "flags": np.zeros(3, np.int32)}, {
        "out": x.sum(keepdims=True).astype(np.int32)
    }


@tc.kernel
def shared_flag_of_a_lane(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """Lane 0 waits for lane 1, which waits for it at a syncwarp."""
    flag = tc.shared(1, tc.u32)
    lane = tc.lane_id()
    if lane == 0:
        flag[0] = 0
    tc.syncwarp()
    if lane == 0:
        while tc.emit("ld.acquire.cta.shared.b32", flag.at(0)).bits(tc.u32) == 0:  # error
            tc.emit("nanosleep.u32", 20)  # error
    if mistake:
        tc.syncwarp()  # error
    if lane == 1:
        tc.emit("st.release.cta.shared.b32", flag.at(0), tc.u32(1))
    tc.syncwarp()
    out[lane] = x[lane]


@tc.kernel
def barrier_inside_a_wait(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """Warp 0 polls a shared flag, which warp 1 sets behind a barrier that warp 0 never reaches."""
    flag = tc.shared(1, tc.u32)
    t = tc.threadIdx.x
    if t == 0:
        flag[0] = 0
    tc.barrier()
    if t < 32:
        while tc.emit("ld.acquire.cta.shared.b32", flag.at(0)).bits(tc.u32) == 0:  # error
            tc.emit("nanosleep.u32", 20)  # error
        if mistake:
            tc.barrier()
    else:
        if mistake:
            tc.barrier()  # error
        if t == 32:
            tc.emit("st.release.cta.shared.b32", flag.at(0), tc.u32(1))
    tc.barrier()
    out[t] = x[t]


# -- loops --------------------------------------------------------------------------------------


@tc.kernel
def loop_of_registers(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    t = tc.threadIdx.x
    n, steps, bound = x[t] - 1 if mistake == "stops at 0" else x[t], 0, 10
    if mistake == "stops at 0":
        n = n // 1000
    while n != 1 if mistake in ("", "stops at 0") else steps < bound:  # error
        if mistake == "continue":
            if n % 2 == 0:  # error
                continue
        n = n // 2  # error
        steps += 0 if mistake == "step of zero" else 1  # error
        if mistake == "bound moves":
            bound += 1  # error
    out[t] = steps


@tc.kernel
def end_is_stepped_over(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """`!=` in place of `<`, with steps that do not meet the bound."""
    t = tc.threadIdx.x
    i, total = 0, 0
    while i != (x.shape[0] if mistake else x.shape[0] + 1):  # error
        total += x[i % x.shape[0]]  # error
        i += 2  # error
        if mistake == "barrier":
            tc.barrier()  # error
    out[t] = total


@tc.kernel
def queue_without_an_end(x: tc.Array, out: tc.Array, flags: tc.Array, mistake: tc.Const = ""):
    """A block draws rows until none is left."""
    row = tc.shared(1, tc.s32)
    t = tc.threadIdx.x
    if mistake == "draws once" and t == 0:
        row[0] = tc.atomic("add", flags.at(0), 1)
    going = t >= 0
    while going:  # error
        if mistake != "draws once" and t == 0:
            row[0] = tc.atomic("add", flags.at(0), 1)  # error
        tc.barrier()  # error
        now = row[0]  # error
        tc.barrier()  # error
        if now < x.shape[0]:  # error
            out[now, t] = x[now, t]  # error
        going = now < x.shape[0]


def queue_of_rows(draw):
    x = draw.integers(1, 1000, (5, 64)).astype(np.int32)
    return {"x": x, "out": np.zeros_like(x), "flags": np.zeros(2, np.int32)}, {"out": x.copy()}


@tc.kernel
def arrival_of_a_smaller_count(x: tc.Array, out: tc.Array, mistake: tc.Const = ""):
    """Two warps fill a slot and two empty it. The arrival completes a barrier of its own count, so
    that it is the reader's wait that is never met; the writer waits because of that."""
    t, turns = tc.threadIdx.x, x.shape[0]
    slot = tc.shared(64, tc.s32)
    if t < 64:
        for k in tc.range(turns):
            if k > 0:
                tc.barrier(2, 128)
            slot[t] = x[k, t]
            tc.barrier_arrive(1, 64 if mistake else 128)
    else:
        total = tc.s32(0)
        for k in tc.range(turns):
            tc.barrier(1, 128)  # error
            total += slot[127 - t]
            if k < turns - 1:
                tc.barrier_arrive(2, 128)
        out[t - 64] = total


def _halvings(x):
    return np.array([int(v).bit_length() - 1 for v in x], np.int32)


_reverse = mapped(64, lambda x: x[::-1])

CASES = [
    *variants(barriers_of_different_names, 1, 64, _reverse, Deadlock),
    *variants(
        barrier_for_too_many,
        1,
        64,
        _reverse,
        *ENDLESS,
        mistakes=("count", "goes past", "other name", "does not arrive"),
    ),
    *variants(
        rings_that_turn_unevenly,
        1,
        64,
        mapped((5, 32), lambda x: x[:, ::-1].sum(axis=0).astype(np.int32)),
        Deadlock,
        mistakes=("a turn less", "slot kept"),
    ),
    *variants(
        mbarrier_is_not_completed,
        1,
        64,
        _reverse,
        Deadlock,
        mistakes=("count", "parity", "bytes", "a warp forgets"),
    ),
    *variants(
        flag_that_nobody_raises,
        2,
        32,
        rows_and_flags,
        *ENDLESS,
        mistakes=("other flag", "other value", "both wait", "next block"),
    ),
    *variants(
        grid_barrier_never_opens,
        3,
        32,
        three_rows,
        *ENDLESS,
        mistakes=("every thread counts", "a block returns", "second barrier"),
    ),
    *variants(lock_is_kept, 4, 32, locked, *ENDLESS, mistakes=("branch", "taken twice")),
    *variants(two_locks_in_two_orders, 2, 32, two_locks, *ENDLESS),
    *variants(shared_flag_of_a_lane, 1, 32, mapped(32, lambda x: x), *ENDLESS),
    *variants(barrier_inside_a_wait, 1, 64, mapped(64, lambda x: x), *ENDLESS),
    *variants(
        loop_of_registers,
        1,
        32,
        mapped(32, _halvings),
        *ENDLESS,
        mistakes=("stops at 0", "step of zero", "continue", "bound moves"),
    ),
    *variants(
        end_is_stepped_over,
        1,
        32,
        mapped(5, lambda x: np.full(32, x[::2].sum(), np.int32)),
        *ENDLESS,
        mistakes=("no barrier", "barrier"),
    ),
    *variants(queue_without_an_end, 2, 64, queue_of_rows, *ENDLESS, mistakes=("draws once",)),
    *variants(
        arrival_of_a_smaller_count,
        1,
        128,
        mapped((3, 64), lambda x: x[:, ::-1].sum(axis=0).astype(np.int32)),
        Deadlock,
    ),
]
