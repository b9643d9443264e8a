"""Operands of the f64 GEMM: tiles in shared memory, their copies, and fragments without conflicts.

A K-major tile has rows of 16 elements of K, 128 bytes. An MN-major tile has blocks of 16 rows of A
(columns of B), one row of 128 bytes for every k. Both have TMA's 128-byte swizzle, which XORs the
16-byte chunk with the row modulo 8.

A fragment covers 16 *lines*: rows of A or columns of B. m16n8k4 takes 16 rows of A, and two
instructions take 16 columns of B. Lane 4 g + t holds k = t of two lines, h = 0 and 1. A kernel may
assign any line of the operand to line (g, h) of the fragment, if it stores D accordingly. Here it is
line 2 F(g) + h with F = 0 6 1 7 4 2 5 3:

    K-major      8-byte loads; 16 lanes at a time read four values of g, and the two chunks of K of
                 each line are XORed with 2 F(g) modulo 8: 0 4 2 6, so all 32 banks differ
    MN-major     16-byte loads of h = 0 and 1; 8 lanes at a time read two values of g and four k,
                 that is chunks F(g) XOR k; F(2 i) and F(2 i + 1) differ in bit 2, so no two agree
    columns of D neighbouring lanes hold 2 F(2 t) and 2 F(2 t) + 2, so that stores fill 32 bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES

WIDTH = 16  # elements of a row of shared memory; lines of a fragment


@dataclass
class Operand:
    """A (axis 0) or B (axis 1): `extent` lines a tile, `config.stages` tiles in shared memory.

    smem: (stages, slabs of K, lines, 16) of a K-major operand, else (stages, blocks of lines, k,
    16). map: its tensor map, or None: threads copy `vec` elements at a time.
    """

    array: Any
    smem: Any
    axis: int
    extent: int
    k_major: bool
    map: Any
    vec: int
    config: AmpereConfig

    @property
    def bytes(self) -> int:
        """Bytes of a tile."""
        return self.extent * self.config.BK * self.smem.dtype.itemsize


def make_operand(array, axis: int, k_major: bool, tma: bool, vec_bytes: int, config: AmpereConfig):
    """Shared tiles of A (axis 0) or B (axis 1), and its tensor map, if TMA reads it."""
    extent, BK = (config.BM, config.BN)[axis], config.BK
    shape = (BK // WIDTH, extent, WIDTH) if k_major else (extent // WIDTH, BK, WIDTH)
    smem = tc.shared((config.stages, *shape), array.dtype, swizzle=SWIZZLE_BYTES)
    lines, depth = (extent, WIDTH) if k_major else (WIDTH, BK)
    map = tc.tensor_map(array, in_order(axis, lines, depth), swizzle=SWIZZLE_BYTES) if tma else None
    vec = 2 if vec_bytes >= 16 else 1
    return Operand(array, smem, axis, extent, k_major, map, vec, config)


def in_order(axis: int, line, k):
    """(row, k) of A, (k, column) of B."""
    return (k, line) if axis else (line, k)


# -- copies to shared memory -------------------------------------------------------------------


def load_by_tma(operand: Operand, stage, origin, k0, full):
    """Start the boxes of the tile at line `origin` and element `k0` of K. One thread runs this."""
    for i in tc.static_range(operand.smem.shape[1]):
        line, k = (origin, k0 + i * WIDTH) if operand.k_major else (origin + i * WIDTH, k0)
        index = in_order(operand.axis, line, k)
        tile = operand.smem[stage, i]
        tile = tile if operand.k_major != operand.axis else tile.T  # (row, k) or (k, column)
        tc.tma_load(tile, operand.map, index, full)


def load_by_threads(operand: Operand, stage, origin, k0):
    """Start this thread's `cp.async` of a tile; elements outside of the operand become zero.

    A tile is blocks (slabs of K, or blocks of lines) of rows of 16 elements. Neighbouring threads
    copy neighbouring vectors of a row, and each thread the same vector of every `step`-th row.
    """
    array, smem, axis, vec = operand.array, operand.smem, operand.axis, operand.vec
    _, blocks, rows, _ = smem.shape
    K, lines = array.shape if axis else array.shape[::-1]
    step = operand.config.threads // (WIDTH // vec)
    first, along = tc.threadIdx.x // (WIDTH // vec), tc.threadIdx.x % (WIDTH // vec) * vec
    # Elements of the operand from the tile's first row on, and from its first element of a row on.
    if operand.k_major:
        rows_left, left = lines - origin, K - k0 - along
    else:
        rows_left, left = K - k0, lines - origin - along
    corner = corner_of(operand, origin, k0, first % rows, along)
    down, right = array.strides if axis != operand.k_major else array.strides[::-1]
    hop, source = step * down, corner
    for passed in tc.static_range(0, blocks * rows, step):
        if rows % step == 0 or blocks == 1:
            block, above, row = passed // rows, passed % rows, first
            source = corner + block * WIDTH * right if above == 0 else source + hop
        elif step % rows == 0:
            block, above, row = passed // rows + first // rows, 0, first % rows
            source = corner + block * WIDTH * right
        else:
            block, above, row = (passed + first) // rows, 0, (passed + first) % rows
            source = corner_of(operand, origin, k0, row, along) + block * WIDTH * right
        in_row = min(max(left - block * WIDTH, 0), vec)
        valid = tc.select(row + above < rows_left, in_row, 0)
        inside = None if blocks * rows % step == 0 else passed + first < blocks * rows
        target, size = smem.at(stage, block, row + above, along), smem.dtype.itemsize
        tc.cp_async(target, source, vec * size, valid=valid * size, pred=inside)


def corner_of(operand: Operand, origin, k0, row, along):
    """Pointer to an element of the first block of a tile."""
    line, k = (row, along) if operand.k_major else (along, row)
    return operand.array.at(*in_order(operand.axis, origin + line, k0 + k))


# -- fragments -----------------------------------------------------------------------------------


def line_of(g):
    """F(g) for g from 0 to 7: 0 6 1 7 4 2 5 3, see the module's docstring."""
    odd = g & 1
    return (g >> 1 & 1) | odd << 1 | ((g >> 2) ^ odd) << 2


def load_lines(operand: Operand, stage, first, k: int, depth: int, count: int):
    """Elements of 16-line fragments: [fragment][h][q], at element `k + 4 q + t` of the tile's K.

    first: the warp's first line in the tile; count: fragments.
    """
    g, t = tc.lane_id() // 4, tc.lane_id() % 4
    line = 2 * line_of(g)
    fragments = []
    for i in tc.static_range(count):
        halves: list[list[Any]] = [[], []]
        for q in tc.static_range(depth // 4):
            at = k + 4 * q
            if operand.k_major:
                for h in tc.static_range(2):
                    index = at // WIDTH, first + line + h + i * WIDTH, t + at % WIDTH
                    halves[h].append(operand.smem.at(stage, *index).load())
            else:
                index = first // WIDTH + i, t + at, line
                pair = operand.smem.at(stage, *index).load(2).elements()
                halves[0].append(pair[0])
                halves[1].append(pair[1])
        fragments.append(halves)
    return fragments


def fragments_of_a(operand: Operand, mma, stage, first, k: int, count: int):
    """Load fragments of 16 rows each."""
    depth = mma.shape[2]
    lines = load_lines(operand, stage, first, k, depth, count)
    return [tc.fragment(mma.a, [halves[e % 2][e // 2] for e in range(depth // 2)]) for halves in lines]


def fragments_of_b(operand: Operand, mma, stage, first, k: int, count: int):
    """Load fragments of 8 columns each, two for 16 columns."""
    lines = load_lines(operand, stage, first, k, mma.shape[2], count // 2)
    return [tc.fragment(mma.b, halves[h]) for halves in lines for h in range(2)]
