"""Runs of products that follow each other in IR."""

from __future__ import annotations

import numpy as np
import pytest

from tensorcore_dsl import isa
from tensorcore_dsl.errors import Uninitialised
from tensorcore_dsl.ir.nodes import Address, Assign, Const, Op, Part, Type, Value
from tests.kit import Builder, reported_line, u64

MMA = isa.instruction("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")


class Eights(Builder):
    """Products that add 8; `c` are accumulators that start as ones, `new` one nobody has written."""

    def __init__(self) -> None:
        super().__init__(("out", u64))
        self.a, self.b, *self.c = (self.fragment(x, 1.0) for x in "abccc")
        self.new = self.fragment("c")

    def fragment(self, name: str, fill: float | None = None) -> Value:
        operand = MMA.operand(name)
        assert operand.layout is not None
        self.count += 1
        value = Value(self.count, Type(operand.dtype, operand.registers, operand.layout.name))
        if fill is not None:
            self.block.nodes.append(Assign(value, (Const(fill, operand.dtype),), self.loc()))
        return value

    def multiply(self, d: Value, c: Value) -> int:
        """The line of the product."""
        self.block.nodes.append(Op(MMA, (d,), (self.a, self.b, c), loc=self.loc()))
        return self.block.nodes[-1].loc.line

    def found(self) -> list[float]:
        """The first element of each accumulator."""
        store = isa.instruction("st.global.b32")
        for i, c in enumerate(self.c):
            self.op(store, Address(self.params[0], 4 * i), Part(c, 0))
        out = np.zeros(len(self.c), np.float32)
        report = self.run(out, block=32)
        count = sum(isinstance(n, Op) and n.instr is MMA for n in self.block.nodes)
        assert report.instructions[MMA.mnemonic] == count
        return out.tolist()


def test_products_that_need_each_other():
    """Runs end where a product reads or writes what one before it wrote, or overtakes a read."""
    ones = Eights()
    first, second, third = ones.c
    for d, c in ((first, first), (second, first), (third, third), (third, third), (first, second)):
        ones.multiply(d, c)
    assert ones.found() == [25, 17, 17]
    ones = Eights()
    first, second, third = ones.c
    for d, c in ((first, third), (third, third), (second, third)):
        ones.multiply(d, c)
    assert ones.found() == [9, 17, 9]


def test_a_run_with_an_unwritten_accumulator():
    ones = Eights()
    ones.multiply(ones.c[0], ones.c[0])
    line = ones.multiply(ones.c[1], ones.new)
    with pytest.raises(Uninitialised, match="nothing has written") as error:
        ones.found()
    assert reported_line(error) == line
