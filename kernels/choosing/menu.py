"""The menu: all configurations that `gemm` chooses among, and which of them can run a problem.

The menu is one list for all problems, so that the kernels that a program needs stay few. It is
stored with the trees; `python -m benchmarks learn` selects it among the measured configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tensorcore_dsl.kernels.ampere.config import MAX_VECTORS, AmpereConfig, VectorConfig
from tensorcore_dsl.kernels.choosing.trees import stored
from tensorcore_dsl.kernels.hopper.config import (
    FRAGMENT_REGISTERS,
    FRAGMENT_ROOM,
    SWIZZLE_BYTES,
    HopperConfig,
    promoted_columns,
    resident_ctas,
)
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape, active_clusters
from tensorcore_dsl.kernels.problem.summation import Config
from tensorcore_dsl.kernels.sizes import cdiv

# Kinds of kernels. WGMMA: all types but f32. SPLIT_F32, FRAGMENTS: f32 by wgmma, from parts in memory or
# from f32 operands. MMA: mma.sync. F64: mma.sync of f64 on Hopper. VECTORS: no tensor cores.
KINDS = WGMMA, SPLIT_F32, FRAGMENTS, MMA, F64, VECTORS = range(6)
# Name of a table of configurations -> class. Its order is that of the menu.
CONFIGS: dict[str, type[Config]] = {"hopper": HopperConfig, "ampere": AmpereConfig, "vector": VectorConfig}

MIN_SPLIT_SLABS = 4  # 128-byte slabs of K for each CTA of a split-K cluster, at least
BOX = 64  # columns of a TMA box of MN-major 16-bit elements
TRANSPOSED_BOX = 32  # columns of a TMA box of MN-major 32-bit elements
# Consumers -> most registers of a thread for accumulators with promoted products, and for
# accumulators with fragments of A. Two consumers get more registers than the producer.
PROMOTED_REGISTERS = {1: 208, 2: 208, 3: 96}
MAX_FRAGMENT_REGISTERS = FRAGMENT_ROOM | {2: 144}
F32_STEP = 32  # elements of K in a step of the f32 kernels
MAX_STREAMK_PEERS, MIN_STREAMK_STEPS = 8, 4  # f64: units that share a tile, steps of a unit
MAX_VECTOR_REGISTERS = 1 << 16  # registers of a CTA
MIN_VECTOR_LINES, MIN_VECTOR_K = 64, 256  # Smaller products fill no tile of vectors.


@dataclass(frozen=True)
class Menu:
    """Configurations, their kinds and their fields, as arrays.

    BK and stages of a VectorConfig are its chains and unroll. There are other columns, too:

    boxed, boxed_stages : columns of 16-bit elements in whole boxes, and the stages that then fit
    uneven : consumers have more registers than the producer
    promotable, in_fragments : registers suffice for promoted products, for fragments of A
    clusters : clusters that run at a time, of wgmma kernels
    menu_rank : position in the menu, from 0 for the first of a kind to 1 for the last
    """

    configs: tuple[Config, ...]
    columns: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def select(self, chosen: Any) -> Menu:
        """Select the configurations of a mask."""
        indices = np.flatnonzero(chosen)
        configs = tuple(self.configs[index] for index in indices)
        return Menu(configs, {name: column[indices] for name, column in self.columns.items()})

    @classmethod
    def of(cls, configs: Sequence[Config], kinds: Sequence[int]) -> Menu:
        rows = [_columns_of(config) | {"kind": kind} for config, kind in zip(configs, kinds)]
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}
        return cls(tuple(configs), columns)


FIELDS = (
    "BM",
    "BN",
    "BK",
    "WM",
    "WN",
    "stages",
    "threads",
    "cluster_m",
    "cluster_n",
    "cluster_size",
    "split_k",
    "streamk_units",
    "k_slabs",
    "pingpong",
    "swap_ab",
    "consumers",
    "along_k",
)


def _columns_of(config: Config) -> dict[str, Any]:
    fields = {name: getattr(config, name, 0) for name in FIELDS}
    if isinstance(config, VectorConfig):
        fields |= {"BK": config.chains, "WM": config.BM, "WN": config.BN, "stages": config.unroll}
    if not isinstance(config, HopperConfig):
        return fields | {
            "boxed": config.BN,
            "boxed_stages": fields["stages"],
            "uneven": False,
            "promotable": False,
            "in_fragments": False,
            "clusters": 0,
            "resident": resident_ctas(config) if isinstance(config, AmpereConfig) else 1,
        }
    boxed = cdiv(config.BN, BOX) * BOX
    blocks, registers = config.rows_per_consumer // 64, (config.BN + promoted_columns(config)) // 2
    with_fragments = blocks * (config.BN // 2 + FRAGMENT_REGISTERS * config.k_slabs)
    return fields | {
        "WM": config.rows_per_consumer,
        "WN": config.BN,
        "boxed": boxed,
        "boxed_stages": config.stages_of(boxed),
        "uneven": bool(config.registers),
        "promotable": registers <= PROMOTED_REGISTERS.get(config.consumers, 0),
        "in_fragments": with_fragments <= MAX_FRAGMENT_REGISTERS.get(config.consumers, 0),
        "clusters": active_clusters(config),
        "resident": 1,
    }


def config_of(kind: type[Config], row: Sequence[int]) -> Config:
    """Make a configuration from the values of its fields, in their order; flags are 0 or 1."""
    pairs = zip(row, vars(kind()).values(), strict=True)
    values: list[Any] = [bool(x) if isinstance(default, bool) else x for x, default in pairs]
    return kind(*values)


@lru_cache(maxsize=1)
def menu() -> Menu:
    """Load all configurations."""
    rows = [(kind, *row) for name, kind in CONFIGS.items() for row in stored()[name].tolist()]
    configs = [config_of(kind, values) for kind, _, *values in rows]
    return Menu.of(configs, [number for _, number, *_ in rows])


@lru_cache(maxsize=64)
def menu_of(kinds: tuple[int, ...], itemsize: int) -> Menu:
    """Select the configurations of these kinds, with BK for elements of `itemsize` bytes.

    A step of mma.sync has 128 bytes of K. The menu stores it as a number of 16-bit elements.
    """
    selected = menu().select(np.isin(menu().kind, kinds))
    configs = [
        replace(config, BK=2 * config.BK // itemsize)
        if kind == MMA and isinstance(config, AmpereConfig)
        else config
        for config, kind in zip(selected.configs, selected.kind, strict=True)
    ]
    rank = np.zeros(len(configs))
    for kind in kinds:
        rank[selected.kind == kind] = np.linspace(0, 1, np.sum(selected.kind == kind))
    chosen = Menu.of(configs, selected.kind.tolist())
    return replace(chosen, columns=chosen.columns | {"menu_rank": rank})


def candidates(shape: ProblemShape, kinds: tuple[int, ...]) -> Menu:
    """Select the configurations of these kinds that can run a problem."""
    every = menu_of(kinds, shape.itemsize)
    return every.select(is_candidate(every, shape))


def is_candidate(menu: Menu, shape: ProblemShape) -> Any:
    """Mask of the configurations that can run a problem and leave no CTA without work."""
    rules = {
        WGMMA: _suits_wgmma,
        SPLIT_F32: _suits_f32,
        FRAGMENTS: _suits_f32,
        MMA: _suits_mma,
        F64: _suits_f64,
        VECTORS: _suits_vectors,
    }
    suitable = np.zeros(len(menu.configs), bool)
    for kind in set(menu.kind.tolist()):
        has_kind, suits = menu.kind == kind, rules[kind]
        configs = menu.select(has_kind)
        suitable[has_kind] = np.where(configs.swap_ab, suits(configs, shape.swapped), suits(configs, shape))
    # Swap AB stores transposed tiles: of 16-bit or tf32 results, without an epilogue.
    refused = shape.out_bytes != (4 if shape.itemsize == 4 else 2) or shape.has_epilogue
    return suitable & ~(refused & (menu.kind == WGMMA) & (menu.swap_ab > 0))


def _suits_wgmma(menu: Menu, shape: ProblemShape) -> Any:
    """Mask of wgmma configurations: each CTA of a cluster has steps of K, and rows or columns of D."""
    M, N = shape.M, shape.N
    suits = is_loaded(menu, shape)
    suits &= (menu.BM * (menu.cluster_m - 1) < M) & (menu.BN * (menu.cluster_n - 1) < N)
    suits &= (menu.BM < M + 64) & (max(N, 64) + 64 >= menu.BN)
    suits &= (menu.split_k == 1) | (shape.k_slabs >= MIN_SPLIT_SLABS * menu.split_k)
    if shape.itemsize == 1 and shape.out_bytes != 2:  # wgmma of s8 lacks most odd multiples of 8
        suits &= menu.BN % 16 == 0
    if shape.promoted:
        suits &= (menu.pingpong == 0) & (menu.promotable > 0)
    if shape.has_epilogue:
        suits &= menu.consumers <= 2
    return suits


def is_loaded(menu: Menu, shape: ProblemShape) -> Any:
    """Mask of the wgmma configurations that can load the operands without copies.

    TMA loads an MN-major operand in boxes of 128 bytes of its rows or columns. wgmma may leave out a
    part of the last box of 16-bit columns. Fragments of A need registers besides the accumulators,
    and so do warps that transpose tiles. `setmaxnreg`, or a third consumer, takes these registers.
    """
    width = SWIZZLE_BYTES // shape.itemsize
    loaded = np.ones(len(menu.configs), bool)
    if not shape.b_k_major and shape.itemsize == 2:
        loaded &= (menu.boxed == menu.BN) | (menu.boxed_stages >= 2 + menu.k_slabs)
    elif not shape.b_k_major:
        loaded &= menu.BN % width == 0
    if shape.in_fragments:
        loaded &= (menu.uneven == 0) & (menu.in_fragments > 0)
    if shape.transposed:
        loaded &= (menu.uneven == 0) & (menu.consumers <= 2)
    return loaded


def _suits_f32(menu: Menu, shape: ProblemShape) -> Any:
    suits = (menu.BM * (menu.cluster_m - 1) < shape.M) & (menu.BN * (menu.cluster_n - 1) < shape.N)
    suits &= (menu.split_k == 1) | (2 * menu.split_k * F32_STEP <= shape.K)
    as_they_lie = menu.kind == FRAGMENTS
    suits &= ~as_they_lie | (menu.BN < shape.N + 32)
    if not shape.b_k_major:  # warps transpose blocks of 32 columns
        suits &= ~as_they_lie | (menu.BN % (TRANSPOSED_BOX * menu.cluster_m) == 0)
    return suits


def _suits_mma(menu: Menu, shape: ProblemShape) -> Any:
    """Mask of mma.sync configurations: wide tiles have registers for 16-byte copies only, not for f32."""
    accumulators = menu.WM * menu.WN // 32 * (2 if shape.itemsize == 8 else 1)
    aligned = min(shape.a_align, shape.b_align)
    limit = 32 if shape.products > 1 or aligned < 4 else 64 if aligned < 16 else 128
    suits = (menu.split_k == 1) | (3 * menu.split_k * menu.BK <= shape.K)
    return suits & (accumulators <= limit)


def _suits_f64(menu: Menu, shape: ProblemShape) -> Any:
    """Mask of f64 configurations: parts of K have three steps, and stream-K has an incomplete wave."""
    tiles = cdiv(shape.M, menu.BM) * cdiv(shape.N, menu.BN)
    units, steps = np.maximum(menu.streamk_units, 1), tiles * cdiv(shape.K, menu.BK)
    shared = (tiles % units > 0) & (units <= MAX_STREAMK_PEERS * tiles)
    shared &= steps >= MIN_STREAMK_STEPS * units
    suits = (menu.split_k == 1) | (3 * menu.split_k * menu.BK <= shape.K)
    return suits & ((menu.streamk_units == 0) | shared)


def _suits_vectors(menu: Menu, shape: ProblemShape) -> Any:
    """Mask of vector configurations: tiles have as many vectors as the problem, along the lines' axis."""
    vectors, lines = sorted((shape.M, shape.N))
    if vectors > MAX_VECTORS or lines < MIN_VECTOR_LINES or shape.K < MIN_VECTOR_K:
        return np.zeros(len(menu.configs), bool)
    along_k = shape.b_k_major if shape.M < shape.N else shape.a_k_major
    few = menu.BM if shape.M < shape.N else menu.BN
    tall = (menu.BM < menu.BN) == (shape.M < shape.N)
    suits = tall & (few == 1 << (vectors - 1).bit_length()) & (menu.along_k == along_k)
    lines_of_thread = np.where(
        along_k, menu.BM + menu.BN - few, np.maximum((menu.BM + menu.BN - few) // 32, 1)
    )
    elements = (
        2 * menu.stages * (lines_of_thread + few) + few * lines_of_thread
    )  # loaded and summed by a thread
    registers = 24 + elements * (2 if shape.itemsize == 8 else 1)
    return suits & (menu.threads * registers <= MAX_VECTOR_REGISTERS)


def as_loaded(config: HopperConfig, shape: ProblemShape) -> HopperConfig:
    """Reduce the stages to those that fit with the boxes of B in its layout."""
    computed = shape.swapped if config.swap_ab else shape
    most = config.stages_of(config.loaded_columns(computed.b_k_major, computed.itemsize))
    return config if config.stages <= most else replace(config, stages=most)


def fits(config: HopperConfig, shape: ProblemShape) -> bool:
    """Whether a wgmma configuration can load the operands of a problem."""
    computed = shape.swapped if config.swap_ab else shape
    return bool(is_loaded(Menu.of((config,), (WGMMA,)), computed)[0])
