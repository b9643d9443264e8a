"""Transpose tiles of 32-bit elements in shared memory, for wgmma, which wants K contiguous.

TMA loads an operand of which not K is contiguous in blocks of 32 k by 32 rows or columns: 4 KiB, k
after k, in its 128-byte swizzle. A K-major tile has, in the same 4 KiB, 32 rows or columns of 32 k.
So a warp transposes a block in place. Warps of the producer do it between two barriers:

    full[stage]   the bytes have arrived: the transposing warps wait for it
    ready[stage]  all of them have seen that, and one has transposed the blocks: the consumers wait

Each lane exchanges rows and columns of 4 x 4 elements in registers, twice a block. The 4 x 4 parts
that eight lanes access at a time lie on a diagonal of the block, (i, i + s): in a row of parts the
swizzle gives eight different groups of four banks, and on a diagonal as well, for reads of parts
(k, n) and writes of parts (n, k) alike. So no access has a bank conflict.
"""

from __future__ import annotations

import tensorcore_dsl as tc

TRANSPOSERS = 3  # warps, each of which takes every third stage; the producer's first one loads
AT_ONCE = 3  # blocks that a warp has in registers, of 32 for each lane
PART = 4  # rows and columns that a lane exchanges: 16 bytes
DIAGONALS = 8  # of parts in a block


def make_ready(config):
    """The mbarriers `ready`; make_barriers has to follow, which makes them visible."""
    ready = tc.mbarriers(config.stages)
    if tc.threadIdx.x == 0:
        for stage in tc.static_range(config.stages):
            ready[stage].init(TRANSPOSERS)
    return ready


def transpose_stages(pipeline, scheduler, at_once: int = AT_ONCE):
    """Transpose the blocks of every stage. Warps 1 to TRANSPOSERS of the producer run this.

    A warp takes whole stages, so that the next ones are transposed meanwhile. Before it writes, it
    has read all of what it writes to (syncwarp). Each lane then fences its writes for the async
    proxy, through which wgmma reads, and one arrives for all (syncwarp again). The next load of TMA
    into the stage comes after wgmma has read it, which comes after `ready`.

    A wait sees only the parity of a phase. So every warp waits for every stage and arrives for it,
    also where another one transposes: no stage is filled again before all have seen it full.
    Consumers take the stages in order, and lose nothing by that.
    """
    stage, phase, turn = tc.u32(0), tc.u32(0), tc.warp_id() - 1
    for _ in scheduler.tile_indices():
        for _ in tc.range(pipeline.first_k_tile, pipeline.end_k_tile):
            pipeline.full[stage].wait(phase)
            if turn == 0:
                blocks = blocks_of(pipeline, stage)
                rounds = -(-len(blocks) // at_once)
                for i in range(rounds):
                    transpose_blocks(blocks[i::rounds])
                tc.fence_proxy_async()
                tc.syncwarp()
            pipeline.ready[stage].arrive(pred=tc.lane_id() == 0)
            turn = tc.select(turn == 0, TRANSPOSERS - 1, turn - 1)
            stage, phase = pipeline.advance(stage, phase)


def blocks_of(pipeline, stage):
    """The blocks of a stage that are not K-major."""
    k_slabs, found = pipeline.config.k_slabs, []
    for operand in (pipeline.a, pipeline.b):
        if operand.landing is not None:
            for i in range(k_slabs):
                slab = operand.landing[stage * k_slabs + i]
                found += [slab[box] for box in range(operand.boxes)]
    return found


def transpose_blocks(blocks):
    """Transpose blocks of 32 x 32 elements in place, by one warp."""
    lane = tc.lane_id()
    n = lane % DIAGONALS
    steps = [i * (32 // DIAGONALS) for i in range(DIAGONALS * DIAGONALS // 32)]
    places = [((n + step + lane // DIAGONALS) % DIAGONALS * PART, n * PART) for step in steps]
    parts = [
        [block.at(k + i, n).load(PART).elements() for i in range(PART)]
        for block in blocks
        for k, n in places
    ]
    tc.syncwarp()
    for block in blocks:
        for k, n in places:
            part = parts.pop(0)
            for i in range(PART):
                block.at(n + i, k).store([row[i] for row in part])
