"""Positions and waits of the warps of a CTA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.geometry import ranges
from tensorcore_dsl.interpreter.display.contents import barrier_state
from tensorcore_dsl.interpreter.sync import barrier_phases as mbarriers
from tensorcore_dsl.ir.nodes import Mark
from tensorcore_dsl.isa import classify
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction


class Waits:
    """The waits of a machine's threads; `stopped` is the mark at which the active threads stand."""

    def __init__(self, ctx: Any, stopped: Mark | None) -> None:
        self.ctx, self.stopped = ctx, stopped

    def rows(self, first: int) -> Iterator[tuple[str, ...]]:
        ctx, part = self.ctx, slice(first, first + WARP)
        name = f"CTA {ctx.cta_name(first // ctx.group)}", f"warp {first % ctx.group // WARP}"

        def row(mask: np.ndarray, what: str) -> Iterator[tuple[str, ...]]:
            lanes = np.flatnonzero(mask[part])
            if len(lanes):
                yield (*name, f"lanes {ranges(lanes)}", what)

        mark = self.stopped
        yield from row(ctx.mask, f"stopped at {mark.loc if mark else '?'}")
        for at, cohort in sorted(ctx.cohorts.items()):
            instr = ctx.instruction(at)
            what = f"ready at {ctx.loc(at)}"
            if cohort.waiting:
                reasons = self._waits(cohort.mask & _only(part, ctx.threads), instr)
                what = f"waits at {ctx.loc(at)}: {'; '.join(reasons)}"
            yield from row(cohort.mask, what)
        exists = np.arange(ctx.threads) % ctx.group < ctx.threads_per_cta
        yield from row(ctx.gone & exists, "ended")

    def _waits(self, mask: np.ndarray, instr: Instruction | None) -> list[str]:
        """Describe the waits of the threads of `mask` at an instruction."""
        ctx = self.ctx
        if instr is None:
            return ["a branch"]
        if classify.uses_mbarrier(instr):
            return [self.mbarrier(*slot) for slot in ctx.mbarriers.waited_for(mask)]
        numbers = np.unique(ctx.barriers.waits_at[mask])
        if Effect.CLUSTER not in instr.effects and (numbers >= 0).any():
            cta = int(np.argmax(mask)) // ctx.group
            return [self.named_barrier(cta, int(n)) for n in numbers if n >= 0]
        return ctx.lacking(mask, instr) or [f"other lanes at {instr.mnemonic}"]

    def named_barrier(self, cta: int, number: int) -> str:
        barriers = self.ctx.barriers
        wanted, here = int(barriers.expected[cta, number]), int(barriers.arrived[cta, number])
        wanted = barriers.full if wanted < 0 else wanted
        return f"barrier {number}: {here} of {wanted} threads have arrived"

    def mbarrier(self, cta: int, slot: int) -> str:
        name = self.ctx.mbarriers.label(mbarriers.BYTES * slot)
        return f"{name}: {barrier_state(self.ctx, cta, slot)!r}"


def _only(part: slice, threads: int) -> np.ndarray:
    mask = np.zeros(threads, np.bool_)
    mask[part] = True
    return mask
