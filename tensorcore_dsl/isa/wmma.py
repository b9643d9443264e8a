"""`wmma.load`, `wmma.mma` and `wmma.store` (9.7.14.4).

The manual leaves the layout of fragments unspecified. The table has that of sm_90, measured on an
H200: `mma` fragments side by side. A and B of f16 hold 16 elements per thread; where the matrix has
fewer, elements are held several times. Loads give equal copies; if copies differ, the first one is
used. m8n32k16 is computed as its transpose, m32n8k16.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Requires
from tensorcore_dsl.isa.access import effects_of, parse_accesses
from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.effects import WARP
from tensorcore_dsl.isa.generic import memories
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.layout import Formula, Layout

from tensorcore_dsl.isa.fragments import (  # isort: skip
    a_formula,
    b_formula,
    c_formula,
    checked,
    multiply,
    operand,
    size,
)

LOAD_SECTION, STORE_SECTION, MMA_SECTION = "9.7.14.4.3", "9.7.14.4.4", "9.7.14.4.5"
NOTE = "fragments are unspecified; the layout is that of sm_90"
MEASURED = ("m16n16k16", "m8n32k16", "m32n8k16")


# -- fragments ---------------------------------------------------------------------------------


def swapped(formula: Formula) -> Formula:
    """The formula of the transposed matrix."""

    def element(thread: Any, slot: Any) -> tuple[Any, Any]:
        row, col = formula(thread, slot)
        return col, row

    return element


def stacked(formula: Formula, slots: int, down: int, across: int) -> Formula:
    """Fragments of `slots` slots in sequence, each shifted by (down, across)."""

    def element(thread: Any, slot: Any) -> tuple[Any, Any]:
        row, col = formula(thread, slot % slots)
        return row + down * (slot // slots), col + across * (slot // slots)

    return element


def _formula(role: str, m: int, n: int, k: int, e: int) -> Formula:
    if n == 32:
        other_role = {"a": "b", "b": "a"}.get(role, role)
        return swapped(_formula(other_role, n, m, k, e))
    if role == "a":
        rows = min(m, 16)
        return stacked(a_formula(rows, e), rows * k // 32, 16, 0)
    if role == "b":
        return stacked(b_formula(e), 8 * k // 32, 0, 8)
    return c_formula if n == 8 else stacked(c_formula, 4, 0, 8)


@cache
def fragment(role: str, shape: str, dtype: str) -> Layout:
    """The layout of operand a, b or c (d) of a shape."""
    m, n, k = size(shape)
    rows, cols = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    e = dtypes.named(dtype).per_register
    formula = _formula(role, m, n, k, e)
    copies = 512 // (rows * cols) if role in "ab" and dtype == "f16" else 1
    if copies > 1:
        formula = stacked(formula, rows * cols // 32, 0, 0)
    return checked(f"wmma.{role}.{shape}.{dtype}", rows, cols, dtype, formula, copies=copies)


# -- semantics ---------------------------------------------------------------------------------


def _elements(instr: Instruction, layout: Layout, stride: np.ndarray) -> np.ndarray:
    """(slots, T) offsets in elements."""
    row, col = layout.coords[..., 0].T, layout.coords[..., 1].T
    outer, inner = (row, col) if instr.params["order"] == "row" else (col, row)
    warps = len(stride) // 32
    return np.asarray(np.tile(outer, warps) * stride + np.tile(inner, warps))


def _stride(ctx: Context, instr: Instruction, layout: Layout, strides: tuple[Any, ...]) -> np.ndarray:
    """(T,) leading dimension in elements."""
    default = layout.cols if instr.params["order"] == "row" else layout.rows
    stride = np.asarray(strides[0] if strides else default).astype(np.int64)
    return np.broadcast_to(stride, (ctx.threads,))


def _addresses(
    ctx: Context, instr: Instruction, layout: Layout, address: Any, strides: tuple[Any, ...]
) -> tuple[np.ndarray, int]:
    """(words, T) addresses, and bytes per word: one element, or 32 bits of sub-byte elements."""
    bits = layout.dtype.storage_bits
    offsets = _elements(instr, layout, _stride(ctx, instr, layout, strides))
    if bits < 8:
        offsets, width = offsets[:: layout.per_register] * bits // 8, 4
    else:
        offsets, width = offsets * bits // 8, bits // 8
    base = np.broadcast_to(address, (ctx.threads,))
    return (base + offsets.astype(base.dtype)).astype(base.dtype), width


def load(ctx: Context, instr: Instruction, address: Any, *stride: Any) -> np.ndarray:
    """wmma.load: every thread reads its elements."""
    layout = instr.results[0].layout
    assert layout is not None
    ctx.whole_warps()
    words: Any = None
    for memory, lanes, base in memories(ctx, instr, address):
        addresses, width = _addresses(ctx, instr, layout, base, stride)
        loaded = np.stack([memory.load(lanes, start, width, 1)[0] for start in addresses])
        words = loaded if words is None else np.where(lanes.active, loaded, words)
    if width >= 4:
        return np.asarray(words)
    per = 4 // width
    elements = words.reshape(-1, per, ctx.threads).astype(np.uint32)
    shifts = (8 * width * np.arange(per, dtype=np.uint32))[None, :, None]
    return np.asarray(np.bitwise_or.reduce(elements << shifts, axis=1))


def store(ctx: Context, instr: Instruction, address: Any, value: Any, *stride: Any) -> None:
    """wmma.store: every thread writes its elements."""
    layout = instr.operand("r").layout
    assert layout is not None
    ctx.whole_warps()
    words = np.asarray(value).reshape(layout.registers, ctx.threads)
    for memory, lanes, base in memories(ctx, instr, address):
        addresses, width = _addresses(ctx, instr, layout, base, stride)
        per = max(4 // width, 1)
        for slot, start in enumerate(addresses):
            word = words[slot // per]
            if per > 1:
                word = (word >> np.uint32(8 * width * (slot % per))).astype(f"u{width}")
            memory.store(lanes, start, word[None])


# -- the table ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fragments:
    """Loads and stores of the fragments of several shapes."""

    shapes: str
    ab: str  # element types of A and B
    c: str  # element types of C and D
    orders: str  # orders of A and B in memory; C may have either order
    requires: str
    ptx: tuple[int, int]

    opcode = "wmma"

    def instructions(self) -> Iterator[Instruction]:
        orders = {"a": "row col", "b": "row col", "c": "row col"}
        if self.orders != "row col":
            orders |= {"a": self.orders.split("/")[0], "b": self.orders.split("/")[1]}
        for shape, space, tight in itertools.product(
            self.shapes.split(), (".global", ".shared", ""), (False, True)
        ):
            for role, types in (("a", self.ab), ("b", self.ab), ("c", self.c)):
                for order, dtype in itertools.product(orders[role].split(), types.split()):
                    yield self._load(role, shape, order, space, dtype, tight)
            for order, dtype in itertools.product(("row", "col"), self.c.split()):
                yield self._store(shape, order, space, dtype, tight)

    def _common(self, shape: str, order: str, space: str, tight: bool, ptx: str) -> dict[str, Any]:
        params: dict[str, Any] = dict(group="memory", shape=shape, order=order, space=space[1:])
        verb = ptx.split(".")[1]
        accesses = parse_accesses(f"{verb} p {space[1:] or 'generic'} lines")
        return dict(
            mnemonic=f"{ptx}.packed" if tight else ptx,
            requires=Requires(self.requires),
            effects=WARP | effects_of(accesses),
            accesses=accesses,
            version=self.ptx,
            params=params | ({"ptx": ptx} if tight else {}),
            note=NOTE,
        )

    def _load(self, role: str, shape: str, order: str, space: str, dtype: str, tight: bool) -> Instruction:
        ptx = f"wmma.load.{role}.sync.aligned.{order}.{shape}{space}.{dtype}"
        return Instruction(
            results=(operand("r", fragment(role, shape, dtype)),),
            operands=(_address(space), *_stride_operand(tight)),
            section=LOAD_SECTION,
            execute=load,
            template=f"!{ptx} {{r}}, {{p}}" + ("" if tight else ", {stride}"),
            **self._common(shape, order, space, tight, ptx),
        )

    def _store(self, shape: str, order: str, space: str, dtype: str, tight: bool) -> Instruction:
        ptx = f"wmma.store.d.sync.aligned.{order}.{shape}{space}.{dtype}"
        return Instruction(
            results=(),
            operands=(_address(space), operand("r", fragment("c", shape, dtype)), *_stride_operand(tight)),
            section=STORE_SECTION,
            execute=store,
            template=f"!{ptx} {{p}}, {{r}}" + ("" if tight else ", {stride}"),
            **self._common(shape, order, space, tight, ptx),
        )


def _address(space: str) -> Operand:
    return Operand("p", dtypes.u32 if space == ".shared" else dtypes.u64, 1, "addr")


def _stride_operand(tight: bool) -> tuple[Operand, ...]:
    return () if tight else (Operand("stride", dtypes.u32),)


@dataclass(frozen=True)
class WmmaFamily:
    """Instructions of wmma.mma; `text` is the mnemonic with {l}, {s}, {d}, {a}, {b}, {c} and {v}.

    {l} is the layout, {s} the shape, {v} one of `values` of the option `modifier`.
    """

    shapes: str
    dabc: str
    text: str
    requires: str
    ptx: tuple[int, int]
    layouts: tuple[str, ...] = ("row.row", "row.col", "col.row", "col.col")
    modifier: str = ""
    values: tuple[str, ...] = ("",)

    opcode = "wmma"

    def instructions(self) -> Iterator[Instruction]:
        product = itertools.product(self.layouts, self.shapes.split(), self.dabc.split(), self.values)
        for layout, shape, types, value in product:
            d, a, b, c = types.split("/")
            params: dict[str, Any] = dict(family="wmma", shape=shape, layout=layout, d=d, a=a, b=b, c=c)
            if value:
                params[self.modifier] = value.strip(".")
            yield Instruction(
                mnemonic=self.text.format(l=layout, s=shape, d=d, a=a, b=b, c=c, v=value),
                results=(operand("d", fragment("c", shape, d)),),
                operands=tuple(
                    operand(x, fragment(x, shape, t)) for x, t in zip("abc", (a, b, c), strict=True)
                ),
                requires=Requires(self.requires),
                version=self.ptx,
                section=MMA_SECTION,
                execute=multiply,
                effects=WARP,
                tied="c" if c == d else None,
                params=params,
                note=NOTE,
            )


ALL = " ".join(MEASURED)
HALF = "f16/f16/f16/f16 f16/f16/f16/f32 f32/f16/f16/f16 f32/f16/f16/f32"
HEAD = "wmma.mma.sync.aligned.{l}.{s}"
TYPED = f"{HEAD}.{{d}}.{{a}}.{{b}}.{{c}}"
BITS = ".sync.aligned.{l}.{s}.s32.b1.b1.s32"
ONLY = ("row.col",)
SATURATE = ("", ".satfinite")

# PTX 6.0 and 6.1 have wmma without .aligned; 6.3 requires it.
# fmt: off
ROWS = (
    #         shapes       a/b              c               memory     requires ptx
    Fragments(ALL,         "f16",           "f16 f32",      "row col", "70",    (6, 3)),
    Fragments(ALL,         "s8 u8",         "s32",          "row col", "72",    (6, 3)),
    Fragments(ALL,         "bf16",          "",             "row col", "80",    (7, 0)),
    Fragments("m16n16k8",  "tf32",          "f32",          "row col", "80",    (7, 0)),
    Fragments("m8n8k4",    "f64",           "f64",          "row col", "80",    (7, 0)),
    Fragments("m8n8k32",   "s4 u4",         "s32",          "row/col", "75",    (6, 3)),
    Fragments("m8n8k128",  "b1",            "s32",          "row/col", "75",    (6, 3)),
    #          shapes      d/a/b/c                              text                          requires ptx
    WmmaFamily(ALL,        HALF,                                HEAD + ".{d}.{c}",            "70",    (6, 3)),
    WmmaFamily(ALL,        "s32/s8/s8/s32 s32/u8/u8/s32",       TYPED + "{v}",                "72",    (6, 3), modifier="satfinite", values=SATURATE),
    WmmaFamily(ALL,        "f32/bf16/bf16/f32",                 TYPED,                        "80",    (7, 0)),
    WmmaFamily("m16n16k8", "f32/tf32/tf32/f32",                 TYPED,                        "80",    (7, 0)),
    WmmaFamily("m8n8k4",   "f64/f64/f64/f64",                   TYPED.replace("{s}", "{s}{v}"), "80",  (7, 0), modifier="rounding", values=("", ".rn", ".rz", ".rm", ".rp")),
    WmmaFamily("m8n8k32",  "s32/s4/s4/s32 s32/u4/u4/s32",       TYPED + "{v}",                "75",    (6, 3), ONLY, "satfinite", SATURATE),
    WmmaFamily("m8n8k128", "s32/b1/b1/s32",                     "wmma.mma{v}.popc" + BITS,    "75",    (6, 3), ONLY, "operation", (".xor",)),
    WmmaFamily("m8n8k128", "s32/b1/b1/s32",                     "wmma.mma{v}.popc" + BITS,    "80",    (7, 1), ONLY, "operation", (".and",)),
)
# fmt: on
