"""Products of lists of fragments, and results of products as the operands of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.lang.fragments import layout_of
from tensorcore_dsl.lang.rows import Fragments, flat
from tensorcore_dsl.layout import Layout, slots_of
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import RegisterGroup, of_converted

Grid = list[list[RegisterGroup]]  # rows of fragments
Tiled = TypeVar("Tiled", bound=Fragments)


def tiled_mma(mma: Instruction, acc: Tiled, a: Fragments, b: Fragments) -> Tiled:
    """acc[i][j] + the sum of a[i][k] b[k][j] over k, for lists of fragments.

    Instructions run k by k, and row by row in serpentine order, so that neighbours share a
    fragment.

    Parameters
    ----------
    mma : Instruction
        A product of fragments in registers: `tc.mma.m16n8k16(...)`.
    acc : fragment or list
        rows x columns of accumulators: a list of rows, a flat list with the rows first, or one.
    a, b : fragment or list
        rows x depth and depth x columns of operands. If no extent is 1, one operand at least is a
        list of rows.

    Returns
    -------
    fragment or list
        The new accumulators, arranged as `acc`.

    Raises
    ------
    OperandError
        Another instruction, or lists whose extents do not fit together.

    Examples
    --------
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel(threads=32)
    ... def product(a: tc.Array, b: tc.Array, d: tc.Array):
    ...     left, right = tc.shared((32, 32), a.dtype), tc.shared((32, 8), b.dtype)
    ...     tc.copy_tile(left, a, (0, 0))
    ...     tc.copy_tile(right, b, (0, 0))
    ...     tc.cp_async_commit()
    ...     tc.cp_async_wait(0)
    ...     tc.barrier()
    ...     acc = [mma.d.zeros() for _ in range(2)]
    ...     acc = tc.tiled_mma(mma, acc, tc.ldmatrix(left, mma.a), tc.ldmatrix(right, mma.b))
    ...     for i in tc.static_range(2):
    ...         tc.store_elements(d, acc[i], origin=(16 * i, 0))
    >>> a, b = np.eye(32, dtype=np.float16), np.arange(256, dtype=np.float16).reshape(32, 8)
    >>> d = np.zeros((32, 8), np.float32)
    >>> product[1, 32](a, b, d)
    >>> bool((d == b).all())
    True
    """
    if not isinstance(mma, Instruction) or {"a", "b", "c"} != {o.name for o in mma.operands}:
        raise OperandError(
            f"tiled_mma takes a product of fragments in registers, such as tc.mma.m16n8k16(...), "
            f"not {mma if isinstance(mma, Instruction) else describe(mma)}"
        )
    rows, cols, depth = _extents(acc, a, b)
    accs, left, right = (
        _grid(x, *shape) for x, shape in ((acc, (rows, cols)), (a, (rows, depth)), (b, (depth, cols)))
    )
    for k in range(depth):
        for i in range(rows):
            for j in range(cols) if i % 2 == 0 else reversed(range(cols)):
                accs[i][j] = mma(left[i][k], right[k][j], accs[i][j])
    if _is_nested(acc):
        return accs  # type: ignore[return-value]
    every = [f for line in accs for f in line]
    return every if isinstance(acc, (list, tuple)) else every[0]  # type: ignore[return-value]


def _is_nested(fragments: Fragments) -> bool:
    return isinstance(fragments, (list, tuple)) and isinstance(fragments[0], (list, tuple))


def _extents(acc: Fragments, a: Fragments, b: Fragments) -> tuple[int, int, int]:
    """(rows of acc, columns of acc, depth); OperandError if the three do not match."""
    of_acc, of_a, of_b = (len(flat(x)) for x in (acc, a, b))
    hint = ""
    for rows in range(1, of_acc + 1):
        cols, depth = of_acc // rows, of_a // rows
        fits = rows * cols == of_acc and rows * depth == of_a and depth * cols == of_b
        if fits and all(
            _has_shape(x, *shape)
            for x, shape in ((acc, (rows, cols)), (a, (rows, depth)), (b, (depth, cols)))
        ):
            if min(rows, cols, depth) == 1 or any(map(_is_nested, (acc, a, b))):
                return rows, cols, depth
            hint = f": if a is {rows}x{depth} and b {depth}x{cols}, give lists of rows"
    raise OperandError(
        f"acc, a and b must be rows x columns, rows x depth and depth x columns of fragments; they "
        f"are {_shape(acc)}, {_shape(a)} and {_shape(b)}{hint}"
    )


def _has_shape(fragments: Fragments, rows: int, cols: int) -> bool:
    if not _is_nested(fragments):
        return True
    return len(fragments) == rows and all(len(line) == cols for line in fragments)


def _shape(fragments: Fragments) -> str:
    if _is_nested(fragments):
        widths = sorted({len(line) for line in fragments})
        return f"{len(fragments)}x{'/'.join(map(str, widths))}"
    return f"a list of {len(fragments)}" if isinstance(fragments, (list, tuple)) else "one fragment"


def _grid(fragments: Fragments, rows: int, cols: int) -> Grid:
    every = flat(fragments)
    return [every[i * cols : (i + 1) * cols] for i in range(rows)]


# -- results as operands ------------------------------------------------------------------------


def as_operand(fragments: Fragments, operand: Operand, *, transposed: bool = False) -> Any:
    """Accumulators as fragments of `operand` of the next product, without exchange between threads.

    Parameters
    ----------
    fragments : fragment or list
        One, a list of fragments side by side, or a list of such rows; converted to the operand's
        type.
    operand : operand
        `mma.a` or `mma.b` of the next product.
    transposed : bool
        The operand is the transpose of the accumulators.

    Returns
    -------
    fragment or list
        One fragment, or several arranged as `ldmatrix` returns them.

    Raises
    ------
    OperandError
        Threads do not hold what they need, or the fragments do not fill whole operands.

    Examples
    --------
    Two 16 x 8 accumulators side by side are the 16 x 16 operand A of the next product:

    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> @tc.kernel
    ... def doubled(x: tc.Array, identity: tc.Array, d: tc.Array):
    ...     acc = [tc.load_elements(x, mma.d, origin=(0, 8 * j)) for j in range(2)]
    ...     a = tc.as_operand([2 * part for part in acc], mma.a)
    ...     b = tc.load_elements(identity, mma.b)
    ...     tc.store_elements(d, mma(a, b, mma.d.zeros()))
    >>> x = np.arange(256, dtype=np.float32).reshape(16, 16)
    >>> d = np.zeros((16, 8), np.float32)
    >>> doubled[1, 32](x, np.eye(16, 8, dtype=np.float16), d)
    >>> bool((d == 2 * x[:, :8]).all())
    True
    """
    rows = [list(row) for row in fragments] if _is_nested(fragments) else [flat(fragments)]
    sources = [flat(row) for row in rows]
    layouts = tuple(tuple(layout_of(f) for f in row) for row in sources)
    target = layout_of(operand)
    plan = _rearranged(layouts, target, transposed)
    if isinstance(plan, str):
        raise OperandError(plan)
    elements = [[f.elements() for f in row] for row in sources]
    blocks = [
        [
            of_converted(operand, target, [elements[i][j][slot] for i, j, slot in registers])
            for registers in row
        ]
        for row in plan
    ]
    if len(blocks) == 1 or len(blocks[0]) == 1:
        every = [block for row in blocks for block in row]
        return every[0] if len(every) == 1 else every
    return blocks


Places = tuple[tuple[int, int, int], ...]  # (row, column, slot) of the sources, for each slot


@cache
def _rearranged(
    sources: tuple[tuple[Layout, ...], ...], target: Layout, transposed: bool
) -> list[list[Places]] | str:
    """Find the elements of each block of `target`; or the reason why it cannot."""
    first = sources[0][0]
    what = f"{target.name}, {target.rows}x{target.cols},"
    if any(layout.of_type(first.dtype) != first for row in sources for layout in row) or any(
        len(row) != len(sources[0]) for row in sources
    ):
        return f"{what} is made of equally many fragments of one layout in each row"
    rows, cols = len(sources) * first.rows, len(sources[0]) * first.cols
    rows, cols = (cols, rows) if transposed else (rows, cols)
    if rows % target.rows or cols % target.cols:
        return f"{what} does not divide the {rows}x{cols} elements of the fragments given"
    if first.threads != target.threads:
        return (
            f"{what} is held by {target.threads} threads, {first.name} by {first.threads}: store "
            "it to shared memory and load it from there"
        )
    held = np.concatenate(
        [
            first.coords + np.array((i * first.rows, j * first.cols), np.int32)
            for i in range(len(sources))
            for j in range(len(sources[0]))
        ],
        axis=1,
    )
    held = np.ascontiguousarray(held[..., ::-1]) if transposed else held
    plan: list[list[Places]] = []
    for row in range(0, rows, target.rows):
        plan.append([])
        for col in range(0, cols, target.cols):
            slots = slots_of(held, target.coords + np.array((row, col), np.int32))
            if slots is None:
                return _advice(sources, target, transposed, what)
            width = len(sources[0])
            plan[-1].append(
                tuple((s // first.slots // width, s // first.slots % width, s % first.slots) for s in slots)
            )
    return plan


def _advice(sources: Sequence[Sequence[Layout]], target: Layout, transposed: bool, what: str) -> str:
    first = sources[0][0]
    turn = ""
    if not transposed and (first.rows % target.cols == 0 or target.cols % first.rows == 0):
        square = ((first,) * max(target.rows // first.cols, 1),) * max(target.cols // first.rows, 1)
        if not isinstance(_rearranged(square, target, True), str):
            turn = "; its transpose would fit: transposed=True"
    return (
        f"{what} needs elements that other threads hold in {first.name}: store it to shared memory "
        f"and load it with tc.ldmatrix{turn}"
    )
