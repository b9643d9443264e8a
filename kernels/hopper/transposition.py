"""Transpose tiles of 32-bit elements in shared memory, for wgmma, which wants K contiguous.

TMA loads an operand of which not K is contiguous in blocks of 32 k by 32 rows or columns: 4 KiB, k
after k, in its 128-byte swizzle. A K-major tile has, in the same 4 KiB, 32 rows or columns of 32 k.
So a warp transposes a block in place. Warps of the producer do it between two barriers:

    full[stage]   the bytes have arrived: the transposing warps wait for it
    ready[stage]  these warps have transposed their blocks: the consumers wait for it

Each lane exchanges rows and columns of 4 x 4 elements in registers, twice a block. The 4 x 4 parts
that eight lanes access at a time lie on a diagonal of the block, (i, i + s): in a row of parts the
swizzle gives eight different groups of four banks, and on a diagonal as well, for reads of parts
(k, n) and writes of parts (n, k) alike. So no access has a bank conflict.
"""

from __future__ import annotations

import tensorcore_dsl as tc

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
            first = tc.warp_id() - 1
            for operand in (pipeline.a, pipeline.b):
                if operand.landing is not None:
                    for slab in tc.static_range(pipeline.config.k_slabs):
                        blocks = operand.landing[stage * pipeline.config.k_slabs + slab]
                        for block in tc.range(first, operand.boxes, TRANSPOSERS):
                            transpose_block(blocks[block])
            tc.fence_proxy_async()
            tc.syncwarp()
            pipeline.ready[stage].arrive(pred=tc.lane_id() == 0)
            stage, phase = pipeline.advance(stage, phase)


def transpose_block(block):
    """Transpose 32 x 32 elements in place, by one warp."""
    lane = tc.lane_id()
    n = lane % DIAGONALS
    rounds = DIAGONALS * DIAGONALS // 32
    places = [((n + i * (32 // DIAGONALS) + lane // DIAGONALS) % DIAGONALS * PART, n * PART)
              for i in range(rounds)]  # fmt: skip
    parts = [[block.at(k + i, n).load(PART).elements() for i in range(PART)] for k, n in places]
    tc.syncwarp()
    for (k, n), part in zip(places, parts, strict=True):
        for j in tc.static_range(PART):
            block.at(n + j, k).store([row[j] for row in part])
