"""dQ of Hopper attention: consumers hand over their shares, writers add them to sums in global memory.

Shares lie in shared memory, and the sums of a block in global memory, in the order of the registers
of the consumers. So a bulk copy adds them up without rearranging them. `finish` reads them into
registers again, and stores dQ.
"""

from __future__ import annotations

from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_gradients import BlockedSequences
from tensorcore_dsl.kernels.attention_scores import Sequences
from tensorcore_dsl.kernels.hopper.attention import SLAB, stage_matrices, store_rows
from tensorcore_dsl.kernels.hopper.attention_blocks import CONSUMERS
from tensorcore_dsl.kernels.hopper.attention_key_tiles import KeyTile
from tensorcore_dsl.kernels.hopper.config import WARPGROUP
from tensorcore_dsl.kernels.hopper.streamk_scheduler import load_acquire

DQ_STAGES = 2  # stages of dQ; a writer for each
SHARES = CONSUMERS  # of dQ of a block, of 64 x 64 elements each
REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"


def dq_product(dtype):
    """The instruction for a consumer's share of dQ: 64 of 128 rows, or 64 rows and a slab of columns."""
    return tc.wgmma.m64n64k16(dtype, dtype, tc.f32)


def hand_over(consumer, dq, state, tile: KeyTile, block, head):
    """Write the consumer's share of dQ to shared memory in the order of registers, for `add_up`.

    state: the position of the stage, with the phase in which it is empty.
    """
    cta, stage = consumer.cta, state.stage
    cta.empty_dq[stage].wait(state.phase)
    if consumer.leader & (consumer.number == 0):
        entry = cta.dq_visit[stage]
        entry[0], entry[1] = cta.drawn[0], tc.select(tile.active, cta.tiles.head(tile, head), -1)
        entry[2], entry[3] = block, cta.drawn[2]
    elements, thread = dq, tc.threadIdx.x % WARPGROUP
    for i in tc.static_range(len(elements) // 4):
        cta.dq.at(stage, consumer.number, i, thread, 0).store(elements[4 * i : 4 * i + 4])
    tc.fence_proxy_async()
    cta.full_dq[stage].arrive()


def hand_over_end(cta, is_first, state):
    """Tell the writer of a stage that no block follows."""
    cta.empty_dq[state.stage].wait(state.phase)
    if is_first:
        cta.dq_visit[state.stage, 0] = -1
    cta.full_dq[state.stage].arrive()


def add_up(cta, sums, turns, writer):
    """Add the shares of dQ of a stage to the sums of their blocks. One thread runs this."""
    dq, visit, full, empty = (x[writer] for x in (cta.dq, cta.dq_visit, cta.full_dq, cta.empty_dq))
    phase = tc.u32(0)
    full.wait(phase)
    while visit[0] >= 0:
        head, block = visit[1], visit[2]
        if head >= 0:
            sequence = cta.tiles.blocks.at(visit[0])
            slot, turn = sequence.slot(block, head, cta.tiles.heads), sequence.turn(visit[3], block)
            row = slot * SHARES
            add(dq, empty, sums.at(row, 0), turns.at(row), turn)
        else:
            empty.arrive()
        phase = phase ^ 1
        full.wait(phase)


def add(dq, empty, target, turns, turn):
    """Add dQ to the sums of a block, in turn. The first tile stores them.

    The release hands on what the bulk copy has written, once it is complete.
    """
    size = dq.size * 4
    while load_acquire(turns) != turn:
        pass
    tc.fence_proxy_async("global")
    if turn == 0:
        tc.emit("cp.async.bulk.global.shared::cta.bulk_group", target.address, dq.address, size)
    else:
        tc.emit(REDUCE, target.address, dq.address, size)
    tc.tma_store_commit()
    tc.tma_store_wait(0, read=True)
    empty.arrive()
    tc.tma_store_wait(0)
    tc.fence_proxy_async("global")
    tc.reduce("add", turns, 1, order="release")


@tc.kernel(threads=2 * WARPGROUP)
def finish(
    sums: tc.Array,
    dq: tc.Array,
    starts_q: tc.Array,
    starts_k: tc.Array,
    keys: tc.s32,
    softmax_scale: tc.f32,
    left: tc.s32,
    right: tc.s32,
    config: tc.Const,
    traits: tc.Const,
):
    """Store dq = softmax_scale times the sums of each block, which lie in the order of registers.

    dq: (batch, heads, queries, D). sums: (slots times SHARES, words), f32.
    Grid: (blocks of the longest sequence, or more; heads; sequences).
    """
    BM, queries = config.BM, dq.shape[2]
    sequences = Sequences(traits, queries, keys, starts_q, starts_k, left, right)
    sequence = BlockedSequences(sequences, BM, config.BN).at(tc.s32(tc.blockIdx.z))
    block, head = tc.s32(tc.blockIdx.x), tc.s32(tc.blockIdx.y)
    if block >= sequence.blocks():
        return
    product = dq_product(dq.dtype)
    staging = tc.shared((2, 1, 64, SLAB), dq.dtype, swizzle=128)
    first, end = sequence.visitors(block)
    number, thread = tc.threadIdx.x // WARPGROUP, tc.threadIdx.x % WARPGROUP
    slot, quads = sequence.slot(block, head, dq.shape[1]), product.d.layout.slots // 4
    words: list[Any] = []
    for i in tc.static_range(quads):
        word = (i * WARPGROUP + thread) * 4
        words += sums.at(slot * SHARES + number, word).load(4, pred=first < end).elements()
    stage_matrices((tc.fragment(product.d, words) * softmax_scale).to(dq.dtype), [staging[number, 0]], 0)
    tc.syncwarp()
    row, column = sequence.start + block * BM, 64 * number
    if config.parts > 1:
        row, column = row + 64 * number, 0
    last = sequence.start + sequence.queries
    store_rows(staging[number], (sequence.batch, head, row), last, dq, traits.depth, column)
