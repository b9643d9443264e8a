"""A histogram is cleared while it is still read.

FlashInfer's top-k refines a threshold in rounds over a histogram in shared memory. At the end of a round all
threads read one of its counts; at the start of the next one they clear it. No barrier stands between the two.
Inputs with many ties take this path. racecheck flagged it, the pull request has a script that makes it show,
and the cure is one barrier after the read.

Two rounds are needed to see it. The emulator reports the store of the second round and the load of the first.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#3529"
KIND = "shared memory"


@tc.kernel
def refine(keys: tc.Array, k: tc.s32, out: tc.Array, fixed: tc.Const):
    histogram, t = tc.shared(16, tc.s32), tc.threadIdx.x
    key, remaining = keys[t], k
    for digit in tc.static_range(2):
        if t < 16:
            histogram[t] = 0  # race: first
        tc.barrier()
        tc.reduce("add", histogram.at(key >> 4 * (1 - digit) & 15), 1)
        tc.barrier()
        remaining -= histogram[15]  # race: second
        if fixed:
            tc.barrier()
    out[t] = remaining


def launches(fixed):
    keys = np.arange(64, dtype=np.int32) * 5 % 256
    refine[1, 64](keys, 10, np.zeros(64, np.int32), fixed=fixed)
