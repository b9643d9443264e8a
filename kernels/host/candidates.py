"""Candidate configurations of the wgmma kernels, which the cost model ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, THREADS, Format
from tensorcore_dsl.kernels.host.problem_shape import (
    ACTIVE_CLUSTERS,
    SMS,
    ProblemShape,
    active_clusters,
    cluster_tiles,
)

MIN_SPLIT_SLABS = 8  # 128-byte slabs of K for each CTA of a split-K cluster, at least
MIN_STREAMK_SLABS = 128  # slabs of K from which `gemm` considers stream-K


def candidates(shape: ProblemShape) -> Iterator[HopperConfig]:
    """Configurations that the operands' layouts and shared memory allow.

    Of configurations with equal costs the first one wins.
    """
    pingpong = () if shape.M <= 128 and shape.batch == 1 else pingpong_configs(shape)
    for config in (
        *pingpong, *cooperative_configs(shape), *skinny_configs(shape), *split_k_configs(shape),
        *cluster_of_four_configs(shape),
    ):  # fmt: skip
        if config.max_stages >= 2 + config.k_slabs and fits(config, shape):
            # Tiles of small matrices beside each other, stored at one time, share pages of memory.
            small = cluster_tiles(config, shape.M, shape.N) * config.cluster_size <= SMS
            by_rows = replace(config, group_m=1) if shape.batch > 1 and small else config
            yield by_rows.with_stages()
    tiles = cluster_tiles(HopperConfig(BM=128, BN=128), shape.M, shape.N, shape.batch)
    if 8 * tiles <= SMS and shape.K * shape.itemsize >= MIN_STREAMK_SLABS * SWIZZLE_BYTES:
        yield from streamk_configs(shape)


def fits(config: HopperConfig, shape: ProblemShape) -> bool:
    """Whether TMA boxes and split-K allow a configuration.

    An operand that is not K-major is loaded in boxes that are 128 bytes of its rows or columns
    wide, and each CTA of a multicast loads whole boxes. Each CTA of a split-K cluster needs a
    K-step of its own. Warps that transpose tiles need registers that `setmaxnreg` takes away.
    """
    if any(shape.transposed) and config.registers:
        return False
    k_steps = -(-shape.k_slabs // config.k_slabs)
    width = SWIZZLE_BYTES // shape.itemsize
    whole_a = (config.valid_m or config.BM) % (width * config.cluster_n) == 0
    a = shape.a_k_major or (whole_a and (shape.transposed[0] or not config.valid_m))
    b = shape.b_k_major or config.BN % (width * config.cluster_m) == 0
    return a and b and config.split_k <= k_steps


def pingpong_configs(shape: ProblemShape) -> Iterator[HopperConfig]:
    """Ping-pong: one consumer stores its tile while the other one multiplies.

    Cluster shapes that leave no CTA without rows come first.
    """
    pairs = ((1, 2), (2, 1)) if -(-shape.M // 128) % 2 else ((2, 1), (1, 2))
    for BN in (128, 192, 176, 160, 112, 96):
        for cluster_m, cluster_n in (*pairs, (1, 1)):
            yield HopperConfig(BN=BN, pingpong=True, cluster_m=cluster_m, cluster_n=cluster_n)


def cooperative_configs(shape: ProblemShape) -> Iterator[HopperConfig]:
    """Cooperative: the consumers share a tile."""
    heights = (64,) if shape.M <= 64 else (64, 128) if shape.M <= 128 else (128, 64)
    clusters = ((1, 1), (2, 1), (1, 2)) if shape.M > 128 else ((1, 1), (2, 1))
    for BM, BN in product(heights, (256, 224, 192, 160, 128, 96, 64, 32)):
        for cluster_m, cluster_n in clusters:
            # TMA takes as long for a box of few valid rows as for a full one, so the lowest CTA
            # of a cluster should have most of its rows.
            lowest = shape.M - BM * (cluster_m - 1)
            if 4 * lowest > 3 * min(shape.M, BM) and BN * (cluster_n - 1) < shape.N:
                config = HopperConfig(BM, BN, cluster_m=cluster_m, cluster_n=cluster_n)
                yield replace(config, group_m=16) if cluster_m > 1 else config


def skinny_configs(shape: ProblemShape) -> Iterator[HopperConfig]:
    """Skinny A: reading B takes the time, so every SM gets an equal share of B's columns."""
    if shape.M > 128 or shape.batch > 1:
        return
    rows = 32 if shape.transposed[0] else 8  # of a TMA box, which is not K-major
    BM, valid_m = (64 if shape.M <= 64 else 128), -(-shape.M // rows) * rows
    waves = -(-shape.N // (SMS * 256))
    share = -(-shape.N // (SMS * waves * 16)) * 16
    half = share // 2 if share % 32 == 0 and BM == 64 else share
    for BN in dict.fromkeys((half, share, 32, 64, 128)):
        for k_slabs in (2, 1) if BN < 128 else (1,):
            yield HopperConfig(BM=BM, BN=BN, valid_m=valid_m, k_slabs=k_slabs)
            if BN % 32 == 0:
                yield HopperConfig(BM=BM, BN=BN, valid_m=valid_m, k_slabs=k_slabs, split_k=2)


def split_k_configs(shape: ProblemShape) -> Iterator[HopperConfig]:
    """Split-K: two or four CTAs accumulate parts of K where tiles are too few for all SMs."""
    tiles = ((128, 128), (64, 256), (64, 128), (128, 64), (64, 64))
    for split_k, (BM, BN) in product((2, 4), tiles):
        if BN % (16 * split_k) == 0:
            config = HopperConfig(BM=BM, BN=BN, split_k=split_k)
            count = cluster_tiles(config, shape.M, shape.N, shape.batch)
            one_wave = count <= active_clusters(config)
            if one_wave and shape.k_slabs >= MIN_SPLIT_SLABS * split_k:
                yield config


def cluster_of_four_configs(shape: ProblemShape) -> Iterator[HopperConfig]:
    """Clusters of four CTAs, where one wave of them holds all tiles."""
    for BM, BN, cluster_m, cluster_n in ((64, 160, 4, 1), (64, 192, 4, 1), (128, 128, 2, 2)):
        config = HopperConfig(BM=BM, BN=BN, cluster_m=cluster_m, cluster_n=cluster_n)
        filled = BM * (cluster_m - 1) < shape.M and BN * (cluster_n - 1) < shape.N
        count = cluster_tiles(config, shape.M, shape.N)
        if filled and shape.batch == 1 and count <= ACTIVE_CLUSTERS[4]:
            yield config


def streamk_configs(shape: ProblemShape) -> Iterator[HopperConfig]:
    """Stream-K: all SMs share the K-steps of the tiles that fill no whole wave.

    Its kernel transposes no tiles.
    """
    if any(shape.transposed):
        return
    for BM, BN in ((128, 256), (128, 192), (128, 128), (128, 64), (64, 256)):
        for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2)):
            units = SMS // (cluster_m * cluster_n)
            config = HopperConfig(BM, BN, cluster_m=cluster_m, cluster_n=cluster_n)
            if fits(config, shape):
                yield replace(config, streamk_units=units).with_stages()


# 2:4 sparse A

SPARSE_TILES = ((128, 256), (192, 192), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64))
SPARSE_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))


def sparse_candidates(M: int, N: int, format: Format, b_k_major: bool) -> Iterator[HopperConfig]:
    """Configurations of the sparse kernel that fit B's layout and shared memory."""
    width = SWIZZLE_BYTES // format.dtype.itemsize
    for (BM, BN), (cluster_m, cluster_n) in product(SPARSE_TILES, SPARSE_CLUSTERS):
        boxes = b_k_major or BN % (width * cluster_m) == 0
        if boxes and BM * (cluster_m - 1) < M and BN * (cluster_n - 1) < N:
            config = HopperConfig(BM=BM, BN=BN, cluster_m=cluster_m, cluster_n=cluster_n)
            available = SMEM_BYTES - config.epilogue_bytes - 2048
            yield replace(config, stages=min(8, available // sparse_stage_bytes(config, format)))


def sparse_stage_bytes(
    config: HopperConfig, format: Format, cluster_m: int = 1, cluster_n: int = 1
) -> int:
    """Bytes of a stage: A, of which half is stored, its metadata, and B.

    cluster_m, cluster_n: CTAs of a cluster that load B, or A, together.
    """
    metadata = config.BM // ROWS * THREADS * format.words * 4
    a, b = config.BM * SWIZZLE_BYTES // 2, config.BN * SWIZZLE_BYTES
    return a // cluster_n + metadata + b // cluster_m
