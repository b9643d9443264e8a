"""What a configuration of the wgmma kernels costs, in cycles of a multiprocessor; the choice by it.

The model counts waves of tiles, the steps of K of each, and for a step the longest of what the
tensor cores, shared memory, the L2 cache and the barriers take; the whole is at least what memory
takes. Its constants are fitted to measurements on an H200 (docs/performance.md). `ranking` shows
it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import gcd

from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.host.candidates import candidates, divided
from tensorcore_dsl.kernels.host.problem_shape import SMS, Shape, at_once, blocks_of_grid, clusters

CLOCK = 1.6e9  # cycles a second under load
TENSOR = 32  # elements of D that advance by 128 bytes of K in a cycle
SHARED_BYTES = 170  # a cycle, of shared memory, read by tensor cores and written by copies
L2_BYTES = 50  # a cycle and SM
MEMORY_BYTES = 4.1e12 / CLOCK  # a cycle, all SMs together
STREAM_BYTES = 45  # a cycle, of memory, by two SMs that share a way to it
NARROW = 1.12  # times as long does memory take for boxes of few lines, and for half of all SMs
WIDE = 1.02  # and of many lines, where few rows leave them no company
STEP, CLUSTER_STEP = 200, 280  # cycles that a slot's barriers take at least, alone and with peers
OVERLAP = 0.02  # of what is not the longest part of a step is not hidden by it
STRADDLING = 1.7  # times as long does the L2 cache take for pieces of 128 bytes in two of its lines
UNUSUAL = 1.02  # widths that are no powers of two must gain more than the model's own error
TOGETHER = 1.03  # times as long does a step take consumers that share a tile: they wait as one
EPILOGUE, EPILOGUE_LINE = 7, 100  # cycles a column of 64 rows, and a line's width of them
BY_THREADS = 20  # times as long do results take that TMA cannot write
DRAIN = 500  # cycles from a tile's last product to the next one's first, beside the epilogue
LAUNCH = 4000  # cycles before the first product and after the last
GATHERING = 800  # cycles until the blocks of a cluster have met
MEETING = 170  # elements of a split tile for a cycle of meeting; it grows with their square
HANDING_OVER = 4000  # cycles until a worker sees the sums that another has stored


def choose(shape: Shape, is_feasible: Callable[[HopperConfig], bool] = lambda config: True) -> HopperConfig:
    """The cheapest configuration that is_feasible."""
    return next(config for _, config in ranking(shape) if is_feasible(config))


def plain(config: HopperConfig) -> bool:
    """Without turns, splits, few rows and tiles that workers divide."""
    return not (config.pingpong or config.split_k > 1 or config.valid_m or config.streamk_units)


@lru_cache(maxsize=1024)
def ranking(shape: Shape) -> tuple[tuple[float, HopperConfig], ...]:
    """Seconds, by the model, and configuration: the fastest first."""
    return ranked(candidates(shape), shape)


@lru_cache(maxsize=1024)
def divided_ranking(shape: Shape) -> tuple[tuple[float, HopperConfig], ...]:
    """The same of tiles that workers divide, which `choose` takes for few tiles and long K."""
    return ranked(divided(shape), shape)


def ranked(configs: Iterable[HopperConfig], shape: Shape) -> tuple[tuple[float, HopperConfig], ...]:
    found = [(cycles(config, shape) / CLOCK, config) for config in configs]
    return tuple(sorted(found, key=lambda entry: entry[0]))


def cycles(config: HopperConfig, shape: Shape) -> float:
    """The model."""
    work = divided_work(config, shape) if config.streamk_units else work_of_tiles(config, shape)
    memory = memory_cycles(config, shape)
    meeting = (config.BM * config.BN / MEETING) ** 2 if config.split_k > 1 else 0
    launch = LAUNCH + (GATHERING if config.cluster_size > 1 else 0)
    return max(work, memory) + 0.05 * min(work, memory) + meeting + launch


def work_of_tiles(config: HopperConfig, shape: Shape) -> float:
    """Of the SM with the most tiles."""
    steps = -(-shape.steps // config.split_k)
    waves = -(-clusters(config, shape.M, shape.N, shape.matrices) // at_once(config))
    tile = steps * step_cycles(config, shape)
    results = epilogue_cycles(config, shape.by_threads)
    if config.pingpong:
        return waves * tile + results
    return waves * (tile + results + DRAIN)


def divided_work(config: HopperConfig, shape: Shape) -> float:
    """Of a worker: its share of all steps, what it sends out, and sums given and taken."""
    steps, workers = shape.steps, config.streamk_units
    tiles = clusters(config, shape.M, shape.N, shape.matrices)
    over = tiles % workers
    shared = min(tiles, over + workers) if over else 0
    sent = (tiles - shared) // workers + -(-shared // workers)
    work = -(-tiles * steps // workers) * step_cycles(config, shape)
    work += sent * (epilogue_cycles(config, shape.by_threads) + DRAIN)
    if shared:
        others = -(-workers // shared)  # that sum steps of a tile, each read after the other
        work += (1 + others) * (config.BM * config.BN * 4 / L2_BYTES + HANDING_OVER)
    return work


def step_cycles(config: HopperConfig, shape: Shape) -> float:
    """Of 128 bytes of K; two tiles taken in turn are one after the other here."""
    tensor = config.BM * config.BN / TENSOR * (1 if config.pingpong else TOGETHER)
    lines = (config.valid_m or config.BM) / config.cluster_n + config.BN / config.cluster_m
    cache = lines * SWIZZLE_BYTES / L2_BYTES * (STRADDLING if shape.straddling else 1)
    read = config.BM / 64 * (64 + config.BN)  # by tensor cores: B for each 64 rows again
    shared = (read + (config.valid_m or config.BM) + config.BN) * SWIZZLE_BYTES / SHARED_BYTES
    barriers = (STEP if config.multicast_peers == 1 else CLUSTER_STEP) / config.k_slabs
    *_, second, third, longest = sorted((tensor, cache, shared, barriers))
    return (longest + OVERLAP * (second + third)) * (1 if usual(config, shape) else UNUSUAL)


def usual(config: HopperConfig, shape: Shape) -> bool:
    """Results that take long to finish leave as well from other widths."""
    return config.BN & config.BN - 1 == 0 or (shape.finished and config.BN % 32 == 0)


def epilogue_cycles(config: HopperConfig, by_threads: bool = False) -> float:
    """A consumer sends its rows, a line's width of columns at a time; split sums meet before."""
    lines = config.BN // gcd(config.BN, 64)
    once = (config.BN * EPILOGUE + lines * EPILOGUE_LINE) * (BY_THREADS if by_threads else 1)
    return config.rows_per_consumer / 64 * once * (1 if config.split_k == 1 else 1.5)


def memory_cycles(config: HopperConfig, shape: Shape) -> float:
    """Of all bytes once; of few rows, each block's columns of B, which it brings alone."""
    least = memory_bytes(shape) / MEMORY_BYTES
    if shape.M > 128 or shape.matrices > 1 or config.streamk_units:
        return least
    blocks = blocks_of_grid(config, shape.M, shape.N)
    brought = -(-clusters(config, shape.M, shape.N) * config.cluster_size // blocks)
    brought *= config.BN // config.cluster_m * shape.K // config.split_k * shape.itemsize
    alone = 2 * blocks <= SMS
    stream = brought * (1 if alone else 2) / STREAM_BYTES
    wide = config.BM == 64 and config.BN > 128
    return max(least, stream) * (NARROW if alone or config.BN < 48 else WIDE if wide else 1)


def memory_bytes(shape: Shape) -> float:
    """A, B and D once each."""
    operands = (shape.M + shape.N) * shape.K * shape.itemsize
    return float(shape.matrices * (operands + shape.M * shape.N * 2))
