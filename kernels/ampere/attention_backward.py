"""Gradients of attention by mma.sync, for sm_80 and later, in two kernels without shared sums.

`key_gradients` computes dK and dV of 64 keys, and walks over the queries that see them.
`query_gradients` computes dQ of 64 queries, and walks over the keys that they see. Each result is
summed by one warp in the order of the walk, so its bits are fixed. See attention_gradients for the
formulas; both kernels compute the scores again.

A CTA keeps its own tile of 64 rows in shared memory: k and v, or q and dO. It walks over tiles of
the other side, and cp.async loads the next one ahead. Each warp has 16 of the 64 rows:

    scores, dP    16 x tile: k qᵀ and v dOᵀ, or q kᵀ and dO vᵀ; f32
    P, dS         in the same registers; as 16-bit A operands they need no shared memory
    sums          16 x D: dS q and P dO, or dS k; f32, D / 2 registers of each thread

The two sums of `key_gradients` fit into registers for D up to 128. Above, it has eight warps: two
warps share 16 keys, and each of them has half of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.attention import SLAB
from tensorcore_dsl.kernels.attention_gradients import BlockedSequences, Sequence, divide
from tensorcore_dsl.kernels.attention_scores import Sequences, Softmax

ROWS = 64  # of the tile of a CTA
THREADS = 128  # for each part of the columns
WIDE = 128  # D: above, the columns of dK and dV have two parts
# Greatest D in slabs -> rows of the other side's tiles. Two stages and the own tile then fit into
# 96 KiB of shared memory, which sm_86 and sm_89 have.
SIZES = {1: 64, 2: 32, 3: 16, 4: 16}


def column_parts(traits) -> int:
    """Number of warps that share 16 keys."""
    return 1 if max(traits.depth, traits.width) <= WIDE else 2


@tc.kernel
def key_gradients(  # noqa: PLR0913
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    grad: tc.Array,
    lse_log2: tc.Array,
    delta: tc.Array,
    dk: tc.Array,
    dv: tc.Array,
    starts_q: tc.Array,
    starts_k: tc.Array,
    scale: tc.f32,
    cap: tc.f32,
    softmax_scale: tc.f32,
    left: tc.s32,
    right: tc.s32,
    traits: tc.Const,
):
    """Compute dK and dV. attention_gradients lists the arguments; blocks have ROWS queries.

    Grid: (tiles of ROWS keys of the longest sequence, or more; key heads; sequences).
    """
    parts = column_parts(traits)
    tc.launch_bounds(THREADS * parts, 1)
    sequences = Sequences(traits, q.shape[2], k.shape[2], starts_q, starts_k, left, right)
    sequence = BlockedSequences(sequences, ROWS, ROWS).at(tc.s32(tc.blockIdx.z))
    kv_head, tile, seen = tc.s32(tc.blockIdx.y), tc.s32(tc.blockIdx.x), sequence.seen
    first = tile * ROWS
    if first >= seen.keys:
        return
    cta = make_cta(q.dtype, traits, Softmax(traits, scale, cap), sequence, parts)
    numbers = tc.shared((2, 2, cta.size), tc.f32)  # stage, lse_log2 or delta
    shared_by = q.shape[1] // k.shape[1]
    begin, end = sequence.visited(tile)
    # A walk covers the blocks of each head of q in turn, by tiles of `size` queries.
    steps_per_head = max(end - begin, 0) * (ROWS // cta.size)
    key = first + cta.row

    def locate(step):
        """The head of q of a step, and its first query."""
        head = divide(step, steps_per_head)
        return kv_head * shared_by + head, begin * ROWS + (step - head * steps_per_head) * cta.size

    def load(step, stage):
        head, query = locate(step)
        cta.copy(cta.others, stage, (q, grad), lambda x: sequence.query_rows(x, head), query)
        first_row = sequence.slot(0, head, q.shape[1]) * ROWS + query
        for i, x in enumerate((lse_log2, delta)):
            tc.copy_tile(numbers[stage, i], x, (first_row,))

    def ds_and_p(step, stage, scores, dp):
        """Compute dSᵀ and Pᵀ, whose rows are keys."""
        _, query = locate(step)
        column_values = [
            [tc.load_columns(numbers[stage, i], cta.mma.d, origin=8 * n) for n in range(cta.size // 8)]
            for i in range(2)
        ]
        return cta.ds_and_p(
            scores, dp, column_values[0], column_values[1], query, cta.size, key, 16, transposed=True
        )

    own_rows = lambda x: sequence.key_rows(x, kv_head)
    cta.copy(cta.own, 0, (k, v), own_rows, first)
    sums = cta.walk(steps_per_head * shared_by, load, ds_and_p, 2)
    for i, (x, factor) in enumerate(((dk, softmax_scale), (dv, 1.0))):
        cta.store(i, x, own_rows, sums[i], factor, first)


@tc.kernel(threads=THREADS)
def query_gradients(  # noqa: PLR0913
    q: tc.Array,
    k: tc.Array,
    v: tc.Array,
    grad: tc.Array,
    lse_log2: tc.Array,
    delta: tc.Array,
    dq: tc.Array,
    starts_q: tc.Array,
    starts_k: tc.Array,
    scale: tc.f32,
    cap: tc.f32,
    softmax_scale: tc.f32,
    left: tc.s32,
    right: tc.s32,
    traits: tc.Const,
):
    """Compute dQ. attention_gradients lists the arguments; blocks have ROWS queries.

    Grid: (tiles of ROWS queries of the longest sequence, or more; heads; sequences).
    """
    sequences = Sequences(traits, q.shape[2], k.shape[2], starts_q, starts_k, left, right)
    sequence, head = BlockedSequences(sequences, ROWS, ROWS).at(tc.s32(tc.blockIdx.z)), tc.s32(tc.blockIdx.y)
    queries, seen = sequence.queries, sequence.seen
    # The tiles with the most keys of a causal mask start first.
    first = ((queries + (ROWS - 1)) // ROWS - 1 - tc.s32(tc.blockIdx.x)) * ROWS
    if first < 0:
        return
    cta = make_cta(q.dtype, traits, Softmax(traits, scale, cap), sequence, 1)
    kv_head = head // (q.shape[1] // k.shape[1])
    low, high = seen.bounds(first, ROWS)
    low = low // cta.size * cta.size
    row = first + cta.row
    first_row = sequence.slot(0, head, q.shape[1]) * ROWS + row
    row_lse_log2, row_delta = (tc.load_rows(x, cta.mma.d, origin=first_row) for x in (lse_log2, delta))

    def load(step, stage):
        key = low + step * cta.size
        cta.copy(cta.others, stage, (k, v), lambda x: sequence.key_rows(x, kv_head), key)

    def ds_and_p(step, stage, scores, dp):
        count = len(scores)
        key = low + step * cta.size
        return cta.ds_and_p(scores, dp, [row_lse_log2] * count, [row_delta] * count, row, 16, key, cta.size)

    own_rows = lambda x: sequence.query_rows(x, head)
    cta.copy(cta.own, 0, (q, grad), own_rows, first)
    sums = cta.walk((high - low + (cta.size - 1)) // cta.size, load, ds_and_p, 1)
    cta.store(0, dq, own_rows, sums[0], softmax_scale, first)


@dataclass
class GradientsCta:
    """Shared memory of a CTA, and what its warps compute.

    Attributes
    ----------
    own, others : list of two tiles
        The tile of the CTA and those it walks over: (stages, rows, D of q) and (stages, rows, D of v).
    row, part : s32
        First row of the warp in the own tile, and which part of the columns of the sums it has.
    """

    mma: Any
    traits: Any
    softmax: Softmax
    sequence: Sequence
    own: Any
    others: Any
    row: Any
    part: Any
    parts: int

    @property
    def size(self) -> int:
        """Rows of a tile of the other side."""
        return self.others[0].shape[1]

    def columns(self, number: int) -> int:
        """Columns of a sum that a warp has: of D of q (0) or of v (1)."""
        return -(-(self.traits.depth, self.traits.width)[number] // (16 * self.parts)) * 16

    def copy(self, tiles, stage, arrays, rows_of, first):
        """Start copies of two arrays, from row `first` of the sequence on.

        rows_of(array): the rows of the sequence and of a head.

        Rows behind the sequence become zero: P = 0 times NaN bits of the next sequence would be NaN.
        """
        for tile, x in zip(tiles, arrays, strict=True):
            head_rows = rows_of(x)
            tc.copy_tile(tile[stage, ...], head_rows, (first, 0), bounded=True)

    def walk(self, steps, load, ds_and_p, count: int):
        """Visit tiles of the other side, and return `count` sums: of dS x, and of P y.

        The copies of the own tile are issued, and belong to the group of step 0. load(step, stage):
        issue the copies of a tile. ds_and_p(step, stage, scores, dp): return dS and P.
        """

        def load_group(step, stage):
            """One group of cp.async for each step, empty behind the last one."""
            if step < steps:
                load(step, stage)
            tc.cp_async_commit()

        sums = [[self.mma.d.zeros() for _ in range(self.columns(i) // 8)] for i in range(count)]
        load_group(tc.s32(0), 0)
        for step in range(0, steps):
            stage = step % 2
            # The other stage was read in the last round, and the barrier at its end has passed.
            load_group(step + 1, 1 - stage)
            # Pending is at most the group just issued: this tile is there, after the barrier for all.
            tc.cp_async_wait(1)
            tc.barrier()
            scores, dp = (self.multiply(i, stage) for i in range(2))
            factors = ds_and_p(step, stage, scores, dp)
            sums = [self.add(i, stage, x, factors[i]) for i, x in enumerate(sums)]
            # Write after read: the next round overwrites this stage when all warps have read it.
            tc.barrier()
        # Without steps, copies of the own tile may still be on the way; `store` writes there.
        tc.cp_async_wait(0)
        tc.barrier()
        return sums

    def multiply(self, number: int, stage):
        """The warp's 16 own rows times the rows of a tile: accumulators side by side.

        The transpose of the tile, D x rows, is the B operand. Only 16 of D are in registers at once.
        """
        mma, own = self.mma, self.own[number][0, self.row : self.row + 16, :]
        acc = [mma.d.zeros() for _ in range(self.size // 8)]
        for d in tc.static_range(0, (self.traits.depth, self.traits.width)[number], 16):
            left = tc.ldmatrix(own[:, d : d + 16], mma.a)
            right = tc.ldmatrix(self.others[number][stage, :, d : d + 16].T, mma.b)
            acc = tc.tiled_mma(mma, acc, [left], right)
        return acc

    def ds_and_p(self, scores, dp, lse_log2, delta, query, queries, key, keys, transposed=False):
        """Compute dS and P from the scores and dP of `queries` x `keys`, or of their transpose.

        lse_log2, delta: row or column values for each of the fragments.
        """
        seen, softmax = self.sequence.seen, self.softmax
        scores = [softmax.capped(score) for score in scores]
        exponents = [tc.fma(s, softmax.scale, -x) for s, x in zip(scores, lse_log2, strict=True)]
        if seen.needs_mask(query, queries, key, keys):
            # Fragments side by side go along the queries of transposed scores, else along the keys.
            i, j = (8, 0) if transposed else (0, 8)
            exponents = [
                seen.masked(x, query + i * n, key + j * n, transposed) for n, x in enumerate(exponents)
            ]
        p = [tc.exp2(x, ftz=True) for x in exponents]
        ds = [w * (x - y) for w, x, y in zip(p, dp, delta, strict=True)]
        if self.traits.softcap:  # the derivative of tanh
            ds = [x * (1 - score * score) for x, score in zip(ds, scores, strict=True)]
        return ds, p

    def add(self, number: int, stage, acc, factors):
        """acc + factors times a tile of the other side, in the columns of this warp.

        Two accumulators side by side lie as the A operand does: no exchange between threads.
        """
        mma, tile, columns = self.mma, self.others[number], self.columns(number)
        column = self.part * columns
        for n in tc.static_range(0, self.size, 16):
            left = tc.as_operand(factors[n // 8 : n // 8 + 2], mma.a)
            right = tc.ldmatrix(tile[stage, n : n + 16, column : column + columns], mma.b)
            acc = tc.tiled_mma(mma, acc, [left], right)
        return acc

    def store(self, number: int, target, rows_of, acc, factor, first):
        """Store factor times a sum, through the own tile: no warp reads it any more."""
        tile, column = self.own[number][0], self.part * self.columns(number)
        head_rows = rows_of(target)
        for n, x in enumerate(acc):
            tc.store_elements(tile, x * factor, origin=(self.row, column + 8 * n))
        tc.barrier()
        tc.copy_tile(head_rows, tile, (first, 0), bounded=True)


def make_cta(dtype, traits, softmax: Softmax, sequence: Sequence, parts: int):
    """Shared memory of a CTA of THREADS threads for each part of the columns."""
    slabs = [-(-n // SLAB) for n in (traits.depth, traits.width)]
    size = SIZES[max(slabs)]
    # The swizzle puts the eight rows that one ldmatrix reads into different banks.
    own, others = (
        [tc.shared((stages, rows, n * SLAB), dtype, swizzle=128) for n in slabs]
        for stages, rows in ((1, ROWS), (2, size))
    )
    warp = tc.s32(tc.warp_id())
    row, part = warp % (ROWS // 16) * 16, (warp // (ROWS // 16) if parts > 1 else 0)
    mma = tc.mma.m16n8k16(dtype, dtype, tc.f32)
    return GradientsCta(mma, traits, softmax, sequence, own, others, row, part, parts)
