"""Memory of several GPUs at one address (9.7.9.14, .26, .27). The emulator has none, and refuses it."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa.bulk import SHARED_COPY
from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.effects import VOLATILE
from tensorcore_dsl.isa.spec import Instruction, row


def refuse(ctx: Context, instr: Instruction, *operands: Any) -> None:
    raise EmulationError(
        f"{instr.mnemonic} needs a multimem address, which stands for memory of several GPUs: the "
        "emulator has the memory of one; loads, stores and atomics of each GPU's own memory are "
        f"emulated ({instr.section})"
    )


SCOPES = "cta cluster gpu sys"
WEAK = "- .weak"
RELAXED, ACQUIRE, RELEASE = (
    " ".join(f".{order}.{scope}" for scope in SCOPES.split()) for order in ("relaxed", "acquire", "release")
)
# Operations and types; vectors of 32, 64 or 128 bits.
INTEGERS = (
    "add/u32 add/s32 add/u64 and/b32 and/b64 or/b32 or/b64 xor/b32 xor/b64 "
    "min/u32 min/s32 min/u64 min/s64 max/u32 max/s32 max/u64 max/s64"
)
HALVES = " ".join(
    f"{v}/{n}/{kind}{pair}"
    for v, n, pairs in (("", 1, ["x2"]), (".v2", 2, ["", "x2"]), (".v4", 4, ["", "x2"]), (".v8", 8, [""]))
    for kind in ("f16", "bf16")
    for pair in pairs
)
FLOATS = f"{HALVES} /1/f32 .v2/2/f32 .v4/4/f32 /1/f64"
COMMON: Any = {"effects": VOLATILE, "requires": "90", "ptx": "8.1"}
BULK = "multimem.{}.bulk.global.shared::cta.bulk_group"
SOURCE = " bulk_group; load src shared::cta size bulk_group"
SECTION, REDUCED = "9.7.9.14", "9.7.9.27"

# fmt: off
ROWS = tuple(
    made
    for sems, order in ((WEAK, ""), (f"{RELAXED} {ACQUIRE}", " {sem}"))
    for made in (
        row("multimem.ld_reduce{sem}.global.{op}.{t}",             "d:{t} = p:[u64]",         SECTION, refuse, sem=sems, op_t=INTEGERS, access="load p global 1*{t}" + order, **COMMON),
        row("multimem.ld_reduce{sem}.global.add{v}.{t}",           "d:{t}*{n} = p:[u64]",     SECTION, refuse, sem=sems, v_n_t=FLOATS, access="load p global {n}*{t}" + order, **COMMON),
        row("multimem.ld_reduce{sem}.global.add.acc::f32{v}.{t}",  "d:{t}*{n} = p:[u64]",     SECTION, refuse, sem=sems, v_n_t=HALVES, access="load p global {n}*{t}" + order, **COMMON | {"ptx": "8.2"}),
        row("multimem.ld_reduce{sem}.global.{op}{v}.{t}",          "d:{t}*{n} = p:[u64]",     SECTION, refuse, sem=sems, op="min max", v_n_t=HALVES, access="load p global {n}*{t}" + order, **COMMON),
    )
) + tuple(
    made
    for sems, order in ((WEAK, ""), (f"{RELAXED} {RELEASE}", " {sem}"))
    for made in (
        row("multimem.st{sem}.global.{t}",                         "p:[u64], b:{t}",          SECTION, refuse, sem=sems, t="b32 b64 u32 u64 s32 s64", access="store p global 1*{t}" + order, **COMMON),
        row("multimem.st{sem}.global{v}.{t}",                      "p:[u64], b:{t}*{n}",      SECTION, refuse, sem=sems, v_n_t=FLOATS, access="store p global {n}*{t}" + order, **COMMON),
    )
) + (
    row("multimem.red{sem}.global.{op}.{t}",                       "p:[u64], b:{t}",          SECTION, refuse, sem=f"- {RELAXED} {RELEASE}", op_t=INTEGERS, access="update p global 1*{t} relaxed.sys{sem}", **COMMON),
    row("multimem.red{sem}.global.add{v}.{t}",                     "p:[u64], b:{t}*{n}",      SECTION, refuse, sem=f"- {RELAXED} {RELEASE}", v_n_t=FLOATS, access="update p global {n}*{t} relaxed.sys{sem}", **COMMON),
    row(BULK.format("cp.async"),                                   "dst:[u64], src:[u32], size:u32", "9.7.9.26", refuse, access="store dst global size" + SOURCE, effects=SHARED_COPY, requires="90", ptx="9.1"),
    row(BULK.format("cp.reduce.async") + ".{op}.{t}",              "dst:[u64], src:[u32], size:u32", REDUCED, refuse, op_t=f"{INTEGERS} inc/u32 dec/u32 add/f32 add/f64 min/f16 min/bf16 max/f16 max/bf16", access="update dst global size*{t} relaxed.sys" + SOURCE, effects=SHARED_COPY, requires="90", ptx="9.1"),
    row(BULK.format("cp.reduce.async") + ".add.noftz.{t}",         "dst:[u64], src:[u32], size:u32", REDUCED, refuse, t="f16 bf16", access="update dst global size*{t} relaxed.sys" + SOURCE, effects=SHARED_COPY, requires="90", ptx="9.1"),
)
# fmt: on
