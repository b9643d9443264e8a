"""Sizes and properties that decide about the speed of a problem, and grids of configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig
from tensorcore_dsl.kernels.sizes import cdiv

SMS = 132  # SMs of an H100 SXM or H200. On fewer SMs, persistent CTAs just take more turns.
# CTAs of a cluster -> clusters that run at the same time on an H200, by
# cuOccupancyMaxActiveClusters. A cluster lies in one GPC, so fewer run than SMS would allow.
ACTIVE_CLUSTERS = {3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}


@dataclass(frozen=True)
class ProblemShape:
    """Sizes of a product and the properties of its operands that decide about speed.

    Fields may be arrays, for the training of the trees.

    Attributes
    ----------
    M, N, K : int
        Sizes of the product.
    itemsize, out_bytes : int
        Bytes of an element of A and B, and of D.
    batch : int
        Matrices of a batch.
    a_k_major, b_k_major : bool
        K is contiguous in A, in B.
    misaligned : float
        Share of the 128-byte pieces of A or B that straddle two lines of the L2 cache.
    store_by_threads : bool
        TMA cannot write D.
    has_epilogue : bool
        A function is applied to the results, or C is added.
    promoted : bool
        Accumulators are promoted to f32 (promotion.py).
    products : float
        Tensor-core products for one product of two elements: 3 for f32, 0.5 for a sparse A.
    a_align, b_align : int
        Bytes that one copy of A, of B, moves.
    copies, copied_bytes : int
        Launches that copy operands or the result, and the bytes that they read and write.
    """

    M: int
    N: int
    K: int
    itemsize: int = 2
    batch: int = 1
    a_k_major: bool = True
    b_k_major: bool = True
    misaligned: float = 0
    store_by_threads: bool = False
    has_epilogue: bool = False
    promoted: bool = False
    out_bytes: int = 2
    products: float = 1
    a_align: int = 16
    b_align: int = 16
    copies: int = 0
    copied_bytes: float = 0

    @cached_property
    def swapped(self) -> ProblemShape:
        """Shape of the transposed product of swap AB: D^T = B^T A^T."""
        return replace(
            self,
            M=self.N,
            N=self.M,
            a_k_major=self.b_k_major,
            b_k_major=self.a_k_major,
            a_align=self.b_align,
            b_align=self.a_align,
        )

    def seen_by(self, swap_ab: Any) -> ProblemShape:
        """Arrays of the fields for configurations with or without swap AB, an element for each."""
        names = "M", "N", "a_k_major", "b_k_major", "a_align", "b_align"
        fields = {n: np.where(swap_ab, getattr(self.swapped, n), getattr(self, n)) for n in names}
        return replace(self, **fields)

    @property
    def in_fragments(self) -> Any:
        """Whether consumers read fragments of tiles of A, which are MN-major and of 32 bits."""
        return (self.itemsize == 4) & np.logical_not(self.a_k_major)

    @property
    def transposed(self) -> Any:
        """Whether warps transpose tiles of B, which are MN-major and of 32 bits."""
        return (self.itemsize == 4) & np.logical_not(self.b_k_major)

    @property
    def k_slabs(self) -> int:
        """128-byte slabs of K."""
        return cdiv(self.K * self.itemsize, SWIZZLE_BYTES)


def cluster_tiles(config: HopperConfig, M: int, N: int, batch: int = 1) -> int:
    """Work items of the scheduler: tiles of D, or groups of tiles that a cluster computes."""
    if config.swap_ab:
        M, N = N, M
    rows, cols = config.BM * config.cluster_m, config.BN * config.cluster_n
    return cdiv(M, rows) * cdiv(N, cols) * batch


def grid_size(config: HopperConfig, M: int, N: int, batch: int = 1) -> int:
    """CTAs of a launch.

    The kernels are persistent, with at most one CTA per SM. The grid is the smallest one with the
    same number of waves of tiles. More CTAs would take power and bandwidth and save no wave. Split-K
    has a cluster for each tile.
    """
    count = cluster_tiles(config, M, N, batch)
    if config.split_k == 1:
        waves = cdiv(count, active_clusters(config))
        count = cdiv(count, max(waves, 1))
    return count * config.cluster_size


def active_clusters(config: HopperConfig) -> int:
    """Number of clusters of a configuration that run at the same time."""
    return ACTIVE_CLUSTERS.get(config.cluster_size, SMS // config.cluster_size)
