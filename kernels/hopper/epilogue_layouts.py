"""Epilogues for other layouts of D: rows that TMA cannot write, and transposed tiles of swap AB.

With swap AB, the rows of a tile are columns of D, and its columns are rows of D. A staging buffer
then has a line for each column of the tile, so that lines of the buffer are rows of D.
"""

from __future__ import annotations

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, WARPGROUP, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.epilogue import (
    Epilogue,
    make_staging,
    make_tma_epilogue,
    pack,
    same_row,
    slice_columns,
    swizzle_of,
)

MIN_BOX_BYTES = 16  # least bytes of a row of a TMA box
MAX_AT_ONCE = 4  # elements, pairs or vectors that a thread reads before it stores them


def make_epilogue(d, config: HopperConfig, traits: HopperTraits, buffers: int = 2):
    """The epilogue that stores D as it lies. buffers: staging buffers of each consumer."""
    if config.swap_ab:
        return make_swap_ab_epilogue(d, config, traits, buffers)
    narrowest = slice_columns(config.stored_columns, d.dtype.itemsize)[-1]
    if not traits.store_by_threads and narrowest * d.dtype.itemsize >= MIN_BOX_BYTES:
        return make_tma_epilogue(d, config, traits, buffers)
    staging = make_staging(d, config, buffers)
    return ThreadEpilogue(d, {}, staging, traits.row_reductions)


class ThreadEpilogue(Epilogue):
    """D in row-major order, with rows that TMA cannot write: threads store it."""

    def store(self, origin, buffer):
        store_by_warpgroup(self.d, origin, buffer)


# -- swap AB ----------------------------------------------------------------------------------


def make_swap_ab_epilogue(d, config: HopperConfig, traits: HopperTraits, buffers: int):
    """The epilogue of swap AB, by TMA or by threads."""
    width = SWIZZLE_BYTES // d.dtype.itemsize
    lines = slice_lines(config.stored_columns, d.dtype.itemsize)
    shape = config.consumers, buffers, 64 // width, lines[0], width
    swizzle, maps = swizzle_of(width, d.dtype), {}
    staging = tc.shared(shape, d.dtype, swizzle=swizzle)
    if not traits.store_by_threads:
        for n in dict.fromkeys(lines):
            maps[n] = tc.tensor_map(d, (*(1,) * (d.ndim - 2), n, width), swizzle=swizzle)
    reads_d = traits.has_c and not traits.c_is_row
    return SwapABEpilogue(d, maps, staging, traits.row_reductions, reads_d)


def slice_lines(columns: int, itemsize: int):
    """Columns of each slice. A staging buffer has one line for each column, in any number."""
    width = SWIZZLE_BYTES // itemsize
    left = columns % width
    return [width] * (columns // width) + [left] * (left > 0)


class SwapABEpilogue(Epilogue):
    """D with transposed tiles.

    staging: (consumer, buffer, part of the 64 rows of the tile, column of the tile, row of a part).
    """

    def in_d(self, row, col):
        return col, row

    def column_slices(self, columns: int):
        return slice_lines(columns, self.d.dtype.itemsize)

    def buffer(self, consumer, index: int, columns: int):
        return self.staging[consumer, index % self.buffers][:, :columns]

    def stage(self, buffer, values, column: int):
        """Write eight or four values of each thread: columns of the tile become lines of the buffer."""
        lane, row_of_warp = tc.lane_id(), tc.warp_id() % 4 * 16
        if buffer.dtype.bits == 16:
            words, count = pack(values, buffer.dtype), len(values) // 2
            right = column + lane // 16 % (count // 2) * 8
            corner = buffer[0].at(right + lane % 8, row_of_warp + lane // 8 % 2 * 8)
            tc.emit(f"stmatrix.sync.aligned.m8n8.x{count}.trans.shared.b16", corner.address, words)
            return
        width = buffer.shape[-1]
        for i in (4 * half + j for half in tc.static_range(len(values) // 4) for j in (0, 1)):
            # Element i lies in a row r, and element i + 2 in row r + 8 of the same column.
            col = column + 8 * (i // 4) + 2 * (lane % 4) + i % 4
            pair = [values[i + j].to(buffer.dtype) for j in (0, 2)]
            rows = [self.row_of(row_of_warp + lane // 4 + j) for j in (0, 8)]
            if self.row_of is not same_row:  # rows of fragments: those rows are neighbours
                buffer.at(rows[0] // width, col, rows[0] % width).store(pair)
            else:
                for row, value in zip(rows, pair, strict=True):
                    buffer[row // width, col, row % width] = value

    def store(self, origin, buffer):
        """Store all columns of D of a buffer, 128 bytes at a time, in one group of TMA."""
        *outer, column = origin
        parts, lines, width = buffer.shape
        origins = [(*outer, column + i * width) for i in range(parts)]
        if not self.maps:
            for i in tc.static_range(parts):
                store_by_warpgroup(self.d, origins[i], buffer[i])
        elif tc.threadIdx.x % WARPGROUP == 0:
            for i in tc.static_range(parts):
                tc.tma_store(self.maps[lines], origins[i], buffer[i])
            tc.tma_store_commit()


# -- stores by threads ------------------------------------------------------------------------


def store_by_warpgroup(d, origin, buffer):
    """Store a buffer to rows that TMA cannot write."""
    if buffer.dtype.itemsize == d.align == 2:
        store_pairs(buffer, d, origin)
    else:
        count = min(d.align, 8) // buffer.dtype.itemsize
        store_vectors(buffer, d, origin, d.shape[-2], count)


def store_vectors(buffer, d, origin, m_end, count: int):
    """Store by this warpgroup's threads: vectors of `count` elements, rows before `m_end` only."""
    *batch, m, n = origin
    rows, width = buffer.shape
    vectors = width // count
    rounds = rows * vectors // WARPGROUP
    at_once = max(n for n in range(1, MAX_AT_ONCE + 1) if max(rounds, 1) % n == 0)
    for first in tc.range(tc.threadIdx.x % WARPGROUP, rows * vectors, WARPGROUP * at_once):
        loaded = []
        for i in range(at_once):
            vector = first + i * WARPGROUP
            row, col = vector // vectors, vector % vectors * count
            loaded.append((row, col, buffer.at(row, col).load(count)))
        for row, col, value in loaded:
            inside, left = m + row < m_end, d.shape[-1] - (n + col)
            target = d.at(*batch, m + row, n + col)
            target.store(value, pred=inside & (left >= count))
            if count > 1:
                store_first(left, value.elements(), target, inside & (left < count))


def store_first(count, elements, target, pred):
    """Store the first `count` elements one by one, at the right edge of D."""
    if pred:
        for i in tc.static_range(len(elements) - 1):
            (target + i).store(elements[i], pred=i < count)


def store_pairs(buffer, d, origin):
    """Store 16-bit elements to rows at any address: one warp per row, a pair of elements a lane.

    A row that starts in the middle of a 32-bit word has its pairs one element further right: lane
    0 stores the first element alone, and the last lane the last one.
    """
    *batch, m, n = origin
    lines, width = buffer.shape
    rows, cols = d.shape[-2:]
    # A buffer has a multiple of 8 lines.
    at_once = MAX_AT_ONCE if lines % (4 * MAX_AT_ONCE) == 0 else MAX_AT_ONCE // 2
    for first in tc.range(tc.warp_id() % 4, min(lines, rows - m), 4 * at_once):
        loaded = []
        for line in [first + 4 * i for i in range(at_once)]:
            target, inside = d.at(*batch, m + line, n), m + line < rows
            odd = (target.address >> 1 & 1).to(tc.s32)
            for part in range(-(-width // 64)):
                col = part * 64 + 2 * tc.lane_id() + odd
                pair = [buffer.at(line, min(col + i, width - 1)).load() for i in (0, 1)]
                loaded.append((target, inside, col, pair, odd))
        for target, inside, col, pair, _ in loaded:
            both_inside = inside & (col + 1 < width) & (n + col + 1 < cols)
            (target + col).store(pair, pred=both_inside)
            alone = inside & (col < width) & (n + col < cols) & ~both_inside
            (target + col).store(pair[0], pred=alone)
        for i in range(at_once):
            target, inside, *_, odd = loaded[i * -(-width // 64)]
            begin = inside & (odd == 1) & (tc.lane_id() == 0) & (n < cols)
            target.store(buffer.at(first + 4 * i, 0).load(), pred=begin)
