"""Runs of steps of single threads: which steps of a program form one, and its compiled form.

A *row* stands for one elementary operation: its code, then (place, register of a group, bytes of a
register) for the result and for up to three operands, then literal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core.program import Fused, Program, Step
from tensorcore_dsl.interpreter.lanes.memory import ACCESS
from tensorcore_dsl.interpreter.lanes.runner import COLUMNS, FIRST, LITERALS, SLOTS
from tensorcore_dsl.isa.lanes import Access, access, operations
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.numerics.function_unit import for_lanes
from tensorcore_dsl.numerics.lanes import CODES, LANES, OPERATIONS

Slot = tuple[int, int, int]  # place, register of a group, bytes
Row = tuple[int, ...]
NOTHING: Slot = (0, 0, 0)


def row(name: str, bits: int, slots: Sequence[Slot], function: str = "") -> Row | None:
    """The row of an operation on these registers; None where their sizes differ from its own.

    function: of the function unit, if the operation calls one.
    """
    operation = OPERATIONS[name, bits]
    widths = [bits // 8 for bits in (operation.result, *operation.operands)]
    if [width for _, _, width in slots] != widths:
        return None
    return _row(CODES[name, bits], slots, for_lanes(function) if function else ())


def access_row(access: Access, slots: Sequence[Slot], literals: Sequence[int]) -> Row:
    """The row of an access to memory; `literals`: see `lanes.memory`."""
    return _row(ACCESS + access.kind, slots, literals)


def _row(code: int, slots: Sequence[Slot], literals: Sequence[int]) -> Row:
    filled = (*slots, *[NOTHING] * (SLOTS - len(slots)))
    numbers = (number for slot in filled for number in slot)
    return (code, *numbers, *literals, *[0] * (COLUMNS - LITERALS - len(literals)))


def instruction_rows(
    instr: Instruction, results: Sequence[Slot], operands: Sequence[Slot]
) -> list[Row]:
    """The rows of an instruction; none if it has no compiled form."""
    found = [
        row(
            op.name, op.bits, [results[op.result], *(operands[i] for i in op.operands)], op.function
        )
        for op in operations(instr)
    ]
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
    steps: Sequence[Step], rows: dict[int, list[Row]], heads: Iterable[int]
) -> tuple[list[Fused], np.ndarray]:
    """The longest runs of two operations or more, or an access, none across a position of `heads`.

    First those without accesses to memory, then those with some, of which the former are parts.
    """
    heads = set(heads)
    found: list[Fused] = []
    table: list[Row] = []
    for with_accesses in (False, True):
        start = 0
        while start < len(steps):
            end = start
            while end in rows and (end == start or end not in heads):
                if not with_accesses and rows[end][0][0] >= ACCESS:
                    break
                end += 1
            part = [(r, at) for at in range(start, end) for r in rows[at]]
            accesses = {
                i: (at, access(instr))
                for i, (r, at) in enumerate(part)
                if r[0] >= ACCESS and (instr := steps[at].instr) is not None
            }
            if (accesses or len(part) > 1) and bool(accesses) == with_accesses:
                whole = slice(len(table), len(table) + len(part))
                uses = _uses(steps[start:end])
                warps = any("warp" in s.instr.effects for s in steps[start:end] if s.instr)
                found.append(Fused(len(found), start, end, whole, *uses, accesses, warps))
                table += [r for r, _ in part]
            start = max(end, start + 1)
    return found, np.array(table, np.int64).reshape(-1, 1 + 3 * SLOTS + COLUMNS - LITERALS)


def _uses(steps: Sequence[Step]) -> tuple[frozenset[int], frozenset[int]]:
    """The places that steps read before they write them, and those that they write."""
    reads: set[int] = set()
    writes: set[int] = set()
    for step in steps:
        reads |= {*step.reads, *step.copies} - writes
        writes.update(step.writes)
    return frozenset(reads), frozenset(writes)


class Forms:
    """The compiled forms of a program's runs, for the registers of one machine.

    tables: the arrays of operations. settled: have the registers that a run writes been written?
    used: may runs execute at once? accesses: may they access memory, of which nobody is told?
    """

    def __init__(self, program: Program, addresses: np.ndarray, varying: np.ndarray, threads: int):
        rows = located(program.rows, addresses, varying, threads)
        self.tables = [rows[part.rows] for part in program.fused]
        self.settled = [False] * len(self.tables)
        self.used = self.accesses = True


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
