"""`mma` with block scaling, dense and sparse (9.7.14.3).

Scales are bytes of a register, selected by {byte-id, thread-id}. For A, lanes 2 * thread-id (row g)
and 2 * thread-id + 1 (row g + 8) of quad g hold them; for B, lane thread-id of quad n holds them.
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
from tensorcore_dsl.isa import mma, sparse
from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.effects import WARP
from tensorcore_dsl.isa.fragments import checked, multiply, operand, pairs
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.isa.warp import warps
from tensorcore_dsl.layout import Layout

ROWS_A, COLUMNS_B = np.arange(16), np.arange(8)
_SCALES = "{scale_a}, {{{byte_a}, {thread_a}}}, {scale_b}, {{{byte_b}, {thread_b}}}"
# Allowed byte-ids by the number of scales per row (table 37).
_BYTES = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}


def scales(
    ctx: Context,
    count: int,
    scale_a: Any,
    byte_a: int,
    thread_a: int,
    scale_b: Any,
    byte_b: int,
    thread_b: int,
) -> dict[str, np.ndarray]:
    """Scale matrices (warps, 16, count) and (warps, count, 8) from the registers."""
    lanes_a = 4 * (ROWS_A % 8) + 2 * int(thread_a) + ROWS_A // 8
    lanes_b = 4 * COLUMNS_B + int(thread_b)
    a = _bytes(warps(ctx, scale_a)[:, lanes_a], int(byte_a), count)
    b = _bytes(warps(ctx, scale_b)[:, lanes_b], int(byte_b), count)
    return {"scale_a": a, "scale_b": b.swapaxes(1, 2)}


def _bytes(words: np.ndarray, first: int, count: int) -> np.ndarray:
    shifts = 8 * np.arange(first, first + count, dtype=np.uint32)
    return (np.asarray(words, np.uint32)[..., None] >> shifts & np.uint32(0xFF)).astype(np.uint8)


@cache
def drawings(dtype: str) -> tuple[Layout, Layout]:
    """The bytes of the scales of A (rows x bytes) and of B (bytes x columns), for every thread-id."""

    def of_a(thread: Any, slot: Any) -> tuple[Any, Any]:
        return thread // 4 + 8 * (thread % 2), 4 * (thread % 4 // 2) + slot

    def of_b(thread: Any, slot: Any) -> tuple[Any, Any]:
        return 4 * (thread % 4) + slot, thread // 4

    a = "scales of A by row, byte j of thread-id t in column 4 t + j"
    b = "scales of B by column, byte j of thread-id t in row 4 t + j"
    return checked(a, 16, 8, dtype, of_a), checked(b, 16, 8, dtype, of_b)


def multiply_scaled(
    ctx: Context, instr: Instruction, a: Any, b: Any, c: Any, *extra: Any, **more: Any
) -> np.ndarray:
    """d = (a * scale_a) * (b * scale_b) + c."""
    if instr.params.get("sparse"):
        more["selection"] = sparse.selection(ctx, instr, *extra[:2])
        extra = extra[2:]
    more |= scales(ctx, int(instr.params["scale_vec"]), *extra)
    return multiply(ctx, instr, a, b, c, **more)


def scale_operands(count: int, dtype: str) -> tuple[Operand, ...]:
    """The operands scale-a-data, {byte-id-a, thread-id-a}, and the same for B."""

    def immediate(name: str, values: tuple[int, ...]) -> Operand:
        return Operand(name, dtypes.u16, 1, "imm", None, values)

    of_a, of_b = drawings(dtype)
    return (
        Operand("scale_a", dtypes.b32, drawing=of_a),
        immediate("byte_a", _BYTES[count]),
        immediate("thread_a", (0, 1)),
        Operand("scale_b", dtypes.b32, drawing=of_b),
        immediate("byte_b", _BYTES[count]),
        immediate("thread_b", (0, 1, 2, 3)),
    )


@dataclass(frozen=True)
class ScaledFamily:
    """Instructions of one `.kind`; `scale` is "scales per row/their type".

    `k` is the depth of the dense shape. `implied`: `.scale_vec` may be left out of the mnemonic.
    """

    kind: str
    k: int
    ab: str
    scale: str
    requires: str
    sparse_requires: str
    ptx: tuple[int, int]
    implied: bool

    opcode = "mma"

    def instructions(self) -> Iterator[Instruction]:
        with_vector = (True, False) if self.implied else (True,)
        for is_sparse, (a, b), explicit in itertools.product((False, True), pairs(self.ab), with_vector):
            yield self._instruction(is_sparse, a, b, explicit)

    def _instruction(self, is_sparse: bool, a: str, b: str, explicit: bool) -> Instruction:
        count, scale_type = self.scale.split("/")
        shape = f"m16n8k{self.k * 2 if is_sparse else self.k}"
        packed = self.kind != "mxf8f6f4"
        container = 0 if packed else 8
        layouts = mma.fragment_layouts(shape, "f32", a, b, "f32", container, is_sparse)
        names = dict(zip("dabc", layouts, strict=True))
        extra = sparse.metadata(shape, a, packed) if is_sparse else ()
        head = "mma" + (sparse.SORTED if is_sparse else "")
        vector = f".scale_vec::{count}X" if explicit else ""
        params: dict[str, Any] = dict(
            group="sp.block_scale" if is_sparse else "block_scale",
            shape=shape,
            a=a,
            b=b,
            c="f32",
            d="f32",
            kind=self.kind,
            scale_kind=self.kind,
            scale_vec=count,
            scale_type=scale_type,
        )
        params |= {} if explicit else {"shorthand": "shorthand"}
        params |= {"sparse": "sparse", "ordered": "ordered"} if is_sparse else {}
        return Instruction(
            mnemonic=f"{head}.sync.aligned.{shape}.row.col.kind::{self.kind}.block_scale{vector}"
            f".f32.{a}.{b}.f32.{scale_type}",
            results=(operand("d", names["d"]),),
            operands=(
                *(operand(x, names[x]) for x in "abc"),
                *extra,
                *scale_operands(int(count), scale_type),
            ),
            requires=Requires(self.sparse_requires if is_sparse else self.requires),
            version=self.ptx,
            section=sparse.SECTION if is_sparse else mma.SECTION,
            execute=multiply_scaled,
            effects=WARP,
            template=("{d}, {a}, {b}, {c}, " + ("{e}, {f}, " if is_sparse else "") + _SCALES),
            tied="c",
            params=params,
        )


E2M1 = "e2m1/e2m1"
EXACT = "120a 121a"

# fmt: off
ROWS = (
    #            kind        k   a/b        scales     requires  sparse  ptx      implied
    ScaledFamily("mxf8f6f4", 32, mma.FP864, "1/ue8m0", "120f",   "120f", (8, 7),  True),
    ScaledFamily("mxf4",     64, E2M1,      "2/ue8m0", "120f",   EXACT,  (8, 7),  True),
    ScaledFamily("mxf4nvf4", 64, E2M1,      "2/ue8m0", "120f",   EXACT,  (8, 7),  False),
    ScaledFamily("mxf4nvf4", 64, E2M1,      "4/ue4m3", "120f",   EXACT,  (8, 7),  False),
    ScaledFamily("mxf4nvf4", 64, E2M1,      "4/ue8m0", "120f",   EXACT,  (9, 1),  False),
)
# fmt: on
