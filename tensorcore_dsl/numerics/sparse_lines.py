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
    words: Array, bit_offsets: Array, columns: Array, undefined: Array, active: Array | None
) -> tuple[Array, int | None]:
    """Return the columns that metadata select, (warps, rows, elements), and the first undefined nibble.

    The nibble is a flat index, None if all are defined.

    words: (warps, 32) of metadata. bit_offsets: (rows, nibbles), 32 * lane + lowest bit. columns:
    (nibbles, 16, elements), of a row's nibbles in per_nibble of their 16 values. undefined: (16,) bool.
    active: (warps,) bool, all if None; the others have column 0.
    """
    active = np.ones(len(words), np.bool_) if active is None else np.ascontiguousarray(active)
    (rows, nibbles), per_nibble = bit_offsets.shape, columns.shape[-1]
    if (
        words.shape != (len(active), 32)
        or columns.shape != (nibbles, 16, per_nibble)
        or undefined.shape != (16,)
        or bit_offsets.min() < 0
        or bit_offsets.max() > 32 * 32 - 4
    ):
        raise ValueError(
            f"metadata {words.shape} of {len(active)} warps, bit offsets {bit_offsets.shape} up to "
            f"{bit_offsets.max()}, columns {columns.shape}, undefined {undefined.shape}"
        )
    chosen = np.zeros((len(words), rows, nibbles * per_nibble), np.int32)
    flat = chosen.reshape(len(words), -1)
    meaningless = _select(words, bit_offsets, columns, undefined, active, flat)
    return chosen, None if meaningless < 0 else meaningless


@compiled
def _select(words: Any, bit_offsets: Any, columns: Any, undefined: Any, active: Any, chosen: Any) -> int:
    """Compiled loop of `selected`: fill `chosen`, (warps, elements). Return -1 if all nibbles are defined."""
    rows, nibbles, per_nibble = bit_offsets.shape[0], bit_offsets.shape[1], columns.shape[2]
    meaningless = -1
    for w in range(active.size):
        if not active[w] or meaningless >= 0:
            continue
        at = 0
        for row in range(rows):
            for nibble in range(nibbles):
                bit_offset = bit_offsets[row, nibble]
                code = (np.int64(words[w, bit_offset >> 5]) >> (bit_offset & 31)) & 15
                if undefined[code] and meaningless < 0:
                    meaningless = (w * rows + row) * nibbles + nibble
                for i in range(per_nibble):
                    chosen[w, at] = columns[nibble, code, i]
                    at += 1
    return meaningless  # type: ignore[no-any-return, unused-ignore]


@compiled
def spread(
    address: int,
    bit_offsets: Any,
    selection: Any,
    active: Any,
    steps: Any,
    settings: Any,
    lines: Any,
    left: Any,
) -> None:
    """Fill lines (warps, rows, words), zeros at first, whose elements are packed along K.

    address: where the words of A begin. bit_offsets: (row, stored), 32 * word + lowest bit of each element.
    selection: (warps, n); the first rows * stored numbers of a warp are its columns. steps: the fused
    step of each stored element, then of each column. settings: words between warps, stored elements of
    a row, bits of an element, its lowest bit, and the bits that it occupies. left: (warps,) bool. It
    becomes true if an element and its column belong to different steps, or a column to two elements.
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
                bit_offset = bit_offsets[row * stored + i]
                code = (np.int64(words[base + (bit_offset >> 5)]) >> (bit_offset & 31)) & mask
                k = np.int64(selection[w, row * stored + i])
                if steps[stored + k] != steps[i] or taken[k] == turn:
                    left[w] = True
                taken[k] = turn
                at = k * width
                before = np.int64(lines[w, row, at >> 5])
                lines[w, row, at >> 5] = np.uint32(before | code << ((at & 31) + settings[LOW]))
