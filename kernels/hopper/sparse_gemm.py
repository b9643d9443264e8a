"""D = finish(alpha A B + beta C) with a 2:4 sparse A and `wgmma.sp`, for sm_90a.

The types of `wgmma.sp`: f16, bf16, tf32, e4m3, e5m2 (D: f32 or narrower) and s8 (D: s32). A slot
of the ring is 128 bytes of K deep, of which A stores 64, and brings A's metadata along; see
kernels/sparse_packing.py. kernels/roles.py has the other parts.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import finisher, open_way_out
from tensorcore_dsl.kernels.hopper.pipeline import Ring, blocks, fill, open_barriers, open_side
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, THREADS, Format
from tensorcore_dsl.kernels.hopper.tile_scheduler import Tiles
from tensorcore_dsl.kernels.hopper.warp_specialization import consume, produce, share_work

FIRST_PLACES = 0x44444444  # metadata that keep what comes first
DEPTH = {8: 64, 16: 32, 32: 16}  # of an instruction, by the bits of an element


@tc.kernel
def sparse_gemm_kernel(
    a: tc.Array, metadata: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array, alpha, beta,
    format: tc.Const = None, config: tc.Const = HopperConfig(), traits: tc.Const = HopperTraits(),
):  # fmt: skip
    """A's kept half (M x K/2) and metadata, B K x N; the grid is a block an SM."""
    tc.launch_bounds(config.threads, 1)
    tc.cluster_size(config.cluster_size)
    mma = instruction(format.dtype, config.BN)
    way_out = open_way_out(d, mma.d.dtype, config, traits.store_by_threads)
    ring = open_sparse_ring(a, metadata, b, format, config, traits)
    finish = finisher(c, alpha, beta, traits)
    share_work(
        ring, mma, Tiles(d.shape, config), way_out, finish,
        partial(produce, bring=bring), partial(consume, multiply_slot=multiply_slot),
    )  # fmt: skip


def instruction(dtype, width: int):
    """wgmma.sp for `width` columns of B."""
    kind, sums = tc.tf32 if dtype == tc.f32 else dtype, tc.s32 if dtype.is_integer else tc.f32
    return getattr(tc.wgmma.sp, f"m64n{width}k{DEPTH[dtype.bits]}")(kind, kind, sums)


@dataclass
class SparseRing(Ring):
    """metadata: their map; words: their slots, (stages, consumers, threads x words)."""

    metadata: Any
    words: Any
    format: Format


def open_sparse_ring(a, metadata, b, format: Format, config: HopperConfig, traits: HopperTraits):
    """Tiles, maps and barriers; every thread of the cluster calls it.

    No products are left in flight: they read metadata late, and the next slot's are to take the
    same registers.
    """
    config = replace(config, mma_in_flight=0)
    depth, stages = format.depth, config.stages
    side_a = open_side(a, 0, config.BM, depth // format.chunk * format.kept, True, config)
    side_b = open_side(b, 1, config.BN, depth, traits.b_k_major, config)
    shape = (config.BM // ROWS, THREADS * format.words)
    words = tc.shared((stages, *shape), tc.s32, align=128)
    map = tc.tensor_map(metadata, (shape[0], 1, shape[1]))
    steps = (b.shape[0] + (depth - 1)) // depth
    barriers = open_barriers((side_a.map, side_b.map, map), config)
    return SparseRing(side_a, side_b, *barriers, depth, 0, steps, config, map, words, format)


def bring(ring, place, slot, k, full):
    """Order a slot's parts of A, its metadata and B, from depth k on."""
    config, stored = ring.config, ring.a.tile.shape[-1]
    lines = config.BM * stored + config.BN * ring.depth
    full.arrive_expect_tx(lines * ring.a.tile.dtype.itemsize + ring.metadata.bytes)
    step, words = k // ring.depth, ring.metadata
    fill(ring.a, 0, slot, (), place.m, step * stored, full)
    tc.tma_load(ring.words[slot], words, (place.m // ROWS, step, 0), full)
    fill(ring.b, 1, slot, (), place.n, k, full)


def multiply_slot(ring, mma, sums, upper, slot, accumulate):
    """Start sums + A B for one slot, each of 64 rows, block `upper` and those below it."""
    rows, words, thread = blocks(ring.a.tile, ROWS), ring.format.words, tc.threadIdx.x % THREADS
    metadata = [
        placed(ring.words.at(slot, upper + i, thread * words).load(words)) for i in range(len(sums))
    ]
    tc.wgmma_fence()
    for i in tc.static_range(len(sums)):
        sums[i] = tc.wgmma_async(
            mma, sums[i], rows[slot, upper + i], ring.b.tile[slot], accumulate=accumulate,
            b_major="k" if ring.b.k_major else "mn",
            metadata=metadata[i],
        )  # fmt: skip


def placed(words):
    """Below A's last row TMA fills in zeros, which place nothing: there, take what comes first."""
    each = words.elements() if hasattr(words, "elements") else [words]
    return [tc.select(word == 0, FIRST_PLACES, word) for word in each]
