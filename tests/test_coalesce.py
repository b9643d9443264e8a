"""Register coalescing: the same meaning, fewer copies."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tensorcore_dsl.dtypes import b32, f32, pred, u32
from tensorcore_dsl.ir.coalesce import coalesce, remove_dead, unwritten_operand
from tensorcore_dsl.ir.nodes import (
    Assign,
    Block,
    Const,
    For,
    If,
    Jump,
    Kernel,
    Op,
    Param,
    Part,
    Type,
    Value,
    While,
    walk,
)
from tensorcore_dsl.isa.effects import PURE, VOLATILE, Effect
from tensorcore_dsl.isa.spec import Row

pytestmark = pytest.mark.usefixtures("fresh_ir")

WORD, PAIR, BITS, BITPAIR = Type(u32), Type(u32, 2), Type(b32), Type(b32, 2)


def instr(mnemonic: str, signature: str, execute: Any, effects: Any = PURE, **more: Any) -> Any:
    row = Row(mnemonic, signature, {}, "70", (6, 0), "test", execute, effects, **more)
    return next(row.instructions())


ADD = instr("add", "d:u32 = a:u32, b:u32", lambda a, b: [a + b])
BOTH = instr("both", "d:u32, e:u32 = a:u32, b:u32", lambda a, b: [a + b, a - b])
LISTED = instr(
    "listed",
    "d:u32, e:u32 = a:u32, b:u32",
    lambda a, b: [a ^ b, 3 * a + b],
    template="!{{ x {d}, {a}; y {e}, {a}, {b}; }}",
)
LESS = instr("less", "p:pred = a:u32, b:u32", lambda a, b: [int(a < b)])
TIED = instr("tied", "d:u32 = a:u32, c:u32", lambda a, c: [5 * a + c], tied="c")
FUSED = instr(
    "fused", "d:u32*2 = a:u32, c:u32*2", lambda a, c: [[c[0] + a, c[1] - a]], tied="c", template="{d}, {a}"
)
XOR = instr("xor", "d:b32 = a:b32, b:b32", lambda a, b: [a ^ b])
LOAD = instr("load", "d:b32*2 = a:b32", lambda a: [[a + 1, 7 * a]])
LOADPAIR = instr("loadpair", "d:u32*2 = a:u32", None, VOLATILE)
OUT = instr("out", "a:u32", None, VOLATILE)
OUTPAIR = instr("outpair", "a:u32*2", None, VOLATILE)
ASYNC = instr("issue", "a:u32*2", None, Effect.ASYNC | VOLATILE)
WAIT = instr("wait", "n:#u32", None, Effect.WGMMA | VOLATILE)
RANDOM_FORMS = [ADD, BOTH, LISTED, LESS, TIED, FUSED, XOR, LOAD, OUT, OUTPAIR]


# --- a reference evaluator -----------------------------------------------------------------


class Leave(Exception):
    pass


class Machine:
    """Runs structured IR over lists of integers; `trace` is all that can be seen of a run."""

    def __init__(self, fuel: int = 60) -> None:
        self.env: dict[Value, list[int]] = {}
        self.trace: list[Any] = []
        self.fuel = fuel  # loop iterations

    def read(self, source: Any) -> Any:
        if isinstance(source, Const):
            return int(source.value)
        if isinstance(source, Part):
            return self.registers(source.base)[source.index]
        held = self.registers(source)
        return held if source.type.is_group else held[0]

    def registers(self, value: Value) -> list[int]:
        return self.env.setdefault(value, [0] * value.type.registers)

    def write(self, value: Value, new: Any) -> None:
        self.env[value] = [v % 2**32 for v in (new if isinstance(new, list) else [new])]

    def burn(self) -> None:
        self.fuel -= 1
        if self.fuel < 0:
            raise Leave("fuel")

    def block(self, block: Block) -> None:
        for node in block:
            getattr(self, type(node).__name__.lower())(node)

    def op(self, op: Op) -> None:
        if op.guard is not None and bool(self.read(op.guard)) == op.negated:
            return
        given_operands = [self.read(s) for s in op.operands]
        index = unwritten_operand(op.instr)
        if index is not None and self.tied_matters:
            given_operands[index] = self.read(op.results[0])  # all that the text names
        if op.instr.effects:
            self.trace.append((op.instr.mnemonic, given_operands))
        elif op.instr.template.startswith("!"):  # writes its first result before it is done
            first = op.instr.execute(*given_operands)[0]
            self.write(op.results[0], first)
            self.write(op.results[1], op.instr.execute(*map(self.read, op.operands))[1])
        else:
            for value, new in zip(op.results, op.instr.execute(*given_operands), strict=True):
                self.write(value, new)

    tied_matters = False

    def assign(self, node: Assign) -> None:
        new: list[int] = []
        for source in node.sources:
            got = self.read(source)
            new.extend(got if isinstance(got, list) else [got])
        if len(new) == 1:
            new *= node.target.type.registers
        self.write(node.target, new)

    def jump(self, node: Jump) -> None:
        raise Leave(node.kind)

    def body(self, block: Block) -> bool:
        """Run a loop's block; False when the loop is to be left."""
        try:
            self.block(block)
        except Leave as leave:
            if leave.args[0] not in ("break", "continue"):
                raise
            return bool(leave.args[0] == "continue")
        return True

    def if_(self, node: If) -> None:
        self.block(node.then if self.read(node.condition) else node.orelse)

    def while_(self, node: While) -> None:
        while True:
            self.burn()
            test = Block([*node.test.nodes])
            try:
                self.block(test)
            except Leave as leave:
                if leave.args[0] == "continue":
                    continue
                if leave.args[0] == "break":
                    return
                raise
            if not self.read(node.condition) or not self.body(node.body):
                return

    def for_(self, node: For) -> None:
        self.write(node.index, self.read(node.start))
        while self.read(node.index) < self.read(node.stop):
            self.burn()
            if not self.body(node.body):
                return
            self.write(node.index, self.read(node.index) + self.read(node.step))


for _name in ("if", "while", "for"):
    setattr(Machine, _name, getattr(Machine, f"{_name}_"))


def run(kernel: Kernel, tied_matters: bool = False) -> list[Any]:
    machine = Machine()
    machine.tied_matters = tied_matters
    for position, param in enumerate(kernel.params):
        machine.write(param.value, [7 * position + 3] * param.value.type.registers)
    try:
        machine.block(kernel.body)
    except Leave as leave:
        machine.trace.append(leave.args[0])
    return machine.trace


# --- random programs -----------------------------------------------------------------------

WORDS, PAIRS, FLAGS, PARAMS = range(5), range(5, 8), range(8, 10), range(10, 12)


class Program:
    """Draws a kernel; variables start with a constant, names of a block are written once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        types = {**dict.fromkeys(WORDS, WORD), **dict.fromkeys(PAIRS, PAIR)}
        types |= {**dict.fromkeys(FLAGS, Type(pred)), **dict.fromkeys(PARAMS, WORD)}
        self.values = [Value(i, types[i]) for i in range(12)]
        self.next_id = 12
        self.once: list[Value] = []  # in scope

    def flip(self) -> bool:
        return self.random.random() < 0.5

    def new(self, type_: Type) -> Value:
        self.next_id += 1
        return Value(self.next_id - 1, type_)

    def read(self, numbers: Any, *types: Type) -> Value:
        """A variable, or a name in scope."""
        names = [v for v in self.once if v.type in types]
        if names and self.flip():
            return self.random.choice(names)
        return self.values[self.random.choice(numbers)]

    def word(self) -> Value:
        return self.read([*WORDS, *PARAMS], WORD, BITS)

    def pair(self) -> Value:
        return self.read(PAIRS, PAIR, BITPAIR)

    def flag(self) -> Value:
        return self.read(FLAGS, Type(pred))

    def target(self, numbers: Any, *types: Type) -> Value:
        """A variable, or a new name; it is in scope once `self.scope` is called."""
        if self.flip():
            return self.new(self.random.choice(types))
        return self.values[self.random.choice(numbers)]

    def scope(self, *targets: Value) -> None:
        self.once += [t for t in targets if t.id >= 12]

    def source(self) -> Any:
        kind = self.random.randint(0, 9)
        if kind == 0:
            return Const(self.random.randint(0, 5), u32)
        return Part(self.pair(), self.random.randint(0, 1)) if kind <= 3 else self.word()

    def bound(self) -> Any:
        return Const(self.random.randint(0, 5), u32) if self.flip() else self.word()

    def kernel(self) -> Kernel:
        start = [
            Assign(v, (Const((v.id + 1) % 2**v.type.dtype.bits, v.type.dtype),)) for v in self.values[:10]
        ]
        body = self.block(3, False)
        end = [Op(OUT, (), (self.values[i],)) for i in (0, 1, 10, 11)]
        params = [Param(f"p{i}", self.values[i]) for i in PARAMS]
        return Kernel("k", params, Block([*start, *body.nodes, *end]))

    def block(self, depth: int, in_loop: bool) -> Block:
        outside = len(self.once)
        count = self.random.randint(0, 7)
        nodes = [self.node(depth, in_loop) for _ in range(count)]
        del self.once[outside:]
        return Block(nodes)

    def node(self, depth: int, in_loop: bool) -> Any:
        kind = self.random.randint(0, 15 if depth else 11)
        if kind <= 3:
            return self.copy()
        if kind <= 11:
            return self.op()
        if kind == 12:
            return self.for_(depth)
        if kind == 13:
            condition = self.flag() if self.flip() else Const(True, pred)
            return While(self.block(depth - 1, True), condition, self.block(depth - 1, True))
        if kind == 14 and in_loop:
            jump = Jump(self.random.choice(["break", "continue", "break", "return"]))
            sides = Block([*(self.block(0, False).nodes if self.flip() else []), jump]), Block()
            return If(self.flag(), *(sides if self.flip() else sides[::-1]))
        return If(self.flag(), self.block(depth - 1, in_loop), self.block(depth - 1, in_loop))

    def for_(self, depth: int) -> For:
        start, stop = self.bound(), self.bound()
        step = self.word() if self.flip() else Const(1, u32)
        index = self.new(WORD)
        self.once.append(index)
        body = self.block(depth - 1, True)
        self.once.remove(index)
        return For(index, start, stop, step, body)

    def copy(self) -> Assign:
        kind = self.random.randint(0, 6)
        sources: tuple[Any, ...]
        if kind == 6:
            sources, target = (self.flag(),), self.target(FLAGS, Type(pred))
        elif kind <= 2:
            pair = self.pair()
            parts = (Part(pair, 0), Part(pair, 1))
            sources = [(self.source(), self.source()), parts, (pair,)][kind]
            target = self.target(PAIRS, PAIR, BITPAIR)
        else:
            sources, target = (self.source(),), self.target([*WORDS, *PARAMS], WORD, BITS)
        self.scope(target)
        return Assign(target, sources)

    def op(self) -> Op:
        form_ = self.random.choice(RANDOM_FORMS)
        operands = tuple(self.pair() if o.registers > 1 else self.source() for o in form_.operands)
        guard = self.flag() if self.random.randint(0, 3) == 0 else None
        results: list[Value] = []
        for operand in form_.results:
            kind = PAIRS if operand.registers > 1 else FLAGS if operand.dtype is pred else ([*WORDS, *PARAMS])
            type_ = Type(operand.dtype, operand.registers)
            fresh = guard is None and self.flip()
            choice = self.new(type_) if fresh else self.values[self.random.choice(kind)]
            if choice in results:  # two results never are the same register
                return Op(OUT, (), (self.word(),))
            results.append(choice)
        if form_ is LISTED and set(results) & set(operands) | {s for s in operands if isinstance(s, Part)}:
            return Op(OUT, (), (self.word(),))
        self.scope(*results)
        return Op(form_, tuple(results), operands, guard, guard is not None and self.flip())


@pytest.mark.thorough
@pytest.mark.parametrize("hundred", range(40))
def test_random_programs_keep_their_semantics(hundred):
    for seed in range(100 * hundred, 100 * hundred + 100):
        kernel = Program(seed).kernel()
        expected = run(kernel)
        coalesce(kernel)
        assert run(kernel, tied_matters=True) == expected, seed


# --- what must be merged -------------------------------------------------------------------


def value(number: int, type_: Type = WORD) -> Value:
    return Value(number, type_)


def nodes(kernel: Kernel, kind: type) -> list[Any]:
    return [n for n in walk(kernel.body) if isinstance(n, kind)]


def test_an_accumulator_in_a_loop_keeps_its_registers():
    quad = Type(f32, 4)
    mma = instr("mma", "d:f32*4 = a:f32*4, c:f32*4", None)
    acc, new, a, index = value(0, quad), value(1, quad), value(2, quad), value(3)
    loop = For(
        index,
        Const(0, u32),
        Const(9, u32),
        Const(1, u32),
        Block([Op(mma, (new,), (a, acc)), Assign(acc, (new,))]),
    )
    zero = Assign(acc, (Const(0.0, f32),))
    show = instr("show", "a:f32*4", None, VOLATILE)
    one = Assign(a, (Const(1.0, f32),))
    kernel = Kernel("k", [], Block([zero, one, loop, Op(show, (), (acc,))]))
    coalesce(kernel)
    (op,) = [n for n in nodes(kernel, Op) if n.instr is mma]
    assert op.results[0] is op.operands[1]
    assert len(nodes(kernel, Assign)) == 2


def test_double_buffers_stay_apart():
    now, later, new, index = (value(i) for i in range(4))
    loop = For(index, Const(0, u32), Const(9, u32), Const(1, u32), Block([
        Op(ADD, (new,), (now, index)),
        Op(OUT, (), (later,)),
        Assign(later, (now,)),
        Assign(now, (new,)),
    ]))  # fmt: skip
    begin = [Assign(now, (Const(1, u32),)), Assign(later, (Const(2, u32),))]
    kernel = Kernel("k", [], Block([*begin, loop]))
    expected = run(kernel)
    coalesce(kernel)
    assert run(kernel) == expected
    assert len(nodes(kernel, Assign)) == 4  # each of the three is live where another is written


def test_two_branches_write_one_set_of_registers():
    flag, left, right, joined, param = value(0, Type(pred)), *(value(i) for i in range(1, 5))
    then = [Op(ADD, (left,), (param, param)), Assign(joined, (left,))]
    orelse = [Op(ADD, (right,), (param, Const(1, u32))), Assign(joined, (right,))]
    branch = If(flag, Block(then), Block(orelse))
    kernel = Kernel("k", [Param("f", flag), Param("n", param)], Block([branch, Op(OUT, (), (joined,))]))
    coalesce(kernel)
    assert nodes(kernel, Assign) == []


def test_a_parameter_that_is_still_needed_is_not_overwritten():
    param, counter = value(0), value(1)
    body = [
        Assign(counter, (param,)),
        Op(ADD, (counter,), (counter, Const(1, u32))),
        Op(OUT, (), (counter,)),
        Op(OUT, (), (param,)),
    ]
    kernel = Kernel("k", [Param("n", param)], Block(body))
    expected = run(kernel)
    coalesce(kernel)
    assert run(kernel) == expected and len(nodes(kernel, Assign)) == 1


def test_a_loop_index_keeps_its_own_register():
    index, last = value(0), value(1)
    loop = For(
        index,
        Const(0, u32),
        Const(3, u32),
        Const(1, u32),
        Block([Assign(last, (index,)), Op(ADD, (last,), (last, Const(1, u32))), Op(OUT, (), (last,))]),
    )
    after = Value(2, WORD)
    copies = Block([Assign(after, (index,))])
    again = For(index, Const(0, u32), Const(3, u32), Const(1, u32), copies)
    kernel = Kernel("k", [], Block([loop, again, Op(OUT, (), (after,))]))
    coalesce(kernel)
    assert run(kernel) == [("out", [1]), ("out", [2]), ("out", [3]), ("out", [2])]


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("lives_on", [False, True])
def test_an_unwritten_operand_gets_the_result_registers(guarded, lives_on):
    old, new, n, flag = value(0, PAIR), value(1, PAIR), value(2), value(3, Type(pred))
    body: list[Any] = [Assign(old, (n, n)), Assign(new, (Const(1, u32),))]
    body += [Op(FUSED, (new,), (n, old), flag if guarded else None), Op(OUTPAIR, (), (new,))]
    body += [Op(OUTPAIR, (), (old,))] * lives_on
    kernel = Kernel("k", [Param("n", n), Param("f", flag)], Block(body))
    expected = run(kernel)
    coalesce(kernel)
    (op,) = [o for o in nodes(kernel, Op) if o.instr is FUSED]
    assert op.results[0] is op.operands[1]
    assert run(kernel, tied_matters=True) == expected
    if not lives_on and not guarded:
        assert len(nodes(kernel, Assign)) == 1


def in_flight(*order: str, pending: int = 0) -> int:
    """Copies left when `a <- next` could put `next` into registers still being read."""
    a, later, index = value(0, PAIR), value(1, PAIR), value(2)
    steps = {
        "issue": Op(ASYNC, (), (a,)),
        "wait": Op(WAIT, (), (Const(pending, u32),)),
        "next": Op(LOADPAIR, (later,), (index,)),
        "copy": Assign(a, (later,)),
    }
    loop = For(index, Const(0, u32), Const(9, u32), Const(1, u32), Block([steps[o] for o in order]))
    kernel = Kernel("k", [], Block([Assign(a, (Const(1, u32),)), loop]))
    coalesce(kernel)
    return sum(n.target.type == PAIR for n in nodes(kernel, Assign)) - 1


def test_fragments_of_asynchronous_instructions_are_kept_until_the_wait():
    assert in_flight("issue", "wait", "next", "copy") == 0
    assert in_flight("issue", "next", "wait", "copy") == 1
    assert in_flight("issue", "wait", "next", "copy", pending=1) == 1


def test_results_of_one_instruction_stay_apart_even_when_dead():
    two = instr("two", "d:u32, e:u32 = a:u32", None, VOLATILE)
    d, e, n = value(0), value(1), value(2)
    body = [Op(two, (d, e), (n,)), Assign(e, (Const(1, u32),)), Assign(d, (e,)), Op(OUT, (), (d,))]
    kernel = Kernel("k", [Param("n", n)], Block(body))
    coalesce(kernel)
    (op,) = [o for o in nodes(kernel, Op) if o.instr is two]
    assert op.results[0] is not op.results[1]


def test_a_list_of_statements_does_not_overwrite_what_it_still_reads():
    a, b, d, e = (value(i) for i in range(4))
    body = [Op(LISTED, (d, e), (a, b)), Op(OUT, (), (e,)), Assign(a, (d,)), Op(OUT, (), (a,))]
    kernel = Kernel("k", [Param("a", a), Param("b", b)], Block(body))
    expected = run(kernel)
    coalesce(kernel)
    assert run(kernel) == expected


def test_a_value_lives_through_a_continue():
    flag, kept, other, n, index = value(0, Type(pred)), *(value(i) for i in range(1, 5))
    loop = For(
        index,
        Const(0, u32),
        Const(2, u32),
        Const(1, u32),
        Block([If(flag, Block([Jump("continue")]), Block()), Assign(kept, (n,))]),
    )
    kernel = Kernel(
        "k",
        [Param("n", n), Param("f", flag)],
        Block(
            [
                Op(ADD, (kept,), (n, n)),
                Assign(other, (kept,)),
                Op(OUT, (), (other,)),
                Op(ADD, (other,), (n, Const(9, u32))),
                Op(OUT, (), (other,)),
                loop,
                Op(OUT, (), (kept,)),
            ]
        ),
    )
    expected = run(kernel)
    coalesce(kernel)
    assert run(kernel) == expected


# --- dead code -----------------------------------------------------------------------------


def test_dead_chains_go_and_effects_stay():
    a, b, c, index = (value(i) for i in range(4))
    grows = Op(ADD, (c,), (c, a))  # reads itself, nobody else does
    body = [
        Op(ADD, (a,), (Const(1, u32), Const(2, u32))),
        Op(ADD, (b,), (a, a)),
        Assign(c, (b,)),
        For(index, Const(0, u32), Const(2, u32), Const(1, u32), Block([grows])),
        Op(OUT, (), (a,)),
    ]
    kernel = Kernel("k", [], Block(body))
    remove_dead(kernel)
    assert [type(n).__name__ for n in walk(kernel.body)] == ["Op", "For", "Op"]


def test_copies_of_a_long_loop_all_go():
    zero = Const(0, u32)
    index = value(0)
    accs = [value(i + 1, PAIR) for i in range(64)]
    body: list[Any] = []
    number = 100
    for _ in range(38):
        for position, acc in enumerate(accs):
            new = value(number, PAIR)
            number += 1
            body += [Op(FUSED, (new,), (index, acc)), Assign(accs[position], (new,))]
    start = [Assign(acc, (zero,)) for acc in accs]
    end = [Op(OUTPAIR, (), (acc,)) for acc in accs]
    loop = For(index, zero, value(99999), Const(1, u32), Block(body))
    kernel = Kernel("k", [Param("n", loop.stop)], Block([*start, loop, *end]))  # type: ignore[arg-type]
    assert sum(1 for _ in walk(kernel.body)) >= 4900
    coalesce(kernel)
    assert len(nodes(kernel, Assign)) == 64
