"""Key tiles of the backward kernel of Hopper attention: the list that CTAs draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_gradients import BlockedSequences, Sequence, divide


@dataclass
class KeyTile:
    """A tile of keys, and the blocks of queries that it visits.

    It visits the heads that share the keys one after the other in a block, and then the next block.
    So all tiles of a head of keys keep step, however many blocks each has: a tile never waits long
    for its turn at the sums of dQ.

    Attributes
    ----------
    number, group : s32
        Number of the tile in its sequence, and its group of heads of q.
    first, end : s32
        The blocks that it visits, from `end` - 1 down to `first`.
    shared_by : s32
        Heads of q in the group.
    active : pred
        Whether any query sees the keys. Else the tile visits one block, whose scores are masked.
    """

    sequence: Sequence
    number: Any
    group: Any
    first: Any
    end: Any
    shared_by: Any
    active: Any

    def key(self):
        """The first key."""
        return self.number * self.sequence.BN

    def after(self, block, head):
        """The visit behind this one; the block is below `first` behind the last."""
        last = head == self.shared_by - 1
        return tc.select(last, block - 1, block), tc.select(last, 0, head + 1)


@dataclass
class KeyTileList:
    """The list of key tiles that CTAs draw from.

    A tile has a group of the heads of q that share its keys: all of them, or a part if splits > 1. Then
    each group has its own sums, which `add_splits` adds up.

    `section` groups advance together, from the first keys to the last ones: a causal mask makes the
    first tiles the longest. The groups of a packed sequence are a section.

    Attributes
    ----------
    heads, groups, shared_by, splits, count : s32
        Heads of q, groups of them, heads of a group, groups that share keys, and number of sequences.
    """

    blocks: BlockedSequences
    heads: Any
    groups: Any
    shared_by: Any
    splits: Any
    section: Any
    count: Any

    @classmethod
    def of(cls, blocks: BlockedSequences, q, k, shared_by, splits, section):
        """The list of a launch; the arguments are those of the kernels."""
        sequences = blocks.sequences
        count = sequences.starts_q.shape[0] - 1 if sequences.traits.packed else q.shape[0]
        return cls(blocks, q.shape[1], k.shape[1] * splits, shared_by, splits, section, count)

    def tiles_of(self, sequence):
        """Number of tiles of all groups of a sequence."""
        return self.blocks.at(sequence).tiles() * self.groups

    def locate(self, ticket, sequence, before):
        """Tile number `ticket` of the list: sequence, group, and number of the tile.

        The sequence is -1 behind the last tile. In packed sequences the search begins at `sequence`,
        with `before` tiles in front of it; both are returned for the next search.
        """
        if self.blocks.sequences.traits.packed:
            while sequence < self.count and ticket >= before + self.tiles_of(sequence):
                before, sequence = before + self.tiles_of(sequence), sequence + 1
            number = divide(ticket - before, self.groups)
            group = ticket - before - number * self.groups
            return tc.select(sequence < self.count, sequence, -1), group, number, sequence, before
        tiles, lines = self.blocks.at(0).tiles(), self.groups * self.count
        part = divide(ticket, tiles * self.section)
        inside = ticket - part * (tiles * self.section)
        # The last section has fewer groups. Behind the last tile, a section has no groups at all.
        wide = max(min(lines - part * self.section, self.section), 1)
        number = divide(inside, wide)
        line = part * self.section + inside - number * wide
        drawn = divide(line, self.groups)
        group = line - drawn * self.groups
        return tc.select(ticket < tiles * lines, drawn, -1), group, number, sequence, before

    def tile_at(self, drawn):
        """The tile that `locate` found: drawn has sequence, group, and number."""
        sequence, number = self.blocks.at(drawn[0]), drawn[2]
        first, end = sequence.visited(number)
        active = first < end
        first = tc.select(active, first, min(first, sequence.blocks() - 1))
        end = tc.select(active, end, first + 1)
        return KeyTile(sequence, number, drawn[1], first, end, self.shared_by, active)

    def head(self, tile: KeyTile, head):
        """The head of q with number `head` in the group of a tile."""
        return tile.group * self.shared_by + head

    def kv_head(self, tile: KeyTile):
        """The head of k and v of a tile."""
        return divide(tile.group, self.splits)
