"""Random programs: evaluated into a kernel and run in emulation, they do what Python does.

The same text is run by Python, once for each thread, and inlined into a kernel. Programs mix
loops, branches, jumps, early returns, lists, tuples and swaps; numbers stay small.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tests.running import execute_text

pytestmark = pytest.mark.usefixtures("fresh_ir")

THREADS = 32
SEEDS = (*range(40), 130)
NAMES = "abcd"


class Writer:
    """Writes one random program."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lines: list[str] = []
        self.count = 0

    def program(self) -> str:
        self.lines = ["def program(x, p, q):"]
        self.add(1, "a, b, c, d = p, 1, 0, q")
        self.add(1, "xs = [0, p, 3]")
        self.add(1, "pair = (q, 2)")
        self.block(1, 3, (), True)
        self.add(1, "return a, b, c, d, xs[0], xs[1], xs[2], pair[0], pair[1]")
        return "\n".join(self.lines) + "\n"

    def add(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    # expressions

    def atom(self, names: tuple[str, ...] = ()) -> str:
        choice = self.random.choice
        return choice(
            [
                choice(NAMES),
                choice(NAMES),
                f"xs[{self.random.randrange(3)}]",
                f"pair[{self.random.randrange(2)}]",
            ]
            + [str(self.random.randrange(-3, 6)), "p", "q", f"x[({choice(NAMES)}) % 32]", *names]
        )

    def value(self, names: tuple[str, ...] = ()) -> str:
        a, b = self.atom(names), self.atom(names)
        return self.random.choice(
            [
                f"({a} + {b}) % 23",
                f"({a} * {b} - 4) % 31",
                f"{a} // 3",
                f"({a} - {b}) % 7 - 3",
                f"min({a}, {b})",
                f"max({a}, {b}, 2)",
                f"({a} if {self.condition()} else {b})",
                f"abs({a})",
                f"helper({a}, {b})",
                a,
                f"({a} or {b})",
                f"sum([{a}, {b}]) % 19",
                f"(lambda t: t * 2 % 29)({a})",
            ]
        )

    def condition(self) -> str:
        a, b, c = self.atom(), self.atom(), self.atom()
        return self.random.choice(
            [
                f"{a} < {b}",
                f"{a} == {b}",
                f"{a} % 3 == {self.random.randrange(3)}",
                f"{a} <= {b} < {c}",
                f"not {a} > {b}",
                f"{a} > 0 and {b} > 1",
                f"{a} > 4 or x[({b}) % 32] > {c}",
                f"{a} in (1, {b})",
                a,
            ]
        )

    # statements

    def block(self, depth: int, size: int, jumps: tuple[str, ...], returns: bool) -> None:
        """jumps: what may leave the innermost loop under a condition."""
        for _ in range(self.random.randint(1, size)):
            kinds = [self.assignment] * 4
            if depth < 5:
                kinds += [self.branch, self.branch, self.loop, self.unrolled, self.while_loop]
            if jumps:
                kinds.append(self.jump)
            if returns:
                kinds.append(self.early_return)
            self.random.choice(kinds)(depth, size, jumps, returns)

    def assignment(self, depth: int, *_: Any) -> None:
        u, v = self.random.sample(NAMES, 2)
        k = self.random.randrange(3)
        self.add(
            depth,
            self.random.choice(
                [
                    f"{u} = {self.value()}",
                    f"{u} = {self.value()}",
                    f"{u}, {v} = {v}, {u}",
                    f"{u}, {v} = {self.value()}, {u}",
                    f"xs[{k}] = {self.value()}",
                    f"xs[{k}] += {self.atom()} % 5",
                    f"{u} -= {self.atom()}",
                    f"pair = {self.value()}, pair[0]",
                    f"xs = [v % 17 for v in xs[1:] + [{self.atom()}]]",
                    f"{u} = {self.random.randrange(9)}",
                ]
            ),
        )
        self.add(depth, f"{u} = {u} % 41")

    def branch(self, depth: int, size: int, jumps: tuple[str, ...], returns: bool) -> None:
        self.add(depth, f"if {self.condition()}:")
        self.block(depth + 1, size - 1 or 1, jumps, returns)
        if self.random.random() < 0.3:
            self.add(depth, f"elif {self.condition()}:")
            self.block(depth + 1, 1, jumps, returns)
        if self.random.random() < 0.5:
            self.add(depth, "else:")
            self.block(depth + 1, size - 1 or 1, jumps, returns)

    def loop(self, depth: int, size: int, _: Any, returns: bool) -> None:
        i = self.fresh("i")
        bounds = self.random.choice(
            [f"{self.atom()} % 4", f"0, {self.atom()} % 5, 2", f"{self.atom()} % 4, -1, -1"]
        )
        self.add(depth, f"for {i} in loop_range({bounds}):")
        self.add(depth + 1, f"{self.random.choice(NAMES)} = ({i} + {self.value((i,))}) % 43")
        self.block(depth + 1, size - 1 or 1, ("break", "continue"), returns)

    def while_loop(self, depth: int, size: int, _: Any, returns: bool) -> None:
        n = self.fresh("n")
        self.add(depth, f"{n} = {self.atom()} % 4")
        self.add(depth, f"while {n} > 0:" if self.random.random() < 0.6 else "while True:")
        self.add(depth + 1, f"{n} -= 1")
        self.add(depth + 1, f"if {n} < 0:")
        self.add(depth + 2, "break")
        self.block(depth + 1, size - 1 or 1, ("break", "continue"), returns)

    def unrolled(self, depth: int, size: int, outer: Any, returns: bool) -> None:
        k = self.fresh("k")
        jumps = self.random.choice([(), ("break",), ("continue",), ("break", "continue")])
        self.add(depth, f"for {k} in {self.random.choice(['(2, 0, 1)', 'range(3)'])}:")
        self.add(depth + 1, f"xs[{k}] = ({self.value()} + {k}) % 37")
        self.block(depth + 1, 2 if depth < 3 else 1, jumps, returns)
        if self.random.random() < 0.3:
            self.add(depth, "else:")
            self.block(depth + 1, 1, outer, returns)

    def jump(self, depth: int, size: int, jumps: tuple[str, ...], returns: bool) -> None:
        self.add(depth, f"if {self.condition()}:")
        self.assignment(depth + 1)
        self.add(depth + 1, self.random.choice(jumps))

    def early_return(self, depth: int, *_: Any) -> None:
        self.add(depth, f"if {self.condition()}:")
        values = ", ".join(self.value() for _ in range(9))
        self.add(depth + 1, f"return {values}")


def helper(u, v):
    if u > v:
        if u > 9:
            return u % 5
        u = u + 1
    for k in range(3):
        if u == k:
            return v
    return u - v


def build(seed: int) -> Any:
    """The program as a Python function whose source can be read."""
    text = Writer(seed).program()
    names = execute_text(text, f"<random program {seed}>", {"helper": helper, "loop_range": range})
    return names["program"], text


@tc.kernel
def run_program(x: tc.Array, out: tc.Array, program: tc.Const = None):
    t = tc.threadIdx.x
    for k, value in enumerate(program(x, x[t], t)):
        out[k, t] = value


@pytest.mark.quick(10)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed):
    program, text = build(seed)
    x = np.random.default_rng(seed).integers(-5, 12, THREADS, dtype=np.int32)
    expected = np.array([program(x.tolist(), int(x[t]), t) for t in range(THREADS)])
    program.__globals__["loop_range"] = tc.range
    out = np.zeros((9, THREADS), np.int32)
    run_program.emulator("sm_80")[1, THREADS](x, out, program=program)
    assert np.array_equal(out.T, expected), text
