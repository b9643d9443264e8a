"""The PTX manual (ISA 9.1), copied by hand: legal forms, register counts, fragment formulas.

Nothing here comes from the table under test. g is `%laneid >> 2`, t is `%laneid % 4`, i counts the
elements of a fragment, as in the manual's formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

# -- mma (9.7.14.5.14): shape, "d a b c" types, registers of d, a, b, c -----------------------------

FP8 = ("e4m3", "e5m2")
F8F6F4 = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
BYTES, NIBBLES = ("u8", "s8"), ("u4", "s4")

Registers = tuple[int, int, int, int]


def mma_forms() -> Iterator[tuple[str, Registers]]:
    """(mnemonic, registers) of every dense mma."""
    head = "mma.sync.aligned."
    for a, b in product(("row", "col"), repeat=2):
        yield f"{head}m8n8k4.{a}.{b}.f16.f16.f16.f16", (4, 2, 2, 4)
        yield f"{head}m8n8k4.{a}.{b}.f32.f16.f16.f16", (8, 2, 2, 4)
        yield f"{head}m8n8k4.{a}.{b}.f32.f16.f16.f32", (8, 2, 2, 8)
    yield f"{head}m16n8k8.row.col.f16.f16.f16.f16", (2, 2, 1, 2)
    yield f"{head}m16n8k8.row.col.f32.f16.f16.f32", (4, 2, 1, 4)
    yield f"{head}m16n8k16.row.col.f16.f16.f16.f16", (2, 4, 2, 2)
    yield f"{head}m16n8k16.row.col.f32.f16.f16.f32", (4, 4, 2, 4)
    yield f"{head}m16n8k8.row.col.f32.bf16.bf16.f32", (4, 2, 1, 4)
    yield f"{head}m16n8k16.row.col.f32.bf16.bf16.f32", (4, 4, 2, 4)
    yield f"{head}m16n8k4.row.col.f32.tf32.tf32.f32", (4, 2, 1, 4)
    yield f"{head}m16n8k8.row.col.f32.tf32.tf32.f32", (4, 4, 2, 4)
    for a, b in product(FP8, FP8):
        yield f"{head}m16n8k16.row.col.f16.{a}.{b}.f16", (2, 2, 1, 2)
        yield f"{head}m16n8k16.row.col.f32.{a}.{b}.f32", (4, 2, 1, 4)
        yield f"{head}m16n8k32.row.col.f16.{a}.{b}.f16", (2, 4, 2, 2)
        yield f"{head}m16n8k32.row.col.f32.{a}.{b}.f32", (4, 4, 2, 4)
    for a, b in product(F8F6F4, F8F6F4):
        yield f"{head}m16n8k32.row.col.kind::f8f6f4.f16.{a}.{b}.f16", (2, 4, 2, 2)
        yield f"{head}m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32", (4, 4, 2, 4)
    for rounding in ("", ".rn", ".rz", ".rm", ".rp"):
        yield f"{head}m8n8k4.row.col.f64.f64.f64.f64{rounding}", (2, 1, 1, 2)
        yield f"{head}m16n8k4.row.col.f64.f64.f64.f64{rounding}", (4, 2, 1, 4)
        yield f"{head}m16n8k8.row.col.f64.f64.f64.f64{rounding}", (4, 4, 2, 4)
        yield f"{head}m16n8k16.row.col.f64.f64.f64.f64{rounding}", (4, 8, 4, 4)
    for sat, (a, b) in product(("", ".satfinite"), product(BYTES, BYTES)):
        yield f"{head}m8n8k16.row.col{sat}.s32.{a}.{b}.s32", (2, 1, 1, 2)
        yield f"{head}m16n8k16.row.col{sat}.s32.{a}.{b}.s32", (4, 2, 1, 4)
        yield f"{head}m16n8k32.row.col{sat}.s32.{a}.{b}.s32", (4, 4, 2, 4)
    for sat, (a, b) in product(("", ".satfinite"), product(NIBBLES, NIBBLES)):
        yield f"{head}m8n8k32.row.col{sat}.s32.{a}.{b}.s32", (2, 1, 1, 2)
        yield f"{head}m16n8k32.row.col{sat}.s32.{a}.{b}.s32", (4, 2, 1, 4)
        yield f"{head}m16n8k64.row.col{sat}.s32.{a}.{b}.s32", (4, 4, 2, 4)
    for op in ("xor", "and"):
        yield f"{head}m8n8k128.row.col.s32.b1.b1.s32.{op}.popc", (2, 1, 1, 2)
        yield f"{head}m16n8k128.row.col.s32.b1.b1.s32.{op}.popc", (4, 2, 1, 4)
        yield f"{head}m16n8k256.row.col.s32.b1.b1.s32.{op}.popc", (4, 4, 2, 4)


# -- mma.sp (9.7.14.6) ------------------------------------------------------------------------------


def sparse_forms() -> Iterator[tuple[str, Registers, tuple[int, ...]]]:
    """(mnemonic, registers, sparsity selectors) of every mma.sp without block scaling."""
    for kind in ("sp", "sp::ordered_metadata"):
        head = f"mma.{kind}.sync.aligned."
        yield f"{head}m16n8k16.row.col.f16.f16.f16.f16", (2, 2, 2, 2), (0, 1, 2, 3)
        yield f"{head}m16n8k16.row.col.f32.f16.f16.f32", (4, 2, 2, 4), (0, 1, 2, 3)
        yield f"{head}m16n8k32.row.col.f16.f16.f16.f16", (2, 4, 4, 2), (0, 1)
        yield f"{head}m16n8k32.row.col.f32.f16.f16.f32", (4, 4, 4, 4), (0, 1)
        yield f"{head}m16n8k16.row.col.f32.bf16.bf16.f32", (4, 2, 2, 4), (0, 1, 2, 3)
        yield f"{head}m16n8k32.row.col.f32.bf16.bf16.f32", (4, 4, 4, 4), (0, 1)
        yield f"{head}m16n8k8.row.col.f32.tf32.tf32.f32", (4, 2, 2, 4), (0, 1, 2, 3)
        yield f"{head}m16n8k16.row.col.f32.tf32.tf32.f32", (4, 4, 4, 4), (0, 1)
        for a, b in product(FP8, FP8):
            yield f"{head}m16n8k64.row.col.f32.{a}.{b}.f32", (4, 4, 4, 4), (0,)
        for sat, (a, b) in product(("", ".satfinite"), product(BYTES, BYTES)):
            yield f"{head}m16n8k32.row.col{sat}.s32.{a}.{b}.s32", (4, 2, 2, 4), (0, 1)
            yield f"{head}m16n8k64.row.col{sat}.s32.{a}.{b}.s32", (4, 4, 4, 4), (0,)
        for sat, (a, b) in product(("", ".satfinite"), product(NIBBLES, NIBBLES)):
            yield f"{head}m16n8k64.row.col{sat}.s32.{a}.{b}.s32", (4, 2, 2, 4), (0, 1)
            yield f"{head}m16n8k128.row.col{sat}.s32.{a}.{b}.s32", (4, 4, 4, 4), (0,)
    head = "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col"
    for a, b in product(FP8, FP8):  # only the notes on targets have `.f16` for these
        yield f"{head}.f16.{a}.{b}.f16", (2, 4, 4, 2), (0,)
    head += ".kind::f8f6f4"
    for a, b in product(F8F6F4, F8F6F4):
        yield f"{head}.f16.{a}.{b}.f16", (2, 4, 4, 2), (0,)
        yield f"{head}.f32.{a}.{b}.f32", (4, 4, 4, 4), (0,)


# -- block scaling (9.7.14.3, table 37): registers, values of byte-id-a, thread-id-a, byte-id-b, ... -

Selectors = tuple[tuple[int, ...], ...]
ONE: Selectors = ((0, 1, 2, 3), (0, 1), (0, 1, 2, 3), (0, 1, 2, 3))
TWO: Selectors = ((0, 2), (0, 1), (0, 2), (0, 1, 2, 3))
FOUR: Selectors = ((0,), (0, 1), (0,), (0, 1, 2, 3))


def scaled_forms() -> Iterator[tuple[str, Registers, Selectors]]:
    """Every form with block scaling, dense and sparse."""
    for head, narrow, wide, registers in (
        ("mma.sync.aligned", "m16n8k32", "m16n8k64", (4, 4, 2, 4)),
        ("mma.sp::ordered_metadata.sync.aligned", "m16n8k64", "m16n8k128", (4, 4, 4, 4)),
    ):
        for vector, (a, b) in product(("", ".scale_vec::1X"), product(F8F6F4, F8F6F4)):
            kind = f"kind::mxf8f6f4.block_scale{vector}"
            yield f"{head}.{narrow}.row.col.{kind}.f32.{a}.{b}.f32.ue8m0", registers, ONE
        for kind, scale, values in (
            ("mxf4.block_scale", "ue8m0", TWO),
            ("mxf4.block_scale.scale_vec::2X", "ue8m0", TWO),
            ("mxf4nvf4.block_scale.scale_vec::2X", "ue8m0", TWO),
            ("mxf4nvf4.block_scale.scale_vec::4X", "ue4m3", FOUR),
            ("mxf4nvf4.block_scale.scale_vec::4X", "ue8m0", FOUR),
        ):
            text = f"{head}.{wide}.row.col.kind::{kind}.f32.e2m1.e2m1.f32.{scale}"
            yield text, registers, values


# -- wmma (9.7.14.4.1): registers of a and b by type and shape ---------------------------------------

WMMA_SHAPES = ("m16n16k16", "m8n32k16", "m32n8k16")
WMMA_AB: dict[str, dict[str, tuple[int, int]]] = {
    "f16": dict.fromkeys(WMMA_SHAPES, (8, 8)),
    "bf16": {"m16n16k16": (4, 4), "m8n32k16": (2, 8), "m32n8k16": (8, 2)},
    "u8": {"m16n16k16": (2, 2), "m8n32k16": (1, 4), "m32n8k16": (4, 1)},
    "s8": {"m16n16k16": (2, 2), "m8n32k16": (1, 4), "m32n8k16": (4, 1)},
    "tf32": {"m16n16k8": (4, 4)},
    "f64": {"m8n8k4": (1, 1)},
    "u4": {"m8n8k32": (1, 1)},
    "s4": {"m8n8k32": (1, 1)},
    "b1": {"m8n8k128": (1, 1)},
}
ORDERS = tuple(product(("row", "col"), repeat=2))


def wmma_forms() -> Iterator[tuple[str, Registers]]:
    """(mnemonic, registers of d, a, b, c) of every wmma.mma.

    The table of 9.7.14.4.1 gives f64 accumulators one register; the manual's own examples, and the
    assembler, give them two.
    """
    head = "wmma.mma.sync.aligned"
    for (a, b), shape in product(ORDERS, WMMA_SHAPES):
        where = f"{head}.{a}.{b}.{shape}"
        for d, c in product(("f16", "f32"), repeat=2):
            count = {"f16": 4, "f32": 8}
            yield f"{where}.{d}.{c}", (count[d], 8, 8, count[c])
        yield f"{where}.f32.bf16.bf16.f32", (8, *WMMA_AB["bf16"][shape], 8)
        for kind, sat in product(BYTES, ("", ".satfinite")):
            yield f"{where}.s32.{kind}.{kind}.s32{sat}", (8, *WMMA_AB[kind][shape], 8)
    for a, b in ORDERS:
        yield f"{head}.{a}.{b}.m16n16k8.f32.tf32.tf32.f32", (8, 4, 4, 8)
        for rounding in ("", ".rn", ".rz", ".rm", ".rp"):
            yield f"{head}.{a}.{b}.m8n8k4{rounding}.f64.f64.f64.f64", (2, 1, 1, 2)
    for kind, sat in product(NIBBLES, ("", ".satfinite")):
        yield f"{head}.row.col.m8n8k32.s32.{kind}.{kind}.s32{sat}", (2, 1, 1, 2)
    for op in ("xor", "and"):
        yield f"wmma.mma.{op}.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32", (2, 1, 1, 2)


# -- wgmma (9.7.15.5, 9.7.15.6) ---------------------------------------------------------------------

FLOAT_N = tuple(8 * n for n in range(1, 33))
# The syntax in 9.7.15.5.2 ends at 224; the table of shapes, 9.7.15.2, and the assembler at 256.
BYTE_N = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
LONG_N = BYTE_N


def wgmma_forms() -> Iterator[tuple[str, int]]:
    """(PTX text, registers of d) of every wgmma.mma_async; A has four registers where it has any."""
    for head, times, bits, bytes_n in (
        ("wgmma.mma_async.sync.aligned", 1, True, BYTE_N),
        ("wgmma.mma_async.sp.sync.aligned", 2, False, LONG_N),
    ):
        for n in FLOAT_N:
            yield f"{head}.m64n{n}k{16 * times}.f16.f16.f16", n // 4
            yield f"{head}.m64n{n}k{16 * times}.f32.f16.f16", n // 2
            yield f"{head}.m64n{n}k{16 * times}.f32.bf16.bf16", n // 2
            yield f"{head}.m64n{n}k{8 * times}.f32.tf32.tf32", n // 2
            for a, b in product(FP8, FP8):
                yield f"{head}.m64n{n}k{32 * times}.f16.{a}.{b}", n // 4
                yield f"{head}.m64n{n}k{32 * times}.f32.{a}.{b}", n // 2
        for n, sat, (a, b) in product(bytes_n, ("", ".satfinite"), product(BYTES, BYTES)):
            yield f"{head}.m64n{n}k{32 * times}{sat}.s32.{a}.{b}", n // 2
        if bits:
            for n in LONG_N:
                yield f"{head}.m64n{n}k256.s32.b1.b1.and.popc", n // 2


# -- fragment formulas of mma (9.7.14.5.1 to .13) ----------------------------------------------------

Element = Callable[[int, int], tuple[int, int]]  # (lane, i) -> (row, column)


def _in_quads(row: Callable[[int, int, int], int], col: Callable[[int, int, int], int]) -> Element:
    return lambda lane, i: (row(lane >> 2, lane % 4, i), col(lane >> 2, lane % 4, i))


def _upper(*ranges: tuple[int, int]) -> Callable[[int, int, int], int]:
    """groupID where i is in one of the ranges, groupID + 8 elsewhere."""
    return lambda g, t, i: g if any(a <= i < b for a, b in ranges) else g + 8


ACCUMULATOR = _in_quads(_upper((0, 2)), lambda g, t, i: (t * 2) + (i & 0x1))
SMALL_ACCUMULATOR = _in_quads(lambda g, t, i: g, lambda g, t, i: (t * 2) + i)

# (shape, bits of an element) -> A and B; C of the shape follows from its rows.
FRAGMENTS: dict[tuple[str, int], tuple[Element, Element]] = {
    ("m8n8k4", 64): (  # .2
        lambda lane, i: (lane >> 2, lane % 4),
        lambda lane, i: (lane % 4, lane >> 2),
    ),
    ("m8n8k16", 8): (  # .3
        _in_quads(lambda g, t, i: g, lambda g, t, i: (t * 4) + i),
        _in_quads(lambda g, t, i: (t * 4) + i, lambda g, t, i: g),
    ),
    ("m8n8k32", 4): (  # .4
        _in_quads(lambda g, t, i: g, lambda g, t, i: (t * 8) + i),
        _in_quads(lambda g, t, i: (t * 8) + i, lambda g, t, i: g),
    ),
    ("m8n8k128", 1): (  # .5
        _in_quads(lambda g, t, i: g, lambda g, t, i: (t * 32) + i),
        _in_quads(lambda g, t, i: (t * 32) + i, lambda g, t, i: g),
    ),
    ("m16n8k4", 32): (  # .6
        _in_quads(_upper((0, 1)), lambda g, t, i: t),
        _in_quads(lambda g, t, i: t, lambda g, t, i: g),
    ),
    ("m16n8k4", 64): (  # .6
        _in_quads(_upper((0, 1)), lambda g, t, i: t),
        _in_quads(lambda g, t, i: t, lambda g, t, i: g),
    ),
    ("m16n8k8", 16): (  # .7
        _in_quads(_upper((0, 2)), lambda g, t, i: t * 2 + (i & 0x1)),
        _in_quads(lambda g, t, i: (t * 2) + i, lambda g, t, i: g),
    ),
    ("m16n8k8", 32): (  # .7
        _in_quads(_upper((0, 1), (2, 3)), lambda g, t, i: t if i < 2 else t + 4),
        _in_quads(lambda g, t, i: t if i == 0 else t + 4, lambda g, t, i: g),
    ),
    ("m16n8k8", 64): (  # .7
        _in_quads(_upper((0, 1), (2, 3)), lambda g, t, i: t if i < 2 else t + 4),
        _in_quads(lambda g, t, i: t if i == 0 else t + 4, lambda g, t, i: g),
    ),
    ("m16n8k16", 16): (  # .8
        _in_quads(_upper((0, 2), (4, 6)), lambda g, t, i: (t * 2) + (i & 0x1) + (0 if i < 4 else 8)),
        _in_quads(lambda g, t, i: (t * 2) + (i & 0x1) + (0 if i < 2 else 8), lambda g, t, i: g),
    ),
    ("m16n8k16", 64): (  # .8
        _in_quads(
            lambda g, t, i: g if i % 2 == 0 else g + 8,
            lambda g, t, i: (i * 2) + t if i % 2 == 0 else (i * 2) - 2 + t,
        ),
        _in_quads(lambda g, t, i: t + (i * 4), lambda g, t, i: g),
    ),
    ("m16n8k16", 8): (  # .9
        _in_quads(_upper((0, 4)), lambda g, t, i: (t * 4) + (i & 0x3)),
        _in_quads(lambda g, t, i: (t * 4) + i, lambda g, t, i: g),
    ),
    ("m16n8k32", 4): (  # .10
        _in_quads(_upper((0, 8)), lambda g, t, i: (t * 8) + (i & 0x7)),
        _in_quads(lambda g, t, i: (t * 8) + (i & 0x7), lambda g, t, i: g),
    ),
    ("m16n8k32", 8): (  # .10
        _in_quads(_upper((0, 4), (8, 12)), lambda g, t, i: (t * 4) + (i & 0x3) + (0 if i < 8 else 16)),
        _in_quads(lambda g, t, i: (t * 4) + (i & 0x3) + (0 if i < 4 else 16), lambda g, t, i: g),
    ),
    ("m16n8k64", 4): (  # .11
        _in_quads(_upper((0, 8), (16, 24)), lambda g, t, i: (t * 8) + (i & 0x7) + (0 if i < 16 else 32)),
        _in_quads(lambda g, t, i: (t * 8) + (i & 0x7) + (0 if i < 8 else 32), lambda g, t, i: g),
    ),
    ("m16n8k128", 1): (  # .12
        _in_quads(_upper((0, 32)), lambda g, t, i: (t * 32) + (i & 0x1F)),
        _in_quads(lambda g, t, i: (t * 32) + i, lambda g, t, i: g),
    ),
    # .13 writes `+ i` for i < 64, which leaves the matrix's order; `i & 0x1F` is meant.
    ("m16n8k256", 1): (
        _in_quads(_upper((0, 32), (64, 96)), lambda g, t, i: (t * 32) + (i & 0x1F) + (0 if i < 64 else 128)),
        _in_quads(lambda g, t, i: (t * 32) + (i & 0x1F) + (0 if i < 32 else 128), lambda g, t, i: g),
    ),
}


def _high(lane: int, value: int) -> int:
    return value if lane < 16 else value + 4


# 9.7.14.5.1: m8n8k4 on f16, by operand and order (of A and B) or type (of C and D).
QUADS: dict[tuple[str, str], Element] = {
    ("a", "row"): lambda lane, i: (_high(lane, lane % 4), i),
    ("a", "col"): lambda lane, i: (_high(lane, i % 4), lane % 4),
    ("b", "row"): lambda lane, i: (lane % 4, _high(lane, i)),
    ("b", "col"): lambda lane, i: (i, _high(lane, lane % 4)),
    ("c", "f16"): lambda lane, i: (_high(lane, lane % 4), i),
    ("c", "f32"): lambda lane, i: (
        _high(lane, (lane & 0b1) + (i & 0b10)),
        (i & 0b100) + (lane & 0b10) + (i & 0b1),
    ),
}


def sparse_columns(bits: int, i: int, t: int) -> tuple[int, int]:
    """[firstcol, lastcol] of element i of A in mma.sp (9.7.14.6.2), for the larger k of a type."""
    first, half, step = {16: (t * 4, 4, 16), 32: (t * 2, 2, 8), 8: (t * 8, 8, 32), 4: (t * 16, 16, 64)}[bits]
    first += 0 if i < half else step
    return first, first + {16: 3, 32: 1, 8: 7, 4: 15}[bits]


# 9.7.15.5.1.1.1: D of wgmma.mma_async, thread of the warpgroup and i.
def wgmma_d(thread: int, i: int) -> tuple[int, int]:
    """Row and column of d_i; the manual draws it, row by row, for the four warps."""
    warp, lane = thread // 32, thread % 32
    return 16 * warp + (lane >> 2) + (8 if i % 4 >= 2 else 0), (i // 4) * 8 + (lane % 4) * 2 + (i & 1)
