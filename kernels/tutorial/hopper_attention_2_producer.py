"""Step 2: a producer warpgroup, and two consumers with more registers.

One thread of the producer loads; two consumers with 64 queries each multiply, and share each tile
of keys and values. Keys and values have barriers of their own, so that a product waits for its own
operand only. The producer gives registers to the consumers (setmaxnreg).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tensorcore_dsl as tc

CONSUMERS = 2
BM, BN = 64 * CONSUMERS, 128  # queries of a CTA, keys of a tile
STAGES = 2  # tiles of keys, and tiles of values, in shared memory
SLAB = 64  # columns of a shared tile: rows of 128 bytes, one swizzle wide
THREADS = 128 * (1 + CONSUMERS)
# Registers of a thread of the producer and of a consumer: 24 + 2 * 240 is 3 * 168, what the CTA is
# launched with (65536 / 384, rounded down to a multiple of 8).
REGISTERS = (24, 240)


@tc.kernel(threads=THREADS, min_blocks=1)
def attention_kernel(
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    o: tc.Array,
    scale: tc.f32,
    dim: tc.Const = 64,
    causal: tc.Const = False,
):
    """Grid: (tiles of BM queries, heads, batch). All arrays are (batch, heads, length, dim)."""
    slabs = dim // SLAB
    qk = getattr(tc.wgmma, f"m64n{BN}k16")(q.dtype, q.dtype, tc.f32)
    pv = getattr(tc.wgmma, f"m64n{dim}k16")(q.dtype, q.dtype, tc.f32, source="registers")
    tile_q = tc.shared((CONSUMERS, slabs, 64, SLAB), q.dtype, swizzle=128)
    tile_k = tc.shared((STAGES, slabs, BN, SLAB), q.dtype, swizzle=128)
    tile_v = tc.shared((STAGES, slabs, BN, SLAB), q.dtype, swizzle=128)
    map_q = tc.tensor_map(q, (1, 1, 64, SLAB), swizzle=128)
    map_k = tc.tensor_map(k, (1, 1, BN, SLAB), swizzle=128)
    map_v = tc.tensor_map(v, (1, 1, BN, SLAB), swizzle=128)
    full_q, full_k, full_v = tc.mbarriers(1), tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    empty_k, empty_v = tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    first, head, batch = tc.blockIdx.x * BM, tc.blockIdx.y, tc.blockIdx.z
    # Query i sees the keys up to i + ahead, so that the last query sees all keys.
    queries, keys = q.shape[2], k.shape[2]
    ahead = keys - queries
    end = min(keys, first + BM + ahead) if causal else keys

    if tc.threadIdx.x == 0:
        full_q[0].init(1)
        for stage in tc.static_range(STAGES):
            for full, empty in ((full_k, empty_k), (full_v, empty_v)):
                full[stage].init(1)  # the producer's arrival, with the bytes that it expects
                empty[stage].init(CONSUMERS)  # one arrival of each consumer
        tc.fence_mbarrier_init()
    tc.barrier()

    def load(tile, boxes, full, empty, start, stage, phase):
        """Load one tile of keys or values when its stage is empty."""
        empty[stage].wait(phase)
        full[stage].arrive_expect_tx(slabs * boxes.bytes)
        for slab in tc.static_range(slabs):
            tc.tma_load(tile[stage, slab], boxes, (batch, head, start, slab * SLAB), full[stage])

    def produce():
        if tc.threadIdx.x == 0:
            full_q[0].arrive_expect_tx(CONSUMERS * slabs * map_q.bytes)
            for part in tc.static_range(CONSUMERS):
                for slab in tc.static_range(slabs):
                    place = batch, head, first + 64 * part, slab * SLAB
                    tc.tma_load(tile_q[part, slab], map_q, place, full_q[0])
            # A new barrier is in phase 0, so a wait for parity 1 returns at once: all stages start
            # out empty.
            stage, phase = tc.u32(0), tc.u32(1)
            for start in tc.range(0, end, BN):
                load(tile_k, map_k, full_k, empty_k, start, stage, phase)
                load(tile_v, map_v, full_v, empty_v, start, stage, phase)
                stage, phase = advance(stage, phase)

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
            scores = masked(scores, row, start, keys, ahead, causal)
        return softmax(scores, best, total, scale)

    def consume(consumer):
        row, leader = first + 64 * consumer, tc.threadIdx.x % 128 == 0
        scores, out = qk.d.zeros(), pv.d.zeros()
        best, total = tc.row_values(qk.d, -math.inf), tc.row_values(qk.d)
        # The first filling of a stage is phase 0 of its full barrier.
        stage, phase = tc.u32(0), tc.u32(0)
        full_q[0].wait(0)
        for start in tc.range(0, end, BN):
            full_k[stage].wait(phase)
            scores = issue_scores(scores, consumer, stage)
            tc.wgmma_wait(0)
            # The product has read its keys: the producer may load the next ones.
            empty_k[stage].arrive(pred=leader)
            scores, shrink, best, total = softmax_step(scores, row, start, best, total)
            p = tc.as_operand(scores, pv.a)
            out = out * shrink
            full_v[stage].wait(phase)
            out = issue_output(out, p, stage)
            tc.wgmma_wait(0)
            empty_v[stage].arrive(pred=leader)
            stage, phase = advance(stage, phase)
        out = out * tc.rcp(tc.row_sum(total))
        tc.store_elements(o[batch, head, :, :], out, origin=(row, 0), bounded=True)

    tc.warp_specialize((1, produce), (CONSUMERS, consume), registers=REGISTERS)


def masked(scores, query, key, keys, ahead, causal):
    """Set scores to -inf where a query does not see the key; `query`, `key`: of the first row and column."""

    def mask(score, i, j):
        visible = key + j < keys
        if causal:
            visible = visible & (key + j <= query + i + ahead)
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


def advance(stage, phase):
    """Advance to the next stage; the parity flips after the last one."""
    last = stage == STAGES - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)


def attention(q: Any, k: Any, v: Any, o: Any, causal: bool = False, kernel: Any = attention_kernel) -> Any:
    """Launch o = softmax(q kᵀ / sqrt(D)) v; `kernel` may also be `attention_kernel.emulator(...)`."""
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    if k.shape != (batch, heads, keys, dim) or dim not in (64, 128) or keys < (queries if causal else 1):
        raise tc.ArgumentError(
            f"q and k have the same batch, heads and D, which is 64 or 128, and every query sees a key; "
            f"they are {tuple(q.shape)} and {tuple(k.shape)}, causal={causal}"
        )
    scale = math.log2(math.e) / math.sqrt(dim)  # exp(x) is exp2(x log2(e))
    return kernel[(-(-queries // BM), heads, batch), THREADS](q, k, v, o, scale, dim=dim, causal=causal)


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
