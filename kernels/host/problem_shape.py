"""A product's shape, and how many tiles, clusters and blocks of a configuration it takes."""

from __future__ import annotations

from dataclasses import dataclass

from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig

SMS = 132  # of an H100 or H200
CLUSTERS = {4: 28}  # of so many blocks that run at once, where these are fewer than fit


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

    @property
    def steps(self) -> int:
        """Lines of K."""
        return -(-self.K * self.itemsize // SWIZZLE_BYTES)


def clusters(config: HopperConfig, M: int, N: int, matrices: int = 1) -> int:
    """Tiles of D, or groups of them, that clusters of blocks take."""
    high, wide = config.BM * config.cluster_m, config.BN * config.cluster_n
    return -(-M // high) * -(-N // wide) * matrices


def blocks_of_grid(config: HopperConfig, M: int, N: int, matrices: int = 1) -> int:
    """A block an SM, each with many tiles; of split tiles, as many blocks as parts.

    Tiles that workers divide have all workers' blocks.
    """
    if config.streamk_units:
        return config.streamk_units * config.cluster_size
    count = clusters(config, M, N, matrices)
    if config.split_k == 1:
        count = min(at_once(config), count)
    return count * config.cluster_size


def at_once(config: HopperConfig) -> int:
    """Clusters that the chip runs together."""
    return CLUSTERS.get(config.cluster_size, SMS // config.cluster_size)
