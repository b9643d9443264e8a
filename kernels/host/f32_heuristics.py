"""Heuristics for f32 products: candidates of both families of kernels, and what each costs.

One wgmma kernel needs the parts of both operands in memory (split_f32.py), the other one and the
mma.sync kernel split what they read. So the first suits products that reuse both operands, the
second those of few rows or columns, the last small ones; products of 1 to 4 rows or columns may use
no tensor cores (ampere_heuristics.py). The constants are fitted to 3,777 configurations of 116
problems, and those of kernels that split what they read to 1,210 of 70, timed on an H200; trees
correct those of mma.sync (corrections.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import log, sqrt
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import MOST_STAGES, HopperConfig
from tensorcore_dsl.kernels.hopper.f32_gemm import MAX_COLUMNS
from tensorcore_dsl.kernels.host.ampere_heuristics import CYCLES, Lines, ampere_ranking
from tensorcore_dsl.kernels.host.problem_shape import active_clusters, cluster_tiles

STEP = 32  # elements of K in a step of either kernel
LAUNCH = 3.4  # microseconds of both kernels until the first product, and after the last one
HOST, SECOND = 7.2, 3.4  # microseconds in which the host launches a kernel, and a second one
EXPOSED = 1.21  # times as long take tiles of operands in parts, as not all is hidden
SHARED_BYTES = 189  # of shared memory that an SM reads and writes in a cycle
HOPPER_COLUMNS = 32, 64, 96, 128, 192, 256
HOPPER_TILES = tuple(product((64, 128), HOPPER_COLUMNS))
SPLITS = (1, 2, 3, 4, 6, 8)  # of which both kernels of wgmma have tiles
HOPPER_CLUSTERS = (*((1, 1, split_k) for split_k in SPLITS), (2, 1, 1), (1, 2, 1))
FRAGMENTS_TILES = tuple(product((64, 128, 192), (16, 32, 48, 64, 96, 128)))
FRAGMENTS_CLUSTERS = (*((1, split_k) for split_k in SPLITS), (2, 1), (2, 2), (2, 4))
INVARIANT_ROWS = tuple(2**i for i in range(14))  # M that count for batch-invariant products

@dataclass(frozen=True)
class FragmentsCosts:
    """What the kernel costs that reads operands as they lie, mostly in cycles of an SM.

    narrow: least cycles of a product. split: of a step of a consumer, in which it reads and splits
    fragments, as far as others do not hide it. alone, column, beside: of a step of one consumer,
    for each column, and for each consumer. parts: of a step of the warps
    that split the right tile; right, transposed: for each column, with K contiguous or not. tile,
    stored: of a tile, for each column. total, part: of the sum of split-K, for each part. received:
    bytes that an SM receives in a cycle. memory: bytes in a microsecond. launch: microseconds.
    """

    narrow: float = 9.06
    split: float = 199
    alone: float = 73.3
    column: float = 10.5
    beside: float = 68.8
    parts: float = 492
    right: float = 0.506
    transposed: float = 12.5
    tile: float = 3910
    stored: float = 14.1
    total: float = 1040
    part: float = 251
    received: float = 36.0
    memory: float = 8.53e6
    launch: float = 0.932

FRAGMENTS = FragmentsCosts()
Ranked = tuple[float, HopperConfig | AmpereConfig]
Ranking = tuple[Ranked, ...]


@lru_cache(maxsize=1024)
def f32_ranking(
    M: int, N: int, K: int, batch: int = 1, lines: Lines = Lines(), by_tma: bool = True
) -> Ranking:
    """(expected microseconds on the GPU, configuration) of every candidate, the best first.

    These have the least mean of two times: in a CUDA graph, and where the host launches the
    kernels, which takes `host_time` at least. by_tma: TMA reads both operands as they lie.
    """
    fragments: list[Ranked] = []
    if by_tma:
        for config in fragments_candidates(M, N, K, lines.k_major):
            fragments.append((fragments_time(config, M, N, K, batch, lines.k_major), config))
    hopper = [(hopper_time(c, M, N, K, batch), c) for c in hopper_candidates(M, N, K)]
    dtype: Any = tc.f32
    others = ampere_ranking(dtype, M, N, K, lines) if batch == 1 else ()
    both: list[Ranked] = [*others, *hopper, *fragments]
    launched = lambda entry: max(entry[0], host_time(entry[1]))
    return tuple(sorted(both, key=lambda entry: (launched(entry) + entry[0], entry[0])))


@lru_cache(maxsize=1024)
def invariant_split(N: int, K: int) -> int:
    """CTAs that share K, with wgmma, in products of any M: those of the least geometric mean."""
    logarithms: dict[int, float] = {}
    for M in INVARIANT_ROWS:
        fastest: dict[int, float] = {}
        for config in hopper_candidates(M, N, K):
            time = hopper_time(config, M, N, K)
            fastest[config.split_k] = min(time, fastest.get(config.split_k, time))
        for split_k, time in fastest.items():
            logarithms[split_k] = logarithms.get(split_k, 0) + log(time)
    return min(logarithms, key=lambda split_k: logarithms[split_k])


def hopper_candidates(M: int, N: int, K: int) -> Iterator[HopperConfig]:
    """Tiles, with the clusters that share operands or K."""
    for (BM, BN), (cluster_m, cluster_n, split_k) in product(HOPPER_TILES, HOPPER_CLUSTERS):
        if (cluster_m > 1 and M <= BM) or (cluster_n > 1 and N <= BN):
            continue
        if not has_tiles(BN, split_k):
            continue
        config = HopperConfig(
            BM, BN, k_slabs=2, cluster_m=cluster_m, cluster_n=cluster_n, split_k=split_k,
            group_m=16 if cluster_m > 1 else 8,
        )  # fmt: skip
        if config.max_stages >= 2 and (split_k == 1 or 2 * split_k * STEP <= K):
            yield config.with_stages()


def has_tiles(BN: int, split_k: int) -> bool:
    """Whether the kernel of operands in parts has tiles of so many columns, by so many CTAs."""
    return BN in HOPPER_COLUMNS and BN % (16 * split_k) == 0


def fragments_candidates(
    M: int, N: int, K: int, k_major: tuple[bool, bool] = (True, True)
) -> Iterator[HopperConfig]:
    """Tiles of the kernel that reads operands as they lie; k_major: see f32_ranking."""
    tiles = product((False, True), FRAGMENTS_TILES, FRAGMENTS_CLUSTERS)
    for swapped, (BM, BN), (cluster_m, split_k) in tiles:
        rows, cols = (N, M) if swapped else (M, N)
        if MAX_COLUMNS[BM // 64] < BN or cols + 32 <= BN or rows <= BM * (cluster_m - 1):
            continue
        if split_k > 1 and 2 * split_k * STEP > K:
            continue
        if not k_major[not swapped] and BN % (32 * cluster_m):
            continue  # its columns are transposed, in blocks of 32
        config = HopperConfig(BM, BN, cluster_m=cluster_m, split_k=split_k, swapped=swapped)
        most = config.stages_of(2 * BN)  # two slabs of columns
        yield replace(config, stages=min(MOST_STAGES, most))


def host_time(config: HopperConfig | AmpereConfig) -> float:
    """Microseconds in which the host launches the kernels of a product."""
    single = config.k_slabs == 1 if isinstance(config, HopperConfig) else config.split_k == 1
    return HOST if single else HOST + SECOND


def hopper_time(config: HopperConfig, M: int, N: int, K: int, batch: int = 1) -> float:
    """Microseconds of splitting the operands and of the product."""
    BM, BN, split_k = config.BM, config.BN, config.split_k
    tensor = 3 * BM * BN / 32 * 0.9
    latency = 300 + 4.6 * BN  # products of one consumer, one after the other, and promotion
    read = 3 * BM / 64 * (64 + BN) * 4 * STEP  # wgmma reads B again for every 64 rows of A
    step = max(tensor, latency, (read + (BM + BN) * 8 * STEP) / SHARED_BYTES)
    waves = -(-cluster_tiles(config, M, N, batch) // active_clusters(config))
    cycles = waves * (_steps(K, split_k) * step + 150 + 21 * BN) * EXPOSED
    if split_k > 1:
        cycles += 700 + 0.33 * (BM * BN / 170) ** 2
    split_bytes = 12 * batch * K * (M + N)  # f32 in, two of them out
    return LAUNCH + split_bytes / 4.1e6 + cycles / CYCLES


def fragments_time(
    config: HopperConfig, M: int, N: int, K: int, batch: int = 1,
    k_major: tuple[bool, bool] = (True, True),
) -> float:  # fmt: skip
    """Microseconds of the kernel that reads operands as they lie; k_major: see f32_ranking."""
    costs, BM, BN, split_k = FRAGMENTS, config.BM, config.BN, config.split_k
    consumers, transposed = BM / 64, not k_major[not config.swapped]
    products = 12 * max(BN / 2, costs.narrow)
    busy = consumers * (products + costs.split)
    alone = costs.alone + costs.column * BN + costs.beside * consumers
    parts = costs.parts + (costs.transposed if transposed else costs.right) * BN
    received = (BM + BN / config.cluster_m) * 4 * STEP / costs.received
    step = sqrt(sqrt(sum(x**4 for x in (busy, alone, parts, received))))
    waves = -(-cluster_tiles(config, M, N, batch) // active_clusters(config))
    cycles = waves * (_steps(K, split_k) * step + costs.tile + costs.stored * BN)
    if split_k > 1:
        cycles += costs.total + costs.part * split_k
    moved = 4 * batch * (K * (M + N) + M * N) / costs.memory
    return costs.launch + sqrt((cycles / CYCLES) ** 2 + moved**2)


def _steps(K: int, split_k: int) -> int:
    """Steps of one part of K."""
    steps = -(-K // STEP)
    return -(-steps // split_k)
