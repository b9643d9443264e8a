"""Product of activations and int4 weights: d = x wᵀ, w[n, k] = scales[k // 128, n] (q[n, k] - 8).

Arrays   x (M, K), scales (K / 128, N) and d (M, N), row-major; q (N, K) has numbers from 0 to 15,
         eight to a word, in the order that `pack` gives them.
Types    x, scales and d are all f16 or all bf16; products are exact and sums f32.
Sizes    any M; N is a multiple of 16 and K of 128. Made for few rows of x, as in the decoding of a
         language model: with M up to 16 each weight is read once, beyond that once for 16 rows.

At best such a product takes as long as the weights take to arrive; all else serves that.
Weights are the A operand of the products and x the B operand: 8 rows of x fill an instruction, and
16 would be needed the other way round. `pack` puts next to each other what a lane needs: a warp
loads 512 bytes, 16 bytes a lane, straight to registers, and every word is one A fragment. The next
weights are asked for before those at hand are multiplied. Nothing is shared until the end: each of
the block's warps has all rows of the block, and every WARPS-th group of 128 along K.

A word becomes eight numbers of 16 bits in eleven instructions: four bits or-ed into the last bits
of 1024 (f16) or 128 (bf16) are 1024 + q or 128 + q, and one packed subtraction makes two of
them q - 8. These are exact, and so are their products with x; the scale multiplies the f32 sum of
a group. (The or and the layout: Frantar et al., MARLIN, arXiv:2408.11743.)

    python examples/w4a16.py --m 5 --n 208 --k 1024

runs on the GPU if there is one, else in emulation, and prints the largest error.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tensorcore_dsl as tc

WARPS = 8
GROUP = 128  # along K: elements of one scale
STEP = 64  # along K: elements of which a lane loads 16 bytes
ROWS = (32, 16)  # of weights, of a block
TOKENS = (8, 16)  # rows of x, of a block
BLOCKS = 200  # at least, if rows of 16 give as many: two for most multiprocessors of an H200
DTYPES = {"f16": tc.f16, "bf16": tc.bf16}
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8}
# The number whose last four bits are q if the bits of q are or-ed into it: for two elements.
OFFSET = {tc.f16: (0x64006400, 1024), tc.bf16: (0x43004300, 128)}


@tc.kernel(threads=32 * WARPS)
def w4a16_kernel(
    x: tc.Array, packed: tc.Array, scales: tc.Array, d: tc.Array, rows: tc.Const = 32, tokens: tc.Const = 8
):
    """Grid: (tiles of `rows` weights' rows, tiles of `tokens` rows of x)."""
    mma = tc.mma.m16n8k16(x.dtype, x.dtype, tc.f32)
    first_row, first_token = tc.blockIdx.x * rows, tc.blockIdx.y * tokens
    warp, lane, groups = tc.warp_id(), tc.lane_id(), scales.shape[0]
    tiles, halves = range(rows // 16), range(tokens // 8)

    def weights(group):
        """The words of this lane: for each tile of 16 rows, and each of two steps, four."""
        there = group < groups  # behind the last group nothing is loaded
        return [
            [
                packed.at(first_row // 16 + i, group * 2 + step, lane, 0).load(4, pred=there)
                for step in range(GROUP // STEP)
            ]
            for i in tiles
        ]

    def activations(group, step):
        """For each half of the tokens twice 8 elements of this lane's row: four B fragments."""
        fragments = []
        for j in halves:
            token = first_token + 8 * j + lane // 4
            source = x.at(token, group * GROUP + step * STEP + lane % 4 * 8)
            there = token < x.shape[0]
            low, high = source.load(8, pred=there), (source + 32).load(8, pred=there)
            pairs = [tc.pack(v[e], v[e + 1]) for v in (low, high) for e in (0, 2, 4, 6)]
            fragments.append([tc.fragment(mma.b, pairs[2 * k : 2 * k + 2]) for k in range(4)])
        return fragments

    acc = [[mma.d.zeros() for _ in halves] for _ in tiles]
    ahead = weights(warp)
    for group in tc.range(warp, groups, WARPS):
        words, ahead = ahead, weights(group + WARPS)
        scale = [tc.load_rows(scales[group, :], mma.d, origin=first_row + 16 * i) for i in tiles]
        sums = [[mma.d.zeros() for _ in halves] for _ in tiles]
        for step in tc.static_range(GROUP // STEP):
            fx = activations(group, step)
            for k in tc.static_range(4):
                for i in tiles:
                    fw = dequantised(words[i][step][k], mma.a)
                    for j in halves:
                        sums[i][j] = mma(fw, fx[j][k], sums[i][j])
        for i in tiles:
            for j in halves:
                acc[i][j] = tc.fma(sums[i][j], scale[i].to(tc.f32), acc[i][j])

    # Every warp has a sum of each element of the block's result: shared memory adds them, always in
    # the order of the warps. A row of 8 or 16 numbers, and 4 more, keeps banks apart.
    parts = tc.shared((WARPS, rows, tokens), tc.f32, strides=(rows * (tokens + 4), tokens + 4, 1))
    for i in tiles:
        for j in halves:
            tc.store_elements(parts[warp, :, :], acc[i][j], origin=(16 * i, 8 * j))
    # Read after write: each thread reads what all warps have stored.
    tc.barrier()
    for place in tc.static_range(0, rows * tokens, 32 * WARPS):
        row, token = (place + tc.threadIdx.x) % rows, (place + tc.threadIdx.x) // rows
        if (token < tokens) & (first_token + token < x.shape[0]):
            d[first_token + token, first_row + row] = sum([parts[i, row, token] for i in range(WARPS)])


def dequantised(word, operand):
    """The A fragment of a word: register i has q - 8 of the bits 4i.. and 4i + 16.. of the word."""
    bits, offset = OFFSET[operand.dtype]
    registers = [(word >> 4 * i) & 0x000F000F | bits for i in range(4)]
    return tc.fragment(operand, registers) - (offset + 8)


def pack(q: Any) -> Any:
    """Words of numbers (N, K) from 0 to 15: u32 (N / 16, K / 64, 32, 4).

    Lane 4g + t has rows g and g + 8 of a tile of 16, and of 64 along K the 8 elements from 8t on
    and those from 32 + 8t on: so four lanes load 64 bytes of a row of x. Four elements of both rows
    are a word: x and weights agree on which elements an instruction multiplies, so any order along
    K is right. Register i = r + 2c of a fragment has row g + 8r and the elements 2c and 2c + 1 of
    the four; element p of the two is number i + 4p of the word.

    Raises tc.ArgumentError for other sizes and numbers.
    """
    q = np.asarray(q)
    if q.ndim != 2 or q.shape[0] % 16 or q.shape[1] % GROUP:
        raise tc.ArgumentError(f"q is (N, K), N a multiple of 16 and K of {GROUP}; it is {q.shape}")
    if q.size and not 0 <= q.min() <= q.max() <= 15:
        raise tc.ArgumentError(f"q is from 0 to 15; it is from {q.min()} to {q.max()}")
    n, k = q.shape
    # Axes: tile, r, g, step, half of the step, t, word of the half, c, p.
    parts = q.astype(np.uint32).reshape(n // 16, 2, 8, k // STEP, 2, 4, 2, 2, 2)
    words = np.zeros((n // 16, 8, k // STEP, 2, 4, 2), np.uint32)
    for r, c, p in np.ndindex(2, 2, 2):
        words |= parts[:, r, ..., c, p] << np.uint32(4 * (r + 2 * c + 4 * p))
    # Tile, step, g, t, half, word of the half.
    words = np.ascontiguousarray(words.transpose(0, 2, 1, 4, 3, 5))
    return words.reshape(n // 16, k // STEP, 32, 4)


def quantised(w: Any) -> tuple[Any, Any]:
    """(q, scales) of float weights (N, K): the largest magnitude of a group becomes 7."""
    groups = w.reshape(w.shape[0], -1, GROUP)
    scales = abs(groups).max(-1).astype(np.float64) / 7
    steps = groups / np.where(scales, scales, 1)[..., None]
    return (np.clip(np.rint(steps), -8, 7) + 8).astype(np.uint8).reshape(w.shape), scales.T


def tiles_of(m: int, n: int) -> dict[str, int]:
    """Rows of weights, which divide N, and of x of a block: the most that leave enough blocks."""
    tokens = next((t for t in TOKENS if t >= m), TOKENS[-1])
    tall = (r for r in ROWS if n % r == 0 and n // r * -(-m // tokens) >= BLOCKS)
    rows = next(tall, ROWS[-1])
    return {"rows": rows, "tokens": tokens}


def w4a16(x: Any, packed: Any, scales: Any, kernel: Any = w4a16_kernel) -> Any:
    """d (M, N) of NumPy arrays x (M, K), packed = pack(q) and scales (K / 128, N).

    `kernel` may also be an emulator of it, `w4a16_kernel.emulator("sm_90a")`.
    Raises tc.ArgumentError for shapes and types that do not fit each other.
    """
    if x.ndim != 2 or scales.ndim != 2 or x.shape[1] != scales.shape[0] * GROUP:
        raise tc.ArgumentError(
            f"x is (M, K) and scales (K / {GROUP}, N); they are {x.shape} and {scales.shape}"
        )
    (m, k), n = x.shape, scales.shape[1]
    if n % 16 or packed.shape != (n // 16, k // STEP, 32, 4) or packed.dtype != np.uint32:
        raise tc.ArgumentError(
            f"packed is what pack gives for q ({n}, {k}), with a multiple of 16 rows: uint32 "
            f"({n // 16}, {k // STEP}, 32, 4); it is {packed.dtype} {packed.shape}"
        )
    if x.dtype != scales.dtype or x.dtype not in [t.numpy for t in DTYPES.values()]:
        raise tc.ArgumentError(
            f"x and scales must be both float16 or both bfloat16; they are {x.dtype} and {scales.dtype}"
        )
    x, packed = map(aligned, (x, packed))
    d = np.zeros((m, n), x.dtype)
    if d.size and k:
        tiles = tiles_of(m, n)
        grid = -(-n // tiles["rows"]), -(-m // tiles["tokens"])
        kernel[grid, 32 * WARPS](x, packed, scales, d, **tiles)
    return d


def aligned(array: Any) -> Any:
    """The array, or a copy that is contiguous and starts at a multiple of 16 bytes."""
    array = np.ascontiguousarray(array)
    return array if array.ctypes.data % 16 == 0 else array.copy()


def reference(x: Any, q: Any, scales: Any) -> tuple[Any, Any]:
    """Compute the result in float64, and a bound of the error of each element.

    Products of x and q - 8 are exact. Tensor cores truncate the terms of a sum 2⁻²² below the
    largest, so the sum of a group is off by 128 · 2⁻²² times that of its magnitudes; scaling
    and adding K / 128 groups and WARPS warps, 2⁻²⁴ for each, touches all of them. The result is
    rounded once: u, or 2⁻²⁵ where f16 is subnormal.
    """
    u = ROUNDOFF["f16" if x.dtype == np.float16 else "bf16"]
    x, scales = x.astype(np.float64), scales.astype(np.float64)
    w = (q.astype(np.float64) - 8) * np.repeat(scales, GROUP, axis=0).T
    exact, magnitudes = x @ w.T, abs(x) @ abs(w).T
    bound = (GROUP * 2.0**-22 + (len(scales) + WARPS) * 2.0**-24) * magnitudes
    return exact, 1.01 * (bound + u * abs(exact) + 2.0**-25)  # 1.01: products of errors


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="int4 weights times activations, beside NumPy.")
    parser.add_argument("--m", type=int, default=5, help="rows of x (default: %(default)s)")
    parser.add_argument("--n", type=int, default=208, help="rows of w (default: %(default)s)")
    parser.add_argument("--k", type=int, default=1024, help="columns (default: %(default)s)")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES, help="of x, scales and d")
    options = parser.parse_args(arguments)

    draw, dtype = np.random.default_rng(0), DTYPES[options.dtype].numpy
    x = draw.standard_normal((options.m, options.k)).astype(dtype)
    q, scales = quantised(draw.standard_normal((options.n, options.k)))
    scales = scales.astype(dtype)
    d = w4a16(x, pack(q), scales)
    exact, bound = reference(x, q, scales)
    error = abs(d.astype(np.float64) - exact)
    where = "the GPU" if tc.current_target() == "cuda" else "the CPU, emulated"
    share = (error / bound).max()
    print(f"ran on {where}; largest error {error.max():.2e}, {share:.2f} of its bound")
    if not (error <= bound).all():
        raise SystemExit("d DIFFERS from NumPy")


if __name__ == "__main__":
    main()
