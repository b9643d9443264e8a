"""Attention forward: o = softmax(scale q kᵀ) v, without the matrix of scores in memory.

Arrays   q and o (batch, heads, queries, D), k and v (batch, heads, keys, D), row-major.
Types    q, k, v and o are all f16 or all bf16; scores, sums of P and the output are
         accumulated in f32. D is 64 or 128, `queries` and `keys` are any numbers.
Causal   query i sees key j where j <= i + keys - queries, so that the last query sees all keys.

A block of four warps has 64 queries of one head; each warp has 16 of them, and keeps their queries,
their output and two numbers of each row in registers: the greatest score so far, and the sum of
all of P. The block walks along the keys, 64 at a time. While the warps work on one tile of
keys and values, cp.async brings the next one. Where the greatest score of a row grows, the sum and
the output shrink by the same factor (online softmax: Milakov and Gimelshein, arXiv:1805.02867;
FlashAttention: Dao et al., arXiv:2205.14135).

    python examples/flash_attention.py --queries 200 --keys 300 --dim 128 --causal

runs on the GPU if there is one, else in emulation, and prints the largest error.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import tensorcore_dsl as tc

ROWS = 64  # queries of a block: 16 for each warp
KEYS = 64  # keys of a tile
WARPS = ROWS // 16
THREADS = 32 * WARPS
DTYPES = {"f16": tc.f16, "bf16": tc.bf16}
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8}


@tc.kernel(threads=THREADS)
def attention_kernel(
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    o: tc.Array,
    scale: tc.f32,
    dim: tc.Const = 64,
    causal: tc.Const = False,
):
    """Grid: (tiles of ROWS queries, heads, batch); `scale` includes log2(e), for exp2."""
    mma = tc.mma.m16n8k16(q.dtype, q.dtype, tc.f32)
    # The swizzle puts the eight rows that one ldmatrix reads into different banks.
    tile_q = tc.shared((ROWS, dim), q.dtype, swizzle=128)
    tile_k = tc.shared((2, KEYS, dim), q.dtype, swizzle=128)
    tile_v = tc.shared((2, KEYS, dim), q.dtype, swizzle=128)
    first, head, batch = tc.blockIdx.x * ROWS, tc.blockIdx.y, tc.blockIdx.z
    queries, keys = q.shape[2], k.shape[2]
    row = tc.warp_id() * 16
    # The last key that query i sees is i + ahead, and the last query of the block sees most.
    ahead = keys - queries
    end = min(keys, first + ROWS + ahead) if causal else keys

    def load(start, stage):
        """Ask for a tile of keys and values: one group of cp.async, empty behind the last tile."""
        if start < end:
            # What lies behind the last key becomes zero: 0 times NaN bits would be NaN.
            tc.copy_tile(tile_k[stage, ...], k, (batch, head, start, 0), bounded=True)
            tc.copy_tile(tile_v[stage, ...], v, (batch, head, start, 0), bounded=True)
        tc.cp_async_commit()

    tc.copy_tile(tile_q, q, (batch, head, first, 0), bounded=True)
    tc.cp_async_commit()
    load(0, 0)
    # Of the two groups one may be pending, so the queries are there: those that this thread has
    # copied. The barrier adds those of the other threads.
    tc.cp_async_wait(1)
    tc.barrier()
    # Queries stay in registers, one A operand for each 16 of D.
    fq = [tc.ldmatrix(tile_q[row : row + 16, d : d + 16], mma.a) for d in range(0, dim, 16)]

    out = [mma.d.zeros() for _ in range(dim // 8)]
    best, total = tc.row_values(mma.d, -math.inf), tc.row_values(mma.d)
    for start in range(0, end, KEYS):
        stage = start // KEYS % 2
        # The other stage was read in the last round, and the barrier at its end has passed.
        load(start + KEYS, 1 - stage)
        # Pending is at most the group just issued: this tile is there, after the barrier for all.
        tc.cp_async_wait(1)
        tc.barrier()

        # Scores of 16 queries and 64 keys: 8 accumulators side by side. The transpose of a tile of
        # keys is D x keys, the B operand; only 16 of D are in registers at a time.
        scores = [mma.d.zeros() for _ in range(KEYS // 8)]
        for d in tc.static_range(0, dim, 16):
            fk = tc.ldmatrix(tile_k[stage, :, d : d + 16].T, mma.b)
            scores = tc.tiled_mma(mma, scores, [fq[d // 16]], fk)
        scores = [s * scale for s in scores]
        # Only tiles at an edge need a mask: that of the last key, and of the diagonal.
        edge = start + KEYS > keys
        if causal:
            edge = edge | (start + KEYS - 1 > first + row + ahead)
        if edge:
            scores = [
                masked(s, first + row, start + 8 * n, keys, ahead, causal) for n, s in enumerate(scores)
            ]

        # Every query sees key 0, which is in the first tile, so `grown` is never -inf, and
        # exp2(-inf - grown) is 0: for masked scores, and for `best` before the first tile.
        grown = tc.maximum(best, tc.row_max(scores))
        p, shrink = [tc.exp2(s - grown) for s in scores], tc.exp2(best - grown)
        best, total = grown, total * shrink + tc.row_sum(p)
        out = [x * shrink for x in out]
        # Two accumulators side by side lie as the A operand does: no exchange between threads.
        for n in tc.static_range(0, KEYS, 16):
            fp = tc.as_operand(p[n // 8 : n // 8 + 2], mma.a)
            fv = tc.ldmatrix(tile_v[stage, n : n + 16, :], mma.b)
            out = tc.tiled_mma(mma, out, [fp], fv)
        # Write after read: the next round overwrites this stage when all warps have read it.
        tc.barrier()
    for n, x in enumerate(out):
        place = first + row, 8 * n
        tc.store_elements(o[batch, head, :, :], x / total, origin=place, bounded=True)


def masked(scores, first_query, first_key, keys, ahead, causal):
    """Scores with -inf where the query does not see the key."""

    def mask(score, i, j):
        key = first_key + j
        seen = key < keys
        if causal:
            seen = seen & (key <= first_query + i + ahead)
        return tc.select(seen, score, -math.inf)

    return scores.map_coordinates(mask)


def attention(
    q: Any,
    k: Any,
    v: Any,
    causal: bool = False,
    scale: float | None = None,
    kernel: Any = attention_kernel,
    rows: int = ROWS,
    threads: int = THREADS,
) -> Any:
    """softmax(scale q kᵀ) v of NumPy arrays (batch, heads, length, D); `scale` None is 1 / √D.

    `kernel` may also be an emulator of it, `attention_kernel.emulator("sm_90a")`, or another kernel
    of the same parameters, whose blocks have `rows` queries and `threads` threads.
    Raises tc.ArgumentError for shapes and types that do not fit each other.
    """
    if q.ndim != 4 or k.shape != v.shape or k.ndim != 4:
        raise tc.ArgumentError(
            f"q, k and v are (batch, heads, length, D), k and v of one shape; "
            f"they are {q.shape}, {k.shape} and {v.shape}"
        )
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    if k.shape != (batch, heads, keys, dim) or dim not in (64, 128):
        raise tc.ArgumentError(
            f"q and k must agree in batch, heads and D, and D be 64 or 128; they are {q.shape} and {k.shape}"
        )
    allowed = [np.dtype(dtype.numpy) for dtype in DTYPES.values()]
    if not q.dtype == k.dtype == v.dtype or q.dtype not in allowed:
        raise tc.ArgumentError(
            f"q, k and v must be all float16 or all bfloat16; they are {q.dtype}, {k.dtype} and {v.dtype}"
        )
    if keys == 0 or (causal and keys < queries):
        raise tc.ArgumentError(f"every query must see a key: {queries} queries, {keys} keys, causal={causal}")
    o = np.empty_like(q)
    if o.size:
        factor = (1 / math.sqrt(dim) if scale is None else scale) * math.log2(math.e)
        grid = -(-queries // rows), heads, batch
        kernel[grid, threads](q, k, v, o, factor, dim=dim, causal=causal)
    return o


def reference(q: Any, k: Any, v: Any, causal: bool = False) -> tuple[Any, Any]:
    """Compute the result in float64 with scale 1 / √D, and a bound of the error of each element.

    With u the unit roundoff of the 16-bit type: scores are sums of D products, whose terms tensor
    cores truncate 2⁻²² below the largest, so each is off by (D + 4) 2⁻²² times the sum of its
    magnitudes (4: the factor, the maximum, exp2), and each element of P by that, relatively. Sums over
    keys add 2⁻²² for each key, and shrinking 2⁻²⁰ for each tile. All of this touches numerator and
    denominator; P in 16 bits only the numerator: u, or 2⁻²⁵ where f16 is subnormal. The
    result is rounded once more.
    """
    u, half = ROUNDOFF["f16" if q.dtype == np.float16 else "bf16"], 2.0**-25
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    dim, queries, keys = q.shape[3], q.shape[2], k.shape[2]
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(dim)
    magnitudes = np.einsum("bhqd,bhkd->bhqk", abs(q), abs(k)) / math.sqrt(dim)
    if causal:
        seen = np.tri(queries, keys, keys - queries, dtype=bool)
        scores, magnitudes = np.where(seen, scores, -np.inf), np.where(seen, magnitudes, 0)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    exact = p @ v
    of_scores = (dim + 4) * 2.0**-22 * magnitudes.max(-1, keepdims=True)
    of_sums = keys * 2.0**-22 + -(-keys // KEYS) * 2.0**-20
    bound = (u + 2 * (of_scores + of_sums)) * (p @ abs(v)) + keys * half * abs(v).max()
    return exact, 1.01 * (bound + u * abs(exact) + half)  # 1.01: products of errors


def main(arguments: list[str] | None = None, attend: Any = attention) -> None:
    parser = argparse.ArgumentParser(description="Attention forward, compared with NumPy.")
    parser.add_argument("--batch", type=int, default=1, help="sequences (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=2, help="of each (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=200, help="of a head (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=300, help="of a head (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=64, choices=(64, 128), help="D, of a head")
    parser.add_argument("--dtype", default="f16", choices=DTYPES, help="of q, k, v and o")
    parser.add_argument("--causal", action="store_true", help="queries do not see later keys")
    options = parser.parse_args(arguments)

    draw = np.random.default_rng(0)
    dtype = DTYPES[options.dtype].numpy
    lengths = options.queries, options.keys, options.keys
    q, k, v = (
        draw.standard_normal((options.batch, options.heads, n, options.dim)).astype(dtype) for n in lengths
    )
    o = attend(q, k, v, options.causal)
    exact, bound = reference(q, k, v, options.causal)
    error = abs(o.astype(np.float64) - exact)
    where = "the GPU" if tc.current_target() == "cuda" else "the CPU, emulated"
    share = (error / bound).max()
    print(f"ran on {where}; largest error {error.max():.2e}, {share:.2f} of its bound")
    if not (error <= bound).all():
        raise SystemExit("o DIFFERS from NumPy")


if __name__ == "__main__":
    main()
