"""Arithmetic, logic, comparison and moves on the registers of one thread (9.7.1 to 9.7.9.7)."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.isa.effects import VOLATILE
from tensorcore_dsl.isa.spec import row

from tensorcore_dsl.isa.semantics import (  # isort: skip
    boolean,
    carrying,
    compare,
    copy,
    floating,
    integer,
    lookup,
    pack,
    select,
    unpack,
)

INT = "s16 u16 s32 u32 s64 u64"
SIGNED = "s16 s32 s64"
BITS = "b16 b32 b64"
ANY = f"{BITS} {INT} f32 f64"
WIDE = "s16/s32 u16/u32 s32/s64 u32/u64"
PAIRS = "u16x2 s16x2"
PAIRS_RELU = ("/u16x2", "/s16x2", ".relu/s16x2")
RND = "- .rn .rz .rm .rp"
RND1 = ".rn .rz .rm .rp"
FTZ = "- .ftz"
SAT = "- .sat"
NAN = "- .NaN"
RELU = "- .relu"

D_A = "d:{t} = a:{t}"
D_AB = "d:{t} = a:{t}, b:{t}"
D_ABC = "d:{t} = a:{t}, b:{t}, c:{t}"
PAIR_AB = "d:b32 = a:b32, b:b32"
WORD_AB = "d:b64 = a:b64, b:b64"

# fmt: off
INTEGER = [
    #   mnemonic                  operands                                  section     execute
    row("add.{t}",                D_AB,                                     "9.7.1.1",  integer, t=INT),
    row("add.sat.s32",            "d:s32 = a:s32, b:s32",                   "9.7.1.1",  integer, t="s32", sat=".sat"),
    row("add.{t}",                PAIR_AB,                                  "9.7.1.1",  integer, t=PAIRS, requires="90", ptx="8.0"),
    row("sub.{t}",                D_AB,                                     "9.7.1.2",  integer, t=INT),
    row("sub.sat.s32",            "d:s32 = a:s32, b:s32",                   "9.7.1.2",  integer, t="s32", sat=".sat"),
    row("mul.{m}.{t}",            D_AB,                                     "9.7.1.3",  integer, t=INT, m="lo hi"),
    row("mul.{m}.{t}",            "d:{w} = a:{t}, b:{t}",                   "9.7.1.3",  integer, t_w=WIDE, m="wide"),
    row("mad.{m}.{t}",            D_ABC,                                    "9.7.1.4",  integer, t=INT, m="lo hi"),
    row("mad.hi.sat.s32",         "d:s32 = a:s32, b:s32, c:s32",            "9.7.1.4",  integer, t="s32", m="hi", sat=".sat"),
    row("mad.{m}.{t}",            "d:{w} = a:{t}, b:{t}, c:{w}",            "9.7.1.4",  integer, t_w=WIDE, m="wide"),
    row("mul24.{m}.{t}",          D_AB,                                     "9.7.1.5",  integer, t="u32 s32", m="lo hi"),
    row("mad24.{m}.{t}",          D_ABC,                                    "9.7.1.6",  integer, t="u32 s32", m="lo hi"),
    row("mad24.hi.sat.s32",       "d:s32 = a:s32, b:s32, c:s32",            "9.7.1.6",  integer, t="s32", m="hi", sat=".sat"),
    row("sad.{t}",                D_ABC,                                    "9.7.1.7",  integer, t=INT),
    row("div.{t}",                D_AB,                                     "9.7.1.8",  integer, t=INT),
    row("rem.{t}",                D_AB,                                     "9.7.1.9",  integer, t=INT),
    row("abs.{t}",                D_A,                                      "9.7.1.10", integer, t=SIGNED),
    row("neg.{t}",                D_A,                                      "9.7.1.11", integer, t=SIGNED),
    *[line for op, section in (("min", "9.7.1.12"), ("max", "9.7.1.13")) for line in (
        row(op + ".{t}",          D_AB,                                     section,    integer, t=INT),
        row(op + "{relu}.{t}",    PAIR_AB,                                  section,    integer, relu_t=PAIRS_RELU, requires="90", ptx="8.0"),
        row(op + ".relu.s32",     "d:s32 = a:s32, b:s32",                   section,    integer, t="s32", relu=".relu", requires="90", ptx="8.0"),
    )],
    row("popc.{t}",               "d:u32 = a:{t}",                          "9.7.1.14", integer, t="b32 b64", ptx="2.0"),
    row("clz.{t}",                "d:u32 = a:{t}",                          "9.7.1.15", integer, t="b32 b64", ptx="2.0"),
    row("bfind{m}.{t}",           "d:u32 = a:{t}",                          "9.7.1.16", integer, t="u32 u64 s32 s64", m="- .shiftamt", ptx="2.0"),
    row("fns.b32",                "d:b32 = mask:b32, base:b32, offset:s32", "9.7.1.17", integer, t="b32", requires="30", ptx="6.0"),
    row("brev.{t}",               D_A,                                      "9.7.1.18", integer, t="b32 b64", ptx="2.0"),
    row("bfe.{t}",                "d:{t} = a:{t}, pos:u32, len:u32",        "9.7.1.19", integer, t="u32 u64 s32 s64", ptx="2.0"),
    row("bfi.{t}",                "f:{t} = a:{t}, b:{t}, pos:u32, len:u32", "9.7.1.20", integer, t="b32 b64", ptx="2.0"),
    row("szext.{m}.{t}",          "d:{t} = a:{t}, n:u32",                   "9.7.1.21", integer, t="u32 s32", m="clamp wrap", requires="70", ptx="7.6"),
    row("bmsk.{m}.b32",           "d:b32 = pos:u32, width:u32",             "9.7.1.22", integer, t="b32", m="clamp wrap", requires="70", ptx="7.6"),
    row("dp4a.{t}.{u}",           "d:{c} = a:b32, b:b32, c:{c}",            "9.7.1.23", integer, t_u_c="u32/u32/u32 u32/s32/s32 s32/u32/s32 s32/s32/s32", requires="61", ptx="5.0"),
    row("dp2a.{m}.{t}.{u}",       "d:{c} = a:b32, b:b32, c:{c}",            "9.7.1.24", integer, t_u_c="u32/u32/u32 u32/s32/s32 s32/u32/s32 s32/s32/s32", m="lo hi", requires="61", ptx="5.0"),
]

# With carries, in the condition code of each thread (9.7.2).
CARRY = [
    row(op + "{m}{cc}.{t}", operands, "9.7.2", carrying, m=m, cc="- .cc" if op.endswith("c") else ".cc", t=types, effects=VOLATILE, ptx=ptx)
    for opcodes, operands, m, first in (("add sub", D_AB, "-", "1.2"), ("mad", D_ABC, ".lo .hi", "3.0"))
    for opcode in opcodes.split() for op in (opcode, opcode + "c")
    for types, ptx in (("u32 s32", first), ("u64 s64", "4.3"))
]

LOGIC = [
    *[row(op + ".{t}",            D_AB,                                     section,    execute, t=types)
      for op, section in (("and", "9.7.8.1"), ("or", "9.7.8.2"), ("xor", "9.7.8.3"))
      for execute, types in ((integer, BITS), (boolean, "pred"))],
    row("not.{t}",                D_A,                                      "9.7.8.4",  integer, t=BITS),
    row("not.{t}",                D_A,                                      "9.7.8.4",  boolean, t="pred"),
    row("cnot.{t}",               D_A,                                      "9.7.8.5",  integer, t=BITS),
    row("lop3.b32",               "d:b32 = a:b32, b:b32, c:b32, lut:#u32",  "9.7.8.6",  lookup,  requires="50", ptx="4.3"),
    row("lop3.{bool}.b32",        "d:b32, p:pred = a:b32, b:b32, c:b32, lut:#u32, q:pred", "9.7.8.6", lookup, bool="or and", requires="70", ptx="8.2", template="{d}|{p}, {a}, {b}, {c}, {lut}, {q}"),
    row("shf.{m}.b32",            "d:b32 = a:b32, b:b32, c:u32",            "9.7.8.7",  integer, t="b32", m="l.clamp l.wrap r.clamp r.wrap", requires="32", ptx="3.1"),
    row("shl.{t}",                "d:{t} = a:{t}, n:u32",                   "9.7.8.8",  integer, t=BITS),
    row("shr.{t}",                "d:{t} = a:{t}, n:u32",                   "9.7.8.9",  integer, t=f"{BITS} {INT}"),
    row("prmt.b32{m}",            "d:b32 = a:b32, b:b32, c:b32",            "9.7.9.7",  integer, t="b32", m="- .f4e .b4e .rc8 .ecl .ecr .rc16", ptx="2.0"),
]

FLOAT = [
    *[line for op, section in (("add", "9.7.3.3"), ("sub", "9.7.3.4"), ("mul", "9.7.3.5")) for line in (
        row(op + "{rnd}{ftz}{sat}.f32", "d:f32 = a:f32, b:f32",             section,    floating, t="f32", rnd=RND, ftz=FTZ, sat=SAT),
        row(op + "{rnd}{ftz}.f32x2", WORD_AB,                               section,    floating, t="f32x2", rnd=RND, ftz=FTZ, requires="100", ptx="8.6"),
        row(op + "{rnd}.f64",     "d:f64 = a:f64, b:f64",                   section,    floating, t="f64", rnd=RND),
    )],
    row("fma{rnd}{ftz}{sat}.f32", "d:f32 = a:f32, b:f32, c:f32",            "9.7.3.6",  floating, t="f32", rnd=RND1, ftz=FTZ, sat=SAT, ptx="2.0"),
    row("fma{rnd}{ftz}.f32x2",    "d:b64 = a:b64, b:b64, c:b64",            "9.7.3.6",  floating, t="f32x2", rnd=RND1, ftz=FTZ, requires="100", ptx="8.6"),
    row("fma{rnd}.f64",           "d:f64 = a:f64, b:f64, c:f64",            "9.7.3.6",  floating, t="f64", rnd=RND1, ptx="1.4"),
    row("div{rnd}{ftz}.f32",      "d:f32 = a:f32, b:f32",                   "9.7.3.8",  floating, t="f32", rnd=f".approx .full {RND1}", ftz=FTZ, ptx="1.4"),
    row("div{rnd}.f64",           "d:f64 = a:f64, b:f64",                   "9.7.3.8",  floating, t="f64", rnd=RND1, ptx="1.4"),
    row("abs{ftz}.f32",           "d:f32 = a:f32",                          "9.7.3.9",  floating, t="f32", ftz=FTZ),
    row("abs.f64",                "d:f64 = a:f64",                          "9.7.3.9",  floating, t="f64"),
    row("neg{ftz}.f32",           "d:f32 = a:f32",                          "9.7.3.10", floating, t="f32", ftz=FTZ),
    row("neg.f64",                "d:f64 = a:f64",                          "9.7.3.10", floating, t="f64"),
    *[line for op, section in (("min", "9.7.3.11"), ("max", "9.7.3.12")) for line in (
        row(op + "{ftz}.f32",     "d:f32 = a:f32, b:f32",                   section,    floating, t="f32", ftz=FTZ),
        row(op + "{ftz}{nan}.f32", "d:f32 = a:f32, b:f32",                  section,    floating, t="f32", ftz=FTZ, nan=".NaN", requires="80", ptx="7.0"),
        row(op + "{ftz}{nan}{x}.f32", "d:f32 = a:f32, b:f32",               section,    floating, t="f32", ftz=FTZ, nan=NAN, x=".xorsign.abs", requires="86", ptx="7.2"),
        row(op + ".f64",          "d:f64 = a:f64, b:f64",                   section,    floating, t="f64"),
    )],
    row("rcp{rnd}{ftz}.f32",      "d:f32 = a:f32",                          "9.7.3.13", floating, t="f32", rnd=f".approx {RND1}", ftz=FTZ, ptx="2.0"),
    row("rcp{rnd}.f64",           "d:f64 = a:f64",                          "9.7.3.13", floating, t="f64", rnd=RND1, ptx="2.0"),
    row("sqrt{rnd}{ftz}.f32",     "d:f32 = a:f32",                          "9.7.3.15", floating, t="f32", rnd=f".approx {RND1}", ftz=FTZ, ptx="2.0"),
    row("sqrt{rnd}.f64",          "d:f64 = a:f64",                          "9.7.3.15", floating, t="f64", rnd=RND1, ptx="2.0"),
    *[row(op + "{rnd}{ftz}.f32",  "d:f32 = a:f32",                          section,    floating, t="f32", rnd=".approx", ftz=FTZ, ptx="1.4")
      for op, section in (("rsqrt", "9.7.3.16"), ("sin", "9.7.3.18"), ("cos", "9.7.3.19"), ("lg2", "9.7.3.20"), ("ex2", "9.7.3.21"))],
    row("tanh{rnd}.f32",          "d:f32 = a:f32",                          "9.7.3.22", floating, t="f32", rnd=".approx", requires="75", ptx="7.0"),
    row("copysign.{t}",           D_AB,                                     "9.7.3.2",  floating, t="f32 f64", ptx="2.0"),
    row("testp.{cls}.{t}",        "p:pred = a:{t}",                         "9.7.3.1",  floating, t="f32 f64", cls="finite infinite number notanumber normal subnormal", ptx="2.0"),
]

HALF = [
    *[line for op, section in (("add", "9.7.4.1"), ("sub", "9.7.4.2"), ("mul", "9.7.4.3")) for line in (
        row(op + "{rnd}{ftz}{sat}.{t}", D_AB,                               section,    floating, t="f16 f16x2", rnd="- .rn", ftz=FTZ, sat=SAT, requires="53", ptx="4.2"),
        row(op + "{rnd}.{t}",     D_AB,                                     section,    floating, t="bf16 bf16x2", rnd="- .rn", requires="90", ptx="7.8"),
    )],
    row("fma{rnd}{ftz}{sat}.{t}", D_ABC,                                    "9.7.4.4",  floating, t="f16 f16x2", rnd=".rn", ftz=FTZ, sat=SAT, requires="53", ptx="4.2"),
    row("fma{rnd}{ftz}{relu}.{t}", D_ABC,                                   "9.7.4.4",  floating, t="f16 f16x2", rnd=".rn", ftz=FTZ, relu=".relu", requires="80", ptx="7.0"),
    row("fma{rnd}{relu}.{t}",     D_ABC,                                    "9.7.4.4",  floating, t="bf16 bf16x2", rnd=".rn", relu=RELU, requires="80", ptx="7.0"),
    row("fma{rnd}.oob{relu}.{t}", D_ABC,                                    "9.7.4.4",  floating, t="f16 f16x2 bf16 bf16x2", rnd=".rn", relu=RELU, oob="yes", requires="90", ptx="8.1"),
    row("neg{ftz}.{t}",           D_A,                                      "9.7.4.5",  floating, t="f16 f16x2", ftz=FTZ, requires="53", ptx="6.0"),
    row("neg.{t}",                D_A,                                      "9.7.4.5",  floating, t="bf16 bf16x2", requires="80", ptx="7.0"),
    row("abs{ftz}.{t}",           D_A,                                      "9.7.4.6",  floating, t="f16 f16x2", ftz=FTZ, requires="53", ptx="6.5"),
    row("abs.{t}",                D_A,                                      "9.7.4.6",  floating, t="bf16 bf16x2", requires="80", ptx="7.0"),
    *[line for op, section in (("min", "9.7.4.7"), ("max", "9.7.4.8")) for line in (
        row(op + "{ftz}{nan}.{t}", D_AB,                                    section,    floating, t="f16 f16x2", ftz=FTZ, nan=NAN, requires="80", ptx="7.0"),
        row(op + "{nan}.{t}",     D_AB,                                     section,    floating, t="bf16 bf16x2", nan=NAN, requires="80", ptx="7.0"),
        row(op + "{ftz}{nan}{x}.{t}", D_AB,                                 section,    floating, t="f16 f16x2", ftz=FTZ, nan=NAN, x=".xorsign.abs", requires="86", ptx="7.2"),
        row(op + "{nan}{x}.{t}",  D_AB,                                     section,    floating, t="bf16 bf16x2", nan=NAN, x=".xorsign.abs", requires="86", ptx="7.2"),
    )],
    row("tanh{rnd}.{t}",          D_A,                                      "9.7.4.9",  floating, t="f16 f16x2", rnd=".approx", requires="75", ptx="7.0"),
    row("tanh{rnd}.{t}",          D_A,                                      "9.7.4.9",  floating, t="bf16 bf16x2", rnd=".approx", requires="90", ptx="7.8"),
    row("ex2{rnd}.{t}",           D_A,                                      "9.7.4.10", floating, t="f16 f16x2", rnd=".approx", requires="75", ptx="7.0"),
    row("ex2{rnd}{ftz}.{t}",      D_A,                                      "9.7.4.10", floating, t="bf16 bf16x2", rnd=".approx", ftz=".ftz", requires="90", ptx="7.8"),
    *[row(op + "{rnd}{sat}.{t}",  "d:f32 = a:{s}, c:f32",                   section,    floating, t_s="f32.f16/f16 f32.bf16/bf16", rnd=RND, sat=SAT, requires="100", ptx="8.6")
      for op, section in (("add", "9.7.5.1"), ("sub", "9.7.5.2"))],
    row("fma{rnd}{sat}.{t}",     "d:f32 = a:{s}, b:{s}, c:f32",            "9.7.5.3",  floating, t_s="f32.f16/f16 f32.bf16/bf16", rnd=RND1, sat=SAT, requires="100", ptx="8.6"),
]

CMP = "eq ne lt le gt ge"
UNSIGNED_CMP = f"{CMP} lo ls hi hs"
FLOAT_CMP = f"{CMP} equ neu ltu leu gtu geu num nan"
# Comparisons, without and with a predicate that the result is combined with.
TESTS: tuple[tuple[str, str, Any], ...] = ("setp.{cmp}", "", {}), ("setp.{cmp}.{bool}", ", c:pred", {"bool": "and or xor"})

COMPARE = [
    *[line for test, condition, axes in TESTS for line in (
        row(test + ".{t}",              "p:pred = a:{t}, b:{t}" + condition, "9.7.6.2", compare, t=BITS, cmp="eq ne", **axes),
        row(test + ".{t}",              "p:pred = a:{t}, b:{t}" + condition, "9.7.6.2", compare, t=SIGNED, cmp=CMP, **axes),
        row(test + ".{t}",              "p:pred = a:{t}, b:{t}" + condition, "9.7.6.2", compare, t="u16 u32 u64", cmp=UNSIGNED_CMP, **axes),
        row(test + "{ftz}.f32",         "p:pred = a:f32, b:f32" + condition, "9.7.6.2", compare, t="f32", cmp=FLOAT_CMP, **axes, ftz=FTZ),
        row(test + ".f64",              "p:pred = a:f64, b:f64" + condition, "9.7.6.2", compare, t="f64", cmp=FLOAT_CMP, **axes),
        row(test + "{ftz}.f16",         "p:pred = a:f16, b:f16" + condition, "9.7.7.2", compare, t="f16", cmp=FLOAT_CMP, **axes, ftz=FTZ, requires="53", ptx="4.2"),
        row(test + ".bf16",             "p:pred = a:bf16, b:bf16" + condition, "9.7.7.2", compare, t="bf16", cmp=FLOAT_CMP, **axes, requires="90", ptx="7.8"),
    )],
    row("setp.{cmp}{ftz}.f16x2",        "p:pred, q:pred = a:f16x2, b:f16x2",     "9.7.7.2", compare, t="f16x2", cmp=FLOAT_CMP, ftz=FTZ, requires="53", ptx="4.2", template="{p}|{q}, {a}, {b}"),
    row("setp.{cmp}.bf16x2",            "p:pred, q:pred = a:bf16x2, b:bf16x2",   "9.7.7.2", compare, t="bf16x2", cmp=FLOAT_CMP, requires="90", ptx="7.8", template="{p}|{q}, {a}, {b}"),
    row("selp.{t}",                     "d:{t} = a:{t}, b:{t}, p:pred",          "9.7.6.3", select,  t=ANY),
    row("slct.{t}.s32",                 "d:{t} = a:{t}, b:{t}, c:s32",           "9.7.6.4", select,  t=ANY, by="s32"),
    row("slct{ftz}.{t}.f32",            "d:{t} = a:{t}, b:{t}, c:f32",           "9.7.6.4", select,  t=ANY, by="f32", ftz=FTZ),
]

MOVE = [
    row("mov.{t}",         "d:{t} = a:{t}",                             "9.7.9.3", copy,   t=f"pred {ANY}"),
    row("mov.b{w}.pack",   "d:b{w} = lo:b{h}, hi:b{h}",                 "9.7.9.4", pack,   w_h="32/16 64/32", template="!mov.b{w} {d}, {{{lo}, {hi}}}"),
    row("mov.b{w}.unpack", "lo:b{h}, hi:b{h} = a:b{w}",                 "9.7.9.4", unpack, w_h="32/16 64/32", template="!mov.b{w} {{{lo}, {hi}}}, {a}"),
    row("mov.b64.pack4",   "d:b64 = x:b16, y:b16, z:b16, w:b16",        "9.7.9.4", pack,   template="!mov.b64 {d}, {{{x}, {y}, {z}, {w}}}"),
    row("mov.b64.unpack4", "x:b16, y:b16, z:b16, w:b16 = a:b64",        "9.7.9.4", unpack, template="!mov.b64 {{{x}, {y}, {z}, {w}}}, {a}"),
]
# fmt: on

ROWS = (*INTEGER, *CARRY, *LOGIC, *FLOAT, *HALF, *COMPARE, *MOVE)
