"""Heuristics for kernels of mma.sync, and of vectors: tiles, parts of K, and what each costs.

The constants are fitted to 2,088 configurations of 13 problems of bf16, tf32, f64 and s8, timed on
an H200 beyond its L2 cache; those of f32 to 272 configurations of 70 problems. Regression trees
correct what this leaves out (corrections.py), f32's by trees of their own, f64's not here: mostly
what lines cost that are no multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, inf
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import ALONG_K, MAX_VECTORS, WARP, AmpereConfig
from tensorcore_dsl.kernels.host.corrections import ranked, stored_trees
from tensorcore_dsl.kernels.host.problem_shape import SMS

CYCLES = 1.7e3  # of an SM, in a microsecond
ROW_BYTES = 128  # of K in a tile: one swizzled row of shared memory
SHARED_BYTES = 227 * 1024  # of shared memory, of an SM
WARPS = 16  # that the registers of an SM hold
# BM, BN, WM, WN
TILES = (
    (128, 64, 32, 32), (64, 128, 32, 32), (64, 64, 32, 32), (64, 32, 32, 16), (32, 64, 16, 32),
    (32, 32, 16, 16), (16, 64, 16, 16), (64, 16, 16, 16),
)  # fmt: skip
# Tiles whose warps hold so many accumulators that registers are left for copies of 16 bytes alone;
# of the first one for those of 4 bytes, and for f64. f32 has none.
WIDE_TILES = ((128, 64, 64, 32), (128, 128, 64, 64), (256, 128, 64, 64), (128, 256, 64, 64))
SPLITS = (1, 2, 4, 8, 16)
# Tiles of vectors, where K is contiguous in the lines, and where these lie beside each other: how
# many lines, elements of a line that a thread loads at once, and warps they may have.
TILES_ALONG_K = (2, 4, 8), (2, 4, 8), (8,)
TILES_BESIDE = (8, 16, 32, 64), (8, 16), (8, 16)
LEAST_LINES, LEAST_K = 64, 256  # of a product of vectors: others fill no tile
# Where wgmma can read the operands of these types, products of vectors count as taking so many
# times as long as expected: the time of wgmma is known within a few percent, that of vectors only
# within 17.
VECTORS_DOUBT, DOUBTED = 1.15, (tc.f16, tc.bf16, tc.tf32)


@dataclass(frozen=True)
class Costs:
    """What the kernels of an element type cost.

    itemsize: bytes of an element; of an accumulator: those of a partial sum. rate: products of an
    SM in a cycle. latency: cycles of a step whose copies and products nothing else hides. The rest,
    in cycles: fragment, for a row of fragments that a warp loads; copy, for the copies of a warp's
    instruction; arrival, of latency, for each of those that a warp makes. In microseconds: launch,
    of a product; tile, of a round of tiles; total, of the sum of parts. In bytes of a microsecond:
    total_rate, of that sum; memory, of the operands; stored_rate, of D, of f32 alone.
    """

    itemsize: int
    accumulator: int
    rate: float
    latency: float
    fragment: float = 0.19
    copy: float = 2.8
    arrival: float = 2.7
    launch: float = 2.5
    tile: float = 0.5
    total: float = 2.7
    total_rate: float = 2.84e6
    memory: float = 7.1e6
    stored_rate: float = inf


COSTS = {
    tc.f16: Costs(2, 4, 976, 449),
    tc.bf16: Costs(2, 4, 976, 449),
    tc.tf32: Costs(4, 4, 480, 450),
    tc.f64: Costs(8, 8, 168, 573),
    tc.s8: Costs(1, 4, 1824, 583),
    tc.f32: Costs(
        4, 4, 257, 933, fragment=2.38, copy=5.0, arrival=6.83, launch=1.79, tile=0.115, total=1.87,
        total_rate=1.04e6, memory=9e6, stored_rate=1.5e6,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Lines:
    """How operands lie, and the result.

    aligned: bytes that one copy of A, and of B, moves. k_major: whether K is contiguous in A, in B.
    out_bytes: of an element of D.
    """

    aligned: tuple[int, int] = (16, 16)
    k_major: tuple[bool, bool] = (True, True)
    out_bytes: int = 4


# The trees that correct a type. f64 has none here; of its kernels on Hopper see f64_heuristics.py.
TREES = {dtype: "mma" for dtype in COSTS if dtype != tc.f64} | {tc.f32: "f32"}

Ranking = tuple[tuple[float, AmpereConfig], ...]


@lru_cache(maxsize=1024)
def ampere_ranking(
    dtype: Any, M: int, N: int, K: int, lines: Lines = Lines(), parts: bool = True,
    shared_bytes: int = SHARED_BYTES,
) -> Ranking:  # fmt: skip
    """(expected microseconds, configuration) of every candidate, the fastest first.

    dtype: the type in which elements are multiplied. parts: partial sums are as wide as the
    accumulator of a product. shared_bytes: of shared memory that a CTA may have.
    """
    tiles = *_wide_tiles(dtype, min(lines.aligned)), *TILES
    configs = [
        config
        for config in ampere_candidates(dtype, K, tiles)
        if (parts or config.split_k == 1) and _tile_bytes(config) <= shared_bytes
    ]
    terms = [ampere_terms(dtype, config, M, N, K, lines) for config in configs]
    found = ranked(configs, terms, stored_trees(TREES[dtype]) if dtype in TREES else None)
    return with_vectors(found, dtype, M, N, K, lines) if parts else found


def _wide_tiles(dtype: Any, aligned: int) -> tuple[tuple[int, int, int, int], ...]:
    """The wide tiles of a type, where one copy moves so many bytes."""
    if dtype == tc.f32 or aligned < 4:
        return ()
    return WIDE_TILES if aligned >= 16 and dtype != tc.f64 else WIDE_TILES[:1]


def with_vectors(
    found: Ranking, dtype: Any, M: int, N: int, K: int, lines: Lines = Lines()
) -> Ranking:
    """A ranking with tiles of vectors, where M or N is so small."""
    vectors = vector_ranking(dtype, M, N, K, lines.k_major)
    if not vectors:
        return found
    doubt = VECTORS_DOUBT if min(lines.aligned) >= 16 and dtype in DOUBTED else 1.0
    both = (*found, *((time * doubt, config) for time, config in vectors))
    return tuple(sorted(both, key=lambda x: x[0]))


def vector_ranking(
    dtype: Any, M: int, N: int, K: int, k_major: tuple[bool, bool]
) -> list[tuple[float, AmpereConfig]]:
    """(expected microseconds, configuration) of tiles of vectors, where M or N is so small."""
    vectors, lines = min(M, N), max(M, N)
    if dtype not in VECTOR_COSTS or vectors > MAX_VECTORS or lines < LEAST_LINES or K < LEAST_K:
        return []
    along_k = runs_along_k(M, N, k_major)
    height = 1 << (vectors - 1).bit_length()
    found = []
    for width, stages, warps in product(*(TILES_ALONG_K if along_k else TILES_BESIDE)):
        if width > height:
            BM, BN = (height, width) if M < N else (width, height)
            config = replace(vector_config(BM, BN, k_major, warps), stages=stages)
            if config.threads * vector_registers(dtype, config) <= REGISTERS:
                found.append((vector_time(dtype, config, M, N, K), config))
    return found


@dataclass(frozen=True)
class VectorCosts:
    """What products of vectors cost, in microseconds; fitted to 1,138 timings of 110 problems, of
    f64 to 530 of 75.

    launch: of a product. group: of a group of loads that a CTA waits for; beside: times as long
    where lines lie beside each other. load: of an SM, for a load of a warp. sum: for the sum of a
    tile's elements over lanes. In bytes of a microsecond: memory, of the operands; times as many
    with tiles of two_lines, and with narrow ones, of less than 32 lines that lie beside each other.
    several: times as long for two to four vectors. registers: of a thread, beside those for loads
    and sums; addresses: times as many of these for two lines of a thread beside each other.
    """

    launch: float = 1.12
    group: float = 0.492
    beside: float = 1.38
    load: float = 0.00205
    sum: float = 0.0287
    memory: float = 4.12e6
    two_lines: float = 1.1
    narrow: float = 0.647
    several: float = 1.07
    registers: float = 24.4
    addresses: float = 1.17


# By the type in which elements are multiplied.
VECTOR_COSTS = dict.fromkeys((tc.f16, tc.bf16, tc.tf32, tc.f32), VectorCosts()) | {
    tc.f64: VectorCosts(
        launch=1.27, group=0.542, beside=1.32, load=0.00287, sum=0.04, memory=3.85e6,
        two_lines=1.13, narrow=0.761, several=0.967,
    )
}  # fmt: skip
REGISTERS, MOST_THREADS = 1 << 16, 2048  # of an SM


def lines_of_thread(config: AmpereConfig) -> int:
    """Lines of a tile of vectors that a thread reads."""
    return config.lines if config.BK >= ALONG_K else max(config.lines // WARP, 1)


def vector_registers(dtype: Any, config: AmpereConfig) -> float:
    """Registers of a thread, for a tile of vectors."""
    costs, own, vectors = VECTOR_COSTS[dtype], lines_of_thread(config), config.vectors
    elements: float = 2 * config.stages * (own + vectors) + vectors * own
    if own > 1 and config.BK < ALONG_K:
        elements *= costs.addresses
    return costs.registers + elements * (2 if dtype == tc.f64 else 1)


def vector_time(dtype: Any, config: AmpereConfig, M: int, N: int, K: int) -> float:
    """Expected microseconds of a product of vectors."""
    costs = VECTOR_COSTS[dtype]
    stages, lines = config.stages, config.lines
    along_k, own = config.BK >= ALONG_K, lines_of_thread(config)
    of_registers = int(REGISTERS / (config.threads * vector_registers(dtype, config)))
    room = max(min(MOST_THREADS // config.threads, of_registers), 1)  # CTAs of an SM
    ctas = ceil(max(M, N) / lines)
    resident = min(ceil(ctas / SMS), room)
    rounds = ceil(ctas / (SMS * resident))
    groups = ceil(ceil(K / config.BK) / stages)
    loads = ((own + config.vectors) * groups + 1) * stages
    busy = costs.load * config.vector_warps * resident * loads
    waiting = costs.group * (1 if along_k else costs.beside) * groups
    sums = costs.sum * resident * config.vectors * own if along_k else 0.0
    compute = rounds * ((busy**4 + waiting**4) ** 0.25 + sums)
    rate = costs.memory
    if along_k:
        rate *= costs.two_lines if lines == 2 else 1
    elif lines < WARP:
        rate *= costs.narrow
    memory = COSTS[dtype].itemsize * K * (M + N) / rate
    time = float((compute**4 + memory**4) ** 0.25)
    return costs.launch + time * (costs.several if config.vectors > 1 else 1)


def runs_along_k(rows: int, cols: int, k_major: tuple[bool, bool]) -> bool:
    """Whether K is contiguous in the operand that the lines are of; k_major: see Lines."""
    return k_major[rows < cols]


def vector_config(
    BM: int, BN: int, k_major: tuple[bool, bool], warps: int = 8
) -> AmpereConfig:
    """The configuration of tiles of vectors; k_major: whether K is contiguous in A, in B."""
    along_k = runs_along_k(BM, BN, k_major)
    at_once = WARP if along_k else WARP // min(max(BM, BN), WARP)  # elements of K, by a warp
    return AmpereConfig(BM, BN, warps * at_once, BM, BN, stages=4)


def ampere_candidates(
    dtype: Any, K: int, tiles: tuple[tuple[int, int, int, int], ...] = TILES
) -> Iterator[AmpereConfig]:
    """These tiles, with parts of K of three steps at least."""
    step = ROW_BYTES // COSTS[dtype].itemsize
    deep = 4096 if dtype == tc.f32 else 8192  # elements of a tile that leaves room for a stage
    for (BM, BN, WM, WN), split_k in product(tiles, SPLITS):
        if split_k == 1 or 3 * split_k * step <= K:
            stages = 4 if deep >= BM * BN else 3
            yield AmpereConfig(BM, BN, step, WM, WN, stages, split_k=split_k)


def ampere_terms(
    dtype: Any, config: AmpereConfig, M: int, N: int, K: int, lines: Lines = Lines()
) -> dict[str, float]:
    """Expected microseconds of the product and the sum of its parts, "time", and what they are of.

    These are the features of the trees.
    """
    costs, aligned = COSTS[dtype], lines.aligned
    BM, BN, split_k, warps = config.BM, config.BN, config.split_k, config.threads // 32
    tiles = ceil(M / BM) * ceil(N / BN)
    ctas = tiles * split_k
    room = max(min(WARPS // warps, SHARED_BYTES // _tile_bytes(config)), 1)
    resident = min(ceil(ctas / SMS), room)  # CTAs of an SM at a time
    rounds = ceil(ctas / (SMS * resident))
    copies = (BM / aligned[0] + BN / aligned[1]) * 4  # instructions of warps in a step
    tensor = BM * BN * config.BK / costs.rate
    products = tensor + costs.fragment * warps * (config.WM + config.WN)
    latency = costs.latency + costs.arrival * copies / warps
    step = max((products + costs.copy * copies) * resident, latency)
    steps = ceil(K / config.BK)
    own = ceil(steps / split_k)
    compute = rounds * (own * step / CYCLES + costs.tile)
    memory = costs.itemsize * K * (M + N) / costs.memory
    if split_k > 1:
        total = costs.total + costs.accumulator * (split_k + 1) * M * N / costs.total_rate
    else:
        total = lines.out_bytes * M * N / costs.stored_rate
    time = costs.launch + max(compute, memory) + total
    fetched = costs.itemsize * K * (M * ceil(N / BN) + N * ceil(M / BM)) / costs.memory
    return {
        "time": time, "itemsize": costs.itemsize, "BM": BM, "BN": BN, "WM": config.WM,
        "WN": config.WN, "stages": config.stages, "split_k": split_k, "warps": warps,
        "a_aligned": aligned[0], "b_aligned": aligned[1], "a_k_major": lines.k_major[0],
        "b_k_major": lines.k_major[1], "out_bytes": lines.out_bytes,
        "out_aligned": N * lines.out_bytes % 16, "resident": resident, "room": room,
        "rounds": rounds, "tiles": tiles, "busy": ctas / SMS,
        "last": (ctas - 1) % (SMS * resident) / SMS / resident, "own": own, "steps": steps,
        "copies": copies / warps, "in_flight": resident * (config.stages - 1) * (BM + BN),
        "latency": latency / step, "tensor": tensor * resident / step, "compute": compute / time,
        "memory": memory / time, "fetched": fetched / time, "total": total / time,
        "stored": M * N * lines.out_bytes / time,
        "used": M * N * K / (tiles * BM * BN * steps * config.BK),
        "intensity": M * N / (M + N), "ratio": M / N,
    }  # fmt: skip


def _tile_bytes(config: AmpereConfig) -> int:
    """Bytes of shared memory of a CTA, with those that the system takes."""
    return config.stages * (config.BM + config.BN) * ROW_BYTES + 1024
