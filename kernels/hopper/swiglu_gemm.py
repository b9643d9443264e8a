"""silu(X G) * (X U) in bf16 or f16 with `wgmma`, for sm_90a: both products in one tile.

A slot of the ring holds columns of G, then as many of U, and one `wgmma` multiplies both: each
thread sums the gate beside what it gates. Nothing but the result is written. kernels/roles.py has
the parts.
"""

from dataclasses import dataclass, replace
from functools import partial

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import LINE, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import finisher, open_way_out, send
from tensorcore_dsl.kernels.hopper.pipeline import (
    Ring,
    Side,
    fill,
    open_barriers,
    open_side,
    steps_of_block,
)
from tensorcore_dsl.kernels.hopper.tile_scheduler import Tiles
from tensorcore_dsl.kernels.hopper.warp_specialization import produce, share_work


@tc.kernel
def swiglu_kernel(
    x: tc.Array, gate: tc.Array, up: tc.Array, d: tc.Array,
    config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """X is M x K, G and U K x N, all with K contiguous; a tile of D is BM x BN / 2."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    mma = getattr(tc.wgmma, f"m64n{config.BN}k16")(x.dtype, gate.dtype, tc.f32)
    halved = replace(config, BN=config.BN // 2)
    way_out = open_way_out(d, mma.d.dtype, halved)
    ring = open_gated_ring(x, gate, up, config)
    share_work(
        ring, mma, Tiles(d.shape, halved), way_out, finisher(None, 1, 0, traits),
        partial(produce, bring=bring), store=store_gated,
    )  # fmt: skip


@dataclass
class GatedRing(Ring):
    """gate, up: the halves of b's slots, and where they come from."""

    gate: Side
    up: Side


def open_gated_ring(x, gate, up, config: HopperConfig):
    """Tiles, maps and barriers; every thread of the cluster calls it."""
    depth, half = LINE // x.dtype.itemsize, config.BN // 2
    side_x = open_side(x, 0, config.BM, depth, True, config)
    both = tc.shared((config.stages, config.BN, depth), gate.dtype, swizzle=LINE)
    left = open_side(gate, 1, half, depth, True, config, tile=both[:, :half])
    right = open_side(up, 1, half, depth, True, config, tile=both[:, half:])
    barriers = open_barriers((side_x.map, left.map, right.map), config)
    first, last = steps_of_block(x.shape[1], depth, config)
    whole = Side(left.map, both, True, left.boxes, left.sharers)
    return GatedRing(side_x, whole, *barriers, depth, first, last, config, left, right)


def bring(ring, place, slot, k, full):
    """Order a slot's parts of X, G and U, from depth k on."""
    full.arrive_expect_tx((ring.config.BM + ring.config.BN) * LINE)
    fill(ring.a, 0, slot, (), place.m, k, full)
    fill(ring.gate, 1, slot, (), place.n, k, full)
    fill(ring.up, 1, slot, (), place.n, k, full)


def store_gated(acc, consumer, way_out, place, row, finish, config):
    """Send 64 rows of a tile: the left half of the sums gates the right one, eight at a time."""
    sums = acc.elements()
    half = len(sums) // 2
    pairs = [(sums[i], sums[half + i]) for i in range(half)]

    def finish_gated(pairs, places):
        return finish([silu(x) * y for x, y in pairs], places)

    send(acc, pairs, consumer, way_out, (), place.m + row, place.n, finish_gated)


def silu(x):
    """x / (1 + exp(-x)), by the hardware's approximations."""
    return x * tc.rcp(tc.exp(-x) + 1)
