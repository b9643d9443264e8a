"""Shared-memory pipeline between TMA and wgmma: stages, their mbarriers, and multicast.

A stage holds one tile of A and one of B, k_slabs * 128 bytes deep along K. Two mbarriers guard it:

    full[stage]   completes when the bytes of both tiles have arrived (TMA counts them)
    empty[stage]  completes when every reader has released the stage: the consumers of this CTA,
                  and those of the CTAs that this one multicasts to

Producer and consumers walk around the ring of stages with a pair (stage, phase). `phase` is the
parity of the phase to wait for; it flips when the walk wraps around. Consumers start with phase 0,
the first filling. The producer starts with phase 1: a new mbarrier counts the phase before its
first one as complete, so the producer finds all stages empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any, ClassVar

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import (
    SWIZZLE_BYTES,
    WARPGROUP,
    HopperConfig,
    HopperTraits,
)
from tensorcore_dsl.kernels.hopper.transposition import make_ready

PIECES = 4, 5, 3, 6, 7, 2, 1  # boxes of a CTA's share of a K-major tile, the best number first
MAX_BOX = 256  # lines of a box of TMA
SWIZZLE_LINES = 8  # of 128 bytes, over which the swizzle repeats: tiles are cut between them


@dataclass
class Multicast:
    """The CTAs of a cluster that need the same tile.

    ctas: how many. index: which of them this CTA is. mask: all of them as bits of their ranks, the
    operand of `.multicast::cluster`; None for one CTA.
    """

    ctas: int
    index: Any
    mask: Any


@dataclass
class OperandTiles:
    """A or B: its tensor map, its tiles in shared memory, and how TMA fills them.

    axis: 0, if the array is M x K, as A; 1, if it is K x N, as B. extent: its rows or columns.
    boxes: of rows or columns, side by side in one slab of a stage. pieces: neighbouring boxes that
    the same CTA loads. parts: of such a box along K, each of which TMA loads. landing:
    a view of the tiles (slab, box, k, row or column), where TMA fills them so: those of the right
    operand are then transposed in place to K-major ones, consumers read fragments of those of the
    left one (transposition.py). at_edge: the same tiles in smaller boxes, for those that reach
    beyond the array; None if boxes are the same everywhere.
    """

    map: Any
    smem: Any
    k_major: bool
    boxes: int
    multicast: Multicast
    axis: int
    extent: Any = None
    pieces: int = 1
    parts: int = 1
    landing: Any = None
    at_edge: Any = None

    @property
    def maps(self):
        """All tensor maps of the array."""
        return (self.map,) if self.at_edge is None else (self.map, self.at_edge.map)

    @property
    def lines(self):
        """Rows or columns that TMA loads for a tile."""
        return self.boxes * self.map.box[-2:][self.axis]

    def holds(self, origin):
        """Does a tile whose first row or column is `origin` need no smaller boxes?"""
        return True if self.at_edge is None else origin + self.lines <= self.extent


@dataclass
class Pipeline:
    """Stages and barriers between the producer and the consumers.

    full, empty: one mbarrier per stage. order: the two order barriers of the ping-pong schedule.
    ready: one mbarrier per stage, of tiles that are transposed (transposition.py); else None.
    k_per_stage: elements of K in a stage, that is in one k_tile. first_k_tile, end_k_tile: the
    range of k_tiles that this CTA sums; end_k_tile is excluded.
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
    ready: Any = field(default=None, kw_only=True)

    of_columns: ClassVar[tuple[str, ...]] = ("b",)  # operands that hold the columns of tiles

    def at_edge(self, of_rows: bool, of_columns: bool):
        """The same stages filled in smaller boxes, for tiles that reach beyond A, or beyond B.

        See OperandTiles.at_edge.
        """
        names = ("a",) * of_rows + self.of_columns * of_columns
        return replace(self, **{name: getattr(self, name).at_edge for name in names})

    @property
    def mma_in_flight(self):
        """Groups of wgmma that stay pending: none while the next fragments of A are read."""
        return self.config.mma_in_flight if self.a.landing is None else 0

    def advance(self, stage, phase):
        """The next stage; the phase flips when the walk wraps around."""
        last = stage == self.config.stages - 1
        return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)

    def advance_by(self, stage, phase, k_tiles):
        """The stage and phase `k_tiles` further on; every wrap flips the phase once."""
        position = stage + tc.u32(k_tiles)
        return position % self.config.stages, phase ^ (position // self.config.stages & 1)

    def producer_acquire(self, stage, phase):
        """Wait until all consumers have released the stage's previous contents."""
        self.empty[stage].wait(phase)

    def consumer_wait(self, stage, phase):
        """Wait until the stage's tiles have arrived, and are transposed if they have to be."""
        barriers = self.full if self.ready is None else self.ready
        barriers[stage].wait(phase)

    def consumer_release(self, stage, by_warp: bool = False):
        """Release a stage: this warpgroup does not read it any more.

        It arrives on `empty[stage]` in every CTA that multicasts into this stage, since each of
        these waits for all readers of what it writes. Thread i arrives in the i-th such CTA. One
        arrival per warpgroup is enough: wgmma reads for the whole warpgroup, and wgmma_wait has
        told every thread that the reads are complete. A plain arrive is enough as well: the reads
        were made by the async proxy, and no write of ours has to become visible to the peer.
        by_warp: threads have read data of this CTA's stage themselves, so every warp synchronises
        its lanes and arrives.
        """
        empty, thread = self.empty[stage], tc.threadIdx.x % WARPGROUP
        if by_warp:
            tc.syncwarp()
            thread = tc.lane_id()
        if self.config.multicast_peers == 1:
            empty.arrive(pred=thread == 0)
        else:
            # Threads beyond the peers compute a rank that does not exist; `pred` masks them.
            in_peer = empty.remote(multicast_peer(thread, self.config))
            in_peer.arrive(pred=thread < self.config.multicast_peers)


def make_pipeline(a, b, config: HopperConfig, traits: HopperTraits, extra_producers: int = 0):
    """Shared tiles, tensor maps and barriers of a GEMM. Every thread of the cluster calls it.

    extra_producers: warps beside the TMA producer that fill stages too (block scales). Consumers
    then release stages warp by warp, since their threads read these data themselves.
    """
    k_per_slab = SWIZZLE_BYTES // a.dtype.itemsize
    left, right = (a, traits.a_k_major), (b, traits.b_k_major)
    if config.swapped:
        left, right = right, left
    tiles_a = make_operand(left[0], 0, config.BM, k_per_slab, left[1], config)
    tiles_b = make_operand(right[0], 1, config.BN, k_per_slab, right[1], config)
    ready = None if tiles_b.landing is None else make_ready(config)
    maps, by_warp = tiles_a.maps + tiles_b.maps, extra_producers > 0 or tiles_a.landing is not None
    full, empty, order = make_barriers(maps, config, extra_producers, by_warp)
    k_per_stage = k_per_slab * config.k_slabs
    first, last = k_tile_range(a.shape[-1], k_per_stage, config)
    barriers = full, empty, order
    return Pipeline(tiles_a, tiles_b, *barriers, k_per_stage, first, last, config, ready=ready)


def make_barriers(maps, config: HopperConfig, extra_producers: int = 0, by_warp: bool = False):
    """`full` and `empty`, one per stage, and the two order barriers, initialised in all CTAs.

    by_warp: every warp of a consumer releases a stage, see `Pipeline.consumer_release`.
    """
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


def make_operand(array, axis: int, extent: int, depth: int, k_major: bool, config, smem=None):
    """Shared tiles for `extent` rows (axis 0) or columns (axis 1) of a tile, and their tensor map.

    The array is A or B, or the other one where these are swapped.

    K-major tiles are rows of 128 bytes of K, which TMA loads in boxes of 8 rows or more: one for
    each CTA, or a few where a tile reaches beyond the array (load_operand). MN-major tiles are
    blocks of 128 bytes of rows or columns, `depth` deep along K; each block is a box, of the last
    of which wgmma may read a part, or several ones of 8 k or more. Those of 32-bit elements are to
    be transposed in place (landing). CTAs that share a tile load equal shares of it, where it can
    be divided so; else fewer of them load. smem: the tiles, where they are a part of others.
    """
    slabs, multicast = config.stages * config.k_slabs, multicast_of(axis, config)
    width, landing, parts, at_edge = SWIZZLE_BYTES // array.dtype.itemsize, None, 1, None
    in_array = 1 - axis if config.swapped else axis
    loaded = extent
    if not k_major and array.dtype.itemsize == 2:
        loaded = -(-loaded // width) * width
    size, matrix = array.shape[-2:][in_array], (1,) * (array.ndim - 2)
    if k_major:
        row_bytes, boxes = depth * array.dtype.itemsize, boxes_along_k(loaded, multicast.ctas)
        if smem is None:
            smem = tc.shared((slabs, extent, depth), array.dtype, swizzle=row_bytes)
        lines = loaded // boxes
        pieces = pieces_of(lines)
        box = in_array_order(in_array, lines, depth)
        # Where CTAs have no equal shares, some load nothing, by predicates: one box is enough.
        if pieces > 1 and boxes == multicast.ctas:
            smaller = in_array_order(in_array, lines // pieces, depth)
            map = tc.tensor_map(array, matrix + smaller, swizzle=row_bytes)
            at_edge = OperandTiles(
                map, smem, k_major, boxes * pieces, multicast, in_array, size, pieces
            )
            if lines > MAX_BOX:
                return at_edge
    else:
        check_lines(axis, loaded, width, config)
        row_bytes, boxes = SWIZZLE_BYTES, loaded // width
        parts = parts_of_boxes(boxes, depth, multicast.ctas)
        shape = (slabs, boxes, depth, width)
        if array.dtype.itemsize == 4:  # depth and width are equal: blocks are transposed in place
            smem = tc.shared((slabs, extent, depth), array.dtype, swizzle=row_bytes)
            shape, steps = (slabs, extent // width, depth, width), (extent * depth, width * depth)
            landing, k_major = smem.with_parts(shape=shape, strides=(*steps, width, 1)), True
        else:
            smem = tc.shared(shape, array.dtype, swizzle=row_bytes)
        box = in_array_order(in_array, width, depth // parts)
    map = tc.tensor_map(array, matrix + box, swizzle=row_bytes)
    return OperandTiles(
        map, smem, k_major, boxes, multicast, in_array, size, 1, parts, landing, at_edge
    )


def boxes_along_k(lines: int, ctas: int) -> int:
    """Shares of lines along K for CTAs that load them: eights of lines, or all in one share."""
    return largest_divisor(lines // SWIZZLE_LINES, ctas) if lines % SWIZZLE_LINES == 0 else 1


def pieces_of(lines: int) -> int:
    """Boxes of the lines along K that a CTA loads: about four, of 16 lines or more."""
    allowed = [n for n in PIECES if lines % (n * SWIZZLE_LINES) == 0 and lines >= 16 * n]
    return allowed[0] if allowed else 1


def parts_of_boxes(boxes: int, depth: int, ctas: int) -> int:
    """Parts along K of each box, `depth` deep, where CTAs that share boxes have no whole ones."""
    return largest_divisor(depth // SWIZZLE_LINES, ctas // gcd(boxes, ctas))


def largest_divisor(n: int, most: int) -> int:
    """The largest divisor of n that is at most `most`."""
    return max(i for i in range(1, most + 1) if n % i == 0)


def in_array_order(axis: int, mn, k):
    """(row, k) of A (axis 0), (k, column) of B (axis 1)."""
    return (k, mn) if axis else (mn, k)


def check_lines(axis: int, extent: int, unit: int, config: HopperConfig):
    """Refuse tiles that are not made of whole boxes."""
    if extent % unit:
        what = "columns of B" if axis else "rows of A"
        raise tc.ArgumentError(
            f"{extent} {what} are no multiple of {unit}, those of a box of TMA: {config}"
        )


def multicast_of(axis: int, config: HopperConfig):
    """The CTAs of the cluster that need the same rows of A (axis 0) or columns of B (axis 1).

    """
    ctas = (config.cluster_n, config.cluster_m)[axis]
    if ctas == 1:
        return Multicast(1, 0, None)
    row, col, first = place_in_cluster(config)
    if axis == 1:
        return Multicast(ctas, row, tc.u32((1 << ctas) - 1) << first + col * config.cluster_m)
    row_of_cluster = tc.u32(sum(1 << config.cluster_m * i for i in range(ctas)))
    return Multicast(ctas, col, row_of_cluster << first + row)


def place_in_cluster(config: HopperConfig):
    """Row and column of this CTA among those that sum its part of K, and the first one's rank.

    Ranks go down the columns of the cluster, and the parts of split-K follow each other:
    rank = row + column * cluster_m + part * multicast_ctas.
    """
    rank, first = tc.cluster_rank(), 0
    if config.split_k > 1:
        first = rank // config.multicast_ctas * config.multicast_ctas
        rank = rank % config.multicast_ctas
    return rank % config.cluster_m, rank // config.cluster_m, first


def multicast_peer(index, config: HopperConfig):
    """Rank of the index-th CTA that shares a tile with this one: its column, then its row."""
    row, col, first = place_in_cluster(config)
    if config.cluster_n == 1:
        return index + first
    row_peer = index - config.cluster_m
    row_peer = row_peer + (row_peer >= col).to(tc.s32)  # the column includes this CTA already
    in_column = index < config.cluster_m
    of_row = row + row_peer * config.cluster_m
    return tc.select(in_column, index + col * config.cluster_m, of_row) + first


def k_tile_range(K, k_per_stage: int, config: HopperConfig):
    """First and past-the-last k_tile that this CTA sums; split-K divides them evenly."""
    k_tiles = (K + (k_per_stage - 1)) // k_per_stage
    if config.split_k == 1:
        return 0, k_tiles
    parts, part = config.split_k, tc.cluster_rank() // config.multicast_ctas
    return part * k_tiles // parts, (part + 1) * k_tiles // parts


def load_operand(operand, slab, batch, origin, k, full):
    """Load this CTA's boxes of a tile by TMA, multicast to all CTAs that need them.

    origin: first row or column. k: first element along K. Of a tile that n CTAs share, each loads
    1/n, and the n multicasts together fill the tile in all of them; where there are fewer shares,
    the last CTAs load less, or nothing. The bytes that arrive are the same in all of them.

    TMA takes twice as long to fill rows with zeros as to load them, and all CTAs would wait for
    those whose tiles reach beyond the array. Boxes that lie outside as a whole are loaded from row
    or column 0 instead: what they hold goes into elements outside of D only.
    """
    batch = batch[: len(operand.map.box) - 2]  # () where one matrix serves the whole batch
    multicast, parts = operand.multicast, operand.parts
    rows, depth = in_array_order(operand.axis, *operand.map.box[len(batch) :])
    shares = operand.boxes // operand.pieces * parts
    of_cta = -(-shares // multicast.ctas) * operand.pieces
    for i in tc.static_range(of_cta):
        number = multicast.index * of_cta + i
        pred = None if shares % multicast.ctas == 0 else number < operand.boxes * parts
        box, part = (number, 0) if parts == 1 else (number // parts, number % parts)
        if operand.landing is not None:
            target = operand.landing[slab, box]
        elif operand.k_major:
            target = operand.smem[slab, box * rows : box * rows + rows]
        else:
            target = operand.smem[slab, box]
        if parts > 1:
            target = target[part * depth : part * depth + depth]
        first = origin + box * rows
        if operand.at_edge is None:  # else the tile lies inside
            first = tc.select(first < operand.extent, first, 0)
        index = (*batch, *in_array_order(operand.axis, first, k + part * depth))
        tc.tma_load(target, operand.map, index, full, multicast=multicast.mask, pred=pred)


def in_row_blocks(smem, rows: int):
    """A view of tiles with their row axis cut into blocks of `rows`: (slab, block, row, ...)."""
    slabs, length, *rest = smem.shape
    slab, row, *steps = smem.strides
    return smem.with_parts(
        shape=(slabs, length // rows, rows, *rest), strides=(slab, row * rows, row, *steps)
    )
