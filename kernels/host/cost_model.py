"""Cost model: expected time of a wgmma configuration, in clock cycles of an SM.

The model counts waves of tiles and the K-steps of a tile. A K-step takes as long as the slowest of
the tensor cores, shared memory, the L2 cache and the barriers; the whole takes at least as long as
DRAM needs for all operands. The constants are fitted to measurements on an H200
(docs/performance.md); `ranking` lists the expected seconds of every candidate.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import gcd

from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.hopper.promotion import part_width
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, Format
from tensorcore_dsl.kernels.host import problem_shape
from tensorcore_dsl.kernels.host.candidates import candidates, sparse_stage_bytes, streamk_configs
from tensorcore_dsl.kernels.host.problem_shape import ProblemShape, active_clusters, cluster_tiles

CLOCK = 1.6e9  # SM cycles per second under load

# Throughput
TENSOR = 32  # elements of D per cycle and SM that advance by one 128-byte slab of K
SHARED_BYTES = 170  # shared-memory bytes per cycle and SM: wgmma reads and TMA writes together
L2_BYTES = 50  # L2 bytes per cycle and SM
DRAM_BYTES = 4.1e12 / CLOCK  # DRAM bytes per cycle, all SMs together
TPC_BYTES = 45  # DRAM bytes per cycle and TPC (two SMs share one path)

# Costs in cycles
STEP = 200  # least duration of a K-step of one CTA alone: its barriers
CLUSTER_STEP = 280  # the same with multicast, whose barriers reach other CTAs
EPILOGUE_COLUMN = 7  # epilogue of 64 rows, for each column ...
EPILOGUE_BOX = 100  # ... and for each TMA store, a box of up to 64 columns
# Tiles that three warps transpose, fitted to 230 configurations of 30 problems: cycles of a stage,
# and of each round of so many rows or columns; and the bytes of shared memory per cycle and SM
# there, where a row of 128 bytes counts as many times.
TRANSPOSED_STAGE, TRANSPOSED_ROUND, TRANSPOSED_ROWS = 150, 350, 96
TRANSPOSED_BYTES, TRANSPOSED_ACCESSES = 140, 4
DRAIN = 500  # from the last product of a tile to the first one of the next, without the epilogue
LAUNCH = 4000  # before the first product and after the last one of a kernel
CLUSTER_LAUNCH = 800  # more, until all CTAs of a cluster have started
STREAMK_HANDOVER = 4000  # until a CTA sees the accumulators that another one has stored
# The CTAs of a split-K cluster add up a tile of n elements in (n / SPLIT_K_ELEMENTS)^2 cycles.
SPLIT_K_ELEMENTS = 170

# Slowdown factors
MISALIGNED = 1.7  # L2: pieces of 128 bytes that lie in two cache lines
STORE_BY_THREADS = 6  # epilogue: threads store D, as TMA cannot
COOPERATIVE = 1.03  # tensor cores: consumers that share a tile wait for each other
ODD_WIDTH = 1.02  # K-step: BN is no power of two; such a tile must gain more than the model's error
SPLIT_K_EPILOGUE = 1.5  # epilogue: accumulators are exchanged first
NARROW_BOXES = 1.12  # DRAM, skinny A: boxes of B below 48 columns, or at most half of the SMs busy
WIDE_BOXES = 1.02  # DRAM, skinny A: tiles of 64 rows and more than 128 columns
PROMOTED_PARTS = 1.02  # promotion: accumulators are promoted in two parts
PROMOTED_COLUMN = 0.001  # promotion: added for each column by which a tile is narrower than ...
PROMOTED_WIDTH = 192  # ... this

# Overlap
HIDDEN_STEP = 0.02  # part of the second and third longest cost of a K-step that is not hidden
HIDDEN_DRAM = 0.05  # part of the shorter one of computation and DRAM that is not hidden

Ranking = tuple[tuple[float, HopperConfig], ...]


@lru_cache(maxsize=1024)
def ranking(shape: ProblemShape) -> Ranking:
    """(expected seconds, configuration) of every candidate, the fastest first."""
    return _ranked(candidates(shape), shape)


@lru_cache(maxsize=1024)
def streamk_ranking(shape: ProblemShape) -> Ranking:
    """The same of stream-K configurations, which `ranking` has for few tiles and long K only."""
    return _ranked(streamk_configs(shape), shape)


def _ranked(configs: Iterable[HopperConfig], shape: ProblemShape) -> Ranking:
    costs = [(cycles(config, shape) / CLOCK, config) for config in configs]
    return tuple(sorted(costs, key=lambda entry: entry[0]))


def cycles(config: HopperConfig, shape: ProblemShape) -> float:
    """Cycles of a whole launch."""
    busiest = streamk_cycles if config.streamk_units else tile_cycles
    compute, dram = busiest(config, shape), dram_cycles(config, shape)
    reduction = (config.BM * config.BN / SPLIT_K_ELEMENTS) ** 2 if config.split_k > 1 else 0
    launch = LAUNCH + (CLUSTER_LAUNCH if config.cluster_size > 1 else 0)
    return max(compute, dram) + HIDDEN_DRAM * min(compute, dram) + reduction + launch


def tile_cycles(config: HopperConfig, shape: ProblemShape) -> float:
    """Cycles of the SM with the most tiles."""
    steps = -(-shape.k_slabs // config.split_k)
    tiles = cluster_tiles(config, shape.M, shape.N, shape.batch)
    waves = -(-tiles // active_clusters(config))
    mainloop = steps * step_cycles(config, shape)
    epilogue = epilogue_cycles(config, shape.store_by_threads)
    if config.pingpong:  # every epilogue but the last overlaps with the other consumer's mainloop
        return waves * mainloop + epilogue
    return waves * (mainloop + epilogue + DRAIN)


def streamk_cycles(config: HopperConfig, shape: ProblemShape) -> float:
    """Cycles of a stream-K unit: its share of all K-steps, epilogues, and the fix-up."""
    steps, units = shape.k_slabs, config.streamk_units
    tiles = cluster_tiles(config, shape.M, shape.N, shape.batch)
    remainder = tiles % units
    shared = min(tiles, remainder + units) if remainder else 0
    epilogues = (tiles - shared) // units + -(-shared // units)
    total = -(-tiles * steps // units) * step_cycles(config, shape)
    total += epilogues * (epilogue_cycles(config, shape.store_by_threads) + DRAIN)
    if shared:
        others = -(-units // shared)  # units that accumulate the same tile, read one after another
        total += (1 + others) * (config.BM * config.BN * 4 / L2_BYTES + STREAMK_HANDOVER)
    return total


def step_cycles(config: HopperConfig, shape: ProblemShape) -> float:
    """Cycles of one 128-byte slab of K for one tile."""
    tensor = config.BM * config.BN / TENSOR * (1 if config.pingpong else COOPERATIVE)
    loaded = (config.valid_m or config.BM) / config.cluster_n + config.BN / config.cluster_m
    cache = loaded * SWIZZLE_BYTES / L2_BYTES * (MISALIGNED if shape.misaligned else 1)
    read = config.BM / 64 * (64 + config.BN)  # wgmma reads B again for every 64 rows of A
    stored = (config.valid_m or config.BM) + config.BN
    transposition, again = transposition_cycles(config, shape)
    rate = SHARED_BYTES if not again else TRANSPOSED_BYTES
    shared = (read + stored + again) * SWIZZLE_BYTES / rate
    barriers = (STEP if config.multicast_peers == 1 else CLUSTER_STEP) / config.k_slabs
    *_, third, second, longest = sorted((tensor, cache, shared, barriers, transposition))
    step = longest + HIDDEN_STEP * (third + second)
    return step * (1 if is_usual_width(config, shape) else ODD_WIDTH)


def transposition_cycles(config: HopperConfig, shape: ProblemShape) -> tuple[float, int]:
    """Cycles in which warps transpose one slab of the tiles that are not K-major, and the rows of
    shared memory that they read and write meanwhile."""
    sides = zip(shape.transposed, (config.valid_m or config.BM, config.BN), strict=True)
    extents = [extent for is_transposed, extent in sides if is_transposed]
    if not extents:
        return 0, 0
    rounds = sum(-(-extent // TRANSPOSED_ROWS) for extent in extents)
    cycles = TRANSPOSED_STAGE / config.k_slabs + rounds * TRANSPOSED_ROUND
    return cycles, TRANSPOSED_ACCESSES * sum(extents)


def is_usual_width(config: HopperConfig, shape: ProblemShape) -> bool:
    """Powers of two; long epilogues hide what multiples of 32 cost more."""
    return config.BN & config.BN - 1 == 0 or (shape.has_epilogue and config.BN % 32 == 0)


def epilogue_cycles(config: HopperConfig, store_by_threads: bool = False) -> float:
    """Cycles in which a consumer stores its rows of a tile."""
    boxes = config.BN // gcd(config.BN, 64)
    of_64_rows = config.BN * EPILOGUE_COLUMN + boxes * EPILOGUE_BOX
    of_64_rows *= STORE_BY_THREADS if store_by_threads else 1
    split_k = 1 if config.split_k == 1 else SPLIT_K_EPILOGUE
    return config.rows_per_consumer / 64 * of_64_rows * split_k


def dram_cycles(config: HopperConfig, shape: ProblemShape) -> float:
    """Cycles of all operands once; with skinny A, of the columns of B that each CTA loads alone."""
    operands = (shape.M + shape.N) * shape.K * shape.itemsize
    least = shape.batch * (operands + 2 * shape.M * shape.N) / DRAM_BYTES  # D: two bytes an element
    if shape.M > 128 or shape.batch > 1 or config.streamk_units:
        return least
    ctas = problem_shape.grid_size(config, shape.M, shape.N)
    loaded = -(-cluster_tiles(config, shape.M, shape.N) * config.cluster_size // ctas)
    loaded *= config.BN // config.cluster_m * shape.K // config.split_k * shape.itemsize
    alone = 2 * ctas <= problem_shape.SMS  # a TPC has one busy SM
    path = loaded * (1 if alone else 2) / TPC_BYTES
    if alone or config.BN < 48:
        return max(least, path) * NARROW_BOXES
    return max(least, path) * (WIDE_BOXES if config.BM == 64 and config.BN > 128 else 1)


def promotion_slowdown(config: HopperConfig) -> float:
    """Slowdown factor of promotion: consumers wait for each part of K, then add it in f32."""
    if part_width(config) < config.BN:
        return PROMOTED_PARTS
    return 1 + PROMOTED_COLUMN * max(0, PROMOTED_WIDTH - config.BN)


# 2:4 sparse A: tensor cores are twice as fast, the L2 cache is not

SPARSE_SHARED_BYTES = 128  # shared-memory bytes that wgmma.sp reads per cycle and SM


def sparse_cycles(config: HopperConfig, M: int, N: int, K: int, format: Format) -> float:
    """Cycles of all waves of a sparse product."""
    tensor = config.BM * config.BN / (2 * TENSOR)
    read = config.BM // ROWS * (ROWS * SWIZZLE_BYTES // 2 + config.BN * SWIZZLE_BYTES)
    shared = read / SPARSE_SHARED_BYTES
    cache = sparse_stage_bytes(config, format, config.cluster_m, config.cluster_n) / L2_BYTES
    barriers = STEP if config.multicast_peers == 1 else CLUSTER_STEP
    mainloop = -(-K // format.depth) * max(tensor, shared, cache, barriers)
    waves = -(-cluster_tiles(config, M, N) // active_clusters(config))
    return waves * (mainloop + epilogue_cycles(config) + DRAIN)
