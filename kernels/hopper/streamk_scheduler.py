"""Stream-K scheduler: CTAs share the tiles of an incomplete wave along K.

Data-parallel tiles fill whole waves. The tiles left over, and one wave more, are shared: their
steps of K form one list, and each unit (a CTA) sums an equal, contiguous part of it. A unit whose
part starts inside a tile hands its partial accumulators over through global memory (the workspace).
The unit with the tile's first step adds them in the order of K and runs the epilogue (the fix-up).
The order is fixed, so every run gives the same bits. Method: Osama et al., "Stream-K", PPoPP 2023.
"""

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.tile_scheduler import TileScheduler, WorkTile


@dataclass
class TilePart(WorkTile):
    """A tile, or a part of one: its k_tiles from first_k_tile on, end_k_tile excluded."""

    index: Any = None
    first_k_tile: Any = None
    end_k_tile: Any = None


@dataclass
class StreamKScheduler:
    """The work of one unit: first its parts of the shared tiles, then whole tiles.

    Attributes
    ----------
    tiles : TileScheduler
        All tiles of D.
    k_tiles : s32
        Steps of K of a tile.
    unit, units : s32
        Number of this unit, and number of units.
    shared_tiles : s32
        Number of tiles, from tile 0 on, that all units share.
    """

    tiles: TileScheduler
    k_tiles: Any
    unit: Any
    units: Any
    shared_tiles: Any

    def first_step(self, unit):
        """First shared step of a unit; the first units have one step more than the last ones."""
        steps = self.shared_tiles * self.k_tiles
        return unit * (steps // self.units) + min(unit, steps % self.units)

    def count(self):
        """Number of parts and tiles of this unit."""
        return self.parts() + (self.tiles.count() - self.shared_tiles) // self.units

    def parts(self):
        """Number of shared tiles that this unit has a part of."""
        begin, end = self.first_step(self.unit), self.first_step(self.unit + 1)
        tiles = (end + (self.k_tiles - 1)) // self.k_tiles - begin // self.k_tiles
        return tc.select(begin < end, tiles, 0)

    def part_at(self, index):
        """The index-th piece of work; the parts of shared tiles come first."""
        whole_tile = index - self.parts()
        tile, first, last = self.shared_tiles + self.unit + whole_tile * self.units, 0, self.k_tiles
        if whole_tile < 0:
            begin, end = self.first_step(self.unit), self.first_step(self.unit + 1)
            tile = begin // self.k_tiles + index
            first = max(begin - tile * self.k_tiles, 0)
            last = min(end - tile * self.k_tiles, self.k_tiles)
        at = self.tiles.tile_at(tile)
        return TilePart(
            at.m, at.n, at.batch_a, at.batch_b, at.batch_d, index=tile, first_k_tile=first, end_k_tile=last
        )


def make_scheduler(tiles, k_tiles):
    """The scheduler of this CTA's unit.

    Units are numbered backwards: a unit waits for units with higher numbers, whose CTAs have lower
    indices. CTAs start in the order of their index (the hardware does it, CUDA does not promise
    it). So a unit never waits for a CTA that starts later, even if not all CTAs are resident. A
    unit's parts of shared tiles come first, and it publishes its own partials before it waits. So
    no circle of units waits.
    """
    units = tc.gridDim.x // tiles.config.cluster_size
    unit = units - 1 - tc.blockIdx.x // tiles.config.cluster_size
    remainder = tiles.count() % units
    shared_tiles = tc.select(remainder > 0, min(remainder + units, tiles.count()), 0)
    return StreamKScheduler(tiles, k_tiles, unit, units, shared_tiles)


def load_acquire(flag):
    """Load a flag. If it is 1, the stores before its release are visible."""
    return tc.emit("ld.acquire.gpu.global.b32", flag.address).bits(tc.u32)
