"""Fragments of matrix products: layout formulas, and products of register images.

A formula maps (thread, slot) to the element held there. Both may be integers, arrays or run-time
values of a kernel, so formulas use only + - * // and %. With e elements per register, `lane // 4`
is a row of A or a column of B, `lane % 4` selects e neighbouring columns of A or rows of B, and
successive registers advance first through the rows of A in steps of 8, then by 4e columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.layout import Formula, Layout

Shape = tuple[int, int, int]


def a_formula(rows: int, e: int) -> Formula:
    """A with 8 or 16 rows: slots 0 to e - 1 are neighbours in one row."""
    blocks = rows // 8

    def element(thread: Any, slot: Any) -> tuple[Any, Any]:
        row = thread // 4 + 8 * (slot // e % blocks)
        return row, slot % e + e * (thread % 4) + 4 * e * (slot // (e * blocks))

    return element


def b_formula(e: int) -> Formula:
    """B, as (k, n)."""

    def element(thread: Any, slot: Any) -> tuple[Any, Any]:
        return slot % e + e * (thread % 4) + 4 * e * (slot // e), thread // 4

    return element


def c_formula(thread: Any, slot: Any) -> tuple[Any, Any]:
    """C and D: pairs of columns, then rows in steps of 8."""
    return thread // 4 + 8 * (slot // 2), 2 * (thread % 4) + slot % 2


@cache
def fragment(role: str, rows: int, cols: int, dtype: str, container: int = 0) -> Layout:
    """The layout of A, B or C of `mma`, cached: instructions of equal shape and type share it."""
    element = dtypes.named(dtype)
    e = 32 // container if container else element.per_register
    formula = {"A": a_formula(rows, e), "B": b_formula(e), "C": c_formula}[role]
    width = f"in{container}" if container else ""
    return checked(
        f"mma.{role}.{rows}x{cols}.{dtype}{width}",
        rows,
        cols,
        dtype,
        formula,
        container=container,
        any_type=role == "C",
    )


def checked(name: str, rows: int, cols: int, dtype: str, formula: Formula, **more: Any) -> Layout:
    """A layout whose formula has been checked (`Layout.check`)."""
    layout = unchecked(name, rows, cols, dtype, formula, **more)
    layout.check()
    return layout


def unchecked(name: str, rows: int, cols: int, dtype: str, formula: Formula, **more: Any) -> Layout:
    """A layout that skips the check because a wider layout with the same formula passed it."""
    return Layout(name, rows, cols, dtypes.named(dtype), formula, **more)


def operand(name: str, layout: Layout) -> Operand:
    """An operand whose registers hold `layout`."""
    return Operand(name, layout.dtype, layout.registers, "reg", layout)


def size(shape: str) -> Shape:
    """("m16n8k16") -> (16, 8, 16)."""
    m, after_m = shape[1:].split("n")
    n, k = after_m.split("k")
    return int(m), int(n), int(k)


@cache
def prepared(instr: Instruction) -> tuple[Any, Any]:
    """(Product, FragmentMaps) of an instruction."""
    from tensorcore_dsl.numerics.products import FragmentMaps, Product

    p = instr.params
    m, n, k = size(p["shape"])
    product = Product(
        p.get("family", "mma"),
        m,
        n,
        k,
        p["a"],
        p["b"],
        p["c"],
        p["d"],
        operation=p.get("operation", "mul"),
        rounding=p.get("rounding", "rn"),
        satfinite=bool(p.get("satfinite")),
        sparse=bool(p.get("sparse")),
        scale_kind=p.get("scale_kind"),
        scale_vec=int(p.get("scale_vec", 0)),
        scale_type=p.get("scale_type"),
    )
    return product, FragmentMaps(_map(instr, "a"), _map(instr, "b"), coords(instr, "c"), coords(instr, "d"))


def coords(instr: Instruction, name: str) -> np.ndarray:
    """(threads, slots, 2): the element of the matrix in each slot of an operand."""
    layout = instr.operand(name).layout
    assert layout is not None, f"{instr.mnemonic}: {name} is not a fragment"
    return layout.coords


def _map(instr: Instruction, name: str) -> np.ndarray | None:
    """Coordinates of an operand in registers; None if it lies in shared memory."""
    names = [o.name for o in instr.operands]
    return coords(instr, name) if name in names else None


def multiply(ctx: Context, instr: Instruction, a: Any, b: Any, c: Any, **extra: Any) -> np.ndarray:
    """d = a * b + c on the register images of all active warps."""
    from tensorcore_dsl.numerics import products

    product, maps = prepared(instr)
    images = [image(ctx, instr, name, x) for name, x in zip("abc", (a, b, c), strict=True)]
    return products.fragments(product, ctx.arch, maps, *images, active=ctx.whole_warps(), **extra)


class RegisterProducts(Protocol):
    """Prepared products whose operands stay in the same registers."""

    uses: Sequence[Any]

    def bound(self, active: np.ndarray, left: np.ndarray, number: int) -> Any:
        """Return the compiled function that computes them in blocks (`numerics.products.Uses.bound`)."""

    def finish(self, left: np.ndarray) -> None:
        """Compute the products marked in `left`, (uses, warps) bool."""


def in_place(ctx: Context, instr: Instruction, uses: Sequence[Sequence[np.ndarray]]) -> RegisterProducts:
    """`multiply` of many (a, b, c, d), the memory of registers, without dependences between them."""
    from tensorcore_dsl.numerics import products

    product, maps = prepared(instr)
    images: Any = [[x.reshape(-1, ctx.threads) for x in places] for places in uses]
    return products.in_place(product, ctx.arch, maps, images)


def are_blocks(ctx: Context, instr: Instruction) -> bool:
    """Return whether `in_place` computes the instruction in blocks."""
    from tensorcore_dsl.numerics import products

    product, maps = prepared(instr)
    return products.are_blocks(product, ctx.arch, maps, ctx.threads)


def image(ctx: Context, instr: Instruction, name: str, value: Any) -> np.ndarray:
    """The operand as (registers, T); a constant is broadcast to all threads."""
    target = instr.operand(name)
    word = np.uint64 if target.register_bits == 64 else np.uint32
    shape = target.registers, ctx.threads
    if isinstance(value, np.ndarray) and value.shape == shape and value.dtype == word:
        return value
    array = np.asarray(value).astype(word, copy=False)
    if array.ndim < 2:
        array = array[None] if array.ndim else array[None, None]
    return np.broadcast_to(array, shape)


def pairs(text: str) -> list[tuple[str, str]]:
    """`f16/f32 f32/f32` as a list of pairs."""
    return [(a, b) for a, b in (part.split("/") for part in text.split())]


def square(names: Sequence[str]) -> str:
    """Every pair of `names`, in the notation of `pairs`."""
    return " ".join(f"{a}/{b}" for a in names for b in names)
