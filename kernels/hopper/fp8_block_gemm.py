"""D = finish(A B) in block-scaled e4m3 or e5m2 (D: bf16, f16 or f32) with `wgmma`, for sm_90a.

Every 128 of K of a row of A have one scale, every 128 x 128 block of B as well. The products of
a slot, which is 128 of K deep, are scaled when they are added to the f32 sums; see
kernels/promotion.py. A warp beside the producer brings a slot's scales. kernels/roles.py has the
other parts.
"""

from dataclasses import replace
from functools import partial
from math import gcd

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import LINE, SHARED, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import finisher, open_way_out
from tensorcore_dsl.kernels.hopper.pipeline import following, open_ring
from tensorcore_dsl.kernels.hopper.promotion import consume_promoted, instruction, registers_of
from tensorcore_dsl.kernels.hopper.tile_scheduler import Tiles
from tensorcore_dsl.kernels.hopper.warp_specialization import share_work

BLOCK = 128  # of K, and of columns of B, that share a scale
AHEAD = 4  # slots whose scales are under way


def with_scales(config: HopperConfig) -> HopperConfig:
    """As many slots, or as many as there is room for with their scales."""
    scales = 4 * (config.BM + config.BN // gcd(config.BN, BLOCK))
    room = SHARED - config.epilogue_bytes - 2048
    slots = room // ((config.BM + config.BN) * LINE + scales)
    return replace(config, stages=min(config.stages, slots))


@tc.kernel
def block_fp8_gemm(
    a: tc.Array, b: tc.Array, a_scales: tc.Array, b_scales: tc.Array, d: tc.Array,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A is M x K, B is K x N, both with K contiguous; the grid is a block an SM.

    a_scales is M x K/128, b_scales K/128 x N/128 (rounded up), f32.
    """
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    way_out = open_way_out(d, tc.f32, config, traits.store_by_threads)
    ring = open_ring(a, b, config, traits, helpers=1)
    width = gcd(config.BN, BLOCK)
    rows, parts = config.BM, config.BN // width
    scales = tc.shared((config.stages, rows + parts), tc.f32)

    def load(place, step):
        """A lane's scales: of rows 32 apart, and of one part's columns."""
        lane = tc.lane_id()
        lines = [min(place.m + lane + i, a_scales.shape[0] - 1) for i in range(0, rows, 32)]
        col = min((place.n + width * (lane % parts)) // BLOCK, b_scales.shape[1] - 1)
        return [a_scales[line, step] for line in lines] + [b_scales[step, col]]

    def put(slot, loaded):
        lane = tc.lane_id()
        for i in tc.static_range(rows // 32):
            scales[slot, lane + 32 * i] = loaded[i]
        scales.at(slot, rows + lane % parts).store(loaded[-1], pred=lane < parts)

    def weigh(slot, row):
        left = [scales[slot, row], scales[slot, row + 8]]
        return [[x * scales[slot, rows + i] for x in left] for i in range(parts)]

    share_work(
        ring, instruction(a.dtype, config.BN), Tiles(d.shape, config), way_out,
        finisher(d, 1, 0, traits),
        consume=partial(consume_promoted, width=width, weigh=weigh),
        registers=registers_of(config, width, 1), help=partial(bring_scales, load=load, put=put),
    )  # fmt: skip


def bring_scales(ring, tiles, load, put):
    """Fill the slots' scales: a warp beside the producer, loads for several slots under way."""
    slot, phase = tc.u32(0), tc.u32(1)
    for number in tiles.numbers():
        place = tiles.place(number)
        for first in tc.range(ring.first, ring.last, AHEAD):
            loaded = [load(place, min(first + i, ring.last - 1)) for i in range(AHEAD)]
            for i in tc.static_range(AHEAD):
                if first + i < ring.last:
                    ring.empty[slot].wait(phase)
                    put(slot, loaded[i])
                    tc.syncwarp()
                    ring.full[slot].arrive(pred=tc.lane_id() == 0)
                    slot, phase = following(slot, phase, ring.config.stages)
