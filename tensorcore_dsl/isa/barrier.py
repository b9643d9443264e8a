"""Barriers of a CTA, nanosleep and trap (9.7.13.1, 9.7.19)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa.context import Context, active_threads
from tensorcore_dsl.isa.effects import BLOCKING, VOLATILE, Effect
from tensorcore_dsl.isa.memory import no_effect
from tensorcore_dsl.isa.spec import Instruction, row

CTA = BLOCKING | Effect.BARRIER  # also orders the memory accesses of the participating threads


def _ids(ctx: Context, value: Any) -> np.ndarray:
    return np.broadcast_to(np.asarray(value, np.uint32), (ctx.threads,))


def sync(ctx: Context, instr: Instruction, barrier: Any, count: Any = None) -> np.ndarray:
    """Arrive and wait for `count` threads (None: all threads of the CTA)."""
    return ctx.barriers.arrive(_ids(ctx, barrier), None if count is None else _ids(ctx, count), True)


def arrive(ctx: Context, instr: Instruction, barrier: Any, count: Any) -> np.ndarray:
    """Arrive without waiting."""
    return ctx.barriers.arrive(_ids(ctx, barrier), _ids(ctx, count), False)


def vote(ctx: Context, instr: Instruction, barrier: Any, *operands: Any) -> tuple[np.ndarray, np.ndarray]:
    """Wait for all participants and reduce their predicates."""
    *count, predicate = operands
    counts = _ids(ctx, count[0]) if count else None
    predicate = np.broadcast_to(np.asarray(predicate, bool), (ctx.threads,))
    go, true, arrived = ctx.barriers.arrive_counting(_ids(ctx, barrier), counts, predicate)
    op = instr.params["op"]
    if op == "popc":
        return go, true.astype(np.uint32)
    return go, true == arrived if op == "and" else true > 0


def trap(ctx: Context, instr: Instruction) -> None:
    if active_threads(ctx).any():
        raise EmulationError("the kernel executed trap")


SECTION = "9.7.13.1"
BAR: Any = {"ptx": "2.0"}
ALIGNED: Any = {"ptx": "6.0", "requires": "30", "al": "- .aligned"}
VOTES = "popc/u32 and/pred or/pred"

# fmt: off
ROWS = (
    #   mnemonic                            operands                                  section   execute  statement
    row("bar.sync",                         "id:u32",                                 SECTION,  sync,    effects=CTA),
    row("bar.sync.count",                   "id:u32, count:u32",                      SECTION,  sync,    effects=CTA, ptx="2.0", template="!bar.sync {id}, {count}"),
    row("barrier.sync{al}",                 "id:u32",                                 SECTION,  sync,    effects=CTA, **ALIGNED),
    row("barrier.sync{al}.count",           "id:u32, count:u32",                      SECTION,  sync,    effects=CTA, **ALIGNED, template="!barrier.sync{al} {id}, {count}"),
    *[each for _name, _al, _fields in (("bar", "", BAR), ("barrier", "{al}", ALIGNED)) for each in (
        row(f"{_name}.arrive{_al}",         "id:u32, count:u32",                      SECTION,  arrive,  effects=CTA, **_fields),
        row(f"{_name}.red.{{op}}{_al}.{{t}}", "d:{t} = id:u32, c:pred",               SECTION,  vote,    effects=CTA, **_fields, op_t=VOTES),
        row(f"{_name}.red.{{op}}{_al}.{{t}}.count", "d:{t} = id:u32, count:u32, c:pred", SECTION, vote,  effects=CTA, **_fields, op_t=VOTES, template=f"!{_name}.red.{{op}}{_al}.{{t}} {{d}}, {{id}}, {{count}}, {{c}}"),
    )],
    row("nanosleep.u32",                    "t:u32",                                  "9.7.19.2", no_effect, effects=VOLATILE, ptx="6.3", requires="70"),
    row("trap",                             "",                                       "9.7.19.4", trap,  effects=VOLATILE),
)
# fmt: on
