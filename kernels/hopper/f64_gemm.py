"""D = alpha A B + beta C in f64 on Hopper: TMA or `cp.async`, a pipeline of stages, `mma.sync`.

wgmma has no f64, so every warp multiplies. The warps take turns at starting the TMA loads of a
stage, so that no warp lags behind the others. All threads copy operands that TMA cannot read. Two
mbarriers guard a stage, as in pipeline.py:

    full[stage]   one arrival of the thread that starts TMA, with the bytes of the tiles; if threads
                  copy, also one arrival of each warp, after its copies have arrived
    empty[stage]  one arrival of each warp, when it has its last fragments of the stage

Fragments are read through the generic proxy, and TMA writes the stage again through the async
proxy. An arrival alone does not order the two: a load that is still in flight at the arrival may
read the bytes of the next TMA load. Each lane therefore fences its loads before the warp arrives.
The warp arrives after the instructions that use the loaded fragments.

CTAs are persistent. The pipeline runs on from one tile of D to the next: it loads the first stages of
a tile while the warps still multiply and store the tile before.

With split-K, a CTA stores the sum of its part of K, and another kernel adds up the parts
(ampere/split_k.py). With stream-K, units (CTAs) share the steps of K of the tiles of an incomplete
wave (streamk_scheduler.py). For each part, an element is a chain of fused multiply-adds in the order
of k, for every tile size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig, AmpereTraits
from tensorcore_dsl.kernels.ampere.epilogue import store_pair
from tensorcore_dsl.kernels.epilogue_arithmetic import Output
from tensorcore_dsl.kernels.hopper.config import resident_ctas
from tensorcore_dsl.kernels.hopper.f64_operands import (
    WIDTH,
    fragments_of_a,
    fragments_of_b,
    line_of,
    load_by_threads,
    load_by_tma,
    make_operand,
)
from tensorcore_dsl.kernels.hopper.streamk_scheduler import TilePart, load_acquire, make_scheduler
from tensorcore_dsl.kernels.hopper.tile_scheduler import TileScheduler, make_tile_scheduler


@tc.kernel
def f64_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f64,
    beta: tc.f64,
    config: tc.Const = AmpereConfig(BK=16, WN=32),
    traits: tc.Const = AmpereTraits(),
):
    """A is M x K, B is K x N. Grid: at most one CTA for each tile and part of K.

    With split-K, d has the sums of the parts, split_k x M x N.
    """
    tc.launch_bounds(config.threads, resident_ctas(config))
    work = StridedParts(make_tile_scheduler(d.shape, config), k_tiles_of(a, config))
    pipeline = make_f64_pipeline(a, b, work, config, traits)
    multiply(pipeline, TileOutput(c, d, alpha, beta, traits, config))


@tc.kernel
def f64_streamk_gemm(
    a: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f64,
    beta: tc.f64,
    partials: tc.Array,
    flags: tc.Array,
    config: tc.Const = AmpereConfig(BK=16, WN=32, streamk_units=132),
    traits: tc.Const = AmpereTraits(),
):
    """A is M x K, B is K x N; by stream-K. Grid: the units; each has a step of K or more.

    partials: BM x BN elements for each unit. flags: a word for each unit, 0 before and after the
    launch. Both are the workspace.
    """
    tc.launch_bounds(config.threads, resident_ctas(config))
    work = make_scheduler(make_tile_scheduler(d.shape, config), k_tiles_of(a, config))
    pipeline = make_f64_pipeline(a, b, work, config, traits)
    output = TileOutput(c, d, alpha, beta, traits, config)
    multiply(pipeline, FixUp(output, work, partials, flags))


# -- the tiles and parts of tiles of a CTA --------------------------------------------------


def k_tiles_of(a, config: AmpereConfig):
    """Number of steps of K of a tile."""
    return (a.shape[1] + (config.BK - 1)) // config.BK


@dataclass
class StridedParts:
    """Tiles, or parts of K of tiles, number i, i + n, i + 2 n, ... for CTA i of n.

    Parts of K are the batch axis of `tiles`. StreamKScheduler has the same interface.
    """

    tiles: TileScheduler
    k_tiles: Any

    def count(self):
        """Number of parts of this CTA."""
        return (self.tiles.count() - tc.blockIdx.x + (tc.gridDim.x - 1)) // tc.gridDim.x

    def part_at(self, index):
        """Part number `index` of this CTA."""
        index = tc.blockIdx.x + index * tc.gridDim.x
        at, first, end = self.tiles.tile_at(index), 0, self.k_tiles
        split_k = self.tiles.config.split_k
        if split_k > 1:
            first, end = (i * end // split_k for i in (at.batch_d[0], at.batch_d[0] + 1))
        return TilePart(
            at.m, at.n, at.batch_a, at.batch_b, at.batch_d, index=index, first_k_tile=first, end_k_tile=end
        )


# -- the pipeline ------------------------------------------------------------------------


@dataclass
class F64Pipeline:
    """Operands, barriers, and the next step of K to load.

    Attributes
    ----------
    a, b : Operand
        Tiles of A and B.
    full, empty : mbarriers
        One for each stage.
    work : StridedParts or StreamKScheduler
        The parts that this CTA multiplies, `count` parts.
    index, part, k_tile : u32, TilePart, u32
        Number of the part that is loaded next, the part, and its step of K.
    config : AmpereConfig
        The configuration.
    """

    a: Any
    b: Any
    full: Any
    empty: Any
    work: Any
    count: Any
    index: Any
    part: TilePart
    k_tile: Any
    config: AmpereConfig

    @property
    def prefetched(self) -> int:
        """Number of steps that are loaded ahead of the one that the warps multiply.

        With four stages or more, warps keep two stages: the one that they multiply, and the one before
        for warps that lag behind. So no warp waits for the slowest one.
        """
        return self.config.stages - (2 if self.config.stages > 3 else 1)

    def block_of_loads(self, blocks: int) -> int:
        """Number of the block of a stage (see `multiply`) after which the next loads start.

        The loads wait for the slowest warp. After the middle of a stage, it has left the stage before.
        The warp that starts the loads then lags behind, by 16 boxes for MN-major operands. Two stages
        leave no time for that.
        """
        return min(1 if self.config.stages < 3 else 5 * blocks // 8, blocks - 2)

    @property
    def by_tma(self):
        """Operands that TMA loads."""
        return [x for x in (self.a, self.b) if x.map is not None]

    @property
    def by_threads(self):
        """Operands that threads copy."""
        return [x for x in (self.a, self.b) if x.map is None]

    def advance(self, stage, phase):
        """Advance to the next stage; the phase flips after the last one."""
        last = stage == self.config.stages - 1
        return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)

    def stage_to_load(self, read, phase):
        """Stage that is loaded while `read` is multiplied, and the phase in which it is empty.

        phase: of `read` when it is full. Loads and products go through the stages in one order. So
        threads keep one position only; with stream-K they have no register for a second one.
        """
        stages = self.config.stages
        around = read >= stages - self.prefetched
        stage = read + self.prefetched - tc.select(around, tc.u32(stages), tc.u32(0))
        return stage, tc.select(around, phase, phase ^ 1)

    def load(self, stage, phase):
        """Start the copies of the next step, if any, once all warps have left its stage.

        phase: of the stage when it is empty. Each step closes one group of `cp.async`, also an empty
        one: the number of groups then tells which step has arrived.
        """
        exists = self.index < self.count
        k0, origin = self.k_tile * self.config.BK, (self.part.m, self.part.n)
        if len(self.by_tma) > 0:
            self.load_boxes(stage, phase, origin, k0, exists)
        if len(self.by_threads) > 0:
            if exists:
                self.empty[stage].wait(phase)
                for x in self.by_threads:
                    load_by_threads(x, stage, origin[x.axis], k0)
            tc.cp_async_commit()
        self.k_tile += 1
        if exists & (self.k_tile == self.part.end_k_tile):
            self.index += 1
            if self.index < self.count:
                self.part = self.work.part_at(self.index)
                self.k_tile = self.part.first_k_tile

    def load_boxes(self, stage, phase, origin, k0, exists):
        """Start the boxes of TMA, by the first thread of the warp whose turn it is."""
        warp = self.k_tile % (self.config.threads // 32)
        if (tc.threadIdx.x == 32 * warp) & exists:
            self.empty[stage].wait(phase)
            full = self.full[stage]
            full.arrive_expect_tx(sum(x.bytes for x in self.by_tma))
            for x in self.by_tma:
                load_by_tma(x, stage, origin[x.axis], k0, full)

    def announce(self, stage, exists):
        """Tell all warps that this warp's copies of the step in a stage have arrived.

        The wait leaves the groups of later steps pending. Each thread waits for its own copies;
        syncwarp orders the copies of the warp before the one arrival.
        """
        if len(self.by_threads) > 0:
            tc.cp_async_wait(self.prefetched - 1)
            tc.syncwarp()
            self.full[stage].arrive(pred=(tc.lane_id() == 0) & exists)


def make_f64_pipeline(a, b, work, config: AmpereConfig, traits: AmpereTraits):
    """Make shared tiles, tensor maps and barriers."""
    tiles_a = make_operand(a, 0, traits.a_k_major, traits.tma_a, traits.vec_a, config)
    tiles_b = make_operand(b, 1, traits.b_k_major, traits.tma_b, traits.vec_b, config)
    full, empty = tc.mbarriers(config.stages), tc.mbarriers(config.stages)
    part = work.part_at(0)
    pipeline = F64Pipeline(
        tiles_a, tiles_b, full, empty, work, work.count(), 0, part, part.first_k_tile, config
    )
    if tc.threadIdx.x == 0:
        for operand in pipeline.by_tma:
            operand.map.prefetch()
        warps = config.threads // 32
        arrivals = (1 if len(pipeline.by_tma) > 0 else 0) + (warps if len(pipeline.by_threads) > 0 else 0)
        for stage in tc.static_range(config.stages):
            full[stage].init(arrivals)
            empty[stage].init(warps)
        tc.fence_mbarrier_init()  # TMA must see the initialised barriers
    tc.barrier()
    return pipeline


# -- mainloop ----------------------------------------------------------------------------------


def multiply(pipeline, output):  # noqa: PLR0915
    """Multiply the parts of this CTA; `output` stores each.

    A warp multiplies a stage in blocks: 16 of its rows by all its columns, one instruction deep.
    During a block, the warp loads the rows of the next block. During the last block of a step, it
    loads each column of the next step after the last use of that column. Both run on across stages
    and tiles. The order of a step is serpentine, so that neighbouring instructions share a fragment,
    which takes less power. Barriers and TMA loads of a stage stand between blocks, almost without
    branches, so that the assembler mixes them with the products.
    """
    # Depth 4 would read the accumulators twice as often; with depth 16, fragments fill the registers.
    config, mma = pipeline.config, tc.mma.m16n8k8(tc.f64, tc.f64, tc.f64)
    rows, cols, depth = mma.shape
    steps, high, wide = config.BK // depth, config.WM // rows, config.WN // WIDTH
    blocks = [(step, i) for step in range(steps) for i in range(high)]
    backwards = [n for n, (step, i) in enumerate(blocks) if (i + step * (high - 1)) % 2 == 1]
    warps_m = config.BM // config.WM
    warp_m, warp_n = tc.warp_id() % warps_m * config.WM, tc.warp_id() // warps_m * config.WN

    def load_rows(stage, step, i):
        return fragments_of_a(pipeline.a, mma, stage, warp_m + i * rows, step * depth, 1)[0]

    def load_columns(stage, step, j):
        return fragments_of_b(pipeline.b, mma, stage, warp_n + j * WIDTH, step * depth, 2)

    # Programmatic dependent launch: the set-up above may overlap the end of the previous kernel of
    # the stream. Its results may be read only after this wait.
    tc.griddep_wait()
    tc.griddep_launch_dependents()
    for number in tc.static_range(pipeline.prefetched):
        pipeline.load(tc.u32(number), tc.u32(1))  # phase 1: all stages start out empty
    read, read_phase = tc.u32(0), tc.u32(0)
    pipeline.announce(read, True)
    pipeline.full[read].wait(read_phase)
    fa = load_rows(read, 0, 0)
    fb = [load_columns(read, 0, j) for j in range(wide)]
    for index in tc.range(pipeline.count):
        part = pipeline.work.part_at(index)
        acc = [[mma.d.zeros() for _ in range(config.WN // cols)] for _ in range(high)]
        for k_tile in tc.range(part.first_k_tile, part.end_k_tile):
            # The products with the last fragments of the stage before are issued, so these loads have
            # completed.
            if len(pipeline.by_tma) > 0:
                tc.fence_proxy_async()
            tc.syncwarp()
            previous = tc.select(read == 0, tc.u32(config.stages - 1), read - 1)
            has_previous = (index > 0) | (k_tile > part.first_k_tile)
            pipeline.empty[previous].arrive(pred=(tc.lane_id() == 0) & has_previous)
            # In the last step of all, the last block loads from this stage again, and no one uses it.
            has_next = (k_tile + 1 < part.end_k_tile) | (index + 1 < pipeline.count)
            next_stage, next_phase = pipeline.advance(read, read_phase)
            next_stage = tc.select(has_next, next_stage, read)
            next_phase = tc.select(has_next, next_phase, read_phase)
            for number, (_, i) in enumerate(blocks):
                is_last = number == len(blocks) - 1
                if is_last:
                    pipeline.full[next_stage].wait(next_phase)
                next_step, next_i = blocks[(number + 1) % len(blocks)]
                stage = next_stage if is_last else read
                next_fa = load_rows(stage, next_step, next_i)
                order = [(j, side) for j in range(wide) for side in range(2)]
                if number in backwards:
                    order.reverse()
                for position, (j, side) in enumerate(order):
                    at = 2 * j + side
                    acc[i][at] = mma(fa, fb[j][side], acc[i][at])
                    if i == high - 1 and position % 2 == 1:
                        fb[j] = load_columns(stage, next_step, j)
                fa = next_fa
                if number == pipeline.block_of_loads(len(blocks)):
                    pipeline.load(*pipeline.stage_to_load(read, read_phase))
                    pipeline.announce(next_stage, has_next)
            read, read_phase = next_stage, next_phase
        output.store(mma, acc, part, warp_m, warp_n)


# -- stream-K ----------------------------------------------------------------------------------


@dataclass
class FixUp:
    """Stream-K output of units that share tiles.

    A unit publishes at most one sum in a launch, since only its first part can start inside a
    tile. The unit with the tile's first step adds them in the order of K; it waits for units with
    higher numbers alone (see make_scheduler). The reader resets the flag; the next launch of the
    stream sees it as 0, because griddep_wait waits for the whole grid and its memory operations.
    """

    output: TileOutput
    work: Any
    partials: Any
    flags: Any

    def store(self, mma, acc, part, warp_m, warp_n):
        """Hand over the sum of a part that does not begin its tile, else fix up and store."""
        if part.first_k_tile > 0:
            self.publish(acc)
        else:
            summed, peer = part.end_k_tile, self.work.unit
            while summed < self.work.k_tiles:
                peer += 1
                acc = self.with_partials(mma, acc, peer)
                summed = self.work.first_step(peer + 1) - part.index * self.work.k_tiles
            self.output.store(mma, acc, part, warp_m, warp_n)

    def publish(self, acc):
        """Write the sums, then set the flag.

        The barrier orders the stores of all threads before thread 0's release; the release makes
        them visible to a thread that acquires the flag.
        """
        target, step = self.row(self.work.unit)
        for i, pair in enumerate(neighbours(acc)):
            (target + i * step).store(tc.vector(pair))
        tc.barrier()
        if tc.threadIdx.x == 0:
            flag = self.flags.at(self.work.unit)
            tc.emit("st.release.gpu.global.b32", flag.address, tc.u32(1))

    def with_partials(self, mma, acc, unit):
        """Wait for another unit's flag, add its sums to `acc`, and reset the flag.

        Thread 0 acquires the flag; the barrier orders that before the loads of all threads.
        """
        if tc.threadIdx.x == 0:
            while load_acquire(self.flags.at(unit)) == 0:
                pass
            self.flags[unit] = 0
        tc.barrier()
        source, step = self.row(unit)
        sums = []
        for i, pair in enumerate(neighbours(acc)):
            addends = (source + i * step).load(2).elements()
            sums += [x + y for x, y in zip(pair, addends, strict=True)]
        fragments = [tc.fragment(mma.d, sums[i : i + 4]) for i in range(0, len(sums), 4)]
        cols = len(acc[0])
        return [fragments[i : i + cols] for i in range(0, len(fragments), cols)]

    def row(self, unit):
        """Pointer to this thread's first two elements of a unit, and the distance to the next two."""
        return self.partials.at(unit, 2 * tc.threadIdx.x), 2 * self.output.config.threads


def neighbours(acc):
    """Elements of all fragments in pairs."""
    return [[f[e], f[e + 1]] for row in acc for f in row for e in (0, 2)]


# -- epilogue ----------------------------------------------------------------------------------
# A pair is two neighbouring columns of a row of D, which a lane holds in two fragments. With J blocks
# of 16 columns side by side, pair number ((i J + j) 2 + h) 2 + e lies in row 2 F(g) + h of row block
# i, and in columns 2 F(2 t + e) and 2 F(2 t + e) + 1 of column block j.


def accumulated(acc, pair: int):
    """Accumulators of a pair."""
    blocks = len(acc[0]) // 2
    block, h, e = pair // 4, pair // 2 % 2, pair % 2
    row = acc[block // blocks]
    return [row[block % blocks * 2 + side][2 * h + e] for side in range(2)]


@dataclass
class TileOutput(Output):
    """Output of whole tiles."""

    config: AmpereConfig

    def store(self, mma, acc, part, warp_m, warp_n):
        """Store a warp's tile of D, or its sums of a part of K."""
        output = replace(self, d=self.d[part.batch_d]) if self.config.split_k > 1 else self
        for number in tc.static_range(self.config.WM * self.config.WN // 64):
            pair = accumulated(acc, number)
            output.store_pair(number, pair, part.m + warp_m, part.n + warp_n)

    def store_pair(self, number, sums, m, n):
        """Store a pair of the warp's tile at row m and column n."""
        g, t = tc.lane_id() // 4, tc.lane_id() % 4
        blocks = self.config.WN // WIDTH
        block, h, e = number // 4, number // 2 % 2, number % 2
        row = m + block // blocks * WIDTH + 2 * line_of(g) + h
        col = n + block % blocks * WIDTH + 2 * line_of(2 * t + e)
        if self.traits.full or self.traits.epilogue is not None:
            store_pair(sums, row, col, self)
        else:
            store_inside(sums, row, col, e, self)


def store_inside(sums, row, col, e: int, output: Output):
    """Store the elements (row, col) and (row, col + 1) as far as D has them, without branches.

    e: which of the lane's pairs in these 16 columns they are.
    """
    c, d, traits = output.c, output.d, output.traits
    rows, cols = d.shape
    left, right = (row < rows) & (col < cols), (row < rows) & (col + 1 < cols)
    coords = (row, col), (row, col + 1)
    addends = [c.at(*at).load(pred=p) for at, p in zip(coords, (left, right), strict=True) if traits.has_c]
    values = output.finished(sums, addends, coords)
    if traits.vec_d >= 16:
        d.at(row, col).store(values, pred=right)
        d.at(row, col).store(values[0], pred=left & (col + 1 == cols))
        return
    t = tc.lane_id() % 4
    block = col - 2 * line_of(2 * t + e)
    for lane, value in zip((0, 2), side_by_side(values), strict=True):
        at = block + 2 * line_of(2 * lane + e) + t
        d.at(row, at).store(value, pred=(row < rows) & (at < cols))


def side_by_side(pair):
    """Exchange pairs so that lane t of four holds element t of each of two groups of four columns.

    Before, lanes 0 and 1 hold the pairs of one group, lanes 2 and 3 those of the other. Afterwards
    four lanes store 32 adjacent bytes, also in rows that are not aligned for pairs.
    """
    left, right = pair
    t = tc.lane_id() % 4
    is_odd, is_low = t % 2 == 1, t < 2
    received = tc.shfl_xor(tc.select(is_odd, left, right), 1)
    near, far = tc.select(is_odd, received, left), tc.select(is_odd, right, received)
    received = tc.shfl_xor(tc.select(is_low, far, near), 2)
    return tc.select(is_low, near, received), tc.select(is_low, received, far)
