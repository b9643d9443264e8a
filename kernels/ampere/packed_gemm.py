"""D = alpha X B + beta C for weights B of 4 or 8 bits and 16-bit X, with mma.sync, for sm_80 and later.

b[k, n] = scales[k // group, n] (q[k, n] - zeros[k // group, n]). `weight_packing.py` defines the order
of q. With few rows of X, such a product takes as long as the weights take to arrive.

    dᵀ = bᵀ xᵀ       weights are the A operand and X is B: 8 rows of X fill an instruction
    weights          cp.async into stages; a lane copies and reads the same 16 bytes, which are whole
                     A fragments, so no other thread waits for them
    X, scales        cp.async into the same stages, for all warps
    warps            `warps_n` of them lie side by side along N; `warps_k` share the K of a stage,
                     one chunk of 128 each

q becomes 16-bit numbers in registers, which is exact, and so are the products. The tensor cores add
those of 128 along K, or of a group if it is smaller. An f32 fma multiplies that sum by the scale and
adds it to the accumulator of the warp. Warp j of a part of K has its chunks j, j + warps_k, ...; the
accumulators are added from warp 0 on, and the parts of split-K from part 0 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.ampere.mainloop import next_stage
from tensorcore_dsl.kernels.config_fields import check_fields
from tensorcore_dsl.kernels.epilogue_arithmetic import Output

CHUNK = 128  # elements of K that a warp multiplies between two barriers
PAD = 8  # elements, 16 bytes, behind each row of X: the rows of an ldmatrix lie in different banks
VECTOR_WORDS = 4 * 32  # words of a vector of 16 bytes of each lane
VECTOR = 8  # elements of X in 16 bytes
WIDTH = 4  # neighbours in a row of D that a thread finishes at once
# Bits or-ed to a number below 128, twice: 1024 + q in f16, 128 + q in bf16. The last bit of both
# counts one. (The or: Frantar et al., MARLIN, arXiv:2408.11743.)
OFFSET = {tc.f16: 0x64006400, tc.bf16: 0x43004300}
# e4m3 has the exponent bias 7. Its exponent as one of f16 (bias 15) or bf16 (127) is too small by
# this power of two. The shift moves its bits from the upper byte to the place of the exponent.
E4M3_SCALE = {tc.f16: (2.0**8, 1), tc.bf16: (2.0**120, 4)}
# Bits of the two elements of a register, before and after shifts; see Dequantiser.
MASKS: dict[tc.DType, tuple[int, ...]] = {
    tc.s4: (0x000F000F,),
    tc.u4: (0x000F000F,),
    tc.s8: (0x007F007F, 0x00800080),
    tc.e4m3: (0x80008000, 0x7F007F00),
}


@dataclass(frozen=True)
class PackedConfig:
    """Tile sizes and pipeline depth of products with packed weights.

    Attributes
    ----------
    tokens : int
        Rows of A of a CTA's tile, a multiple of 8.
    warp_tiles : int
        Blocks of 16 columns of B of a warp.
    warps_n, warps_k : int
        Warps side by side along N, and warps that share K.
    stages : int
        Stages of shared memory, 2 or more.
    split_k : int
        CTAs that share a tile, each with a part of K. A second kernel adds up their partial sums.

    Examples
    --------
    >>> kernels.PackedConfig(tokens=16, warps_n=2, warps_k=4).columns
    64
    """

    tokens: int = 8
    warp_tiles: int = 2
    warps_n: int = 1
    warps_k: int = 8
    stages: int = 3
    split_k: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        least = min(self.tokens, self.warp_tiles, self.warps_n, self.warps_k, self.split_k)
        if least < 1 or self.stages < 2 or self.threads > 1024:
            raise tc.ArgumentError(
                f"stages is 2 or more, other fields 1 or more, with at most 32 warps: {self}"
            )
        if self.tokens % 8 or self.tokens % (2 * self.warps_n):
            raise tc.ArgumentError(f"tokens is a multiple of 8 and of 2 warps_n: {self}")

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps_n * self.warps_k

    @property
    def columns(self) -> int:
        """Columns of D of a CTA's tile."""
        return 16 * self.warp_tiles * self.warps_n

    @property
    def depth(self) -> int:
        """K of a stage."""
        return CHUNK * self.warps_k


@dataclass(frozen=True)
class WeightFormat:
    """Format of packed weights, a compile-time constant of the kernel.

    Attributes
    ----------
    dtype : DType
        s4, u4, s8 or e4m3.
    group : int
        Elements along K of one scale: 32, 64, or a multiple of 128. 0: the whole of K.
    has_zeros : bool
        u4 with zero points.
    """

    dtype: tc.DType
    group: int = 0
    has_zeros: bool = False

    @property
    def period(self) -> int:
        """Elements of K between two multiplications by a scale."""
        return min(self.group or CHUNK, CHUNK)

    @property
    def vectors(self) -> int:
        """Vectors of 16 bytes that a lane has of a chunk of one tile."""
        return CHUNK * self.dtype.bits // 256

    @property
    def chunk_words(self) -> int:
        """Words of a chunk of one tile."""
        return self.vectors * VECTOR_WORDS

    def group_rows(self, chunks: int) -> int:
        """Most rows of scales of `chunks` neighbouring chunks."""
        return chunks * (CHUNK // self.period) if self.group else 1

    def first_group(self, chunk):
        """The row of scales at the beginning of a chunk."""
        if not self.group:
            return tc.s32(0)
        return chunk * (CHUNK // self.group) if self.group < CHUNK else chunk // (self.group // CHUNK)


@tc.kernel
def packed_gemm_kernel(
    x: tc.Array,
    words: tc.Array,
    scales: tc.Array,
    zeros: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha: tc.f32,
    beta: tc.f32,
    format: tc.Const = WeightFormat(tc.s4),
    config: tc.Const = PackedConfig(),
    traits: tc.Const = AmpereTraits(),
):
    """x: M x K. words: see weight_packing.py. scales: (groups, N). zeros: (groups, N), u8, read with
    has_zeros only. With split-K, d has the partial sums, split_k x M x N.

    Grid: (tiles of `columns` along N, tiles of `tokens` along M, split_k).
    """
    tc.launch_bounds(config.threads)
    if tc.arch_number() >= 90:  # programmatic dependent launch: the previous kernel may still run
        tc.griddep_wait()
        tc.griddep_launch_dependents()
    mma = tc.mma.m16n8k16(x.dtype, x.dtype, tc.f32)
    work = work_of_cta(x, config)
    first, end = work.first, work.end
    warp_n, warp_k = tc.warp_id() % config.warps_n, tc.warp_id() // config.warps_n
    column = warp_n * (16 * config.warp_tiles)  # of the warp in the CTA's tile
    stages = make_stages(x, scales, zeros, format, config)
    load = make_loader(stages, x, words, scales, zeros, work, format, config, traits)
    weights = make_dequantiser(mma.a, format, x)

    # Prologue: fill all stages but one. The mainloop fills that one while it computes step 0.
    for stage in tc.static_range(config.stages - 1):
        load(stage, stage)
    acc = zero_tile(mma, config)
    read, write = 0, config.stages - 1
    for step in range((end - first + (config.warps_k - 1)) // config.warps_k):
        # stages - 1 + step groups are closed here. All but the last stages - 2 are complete after
        # the wait: those of steps 0 to `step`. The barrier adds the copies of the other threads.
        tc.cp_async_wait(config.stages - 2)
        tc.barrier()
        # The stage written now held step - 1, which every warp has read: it has passed the barrier.
        load(step + (config.stages - 1), write)
        chunk = first + step * config.warps_k + warp_k
        if chunk < end:
            group = format.first_group(chunk) - format.first_group(chunk - warp_k)
            acc = multiply_chunk(acc, mma, stages.of(read), warp_k * CHUNK, column, group, weights, config)
        read, write = next_stage(read, config.stages), next_stage(write, config.stages)
    output = Output(c, d[work.part] if config.split_k > 1 else d, alpha, beta, traits)
    store_tile(acc, warp_k, column, output, work, config)


@dataclass
class CtaWork:
    """The work of a CTA: a part of K of a tile of D.

    Attributes
    ----------
    part : s32
        Number of the part.
    first, end : s32
        The first chunk of K, and the one behind the last.
    m0, n0 : s32
        First row and column of D.
    """

    part: Any
    first: Any
    end: Any
    m0: Any
    n0: Any


def work_of_cta(x, config) -> CtaWork:
    """The work of this CTA."""
    chunks, part = x.shape[1] // CHUNK, tc.s32(tc.blockIdx.z)
    first, end = (i * chunks // config.split_k for i in (part, part + 1))
    m0, n0 = tc.s32(tc.blockIdx.y) * config.tokens, tc.s32(tc.blockIdx.x) * config.columns
    return CtaWork(part, first, end, m0, n0)


def zero_tile(mma, config: PackedConfig):
    """Accumulators of a warp: acc[i][j] has 16 columns of B and 8 rows of X."""
    return [[mma.d.zeros() for _ in range(config.tokens // 8)] for _ in range(config.warp_tiles)]


@dataclass
class Stages:
    """Tiles in shared memory; the first axis is the stage, unless `of` has selected one.

    x: tokens x depth. words: the vectors that each thread copies and reads, u32 x 4. scales, zeros:
    rows of groups x columns.
    """

    x: Any
    words: Any
    scales: Any
    zeros: Any

    def of(self, stage) -> Stages:
        """The tiles of a stage."""
        parts = self.x, self.words, self.scales, self.zeros
        return Stages(*(None if tile is None else tile[stage, ...] for tile in parts))


def make_stages(x, scales, zeros, format: WeightFormat, config: PackedConfig) -> Stages:
    """Allocate the stages."""
    row, groups = config.depth + PAD, format.group_rows(config.warps_k)
    group_shape = config.stages, groups, config.columns
    vectors = config.warp_tiles * format.vectors
    return Stages(
        tc.shared(
            (config.stages, config.tokens, config.depth), x.dtype, strides=(config.tokens * row, row, 1)
        ),
        tc.shared((config.stages, vectors, config.threads, 4), tc.s32),
        tc.shared(group_shape, scales.dtype),
        tc.shared(group_shape, zeros.dtype) if format.has_zeros else None,
    )


def make_loader(stages: Stages, x, words, scales, zeros, work: CtaWork, format, config, traits):
    """The function load(step, stage), which starts the copies of `warps_k` chunks of K."""
    first, end, n0 = work.first, work.end, work.n0
    warp_n, warp_k = tc.warp_id() % config.warps_n, tc.warp_id() // config.warps_n
    tile, last = n0 // 16 + warp_n * config.warp_tiles, words.shape[0] - 1
    column = (first + warp_k) * format.chunk_words + tc.lane_id() * 4
    # Tiles beyond N read the last one, and are not stored.
    sources = [words.at(min(tile + i, last), column) for i in range(config.warp_tiles)]
    copy_x = make_x_copy(stages.x, x, work, config) if traits.vec_a == 16 else None

    def load(step, stage):
        """One group of cp.async, empty behind the last step."""
        chunk = first + step * config.warps_k
        if chunk < end:
            for i, source in enumerate(sources):
                copy_words(source, i, step, stage, chunk + warp_k < end)
            if copy_x is None:
                tc.copy_tile(stages.x[stage, ...], x, (work.m0, chunk * CHUNK), bounded=True)
            else:
                copy_x(step, stage)
            row = format.first_group(chunk)
            copy_groups(stages.scales[stage, ...], scales, row, n0, config)
            if format.has_zeros:
                copy_groups(stages.zeros[stage, ...], zeros, row, n0, config)
        tc.cp_async_commit()

    def copy_words(source, i, step, stage, exists):
        """Copy this thread's vectors of a tile. Those of the warp are neighbours: 512 bytes."""
        for v in tc.static_range(format.vectors):
            target = stages.words.at(stage, i * format.vectors + v, tc.threadIdx.x, 0)
            offset = step * (config.warps_k * format.chunk_words) + v * VECTOR_WORDS
            tc.cp_async(target, source + offset, 16, pred=exists)

    return load


def make_x_copy(tile, x, work: CtaWork, config: PackedConfig):
    """The function copy(step, stage) for an X whose rows are vectors of 16 bytes.

    A thread has one column of vectors, in every `rows`-th row. Rows beyond M become zero.
    """
    across = config.depth // VECTOR
    rows = config.threads // across
    row, column = tc.threadIdx.x // across, tc.threadIdx.x % across * VECTOR
    tokens = [work.m0 + row + i for i in range(0, config.tokens, rows)]
    sources = [x.at(min(token, x.shape[0] - 1), work.first * CHUNK + column) for token in tokens]
    valid = [tc.select(token < x.shape[0], 2 * VECTOR, 0) for token in tokens]

    def copy(step, stage):
        """Chunks from `end` on are not copied: their warps wait for the next barrier."""
        exists = work.first + step * config.warps_k + column // CHUNK < work.end
        for i, source in enumerate(sources):
            target = tile.at(stage, row + i * rows, column)
            tc.cp_async(target, source + step * config.depth, 2 * VECTOR, valid=valid[i], pred=exists)

    return copy


def copy_groups(tile, source, row, n0, config: PackedConfig):
    """Copy scales or zero points of the CTA's columns, from row `row` on; beyond the last, that one."""
    vector = 16 // source.dtype.itemsize
    across = config.columns // vector
    count = tile.shape[0] * across
    for index in tc.static_range(0, count, config.threads):
        index = index + tc.threadIdx.x
        at, column = index // across, index % across * vector
        origin = min(row + at, source.shape[0] - 1), min(n0 + column, source.shape[1] - vector)
        tc.cp_async(tile.at(at, column), source.at(*origin), 16, pred=index < count)


def multiply_chunk(acc, mma, stage: Stages, k0, column, group, weights: Dequantiser, config: PackedConfig):
    """acc + the products of a chunk, which begins at `k0` of the stage.

    column: the warp's first one in the tile. group: row of the chunk's first scales.
    """
    format = weights.format
    tiles, halves = range(config.warp_tiles), range(config.tokens // 8)
    words = [
        load_words([stage.words.at(i * format.vectors + v, tc.threadIdx.x, 0) for v in range(format.vectors)])
        for i in tiles
    ]
    for g in tc.static_range(CHUNK // format.period):
        sums = zero_tile(mma, config)
        zeros = [weights.zero_points(stage.zeros, group + g, column + 16 * i) for i in tiles]
        for k in tc.static_range(g * format.period, (g + 1) * format.period, 16):
            fx = tc.ldmatrix(stage.x[:, k0 + k : k0 + k + 16].T, mma.b)
            fx = fx if isinstance(fx, list) else [fx]
            for i in tiles:
                fw = weights.fragment(words[i], k, zeros[i])
                for j in halves:
                    sums[i][j] = mma(fw, fx[j], sums[i][j])
        for i in tiles:
            scale = tc.load_rows(stage.scales[group + g, :], mma.d, origin=column + 16 * i).to(tc.f32)
            for j in halves:
                acc[i][j] = tc.fma(sums[i][j], scale, acc[i][j])
    return acc


def load_words(pointers):
    """Load the vectors of 16 bytes at some pointers."""
    return [word.bits(tc.u32) for pointer in pointers for word in pointer.load(4).elements()]


def make_dequantiser(operand, format: WeightFormat, x):
    """Make the Dequantiser for products with `x`, which has elements.

    A select keeps the masks in registers: the assembler would load a constant before each use.
    """
    exists = x.shape[1] // CHUNK > 0
    masks = [tc.select(exists, tc.u32(bits), tc.u32(0)) for bits in MASKS[format.dtype]]
    return Dequantiser(operand, format, masks)


@dataclass
class Dequantiser:
    """Makes A fragments of packed words, exactly.

    masks: of the type, in registers.
    """

    operand: Any
    format: WeightFormat
    masks: list[Any]

    def zero_points(self, tile, group, column):
        """What to subtract from 4-bit registers of the columns g and g + 8 of a block."""
        offset, dtype = OFFSET[self.operand.dtype], self.format.dtype
        if not self.format.has_zeros:
            zero = 8 if dtype == tc.s4 else 0  # s4 is packed as u4: q + 8
            return [offset | zero * 0x10001] * 2
        row = column + tc.lane_id() // 4
        values = [tile[group, row + 8 * i].to(tc.u32) for i in range(2)]
        return [value * 0x10001 | offset for value in values]

    def fragment(self, words, k: int, zeros):
        """The fragment at depth `k` of a chunk, from the chunk's words."""
        count = self.format.dtype.bits // 4
        words = words[k // 16 * count : (k // 16 + 1) * count]
        if self.format.dtype == tc.e4m3:
            return self.from_e4m3(words)
        return self.from_s8(words) if self.format.dtype == tc.s8 else self.from_4_bits(words[0], zeros)

    def from_4_bits(self, word, zeros):
        """Subtract the zero point: (offset + q) - (offset + zero)."""
        offset = OFFSET[self.operand.dtype]
        bits = [word >> 4 * i & self.masks[0] | offset for i in range(4)]
        return tc.fragment(self.operand, bits) - tc.fragment(self.operand, [zeros[i % 2] for i in range(4)])

    def from_s8(self, words):
        """The lower seven bits, minus 128 times the sign: (offset + low) - (offset + 128 sign)."""
        offset = OFFSET[self.operand.dtype]
        parts = [word >> 8 * i for word in words for i in range(2)]
        low, sign = ([x & mask | offset for x in parts] for mask in self.masks)
        return tc.fragment(self.operand, low) - tc.fragment(self.operand, sign)

    def from_e4m3(self, words):
        """Move sign and magnitude from the upper bytes to their places, and correct the exponent."""
        scale, shift = E4M3_SCALE[self.operand.dtype]
        sign, magnitude = self.masks
        parts = [word << 8 - 8 * i for word in words for i in range(2)]
        return tc.fragment(self.operand, [x & sign | (x & magnitude) >> shift for x in parts]) * scale


def store_tile(acc, warp_k, column, output: Output, work: CtaWork, config: PackedConfig):
    """Add the accumulators of the warps that share K, finish the sums, store them."""
    # Rows of 4 numbers more: the lanes of a fragment's store lie in different banks.
    row = config.columns + 4
    shape = config.warps_k, config.tokens, config.columns
    parts = tc.shared(shape, tc.f32, strides=(config.tokens * row, row, 1))
    for i, fragments in enumerate(acc):
        for j, fragment in enumerate(fragments):
            tc.store_elements(parts[warp_k, ...].T, fragment, origin=(column + 16 * i, 8 * j))
    # Read after write: each thread adds the sums of other warps.
    tc.barrier()
    add_parts(parts, tc.threadIdx.x, config.threads, output, work, config)


def add_parts(parts, thread, threads: int, output: Output, work: CtaWork, config):
    """Add up the parts, (parts, tokens, columns), finish the sums and store them.

    thread: this thread's number among `threads`, which share the tile.
    """
    groups, m0, n0, d = config.columns // WIDTH, work.m0, work.n0, output.d
    for index in tc.range(thread, config.tokens * groups, threads):
        token, first = index // groups, index % groups * WIDTH
        if (m0 + token < d.shape[0]) & (n0 + first < d.shape[1]):
            sums = parts.at(0, token, first).load(WIDTH).elements()
            for k in tc.static_range(1, parts.shape[0]):
                addends = parts.at(k, token, first).load(WIDTH).elements()
                sums = [x + y for x, y in zip(sums, addends, strict=True)]
            store_sums(sums, m0 + token, n0 + first, output)


def store_sums(sums, row, col, output: Output):
    """Finish and store neighbours in a row of D: all of them exist, as N is a multiple of 16."""
    c, d, traits = output.c, output.d, output.traits
    coords = [(row, col + i) for i in range(WIDTH)]
    addends = [c[at] for at in coords] if traits.has_c else ()
    values = [v.to(d.dtype) for v in output.finished(sums, addends, coords)]
    if traits.vec_d >= WIDTH * d.dtype.itemsize:
        d.at(row, col).store(values)
    else:
        for at, value in zip(coords, values, strict=True):
            d[at] = value
