"""D = finish(alpha A B + beta C) by stream-K, for sm_90a: no SM idles where tiles fill no wave.

The tiles that whole waves would leave over, and one wave more, are shared: their steps of K form
one list, of which each worker (a block, or a cluster) sums an equal part. Then every worker has as
many tiles of its own. A worker that begins within a tile hands its sums over through global
memory; who has the tile's first step adds them to its own, in the order of K, and finishes it: the
same bits in every run. kernels/roles.py has the parts.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import finisher, open_way_out
from tensorcore_dsl.kernels.hopper.pipeline import open_ring, release
from tensorcore_dsl.kernels.hopper.tile_scheduler import Place, Tiles
from tensorcore_dsl.kernels.hopper.warp_specialization import (
    bring_steps,
    multiply_slot,
    share_work,
    sum_slots,
)


@tc.kernel
def stream_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha, beta, sums: tc.Array,
    flags: tc.Array, config: tc.Const = HopperConfig(streamk_units=132), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N; the grid is a block an SM.

    sums: a row of 64 x BN for each consumer of the grid; flags: a word for each, 0 before and
    after. kernels/exchange.py makes them.
    """
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    mma = instruction(a.dtype, b.dtype, config.BN)
    way_out = open_way_out(d, mma.d.dtype, config, traits.store_by_threads, traits.row_reductions)
    ring = open_ring(a, b, config, traits)
    work = open_work(Tiles(d.shape, config), ring.last)
    finish = finisher(c, alpha, beta, traits)
    consume_parts = partial(consume, Exchange(sums, flags, config))
    registers = config.registers_for(traits)
    share_work(
        ring, mma, work, way_out, finish, produce, consume_parts, registers=registers
    )  # fmt: skip


def instruction(a, b, columns: int):
    """The one that multiplies 64 rows by so many columns, 32 bytes of K deep."""
    form = getattr(tc.wgmma, f"m64n{columns}k{32 // a.itemsize}")
    if a == tc.f32:
        return form(tc.tf32, tc.tf32, tc.f32)
    return form(a, b, tc.f32 if a.is_float else tc.s32)


@dataclass
class Part(Place):
    """A tile, or the steps of it that a worker sums: from `first` to before `last`."""

    number: Any = None
    first: Any = None
    last: Any = None


@dataclass
class Work:
    """What this worker does: parts of the first tiles, which all share, then tiles of its own.

    steps: of K, of a tile.
    """

    tiles: Tiles
    steps: Any
    worker: Any
    workers: Any
    shared: Any

    def first_step(self, worker):
        """Of the shared tiles' steps, where a worker's begin; the first workers have one more."""
        steps = self.shared * self.steps
        return worker * (steps // self.workers) + min(worker, steps % self.workers)

    def numbers(self):
        own = (self.tiles.count() - self.shared) // self.workers
        return tc.range(self.parts() + own)

    def parts(self):
        """How many parts of shared tiles."""
        begin, end = self.first_step(self.worker), self.first_step(self.worker + 1)
        tiles = (end + (self.steps - 1)) // self.steps - begin // self.steps
        return tc.select(begin < end, tiles, 0)

    def part(self, number):
        """The shared parts come first."""
        turn = number - self.parts()
        tile, first, last = self.shared + self.worker + turn * self.workers, 0, self.steps
        if turn < 0:
            begin, end = self.first_step(self.worker), self.first_step(self.worker + 1)
            tile = begin // self.steps + number
            first = max(begin - tile * self.steps, 0)
            last = min(end - tile * self.steps, self.steps)
        place = self.tiles.place(tile)
        return Part(place.m, place.n, place.of_a, place.of_b, place.of_d, None, tile, first, last)


def open_work(tiles, steps):
    """Workers are numbered backwards: they wait for later ones, whose blocks started before."""
    workers = tc.gridDim.x // tiles.config.cluster_size
    worker = workers - 1 - tc.blockIdx.x // tiles.config.cluster_size
    over = tiles.count() % workers
    shared = tc.select(over > 0, min(over + workers, tiles.count()), 0)
    return Work(tiles, steps, worker, workers, shared)


def produce(ring, work):
    """Bring what this worker multiplies; one thread."""
    slot, phase = tc.u32(0), tc.u32(1)
    for number in work.numbers():
        part = work.part(number)
        steps = replace(ring, first=part.first, last=part.last)
        slot, phase = bring_steps(steps, part, slot, phase)


def consume(exchange, ring, mma, consumer, work, finish_tile):
    """Multiply this warpgroup's rows of its parts of tiles, and finish those that are its own."""
    sums = [mma.d.zeros()]
    slot, phase = tc.u32(0), tc.u32(0)
    for number in work.numbers():
        part = work.part(number)
        steps = replace(ring, first=part.first, last=part.last)
        slot, phase, last = sum_slots(steps, mma, sums, consumer, slot, phase, multiply_slot)
        tc.wgmma_wait(0)
        if ring.config.mma_in_flight > 0:
            release(ring.empty[last], ring.config)
        if part.first > 0:
            exchange.give(sums[0], work.worker, consumer)
        else:
            summed, other = part.last, work.worker
            while summed < work.steps:
                other += 1
                sums[0] = exchange.add(mma.d, sums[0], other, consumer)
                summed = work.first_step(other + 1) - part.number * work.steps
            finish_tile(sums[0], part, 64 * consumer)


@dataclass
class Exchange:
    """Sums that workers hand over, once in a launch at most, and flags that tell they are there.

    A row of `sums` has four elements of each thread of a warpgroup, then their next four.
    """

    sums: Any
    flags: Any
    config: HopperConfig

    def row(self, worker, consumer):
        block = worker * self.config.cluster_size + tc.cluster_rank()
        return block * self.config.consumers + consumer

    def give(self, acc, worker, consumer):
        elements = acc.elements()
        row, thread = self.row(worker, consumer), tc.threadIdx.x % 128
        place = self.sums.at(row, 4 * thread)
        for i in tc.static_range(0, len(elements), 4):
            (place + 128 * i).store(elements[i : i + 4])
        tc.barrier(consumer + 1, 128)
        if thread == 0:
            tc.emit("st.release.gpu.global.b32", self.flags.at(row).address, tc.u32(1))

    def add(self, operand, acc, worker, consumer):
        """acc and what another worker gives, once that is there; the flag is 0 again."""
        elements = acc.elements()
        row, thread = self.row(worker, consumer), tc.threadIdx.x % 128
        if thread == 0:
            while raised(self.flags.at(row)) == 0:
                pass
            self.flags[row] = 0
        tc.barrier(consumer + 1, 128)
        place, found = self.sums.at(row, 4 * thread), []
        for i in tc.static_range(0, len(elements), 4):
            more = (place + 128 * i).load(4).elements()
            found += [x + y for x, y in zip(elements[i : i + 4], more, strict=True)]
        return tc.fragment(operand, found)


def raised(flag):
    """1 once another worker has raised it: what that worker stored before is there then."""
    return tc.emit("ld.acquire.gpu.global.b32", flag.address).bits(tc.u32)
