"""The best expert of a row of NaN.

A routing kernel of FlashInfer keeps the largest score and the expert that it belongs to, starting from minus
infinity and expert 65535. If all scores are NaN, or minus infinity, no comparison is true and 65535 is the
answer. The kernel counts the token under that expert, far outside of its table in shared memory. The pull
request tests the index.

The emulator checks every index against its axis and reports the value of the index, the extent, and the
thread. Data that have no best element are a good test: one row of NaN is enough.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "flashinfer-ai/flashinfer#1351"
KIND = "bounds and alignment"
NOBODY = 65535


@tc.kernel(threads=32)
def route(scores: tc.Array, counts: tc.Array, fixed: tc.Const):
    table, token = tc.shared(8, tc.s32), tc.lane_id()
    if token < 8:
        table[token] = 0
    tc.syncwarp()
    best, expert = tc.f32(float("-inf")), tc.s32(NOBODY)
    for i in tc.static_range(8):
        if scores[token, i] > best:
            best, expert = scores[token, i], tc.s32(i)
    if fixed:
        expert = tc.select(expert < 8, expert, 0)
    tc.reduce("add", table.at(expert), 1)  # error
    tc.syncwarp()
    if token < 8:
        counts[token] = table[token]


def launches(fixed):
    scores = np.arange(256, dtype=np.float32).reshape(32, 8)
    scores[5] = np.nan
    route[1, 32](scores, np.zeros(8, np.int32), fixed=fixed)
