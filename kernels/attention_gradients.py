"""The gradients of attention: which tiles meet, and the sums of rows that the other kernels need.

With P = softmax(scale q kᵀ) and dO the gradient of the output o = P v:

    delta = row sums of dO o, minus the gradient of the logarithms of the sums
    dV = Pᵀ dO,   dP = dO vᵀ,   dS = P (dP - delta),   dQ = scale dS k,   dK = scale dSᵀ q

P comes from the scores again, and from the logarithms of the sums that the forward kernel stores.

Queries are divided into blocks of BM rows. A kernel computes one tile of BN keys after the other. A
tile visits the blocks whose queries see its keys. In one pass on sm_90a, it adds its share of dQ to the
f32 sums of each block, in global memory. Otherwise dQ has a kernel of its own.

If few heads of k and v leave SMs idle, the heads of q that share one are divided into groups. Each group
has sums of dK and dV of its own.

The kernels share these arguments:

    q, grad, dq          (batch, heads, queries, D); grad is dO
    k, v, dk, dv         (batch, key heads, keys, D); of groups, dk and dv are f32, (batch, groups, keys, D)
    lse_log2, delta      (BM times slots,), f32, from sum_rows
    starts_q, starts_k   s32: a packed sequence i has rows starts[i] to starts[i + 1] - 1 of batch 0
    scale, cap           factors of the scores, see Softmax
    softmax_scale        the factor of q kᵀ
    left, right          keys that a query sees on either side, see KeyRange
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_scores import Sequences

THREADS = 256  # threads of a CTA of sum_rows and of add_splits
LANES = 16  # lanes that sum one row of dO o
VECTOR = 4  # elements of dK or dV that a thread adds up
ADDED = THREADS * VECTOR  # elements of dK or dV that a CTA adds up
TICKETS = 2  # counters of tiles that are drawn, of two kernels


@dataclass
class BlockedSequences:
    """Sequences, their queries in blocks of BM rows, and their keys in tiles of BN rows."""

    sequences: Sequences
    BM: int
    BN: int

    def at(self, number):
        """Sequence `number`: of the batch, or of those packed in batch 0."""
        block = number * blocks_of(self.sequences.queries, self.BM)
        batch, start, key_start, queries, keys = self.sequences.rows_of(number)
        if self.sequences.traits.packed:
            # Each sequence begins a block; one block for each sequence is room enough.
            block = start // self.BM + number
        seen = self.sequences.seen(queries, keys)
        return Sequence(seen, number, batch, queries, start, key_start, block, self.BM, self.BN)


@dataclass
class Sequence:
    """A sequence, its blocks of queries and its tiles of keys.

    Attributes
    ----------
    seen : KeyRange
        The keys that a query sees.
    number, batch : s32
        Number of the sequence, and its index in the arrays.
    queries : s32
        Number of queries.
    start, key_start : s32
        Rows of the first query and of the first key.
    block : s32
        Number of blocks of a head of the sequences before.
    """

    seen: Any
    number: Any
    batch: Any
    queries: Any
    start: Any
    key_start: Any
    block: Any
    BM: int
    BN: int

    def query_rows(self, x, head):
        """The rows of the queries of a head of an array."""
        return x[self.batch, head, self.start : self.start + self.queries, :]

    def key_rows(self, x, head):
        """The rows of the keys of a head of an array."""
        return x[self.batch, head, self.key_start : self.key_start + self.seen.keys, :]

    def blocks(self):
        """Number of blocks."""
        return blocks_of(self.queries, self.BM)

    def slot(self, block, head, heads):
        """Place of a block of one of `heads` heads in arrays of all blocks."""
        return self.block * heads + head * self.blocks() + block

    def tiles(self):
        """Number of tiles of keys."""
        return (self.seen.keys + (self.BN - 1)) // self.BN

    def visited(self, tile):
        """The first block whose queries see keys of a tile, and one past the last one."""
        seen, key = self.seen, tile * self.BN
        low, high = tc.s32(0), tc.s32(self.queries)
        if seen.traits.right:
            low = max(key - seen.ahead - seen.right, 0)
        if seen.traits.left:
            high = min(high, max(key + self.BN - seen.ahead + seen.left, 0))
        return low // self.BM, (high + (self.BM - 1)) // self.BM

    def visitors(self, block):
        """The first tile that visits a block, and one past the last one.

        All tiles between them visit the block, too.
        """
        seen, row = self.seen, block * self.BM + self.seen.ahead
        low, high = tc.s32(0), tc.s32(self.tiles())
        if seen.traits.left:
            low = max(row - seen.left, 0) // self.BN
        if seen.traits.right:
            high = min(high, max(row + (self.BM - 1 + self.BN) + seen.right, 0) // self.BN)
        return low, high

    def turn(self, tile, block):
        """Number of tiles that add to the block before this tile: the tiles with lower keys."""
        return tile - self.visitors(block)[0]


def blocks_of(queries, BM: int):
    """Number of blocks of `queries` rows; a sequence without queries has one, too."""
    return max((queries + (BM - 1)) // BM, 1)


def divide(number, by):
    """number // by of integers that are not negative, by the shorter unsigned division."""
    return tc.s32(tc.u32(number) // tc.u32(by))


@tc.kernel(threads=THREADS)
def sum_rows(
    o: tc.Array,
    grad: tc.Array,
    lse: tc.Array,
    starts_q: tc.Array,
    lse_log2: tc.Array,
    delta: tc.Array,
    turns: tc.Array,
    tickets: tc.Array,
    grad_lse: tc.Array | None,
    BM: tc.Const,
    traits: tc.Const,
    shares: tc.Const = 1,
):
    """Compute lse_log2 = lse log2(e) and delta = row sums of dO o - grad_lse, for blocks of BM queries.

    o, grad: (batch, heads, queries, D). lse, grad_lse: (batch, heads, queries). lse_log2, delta: (BM times
    slots,), f32. turns: (slots times shares,), s32, and tickets: become 0. For slots, see
    Sequence.slot.
    Grid: (blocks of the longest sequence, or more; heads; sequences).

    Rows without keys, and rows past the last query, have an lse_log2 of +inf. Then P = exp2(score - inf)
    is 0, and these rows add nothing.
    """
    sequences = Sequences(traits, o.shape[2], 0, starts_q, starts_q, 0, 0)
    sequence = BlockedSequences(sequences, BM, 1).at(tc.s32(tc.blockIdx.z))
    number, head = tc.s32(tc.blockIdx.x), tc.s32(tc.blockIdx.y)
    if number >= sequence.blocks():
        return
    slot = sequence.slot(number, head, o.shape[1])
    if tc.threadIdx.x == 0:
        for share in tc.static_range(shares):
            turns[slot * shares + share] = 0
        if (number == 0) & (head == 0) & (sequence.number == 0):
            for i in tc.static_range(TICKETS):
                tickets[i] = 0
    lane = tc.threadIdx.x % LANES
    for part in tc.static_range(0, BM, THREADS // LANES):
        row = part + tc.threadIdx.x // LANES
        query, total = number * BM + row, tc.f32(0)
        inside = query < sequence.queries
        position = sequence.start + query
        for col in tc.static_range(0, traits.width, 8 * LANES):
            at = col + 8 * lane
            loaded = inside & (at < traits.width)
            left, right = (x.at(sequence.batch, head, position, at).load(8, pred=loaded) for x in (o, grad))
            for x, y in zip(left.elements(), right.elements(), strict=True):
                total = tc.fma(x.to(tc.f32), y.to(tc.f32), total)
        total = tc.select(inside, total, 0.0)
        for step in (8, 4, 2, 1):
            total += tc.shfl_xor(total, step)
        if lane == 0:
            exponent = tc.f32(-math.inf)
            if inside:
                exponent = lse[sequence.batch, head, position]
                if grad_lse is not None:
                    total -= grad_lse[sequence.batch, head, position]
            sees_none = exponent == -math.inf
            lse_log2[slot * BM + row] = tc.select(sees_none, math.inf, exponent * math.log2(math.e))
            # P is 0 here, and 0 times a NaN of grad_lse would be NaN.
            delta[slot * BM + row] = tc.select(sees_none, 0.0, total)


@tc.kernel(threads=THREADS)
def add_splits(
    dk_groups: tc.Array,
    dv_groups: tc.Array,
    dk: tc.Array,
    dv: tc.Array,
    starts_k: tc.Array,
    splits: tc.s32,
    traits: tc.Const,
):
    """dK and dV of each head of k and v: the sums of its `splits` groups, from the first one on.

    dk_groups, dv_groups: (batch, groups, keys, D), f32. dk, dv: (batch, heads, keys, D). starts_k: of
    packed sequences; rows past the last one are left as they are.
    Grid: (ADDED elements of a head, and more; heads; batch).
    """
    head, batch = tc.s32(tc.blockIdx.y), tc.s32(tc.blockIdx.z)
    keys = dk.shape[2]
    if traits.packed:
        keys = starts_k[starts_k.shape[0] - 1]
    first = (tc.s32(tc.blockIdx.x) * THREADS + tc.s32(tc.threadIdx.x)) * VECTOR
    for groups, target, width in ((dk_groups, dk, traits.depth), (dv_groups, dv, traits.width)):
        row, column = divide(first, width), first - divide(first, width) * width
        if row < keys:
            total = groups.at(batch, head * splits, row, column).load(VECTOR).elements()
            for split in tc.range(1, splits):
                words = groups.at(batch, head * splits + split, row, column).load(VECTOR).elements()
                total = [x + y for x, y in zip(total, words, strict=True)]
            target.at(batch, head, row, column).store([x.to(target.dtype) for x in total])
