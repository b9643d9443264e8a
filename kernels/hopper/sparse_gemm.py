"""D = epilogue(alpha A B + beta C) with a 2:4 sparse A and `wgmma.sp`, for sm_90a.

Types: f16, bf16, tf32, e4m3, e5m2 (D: f32 or narrower) and s8 (D: s32). A stage holds 128 bytes
of K: 64 stored bytes of A, its metadata (sparse_packing.py), and 128 bytes of B. wgmma_gemm.py describes the
other parts.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.operand_layouts import make_tiles
from tensorcore_dsl.kernels.hopper.pipeline import Pipeline, make_barriers, make_k_major_tiles
from tensorcore_dsl.kernels.hopper.sparse_packing import ROWS, THREADS, Format
from tensorcore_dsl.kernels.hopper.wgmma_gemm import GemmParts, consume, produce, warp_specialized_gemm

KEEP_FIRST = 0x44444444  # metadata that keep the first elements of every chunk
MMA_K = {8: 64, 16: 32, 32: 16}  # K of one wgmma.sp, by the bits of an element


@tc.kernel
def sparse_gemm_kernel(
    a: tc.Array,
    metadata: tc.Array,
    b: tc.Array,
    c: tc.Array,
    d: tc.Array,
    alpha,
    beta,
    format: tc.Const = None,
    config: tc.Const = HopperConfig(),
    traits: tc.Const = HopperTraits(),
):
    """A: the stored half (M x K/2) and its metadata; B: K x N. Grid: at most one CTA per SM."""
    # No wgmma stays in flight: it reads its metadata registers late, and the next stage's metadata
    # take the same registers.
    config = replace(config, mma_in_flight=0)
    warp_specialized_gemm(
        sparse_mma(format.dtype, b.dtype, config.BN),
        a,
        b,
        d,
        config,
        traits,
        GemmParts(
            pipeline_of=partial(make_sparse_pipeline, metadata=metadata, format=format),
            produce=partial(produce, load_stage=load_sparse_stage),
            consume=partial(consume, mma_stage=sparse_mma_stage),
            buffers=2,
            registers=config.registers,
        ),
        c=c,
        alpha=alpha,
        beta=beta,
    )


def sparse_mma(a, b, width: int):
    """The wgmma.sp instruction for element types a and b, 64 rows and `width` columns of B."""
    if a == tc.f32:
        a = b = tc.tf32
    shape = getattr(tc.wgmma.sp, f"m64n{width}k{MMA_K[b.bits]}")
    return shape(a, b, tc.f32 if a.is_float else tc.s32)


@dataclass
class SparsePipeline(Pipeline):
    """A pipeline whose stages also hold metadata of A.

    Attributes
    ----------
    metadata : tensor map
        Tensor map of the metadata.
    words : tile
        (stage, consumer, thread * word): the metadata in shared memory.
    format : Format
        Format of the sparse matrix.
    """

    metadata: Any = field(kw_only=True)
    words: Any = field(kw_only=True)
    format: Format = field(kw_only=True)


def make_sparse_pipeline(a, b, config: HopperConfig, traits: HopperTraits, metadata, format: Format):
    """Shared tiles, tensor maps and barriers. Every thread of the cluster calls it."""
    depth, stages = format.depth, config.stages
    tiles_a = make_k_major_tiles(a, 0, config.BM, depth // format.chunk * format.kept, config)
    tiles_b = make_tiles(b, 1, traits.b_k_major, 1, config.BN, depth, config)
    shape = (config.BM // ROWS, THREADS * format.words)
    words = tc.shared((stages, *shape), tc.s32, align=128)
    map = tc.tensor_map(metadata, (shape[0], 1, shape[1]))
    k_tiles = (b.shape[0] + (depth - 1)) // depth
    # Threads read metadata from the stage, so each warp releases it for itself.
    maps = *tiles_a.maps, *tiles_b.maps, map
    full, empty, order = make_barriers(maps, config, by_warp=True)
    return SparsePipeline(
        tiles_a,
        tiles_b,
        full,
        empty,
        order,
        depth,
        0,
        k_tiles,
        config,
        by_warp=True,
        metadata=map,
        words=words,
        format=format,
    )


def load_sparse_stage(pipeline, tile, stage, k, full):
    """Load a stage's tiles of A, its metadata and B, from element `k` of K on."""
    config, stored = pipeline.config, pipeline.a.smem.shape[-1]
    elements = config.BM * stored + pipeline.b.rows * pipeline.k_per_stage
    full.arrive_expect_tx(elements * pipeline.a.smem.dtype.itemsize + pipeline.metadata.bytes)
    k_tile, map = k // pipeline.k_per_stage, pipeline.metadata
    pipeline.a.load(stage, (), tile.m, k_tile * stored, full)
    tc.tma_load(pipeline.words[stage], map, (tile.m // ROWS, k_tile, 0), full)
    pipeline.b.load(stage, (), tile.n, k, full)


def sparse_mma_stage(pipeline, mma, acc, block, stage, accumulate):
    """Issue acc[i] += A B for one stage; acc[i] is 64 rows, row block `block` + i of the tile."""
    a_blocks, words = pipeline.a.row_blocks, pipeline.format.words
    thread = tc.threadIdx.x % THREADS
    metadata = [
        valid_metadata(pipeline.words.at(stage, block + i, thread * words).load(words))
        for i in range(len(acc))
    ]
    tc.wgmma_fence()
    for i in tc.static_range(len(acc)):
        acc[i] = tc.wgmma_async(
            mma,
            acc[i],
            a_blocks[stage, block + i],
            pipeline.b.smem[stage],
            accumulate=accumulate,
            b_major=pipeline.b.major,
            metadata=metadata[i],
        )
    # TMA overwrites the words through the async proxy when all warps have released the stage: the
    # fence orders this thread's reads before. The products run while the warp waits for the fence.
    tc.fence_proxy_async()


def valid_metadata(words):
    """Metadata words. TMA fills in zeros below A's last row, which are not valid metadata."""
    elements = words.elements() if hasattr(words, "elements") else [words]
    return [tc.select(word == 0, KEEP_FIRST, word) for word in elements]
