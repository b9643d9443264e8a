"""Heuristics for f32 products: candidates of both families of kernels, and what each costs.

The wgmma kernel needs the parts of both operands in memory (split_f32.py), the mma.sync kernel
splits in registers. So the former suits products that reuse their operands, the latter small and
skinny ones. The constants are fitted to 1,347 configurations of 44 problems, timed on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.problem_shape import SMS, active_clusters, cluster_tiles

CYCLES = 1.7e3  # of an SM, in a microsecond
STEP = 32  # elements of K in a step of either kernel
LAUNCH = 3.5  # microseconds until the first product, and after the last one
HOPPER_TILES = tuple(product((64, 128), (32, 64, 96, 128, 192, 256)))
HOPPER_CLUSTERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 4), (1, 1, 8))
# BM, BN, WM, WN
AMPERE_TILES = (
    (128, 64, 32, 32), (64, 128, 32, 32), (64, 64, 32, 32), (64, 32, 32, 16), (32, 64, 16, 32),
    (32, 32, 16, 16),
)  # fmt: skip
SPLITS = (1, 2, 4, 8, 16)

Ranking = tuple[tuple[float, HopperConfig | AmpereConfig], ...]


@lru_cache(maxsize=1024)
def f32_ranking(M: int, N: int, K: int, batch: int = 1) -> Ranking:
    """(expected microseconds, configuration) of every candidate, the fastest first."""
    hopper = [(hopper_time(c, M, N, K, batch), c) for c in hopper_candidates(M, N, K)]
    single = batch == 1
    ampere = [(ampere_time(c, M, N, K), c) for c in ampere_candidates(M, N, K)] if single else []
    return tuple(sorted([*hopper, *ampere], key=lambda entry: entry[0]))


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


def ampere_candidates(M: int, N: int, K: int) -> Iterator[AmpereConfig]:
    """Tiles, with parts of K of three steps at least."""
    for (BM, BN, WM, WN), split_k in product(AMPERE_TILES, SPLITS):
        if split_k == 1 or 3 * split_k * STEP <= K:
            stages = 4 if BM * BN <= 4096 else 3
            yield AmpereConfig(BM, BN, STEP, WM, WN, stages, split_k=split_k)


def hopper_time(config: HopperConfig, M: int, N: int, K: int, batch: int = 1) -> float:
    """Microseconds of splitting the operands and of the product."""
    BM, BN, split_k = config.BM, config.BN, config.split_k
    tensor = 3 * BM * BN / 32 * 1.1
    latency = 290 + 3.6 * BN  # products of one consumer, one after the other, and promotion
    cache = (BM / config.cluster_n + BN / config.cluster_m) * 8 * STEP / 62
    step = max(tensor, latency, cache) + 0.02 * min(tensor, cache)
    waves = -(-cluster_tiles(config, M, N, batch) // active_clusters(config))
    cycles = waves * (_steps(K, split_k) * step + 300 + 16 * BN)
    if split_k > 1:
        cycles += 1100 + 0.3 * (BM * BN / 170) ** 2
    split_bytes = 12 * batch * K * (M + N)  # f32 in, two of them out
    return LAUNCH + split_bytes / 3.5e6 + cycles / CYCLES


def ampere_time(config: AmpereConfig, M: int, N: int, K: int) -> float:
    """Microseconds of the product, and of the sum of its parts."""
    BM, BN, split_k, warps = config.BM, config.BN, config.split_k, config.threads // 32
    ctas = -(-M // BM) * -(-N // BN) * split_k
    resident = min(-(-ctas // SMS), 16 // warps)  # CTAs of an SM at a time
    rounds = -(-ctas // (SMS * resident))
    work = BM * BN * STEP * 3 / 226 + 0.026 * warps * (config.WM + config.WN) * STEP
    cycles = rounds * _steps(K, split_k) * max(work * resident, 510)
    memory = 4 * K * (M + N) / 2.2e6
    total = 0.8 + 4 * (split_k + 1) * M * N / 0.83e6 if split_k > 1 else 0
    return LAUNCH + max(cycles / CYCLES, memory) + total


def _steps(K: int, split_k: int) -> int:
    """Steps of one part of K."""
    steps = -(-K // STEP)
    return -(-steps // split_k)
