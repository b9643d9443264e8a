"""Attention forward by mma.sync, for sm_80 and later: o = softmax(scale q kᵀ) v.

A CTA of four warps has 64 queries of one head, 16 for each warp. Each warp keeps in registers its
queries, the sums of its outputs and two numbers of each row: the maximum of the scores so far, and
the sum of P. The CTA walks along the keys, one tile at a time. While the warps work on one
tile of keys and values, cp.async loads the next one. If the maximum of a row grows, the sum and the
output shrink by the same factor (online softmax: Milakov and Gimelshein,
arXiv:1805.02867; FlashAttention: Dao et al., arXiv:2205.14135).
"""

from __future__ import annotations

import math

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_scores import KeyRange, Softmax, page_of

ROWS = 64  # queries of a CTA
THREADS = 128  # threads of a CTA
SLAB = 64  # 16-bit elements of a row of a swizzled tile; D is rounded up to whole slabs
# Keys of a tile up to this D, and above: 96 KiB of shared memory, which sm_86 and sm_89 have.
WIDE, KEYS, KEYS_OF_WIDE = 128, 64, 32


@tc.kernel(threads=THREADS)
def attention_kernel(  # noqa: PLR0913, PLR0915
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    o: tc.Array,
    lse: tc.Array,
    starts_q: tc.Array,
    starts_k: tc.Array,
    table: tc.Array,
    scale: tc.f32,
    cap: tc.f32,
    left: tc.s32,
    right: tc.s32,
    traits: tc.Const,
):
    """q, o: (batch, heads, queries, D). k, v: (batch, key heads, keys, D). lse: (batch, heads,
    queries), f32. scale, cap: see Softmax. left, right: see KeyRange.

    starts_q, starts_k: of packed sequences, s32: sequence i has rows starts[i] to starts[i + 1] - 1
    of batch 0. table: of paged keys, s32: page j of sequence i is batch table[i, j] of k and v.
    Grid: (tiles of ROWS queries of the longest sequence, or more; heads; sequences).
    """
    mma = tc.mma.m16n8k16(q.dtype, q.dtype, tc.f32)
    depth, width = (-(-n // SLAB) * SLAB for n in (traits.depth, traits.width))
    size = KEYS if max(depth, width) <= WIDE else KEYS_OF_WIDE
    # The swizzle puts the eight rows that one ldmatrix reads into different banks.
    tile_q = tc.shared((ROWS, depth), q.dtype, swizzle=128)
    tile_k = tc.shared((2, size, depth), q.dtype, swizzle=128)
    tile_v = tc.shared((2, size, width), q.dtype, swizzle=128)
    head, sequence = tc.blockIdx.y, tc.blockIdx.z
    kv_head = head // (q.shape[1] // k.shape[1])
    batch, start, key_start = sequence, tc.s32(0), tc.s32(0)
    queries, keys = q.shape[2], k.shape[2]
    if traits.packed:
        batch, start, key_start = tc.s32(0), starts_q[sequence], starts_k[sequence]
        queries, keys = starts_q[sequence + 1] - start, starts_k[sequence + 1] - key_start
    # The tiles with the most keys of a causal mask start first.
    first = ((queries + (ROWS - 1)) // ROWS - 1 - tc.blockIdx.x) * ROWS
    if first < 0:
        return
    row = first + tc.warp_id() * 16
    key_range = KeyRange(traits, keys, keys - queries, left, right)
    softmax = Softmax(traits, scale, cap)
    low, high = key_range.bounds(first, ROWS)
    low = low // size * size

    def load(key, stage):
        """Start the copies of a key tile: one group of cp.async, empty behind the last tile."""
        if key < high:
            copy(tile_k[stage, ...], k, key)
            copy(tile_v[stage, ...], v, key)
        tc.cp_async_commit()

    def copy(tile, x, key):
        """Copy a tile of k or v.

        Rows behind the last key become zero: 0 times NaN bits would be NaN.
        """
        if not traits.page:
            head_rows = x[batch, kv_head, key_start : key_start + keys, :]
            tc.copy_tile(tile, head_rows, (key, 0), bounded=True)
            return
        rows = math.gcd(size, traits.page)  # of a part, which lies in one page
        for part in tc.static_range(0, size, rows):
            page = page_of(table, sequence, key + part, keys, traits.page)
            at = (key + part) % traits.page
            end = at + max(min(keys - key - part, rows), 0)
            page_rows = x[page, kv_head, at:end, :]
            tc.copy_tile(tile[part : part + rows, :], page_rows, (0, 0), bounded=True)

    head_rows = q[batch, head, start : start + queries, :]
    tc.copy_tile(tile_q, head_rows, (first, 0), bounded=True)
    tc.cp_async_commit()
    load(low, 0)
    # One of the two groups may stay pending, so this thread's copies of the queries have landed. The
    # barrier adds the copies of the other threads.
    tc.cp_async_wait(1)
    tc.barrier()
    warp_queries = tile_q[tc.warp_id() * 16 : tc.warp_id() * 16 + 16, :]
    # Queries stay in registers, one A operand for each 16 of D, unless the outputs need them.
    kept = range(0, depth if depth <= WIDE else 0, 16)
    fq = [tc.ldmatrix(warp_queries[:, d : d + 16], mma.a) for d in kept]

    out = [mma.d.zeros() for _ in range(width // 8)]
    best, total = tc.row_values(mma.d, -math.inf), tc.row_values(mma.d)
    for key in range(low, high, size):
        stage = (key - low) // size % 2
        # The other stage was read in the last round, and the barrier at its end has passed.
        load(key + size, 1 - stage)
        # Pending is at most the group just issued: this tile is there, after the barrier for all.
        tc.cp_async_wait(1)
        tc.barrier()

        # Scores of 16 queries: size / 8 accumulators side by side. The transpose of a tile of keys
        # is D x keys, the B operand; only 16 of D are in registers at a time.
        scores = [mma.d.zeros() for _ in range(size // 8)]
        for d in tc.static_range(0, depth, 16):
            part = fq[d // 16] if fq else tc.ldmatrix(warp_queries[:, d : d + 16], mma.a)
            fk = tc.ldmatrix(tile_k[stage, :, d : d + 16].T, mma.b)
            scores = tc.tiled_mma(mma, scores, [part], fk)
        scores = [softmax.capped(score) for score in scores]
        if key_range.needs_mask(row, 16, key, size):
            scores = [key_range.masked(s, row, key + 8 * n) for n, s in enumerate(scores)]
        p, shrink, best, total = softmax.step(scores, best, total)
        out = [x * shrink for x in out]
        # Two accumulators side by side lie as the A operand does: no exchange between threads.
        for n in tc.static_range(0, size, 16):
            fp = tc.as_operand(p[n // 8 : n // 8 + 2], mma.a)
            fv = tc.ldmatrix(tile_v[stage, n : n + 16, :], mma.b)
            out = tc.tiled_mma(mma, out, [fp], fv)
        # Write after read: the next round overwrites this stage when all warps have read it.
        tc.barrier()
    factor, exponent = softmax.finish(best, total)
    head_rows = o[batch, head, start : start + queries, :]
    for n, x in enumerate(out):
        tc.store_elements(head_rows, x * factor, origin=(row, 8 * n), bounded=True)
    if traits.lse:
        head_rows = lse[batch, head, start : start + queries]
        tc.store_rows(head_rows, exponent, origin=row, bounded=True)
