"""Plan regions: the steps of a program that compiled code executes at once.

A *micro-operation* is one elementary operation of a step, or its access to memory. A region is a
stretch of steps that have micro-operations, and of the jumps between them. It consists of *blocks*:
code starts at the first step of one, and leaves after its last step or by a jump. Machine code
executes a region warp by warp: lanes that disagree at a branch go through its blocks in the order
of their positions, under masks, and meet where both arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.geometry import varies
from tensorcore_dsl.interpreter.core.program import Program, Step
from tensorcore_dsl.isa import fragments
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.lanes import COPY, LaneAccess, operation, operations
from tensorcore_dsl.isa.spec import Instruction

# Which regions a machine executes: none; regions that access no memory; all; all, and the race detector
# sees their accesses.
NO_REGIONS, REGISTER_REGIONS, ALL_REGIONS, WITNESSED_REGIONS = range(4)
SPECIAL_REGISTER = "input"  # the name of a micro-operation that reads a special register
PRODUCTS = "products"  # the name of a micro-operation of matrix products of a warp
MAX_EDGES = 64  # labels and jumps of a region: planning time grows faster than their number
Slot = tuple[int, int, int]  # vreg, register of a group, bytes
NO_SLOT: Slot = (0, 0, 0)


class MicroOp(NamedTuple):
    """An elementary operation of a step.

    Attributes
    ----------
    name : str
        Name of the operation, SPECIAL_REGISTER, PRODUCTS or "access".
    bits : int
        Width of the operation; 0 for code that semantics emit.
    slots : tuple of Slot
        Registers of the result and the operands. PRODUCTS: of all results, then of all operands.
    numbers : tuple of int
        Immediate operands. PRODUCTS: the number of results and the multiply-adds of a thread.
        SPECIAL_REGISTER: whether threads of a CTA differ in the register.
    access : LaneAccess or None
        How the micro-operation loads or stores. Its `numbers` index the numbers of `layout`.
    function : str
        Name of an operation with references, the special register, or the instruction of PRODUCTS.
    guard : tuple or None
        The vreg of an access's guard, and whether it is negated.
    """

    name: str
    bits: int
    slots: tuple[Slot, ...]
    numbers: tuple[int, ...] = ()
    access: LaneAccess | None = None
    function: str = ""
    guard: tuple[int, bool] | None = None


class RegionJump(NamedTuple):
    """A jump to `label.at`, of the threads where the flag at a vreg is false; None: of all."""

    label: Any
    condition: int | None = None


@dataclass(frozen=True)
class RegionBlock:
    """The steps from `start` to `end`, which threads enter at `start` alone.

    Attributes
    ----------
    micro_ops : tuple
        Micro-operations with their positions.
    jump : tuple or None
        Target of the jump at the end, and the vreg of the flag that is false for threads that jump;
        None instead of a vreg: all threads jump.
    whole : bool
        The first step needs all lanes of a warp.
    writes : int
        Places that the steps write, as bits.
    """

    start: int
    end: int
    micro_ops: tuple[tuple[int, MicroOp], ...]
    jump: tuple[int, int | None] | None = None
    whole: bool = False
    writes: int = 0

    @property
    def accesses(self) -> list[LaneAccess]:
        return [micro_op.access for _, micro_op in self.micro_ops if micro_op.access is not None]


@dataclass(frozen=True, eq=False)
class Region(EagerDict):
    """A stretch of steps, from `start` to `end`, as blocks.

    Attributes
    ----------
    exits : tuple of int
        Positions outside where threads may go.
    reads_at_entry : dict
        By position of an entry, the vregs that must have been written there.
    writes : frozenset of int
        Vregs that are written where threads leave.
    kept : frozenset of int
        `writes`, and vregs that must be stored where threads stop between two blocks.
    passed : frozenset of int
        Vregs that one block leaves for others.
    loaded : frozenset of int
        Vregs that are loaded before the first block.
    stops : bool
        Threads may stop between two blocks.
    whole : bool
        The region needs whole warps.
    forks : bool
        Threads may take different ways.
    """

    start: int
    end: int
    blocks: tuple[RegionBlock, ...]
    exits: tuple[int, ...]
    reads_at_entry: dict[int, frozenset[int]]
    writes: frozenset[int]
    kept: frozenset[int]
    passed: frozenset[int]
    loaded: frozenset[int]
    stops: bool = False
    whole: bool = False
    forks: bool = False

    @property
    def is_single_path(self) -> bool:
        """True if all threads take one way through it."""
        return len(self.blocks) == len(self.exits) == 1

    @cached_property
    def has_loop(self) -> bool:
        """True if it has loops."""
        return any(
            block.jump is not None and self.start <= block.jump[0] < block.end for block in self.blocks
        )

    @property
    def micro_op_count(self) -> int:
        """Number of its micro-operations."""
        return sum(len(block.micro_ops) for block in self.blocks)

    @cached_property
    def accesses(self) -> list[LaneAccess]:
        return [how for block in self.blocks for how in block.accesses]

    @cached_property
    def is_global(self) -> bool:
        """True if it accesses global memory."""
        return any(space == "global" for how in self.accesses for space, _ in how.traffic)


# -- micro-operations ----------------------------------------------------------------------------


def micro_op(name: str, bits: int, slots: Sequence[Slot], numbers: Sequence[int] = ()) -> MicroOp | None:
    """The micro-operation of an operation on these registers; None where their sizes differ from its own."""
    what = operation(name, bits)
    widths = [bits // 8 for bits in (what.result, *what.operands)]
    fits = [width for _, _, width in slots] == widths
    return MicroOp(name, bits, tuple(slots), tuple(numbers)) if fits else None


def input_op(register: str, target: Slot) -> MicroOp:
    """The micro-operation that reads a special register."""
    return MicroOp(SPECIAL_REGISTER, 8 * target[2], (target,), (int(varies(register)),), None, register)


def instruction_ops(
    instr: Instruction,
    results: Sequence[Slot],
    operands: Sequence[Slot],
    immediate: Mapping[int, int] | None = None,
) -> list[MicroOp]:
    """The micro-operations of an instruction; none if it has no compiled form.

    immediate: the numbers of immediate operands, whose slots are NO_SLOT.
    """
    ops_or_none = []
    for op in operations(instr, tuple(sorted((immediate or {}).items()))):
        target = NO_SLOT if op.result < 0 else results[op.result]
        numbers = [(immediate or {})[i] for i in op.literals]
        candidate = micro_op(op.name, op.bits, [target, *(operands[i] for i in op.operands)], numbers)
        ops_or_none.append(candidate and candidate._replace(function=op.function))
    micro_ops = [r for r in ops_or_none if r is not None]
    alone = len(ops_or_none) < 2 or {s[0] for s in results}.isdisjoint(s[0] for s in operands if s != NO_SLOT)
    return micro_ops if len(micro_ops) == len(ops_or_none) and alone else []


def copy_ops(target: Sequence[Slot], sources: Sequence[Slot]) -> list[MicroOp]:
    """The micro-operations of a copy of registers; none if a source is overwritten before it is read."""
    if len(target) > 1 and target[0][0] in {vreg for vreg, *_ in sources}:
        return []
    copies = [micro_op("copy", 8 * to[2], [to, of]) for to, of in zip(target, sources, strict=True)]
    return [r for r in copies if r is not None] if None not in copies else []


def uses_of(steps: Sequence[Step]) -> tuple[frozenset[int], frozenset[int]]:
    """The vregs that steps read before they write them, and the vregs that they write."""
    reads: set[int] = set()
    writes: set[int] = set()
    for step in steps:
        reads |= {*reads_of(step)} - writes
        writes.update(step.writes)
    return frozenset(reads), frozenset(writes)


def products_op(instr: Instruction, count: int, results: Iterable[Slot], operands: Iterable[Slot]) -> MicroOp:
    """The micro-operation of `count` matrix products of a warp; registers may be named more than once."""
    written, read, work = dict.fromkeys(results), dict.fromkeys(operands), count
    for size in fragments.size(instr.params["shape"]):
        work *= size
    numbers = len(written), work // WARP
    return MicroOp(PRODUCTS, 0, (*written, *read), numbers, None, instr.mnemonic)


# -- liveness ------------------------------------------------------------------------------------


@dataclass
class RegionFlow:
    """Reads, writes and successors of steps. Sets of vregs are bits of ints.

    Attributes
    ----------
    jumps
        By position.
    live : list
        By position, the vregs that may be read from there on.
    """

    steps: Sequence[Step]
    jumps: Mapping[int, RegionJump]
    watched: Mapping[int, Iterable[int]]  # vregs that other code reads, by position
    live: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.steps)
        self.uses = [
            _bits(reads_of(step)) | _bits(self.watched.get(at, ())) for at, step in enumerate(self.steps)
        ]
        self.kills = [0 if step.guard else _bits(step.writes) for step in self.steps]
        self.live = self.solve(range(count), [0] * (count + 1))

    def next(self, at: int) -> list[int]:
        jump = self.jumps.get(at)
        if jump is None:
            return [at + 1]
        return [jump.label.at] if jump.condition is None else [at + 1, jump.label.at]

    def outside_loops(self) -> list[bool]:
        """Tell, by position, whether no jump leads back over it."""
        count = len(self.steps)
        changes = [0] * (count + 2)
        for at, jump in self.jumps.items():
            if jump.label.at <= at:
                changes[jump.label.at + 1] += 1
                changes[at + 1] -= 1
        return [level == 0 for level in accumulate(changes)]

    def solve(self, inside: range, live: list[int]) -> list[int]:
        """Compute the live vregs of the positions in `inside`; `live` has those of other positions."""
        changed = True
        while changed:
            changed = False
            for at in reversed(inside):
                after = 0
                for position in self.next(at):
                    after |= live[position]
                now = self.uses[at] | (after & ~self.kills[at])
                if now != live[at]:
                    live[at], changed = now, True
        return live


def reads_of(step: Step) -> Iterable[int]:
    """The vregs that a step reads."""
    guard = () if step.guard is None else (step.guard[0],)
    return (*step.reads, *step.copies, *guard)


def _bits(vregs: Iterable[int]) -> int:
    bits = 0
    for vreg in vregs:
        bits |= 1 << vreg
    return bits


def _vregs(bits: int) -> frozenset[int]:
    vregs = []
    while bits:
        low = bits & -bits
        vregs.append(low.bit_length() - 1)
        bits ^= low
    return frozenset(vregs)


# -- regions -------------------------------------------------------------------------------------


def regions_of(program: Program, flow: RegionFlow, cuts: Iterable[int], level: int) -> list[Region]:
    """The longest regions of a program for a level of machines, none across one of `cuts`."""
    cuts, steps, regions, start = set(cuts), program.steps, list[Region](), 0

    def fits(at: int) -> bool:
        micro_ops = program.micro_ops.get(at)
        if micro_ops is None:
            return at in flow.jumps
        kinds = [micro_op.access.kind for micro_op in micro_ops if micro_op.access is not None]
        if COPY in kinds:
            return level == ALL_REGIONS and not _repeats(program, flow, at)
        return not kinds or level != REGISTER_REGIONS

    outside = flow.outside_loops()
    labels = {jump.label.at for jump in flow.jumps.values()}
    while start < len(steps) and level != NO_REGIONS:
        end, edges, last = start, 0, 0
        while end < len(steps) and fits(end) and (end == start or end not in cuts):
            edges += (end in labels) + (end in flow.jumps)
            if edges > MAX_EDGES and end > start:
                end = last or end
                break
            end += 1
            last = end if outside[end] else last
        if any(at in program.micro_ops for at in range(start, end)):
            regions.append(region(program, flow, start, end))
        start = max(end, start + 1)
    return regions


def _repeats(program: Program, flow: RegionFlow, at: int) -> bool:
    """True if a loop whose steps all have micro-operations contains this one."""
    micro_ops, jumps = program.micro_ops, flow.jumps
    return any(
        jump.label.at <= at <= position
        and all(i in micro_ops or i in jumps for i in range(jump.label.at, position))
        for position, jump in jumps.items()
    )


def region(program: Program, flow: RegionFlow, start: int, end: int) -> Region:
    """The region of the steps from `start` to `end`."""
    steps, inside = program.steps, range(start, end)
    branches = [at for at in inside if at in flow.jumps]
    labels = {jump.label.at for jump in flow.jumps.values()}.intersection(inside)
    needy = {at for at in inside if needs_warps(steps[at])}
    edges = {start, end, *labels, *(at + 1 for at in branches)}
    apart = _first_of_each(needy, edges) if branches else set()
    written = {at: _bits(steps[at].writes) for at in inside}
    blocks = []
    for first, last in pairwise(sorted(edges | apart)):
        jump = flow.jumps.get(last - 1)
        blocks.append(
            RegionBlock(
                first,
                last,
                tuple(
                    (at, micro_op) for at in range(first, last) for micro_op in program.micro_ops.get(at, ())
                ),
                None if jump is None else (jump.label.at, jump.condition),
                first in apart,
                _union(written[at] for at in range(first, last)),
            )
        )
    exits = {position for block in blocks for position in flow.next(block.end - 1)} - {*inside}
    everything = _union(written.values())
    local = flow.solve(inside, [0] * (len(steps) + 1))
    outside = (_union(flow.live[position] for position in exits) | _bits(program.shown)) & everything
    between = _union(flow.live[block.start] for block in blocks)
    back = any(start <= flow.jumps[at].label.at <= at for at in branches)
    stops = back or bool(apart)
    reads = {
        at: _vregs(local[at] | _doubtful(flow, blocks, at, everything)) - program.fixed
        for at in sorted({start, *labels})
    }
    kept = outside | (between & everything if stops else 0)
    loaded = _union(_bits(vregs) for vregs in reads.values()) | kept
    return Region(
        start,
        end,
        tuple(blocks),
        tuple(sorted(exits)),
        reads,
        _vregs(outside),
        _vregs(kept),
        _vregs(between | outside),
        _vregs(loaded),
        stops,
        bool(needy) and not apart,
        any(flow.jumps[at].condition is not None for at in branches),
    )


def _first_of_each(positions: Iterable[int], edges: Iterable[int]) -> set[int]:
    """The first of `positions` between two edges: a warp that is whole there stays so."""
    ordered = sorted(edges)
    first: dict[int, int] = {}
    for at in sorted(positions):
        first.setdefault(bisect_right(ordered, at), at)
    return set(first.values())


def region_of_stretches(program: Program, flow: RegionFlow, parts: Sequence[range]) -> Region:
    """Make a region of consecutive stretches of steps without jumps."""
    steps, everywhere = program.steps, [at for part in parts for at in part]
    micro_ops = tuple((at, micro_op) for at in everywhere for micro_op in program.micro_ops[at])
    written, reads, left = 0, 0, 0
    for part in parts:
        for at in part:
            reads |= flow.uses[at] & ~written
            written |= _bits(steps[at].writes)
        left |= flow.live[part.stop] & written
    start, end = parts[0].start, parts[-1].stop
    block = RegionBlock(start, end, micro_ops, writes=written)
    whole = any(needs_warps(steps[at]) for at in everywhere)
    kept = _vregs(left)
    first = _vregs(reads) - program.fixed
    return Region(start, end, (block,), (end,), {start: first}, kept, kept, kept, first, False, whole)


def _doubtful(flow: RegionFlow, blocks: Sequence[RegionBlock], entry: int, written: int) -> int:
    """Places that threads from `entry` may leave unwritten although others may read them."""
    assigned = {block.start: -1 for block in blocks}
    assigned[entry] = 0
    doubt, changed = 0, True
    while changed:
        changed = False
        for block in blocks:
            now = assigned[block.start]
            if now == -1:
                continue
            now |= block.writes
            for position in flow.next(block.end - 1):
                if position not in assigned:
                    doubt |= flow.live[position] & written & ~now
                elif assigned[position] & now != assigned[position]:
                    assigned[position] &= now
                    changed = True
    return doubt


def _union(some: Iterable[int]) -> int:
    union = 0
    for bits in some:
        union |= bits
    return union


def needs_warps(step: Step) -> bool:
    return step.instr is not None and bool(step.instr.effects & (Effect.WARP | Effect.CONVERGENT))
