"""A tiled matrix product in IR, from real rows: copies in flight, ldmatrix, mma, stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit import Builder, f32, line_of, u32, u64

from tensorcore_dsl import isa
from tensorcore_dsl.errors import Divergence, Uninitialised
from tensorcore_dsl.ir.nodes import Address, Assign, Const, Op, Part, Type, Value

BM, BN, BK = 64, 32, 32  # a block's tile; each of its four warps has 32 x 16 of it
ROW = 2 * BK + 16  # bytes of a padded row in shared memory
STAGE = (BM + BN) * ROW
MMA = isa.instruction("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")


class Tile(Builder):
    """C = A B^T of f16 matrices, rows of A and B being contiguous; two stages of copies."""

    def __init__(self, n: int, k: int, *, wait: bool = True) -> None:
        super().__init__(("a", u64), ("b", u64), ("c", u64), shared=2 * STAGE)
        self.n, self.k, self.wait = n, k, wait
        self.thread, self.lane = self.named("mov.u32.%tid.x"), self.named("mov.u32.%laneid")
        cta, across = self.named("mov.u32.%ctaid.x"), n // BN
        self.m0 = self.times(self.named("div.u32", cta, across), BM)
        self.n0 = self.times(self.named("rem.u32", cta, across), BN)
        warp = self.named("div.u32", self.thread, 32)
        self.wm = self.times(self.named("div.u32", warp, 2), 32)
        self.wn = self.times(self.named("rem.u32", warp, 2), 16)
        self.acc = [[self.zeros() for _ in range(2)] for _ in range(2)]
        self.pipeline()
        self.epilogue()

    def named(self, mnemonic: str, *operands: Any, **options: Any) -> Any:
        return self.op(isa.instruction(mnemonic), *operands, **options)

    def plus(self, *terms: Any) -> Any:
        first, *rest = terms
        for term in rest:
            first = self.named("add.u32", first, term)
        return first

    def times(self, x: Any, y: int) -> Any:
        return self.named("mul.lo.u32", x, y)

    def wide(self, pointer: Value, offset: Any) -> Any:
        return self.named("add.u64", pointer, self.named("cvt.u64.u32", offset))

    def fragment(self, name: str) -> Value:
        operand = MMA.operand(name)
        assert operand.layout is not None
        self.count += 1
        return Value(self.count, Type(operand.dtype, operand.registers, operand.layout.name))

    def zeros(self) -> Value:
        value = self.fragment("d")
        self.block.nodes.append(Assign(value, (Const(0.0, f32),), self.loc()))
        return value

    def pipeline(self) -> None:
        """Copies of the next tile run while this one is multiplied."""
        line, part = self.named("div.u32", self.thread, 4), self.named("rem.u32", self.thread, 4)
        inside = self.plus(self.times(line, ROW), self.times(part, 16))
        sources = []
        for pointer, origin in zip(self.params[:2], (self.m0, self.n0), strict=True):
            row = self.times(self.plus(origin, line), 2 * self.k)
            value = self.value(u64)
            self.assign(value, self.wide(pointer, self.plus(row, self.times(part, 16))))
            sources.append(value)
        self.copies(inside, sources)
        with self.loop(0, self.k // BK) as step:
            if self.wait:
                self.named("cp.async.wait_group", 0)
            self.named("bar.sync", 0)
            following = self.plus(step, 1)
            with self.when(self.named("setp.lt.u32", following, self.k // BK)):
                self.copies(self.plus(inside, self.stage(following)), sources)
            self.products(self.stage(step))

    def stage(self, step: Any) -> Any:
        return self.times(self.named("and.b32", step, 1), STAGE)

    def copies(self, target: Any, sources: list[Value]) -> None:
        copy = isa.instruction("cp.async.cg.shared.global")
        for first, lines, source in ((0, BM, sources[0]), (BM, BN, sources[1])):
            for i in range(0, lines, 32):
                self.op(copy, Address(target, (first + i) * ROW), Address(source, i * 2 * self.k), 16)
            self.named("add.u64", source, 2 * BK, into=source)
        self.named("cp.async.commit_group")

    def products(self, base: Any) -> None:
        load = isa.instruction("ldmatrix.sync.aligned.m8n8.x4.shared.b16")
        lane = self.lane
        eight, half = self.named("rem.u32", lane, 8), self.named("div.u32", lane, 16)
        quarter = self.named("rem.u32", self.named("div.u32", lane, 8), 2)
        a_row = self.plus(self.wm, self.named("rem.u32", lane, 16))
        b_row = self.plus(self.wn, self.times(half, 8), eight)
        a_at = self.plus(base, self.times(a_row, ROW), self.times(half, 16))
        b_at = self.plus(base, self.times(b_row, ROW), self.times(quarter, 16))
        for k in range(0, BK, 16):
            a = [self.op(load, Address(a_at, i * 16 * ROW + 2 * k)) for i in range(2)]
            both = self.op(load, Address(b_at, BM * ROW + 2 * k))
            b = [self.fragment("b") for _ in range(2)]
            for j, value in enumerate(b):
                self.assign(value, Part(both, 2 * j), Part(both, 2 * j + 1))
            for i in range(2):
                for j in range(2):
                    d = self.acc[i][j]
                    self.block.nodes.append(Op(MMA, (d,), (a[i], b[j], d), loc=self.loc()))

    def epilogue(self) -> None:
        row = self.plus(self.m0, self.wm, self.named("div.u32", self.lane, 4))
        column = self.plus(self.n0, self.wn, self.times(self.named("rem.u32", self.lane, 4), 2))
        at = self.plus(self.times(row, 4 * self.n), self.times(column, 4))
        start = self.wide(self.params[2], at)
        for i in range(2):
            for j in range(2):
                for half in range(2):
                    pair = self.value(u32, 2)
                    self.assign(pair, *(Part(self.acc[i][j], 2 * half + e) for e in range(2)))
                    offset = 4 * ((16 * i + 8 * half) * self.n + 8 * j)
                    self.named("st.global.v2.b32", Address(start, offset), pair)


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (n, k))
    return a.astype(np.float16), b.astype(np.float16)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 32, 32), (64, 32, 96), (256, 96, 64)])
def test_product(m, n, k):
    a, b = operands(m, n, k)
    c = np.zeros((m, n), np.float32)
    report = Tile(n, k).run(a, b, c, grid=m // BM * (n // BN), block=128)
    assert np.array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32))
    assert report.instructions[MMA.mnemonic] == m * n * k // (16 * 8 * 16)
    assert report.bytes["global", "store"] == c.nbytes


def test_padding_avoids_bank_conflicts():
    a, b = operands(64, 32, 64)
    report = Tile(32, 64).run(a, b, np.zeros((64, 32), np.float32), block=128, profile=True)
    reads = [t for (_, space, verb), t in report.lines.items() if (space, verb) == ("shared", "load")]
    assert reads and all(t.excess == 0 for t in reads)


def test_a_forgotten_wait():
    a, b = operands(64, 32, 64)
    tile = Tile(32, 64, wait=False)
    with pytest.raises(Uninitialised, match="ldmatrix|asynchronous copy at .* still owns") as error:
        tile.run(a, b, np.zeros((64, 32), np.float32), block=128)
    assert line_of(error)


def test_a_divergent_product():
    b = Builder()
    few = b.op(isa.instruction("setp.lt.u32"), b.op(isa.instruction("mov.u32.%laneid")), 8)
    values = []
    for name in "abc":
        operand = MMA.operand(name)
        assert operand.layout is not None
        value = Value(100 + len(values), Type(operand.dtype, operand.registers, operand.layout.name))
        b.block.nodes.append(Assign(value, (Const(1.0, operand.dtype),), b.loc()))
        values.append(value)
    d = Value(200, values[2].type)
    with b.when(few):
        b.block.nodes.append(Op(MMA, (d,), tuple(values), loc=b.loc()))
    with pytest.raises(Divergence, match="lanes 0-7 of warp 0") as error:
        b.run()
    assert line_of(error) == b.line


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
    assert line_of(error) == line
