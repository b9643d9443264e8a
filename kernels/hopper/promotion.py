"""Sums of fp8 products that leave the tensor cores every 128 of K, for f32 sums in registers.

Hopper's tensor cores keep 13 bits below the leading one of an fp8 sum, so that long sums drift.
Here a slot's products (128 of K) are summed by `wgmma` alone, and added up by ordinary f32
instructions: the accuracy that cuBLAS has without fast accumulation. Helpers in the kernel
language; kernels/roles.py has the other parts.
"""

from __future__ import annotations

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import MANY_REGISTERS, HopperConfig
from tensorcore_dsl.kernels.hopper.pipeline import blocks, following, release


def instruction(dtype, columns: int):
    """wgmma for so many columns."""
    return getattr(tc.wgmma, f"m64n{columns}k32")(dtype, dtype, tc.f32)


WIDEST = 208  # columns whose products and sums fit a consumer's registers together


def part_width(config: HopperConfig) -> int:
    """Columns of a tile's parts: one's products fit the registers beside the sums of all."""
    return config.BN if config.BN <= WIDEST else config.BN // -(-config.BN // 128)


def registers_of(config: HopperConfig, width: int, helpers: int = 0):
    """A thread's of the producer and of a consumer, where a tile needs more than an equal share."""
    sums, products = config.BN // 2, width // 2
    uneven = config.consumers == 2 and sums + products > 148
    return ((56, 224) if helpers else MANY_REGISTERS) if uneven else ()


def consume_promoted(ring, mma, consumer, tiles, finish_tile, width: int, weigh=None):
    """Sum this warpgroup's 64 rows of each tile, `width` columns at a time; `mma` is for all.

    weigh(slot, row) reads factors from the slot: for each part two, for a thread's rows `row` of
    the tile and the one 8 below.
    """
    config = ring.config
    if config.pingpong or config.split_k > 1 or config.k_slabs > 1 or config.streamk_units:
        raise tc.ArgumentError(
            f"promoted sums have no tiles taken in turn, split or divided, nor deep slots: {config}"
        )
    slot, phase = tc.u32(0), tc.u32(0)
    narrow, count = instruction(ring.a.tile.dtype, width), config.BN // width
    products = narrow.d.zeros()
    row = products.coordinates(0)[0] + 64 * consumer
    for number in tiles.numbers():
        place = tiles.place(number)
        sums = [[tc.f32(0)] * len(products) for _ in range(count)]
        for _ in tc.range(ring.first, ring.last):
            ring.full[slot].wait(phase)
            factors = [None] * count if weigh is None else weigh(slot, row)
            for i in tc.static_range(count):
                products = multiply_part(ring, narrow, products, consumer, slot, i)
                if i == count - 1:
                    release(ring.empty[slot], config, by_warps=weigh is not None)
                sums[i] = promoted(sums[i], products, factors[i])
            slot, phase = following(slot, phase, config.stages)
        finish_tile(tc.fragment(mma.d, [s for part in sums for s in part]), place, 64 * consumer)


def multiply_part(ring, mma, products, consumer, slot, part: int):
    """A B of 64 rows and one part's columns of a slot, complete."""
    tc.wgmma_fence()
    products = tc.wgmma_async(
        mma, products, blocks(ring.a.tile, 64)[slot, consumer],
        blocks(ring.b.tile, mma.shape[1])[slot, part], accumulate=False,
    )  # fmt: skip
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    return products


def promoted(sums, products, factors):
    """The sums with a step's products added, each times the factor of its row."""
    terms = products.elements()
    if factors is None:
        return [old + term for old, term in zip(sums, terms, strict=True)]
    weights = [factors[i // 2 % 2] for i in range(len(terms))]
    return [tc.fma(t, w, old) for t, w, old in zip(terms, weights, sums, strict=True)]
