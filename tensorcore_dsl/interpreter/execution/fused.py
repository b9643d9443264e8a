"""Steps of single threads that compiled code executes at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import RegisterUse
from tensorcore_dsl.isa.lanes import COPY, Access

Execute = Callable[[Machine, np.ndarray], None]
Failure = tuple[int, int]  # a row that failed a check, and there the first mistake


def fused(alone: Run, part: Fused, uses: Sequence[RegisterUse] = ()) -> Run:
    """All steps of `part`.

    `alone` executes the first of them. It is used where other threads stand at one of the next
    positions, and where some threads have not written what is read, so that errors are the same.
    uses: what the steps use of the registers of asynchronous products.
    """
    start, end, number = part.start, part.end, part.number
    level, whole = part.level, part.whole
    several, behind = end > start + 1, (start + 1, end)
    followed = free = executed(part)
    if part.accesses:
        followed, free = _in_stretches(part), _with_accesses(part)

    def run(machine: Machine) -> int | None:
        ctx, registers, forms = machine.ctx, machine.registers, machine.forms
        key = number, id(ctx.mask)
        new = key not in registers.settled
        if (
            ctx.limit < end or level > forms.level
            or (whole and ctx.lanes != WARP * ctx.warps)
            or (new and registers.lacks(part.reads))
        ):  # fmt: skip
            return alone(machine)
        if uses and ctx.proxies.tracked:
            ctx.async_mma.access(uses)
        execute = free if ctx.sanitizer.detector is None else followed
        execute(machine, forms.tables[number])
        if new:
            registers.wrote_all(part.writes)
            registers.settled.keep(key, ctx.mask)
        if several:
            ctx.tally.behind[behind] += ctx.warps
        return AFTER - end

    return run


def executed(part: Fused) -> Execute:
    """What executes a part without accesses to memory, all of whose operands are written."""
    count = part.rows.stop - part.rows.start

    def run(machine: Machine, table: np.ndarray) -> None:
        ctx = machine.ctx
        if ctx.block_team.size > 1:
            _operate(part, 0, count, machine, table)
            return
        failed = machine.forms.failed
        wrong = perform_all(table, 0, count, ctx.mask, ctx.active is None, 0, ctx.threads, failed)
        if wrong:
            refuse(machine, part, int(failed[0]), wrong)

    return run


def _with_accesses(part: Fused) -> Execute:
    """The function that executes a part with accesses to memory."""
    copies = [row for row, how in part.accesses.items() if how.kind == COPY]
    account = traffic(part.accesses.values())

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
    account = traffic(part.accesses.values())

    def run(machine: Machine, table: np.ndarray) -> None:
        start = 0
        for row in part.accesses:
            if start < row:
                _operate(part, start, row, machine, table)
            machine.ctx.at_step = part.positions[row]
            _access(machine, part, table, row)
            start = row + 1
        if start < len(table):
            _operate(part, start, len(table), machine, table)
        account(machine)

    return run


def _operate(part: Fused, start: int, end: int, machine: Machine, table: np.ndarray) -> None:
    """Execute rows that access no memory."""
    ctx = machine.ctx
    mask, everybody = ctx.mask, ctx.active is None

    def some(first: int, last: int, _: int) -> Failure | None:
        failed = np.empty(1, np.int64)
        wrong = perform_all(table, start, end, mask, everybody, first, last, failed)
        return (int(failed[0]), wrong) if wrong else None

    _by_blocks(machine, part, OPERATION_COST * (end - start), some)


def _by_blocks(
    machine: Machine, part: Fused, cost: float,
    some: Callable[[int, int, int], Failure | None], issued: dict[int, Any] | None = None,
) -> None:  # fmt: skip
    """Execute rows in threads of the team, for some CTAs each, and raise the error of the first
    that fails. cost: nanoseconds of a thread; issued: asynchronous copies of the rows."""
    ctx = machine.ctx
    found = ctx.block_team.share_blocks(ctx.threads, ctx.group, cost, some)
    if any(found):
        row, wrong = min(failure for failure in found if failure)
        refuse(machine, part, row, wrong, issued)


def _access(machine: Machine, part: Fused, table: np.ndarray, row: int) -> None:
    """Execute a load or a store, and show it to the detector."""
    ctx, how, numbers = machine.ctx, part.accesses[row], table[row]
    ((space, verb),) = how.traffic
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

    def some(first: int, last: int, _: int) -> Failure | None:
        failed = np.empty(1, np.int64)
        wrong = run_with_accesses(
            address(), table, start, end, ctx.mask, ctx.active is None, ctx.globals.table,
            storage.data, storage.states, storage.pages, storage.checks, proxies.stamps,
            proxies.readers, proxies.epochs, first, last, failed, narrow, wide,
            part.together or last - first,
        )  # fmt: skip
        return (int(failed[0]), wrong) if wrong else None

    cost = OPERATION_COST * (end - start) + ACCESS_COST * len(part.accesses)
    _by_blocks(machine, part, cost, some, issued)


def refuse(
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
            ctx.async_copies.refuse(wrong, copy)
        warp = np.zeros(ctx.threads, np.bool_)
        warp[thread // WARP * WARP :][:WARP] = True
        ctx.narrow(ctx.mask & warp)
        machine.forms.level = -1
        step.run(machine)
    except TensorCoreError as error:
        error.loc = error.loc or step.loc
        raise
    raise AssertionError(f"{step.instr}: thread {thread} failed a check in compiled code alone")


def traffic(accesses: Iterable[Access]) -> Callable[[Machine], None]:
    """What counts these accesses of the active threads."""
    sizes: Counter[tuple[str, str]] = Counter()
    uses: Counter[str] = Counter()
    for how in accesses:
        for space, verb in how.traffic:
            sizes[space, verb] += how.width * how.words
            uses[verb] += 1

    def account(machine: Machine) -> None:
        ctx = machine.ctx
        for key, size in sizes.items():
            ctx.tally.bytes[key] += size * ctx.lanes
        ctx.reads += uses["load"]
        ctx.writes += uses["store"]

    return account
