"""Step 1: one warpgroup, tiles of keys and values by TMA, two products by wgmma.

A CTA computes 64 queries of one head. It walks along the keys in tiles of 128. The scores q kᵀ
stay in registers, become P there, and are the A operand of the product with v: no score
reaches memory. The maximum of a row may grow from tile to tile; then its earlier sums shrink by
the same factor (online softmax: Milakov and Gimelshein, arXiv:1805.02867).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tensorcore_dsl as tc

BM, BN = 64, 128  # queries of a CTA, keys of a tile
STAGES = 2  # tiles of keys and values in shared memory: one in use, one in flight
SLAB = 64  # columns of a shared tile: rows of 128 bytes, one swizzle wide
THREADS = 128


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
    tile_q = tc.shared((slabs, 64, SLAB), q.dtype, swizzle=128)
    tile_k = tc.shared((STAGES, slabs, BN, SLAB), q.dtype, swizzle=128)
    tile_v = tc.shared((STAGES, slabs, BN, SLAB), q.dtype, swizzle=128)
    map_q = tc.tensor_map(q, (1, 1, 64, SLAB), swizzle=128)
    map_k = tc.tensor_map(k, (1, 1, BN, SLAB), swizzle=128)
    map_v = tc.tensor_map(v, (1, 1, BN, SLAB), swizzle=128)
    full_q, full = tc.mbarriers(1), tc.mbarriers(STAGES)
    first, head, batch = tc.blockIdx.x * BM, tc.blockIdx.y, tc.blockIdx.z
    # Query i sees the keys up to i + ahead, so that the last query sees all keys.
    queries, keys = q.shape[2], k.shape[2]
    ahead = keys - queries
    end = min(keys, first + BM + ahead) if causal else keys

    def load(start, stage):
        """Load the keys and values from `start` on. TMA writes zeros past the last key."""
        full[stage].arrive_expect_tx(slabs * (map_k.bytes + map_v.bytes))
        for slab in tc.static_range(slabs):
            place = batch, head, start, slab * SLAB
            tc.tma_load(tile_k[stage, slab], map_k, place, full[stage])
            tc.tma_load(tile_v[stage, slab], map_v, place, full[stage])

    if tc.threadIdx.x == 0:
        full_q[0].init(1)
        for number in tc.static_range(STAGES):
            full[number].init(1)  # the loading thread's arrival, with the bytes that it expects
        tc.fence_mbarrier_init()
        full_q[0].arrive_expect_tx(slabs * map_q.bytes)
        for slab in tc.static_range(slabs):
            tc.tma_load(tile_q[slab], map_q, (batch, head, first, slab * SLAB), full_q[0])
        for number in tc.static_range(STAGES):
            if number * BN < end:
                load(number * BN, number)
    tc.barrier()

    scores, out = qk.d.zeros(), pv.d.zeros()
    best, total = tc.row_values(qk.d, -math.inf), tc.row_values(qk.d)
    stage, phase = tc.u32(0), tc.u32(0)
    full_q[0].wait(0)
    for start in tc.range(0, end, BN):
        full[stage].wait(phase)
        tc.wgmma_fence()
        for slab in tc.static_range(slabs):
            # Without `accumulate` the product replaces the scores of the tile before.
            scores = tc.wgmma_async(qk, scores, tile_q[slab], tile_k[stage, slab], accumulate=slab > 0)
        tc.wgmma_commit()
        tc.wgmma_wait(0)

        # Only tiles at an edge need a mask: past the last key, or on the diagonal.
        edge = start + BN > keys
        if causal:
            edge = edge | (start + BN - 1 > first + ahead)
        if edge:
            scores = masked(scores, first, start, keys, ahead, causal)
        scores, shrink, best, total = softmax(scores, best, total, scale)
        # An accumulator lies in registers as an A operand does: no exchange between threads.
        p = tc.as_operand(scores, pv.a)
        out = out * shrink

        tc.wgmma_fence()
        out = tc.wgmma_async(pv, out, p, tile_v[stage], b_major="mn")
        tc.wgmma_commit()
        tc.wgmma_wait(0)
        # The four warps of a warpgroup multiply as one: when thread 0 sees the end of the product,
        # it has read all of the stage, and the next tile may overwrite it.
        if (tc.threadIdx.x == 0) & (start + STAGES * BN < end):
            load(start + STAGES * BN, stage)
        stage, phase = advance(stage, phase)
    # A reciprocal: the division that rounds correctly is a function call on the GPU, and a kernel
    # that calls functions waits for each wgmma at once.
    out = out * tc.rcp(tc.row_sum(total))
    tc.store_elements(o[batch, head, :, :], out, origin=(first, 0), bounded=True)


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
