"""Drawings of fragment layouts and of swizzled shared memory; swizzles also as text.

Needs matplotlib (`pip install tensorcore-dsl[plot]`). Every function returns a Figure, which
notebooks display, and saves it if `path` is given.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tensorcore_dsl.errors import LayoutError, TensorCoreError, listing
from tensorcore_dsl.layout import Layout

__all__ = ["draw_swizzle", "plot_instruction", "plot_layout", "plot_swizzle"]

CELL = 0.5  # inches per matrix element
MOST = (64, 32)  # most rows and columns of a drawing
BANKS, BANK_BYTES, CHUNK = 32, 4, 16  # of shared memory; bytes that a swizzle moves as a unit
LINE = BANKS * BANK_BYTES
# Swizzle in bytes -> bits of an offset (from bit 4 up) that are XORed with the bits 3 above.
MASKS = {0: 0x00, 32: 0x10, 64: 0x30, 128: 0x70}


def matplotlib_parts() -> tuple[Any, Any]:
    """(Figure, colormaps), or an error that names the package to install."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TensorCoreError(
            "pictures need matplotlib: pip install matplotlib, or tensorcore-dsl[plot]"
        ) from error
    return Figure, colormaps


def saved(figure: Any, path: str | Path | None) -> Any:
    if path is not None:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return figure


def _grid(rows: int, cols: int, title: str, cell: tuple[float, float]) -> tuple[Any, Any]:
    """A figure of rows x cols cells of `cell` inches, with axis labels at the top and left."""
    figure_type, _ = matplotlib_parts()
    figure = figure_type(figsize=(cols * cell[0] + 1.0, rows * cell[1] + 1.0))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_xlim(-0.5, cols - 0.5)
    axis.set_ylim(rows - 0.5, -0.5)
    axis.xaxis.tick_top()
    axis.tick_params(length=0, labelsize=8)
    axis.set_title(title, fontsize=10, pad=20)
    for spine in axis.spines.values():
        spine.set_linewidth(1.2)
    return figure, axis


def _cell(axis: Any, row: int, col: int, color: Any, text: str, size: float = 7) -> None:
    """One coloured cell with dark or light text, whichever is readable."""
    from matplotlib.patches import Rectangle

    bright = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] > 0.5
    corner = (col - 0.5, row - 0.5)
    axis.add_patch(Rectangle(corner, 1, 1, facecolor=color, edgecolor="white", linewidth=0.5))
    axis.text(col, row, text, ha="center", va="center", fontsize=size, color="black" if bright else "white")


# -- fragments -----------------------------------------------------------------------------------


def plot_layout(
    layout: Layout, path: str | Path | None = None, *, rows: int = MOST[0], cols: int = MOST[1]
) -> Any:
    """The matrix of a fragment, a cell per element; text and colour name the thread that holds it.

    "T5:a2" is element a2 of thread 5, as the PTX manual counts them: from the low end of the first
    register. White lines part threads, thin ones the elements within a register; black lines part
    the quads (four neighbouring threads) of a warp, thick ones the warps of a warpgroup. Quads and
    warps that hold whole rows or columns are named beside them.

    Parameters
    ----------
    layout : Layout
        `mma.a.layout`, say. If several threads hold an element, the first one is named.
    path : str or Path, optional
        Where to save the picture; its ending gives the format.
    rows, cols : int
        Larger matrices are cut.

    Returns
    -------
    matplotlib.figure.Figure
        Which notebooks display.

    Raises
    ------
    TensorCoreError
        matplotlib is not installed.

    Examples
    --------
    >>> from tensorcore_dsl.viz.plot import plot_layout
    >>> figure = plot_layout(tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).a.layout)
    >>> figure.axes[0].texts[3].get_text()
    'T1:a1'
    """
    shown = min(rows, layout.rows), min(cols, layout.cols)
    cells = holders(layout)[: shown[0], : shown[1]]
    figure, axis = _grid(*shown, _title(layout, shown), (CELL, 0.75 * CELL))
    _, colormaps = matplotlib_parts()
    colors = thread_colors(colormaps["hsv"], layout.threads)
    letter = element_letter(layout)
    for row, col in np.ndindex(shown):
        thread, slot = cells[row, col]
        _cell(axis, row, col, colors[thread], f"T{thread}:{letter}{slot}")
    _borders(axis, cells, layout)
    _group_names(axis, cells, layout)
    axis.set_xticks(range(shown[1]))
    axis.set_yticks(range(shown[0]))
    return saved(figure, path)


def element_letter(layout: Layout) -> str:
    """Letter of a thread's elements in the manual: a, b, c (of accumulators, C and D); else e."""
    match = re.match(r"(?:mma|wgmma|wmma)\.([A-Za-z])\b", layout.name)
    return {"d": "c"}.get(match[1].lower(), match[1].lower()) if match else "e"


def _borders(axis: Any, cells: np.ndarray, layout: Layout) -> None:
    """Lines between neighbours, by what they are parts of."""
    threads, registers = cells[..., 0], cells[..., 1] // layout.per_register
    for across in (0, 1):
        of_threads, of_registers = (np.diff(part, axis=across) != 0 for part in (threads, registers))
        quads, warps = (np.diff(threads // n, axis=across) != 0 for n in (4, 32))
        styles = [
            (quads, "black", 0.9),
            (of_threads & ~quads, "white", 1.8),
            (of_registers & ~of_threads, "white", 1.2),
        ]
        if layout.threads > 32:
            styles[0] = (quads & ~warps, "black", 0.9)
            styles.append((warps, "black", 2.6))
        for where, color, width in styles:
            lines = [_between_cells(row, col, across) for row, col in np.argwhere(where)]
            _segments(axis, lines, color, width)


def _between_cells(row: int, col: int, across: int) -> list[tuple[float, float]]:
    """The line below (across 0) or right of (1) a cell."""
    if across == 0:
        return [(col - 0.5, row + 0.5), (col + 0.5, row + 0.5)]
    return [(col + 0.5, row - 0.5), (col + 0.5, row + 0.5)]


def _segments(axis: Any, lines: list[list[tuple[float, float]]], color: str, width: float) -> None:
    from matplotlib.collections import LineCollection

    axis.add_collection(LineCollection(lines, colors=color, linewidths=width, capstyle="butt"))


def _group_names(axis: Any, cells: np.ndarray, layout: Layout) -> None:
    """Name the quad (and warp) of each row, or column, that one of them holds alone."""
    kinds = [("quad", 4)] + [("warp", 32)] * (layout.threads > 32)
    for distance, (kind, size) in enumerate(kinds):
        groups = cells[..., 0] // size
        whole = [(groups == groups[:, :1]).all(), (groups == groups[:1]).all()]
        if not any(whole) or (groups == groups[0, 0]).all():
            continue
        numbers = groups[:, 0] if whole[0] else groups[0]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for first, last in zip(starts, [*starts[1:], len(numbers)], strict=True):
            name, middle = f"{kind} {numbers[first]}", (first + last - 1) / 2
            if whole[0]:
                xy = (cells.shape[1] - 0.3 + 1.3 * distance, middle)
                axis.text(*xy, name, va="center", fontsize=7)
            else:
                xy = (middle, cells.shape[0] - 0.3 + 0.8 * distance)
                axis.text(*xy, name, ha="center", va="top", fontsize=7)


def holders(layout: Layout) -> np.ndarray:
    """(rows, cols, 2): the first (thread, slot) that holds each element."""
    first = np.zeros((layout.rows, layout.cols, 2), np.int64)
    thread, slot = np.indices(layout.coords.shape[:2])
    rows, cols = layout.coords[..., 0].ravel()[::-1], layout.coords[..., 1].ravel()[::-1]
    first[rows, cols] = np.stack([thread.ravel(), slot.ravel()], axis=-1)[::-1]
    return first


def thread_colors(colormap: Any, threads: int) -> Any:
    """A colour per thread: four neighbours, which share rows, have one hue in four shades."""
    quads = (np.arange(threads) // 4 % 8) / 8
    base = np.asarray(colormap(quads))[:, :3]
    pale = 0.45 + 0.13 * (np.arange(threads) % 4)[:, None]
    return base * (1 - pale) + pale


def _title(layout: Layout, shown: tuple[int, int]) -> str:
    text = f"{layout.name}: {layout.rows}x{layout.cols} {layout.dtype}, {layout.registers} registers"
    text += f" in each of {layout.threads} threads"
    if shown != (layout.rows, layout.cols):
        text += f"\nthe first {shown[0]} rows and {shown[1]} columns"
    if layout.copies > 1:
        text += f"\neach place is held {layout.copies} times; its first holder is shown"
    return text


def plot_instruction(instr: Any, directory: str | Path) -> list[Path]:
    """A PNG for each fragment of an instruction.

    Parameters
    ----------
    instr : Instruction
        `tc.mma.m16n8k16(...)`, say.
    directory : str or Path
        Is made if it does not exist.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    TensorCoreError
        matplotlib is not installed.

    See Also
    --------
    plot_layout : One fragment, with an example.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for operand in instr.sides:
        layout = operand.layout or operand.drawing
        if layout is not None and layout not in written:
            path = folder / f"{re.sub(r'[^A-Za-z0-9.]+', '_', instr.mnemonic)}.{operand.name}.png"
            plot_layout(layout, path)
            written[layout] = path
    return list(written.values())


# -- swizzles ------------------------------------------------------------------------------------


def swizzled(offset: Any, swizzle: int) -> Any:
    """Offset of byte `offset` in a swizzled tile: bits 4 and up are XORed with bits 7 and up."""
    return offset ^ (offset >> 3 & _mask(swizzle))


def _mask(swizzle: int) -> int:
    if swizzle not in MASKS:
        raise LayoutError(f"swizzle is {swizzle}; {listing(MASKS)} bytes are possible")
    return MASKS[swizzle]


def chunks(rows: int, row_bytes: int, swizzle: int) -> np.ndarray:
    """(lines, 8, 2): the (row, chunk) of a tile in each 16 bytes of 128-byte lines.

    A line spans the 32 banks. Places beyond the end of the tile hold (-1, -1).
    """
    _mask(swizzle)
    if rows < 1 or row_bytes < CHUNK or row_bytes % max(CHUNK, swizzle):
        raise LayoutError(
            f"{rows} rows of {row_bytes} bytes cannot be swizzled by {swizzle} bytes: rows must be "
            f"a multiple of {max(CHUNK, swizzle)} bytes"
        )
    total = rows * row_bytes
    offsets = np.arange(0, total, CHUNK)
    swizzled_offsets = swizzled(offsets, swizzle)
    lines = -(-(int(swizzled_offsets.max()) + CHUNK) // LINE)
    cells = np.full((lines * LINE // CHUNK, 2), -1, np.int64)
    cells[swizzled_offsets // CHUNK] = np.stack([offsets // row_bytes, offsets % row_bytes // CHUNK], axis=-1)
    return cells.reshape(lines, LINE // CHUNK, 2)


def passes(rows: int, row_bytes: int, swizzle: int) -> list[int]:
    """Shared-memory wavefronts to read each column of chunks in eight rows, as ldmatrix does.

    1 is free of conflicts, 8 the maximum; the worst group of eight rows counts.
    """
    table = chunks(rows, row_bytes, swizzle).reshape(-1, 2)
    numbers = {(int(row), int(chunk)): number for number, (row, chunk) in enumerate(table)}
    columns = range(row_bytes // CHUNK)
    groups = [range(r, min(r + 8, rows)) for r in range(0, rows, 8)]
    return [max(_collisions([numbers[row, c] for row in group]) for group in groups) for c in columns]


def _collisions(where: list[int]) -> int:
    """How many of these chunks share the busiest group of four banks."""
    return int(np.bincount(np.array(where) % (LINE // CHUNK)).max())


def draw_swizzle(rows: int, row_bytes: int, swizzle: int) -> str:
    """Shared memory as text: 128-byte lines over the 32 banks; "r3.c2" is chunk 2 of row 3.

    Parameters
    ----------
    rows : int
        Of the tile.
    row_bytes : int
        Bytes of a row, a multiple of the swizzle and of 16.
    swizzle : int
        0, 32, 64 or 128 bytes.

    Returns
    -------
    str
        The first line says how many passes a column of chunks takes.

    Raises
    ------
    LayoutError
        Another swizzle, rows that it does not divide.

    Examples
    --------
    >>> from tensorcore_dsl.viz.plot import draw_swizzle
    >>> print(draw_swizzle(2, 64, 64))
    2 rows of 64 bytes, 64-byte swizzle: a column of chunks in 8 rows is read with no bank conflicts
      bank    0-3    4-7   8-11  12-15  16-19  20-23  24-27  28-31
         0  r0.c0  r0.c1  r0.c2  r0.c3  r1.c0  r1.c1  r1.c2  r1.c3
    """
    table = chunks(rows, row_bytes, swizzle)
    names = [["-" if r < 0 else f"r{r}.c{c}" for r, c in line] for line in table]
    width = max(7, 2 + max(len(n) for line in names for n in line))
    banks = [f"{4 * i}-{4 * i + 3}" for i in range(LINE // CHUNK)]
    out = [_swizzle_title(rows, row_bytes, swizzle), f"{'bank':>6}" + "".join(f"{b:>{width}}" for b in banks)]
    out += [f"{LINE * i:>6}" + "".join(f"{n:>{width}}" for n in line) for i, line in enumerate(names)]
    return "\n".join(out)


def _swizzle_title(rows: int, row_bytes: int, swizzle: int) -> str:
    worst = max(passes(rows, row_bytes, swizzle))
    cost = "no bank conflicts" if worst == 1 else f"{worst} passes"
    how = f"{swizzle}-byte swizzle" if swizzle else "no swizzle"
    return f"{rows} rows of {row_bytes} bytes, {how}: a column of chunks in 8 rows is read with {cost}"


def plot_swizzle(rows: int, row_bytes: int, swizzle: int, path: str | Path | None = None) -> Any:
    """Shared memory as a drawing: 128-byte lines over the 32 banks, chunks coloured by column.

    Parameters
    ----------
    rows : int
        Of the tile.
    row_bytes : int
        Bytes of a row, a multiple of the swizzle and of 16.
    swizzle : int
        0, 32, 64 or 128 bytes.
    path : str or Path, optional
        Where to save the picture; its ending gives the format.

    Returns
    -------
    matplotlib.figure.Figure
        Which notebooks display.

    Raises
    ------
    LayoutError
        Another swizzle, rows that it does not divide.
    TensorCoreError
        matplotlib is not installed.

    See Also
    --------
    draw_swizzle : The same as text, with an example.
    """
    table = chunks(rows, row_bytes, swizzle)
    title = _swizzle_title(rows, row_bytes, swizzle)
    figure, axis = _grid(table.shape[0], table.shape[1], title, (2 * CELL, 0.6 * CELL))
    _, colormaps = matplotlib_parts()
    per_row = row_bytes // CHUNK
    for line, column in np.ndindex(table.shape[:2]):
        row, chunk = table[line, column]
        if row >= 0:
            _cell(
                axis,
                line,
                column,
                colormaps["viridis"](chunk / max(1, per_row - 1)),
                f"row {row} chunk {chunk}",
                6,
            )
    axis.set_xticks(range(8), [f"banks {4 * i}-{4 * i + 3}" for i in range(8)])
    axis.set_yticks(range(len(table)), [f"byte {LINE * i}" for i in range(len(table))])
    return saved(figure, path)
