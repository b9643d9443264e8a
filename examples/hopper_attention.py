"""Attention forward on Hopper: flash_attention.py with wgmma, TMA and a producer warpgroup.

Arrays, types, masks and the online softmax are those of flash_attention.py, which explains them;
here each step is done by what Hopper has for it. D is 64 or 128.

A block has 128 queries of one head. A producer warpgroup, one thread of it, loads the queries once
and then tiles of keys and values by TMA into a ring of stages; what lies behind the last key comes
as zeros. Two consumer warpgroups have 64 queries each: q kᵀ by wgmma from shared memory, the
softmax in registers, and P times values with P still in registers, as the A
operand. While one consumer computes exponentials, the tensor cores multiply for the other.

    python examples/hopper_attention.py --queries 200 --keys 300 --dim 128 --causal

runs on the GPU if there is a Hopper one, else in emulation, and prints the largest error.
"""

from __future__ import annotations

import math
from typing import Any

import tensorcore_dsl as tc

if __package__:
    from examples import flash_attention
else:  # run as a file: the other one lies beside it
    import flash_attention  # type: ignore[import-not-found, no-redef]

masked = flash_attention.masked

ROWS = 128  # queries of a block, 64 for each consumer
KEYS = 128  # keys of a tile
CONSUMERS = ROWS // 64
STAGES = 2
WIDTH = 64  # columns of a tile in shared memory: 128 bytes, one swizzle
THREADS = 128 * (1 + CONSUMERS)


@tc.kernel(threads=THREADS, min_blocks=1)
def attention_kernel(
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    o: tc.Array,
    scale: tc.f32,
    dim: tc.Const = 64,
    causal: tc.Const = False,
    keys_of_tile: tc.Const = KEYS,
):
    """Grid: (tiles of ROWS queries, heads, batch); `scale` includes log2(e), for exp2."""
    size, slabs = keys_of_tile, dim // WIDTH
    qk = getattr(tc.wgmma, f"m64n{size}k16")(q.dtype, q.dtype, tc.f32)
    pv = getattr(tc.wgmma, f"m64n{dim}k16")(q.dtype, q.dtype, tc.f32, source="registers")
    # A row of `dim` elements is split into slabs of 64, the width of the swizzle.
    tile_q = tc.shared((CONSUMERS, slabs, 64, WIDTH), q.dtype, swizzle=128)
    tile_k = tc.shared((STAGES, slabs, size, WIDTH), q.dtype, swizzle=128)
    tile_v = tc.shared((STAGES, slabs, size, WIDTH), q.dtype, swizzle=128)
    map_q = tc.tensor_map(q, (1, 1, 64, WIDTH), swizzle=128)
    map_k = tc.tensor_map(k, (1, 1, size, WIDTH), swizzle=128)
    map_v = tc.tensor_map(v, (1, 1, size, WIDTH), swizzle=128)
    full_q, full_k, full_v = tc.mbarriers(1), tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    empty_k, empty_v = tc.mbarriers(STAGES), tc.mbarriers(STAGES)

    first, head, batch = tc.blockIdx.x * ROWS, tc.blockIdx.y, tc.blockIdx.z
    if causal:  # the last tiles have the most keys: they start first
        first = (tc.gridDim.x - 1 - tc.blockIdx.x) * ROWS
    queries, keys = q.shape[2], k.shape[2]
    # The last key that query i sees is i + ahead, and the last query of the block sees most.
    ahead = keys - queries
    end = min(keys, first + ROWS + ahead) if causal else keys

    if tc.threadIdx.x == 0:
        full_q[0].init(1)
        for stage in tc.static_range(STAGES):
            for full, empty in ((full_k, empty_k), (full_v, empty_v)):
                full[stage].init(1)  # the producer's arrival, and the bytes that it announces
                empty[stage].init(CONSUMERS)
        tc.fence_mbarrier_init()
    tc.barrier()

    def produce():
        if tc.threadIdx.x == 0:
            full_q[0].arrive_expect_tx(CONSUMERS * slabs * map_q.bytes)
            for part in tc.static_range(CONSUMERS):
                for slab in tc.static_range(slabs):
                    place = batch, head, first + 64 * part, slab * WIDTH
                    tc.tma_load(tile_q[part, slab], map_q, place, full_q[0])
            # A new barrier is in phase 0, so a wait for parity 1 returns at once: all stages start
            # out empty.
            stage, phase = tc.u32(0), tc.u32(1)
            for start in tc.range(0, end, size):
                for tile, boxes, full, empty in (
                    (tile_k, map_k, full_k, empty_k),
                    (tile_v, map_v, full_v, empty_v),
                ):
                    empty[stage].wait(phase)
                    full[stage].arrive_expect_tx(slabs * boxes.bytes)
                    for slab in tc.static_range(slabs):
                        place = batch, head, start, slab * WIDTH
                        tc.tma_load(tile[stage, slab], boxes, place, full[stage])
                stage, phase = advance(stage, phase)

    def consume(consumer):
        row, leader = first + 64 * consumer, tc.threadIdx.x % 128 == 0
        out, scores = pv.d.zeros(), qk.d.zeros()
        best, total = tc.row_values(qk.d, -math.inf), tc.row_values(qk.d)
        stage, phase = tc.u32(0), tc.u32(0)
        full_q[0].wait(0)
        for start in tc.range(0, end, size):
            full_k[stage].wait(phase)
            tc.wgmma_fence()
            for slab in tc.static_range(slabs):
                scores = tc.wgmma_async(
                    qk, scores, tile_q[consumer, slab], tile_k[stage, slab], accumulate=slab > 0
                )
            tc.wgmma_commit()
            tc.wgmma_wait(0)
            # The product has read its keys: the producer may load the next ones.
            empty_k[stage].arrive(pred=leader)

            scaled = scores * scale
            # Only tiles at an edge need a mask: that of the last key, and of the diagonal.
            edge = start + size > keys
            if causal:
                edge = edge | (start + size - 1 > row + ahead)
            if edge:
                scaled = masked(scaled, row, start, keys, ahead, causal)
            # Every query sees key 0, so `grown` is never -inf, and exp2(-inf - grown) is 0.
            grown = tc.maximum(best, tc.row_max(scaled))
            p, shrink = tc.exp2(scaled - grown), tc.exp2(best - grown)
            best, total = grown, total * shrink + tc.row_sum(p)
            out = out * shrink

            full_v[stage].wait(phase)
            # Accumulators lie as the A operand does: no exchange between threads.
            fp = tc.as_operand(p, pv.a)
            tc.wgmma_fence()
            out = tc.wgmma_async(pv, out, fp, tile_v[stage], b_major="mn")
            tc.wgmma_commit()
            tc.wgmma_wait(0)
            empty_v[stage].arrive(pred=leader)
            stage, phase = advance(stage, phase)
        # A reciprocal: the division that rounds correctly is a function call on the GPU, and
        # a kernel that calls functions waits for each wgmma at once.
        out = out * tc.rcp(total)
        tc.store_elements(o[batch, head, :, :], out, origin=(row, 0), bounded=True)

    tc.warp_specialize((1, produce), (CONSUMERS, consume))


def advance(stage, phase):
    """The next stage of the ring; the parity flips when the ring starts again."""
    last = stage == STAGES - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)


def attention(
    q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None, kernel: Any = attention_kernel
) -> Any:
    """softmax(scale q kᵀ) v, with the arguments and errors of flash_attention.attention."""
    return flash_attention.attention(q, k, v, causal, scale, kernel, ROWS, THREADS)


def main(arguments: list[str] | None = None) -> None:
    flash_attention.main(arguments, attention)


if __name__ == "__main__":
    main()
