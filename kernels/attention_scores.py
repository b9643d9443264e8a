"""Sequences, masks and online softmax of attention, for both families of kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc


@dataclass(frozen=True)
class AttentionTraits:
    """Traits of an attention problem, as compile-time constants of a kernel.

    Attributes
    ----------
    depth, width : int
        D of q and k, and of v and o: multiples of 8 up to 256.
    left, right : bool
        Whether a bound on that side limits the keys that a query sees.
    softcap : bool
        Whether scores pass through tanh.
    lse : bool
        Whether the logarithm of each row's sum is stored.
    packed : bool
        Whether sequences of different lengths follow each other in batch 0.
    page : int
        Keys of a page of k and v; 0: they have no pages.
    pack : int
        Heads of q whose rows share a tile of 64 rows, 64 // pack queries of each: all that share
        keys, rounded up to a power of two, or 1.
    """

    depth: int
    width: int
    left: bool = False
    right: bool = False
    softcap: bool = False
    lse: bool = False
    packed: bool = False
    page: int = 0
    pack: int = 1

    @property
    def tokens(self) -> int:
        """Queries of one head among 64 rows."""
        return 64 // self.pack


@dataclass
class Sequences:
    """Where the rows of each sequence of a launch lie, and which keys their queries see.

    Attributes
    ----------
    queries, keys : s32
        Rows of each sequence, if the sequences are not packed.
    starts_q, starts_k : Array
        First rows of packed sequences.
    left, right : s32
        Keys that a query sees on either side, see KeyRange.
    """

    traits: Any
    queries: Any
    keys: Any
    starts_q: Any
    starts_k: Any
    left: Any
    right: Any

    def rows_of(self, number):
        """Batch of sequence `number`, the rows of its first query and key, its queries and keys."""
        if not self.traits.packed:
            return number, 0, 0, self.queries, self.keys
        starts_q, starts_k = self.starts_q, self.starts_k
        start, key_start = starts_q[number], starts_k[number]
        return 0, start, key_start, starts_q[number + 1] - start, starts_k[number + 1] - key_start

    def seen(self, queries, keys):
        """The keys that the queries of a sequence of `queries` and `keys` rows see."""
        return KeyRange(self.traits, keys, keys - queries, self.left, self.right)


@dataclass
class KeyRange:
    """The range of keys that the queries of a sequence see.

    keys: of the sequence. ahead: query i is at the place of key i + ahead, which aligns the last
    query with the last key. left, right: keys that a query sees on either side of its own place.
    """

    traits: Any
    keys: Any
    ahead: Any
    left: Any
    right: Any

    def bounds(self, first, rows: int):
        """Compute the first key, and one past the last key, that any of `rows` queries sees.

        The range has at least one key, so that each query tile has a key tile.
        """
        low, high = tc.s32(0), self.keys
        if self.traits.right:
            high = min(high, first + rows + self.ahead + self.right)
        high = max(high, 1)
        if self.traits.left:
            low = max(min(first + self.ahead - self.left, high - 1), 0)
        return low, high

    def needs_mask(self, first, rows: int, key, columns: int):
        """Whether any of `rows` queries does not see all keys of a tile."""
        edge = key + columns > self.keys
        if self.traits.right:
            edge = edge | (key + (columns - 1) > first + self.ahead + self.right)
        if self.traits.left:
            edge = edge | (key < first + (rows - 1) + self.ahead - self.left)
        return edge

    def masked(self, scores, first, key, transposed: bool = False):
        """Set scores to -inf where the query of a row does not see the key of a column.

        Transposed scores have keys as rows.
        """
        last, begin = self.keys - key, first + self.ahead - key

        def mask(score, row, column):
            i, j = (column, row) if transposed else (row, column)
            i = i % self.traits.tokens if self.traits.pack > 1 else i
            visible = j < last
            if self.traits.right:
                visible = visible & (j <= begin + i + self.right)
            if self.traits.left:
                visible = visible & (j >= begin + i - self.left)
            return tc.select(visible, score, -math.inf)

        return scores.map_coordinates(mask)


@dataclass
class Softmax:
    """Online softmax over the tiles of keys of a row.

    scale: of the scores, with a factor log2(e), for exp2; with softcap it scales tanh.
    cap: with softcap, the factor of the scores inside tanh, with a factor 2 log2(e).
    """

    traits: Any
    scale: Any
    cap: Any

    def capped(self, score):
        """tanh of a score: 1 - 2 / (1 + exp(2 x)), more exact than the instruction."""
        if not self.traits.softcap:
            return score
        return 1 - 2 * tc.rcp(1 + tc.exp2(score * self.cap, ftz=True))

    def step(self, scores, best, total):
        """Return P of a key tile, the factor of earlier sums, the new best and total.

        scores: fragments side by side. best: the greatest score of each row.
        total: the sum of each lane's own P. `finish` combines the lanes of a row.
        """
        grown = tc.maximum(best, tc.row_max(scores))
        # A row that has seen no key has a maximum of -inf. Its P is exp2(-inf - 0) = 0.
        anchor = tc.select(grown == -math.inf, 0.0, grown)
        p = [tc.exp2(tc.fma(score, self.scale, anchor * -self.scale), ftz=True) for score in scores]
        # Exactly 1 where the maximum has not grown, which a fused product would not give.
        shrink = tc.exp2((best - anchor) * self.scale, ftz=True)
        added = tc.row_sum(p, across_lanes=False)
        return p, shrink, grown, tc.fma(total, shrink, added)

    def finish(self, best, total):
        """The factor of each row's output, and the logarithm of the sum of its exponentials.

        A row without keys has zeros, and -inf.
        """
        total = tc.row_sum(total)
        # The division that rounds correctly is a function call on the GPU, and a kernel that calls
        # functions waits for each wgmma at once. A reciprocal is not.
        factor = tc.select(best == -math.inf, 0.0, tc.rcp(total))
        return factor, tc.fma(best, self.scale, tc.log2(total)) * math.log(2)


def page_of(table, sequence, key, keys, size: int):
    """The page of a key of a sequence, which has `keys` keys in pages of `size`.

    Pages past the last one have no number in the table. The last page stands in for them, and
    page 0 for those of a sequence without keys.
    """
    page = max(min(key // size, (keys - 1) // size), 0)
    return tc.select(keys > 0, table[sequence, page], 0)
