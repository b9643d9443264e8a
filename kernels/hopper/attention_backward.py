"""Gradients of attention for sm_90a by wgmma and TMA, D up to 128: dQ, dK and dV in one pass.

A persistent CTA computes one tile of 128 keys after the other. K and V of the tile stay in shared
memory. The CTA visits the blocks of BM queries that see these keys, and loads Q and dO of each block
into pipelines of stages. Two consumer warpgroups have 64 keys each.

    scores      k qᵀ: f32, 32 registers of each thread; Pᵀ = exp2 of them
    dP          dPᵀ = v dOᵀ: f32, 32; dSᵀ = Pᵀ (dPᵀ - delta)
    dv, dk      sums of Pᵀ dO and dSᵀ q over all blocks: f32, D / 2 each. Pᵀ and dSᵀ are 16-bit A
                operands in registers.
    dq          dS k of the block, over the keys of both consumers: f32, BM D / 256. dS goes through
                shared memory. Each consumer computes half of the rows (D up to 64), or 64 columns.

The scores of the next block are issued before the consumer waits for dq of this block. So the tensor
cores multiply while the consumer hands dq over, and while it computes the next Pᵀ.

Two other warps of the producer warpgroup add dq to the f32 sums in global memory, by bulk copies.
Tiles take turns at the sums of a block, in the order of keys, so that the bits of the sum are fixed.
A tile waits only for tiles in front of it in the list that CTAs draw from. A CTA computes its tiles
in the order of the list. So tiles never wait in a circle, whether all CTAs are resident or not. In
the list, tiles of several heads alternate, and each tile goes from the last block to the first. By
then, the previous tile of the head has usually added its share.

The order of the products follows FlashAttention 3 (Shah et al., arXiv:2407.08608).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_gradients import BlockedSequences
from tensorcore_dsl.kernels.attention_scores import Sequences, Softmax
from tensorcore_dsl.kernels.hopper.attention import SLAB, slabs, stage_matrices
from tensorcore_dsl.kernels.hopper.attention_blocks import (
    CONSUMERS,
    EXCHANGE_BARRIER,
    READ_BARRIER,
    BackwardConfig,
    BlockStages,
    GradientInputs,
    KeyTileCta,
    Visit,
    clear_keys,
    init_barriers,
    issue,
    issue_sum,
    key_tile_and_blocks,
    softmax_of,
    state_of,
    store_sum,
    wait_for,
)
from tensorcore_dsl.kernels.hopper.attention_dq import (
    DQ_STAGES,
    SHARES,
    add_up,
    dq_product,
    hand_over,
    hand_over_end,
)
from tensorcore_dsl.kernels.hopper.attention_key_tiles import KeyTile, KeyTileList
from tensorcore_dsl.kernels.hopper.config import WARPGROUP
from tensorcore_dsl.kernels.hopper.pipeline import consumer_state, producer_state

THREADS = WARPGROUP * (1 + CONSUMERS)
REGISTERS = 24, 240  # of a thread of the producer and of a consumer


@dataclass
class BackwardCta(KeyTileCta):
    """Shared memory and barriers of a CTA of the one pass.

    Attributes
    ----------
    exchange : tile
        dSᵀ of both consumers, as (parts, 1, BN, 64).
    dq, dq_visit : tile
        Shares of dQ in the order of registers, as (stages, shares, quads, threads, 4), f32. For each
        stage the sequence, head of q, block, and number of the tile. Sequence -1: no block follows.
        Head -1: the tile adds nothing.
    """

    exchange: Any
    dq: Any
    dq_visit: Any
    full_dq: Any
    empty_dq: Any


@tc.kernel
def attention_backward_kernel(  # noqa: PLR0913
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    grad: tc.Array,
    lse_log2: tc.Array,
    delta: tc.Array,
    sums: tc.Array,
    turns: tc.Array,
    tickets: tc.Array,
    dk: tc.Array,
    dv: tc.Array,
    starts_q: tc.Array,
    starts_k: tc.Array,
    scale: tc.f32,
    cap: tc.f32,
    softmax_scale: tc.f32,
    left: tc.s32,
    right: tc.s32,
    shared_by: tc.s32,
    splits: tc.s32,
    section: tc.s32,
    config: tc.Const,
    traits: tc.Const,
):
    """Compute dK and dV, and add dQ to `sums`. attention_gradients lists the shared arguments.

    sums: (slots times SHARES, words), f32, for `finish`. turns: s32, the tiles that have added to a block.
    tickets: s32, the first one counts the tiles that are drawn. shared_by, splits,
    section: see KeyTileList.
    """
    tc.launch_bounds(THREADS, 1)
    softmax = Softmax(traits, scale, cap)
    sequences = Sequences(traits, q.shape[2], k.shape[2], starts_q, starts_k, left, right)
    blocks = BlockedSequences(sequences, config.BM, config.BN)
    tiles = KeyTileList.of(blocks, q, k, shared_by, splits, section)
    cta = make_cta(GradientInputs(q, k, v, grad, lse_log2, delta), tiles, softmax, config)

    def producer():
        if tc.threadIdx.x == 0:
            produce(cta, tickets)
        for writer in tc.static_range(DQ_STAGES):
            if tc.threadIdx.x == 32 * (writer + 1):
                add_up(cta, sums, turns, writer)

    def consumers(number):
        consume(cta, number, dk, dv, softmax_scale)

    tc.warp_specialize((1, producer), (CONSUMERS, consumers), registers=REGISTERS)


def make_cta(inputs: GradientInputs, tiles: KeyTileList, softmax: Softmax, config: BackwardConfig):
    """Shared memory, tensor maps and initialised barriers. Every thread calls it."""
    traits, dtype = softmax.traits, inputs.q.dtype
    loaded = key_tile_and_blocks(inputs, config.dq_slabs, slabs(traits.width), config)
    keys, values, maps, queries, grads = loaded
    exchange = tc.shared((config.BM // SLAB, 1, config.BN, SLAB), dtype, swizzle=128)
    quads = dq_product(dtype).d.layout.slots // 4
    dq = tc.shared((DQ_STAGES, SHARES, quads, WARPGROUP, 4), tc.f32)
    drawn, dq_visit = tc.shared(4, tc.s32), tc.shared((DQ_STAGES, 4), tc.s32)
    full_keys, empty_keys = tc.mbarriers(1), tc.mbarriers(1)
    full_dq, empty_dq = tc.mbarriers(DQ_STAGES), tc.mbarriers(DQ_STAGES)
    if tc.threadIdx.x == 0:
        init_barriers(full_keys, empty_keys, (queries, CONSUMERS), (grads, CONSUMERS))
        for stage in tc.static_range(DQ_STAGES):
            full_dq[stage].init(CONSUMERS * WARPGROUP)
            empty_dq[stage].init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    return BackwardCta(
        tiles, softmax, config, keys, values, maps, queries, grads, drawn, full_keys[0], empty_keys[0],
        exchange, dq, dq_visit, full_dq, empty_dq,
    )  # fmt: skip


# -- producer ---------------------------------------------------------------------------------


def produce(cta: KeyTileCta, tickets):
    """Draw tiles, and load their keys, values and blocks of queries. One thread runs this.

    A new barrier is in phase 0, so a wait for parity 1 returns at once: all stages start out empty.
    """
    visit = Visit(producer_state(cta.config.q_stages), tc.u32(cta.config.stages))
    sequence, before = tc.s32(0), tc.s32(0)
    ticket = tc.atomic("add", tickets.at(0), 1)
    # `drawn` is published by the arrival at `full_keys`. It also keeps the parity for `empty_keys`:
    # this thread has no register left for it.
    cta.drawn[0], cta.drawn[3] = 0, 1
    while cta.drawn[0] >= 0:
        drawn, head, number, sequence, before = cta.tiles.locate(ticket, sequence, before)
        cta.empty_keys.wait(cta.drawn[3])
        cta.drawn[3] = cta.drawn[3] ^ 1
        cta.drawn[0], cta.drawn[1], cta.drawn[2] = drawn, head, number
        if drawn >= 0:
            visit = load_tile(cta, visit)
            ticket = tc.atomic("add", tickets.at(0), 1)
    cta.full_keys.arrive()


def load_tile(cta: KeyTileCta, visit):
    """Load the keys and values of a tile, then Q and dO of each block that it visits."""
    tile, full = cta.tiles.tile_at(cta.drawn), cta.full_keys
    kv_head = cta.tiles.kv_head(tile)
    full.arrive_expect_tx(sum(x.shape[0] * m.bytes for x, m in zip((cta.keys, cta.values), cta.maps)))
    for smem, source in zip((cta.keys, cta.values), cta.maps):
        for slab in tc.static_range(smem.shape[0]):
            index = tile.sequence.batch, kv_head, tile.sequence.key_start + tile.key(), slab * SLAB
            tc.tma_load(smem[slab], source, index, full)
    block, head = tile.end - 1, tc.s32(0)
    while block >= tile.first:
        load_block(cta, cta.queries, tile, block, head, visit.queries)
        load_block(cta, cta.grads, tile, block, head, state_of(visit.number, cta.config.stages))
        visit = visit.next()
        block, head = tile.after(block, head)
    return visit


def load_block(cta: KeyTileCta, part: BlockStages, tile: KeyTile, block, head, state):
    """Load a block of Q or dO and the numbers of its rows, when the stage is empty."""
    stage, sequence = state.stage, tile.sequence
    full = part.full[stage]
    part.empty[stage].wait(state.phase)
    slabs = part.smem.shape[1]
    full.arrive_expect_tx(slabs * part.map.bytes + part.row_map.bytes)
    for slab in tc.static_range(slabs):
        row = sequence.start + block * sequence.BM
        index = sequence.batch, cta.tiles.head(tile, head), row, slab * SLAB
        tc.tma_load(part.smem[stage, slab], part.map, index, full)
    first = sequence.slot(block, cta.tiles.head(tile, head), cta.tiles.heads) * sequence.BM
    tc.tma_load(part.rows[stage], part.row_map, (first,), full)


# -- consumers --------------------------------------------------------------------------------


def consume(cta: BackwardCta, number, dk, dv, softmax_scale):
    """Compute a half of dK and dV of each tile, and of dQ of each block."""
    tile_phase, visit = tc.u32(0), Visit(consumer_state(cta.config.q_stages), tc.u32(0))
    consumer = make_consumer(cta, number)
    cta.full_keys.wait(tile_phase)
    while cta.drawn[0] >= 0:
        tile = cta.tiles.tile_at(cta.drawn)
        clear_keys(cta, tile)
        (dk_sum, dv_sum), visit = differentiate(consumer, tile, visit)
        # All products of both consumers have read the keys.
        tc.barrier(EXCHANGE_BARRIER, CONSUMERS * WARPGROUP)
        first = tile.sequence.key_start + tile.key()
        row, end = first + 64 * number, tile.sequence.key_start + tile.sequence.seen.keys
        for target, value, smem, width in (
            (dk, dk_sum * softmax_scale, cta.keys, cta.traits.depth),
            (dv, dv_sum, cta.values, cta.traits.width),
        ):
            origin = tile.sequence.batch, tile.group, row
            store_sum(value, halves(smem)[number], origin, end, target, width)
        # Loads by ordinary instructions come before TMA overwrites the keys.
        tc.fence_proxy_async()
        cta.empty_keys.arrive()
        tile_phase = tile_phase ^ 1
        cta.full_keys.wait(tile_phase)
    for stage in tc.static_range(DQ_STAGES):
        hand_over_end(cta, consumer.leader & (number == 0), state_of(visit.number + 2 + stage, DQ_STAGES))


def halves(smem):
    """View (slabs, 128, 64) as two halves of the rows: (2, slabs, 64, 64)."""
    shape, strides = (CONSUMERS, smem.shape[0], 64, SLAB), (64 * SLAB, 128 * SLAB, SLAB, 1)
    return smem.with_parts(shape=shape, strides=strides)


@dataclass
class Consumer:
    """A consumer warpgroup of a CTA: its products, and its views of keys and values.

    Attributes
    ----------
    number, leader : s32, pred
        Number of the consumer; whether this thread arrives for the warpgroup.
    score, dk, dv, dq : Instruction
        For scores and dP, for dK, for dV, and for a share of dQ.
    k_rows, v_rows : tile
        Its 64 keys and values: (slabs, 64, 64).
    """

    cta: BackwardCta
    number: Any
    leader: Any
    score: Any
    dk: Any
    dv: Any
    dq: Any
    k_rows: Any
    v_rows: Any


def make_consumer(cta: BackwardCta, number):
    """Consumer `number`."""
    dtype, traits, named = cta.keys.dtype, cta.traits, tc.wgmma
    score = named.m64n64k16(dtype, dtype, tc.f32)
    dk = getattr(named, f"m64n{traits.depth}k16")(dtype, dtype, tc.f32, source="registers")
    dv = getattr(named, f"m64n{traits.width}k16")(dtype, dtype, tc.f32, source="registers")
    dq = dq_product(dtype)
    k_rows, v_rows = halves(cta.keys)[number], halves(cta.values)[number]
    leader = tc.threadIdx.x % WARPGROUP == 0
    return Consumer(cta, number, leader, score, dk, dv, dq, k_rows, v_rows)


def differentiate(consumer: Consumer, tile: KeyTile, visit):
    """Compute dK and dV of 64 keys over all visits, and dQ of each visit.

    A block has one or two parts of 64 queries. No product is in flight from one round of the loop to
    the next one: ptxas would put all products one after the other.
    """
    cta = consumer.cta
    block, head = tile.end - 1, tc.s32(0)
    wait_for(cta, cta.queries, tile, block, visit.queries)
    scores = issue_scores(consumer, visit, 0)
    wait_for(cta, cta.grads, tile, block, state_of(visit.number, cta.config.stages))
    dp = issue_dp(consumer, visit, 0)
    tc.wgmma_wait(1)  # the scores are complete
    sums = consumer.dk.d.zeros(), consumer.dv.d.zeros()
    operand, sums = step_dv_ds(consumer, tile, block, visit, 0, scores, dp, sums)
    next_block, next_head = tile.after(block, head)
    while next_block >= tile.first:
        operand, sums = other_parts(consumer, tile, block, visit, operand, sums)
        dq = issue_dq(consumer)
        before, visit = visit, visit.next()
        wait_for(cta, cta.queries, tile, next_block, visit.queries)
        scores = issue_scores(consumer, visit, 0)
        sums = issue_dk(consumer, before.queries.stage, cta.config.parts - 1, operand, sums)
        tc.wgmma_wait(2)  # dq is complete
        tc.barrier_arrive(READ_BARRIER + consumer.number, CONSUMERS * WARPGROUP)
        hand_over(consumer, dq.elements(), state_of(before.number + 2, DQ_STAGES), tile, block, head)
        wait_for(cta, cta.grads, tile, next_block, state_of(visit.number, cta.config.stages))
        dp = issue_dp(consumer, visit, 0)
        tc.wgmma_wait(2)  # the scores are complete; dk and dP may still be in flight
        block, head = next_block, next_head
        next_block, next_head = tile.after(block, head)
        operand, sums = step_dv_ds(consumer, tile, block, visit, 0, scores, dp, sums, before.queries.stage)
    operand, sums = other_parts(consumer, tile, block, visit, operand, sums)
    dq = issue_dq(consumer)
    sums = issue_dk(consumer, visit.queries.stage, cta.config.parts - 1, operand, sums)
    tc.wgmma_wait(0)
    hand_over(consumer, dq.elements(), state_of(visit.number + 2, DQ_STAGES), tile, block, head)
    cta.queries.empty[visit.queries.stage].arrive(pred=consumer.leader)
    return sums, visit.next()


def other_parts(consumer: Consumer, tile: KeyTile, block, visit, operand, sums):
    """Continue with the second part of a block, if it has one."""
    cta = consumer.cta
    for part in tc.static_range(1, cta.config.parts):
        scores = issue_scores(consumer, visit, part)
        sums = issue_dk(consumer, visit.queries.stage, part - 1, operand, sums)
        dp = issue_dp(consumer, visit, part)
        tc.wgmma_wait(2)
        operand, sums = step_dv_ds(consumer, tile, block, visit, part, scores, dp, sums)
    return operand, sums


def step_dv_ds(consumer: Consumer, tile: KeyTile, block, visit, part, scores, dp, sums, before=None):
    """Compute Pᵀ and dSᵀ of one part of a block: add Pᵀ dO to dv, and put dSᵀ into shared memory.

    `scores` are complete. `dp`, and dk of the part before, may be in flight. In the end, no product
    is in flight. `before`: the stage of Q of the block before, which is free then. Returns
    dSᵀ as an operand, and the sums.
    """
    cta = consumer.cta
    rows, (dk, dv), stage = slice(64 * part, 64 * part + 64), sums, visit.number % cta.config.stages
    query = block * cta.config.BM + 64 * part
    lse_log2 = tc.load_columns(cta.queries.rows[visit.queries.stage, rows], scores)
    key = tile.key() + 64 * consumer.number
    p, ds_factor = softmax_of(cta, tile.sequence.seen, scores, query, key, lse_log2, transposed=True)
    operand = tc.as_operand(p, consumer.dv.a)
    dv = issue_sum(consumer.dv, dv, operand, cta.grads.smem[stage, :, rows])
    tc.wgmma_wait(1)  # dP and dk are complete
    if before is not None:
        cta.queries.empty[before].arrive(pred=consumer.leader)
    ds = ds_factor * (dp - tc.load_columns(cta.grads.rows[stage, rows], dp))
    if before is not None:
        tc.barrier(READ_BARRIER + 1 - consumer.number, CONSUMERS * WARPGROUP)
    stage_matrices(ds.to(cta.keys.dtype), [cta.exchange[part, 0]], 64 * consumer.number)
    operand = tc.as_operand(ds, consumer.dk.a)
    if part == cta.config.parts - 1:
        # Behind the barrier, dS of both consumers is in shared memory.
        tc.fence_proxy_async()
        tc.barrier(EXCHANGE_BARRIER, CONSUMERS * WARPGROUP)
    tc.wgmma_wait(0)  # dv is complete: the registers of its operand are free for the next scores
    if part == cta.config.parts - 1:
        cta.grads.empty[stage].arrive(pred=consumer.leader)
    return operand, (dk, dv)


def issue_scores(consumer: Consumer, visit, part):
    """Issue k qᵀ of 64 queries."""
    cta = consumer.cta
    k_rows = consumer.k_rows
    return issue(consumer.score, k_rows, cta.queries.smem[visit.queries.stage], part, cta.traits.depth)


def issue_dp(consumer: Consumer, visit, part):
    """Issue dPᵀ = v dOᵀ of 64 queries."""
    cta = consumer.cta
    stage = visit.number % cta.config.stages
    return issue(consumer.score, consumer.v_rows, cta.grads.smem[stage], part, cta.traits.width)


def issue_dk(consumer: Consumer, stage, part, operand, sums):
    """Issue dk += dSᵀ q of 64 queries."""
    cta = consumer.cta
    dk, dv = sums
    queries = cta.queries.smem[stage, : slabs(cta.traits.depth), 64 * part : 64 * part + 64]
    return issue_sum(consumer.dk, dk, operand, queries), dv


def issue_dq(consumer: Consumer):
    """Issue this consumer's share of dS k: 64 of 128 rows, or 64 rows and one slab of columns."""
    cta = consumer.cta
    shape, strides = (cta.keys.shape[0], 1, 128, SLAB), (128 * SLAB, 128 * SLAB, SLAB, 1)
    keys, by_rows = cta.keys.with_parts(shape=shape, strides=strides), cta.config.parts > 1
    ds = cta.exchange[consumer.number if by_rows else 0]
    columns = keys[0 if by_rows else consumer.number]
    acc = consumer.dq.d.zeros()
    tc.wgmma_fence()
    acc = tc.wgmma_async(consumer.dq, acc, ds, columns, accumulate=False, a_major="mn", b_major="mn")
    tc.wgmma_commit()
    return acc
