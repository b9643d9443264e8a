"""`mma.sp`: A with 2:4 (or 1:2, 4:8) structured sparsity, B dense (9.7.14.6).

The stored half of A has the dense layout of k/2 columns. A row's metadata are nibbles, lowest bits
first. A nibble holds two 2-bit indices: into four columns (16- and 8-bit types), or into the four
pairs of eight columns (4-bit types). For tf32 it is 0x4 or 0xE, the first or second of two columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.fragments import checked, multiply, size
from tensorcore_dsl.isa.mma import FP8, FP864, INT4, INT8, KIND, SATURATE, Family
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.isa.warp import warps
from tensorcore_dsl.layout import Layout

SECTION = "9.7.14.6.3"
ORDERED = (8, 5)  # PTX version of mma.sp::ordered_metadata
PLAIN, SORTED = ".sp", ".sp::ordered_metadata"


def stored_per_nibble(dtype: str) -> int:
    """Stored elements of A that one nibble describes."""
    return {"tf32": 1, "u4": 4, "s4": 4}.get(dtype, 2)


def nibbles_per_row(shape: str, dtype: str, packed: bool) -> int:
    """Nibbles of metadata per row; `packed` is e2m1 without byte containers."""
    return size(shape)[2] // 2 // (4 if packed else stored_per_nibble(dtype))


def selectors(shape: str, a: str, packed: bool = False) -> tuple[int, ...]:
    """Allowed values of the sparsity selector."""
    return {4: (0, 1, 2, 3), 8: (0, 1), 16: (0,)}[nibbles_per_row(shape, a, packed)]


def metadata_bits(selector: int, nibbles: int, wide: bool) -> np.ndarray:
    """Return (16, nibbles) the bits of each row's nibbles in registers, 32 * lane + lowest bit.

    For `wide` elements (16 bits and more), the halves of one register belong to rows g and g + 8.
    """
    # For rows g and g + 8: lanes of a quad, and the lowest bit in their registers.
    lanes, low = [[2 * selector], [2 * selector + 1]], [0, 0]
    if nibbles == 16:  # lanes 0 and 1 of a quad: first half of rows g and g+8; 2 and 3: the rest
        lanes = [[0, 2], [1, 3]]
    elif wide:
        of_row = [selector] if nibbles == 4 else [2 * selector, 2 * selector + 1]
        lanes, low = [of_row, of_row], [0, 16]
    per_register = 4 if wide else 8  # nibbles of a row in one register
    (upper, row), nibble = np.divmod(np.arange(16)[:, None], 8), np.arange(nibbles)
    lane = 4 * row + np.array(lanes)[upper, nibble // per_register]
    return np.asarray(32 * lane + np.array(low)[upper] + 4 * (nibble % per_register))


@cache
def drawing(nibbles: int, wide: bool, warps: int = 1) -> Layout:
    """The nibbles of the metadata: column nibbles * f + i has nibble i of a row for selector f.

    Warp w of a warpgroup (`warps` 4) has rows 16 w to 16 w + 15 (9.7.15.6.2).
    """
    coords = np.empty((32, 8, 2), np.int64)
    for column in range(16):
        selector, nibble = divmod(column, nibbles)
        lane, bit = np.divmod(metadata_bits(selector, nibbles, wide)[:, nibble], 32)
        coords[lane, bit // 4] = np.stack([np.arange(16), np.full(16, column)], axis=-1)
    opcode = "mma" if warps == 1 else "wgmma"
    name = f"metadata of {opcode}.sp, nibble i of selector f in column {nibbles} f + i"

    def element(thread: Any, slot: Any) -> tuple[Any, Any]:
        row, column = np.moveaxis(coords[thread % 32, slot], -1, 0)
        return 16 * (thread // 32) + row, column

    return checked(name, 16 * warps, 16, "u4", element, threads=32 * warps)


def selection(ctx: Context, instr: Instruction, e: Any, selector: int) -> np.ndarray:
    """(warps, 16, k/2): the column of each stored element; EmulationError for invalid metadata."""
    from tensorcore_dsl.numerics import sparse_lines

    p = instr.params
    layout = instr.operand("a").layout if p["a"] == "e2m1" else None
    packed = layout is not None and not layout.container
    nibbles = nibbles_per_row(p["shape"], p["a"], packed)
    wide = dtypes.named(p["a"]).bits >= 16
    words = np.ascontiguousarray(warps(ctx, np.asarray(e, np.uint32)))
    bit_offsets = metadata_bits(int(selector), nibbles, wide)
    selected, meaningless = sparse_lines.selected(
        words,
        bit_offsets,
        _columns(p["a"], packed, nibbles),
        _undefined(p["a"], bool(p.get("ordered"))),
        ctx.whole_warps(),
    )
    if meaningless is not None:
        raise _meaningless(instr, words, bit_offsets, meaningless)
    return selected


def _meaningless(
    instr: Instruction, words: np.ndarray, bit_offsets: np.ndarray, number: int
) -> EmulationError:
    """The error for a nibble that the manual leaves undefined."""
    warp, line, chunk = (int(i) for i in np.unravel_index(number, (len(words), *bit_offsets.shape)))
    lane, bit = divmod(int(bit_offsets[line, chunk]), 32)
    return EmulationError(
        f"{instr.mnemonic}: warp {warp}, row {line} of A, chunk {chunk}: metadata "
        f"{int(words[warp, lane]) >> bit & 15:#06b} mean nothing"
    )


@cache
def _columns(a: str, packed: bool, nibbles: int) -> np.ndarray:
    """(nibbles, 16, elements): the columns of the elements of each nibble of a row, by its value."""
    codes = np.arange(16, dtype=np.int32)
    chunk = np.arange(nibbles, dtype=np.int32)[:, None, None]
    if a == "tf32":
        return np.asarray(2 * chunk + (codes == 0xE)[:, None])
    columns = np.stack([codes & 3, codes >> 2], axis=-1)
    if packed or stored_per_nibble(a) == 4:
        columns = (2 * columns[..., None] + np.arange(2, dtype=np.int32)).reshape(16, 4)
        return np.asarray(8 * chunk + columns)
    return np.asarray(4 * chunk + columns)


@cache
def _undefined(a: str, ordered: bool) -> np.ndarray:
    """(16,) bool: nibbles that the manual leaves undefined."""
    nibbles = np.arange(16)
    first, second = nibbles & 3, nibbles >> 2
    if a == "tf32":
        return np.asarray((nibbles != 0x4) & (nibbles != 0xE))
    return np.asarray(first >= second if ordered else first == second)


def multiply_sparse(
    ctx: Context, instr: Instruction, a: Any, b: Any, c: Any, e: Any, f: int, **more: Any
) -> np.ndarray:
    """d = a * b + c, with the stored elements of A at the columns that the metadata give."""
    return multiply(ctx, instr, a, b, c, selection=selection(ctx, instr, e, f), **more)


@dataclass(frozen=True)
class SparseFamily(Family):
    """Instructions of `mma.sp` that differ in shape, types, one modifier and metadata order."""

    variants: tuple[str, ...] = (PLAIN, SORTED)

    is_sparse = True

    def instructions(self) -> Iterator[Instruction]:
        for variant, dense in itertools.product(self.variants, super().instructions()):
            params = {key: value for key, value in dense.params.items() if key != "layout"}
            params |= {"group": "sp", "sparse": "sparse"}
            if variant == SORTED:
                params["ordered"] = "ordered"
            yield replace(
                dense,
                mnemonic=dense.mnemonic.replace("mma", f"mma{variant}", 1),
                operands=(*dense.operands, *metadata(params["shape"], params["a"])),
                version=max(self.ptx, ORDERED) if variant == SORTED else self.ptx,
                section=SECTION,
                execute=multiply_sparse,
                params=params,
            )


def metadata(shape: str, a: str, packed: bool = False, warps: int = 1) -> tuple[Operand, Operand]:
    """The operands e and f: metadata and sparsity selector."""
    drawn = drawing(nibbles_per_row(shape, a, packed), dtypes.named(a).bits >= 16, warps)
    return (
        Operand("e", dtypes.b32, drawing=drawn),
        Operand("f", dtypes.u32, 1, "imm", None, selectors(shape, a, packed)),
    )


# fmt: off
ROWS = (
    #            shapes                d/c                 a/b            requires ptx      modifier     values
    SparseFamily("m16n8k16 m16n8k32",  "f16/f16 f32/f32",  "f16/f16",     "80",    (7, 1)),
    SparseFamily("m16n8k16 m16n8k32",  "f32/f32",          "bf16/bf16",   "80",    (7, 1)),
    SparseFamily("m16n8k8 m16n8k16",   "f32/f32",          "tf32/tf32",   "80",    (7, 1)),
    SparseFamily("m16n8k64",           "f32/f32",          FP8,           "89",    (8, 4)),
    SparseFamily("m16n8k64",           "f16/f16",          FP8,           "120f",  (8, 7),  variants=(SORTED,)),
    SparseFamily("m16n8k64",           "f16/f16 f32/f32",  FP864,         "120f",  (8, 7),  "kind",      KIND, variants=(SORTED,)),
    SparseFamily("m16n8k32 m16n8k64",  "s32/s32",          INT8,          "80",    (7, 1),  "satfinite", SATURATE),
    SparseFamily("m16n8k64 m16n8k128", "s32/s32",          INT4,          "80",    (7, 1),  "satfinite", SATURATE),
)
# fmt: on
