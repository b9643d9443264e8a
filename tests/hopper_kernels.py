"""Kernels that move data as Hopper does, for the emulator's tests and for a GPU."""

from __future__ import annotations

import tensorcore_dsl as tc

LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
REDUCE = "cp.reduce.async.bulk.tensor.{}d.global.shared::cta.{}.tile.bulk_group"
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"
OWN_LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes{}"
OWN_BOX = "cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes{}"


@tc.kernel
def first_box(x, y):
    """y's first 8 rows become x's, by TMA both ways."""
    tile = tc.shared((8, 64), x.dtype)
    source, target = tc.tensor_map(x, (8, 64)), tc.tensor_map(y, (8, 64))
    full = tc.mbarriers(1)
    if tc.threadIdx.x == 0:
        full[0].init(1)
        tc.fence_mbarrier_init()
        full[0].arrive_expect_tx(8 * 64 * 4)
        tc.tma_load(tile, source, (0, 0), full[0])
        full[0].wait(0)
        tc.tma_store(target, (0, 0), tile)
        tc.tma_store_commit()
        tc.tma_store_wait(0)


@tc.kernel
def load_box(source, image, corner, box: tc.Const = (), swizzle: tc.Const = 0, nan_fill: tc.Const = False):
    """The bytes of shared memory after a tensor load of `box` at `corner` (its own order)."""
    tc.launch_bounds(128)
    size = image.shape[0]
    map = tc.tensor_map(source, box, swizzle=swizzle, nan_fill=nan_fill)
    tile = tc.shared(space(reach(map)), tc.u32, align=1024)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    for i in tc.range(t, size, 128):
        tile[i] = 0xEEEEEEEE
    tc.fence_proxy_async()
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(map.bytes)
        where = map.coordinates([corner[i] for i in range(len(box))])
        tc.emit(LOAD.format(len(box)), tile.address, map.address, *where, bar.address)
    bar.wait(0)
    for i in tc.range(t, size, 128):
        image[i] = tile[i]


def reach(map) -> int:
    """Bytes of shared memory that a box takes: with a swizzle, its rows lie a span apart."""
    row = map.box[map.axes[0]] * map.dtype.itemsize
    return map.bytes // row * (map.swizzle or row)


def space(size: int) -> int:
    """32-bit words, as many as a swizzle spreads so many bytes over."""
    return -(-size // 1024) * 256


@tc.kernel
def store_box(image, target, corner, box: tc.Const = (), swizzle: tc.Const = 0, reduce: tc.Const = ""):
    """Store `image`, the bytes of shared memory, to (or combine it with) a box of `target`."""
    tc.launch_bounds(128)
    map = tc.tensor_map(target, box, swizzle=swizzle)
    tile = tc.shared(space(reach(map)), tc.u32, align=1024)
    t = tc.threadIdx.x
    for i in tc.range(t, image.shape[0], 128):
        tile[i] = image[i]
    tc.fence_proxy_async()
    tc.barrier()
    if t == 0:
        where = map.coordinates([corner[i] for i in range(len(box))])
        name = REDUCE.format(len(box), reduce) if reduce else STORE.format(len(box))
        tc.emit(name, map.address, *where, tile.address)
        tc.tma_store_commit()
        tc.tma_store_wait(0)


@tc.kernel
def bulk_copy(source, target, reduce: tc.Const = ""):
    """Copy (or combine) an array of 32-bit words by way of shared memory, without a tensor map."""
    tc.launch_bounds(32)
    size = 512 * source.dtype.itemsize
    tile = tc.shared(512, source.dtype, align=128)
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(size)
        at = tc.blockIdx.x * 512
        tc.emit(BULK_LOAD, tile.address, source.at(at).address, size, bar.address)
        bar.wait(0)
        name = BULK_STORE
        if reduce:
            name = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{reduce}"
        tc.emit(name, target.at(at).address, tile.address, size)
        tc.tma_store_commit()
        tc.tma_store_wait(0, read=True)


@tc.kernel
def share(source, images, mask: tc.Const = 15, peers: tc.Const = 4):
    """CTA 1 of each cluster loads a line of `source` into the CTAs of `mask`; all write it out."""
    tc.launch_bounds(64)
    tc.cluster_size(peers)
    map = tc.tensor_map(source, (1, 64))
    tile = tc.shared((1, 64), tc.u32, align=128)
    bar = tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(256, pred=(mask >> rank) & 1 == 1)
    tc.cluster_sync()
    if (rank == 1) & (t == 0):
        tc.tma_load(tile, map, (tc.blockIdx.x // peers, 0), bar, multicast=mask)
    if (mask >> rank) & 1 == 1:
        bar.wait(0)
        images[tc.blockIdx.x, t] = tile[0, t]
    tc.cluster_sync()


@tc.kernel
def count_down(out, peers: tc.Const = 2):
    """CTAs hand a turn around: each waits for the one before it, by a remote arrival."""
    tc.launch_bounds(32)
    tc.cluster_size(peers)
    bar = tc.mbarriers(1)[0]
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        bar.init(32)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    following = (rank + 1) % peers
    for turn in range(3):
        if (rank > 0) | (turn > 0):
            bar.wait((turn - tc.select(rank > 0, 0, 1)) & 1)
        out[tc.blockIdx.x, turn] = rank + 10 * turn
        bar.remote(following).arrive()
    tc.cluster_sync()


@tc.kernel
def ranks(out):
    """The special registers of clusters."""
    names = ["ctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"]
    values = [tc.special(f"{name}.{axis}") for name in names for axis in "xyz"]
    values += [tc.special("cluster_ctarank"), tc.special("cluster_nctarank")]
    x, y, z = tc.blockIdx.x, tc.blockIdx.y, tc.blockIdx.z
    line = (z * tc.gridDim.y + y) * tc.gridDim.x + x
    if tc.threadIdx.x == 0:
        for i in tc.static_range(len(values)):
            out[line, i] = values[i]


@tc.kernel
def by_roles(x, out, consumers: tc.Const = 2, registers: tc.Const = (40, 232), slots: tc.Const = 2):
    """One warpgroup brings lines of 128 words by way of shared memory, the others add them up."""
    tc.launch_bounds(128 * (1 + consumers), 1)
    tile = tc.shared((slots, 128), tc.s32)
    full, empty = tc.mbarriers(slots), tc.mbarriers(slots)
    t = tc.threadIdx.x
    if t == 0:
        for slot in range(slots):
            full[slot].init(128)
            empty[slot].init(128 * consumers)
    tc.barrier()

    def bring():
        for line in range(x.shape[0]):
            slot = line % slots
            empty[slot].wait(line // slots & 1 ^ 1)
            tile[slot, t] = x[line, t]
            full[slot].arrive()

    def add_up(number):
        total = tc.s32(0)
        for line in range(x.shape[0]):
            slot = line % slots
            full[slot].wait(line // slots & 1)
            total += tile[slot, t % 128] * (number + 1)
            empty[slot].arrive()
        out[number, t % 128] = total

    tc.warp_specialize((1, bring), (consumers, add_up), registers=registers)


@tc.kernel
def own_load(x, out, hint: tc.Const = "", mistake: tc.Const = ""):
    """Bytes and a box of x to shared memory, by the text for the thread's own CTA."""
    tc.cluster_size(2)
    tile, box = tc.shared(32, x.dtype, align=128), tc.shared(32, x.dtype, align=128)
    bar, t, boxes = tc.mbarriers(1)[0], tc.threadIdx.x, tc.tensor_map(x, (32,))
    policy = [tc.emit("createpolicy.fractional.L2::evict_first.b64")] if hint else []
    tc.emit(f"cp.async.bulk.prefetch.L2.global{hint}", x.at(0), 128, *policy)
    tc.emit(f"cp.async.bulk.prefetch.tensor.1d.L2.global.tile{hint}", boxes.address, 0, *policy)
    tc.emit("applypriority.global.L2::evict_normal", x.at(0), 128)
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(256)
    tc.cluster_sync()
    if t == 0:
        place = tile if mistake != "bytes" else tile.remote(1)
        tc.emit(OWN_LOAD.format(hint), place.address, x.at(0), 128, bar.address, *policy)
        place = box if mistake != "box" else box.remote(1)
        where = boxes.coordinates([32])
        tc.emit(OWN_BOX.format(hint), place.address, boxes.address, *where, bar.address, *policy)
    bar.wait(0)
    out[tc.blockIdx.x, t] = tile[t] + box[t]
    tc.cluster_sync()
