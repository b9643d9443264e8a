"""`mma.sync` with dense operands (9.7.14.5): one line per family of shapes and types."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorcore_dsl.arch import Requires
from tensorcore_dsl.isa.effects import WARP
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.layout import Layout

from tensorcore_dsl.isa.fragments import (  # isort: skip
    checked,
    fragment,
    multiply,
    operand,
    pairs,
    size,
    square,
)

SECTION = "9.7.14.5.14"

FP8 = square(("e4m3", "e5m2"))
FP864 = square(("e4m3", "e5m2", "e3m2", "e2m3", "e2m1"))
INT8 = square(("u8", "s8"))
INT4 = square(("u4", "s4"))
SAME_FLOAT = "f16/f16 f32/f32"
LAYOUTS = ("row.row", "row.col", "col.row", "col.col")


@dataclass(frozen=True)
class Family:
    """Instructions that differ in shape, types and one modifier.

    `dc` and `ab` are pairs of types, d/c and a/b. `modifier` names the option that `values` set.
    Saturation and `.kind` precede the types in the mnemonic; a rounding or bit operation follows
    them.
    """

    shapes: str
    dc: str
    ab: str
    requires: str
    ptx: tuple[int, int]
    modifier: str = ""
    values: tuple[str, ...] = ("",)
    layouts: tuple[str, ...] = ("row.col",)
    note: str = ""

    opcode = "mma"
    is_sparse = False

    def instructions(self) -> Iterator[Instruction]:
        product = itertools.product(
            self.shapes.split(), self.layouts, pairs(self.dc), pairs(self.ab), self.values
        )
        for shape, layout, (d, c), (a, b), value in product:
            yield self._instruction(shape, layout, d, a, b, c, value)

    def _instruction(
        self, shape: str, layout: str, d: str, a: str, b: str, c: str, value: str
    ) -> Instruction:
        before = value if self.modifier in ("satfinite", "kind") else ""
        after = value if self.modifier in ("rounding", "operation") else ""
        params: dict[str, Any] = dict(shape=shape, layout=layout, d=d, a=a, b=b, c=c)
        params |= option(self.modifier, value)
        layouts = (
            quad_layouts(layout, d, c)
            if a == "f16" and shape == "m8n8k4"
            else fragment_layouts(shape, d, a, b, c, 8 if self.modifier == "kind" else 0, self.is_sparse)
        )
        names = dict(zip("dabc", layouts, strict=True))
        return Instruction(
            mnemonic=f"mma.sync.aligned.{shape}.{layout}{before}.{d}.{a}.{b}.{c}{after}",
            results=(operand("d", names["d"]),),
            operands=tuple(operand(x, names[x]) for x in "abc"),
            requires=Requires(self.requires),
            version=self.ptx,
            section=SECTION,
            execute=multiply,
            effects=WARP,
            tied="c" if c == d else None,
            params=params,
            note=self.note,
        )


def option(modifier: str, value: str) -> dict[str, str]:
    """The option that a modifier sets, without PTX's dots: `.xor.popc` is the operation xor."""
    word = value.lstrip(".").removesuffix(".popc").removeprefix("kind::")
    return {modifier: word} if word else {}


def fragment_layouts(
    shape: str, d: str, a: str, b: str, c: str, container: int = 0, is_sparse: bool = False
) -> tuple[Layout, Layout, Layout, Layout]:
    """Layouts of D, A (of its stored columns), B and C.

    `container` is the register bits that a small float occupies.
    """
    m, n, k = size(shape)
    return (
        fragment("C", m, n, d),
        fragment("A", m, k // 2 if is_sparse else k, a, container if a == "e2m1" else 0),
        fragment("B", k, n, b, container if b == "e2m1" else 0),
        fragment("C", m, n, c),
    )


# m8n8k4 on f16 (9.7.14.5.1): lanes 4q..4q+3 and 4q+16..4q+19 compute product q of the warp's four.
def _quad_row(lane: Any) -> Any:
    return lane % 4 + 4 * (lane // 16)


def _quad_run(lane: Any, slot: Any) -> Any:
    return slot + 4 * (lane // 16)


QUAD = {
    ("A", "row"): lambda lane, slot: (_quad_row(lane), slot),
    ("A", "col"): lambda lane, slot: (_quad_run(lane, slot), lane % 4),
    ("B", "row"): lambda lane, slot: (lane % 4, _quad_run(lane, slot)),
    ("B", "col"): lambda lane, slot: (slot, _quad_row(lane)),
    ("C", "f16"): lambda lane, slot: (_quad_row(lane), slot),
    ("C", "f32"): lambda lane, slot: (
        lane % 2 + 2 * (slot // 2 % 2) + 4 * (lane // 16),
        4 * (slot // 4) + 2 * (lane // 2 % 2) + slot % 2,
    ),
}


def quad_layouts(layout: str, d: str, c: str) -> tuple[Layout, Layout, Layout, Layout]:
    """Layouts of D, A, B and C of m8n8k4 on f16, each holding four matrices."""
    a, b = layout.split(".")

    def quad(role: str, kind: str, rows: int, cols: int, dtype: str) -> Layout:
        name = f"mma.{role}.{rows}x{cols}.{dtype}.quad" + (f".{kind}" if role != "C" else "")
        return checked(name, rows, cols, dtype, QUAD[role, kind], copies=4)

    return (
        quad("C", d, 8, 8, d),
        quad("A", a, 8, 4, "f16"),
        quad("B", b, 4, 8, "f16"),
        quad("C", c, 8, 8, c),
    )


SATURATE = ("", ".satfinite")
ROUND = ("", ".rn", ".rz", ".rm", ".rp")
KIND = (".kind::f8f6f4",)
ON_SM_100A = "the assembler also takes pairs of e4m3 and e5m2 on sm_100a"

# fmt: off
ROWS = (
    #      shapes                   d/c                          a/b                   requires ptx      modifier     values
    Family("m8n8k4",                "f16/f16 f32/f16 f32/f32",   "f16/f16",            "70",    (6, 4),  layouts=LAYOUTS),
    Family("m16n8k8",               SAME_FLOAT,                  "f16/f16",            "75",    (6, 5)),
    Family("m16n8k16",              SAME_FLOAT,                  "f16/f16",            "80",    (7, 0)),
    Family("m16n8k8 m16n8k16",      "f32/f32",                   "bf16/bf16",          "80",    (7, 0)),
    Family("m16n8k4 m16n8k8",       "f32/f32",                   "tf32/tf32",          "80",    (7, 0)),
    Family("m16n8k32",              "f32/f32",                   FP8,                  "89",    (8, 4)),
    Family("m16n8k32",              "f16/f16",                   FP8,                  "89",    (8, 7)),
    Family("m16n8k16",              SAME_FLOAT,                  FP8,                  "89",    (8, 7)),
    Family("m16n8k32",              SAME_FLOAT,                  FP864,                "120f",  (8, 7),  "kind",      KIND, note=ON_SM_100A),
    Family("m8n8k4",                "f64/f64",                   "f64/f64",            "80",    (7, 0),  "rounding",  ROUND),
    Family("m16n8k4 m16n8k8 m16n8k16", "f64/f64",                "f64/f64",            "90",    (7, 8),  "rounding",  ROUND),
    Family("m8n8k16",               "s32/s32",                   INT8,                 "75",    (6, 5),  "satfinite", SATURATE),
    Family("m16n8k16 m16n8k32",     "s32/s32",                   INT8,                 "80",    (7, 0),  "satfinite", SATURATE),
    Family("m8n8k32",               "s32/s32",                   INT4,                 "75",    (6, 5),  "satfinite", SATURATE),
    Family("m16n8k32 m16n8k64",     "s32/s32",                   INT4,                 "80",    (7, 0),  "satfinite", SATURATE),
    Family("m8n8k128",              "s32/s32",                   "b1/b1",              "75",    (7, 0),  "operation", (".xor.popc",)),
    Family("m16n8k128 m16n8k256",   "s32/s32",                   "b1/b1",              "80",    (7, 0),  "operation", (".xor.popc",)),
    Family("m8n8k128 m16n8k128 m16n8k256", "s32/s32",            "b1/b1",              "80",    (7, 1),  "operation", (".and.popc",)),
)
# fmt: on
