"""Memory of several GPUs at one address (9.7.9.14, .26, .27; 8.2.3).

The manual leaves the order of ranks open. Here rank 0 comes first, then 1, 2, and so on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.isa import reductions
from tensorcore_dsl.isa.bulk import SHARED_COPY
from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.effects import VOLATILE
from tensorcore_dsl.isa.spec import Instruction, row


def _words(instr: Instruction) -> tuple[int, int, str]:
    """Bytes of a word, how many words, and the type of the elements, which pairs have two of."""
    kind = instr.params["t"]
    return dtypes.named(kind).bits // 8, int(instr.params.get("n", 1)), kind.removesuffix("x2")


def load_reduced(ctx: Context, instr: Instruction, p: Any) -> Any:
    """multimem.ld_reduce: each step rounds, with .acc::f32 to f32."""
    width, count, kind = _words(instr)
    addresses = ctx.globals.each_rank(ctx, instr, p)
    total, *others = [_elements(ctx.globals.load(ctx, address, width, count), kind) for address in addresses]
    if instr.params["acc"]:
        from tensorcore_dsl.numerics import convert

        total = convert.convert(total, kind, "f32")
        for copy in others:
            total = reductions.update("add", "f32")(total, convert.convert(copy, kind, "f32"))
        total = convert.convert(total, "f32", kind, "rn")
    else:
        combine = reductions.update(instr.params["op"], kind)
        for copy in others:
            total = combine(total, copy)
    words = np.ascontiguousarray(total).reshape(count, -1).view(f"u{width}")
    return words if count > 1 else words[0]


def _elements(words: np.ndarray, kind: str) -> np.ndarray:
    return np.ascontiguousarray(words).view(f"u{dtypes.named(kind).bits // 8}").ravel()


def store(ctx: Context, instr: Instruction, p: Any, value: Any) -> None:
    width, count, _ = _words(instr)
    words = np.broadcast_to(np.asarray(value).reshape(count, -1), (count, ctx.threads)).astype(f"u{width}")
    for address in ctx.globals.each_rank(ctx, instr, p):
        ctx.globals.store(ctx, address, words)


def reduce(ctx: Context, instr: Instruction, p: Any, value: Any) -> None:
    """multimem.red: an atomic of each word on each rank."""
    width, count, kind = _words(instr)
    combine = reductions.update(instr.params["op"], kind)

    def update(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.asarray(combine(_elements(old, kind), _elements(new, kind))).view(f"u{width}")

    words = np.broadcast_to(np.asarray(value).reshape(count, -1), (count, ctx.threads)).astype(f"u{width}")
    for address in ctx.globals.each_rank(ctx, instr, p):
        for i, word in enumerate(words):
            ctx.globals.atomic(ctx, address + np.uint64(i * width), width, update, word)


def store_bulk(ctx: Context, instr: Instruction, dst: Any, src: Any, size: Any) -> None:
    for address in ctx.globals.each_rank(ctx, instr, dst):
        ctx.bulk.store(address, src, size, instr.params.get("op"), instr.params.get("t"))


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
        row("multimem.ld_reduce{sem}.global.{op}.{t}",             "d:{t} = p:[u64]",         SECTION, load_reduced, sem=sems, acc="-", op_t=INTEGERS, access="load p global 1*{t}" + order, **COMMON),
        row("multimem.ld_reduce{sem}.global.{op}{v}.{t}",          "d:{t}*{n} = p:[u64]",     SECTION, load_reduced, sem=sems, acc="-", op="add", v_n_t=FLOATS, access="load p global {n}*{t}" + order, **COMMON),
        row("multimem.ld_reduce{sem}.global.add{acc}{v}.{t}",      "d:{t}*{n} = p:[u64]",     SECTION, load_reduced, sem=sems, acc=".acc::f32", v_n_t=HALVES, access="load p global {n}*{t}" + order, **COMMON | {"ptx": "8.2"}),
        row("multimem.ld_reduce{sem}.global.{op}{v}.{t}",          "d:{t}*{n} = p:[u64]",     SECTION, load_reduced, sem=sems, acc="-", op="min max", v_n_t=HALVES, access="load p global {n}*{t}" + order, **COMMON),
    )
) + tuple(
    made
    for sems, order in ((WEAK, ""), (f"{RELAXED} {RELEASE}", " {sem}"))
    for made in (
        row("multimem.st{sem}.global.{t}",                         "p:[u64], b:{t}",          SECTION, store, sem=sems, t="b32 b64 u32 u64 s32 s64", access="store p global 1*{t}" + order, **COMMON),
        row("multimem.st{sem}.global{v}.{t}",                      "p:[u64], b:{t}*{n}",      SECTION, store, sem=sems, v_n_t=FLOATS, access="store p global {n}*{t}" + order, **COMMON),
    )
) + (
    row("multimem.red{sem}.global.{op}.{t}",                       "p:[u64], b:{t}",          SECTION, reduce, sem=f"- {RELAXED} {RELEASE}", op_t=INTEGERS, access="update p global 1*{t} relaxed.sys{sem}", **COMMON),
    row("multimem.red{sem}.global.{op}{v}.{t}",                    "p:[u64], b:{t}*{n}",      SECTION, reduce, op="add", sem=f"- {RELAXED} {RELEASE}", v_n_t=FLOATS, access="update p global {n}*{t} relaxed.sys{sem}", **COMMON),
    row(BULK.format("cp.async"),                                   "dst:[u64], src:[u32], size:u32", "9.7.9.26", store_bulk, access="store dst global size" + SOURCE, effects=SHARED_COPY, requires="90", ptx="9.1"),
    row(BULK.format("cp.reduce.async") + ".{op}.{t}",              "dst:[u64], src:[u32], size:u32", REDUCED, store_bulk, op_t=f"{INTEGERS} inc/u32 dec/u32 add/f32 add/f64 min/f16 min/bf16 max/f16 max/bf16", access="update dst global size*{t} relaxed.sys" + SOURCE, effects=SHARED_COPY, requires="90", ptx="9.1"),
    row(BULK.format("cp.reduce.async") + ".{op}.noftz.{t}",         "dst:[u64], src:[u32], size:u32", REDUCED, store_bulk, op="add", t="f16 bf16", access="update dst global size*{t} relaxed.sys" + SOURCE, effects=SHARED_COPY, requires="90", ptx="9.1"),
)
# fmt: on
