"""Consumers of the Hopper attention's backward kernel for D above 128.

dK and dV of 64 keys take D / 2 registers of a thread each. So each consumer has half of their columns,
for all 64 keys of a tile, and the same half of the columns of dQ. Each consumer computes the weights
and slopes of 32 of the 64 queries of a block. They meet in shared memory, as A operands of all
products:

    scores, slopes   k qᵀ and v dOᵀ for 32 queries: f32, 16 registers of each thread
    dv, dk           Pᵀ dO and dSᵀ q, half of the columns: D / 4 registers each
    dq               dS k, half of the columns: D / 4. It is handed over in two shares, one after the
                     other, through the consumer's own stage.

Shared memory holds two blocks of Q and one of dO. The next dO arrives while dQ, dK and the next scores
are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.attention import SLAB, stage_matrices
from tensorcore_dsl.kernels.hopper.attention_blocks import (
    CONSUMERS,
    EXCHANGE_BARRIER,
    following,
    stage_of,
    wait_for,
    weights_of,
)
from tensorcore_dsl.kernels.hopper.attention_dq import hand_over, hand_over_end
from tensorcore_dsl.kernels.hopper.attention_key_tiles import KeyTile
from tensorcore_dsl.kernels.hopper.config import WARPGROUP

QUERIES = 32  # of a block, whose weights one consumer computes
THREADS = CONSUMERS * WARPGROUP


@dataclass
class WideConsumer:
    """A consumer warpgroup.

    Attributes
    ----------
    number, leader : s32, pred
        Number of the consumer; whether this thread arrives for the warpgroup.
    score, of_keys, of_values : Instruction
        For scores and slopes, for its columns of dK and dQ, and for its columns of dV.
    """

    number: Any
    leader: Any
    score: Any
    of_keys: Any
    of_values: Any


def make_consumer(cta, number):
    """Consumer `number`."""
    dtype, leader = cta.keys.dtype, tc.threadIdx.x % WARPGROUP == 0
    score = getattr(tc.wgmma, f"m64n{QUERIES}k16")(dtype, dtype, tc.f32)
    of_keys, of_values = (
        getattr(tc.wgmma, f"m64n{smem.shape[0] // 2 * SLAB}k16")(dtype, dtype, tc.f32)
        for smem in (cta.keys, cta.values)
    )
    return WideConsumer(number, leader, score, of_keys, of_values)


def differentiate(cta, consumer: WideConsumer, tile: KeyTile, states):
    """Compute half of the columns of dK and dV over all visits, and of dQ of each visit.

    No product is in flight from one round of the loop to the next one.
    """
    block, head = tile.end - 1, tc.s32(0)
    wait_for(cta, cta.queries, tile, block, states[0])
    scores = issue_scores(cta, consumer, cta.keys, cta.queries.smem[states[0][0]], cta.traits.depth)
    wait_for(cta, cta.grads, tile, block, stage_of(states[1], 1))
    slopes = issue_scores(cta, consumer, cta.values, cta.grads.smem[0], cta.traits.width)
    tc.wgmma_wait(1)
    exchange(cta, consumer, tile, block, states, scores, slopes)
    sums = consumer.of_keys.d.zeros(), consumer.of_values.d.zeros()
    next_block, next_head = tile.after(block, head)
    while next_block >= tile.first:
        dq, sums = issue_sums(cta, consumer, states, sums)
        before, states = states, following(states, cta.config)
        wait_for(cta, cta.queries, tile, next_block, states[0])
        scores = issue_scores(cta, consumer, cta.keys, cta.queries.smem[states[0][0]], cta.traits.depth)
        tc.wgmma_wait(3)  # dv is complete: dO may be overwritten
        cta.grads.empty[0].arrive(pred=consumer.leader)
        tc.wgmma_wait(2)  # dq is complete
        # Between the two shares, the writer of this consumer reads the first one.
        hand_over_share(cta, consumer, dq, 0, tile, block, head)
        wait_for(cta, cta.grads, tile, next_block, stage_of(states[1], 1))
        slopes = issue_scores(cta, consumer, cta.values, cta.grads.smem[0], cta.traits.width)
        hand_over_share(cta, consumer, dq, 1, tile, block, head)
        tc.wgmma_wait(1)  # dk and the scores are complete
        cta.queries.empty[before[0][0]].arrive(pred=consumer.leader)
        block, head = next_block, next_head
        next_block, next_head = tile.after(block, head)
        exchange(cta, consumer, tile, block, states, scores, slopes)
    dq, sums = issue_sums(cta, consumer, states, sums)
    tc.wgmma_wait(0)
    cta.grads.empty[0].arrive(pred=consumer.leader)
    cta.queries.empty[states[0][0]].arrive(pred=consumer.leader)
    for part in tc.static_range(2):
        hand_over_share(cta, consumer, dq, part, tile, block, head)
    return sums, following(states, cta.config)


def issue_scores(cta, consumer: WideConsumer, a, b, depth: int):
    """Issue a bᵀ over D for the consumer's queries, as one group. a, b: (slabs, 64, 64)."""
    slabs = b.shape[0]
    shape, strides = (CONSUMERS, slabs, QUERIES, SLAB), (QUERIES * SLAB, 64 * SLAB, SLAB, 1)
    rows, acc = b.with_parts(shape=shape, strides=strides)[consumer.number], consumer.score.d.zeros()
    tc.wgmma_fence()
    for slab in tc.static_range(-(-depth // SLAB)):
        used = min(-(-depth // 16) * 16 - slab * SLAB, SLAB)
        acc = tc.wgmma_async(
            consumer.score, acc, a[slab, :, :used], rows[slab, :, :used], accumulate=slab > 0
        )
    tc.wgmma_commit()
    return acc


def exchange(cta, consumer: WideConsumer, tile: KeyTile, block, states, scores, slopes):
    """Put Pᵀ and dSᵀ of the consumer's queries into shared memory.

    `scores` are complete, `slopes` may be in flight. In the end, no product is in flight, and both
    consumers have written.
    """
    first = QUERIES * consumer.number
    query = block * cta.config.BM + first
    shifts = tc.load_columns(cta.queries.rows[states[0][0]], scores, origin=first)
    weights, factors = weights_of(cta, scores, tile, query, QUERIES, tile.key(), shifts)
    tc.wgmma_wait(0)
    slopes = factors * (slopes - tc.load_columns(cta.grads.rows[0], slopes, origin=first))
    # Both consumers have waited for their products of the block before, which read P and dS.
    tc.barrier(EXCHANGE_BARRIER, THREADS)
    for number, value in enumerate((weights, slopes)):
        stage_matrices(value.to(cta.keys.dtype), [cta.exchange[number, 0]], 0, first)
    tc.fence_proxy_async()
    tc.barrier(EXCHANGE_BARRIER, THREADS)


def issue_sums(cta, consumer: WideConsumer, states, sums):
    """Issue dv += Pᵀ dO, dq = dS k and dk += dSᵀ q for the consumer's columns, one group each."""
    (dk, dv), weights, slopes = sums, cta.exchange[0, 0], cta.exchange[1]
    queries, grads = columns(cta.queries.smem[states[0][0]]), columns(cta.grads.smem[0])
    dq = consumer.of_keys.d.zeros()
    tc.wgmma_fence()
    dv = tc.wgmma_async(consumer.of_values, dv, weights, grads[consumer.number], b_major="mn")
    tc.wgmma_commit()
    keys = columns(cta.keys)[consumer.number]
    dq = tc.wgmma_async(consumer.of_keys, dq, slopes, keys, accumulate=False, a_major="mn", b_major="mn")
    tc.wgmma_commit()
    dk = tc.wgmma_async(consumer.of_keys, dk, slopes[0], queries[consumer.number], b_major="mn")
    tc.wgmma_commit()
    return dq, (dk, dv)


def columns(smem):
    """View (slabs, 64, 64) as two halves of the columns: (2, slabs / 2, 64, 64)."""
    half = smem.shape[0] // 2
    strides = half * 64 * SLAB, 64 * SLAB, SLAB, 1
    return smem.with_parts(shape=(CONSUMERS, half, 64, SLAB), strides=strides)


def hand_over_share(cta, consumer: WideConsumer, dq, part, tile: KeyTile, block, head):
    """Hand over 64 columns of dq through the stage of this consumer."""
    elements, size = dq.elements(), len(dq.elements()) // 2
    # The stage is used twice in each visit, and starts out empty.
    state, share = (consumer.number, tc.u32(1 - part)), elements[part * size : (part + 1) * size]
    hand_over(cta, consumer, share, state, tile, block, head, 2 * consumer.number + part)


def end(cta, consumer: WideConsumer):
    """Tell the consumer's writer that no block follows."""
    hand_over_end(cta, consumer.leader, consumer.number, tc.u32(1))
