"""Definite assignment: every value is written before it is read, on every path."""

from __future__ import annotations

from typing import NoReturn

from tensorcore_dsl.errors import VerifyError
from tensorcore_dsl.ir.constants import constant_trips
from tensorcore_dsl.ir.nodes import (
    Assign,
    Block,
    Const,
    For,
    If,
    Jump,
    Kernel,
    Node,
    Op,
    Value,
    While,
    reads,
    writes,
)


class Assignment:
    """Checks a kernel.

    A set of values is stored as the bits of an integer; -1 (all values) marks unreachable code.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.bits: dict[Value, int] = {}
        self.leaves: list[dict[str, int]] = []  # for each loop: values written at its jumps

    def mask(self, value: Value) -> int:
        bit = self.bits.get(value)
        if bit is None:
            bit = self.bits[value] = 1 << len(self.bits)
        return bit

    def check(self) -> None:
        held = 0
        for param in self.kernel.params:
            held |= self.mask(param.value)
        self.block(self.kernel.body, held)

    def block(self, block: Block, held: int) -> int:
        """Values written after `block`, given the values `held` before it."""
        for node in block:
            if not isinstance(node, While):  # the condition is read after the test
                self.read(node, held)
            if isinstance(node, (Op, Assign)):
                for value in writes(node):
                    held |= self.mask(value)
            elif isinstance(node, If):
                held = self.block(node.then, held) & self.block(node.orelse, held)
            elif isinstance(node, Jump):
                if node.kind != "return":
                    self.leaves[-1][node.kind] &= held
                held = -1
            elif isinstance(node, (For, While)):
                held = self.loop(node, held)
        return held

    def read(self, node: Node, held: int) -> None:
        for value in reads(node):
            if not self.mask(value) & held:
                self.complain(node, value)

    def complain(self, node: Node, value: Value) -> NoReturn:
        if isinstance(node, Op) and value in node.results:
            raise VerifyError(
                f"a guarded {node.instr} keeps {value} where its guard does not hold, "
                "but a path leads here on which nothing was written to it",
                node.loc,
            )
        raise VerifyError(
            f"{value} of type {value.type} is read, but a path leads here on which it was not written",
            node.loc,
        )

    def loop(self, node: For | While, held: int) -> int:
        """At the head of a loop the same values are written as at its entry."""
        self.leaves.append({"break": -1, "continue": -1})
        after = self.while_(node, held) if isinstance(node, While) else self.for_(node, held)
        return after & self.leaves.pop()["break"]

    def while_(self, node: While, held: int) -> int:
        held = self.block(node.test, held)
        self.read(node, held)
        self.block(node.body, held)
        forever = isinstance(node.condition, Const) and node.condition.value
        return -1 if forever else held

    def for_(self, node: For, held: int) -> int:
        index = self.mask(node.index)
        after = self.block(node.body, held | index) & self.leaves[-1]["continue"]
        return after & ~(index & ~held) if constant_trips(node) else held
