"""Races in global memory, between the blocks of a launch and inside one block."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race, RaceWarning
from tests.planted.harness import case, mapped

BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def store(semantics, pointer, value):
    """st with semantics such as ".release.gpu"."""
    tc.emit(f"st{semantics}.global.b32", pointer, value)


def load(semantics, pointer):
    return tc.emit(f"ld{semantics}.global.b32", pointer).bits(tc.s32)


# -- who writes what ----------------------------------------------------------------------------


@tc.kernel
def two_blocks_write_one_element(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    out[i % 64 if bug else i] = x[i]  # race: both


@tc.kernel
def two_blocks_write_one_value(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Each block that finds a value above 500 says so."""
    found = tc.vote("any", x[tc.blockIdx.x, tc.threadIdx.x] > 500)
    if found and tc.threadIdx.x == 0:
        out[0 if bug else tc.blockIdx.x] = 1  # race: both


@tc.kernel
def borders_of_tiles_overlap(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Blocks own 32 elements each; the bug also writes the first one of the next block."""
    first = tc.blockIdx.x * 32
    for i in tc.range(tc.threadIdx.x, 33 if bug else 32, 16):
        if first + i < x.shape[0]:
            out[first + i] = x[first + i] + tc.blockIdx.x  # race: both


@tc.kernel
def vectors_cross_the_border(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Blocks own 30 elements; vectors of two fit into them, vectors of four do not."""
    width = 4 if bug else 2
    for i in tc.range(
        tc.blockIdx.x * 30 // width * width + width * tc.threadIdx.x, tc.blockIdx.x * 30 + 30, width * 32
    ):
        out.at(i).store([x[i + j] + tc.blockIdx.x for j in range(width)])  # race: both


@tc.kernel
def wrong_block_index(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A grid of 2 x 2 tiles of 8 x 4; the bug takes the row of the tile for both coordinates."""
    row = tc.blockIdx.y * 4 + tc.threadIdx.y
    col = (tc.blockIdx.y if bug else tc.blockIdx.x) * 8 + tc.threadIdx.x
    out[row, col] = x[row, col] + tc.blockIdx.x  # race: both


@tc.kernel
def first_values_agree(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Blocks write the same to the first half of what they share, and not to the second half."""
    i = tc.threadIdx.x
    block = tc.blockIdx.x if i >= 16 else 0
    out[0 if bug else tc.blockIdx.x, i] = x[i] + block  # race: both


@tc.kernel
def stencil_in_place(x: tc.Array, bug: tc.Const = 1):
    """One block: all neighbours must be read before any is replaced."""
    t = tc.threadIdx.x
    left = x[max(t - 1, 0)]  # race: first
    right = x[min(t + 1, x.shape[0] - 1)]  # race: first
    if not bug:
        tc.barrier()
    x[t] = left + right  # race: second


def smoothed(draw):
    x = draw.integers(1, 1000, 64).astype(np.int32)
    padded = np.concatenate([x[:1], x, x[-1:]])
    return {"x": x}, {"x": padded[:-2] + padded[2:]}


@tc.kernel
def stencil_over_blocks(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Many blocks: a barrier of the block protects its inside, not the halo."""
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    n = x.shape[0]
    value = x[i] + x[(i + 1) % n]  # race: first
    tc.barrier()
    if bug:
        x[i] = value  # race: second
    else:
        out[i] = value


@tc.kernel
def halo_of_the_neighbour_block(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Each block doubles its part, then reads one element of the next part."""
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    out[0, i] = 2 * x[i]  # race: first
    tc.barrier()
    if bug:
        next = out[0, (i + 1) % x.shape[0]]  # race: second
    else:
        next = 2 * x[(i + 1) % x.shape[0]]
    out[1, i] = next


@tc.kernel
def exchange_inside_a_block(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Through global memory. Bug 1: no barrier, 2: a syncwarp where warps exchange."""
    t = tc.threadIdx.x
    out[0, t] = x[t]  # race: first
    if bug == 0:
        tc.barrier()
    elif bug == 2:
        tc.syncwarp()
    out[1, t] = out[0, 63 - t]  # race: second


@tc.kernel
def exchange_inside_a_warp(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    lane = tc.lane_id()
    out[0, lane] = x[lane]  # race: first
    if not bug:
        tc.syncwarp()
    out[1, lane] = out[0, lane ^ 1]  # race: second


@tc.kernel
def bytes_in_words(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Each of four blocks owns one byte of every word; the bug rewrites the whole word."""
    words = out.at(tc.threadIdx.x)
    value = (x[tc.blockIdx.x, tc.threadIdx.x] % 256).to(tc.u32)
    if bug:
        words.store(  # race: both
            (words.load().to(tc.u32) | value << (8 * tc.blockIdx.x).to(tc.u32)).bits(tc.s32)
        )
    else:
        words.as_type(tc.u8)[tc.blockIdx.x] = value.to(tc.u8)


def packed(x):
    return (x % 256).astype(np.uint8).T.copy().view(np.int32).ravel()


# -- atomics ------------------------------------------------------------------------------------


@tc.kernel
def split_k_without_atomics(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Blocks add their parts of a sum to one row."""
    t = tc.threadIdx.x
    if bug:
        out[t] += x[tc.blockIdx.x, t]  # race: both
    else:
        tc.reduce("add", out.at(t), x[tc.blockIdx.x, t])


@tc.kernel
def histogram_without_atomics(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    place = out.at(x[tc.blockIdx.x, tc.threadIdx.x] % 8)
    if bug:
        place.store(place.load() + 1)  # race: both
    else:
        tc.reduce("add", place, 1)


@tc.kernel
def first_block_zeroes(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A sum by atomics, of which block 0 first zeroes the word, by a plain store."""
    if bug:
        if (tc.blockIdx.x == 0) & (tc.threadIdx.x == 0):
            out[0] = 0  # race: first
        tc.barrier()
    tc.reduce("add", out.at(0), x[tc.blockIdx.x, tc.threadIdx.x])  # race: second


@tc.kernel
def sum_is_read_too_early(x: tc.Array, out: tc.Array, sums: tc.Array, bug: tc.Const = 1):
    """Block 0 looks at the sum behind a barrier of its own block only."""
    word = sums.at(0) if bug else sums.at(1 + tc.blockIdx.x)
    tc.reduce("add", word, x[tc.blockIdx.x, tc.threadIdx.x])  # race: first
    tc.barrier()
    if tc.threadIdx.x == 0:
        out[tc.blockIdx.x] = word.load()  # race: second


def sums_of_blocks(draw):
    x = draw.integers(1, 1000, (4, 64)).astype(np.int32)
    right = x.sum(axis=1).astype(np.int32)
    return {"x": x, "out": np.zeros(4, np.int32), "sums": np.zeros(5, np.int32)}, {"out": right}


@tc.kernel
def atomics_of_narrow_scope(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """Atomics of cta scope are atomic among the threads of one block only."""
    scope = "cta" if bug else "gpu"
    tc.emit(f"atom.relaxed.{scope}.global.add.s32", out.at(0), x[tc.blockIdx.x, tc.threadIdx.x])  # race: both


@tc.kernel
def plain_tickets(x: tc.Array, out: tc.Array, counter: tc.Array, bug: tc.Const = 1):
    """Blocks draw rows of the result from a counter."""
    row = tc.shared(1, tc.s32)
    if tc.threadIdx.x == 0:
        if bug:
            row[0] = counter[0]  # race: first
            counter[0] = row[0] + 1  # race: first; race: second
        else:
            row[0] = tc.atomic("add", counter.at(0), 1)
    tc.barrier()
    out[row[0], tc.threadIdx.x] = x[0, tc.threadIdx.x]


def drawn_rows(draw):
    x = draw.integers(1, 1000, (1, 32)).astype(np.int32)
    right = np.repeat(x, 4, axis=0)
    return {"x": x, "out": np.zeros_like(right), "counter": np.zeros(1, np.int32)}, {"out": right}


@tc.kernel
def plain_maximum_among_atomics(x: tc.Array, out: tc.Array, bug: tc.Const = 1):
    """A plain look before the atomic saves traffic, and is a race with other blocks' atomics."""
    value = x[tc.blockIdx.x, tc.threadIdx.x]
    if bug:
        if out[0] < value:  # race: first
            tc.reduce("max", out.at(0), value)  # race: second
    else:
        if tc.emit("ld.relaxed.gpu.global.b32", out.at(0)).bits(tc.s32) < value:
            tc.reduce("max", out.at(0), value)


# -- flags --------------------------------------------------------------------------------------


@tc.kernel
def flag_between_blocks(x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """Block 0 hands a row to block 1.

    Bug 1: relaxed store, 2: relaxed load, 3: store of cta scope, 4: load of cta scope, 5: volatile,
    6: no barrier before the flag, 7: none after it, 8: the flag before the data, 9: a plain flag.
    """
    raises = {1: ".relaxed.gpu", 3: ".release.cta", 5: ".volatile", 9: ""}.get(bug, ".release.gpu")
    polls = {2: ".relaxed.gpu", 4: ".acquire.cta", 5: ".volatile"}.get(bug, ".acquire.gpu")
    t = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        if bug == 8 and t == 0:
            store(raises, flags.at(0), 1)
        data[t] = 3 * x[t]  # race: first
        if bug != 6:
            tc.barrier()
        if bug != 8 and t == 0:
            store(raises, flags.at(0), 1)  # race 3,4,9: first
    else:
        if t == 0:
            while load(polls, flags.at(0)) == 0:  # race 3,4,9: second
                tc.emit("nanosleep.u32", 20)
        if bug != 7:
            tc.barrier()
        out[t] = data[t ^ 32]  # race: second


def handed_over(draw):
    x = draw.integers(1, 1000, 64).astype(np.int32)
    zeros = lambda n: np.zeros(n, np.int32)
    arrays = {"x": x, "out": zeros(64), "data": zeros(64), "flags": zeros(4)}
    return arrays, {"out": 3 * x[np.arange(64) ^ 32]}


@tc.kernel
def fences_around_a_flag(x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """A volatile flag between fences. Bug 1, 2: a fence is missing, 3: one has cta scope."""
    t = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        data[t] = 3 * x[t]  # race: first
        tc.barrier()
        if t == 0:
            if bug != 1:
                tc.emit("membar.cta" if bug == 3 else "membar.gl")
            store(".volatile", flags.at(0), 1)
    else:
        if t == 0:
            while load(".volatile", flags.at(0)) == 0:
                tc.emit("nanosleep.u32", 20)
            if bug != 2:
                tc.emit("membar.gl")
        tc.barrier()
        out[t] = data[t ^ 32]  # race: second


@tc.kernel
def chain_with_a_wrong_flag(x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """Block b adds its row to that of block b - 1. The bug waits for the flag of block 0."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    total = x[b, t]
    if b > 0:
        while load(".acquire.gpu", flags.at(0 if bug else b - 1)) == 0:
            tc.emit("nanosleep.u32", 20)
        total += data[b - 1, t]  # race: second
    data[b, t] = total  # race: first
    tc.barrier()
    if t == 0:
        store(".release.gpu", flags.at(b), 1)
    if b == tc.gridDim.x - 1:
        out[t] = total


def chained(draw):
    x = draw.integers(1, 1000, (4, 32)).astype(np.int32)
    right = x.sum(axis=0).astype(np.int32)
    arrays = {
        "x": x,
        "out": np.zeros(32, np.int32),
        "data": np.zeros((4, 32), np.int32),
        "flags": np.zeros(4, np.int32),
    }
    return arrays, {"out": right}


@tc.kernel
def flag_of_a_half(x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """The producer writes two halves and raises the flag once; the bug raises it between them."""
    t = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        data[t] = 3 * x[t]
        if bug:
            tc.barrier()
            if t == 0:
                store(".release.gpu", flags.at(0), 1)
        data[32 + t] = 3 * x[32 + t]  # race: first
        if not bug:
            tc.barrier()
            if t == 0:
                store(".release.gpu", flags.at(0), 1)
    else:
        while load(".acquire.gpu", flags.at(0)) == 0:
            tc.emit("nanosleep.u32", 20)
        out[t] = data[32 + t]  # race: second
        out[32 + t] = data[t]


@tc.kernel
def last_block_adds(x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """Each block stores a partial sum, and the last one to draw a ticket adds them.

    Bug 1: no fence before the ticket, 2: none after it, 3: one of cta scope, 4: another thread
    has the fence, 5: all threads store, and no barrier lies before thread 0's ticket.
    """
    last = tc.shared(1, tc.s32)
    t, b = tc.threadIdx.x, tc.blockIdx.x
    data[b, t] = 2 * x[b, t]  # race: first
    if bug != 5:
        tc.barrier()
    if bug == 4 and t == 32:
        tc.emit("fence.acq_rel.gpu")
    if t == 0:
        if bug in (0, 2, 5):
            tc.emit("fence.acq_rel.gpu")
        if bug == 3:
            tc.emit("fence.acq_rel.cta")
        last[0] = tc.atomic("add", flags.at(0), 1)
        if bug != 2:
            tc.emit("fence.acq_rel.gpu")
    tc.barrier()
    if last[0] == tc.gridDim.x - 1:
        total = 0
        for i in tc.range(tc.gridDim.x):
            total += data[i, 63 - t]  # race: second
        out[t] = total


def added_by_the_last(draw):
    x = draw.integers(1, 1000, (4, 64)).astype(np.int32)
    arrays = {
        "x": x,
        "out": np.zeros(64, np.int32),
        "data": np.zeros((4, 64), np.int32),
        "flags": np.zeros(4, np.int32),
    }
    return arrays, {"out": (2 * x.sum(axis=0)[::-1]).astype(np.int32)}


@tc.kernel
def barrier_of_the_grid(x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """All blocks meet at a counter.

    Bug 1: no release, 2: no acquire, 3: no barrier before, 4: none after, 5: relaxed on
    both sides.
    """
    t, b, blocks = tc.threadIdx.x, tc.blockIdx.x, tc.gridDim.x
    data[b, t] = 5 * x[b, t]  # race: first
    if bug != 3:
        tc.barrier()
    if t == 0:
        tc.emit(f"atom.{'relaxed' if bug in (1, 5) else 'release'}.gpu.global.add.s32", flags.at(0), 1)
        while load(".relaxed.gpu" if bug in (2, 5) else ".acquire.gpu", flags.at(0)) < blocks:
            tc.emit("nanosleep.u32", 20)
    if bug != 4:
        tc.barrier()
    out[b, t] = data[(b + 1) % blocks, 63 - t]  # race: second


def exchanged(draw):
    x = draw.integers(1, 1000, (4, 64)).astype(np.int32)
    arrays = {
        "x": x,
        "out": np.zeros((4, 64), np.int32),
        "data": np.zeros((4, 64), np.int32),
        "flags": np.zeros(4, np.int32),
    }
    return arrays, {"out": np.roll(5 * x, -1, axis=0)[:, ::-1]}


@tc.kernel
def steps_with_a_grid_barrier(x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """Jacobi steps between two arrays. Bug 1: no barrier in odd steps, 2: one array in place."""
    t, b, blocks = tc.threadIdx.x, tc.blockIdx.x, tc.gridDim.x
    i, n = b * 32 + t, blocks * 32
    for step in tc.range(4):
        source, target = (0, 0) if bug == 2 else (step % 2, 1 - step % 2)
        value = data[source, i] + data[source, (i + 1) % n]  # race 1: second; race 2: first
        data[target, i] = value  # race 1: first; race 2: second
        tc.barrier()
        if bug != 1 or step % 2 == 0:
            if t == 0:
                tc.emit("atom.release.gpu.global.add.s32", flags.at(step), 1)
                while load(".acquire.gpu", flags.at(step)) < blocks:
                    tc.emit("nanosleep.u32", 20)
            tc.barrier()
    out[i] = data[0, i] + x[i]


def four_steps(draw):
    x = draw.integers(1, 1000, 96).astype(np.int32)
    data = np.stack([x, np.zeros_like(x)])
    right = x
    for _ in range(4):
        right = right + np.roll(right, -1)
    return {"x": x, "out": np.zeros_like(x), "data": data, "flags": np.zeros(4, np.int32)}, {"out": right + x}


@tc.kernel
def lock_between_blocks(x: tc.Array, out: tc.Array, lock: tc.Array, bug: tc.Const = 1):
    """Bug 1: taken relaxed, 2: given back relaxed, 3: given back by a plain store, 4: cta scope."""
    scope = "cta" if bug == 4 else "gpu"
    take = f"{'relaxed' if bug == 1 else 'acquire'}.{scope}"
    if tc.threadIdx.x == 0:
        taken = tc.u32(1)
        while taken != 0:
            taken = tc.emit(
                f"atom.{take}.global.cas.b32", lock.at(0), tc.u32(0), tc.u32(1)
            ).bits(  # race 3,4: both
                tc.u32
            )
        out[0] += x[tc.blockIdx.x]  # race: both
        if bug == 3:
            lock[0] = 0  # race 3: first; race 3: second
        else:
            tc.emit(  # race 4: both
                f"st.{'relaxed' if bug == 2 else 'release'}.{scope}.global.b32", lock.at(0), tc.u32(0)
            )


def locked_sum(draw):
    x = draw.integers(1, 1000, 4).astype(np.int32)
    return {"x": x, "out": np.zeros(1, np.int32), "lock": np.zeros(1, np.int32)}, {
        "out": x.sum(keepdims=True).astype(np.int32)
    }


@tc.kernel
def queue_of_slots(x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1):
    """Producers draw slots by atomics, fill and mark them; block 0 reads all of them.

    Bug 1: the mark is relaxed, 2: the reader waits for the number of slots drawn, not for marks.
    """
    b = tc.blockIdx.x
    if b > 0:
        if tc.threadIdx.x == 0:
            slot = tc.atomic("add", flags.at(0), 1)
            data[slot, 0] = 7 * x[b - 1]  # race: first
            store(".relaxed.gpu" if bug == 1 else ".release.gpu", flags.at(1 + slot), 1)
    else:
        t = tc.threadIdx.x
        if t < 3:
            if bug == 2:
                while load(".acquire.gpu", flags.at(0)) < 3:
                    tc.emit("nanosleep.u32", 20)
            else:
                while load(".acquire.gpu", flags.at(1 + t)) == 0:
                    tc.emit("nanosleep.u32", 20)
            tc.reduce("add", out.at(0), data[t, 0])  # race: second


def queued(draw):
    x = draw.integers(1, 1000, 3).astype(np.int32)
    arrays = {
        "x": x,
        "out": np.zeros(1, np.int32),
        "data": np.zeros((4, 1), np.int32),
        "flags": np.zeros(4, np.int32),
    }
    return arrays, {"out": 7 * x.sum(keepdims=True).astype(np.int32)}


@tc.kernel
def torn_words(x: tc.Array, out: tc.Array, data: tc.Array, bug: tc.Const = 1):
    """A 64-bit word is published by relaxed stores; the bug uses two of 32 bits."""
    if tc.blockIdx.x == 0:
        if tc.threadIdx.x == 0:
            value = x[0].to(tc.s64) << 32 | 1
            if bug:
                low, high = tc.emit("mov.b64.unpack", value)
                half = data.at(0).as_type(tc.s32)
                tc.emit("st.relaxed.gpu.global.b32", half, low)  # race: first
                tc.emit("st.relaxed.gpu.global.b32", half + 1, high)  # race: first
            else:
                tc.emit("st.relaxed.gpu.global.b64", data.at(0), value)
    else:
        seen = tc.s64(0)
        while seen == 0:
            seen = tc.emit("ld.relaxed.gpu.global.b64", data.at(0)).bits(tc.s64)  # race: second
        out[tc.threadIdx.x] = (seen >> 32).to(tc.s32)


def published(draw):
    x = draw.integers(1, 1000, 1).astype(np.int32)
    return {"x": x, "out": np.zeros(32, np.int32), "data": np.zeros(1, np.int64)}, {
        "out": np.full(32, x[0], np.int32)
    }


# -- other ways to memory ------------------------------------------------------------------------


@tc.kernel
def read_only_path(x: tc.Array, out: tc.Array, data: tc.Array, bug: tc.Const = 1):
    """ld.nc of what the launch writes: no barrier makes the cache forget."""
    t = tc.threadIdx.x
    data[t] = 2 * x[t]  # race: first
    tc.barrier()
    out[t] = data.at(63 - t).load(cache=".nc" if bug else "")  # race: second; error


def read_back(draw):
    x = draw.integers(1, 1000, 64).astype(np.int32)
    return {"x": x, "out": np.zeros_like(x), "data": np.zeros_like(x)}, {"out": 2 * x[::-1]}


@tc.kernel
def read_only_path_after_a_flag(
    x: tc.Array, out: tc.Array, data: tc.Array, flags: tc.Array, bug: tc.Const = 1
):
    t = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        data[t] = 3 * x[t]  # race: first
        tc.barrier()
        if t == 0:
            store(".release.gpu", flags.at(0), 1)
    else:
        while load(".acquire.gpu", flags.at(0)) == 0:
            tc.emit("nanosleep.u32", 20)
        out[t] = data.at(t ^ 32).load(cache=".nc" if bug else "")  # race: second; error


@tc.kernel
def bulk_load_of_plain_stores(x: tc.Array, out: tc.Array, data: tc.Array, bug: tc.Const = 1):
    """The block writes a row and reads it back by a bulk copy.

    Bug 1: no fence.proxy.async, 2: the fence lies behind the copy, 3: no barrier before the copy.
    """
    tile, bar = tc.shared(64, tc.s32, align=128), tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    data[t] = 2 * x[t]  # race: first
    if bug in (0, 3):
        tc.emit("fence.proxy.async")
    if bug != 3:
        tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(256)
        tc.emit(BULK_LOAD, tile.address, data.at(0), 256, bar.address)  # race: second; error
    if bug == 2:
        tc.emit("fence.proxy.async")
    if bug == 3:
        tc.barrier()
    bar.wait(0)
    out[t] = tile[63 - t]


@tc.kernel
def bulk_store_is_read_back(x: tc.Array, out: tc.Array, data: tc.Array, bug: tc.Const = 1):
    """A bulk store must be complete, not only done reading, before its target is loaded."""
    tile = tc.shared(64, tc.s32, align=128)
    t = tc.threadIdx.x
    tile[t] = 2 * x[t]
    tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        tc.emit(BULK_STORE, data.at(0), tile.address, 256)  # race: first
        tc.tma_store_commit()
        tc.tma_store_wait(0, read=bool(bug))
    tc.barrier()
    out[t] = data[63 - t]  # race: second; error


_RACE_OF_PROXIES = (Race, EmulationError)
CASES = [
    case(two_blocks_write_one_element, 4, 32, mapped(128, lambda x: x), Race),
    case(two_blocks_write_one_value, 4, 32, mapped((4, 32), lambda x: np.ones(4, np.int32)), RaceWarning),
    case(
        borders_of_tiles_overlap, 4, 16, mapped(128, lambda x: x + np.arange(128, dtype=np.int32) // 32), Race
    ),
    case(
        vectors_cross_the_border, 2, 32, mapped(60, lambda x: x + np.arange(60, dtype=np.int32) // 30), Race
    ),
    case(
        wrong_block_index,
        (2, 2),
        (8, 4),
        mapped((8, 16), lambda x: x + np.arange(16, dtype=np.int32) // 8),
        Race,
    ),
    case(
        first_values_agree,
        4,
        32,
        mapped(32, lambda x: np.stack([x + b * (np.arange(32) >= 16) for b in range(4)]).astype(np.int32)),
        Race,
    ),
    case(stencil_in_place, 1, 64, smoothed, Race),
    case(stencil_over_blocks, 3, 32, mapped(96, lambda x: x + np.roll(x, -1)), Race),
    case(
        halo_of_the_neighbour_block, 3, 32, mapped(96, lambda x: np.stack([2 * x, 2 * np.roll(x, -1)])), Race
    ),
    case(exchange_inside_a_block, 1, 64, mapped(64, lambda x: np.stack([x, x[::-1]])), Race),
    case(exchange_inside_a_block, 1, 64, mapped(64, lambda x: np.stack([x, x[::-1]])), Race, bug=2),
    case(exchange_inside_a_warp, 1, 32, mapped(32, lambda x: np.stack([x, x[np.arange(32) ^ 1]])), Race),
    case(bytes_in_words, 4, 32, mapped((4, 32), packed), Race),
    case(split_k_without_atomics, 4, 32, mapped((4, 32), lambda x: x.sum(axis=0).astype(np.int32)), Race),
    case(
        histogram_without_atomics,
        4,
        32,
        mapped((4, 32), lambda x: np.bincount(x.ravel() % 8, minlength=8).astype(np.int32)),
        Race,
        name="global_histogram",
    ),
    case(
        first_block_zeroes, 4, 32, mapped((4, 32), lambda x: x.sum(keepdims=True)[0].astype(np.int32)), Race
    ),
    case(sum_is_read_too_early, 4, 64, sums_of_blocks, Race),
    case(
        atomics_of_narrow_scope,
        4,
        32,
        mapped((4, 32), lambda x: x.sum(keepdims=True)[0].astype(np.int32)),
        Race,
    ),
    case(plain_tickets, 4, 32, drawn_rows, Race),
    case(plain_maximum_among_atomics, 4, 32, mapped((4, 32), lambda x: x.max(keepdims=True)[0]), Race),
    *(case(flag_between_blocks, 2, 64, handed_over, Race, bug=bug) for bug in range(1, 10)),
    *(case(fences_around_a_flag, 2, 64, handed_over, Race, bug=bug) for bug in (1, 2, 3)),
    case(chain_with_a_wrong_flag, 4, 32, chained, Race),
    case(flag_of_a_half, 2, 32, handed_over, Race),
    *(case(last_block_adds, 4, 64, added_by_the_last, Race, bug=bug) for bug in (1, 2, 3, 4, 5)),
    *(case(barrier_of_the_grid, 4, 64, exchanged, Race, bug=bug) for bug in (1, 2, 3, 4, 5)),
    *(case(steps_with_a_grid_barrier, 3, 32, four_steps, Race, bug=bug) for bug in (1, 2)),
    *(case(lock_between_blocks, 4, 32, locked_sum, Race, bug=bug) for bug in (1, 2, 3, 4)),
    *(case(queue_of_slots, 4, 32, queued, Race, bug=bug) for bug in (1, 2)),
    case(torn_words, 2, 32, published, Race),
    case(read_only_path, 1, 64, read_back, *_RACE_OF_PROXIES),
    case(read_only_path_after_a_flag, 2, 64, handed_over, *_RACE_OF_PROXIES),
    *(case(bulk_load_of_plain_stores, 1, 64, read_back, *_RACE_OF_PROXIES, bug=bug) for bug in (1, 2, 3)),
    case(bulk_store_is_read_back, 1, 64, read_back, *_RACE_OF_PROXIES),
]
