"""Split f32 in two tf32, to multiply with the accuracy of f32 on tensor cores ("3xTF32").

A tf32 has 11 significant bits, an f32 has 24. x = high + low: `high` is x rounded to tf32, and `low`
is the difference. tf32 drops at most the last bit of `low`, at most 2^-23 |x|. A product is

    a b = a.low b.high + a.high b.low + a.high b.high    (+ a.low b.low: left out, <= 2^-22 |a b|)

with the small terms added first. `high` is rounded to nearest, so `low` has either sign, and the
omitted terms do not add up to a drift. tf32 has the exponents of f32: below 2^-113 the last bits of
`low` are lost, and below 2^-126 the last bits of `high`.
"""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.sizes import cdiv

SLAB = 32  # f32 of K that lie together: 128 bytes, a row of a shared tile
ROWS = 64  # rows of a CTA's tile
WARPS = 8  # warps of a CTA

SIGN, EXPONENT, ONE = 0x80000000, 0x7F800000, 0x3F800000
HALF_UNIT, TF32_BITS = 0x1000, 0xFFFFE000  # half a unit in the last place of a tf32, and its bits


def split(x):
    """Split an f32 into (high, low), both f32. Tensor cores ignore the lower 13 bits of each.

    For an infinity or NaN x, `low` is x and `high` is 1 with the sign of x. The three products then
    give the infinity or NaN that the f32 product gives, for every other operand. If rounding would
    make x infinite, `high` is x truncated.
    """
    bits = x.bits(tc.u32)
    rounded = bits + HALF_UNIT & TF32_BITS
    high = tc.select(rounded & EXPONENT == EXPONENT, bits & TF32_BITS, rounded)
    not_finite = bits & EXPONENT == EXPONENT
    high = tc.select(not_finite, bits & SIGN | ONE, high).bits(tc.f32)
    return high, tc.select(not_finite, x, x - high)


def split_all(values, again=None):
    """Split several f32 into (all `high`, all `low`): the bits of `split`, with fewer instructions.

    If an x is infinite or NaN, or would round to infinity, x - high is not finite. The sum of these
    differences is then not finite either, and the warp splits all of them by `split`. Other
    differences are too small to overflow the sum. All lanes of a warp call this. again: function
    that reads the values once more, so that they need no registers until then.
    """
    high = [(x.bits(tc.u32) + HALF_UNIT & TF32_BITS).bits(tc.f32) for x in values]
    low = [x - y for x, y in zip(values, high, strict=True)]
    sums = list(low)
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [x + y for x, y in zip(sums[:half], sums[half:])] + sums[2 * half :]
    if tc.vote("any", sums[0].bits(tc.u32) & EXPONENT == EXPONENT):
        pairs = [split(x) for x in (values if again is None else again())]
        high, low = [part[0] for part in pairs], [part[1] for part in pairs]
    return high, low


@tc.kernel
def split_kernel(
    a: tc.Array, b: tc.Array, a_parts: tc.Array, b_parts: tc.Array, a_k_major: tc.Const, b_k_major: tc.Const
):
    """Split A, [batch x] M x K, and B, [batch x] K x N, into K-major parts for wgmma.

    a_parts is [batch x] M x 2K', b_parts [batch x] N x 2K', where K' is K rounded up to whole
    slabs. A slab is 32 `high` and then their 32 `low`, zeros beyond K. Grid: one CTA for each slab
    of 64 rows of A, then of 64 columns of B.
    """
    tc.launch_bounds(32 * WARPS)
    tc.griddep_wait()
    tc.griddep_launch_dependents()
    tile = tc.shared((ROWS, SLAB + 1), tc.f32)  # an odd stride: rows and columns without conflicts
    slabs = a_parts.shape[-1] // (2 * SLAB)
    a_tiles = tiles(a_parts)
    if tc.blockIdx.x < a_tiles:
        split_tile(a, a_parts, tile, tc.blockIdx.x, slabs, a_k_major)
    else:
        columns = b.T if b.ndim == 2 else transposed(b)
        split_tile(columns, b_parts, tile, tc.blockIdx.x - a_tiles, slabs, b_k_major)


def tiles(parts):
    """Number of CTAs that write `parts`."""
    *batch, rows, depth = parts.shape
    count = (rows + (ROWS - 1)) // ROWS * (depth // (2 * SLAB))
    for matrices in batch:
        count = count * matrices
    return count


def transposed(batch):
    """View a batch with each matrix transposed."""
    matrix, row, col = batch.strides
    matrices, rows, cols = batch.shape
    return batch.with_parts(shape=(matrices, cols, rows), strides=(matrix, col, row), argument=None)


def split_tile(x, parts, tile, index, slabs, k_major: bool):
    """Split one tile of 64 rows and one slab of x, whose rows or columns are contiguous."""
    slab, block = index % slabs, index // slabs
    if x.ndim == 3:
        blocks = (x.shape[1] + (ROWS - 1)) // ROWS
        x, parts, block = x[block // blocks], parts[block // blocks], block % blocks
    rows, K = x.shape
    first, lane, warp = block * ROWS, tc.lane_id(), tc.warp_id()
    values = []
    if k_major:
        for i in tc.static_range(ROWS // WARPS):
            row, k = first + warp * (ROWS // WARPS) + i, slab * SLAB + lane
            values.append(x.at(row, k).load(pred=(row < rows) & (k < K)))
    else:
        for i in tc.static_range(SLAB // WARPS):
            for half in tc.static_range(ROWS // 32):
                row, k = first + half * 32 + lane, slab * SLAB + warp * (SLAB // WARPS) + i
                inside = (row < rows) & (k < K)
                tile[half * 32 + lane, warp * (SLAB // WARPS) + i] = x.at(row, k).load(pred=inside)
        tc.barrier()
        values = [tile[warp * (ROWS // WARPS) + i, lane] for i in range(ROWS // WARPS)]
    for i in tc.static_range(ROWS // WARPS):
        row = first + warp * (ROWS // WARPS) + i
        high, low = split(values[i])
        target = parts.at(row, 2 * SLAB * slab + lane)
        target.store(high, pred=row < rows)
        (target + SLAB).store(low, pred=row < rows)


def depth_of_parts(K: int) -> int:
    """Number of columns of the parts of an operand with this K."""
    return cdiv(K, SLAB) * 2 * SLAB
