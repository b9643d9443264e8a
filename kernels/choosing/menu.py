"""The menu: all configurations that `gemm` chooses among, and which of them can run a problem.

The menu is one list for all problems, so that the kernels that a program needs stay few. It is
stored beside the trees; `python -m benchmarks learn` selects it among the measured configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tensorcore_dsl.kernels.ampere.config import ALONG_K, MAX_VECTORS, AmpereConfig
from tensorcore_dsl.kernels.choosing.trees import stored
from tensorcore_dsl.kernels.hopper.config import (
    FRAGMENT_REGISTERS,
    FRAGMENT_ROOM,
    SWIZZLE_BYTES,
    HopperConfig,
)
from tensorcore_dsl.kernels.hopper.f64_gemm import resident_ctas
from tensorcore_dsl.kernels.hopper.promotion import part_width
from tensorcore_dsl.kernels.host.problem_shape import SMS, ProblemShape, active_clusters

# Kinds of kernels: wgmma; of f32, with operands in parts, and as they lie; mma.sync; mma.sync of
# f64 on Hopper; vectors without tensor cores.
KINDS = WGMMA, PARTS, FRAGMENTS, MMA, F64, VECTORS = range(6)
Config = HopperConfig | AmpereConfig

MIN_SPLIT_SLABS = 4  # 128-byte slabs of K for each CTA of a split-K cluster, at least
BOX = 64  # columns of a TMA box of 16-bit elements that are not K-major
TRANSPOSED_BOX = 32  # columns of a TMA box of 32-bit elements that are not K-major
# Consumers -> registers of a thread, at most: accumulators and promoted products; accumulators and
# fragments of A. Two consumers get more registers than the producer.
PROMOTED_REGISTERS = {1: 208, 2: 208, 3: 96}
MAX_FRAGMENT_REGISTERS = FRAGMENT_ROOM | {2: 144}
F32_STEP = 32  # elements of K in a step of the f32 kernels
MAX_STREAMK_PEERS, MIN_STREAMK_STEPS = 8, 4  # of f64: units that share a tile; steps of a unit
MAX_VECTOR_REGISTERS = 1 << 16  # of a CTA
MIN_VECTOR_LINES, MIN_VECTOR_K = 64, 256  # smaller products fill no tile of vectors


@dataclass(frozen=True)
class Menu:
    """Configurations, their kinds and their fields, as arrays.

    Beside the fields: boxed: columns in whole boxes of 16-bit
    elements; boxed_stages: stages that fit then. uneven: consumers have more registers than the
    producer. promotable, in_fragments: the accumulators leave registers for promoted products, for
    fragments of A. clusters: that run at a time. place: in the menu, from 0 for the first of a kind
    to 1 for the last.
    """

    configs: tuple[Config, ...]
    columns: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def select(self, chosen: Any) -> Menu:
        """The configurations that a mask chooses."""
        places = np.flatnonzero(chosen)
        configs = tuple(self.configs[place] for place in places)
        return Menu(configs, {name: column[places] for name, column in self.columns.items()})

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
    "swapped",
    "consumers",
)


def _columns_of(config: Config) -> dict[str, Any]:
    found = {name: getattr(config, name, 0) for name in FIELDS}
    if isinstance(config, AmpereConfig):
        return found | {
            "boxed": config.BN,
            "boxed_stages": config.stages,
            "uneven": False,
            "promotable": False,
            "in_fragments": False,
            "clusters": SMS,
            "resident": resident_ctas(config),
        }
    boxed = -(-config.BN // BOX) * BOX
    blocks, registers = config.rows_per_consumer // 64, (config.BN + part_width(config)) // 2
    with_fragments = blocks * (config.BN // 2 + FRAGMENT_REGISTERS * config.k_slabs)
    return found | {
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
    """The configuration with these values of its fields, in their order; flags are 0 or 1."""
    pairs = zip(row, vars(kind()).values(), strict=True)
    values: list[Any] = [bool(x) if isinstance(usual, bool) else x for x, usual in pairs]
    return kind(*values)


@lru_cache(maxsize=1)
def menu() -> Menu:
    """All configurations."""
    of = {"hopper": HopperConfig, "ampere": AmpereConfig}
    rows = [(of[name], *row) for name in of for row in stored()[name].tolist()]
    configs = [config_of(kind, values) for kind, _, *values in rows]
    return Menu.of(configs, [number for _, number, *_ in rows])


@lru_cache(maxsize=64)
def menu_of(kinds: tuple[int, ...], itemsize: int) -> Menu:
    """The configurations of these kinds, for elements of so many bytes.

    A step of mma.sync has 128 bytes of K, which the menu stores as elements of 16 bits.
    """
    found = menu().select(np.isin(menu().kind, kinds))
    configs = [
        replace(config, BK=2 * config.BK // itemsize)
        if kind == MMA and isinstance(config, AmpereConfig)
        else config
        for config, kind in zip(found.configs, found.kind, strict=True)
    ]
    place = np.zeros(len(configs))
    for kind in kinds:
        place[found.kind == kind] = np.linspace(0, 1, np.sum(found.kind == kind))
    chosen = Menu.of(configs, found.kind.tolist())
    return replace(chosen, columns=chosen.columns | {"place": place})


def candidates(shape: ProblemShape, kinds: tuple[int, ...]) -> Menu:
    """The configurations of these kinds that can run a problem."""
    every = menu_of(kinds, shape.itemsize)
    return every.select(is_candidate(every, shape))


def _ceil(a: Any, b: Any) -> Any:
    return -(-a // b)


def is_candidate(menu: Menu, shape: ProblemShape) -> Any:
    """Which configurations can run a problem, and leave no CTA without work."""
    rules = {
        WGMMA: _suits_wgmma,
        PARTS: _suits_f32,
        FRAGMENTS: _suits_f32,
        MMA: _suits_mma,
        F64: _suits_f64,
        VECTORS: _suits_vectors,
    }
    found = np.zeros(len(menu.configs), bool)
    for kind in set(menu.kind.tolist()):
        of_kind, suits = menu.kind == kind, rules[kind]
        own = menu.select(of_kind)
        found[of_kind] = np.where(own.swapped, suits(own, shape.swapped), suits(own, shape))
    # With swap AB, tiles are stored transposed, in 16 bits or of tf32, without an epilogue.
    refused = shape.out_bytes != (4 if shape.itemsize == 4 else 2) or shape.has_epilogue
    return found & ~(refused & (menu.kind == WGMMA) & (menu.swapped > 0))


def _suits_wgmma(menu: Menu, shape: ProblemShape) -> Any:
    """Each CTA of a split-K cluster needs steps of K, and each CTA of a multicast rows or columns."""
    M, N = shape.M, shape.N
    suits = is_loaded(menu, shape)
    suits &= (menu.BM * (menu.cluster_m - 1) < M) & (menu.BN * (menu.cluster_n - 1) < N)
    suits &= (menu.BM < M + 64) & (max(N, 64) + 64 >= menu.BN)
    suits &= (menu.split_k == 1) | (shape.k_slabs >= MIN_SPLIT_SLABS * menu.split_k)
    if shape.itemsize == 1 and shape.out_bytes != 2:  # s8, whose wgmma lacks most odd eights
        suits &= menu.BN % 16 == 0
    if shape.promoted:
        suits &= (menu.pingpong == 0) & (menu.promotable > 0)
    if shape.has_epilogue:
        suits &= menu.consumers <= 2
    return suits


def is_loaded(menu: Menu, shape: ProblemShape) -> Any:
    """Which wgmma configurations can load the operands as they lie.

    An operand that is not K-major is loaded in boxes that are 128 bytes of its rows or columns
    wide; wgmma may leave out a part of the last box of 16-bit columns. Fragments of A need
    registers beside the accumulators, and so do warps that transpose tiles. `setmaxnreg`, or a
    third consumer, takes these registers away.
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
    if not shape.b_k_major:  # whose columns are transposed, in blocks of 32
        suits &= ~as_they_lie | (menu.BN % (TRANSPOSED_BOX * menu.cluster_m) == 0)
    return suits


def _suits_mma(menu: Menu, shape: ProblemShape) -> Any:
    """Wide tiles leave registers for copies of 16 bytes alone, and f32 has none."""
    accumulators = menu.WM * menu.WN // 32 * (2 if shape.itemsize == 8 else 1)
    aligned = min(shape.a_align, shape.b_align)
    limit = 32 if shape.products > 1 or aligned < 4 else 64 if aligned < 16 else 128
    suits = (menu.split_k == 1) | (3 * menu.split_k * menu.BK <= shape.K)
    return suits & (accumulators <= limit)


def _suits_f64(menu: Menu, shape: ProblemShape) -> Any:
    """Parts of K have three steps. Stream-K shares the tiles that fill no whole wave."""
    tiles = _ceil(shape.M, menu.BM) * _ceil(shape.N, menu.BN)
    units, steps = np.maximum(menu.streamk_units, 1), tiles * _ceil(shape.K, menu.BK)
    shared = (tiles % units > 0) & (units <= MAX_STREAMK_PEERS * tiles)
    shared &= steps >= MIN_STREAMK_STEPS * units
    suits = (menu.split_k == 1) | (3 * menu.split_k * menu.BK <= shape.K)
    return suits & ((menu.streamk_units == 0) | shared)


def _suits_vectors(menu: Menu, shape: ProblemShape) -> Any:
    """Tiles of as many vectors as M or N has, which read the lines of the larger operand."""
    vectors, lines = sorted((shape.M, shape.N))
    if vectors > MAX_VECTORS or lines < MIN_VECTOR_LINES or shape.K < MIN_VECTOR_K:
        return np.zeros(len(menu.configs), bool)
    along_k = shape.b_k_major if shape.M < shape.N else shape.a_k_major
    few = menu.BM if shape.M < shape.N else menu.BN
    tall = (menu.BM < menu.BN) == (shape.M < shape.N)
    suits = tall & (few == 1 << (vectors - 1).bit_length()) & ((menu.BK >= ALONG_K) == along_k)
    own = np.where(along_k, menu.BM + menu.BN - few, np.maximum((menu.BM + menu.BN - few) // 32, 1))
    elements = 2 * menu.stages * (own + few) + few * own  # loaded and summed by a thread
    registers = 24 + elements * (2 if shape.itemsize == 8 else 1)
    return suits & (menu.threads * registers <= MAX_VECTOR_REGISTERS)


def as_loaded(config: HopperConfig, shape: ProblemShape) -> HopperConfig:
    """The configuration with no more stages than have room for the boxes of B, as it lies."""
    seen = shape.swapped if config.swapped else shape
    most = config.stages_of(config.loaded_columns(seen.b_k_major, seen.itemsize))
    return config if config.stages <= most else replace(config, stages=most)


def fits(config: HopperConfig, shape: ProblemShape) -> bool:
    """Whether the wgmma kernels can load the operands of a problem for a configuration."""
    seen = shape.swapped if config.swapped else shape
    return bool(is_loaded(Menu.of((config,), (WGMMA,)), seen)[0])
