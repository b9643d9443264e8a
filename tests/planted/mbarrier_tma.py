"""Planted bugs of mbarriers, tensor copies and bulk copies. Each twin is the kernel with bug=""."""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.lang.mbarrier import Mbarrier
from tests.planted.harness import Arguments
from tests.planted.hopper import numbered

BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"
BULK_ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32"
TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"
INVALIDATE = "mbarrier.inval.shared::cta.b64"


# -- a ring of stages, read by ordinary loads -----------------------------------------------------


@tc.kernel
def ring(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
    """Warp 0 brings lines of 64 words by TMA; warps 1 and 2 add them up by ordinary loads."""
    tc.launch_bounds(96)
    stages = 3
    map = tc.tensor_map(a, (1, 64))
    tile = tc.shared((stages, 1, 64), tc.s32, align=128)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    warp, lane = tc.warp_id(), tc.lane_id()
    if tc.threadIdx.x == 0:
        for slot in tc.static_range(stages):
            full[slot].init(2 if bug == 1 else 1)  # error 1
            empty[slot].init({2: 3, 3: 1}.get(bug, 2))  # error 2,3
        tc.fence_mbarrier_init()
    tc.barrier()
    if warp == 0:
        if (lane == 0) | (bug == 19):
            phase = tc.u32(0 if bug == 13 else 1)
            for k in range(a.shape[0]):
                slot = k % stages
                if bug != 17:
                    empty[slot].wait(phase)  # error 1,2,4,5,6,7,8,9,10,11,12,13,14,15
                to = (slot + 1) % stages
                size = {4: 128, 5: 272}.get(bug, map.bytes)
                if bug == 9:
                    full[slot].arrive()  # error 9
                    tc.emit(EXPECT, full[slot].address, size)  # error 9
                elif bug == 10:
                    full[to].arrive_expect_tx(size)  # error 10
                elif bug == 16:
                    full[slot].arrive()  # error 16
                else:
                    full[slot].arrive_expect_tx(size)  # error 1,4,5,17,18,19
                if bug == 20:
                    full[slot].arrive_expect_tx(size)  # error 20
                done = full[to] if bug == 11 else full[slot]
                tc.tma_load(  # race 3,6,17,18,21,22,23,24,25,26,27: first; error 4,5,6,11,16,17,19,20,33,34,35
                    tile[slot], map, (k, 0), done
                )
                flip = slot == stages - 1
                if bug == 6:
                    flip = k % 2 == 1
                if bug != 18:
                    phase = tc.select(flip, phase ^ 1, phase)
    else:
        phase = tc.u32(1 if bug == 7 else 0)
        total, other = tc.s32(0), tc.s32(0)
        for k in range(a.shape[0]):
            slot = k % stages
            if bug == 12:
                full[(slot + 1) % stages].wait(phase)  # error 12
            elif bug == 30:
                if warp == 1:
                    full[slot].wait(phase)
            elif bug == 31:
                if lane == 0:
                    full[slot].wait(phase)
            elif bug == 28:
                total += tile[slot, 0, lane]  # error 28
                full[slot].wait(phase)
            elif bug != 32:
                full[slot].wait(phase)  # error 1,2,4,5,6,7,8,9,10,11,13,14,15,29
            if bug == 21:
                tc.syncwarp()
                empty[slot].arrive(pred=lane == 0)
            if bug != 28:
                total += (
                    tile[  # race 3,17,18,21,23,24,25,26: second; error 4,7,8,9,10,11,12,16,20,29,30,31,32
                        slot, 0, lane
                    ]
                )
            if bug == 22:
                tc.fence_proxy_async()
                tc.syncwarp()
                empty[slot].arrive(pred=lane == 0)
            other += tile[slot, 0, lane + 32]  # race 3,6,17,18,21,22,23,24,25,26: second
            if bug == 34:
                if lane == 0:
                    tc.fence_proxy_async()
            elif bug not in (33, 35):
                tc.fence_proxy_async()
            if bug not in (23, 21):
                tc.syncwarp()
            if bug == 35:
                if lane == 0:
                    tc.emit("fence.proxy.async.global")
            where = empty[(slot + 1) % stages] if bug == 24 else empty[slot]
            if bug == 25:
                where.arrive(2, pred=(lane == 0) & (warp == 1))  # error 25
            elif bug == 26:
                where.arrive(2, pred=lane == 0)  # error 26
            elif bug == 15:
                where.arrive(pred=(lane == 0) & (slot < stages - 1))
            elif bug not in (14, 22, 21):
                where.arrive(pred=lane == 0)  # error 3,17,24,29,32
            if bug == 27:
                total += 0 * tile[slot, 0, 63 - lane]  # race 27: second
            flip = slot == stages - 1
            if bug == 8:
                flip = k >= 0
            if bug != 29:
                phase = tc.select(flip, phase ^ 1, phase)
        out[warp - 1, lane], out[warp - 1, lane + 32] = total * warp, other * warp


RING = (
    "full counts two arrivals",  # 1
    "empty counts three arrivals",  # 2
    "empty counts one arrival",  # 3
    "too few bytes",  # 4
    "too many bytes",  # 5
    "wrap of two",  # 6
    "consumer starts with parity 1",  # 7
    "consumer's parity flips in each turn",  # 8
    "arrives, then expects",  # 9
    "bytes expected in the next slot",  # 10
    "bytes counted in the next slot",  # 11
    "waits for the next slot",  # 12
    "producer starts with parity 0",  # 13
    "never released",  # 14
    "the last slot is never released",  # 15
    "bytes not expected",  # 16
    "producer does not wait",  # 17
    "producer's parity does not flip",  # 18
    "every lane produces",  # 19
    "announced twice",  # 20
    "released before the loads",  # 21
    "released between the loads",  # 22
    "no syncwarp before the release",  # 23
    "next slot released",  # 24
    "released by warp 1 for both",  # 25
    "released twice",  # 26
    "read again after the release",  # 27
    "waits behind the loads",  # 28
    "consumer's parity does not flip",  # 29
    "only warp 1 waits",  # 30
    "only lane 0 waits",  # 31
    "consumer waits for no phase",  # 32
    "loads not fenced before the release",  # 33
    "lane 0 fences before the lanes meet",  # 34
    "loads fenced for global memory",  # 35
)


@tc.kernel
def ring_of_threads(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
    """Warps 0 and 1 store lines to a ring, warps 2 and 3 add them up; every thread arrives."""
    tc.launch_bounds(128)
    stages = 2
    tile = tc.shared((stages, 2, 64), tc.s32)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    t, t64 = tc.threadIdx.x, tc.threadIdx.x % 64
    if t == 0:
        for slot in tc.static_range(stages):
            full[slot].init({1: 32, 2: 65}.get(bug, 64))  # error 1,2
            empty[slot].init(64)
    tc.barrier()
    if t < 64:
        for k in range(a.shape[0]):
            slot, phase = k % stages, k // stages & 1
            if bug != 5:
                empty[slot].wait(phase ^ 1 if bug != 3 else phase)  # error 2,3
            if bug == 4:
                full[slot].arrive()
            tile[slot, 0, t64] = a[k, t64]  # race 1,4,5,6,7,8,9,10,11: first
            if bug == 12:
                full[slot].arrive()
            tile[slot, 1, t64] = -a[k, t64]  # race 1,4,5,6,7,8,9,10,11,12,13,14: first
            if bug == 9:
                full[slot].arrive(2, pred=t % 2 == 0)
            elif bug not in (4, 12):
                full[slot].arrive()  # error 1,5
    else:
        total, other = tc.s32(0), tc.s32(0)
        for k in range(a.shape[0]):
            slot, phase = k % stages, k // stages & 1
            if bug == 8:
                full[slot].test(phase)
            elif bug == 11:
                full[slot].wait(0)
            elif bug != 6:
                full[slot].wait(phase)  # error 2,3
            if bug == 7:
                empty[slot].arrive()
            total += tile[  # race 15: first; race 1,4,5,6,7,8,9,10,11: second; error 1,4,6,8,11
                slot, 0, 63 - t64
            ]
            if bug == 15:
                tile[slot, 0, t64] = 0  # race 15: second
            if bug == 13:
                empty[slot].arrive()
            other += tile[slot, 1, 63 - t64]  # race 1,4,5,6,7,8,9,10,11,12,13: second; error 1,4,6,8,11,12
            if bug == 10:
                empty[slot].arrive(2, pred=t % 2 == 0)
            elif bug not in (7, 13):
                empty[slot].arrive()  # error 6,8,11
            if bug == 14:
                total += 0 * tile[slot, 1, t64]  # race 14: second
        out[0, t64], out[1, t64] = total, other


RING_OF_THREADS = (
    "full counts 32",  # 1
    "full counts 65",  # 2
    "parity of the producers",  # 3
    "arrive before the stores",  # 4
    "producers do not wait",  # 5
    "consumers do not wait",  # 6
    "release before the loads",  # 7
    "consumers test once",  # 8
    "even lanes arrive for all",  # 9
    "even lanes release for all",  # 10
    "constant parity",  # 11
    "arrive between the stores",  # 12
    "release between the loads",  # 13
    "peeks after the release",  # 14
    "added up in place",  # 15
)


@tc.kernel
def ring_of_a_group(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
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
                tc.emit(  # race 1,2,3,4,5,6,7: first; error 3,5,8
                    BULK_LOAD, tile.at(slot, 0).address, a.at(k, 0).address, 2048, full[slot].address
                )
    else:
        totals = [tc.s32(0)] * 4
        me = t - 32
        for k in range(k_tiles):
            slot, phase = k % stages, k // stages & 1
            full[slot].wait(phase)
            if bug == 2:
                tc.barrier(1, 128)
                empty[slot].arrive(pred=me == 0)
            if bug == 6:
                totals = [x + y for x, y in zip(totals[:2], tile.at(slot, 4 * me).load(2))] + totals[2:]
                tc.fence_proxy_async()
                tc.barrier(1, 128)
                empty[slot].arrive(pred=me == 0)
                totals = (
                    totals[:2]
                    + [  # race 6: second
                        x + y for x, y in zip(totals[2:], tile.at(slot, 4 * me + 2).load(2))
                    ]
                )
            else:
                totals = [  # race 1,2,3,4,5: second
                    x + y for x, y in zip(totals, tile.at(slot, 4 * me).load(4))
                ]
            if bug != 8:
                tc.fence_proxy_async()
            if bug == 4:
                tc.syncwarp()
            elif bug == 3:
                tc.barrier(1 + me // 64, 64)
            elif bug not in (1, 2, 6):
                tc.barrier(1, 128)
            if bug == 5:
                empty[slot].arrive(pred=me % 32 == 0)  # error 5
            elif bug not in (2, 6):
                empty[slot].arrive(pred=me == 0)
            if bug == 7:
                totals[3] += 0 * tile[slot, me]  # race 7: second
        for i in tc.static_range(4):
            out[4 * me + i] = totals[i]


RING_OF_A_GROUP = (
    "no barrier before the release",  # 1
    "barrier before the loads",  # 2
    "warps meet in pairs",  # 3
    "syncwarp for a barrier",  # 4
    "release by thread 0 of each warp",  # 5
    "vectors read after the release",  # 6
    "a word read after the release",  # 7
    "loads not fenced before the release",  # 8
)


@tc.kernel
def ring_of_named_barriers(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
    """As above, but the consumers release a slot by bar.arrive, which the producers sync with."""
    tc.launch_bounds(96)
    tile = tc.shared((2, 1, 64), tc.s32, align=128)
    map = tc.tensor_map(a, (1, 64))
    full = tc.mbarriers(2)
    t = tc.threadIdx.x
    if t == 0:
        full[0].init(1)
        full[1].init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if t < 32:
        for k in range(a.shape[0]):
            slot, phase = k % 2, k // 2 & 1
            if k >= 2:
                if bug == 2:
                    tc.barrier_arrive(1 + slot, 96)
                else:
                    tc.barrier(2 - slot if bug == 1 else 1 + slot, 64 if bug == 5 else 96)  # error 1
            if tc.elect():
                full[slot].arrive_expect_tx(256)  # error 2
                tc.tma_load(tile[slot], map, (k, 0), full[slot])  # race 1,2,3,4,5: first; error 1,2,5,6
    else:
        total, other, me = tc.s32(0), tc.s32(0), t - 32
        for k in range(a.shape[0]):
            slot, phase = k % 2, k // 2 & 1
            full[slot].wait(phase)
            if bug == 3:
                tc.barrier_arrive(1 + slot, 96)
            total += tile[slot, 0, me]  # race 1,2,3,5: second
            if bug == 4:
                tc.fence_proxy_async()
                tc.barrier_arrive(1 + slot, 96)
            other += tile[slot, 0, 63 - me]  # race 1,2,3,4,5: second
            if bug != 6:
                tc.fence_proxy_async()
            if bug == 5:
                if t < 64:
                    tc.barrier_arrive(1 + slot, 64)
            elif bug not in (3, 4):
                tc.barrier_arrive(1 + slot, 96)  # error 1
        out[0, me], out[1, 63 - me] = total, other


RING_OF_NAMED_BARRIERS = (
    "producer meets at the other slot",  # 1
    "producer arrives without waiting",  # 2
    "arrive before the loads",  # 3
    "arrive between the loads",  # 4
    "half of the consumers",  # 5
    "loads not fenced before they arrive",  # 6
)


@tc.kernel
def ring_of_matrices(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
    """Warps 1 and 2 read 16 x 8 matrices by ldmatrix; the producer loads the next ones."""
    tc.launch_bounds(96)
    map = tc.tensor_map(a, (1, 16, 8))
    tile = tc.shared((2, 16, 8), tc.f16, align=128)
    full, empty = tc.mbarriers(2), tc.mbarriers(2)
    t, lane, warp = tc.threadIdx.x, tc.lane_id(), tc.warp_id()
    if t == 0:
        for slot in tc.static_range(2):
            full[slot].init(1)
            empty[slot].init(2)
        tc.fence_mbarrier_init()
    tc.barrier()
    if warp == 0:
        if lane == 0:
            for k in range(a.shape[0]):
                slot, phase = k % 2, k // 2 & 1
                empty[slot].wait(phase ^ 1)
                full[slot].arrive_expect_tx(map.bytes)
                tc.tma_load(tile[slot], map, (k, 0, 0), full[slot])  # race 1,2,3: first; error 4
    else:
        sums = [tc.u32(0)] * 2
        for k in range(a.shape[0]):
            slot, phase = k % 2, k // 2 & 1
            full[slot].wait(phase)
            if bug == 1:
                empty[slot].arrive(pred=lane == 0)
            word = tc.emit(  # race 1: second
                "ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(slot, lane % 8, 0).address
            )
            sums[0] += word.bits(tc.u32)
            if bug == 2:
                tc.fence_proxy_async()
                tc.syncwarp()
                empty[slot].arrive(pred=lane == 0)
            word = tc.emit(  # race 1,2: second
                "ldmatrix.sync.aligned.m8n8.x1.shared.b16", tile.at(slot, 8 + lane % 8, 0).address
            )
            sums[1] += word.bits(tc.u32)
            if bug != 4:
                tc.fence_proxy_async()
            tc.syncwarp()
            if bug not in (1, 2):
                empty[slot].arrive(pred=lane == 0)
            if bug == 3:
                sums[0] += (
                    tc.emit("ld.shared.b32", tile.at(slot, lane % 16, 0).address).bits(tc.u32) & 0
                )  # race 3: second
        for half in tc.static_range(2):
            out[warp - 1, half, lane] = sums[half]


RING_OF_MATRICES = (
    "released before ldmatrix",  # 1
    "released before the second ldmatrix",  # 2
    "a word read after the release",  # 3
    "matrices not fenced before the release",  # 4
)


@tc.kernel
def bulk_stores(d: tc.Array, bug: tc.Const = ()):
    """64 threads write lines to two buffers in turn, and thread 0 stores them by TMA."""
    tc.launch_bounds(64)
    map = tc.tensor_map(d, (1, 64))
    tile = tc.shared((2, 1, 64), tc.s32, align=128)
    t = tc.threadIdx.x
    for i in tc.static_range(5):
        buffer = tile[0 if bug == 10 else i % 2]
        if bug == 11:
            tc.barrier()
        if bug == 8:
            if t == 1:
                tc.tma_store_wait(1, read=True)
        elif bug != 6:
            if t == 0:
                tc.tma_store_wait(2 if bug == 7 else 1, read=True)
        if bug not in (11, 12):
            tc.barrier()
        if bug == 2:
            tc.fence_proxy_async()
        buffer[0, 63 - t] = (
            100 * i - t
        )  # race 1,2,3,4,5,6,7,8,9,10,11,12,13,14: first; race 15: second; error 9,10,13,14,15
        if bug not in (1, 2, 3, 4):
            tc.fence_proxy_async()
        if bug == 4:
            if t == 0:
                tc.fence_proxy_async()
        if bug == 16:
            buffer[0, 63 - t] = 100 * i - t  # race 16: first
        if bug != 5:
            tc.barrier()
        if bug == 3:
            if t == 32:
                tc.fence_proxy_async()
        if bug == 17:
            buffer[0, 63 - t] = 100 * i - t  # race 17: first
        if bug == 15:
            if t < 32:
                tc.tma_store(map, (i, 0), buffer)  # race 15: both; error 15
                tc.tma_store_commit()
        else:
            if t == 0:
                if bug == 13:
                    tc.tma_store_commit()
                tc.tma_store(  # race 1,2,3,4,5,6,7,8,9,10,11,12,13,14,16,17,18: second; error 9,13,14,19
                    map, (i, 0), buffer
                )
                if bug not in (9, 13, 14):
                    tc.tma_store_commit()
            if bug == 14:
                if t == 1:
                    tc.tma_store_commit()
        if bug == 18:
            buffer[0, 63 - t] = 0  # race 18: first
    if bug != 19:
        if t == 0:
            tc.tma_store_wait(0)


BULK_STORES = (
    "no fence",  # 1
    "fence before the stores",  # 2
    "fence behind the barrier",  # 3
    "fence by one thread",  # 4
    "no barrier before the copy",  # 5
    "no wait for the buffer",  # 6
    "wait for one less",  # 7
    "wait by another thread",  # 8
    "no commit",  # 9
    "one buffer",  # 10
    "wait behind the barrier",  # 11
    "no barrier behind the wait",  # 12
    "commit before the copy",  # 13
    "commit by another thread",  # 14
    "every lane stores",  # 15
    "a store behind the fence",  # 16
    "a store behind the barrier",  # 17
    "overwritten behind the copy",  # 18
    "no last wait",  # 19
)


@tc.kernel
def read_back(d: tc.Array, out: tc.Array, bug: tc.Const = ()):
    """Thread 0 stores a line by TMA; when it has landed, all threads read it in global memory."""
    tc.launch_bounds(64)
    map = tc.tensor_map(d, (1, 64))
    tile, copied = tc.shared((1, 64), tc.s32, align=128), tc.shared((1, 64), tc.s32, align=128)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    if bug == 1:
        d[0, 63 - t] = 7  # race 1: first
    else:
        d[0, t] = 7
        tc.emit("fence.proxy.async")
    tile[0, t] = 3 * t
    tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        tc.tma_store(map, (0, 0), tile)  # race 1: second; race 2,3,4,5,6,7,8,9,10: first; error 3,5,6
        if bug == 6:
            tc.tma_store_wait(0)
        if bug != 5:
            tc.tma_store_commit()
        if bug in (2, 9, 8, 10):
            tc.tma_store_wait(0, read=True)
        elif bug not in (3, 4, 6):
            tc.tma_store_wait(0)
    if bug == 4:
        if t == 1:
            tc.tma_store_wait(0)
    if bug == 7:
        out[1, t] = d[0, t]  # race 7: second
    tc.barrier()
    if bug == 8:
        d[0, t] = 3 * t  # race 8: second
    if bug == 10:
        tc.reduce("add", d.at(0, t), 0)  # race 10: second
    if bug in (8, 10):
        tc.emit("fence.proxy.async")
        tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(256)
        tc.emit("fence.proxy.async")
        tc.tma_load(copied, map, (0, 0), bar)  # race 2,3,4,5,6,9: second
    bar.wait(0)
    out[0, t] = copied[0, t]
    if bug != 9:
        out[1, t] = d[0, t]  # race 2,3,4,5,6: second
    else:
        out[1, t] = 3 * t
    if t == 0:
        tc.tma_store_wait(0)


READ_BACK = (
    "an older store without a proxy fence",  # 1
    "waited for the reads alone",  # 2
    "no wait",  # 3
    "wait by another thread",  # 4
    "no commit",  # 5
    "waited before the commit",  # 6
    "read ahead of the barrier behind the wait",  # 7
    "stored over",  # 8
    "loaded by TMA behind wait_group.read",  # 9
    "added atomically",  # 10
)


@tc.kernel
def written_then_loaded(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
    """All threads write a line of global memory, and a bulk copy or TMA brings it back."""
    tc.launch_bounds(64)
    map = tc.tensor_map(a, (1, 64))
    tile = tc.shared((1, 64), tc.s32, align=128)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    if bug == 6:
        tc.emit("fence.proxy.async")
    a[0, 63 - t] = 5 * t  # race 1,2,3,4,5,6,7,8: first
    if bug == 2:
        tc.emit("fence.acq_rel.gpu")
    elif bug == 3:
        tc.emit("fence.proxy.async.shared::cta")
    elif bug == 4:
        if t == 0:
            tc.emit("fence.proxy.async.global")
    elif bug not in (1, 8, 5, 6):
        tc.emit("fence.proxy.async.global")
    if bug == 9:
        a[0, 63 - t] = 5 * t  # race 9: first
    if bug != 7:
        tc.barrier()
    if bug == 5:
        if t == 32:
            tc.emit("fence.proxy.async.global")
    if t == 0:
        bar.arrive_expect_tx(256)
        if bug == 8:
            tc.emit(BULK_LOAD, tile.address, a.at(0, 0).address, 256, bar.address)  # race 8: second
        else:
            tc.tma_load(tile, map, (0, 0), bar)  # race 1,2,3,4,5,6,7,9,10: second
    if bug == 7:
        tc.barrier()
    if bug == 10:
        a[0, 63 - t] = 5 * t  # race 10: first
    bar.wait(0)
    out[t] = tile[0, t]


WRITTEN_THEN_LOADED = (
    "no proxy fence",  # 1
    "an ordinary fence alone",  # 2
    "a fence for shared memory alone",  # 3
    "fence by one thread",  # 4
    "fence behind the barrier",  # 5
    "fence before the stores",  # 6
    "no barrier",  # 7
    "no proxy fence for a bulk copy",  # 8
    "a store behind the fence",  # 9
    "overwritten in flight",  # 10
)


@tc.kernel
def sums_in_bulk(d: tc.Array, bug: tc.Const = ()):
    """Two warps of each block add a line of 32 words to the same line of global memory, in bulk."""
    tc.launch_bounds(64)
    tile = tc.shared((2, 32), tc.s32, align=128)
    lane, warp = tc.lane_id(), tc.warp_id()
    tile[warp, lane] = lane + warp
    tc.fence_proxy_async()
    tc.syncwarp()
    if bug == 1:
        if tc.blockIdx.x == 0:
            d[1 + warp, lane] = 0 * d[0, lane]  # race 1: second
    if bug == 2:
        if (warp == 1) & (tc.blockIdx.x == 0):
            d[0, lane] = d[0, lane] + lane + 1  # race 2: second
    if bug == 3:
        if (warp == 0) & (tc.blockIdx.x == 0):
            d[0, lane] = 0  # race 3: second
    if (lane == 0) & ((warp == 0) | (bug != 2)):
        if bug == 4:
            if warp == 0:
                tc.emit(BULK_STORE, d.at(0, 0).address, tile.at(0, 0).address, 128)  # race 4: both
            else:
                tc.emit(BULK_ADD, d.at(0, 0).address, tile.at(1, 0).address, 128)  # race 4: second
        else:
            tc.emit(  # race 1,2,3,5: first; error 6
                BULK_ADD, d.at(0, 0).address, tile.at(warp, 0).address, 128
            )
        tc.tma_store_commit()
        if bug != 6:
            tc.tma_store_wait(0)
    if bug == 5:
        tc.syncwarp()
        if tc.blockIdx.x == 0:
            d[1 + warp, lane] = 0 * d[0, lane]  # race 5: second


SUMS_IN_BULK = (
    "read before the others have added",  # 1
    "plain addition beside it",  # 2
    "set to zero beside it",  # 3
    "a copy instead of a sum",  # 4
    "read behind its own sum",  # 5
    "exit in flight",  # 6
)


@tc.kernel
def initialised(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
    """One load, whose mbarrier somebody must have initialised; two warps wait for it."""
    tc.launch_bounds(64)
    map = tc.tensor_map(a, (1, 64))
    tile = tc.shared((1, 64), tc.s32, align=128)
    words = tc.shared(4, tc.u64)
    bar = tc.mbarriers(1)[0]
    if bug in (6, 7, 10, 16):
        bar = Mbarrier(words.at(2).address + (4 if bug == 10 else 0))
    t = tc.threadIdx.x
    first = t == 0
    if bug == 1:
        first = t >= 0
    if bug == 2:
        first = t % 32 == 0
    if bug == 5:
        tc.fence_mbarrier_init()
    if bug not in (14, 12):
        if first:
            bar.init(t if bug == 9 else 1)  # race 1,2: both; race 3,4,5,6,7,8: first; error 1,2,4,5,8,9,10
            if bug == 11:
                bar.init(1)  # error 11
            if bug not in (4, 5, 8):
                tc.fence_mbarrier_init()
    if bug == 8:
        if t == 32:
            tc.fence_mbarrier_init()
    if (bug == 6) & (t == 32):
        words[2] = tc.u64(7)  # error 6; race 6: second
    if bug != 3:
        tc.barrier()
    if bug == 12:
        if t == 0:
            bar.init(1)  # race 12: first; error 12
            tc.fence_mbarrier_init()
    if bug == 13:
        if t == 0:
            tc.emit(INVALIDATE, bar.address)  # error 13; race 13: first
    if t == 0:
        bar.arrive_expect_tx(256)  # error 4,5,6,7,8,13,14; race 4,5,6,7,8,13: second
        if bug == 7:
            tc.emit(BULK_LOAD, words.address, a.at(0, 0).address, 32, bar.address)  # error 7; race 7: second
        tc.tma_load(tile, map, (0, 0), bar)  # race 4,5,8: second; error 4,5,8
        if bug == 15:
            tc.emit(INVALIDATE, bar.address)  # error 15; race 15: first
    if bug == 16:
        if t == 32:
            words[2] = tc.u64(1)  # error 16; race 16: first
    if bug == 17:
        if t == 32:
            bar.init(1)  # error 17; race 17: first
    parity = t // 64 + 2 if bug == 18 else t // 64
    bar.wait(parity)  # race 3,12,15,16,17,20: second; error 3,12,14,15,18
    out[t] = tile[0, t]
    if bug == 19:
        tc.barrier()
        if t == 0:
            tc.emit(INVALIDATE, bar.address)  # race 19: first
        tc.barrier()
        bar.arrive(pred=t == 32)  # error 19; race 19: second
    if bug == 20:
        if t == 0:
            tc.emit(INVALIDATE, bar.address)  # error 20; race 20: first
        bar.test(0)  # error 20; race 20: second
    if bug == 21:
        tc.barrier()
        if t == 0:
            tc.emit("st.shared.b64", bar.address, tc.u64(1))  # error 21


INITIALISED = (
    "by every thread",  # 1
    "by a thread of each warp",  # 2
    "no barrier behind it",  # 3
    "fence missing",  # 4
    "fence before the initialisation",  # 5
    "data stored over it",  # 6
    "bulk copy over it",  # 7
    "fence by another thread",  # 8
    "with no arrivals",  # 9
    "at half a word",  # 10
    "twice",  # 11
    "behind the barrier",  # 12
    "invalidated before its use",  # 13
    "never",  # 14
    "invalidated in flight",  # 15
    "data above it before the wait",  # 16
    "initialised again in flight",  # 17
    "waits for parity 2",  # 18
    "used when invalidated",  # 19
    "invalidated while others wait",  # 20
    "its memory used as data",  # 21
)


@tc.kernel
def places(a: tc.Array, out: tc.Array, d: tc.Array, bug: tc.Const = ()):
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
        bar.arrive_expect_tx(1024 if bug == 2 else 512)  # error 1
        where = map.coordinates((4, 64))
        if bug == 1:
            where = map.coordinates((64, 4))
        if bug == 8:
            where = map.coordinates((4 * 4, 64 // 4))
        if bug == 9:
            where = map.coordinates((4, 62))
        to = tile.at(0, 0, 0).address
        if bug == 10:
            to = to + 16
        if bug == 11:
            to = to + 64
        if bug == 12:
            to = to + 3 * 512 - 128 + 256 * 1024
        source = a.at(4, 64).address
        if bug == 2:
            tc.emit(TENSOR_LOAD, to, big.address, *where, bar.address)  # error 2; race 2: first
        elif bug == 3:
            tc.emit(BULK_LOAD, to, source, 24, bar.address)  # error 3
        elif bug == 4:
            tc.emit(BULK_LOAD, to, source + 4, 512, bar.address)  # error 4
        elif bug == 5:
            tc.emit(BULK_LOAD, to + 8, source, 512, bar.address)  # error 5
        elif bug == 6:
            tc.emit(BULK_LOAD, to, a.at(11, 64).address, 512, bar.address)  # error 6
        elif bug == 7:
            bar.arrive_expect_tx(512)  # error 7
            tc.emit(BULK_LOAD, to, a.at(0, 0).address, 1024, bar.address)  # error 7
        else:
            tc.emit(TENSOR_LOAD, to, map.address, *where, bar.address)  # error 1,8,9,10,11,12
    mine = tile[1, t // 32, t % 32]  # race 2: second; error 2
    bar.wait(0)
    out[t] = tile[0, t // 32, t % 32] + mine
    if t == 0:
        row = {16: -4, 17: 12}.get(bug, 0)
        source = tile.at(1, 0, 0).address
        if bug == 18:
            source = source + 16
        if bug == 13:
            tc.emit(BULK_STORE, d.at(3, 0).address, source, 512)  # error 13
        elif bug == 14:
            tc.emit(BULK_STORE, d.at(0, 0).address, source, 40)  # error 14
        elif bug == 15:
            tc.tma_store(map_d, (0, 0), tile[2])  # error 15
        else:
            tc.emit(  # error 16,17,18
                "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
                map_d.address,
                *map_d.coordinates((row, 0)),
                source,
            )
        tc.tma_store_commit()
        tc.tma_store_wait(0)


PLACES = (
    "swapped coordinates",  # 1
    "box over the next slot",  # 2
    "bulk copy of 24 bytes",  # 3
    "bulk copy from 4 bytes on",  # 4
    "bulk copy to 8 bytes on",  # 5
    "bulk copy past the array",  # 6
    "bulk copy past the slot",  # 7
    "boxes for elements",  # 8
    "column of 8 bytes",  # 9
    "box at 16 bytes",  # 10
    "box at 64 bytes",  # 11
    "box past the end of shared memory",  # 12
    "bulk store past the array",  # 13
    "bulk store of 40 bytes",  # 14
    "store of an unwritten slot",  # 15
    "store at a negative row",  # 16
    "store outside",  # 17
    "store from 16 bytes on",  # 18
)


@tc.kernel
def passed_by(out: tc.Array, bug: tc.Const = ()):
    """Warp 1 works through phases, warp 0 waits for each of them, and answers."""
    tc.launch_bounds(64)
    there, back = tc.mbarriers(2)[0], tc.mbarriers(2)[1]
    data = tc.shared(32, tc.s32)
    t, lane = tc.threadIdx.x, tc.lane_id()
    if t == 0:
        there.init(33 if bug == 1 else 32)  # error 1
        back.init(32)
    tc.barrier()
    if t >= 32:
        for turn in tc.static_range(4):
            if (turn > 0) & (bug not in (5, 6)):
                if bug == 2:
                    back.wait(turn & 1)  # error 2
                else:
                    back.wait(turn + 1 & 1)  # error 1,3,4
            data[31 - lane] = turn + lane  # race 2,4,5,6,7,8: first
            if bug == 8:
                there.arrive(2, pred=lane < 16)
            else:
                there.arrive()  # error 2,4,5,6
    else:
        total = tc.s32(0)
        for turn in tc.static_range(4):
            if (bug != 4) | (turn % 2 == 1):
                there.wait(turn & 1)  # error 1,2,3,4,5
            if bug == 7:
                back.arrive()
            total += data[lane]  # race 2,4,5,6,7,8: second; error 4
            if (bug not in (5, 7)) & ((bug != 3) | (turn == 0)):
                back.arrive()  # error 2,6
        out[lane] = total


PASSED_BY = (
    "count of one too many",  # 1
    "waits for the answer before last",  # 2
    "answered only once",  # 3
    "waits for every other phase",  # 4
    "nobody answers",  # 5
    "data without an answer",  # 6
    "read behind the answer",  # 7
    "predicate leaves lanes out",  # 8
)


@tc.kernel
def unusual_ring(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
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
                if bug == 3:
                    empty[slot].test(phase ^ 1)
                else:
                    while not empty[slot].test(phase ^ 1):  # error 1,2
                        tc.emit("nanosleep.u32", 20)
                tc.tma_load(tile[slot, 0], map, (k, 0), full[slot])  # race 3,4,5: first; error 3,6
                if bug == 6:
                    tc.emit(EXPECT, full[slot].address, 128)
                    full[slot].arrive()  # error 6
                    tc.emit(EXPECT, full[slot].address, 128)  # error 6
                elif bug == 2:
                    tc.emit(EXPECT, full[slot].address, 128)  # error 2
                else:
                    tc.emit(EXPECT, full[slot].address, 256)
                tc.tma_load(tile[slot, 1], map, (k, 32), full[slot])  # race 3,4,5: first; error 2,3,6
                if bug != 6:
                    full[slot].arrive()  # error 2,3
    else:
        for k in range(a.shape[0]):
            slot, phase = k % 2, k // 2 & 1
            if lane == 0:
                if bug == 8:
                    full[slot].test(phase)
                else:
                    while not full[slot].test(phase):  # error 1,2,6,7
                        tc.emit("nanosleep.u32", 20)
            if bug != 9:
                tc.syncwarp()
            if bug == 5:
                empty[slot].arrive(2, pred=lane == 0)
            total += tile[slot, 0, 0, lane] + tile[slot, 1, 0, 31 - lane]  # race 3,4,5: second; error 2,6,8,9
            tc.fence_proxy_async()
            if bug == 4:
                empty[slot].arrive(2, pred=lane == 0)
                tc.syncwarp()
            else:
                tc.syncwarp()
                if bug == 1:
                    empty[slot].arrive(pred=lane == 0)  # error 1
                elif bug != 5:
                    empty[slot].arrive(2, pred=lane == 0)  # error 8
    if bug == 7:
        if t == 0:
            tc.emit(INVALIDATE, full[0].address)  # error 7
    tc.barrier()
    if bug == 10:
        if t == 0:
            tc.emit("st.shared.b64", full[0].address, tc.u64(1))  # error 10
    if t == 0:
        for slot in tc.static_range(2):
            if (slot == 1) | (bug != 7):
                tc.emit(INVALIDATE, full[slot].address)  # error 10
            tc.emit(INVALIDATE, empty[slot].address)
        tc.emit("st.shared.b64", full[0].address, tc.u64(0))
    if warp > 0:
        tile[0, warp - 1, 0, 31 - lane] = total  # race 11,12: first
    if bug == 12:
        tc.syncwarp()
    elif bug != 11:
        tc.barrier()
    if t < 32:
        out[lane] = tile[0, 0, 0, lane] + tile[0, 1, 0, lane]  # race 11,12: second


UNUSUAL_RING = (
    "one arrival for two",  # 1
    "the second copy is never expected",  # 2
    "slot polled once",  # 3
    "released before its lanes meet",  # 4
    "released before the loads",  # 5
    "arrives before the second expectation",  # 6
    "ended while others wait",  # 7
    "stage polled once",  # 8
    "the lanes do not meet behind the wait",  # 9
    "scratch over a barrier that lives",  # 10
    "scratch read without a barrier",  # 11
    "scratch read by its own warp alone",  # 12
)


# -- launches -------------------------------------------------------------------------------------
def sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (8, 64)).astype(np.int32)
    out = np.zeros((2, 64), np.int32)
    total = a.sum(axis=0)
    return {"a": a, "out": out}, {"out": np.stack([total, 2 * total])}


def two_sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (7, 64)).astype(np.int32)
    total = a.sum(axis=0)[::-1]
    return {"a": a, "out": np.zeros((2, 64), np.int32)}, {"out": np.stack([total, -total])}


def long_sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (5, 512)).astype(np.int32)
    return {"a": a, "out": np.zeros(512, np.int32)}, {"out": a.sum(axis=0)}


def equal_sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (7, 64)).astype(np.int32)
    total = a.sum(axis=0)
    return {"a": a, "out": np.zeros((2, 64), np.int32)}, {"out": np.stack([total, total])}


def sums_of_words(draw: np.random.Generator) -> Arguments:
    a = draw.integers(0, 1 << 12, (5, 16, 4)).astype(np.uint32)
    total = a.sum(axis=0).astype(np.uint32).reshape(2, 32)
    out = np.zeros((2, 2, 32), np.uint32)
    return {"a": a.view(np.float16), "out": out}, {"out": np.stack([total, total])}


def five_lines(draw: np.random.Generator) -> Arguments:
    lines = 100 * np.arange(5)[:, None] + np.arange(64) - 63
    return {"d": np.zeros((5, 64), np.int32)}, {"d": lines.astype(np.int32)}


def one_line(draw: np.random.Generator) -> Arguments:
    line = 3 * np.arange(64, dtype=np.int32)
    out = np.zeros((2, 64), np.int32)
    return {"d": np.zeros((1, 64), np.int32), "out": out}, {"out": np.stack([line, line])}


def falling_line(draw: np.random.Generator) -> Arguments:
    out = np.zeros(64, np.int32)
    falling = (5 * np.arange(64)[::-1]).astype(np.int32)
    return {"a": np.zeros((1, 64), np.int32), "out": out}, {"out": falling}


def sum_of_lines(draw: np.random.Generator) -> Arguments:
    d = np.zeros((3, 32), np.int32)
    d[0] = draw.integers(0, 9, 32)
    expected = d.copy()
    expected[0] += (2 * (2 * np.arange(32) + 1)).astype(np.int32)
    return {"d": d}, {"d": expected}


def a_line(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (1, 64)).astype(np.int32)
    return {"a": a, "out": np.zeros(64, np.int32)}, {"out": a[0]}


def a_box(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (12, 128)).astype(np.int32)
    line = np.arange(128, dtype=np.int32)
    arguments = {"a": a, "out": np.zeros(128, np.int32), "d": np.zeros((4, 32), np.int32)}
    out = a[4:8, 64:96].ravel() + line
    return arguments, {"out": out, "d": line.reshape(4, 32)}


def four_turns(draw: np.random.Generator) -> Arguments:
    out = 4 * (31 - np.arange(32, dtype=np.int32)) + 6
    return {"out": np.zeros(32, np.int32)}, {"out": out}


def folded_sums(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (7, 64)).astype(np.int32)
    total = a.sum(axis=0)
    folded = 2 * (total[:32] + total[:31:-1])[::-1]
    return {"a": a, "out": np.zeros(32, np.int32)}, {"out": folded.astype(np.int32)}


@tc.kernel
def edge_of_an_array(a: tc.Array, out: tc.Array, bug: tc.Const = ()):
    """The last box of a line of 80 words lies outside in part. A load counts whole boxes, zeroes
    with them; who expects only the words inside waits for ever."""
    tc.launch_bounds(64)
    map, stages = tc.tensor_map(a, (1, 32)), 2
    tile = tc.shared((stages, 1, 32), tc.s32, align=128)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    warp, lane = tc.warp_id(), tc.lane_id()
    if tc.threadIdx.x == 0:
        for slot in tc.static_range(stages):
            full[slot].init(1)
            empty[slot].init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if warp == 0:
        if lane == 0:
            for i in tc.range(3 * a.shape[0]):
                slot = i % stages
                empty[slot].wait(i // stages & 1 ^ 1)
                inside = min(80 - i % 3 * 32, 32) * 4
                full[slot].arrive_expect_tx(inside if bug == 1 else map.bytes)
                tc.tma_load(tile[slot], map, (i // 3, i % 3 * 32), full[slot])
    else:
        total = tc.s32(0)
        for i in tc.range(3 * a.shape[0]):
            slot = i % stages
            full[slot].wait(i // stages & 1)  # error 1
            total += tile[slot, 0, lane]
            tc.fence_proxy_async()
            tc.syncwarp()
            empty[slot].arrive(pred=lane == 0)
        out[lane] = total


def five_edges(draw: np.random.Generator) -> Arguments:
    a = draw.integers(-99, 99, (5, 80)).astype(np.int32)
    total = np.pad(a, ((0, 0), (0, 16))).reshape(15, 32).sum(axis=0)
    return {"a": a, "out": np.zeros(32, np.int32)}, {"out": total.astype(np.int32)}


CASES = [
    *numbered(RING, ring, 1, 96, sums),
    *numbered(RING_OF_THREADS, ring_of_threads, 1, 128, two_sums),
    *numbered(RING_OF_A_GROUP, ring_of_a_group, 1, 160, long_sums),
    *numbered(RING_OF_NAMED_BARRIERS, ring_of_named_barriers, 1, 96, equal_sums),
    *numbered(RING_OF_MATRICES, ring_of_matrices, 1, 96, sums_of_words),
    *numbered(BULK_STORES, bulk_stores, 1, 64, five_lines),
    *numbered(READ_BACK, read_back, 1, 64, one_line),
    *numbered(WRITTEN_THEN_LOADED, written_then_loaded, 1, 64, falling_line),
    *numbered(SUMS_IN_BULK, sums_in_bulk, 2, 64, sum_of_lines),
    *numbered(INITIALISED, initialised, 1, 64, a_line),
    *numbered(PLACES, places, 1, 128, a_box),
    *numbered(PASSED_BY, passed_by, 1, 64, four_turns),
    *numbered(("bytes of the words inside",), edge_of_an_array, 1, 64, five_edges),
    *numbered(UNUSUAL_RING, unusual_ring, 1, 96, folded_sums),
]
