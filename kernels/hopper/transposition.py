"""MN-major tiles of 32-bit elements. wgmma reads K-major tiles of this size only.

TMA loads an MN-major operand in blocks of 32 k by 32 rows or columns: 4 KiB, k after k, in its
128-byte swizzle. wgmma also takes the left operand from registers, so consumers read its fragments
from the blocks (`row_fragments`). wgmma takes the right operand from shared memory only. A K-major
tile has 32 columns of 32 k in the same 4 KiB, so a warp transposes a block in place. Warps of the
producer do it between two barriers:

    full[stage]   the bytes have arrived: the transposing warps wait for it
    ready[stage]  these warps have transposed their blocks: the consumers wait for it

Each lane exchanges rows and columns of 4 x 4 elements in registers, twice a block. The 4 x 4 parts
that eight lanes access at a time lie on a diagonal of the block, (i, i + s): in a row of parts the
swizzle gives eight different groups of four banks, and on a diagonal as well, for reads of parts
(k, n) and writes of parts (n, k) alike. So no access has a bank conflict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, ClassVar

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import same_row
from tensorcore_dsl.kernels.hopper.operand_layouts import MNMajorTiles, make_mn_major_tiles, make_operands
from tensorcore_dsl.kernels.hopper.pipeline import (
    Pipeline,
    in_row_blocks,
    k_tile_range,
    make_barriers,
    make_k_major_tiles,
)
from tensorcore_dsl.kernels.hopper.wgmma_gemm import (
    GemmParts,
    consume,
    mma_stage,
    select_wgmma,
    warp_specialized_gemm,
)

TRANSPOSERS = 3  # warps; the first one of the producer issues the loads
PART = 4  # rows and columns that a lane exchanges: 16 bytes
DIAGONALS = 8  # diagonals of parts in a block


@dataclass
class TransposedTiles(MNMajorTiles):
    """Tiles that TMA fills in MN-major blocks (`landing`), and wgmma reads K-major (`smem`)."""

    major: ClassVar[str] = "k"

    @property
    def row_blocks(self):
        return in_row_blocks(self.smem, 64)


@dataclass
class TransposingPipeline(Pipeline):
    """ready: one mbarrier per stage, on which the transposing warps arrive; None: none transpose.

    With `by_warp`, threads read fragments of A from the stage. Then no wgmma stays pending while
    the next fragments are read.
    """

    ready: Any = field(kw_only=True)

    @property
    def mma_in_flight(self):
        return 0 if self.by_warp else self.config.mma_in_flight

    def consumer_wait(self, state):
        """Wait until the stage's tiles have arrived, and are transposed if they have to be."""
        barriers = self.full if self.ready is None else self.ready
        barriers[state.stage].wait(state.phase)


def transposed_gemm(mma, a, b, d, config: HopperConfig, traits: HopperTraits, c, alpha, beta):
    """D = epilogue(alpha A B + beta C) in tf32, where A or B is not K-major."""
    in_fragments = traits.in_fragments(config, a.dtype.itemsize)
    transposes = traits.transposes(config, a.dtype.itemsize)

    def pipeline_of(a, b, config, traits):
        a_tiles, b_tiles = make_operands(a, b, config, traits, make_tiles)
        ready = make_ready(config) if transposes else None
        K = a.shape[-1]
        return make_transposing_pipeline(a_tiles, b_tiles, ready, K, config, in_fragments)

    warp_specialized_gemm(
        mma,
        a,
        b,
        d,
        config,
        traits,
        GemmParts(
            pipeline_of=pipeline_of,
            consume=partial(consume, mma_stage=mma_stage_of_fragments if in_fragments else mma_stage),
            row_of=row_of_fragment if in_fragments else same_row,
            extra_producer=transpose_stages if transposes else None,
            extra_warps=TRANSPOSERS,
        ),
        c=c,
        alpha=alpha,
        beta=beta,
    )


def make_tiles(array, axis: int, k_major: bool, side: int, rows: int, depth: int, config):
    """Tiles of 32-bit elements in either layout, see operand_layouts.make_tiles."""
    if k_major:
        return make_k_major_tiles(array, side, rows, depth, config, axis)
    width, slabs = SWIZZLE_BYTES // array.dtype.itemsize, config.stages * config.k_slabs
    if rows % width:
        what = "columns of B" if side else "rows of A"
        raise tc.ArgumentError(
            f"{rows} {what} are not a multiple of {width}, those of a box of TMA: {config}"
        )
    smem = tc.shared((slabs, rows, depth), array.dtype, swizzle=SWIZZLE_BYTES)
    # depth and width are equal: a block is transposed in place.
    shape, strides = (slabs, rows // width, depth, width), (rows * depth, width * depth, width, 1)
    landing = smem.with_parts(shape=shape, strides=strides)
    boxes = rows // width
    return make_mn_major_tiles(TransposedTiles, array, axis, side, smem, landing, boxes, config)


def make_ready(config):
    """The mbarriers `ready`; make_barriers has to follow, which makes them visible."""
    ready = tc.mbarriers(config.stages)
    if tc.threadIdx.x == 0:
        for stage in tc.static_range(config.stages):
            ready[stage].init(TRANSPOSERS)
    return ready


def make_transposing_pipeline(a, b, ready, K, config: HopperConfig, by_warp: bool, depth: int = 0):
    """Barriers for the tiles of A and B. depth: elements of K in a stage; 0: those of all slabs."""
    full, empty, order = make_barriers(a.maps + b.maps, config, by_warp=by_warp)
    depth = depth or SWIZZLE_BYTES // a.smem.dtype.itemsize * config.k_slabs
    first, last = k_tile_range(K, depth, config)
    return TransposingPipeline(a, b, full, empty, order, depth, first, last, config, by_warp, ready=ready)


def mma_stage_of_fragments(pipeline, mma, acc, block, stage, accumulate):
    """Issue acc[i] += A B for one stage of tiles of A that are not K-major, from fragments of A.

    The products of a step of K are issued when its fragments are read, so that the next fragments
    are read meanwhile. The fence before each step orders the loads into the registers. The stage is
    refilled through the async proxy, which these reads have to precede: the fence at the end orders
    them, and each warp releases the stage for itself.
    """
    a, b, k_slabs = pipeline.a, pipeline.b, pipeline.config.k_slabs
    from_registers = select_wgmma(b.smem.dtype, b.smem.dtype, mma.shape[1], source="registers")
    depth = mma.shape[2]
    for i, j in product(range(len(acc)), range(k_slabs)):
        slab = stage * k_slabs + j
        for k, fragment in enumerate(row_fragments(a.landing, from_registers, slab, block + i)):
            tc.wgmma_fence()
            acc[i] = tc.wgmma_async(
                from_registers,
                acc[i],
                [fragment],
                b.smem[slab][:, k * depth : (k + 1) * depth],
                accumulate=accumulate if j == k == 0 else True,
            )
    tc.fence_proxy_async()


def transpose_stages(pipeline, scheduler):
    """Transpose the blocks of every stage. Warps 1 to TRANSPOSERS of the producer run this.

    Before it writes, a warp has read all of its block (syncwarp). Each lane then fences its writes
    for the async proxy, through which wgmma reads, and one arrives for all (syncwarp again). The
    next load of TMA into the stage comes after wgmma has read it, which comes after `ready`.
    """
    state = pipeline.consumer_state()
    for _ in scheduler.tile_indices():
        for _ in tc.range(pipeline.first_k_tile, pipeline.end_k_tile):
            stage = state.stage
            pipeline.full[stage].wait(state.phase)
            for slab in tc.static_range(pipeline.config.k_slabs):
                blocks = pipeline.b.landing[stage * pipeline.config.k_slabs + slab]
                for block in tc.range(tc.warp_id() - 1, pipeline.b.boxes, TRANSPOSERS):
                    transpose_block(blocks[block])
            tc.fence_proxy_async()
            tc.syncwarp()
            pipeline.ready[stage].arrive(pred=tc.lane_id() == 0)
            state.advance()


def row_fragments(landing, mma, slab, block):
    """Fragments of 64 rows of A, one for each step of K, read from blocks of 32 k by 32 rows.

    block: number of the 64 rows in the tile. Row r of the fragments is row `row_of_fragment(r)` of the
    tile. A thread needs two rows 8 apart at two k 4 apart. These two rows are neighbours in the tile, 8
    bytes. Half a warp reads four k at a time, and of each k four pairs of rows. The pairs lie in
    parts of 16 bytes whose numbers differ by 4, so the swizzle puts them into different banks.
    """
    lane, warp = tc.lane_id(), tc.warp_id() % 4
    row = row_of_fragment(warp % 2 * 16 + lane // 4)
    tile, depth = landing[slab, 2 * block + warp // 2], mma.shape[2]
    fragments = []
    for step in range(0, SWIZZLE_BYTES // 4, depth):
        pairs = [tile.at(step + lane % 4 + k, row).load(2).elements() for k in (0, depth // 2)]
        fragments.append(tc.fragment(mma.a, [x.bits(tc.b32) for pair in pairs for x in pair]))
    return fragments


def row_of_fragment(row):
    """Row of the tile that holds row `row` of 64 rows of fragments: its bits in another order.

    The bits of a row are warp (2), half of the fragment, group of four lanes (3): w1 w0 h g2 g1 g0.
    The bits of its row in the tile are w1 g1 w0 g2 g0 h.
    """
    order = 5, 1, 4, 2, 0, 3  # bit of the fragment's row for each bit of the tile's
    bits = [(row >> bit & 1) << (5 - i) for i, bit in enumerate(order)]
    return sum(bits[1:], bits[0])


def transpose_block(block):
    """Transpose 32 x 32 elements in place, by one warp."""
    for (k, n), part in parts_of_block(block):
        for j in tc.static_range(PART):
            block.at(n + j, k).store([row[j] for row in part])


def parts_of_block(block):
    """Corners (k, n) and rows of the 4 x 4 parts of a lane; all lanes have read theirs."""
    lane = tc.lane_id()
    n = lane % DIAGONALS
    rounds = DIAGONALS * DIAGONALS // 32
    corners = [
        ((n + i * (32 // DIAGONALS) + lane // DIAGONALS) % DIAGONALS * PART, n * PART) for i in range(rounds)
    ]
    parts = [[block.at(k + i, n).load(PART).elements() for i in range(PART)] for k, n in corners]
    tc.syncwarp()
    return list(zip(corners, parts, strict=True))
