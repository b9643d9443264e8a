"""Register coalescing: values connected by copies share one set of registers.

The frontend writes a copy wherever Python rebinds a variable that a loop or a branch carries (`acc
<- new`). Values are merged if their live ranges do not overlap (except through copies between
them). In a loop, `acc = mma(a, b, acc)` then keeps its registers and needs no copy; a copy would
make ptxas serialise wgmma. Operands that share the result's registers (`Instruction.tied`) are
merged with the result first. They are copied if they are still live afterwards and the text names
only the result.

Values of different types are merged if one of them is only used as untyped bits, such as the result
of ldmatrix. Fragments that an "async" instruction only reads stay live until a "wait" (or "wgmma");
if a wait leaves groups pending, they are not merged at all.

Liveness is exact on structured control flow and needs no iteration. The effect of a block on a set
of live values (one bit per value) is

    before = reads | through & after | at_break & to_break | at_continue & to_continue

and the least fixed point of a loop has the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tensorcore_dsl.ir.constants import constant_trips
from tensorcore_dsl.ir.forward import forward_copies
from tensorcore_dsl.isa.effects import PURE, Effect
from tensorcore_dsl.isa.spec import Instruction

from tensorcore_dsl.ir.nodes import (  # isort: skip
    Assign, Block, Const, For, If, Jump, Keep, Kernel, Node, Op, Part, Source, Type, Value, While,
    children, reads, walk, writes,
)  # fmt: skip


def coalesce(kernel: Kernel) -> None:
    """Rewrite `kernel` in place: remove dead ops and copies, share registers of tied operands."""
    remove_dead(kernel)
    forward_copies(kernel)
    remove_dead(kernel)
    merged = _merge(kernel)
    if merged:
        _rename(kernel, merged)
    _rewrite(kernel.body, _ShareTied(_free_id(kernel)))


def remove_dead(kernel: Kernel) -> None:
    """Remove copies and ops without effects whose results are unused."""
    needed: set[Value] = set()
    makers: dict[Value, list[Node]] = {}
    pending: list[Value] = []
    for node in walk(kernel.body):
        if _droppable(node):
            for value in writes(node):
                makers.setdefault(value, []).append(node)
        else:
            pending.extend(reads(node))
    while pending:
        value = pending.pop()
        if value not in needed:
            needed.add(value)
            for node in makers.get(value, ()):
                pending.extend(reads(node))
    _rewrite(kernel.body, lambda node: [] if _droppable(node) and needed.isdisjoint(writes(node)) else [node])


def unwritten_operand(instr: Instruction) -> int | None:
    """Index of the operand that the text names only through the result, as wgmma's accumulator."""
    if instr.tied is None or not instr.template or f"{{{instr.tied}}}" in instr.template:
        return None
    return _tied_index(instr)


def _free_id(kernel: Kernel) -> int:
    """The smallest unused value number."""
    values = [p.value for p in kernel.params]
    for node in walk(kernel.body):
        values.extend(writes(node))
    return 1 + max((v.id for v in values), default=-1)


def _tied_index(instr: Instruction) -> int:
    return next(i for i, o in enumerate(instr.operands) if o.name == instr.tied)


def _droppable(node: Node) -> bool:
    return isinstance(node, Assign) or (isinstance(node, Op) and node.instr.effects == PURE)


def _rewrite(block: Block, change: Callable[[Node], Iterable[Node]]) -> None:
    """Replace every node by the nodes that `change` returns, children first."""
    nodes: list[Node] = []
    for node in block.nodes:
        for child in children(node):
            _rewrite(child, change)
        nodes.extend(change(node))
    block.nodes[:] = nodes


# --- which values to merge -----------------------------------------------------------------


def _copied(node: Node) -> Value | None:
    """The value of which an assignment is a complete copy."""
    if not isinstance(node, Assign):
        return None
    first = node.sources[0]
    if isinstance(first, Value):
        return first if len(node.sources) == 1 and _alike(first.type, node.target.type) else None
    if isinstance(first, Part) and _alike(first.base.type, node.target.type):
        whole = tuple(Part(first.base, i) for i in range(first.base.type.registers))
        return first.base if node.sources == whole else None
    return None


def _alike(a: Type, b: Type) -> bool:
    """Whether values of the two types occupy the same registers."""
    return (a.registers, a.register_bits, a.is_group) == (b.registers, b.register_bits, b.is_group)


def _pairs(block: Block, depth: int = 0) -> Iterator[tuple[int, Value, Value]]:
    """(rank, value, value) to merge; tied operands and deeper loops have lower (better) ranks."""
    for node in block.nodes:
        source = _copied(node)
        if source is not None and isinstance(node, Assign):
            yield -depth, node.target, source
        if isinstance(node, Op) and node.instr.tied is not None:
            operand = node.operands[_tied_index(node.instr)]
            if isinstance(operand, Value) and operand.type == node.results[0].type:
                rank = -2000 if unwritten_operand(node.instr) is not None else -1000
                yield rank - depth, node.results[0], operand
        for child in children(node):
            yield from _pairs(child, depth + (not isinstance(node, If)))


def _typed(kernel: Kernel) -> set[Value]:
    """Values whose type matters: all except those that every use treats as untyped bits."""
    values = {p.value for p in kernel.params}
    for node in walk(kernel.body):
        if isinstance(node, Op):
            named = zip((*node.results, *node.operands), node.instr.sides)
            values.update(
                source if isinstance(source, Value) else source.base  # type: ignore[misc]
                for source, operand in named
                if not isinstance(source, Const)
                and (operand.dtype.kind != "b" or operand.layout or operand.kind == "addr")
            )
            values.update([node.guard] if node.guard is not None else [])
        elif isinstance(node, Keep):
            continue
        elif not isinstance(node, Assign):
            values.update((*reads(node), *writes(node)))
        else:
            values.update(v for v in writes(node) if v.type.dtype.kind != "b" or v.type.layout)
    return values


def _ops(kernel: Kernel, effects: Effect) -> Iterator[Op]:
    """Ops that have one of the effects."""
    for node in walk(kernel.body):
        if isinstance(node, Op) and node.instr.effects & effects:
            yield node


def _only_read(kernel: Kernel) -> set[Value]:
    """Fragments that asynchronous instructions read after they are issued."""
    fragments: set[Value] = set()
    for op in _ops(kernel, Effect.ASYNC):
        tied = None if op.instr.tied is None else op.operands[_tied_index(op.instr)]
        values = (s for s in op.operands if isinstance(s, Value) and s is not tied)
        fragments.update(v for v in values if v.type.is_group)
    return fragments


def _pending(kernel: Kernel) -> set[Value]:
    """Fragments that asynchronous instructions may still read after a wait."""
    waits = (s for op in _ops(kernel, Effect.WGMMA) for s in op.operands if isinstance(s, Const))
    return _only_read(kernel) if any(const.value for const in waits) else set()


class _Class(NamedTuple):
    """Values that share registers; `mask` are these values, `row` the values they conflict with."""

    members: list[Value]
    mask: int
    row: int
    type: Type | None  # None: any type with the same registers

    def may_join(self, other: _Class) -> bool:
        apart = self.row & other.mask or other.row & self.mask
        return not apart and (None in (self.type, other.type) or self.type == other.type)

    def join(self, other: _Class) -> _Class:
        members = self.members + other.members
        return _Class(members, self.mask | other.mask, self.row | other.row, self.type or other.type)

    def leader(self, params: set[Value]) -> Value:
        """The member whose registers the others use."""
        typed = (m for m in self.members if self.type in (None, m.type))
        return next((m for m in self.members if m in params), next(typed))


def _merge(kernel: Kernel) -> dict[Value, Value]:
    """Map from each merged value to the value whose registers it uses."""
    alone = {n.index for n in walk(kernel.body) if isinstance(n, For)} | _pending(kernel)
    pairs = [p for p in _pairs(kernel.body) if alone.isdisjoint(p[1:])]
    pairs.sort(key=lambda pair: pair[0])
    values = list(dict.fromkeys(v for _, left, right in pairs for v in (left, right)))
    if not values:
        return {}
    graph = _Interference({value: 1 << bit for bit, value in enumerate(values)})
    graph.kernel(kernel)
    if graph.dead:
        _rewrite(kernel.body, lambda node: [] if node in graph.dead else [node])
    typed = _typed(kernel)
    classes = {
        v: _Class([v], bit, graph.rows[v], v.type if v in typed else None) for v, bit in graph.bits.items()
    }
    for _, left, right in pairs:
        a, b = classes[left], classes[right]
        if a is not b and a.may_join(b):
            merged = a.join(b)
            classes.update(dict.fromkeys(merged.members, merged))
    params = {p.value for p in kernel.params}
    leaders = {value: group.leader(params) for value, group in classes.items()}
    return {value: leader for value, leader in leaders.items() if value is not leader}


# --- liveness ------------------------------------------------------------------------------


class _Flow(NamedTuple):
    """Effect of a node on the set of live values; see the module."""

    reads: int
    through: int
    at_break: int = 0
    at_continue: int = 0

    def before(self, after: int, to_break: int = 0, to_continue: int = 0) -> int:
        return self.reads | self.through & after | self.at_break & to_break | self.at_continue & to_continue


@dataclass
class _Interference:
    """Rows of the interference relation: the values live at each write of a value, as bits."""

    bits: dict[Value, int]

    def __post_init__(self) -> None:
        self.everything = (1 << len(self.bits)) - 1
        self.rows = dict.fromkeys(self.bits, 0)
        self.flows: dict[Node | Block, _Flow] = {}
        self.dead: set[Node] = set()  # dead writes
        self.held = 0  # bounds and steps of the enclosing loops, which must not be overwritten
        self.waiting = 0  # fragments that asynchronous instructions read until a wait

    def kernel(self, kernel: Kernel) -> None:
        self.waiting = self._mask(_only_read(kernel))
        self._block_flow(kernel.body)
        entry = self._visit(kernel.body, 0, 0, 0)
        params = [p.value for p in kernel.params]
        self._write(params, entry | self._mask(params))

    def _mask(self, values: Iterable[Value]) -> int:
        mask = 0
        for value in values:
            mask |= self.bits.get(value, 0)
        return mask

    def _write(self, values: Iterable[Value], live: int) -> None:
        for value in values:
            if value in self.rows:
                self.rows[value] |= (live | self.held) & ~self.bits[value]

    # Bottom up: the effect of every block and control node.

    def _block_flow(self, block: Block) -> _Flow:
        total = _Flow(0, self.everything)
        for node in reversed(block.nodes):
            flow = self.flows[node] = self._flow(node)
            total = _Flow(
                flow.before(total.reads),
                flow.through & total.through,
                flow.at_break | flow.through & total.at_break,
                flow.at_continue | flow.through & total.at_continue,
            )
        self.flows[block] = total
        return total

    def _flow(self, node: Node) -> _Flow:
        if isinstance(node, If):
            return self._if_flow(node)
        if isinstance(node, While):
            return self._while_flow(node)
        if isinstance(node, For):
            return self._for_flow(node)
        if isinstance(node, Jump):
            leaves = (self.everything * (node.kind == kind) for kind in ("break", "continue"))
            return _Flow(0, 0, *leaves)
        taken = self._mask(reads(node))
        if isinstance(node, Op) and Effect.WGMMA in node.instr.effects:
            taken |= self.waiting
        return _Flow(taken, self.everything & ~self._mask(writes(node)))

    def _if_flow(self, node: If) -> _Flow:
        then, orelse = self._block_flow(node.then), self._block_flow(node.orelse)
        either = _Flow(*(a | b for a, b in zip(then, orelse, strict=True)))
        return either._replace(reads=either.reads | self._mask(reads(node)))

    def _while_flow(self, node: While) -> _Flow:
        """test; leave unless the condition holds; body; repeat."""
        test, body = self._block_flow(node.test), self._block_flow(node.body)
        leave = 0 if isinstance(node.condition, Const) and node.condition.value else self.everything
        middle = _Flow(
            body.reads | self._mask(reads(node)), body.through | body.at_continue, leave | body.at_break
        )
        return _Flow(test.before(middle.reads), test.at_break | test.through & middle.at_break)

    def _for_flow(self, node: For) -> _Flow:
        body = self._block_flow(node.body)
        bottom = self._mask(s for s in (node.stop, node.step) if isinstance(s, Value))
        again = body.through | body.at_continue
        entered = 0 if constant_trips(node) else self.everything
        return _Flow(self._mask(reads(node)) | body.reads | again & bottom, entered | again | body.at_break)

    # Top down: the live values at every write.

    def _visit(self, block: Block, live: int, to_break: int, to_continue: int) -> int:
        for node in reversed(block.nodes):
            after, flow = live, self.flows[node]
            live = flow.before(after, to_break, to_continue)
            if _droppable(node) and self._unread(node, after):
                self.dead.add(node)
            elif isinstance(node, Op):
                self._write(node.results, after | self._together(node))
            elif isinstance(node, Assign):
                source = _copied(node)
                same = self.bits.get(source, 0) if source is not None else 0
                self._write((node.target,), after & ~same)
            elif isinstance(node, If):
                for child in children(node):
                    self._visit(child, after, to_break, to_continue)
            elif isinstance(node, While):
                self._visit_while(node, after, live)
            elif isinstance(node, For):
                self._visit_for(node, after)
        return live

    def _unread(self, node: Node, after: int) -> bool:
        """Whether everything that the node writes is overwritten or dead before it is read."""
        written = writes(node)
        return all(v in self.bits for v in written) and not self._mask(written) & after

    def _together(self, op: Op) -> int:
        """Values that conflict with a result in any case.

        These are the other results, and the operands of a statement list, which may still be read
        after its first write.
        """
        mask = self._mask(op.results) if len(op.results) > 1 else 0
        return mask | self._mask(reads(op)) if op.instr.template.startswith("!{") else mask

    def _visit_while(self, node: While, after: int, head: int) -> None:
        forever = isinstance(node.condition, Const) and node.condition.value
        start = self.flows[node.body].before(head, after, head)
        middle = start | self._mask(reads(node)) | (0 if forever else after)
        self._visit(node.body, head, after, head)
        self._visit(node.test, middle, after, head)

    def _visit_for(self, node: For, after: int) -> None:
        bounds = self._mask(s for s in (node.stop, node.step) if isinstance(s, Value))
        bottom = bounds | after
        bottom |= self.flows[node.body].before(bottom, after, bottom)
        outer = self.held
        self.held |= bounds
        self._visit(node.body, bottom, after, bottom)
        self.held = outer


# --- the rewriting -------------------------------------------------------------------------


def _rename(kernel: Kernel, merged: dict[Value, Value]) -> None:
    for node in walk(kernel.body):
        _rename_node(node, merged)
    _rewrite(kernel.body, lambda node: [] if _is_self_copy(node) else [node])


def _rename_node(node: Node, merged: dict[Value, Value]) -> None:
    def value(v: Value) -> Value:
        return merged.get(v, v)

    def source(s: Source) -> Source:
        if isinstance(s, Value):
            return merged.get(s, s)
        if isinstance(s, Const) or not isinstance(s.base, Value) or s.base not in merged:
            return s
        return replace(s, base=merged[s.base])

    if isinstance(node, Op):
        node.results = tuple(map(value, node.results))
        node.operands = tuple(map(source, node.operands))
        node.guard = node.guard and value(node.guard)
    elif isinstance(node, Assign):
        node.target = value(node.target)
        node.sources = tuple(map(source, node.sources))  # type: ignore[arg-type]
    elif isinstance(node, For):
        node.start, node.stop, node.step = map(source, (node.start, node.stop, node.step))  # type: ignore[assignment]
    elif isinstance(node, Keep):
        node.source = value(node.source)
    elif isinstance(node, (While, If)):
        node.condition = source(node.condition)  # type: ignore[assignment]


def _is_self_copy(node: Node) -> bool:
    return isinstance(node, Assign) and _copied(node) is node.target


@dataclass
class _ShareTied:
    """Assigns the result's registers to the operand that the text omits."""

    next_id: int

    def __call__(self, node: Node) -> list[Node]:
        index = unwritten_operand(node.instr) if isinstance(node, Op) else None
        if not isinstance(node, Op) or index is None or node.operands[index] is node.results[0]:
            return [node]
        result = node.results[0]
        shared = Value(self.next_id, result.type)
        self.next_id += 1
        before = Assign(shared, (node.operands[index],), node.loc)  # type: ignore[arg-type]
        operands = (*node.operands[:index], shared, *node.operands[index + 1 :])
        op = Op(node.instr, (shared, *node.results[1:]), operands, loc=node.loc)
        nodes: list[Node] = [before, op, Assign(result, (shared,), node.loc)]
        if node.guard is None:
            return nodes
        blocks = (Block(nodes), Block()) if not node.negated else (Block(), Block(nodes))
        return [If(node.guard, *blocks, node.loc)]


__all__ = ["coalesce", "remove_dead", "unwritten_operand"]
