"""`gemm` with packed weights of 4 or 8 bits as B."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, check_stream, describe, target_arch
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.ampere.mixed_gemm import CHUNK, PAD, MixedConfig, WeightFormat, mixed_gemm_kernel
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, SMEM_RESERVED, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.mixed_gemm import SLAB, HopperMixedConfig, hopper_mixed_gemm
from tensorcore_dsl.kernels.hopper.packed_gemm import packed_gemm, packed_stages
from tensorcore_dsl.kernels.host import operands
from tensorcore_dsl.kernels.host.arguments import described, present, vector_bytes
from tensorcore_dsl.kernels.host.launch import EpilogueArgs, PreparedCall, call_with_c
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.packed_weights import PackedWeights, describe_weights
from tensorcore_dsl.kernels.host.plan import Plan, plan_hopper, prepared
from tensorcore_dsl.kernels.problem.families import (
    check_family,
    check_supported,
    gives_registers,
    has_negative_stride,
    has_wgmma,
    stores_without_tma,
)
from tensorcore_dsl.kernels.problem.gemm_problem import ANY, GemmProblem
from tensorcore_dsl.kernels.problem.padding import VECTOR_BYTES
from tensorcore_dsl.kernels.problem.problem_shape import SMS
from tensorcore_dsl.kernels.problem.summation import summation_of_packed
from tensorcore_dsl.kernels.sizes import cdiv
from tensorcore_dsl.kernels.user_functions import EpilogueCall, check_epilogue

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
# packed_gemm: rows of A from which it is tried, (rows of its tiles, parts of K), and most stages.
MANY_ROWS, ROWS_AND_PARTS, MANY_ROWS_STAGES = 128, tuple(product((256, 192, 128, 96), (1, 2))), 8
# Microseconds of packed_gemm for 64 elements along K of a tile: a fixed part, 4 bits of a weight, 64
# rows. With split-K: for the exchange of the sums of 64 rows.
STAGE_US, STAGE_BITS_US, STAGE_ROWS_US, EXCHANGE_US = 0.015, 0.055, 0.135, 0.8
# Up to so many rows and weights, mma.sync takes less time: its CTAs start sooner.
FEW_ROWS, FEW_WEIGHTS = 8, 2**24
FAMILIES: dict[str, Any] = {"sm80": MixedConfig, "sm90": (HopperMixedConfig, HopperConfig)}
MAX_SUMS = 128  # accumulators of a thread of packed_gemm, besides fragments of weights

log = logging.getLogger(__name__)


def mixed_gemm(
    a: Any, b: PackedWeights, c: Any, out: Any, extra: EpilogueArgs, alpha: float, beta: float, *others: Any
) -> Any:
    """Compute alpha A B + beta C; arguments as for `gemm`, see `_prepare`."""
    options = (alpha, beta, *others)
    weights = b.operands
    key = ("mixed", str(b.shape), str(b.dtype), b.zeros is None, str(alpha), str(beta), *options)
    prepare = lambda: _prepare(a, b, c, out, extra, *options)
    return call_with_c(prepare, key, (a, *weights), (a, weights), a, c, out, extra)


def _prepare(
    a: Any,
    b: PackedWeights,
    c: Any,
    out: Any,
    extra: EpilogueArgs,
    alpha: float,
    beta: float,
    out_dtype: Any,
    epilogue: Callable[..., Any] | None,
    family: str | None,
    config: MixedConfig | HopperMixedConfig | HopperConfig | None,
    stream: Any,
) -> PreparedCall:
    check_stream(stream)
    epilogue = check_epilogue(epilogue, extra.names)
    problem, d, read = describe_packed(a, b, c, out, out_dtype, alpha, beta, epilogue)
    check_written(read | extra.described(), "c", out=out)
    plan = plan_mixed(b, problem, family, config)
    return prepared(plan, problem, (a, b.operands), c, d, extra, stream)


def describe_packed(
    a: Any,
    b: PackedWeights,
    c: Any,
    out: Any,
    out_dtype: Any,
    alpha: float,
    beta: float,
    epilogue: Callable[..., Any] | EpilogueCall | None,
) -> tuple[GemmProblem, Any, dict[str, Description]]:
    """Describe and check a product; returns the result's array and the operands, too."""
    read = described(a=a, **present(c=c)) | describe_weights(b)
    in_a, in_c = read["a"], read.get("c")
    dtype, (M, _), N = in_a.type.dtype, operands.check_rank("a", in_a, 2), b.shape[1]
    if dtype not in (tc.f16, tc.bf16):
        raise tc.ArgumentError(f"a holds {dtype}; packed weights are multiplied by f16 and bf16")
    in_b = in_a._replace(shape=b.shape)
    operands.check_operands(in_a, in_b, in_c, beta)
    d, in_d = operands.result_array(a, out, dtype, (M, N), out_dtype)
    scalars = operands.convert_scalars(dtype, alpha, beta)
    return GemmProblem(in_a, in_b, in_c, in_d, *scalars, epilogue=epilogue), d, read


def plan_mixed(
    b: PackedWeights,
    problem: GemmProblem,
    family: str | None,
    config: MixedConfig | HopperMixedConfig | HopperConfig | None,
) -> Plan:
    """Plan the launch for a described problem."""
    M, N, K = problem.M, problem.N, problem.K
    if M == 0:
        return Plan(None, None, None, 0)
    arch = target_arch()
    if arch.number < 80:
        raise tc.ArgumentError(f"products with packed weights run on sm_80 or later, not on {arch}")
    vec_a = vector_bytes(problem.a, 2)
    by_tma = vec_a == VECTOR_BYTES and not has_negative_stride(problem.a)
    one_type = not b.format.group or describe(b.scales).type.dtype == problem.dtype
    by_threads = stores_without_tma(problem.d)
    if config is None:
        config = choose_mixed(M, N, K, b.format, by_tma, family, one_type, by_threads)
    else:
        _check_config(config, K, by_tma, family)
    log.info("product of %d x %d by %r: %s", M, K, b, config)
    shared: Any = {"scaled": problem.alpha != 1, "has_c": problem.reads_c, "epilogue": problem.epilogue}
    summation = partial(summation_of_packed, problem, b.format, config)
    if isinstance(config, HopperConfig):
        _check_many_rows(config, b.format, one_type)
        of_tma = HopperTraits(store_by_threads=by_threads, **shared)
        plan = plan_hopper(packed_gemm, config, of_tma, (M, N), format=b.format)
        return replace(plan, summation=summation)
    grid = cdiv(N, config.columns), cdiv(M, config.tokens), config.split_k
    kernel = hopper_mixed_gemm if isinstance(config, HopperMixedConfig) else mixed_gemm_kernel
    traits = AmpereTraits(vec_a=vec_a, vec_d=vector_bytes(problem.d), **shared)
    plan = Plan(kernel, config, traits, grid, (("format", b.format),), summation=summation)
    if config.split_k == 1:
        return plan
    of_parts = AmpereTraits(vec_a=vec_a)
    return replace(plan, traits=of_parts, partial_sums=traits, partial_dtype=tc.f32)


def check_packed(
    accumulate: Any, row_reductions: Any, precision: Any, bits: Any, row_out: Any = None
) -> None:
    """Products with packed weights have one accumulator type."""
    refused = {
        "accumulate": accumulate is not None,
        "row_reductions": not isinstance(row_reductions, tuple) or bool(row_reductions),
        "row_out": row_out is not None,
        "precision": precision is not None,
        "bits='batch_invariant'": bits != ANY,
    }
    names = [name for name, is_used in refused.items() if is_used]
    if names:
        raise tc.ArgumentError(
            f"b is PackedWeights; products with them have no {', '.join(names)}: they are summed in f32, in "
            f"an order that depends on the tile, and not reduced along rows"
        )


def _check_many_rows(config: HopperConfig, format: WeightFormat, one_type: bool) -> None:
    """Refuse what the kernel for many rows does not take. one_type: see `choose_mixed`."""
    check_supported("packed weights", config, "k_slabs", "cluster_n", "mma_in_flight")
    most = packed_stages(config, format)
    needs = {
        "swap_ab=True": config.swap_ab,
        "a BM of 64 or 128": config.BM <= 128,
        f"at most {MAX_SUMS} accumulators of a thread": config.accumulator_registers <= MAX_SUMS,
        f"2 to {most} stages": 2 <= config.stages <= most,
        "for split_k stages whose rows of A hold the sums of a tile": config.split_k == 1
        or config.partials_over(config.stages) == 1,
    }
    if unmet := next((need for need, is_met in needs.items() if not is_met), None):
        raise tc.ArgumentError(f"packed weights need {unmet}: {config}")
    if not one_type:
        raise tc.ArgumentError(
            "a HopperConfig takes scales of groups of a's type; a kernels.HopperMixedConfig takes any"
        )


def _check_config(config: Any, K: int, by_tma: bool, family: str | None) -> None:
    """Refuse another configuration, one with more parts of K than chunks, and one that cannot run here."""
    kind = next((name for name, of_family in FAMILIES.items() if isinstance(config, of_family)), None)
    if kind is None:
        raise tc.ArgumentError(
            f"config is {config}; packed weights take a kernels.MixedConfig, a kernels.HopperMixedConfig "
            f"or a kernels.HopperConfig"
        )
    if family not in (None, kind):
        raise tc.ArgumentError(f"family is {family!r}, and config of family {kind!r}: {config}")
    if kind == "sm90":
        _check_wgmma(by_tma)
    if config.split_k > K // CHUNK:
        raise tc.ArgumentError(f"K is {K}: not every part of K has {CHUNK} elements: {config}")


def _check_wgmma(by_tma: bool) -> None:
    """Refuse a target and an A that the wgmma kernel cannot multiply. by_tma: TMA can load A."""
    if not (by_tma and has_wgmma()):
        raise tc.ArgumentError(
            f"packed weights are multiplied by wgmma on sm_90a, by an A whose rows are contiguous, in "
            f"ascending order and at multiples of {VECTOR_BYTES} bytes"
            + ("" if has_wgmma() else f"; the target is {target_arch()}")
        )


def choose_mixed(
    M: int,
    N: int,
    K: int,
    format: WeightFormat,
    by_tma: bool = True,
    family: str | None = None,
    one_type: bool = True,
    by_threads: bool = False,
) -> MixedConfig | HopperMixedConfig | HopperConfig:
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
    _check_wgmma(by_tma)
    microseconds, config = _choose_wgmma(M, N, K, format)
    if M >= MANY_ROWS and one_type:
        of_many_rows = _choose_many_rows(M, N, K, format, by_threads)
        if of_many_rows[0] < microseconds:
            return of_many_rows[1]
    return config


def _choose_many_rows(
    M: int, N: int, K: int, format: WeightFormat, by_threads: bool
) -> tuple[float, HopperConfig]:
    """Choose the tile of packed_gemm with the least estimated time, in microseconds."""
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


def _choose_wgmma(M: int, N: int, K: int, format: WeightFormat) -> tuple[float, HopperMixedConfig]:
    """Choose the tile with the least estimated time, in microseconds, and as many stages as fit."""
    chunks, tried = K // CHUNK, []
    most_tokens = TOKENS[-1] if format.period > 32 else TOKENS[-2]  # with more, ptxas 13.0 spills
    smallest = next((tokens for tokens in TOKENS if tokens >= M), most_tokens)
    for tokens, (consumers, blocks) in product(TOKENS, CONSUMERS):
        if tokens * blocks <= most_tokens and (tokens == smallest or 32 <= tokens < smallest):
            tile = HopperMixedConfig(tokens, consumers, blocks, stages=2)
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
    config: HopperMixedConfig, M: int, N: int, chunks: int, ctas: int, format: WeightFormat
) -> float:
    """Time of the wgmma kernel and of the sum of its parts, without what all configurations share."""
    tokens, columns, parts = config.tokens / 64, config.columns / 64, config.split_k
    chunk = tokens * TOKENS_US + columns * (
        COLUMNS_US + tokens * PRODUCT_US + (format.dtype.bits // 4 - 1) * BITS_US
    )
    partial_sums = parts * M * N * 4 / 1e6 if parts > 1 else 0
    return cdiv(ctas, SMS) * chunks / parts * chunk + (parts - 1) * PART_US + partial_sums * PARTIAL_SUMS_US


def _wgmma_bytes(config: HopperMixedConfig, format: WeightFormat) -> tuple[int, int]:
    """Shared memory of a stage of the wgmma kernel, for scales of f32, and of its sums."""
    return _stage_bytes(config, CHUNK, 1, format), _sum_bytes(config)


def _choose_mma_sync(M: int, N: int, K: int, format: WeightFormat) -> MixedConfig:
    """Choose the tile: the widest of which there are ENOUGH_CTAS, else the one with the most CTAs."""
    tokens = next((rows for rows in SHAPES if rows >= M), max(SHAPES))
    chunks = K // CHUNK
    widest_first = [MixedConfig(tokens, *shape, stages=2) for shape in SHAPES[tokens]]
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


def _bytes(config: MixedConfig, format: WeightFormat) -> int:
    """Shared memory of a CTA, for scales of f32."""
    stage = _stage_bytes(config, config.depth + PAD, config.warps_k, format)
    return config.stages * stage + config.warps_k * _sum_bytes(config)


def _stage_bytes(config: MixedConfig | HopperMixedConfig, row: int, chunks: int, format: WeightFormat) -> int:
    """Rows of A of so many elements; words, scales of f32 and zero points of so many chunks."""
    words = chunks * CHUNK * format.dtype.bits // 8
    return 2 * config.tokens * row + config.columns * (words + 5 * format.group_rows(chunks))


def _sum_bytes(config: MixedConfig | HopperMixedConfig) -> int:
    """Sums of a tile, in rows of 4 numbers more."""
    return 4 * config.tokens * (config.columns + 4)
