"""Steps that execute a region of a program, for one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from tensorcore_dsl.environment.processors import without_collections
from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.program import AFTER, Program, Run
from tensorcore_dsl.interpreter.core.registers import RegisterFile
from tensorcore_dsl.interpreter.core.team import ACCESS_COST, OPERATION_COST
from tensorcore_dsl.interpreter.regions import layout as layouts
from tensorcore_dsl.interpreter.regions.code import RegionCode
from tensorcore_dsl.interpreter.regions.frame import NEVER, ProductFallback, RegionFrame, Witness
from tensorcore_dsl.interpreter.regions.memory import address_of
from tensorcore_dsl.interpreter.regions.plan import (
    NO_REGIONS,
    PRODUCTS,
    Region,
    RegionBlock,
    reads_of,
    regions_of,
)
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import RegisterUse
from tensorcore_dsl.isa import fragments, instruction
from tensorcore_dsl.isa.lanes import COPY, LaneAccess
from tensorcore_dsl.numerics.products import COST as PRODUCT_COST

OWN_CODE = 48  # micro-operations of a region whose code is not made together with that of others


class Machine(Protocol):
    """What regions use of `execution.machine.Machine`. ctx: an `ExecutionContext`."""

    ctx: Any
    registers: RegisterFile
    memory: np.ndarray
    rest: ProductFallback
    witness: Witness
    watchdog: Any
    scheduler: Any
    frames: dict[Any, dict[int, RegionFrame]]
    level: int

    def split(self, mask: np.ndarray, target: int) -> None: ...

    def turned(self, head: int, count: int, start: int, target: int) -> None: ...


@without_collections()
def with_regions(program: Program, runs: Sequence[Run], level: int) -> list[Run]:
    """Return the functions of a program's steps. At an entry of a region, the function runs the region."""
    region_runs = list(runs)
    regions = regions_of(program, program.flow, program.cuts, level)
    # A region with loops or many micro-operations soon takes long enough to be worth code of its own.
    large = [region for region in regions if region.has_loop or region.micro_op_count >= OWN_CODE]
    for compiled_together in (*([region] for region in large), [r for r in regions if r not in large]):
        code = RegionCode(program, compiled_together)
        for region in compiled_together:
            stretch = range(region.start, region.end)
            uses = [program.copied[at] for at in stretch if at in program.copied]
            for at in region.reads_at_entry:
                region_runs[at] = _executing(runs[at], code, region, at, uses)
    inside = {at for region in regions for at in range(region.start, region.end)}
    filled = program.fixed.union(vreg for vreg, _, registers in program.constants if registers is not None)
    program.fills[level] = any(not loop.counted for loop in program.loops.values()) or any(
        not filled.isdisjoint(reads_of(step))
        for at, step in enumerate(program.steps)
        if at not in inside or at in program.products
    )
    return region_runs


def _executing(alone: Run, code: RegionCode, region: Region, at: int, uses: Sequence[RegisterUse]) -> Run:
    """The function that executes `region` for threads that enter it at position `at`.

    alone: the fallback, which executes the one step at `at`. It runs when the region cannot be
    entered: threads wait at a position inside it; it needs whole warps and some lanes are missing;
    threads have not written a register that it reads, or its products are not computed in blocks;
    its code is not compiled yet. uses: registers of asynchronous products that the steps use.
    """
    end, reads = region.end, region.reads_at_entry[at]
    entry = [block.start for block in region.blocks].index(at)
    whole = region.whole or region.blocks[entry].whole
    finish = _straight_end(region) if region.is_single_path else _end(region, at)
    copies = [
        (position, micro_op)
        for block in region.blocks
        for position, micro_op in block.micro_ops
        if micro_op.access is not None and micro_op.access.kind == COPY
    ]
    products = {
        micro_op.function
        for block in region.blocks
        for _, micro_op in block.micro_ops
        if micro_op.name == PRODUCTS
    }
    cost, micro_ops = cost_of(region), region.micro_op_count

    def in_blocks(ctx: Any) -> bool:
        return all(fragments.are_blocks(ctx, instruction(name)) for name in products)

    def run(machine: Machine) -> int | None:
        ctx, registers = machine.ctx, machine.registers
        key = region, at, id(ctx.mask)
        new = key not in registers.region_checks_passed
        if (
            ctx.limit < end
            or (whole and ctx.lanes != WARP * ctx.warps)
            or (new and (registers.lacks(reads) or not in_blocks(ctx)))
            # Orders of a seed must not depend on what has been compiled before.
            or (machine.scheduler is None and not code.is_ready(micro_ops, ctx.threads))
        ):
            registers.fill()
            return alone(machine)
        if uses and ctx.proxies.tracked:
            ctx.async_mma.access(uses)
        frames = machine.frames.get(region)
        if frames is None:
            frames = machine.frames[region] = {0: frame_of(machine, code, region, 0)}
        issued = {}
        for position, micro_op in copies:
            copy = ctx.async_copies.blank(ctx.mask, micro_op.numbers[layouts.SIZE], position)
            copy.flags = np.zeros(ctx.threads, np.bool_)
            issued[position] = copy
            number = frames[0].layout.words["copy", position, 0]
            frames[0].words[number : number + 4] = *copy.addresses, address_of(copy.flags)
        if new:
            registers.clear(region.writes)
        used = execute(machine, frames, code, region, entry, cost, issued)
        for copy in issued.values():
            copy.mask = ctx.masks.find(copy.flags).threads
        ctx.async_copies.queue += [copy for copy in issued.values() if copy.mask.any()]
        if new:
            registers.wrote_all(region.writes)
            registers.region_checks_passed.keep(key, ctx.mask)
        return finish(machine, used)

    return run


def frame_of(machine: Machine, code: RegionCode, region: Region, number: int) -> RegionFrame:
    """The frame of one of the threads of the team that execute a region."""
    rest, steps = machine.rest, machine.ctx.program.products
    parts = {
        at: rest.bound(at, steps[at].prepared(machine), number) for at, _ in code.layout(region).products
    }
    ctx = machine.ctx
    return RegionFrame(machine.registers, ctx.special, machine.memory, rest, code, region, parts)


def execute(
    machine: Machine,
    frames: dict[int, RegionFrame],
    code: RegionCode,
    region: Region,
    entry: int,
    cost: float,
    issued: dict[int, Any] | None = None,
) -> list[RegionFrame]:
    """Execute a region, in threads of the team, and raise the error of the first that fails.

    Returns the frames that were used, one for each thread of the team.
    """
    ctx, detector = machine.ctx, machine.ctx.sanitizer.detector
    active, budget = address_of(ctx.mask), machine.watchdog.budget if region.has_loop else 0

    def some(first: int, last: int, number: int) -> bool:
        frame = frames.get(number)
        if frame is None:  # Each thread makes a frame.
            frame = frames[number] = frame_of(machine, code, region, number)
        words = frame.words
        words[layouts.ACTIVE], words[layouts.ENTRY], words[layouts.BUDGET] = active, entry, budget
        if number and issued:
            for position in issued:
                begin = frame.layout.words["copy", position, 0]
                words[begin : begin + 4] = frames[0].words[begin : begin + 4]
        return bool(frame.call(frame.address, first, last))

    if detector is not None and region.accesses:
        with detector.following(len(region.accesses) * ctx.warps, region.is_global):
            failed = [some(0, ctx.threads, 0)]
        machine.witness.tell(int(frames[0].mistake[layouts.POSITION]))
    else:
        failed = ctx.cta_team.share_ctas(ctx.threads, ctx.group, cost, some)
    used = [frames[number] for number in range(len(failed))]
    if machine.rest.errors:
        raise machine.rest.errors.pop()
    if any(failed):
        frame = min(used, key=lambda frame: tuple(frame.mistake[:2].tolist()))
        refuse(machine, frame.mistake, issued)
    return used


def _straight_end(region: Region) -> Callable[[Machine, list[RegionFrame]], int | None]:
    """Make the function that completes a region in which all threads take the same way."""
    account, (target,) = traffic(_unguarded(region.blocks[0])), region.exits
    guarded = _guarded(region)
    start, end, behind = region.start, region.end, (region.start + 1, region.end)

    def run(machine: Machine, frames: list[RegionFrame]) -> int | None:
        ctx = machine.ctx
        account(machine, ctx.lanes)
        for position, apart in guarded:
            number = frames[0].layout.guarded[position]
            apart(machine, sum(int(frame.counters[number]) for frame in frames))
            for frame in frames:
                frame.counters[number] = 0
        if end > start + 1:
            ctx.tally.behind[behind] += ctx.warps
        return AFTER - end if target == end else target

    return run


def _end(region: Region, at: int) -> Callable[[Machine, list[RegionFrame]], int | None]:
    """Make the function that completes a region that threads may leave at several steps."""
    blocks, exits = region.blocks, set(region.exits)
    accounts = [(i, traffic(some)) for i, some in enumerate(map(_unguarded, blocks)) if some]
    guarded, count = _guarded(region), len(blocks)
    heads = [
        i
        for i, block in enumerate(blocks)
        if any(other.jump is not None and other.jump[0] == block.start < other.end for other in blocks)
    ]

    def run(machine: Machine, frames: list[RegionFrame]) -> int | None:
        ctx = machine.ctx
        counters = frames[0].counters
        for frame in frames[1:]:
            most = [np.maximum(frame.counters[3 * i + 2], counters[3 * i + 2]) for i in heads]
            counters += frame.counters
            counters[[3 * i + 2 for i in heads]] = most
            frame.counters[:] = 0
        numbers = counters.tolist()
        counters[:] = 0
        tally = ctx.tally
        tally.counts[at] -= ctx.warps
        for i, block in enumerate(blocks):
            if numbers[3 * i]:
                tally.behind[block.start, block.end] += numbers[3 * i]
        for i, account in accounts:
            if numbers[3 * i]:
                account(machine, numbers[3 * i + 1])
        for position, apart in guarded:
            apart(machine, numbers[frames[0].layout.guarded[position]])
        stops = frames[0].layout.stops
        left = [(position, i) for i, position in enumerate(stops) if numbers[3 * count + i]]
        masks = []
        if not exits.issuperset(position for position, _ in left):
            machine.registers.wrote_all(region.kept)
            machine.registers.fill()  # lanes that stop inside go on by single steps
        for position, i in sorted(left):
            flags = frames[0].leaving[i]
            for frame in frames[1:]:
                flags |= frame.leaving[i]
                frame.leaving[i] = False
            masks.append((position, flags.copy() if len(left) > 1 else ctx.mask))
            flags[:] = False
        first, lanes = masks[0]
        for position, others in masks[1:]:
            machine.split(ctx.masks.find(others).threads, position)
        if len(masks) > 1:
            ctx.narrow(lanes)
        for i in heads:
            if numbers[3 * i + 2]:
                machine.turned(blocks[i].start, numbers[3 * i + 2], at, first)
        return AFTER - first if first == region.end else first

    return run


def _unguarded(block: RegionBlock) -> list[LaneAccess]:
    return [
        micro_op.access
        for _, micro_op in block.micro_ops
        if micro_op.access is not None and micro_op.guard is None
    ]


def _guarded(region: Region) -> list[tuple[int, Callable[[Machine, int], None]]]:
    """By the positions of accesses with a guard, what counts them."""
    micro_ops = [(at, micro_op) for block in region.blocks for at, micro_op in block.micro_ops]
    return [
        (at, traffic([micro_op.access]))
        for at, micro_op in micro_ops
        if micro_op.guard is not None and micro_op.access
    ]


def cost_of(region: Region) -> float:
    """Nanoseconds of a thread, roughly."""
    micro_ops = region.micro_op_count
    turns = 1 if region.is_single_path else 16
    products = sum(
        micro_op.numbers[1]
        for block in region.blocks
        for _, micro_op in block.micro_ops
        if micro_op.name == PRODUCTS
    )
    work = OPERATION_COST * micro_ops + ACCESS_COST * len(region.accesses) + PRODUCT_COST * products
    return turns * work


def refuse(machine: Machine, mistake: np.ndarray, issued: dict[int, Any] | None = None) -> NoReturn:
    """Raise the error of a thread that failed a check.

    The failed step gives the error: it is executed again, alone, with its operands.
    """
    ctx, registers = machine.ctx, machine.registers
    at, wrong, lanes = (int(number) for number in mistake)
    mistake[layouts.POSITION] = NEVER
    registers.fill()
    thread, step = wrong & 0xFFFFFFFF, ctx.program.steps[at]
    registers.wrote_all(frozenset(reads_of(step)).difference(ctx.program.numbers))
    try:
        if issued and at in issued:
            ctx.async_copies.refuse(wrong, issued[at])
        there = np.zeros(ctx.threads, np.bool_)
        first = thread // WARP * WARP
        there[first : first + WARP] = [lanes >> lane & 1 for lane in range(WARP)]
        ctx.narrow(there)
        machine.level = NO_REGIONS
        step.run(machine)
    except TensorCoreError as error:
        error.loc = error.loc or step.loc
        raise
    raise AssertionError(f"{step.instr}: thread {thread} failed a check in compiled code alone")


def traffic(accesses: Iterable[LaneAccess]) -> Callable[[Machine, int], None]:
    """Make the function that counts these accesses for a number of threads."""
    sizes: Counter[tuple[str, str]] = Counter()
    uses: Counter[str] = Counter()
    for how in accesses:
        for space, verb in how.traffic:
            sizes[space, verb] += how.width * how.words
            uses[verb] += 1

    def account(machine: Machine, lanes: int) -> None:
        ctx = machine.ctx
        if not lanes:
            return
        for key, size in sizes.items():
            ctx.tally.bytes[key] += size * lanes
        ctx.reads += uses["load"]
        ctx.writes += uses["store"]

    return account
