"""dK and dV of attention for sm_90a by wgmma and TMA. See attention_query_gradients for dQ.

The one pass of attention_backward adds dQ to sums in global memory. Above D 128 its tiles would have 64
keys, and the additions would take longer than computing the scores and dP again for dQ. Up to D 128,
these kernels run where the one pass has too few tiles, or too few registers for tanh.

A persistent CTA computes one tile of 64 keys after the other, and visits the blocks of 64 queries that
see these keys. dK and dV take D / 2 registers of a thread each, so each of two consumers has one:

    dV consumer    scores k qᵀ, 32 registers; Pᵀ = exp2 of them; dv += Pᵀ dO
    dK consumer    dPᵀ = v dOᵀ, 32 registers; dSᵀ = Pᵀ (dPᵀ - delta); dk += dSᵀ q

The dV consumer hands P over in shared memory, in f32 and in the order of registers. It is up to two
blocks ahead. Each consumer issues its next scores, or the next dP, in front of its sum. So the
tensor cores multiply while it computes the next operand of the sum.

A block of Q is free when dk has read it: the dK consumer waits for P, and so for the scores.
A block of dO is free when dv has read it, and every thread of the dK consumer has read its delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_gradients import BlockedSequences
from tensorcore_dsl.kernels.attention_scores import Sequences, Softmax
from tensorcore_dsl.kernels.hopper.attention import slabs
from tensorcore_dsl.kernels.hopper.attention_backward import produce
from tensorcore_dsl.kernels.hopper.attention_blocks import (
    CONSUMERS,
    EXCHANGE_BARRIER,
    BackwardConfig,
    BlockStages,
    GradientInputs,
    KeyTileCta,
    Visit,
    clear,
    clear_keys,
    init_barriers,
    issue,
    issue_sum,
    key_tile_and_blocks,
    softmax_of,
    state_of,
    store_sum,
)
from tensorcore_dsl.kernels.hopper.attention_key_tiles import KeyTile, KeyTileList
from tensorcore_dsl.kernels.hopper.config import WARPGROUP
from tensorcore_dsl.kernels.hopper.pipeline import consumer_state

THREADS = WARPGROUP * (1 + CONSUMERS)
P_STAGES = 2  # blocks of P in shared memory
REGISTERS = 24, 248, 232  # of a thread of each role


@dataclass
class KeyCta(KeyTileCta):
    """Shared memory and barriers of a CTA that computes dK and dV.

    Attributes
    ----------
    clean_queries, clean_grads : mbarrier
        Of packed sequences, a stage each: rows behind the last query are zero.
    p : tile
        P, times the derivative of tanh, in the order of registers: (stages, quads, threads, 4), f32.
    """

    clean_queries: Any
    clean_grads: Any
    p: Any
    full_p: Any
    empty_p: Any


@tc.kernel
def key_gradients(  # noqa: PLR0913
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    grad: tc.Array,
    lse_log2: tc.Array,
    delta: tc.Array,
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
    """Compute dK and dV. attention_gradients lists the shared arguments.

    tickets: s32, the first one counts the tiles that are drawn. shared_by, splits, section: see KeyTileList.
    """
    tc.launch_bounds(THREADS, 1)
    sequences = Sequences(traits, q.shape[2], k.shape[2], starts_q, starts_k, left, right)
    blocks = BlockedSequences(sequences, config.BM, config.BN)
    tiles = KeyTileList.of(blocks, q, k, shared_by, splits, section)
    cta = make_cta(GradientInputs(q, k, v, grad, lse_log2, delta), tiles, Softmax(traits, scale, cap), config)
    leader = tc.threadIdx.x % WARPGROUP == 0

    def producer():
        if tc.threadIdx.x == 0:
            produce(cta, tickets)

    def value_gradient():
        consume(cta, ValueGradient(cta, leader, *products(q.dtype, traits.width)), cta.values, dv, 1.0)

    def key_gradient():
        consume(cta, KeyGradient(cta, leader, *products(q.dtype, traits.depth)), cta.keys, dk, softmax_scale)

    tc.warp_specialize((1, producer), (1, value_gradient), (1, key_gradient), registers=REGISTERS)


def products(dtype, columns: int):
    """The instructions for 64 x 64 scores or dP, and for a sum of 64 keys."""
    sums = getattr(tc.wgmma, f"m64n{columns}k16")(dtype, dtype, tc.f32, source="registers")
    return tc.wgmma.m64n64k16(dtype, dtype, tc.f32), sums


def make_cta(inputs: GradientInputs, tiles: KeyTileList, softmax: Softmax, config: BackwardConfig):
    """Shared memory, tensor maps and initialised barriers. Every thread calls it."""
    traits = softmax.traits
    loaded = key_tile_and_blocks(inputs, slabs(traits.depth), slabs(traits.width), config)
    keys, values, maps, queries, grads = loaded
    p = tc.shared((P_STAGES, config.BM * config.BN // (4 * WARPGROUP), WARPGROUP, 4), tc.f32)
    drawn, full_keys, empty_keys = tc.shared(4, tc.s32), tc.mbarriers(1), tc.mbarriers(1)
    full_p, empty_p = tc.mbarriers(P_STAGES), tc.mbarriers(P_STAGES)
    clean_queries, clean_grads = tc.mbarriers(config.q_stages), tc.mbarriers(config.stages)
    if tc.threadIdx.x == 0:
        init_barriers(full_keys, empty_keys, (queries, 1), (grads, WARPGROUP + 1))
        for each in (full_p, empty_p, clean_queries, clean_grads):
            for stage in tc.static_range(len(each)):
                each[stage].init(WARPGROUP)
        tc.fence_mbarrier_init()
    tc.barrier()
    return KeyCta(
        tiles, softmax, config, keys, values, maps, queries, grads, drawn, full_keys[0], empty_keys[0],
        clean_queries, clean_grads, p, full_p, empty_p,
    )  # fmt: skip


def consume(cta: KeyCta, consumer, smem, target, factor):
    """Compute one of the two sums of each tile, and store it times `factor`, through `smem`."""
    tile_phase, visit = tc.u32(0), Visit(consumer_state(cta.config.q_stages), tc.u32(0))
    cta.full_keys.wait(tile_phase)
    while cta.drawn[0] >= 0:
        tile = cta.tiles.tile_at(cta.drawn)
        clear_keys(cta, tile)
        total, visit = sum_up(cta, consumer, tile, visit)
        # All products of both consumers have read the keys and values.
        tc.barrier(EXCHANGE_BARRIER, CONSUMERS * WARPGROUP)
        first = tile.sequence.key_start + tile.key()
        end = tile.sequence.key_start + tile.sequence.seen.keys
        origin = tile.sequence.batch, tile.group, first
        store_sum(total * factor, smem, origin, end, target, target.shape[3])
        # Loads by ordinary instructions come before TMA overwrites the keys.
        tc.fence_proxy_async()
        cta.empty_keys.arrive()
        tile_phase = tile_phase ^ 1
        cta.full_keys.wait(tile_phase)


def sum_up(cta: KeyCta, consumer, tile: KeyTile, visit):
    """One of the two sums over all visits of a tile.

    No product is in flight from one round of the loop to the next one.
    """
    block, head = tile.end - 1, tc.s32(0)
    product = consumer.issue(tile, block, visit)
    tc.wgmma_wait(0)
    operand = tc.as_operand(consumer.a_matrix(tile, block, visit, product), consumer.sums.a)
    total = consumer.sums.d.zeros()
    next_block, next_head = tile.after(block, head)
    while next_block >= tile.first:
        before, visit = visit, visit.next()
        product = consumer.issue(tile, next_block, visit)
        total = consumer.add(tile, block, before, operand, total)
        block, head = next_block, next_head
        next_block, next_head = tile.after(block, head)
        tc.wgmma_wait(1)  # the scores, or dP, are complete
        a = consumer.a_matrix(tile, block, visit, product)
        tc.wgmma_wait(0)
        consumer.release(before)
        operand = tc.as_operand(a, consumer.sums.a)
    total = consumer.add(tile, block, visit, operand, total)
    tc.wgmma_wait(0)
    consumer.release(visit)
    return total, visit.next()


@dataclass
class ValueGradient:
    """The dV consumer and its products."""

    cta: KeyCta
    leader: Any
    score: Any
    sums: Any

    def issue(self, tile: KeyTile, block, visit):
        """Issue k qᵀ."""
        cta, stage = self.cta, visit.queries.stage
        wait_for(cta, cta.queries, cta.clean_queries, tile, block, visit.queries, cleans=True)
        return issue(self.score, cta.keys, cta.queries.smem[stage], 0, cta.traits.depth)

    def a_matrix(self, tile: KeyTile, block, visit, scores):
        """Compute Pᵀ, and hand the factor of dSᵀ over to the dK consumer."""
        cta, thread = self.cta, tc.threadIdx.x % WARPGROUP
        lse_log2 = tc.load_columns(cta.queries.rows[visit.queries.stage], scores)
        p, ds_factor = softmax_of(
            cta, tile.sequence.seen, scores, block * cta.config.BM, tile.key(), lse_log2, transposed=True
        )
        state = state_of(visit.number, P_STAGES)
        cta.empty_p[state.stage].wait(state.phase ^ 1)
        elements = ds_factor.elements()
        for i in tc.static_range(len(elements) // 4):
            cta.p.at(state.stage, i, thread, 0).store(elements[4 * i : 4 * i + 4])
        tc.fence_proxy_async()  # the next block of Q comes by TMA, with its lse_log2
        cta.full_p[state.stage].arrive()
        return p

    def add(self, tile: KeyTile, block, visit, operand, total):
        """Issue dv += Pᵀ dO."""
        cta, state = self.cta, state_of(visit.number, self.cta.config.stages)
        wait_for(cta, cta.grads, cta.clean_grads, tile, block, state)
        return issue_sum(self.sums, total, operand, cta.grads.smem[state.stage])

    def release(self, visit):
        """Release the block of dO that the last sum has read."""
        self.cta.grads.empty[visit.number % self.cta.config.stages].arrive(pred=self.leader)


@dataclass
class KeyGradient:
    """The dK consumer and its products."""

    cta: KeyCta
    leader: Any
    score: Any
    sums: Any

    def issue(self, tile: KeyTile, block, visit):
        """Issue dPᵀ = v dOᵀ."""
        cta, state = self.cta, state_of(visit.number, self.cta.config.stages)
        wait_for(cta, cta.grads, cta.clean_grads, tile, block, state, cleans=True)
        return issue(self.score, cta.values, cta.grads.smem[state.stage], 0, cta.traits.width)

    def a_matrix(self, tile: KeyTile, block, visit, dp):
        """Compute dSᵀ. The factor from the dV consumer lies in the same registers as dPᵀ."""
        cta, thread = self.cta, tc.threadIdx.x % WARPGROUP
        grad_stage = visit.number % cta.config.stages
        difference = dp - tc.load_columns(cta.grads.rows[grad_stage], dp)
        tc.fence_proxy_async()  # the next block of dO comes by TMA, with its delta
        cta.grads.empty[grad_stage].arrive()
        state = state_of(visit.number, P_STAGES)
        cta.full_p[state.stage].wait(state.phase)
        words: list[Any] = []
        for i in tc.static_range(len(difference.elements()) // 4):
            words += cta.p.at(state.stage, i, thread, 0).load(4).elements()
        cta.empty_p[state.stage].arrive()
        return tc.fragment(self.score.d, words) * difference

    def add(self, tile: KeyTile, block, visit, operand, total):
        """Issue dk += dSᵀ q. P of the block has come, so Q has come before, and is clean."""
        return issue_sum(self.sums, total, operand, self.cta.queries.smem[visit.queries.stage])

    def release(self, visit):
        """Release the block of Q that the last sum has read."""
        self.cta.queries.empty[visit.queries.stage].arrive(pred=self.leader)


def wait_for(cta: KeyCta, part: BlockStages, clean, tile: KeyTile, block, state, cleans=False):
    """Wait for a block of Q or dO.

    One consumer cleans the rows behind the last query of a packed sequence: zeros must not meet NaN
    bits of the next sequence. Both consumers wait for it.
    """
    stage = state.stage
    part.full[stage].wait(state.phase)
    if cta.traits.packed:
        if cleans:
            if (block + 1) * cta.config.BM > tile.sequence.queries:
                clear(part.smem[stage], tile.sequence.queries - block * cta.config.BM, WARPGROUP)
            clean[stage].arrive()
        clean[stage].wait(state.phase)
