"""The loops of a kernel: which registers decide what a loop does, and which words it polls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir import nodes
from tensorcore_dsl.isa import names
from tensorcore_dsl.isa.spec import VOLATILE

_TOGETHER = frozenset({"warp", "convergent", "inplace"})  # effects that nothing outside lanes sees


@dataclass(eq=False)
class Loop:
    """A loop. head: the position that it jumps back to; end: the one behind it. outer: the loop
    around it."""

    node: nodes.While | nodes.For
    kernel: nodes.Kernel
    head: int
    outer: Loop | None = None
    end: int = 0

    @property
    def counted(self) -> bool:
        """Does it end by itself after a number of iterations?"""
        return isinstance(self.node, nodes.For)

    @property
    def loc(self) -> Loc | None:
        return self.node.loc

    @property
    def outermost(self) -> Loop:
        return self if self.outer is None else self.outer.outermost

    @cached_property
    def _nodes(self) -> list[nodes.Node]:
        inside = nodes.walk(nodes.Block([self.node]))
        return [node for node in inside if not isinstance(node, (nodes.Keep, nodes.Mark))]

    @cached_property
    def _sources(self) -> dict[nodes.Value, set[nodes.Value]]:
        """What each value that the loop writes is computed from."""
        sources: dict[nodes.Value, set[nodes.Value]] = defaultdict(set)
        for node in self._nodes:
            for value in nodes.writes(node):
                sources[value].update(nodes.reads(node))
        return sources

    def _closure(self, values: Iterable[nodes.Value]) -> set[nodes.Value]:
        """The values, and all that they are computed from in the loop."""
        found = set(values)
        left = list(found)
        while left:
            new = self._sources.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    @cached_property
    def deciding(self) -> list[nodes.Value]:
        """The values which the loop writes and on which depends where its threads go, what they
        access and what others see of them. Scalars come first.

        Where none of them has changed since the last iteration, nor what the loop reads, the next
        iteration does the same again. It may store other words, to the same addresses.
        """
        roots: set[nodes.Value] = set()
        for node in self._nodes:
            if isinstance(node, nodes.Op):
                guard = [] if node.guard is None else [node.guard]
                stores = node.instr.word is not None and node.instr.word.writes
                bases = (o.base for o in node.operands if isinstance(o, nodes.Address))
                sources = [*bases, *guard] if stores else nodes.reads(node)
                roots.update(sources if _acts(node) else guard)  # type: ignore[arg-type]
            elif not isinstance(node, nodes.Assign):
                roots.update(nodes.reads(node), nodes.writes(node))
        found = [value for value in self._closure(roots) if value in self._sources]
        return sorted(found, key=lambda value: (value.type.is_group, value.id))

    @cached_property
    def conditions(self) -> list[nodes.Op]:
        """The loads, atomics and tests, and the comparisons, that decide whether it ends."""
        if self.counted:
            return []
        asked = {n.condition for n in self._nodes if isinstance(n, (nodes.While, nodes.If))}
        deciding = self._closure(value for value in asked if isinstance(value, nodes.Value))
        return [
            op
            for op in self._nodes
            if isinstance(op, nodes.Op) and not deciding.isdisjoint(op.results)
            if op.instr.uses_mbarrier or "load" in op.instr.effects or asked & {*op.results}
        ]

    @cached_property
    def equalities(self) -> list[nodes.Op]:
        """Comparisons for (in)equality of whole numbers, if nothing else ends the loop and each
        number is fixed or a counter."""
        asked = [
            node.condition
            for node in self._nodes
            if isinstance(node, nodes.While)
            or (
                isinstance(node, nodes.If)
                and nodes.Jump in map(type, nodes.walk(nodes.Block([node])))
            )
        ]
        ends = [node for value in asked for node in self._makers(value)]
        found = [
            node
            for node in ends
            if isinstance(node, nodes.Op) and node.instr.params.get("cmp") in ("eq", "ne")
            if not node.instr.operands[0].dtype.is_float
        ]
        compared = self._closure(value for op in found for value in nodes.reads(op))
        return found if found == ends and all(map(self._counts, compared)) else []

    def _makers(self, value: Any) -> list[nodes.Node]:
        return [node for node in self._nodes if value in nodes.writes(node)]

    def _fixed(self, value: nodes.Value) -> bool:
        """Is it the same number in all iterations: not written in the loop, or a constant?"""
        if value not in self._sources:
            return True
        makers = [node for node in nodes.walk(self.kernel.body) if value in nodes.writes(node)]
        copied = [*map(type, makers)] == [nodes.Assign] and not nodes.reads(makers[0])
        return copied and value not in [param.value for param in self.kernel.params]

    def _counts(self, value: nodes.Value) -> bool:
        """Is it fixed, or made by one addition or subtraction of a fixed number: in a register in
        each iteration, or by an atomic operation on a word that nothing else writes?

        Neither a ring is such a counter nor a number that a branch replaces.
        """
        if self._fixed(value):
            return True
        node, *others = self._makers(value)
        changing = [read for read in nodes.reads(node) if not self._fixed(read)]
        adds = isinstance(node, nodes.Op) and node.instr.adds
        if isinstance(node, nodes.Assign) or (adds and not _access(node)):
            always = any(node in block.nodes for block in nodes.children(self.node))
            return always and not others and len(changing) < 2
        if others or changing or not isinstance(node, nodes.Op) or node.instr.word is None:
            return False
        array = nodes.reads(node)[0]  # no other operation has its address
        users = [
            user
            for user in nodes.walk(self.kernel.body)
            if array in nodes.reads(user) + nodes.writes(user) and nodes.reads(user)
        ]
        if _access(node) == "update":
            return users == [node] and adds
        stores = [user for user in users if _access(user) != "load"]
        stored = [read for store in stores for read in nodes.reads(store)[1:]]
        makers = [_access(maker) for read in stored for maker in self._makers(read)]
        return len(stores) == 1 and makers == ["update"] and self._counts(stored[0])

    @cached_property
    def polls_global_memory(self) -> bool:
        """Does it wait for a word that another thread is to write: read it again in each iteration,
        and write nothing?"""
        ops = [node for node in self._nodes if isinstance(node, nodes.Op)]
        if any("store" in op.instr.effects for op in ops):
            return False
        fixed = {v for op in ops if op.instr.effects <= VOLATILE for v in op.results}
        return any(
            "load" in op.instr.effects
            and not op.instr.space.startswith("shared")
            and self._closure(nodes.reads(op)) & self._sources.keys() <= fixed
            for op in self.conditions
        )


def _access(node: nodes.Node) -> str:
    """What an operation does with words of memory, as `Access.verb`; "" for nothing."""
    word = node.instr.word if isinstance(node, nodes.Op) else None
    return word.verb if word is not None else ""


def _acts(op: nodes.Op) -> bool:
    """Does it do more than compute its results? Fences, pauses and prefetches do not."""
    effects = op.instr.effects - _TOGETHER
    idle = effects == VOLATILE and not op.results and op.instr.opcode != names.CHECK_OPCODE
    return bool(effects) and not idle
