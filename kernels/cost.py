"""What a configuration of the wgmma kernels costs, in cycles of a multiprocessor; the choice by it.

The model counts waves of tiles, the steps of K of each, and for a step the longest of what the
tensor cores, the L2 cache and the barriers take; the whole is at least what memory takes. Its
constants are fitted to measurements on an H200 (docs/performance.md). `ranking` shows it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd

from kernels.config import LINE, Config

SMS = 132  # of an H100 or H200
CLUSTERS = {4: 28}  # of so many blocks that run at once, where these are fewer than fit
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
LEAST_STEPS = 8  # of K that are worth a block of their own
HANDING_OVER = 4000  # cycles until a worker sees the sums that another has stored


@dataclass(frozen=True)
class Shape:
    """A product: sizes, bytes of an element of A and B, and which of these have K contiguous.

    straddling: lines of A or B start elsewhere than at multiples of 128 bytes. by_threads: TMA
    cannot write D. finished: results pass a function, or C is added.
    """

    M: int
    N: int
    K: int
    itemsize: int = 2
    matrices: int = 1
    a_k_major: bool = True
    b_k_major: bool = True
    straddling: bool = False
    by_threads: bool = False
    finished: bool = False


def choose(shape: Shape, suits: Callable[[Config], bool] = lambda config: True) -> Config:
    """The cheapest configuration that suits."""
    return next(config for _, config in ranking(shape) if suits(config))


def plain(config: Config) -> bool:
    """Without turns, splits, few rows and tiles that workers divide."""
    return not (config.pingpong or config.split > 1 or config.rows or config.workers)


@lru_cache(maxsize=1024)
def ranking(shape: Shape) -> tuple[tuple[float, Config], ...]:
    """Seconds, by the model, and configuration: the fastest first."""
    return ranked(candidates(shape), shape)


@lru_cache(maxsize=1024)
def divided_ranking(shape: Shape) -> tuple[tuple[float, Config], ...]:
    """The same of tiles that workers divide, which `choose` takes for few tiles and long K."""
    return ranked(divided(shape), shape)


def ranked(configs: Iterable[Config], shape: Shape) -> tuple[tuple[float, Config], ...]:
    found = [(cycles(config, shape) / CLOCK, config) for config in configs]
    return tuple(sorted(found, key=lambda entry: entry[0]))


def cycles(config: Config, shape: Shape) -> float:
    """The model."""
    work = divided_work(config, shape) if config.workers else work_of_tiles(config, shape)
    memory = memory_cycles(config, shape)
    meeting = (config.BM * config.BN / MEETING) ** 2 if config.split > 1 else 0
    launch = LAUNCH + (GATHERING if config.blocks > 1 else 0)
    return max(work, memory) + 0.05 * min(work, memory) + meeting + launch


def work_of_tiles(config: Config, shape: Shape) -> float:
    """Of the SM with the most tiles."""
    steps = -(-shape.K * shape.itemsize // LINE // config.split)
    waves = -(-clusters(config, shape.M, shape.N, shape.matrices) // at_once(config))
    tile = steps * step_cycles(config, shape)
    results = epilogue_cycles(config, shape.by_threads)
    if config.pingpong:
        return waves * tile + results
    return waves * (tile + results + DRAIN)


def divided_work(config: Config, shape: Shape) -> float:
    """Of a worker: its share of all steps, what it sends out, and sums given and taken."""
    steps, workers = -(-shape.K * shape.itemsize // LINE), config.workers
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


def step_cycles(config: Config, shape: Shape) -> float:
    """Of 128 bytes of K; two tiles taken in turn are one after the other here."""
    tensor = config.BM * config.BN / TENSOR * (1 if config.pingpong else TOGETHER)
    lines = (config.rows or config.BM) / config.across + config.BN / config.cluster
    cache = lines * LINE / L2_BYTES * (STRADDLING if shape.straddling else 1)
    read = config.BM / 64 * (64 + config.BN)  # by tensor cores: B for each 64 rows again
    shared = (read + (config.rows or config.BM) + config.BN) * LINE / SHARED_BYTES
    barriers = (STEP if config.peers == 1 else CLUSTER_STEP) / config.lines
    *_, second, third, longest = sorted((tensor, cache, shared, barriers))
    return (longest + OVERLAP * (second + third)) * (1 if usual(config, shape) else UNUSUAL)


def usual(config: Config, shape: Shape) -> bool:
    """Results that take long to finish leave as well from other widths."""
    return config.BN & config.BN - 1 == 0 or (shape.finished and config.BN % 32 == 0)


def epilogue_cycles(config: Config, by_threads: bool = False) -> float:
    """A consumer sends its rows, a line's width of columns at a time; split sums meet before."""
    lines = config.BN // gcd(config.BN, 64)
    once = (config.BN * EPILOGUE + lines * EPILOGUE_LINE) * (BY_THREADS if by_threads else 1)
    return config.height / 64 * once * (1 if config.split == 1 else 1.5)


def memory_cycles(config: Config, shape: Shape) -> float:
    """Of all bytes once; of few rows, each block's columns of B, which it brings alone."""
    least = memory_bytes(shape) / MEMORY_BYTES
    if shape.M > 128 or shape.matrices > 1 or config.workers:
        return least
    blocks = blocks_of_grid(config, shape.M, shape.N)
    brought = -(-clusters(config, shape.M, shape.N) * config.blocks // blocks)
    brought *= config.BN // config.cluster * shape.K // config.split * shape.itemsize
    alone = 2 * blocks <= SMS
    stream = brought * (1 if alone else 2) / STREAM_BYTES
    wide = config.BM == 64 and config.BN > 128
    return max(least, stream) * (NARROW if alone or config.BN < 48 else WIDE if wide else 1)


def memory_bytes(shape: Shape) -> float:
    """A, B and D once each."""
    operands = (shape.M + shape.N) * shape.K * shape.itemsize
    return float(shape.matrices * (operands + shape.M * shape.N * 2))


def clusters(config: Config, M: int, N: int, matrices: int = 1) -> int:
    """Tiles of D, or groups of them, that clusters of blocks take."""
    high, wide = config.BM * config.cluster, config.BN * config.across
    return -(-M // high) * -(-N // wide) * matrices


def blocks_of_grid(config: Config, M: int, N: int, matrices: int = 1) -> int:
    """A block an SM, each with many tiles; of split tiles, as many blocks as parts.

    Tiles that workers divide have all workers' blocks.
    """
    if config.workers:
        return config.workers * config.blocks
    count = clusters(config, M, N, matrices)
    if config.split == 1:
        count = min(at_once(config), count)
    return count * config.blocks


def at_once(config: Config) -> int:
    """Clusters that the chip runs together."""
    return CLUSTERS.get(config.blocks, SMS // config.blocks)


# Candidates


def candidates(shape: Shape) -> Iterator[Config]:
    """Configurations that the operands' layouts and shared memory allow, the best habits first."""
    turns = () if shape.M <= 128 and shape.matrices == 1 else in_turn(shape)
    for config in (*turns, *together(shape), *few_rows(shape), *split(shape), *fours(shape)):
        if config.room >= 2 + config.lines and fits(config, shape):
            yield in_order(config, shape).with_stages()
    few = 8 * clusters(Config(BM=128, BN=128), shape.M, shape.N, shape.matrices) <= SMS
    if few and shape.K * shape.itemsize >= 128 * LINE:  # few tiles, each with many steps
        yield from divided(shape)


def fits(config: Config, shape: Shape) -> bool:
    """Operands that are not K-major come in boxes of 128 bytes of rows or columns; blocks that
    split K each have a step of it."""
    steps = -(-shape.K * shape.itemsize // (LINE * config.lines))
    width = LINE // shape.itemsize
    a = shape.a_k_major or (config.BM % (width * config.across) == 0 and not config.rows)
    b = shape.b_k_major or config.BN % (width * config.cluster) == 0
    return a and b and config.split <= steps


def in_order(config: Config, shape: Shape) -> Config:
    """Of small matrices, tiles beside each other come together: their results share pages."""
    small = clusters(config, shape.M, shape.N) * config.blocks <= SMS
    return replace(config, group=1) if shape.matrices > 1 and small else config


def in_turn(shape: Shape) -> Iterator[Config]:
    """One consumer stores its tile while the other multiplies the next; first those clusters that
    leave none of their blocks without rows."""
    pairs = ((1, 2), (2, 1)) if -(-shape.M // 128) % 2 else ((2, 1), (1, 2))
    for BN in (128, 192, 176, 160, 112, 96):
        for cluster, across in (*pairs, (1, 1)):
            yield Config(BN=BN, pingpong=True, cluster=cluster, across=across)


def together(shape: Shape) -> Iterator[Config]:
    """Consumers share a tile."""
    heights = (64,) if shape.M <= 64 else (64, 128) if shape.M <= 128 else (128, 64)
    shared = ((1, 1), (2, 1), (1, 2)) if shape.M > 128 else ((1, 1), (2, 1))  # B is the work
    for BM, BN in product(heights, (256, 224, 192, 160, 128, 96, 64, 32)):
        for cluster, across in shared:
            rows = shape.M - BM * (cluster - 1)  # of the lowest block: boxes of few take long
            if 4 * rows > 3 * min(shape.M, BM) and BN * (across - 1) < shape.N:
                group = 16 if cluster > 1 else 8
                yield Config(BM=BM, BN=BN, cluster=cluster, across=across, group=group)


def few_rows(shape: Shape) -> Iterator[Config]:
    """Reading B is the work: each SM takes as many of its columns as the others."""
    if shape.M > 128 or shape.matrices > 1:
        return
    BM, rows = (64 if shape.M <= 64 else 128), -(-shape.M // 8) * 8
    waves = -(-shape.N // (SMS * 256))
    share = -(-shape.N // (SMS * waves * 16)) * 16
    half = share // 2 if share % 32 == 0 and BM == 64 else share
    for BN in dict.fromkeys((half, share, 32, 64, 128)):
        for lines in (2, 1) if BN < 128 else (1,):
            yield Config(BM=BM, BN=BN, rows=rows, lines=lines)
            if BN % 32 == 0:
                yield Config(BM=BM, BN=BN, rows=rows, lines=lines, split=2)


def split(shape: Shape) -> Iterator[Config]:
    """Two or four blocks sum parts of K where tiles are too few for all SMs."""
    tiles = ((128, 128), (64, 256), (64, 128), (128, 64), (64, 64))
    for parts, (BM, BN) in product((2, 4), tiles):
        if BN % (16 * parts) == 0:
            config, steps = Config(BM=BM, BN=BN, split=parts), -(-shape.K * shape.itemsize // LINE)
            few = clusters(config, shape.M, shape.N, shape.matrices) <= at_once(config)
            if few and steps >= LEAST_STEPS * parts:
                yield config


def fours(shape: Shape) -> Iterator[Config]:
    """Clusters of four, where a wave of them holds all tiles."""
    tiles = ((64, 160, 4, 1), (64, 192, 4, 1), (128, 128, 2, 2))
    for BM, BN, cluster, across in tiles:
        config = Config(BM=BM, BN=BN, cluster=cluster, across=across)
        filled = BM * (cluster - 1) < shape.M and BN * (across - 1) < shape.N
        if filled and shape.matrices == 1 and clusters(config, shape.M, shape.N) <= CLUSTERS[4]:
            yield config


def divided(shape: Shape) -> Iterator[Config]:
    """Workers share what fills no wave."""
    for BM, BN in ((128, 256), (128, 192), (128, 128), (128, 64), (64, 256)):
        for cluster, across in ((1, 1), (2, 1), (1, 2)):
            workers = SMS // (cluster * across)
            config = Config(BM=BM, BN=BN, cluster=cluster, across=across, workers=workers)
            if fits(config, shape):
                yield config.with_stages()
