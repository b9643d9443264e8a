"""Order of packed weights of 4 or 8 bits, and the kernel that packs them.

The weights B are K x N, and the A operand of m16n8k16 is a block of 16 columns of B and 16 of K (of
wgmma, a warp has such a block, too). Lane 4g + t holds of it the columns g and g + 8:

    register r    column g + 8 (r % 2), elements 2t + 8 (r // 2) of K and the next one

A word has 16 / bits registers. Register i of them has its first element in the bits from i * bits on,
and its second one in those from 16 + i * bits on. So two logical operations separate a register. A
lane has four words, 16 bytes, of consecutive registers and fragments; the vectors of the 32 lanes are
neighbours, and after them come the next ones along K. Words are N / 16 rows, one for each block.
"""

import tensorcore_dsl as tc

THREADS = 128  # threads of a CTA


@tc.kernel(threads=THREADS)
def pack_weights(b: tc.Array, words: tc.Array, refused: tc.Array, dtype: tc.Const = tc.s4):
    """Pack b, K x N. Grid: (vectors of a row of words / THREADS, rows of words).

    s4 is packed as u4, q + 8. refused[0] becomes 1 if a number needs more bits or is a NaN.
    """
    vector = tc.blockIdx.x * THREADS + tc.threadIdx.x
    if vector * 4 < words.shape[1]:
        registers = 16 // dtype.bits  # of a word
        slab, lane = vector // 32, vector % 32
        packed = []
        for word in tc.static_range(4):
            bits = tc.u32(0)
            for i in tc.static_range(registers):
                step, r = divmod(word * registers + i, 4)
                column = tc.blockIdx.y * 16 + lane // 4 + 8 * (r % 2)
                k = slab * (16 * registers) + 16 * step + lane % 4 * 2 + 8 * (r // 2)
                for half in tc.static_range(2):
                    number = b.at(k + half, column).as_type(tc.u8).load().to(tc.u32)
                    if dtype == tc.s4:
                        number = (number + 8) & 0xFF
                    if is_refused(number, dtype):
                        tc.reduce("max", refused.at(0), 1)
                    bits = bits | number << dtype.bits * i + 16 * half
            packed.append(bits.bits(tc.s32))
        words.at(tc.blockIdx.y, vector * 4).store(packed)


def is_refused(number, dtype):
    """Whether a number does not fit the type."""
    if dtype.bits == 4:
        return number > 15
    return (number & 0x7F) == 0x7F if dtype == tc.e4m3 else tc.u32(0) > 0
