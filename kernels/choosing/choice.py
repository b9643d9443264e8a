"""Choose the family of kernels, the copies of operands, and the configuration of a product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, product
from math import gcd, inf
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, current_target, target_arch
from tensorcore_dsl.kernels.ampere.config import MAX_VECTORS, AmpereConfig
from tensorcore_dsl.kernels.choosing import menu
from tensorcore_dsl.kernels.choosing.features import SHARED_BYTES, features
from tensorcore_dsl.kernels.choosing.menu import Config, Menu, as_loaded, fits
from tensorcore_dsl.kernels.choosing.ranking import ranking
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, SMEM_RESERVED, SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.hopper.f32_gemm import f32_gemm, fragments_registers
from tensorcore_dsl.kernels.hopper.fp8_gemm import promoted_fp8_gemm
from tensorcore_dsl.kernels.hopper.promotion import part_width, promotion_registers
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, THREADS, Format
from tensorcore_dsl.kernels.host import families, operands, padding, tuning_cache
from tensorcore_dsl.kernels.host.batch_invariance import is_allowed, needed_family
from tensorcore_dsl.kernels.host.operands import GemmProblem
from tensorcore_dsl.kernels.host.problem_shape import SMS, ProblemShape, cluster_tiles
from tensorcore_dsl.kernels.host.summation import division

# Microseconds of an SM that the gates of a tile of a gated product take beyond plain results, from
# 30 timings of five sizes.
GATED_TILE = 0.9

PINGPONG = HopperConfig(BN=128, pingpong=True, cluster_n=2).with_stages()
SKINNY_GROUPS = HopperConfig(BM=64, BN=128).with_stages()
SPARSE_TILES = ((128, 256), (192, 192), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64))
SPARSE_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))
PARTS_COLUMNS = 32, 64, 96, 128, 192, 256  # of tiles of the f32 kernel with operands in parts


def choose_family(problem: GemmProblem, family: str | None, config: Any) -> tuple[str, Any]:
    """The family that runs a problem, and its configuration if the caller or tuning gives one.

    If the caller leaves it open, sm_90a uses wgmma for every problem whose operands TMA can read.
    For others, for f32, and for 1 to 4 rows or columns, the least expected time decides. Emulation
    chooses as a GPU does, so that it gives its bits.
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
        others = f"; nor can the mma.sync kernels: {not_sm80}" if not_sm80 and not family else ""
        raise tc.ArgumentError(f"the wgmma kernels cannot take this product: {not_sm90}{others}")
    if only_sm90 or (family is None and not not_sm90 and _prefers_sm90(problem.packed)):
        return "sm90", config
    return "sm80", config


def _prefers_sm90(problem: GemmProblem) -> bool:
    """Whether wgmma is the choice; the problem is packed, so strides do not change the bits."""
    if problem.multiplied_as == tc.f32:
        return isinstance(choose_config(problem, "sm90", "sm80"), HopperConfig)
    time = lambda family: _time(problem, family, choose_copies(problem, family))
    return not is_open(problem) or time("sm90") <= time("sm80")


def is_open(problem: GemmProblem) -> bool:
    """Whether kernels without wgmma may be faster: for few rows or columns, or where wgmma needs
    copies of the operands, or transposes their tiles."""
    if problem.multiplied_as in families.VECTORS and min(problem.M, problem.N) <= MAX_VECTORS:
        return True
    shape = shape_of(problem)
    return bool(choose_copies(problem, "sm90") or shape.in_fragments or shape.transposed)


def _time(problem: GemmProblem, family: str, copies: tuple[padding.Copy, ...]) -> float:
    """Expected microseconds of copies and of their product by a family."""
    ranked = ranked_configs(problem, kinds_of(problem, family), copies)
    return next((time for time, config in ranked if is_allowed(problem, config)), inf)


def ranked_configs(
    problem: GemmProblem, kinds: tuple[int, ...], copies: tuple[padding.Copy, ...] = ()
) -> Iterator[tuple[float, Any]]:
    """Yield (expected microseconds, configuration) of all that run a problem, the fastest first."""
    ranked = ranking(shape_of(problem, copies), kinds)
    return (entry for entry in ranked if _is_feasible(problem, entry[1]))


def _is_feasible(problem: GemmProblem, config: Config) -> bool:
    """Whether a kernel stores the sums, reduces the rows, and fits the target.

    Sums of parts of K are f32 or s32. Row reductions need rows of tiles, and for f32 a number of
    columns that the kernels for operands of any alignment have, too.
    """
    in_f16, reduces = problem.accumulate == tc.f16, bool(problem.row_reductions)
    if isinstance(config, AmpereConfig):
        tile = config.stages * (config.BM + config.BN) * config.BK * problem.dtype.itemsize
        room = min(target_arch().shared_kib * 1024, SHARED_BYTES)
        fitting = config.is_of_vectors or tile + SMEM_RESERVED <= room
        return fitting and (config.split_k == 1 or not in_f16)
    if config.swapped and reduces:
        return False
    if problem.multiplied_as != tc.f32:
        return True
    if reduces and (config.BN not in PARTS_COLUMNS or config.BN % (16 * config.split_k)):
        return False
    if config.k_slabs == 2:
        return has_promotion_registers(config)
    return not fragments_registers(config) or families.gives_registers()


def kinds_of(problem: GemmProblem, *names: str) -> tuple[int, ...]:
    """The kinds of kernels of these families that can run a problem."""
    dtype, found = problem.multiplied_as, list[int]()
    if "sm90" in names:
        readable = all(families.is_read_by_tma(x) for x in (problem.a, problem.b))
        of_f32 = [menu.PARTS, menu.FRAGMENTS] if readable else [menu.PARTS]
        found += of_f32 if dtype == tc.f32 else [menu.WGMMA]
    if "sm80" in names:
        found.append(menu.F64 if dtype == tc.f64 and families.has_wgmma() else menu.MMA)
        if dtype in families.VECTORS and problem.accumulate != tc.f16:
            found.append(menu.VECTORS)
    return tuple(found)


def choose_copies(problem: GemmProblem, family: str, config: Any = None) -> tuple[padding.Copy, ...]:
    """The copies that the kernels of a family get.

    tf32 operands that are not K-major are also copied where this takes less time, or where `config`
    cannot load them. Choose for contiguous operands, so that strides do not change the bits.
    """
    usual = aligned(problem)
    shape = shape_of(usual)
    places = [place for place, has in enumerate((shape.in_fragments, shape.transposed)) if has]
    if family == "sm80" or not places:
        return padding.gemm_copies(problem, family)
    options = [set(places[:n]) for n in range(len(places) + 1)] + [{places[-1]}]
    copies = lambda option: padding.gemm_copies(usual, family, option)
    if config is not None:
        suits = lambda option: fits(config, shape_of(usual, copies(option)))
        chosen = min(filter(suits, options), key=len, default=places)
        return padding.gemm_copies(problem, family, chosen)
    fastest = min(options, key=lambda option: _time(usual, family, copies(option)))
    return padding.gemm_copies(problem, family, fastest)


def aligned(problem: GemmProblem) -> GemmProblem:
    """The problem with operands without gaps, as if all their rows or columns were aligned."""
    packed = problem.packed
    a, b = (x._replace(type=replace(x.type, align=16)) for x in (packed.a, packed.b))
    return replace(packed, a=a, b=b)


def choose_config(problem: GemmProblem, *names: str) -> Any:
    """The fastest configuration of these families, for f32 or without wgmma.

    Of a family without a configuration that `problem.bits` allows, it is one that the plan then
    refuses.
    """
    ranked = lambda of, *names: (c for _, c in ranked_configs(of, kinds_of(of, *names)))
    usual = ranked(problem.packed, *names)
    first = next(usual)
    if not is_allowed(problem, first):
        first = next((config for config in usual if is_allowed(problem, config)), first)
    return _divided_alike(problem, first, ranked(problem, families.family_of(first)))


def _divided_alike(problem: GemmProblem, usual: Any, ranked: Iterator[Any]) -> Any:
    """The first configuration that divides sums as the usual one, the choice for packed operands.

    So neither gaps, alignment nor the layout of C change bits.
    """
    order = division(problem, usual)
    found = next((config for config in ranked if division(problem, config) == order), None)
    assert found is not None, f"nothing divides K of {problem} as {usual} does"
    return found


def _tuned_config(problem: GemmProblem, family: str | None, obstacles: dict[str, str]) -> Any:
    """The configuration that was tuned on this GPU, if its family can run the problem."""
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
    """The fastest feasible configuration."""
    return next(config for _, config in ranking(shape) if is_feasible(config))  # type: ignore[return-value,arg-type]


def choose_for(problem: GemmProblem, kernel: Any, needs_registers: bool, usual: GemmProblem) -> HopperConfig:
    """The configuration for a problem of `gemm`; needs_registers: see HopperTraits.

    usual: the problem as the kernel gets it of operands without gaps, as which K is divided.
    """
    if kernel is f32_gemm:
        return choose_config(problem, "sm90")  # type: ignore[no-any-return]
    shape = shape_of(problem)

    def has_registers(config: HopperConfig, needs_registers: bool) -> bool:
        if kernel is promoted_fp8_gemm:
            return has_promotion_registers(config)
        if needs_registers and (config.registers or config.consumers > 2):
            return False  # the accumulators fill all registers that a consumer can have
        limited = needs_registers and config.register_limited
        return families.gives_registers() if limited else families.is_assembled(config, shape)

    def ranked(of: GemmProblem, needs_registers: bool) -> Iterator[HopperConfig]:
        allowed = (c for _, c in ranked_configs(of, (menu.WGMMA,)) if is_allowed(problem, c))
        return (config for config in allowed if has_registers(config, needs_registers))

    first = next(ranked(usual, needs_registers or problem.reads_c))
    own = chain(ranked(problem, needs_registers), [as_loaded(first, shape)])
    return _divided_alike(problem, first, own)  # type: ignore[no-any-return]


def choose_promoted(
    shape: ProblemShape, is_feasible: Callable[[HopperConfig], bool] = lambda config: True
) -> HopperConfig:
    """The configuration for promoted fp8 accumulators, which take registers beside wgmma's."""
    suits = lambda config: is_feasible(config) and has_promotion_registers(config)
    return choose(replace(shape, promoted=True), suits)


def has_promotion_registers(config: HopperConfig) -> bool:
    """Whether consumers get the registers that promotion needs."""
    return not promotion_registers(config, part_width(config)) or families.gives_registers()


def choose_grouped(rows: int, groups: int) -> HopperConfig:
    """The configuration for groups of rows: flat tiles where a group has few rows on average."""
    return SKINNY_GROUPS if rows <= 64 * groups else PINGPONG


def choose_swiglu(M: int, N: int, K: int) -> HopperConfig:
    """The configuration for gated products: ping-pong; half of a tile's columns are of the gate."""
    shape = ProblemShape(M, 2 * N, K, has_epilogue=True)
    gates = lambda config: GATED_TILE * cluster_tiles(config, M, 2 * N) * config.cluster_size / SMS
    ranked = sorted(ranking(shape), key=lambda entry: entry[0] + gates(entry[1]))
    found = (c for _, c in ranked if isinstance(c, HopperConfig) and c.pingpong and c.BN % 32 == 0)
    return next(filter(families.is_assembled, found), PINGPONG)


def choose_sparse(M: int, N: int, K: int, format: Format, b_k_major: bool = True) -> HopperConfig:
    """The configuration for a 2:4 sparse A with the least roofline time; few timings are recorded."""
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
    """What decides about the speed of a problem that the kernels get through copies."""
    seen = padding.with_copies(problem, copies)
    return ProblemShape(
        seen.M,
        seen.N,
        seen.K,
        seen.dtype.itemsize,
        seen.batch or 1,
        seen.a_k_major,
        seen.b_k_major,
        misaligned=max(misalignment(seen.a), misalignment(seen.b)),
        store_by_threads=families.stores_without_tma(seen.d),
        has_epilogue=seen.epilogue is not None or seen.beta != 0,
        promoted=seen.dtype in (tc.e4m3, tc.e5m2) and seen.accumulate != operands.FAST,
        out_bytes=seen.d.type.dtype.itemsize,
        products=3 if seen.multiplied_as == tc.f32 else 1,
        a_align=seen.a.type.align,
        b_align=seen.b.type.align,
        copies=len({copy.is_result for copy in copies}),
        copied_bytes=padding.copied_bytes(problem, copies),
    )


def misalignment(x: Description) -> float:
    """Part of the pieces of 128 bytes of rows or columns that lie in two lines of the L2 cache."""
    steps = [stride * x.type.dtype.itemsize for stride in x.strides[-2:] if stride != 1]
    return 1 - gcd(SWIZZLE_BYTES, *steps) / SWIZZLE_BYTES
