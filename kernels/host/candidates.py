"""The configurations of the wgmma kernels that a product may take, before any is costed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.host.problem_shape import CLUSTERS, SMS, Shape, at_once, clusters

LEAST_STEPS = 8  # of K that are worth a block of their own


def candidates(shape: Shape) -> Iterator[HopperConfig]:
    """Configurations that the operands' layouts and shared memory allow, the best habits first."""
    turns = () if shape.M <= 128 and shape.matrices == 1 else in_turn(shape)
    for config in (*turns, *together(shape), *few_rows(shape), *split(shape), *fours(shape)):
        if config.max_stages >= 2 + config.k_slabs and fits(config, shape):
            yield in_order(config, shape).with_stages()
    few = 8 * clusters(HopperConfig(BM=128, BN=128), shape.M, shape.N, shape.matrices) <= SMS
    if few and shape.K * shape.itemsize >= 128 * SWIZZLE_BYTES:  # few tiles, each with many steps
        yield from divided(shape)


def fits(config: HopperConfig, shape: Shape) -> bool:
    """Operands that are not K-major come in boxes of 128 bytes of rows or columns; blocks that
    split K each have a step of it."""
    steps = -(-shape.steps // config.k_slabs)
    width = SWIZZLE_BYTES // shape.itemsize
    a = shape.a_k_major or (config.BM % (width * config.cluster_n) == 0 and not config.valid_m)
    b = shape.b_k_major or config.BN % (width * config.cluster_m) == 0
    return a and b and config.split_k <= steps


def in_order(config: HopperConfig, shape: Shape) -> HopperConfig:
    """Of small matrices, tiles beside each other come together: their results share pages."""
    small = clusters(config, shape.M, shape.N) * config.cluster_size <= SMS
    return replace(config, group_m=1) if shape.matrices > 1 and small else config


def in_turn(shape: Shape) -> Iterator[HopperConfig]:
    """One consumer stores its tile while the other multiplies the next; first those clusters that
    leave none of their blocks without rows."""
    pairs = ((1, 2), (2, 1)) if -(-shape.M // 128) % 2 else ((2, 1), (1, 2))
    for BN in (128, 192, 176, 160, 112, 96):
        for cluster, across in (*pairs, (1, 1)):
            yield HopperConfig(BN=BN, pingpong=True, cluster_m=cluster, cluster_n=across)


def together(shape: Shape) -> Iterator[HopperConfig]:
    """Consumers share a tile."""
    heights = (64,) if shape.M <= 64 else (64, 128) if shape.M <= 128 else (128, 64)
    shared = ((1, 1), (2, 1), (1, 2)) if shape.M > 128 else ((1, 1), (2, 1))  # B is the work
    for BM, BN in product(heights, (256, 224, 192, 160, 128, 96, 64, 32)):
        for cluster, across in shared:
            rows = shape.M - BM * (cluster - 1)  # of the lowest block: boxes of few take long
            if 4 * rows > 3 * min(shape.M, BM) and BN * (across - 1) < shape.N:
                group = 16 if cluster > 1 else 8
                yield HopperConfig(BM=BM, BN=BN, cluster_m=cluster, cluster_n=across, group_m=group)


def few_rows(shape: Shape) -> Iterator[HopperConfig]:
    """Reading B is the work: each SM takes as many of its columns as the others."""
    if shape.M > 128 or shape.matrices > 1:
        return
    BM, rows = (64 if shape.M <= 64 else 128), -(-shape.M // 8) * 8
    waves = -(-shape.N // (SMS * 256))
    share = -(-shape.N // (SMS * waves * 16)) * 16
    half = share // 2 if share % 32 == 0 and BM == 64 else share
    for BN in dict.fromkeys((half, share, 32, 64, 128)):
        for lines in (2, 1) if BN < 128 else (1,):
            yield HopperConfig(BM=BM, BN=BN, valid_m=rows, k_slabs=lines)
            if BN % 32 == 0:
                yield HopperConfig(BM=BM, BN=BN, valid_m=rows, k_slabs=lines, split_k=2)


def split(shape: Shape) -> Iterator[HopperConfig]:
    """Two or four blocks sum parts of K where tiles are too few for all SMs."""
    tiles = ((128, 128), (64, 256), (64, 128), (128, 64), (64, 64))
    for parts, (BM, BN) in product((2, 4), tiles):
        if BN % (16 * parts) == 0:
            config = HopperConfig(BM=BM, BN=BN, split_k=parts)
            few = clusters(config, shape.M, shape.N, shape.matrices) <= at_once(config)
            if few and shape.steps >= LEAST_STEPS * parts:
                yield config


def fours(shape: Shape) -> Iterator[HopperConfig]:
    """Clusters of four, where a wave of them holds all tiles."""
    tiles = ((64, 160, 4, 1), (64, 192, 4, 1), (128, 128, 2, 2))
    for BM, BN, cluster, across in tiles:
        config = HopperConfig(BM=BM, BN=BN, cluster_m=cluster, cluster_n=across)
        filled = BM * (cluster - 1) < shape.M and BN * (across - 1) < shape.N
        if filled and shape.matrices == 1 and clusters(config, shape.M, shape.N) <= CLUSTERS[4]:
            yield config


def divided(shape: Shape) -> Iterator[HopperConfig]:
    """Workers share what fills no wave."""
    for BM, BN in ((128, 256), (128, 192), (128, 128), (128, 64), (64, 256)):
        for cluster, across in ((1, 1), (2, 1), (1, 2)):
            workers = SMS // (cluster * across)
            config = HopperConfig(BM=BM, BN=BN, cluster_m=cluster, cluster_n=across, streamk_units=workers)
            if fits(config, shape):
                yield config.with_stages()
