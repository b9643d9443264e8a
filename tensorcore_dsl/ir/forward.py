"""Copy forwarding: uses of a copied register read the original.

Splitting a fragment and assembling another one leaves a copy per register (`%5 <- %4.1`, `%9 <- %5,
%6`). If target and source are written once, at a point that dominates every use, uses are replaced
by the source, and the copies become dead code.

What changes the result of an asynchronous product before a wait stays where it is, so that the
emulator sees it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tensorcore_dsl.dtypes import DType, named
from tensorcore_dsl.isa import classify

from tensorcore_dsl.ir.nodes import (  # isort: skip
    Address,
    Assign,
    Block,
    Const,
    For,
    Kernel,
    Op,
    Part,
    Source,
    Value,
    children,
    walk,
    writes,
)

Register = Value | Part | Const  # one register, or a constant
Known = dict[Value, tuple[Register, ...]]


def forward_copies(kernel: Kernel) -> None:
    """Rewrite operands and copies of `kernel` in place; copies are not removed."""
    _Forward(_written_once(kernel)).block(kernel.body, {})


def part_type(part: Part) -> DType:
    """The type of one register: its element's, or bits if it holds several elements."""
    type = part.base.type
    if type.layout is None or type.dtype.storage_bits == type.register_bits:
        return type.dtype
    return named(f"b{type.register_bits}")


def _written_once(kernel: Kernel) -> set[Value]:
    """Values with a single unguarded write, other than loop indices.

    Values that share registers with a result are excluded: a use moved after it would need a copy.
    """
    counts = Counter(p.value for p in kernel.params)
    for node in walk(kernel.body):
        counts.update(writes(node))
        if isinstance(node, For):
            counts[node.index] += 1
        if isinstance(node, Op) and node.instr.tied is not None:
            counts.update(s for s in node.operands if isinstance(s, Value))
    return {value for value, count in counts.items() if count == 1}


class _Forward:
    """Forwards the values of a kernel, block by block.

    Attributes
    ----------
    flying : set
        Results of asynchronous products until the next wait in the text.
    waits : set
        The instructions that wait for products.
    """

    def __init__(self, once: set[Value]) -> None:
        self.once = once
        self.flying: set[Value] = set()
        self.waits: set[str] = set()

    def block(self, block: Block, known: Known) -> None:
        """`known` is valid for the rest of this block and its nested blocks."""
        for node in block:
            if isinstance(node, Op):
                node.operands = tuple(self.operand(s, known) for s in node.operands)
                self.follow(node)
            elif isinstance(node, Assign):
                self.copy(node, known)
            for child in children(node):
                self.block(child, dict(known))

    def follow(self, op: Op) -> None:
        if op.instr.ordering is not None:
            self.flying.update(op.results)
            self.waits.add(op.instr.ordering.wait)
        elif classify.waits_by(op.instr, self.waits):
            self.flying.clear()

    def copy(self, node: Assign, known: Known) -> None:
        node.sources = _whole(tuple(self.register(s, known) for s in node.sources))
        registers = tuple(self.register(r, known) for r in _expanded(node))
        changes = len(node.sources) > 1 and not self.flying.isdisjoint(map(_base, registers))
        if node.target in self.once and all(map(self.lasts, registers)) and not changes:
            known[node.target] = registers

    def lasts(self, register: Register) -> bool:
        value = _base(register)
        return isinstance(value, Value) and value in self.once

    def register(self, source: Register, known: Known) -> Register:
        """One source of a copy; its type does not matter."""
        if isinstance(source, Part) and source.base in known:
            return known[source.base][source.index]
        if isinstance(source, Value) and not source.type.is_group and source in known:
            return known[source][0]
        return source

    def operand(self, source: Source, known: Known) -> Source:
        """An operand of an instruction: a register of the same type, or of untyped bits."""
        if isinstance(source, Address):
            base = source.base
            original = self.operand(base, known)
            return replace(source, base=original) if isinstance(original, Value) else source
        if isinstance(source, Const) or (isinstance(source, Value) and source.type.is_group):
            return source
        original = self.register(source, known)
        have, want = _dtype(original), _dtype(source)
        return original if have in (want, named(f"b{want.register_bits}")) else source


def _base(register: Register) -> Value | Const:
    return register.base if isinstance(register, Part) else register


def _expanded(node: Assign) -> tuple[Register, ...]:
    """The source of each register of the target."""
    sources, first = node.sources, node.sources[0]
    if len(sources) == 1 and isinstance(first, Const):
        return sources * node.target.type.registers
    if len(sources) == 1 and isinstance(first, Value) and first.type.is_group:
        return tuple(Part(first, i) for i in range(first.type.registers))
    return sources


def _whole(sources: tuple[Register, ...]) -> tuple[Register, ...]:
    """The group itself, if the sources are its registers in order."""
    first = sources[0]
    if not isinstance(first, Part):
        return sources
    parts = tuple(Part(first.base, i) for i in range(first.base.type.registers))
    return (first.base,) if sources == parts and first.base.type.is_group else sources


def _dtype(source: Source) -> DType:
    if isinstance(source, Part):
        return part_type(source)
    if isinstance(source, Value):
        return source.type.dtype
    assert isinstance(source, Const)
    return source.dtype
