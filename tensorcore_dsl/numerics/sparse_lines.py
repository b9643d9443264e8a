# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
"""Compiled loops that move the stored elements of a sparse A to their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tensorcore_dsl.lowering import arrays, compiled, primitive

Array = npt.NDArray[Any]
STEP, STORED, BITS, LOW, WIDTH = range(5)  # settings of `spread`
WITHOUT_END = 1 << 40  # words of an array at an address, whose end is not known
array_at: Any = primitive(arrays.at_address)


def selected(
    words: Array, places: Array, columns: Array, undefined: Array, active: Array | None
) -> tuple[Array, int | None]:
    """The columns that metadata name, (warps, rows, elements), and the number of the first nibble
    that means nothing, None if there is none.

    words: (warps, 32) of metadata. places: (rows, nibbles), 32 * lane + lowest bit. columns:
    (nibbles, 16, elements), of a row's nibbles in each of their 16 values. undefined: (16,) bool.
    active: (warps,) bool, all if None; the others have column 0.
    """
    active = np.ones(len(words), np.bool_) if active is None else np.ascontiguousarray(active)
    (rows, nibbles), each = places.shape, columns.shape[-1]
    if (
        words.shape != (len(active), 32)
        or columns.shape != (nibbles, 16, each)
        or undefined.shape != (16,)
        or places.min() < 0
        or places.max() > 32 * 32 - 4
    ):
        raise ValueError(
            f"metadata {words.shape} of {len(active)} warps, places {places.shape} up to "
            f"{places.max()}, columns {columns.shape}, undefined {undefined.shape}"
        )
    chosen = np.zeros((len(words), rows, nibbles * each), np.int32)
    flat = chosen.reshape(len(words), -1)
    wrong = _select(words, places, columns, undefined, active, flat)
    return chosen, None if wrong < 0 else wrong


@compiled
def _select(words: Any, places: Any, columns: Any, undefined: Any, active: Any, chosen: Any) -> int:
    """`selected`, whose columns go to `chosen`, (warps, elements); -1 for None."""
    rows, nibbles, each = places.shape[0], places.shape[1], columns.shape[2]
    wrong = -1
    for w in range(active.size):
        if not active[w] or wrong >= 0:
            continue
        at = 0
        for row in range(rows):
            for nibble in range(nibbles):
                place = places[row, nibble]
                code = (np.int64(words[w, place >> 5]) >> (place & 31)) & 15
                if undefined[code] and wrong < 0:
                    wrong = (w * rows + row) * nibbles + nibble
                for i in range(each):
                    chosen[w, at] = columns[nibble, code, i]
                    at += 1
    return wrong  # type: ignore[no-any-return, unused-ignore]


@compiled
def spread(
    address: int, places: Any, selection: Any, active: Any, steps: Any, settings: Any, lines: Any, left: Any
) -> None:
    """Fill lines (warps, rows, words), zeros at first, whose elements are packed along K.

    address: of the words of A. places: of its elements (row, stored), 32 * word + lowest bit;
    selection: (warps, n) their columns, which the first rows * stored of each warp are. steps: of
    each stored element and then of each column the fused step that it belongs to. settings: words
    from warp to warp, stored elements of a row, and of an element its bits, its lowest bit and the
    bits that it occupies. left: (warps,) bool; becomes true where a column belongs to another step
    than its element, or to two elements.
    """
    words = array_at(address, (WITHOUT_END,), np.uint32)
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
