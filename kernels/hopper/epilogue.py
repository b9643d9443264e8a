"""How results leave the sm_90a GEMM kernels: finished, rounded, through shared memory, by TMA.

Helpers in the kernel language.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import LINE


@dataclass
class WayOut:
    """D and its map, two buffers of 64 lines for each consumer, and room for sums of split tiles.

    map is None where TMA cannot write D's lines. partial: (consumer, four elements, thread, 4):
    each thread's own elements, 16 bytes apart. A buffer's lines have LINE bytes at most. rows: what
    is found of rows on the way (kernels/row_statistics.py), or None.
    """

    d: Any
    map: Any
    buffers: Any
    partial: Any
    rows: Any = None


def open_way_out(d, sums, config, by_threads: bool = False, rows=None):
    """Shared memory for results; `sums` is the accumulators' type; `by_threads`: without TMA."""
    cols = config.BN // config.split_k
    width = gcd(LINE // d.dtype.itemsize, cols)
    line = width * d.dtype.itemsize
    line = line if line >= 32 else 0  # lines of 16 bytes have no swizzle
    buffers = tc.shared((config.consumers, 2, 64, width), d.dtype, swizzle=line)
    box = (1,) * (d.ndim - 2) + (64, width)
    partial = None
    if config.split_k > 1:
        partial = tc.shared((config.consumers, config.BN // 8, 128, 4), sums)
    map = None if by_threads else tc.tensor_map(d, box, swizzle=line)
    return WayOut(d, map, buffers, partial, rows)


def store(acc, consumer, way_out, place, row, finish, config):
    """Send 64 rows of a tile, from `row` on; of a split tile this block's share of the columns."""
    elements, n = acc.elements(), place.n
    if config.split_k > 1:
        elements = gathered(elements, consumer, way_out.partial, config.split_k)
        n = n + tc.cluster_rank() * (config.BN // config.split_k)
    if elements[0].dtype == tc.f16:
        elements = [element.to(tc.f32) for element in elements]
    send(acc, elements, consumer, way_out, place.of_d, place.m + row, n, finish, place.end)


def gathered(elements, consumer, partial, split: int):
    """The sums over the cluster, in the order of its blocks, of this block's share of elements."""
    thread = tc.threadIdx.x % 128
    for i in tc.static_range(len(elements) // 4):
        partial.at(consumer, i, thread, 0).store(elements[4 * i : 4 * i + 4])
    tc.cluster_sync()
    share = len(elements) // 4 // split
    first = tc.cluster_rank() * share
    found = []
    for i in tc.static_range(share):
        sums = partial.remote(0).at(consumer, first + i, thread, 0).load(4).elements()
        for peer in tc.static_range(1, split):
            more = partial.remote(peer).at(consumer, first + i, thread, 0).load(4).elements()
            sums = [x + y for x, y in zip(sums, more, strict=True)]
        found += sums
    return found


def send(acc, elements, consumer, way_out, batch, m, n, finish, end=None):
    """Finished elements of 64 rows, to row `end` at most, one line's width of columns at a time."""
    thread, rows = tc.threadIdx.x % 128, way_out.rows
    width = way_out.buffers.shape[-1]
    parts = 2 * len(elements) // width
    found = None if rows is None else rows.identity()
    for part in tc.static_range(parts):
        buffer = way_out.buffers[consumer, part % 2]
        if thread == 0:  # an odd number of parts ends in the buffer that the next one starts with
            tc.tma_wait(0 if part == 0 and parts % 2 else 1, reading=True)
        tc.barrier(consumer + 1, 128)
        for first in tc.static_range(part * width // 2, (part + 1) * width // 2, 8):
            corners = [acc.coordinates(first + i) for i in range(8)]
            places = [(*batch, m + row, n + col) for row, col in corners]
            values = finish(elements[first : first + 8], places)
            if rows is not None:
                found = rows.accumulate(found, values, places, way_out.d.shape[-1])
            write(buffer, values, first % (width // 2) // 4 * 8)
        if way_out.map is not None:
            tc.fence_proxy_async()
        tc.barrier(consumer + 1, 128)
        place = (*batch, m, n + part * width)
        if way_out.map is None and buffer.dtype.bits == 16:
            copy_out_pairs(buffer, way_out.d, place)
        elif way_out.map is None:
            copy_out(buffer, way_out.d, place, way_out.d.shape[-2], 1)
        elif end is None or m + 64 <= end:
            send_buffer(way_out, place, buffer)
        else:
            copy_out(buffer, way_out.d, place, end, 16 // buffer.dtype.itemsize)
            if thread == 0:
                tc.tma_commit()  # an empty group: the wait above counts one a part
    if rows is not None:
        rows.write(found, way_out.d, batch, m, n, 2 * len(elements))


def send_buffer(way_out, place, buffer):
    """By TMA, which leaves out what lies outside D."""
    if tc.threadIdx.x % 128 == 0:
        tc.tma_store(way_out.map, place, buffer)
        tc.tma_commit()


def copy_out(buffer, d, place, end, count: int):
    """By this warpgroup's threads, `count` neighbours at a time, rows before `end` only."""
    *batch, m, n = place
    lines, width = buffer.shape
    chunks = width // count
    for chunk in tc.range(tc.threadIdx.x % 128, lines * chunks, 128):
        row, col = chunk // chunks, chunk % chunks * count
        inside, left = m + row < end, d.shape[-1] - (n + col)
        value, target = buffer.at(row, col).load(count), d.at(*batch, m + row, n + col)
        target.store(value, pred=inside & (left >= count))
        if count > 1:
            store_first(left, value.elements(), target, inside & (left < count))


def store_first(count, elements, target, pred):
    """Of neighbours, those that a line still has room for: less than all."""
    if pred:
        for i in tc.static_range(len(elements) - 1):
            (target + i).store(elements[i], pred=i < count)


def copy_out_pairs(buffer, d, place):
    """Elements of 16 bits to lines that start anywhere: a warp a line, two elements a lane.

    In lines that start between words, pairs are one element further right: a lane stores the
    first element alone, and another the last.
    """
    *batch, m, n = place
    lines, width = buffer.shape
    rows, cols = d.shape[-2:]
    for line in tc.range(tc.warp_id() % 4, min(lines, rows - m), 4):
        for part in tc.static_range(-(-width // 64)):
            target = d.at(*batch, m + line, n)
            odd = (target.address >> 1 & 1).to(tc.s32)
            col = part * 64 + 2 * tc.lane_id() + odd
            low = buffer.at(line, min(col, width - 1)).load()
            high = buffer.at(line, min(col + 1, width - 1)).load()
            whole = (col + 1 < width) & (n + col + 1 < cols)
            (target + col).store([low, high], pred=whole)
            alone = (col < width) & (n + col < cols) & ~whole
            (target + col).store(low, pred=alone)
            if part == 0:
                begin = (odd == 1) & (tc.lane_id() == 0) & (n < cols)
                target.store(buffer.at(line, 0).load(), pred=begin)


def finisher(c, alpha, beta, traits):
    """alpha v + beta C, then the caller's own function, of eight values of a thread: two columns
    of a row, of the one 8 below, and the same 8 columns further."""

    def finish(values, places):
        if traits.scaled:
            values = [value * alpha for value in values]
        if traits.has_c:
            added = [x.to(values[0].dtype) for x in load_c(c, places, traits)]
            values = [tc.fma(beta, x, value) for x, value in zip(added, values, strict=True)]
        if traits.epilogue is None:
            return values
        return [
            traits.epilogue(value, *place[-2:]) for value, place in zip(values, places, strict=True)
        ]

    return finish


def load_c(c, places, traits):
    """C's elements at these places, zeros outside; in pairs, and rows that are all alike once."""
    if not traits.c_in_pairs:
        return [c.at(*place).load(pred=inside(c, place)) for place in places]
    if not traits.c_is_row:
        return [x for i in range(0, 8, 2) for x in pair(c, places[i])]
    left, right = (pair(c, (*places[i][:-2], 0, places[i][-1])) for i in (0, 4))
    return [*left, *left, *right, *right]


def pair(c, place):
    return c.at(*place).load(2, pred=inside(c, place)).elements()


def inside(c, place):
    return (place[-2] < c.shape[-2]) & (place[-1] < c.shape[-1])


def write(buffer, values, column: int):
    """Eight values of a thread: 16 columns of a warp's 16 rows."""
    lane = tc.lane_id()
    line = tc.warp_id() % 4 * 16
    if buffer.dtype.bits == 16:  # four 8x8 matrices an stmatrix
        words = [narrow(values[i], values[i + 1], buffer.dtype) for i in range(0, 8, 2)]
        corner = buffer.at(line + lane % 16, column + lane // 16 * 8)
        tc.emit("stmatrix.sync.aligned.m8n8.x4.shared.b16", corner.address, words)
    else:
        for i in tc.static_range(0, 8, 2):
            row, col = line + lane // 4 + 8 * (i // 2 % 2), column + 8 * (i // 4) + 2 * (lane % 4)
            buffer.at(row, col).store([v.to(buffer.dtype) for v in values[i : i + 2]])


def narrow(low, high, dtype):
    """Two f32 as a pair of 16-bit floats."""
    return tc.emit(f"cvt.rn.{dtype}x2.f32", high, low)
