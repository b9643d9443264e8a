"""Host-side data of the sm_80 GEMM kernels: tile sizes, and what a kernel may assume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.config_fields import check_fields
from tensorcore_dsl.kernels.user_functions import EpilogueCall

WARP = 32
MAX_VECTORS = 4  # rows or columns of a tile of vectors, at most
ALONG_K = 256  # elements of K in a step of tiles of vectors, at least, whose lanes lie along K


@dataclass(frozen=True)
class AmpereConfig:
    """Tile sizes and pipeline depth; all are compile-time constants of a kernel.

    Tiles of up to 4 rows or columns are products of vectors, which use no tensor cores
    (vector_gemm.py). WM and WN are BM and BN, BK is what all warps of a tile read of K at once: 256
    elements, by eight warps, where K is contiguous in the larger operand, else 8 in tiles of 32 or
    64 lines, 16 in those of 16, 32 in those of 8, or twice as many by sixteen warps; stages are
    elements of a line that a thread loads at once.

    Attributes
    ----------
    BM, BN : int
        Rows and columns of D that a CTA computes.
    BK : int
        K of a step.
    WM, WN : int
        Rows and columns that a warp computes of that.
    stages : int
        Tiles of A and B in shared memory.
    group_m : int
        Rows of CTA tiles that go through the columns of B together, so that they find B in the L2
        cache.
    split_k : int
        CTAs that share a tile, each with a part of K; they store partial sums, which a second
        kernel adds up.
    streamk_units : int
        CTAs that share the K of tiles that fill no whole wave (stream-K), of f64 on Hopper; 0:
        none do.

    Examples
    --------
    >>> kernels.AmpereConfig(BM=128, BN=64, WM=64, WN=32).threads
    128
    """

    BM: int = 128
    BN: int = 128
    BK: int = 32
    WM: int = 64
    WN: int = 64
    stages: int = 3
    group_m: int = 8
    split_k: int = 1
    streamk_units: int = 0

    cluster_m: ClassVar[int] = 1  # for schedulers: no CTAs form clusters
    cluster_n: ClassVar[int] = 1
    cluster_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        sizes = (field.name for field in fields(self) if field.name != "streamk_units")
        if min(getattr(self, name) for name in sizes) < 1 or self.streamk_units < 0:
            raise tc.ArgumentError(f"all fields are 1 or more, streamk_units 0 or more: {self}")
        if self.streamk_units and self.split_k > 1:
            raise tc.ArgumentError(f"stream-K divides K itself, without split_k: {self}")
        if self.BM % self.WM or self.BN % self.WN or self.threads > 1024:
            raise tc.ArgumentError(f"BM is a multiple of WM and BN of WN, with at most 32 warps: {self}")

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        if self.is_of_vectors:
            return WARP * self.vector_warps
        return 32 * (self.BM // self.WM) * (self.BN // self.WN)

    @property
    def is_of_vectors(self) -> bool:
        """Whether tiles have so few rows or columns that no tensor cores multiply them."""
        return self.vectors <= MAX_VECTORS

    @property
    def vectors(self) -> int:
        """Rows or columns of a tile, whichever are fewer."""
        return min(self.BM, self.BN)

    @property
    def lines(self) -> int:
        """Rows or columns of a tile, whichever are more."""
        return max(self.BM, self.BN)

    @property
    def of_k_at_once(self) -> int:
        """Elements of K that a warp reads at once of a line, of tiles of vectors."""
        return WARP if self.BK >= ALONG_K else WARP // min(self.lines, WARP)

    @property
    def vector_warps(self) -> int:
        """Warps that share the K of a tile of vectors."""
        return self.BK // self.of_k_at_once

    def rows_at_once(self, extent: int, k_major: bool, itemsize: int, vec: int) -> int:
        """Rows of a tile in shared memory of which the CTA's threads copy a vector at a time.

        extent: rows of A, or columns of B. k_major: K is contiguous. itemsize, vec: bytes of an
        element and of a vector. Refuses tiles that the threads cannot share evenly.
        """
        rows, run = (extent, self.BK) if k_major else (self.BK, extent)
        chunks = run * itemsize // max(vec, 4)
        at_once = self.threads // max(chunks, 1)
        # 128 bytes of f64 along K are a row of those that lie permuted, in groups of eight.
        group = 8 if k_major and itemsize == 8 and run * itemsize % 128 == 0 else 1
        if not at_once or self.threads % chunks or rows % at_once or at_once % group:
            raise tc.ArgumentError(
                f"{self.threads} threads cannot share {rows} rows of {chunks} vectors evenly; "
                f"choose other tile sizes: {self}"
            )
        return at_once


@dataclass(frozen=True)
class AmpereTraits:
    """What the host knows of the operands: layouts, alignment, edges.

    a_k_major, b_k_major: K is contiguous in A, in B. vec_a, vec_b, vec_d: bytes that one access
    may move. full: M, N and K are multiples of the tile, so that no access needs a bound check.
    tma_a, tma_b: TMA can read A, B (f64 on Hopper).
    prefetch: use `mainloop_with_register_prefetch`. scaled: D = alpha A B, else D = A B; has_c:
    plus beta C. epilogue: as in HopperTraits.
    """

    a_k_major: bool = True
    b_k_major: bool = True
    vec_a: int = 16
    vec_b: int = 16
    vec_d: int = 16
    tma_a: bool = False
    tma_b: bool = False
    full: bool = True
    prefetch: bool = False
    scaled: bool = False
    has_c: bool = False
    epilogue: Callable[..., Any] | EpilogueCall | None = None
