"""GEMMs on several GPUs that overlap with NVLink: all-gather of A, reduce-scatter or all-reduce of D.

Each rank runs one persistent kernel of wgmma_gemm.py, in which the ranks exchange rows of tiles:

    all_gather_gemm       A thread next to the TMA producer pushes the rank's rows of A to the other
                          ranks, and counts them there. Tiles start with the rank's own rows, then
                          come those of its right neighbour, and so on: the order of arrival.
    gemm_reduce_scatter   Tiles of another rank's rows go into a slot of its inbox, and are counted
                          there. A rank computes its own rows last, and adds the slots of the others
                          in the order of the ring, which no timing changes.
    gemm_all_reduce       The sums go to all ranks.

Counters only grow, so that no launch resets them. `state` holds the number of launches so far. A
rank writes to a peer when the peer has started the same launch: its earlier launches, which may
read the memory, have then ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.cluster import multicast_of
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, WARPGROUP, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import (
    Epilogue,
    consumer_barrier,
    make_tma_epilogue,
    slice_columns,
    store_elements,
    swizzle_of,
)
from tensorcore_dsl.kernels.hopper.epilogue_op import make_epilogue_op
from tensorcore_dsl.kernels.hopper.operand_layouts import make_tiles
from tensorcore_dsl.kernels.hopper.pipeline import OperandTiles, make_pipeline
from tensorcore_dsl.kernels.hopper.tile_scheduler import TileScheduler, WorkTile, make_tile_scheduler
from tensorcore_dsl.kernels.hopper.wgmma_gemm import (
    GemmParts,
    launch,
    load_k_tiles,
    load_stage,
    run_warpgroups,
    select_wgmma,
)
from tensorcore_dsl.kernels.hopper.wgmma_gemm import consume as consume_tiles

PUSHED_ROWS, PUSHED_COLUMNS = 16, 256  # box in which rows of A go to a peer: 8 KB of 16-bit elements
BLOCK = 64  # rows of D for each counter


@dataclass
class Exchange:
    """Counters that a launch shares with its peers.

    Attributes
    ----------
    pads : PeerArray
        Counters of each rank: `world` for the starts of the ranks, one for finished rows, then those
        of tiles.
    state : array
        Launches so far, and CTAs of this launch that have ended.
    rows : s32
        Rows of a rank.
    """

    pads: Any
    state: Any
    rows: Any

    def __post_init__(self):
        self.rank, self.world = self.pads.rank, self.pads.world
        self.epoch = self.state[0] + 1
        self.finished, self.tiles = self.world, self.world + 1

    def start(self):
        """Tell all ranks that this launch has started."""
        if (tc.blockIdx.x == 0) & (tc.threadIdx.x < self.world):
            tc.signal(self.pads[tc.threadIdx.x].at(self.rank))

    def wait_for_start(self, peer):
        """Wait until a peer has started this launch."""
        tc.wait_signal(self.pads[self.rank].at(peer), self.epoch)

    def neighbour(self, hops):
        """Rank that is `hops` places to the right in the ring."""
        return (self.rank + hops) % self.world

    def end(self):
        """Count this CTA as ended; the last CTA counts the launch. All threads of the CTA have met before."""
        if tc.threadIdx.x == 0:
            before = tc.atomic("add", self.state.at(1), 1, order="acq_rel")
            if before == tc.gridDim.x - 1:
                self.state[1] = 0
                self.state[0] = self.epoch


class RingScheduler(TileScheduler):
    """Scheduler over the rows of one rank after the other, from rank `first` on.

    The rows of a rank are a matrix of their own: a group of rows that advance together never has rows of
    two ranks. Else a rank's own tiles would come among the first ones, and wait for those of its peers.
    """

    first: Any = 0

    def tile_at(self, index):
        tile = TileScheduler.tile_at(self, index)
        (world, rows, _), (hops,) = self.shape, tile.batch_d
        return WorkTile((self.first + hops) % world * rows + tile.m, tile.n)


def ring_scheduler(shape, config: HopperConfig, exchange: Exchange, hops: int):
    """The scheduler over an M x N result, from the rows of the rank `hops` places to the right on."""
    matrices = exchange.world, exchange.rows, shape[1]
    scheduler = RingScheduler(**vars(make_tile_scheduler(matrices, config)))
    scheduler.first = exchange.neighbour(hops)
    return scheduler


def row_tiles(array, config: HopperConfig, smem=None):
    """Make the tiles of A, [batch,] M x K, one box for each. Rows are a multiple of the tile's."""
    depth = SWIZZLE_BYTES // array.dtype.itemsize
    if smem is None:
        shape = config.stages * config.k_slabs, config.BM, depth
        smem = tc.shared(shape, array.dtype, swizzle=SWIZZLE_BYTES)
    map = tc.tensor_map(array, (config.BM, depth), swizzle=SWIZZLE_BYTES)
    return OperandTiles(map, smem, 1, multicast_of(0, config), 0, array.shape[0])


def column_tiles(array, config: HopperConfig, traits: HopperTraits):
    """Make the tiles of W, K x N, contiguous along either axis."""
    depth = SWIZZLE_BYTES // array.dtype.itemsize
    return make_tiles(array, 1, traits.b_k_major, 1, config.BN, depth, config)


# -- all-gather -------------------------------------------------------------------------------


@tc.kernel
def all_gather_gemm(
    x: tc.Array,
    w: tc.Array,
    d: tc.Array,
    gathered: tc.PeerArray,
    mine: tc.Array,
    pads: tc.PeerArray,
    state: tc.Array,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """D = (rows of all ranks) W; x: the rank's rows, M / world x K; `mine` is `gathered` of this rank."""
    launch(config)
    exchange = Exchange(pads, state, x.shape[0])
    exchange.start()
    mma = select_wgmma(x.dtype, w.dtype, config.BN)
    epilogue = make_tma_epilogue(d, config, traits, 1)
    push = make_push(x, gathered, exchange, config)
    local_tiles = row_tiles(x, config)
    columns = column_tiles(w, config, traits)
    pipeline = make_pipeline(row_tiles(mine, config, local_tiles.smem), columns, x.shape[1], config)
    scheduler = ring_scheduler(d.shape, config, exchange, 0)
    run_warpgroups(
        pipeline,
        mma,
        scheduler,
        epilogue,
        make_epilogue_op(traits),
        GemmParts(
            produce=partial(produce_gathered, local_tiles=local_tiles, exchange=exchange),
            extra_producer=push,
            registers=config.registers,
        ),
    )
    exchange.end()


def pushed_pieces(K):
    """Number of boxes along K that cover a row."""
    return (K + (PUSHED_COLUMNS - 1)) // PUSHED_COLUMNS


def produce_gathered(pipeline, scheduler, local_tiles, exchange):
    """Load the tiles of all of this CTA's work: the rank's rows at once, others when they have arrived."""
    state, config = pipeline.producer_state(), pipeline.config
    pieces = config.BM // PUSHED_ROWS * pushed_pieces(local_tiles.map.array.shape[1])
    first = exchange.rank * exchange.rows
    for index in scheduler.tile_indices():
        tile = scheduler.tile_at(index)
        if (tile.m >= first) & (tile.m < first + exchange.rows):
            load_k_tiles(replace(pipeline, a=local_tiles), replace(tile, m=tile.m - first), state, load_stage)
        else:
            counter = exchange.pads[exchange.rank].at(exchange.tiles + tile.m // config.BM)
            tc.wait_signal(counter, exchange.epoch * pieces)
            tc.fence_proxy_async("global")  # TMA has written the rows, and reads them
            load_k_tiles(pipeline, tile, state, load_stage)


@dataclass
class Push:
    """Pushes this CTA's share of the rank's rows to the other ranks; one thread of the producer runs it.

    The left neighbour gets all rows first, since it needs them first. Two buffers take turns: while
    one piece goes to the peer, the next one is loaded. A piece is counted when it is complete.

    Attributes
    ----------
    gathered : PeerArray
        The targets.
    exchange : Exchange
        Ranks and counters.
    source : tensor map
        Boxes of the rank's rows.
    buffers, full : tile, mbarriers
        Buffers of two pieces, and the mbarriers that count their bytes.
    along : s32
        Pieces along K.
    BM : int
        Rows for each counter.
    """

    gathered: Any
    exchange: Exchange
    source: Any
    buffers: Any
    full: Any
    along: Any
    BM: int

    def locate(self, piece):
        """Row and column of a piece in the rank's rows, and the hops to the left to its target."""
        row = piece % self.pieces_per_peer // self.along * PUSHED_ROWS
        return row, piece % self.along * PUSHED_COLUMNS, piece // self.pieces_per_peer + 1

    @property
    def pieces_per_peer(self):
        """Pieces that each peer gets."""
        return self.exchange.rows // PUSHED_ROWS * self.along

    def target(self, piece):
        """The rank that gets a piece, and the piece's first row in the rows of all ranks."""
        row, _, hops = self.locate(piece)
        exchange = self.exchange
        return exchange.neighbour(exchange.world - hops), exchange.rank * exchange.rows + row

    def load(self, piece, buffer):
        row, column, _ = self.locate(piece)
        self.full[buffer].arrive_expect_tx(self.source.bytes)
        tc.tma_load(self.buffers[buffer], self.source, (row, column), self.full[buffer])

    def store(self, piece, buffer):
        peer, row = self.target(piece)
        boxes = tc.tensor_map(self.gathered[peer], self.source.box)
        tc.tma_store(boxes, (row, self.locate(piece)[1]), self.buffers[buffer])
        tc.tma_store_commit()

    def count(self, piece):
        peer, row = self.target(piece)
        tc.signal(self.exchange.pads[peer].at(self.exchange.tiles + row // self.BM))

    def __call__(self, pipeline, scheduler):
        if tc.lane_id() == 0:
            total, step = self.pieces_per_peer * (self.exchange.world - 1), tc.gridDim.x
            piece, buffer, phase, started = tc.s32(tc.blockIdx.x), tc.u32(0), tc.u32(0), tc.s32(-1)
            if piece < total:
                self.load(piece, buffer)
            while piece < total:
                peer, _ = self.target(piece)
                if peer != started:
                    self.exchange.wait_for_start(peer)
                    started = peer
                self.full[buffer].wait(phase)
                self.store(piece, buffer)
                tc.tma_store_wait(1)  # the piece in the other buffer is complete
                if piece >= step:
                    self.count(piece - step)
                piece = piece + step
                phase, buffer = phase ^ buffer, buffer ^ 1
                if piece < total:
                    self.load(piece, buffer)
            tc.tma_store_wait(0)
            if piece >= step:
                self.count(piece - step)


def make_push(x, gathered, exchange, config: HopperConfig):
    """Make memory and barriers to push the rank's rows. The pipeline's fence covers these barriers too."""
    box = PUSHED_ROWS, PUSHED_COLUMNS
    buffers, full = tc.shared((2, *box), x.dtype, align=128), tc.mbarriers(2)
    if tc.threadIdx.x == 0:
        full[0].init(1)
        full[1].init(1)
    source, along = tc.tensor_map(x, box), pushed_pieces(x.shape[1])
    return Push(gathered, exchange, source, buffers, full, along, config.BM)


# -- reduce-scatter and all-reduce ------------------------------------------------------------


@tc.kernel
def gemm_reduce_scatter(
    x: tc.Array,
    w: tc.Array,
    d: tc.Array,
    inbox: tc.PeerArray,
    mine: tc.Array,
    pads: tc.PeerArray,
    state: tc.Array,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """D = this rank's rows of the sum of X W over the ranks.

    inbox: world x M / world x N, N rounded up to whole tiles; `mine` is that of this rank.
    """
    exchange = Exchange(pads, state, d.shape[0])
    epilogue = reduced_epilogue(d, config, traits)
    reduce_products(x, w, epilogue, inbox, mine, exchange, config, traits)
    exchange.end()


@tc.kernel
def gemm_all_reduce(
    x: tc.Array,
    w: tc.Array,
    result: tc.PeerArray,
    inbox: tc.PeerArray,
    mine: tc.Array,
    pads: tc.PeerArray,
    state: tc.Array,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """The sum of X W over the ranks, M x N, in `result` of all ranks."""
    exchange = Exchange(pads, state, mine.shape[1])
    epilogue = reduced_epilogue(result[0], config, traits)
    epilogue = ResultOfAllRanks(**vars(epilogue))
    epilogue.result, epilogue.first_row = result, exchange.rank * exchange.rows
    reduce_products(x, w, epilogue, inbox, mine, exchange, config, traits, result)
    if (tc.blockIdx.x == 0) & (tc.threadIdx.x == 0):
        blocks = x.shape[0] // BLOCK * columns_of(w.shape[1], config)
        tc.wait_signal(pads[exchange.rank].at(exchange.finished), exchange.epoch * blocks)
    tc.barrier()
    exchange.end()


def columns_of(N, config: HopperConfig):
    """Tiles in a row of tiles."""
    return (N + (config.BN - 1)) // config.BN


def reduced_epilogue(d, config: HopperConfig, traits: HopperTraits):
    """The epilogue of sums, declared before the kernel's other memory."""
    launch(config)
    return make_tma_epilogue(d, config, traits, traits.staging_buffers(config, d.dtype.itemsize))


class ResultOfAllRanks(Epilogue):
    """Epilogue that stores each part of the columns to all ranks, in one group of TMA stores."""

    result: Any = None
    first_row: Any = 0

    def store(self, origin, buffer):
        if tc.threadIdx.x % WARPGROUP == 0:
            (m, n), width = origin, buffer.shape[1]
            for array in self.result.arrays:
                target = tc.tensor_map(array, (BLOCK, width), swizzle=swizzle_of(width, array.dtype))
                tc.tma_store(target, (self.first_row + m, n), buffer)
            tc.tma_store_commit()


@dataclass
class Sent:
    """Rank and counter of a consumer's last store that is not yet counted; -1: none.

    started: the last rank that this consumer has seen to start.
    """

    peer: Any
    counter: Any
    started: Any


def reduce_products(
    x, w, epilogue, inbox, mine, exchange, config: HopperConfig, traits: HopperTraits, result=None
):
    """Multiply, send tiles to the ranks that they belong to, and sum those of this rank."""
    exchange.start()
    mma = select_wgmma(x.dtype, w.dtype, config.BN)
    rows = row_tiles(x, config)
    columns = column_tiles(w, config, traits)
    pipeline = make_pipeline(rows, columns, x.shape[1], config)
    shape = x.shape[0], w.shape[1]
    # The right neighbour's rows come first, the rank's own last.
    scheduler = ring_scheduler(shape, config, exchange, 1)
    sent = Sent(tc.s32(-1), tc.s32(0), tc.s32(-1))

    def store(acc, consumer, epilogue, tile, row, epilogue_op, config):
        owner = tile.m // exchange.rows
        local = tile.m - owner * exchange.rows + row
        counter = exchange.tiles + local // BLOCK * columns_of(shape[1], config) + tile.n // config.BN
        signal_sent(sent, exchange)
        if owner == exchange.rank:
            if tc.threadIdx.x % WARPGROUP == 0:
                goal = exchange.epoch * (exchange.world - 1)
                tc.wait_signal(exchange.pads[exchange.rank].at(counter), goal)
            consumer_barrier(consumer)
            origin = local, tile.n
            store_sums(acc, mine, exchange, consumer, epilogue, origin, epilogue_op)
            if result is not None:
                sent.peer, sent.counter = tc.s32(exchange.world), tc.s32(exchange.finished)
        else:
            if owner != sent.started:
                if tc.threadIdx.x % WARPGROUP == 0:
                    exchange.wait_for_start(owner)
                sent.started = owner
            slot = Epilogue(inbox[owner], slot_maps(inbox[owner], config), epilogue.staging)
            rank = (exchange.rank,)
            store_elements(
                acc.coordinates,
                acc.elements(),
                consumer,
                slot,
                rank,
                local,
                tile.n,
                lambda sums, coords: sums,
            )
            sent.peer, sent.counter = owner, counter

    def consume(pipeline, mma, consumer, scheduler, store_tile):
        consume_tiles(pipeline, mma, consumer, scheduler, store_tile)
        signal_sent(sent, exchange)

    run_warpgroups(
        pipeline,
        mma,
        scheduler,
        epilogue,
        make_epilogue_op(traits),
        GemmParts(consume=consume, store=store, registers=config.shares_if(True)),
    )


def signal_sent(sent, exchange):
    """Count the last store. Its TMA stores have had the time of one tile to complete."""
    if (tc.threadIdx.x % WARPGROUP == 0) & (sent.peer >= 0):
        tc.tma_store_wait(0)
        if sent.peer < exchange.world:
            tc.signal(exchange.pads[sent.peer].at(sent.counter))
        else:
            for rank in tc.static_range(exchange.world):
                tc.signal(exchange.pads[rank].at(exchange.finished))
    sent.peer = tc.s32(-1)


def slot_maps(slots, config: HopperConfig):
    """The tensor maps of an inbox by the width of a part of the columns, as `make_tma_epilogue` has them."""
    widths = dict.fromkeys(slice_columns(config.stored_columns, slots.dtype.itemsize))
    return {n: tc.tensor_map(slots, (1, BLOCK, n), swizzle=swizzle_of(n, slots.dtype)) for n in widths}


def store_sums(acc, mine, exchange, consumer, epilogue, origin, epilogue_op):
    """Add the sums that the other ranks have sent, in the order of the ring, and store 64 rows.

    The sums of all columns would need as many registers as the accumulators, so each slice of
    columns is stored before the next one is read. The loads of a slice are in flight together.
    """
    (m, n), elements, begin = origin, acc.elements(), 0
    for columns in epilogue.column_slices(2 * len(elements)):
        count = columns // 2
        sums = elements[begin : begin + count]
        for hops in tc.static_range(1, exchange.world):
            slot, addends = exchange.neighbour(hops), []
            for i in tc.static_range(0, count, 2):
                row, col = acc.coordinates(begin + i)
                addends += mine.at(slot, m + row, n + col).load(2).elements()
            sums = [e + a.to(tc.f32) for e, a in zip(sums, addends, strict=True)]
        store_elements(acc.coordinates, sums, consumer, epilogue, (), m, n + 2 * begin, epilogue_op)
        begin += count
