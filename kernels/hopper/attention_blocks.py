"""Blocks of queries of the Hopper attention's backward kernel: configuration, stages, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.attention import SLAB, advance
from tensorcore_dsl.kernels.hopper.attention_key_tiles import KeyTile
from tensorcore_dsl.kernels.hopper.config import WARPGROUP

CONSUMERS = 2
# Named barriers of the consumers. READ_BARRIER + c: consumer c has read dS of the block before.
EXCHANGE_BARRIER, CLEAR_BARRIER, READ_BARRIER = 1, 2, 3


@dataclass(frozen=True)
class BackwardConfig:
    """How the kernel divides its work. All fields are compile-time constants.

    Attributes
    ----------
    parts : int
        Parts of 64 queries of a block: 1, or 2 for D up to 64.
    wide : bool
        For D above 128: tiles of 64 keys, and each consumer has half of the columns of the sums.
    """

    parts: int = 1
    wide: bool = False

    @property
    def BM(self) -> int:
        """Queries of a block."""
        return 64 * self.parts

    @property
    def BN(self) -> int:
        """Keys of a tile."""
        return 64 if self.wide else 64 * CONSUMERS

    @property
    def q_stages(self) -> int:
        """Blocks of Q in shared memory."""
        return 2 if self.wide else 3

    @property
    def stages(self) -> int:
        """Blocks of dO in shared memory."""
        return 1 if self.wide else 2

    @property
    def shares(self) -> int:
        """Shares of dQ of a block, of 64 x 64 elements each."""
        return 4 if self.wide else 2

    @property
    def dq_slabs(self) -> int:
        """Slabs of Q and K: as many as the shares of dQ have columns. TMA fills the rest with zeros."""
        return 4 if self.wide else 3 - self.parts

    def slabs(self, depth: int) -> int:
        """Slabs of 64 columns of D in shared memory: an even number if each consumer has half."""
        return -(-depth // (2 * SLAB)) * 2 if self.wide else -(-depth // SLAB)


@dataclass
class Stages:
    """Stages of blocks of Q or dO with a number for each row: memory, maps, two mbarriers a stage.

    Attributes
    ----------
    smem : tile
        (stages, slabs, BM, 64).
    rows, row_map : tile, TensorMap
        (stages, BM) numbers of rows, f32: shifts of Q, or deltas of dO.
    """

    smem: Any
    map: Any
    rows: Any
    row_map: Any
    full: Any
    empty: Any


def following(states, config: BackwardConfig):
    """The next stage of Q with its phase, and the number of the next visit."""
    return advance(states[0], config.q_stages), states[1] + 1


def stage_of(visit, stages: int):
    """A visit's stage of `stages`, and its phase; `stages` visits later, the phase is the other one."""
    return visit % stages, visit // stages % 2


def weights_of(cta, scores, tile: KeyTile, query, queries: int, key, shifts):
    """Weights of 64 keys and some queries, and factors of their slopes.

    The factors are the weights, times the derivative of tanh. Only tiles at an edge need a mask.
    `shifts`: the logarithm of each query's sum, base 2.
    """
    seen = tile.sequence.seen
    scores = cta.softmax.capped(scores)
    exponents = tc.fma(scores, cta.softmax.scale, -shifts)
    if seen.needs_mask(query, queries, key, 64):
        exponents = seen.masked(exponents, query, key, transposed=True)
    weights = tc.exp2(exponents, ftz=True)
    return weights, weights * (1 - scores * scores) if cta.traits.softcap else weights


def wait_for(cta, part: Stages, tile: KeyTile, block, state):
    """Wait for a block of Q or dO. Rows behind the last query of a packed sequence become zero."""
    stage, phase = state
    part.full[stage].wait(phase)
    if cta.traits.packed and (block + 1) * cta.config.BM > tile.sequence.queries:
        clear(part.smem[stage], tile.sequence.queries - block * cta.config.BM)


def clear(smem, count):
    """Zero the rows from `count` on of (slabs, rows, 64): zeros must not meet NaN bits.

    These rows hold the next sequence. All consumers share the work.
    """
    zeros, thread, threads = tc.vector([smem.dtype(0)] * 8), tc.threadIdx.x - WARPGROUP, CONSUMERS * WARPGROUP
    for slab in tc.static_range(smem.shape[0]):
        for i in tc.range(max(count, 0) * 8 + thread, smem.shape[1] * 8, threads):
            smem.at(slab, i // 8, i % 8 * 8).store(zeros)
    tc.fence_proxy_async()
    tc.barrier(CLEAR_BARRIER, threads)
