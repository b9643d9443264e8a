"""Candidate configurations of the wgmma kernels, which the cost model ranks.

The menu is one list for all problems: sizes of a problem select among its configurations, and make
no new ones, so that the kernels that a program needs stay few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from tensorcore_dsl.kernels.hopper.config import (
    FRAGMENT_REGISTERS,
    FRAGMENT_ROOM,
    SMEM_BYTES,
    SWIZZLE_BYTES,
    HopperConfig,
)
from tensorcore_dsl.kernels.hopper.pipeline import boxes_along_k, parts_of_boxes
from tensorcore_dsl.kernels.hopper.promotion import part_width, takes_turns
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, THREADS, Format
from tensorcore_dsl.kernels.host.problem_shape import SMS, ProblemShape, active_clusters

MIN_SPLIT_SLABS = 4  # 128-byte slabs of K for each CTA of a split-K cluster, at least
FEW_ROWS = 64  # and fewer are those of a skinny A
BOX = 64  # columns of a TMA box of 16-bit elements, which is not K-major
TRANSPOSED_BOX = 32  # of a TMA box of 32-bit elements, which is not K-major
PROMOTED_REGISTERS = {1: 208, 2: 208, 3: 96}  # consumers -> accumulators and products, at most
# The same of accumulators and fragments of A: two consumers get more registers than producers.
MAX_FRAGMENT_REGISTERS = FRAGMENT_ROOM | {2: 144}

# Configurations without which random problems are expected to take longer, the most useful ones
# first: BMxBN; c: cluster_m x cluster_n; k: split_k; d: k_slabs; v: valid_m; pp: ping-pong; sk:
# stream-K; t: swapped. `python -m benchmarks fit --write` chooses them.
MENU = Path(__file__).with_name("menu.txt")
FIELDS = {"k": "split_k", "d": "k_slabs", "v": "valid_m"}


def configuration(text: str) -> HopperConfig:
    """The configuration that a text of the menu describes, with as many stages as fit.

    Clusters of CTAs below each other gain by wider groups, where consumers share tiles.
    """
    tile, *words = text.split()
    BM, BN = map(int, tile.split("x"))
    cluster_m, cluster_n = 1, 1
    given: dict[str, Any] = {"pingpong": "pp" in words}
    for word in words:
        if word[0] == "c":
            cluster_m, cluster_n = map(int, word[1:].split("x"))
        elif word[0] in FIELDS:
            given[FIELDS[word[0]]] = int(word[1:])
    if "sk" in words:
        given["streamk_units"] = SMS // (cluster_m * cluster_n)
    given["swapped"] = "t" in words
    below = cluster_m > 1 and cluster_n == 1 and "pp" not in words
    return HopperConfig(
        BM, BN, cluster_m=cluster_m, cluster_n=cluster_n, group_m=16 if below else 8, **given
    ).with_stages()


@dataclass(frozen=True)
class Menu:
    """Configurations, and their fields as arrays of a number for each of them.

    place: from 0 for the first one to 1. rows: of A that TMA loads for a tile. boxed: columns in
    whole boxes of 16-bit elements, and boxed_stages, of them. asked_rows, asked_columns and
    asked_boxed: of these, the most that one CTA of a cluster loads for all. uneven: consumers have
    more registers than producers. clusters: that run at the same time. in_turns: promoted products
    are added while the next ones are computed.
    """

    configs: tuple[HopperConfig, ...]
    columns: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def select(self, chosen: Any) -> Menu:
        """The configurations that a mask chooses."""
        configs = tuple(config for config, keep in zip(self.configs, chosen, strict=True) if keep)
        return Menu(configs, {name: column[chosen] for name, column in self.columns.items()})

    @classmethod
    def of(cls, configs: tuple[HopperConfig, ...]) -> Menu:
        names = [field.name for field in fields(HopperConfig)] + [
            "consumers", "cluster_size", "stored_columns",
        ]  # fmt: skip
        columns = {name: np.array([getattr(c, name) for c in configs]) for name in names}
        columns["place"] = np.arange(len(configs)) / len(configs)
        columns["rows"] = np.array([c.valid_m or c.BM for c in configs])
        boxed = -(-columns["BN"] // BOX) * BOX
        columns["boxed"] = boxed
        columns["boxed_stages"] = np.array(
            [min(c.stages, c.stages_of(int(n))) for c, n in zip(configs, boxed, strict=True)]
        )
        columns["asked_rows"] = np.array(
            [int(n) // boxes_along_k(int(n), c.cluster_n) for c, n in zip(configs, columns["rows"])]
        )
        columns["asked_columns"] = np.array(
            [c.BN // boxes_along_k(c.BN, c.cluster_m) for c in configs]
        )
        columns["asked_boxed"] = np.array(
            [_asked_boxed(int(n), c.cluster_m) for c, n in zip(configs, boxed, strict=True)]
        )
        columns["uneven"] = np.array([bool(c.registers) for c in configs])
        columns["clusters"] = np.array([active_clusters(c) for c in configs])
        widths = [part_width(c) for c in configs]
        columns["parts"] = columns["BN"] // np.array(widths)
        in_turns = [takes_turns(c, n, c.k_slabs) for c, n in zip(configs, widths, strict=True)]
        columns["in_turns"] = np.array(in_turns)
        columns["promoted_registers"] = (columns["BN"] + np.array(widths)) // 2
        blocks = np.array([c.rows_per_consumer // 64 for c in configs])
        of_block = columns["BN"] // 2 + FRAGMENT_REGISTERS * columns["k_slabs"]
        columns["fragment_registers"] = blocks * of_block
        of = {"room": PROMOTED_REGISTERS, "room_of_fragments": MAX_FRAGMENT_REGISTERS}
        for name, rooms in of.items():
            columns[name] = np.array([rooms.get(c.consumers, 0) for c in configs])
        return cls(configs, columns)


def _asked_boxed(columns: int, ctas: int) -> int:
    """Columns that one of `ctas` loads for all of them, in boxes that may be parted along K."""
    boxes = columns // BOX
    return columns // (gcd(boxes, ctas) * parts_of_boxes(boxes, BOX, ctas))


@lru_cache(maxsize=1)
def menu() -> Menu:
    """All configurations."""
    return Menu.of(tuple(map(configuration, MENU.read_text("ascii").splitlines())))


def candidates(shape: ProblemShape) -> Menu:
    """Configurations that the operands' layouts, and the sizes of the problem, allow."""
    every = menu()
    return every.select(is_candidate(every, shape))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def is_candidate(menu: Menu, shape: ProblemShape) -> Any:
    """Which configurations suit a problem.

    Each CTA of a split-K cluster needs some steps of K of its own, and no CTA of a multicast is
    without rows or columns.
    """
    swapped = menu.swapped & (shape.out_bytes == (4 if shape.itemsize == 4 else 2))
    # Few rows of A in 16 bits that lie along K are loaded as well by tiles with few valid rows.
    skinny = shape.M <= FEW_ROWS and shape.itemsize == 2 and shape.a_k_major and shape.b_k_major
    swapped &= not (shape.has_epilogue or skinny)
    return np.where(menu.swapped, swapped & _suits(menu, shape.swapped), _suits(menu, shape))


def _suits(menu: Menu, shape: ProblemShape) -> Any:
    M, N = shape.M, shape.N
    few = (menu.valid_m >= M) & (shape.batch == 1)
    if shape.in_fragments:
        few &= menu.valid_m % TRANSPOSED_BOX == 0
    suits = is_loaded(menu, shape) & ((menu.valid_m == 0) | few)
    suits &= (menu.BM * (menu.cluster_m - 1) < M) & (menu.BN * (menu.cluster_n - 1) < N)
    suits &= (menu.BM < M + 64) & (max(N, 64) + 64 >= menu.BN)
    suits &= (menu.split_k == 1) | (shape.k_slabs >= MIN_SPLIT_SLABS * menu.split_k)
    if shape.itemsize == 1 and shape.out_bytes != 2:  # of s8, whose wgmma lacks most odd eights
        suits &= menu.BN % 16 == 0
    if shape.promoted:
        suits &= ~menu.pingpong & (menu.streamk_units == 0)
        suits &= menu.promoted_registers <= menu.room
    if shape.has_epilogue:
        suits &= menu.consumers <= 2
    return suits


def is_loaded(menu: Menu, shape: ProblemShape) -> Any:
    """Which configurations can load the operands as they lie.

    An operand that is not K-major is loaded in boxes that are 128 bytes of its rows or columns
    wide; of columns of 16-bit elements, wgmma may leave out a part of the last box. Fragments of A
    need registers beside the accumulators, and so do warps that transpose tiles, which
    `setmaxnreg`, or a third consumer, takes away; stream-K transposes none.
    """
    width = SWIZZLE_BYTES // shape.itemsize
    loaded = menu.rows % 8 == 0
    if not shape.a_k_major:
        loaded &= menu.rows % width == 0
        loaded &= (menu.valid_m == 0) | shape.in_fragments
    if not shape.b_k_major and shape.itemsize == 2:
        whole = menu.boxed == menu.BN
        loaded &= whole | (menu.boxed_stages >= 2 + menu.k_slabs)
    elif not shape.b_k_major:
        loaded &= menu.BN % width == 0
    if shape.in_fragments:
        loaded &= ~menu.uneven & (menu.fragment_registers <= menu.room_of_fragments)
    if shape.transposed:
        loaded &= ~menu.uneven & (menu.consumers <= 2) & (menu.streamk_units == 0)
    return loaded


def as_loaded(config: HopperConfig, shape: ProblemShape) -> HopperConfig:
    """The configuration with no more stages than have room for the boxes of B, as it lies."""
    most = config.stages_of(loaded_columns(config, shape))
    return replace(config, stages=min(config.stages, most))


def loaded_columns(config: HopperConfig, shape: ProblemShape) -> int:
    """Columns of a stage: those of the tile, or of whole boxes of B, as it lies."""
    seen = shape.swapped if config.swapped else shape
    return config.loaded_columns(seen.b_k_major, seen.itemsize)


def fits(config: HopperConfig, shape: ProblemShape) -> bool:
    """Whether the kernels can load the operands of a problem for a configuration."""
    seen = shape.swapped if config.swapped else shape
    return bool(is_loaded(Menu.of((config,)), seen)[0])


# 2:4 sparse A

SPARSE_TILES = ((128, 256), (192, 192), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64))
SPARSE_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))


def sparse_candidates(M: int, N: int, format: Format, b_k_major: bool) -> Iterator[HopperConfig]:
    """Configurations of the sparse kernel that fit B's layout and shared memory."""
    width = SWIZZLE_BYTES // format.dtype.itemsize
    for (BM, BN), (cluster_m, cluster_n) in product(SPARSE_TILES, SPARSE_CLUSTERS):
        boxes = b_k_major or BN % (width * cluster_m) == 0
        if boxes and BM * (cluster_m - 1) < M and BN * (cluster_n - 1) < N:
            config = HopperConfig(BM=BM, BN=BN, cluster_m=cluster_m, cluster_n=cluster_n)
            available = SMEM_BYTES - config.epilogue_bytes() - 2048
            yield replace(config, stages=min(8, available // sparse_stage_bytes(config, format)))


def sparse_stage_bytes(
    config: HopperConfig, format: Format, cluster_m: int = 1, cluster_n: int = 1
) -> int:
    """Bytes of a stage: A, of which half is stored, its metadata, and B.

    cluster_m, cluster_n: CTAs of a cluster that load B, or A, together.
    """
    metadata = config.BM // ROWS * THREADS * format.words * 4
    a, b = config.BM * SWIZZLE_BYTES // 2, config.BN * SWIZZLE_BYTES
    return a // cluster_n + metadata + b // cluster_m
