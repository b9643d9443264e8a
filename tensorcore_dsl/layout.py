"""Fragment layouts: the thread and register that hold each matrix element."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import LayoutError

Formula = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Layout(EagerDict):
    """Distribution of a rows x cols matrix over `threads` threads.

    Attributes
    ----------
    name : str
        Names the instruction, the operand and the type.
    rows, cols : int
        Of the matrix.
    dtype : dtype
        Of the elements.
    formula : function
        `formula(thread, slot)` returns (row, col) of the element in slot `slot` of a thread,
        counted from the low end of its first register; arguments are integers or arrays.
    threads : int
        32, or 128 of a warpgroup.
    copies : int
        Number of matrices of this shape, or of copies of one, in the threads.

    Examples
    --------
    >>> layout = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).a.layout
    >>> layout.rows, layout.cols, layout.slots, layout.owner(9, 3)
    (16, 16, 8, (5, 3))
    """

    name: str
    rows: int
    cols: int
    dtype: DType
    formula: Formula = field(repr=False, compare=False)
    threads: int = 32
    copies: int = 1  # number of matrices of this shape, or of copies of one, in the threads
    container: int = 0  # register bits per element, if not those of the type
    any_type: bool = False  # layouts of all element types have this formula, as accumulators do
    base: Layout | None = field(default=None, repr=False, compare=False)  # what `of_type` changed

    @property
    def per_register(self) -> int:
        """Elements in one register."""
        return 32 // self.container if self.container else self.dtype.per_register

    @property
    def slots(self) -> int:
        """Elements that one thread holds."""
        return self.registers * self.per_register

    @property
    def registers(self) -> int:
        """Registers per thread: 32-bit, or 64-bit for 64-bit types."""
        per_thread = -(-self.rows * self.cols * self.copies // self.threads)
        return -(-per_thread // self.per_register)

    @cached_property
    def coords(self) -> np.ndarray:
        """(threads, slots, 2) array of (row, col)."""
        thread, slot = np.meshgrid(np.arange(self.threads), np.arange(self.slots), indexing="ij")
        row, col = self.formula(thread, slot)
        return np.stack(np.broadcast_arrays(row, col), axis=-1).astype(np.int32)

    def owner(self, row: int, col: int) -> tuple[int, int]:
        """Which thread holds an element, the first if several do.

        Parameters
        ----------
        row, col : int
            Of the element.

        Returns
        -------
        tuple of int
            (thread, slot).

        Raises
        ------
        LayoutError
            No such element.
        """
        if not (0 <= row < self.rows and 0 <= col < self.cols):
            raise LayoutError(f"{self.name} is {self.rows}x{self.cols}: no element ({row}, {col})")
        thread, slot = np.nonzero((self.coords == (row, col)).all(-1))
        return int(thread[0]), int(slot[0])

    def of_type(self, dtype: DType) -> Layout:
        """The layout in which each slot holds the same element, now of type `dtype`.

        Where the elements of a thread do not fill 32-bit registers, each has a register.
        """
        return _of_type(self.base or self, dtype)

    def along(self, axis: str, dtype: DType | None = None) -> Layout:
        """The layout of one value for each row ("rows") or column ("cols") that a thread holds.

        It is rows x 1, or 1 x cols. Slots are in the order in which the thread's slots first reach
        a row; LayoutError if that order differs between threads.
        """
        return _along(self, axis, dtype or self.dtype)

    def check(self) -> None:
        """LayoutError unless every element is held, at most `copies` times."""
        flat = self.coords[..., 0] * self.cols + self.coords[..., 1]
        if flat.min() < 0 or flat.max() >= self.rows * self.cols:
            raise LayoutError(f"{self.name}: the formula leaves the {self.rows}x{self.cols} matrix")
        counts = np.bincount(flat.ravel(), minlength=self.rows * self.cols)
        if counts.min() == 0:
            missing = divmod(int(np.argmin(counts)), self.cols)
            raise LayoutError(f"{self.name}: nobody holds element {missing}")
        if counts.max() > self.copies:
            often = divmod(int(np.argmax(counts)), self.cols)
            raise LayoutError(f"{self.name}: element {often} is held {counts.max()} times, not {self.copies}")

    def __str__(self) -> str:
        return draw(self)

    def _repr_html_(self) -> str:
        return html(self)


@cache
def _of_type(base: Layout, dtype: DType) -> Layout:
    if dtype == base.dtype:
        return base
    container = 0 if base.slots % dtype.per_register == 0 else 32
    old = f"{base.dtype.name}in{base.container}" if base.container else base.dtype.name
    new = f"{dtype.name}in32" if container else dtype.name
    if base.any_type or dtype.per_register == base.per_register:
        head, _, tail = base.name.rpartition(f".{old}")
        name = f"{head}.{new}{tail}"
    else:
        name = f"{base.name}.as.{new}"  # an operand of that type has another formula
    return replace(base, name=name, dtype=dtype, container=container, base=base)


@cache
def _along(layout: Layout, axis: str, dtype: DType) -> Layout:
    index = 0 if axis == "rows" else 1
    lines = layout.coords[..., index]
    alike = lines[:, :, None] == lines[:, None, :]
    if not (alike == alike[0]).all():
        raise LayoutError(f"the threads of {layout.name} share its {axis} in different ways")
    slots = np.sort(np.unique(lines[0], return_index=True)[1])

    def line(thread: Any, slot: Any) -> tuple[Any, Any]:
        of_layout = slots[slot] if isinstance(slot, np.ndarray) else int(slots[slot])
        element = layout.formula(thread, of_layout)
        return (element[0], 0 * slot) if axis == "rows" else (0 * slot, element[1])

    count = (layout.rows, layout.cols)[index]
    # Equal for all layouts whose threads hold the same rows, so that their values combine.
    mark = zlib.crc32(np.ascontiguousarray(lines[:, slots]).tobytes()) & 0xFFFF
    container = 0 if len(slots) % dtype.per_register == 0 else 32
    return Layout(
        f"{axis}.{count}.{mark:04x}.{dtype.name}{'in32' if container else ''}",
        *((count, 1) if axis == "rows" else (1, count)),
        dtype,
        line,
        layout.threads,
        layout.threads * len(slots) // count,
        container,
        True,
    )


def broadcast_slots(values: Layout, target: Layout) -> tuple[int, ...] | None:
    """For each slot of `target`, the slot of `values` (rows x 1, or 1 x cols) of its row or column.

    None if `values` has another shape, or if a thread lacks the value of an element that it holds.
    """
    if values.threads != target.threads:
        return None
    if (values.rows, values.cols) == (target.rows, 1):
        axis = 0
    elif (values.rows, values.cols) == (1, target.cols):
        axis = 1
    else:
        return None
    return slots_of(values.coords[..., axis], target.coords[..., axis])


def slots_of(held: np.ndarray, wanted: np.ndarray) -> tuple[int, ...] | None:
    """For each slot of `wanted` the slot of `held` that has the same in every thread; else None.

    Both are (threads, slots, ...) arrays of coordinates.
    """
    slot_of = {held[:, slot].tobytes(): slot for slot in reversed(range(held.shape[1]))}
    slots = [slot_of.get(wanted[:, slot].tobytes()) for slot in range(wanted.shape[1])]
    return None if None in slots else tuple(slots)  # type: ignore[arg-type]


def sharing_bits(layout: Layout, axis: str) -> tuple[int, ...] | None:
    """The bits of the thread's number in which the threads that share a row (column) differ.

    Lowest first, as powers of two; None if they do not differ in bits.
    """
    lines = layout.coords[..., 0 if axis == "rows" else 1]
    thread = np.arange(layout.threads)
    every = (1 << bit for bit in range(layout.threads.bit_length() - 1))
    bits = tuple(bit for bit in every if (lines == lines[thread ^ bit]).all())
    sharing = sum((lines == line).any(1).sum() for line in lines[0, :1])
    return bits if sharing == 1 << len(bits) else None


SHOWN_ROWS, SHOWN_COLS = 64, 32  # of a table in a notebook


def _holders(layout: Layout) -> list[list[tuple[int, int]]]:
    """The first (thread, slot) that holds each element, by row and column."""
    cells: list[list[Any]] = [[None] * layout.cols for _ in range(layout.rows)]
    for thread in range(layout.threads):
        for slot in range(layout.slots):
            row, col = layout.coords[thread, slot]
            cells[row][col] = cells[row][col] or (thread, slot)
    return cells


def _title(layout: Layout) -> str:
    return (
        f"{layout.name}: {layout.rows}x{layout.cols} {layout.dtype.name}, "
        f"{layout.registers} registers in each of {layout.threads} threads"
    )


def html(layout: Layout) -> str:
    """The matrix as a table; four neighbouring threads have one hue in four shades."""
    rows = _holders(layout)[:SHOWN_ROWS]
    numbers = range(min(layout.cols, SHOWN_COLS))
    head = "".join(f"<th>{col}</th>" for col in numbers)
    body = "".join(
        f"<tr><th>{number}</th>{''.join(_html_cell(*row[col]) for col in numbers)}</tr>"
        for number, row in enumerate(rows)
    )
    cut = layout.rows > SHOWN_ROWS or layout.cols > SHOWN_COLS
    part = f"; the first {len(rows)} rows and {len(numbers)} columns" if cut else ""
    style = "border-collapse:collapse; font:11px monospace; text-align:center"
    table = f'<table style="{style}"><tr><th></th>{head}</tr>{body}</table>'
    return f'<div style="overflow-x:auto"><b>{_title(layout)}{part}</b>{table}</div>'


def _html_cell(thread: int, slot: int) -> str:
    color = f"hsl({thread // 4 % 8 * 45} 75% {62 + 9 * (thread % 4)}%)"
    return f'<td style="background:{color}; color:#111; padding:1px 4px">T{thread}:{slot}</td>'


def draw(layout: Layout) -> str:
    """The matrix as text; each cell is `T<thread>:<slot>` of the first holder."""
    cells = [[f"T{thread}:{slot}" for thread, slot in row] for row in _holders(layout)]
    width = max(len(c) for line in cells for c in line) + 1
    top = " " * 4 + "".join(f"{c:>{width}}" for c in range(layout.cols))
    body = [f"{r:>4}" + "".join(f"{c:>{width}}" for c in cells[r]) for r in range(layout.rows)]
    return "\n".join([_title(layout), top, *body])
