"""Epilogue of the Hopper GEMMs: scale and activate the accumulators, convert, stage, store by TMA.

Each consumer warpgroup stores 64 rows at a time, one slice of columns after the other, through two staging
buffers of its own, which take turns, or one if a second one would cost a stage:

    barrier      all 128 threads; the TMA store that last read this buffer is done with it
    stmatrix     each thread writes its elements into the swizzled buffer (16-bit D; others by st)
    fence        the writes become visible to the async proxy, which TMA reads through; if C may be
                 D, the loads of its elements come before the store, too
    barrier      all threads have written
    TMA store    one thread issues it; it overlaps with the next slice, if that has another buffer

epilogue_layouts.py has the epilogues for a D that TMA cannot write, and for swap AB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, WARPGROUP, HopperConfig, HopperTraits


def same_row(row):
    """Row of the tile that row `row` of 64 rows of accumulators belongs to."""
    return row


@dataclass
class Epilogue:
    """D with its tensor map, and the shared memory through which results pass to it.

    Attributes
    ----------
    d : array
        The result.
    maps : dict
        Tensor map for each width of a column slice. Empty if TMA cannot write D.
    staging : tile
        (consumer, buffer, 64 rows, columns), rows of at most 128 bytes.
    row_reductions : RowReductions or None
        See row_reduction.py.
    reads_d : bool
        Threads may load elements that they then store, since C may be D.
    row_of : function
        Row of the tile that a row of 64 rows of accumulators belongs to.
    """

    d: Any
    maps: Any
    staging: Any
    row_reductions: Any = None
    reads_d: bool = False
    row_of: Callable[[Any], Any] = same_row

    def in_d(self, row, col):
        """Row and column of D of a row and a column of the tiles."""
        return row, col

    def column_slices(self, columns: int):
        """Columns of each slice that passes through a staging buffer at a time."""
        return slice_columns(columns, self.d.dtype.itemsize)

    @property
    def buffers(self) -> int:
        """Staging buffers of a consumer."""
        return self.staging.shape[1]

    def buffer(self, consumer, index: int, columns: int):
        """The staging buffer of column slice `index`."""
        buffer = self.staging[consumer, index % self.buffers]
        swizzle = swizzle_of(columns, self.d.dtype)
        return buffer.with_parts(shape=(64, columns), strides=(columns, 1), swizzle=swizzle)

    def stage(self, buffer, values, column: int):
        """Write eight values of each thread (16 columns of 16 rows), or four (8 columns)."""
        lane, row_of_warp = tc.lane_id(), tc.warp_id() % 4 * 16
        if buffer.dtype.bits == 16:
            # One stmatrix stores two or four 8 x 8 matrices, without bank conflicts.
            words, count = pack(values, buffer.dtype), len(values) // 2
            right = column + lane // 16 % (count // 2) * 8
            corner = buffer.at(row_of_warp + lane % 16, right)
            tc.emit(f"stmatrix.sync.aligned.m8n8.x{count}.shared.b16", corner.address, words)
        else:
            for i in tc.static_range(0, len(values), 2):
                row = self.row_of(row_of_warp + lane // 4 + 8 * (i // 2 % 2))
                col = column + 8 * (i // 4) + 2 * (lane % 4)
                buffer.at(row, col).store([v.to(buffer.dtype) for v in values[i : i + 2]])

    def store(self, origin, buffer):
        """One TMA store; it leaves out the elements outside of D."""
        if tc.threadIdx.x % WARPGROUP == 0:
            tc.tma_store(self.maps[buffer.shape[1]], origin, buffer)
            tc.tma_store_commit()


def make_tma_epilogue(d, config: HopperConfig, traits: HopperTraits, buffers: int):
    """The epilogue of a D that TMA writes in row-major order. buffers: staging, per consumer."""
    staging, boxes = make_staging(d, config, buffers), {}
    for width in dict.fromkeys(slice_columns(config.stored_columns, d.dtype.itemsize)):
        box = *(1,) * (d.ndim - 2), 64, width
        boxes[width] = tc.tensor_map(d, box, swizzle=swizzle_of(width, d.dtype))
    reads_d = traits.has_c and not traits.c_is_row
    return Epilogue(d, boxes, staging, traits.row_reductions, reads_d)


def make_staging(d, config: HopperConfig, buffers: int):
    """Staging buffers of all consumers: 64 rows of the widest slice each."""
    widest = slice_columns(config.stored_columns, d.dtype.itemsize)[0]
    shape = config.consumers, buffers, 64, widest
    return tc.shared(shape, d.dtype, swizzle=swizzle_of(widest, d.dtype))


def slice_columns(columns: int, itemsize: int):
    """Split columns into slices of 128 bytes, then of smaller powers of two, so that each has a swizzle."""
    width = SWIZZLE_BYTES // itemsize
    slices, left = [width] * (columns // width), columns % width
    while left:
        slices.append(1 << left.bit_length() - 1)
        left -= slices[-1]
    return slices


def swizzle_of(columns: int, dtype):
    """The swizzle of rows of so many columns; there is none of 16 bytes."""
    row_bytes = columns * dtype.itemsize
    return row_bytes if row_bytes >= 32 else 0


def store_rows(acc, consumer, epilogue: Epilogue, tile, row, epilogue_op, config):
    """Store 64 rows of a tile, from row `row` of it on."""
    origin = tile.batch_d, tile.m + row, tile.n
    store_elements(acc.coordinates, acc.elements(), consumer, epilogue, *origin, epilogue_op)


def store_elements(coordinates, elements, consumer, epilogue: Epilogue, batch, m, n, epilogue_op):
    """Apply the epilogue to 64 rows at (m, n) and store them, one buffer of columns at a time.

    coordinates(i): row and column of element i in the 64 rows.
    """
    thread, reductions = tc.threadIdx.x % WARPGROUP, epilogue.row_reductions
    slices = epilogue.column_slices(2 * len(elements))
    reduced = None if reductions is None else reductions.identity()
    for i in tc.static_range(len(slices)):
        begin, columns = sum(slices[:i]), slices[i]
        buffer = epilogue.buffer(consumer, i, columns)
        # One TMA store may stay pending, that of the other buffer. An odd number of slices ends in
        # the buffer that the next 64 rows start with: then none may.
        same = epilogue.buffers == 1 or (i == 0 and len(slices) % 2 == 1)
        if thread == 0:
            tc.tma_store_wait(0 if same else 1, read=True)
        consumer_barrier(consumer)
        for first in tc.static_range(begin // 2, (begin + columns) // 2, 8):
            count = min(8, (begin + columns) // 2 - first)
            layout = [coordinates(first + at) for at in range(count)]
            coords = [(*batch, *epilogue.in_d(m + epilogue.row_of(row), n + col)) for row, col in layout]
            values = epilogue_op(elements[first : first + count], coords)
            if reductions is not None:
                reduced = reductions.accumulate(reduced, values, coords, epilogue.d.shape[-1])
            epilogue.stage(buffer, values, 2 * first - begin)
        if epilogue.maps:
            if epilogue.reads_d:
                tc.fence_proxy_async("global")
            tc.fence_proxy_async()
        consumer_barrier(consumer)
        epilogue.store((*batch, *epilogue.in_d(m, n + begin)), buffer)
    if reductions is not None:
        reductions.write(reduced, epilogue, batch, m, n, 2 * len(elements))


def pack(values, dtype):
    """Pairs of f32 as registers of two 16-bit floats."""
    pairs = zip(values[::2], values[1::2], strict=True)
    return [tc.emit(f"cvt.rn.{dtype}x2.f32", high, low) for low, high in pairs]


def consumer_barrier(consumer):
    """Named barrier of one consumer warpgroup; barrier 0 is the CTA's."""
    tc.barrier(consumer + 1, WARPGROUP)
