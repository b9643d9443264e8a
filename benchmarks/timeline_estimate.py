"""Estimated times of the configurations of `timeline_cases`, from emulated runs of one cluster.

A whole problem is too large to emulate. One cluster runs few tiles with a small K, and the time of
the problem follows by straight lines: in the k_tiles of a tile, and in the tiles of an SM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from benchmarks.gemm_cases import DTYPES, Size
from benchmarks.timeline_cases import DTYPE, Candidate
from tensorcore_dsl import kernels
from tensorcore_dsl.interpreter.timeline.costs import SM_90A, at_power_limit, joules
from tensorcore_dsl.interpreter.timeline.timeline import Timeline
from tensorcore_dsl.kernels.host.problem_shape import SMS, active_clusters

ARCH, ITEMSIZE = "sm_90a", DTYPES[DTYPE].itemsize


@dataclass(frozen=True)
class Work:
    """A run to emulate: tiles of one cluster below each other, and k_tiles of each."""

    tiles: int
    k_tiles: int


def emulated(config: Any, family: str, work: Work) -> Timeline:
    """The timeline of one cluster that computes these tiles."""
    hopper = family == "sm90"
    depth = config.k_slabs * 64 if hopper else config.BK
    cluster = (config.cluster_m, config.cluster_n) if hopper else (1, 1)
    M, N = config.BM * cluster[0] * work.tiles, config.BN * cluster[1]
    K, dtype = depth * work.k_tiles, DTYPES[DTYPE].numpy
    a, b, d = np.zeros((M, K), dtype), np.zeros((K, N), dtype, "F"), np.zeros((M, N), dtype)
    with tc.target("cpu", ARCH):
        plan = kernels.plan(a, b, None, d, family=family, config=config)
        run = plan.kernel.emulator(ARCH, timeline=True)
        grid = cluster[0] * cluster[1] if hopper else work.tiles
        report = run[grid, config.threads](a, b, d, d, 1.0, 0.0, **dict(plan.options))
    timeline: Timeline = report.timeline
    return timeline


@cache
def recorded(config: Any, family: str, work: Work) -> Timeline:
    return emulated(config, family, work)


Runs = Callable[[Any, str, Work], Timeline]


def estimate(candidate: Candidate, about: Mapping[str, Any], runs: Runs = recorded) -> float:
    """Estimated seconds. about: the registers of a thread and the bytes of shared memory."""
    config, (M, N, K) = candidate.config, candidate.size
    if candidate.family == "sm90":
        rows, cols = config.BM * config.cluster_m, config.BN * config.cluster_n
        concurrent = active_clusters(config)
    else:
        rows, cols = config.BM, config.BN
        concurrent = SMS * resident_blocks(config, about)
    tiles = ceil(M / rows) * ceil(N / cols)
    waves = tiles / min(tiles, concurrent)
    loaded = tiles * (rows + cols) * K * ITEMSIZE  # from the L2 cache
    operands = (M + N) * K * ITEMSIZE
    fits = operands < SM_90A["l2_bytes"].value
    high = min(config.group_m, concurrent)  # tiles of a wave below and beside each other
    of_wave = (high * rows + concurrent / high * cols) * K * ITEMSIZE
    how = {
        "sms": SMS,
        "cold": 1 / waves if fits else 1.0,
        "from_dram": min(1.0, (operands if fits else max(operands, waves * of_wave)) / loaded),
    }
    cycles = _hopper if candidate.family == "sm90" else _ampere
    total = SM_90A["launch"].value + cycles(config, candidate.size, tiles, about, how, runs)
    energy = joules(M * N * K, loaded + M * N * ITEMSIZE)
    return at_power_limit(total / SM_90A["clock"].value, energy)


def resident_blocks(config: Any, about: Mapping[str, Any]) -> int:
    """Blocks of the mma.sync kernels that an SM holds at a time."""
    limit = {name: figure.value for name, figure in SM_90A.items()}
    per_warp = ceil(about["registers"] / 8) * 8 * 32
    return int(
        min(
            limit["sm_threads"] // config.threads,
            limit["sm_registers"] // (per_warp * config.threads // 32),
            limit["sm_shared"] // (about["shared_bytes"] + 1024),
        )
    )


def _hopper(
    config: Any, size: Size, tiles: int, about: Mapping[str, Any], how: dict[str, Any], runs: Runs
) -> float:
    """The kernels are persistent: an SM computes the tiles of all waves one after the other."""
    k_tiles, first = -(-size[2] // (64 * config.k_slabs)), config.stages + 4
    waves = ceil(tiles / active_clusters(config))
    pair = 2 if config.pingpong else 1  # tiles of the two consumers overlap

    def time(tiles: int, k_tiles: int) -> float:
        work = Work(tiles, k_tiles)
        return runs(config, "sm90", work).assuming(resident=1, **how).block_cycles

    alone, longer = time(1, first), time(1, 2 * first)
    base = time(pair, first) if pair > 1 else alone
    step = (time(pair, 2 * first) - base if pair > 1 else longer - alone) / first / pair
    of_tile = (time(2 * pair, first) - base) / pair + (k_tiles - first) * step
    begin = alone + (k_tiles - first) * (longer - alone) / first
    cluster = SM_90A["cluster_launch"].value if config.cluster_size > 1 else 0
    return begin + (waves - 1) * of_tile + cluster


def _ampere(
    config: Any, size: Size, tiles: int, about: Mapping[str, Any], how: dict[str, Any], runs: Runs
) -> float:
    """A block computes one tile; blocks that share an SM overlap."""
    k_tiles, first = -(-size[2] // config.BK), config.stages + 4
    resident = resident_blocks(config, about)
    of_sm = ceil(tiles / SMS)  # blocks of the busiest SM

    def time(blocks: int) -> float:
        short, long = (
            runs(config, "sm80", Work(1, n)).assuming(resident=blocks, **how).block_cycles
            for n in (first, 2 * first)
        )
        return short + (long - short) / first * (k_tiles - first)

    waves, rest = divmod(of_sm, resident)
    starts = (of_sm / resident - 1) * SM_90A["block_start"].value
    return waves * time(resident) + (time(rest) if rest else 0.0) + max(starts, 0.0)
