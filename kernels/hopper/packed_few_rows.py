"""D = alpha X B + beta C for weights B of 4 or 8 bits and 16-bit X, with wgmma, for sm_90a.

As in ampere/packed_gemm.py, dᵀ = bᵀ xᵀ: weights become 16-bit A operands in registers, and X is the B
operand, here in shared memory.

    the producer     one thread lets TMA fill a stage: 128 elements along K of the words, of X and of
                     the scales
    the consumers    each warpgroup has `blocks` blocks of 64 columns of B. Packed words are A
                     fragments of wgmma, too: a warp has 16 columns of a block. Two consumers take
                     turns at the tensor cores: one multiplies while the other makes fragments and
                     scales its last sums

The tensor cores add the products of 128 elements along K, or of a group if it is smaller. An f32 fma
multiplies that sum by the scale and adds it to the accumulator, from the first one along K to the
last. The parts of split-K are added from part 0 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.ampere.packed_gemm import (
    CHUNK,
    VECTOR_WORDS,
    CtaWork,
    Dequantiser,
    WeightFormat,
    add_parts,
    load_words,
    make_dequantiser,
    work_of_cta,
)
from tensorcore_dsl.kernels.config_fields import check_fields
from tensorcore_dsl.kernels.epilogue_arithmetic import Output
from tensorcore_dsl.kernels.hopper.config import WARPGROUP
from tensorcore_dsl.kernels.hopper.pipeline import consumer_state, producer_state

SLAB = 64  # elements of X in a row of 128 bytes
BOX_WORDS = 256  # words of a row of a box, as many as TMA allows
BULK_ALIGN = 128  # bytes
STORE_BARRIER = 1  # named barrier of the consumers
ORDER_BARRIER = 2  # ORDER_BARRIER + c: it is consumer c's turn at the tensor cores
REGISTERS = (24, 240)  # registers of a thread of the producer, and of each of two consumers
# Most rows * blocks of a consumer. Its sums take half as many registers, and its accumulators, too.
MAX_TOKENS = 128


@dataclass(frozen=True)
class HopperPackedConfig:
    """Tile sizes and pipeline depth of products with packed weights by wgmma.

    Scales are f32 for any number of rows. `gemm` by itself may round weights of many rows to 16 bits.

    Attributes
    ----------
    tokens : int
        Rows of A of a CTA's tile, a multiple of 8.
    consumers : int
        Warpgroups that multiply, 1 or 2.
    blocks : int
        Blocks of 64 columns of B of a consumer, 1 or 2. tokens * blocks is at most 128.
    stages : int
        Stages of shared memory of 128 elements along K, 2 or more.
    split_k : int
        CTAs that share a tile, each with a part of K. A second kernel adds up their partial sums.

    Examples
    --------
    >>> kernels.HopperPackedConfig(tokens=64, consumers=2, blocks=2).columns
    256
    """

    tokens: int = 16
    consumers: int = 2
    blocks: int = 1
    stages: int = 4
    split_k: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.consumers not in (1, 2) or self.blocks not in (1, 2) or self.stages < 2 or self.split_k < 1:
            raise tc.ArgumentError(
                f"consumers and blocks are 1 or 2, stages 2 or more, split_k 1 or more: {self}"
            )
        if self.tokens < 8 or self.tokens % 8 or self.tokens * self.blocks > MAX_TOKENS:
            raise tc.ArgumentError(
                f"tokens is a multiple of 8, and tokens * blocks at most {MAX_TOKENS}: {self}"
            )

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def columns(self) -> int:
        """Columns of D of a CTA's tile."""
        return 64 * self.blocks * self.consumers


@tc.kernel
def packed_few_rows_gemm(
    x: tc.Array,
    words: tc.Array,
    scales: tc.Array,
    zeros: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    format: tc.Const = WeightFormat(tc.s4),
    config: tc.Const = HopperPackedConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """Operands as for ampere/packed_gemm.py.

    Grid: (tiles of `columns` along N, tiles of `tokens` along M, split_k).
    """
    tc.launch_bounds(config.threads, 1)
    mma = getattr(tc.wgmma, f"m64n{config.tokens}k16")(x.dtype, x.dtype, tc.f32, source="registers")
    work = work_of_cta(x, config)
    stages = make_stages(x, words, scales, zeros, format, config)
    weights = make_dequantiser(mma.a, format, x)
    # Programmatic dependent launch: the set-up may overlap the end of the previous kernel.
    tc.griddep_launch_dependents()
    tc.griddep_wait()

    def producer():
        if tc.threadIdx.x == 0:
            produce(stages, work, format, config)

    def consumers(consumer):
        acc = multiply(stages, mma, consumer, work, weights, config)
        output = Output(c, d[work.part] if config.split_k > 1 else d, alpha, beta, traits)
        store_tile(acc, consumer, output, work, config)

    registers = REGISTERS if config.consumers == 2 else None
    tc.warp_specialize((1, producer), (config.consumers, consumers), registers=registers)


@dataclass
class Stages:
    """Stages in shared memory, their tensor maps, and two mbarriers a stage.

    x: (stages, slabs, tokens, 64), swizzled. words: (stages, boxes, rows of 16 columns, 256).
    scales, zeros: (stages, groups, columns).
    """

    x: Any
    words: Any
    scales: Any
    zeros: Any
    x_map: Any
    words_map: Any
    scales_map: Any
    zeros_map: Any
    full: Any
    empty: Any


def make_stages(x, words, scales, zeros, format: WeightFormat, config: HopperPackedConfig) -> Stages:
    """Allocate the stages and initialise the barriers. Every thread calls it."""
    groups, rows = format.group_rows(1), config.columns // 16
    boxes, slabs = format.chunk_words // BOX_WORDS, CHUNK // SLAB
    group_box = groups, config.columns
    full, empty = tc.mbarriers(config.stages), tc.mbarriers(config.stages)
    stages = Stages(
        tc.shared((config.stages, slabs, config.tokens, SLAB), x.dtype, swizzle=128),
        tc.shared((config.stages, boxes, rows, BOX_WORDS), tc.s32, align=BULK_ALIGN),
        group_tiles(group_box, scales.dtype, config),
        group_tiles(group_box, zeros.dtype, config) if format.has_zeros else None,
        tc.tensor_map(x, (config.tokens, SLAB), swizzle=128),
        tc.tensor_map(words, (rows, BOX_WORDS)),
        tc.tensor_map(scales, group_box),
        tc.tensor_map(zeros, group_box) if format.has_zeros else None,
        full,
        empty,
    )
    if tc.threadIdx.x == 0:
        for stage in tc.static_range(config.stages):
            full[stage].init(1)  # the producer's arrival, with the bytes that it expects
            empty[stage].init(4 * config.consumers)  # every warp reads words and scales
        tc.fence_mbarrier_init()
    tc.barrier()
    return stages


def group_tiles(shape: tuple[int, int], dtype, config: HopperPackedConfig):
    """Tiles of scales or zero points. A bulk copy writes to multiples of 128 bytes."""
    groups, columns = shape
    unit = BULK_ALIGN // dtype.itemsize
    stage = -(-groups * columns // unit) * unit
    return tc.shared((config.stages, *shape), dtype, strides=(stage, columns, 1), align=BULK_ALIGN)


def produce(stages: Stages, work: CtaWork, format: WeightFormat, config: HopperPackedConfig):
    """Load the chunks of K. One thread runs this.

    A new barrier is in phase 0, so a wait for parity 1 returns at once: all stages start out empty.
    """
    boxes, slabs = stages.words.shape[1], stages.x.shape[1]
    bytes_per_stage = boxes * stages.words_map.bytes + slabs * stages.x_map.bytes + stages.scales_map.bytes
    if format.has_zeros:
        bytes_per_stage = bytes_per_stage + stages.zeros_map.bytes
    state = producer_state(config.stages)
    for chunk in tc.range(work.first, work.end):
        stage, phase = state.stage, state.phase
        full = stages.full[stage]
        stages.empty[stage].wait(phase)
        full.arrive_expect_tx(bytes_per_stage)
        for box in tc.static_range(boxes):
            index = work.n0 // 16, chunk * format.chunk_words + box * BOX_WORDS
            tc.tma_load(stages.words[stage, box], stages.words_map, index, full)
        for slab in tc.static_range(slabs):
            tc.tma_load(stages.x[stage, slab], stages.x_map, (work.m0, chunk * CHUNK + slab * SLAB), full)
        index = format.first_group(chunk), work.n0
        tc.tma_load(stages.scales[stage], stages.scales_map, index, full)
        if format.has_zeros:
            tc.tma_load(stages.zeros[stage], stages.zeros_map, index, full)
        state.advance()


def multiply(stages: Stages, mma, consumer, work: CtaWork, weights: Dequantiser, config: HopperPackedConfig):
    """The sums of the consumer's columns over its part of K: a fragment for each block."""
    acc = [mma.d.zeros() for _ in range(config.blocks)]
    state = consumer_state(config.stages)
    if config.consumers == 2 and consumer == 1:
        tc.barrier_arrive(ORDER_BARRIER, 2 * WARPGROUP)  # the first turn is consumer 0's
    for _ in tc.range(work.first, work.end):
        stage = state.stage
        stages.full[stage].wait(state.phase)
        acc = multiply_chunk(acc, stages, mma, consumer, stage, weights, config)
        # wgmma has read X, and every lane the words and the scales.
        tc.syncwarp()
        stages.empty[stage].arrive(pred=tc.lane_id() == 0)
        state.advance()
    if config.consumers == 2 and consumer == 0:
        tc.barrier(ORDER_BARRIER, 2 * WARPGROUP)  # takes the turn that the last consumer left
    return acc


def multiply_chunk(acc, stages: Stages, mma, consumer, stage, weights: Dequantiser, config):
    """acc + the products of a stage."""
    format, warp = weights.format, tc.warp_id() % 4
    depth = min(format.period, SLAB)
    blocks = [consumer * config.blocks + i for i in range(config.blocks)]
    vectors = [vector_pointers(stages.words[stage], 4 * block + warp, format.vectors) for block in blocks]
    words = [load_words(pointers) for pointers in vectors]
    zero_tile = stages.zeros[stage] if format.has_zeros else None
    for g in tc.static_range(CHUNK // format.period):
        parts = range(g * format.period, (g + 1) * format.period, depth)
        fragments = []
        for i, block in enumerate(blocks):
            zeros = weights.zero_points(zero_tile, g, 64 * block + 16 * warp)
            fragments.append(
                [[weights.fragment(words[i], k + j, zeros) for j in range(0, depth, 16)] for k in parts]
            )
        if config.consumers == 2:
            tc.barrier(ORDER_BARRIER + consumer, 2 * WARPGROUP)
        sums = [mma.d.zeros() for _ in blocks]
        tc.wgmma_fence()
        for i in range(config.blocks):
            for k, fragment in zip(parts, fragments[i], strict=True):
                rows = stages.x[stage, k // SLAB, :, k % SLAB : k % SLAB + depth]
                sums[i] = tc.wgmma_async(mma, sums[i], fragment, rows, accumulate=k > parts[0])
            tc.wgmma_commit()
        if config.consumers == 2:
            tc.barrier_arrive(ORDER_BARRIER + 1 - consumer, 2 * WARPGROUP)
        scales = stages.scales[stage, g, :]
        factors = [tc.load_rows(scales, mma.d, origin=64 * block).to(tc.f32) for block in blocks]
        if (g + 1) * format.period == CHUNK:
            # TMA overwrites words and scales through the async proxy when all warps have released the
            # stage: the fence orders this thread's reads before. The products run meanwhile.
            tc.fence_proxy_async()
        for i in range(config.blocks):
            tc.wgmma_wait(config.blocks - 1 - i)
            acc[i] = tc.fma(sums[i], factors[i], acc[i])
    return acc


def vector_pointers(words, row, vectors: int):
    """Where a lane's vectors of 16 columns of a stage are. words: (boxes, rows, words)."""
    per_box = words.shape[2] // VECTOR_WORDS
    return [
        words.at(v // per_box, row, v % per_box * VECTOR_WORDS + tc.lane_id() * 4) for v in range(vectors)
    ]


def store_tile(acc, consumer, output: Output, work: CtaWork, config: HopperPackedConfig):
    """Finish the sums and store them, through shared memory: neighbours of a row of D in one thread."""
    # Rows of 4 numbers more: the lanes of a fragment's store lie in different banks.
    shape, row = (1, config.tokens, config.columns), config.columns + 4
    sums = tc.shared(shape, tc.f32, strides=(config.tokens * row, row, 1))
    for i, fragment in enumerate(acc):
        tc.store_elements(sums[0, ...].T, fragment, origin=(64 * (consumer * config.blocks + i), 0))
    threads = WARPGROUP * config.consumers
    tc.barrier(STORE_BARRIER, threads)  # each thread stores sums of others
    thread = tc.threadIdx.x - WARPGROUP
    add_parts(sums, thread, threads, output, work, config)
