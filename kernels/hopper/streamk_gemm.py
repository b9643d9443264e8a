"""D = epilogue(alpha A B + beta C) by stream-K, for sm_90a: no SM idles in an incomplete wave.

Data-parallel tiles fill whole waves. The tiles left over, and one wave more, are shared: their
steps of K form one list, and each unit (a CTA, or a cluster) sums an equal, contiguous part of it.
A unit whose part starts inside a tile hands its partial accumulators over through global memory
(the workspace); the unit with the tile's first step adds them in the order of K and runs the
epilogue (the fix-up). The order is fixed, so every run gives the same bits. Method: Osama et al.,
"Stream-K", PPoPP 2023. bf16_gemm.py describes the other parts.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import WARPGROUP, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import (
    consumer_barrier,
    make_epilogue_op,
    make_epilogue_storage,
)
from tensorcore_dsl.kernels.hopper.mainloop import (
    load_k_tiles,
    mma_mainloop,
    mma_stage,
    select_wgmma,
)
from tensorcore_dsl.kernels.hopper.pipeline import make_pipeline
from tensorcore_dsl.kernels.hopper.tile_scheduler import (
    TileScheduler,
    WorkTile,
    covered_shape,
    make_tile_scheduler,
)
from tensorcore_dsl.kernels.hopper.warp_specialization import run_warpgroups


@tc.kernel
def streamk_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha, beta, partials: tc.Array,
    flags: tc.Array, config: tc.Const = HopperConfig(streamk_units=132),
    traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N. Grid: at most one CTA per SM.

    partials: a row of 64 x BN elements for each consumer of the grid. flags: a word for each, 0
    before the launch and after it. Both are the workspace.
    """
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    mma = select_wgmma(a.dtype, b.dtype, config.BN)
    in_fragments = traits.in_fragments(config, a.dtype.itemsize)
    buffers = traits.staging_buffers(config, a.dtype.itemsize)
    storage = make_epilogue_storage(d, config, traits, in_fragments, buffers)
    pipeline = make_pipeline(a, b, config, traits)
    tiles = make_tile_scheduler(covered_shape(d, config), config)
    scheduler = make_scheduler(tiles, pipeline.end_k_tile)
    epilogue_op = make_epilogue_op(c, alpha, beta, traits)
    run_warpgroups(
        pipeline, mma, scheduler, storage, epilogue_op, produce_parts,
        partial(consume_parts, Workspace(partials, flags, config)),
        registers=config.registers_for(traits, a.dtype.itemsize, d.dtype.itemsize),
    )  # fmt: skip


@dataclass
class TilePart(WorkTile):
    """A tile, or a part of one: its k_tiles from first_k_tile on, end_k_tile excluded."""

    index: Any = None
    first_k_tile: Any = None
    end_k_tile: Any = None


@dataclass
class StreamKScheduler:
    """The work of one unit: parts of the shared tiles first, then tiles of its own.

    k_tiles: of one tile. unit, units: number of this unit, and how many there are. shared_tiles:
    how many tiles, from tile 0 on, all units share.
    """

    tiles: TileScheduler
    k_tiles: Any
    unit: Any
    units: Any
    shared_tiles: Any

    def first_step(self, unit):
        """Where a unit's part of the list of shared steps begins; the first units have one more."""
        steps = self.shared_tiles * self.k_tiles
        return unit * (steps // self.units) + min(unit, steps % self.units)

    def part_indices(self):
        return tc.range(self.count())

    def count(self):
        """Parts and tiles of this unit."""
        return self.parts() + (self.tiles.count() - self.shared_tiles) // self.units

    def parts(self):
        """How many shared tiles this unit has a part of."""
        begin, end = self.first_step(self.unit), self.first_step(self.unit + 1)
        tiles = (end + (self.k_tiles - 1)) // self.k_tiles - begin // self.k_tiles
        return tc.select(begin < end, tiles, 0)

    def part_at(self, index):
        """The index-th piece of work; the parts of shared tiles come first."""
        own = index - self.parts()
        tile, first, last = self.shared_tiles + self.unit + own * self.units, 0, self.k_tiles
        if own < 0:
            begin, end = self.first_step(self.unit), self.first_step(self.unit + 1)
            tile = begin // self.k_tiles + index
            first = max(begin - tile * self.k_tiles, 0)
            last = min(end - tile * self.k_tiles, self.k_tiles)
        at = self.tiles.tile_at(tile)
        return TilePart(
            at.m, at.n, at.batch_a, at.batch_b, at.batch_d,
            index=tile, first_k_tile=first, end_k_tile=last,
        )


def make_scheduler(tiles, k_tiles):
    """The scheduler of this CTA's unit.

    Units are numbered backwards: a unit waits for units with higher numbers, whose CTAs have lower
    indices. CTAs start in the order of their index (CUDA does not promise it, the hardware does
    it), so even where not all are resident at once, nobody waits for a CTA that starts later. A
    unit's parts of shared tiles come first, and it waits for nobody before it has handed its own
    partials over: there is no circle of waiting units.
    """
    units = tc.gridDim.x // tiles.config.cluster_size
    unit = units - 1 - tc.blockIdx.x // tiles.config.cluster_size
    remainder = tiles.count() % units
    shared_tiles = tc.select(remainder > 0, min(remainder + units, tiles.count()), 0)
    return StreamKScheduler(tiles, k_tiles, unit, units, shared_tiles)


def produce_parts(pipeline, scheduler):
    """Load what this unit multiplies. One thread runs this."""
    tc.griddep_wait()
    stage, phase = tc.u32(0), tc.u32(1)
    for index in scheduler.part_indices():
        part = scheduler.part_at(index)
        steps = replace(pipeline, first_k_tile=part.first_k_tile, end_k_tile=part.end_k_tile)
        stage, phase = load_k_tiles(steps, part, stage, phase)


def consume_parts(workspace, pipeline, mma, consumer, scheduler, store_tile):
    """Multiply this warpgroup's rows of each part; hand them over, or fix up and store the tile."""
    acc = [mma.d.zeros()]
    stage, phase = tc.u32(0), tc.u32(0)
    for index in scheduler.part_indices():
        part = scheduler.part_at(index)
        steps = replace(pipeline, first_k_tile=part.first_k_tile, end_k_tile=part.end_k_tile)
        stage, phase, last = mma_mainloop(steps, mma, acc, consumer, stage, phase, mma_stage)
        tc.wgmma_wait(0)
        if pipeline.mma_in_flight > 0:
            pipeline.consumer_release(last)
        if part.first_k_tile > 0:
            workspace.publish_partials(acc[0], scheduler.unit, consumer)
        else:
            summed, peer = part.end_k_tile, scheduler.unit
            while summed < scheduler.k_tiles:
                peer += 1
                acc[0] = workspace.add_partials(mma.d, acc[0], peer, consumer)
                summed = scheduler.first_step(peer + 1) - part.index * scheduler.k_tiles
            store_tile(acc[0], part, 64 * consumer)


@dataclass
class Workspace:
    """Partial accumulators that units hand over, and the flags that announce them.

    A consumer publishes at most one row in a launch, since only a unit's first part can start
    inside a tile. A row of `partials` holds four elements of each thread of a warpgroup, then the
    next four. The reader resets the flag; the next launch of the stream sees it as 0, because
    griddep_wait waits for the whole grid and its memory operations.
    """

    partials: Any
    flags: Any
    config: HopperConfig

    def row(self, unit, consumer):
        cta = unit * self.config.cluster_size + tc.cluster_rank()
        return cta * self.config.consumers + consumer

    def publish_partials(self, acc, unit, consumer):
        """Write the accumulators, then set the flag.

        The barrier orders the stores of all 128 threads before thread 0's release; the release
        makes them visible to who acquires the flag.
        """
        elements = acc.elements()
        row, thread = self.row(unit, consumer), tc.threadIdx.x % WARPGROUP
        target = self.partials.at(row, 4 * thread)
        for i in tc.static_range(0, len(elements), 4):
            (target + WARPGROUP * i).store(elements[i : i + 4])
        consumer_barrier(consumer)
        if thread == 0:
            tc.emit("st.release.gpu.global.b32", self.flags.at(row).address, tc.u32(1))

    def add_partials(self, operand, acc, unit, consumer):
        """acc plus the partials of another unit, once its flag is set; resets the flag.

        Thread 0 acquires the flag; the barrier orders that before the loads of all threads.
        """
        elements = acc.elements()
        row, thread = self.row(unit, consumer), tc.threadIdx.x % WARPGROUP
        if thread == 0:
            while load_acquire(self.flags.at(row)) == 0:
                pass
            self.flags[row] = 0
        consumer_barrier(consumer)
        source, summed = self.partials.at(row, 4 * thread), []
        for i in tc.static_range(0, len(elements), 4):
            addends = (source + WARPGROUP * i).load(4).elements()
            summed += [x + y for x, y in zip(elements[i : i + 4], addends, strict=True)]
        return tc.fragment(operand, summed)


def load_acquire(flag):
    """Load a flag; what was stored before its release is visible if it is 1."""
    return tc.emit("ld.acquire.gpu.global.b32", flag.address).bits(tc.u32)
