"""Steps of single threads that compiled code executes at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.program import AFTER, Fused, Run
from tensorcore_dsl.interpreter.core.team import ACCESS_COST, OPERATION_COST
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.lanes.memory import (
    OFFSET,
    SIZE,
    VALUES,
    addresses_of,
    run_with_accesses,
)
from tensorcore_dsl.interpreter.lanes.runner import address, perform_all
from tensorcore_dsl.isa import lanes

Execute = Callable[[Machine, np.ndarray], None]


def fused(alone: Run, part: Fused) -> Run:
    """All steps of `part`.

    `alone` executes the first of them. It is used where other threads stand at one of the next
    positions, and where some threads have not written what is read, so that errors are the same.
    """
    start, end, number = part.start, part.end, part.number
    counted = slice(start + 1, end)
    followed = _in_stretches(part) if part.accesses else _operations(part)
    free = _with_accesses(part) if part.accesses else _operations(part)

    def run(machine: Machine) -> int | None:
        ctx, registers, forms = machine.ctx, machine.registers, machine.forms
        new = registers.partial or not forms.settled[number]
        if (
            ctx.limit < end or part.level > forms.level
            or (part.whole and ctx.lanes != WARP * ctx.warps)
            or (new and registers.lacks(part.reads))
        ):  # fmt: skip
            return alone(machine)
        execute = free if ctx.sanitizer.detector is None else followed
        execute(machine, forms.tables[number])
        if new:
            registers.wrote_all(part.writes)
            forms.settled[number] = True
        ctx.tally.counts[counted] += ctx.warps
        return AFTER - end

    return run


def executed(part: Fused) -> Callable[[Machine], None]:
    """What executes a part without accesses to memory, all of whose operands are written."""

    def run(machine: Machine) -> None:
        table = machine.forms.tables[part.number]
        _operate(machine, part, table, 0, len(table))

    return run


def _operations(part: Fused) -> Execute:
    """The function that executes a part without accesses to memory."""
    return lambda machine, table: _operate(machine, part, table, 0, len(table))


def _with_accesses(part: Fused) -> Execute:
    """The function that executes a part with accesses to memory."""
    copies = [row for row, how in part.accesses.items() if how.kind == lanes.COPY]
    account = _traffic(part)

    def run(machine: Machine, table: np.ndarray) -> None:
        ctx, issued = machine.ctx, {}
        for row in copies:
            copy = ctx.async_copies.blank(ctx.mask, int(table[row, SIZE]), part.positions[row])
            table[row, SIZE + 1 :] = copy.addresses
            issued[row] = copy
        _move(machine, part, table, 0, len(table), issued)
        ctx.async_copies.queue += issued.values()
        account(machine)

    return run


def _in_stretches(part: Fused) -> Execute:
    """The same where races are looked for: the detector sees each access."""
    account = _traffic(part)

    def run(machine: Machine, table: np.ndarray) -> None:
        start = 0
        for row in part.accesses:
            if start < row:
                _operate(machine, part, table, start, row)
            machine.ctx.at_step = part.positions[row]
            _access(machine, part, table, row)
            start = row + 1
        if start < len(table):
            _operate(machine, part, table, start, len(table))
        account(machine)

    return run


def _operate(machine: Machine, part: Fused, table: np.ndarray, start: int, end: int) -> None:
    """Execute rows that access no memory."""
    ctx = machine.ctx

    def execute(first: int, last: int, failed: np.ndarray) -> int:
        wrong: int = perform_all(
            table, start, end, ctx.mask, ctx.active is None, first, last, failed
        )
        return wrong

    row, wrong = _by_blocks(machine, OPERATION_COST * (end - start), execute)
    if wrong:
        _refuse(machine, part, row, wrong)


def _by_blocks(
    machine: Machine, cost: float, execute: Callable[[int, int, np.ndarray], int]
) -> tuple[int, int]:
    """Execute rows in threads of the team, for some CTAs each; the first row that failed a check,
    and there the first mistake, or two zeros. cost: nanoseconds of a thread."""
    ctx = machine.ctx

    def some(first: int, last: int, _: int) -> tuple[int, int]:
        failed = np.zeros(1, np.int64)
        wrong = execute(first, last, failed)
        return int(failed[0]), wrong

    found = ctx.block_team.share_blocks(ctx.threads, ctx.group, cost, some)
    return min((pair for pair in found if pair[1]), default=(0, 0))


def _access(machine: Machine, part: Fused, table: np.ndarray, row: int) -> None:
    """Execute a load or a store, and show it to the detector."""
    ctx, how, numbers = machine.ctx, part.accesses[row], table[row]
    ((space, verb),) = _TRAFFIC[how.kind]
    is_global = space == "global"
    memory: Any = ctx.globals if is_global else ctx.shared
    addresses = np.empty(ctx.threads, np.uint64 if is_global else np.uint32)
    addresses_of(numbers, 1, int(numbers[OFFSET]), is_global, addresses)
    values = None
    if verb == "store":
        values = machine.registers.at(int(numbers[VALUES]), how.words, how.width)
    # Who finds that another chunk has stored here must also find what it has stored.
    lock = memory.sanitizer.detector.launch.access if is_global and verb == "store" else None
    with lock or nullcontext():
        found = memory.note(verb, addresses, ctx.mask, how.width * how.words, values)
        _move(machine, part, table, row, row + 1)
    if found is not None:
        found()


def _move(
    machine: Machine, part: Fused, table: np.ndarray, start: int, end: int,
    issued: dict[int, Any] | None = None,
) -> None:  # fmt: skip
    """Execute rows with accesses to memory; issued: their asynchronous copies."""
    ctx = machine.ctx
    storage, proxies = ctx.shared.storage, ctx.proxies
    narrow, wide = ctx.addresses

    def execute(first: int, last: int, failed: np.ndarray) -> int:
        wrong: int = run_with_accesses(
            address(), table, start, end, ctx.mask, ctx.active is None, ctx.globals.table,
            storage.data, storage.shadow, storage.checks, proxies.stamps, proxies.readers,
            proxies.epochs, first, last, failed, narrow, wide,
        )  # fmt: skip
        return wrong

    cost = OPERATION_COST * (end - start) + ACCESS_COST * len(part.accesses)
    row, wrong = _by_blocks(machine, cost, execute)
    if wrong:
        _refuse(machine, part, row, wrong, issued)


def _refuse(
    machine: Machine, part: Fused, row: int, wrong: int, issued: dict[int, Any] | None = None
) -> NoReturn:
    """Raise the error of a thread that failed a check in a row.

    The threads of its warp stand before the row, so its step gives the error, executed alone.
    """
    ctx, registers = machine.ctx, machine.registers
    at, thread = part.positions[row], wrong & 0xFFFFFFFF
    step = ctx.program.steps[at]
    registers.wrote_all(part.writes)
    try:
        if issued and row in issued:
            copy = issued[row]
            ctx.async_copies.refuse(wrong, copy.target, copy.source, copy.size, copy.valid)
        warp = np.zeros(ctx.threads, np.bool_)
        warp[thread // WARP * WARP :][:WARP] = True
        ctx.narrow(ctx.mask & warp)
        machine.forms.level = -1
        step.run(machine)
    except TensorCoreError as error:
        error.loc = error.loc or step.loc
        raise
    raise AssertionError(f"{step.instr}: thread {thread} failed a check in compiled code alone")


def _traffic(part: Fused) -> Callable[[Machine], None]:
    """What counts the accesses of a part."""
    traffic: Counter[tuple[str, str]] = Counter()
    uses: Counter[str] = Counter()
    for how in part.accesses.values():
        for space, verb in _TRAFFIC[how.kind]:
            traffic[space, verb] += how.width * how.words
            uses[verb] += 1

    def account(machine: Machine) -> None:
        ctx = machine.ctx
        for key, size in traffic.items():
            ctx.tally.bytes[key] += size * ctx.lanes
        ctx.reads += uses["load"]
        ctx.writes += uses["store"]

    return account


_TRAFFIC = {
    lanes.LOAD_GLOBAL: [("global", "load")],
    lanes.STORE_GLOBAL: [("global", "store")],
    lanes.LOAD_SHARED: [("shared", "load")],
    lanes.STORE_SHARED: [("shared", "store")],
    lanes.LOAD_MATRICES: [("shared", "load")],
    lanes.LOAD_TRANSPOSED: [("shared", "load")],
    lanes.COPY: [("global", "load"), ("shared", "store")],
}
