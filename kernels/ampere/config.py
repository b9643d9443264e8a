"""Configuration of the sm_80 GEMM kernels, and traits of their operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.config_fields import check_fields
from tensorcore_dsl.kernels.user_functions import EpilogueCall

WARP = 32  # threads
MAX_VECTORS = 4  # rows or columns of a tile that is computed without tensor cores
LINES_ALONG_K, LINES_BESIDE = (2, 4, 8), (8, 16, 32, 64)  # by VectorConfig.along_k
WARPS_ALONG_K, WARPS_BESIDE = (8,), (8, 16)


@dataclass(frozen=True)
class AmpereConfig:
    """Tile sizes and pipeline depth of the mma.sync kernels; all are compile-time constants.

    Attributes
    ----------
    BM, BN : int
        Rows and columns of D that a CTA computes.
    BK : int
        K of a step.
    WM, WN : int
        Rows and columns of the tile that a warp computes.
    stages : int
        Tiles of A and B in shared memory.
    group_m : int
        Rasterisation: rows of CTA tiles that advance through the columns of B together, so that they
        share B in the L2 cache.
    split_k : int
        CTAs that share a tile, each with a part of K. A second kernel adds up their partial sums.
    streamk_units : int
        Stream-K, for f64 on Hopper: CTAs that share the K of the tiles of an incomplete wave. 0: no
        stream-K.

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
        if self.stages < 2:
            raise tc.ArgumentError(f"stages is 2 or more: {self}")
        if self.streamk_units and self.split_k > 1:
            raise tc.ArgumentError(f"stream-K divides K itself, without split_k: {self}")
        if self.BM % self.WM or self.BN % self.WN or self.threads > 1024:
            raise tc.ArgumentError(f"BM is a multiple of WM and BN of WN, with at most 32 warps: {self}")

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARP * (self.BM // self.WM) * (self.BN // self.WN)

    def rows_at_once(self, extent: int, k_major: bool, itemsize: int, vec: int) -> int:
        """Rows of a shared tile that the CTA's threads copy at once, one vector each.

        extent: rows of A, or columns of B. k_major: K is contiguous. itemsize, vec: bytes of an
        element and of a vector. Refuses tiles that the threads cannot share evenly.
        """
        rows, run = (extent, self.BK) if k_major else (self.BK, extent)
        chunks = run * itemsize // max(vec, 4)
        at_once = self.threads // max(chunks, 1)
        # K-major f64 rows of 128 bytes lie permuted in groups of eight, see mainloop.py.
        group = 8 if k_major and itemsize == 8 and run * itemsize % 128 == 0 else 1
        if not at_once or self.threads % chunks or rows % at_once or at_once % group:
            raise tc.ArgumentError(
                f"{self.threads} threads cannot share {rows} rows of {chunks} vectors evenly; "
                f"choose other tile sizes: {self}"
            )
        return at_once


@dataclass(frozen=True)
class VectorConfig:
    """Tile of the kernels for few rows or columns, without tensor cores (vector_gemm.py).

    The smaller one of BM and BN is 1, 2 or 4: the tile has that many *vectors*. The larger one is the
    number of *lines*, which are columns of B, or rows of A. All fields are compile-time constants.

    Attributes
    ----------
    BM, BN : int
        Rows and columns of D that a CTA computes. 2, 4 or 8 lines with `along_k`, else 8, 16, 32 or 64.
    warps : int
        Warps of a CTA, which share K: 8, or 16 without `along_k`.
    unroll : int
        Elements of each line and vector that a thread loads at once.
    along_k : bool
        Neighbouring lanes read neighbouring elements of a line, whose K is contiguous. Otherwise,
        they read neighbouring lines.
    group_m : int
        Rasterisation, see AmpereConfig.

    Examples
    --------
    >>> kernels.VectorConfig(BM=1, BN=32, warps=16, along_k=False).chains
    16
    """

    BM: int = 1
    BN: int = 4
    warps: int = 8
    unroll: int = 4
    along_k: bool = True
    group_m: int = 8

    cluster_m: ClassVar[int] = 1  # for rankings and rasterisation: K has one part, a CTA is alone
    cluster_n: ClassVar[int] = 1
    cluster_size: ClassVar[int] = 1
    split_k: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        lines, warps = (LINES_ALONG_K, WARPS_ALONG_K) if self.along_k else (LINES_BESIDE, WARPS_BESIDE)
        if self.vectors not in (1, 2, MAX_VECTORS) or self.lines not in lines or self.warps not in warps:
            raise tc.ArgumentError(
                f"with along_k={self.along_k}, one of BM and BN is 1, 2 or 4, the other one "
                f"{', '.join(map(str, lines))}, and warps {' or '.join(map(str, warps))}: {self}"
            )
        if self.unroll < 1 or self.group_m < 1:
            raise tc.ArgumentError(f"unroll and group_m are 1 or more: {self}")

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARP * self.warps

    @property
    def vectors(self) -> int:
        """The smaller of BM and BN."""
        return min(self.BM, self.BN)

    @property
    def lines(self) -> int:
        """The larger of BM and BN."""
        return max(self.BM, self.BN)

    @property
    def chains(self) -> int:
        """Elements of K of a line that the CTA reads at once, each for a sum of its own."""
        return self.warps * (WARP if self.along_k else WARP // min(self.lines, WARP))


@dataclass(frozen=True)
class AmpereTraits:
    """Traits of the operands: layouts, alignment, edges. Compile-time constants of a kernel.

    Attributes
    ----------
    a_k_major, b_k_major : bool
        K is contiguous in A, in B.
    vec_a, vec_b, vec_d : int
        Bytes that one access may move.
    full : bool
        M, N and K are multiples of the tile, so that no access needs a bound check.
    tma_a, tma_b : bool
        TMA can read A, B (f64 on Hopper).
    prefetch : bool
        Use `mainloop_with_register_prefetch`.
    scaled, has_c : bool
        The epilogue multiplies by alpha, and adds beta * C.
    epilogue : function or None
        As in HopperTraits.
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
