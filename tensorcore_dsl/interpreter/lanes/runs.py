"""Runs of steps of single threads: which steps of a program form one, and its compiled form.

A *row* stands for one elementary operation: its code, then (place, register of a group, bytes of a
register) for the result and for up to three operands, then literal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core.program import Fused, Program, Step
from tensorcore_dsl.interpreter.lanes.memory import ACCESS
from tensorcore_dsl.interpreter.lanes.runner import COLUMNS, FIRST, LITERALS, SLOTS
from tensorcore_dsl.isa.lanes import COPY, Access, access, operations
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.numerics.function_unit import for_lanes
from tensorcore_dsl.numerics.lanes import CODES, LANES, OPERATIONS

Slot = tuple[int, int, int]  # place, register of a group, bytes
Row = tuple[int, ...]
NOTHING: Slot = (0, 0, 0)


def row(
    name: str, bits: int, slots: Sequence[Slot], literals: Sequence[int] = ()
) -> Row | None:
    """The row of an operation on these registers; None where their sizes differ from its own."""
    operation = OPERATIONS[name, bits]
    widths = [bits // 8 for bits in (operation.result, *operation.operands)]
    if [width for _, _, width in slots] != widths:
        return None
    return _row(CODES[name, bits], slots, literals)


def access_row(access: Access, slots: Sequence[Slot], literals: Sequence[int]) -> Row:
    """The row of an access to memory; `literals`: see `lanes.memory`."""
    return _row(ACCESS + access.kind, slots, literals)


def _row(code: int, slots: Sequence[Slot], literals: Sequence[int]) -> Row:
    filled = (*slots, *[NOTHING] * (SLOTS - len(slots)))
    numbers = (number for slot in filled for number in slot)
    return (code, *numbers, *literals, *[0] * (COLUMNS - LITERALS - len(literals)))


def instruction_rows(
    instr: Instruction, results: Sequence[Slot], operands: Sequence[Slot],
    immediate: Mapping[int, int] | None = None,
) -> list[Row]:  # fmt: skip
    """The rows of an instruction; none if it has no compiled form.

    immediate: the numbers of immediate operands, whose slots are `NOTHING`.
    """
    found = []
    for op in operations(instr):
        target = NOTHING if op.result < 0 else results[op.result]
        numbers = for_lanes(op.function) if op.function else [
            *((immediate or {})[i] for i in op.literals), *op.constants
        ]  # fmt: skip
        slots = [target, *(operands[i] for i in op.operands)]
        found.append(row(op.name, op.bits, slots, numbers))
    rows = [r for r in found if r is not None]
    alone = len(found) < 2 or {s[0] for s in results}.isdisjoint(s[0] for s in operands)
    return rows if len(rows) == len(found) and alone else []


def copy_rows(target: Sequence[Slot], sources: Sequence[Slot]) -> list[Row]:
    """The rows of a copy of registers; none if a source is overwritten before it is read."""
    if len(target) > 1 and target[0][0] in {place for place, *_ in sources}:
        return []
    found = [row("copy", 8 * to[2], [to, of]) for to, of in zip(target, sources, strict=True)]
    return [r for r in found if r is not None] if None not in found else []


def runs_of(
    steps: Sequence[Step], rows: dict[int, list[Row]], heads: Iterable[int],
    flags: Iterable[int] = (),
) -> tuple[list[Fused], np.ndarray]:  # fmt: skip
    """The longest runs of steps that have rows, none across a position of `heads`.

    flags: places that count as written from the start.

    First those of the lowest level (see `Forms`), and of these those that need no whole warps; the
    others have parts that are runs, too.
    """
    heads = set(heads)
    found: list[Fused] = []
    table: list[Row] = []
    for level, whole in product((ALONE, WORDS, COPIES), (False, True)):
        fits = {
            at for at in rows if _level(steps[at]) <= level and _needs_warps(steps[at]) <= whole
        }
        start = 0
        while start < len(steps):
            end = start
            while end in fits and (end == start or end not in heads):
                end += 1
            part = steps[start:end]
            most = max(map(_level, part), default=-1), any(map(_needs_warps, part))
            if most == (level, whole):
                first = len(table)
                table += [r for at in range(start, end) for r in rows[at]]
                place = len(found), start, end, slice(first, len(table))
                reads, writes = uses_of(part)
                uses = reads, writes - set(flags)
                found.append(_run(part, rows, place, uses, level, whole))
            start = max(end, start + 1)
    return found, np.array(table, np.int64).reshape(-1, 1 + 3 * SLOTS + COLUMNS - LITERALS)


def _level(step: Step) -> int:
    how = None if step.instr is None else access(step.instr)
    return ALONE if how is None else COPIES if how.kind == COPY else WORDS


def _needs_warps(step: Step) -> bool:
    return step.instr is not None and not step.instr.effects.isdisjoint({"warp", "convergent"})


def _run(
    steps: Sequence[Step], rows: dict[int, list[Row]], place: tuple[int, int, int, slice],
    uses: tuple[frozenset[int], frozenset[int]], level: int, whole: bool,
) -> Fused:  # fmt: skip
    """The run of some steps; place: its number, first and last position, and rows."""
    positions: list[int] = []
    accesses = {}
    for at, step in enumerate(steps, place[1]):
        positions += [at] * len(rows[at])
        how = None if step.instr is None else access(step.instr)
        if how is not None:
            accesses[len(positions) - 1] = how
    return Fused(
        *place, *uses, level, tuple(positions), accesses, whole, _together(accesses.values())
    )


def _together(accesses: Iterable[Access]) -> int:
    """Threads that may execute a run with these accesses before others begin: they must not see nor
    overwrite what others store in the run."""
    uses = [use for how in accesses for use in how.traffic]
    spaces = [space for space, _ in uses]
    alone = all(spaces.count(space) == 1 for space, verb in uses if verb == "store")
    return TOGETHER if alone else 0


def uses_of(steps: Sequence[Step]) -> tuple[frozenset[int], frozenset[int]]:
    """The places that steps read before they write them, and those that they write."""
    reads: set[int] = set()
    writes: set[int] = set()
    for step in steps:
        reads |= {*step.reads, *step.copies} - writes
        writes.update(step.writes)
    return frozenset(reads), frozenset(writes)


ALONE, WORDS, COPIES = range(3)
TOGETHER = 256  # threads whose registers in a run, and the words that they load, stay in a cache


class Forms:
    """The compiled forms of a program's runs, for the registers of one machine.

    rows: the arrays of all operations; tables: of each run. level: the runs that may execute at
    once: -1: none. ALONE: those that access no memory. WORDS: also those with loads and stores.
    COPIES: also those with asynchronous copies. failed: (1,), for the row that fails a check.
    """

    def __init__(self, program: Program, addresses: np.ndarray, varying: np.ndarray, threads: int):
        rows = self.rows = located(program.rows, addresses, varying, threads)
        self.tables = [rows[part.rows] for part in program.fused]
        self.level = COPIES
        self.failed = np.empty(1, np.int64)


def located(table: np.ndarray, addresses: np.ndarray, varying: np.ndarray, threads: int) -> Any:
    """The rows with the addresses of registers, as `runner.run` takes them."""
    places, registers, widths = (table[:, 1 + i : 1 + 3 * SLOTS : 3] for i in range(3))
    moving = varying[places]
    out = np.empty((len(table), COLUMNS), np.int64)
    out[:, 0] = table[:, 0]
    out[:, FIRST:LITERALS:2] = addresses[places] + registers * moving * widths * threads
    out[:, FIRST + 1 : LITERALS : 2] = widths * moving * LANES
    out[:, LITERALS:] = table[:, 1 + 3 * SLOTS :]
    return out
