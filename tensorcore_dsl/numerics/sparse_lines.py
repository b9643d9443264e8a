# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
"""Compiled loop that writes the stored elements of a sparse A to the columns where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.lowering import compiled

from .loops import words_at

STEP, STORED, BITS, LOW, WIDTH = range(5)  # settings of `spread`


@compiled
def spread(
    address: int, places: Any, selection: Any, active: Any, steps: Any, settings: Any, lines: Any,
    left: Any,
) -> None:  # fmt: skip
    """Fill lines (warps, rows, words), zeros at first, whose elements are packed along K.

    address: of the words of A. places: of its elements (row, stored), 32 * word + lowest bit;
    selection: (warps, n) their columns, which the first rows * stored of each warp are. steps: of
    each stored element and then of each column the fused step that it belongs to. settings: words
    from warp to warp, stored elements of a row, and of an element its bits, its lowest bit and the
    bits that it occupies. left: (warps,) bool; becomes true where a column belongs to another step
    than its element, or to two elements.
    """
    words: Any = words_at(address)  # type: ignore[no-untyped-call]
    stored = settings[STORED]
    mask, width = (1 << settings[BITS]) - 1, settings[WIDTH]
    taken = np.zeros(steps.size - stored, np.int64)
    turn = 0
    for w in range(active.size):
        if not active[w]:
            continue
        base = w * settings[STEP]
        for row in range(lines.shape[1]):
            turn += 1
            for word in range(lines.shape[2]):
                lines[w, row, word] = 0
            for i in range(stored):
                place = places[row * stored + i]
                code = (np.int64(words[base + (place >> 5)]) >> (place & 31)) & mask
                k = np.int64(selection[w, row * stored + i])
                if steps[stored + k] != steps[i] or taken[k] == turn:
                    left[w] = True
                taken[k] = turn
                at = k * width
                before = np.int64(lines[w, row, at >> 5])
                lines[w, row, at >> 5] = np.uint32(before | code << ((at & 31) + settings[LOW]))
