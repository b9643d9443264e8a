"""D = alpha A B + beta C in f64 on Hopper: TMA or `cp.async`, a ring of stages, `mma.sync`.

wgmma has no f64. Every warp multiplies; the first thread of the CTA also starts the TMA loads, and
operands that TMA cannot read are copied by all threads. Two mbarriers guard a stage, as in
pipeline.py:

    full[stage]   one arrival of the thread that starts TMA, with the bytes of the tiles, and, where
                  threads copy, one of each warp, after its copies have arrived
    empty[stage]  one arrival of each warp, when it has loaded its last fragments of the stage

Fragments are read through the generic proxy, and TMA writes the stage again through the async
proxy. An arrival alone does not order the two: loads that are still on their way when the arrival
is performed may read what TMA brings next. Each lane therefore fences its loads before the warp
arrives.

With split-K, a CTA stores the sum of its part of K, and another kernel adds up the parts
(ampere/split_k.py). An element is a chain of fused multiply-adds in the order of k for each part,
whatever the tile is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig, AmpereTraits
from tensorcore_dsl.kernels.ampere.epilogue import store_pair
from tensorcore_dsl.kernels.ampere.mainloop import cta_tile
from tensorcore_dsl.kernels.epilogue_arithmetic import finished
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, SMEM_RESERVED
from tensorcore_dsl.kernels.hopper.f64_operands import (
    WIDTH,
    fragments_of_a,
    fragments_of_b,
    line_of,
    load_by_threads,
    load_by_tma,
    make_operand,
)


@tc.kernel
def f64_gemm(
    a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha: tc.f64, beta: tc.f64,
    config: tc.Const = AmpereConfig(BK=16, WN=32), traits: tc.Const = AmpereTraits(),
):  # fmt: skip
    """A is M x K, B is K x N. Grid: one CTA for each tile and part of K.

    With split-K, d has the sums of the parts, split_k x M x N. Instructions of more than 4 of K
    give the same bits, and take registers that the fragments of the next step need.
    """
    tc.launch_bounds(config.threads, resident_ctas(config))
    part = tc.blockIdx.x % config.split_k
    if config.split_k > 1:
        d = d[part]
    mma = tc.mma.m16n8k4(tc.f64, tc.f64, tc.f64)
    ring = make_ring(a, b, part, config, traits)
    m0, n0 = cta_tile(a.shape[0], b.shape[1], config)
    # Programmatic dependent launch: all set-up above may overlap the end of the previous kernel of
    # the stream; what it wrote may be read only from here on.
    tc.griddep_wait()
    tc.griddep_launch_dependents()
    warps_m = config.BM // config.WM
    warp_m, warp_n = tc.warp_id() % warps_m * config.WM, tc.warp_id() // warps_m * config.WN
    acc = multiply(ring, mma, m0, n0, warp_m, warp_n)
    store = Store(m0 + warp_m, n0 + warp_n, c, d, alpha, beta, traits)
    for pair in tc.static_range(config.WM * config.WN // 64):
        store.pair(pair, accumulated(acc, pair), config)


def resident_ctas(config: AmpereConfig) -> int:
    """CTAs of an SM at a time, by registers and shared memory.

    A thread has two registers for each of its accumulators, and others for fragments: large tiles
    take all that 8 warps of an SM leave to each.
    """
    accumulators = config.WM * config.WN // 16
    warps = 8 if accumulators > 64 else 16 if accumulators > 32 else 20
    stages = config.stages * (config.BM + config.BN) * config.BK * 8
    return max(1, min(warps * 32 // config.threads, SMEM_BYTES // (stages + SMEM_RESERVED)))


# -- the ring of stages ------------------------------------------------------------------------


@dataclass
class Ring:
    """Operands, barriers, and the range of tiles of K that this CTA sums."""

    a: Any
    b: Any
    full: Any
    empty: Any
    first: Any
    count: Any
    config: AmpereConfig

    @property
    def by_tma(self):
        """The operands that TMA loads."""
        return [x for x in (self.a, self.b) if x.map is not None]

    @property
    def by_threads(self):
        """The operands that threads copy."""
        return [x for x in (self.a, self.b) if x.map is None]

    def advance(self, stage, phase):
        """The next stage; the phase flips where the ring closes."""
        last = stage == self.config.stages - 1
        return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)

    def load(self, tile, stage, phase, m0, n0):
        """Start the copies of a tile, if this CTA has it, once all warps have left its stage.

        Copies of threads are one group, also where there are none: the number of groups then tells
        which tile has arrived.
        """
        k0 = (self.first + tile) * self.config.BK
        if len(self.by_tma) > 0:
            self.load_boxes(tile, stage, phase, m0, n0, k0)
        if len(self.by_threads) > 0:
            if tile < self.count:
                self.empty[stage].wait(phase)
                for x in self.by_threads:
                    load_by_threads(x, stage, (m0, n0)[x.axis], k0)
            tc.cp_async_commit()

    def load_boxes(self, tile, stage, phase, m0, n0, k0):
        """The first thread starts the boxes of TMA."""
        if (tc.threadIdx.x == 0) & (tile < self.count):
            self.empty[stage].wait(phase)
            full = self.full[stage]
            full.arrive_expect_tx(sum(x.bytes for x in self.by_tma))
            for x in self.by_tma:
                load_by_tma(x, stage, (m0, n0)[x.axis], k0, full)

    def announce(self, tile, stage):
        """Tell all warps that this warp's copies of a tile have arrived: all but the last groups.

        Its group is the last but stages - 2. Each thread waits for its own copies; syncwarp orders
        those of the warp before the one arrival.
        """
        if len(self.by_threads) > 0:
            tc.cp_async_wait(self.config.stages - 2)
            tc.syncwarp()
            self.full[stage].arrive(pred=(tc.lane_id() == 0) & (tile < self.count))


def make_ring(a, b, part, config: AmpereConfig, traits: AmpereTraits):
    """Shared tiles, tensor maps and barriers."""
    ring_a = make_operand(a, 0, traits.a_k_major, traits.tma_a, traits.vec_a, config)
    ring_b = make_operand(b, 1, traits.b_k_major, traits.tma_b, traits.vec_b, config)
    full, empty = tc.mbarriers(config.stages), tc.mbarriers(config.stages)
    tiles = (a.shape[1] + (config.BK - 1)) // config.BK
    first, end = (i * tiles // config.split_k for i in (part, part + 1))
    ring = Ring(ring_a, ring_b, full, empty, first, end - first, config)
    if tc.threadIdx.x == 0:
        for operand in ring.by_tma:
            operand.map.prefetch()
        warps = config.threads // 32
        arrivals = (1 if len(ring.by_tma) > 0 else 0) + (warps if len(ring.by_threads) > 0 else 0)
        for stage in tc.static_range(config.stages):
            full[stage].init(arrivals)
            empty[stage].init(warps)
        tc.fence_mbarrier_init()  # TMA must see the initialised barriers
    tc.barrier()
    return ring


# -- mainloop ----------------------------------------------------------------------------------


def multiply(ring, mma, m0, n0, warp_m, warp_n):
    """acc[i][j] = the sums of this warp's fragments over the tiles of K of this CTA.

    The fragments of a step are loaded while the step before multiplies, across tiles too.
    """
    config = ring.config
    rows, cols, depth = mma.shape
    acc = [[mma.d.zeros() for _ in range(config.WN // cols)] for _ in range(config.WM // rows)]
    steps = config.BK // depth

    def load_fragments(stage, k):
        return (
            fragments_of_a(ring.a, mma, stage, warp_m, k, config.WM // rows),
            fragments_of_b(ring.b, mma, stage, warp_n, k, config.WN // cols),
        )

    # Fill all stages but one; phase 1: the stages of a new ring are empty.
    for tile in tc.static_range(config.stages - 1):
        ring.load(tile, tc.u32(tile), tc.u32(1), m0, n0)
    ring.announce(0, tc.u32(0))
    write, write_phase = tc.u32(config.stages - 1), tc.u32(1)
    read, read_phase = tc.u32(0), tc.u32(0)
    ring.full[read].wait(read_phase)
    fa, fb = load_fragments(read, 0)
    for tile in tc.range(ring.count):
        following, following_phase = ring.advance(read, read_phase)
        for step in tc.static_range(steps):
            next_a, next_b = fa, fb
            if step < steps - 1:
                next_a, next_b = load_fragments(read, (step + 1) * depth)
            else:
                # This warp's last loads of the tile; TMA overwrites it after all warps' arrivals.
                if len(ring.by_tma) > 0:
                    tc.fence_proxy_async()
                tc.syncwarp()
                ring.empty[read].arrive(pred=tc.lane_id() == 0)
                if tile + 1 < ring.count:
                    ring.full[following].wait(following_phase)
                    next_a, next_b = load_fragments(following, 0)
            acc = tc.tiled_mma(mma, acc, fa, fb)
            fa, fb = next_a, next_b
            if step == 0:
                # Warps released this stage before the last step of the tile before.
                ring.load(tile + (config.stages - 1), write, write_phase, m0, n0)
                ring.announce(tile + 1, following)
                write, write_phase = ring.advance(write, write_phase)
        read, read_phase = following, following_phase
    return acc


# -- epilogue ----------------------------------------------------------------------------------
# A pair is two neighbouring columns of a row of D, which a lane holds in two fragments. Pair
# number ((i J + j) 2 + h) 2 + e, where J blocks of 16 columns are beside each other, is that of
# row 2 F(g) + h of block i and columns 2 F(2 t + e) of block j, and the one right of it.


def accumulated(acc, pair: int):
    """The two sums of a pair."""
    blocks = len(acc[0]) // 2
    block, h, e = pair // 4, pair // 2 % 2, pair % 2
    row = acc[block // blocks]
    return [row[block % blocks * 2 + side][2 * h + e] for side in range(2)]


@dataclass
class Store:
    """Stores pairs of a warp's tile, which begins at row m and column n of D."""

    m: Any
    n: Any
    c: Any
    d: Any
    alpha: Any
    beta: Any
    traits: AmpereTraits

    def pair(self, number, sums, config: AmpereConfig):
        """Store a pair; see above for its number."""
        g, t = tc.lane_id() // 4, tc.lane_id() % 4
        blocks = config.WN // WIDTH
        block, h, e = number // 4, number // 2 % 2, number % 2
        row = self.m + block // blocks * WIDTH + 2 * line_of(g) + h
        col = self.n + block % blocks * WIDTH + 2 * line_of(2 * t + e)
        given = self.c, self.d, self.alpha, self.beta, self.traits
        if self.traits.full or self.traits.epilogue is not None:
            store_pair(sums, row, col, *given)
        else:
            store_inside(sums, row, col, *given)


def store_inside(sums, row, col, c, d, alpha, beta, traits: AmpereTraits):
    """Store the elements (row, col) and (row, col + 1) as far as D has them, without branches."""
    rows, cols = d.shape
    left, right = (row < rows) & (col < cols), (row < rows) & (col + 1 < cols)
    in_pairs = traits.vec_d >= 16
    places = (row, col), (row, col + 1)
    addends = [
        c.at(*at).load(pred=p)
        for at, p in zip(places, (left, right), strict=True) if traits.has_c
    ]
    values = finished(sums, addends, places, alpha, beta, traits)
    if in_pairs:
        d.at(row, col).store(values, pred=right)
        d.at(row, col).store(values[0], pred=left & (col + 1 == cols))
    else:
        d.at(row, col).store(values[0], pred=left)
        d.at(row, col + 1).store(values[1], pred=right)
