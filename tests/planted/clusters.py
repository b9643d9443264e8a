"""Planted bugs of clusters: their barrier, distributed shared memory, remote arrivals, multicast."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tests.planted.harness import Arguments, Planted, error, race
from tests.planted.mbarrier_tma import four_turns

planted = Planted()

ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64"
COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


def neighbours(draw: np.random.Generator) -> Arguments:
    x = draw.integers(-99, 99, (4, 64)).astype(np.int32)
    back = x[:, ::-1]
    expected = back + np.roll(back, -1, axis=0)
    return {"x": x, "out": np.zeros((4, 64), np.int32), "shift": 1}, {"out": expected}


@planted(
    4,
    64,
    neighbours,
    {
        "no meeting before the loads": error(
            "value =", says="before the cluster has met .* CTA 0 may not have started"
        ),
        "a barrier of the CTA alone": error(
            "value =", says="before the cluster has met .* CTA 0 may not have started"
        ),
        "arrived without waiting": error("value ="),
        "relaxed arrival": race("tile[63 - t] = x", "value ="),
        "stored behind the arrival": race("tile[63 - t] = x", "value ="),
        "loaded before the wait": error("out[tc.blockIdx.x, t] = peer[t] #1"),
        "waited without arriving": error(
            "tc.cluster_wait #1", says="waits at the cluster's barrier without having arrived"
        ),
        "arrived twice": error("tc.cluster_arrive #4", says="arrives at the cluster's barrier twice"),
        "arrival of half the warps": error("value ="),
        "arrival of half the lanes": error("value ="),
        "overwritten while peers load": race("tile[63 - t] = 0", "value ="),
        "ends behind its arrival": error("value ="),
        "a rank that does not exist": error("value =", says="rank 4 leaves the cluster, which has 4 CTAs"),
        "may have ended": error("value =", says="CTA 0 may end before CTA 3 accesses its shared memory here"),
        "met before the last load": error("peer[t] + tile[t] #2"),
        "last arrival before the last load": error("peer[t] + tile[t] #1"),
        "stores to a peer at the end": error("peer[t] ="),
        "adds to a peer at the end": error("tc.reduce"),
    },
)
def exchange(x, out, shift: tc.s32, mistake: tc.Const):
    """Each of four CTAs adds up what it and the CTA after it hold."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    tile = tc.shared(64, tc.s32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    peer = tile.remote((rank + shift) % 4)
    if mistake == "a rank that does not exist":
        peer = tile.remote(rank + shift)
    if mistake == "stored behind the arrival":
        tc.cluster_arrive()
    tile[63 - t] = x[tc.blockIdx.x, t]
    if mistake == "a barrier of the CTA alone":
        tc.barrier()
    elif mistake == "arrived without waiting":
        tc.cluster_arrive()
    elif mistake == "waited without arriving":
        tc.barrier()
        tc.cluster_wait()
    elif mistake == "arrived twice":
        tc.cluster_arrive()
        tc.cluster_arrive()
        tc.cluster_wait()
    elif mistake == "relaxed arrival":
        tc.emit("barrier.cluster.arrive.relaxed.aligned")
        tc.cluster_wait()
    elif mistake == "arrival of half the warps":
        if t < 32:
            tc.cluster_sync()
    elif mistake == "arrival of half the lanes":
        if t % 32 < 16:
            tc.cluster_sync()
    elif mistake == "stored behind the arrival":
        tc.cluster_wait()
    elif mistake == "loaded before the wait":
        tc.cluster_arrive()
        out[tc.blockIdx.x, t] = peer[t]
        tc.cluster_wait()
    elif mistake != "no meeting before the loads":
        tc.cluster_sync()
    value = peer[t]
    if mistake == "overwritten while peers load":
        tile[63 - t] = 0
    if mistake == "arrived without waiting":
        tc.cluster_wait()
    out[tc.blockIdx.x, t] = value + tile[t]
    if mistake == "last arrival before the last load":
        tc.cluster_arrive()
        out[tc.blockIdx.x, t] = peer[t] + tile[t]
        tc.cluster_wait()
    elif mistake == "ends behind its arrival":
        tc.cluster_arrive()
        if rank != 0:
            tc.cluster_wait()
    elif mistake != "may have ended":
        tc.cluster_sync()
    if mistake == "met before the last load":
        out[tc.blockIdx.x, t] = peer[t] + tile[t]
    if mistake == "stores to a peer at the end":
        peer[t] = 1
    if mistake == "adds to a peer at the end":
        tc.reduce("add", peer.at(t), 1)


def ring_of_numbers(draw: np.random.Generator) -> Arguments:
    ranks = (np.arange(4) - 5) % 4
    out = 100 * ranks[:, None] + np.arange(64) + 5
    return {"out": np.zeros((4, 64), np.uint32)}, {"out": out.astype(np.uint32)}


@planted(
    4,
    64,
    ring_of_numbers,
    {
        "stored before the peer has started": error("following[slot, t]"),
        "two CTAs store to one inbox": race("inbox.remote((rank + 1) % 4 & 2)"),
        "lanes store to one word": race("following[slot, t & 62]"),
        "one slot": race(
            "following[slot, t]",
            "value = inbox",
            says="written here by .* of CTA 0 .* of CTA 1 .* read it at",
        ),
        "met in every other turn": race(
            "following[slot, t]",
            "value = inbox",
            says=r"`inbox\[slot, t\]` is read here by .* of CTA 0 .* of CTA 3 .* wrote it at line",
        ),
        "read back by a neighbour": race("following[slot, t]", "following[slot, (t + 32) % 64]"),
        "read back by a neighbour lane": race("following[slot, t]", "following[slot, t ^ 1]"),
        "atomics beside a store": race("following[slot, t]", "tc.reduce"),
    },
)
def pushed(out, mistake: tc.Const):
    """CTAs in a ring hand numbers on: each stores to a slot of the next one, which then reads it."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    inbox = tc.shared((2, 64), tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    following = inbox.remote((rank + 1) % 4)
    value = tc.u32(100 * rank + t)
    inbox[0, t], inbox[1, t] = 0, 0
    if mistake != "stored before the peer has started":
        tc.cluster_sync()
    for turn in range(5):
        slot = 0 if mistake == "one slot" else turn & 1
        if mistake == "two CTAs store to one inbox":
            inbox.remote((rank + 1) % 4 & 2)[slot, t] = value
        elif mistake == "lanes store to one word":
            following[slot, t & 62] = value
        else:
            following[slot, t] = value
        if mistake == "read back by a neighbour":
            value += 0 * following[slot, (t + 32) % 64]
        if mistake == "read back by a neighbour lane":
            value += 0 * following[slot, t ^ 1]
        if mistake == "atomics beside a store":
            tc.reduce("add", inbox.at(slot, t), 0)
        if mistake == "met in every other turn":
            if turn & 1 == 1:
                tc.cluster_sync()
        else:
            tc.cluster_sync()
        value = inbox[slot, t] + 1
    out[tc.blockIdx.x, t] = value
    tc.cluster_sync()


@planted(
    2,
    32,
    four_turns,
    {
        "count of one too many": error("empty.wait"),
        "init fence missing": error("tc.emit(ARRIVE, full #2"),
        "no meeting behind the initialisation": error("tile.remote"),
        "arrives at its own CTA": error("empty.wait"),
        "arrives before the store": race("tile.remote", "total +="),
        "not waited for": race("tile.remote", "total +="),
        "released before the load": race("tile.remote", "total +="),
        "even lanes arrive for all": race("tile.remote", "total +="),
        "arrives at rank 2": error("tc.emit(ARRIVE, full #2"),
        "may have ended": error(
            "tc.emit(ARRIVE, empty #2", says="peer CTA gone: thread 0 of CTA 1 reaches for empty of CTA 0"
        ),
    },
)
def handed_over(out, mistake: tc.Const):
    """CTA 0 stores lines to CTA 1 and arrives there; CTA 1 reads them and frees the slot."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile = tc.shared(32, tc.s32)
    full, empty = tc.mbarriers(2)[0], tc.mbarriers(2)[1]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        full.init(33 if mistake == "count of one too many" else 32)
        empty.init(32)
        if mistake != "init fence missing":
            tc.fence_mbarrier_init()
    if mistake == "no meeting behind the initialisation":
        tc.barrier()
    else:
        tc.emit("barrier.cluster.arrive.relaxed.aligned")
        tc.cluster_wait()
    to = 1 - rank
    if mistake == "arrives at its own CTA":
        to = rank
    if mistake == "arrives at rank 2":
        to = 2 - rank
    total = tc.s32(0)
    if rank == 0:
        for turn in range(4):
            if turn > 0:
                empty.wait(turn + 1 & 1)
                tc.emit("fence.acq_rel.cluster")
            if mistake == "arrives before the store":
                tc.emit(ARRIVE, full.remote(to).address)
            tile.remote(1 - rank)[31 - t] = turn + t
            if mistake == "even lanes arrive for all":
                if t % 2 == 0:
                    tc.emit(ARRIVE + ".count", full.remote(to).address, 2)
            elif mistake != "arrives before the store":
                tc.emit(ARRIVE, full.remote(to).address)
    else:
        for turn in range(4):
            if mistake != "not waited for":
                full.wait(turn & 1)
            tc.emit("fence.acq_rel.cluster")
            if mistake == "released before the load":
                tc.emit(ARRIVE, empty.remote(to).address)
            total += tile[t]
            if mistake != "released before the load":
                tc.emit(ARRIVE, empty.remote(to).address)
        out[t] = total
    if mistake != "may have ended":
        tc.cluster_sync()


def fives(draw: np.random.Generator) -> Arguments:
    out = 5 * (31 - np.arange(32, dtype=np.int32))
    return {"out": np.zeros(32, np.int32)}, {"out": out}


@planted(
    2,
    32,
    fives,
    {
        "raised before the store": race("tile.remote", "out[t] ="),
        "relaxed flag": race("tile.remote", "out[t] ="),
        "flag of the CTA alone": race('tc.emit("red.release.cta.shared::cluster.add.u32"', "while tc.emit"),
        "plain flag": race('tc.emit("st.shared::cluster.b32"', "while tc.emit"),
        "relaxed polling": race("tile.remote", "out[t] ="),
        "polled at the scope of the CTA": race(
            'tc.emit("red.release.cluster.shared::cluster.add.u32", place, 1) #2', "while tc.emit"
        ),
        "volatile polling": race("tile.remote", "out[t] ="),
        "raised by lane 0 for all": race("tile.remote", "out[t] ="),
        "flag not set to zero": error('tc.emit("red.release.cluster.shared::cluster.add.u32", place, 1) #2'),
    },
)
def flagged(out, mistake: tc.Const):
    """CTA 0 stores a line to CTA 1 and raises a flag there, which CTA 1 polls."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile, flag = tc.shared(32, tc.s32), tc.shared(1, tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if (t == 0) & (mistake != "flag not set to zero"):
        flag[0] = 0
    tc.cluster_sync()
    if rank == 0:
        place = flag.at(0).remote(1).address
        if mistake == "raised before the store":
            tc.emit("red.release.cluster.shared::cluster.add.u32", place, 1)
        tile.remote(1)[31 - t] = 5 * t
        if mistake == "relaxed flag":
            tc.emit("red.relaxed.cluster.shared::cluster.add.u32", place, 1)
        elif mistake == "flag of the CTA alone":
            tc.emit("red.release.cta.shared::cluster.add.u32", place, 1)
        elif mistake == "plain flag":
            tc.emit("st.shared::cluster.b32", place, tc.u32(32))
        elif mistake == "raised by lane 0 for all":
            tc.emit("red.release.cluster.shared::cluster.add.u32", place, 32, pred=t == 0)
        elif mistake != "raised before the store":
            tc.emit("red.release.cluster.shared::cluster.add.u32", place, 1)
    else:
        loading = "ld.acquire.cluster.shared.b32"
        if mistake == "relaxed polling":
            loading = "ld.relaxed.cluster.shared.b32"
        if mistake == "polled at the scope of the CTA":
            loading = "ld.acquire.cta.shared.b32"
        if mistake == "volatile polling":
            loading = "ld.volatile.shared.b32"
        while tc.emit(loading, flag.address).bits(tc.u32) < 32:
            tc.emit("nanosleep.u32", 10)
        out[t] = tile[t]
    tc.cluster_sync()


def count(draw: np.random.Generator) -> Arguments:
    return {"out": np.zeros((4, 64), np.uint32)}, {"out": np.full((4, 64), 256, np.uint32)}


@planted(
    4,
    64,
    count,
    {
        "set to zero too late": race("word[0] = #2", "tc.reduce", error="tc.reduce"),
        "a sum without atomics": race("place.store"),
        "one CTA adds without atomics": race("place.store", "tc.reduce"),
        "read before the others have met": race("tc.reduce", "out[rank, t] = place.load"),
        "read by its owner at once": race("tc.reduce", "out[rank, t] = word"),
    },
)
def counted(out, mistake: tc.Const):
    """All threads of the cluster count in a word of CTA 0."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    word = tc.shared(1, tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if (t == 0) & (mistake != "set to zero too late"):
        word[0] = 0
    tc.cluster_sync()
    if (mistake == "set to zero too late") & (t == 0) & (rank == 0):
        word[0] = 0
    place = word.at(0).remote(0)
    if mistake == "a sum without atomics" or (mistake == "one CTA adds without atomics") & (rank == 2) & (
        t == 0
    ):
        place.store(place.load() + 1)
    else:
        tc.reduce("add", place, 1)
    if mistake == "read by its owner at once":
        if rank == 0:
            out[rank, t] = word[0]
    if mistake == "read before the others have met":
        tc.barrier()
    else:
        tc.cluster_sync()
    out[rank, t] = place.load()
    tc.cluster_sync()


def sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (7, 64)).astype(np.int32)
    total = a.sum(axis=0)
    line = (total[:32] + total[:31:-1]).astype(np.int32)
    return {"a": a, "out": np.zeros((2, 2, 32), np.int32)}, {"out": np.tile(line, (2, 2, 1))}


@planted(
    2,
    96,
    sums,
    {
        "empty counts five": error("empty[slot].wait"),
        "mask of the peer": error("empty[slot].wait"),
        "mask of itself": error("empty[slot].wait"),
        "expects too many bytes": error("empty[slot].wait"),
        "expects its own half": error("tc.tma_load"),
        "no wait for the slot": error("full[slot].arrive_expect_tx"),
        "no meeting behind the initialisation": error("tc.tma_load"),
        "released between the loads": race("tc.tma_load", "other +="),
        "no syncwarp before the release": race("tc.tma_load", "total += tile"),
        "read behind the release": race("tc.tma_load", "total += 0"),
        "mask of three": error("tc.tma_load"),
        "no meeting at the end": error("release(empty #2"),
        "no wait for the tile": error("total += tile"),
        "released at rank 2": error("empty[slot].remote"),
        "loads not fenced before the release": error("tc.tma_load"),
    },
)
def multicast(a, out, mistake: tc.Const):
    """Two CTAs load half a line each, into both; two warps of each add them up, and release both."""
    tc.launch_bounds(96)
    tc.cluster_size(2)
    stages = 2
    map = tc.tensor_map(a, (1, 32))
    tile = tc.shared((stages, 2, 1, 32), tc.s32, align=128)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    t, lane, warp, rank = tc.threadIdx.x, tc.lane_id(), tc.warp_id(), tc.cluster_rank()
    if t == 0:
        for slot in tc.static_range(stages):
            full[slot].init(1)
            empty[slot].init(5 if mistake == "empty counts five" else 4)
        tc.fence_mbarrier_init()
    if mistake == "no meeting behind the initialisation":
        tc.barrier()
    else:
        tc.cluster_sync()
    if warp == 0:
        if lane == 0:
            for k in range(a.shape[0]):
                slot, phase = k % stages, k // stages & 1
                if mistake != "no wait for the slot":
                    empty[slot].wait(phase ^ 1)
                size = 256
                if mistake == "expects its own half":
                    size = 128
                if mistake == "expects too many bytes":
                    size = 384
                full[slot].arrive_expect_tx(size)
                half = rank
                mask = tc.u32(3)
                if mistake == "mask of itself":
                    mask = tc.u32(1) << rank
                if mistake == "mask of the peer":
                    mask = tc.u32(2) >> rank
                if mistake == "mask of three":
                    mask = tc.u32(7)
                tc.tma_load(tile[slot, half], map, (k, 32 * half), full[slot], multicast=mask)
    else:
        total, other = tc.s32(0), tc.s32(0)
        for k in range(a.shape[0]):
            slot, phase = k % stages, k // stages & 1
            if mistake != "no wait for the tile":
                full[slot].wait(phase)
            total += tile[slot, 0, 0, lane]
            if mistake == "released between the loads":
                tc.fence_proxy_async()
                tc.syncwarp()
                release(empty[slot], lane < 2)
            other += tile[slot, 1, 0, 31 - lane]
            if mistake != "loads not fenced before the release":
                tc.fence_proxy_async()
            if mistake != "no syncwarp before the release":
                tc.syncwarp()
            if mistake == "released at rank 2":
                empty[slot].remote(lane + 1).arrive(pred=lane < 2)
            elif mistake != "released between the loads":
                release(empty[slot], lane < 2)
            if mistake == "read behind the release":
                total += 0 * tile[slot, 0, 0, 31 - lane]
        out[tc.blockIdx.x, warp - 1, lane] = total + other
    if mistake != "no meeting at the end":
        tc.cluster_sync()


def release(empty, pred):
    """Lane r arrives at the barrier of CTA r."""
    empty.remote(tc.lane_id() % 2).arrive(pred=pred)


def rolled(draw: np.random.Generator) -> Arguments:
    x = draw.integers(-99, 99, (4, 64)).astype(np.int32)
    expected = np.roll(2 * x[:, ::-1] + 1, 1, axis=0)
    return {"x": x, "out": np.zeros((4, 64), np.int32)}, {"out": expected}


@planted(
    4,
    64,
    rolled,
    {
        "no fence": error(
            "tc.bulk_copy(inbox.remote(to)", says="wrote by an ordinary store at .* without a proxy fence"
        ),
        "fence by one thread": error("tc.bulk_copy(inbox.remote(to)"),
        "no barrier": race("line[63 - t] = x", "tc.bulk_copy(inbox.remote(to)"),
        "source overwritten": error(
            "line[63 - t] = 0", says="still read by a bulk copy to another CTA of thread 0"
        ),
        "copied over its source": race("line[63 - t] = x", "tc.bulk_copy(line.remote(to)"),
        "bytes not expected": error("tc.bulk_copy(inbox.remote(to)", "total +="),
        "bytes of two lines": error("bar.wait"),
        "counted by its own barrier": error("bar.remote(rank)", says="its mbarrier is not there"),
        "counted by a third CTA": error("bar.remote((rank + 2) % 4)"),
        "two lines copied": error("bar.remote(to).address"),
        "copied to rank 4": error("bar.remote(rank + 1)"),
        "two CTAs copy to one": error("tc.bulk_copy(inbox.remote((rank | 1) ^ 2)"),
        "no wait": error("total +=", says="is in flight: nobody has waited for phase 0"),
        "inbox not read yet": race("tc.bulk_copy(inbox.remote(to)", "total +="),
        "stored to while a copy lands": race(
            "tc.bulk_copy(inbox.remote(to)", "inbox[63 - t]", error="inbox[63 - t]"
        ),
        "exit in flight": error("tc.bulk_copy(inbox.remote(to)"),
    },
)
def copied(x, out, mistake: tc.Const):
    """Each of four CTAs copies its line to the next one's shared memory in bulk, twice."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    line, inbox = tc.shared(64, tc.s32, align=128), tc.shared(64, tc.s32, align=128)
    bar = tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    to = (rank + 1) % 4
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    total = tc.s32(0)
    for turn in range(2):
        line[63 - t] = x[tc.blockIdx.x, t] + turn
        if mistake == "fence by one thread":
            if t == 0:
                tc.fence_proxy_async()
        elif mistake != "no fence":
            tc.fence_proxy_async()
        if mistake != "no barrier":
            tc.barrier()
        if t == 0:
            size = 512 if mistake == "bytes of two lines" else 256
            if mistake == "bytes not expected":
                bar.arrive()
            else:
                bar.arrive_expect_tx(size)
            if mistake == "counted by its own barrier":
                tc.emit(
                    COPY, inbox.at(0).remote(to).address, line.at(0).address, 256, bar.remote(rank).address
                )
            elif mistake == "counted by a third CTA":
                tc.emit(
                    COPY,
                    inbox.at(0).remote(to).address,
                    line.at(0).address,
                    256,
                    bar.remote((rank + 2) % 4).address,
                )
            elif mistake == "two lines copied":
                tc.emit(COPY, inbox.at(0).remote(to).address, line.at(0).address, 512, bar.remote(to).address)
            elif mistake == "copied to rank 4":
                tc.emit(
                    COPY,
                    inbox.at(0).remote(rank + 1).address,
                    line.at(0).address,
                    256,
                    bar.remote(rank + 1).address,
                )
            elif mistake == "copied over its source":
                tc.bulk_copy(line.remote(to), line, bar.remote(to))
            elif mistake == "two CTAs copy to one":
                tc.bulk_copy(inbox.remote((rank | 1) ^ 2), line, bar.remote((rank | 1) ^ 2))
            else:
                tc.bulk_copy(inbox.remote(to), line, bar.remote(to))
        if mistake == "source overwritten":
            line[63 - t] = 0
        if mistake == "stored to while a copy lands":
            inbox[63 - t] = 0
        if (mistake != "no wait") & ((mistake != "exit in flight") | (turn == 0)):
            bar.wait(turn)
        if mistake == "inbox not read yet":
            tc.cluster_sync()
            tc.barrier()
        if (mistake != "exit in flight") | (turn == 0):
            total += inbox[t]
        if mistake not in ("inbox not read yet", "exit in flight"):
            tc.cluster_sync()
        elif turn == 0:
            tc.barrier()
    out[tc.blockIdx.x, t] = total
