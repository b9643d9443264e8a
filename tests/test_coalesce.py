"""Register coalescing: the same meaning, fewer copies."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tensorcore_dsl.dtypes import b32, pred, u32
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
from tests.ir_reader import parse_kernel

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

MMA = instr("mma", "d:f32*4 = a:f32*4, c:f32*4", None)
SHOW = instr("show", "a:f32*4", None, VOLATILE)
TWO = instr("two", "d:u32, e:u32 = a:u32", None, VOLATILE)
FORMS = {
    form.mnemonic: form for form in (ADD, LISTED, FUSED, LOADPAIR, OUT, OUTPAIR, ASYNC, WAIT, MMA, SHOW, TWO)
}


def parsed(body: str) -> Kernel:
    head = "kernel k(n = %0:u32, m = %1:u32, f = %2:pred) {"
    return parse_kernel(f"{head}\n{body}\n}}", FORMS.__getitem__)


def coalesced(body: str, tied_matters: bool = False) -> Kernel:
    """The kernel with merged registers; it does what it did before."""
    kernel = parsed(body)
    before = run(kernel)
    coalesce(kernel)
    assert run(kernel, tied_matters) == before
    return kernel


def nodes(kernel: Kernel, kind: type) -> list[Any]:
    return [n for n in walk(kernel.body) if isinstance(n, kind)]


def copies(kernel: Kernel) -> int:
    return len(nodes(kernel, Assign))


def op_of(kernel: Kernel, form: Any) -> Op:
    (op,) = [op for op in nodes(kernel, Op) if op.instr is form]
    return op


def test_an_accumulator_in_a_loop_keeps_its_registers():
    kernel = parsed("""
        %3:f32*4 <- 0.0
        %4:f32*4 <- 1.0
        for %5:u32 = 0 to 9 step 1 {
          %6:f32*4 = mma %4, %3
          %3 <- %6
        }
        show %3""")
    coalesce(kernel)
    op = op_of(kernel, MMA)
    assert op.results[0] is op.operands[1] and copies(kernel) == 2


def test_double_buffers_stay_apart():
    """Each of the three is live where another is written."""
    kernel = coalesced("""
        %3:u32 <- 1
        %4:u32 <- 2
        for %5:u32 = 0 to 9 step 1 {
          %6:u32 = add %3, %5
          out %4
          %4 <- %3
          %3 <- %6
        }""")
    assert copies(kernel) == 4


def test_two_branches_write_one_set_of_registers():
    kernel = coalesced("""
        if %2 {
          %3:u32 = add %0, %0
          %4:u32 <- %3
        } else {
          %5:u32 = add %0, 1
          %4 <- %5
        }
        out %4""")
    assert copies(kernel) == 0


def test_a_parameter_that_is_still_needed_is_not_overwritten():
    kernel = coalesced("""
        %3:u32 <- %0
        %3 = add %3, 1
        out %3
        out %0""")
    assert copies(kernel) == 1


def test_a_loop_index_keeps_its_own_register():
    coalesced("""
        for %3:u32 = 0 to 3 step 1 {
          %4:u32 <- %3
          %4 = add %4, 1
          out %4
        }
        for %3 = 0 to 3 step 1 {
          %5:u32 <- %3
        }
        out %5""")


@pytest.mark.parametrize("guard", ["", "@%2 "])
@pytest.mark.parametrize("lives_on", [False, True])
def test_an_unwritten_operand_gets_the_result_registers(guard, lives_on):
    last = "outpair %3" if lives_on else ""
    kernel = coalesced(
        f"""
        %3:u32*2 <- %0, %0
        %4:u32*2 <- 1
        {guard}%4 = fused %0, %3
        outpair %4
        {last}""",
        tied_matters=True,
    )
    op = op_of(kernel, FUSED)
    assert op.results[0] is op.operands[1]
    if not lives_on and not guard:
        assert copies(kernel) == 1


@pytest.mark.parametrize(
    "steps, copied",
    [
        (["issue %3", "wait 0", "%4:u32*2 = loadpair %5", "%3 <- %4"], 0),
        (["issue %3", "%4:u32*2 = loadpair %5", "wait 0", "%3 <- %4"], 1),
        (["issue %3", "wait 1", "%4:u32*2 = loadpair %5", "%3 <- %4"], 1),
    ],
)
def test_fragments_of_asynchronous_instructions_are_kept_until_the_wait(steps, copied):
    kernel = parsed("\n".join(["%3:u32*2 <- 1", "for %5:u32 = 0 to 9 step 1 {", *steps, "}"]))
    coalesce(kernel)
    assert copies(kernel) == 1 + copied


def test_results_of_one_instruction_stay_apart_even_when_dead():
    kernel = parsed("""
        %3:u32, %4:u32 = two %0
        %4 <- 1
        %3 <- %4
        out %3""")
    coalesce(kernel)
    first, second = op_of(kernel, TWO).results
    assert first is not second


def test_a_list_of_statements_does_not_overwrite_what_it_still_reads():
    coalesced("""
        %3:u32, %4:u32 = listed %0, %1
        out %4
        %0 <- %3
        out %0""")


def test_a_value_lives_through_a_continue():
    coalesced("""
        %3:u32 = add %0, %0
        %4:u32 <- %3
        out %4
        %4 = add %0, 9
        out %4
        for %5:u32 = 0 to 2 step 1 {
          if %2 {
            continue
          }
          %3 <- %0
        }
        out %3""")


# --- dead code -----------------------------------------------------------------------------


def test_dead_chains_go_and_effects_stay():
    """The addition in the loop reads what it writes, which nobody else does."""
    kernel = parsed("""
        %3:u32 = add 1, 2
        %4:u32 = add %3, %3
        %5:u32 <- %4
        for %6:u32 = 0 to 2 step 1 {
          %5 = add %5, %3
        }
        out %3""")
    remove_dead(kernel)
    assert [type(n).__name__ for n in walk(kernel.body)] == ["Op", "For", "Op"]


def test_copies_of_a_long_loop_all_go():
    accumulators, steps = range(10, 74), 38
    body = [
        f"%{100 * i + step + 1000}:u32*2 = fused %0, %{i}\n%{i} <- %{100 * i + step + 1000}"
        for step in range(steps)
        for i in accumulators
    ]
    start = [f"%{i}:u32*2 <- 0" for i in accumulators]
    shown = [f"outpair %{i}" for i in accumulators]
    kernel = parsed("\n".join([*start, "for %3:u32 = 0 to %1 step 1 {", *body, "}", *shown]))
    coalesce(kernel)
    assert copies(kernel) == len(accumulators)
