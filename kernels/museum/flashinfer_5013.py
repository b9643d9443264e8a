"""A vector of 16 bytes at a multiple of 8.

The activation kernel of FlashInfer reads each row as two halves, x and y, in vectors of eight 16-bit
elements. A vision model has halves of 3420 elements: y begins at byte 6840, which 8 divides and 16 does not.
The guard on the host had tested the length of the whole row, and let it pass. The call died with a misaligned
address. The cure chooses the widest vector that divides the half.

The emulator checks the alignment of each access and reports the first thread that is off, with its byte in
the array. On the host no array is needed that is as large as the model's: halves of 20 elements have the same
remainder.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#5013"
KIND = "bounds and alignment"


@tc.kernel
def act_and_mul(x: tc.Array, out: tc.Array, width: tc.Const):
    row, half = tc.blockIdx.x, out.shape[1]
    for i in range(0, half, width):
        if i // width == tc.threadIdx.x:
            left, right = x.at(row, i).load(width), x.at(row, half + i).load(width)  # error
            out.at(row, i).store([tc.maximum(a, tc.f16(0)) * b for a, b in zip(left, right)])


def launches(fixed):
    half = 20
    x, out = np.ones((2, 2 * half), np.float16), np.zeros((2, half), np.float16)
    act_and_mul[2, 32](x, out, width=4 if fixed else 8)
