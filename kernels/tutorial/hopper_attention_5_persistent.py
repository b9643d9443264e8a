"""Step 5: persistent CTAs draw tiles, the longest first; heads that share keys share tiles.

There are as many CTAs as SMs. The producer draws a tile from a list by an atomic addition, and
hands its number to the consumers with its queries. It loads the first keys of the next tile while
the consumers still work on the last one. With few queries, the rows of `pack` heads of q fill one
tile, and their common keys are loaded once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tensorcore_dsl as tc

CONSUMERS = 2
BM, BN = 64 * CONSUMERS, 128  # rows of a query tile, keys of a tile
STAGES = 2  # tiles of keys, and tiles of values, in shared memory
SLAB = 64  # columns of a shared tile: rows of 128 bytes, one swizzle wide
THREADS = 128 * (1 + CONSUMERS)
# Registers of a thread of the producer and of a consumer: 24 + 2 * 240 is 3 * 168, what the CTA is
# launched with (65536 / 384, rounded down to a multiple of 8).
REGISTERS = (24, 240)
TURN = 1  # named barriers: TURN + c lets consumer c issue its products; barrier 0 is tc.barrier()


@tc.kernel(threads=THREADS, min_blocks=1)
def attention_kernel(
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    o: tc.Array,
    tickets: tc.Array,
    scale: tc.f32,
    dim: tc.Const = 64,
    causal: tc.Const = False,
    pack: tc.Const = 1,
):
    """Grid: at most one CTA for each tile. k and v have fewer heads than q if heads share keys.

    tickets: one s32, 0 before and after the launch: the number of tiles drawn from the list.
    """
    slabs, tokens = dim // SLAB, 64 // pack  # queries of one head among a consumer's 64 rows
    qk = getattr(tc.wgmma, f"m64n{BN}k16")(q.dtype, q.dtype, tc.f32)
    pv = getattr(tc.wgmma, f"m64n{dim}k16")(q.dtype, q.dtype, tc.f32, source="registers")
    tile_q = tc.shared((CONSUMERS, slabs, 64, SLAB), q.dtype, swizzle=128)
    tile_k = tc.shared((STAGES, slabs, BN, SLAB), q.dtype, swizzle=128)
    tile_v = tc.shared((STAGES, slabs, BN, SLAB), q.dtype, swizzle=128)
    map_q = tc.tensor_map(q, (1, 1, tokens, SLAB), swizzle=128)
    map_k = tc.tensor_map(k, (1, 1, BN, SLAB), swizzle=128)
    map_v = tc.tensor_map(v, (1, 1, BN, SLAB), swizzle=128)
    spare = tc.shared(1, tc.f32)  # a word that no thread writes, see keep_behind
    drawn = tc.shared(1, tc.s32)  # the number of the tile whose queries are in shared memory
    full_q, empty_q = tc.mbarriers(1), tc.mbarriers(1)
    full_k, full_v = tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    empty_k, empty_v = tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    # Query i sees the keys up to i + ahead, so that the last query sees all keys.
    queries, keys = q.shape[2], k.shape[2]
    ahead = keys - queries
    group, rows = q.shape[1] // k.shape[1], CONSUMERS * tokens
    lines = q.shape[0] * q.shape[1] // pack  # heads of all batches, or packs of heads
    tiles_of_line = (queries + rows - 1) // rows
    tiles = lines * tiles_of_line

    def tile_at(number):
        """Batch, first head and first query of a tile, and one past the last key that it sees.

        A causal mask makes the last queries of a head the longest tile. They come first in the
        list, so that no CTA starts a long tile when the others end.
        """
        first = (tiles_of_line - 1 - number // lines) * rows
        line = number % lines * pack
        end = min(keys, first + rows + ahead) if causal else keys
        return line // q.shape[1], line % q.shape[1], first, end

    if tc.threadIdx.x == 0:
        full_q[0].init(1)
        empty_q[0].init(128 * CONSUMERS)  # each thread has read the number of the tile
        for stage in tc.static_range(STAGES):
            for full, empty in ((full_k, empty_k), (full_v, empty_v)):
                full[stage].init(1)  # the producer's arrival, with the bytes that it expects
                empty[stage].init(CONSUMERS)  # one arrival of each consumer
        tc.fence_mbarrier_init()
    tc.barrier()

    def load(tile, boxes, full, empty, place, stage, phase):
        """Load one tile of keys or values when its stage is empty."""
        empty[stage].wait(phase)
        full[stage].arrive_expect_tx(slabs * boxes.bytes)
        for slab in tc.static_range(slabs):
            tc.tma_load(tile[stage, slab], boxes, (*place, slab * SLAB), full[stage])

    def load_queries(batch, head, first):
        """Load 64 rows for each consumer: `tokens` queries of each of `pack` heads."""
        full_q[0].arrive_expect_tx(CONSUMERS * slabs * pack * map_q.bytes)
        for consumer in tc.static_range(CONSUMERS):
            for slab in tc.static_range(slabs):
                for i in tc.static_range(pack):
                    place = batch, head + i, first + tokens * consumer, slab * SLAB
                    part = tile_q[consumer, slab, i * tokens : (i + 1) * tokens]
                    tc.tma_load(part, map_q, place, full_q[0])

    def produce():
        if tc.threadIdx.x == 0:
            stage, phase, phase_q = tc.u32(0), tc.u32(1), tc.u32(1)
            number = tc.s32(tc.blockIdx.x)
            while number < tiles:
                batch, head, first, end = tile_at(number)
                empty_q[0].wait(phase_q)
                drawn[0] = number  # published by the arrival in load_queries
                load_queries(batch, head, first)
                for start in tc.range(0, end, BN):
                    place = batch, head // group, start
                    load(tile_k, map_k, full_k, empty_k, place, stage, phase)
                    load(tile_v, map_v, full_v, empty_v, place, stage, phase)
                    stage, phase = advance(stage, phase)
                phase_q = phase_q ^ 1
                # The first tiles are those of the CTAs' own numbers. Each CTA draws until it finds
                # no tile, so there are as many tickets as tiles: the last one leaves a zero.
                ticket = tc.atomic("add", tickets.at(0), 1)
                number = tc.gridDim.x + ticket
                if ticket == tiles - 1:
                    tc.atomic("exch", tickets.at(0), 0)
            empty_q[0].wait(phase_q)
            drawn[0] = tiles  # no tile: the consumers end
            full_q[0].arrive()

    def issue_scores(scores, consumer, stage):
        """Issue q kᵀ of one tile as one group of wgmma."""
        tc.wgmma_fence()
        for slab in tc.static_range(slabs):
            # Without `accumulate` the product replaces the scores of the tile before.
            keys_of_tile = tile_k[stage, slab]
            scores = tc.wgmma_async(qk, scores, tile_q[consumer, slab], keys_of_tile, accumulate=slab > 0)
        tc.wgmma_commit()
        return scores

    def issue_output(out, p, stage):
        """Issue out += P v of one tile as one group of wgmma."""
        tc.wgmma_fence()
        out = tc.wgmma_async(pv, out, p, tile_v[stage], b_major="mn")
        tc.wgmma_commit()
        return out

    def softmax_step(scores, row, start, best, total):
        """Mask the tiles at an edge: past the last key, or on the diagonal. Then one softmax step."""
        edge = start + BN > keys
        if causal:
            edge = edge | (start + BN - 1 > row + ahead)
        if edge:
            scores = masked(scores, row, start, keys, ahead, causal, tokens)
        return softmax(scores, best, total, scale)

    def consume(consumer):
        leader = tc.threadIdx.x % 128 == 0
        scores = qk.d.zeros()
        stage, phase, phase_q = tc.u32(0), tc.u32(0), tc.u32(0)
        if consumer == 1:
            tc.barrier_arrive(TURN, 256)  # the first turn is consumer 0's
        full_q[0].wait(phase_q)
        while drawn[0] < tiles:
            batch, head, first, end = tile_at(drawn[0])
            row, out = first + tokens * consumer, pv.d.zeros()
            best, total = tc.row_values(qk.d, -math.inf), tc.row_values(qk.d)
            full_k[stage].wait(phase)
            scores = issue_scores(scores, consumer, stage)
            tc.wgmma_wait(0)
            empty_k[stage].arrive(pred=leader)
            scores, shrink, best, total = softmax_step(scores, row, 0, best, total)
            p = tc.as_operand(scores, pv.a)
            for start in tc.range(BN, end, BN):
                next_stage, next_phase = advance(stage, phase)
                full_k[next_stage].wait(next_phase)
                tc.barrier(TURN + consumer, 256)
                scores = issue_scores(scores, consumer, next_stage)
                full_v[stage].wait(phase)
                out = issue_output(out, p, stage)
                # The other consumer issues its products after these two.
                tc.barrier_arrive(TURN + 1 - consumer, 256)
                tc.wgmma_wait(1)  # the scores are complete, the output may still be in flight
                empty_k[next_stage].arrive(pred=leader)
                scores, shrink, best, total = softmax_step(scores, row, start, best, total)
                keep_behind(total, spare)
                tc.wgmma_wait(0)
                empty_v[stage].arrive(pred=leader)
                # Most tiles leave every maximum as it is: then all factors are exactly 1.
                first_row, second_row = shrink.elements()
                if tc.vote("any", (first_row < 1) | (second_row < 1)):
                    out = out * shrink
                p = tc.as_operand(scores, pv.a)
                stage, phase = next_stage, next_phase
            # All scores are complete: the queries of the next tile may come.
            empty_q[0].arrive()
            full_v[stage].wait(phase)
            out = issue_output(out, p, stage)
            tc.wgmma_wait(0)
            empty_v[stage].arrive(pred=leader)
            stage, phase = advance(stage, phase)
            store_rows(out * tc.rcp(tc.row_sum(total)), batch, head, row)
            phase_q = phase_q ^ 1
            full_q[0].wait(phase_q)
        if consumer == 0:
            tc.barrier(TURN, 256)  # takes the turn that consumer 1 has passed on last

    def store_rows(out, batch, head, first):
        """Store pairs of neighbouring columns; row r of the tile is query r % tokens of a head."""
        for slot in tc.static_range(0, len(out), 2):
            row, column = out.coordinates(slot)
            query = first + row % tokens
            pair = [out[slot].to(o.dtype), out[slot + 1].to(o.dtype)]
            o.at(batch, head + row // tokens, query, column).store(pair, pred=query < queries)

    tc.warp_specialize((1, produce), (CONSUMERS, consume), registers=REGISTERS)


def masked(scores, query, key, keys, ahead, causal, tokens):
    """Set scores to -inf where a query does not see the key; `query`, `key`: of the first row and column."""

    def mask(score, i, j):
        visible = key + j < keys
        if causal:
            visible = visible & (key + j <= query + i % tokens + ahead)
        return tc.select(visible, score, -math.inf)

    return scores.map_coordinates(mask)


def softmax(scores, best, total, scale):
    """Return P of a key tile, the factor of all earlier sums, the new maximum and the new total.

    Every query sees key 0, which is in the first tile, so the maximum is never -inf. `total` is the
    sum of each lane's own P; only the end of the kernel adds up the four lanes of a row.
    """
    grown = tc.maximum(best, tc.row_max(scores))
    p = tc.exp2(tc.fma(scores, scale, grown * -scale), ftz=True)
    shrink = tc.exp2((best - grown) * scale, ftz=True)
    return p, shrink, grown, tc.fma(total, shrink, tc.row_sum(p, across_lanes=False))


def keep_behind(total, spare):
    """Keep the next wait after the softmax, whose last result is `total`.

    ptxas moves a wait up past arithmetic, and then nothing overlaps. It does not move a wait past a
    store. Sums are positive, so nothing is stored.
    """
    for each in total.elements():
        spare.at(0).store(each, pred=each < 0)


def advance(stage, phase):
    """Advance to the next stage; the parity flips after the last one."""
    last = stage == STAGES - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)


def attention(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    causal: bool = False,
    kernel: Any = attention_kernel,
    ctas: int = 132,
    tickets: Any = None,
) -> Any:
    """Launch o = softmax(q kᵀ / sqrt(D)) v; `kernel` may also be `attention_kernel.emulator(...)`.

    tickets: one s32 that is 0, in the memory of q; None: of NumPy.
    """
    (batch, heads, queries, dim), kv_heads, keys = q.shape, k.shape[1], k.shape[2]
    shared = kv_heads and heads % kv_heads == 0 and k.shape == (batch, kv_heads, keys, dim)
    if not shared or dim not in (64, 128) or keys < (queries if causal else 1):
        raise tc.ArgumentError(
            f"q and k have the same batch and D, which is 64 or 128, heads of q share heads of k, and every "
            f"query sees a key; they are {tuple(q.shape)} and {tuple(k.shape)}, causal={causal}"
        )
    group = heads // kv_heads
    # A part of a tile begins at a multiple of 8 rows, the height of the swizzle's pattern.
    pack = group if group in (2, 4, 8) and group * queries <= BM else 1
    tiles = batch * heads // pack * -(-queries // (BM // pack))
    tickets = np.zeros(1, np.int32) if tickets is None else tickets
    scale = math.log2(math.e) / math.sqrt(dim)  # exp(x) is exp2(x log2(e))
    launch = kernel[min(tiles, ctas), THREADS]
    return launch(q, k, v, o, tickets, scale, dim=dim, causal=causal, pack=pack)


def main() -> None:
    draw = np.random.default_rng(0).standard_normal
    q, k, v = (draw((1, 1, n, 64)).astype(tc.bf16.numpy) for n in (200, 300, 300))
    o = np.zeros_like(q)
    attention(q, k, v, o, causal=True)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(np.tri(200, 300, 100, dtype=bool), q @ k.swapaxes(2, 3) / 8, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    exact = p / p.sum(-1, keepdims=True) @ v
    right = np.allclose(o.astype(np.float64), exact, rtol=2**-7, atol=2**-7)
    print("o agrees with NumPy" if right else "o DIFFERS from NumPy")


if __name__ == "__main__":
    main()
