"""Fragment layouts: the thread and register that hold each matrix element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import LayoutError

Formula = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Layout:
    """Distribution of a rows x cols matrix over `threads` threads.

    `formula(thread, slot)` returns (row, col) of the element in slot `slot` of a thread, counted
    from the low end of its first register; arguments are integers or arrays.
    """

    name: str
    rows: int
    cols: int
    dtype: DType
    formula: Formula = field(repr=False, compare=False)
    threads: int = 32
    copies: int = 1  # number of matrices of this shape, or of copies of one, in the threads
    container: int = 0  # register bits per element, if not those of the type

    @property
    def replicated(self) -> bool:
        """Several threads hold the same element."""
        return self.copies > 1

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
            raise LayoutError(
                f"{self.name}: element {often} is held {counts.max()} times, not {self.copies}"
            )

    def __str__(self) -> str:
        return draw(self)


def draw(layout: Layout) -> str:
    """The matrix as text; each cell is `T<thread>:<slot>` of the first holder."""
    cells = [["" for _ in range(layout.cols)] for _ in range(layout.rows)]
    for thread in range(layout.threads):
        for slot in range(layout.slots):
            row, col = layout.coords[thread, slot]
            cells[row][col] = cells[row][col] or f"T{thread}:{slot}"
    width = max(len(c) for line in cells for c in line) + 1
    head = f"{layout.name}: {layout.rows}x{layout.cols} {layout.dtype.name}, " \
        f"{layout.registers} registers in each of {layout.threads} threads"
    top = " " * 4 + "".join(f"{c:>{width}}" for c in range(layout.cols))
    body = [f"{r:>4}" + "".join(f"{c:>{width}}" for c in cells[r]) for r in range(layout.rows)]
    return "\n".join([head, top, *body])
