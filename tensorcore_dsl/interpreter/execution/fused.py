"""Steps of single threads that compiled code executes at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter.core.program import Fused, Run
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.lanes.memory import (
    FROM_OFFSET,
    OFFSET,
    SIZE,
    TO_OFFSET,
    run_with_accesses,
)
from tensorcore_dsl.interpreter.lanes.runner import run as execute
from tensorcore_dsl.isa import lanes
from tensorcore_dsl.isa.lanes import Access


def fused(alone: Run, part: Fused) -> Run:
    """All steps of `part`.

    `alone` executes the first of them. It is used where other threads stand at one of the next
    positions, and where some threads have not written what is read, so that errors are the same.
    """
    start, end, number = part.start, part.end, part.number
    counted = slice(start + 1, end)
    move = _accesses(part) if part.accesses else None

    def run(machine: Machine) -> int | None:
        ctx, registers, forms = machine.ctx, machine.registers, machine.forms
        new = registers.partial or not forms.settled[number]
        if ctx.limit < end or not forms.used or (new and registers.lacks(part.reads)):
            return alone(machine)
        if move is None:
            execute(forms.tables[number], ctx.mask, ctx.active is None)
        elif not forms.accesses or (part.whole and ctx.lanes != 32 * ctx.warps):
            return alone(machine)
        else:
            move(machine, forms.tables[number])
        if new:
            registers.wrote_all(part.writes)
            forms.settled[number] = True
        ctx.tally.counts[counted] += ctx.warps
        return end

    return run


def _accesses(part: Fused) -> Any:
    """The function that executes a part with accesses to memory."""
    traffic: Counter[tuple[str, str]] = Counter()
    uses: Counter[str] = Counter()
    for _, how in part.accesses.values():
        size = how.width * how.words
        for space, verb in _TRAFFIC[how.kind]:
            traffic[space, verb] += size
            uses[verb] += 1
    copies = [(row, at) for row, (at, how) in part.accesses.items() if how.kind == lanes.COPY]

    def run(machine: Machine, table: np.ndarray) -> None:
        ctx, failed = machine.ctx, np.zeros(1, np.int64)
        storage, proxies, issued = ctx.shared.storage, ctx.proxies, []
        for row, at in copies:
            copy = ctx.async_copies.blank(ctx.mask, int(table[row, SIZE]), at)
            table[row, SIZE + 1 :] = copy.addresses
            issued.append(copy)
        wrong = run_with_accesses(
            table, ctx.mask, ctx.active is None, ctx.globals.table, storage.data, storage.shadow,
            storage.checks, proxies.stamps, proxies.readers, proxies.epochs, failed,
        )  # fmt: skip
        if wrong:
            machine.registers.wrote_all(part.writes)
            at, how = part.accesses[int(failed[0])]
            _refuse(machine, wrong, at, how, table[int(failed[0])])
        ctx.async_copies.queue += issued
        for key, size in traffic.items():
            ctx.tally.bytes[key] += size * ctx.lanes
        ctx.reads += uses["load"]
        ctx.writes += uses["store"]

    return run


_TRAFFIC = {
    lanes.LOAD_GLOBAL: [("global", "load")],
    lanes.STORE_GLOBAL: [("global", "store")],
    lanes.LOAD_SHARED: [("shared", "load")],
    lanes.STORE_SHARED: [("shared", "store")],
    lanes.LOAD_MATRICES: [("shared", "load")],
    lanes.LOAD_TRANSPOSED: [("shared", "load")],
    lanes.COPY: [("global", "load"), ("shared", "store")],
}


def _refuse(machine: Machine, wrong: int, at: int, how: Access, row: np.ndarray) -> None:
    """Raise the error of a thread whose access, in the step `at`, failed a check."""
    ctx, step = machine.ctx, machine.ctx.program.steps[at]
    places = [machine.registers.values[place] for place in step.reads]
    try:
        if how.kind == lanes.COPY:
            target = places[0] + np.uint32(row[TO_OFFSET])
            source = places[1] + np.uint64(row[FROM_OFFSET])
            valid = np.broadcast_to(places[3] if len(places) > 3 else how.width, target.shape)
            ctx.async_copies.refuse(wrong, target, source, how.width, valid)
        memory: Any = ctx.globals if how.kind <= lanes.STORE_GLOBAL else ctx.shared
        addresses = places[0] + places[0].dtype.type(row[OFFSET])
        ((_, verb),) = _TRAFFIC[how.kind]
        memory.refuse(wrong, addresses, how.width * how.words, verb)
    except TensorCoreError as error:
        error.loc = error.loc or step.loc
        raise
