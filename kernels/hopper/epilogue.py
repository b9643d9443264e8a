"""Epilogue of the Hopper GEMMs: scale and activate the accumulators, convert, stage, store by TMA.

Each consumer warpgroup stores 64 rows at a time, part by part of the columns, through two staging
buffers of its own, which take turns, or one where a second one would cost a stage:

    barrier      all 128 threads; the TMA store that last read this buffer is done with it
    stmatrix     each thread writes its elements into the swizzled buffer (16-bit D; others by st)
    fence        the writes become visible to the async proxy, which TMA reads through; where C may
                 be D, the loads of its elements come before the store, too
    barrier      all threads have written
    TMA store    one thread issues it; it overlaps with the next part, if that has another buffer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.epilogue_arithmetic import finished
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, WARPGROUP
from tensorcore_dsl.kernels.hopper.transposition import place_of_row

TMA_BYTES = 16  # of a row of a box, at least
AT_ONCE = 4  # elements, pairs or vectors that a thread reads before it stores them


@dataclass
class EpilogueStorage:
    """D with its tensor map, and the shared memory through which results pass to it.

    maps: by the columns of a part, empty where TMA cannot write D. staging: (consumer, buffer,
    64 rows, columns), rows of at most 128 bytes. partials: of split-K, see make_partials; else
    None. row_reductions: see row_reduction.py. swapped: rows of a tile are columns of D; staging is
    (consumer, buffer, parts of its 64 rows, columns of the tile, rows). in_fragments: rows of
    accumulators have the places of transposition.place_of_row. reads_d: threads may load elements
    that they then store, as C may be D.
    """

    d: Any
    maps: Any
    staging: Any
    partials: Any
    row_reductions: Any = None
    swapped: bool = False
    in_fragments: bool = False
    reads_d: bool = False

    def in_d(self, row, col):
        """Row and column of D of a place in what the tiles cover."""
        return (col, row) if self.swapped else (row, col)

    def place_of(self, row):
        """The place in 64 rows of a tile of a row of accumulators."""
        return place_of_row(row) if self.in_fragments else row

    def parts(self, columns: int):
        """Columns of each part of so many that passes through a staging buffer at a time."""
        return column_parts(columns, self.d.dtype.itemsize, self.swapped)

    @property
    def buffers(self) -> int:
        """Staging buffers of a consumer."""
        return self.staging.shape[1]

    def buffer(self, consumer, part: int, columns: int):
        """The staging buffer of a part of the columns."""
        buffer = self.staging[consumer, part % self.buffers]
        if self.swapped:
            return buffer[:, :columns]
        return buffer.with_parts(
            shape=(64, columns), strides=(columns, 1), swizzle=swizzle_of(columns, self.d.dtype)
        )


def column_parts(columns: int, itemsize: int, swapped: bool):
    """Columns of each part: as many as fill 128 bytes, as often as they go in, and what is left.

    What is left is cut into powers of two, so that each part has a swizzle. Swapped, columns are
    lines of a box, of which there may be any number.
    """
    width = SWIZZLE_BYTES // itemsize
    parts = [width] * (columns // width)
    left = columns % width
    if swapped:
        return [*parts, left] if left else parts
    while left:
        parts.append(1 << left.bit_length() - 1)
        left -= parts[-1]
    return parts


def swizzle_of(columns: int, dtype):
    """The swizzle of rows of so many columns; there is none of 16 bytes."""
    row_bytes = columns * dtype.itemsize
    return row_bytes if row_bytes >= 32 else 0


def make_epilogue_storage(d, config, traits, in_fragments: bool = False, buffers: int = 2):
    """Shared memory and tensor map for D. buffers: of staging, for each consumer."""
    of_line = SWIZZLE_BYTES // d.dtype.itemsize
    parts = column_parts(config.stored_columns, d.dtype.itemsize, config.swapped)
    blocks = [64 // of_line] if config.swapped else []
    boxes = {n: (n, of_line) if config.swapped else (64, n) for n in parts}
    widest = *blocks, *boxes[parts[0]]
    swizzle = swizzle_of(widest[-1], d.dtype)
    staging = tc.shared((config.consumers, buffers, *widest), d.dtype, swizzle=swizzle)
    batch, maps = (1,) * (d.ndim - 2), {}
    narrowest = min(box[1] for box in boxes.values()) * d.dtype.itemsize
    if not traits.store_by_threads and narrowest >= TMA_BYTES:
        for n, box in boxes.items():
            maps[n] = tc.tensor_map(d, (*batch, *box), swizzle=swizzle_of(box[1], d.dtype))
    return EpilogueStorage(
        d, maps, staging, None, traits.row_reductions, config.swapped, in_fragments,
        reads_d=traits.has_c and not traits.c_is_row,
    )  # fmt: skip


def make_partials(pipeline, acc_dtype):
    """Shared memory for the partial sums of a CTA: in stages of the pipeline that have room.

    They are (consumer, quads of elements, thread, 4), so that the quads of neighbouring threads are
    adjacent.
    """
    config = pipeline.config
    shape = config.consumers, config.BN // 8, WARPGROUP, 4
    operand = config.partials_over(config.stages)
    if operand is None:
        return tc.shared(shape, acc_dtype)
    stages = (pipeline.a, pipeline.b)[operand].smem
    strides = shape[1] * WARPGROUP * 4, WARPGROUP * 4, 4, 1
    return stages.with_parts(dtype=acc_dtype, shape=shape, strides=strides, swizzle=0)


def store_rows(acc, consumer, storage, tile, row, epilogue_op, config):
    """Store 64 rows of a tile, from row `row` of it on.

    With split-K the cluster first sums its partial tiles, and CTAs store shares of the columns.
    """
    place = tile.batch_d, tile.m + row
    if config.split_k == 1:
        store_elements(
            acc, acc.elements(), consumer, storage, *place, tile.n, epilogue_op, tile.m_end
        )
    else:
        write_partials(acc.elements(), consumer, storage, config)
        part, n = tc.cluster_rank() // config.multicast_ctas, config.stored_columns
        if part < config.BN // n:
            elements = sum_partials(part, consumer, storage.partials, config)
            n = tile.n + part * n
            store_elements(acc, elements, consumer, storage, *place, n, epilogue_op, tile.m_end)


def write_partials(elements, consumer, storage, config):
    """Every CTA of a split-K cluster writes its sums to its own shared memory, and all meet.

    That may be stages of the pipeline: this is the CTA's only tile, so no load follows; all loads
    into them, by multicast too, have arrived, since the consumers have waited for each; and behind
    the barrier the wgmma of all consumers, which read them, are complete, and so are the reads of
    fragments by all warps.
    """
    thread = tc.threadIdx.x % WARPGROUP
    several = config.consumers > 1 or storage.in_fragments
    if several and config.partials_over(config.stages) is not None:
        tc.barrier(config.consumers + 1, config.consumers * WARPGROUP)
    for i in tc.static_range(len(elements) // 4):
        storage.partials.at(consumer, i, thread, 0).store(elements[4 * i : 4 * i + 4])
    tc.cluster_sync()


def sum_partials(part, consumer, partials, config):
    """The sums of one share of a tile's elements, which all CTAs with this tile have written.

    It reads them through distributed shared memory. The order of the sum is the order of ranks, so
    the bits are the same in every run.
    """
    ctas, thread = config.multicast_ctas, tc.threadIdx.x % WARPGROUP
    share = config.stored_columns // 8  # quads of a thread
    first, same_tile = part * share, tc.cluster_rank() % ctas
    summed = []
    for i in tc.static_range(share):
        acc = partials.remote(same_tile).at(consumer, first + i, thread, 0).load(4).elements()
        for peer in tc.static_range(1, config.split_k):
            other = partials.remote(same_tile + peer * ctas)
            addend = other.at(consumer, first + i, thread, 0).load(4).elements()
            acc = [x + y for x, y in zip(acc, addend, strict=True)]
        summed += acc
    return summed


def store_elements(acc, elements, consumer, storage, batch, m, n, epilogue_op, m_end=None):
    """Apply the epilogue to 64 rows at (m, n) and store them, one buffer of columns at a time.

    acc: the fragment whose layout gives each element's row and column. m_end: one past the last
    row that may be written, where D continues below.
    """
    thread, reductions = tc.threadIdx.x % WARPGROUP, storage.row_reductions
    parts = storage.parts(2 * len(elements))
    reduced = None if reductions is None else reductions.identity()
    for part in tc.static_range(len(parts)):
        begin, columns = sum(parts[:part]), parts[part]
        buffer = storage.buffer(consumer, part, columns)
        # One TMA store may stay pending, that of the other buffer. An odd number of parts ends in
        # the buffer that the next 64 rows start with: then none may.
        same = storage.buffers == 1 or (part == 0 and len(parts) % 2 == 1)
        if thread == 0:
            tc.tma_store_wait(0 if same else 1, read=True)
        consumer_barrier(consumer)
        for first in tc.static_range(begin // 2, (begin + columns) // 2, 8):
            count = min(8, (begin + columns) // 2 - first)
            layout = [acc.coordinates(first + i) for i in range(count)]
            coords = [
                (*batch, *storage.in_d(m + storage.place_of(row), n + col)) for row, col in layout
            ]
            values = epilogue_op(elements[first : first + count], coords)
            if reductions is not None:
                reduced = reductions.accumulate(reduced, values, coords, storage.d.shape[-1])
            stage_elements(buffer, values, 2 * first - begin, storage)
        if storage.maps:
            if storage.reads_d:
                tc.fence_proxy_async("global")
            tc.fence_proxy_async()
        consumer_barrier(consumer)
        origin = (*batch, *storage.in_d(m, n + begin))
        if storage.swapped:
            store_swapped(storage, origin, buffer)
        elif not storage.maps:
            store_without_tma(storage, origin, buffer)
        elif m_end is None or m + 64 <= m_end:
            store_by_tma(storage, origin, buffer)
        else:
            store_by_threads(buffer, storage.d, origin, m_end, 16 // buffer.dtype.itemsize)
            if thread == 0:
                tc.tma_store_commit()  # an empty group: the wait above counts one group a part
    if reductions is not None:
        reductions.write(reduced, storage, batch, m, n, 2 * len(elements))


def stage_elements(buffer, values, column: int, storage):
    """Write eight values of each thread (16 columns of the warp's 16 rows), or four (8 columns).

    Swapped, the buffer has a line for each column; `.trans` stores the columns of each 8x8 matrix
    as its lines.
    """
    lane = tc.lane_id()
    row_of_warp = tc.warp_id() % 4 * 16
    halves, count = tc.static_range(len(values) // 4), len(values) // 2  # matrices of 8 x 8
    if buffer.dtype.bits == 16:  # one stmatrix stores two or four matrices, without bank conflicts
        words = [pack_pair(values[i], values[i + 1], buffer.dtype) for i in range(0, 2 * count, 2)]
        right = column + lane // 16 % (count // 2) * 8
        if storage.swapped:
            corner = buffer[0].at(right + lane % 8, row_of_warp + lane // 8 % 2 * 8)
            tc.emit(f"stmatrix.sync.aligned.m8n8.x{count}.trans.shared.b16", corner.address, words)
        else:
            corner = buffer.at(row_of_warp + lane % 16, right)
            tc.emit(f"stmatrix.sync.aligned.m8n8.x{count}.shared.b16", corner.address, words)
    elif storage.swapped:
        width = buffer.shape[-1]
        for i in (4 * half + j for half in halves for j in (0, 1)):
            # of row r; the element of row r + 8 is the second next one
            col = column + 8 * (i // 4) + 2 * (lane % 4) + i % 4
            pair = [values[i + j].to(buffer.dtype) for j in (0, 2)]
            rows = [storage.place_of(row_of_warp + lane // 4 + j) for j in (0, 8)]
            if storage.in_fragments:  # their places are neighbours
                buffer.at(rows[0] // width, col, rows[0] % width).store(pair)
            else:
                for row, value in zip(rows, pair, strict=True):
                    buffer[row // width, col, row % width] = value
    else:
        for i in tc.static_range(0, len(values), 2):
            row = storage.place_of(row_of_warp + lane // 4 + 8 * (i // 2 % 2))
            col = column + 8 * (i // 4) + 2 * (lane % 4)
            buffer.at(row, col).store([v.to(buffer.dtype) for v in values[i : i + 2]])


def pack_pair(low, high, dtype):
    """Two f32 as a register of two 16-bit floats."""
    return tc.emit(f"cvt.rn.{dtype}x2.f32", high, low)


def consumer_barrier(consumer):
    """Named barrier of one consumer warpgroup; barrier 0 is the CTA's."""
    tc.barrier(consumer + 1, WARPGROUP)


# -- from the staging buffer to D -------------------------------------------------------------


def store_by_tma(storage, origin, buffer):
    """One TMA store; it leaves out what lies outside of D."""
    if tc.threadIdx.x % WARPGROUP == 0:
        tc.tma_store(storage.maps[buffer.shape[1]], origin, buffer)
        tc.tma_store_commit()


def store_without_tma(storage, origin, buffer):
    """The same by threads."""
    if buffer.dtype.itemsize == storage.d.align == 2:
        store_pairs_by_threads(buffer, storage.d, origin)
    else:
        count = min(storage.d.align, 8) // buffer.dtype.itemsize
        store_by_threads(buffer, storage.d, origin, storage.d.shape[-2], count)


def store_swapped(storage, origin, buffer):
    """Store all columns of D of a buffer, 128 bytes beside each other, in one group of TMA."""
    *place, column = origin
    parts, lines, width = buffer.shape
    places = [(*place, column + i * width) for i in range(parts)]
    if not storage.maps:
        for i in tc.static_range(parts):
            store_without_tma(storage, places[i], buffer[i])
    elif tc.threadIdx.x % WARPGROUP == 0:
        for i in tc.static_range(parts):
            tc.tma_store(storage.maps[lines], places[i], buffer[i])
        tc.tma_store_commit()


def store_by_threads(buffer, d, origin, m_end, count: int):
    """Store by this warpgroup's threads: vectors of `count` elements, rows before `m_end` only."""
    *batch, m, n = origin
    rows, width = buffer.shape
    vectors = width // count
    rounds = rows * vectors // WARPGROUP
    at_once = max(n for n in range(1, AT_ONCE + 1) if max(rounds, 1) % n == 0)
    for first in tc.range(tc.threadIdx.x % WARPGROUP, rows * vectors, WARPGROUP * at_once):
        found = []
        for i in range(at_once):
            vector = first + i * WARPGROUP
            row, col = vector // vectors, vector % vectors * count
            found.append((row, col, buffer.at(row, col).load(count)))
        for row, col, value in found:
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


def store_pairs_by_threads(buffer, d, origin):
    """Store 16-bit elements to rows at any address: one warp per row, a pair of elements a lane.

    A row that starts in the middle of a 32-bit word has its pairs one element further right: lane
    0 stores the first element alone, and the last lane the last one.
    """
    *batch, m, n = origin
    lines, width = buffer.shape
    rows, cols = d.shape[-2:]
    at_once = AT_ONCE if lines % (4 * AT_ONCE) == 0 else AT_ONCE // 2  # lines come in eights
    for first in tc.range(tc.warp_id() % 4, min(lines, rows - m), 4 * at_once):
        found = []
        for line in [first + 4 * i for i in range(at_once)]:
            target, inside = d.at(*batch, m + line, n), m + line < rows
            odd = (target.address >> 1 & 1).to(tc.s32)
            for part in range(-(-width // 64)):
                col = part * 64 + 2 * tc.lane_id() + odd
                pair = [buffer.at(line, min(col + i, width - 1)).load() for i in (0, 1)]
                found.append((target, inside, col, pair, odd))
        for target, inside, col, pair, _ in found:
            whole = inside & (col + 1 < width) & (n + col + 1 < cols)
            (target + col).store(pair, pred=whole)
            alone = inside & (col < width) & (n + col < cols) & ~whole
            (target + col).store(pair[0], pred=alone)
        for i in range(at_once):
            target, inside, *_, odd = found[i * -(-width // 64)]
            begin = inside & (odd == 1) & (tc.lane_id() == 0) & (n < cols)
            target.store(buffer.at(first + 4 * i, 0).load(), pred=begin)


# -- the function of elements -----------------------------------------------------------------


def make_epilogue_op(c, alpha, beta, traits):
    """epilogue_op(sums, coords): `finished` elements, for 8 of them or 4.

    The eight accumulators of a thread are columns c, c + 1, c + 8, c + 9 of rows r and r + 8, the
    four columns c, c + 1.
    """

    def epilogue_op(sums, coords):
        addends = load_c(c, coords, traits) if traits.has_c else ()
        return finished(sums, addends, coords, alpha, beta, traits)

    return epilogue_op


def load_c(c, coords, traits):
    """C's elements at these coordinates, 0 outside of C; in pairs of columns where C allows it."""
    if not traits.c_in_pairs:
        return [c.at(*coord).load(pred=is_inside(c, coord)) for coord in coords]
    if not traits.c_is_row:
        return [x for i in range(0, len(coords), 2) for x in load_pair(c, coords[i])]
    # A broadcast row: both rows of a thread read the same elements.
    pairs = [load_pair(c, (*coords[i][:-2], 0, coords[i][-1])) for i in range(0, len(coords), 4)]
    return [x for pair in pairs for x in (*pair, *pair)]


def load_pair(c, coord):
    """Two neighbouring elements of a row."""
    return c.at(*coord).load(2, pred=is_inside(c, coord)).elements()


def is_inside(c, coord):
    """Is (row, column) inside the matrix?"""
    return (coord[-2] < c.shape[-2]) & (coord[-1] < c.shape[-1])
