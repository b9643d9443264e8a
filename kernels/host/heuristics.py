"""Heuristics: choose the family of kernels, and the configuration with the least cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from math import gcd, inf
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, current_target, target_arch
from tensorcore_dsl.kernels.ampere.config import MAX_VECTORS, AmpereConfig
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.hopper.f32_gemm import f32_gemm, fragments_registers
from tensorcore_dsl.kernels.hopper.fp8_gemm import promoted_fp8_gemm
from tensorcore_dsl.kernels.hopper.promotion import part_width, promotion_registers
from tensorcore_dsl.kernels.hopper.sparse_packing import Format
from tensorcore_dsl.kernels.host import families, operands, padding, tuning_cache
from tensorcore_dsl.kernels.host.ampere_heuristics import (
    SHARED_BYTES,
    Lines,
    ampere_ranking,
    with_vectors,
)
from tensorcore_dsl.kernels.host.batch_invariance import is_allowed, needed_family
from tensorcore_dsl.kernels.host.candidates import as_loaded, fits, sparse_candidates
from tensorcore_dsl.kernels.host.cost_model import ranking, ranking_with_slices, sparse_cycles
from tensorcore_dsl.kernels.host.f32_heuristics import f32_ranking, has_tiles
from tensorcore_dsl.kernels.host.f64_heuristics import f64_ranking
from tensorcore_dsl.kernels.host.operands import GemmProblem
from tensorcore_dsl.kernels.host.problem_shape import SMS, ProblemShape, cluster_tiles
from tensorcore_dsl.kernels.host.summation import division

# How many times as long as the model says a product by wgmma takes whose operands were just copied.
# It is fitted to 617 problems on an H200, most of which need copies for wgmma.
THROUGH_COPIES = 1.07
# Seconds of an SM for each tile of a gated product that its gates take longer than plain results,
# of 30 timings of five sizes.
GATED_TILE = 0.9e-6

PINGPONG = HopperConfig(BN=128, pingpong=True, cluster_n=2).with_stages()
SKINNY_GROUPS = HopperConfig(BM=64, BN=128).with_stages()


def choose_family(problem: GemmProblem, family: str | None, config: Any) -> tuple[str, Any]:
    """The family that runs a problem, and its configuration if the caller or tuning gives one.

    If the caller leaves it open, sm_90a uses wgmma for every problem whose operands TMA can read,
    and for others where copies and wgmma take less time than mma.sync; of f32 products, small ones
    use mma.sync, and those of 1 to 4 rows or columns may use no tensor cores, which are of the
    family sm80, too. Emulation chooses as a GPU does, so that it gives its bits.
    """
    obstacles = families.obstacles(problem)
    not_sm80, not_sm90 = obstacles["sm80"], obstacles["sm90"]
    if config is None and problem.accumulate is None and not problem.row_reductions:
        config = _tuned_config(problem, family, obstacles)
    family = _requested_family(family, config) or needed_family(problem)
    if family == "sm80" and not_sm80:
        raise tc.ArgumentError(f"the mma.sync kernels cannot take this product: {not_sm80}")
    only_sm90 = family == "sm90" or not_sm80
    if only_sm90 and not_sm90:
        others = f"; nor can the mma.sync kernels: {not_sm80}" if not_sm80 and not family else ""
        raise tc.ArgumentError(f"the wgmma kernels cannot take this product: {not_sm90}{others}")
    if only_sm90 or (family is None and not not_sm90 and _prefers_sm90(problem.packed)):
        return "sm90", config
    return "sm80", config


def _prefers_sm90(problem: GemmProblem) -> bool:
    """Whether the wgmma kernels are the choice for a problem that both families can run.

    It is asked of operands without gaps, so that these change no bits: families divide K otherwise.
    """
    if problem.multiplied_as == tc.f32:
        return isinstance(choose_f32(problem), HopperConfig)
    if not is_open(problem):
        return True
    copies = choose_copies(problem, "sm90")
    others = choose_copies(problem, "sm80")
    ranked = ranked_ampere(padding.with_copies(problem, others))
    product = next((time for time, config in ranked if is_allowed(problem, config)), inf)
    return _wgmma_time(problem, copies) < padding.copy_time(problem, others) + product


def is_open(problem: GemmProblem) -> bool:
    """Whether kernels without wgmma may be faster: wgmma needs copies of the operands, or has to
    transpose their tiles, which others take as they lie; or there are kernels for so few rows or
    columns."""
    if problem.multiplied_as in families.VECTORS and min(problem.M, problem.N) <= MAX_VECTORS:
        return True
    shape = shape_of(problem)
    return bool(choose_copies(problem, "sm90") or shape.in_fragments or shape.transposed)


def _wgmma_time(problem: GemmProblem, copies: tuple[padding.Copy, ...]) -> float:
    """Expected microseconds of copies and of the product of these by wgmma."""
    ranked = ranking_with_slices(shape_of(padding.with_copies(problem, copies)))
    suits = lambda config: _takes_slices(problem, config) and is_allowed(problem, config)
    product = 1e6 * next((time for time, config in ranked if suits(config)), inf)
    if not copies:
        return product
    return padding.copy_time(problem, copies) + THROUGH_COPIES * product


def _takes_slices(problem: GemmProblem, config: HopperConfig) -> bool:
    """Whether a second kernel can add up the slices of K, if there are any: it adds f32 or s32, and
    reduces no rows."""
    return config.slices == 1 or not (problem.row_reductions or problem.accumulate == tc.f16)


def choose_copies(
    problem: GemmProblem, family: str, config: Any = None
) -> tuple[padding.Copy, ...]:
    """The copies that the kernels of a family get.

    They are those that are needed. Of tf32 operands that are not K-major, they are also those that
    take less time than tiles as they lie would, or that `config` needs, which takes none. The
    choice is that for operands without gaps, so that K is divided alike for all.
    """
    usual = aligned(problem)
    shape = shape_of(usual)
    places = [place for place, has in enumerate((shape.in_fragments, shape.transposed)) if has]
    if family == "sm80" or not places:
        return padding.gemm_copies(problem, family)
    options = [set(places[:n]) for n in range(len(places) + 1)] + [{places[-1]}]
    if config is not None:
        copied = lambda x: padding.with_copies(usual, padding.gemm_copies(usual, family, x))
        suits = lambda option: fits(config, shape_of(copied(option)))
        chosen = min(filter(suits, options), key=len, default=places)
        return padding.gemm_copies(problem, family, chosen)
    time = lambda option: _wgmma_time(usual, padding.gemm_copies(usual, family, option))
    return padding.gemm_copies(problem, family, min(options, key=time))


def aligned(problem: GemmProblem) -> GemmProblem:
    """The same of operands without gaps, as if all their rows or columns were aligned."""
    packed = problem.packed
    a, b = (x._replace(type=replace(x.type, align=16)) for x in (packed.a, packed.b))
    return replace(packed, a=a, b=b)


def choose_f32(problem: GemmProblem, kind: type | None = None) -> Any:
    """The configuration with the least expected time, of one family if `kind` is given.

    Of a family without a configuration that `problem.bits` allows, it is one that the plan then
    refuses.
    """

    def ranked(problem: GemmProblem, kind: Any) -> Iterator[Any]:
        return (config for config in ranked_f32(problem) if isinstance(config, kind))

    usual = ranked(problem.packed, kind or (HopperConfig, AmpereConfig))
    first = next(usual)
    if not is_allowed(problem, first):
        first = next((config for config in usual if is_allowed(problem, config)), first)
    return _divided_alike(problem, first, ranked(problem, type(first)))


def ranked_f32(problem: GemmProblem) -> Iterator[Any]:
    """Configurations of both families for f32, the fastest first."""
    shape = problem.M, problem.N, problem.K, problem.batch or 1
    readable = families.is_read_by_tma(problem.a) and families.is_read_by_tma(problem.b)
    ranking = f32_ranking(*shape, lines_of(problem), readable)
    return (config for _, config in ranking if _is_f32_feasible(problem, config))


def _is_f32_feasible(problem: GemmProblem, config: Any) -> bool:
    """Whether threads get their registers, and rows of D can be reduced.

    These must be rows of tiles, of which the kernel for operands of any alignment has those of as
    many columns.
    """
    if isinstance(config, AmpereConfig):
        return True
    if problem.row_reductions and (config.swapped or not has_tiles(config.BN, config.split_k)):
        return False
    if config.k_slabs == 2:
        return has_promotion_registers(config)
    return not fragments_registers(config) or families.gives_registers()


def _divided_alike(problem: GemmProblem, usual: Any, ranked: Iterator[Any]) -> Any:
    """The first configuration that divides sums as the usual one, the choice for packed operands.

    So neither gaps, alignment nor the layout of C change bits.
    """
    order = division(problem, usual)
    found = next((config for config in ranked if division(problem, config) == order), None)
    assert found is not None, f"nothing divides K of {problem} as {usual} does"
    return found


def alignment(problem: GemmProblem) -> tuple[int, int]:
    """Bytes that one copy of A, and of B, moves."""
    return problem.a.type.align, problem.b.type.align


def _requested_family(family: str | None, config: Any) -> str | None:
    """The family that the caller names, or whose configuration the caller gives."""
    if not isinstance(family, (str, type(None))) or family not in (None, *families.FAMILIES):
        raise tc.ArgumentError(f"unknown family {family!r}; sm80 and sm90 are known")
    if config is None:
        return family
    of_config = [name for name, kind in families.FAMILIES.items() if isinstance(config, kind)]
    if not of_config or family not in (None, *of_config):
        raise tc.ArgumentError(
            f"config is {config}; needed is a kernels.AmpereConfig for sm80, or a "
            f"kernels.HopperConfig for sm90" + (f", and {family} was asked for" if family else "")
        )
    return of_config[0]


def _tuned_config(problem: GemmProblem, family: str | None, obstacles: dict[str, str]) -> Any:
    """The configuration that was tuned on this GPU, if its family can run the problem."""
    if current_target() != "cuda" or not tuning_cache.entries():
        return None
    config = tuning_cache.recall(tuning_cache.key(problem, tuning_cache.device_name()))
    if config is None:
        return None
    tuned = families.family_of(config)
    if tuned == "sm90" and not families.is_assembled(config):
        return None
    runs = family in (None, tuned) and not obstacles[tuned] and is_allowed(problem, config)
    return config if runs else None


def choose(
    shape: ProblemShape, is_feasible: Callable[[HopperConfig], bool] = lambda config: True
) -> HopperConfig:
    """The configuration with the least cost of those that are feasible."""
    return next(config for _, config in ranking(shape) if is_feasible(config))


def choose_for(
    problem: GemmProblem, kernel: Any, needs_registers: bool, usual: GemmProblem
) -> HopperConfig:
    """The configuration for a problem of `gemm`; needs_registers: see HopperTraits.

    usual: the problem as the kernel gets it of operands without gaps, as which K is divided.
    """
    if kernel is f32_gemm:
        return choose_f32(problem, HopperConfig)  # type: ignore[no-any-return]

    shape = shape_of(problem)

    def is_feasible(config: HopperConfig, needs_registers: bool) -> bool:
        if not is_allowed(problem, config) or not _takes_slices(problem, config):
            return False
        if config.swapped and problem.row_reductions:
            return False  # rows of D are columns of its tiles
        needs_registers &= config.slices == 1  # else the second kernel has the epilogue
        if kernel is promoted_fp8_gemm:
            return has_promotion_registers(config)
        if config.streamk_units and problem.accumulate == tc.f16:
            return False  # stream-K exchanges accumulators in f32
        if needs_registers and (config.registers or config.consumers > 2):
            return False  # the accumulators fill all registers that a consumer can have
        limited = needs_registers and config.register_limited
        return families.gives_registers() if limited else families.is_assembled(config, shape)

    for_any_c = needs_registers or problem.reads_c
    usual_ranking = ranking_with_slices(shape_of(usual))
    first = next(config for _, config in usual_ranking if is_feasible(config, for_any_c))
    ranked = ranking_with_slices(shape)
    feasible = (config for _, config in ranked if is_feasible(config, needs_registers))
    return _divided_alike(problem, first, chain(feasible, [as_loaded(first, shape)]))  # type: ignore[no-any-return]


def choose_promoted(
    shape: ProblemShape, is_feasible: Callable[[HopperConfig], bool] = lambda config: True
) -> HopperConfig:
    """The configuration for promoted fp8 accumulators, which take registers beside wgmma's."""
    ranked = (config for _, config in ranking(replace(shape, promoted=True)))
    return next(c for c in ranked if is_feasible(c) and has_promotion_registers(c))


def has_promotion_registers(config: HopperConfig) -> bool:
    """Whether consumers get the registers that promotion needs."""
    return not promotion_registers(config, part_width(config)) or families.gives_registers()


def choose_grouped(rows: int, groups: int) -> HopperConfig:
    """The configuration for groups of rows: flat tiles where a group has few rows on average."""
    return SKINNY_GROUPS if rows <= 64 * groups else PINGPONG


def choose_swiglu(M: int, N: int, K: int) -> HopperConfig:
    """The configuration for gated products: ping-pong; half of a tile's columns are of the gate."""
    shape = ProblemShape(M, 2 * N, K, has_epilogue=True)

    def time(entry: tuple[float, HopperConfig]) -> float:
        seconds, config = entry
        tiles = cluster_tiles(config, M, 2 * N) * config.cluster_size
        return seconds + GATED_TILE * tiles / SMS

    ranked = (config for _, config in sorted(ranking(shape), key=time))
    suits = lambda config: config.pingpong and config.BN % 32 == 0 and families.is_assembled(config)
    return next(filter(suits, ranked), PINGPONG)


def choose_sparse(M: int, N: int, K: int, format: Format, b_k_major: bool = True) -> HopperConfig:
    """The configuration for a 2:4 sparse A."""
    configs = sparse_candidates(M, N, format, b_k_major)
    return min(configs, key=lambda config: sparse_cycles(config, M, N, K, format))


def is_plain(config: HopperConfig) -> bool:
    """Cooperative, of two consumers at most; no split-K, slices of K, stream-K, skinny A, swapped
    operands."""
    special = config.pingpong or config.split_k > 1 or config.valid_m or config.streamk_units
    special = special or config.slices > 1
    special = special or config.swapped
    return not special and config.consumers <= 2


def shape_of(problem: GemmProblem) -> ProblemShape:
    """What the cost model needs to know of a problem."""
    return ProblemShape(
        problem.M, problem.N, problem.K, problem.dtype.itemsize, problem.batch or 1,
        problem.a_k_major, problem.b_k_major,
        misaligned=max(misalignment(problem.a), misalignment(problem.b)),
        store_by_threads=families.stores_without_tma(problem.d),
        has_epilogue=problem.epilogue is not None or problem.beta != 0,
        promoted=problem.dtype in (tc.e4m3, tc.e5m2) and problem.accumulate != operands.FAST,
        out_bytes=problem.d.type.dtype.itemsize,
    )  # fmt: skip


def misalignment(x: Description) -> float:
    """Part of the pieces of 128 bytes of rows or columns that lie in two lines of the L2 cache."""
    steps = [stride * x.type.dtype.itemsize for stride in x.strides[-2:] if stride != 1]
    return 1 - gcd(SWIZZLE_BYTES, *steps) / SWIZZLE_BYTES


def choose_ampere(problem: GemmProblem) -> AmpereConfig:
    """The configuration of the kernel of the family sm80 for a problem."""
    if problem.multiplied_as == tc.f32:
        return choose_f32(problem, AmpereConfig)  # type: ignore[no-any-return]
    usual = ranked_ampere(problem.packed)
    first = next(config for _, config in usual if is_allowed(problem, config))
    ranked = (config for _, config in ranked_ampere(problem))
    return _divided_alike(problem, first, ranked)  # type: ignore[no-any-return]


def ranked_ampere(problem: GemmProblem) -> tuple[tuple[float, AmpereConfig], ...]:
    """(expected microseconds, configuration), the fastest first, for types other than f32.

    Partial sums of split-K are never f16.
    """
    if problem.multiplied_as == tc.f64 and families.has_wgmma():
        sizes = problem.M, problem.N, problem.K
        ranking = f64_ranking(*sizes, alignment(problem))
        return with_vectors(ranking, tc.f64, *sizes, lines_of(problem))
    room = min(target_arch().shared_kib * 1024, SHARED_BYTES)
    parts = problem.accumulate != tc.f16
    return ampere_ranking(
        problem.multiplied_as, problem.M, problem.N, problem.K, lines_of(problem), parts, room
    )


def lines_of(problem: GemmProblem) -> Lines:
    """How the operands of a problem lie, and its result."""
    k_major = problem.a_k_major, problem.b_k_major
    return Lines(alignment(problem), k_major, problem.d.type.dtype.itemsize)
