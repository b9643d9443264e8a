"""`cvt` among all types, with every rounding of the manual (9.7.9.21, 9.7.9.22).

Packed variants put the first source into the upper half. Pairs of floats of 8 bits and less
(`e4m3x2`) are 16-bit registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.spec import Instruction, Row, row

_FLAGS = ("sat", "satfinite", "relu", "ftz")


def _flags(instr: Instruction, *names: str) -> dict[str, bool]:
    return {name: bool(instr.params.get(name)) for name in names}


def _rounding(instr: Instruction) -> str | None:
    return instr.params.get("rnd", "").lstrip(".") or None


def single(ctx: Context, instr: Instruction, a: Any, *scale: Any) -> np.ndarray:
    """One source, scalar or packed."""
    from tensorcore_dsl.numerics import convert

    p = instr.params
    more = {"scale": scale[0]} if scale else {}
    return convert.convert(a, p["a"], p["d"], _rounding(instr), **_flags(instr, *_FLAGS), **more)


def pair(ctx: Context, instr: Instruction, a: Any, b: Any, *extra: Any) -> np.ndarray:
    """Pack two f32; `extra` holds the random bits or the two scales."""
    from tensorcore_dsl.numerics import convert

    p = instr.params
    more = {p["extra"]: extra[0]} if extra else {}
    flags = _flags(instr, "satfinite", "relu")
    return convert.convert_several((a, b), "f32", p["d"], _rounding(instr), **flags, **more)


def quad(ctx: Context, instr: Instruction, *operands: Any) -> np.ndarray:
    """Pack four f32, the first one highest, with random bits."""
    from tensorcore_dsl.numerics import convert

    *sources, rbits = operands
    flags = _flags(instr, "satfinite", "relu")
    return convert.convert_several(sources, "f32", instr.params["d"], "rs", rbits=rbits, **flags)


def saturating_pack(ctx: Context, instr: Instruction, a: Any, b: Any, *c: Any) -> np.ndarray:
    """cvt.pack: two saturated integers, placed above the low bits of c."""
    from tensorcore_dsl.numerics import convert

    return convert.convert_pack(a, b, c[0] if c else None, instr.params["d"])


def _range(name: str) -> tuple[int, int]:
    bits = int(name[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if name[0] == "s" else (0, (1 << bits) - 1)


def may_saturate(axes: Mapping[str, str]) -> bool:
    """True if some value of the source type exceeds the range of the destination type."""
    low, high = _range(axes["a"])
    least, most = _range(axes["d"])
    return low < least or high > most


INT = "u8 s8 u16 s16 u32 s32 u64 s64"
INT16 = "u16 s16 u32 s32 u64 s64"
RND = ".rn .rz .rm .rp"
RND2 = ".rn .rz"
IRND = ".rni .rzi .rmi .rpi"
SAT, FTZ, RELU, SATFINITE = "- .sat", "- .ftz", "- .relu", "- .satfinite"
FP8 = "e4m3x2 e5m2x2"
FP6 = "e2m3x2 e3m2x2"
FAMILY = "100f 110f 120f"
STOCHASTIC = "100a 103a"
FIXED = "100a 103a 110a 120a 121a"
CVT, PACK = "9.7.9.21", "9.7.9.22"
NO_BYTES = "the assembler has no instructions between bf16 and 8-bit integers"
E2M1 = "!{{ .reg .b8 pair; "


def _cvt(operands: str = "d:{d} = a:{a}", execute: Any = single, **more: Any) -> Row:
    """The modifiers stand in the text in the order of the keywords; without a type `a`, sources are f32."""
    modifiers = "".join(f"{{{name}}}" for name in more if name in ("rnd", "scaled", *_FLAGS))
    source = "{a}" if "a" in more or "d_a" in more else "f32"
    return row(f"cvt{modifiers}.{{d}}.{source}", operands, CVT, execute, **more)


# fmt: off
SCALAR = [
    _cvt(d=INT, a=INT),
    _cvt(d=INT, a=INT, sat=".sat", where=may_saturate),
    _cvt(d="f16 f64", a=INT, rnd=RND, sat=SAT),
    _cvt(d="f32", a=INT, rnd=RND, ftz=FTZ, sat=SAT),
    _cvt(d="bf16", a=INT16, rnd=RND, requires="90", ptx="7.8", note=NO_BYTES),
    _cvt(d=INT, a="f16 f64", rnd=IRND, sat=SAT),
    _cvt(d=INT, a="f32", rnd=IRND, ftz=FTZ, sat=SAT),
    _cvt(d=INT16, a="bf16", rnd=IRND, requires="90", ptx="7.8", note=NO_BYTES),
    _cvt(d_a="f16/f16 f64/f64", rnd=f"- {IRND}", sat=SAT),
    _cvt(d_a="f32/f32", rnd=f"- {IRND}", ftz=FTZ, sat=SAT),
    _cvt(d_a="bf16/bf16", rnd=f"- {IRND}", requires="90", ptx="7.8"),
    _cvt(d_a="f64/f16", sat=SAT),
    _cvt(d_a="f32/f16 f64/f32", ftz=FTZ, sat=SAT),
    _cvt(d_a="f32/bf16", requires="80", ptx="7.1"),
    _cvt(d_a="f32/bf16", ftz=".ftz", requires="90", ptx="7.8"),
    _cvt(d_a="f64/bf16", requires="90", ptx="7.8"),
    _cvt(d_a="f16/f32 f32/f64", rnd=RND, ftz=FTZ, sat=SAT),
    _cvt(d_a="f16/f64", rnd=RND, sat=SAT),
    _cvt(d_a="bf16/f64 bf16/f16 f16/bf16", rnd=RND, requires="90", ptx="7.8"),
    _cvt(d_a="bf16/f32", rnd=RND, ftz=FTZ, requires="80", ptx="7.0"),
    _cvt(d="f16 bf16", a="f32", rnd=RND2, relu=".relu", requires="80", ptx="7.0"),
    _cvt(d="bf16", a="f32", rnd=RND2, relu=RELU, satfinite=".satfinite", requires="80", ptx="8.1"),
    _cvt(d="f16", a="f32", rnd=RND2, relu=".relu", satfinite=".satfinite", requires="80", ptx="8.1"),
    _cvt(d="f16", a="f32", rnd=RND2, satfinite=".satfinite", ptx="8.1"),
    _cvt(d_a="tf32/f32", rnd=".rna", requires="80", ptx="7.0"),
    _cvt(d_a="tf32/f32", rnd=".rna", satfinite=".satfinite", requires="80", ptx="8.1"),
    _cvt(d_a="tf32/f32", rnd=RND2, relu=RELU, requires="90", ptx="7.8"),
    _cvt(d_a="tf32/f32", rnd=RND2, satfinite=".satfinite", relu=RELU, requires="100", ptx="8.6"),
]

PACKED = [
    _cvt("d:{d} = a:f32, b:f32", pair, d="f16x2 bf16x2", rnd=RND2, relu=RELU, requires="80", ptx="7.0"),
    _cvt("d:{d} = a:f32, b:f32", pair, d="f16x2 bf16x2", rnd=RND2, relu=RELU, satfinite=".satfinite", requires="80", ptx="8.1"),
    _cvt("d:{d} = a:f32, b:f32, rbits:b32", pair, d="f16x2 bf16x2", rnd=".rs", relu=RELU, satfinite=SATFINITE, extra="rbits", requires=STOCHASTIC, ptx="8.7"),
    _cvt("d:b16 = a:f32, b:f32", pair, d=FP8, rnd=".rn", satfinite=".satfinite", relu=RELU, requires="89", ptx="8.1", note="sm_90 has it from PTX 7.8"),
    _cvt("d:b16 = a:f16x2", single, d=FP8, a="f16x2", rnd=".rn", satfinite=".satfinite", relu=RELU, requires="89", ptx="8.1", note="sm_90 has it from PTX 7.8"),
    _cvt("d:b16 = a:bf16x2", single, d=FP8, a="bf16x2", rnd=".rn", satfinite=".satfinite", relu=RELU, requires=FAMILY, ptx="9.1"),
    _cvt("d:f16x2 = a:b16", single, d="f16x2", a=FP8, rnd=".rn", relu=RELU, requires="89", ptx="8.1", note="sm_90 has it from PTX 7.8"),
    _cvt("d:b16 = a:f32, b:f32", pair, d=FP6, rnd=".rn", satfinite=".satfinite", relu=RELU, requires=FAMILY, ptx="8.6"),
    _cvt("d:b16 = a:{a}", single, d=FP6, a="f16x2 bf16x2", rnd=".rn", satfinite=".satfinite", relu=RELU, requires=FAMILY, ptx="9.1"),
    _cvt("d:f16x2 = a:b16", single, d="f16x2", a=FP6, rnd=".rn", relu=RELU, requires=FAMILY, ptx="8.6"),
    row("cvt{rnd}{satfinite}{relu}.{to}.f32", "x:b16 = a:f32, b:f32", CVT, pair, d_to="e2m1x2/e2m1x2", rnd=".rn", satfinite=".satfinite", relu=RELU, requires=FAMILY, ptx="8.6",
        template=E2M1 + "cvt{rnd}{satfinite}{relu}.{to}.f32 pair, {a}, {b}; cvt.u16.u8 {x}, pair; }}"),
    row("cvt{rnd}{satfinite}{relu}.{to}.{source}", "x:b16 = y:{source}", CVT, single, d_to="e2m1x2/e2m1x2", a_source="f16x2/f16x2 bf16x2/bf16x2", rnd=".rn", satfinite=".satfinite", relu=RELU, requires=FAMILY, ptx="9.1",
        template=E2M1 + "cvt{rnd}{satfinite}{relu}.{to}.{source} pair, {y}; cvt.u16.u8 {x}, pair; }}"),
    row("cvt{rnd}{relu}.f16x2.{source}",  "x:f16x2 = y:b16",       CVT, single, d="f16x2", a_source="e2m1x2/e2m1x2", rnd=".rn", relu=RELU, requires=FAMILY, ptx="8.6",
        template=E2M1 + "cvt.u8.u16 pair, {y}; cvt{rnd}{relu}.f16x2.{source} {x}, pair; }}"),
    _cvt("d:b16 = a:f32, b:f32", pair, d="ue8m0x2", rnd=".rz .rp", satfinite=SATFINITE, requires=FAMILY, ptx="8.6"),
    _cvt("d:b16 = a:{a}", single, d="ue8m0x2", a="bf16x2", rnd=".rz .rp", satfinite=SATFINITE, requires=FAMILY, ptx="8.6"),
    _cvt("d:{d} = a:b16", single, d="bf16x2", a="ue8m0x2", rnd=".rn", requires=FAMILY, ptx="8.6"),
    _cvt("x:{r} = a:f32, b:f32, e:f32, f:f32, rbits:b32", quad, d_r="e4m3x4/b32 e5m2x4/b32 e2m3x4/b32 e3m2x4/b32 e2m1x4/b16", rnd=".rs", relu=RELU, satfinite=".satfinite", requires=STOCHASTIC, ptx="8.7",
        template="{x}, {{{a}, {b}, {e}, {f}}}, {rbits}"),
    _cvt("d:b16 = a:f32, b:f32", pair, d="s2f6x2", rnd=".rn", satfinite=".satfinite", relu=RELU, requires=FIXED, ptx="9.1"),
    _cvt("d:b16 = a:f32, b:f32, scale:b16", pair, d="s2f6x2", rnd=".rn", satfinite=".satfinite", relu=RELU, scaled=".scaled::n2::ue8m0", extra="scale", requires=FIXED, ptx="9.1"),
    _cvt("d:b16 = a:{a}", single, d="s2f6x2", a="bf16x2", rnd=".rn", satfinite=".satfinite", relu=RELU, requires=FIXED, ptx="9.1"),
    _cvt("d:b16 = a:{a}, scale:b16", single, d="s2f6x2", a="bf16x2", rnd=".rn", satfinite=".satfinite", relu=RELU, scaled=".scaled::n2::ue8m0", requires=FIXED, ptx="9.1"),
    _cvt("d:{d} = a:b16", single, d="bf16x2", a="s2f6x2", rnd=".rn", satfinite=SATFINITE, relu=RELU, requires=FIXED, ptx="9.1"),
    _cvt("d:{d} = a:b16, scale:b16", single, d="bf16x2", a="s2f6x2", rnd=".rn", satfinite=SATFINITE, relu=RELU, scaled=".scaled::n2::ue8m0", requires=FIXED, ptx="9.1"),
    row("cvt.pack.sat.{d}.s32",           "d:b32 = a:s32, b:s32",        PACK, saturating_pack, d="u16 s16", requires="72", ptx="6.5"),
    row("cvt.pack.sat.{d}.s32.b32",       "d:b32 = a:s32, b:s32, c:b32", PACK, saturating_pack, d="u8 s8", requires="72", ptx="6.5"),
    row("cvt.pack.sat.{d}.s32.b32",       "d:b32 = a:s32, b:s32, c:b32", PACK, saturating_pack, d="u2 s2 u4 s4", requires="75", ptx="6.5"),
]
# fmt: on

ROWS = (*SCALAR, *PACKED)
