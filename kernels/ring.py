"""What the sm_90a GEMM kernels share: a ring of tiles between TMA and wgmma.

Helpers in the kernel language, inlined into each kernel. One warpgroup brings tiles, the others
multiply. `full[slot]` tells that a tile has come, `empty[slot]` that everybody has read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from kernels.results import finisher, open_way_out, store
from kernels.tiles import Tiles

LINE = 128  # bytes of a line of a tile, and its swizzle
SHARED = 227 * 1024  # bytes of shared memory that a block may have


@dataclass(frozen=True)
class Config:
    """BM x BN: the block's tile of D.

    Consumer warpgroups share a tile, 64 rows each; or each takes whole tiles, in turn with the
    other (pingpong), and stores one while the other multiplies. stages: slots of the ring, each
    `lines` times 128 bytes deep along K. cluster: blocks below each other that share B, across:
    blocks beside each other that share A, each bringing a part. split: blocks of a cluster that
    share a tile, each summing a part of K. group: rows of tiles that go through B's columns
    together, to meet in the L2 cache. ahead: groups of wgmma left in flight, 0 or 1. rows: of A,
    where they are so few that reading B is the work: no others come.
    workers: blocks (or clusters) among which tiles that fill no wave are divided along K; see
    kernels/sm90_stream_gemm.py. 0: a tile is not divided so.
    """

    BM: int = 128
    BN: int = 256
    stages: int = 4
    lines: int = 1
    cluster: int = 1
    across: int = 1
    group: int = 8
    ahead: int = 1
    pingpong: bool = False
    split: int = 1
    rows: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if self.BM < 64 or self.BM % 64 or self.BN > 256 or self.BN // self.split < 16:
            raise tc.ArgumentError(f"tiles have 64, 128, ... rows and 16 to 256 columns: {self}")
        if self.BN % (16 * self.split):
            raise tc.ArgumentError(f"results leave in multiples of 16 columns: {self}")
        if self.cluster * self.across > 1 and self.split > 1:
            raise tc.ArgumentError(f"a cluster shares A and B or a tile, not both: {self}")
        if self.ahead not in (0, 1):
            raise tc.ArgumentError(f"a slot is released when one more is read, or none: {self}")
        if self.stages and self.stages <= self.ahead:
            raise tc.ArgumentError(f"the ring needs more slots than are read at a time: {self}")
        if self.rows > self.BM:
            raise tc.ArgumentError(f"a tile has no room for so many rows: {self}")
        if self.pingpong and self.split > 1:
            raise tc.ArgumentError(f"tiles that are split are not taken in turn: {self}")
        if self.workers and (self.pingpong or self.split > 1 or self.rows):
            raise tc.ArgumentError(
                f"what workers divide is neither split, nor taken in turn, nor of few rows: {self}"
            )

    @property
    def consumers(self) -> int:
        return 2 if self.pingpong else self.BM // 64

    @property
    def height(self) -> int:
        """Rows that a consumer multiplies."""
        return self.BM if self.pingpong else 64

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.cluster * self.across * self.split

    @property
    def peers(self) -> int:
        """Blocks that a block brings something to, or that bring something to it; itself too."""
        return self.cluster + self.across - 1

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    @property
    def way_out(self) -> int:
        """Bytes of shared memory that results leave through; see kernels/results.py."""
        partial = self.BM * self.BN * 4 if self.split > 1 else 0
        return self.consumers * 2 * 64 * LINE + partial

    @property
    def room(self) -> int:
        """Slots that shared memory has room for."""
        return (SHARED - self.way_out - 1024) // ((self.BM + self.BN) * LINE * self.lines)

    def with_stages(self, most: int = 12) -> Config:
        """With as many slots as shared memory has room for."""
        return replace(self, stages=min(most, self.room))


@dataclass(frozen=True)
class Variant:
    """What the host knows: which operands have K contiguous, and how results are finished.

    d_by_threads: TMA cannot write D's lines. scaled, has_c: D = alpha A B + beta C, with C read in
    pairs of columns, and as one row for all. sums: their type, where it is not the usual one.
    finish(value, row, col) is applied to each element before it is rounded to D's type; it is a
    function in the kernel language.
    """

    a_k_major: bool = True
    b_k_major: bool = True
    d_by_threads: bool = False
    scaled: bool = False
    has_c: bool = False
    c_in_pairs: bool = False
    c_is_row: bool = False
    sums: Any = None
    finish: Callable[..., Any] | None = None


@dataclass
class Sharers:
    """The blocks of a cluster that need the same tile: how many, which of them this is, and all
    of them as bits."""

    count: int
    place: Any
    mask: Any


@dataclass
class Side:
    """One operand: its map, its slots, the boxes that fill a slot, and who brings them."""

    map: Any
    tile: Any
    k_major: bool
    boxes: int
    sharers: Sharers


@dataclass
class Ring:
    """Slots and barriers between the producer and the consumers.

    turn: whose tile it is, of two consumers that take tiles in turn. first, last: the steps of K
    that this block sums; `depth` elements each.
    """

    a: Side
    b: Side
    full: Any
    empty: Any
    turn: Any
    depth: int
    first: Any
    last: Any
    config: Config


def open_ring(a, b, config: Config, variant: Variant, helpers: int = 0):
    """Tiles, maps and barriers; every thread of the cluster calls it.

    helpers: warps that fill slots too; consumers' warps then release them one by one.
    """
    depth = LINE // a.dtype.itemsize
    side_a = open_side(a, 0, config.BM, depth, variant.a_k_major, config, config.rows)
    side_b = open_side(b, 1, config.BN, depth, variant.b_k_major, config)
    if 0 < config.rows < config.BM:
        clear(side_a.tile, config)
    full, empty, turn = open_barriers((side_a.map, side_b.map), config, helpers)
    first, last = steps_of_block(a.shape[-1], depth * config.lines, config)
    return Ring(side_a, side_b, full, empty, turn, depth * config.lines, first, last, config)


def open_barriers(maps, config: Config, helpers: int = 0):
    """`full` and `empty`, one a slot, and `turn`, ready for the cluster; the maps on their way."""
    full, empty, turn = (tc.mbarriers(count) for count in (config.stages, config.stages, 2))
    if tc.threadIdx.x == 0:
        for map in maps:
            map.prefetch()
        readers = 1 if config.pingpong else config.consumers * (4 if helpers else 1)
        for slot in tc.static_range(config.stages):
            full[slot].init(1 + helpers)
            empty[slot].init(readers * config.peers)
        for consumer in tc.static_range(2):
            turn[consumer].init(1)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    return full, empty, turn


def open_side(
    array, axis: int, extent: int, depth: int, k_major: bool, config, rows: int = 0, tile=None
):
    """Slots for `extent` rows of A (axis 0) or columns of B (axis 1), `rows` of them brought.

    K-major slots are lines of K, filled in a box by each sharer; others are blocks of K lines, a
    box each. tile: the slots, where they are a part of others.
    """
    stages, sharers = config.stages * config.lines, sharers_of(axis, config)
    parts, unit = sharers.count, 8 if k_major else LINE // array.dtype.itemsize
    check_shares(axis, rows or extent, unit, parts, config)
    if k_major:
        line = depth * array.dtype.itemsize
        if tile is None:
            tile = tc.shared((stages, extent, depth), array.dtype, swizzle=line)
        box = ((rows or extent) // parts, depth)
    else:
        line, width = LINE, LINE // array.dtype.itemsize
        tile = tc.shared((stages, extent // width, depth, width), array.dtype, swizzle=line)
        box, parts = (width, depth), extent // width
    whole = (1,) * (array.ndim - 2) + box[:: 1 - 2 * axis]
    return Side(tc.tensor_map(array, whole, swizzle=line), tile, k_major, parts, sharers)


def check_shares(axis: int, lines: int, unit: int, sharers: int, config: Config):
    """Blocks that share a tile bring whole units of it."""
    if lines % (unit * sharers) and (sharers > 1 or unit > 8):
        what = "columns of B" if axis else "rows of A"
        raise tc.ArgumentError(
            f"{lines} {what} are no multiple of {unit * sharers}, {unit} for each block that "
            f"brings some: {config}"
        )


def sharers_of(axis: int, config: Config):
    """The blocks of the cluster that need the same rows of A (axis 0), or columns of B (1)."""
    count = (config.across, config.cluster)[axis]
    if count == 1:
        return Sharers(1, 0, None)
    row, col = tc.cluster_rank() % config.cluster, tc.cluster_rank() // config.cluster
    if axis == 1:
        return Sharers(count, row, tc.u32((1 << count) - 1) << col * config.cluster)
    return Sharers(count, col, tc.u32(sum(1 << config.cluster * i for i in range(count))) << row)


def clear(tile, config: Config):
    """Zeros in the lines that no copy reaches."""
    stages, lines, depth = tile.shape
    each = 16 // tile.dtype.itemsize
    chunks = (lines - config.rows) * (depth // each)
    for slot in tc.static_range(stages):
        for chunk in tc.range(tc.threadIdx.x, chunks, config.threads):
            line = config.rows + chunk // (depth // each)
            words = tile.at(slot, line, chunk % (depth // each) * each).as_type(tc.b32)
            words.store([0, 0, 0, 0])
    tc.fence_async()


def steps_of_block(K, depth: int, config: Config):
    """First and past-the-last step of K that this block sums."""
    steps = (K + (depth - 1)) // depth
    if config.split == 1:
        return 0, steps
    rank = tc.cluster_rank()
    return rank * steps // config.split, (rank + 1) * steps // config.split


def fill(side, axis: int, slot, batch, first, k, full):
    """Bring a tile, or this block's share of a tile that others need too."""
    batch = batch[: len(side.map.box) - 2]  # one matrix for all of a batch has no such index
    box_lines, sharers = side.map.box[len(batch) + axis], side.sharers
    share = side.boxes // sharers.count
    for i in tc.static_range(share):
        box = sharers.place * share + i
        if side.k_major:
            part = side.tile[slot, box * box_lines : box * box_lines + box_lines]
        else:
            part = side.tile[slot, box]
        where = (first + box * box_lines, k)
        index = (*batch, *where[:: 1 - 2 * axis])
        tc.tma_load(part, side.map, index, full, multicast=sharers.mask)


def bring(ring, place, slot, k, full):
    """Order a slot's parts of A and B, from depth k on."""
    config = ring.config
    full.expect(((config.rows or config.BM) + config.BN) * LINE * config.lines)
    for i in tc.static_range(config.lines):
        line, at = slot * config.lines + i, k + i * (ring.depth // config.lines)
        fill(ring.a, 0, line, place.of_a, place.m, at, full)
        fill(ring.b, 1, line, place.of_b, place.n, at, full)


def produce(ring, tiles, bring=bring):
    """Bring the tiles of all of this block's products, one after the other; one thread."""
    slot, phase = tc.u32(0), tc.u32(1)
    for number in tiles.numbers():
        slot, phase = bring_steps(ring, tiles.place(number), slot, phase, bring)


def bring_steps(ring, place, slot, phase, bring=bring):
    """Bring all steps of K of a tile; the next slot and its phase."""
    for step in tc.range(ring.first, ring.last):
        ring.empty[slot].wait(phase)
        bring(ring, place, slot, step * ring.depth, ring.full[slot])
        slot, phase = following(slot, phase, ring.config.stages)
    return slot, phase


def multiply_slot(ring, mma, sums, upper, slot, accumulate):
    """Start sums + A B for one slot, each of 64 rows, block `upper` and those below it."""
    a, b, lines = ring.a, ring.b, ring.config.lines
    rows = blocks(a.tile, 64 if a.k_major else 1)
    tc.wgmma_fence()
    for i in tc.static_range(len(sums)):
        for j in tc.static_range(lines):
            line = slot * lines + j
            sums[i] = tc.multiply(
                mma, sums[i], rows[line, upper + i], b.tile[line],
                accumulate=accumulate if j == 0 else True,
                a_major="k" if a.k_major else "mn", b_major="k" if b.k_major else "mn",
            )  # fmt: skip


def consume(ring, mma, consumer, tiles, finish_tile, multiply_slot=multiply_slot):
    """Multiply this warpgroup's rows of its tiles; hand each 64 of them to `finish_tile`.

    Of consumers that take tiles in turn, one starts when the other's loop over K has ended: a
    barrier tells only whether its last phase is over, not how many are, so nobody may wait for
    slots that are a turn of the ring ahead.
    """
    config, steps = ring.config, ring.last - ring.first
    sums = [mma.d.zeros() for _ in range(config.height // 64)]
    slot, phase, first, turn = tc.u32(0), tc.u32(0), consumer, tc.u32(0)
    if config.pingpong:
        slot, phase = skip(slot, phase, consumer * steps, config.stages)
        first, turn = 0, tc.u32(1 - consumer)
    for number in tiles.numbers(consumer if config.pingpong else None):
        place = tiles.place(number)
        if config.pingpong:
            ring.turn[consumer].wait(turn)
        slot, phase, last = sum_slots(ring, mma, sums, first, slot, phase, multiply_slot)
        if config.pingpong:
            ring.turn[1 - consumer].arrive(pred=tc.threadIdx.x % 128 == 0)
        tc.wgmma_wait(0)
        if config.ahead > 0:
            release(ring.empty[last], config)
        for i in tc.static_range(len(sums)):
            finish_tile(sums[i], place, (first + i) * 64)
        if config.pingpong:
            slot, phase = skip(slot, phase, steps, config.stages)
            turn = turn ^ 1


def sum_slots(ring, mma, sums, first, slot, phase, multiply_slot):
    """Add up all steps of K, 64 rows in each sum from block `first` on, `ahead` left in flight.

    The next slot and its phase, and the last slot that was read.
    """
    config, before = ring.config, slot
    for step in tc.range(ring.first, ring.last):
        ring.full[slot].wait(phase)
        multiply_slot(ring, mma, sums, first, slot, step != ring.first)
        tc.wgmma_commit()
        tc.wgmma_wait(config.ahead)
        if config.ahead == 0:
            release(ring.empty[slot], config)
        else:
            if step > ring.first:
                release(ring.empty[before], config)
        before = slot
        slot, phase = following(slot, phase, config.stages)
    return slot, phase, before


def blocks(tile, extent: int):
    """The tile with its second axis cut into blocks of `extent`."""
    stages, length, *rest = tile.shape
    slot, line, *steps = tile.strides
    return tile.with_parts(
        shape=(stages, length // extent, extent, *rest), strides=(slot, line * extent, line, *steps)
    )


def release(empty, config: Config):
    """Tell every block that wrote into the slot that this warpgroup has read it."""
    thread = tc.threadIdx.x % 128
    if config.peers == 1:
        empty.arrive(pred=thread == 0)
    else:
        empty.remote(peer(thread, config)).arrive(pred=thread < config.peers)


def peer(number, config: Config):
    """The rank of a block in this one's column of the cluster, or after these in its row."""
    if config.across == 1:
        return number
    row, col = tc.cluster_rank() % config.cluster, tc.cluster_rank() // config.cluster
    beside = number - config.cluster
    beside = beside + (beside >= col).to(tc.s32)
    above = number < config.cluster
    return tc.select(above, number + col * config.cluster, row + beside * config.cluster)


def following(slot, phase, stages: int):
    """The next slot of the ring; the phase turns when the ring is through."""
    last = slot == stages - 1
    return tc.select(last, tc.u32(0), slot + 1), tc.select(last, phase ^ 1, phase)


def skip(slot, phase, steps, stages: int):
    """The slot and phase `steps` further on."""
    place = slot + tc.u32(steps)
    return place % stages, phase ^ (place // stages & 1)


def multiply(mma, a, b, c, d, alpha, beta, config: Config, variant: Variant):
    """The whole kernel, but for the instruction that it multiplies with."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.blocks)
    way_out = open_way_out(d, mma.d.dtype, config, variant.d_by_threads)
    ring = open_ring(a, b, config, variant)
    finish = finisher(c, alpha, beta, variant)
    share_work(ring, mma, Tiles(d.shape, config), way_out, finish)


def share_work(
    ring, mma, tiles, way_out, finish, produce=produce, consume=consume, store=store, registers=(),
    help=None,
):  # fmt: skip
    """One warpgroup produces; the others consume, and send out what they have summed.

    registers: what a thread of the producer keeps, and what one of a consumer has then. help(ring,
    tiles) is what the producer's second warp does.
    """
    config = ring.config
    tc.grid_wait()  # what comes before may overlap with the kernel ahead in the stream
    tc.grid_launch_dependents()

    def bring_tiles():
        if tc.threadIdx.x == 0:
            produce(ring, tiles)
        if help is not None and tc.warp_id() == 1:
            help(ring, tiles)
        if config.split > 1:
            tc.cluster_sync()

    def multiply_tiles(consumer):
        def finish_tile(acc, place, row):
            store(acc, consumer, way_out, place, row, finish, config)

        consume(ring, mma, consumer, tiles, finish_tile)
        tc.tma_wait(0, reading=True)

    tc.specialize((1, bring_tiles), (config.consumers, multiply_tiles), registers=registers or None)
    tc.cluster_sync()
