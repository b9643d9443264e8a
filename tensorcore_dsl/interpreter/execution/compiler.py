"""Compile the IR of a kernel to a flat program, which serves any number of launches."""

from __future__ import annotations

import math
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.environment.processors import without_collections
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.interpreter.core.geometry import stays
from tensorcore_dsl.interpreter.core.loops import LoopAnalysis
from tensorcore_dsl.interpreter.core.program import STOP, Program, Run, Step, word
from tensorcore_dsl.interpreter.execution import steps
from tensorcore_dsl.interpreter.execution.async_products import AsyncProduct, chain
from tensorcore_dsl.interpreter.regions import plan
from tensorcore_dsl.interpreter.regions.plan import RegionFlow, RegionJump
from tensorcore_dsl.interpreter.sanitizer import mma_hazards
from tensorcore_dsl.interpreter.sanitizer.mma_hazards import MmaHazards
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.ir.constants import const_bits, const_int
from tensorcore_dsl.isa import classify, names
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.lanes import ADD, ALL_LANES, COPY, LaneAccess, access, operations, special_register
from tensorcore_dsl.isa.spec import Operand


@without_collections()
def compile_program(kernel: nodes.Kernel, varying: frozenset[int] = frozenset()) -> Program:
    """The flat program of `kernel`.

    varying: parameters, by position, whose values differ between the devices of a launch.
    """
    program = _Compiler(kernel, varying).program
    program.publish()
    return program


def _loops_of(block: nodes.Block) -> dict[str, int]:
    """The labels that a `Goto` leads back to, and the end of the nodes between; loops that overlap
    are made to lie inside each other."""
    positions = {node.name: i for i, node in enumerate(block) if isinstance(node, nodes.Label)}
    ends: dict[str, int] = {}
    for i, node in enumerate(block):
        if isinstance(node, nodes.Goto) and positions[node.target] < i:
            ends[node.target] = i + 1
    inner_first = sorted(ends, key=lambda name: -positions[name])
    for outer in inner_first:
        inside = [ends[name] for name in ends if positions[outer] < positions[name] < ends[outer]]
        ends[outer] = max([ends[outer], *inside])
    return ends


class _Label:
    """A position that is not known yet; `at` is set when the code gets there. used: by a jump."""

    at: int = STOP
    used = False


class _Compiler:
    """Appends steps to a program, node by node.

    vregs: by value or constant. The methods `_op`, `_assign`, `_for` and so on compile the nodes of
    these names.
    """

    def __init__(self, kernel: nodes.Kernel, varying: frozenset[int]) -> None:
        self.program = Program(kernel, ranked=math.prod(kernel.cluster or ()) > 1)
        self.add = self.program.steps.append
        self.watched = mma_hazards.product_registers(kernel)
        self.read = {value for node in nodes.walk(kernel.body) for value in nodes.reads(node)}
        self.vregs = self.program.values
        self.made: dict[Any, Loc | None] = {}  # location of the last write of each register
        self.inside: LoopAnalysis | None = None
        self.loops: list[tuple[_Label, _Label]] = []  # targets of continue and break
        self.micro_ops = self.program.micro_ops
        self.jumps: dict[int, RegionJump] = {}
        self.multiplied = self.program.products
        self.labels = {node.name: _Label() for node in kernel.body if isinstance(node, nodes.Label)}
        self.backward = _loops_of(kernel.body)
        self.products: list[AsyncProduct] = []  # unguarded products of warpgroups
        self.heads: set[int] = set()  # targets of jumps
        # By position: copies of, and operations on, registers that asynchronous products use.
        self.checks: dict[int, mma_hazards.RegisterUse] = {}
        self.program.params = [self.value(param.value) for param in kernel.params]
        self.block(kernel.body)
        self.add(Step(steps.finish, None))
        self.program.vregs = len(self.vregs)
        for at, use in self.checks.items():
            copy = self.program.steps[at]
            copy.run = steps.watched(copy.run, partial(MmaHazards.access, uses=(use,)))
        written = {vreg for step in self.program.steps for vreg in step.writes}
        written |= {self.program.params[number] for number in varying}
        self.program.fixed = frozenset(
            vreg
            for vreg, param in zip(self.program.params, kernel.params, strict=True)
            if vreg not in written and not param.value.type.is_group and param.value.type.registers == 1
        )
        self.program.shown = self._shown()
        flow = RegionFlow(self.program.steps, self.jumps, self._watched())
        edges = {at for at in range(self.here) if (at in self.checks) != (at - 1 in self.checks)}
        self.program.flow, self.program.copied = flow, self.checks
        self.program.cuts = edges
        chain(self.program, flow, self.products, self.heads | self.checks.keys())
        self.program.kept = {v: self.value(kept) for v, kept in kernel.kept.items()}

    def _watched(self) -> dict[int, list[int]]:
        """By position, the vregs that reports of endless loops read there."""
        vregs = {}
        for at, loop in self.program.loops.items():
            if not loop.counted:
                shown = [v for op in loop.conditions for v in op.results]
                shown += [v for op in loop.equalities for v in nodes.reads(op)]
                vregs[at] = [self.value(v) for v in shown]
        return vregs

    def _shown(self) -> set[int]:
        """The vregs that reports of loops without a count read: addresses of their accesses, and
        what their conditions compare."""
        loops = {head: x for head, x in self.program.loops.items() if not x.counted}
        read = [
            getattr(op.operands[0], "base", None)
            for at, op in self.program.ops.items()
            if any(head <= at < loop.end for head, loop in loops.items())
        ]
        read += [v for x in loops.values() for op in x.conditions for v in nodes.reads(op)]
        return {self.value(value) for value in read if isinstance(value, nodes.Value)}

    def vreg(self, key: Any, shape: Any = None) -> tuple[int, bool]:
        """The vreg of `key`, and whether it is new; `shape`: see `Program.shapes`."""
        new = key not in self.vregs
        if new:
            self.program.shapes.append(shape)
        return self.vregs.setdefault(key, len(self.vregs)), new

    def value(self, value: nodes.Value) -> int:
        kind = value.type
        dtype = np.dtype(word(kind.register_bits))
        return self.vreg(value, (dtype, kind.registers, kind.is_group))[0]

    def constant(self, item: Any, registers: int | None = None) -> int:
        """The vreg of a Python int or NumPy scalar.

        registers: None for one constant that all threads share; else every thread has it, in every
        register of a group of so many, or in a scalar (0).
        """
        vreg, new = self.vreg((type(item), item, registers))
        if new:
            self.program.constants.append((vreg, item, registers))
        return vreg

    def source(self, source: nodes.Source, kind: Any) -> int:
        """The vreg of a value, or of a constant in every thread."""
        if isinstance(source, nodes.Const):
            return self.constant(kind(const_bits(source)), 0)
        assert isinstance(source, nodes.Value)
        return self.value(source)

    @property
    def here(self) -> int:
        return len(self.program.steps)

    def reach(self, label: _Label) -> None:
        """Jumps to `label` lead here."""
        label.at = self.here
        self.heads.add(self.here)

    def slot(self, source: Any, bits: int) -> plan.Slot:
        """The register of a value, a part of a group or a constant, as compiled code finds it."""
        if isinstance(source, nodes.Part):
            vreg, register = self._row(source, None)
            bits = source.base.type.register_bits
        elif isinstance(source, nodes.Const):
            vreg, register = self.constant(word(bits)(const_bits(source))), 0
        else:
            vreg, register, bits = self.value(source), 0, source.type.register_bits
        return vreg, register or 0, np.dtype(word(bits)).itemsize

    def slots(self, value: nodes.Value) -> list[plan.Slot]:
        """All registers of a value."""
        vreg, _, size = self.slot(value, 0)
        return [(vreg, register, size) for register in range(value.type.registers)]

    def block(self, block: nodes.Block) -> None:
        for run in steps.independent_runs(block):
            start = self.here
            for node in run:
                getattr(self, f"_{type(node).__name__.lower()}")(node)
            if len(run) > 1:
                self._join_products(start, [node for node in run if isinstance(node, nodes.Op)])

    def _join_products(self, start: int, ops: list[nodes.Op]) -> None:
        """Let the compiled form of the first step of a run compute all of its products."""
        stretch = range(start, start + len(ops))
        if all(at in self.multiplied for at in stretch):
            for at in stretch:
                del self.multiplied[at]
                self.micro_ops[at] = []
            self._fuse_products(start, ops)

    def _fuse_products(self, start: int, ops: list[nodes.Op]) -> None:
        """Note the compiled form of products that follow each other from `start` on."""
        products = steps.Products(start, ops[0].instr, [self._registers(op) for op in ops])
        read = [slot for op in ops for source in op.operands for slot in self._slots_of(source)]
        written = [slot for op in ops for slot in self.slots(op.results[0])]
        self.multiplied[products.start] = products
        self.micro_ops[products.start] = [plan.products_op(products.instr, len(ops), written, read)]

    def _slots_of(self, source: Any) -> list[plan.Slot]:
        """The registers of a value, a part of one; none of a constant."""
        if isinstance(source, nodes.Part):
            return [self.slot(source, 0)]
        return self.slots(source) if isinstance(source, nodes.Value) else []

    def _registers(self, op: nodes.Op) -> steps.Registers:
        """The operands and the result of a product of warps."""
        operands = zip(op.operands, op.instr.operands, strict=True)
        return (*(self.operand(s, o) for s, o in operands), (self.value(op.results[0]), None))

    def _op(self, op: nodes.Op) -> None:
        operands = [self.operand(s, o) for s, o in zip(op.operands, op.instr.operands, strict=True)]
        reads = tuple(vreg for vreg, _ in operands)
        results = [(self.value(v), np.dtype(word(v.type.register_bits))) for v in op.results]
        self.made.update(dict.fromkeys(op.results, op.loc))
        fetch = steps.fetch(operands)
        blocking = Effect.BLOCKING in op.instr.effects
        warp = Effect.WARP in op.instr.effects and not blocking
        mask = steps.member_mask(op.instr, reads)
        use = mma_hazards.product_use(op.instr, reads)
        if use is not None:
            run = self._async_product(op, fetch, use, results[0][0])
        else:
            make = steps.blocking if blocking else steps.plain
            run = make(steps.call(op.instr, fetch), results, self.here)
        plain, run = run, self._checked(run, op, reads, [vreg for vreg, _ in results])
        guard = None if op.guard is None else (self.value(op.guard), op.negated)
        if run is plain and guard is None and classify.is_dense_product(op.instr):
            self._fuse_products(self.here, [op])
        elif run is plain and self._takes_all(op, mask):
            self._fuse_op(op, guard)
        self.program.classify(op.instr)
        if blocking and classify.uses_mbarrier(op.instr) and self.read.isdisjoint(op.results):
            self.program.unheard.add(self.here)
        if guard is not None:
            if classify.is_aligned(op.instr):
                run = steps.undivided(run, self.here)
            run = steps.guarded(steps.unbroken(run) if warp else run, *guard)
        if classify.is_aligned(op.instr):
            run = steps.aligned(run, self.here)
        elif warp or mask is not None:
            orders = classify.is_memory_barrier(op.instr)
            run = steps.gathered(run, self.here, op.instr.threads, mask, orders)
        if classify.word_access(op.instr) is not None:
            self.program.ops[self.here] = op
        writes = tuple(vreg for vreg, _ in results)
        meets = fetch if mask is not None and guard is None else None
        self.add(Step(run, op.loc, op.instr, reads, guard, writes, fetch=meets, swizzle=op.swizzle))

    def _async_product(self, op: nodes.Op, fetch: steps.Fetch, use: mma_hazards.ProductUse, vreg: int) -> Run:
        product = AsyncProduct(op.instr, fetch, vreg, self.here, op.loc, use)
        if op.guard is None:
            self.products.append(product)
        return product.run

    def _takes_all(self, op: nodes.Op, mask: int | None) -> bool:
        """True if all lanes take part in an instruction that names its lanes."""
        return mask is None or any(
            operand.name == "mask" and isinstance(source, nodes.Const) and const_bits(source) == ALL_LANES
            for source, operand in zip(op.operands, op.instr.operands, strict=True)
        )

    def _fuse_op(self, op: nodes.Op, guard: tuple[int, bool] | None) -> None:
        """Note the compiled form of an instruction, if it has one; with a guard, accesses have."""
        move = access(op.instr)
        whole = Effect.WARP in op.instr.effects
        if guard is not None and (move is None or move.kind == COPY or whole):
            return
        if move is not None:
            self._fuse([each._replace(guard=guard) for each in self._access(op, move)])
        register = special_register(op.instr)
        if register and stays(register):
            self._fuse([plan.input_op(register, self.slot(op.results[0], 0))])
        sides = list(zip(op.operands, op.instr.operands, strict=True))
        immediate = {
            i: const_int(source)
            for i, (source, o) in enumerate(sides)
            if o.kind == "imm" and isinstance(source, nodes.Const)
        }
        if operations(op.instr, tuple(immediate.items())):
            results = [self.slot(value, 0) for value in op.results]
            operands = [
                plan.NO_SLOT if o.kind == "imm" else self.slot(source, o.register_bits) for source, o in sides
            ]
            self._fuse(plan.instruction_ops(op.instr, results, operands, immediate))

    def _access(self, op: nodes.Op, move: LaneAccess) -> list[plan.MicroOp]:
        """The micro-operation of an access to memory; none if compiled code does not know its operands."""
        sources = list(op.operands)
        ends = [sources.pop(0) for _ in range(1 + (move.kind == COPY))]
        if not all(isinstance(e, nodes.Address) and isinstance(e.base, nodes.Value) for e in ends):
            return []
        slots = [self.slot(end.base, 0) for end in ends]  # type: ignore[union-attr]
        ranked = self.program.ranked and min(size for _, _, size in slots) == 4
        if ranked and move.kind == COPY:
            return []
        offsets = [end.offset for end in ends]  # type: ignore[union-attr]
        if move.kind == COPY:
            size = const_int(sources[0])  # type: ignore[arg-type]
            read = sources[1] if len(sources) > 1 else nodes.Const(size, dtypes.u32)
            copied = plan.NO_SLOT, *slots, self.slot(read, 32)
            return [plan.MicroOp("copy", 0, copied, (*offsets, size), move)]
        results = [self.slot(value, 0) for value in op.results]
        if any(isinstance(source, nodes.Const) for source in sources):
            return []
        slots = [*(results or [plan.NO_SLOT]), *slots, *(self.slot(s, 0) for s in sources)]
        width = 4 if Effect.WARP in op.instr.effects else move.width
        if slots[0][0] == slots[1][0] or slots[0 if results else 2][2] != width:
            return []
        return [plan.MicroOp("access", 0, tuple(slots), (*offsets, int(ranked)), move)]

    def _fuse(self, micro_ops: list[plan.MicroOp]) -> None:
        if micro_ops:
            self.micro_ops[self.here] = micro_ops

    def _checked(self, run: Run, op: nodes.Op, reads: tuple[int, ...], writes: list[int]) -> Run:
        """The step with the checks of registers that asynchronous products use."""
        product = mma_hazards.product_use(op.instr, reads)
        if product is not None:
            at = self.here
            return steps.watched(run, lambda mma: mma.issue(product, at))
        accesses = zip(reads, op.operands), zip(writes, op.results)
        name = op.instr.mnemonic
        moves = op.instr.opcode == names.MOVE
        use = mma_hazards.register_use(name, *accesses, self.watched, loc=op.loc, moves=moves)
        if use is not None and op.guard is None and operations(op.instr):
            self.checks[self.here] = use
            return run
        return run if use is None else steps.watched(run, lambda mma: mma.access((use,)))

    def operand(self, source: nodes.Source, operand: Operand) -> steps.Reader:
        if isinstance(source, nodes.Address):
            return self._address(source, operand)
        if isinstance(source, nodes.Part):
            is_group = source.base.type.is_group
            return self.value(source.base), itemgetter(source.index) if is_group else None
        if isinstance(source, nodes.Value):
            return self.value(source), None
        if operand.kind == "imm":
            return self.constant(const_int(source)), None
        item = word(operand.register_bits)(const_bits(source))
        if operand.registers > 1 or operand.is_fragment:
            return self.constant(item, operand.registers), None
        return self.constant(item), None

    def _address(self, address: nodes.Address, operand: Operand) -> steps.Reader:
        kind = word(operand.register_bits)
        bits = operand.register_bits
        if isinstance(address.base, nodes.Const):
            whole = (const_bits(address.base) + address.offset) % (1 << bits)
            return self.constant(kind(whole), 0), None
        vreg = self.value(address.base)
        offset = kind(address.offset % (1 << bits))
        if self.program.ranked and bits == 32:
            return vreg, partial(steps.own_memory, offset=int(offset))
        if address.offset == 0:
            return vreg, None
        return vreg, lambda base: base + offset

    def _assign(self, node: nodes.Assign) -> None:
        target, sources = node.target, node.sources
        vreg, kind = self.value(target), word(target.type.register_bits)
        only, is_group = sources[0], target.type.is_group
        if len(sources) == 1 and isinstance(only, nodes.Const):
            run = steps.copy(vreg, self.constant(kind(const_bits(only))))
        elif len(sources) == 1 and isinstance(only, nodes.Value) and (only.type.is_group == is_group):
            run = steps.copy(vreg, self.value(only))
        else:
            run = steps.gather(vreg, [self._row(s, kind) for s in sources], kind, is_group)
        values = [s.base if isinstance(s, nodes.Part) else s for s in sources]
        reads = [(self.value(v), v) for v in values if isinstance(v, nodes.Value)]
        writes = [(vreg, target)]
        made = self.made.get(values[0]) if len(sources) == 1 else node.loc
        self.made[target] = made = made or node.loc
        own = self.watched.isdisjoint(values)  # Otherwise the message names the copy itself.
        use = mma_hazards.register_use(
            "a copy of registers",
            reads,
            writes,
            self.watched,
            copies=len(sources) == 1 and is_group,
            loc=made if own else node.loc,
            moves=True,
        )
        if use is not None:
            self.checks[self.here] = use
        self._fuse(plan.copy_ops(self.slots(target), self._copied(node)))
        self.add(Step(run, node.loc, writes=(vreg,), copies=tuple(p for p, _ in reads)))

    def _copied(self, node: nodes.Assign) -> list[plan.Slot]:
        """The register that each register of the target is a copy of."""
        only, bits = node.sources[0], node.target.type.register_bits
        if len(node.sources) > 1:
            return [self.slot(source, bits) for source in node.sources]
        if isinstance(only, nodes.Value):
            return self.slots(only)[: node.target.type.registers]
        return [self.slot(only, bits)] * node.target.type.registers

    def _row(self, source: nodes.Source, kind: Any) -> tuple[int, int | None]:
        """A vreg and the register of its group, None for a scalar."""
        if isinstance(source, nodes.Part):
            return self.value(source.base), source.index if source.base.type.is_group else None
        is_group = isinstance(source, nodes.Value) and source.type.is_group
        return self.source(source, kind), 0 if is_group else None

    def _if(self, node: nodes.If) -> None:
        orelse, end = _Label(), _Label()
        self.branch(self.value(node.condition), orelse, node.loc)
        self.block(node.then)
        if len(node.orelse):
            self.goto(end, node.loc)
        self.reach(orelse)
        self.block(node.orelse)
        self.reach(end)

    def _enter(self, node: nodes.While | nodes.For) -> int:
        """Note a loop; the position of its head."""
        loop = LoopAnalysis(node, self.program.kernel, self.here, self.inside)
        self.inside = self.program.loops[self.here] = loop
        return self.here

    def _leave(self) -> None:
        assert self.inside is not None
        self.inside.end = self.here
        self.inside = self.inside.outer

    def _while(self, node: nodes.While) -> None:
        top, end = _Label(), _Label()
        self.reach(top)
        self._enter(node)
        self.loops.append((top, end))
        self._note_wait(node)
        self.block(node.test)
        if isinstance(node.condition, nodes.Value):
            self.branch(self.value(node.condition), end, node.loc)
        elif not node.condition.value:
            self.goto(end, node.loc)
        self.block(node.body)
        self.goto(top, node.loc)
        self.reach(end)
        self.loops.pop()
        self._leave()

    def _note_wait(self, node: nodes.While) -> None:
        """Note what a loop waits for that repeats a load until a counter has reached a value."""
        ops = [op for op in node.test if isinstance(op, nodes.Op)]
        if (
            not 2 <= len(ops) == len(node.test) <= 3
            or len(node.body)
            or not classify.is_acquire(ops[0].instr)
        ):
            return
        load, *less, compare = ops  # A wait for 0 subtracts nothing.
        is_less = compare.instr.mnemonic in (names.compare("lt", f"s{bits}") for bits in (16, 32, 64))
        if not is_less or any(len(op.operands) != 2 for op in less):
            return
        zero = compare.operands[1]
        if [op.operands[:1] for op in (*less, compare)] != [op.results for op in (load, *less)]:
            return
        if not isinstance(zero, nodes.Const) or zero.value != 0:
            return
        value = less[0].operands[1] if less else zero
        if isinstance(value, nodes.Const):  # The loop adds the negated value.
            self.program.awaited[self.here] = (-int(value.value),)
        elif isinstance(value, nodes.Value):
            self.program.awaited[self.here] = self.value(value)

    def _for(self, node: nodes.For) -> None:
        again, end = _Label(), _Label()
        index, dtype = self.value(node.index), node.index.type.dtype
        bits = word(node.index.type.register_bits)
        kind = getattr(np, f"int{dtype.bits}") if dtype.kind == "s" else bits
        self._assign(nodes.Assign(node.index, (node.start,), node.loc))
        stop, step = (self.source(s, bits) for s in (node.stop, node.step))
        known = const_int(node.step) if isinstance(node.step, nodes.Const) else 0
        if abs(known) != 1:
            jumps = (n.kind for n in nodes.walk(node.body) if isinstance(n, nodes.Jump))
            run = steps.entered(index, stop, step, kind, to_end={*jumps} <= {"continue"})
            self.add(Step(run, node.loc, reads=(index, stop, step), check=True))
        top = self._enter(node)
        self.heads.add(top)
        inside = self.vreg(_Label(), (np.dtype(np.bool_), 1, False))[0]
        self.program.flags.append(inside)
        run = steps.inside(inside, index, stop, step, kind)
        self._fuse(self._inside(node, inside, signed=np.dtype(kind).kind == "i"))
        self.add(Step(run, node.loc, reads=(index, stop, step), writes=(inside,)))
        self.branch(inside, end, node.loc)
        self.loops.append((again, end))
        self.block(node.body)
        if again.used:
            self.reach(again)
        run = steps.advance(index, step)
        self._fuse(self._advance(node))
        self.add(Step(run, node.loc, reads=(index, step), writes=(index,)))
        back = _Label()
        back.at = top
        self.goto(back, node.loc)
        self.reach(end)
        self.loops.pop()
        self._leave()

    def _inside(self, node: nodes.For, vreg: int, signed: bool) -> list[plan.MicroOp]:
        """The condition of a counted loop, if its direction is known."""
        bits = node.index.type.register_bits
        down = False
        if signed:
            if not isinstance(node.step, nodes.Const):
                return []
            down = const_bits(node.step) >> node.index.type.dtype.bits - 1 & 1 == 1
        ends = [self.slot(source, bits) for source in (node.index, node.stop)]
        slots = [(vreg, 0, 1), *(reversed(ends) if down else ends)]
        comparison = plan.micro_op("lt.s" if signed else "lt.u", bits, slots)
        return [] if comparison is None else [comparison]

    def _advance(self, node: nodes.For) -> list[plan.MicroOp]:
        bits = node.index.type.register_bits
        index = self.slot(node.index, bits)
        addition = plan.micro_op(ADD, bits, [index, index, self.slot(node.step, bits)])
        return [] if addition is None else [addition]

    def _label(self, node: nodes.Label) -> None:
        self.reach(self.labels[node.name])
        if node.name in self.backward:
            end = self.backward[node.name]
            body = nodes.Block(self.program.kernel.body.nodes[self._index(node) + 1 : end])
            # A label has no source line; the statement after it has one.
            loc = next((n.loc for n in body if not isinstance(n, nodes.Label)), node.loc)
            self._enter(nodes.While(body, nodes.Const(True, dtypes.pred), nodes.Block([]), loc))

    def _goto(self, node: nodes.Goto) -> None:
        if node.condition is not None:
            self.branch(self.value(node.condition), self.labels[node.target], node.loc)
            return
        self.goto(self.labels[node.target], node.loc)
        for _ in range([*self.backward.values()].count(self._index(node) + 1)):
            self._leave()

    def _index(self, node: nodes.Node) -> int:
        return self.program.kernel.body.nodes.index(node)

    def _keep(self, node: nodes.Keep) -> None:
        target, source = self.value(node.target), self.value(node.source)
        self.add(Step(steps.copy(target, source), node.loc, writes=(target,), copies=(source,)))

    def _mark(self, node: nodes.Mark) -> None:
        self.program.marks[self.here] = node
        self.add(Step(steps.observed(node, self.here), node.loc))

    def _jump(self, node: nodes.Jump) -> None:
        if node.kind == "return":
            nodes_ = self.program.kernel.body.nodes
            self.add(Step(steps.finish if node is nodes_[-1] else steps.exit_, node.loc))
        else:
            self.goto(self.loops[-1][node.kind == "break"], node.loc)

    def goto(self, label: _Label, loc: Loc | None) -> None:
        label.used = True
        self.jumps[self.here] = RegionJump(label)
        self.add(Step(lambda machine: label.at, loc))

    def branch(self, condition: int, label: _Label, loc: Loc | None) -> None:
        """Threads whose condition is false go to `label`, which lies ahead."""
        self.jumps[self.here] = RegionJump(label, condition)
        run = steps.branch(condition, lambda: label.at)
        self.add(Step(run, loc, reads=(condition,)))
