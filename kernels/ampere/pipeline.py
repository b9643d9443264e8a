"""What the sm_80 GEMM kernels share: tiles, the copy pipeline, fragments, the epilogue.

These are helpers in the kernel language: the compiler inlines them into each kernel.
Names: BM x BN x BK is the block's tile, WM x WN a warp's. A is "K-major" when its elements
along K are neighbours in memory (row-major A, column-major B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc


@dataclass(frozen=True)
class AmpereConfig:
    """Tile sizes and pipeline depth; all compile-time constants of a kernel."""

    BM: int = 128
    BN: int = 128
    BK: int = 32
    WM: int = 64
    WN: int = 64
    stages: int = 3
    group_m: int = 8  # block rows that share their columns of B in the L2 cache

    @property
    def warps(self) -> int:
        return (self.BM // self.WM) * (self.BN // self.WN)

    @property
    def threads(self) -> int:
        return 32 * self.warps


@dataclass(frozen=True)
class AmpereTraits:
    """What the host knows of the operands: strides, alignment, edges.

    vec_a, vec_b, vec_d: bytes that one access may move. full: M, N and K are multiples of the
    tile, so that nothing needs a bound check. prefetch: K has at least as many tiles as the
    pipeline stages. scaled: D = alpha A B, else D = A B; has_c: plus
    beta C.
    """

    a_k_major: bool = True
    b_k_major: bool = True
    vec_a: int = 16
    vec_b: int = 16
    vec_d: int = 16
    full: bool = True
    prefetch: bool = False
    scaled: bool = False
    has_c: bool = False


def block_tile(M, N, BM: int, BN: int, group: int):
    """First row and column of this block's tile; blocks of `group` rows go column by column."""
    rows, cols = (M + (BM - 1)) // BM, (N + (BN - 1)) // BN
    block = tc.blockIdx.x
    span = cols * group
    first = block // span * group
    height = min(rows - first, group)
    inside = block % span
    return (first + inside % height) * BM, inside // height * BN


@dataclass
class Source:
    """The part of a global operand that a block reads, and the shared ring it goes to.

    The ring's slots are `lines` x `run` elements, `run` along memory. `along_k` tells whether
    K runs along memory. Each thread copies one vector of every `step`-th line.
    """

    ring: Any
    pointers: list[Any]
    inside: list[Any]  # per copied line: may it be read at all? (None: yes)
    line: Any
    column: Any
    step: int
    vec: int  # elements
    along_k: bool
    extent: Any  # length of the operand along memory
    advance: Any  # elements to the next tile along K
    k: Any
    first: Any
    full: bool


def open_source(
    view, ring, origin, limit, K, along_k: bool, vec_bytes: int, threads: int, full: bool
):
    """Prepare the copies of operand `view` (line, position along memory) into `ring`.

    origin is the block's first row (or column), limit how many there are.
    """
    _, lines, run = ring.shape
    size = ring.dtype.itemsize
    vec = max(vec_bytes, 4) // size
    chunks = run // vec
    step = threads // chunks
    if threads % chunks or lines % step or (apart(ring, along_k) and step % 8):
        raise ValueError(
            f"{threads} threads cannot share {lines} lines of {chunks} vectors evenly; "
            "choose other tile sizes"
        )
    tid = tc.threadIdx.x
    line, column = tid // chunks, tid % chunks * vec
    pointers, inside = [], []
    for i in tc.static_range(0, lines, step):
        if along_k:
            row = origin + line + i
            inside.append(None if full else row < limit)
            pointers.append(view.at(row if full else min(row, limit - 1), column))
        else:
            pointers.append(view.at(line + i, origin + column))
            inside.append(None)
    advance = ring.shape[2] if along_k else view.strides[0] * lines
    extent = K if along_k else limit
    return Source(
        ring, pointers, inside, line, column, step, vec, along_k, extent, advance, K, origin, full
    )


def copy_tile(source, slot, k0, vec_bytes: int):
    """Start the copies of the tile that begins at `k0` along K into slot `slot`."""
    size = source.ring.dtype.itemsize
    first = place_of(source.line, source.ring, source.along_k)
    for index, pointer in enumerate(source.pointers):
        line = source.line + index * source.step
        target = source.ring.at(slot, first + index * source.step, source.column)
        if source.full:
            tc.cp_async(target, pointer, source.vec * size)
            continue
        # Elements of this vector that exist: those before the end of memory's line ...
        position = k0 + source.column if source.along_k else source.first + source.column
        left = min(max(source.extent - position, 0), source.vec)
        # ... on lines that exist.
        exists = source.inside[index] if source.along_k else (k0 + line < source.k)
        count = tc.select(exists, left, 0)
        if vec_bytes >= 4:
            tc.cp_async(target, pointer, source.vec * size, valid=count * size)
        else:
            copy_elements(target, pointer, count, source.vec)


def copy_elements(target, pointer, count, vec: int):
    """A vector whose elements lie at odd addresses: loaded one by one, stored at once."""
    elements = [(pointer + e).load(pred=count > e) for e in range(vec)]
    target.store(tc.vector(elements))


def advance(source):
    """Move on by one tile along K."""
    source.pointers = [p + source.advance for p in source.pointers]


def apart(tile, k_major: bool):
    """Do lines that are read together lie two apart?

    A warp reads 8-byte elements of four lines at a time, 32 bytes of each. The swizzle of 128
    bytes shifts a line by 16 bytes against the line above: only every second one is elsewhere.
    """
    return k_major and tile.dtype.itemsize == 8 and tile.swizzle == 128


def place_of(line, tile, k_major: bool):
    """Where a line of the operand lies in the tile: 0 to 7 at 0 2 4 6 1 3 5 7."""
    if not apart(tile, k_major):
        return line
    return (line & ~7) + (line % 4 * 2 + line // 4 % 2)


def read_fragments(tile, first, k: int, extent: int, operand, k_major: bool, transposed: bool):
    """The fragments of `extent` rows of A (columns of B: `transposed`) at depth `k` of a tile."""
    depth = operand.layout.rows if transposed else operand.layout.cols
    if apart(tile, k_major):
        height = operand.layout.cols if transposed else operand.layout.rows
        blocks = [tile[first + i : first + i + height] for i in range(0, extent, height)]
        return [read_apart(block, k, operand, transposed) for block in blocks]
    if k_major:
        view = tile[first : first + extent, k : k + depth]
    else:
        view = tile[k : k + depth, first : first + extent].T
    found = tc.ldmatrix(view.T if transposed else view, operand)
    return found if isinstance(found, list) else [found]


def read_apart(tile, k: int, operand, transposed: bool):
    """A fragment, element by element, of lines that lie at `place_of`."""
    fragment, elements = operand.zeros(), []
    for slot in tc.static_range(len(fragment)):
        line, step = fragment.coordinates(slot)
        if transposed:
            line, step = step, line
        elements.append(tile[place_of(line, tile, True), k + step])
    return tc.fragment(operand, elements)


def next_slot(slot, stages: int):
    return tc.select(slot == stages - 1, 0, slot + 1)


def mainloop(a, b, mma, m0, n0, config: AmpereConfig, traits: AmpereTraits):
    """acc[i][j] = sum over K of A B for this warp's fragments, and where its part begins."""
    rows, cols, _ = mma.shape
    M, K = a.shape
    N = b.shape[1]
    a_lines, b_lines = a if traits.a_k_major else a.T, b.T if traits.b_k_major else b
    ring_a = ring(a.dtype, config.BM, config.BK, config.stages, traits.a_k_major)
    ring_b = ring(b.dtype, config.BN, config.BK, config.stages, traits.b_k_major)
    source_a = open_source(
        a_lines, ring_a, m0, M, K, traits.a_k_major, traits.vec_a, config.threads, traits.full
    )
    source_b = open_source(
        b_lines, ring_b, n0, N, K, traits.b_k_major, traits.vec_b, config.threads, traits.full
    )
    warp = tc.warp_id()
    warp_m = warp % (config.BM // config.WM) * config.WM
    warp_n = warp // (config.BM // config.WM) * config.WN
    acc = [[mma.d.zeros() for _ in range(config.WN // cols)] for _ in range(config.WM // rows)]
    tiles = (K + (config.BK - 1)) // config.BK

    def fetch(tile, slot):
        """Start the copies of a tile, if there is one, and close their group."""
        if tile < tiles:
            copy_tile(source_a, slot, tile * config.BK, traits.vec_a)
            copy_tile(source_b, slot, tile * config.BK, traits.vec_b)
        advance(source_a)
        advance(source_b)
        tc.cp_async_commit()

    def fragments(slot, k):
        """This warp's rows of A and columns of B at depth `k` of a tile."""
        return (
            read_fragments(ring_a[slot], warp_m, k, config.WM, mma.a, traits.a_k_major, False),
            read_fragments(ring_b[slot], warp_n, k, config.WN, mma.b, traits.b_k_major, True),
        )

    for stage in tc.static_range(config.stages - 1):
        fetch(stage, stage)
    loop = prefetched_loop if traits.prefetch else plain_loop
    loop(acc, mma, tiles, fetch, fragments, config)
    return acc, m0 + warp_m, n0 + warp_n


def plain_loop(acc, mma, tiles, fetch, fragments, config: AmpereConfig):
    """Wait for a tile, start the copies of a later one, multiply."""
    read, write = 0, config.stages - 1
    for tile in range(tiles):
        tc.cp_async_wait(config.stages - 2)
        tc.barrier()
        fetch(tile + (config.stages - 1), write)
        for k in tc.static_range(0, config.BK, mma.shape[2]):
            multiply(acc, mma, *fragments(read, k))
        read, write = next_slot(read, config.stages), next_slot(write, config.stages)


def prefetched_loop(acc, mma, tiles, fetch, fragments, config: AmpereConfig):
    """The same, with each fragment loaded one step before it is needed, across tiles too.

    The last step reads a slot that holds no further tile, so there must be at least as many
    tiles as stages.
    """
    read, write = 0, config.stages - 1
    depth = mma.shape[2]
    steps = config.BK // depth
    tc.cp_async_wait(config.stages - 2)
    tc.barrier()
    fa, fb = fragments(read, 0)
    for tile in range(tiles):
        for step in tc.static_range(steps):
            if step == 0:
                fetch(tile + (config.stages - 1), write)
                write = next_slot(write, config.stages)
            if step == steps - 1:
                tc.cp_async_wait(config.stages - 2)
                tc.barrier()
                read = next_slot(read, config.stages)
            ahead = fragments(read, (step + 1) % steps * depth)
            multiply(acc, mma, fa, fb)
            fa, fb = ahead


def multiply(acc, mma, fa, fb):
    """acc[i][j] += fa[i] fb[j], back and forth along j so that neighbours share a fragment."""
    for i in tc.static_range(len(acc)):
        for j in tc.static_range(len(acc[0])):
            j = len(acc[0]) - 1 - j if i % 2 else j
            acc[i][j] = mma(fa[i], fb[j], acc[i][j])


def ring(dtype, extent: int, depth: int, stages: int, k_major: bool):
    """Shared slots for `stages` tiles, swizzled as far as a line of the tile allows."""
    shape = (extent, depth) if k_major else (depth, extent)
    line = shape[1] * dtype.itemsize
    swizzle = 128 if line % 128 == 0 else 64 if line % 64 == 0 else 32 if line % 32 == 0 else 0
    return tc.shared((stages, *shape), dtype, swizzle=swizzle)


def epilogue(acc, m0, n0, c, d, alpha, beta, mma, traits: AmpereTraits):
    """D = alpha acc + beta C, two neighbours at once where alignment allows."""
    M, N = d.shape
    rows, cols, _ = mma.shape
    for i, line in enumerate(acc):
        for j, fragment in enumerate(line):
            for slot in tc.static_range(0, len(fragment), 2):
                row, col = fragment.coordinates(slot)
                row, col = m0 + i * rows + row, n0 + j * cols + col
                store_pair(
                    (fragment[slot], fragment[slot + 1]), row, col, M, N, c, d, alpha, beta, traits
                )


def store_pair(values, row, col, M, N, c, d, alpha, beta, traits: AmpereTraits):
    """Two elements of one row, at `col` and `col + 1`."""
    if traits.scaled:
        values = [alpha * v for v in values]
    pair = traits.vec_d >= 2 * d.dtype.itemsize
    if traits.full and pair:
        finish_pair(values, row, col, c, d, beta, traits, None)
        return
    for e, value in enumerate(values):
        inside = (row < M) & (col + e < N)
        if inside:
            if traits.has_c:
                value = beta * c[row, col + e].to(value.dtype) + value
            d[row, col + e] = value.to(d.dtype)


def finish_pair(values, row, col, c, d, beta, traits: AmpereTraits, inside):
    if traits.has_c:
        old = c.at(row, col).load(2)
        values = [tc.fma(beta, old[e].to(v.dtype), v) for e, v in enumerate(values)]
    d.at(row, col).store([v.to(d.dtype) for v in values], pred=inside)
