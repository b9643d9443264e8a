"""Planted bugs of clusters: their barrier, distributed shared memory, remote arrivals, multicast."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tests.planted.harness import Arguments
from tests.planted.hopper import numbered

ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64"
COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


@tc.kernel
def exchange(x: tc.Array, out: tc.Array, shift: tc.s32, bug: tc.Const = ()):
    """Each of four CTAs adds up what it and the CTA after it hold."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    tile = tc.shared(64, tc.s32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    peer = tile.remote((rank + shift) % 4)
    if bug == 13:
        peer = tile.remote(rank + shift)
    if bug == 5:
        tc.cluster_arrive()
    tile[63 - t] = x[tc.blockIdx.x, t]  # race 1,2,3,4,5,6: first
    if bug == 2:
        tc.barrier()
    elif bug == 3:
        tc.cluster_arrive()
    elif bug == 7:
        tc.barrier()
        tc.cluster_wait()  # error 7
    elif bug == 8:
        tc.cluster_arrive()
        tc.cluster_arrive()  # error 8
        tc.cluster_wait()
    elif bug == 4:
        tc.emit("barrier.cluster.arrive.relaxed.aligned")
        tc.cluster_wait()
    elif bug == 9:
        if t < 32:
            tc.cluster_sync()  # error 9
    elif bug == 10:
        if t % 32 < 16:
            tc.cluster_sync()  # error 10
    elif bug == 5:
        tc.cluster_wait()
    elif bug == 6:
        tc.cluster_arrive()
        out[tc.blockIdx.x, t] = peer[t]  # race 6: second
        tc.cluster_wait()
    elif bug != 1:
        tc.cluster_sync()
    value = peer[t]  # race 1,2,3,4,5,11: second; error 1,2,3,9,10,12,13,14,15,16
    if bug == 11:
        tile[63 - t] = 0  # race 11: first
    if bug == 3:
        tc.cluster_wait()
    out[tc.blockIdx.x, t] = value + tile[t]  # race 17: second
    if bug == 17:
        peer[t] = 0  # race 17: first
    if bug == 16:
        if rank == 1:
            tc.cluster_arrive()
    elif bug == 18:
        tc.cluster_arrive()
        out[tc.blockIdx.x, t] = peer[t] + tile[t]  # error 18
        tc.cluster_wait()
    elif bug == 12:
        tc.cluster_arrive()  # error 12
        if rank != 0:
            tc.cluster_wait()
    elif bug != 14:
        tc.cluster_sync()
    if bug == 15:
        out[tc.blockIdx.x, t] = peer[t] + tile[t]  # error 15
    if bug == 19:
        peer[t] = 1  # error 19
    if bug == 20:
        tc.reduce("add", peer.at(t), 1)  # error 20


EXCHANGE = (
    "no meeting before the loads",  # 1
    "a barrier of the CTA alone",  # 2
    "arrived without waiting",  # 3
    "relaxed arrival",  # 4
    "stored behind the arrival",  # 5
    "loaded before the wait",  # 6
    "waited without arriving",  # 7
    "arrived twice",  # 8
    "arrival of half the warps",  # 9
    "arrival of half the lanes",  # 10
    "overwritten while peers load",  # 11
    "ends behind its arrival",  # 12
    "a rank that does not exist",  # 13
    "may have ended",  # 14
    "met before the last load",  # 15
    "only the reader stays",  # 16
    "set to zero by the peer",  # 17
    "last arrival before the last load",  # 18
    "stores to a peer at the end",  # 19
    "adds to a peer at the end",  # 20
)


@tc.kernel
def pushed(out: tc.Array, bug: tc.Const = ()):
    """CTAs in a ring hand numbers on: each stores to a slot of the next one, which then reads it."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    inbox = tc.shared((2, 64), tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    following = inbox.remote((rank + 1) % 4)
    value = tc.u32(100 * rank + t)
    inbox[0, t], inbox[1, t] = 0, 0  # race 1: first
    if bug != 1:
        tc.cluster_sync()
    for turn in range(5):
        slot = 0 if bug == 5 else turn & 1
        if bug == 2:
            inbox.remote((rank + 1) % 4 & 2)[slot, t] = value  # race 2: both
        elif bug == 3:
            following[slot, t & 62] = value  # race 3: both
        elif bug == 4:
            following[slot, t & 31] = value  # race 4: both
        else:
            following[slot, t] = value  # race 5,6,7,8,9,10,11,12: first; race 1: second; error 1
        if bug == 9:
            value += 0 * following[slot, (t + 32) % 64]  # race 9: second; error 9
        if bug == 10:
            value += 0 * following[slot, t ^ 1]  # race 10: second
        if bug == 12:
            tc.reduce("add", inbox.at(slot, t), 0)  # race 12: second
        if bug == 8:
            inbox[slot, t] = 0  # race 8: second
        if bug == 11:
            tc.barrier()
        elif bug == 7:
            if turn & 1 == 1:
                tc.cluster_sync()
        elif bug != 6:
            tc.cluster_sync()
        value = inbox[slot, t] + 1  # race 5,6,7,11: second; error 6,7,11
    out[tc.blockIdx.x, t] = value
    tc.cluster_sync()


PUSHED = (
    "stored before the peer has started",  # 1
    "two CTAs store to one inbox",  # 2
    "lanes store to one word",  # 3
    "both warps store to one word",  # 4
    "one slot",  # 5
    "no meeting",  # 6
    "met in every other turn",  # 7
    "own slot set to zero",  # 8
    "read back by a neighbour",  # 9
    "read back by a neighbour lane",  # 10
    "a barrier of the CTA alone",  # 11
    "atomics beside a store",  # 12
)


@tc.kernel
def handed_over(out: tc.Array, bug: tc.Const = ()):
    """CTA 0 stores lines to CTA 1 and arrives there; CTA 1 reads them and frees the slot."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile = tc.shared(32, tc.s32)
    full, empty = tc.mbarriers(2)[0], tc.mbarriers(2)[1]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        full.init({1: 33, 2: 16}.get(bug, 32))  # error 1,2; race 3,4: first
        empty.init(32)
        if bug != 3:
            tc.fence_mbarrier_init()
    if bug == 4:
        tc.barrier()
    else:
        tc.emit("barrier.cluster.arrive.relaxed.aligned")
        tc.cluster_wait()
    to = 1 - rank
    if bug == 7:
        to = rank
    if bug == 14:
        to = 2 - rank
    total = tc.s32(0)
    if rank == 0:
        for turn in range(4):
            if (turn > 0) & (bug != 11):
                if bug == 5:
                    empty.wait(turn & 1)  # error 5
                else:
                    empty.wait(turn + 1 & 1)  # error 1,6,7
                tc.emit("fence.acq_rel.cluster")
            if bug == 8:
                tc.emit(ARRIVE, full.remote(to).address)
            tile.remote(1 - rank)[31 - t] = turn + t  # race 2,5,6,8,9,10,11,12,13: first; error 4
            if bug == 12:
                if t % 2 == 0:
                    tc.emit(ARRIVE + ".count", full.remote(to).address, 2)
            elif bug != 8:
                tc.emit(ARRIVE, full.remote(to).address)  # error 2,3,4,5,7,11,14; race 3,4: second
    else:
        for turn in range(4):
            if bug == 13:
                full.test(turn & 1)
            elif bug == 6:
                full.wait(turn + 1 & 1)  # error 6
            elif bug != 9:
                full.wait(turn & 1)  # error 1,7,14
            tc.emit("fence.acq_rel.cluster")
            if bug == 10:
                tc.emit(ARRIVE, empty.remote(to).address)
            total += tile[t]  # race 2,5,6,8,9,10,11,12,13: second; error 6,9,13
            if bug == 15:
                tc.emit(ARRIVE + ".count", empty.remote(to).address, 2)  # error 15
            elif bug != 10:
                tc.emit(ARRIVE, empty.remote(to).address)  # error 2,7,9,13,14,16
        out[t] = total
    if bug != 16:
        tc.cluster_sync()


HANDED_OVER = (
    "count of one too many",  # 1
    "count of half",  # 2
    "init fence missing",  # 3
    "no meeting behind the initialisation",  # 4
    "parity of the slot",  # 5
    "parity of the reader",  # 6
    "arrives at its own CTA",  # 7
    "arrives before the store",  # 8
    "not waited for",  # 9
    "released before the load",  # 10
    "slot not awaited",  # 11
    "even lanes arrive for all",  # 12
    "tested once",  # 13
    "arrives at rank 2",  # 14
    "arrives twice",  # 15
    "may have ended",  # 16
)


@tc.kernel
def flagged(out: tc.Array, bug: tc.Const = ()):
    """CTA 0 stores a line to CTA 1 and raises a flag there, which CTA 1 polls."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile, flag = tc.shared(32, tc.s32), tc.shared(1, tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if (t == 0) & (bug != 10):
        flag[0] = 0
    tc.cluster_sync()
    if rank == 0:
        place = flag.at(0).remote(1).address
        if bug == 1:
            tc.emit("red.release.cluster.shared::cluster.add.u32", place, 1)
        tile.remote(1)[31 - t] = 5 * t  # race 1,2,3,4,5,6,7,8,9: first
        if bug == 2:
            tc.emit("red.relaxed.cluster.shared::cluster.add.u32", place, 1)
        elif bug == 3:
            tc.emit("red.release.cta.shared::cluster.add.u32", place, 1)  # race 3: first
        elif bug == 4:
            tc.emit("st.shared::cluster.b32", place, tc.u32(32))  # race 4: both
        elif bug == 8:
            tc.emit("red.release.cluster.shared::cluster.add.u32", place, 32, pred=t == 0)
        elif bug != 1:
            tc.emit("red.release.cluster.shared::cluster.add.u32", place, 1)  # error 10; race 6,7: first
    else:
        loading = "ld.acquire.cluster.shared.b32"
        if bug == 5:
            loading = "ld.relaxed.cluster.shared.b32"
        if bug == 6:
            loading = "ld.acquire.cta.shared.b32"
        if bug == 7:
            loading = "ld.volatile.shared.b32"
        if bug != 9:
            while tc.emit(loading, flag.address).bits(tc.u32) < 32:  # race 3,4,6,7: second; error 10
                tc.emit("nanosleep.u32", 10)
        out[t] = tile[t]  # race 1,2,3,4,5,6,7,8,9: second; error 9
    tc.cluster_sync()


FLAGGED = (
    "raised before the store",  # 1
    "relaxed flag",  # 2
    "flag of the CTA alone",  # 3
    "plain flag",  # 4
    "relaxed polling",  # 5
    "polled at the scope of the CTA",  # 6
    "volatile polling",  # 7
    "raised by lane 0 for all",  # 8
    "not polled",  # 9
    "flag not set to zero",  # 10
)


@tc.kernel
def counted(out: tc.Array, bug: tc.Const = ()):
    """All threads of the cluster count in a word of CTA 0."""
    tc.launch_bounds(64)
    tc.cluster_size(4)
    word = tc.shared(1, tc.u32)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if (t == 0) & (bug != 2):
        word[0] = 0  # race 1: first
    if bug == 1:
        tc.barrier()
    else:
        tc.cluster_sync()
    if (bug == 2) & (t == 0) & (rank == 0):
        word[0] = 0  # race 2: first
    place = word.at(0).remote(0)
    if bug == 3:
        place.store(place.load() + 1)  # race 3: both
    elif (bug == 4) & (rank == 2) & (t == 0):
        place.store(place.load() + 1)  # race 4: first
    else:
        tc.reduce("add", place, 1)  # race 1,2,4: second; race 5,6,7: first; error 1,2,5
    if bug == 6:
        if rank == 0:
            out[rank, t] = word[0]  # race 6: second
    if bug == 5:
        tc.barrier()
    else:
        tc.cluster_sync()
    out[rank, t] = place.load()  # race 5,7: second; error 5
    if bug == 7:
        tc.reduce("add", place, 1)  # race 7: first
    tc.cluster_sync()


COUNTED = (
    "no meeting before the sums",  # 1
    "set to zero too late",  # 2
    "a sum without atomics",  # 3
    "one CTA adds without atomics",  # 4
    "read before the others have met",  # 5
    "read by its owner at once",  # 6
    "added to behind the loads",  # 7
)


@tc.kernel
def multicast(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
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
            empty[slot].init({2: 2, 1: 5}.get(bug, 4))  # error 1,2
        tc.fence_mbarrier_init()
    if bug == 11:
        tc.barrier()
    else:
        tc.cluster_sync()
    if warp == 0:
        if lane == 0:
            for k in range(a.shape[0]):
                slot, phase = k % stages, k // stages & 1
                if bug != 10:
                    empty[slot].wait(phase ^ 1)  # error 1,3,4,5,6,7,8
                size = 256
                if bug == 9:
                    size = 128
                if bug == 6:
                    size = 384
                full[slot].arrive_expect_tx(size)  # error 3,5,6,9,10,11
                half = 0 if bug == 8 else rank
                mask = tc.u32(3)
                if bug == 5:
                    mask = tc.u32(1) << rank
                if bug == 3:
                    mask = tc.u32(2) >> rank
                if bug == 18:
                    mask = tc.u32(7)
                tc.tma_load(  # race 2,10,12,13,14,15,16,17: first; race 8,17: both; error 2,3,5,8,9,10,11,17,18,19,22
                    tile[slot, half], map, (k, 32 * half), full[slot], multicast=mask
                )
    else:
        total, other = tc.s32(0), tc.s32(0)
        for k in range(a.shape[0]):
            slot, phase = k % stages, k // stages & 1
            if bug != 20:
                full[slot].wait(phase)  # error 1,3,4,5,6,7,8,9
            if bug == 12:
                tc.syncwarp()
                release(empty[slot], lane < 2)
            total += tile[slot, 0, 0, lane]  # race 2,10,12,14,15,17: second; error 3,9,20
            if bug == 13:
                tc.fence_proxy_async()
                tc.syncwarp()
                release(empty[slot], lane < 2)
            other += tile[slot, 1, 0, 31 - lane]  # race 2,10,12,13,14,15,17: second; error 3,9,20
            if bug != 22:
                tc.fence_proxy_async()
            if bug != 14:
                tc.syncwarp()
            if bug == 4:
                empty[slot].arrive(pred=lane == 0)
            elif bug == 7:
                empty[slot].remote(1 - rank).arrive(pred=lane == 0)
            elif bug == 17:
                empty[slot].remote(1 - rank).arrive(pred=lane < 2)  # error 17
            elif bug == 15:
                release(empty[slot], (lane < 2) & (warp == 1))
                release(empty[slot], (lane < 2) & (warp == 1))
            elif bug == 21:
                empty[slot].remote(lane + 1).arrive(pred=lane < 2)  # error 21
            elif bug not in (12, 13):
                release(empty[slot], lane < 2)  # error 2,19
            if bug == 16:
                total += 0 * tile[slot, 0, 0, 31 - lane]  # race 16: second
        out[tc.blockIdx.x, warp - 1, lane] = total + other
    if bug != 19:
        tc.cluster_sync()


def release(empty, pred):
    """Lane r arrives at the barrier of CTA r."""
    empty.remote(tc.lane_id() % 2).arrive(pred=pred)


MULTICAST = (
    "empty counts five",  # 1
    "empty counts one CTA",  # 2
    "mask of the peer",  # 3
    "released in its own CTA alone",  # 4
    "mask of itself",  # 5
    "expects too many bytes",  # 6
    "released in the peer alone",  # 7
    "both load one half",  # 8
    "expects its own half",  # 9
    "no wait for the slot",  # 10
    "no meeting behind the initialisation",  # 11
    "released before the loads",  # 12
    "released between the loads",  # 13
    "no syncwarp before the release",  # 14
    "one warp releases for both",  # 15
    "read behind the release",  # 16
    "released twice in the peer",  # 17
    "mask of three",  # 18
    "no meeting at the end",  # 19
    "no wait for the tile",  # 20
    "released at rank 2",  # 21
    "loads not fenced before the release",  # 22
)


@tc.kernel
def copied(x: tc.Array, out: tc.Array, bug: tc.Const = ()):
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
        if bug == 2:
            tc.fence_proxy_async()
        line[63 - t] = x[tc.blockIdx.x, t] + turn  # race 1,2,3,4,5,6: first; error 5
        if bug == 3:
            if t == 0:
                tc.fence_proxy_async()
        elif bug not in (1, 2):
            tc.fence_proxy_async()
        if bug != 4:
            tc.barrier()
        if t == 0:
            size = {8: 512, 9: 128}.get(bug, 256)
            if bug == 7:
                bar.arrive()  # error 7
            else:
                bar.arrive_expect_tx(size)  # error 8,9,10
            if bug == 10:
                tc.emit(  # error 10
                    COPY, inbox.at(0).remote(to).address, line.at(0).address, 256, bar.remote(rank).address
                )
            elif bug == 11:
                tc.emit(  # error 11
                    COPY,
                    inbox.at(0).remote(to).address,
                    line.at(0).address,
                    256,
                    bar.remote((rank + 2) % 4).address,
                )
            elif bug == 12:
                tc.emit(  # error 12
                    COPY, inbox.at(0).remote(to).address, line.at(0).address, 512, bar.remote(to).address
                )
            elif bug == 13:
                tc.emit(  # error 13
                    COPY,
                    inbox.at(0).remote(rank + 1).address,
                    line.at(0).address,
                    256,
                    bar.remote(rank + 1).address,
                )
            elif bug == 6:
                tc.bulk_copy(line.remote(to), line, bar.remote(to))  # race 6: both; error 6
            elif bug == 14:
                tc.bulk_copy(  # race 14: both; error 14
                    inbox.remote((rank | 1) ^ 2), line, bar.remote((rank | 1) ^ 2)
                )
            else:
                tc.bulk_copy(  # race 1,2,3,4: second; race 5,15,16,17,18,19: first; error 5,7,9,15,16,20
                    inbox.remote(to), line, bar.remote(to)
                )
        if bug == 5:
            line[63 - t] = 0  # race 5: second; error 5
        if bug == 17:
            inbox[63 - t] = 0  # race 17: second; error 17
        if bug == 18:
            if t < 32:
                bar.wait(turn)
        elif bug == 21:
            bar.wait(turn ^ 1)  # error 21
        elif (bug != 15) & ((bug != 20) | (turn == 0)):
            bar.wait(turn)  # error 8,9,10,11,14
        if bug == 16:
            tc.cluster_sync()
            tc.barrier()
        if (bug != 20) | (turn == 0):
            total += inbox[t]  # race 15,16,18,19: second; error 7,9,15,18,21
        if bug == 19:
            tc.cluster_sync()
            total += 0 * inbox[63 - t]  # race 19: second
        elif bug not in (16, 20):
            tc.cluster_sync()
        elif turn == 0:
            tc.barrier()
    out[tc.blockIdx.x, t] = total


COPIED = (
    "no fence",  # 1
    "fence before the stores",  # 2
    "fence by one thread",  # 3
    "no barrier",  # 4
    "source overwritten",  # 5
    "copied over its source",  # 6
    "bytes not expected",  # 7
    "bytes of two lines",  # 8
    "bytes of half a line",  # 9
    "counted by its own barrier",  # 10
    "counted by a third CTA",  # 11
    "two lines copied",  # 12
    "copied to rank 4",  # 13
    "two CTAs copy to one",  # 14
    "no wait",  # 15
    "inbox not read yet",  # 16
    "stored to while a copy lands",  # 17
    "only warp 0 waits",  # 18
    "inbox read late",  # 19
    "exit in flight",  # 20
    "waits for the wrong parity",  # 21
)


# -- launches -------------------------------------------------------------------------------------


def neighbours(draw: np.random.Generator) -> Arguments:
    x = draw.integers(-99, 99, (4, 64)).astype(np.int32)
    back = x[:, ::-1]
    expected = back + np.roll(back, -1, axis=0)
    return {"x": x, "out": np.zeros((4, 64), np.int32), "shift": 1}, {"out": expected}


def ring_of_numbers(draw: np.random.Generator) -> Arguments:
    ranks = (np.arange(4) - 5) % 4
    out = 100 * ranks[:, None] + np.arange(64) + 5
    return {"out": np.zeros((4, 64), np.uint32)}, {"out": out.astype(np.uint32)}


def four_lines(draw: np.random.Generator) -> Arguments:
    out = 4 * (31 - np.arange(32, dtype=np.int32)) + 6
    return {"out": np.zeros(32, np.int32)}, {"out": out}


def fives(draw: np.random.Generator) -> Arguments:
    out = 5 * (31 - np.arange(32, dtype=np.int32))
    return {"out": np.zeros(32, np.int32)}, {"out": out}


def count(draw: np.random.Generator) -> Arguments:
    return {"out": np.zeros((4, 64), np.uint32)}, {"out": np.full((4, 64), 256, np.uint32)}


def sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (7, 64)).astype(np.int32)
    total = a.sum(axis=0)
    line = (total[:32] + total[:31:-1]).astype(np.int32)
    return {"a": a, "out": np.zeros((2, 2, 32), np.int32)}, {"out": np.tile(line, (2, 2, 1))}


def rolled(draw: np.random.Generator) -> Arguments:
    x = draw.integers(-99, 99, (4, 64)).astype(np.int32)
    expected = np.roll(2 * x[:, ::-1] + 1, 1, axis=0)
    return {"x": x, "out": np.zeros((4, 64), np.int32)}, {"out": expected}


CASES = [
    *numbered(EXCHANGE, exchange, 4, 64, neighbours),
    *numbered(PUSHED, pushed, 4, 64, ring_of_numbers),
    *numbered(HANDED_OVER, handed_over, 2, 32, four_lines),
    *numbered(FLAGGED, flagged, 2, 32, fives),
    *numbered(COUNTED, counted, 4, 64, count),
    *numbered(MULTICAST, multicast, 2, 96, sums),
    *numbered(COPIED, copied, 4, 64, rolled),
]
