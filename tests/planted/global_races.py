"""Races in global memory, between the blocks of a launch and inside one block."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race, RaceWarning
from tests.planted.harness import Planted, error, mapped, race

_RACE_OF_PROXIES = (Race, EmulationError)
planted = Planted(Race)

BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def store(semantics, pointer, value):
    """st with semantics such as ".release.gpu"."""
    tc.emit(f"st{semantics}.global.b32", pointer, value)


def load(semantics, pointer):
    return tc.emit(f"ld{semantics}.global.b32", pointer).bits(tc.s32)


# -- who writes what ----------------------------------------------------------------------------


@planted(4, 32, mapped(128, lambda x: x), race("out[i % 64"))
def two_blocks_write_one_element(x, out, mistake: tc.Const):
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    out[i % 64 if mistake else i] = x[i]


@planted(4, 32, mapped((4, 32), lambda x: np.ones(4, np.int32)), race("out[0 if"), RaceWarning)
def two_blocks_write_one_value(x, out, mistake: tc.Const):
    """Each block that finds a value above 500 says so."""
    found = tc.vote("any", x[tc.blockIdx.x, tc.threadIdx.x] > 500)
    if found and tc.threadIdx.x == 0:
        out[0 if mistake else tc.blockIdx.x] = 1


@planted(
    4,
    32,
    mapped(32, lambda x: np.stack([x + b * (np.arange(32) >= 16) for b in range(4)]).astype(np.int32)),
    race("out[0 if"),
)
def first_values_agree(x, out, mistake: tc.Const):
    """Blocks write the same to the first half of what they share, and not to the second half."""
    i = tc.threadIdx.x
    block = tc.blockIdx.x if i >= 16 else 0
    out[0 if mistake else tc.blockIdx.x, i] = x[i] + block


@planted(3, 32, mapped(96, lambda x: x + np.roll(x, -1)), race("value = x", "x[i] ="))
def stencil_over_blocks(x, out, mistake: tc.Const):
    """Many blocks: a barrier of the block protects its inside, not the halo."""
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    n = x.shape[0]
    value = x[i] + x[(i + 1) % n]
    tc.barrier()
    if mistake:
        x[i] = value
    else:
        out[i] = value


@planted(3, 32, mapped(96, lambda x: np.stack([2 * x, 2 * np.roll(x, -1)])), race("out[0, i]", "next = out"))
def halo_of_the_neighbour_block(x, out, mistake: tc.Const):
    """Each block doubles its part, then reads one element of the next part."""
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    out[0, i] = 2 * x[i]
    tc.barrier()
    if mistake:
        next = out[0, (i + 1) % x.shape[0]]
    else:
        next = 2 * x[(i + 1) % x.shape[0]]
    out[1, i] = next


@planted(
    1,
    64,
    mapped(64, lambda x: np.stack([x, x[::-1]])),
    {"no barrier": race("out[0, t]", "out[1, t]"), "syncwarp for a barrier": race("out[0, t]", "out[1, t]")},
)
def exchange_inside_a_block(x, out, mistake: tc.Const):
    """Through global memory."""
    t = tc.threadIdx.x
    out[0, t] = x[t]
    if not mistake:
        tc.barrier()
    elif mistake == "syncwarp for a barrier":
        tc.syncwarp()
    out[1, t] = out[0, 63 - t]


@planted(
    1, 32, mapped(32, lambda x: np.stack([x, x[np.arange(32) ^ 1]])), race("out[0, lane]", "out[1, lane]")
)
def exchange_inside_a_warp(x, out, mistake: tc.Const):
    lane = tc.lane_id()
    out[0, lane] = x[lane]
    if not mistake:
        tc.syncwarp()
    out[1, lane] = out[0, lane ^ 1]


def packed(x):
    return (x % 256).astype(np.uint8).T.copy().view(np.int32).ravel()


@planted(4, 32, mapped((4, 32), packed), race("words.store"))
def bytes_in_words(x, out, mistake: tc.Const):
    """Each of four blocks owns one byte of every word; the mistake rewrites the whole word."""
    words = out.at(tc.threadIdx.x)
    value = (x[tc.blockIdx.x, tc.threadIdx.x] % 256).to(tc.u32)
    if mistake:
        words.store((words.load().to(tc.u32) | value << (8 * tc.blockIdx.x).to(tc.u32)).bits(tc.s32))
    else:
        words.as_type(tc.u8)[tc.blockIdx.x] = value.to(tc.u8)


# -- atomics ------------------------------------------------------------------------------------


@planted(4, 32, mapped((4, 32), lambda x: x.sum(axis=0).astype(np.int32)), race("out[t] +="))
def split_k_without_atomics(x, out, mistake: tc.Const):
    """Blocks add their parts of a sum to one row."""
    t = tc.threadIdx.x
    if mistake:
        out[t] += x[tc.blockIdx.x, t]
    else:
        tc.reduce("add", out.at(t), x[tc.blockIdx.x, t])


@planted(4, 32, mapped((4, 32), lambda x: x.sum(keepdims=True)[0].astype(np.int32)), race("tc.emit"))
def atomics_of_narrow_scope(x, out, mistake: tc.Const):
    """Atomics of cta scope are atomic among the threads of one block only."""
    scope = "cta" if mistake else "gpu"
    tc.emit(f"atom.relaxed.{scope}.global.add.s32", out.at(0), x[tc.blockIdx.x, tc.threadIdx.x])


@planted(4, 32, mapped((4, 32), lambda x: x.max(keepdims=True)[0]), race("if out[0]", "tc.reduce #1"))
def plain_maximum_among_atomics(x, out, mistake: tc.Const):
    """A plain look before the atomic saves traffic, and is a race with other blocks' atomics."""
    value = x[tc.blockIdx.x, tc.threadIdx.x]
    if mistake:
        if out[0] < value:
            tc.reduce("max", out.at(0), value)
    else:
        if tc.emit("ld.relaxed.gpu.global.b32", out.at(0)).bits(tc.s32) < value:
            tc.reduce("max", out.at(0), value)


def handed_over(draw):
    x = draw.integers(1, 1000, 64).astype(np.int32)
    zeros = lambda n: np.zeros(n, np.int32)
    arrays = {"x": x, "out": zeros(64), "data": zeros(64), "flags": zeros(4)}
    return arrays, {"out": 3 * x[np.arange(64) ^ 32]}


# -- flags --------------------------------------------------------------------------------------


@planted(
    2,
    64,
    handed_over,
    {
        "relaxed store": race("data[t] =", "out[t] ="),
        "relaxed load": race("data[t] =", "out[t] ="),
        "store of cta scope": race("store(raises #2", "while load"),
        "load of cta scope": race("store(raises #2", "while load"),
        "volatile": race("data[t] =", "out[t] ="),
        "no barrier before the flag": race("data[t] =", "out[t] ="),
        "no barrier after the flag": race("data[t] =", "out[t] ="),
        "flag before the data": race("data[t] =", "out[t] ="),
        "plain flag": race("store(raises #2", "while load"),
    },
)
def flag_between_blocks(x, out, data, flags, mistake: tc.Const):
    """CTA 0 hands a row to CTA 1."""
    raises = {
        "relaxed store": ".relaxed.gpu",
        "store of cta scope": ".release.cta",
        "volatile": ".volatile",
        "plain flag": "",
    }.get(mistake, ".release.gpu")
    polls = {
        "relaxed load": ".relaxed.gpu",
        "load of cta scope": ".acquire.cta",
        "volatile": ".volatile",
    }.get(mistake, ".acquire.gpu")
    t = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        if mistake == "flag before the data" and t == 0:
            store(raises, flags.at(0), 1)
        data[t] = 3 * x[t]
        if mistake != "no barrier before the flag":
            tc.barrier()
        if mistake != "flag before the data" and t == 0:
            store(raises, flags.at(0), 1)
    else:
        if t == 0:
            while load(polls, flags.at(0)) == 0:
                tc.emit("nanosleep.u32", 20)
        if mistake != "no barrier after the flag":
            tc.barrier()
        out[t] = data[t ^ 32]


@planted(
    2,
    64,
    handed_over,
    dict.fromkeys(
        ("none before the store", "none after the load", "fence of cta scope"), race("data[t] =", "out[t] =")
    ),
)
def fences_around_a_flag(x, out, data, flags, mistake: tc.Const):
    """A volatile flag between fences."""
    t = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        data[t] = 3 * x[t]
        tc.barrier()
        if t == 0:
            if mistake != "none before the store":
                tc.emit("membar.cta" if mistake == "fence of cta scope" else "membar.gl")
            store(".volatile", flags.at(0), 1)
    else:
        if t == 0:
            while load(".volatile", flags.at(0)) == 0:
                tc.emit("nanosleep.u32", 20)
            if mistake != "none after the load":
                tc.emit("membar.gl")
        tc.barrier()
        out[t] = data[t ^ 32]


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


@planted(4, 32, chained, race("data[b, t]", "total +="))
def chain_with_a_wrong_flag(x, out, data, flags, mistake: tc.Const):
    """Block b adds its row to that of block b - 1. The mistake waits for the flag of CTA 0."""
    t, b = tc.threadIdx.x, tc.blockIdx.x
    total = x[b, t]
    if b > 0:
        while load(".acquire.gpu", flags.at(0 if mistake else b - 1)) == 0:
            tc.emit("nanosleep.u32", 20)
        total += data[b - 1, t]
    data[b, t] = total
    tc.barrier()
    if t == 0:
        store(".release.gpu", flags.at(b), 1)
    if b == tc.gridDim.x - 1:
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


@planted(
    4,
    64,
    added_by_the_last,
    dict.fromkeys(
        ("no fence before the ticket", "no fence after the ticket", "fence of another thread"),
        race("data[b, t]", "total +="),
    ),
)
def last_block_adds(x, out, data, flags, mistake: tc.Const):
    """Each block stores a partial sum, and the last one to draw a ticket adds them."""
    last = tc.shared(1, tc.s32)
    t, b = tc.threadIdx.x, tc.blockIdx.x
    data[b, t] = 2 * x[b, t]
    tc.barrier()
    if mistake == "fence of another thread" and t == 32:
        tc.emit("fence.acq_rel.gpu")
    if t == 0:
        if mistake in ("", "no fence after the ticket"):
            tc.emit("fence.acq_rel.gpu")
        last[0] = tc.atomic("add", flags.at(0), 1)
        if mistake != "no fence after the ticket":
            tc.emit("fence.acq_rel.gpu")
    tc.barrier()
    if last[0] == tc.gridDim.x - 1:
        total = 0
        for i in tc.range(tc.gridDim.x):
            total += data[i, 63 - t]
        out[t] = total


def exchanged(draw):
    x = draw.integers(1, 1000, (4, 64)).astype(np.int32)
    arrays = {
        "x": x,
        "out": np.zeros((4, 64), np.int32),
        "data": np.zeros((4, 64), np.int32),
        "flags": np.zeros(4, np.int32),
    }
    return arrays, {"out": np.roll(5 * x, -1, axis=0)[:, ::-1]}


@planted(
    4,
    64,
    exchanged,
    dict.fromkeys(
        ("no release", "no acquire", "no barrier before", "no barrier after"), race("data[b, t]", "out[b, t]")
    ),
)
def barrier_of_the_grid(x, out, data, flags, mistake: tc.Const):
    """All blocks meet at a counter."""
    t, b, blocks = tc.threadIdx.x, tc.blockIdx.x, tc.gridDim.x
    data[b, t] = 5 * x[b, t]
    if mistake != "no barrier before":
        tc.barrier()
    if t == 0:
        tc.emit(
            f"atom.{'relaxed' if mistake == 'no release' else 'release'}.gpu.global.add.s32", flags.at(0), 1
        )
        while load(".relaxed.gpu" if mistake == "no acquire" else ".acquire.gpu", flags.at(0)) < blocks:
            tc.emit("nanosleep.u32", 20)
    if mistake != "no barrier after":
        tc.barrier()
    out[b, t] = data[(b + 1) % blocks, 63 - t]


def locked_sum(draw):
    x = draw.integers(1, 1000, 4).astype(np.int32)
    return {"x": x, "out": np.zeros(1, np.int32), "lock": np.zeros(1, np.int32)}, {
        "out": x.sum(keepdims=True).astype(np.int32)
    }


@planted(
    4,
    32,
    locked_sum,
    {
        "taken relaxed": race("out[0] +="),
        "given back relaxed": race("out[0] +="),
        "given back by a plain store": race(("taken = tc.emit", "lock[0] =")),
        "cta scope": race("taken = tc.emit"),
    },
)
def lock_between_blocks(x, out, lock, mistake: tc.Const):
    scope = "cta" if mistake == "cta scope" else "gpu"
    take = f"{'relaxed' if mistake == 'taken relaxed' else 'acquire'}.{scope}"
    if tc.threadIdx.x == 0:
        taken = tc.u32(1)
        while taken != 0:
            taken = tc.emit(f"atom.{take}.global.cas.b32", lock.at(0), tc.u32(0), tc.u32(1)).bits(tc.u32)
        out[0] += x[tc.blockIdx.x]
        if mistake == "given back by a plain store":
            lock[0] = 0
        else:
            tc.emit(
                f"st.{'relaxed' if mistake == 'given back relaxed' else 'release'}.{scope}.global.b32",
                lock.at(0),
                tc.u32(0),
            )


def published(draw):
    x = draw.integers(1, 1000, 1).astype(np.int32)
    return {"x": x, "out": np.zeros(32, np.int32), "data": np.zeros(1, np.int64)}, {
        "out": np.full(32, x[0], np.int32)
    }


@planted(2, 32, published, race('tc.emit("st.relaxed.gpu.global.b32", half, low)', "seen = tc.emit"))
def torn_words(x, out, data, mistake: tc.Const):
    """A 64-bit word is published by relaxed stores; the mistake uses two of 32 bits."""
    if tc.blockIdx.x == 0:
        if tc.threadIdx.x == 0:
            value = x[0].to(tc.s64) << 32 | 1
            if mistake:
                low, high = tc.emit("mov.b64.unpack", value)
                half = data.at(0).as_type(tc.s32)
                tc.emit("st.relaxed.gpu.global.b32", half, low)
                tc.emit("st.relaxed.gpu.global.b32", half + 1, high)
            else:
                tc.emit("st.relaxed.gpu.global.b64", data.at(0), value)
    else:
        seen = tc.s64(0)
        while seen == 0:
            seen = tc.emit("ld.relaxed.gpu.global.b64", data.at(0)).bits(tc.s64)
        out[tc.threadIdx.x] = (seen >> 32).to(tc.s32)


def read_back(draw):
    x = draw.integers(1, 1000, 64).astype(np.int32)
    return {"x": x, "out": np.zeros_like(x), "data": np.zeros_like(x)}, {"out": 2 * x[::-1]}


# -- other ways to memory ------------------------------------------------------------------------


@planted(1, 64, read_back, race("data[t] =", "out[t] ="), *_RACE_OF_PROXIES)
def read_only_path(x, out, data, mistake: tc.Const):
    """ld.nc of what the launch writes: no barrier makes the cache forget."""
    t = tc.threadIdx.x
    data[t] = 2 * x[t]
    tc.barrier()
    out[t] = data.at(63 - t).load(cache=".nc" if mistake else "")


@planted(2, 64, handed_over, race("data[t] =", "out[t] ="), *_RACE_OF_PROXIES)
def read_only_path_after_a_flag(x, out, data, flags, mistake: tc.Const):
    t = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        data[t] = 3 * x[t]
        tc.barrier()
        if t == 0:
            store(".release.gpu", flags.at(0), 1)
    else:
        while load(".acquire.gpu", flags.at(0)) == 0:
            tc.emit("nanosleep.u32", 20)
        out[t] = data.at(t ^ 32).load(cache=".nc" if mistake else "")


@planted(
    1,
    64,
    read_back,
    {"no proxy fence": error("BULK_LOAD"), "no barrier": race("data[t] =", "BULK_LOAD")},
    *_RACE_OF_PROXIES,
)
def bulk_load_of_plain_stores(x, out, data, mistake: tc.Const):
    """The block writes a row and reads it back by a bulk copy."""
    tile, bar = tc.shared(64, tc.s32, align=128), tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    data[t] = 2 * x[t]
    if mistake in ("", "no barrier"):
        tc.emit("fence.proxy.async")
    if mistake != "no barrier":
        tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(256)
        tc.emit(BULK_LOAD, tile.address, data.at(0), 256, bar.address)
    if mistake == "no barrier":
        tc.barrier()
    bar.wait(0)
    out[t] = tile[63 - t]


@planted(1, 64, read_back, race("tc.emit", "out[t] ="), *_RACE_OF_PROXIES)
def bulk_store_is_read_back(x, out, data, mistake: tc.Const):
    """A bulk store must be complete, not only done reading, before its target is loaded."""
    tile = tc.shared(64, tc.s32, align=128)
    t = tc.threadIdx.x
    tile[t] = 2 * x[t]
    tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        tc.emit(BULK_STORE, data.at(0), tile.address, 256)
        tc.tma_store_commit()
        tc.tma_store_wait(0, read=bool(mistake))
    tc.barrier()
    out[t] = data[63 - t]
