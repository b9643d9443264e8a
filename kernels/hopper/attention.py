"""Attention forward for sm_90a: o = softmax(scale q kᵀ) v by wgmma and TMA, persistent CTAs.

A CTA has one producer warpgroup and `consumers` consumer warpgroups. It computes tiles of 64 x
consumers queries of one head; each consumer has 64 of them. Heads that share keys and have few
queries are packed: the rows of `pack` heads fill one tile. So their keys are loaded once. One thread of
the producer loads the queries of a tile, and K and V in tiles of BN keys, into pipelines of stages.

    scores      q kᵀ of one key tile: f32, BN / 2 registers of each thread
    P           exp2 of the scores, 16-bit A operands in registers: BN / 4
    out         P v, summed over key tiles: f32, D / 2

A consumer walks along the keys from the last tile to the first. It issues the scores of the next
tile and then the product out += P v of this tile. While the second product runs, it computes
the softmax of the next tile. The consumers take turns at issuing products (ping-pong): while one
computes its softmax, the tensor cores multiply for another one.

The maximum of a row may grow from tile to tile. Then the sum and the output of the row shrink by
the same factor (online softmax: Milakov and Gimelshein, arXiv:1805.02867). The order of the
products and of the warpgroups follows FlashAttention 3 (Shah et al., arXiv:2407.08608).

CTAs draw tiles from a list, the longest tiles first, so that no CTA is idle while another one has
several tiles left. The producer draws, and hands the tile to the consumers with its queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_scores import Sequences, Softmax, page_of
from tensorcore_dsl.kernels.hopper.attention_tiles import QueryTile, TileList
from tensorcore_dsl.kernels.hopper.config import WARPGROUP
from tensorcore_dsl.kernels.hopper.pipeline import consumer_state, producer_state

SLAB = 64  # 16-bit elements of a row of a shared tile: 128 bytes, the swizzle
ORDER_BARRIER = 1  # named barriers: ORDER_BARRIER + c lets consumer c issue its products
CLEAR_BARRIER = 4  # synchronises all consumers
# Registers of a thread of the producer and of a consumer, by the number of consumers. The sums fit
# the equal shares at launch: 3 * 168 and 4 * 128. Pages take more registers of the producer.
REGISTERS = {2: (24, 240), 3: (32, 160)}
REGISTERS_WITH_PAGES = (40, 232)


@dataclass(frozen=True)
class AttentionConfig:
    """How the kernel divides its work. All fields are compile-time constants.

    Attributes
    ----------
    BN : int
        Keys of a tile: a multiple of 16 up to 256.
    consumers : int
        Warpgroups of 64 queries each: 2 or 3.
    stages : int
        Tiles of K, and tiles of V, in shared memory.
    q_stages : int
        Tiles of queries in shared memory. With 2, those of the next tile are loaded early.
    waits_late : bool
        The wait for an output stays behind the next softmax, see `keep_behind`.
    """

    BN: int = 128
    consumers: int = 2
    stages: int = 2
    q_stages: int = 2
    waits_late: bool = True

    @property
    def BM(self) -> int:
        return 64 * self.consumers

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)


@dataclass
class TileStages:
    """Stages of tiles of Q, K or V: shared memory, tensor map, and two mbarriers a stage."""

    smem: Any
    map: Any
    full: Any
    empty: Any

    @property
    def slabs(self) -> int:
        """Slabs of 64 elements that a row is split into."""
        return self.smem.shape[-3]


@dataclass
class AttentionCta:
    """Shared memory and barriers of a CTA's producer and consumers.

    Attributes
    ----------
    queries, keys, values : TileStages
        Tiles of Q, K and V. The memory of the queries also stages the output.
    drawn : tile
        For each stage of queries: sequence * heads + head, and the first query, or -1 behind the
        last tile.
    spare : tile
        A word that no thread writes, see `keep_behind`.
    """

    queries: TileStages
    keys: TileStages
    values: TileStages
    drawn: Any
    spare: Any
    tiles: TileList
    softmax: Softmax
    qk: Any
    pv: Any
    config: AttentionConfig
    traits: Any


@tc.kernel
def attention_kernel(  # noqa: PLR0913
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    o: tc.Array,
    lse: tc.Array,
    tickets: tc.Array,
    starts_q: tc.Array,
    starts_k: tc.Array,
    table: tc.Array,
    scale: tc.f32,
    cap: tc.f32,
    left: tc.s32,
    right: tc.s32,
    section: tc.s32,
    config: tc.Const,
    traits: tc.Const,
):
    """q, o: (batch, heads, queries, D). k, v: (batch, key heads, keys, D). lse: (batch, heads,
    queries), f32. scale, cap: see Softmax. left, right: see KeyRange.

    tickets: one s32, 0 before and after the launch: the number of tiles drawn from the list.
    section: heads whose tiles are neighbours in the list, see TileList.
    starts_q, starts_k: of packed sequences, s32: sequence i has rows starts[i] to starts[i + 1] - 1
    of batch 0. table: of paged keys, s32: page j of sequence i is batch table[i, j] of k and v.
    """
    tc.launch_bounds(config.threads, 1)
    sequences = Sequences(traits, q.shape[2], k.shape[2], starts_q, starts_k, left, right)
    cta = make_cta(q, k, v, sequences, section, Softmax(traits, scale, cap), config)
    # Programmatic dependent launch: the set-up may run while the previous kernel of the stream
    # ends.
    tc.griddep_launch_dependents()
    tc.griddep_wait()

    def producer():
        if tc.threadIdx.x == 0:
            produce(cta, tickets, table)

    def consumers(consumer):
        consume(cta, consumer, o, lse)

    registers = REGISTERS_WITH_PAGES if traits.page else REGISTERS[config.consumers]
    tc.warp_specialize((1, producer), (config.consumers, consumers), registers=registers)


def make_cta(q, k, v, sequences: Sequences, section, softmax: Softmax, config: AttentionConfig):
    """Shared memory, tensor maps and initialised barriers. Every thread calls it.

    Rows of D elements are split into slabs of 64. TMA fills columns beyond D with zeros.
    """
    traits, BN, consumers, stages = softmax.traits, config.BN, config.consumers, config.stages
    q_slabs, v_slabs = slabs(traits.depth), slabs(traits.width)
    qk = getattr(tc.wgmma, f"m64n{BN}k16")(q.dtype, q.dtype, tc.f32)
    pv = getattr(tc.wgmma, f"m64n{traits.width}k16")(q.dtype, q.dtype, tc.f32, source="registers")
    lines = config.q_stages, consumers, max(q_slabs, v_slabs)
    tile_q = tc.shared((*lines, 64, SLAB), q.dtype, swizzle=128)
    tile_k = tc.shared((stages, q_slabs, BN, SLAB), q.dtype, swizzle=128)
    tile_v = tc.shared((stages, v_slabs, BN, SLAB), q.dtype, swizzle=128)
    map_q = tc.tensor_map(q, (1, traits.pack, traits.tokens, SLAB), swizzle=128)
    rows = math.gcd(BN, traits.page) if traits.page else BN  # of a box, which lies in one page
    map_k = tc.tensor_map(k, (1, 1, rows, SLAB), swizzle=128)
    map_v = tc.tensor_map(v, (1, 1, rows, SLAB), swizzle=128)
    drawn, spare = tc.shared((config.q_stages, 2), tc.s32), tc.shared(1, tc.f32)
    full_q, empty_q = tc.mbarriers(config.q_stages), tc.mbarriers(config.q_stages)
    full_k, empty_k = tc.mbarriers(stages), tc.mbarriers(stages)
    full_v, empty_v = tc.mbarriers(stages), tc.mbarriers(stages)
    group = q.shape[1] // k.shape[1]
    heads = k.shape[1] if traits.pack > 1 else q.shape[1]
    count = sequences.starts_q.shape[0] - 1 if traits.packed else q.shape[0]
    tiles = TileList(sequences, count, section, heads, group, config.BM // traits.pack, BN)
    queries = TileStages(tile_q, map_q, full_q, empty_q)
    keys, values = TileStages(tile_k, map_k, full_k, empty_k), TileStages(tile_v, map_v, full_v, empty_v)
    if tc.threadIdx.x == 0:
        for stage in tc.static_range(config.q_stages):
            full_q[stage].init(1)
            empty_q[stage].init(WARPGROUP * consumers)
        for stage in tc.static_range(stages):
            for each in (keys, values):
                each.full[stage].init(1)  # the producer's arrival, with the bytes that it expects
                each.empty[stage].init(consumers)
        tc.fence_mbarrier_init()
    tc.barrier()
    return AttentionCta(queries, keys, values, drawn, spare, tiles, softmax, qk, pv, config, traits)


# -- producer ---------------------------------------------------------------------------------


def produce(cta: AttentionCta, tickets, table):
    """Draw query tiles, and load their queries, keys and values. One thread runs this.

    A new barrier is in phase 0, so a wait for parity 1 returns at once: all stages start out empty.
    V follows one tile behind K through the same number of stages.
    """
    config, tiles, drawn = cta.config, cta.tiles, cta.drawn
    key_state, value_state = producer_state(config.stages), producer_state(config.stages)
    query_state = producer_state(config.q_stages)
    line, first, _, sequence, before = tiles.locate(tc.s32(tc.blockIdx.x), tc.s32(0), tc.s32(0))
    while first >= 0:
        tile = tiles.tile_at(line, first)
        key = tile.last
        load_keys(cta.keys, tile, key, key_state, tiles, table)
        stage = query_state.stage
        cta.queries.empty[stage].wait(query_state.phase)
        drawn[stage, 0], drawn[stage, 1] = line, first  # published by the arrival below
        load_queries(cta.queries, tile, stage, cta.traits, slabs(cta.traits.depth))
        for _ in tc.range(1, tile.count):
            key_state = key_state.next()
            load_keys(cta.keys, tile, key - config.BN, key_state, tiles, table)
            load_keys(cta.values, tile, key, value_state, tiles, table)
            value_state, key = key_state, key - config.BN
        load_keys(cta.values, tile, key, value_state, tiles, table)
        key_state = key_state.next()
        query_state = query_state.next()
        value_state = key_state
        # Each CTA draws until it finds no tile, so there are as many tickets as tiles. The last
        # ticket leaves a zero for the next launch.
        ticket = tc.atomic("add", tickets.at(0), 1)
        line, first, count, sequence, before = tiles.locate(tc.gridDim.x + ticket, sequence, before)
        if (first < 0) & (ticket == count - 1):
            tc.atomic("exch", tickets.at(0), 0)
    cta.queries.empty[query_state.stage].wait(query_state.phase)
    drawn[query_state.stage, 1] = -1
    cta.queries.full[query_state.stage].arrive()


def slabs(depth: int) -> int:
    """Slabs of 64 columns of D."""
    return -(-depth // SLAB)


def load_queries(queries: TileStages, tile: QueryTile, stage, traits, slabs: int):
    """Load the queries of all consumers, 64 rows each: `tokens` queries of `pack` heads."""
    consumers, full = queries.smem.shape[1], queries.full[stage]
    shape, strides = (traits.pack, traits.tokens, SLAB), (traits.tokens * SLAB, SLAB, 1)
    full.arrive_expect_tx(consumers * slabs * queries.map.bytes)
    batch, row = tile.origin
    for part in tc.static_range(consumers):
        for slab in tc.static_range(slabs):
            index = batch, tile.head, row + tile.first + traits.tokens * part, slab * SLAB
            rows = queries.smem[stage, part, slab].with_parts(shape=shape, strides=strides)
            tc.tma_load(rows, queries.map, index, full)


def load_keys(stages: TileStages, tile: QueryTile, key, key_state, tiles: TileList, table):
    """Load a tile of K or V from key `key` on, when its stage is empty."""
    traits, rows, stage = tiles.traits, stages.map.box[2], key_state.stage
    stages.empty[stage].wait(key_state.phase)
    stages.full[stage].arrive_expect_tx(stages.slabs * (tiles.BN // rows) * stages.map.bytes)
    for part in tc.static_range(0, tiles.BN, rows):
        index = tile.origin[0], tile.kv_head, key + part
        if traits.page:
            page = page_of(table, tile.sequence, key + part, tile.seen.keys, traits.page)
            index = page, tile.kv_head, (key + part) % traits.page
        elif traits.packed:
            index = 0, tile.kv_head, tiles.sequences.starts_k[tile.sequence] + key + part
        for slab in tc.static_range(stages.slabs):
            to = stages.smem[stage, slab, part : part + rows]
            tc.tma_load(to, stages.map, (*index, slab * SLAB), stages.full[stage])


# -- consumers --------------------------------------------------------------------------------


@dataclass
class Consumer:
    """A consumer warpgroup of a CTA.

    Attributes
    ----------
    number : s32
        The consumer's number. It computes 64 rows of each query tile from row 64 * number on.
    leader : pred
        Whether this thread arrives for the warpgroup.
    following : s32
        The named barrier that lets the next consumer issue its products.
    """

    cta: AttentionCta
    number: Any
    leader: Any
    following: Any


def consume(cta: AttentionCta, number, o, lse):
    """Compute 64 rows of each query tile. Consumers take turns at issuing products."""
    config, queries, drawn = cta.config, cta.queries, cta.drawn
    leader = tc.threadIdx.x % WARPGROUP == 0
    consumer = Consumer(cta, number, leader, ORDER_BARRIER + (number + 1) % config.consumers)
    scores, out = cta.qk.d.zeros(), cta.pv.d.zeros()
    key_state, query_state = consumer_state(config.stages), consumer_state(config.q_stages)
    if number == config.consumers - 1:
        tc.barrier_arrive(ORDER_BARRIER, 2 * WARPGROUP)  # the first turn is consumer 0's
    queries.full[0].wait(0)
    while drawn[query_state.stage, 1] >= 0:
        q_stage = query_state.stage
        tile = cta.tiles.tile_at(drawn[q_stage, 0], drawn[q_stage, 1])
        row = tile.first + cta.traits.tokens * number
        scores, out, factor, exponent, key_state = attend(consumer, tile, row, q_stage, scores, key_state)
        # Each warp overwrites its own 16 rows of the queries, whose products are complete.
        batch, start_row = tile.origin
        staging = queries.smem[q_stage, number, : cta.values.slabs]
        stage_matrices((out * factor).to(o.dtype), staging, 0)
        tc.syncwarp()
        origin = batch, tile.head, start_row + row
        packed = (cta.traits.tokens, cta.tiles.group) if cta.traits.pack > 1 else None
        store_rows(staging, origin, tile.end, o, cta.traits.width, packed=packed)
        # Loads by ordinary instructions come before TMA overwrites the queries.
        tc.fence_proxy_async()
        queries.empty[q_stage].arrive()
        if cta.traits.lse:
            store_exponents(lse, exponent, origin, tile.end, packed)
        key_state = key_state.next()
        query_state = query_state.next()
        queries.full[query_state.stage].wait(query_state.phase)
    if number == 0:
        tc.barrier(ORDER_BARRIER, 2 * WARPGROUP)  # takes the turn that the last consumer left


def attend(consumer: Consumer, tile: QueryTile, row, q_stage, scores, key_state):  # noqa: PLR0915
    """The output of 64 queries over all their key tiles, from the last tile to the first.

    Returns the registers of the scores, the output, the factor of each row's output, the logarithm
    of each row's sum, and the position of the last key tile.
    """
    cta, leader, key = consumer.cta, consumer.leader, tile.last
    config, keys, values, pv = cta.config, cta.keys, cta.values, cta.pv
    best, total = tc.row_values(cta.qk.d, -math.inf), tc.row_values(cta.qk.d)
    stage, phase = key_state.stage, key_state.phase
    keys.full[stage].wait(phase)
    scores = issue_scores(consumer, scores, q_stage, stage)
    tc.wgmma_wait(0)
    # The product has read its keys: the producer may load the next ones.
    keys.empty[stage].arrive(pred=leader)
    scores, shrink, best, total = softmax_step(cta, scores, best, total, tile, row, key)
    # Accumulators lie as the A operand does: no exchange between threads.
    p = tc.as_operand(scores, pv.a)
    out = pv.d.zeros()
    if cta.traits.packed and key + config.BN > tile.seen.keys:
        clear(cta, stage, phase, tile.seen.keys - key)
    for _ in tc.range(1, tile.count):
        stage, phase = key_state.stage, key_state.phase
        key_state = key_state.next()
        next_stage = key_state.stage
        key = key - config.BN
        keys.full[next_stage].wait(key_state.phase)
        tc.barrier(ORDER_BARRIER + consumer.number, 2 * WARPGROUP)
        scores = issue_scores(consumer, scores, q_stage, next_stage)
        values.full[stage].wait(phase)
        out = issue_output(cta, out, p, stage)
        tc.barrier_arrive(consumer.following, 2 * WARPGROUP)
        tc.wgmma_wait(1)  # the scores are complete; the output may still be in flight
        keys.empty[next_stage].arrive(pred=leader)
        scores, shrink, best, total = softmax_step(cta, scores, best, total, tile, row, key)
        if config.waits_late:
            keep_behind(total, cta.spare)
        tc.wgmma_wait(0)
        values.empty[stage].arrive(pred=leader)
        first_row, second_row = shrink.elements()
        if tc.vote("any", (first_row < 1) | (second_row < 1)):
            out = out * shrink
        p = tc.as_operand(scores, pv.a)
    stage = key_state.stage
    values.full[stage].wait(key_state.phase)
    out = issue_output(cta, out, p, stage)
    factor, exponent = cta.softmax.finish(best, total)
    tc.wgmma_wait(0)
    values.empty[stage].arrive(pred=leader)
    return scores, out, factor, exponent, key_state


def issue_scores(consumer: Consumer, scores, q_stage, stage):
    """Issue q kᵀ of one key tile as one group of wgmma."""
    cta = consumer.cta
    tc.wgmma_fence()
    depth = -(-cta.traits.depth // 16) * 16
    for slab in tc.static_range(cta.keys.slabs):
        used = min(depth - slab * SLAB, SLAB)
        query_slab = cta.queries.smem[q_stage, consumer.number, slab, :, :used]
        key_slab = cta.keys.smem[stage, slab, :, :used]
        scores = tc.wgmma_async(cta.qk, scores, query_slab, key_slab, accumulate=slab > 0)
    tc.wgmma_commit()
    return scores


def issue_output(cta: AttentionCta, out, p, stage):
    """Issue out += P v of one key tile as one group of wgmma."""
    tc.wgmma_fence()
    out = tc.wgmma_async(cta.pv, out, p, cta.values.smem[stage], b_major="mn")
    tc.wgmma_commit()
    return out


def softmax_step(cta: AttentionCta, scores, best, total, tile: QueryTile, row, key):
    """A step of the softmax. Only tiles at an edge need a mask: those at a bound."""
    scores = cta.softmax.capped(scores)
    if tile.seen.needs_mask(row, cta.traits.tokens, key, cta.config.BN):
        scores = tile.seen.masked(scores, row, key)
    p, shrink, best, total = cta.softmax.step([scores], best, total)
    return p[0], shrink, best, total


def keep_behind(total, spare):
    """Keep the next wait behind the softmax, whose last result is `total`.

    ptxas moves a wait up past arithmetic. Then the softmax would not overlap the product. It does
    not move a wait past a store. Sums are positive, so nothing is stored.
    """
    for each in total.elements():
        spare.at(0).store(each, pred=each < 0)


def clear(cta: AttentionCta, stage, phase, count):
    """Zero the rows of V behind the last key: 0 times NaN bits would be NaN.

    These rows hold values of the next sequence, or what was in a page before. All consumers share
    the work.
    """
    values, threads = cta.values, WARPGROUP * cta.config.consumers
    values.full[stage].wait(phase)
    zeros, thread = tc.vector([values.smem.dtype(0)] * 8), tc.threadIdx.x - WARPGROUP
    for slab in tc.static_range(values.slabs):
        for i in tc.range(count * 8 + thread, cta.config.BN * 8, threads):
            values.smem.at(stage, slab, i // 8, i % 8 * 8).store(zeros)
    tc.fence_proxy_async()
    tc.barrier(CLEAR_BARRIER, threads)


def stage_matrices(values, staging, first_row, column=0):
    """Store a fragment of 64 rows of 16-bit elements to slabs of shared memory.

    Each warp writes its own 16 rows. staging: slabs (rows, 64). column: of the first element, in the
    first slab.
    """
    lane, base, registers = tc.lane_id(), first_row + tc.warp_id() % 4 * 16, values.registers
    for col in tc.static_range(0, values.layout.cols, 16):
        words = registers[col // 4 : col // 4 + 4]
        at = base + lane % 16, column + col % SLAB + lane // 16 * 8
        # With 8 columns left, the lanes of the second half give no addresses.
        name = f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16"
        tc.emit(name, staging[col // SLAB].at(*at).address, words)


def store_exponents(lse, exponent, origin, end, packed):
    """Store the logarithm of each row's sum; one of the four threads of a row stores it."""
    for slot, value in enumerate(exponent.elements()):
        at, _ = exponent.coordinates(slot)
        batch, head, row, inside = index_of(at, origin, end, packed)
        lse.at(batch, head, row).store(value, pred=inside & (tc.lane_id() % 4 == 0))


def store_rows(staging, origin, end, target, width: int, column=0, packed=None):
    """Store 64 rows of slabs to an array, each warp its own 16 rows.

    origin: batch, head and first row. end: one past the last row. width: D of the array. column: of
    the first slab. packed: see index_of.
    """
    lane, base = tc.lane_id(), tc.warp_id() % 4 * 16
    for slab in tc.static_range(staging.shape[0]):
        for part in tc.static_range(4):
            at, col = base + 4 * part + lane // 8, column + slab * SLAB + lane % 8 * 8
            batch, head, row, inside = index_of(at, origin, end, packed)
            vector = staging[slab].at(at, lane % 8 * 8).load(8, pred=inside & (col < width))
            target.at(batch, head, row, col).store(vector, pred=inside & (col < width))


def index_of(at, origin, end, packed):
    """Batch, head and row of row `at` of a tile, and whether they exist.

    packed: rows of each head, and number of heads; None: all rows are of one head.
    """
    batch, head, first = origin
    if packed is None:
        return batch, head, first + at, first + at < end
    tokens, heads = packed
    row = first + at % tokens
    return batch, head + at // tokens, row, (row < end) & (at // tokens < heads)
