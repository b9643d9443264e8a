"""ldmatrix, stmatrix and movmatrix: fragments from and to tiles of shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.spec import Operand
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.pointer import Pointer, own_address
from tensorcore_dsl.lang.rows import Fragments, flat
from tensorcore_dsl.lang.special_registers import lane_id, warp_id
from tensorcore_dsl.lang.tiles import Tile
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe, type_of
from tensorcore_dsl.values.values import Element, RegisterGroup, Scalar

from tensorcore_dsl.lang.fragments import (  # isort: skip
    check_matrix,
    check_type,
    layout_of,
    load_elements,
    stored_layout,
)

ROW_BYTES = 16  # of an 8x8 matrix in memory


def ldmatrix(tile: Tile, operand: Operand) -> Any:
    """Load fragments of `operand` from a shared tile.

    It uses the fewest `ldmatrix` instructions, and their transposition where the order of the tile
    needs it; element types that `ldmatrix` cannot transpose are loaded element by element.

    Parameters
    ----------
    tile : Tile
        Of the fragment's element type; rows and columns are multiples of the fragment's.
    operand : operand
        `mma.a` or `mma.b`.

    Returns
    -------
    fragment or list
        One fragment; for a tile of several a list, one for each block of rows or columns; or a list
        of rows, if the tile has several of both.

    Raises
    ------
    OperandError
        Another type, a shape that is not a multiple of the fragment's, a tile of another CTA.
    ArchError
        A target before sm_75.

    See Also
    --------
    tiled_mma : Takes what this returns, with an example.

    Notes
    -----
    `ldmatrix`, section 9.7.14.5.15 of the PTX manual.
    """
    layout = layout_of(operand)
    _check_tile(tile, layout, "tc.load_elements(tile, operand, convert=True) converts")
    own_address(tile, names.LDMATRIX)
    along = "cols" if tile.strides[1] == 1 else "rows"
    plan = plan_matrices(layout, along)
    origins = list(_origins(tile, layout))
    if plan is None or min(tile.strides) != 1:
        fragments = [load_elements(_block(tile, layout, origin), operand) for origin in origins]
    else:
        fragments = _load_matrices(tile, operand, layout, plan, origins, along)
    return _nest(fragments, tile.shape[0] // layout.rows, tile.shape[1] // layout.cols)


def stmatrix(tile: Tile, value: Fragments) -> None:
    """Store fragments of 16-bit elements to a shared tile.

    Parameters
    ----------
    tile : Tile
        Of the fragment's element type; rows and columns are multiples of the fragment's.
    value : fragment or list
        One fragment; for a tile of several a list of them, arranged as `ldmatrix` returns it.

    Raises
    ------
    OperandError
        Another type, another number of fragments, a layout that `stmatrix` does not store.
    ArchError
        A target before sm_90.

    See Also
    --------
    store_elements : For all types and targets.

    Notes
    -----
    `stmatrix`, section 9.7.14.5.16 of the PTX manual.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def through_shared(out: tc.Array):
    ...     tile = tc.shared((16, 8), tc.f16)
    ...     tc.stmatrix(tile, (mma.d.zeros() + 3).to(tc.f16))
    ...     tc.syncwarp()
    ...     out[tc.lane_id()] = tile[tc.lane_id() % 16, 0]
    >>> out = np.zeros(32, np.float16)
    >>> through_shared[1, 32](out)
    >>> float(out[0])
    3.0
    """
    fragments: list[Any] = flat(value) if isinstance(value, (list, tuple)) else [value]
    layout = stored_layout(fragments[0])
    _check_tile(tile, layout, "fragment.to(dtype) converts")
    own_address(tile, names.STMATRIX)
    origins = list(_origins(tile, layout))
    different = next((f for f in fragments if f.value.type != fragments[0].value.type), None)
    if len(origins) != len(fragments) or different is not None:
        raise OperandError(
            f"{tile.described} takes {len(origins)} fragments of {layout.rows}x{layout.cols}; "
            + (f"{len(fragments)} were given" if different is None else f"one is {different.described}")
        )
    along = "cols" if tile.strides[1] == 1 else "rows"
    plan = plan_matrices(layout, along)
    if plan is None:
        raise OperandError(f"{names.STMATRIX} cannot store {layout.name}; use tc.store_elements")
    registers = [r for fragment in fragments for r in fragment.registers]
    corners = [(r + dr, c + dc) for r, c in origins for dr, dc in plan.corners]
    while corners:
        count = len(_first_matrices(corners))
        pointer = _row_pointer(tile, corners[:count], along, plan)
        words = [Scalar(r.value, dtypes.b32) for r in registers[:count]]
        row = pointer.accessed(ROW_BYTES)
        emit(names.stmatrix(count, plan.trans), row, words if count > 1 else words[0])
        registers, corners = registers[count:], corners[count:]


def movmatrix(value: Element) -> Element:
    """Transpose an 8x8 matrix of 16-bit elements, a pair of neighbours of a row in each lane.

    Parameters
    ----------
    value : scalar
        32 bits: row `lane // 4`, columns `2 * (lane % 4)` and the next one, as `pack` makes them.

    Returns
    -------
    scalar
        Of the same type: the same elements of the transpose.

    Raises
    ------
    OperandError
        A register of one element.
    ArchError
        A target before sm_75.

    Notes
    -----
    `movmatrix`, section 9.7.14.5.17 of the PTX manual.

    Examples
    --------
    >>> @tc.kernel
    ... def transpose(x: tc.Array):
    ...     row, col = tc.lane_id() // 4, tc.lane_id() % 4 * 2
    ...     moved = tc.movmatrix(tc.pack(x[row, col], x[row, col + 1]))
    ...     low, high = tc.unpack(moved)
    ...     x[row, col], x[row, col + 1] = low, high
    >>> x = np.arange(64, dtype=np.float16).reshape(8, 8)
    >>> transpose[1, 32](x)
    >>> x[0, :4]
    array([ 0.,  8., 16., 24.], dtype=float16)
    """
    if isinstance(value, Scalar) and value.dtype.is_float and value.dtype.lanes != 2:
        raise OperandError(
            f"{names.MOVMATRIX} takes registers of two 16-bit elements, as tc.pack(low, high) "
            f"makes them, not {describe(value)}"
        )
    moved = emit(names.MOVMATRIX, value)
    return Scalar(moved.value, value.dtype)


# -- which matrices fill which registers -------------------------------------------------------


@dataclass(frozen=True)
class MatrixPlan:
    """The 8x8 matrices (rows of 16 bytes) that ldmatrix loads into the registers of a fragment.

    `corners[i]` is the (row, col) of the first element of register i; `trans` says that the
    16-byte rows in memory run along the fragment's rows instead of its columns. Each warp of a
    warpgroup moves the same matrices `warp_rows` further down.
    """

    corners: tuple[tuple[int, int], ...]
    trans: bool
    warp_rows: int = 0


@cache
def plan_matrices(layout: Layout, along: str) -> MatrixPlan | None:
    """How ldmatrix fills `layout` from memory that is contiguous along its "rows" or "cols".

    None if it cannot: the fragment must then be loaded by elements.
    """
    e = layout.dtype.per_register
    if layout.per_register != e or not 8 <= layout.dtype.storage_bits <= 32:
        return None
    warps = layout.coords.reshape(-1, 32, layout.registers, e, 2)
    down = layout.rows // len(warps) if len(warps) > 1 else 0
    offsets = np.arange(len(warps))[:, None] * (down, 0)
    if not (warps == warps[0] + offsets[:, None, None, None, :]).all():
        return None
    coords = warps[0]
    lane = np.arange(32)[:, None]
    part = np.arange(e)[None, :]
    direct = (lane // 4, e * (lane % 4) + part)
    swapped = (direct[1], direct[0])
    fits = _corners(coords, direct), _corners(coords, swapped)
    # Threads hold neighbours along cols (direct) or along rows (swapped); memory may differ.
    if along == "cols" and fits[0]:
        return MatrixPlan(fits[0], False, down)
    if along == "rows" and fits[1]:
        return MatrixPlan(fits[1], False, down)
    if e != 2:
        return None
    if along == "rows" and fits[0]:
        return MatrixPlan(fits[0], True, down)
    if along == "cols" and fits[1]:
        return MatrixPlan(fits[1], True, down)
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


# -- instructions ------------------------------------------------------------------------------


def _check_tile(tile: Any, layout: Layout, advice: str) -> None:
    """OperandError unless the tile consists of whole fragments of its type."""
    check_matrix(tile, (Tile,))
    check_type(tile, layout, advice)
    if tile.shape[0] % layout.rows or tile.shape[1] % layout.cols or 0 in tile.shape:
        raise OperandError(
            f"{layout.name} covers {layout.rows}x{layout.cols}; {tile.described} is not a multiple of it"
        )


def _origins(tile: Tile, layout: Layout) -> Iterator[tuple[int, int]]:
    rows = range(0, tile.shape[0], layout.rows)
    return itertools.product(rows, range(0, tile.shape[1], layout.cols))


def _block(tile: Tile, layout: Layout, origin: tuple[int, int]) -> Tile:
    return tile.moved(origin, (layout.rows, layout.cols), tile.strides)


def _nest(fragments: list[Any], rows: int, cols: int) -> Any:
    """One fragment, a list, or a list of rows."""
    if rows == cols == 1:
        return fragments[0]
    if rows == 1 or cols == 1:
        return fragments
    return [fragments[i * cols : (i + 1) * cols] for i in range(rows)]


def _load_matrices(
    tile: Tile, operand: Operand, layout: Layout, plan: MatrixPlan, origins: list[tuple[int, int]], along: str
) -> list[RegisterGroup]:
    """All fragments of the tile, up to four matrices an instruction."""
    wanted = [(r + dr, c + dc) for r, c in origins for dr, dc in plan.corners]
    registers: list[Scalar] = []
    while len(registers) < len(wanted):
        corners = _first_matrices(wanted[len(registers) :])
        registers += _issue(tile, corners, plan, along)
    step = layout.registers
    return [
        builder().pack(registers[i : i + step], type_of(operand), operand)
        for i in range(0, len(registers), step)
    ]


def _first_matrices(corners: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The matrices that the next instruction moves: 1, 2, or 4 at the corners of a box."""
    if len(corners) >= 4:
        first, right, down, last = corners[:4]
        if all(a + d == b + c for a, b, c, d in zip(first, right, down, last, strict=True)):
            return corners[:4]
    return corners[: min(len(corners), 2)]


def _issue(tile: Tile, corners: list[tuple[int, int]], plan: MatrixPlan, along: str) -> list[Scalar]:
    """One ldmatrix: lane l gives the address of row l % 8 of matrix l // 8."""
    pointer = _row_pointer(tile, corners, along, plan)
    loaded = emit(names.ldmatrix(len(corners), plan.trans), pointer.accessed(ROW_BYTES))
    return [loaded] if isinstance(loaded, Scalar) else list(loaded.registers)


def _row_pointer(tile: Tile, corners: list[tuple[int, int]], along: str, plan: MatrixPlan) -> Pointer:
    """The pointer to the 16-byte row of a matrix that this lane addresses."""
    lane = lane_id()
    (row, col), steps = corners[0], _steps(corners)
    row_of_matrix = lane % 8
    rows, cols = (row_of_matrix, 0) if along == "cols" else (0, row_of_matrix)
    for bit, (dr, dc) in enumerate(steps):
        choice = (lane >> (3 + bit)) & 1
        rows = rows + choice * dr if dr else rows
        cols = cols + choice * dc if dc else cols
    if plan.warp_rows:
        rows = rows + warp_id() % 4 * plan.warp_rows
    return tile.at(rows + row, cols + col)


def _steps(corners: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The distance between matrices, (rows, cols), that bits 3 and 4 of the lane select."""
    first = corners[0]
    return [(r - first[0], c - first[1]) for r, c in corners[1:3]]
