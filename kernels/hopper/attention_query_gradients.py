"""dQ of attention for sm_90a by wgmma and TMA. See attention_key_gradients for dK and dV.

A persistent CTA computes tiles of 128 queries of one head, as the forward kernel does. Q and dO of the
tile stay in shared memory; K and V pass through pipelines of stages, in tiles of 64 keys from the last
one to the first. Each of two consumers has 64 queries:

    scores, dP       q kᵀ and dO vᵀ: f32, 32 registers of each thread
    dS               16-bit A operands in registers: 16
    dq               dS k, summed over key tiles: f32, D / 2

A consumer issues dq of a tile and the scores and dP of the next one together. The consumers take
turns at it (ping-pong): while one computes dS, the tensor cores multiply for the other one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_gradients import BlockedSequences
from tensorcore_dsl.kernels.attention_scores import Sequences, Softmax
from tensorcore_dsl.kernels.hopper.attention import (
    ORDER_BARRIER,
    SLAB,
    TileStages,
    load_keys,
    load_queries,
    slabs,
    stage_matrices,
    store_rows,
)
from tensorcore_dsl.kernels.hopper.attention_backward import REGISTERS
from tensorcore_dsl.kernels.hopper.attention_blocks import (
    CLEAR_BARRIER,
    CONSUMERS,
    GradientInputs,
    clear,
    issue,
    issue_sum,
    softmax_of,
    state_of,
)
from tensorcore_dsl.kernels.hopper.attention_tiles import QueryTile, TileList
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, SMEM_RESERVED, WARPGROUP
from tensorcore_dsl.kernels.hopper.pipeline import consumer_state

BM, BN = 64 * CONSUMERS, 64  # queries and keys of a tile
THREADS = WARPGROUP * (1 + CONSUMERS)


@dataclass
class QueryCta:
    """Shared memory and barriers of a CTA.

    Attributes
    ----------
    queries, grads, keys, values : TileStages
        Q and dO have one stage, which is free when dQ is stored. The memory of Q stages dQ.
    drawn : tile
        Sequence * heads + head, and the first query, or -1 behind the last tile.
    """

    queries: TileStages
    grads: TileStages
    keys: TileStages
    values: TileStages
    drawn: Any
    tiles: TileList
    blocks: BlockedSequences
    softmax: Softmax
    score: Any
    sums: Any
    traits: Any


@tc.kernel
def query_gradients(  # noqa: PLR0913
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    grad: tc.Array,
    lse_log2: tc.Array,
    delta: tc.Array,
    tickets: tc.Array,
    dq: tc.Array,
    starts_q: tc.Array,
    starts_k: tc.Array,
    scale: tc.f32,
    cap: tc.f32,
    softmax_scale: tc.f32,
    left: tc.s32,
    right: tc.s32,
    section: tc.s32,
    traits: tc.Const,
):
    """Compute dQ. attention_gradients lists the shared arguments.

    tickets: s32, the second one counts the tiles that are drawn. section: see TileList.
    """
    tc.launch_bounds(THREADS, 1)
    sequences = Sequences(traits, q.shape[2], k.shape[2], starts_q, starts_k, left, right)
    heads, count = q.shape[1], starts_q.shape[0] - 1 if traits.packed else q.shape[0]
    group = q.shape[1] // k.shape[1]
    tiles = TileList(sequences, count, section, heads, group, BM, BN)
    inputs = GradientInputs(q, k, v, grad, lse_log2, delta)
    cta = make_cta(inputs, tiles, Softmax(traits, scale, cap))

    def producer():
        if tc.threadIdx.x == 0:
            produce(cta, tickets)

    def consumers(number):
        consume(cta, inputs, number, dq, softmax_scale)

    tc.warp_specialize((1, producer), (CONSUMERS, consumers), registers=REGISTERS)


def make_cta(inputs: GradientInputs, tiles: TileList, softmax: Softmax):
    """Shared memory, tensor maps and initialised barriers. Every thread calls it."""
    traits, dtype, blocks = softmax.traits, inputs.q.dtype, BlockedSequences(tiles.sequences, 64, BN)
    arrays = inputs.q, inputs.grad, inputs.k, inputs.v
    key_slabs, value_slabs = slabs(traits.depth), slabs(traits.width)
    size = 2 * 64 * SLAB  # bytes of a slab of 64 rows
    free = (SMEM_BYTES - SMEM_RESERVED) // size - CONSUMERS * (key_slabs + value_slabs)
    # A stage of V is free earlier than one of K, and needed later.
    k_stages = min((free - value_slabs) // key_slabs, 3)
    v_stages = min((free - k_stages * key_slabs) // value_slabs, 3)

    shapes = (
        (1, CONSUMERS, key_slabs),
        (1, CONSUMERS, value_slabs),
        (k_stages, key_slabs),
        (v_stages, value_slabs),
    )
    # Tiles first: they begin at multiples of 1024 bytes.
    tiles_of = [tc.shared((*shape, 64, SLAB), dtype, swizzle=128) for shape in shapes]
    queries, grads, keys, values = (
        TileStages(
            smem,
            tc.tensor_map(x, (1, 1, 64, SLAB), swizzle=128),
            tc.mbarriers(smem.shape[0]),
            tc.mbarriers(smem.shape[0]),
        )
        for x, smem in zip(arrays, tiles_of, strict=True)
    )
    drawn = tc.shared((1, 2), tc.s32)
    score = tc.wgmma.m64n64k16(dtype, dtype, tc.f32)
    sums = getattr(tc.wgmma, f"m64n{traits.depth}k16")(dtype, dtype, tc.f32, source="registers")
    if tc.threadIdx.x == 0:
        for part, arrivals in (
            (queries, CONSUMERS * WARPGROUP), (grads, 1), (keys, CONSUMERS), (values, CONSUMERS)
        ):  # fmt: skip
            for stage in tc.static_range(part.smem.shape[0]):
                part.full[stage].init(1)
                part.empty[stage].init(arrivals)
        tc.fence_mbarrier_init()
    tc.barrier()
    return QueryCta(queries, grads, keys, values, drawn, tiles, blocks, softmax, score, sums, traits)


def produce(cta: QueryCta, tickets):
    """Draw query tiles, and load their rows, keys and values. One thread runs this.

    A new barrier is in phase 0, so a wait for parity 1 returns at once: all stages start out empty.
    """
    tiles, drawn, tile_phase, visit = cta.tiles, cta.drawn, tc.u32(1), tc.u32(0)
    line, first, _, sequence, before = tiles.locate(tc.s32(tc.blockIdx.x), tc.s32(0), tc.s32(0))
    while first >= 0:
        tile = tiles.tile_at(line, first)
        cta.queries.empty[0].wait(tile_phase)
        tile_phase = tile_phase ^ 1
        drawn[0, 0], drawn[0, 1] = line, first  # published by the arrival below
        load_queries(cta.queries, tile, 0, cta.traits, slabs(cta.traits.depth))
        load_queries(cta.grads, tile, 0, cta.traits, slabs(cta.traits.width))
        key = tile.last
        for _ in tc.range(0, tile.count):
            for part in (cta.keys, cta.values):
                state = state_of(visit, part.smem.shape[0])
                load_keys(part, tile, key, replace(state, phase=state.phase ^ 1), tiles, None)
            key, visit = key - BN, visit + 1
        ticket = tc.atomic("add", tickets.at(1), 1)
        line, first, _, sequence, before = tiles.locate(tc.gridDim.x + ticket, sequence, before)
    cta.queries.empty[0].wait(tile_phase)
    drawn[0, 1] = -1
    cta.queries.full[0].arrive()


@dataclass
class QueryRows:
    """The 64 queries of a consumer in a query tile.

    Attributes
    ----------
    consumer : s32
        Number of the consumer.
    first : s32
        The first query.
    lse_log2, delta : RowValues
        Numbers of each query, see attention_gradients.
    """

    cta: QueryCta
    consumer: Any
    tile: QueryTile
    first: Any
    lse_log2: Any
    delta: Any


def consume(cta: QueryCta, inputs: GradientInputs, number, dq, softmax_scale):
    """Compute dQ of 64 rows of each query tile."""
    tile_phase = tc.u32(0)
    states = tuple(consumer_state(part.smem.shape[0]) for part in (cta.keys, cta.values))
    if number == CONSUMERS - 1:
        tc.barrier_arrive(ORDER_BARRIER, 2 * WARPGROUP)  # the first turn is consumer 0's
    cta.queries.full[0].wait(tile_phase)
    while cta.drawn[0, 1] >= 0:
        tile = cta.tiles.tile_at(cta.drawn[0, 0], cta.drawn[0, 1])
        cta.grads.full[0].wait(tile_phase)
        sequence, row = cta.blocks.at(tile.sequence), tile.first + 64 * number
        # The second consumer may have no queries. Then it computes others again, and stores nothing.
        at = sequence.slot(min(row // 64, sequence.blocks() - 1), tile.head, cta.tiles.heads) * 64
        lse_log2, delta = (tc.load_rows(x, cta.score.d, origin=at) for x in (inputs.lse_log2, inputs.delta))
        rows = QueryRows(cta, number, tile, row, lse_log2, delta)
        total, states = sum_up(rows, states)
        # Each warp overwrites its own 16 rows of Q, whose products are complete.
        staging = cta.queries.smem[0, number]
        stage_matrices((total * softmax_scale).to(dq.dtype), staging, 0)
        tc.syncwarp()
        batch, start_row = tile.origin
        store_rows(staging, (batch, tile.head, start_row + row), tile.end, dq, cta.traits.depth)
        # Loads by ordinary instructions come before TMA overwrites Q.
        tc.fence_proxy_async()
        cta.queries.empty[0].arrive()
        tile_phase = tile_phase ^ 1
        cta.queries.full[0].wait(tile_phase)
    if number == 0:
        tc.barrier(ORDER_BARRIER, 2 * WARPGROUP)  # takes the turn that the last consumer left


def sum_up(rows: QueryRows, states):
    """dq of 64 queries over all their key tiles.

    No product is in flight from one round of the loop to the next one.
    """
    cta, tile, number = rows.cta, rows.tile, rows.consumer
    leader, key = tc.threadIdx.x % WARPGROUP == 0, tile.last
    wait_for(cta, states)
    if cta.traits.packed and key + BN > tile.seen.keys:
        for part, state in zip((cta.keys, cta.values), states, strict=True):
            clear(part.smem[state.stage], tile.seen.keys - key, CONSUMERS * WARPGROUP)
        tc.barrier(CLEAR_BARRIER, CONSUMERS * WARPGROUP)
    products = issue_scores(rows, states)
    operand = tc.as_operand(step_ds(rows, key, states, products), cta.sums.a)
    total = cta.sums.d.zeros()
    for _ in tc.range(1, tile.count):
        key, before = key - BN, states
        states = following(states)
        wait_for(cta, states)
        tc.barrier(ORDER_BARRIER + number, 2 * WARPGROUP)
        total = issue_sum(cta.sums, total, operand, cta.keys.smem[before[0].stage])
        products = issue_scores(rows, states)
        tc.barrier_arrive(ORDER_BARRIER + 1 - number, 2 * WARPGROUP)
        ds = step_ds(rows, key, states, products, before[0].stage)
        operand = tc.as_operand(ds, cta.sums.a)
    total = issue_sum(cta.sums, total, operand, cta.keys.smem[states[0].stage])
    tc.wgmma_wait(0)
    cta.keys.empty[states[0].stage].arrive(pred=leader)
    return total, following(states)


def following(states):
    """The next stages of K and V."""
    return tuple(state.next() for state in states)


def wait_for(cta: QueryCta, states):
    """Wait for a tile of K and of V."""
    for part, state in zip((cta.keys, cta.values), states, strict=True):
        part.full[state.stage].wait(state.phase)


def issue_scores(rows: QueryRows, states):
    """Issue q kᵀ and dO vᵀ, one group each. With tanh, the registers for dO vᵀ are free later."""
    cta = rows.cta
    queries = cta.queries.smem[0, rows.consumer]
    scores = issue(cta.score, queries, cta.keys.smem[states[0].stage], 0, cta.traits.depth)
    return scores, None if cta.traits.softcap else issue_dp(rows, states)


def issue_dp(rows: QueryRows, states):
    """Issue dP = dO vᵀ."""
    cta = rows.cta
    return issue(
        cta.score, cta.grads.smem[0, rows.consumer], cta.values.smem[states[1].stage], 0, cta.traits.width
    )


def step_ds(rows: QueryRows, key, states, products, before=None):
    """Compute dS from the products that `issue_scores` has issued. In the end, no product is in flight.

    before: the stage of K that dq has read, if its product came before the scores.
    """
    cta, (scores, dp), leader = rows.cta, products, tc.threadIdx.x % WARPGROUP == 0
    tc.wgmma_wait(0 if dp is None else 1)  # dq and the scores are complete
    if before is not None:
        cta.keys.empty[before].arrive(pred=leader)
    _, ds_factor = softmax_of(cta, rows.tile.seen, scores, rows.first, key, rows.lse_log2)
    dp = issue_dp(rows, states) if dp is None else dp
    tc.wgmma_wait(0)
    cta.values.empty[states[1].stage].arrive(pred=leader)
    return ds_factor * (dp - rows.delta)
