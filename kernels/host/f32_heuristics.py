"""Heuristics for f32 products: candidates of both families of kernels, and what each costs.

The wgmma kernel needs the parts of both operands in memory (split_f32.py), the mma.sync kernel
splits in registers. So the former suits products that reuse their operands, the latter small and
skinny ones. The constants are fitted to 3,777 configurations of 116 problems, timed on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import log

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.ampere_heuristics import (
    CYCLES,
    ampere_candidates,
    ampere_time,
)
from tensorcore_dsl.kernels.host.problem_shape import active_clusters, cluster_tiles

STEP = 32  # elements of K in a step of either kernel
LAUNCH = 3.4  # microseconds of both kernels until the first product, and after the last one
HOST = 7  # microseconds in which the host launches a kernel
SHARED_BYTES = 189  # of shared memory that an SM reads and writes in a cycle
HOPPER_TILES = tuple(product((64, 128), (32, 64, 96, 128, 192, 256)))
HOPPER_CLUSTERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 4), (1, 1, 8))
INVARIANT_ROWS = tuple(2**i for i in range(14))  # M that count for batch-invariant products

Ranked = tuple[float, HopperConfig | AmpereConfig]
Ranking = tuple[Ranked, ...]


@lru_cache(maxsize=1024)
def f32_ranking(
    M: int, N: int, K: int, batch: int = 1, aligned: tuple[int, int] = (16, 16)
) -> Ranking:
    """(expected microseconds on the GPU, configuration) of every candidate, the fastest first.

    Of those that take less time than the host takes to launch them, the first are those with one
    kernel. aligned: see ampere_time.
    """
    hopper = [(hopper_time(c, M, N, K, batch), c) for c in hopper_candidates(M, N, K)]
    candidates = ampere_candidates(tc.f32, K)
    ampere = [(ampere_time(tc.f32, c, M, N, K, aligned), c) for c in candidates]
    both: list[Ranked] = [*(ampere if batch == 1 else ()), *hopper]
    return tuple(sorted(both, key=lambda entry: (max(entry[0], host_time(entry[1])), entry[0])))


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
        if (cluster_m > 1 and M <= BM) or (cluster_n > 1 and N <= BN) or BN % (16 * split_k):
            continue
        config = HopperConfig(
            BM, BN, k_slabs=2, cluster_m=cluster_m, cluster_n=cluster_n, split_k=split_k,
            group_m=16 if cluster_m > 1 else 8,
        )  # fmt: skip
        if config.max_stages >= 2 and (split_k == 1 or 2 * split_k * STEP <= K):
            yield config.with_stages()


def host_time(config: HopperConfig | AmpereConfig) -> float:
    """Microseconds in which the host launches the kernels of a product."""
    single = isinstance(config, AmpereConfig) and config.split_k == 1
    return HOST if single else 2 * HOST


def hopper_time(config: HopperConfig, M: int, N: int, K: int, batch: int = 1) -> float:
    """Microseconds of splitting the operands and of the product."""
    BM, BN, split_k = config.BM, config.BN, config.split_k
    tensor = 3 * BM * BN / 32 * 0.9
    latency = 300 + 4.6 * BN  # products of one consumer, one after the other, and promotion
    read = 3 * BM / 64 * (64 + BN) * 4 * STEP  # wgmma reads B again for every 64 rows of A
    step = max(tensor, latency, (read + (BM + BN) * 8 * STEP) / SHARED_BYTES)
    waves = -(-cluster_tiles(config, M, N, batch) // active_clusters(config))
    cycles = waves * (_steps(K, split_k) * step + 150 + 21 * BN)
    if split_k > 1:
        cycles += 700 + 0.33 * (BM * BN / 170) ** 2
    split_bytes = 12 * batch * K * (M + N)  # f32 in, two of them out
    return LAUNCH + split_bytes / 4.1e6 + cycles / CYCLES


def _steps(K: int, split_k: int) -> int:
    """Steps of one part of K."""
    steps = -(-K // STEP)
    return -(-steps // split_k)
