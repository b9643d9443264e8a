"""Tiles of 32-bit elements of which not K is contiguous, for wgmma, which wants K contiguous.

TMA loads such an operand in blocks of 32 k by 32 rows or columns: 4 KiB, k after k, in its 128-byte
swizzle. wgmma takes A from registers as well: consumers read its fragments from the blocks
(`row_fragments`). B it takes from shared memory alone. A K-major tile has, in the same 4 KiB, 32
columns of 32 k. So a warp transposes a block of B in place. Warps of the producer do it between two
barriers:

    full[stage]   the bytes have arrived: the transposing warps wait for it
    ready[stage]  these warps have transposed their blocks: the consumers wait for it

Each lane exchanges rows and columns of 4 x 4 elements in registers, twice a block. The 4 x 4 parts
that eight lanes access at a time lie on a diagonal of the block, (i, i + s): in a row of parts the
swizzle gives eight different groups of four banks, and on a diagonal as well, for reads of parts
(k, n) and writes of parts (n, k) alike. So no access has a bank conflict.
"""

from __future__ import annotations

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES

TRANSPOSERS = 3  # warps; the first one of the producer issues the loads
PART = 4  # rows and columns that a lane exchanges: 16 bytes
DIAGONALS = 8  # of parts in a block


def make_ready(config):
    """The mbarriers `ready`; make_barriers has to follow, which makes them visible."""
    ready = tc.mbarriers(config.stages)
    if tc.threadIdx.x == 0:
        for stage in tc.static_range(config.stages):
            ready[stage].init(TRANSPOSERS)
    return ready


def transpose_stages(pipeline, scheduler):
    """Transpose the blocks of every stage. Warps 1 to TRANSPOSERS of the producer run this.

    Before it writes, a warp has read all of its block (syncwarp). Each lane then fences its writes
    for the async proxy, through which wgmma reads, and one arrives for all (syncwarp again). The
    next load of TMA into the stage comes after wgmma has read it, which comes after `ready`.
    """
    stage, phase = tc.u32(0), tc.u32(0)
    for _ in scheduler.tile_indices():
        for _ in tc.range(pipeline.first_k_tile, pipeline.end_k_tile):
            pipeline.full[stage].wait(phase)
            for slab in tc.static_range(pipeline.config.k_slabs):
                blocks = pipeline.b.landing[stage * pipeline.config.k_slabs + slab]
                for block in tc.range(tc.warp_id() - 1, pipeline.b.boxes, TRANSPOSERS):
                    transpose_block(blocks[block])
            tc.fence_proxy_async()
            tc.syncwarp()
            pipeline.ready[stage].arrive(pred=tc.lane_id() == 0)
            stage, phase = pipeline.advance(stage, phase)


def row_fragments(landing, mma, slab, block):
    """Fragments of 64 rows of A, one for each step of K, read from blocks of 32 k by 32 rows.

    block: number of the 64 rows in the tile. Row r of the fragments is row `place_of_row(r)`. A
    thread needs two rows 8 apart at two k 4 apart: the places of the rows are neighbours, 8 bytes.
    Half a warp reads four k at a time, of each four pairs of rows, which lie in parts of 16 bytes
    that differ by 4: the swizzle then puts all of them into different banks.
    """
    lane, warp = tc.lane_id(), tc.warp_id() % 4
    row = place_of_row(warp % 2 * 16 + lane // 4)
    tile, depth = landing[slab, 2 * block + warp // 2], mma.shape[2]
    found = []
    for step in range(0, SWIZZLE_BYTES // 4, depth):
        pairs = [tile.at(step + lane % 4 + k, row).load(2).elements() for k in (0, depth // 2)]
        found.append(tc.fragment(mma.a, [x.bits(tc.b32) for pair in pairs for x in pair]))
    return found


def place_of_row(row):
    """Where row `row` of 64 rows of fragments lies in the tile: its bits in another order.

    The bits of a row are warp (2), half of the fragment, group of four lanes (3): w1 w0 h g2 g1 g0.
    Those of its place are w1 g1 w0 g2 g0 h.
    """
    order = 5, 1, 4, 2, 0, 3  # bits of the row, those of the place from the highest one down
    bits = [(row >> bit & 1) << (5 - i) for i, bit in enumerate(order)]
    return sum(bits[1:], bits[0])


def transpose_block(block):
    """Transpose 32 x 32 elements in place, by one warp."""
    for (k, n), part in parts_of_block(block):
        for j in tc.static_range(PART):
            block.at(n + j, k).store([row[j] for row in part])


def parts_of_block(block):
    """Places (k, n) and rows of the 4 x 4 parts of a lane; all lanes have read theirs."""
    lane = tc.lane_id()
    n = lane % DIAGONALS
    rounds = DIAGONALS * DIAGONALS // 32
    places = [((n + i * (32 // DIAGONALS) + lane // DIAGONALS) % DIAGONALS * PART, n * PART)
              for i in range(rounds)]  # fmt: skip
    parts = [[block.at(k + i, n).load(PART).elements() for i in range(PART)] for k, n in places]
    tc.syncwarp()
    return list(zip(places, parts, strict=True))
