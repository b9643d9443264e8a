"""D = finish(A B) in block-scaled e4m3 or e5m2 (D: bf16, f16 or f32) with `wgmma`, for sm_90a.

Every 128 of K of a row of A have one scale, every 128 x 128 block of B as well. The products of
a slot, which is 128 of K deep, are scaled when they are added to the f32 sums; see
kernels/promotion.py. kernels/ring.py has the other parts.
"""

from functools import partial
from math import gcd

import tensorcore_dsl as tc
from kernels.promotion import consume_promoted, instruction, registers_of
from kernels.results import finisher, open_way_out
from kernels.ring import Config, Variant, open_ring, share_work
from kernels.tiles import Tiles

BLOCK = 128  # of K, and of columns of B, that share a scale


@tc.kernel
def block_fp8_gemm(
    a: tc.Array, b: tc.Array, a_scales: tc.Array, b_scales: tc.Array, d: tc.Array,
    config: tc.Const = Config(), variant: tc.Const = Variant(),
):  # fmt: skip
    """A is M x K, B is K x N, both with K contiguous; the grid is a block an SM.

    a_scales is M x K/128, b_scales K/128 x N/128 (rounded up), f32.
    """
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.blocks)
    way_out = open_way_out(d, tc.f32, config, variant.d_by_threads)
    ring = open_ring(a, b, config, variant)
    width = gcd(config.BN, BLOCK)

    def load(place, row, step):
        """Scales of the thread's two rows and of each part's columns."""
        rows = [min(place.m + row + 8 * i, a_scales.shape[0] - 1) for i in range(2)]
        left = [a_scales[m, step] for m in rows]
        firsts = [place.n + width * i for i in range(config.BN // width)]
        right = [b_scales[step, min(n // BLOCK, b_scales.shape[1] - 1)] for n in firsts]
        return left + right

    def combine(scales):
        return [[x * y for x in scales[:2]] for y in scales[2:]]

    share_work(
        ring, instruction(a.dtype, config.BN), Tiles(d.shape, config), way_out,
        finisher(d, 1, 0, variant),
        consume=partial(consume_promoted, width=width, weigh=(load, combine)),
        registers=registers_of(config, width),
    )  # fmt: skip
