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
class Config:
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
    lines: int = 1
    cluster: int = 1
    across: int = 1
    group: int = 8
    ahead: int = 1
    pingpong: bool = False
    split: int = 1
    rows: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        counts = (self.cluster, self.across, self.split, self.lines, self.group)
        if min(self.workers, self.rows) < 0 or min(counts) < 1:
            raise tc.ArgumentError(
                f"cluster, across and split are 1 or more, lines and group too, workers and rows "
                f"0 or more: {self}"
            )
        if self.BM < 64 or self.BM % 64 or self.BN > 256 or self.BN // self.split < 16:
            raise tc.ArgumentError(f"tiles have 64, 128, ... rows and 16 to 256 columns: {self}")
        if self.BN % (16 * self.split):
            raise tc.ArgumentError(f"results leave in multiples of 16 columns: {self}")
        if self.cluster * self.across > 1 and self.split > 1:
            raise tc.ArgumentError(f"a cluster shares A and B or a tile, not both: {self}")
        if self.ahead not in (0, 1):
            raise tc.ArgumentError(f"a slot is released when one more is read, or none: {self}")
        if self.stages and self.stages <= self.ahead:
            raise tc.ArgumentError(f"the ring needs more slots than are read at a time: {self}")
        if self.rows > self.BM:
            raise tc.ArgumentError(f"a tile has no room for so many rows: {self}")
        if self.pingpong and self.split > 1:
            raise tc.ArgumentError(f"tiles that are split are not taken in turn: {self}")
        if self.workers and (self.pingpong or self.split > 1 or self.rows):
            raise tc.ArgumentError(
                f"what workers divide is neither split, nor taken in turn, nor of few rows: {self}"
            )

    @property
    def consumers(self) -> int:
        return 2 if self.pingpong else self.BM // 64

    @property
    def height(self) -> int:
        """Rows that a consumer multiplies."""
        return self.BM if self.pingpong else 64

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.cluster * self.across * self.split

    @property
    def peers(self) -> int:
        """Blocks that a block brings something to, or that bring something to it; itself too."""
        return self.cluster + self.across - 1

    @property
    def threads(self) -> int:
        return 128 * (1 + self.consumers)

    @property
    def sums(self) -> int:
        """Registers of a consumer's thread that hold sums."""
        return self.height // 64 * self.BN // 2

    @property
    def registers(self) -> tuple[int, ...]:
        """See MANY_REGISTERS; none where an equal share holds a consumer's sums."""
        return MANY_REGISTERS if self.consumers == 2 and self.sums > 128 else ()

    def registers_for(self, variant: Variant) -> tuple[int, ...]:
        """The same, for results that take registers beside the sums."""
        return MANY_REGISTERS if variant.demanding and self.crowded else self.registers

    @property
    def crowded(self) -> bool:
        """Does an equal share, 168 registers, hold the sums, but little beside them?"""
        return self.consumers == 2 and self.sums > 80

    @property
    def way_out(self) -> int:
        """Bytes of shared memory that results leave through; see kernels/results.py."""
        partial = self.BM * self.BN * 4 if self.split > 1 else 0
        return self.consumers * 2 * 64 * LINE + partial

    @property
    def room(self) -> int:
        """Slots that shared memory has room for."""
        return (SHARED - self.way_out - 1024) // ((self.BM + self.BN) * LINE * self.lines)

    def with_stages(self, most: int = 12) -> Config:
        """With as many slots as shared memory has room for."""
        return replace(self, stages=min(most, self.room))


@dataclass(frozen=True)
class Variant:
    """What the host knows: which operands have K contiguous, and how results are finished.

    d_by_threads: TMA cannot write D's lines. scaled, has_c: D = alpha A B + beta C, with C read in
    pairs of columns, and as one row for all. sums: their type, where it is not the usual one.
    finish(value, row, col) is applied to each element before it is rounded to D's type; it is a
    function in the kernel language. rows: what is found of the finished rows.
    """

    a_k_major: bool = True
    b_k_major: bool = True
    d_by_threads: bool = False
    scaled: bool = False
    has_c: bool = False
    c_in_pairs: bool = False
    c_is_row: bool = False
    sums: Any = None
    finish: Callable[..., Any] | None = None
    rows: Rows | None = None

    @property
    def demanding(self) -> bool:
        """Do results take registers on their way out: for C one by one, or statistics of rows?"""
        return self.rows is not None or (self.has_c and not self.c_in_pairs)
