"""Regions: loads of shared memory, arithmetic and matrix products of warps, in a row.

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
from tensorcore_dsl.interpreter.core.program import AFTER, Fused, Program, Run, Step
from tensorcore_dsl.interpreter.core.team import ACCESS_COST, OPERATION_COST
from tensorcore_dsl.interpreter.execution.fused import refuse, traffic
from tensorcore_dsl.interpreter.execution.machine import Machine
from tensorcore_dsl.interpreter.execution.steps import Products
from tensorcore_dsl.interpreter.lanes.memory import run_with_accesses
from tensorcore_dsl.interpreter.lanes.runner import address
from tensorcore_dsl.interpreter.lanes.runs import TOGETHER, WORDS, uses_of
from tensorcore_dsl.isa import fragments
from tensorcore_dsl.isa.lanes import LOAD_MATRICES, LOAD_SHARED, LOAD_TRANSPOSED, access
from tensorcore_dsl.lowering.forms import Part
from tensorcore_dsl.numerics.blocks import LEFT

STRIP = 1 << 20  # bytes of registers and shared memory of a strip, which stay in a cache
_LOADS = (LOAD_SHARED, LOAD_MATRICES, LOAD_TRANSPOSED)
Item = Union[Fused, Products]

# Columns of the table of items: where their code and its words are, and threads of a unit of the
# bounds that it takes.
FUNCTION, BLOCK, UNIT, COLUMNS = range(4)
# What `_strips` notes: where it stopped, and of the first mistake the item, the row and the thread.
# FAILED: the row of the last mistake.
AT_STRIP, AT_ITEM, ITEM, ROW, MISTAKE, FAILED, STATE = range(7)


@dataclass(frozen=True)
class Region:
    """The steps from `start` to `end`. reads: places that they must find written; writes: places
    that they write."""

    start: int
    end: int
    items: tuple[Item, ...]
    reads: frozenset[int]
    writes: frozenset[int]


def regions_of(
    program: Program, products: dict[int, Products], heads: Iterable[int]
) -> list[Region]:
    """The longest regions of at least two items, with a product, none across a position of `heads`.

    products: by position, those that execute at once.
    """
    steps, heads, found, at = program.steps, set(heads), [], 0
    while at < len(steps):
        start = at
        items: list[Item] = []
        while at < len(steps) and (at == start or at not in heads):
            item = products.get(at) or _loads(program, at, heads)
            if item is None:
                break
            items.append(item)
            at = item.end
        if len(items) > 1 and any(isinstance(item, Products) for item in items):
            found.append(Region(start, at, tuple(items), *uses_of(steps[start:at])))
        at = max(at, start + 1)
    return found


def _loads(program: Program, start: int, heads: set[int]) -> Fused | None:
    """The longest run from a position on that computes, or loads from shared memory."""
    runs = [part for part in program.fused if part.start <= start < part.end]
    if not runs:
        return None
    part = max(runs, key=lambda part: part.end)
    end = start
    while end < part.end and (end == start or end not in heads) and _only_loads(program.steps[end]):
        end += 1
    return part.between(start, end) if end > start else None


def _only_loads(step: Step) -> bool:
    how = None if step.instr is None else access(step.instr)
    return how is None or how.kind in _LOADS


def in_strips(alone: Run, region: Region) -> Run:
    """All steps of a region; `alone` executes the first of them."""
    start, end = region.start, region.end
    instructions = {item.instr for item in region.items if isinstance(item, Products)}
    account = traffic(
        how
        for item in region.items if isinstance(item, Fused)
        for how in item.accesses.values()
    )  # fmt: skip

    def in_blocks(ctx: Any) -> bool:
        return all(fragments.are_blocks(ctx, instr) for instr in instructions)

    def run(machine: Machine) -> int | None:
        ctx, registers = machine.ctx, machine.registers
        if (
            ctx.limit < end or machine.forms.level < WORDS
            or ctx.sanitizer.detector is not None or ctx.lanes != WARP * ctx.warps
        ):  # fmt: skip
            return alone(machine)
        strips = machine.strips.get(start)
        if strips is None or registers.partial:
            if registers.lacks(region.reads) or not in_blocks(ctx):
                return alone(machine)
            registers.wrote_all(region.writes)
            if strips is None:
                strips = machine.strips[start] = Strips(machine, region)
        strips.run()
        account(machine)
        ctx.tally.behind[start + 1, end] += ctx.warps
        return AFTER - end

    return run


class Strips:
    """A region of one machine."""

    def __init__(self, machine: Machine, region: Region) -> None:
        self.machine, self.region = machine, region
        ctx = machine.ctx
        places = list(region.reads | region.writes)
        held = int(ctx.program.sizes[places].sum()) * ctx.group + ctx.shared.storage.size
        self.size = max(STRIP // held, 1) * ctx.group
        self.cost = 0.0
        self.tables: dict[int, np.ndarray] = {}  # the rows of runs, by item
        self.uses: dict[int, tuple[Any, np.ndarray]] = {}  # products, and what is left of them
        for i, item in enumerate(region.items):
            if isinstance(item, Fused):
                table = self.tables[i] = machine.forms.rows[item.rows]
                self.cost += OPERATION_COST * len(table) + ACCESS_COST * len(item.accesses)
            else:
                left = np.zeros((len(item.uses), ctx.threads // WARP), np.bool_)
                uses = item.prepared(machine)
                self.uses[i] = uses, left
                self.cost += uses.cost / WARP
        self.addresses = ctx.addresses  # made before threads ask for them
        self.parts: dict[int, _Parts] = {}

    def run(self) -> None:
        """Execute all items, in threads of the team, and raise the error of the first that fails.
        """
        ctx = self.machine.ctx
        found = ctx.team.share_blocks(ctx.threads, ctx.group, self.cost, self._some)
        if any(found):
            number, row, wrong = min(failure for failure in found if failure)
            item: Any = self.region.items[number]
            refuse(self.machine, item, row, wrong)

    def _some(self, low: int, high: int, number: int) -> tuple[int, ...] | None:
        """The same for the threads from `low` to `high`; the first mistake."""
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
        failed: tuple[int, ...] = tuple(state[[ITEM, ROW, MISTAKE]].tolist())
        return None if failed[0] == len(parts.items) else failed


class _Parts:
    """The compiled code of a region's items, for one thread of the team."""

    def __init__(self, strips: Strips, number: int) -> None:
        machine = strips.machine
        ctx, storage, proxies = machine.ctx, machine.ctx.shared.storage, machine.ctx.proxies
        self.state = np.zeros(STATE, np.int64)
        parts: list[Part] = []
        narrow, wide = strips.addresses
        warps, _ = ctx.here.units(WARP)
        for i, item in enumerate(strips.region.items):
            if isinstance(item, Fused):
                table = strips.tables[i]
                loop: Any = run_with_accesses
                part = loop.part(
                    address(), table, 0, len(table), ctx.mask, False, ctx.globals.table,
                    storage.data, storage.states, storage.pages, storage.checks, proxies.stamps,
                    proxies.readers, proxies.epochs, 0, 0, self.state[FAILED:], narrow, wide,
                    TOGETHER,
                )  # fmt: skip
            else:
                uses, left = strips.uses[i]
                part = uses.bound(warps, left, number)
            parts.append(part)
        most = max(len(part.words) for part in parts)
        self.words = np.zeros((len(parts), most), np.int64)
        self.items = np.zeros((len(parts), COLUMNS), np.int64)
        for i, part in enumerate(parts):
            self.words[i, : len(part.words)] = part.words
            unit = WARP if i in strips.uses else 1
            self.items[i] = part.function, self.words[i].ctypes.data, unit
        self.runs, self.products = list(strips.tables), list(strips.uses)
        self.of_runs, self.of_products = (
            parts[some[0]].places if some else {} for some in (self.runs, self.products)
        )
        self.masks: Any = None

    def narrow(self, chunk: Chunk) -> None:
        """Let them take the active threads."""
        if self.masks is not None and self.masks[0] is chunk.mask:
            return
        warps, _ = chunk.here.units(WARP)
        self.masks = chunk.mask, warps
        if self.runs:
            self.words[self.runs, self.of_runs["active"]] = chunk.mask.ctypes.data
            self.words[self.runs, self.of_runs["everybody"]] = chunk.active is None
        self.words[self.products, self.of_products["active"]] = warps.ctypes.data


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
                if item < state[ITEM] or state[FAILED] < state[ROW]:
                    state[ITEM] = item
                    state[ROW] = state[FAILED]
                    state[MISTAKE] = found
                break
            item += 1
    return False
