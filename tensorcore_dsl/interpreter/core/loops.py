"""Loops of a kernel: the registers that decide about a loop, and the words that it polls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.isa import classify, names
from tensorcore_dsl.isa.effects import VOLATILE, Effect

# Effects that nothing outside lanes sees.
_TOGETHER = Effect.WARP | Effect.CONVERGENT | Effect.INPLACE
_Sources = dict[nodes.Value, set[nodes.Value]]  # the values from which each value is computed


@dataclass(eq=False)
class LoopAnalysis(EagerDict):
    """A loop of a program, and what its nodes say of its end.

    Attributes
    ----------
    head : int
        The position that it jumps back to.
    end : int
        The one after it.
    outer : LoopAnalysis or None
        The loop around it.
    """

    node: nodes.While | nodes.For
    kernel: nodes.Kernel
    head: int
    outer: LoopAnalysis | None = None
    end: int = 0

    @property
    def counted(self) -> bool:
        """True if it ends by itself after a number of iterations."""
        return isinstance(self.node, nodes.For)

    @property
    def loc(self) -> Loc | None:
        return self.node.loc

    @property
    def outermost(self) -> LoopAnalysis:
        return self if self.outer is None else self.outer.outermost

    @cached_property
    def _nodes(self) -> list[nodes.Node]:
        inside = nodes.walk(nodes.Block([self.node]))
        return [node for node in inside if not isinstance(node, (nodes.Keep, nodes.Mark))]

    @cached_property
    def _sources(self) -> _Sources:
        """Map each value that the loop writes to the values that it is computed from."""
        return _sources_of(self._nodes)

    @cached_property
    def _origins(self) -> _Sources:
        """Map each value of the kernel to the values that it is computed from."""
        return _sources_of(nodes.walk(self.kernel.body))

    def writes(self, value: nodes.Source) -> bool:
        return value in self._sources

    def _closure(self, values: Iterable[nodes.Value]) -> set[nodes.Value]:
        """The values, and all that they are computed from in the loop."""
        return _closure(values, self._sources)

    @cached_property
    def deciding(self) -> list[nodes.Value]:
        """Loop-written values that control flow, addresses or visible stores depend on; scalars first.

        If they and the words that the loop reads have not changed since the last iteration, the next
        iteration repeats it. It may store other words, but to the same addresses.
        """
        roots: set[nodes.Value] = set()
        for node in self._nodes:
            if isinstance(node, nodes.Op):
                guard = [] if node.guard is None else [node.guard]
                access = classify.word_access(node.instr)
                stores = access is not None and access.writes
                bases = (o.base for o in node.operands if isinstance(o, nodes.Address))
                sources = [*bases, *guard] if stores else nodes.reads(node)
                roots.update(sources if _acts(node) else guard)  # type: ignore[arg-type]
            elif not isinstance(node, nodes.Assign):
                roots.update(nodes.reads(node), nodes.writes(node))
        values = [value for value in self._closure(roots) if value in self._sources]
        return sorted(values, key=lambda value: (value.type.is_group, value.id))

    @cached_property
    def conditions(self) -> list[nodes.Op]:
        """The loads, atomics and tests, and the comparisons, that decide whether it ends."""
        if self.counted:
            return []
        asked = {n.condition for n in self._nodes if isinstance(n, (nodes.While, nodes.If))}
        asked |= self._compared(n.condition for n in self._branches if n.condition is not None)
        deciding = self._closure(value for value in asked if isinstance(value, nodes.Value))
        return [
            op
            for op in self._nodes
            if isinstance(op, nodes.Op) and not deciding.isdisjoint(op.results)
            if classify.uses_mbarrier(op.instr) or Effect.LOAD in op.instr.effects or asked & {*op.results}
        ]

    @cached_property
    def _branches(self) -> list[nodes.Goto]:
        """The branches of PTX that leave the loop, repeat it, or skip one that does either."""
        labels = {node.name: at for at, node in enumerate(self._nodes) if isinstance(node, nodes.Label)}
        leaving = [
            at
            for at, node in enumerate(self._nodes)
            if (isinstance(node, nodes.Goto) and node.target not in labels) or isinstance(node, nodes.Jump)
        ]
        return [
            node
            for at, node in enumerate(self._nodes)
            if isinstance(node, nodes.Goto)
            if at in leaving or any(at < step < labels[node.target] for step in leaving)
        ]

    def _compared(self, conditions: Iterable[nodes.Value]) -> set[nodes.Value]:
        """The predicates that conditions combine, or are the opposite of."""
        logic = {
            value: set(nodes.reads(node))
            for node in self._nodes
            if isinstance(node, nodes.Op) and not node.instr.effects and nodes.reads(node)
            if all(value.type.dtype.name == "pred" for value in nodes.reads(node))
            for value in node.results
        }
        return _closure(conditions, logic) - logic.keys()

    @cached_property
    def equalities(self) -> list[nodes.Op]:
        """Comparisons for (in)equality of whole numbers, if nothing else ends the loop and each
        number is fixed or moves one way."""
        jumps = {jump for block in nodes.children(self.node) for jump in _leaving(block)}
        asked = [
            node.condition
            for node in self._nodes
            if isinstance(node, (nodes.While, nodes.If))
            if node is self.node or not jumps.isdisjoint(nodes.walk(nodes.Block([node])))
        ]
        ends = [node for value in asked for node in self._comparisons(value)]
        comparisons = [
            node
            for node in ends
            if isinstance(node, nodes.Op) and node.instr.params.get("cmp") in ("eq", "ne")
            if not node.instr.operands[0].dtype.is_float and self._moves_one_way(node)
        ]
        return comparisons if comparisons == ends else []

    @cached_property
    def bits(self) -> int:
        """Bits of the narrowest number that `equalities` compare, or compute these from."""
        made = [v for op in self.equalities for node in self._changing(op) for v in nodes.writes(node)]
        return min(value.type.dtype.bits for value in made)

    @cached_property
    def counts_in(self) -> set[str]:
        """The state spaces of the words among the numbers of `equalities`."""
        makers = [node for op in self.equalities for node in self._changing(op)]
        return {node.instr.space for node in makers if isinstance(node, nodes.Op) and _access(node)}

    def _makers(self, value: Any) -> list[nodes.Node]:
        return [node for node in self._nodes if value in nodes.writes(node)]

    def _always(self, node: nodes.Node) -> bool:
        """True if each iteration executes it, if none is cut short."""
        return any(node in block.nodes for block in nodes.children(self.node))

    def _comparisons(self, condition: Any) -> list[nodes.Node]:
        """Comparisons that a condition combines; the loop itself if the condition may be stale."""
        makers = self._makers(condition)
        if not makers:
            return []
        if len(makers) > 1 or not (condition in self._single or self._always(makers[0])):
            return [self.node]
        values = nodes.reads(makers[0])
        if any(value.type.dtype.name != "pred" for value in values):
            return makers
        return [node for value in values for node in self._comparisons(value)]

    @cached_property
    def _single(self) -> set[nodes.Value]:
        """The values that one node of the kernel writes, without parameters."""
        written = Counter(v for node in nodes.walk(self.kernel.body) for v in nodes.writes(node))
        params = {param.value for param in self.kernel.params}
        return {value for value, count in written.items() if count == 1} - params

    @cached_property
    def _moving(self) -> set[nodes.Value]:
        """Values that the loop changes: written values that are not equal in all iterations."""
        moving = set(self._sources)
        for node in self._nodes:  # a single value is written before it is read
            pure = isinstance(node, nodes.Op) and not node.instr.effects
            if (pure or isinstance(node, nodes.Assign)) and moving.isdisjoint(nodes.reads(node)):
                moving -= self._single & {*nodes.writes(node)}
        return moving

    def _changing(self, op: nodes.Op) -> list[nodes.Node]:
        """The nodes that make what `op` reads move, and write the words that it comes from.

        The loop itself stands for a value that several nodes make.
        """
        nodes_of_loop: list[nodes.Node] = []
        left = [*nodes.reads(op)]
        while left:
            value = left.pop()
            makers = self._makers(value) if value in self._moving else []
            makers += [writer for node in makers for writer in self._writers(node)]
            new = [node for node in makers if node not in nodes_of_loop]
            nodes_of_loop += [*new, self.node] if len(self._makers(value)) > 1 else new
            left += [value for node in new for value in nodes.reads(node)]
        return nodes_of_loop

    def _writers(self, node: nodes.Node) -> list[nodes.Op]:
        """The operations that may write the word which a node reads or writes."""
        if not isinstance(node, nodes.Op) or not _access(node):
            return []
        # Where threads of the loop synchronise, others may pass a barrier, and write.
        met = any(isinstance(op, nodes.Op) and classify.is_synchronisation(op.instr) for op in self._nodes)
        inside = nodes.walk(self.kernel.body) if met else self._nodes
        ops = [op for op in inside if isinstance(op, nodes.Op) and op.instr.accesses]
        return [
            op
            for op in ops
            if any(access.writes for access in op.instr.accesses)
            if {"global", "shared"} != {node.instr.space, op.instr.space}
            if not _access(op) or not self._apart(node.operands[0], op.operands[0])
        ]

    def _apart(self, one: Any, other: Any) -> bool:
        """True if two addresses name different words: in one tile, or of two arguments."""
        if one.base is other.base:
            return bool(one.offset != other.offset)
        arrays, others = self._arrays(one.base), self._arrays(other.base)
        return bool(arrays and others) and arrays.isdisjoint(others)

    def _arrays(self, base: Any) -> set[nodes.Value]:
        """The pointers among the kernel's parameters from which an address is computed."""
        pointers = (p.value for p in self.kernel.params if p.value.type.register_bits == 64)
        return _closure([base], self._origins).intersection(pointers)

    def _moves_one_way(self, op: nodes.Op) -> bool:
        """True if each number that `op` compares is fixed, or moves by a fixed step.

        A number that moves may be a fixed multiple of one that a fixed number is added to. If both
        numbers move, they are registers that do so in each iteration. False for rings, and for
        numbers that a second line changes.
        """
        makers = self._changing(op)
        jumps = [node.kind for node in self._nodes if isinstance(node, nodes.Jump)]
        steady = "continue" not in jumps and all(map(self._always, makers))
        steady = steady and not any(map(_access, makers))
        one = len(self._moving & {*nodes.reads(op)}) < 2
        return (one or steady) and all(map(self._adds, makers))

    def _adds(self, node: nodes.Node) -> bool:
        """True if it adds a fixed number, or scales a number that does not depend on the result.

        A read or write of a word that one node changes so counts, too.
        """
        moving = self._moving & {*nodes.reads(node)}
        if isinstance(node, nodes.Assign):
            return len(moving) < 2
        if not isinstance(node, nodes.Op):
            return False
        if not _access(node):
            scales = classify.is_scaling(node.instr) and node not in self._changing(node)
            scales = scales and (node.instr.opcode != names.LEFT_SHIFT or node.operands[0] in moving)
            return (classify.is_addition(node.instr) or scales) and len(moving) < 2
        address: Any = node.operands[0]
        adds = (
            _access(node) != "update"
            or classify.is_exchange(node.instr)
            or (classify.is_addition(node.instr) and not moving)
        )
        same = [op.operands[0] == address for op in self._writers(node)]
        return adds and address.base not in self._moving and same in ([], [True])

    @cached_property
    def polls_global_memory(self) -> bool:
        """True if each iteration reads a word again that another thread is to write, and writes nothing."""
        ops = [node for node in self._nodes if isinstance(node, nodes.Op)]
        if any(Effect.STORE in op.instr.effects for op in ops):
            return False
        fixed = {v for op in ops if op.instr.effects in VOLATILE for v in op.results}
        return any(
            Effect.LOAD in op.instr.effects
            and not op.instr.space.startswith("shared")
            and self._closure(nodes.reads(op)) & self._sources.keys() <= fixed
            for op in self.conditions
        )


def _sources_of(some: Iterable[nodes.Node]) -> _Sources:
    sources: _Sources = defaultdict(set)
    for node in some:
        for value in nodes.writes(node):
            sources[value].update(nodes.reads(node))
    return sources


def _closure(values: Iterable[nodes.Value], sources: _Sources) -> set[nodes.Value]:
    """The values, and all that they are computed from."""
    closure = set(values)
    left = list(closure)
    while left:
        new = sources.get(left.pop(), set()) - closure
        closure |= new
        left += new
    return closure


def _leaving(block: nodes.Block, inner: bool = False) -> Iterator[nodes.Jump]:
    """The jumps in a loop's block that leave the loop; inner: the block is in a loop inside it."""
    for node in block:
        if isinstance(node, nodes.Jump) and node.kind in ("return", "" if inner else "break"):
            yield node
        loop = isinstance(node, (nodes.For, nodes.While))
        for child in nodes.children(node):
            yield from _leaving(child, inner or loop)


def _access(node: nodes.Node) -> str:
    """Kind of an operation's memory access, as `Access.verb`; "" for none."""
    word = classify.word_access(node.instr) if isinstance(node, nodes.Op) else None
    return word.verb if word is not None else ""


def _acts(op: nodes.Op) -> bool:
    """True if it does more than compute its results. Fences, pauses and prefetches do not."""
    effects = op.instr.effects & ~_TOGETHER
    idle = effects == VOLATILE and not op.results and op.instr.opcode != names.CHECK_OPCODE
    return bool(effects) and not idle
