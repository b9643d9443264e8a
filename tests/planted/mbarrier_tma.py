"""Planted bugs of mbarriers, tensor copies and bulk copies. Each twin is the kernel without a mistake."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.lang.mbarrier import Mbarrier
from tests.planted.harness import Arguments, Planted, error, race

planted = Planted()

BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"
BULK_ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32"
TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"
INVALIDATE = "mbarrier.inval.shared::cta.b64"

TOO_MANY_BYTES = (
    r"^every thread that is left waits\n  CTA 0 warps 0: .*\(mbarrier.try_wait.*\n"
    r".*for phase 0 \(parity 0\) of empty\[0\] \(initialised at .*: 2 of 2 arrivals are missing\n.*\n"
    r"  CTA 0 warps 1-2: .*\(mbarrier.try_wait.*\n"
    r".*for phase 0 \(parity 0\) of full\[0\] \(initialised at .*: 16 bytes are missing\n"
)
TOO_MANY_ARRIVALS = (
    r"thread 1 of CTA 0 arrives 1 times when 0 of 1 arrivals and 512 bytes are pending in phase 0: "
    r"initialise it .*, or let fewer .*; one thread announces bytes, as under `if tc.elect\(\)` in one warp"
)
BY_EVERY_THREAD = (
    r"a second time, by thread 1 of CTA 0 \(first at .*, by thread 0 of CTA 0 in the same step\); "
    r"its phase is 0: one thread initialises a barrier, as under `if tc"
)


def sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (8, 64)).astype(np.int32)
    out = np.zeros((2, 64), np.int32)
    total = a.sum(axis=0)
    return {"a": a, "out": out}, {"out": np.stack([total, 2 * total])}


# -- a ring of stages, read by ordinary loads -----------------------------------------------------


@planted(
    1,
    96,
    sums,
    {
        "producer starts with parity 0": error(
            "empty[slot].wait", says="a producer's first wait takes parity 1"
        ),
        "full counts two arrivals": error("empty[slot].wait"),
        "empty counts one arrival": error("where.arrive", says="before any thread has seen phase 0 end"),
        "too few bytes": error(
            "full[slot].wait #2", says="128 bytes more have come than were expected\n.*announcing 128 bytes"
        ),
        "too many bytes": error("empty[slot].wait", says=TOO_MANY_BYTES),
        "consumer starts with parity 1": error(
            "empty[slot].wait", "total += tile", says="phase 0 .parity 0. is over: was it meant"
        ),
        "bytes expected in the next slot": error("full[to].arrive_expect_tx", "full[slot].wait #2"),
        "bytes counted in the next slot": error("total += tile"),
        "never released": error("empty[slot].wait", says="2 of 2 arrivals are missing"),
        "bytes not expected": error("tc.tma_load"),
        "producer does not wait": error(
            "full[slot].arrive_expect_tx", says="arrives for phase 1 before any thread has seen"
        ),
        "every lane produces": error("full[slot].arrive_expect_tx", says=TOO_MANY_ARRIVALS),
        "released between the loads": race("tc.tma_load", "other +="),
        "no syncwarp before the release": race("tc.tma_load", "total += tile"),
        "next slot released": error("where.arrive"),
        "read again after the release": race("tc.tma_load", "total += 0"),
        "only lane 0 waits": error("total += tile"),
        "consumer waits for no phase": error("total += tile"),
        "loads not fenced before the release": error("tc.tma_load"),
        "lane 0 fences before the lanes meet": error("tc.tma_load"),
    },
)
def ring(a, out, mistake: tc.Const):
    """Warp 0 brings lines of 64 words by TMA; warps 1 and 2 add them up by ordinary loads."""
    tc.launch_bounds(96)
    stages = 3
    map = tc.tensor_map(a, (1, 64))
    tile = tc.shared((stages, 1, 64), tc.s32, align=128)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    warp, lane = tc.warp_id(), tc.lane_id()
    if tc.threadIdx.x == 0:
        for slot in tc.static_range(stages):
            full[slot].init(2 if mistake == "full counts two arrivals" else 1)
            empty[slot].init(1 if mistake == "empty counts one arrival" else 2)
        tc.fence_mbarrier_init()
    tc.barrier()
    if warp == 0:
        if (lane == 0) | (mistake == "every lane produces"):
            phase = tc.u32(0 if mistake == "producer starts with parity 0" else 1)
            for k in range(a.shape[0]):
                slot = k % stages
                if mistake != "producer does not wait":
                    empty[slot].wait(phase)
                to = (slot + 1) % stages
                size = {"too few bytes": 128, "too many bytes": 272}.get(mistake, map.bytes)
                if mistake == "bytes expected in the next slot":
                    full[to].arrive_expect_tx(size)
                elif mistake == "bytes not expected":
                    full[slot].arrive()
                else:
                    full[slot].arrive_expect_tx(size)
                done = full[to] if mistake == "bytes counted in the next slot" else full[slot]
                tc.tma_load(tile[slot], map, (k, 0), done)
                flip = slot == stages - 1
                phase = tc.select(flip, phase ^ 1, phase)
    else:
        phase = tc.u32(1 if mistake == "consumer starts with parity 1" else 0)
        total, other = tc.s32(0), tc.s32(0)
        for k in range(a.shape[0]):
            slot = k % stages
            if mistake == "only lane 0 waits":
                if lane == 0:
                    full[slot].wait(phase)
            elif mistake != "consumer waits for no phase":
                full[slot].wait(phase)
            total += tile[slot, 0, lane]
            if mistake == "released between the loads":
                tc.fence_proxy_async()
                tc.syncwarp()
                empty[slot].arrive(pred=lane == 0)
            other += tile[slot, 0, lane + 32]
            if mistake == "lane 0 fences before the lanes meet":
                if lane == 0:
                    tc.fence_proxy_async()
            elif mistake != "loads not fenced before the release":
                tc.fence_proxy_async()
            if mistake != "no syncwarp before the release":
                tc.syncwarp()
            where = empty[(slot + 1) % stages] if mistake == "next slot released" else empty[slot]
            if mistake not in ("never released", "released between the loads"):
                where.arrive(pred=lane == 0)
            if mistake == "read again after the release":
                total += 0 * tile[slot, 0, 63 - lane]
            flip = slot == stages - 1
            phase = tc.select(flip, phase ^ 1, phase)
        out[warp - 1, lane], out[warp - 1, lane + 32] = total * warp, other * warp


def two_sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (7, 64)).astype(np.int32)
    total = a.sum(axis=0)[::-1]
    return {"a": a, "out": np.zeros((2, 64), np.int32)}, {"out": np.stack([total, -total])}


@planted(
    1,
    128,
    two_sums,
    {
        "full counts 32": error("full[slot].arrive() #2", "total +="),
        "arrive before the stores": race("tile[slot, 0, t64]", "total +="),
        "release before the loads": race("tile[slot, 0, t64]", "total +="),
        "consumers test once": error("total +=", "empty[slot].arrive #2"),
        "even lanes arrive for all": race("tile[slot, 0, t64]", "total +="),
    },
)
def ring_of_threads(a, out, mistake: tc.Const):
    """Warps 0 and 1 store lines to a ring, warps 2 and 3 add them up; every thread arrives."""
    tc.launch_bounds(128)
    stages = 2
    tile = tc.shared((stages, 2, 64), tc.s32)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    t, t64 = tc.threadIdx.x, tc.threadIdx.x % 64
    if t == 0:
        for slot in tc.static_range(stages):
            full[slot].init(32 if mistake == "full counts 32" else 64)
            empty[slot].init(64)
    tc.barrier()
    if t < 64:
        for k in range(a.shape[0]):
            slot, phase = k % stages, k // stages & 1
            empty[slot].wait(phase ^ 1)
            if mistake == "arrive before the stores":
                full[slot].arrive()
            tile[slot, 0, t64] = a[k, t64]
            tile[slot, 1, t64] = -a[k, t64]
            if mistake == "even lanes arrive for all":
                full[slot].arrive(2, pred=t % 2 == 0)
            elif mistake != "arrive before the stores":
                full[slot].arrive()
    else:
        total, other = tc.s32(0), tc.s32(0)
        for k in range(a.shape[0]):
            slot, phase = k % stages, k // stages & 1
            if mistake == "consumers test once":
                full[slot].test(phase)
            else:
                full[slot].wait(phase)
            if mistake == "release before the loads":
                empty[slot].arrive()
            total += tile[slot, 0, 63 - t64]
            other += tile[slot, 1, 63 - t64]
            if mistake != "release before the loads":
                empty[slot].arrive()
        out[0, t64], out[1, t64] = total, other


def long_sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (5, 512)).astype(np.int32)
    return {"a": a, "out": np.zeros(512, np.int32)}, {"out": a.sum(axis=0)}


@planted(
    1,
    160,
    long_sums,
    {
        "no barrier before the release": race("tc.emit", "tile.at(slot, 4 * me).load(4)"),
        "syncwarp for a barrier": race("tc.emit", "tile.at(slot, 4 * me).load(4)"),
        "vectors read after the release": race("tc.emit", "tile.at(slot, 4 * me + 2)"),
        "loads not fenced before the release": error("tc.emit"),
    },
)
def ring_of_a_group(a, out, mistake: tc.Const):
    """Bulk copies bring lines; warps 1 to 4 read them, meet, and one thread releases for all."""
    tc.launch_bounds(160)
    stages = 2
    tile = tc.shared((stages, 512), tc.s32, align=128)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    t, k_tiles = tc.threadIdx.x, a.shape[0]
    if t == 0:
        for slot in tc.static_range(stages):
            full[slot].init(1)
            empty[slot].init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if t < 32:
        if tc.elect():
            for k in range(k_tiles):
                slot, phase = k % stages, k // stages & 1
                empty[slot].wait(phase ^ 1)
                full[slot].arrive_expect_tx(2048)
                tc.emit(BULK_LOAD, tile.at(slot, 0).address, a.at(k, 0).address, 2048, full[slot].address)
    else:
        totals = [tc.s32(0)] * 4
        me = t - 32
        for k in range(k_tiles):
            slot, phase = k % stages, k // stages & 1
            full[slot].wait(phase)
            if mistake == "vectors read after the release":
                totals = [x + y for x, y in zip(totals[:2], tile.at(slot, 4 * me).load(2))] + totals[2:]
                tc.fence_proxy_async()
                tc.barrier(1, 128)
                empty[slot].arrive(pred=me == 0)
                totals = totals[:2] + [x + y for x, y in zip(totals[2:], tile.at(slot, 4 * me + 2).load(2))]
            else:
                totals = [x + y for x, y in zip(totals, tile.at(slot, 4 * me).load(4))]
            if mistake != "loads not fenced before the release":
                tc.fence_proxy_async()
            if mistake == "syncwarp for a barrier":
                tc.syncwarp()
            elif mistake not in ("no barrier before the release", "vectors read after the release"):
                tc.barrier(1, 128)
            if mistake != "vectors read after the release":
                empty[slot].arrive(pred=me == 0)
        for i in tc.static_range(4):
            out[4 * me + i] = totals[i]


def five_lines(draw: np.random.Generator) -> Arguments:
    lines = 100 * np.arange(5)[:, None] + np.arange(64) - 63
    return {"d": np.zeros((5, 64), np.int32)}, {"d": lines.astype(np.int32)}


@planted(
    1,
    64,
    five_lines,
    {
        "no fence": error("tc.tma_store(map, (i, 0) #2", says="\n.*fence.proxy.async. must come between"),
        "fence behind the barrier": error("tc.tma_store(map, (i, 0) #2"),
        "fence by one thread": error("tc.tma_store(map, (i, 0) #2"),
        "no barrier before the copy": race("buffer[0, 63 - t] = 100 #1", "tc.tma_store(map, (i, 0) #2"),
        "no wait for the buffer": error(
            "buffer[0, 63 - t] = 100 #1", says="still read by a bulk store of thread 0"
        ),
        "wait for one less": error(
            "buffer[0, 63 - t] = 100 #1", says="still read by a bulk store of thread 0"
        ),
        "wait by another thread": error("buffer[0, 63 - t] = 100 #1"),
        "no commit": error("buffer[0, 63 - t] = 100 #1", says="still read by a bulk store of thread 0"),
        # The lanes' stores, of the same bytes, are a warning; the buffer is written while lanes 1 to 31 still read it.
        "every lane stores": error("buffer[0, 63 - t] = 100 #1"),
        "a store behind the barrier": race("buffer[0, 63 - t] = 100 #2", "tc.tma_store(map, (i, 0) #2"),
        "overwritten behind the copy": race("buffer[0, 63 - t] = 0", "tc.tma_store(map, (i, 0) #2"),
        "no last wait": error(
            "tc.tma_store(map, (i, 0) #2", says="CTA 0 ends while a bulk store of thread 0 .* may still read"
        ),
    },
)
def bulk_stores(d, mistake: tc.Const):
    """64 threads write lines to two buffers in turn, and thread 0 stores them by TMA."""
    tc.launch_bounds(64)
    map = tc.tensor_map(d, (1, 64))
    tile = tc.shared((2, 1, 64), tc.s32, align=128)
    t = tc.threadIdx.x
    for i in tc.static_range(5):
        buffer = tile[i % 2]
        if mistake == "wait by another thread":
            if t == 1:
                tc.tma_store_wait(1, read=True)
        elif mistake != "no wait for the buffer":
            if t == 0:
                tc.tma_store_wait(2 if mistake == "wait for one less" else 1, read=True)
        tc.barrier()
        buffer[0, 63 - t] = 100 * i - t
        if mistake not in ("no fence", "fence behind the barrier", "fence by one thread"):
            tc.fence_proxy_async()
        if mistake == "fence by one thread":
            if t == 0:
                tc.fence_proxy_async()
        if mistake != "no barrier before the copy":
            tc.barrier()
        if mistake == "fence behind the barrier":
            if t == 32:
                tc.fence_proxy_async()
        if mistake == "a store behind the barrier":
            buffer[0, 63 - t] = 100 * i - t
        if mistake == "every lane stores":
            if t < 32:
                tc.tma_store(map, (i, 0), buffer)
                tc.tma_store_commit()
        else:
            if t == 0:
                tc.tma_store(map, (i, 0), buffer)
                if mistake != "no commit":
                    tc.tma_store_commit()
        if mistake == "overwritten behind the copy":
            buffer[0, 63 - t] = 0
    if mistake != "no last wait":
        if t == 0:
            tc.tma_store_wait(0)


def one_line(draw: np.random.Generator) -> Arguments:
    line = 3 * np.arange(64, dtype=np.int32)
    out = np.zeros((2, 64), np.int32)
    return {"d": np.zeros((1, 64), np.int32), "out": out}, {"out": np.stack([line, line])}


@planted(
    1,
    64,
    one_line,
    {
        "an older store without a proxy fence": error("tc.tma_store(map"),
        "waited for the reads alone": race("tc.tma_store(map", "tc.tma_load"),
        "no wait": race("tc.tma_store(map", "tc.tma_load"),
        "read ahead of the barrier behind the wait": race("tc.tma_store(map", "out[1, t] = d #1"),
        "loaded by TMA behind wait_group.read": race("tc.tma_store(map", "tc.tma_load"),
        "added atomically": race("tc.tma_store(map", "tc.reduce"),
    },
)
def read_back(d, out, mistake: tc.Const):
    """Thread 0 stores a line by TMA; when it has landed, all threads read it in global memory."""
    tc.launch_bounds(64)
    map = tc.tensor_map(d, (1, 64))
    tile, copied = tc.shared((1, 64), tc.s32, align=128), tc.shared((1, 64), tc.s32, align=128)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    if mistake == "an older store without a proxy fence":
        d[0, 63 - t] = 7
    else:
        d[0, t] = 7
        tc.emit("fence.proxy.async")
    tile[0, t] = 3 * t
    tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        tc.tma_store(map, (0, 0), tile)
        tc.tma_store_commit()
        if mistake in (
            "waited for the reads alone",
            "loaded by TMA behind wait_group.read",
            "added atomically",
        ):
            tc.tma_store_wait(0, read=True)
        elif mistake != "no wait":
            tc.tma_store_wait(0)
    if mistake == "read ahead of the barrier behind the wait":
        out[1, t] = d[0, t]
    tc.barrier()
    if mistake == "added atomically":
        tc.reduce("add", d.at(0, t), 0)
    if mistake == "added atomically":
        tc.emit("fence.proxy.async")
        tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(256)
        tc.emit("fence.proxy.async")
        tc.tma_load(copied, map, (0, 0), bar)
    bar.wait(0)
    out[0, t] = copied[0, t]
    if mistake != "loaded by TMA behind wait_group.read":
        out[1, t] = d[0, t]
    else:
        out[1, t] = 3 * t
    if t == 0:
        tc.tma_store_wait(0)


def falling_line(draw: np.random.Generator) -> Arguments:
    out = np.zeros(64, np.int32)
    falling = (5 * np.arange(64)[::-1]).astype(np.int32)
    return {"a": np.zeros((1, 64), np.int32), "out": out}, {"out": falling}


@planted(
    1,
    64,
    falling_line,
    {
        "no proxy fence": error("tc.tma_load"),
        "an ordinary fence alone": error("tc.tma_load"),
        "a fence for shared memory alone": error("tc.tma_load"),
        "fence by one thread": error("tc.tma_load"),
        "no barrier": race("a[0, 63 - t] #1", "tc.tma_load"),
        "no proxy fence for a bulk copy": error("tc.emit(BULK_LOAD"),
        "overwritten in flight": race("a[0, 63 - t] #2", "tc.tma_load"),
    },
)
def written_then_loaded(a, out, mistake: tc.Const):
    """All threads write a line of global memory, and a bulk copy or TMA brings it back."""
    tc.launch_bounds(64)
    map = tc.tensor_map(a, (1, 64))
    tile = tc.shared((1, 64), tc.s32, align=128)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    a[0, 63 - t] = 5 * t
    if mistake == "an ordinary fence alone":
        tc.emit("fence.acq_rel.gpu")
    elif mistake == "a fence for shared memory alone":
        tc.emit("fence.proxy.async.shared::cta")
    elif mistake == "fence by one thread":
        if t == 0:
            tc.emit("fence.proxy.async.global")
    elif mistake not in ("no proxy fence", "no proxy fence for a bulk copy"):
        tc.emit("fence.proxy.async.global")
    if mistake != "no barrier":
        tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(256)
        if mistake == "no proxy fence for a bulk copy":
            tc.emit(BULK_LOAD, tile.address, a.at(0, 0).address, 256, bar.address)
        else:
            tc.tma_load(tile, map, (0, 0), bar)
    if mistake == "no barrier":
        tc.barrier()
    if mistake == "overwritten in flight":
        a[0, 63 - t] = 5 * t
    bar.wait(0)
    out[t] = tile[0, t]


def sum_of_lines(draw: np.random.Generator) -> Arguments:
    d = np.zeros((3, 32), np.int32)
    d[0] = draw.integers(0, 9, 32)
    expected = d.copy()
    expected[0] += (2 * (2 * np.arange(32) + 1)).astype(np.int32)
    return {"d": d}, {"d": expected}


@planted(
    2,
    64,
    sum_of_lines,
    {
        "read before the others have added": race("tile.at(warp, 0)", "d[1 + warp, lane]"),
        "plain addition beside it": race("tile.at(warp, 0)", "d[0, lane] ="),
        "a copy instead of a sum": race("tc.emit(BULK_STORE", ("tc.emit(BULK_STORE", "tile.at(1, 0)")),
        "exit in flight": error("tile.at(warp, 0)"),
    },
)
def sums_in_bulk(d, mistake: tc.Const):
    """Two warps of each block add a line of 32 words to the same line of global memory, in bulk."""
    tc.launch_bounds(64)
    tile = tc.shared((2, 32), tc.s32, align=128)
    lane, warp = tc.lane_id(), tc.warp_id()
    tile[warp, lane] = lane + warp
    tc.fence_proxy_async()
    tc.syncwarp()
    if mistake == "read before the others have added":
        if tc.blockIdx.x == 0:
            d[1 + warp, lane] = 0 * d[0, lane]
    if mistake == "plain addition beside it":
        if (warp == 1) & (tc.blockIdx.x == 0):
            d[0, lane] = d[0, lane] + lane + 1
    if (lane == 0) & ((warp == 0) | (mistake != "plain addition beside it")):
        if mistake == "a copy instead of a sum":
            if warp == 0:
                tc.emit(BULK_STORE, d.at(0, 0).address, tile.at(0, 0).address, 128)
            else:
                tc.emit(BULK_ADD, d.at(0, 0).address, tile.at(1, 0).address, 128)
        else:
            tc.emit(BULK_ADD, d.at(0, 0).address, tile.at(warp, 0).address, 128)
        tc.tma_store_commit()
        if mistake != "exit in flight":
            tc.tma_store_wait(0)


def a_line(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (1, 64)).astype(np.int32)
    return {"a": a, "out": np.zeros(64, np.int32)}, {"out": a[0]}


@planted(
    1,
    64,
    a_line,
    {
        "by every thread": error("bar.init(t", says=BY_EVERY_THREAD),
        "no barrier behind it": race(
            "bar.init(t", "bar.wait", says="wrote it at line .*init.*nothing orders"
        ),
        "fence missing": error("tc.tma_load"),
        "data stored over it": error("words[2]", says="byte 0x110 belongs to bar .initialised"),
        "bulk copy over it": error("tc.emit(BULK_LOAD"),
        "fence by another thread": error("tc.tma_load"),
        "with no arrivals": error("bar.init(t", says="is to expect 0 arrivals; 1 to 1048575 are allowed"),
        "at half a word": error("bar.init(t"),
        "twice": error(
            "bar.init(1) #1", says=r"by thread 0 of CTA 0 \(first at [^,]*\); its phase is 0: mbarrier.inval"
        ),
        "invalidated before its use": error("bar.arrive_expect_tx", says="^bar is not initialised .thread 0"),
        "never": error("bar.arrive_expect_tx", says="^bar is not initialised .thread 0"),
        "invalidated in flight": error("bar.wait"),
        "initialised again in flight": error("bar.init(1) #2"),
        "waits for parity 2": error("bar.wait", says="waits for parity 2; parities are 0 and 1"),
        "invalidated while others wait": race("tc.emit(INVALIDATE #3", "bar.wait"),
        "its memory used as data": error('tc.emit("st.shared.b64"'),
    },
)
def initialised(a, out, mistake: tc.Const):
    """One load, whose mbarrier somebody must have initialised; two warps wait for it."""
    tc.launch_bounds(64)
    map = tc.tensor_map(a, (1, 64))
    tile = tc.shared((1, 64), tc.s32, align=128)
    words = tc.shared(4, tc.u64)
    bar = tc.mbarriers(1)[0]
    if mistake in ("data stored over it", "bulk copy over it", "at half a word"):
        bar = Mbarrier(words.at(2).address + (4 if mistake == "at half a word" else 0))
    t = tc.threadIdx.x
    first = t == 0
    if mistake == "by every thread":
        first = t >= 0
    if mistake != "never":
        if first:
            bar.init(t if mistake == "with no arrivals" else 1)
            if mistake == "twice":
                bar.init(1)
            if mistake not in ("fence missing", "fence by another thread"):
                tc.fence_mbarrier_init()
    if mistake == "fence by another thread":
        if t == 32:
            tc.fence_mbarrier_init()
    if (mistake == "data stored over it") & (t == 32):
        words[2] = tc.u64(7)
    if mistake != "no barrier behind it":
        tc.barrier()
    if mistake == "invalidated before its use":
        if t == 0:
            tc.emit(INVALIDATE, bar.address)
    if t == 0:
        bar.arrive_expect_tx(256)
        if mistake == "bulk copy over it":
            tc.emit(BULK_LOAD, words.address, a.at(0, 0).address, 32, bar.address)
        tc.tma_load(tile, map, (0, 0), bar)
        if mistake == "invalidated in flight":
            tc.emit(INVALIDATE, bar.address)
    if mistake == "initialised again in flight":
        if t == 32:
            bar.init(1)
    parity = t // 64 + 2 if mistake == "waits for parity 2" else t // 64
    bar.wait(parity)
    out[t] = tile[0, t]
    if mistake == "invalidated while others wait":
        if t == 0:
            tc.emit(INVALIDATE, bar.address)
        bar.test(0)
    if mistake == "its memory used as data":
        tc.barrier()
        if t == 0:
            tc.emit("st.shared.b64", bar.address, tc.u64(1))


def a_box(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (12, 128)).astype(np.int32)
    line = np.arange(128, dtype=np.int32)
    arguments = {"a": a, "out": np.zeros(128, np.int32), "d": np.zeros((4, 32), np.int32)}
    out = a[4:8, 64:96].ravel() + line
    return arguments, {"out": out, "d": line.reshape(4, 32)}


@planted(
    1,
    128,
    a_box,
    {
        "swapped coordinates": error("tc.emit(TENSOR_LOAD, to, map"),
        "box over the next slot": race("tc.emit(TENSOR_LOAD, to, big", "mine = tile", error="mine = tile"),
        "bulk copy of 24 bytes": error("tc.emit(BULK_LOAD, to, source, 24"),
        "bulk copy from 4 bytes on": error("tc.emit(BULK_LOAD, to, source + 4"),
        "bulk copy to 8 bytes on": error("tc.emit(BULK_LOAD, to + 8"),
        "bulk copy past the array": error("tc.emit(BULK_LOAD, to, a.at(11, 64)"),
        "bulk copy past the slot": error("bar.arrive_expect_tx(512)"),
        "column of 8 bytes": error("tc.emit(TENSOR_LOAD, to, map"),
        "box at 16 bytes": error("tc.emit(TENSOR_LOAD, to, map"),
        "box past the end of shared memory": error("tc.emit(TENSOR_LOAD, to, map"),
        "bulk store past the array": error("tc.emit(BULK_STORE"),
        "store of an unwritten slot": error("tc.tma_store(map_d, (0, 0), tile[2])"),
        "store at a negative row": error('tc.emit("cp.async.bulk'),
        "store from 16 bytes on": error('tc.emit("cp.async.bulk'),
    },
)
def places(a, out, d, mistake: tc.Const):
    """Loads a box of 4 x 32 of a, and stores it to d."""
    tc.launch_bounds(128)
    map, map_d = tc.tensor_map(a, (4, 32)), tc.tensor_map(d, (4, 32))
    big = tc.tensor_map(a, (8, 32))
    tile = tc.shared((3, 4, 32), tc.s32, align=128)
    bar, other = tc.mbarriers(2)[0], tc.mbarriers(2)[1]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        other.init(1)
        tc.fence_mbarrier_init()
    tile[1, t // 32, t % 32] = t
    tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(1024 if mistake == "box over the next slot" else 512)
        where = map.coordinates((4, 64))
        if mistake == "swapped coordinates":
            where = map.coordinates((64, 4))
        if mistake == "column of 8 bytes":
            where = map.coordinates((4, 62))
        to = tile.at(0, 0, 0).address
        if mistake == "box at 16 bytes":
            to = to + 16
        if mistake == "box past the end of shared memory":
            to = to + 3 * 512 - 128 + 256 * 1024
        source = a.at(4, 64).address
        if mistake == "box over the next slot":
            tc.emit(TENSOR_LOAD, to, big.address, *where, bar.address)
        elif mistake == "bulk copy of 24 bytes":
            tc.emit(BULK_LOAD, to, source, 24, bar.address)
        elif mistake == "bulk copy from 4 bytes on":
            tc.emit(BULK_LOAD, to, source + 4, 512, bar.address)
        elif mistake == "bulk copy to 8 bytes on":
            tc.emit(BULK_LOAD, to + 8, source, 512, bar.address)
        elif mistake == "bulk copy past the array":
            tc.emit(BULK_LOAD, to, a.at(11, 64).address, 512, bar.address)
        elif mistake == "bulk copy past the slot":
            bar.arrive_expect_tx(512)
            tc.emit(BULK_LOAD, to, a.at(0, 0).address, 1024, bar.address)
        else:
            tc.emit(TENSOR_LOAD, to, map.address, *where, bar.address)
    mine = tile[1, t // 32, t % 32]
    bar.wait(0)
    out[t] = tile[0, t // 32, t % 32] + mine
    if t == 0:
        row = -4 if mistake == "store at a negative row" else 0
        source = tile.at(1, 0, 0).address
        if mistake == "store from 16 bytes on":
            source = source + 16
        if mistake == "bulk store past the array":
            tc.emit(BULK_STORE, d.at(3, 0).address, source, 512)
        elif mistake == "store of an unwritten slot":
            tc.tma_store(map_d, (0, 0), tile[2])
        else:
            tc.emit(
                "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
                map_d.address,
                *map_d.coordinates((row, 0)),
                source,
            )
        tc.tma_store_commit()
        tc.tma_store_wait(0)


def four_turns(draw: np.random.Generator) -> Arguments:
    out = 4 * (31 - np.arange(32, dtype=np.int32)) + 6
    return {"out": np.zeros(32, np.int32)}, {"out": out}


@planted(
    1,
    64,
    four_turns,
    {
        "waits for every other phase": race("data[31 - lane]", "total +=", error="total +="),
        "data without an answer": error("there.arrive()"),
        "predicate leaves lanes out": race("data[31 - lane]", "total +="),
    },
)
def passed_by(out, mistake: tc.Const):
    """Warp 1 works through phases, warp 0 waits for each of them, and answers."""
    tc.launch_bounds(64)
    there, back = tc.mbarriers(2)[0], tc.mbarriers(2)[1]
    data = tc.shared(32, tc.s32)
    t, lane = tc.threadIdx.x, tc.lane_id()
    if t == 0:
        there.init(32)
        back.init(32)
    tc.barrier()
    if t >= 32:
        for turn in tc.static_range(4):
            if (turn > 0) & (mistake != "data without an answer"):
                back.wait(turn + 1 & 1)
            data[31 - lane] = turn + lane
            if mistake == "predicate leaves lanes out":
                there.arrive(2, pred=lane < 16)
            else:
                there.arrive()
    else:
        total = tc.s32(0)
        for turn in tc.static_range(4):
            if (mistake != "waits for every other phase") | (turn % 2 == 1):
                there.wait(turn & 1)
            total += data[lane]
            back.arrive()
        out[lane] = total


def folded_sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (7, 64)).astype(np.int32)
    total = a.sum(axis=0)
    folded = 2 * (total[:32] + total[:31:-1])[::-1]
    return {"a": a, "out": np.zeros(32, np.int32)}, {"out": folded.astype(np.int32)}


@planted(
    1,
    96,
    folded_sums,
    {
        "one arrival for two": error("while not empty", "while not full"),
        "released before its lanes meet": race("map, (k, 0)", "total +="),
        "arrives before the second expectation": error("total +="),
        "ended while others wait": error("while not full", "tc.emit(INVALIDATE, full[0"),
        "stage polled once": error("total +=", "empty[slot].arrive(2 #2"),
        "the lanes do not meet after the wait": error("total +="),
        "scratch over a barrier that lives": error('tc.emit("st.shared.b64", full[0].address, tc.u64(1))'),
        "scratch read by its own warp alone": race("tile[0, warp - 1", "out[lane]"),
    },
)
def unusual_ring(a, out, mistake: tc.Const):
    """Correct in ways that are seldom seen: waits by polling, by one lane for its warp; a copy
    before its bytes are expected; barriers that end, and tiles that become ordinary memory."""
    tc.launch_bounds(96)
    map = tc.tensor_map(a, (1, 32))
    tile = tc.shared((2, 2, 1, 32), tc.s32, align=128)
    full, empty = tc.mbarriers(2), tc.mbarriers(2)
    t, warp, lane = tc.threadIdx.x, tc.warp_id(), tc.lane_id()
    if t == 0:
        for slot in tc.static_range(2):
            full[slot].init(1)
            empty[slot].init(4)
        tc.fence_mbarrier_init()
    tc.barrier()
    total = tc.s32(0)
    if warp == 0:
        if lane == 0:
            for k in range(a.shape[0]):
                slot, phase = k % 2, k // 2 & 1
                while not empty[slot].test(phase ^ 1):
                    tc.emit("nanosleep.u32", 20)
                tc.tma_load(tile[slot, 0], map, (k, 0), full[slot])
                if mistake == "arrives before the second expectation":
                    tc.emit(EXPECT, full[slot].address, 128)
                    full[slot].arrive()
                    tc.emit(EXPECT, full[slot].address, 128)
                else:
                    tc.emit(EXPECT, full[slot].address, 256)
                tc.tma_load(tile[slot, 1], map, (k, 32), full[slot])
                if mistake != "arrives before the second expectation":
                    full[slot].arrive()
    else:
        for k in range(a.shape[0]):
            slot, phase = k % 2, k // 2 & 1
            if lane == 0:
                if mistake == "stage polled once":
                    full[slot].test(phase)
                else:
                    while not full[slot].test(phase):
                        tc.emit("nanosleep.u32", 20)
            if mistake != "the lanes do not meet after the wait":
                tc.syncwarp()
            total += tile[slot, 0, 0, lane] + tile[slot, 1, 0, 31 - lane]
            tc.fence_proxy_async()
            if mistake == "released before its lanes meet":
                empty[slot].arrive(2, pred=lane == 0)
                tc.syncwarp()
            else:
                tc.syncwarp()
                if mistake == "one arrival for two":
                    empty[slot].arrive(pred=lane == 0)
                else:
                    empty[slot].arrive(2, pred=lane == 0)
    if mistake == "ended while others wait":
        if t == 0:
            tc.emit(INVALIDATE, full[0].address)
    tc.barrier()
    if mistake == "scratch over a barrier that lives":
        if t == 0:
            tc.emit("st.shared.b64", full[0].address, tc.u64(1))
    if t == 0:
        for slot in tc.static_range(2):
            if (slot == 1) | (mistake != "ended while others wait"):
                tc.emit(INVALIDATE, full[slot].address)
            tc.emit(INVALIDATE, empty[slot].address)
        tc.emit("st.shared.b64", full[0].address, tc.u64(0))
    if warp > 0:
        tile[0, warp - 1, 0, 31 - lane] = total
    if mistake == "scratch read by its own warp alone":
        tc.syncwarp()
    else:
        tc.barrier()
    if t < 32:
        out[lane] = tile[0, 0, 0, lane] + tile[0, 1, 0, lane]
