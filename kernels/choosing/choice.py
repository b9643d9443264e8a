"""Choose the family of kernels, the copies of operands, and the configuration of a product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, product
from math import gcd, inf
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, current_target, target_arch
from tensorcore_dsl.kernels.ampere.config import MAX_VECTORS, AmpereConfig, VectorConfig
from tensorcore_dsl.kernels.choosing import menu, tuning_cache
from tensorcore_dsl.kernels.choosing.batch_invariance import is_allowed, needed_family
from tensorcore_dsl.kernels.choosing.features import features
from tensorcore_dsl.kernels.choosing.menu import Menu, as_loaded, fits
from tensorcore_dsl.kernels.choosing.ranking import ranking
from tensorcore_dsl.kernels.hopper.config import (
    SMEM_BYTES,
    SMEM_RESERVED,
    SWIZZLE_BYTES,
    HopperConfig,
    fragments_registers,
    promoted_columns,
    promotion_registers,
)
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, THREADS, Format
from tensorcore_dsl.kernels.problem import families, padding
from tensorcore_dsl.kernels.problem.gemm_problem import FAST, GemmProblem
from tensorcore_dsl.kernels.problem.problem_shape import SMS, ProblemShape, cluster_tiles
from tensorcore_dsl.kernels.problem.summation import Config, division

# Microseconds of an SM for the gates of one tile of a gated product (30 timings of five sizes).
GATED_TILE_US = 0.9

PINGPONG = HopperConfig(BN=128, pingpong=True, cluster_n=2).with_stages()
SKINNY_GROUPS = HopperConfig(BM=64, BN=128).with_stages()
SPARSE_TILES = ((128, 256), (192, 192), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64))
SPARSE_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))
PARTS_COLUMNS = 32, 64, 96, 128, 192, 256  # BN of the f32 kernel with operands in parts


def choose_family(problem: GemmProblem, family: str | None, config: Any) -> tuple[str, Any]:
    """Choose the family for a problem; also returns the configuration that the caller or tuning gives.

    By default, sm_90a uses wgmma for every problem whose operands TMA can read. The least expected
    time decides for all other problems, for f32, and for 1 to 4 rows or columns. Emulation chooses
    like a GPU, so that its bits are the same.
    """
    obstacles = families.obstacles(problem)
    not_sm80, not_sm90 = obstacles["sm80"], obstacles["sm90"]
    if config is None and problem.accumulate is None and not problem.row_reductions:
        config = _tuned_config(problem, family, obstacles)
    family = families.requested_family(family, config) or needed_family(problem)
    if family == "sm80" and not_sm80:
        raise tc.ArgumentError(f"the mma.sync kernels cannot take this product: {not_sm80}")
    only_sm90 = family == "sm90" or not_sm80
    if only_sm90 and not_sm90:
        also = f"; nor can the mma.sync kernels: {not_sm80}" if not_sm80 and not family else ""
        raise tc.ArgumentError(f"the wgmma kernels cannot take this product: {not_sm90}{also}")
    if only_sm90 or (family is None and not not_sm90 and _prefers_sm90(problem.contiguous)):
        return "sm90", config
    return "sm80", config


def _prefers_sm90(problem: GemmProblem) -> bool:
    """Whether wgmma is the choice. The operands are contiguous, so strides do not change the bits."""
    if problem.multiplied_as == tc.f32:
        return isinstance(choose_config(problem, "sm90", "sm80"), HopperConfig)
    time = lambda family: _time(problem, family, choose_copies(problem, family))
    return not may_prefer_sm80(problem) or time("sm90") <= time("sm80")


def may_prefer_sm80(problem: GemmProblem) -> bool:
    """Whether kernels without wgmma may be faster.

    They may for few rows or columns, and where wgmma needs copies of the operands or transposes tiles.
    """
    if problem.multiplied_as in families.VECTOR_KERNELS and min(problem.M, problem.N) <= MAX_VECTORS:
        return True
    shape = shape_of(problem)
    return bool(choose_copies(problem, "sm90") or shape.in_fragments or shape.transposed)


def _time(problem: GemmProblem, family: str, copies: tuple[padding.Copy, ...]) -> float:
    """Expected microseconds of the copies and of the product by a family."""
    ranked = ranked_configs(problem, kinds_of(problem, family), copies)
    return next((time for time, config in ranked if is_allowed(problem, config)), inf)


def ranked_configs(
    problem: GemmProblem, kinds: tuple[int, ...], copies: tuple[padding.Copy, ...] = ()
) -> Iterator[tuple[float, Any]]:
    """Yield (expected microseconds, configuration) of feasible configurations, the fastest first."""
    ranked = ranking(shape_of(problem, copies), kinds)
    return (entry for entry in ranked if _is_feasible(problem, entry[1]))


def _is_feasible(problem: GemmProblem, config: Config) -> bool:
    """Whether a kernel stores the sums, reduces the rows, and fits the target.

    Sums of parts of K are f32 or s32. Row reductions need rows of tiles, and for f32 a number of
    columns that the kernels for operands of any alignment have, too.
    """
    if isinstance(config, VectorConfig):
        return True
    in_f16, reduces = problem.accumulate == tc.f16, bool(problem.row_reductions)
    if isinstance(config, AmpereConfig):
        tile = config.stages * (config.BM + config.BN) * config.BK * problem.dtype.itemsize
        room = min(target_arch().shared_kib * 1024, SMEM_BYTES)
        return tile + SMEM_RESERVED <= room and (config.split_k == 1 or not in_f16)
    if config.swap_ab and reduces:
        return False
    if problem.multiplied_as != tc.f32:
        return True
    if reduces and (config.BN not in PARTS_COLUMNS or config.BN % (16 * config.split_k)):
        return False
    if config.splits_in_memory:
        return has_promotion_registers(config)
    return not fragments_registers(config) or families.gives_registers()


def kinds_of(problem: GemmProblem, *names: str) -> tuple[int, ...]:
    """The kinds of kernels of these families that can run a problem."""
    dtype, kinds = problem.multiplied_as, list[int]()
    if "sm90" in names:
        readable = all(families.is_read_by_tma(x) for x in (problem.a, problem.b))
        f32_kinds = [menu.SPLIT_F32, menu.FRAGMENTS] if readable else [menu.SPLIT_F32]
        kinds += f32_kinds if dtype == tc.f32 else [menu.WGMMA]
    if "sm80" in names:
        kinds.append(menu.F64 if dtype == tc.f64 and families.has_wgmma() else menu.MMA)
        if dtype in families.VECTOR_KERNELS and problem.accumulate != tc.f16:
            kinds.append(menu.VECTORS)
    return tuple(kinds)


def choose_copies(problem: GemmProblem, family: str, config: Any = None) -> tuple[padding.Copy, ...]:
    """Choose the copies of operands for the kernels of a family.

    MN-major tf32 operands are also copied if this takes less time, or if `config` cannot load them.
    The choice is that for contiguous operands, so that strides do not change the bits.
    """
    contiguous = align_operands(problem)
    shape = shape_of(contiguous)
    operands = [operand for operand, has in enumerate((shape.in_fragments, shape.transposed)) if has]
    if family == "sm80" or not operands:
        return padding.gemm_copies(problem, family)
    options = [set(operands[:n]) for n in range(len(operands) + 1)] + [{operands[-1]}]
    copies = lambda option: padding.gemm_copies(contiguous, family, option)
    if config is not None:
        suits = lambda option: fits(config, shape_of(contiguous, copies(option)))
        chosen = min(filter(suits, options), key=len, default=operands)
        return padding.gemm_copies(problem, family, chosen)
    fastest = min(options, key=lambda option: _time(contiguous, family, copies(option)))
    return padding.gemm_copies(problem, family, fastest)


def align_operands(problem: GemmProblem) -> GemmProblem:
    """Make the operands of a problem contiguous, with all rows or columns aligned."""
    contiguous = problem.contiguous
    a, b = (x._replace(type=replace(x.type, align=16)) for x in (contiguous.a, contiguous.b))
    return replace(contiguous, a=a, b=b)


def choose_config(problem: GemmProblem, *names: str) -> Any:
    """Choose the fastest configuration of these families, for f32 or without wgmma.

    If `problem.bits` allows no configuration, the result is one that the plan refuses.
    """
    ranked = lambda of, *names: (c for _, c in ranked_configs(of, kinds_of(of, *names)))
    contiguous = ranked(problem.contiguous, *names)
    first = next(contiguous)
    if not is_allowed(problem, first):
        first = next((config for config in contiguous if is_allowed(problem, config)), first)
    return _divided_alike(problem, first, ranked(problem, families.family_of(first)))


def _divided_alike(problem: GemmProblem, chosen: Any, ranked: Iterator[Any]) -> Any:
    """Select the first configuration with the division of K of `chosen`, the choice for contiguous operands.

    So gaps, alignment and the layout of C change no bits.
    """
    order = division(problem, chosen)
    alike = next((config for config in ranked if division(problem, config) == order), None)
    assert alike is not None, f"nothing divides K of {problem} as {chosen} does"
    return alike


def _tuned_config(problem: GemmProblem, family: str | None, obstacles: dict[str, str]) -> Any:
    """Look up the configuration that was tuned on this GPU, if its family can run the problem."""
    if current_target() != "cuda" or not tuning_cache.entries():
        return None
    config = tuning_cache.recall(tuning_cache.key(problem, tuning_cache.device_name()))
    if config is None:
        return None
    tuned = families.family_of(config)
    runs = family in (None, tuned) and not obstacles[tuned] and is_allowed(problem, config)
    runs = runs and (tuned == "sm80" or families.is_assembled(config))
    return config if runs else None


def choose(
    shape: ProblemShape, is_feasible: Callable[[HopperConfig], bool] = lambda config: True
) -> HopperConfig:
    """Choose the fastest feasible configuration."""
    return next(config for _, config in ranking(shape) if is_feasible(config))  # type: ignore[return-value,arg-type]


def choose_for(problem: GemmProblem, needs_registers: bool, contiguous: GemmProblem) -> HopperConfig:
    """Choose the configuration for a problem of `gemm`; needs_registers: see HopperTraits.

    contiguous: the problem with contiguous operands, whose choice determines the division of K.
    """
    if problem.multiplied_as == tc.f32:
        return choose_config(problem, "sm90")  # type: ignore[no-any-return]
    shape = shape_of(problem)

    def has_registers(config: HopperConfig, needs_registers: bool) -> bool:
        if shape.promoted:
            return has_promotion_registers(config)
        if needs_registers and (config.registers or config.consumers > 2):
            return False  # the accumulators fill all registers that a consumer can have
        limited = needs_registers and config.exceeds_share_with_epilogue
        return families.gives_registers() if limited else families.is_assembled(config, shape)

    def ranked(of: GemmProblem, needs_registers: bool) -> Iterator[HopperConfig]:
        allowed = (c for _, c in ranked_configs(of, (menu.WGMMA,)) if is_allowed(problem, c))
        return (config for config in allowed if has_registers(config, needs_registers))

    first = next(ranked(contiguous, needs_registers or problem.reads_c))
    candidates = chain(ranked(problem, needs_registers), [as_loaded(first, shape)])
    return _divided_alike(problem, first, candidates)  # type: ignore[no-any-return]


def choose_promoted(
    shape: ProblemShape, is_feasible: Callable[[HopperConfig], bool] = lambda config: True
) -> HopperConfig:
    """Choose for promoted fp8, which needs registers for products and accumulators."""
    suits = lambda config: is_feasible(config) and has_promotion_registers(config)
    return choose(replace(shape, promoted=True), suits)


def has_promotion_registers(config: HopperConfig) -> bool:
    """Whether consumers get the registers that promotion needs."""
    return not promotion_registers(config, promoted_columns(config)) or families.gives_registers()


def choose_grouped(rows: int, groups: int) -> HopperConfig:
    """Choose for groups of rows: flat tiles if a group has few rows on average."""
    return SKINNY_GROUPS if rows <= 64 * groups else PINGPONG


def choose_swiglu(M: int, N: int, K: int) -> HopperConfig:
    """Choose for gated products: ping-pong; half of a tile's columns belong to the gate."""
    shape = ProblemShape(M, 2 * N, K, has_epilogue=True)
    gates = lambda config: GATED_TILE_US * cluster_tiles(config, M, 2 * N) * config.cluster_size / SMS
    ranked = sorted(ranking(shape), key=lambda entry: entry[0] + gates(entry[1]))
    pingpong = (c for _, c in ranked if isinstance(c, HopperConfig) and c.pingpong and c.BN % 32 == 0)
    return next(filter(families.is_assembled, pingpong), PINGPONG)


def choose_sparse(M: int, N: int, K: int, format: Format, b_k_major: bool = True) -> HopperConfig:
    """Choose for a 2:4 sparse A: the least roofline time, since few timings are recorded."""
    configs, itemsize = list[HopperConfig](), format.dtype.itemsize
    for (BM, BN), (cluster_m, cluster_n) in product(SPARSE_TILES, SPARSE_CLUSTERS):
        boxes = b_k_major or BN % (SWIZZLE_BYTES // itemsize * cluster_m) == 0
        if boxes and BM * (cluster_m - 1) < M and BN * (cluster_n - 1) < N:
            config = HopperConfig(BM=BM, BN=BN, cluster_m=cluster_m, cluster_n=cluster_n)
            metadata = BM // ROWS * THREADS * format.words * 4
            stage = BM * SWIZZLE_BYTES // 2 + metadata + BN * SWIZZLE_BYTES
            room = SMEM_BYTES - config.epilogue_bytes() - 2 * SMEM_RESERVED
            configs.append(replace(config, stages=min(8, room // stage)))
    shape = ProblemShape(M, N, K, itemsize, b_k_major=b_k_major, products=0.5)
    times = features(Menu.of(configs, [menu.WGMMA] * len(configs)), shape)["time"]
    return configs[int(times.argmin())]


def shape_of(problem: GemmProblem, copies: tuple[padding.Copy, ...] = ()) -> ProblemShape:
    """Shape of a problem after its copies: sizes and properties that decide about speed."""
    copied = padding.with_copies(problem, copies)
    return ProblemShape(
        copied.M,
        copied.N,
        copied.K,
        copied.dtype.itemsize,
        copied.batch or 1,
        copied.a_k_major,
        copied.b_k_major,
        misaligned=max(misalignment(copied.a), misalignment(copied.b)),
        store_by_threads=families.stores_without_tma(copied.d),
        has_epilogue=copied.epilogue is not None or copied.beta != 0,
        promoted=copied.dtype in (tc.e4m3, tc.e5m2) and copied.accumulate != FAST,
        out_bytes=copied.d.type.dtype.itemsize,
        products=3 if copied.multiplied_as == tc.f32 else 1,
        a_align=copied.a.type.align,
        b_align=copied.b.type.align,
        copies=len({copy.is_result for copy in copies}),
        copied_bytes=padding.copied_bytes(problem, copies),
    )


def misalignment(x: Description) -> float:
    """Share of the 128-byte pieces of rows or columns that straddle two lines of the L2 cache."""
    steps = [stride * x.type.dtype.itemsize for stride in x.strides[-2:] if stride != 1]
    return 1 - gcd(SWIZZLE_BYTES, *steps) / SWIZZLE_BYTES
