"""What the sm_90a GEMM kernels share: a ring of tiles between TMA and wgmma, and the way out.

Helpers in the kernel language, inlined into each kernel. One warpgroup brings tiles, the others
multiply. `full[slot]` tells that a tile has come, `empty[slot]` that everybody has read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc

LINE = 128  # bytes of a line of a tile, and its swizzle


@dataclass(frozen=True)
class Config:
    """BM x BN: the block's tile of D; each consumer warpgroup multiplies 64 of its BM rows.

    stages: slots of the ring, each 128 bytes deep along K. cluster: blocks that share B, each
    bringing a part. group: rows of tiles that go through B's columns together, to meet in the
    L2 cache. ahead: groups of wgmma left in flight.
    """

    BM: int = 128
    BN: int = 256
    stages: int = 4
    cluster: int = 1
    group: int = 8
    ahead: int = 1

    @property
    def consumers(self) -> int:
        return self.BM // 64

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)


@dataclass(frozen=True)
class Variant:
    """What the host knows: which operands have K contiguous, and how results are finished.

    scaled, has_c: D = alpha A B + beta C. finish(value, row, col) is applied to each element
    before it is rounded to D's type; it is a function in the kernel language.
    """

    a_k_major: bool = True
    b_k_major: bool = True
    scaled: bool = False
    has_c: bool = False
    finish: Callable[..., Any] | None = None


@dataclass
class Side:
    """One operand: its map, its slots, and the boxes that fill a slot."""

    map: Any
    tile: Any
    k_major: bool
    boxes: int


@dataclass
class Ring:
    """Slots and barriers between the producer and the consumers."""

    a: Side
    b: Side
    full: Any
    empty: Any
    depth: int
    config: Config


def open_ring(a, b, config: Config, variant: Variant):
    """Tiles, maps and barriers; every thread of the cluster calls it."""
    depth = LINE // a.dtype.itemsize
    side_a = open_side(a, 0, config.BM, depth, config.stages, variant.a_k_major, 1)
    side_b = open_side(b, 1, config.BN, depth, config.stages, variant.b_k_major, config.cluster)
    full, empty = tc.mbarriers(config.stages), tc.mbarriers(config.stages)
    if tc.threadIdx.x == 0:
        for slot in tc.static_range(config.stages):
            full[slot].init(1)
            empty[slot].init(config.consumers * config.cluster)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    return Ring(side_a, side_b, full, empty, depth, config)


def open_side(array, axis: int, extent: int, depth: int, stages: int, k_major: bool, parts: int):
    """Slots for `extent` rows of A (axis 0) or columns of B (axis 1).

    K-major slots are lines of K, filled in `parts` boxes; others are blocks of K lines, a box each.
    """
    if k_major:
        tile = tc.shared((stages, extent, depth), array.dtype, swizzle=LINE)
        box = (extent // parts, depth)
    else:
        width = LINE // array.dtype.itemsize
        tile = tc.shared((stages, extent // width, depth, width), array.dtype, swizzle=LINE)
        box, parts = (width, depth), extent // width
    return Side(tc.tensor_map(array, box[:: 1 - 2 * axis], swizzle=LINE), tile, k_major, parts)


def fill(side, axis: int, slot, first, k, full, peers: int, rank):
    """Bring a tile, or this block's share of a tile that `peers` blocks need."""
    extent = side.map.box[axis]
    share = side.boxes // peers
    for i in tc.static_range(share):
        box = i if peers == 1 else rank * share + i
        if side.k_major:
            part = side.tile[slot, box * extent : box * extent + extent]
        else:
            part = side.tile[slot, box]
        where = (first + box * extent, k)
        everybody = (1 << peers) - 1 if peers > 1 else None
        tc.tma_load(part, side.map, where[:: 1 - 2 * axis], full, multicast=everybody)


def produce(ring, tiles, M, N, K):
    """Bring the tiles of all of this block's products, one after the other; one thread."""
    config, depth = ring.config, ring.depth
    slot, phase = tc.u32(0), tc.u32(1)
    rank = block_rank(config)
    for tile in tiles:
        m, n = place(tile, M, N, config)
        for k in range((K + (depth - 1)) // depth):
            ring.empty[slot].wait(phase)
            ring.full[slot].expect((config.BM + config.BN) * LINE)
            fill(ring.a, 0, slot, m, k * depth, ring.full[slot], 1, rank)
            fill(ring.b, 1, slot, n, k * depth, ring.full[slot], config.cluster, rank)
            slot, phase = following(slot, phase, config.stages)


def consume(ring, mma, consumer, tiles, M, N, K, finish_tile):
    """Multiply this warpgroup's 64 rows of each tile and hand them to `finish_tile`."""
    config = ring.config
    slot, phase, before = tc.u32(0), tc.u32(0), tc.u32(0)
    acc = mma.d.zeros()
    for tile in tiles:
        m, n = place(tile, M, N, config)
        for k in range((K + (ring.depth - 1)) // ring.depth):
            ring.full[slot].wait(phase)
            tc.wgmma_fence()
            acc = step(ring, mma, acc, consumer, slot, k != 0)
            tc.wgmma_commit()
            tc.wgmma_wait(config.ahead)
            if config.ahead == 0:
                release(ring.empty[slot], config.cluster)
            else:
                if k > 0:
                    release(ring.empty[before], config.cluster)
            before = slot
            slot, phase = following(slot, phase, config.stages)
        tc.wgmma_wait(0)
        if config.ahead > 0:
            release(ring.empty[before], config.cluster)
        finish_tile(acc, m + consumer * 64, n)


def step(ring, mma, acc, consumer, slot, accumulate):
    """acc + A B for one slot of the ring."""
    a, b = ring.a, ring.b
    if a.k_major:
        rows = blocks(a.tile, 64)[slot, consumer]
    else:
        rows = blocks(a.tile, 1)[slot, consumer]
    return tc.multiply(
        mma, acc, rows, b.tile[slot], accumulate=accumulate,
        a_major="k" if a.k_major else "mn", b_major="k" if b.k_major else "mn",
    )  # fmt: skip


def blocks(tile, extent: int):
    """The tile with its second axis cut into blocks of `extent`."""
    stages, length, *rest = tile.shape
    slot, line, *steps = tile.strides
    return tile.with_parts(
        shape=(stages, length // extent, extent, *rest), strides=(slot, line * extent, line, *steps)
    )


def release(empty, peers: int):
    """Tell every block that wrote into the slot that this warpgroup has read it."""
    thread = tc.threadIdx.x % 128
    if peers == 1:
        empty.arrive(pred=thread == 0)
    else:
        empty.remote(thread).arrive(pred=thread < peers)


def tiles_of_block(M, N, config: Config):
    """The tiles of D that fall to this block (its cluster): every gridDim-th."""
    high = config.BM * config.cluster
    count = ((M + (high - 1)) // high) * ((N + (config.BN - 1)) // config.BN)
    return tc.range(tc.blockIdx.x // config.cluster, count, tc.gridDim.x // config.cluster)


def block_rank(config: Config):
    return tc.cluster_rank() if config.cluster > 1 else 0


def place(tile, M, N, config: Config):
    """First row and column of a tile; `group` rows of tiles go column by column."""
    high = config.BM * config.cluster
    rows, cols = (M + (high - 1)) // high, (N + (config.BN - 1)) // config.BN
    span = cols * config.group
    first = tile // span * config.group
    height = min(rows - first, config.group)
    inside = tile % span
    row = (first + inside % height) * config.cluster + block_rank(config)
    return row * config.BM, inside // height * config.BN


def following(slot, phase, stages: int):
    """The next slot of the ring; the phase turns when the ring is through."""
    last = slot == stages - 1
    return tc.select(last, tc.u32(0), slot + 1), tc.select(last, phase ^ 1, phase)


# -- the way out --------------------------------------------------------------------------------


def open_exit(d, config: Config):
    """The map of D, and two buffers of 64 lines for each consumer; a line is at most 128 bytes."""
    width = min(LINE // d.dtype.itemsize, config.BN)
    line = width * d.dtype.itemsize
    tile = tc.shared((config.consumers, 2, 64, width), d.dtype, swizzle=line)
    return tc.tensor_map(d, (64, width), swizzle=line), tile


def store(acc, consumer, exit_map, buffers, m, n, finish, config: Config):
    """Send 64 rows of results through the buffers, one line's width at a time."""
    thread = tc.threadIdx.x % 128
    width = buffers.shape[-1]
    elements = acc.elements()
    for part in tc.static_range(config.BN // width):
        buffer = buffers[consumer, part % 2]
        if thread == 0:
            tc.tma_wait(1, reading=True)
        tc.barrier(consumer + 1, 128)
        for first in tc.static_range(part * width // 2, (part + 1) * width // 2, 8):
            places = [acc.coordinates(first + i) for i in range(8)]
            values = [
                finish(elements[first + i], m + row, n + col) for i, (row, col) in enumerate(places)
            ]
            write(buffer, values, first % (width // 2) // 4 * 8)
        tc.fence_async()
        tc.barrier(consumer + 1, 128)
        if thread == 0:
            tc.tma_store(exit_map, (m, n + part * width), buffer)
            tc.tma_commit()


def finisher(c, alpha, beta, variant: Variant):
    """alpha v + beta C, then the caller's own function, of one element."""

    def finish(value, row, col):
        if variant.scaled:
            value = value * alpha
        if variant.has_c:
            inside = (row < c.shape[0]) & (col < c.shape[1])
            value = tc.fma(beta, c.at(row, col).load(pred=inside).to(value.dtype), value)
        return value if variant.finish is None else variant.finish(value, row, col)

    return finish


def write(buffer, values, column: int):
    """Eight values of a thread: 16 columns of a warp's 16 rows."""
    lane = tc.lane_id()
    line = tc.warp_id() % 4 * 16
    if buffer.dtype.bits == 16:  # four 8x8 matrices an stmatrix
        words = [narrow(values[i], values[i + 1], buffer.dtype) for i in range(0, 8, 2)]
        corner = buffer.at(line + lane % 16, column + lane // 16 * 8)
        tc.emit("stmatrix.sync.aligned.m8n8.x4.shared.b16", corner.address, words)
    else:
        for i in tc.static_range(0, 8, 2):
            row, col = line + lane // 4 + 8 * (i // 2 % 2), column + 8 * (i // 4) + 2 * (lane % 4)
            buffer.at(row, col).store([v.to(buffer.dtype) for v in values[i : i + 2]])


def narrow(low, high, dtype):
    """Two f32 as a pair of 16-bit floats."""
    return tc.emit(f"cvt.rn.{dtype}x2.f32", high, low)


# -- all of it ----------------------------------------------------------------------------------


def multiply(mma, a, b, c, d, alpha, beta, config: Config, variant: Variant):
    """The whole kernel, but for the instruction that it multiplies with."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster)
    exit_map, buffers = open_exit(d, config)
    ring = open_ring(a, b, config, variant)
    (M, K), N = a.shape, b.shape[1]
    tiles = tiles_of_block(M, N, config)
    role = tc.warpgroup_id()
    if role == 0:
        if tc.threadIdx.x == 0:
            produce(ring, tiles, M, N, K)
    else:
        consumer = role - 1
        finish = finisher(c, alpha, beta, variant)

        def finish_tile(acc, m, n):
            store(acc, consumer, exit_map, buffers, m, n, finish, config)

        consume(ring, mma, consumer, tiles, M, N, K, finish_tile)
        tc.tma_wait(0)
    tc.cluster_sync()
