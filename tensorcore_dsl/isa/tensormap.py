"""Tensor maps that kernels change in memory, and the fences of their proxy (9.7.9.28, 9.7.13.16, .4).

A tensor map is 128 bytes that nobody interprets but `tensormap.replace` and tensor copies. The
emulator has a layout of its own for them, `OBJECT`, which starts as zeros, as that of GPUs does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa import generic
from tensorcore_dsl.isa.context import Context, active_threads
from tensorcore_dsl.isa.effects import VOLATILE, WARP
from tensorcore_dsl.isa.spec import Instruction, row

ADDRESS = "global_address"
VIRTUAL = 1 << 63  # With this bit, the address of a map is one of the launch.
# The address is that of the array on the host, without VIRTUAL. rank, box_dim: one less than the number of axes and the
# extents. strides: in 16 bytes, of all axes but the innermost. All is in the first half: CuTe DSL copies no more.
OBJECT = np.dtype(
    [(ADDRESS, "u8"), ("global_stride", "u4", 4), ("global_dim", "u4", 5), ("box_dim", "u1", 5),
     ("element_stride", "u1", 5), ("rank", "u1"), ("elemtype", "u1"), ("interleave_layout", "u1"),
     ("swizzle_mode", "u1"), ("swizzle_atomicity", "u1"), ("fill_mode", "u1"), ("unused", "V68")]
)  # fmt: skip
PARTS = (0, 64)  # a map is aligned to 64 bytes, and so are its halves, of 8 words each


def replace(ctx: Context, instr: Instruction, p: Any, *operands: Any) -> None:
    """tensormap.replace: `operands` ends with the new value, after the number of the axis if there is one."""
    memory: Any = ctx.globals if instr.space == "global" else ctx.shared
    halves = [memory.load(ctx, p + p.dtype.type(at), 8, 8) for at in PARTS]
    maps = np.ascontiguousarray(np.concatenate(halves).T).view(OBJECT)[:, 0]
    name, (*axis, value) = instr.params["field"], operands
    if name == ADDRESS:  # other launches may have another one for the array
        value = ctx.globals.home(np.broadcast_to(value, len(maps)))
    maps[name][(slice(None), *axis)] = _encoded(ctx, name, value, maps.dtype[name].base)
    words = np.ascontiguousarray(maps.view(np.uint64).reshape(len(maps), 16).T)
    for at in PARTS:
        memory.store(ctx, p + p.dtype.type(at), words[at // 8 : at // 8 + 8])
    if instr.space == "global":
        ctx.maps.replaced(ctx, p)


def _encoded(ctx: Context, name: str, value: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Convert the values of a field to what `OBJECT` holds; refuse others."""
    unit, least = {"global_stride": (16, 0), "box_dim": (1, 1)}.get(name, (1, 0))
    values = np.broadcast_to(value, ctx.threads).astype(np.uint64)
    encoded = ((values - np.uint64(least)) // np.uint64(unit)).astype(dtype)
    rounded = encoded.astype(np.uint64) * np.uint64(unit) + np.uint64(least) != values
    rounded &= active_threads(ctx)
    if rounded.any():
        raise EmulationError(
            f"tensormap.replace makes {name} {values[rounded][0]}; box_dim is 1 to 256, and global_stride a "
            "multiple of 16 bytes (the emulator has strides below 64 GiB)"
        )
    return encoded


def copy_released(ctx: Context, instr: Instruction, dst: Any, src: Any, size: int) -> None:
    """tensormap.cp_fenceproxy: each warp copies one map."""
    ctx.whole_warps()
    active = active_threads(ctx)
    first: Any = generic.Lanes(ctx, active & (np.arange(ctx.threads) % 32 == 0))
    for at in PARTS:
        ctx.globals.store(first, dst + np.uint64(at), ctx.shared.load(first, src + np.uint32(at), 8, 8))
    ctx.maps.released(first, dst)


def release(ctx: Context, instr: Instruction) -> None:
    ctx.maps.released(ctx)


def acquire(ctx: Context, instr: Instruction, p: Any, size: int) -> None:
    ctx.maps.acquired(ctx, p)


REPLACE, FENCE = "9.7.9.28", "9.7.13.4"
AXES = "#u32(0|1|2|3|4)"
SPACE = "global/u64 shared::cta/u32"
TEXT = "tensormap.replace.tile.{field}.{s}.b1024.{t}"
TARGETS: Any = {
    "requires": "90a 100f 110f 120f",
    "ptx": "8.3",
    "s_a": SPACE,
    "access": "update p {s} 16*b64",
    "effects": VOLATILE,
}
NEWER: Any = TARGETS | {"requires": "100f 110f 120f", "ptx": "8.6"}
SCOPE = "cta cluster gpu sys"

# fmt: off
ROWS = (
    row(TEXT, "p:[{a}], value:{t}",                          REPLACE, replace, field_t=f"{ADDRESS}/b64 rank/b32", **TARGETS),
    row(TEXT, f"p:[{{a}}], ord:{AXES}, value:b32",           REPLACE, replace, field="box_dim global_dim element_stride", t="b32", **TARGETS),
    row(TEXT, "p:[{a}], ord:#u32(0|1|2|3), value:b64",       REPLACE, replace, field="global_stride", t="b64", **TARGETS),
    row(TEXT, "p:[{a}], value:#u32(0|1|2|3|4|5|6|7|8|9|10|11|12)", REPLACE, replace, field="elemtype", t="b32", **TARGETS),
    row(TEXT, "p:[{a}], value:#u32(0|1|2)",                  REPLACE, replace, field="interleave_layout", t="b32", **TARGETS),
    row(TEXT, "p:[{a}], value:#u32(0|1|2|3)",                REPLACE, replace, field="swizzle_mode", t="b32", **TARGETS),
    row(TEXT, "p:[{a}], value:#u32(0|1|2|3)",                REPLACE, replace, field="swizzle_atomicity", t="b32", **NEWER),
    row(TEXT, "p:[{a}], value:#u32(0|1)",                    REPLACE, replace, field="fill_mode", t="b32", **TARGETS),
    row("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope}.sync.aligned", "dst:[u64], src:[u32], size:#u32(128)", "9.7.13.16", copy_released, scope=SCOPE, access="store dst global 16*b64 lanes=1; load src shared::cta 16*b64 lanes=1", effects=WARP | VOLATILE, requires="90", ptx="8.3"),
    row("fence.proxy.tensormap::generic.release.{scope}", "",                                FENCE, release, scope=SCOPE, effects=VOLATILE, requires="90", ptx="8.3"),
    row("fence.proxy.tensormap::generic.acquire.{scope}", "p:[u64], size:#u32(128)",         FENCE, acquire, scope=SCOPE, access="hint p global 128", effects=VOLATILE, requires="90", ptx="8.3"),
)
# fmt: on
