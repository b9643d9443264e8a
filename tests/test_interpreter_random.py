"""Random structured programs: all threads at once against a reading thread by thread."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcore_dsl.ir.nodes import Assign, Block, Const, For, If, Jump, Op, While
from tests.kit import ADD, AND, LESS, MUL, STORE_GLOBAL, XOR, Builder, pred, u64


class TestReference:
    """Random structured programs: all threads at once against one thread after the other."""

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_random_programs(self, data):
        b = Builder(("out", u64))
        thread = b.thread(32)
        variables = [b.variable(thread), b.variable(1), b.variable(77)]
        _random_block(data.draw, b, variables, depth=0, in_loop=False)
        for i, variable in enumerate(variables):
            place = b.op(ADD, b.op(MUL, thread, 3), i)
            b.op(STORE_GLOBAL, b.element(b.params[0], place), variable)
        out, expected = np.zeros((64, 3), np.uint32), np.zeros((64, 3), np.uint32)
        b.run(out, grid=2)
        for t in range(64):
            _Reading(b, t, expected).run()
        assert np.array_equal(out, expected)


def _random_block(draw: Any, b: Builder, variables: list[Any], depth: int, in_loop: bool) -> None:
    kinds = ["op", "op", "guard", "assign"] + ["if", "for", "while"] * (depth < 3)
    kinds += ["break", "continue"] * in_loop + ["return"] * (depth > 1)
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=5)):
        target, x, y = (draw(st.sampled_from(variables)) for _ in range(3))
        small = b.op(AND, x, draw(st.sampled_from([1, 2, 3, 7])))
        condition = b.op(LESS, small, draw(st.integers(0, 4)))
        if kind == "op":
            b.op(draw(st.sampled_from([ADD, MUL, XOR])), x, y, into=target)
        elif kind == "guard":
            b.op(XOR, x, 0x55, into=target, guard=condition, negated=draw(st.booleans()))
        elif kind == "assign":
            b.assign(target, y)
        elif kind == "if":
            with b.when(condition) as orelse:
                _random_block(draw, b, variables, depth + 1, in_loop)
                if draw(st.booleans()):
                    with b.inside(orelse):
                        _random_block(draw, b, variables, depth + 1, in_loop)
        elif kind == "for":
            with b.loop(0, small):
                _random_block(draw, b, variables, depth + 1, True)
        elif kind == "while":
            turns, more = b.variable(0), b.value(pred)
            with b.forever(more) as test:
                with b.inside(test):
                    b.op(ADD, turns, 1, into=turns)
                    b.op(LESS, turns, small, into=more)
                _random_block(draw, b, variables, depth + 1, True)
        else:
            with b.when(condition):
                b.jump(kind)


class _Leave(Exception):
    """A jump on its way out."""


class _Reading:
    """One thread of a kernel, read node by node."""

    def __init__(self, b: Builder, thread: int, out: np.ndarray) -> None:
        self.b, self.out = b, out.reshape(-1)
        self.values: dict[Any, int] = {b.params[0]: 0}
        self.special = {"mov.tid.x": thread % 32, "mov.ctaid.x": thread // 32}

    def run(self) -> None:
        with suppress(_Leave):
            self.block(self.b.kernel.body)

    def block(self, block: Block) -> None:
        for node in block:
            getattr(self, type(node).__name__.lower())(node)

    def read(self, source: Any) -> int:
        source = getattr(source, "base", source)
        return int(source.value) if isinstance(source, Const) else self.values[source]

    def op(self, node: Op) -> None:
        if node.guard is not None and bool(self.values[node.guard]) == node.negated:
            return
        a = [self.read(s) for s in node.operands]
        name = node.instr.mnemonic
        if name == STORE_GLOBAL.mnemonic:
            self.out[a[0] // 4] = a[1]
            return
        meanings = {
            "add.u32": lambda: a[0] + a[1], "mul.u32": lambda: a[0] * a[1],
            "xor.u32": lambda: a[0] ^ a[1], "and.u32": lambda: a[0] & a[1],
            "lt.u32": lambda: a[0] < a[1], "cvt.u64.u32": lambda: a[0],
            "add.u64": lambda: a[0] + a[1],
        }  # fmt: skip
        special = self.special[name] if name in self.special else meanings[name]()
        self.values[node.results[0]] = int(special) & 0xFFFFFFFF

    def assign(self, node: Assign) -> None:
        self.values[node.target] = self.read(node.sources[0])

    def _body(self, block: Block) -> bool:
        """False when the loop is left."""
        try:
            self.block(block)
        except _Leave as jump:
            if str(jump) == "return":
                raise
            return str(jump) == "continue"
        return True

    def _for(self, node: For) -> None:
        self.values[node.index] = self.read(node.start)
        while self.values[node.index] < self.read(node.stop) and self._body(node.body):
            self.values[node.index] += self.read(node.step)

    def _while(self, node: While) -> None:
        while True:
            self.block(node.test)
            if not self.values[node.condition] or not self._body(node.body):
                return

    def _if(self, node: If) -> None:
        self.block(node.then if self.values[node.condition] else node.orelse)

    def jump(self, node: Jump) -> None:
        raise _Leave(node.kind)


for _name in ("for", "while", "if"):
    setattr(_Reading, _name, getattr(_Reading, f"_{_name}"))
