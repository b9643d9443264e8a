"""A barrier dropped for 48 threads.

TileLang's compiler inserts barriers where threads read what others have written. It had decided that a
barrier was needed inside `if tx < 48`, and could not name one: barriers count whole warps. The pass then
dropped it, without a word. A fuzzer found the wrong results; the kernels were ordinary ones, with a tail that
fills one warp and a half.

The emulator does not ask who has written the kernel. Warp 1 reads what warp 0 wrote, nothing orders the two,
and both lines are in the report. The cure: the barrier stands outside of the condition, where all warps come
by.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "tile-ai/tilelang#2556"
KIND = "shared memory"


@tc.kernel
def reverse(x: tc.Array, out: tc.Array, fixed: tc.Const):
    tile, t = tc.shared(48, tc.s32), tc.threadIdx.x
    if t < 48:
        tile[t] = x[t]  # race: first
    if fixed:
        tc.barrier()
    if t < 48:
        out[t] = tile[47 - t]  # race: second


def launches(fixed):
    reverse[1, 64](np.arange(48, dtype=np.int32), np.zeros(48, np.int32), fixed=fixed)
