"""Warp-level exchange: shfl, vote, match, redux, elect (9.7.9.6, 9.7.13.2 to .14).

All threads of a member mask must execute the same instruction; arrays are (warps, 32).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.errors import Divergence
from tensorcore_dsl.isa import reductions
from tensorcore_dsl.isa.context import Context, active_threads
from tensorcore_dsl.isa.effects import VOLATILE, Effect
from tensorcore_dsl.isa.spec import Instruction, row

CONVERGENT = VOLATILE | Effect.CONVERGENT  # all threads of a mask take part; not moved across control flow
LANES = np.arange(32, dtype=np.int64)
ALL = np.uint32(0xFFFFFFFF)
BIT = np.uint32(1) << np.arange(32, dtype=np.uint32)


def warps(ctx: Context, value: Any) -> np.ndarray:
    """(T,) or a constant as (warps, 32)."""
    return np.broadcast_to(value, (ctx.threads,)).reshape(-1, 32)


def active(ctx: Context) -> np.ndarray:
    return warps(ctx, active_threads(ctx))


def members(ctx: Context, instr: Instruction, mask: Any) -> np.ndarray:
    """(warps, 32, 32) bool: [w, i, j] is True if lane j takes part with lane i.

    Raise Divergence if a lane of the mask does not execute the instruction (and has not returned), if a
    lane's mask omits the lane, or if lanes that meet have different masks.
    """
    full, broken = ctx.units(32)
    if np.ndim(mask) == 0 and mask == ALL and broken is None:
        return np.broadcast_to(full[:, None, None], (len(full), 32, 32))
    here = active(ctx)
    masks = warps(ctx, np.asarray(mask, np.uint32))
    named = (masks[:, :, None] & BIT) != 0
    exited = warps(ctx, False if ctx.exited is None else ctx.exited)
    bad = named & ~(here | exited)[:, None, :] & here[:, :, None]
    if bad.any():
        warp, lane, missing = (int(i) for i in np.argwhere(bad)[0])
        raise Divergence(
            f"{instr.mnemonic}: lane {lane} of warp {warp} names lane {missing}, which is not here"
        )
    alone = here & ~named[:, LANES, LANES]
    if alone.any():
        warp, lane = (int(i) for i in np.argwhere(alone)[0])
        raise Divergence(f"{instr.mnemonic}: lane {lane} of warp {warp} is not in its own mask")
    group = np.asarray(named & here[:, None, :])
    if (masks != masks[:, :1]).any():
        _check_alike(instr, masks, group & here[:, :, None])
    return group


def _check_alike(instr: Instruction, masks: np.ndarray, group: np.ndarray) -> None:
    """Divergence if a lane and a lane of its `group` (warps, 32, 32) have different masks."""
    differ = group & (masks[:, :, None] != masks[:, None, :])
    if differ.any():
        warp, lane, peer = (int(i) for i in np.argwhere(differ)[0])
        raise Divergence(
            f"{instr.mnemonic}: lanes of warp {warp} that meet name different masks, lane {lane} "
            f"{int(masks[warp, lane]):#010x} and lane {peer} {int(masks[warp, peer]):#010x}"
        )


def shuffle(ctx: Context, instr: Instruction, a: Any, b: Any, c: Any, mask: Any) -> Any:
    """shfl.sync: a lane keeps its own value if the source lane is out of range."""
    if ctx.active is not None or not (np.asarray(mask) == ALL).all():
        members(ctx, instr, mask)
    value, step, clamp = (warps(ctx, x) for x in (a, b, c))
    step, clamp = step.astype(np.int64) & 31, clamp.astype(np.int64)
    segment, bound = clamp >> 8 & 31, clamp & 31
    low = LANES & segment
    last = low | bound & ~segment & 31
    source = {
        "up": LANES - step,
        "down": LANES + step,
        "bfly": LANES ^ step,
        "idx": low | step & ~segment & 31,
    }[instr.params["mode"]]
    inside = source >= last if instr.params["mode"] == "up" else source <= last
    source = np.where(inside, source, LANES)
    missing = active(ctx) & ~np.take_along_axis(active(ctx), source, axis=1)
    if missing.any():
        warp, lane = (int(i) for i in np.argwhere(missing)[0])
        raise Divergence(
            f"{instr.mnemonic}: lane {lane} of warp {warp} reads lane {int(source[warp, lane])}, "
            "which is not active"
        )
    result = np.take_along_axis(value, source, axis=1).ravel()
    return (result, inside.ravel()) if instr.params.get("out") else result


def vote(ctx: Context, instr: Instruction, predicate: Any, mask: Any) -> np.ndarray:
    """vote.sync over the lanes of each lane's mask."""
    group = members(ctx, instr, mask)
    true = group & warps(ctx, np.asarray(predicate, bool))[:, None, :]
    count, total = true.sum(-1), group.sum(-1)
    result = {
        "all": count == total,
        "any": count > 0,
        "uni": (count == 0) | (count == total),
        "ballot": _mask(true),
    }[instr.params["mode"]]
    return np.asarray(result).ravel()


def _mask(bits: np.ndarray) -> np.ndarray:
    """(..., 32) bool to uint32, lane 0 lowest."""
    return np.asarray((bits * BIT).sum(-1, dtype=np.uint64)).astype(np.uint32)


def match(ctx: Context, instr: Instruction, a: Any, mask: Any) -> Any:
    """match.sync: the lanes that hold the same value (any), or whether all do (all)."""
    group = members(ctx, instr, mask)
    value = warps(ctx, a)
    same = group & (value[:, :, None] == value[:, None, :])
    if instr.params["mode"] == "any":
        return _mask(same).ravel()
    every = (same == group).all(-1)
    result = np.where(every, _mask(group), np.uint32(0)).ravel()
    return (result, every.ravel()) if instr.params.get("out") else result


def reduce(ctx: Context, instr: Instruction, a: Any, mask: Any) -> np.ndarray:
    """redux.sync: every lane gets the reduction over its mask."""
    group = members(ctx, instr, mask)
    op, kind = instr.params["op"], instr.params["t"]
    value = warps(ctx, np.asarray(a, np.uint32))
    if kind == "f32":
        return _reduce_float(instr, group, value).ravel()
    signed = value.view(np.int32) if kind == "s32" else value
    # Lanes outside the mask hold what changes nothing: zero, or the value of the lane itself.
    outside = np.zeros_like(signed) if op in ("add", "xor") else signed
    lanes = np.where(group, signed[:, None, :], outside[:, :, None])
    ufunc: Any = (reductions.INTEGERS | reductions.BIT_UPDATES)[op]
    return np.asarray(ufunc.reduce(lanes, axis=-1, dtype=signed.dtype)).view(np.uint32).ravel()


def _reduce_float(instr: Instruction, group: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """min or max with +0 above -0; a result without numbers is the canonical NaN."""
    if instr.params.get("abs"):
        bits = bits & np.uint32(0x7FFFFFFF)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > 0x7F800000
    key = np.where(bits >> 31, -(bits & 0x7FFFFFFF).astype(np.int64) - 1, bits.astype(np.int64))
    least = instr.params["op"] == "min"
    worst = np.int64(1) << 40
    used = group & ~is_nan[:, None, :]
    lanes = np.where(used, key[:, None, :], worst if least else -worst)
    best = lanes.min(-1) if least else lanes.max(-1)
    result = np.where(best < 0, 0x80000000 | (-best - 1), best) & 0xFFFFFFFF
    empty = ~used.any(-1)
    if instr.params.get("nan"):
        empty |= (group & is_nan[:, None, :]).any(-1)
    return np.where(empty, 0x7FFFFFFF, result).astype(np.uint32)


def active_mask(ctx: Context, instr: Instruction) -> np.ndarray:
    masks = _mask(active(ctx))
    return np.repeat(masks, 32)


def elect(ctx: Context, instr: Instruction, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """elect.sync: elect the lowest lane of the mask, or the highest if `ctx.unusual`. PTX allows any."""
    group = members(ctx, instr, mask)
    leader = 31 - group[..., ::-1].argmax(-1) if ctx.unusual else group.argmax(-1)
    return leader.astype(np.uint32).ravel(), (leader == LANES).ravel()


def warp_sync(ctx: Context, instr: Instruction, mask: Any) -> None:
    members(ctx, instr, mask)


SYNC: Any = {"effects": CONVERGENT, "requires": "30", "ptx": "6.0"}

# fmt: off
ROWS = (
    #   mnemonic                        operands                                             section      execute   axes
    row("shfl.sync.{mode}.b32",         "d:b32 = a:b32, b:u32, c:u32, mask:u32",             "9.7.9.6",   shuffle,  mode="up down bfly idx", **SYNC),
    row("shfl.sync.{mode}.b32.{out}",   "d:b32, p:pred = a:b32, b:u32, c:u32, mask:u32",     "9.7.9.6",   shuffle,  mode="up down bfly idx", out="pred", **SYNC,
        template="!shfl.sync.{mode}.b32 {d}|{p}, {a}, {b}, {c}, {mask}"),
    row("bar.warp.sync",                "mask:u32",                                          "9.7.13.2",  warp_sync, effects=CONVERGENT | Effect.BARRIER, requires="30", ptx="6.0"),
    row("vote.sync.{mode}.pred",        "d:pred = a:pred, mask:u32",                         "9.7.13.9",  vote,     mode="all any uni", **SYNC),
    row("vote.sync.{mode}.b32",         "d:b32 = a:pred, mask:u32",                          "9.7.13.9",  vote,     mode="ballot", **SYNC),
    row("match.{mode}.sync.{t}",        "d:b32 = a:{t}, mask:u32",                           "9.7.13.10", match,    mode="any all", t="b32 b64", effects=CONVERGENT, requires="70", ptx="6.0"),
    row("match.all.sync.{t}.{out}",      "d:b32, p:pred = a:{t}, mask:u32",                   "9.7.13.10", match,    mode="all", t="b32 b64", out="pred", effects=CONVERGENT, requires="70", ptx="6.0",
        template="!match.all.sync.{t} {d}|{p}, {a}, {mask}"),
    row("activemask.b32",               "d:b32 =",                                            "9.7.13.11", active_mask, effects=CONVERGENT, requires="30", ptx="6.2"),
    row("redux.sync.{op}.{t}",          "d:{t} = a:{t}, mask:u32",                           "9.7.13.12", reduce,   op="add min max", t="u32 s32", effects=CONVERGENT, requires="80", ptx="7.0"),
    row("redux.sync.{op}.{t}",          "d:{t} = a:{t}, mask:u32",                           "9.7.13.12", reduce,   op="and or xor", t="b32", effects=CONVERGENT, requires="80", ptx="7.0"),
    row("redux.sync.{op}{abs}{nan}.{t}", "d:{t} = a:{t}, mask:u32",                          "9.7.13.12", reduce,   op="min max", abs="- .abs", nan="- .NaN", t="f32", effects=CONVERGENT, requires="100a", ptx="8.6"),
    row("elect.sync",                   "d:u32, p:pred = mask:u32",                          "9.7.13.14", elect,    effects=CONVERGENT, requires="90", ptx="8.0", template="{d}|{p}, {mask}"),
)
# fmt: on
