"""Report of a hang: where the threads of a chunk stand, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import product
from typing import Any

import numpy as np

from tensorcore_dsl.errors import Loc, listing
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.geometry import ranges
from tensorcore_dsl.interpreter.core.loops import LoopAnalysis
from tensorcore_dsl.interpreter.core.registers import RegisterFile
from tensorcore_dsl.interpreter.core.threads import scalar
from tensorcore_dsl.interpreter.execution.context import ExecutionContext
from tensorcore_dsl.interpreter.sanitizer.race_report import call_text
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.isa import classify
from tensorcore_dsl.isa.effects import Effect

MAX_LINES = 16  # groups, and lines about one group


@dataclass(frozen=True)
class Group:
    """Threads at one position; state: "waits", "runs", "ready", or "repeats" a loop for ever."""

    at: int
    mask: np.ndarray
    state: str


class HangReport:
    """Text that describes the threads of a chunk when no thread can go on.

    Attributes
    ----------
    registers
        By vreg.
    iterations
        Of each loop, by its head.
    pending
        What is known of CTAs that have not started.
    """

    def __init__(
        self,
        ctx: ExecutionContext,
        registers: RegisterFile,
        groups: list[Group],
        iterations: Mapping[int, int],
        pending: str,
    ) -> None:
        self.ctx, self.registers, self.iterations = ctx, registers, iterations
        self.groups, self.pending = groups, pending

    def text(self) -> str:
        """A paragraph for each group, then who waits for whom."""
        lines: list[str] = []
        for group in self.groups[:MAX_LINES]:
            lines += self._described(group)
        if len(self.groups) > MAX_LINES:
            lines.append(f"  and {len(self.groups) - MAX_LINES} more groups")
        lines += self._ended()
        lines += self._arrows()
        lines += self._signals()
        if self.pending:
            lines.append(f"  {self.pending}")
        return "\n".join(lines)

    # -- the groups --------------------------------------------------------------------------------

    def _described(self, group: Group) -> list[str]:
        ctx = self.ctx
        who, instr, loop = ctx.warps_text(group.mask), ctx.instruction(group.at), self._loop(group)
        if group.state == "repeats" and loop is not None:
            return [f"  {who}: {self._iterations(loop)}", *self._polled(group, loop)]
        what = call_text(instr.mnemonic if instr is not None else "a branch", ctx.loc(group.at))
        state = {"waits": "", "runs": "runs ", "ready": "can go on with "}[group.state]
        lines = [f"  {who}: {state}{what}"]
        if group.state != "waits" and loop is not None and self.iterations[loop.head]:
            return [*lines, f"    {self._iterations(loop)}", *self._polled(group, loop)]
        return lines + [f"    {text}" for text in self._reasons(group)]

    def _loop(self, group: Group) -> LoopAnalysis | None:
        """The innermost loop around a group."""
        loops = self.ctx.program.loops.values()
        inside = [loop for loop in loops if loop.head <= group.at < loop.end]
        return max(inside, key=lambda loop: loop.head, default=None)

    def _iterations(self, loop: LoopAnalysis) -> str:
        count = self.iterations[loop.head]
        return f"in the loop at {loop.loc}, {count:,} iteration{'s' * (count != 1)} so far"

    def _reasons(self, group: Group) -> list[str]:
        """Describe the waits of a group of threads."""
        ctx, instr = self.ctx, self.ctx.instruction(group.at)
        if group.state != "waits" or instr is None:
            return []
        if classify.uses_mbarrier(instr):
            lacks = ctx.lacking(group.mask, instr)
            return [*lacks, *self._same_parity(group), *self._arrival_lines(group.mask)]
        lines = self._named_barriers(group.mask) or ctx.lacking(group.mask, instr)
        missing = self._missing_lanes(group)
        if not lines and missing.any():
            lines = [f"it waits for {ctx.warps_text(missing)}: {self._lanes(missing)}"]
        return lines

    def _same_parity(self, group: Group) -> list[str]:
        """Say that a wait in a loop, or in its unrolled copies, asks for one parity though phases pass."""
        loop, mbarriers = self._loop(group), self.ctx.mbarriers
        waits = (
            [op for op in loop.conditions if classify.uses_mbarrier(op.instr) and op.results] if loop else []
        )
        passed = all(mbarriers.phase(*slot) for slot in mbarriers.waited_for(group.mask))
        if loop is None or not passed or not waits or len(waits[0].operands) < 2:
            return []
        wait, ops = waits[0], nodes.walk(loop.kernel.body)
        copies = [
            op for op in ops if isinstance(op, nodes.Op) and (op.instr, op.loc) == (wait.instr, wait.loc)
        ]
        parity, around = wait.operands[1], loop.outer
        same = all(copy.operands[1] == parity for copy in copies)
        if not same or (len(copies) == 1 and (around is None or around.writes(parity))):
            return []
        value = self._operand(parity, int(np.argmax(group.mask)))
        return [f"this wait asks for parity {value} each time, but phases alternate between parity 0 and 1"]

    def _arrivals(self, mask: np.ndarray) -> dict[int, np.ndarray]:
        """By step, the threads that have arrived at the mbarriers that `mask` waits for."""
        barriers, clusters = self.ctx.mbarriers, self._clusters()
        arrived: dict[int, np.ndarray] = {}
        for cta, slot in barriers.waited_for(mask):
            near = clusters == cta // self.ctx.clusters.size
            for (at, row), seen in barriers.arrivers.items():
                if row == barriers.index[cta, slot] and (seen & near).any():
                    arrived[at] = seen & near | arrived.get(at, False)
        return arrived

    def _clusters(self) -> np.ndarray:
        """(T,) the cluster of each thread; arrivals come from the waiting one."""
        return np.arange(self.ctx.threads) // (self.ctx.clusters.size * self.ctx.group)

    def _arrival_lines(self, mask: np.ndarray) -> list[str]:
        """List the lines of arrivals at the mbarriers that `mask` waits for, done or possible."""
        ctx, arrivals = self.ctx, self._arrivals(mask)
        if arrivals:
            texts = [
                f"{ctx.loc(at)} ({ctx.warps_text(who)}{self._announced(at)})" for at, who in arrivals.items()
            ]
            return ["the arrivals so far are from " + listing(dict.fromkeys(texts), 4)]
        steps = [
            i for i, s in enumerate(ctx.program.steps) if s.instr and classify.is_mbarrier_arrival(s.instr)
        ]
        near = np.isin(self._clusters(), self._clusters()[mask])
        came = ((at, who & near) for (at, _), who in ctx.mbarriers.arrivers.items())
        reached = {str(ctx.loc(at)) for at, who in came if who.any()}
        lines = dict.fromkeys(str(ctx.loc(at)) for at in steps)
        unreached = [line for line in lines if line not in reached]
        if unreached:
            return [f"nobody has arrived there; not reached yet: {listing(unreached, 4)}"]
        if lines:
            return [f"nobody has arrived there; {listing(lines, 4)} arrived at other mbarriers"]
        return ["nobody has arrived there, and no line of the kernel arrives at an mbarrier"]

    def _announced(self, at: int) -> str:
        """How many bytes the arrivals of a step announce, if the number is one constant."""
        here = self.ctx.instruction(at), self.ctx.loc(at)
        ops = [op for op in nodes.walk(self.ctx.program.kernel.body) if isinstance(op, nodes.Op)]
        sizes = {op.operands[-1] for op in ops if (op.instr, op.loc) == here}
        announces = here[0] is not None and classify.announces_bytes(here[0])
        size = sizes.pop() if announces and len(sizes) == 1 else None
        return f", announcing {size.value} bytes" if isinstance(size, nodes.Const) else ""

    def _waits_for_first(self, mask: np.ndarray) -> bool:
        """True if threads wait for phase 0 of mbarriers, at which nobody has arrived."""
        mbarriers = self.ctx.mbarriers
        slots = mbarriers.waited_for(mask)
        return bool(slots) and not any(mbarriers.phase(*p) for p in slots) and not self._arrivals(mask)

    def _named_barriers(self, mask: np.ndarray) -> list[str]:
        """The named barriers at which threads of `mask` wait, with the missing threads."""
        ctx, barriers, texts = self.ctx, self.ctx.barriers, []
        for cta, number in barriers.waited_for(mask):
            wanted, here = int(barriers.expected[cta, number]), int(barriers.arrived[cta, number])
            wanted = barriers.full if wanted < 0 else wanted
            text = f"barrier {number} of {{}}: {here} of {wanted} threads"
            away = self._not_at(cta, number).reshape(-1, WARP).any(axis=1)
            warps = ranges(np.flatnonzero(away) - cta * ctx.group // WARP)
            living = f"{{}} warps {warps}" if warps else "nobody"
            who = "missing are" if wanted == barriers.full else f"{wanted - here} are missing of"
            text = f"{text} have arrived; {who} {living}{self._gone_text(cta)}"
            if last := barriers.recounted(cta, number):
                text += f"; the phase before was one of {last} threads: was it meant?"
            texts.append((cta, text))
        lines = ctx.folded(texts)
        return lines[:4] + ["..."] * (len(lines) > 4)

    def _not_at(self, cta: int, number: int) -> np.ndarray:
        """(T,) bool: threads of a CTA that have not arrived at a named barrier."""
        ctx, barriers = self.ctx, self.ctx.barriers
        lanes = np.arange(WARP, dtype=np.uint32)
        arrived = (barriers.lanes[:, number, None] >> lanes & 1).reshape(-1) > 0
        arrived |= np.repeat(barriers.counted[:, number], WARP)
        return np.asarray(self._block(cta) & ~arrived & ctx.alive)

    def _missing_lanes(self, group: Group) -> np.ndarray:
        """Living threads of the group's warps or warpgroups that stand elsewhere."""
        ctx = self.ctx
        unit = ctx.cohorts[group.at].unit if group.at in ctx.cohorts else 0
        unit = unit or WARP
        some = np.repeat(group.mask.reshape(-1, unit).any(axis=1), unit)
        return np.asarray(some & ~group.mask & ctx.alive)

    def _lanes(self, mask: np.ndarray) -> str:
        warp = int(np.argmax(mask)) // WARP * WARP
        return f"lanes {ranges(np.flatnonzero(mask[warp : warp + WARP]))}"

    def _block(self, cta: int) -> np.ndarray:
        return np.asarray(np.arange(self.ctx.threads) // self.ctx.group == cta)

    def _exist(self) -> np.ndarray:
        return np.asarray(np.arange(self.ctx.threads) % self.ctx.group < self.ctx.threads_per_cta)

    def _gone_text(self, cta: int) -> str:
        gone = self._block(cta) & self.ctx.gone & self._exist()
        if not gone.any():
            return ""
        warps = np.flatnonzero(gone.reshape(-1, WARP).any(axis=1)) - cta * self.ctx.group // WARP
        return f"; threads of warps {ranges(warps)} have ended"

    def _ended(self) -> list[str]:
        """Threads that have ended in CTAs where others still wait."""
        ctx = self.ctx
        left = np.logical_or.reduce([group.mask for group in self.groups] or [ctx.alive])
        ctas = np.repeat(left.reshape(-1, ctx.group).any(axis=1), ctx.group)
        gone = ctas & ctx.gone & self._exist()
        return [f"  {ctx.warps_text(gone)}: ended"] if gone.any() else []

    # -- loops -------------------------------------------------------------------------------------

    def _polled(self, group: Group, loop: LoopAnalysis) -> list[str]:
        """The values by which a loop decides, for the first thread of a group."""
        lines, thread = [], int(np.argmax(group.mask))
        if signal := self._signal(loop, thread):
            return [f"    waits for {signal}"]
        for op in loop.conditions[:MAX_LINES]:
            text = self._value(op, thread)
            if text and text not in lines:
                lines.append(text)
        if not loop.conditions and not loop.counted:
            lines.append("no word of memory decides whether it ends")
            if loop.kernel.foreign:
                lines.append("a compiler may load a word once, before the loop, unless by a volatile load")
        return [f"    {line}" for line in lines]

    def _value(self, op: nodes.Op, thread: int) -> str:
        """Describe the operands and the result of an instruction of the condition."""
        if classify.uses_mbarrier(op.instr):
            address = self._operand(op.operands[0], thread)
            if not op.results or address is None:
                return ""
            mbarriers, cta = self.ctx.mbarriers, thread // self.ctx.group
            slot = (address & 0xFFFFFF) // 8
            parity = self._operand(op.operands[1], thread) if len(op.operands) > 1 else None
            (text,) = self.ctx.folded([(cta, mbarriers.wait_text(cta, slot))])
            return f"polls for parity {parity}: {text}"
        gave = [self._operand(value, thread) for value in op.results]
        result = ", ".join("?" if g is None else str(g) for g in gave)
        if Effect.LOAD in op.instr.effects:
            address = self._operand(op.operands[0], thread)
            if address is None:
                return ""
            return f"polls {self._word_name(op, address)}: {result}"
        operands = [self._operand(source, thread) for source in op.operands]
        texts = ", ".join("?" if o is None else str(o) for o in operands)
        return f"decides by {op.instr.mnemonic}({texts}) = {result}"

    def _signal(self, loop: LoopAnalysis, thread: int) -> str:
        """The counter and the value that a loop of `tc.wait_signal` waits for; "" for other loops."""
        program = self.ctx.program
        at = next((at for at in program.awaited if loop.head <= at < loop.end), -1)
        load = program.ops.get(at)
        address = None if load is None else self._operand(load.operands[0], thread)
        if load is None or address is None:
            return ""
        goal = self.registers.goal(at, thread)
        now = self._operand(load.results[0], thread)
        return f"{self._word_name(load, address)} to reach {goal}, and it is {now}"

    def _word_name(self, op: nodes.Op, address: int) -> str:
        if op.instr.space.startswith("shared"):
            return f"shared {address & 0xFFFFFF:#x}"
        arguments = self.ctx.globals.arguments
        for index, pointer in enumerate(arguments.pointers):
            array, offset = pointer.array, address - arguments.address(index)
            inside = 0 <= offset < array.nbytes and offset % array.itemsize == 0
            if inside and array.flags.c_contiguous:
                coordinates = np.unravel_index(offset // array.itemsize, array.shape)
                return f"{pointer.name}[{', '.join(map(str, coordinates))}]"
        return arguments.describe(address)

    def _operand(self, source: Any, thread: int) -> Any:
        """The value of an operand in a thread; None where it has none."""
        if isinstance(source, nodes.Const):
            return source.value
        base = source.base if isinstance(source, (nodes.Address, nodes.Part)) else source
        offset = source.offset if isinstance(source, nodes.Address) else 0
        if isinstance(base, nodes.Const):
            return int(base.value) + offset
        vreg = self.ctx.program.values.get(base)
        held = None if vreg is None else self.registers.values[vreg]
        if vreg in self.registers.fixed:
            held = np.array(self.registers.fixed[vreg] % (1 << base.type.register_bits))
        if held is None:
            return None
        if np.ndim(held) == 2:
            held = held[source.index if isinstance(source, nodes.Part) else 0]
        bits = scalar(held, thread)
        if isinstance(source, nodes.Address):
            return bits + offset
        dtype = base.type.dtype
        if dtype.kind == "p":
            return bool(bits)
        if dtype.kind == "s" and bits >> (dtype.bits - 1) & 1:
            return bits - (1 << dtype.bits)
        if dtype.is_float and dtype.numpy is not None and dtype.bits == dtype.register_bits:
            word = np.array(bits, f"u{dtype.bits // 8}")
            return word.view(dtype.numpy)[()]
        return bits

    # -- the arrows --------------------------------------------------------------------------------

    def _arrows(self) -> list[str]:
        """Who waits for whom, in the first CTA that waits."""
        ctx = self.ctx
        waiting = [g for g in self.groups if g.state == "waits"]
        if not waiting:
            return []
        size = ctx.clusters.size * ctx.group
        first = min(int(np.argmax(g.mask)) for g in waiting) // size * size
        part = np.zeros(ctx.threads, np.bool_)
        part[first : first + size] = True
        here = [g for g in self.groups if (g.mask & part).any()]
        targets = {
            i: [j for j, other in enumerate(here) if j != i and (wanted & other.mask).any()]
            for i, group in enumerate(here)
            if group.state == "waits" and (wanted := self._wanted(group, part)).any()
        }
        name: Callable[[int], str] = lambda i: self._name(here[i], part)
        lines = []
        cycle = _cycle(targets)
        if cycle:
            lines.append("    a cycle: " + " -> ".join(name(i) for i in (*cycle, cycle[0])))
            if all(self._waits_for_first(here[i].mask & part) for i in cycle):
                lines.append(
                    "    a new mbarrier is in phase 0: a producer's first wait takes parity 1, which "
                    "passes at once"
                )
        for i, ends in targets.items():
            told = cycle[(cycle.index(i) + 1) % len(cycle)] if i in cycle else -1
            lines += [f"    {name(i)} -> {name(j)}" for j in ends[:4] if j != told]
        for i, group in enumerate(here):
            if group.state == "waits" and not targets.get(i):
                lines.append(f"    {name(i)} -> nobody is left who could bring it on")
        return ["  who waits for whom:", *lines[:MAX_LINES]] if lines else []

    def _signals(self) -> list[str]:
        """On several devices: which word each rank polls, who changed it last, and who else could."""
        ctx, detector = self.ctx, self.ctx.sanitizer.detector
        device = ctx.geometry.device(np.arange(ctx.threads) // ctx.group)
        lines = []
        polling = [(group, self._loop(group)) for group in self.groups if group.state == "repeats"]
        for group, loop in polling if ctx.geometry.devices > 1 else ():
            ops = [op for op in loop.conditions if Effect.LOAD in op.instr.effects] if loop else []
            for rank, op in product(np.unique(device[group.mask]), ops):
                mine = device == rank
                thread = int(np.argmax(group.mask & mine))
                address = self._operand(op.operands[0], thread)
                if address is None or op.instr.space.startswith("shared"):
                    continue
                last = [] if detector is None else detector.last_writers(address)
                word = (loop and self._signal(loop, thread)) or self._word_name(op, address)
                by = f"last changed by {listing(last, 4)}" if last else "nobody has changed it"
                lines.append(f"    {self._name(group, mine)} -> {word}; {by}")
        steps = [
            (at, s) for at, s in enumerate(ctx.program.steps) if s.instr and classify.is_release(s.instr)
        ]
        executed = ctx.tally.executed()
        late = {str(ctx.loc(at)): None for at, step in steps if not executed[at]}
        if lines and late:
            lines.append(f"    no rank has reached the signal at {listing(list(late), 4)}")
        return ["  which signal each rank waits for:", *lines[:MAX_LINES]] if lines else []

    def _wanted(self, group: Group, part: np.ndarray) -> np.ndarray:
        """(T,) bool: threads of `part` that could bring a group on."""
        ctx, instr = self.ctx, self.ctx.instruction(group.at)
        others = part & ctx.alive & ~group.mask
        if instr is None:
            return np.zeros_like(others)
        missing = self._missing_lanes(group) & part
        if classify.uses_mbarrier(instr):
            able = np.zeros_like(others)
            for who in self._arrivals(group.mask).values():
                able |= who
            return np.asarray(others & able if (others & able).any() else others)
        if Effect.CLUSTER in instr.effects:
            per = ctx.clusters.size * ctx.group
            away = ctx.clusters.arrivals <= np.repeat(ctx.clusters.phase, per)
            return np.asarray(others & away)
        if ctx.clusters.lacking_registers(group.mask & part):  # the other warps of the CTA own registers
            ctas = (group.mask & part).reshape(-1, ctx.group).any(axis=1)
            return np.asarray(others & np.repeat(ctas, ctx.group))
        numbers = ctx.barriers.waits_at[group.mask & part]
        absent = np.zeros_like(others)
        for cta in np.unique(np.flatnonzero(group.mask & part) // ctx.group):
            for number in np.unique(numbers[numbers >= 0]):
                absent |= self._not_at(int(cta), int(number))
        return np.asarray(absent & others if absent.any() else missing)

    def _name(self, group: Group, part: np.ndarray) -> str:
        loc = self._loc(group)
        line = f":{loc.line}" if loc is not None else "?"
        return f"{self.ctx.warps_text(group.mask & part)} ({line})"

    def _loc(self, group: Group) -> Loc | None:
        loop = self._loop(group) if group.state == "repeats" else None
        return self.ctx.loc(group.at) if loop is None else loop.loc


def _cycle(targets: Mapping[int, list[int]]) -> list[int]:
    """A cycle of groups that wait for the next one each; [] if there is none."""
    try:
        TopologicalSorter(targets).prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1][:0:-1]  # each group is awaited by the next one
        first = min(range(len(cycle)), key=cycle.__getitem__)
        return cycle[first:] + cycle[:first]
    return []
