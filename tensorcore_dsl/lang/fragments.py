"""Moving fragments between shared memory and registers: ldmatrix, stmatrix, element loads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.lang.language import emit, lane_id, thread_in_warpgroup
from tensorcore_dsl.lang.memory import Array, Tile
from tensorcore_dsl.lang.pointer import Pointer, own_address
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.values.operands import describe, type_of
from tensorcore_dsl.values.values import Group, Scalar, builder


@dataclass(frozen=True)
class Matrices:
    """The 8x8 (16-byte rows) matrices that ldmatrix puts into the registers of a fragment.

    `corners[i]` is the (row, col) of the first element of register i; `trans` says that the
    16-byte rows in memory run along the fragment's rows instead of its columns.
    """

    corners: tuple[tuple[int, int], ...]
    trans: bool


@cache
def matrices(layout: Layout, along: str) -> Matrices | None:
    """How ldmatrix fills `layout` from memory contiguous along its "rows" or "cols".

    None when it cannot: then the fragment must be loaded by elements.
    """
    e = layout.dtype.per_register
    coords = layout.coords.reshape(32, layout.registers, e, 2) if layout.threads == 32 else None
    if coords is None or layout.dtype.storage_bits > 32 or layout.dtype.storage_bits < 8:
        return None
    lane = np.arange(32)[:, None]
    part = np.arange(e)[None, :]
    direct = (lane // 4, e * (lane % 4) + part)
    swapped = (direct[1], direct[0])
    fits = _corners(coords, direct), _corners(coords, swapped)
    # Threads hold neighbours along cols (direct) or along rows (swapped); memory may differ.
    if along == "cols" and fits[0]:
        return Matrices(fits[0], False)
    if along == "rows" and fits[1]:
        return Matrices(fits[1], False)
    if e != 2:
        return None
    if along == "rows" and fits[0]:
        return Matrices(fits[0], True)
    if along == "cols" and fits[1]:
        return Matrices(fits[1], True)
    return None


def _corners(coords: Any, pattern: Any) -> tuple[tuple[int, int], ...] | None:
    corners = []
    for register in range(coords.shape[1]):
        rows = coords[:, register, :, 0] - pattern[0]
        cols = coords[:, register, :, 1] - pattern[1]
        if np.ptp(rows) or np.ptp(cols):
            return None
        corners.append((int(rows[0, 0]), int(cols[0, 0])))
    return tuple(corners)


def ldmatrix(tile: Tile, operand: Operand) -> Any:
    """Load the fragment of `operand` from a shared tile of its shape.

    A tile of several fragments gives a list of them: by rows when it is taller, by columns
    when it is wider, nested when both. Uses ldmatrix with the fewest instructions, transposing
    where the tile's order demands it; element types that ldmatrix cannot transpose are loaded
    element by element.
    """
    layout = _checked(tile, operand)
    own_address(tile, "ldmatrix")
    along = "cols" if tile.strides[1] == 1 else "rows"
    plan = matrices(layout, along)
    places = list(_places(tile, layout))
    if plan is None or min(tile.strides) != 1:
        found = [load_elements(_block(tile, layout, place), operand) for place in places]
    else:
        found = _load_matrices(tile, operand, layout, plan, places, along)
    return _nest(found, tile.shape[0] // layout.rows, tile.shape[1] // layout.cols)


def _checked(tile: Any, operand: Any, spaces: tuple[Any, ...] = (Tile,)) -> Layout:
    """The layout of an operand that a memory view of its shape and type is to hold."""
    if not isinstance(operand, Operand) or operand.layout is None:
        raise OperandError(f"a fragment operand, such as mma.a, is needed, not {describe(operand)}")
    layout = operand.layout
    if not isinstance(tile, spaces) or tile.ndim != 2:
        allowed = " or ".join("array" if s is Array else "shared tile" for s in spaces)
        raise OperandError(f"a two-dimensional {allowed} is needed, not {describe(tile)}")
    if tile.dtype.storage_bits != layout.dtype.storage_bits:
        raise OperandError(f"{tile.described} cannot hold {layout.name}, which has {layout.dtype}")
    if isinstance(tile, Tile) and (
        tile.shape[0] % layout.rows or tile.shape[1] % layout.cols or 0 in tile.shape
    ):
        raise OperandError(
            f"{layout.name} covers {layout.rows}x{layout.cols}; {tile.described} is no multiple "
            "of it"
        )
    return layout


def _places(tile: Tile, layout: Layout) -> Iterator[tuple[int, int]]:
    rows = range(0, tile.shape[0], layout.rows)
    return itertools.product(rows, range(0, tile.shape[1], layout.cols))


def _block(tile: Tile, layout: Layout, place: tuple[int, int]) -> Tile:
    return tile.moved(place, (layout.rows, layout.cols), tile.strides)


def _nest(found: list[Any], rows: int, cols: int) -> Any:
    if rows == cols == 1:
        return found[0]
    if rows == 1 or cols == 1:
        return found
    return [found[i * cols : (i + 1) * cols] for i in range(rows)]


def _load_matrices(
    tile: Tile,
    operand: Operand,
    layout: Layout,
    plan: Matrices,
    places: list[tuple[int, int]],
    along: str,
) -> list[Group]:
    """All fragments of the tile, up to four matrices an instruction."""
    wanted = [(r + dr, c + dc) for r, c in places for dr, dc in plan.corners]
    registers: list[Scalar] = []
    while len(registers) < len(wanted):
        corners = _together(wanted[len(registers) :])
        registers += _issue(tile, corners, plan.trans, along)
    step = layout.registers
    return [
        builder().pack(registers[i : i + step], type_of(operand), operand)
        for i in range(0, len(registers), step)
    ]


def _together(corners: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first matrices that one instruction moves: 1, 2, or 4 at the corners of a box."""
    if len(corners) >= 4:
        first, right, down, last = corners[:4]
        if all(a + d == b + c for a, b, c, d in zip(first, right, down, last, strict=True)):
            return corners[:4]
    return corners[: min(len(corners), 2)]


def _issue(tile: Tile, corners: list[tuple[int, int]], trans: bool, along: str) -> list[Scalar]:
    """One ldmatrix: lane l points at row l % 8 of matrix l // 8."""
    pointer = _row_pointer(tile, corners, along)
    name = f"ldmatrix.sync.aligned.m8n8.x{len(corners)}{'.trans' if trans else ''}.shared.b16"
    loaded = emit(name, pointer.address)
    return [loaded] if isinstance(loaded, Scalar) else list(loaded.registers)


def _row_pointer(tile: Tile, corners: list[tuple[int, int]], along: str) -> Pointer:
    """Where this lane's 16-byte row of its matrix starts."""
    lane = lane_id()
    (row, col), steps = corners[0], _steps(corners)
    line = lane % 8
    rows, cols = (line, 0) if along == "cols" else (0, line)
    for bit, (dr, dc) in enumerate(steps):
        choice = (lane >> (3 + bit)) & 1
        rows = rows + choice * dr if dr else rows
        cols = cols + choice * dc if dc else cols
    return tile.at(rows + row, cols + col)


def _steps(corners: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The moves that bits 3 and 4 of the lane stand for."""
    first = corners[0]
    return [(r - first[0], c - first[1]) for r, c in corners[1:3]]


def _thread(layout: Layout) -> Any:
    """This thread as the layout counts: in its warp, or in its warpgroup."""
    return lane_id() if layout.threads == 32 else thread_in_warpgroup()


def load_elements(tile: Tile | Array, operand: Operand) -> Group:
    """Load a fragment element by element, by its layout's formula."""
    layout = _checked(tile, operand, (Tile, Array))
    thread = _thread(layout)
    elements = [tile.at(*layout.formula(thread, slot)).load() for slot in range(layout.slots)]
    registers, step = elements, layout.per_register
    if step > 1:
        narrow = [e.bits(layout.dtype) for e in elements]
        starts = range(0, len(narrow), step)
        registers = [builder().pack_register(narrow[i : i + step], layout.dtype) for i in starts]
    return builder().pack(registers, type_of(operand), operand)


def stmatrix(tile: Tile, value: Group) -> None:
    """Store a fragment of 16-bit elements to a shared tile of its shape (sm_90 or later)."""
    layout = _stored(tile, value, (Tile,))
    own_address(tile, "stmatrix")
    along = "cols" if tile.strides[1] == 1 else "rows"
    plan = matrices(layout, along)
    if plan is None:
        raise OperandError(f"stmatrix cannot store {layout.name}; use tc.store_elements")
    registers, corners = value.registers, list(plan.corners)
    while corners:
        count = len(_together(corners))
        pointer = _row_pointer(tile, corners[:count], along)
        name = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if plan.trans else ''}.shared.b16"
        words = [Scalar(r.value, dtypes.b32) for r in registers[:count]]
        emit(name, pointer.address, words if count > 1 else words[0])
        registers, corners = registers[count:], corners[count:]


def _stored(target: Any, value: Any, spaces: tuple[Any, ...]) -> Layout:
    if not isinstance(value, Group) or value.operand is None:
        raise OperandError(
            f"a fragment is needed, not {describe(value)}; store vectors with pointer.store(...)"
        )
    return _checked(target, value.operand, spaces)


def store_elements(target: Tile | Array, value: Group) -> None:
    """Store a fragment by its layout to a tile or an array view of its shape."""
    layout = _stored(target, value, (Tile, Array))
    thread = _thread(layout)
    for slot, element in enumerate(value.elements()):
        target.at(*layout.formula(thread, slot)).store(element)


def movmatrix(value: Scalar) -> Scalar:
    """Transpose an 8x8 matrix of 16-bit elements held in one register a lane."""
    return emit("movmatrix.sync.aligned.m8n8.trans.b16", value)  # type: ignore[no-any-return]
