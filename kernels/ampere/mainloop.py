"""Mainloop of the sm_80 GEMM kernels: `cp.async` into stages of shared memory, then `mma.sync`.

These are helpers in the kernel language: the compiler inlines them into each kernel.
BM x BN x BK is the tile of a CTA, WM x WN that of a warp. An operand is K-major when its elements
along K are neighbours in memory (row-major A, column-major B). A tile in shared memory lies as in
global memory: its rows run along the contiguous axis, which is K only for K-major operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig, AmpereTraits, VectorConfig


def k_range(K, part, config: AmpereConfig):
    """First and past-the-last element of K of a split-K part; parts have whole tiles of K."""
    tiles = (K + (config.BK - 1)) // config.BK
    first, end = (i * tiles // config.split_k * config.BK for i in (part, part + 1))
    return first, min(end, K)


def cta_tile(M, N, config: AmpereConfig | VectorConfig):
    """First row and column of this CTA's tile of D.

    Rasterisation: `group_m` rows of tiles go through the columns together, column by column, so
    that CTAs that run at the same time share tiles of A and B in the L2 cache.
    """
    BM, BN, group = config.BM, config.BN, config.group_m
    rows, cols = (M + (BM - 1)) // BM, (N + (BN - 1)) // BN
    cta = tc.blockIdx.x
    if config.split_k > 1:
        cta = cta // config.split_k
    span = cols * group
    first = cta // span * group
    height = min(rows - first, group)
    inside = cta % span
    return (first + inside % height) * BM, inside // height * BN


def mma_step(acc, mma, fa, fb):
    """acc[i][j] += fa[i] fb[j]."""
    acc[:] = tc.tiled_mma(mma, acc, fa, fb)


def mma_mainloop(a, b, mma, m0, n0, config: AmpereConfig, traits: AmpereTraits, mma_step=mma_step):
    """Compute acc[i][j] = sum over K of A B; also returns the warp's first row and column of D.

    mma_step: function that multiplies the fragments of one K-step.
    Tile t of K lies in stage t % stages. Each thread closes one group of `cp.async` a tile, also
    for tiles beyond K, which copy nothing: the number of open groups then tells which tile has
    arrived, and `cp_async_wait` needs no other count at the end of K.
    """
    rows, cols, _ = mma.shape
    M, K = a.shape
    N = b.shape[1]
    a_rows, b_rows = a if traits.a_k_major else a.T, b.T if traits.b_k_major else b
    stages_a = shared_stages(a.dtype, config.BM, config, traits.a_k_major)
    stages_b = shared_stages(b.dtype, config.BN, config, traits.b_k_major)
    load_a = make_tile_loader(a_rows, stages_a, m0, M, K, traits.a_k_major, traits.vec_a, config, traits.full)
    load_b = make_tile_loader(b_rows, stages_b, n0, N, K, traits.b_k_major, traits.vec_b, config, traits.full)
    warp = tc.warp_id()
    warp_m = warp % (config.BM // config.WM) * config.WM
    warp_n = warp // (config.BM // config.WM) * config.WN
    acc = [[mma.d.zeros() for _ in range(config.WN // cols)] for _ in range(config.WM // rows)]
    tiles = (K + (config.BK - 1)) // config.BK

    def load_stage(tile, stage):
        """Start the copies of a tile, if K has it, and close their group."""
        if tile < tiles:
            load_tile(load_a, stage, tile * config.BK, traits.vec_a)
            load_tile(load_b, stage, tile * config.BK, traits.vec_b)
        advance(load_a)
        advance(load_b)
        tc.cp_async_commit()

    def load_operands(stage, k):
        """Load this warp's fragments of A and of B at depth `k` of a stage."""
        return (
            load_fragments(stages_a[stage], warp_m, k, config.WM, mma.a, traits.a_k_major, False),
            load_fragments(stages_b[stage], warp_n, k, config.WN, mma.b, traits.b_k_major, True),
        )

    # Prologue: fill all stages but one. The mainloop fills that one while it computes tile 0.
    for stage in tc.static_range(config.stages - 1):
        load_stage(stage, stage)
    loop = mainloop_with_register_prefetch if traits.prefetch else mainloop
    loop(acc, mma, tiles, load_stage, load_operands, config, mma_step)
    return acc, m0 + warp_m, n0 + warp_n


def mainloop(acc, mma, tiles, load_stage, load_operands, config: AmpereConfig, mma_step):
    """For each tile: wait until it has arrived, start the copies of a later one, multiply."""
    read, write = 0, config.stages - 1
    for tile in range(tiles):
        # stages - 1 + tile groups are closed here. All but the last stages - 2 are complete after
        # the wait: those of tiles 0 to `tile`. The wait covers the thread's own copies only; the
        # barrier makes the copies of all threads visible to all.
        tc.cp_async_wait(config.stages - 2)
        tc.barrier()
        # The stage written now held tile - 1. Every warp has passed the barrier, so every warp has
        # read its fragments of tile - 1, and the copies may overwrite them.
        load_stage(tile + (config.stages - 1), write)
        for k in tc.static_range(0, config.BK, mma.shape[2]):
            mma_step(acc, mma, *load_operands(read, k))
        read, write = next_stage(read, config.stages), next_stage(write, config.stages)


def mainloop_with_register_prefetch(
    acc, mma, tiles, load_stage, load_operands, config: AmpereConfig, mma_step
):
    """Mainloop that loads the fragments of each K-step one step before it uses them.

    Loads from shared memory then overlap with `mma`, across tiles too. The last step loads from
    the stage behind the last tile, and ignores what it gets; that stage must have been written
    once, so K needs at least as many tiles as there are stages.
    """
    read, write = 0, config.stages - 1
    depth = mma.shape[2]
    steps = config.BK // depth
    tc.cp_async_wait(config.stages - 2)
    tc.barrier()
    fa, fb = load_operands(read, 0)
    for tile in range(tiles):
        for step in tc.static_range(steps):
            if step == 0:
                # The barrier at the end of tile - 1 is passed, so every warp has loaded its last
                # fragments of tile - 1, which this stage held, into registers.
                load_stage(tile + (config.stages - 1), write)
                write = next_stage(write, config.stages)
            if step == steps - 1:
                # The next fragments are those of tile + 1: wait for it as `mainloop` does.
                tc.cp_async_wait(config.stages - 2)
                tc.barrier()
                read = next_stage(read, config.stages)
            next_fragments = load_operands(read, (step + 1) % steps * depth)
            mma_step(acc, mma, fa, fb)
            fa, fb = next_fragments


def shared_stages(dtype, extent: int, config: AmpereConfig, k_major: bool):
    """Shared memory for `stages` tiles of extent x BK, with the widest swizzle that a row allows.

    The swizzle spreads the 16-byte chunks of eight rows over all banks, so that `ldmatrix`, which
    reads one chunk of each, has no bank conflicts.
    """
    shape = (extent, config.BK) if k_major else (config.BK, extent)
    row_bytes = shape[1] * dtype.itemsize
    wide = [width for width in (128, 64, 32) if row_bytes % width == 0]
    swizzle = wide[0] if wide else 0
    return tc.shared((config.stages, *shape), dtype, swizzle=swizzle)


def next_stage(stage, stages: int):
    """The stage behind `stage`; the first follows the last."""
    return tc.select(stage == stages - 1, 0, stage + 1)


@dataclass
class TileLoader:
    """Copies the vectors of one thread from an operand's tiles into stages of shared memory.

    A tile has `rows` rows of `run` contiguous elements. A thread copies one vector of every
    `step`-th row, from `row` on: row `row + i * step` through pointers[i], at `column`.
    """

    stages: Any
    pointers: list[Any]
    row_exists: list[Any]  # for each pointer: whether its row is inside the operand; None: always
    row: Any
    column: Any
    step: int
    vec: int  # elements of a vector
    along_k: bool  # the contiguous axis is K
    extent: Any  # elements of the operand along the contiguous axis
    advance: Any  # elements from a tile to the next one along K
    k: Any
    origin: Any  # the CTA's first row of A, or column of B
    full: bool


def make_tile_loader(
    view, stages, origin, limit, K, along_k: bool, vec_bytes: int, config: AmpereConfig, full: bool
):
    """Make the loader of the CTA's tiles of `view`, an operand whose last axis is contiguous.

    origin is the CTA's first row of A (column of B), limit the number of them in the operand.
    """
    _, rows, run = stages.shape
    itemsize = stages.dtype.itemsize
    vec = max(vec_bytes, 4) // itemsize
    chunks = run // vec
    step = config.rows_at_once(rows if along_k else run, along_k, itemsize, vec_bytes)
    tid = tc.threadIdx.x
    row, column = tid // chunks, tid % chunks * vec
    pointers, row_exists = [], []
    for i in tc.static_range(0, rows, step):
        if along_k:
            # Rows beyond the operand read its last row, so that every pointer is valid; no byte of
            # them is copied (see load_tile).
            index = origin + row + i
            row_exists.append(None if full else index < limit)
            pointers.append(view.at(index if full else min(index, limit - 1), column))
        else:
            pointers.append(view.at(row + i, origin + column))
            row_exists.append(None)
    advance = run if along_k else view.strides[0] * rows
    extent = K if along_k else limit
    return TileLoader(
        stages, pointers, row_exists, row, column, step, vec, along_k, extent, advance, K, origin, full
    )


def load_tile(loader, stage, k0, vec_bytes: int):
    """Start the copies of the tile that begins at `k0` along K into a stage.

    Elements outside the operand become zero, which adds nothing to a product.
    """
    size = loader.stages.dtype.itemsize
    first = permuted_row(loader.row, loader.stages, loader.along_k)
    for index, pointer in enumerate(loader.pointers):
        row = loader.row + index * loader.step
        target = loader.stages.at(stage, first + index * loader.step, loader.column)
        if loader.full:
            tc.cp_async(target, pointer, loader.vec * size)
            continue
        # Elements of this vector that exist: those before the end of the contiguous axis, ...
        position = k0 + loader.column if loader.along_k else loader.origin + loader.column
        left = min(max(loader.extent - position, 0), loader.vec)
        # ... and none in rows that do not exist.
        exists = loader.row_exists[index] if loader.along_k else (k0 + row < loader.k)
        count = tc.select(exists, left, 0)
        if vec_bytes >= 4:
            tc.cp_async(target, pointer, loader.vec * size, valid=count * size)
        else:
            # `cp.async` takes at least 4 bytes. Smaller vectors go by plain loads and a store, which
            # the barrier of the mainloop also orders.
            elements = [(pointer + e).load(pred=count > e) for e in range(loader.vec)]
            target.store(tc.vector(elements))


def advance(loader):
    """Move on by one tile along K."""
    loader.pointers = [p + loader.advance for p in loader.pointers]


def load_fragments(tile, first, k: int, extent: int, operand, k_major: bool, transposed: bool):
    """Load the fragments of `extent` rows of A (columns of B: `transposed`) at depth `k` of a tile."""
    depth = operand.layout.rows if transposed else operand.layout.cols
    if is_permuted(tile, k_major):
        height = operand.layout.cols if transposed else operand.layout.rows
        blocks = [tile[first + i : first + i + height] for i in range(0, extent, height)]
        return [load_permuted_fragment(block, k, operand, transposed) for block in blocks]
    if k_major:
        view = tile[first : first + extent, k : k + depth]
    else:
        view = tile[k : k + depth, first : first + extent].T
    fragments = tc.ldmatrix(view.T if transposed else view, operand)
    return fragments if isinstance(fragments, list) else [fragments]


# `ldmatrix` does not load 8-byte elements. A warp loads those of a fragment directly: 32 bytes of
# each of four rows at a time. The 128-byte swizzle moves a row by 16 bytes against the row above,
# so only every second row lies in other banks. K-major tiles of f64 therefore store rows 0 to 7 of
# each group of eight at positions 0 2 4 6 1 3 5 7: rows that are read together lie two apart, and
# the loads have no bank conflicts.


def is_permuted(tile, k_major: bool):
    """Whether the rows of a tile lie in permuted order."""
    return k_major and tile.dtype.itemsize == 8 and tile.swizzle == 128


def permuted_row(row, tile, k_major: bool):
    """Row of the tile that stores row `row` of the operand."""
    if not is_permuted(tile, k_major):
        return row
    return (row & ~7) + (row % 4 * 2 + row // 4 % 2)


def load_permuted_fragment(tile, k: int, operand, transposed: bool):
    """Load a fragment of permuted rows, element by element."""
    fragment, elements = operand.zeros(), []
    for e in tc.static_range(len(fragment)):
        row, step = fragment.coordinates(e)
        if transposed:
            row, step = step, row
        elements.append(tile[permuted_row(row, tile, True), k + step])
    return tc.fragment(operand, elements)
