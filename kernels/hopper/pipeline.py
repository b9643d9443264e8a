"""Shared-memory pipeline between TMA and wgmma: stages, their mbarriers, and multicast.

A stage holds one tile of A and one of B, k_slabs * 128 bytes deep along K. Two mbarriers guard it:

    full[stage]   completes when the bytes of both tiles have arrived (TMA counts them)
    empty[stage]  completes when every reader has released the stage: the consumers of this CTA,
                  and those of the CTAs that this one multicasts to

Producer and consumers go round the stages, each with a PipelineState: the stage, and the parity of
the phase to wait for. Consumers start with phase 0, the first filling. The producer starts with
phase 1: a new mbarrier counts the phase before its first one as complete, so the producer finds all
stages empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.cluster import Multicast, multicast_of, multicast_peer
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, WARPGROUP, HopperConfig

BOXES = 4, 5, 3, 6, 7, 2, 1  # boxes of a CTA's share of a K-major tile at an edge, the best number first
MAX_BOX = 256  # rows of a TMA box, at most
SWIZZLE_ROWS = 8  # rows of 128 bytes after which the swizzle repeats: boxes have a multiple of them


@dataclass
class OperandTiles:
    """K-major tiles of A or B: tensor map, shared memory, and how TMA fills them.

    Attributes
    ----------
    map : tensor map
        A box is a number of rows, one slab of K deep.
    smem : tile
        (slab, row, k).
    boxes : int
        Boxes of a tile.
    multicast : Multicast
        The CTAs that need the tile.
    axis : int
        Axis of the array that is not K: 0 for M x K, 1 for K x N.
    extent : s32
        Size of the array along `axis`.
    adjacent : int
        Adjacent boxes that one CTA loads.
    edge_tiles : OperandTiles or None
        The tiles in smaller boxes, for a tile that reaches beyond the array. None: boxes are the
        same everywhere.
    """

    map: Any
    smem: Any
    boxes: int
    multicast: Multicast
    axis: int
    extent: Any = None
    adjacent: int = 1
    edge_tiles: Any = None

    major: ClassVar[str] = "k"

    @property
    def maps(self):
        """All tensor maps of the array."""
        return (self.map,) if self.edge_tiles is None else (self.map, self.edge_tiles.map)

    @property
    def rows(self):
        """Rows of 128 bytes that TMA loads for a slab of a tile."""
        return self.boxes * self.map.box[-2:][self.axis]

    @property
    def row_blocks(self):
        """The tiles in blocks of 64 rows, one wgmma operand each."""
        return in_row_blocks(self.smem, 64)

    def holds(self, origin):
        """Whether a tile with first row `origin` needs no smaller boxes."""
        return True if self.edge_tiles is None else origin + self.rows <= self.extent

    def load(self, slab, batch, origin, k, full):
        """Load this CTA's boxes of a slab by TMA, multicast to all CTAs that need them.

        origin: first row. k: first element along K. n CTAs that share a tile load 1/n each, and the
        n multicasts together fill the tile in all of them. If there are fewer boxes, the last CTAs
        load less. The bytes that arrive are the same in all of them.

        TMA takes twice as long to fill rows with zeros as to load them, and all CTAs would wait for
        the tiles at an edge. A box that lies outside as a whole is loaded from row 0 instead: its
        values go into elements outside of D only.
        """
        batch = batch[: len(self.map.box) - 2]  # () where one matrix serves the whole batch
        rows, _ = in_array_order(self.axis, *self.map.box[len(batch) :])
        ctas, shares = self.multicast.ctas, self.boxes // self.adjacent
        boxes_per_cta = -(-shares // ctas) * self.adjacent
        for i in tc.static_range(boxes_per_cta):
            box = self.multicast.index * boxes_per_cta + i
            pred = None if shares % ctas == 0 else box < self.boxes
            target = self.smem[slab, box * rows : box * rows + rows]
            first = origin + box * rows
            if self.edge_tiles is None:  # else the tile lies inside
                first = tc.select(first < self.extent, first, 0)
            index = (*batch, *in_array_order(self.axis, first, k))
            target = target.T if self.axis else target  # (row, k) or (k, column)
            tc.tma_load(target, self.map, index, full, multicast=self.multicast.mask, pred=pred)


@dataclass
class PipelineState:
    """A position of the producer or of a consumer: a stage, and the phase to wait for.

    The phase flips after the last stage.
    """

    stages: int
    stage: Any
    phase: Any

    def next(self):
        """The position at the next stage."""
        last = self.stage == self.stages - 1
        stage = tc.select(last, tc.u32(0), self.stage + 1)
        return PipelineState(self.stages, stage, tc.select(last, self.phase ^ 1, self.phase))

    def advance(self):
        """Go on to the next stage."""
        following = self.next()
        self.stage, self.phase = following.stage, following.phase

    def advance_by(self, k_tiles):
        """Go on by `k_tiles` stages; every round flips the phase once."""
        position = self.stage + tc.u32(k_tiles)
        self.stage = position % self.stages
        self.phase = self.phase ^ (position // self.stages & 1)


def producer_state(stages: int) -> PipelineState:
    """The first position of a producer: phase 1, as if all stages had been released."""
    return PipelineState(stages, tc.u32(0), tc.u32(1))


def consumer_state(stages: int) -> PipelineState:
    """The first position of a consumer."""
    return PipelineState(stages, tc.u32(0), tc.u32(0))


@dataclass
class Pipeline:
    """Stages and barriers between the producer and the consumers.

    Attributes
    ----------
    a, b : OperandTiles
        Tiles of the left and of the right operand of wgmma.
    full, empty : mbarriers
        One for each stage.
    order : mbarriers
        The two order barriers of the ping-pong schedule.
    k_per_stage : int
        Elements of K in a stage, that is in one k_tile.
    first_k_tile, end_k_tile : s32
        The range of k_tiles that this CTA sums, without end_k_tile.
    config : HopperConfig
        The configuration.
    by_warp : bool
        Every warp releases a stage for itself, see `consumer_release`.
    """

    a: OperandTiles
    b: OperandTiles
    full: Any
    empty: Any
    order: Any
    k_per_stage: int
    first_k_tile: Any
    end_k_tile: Any
    config: HopperConfig
    by_warp: bool = False

    # k_tiles of an iteration of the mainloop; divides the number of k_tiles
    stages_at_once: ClassVar[int] = 1

    @property
    def column_tiles(self):
        """The tiles that hold the columns of a tile of D, or one of two equal halves of them."""
        return self.b

    def with_edge_rows(self):
        """The stages filled in smaller boxes, for a tile that reaches beyond A."""
        return replace(self, a=self.a.edge_tiles)

    def with_edge_columns(self):
        """The stages filled in smaller boxes, for a tile that reaches beyond B."""
        return replace(self, b=self.b.edge_tiles)

    @property
    def mma_in_flight(self):
        """Groups of wgmma that stay pending."""
        return self.config.mma_in_flight

    def producer_state(self):
        """The first position of a producer: phase 1, as if all stages had been released."""
        return producer_state(self.config.stages)

    def consumer_state(self):
        """The first position of a consumer."""
        return consumer_state(self.config.stages)

    def producer_acquire(self, state: PipelineState):
        """Wait until all consumers have released the stage's previous contents."""
        self.empty[state.stage].wait(state.phase)

    def consumer_wait(self, state: PipelineState):
        """Wait until the stage's tiles have arrived."""
        self.full[state.stage].wait(state.phase)

    def consumer_release(self, stage):
        """Release a stage: this warpgroup does not read it any more.

        It arrives on `empty[stage]` in every CTA that multicasts into this stage, since each of
        these waits for all readers of what it writes. Thread i arrives in the i-th such CTA. One
        arrival per warpgroup is enough: wgmma reads for the whole warpgroup, and wgmma_wait has
        told every thread that the reads are complete. A plain arrive is enough as well: the reads
        were made by the async proxy, and no write of ours has to become visible to the peer.

        by_warp: threads have read the stage themselves, so every warp synchronises its lanes and
        arrives.
        """
        empty, thread = self.empty[stage], tc.threadIdx.x % WARPGROUP
        if self.by_warp:
            tc.syncwarp()
            thread = tc.lane_id()
        if self.config.multicast_peers == 1:
            empty.arrive(pred=thread == 0)
        else:
            # Threads beyond the peers compute a rank that does not exist; `pred` masks them.
            in_peer = empty.remote(multicast_peer(thread, self.config))
            in_peer.arrive(pred=thread < self.config.multicast_peers)


def make_pipeline(a: OperandTiles, b: OperandTiles, K, config: HopperConfig, extra_producers: int = 0):
    """Barriers for the tiles of A and B. Every thread of the cluster calls it.

    extra_producers: further warps, after that of TMA, that fill stages (block scales). Consumers
    then release stages warp by warp, since their threads read these data themselves.
    """
    by_warp = extra_producers > 0
    full, empty, order = make_barriers(a.maps + b.maps, config, extra_producers, by_warp)
    k_per_stage = SWIZZLE_BYTES // a.smem.dtype.itemsize * config.k_slabs
    first, last = k_tile_range(K, k_per_stage, config)
    return Pipeline(a, b, full, empty, order, k_per_stage, first, last, config, by_warp)


def make_barriers(maps, config: HopperConfig, extra_producers: int = 0, by_warp: bool = False):
    """`full` and `empty`, one per stage, and the two order barriers, initialised in all CTAs."""
    full, empty, order = (tc.mbarriers(count) for count in (config.stages, config.stages, 2))
    if tc.threadIdx.x == 0:
        for map in maps:
            map.prefetch()
        # Ping-pong: one consumer reads a stage. Cooperative: all of them do.
        readers = (1 if config.pingpong else config.consumers) * (4 if by_warp else 1)
        for stage in tc.static_range(config.stages):
            full[stage].init(1 + extra_producers)
            empty[stage].init(readers * config.multicast_peers)
        for consumer in tc.static_range(2):
            order[consumer].init(1)
        # TMA and the other CTAs must see the initialised barriers before they arrive on them.
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    return full, empty, order


def make_k_major_tiles(array, side: int, rows: int, depth: int, config, axis=None, smem=None):
    """K-major tiles of `rows` rows, one slab `depth` elements deep along K.

    side: 0 for the left operand of wgmma, 1 for the right one. axis: of the array that is not K;
    `side` if None. smem: the tiles, if they are a part of others.

    CTAs that share a tile load equal shares of it in boxes of 8 rows or more. A share is one box
    inside of the array, and a few smaller ones at an edge.
    """
    multicast = multicast_of(side, config)
    axis = side if axis is None else axis
    row_bytes, size = depth * array.dtype.itemsize, array.shape[-2:][axis]
    if smem is None:
        shape = config.stages * config.k_slabs, rows, depth
        smem = tc.shared(shape, array.dtype, swizzle=row_bytes)
    boxes = largest_divisor(rows // SWIZZLE_ROWS, multicast.ctas) if rows % SWIZZLE_ROWS == 0 else 1
    share, edge_tiles = rows // boxes, None
    smaller = smaller_boxes(share)
    matrix = (1,) * (array.ndim - 2)
    # If CTAs have no equal shares, some load nothing, by predicates: one box is enough.
    if smaller > 1 and boxes == multicast.ctas:
        box = in_array_order(axis, share // smaller, depth)
        map = tc.tensor_map(array, matrix + box, swizzle=row_bytes)
        edge_tiles = OperandTiles(map, smem, boxes * smaller, multicast, axis, size, smaller)
        if share > MAX_BOX:
            return edge_tiles
    box = in_array_order(axis, share, depth)
    map = tc.tensor_map(array, matrix + box, swizzle=row_bytes)
    return OperandTiles(map, smem, boxes, multicast, axis, size, edge_tiles=edge_tiles)


def smaller_boxes(rows: int) -> int:
    """Boxes that a CTA's share of a tile has at an edge: about four, of 16 rows or more."""
    allowed = [n for n in BOXES if rows % (n * SWIZZLE_ROWS) == 0 and rows >= 16 * n]
    return allowed[0] if allowed else 1


def largest_divisor(n: int, most: int) -> int:
    """The largest divisor of n that is at most `most`."""
    return max(i for i in range(1, most + 1) if n % i == 0)


def in_array_order(axis: int, mn, k):
    """(row, k) of an M x K array (axis 0), (k, column) of a K x N array (axis 1)."""
    return (k, mn) if axis else (mn, k)


def in_row_blocks(smem, rows: int):
    """A view of tiles with their row axis cut into blocks of `rows`: (slab, block, row, ...)."""
    slabs, length, *rest = smem.shape
    slab, row, *steps = smem.strides
    return smem.with_parts(
        shape=(slabs, length // rows, rows, *rest), strides=(slab, row * rows, row, *steps)
    )


def k_tile_range(K, k_per_stage: int, config: HopperConfig):
    """First and past-the-last k_tile that this CTA sums; split-K divides them evenly."""
    k_tiles = (K + (k_per_stage - 1)) // k_per_stage
    if config.split_k == 1:
        return 0, k_tiles
    parts, part = config.split_k, tc.cluster_rank() // config.multicast_ctas
    return part * k_tiles // parts, (part + 1) * k_tiles // parts
