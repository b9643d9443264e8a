"""Strips: loads of shared memory, arithmetic and matrix products of warps, in a row.

Their registers do not fit a processor's cache if each step passes over all threads of a chunk. So a
few CTAs at a time, a *strip*, execute all of a region before the next ones begin. Nothing in it
lets threads see what others do, so the results are the same, and so are the errors: the first step
with a failed check counts, and there the first thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from tensorcore_dsl.interpreter.core import native
from tensorcore_dsl.interpreter.core.chunk import WARP, Chunk
from tensorcore_dsl.interpreter.core.native import run_part
from tensorcore_dsl.interpreter.core.program import AFTER, Program, Run, Step
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.execution.steps import Products
from tensorcore_dsl.interpreter.regions import layout
from tensorcore_dsl.interpreter.regions.code import Code
from tensorcore_dsl.interpreter.regions.frame import Frame
from tensorcore_dsl.interpreter.regions.plan import ALL, Flow, Region, straight, uses_of
from tensorcore_dsl.interpreter.regions.run import cost_of, frame_of, refuse, traffic
from tensorcore_dsl.isa import fragments
from tensorcore_dsl.isa.lanes import LOAD_MATRICES, LOAD_SHARED, LOAD_TRANSPOSED, access
from tensorcore_dsl.numerics.blocks import LEFT

STRIP = 1 << 20  # bytes of registers and shared memory of a strip, which stay in a cache
_LOADS = (LOAD_SHARED, LOAD_MATRICES, LOAD_TRANSPOSED)
Item = Union[Region, Products]

# Columns of the table of items: where their code and its words are, and threads of a unit of the
# bounds that it takes.
FUNCTION, BLOCK, UNIT, COLUMNS = range(4)
# What `_strips` notes: where it stopped, and the item with the first mistake.
AT_STRIP, AT_ITEM, ITEM, STATE = range(4)


@dataclass(frozen=True)
class Row:
    """The steps from `start` to `end`, as items. code: of those that are regions. reads: places
    that they must find written; writes: places that they write."""

    start: int
    end: int
    items: tuple[Item, ...]
    code: Code
    reads: frozenset[int]
    writes: frozenset[int]


def strips_of(
    program: Program, flow: Flow, products: dict[int, Products], heads: Iterable[int]
) -> list[Row]:
    """The longest rows of at least two items, with a product, none across a position of `heads`.

    products: by position, those that execute at once.
    """
    steps, heads, found, at = program.steps, set(heads), [], 0
    while at < len(steps):
        start = at
        items: list[Item] = []
        while at < len(steps) and (at == start or at not in heads):
            item = products.get(at) or _loads(program, flow, at, heads)
            if item is None:
                break
            items.append(item)
            at = item.end
        if len(items) > 1 and any(isinstance(item, Products) for item in items):
            code = Code(program, [item for item in items if isinstance(item, Region)])
            reads, writes = uses_of(steps[start:at])
            found.append(Row(start, at, tuple(items), code, reads - program.fixed, writes))
        at = max(at, start + 1)
    return found


def _loads(program: Program, flow: Flow, start: int, heads: set[int]) -> Region | None:
    """The longest run from a position on that computes, or loads from shared memory."""
    end = start
    while (
        end in program.rows and (end == start or end not in heads)
        and program.steps[end].guard is None and _only_loads(program.steps[end])
    ):  # fmt: skip
        end += 1
    return straight(program, flow, [range(start, end)]) if end > start else None


def _only_loads(step: Step) -> bool:
    how = None if step.instr is None else access(step.instr)
    return how is None or how.kind in _LOADS


def in_strips(alone: Run, row: Row) -> Run:
    """All steps of a row; `alone` executes the first of them."""
    start, end = row.start, row.end
    instructions = {item.instr for item in row.items if isinstance(item, Products)}
    account = traffic(
        how
        for item in row.items if isinstance(item, Region)
        for how in item.accesses
    )  # fmt: skip

    def in_blocks(ctx: Any) -> bool:
        return all(fragments.are_blocks(ctx, instr) for instr in instructions)

    def run(machine: Machine) -> int | None:
        ctx, registers = machine.ctx, machine.registers
        if (
            ctx.limit < end or machine.level != ALL
            or ctx.lanes != WARP * ctx.warps
        ):  # fmt: skip
            registers.fill()
            return alone(machine)
        strips = machine.strips.get(start)
        if strips is None or registers.partial:
            if registers.lacks(row.reads) or not in_blocks(ctx):
                registers.fill()
                return alone(machine)
            registers.clear(row.writes)
            registers.wrote_all(row.writes)
            if strips is None:
                strips = machine.strips[start] = Strips(machine, row)
        strips.run()
        account(machine, ctx.lanes)
        ctx.tally.behind[start + 1, end] += ctx.warps
        return AFTER - end

    return run


class Strips:
    """A row of one machine."""

    def __init__(self, machine: Machine, row: Row) -> None:
        self.machine, self.row = machine, row
        ctx = machine.ctx
        places = list(row.reads | row.writes)
        held = int(ctx.program.sizes[places].sum()) * ctx.group + ctx.shared.storage.size
        self.size = max(STRIP // held, 1) * ctx.group
        self.cost = 0.0
        self.uses: dict[int, tuple[Any, np.ndarray]] = {}  # products, and what is left of them
        for i, item in enumerate(row.items):
            if isinstance(item, Region):
                self.cost += cost_of(item)
            else:
                left = np.zeros((len(item.uses), ctx.threads // WARP), np.bool_)
                uses = item.prepared(machine)
                self.uses[i] = uses, left
                self.cost += uses.cost / WARP
        self.parts: dict[int, _Parts] = {}

    def run(self) -> None:
        """Execute all items, in threads of the team, and raise the error of the first that fails.
        """
        ctx = self.machine.ctx
        found = ctx.team.share_blocks(ctx.threads, ctx.group, self.cost, self._some)
        if any(found):
            _, _, part, item = min(failure for failure in found if failure)
            refuse(self.machine, self.parts[part].frames[item].mistake)

    def _some(self, low: int, high: int, number: int) -> tuple[int, ...] | None:
        """Execute all items for the threads from `low` to `high`; where the first mistake is."""
        parts = self.parts.get(number)
        if parts is None:
            parts = self.parts[number] = _Parts(self, number)
        parts.narrow(self.machine.ctx)
        state, at = parts.state, 0
        state[ITEM] = len(parts.items)
        while _strips(parts.items, at, low, high, self.size, state):
            low, at = int(state[AT_STRIP]), int(state[AT_ITEM])
            uses, left = self.uses[at]
            last = min(low + self.size, high)  # the threads behind are another one's
            own, warps = np.zeros_like(left), slice(low // WARP, last // WARP)
            own[:, warps] = left[:, warps]
            uses.finish(own)
            left[:, warps] = False
            at += 1
        item = int(state[ITEM])
        if item == len(parts.items):
            return None
        at, wrong = parts.frames[item].mistake[: layout.LANES_THERE].tolist()
        return at, wrong, number, item


class _Parts:
    """The compiled code of a region's items, for one thread of the team."""

    def __init__(self, strips: Strips, number: int) -> None:
        machine, row = strips.machine, strips.row
        self.state = np.zeros(STATE, np.int64)
        warps, _ = machine.ctx.here.units(WARP)
        self.frames: dict[int, Frame] = {}
        self.items = np.zeros((len(row.items), COLUMNS), np.int64)
        self.places: list[tuple[np.ndarray, int]] = []  # where items have the mask of warps
        for i, item in enumerate(row.items):
            if isinstance(item, Region):
                frame = self.frames[i] = frame_of(machine, row.code, item)
                self.items[i] = frame.function, frame.address, 1
            else:
                uses, left = strips.uses[i]
                part = uses.bound(warps, left, number)
                self.places.append((part.words, part.places["active"]))
                self.items[i] = part.function, part.words.ctypes.data, WARP
        self.masks: Any = None

    def narrow(self, chunk: Chunk) -> None:
        """Let them take the active threads."""
        if self.masks is not None and self.masks[0] is chunk.mask:
            return
        warps, _ = chunk.here.units(WARP)
        self.masks = chunk.mask, warps
        for frame in self.frames.values():
            frame.words[layout.ACTIVE] = chunk.mask.ctypes.data
        for words, place in self.places:
            words[place] = warps.ctypes.data


@native.compiled
def _strips(items: Any, at: int, low: int, high: int, size: int, state: Any) -> bool:
    """Execute all items for the threads from `low` to `high`, `size` of them at a time, those of
    the first ones from item `at` on. True: one has to be finished for the threads of a strip, as
    `state` says; then go on behind it.

    Threads behind those that fail a check end with the item that failed.
    """
    for first in range(low, high, size):
        last = min(first + size, high)
        item = at if first == low else 0
        while item < min(items.shape[0], state[ITEM] + 1):
            unit = items[item, UNIT]
            found = run_part(items[item, FUNCTION], items[item, BLOCK], first // unit, last // unit)
            if found == LEFT:
                state[AT_STRIP] = first
                state[AT_ITEM] = item
                return True
            if found != 0:
                state[ITEM] = item
                break
            item += 1
    return False
