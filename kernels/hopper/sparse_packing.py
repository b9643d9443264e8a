"""Packing of 2:4 sparse matrices for `wgmma.sp`, and the order of their metadata.

`wgmma.sp` reads the stored half of A: of every chunk of four columns two elements (tf32: of two
columns one). A nibble of metadata gives their columns (PTX manual 9.7.15.6). A 32-bit word holds
eight nibbles, and the 128 words of a warpgroup describe 16 chunks of 64 rows. In memory, a thread's
words for one stage of the GEMM's pipeline lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc

NIBBLES = 8  # nibbles of a word
CHUNKS = 16  # chunks of a row that the 128 words of a warpgroup describe
ROWS = 64  # rows that a warpgroup multiplies
THREADS = 128  # threads of a warpgroup, and of a CTA that packs


@dataclass(frozen=True)
class Format:
    """How elements of one type are packed: of every `chunk` columns `kept` are stored.

    words: metadata words of a thread for one stage of the pipeline (128 bytes of K).
    """

    dtype: Any
    chunk: int
    kept: int
    words: int

    @property
    def depth(self) -> int:
        """Columns of the dense matrix in one stage."""
        return self.words * CHUNKS * self.chunk

    @property
    def line(self) -> int:
        """Stored columns are padded to a multiple of this: 16 bytes."""
        return int(16 // self.dtype.itemsize)


UNSIGNED = {8: tc.u8, 16: tc.u16, 32: tc.u32}  # moves elements of so many bits
FORMATS = {
    **{t: Format(t, 4, 2, 1) for t in (tc.f16, tc.bf16)},
    **{t: Format(t, 4, 2, 2) for t in (tc.e4m3, tc.e5m2, tc.s8)},
    tc.f32: Format(tc.f32, 2, 1, 1),
}


def nibble_at(thread: Any, number: Any, bits: int) -> tuple[Any, Any]:
    """Row (of 64) and chunk (of 16) that nibble `number` of a thread's word describes.

    bits: of an element. Figures 176, 178, 180 and 181 of the manual. Arguments are integers, arrays
    or run-time values of a kernel.
    """
    row, quad = 16 * (thread // 32) + thread % 32 // 4, thread % 4
    if bits == 8:
        return row + 8 * (quad % 2), 8 * (quad // 2) + number
    return row + 8 * (number // 4), 4 * quad + number % 4


# -- kernels ----------------------------------------------------------------------------------


@tc.kernel
def pack(a: tc.Array, values: tc.Array, metadata: tc.Array, excess: tc.Array, format: tc.Const = None):
    """Pack a dense matrix. A block packs 64 rows of one stage's columns; outside of A are zeros.

    excess[0] receives the index (counted row by row) of the first chunk with too many nonzeros.
    """
    tc.launch_bounds(THREADS)
    slots, chunks = metadata.shape[1], (a.shape[1] + (format.chunk - 1)) // format.chunk
    block, slot, thread = tc.blockIdx.x // slots, tc.blockIdx.x % slots, tc.threadIdx.x
    for word in tc.static_range(format.words):
        nibbles = tc.u32(0)
        for i in tc.static_range(NIBBLES):
            row, chunk = chunk_at(block, slot, thread, word, i, format)
            elements = [load(a, row, chunk * format.chunk + j) for j in range(format.chunk)]
            nibble, stays, full = choose(elements, format)
            if full:
                tc.reduce("min", excess.at(0), row * chunks + chunk)
            nibbles = nibbles | (nibble << (4 * i))
            for j in tc.static_range(format.kept):
                store(values, row, chunk * format.kept + j, stays[j])
        metadata[block, slot, thread * format.words + word] = nibbles.bits(tc.s32)


@tc.kernel
def unpack(values: tc.Array, metadata: tc.Array, dense: tc.Array, format: tc.Const = None):
    """Unpack to a dense matrix. A block writes 64 rows of one stage's columns, zeros included."""
    tc.launch_bounds(THREADS)
    slots = metadata.shape[1]
    block, slot, thread = tc.blockIdx.x // slots, tc.blockIdx.x % slots, tc.threadIdx.x
    for word in tc.static_range(format.words):
        nibbles = metadata[block, slot, thread * format.words + word].bits(tc.u32)
        for i in tc.static_range(NIBBLES):
            row, chunk = chunk_at(block, slot, thread, word, i, format)
            stays = [load(values, row, chunk * format.kept + j) for j in range(format.kept)]
            positions = positions_of(nibbles >> (4 * i), format.kept)
            for j in tc.static_range(format.chunk):
                element = stays[0].dtype(0)
                for position, stay in zip(positions, stays, strict=True):
                    element = tc.select(position == j, stay, element)
                store(dense, row, chunk * format.chunk + j, element)


def chunk_at(block, slot, thread, word: int, number: int, format: Format):
    """Row and chunk of the matrix that a nibble of a word describes."""
    row, chunk = nibble_at(thread, number, format.dtype.bits)
    return block * ROWS + row, (slot * format.words + word) * CHUNKS + chunk


def load(array, row, col):
    """The bits of an element; 0 outside of the array."""
    inside = (row < array.shape[0]) & (col < array.shape[1])
    return array.at(row, col).as_type(UNSIGNED[array.dtype.bits]).load(pred=inside)


def store(array, row, col, bits):
    """Write the bits of an element, if it is inside of the array."""
    inside = (row < array.shape[0]) & (col < array.shape[1])
    array.at(row, col).as_type(UNSIGNED[array.dtype.bits]).store(bits, pred=inside)


def choose(elements, format: Format):
    """Select the largest elements: their nibble, their bits, and whether a nonzero is lost.

    If elements are equal, the first ones are kept. Their columns ascend, as the manual demands.
    """
    sizes = [magnitude(bits, format.dtype) for bits in elements]
    keep = [rank(sizes, j) < format.kept for j in range(format.chunk)]
    full = any([(size != 0) & ~stays for size, stays in zip(sizes, keep, strict=True)])
    if format.kept == 1:
        nibble = tc.select(keep[0], tc.u32(0x4), tc.u32(0xE))
        return nibble, [tc.select(keep[0], elements[0], elements[1])], full
    first = tc.select(keep[0], tc.u32(0), tc.select(keep[1], tc.u32(1), tc.u32(2)))
    last = tc.select(keep[3], tc.u32(3), tc.select(keep[2], tc.u32(2), tc.u32(1)))
    low = tc.select(keep[0], elements[0], tc.select(keep[1], elements[1], elements[2]))
    high = tc.select(keep[3], elements[3], tc.select(keep[2], elements[2], elements[1]))
    return first | last << 2, [low, high], full


def magnitude(bits, dtype):
    """An integer that grows with the absolute value of an element; NaN is the greatest."""
    if dtype.is_float:
        return bits.to(tc.u32) & ((1 << (dtype.bits - 1)) - 1)
    return abs(bits.bits(tc.s8).to(tc.s32))


def rank(sizes, j: int):
    """How many elements of the chunk come before element j when the largest are selected."""
    before = [(size >= sizes[j]).to(tc.s32) for size in sizes[:j]]
    behind = [(size > sizes[j]).to(tc.s32) for size in sizes[j + 1 :]]
    return sum(before + behind)


def positions_of(nibble, kept: int):
    """Columns, inside the chunk, of the elements that a nibble describes."""
    return [nibble & 3, (nibble >> 2) & 3] if kept == 2 else [(nibble >> 1) & 1]
