"""Attention forward for sm_90a: o = softmax(scale q kᵀ) v by wgmma and TMA, persistent CTAs.

A CTA has one producer warpgroup and `consumers` consumer warpgroups. It computes tiles of 64 x
consumers queries of one head; each consumer has 64 of them. One thread of the producer loads the
queries of a tile, and K and V in tiles of BN keys, into rings of stages.

    scores      q kᵀ of one key tile: f32, BN / 2 registers of each thread
    weights     exp2 of the scores, 16-bit A operands in registers: BN / 4
    out         weights v, summed over key tiles: f32, D / 2

A consumer walks along the keys from the last tile to the first. It issues the scores of the next
tile and then the product out += weights v of this tile. While the second product runs, it computes
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
from tensorcore_dsl.kernels.attention_scores import KeyRange, Softmax, page_of
from tensorcore_dsl.kernels.hopper.config import WARPGROUP

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
class QueryTile:
    """A tile of queries, and the key tiles that its queries see.

    seen: see KeyRange. sequence: its number. head, kv_head: of q, and of k and v. first: the first
    query. place: its batch and row in q and o. end: one past the last query. last: the first key of
    the last key tile. count: key tiles, at least 1.
    """

    seen: KeyRange
    sequence: Any
    head: Any
    kv_head: Any
    first: Any
    place: Any
    end: Any
    last: Any
    count: Any


@tc.kernel
def attention_kernel(
    q: tc.Array, k: tc.Array, v: tc.Array, o: tc.Array, lse: tc.Array, tickets: tc.Array,
    starts_q: tc.Array, starts_k: tc.Array, table: tc.Array, scale: tc.f32, cap: tc.f32,
    left: tc.s32, right: tc.s32, section: tc.s32, config: tc.Const, traits: tc.Const,
):  # fmt: skip
    """q, o: (batch, heads, queries, D). k, v: (batch, key heads, keys, D). lse: (batch, heads,
    queries), f32. scale, cap: see Softmax. left, right: see KeyRange.

    tickets: one s32, 0 before and after the launch: how many tiles were drawn from the list.
    section: heads whose tiles are neighbours in the list, see `locate`.
    starts_q, starts_k: of packed sequences, s32: sequence i has rows starts[i] to starts[i + 1] - 1
    of batch 0. table: of paged keys, s32: page j of sequence i is batch table[i, j] of k and v.
    """
    BM, BN, consumers, stages = config.BM, config.BN, config.consumers, config.stages
    tc.launch_bounds(config.threads, 1)
    q_slabs, v_slabs = -(-traits.depth // SLAB), -(-traits.width // SLAB)
    qk = getattr(tc.wgmma, f"m64n{BN}k16")(q.dtype, q.dtype, tc.f32)
    pv = getattr(tc.wgmma, f"m64n{traits.width}k16")(q.dtype, q.dtype, tc.f32, source="registers")
    # Rows of D elements are split into slabs of 64. TMA fills columns beyond D with zeros.
    # The memory of the queries also stages the output.
    lines = config.q_stages, consumers, max(q_slabs, v_slabs)
    tile_q = tc.shared((*lines, 64, SLAB), q.dtype, swizzle=128)
    tile_k = tc.shared((stages, q_slabs, BN, SLAB), q.dtype, swizzle=128)
    tile_v = tc.shared((stages, v_slabs, BN, SLAB), q.dtype, swizzle=128)
    map_q = tc.tensor_map(q, (1, 1, 64, SLAB), swizzle=128)
    rows = math.gcd(BN, traits.page) if traits.page else BN  # of a box, which lies in one page
    map_k = tc.tensor_map(k, (1, 1, rows, SLAB), swizzle=128)
    map_v = tc.tensor_map(v, (1, 1, rows, SLAB), swizzle=128)
    # For each tile of queries: sequence * heads + head, and the first query, or -1 behind the last.
    drawn, spare = tc.shared((config.q_stages, 2), tc.s32), tc.shared(1, tc.f32)
    full_q, empty_q = tc.mbarriers(config.q_stages), tc.mbarriers(config.q_stages)
    full_k, empty_k = tc.mbarriers(stages), tc.mbarriers(stages)
    full_v, empty_v = tc.mbarriers(stages), tc.mbarriers(stages)
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    sequences = starts_q.shape[0] - 1 if traits.packed else q.shape[0]
    softmax = Softmax(traits, scale, cap)

    if tc.threadIdx.x == 0:
        for stage in tc.static_range(config.q_stages):
            full_q[stage].init(1)
            empty_q[stage].init(WARPGROUP * consumers)
        for stage in tc.static_range(stages):
            for full, empty in ((full_k, empty_k), (full_v, empty_v)):
                full[stage].init(1)  # the producer's arrival, and the bytes that it announces
                empty[stage].init(consumers)
        tc.fence_mbarrier_init()
    tc.barrier()
    # Programmatic dependent launch: all above may run while the previous kernel of the stream ends.
    tc.griddep_launch_dependents()
    tc.griddep_wait()

    def query_tiles(sequence):
        """How many tiles of queries a sequence has."""
        if traits.packed:
            return (starts_q[sequence + 1] - starts_q[sequence] + (BM - 1)) // BM
        return (q.shape[2] + (BM - 1)) // BM

    def locate(number, sequence, before):
        """Tile `number` of the list: sequence * heads + head, first query, number of all tiles.

        `section` heads advance together, so that their K and V stay in the L2 cache. Within a
        section, tiles go from the last queries to the first. With a causal mask, the longest tiles
        start first. The heads of a packed sequence are a section. The search for the sequence
        begins at `sequence`; the sequences before it have `before` tiles for each head.
        """
        if traits.packed:
            row, head = number // heads, number % heads
            while sequence < sequences and row >= before + query_tiles(sequence):
                before, sequence = before + query_tiles(sequence), sequence + 1
            first, line = tc.s32(-1), sequence * heads + head
            if sequence < sequences:
                first = (before + query_tiles(sequence) - 1 - row) * BM
            return line, first, before * heads, sequence, before
        rows, lines = query_tiles(0), heads * sequences
        part = number // (rows * section)
        inside = number - part * (rows * section)
        # The last section has fewer heads; behind the last tile there is none.
        wide = max(min(lines - part * section, section), 1)
        row = inside // wide
        first = tc.select(number < rows * lines, (rows - 1 - row) * BM, -1)
        return part * section + (inside - row * wide), first, rows * lines, sequence, before

    def query_tile(line, first):
        """The tile of queries that `locate` found."""
        sequence = line // heads
        batch, start, queries, key_start, keys = sequence, 0, q.shape[2], 0, k.shape[2]
        if traits.packed:
            batch, start, key_start = 0, starts_q[sequence], starts_k[sequence]
            queries, keys = starts_q[sequence + 1] - start, starts_k[sequence + 1] - key_start
        seen = KeyRange(traits, keys, keys - queries, left, right)
        low, high = seen.bounds(first, BM)
        last, head = (high - 1) // BN, line - sequence * heads
        return QueryTile(
            seen, sequence, head, head // group, first, (batch, start), start + queries, last * BN,
            last - low // BN + 1,
        )  # fmt: skip

    def produce():
        if tc.threadIdx.x == 0:
            # A new barrier is in phase 0, so a wait for parity 1 returns at once: all stages start
            # out empty. V follows one tile behind K through a ring of the same size.
            ring, lagging, q_ring = start(1), start(1), start(1)
            line, first, _, sequence, before = locate(tc.s32(tc.blockIdx.x), tc.s32(0), tc.s32(0))
            while first >= 0:
                tile = query_tile(line, first)
                key = tile.last
                load(tile_k, map_k, tile, key, full_k, empty_k, ring)
                stage, phase = q_ring
                empty_q[stage].wait(phase)
                drawn[stage, 0], drawn[stage, 1] = line, first  # published by the arrival below
                full_q[stage].arrive_expect_tx(consumers * q_slabs * map_q.bytes)
                batch, row = tile.place
                for part in tc.static_range(consumers):
                    for slab in tc.static_range(q_slabs):
                        place = batch, tile.head, row + first + 64 * part, slab * SLAB
                        tc.tma_load(tile_q[stage, part, slab], map_q, place, full_q[stage])
                for _ in tc.range(1, tile.count):
                    ring = advance(ring, stages)
                    load(tile_k, map_k, tile, key - BN, full_k, empty_k, ring)
                    load(tile_v, map_v, tile, key, full_v, empty_v, lagging)
                    lagging, key = ring, key - BN
                load(tile_v, map_v, tile, key, full_v, empty_v, lagging)
                ring, q_ring = advance(ring, stages), advance(q_ring, config.q_stages)
                lagging = ring
                # Each CTA draws until it finds no tile: as many tickets as there are tiles. The
                # last ticket leaves a zero for the next launch.
                ticket = tc.atomic("add", tickets.at(0), 1)
                line, first, tiles, sequence, before = locate(
                    tc.gridDim.x + ticket, sequence, before
                )
                if (first < 0) & (ticket == tiles - 1):
                    tc.atomic("exch", tickets.at(0), 0)
            stage, phase = q_ring
            empty_q[stage].wait(phase)
            drawn[stage, 1] = -1
            full_q[stage].arrive()

    def load(target, boxes, tile, key, full, empty, ring):
        """Load a tile of K or V when its stage is empty."""
        stage, phase = ring
        empty[stage].wait(phase)
        full[stage].arrive_expect_tx(target.shape[1] * (BN // rows) * boxes.bytes)
        for part in tc.static_range(0, BN, rows):
            place = tile.place[0], tile.kv_head, key + part
            if traits.page:
                page = page_of(table, tile.sequence, key + part, tile.seen.keys, traits.page)
                place = page, tile.kv_head, (key + part) % traits.page
            elif traits.packed:
                place = 0, tile.kv_head, starts_k[tile.sequence] + key + part
            for slab in tc.static_range(target.shape[1]):
                to = target[stage, slab, part : part + rows]
                tc.tma_load(to, boxes, (*place, slab * SLAB), full[stage])

    def issue_scores(scores, consumer, q_stage, stage):
        """Issue q kᵀ of one key tile as one group of wgmma."""
        tc.wgmma_fence()
        for slab in tc.static_range(q_slabs):
            used = min(-(-traits.depth // 16) * 16 - slab * SLAB, SLAB)
            of_q = tile_q[q_stage, consumer, slab, :, :used]
            of_k = tile_k[stage, slab, :, :used]
            scores = tc.wgmma_async(qk, scores, of_q, of_k, accumulate=slab > 0)
        tc.wgmma_commit()
        return scores

    def issue_output(out, weights, stage):
        """Issue out += weights v of one key tile as one group of wgmma."""
        tc.wgmma_fence()
        out = tc.wgmma_async(pv, out, weights, tile_v[stage], b_major="mn")
        tc.wgmma_commit()
        return out

    def weigh(scores, best, total, tile, row, key):
        """A step of the softmax. Only tiles at an edge need a mask: those at a bound."""
        scores = softmax.capped(scores)
        if tile.seen.needs_mask(row, 64, key, BN):
            scores = tile.seen.masked(scores, row, key)
        weights, shrink, best, total = softmax.step([scores], best, total)
        return weights[0], shrink, best, total

    def keep_behind(total):
        """Keep the next wait behind the softmax, whose last result is `total`.

        ptxas moves a wait up past arithmetic. Then the softmax would not overlap the product. It
        does not move a wait past a store. Sums are positive, so nothing is stored.
        """
        for each in total.elements():
            spare.at(0).store(each, pred=each < 0)

    def clear(stage, phase, count):
        """Zero the rows of V behind the last key: a weight of zero must not meet NaN bits.

        These rows hold values of the next sequence, or what was in a page before. All consumers
        share the work.
        """
        full_v[stage].wait(phase)
        zeros, thread = tc.vector([q.dtype(0)] * 8), tc.threadIdx.x - WARPGROUP
        for slab in tc.static_range(v_slabs):
            for i in tc.range(count * 8 + thread, BN * 8, WARPGROUP * consumers):
                tile_v.at(stage, slab, i // 8, i % 8 * 8).store(zeros)
        tc.fence_proxy_async()
        tc.barrier(CLEAR_BARRIER, WARPGROUP * consumers)

    def consume(consumer):
        leader = tc.threadIdx.x % WARPGROUP == 0
        following = ORDER_BARRIER + (consumer + 1) % consumers
        scores, out = qk.d.zeros(), pv.d.zeros()
        ring, q_ring = start(0), start(0)
        if consumer == consumers - 1:
            tc.barrier_arrive(ORDER_BARRIER, 2 * WARPGROUP)  # the first turn is consumer 0's
        full_q[0].wait(0)
        while drawn[q_ring[0], 1] >= 0:
            q_stage, _ = q_ring
            tile = query_tile(drawn[q_stage, 0], drawn[q_stage, 1])
            row, key = tile.first + 64 * consumer, tile.last
            best, total = tc.row_values(qk.d, -math.inf), tc.row_values(qk.d)
            stage, phase = ring
            full_k[stage].wait(phase)
            scores = issue_scores(scores, consumer, q_stage, stage)
            tc.wgmma_wait(0)
            # The product has read its keys: the producer may load the next ones.
            empty_k[stage].arrive(pred=leader)
            scores, shrink, best, total = weigh(scores, best, total, tile, row, key)
            # Accumulators lie as the A operand does: no exchange between threads.
            weights = tc.as_operand(scores, pv.a)
            out = pv.d.zeros()
            if traits.packed and key + BN > tile.seen.keys:
                clear(stage, phase, tile.seen.keys - key)
            for _ in tc.range(1, tile.count):
                stage, phase = ring
                ring = advance(ring, stages)
                next_stage, next_phase = ring
                key = key - BN
                full_k[next_stage].wait(next_phase)
                tc.barrier(ORDER_BARRIER + consumer, 2 * WARPGROUP)
                scores = issue_scores(scores, consumer, q_stage, next_stage)
                full_v[stage].wait(phase)
                out = issue_output(out, weights, stage)
                tc.barrier_arrive(following, 2 * WARPGROUP)
                tc.wgmma_wait(1)  # the scores are complete; the output may still be in flight
                empty_k[next_stage].arrive(pred=leader)
                scores, shrink, best, total = weigh(scores, best, total, tile, row, key)
                if config.waits_late:
                    keep_behind(total)
                tc.wgmma_wait(0)
                empty_v[stage].arrive(pred=leader)
                first_row, second_row = shrink.elements()
                if tc.vote("any", (first_row < 1) | (second_row < 1)):
                    out = out * shrink
                weights = tc.as_operand(scores, pv.a)
            stage, phase = ring
            full_v[stage].wait(phase)
            out = issue_output(out, weights, stage)
            factor, exponent = softmax.finish(best, total)
            tc.wgmma_wait(0)
            empty_v[stage].arrive(pred=leader)
            store(out * factor, tile_q[q_stage, consumer], tile, row)
            # Loads by ordinary instructions come before TMA overwrites the queries.
            tc.fence_proxy_async()
            empty_q[q_stage].arrive()
            if traits.lse:
                batch, start_row = tile.place
                of_head = lse[batch, tile.head, : tile.end]
                tc.store_rows(of_head, exponent, origin=start_row + row, bounded=True)
            ring, q_ring = advance(ring, stages), advance(q_ring, config.q_stages)
            stage, phase = q_ring
            full_q[stage].wait(phase)
        if consumer == 0:
            tc.barrier(ORDER_BARRIER, 2 * WARPGROUP)  # takes the turn that the last consumer left

    def store(out, staging, tile, row):
        """Store 64 rows of the output through the shared memory of their queries.

        Each warp writes and reads its own 16 rows, whose products with the keys are complete.
        """
        lane, base = tc.lane_id(), tc.warp_id() % 4 * 16
        batch, start_row = tile.place
        values = out.to(o.dtype).registers
        for place in tc.static_range(0, traits.width, 16):
            words = values[place // 4 : place // 4 + 4]
            at = base + lane % 16, place % SLAB + lane // 16 * 8
            # With 8 columns left, the lanes of the second half give no addresses.
            name = f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16"
            tc.emit(name, staging[place // SLAB].at(*at).address, words)
        tc.syncwarp()
        for slab in tc.static_range(v_slabs):
            for part in tc.static_range(4):
                at, col = base + 4 * part + lane // 8, lane % 8 * 8
                inside = start_row + row + at < tile.end
                if traits.width % SLAB:
                    inside = inside & (slab * SLAB + col < traits.width)
                vector = staging[slab].at(at, col).load(8, pred=inside)
                target = o.at(batch, tile.head, start_row + row + at, slab * SLAB + col)
                target.store(vector, pred=inside)

    registers = REGISTERS_WITH_PAGES if traits.page else REGISTERS[consumers]
    tc.warp_specialize((1, produce), (consumers, consume), registers=registers)


def start(parity):
    """The first stage of a ring, and the parity that a wait there takes."""
    return tc.u32(0), tc.u32(parity)


def advance(ring, stages):
    """The next stage of a ring; the parity flips when the ring starts again."""
    stage, phase = ring
    last = stage == stages - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)
