"""Heuristics for f64 on Hopper: tiles, parts of K, and what each costs.

The constants are fitted to 342 configurations of 43 problems, timed on an H200 beyond its L2 cache,
within 8 percent (root mean square).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil

from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.f64_gemm import resident_ctas
from tensorcore_dsl.kernels.host.problem_shape import SMS

CYCLES = 1.75e3  # of an SM, in a microsecond
SHARED_BYTES = 226 * 1024  # of shared memory, of an SM
STAGES = 8  # at most
SLAB_BYTES = 40 * 1024  # of a stage deeper than 16 elements of K, at most
# BM, BN, WM, WN
TILES = (
    (128, 128, 64, 32), (128, 64, 64, 32), (64, 128, 64, 32), (96, 128, 48, 32), (128, 96, 32, 48),
    (96, 64, 48, 32), (64, 96, 32, 48), (192, 64, 48, 32), (64, 192, 32, 48), (80, 64, 80, 16),
    (64, 80, 16, 80), (80, 128, 80, 32), (48, 64, 48, 16), (48, 128, 48, 32), (64, 48, 16, 48),
    (128, 48, 32, 48), (64, 64, 32, 32), (64, 32, 32, 16), (32, 64, 16, 32),
    (32, 32, 16, 16), (32, 128, 32, 32), (128, 32, 32, 32), (16, 64, 16, 16), (16, 128, 16, 32),
    (64, 16, 16, 16), (128, 16, 32, 16),
)  # fmt: skip
DEPTHS = (16, 32, 64)  # of a stage along K
SPLITS = (1, 2, 3, 4, 6, 8, 16)

# Throughput
PRODUCTS = 143  # of an SM in a cycle
SHARED_RATE, CACHE_RATE = 137, 44.3  # bytes of an SM in a cycle: shared memory, L2 cache
MEMORY = 4.22e6  # bytes of a microsecond: the operands and D
TOTAL_RATE = 5.44e6  # bytes of a microsecond: partial sums, and D

# Costs in cycles
WARP = 14.8  # a step of K of a warp: barriers and addresses
COPY = 2.5  # an instruction of a warp that copies 8 bytes a thread
LATENCY, LATENCY_COPIED = 128, 432  # a step of one CTA alone; more where threads copy
DEPTH = 11.1  # more, for each element of K in the step
ELEMENT = 0.255  # an element of D in the epilogue

# Costs in microseconds
LAUNCH = 0.91
ROUND = 0.45  # of CTAs that run at a time
TOTAL = 1.19  # the kernel that adds up partial sums

ODD = 1.05  # slowdown of tiles that are no power of two, which the rest does not explain
HIDDEN = 0.12  # part of the shorter costs of a step that is not hidden
HIDDEN_MEMORY = 0.1  # the same of computation and memory


@lru_cache(maxsize=1024)
def f64_ranking(
    M: int, N: int, K: int, aligned: tuple[int, int] = (16, 16)
) -> tuple[tuple[float, AmpereConfig], ...]:
    """(expected microseconds, configuration) of every candidate, the fastest first."""
    ranked = [(f64_time(config, M, N, K, aligned), config) for config in f64_candidates(K)]
    return tuple(sorted(ranked, key=lambda entry: entry[0]))


def f64_candidates(K: int) -> Iterator[AmpereConfig]:
    """All tiles, with parts of K of three stages at least."""
    for BM, BN, WM, WN in TILES:
        for BK in DEPTHS:
            stage = (BM + BN) * BK * 8
            if BK > 16 and stage > SLAB_BYTES:
                continue
            room = resident_ctas(AmpereConfig(BM, BN, BK, WM, WN, 1))
            while room > 1 and SHARED_BYTES // room // stage < max(3, 64 // BK):
                room -= 1
            stages = min(STAGES, (SHARED_BYTES // room - 1280) // stage)
            for split_k in SPLITS:
                if split_k == 1 or 3 * split_k * BK <= K:
                    yield AmpereConfig(BM, BN, BK, WM, WN, stages, split_k=split_k)


def f64_time(
    config: AmpereConfig, M: int, N: int, K: int, aligned: tuple[int, int] = (16, 16)
) -> float:
    """Microseconds of the product, and of the sum of its parts.

    aligned: bytes that one copy of A, and of B, moves; TMA needs 16.
    """
    BM, BN, BK, split_k = config.BM, config.BN, config.BK, config.split_k
    warps, lines = config.threads // 32, BM + BN
    tensor = BM * BN * BK / PRODUCTS
    shared = (warps * (config.WM + config.WN) + lines) * BK * 8 / SHARED_RATE
    cache = lines * BK * 8 / CACHE_RATE
    copied = BM * (aligned[0] < 16) + BN * (aligned[1] < 16)
    longest = max(tensor, shared, cache)
    step = longest + HIDDEN * (tensor + shared + cache - longest)
    step += warps * WARP + copied * BK / 32 * COPY
    alone = LATENCY + DEPTH * BK + tensor * max(1, 4 / warps) + (LATENCY_COPIED if copied else 0)
    steps = ceil(ceil(K / BK) / split_k)

    def round_of(ctas: int) -> float:
        cycles = steps * max(ctas * step, alone) + ctas * BM * BN * ELEMENT
        return cycles / CYCLES + ROUND

    rounds, rest = divmod(ceil(ceil(M / BM) * ceil(N / BN) * split_k / SMS), resident_ctas(config))
    compute = rounds * round_of(resident_ctas(config)) + (round_of(rest) if rest else 0)
    memory = 8 * (K * (M + N) + M * N) / MEMORY
    time = LAUNCH + max(compute, memory) + HIDDEN_MEMORY * min(compute, memory)
    time *= ODD if BM & BM - 1 or BN & BN - 1 else 1
    return time + (TOTAL + 8 * (split_k + 1) * M * N / TOTAL_RATE if split_k > 1 else 0)
