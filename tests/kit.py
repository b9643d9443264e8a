"""Small kernels in IR for tests of what runs IR: a builder and a few handmade instructions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Requires
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.interpreter import EmulatedLaunch, GlobalPointer, Report
from tensorcore_dsl.ir.nodes import (
    Address,
    Assign,
    Block,
    Const,
    For,
    If,
    Jump,
    Kernel,
    Op,
    Param,
    Type,
    Value,
    While,
)
from tensorcore_dsl.isa.access import parse_accesses
from tensorcore_dsl.isa.effects import BLOCKING, PURE, VOLATILE, WARP, Effect
from tensorcore_dsl.isa.spec import Instruction, parse_operands

u32, u64, s32, f32, pred = dtypes.u32, dtypes.u64, dtypes.s32, dtypes.f32, dtypes.pred


def instr(
    mnemonic: str, signature: str, execute: Any, effects: Effect = PURE, access: str = ""
) -> Instruction:
    left, _, right = signature.rpartition("=")
    accesses = parse_accesses(access)
    return Instruction(
        mnemonic,
        parse_operands(left),
        parse_operands(right),
        Requires("80"),
        (7, 0),
        "",
        execute,
        reduce(or_, (a.effects for a in accesses), effects),
        accesses,
    )


SPACES = {"globals": "global", "shared": "shared"}


def _special(name: str) -> Instruction:
    return instr(f"mov.{name}", "d:u32 =", lambda ctx, instr: ctx.special(name))


def _load(space: str, address: str, width: int, count: int) -> Instruction:
    def execute(ctx: Any, instr: Any, p: Any) -> Any:
        words = getattr(ctx, space).load(ctx, p, width, count)
        return words if count > 1 else words[0]

    name = f"ld.{space}" + (f".v{count}" if count > 1 else "")
    access = f"load p {SPACES[space]} {count}*u{8 * width}"
    return instr(name, f"d:u{8 * width}*{count} = p:[{address}]", execute, access=access)


def _store(space: str, address: str) -> Instruction:
    def execute(ctx: Any, instr: Any, p: Any, v: Any) -> None:
        getattr(ctx, space).store(ctx, p, np.broadcast_to(v, (1, ctx.threads)))

    access = f"store p {SPACES[space]} 1*u32"
    return instr(f"st.{space}", f"p:[{address}], v:u32", execute, access=access)


def _bump(space: str, address: str) -> Instruction:
    def execute(ctx: Any, instr: Any, p: Any, v: Any) -> Any:
        return getattr(ctx, space).atomic(ctx, p, 4, np.add, v)

    signature, access = f"d:u32 = p:[{address}], v:u32", f"update p {SPACES[space]} 1*u32 relaxed.gpu"
    return instr(f"atom.{space}.add", signature, execute, access=access)


def _vote(ctx: Any, instr: Any, flag: Any) -> Any:
    ctx.whole_warps()
    lanes = np.broadcast_to(flag, (ctx.threads,)).reshape(-1, 32)
    return np.repeat(lanes.sum(axis=1, dtype=np.uint32), 32)


def _meet(ctx: Any, instr: Any, value: Any, mask: Any) -> Any:
    """The sum of `value` over the active lanes of the warp."""
    active = np.ones(ctx.threads, bool) if ctx.active is None else ctx.active
    return np.repeat(np.where(active, value, 0).reshape(-1, 32).sum(1, dtype=np.uint32), 32)


ADD = instr("add.u32", "d:u32 = a:u32, b:u32", lambda ctx, instr, a, b: a + b)
MUL = instr("mul.u32", "d:u32 = a:u32, b:u32", lambda ctx, instr, a, b: a * b)
XOR = instr("xor.u32", "d:u32 = a:u32, b:u32", lambda ctx, instr, a, b: a ^ b)
AND = instr("and.u32", "d:u32 = a:u32, b:u32", lambda ctx, instr, a, b: a & b)
WIDE = instr("cvt.u64.u32", "d:u64 = a:u32", lambda ctx, instr, a: a.astype(np.uint64))
ADD64 = instr("add.u64", "d:u64 = a:u64, b:u64", lambda ctx, instr, a, b: a + b)
LESS = instr("lt.u32", "d:pred = a:u32, b:u32", lambda ctx, instr, a, b: a < b)
EQUAL = instr("eq.u32", "d:pred = a:u32, b:u32", lambda ctx, instr, a, b: a == b)
TID, CTAID, LANE, WARP_ID = (_special(n) for n in ("tid.x", "ctaid.x", "laneid", "warpid"))
LOAD_GLOBAL, LOAD_SHARED = _load("globals", "u64", 4, 1), _load("shared", "u32", 4, 1)
LOAD_GLOBAL4, LOAD_SHARED4 = _load("globals", "u64", 4, 4), _load("shared", "u32", 4, 4)
STORE_GLOBAL, STORE_SHARED = _store("globals", "u64"), _store("shared", "u32")
BUMP_GLOBAL, BUMP_SHARED = _bump("globals", "u64"), _bump("shared", "u32")
VOTE = instr("vote.count", "d:u32 = a:pred", _vote, WARP)
MEET = instr("meet.sync", "d:u32 = a:u32, mask:u32", _meet, VOLATILE | Effect.CONVERGENT)
SYNC = instr("bar.sync", "id:u32 ", lambda ctx, instr, i: ctx.barriers.arrive(i, None, True), BLOCKING)
SYNC_COUNT = instr(
    "bar.sync.count", "id:u32, n:u32", lambda ctx, instr, i, n: ctx.barriers.arrive(i, n, True), BLOCKING
)
ARRIVE = instr(
    "bar.arrive", "id:u32, n:u32", lambda ctx, instr, i, n: ctx.barriers.arrive(i, n, False), BLOCKING
)
COUNT = instr(
    "bar.red.popc",
    "d:u32 = id:u32, p:pred",
    lambda ctx, instr, i, p: tuple(
        x if x.dtype == bool else x.astype(np.uint32) for x in ctx.barriers.arrive_counting(i, None, p)[:2]
    ),
    BLOCKING,
)
COPY = instr(
    "cp.async",
    "dst:[u32], src:[u64], size:#u32, valid:u32",
    lambda ctx, instr, d, s, n, v: ctx.async_copies.issue(ctx, d, s, n, np.broadcast_to(v, (ctx.threads,))),
    access="store dst shared size async_group; load src global valid async_group",
)
COMMIT = instr("cp.async.commit_group", "", lambda ctx, instr: ctx.async_copies.commit(), VOLATILE)
WAIT = instr("cp.async.wait_group", "n:#u32", lambda ctx, instr, n: ctx.async_copies.wait(n), VOLATILE)


class Builder:
    """Appends nodes; every node gets a line number of its own, counted from 1."""

    def __init__(self, *params: tuple[str, DType], shared: int = 0, dynamic: int = 0) -> None:
        self.count = 0
        self.line = 0
        values = [Param(name, self.value(dtype)) for name, dtype in params]
        self.kernel = Kernel("test", values, Block(), shared_bytes=shared, dynamic=dynamic)
        self.block = self.kernel.body
        self.params = [p.value for p in values]

    def value(self, dtype: DType = u32, registers: int = 1) -> Value:
        self.count += 1
        return Value(self.count, Type(dtype, registers))

    def loc(self) -> Loc:
        self.line += 1
        return Loc("kernel.py", self.line)

    def op(self, instr: Instruction, *operands: Any, **options: Any) -> Any:
        """Append `instr`; ints become constants. Returns its result, if it has one."""
        into = options.pop("into", None)
        results = tuple(self.value(r.dtype, r.registers) for r in instr.results)
        results = (into,) if into is not None else results
        sources = tuple(
            Const(o, wanted.dtype) if isinstance(o, (int, bool)) else o
            for o, wanted in zip(operands, instr.operands, strict=True)
        )
        if any(o.kind == "addr" for o in instr.operands):
            sources = tuple(
                Address(s) if o.kind == "addr" and not isinstance(s, Address) else s
                for s, o in zip(sources, instr.operands, strict=True)
            )
        self.block.nodes.append(Op(instr, results, sources, loc=self.loc(), **options))
        return results[0] if results else None

    def assign(self, target: Value, *sources: Any) -> None:
        dtype = target.type.dtype
        wrapped = tuple(Const(s, dtype) if isinstance(s, int) else s for s in sources)
        self.block.nodes.append(Assign(target, wrapped, self.loc()))

    def variable(self, initial: Any, dtype: DType = u32) -> Value:
        value = self.value(dtype)
        self.assign(value, initial)
        return value

    def jump(self, kind: str) -> None:
        self.block.nodes.append(Jump(kind, self.loc()))

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    @contextmanager
    def when(self, condition: Value) -> Iterator[Block]:
        """The body is the `then` part; yields the `else` block, to be filled with `inside`."""
        node = If(condition, Block(), Block(), self.loc())
        self.block.nodes.append(node)
        with self.inside(node.then):
            yield node.orelse

    @contextmanager
    def loop(self, start: Any, stop: Any, step: Any = 1, dtype: DType = u32) -> Iterator[Value]:
        bounds = (Const(x, dtype) if isinstance(x, int) else x for x in (start, stop, step))
        index = self.value(dtype)
        node = For(index, *bounds, Block(), self.loc())
        self.block.nodes.append(node)
        with self.inside(node.body):
            yield index

    @contextmanager
    def forever(self, condition: Value | None = None) -> Iterator[Block]:
        """A while loop: yields its test block, to be filled with `inside`."""
        node = While(Block(), Const(True, pred) if condition is None else condition, Block(), self.loc())
        self.block.nodes.append(node)
        with self.inside(node.body):
            yield node.test

    def element(self, pointer: Value, index: Value, size: int = 4) -> Value:
        """The address of element `index`."""
        return self.op(ADD64, pointer, self.op(WIDE, self.op(MUL, index, size)))

    def thread(self, block: int) -> Value:
        """The thread's number in the grid."""
        return self.op(ADD, self.op(MUL, self.op(CTAID), block), self.op(TID))

    def run(self, *arguments: Any, grid: int = 1, block: Any = 32, **options: Any) -> Report:
        pointers = [
            GlobalPointer(a, p.name) if isinstance(a, np.ndarray) else a
            for a, p in zip(arguments, self.kernel.params, strict=True)
        ]
        shape = block if isinstance(block, tuple) else (block, 1, 1)
        options.setdefault("arch", "sm_90a")
        return EmulatedLaunch(self.kernel, (grid, 1, 1), shape, pointers, **options).run()


def reported_line(error: Any) -> int:
    """The line an error points at."""
    assert error.value.loc is not None
    return int(error.value.loc.line)
