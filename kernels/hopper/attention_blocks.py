"""What the kernels for gradients of Hopper attention share: configuration, tiles and blocks in memory, P."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.attention_scores import Softmax
from tensorcore_dsl.kernels.hopper.attention import SLAB, index_of, slabs, stage_matrices, store_rows
from tensorcore_dsl.kernels.hopper.attention_key_tiles import KeyTile, KeyTileList
from tensorcore_dsl.kernels.hopper.config import WARPGROUP
from tensorcore_dsl.kernels.hopper.pipeline import PipelineState

CONSUMERS = 2  # warpgroups of a CTA that multiply
# Named barriers of the consumers. READ_BARRIER + c: consumer c has read dS of the block before.
EXCHANGE_BARRIER, CLEAR_BARRIER, READ_BARRIER = 1, 2, 3


@dataclass(frozen=True)
class BackwardConfig:
    """How the kernels for dK and dV divide their work. All fields are compile-time constants.

    Attributes
    ----------
    parts : int
        Parts of 64 queries of a block: 1, or 2 in one pass for D up to 64.
    BN : int
        Keys of a tile: 128 in one pass, 64 where dQ has a kernel of its own.
    q_stages, stages : int
        Blocks of Q and of dO in shared memory.
    """

    parts: int = 1
    BN: int = 64 * CONSUMERS
    q_stages: int = 3
    stages: int = 2

    @property
    def one_pass(self) -> bool:
        """Whether one kernel computes dQ, dK and dV."""
        return self.BN == 64 * CONSUMERS

    @property
    def BM(self) -> int:
        """Queries of a block."""
        return 64 * self.parts

    @property
    def dq_slabs(self) -> int:
        """Slabs of Q and K: as many as the shares of dQ have columns. TMA fills the rest with zeros."""
        return 3 - self.parts


@dataclass
class BlockStages:
    """Stages of blocks of Q or dO with a number for each row: memory, maps, two mbarriers a stage.

    Attributes
    ----------
    smem : tile
        (stages, slabs, BM, 64).
    rows, row_map : tile, TensorMap
        (stages, BM) numbers of rows, f32: lse_log2 with Q, or delta with dO.
    """

    smem: Any
    map: Any
    rows: Any
    row_map: Any
    full: Any
    empty: Any


@dataclass
class GradientInputs:
    """The arrays that the kernels for gradients read, see attention_gradients."""

    q: Any
    k: Any
    v: Any
    grad: Any
    lse_log2: Any
    delta: Any


def block_stages(x, row_values, stages: int, slabs: int, BM: int) -> BlockStages:
    """Stages of blocks of `x`, and of a number for each of their rows from `row_values`."""
    smem = tc.shared((stages, slabs, BM, SLAB), x.dtype, swizzle=128)
    rows = tc.shared((stages, BM), tc.f32, align=128)
    full, empty = tc.mbarriers(stages), tc.mbarriers(stages)
    map = tc.tensor_map(x, (1, 1, BM, SLAB), swizzle=128)
    return BlockStages(smem, map, rows, tc.tensor_map(row_values, (BM,)), full, empty)


def key_tile_and_blocks(inputs: GradientInputs, slabs_q: int, slabs_v: int, config: BackwardConfig):
    """Shared memory of a tile of K and of V, their tensor maps, and stages of Q and of dO."""
    arrays, dtype = (inputs.k, inputs.v), inputs.q.dtype
    keys, values = (tc.shared((n, config.BN, SLAB), dtype, swizzle=128) for n in (slabs_q, slabs_v))
    maps = [tc.tensor_map(x, (1, 1, config.BN, SLAB), swizzle=128) for x in arrays]
    queries = block_stages(inputs.q, inputs.lse_log2, config.q_stages, slabs_q, config.BM)
    grads = block_stages(inputs.grad, inputs.delta, config.stages, slabs_v, config.BM)
    return keys, values, maps, queries, grads


def init_barriers(full_keys, empty_keys, *parts):
    """Initialise the mbarriers of the keys, and of stages with their arrivals. One thread runs this."""
    full_keys[0].init(1)
    empty_keys[0].init(CONSUMERS * WARPGROUP)
    for part, arrivals in parts:
        for stage in tc.static_range(part.smem.shape[0]):
            part.full[stage].init(1)
            part.empty[stage].init(arrivals)


@dataclass
class KeyTileCta:
    """What a CTA that computes tiles of keys loads, in shared memory, and its barriers.

    Attributes
    ----------
    keys, values : tile
        (slabs, BN, 64).
    full_keys, empty_keys : mbarrier
        Of `keys`, `values` and `drawn`.
    drawn : tile
        Sequence, group, and number of the tile; and the producer's parity for `empty_keys`.
    """

    tiles: KeyTileList
    softmax: Softmax
    config: BackwardConfig
    keys: Any
    values: Any
    maps: Any
    queries: BlockStages
    grads: BlockStages
    drawn: Any
    full_keys: Any
    empty_keys: Any

    @property
    def traits(self):
        """Traits of the problem."""
        return self.softmax.traits


@dataclass
class Visit:
    """A visit of a block of queries by a tile of keys.

    Attributes
    ----------
    queries : PipelineState
        The stage of Q.
    number : u32
        Number of the visit, which gives the stages of dO, P and dQ, see `state_of`.
    """

    queries: PipelineState
    number: Any

    def next(self):
        """The next visit."""
        return Visit(self.queries.next(), self.number + 1)


def state_of(visit, stages: int) -> PipelineState:
    """The position of visit number `visit` in a ring of `stages` stages."""
    return PipelineState(stages, visit % stages, visit // stages % 2)


def issue(product, a, b, part, depth: int):
    """Issue a bᵀ over D as one group of wgmma. a: (slabs, 64, 64), b: (slabs, BM, 64).

    The accumulators begin as zeros, although the product does not read them. So they take no
    registers before.
    """
    acc, rows = product.d.zeros(), slice(64 * part, 64 * part + 64)
    tc.wgmma_fence()
    for slab in tc.static_range(slabs(depth)):
        used = min(-(-depth // 16) * 16 - slab * SLAB, SLAB)
        acc = tc.wgmma_async(product, acc, a[slab, :, :used], b[slab, rows, :used], accumulate=slab > 0)
    tc.wgmma_commit()
    return acc


def issue_sum(product, total, operand, smem):
    """Issue total += operand smem as one group of wgmma. smem: (slabs, 64, 64)."""
    tc.wgmma_fence()
    total = tc.wgmma_async(product, total, operand, smem, b_major="mn")
    tc.wgmma_commit()
    return total


def softmax_of(cta, seen, scores, query, key, lse_log2, transposed=False):
    """Compute P of 64 queries and 64 keys, and ds_factor = P times the derivative of tanh.

    dS = ds_factor (dP - delta). Only tiles at an edge need a mask.
    """
    scores = cta.softmax.capped(scores)
    exponents = tc.fma(scores, cta.softmax.scale, -lse_log2)
    if seen.needs_mask(query, 64, key, 64):
        exponents = seen.masked(exponents, query, key, transposed)
    p = tc.exp2(exponents, ftz=True)
    return p, p * (1 - scores * scores) if cta.traits.softcap else p


def store_sum(value, staging, origin, end, target, width: int):
    """Store dK or dV of 64 keys: as f32 at once, as 16-bit elements through `staging`, slabs (64, 64).

    origin: batch, group and first row. end: one past the last row. width: D of the array.
    """
    if target.dtype == tc.f32:
        elements = value.elements()
        for slot in tc.static_range(0, len(elements), 2):
            at, column = value.coordinates(slot)
            batch, group, row, inside = index_of(at, origin, end, None)
            target.at(batch, group, row, column).store(elements[slot : slot + 2], pred=inside)
    else:
        stage_matrices(value.to(target.dtype), staging, 0)
        tc.syncwarp()
        store_rows(staging, origin, end, target, width)


def wait_for(cta: KeyTileCta, part: BlockStages, tile: KeyTile, block, state):
    """Wait for a block of Q or dO. Rows behind the last query of a packed sequence become zero."""
    part.full[state.stage].wait(state.phase)
    if cta.traits.packed and (block + 1) * cta.config.BM > tile.sequence.queries:
        clear(part.smem[state.stage], tile.sequence.queries - block * cta.config.BM, CONSUMERS * WARPGROUP)
        tc.barrier(CLEAR_BARRIER, CONSUMERS * WARPGROUP)


def clear_keys(cta: KeyTileCta, tile: KeyTile):
    """Zero the keys and values behind the last key of a packed sequence."""
    if cta.traits.packed and tile.key() + cta.config.BN > tile.sequence.seen.keys:
        for smem in (cta.keys, cta.values):
            clear(smem, tile.sequence.seen.keys - tile.key(), CONSUMERS * WARPGROUP)
        tc.barrier(CLEAR_BARRIER, CONSUMERS * WARPGROUP)


def clear(smem, count, threads: int):
    """Zero the rows from `count` on of (slabs, rows, 64): zeros must not meet NaN bits.

    These rows hold the next sequence. `threads` threads of consumers share the work. A barrier must
    follow.
    """
    zeros, thread = tc.vector([smem.dtype(0)] * 8), (tc.threadIdx.x - WARPGROUP) % threads
    for slab in tc.static_range(smem.shape[0]):
        for i in tc.range(max(count, 0) * 8 + thread, smem.shape[1] * 8, threads):
            smem.at(slab, i // 8, i % 8 * 8).store(zeros)
    tc.fence_proxy_async()
