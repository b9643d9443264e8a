"""How the sm_90a GEMM kernels lay out a problem, and what they may assume of it: host-side data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.kernels.hopper.row_reduction import Rows

LINE = 128  # bytes of a line of a tile, and its swizzle
SHARED = ARCHS["sm_90a"].shared_kib * 1024  # bytes that a block may have
MANY_REGISTERS = (24, 240)  # a thread's of the producer, and of two consumers with many sums


@dataclass(frozen=True)
class HopperConfig:
    """BM x BN: the block's tile of D.

    Consumer warpgroups share a tile, 64 rows each; or each takes whole tiles, in turn with the
    other (pingpong), and stores one while the other multiplies. stages: slots of the ring, each
    `lines` times 128 bytes deep along K. cluster: blocks below each other that share B, across:
    blocks beside each other that share A, each bringing a part. split: blocks of a cluster that
    share a tile, each summing a part of K. group: rows of tiles that go through B's columns
    together, to meet in the L2 cache. ahead: groups of wgmma left in flight, 0 or 1. rows: of A,
    where they are so few that reading B is the work: no others come.
    workers: blocks (or clusters) among which tiles that fill no wave are divided along K; see
    kernels/sm90_stream_gemm.py. 0: a tile is not divided so.
    """

    BM: int = 128
    BN: int = 256
    stages: int = 4
    k_slabs: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    group_m: int = 8
    mma_in_flight: int = 1
    pingpong: bool = False
    split_k: int = 1
    valid_m: int = 0
    streamk_units: int = 0

    def __post_init__(self) -> None:
        counts = (self.cluster_m, self.cluster_n, self.split_k, self.k_slabs, self.group_m)
        if min(self.streamk_units, self.valid_m) < 0 or min(counts) < 1:
            raise tc.ArgumentError(
                f"cluster, across and split are 1 or more, lines and group too, workers and rows "
                f"0 or more: {self}"
            )
        if self.BM < 64 or self.BM % 64 or self.BN > 256 or self.BN // self.split_k < 16:
            raise tc.ArgumentError(f"tiles have 64, 128, ... rows and 16 to 256 columns: {self}")
        if self.BN % (16 * self.split_k):
            raise tc.ArgumentError(f"results leave in multiples of 16 columns: {self}")
        if self.cluster_m * self.cluster_n > 1 and self.split_k > 1:
            raise tc.ArgumentError(f"a cluster shares A and B or a tile, not both: {self}")
        if self.mma_in_flight not in (0, 1):
            raise tc.ArgumentError(f"a slot is released when one more is read, or none: {self}")
        if self.stages and self.stages <= self.mma_in_flight:
            raise tc.ArgumentError(f"the ring needs more slots than are read at a time: {self}")
        if self.valid_m > self.BM:
            raise tc.ArgumentError(f"a tile has no room for so many rows: {self}")
        if self.pingpong and self.split_k > 1:
            raise tc.ArgumentError(f"tiles that are split are not taken in turn: {self}")
        if self.streamk_units and (self.pingpong or self.split_k > 1 or self.valid_m):
            raise tc.ArgumentError(
                f"what workers divide is neither split, nor taken in turn, nor of few rows: {self}"
            )

    @property
    def consumers(self) -> int:
        return 2 if self.pingpong else self.BM // 64

    @property
    def rows_per_consumer(self) -> int:
        """Rows that a consumer multiplies."""
        return self.BM if self.pingpong else 64

    @property
    def cluster_size(self) -> int:
        """Of a cluster."""
        return self.cluster_m * self.cluster_n * self.split_k

    @property
    def multicast_peers(self) -> int:
        """Blocks that a block brings something to, or that bring something to it; itself too."""
        return self.cluster_m + self.cluster_n - 1

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    @property
    def accumulator_registers(self) -> int:
        """Registers of a consumer's thread that hold sums."""
        return self.rows_per_consumer // 64 * self.BN // 2

    @property
    def registers(self) -> tuple[int, ...]:
        """See MANY_REGISTERS; none where an equal share holds a consumer's sums."""
        return MANY_REGISTERS if self.consumers == 2 and self.accumulator_registers > 128 else ()

    def registers_for(self, traits: HopperTraits) -> tuple[int, ...]:
        """The same, for results that take registers beside the sums."""
        return MANY_REGISTERS if traits.needs_registers and self.register_limited else self.registers

    @property
    def register_limited(self) -> bool:
        """Does an equal share, 168 registers, hold the sums, but little beside them?"""
        return self.consumers == 2 and self.accumulator_registers > 80

    @property
    def epilogue_bytes(self) -> int:
        """Bytes of shared memory that results leave through; see kernels/results.py."""
        partial = self.BM * self.BN * 4 if self.split_k > 1 else 0
        return self.consumers * 2 * 64 * LINE + partial

    @property
    def max_stages(self) -> int:
        """Slots that shared memory has room for."""
        return (SHARED - self.epilogue_bytes - 1024) // ((self.BM + self.BN) * LINE * self.k_slabs)

    def with_stages(self, most: int = 12) -> HopperConfig:
        """With as many slots as shared memory has room for."""
        return replace(self, stages=min(most, self.max_stages))


@dataclass(frozen=True)
class HopperTraits:
    """What the host knows: which operands have K contiguous, and how results are finished.

    store_by_threads: TMA cannot write D's lines. scaled, has_c: D = alpha A B + beta C, with C read in
    pairs of columns, and as one row for all. sums: their type, where it is not the usual one.
    finish(value, row, col) is applied to each element before it is rounded to D's type; it is a
    function in the kernel language. rows: what is found of the finished rows.
    """

    a_k_major: bool = True
    b_k_major: bool = True
    store_by_threads: bool = False
    scaled: bool = False
    has_c: bool = False
    c_in_pairs: bool = False
    c_is_row: bool = False
    accumulate: Any = None
    epilogue: Callable[..., Any] | None = None
    row_reductions: Rows | None = None

    @property
    def needs_registers(self) -> bool:
        """Do results take registers on their way out: for C one by one, or statistics of rows?"""
        return self.row_reductions is not None or (self.has_c and not self.c_in_pairs)
