"""Thirty-two lanes store sixteen words.

A helper in llama.cpp's vector FlashAttention quantises a row into shared memory. All 32 lanes store a word,
and the caller puts the row's scales directly after the row. For heads of 64 elements the row has 16 words.
Lanes 16 to 31 store their padding over the scales, while lanes 0 and 8 store the scales. Two stores to one
word, said racecheck; the compiler's code had kept the right order by luck.

To a GPU both are accesses to the same shared memory. The emulator knows the two tiles apart and reports the
index that leaves the first one, before anything races. The cure: lanes without a word store nothing.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc

SOURCE = "ggml-org/llama.cpp#28358"
KIND = "bounds and alignment"


def quantise(values, scales, x, words, fixed):
    lane = tc.lane_id()
    packed = tc.select(lane < words, (x[lane % words] * 127.0).to(tc.s32), 0)
    if not fixed:
        values[lane] = packed  # error
    elif lane < words:
        values[lane] = packed
    if (lane % 8 == 0) & (lane < words):
        scales[lane // 8] = 1.0 / 127.0


@tc.kernel(threads=32)
def attention_row(x: tc.Array, out: tc.Array, words: tc.Const, fixed: tc.Const):
    values, scales, lane = tc.shared(words, tc.s32), tc.shared(words // 8, tc.f32), tc.lane_id()
    quantise(values, scales, x, words, fixed)
    tc.syncwarp()
    if lane < words:
        out[lane] = values[lane].to(tc.f32) * scales[lane // 8]


def launches(fixed):
    attention_row[1, 32](np.ones(16, np.float32), np.zeros(16, np.float32), words=16, fixed=fixed)
