"""A tail that nobody has filled.

SageAttention loads its tiles by `cp.async`. For rows past the end of the sequence the copy was left out,
and the tile kept what lay in shared memory before. Their scores are masked after the product, which does not
help: whatever the garbage multiplies may be NaN, and 0 times NaN is NaN. Sequences of 9 or 12 tokens gave
noise in place of pictures, depending on which kernel had run before. The pull request lets the copy fill the
rest with zeros.

The emulator knows for each byte of shared memory whether this block has written it. It reports the load of a
fragment that holds such bytes, with any content. The cure: `valid=`, the number of bytes that are copied; the
rest becomes zero.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "thu-ml/SageAttention#377"
KIND = "cp.async"


@tc.kernel(threads=32)
def scores(q: tc.Array, k: tc.Array, out: tc.Array, fixed: tc.Const):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile, lane, tokens = tc.shared((8, 16), tc.f16), tc.lane_id(), k.shape[0]
    if lane < 16:
        row, col = lane // 2, lane % 2 * 8
        source = k.at(tc.minimum(row, tokens - 1), col)
        if fixed:
            tc.cp_async(tile.at(row, col), source, 16, valid=tc.select(row < tokens, 16, 0))
        elif row < tokens:
            tc.cp_async(tile.at(row, col), source, 16)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    tc.syncwarp()
    fb = tc.load_elements(tile.T, mma.b)  # error
    acc = mma(tc.load_elements(q, mma.a), fb, mma.d.zeros())
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        out[row, col] = tc.select(col < tokens, acc[i], -5000000.0)


def launches(fixed):
    q, k = np.ones((16, 16), np.float16), np.ones((5, 16), np.float16)
    scores[1, 32](q, k, np.zeros((16, 8), np.float32), fixed=fixed)
