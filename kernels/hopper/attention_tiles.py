"""Query tiles of the Hopper attention kernel: the list that CTAs draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_scores import KeyRange, Sequences


@dataclass
class QueryTile:
    """A tile of queries, and the key tiles that its queries see.

    Attributes
    ----------
    seen : KeyRange
        The keys that a query sees.
    sequence, head, kv_head : s32
        Number of the sequence, of the (first) head of q, and of the head of k and v.
    first : s32
        The first query of the tile.
    origin : tuple
        Batch of q and o, and row of the sequence's first query.
    end : s32
        One past the row of the sequence's last query.
    last : s32
        The first key of the last key tile.
    count : s32
        Number of key tiles, at least 1.
    """

    seen: KeyRange
    sequence: Any
    head: Any
    kv_head: Any
    first: Any
    origin: Any
    end: Any
    last: Any
    count: Any


@dataclass
class TileList:
    """The list of query tiles that CTAs draw from.

    `section` heads advance together, so that their K and V stay in the L2 cache. Within a section,
    tiles go from the last queries to the first. With a causal mask, the longest tiles start first.
    The heads of a packed sequence are a section.

    Attributes
    ----------
    count, section : s32
        Number of sequences; heads that advance together.
    heads : s32
        Heads of q; if rows are packed, heads of k and v.
    group : s32
        Heads of q for each head of k and v.
    """

    sequences: Sequences
    count: Any
    section: Any
    heads: Any
    group: Any
    BM: int
    BN: int

    @property
    def traits(self):
        """Traits of the problem."""
        return self.sequences.traits

    def tiles_of(self, sequence):
        """Number of query tiles of a sequence and a head."""
        if self.traits.packed:
            starts = self.sequences.starts_q
            return (starts[sequence + 1] - starts[sequence] + (self.BM - 1)) // self.BM
        return (self.sequences.queries + (self.BM - 1)) // self.BM

    def locate(self, number, sequence, before):
        """Tile `number` of the list: sequence * heads + head, first query, number of all tiles.

        The first query is -1 behind the last tile. The search in packed sequences begins at
        `sequence`. The sequences before it have `before` tiles for each head. Both are returned
        for the next search.
        """
        heads, count, section = self.heads, self.count, self.section
        if self.traits.packed:
            row, head = number // heads, number % heads
            while sequence < count and row >= before + self.tiles_of(sequence):
                before, sequence = before + self.tiles_of(sequence), sequence + 1
            first, line = tc.s32(-1), sequence * heads + head
            if sequence < count:
                first = (before + self.tiles_of(sequence) - 1 - row) * self.BM
            return line, first, before * heads, sequence, before
        rows, lines = self.tiles_of(0), heads * count
        part = number // (rows * section)
        inside = number - part * (rows * section)
        # The last section has fewer heads. Behind the last tile, a section has no heads at all.
        wide = max(min(lines - part * section, section), 1)
        row = inside // wide
        first = tc.select(number < rows * lines, (rows - 1 - row) * self.BM, -1)
        return part * section + (inside - row * wide), first, rows * lines, sequence, before

    def tile_at(self, line, first):
        """The query tile that `locate` found."""
        sequence = line // self.heads
        batch, start, _, queries, keys = self.sequences.rows_of(sequence)
        seen = self.sequences.seen(queries, keys)
        low, high = seen.bounds(first, self.BM)
        last, head = (high - 1) // self.BN, line - sequence * self.heads
        if self.traits.pack > 1:
            head = head * self.group
        return QueryTile(
            seen,
            sequence,
            head,
            head // self.group,
            first,
            (batch, start),
            start + queries,
            last * self.BN,
            last - low // self.BN + 1,
        )
