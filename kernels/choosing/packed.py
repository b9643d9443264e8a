"""Choose the kernel and the tile of a product with packed weights: models of time, fitted to an H200."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import tensorcore_dsl as tc
from tensorcore_dsl.host import target_arch
from tensorcore_dsl.kernels.ampere.packed_gemm import CHUNK, PAD, PackedConfig, WeightFormat
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, SMEM_RESERVED, HopperConfig
from tensorcore_dsl.kernels.hopper.packed_few_rows import SLAB, HopperPackedConfig
from tensorcore_dsl.kernels.hopper.packed_many_rows import packed_stages
from tensorcore_dsl.kernels.problem.families import check_family, gives_registers, has_wgmma
from tensorcore_dsl.kernels.problem.padding import VECTOR_BYTES
from tensorcore_dsl.kernels.problem.problem_shape import SMS
from tensorcore_dsl.kernels.sizes import cdiv

# Rows of A up to which a tile has this many -> shapes of CTAs: (warp_tiles, warps_n, warps_k), the
# widest first. Wide tiles read A less often, narrow ones make more CTAs.
SHAPES = {
    8: ((2, 2, 4), (2, 1, 8), (1, 1, 8)),
    16: ((2, 2, 4), (2, 1, 8), (1, 1, 8)),
    32: ((2, 4, 2), (2, 2, 4)),
    64: ((1, 8, 1),),  # wider tiles would spill accumulators
}
ENOUGH_CTAS = SMS * 9 // 10  # With so many CTAs, a narrower tile brings nothing.
MAX_STAGES, MAX_SPLIT = 4, 8
# Tiles of the wgmma kernel: tokens, and (consumers, blocks).
TOKENS = (8, 16, 32, 48, 64, 96, 128)
CONSUMERS = ((2, 2), (2, 1), (1, 1))
WGMMA_STAGES = 6
# Microseconds of the wgmma kernel, fitted to 919 launches on an H200: for each part of split-K beyond
# the first, and for a megabyte of partial sums.
PART_US, PARTIAL_SUMS_US = 0.245, 0.31
# Microseconds of a chunk of K of a CTA: for 64 tokens, for 64 columns, for both, and for 64 columns of
# weights with 4 bits more.
TOKENS_US, COLUMNS_US, PRODUCT_US, BITS_US = 0.177, 0.123, 0.036, 0.056
# packed_many_rows_gemm: rows of A from which it is tried, (rows of its tiles, parts of K), and most stages.
MANY_ROWS, ROWS_AND_PARTS, MANY_ROWS_STAGES = 128, tuple(product((256, 192, 128, 96), (1, 2))), 8
# Microseconds of packed_many_rows_gemm for 64 elements along K of a tile: a fixed part, 4 bits of a
# weight, 64 rows. With split-K: for the exchange of the sums of 64 rows.
STAGE_US, STAGE_BITS_US, STAGE_ROWS_US, EXCHANGE_US = 0.015, 0.055, 0.135, 0.8
# With at most FEW_ROWS rows and FEW_WEIGHTS weights, mma.sync takes less time: its CTAs start sooner.
FEW_ROWS, FEW_WEIGHTS = 8, 2**24


def check_wgmma(by_tma: bool) -> None:
    """Refuse a target and an A that the wgmma kernel cannot multiply. by_tma: TMA can load A."""
    if not (by_tma and has_wgmma()):
        raise tc.ArgumentError(
            f"packed weights are multiplied by wgmma on sm_90a, by an A whose rows are contiguous, in "
            f"ascending order and at multiples of {VECTOR_BYTES} bytes"
            + ("" if has_wgmma() else f"; the target is {target_arch()}")
        )


def choose_packed(
    M: int,
    N: int,
    K: int,
    format: WeightFormat,
    by_tma: bool = True,
    family: str | None = None,
    one_type: bool = True,
    by_threads: bool = False,
) -> PackedConfig | HopperPackedConfig | HopperConfig:
    """Choose the kernel, unless `family` names it, and its tile.

    by_tma: TMA can load A. one_type: scales of groups, if there are any, have A's type. by_threads:
    TMA cannot store D.
    """
    if family is None:
        few = M <= FEW_ROWS and N * K <= FEW_WEIGHTS
        family = "sm90" if by_tma and not few and has_wgmma() and gives_registers() else "sm80"
    check_family(family)
    if family == "sm80":
        return _choose_mma_sync(M, N, K, format)
    check_wgmma(by_tma)
    microseconds, config = _choose_wgmma(M, N, K, format)
    if M >= MANY_ROWS and one_type:
        many_rows = _choose_many_rows(M, N, K, format, by_threads)
        if many_rows[0] < microseconds:
            return many_rows[1]
    return config


def _choose_many_rows(
    M: int, N: int, K: int, format: WeightFormat, by_threads: bool
) -> tuple[float, HopperConfig]:
    """Choose the tile of packed_many_rows_gemm with the least estimated time, in microseconds."""
    tried = []
    for rows, parts in ROWS_AND_PARTS:
        config = HopperConfig(BM=128, BN=rows, stages=2, split_k=parts, swap_ab=True)
        waves = cdiv(cdiv(M, rows) * cdiv(N, config.BM) * parts, SMS)
        stage = STAGE_US + format.dtype.bits // 4 * STAGE_BITS_US + rows / 64 * STAGE_ROWS_US
        tile = K / SLAB / parts * stage + (parts - 1) * rows / 64 * EXCHANGE_US
        spills = (rows, parts) == (256, 1) and by_threads and not format.group
        if parts <= K // CHUNK and not spills:
            tried.append((waves * tile, config))
    microseconds, config = min(tried, key=lambda pair: pair[0])
    return microseconds, replace(config, stages=min(MANY_ROWS_STAGES, packed_stages(config, format)))


def _choose_wgmma(M: int, N: int, K: int, format: WeightFormat) -> tuple[float, HopperPackedConfig]:
    """Choose the tile with the least estimated time, in microseconds, and as many stages as fit."""
    chunks, tried = K // CHUNK, []
    most_tokens = TOKENS[-1] if format.period > 32 else TOKENS[-2]  # with more, ptxas 13.0 spills
    smallest = next((tokens for tokens in TOKENS if tokens >= M), most_tokens)
    for tokens, (consumers, blocks) in product(TOKENS, CONSUMERS):
        if tokens * blocks <= most_tokens and (tokens == smallest or 32 <= tokens < smallest):
            tile = HopperPackedConfig(tokens, consumers, blocks, stages=2)
            tiles = cdiv(N, tile.columns) * cdiv(M, tokens)
            most = min(MAX_SPLIT, chunks // 2)
            for split in {1, *(max(1, min(waves * SMS // tiles, most)) for waves in (1, 2))}:
                config = replace(tile, split_k=split)
                tried.append((_microseconds(config, M, N, chunks, tiles * split, format), config))
    microseconds, config = min(tried, key=lambda pair: pair[0])
    stage, rest = _wgmma_bytes(config, format)
    most = (SMEM_BYTES - SMEM_RESERVED - rest) // stage
    return microseconds, replace(config, stages=min(WGMMA_STAGES, most))


def _microseconds(
    config: HopperPackedConfig, M: int, N: int, chunks: int, ctas: int, format: WeightFormat
) -> float:
    """Time of the wgmma kernel and of the sum of its parts, without what all configurations share."""
    tokens, columns, parts = config.tokens / 64, config.columns / 64, config.split_k
    chunk = tokens * TOKENS_US + columns * (
        COLUMNS_US + tokens * PRODUCT_US + (format.dtype.bits // 4 - 1) * BITS_US
    )
    partial_sums = parts * M * N * 4 / 1e6 if parts > 1 else 0
    return cdiv(ctas, SMS) * chunks / parts * chunk + (parts - 1) * PART_US + partial_sums * PARTIAL_SUMS_US


def _wgmma_bytes(config: HopperPackedConfig, format: WeightFormat) -> tuple[int, int]:
    """Shared memory of a stage of the wgmma kernel, for scales of f32, and of its sums."""
    return _stage_bytes(config, CHUNK, 1, format), _sum_bytes(config)


def _choose_mma_sync(M: int, N: int, K: int, format: WeightFormat) -> PackedConfig:
    """Choose the widest tile that gives ENOUGH_CTAS CTAs, else the tile with the most CTAs."""
    tokens = next((rows for rows in SHAPES if rows >= M), max(SHAPES))
    chunks = K // CHUNK
    widest_first = [PackedConfig(tokens, *shape, stages=2) for shape in SHAPES[tokens]]
    ctas_of = lambda config: cdiv(N, config.columns) * cdiv(M, tokens)
    config = next((x for x in widest_first if ctas_of(x) >= ENOUGH_CTAS), widest_first[-1])
    ctas = ctas_of(config)
    most = target_arch().shared_kib * 1024 - SMEM_RESERVED
    while config.warps_k > chunks or _bytes(config, format) > most:
        half = {"warps_k": config.warps_k // 2} if config.warps_k > 1 else {"tokens": config.tokens // 2}
        config = replace(config, **half)
    split = min(SMS // ctas, chunks // (2 * config.warps_k), MAX_SPLIT)
    config = replace(config, split_k=max(split, 1))
    deeper = [replace(config, stages=n) for n in range(MAX_STAGES, 1, -1)]
    # Two CTAs on an SM, if there are as many and three stages fit; else one, with more stages.
    halves = [x for x in deeper[:-1] if ctas > SMS and _bytes(x, format) <= most // 2]
    return next(x for x in halves + deeper if _bytes(x, format) <= most)


def _bytes(config: PackedConfig, format: WeightFormat) -> int:
    """Shared memory of a CTA, for scales of f32."""
    stage = _stage_bytes(config, config.depth + PAD, config.warps_k, format)
    return config.stages * stage + config.warps_k * _sum_bytes(config)


def _stage_bytes(
    config: PackedConfig | HopperPackedConfig, row: int, chunks: int, format: WeightFormat
) -> int:
    """Bytes of a stage: `row` elements a row of A; words, scales and zero points of `chunks` chunks."""
    words = chunks * CHUNK * format.dtype.bits // 8
    return 2 * config.tokens * row + config.columns * (words + 5 * format.group_rows(chunks))


def _sum_bytes(config: PackedConfig | HopperPackedConfig) -> int:
    """Sums of a tile, in rows of 4 numbers more."""
    return 4 * config.tokens * (config.columns + 4)
