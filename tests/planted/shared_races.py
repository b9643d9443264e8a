"""Races between the warps of a block in shared memory."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race, RaceWarning
from tests.planted.harness import case, mapped


@tc.kernel
def missing_barrier(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]  # race: first
    if not bug:
        tc.barrier()
    out[t] = tile[63 - t]  # race: second


@tc.kernel
def barrier_in_the_wrong_place(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    if bug == 1:
        tc.barrier()
    tile[t] = x[t]  # race: first
    if not bug:
        tc.barrier()
    value = tile[(t + 32) % 64]  # race: second
    if bug == 2:
        tc.barrier()
    out[t] = value


@tc.kernel
def overwrites_in_the_next_turn(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    total = 0
    for i in tc.range(x.shape[0]):
        tile[t] = x[i, t]  # race: first
        tc.barrier()
        total += tile[63 - t]  # race: second
        if not bug:
            tc.barrier()
    out[t] = total


@tc.kernel
def last_turn_lacks_the_barrier(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The barrier between the turns is left out in the last one, after which the tile is read."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    rows = x.shape[0]
    total = 0
    for i in tc.range(rows):
        tile[t] = x[i, t]  # race: first
        if bug:
            if i + 1 < rows:
                tc.barrier()
        else:
            tc.barrier()
        total += tile[t]
    out[t] = total + tile[63 - t]  # race: second


@tc.kernel
def one_arm_writes_behind_the_barrier(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Each arm has a barrier; in one of them it comes before the store."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    if tc.warp_id() == 0:
        tile[t] = x[t]
        tc.barrier()
    elif bug:
        tc.barrier()
        tile[t] = x[t]  # race: first
    else:
        tile[t] = x[t]
        tc.barrier()
    out[t] = tile[63 - t]  # race: second


@tc.kernel
def barrier_under_a_condition_of_the_data(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The barrier belongs to all turns, and comes only in those whose flag is set."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    total = 0
    for i in tc.range(x.shape[0]):
        tile[t] = x[i, t]  # race 1: first; race 2: second
        if bug != 1 or i % 2 == 0:
            tc.barrier()
        total += tile[63 - t]  # race 1: second; race 2: first
        if bug != 2 or i % 2 == 0:
            tc.barrier()
    out[t] = total


@tc.kernel
def named_barrier_of_half_the_warps(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Pairs of warps have barriers of their own, but the data go around all four warps."""
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]  # race: first
    if bug:
        tc.barrier(1 + tc.warp_id() // 2, 64)
    else:
        tc.barrier(1, 128)
    out[t] = tile[(t + 32) % 128]  # race: second


@tc.kernel
def named_barrier_with_a_small_count(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]  # race: first
    tc.barrier(1, 64 if bug else 128)  # error
    out[t] = tile[127 - t]  # race: second


@tc.kernel
def named_barriers_by_parity(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Warps 0 and 1 exchange, and 2 and 3; the bug pairs 0 with 2, and 1 with 3."""
    tile = tc.shared(128, tc.s32)
    t, warp = tc.threadIdx.x, tc.warp_id()
    tile[t] = x[t]  # race: first
    tc.barrier(1 + (warp % 2 if bug else warp // 2), 64)
    out[t] = tile[t ^ 32]  # race: second


@tc.kernel
def arrive_instead_of_sync(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Warp 0 produces and need not wait; the consumer must."""
    tile = tc.shared(32, tc.s32)
    lane = tc.lane_id()
    if tc.warp_id() == 0:
        tile[lane] = x[lane]  # race: first
        if bug == 1:
            tc.barrier(1, 64)
        else:
            tc.barrier_arrive(1, 64)
    else:
        if bug:
            tc.barrier_arrive(1, 64)
        else:
            tc.barrier(1, 64)
        out[lane] = tile[31 - lane]  # race: second


@tc.kernel
def ring_of_named_barriers(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Two slots; barriers 1 and 2 say that one is full, 3 and 4 that it is empty.

    Bug 1: the producer stores, and then waits, 2: the consumer frees a slot before it reads it,
    3: the producer reports a slot before it stores.
    """
    slots = tc.shared((2, 32), tc.s32)
    lane, turns = tc.lane_id(), x.shape[0]
    if tc.warp_id() == 0:
        for i in tc.range(turns):
            if bug != 1:
                if i >= 2:
                    tc.barrier(3 + i % 2, 64)
            if bug == 3:
                tc.barrier_arrive(1 + i % 2, 64)
            slots[i % 2, lane] = x[i, lane]  # race 1,2: second; race 3: first
            if bug == 1:
                if i >= 2:
                    tc.barrier(3 + i % 2, 64)
            if bug != 3:
                tc.barrier_arrive(1 + i % 2, 64)
    else:
        total = 0
        for i in tc.range(turns):
            tc.barrier(1 + i % 2, 64)
            if bug == 2:
                if i + 2 < turns:
                    tc.barrier_arrive(3 + i % 2, 64)
            total += slots[i % 2, 31 - lane] * (i + 1)  # race 1,2: first; race 3: second
            if bug != 2:
                if i + 2 < turns:
                    tc.barrier_arrive(3 + i % 2, 64)
        out[lane] = total


@tc.kernel
def one_buffer_where_two_are_needed(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """With two buffers one barrier a turn is enough."""
    tile = tc.shared((2, 64), tc.s32)
    t = tc.threadIdx.x
    total = 0
    for i in tc.range(x.shape[0]):
        slot = 0 if bug else i % 2
        tile[slot, t] = x[i, t]  # race: second
        tc.barrier()
        total += tile[slot, 63 - t]  # race: first
    out[t] = total


@tc.kernel
def reads_both_buffers(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Two buffers, of which a turn reads both: the barrier at the end is needed again."""
    tile = tc.shared((2, 64), tc.s32)
    t = tc.threadIdx.x
    tile[1, t] = 0
    total = 0
    for i in tc.range(x.shape[0]):
        tile[i % 2, t] = x[i, t]  # race: second
        tc.barrier()
        total += tile[i % 2, 63 - t]
        total -= tile[(i + 1) % 2, 63 - t]  # race: first
        if not bug:
            tc.barrier()
    out[t] = total


@tc.kernel
def tree_with_barriers_missing(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]  # race 2: first
    if bug != 2:
        tc.barrier()
    for step in (64, 32, 16, 8, 4, 2, 1):
        if t < step:
            tile[t] += tile[t + step]  # race 1: both; race 2: second
        if bug != 1 or step != 64:
            tc.barrier()
    if t == 0:
        out[0] = tile[0]


@tc.kernel
def scan_in_place(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Hillis and Steele: a step reads at a distance, all wait, and only then it writes."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    tc.barrier()
    for distance in (1, 2, 4, 8, 16, 32):
        value = tile[t]
        if t >= distance:
            value += tile[t - distance]  # race: first
        if bug != 1:
            tc.barrier()
        tile[t] = value  # race: second
        if bug != 2:
            tc.barrier()
    tc.barrier()
    out[t] = tile[t]


@tc.kernel
def histogram_without_atomics(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    bins = tc.shared(16, tc.s32)
    t = tc.threadIdx.x
    if t < 16:
        bins[t] = 0
    tc.barrier()
    if bug:
        bins[x[t] % 16] += 1  # race: both
    else:
        tc.reduce("add", bins.at(x[t] % 16), 1)
    tc.barrier()
    if t < 16:
        out[t] = bins[t]


@tc.kernel
def counter_without_barriers(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A counter that is zeroed by a plain store, raised by atomics and read by a plain load."""
    count = tc.shared(1, tc.s32)
    t = tc.threadIdx.x
    if t == 0:
        count[0] = 0  # race 1: first
    if bug != 1:
        tc.barrier()
    if x[t] % 2 == 1:
        tc.reduce("add", count.at(0), 1)  # race 1: second; race 2: first
    if bug != 2:
        tc.barrier()
    out[t] = count[0]  # race 2: second


@tc.kernel
def counter_is_reset_too_early(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The counter of each row is read by all, and zeroed for the next row by one thread."""
    count = tc.shared(1, tc.s32)
    t = tc.threadIdx.x
    for i in tc.range(x.shape[0]):
        if t == 0:
            count[0] = 0  # race 1: second
        tc.barrier()
        if x[i, t] % 2 == 1:
            tc.reduce("add", count.at(0), 1)
        tc.barrier()
        out[i, t] = count[0]  # race 1: first
        if not bug:
            tc.barrier()


@tc.kernel
def plain_store_among_atomics(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A maximum: all threads use atomics, but one of them a plain store."""
    best = tc.shared(1, tc.s32)
    t = tc.threadIdx.x
    if t == 0:
        best[0] = 0
    tc.barrier()
    if t == 40:
        if bug:
            best[0] = max(best[0], x[t])  # race: first
        else:
            tc.reduce("max", best.at(0), x[t])
    else:
        tc.reduce("max", best.at(0), x[t])  # race: second
    tc.barrier()
    out[t] = best[0]


@tc.kernel
def flag_without_release(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: relaxed store, 2: relaxed load, 3: volatile, 4: other lanes' stores not ordered."""
    data, flag = tc.shared(32, tc.s32), tc.shared(1, tc.u32)
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        flag[0] = 0
    tc.barrier()
    store = {1: "st.relaxed.cta", 3: "st.volatile"}.get(bug, "st.release.cta")
    load = {2: "ld.relaxed.cta", 3: "ld.volatile"}.get(bug, "ld.acquire.cta")
    if tc.warp_id() == 0:
        data[lane] = x[lane]  # race: first
        if bug != 4:
            tc.syncwarp()
        if lane == 0:
            tc.emit(f"{store}.shared.b32", flag.at(0), tc.u32(1))
    else:
        while tc.emit(f"{load}.shared.b32", flag.at(0)).bits(tc.u32) == 0:
            tc.emit("nanosleep.u32", 20)
        out[lane] = data[31 - lane]  # race: second


@tc.kernel
def flag_without_fence(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A volatile flag with fences. Bug 1: none before the store, 2: none after the load."""
    data, flag = tc.shared(32, tc.s32), tc.shared(1, tc.u32)
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        flag[0] = 0
    tc.barrier()
    if tc.warp_id() == 0:
        data[lane] = x[lane]  # race: first
        tc.syncwarp()
        if bug != 1:
            tc.emit("membar.cta")
        if lane == 0:
            tc.emit("st.volatile.shared.b32", flag.at(0), tc.u32(1))
    else:
        while tc.emit("ld.volatile.shared.b32", flag.at(0)).bits(tc.u32) == 0:
            tc.emit("nanosleep.u32", 20)
        if bug != 2:
            tc.emit("membar.cta")
        out[lane] = data[31 - lane]  # race: second


@tc.kernel
def plain_flag(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The flag itself is stored without `volatile`, which races with the loop that polls it."""
    flag = tc.shared(1, tc.u32)
    lane = tc.lane_id()
    if tc.threadIdx.x == 0:
        flag[0] = 0
    tc.barrier()
    if tc.warp_id() == 0:
        if lane == 0:
            if bug:
                flag[0] = x[0].to(tc.u32)  # race: first
            else:
                tc.emit("st.relaxed.cta.shared.b32", flag.at(0), x[0].bits(tc.u32))
    else:
        seen = tc.u32(0)
        while seen == 0:
            seen = tc.emit("ld.relaxed.cta.shared.b32", flag.at(0)).bits(tc.u32)  # race: second
        out[lane] = seen.bits(tc.s32)


@tc.kernel
def spin_lock(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: the lock is taken relaxed, 2: it is given back relaxed, 3: by a plain store."""
    lock, total = tc.shared(1, tc.u32), tc.shared(1, tc.s32)
    if tc.threadIdx.x == 0:
        lock[0] = 0
        total[0] = 0
    tc.barrier()
    take = "atom.relaxed.cta" if bug == 1 else "atom.acquire.cta"
    give = "atom.relaxed.cta" if bug == 2 else "atom.release.cta"
    if tc.lane_id() == 0:
        taken = tc.u32(1)
        while taken != 0:
            taken = tc.emit(f"{take}.shared.cas.b32", lock.at(0), tc.u32(0), tc.u32(1)).bits(  # race 3: first
                tc.u32
            )
        total[0] += x[tc.threadIdx.x]  # race: both
        if bug == 3:
            lock[0] = 0  # race 3: second
        else:
            tc.emit(f"{give}.shared.exch.b32", lock.at(0), tc.u32(0))
    tc.barrier()
    out[tc.threadIdx.x] = total[0]


@tc.kernel
def broadcast_is_overwritten(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """All read one word; thread 0 writes the next one into it."""
    word = tc.shared(1, tc.s32)
    t = tc.threadIdx.x
    if t == 0:
        word[0] = x[0]
    tc.barrier()
    first = word[0]  # race: first
    if not bug:
        tc.barrier()
    if t == 0:
        word[0] = x[1]  # race: second
    tc.barrier()
    out[t] = 1000 * first + word[0]


@tc.kernel
def work_queue(x: tc.Array, out: tc.Array, counter: tc.Array, bug: tc.Const = 1):
    """Thread 0 draws the next row for the block. Bug 1: it may draw before all have read."""
    row = tc.shared(1, tc.s32)
    t = tc.threadIdx.x
    going = t >= 0
    while going:
        if t == 0:
            row[0] = tc.atomic("add", counter.at(0), 1)  # race 1: second; race 2: first
        if bug != 2:
            tc.barrier()
        now = row[0]  # race 1: first; race 2: second
        if bug != 1:
            tc.barrier()
        going = now < x.shape[0]
        if going:
            out[now, t] = 2 * x[now, t]


def rows_of_a_queue(draw):
    x = draw.integers(1, 1000, (5, 64)).astype(np.int32)
    counter = np.zeros(1, np.int32)
    return {"x": x, "out": np.zeros_like(x), "counter": counter}, {
        "out": 2 * x,
        "counter": np.array([6], np.int32),
    }


@tc.kernel
def transpose_with_wrong_padding(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Rows of 32 elements 31 apart: the last of a row is the first of the next one."""
    tile = tc.shared(32 * 33, tc.s32)
    pitch = 31 if bug else 33
    lane, warp = tc.lane_id(), tc.warp_id()
    for row in tc.static_range(8):
        tile[(4 * row + warp) * pitch + lane] = x[4 * row + warp, lane]  # race: both
    tc.barrier()
    for row in tc.static_range(8):
        out[4 * row + warp, lane] = tile[lane * pitch + 4 * row + warp]


@tc.kernel
def writes_of_different_values(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """One thread of each warp stores the warp's sum, into one word or into one for each warp."""
    sums = tc.shared(4, tc.s32)
    total = tc.redux("add", x[tc.threadIdx.x])
    if tc.threadIdx.x < 4:
        sums[tc.threadIdx.x] = 0
    tc.barrier()
    if tc.lane_id() == 0:
        sums[0 if bug else tc.warp_id()] = total  # race: both
    tc.barrier()
    out[tc.threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3]


@tc.kernel
def writes_of_the_same_value(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """One thread of each warp writes that it was there."""
    flags = tc.shared(4, tc.s32)
    if tc.threadIdx.x < 4:
        flags[tc.threadIdx.x] = 0
    tc.barrier()
    if tc.lane_id() == 0:
        flags[0 if bug else tc.warp_id()] = 1  # race: both
    tc.barrier()
    out[tc.threadIdx.x] = x[tc.threadIdx.x] * (flags[0] | flags[1] | flags[2] | flags[3])


@tc.kernel
def all_write_a_constant(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Any thread with an odd value sets the flag; an atomic would do so properly."""
    flag = tc.shared(1, tc.s32)
    t = tc.threadIdx.x
    if t == 0:
        flag[0] = 0
    tc.barrier()
    if x[t] % 2 == 1:
        if bug:
            flag[0] = 1  # race: both
        else:
            tc.reduce("or", flag.at(0), 1)
    tc.barrier()
    out[t] = flag[0]


@tc.kernel
def pairs_of_halves(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Threads write neighbouring 16-bit elements, which is fine; a 32-bit load reads two."""
    halves = tc.shared(64, tc.u16)
    t = tc.threadIdx.x
    halves[63 - t] = x[t].to(tc.u16)  # race: first
    if not bug:
        tc.barrier()
    pair = halves.at(2 * (t // 2)).as_type(tc.u32).load()  # race: second
    out[t] = (pair & 0xFFFF).to(tc.s32) + (pair >> 16).to(tc.s32)


@tc.kernel
def halves_of_words(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Warp 0 writes low halves, warp 1 high halves; a word rewritten whole destroys the other."""
    words = tc.shared(32, tc.u32)
    lane, warp = tc.lane_id(), tc.warp_id()
    if warp == 0:
        words[lane] = 0
    tc.barrier()
    if bug:
        value = x[tc.threadIdx.x].to(tc.u32)
        words[lane] = words[lane] | (value << 16 if warp == 1 else value)  # race: both
    else:
        words.at(lane).as_type(tc.u16)[warp] = x[tc.threadIdx.x].to(tc.u16)
    tc.barrier()
    out[tc.threadIdx.x] = words[lane].to(tc.s32)


@tc.kernel
def bytes_beside_each_other(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Each thread stores a byte; the bug stores two, and so the neighbour's, too."""
    bytes = tc.shared(128, tc.u8)
    t = tc.threadIdx.x
    place = bytes.at(t if not bug else 2 * (t // 2))
    value = (x[t] % 256).to(tc.u32)
    if bug:
        place.as_type(tc.u16).store(value.to(tc.u16))  # race: both
    else:
        place.store(value.to(tc.u8))
    tc.barrier()
    out[t] = bytes[t].to(tc.s32)


@tc.kernel
def vectors_overlap_in_part(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Warp 0 stores vectors of four; warp 1 corrects one element, which may be part of one."""
    tile = tc.shared(128, tc.s32)
    lane = tc.lane_id()
    if tc.warp_id() == 0:
        tile.at(4 * lane).store(x.at(4 * lane).load(4))  # race: first
    if not bug:
        tc.barrier()
    if tc.warp_id() == 1:
        tile[4 * lane + 3] = 7  # race: second
    tc.barrier()
    out.at(2 * tc.threadIdx.x).store(tile.at(2 * tc.threadIdx.x).load(2))


@tc.kernel
def vector_reads_one_too_many(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Threads store single elements and read pairs, of which the second is the next thread's."""
    tile = tc.shared(128, tc.s32)
    t = tc.threadIdx.x
    tile[2 * t] = x[t]  # race: first
    tile[2 * t + 1] = 1  # race: first
    if bug:
        four = tile.at(4 * ((t + 32) % 64 // 2)).load(4)  # race: second
        out[t] = four[1]
    else:
        pair = tile.at(2 * t).load(2)
        out[t] = pair[1]


@tc.kernel
def matrix_read_before_it_is_stored(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Bug 1: ldmatrix before the barrier, 2: the tile is overwritten while it is read."""
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((16, 16), tc.f16)
    acc = mma.d.zeros()
    for i in tc.range(x.shape[0]):
        if tc.warp_id() == 0:
            for j in tc.static_range(8):
                tile[2 * j + tc.lane_id() // 16, tc.lane_id() % 16] = x[  # race 1: first; race 2: second
                    i, 2 * j + tc.lane_id() // 16, tc.lane_id() % 16
                ]
        if bug != 1:
            tc.barrier()
        if tc.warp_id() == 1:
            fragment = tc.ldmatrix(tile, mma.a)  # race 1: second; race 2: first
            acc = mma(
                fragment,
                tc.fragment(mma.b, lambda row, col: tc.select(row == col, tc.f16(1), tc.f16(0))),
                acc,
            )
        if bug != 2:
            tc.barrier()
    if tc.warp_id() == 1:
        tc.store_elements(out, acc)


def sum_of_matrices(draw):
    x = draw.integers(-4, 5, (3, 16, 16)).astype(np.float16)
    right = x.sum(axis=0)[:, :8].astype(np.float32)
    return {"x": x, "out": np.zeros_like(right)}, {"out": right}


@tc.kernel
def matrix_stored_without_barrier(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """stmatrix by warp 0, plain loads by warp 1."""
    tile = tc.shared((8, 8), tc.u16)
    lane = tc.lane_id()
    if tc.warp_id() == 0:
        tc.emit(  # race: first
            "stmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(lane % 8, 0), x[lane].bits(tc.b32)
        )
    if not bug:
        tc.barrier()
    if tc.warp_id() == 1:
        out[lane] = tile.at(lane // 4, lane % 4 * 2).as_type(tc.s32).load()  # race: second


@tc.kernel
def neighbour_rows_of_a_plane(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A block of 16 x 8 threads, of which a warp has two rows: half of the reads stay in it."""
    tile = tc.shared((8, 16), tc.s32)
    row, col = tc.threadIdx.y, tc.threadIdx.x
    tile[row, col] = x[row, col]  # race: first
    if bug:
        tc.syncwarp()
    else:
        tc.barrier()
    out[row, col] = tile[(row + 1) % 8, col]  # race: second


@tc.kernel
def vote_instead_of_a_barrier(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A reducing barrier orders the whole block, a vote nothing but its warp."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]  # race: first
    if bug:
        some = tc.vote("any", x[t] > 0)
    else:
        some = tc.emit("bar.red.or.pred", 0, x[t] > 0)
    out[t] = tc.select(some, tile[63 - t], 0)  # race: second


@tc.kernel
def fence_instead_of_a_barrier(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A fence waits for nobody."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]  # race: first
    tc.emit("fence.sc.cta")
    if not bug:
        tc.barrier()
    out[t] = tile[63 - t]  # race: second


@tc.kernel
def two_reductions_share_a_word(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The partial sums of the second reduction overwrite those that warps still add."""
    parts = tc.shared(4, tc.s32)
    t = tc.threadIdx.x
    totals = []
    for row in range(2):
        part = tc.redux("add", x[row, t])
        if tc.lane_id() == 0:
            parts[tc.warp_id()] = part  # race: second
        tc.barrier()
        totals.append(parts[0] + parts[1] + parts[2] + parts[3])  # race: first
        if not bug:
            tc.barrier()
    out[t] = totals[0] - totals[1]


@tc.kernel
def predicated_store(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Only warp 1 stores, by predicate; the barrier is missing all the same."""
    tile = tc.shared(64, tc.s32)
    t = tc.threadIdx.x
    tile[t] = x[t]
    tc.barrier()
    tile.at(t).store(0, pred=t >= 32)  # race: first
    if not bug:
        tc.barrier()
    out[t] = tile.at(63 - t).load(pred=t < 32, otherwise=5)  # race: second


@tc.kernel
def tile_of_the_epilogue(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """The memory of the main loop is used again, under another type, by the epilogue."""
    tile = tc.shared((2, 64), tc.s32)
    t = tc.threadIdx.x
    total = 0
    for i in tc.range(x.shape[0]):
        tile[i % 2, t] = x[i, t]
        tc.barrier()
        total += tile[i % 2, 63 - t]  # race: first
    if not bug:
        tc.barrier()
    tile.at(0, 0).as_type(tc.f32)[t ^ 33] = total.to(tc.f32)  # race: second
    tc.barrier()
    out[t] = tile.at(0, 0).as_type(tc.f32)[t].to(tc.s32)


@tc.kernel
def specialised_warps(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Warps 1 to 3 wait for warp 0 at a barrier of 128; the bug lets warp 3 wait for nothing."""
    tile = tc.shared(32, tc.s32)
    lane, warp = tc.lane_id(), tc.warp_id()
    if warp == 0:
        tile[lane] = x[lane]  # race: first
        tc.barrier_arrive(2, 96 if bug else 128)
    else:
        if bug:
            if warp < 3:
                tc.barrier(2, 96)
        else:
            tc.barrier(2, 128)
        out[warp - 1, lane] = tile[31 - lane]  # race: second


@tc.kernel
def wide_values_in_halves(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Warp 0 writes a 64-bit value as two words with nothing to say when; warp 1 reads it whole."""
    pairs = tc.shared(32, tc.s64)
    lane = tc.lane_id()
    if tc.warp_id() == 0:
        halves = pairs.at(lane).as_type(tc.s32)
        halves[0] = x[lane]  # race: first
        halves[1] = 0  # race: first
    if not bug:
        tc.barrier()
    if tc.warp_id() == 1:
        out[lane] = pairs[31 - lane].to(tc.s32)  # race: second


def _overlapped(x):
    tile = x.copy()
    tile[3::4] = 7
    return tile


def _odd_counts(x):
    return np.repeat((x % 2).sum(axis=1, keepdims=True), 64, axis=1).astype(np.int32)


def _signed_turns(x):
    reverse = x[:, ::-1]
    return reverse.sum(axis=0) - reverse[:-1].sum(axis=0)


_reverse, _total = (
    mapped(64, lambda x: x[::-1]),
    mapped((5, 64), lambda x: x[:, ::-1].sum(axis=0).astype(np.int32)),
)
_reverse32 = mapped(32, lambda x: x[::-1])
CASES = [
    case(missing_barrier, 1, 64, _reverse, Race),
    case(barrier_in_the_wrong_place, 1, 64, mapped(64, lambda x: np.roll(x, 32)), Race),
    case(barrier_in_the_wrong_place, 1, 64, mapped(64, lambda x: np.roll(x, 32)), Race, bug=2),
    case(overwrites_in_the_next_turn, 1, 64, _total, Race),
    case(
        last_turn_lacks_the_barrier,
        1,
        64,
        mapped((3, 64), lambda x: (x.sum(axis=0) + x[-1, ::-1]).astype(np.int32)),
        Race,
    ),
    case(one_arm_writes_behind_the_barrier, 1, 64, _reverse, Race),
    case(barrier_under_a_condition_of_the_data, 1, 64, _total, Race),
    case(barrier_under_a_condition_of_the_data, 1, 64, _total, Race, bug=2),
    case(named_barrier_of_half_the_warps, 1, 128, mapped(128, lambda x: np.roll(x, -32)), Race),
    case(named_barrier_with_a_small_count, 1, 128, mapped(128, lambda x: x[::-1]), Race, EmulationError),
    case(named_barriers_by_parity, 1, 128, mapped(128, lambda x: x.reshape(2, 2, 32)[:, ::-1].ravel()), Race),
    case(arrive_instead_of_sync, 1, 64, _reverse32, Race),
    case(arrive_instead_of_sync, 1, 64, _reverse32, Race, bug=2),
    case(
        ring_of_named_barriers,
        1,
        64,
        mapped((6, 32), lambda x: (x[:, ::-1] * np.arange(1, 7)[:, None]).sum(axis=0).astype(np.int32)),
        Race,
    ),
    case(
        ring_of_named_barriers,
        1,
        64,
        mapped((6, 32), lambda x: (x[:, ::-1] * np.arange(1, 7)[:, None]).sum(axis=0).astype(np.int32)),
        Race,
        bug=2,
    ),
    case(
        ring_of_named_barriers,
        1,
        64,
        mapped((6, 32), lambda x: (x[:, ::-1] * np.arange(1, 7)[:, None]).sum(axis=0).astype(np.int32)),
        Race,
        bug=3,
    ),
    case(one_buffer_where_two_are_needed, 1, 64, _total, Race),
    case(reads_both_buffers, 1, 64, mapped((4, 64), lambda x: _signed_turns(x).astype(np.int32)), Race),
    case(
        tree_with_barriers_missing, 1, 128, mapped(128, lambda x: x.sum(keepdims=True).astype(np.int32)), Race
    ),
    case(
        tree_with_barriers_missing,
        1,
        128,
        mapped(128, lambda x: x.sum(keepdims=True).astype(np.int32)),
        Race,
        bug=2,
    ),
    case(scan_in_place, 1, 64, mapped(64, lambda x: np.cumsum(x).astype(np.int32)), Race),
    case(scan_in_place, 1, 64, mapped(64, lambda x: np.cumsum(x).astype(np.int32)), Race, bug=2),
    case(
        histogram_without_atomics,
        1,
        64,
        mapped(64, lambda x: np.bincount(x % 16, minlength=16).astype(np.int32)),
        Race,
    ),
    case(counter_without_barriers, 1, 64, mapped(64, lambda x: np.full(64, (x % 2).sum(), np.int32)), Race),
    case(
        counter_without_barriers,
        1,
        64,
        mapped(64, lambda x: np.full(64, (x % 2).sum(), np.int32)),
        Race,
        bug=2,
    ),
    case(counter_is_reset_too_early, 1, 64, mapped((3, 64), _odd_counts), Race),
    case(plain_store_among_atomics, 1, 64, mapped(64, lambda x: np.full(64, x.max(), np.int32)), Race),
    *(case(flag_without_release, 1, 64, _reverse32, Race, bug=bug) for bug in (1, 2, 3, 4)),
    *(case(flag_without_fence, 1, 64, _reverse32, Race, bug=bug) for bug in (1, 2)),
    case(plain_flag, 1, 64, mapped(32, lambda x: np.full(32, x[0], np.int32)), Race),
    *(
        case(spin_lock, 1, 128, mapped(128, lambda x: np.full(128, x[::32].sum(), np.int32)), Race, bug=bug)
        for bug in (1, 2, 3)
    ),
    case(
        broadcast_is_overwritten, 1, 64, mapped(64, lambda x: np.full(64, 1000 * x[0] + x[1], np.int32)), Race
    ),
    case(work_queue, 1, 64, rows_of_a_queue, Race),
    case(work_queue, 1, 64, rows_of_a_queue, Race, bug=2),
    case(transpose_with_wrong_padding, 1, 128, mapped((32, 32), lambda x: x.T), Race),
    case(writes_of_different_values, 1, 128, mapped(128, lambda x: np.full(128, x.sum(), np.int32)), Race),
    case(writes_of_the_same_value, 1, 128, mapped(128, lambda x: x), RaceWarning),
    case(all_write_a_constant, 1, 64, mapped(64, lambda x: np.ones(64, np.int32)), RaceWarning),
    case(
        pairs_of_halves,
        1,
        64,
        mapped(64, lambda x: np.repeat(x[::-1][::2] + x[::-1][1::2], 2).astype(np.int32)),
        Race,
    ),
    case(
        halves_of_words,
        1,
        64,
        mapped(64, lambda x: np.tile(x[:32] + (x[32:] << 16), 2).astype(np.int32)),
        Race,
    ),
    case(bytes_beside_each_other, 1, 128, mapped(128, lambda x: x % 256), Race),
    case(vectors_overlap_in_part, 1, 64, mapped(128, _overlapped), Race),
    case(vector_reads_one_too_many, 1, 64, mapped(64, np.ones_like), Race),
    case(matrix_read_before_it_is_stored, 1, 64, sum_of_matrices, Race),
    case(matrix_read_before_it_is_stored, 1, 64, sum_of_matrices, Race, bug=2),
    case(matrix_stored_without_barrier, 1, 64, mapped(32, lambda x: x), Race),
    case(neighbour_rows_of_a_plane, 1, (16, 8), mapped((8, 16), lambda x: np.roll(x, -1, axis=0)), Race),
    case(vote_instead_of_a_barrier, 1, 64, _reverse, Race),
    case(fence_instead_of_a_barrier, 1, 64, _reverse, Race),
    case(
        two_reductions_share_a_word,
        1,
        128,
        mapped((2, 128), lambda x: np.full(128, x[0].sum() - x[1].sum(), np.int32)),
        Race,
    ),
    case(
        predicated_store,
        1,
        64,
        mapped(64, lambda x: np.where(np.arange(64) < 32, 0, 5).astype(np.int32)),
        Race,
    ),
    case(
        tile_of_the_epilogue,
        1,
        64,
        mapped((5, 64), lambda x: x[:, ::-1].sum(axis=0)[np.arange(64) ^ 33].astype(np.int32)),
        Race,
    ),
    case(specialised_warps, 1, 128, mapped(32, lambda x: np.tile(x[::-1], (3, 1))), Race),
    case(wide_values_in_halves, 1, 64, _reverse32, Race),
]
