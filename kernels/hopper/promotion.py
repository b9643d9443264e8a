"""Two-level accumulation of fp8 products ("promotion"): wgmma sums 128 of K, f32 adds the sums.

Hopper's tensor cores keep 13 bits below the leading one of an fp8 sum, so that long sums drift.
Here wgmma sums 128 of K, and f32 additions accumulate these sums, as in DeepGEMM. The accuracy is
that of cuBLAS without fast accumulation. One of two consumers multiplies while the other one adds.
A single consumer overlaps the two itself (`sum_in_turns`).
"""

from __future__ import annotations

from functools import partial
from itertools import product

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import (
    HopperConfig,
    HopperTraits,
    promoted_columns,
    promotion_registers,
)
from tensorcore_dsl.kernels.hopper.pipeline import PipelineState, in_row_blocks
from tensorcore_dsl.kernels.hopper.wgmma_gemm import GemmParts, select_wgmma, warp_specialized_gemm

MAX_IN_TURNS = 144  # columns whose accumulators and two sets of products fit the registers


def promoted_gemm(a, b, c, d, alpha, beta, config: HopperConfig, traits: HopperTraits, **consumer_options):
    """D = epilogue(alpha A B + beta C) with promotion. consumer_options: of `consume_promoted`."""
    width = promoted_columns(config)
    warp_specialized_gemm(
        select_wgmma(a.dtype, b.dtype, config.BN, swap_ab=config.swap_ab),
        a,
        b,
        d,
        config,
        traits,
        GemmParts(
            consume=partial(consume_promoted, width=width, **consumer_options),
            registers=promotion_registers(config, width),
        ),
        c=c,
        alpha=alpha,
        beta=beta,
    )


def mma_part(pipeline, mma, products, consumer, slab, part: int):
    """Issue A B for 64 rows and one part of the columns of a slab."""
    return tc.wgmma_async(
        mma,
        products,
        pipeline.a.row_blocks[slab, consumer],
        in_row_blocks(pipeline.b.smem, mma.shape[1])[slab, part],
        accumulate=False,
    )


def consume_promoted(
    pipeline, mma, consumer, scheduler, store_tile, width: int, scales=None, multiply=mma_part, slabs: int = 1
):
    """Consumer's mainloop with promotion: 64 rows of each tile, `width` columns at a time.

    mma: the instruction of a whole tile, which gives the layout of the accumulators.
    scales(stage, row): two factors for each part of the columns, those of rows `row` and `row` + 8.
    multiply: issues the products of one part of `slabs` slabs of a stage; see mma_part.
    """
    config = pipeline.config
    if config.pingpong or config.k_slabs % slabs:
        raise tc.ArgumentError(
            f"promoted accumulation takes no pingpong, and k_slabs is a multiple of {slabs}: {config}"
        )
    steps = config.k_slabs // slabs  # sums of a stage
    state = pipeline.consumer_state()
    part_mma = select_wgmma(pipeline.a.smem.dtype, pipeline.b.smem.dtype, width)
    row = part_mma.d.zeros().coordinates(0)[0] + 64 * consumer

    def start(products, at, part):
        tc.wgmma_fence()
        products = multiply(pipeline, part_mma, products, consumer, at, part)
        tc.wgmma_commit()
        return products

    def factors(stage):
        return [None] * (config.BN // width) if scales is None else scales(stage, row)

    in_turns = scales is None and takes_turns(config, width, steps)
    for index in scheduler.tile_indices():
        tile = scheduler.tile_at(index)
        if in_turns:
            acc = sum_in_turns(pipeline, state, steps, part_mma, start)
        else:
            acc = sum_parts(pipeline, state, steps, part_mma, start, factors)
        store_tile(tc.fragment(mma.d, acc), tile, 64 * consumer)


def takes_turns(config: HopperConfig, width: int, steps: int) -> bool:
    """Whether a single consumer has the registers for two sets of products."""
    alone = config.consumers == 1 and config.mma_in_flight > 0
    return alone and width == config.BN <= MAX_IN_TURNS and steps <= 2


def sum_in_turns(pipeline, state, steps: int, mma, start):
    """The sums of a tile: tensor cores compute one set of products while the other is added.

    An iteration takes two sums. It leaves set 1 in flight. The next iteration begins with a wait
    for all wgmma: the assembler serialises wgmma that stay in flight for longer. If the number of
    sums is odd, one sum comes first; else set 1 begins with zeros. Set 1 is added after the wait
    for a stage: the assembler would put the additions between the instructions of set 0, and delay
    them.
    """
    sets = [mma.d.zeros(), mma.d.zeros()]
    acc = [tc.f32(0)] * len(sets[0])
    stage, phase, at = state.stage, state.phase, partial(PipelineState, state.stages)
    begin, end, previous = pipeline.first_k_tile, pipeline.end_k_tile, stage

    def following(stage, phase):
        state = at(stage, phase).next()
        return state.stage, state.phase

    if steps == 1 and (end - begin) % 2 == 1:
        pipeline.consumer_wait(at(stage, phase))
        sets[1] = start(sets[1], stage, 0)
        stage, phase = following(stage, phase)
        begin = begin + 1
    for k_tile in tc.range(begin, end, 2 // steps):
        pipeline.consumer_wait(at(stage, phase))
        tc.wgmma_wait(0)
        sets[0] = start(sets[0], stage * steps, 0)
        if k_tile > pipeline.first_k_tile:
            pipeline.consumer_release(previous)
        previous = stage
        if steps == 1:
            stage, phase = following(stage, phase)
            pipeline.consumer_wait(at(stage, phase))
        acc = promote(acc, sets[1], None)
        sets[1] = start(sets[1], stage * steps + steps - 1, 0)
        tc.wgmma_wait(1)
        if steps == 1:
            pipeline.consumer_release(previous)
        acc = promote(acc, sets[0], None)
        previous = stage
        stage, phase = following(stage, phase)
    tc.wgmma_wait(0)
    if pipeline.first_k_tile < end:
        pipeline.consumer_release(previous)
    state.stage, state.phase = stage, phase
    return promote(acc, sets[1], None)


def sum_parts(pipeline, state, steps: int, mma, start, factors):
    """The sums of a tile, some of its columns at a time."""
    products, parts = mma.d.zeros(), pipeline.config.BN // mma.shape[1]
    acc = [[tc.f32(0)] * len(products) for _ in range(parts)]
    for _ in tc.range(pipeline.first_k_tile, pipeline.end_k_tile):
        pipeline.consumer_wait(state)
        weights = factors(state.stage)
        for step, i in product(range(steps), range(parts)):
            products = start(products, state.stage * steps + step, i)
            tc.wgmma_wait(0)
            # The products are complete and in registers, the factors too: the stage is free.
            if (step, i) == (steps - 1, parts - 1):
                pipeline.consumer_release(state.stage)
            acc[i] = promote(acc[i], products, weights[i])
        state.advance()
    return [element for part in acc for element in part]


def promote(acc, products, factors):
    """acc + products. factors: of the rows, by which products are multiplied, or None."""
    terms = products.elements()
    if factors is None:
        return [old + term for old, term in zip(acc, terms, strict=True)]
    weights = [factors[i // 2 % 2] for i in range(len(terms))]
    return [tc.fma(t, w, old) for t, w, old in zip(terms, weights, acc, strict=True)]
