"""Heuristics for f64 on Hopper: tiles, parts of K, stream-K, and what each costs.

The constants are fitted to 988 configurations of 147 problems, timed on an H200 beyond its L2
cache, within 4 percent (root mean square, fast configurations weighing more; errors that all
configurations of a problem share weigh less). Regression trees correct what this leaves out, as
those of corrections.py do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil

from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.f64_gemm import resident_ctas
from tensorcore_dsl.kernels.host.corrections import ranked, stored_trees
from tensorcore_dsl.kernels.host.problem_shape import SMS

CYCLES = 1.75e3  # of an SM, in a microsecond
REGISTERS = 64 * 1024  # of an SM
SHARED_BYTES = 226 * 1024  # of shared memory, of an SM
STAGES = 8  # at most
WARPS = 8  # of an SM, that keep its tensor cores busy
# BM, BN, WM, WN: of eight warps, then of four, so that each quarter of an SM has as many
TILES = (
    (128, 128, 64, 32), (96, 128, 48, 32), (128, 96, 32, 48), (112, 128, 112, 16),
    (80, 128, 80, 16), (128, 80, 16, 80), (64, 128, 32, 32), (128, 64, 32, 32), (48, 128, 48, 16),
    (128, 48, 16, 48), (32, 128, 16, 32), (128, 32, 32, 16), (16, 128, 16, 16), (128, 16, 16, 16),
    (128, 64, 64, 32), (64, 128, 64, 32), (112, 64, 112, 16), (96, 64, 48, 32), (64, 96, 32, 48),
    (80, 64, 80, 16), (64, 80, 16, 80), (64, 64, 32, 32), (48, 64, 48, 16), (64, 48, 16, 48),
    (32, 128, 32, 32), (128, 32, 32, 32), (64, 32, 32, 16), (32, 64, 16, 32), (16, 128, 16, 32),
    (128, 16, 32, 16), (32, 32, 16, 16), (16, 64, 16, 16), (64, 16, 16, 16),
)  # fmt: skip
# Elements of K in a stage, and how many stages are wanted. Deep stages are better: each costs.
DEPTHS = ((16, 4), (32, 3), (64, 3))
DEEP_TILE = 32 * 128  # elements of a tile of 64 elements of K, at most
SPLITS = (1, 2, 3, 4, 6, 8, 16)
MAX_PEERS = 8  # units of stream-K that share a tile
MIN_STEPS = 4  # of a unit
# Of a warp with stream-K, columns, at most, and of its threads, registers beside those of the
# accumulators, at least: else registers are spilled.
STREAMK_COLUMNS, STREAMK_REGISTERS = 64, 104

# Throughput
PRODUCTS = 126.0  # of an SM in a cycle
SHARED_RATE, CACHE_RATE = 300.0, 75.3  # bytes of an SM in a cycle: shared memory, L2 cache
NORM = 2.02  # how these three add up: 1, one after the other, to infinity, the longest alone
MEMORY = 4.71e6  # bytes of a microsecond: the operands and D
TOTAL_RATE = 5.74e6  # bytes of a microsecond: partial sums, and D

# Costs in cycles
STAGE, WARP = 19.7, 0.18  # of a stage, and of each warp in it: barriers and addresses
COPY = 3.99  # an instruction of a warp that copies 8 bytes a thread
LATENCY, LATENCY_COPIED = 110.0, 14.8  # a stage of one CTA alone; more where threads copy
COPY_ALONE = 31.8  # more, for each of its warp's copies
DEPTH = 2.33  # more, for each element of K in the stage
ELEMENT = 0.08  # an element of D in the epilogue

# Costs in microseconds
LAUNCH = 1.56
ROUND = 0.162  # of CTAs that run at a time
TOTAL = 0.903  # the kernel that adds up partial sums
FIX_UP, PEER = 7.0, 1.7  # of stream-K: flags that are cleared; each unit that shares a tile

SCATTERED = 1.02  # slowdown of stream-K, whose CTAs share fewer tiles of A and B in the L2 cache
ODD = 1.01  # slowdown of tiles that are no power of two, which the rest does not explain
FEW = 1.34  # slowdown of the tensor cores where one CTA of fewer warps than WARPS is alone on an SM
UNHIDDEN = 0.257  # part of the shorter of computation and memory that is not hidden


NEAR = 1.5  # times the least expected time: what may be the fastest is corrected


@lru_cache(maxsize=1024)
def f64_ranking(
    M: int, N: int, K: int, aligned: tuple[int, int] = (16, 16)
) -> tuple[tuple[float, AmpereConfig], ...]:
    """(expected microseconds, configuration) of every candidate, the fastest first."""
    configs = tuple(f64_candidates(M, N, K))
    terms = [f64_terms(config, M, N, K, aligned) for config in configs]
    return ranked(configs, terms, stored_trees("f64"), NEAR)


@lru_cache(maxsize=1)
def _tiles() -> tuple[AmpereConfig, ...]:
    """All tiles with all depths of stages, and the stages of CTAs that share an SM."""
    found = []
    for BM, BN, WM, WN in TILES:
        for BK, wanted in DEPTHS:
            if BK > 32 and BM * BN > DEEP_TILE:
                continue
            stages = _stages(AmpereConfig(BM, BN, BK, WM, WN, 1), wanted)
            # Of stages that fit as often as those of half the depth, the shallow ones are no use.
            if BK > 16 or (BM * BN <= 64 * 128 and (WM * WN > 1024 or BM == BN == 64)):
                found.append(AmpereConfig(BM, BN, BK, WM, WN, stages))
    return tuple(found)


def _stages(config: AmpereConfig, wanted: int) -> int:
    """Stages of each of the CTAs that share an SM: as many CTAs as get those that are wanted.

    Else as many as get two; but CTAs with small accumulators rather have them all.
    """
    stage = (config.BM + config.BN) * config.BK * 8
    warps, most = config.threads // 32, resident_ctas(config)
    fitting = {room: (SHARED_BYTES // room - 1280) // stage for room in range(most, 0, -1)}
    busy = WARPS if config.BK < 64 else warps
    for least, needed in ((wanted, busy), (2, 0)):
        for room, stages in fitting.items():
            if stages >= least and room * warps >= needed:
                return min(STAGES, stages)
    raise AssertionError(f"no two stages fit: {config}")


def f64_candidates(M: int, N: int, K: int) -> Iterator[AmpereConfig]:
    """All tiles, with parts of K of three stages at least, and shared by all CTAs that fit."""
    for config in _tiles():
        for split_k in SPLITS:
            if split_k == 1 or 3 * split_k * config.BK <= K:
                yield replace(config, split_k=split_k)
        tiles, units = ceil(M / config.BM) * ceil(N / config.BN), SMS * resident_ctas(config)
        steps = tiles * ceil(K / config.BK)
        if not takes_streamk(config):
            continue
        if tiles % units and units <= MAX_PEERS * tiles and steps >= MIN_STEPS * units:
            yield replace(config, streamk_units=units)


def takes_streamk(config: AmpereConfig) -> bool:
    """Whether the threads have registers for all that stream-K keeps during a tile."""
    threads = config.threads * resident_ctas(config)
    registers = min(255, REGISTERS // threads)
    beside = registers - config.WM * config.WN // 16
    return config.WN <= STREAMK_COLUMNS and beside >= STREAMK_REGISTERS


def f64_terms(
    config: AmpereConfig, M: int, N: int, K: int, aligned: tuple[int, int] = (16, 16)
) -> dict[str, float]:
    """Expected microseconds of the product and the sum of its parts, "time", and what they are of.

    These are the features of the trees. aligned: bytes that one copy of A, and of B, moves; TMA
    needs 16.
    """
    BM, BN, BK, split_k = config.BM, config.BN, config.BK, config.split_k
    warps, lines, resident = config.threads // 32, BM + BN, resident_ctas(config)
    tensor = BM * BN * BK / PRODUCTS
    shared = (warps * (config.WM + config.WN) + lines) * BK * 8 / SHARED_RATE
    cache = lines * BK * 8 / CACHE_RATE
    copied = BM * (aligned[0] < 16) + BN * (aligned[1] < 16)
    copies = copied * BK / 32
    stage = (tensor**NORM + shared**NORM + cache**NORM) ** (1 / NORM)
    stage += STAGE + WARP * warps + COPY * copies
    few = ceil(warps / 4) * 4 / warps * (FEW if warps < WARPS else 1)
    alone = LATENCY + DEPTH * BK + tensor * few
    alone += LATENCY_COPIED + COPY_ALONE * copies / warps if copies else 0
    tiles, stages = ceil(M / BM) * ceil(N / BN), ceil(K / BK)
    ending, units = BM * BN * ELEMENT, config.streamk_units
    if units:
        left = tiles % units
        shared_tiles = min(left + units, tiles) if left else 0
        own, ctas = (tiles - shared_tiles) // units, ceil(units / SMS)
        share = shared_tiles / units
        cycles = (own + share) * stages * max(ctas * stage, alone)
        cycles += (own + min(share, 1) + 0.5) * ctas * ending
        compute = cycles / CYCLES + ROUND * (own + 1)
        compute += FIX_UP + PEER * max(0, 1 / share - 1) if left else 0
        rounds, rest = divmod(tiles, units)
    else:

        def round_of(ctas: int) -> float:
            cycles = ceil(stages / split_k) * max(ctas * stage, alone) + ctas * ending
            return cycles / CYCLES + ROUND

        share = 1 / split_k
        rounds, rest = divmod(ceil(tiles * split_k / SMS), resident)
        compute = rounds * round_of(resident) + (round_of(rest) if rest else 0)
    memory = 8 * (K * (M + N) + M * N) / MEMORY
    time = LAUNCH + max(compute, memory) + UNHIDDEN * min(compute, memory)
    time *= ODD if BM & BM - 1 or BN & BN - 1 else 1
    time *= SCATTERED if units else 1
    total = TOTAL + 8 * (split_k + 1) * M * N / TOTAL_RATE if split_k > 1 else 0
    return {
        "time": time + total, "BM": BM, "BN": BN, "BK": BK, "WM": config.WM, "WN": config.WN,
        "stages": config.stages, "split_k": split_k, "units": units, "warps": warps,
        "resident": resident, "copied": copied / lines, "tiles": tiles, "rounds": rounds,
        "rest": rest, "share": share, "steps": stages, "busy": tiles * split_k / SMS,
        "stage": stage / tensor, "alone": alone / stage, "compute": compute / (time + total),
        "memory": memory / (time + total), "total": total / (time + total),
        "used": M * N * K / (tiles * BM * BN * stages * BK),
        "intensity": M * N / (M + N), "ratio": M / N,
    }  # fmt: skip
